"""Tables and plots of the page, the same as figures for matplotlib, and the summary in notebooks.

Tables are true tables, so what the pictures show can be read as numbers with any device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ratewise import _validate
from ratewise.constraints.domain import show_number
from ratewise.exceptions import InvalidInput
from ratewise.models.fitted import ShapeFunction
from ratewise.report import content as c
from ratewise.report.build import shape_of
from ratewise.report.content import MEASURES, Content, Share, epsilon_text, listed
from ratewise.report.plots import UNIT, Axis, Forest, Html, Line, Plot, Point, el, strip, strip_axis
from ratewise.training.certificate import short

OPEN_CONSTRAINTS, MOST_CONSTRAINTS = 12, 2000
WIDEST = 0.3  # room left beyond this is drawn at the edge: near the bound is where one looks
OPEN_GROUPS, MOST_GROUPS = 12, 150
OPEN_PANELS, MOST_PANELS = 6, 60
TIPS = 60
HUES = 6  # colours for entries of the ledger, in page.css
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


def counted(count: int, words: str) -> str:
    """Return how many there are of something: one group, two groups."""
    return f"{count:,} {words}{'' if count == 1 else 's'}"


def spent(model: c.Rival) -> str:
    """Return what a model cost in privacy."""
    return epsilon_text(model.epsilon) if model.private else "none"


def folded(summary: str, *children: Any, kind: str = "more", **attributes: Any) -> Html:
    """Return children that are shown on request."""
    return el("details", el("summary", summary), *children, class_=kind, **attributes)


def interval_words(content: Content) -> str:
    """Return what the intervals of the constraints are about."""
    about = "" if content.released else " of the population"
    return f"{show_number(100 * content.confidence)}% interval{about}"


def _numbers(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], label: str = "") -> Html:
    """Return a table of texts that scrolls sideways, the first column as row headers."""
    body = [el("tr", el("th", row[0], scope="row"), [el("td", entry) for entry in row[1:]]) for row in rows]
    heads = el("thead", el("tr", [el("th", words, scope="col") for words in head]))
    table = el("table", el("caption", caption, class_="sr"), heads, el("tbody", body), class_="numbers")
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=label or caption)


def _behind(summary: str, caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """Return the numbers behind a picture, on request."""
    return folded(summary, _numbers(caption, head, rows, label=summary), kind="more behind")


# roles are written out because narrow screens lay rows out as blocks, which would hide them
def _table(
    figure: str, caption: str, head: Iterable[Any], rows: Iterable[Html], kind: str = "", *, shown: bool = True
) -> Html:
    """Return a table with pictures, its caption shown or not; heads are words with a CSS class, or scales."""
    cells = [one if isinstance(one, Html) else _head(one[0], class_=one[1]) for one in head]
    return el(
        "table",
        el("caption", caption, class_=None if shown else "sr"),
        el("thead", el("tr", cells, role="row"), role="rowgroup"),
        el("tbody", rows, role="rowgroup"),
        class_=kind or "forest panel",
        role="table",
        data_figure=figure,
    )


def _head(*children: Any, class_: str = "picture") -> Html:
    return el("th", *children, scope="col", class_=class_, role="columnheader")


def _scale(axis: Axis, words: str = "", *, signed: bool = False) -> Html:
    """Return the head of a column of strips: a scale under its name, which may be hidden."""
    title = el("span", words, class_="scale-title") if words else el("span", "Picture", class_="sr")
    return _head(title, strip_axis(axis, signed=signed))


def _row(name: Any, *cells: Html, **attributes: Any) -> Html:
    if type(name) is str:  # may be broken after an equals sign, so that no word is
        first, *rest = name.split("=")
        name = [first, *(["=", el("wbr"), part] for part in rest)]
    head = el("th", name, scope="row", class_="name", role="rowheader")
    return el("tr", head, cells, role="row", **attributes)


def _cell(words: Any, kind: str = "number", label: str | None = None) -> Html:
    """Return a cell; narrow screens show `label` before it."""
    return el("td", words, class_=kind, role="cell", data_label=label)


def _strips(figure: str, caption: str, names: tuple[str, str], axis: Axis, rows: Iterable[Any], **options: Any) -> Html:
    """Return a table of names, numbers and strips; a row may have a CSS class."""
    head = [(names[0], "name"), (names[1], "number"), _scale(axis, signed=options.pop("signed", False))]
    body = [
        _row(name, _cell(words), _cell(strip, "picture"), class_=kind[0] if kind else None)
        for name, words, strip, *kind in rows
    ]
    return _table(figure, caption, head, body, **options)


def _ends(share: Share) -> tuple[float, float] | None:
    return None if share.low is None or share.high is None else (share.low, share.high)


def _unit_axis(ends: Iterable[float]) -> Axis:
    axis = Axis.around(ends, least=0.04)
    return Axis(max(0.0, axis.low), min(1.0, axis.high))


def _left_out(count: int) -> Html | None:
    words = f"{count:,} more are in the data of this page only."
    return el("p", words, class_="quiet") if count > 0 else None


def _figure(caption: str, plot: Plot, figure: str) -> Html:
    return el("figure", el("figcaption", caption), plot.html(), data_figure=figure, class_="panel-box")


def _panels(panels: Sequence[Html], opened: int, what: str, kind: str, figure: str) -> list[Html]:
    """Return panels, all but the first ones folded away."""
    found = [el("div", panels[:opened], class_=f"panels {kind}", data_figure=figure)]
    if rest := panels[opened:]:
        found.append(folded(counted(len(rest), what), el("div", rest, class_=f"panels {kind}")))
    return found


def _thinned(items: Sequence[Any], most: int = TIPS) -> Sequence[Any]:
    return items[:: max(1, len(items) // most)]


# -------------------------------------------------------------------------------------- constraints


def constraints_view(content: Content) -> Html:
    """Return every constraint with its result, the worst first; all but the first dozen folded away."""
    ordered, other = content.by_worst(), dict[str, float]()
    for model in content.models[1:2]:  # the first one compared with
        pairs = zip(content.constraints, model.reached, strict=True)
        other = {one.name: one.excess_of(reached) for one, reached in pairs if reached is not None}
    ends = [end for one in ordered for end in one.excess_interval or ()]
    near = [min(WIDEST, max(-WIDEST, end)) for end in (*ends, *other.values())]
    # every violated constraint has its dot on the scale; ample room left may run off it
    axis = Axis.around([0.0, *near, *(one.excess for one in ordered if one.excess and one.excess > 0)])
    head = [("Constraint", "name"), ("Verdict", "result"), ("Reached", "number"), ("Requested", "number")]
    heads = [*head, (interval_words(content), "span"), _scale(axis, EXCESS, signed=True)]
    caption = "Constraints, worst first: what was requested and what was reached"

    def table(constraints: Sequence[c.Constraint], figure: str) -> Html:
        rows = [_constraint_row(one, axis, other.get(one.name)) for one in constraints]
        return _table(figure, caption, heads, rows, "forest", shown=False)

    more = None
    if (count := len(ordered) - OPEN_CONSTRAINTS) > 0:
        rest = table(ordered[OPEN_CONSTRAINTS:MOST_CONSTRAINTS], "constraints-more")
        summary = f"{counted(count, 'more constraint')}, going on from worst to best"
        more = folded(summary, rest, _left_out(len(ordered) - MOST_CONSTRAINTS))
    return el("div", table(ordered[:OPEN_CONSTRAINTS], "constraints"), more, class_="constraints")


def _constraint_row(one: c.Constraint, axis: Axis, other: float | None) -> Html:
    interval, marks = span(one.low, one.high), dict[str, Any](zero=0.0, beyond=True, other=other)
    tip = f"{one.name}: reached {four(one.reached)}, {interval}"
    picture = strip(axis, one.excess, one.excess_interval, state=css_state(one.state), tip=tip, **marks)
    name = [el("span", one.words, class_="label"), folded("formula", el("code", one.name), kind="formula")]
    found = one.certified
    if found is not None and found.estimate is not None and found.low is not None and found.high is not None:
        ends = f"{short(found.low)} to {short(found.high)}"
        words = f"training rows: {short(found.estimate)} ({ends}), {found.state}"
        name.append(el("span", words, class_=f"certified {css_state(found.state)}"))
    return _row(
        name,
        _cell(pill(one.state), "result"),
        _cell(four(one.reached), "number reached", "Reached"),
        _cell(one.requested, "number asked", "Requested"),
        _cell(interval, "span interval", "Interval"),
        _cell(picture, "picture"),
        data_state=one.state,
        data_constraint=one.name,
        data_words=one.words,
    )


def family_rates(family: c.Declared) -> Html | None:
    """Return the rates that a family compares, by group; None if it plots nothing."""
    known = [value for *_, value in family.points if value is not None]
    if not known:
        return None
    axis, several = _unit_axis(known), len({series for series, *_ in family.points}) > 1
    rows = [
        (f"{series}, {group}" if several else group, four(value), strip(axis, value))
        for series, group, value in family.points[:MOST_GROUPS]
    ]
    table = _strips("family", "Rate", ("Group", "Rate"), axis, rows)
    return folded("The rates that are compared", table)


def models_view(content: Content) -> Html:
    """Return the models side by side: how often they are right, and their worst constraint."""
    models = content.models
    accuracy = Axis.around([end for model in models for end in _ends(model.accuracy) or (0.0, 1.0)])
    gaps = Axis.around([0.0, *(model.worst for model in models if model.worst is not None)])
    head: list[Any] = [("Model", "name"), ("Epsilon", "number"), ("Accuracy", "number")]
    head.append(_scale(accuracy, "accuracy"))
    if content.constraints:
        head += [("Largest excess", "number"), _scale(gaps, EXCESS, signed=True)]
    rows = []
    for place, model in enumerate(models):
        kind, note, right = "rival" if place else "model", None, model.accuracy
        if model.difference is not None:
            value, low, high = map(signed, model.difference)
            words = f"{value} ({low} to {high}) against the model reported"
            note = el("span", words, class_="quiet small")
        cells = [
            _cell(spent(model), "number", "Epsilon"),
            _cell(four(right.value), "number accuracy", "Accuracy"),
            _cell(strip(accuracy, right.value, _ends(right), state=kind), "picture"),
        ]
        if content.constraints:
            cells.append(_cell(signed(model.worst), "number worst", "Largest excess"))
            cells.append(_cell(strip(gaps, model.worst, state=kind, zero=0.0, beyond=True), "picture"))
        rows.append(_row([el("span", model.name, class_="label"), note], *cells, class_=kind))
    return _table("tradeoff", "Models compared on the same rows", head, rows, "forest models", shown=False)


# ------------------------------------------------------------------------------------------- groups

Shares = list[tuple[str, Share]]


def rates_view(content: Content) -> list[Html]:
    """Return the rates of every grouping and class as small panels; of several classes the first is open."""
    found = []
    for number, grouping in enumerate(content.groupings):
        panels: list[Html] = []
        for place, k in enumerate(content.shown_classes):
            figure = f"rates-{number}{f'-{place}' if place else ''}"
            body = el(
                "div",
                [_share_panel(*_shares(content, grouping, k, rate), f"{figure}-{rate}") for rate in PANELS],
                class_="panels",
            )
            several = len(content.shown_classes) > 1
            panels.append(folded(f"Class {k}", body, open=place == 0) if several else body)
        found.append(el("section", el("h3", f"By {grouping.title}"), panels, class_="grouping"))
    return found


def error_view(content: Content) -> Html:
    """Return how often predictions are wrong, by group."""
    panels = [
        _share_panel(*_shares(content, one), f"error-{number}")
        for number, one in enumerate(content.groupings or [c.Grouping((), ())])
    ]
    return el("div", panels, class_="panels")


def _shares(content: Content, grouping: c.Grouping, k: str = "", rate: str = "") -> tuple[str, Shares, Share]:
    """Return a rate of a class, or without one the error, in words, by group, and of everyone."""
    words = f"Wrong predictions, by {grouping.title}" if grouping.by else "Wrong predictions"
    if rate:
        words = f"{MEASURES[rate][:1].upper()}{MEASURES[rate][1:]}, class {k}"
    groups = (*grouping.groups, content.everyone)
    *shares, (_, everyone) = [(one.name, one.rates[k][rate] if rate else one.error) for one in groups]
    return words, shares, everyone


def _share_panel(words: str, rows: Shares, everyone: Share, figure: str) -> Html:
    """Return a share of each group, with everyone's as a line through all.

    Of many groups the farthest from everyone come first, a dozen open and the others folded.
    """
    axis = _unit_axis(end for _, share in [*rows, ("", everyone)] for end in _ends(share) or ())

    def distance(row: tuple[str, Share]) -> float:
        value, middle = row[1].value, everyone.value
        return -1.0 if value is None or middle is None else abs(value - middle)

    def line(name: str, share: Share, kind: str = "model") -> tuple[Any, ...]:
        interval = span(share.low, share.high)
        hidden = el("span", f" {interval}, {share.rows:,} rows", class_="sr")
        tip = f"{name}: {four(share.value)} ({interval}), {share.rows:,} rows"
        picture = strip(axis, share.value, _ends(share), state=kind, zero=everyone.value, tip=tip)
        return name, [four(share.value), hidden], picture, kind

    def table(name: str, lines: Sequence[Any]) -> Html:
        return _strips(name, words, ("Group", "Rate"), axis, lines)

    if len(rows) > OPEN_GROUPS:
        rows = sorted(rows, key=distance, reverse=True)
    lines = [line(*row) for row in rows]
    opened = table(figure, [*lines[:OPEN_GROUPS], line("everyone", everyone, "everyone")])
    if len(lines) <= OPEN_GROUPS:
        return opened
    rest = lines[OPEN_GROUPS:MOST_GROUPS]
    summary = f"{counted(len(rest), 'more group')}, nearer to everyone"
    others = folded(summary, table(f"{figure}-more", rest), _left_out(len(lines) - MOST_GROUPS))
    return el("div", opened, others, class_="panel-box")


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
    table = "Mean absolute contribution of each feature", ("Feature", "Importance"), rows
    found = _panels(panels, OPEN_PANELS, "more shape function", "shapes", "shapes")
    return [*found, _behind("Importance of all features", *table)]


def _shape_panel(shape: c.Shape, axis: Axis, several: bool) -> Html:
    label = f"Contribution of {shape.feature} to the score" + (f" of {shape.output}" if several else "")
    if shape.edges:
        picture = _shape_plot(shape, axis, label).html()
        rest = [one for one in shape.special if not one[0].startswith("exactly ")]
        words = ", ".join(f"{label} {signed(value)}" for label, value in rest)
    else:
        parts = list(zip(shape.labels, shape.values, shape.low, shape.high, strict=True))
        largest = sorted(parts, key=lambda part: -abs(part[1]))[:MOST_LABELS]
        rows = [
            (name, signed(value), strip(axis, value, (low, high), zero=0.0))
            for name, value, low, high in sorted(parts, key=lambda part: -part[1])
            if (name, value, low, high) in largest
        ]
        picture = _strips("shape", label, ("Value", "Score"), axis, rows, signed=True, shown=False)
        left = len(parts) - len(largest)
        words = f"{left} more with smaller contributions" if left else ""
    caption = el(
        "figcaption",
        el("b", shape.feature),
        el("span", f" {shape.output}" if several else "", class_="quiet"),
        el("span", f" importance {shape.importance:.2f}", class_="quiet"),
    )
    note = el("p", words, class_="quiet small") if words else None
    return el("figure", caption, el("div", picture, note), class_="panel-box shape")


def _shape_plot(shape: c.Shape, axis: Axis, label: str = "") -> Plot:
    """Return the steps of a continuous feature; dots are values that occur often by themselves."""
    steps = list(zip(itertools.pairwise(shape.edges), shape.values, shape.low, shape.high, strict=True))
    first, last = shape.edges[0], shape.edges[-1]
    across = Axis(first, last if last > first else first + 1.0)
    dots = [
        Point(float(label.removeprefix("exactly ")), value, None, f"{label}: {signed(value)}")
        for label, value in shape.special
        if label.startswith("exactly ")
    ]
    return Plot(
        label,
        across,
        axis,
        shape.feature,
        "contribution to the score",
        height=180,
        lines=[Line([x for pair, *_ in steps for x in pair], [y for _, y, *_ in steps for _ in range(2)])],
        points=[dot for dot in dots if across.holds(dot.x)],
        tips=[
            ((a + b) / 2, f"{shape.feature} {a:,.4g} to {b:,.4g}: {signed(value)}")
            for (a, b), value, *_ in _thinned(steps)
        ],
        band=[(x, max(low, axis.low), min(high, axis.high)) for pair, _, low, high in steps for x in pair],
    )


# -------------------------------------------------------------------------------------- calibration

DIAGONAL = Line((0.0, 1.0), (0.0, 1.0), "reference")


def calibration_view(content: Content) -> list[Html]:
    """Return a panel per group: scores against outcomes, everyone's line behind."""
    everyone, shown = content.calibration[0], content.calibration[:MOST_PANELS]
    panels, rows = [], []
    for each in shown:
        points = []
        for b, seen in ((b, b.observed) for b in each.bins):
            score, value, interval = four(b.score), four(seen.value), span(seen.low, seen.high)
            tip = f"{each.group}: score {score}, observed {value} ({interval}), {seen.rows:,} rows"
            points.append(Point(b.score, seen.value or 0.0, _ends(seen), tip))
            rows.append((each.group, score, value, interval, f"{seen.rows:,}"))
        about = f"{content.score_words} against how often it was so; mean distance {four(each.error)}"
        behind = [] if each is everyone else [_calibration_line(everyone, "behind")]
        lines = [DIAGONAL, *behind, _calibration_line(each)]
        label = f"Calibration of {each.group}: {about}"
        plot = Plot(label, UNIT, UNIT, content.score_words, lines=lines, points=points)
        note = el("span", f" off by {four(each.error)}, {each.rows:,} rows", class_="quiet")
        caption = el("figcaption", el("b", each.group), note)
        panels.append(el("figure", caption, plot.html(), class_="panel-box"))
    head = ("Group", "Mean score", "Observed", "Interval", "Rows")
    table = "Calibration by group and range of scores", head, rows
    found = _panels(panels, OPEN_PANELS + 1, "more group", "square", "calibration")
    return [*found, _behind("The numbers behind the calibration figures", *table)]


