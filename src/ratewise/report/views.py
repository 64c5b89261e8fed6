"""Tables and plots of the page: constraints, models, rates by group, shape functions, calibration, training, budget.

Tables are true tables, so what the pictures show can be read as numbers with any device. `FIGURES` has the same for
matplotlib.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ratewise import _validate
from ratewise.constraints.domain import show_number
from ratewise.exceptions import InvalidInput
from ratewise.metrics.verdicts import short
from ratewise.models.fitted import ShapeFunction
from ratewise.report.build import epsilon_text, shape_of
from ratewise.report.content import (
    MEASURES,
    Calibration,
    Constraint,
    Content,
    Declared,
    Group,
    Grouping,
    Rival,
    Shape,
    Share,
    Spending,
    Training,
)
from ratewise.report.plots import Axis, Forest, Html, Line, Plot, Point, el, strip, strip_axis

OPEN_CONSTRAINTS = 12
MOST_CONSTRAINTS = 2000
WIDEST = 0.3  # room left beyond this is drawn at the edge: near the bound is where one looks
OPEN_GROUPS = 12
MOST_GROUPS = 150
OPEN_PANELS = 6
MOST_PANELS = 60
TIPS = 60
HUES = 6  # colours for entries of the ledger, in page.css
MOST_LABELS = 12  # categories of a shape function that are shown, by size of their contribution
NOTHING = "\N{EN DASH}"
PANELS = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")


# ------------------------------------------------------------------------------------------- pieces


def css_state(state: str) -> str:
    """Return the CSS class of a state."""
    return state.replace(" ", "-")


def pill(state: str) -> Html:
    """Return the state of a constraint as a word with a sign, never by colour alone."""
    sign = el("span", class_="sign", aria_hidden="true")
    return el("span", sign, state, class_=f"pill {css_state(state)}")


def four(number: float | None) -> str:
    """Return a rate with four decimals; a dash where there is none."""
    return NOTHING if number is None else f"{number:.4f}".replace("-", "\N{MINUS SIGN}")


def signed(number: float | None) -> str:
    """Return a difference with four decimals and its sign."""
    return NOTHING if number is None else f"{number:+.4f}".replace("-", "\N{MINUS SIGN}")


def span(low: float | None, high: float | None) -> str:
    """Return an interval as text."""
    return "no rows" if low is None or high is None else f"{four(low)} to {four(high)}"


def counted(count: int, words: str) -> str:
    """Return how many there are of something: one group, two groups."""
    return f"{count:,} {words}{'' if count == 1 else 's'}"


def folded(summary: str, *children: Any, **attributes: Any) -> Html:
    """Return children that are shown on request."""
    return el("details", el("summary", summary), *children, class_="more", **attributes)


def plain_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """Return a table of texts, the first column as row headers; for the numbers behind a picture."""
    body = [el("tr", el("th", row[0], scope="row"), [el("td", entry) for entry in row[1:]]) for row in rows]
    return el(
        "table",
        el("caption", caption, class_="sr"),
        el("thead", el("tr", [el("th", words, scope="col") for words in head])),
        el("tbody", body),
        class_="numbers",
    )


# roles are written out because narrow screens lay rows out as blocks, which would hide them
def picture_table(
    caption: str,
    head: Sequence[tuple[str, str]],
    scales: Sequence[Html],
    rows: Sequence[Html],
    figure: str,
    kind: str = "forest panel",
    *,
    hide_caption: bool = False,
) -> Html:
    """Return a table with pictures, whose `scales` are the heads of the last columns; `figure` names it."""
    cells = [_head(words, class_=name) for words, name in head]
    return el(
        "table",
        el("caption", caption, class_="sr" if hide_caption else None),
        el("thead", el("tr", cells, scales, role="row"), role="rowgroup"),
        el("tbody", rows, role="rowgroup"),
        class_=kind,
        role="table",
        data_figure=figure,
    )


def _head(*children: Any, class_: str = "picture") -> Html:
    return el("th", *children, scope="col", class_=class_, role="columnheader")


def _row(name: Any, *cells: Html, **attributes: Any) -> Html:
    if type(name) is str:  # may be broken after an equals sign, so that no word is
        first, *rest = name.split("=")
        name = [first, *(["=", el("wbr"), part] for part in rest)]
    return el(
        "tr", el("th", name, scope="row", class_="name", role="rowheader"), cells, role="row", **attributes
    )


def _cell(words: Any, kind: str = "number", label: str | None = None) -> Html:
    """Return a cell; narrow screens show `label` before it."""
    return el("td", words, class_=kind, role="cell", data_label=label)


def _picture(axis: Axis, value: float | None, interval: tuple[float, float] | None, **how: Any) -> Html:
    return _cell(strip(axis, value, interval, **how), "picture")


def _scale(axis: Axis, words: str = "", *, signed: bool = False) -> Html:
    """Return the head of a column of strips: a scale under its name, which may be hidden."""
    title = el("span", words, class_="scale-title") if words else el("span", "Picture", class_="sr")
    return _head(title, strip_axis(axis, signed=signed))


def _ends(share: Share) -> tuple[float, float] | None:
    return None if share.low is None or share.high is None else (share.low, share.high)


def _unit_axis(ends: Iterable[float]) -> Axis:
    axis = Axis.around(ends, least=0.04)
    return Axis(max(0.0, axis.low), min(1.0, axis.high))


def _left_out(count: int) -> Html | None:
    words = f"{count:,} more are in the data of this page only."
    return el("p", words, class_="quiet") if count > 0 else None


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _figure(caption: str, plot: Plot, figure: str) -> Html:
    return el("figure", el("figcaption", caption), plot.html(), data_figure=figure, class_="panel-box")


def _scroll(label: str, *children: Any) -> Html:
    return el("div", *children, class_="scroll", tabindex="0", role="region", aria_label=label)


def _numbers(summary: str, table: Html) -> Html:
    return el("details", el("summary", summary), _scroll(summary, table), class_="more behind")


# -------------------------------------------------------------------------------------- constraints


def constraints_view(content: Content) -> Html:
    """Return every constraint with its result, the worst first; all but the first dozen folded away."""
    ordered, other = content.by_worst(), _other_excess(content)
    axis = _excess_axis(ordered, other.values())
    open_table = _constraints_table(content, ordered[:OPEN_CONSTRAINTS], axis, other, "constraints")
    more = None
    if len(ordered) > OPEN_CONSTRAINTS:
        rest = ordered[OPEN_CONSTRAINTS:MOST_CONSTRAINTS]
        summary = (
            f"{counted(len(ordered) - OPEN_CONSTRAINTS, 'more constraint')}, going on from worst to best"
        )
        table = _constraints_table(content, rest, axis, other, "constraints-more")
        more = folded(summary, table, _left_out(len(ordered) - MOST_CONSTRAINTS))
    return el("div", open_table, more, class_="constraints")


def _constraints_table(
    content: Content, constraints: Sequence[Constraint], axis: Axis, other: dict[str, float], figure: str
) -> Html:
    level = interval_words(content)
    head = [("Constraint", "name"), ("Verdict", "result"), ("Reached", "number")]
    head += [("Requested", "number"), (level, "span")]
    rows = [_constraint_row(constraint, axis, other.get(constraint.name)) for constraint in constraints]
    caption = "Constraints, worst first: what was requested and what was reached"
    scale = _scale(axis, "distance from the bound", signed=True)
    return picture_table(caption, head, [scale], rows, figure, "forest", hide_caption=True)


def interval_words(content: Content) -> str:
    """Return what the intervals of the constraints are about."""
    return (
        f"{show_number(100 * content.confidence)}% interval{'' if content.released else ' of the population'}"
    )


def _constraint_row(constraint: Constraint, axis: Axis, other: float | None) -> Html:
    interval = span(constraint.low, constraint.high)
    return _row(
        [
            el("span", constraint.words, class_="label"),
            el("details", el("summary", "formula"), el("code", constraint.name), class_="formula"),
            _certified(constraint),
        ],
        _cell(pill(constraint.state), "result"),
        _cell(four(constraint.reached), "number reached", "Reached"),
        _cell(constraint.requested, "number asked", "Requested"),
        _cell(interval, "span interval", "Interval"),
        _picture(
            axis,
            constraint.excess,
            constraint.excess_interval,
            state=css_state(constraint.state),
            zero=0.0,
            beyond=True,
            other=other,
            tip=f"{constraint.name}: reached {four(constraint.reached)}, {interval}",
        ),
        data_state=constraint.state,
        data_constraint=constraint.name,
        data_words=constraint.words,
    )


def _certified(constraint: Constraint) -> Html | None:
    found = constraint.certified
    if found is None or found.estimate is None or found.low is None or found.high is None:
        return None
    interval = f"{short(found.low)} to {short(found.high)}"
    words = f"training rows: {short(found.estimate)} ({interval}), {found.state}"
    return el("span", words, class_=f"certified {css_state(found.state)}")


def _excess_axis(constraints: Sequence[Constraint], others: Iterable[float]) -> Axis:
    """Return a scale on which every violated constraint has its dot; ample room left may run off it."""
    ends = [end for one in constraints for end in one.excess_interval or ()]
    near = [min(WIDEST, max(-WIDEST, end)) for end in (*ends, *others)]
    return Axis.around([0.0, *near, *(one.excess for one in constraints if one.excess and one.excess > 0)])


def _other_excess(content: Content) -> dict[str, float]:
    """Return the excess of the first model compared with, by constraint."""
    if len(content.models) < 2:
        return {}
    pairs = zip(content.constraints, content.models[1].reached, strict=True)
    return {one.name: one.excess_of(reached) for one, reached in pairs if reached is not None}


def family_rates(family: Declared) -> Html | None:
    """Return the rates that a family compares, by group; None if it plots nothing."""
    known = [point.value for point in family.points if point.value is not None]
    if not known:
        return None
    axis = _unit_axis(known)
    several = len({point.series for point in family.points}) > 1
    rows = [
        _row(
            f"{point.series}, {point.group}" if several else point.group,
            _cell(four(point.value)),
            _picture(axis, point.value, None),
        )
        for point in family.points[:MOST_GROUPS]
    ]
    head = [("Group", "name"), ("Rate", "number")]
    table = picture_table(_capital(family.axis or "rate"), head, [_scale(axis)], rows, "family")
    return folded("The rates that are compared", table)


# ------------------------------------------------------------------------------------------- models


def models_view(content: Content) -> Html:
    """Return the models side by side: how often they are right, and their worst constraint."""
    models = content.models
    accuracy = Axis.around([end for model in models for end in _ends(model.accuracy) or (0.0, 1.0)])
    gaps = Axis.around([0.0, *(model.worst for model in models if model.worst is not None)])
    head = [("Model", "name"), ("Epsilon", "number"), ("Accuracy", "number")]
    scales = [_scale(accuracy, "accuracy")]
    if content.constraints:
        scales += [
            _head("Largest excess", class_="number"),
            _scale(gaps, "distance from the bound", signed=True),
        ]
    rows = [_model_row(content, model, place, accuracy, gaps) for place, model in enumerate(models)]
    caption = "Models compared on the same rows"
    return picture_table(caption, head, scales, rows, "tradeoff", "forest models", hide_caption=True)


def _model_row(content: Content, model: Rival, place: int, accuracy: Axis, gaps: Axis) -> Html:
    kind = "model" if place == 0 else "rival"
    note = None
    if model.difference is not None:
        value, low, high = model.difference
        words = f"{signed(value)} ({signed(low)} to {signed(high)}) against the model reported"
        note = el("span", words, class_="quiet small")
    cells = [
        _cell(epsilon_text(model.epsilon) if model.private else "none", "number", "Epsilon"),
        _cell(four(model.accuracy.value), "number accuracy", "Accuracy"),
        _picture(accuracy, model.accuracy.value, _ends(model.accuracy), state=kind),
    ]
    if content.constraints:
        cells.append(_cell(signed(model.worst), "number worst", "Largest excess"))
        cells.append(_picture(gaps, model.worst, None, state=kind, zero=0.0, beyond=True))
    return _row([el("span", model.name, class_="label"), note], *cells, class_=kind)


# ------------------------------------------------------------------------------------------- groups


def rates_view(content: Content) -> list[Html]:
    """Return the rates of every grouping and class as small panels; of several classes the first is open."""
    found = []
    for number, grouping in enumerate(content.groupings):
        panels: list[Html] = []
        for place, k in enumerate(content.shown_classes):
            figure = f"rates-{number}{f'-{place}' if place else ''}"
            body = _class_panels(content, grouping, k, figure)
            several = len(content.shown_classes) > 1
            panels.append(folded(f"Class {k}", body, open=place == 0) if several else body)
        found.append(el("section", el("h3", f"By {' and '.join(grouping.by)}"), panels, class_="grouping"))
    return found


def _class_panels(content: Content, grouping: Grouping, k: str, figure: str) -> Html:
    panels = []
    for measure in PANELS:
        words = f"{_capital(MEASURES[measure])}, class {k}"
        rows = [(group.name, group.rates[k][measure]) for group in grouping.groups]
        panels.append(share_panel(words, rows, content.everyone.rates[k][measure], f"{figure}-{measure}"))
    return el("div", panels, class_="panels")


def share_panel(words: str, rows: Sequence[tuple[str, Share]], everyone: Share, figure: str) -> Html:
    """Return a share of each group, with everyone's as a line through all.

    Of many groups the farthest from everyone come first, a dozen open and the others folded.
    """
    axis = _unit_axis(end for _, share in [*rows, ("", everyone)] for end in _ends(share) or ())
    if len(rows) > OPEN_GROUPS:
        rows = sorted(rows, key=lambda row: -_distance(row[1], everyone))
    lines = [_share_row(name, share, everyone, axis) for name, share in rows]
    last = _share_row("everyone", everyone, everyone, axis, kind="everyone")
    head = [("Group", "name"), ("Rate", "number")]
    table = picture_table(words, head, [_scale(axis)], [*lines[:OPEN_GROUPS], last], figure)
    if len(lines) <= OPEN_GROUPS:
        return table
    rest = lines[OPEN_GROUPS:MOST_GROUPS]
    more = picture_table(words, head, [_scale(axis)], rest, f"{figure}-more")
    summary = f"{counted(len(rest), 'more group')}, nearer to everyone"
    return el("div", table, folded(summary, more, _left_out(len(lines) - MOST_GROUPS)), class_="panel-box")


def _share_row(name: str, share: Share, everyone: Share, axis: Axis, kind: str = "model") -> Html:
    interval = span(share.low, share.high)
    hidden = el("span", f" {interval}, {share.rows:,} rows", class_="sr")
    tip = f"{name}: {four(share.value)} ({interval}), {share.rows:,} rows"
    picture = _picture(axis, share.value, _ends(share), state=kind, zero=everyone.value, tip=tip)
    return _row(name, _cell([four(share.value), hidden]), picture, class_=kind)


def _distance(share: Share, everyone: Share) -> float:
    if share.value is None or everyone.value is None:
        return -1.0
    return abs(share.value - everyone.value)


def error_view(content: Content) -> Html:
    """Return how often predictions are wrong, by group."""
    everyone = _error(content.everyone)
    panels = [
        share_panel(
            f"Wrong predictions, by {' and '.join(grouping.by)}",
            [(group.name, _error(group)) for group in grouping.groups],
            everyone,
            f"error-{number}",
        )
        for number, grouping in enumerate(content.groupings)
    ]
    return el("div", panels or share_panel("Wrong predictions", [], everyone, "error-0"), class_="panels")


def _error(group: Group) -> Share:
    right = group.accuracy
    if right.value is None or right.low is None or right.high is None:
        return right
    return Share(1.0 - right.value, 1.0 - right.high, 1.0 - right.low, right.rows)


# ---------------------------------------------------------------------------------- shape functions


def shapes_view(content: Content) -> list[Html]:
    """Return the shape functions as small multiples, the most important first, on one scale."""
    shapes = content.shapes
    several = len({shape.output for shape in shapes}) > 1
    ends = [end for shape in shapes for end in (*shape.values, *(one.value for one in shape.special))]
    axis = Axis.around([0.0, *ends], least=0.1)
    panels = [_shape_panel(shape, axis, several) for shape in shapes]
    found = [el("div", panels[:OPEN_PANELS], class_="panels shapes", data_figure="shapes")]
    if rest := panels[OPEN_PANELS:]:
        summary = counted(len(rest), "more shape function")
        found.append(folded(summary, el("div", rest, class_="panels shapes")))
    importance: dict[str, float] = {}
    for shape in shapes:
        importance[shape.feature] = importance.get(shape.feature, 0.0) + shape.importance
    rows = [(name, f"{value:.3f}") for name, value in sorted(importance.items(), key=lambda entry: -entry[1])]
    table = plain_table("Mean absolute contribution of each feature", ("Feature", "Importance"), rows)
    found.append(_numbers("Importance of all features", table))
    return found


def _shape_panel(shape: Shape, axis: Axis, several: bool) -> Html:
    caption = el(
        "figcaption",
        el("b", shape.feature),
        el("span", f" {shape.output}" if several else "", class_="quiet"),
        el("span", f" importance {shape.importance:.2f}", class_="quiet"),
    )
    if not shape.edges:
        return el("figure", caption, _categories(shape, axis, several), class_="panel-box shape")
    rest = [one for one in shape.special if not one.label.startswith("exactly ")]
    words = ", ".join(f"{one.label} {signed(one.value)}" for one in rest)
    plot = shape_plot(shape, axis, several).html()
    note = el("p", words, class_="quiet small") if words else None
    return el("figure", caption, el("div", plot, note), class_="panel-box shape")


def _shape_label(shape: Shape, several: bool) -> str:
    return f"Contribution of {shape.feature} to the score" + (f" of {shape.output}" if several else "")


def shape_plot(shape: Shape, axis: Axis, several: bool = False) -> Plot:
    """Return the steps of a continuous feature; dots are values that occur often by themselves."""
    steps = list(zip(itertools.pairwise(shape.edges), shape.values, shape.low, shape.high, strict=True))
    first, last = shape.edges[0], shape.edges[-1]
    span_of_x = Axis(first, last if last > first else first + 1.0)
    special = [
        (float(one.label.removeprefix("exactly ")), one)
        for one in shape.special
        if one.label.startswith("exactly ")
    ]
    return Plot(
        _shape_label(shape, several),
        span_of_x,
        axis,
        shape.feature,
        "contribution to the score",
        height=180,
        lines=[
            Line([edge for pair, *_ in steps for edge in pair], [y for _, y, *_ in steps for _ in range(2)])
        ],
        points=[
            Point(x, one.value, None, f"{one.label}: {signed(one.value)}")
            for x, one in special
            if span_of_x.holds(x)
        ],
        tips=[
            ((a + b) / 2, f"{shape.feature} {a:,.4g} to {b:,.4g}: {signed(value)}")
            for (a, b), value, *_ in steps[:: max(1, len(steps) // TIPS)]
        ],
        band=[
            (edge, max(low, axis.low), min(high, axis.high)) for pair, _, low, high in steps for edge in pair
        ],
    )


def _categories(shape: Shape, axis: Axis, several: bool) -> Html:
    order = sorted(range(len(shape.values)), key=lambda place: -abs(shape.values[place]))[:MOST_LABELS]
    rows = [
        _row(
            shape.labels[i],
            _cell(signed(shape.values[i])),
            _picture(axis, shape.values[i], (shape.low[i], shape.high[i]), zero=0.0),
        )
        for i in sorted(order, key=lambda place: -shape.values[place])
    ]
    head = [("Value", "name"), ("Score", "number")]
    label = _shape_label(shape, several)
    table = picture_table(label, head, [_scale(axis, signed=True)], rows, "shape", hide_caption=True)
    left = len(shape.values) - len(order)
    note = el("p", f"{left} more with smaller contributions", class_="quiet small") if left else None
    return el("div", table, note)


# -------------------------------------------------------------------------------------- calibration


def calibration_view(content: Content) -> list[Html]:
    """Return a panel per group: scores against outcomes, everyone's line behind."""
    everyone = content.calibration[0]
    panels = [_calibration_panel(each, everyone, content.score_words) for each in content.calibration]
    found = [el("div", panels[: OPEN_PANELS + 1], class_="panels square", data_figure="calibration")]
    if rest := panels[OPEN_PANELS + 1 : MOST_PANELS]:
        found.append(folded(counted(len(rest), "more group"), el("div", rest, class_="panels square")))
    rows = [
        (each.group, four(b.score), four(b.observed.value), span(b.observed.low, b.observed.high), f"{b.observed.rows:,}")
        for each in content.calibration[:MOST_PANELS]
        for b in each.bins
    ]  # fmt: skip
    head = ("Group", "Mean score", "Observed", "Interval", "Rows")
    table = plain_table("Calibration by group and range of scores", head, rows)
    found.append(_numbers("The numbers behind the calibration figures", table))
    return found


