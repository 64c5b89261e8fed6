"""The page, one HTML file that needs no other, and the model card in Markdown.

Everything is readable without the script, which adds a choice of colours, boxes beside marks, a filter and
the keyboard in plots. A content security policy names the script by its hash, so no other one can run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from string import Template
from typing import Any

from ratewise.accounting import PrivacyStatement, PrivacyUnit
from ratewise.accounting.statement import epsilon_text
from ratewise.report import views
from ratewise.report.build import certificate_line, detail, measured
from ratewise.report.content import STATES, Content, Note
from ratewise.report.plots import Column, Html, el, join
from ratewise.report.views import PANELS, four, interval_words, measured_share

OPEN_NOTES, OPEN_REMEDIES = 12, 3
MOST_LIMITS, MOST_GROUPS, MOST_NOTES = 30, 50, 20  # on the card
_KINDS = {
    "leak": "Outside the guarantee",
    "rows": "Few rows",
    "page": "This page",
}  # other kinds are called as they are


def render(content: Content) -> str:
    """Return the whole page."""
    script = _asset("page.js")
    data = json.dumps(content.to_dict(), allow_nan=False, separators=(",", ":"))
    return Template(_asset("page.html")).substitute(
        title=html.escape(content.title),
        style=_asset("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        body=_body(content),
        # the data cannot end the script element that they stand in
        data=data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    )


def embedded(content: Content) -> str:
    """Return the page within a frame, for notebooks: its style and script stay inside."""
    style = "width:100%;height:720px;border:1px solid #ccc;border-radius:8px"
    allowed = "allow-scripts allow-downloads"
    return el("iframe", "", srcdoc=render(content), sandbox=allowed, title=content.title, style=style)


@functools.cache
def _asset(name: str) -> str:
    return resources.files("ratewise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _body(content: Content) -> Html:
    """Return header, navigation, sections and footer."""
    links, shown = [], []
    for name, title, children in _sections(content):
        links.append(el("li", el("a", title, href=f"#{name}")))
        heading = el("h2", title, id=f"{name}-title")
        shown.append(el("section", heading, children, id=name, aria_labelledby=f"{name}-title"))
    navigation = el("nav", el("ul", links), aria_label="Sections")
    words = (
        f"Written by ratewise {content.version} at {content.created}. The page is one file, which loads nothing from "
        "elsewhere and contains its data as JSON."
    )
    footer = el("footer", el("p", words), _button("Save the data as JSON", "save"))
    return join([_header(content), navigation, el("main", shown, id="main"), footer])


def _button(words: str, name: str) -> Html:
    return el("button", words, type="button", id=name, class_="script-only", hidden=True)


def _header(content: Content) -> Html:
    certified, tiles = certificate_line(content), []
    for name, title, value, note in _tiles(content):
        parts = [el("dt", title), el("dd", value), el("dd", note, class_="note")]
        tiles.append(el("div", parts, class_="tile", id=f"tile-{name}"))
    return el(
        "header",
        el(
            "div",
            el("span", f"ratewise report, {content.created[:10]}"),
            _button("Dark colours", "theme"),
            class_="eyebrow",
        ),
        el("h1", content.title),
        el(
            "div",
            el("p", content.headline, class_="headline"),
            el("p", detail(content), class_="detail"),
            el("p", certified, class_="detail") if certified else None,
            class_=f"verdict {views.css_state(content.state)}",
            id="verdict",
        ),
        el("dl", [[el("dt", one.kind), el("dd", one.text)] for one in content.about], class_="about"),
        el("dl", tiles, class_="tiles"),
    )


def _tiles(content: Content) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, title, value and note of the tiles below the verdict."""
    counts, right = content.counts, content.everyone.accuracy
    if content.constraints:
        words = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        yield "constraints", "Constraints", f"{len(content.constraints):,}", words
    if not content.constant:
        note = f"{four(right.low)} to {four(right.high)}"
        if len(content.models) > 1:
            other = content.models[1]
            note = f"{four(other.accuracy.value)} for “{other.name}”"
        yield "accuracy", "Accuracy", four(right.value), note
    if content.statement is not None:
        epsilon, unit = content.statement["epsilon"], PrivacyUnit.from_dict(content.statement["unit"])
        shown = "no guarantee" if epsilon == "infinity" else f"ε = {epsilon_text(epsilon)}"
        below = f"delta {content.statement['delta']:g}, protecting {unit}"
        yield "privacy", "Privacy of the training data", shown, below
    if not content.constant:
        yield "rows", "Rows measured on", f"{content.rows:,}", f"{len(content.classes)} classes"


