"""Tables and figures of the page, described once for the page, the model card and matplotlib; and notebooks' summary.

Tables are true tables, so what the pictures show can be read as numbers with any device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ratewise import _validate
from ratewise.accounting.statement import epsilon_text
from ratewise.constraints.domain import show_number
from ratewise.exceptions import InvalidInput
from ratewise.models.fitted import ShapeFunction
from ratewise.report import content as c
from ratewise.report.build import shape_of
from ratewise.report.content import MEASURES, Content, Share, listed
from ratewise.report.plots import UNIT, Axis, Column, Forest, Html, Line, Mark, Plot, Point, el, new_axes, strip, table
from ratewise.training.certificate import short

OPEN_CONSTRAINTS, MOST_CONSTRAINTS = 12, 2000
WIDEST = 0.3  # room left beyond this is drawn at the edge: near the bound is where one looks
OPEN_GROUPS, MOST_GROUPS = 12, 150
OPEN_PANELS, MOST_PANELS = 6, 60
TIPS = 60
MOST_LABELS = 12  # categories of a shape function that are shown, by size of their contribution
NOTHING = "\N{EN DASH}"
PANELS = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")
EXCESS = "distance from the bound"


# ------------------------------------------------------------------------------------------- pieces


def css_state(state: str) -> str:
    """Return the CSS class of a state."""
    return state.replace(" ", "-")


def pill(state: str) -> Html:
    """Return the state of a constraint as a word with a sign, never by colour alone."""
    sign = el("span", class_="sign", aria_hidden="true")
    return el("span", sign, state, class_=f"pill {css_state(state)}")


def four(number: float | None, form: str = ".4f") -> str:
    """Return a rate with four decimals; a dash where there is none."""
    return NOTHING if number is None else f"{number:{form}}".replace("-", "\N{MINUS SIGN}")


def signed(number: float | None) -> str:
    """Return a difference with four decimals and its sign."""
    return four(number, "+.4f")


def span(low: float | None, high: float | None) -> str:
    """Return an interval as text."""
    return "no rows" if low is None or high is None else f"{four(low)} to {four(high)}"


def measured_share(share: Share) -> str:
    """Return a share and its interval as text."""
    return f"{four(share.value)} ({span(share.low, share.high)})"


def counted(count: int, words: str) -> str:
    """Return how many there are of something: one group, two groups."""
    return f"{count:,} {words}{'' if count == 1 else 's'}"


def folded(summary: str, *children: Any, kind: str = "more", **attributes: Any) -> Html:
    """Return children that are shown on request."""
    return el("details", el("summary", summary), *children, class_=kind, **attributes)


def interval_words(content: Content) -> str:
    """Return what the intervals of the constraints are about."""
    about = "" if content.released else " of the population"
    return f"{show_number(100 * content.confidence)}% interval{about}"


def numbers(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], summary: str = "") -> Html:
    """Return a table of texts that scrolls sideways, the first column as row headers; folded under a `summary`."""
    body = [el("tr", el("th", row[0], scope="row"), [el("td", entry) for entry in row[1:]]) for row in rows]
    heads = el("thead", el("tr", [el("th", words, scope="col") for words in head]))
    found = el("table", el("caption", caption, class_="sr"), heads, el("tbody", body), class_="numbers")
    shown = el("div", found, class_="scroll", tabindex="0", role="region", aria_label=summary or caption)
    return folded(summary, shown, kind="more behind") if summary else shown


def _left_out(count: int) -> Html | None:
    words = f"{count:,} more are in the data of this page only."
    return el("p", words, class_="quiet") if count > 0 else None


def _figure(caption: Any, plot: Plot, figure: str) -> Html:
    return el("figure", el("figcaption", caption), plot.html(figure), data_figure=figure, class_="panel-box")


def _panels(panels: Sequence[Html], opened: int, what: str, kind: str, figure: str) -> list[Html]:
    """Return panels, all but the first ones folded away."""
    found = [el("div", panels[:opened], class_=f"panels {kind}", data_figure=figure)]
    if rest := panels[opened:]:
        found.append(folded(counted(len(rest), what), el("div", rest, class_=f"panels {kind}")))
    return found


def _thinned(items: Sequence[Any], most: int = TIPS) -> Sequence[Any]:
    return items[:: max(1, len(items) // most)]


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


# -------------------------------------------------------------------------------------- constraints


def _excess_axis(constraints: Sequence[c.Constraint], others: Iterable[float] = ()) -> Axis:
    """Return a scale with the dot of every violated constraint; ample room left may run off it."""
    ends = [end for one in constraints for end in one.excess_interval or ()]
    near = [min(WIDEST, max(-WIDEST, end)) for end in (*ends, *others)]
    return Axis.around([0.0, *near, *(one.excess for one in constraints if one.excess and one.excess > 0)])


def constraint_columns(content: Content) -> list[Column]:
    """Return the columns of the table of constraints; the first model compared with is a hollow dot."""
    others = {}
    for model in content.models[1:2]:
        pairs = zip(content.constraints, model.reached, strict=True)
        others = {one.name: one.excess_of(reached) for one, reached in pairs if reached is not None}
    axis = _excess_axis(content.constraints, others.values())

    def name(one: c.Constraint) -> list[Html]:
        shown = [el("span", one.words, class_="label"), folded("formula", el("code", one.name), kind="formula")]
        found = one.certified
        if found is not None and found.reached is not None and found.low is not None and found.high is not None:
            ends = f"{short(found.low)} to {short(found.high)}"
            words = f"training rows: {short(found.reached)} ({ends}), {found.state}"
            shown.append(el("span", words, class_=f"certified {css_state(found.state)}"))
        return shown

    def picture(one: c.Constraint) -> Html:
        tip = f"{one.name}: reached {four(one.reached)}, {span(one.low, one.high)}"
        marks: dict[str, Any] = {"zero": 0.0, "beyond": True, "other": others.get(one.name), "tip": tip}
        return strip(axis, one.excess, one.excess_interval, state=css_state(one.state), **marks)

    return [
        Column("Constraint", "name", lambda one: one.name, name),
        Column("Verdict", "result", lambda one: one.state, lambda one: pill(one.state)),
        Column("Reached", "number reached", lambda one: four(one.reached)),
        Column("Requested", "number asked", lambda one: one.requested),
        Column(interval_words(content), "span interval", lambda one: span(one.low, one.high)),
        Column(axis, "picture", shown=picture),
    ]


def constraints_view(content: Content) -> Html:
    """Return every constraint with its result, the worst first; all but the first dozen folded away."""
    shown = partial(
        table,
        caption="Constraints, worst first: what was requested and what was reached",
        columns=constraint_columns(content),
        kind="forest",
        visible=False,
        scales=EXCESS,
        signed=True,
        attributes=lambda one: {"data_state": one.state, "data_constraint": one.name, "data_words": one.words},
    )
    ordered, more = content.by_worst(), None
    if (count := len(ordered) - OPEN_CONSTRAINTS) > 0:
        rest = shown("constraints-more", rows=ordered[OPEN_CONSTRAINTS:MOST_CONSTRAINTS])
        summary = f"{counted(count, 'more constraint')}, going on from worst to best"
        more = folded(summary, rest, _left_out(len(ordered) - MOST_CONSTRAINTS))
    return el("div", shown("constraints", rows=ordered[:OPEN_CONSTRAINTS]), more, class_="constraints")


def family_rates(family: c.Declared) -> Html | None:
    """Return the rates that a family compares, by group; None if it plots nothing."""
    known = [value for *_, value in family.points if value is not None]
    if not known:
        return None
    several = len({series for series, *_ in family.points}) > 1
    rows = [
        Mark(f"{series}, {group}" if several else group, value, words=four(value))
        for series, group, value in family.points[:MOST_GROUPS]
    ]
    axis = Axis.around(known, least=0.04, within=(0.0, 1.0))
    return folded("The rates that are compared", Forest("Rate", axis, rows).html("family"))


def model_columns(content: Content) -> list[Column]:
    """Return the columns of the table of models: how often they are right, and their worst constraint."""
    models, reported = content.models, content.models[0]
    accuracy = Axis.around([end for model in models for end in model.accuracy.interval or (0.0, 1.0)])
    gaps = Axis.around([0.0, *(model.worst for model in models if model.worst is not None)])

    def name(model: c.ComparedModel) -> Html:
        return el("span", model.name, class_="label")

    def kind(model: c.ComparedModel) -> str:
        return "model" if model is reported else "rival"

    def right(model: c.ComparedModel) -> Html:
        return strip(accuracy, model.accuracy.value, model.accuracy.interval, state=kind(model))

    def excess(model: c.ComparedModel) -> Html:
        return strip(gaps, model.worst, state=kind(model), zero=0.0, beyond=True)

    columns = [
        Column("Model", "name", lambda model: model.name, name),
        Column("Epsilon", "number", lambda model: epsilon_text(model.epsilon) if model.private else "none"),
        Column(
            "Accuracy",
            "number accuracy",
            lambda one: measured_share(one.accuracy),
            lambda one: four(one.accuracy.value),
        ),
        Column(accuracy, "picture", shown=right),
    ]
    if content.constraints:
        columns += [Column("Largest excess", "number worst", lambda model: signed(model.worst))]
        columns += [Column(gaps, "picture", shown=excess)]
    return columns


def models_view(content: Content) -> Html:
    """Return the models side by side."""
    columns = model_columns(content)
    kinds = {id(model): {"class_": "rival" if place else "model"} for place, model in enumerate(content.models)}
    options: dict[str, Any] = {"visible": False, "attributes": lambda model: kinds[id(model)]}
    return table(
        "tradeoff", "Models compared on the same rows", columns, content.models, "forest models", signed=True, **options
    )


# ------------------------------------------------------------------------------------------- groups


def rates_view(content: Content) -> list[Html]:
    """Return the rates of every grouping and class as small panels; of several classes the first is open."""
    found = []
    for number, grouping in enumerate(content.groupings):
        panels: list[Html] = []
        for place, k in enumerate(content.shown_classes):
            figure = f"rates-{number}{f'-{place}' if place else ''}"
            shown = [_share_panel(content, grouping, f"{figure}-{rate}", k, rate) for rate in PANELS]
            body, several = el("div", shown, class_="panels"), len(content.shown_classes) > 1
            panels.append(folded(f"Class {k}", body, open=place == 0) if several else body)
        found.append(el("section", el("h3", f"By {grouping.title}"), panels, class_="grouping"))
    return found


def error_view(content: Content) -> Html:
    """Return how often predictions are wrong, by group."""
    groupings = content.groupings or [c.Grouping((), ())]
    panels = [_share_panel(content, one, f"error-{number}") for number, one in enumerate(groupings)]
    return el("div", panels, class_="panels")


def _shares(content: Content, grouping: c.Grouping, k: str = "", rate: str = "") -> Forest:
    """Return a rate of a class in each group, or without one the error; everyone is the last row.

    Of many groups the farthest from everyone come first.
    """
    title = f"Wrong predictions, by {grouping.title}" if grouping.by else "Wrong predictions"
    if rate:
        title = f"{MEASURES[rate][:1].upper()}{MEASURES[rate][1:]}, class {k}"
    shares = {g.name: g.rates[k][rate] if rate else g.error for g in (*grouping.groups, content.everyone)}
    middle = shares[content.everyone.name].value

    def mark(name: str, share: Share) -> Mark:
        interval = span(share.low, share.high)
        hidden = el("span", f" {interval}, {share.rows:,} rows", class_="sr")
        tip = f"{name}: {four(share.value)} ({interval}), {share.rows:,} rows"
        return Mark(name, share.value, share.interval, [four(share.value), hidden], tip)

    def distance(row: Mark) -> float:
        return -1.0 if row.value is None or middle is None else abs(row.value - middle)

    *rows, everyone = itertools.starmap(mark, shares.items())
    rows = sorted(rows, key=distance, reverse=True) if len(rows) > OPEN_GROUPS else rows
    axis = Axis.around([end for s in shares.values() for end in s.interval or ()], least=0.04, within=(0.0, 1.0))
    every = everyone._replace(kind="everyone")
    return Forest(title, axis, [*rows, every], line=middle, line_name="everyone")


def _share_panel(content: Content, grouping: c.Grouping, figure: str, k: str = "", rate: str = "") -> Html:
    """Return a share of each group: a dozen open and the others folded."""
    whole = _shares(content, grouping, k, rate)
    *rows, everyone = whole.rows
    opened = replace(whole, rows=[*rows[:OPEN_GROUPS], everyone]).html(figure)
    if len(rows) <= OPEN_GROUPS:
        return opened
    rest = rows[OPEN_GROUPS:MOST_GROUPS]
    shown = replace(whole, rows=rest).html(f"{figure}-more")
    summary = f"{counted(len(rest), 'more group')}, nearer to everyone"
    return el("div", opened, folded(summary, shown, _left_out(len(rows) - MOST_GROUPS)), class_="panel-box")


# ---------------------------------------------------------------------------------- shape functions


def shapes_view(content: Content) -> list[Html]:
    """Return the shape functions as small multiples, the most important first, on one scale."""
    shapes = content.shapes
    several = len({shape.output for shape in shapes}) > 1
    ends = [end for shape in shapes for end in (*shape.values, *dict(shape.special).values())]
    axis = Axis.around([0.0, *ends], least=0.1)
    panels = [_shape_panel(shape, axis, several) for shape in shapes]
    importance: dict[str, float] = {}
    for shape in shapes:
        importance[shape.feature] = importance.get(shape.feature, 0.0) + shape.importance
    rows = [(name, f"{value:.3f}") for name, value in sorted(importance.items(), key=lambda entry: -entry[1])]
    behind = "Mean absolute contribution of each feature", ("Feature", "Importance"), rows
    found = _panels(panels, OPEN_PANELS, "more shape function", "shapes", "shapes")
    return [*found, numbers(*behind, summary="Importance of all features")]


def _shape_panel(shape: c.Shape, axis: Axis, several: bool) -> Html:
    label = f"Contribution of {shape.feature} to the score" + (f" of {shape.output}" if several else "")
    figure = shape_figure(shape, axis, label)
    if isinstance(figure, Plot):
        picture = figure.html("")
        rest = [one for one in shape.special if not one[0].startswith("exactly ")]
        words = ", ".join(f"{label} {signed(value)}" for label, value in rest)
    else:
        picture = figure.html("shape", visible=False)
        left = len(shape.values) - len(figure.rows)
        words = f"{left} more with smaller contributions" if left else ""
    caption = el(
        "figcaption",
        el("b", shape.feature),
        el("span", f" {shape.output}" if several else "", class_="quiet"),
        el("span", f" importance {shape.importance:.2f}", class_="quiet"),
    )
    note = el("p", words, class_="quiet small") if words else None
    return el("figure", caption, el("div", picture, note), class_="panel-box shape")


def shape_figure(shape: c.Shape, axis: Axis | None = None, label: str = "") -> Plot | Forest:
    """Return the steps of a continuous feature, dots for values that occur often by themselves; or bars of categories."""
    label = label or f"contribution of {shape.feature} to the score"
    axis = axis or Axis.around([0.0, *shape.values, *dict(shape.special).values()])
    if not shape.edges:
        parts = list(zip(shape.labels, shape.values, shape.low, shape.high, strict=True))
        largest = sorted(parts, key=lambda part: -abs(part[1]))[:MOST_LABELS]
        marks = [Mark(name, value, (low, high), signed(value)) for name, value, low, high in largest]
        marks.sort(key=lambda mark: -float(mark.value or 0.0))
        return Forest(label, axis, marks, ("Value", "Score"), line=0.0, signed=True)
    steps = list(zip(itertools.pairwise(shape.edges), shape.values, shape.low, shape.high, strict=True))
    first, last = shape.edges[0], shape.edges[-1]
    across = Axis(first, last if last > first else first + 1.0)
    dots = [
        Point(float(name.removeprefix("exactly ")), value, None, f"{name}: {signed(value)}")
        for name, value in shape.special
        if name.startswith("exactly ")
    ]
    return Plot(
        label,
        across,
        axis,
        shape.feature,
        f"score of {shape.output}",
        height=180,
        lines=[Line([x for pair, *_ in steps for x in pair], [y for _, y, *_ in steps for _ in range(2)])],
        points=[dot for dot in dots if across.holds(dot.x)],
        tips=[
            ((a + b) / 2, f"{shape.feature} {a:,.4g} to {b:,.4g}: {signed(value)}")
            for (a, b), value, *_ in _thinned(steps)
        ],
        band=[(x, max(low, axis.low), min(high, axis.high)) for pair, _, low, high in steps for x in pair],
    )


def draw_shape(shape: ShapeFunction, output: str, ax: Any = None) -> Any:
    """Draw the shape function of a class on matplotlib axes and return them."""
    return shape_figure(shape_of(shape, output)).draw(new_axes(shown=True) if ax is None else ax)


# -------------------------------------------------------------------------------------- calibration

DIAGONAL = Line((0.0, 1.0), (0.0, 1.0), "reference")


def calibration_view(content: Content) -> list[Html]:
    """Return a panel per group: scores against outcomes, everyone's line behind."""
    panels, rows = [], []
    for each in content.calibration[:MOST_PANELS]:
        note = el("span", f" off by {four(each.error)}, {each.rows:,} rows", class_="quiet")
        caption = el("figcaption", el("b", each.group), note)
        panels.append(el("figure", caption, _calibration_plot(content, each).html(""), class_="panel-box"))
        for b, seen in ((b, b.observed) for b in each.bins):
            shown = four(b.score), four(seen.value), span(seen.low, seen.high), f"{seen.rows:,}"
            rows.append((each.group, *shown))
    behind = "Calibration by group and range of scores", ("Group", "Mean score", "Observed", "Interval", "Rows"), rows
    found = _panels(panels, OPEN_PANELS + 1, "more group", "square", "calibration")
    return [*found, numbers(*behind, summary="The numbers behind the calibration figures")]


