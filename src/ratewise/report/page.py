"""The page: one HTML file with its style, its script and its data inside, and no request to anywhere.

Everything is readable without the script, which adds a choice of colours, boxes beside marks, a filter and
the keyboard in plots. A content security policy names the script by its hash, so no other one can run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from importlib import resources
from string import Template

from ratewise.accounting import PrivacyStatement
from ratewise.report.content import MEASURES, STATE_WORDS, STATES, Content, Note
from ratewise.report.forest import limits_view, models_view, pill
from ratewise.report.grids import counted, four, signed
from ratewise.report.markup import Html, el, join
from ratewise.report.panels import error_view, rates_view
from ratewise.report.plots import calibration_view, ledger_view, training_view
from ratewise.report.words import epsilon_text, verdict, verdict_detail
from ratewise.values import show_number

OPEN_NOTES, OPEN_DOUBTS = 12, 3

_KINDS = {
    "leak": "Leak",
    "privacy": "Privacy",
    "doubt": "Doubt",
    "rows": "Few rows",
    "chance": "Chance",
    "aim": "Aim",
    "page": "This page",
}


def render(content: Content) -> str:
    """Return the whole page."""
    script = _asset("page.js")
    digest = hashlib.sha256(script.encode()).digest()
    return Template(_asset("page.html")).substitute(
        title=html.escape(content.title),
        style=_asset("page.css"),
        script=script,
        script_hash=base64.b64encode(digest).decode("ascii"),
        body=body(content),
        data=script_json(content),
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


def script_json(content: Content) -> str:
    """Return the data as JSON that cannot end the script element it stands in."""
    document = json.dumps(content.to_dict(), allow_nan=False, separators=(",", ":"))
    return document.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def body(content: Content) -> Html:
    """Return header, navigation, sections and footer."""
    sections = [section for section in _sections(content) if section is not None]
    links = [el("li", el("a", title, href=f"#{name}")) for name, title, _ in sections]
    return join(
        [
            _header(content),
            el("nav", el("ul", links), aria_label="Sections"),
            el("main", [_section(*section) for section in sections], id="main"),
            _footer(content),
        ]
    )


def _sections(content: Content) -> list[tuple[str, str, list[Html]] | None]:
    return [
        ("limits", "Asked and reached", _limits(content)) if content.limits else None,
        ("privacy", "Privacy in plain words", _privacy(content)),
        ("tradeoff", "What the limits cost", _tradeoff(content)) if len(content.models) > 1 else None,
        ("groups", "Rates by group", _groups(content)) if content.groupings else None,
        ("errors", "Error and calibration by group", _errors(content)),
        ("ledger", "Where the budget went", _ledger(content)) if content.spending else None,
        ("training", "Training, from released values", _training(content)) if content.training else None,
        ("notes", "Limits and warnings", _notes(content)),
    ]


def _section(name: str, title: str, children: list[Html]) -> Html:
    return el(
        "section", el("h2", title, id=f"{name}-title"), children, id=name, aria_labelledby=f"{name}-title"
    )


def _header(content: Content) -> Html:
    state, headline = verdict(content.counts)
    detail = verdict_detail(content.counts, content.rows, content.confidence)
    return el(
        "header",
        el(
            "div",
            el("span", f"ratewise report, {content.created[:10]}"),
            el("button", "Dark colours", type="button", id="theme", class_="script-only", hidden=True),
            class_="eyebrow",
        ),
        el("h1", content.title),
        el(
            "div",
            el("p", headline, class_="headline"),
            el("p", detail, class_="detail"),
            class_=f"verdict {state}",
            id="verdict",
        ),
        el("dl", _tiles(content), class_="tiles"),
    )


def _tiles(content: Content) -> list[Html]:
    counts, right = content.counts, content.everyone.accuracy
    tiles = []
    if content.limits:
        words = ", ".join(f"{counts[state]:,} {STATE_WORDS[state]}" for state in STATES if counts[state])
        tiles.append(_tile("Limits asked for", f"{len(content.limits):,}", words, "tile-limits"))
    note = f"{four(right.low)} to {four(right.high)}"
    if len(content.models) > 1 and content.models[1].difference is not None:
        cost = -content.models[1].difference[0]
        note = f"{signed(cost)} against “{content.models[1].name}”"
    tiles.append(_tile("Accuracy", four(right.value), note, "tile-accuracy"))
    if content.statement is not None:
        epsilon = content.statement["epsilon"]
        shown = "no guarantee" if epsilon == "infinity" else f"ε = {epsilon_text(epsilon)}"
        below = f"delta {content.statement['delta']:g}, protecting {content.statement['unit']}"
        tiles.append(_tile("Privacy of the training data", shown, below, "tile-privacy"))
    tiles.append(
        _tile("Rows measured on", f"{content.rows:,}", f"{len(content.classes)} classes", "tile-rows")
    )
    return tiles


def _tile(title: str, value: str, note: str, name: str) -> Html:
    return el("div", el("dt", title), el("dd", value), el("dd", note, class_="note"), class_="tile", id=name)


def _limits(content: Content) -> list[Html]:
    kind = "predicted probabilities" if content.soft else "predicted classes"
    intro = el(
        "p",
        f"Rates of {kind} on the rows given. A dot left of the line keeps its limit; the bar is the "
        f"{show_number(100 * content.confidence)}% interval. If it crosses the line, these rows cannot tell.",
        class_="quiet",
    )
    families = [
        el("li", pill(family.state), el("span", family.words, el("code", family.name)))
        for family in content.families
    ]
    return [
        intro,
        el("div", el("ul", families, class_="families"), class_="card") if families else Html(),
        el("div", _filter(content), _legend(content), limits_view(content), class_="card"),
    ]


def _filter(content: Content) -> Html | None:
    if len(content.limits) <= 6:
        return None
    options = [el("option", "all", value="")]
    options += [el("option", STATE_WORDS[state], value=state) for state in STATES]
    return el(
        "div",
        el("label", "Show ", el("select", options, id="state")),
        el("label", "whose text holds ", el("input", type="search", id="filter", size=18)),
        el("span", "", id="filter-count", class_="quiet", role="status"),
        class_="filter script-only",
        hidden=True,
    )


def _legend(content: Content) -> Html:
    items = [
        [el("i", class_="bar"), "the limit"],
        [el("i", class_="zone"), "beyond the limit"],
    ]
    if len(content.models) > 1:
        items.append([el("i", class_="hollow"), content.models[1].name])
    return el("ul", [el("li", item) for item in items], class_="legend", aria_hidden="true")


def _privacy(content: Content) -> list[Html]:
    if content.statement is None:
        return [el("p", "Nothing was said about how the training data were protected. Assume they were not.")]
    full = str(PrivacyStatement.from_dict(content.statement))
    return [
        el(
            "div",
            [el("p", words) for words in content.words],
            el(
                "details",
                el("summary", "The full statement, with all conditions"),
                el("pre", full),
                class_="more",
            ),
            class_="card",
        )
    ]


def _tradeoff(content: Content) -> list[Html]:
    words = (
        "The model reported and others, judged on the same rows. The worst limit is the one exceeded most, "
        "or with least room left; negative is within."
        if content.limits
        else "The model reported and others, judged on the same rows."
    )
    return [el("p", words, class_="quiet"), el("div", models_view(content), class_="card")]


def _groups(content: Content) -> list[Html]:
    words = "Dots are rates in each group, bars their intervals; the line is the rate of everyone."
    return [el("p", words, class_="quiet"), el("div", rates_view(content, MEASURES), class_="card")]


def _errors(content: Content) -> list[Html]:
    found = [el("div", error_view(content), class_="card")]
    if content.calibration:
        words = (
            f"Rows are sorted by the {content.score_words} into ten ranges. On the dashed line, what was "
            "predicted is what happened; in grey, everyone. Beside each name: the mean distance from it."
        )
        found += [el("h3", "Calibration"), el("p", words, class_="quiet")]
        found.append(el("div", calibration_view(content), class_="card"))
    return found


def _ledger(content: Content) -> list[Html]:
    words = "Epsilons do not add up: each entry is shown by how much it raised the total of those before it."
    if content.spending is None:
        return []
    return [el("p", words, class_="quiet"), el("div", ledger_view(content.spending), class_="card")]


def _training(content: Content) -> list[Html]:
    training = content.training
    if training is None:
        return []
    words = "Everything here was released with noise during training and is covered by the guarantee."
    if content.spending is None or content.spending.total is None:
        words = "What the training recorded, step by step."
    if training.left_out:
        words += f" Of the limits, the {len(training.curves)} under most pressure are drawn."
    return [el("p", words, class_="quiet"), el("div", training_view(training), class_="card")]


def _notes(content: Content) -> list[Html]:
    shown, folded = list(content.notes), list[Note]()
    if len(shown) > OPEN_NOTES:
        folded = [note for note in shown if note.kind == "doubt"][OPEN_DOUBTS:]
        shown = [note for note in shown if note not in folded]
    more = el("details", el("summary", counted(len(folded), "more doubt")), _note_list(folded), class_="more")
    return [_note_list(shown), more if folded else Html()]


def _note_list(notes: list[Note]) -> Html:
    items = [
        el("li", el("b", f"{_KINDS.get(note.kind, note.kind)}. "), note.text, class_=f"note-{note.kind}")
        for note in notes
    ]
    return el("ul", items, class_="notes")


def _footer(content: Content) -> Html:
    return el(
        "footer",
        el(
            "p",
            f"Written by ratewise {content.version} at {content.created}. This file needs no other and asks "
            "nothing of any server. Its data are inside as JSON.",
        ),
        el("button", "Save the data as JSON", type="button", id="save", class_="script-only", hidden=True),
    )


@functools.cache
def _asset(name: str) -> str:
    return resources.files("ratewise.report").joinpath("assets", name).read_text(encoding="utf-8")