def _calibration_panel(each: Calibration, everyone: Calibration, score: str) -> Html:
    lines = [Line((0.0, 1.0), (0.0, 1.0), "reference")]
    if each is not everyone:
        lines.append(_calibration_line(everyone, "behind"))
    points = [
        Point(
            b.score,
            b.observed.value or 0.0,
            _ends(b.observed),
            f"{each.group}: score {four(b.score)}, observed {four(b.observed.value)} "
            f"({span(b.observed.low, b.observed.high)}), {b.observed.rows:,} rows",
        )
        for b in each.bins
    ]
    label = (
        f"Calibration of {each.group}: {score} against how often it was so; mean distance {four(each.error)}"
    )
    unit = Axis(0.0, 1.0)
    plot = Plot(label, unit, unit, score, lines=[*lines, _calibration_line(each)], points=points)
    note = el("span", f" off by {four(each.error)}, {each.rows:,} rows", class_="quiet")
    return el("figure", el("figcaption", el("b", each.group), note), plot.html(), class_="panel-box")


def _calibration_line(each: Calibration, kind: str = "main", name: str = "") -> Line:
    return Line([b.score for b in each.bins], [b.observed.value for b in each.bins], kind, name)


# ----------------------------------------------------------------------------------------- training


def training_view(training: Training) -> list[Html]:
    """Return the curves of a training; the constraint with the largest multiplier is drawn over the others."""
    figures = []
    for which, words in (
        ("excess", "Distance from the bound"),
        ("multiplier", "Multiplier (weight of the constraint)"),
    ):
        if training.curves:
            identifier = f"training-{which}"
            figures.append(_figure(words, _curves_plot(training, which, words, identifier), identifier))
    figures.append(
        _figure("Norm of the released gradient, noise included", _norm_plot(training), "training-norm")
    )
    return [
        _picker(training) if training.curves else Html(),
        el("div", figures, class_="panels wide"),
        _numbers("The numbers behind the training figures", _training_table(training)),
    ]