def _calibration_plot(content: Content, each: c.Calibration) -> Plot:
    def line(of: c.Calibration, kind: str) -> Line:
        return Line([b.score for b in of.bins], [b.observed.value for b in of.bins], kind)

    points = []
    for b, seen in ((b, b.observed) for b in each.bins):
        tip = f"{each.group}: score {four(b.score)}, observed {measured_share(seen)}, {seen.rows:,} rows"
        points.append(Point(b.score, seen.value or 0.0, seen.interval, tip))
    about = f"{content.score_words} against how often it was so; mean distance {four(each.error)}"
    behind = [line(one, "behind") for one in content.calibration[:1] if one is not each]
    lines = [DIAGONAL, *behind, line(each, "main")]
    return Plot(
        f"Calibration of {each.group}: {about}", UNIT, UNIT, content.score_words, "observed", lines=lines, points=points
    )


# ----------------------------------------------------------------------------------------- training

_CURVES = {
    "excess": "Distance from the bound",
    "multiplier": "Multiplier (weight of the constraint)",
    "norm": "Norm of the released gradient, noise included",
}


def training_view(training: c.Training) -> list[Html]:
    """Return the curves of a training; the constraint with the largest multiplier is drawn over the others.

    A script makes the choice of the curve in front work; without one it stays hidden.
    """
    curves, picker = training.curves, Html()
    head = ["Step", "Norm of the gradient"]
    rows = [[f"{step:,}", _short(norm)] for step, norm in zip(training.steps, training.gradient_norm, strict=True)]
    if curves:
        options = [el("option", curve.name, value=place) for place, curve in enumerate(curves)]
        label, choice = el("label", "Curve in front: ", for_="pick"), el("select", options, id="pick")
        picker = el("p", label, choice, class_="script-only pick", hidden=True)
        head += [f"Distance from the bound: {curves[0].name}", "Its multiplier"]
        for row, excess, multiplier in zip(rows, curves[0].excess, curves[0].multiplier, strict=True):
            row += [signed(excess), _short(multiplier)]
    names = _CURVES if curves else ["norm"]
    figures = [_figure(_CURVES[which], _training_plot(training, which), f"training-{which}") for which in names]
    behind = numbers(
        "Released values during training", head, _thinned(rows, 20), summary="The numbers behind the training figures"
    )
    return [picker, el("div", figures, class_="panels wide"), behind]