# ------------------------------------------------------------------------------------------ sections


def _sections(content: Content) -> Iterator[tuple[str, str, Any]]:
    """Yield name, title and content of each section that has something to show."""
    if content.constraints:
        yield "constraints", "Requested and reached", _constraints(content)
    if content.shapes:
        words = (
            "The score is a sum of one contribution per feature, drawn on one scale, the most important "
            "feature first. A higher score makes the named class more likely. Bands and bars are 95% intervals for "
            "the noise of training, to first order. A dot is the contribution of one frequent value. Dates are "
            "days since 1970-01-01. All of this is released with the model."
        )
        yield "shapes", "What the model does with each feature", _card(words, views.shapes_view(content))
    yield "privacy", "Privacy in plain words", _privacy(content)
    if len(content.models) > 1:
        words = "This model and others, measured on the same rows."
        if content.constraints:
            words += (
                " The largest excess is the largest difference of a constraint from its bound; a negative "
                "excess is within the bound."
            )
        yield "tradeoff", "What the constraints cost", _card(words, views.models_view(content))
    if content.groupings:
        words = "Dots are rates in each group, bars their intervals; the line is the rate of everyone."
        yield "groups", "Rates by group", _card(words, views.rates_view(content))
    if not content.constant:
        found = [el("div", views.error_view(content), class_="card")]
        if content.calibration:
            words = (
                f"Rows are sorted by the {content.score_words} into ten ranges. On the dashed line, predicted and "
                "observed shares are equal. The grey line is everyone. Beside each name is the mean distance "
                "from the dashed line."
            )
            found += [el("h3", "Calibration"), *_card(words, views.calibration_view(content))]
        yield "errors", "Error and calibration by group", found
    yield from _released_sections(content)
    shown, rest = list(content.notes), list[Note]()
    if len(shown) > OPEN_NOTES:
        rest = [note for note in shown if note.kind == "certificate"][OPEN_REMEDIES:]
        shown = [note for note in shown if note not in rest]
    more = views.folded(views.counted(len(rest), "more remark"), _note_list(rest)) if rest else None
    yield "notes", "Limitations and warnings", [_note_list(shown), more]


def _released_sections(content: Content) -> Iterator[tuple[str, str, Any]]:
    spending, training = content.spending, content.training
    if spending:
        words = (
            "All releases that were admitted. Epsilons do not add up: each release is shown by how much it "
            "raised the total of those before it."
        )
        yield "ledger", "Where the budget went", _card(words, views.ledger_view(spending))
    if training:
        words = "Everything here was released with noise during training and is covered by the guarantee."
        if spending is None or spending.total is None:
            words = "What the training recorded, step by step."
        if training.left_out:
            words += f" The {len(training.curves)} constraints with the largest multipliers are drawn."
        yield "training", "Training, from released values", _card(words, views.training_view(training))


def _card(words: str, view: Any) -> list[Html]:
    return [el("p", words, class_="quiet"), el("div", view, class_="card")]


def _constraints(content: Content) -> list[Html]:
    words = (
        f"Rates of predicted classes on {measured(content)}. A dot left of the line satisfies its "
        f"constraint; the bar is the {interval_words(content)} of all constraints together."
    )
    families = []
    for one in content.families:
        described = el("div", one.words, el("code", one.name), views.family_rates(one))
        families.append(el("li", views.pill(one.state), described))
    items = [("bar", "the bound"), ("zone", "beyond the bound")]
    items += [("hollow", model.name) for model in content.models[1:2]]
    legend = [el("li", el("i", class_=kind), text) for kind, text in items]
    options = [el("option", state or "all", value=state) for state in ("", *STATES)]
    choice = el(
        "div",
        el("label", "Show ", el("select", options, id="state")),
        el("label", "whose text holds ", el("input", type="search", id="filter", size=18)),
        el("span", "", id="filter-count", class_="quiet", role="status"),
        class_="filter script-only",
        hidden=True,
    )
    table = [
        choice if len(content.constraints) > 6 else None,
        el("ul", legend, class_="legend", aria_hidden="true"),
        views.constraints_view(content),
    ]
    return [
        el("p", words, class_="quiet"),
        el("div", el("ul", families, class_="families"), class_="card") if families else Html(),
        el("div", table, class_="card"),
    ]


