"""Tables whose last column is a picture: limits, rates by group, errors by group, models compared.

They are true tables, so what the picture shows can be read as numbers with any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ratewise.report.content import STATE_WORDS, Content, Group, Grouping, Limit, Rival, Share
from ratewise.report.markup import Html, el
from ratewise.report.svg import Axis, strip, strip_axis
from ratewise.report.words import epsilon_text
from ratewise.values import show_number

OPEN_LIMITS = 12
MOST_LIMITS = 2000
OPEN_GROUPS = 12
MOST_GROUPS = 150
WIDEST = 0.3  # a gap beyond this is drawn at the edge: near the limit is where one looks

PANELS = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")
NOTHING = "\N{EN DASH}"
_SIGNS = {"<=": "≤", ">=": "≥"}


def four(number: float | None) -> str:
    """Return a rate with four decimals; a dash where there is none."""
    return NOTHING if number is None else f"{number:.4f}".replace("-", "\N{MINUS SIGN}")


def signed(number: float | None) -> str:
    """Return a difference with four decimals and its sign."""
    return NOTHING if number is None else f"{number:+.4f}".replace("-", "\N{MINUS SIGN}")


def span(low: float | None, high: float | None) -> str:
    """Return an interval as text."""
    return "no rows" if low is None or high is None else f"{four(low)} to {four(high)}"


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
    shown, folded = ordered[:OPEN_LIMITS], ordered[OPEN_LIMITS:MOST_LIMITS]
    left = len(ordered) - MOST_LIMITS
    return el(
        "div",
        _limits_table(content, shown, axis, other, "limits"),
        el(
            "details",
            el("summary", f"{len(ordered) - OPEN_LIMITS:,} more limits, going on from worst to best"),
            _limits_table(content, folded, axis, other, "limits-more"),
            el("p", f"{left:,} more are in the data of this page only.", class_="quiet")
            if left > 0
            else None,
            class_="more",
        )
        if folded
        else None,
        class_="limits",
    )


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
        "th", _labelled_scale("distance from the limit", axis, signed=True), scope="col", class_="picture"
    )
    return _table(
        "Limits, worst first: what was asked and what was reached", head, scale, rows, figure, "forest"
    )


def _limit_row(limit: Limit, axis: Axis, other: float | None) -> Html:
    tip = f"{limit.name}: reached {four(limit.reached)}, {span(limit.low, limit.high)}"
    picture = strip(
        axis, limit.gap, limit.gap_interval, state=limit.state, zero=0.0, beyond=True, other=other, tip=tip
    )
    doubt = None
    if limit.doubt:
        doubt = el("span", "rested on few training rows", class_="doubt", title=limit.doubt)
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
        _cell("Reached", four(limit.reached), "number reached"),
        _cell("Asked", _asked(limit), "number asked"),
        _cell("Interval", span(limit.low, limit.high), "span interval"),
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


def _gap_axis(limits: Iterable[Limit], others: Iterable[float]) -> Axis:
    ends = [end for limit in limits if limit.gap_interval for end in limit.gap_interval]
    ends += others
    return Axis.around([0.0, *(min(WIDEST, max(-WIDEST, end)) for end in ends)])


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


# ------------------------------------------------------------------------------------------- groups


def rates_view(content: Content, measures: dict[str, str]) -> list[Html]:
    """Return the rates of every grouping and class as small panels."""
    found = []
    for number, grouping in enumerate(content.groupings):
        classes = [_class_panels(content, grouping, k, measures, number) for k in content.shown_classes]
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
    content: Content, grouping: Grouping, k: str, measures: dict[str, str], number: int
) -> Html:
    panels = []
    for measure in PANELS:
        words = f"{_capital(measures[measure])}, class {k}"
        rows = [(group.name, group.rates[k][measure]) for group in grouping.groups]
        figure = f"rates-{number}-{measure}"
        panels.append(share_panel(words, rows, content.everyone.rates[k][measure], figure))
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
    note = el("p", f"{left:,} more are in the data of this page only.", class_="quiet") if left > 0 else None
    summary = el("summary", f"{len(folded):,} more groups, nearer to everyone")
    return el("div", table, el("details", summary, more, note, class_="more"), class_="panel-box")


def _panel_table(words: str, lines: Sequence[Html], axis: Axis, figure: str) -> Html:
    head = [("Group", "name"), ("Rate", "number")]
    hidden = el("span", "Picture", class_="sr")
    scale = el("th", hidden, strip_axis(axis), scope="col", class_="picture", role="columnheader")
    return _table(words, head, scale, lines, figure, "forest panel", shown_caption=True)


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


# ------------------------------------------------------------------------------------------- models


def models_view(content: Content) -> Html:
    """Return the models side by side: how often they are right, and their worst limit."""
    models = content.models
    accuracy = Axis.around([end for m in models for end in (m.accuracy.low or 0.0, m.accuracy.high or 1.0)])
    gaps = Axis.around([0.0, *(m.worst for m in models if m.worst is not None)])
    head = [("Model", "name"), ("Epsilon", "number"), ("Accuracy", "number")]
    scales = [
        el("th", _labelled_scale("accuracy", accuracy), scope="col", class_="picture", role="columnheader"),
    ]
    if content.limits:
        scales += [
            el("th", "Worst limit", scope="col", class_="number", role="columnheader"),
            el(
                "th",
                _labelled_scale("distance from the limit", gaps, signed=True),
                scope="col",
                class_="picture",
                role="columnheader",
            ),
        ]
    rows = [_model_row(content, model, place, accuracy, gaps) for place, model in enumerate(models)]
    return _table("Models compared on the same rows", head, scales, rows, "tradeoff", "forest models")


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
        _cell("Epsilon", epsilon_text(model.epsilon) if model.private else "none", "number"),
        _cell("Accuracy", four(right.value), "number accuracy"),
        el("td", strip(accuracy, right.value, interval, state=kind), class_="picture", role="cell"),
    ]
    if content.limits:
        picture = strip(gaps, model.worst, None, state=kind, zero=0.0, beyond=True)
        cells += [
            _cell("Worst limit", signed(model.worst), "number worst"),
            el("td", picture, class_="picture", role="cell"),
        ]
    return el("tr", cells, role="row", class_=kind)


# ------------------------------------------------------------------------------------------- tables


def plain_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """Return a table of texts, the first column as row headers; for the numbers behind a picture."""
    return el(
        "table",
        el("caption", caption, class_="sr"),
        el("thead", el("tr", [el("th", words, scope="col") for words in head])),
        el(
            "tbody",
            [el("tr", el("th", row[0], scope="row"), [el("td", cell) for cell in row[1:]]) for row in rows],
        ),
        class_="numbers",
    )


def _table(
    caption: str,
    head: Sequence[tuple[str, str]],
    last: Any,
    rows: Sequence[Html],
    figure: str,
    kind: str,
    *,
    shown_caption: bool = False,
) -> Html:
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


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _cell(label: str, words: str, kind: str) -> Html:
    return el("td", words, class_=kind, role="cell", data_label=label)


def _labelled_scale(words: str, axis: Axis, *, signed: bool = False) -> list[Html]:
    return [el("span", words, class_="scale-title"), strip_axis(axis, signed=signed)]