def _training_plot(training: c.Training, which: str) -> Plot:
    """Return a plot of "excess" or "multiplier" of the constraints, or of the "norm" of the gradient."""
    words, last, curves = _CURVES[which], training.steps[-1], training.curves
    label, least, title = f"{words} over {last:,} steps, from released values", 0.02, words.lower()
    if which == "norm":
        lines, least = [Line(training.steps, training.gradient_norm)], 1e-3
    else:
        lines = [Line(training.steps, getattr(one, which), "behind", one.name) for one in curves[:0:-1]]
        lines.append(Line(training.steps, getattr(curves[0], which), "main", curves[0].name))
        label, title = f"{label}; in front: {curves[0].name}", f"{title}, as released"
    axis = Axis.around([0.0, *(y for line in lines for y in line.y if y is not None)], least=least)
    tip, form = ("reached", signed) if which == "excess" else (which, _short)
    shown = _thinned(list(zip(training.steps, lines[-1].y, strict=True)))
    return Plot(
        label,
        Axis(0.0, float(max(last, 1))),
        axis if which == "excess" else Axis(0.0, axis.high),
        "step",
        title,
        lines=lines,
        levels=[(0.0, "the bound")] if which == "excess" else [],
        tips=[(float(step), f"step {step:,}: {tip} {form(value)}") for step, value in shown],
    )