def _norm_plot(training: Training) -> Plot:
    axis = Axis.around([0.0, *(norm for norm in training.gradient_norm if norm is not None)], least=1e-3)
    return Plot(
        f"Norm of the released gradient, noise included, over {training.steps[-1]:,} steps",
        Axis(0.0, float(max(training.steps[-1], 1))),
        Axis(0.0, axis.high),
        "step",
        "norm of the released gradient",
        lines=[Line(training.steps, training.gradient_norm)],
        tips=_tips(training, training.gradient_norm, "norm"),
    )


def _curves_plot(training: Training, which: str, words: str, identifier: str | None = None) -> Plot:
    curves = training.curves
    values = [value for curve in curves for value in getattr(curve, which) if value is not None]
    axis = Axis.around([0.0, *values], least=0.02)
    first = curves[0]
    lines = [Line(training.steps, getattr(c, which), "behind", c.name) for c in curves[1:][::-1]]
    return Plot(
        f"{words} over {training.steps[-1]:,} steps, from released values; in front: {first.name}",
        Axis(0.0, float(max(training.steps[-1], 1))),
        axis if which == "excess" else Axis(0.0, axis.high),
        "step",
        f"{words.lower()}, as released",
        lines=[*lines, Line(training.steps, getattr(first, which), "main", first.name)],
        levels=[(0.0, "the bound")] if which == "excess" else [],
        tips=_tips(training, getattr(first, which), "reached" if which == "excess" else "multiplier"),
        identifier=identifier,
    )


