"""Rates and errors by group: small tables with a picture, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ratewise.report.content import Content, Group, Grouping, Share
from ratewise.report.grids import capital, counted, four, left_out, picture_table, span
from ratewise.report.markup import Html, el
from ratewise.report.svg import Axis, strip, strip_axis

OPEN_GROUPS = 12
MOST_GROUPS = 150

PANELS = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")


def rates_view(content: Content, measures: dict[str, str]) -> list[Html]:
    """Return the rates of every grouping and class as small panels."""
    found = []
    for number, grouping in enumerate(content.groupings):
        classes = [
            _class_panels(content, grouping, k, measures, f"rates-{number}{f'-{place}' if place else ''}")
            for place, k in enumerate(content.shown_classes)
        ]
        body = classes if len(classes) == 1 else _folded_classes(content.shown_classes, classes)
        found.append(
            el(
                "section",
                el("h3", f"By {' and '.join(grouping.by)}"),
                body,
                class_="grouping",
            )
        )
    return found


def _folded_classes(names: Sequence[str], panels: Sequence[Html]) -> list[Html]:
    return [
        el("details", el("summary", f"Class {name}"), body, open=place == 0, class_="more")
        for place, (name, body) in enumerate(zip(names, panels, strict=True))
    ]


def _class_panels(
    content: Content, grouping: Grouping, k: str, measures: dict[str, str], figure: str
) -> Html:
    panels = []
    for measure in PANELS:
        words = f"{capital(measures[measure])}, class {k}"
        rows = [(group.name, group.rates[k][measure]) for group in grouping.groups]
        panels.append(share_panel(words, rows, content.everyone.rates[k][measure], f"{figure}-{measure}"))
    return el("div", panels, class_="panels")


def share_panel(words: str, rows: Sequence[tuple[str, Share]], everyone: Share, figure: str) -> Html:
    """Return a share of each group, with everyone's as a line through all.

    Of many groups the farthest from everyone come first, a dozen open and the others folded.
    """
    known = [share for _, share in rows if share.value is not None]
    ends = [end for share in [*known, everyone] for end in (share.low, share.high) if end is not None]
    axis = _unit_axis(ends)
    if len(rows) > OPEN_GROUPS:
        rows = sorted(rows, key=lambda row: -_distance(row[1], everyone))
    lines = [_share_row(name, share, everyone, axis) for name, share in rows]
    last = _share_row("everyone", everyone, everyone, axis, kind="everyone")
    table = _panel_table(words, [*lines[:OPEN_GROUPS], last], axis, figure)
    if len(lines) <= OPEN_GROUPS:
        return table
    folded, left = lines[OPEN_GROUPS:MOST_GROUPS], len(lines) - MOST_GROUPS
    more = _panel_table(words, folded, axis, f"{figure}-more")
    summary = el("summary", f"{counted(len(folded), 'more group')}, nearer to everyone")
    return el("div", table, el("details", summary, more, left_out(left), class_="more"), class_="panel-box")


def _panel_table(words: str, lines: Sequence[Html], axis: Axis, figure: str) -> Html:
    head = [("Group", "name"), ("Rate", "number")]
    hidden = el("span", "Picture", class_="sr")
    scale = el("th", hidden, strip_axis(axis), scope="col", class_="picture", role="columnheader")
    return picture_table(words, head, scale, lines, figure, "forest panel", shown_caption=True)


def _share_row(name: str, share: Share, everyone: Share, axis: Axis, kind: str = "model") -> Html:
    interval = None if share.low is None or share.high is None else (share.low, share.high)
    tip = f"{name}: {four(share.value)} ({span(share.low, share.high)}), {share.rows:,} rows"
    return el(
        "tr",
        el("th", name, scope="row", class_="name", role="rowheader"),
        el(
            "td",
            four(share.value),
            el("span", f" {span(share.low, share.high)}, {share.rows:,} rows", class_="sr"),
            class_="number",
            role="cell",
        ),
        el(
            "td",
            strip(axis, share.value, interval, state=kind, zero=everyone.value, tip=tip),
            class_="picture",
            role="cell",
        ),
        role="row",
        class_=kind,
    )


def _distance(share: Share, everyone: Share) -> float:
    if share.value is None or everyone.value is None:
        return -1.0
    return abs(share.value - everyone.value)


def _unit_axis(ends: Sequence[float]) -> Axis:
    axis = Axis.around(ends, least=0.04)
    return Axis(max(0.0, axis.low), min(1.0, axis.high))


def error_view(content: Content) -> Html:
    """Return how often predictions are wrong, by group."""
    panels = [
        share_panel(
            f"Wrong predictions, by {' and '.join(grouping.by)}",
            [(group.name, _error(group)) for group in grouping.groups],
            _error(content.everyone),
            f"error-{number}",
        )
        for number, grouping in enumerate(content.groupings)
    ]
    if not panels:
        panels = [share_panel("Wrong predictions", [], _error(content.everyone), "error-0")]
    return el("div", panels, class_="panels")


def _error(group: Group) -> Share:
    right = group.accuracy
    if right.value is None or right.low is None or right.high is None:
        return right
    return Share(1.0 - right.value, 1.0 - right.high, 1.0 - right.low, right.rows)