# ------------------------------------------------------------------------------------------- ledger

LEDGER_HEAD = ("Release", "Data", "Raised epsilon by", "Alone", "So far", "What was released")


def ledger_rows(spending: c.Spending) -> Iterator[tuple[str, ...]]:
    """Yield the releases as texts, for `LEDGER_HEAD`."""
    for one in spending.entries:
        parts = _rise(one), epsilon_text(one.alone), epsilon_text(one.after)
        yield one.purpose or "release", one.data, *parts, one.words


def ledger_view(spending: c.Spending) -> list[Html]:
    """Return where the budget went: what each entry added."""
    rows = numbers("Releases in the order of the plan", LEDGER_HEAD, ledger_rows(spending))
    bars = _spending_forest(spending)
    if bars is None:
        words = "Something was released without protection: epsilon is infinite, there is no budget to show."
        return [el("p", words), rows]
    return [bars.html("ledger"), rows]


def _spending_forest(spending: c.Spending) -> Forest | None:
    """Return epsilon before and after each release; None without a finite total."""
    if spending.total is None:
        return None
    whole, rows = max(spending.cap or 0.0, spending.total) or 1.0, []
    for one in spending.entries:
        tip = f"{one.purpose}: epsilon {epsilon_text(one.before)} to {epsilon_text(one.after)}"
        rows.append(Mark(one.purpose or "release", one.after, (one.before or 0.0, one.after or 0.0), _rise(one), tip))
    cap = f"of a cap of {epsilon_text(spending.cap)} " if spending.cap else ""
    left = f"; {whole - spending.total:.4f} is left" if spending.cap and whole - spending.total > 5e-5 else ""
    title = f"Epsilon {epsilon_text(spending.total)} {cap}is spent{left}: epsilon before and after each release"
    axis = Axis(0.0, 1.04 * whole)
    return Forest(title, axis, rows, ("Release", "Adds"), spending.cap, "cap" if spending.cap else "")


