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
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from ratewise.accounting import PrivacyStatement, PrivacyUnit
from ratewise.report.build import certificate_line, detail, measured
from ratewise.report.content import STATES, Content, Grouping, Note, Share, epsilon_text
from ratewise.report.plots import Html, el, join
from ratewise.report.views import (
    calibration_view,
    constraints_view,
    counted,
    css_state,
    error_view,
    family_rates,
    folded,
    four,
    interval_words,
    ledger_view,
    models_view,
    pill,
    rates_view,
    shapes_view,
    signed,
    span,
    training_view,
)

OPEN_NOTES, OPEN_REMEDIES = 12, 3
MOST_LIMITS, MOST_GROUPS, MOST_NOTES = 30, 50, 20  # on the card
_KINDS = {
    "leak": "Leak",
    "privacy": "Privacy",
    "certificate": "Certificate",
    "rows": "Few rows",
    "aim": "Aim",
    "page": "This page",
}
_SHAPES = (
    "The score is a sum of one contribution per feature, drawn on one scale, the most important feature first. "
    "Bands and bars are 95% intervals of the training noise, to first order. All of it is released with the "
    "model. A dot is the contribution of a value that occurs often by itself."
)
_LEDGER = (
    "All releases that were admitted. Epsilons do not add up: each release is shown by how much it raised the "
    "total of those before it."
)


def render(content: Content) -> str:
    """Return the whole page."""
    script = _asset("page.js")
    digest = hashlib.sha256(script.encode()).digest()
    return Template(_asset("page.html")).substitute(
        title=html.escape(content.title),
        style=_asset("page.css"),
        script=script,
        script_hash=base64.b64encode(digest).decode("ascii"),
        body=_body(content),
        data=_script_json(content),
    )


def embedded(content: Content, height: int = 720) -> str:
    """Return the page within a frame, for notebooks: its style and script stay inside."""
    return el(
        "iframe",
        "",
        srcdoc=render(content),
        sandbox="allow-scripts allow-downloads",
        title=content.title,
        style=f"width:100%;height:{height}px;border:1px solid #ccc;border-radius:8px",
    )