def _privacy(content: Content) -> Html:
    if content.statement is None:
        return el("p", "Nothing was said about how the training data were protected. Assume they were not.")
    text = el("pre", str(PrivacyStatement.from_dict(content.statement)))
    full = views.folded("The full statement, with all conditions", text)
    return el("div", [el("p", words) for words in content.words], full, class_="card")


def _note_list(notes: list[Note]) -> Html:
    items = []
    for note in notes:
        kind = el("b", f"{_KINDS.get(note.kind, note.kind.capitalize())}. ")
        items.append(el("li", kind, note.text, class_=f"note-{note.kind}"))
    return el("ul", items, class_="notes")


# ----------------------------------------------------------------------------------- the model card

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+|!~$-])")


def model_card(content: Content) -> str:
    """Return the card: what the page says in Markdown, short enough to go beside a model."""
    return "\n\n".join(_card_parts(content)) + "\n"


def safe(words: str) -> str:
    r"""Return text that Markdown shows as it is: no markup, no HTML, no new line.

    >>> print(safe("<b> a_b"))
    \<b\> a\_b
    """
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


def _card_parts(content: Content) -> Iterator[str]:
    yield f"# {safe(content.title)}"
    yield f"**{safe(content.headline)}.** {detail(content)} {certificate_line(content)}".rstrip()
    facts = [("Model", safe(content.model)), *((one.kind, safe(one.text)) for one in content.about)]
    facts.append(("Accuracy", measured_share(content.everyone.accuracy)))
    yield "\n".join(f"- {label}: {text}" for label, text in facts)
    yield from _card_constraints(content)
    yield from _card_privacy(content)
    if len(content.models) > 1:
        yield "## What the constraints cost"
        yield _columns_table(views.model_columns(content), content.models)
    yield from _card_groups(content)
    if shown := content.calibration[:MOST_GROUPS]:
        yield "## Calibration"
        rows = [(one.group, f"{one.rows:,}", four(one.error), four(one.brier)) for one in shown]
        yield _table(("group", "rows", "mean distance", "Brier score"), rows)
    yield "## Limitations and warnings"
    lines = [f"- {safe(note.text)}" for note in content.notes[:MOST_NOTES]]
    more = len(content.notes) - MOST_NOTES
    yield "\n".join([*lines, *([f"- and {more:,} more, on the page"] if more > 0 else [])])
    yield f"Written by ratewise {safe(content.version)} at {content.created}."


def _card_constraints(content: Content) -> Iterator[str]:
    if not content.constraints:
        return
    yield "## Requested and reached"
    if content.families:
        yield "\n".join(f"- {safe(one.words)} **{one.state.capitalize()}.**" for one in content.families)
    yield _columns_table(views.constraint_columns(content), content.by_worst()[:MOST_LIMITS])
    if (more := len(content.constraints) - MOST_LIMITS) > 0:
        yield f"{more:,} more constraints, none of them worse than these."


def _card_privacy(content: Content) -> Iterator[str]:
    yield "## Privacy"
    if content.statement is None:
        yield "Nothing is known about the privacy of the training data."
        return
    yield from map(safe, content.words)
    full = str(PrivacyStatement.from_dict(content.statement)).replace("```", "'''")
    yield f"```text\n{full}\n```"
    if content.spending is not None:
        yield _table(views.LEDGER_HEAD[:-1], (row[:-1] for row in views.ledger_rows(content.spending)))


def _card_groups(content: Content) -> Iterator[str]:
    shown = [(k, measure) for k in content.shown_classes for measure in PANELS]
    names = dict(zip(PANELS, ("predicted", "TPR", "FPR", "precision"), strict=True))
    head = ["group", "rows", "accuracy", *(f"{names[measure]} ({k})" for k, measure in shown)]
    for grouping in content.groupings:
        rows = []
        for group in (*grouping.groups[:MOST_GROUPS], content.everyone):
            numbers = (group.accuracy.value, *(group.rates[k][measure].value for k, measure in shown))
            rows.append((group.name, f"{group.rows:,}", *map(four, numbers)))
        yield f"## Rates by {safe(grouping.title)}"
        yield _table(head, rows)


def _columns_table(columns: Iterable[Column], rows: Iterable[Any]) -> str:
    """Return the columns of a table of the page that have a text."""
    shown = [(column.head, column.text) for column in columns if column.text is not None]
    return _table([str(head) for head, _ in shown], [[text(row) for _, text in shown] for row in rows])


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [map(safe, head), ["---"] * len(head), *(map(safe, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
