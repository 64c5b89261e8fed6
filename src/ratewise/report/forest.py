"""Limits and models as tables whose last column is a picture.

They are true tables, so what the picture shows can be read as numbers with any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratewise.report.content import STATE_WORDS, Content, Limit, Rival
from ratewise.report.grids import cell, counted, four, labelled_scale, left_out, picture_table, signed, span
from ratewise.report.markup import Html, el
from ratewise.report.svg import Axis, strip
from ratewise.report.words import epsilon_text
from ratewise.values import show_number

OPEN_LIMITS = 12
MOST_LIMITS = 2000
WIDEST = 0.3  # room left beyond this is drawn at the edge: near the limit is where one looks

_SIGNS = {"<=": "≤", ">=": "≥"}


def pill(state: str) -> Html:
    """Return the state of a limit as a word with a sign, never by colour alone."""
    return el(
        "span", el("span", class_="sign", aria_hidden="true"), STATE_WORDS[state], class_=f"pill {state}"
    )


# ------------------------------------------------------------------------------------------- limits


def limits_view(content: Content) -> Html:
    """Return every limit with its result, the worst first; all but the first dozen folded away."""
    ordered = content.by_worst()
    other = _other_gaps(content)
    axis = _gap_axis(ordered, other.values())
    open_table = _limits_table(content, ordered[:OPEN_LIMITS], axis, other, "limits")
    if len(ordered) <= OPEN_LIMITS:
        return el("div", open_table, class_="limits")
    summary = f"{counted(len(ordered) - OPEN_LIMITS, 'more limit')}, going on from worst to best"
    folded = _limits_table(content, ordered[OPEN_LIMITS:MOST_LIMITS], axis, other, "limits-more")
    note = left_out(len(ordered) - MOST_LIMITS)
    more = el("details", el("summary", summary), folded, note, class_="more")
    return el("div", open_table, more, class_="limits")


def _limits_table(
    content: Content, limits: Sequence[Limit], axis: Axis, other: dict[str, float], figure: str
) -> Html:
    level = f"{show_number(100 * content.confidence)}% interval"
    head = [
        ("Limit", "name"),
        ("Result", "result"),
        ("Reached", "number"),
        ("Asked", "number"),
        (level, "span"),
    ]
    rows = [_limit_row(limit, axis, other.get(limit.name)) for limit in limits]
    scale = el(
        "th", labelled_scale("distance from the limit", axis, signed=True), scope="col", class_="picture"
    )
    return picture_table(
        "Limits, worst first: what was asked and what was reached", head, scale, rows, figure, "forest"
    )


def _limit_row(limit: Limit, axis: Axis, other: float | None) -> Html:
    tip = f"{limit.name}: reached {four(limit.reached)}, {span(limit.low, limit.high)}"
    picture = strip(
        axis, limit.gap, limit.gap_interval, state=limit.state, zero=0.0, beyond=True, other=other, tip=tip
    )
    doubt = el("span", limit.doubt, class_="doubt") if limit.doubt else None
    return el(
        "tr",
        el(
            "th",
            el("span", _left_side(limit), class_="label"),
            doubt,
            scope="row",
            class_="name",
            role="rowheader",
        ),
        el("td", pill(limit.state), class_="result", role="cell"),
        cell("Reached", four(limit.reached), "number reached"),
        cell("Asked", _asked(limit), "number asked"),
        cell("Interval", span(limit.low, limit.high), "span interval"),
        el("td", picture, class_="picture", role="cell"),
        role="row",
        data_state=limit.state,
        data_limit=limit.name,
    )


def _asked(limit: Limit) -> str:
    return f"{_SIGNS[limit.sense]} {limit.bound:.6g}".replace("-", "\N{MINUS SIGN}")


def _left_side(limit: Limit) -> str:
    """Return the limit's text without its bound, which has a column of its own; a given name stays whole."""
    return limit.name.removesuffix(f" {limit.sense} {show_number(limit.bound)}")


def _gap_axis(limits: Sequence[Limit], others: Iterable[float]) -> Axis:
    """Return a scale on which every limit that is exceeded has its dot; ample room left may run off it."""
    ends = [end for limit in limits if limit.gap_interval for end in limit.gap_interval]
    near = [min(WIDEST, max(-WIDEST, end)) for end in (*ends, *others)]
    return Axis.around([0.0, *near, *(limit.gap for limit in limits if limit.gap and limit.gap > 0)])


def _other_gaps(content: Content) -> dict[str, float]:
    """Return the gaps of the first model compared with, by limit."""
    if len(content.models) < 2:
        return {}
    pairs = zip(content.limits, content.models[1].reached, strict=True)
    return {
        limit.name: reached - limit.bound if limit.sense == "<=" else limit.bound - reached
        for limit, reached in pairs
        if reached is not None
    }


# ------------------------------------------------------------------------------------------- models


def models_view(content: Content) -> Html:
    """Return the models side by side: how often they are right, and their worst limit."""
    models = content.models
    accuracy = Axis.around([end for m in models for end in (m.accuracy.low or 0.0, m.accuracy.high or 1.0)])
    gaps = Axis.around([0.0, *(m.worst for m in models if m.worst is not None)])
    head = [("Model", "name"), ("Epsilon", "number"), ("Accuracy", "number")]
    scales = [
        el("th", labelled_scale("accuracy", accuracy), scope="col", class_="picture", role="columnheader"),
    ]
    if content.limits:
        scales += [
            el("th", "Worst limit", scope="col", class_="number", role="columnheader"),
            el(
                "th",
                labelled_scale("distance from the limit", gaps, signed=True),
                scope="col",
                class_="picture",
                role="columnheader",
            ),
        ]
    rows = [_model_row(content, model, place, accuracy, gaps) for place, model in enumerate(models)]
    return picture_table("Models compared on the same rows", head, scales, rows, "tradeoff", "forest models")


def _model_row(content: Content, model: Rival, place: int, accuracy: Axis, gaps: Axis) -> Html:
    right = model.accuracy
    interval = None if right.low is None or right.high is None else (right.low, right.high)
    kind = "model" if place == 0 else "rival"
    note = None
    if model.difference is not None:
        value, low, high = model.difference
        words = f"{signed(value)} ({signed(low)} to {signed(high)}) against the model reported"
        note = el("span", words, class_="quiet small")
    cells = [
        el("th", el("span", model.name, class_="label"), note, scope="row", class_="name", role="rowheader"),
        cell("Epsilon", epsilon_text(model.epsilon) if model.private else "none", "number"),
        cell("Accuracy", four(right.value), "number accuracy"),
        el("td", strip(accuracy, right.value, interval, state=kind), class_="picture", role="cell"),
    ]
    if content.limits:
        picture = strip(gaps, model.worst, None, state=kind, zero=0.0, beyond=True)
        cells += [
            cell("Worst limit", signed(model.worst), "number worst"),
            el("td", picture, class_="picture", role="cell"),
        ]
    return el("tr", cells, role="row", class_=kind)