def _rise(one: c.LedgerEntry) -> str:
    return "without protection" if one.before is None or one.after is None else signed(one.after - one.before)


# ------------------------------------------------------------------------------ figures for papers


def _constraints_figure(content: Content) -> Forest:
    rows = [Mark(o.name, o.excess, o.excess_interval, kind=css_state(o.state)) for o in content.by_worst()]
    return Forest(f"{EXCESS} (positive: beyond it)", _excess_axis(content.constraints), rows, line=0.0)


def _rates_figure(content: Content, rate: str = PANELS[0], by: Any = None, k: Any = None) -> Forest:
    _validate.one_of(tuple(MEASURES), rate=rate)
    chosen = content.shown_classes[0] if k is None else str(k)
    if chosen not in content.classes:
        raise InvalidInput(f"k must be one of the classes {', '.join(content.classes)}, got {k!r}")
    return _error_figure(content, by, chosen, rate)


def _error_figure(content: Content, by: Any = None, *of: str) -> Forest:
    wanted = content.groupings[0].by if by is None else (by,) if isinstance(by, str) else tuple(by)
    grouping = next((one for one in content.groupings if one.by == wanted), None)
    if grouping is None:
        known = ", ".join(one.title for one in content.groupings)
        raise InvalidInput(f"by must be one of the groupings of the report ({known}), got {by!r}")
    found = _shares(content, grouping, *of)
    return replace(found, rows=found.rows[:-1])


