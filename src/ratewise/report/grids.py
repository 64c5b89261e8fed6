"""Tables as they stand on the page, and numbers as they stand in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratewise.report.markup import Html, el
from ratewise.report.svg import Axis, strip_axis

NOTHING = "\N{EN DASH}"


def four(number: float | None) -> str:
    """Return a rate with four decimals; a dash where there is none."""
    return NOTHING if number is None else f"{number:.4f}".replace("-", "\N{MINUS SIGN}")


def signed(number: float | None) -> str:
    """Return a difference with four decimals and its sign."""
    return NOTHING if number is None else f"{number:+.4f}".replace("-", "\N{MINUS SIGN}")


def span(low: float | None, high: float | None) -> str:
    """Return an interval as text."""
    return "no rows" if low is None or high is None else f"{four(low)} to {four(high)}"


def plain_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """Return a table of texts, the first column as row headers; for the numbers behind a picture."""
    return el(
        "table",
        el("caption", caption, class_="sr"),
        el("thead", el("tr", [el("th", words, scope="col") for words in head])),
        el(
            "tbody",
            [el("tr", el("th", row[0], scope="row"), [el("td", entry) for entry in row[1:]]) for row in rows],
        ),
        class_="numbers",
    )


def picture_table(
    caption: str,
    head: Sequence[tuple[str, str]],
    last: Any,
    rows: Sequence[Html],
    figure: str,
    kind: str,
    *,
    shown_caption: bool = False,
) -> Html:
    """Return a table whose last columns (`last` is their head) are pictures; `figure` names it."""
    # roles are written out because narrow screens lay rows out as blocks, which would hide them
    cells = [el("th", words, scope="col", class_=name, role="columnheader") for words, name in head]
    return el(
        "table",
        el("caption", caption, class_=None if shown_caption else "sr"),
        el("thead", el("tr", cells, last, role="row"), role="rowgroup"),
        el("tbody", rows, role="rowgroup"),
        class_=kind,
        role="table",
        data_figure=figure,
    )


def capital(words: str) -> str:
    """Return words with a capital at the start, the rest as it is."""
    return words[:1].upper() + words[1:]


def cell(label: str, words: str, kind: str) -> Html:
    """Return a cell; narrow screens show `label` before it."""
    return el("td", words, class_=kind, role="cell", data_label=label)


def counted(count: int, words: str) -> str:
    """Return how many there are of something: one group, two groups."""
    return f"{count:,} {words}{'' if count == 1 else 's'}"


def left_out(count: int) -> Html | None:
    """Say how many rows are not on the page; None if all are."""
    return (
        el("p", f"{count:,} more are in the data of this page only.", class_="quiet") if count > 0 else None
    )


def labelled_scale(words: str, axis: Axis, *, signed: bool = False) -> list[Html]:
    """Return the scale of a column of strips, under its name."""
    return [el("span", words, class_="scale-title"), strip_axis(axis, signed=signed)]