@functools.cache
def _asset(name: str) -> str:
    return resources.files("ratewise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script_json(content: Content) -> str:
    """Return the data as JSON that cannot end the script element it stands in."""
    document = json.dumps(content.to_dict(), allow_nan=False, separators=(",", ":"))
    return document.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _body(content: Content) -> Html:
    """Return header, navigation, sections and footer."""
    sections = [section for section in _sections(content) if section is not None]
    links = [el("li", el("a", title, href=f"#{name}")) for name, title, _ in sections]
    shown = [
        el("section", el("h2", title, id=f"{name}-title"), children, id=name, aria_labelledby=f"{name}-title")
        for name, title, children in sections
    ]
    navigation = el("nav", el("ul", links), aria_label="Sections")
    return join([_header(content), navigation, el("main", shown, id="main"), _footer(content)])


def _sections(content: Content) -> list[tuple[str, str, Any] | None]:
    spending, training = content.spending, content.training
    return [
        ("constraints", "Requested and reached", _constraints(content)) if content.constraints else None,
        ("shapes", "What the model does with each feature", _card(_SHAPES, shapes_view(content)))
        if content.shapes
        else None,
        ("privacy", "Privacy in plain words", _privacy(content)),
        ("tradeoff", "What the constraints cost", _tradeoff(content)) if len(content.models) > 1 else None,
        ("groups", "Rates by group", _groups(content)) if content.groupings else None,
        None if content.constant else ("errors", "Error and calibration by group", _errors(content)),
        ("ledger", "Where the budget went", _card(_LEDGER, ledger_view(spending))) if spending else None,
        ("training", "Training, from released values", _training(content)) if training else None,
        ("notes", "Limitations and warnings", _notes(content)),
    ]


def _card(words: str, view: Any) -> list[Html]:
    return [el("p", words, class_="quiet"), el("div", view, class_="card")]


def _header(content: Content) -> Html:
    certified = certificate_line(content)
    button = el("button", "Dark colours", type="button", id="theme", class_="script-only", hidden=True)
    verdict = el(
        "div",
        el("p", content.headline, class_="headline"),
        el("p", detail(content), class_="detail"),
        el("p", certified, class_="detail") if certified else None,
        class_=f"verdict {css_state(content.state)}",
        id="verdict",
    )
    return el(
        "header",
        el("div", el("span", f"ratewise report, {content.created[:10]}"), button, class_="eyebrow"),
        el("h1", content.title),
        verdict,
        el("dl", [[el("dt", one.label), el("dd", one.text)] for one in content.about], class_="about"),
        el("dl", _tiles(content), class_="tiles"),
    )


def _tiles(content: Content) -> list[Html]:
    counts, right = content.counts, content.everyone.accuracy
    tiles = []
    if content.constraints:
        words = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        tiles.append(_tile("Constraints", f"{len(content.constraints):,}", words, "tile-constraints"))
    note = f"{four(right.low)} to {four(right.high)}"
    if len(content.models) > 1 and content.models[1].difference is not None:
        note = f"{signed(-content.models[1].difference[0])} against “{content.models[1].name}”"
    if not content.constant:
        tiles.append(_tile("Accuracy", four(right.value), note, "tile-accuracy"))
    if content.statement is not None:
        epsilon, unit = content.statement["epsilon"], PrivacyUnit.from_dict(content.statement["unit"])
        shown = "no guarantee" if epsilon == "infinity" else f"ε = {epsilon_text(epsilon)}"
        below = f"delta {content.statement['delta']:g}, protecting {unit}"
        tiles.append(_tile("Privacy of the training data", shown, below, "tile-privacy"))
    if not content.constant:
        classes = f"{len(content.classes)} classes"
        tiles.append(_tile("Rows measured on", f"{content.rows:,}", classes, "tile-rows"))
    return tiles


def _tile(title: str, value: str, note: str, name: str) -> Html:
    return el("div", el("dt", title), el("dd", value), el("dd", note, class_="note"), class_="tile", id=name)


def _constraints(content: Content) -> list[Html]:
    words = (
        f"Rates of predicted classes on {measured(content)}. A dot left of the line satisfies its constraint; the bar is "
        f"the {interval_words(content)} of all constraints together."
    )
    families = [
        el("li", pill(family.state), el("div", family.words, el("code", family.name), family_rates(family)))
        for family in content.families
    ]
    return [
        el("p", words, class_="quiet"),
        el("div", el("ul", families, class_="families"), class_="card") if families else Html(),
        el("div", _filter(content), _legend(content), constraints_view(content), class_="card"),
    ]


def _filter(content: Content) -> Html | None:
    if len(content.constraints) <= 6:
        return None
    options = [el("option", state or "all", value=state) for state in ("", *STATES)]
    return el(
        "div",
        el("label", "Show ", el("select", options, id="state")),
        el("label", "whose text holds ", el("input", type="search", id="filter", size=18)),
        el("span", "", id="filter-count", class_="quiet", role="status"),
        class_="filter script-only",
        hidden=True,
    )


def _legend(content: Content) -> Html:
    items = [("bar", "the bound"), ("zone", "beyond the bound")]
    if len(content.models) > 1:
        items.append(("hollow", content.models[1].name))
    listed = [el("li", el("i", class_=kind), words) for kind, words in items]
    return el("ul", listed, class_="legend", aria_hidden="true")


def _privacy(content: Content) -> Html:
    if content.statement is None:
        return el("p", "Nothing was said about how the training data were protected. Assume they were not.")
    full = folded(
        "The full statement, with all conditions",
        el("pre", str(PrivacyStatement.from_dict(content.statement))),
    )
    return el("div", [el("p", words) for words in content.words], full, class_="card")


def _tradeoff(content: Content) -> list[Html]:
    words = "The model reported and others, judged on the same rows."
    if content.constraints:
        words += (
            " The largest excess is that of the constraint that is violated most, or has least room left; "
            "negative is within the bound."
        )
    return _card(words, models_view(content))


def _groups(content: Content) -> list[Html]:
    words = "Dots are rates in each group, bars their intervals; the line is the rate of everyone."
    return _card(words, rates_view(content))


def _errors(content: Content) -> list[Html]:
    found = [el("div", error_view(content), class_="card")]
    if content.calibration:
        words = (
            f"Rows are sorted by the {content.score_words} into ten ranges. On the dashed line, what was "
            "predicted is what happened; in grey, everyone. Beside each name: the mean distance from it."
        )
        found += [el("h3", "Calibration"), *_card(words, calibration_view(content))]
    return found


def _training(content: Content) -> list[Html]:
    training = content.training
    if training is None:
        return []
    words = "Everything here was released with noise during training and is covered by the guarantee."
    if content.spending is None or content.spending.total is None:
        words = "What the training recorded, step by step."
    if training.left_out:
        words += f" The {len(training.curves)} constraints with the largest multipliers are drawn."
    return _card(words, training_view(training))


def _notes(content: Content) -> list[Html]:
    shown, rest = list(content.notes), list[Note]()
    if len(shown) > OPEN_NOTES:
        rest = [note for note in shown if note.kind == "certificate"][OPEN_REMEDIES:]
        shown = [note for note in shown if note not in rest]
    more = [folded(counted(len(rest), "more remark"), _note_list(rest))] if rest else []
    return [_note_list(shown), *more]


def _note_list(notes: list[Note]) -> Html:
    items = [
        el("li", el("b", f"{_KINDS.get(note.kind, note.kind)}. "), note.text, class_=f"note-{note.kind}")
        for note in notes
    ]
    return el("ul", items, class_="notes")


def _footer(content: Content) -> Html:
    words = (
        f"Written by ratewise {content.version} at {content.created}. This file needs no other and asks nothing "
        "of any server. Its data are inside as JSON."
    )
    button = el(
        "button", "Save the data as JSON", type="button", id="save", class_="script-only", hidden=True
    )
    return el("footer", el("p", words), button)


# ----------------------------------------------------------------------------------- the model card

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+|!~$-])")