def _picker(training: Training) -> Html:
    """Return a choice of the curve in front; a script makes it work, and without one it stays hidden."""
    options = [el("option", curve.name, value=place) for place, curve in enumerate(training.curves)]
    label = el("label", "Curve in front: ", for_="pick")
    return el("p", label, el("select", options, id="pick"), class_="script-only pick", hidden=True)


def _tips(training: Training, values: Sequence[float | None], words: str) -> list[tuple[float, str]]:
    every = max(1, len(training.steps) // TIPS)
    return [
        (float(step), f"step {step:,}: {words} {signed(value) if words == 'reached' else _short(value)}")
        for step, value in list(zip(training.steps, values, strict=True))[::every]
    ]


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def _training_table(training: Training) -> Html:
    first = training.curves[0] if training.curves else None
    head = ["Step", "Norm of the gradient"]
    if first is not None:
        head += [f"Distance from the bound: {first.name}", "Its multiplier"]
    rows = []
    for i in range(0, len(training.steps), max(1, len(training.steps) // 20)):
        row = [f"{training.steps[i]:,}", _short(training.gradient_norm[i])]
        rows.append(row if first is None else [*row, signed(first.excess[i]), _short(first.multiplier[i])])
    return plain_table("Released values during training", head, rows)


# ------------------------------------------------------------------------------------------- ledger


def ledger_view(spending: Spending) -> list[Html]:
    """Return where the budget went: a bar of what each entry added, and epsilon over the training."""
    if spending.total is None:
        words = "Something was released without protection: epsilon is infinite, there is no budget to show."
        return [el("p", words), _entries_table(spending)]
    found = [_bar(spending, spending.total), _entries_table(spending)]
    if spending.gradient_share is not None:
        gradient = 100 * spending.gradient_share
        words = (
            f"Of each training step's budget, {gradient:.0f}% went into the gradient and "
            f"{100 - gradient:.0f}% into counting predictions by group (by inverse squared noise)."
        )
        found.append(el("p", words, class_="quiet"))
    if spending.steps:
        found.append(_figure("Epsilon by training step", _epsilon_plot(spending), "ledger-curve"))
    return found


def _bar(spending: Spending, total: float) -> Html:
    whole = max(spending.cap or 0.0, total) or 1.0
    parts = [
        el(
            "rect",
            el(
                "title",
                f"{entry.purpose}: epsilon {epsilon_text(entry.before)} to {epsilon_text(entry.after)}",
            ),
            class_=f"part hue{place % HUES}",
            x=Axis(0.0, whole).percent(entry.before or 0.0),
            y=0,
            width=f"{100 * max((entry.after or 0.0) - (entry.before or 0.0), 0.0) / whole:.3f}%",
            height=36,
        )
        for place, entry in enumerate(spending.entries)
    ]
    label = f"Of a cap of {epsilon_text(spending.cap)}" if spending.cap else "No cap"
    listed = "; ".join(f"{entry.purpose} {_rise(entry.before, entry.after)}" for entry in spending.entries)
    picture = el(
        "svg",
        el("rect", class_="left", x=0, y=0, width="100%", height=36),
        parts,
        class_="budget",
        width="100%",
        height=36,
        role="img",
        aria_label=f"{label}, {epsilon_text(total)} is spent: {listed}",
    )
    left = f"; {whole - total:.4f} is left" if spending.cap and whole - total > 5e-5 else ""
    caption = f"{label}, epsilon {epsilon_text(total)} is spent{left}"
    return el("figure", el("figcaption", caption), picture, data_figure="ledger")


def _rise(before: float | None, after: float | None) -> str:
    return "without protection" if before is None or after is None else signed(after - before)


def _entries_table(spending: Spending) -> Html:
    rows = [
        [
            [el("span", class_=f"swatch hue{place % HUES}", aria_hidden="true"), entry.purpose or "release"],
            entry.data,
            _rise(entry.before, entry.after),
            epsilon_text(entry.alone),
            entry.words,
        ]
        for place, entry in enumerate(spending.entries)
    ]
    head = ("Release", "Data", "Raised epsilon by", "Alone", "What was released")
    caption = "Releases in the order of the plan"
    return _scroll(caption, plain_table(caption, head, rows))


def _epsilon_plot(spending: Spending) -> Plot:
    steps, epsilons = spending.steps, spending.epsilons
    first, last = epsilon_text(epsilons[0]), epsilon_text(epsilons[-1])
    return Plot(
        f"Epsilon of all releases over {steps[-1]:,} training steps, from {first} to {last}",
        Axis(0.0, float(steps[-1])),
        Axis(0.0, 1.08 * max(spending.cap or 0.0, *epsilons)),
        "step of the training",
        "epsilon",
        lines=[Line(steps, epsilons)],
        levels=[(spending.cap, "cap")] if spending.cap else [],
        tips=[
            (float(step), f"after {step:,} steps: epsilon {epsilon_text(value)}")
            for step, value in zip(steps, epsilons, strict=True)
        ],
        area=True,
    )


# ------------------------------------------------------------------------------ figures for papers


def _constraints_figure(content: Content) -> Forest:
    rows = [(one.name, one.excess, one.excess_interval, one.state) for one in content.by_worst()]
    return Forest("distance from the bound (positive: beyond it)", rows)


def _shares_figure(words: str, shares: Sequence[tuple[str, Share]], everyone: Share) -> Forest:
    rows = [(name, share.value, _ends(share), "") for name, share in shares]
    return Forest(words, rows, everyone.value, "everyone")


def _rates_figure(content: Content, *, rate: str = "selection_rate", by: Any = None, k: Any = None) -> Forest:
    _validate.one_of(tuple(MEASURES), rate=rate)
    chosen = content.shown_classes[0] if k is None else str(k)
    if chosen not in content.classes:
        raise InvalidInput(f"k must be one of the classes {', '.join(content.classes)}, got {k!r}")
    shares = [(group.name, group.rates[chosen][rate]) for group in _grouping(content, by).groups]
    return _shares_figure(f"{MEASURES[rate]}, class {chosen}", shares, content.everyone.rates[chosen][rate])


def _error_figure(content: Content, *, by: Any = None) -> Forest:
    shares = [(group.name, _error(group)) for group in _grouping(content, by).groups]
    return _shares_figure("share of wrong predictions", shares, _error(content.everyone))


def _grouping(content: Content, by: Any) -> Grouping:
    wanted = content.groupings[0].by if by is None else (by,) if isinstance(by, str) else tuple(by)
    for grouping in content.groupings:
        if grouping.by == wanted:
            return grouping
    known = ", ".join(" and ".join(grouping.by) for grouping in content.groupings)
    raise InvalidInput(f"by must be one of the groupings of the report ({known}), got {by!r}")


def _tradeoff_figure(content: Content) -> Plot:
    points = [
        Point(model.worst, model.accuracy.value, _ends(model.accuracy), name=model.name)
        for model in content.models
        if model.worst is not None and model.accuracy.value is not None
    ]
    unit = Axis(0.0, 1.0)
    return Plot("", unit, unit, "largest excess over a bound (positive: violated)", "accuracy", points=points)


def _calibration_figure(content: Content) -> Plot:
    lines = [_calibration_line(each, name=each.group) for each in content.calibration[: OPEN_PANELS + 1]]
    unit = Axis(0.0, 1.0)
    diagonal = Line((0.0, 1.0), (0.0, 1.0), "reference")
    return Plot("", unit, unit, content.score_words, "observed", lines=[diagonal, *lines])


def _training_figure(content: Content) -> Plot:
    training = content.training
    if training is None or not training.curves:
        return _norm_plot(training or Training((0,), (None,), (), 0))
    return _curves_plot(training, "excess", "Distance from the bound")


def _ledger_figure(content: Content) -> Forest:
    spending = content.spending
    entries = () if spending is None else spending.entries
    rows = [
        (one.purpose or "release", one.after, (one.before or 0.0, one.after or 0.0), "") for one in entries
    ]
    cap = None if spending is None else spending.cap
    return Forest(
        "epsilon before and after each release, in the order of the plan", rows, cap, "cap" if cap else ""
    )


def _shapes_figure(content: Content, *, feature: str | None = None) -> Plot | Forest:
    found = [shape for shape in content.shapes if feature in (None, shape.feature)]
    if not found:
        known = ", ".join(dict.fromkeys(shape.feature for shape in content.shapes))
        raise InvalidInput(f"feature must be one of {known}, got {feature!r}")
    return shape_figure(found[0])


def shape_figure(shape: Shape) -> Plot | Forest:
    """Return a shape function as a figure of its own."""
    if shape.edges:
        return shape_plot(shape, Axis.around([0.0, *shape.values, *(one.value for one in shape.special)]))
    parts = zip(shape.labels, shape.values, shape.low, shape.high, strict=True)
    rows = [(label, value, (low, high), "") for label, value, low, high in parts]
    return Forest(f"contribution of {shape.feature} to the score", rows)


def draw_shape(shape: ShapeFunction, ax: Any = None) -> Any:
    """Draw a shape function of a model on matplotlib axes and return them."""
    if ax is None:
        try:
            from matplotlib import pyplot  # notebooks show its figures
        except ImportError:
            raise ImportError("figures need matplotlib: pip install 'ratewise[report]'") from None
        _, ax = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
    return shape_figure(shape_of(shape, "")).draw(ax)


FIGURES: dict[str, tuple[Callable[..., Plot | Forest], Callable[[Content], bool], str]] = {
    "constraints": (_constraints_figure, lambda c: bool(c.constraints), "no constraints were requested"),
    "rates": (_rates_figure, lambda c: bool(c.groupings), "there are no groups; give sensitive_features"),
    "error": (_error_figure, lambda c: bool(c.groupings), "there are no groups; give sensitive_features"),
    "tradeoff": (
        _tradeoff_figure,
        lambda c: len(c.models) > 1 and bool(c.constraints),
        "it needs constraints and a model to compare with; give baseline",
    ),
    "calibration": (
        _calibration_figure,
        lambda c: bool(c.calibration),
        "there are no scores; give probabilities",
    ),
    "training": (_training_figure, lambda c: c.training is not None, "nothing is known of the training"),
    "shapes": (_shapes_figure, lambda c: bool(c.shapes), "the model has no shape functions"),
    "ledger": (
        _ledger_figure,
        lambda c: c.spending is not None and c.spending.total is not None,
        "there is no ledger with a finite epsilon",
    ),
}
"""Figures by name: how to make one, whether there is something to draw, and what to say if there is not."""


def figure_of(name: str, content: Content, **choices: Any) -> Plot | Forest:
    """Return a figure by name; say what is missing if there is nothing to draw."""
    _validate.one_of(tuple(FIGURES), figure=name)
    make, ready, missing = FIGURES[name]
    if not ready(content):
        raise InvalidInput(f"there is no figure {name!r} in this report: {missing}")
    return make(content, **choices)


# --------------------------------------------------------------------------------- summary in notebooks

_MOST_SHOWN = 6


def summary(model: Any) -> str:
    """Return what matters most about a classifier as a small piece of HTML; every text is escaped."""
    lines = _fitted_lines(model) if hasattr(model, "privacy_") else _asked_lines(model)
    items = [el("div", el("b", f"{title}: "), text) for title, text in lines]
    style = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;margin:.3em 0;max-width:60em"
    return el("div", items, style=style)


def _asked_lines(model: Any) -> list[tuple[str, str]]:
    epsilon = getattr(model, "epsilon", None)
    delta = getattr(model, "delta", None)
    beside = "" if delta is None else f", delta {delta:g}"
    budget = "no guarantee requested" if epsilon is None else f"epsilon {epsilon:g}{beside}, to be spent"
    return [
        ("Not fitted yet", "fit(X, y, sensitive_features=...)"),
        ("Privacy", budget),
        ("Constraints", _asked(model)),
    ]


def _fitted_lines(model: Any) -> list[tuple[str, str]]:
    statement = model.privacy_
    if math.isinf(statement.epsilon):
        privacy = "no guarantee"
    else:
        privacy = (
            f"epsilon {epsilon_text(statement.epsilon)}, delta {statement.delta:g}, for {statement.unit}"
        )
    lines = [("Privacy", privacy), ("Constraints", _asked(model))]
    if statement.outside:
        lines.append(("Not covered by epsilon", "; ".join(statement.outside)))
    certificate = getattr(model, "certificate_", None)
    if certificate is not None:
        lines.append(("Certificate", certificate.summary))
    lines.append(("Report", "report(X, y, sensitive_features=...) on rows it has not seen"))
    return lines


def _asked(model: Any) -> str:
    asked = getattr(model, "constraints", None)
    if asked is None:
        return "none"
    items = asked if isinstance(asked, list | tuple | set | frozenset) else [asked]
    compiled = getattr(model, "constraints_", None)
    count = "" if compiled is None else f" ({len(compiled):,} constraints)"
    return _listed(map(str, items)) + count


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f"; and {len(items) - _MOST_SHOWN} more" if len(items) > _MOST_SHOWN else ""
    return "; ".join(items[:_MOST_SHOWN]) + more