def _calibration_line(each: c.Calibration, kind: str = "main", name: str = "") -> Line:
    return Line([b.score for b in each.bins], [b.observed.value for b in each.bins], kind, name)


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
    figures = [
        _figure(words, _training_plot(training, which), f"training-{which}")
        for which, words in _CURVES.items()
        if curves or which == "norm"
    ]
    table = "Released values during training", head, _thinned(rows, 20)
    behind = _behind("The numbers behind the training figures", *table)
    return [picker, el("div", figures, class_="panels wide"), behind]


def _training_plot(training: c.Training, which: str) -> Plot:
    """Return a plot of "excess" or "multiplier" of the constraints, or of the "norm" of the gradient."""
    words, last, curves = _CURVES[which], training.steps[-1], training.curves
    label, least, title = f"{words} over {last:,} steps, from released values", 0.02, words.lower()
    if which == "norm":
        lines = [Line(training.steps, training.gradient_norm)]
        label, least = f"{words}, over {last:,} steps", 1e-3
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
        identifier=None if which == "norm" else f"training-{which}",
    )


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


# ------------------------------------------------------------------------------------------- ledger


def ledger_view(spending: c.Spending) -> list[Html]:
    """Return where the budget went: a bar of what each entry added, and epsilon over the training."""
    rows = []
    for place, entry in enumerate(spending.entries):
        swatch = el("span", class_=f"swatch hue{place % HUES}", aria_hidden="true")
        name, alone = [swatch, entry.purpose or "release"], epsilon_text(entry.alone)
        rows.append([name, entry.data, _rise(entry), alone, entry.words])
    head = ("Release", "Data", "Raised epsilon by", "Alone", "What was released")
    table = _numbers("Releases in the order of the plan", head, rows)
    if spending.total is None:
        words = "Something was released without protection: epsilon is infinite, there is no budget to show."
        return [el("p", words), table]
    found = [_bar(spending, spending.total), table]
    if spending.gradient_share is not None:
        gradient = 100 * spending.gradient_share
        words = (
            f"Of each training step's budget, {gradient:.0f}% went into the gradient and "
            f"{100 - gradient:.0f}% into counting predictions by group (by inverse squared noise)."
        )
        found.append(el("p", words, class_="quiet"))
    if steps := spending.steps:
        texts = [epsilon_text(value) for value in spending.epsilons]
        plot = Plot(
            f"Epsilon of all releases over {steps[-1]:,} training steps, from {texts[0]} to {texts[-1]}",
            Axis(0.0, float(steps[-1])),
            Axis(0.0, 1.08 * max(spending.cap or 0.0, *spending.epsilons)),
            "step of the training",
            "epsilon",
            lines=[Line(steps, spending.epsilons)],
            levels=[(spending.cap, "cap")] if spending.cap else [],
            tips=[
                (float(step), f"after {step:,} steps: epsilon {text}") for step, text in zip(steps, texts, strict=True)
            ],
            area=True,
        )
        found.append(_figure("Epsilon by training step", plot, "ledger-curve"))
    return found