def _tradeoff_figure(content: Content) -> Plot:
    points = [
        Point(model.worst, model.accuracy.value, model.accuracy.interval, name=model.name)
        for model in content.models
        if model.worst is not None and model.accuracy.value is not None
    ]
    return Plot("", UNIT, UNIT, "largest excess over a bound (positive: violated)", "accuracy", points=points)


def _training_figure(content: Content) -> Plot:
    training: Any = content.training
    return _training_plot(training, "excess" if training.curves else "norm")


def _shapes_figure(content: Content, *, feature: str | None = None) -> Plot | Forest:
    for shape in content.shapes:
        if feature in (None, shape.feature):
            return shape_figure(shape)
    known = ", ".join(dict.fromkeys(shape.feature for shape in content.shapes))
    raise InvalidInput(f"feature must be one of {known}, got {feature!r}")


_NO_GROUPS = "there are no groups; give sensitive_features"
FIGURES: dict[str, tuple[Callable[..., Any], Callable[[Content], object], str]] = {
    "constraints": (_constraints_figure, lambda of: of.constraints, "no constraints were requested"),
    "rates": (_rates_figure, lambda of: of.groupings, _NO_GROUPS),
    "error": (_error_figure, lambda of: of.groupings, _NO_GROUPS),
    "tradeoff": (
        _tradeoff_figure,
        lambda of: of.constraints and of.models[1:],
        "it needs constraints and a model to compare with; give baseline",
    ),
    "calibration": (
        lambda of: _calibration_plot(of, of.calibration[0]),
        lambda of: of.calibration,
        "there are no scores; give probabilities",
    ),
    "training": (_training_figure, lambda of: of.training, "nothing is known of the training"),
    "shapes": (_shapes_figure, lambda of: of.shapes, "the model has no shape functions"),
    "ledger": (
        lambda of: _spending_forest(of.spending),
        lambda of: of.spending and _spending_forest(of.spending),
        "there is no ledger with a finite epsilon",
    ),
}
"""Figures by name: how to make one, whether there is something to draw, and what to say otherwise."""