def model_card(content: Content) -> str:
    """Return the card: what the page says in Markdown, short enough to go beside a model."""
    facts = [
        f"- Model: {safe(content.model)}",
        *(f"- {entry.label}: {safe(entry.text)}" for entry in content.about),
        f"- Accuracy: {_share(content.everyone.accuracy)}",
    ]
    parts = [
        f"# {safe(content.title)}",
        f"**{safe(content.headline)}.** {detail(content)} {certificate_line(content)}".rstrip(),
        "\n".join(facts),
        *_card_constraints(content),
        *_card_privacy(content),
        *_card_models(content),
        *(part for grouping in content.groupings for part in _card_grouping(content, grouping)),
        *_card_calibration(content),
        *_card_notes(content),
        f"Written by ratewise {safe(content.version)} at {content.created}.",
    ]
    return "\n\n".join(parts) + "\n"


def safe(words: str) -> str:
    r"""Return text that Markdown shows as it is: no markup, no HTML, no new line.

    >>> print(safe("<b> a_b"))
    \<b\> a\_b
    """
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


def _card_constraints(content: Content) -> list[str]:
    if not content.constraints:
        return []
    asked = [f"- {safe(one.words)} **{one.state.capitalize()}.**" for one in content.families]
    ordered = content.by_worst()
    rows = [
        (safe(one.name), one.state, four(one.reached), one.requested, span(one.low, one.high))
        for one in ordered[:MOST_LIMITS]
    ]
    level = interval_words(content)
    parts = ["## Requested and reached", *(["\n".join(asked)] if asked else [])]
    parts.append(_table(("constraint", "verdict", "reached", "requested", level), rows))
    if len(ordered) > MOST_LIMITS:
        parts.append(f"{len(ordered) - MOST_LIMITS:,} more constraints, none of them worse than these.")
    return parts


def _card_privacy(content: Content) -> list[str]:
    if content.statement is None:
        return ["## Privacy", "Nothing is known about the privacy of the training data."]
    full = str(PrivacyStatement.from_dict(content.statement)).replace("```", "'''")
    parts = ["## Privacy", *map(safe, content.words), f"```text\n{full}\n```"]
    if content.spending is not None:
        rows = [
            (safe(one.purpose or "release"), safe(one.data), epsilon_text(one.alone), epsilon_text(one.after))
            for one in content.spending.entries
        ]
        parts.append(_table(("release", "data", "epsilon alone", "epsilon so far"), rows))
    return parts


def _card_models(content: Content) -> list[str]:
    if len(content.models) < 2:
        return []
    rows = [
        (
            safe(model.name),
            _share(model.accuracy),
            signed(model.worst),
            epsilon_text(model.epsilon) if model.private else "none",
        )
        for model in content.models
    ]
    head = ("model", "accuracy", "worst constraint exceeded by", "epsilon")
    return ["## What the constraints cost", _table(head, rows)]


def _card_grouping(content: Content, grouping: Grouping) -> list[str]:
    measures = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")
    names = ("predicted", "TPR", "FPR", "precision")
    head = ["group", "rows", "accuracy"]
    head += [f"{name} ({safe(k)})" for k in content.shown_classes for name in names]
    rows = []
    for group in (*grouping.groups[:MOST_GROUPS], content.everyone):
        numbers = [group.rates[k][measure].value for k in content.shown_classes for measure in measures]
        rows.append((safe(group.name), f"{group.rows:,}", *map(four, (group.accuracy.value, *numbers))))
    return [f"## Rates by {safe(' and '.join(grouping.by))}", _table(head, rows)]


def _card_calibration(content: Content) -> list[str]:
    if not content.calibration:
        return []
    rows = [
        (safe(each.group), f"{each.rows:,}", four(each.error), four(each.brier))
        for each in content.calibration[:MOST_GROUPS]
    ]
    return ["## Calibration", _table(("group", "rows", "mean distance", "Brier score"), rows)]


def _card_notes(content: Content) -> list[str]:
    lines = [f"- {safe(note.text)}" for note in content.notes[:MOST_NOTES]]
    if (more := len(content.notes) - MOST_NOTES) > 0:
        lines.append(f"- and {more:,} more, on the page")
    return ["## Limitations and warnings", "\n".join(lines)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _share(share: Share) -> str:
    return f"{four(share.value)} ({span(share.low, share.high)})"