def _bar(spending: c.Spending, total: float) -> Html:
    whole, parts, size = max(spending.cap or 0.0, total) or 1.0, [], {"width": "100%", "height": 36}
    for place, entry in enumerate(spending.entries):
        before, after = entry.before or 0.0, entry.after or 0.0
        tip = f"{entry.purpose}: epsilon {epsilon_text(entry.before)} to {epsilon_text(entry.after)}"
        x, width = Axis(0.0, whole).percent(before), f"{100 * max(after - before, 0.0) / whole:.3f}%"
        kind = f"part hue{place % HUES}"
        parts.append(el("rect", el("title", tip), class_=kind, x=x, y=0, width=width, height=36))
    label = f"Of a cap of {epsilon_text(spending.cap)}" if spending.cap else "No cap"
    entries = "; ".join(f"{entry.purpose} {_rise(entry)}" for entry in spending.entries)
    words = f"{label}, {epsilon_text(total)} is spent: {entries}"
    frame = el("rect", class_="left", x=0, y=0, **size)
    picture = el("svg", frame, parts, class_="budget", **size, role="img", aria_label=words)
    left = f"; {whole - total:.4f} is left" if spending.cap and whole - total > 5e-5 else ""
    caption = f"{label}, epsilon {epsilon_text(total)} is spent{left}"
    return el("figure", el("figcaption", caption), picture, data_figure="ledger")