def figure_of(name: str, content: Content, **choices: Any) -> Plot | Forest:
    """Return a figure by name; say what is missing if there is nothing to draw."""
    make, there, missing = FIGURES[_validate.one_of(tuple(FIGURES), figure=name)]
    if not there(content):
        raise InvalidInput(f"there is no figure {name!r} in this report: {missing}")
    found: Plot | Forest = make(content, **choices)
    return found


# --------------------------------------------------------------------------------- summary in notebooks


def summary(model: Any) -> str:
    """Return what matters most about a classifier as a small piece of HTML; every text is escaped."""
    asked, compiled = getattr(model, "constraints", None), getattr(model, "constraints_", None)
    items = asked if isinstance(asked, list | tuple | set | frozenset) else [asked]
    count = "" if compiled is None else f" ({len(compiled):,} constraints)"
    constraints = "none" if asked is None else listed(map(str, items), 6, "; ") + count
    statement, certificate = getattr(model, "privacy_", None), getattr(model, "certificate_", None)
    if statement is None:
        epsilon, delta = getattr(model, "epsilon", None), getattr(model, "delta", None)
        beside = "" if delta is None else f", delta {delta:g}"
        budget = "no guarantee requested" if epsilon is None else f"epsilon {epsilon:g}{beside}, to be spent"
        lines = {"Not fitted yet": "fit(X, y, sensitive_features=...)", "Privacy": budget, "Constraints": constraints}
    else:
        privacy = f"epsilon {epsilon_text(statement.epsilon)}, delta {statement.delta:g}, for {statement.unit}"
        lines = {"Privacy": "no guarantee" if math.isinf(statement.epsilon) else privacy, "Constraints": constraints}
        lines |= {"Not covered by epsilon": "; ".join(statement.outside)} if statement.outside else {}
        lines |= {"Certificate": certificate.summary} if certificate is not None else {}
        lines["Report"] = "report(X, y, sensitive_features=...) on rows it has not seen"
    style = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;margin:.3em 0;max-width:60em"
    return el("div", [el("div", el("b", f"{title}: "), text) for title, text in lines.items()], style=style)