def _rise(one: c.Booking) -> str:
    return "without protection" if one.before is None or one.after is None else signed(one.after - one.before)


# ------------------------------------------------------------------------------ figures for papers


def _constraints_figure(content: Content) -> Forest:
    rows = [(one.name, one.excess, one.excess_interval, one.state) for one in content.by_worst()]
    return Forest(f"{EXCESS} (positive: beyond it)", rows)


def _rates_figure(content: Content, rate: str = PANELS[0], by: Any = None, k: Any = None) -> Forest:
    _validate.one_of(tuple(MEASURES), rate=rate)
    chosen = content.shown_classes[0] if k is None else str(k)
    if chosen not in content.classes:
        raise InvalidInput(f"k must be one of the classes {', '.join(content.classes)}, got {k!r}")
    return _shares_figure(content, by, f"{MEASURES[rate]}, class {chosen}", chosen, rate)


def _error_figure(content: Content, *, by: Any = None) -> Forest:
    return _shares_figure(content, by, "share of wrong predictions")


def _shares_figure(content: Content, by: Any, words: str, *of: str) -> Forest:
    wanted = content.groupings[0].by if by is None else (by,) if isinstance(by, str) else tuple(by)
    grouping = next((one for one in content.groupings if one.by == wanted), None)
    if grouping is None:
        known = ", ".join(one.title for one in content.groupings)
        raise InvalidInput(f"by must be one of the groupings of the report ({known}), got {by!r}")
    _, shares, everyone = _shares(content, grouping, *of)
    rows = [(name, share.value, _ends(share), "") for name, share in shares]
    return Forest(words, rows, everyone.value, "everyone")


def _tradeoff_figure(content: Content) -> Plot:
    points = [
        Point(model.worst, model.accuracy.value, _ends(model.accuracy), name=model.name)
        for model in content.models
        if model.worst is not None and model.accuracy.value is not None
    ]
    return Plot("", UNIT, UNIT, "largest excess over a bound (positive: violated)", "accuracy", points=points)


def _calibration_figure(content: Content) -> Plot:
    lines = [_calibration_line(each, name=each.group) for each in content.calibration[: OPEN_PANELS + 1]]
    return Plot("", UNIT, UNIT, content.score_words, "observed", lines=[DIAGONAL, *lines])


def _training_figure(content: Content) -> Plot:
    training: Any = content.training
    return _training_plot(training, "excess" if training.curves else "norm")


def _ledger_figure(content: Content) -> Forest:
    spending: Any = content.spending
    rows = [
        (one.purpose or "release", one.after, (one.before or 0.0, one.after or 0.0), "") for one in spending.entries
    ]
    return Forest("epsilon before and after each release", rows, spending.cap, "cap" if spending.cap else "")


def _shapes_figure(content: Content, *, feature: str | None = None) -> Plot | Forest:
    for shape in content.shapes:
        if feature in (None, shape.feature):
            return shape_figure(shape)
    known = ", ".join(dict.fromkeys(shape.feature for shape in content.shapes))
    raise InvalidInput(f"feature must be one of {known}, got {feature!r}")


def shape_figure(shape: c.Shape) -> Plot | Forest:
    """Return a shape function as a figure of its own."""
    if shape.edges:
        return _shape_plot(shape, Axis.around([0.0, *shape.values, *dict(shape.special).values()]))
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


_NO_GROUPS = "there are no groups; give sensitive_features"
FIGURES: dict[str, tuple[Callable[..., Plot | Forest], Callable[[Content], object], str]] = {
    "constraints": (_constraints_figure, lambda of: of.constraints, "no constraints were requested"),
    "rates": (_rates_figure, lambda of: of.groupings, _NO_GROUPS),
    "error": (_error_figure, lambda of: of.groupings, _NO_GROUPS),
    "tradeoff": (
        _tradeoff_figure,
        lambda of: of.constraints and of.models[1:],
        "it needs constraints and a model to compare with; give baseline",
    ),
    "calibration": (_calibration_figure, lambda of: of.calibration, "there are no scores; give probabilities"),
    "training": (_training_figure, lambda of: of.training, "nothing is known of the training"),
    "shapes": (_shapes_figure, lambda of: of.shapes, "the model has no shape functions"),
    "ledger": (
        _ledger_figure,
        lambda of: of.spending is not None and of.spending.total is not None,
        "there is no ledger with a finite epsilon",
    ),
}
"""Figures by name: how to make one, whether there is something to draw, and what to say otherwise."""


def figure_of(name: str, content: Content, **choices: Any) -> Plot | Forest:
    """Return a figure by name; say what is missing if there is nothing to draw."""
    make, there, missing = FIGURES[_validate.one_of(tuple(FIGURES), figure=name)]
    if not there(content):
        raise InvalidInput(f"there is no figure {name!r} in this report: {missing}")
    return make(content, **choices)


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
        lines = [("Not fitted yet", "fit(X, y, sensitive_features=...)")]
        lines += [("Privacy", budget), ("Constraints", constraints)]
    else:
        privacy = f"epsilon {epsilon_text(statement.epsilon)}, delta {statement.delta:g}, for {statement.unit}"
        lines = [("Privacy", "no guarantee" if math.isinf(statement.epsilon) else privacy)]
        lines.append(("Constraints", constraints))
        lines += [("Not covered by epsilon", "; ".join(statement.outside))] if statement.outside else []
        lines += [("Certificate", certificate.summary)] if certificate is not None else []
        lines.append(("Report", "report(X, y, sensitive_features=...) on rows it has not seen"))
    style = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;margin:.3em 0;max-width:60em"
    return el("div", [el("div", el("b", f"{title}: "), text) for title, text in lines], style=style)
