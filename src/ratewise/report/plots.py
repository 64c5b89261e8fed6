"""Plots of the page: calibration by group, curves of the training, the ledger as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from ratewise.report.content import Calibration, Content, Spending, Training
from ratewise.report.grids import NOTHING, counted, four, plain_table, signed, span
from ratewise.report.markup import Html, el
from ratewise.report.svg import Axis, Line, Plot, Point
from ratewise.report.words import epsilon_text

OPEN_PANELS = 6
MOST_PANELS = 60
TIPS = 60
HUES = 6  # colours for entries of the ledger, in page.css


# -------------------------------------------------------------------------------------- calibration


def calibration_view(content: Content) -> list[Html]:
    """Return a panel per group: scores against outcomes, everyone's line behind."""
    everyone = content.calibration[0]
    panels = [_calibration_panel(each, everyone, content.score_words) for each in content.calibration]
    shown, folded = panels[: OPEN_PANELS + 1], panels[OPEN_PANELS + 1 : MOST_PANELS]
    found = [el("div", shown, class_="panels square", data_figure="calibration")]
    if folded:
        found.append(
            el(
                "details",
                el("summary", counted(len(folded), "more group")),
                el("div", folded, class_="panels square"),
                class_="more",
            )
        )
    found.append(
        _numbers("The numbers behind the calibration figures", [_calibration_table(content.calibration)])
    )
    return found


def _calibration_panel(each: Calibration, everyone: Calibration, score: str) -> Html:
    unit = Axis(0.0, 1.0)
    lines = [Line((0.0, 1.0), (0.0, 1.0), "reference")]
    if each is not everyone:
        lines.append(_calibration_line(everyone, "behind"))
    lines.append(_calibration_line(each, "main"))
    points = [
        Point(
            b.score,
            b.observed.value or 0.0,
            None if b.observed.low is None or b.observed.high is None else (b.observed.low, b.observed.high),
            f"{each.group}: score {four(b.score)}, observed {four(b.observed.value)} "
            f"({span(b.observed.low, b.observed.high)}), {b.observed.rows:,} rows",
        )
        for b in each.bins
    ]
    label = (
        f"Calibration of {each.group}: {score} against how often it was so; mean distance {four(each.error)}"
    )
    plot = Plot(label, unit, unit, score, height=220, lines=lines, points=points)
    caption = el(
        "figcaption",
        el("b", each.group),
        el("span", f" off by {four(each.error)}, {each.rows:,} rows", class_="quiet"),
    )
    return el("figure", caption, plot.html(), class_="panel-box")


def _calibration_line(each: Calibration, kind: str) -> Line:
    return Line([b.score for b in each.bins], [b.observed.value for b in each.bins], kind)


def _calibration_table(found: Sequence[Calibration]) -> Html:
    rows = [
        (
            each.group,
            four(b.score),
            four(b.observed.value),
            span(b.observed.low, b.observed.high),
            f"{b.observed.rows:,}",
        )
        for each in found[:MOST_PANELS]
        for b in each.bins
    ]
    head = ("Group", "Mean score", "Observed", "Interval", "Rows")
    return plain_table("Calibration by group and range of scores", head, rows)


# ----------------------------------------------------------------------------------------- training


def training_view(training: Training) -> list[Html]:
    """Return the curves of a training; the constraint under most pressure is drawn over the others."""
    figures = []
    if training.curves:
        figures += [
            _curves_plot(training, "excess", "Distance from the limit", "training-excess"),
            _curves_plot(training, "multiplier", "Multiplier (pressure on the limit)", "training-multiplier"),
        ]
    norms = [norm for norm in training.gradient_norm if norm is not None]
    axis = Axis.around([0.0, *norms], least=1e-3)
    label = f"Norm of the released gradient, noise included, over {training.steps[-1]:,} steps"
    figures.append(
        _figure(
            "Norm of the released gradient, noise included",
            Plot(
                label,
                _steps_axis(training),
                Axis(0.0, axis.high),
                "step",
                lines=[Line(training.steps, training.gradient_norm)],
                tips=_tips(training, training.gradient_norm, "norm"),
            ),
            "training-norm",
        )
    )
    return [
        _picker(training) if training.curves else el("span"),
        el("div", figures, class_="panels wide"),
        _numbers("The numbers behind the training figures", [_training_table(training)]),
    ]


def _curves_plot(training: Training, which: str, words: str, figure: str) -> Html:
    curves = training.curves
    values = [value for curve in curves for value in getattr(curve, which) if value is not None]
    axis = Axis.around([0.0, *values], least=0.02)
    first = curves[0]
    lines = [Line(training.steps, getattr(c, which), "behind", c.name) for c in curves[1:][::-1]]
    lines.append(Line(training.steps, getattr(first, which), "main", first.name))
    levels = [(0.0, "the limit")] if which == "excess" else []
    label = f"{words} over {training.steps[-1]:,} steps, from released values; in front: {first.name}"
    plot = Plot(
        label,
        _steps_axis(training),
        axis if which == "excess" else Axis(0.0, axis.high),
        "step",
        lines=lines,
        levels=levels,
        tips=_tips(training, getattr(first, which), "reached" if which == "excess" else "multiplier"),
        identifier=figure,
    )
    return _figure(words, plot, figure)


def _picker(training: Training) -> Html:
    """Return a choice of the curve in front; a script makes it work, and without one it stays hidden."""
    options = [el("option", curve.name, value=place) for place, curve in enumerate(training.curves)]
    return el(
        "p",
        el("label", "Curve in front: ", for_="pick"),
        el("select", options, id="pick"),
        class_="script-only pick",
        hidden=True,
    )


def _tips(training: Training, values: Sequence[float | None], words: str) -> list[tuple[float, str]]:
    every = max(1, len(training.steps) // TIPS)
    return [
        (float(step), f"step {step:,}: {words} {signed(value) if words == 'reached' else _short(value)}")
        for step, value in list(zip(training.steps, values, strict=True))[::every]
    ]


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def _steps_axis(training: Training) -> Axis:
    return Axis(0.0, float(max(training.steps[-1], 1)))


def _training_table(training: Training) -> Html:
    every = max(1, len(training.steps) // 20)
    first = training.curves[0] if training.curves else None
    head = ["Step", "Norm of the gradient"]
    if first is not None:
        head += [f"Distance from the limit: {first.name}", "Its multiplier"]
    rows = []
    for i in range(0, len(training.steps), every):
        row = [f"{training.steps[i]:,}", _short(training.gradient_norm[i])]
        if first is not None:
            row += [signed(first.excess[i]), _short(first.multiplier[i])]
        rows.append(row)
    return plain_table("Released values during training", head, rows)


# ------------------------------------------------------------------------------------------- ledger


def ledger_view(spending: Spending) -> list[Html]:
    """Return where the budget went: a bar of what each entry added, and epsilon over the training."""
    if spending.total is None:
        words = "Something was released without protection: epsilon is infinite, there is no budget to show."
        return [el("p", words), _entries_table(spending)]
    found = [_bar(spending), _entries_table(spending)]
    if spending.gradient_share is not None:
        found.append(_split(spending.gradient_share))
    if spending.steps:
        found.append(_epsilon_plot(spending))
    return found


def _bar(spending: Spending) -> Html:
    total = spending.total or 0.0
    whole = max(spending.cap or 0.0, total) or 1.0
    axis = Axis(0.0, whole)
    parts = []
    for place, entry in enumerate(spending.entries):
        before, after = entry.before or 0.0, entry.after or 0.0
        tip = f"{entry.purpose}: epsilon {epsilon_text(before)} to {epsilon_text(after)}"
        parts.append(
            el(
                "rect",
                el("title", tip),
                class_=f"part hue{place % HUES}",
                x=axis.percent(before),
                y=0,
                width=f"{100 * max(after - before, 0.0) / whole:.3f}%",
                height=36,
            )
        )
    left = whole - total
    label = f"Of a cap of {epsilon_text(spending.cap)}" if spending.cap else "No cap"
    words = f"{label}, {epsilon_text(total)} is spent: " + "; ".join(
        f"{entry.purpose} {_rise(entry.before, entry.after)}" for entry in spending.entries
    )
    picture = el(
        "svg",
        el("rect", class_="left", x=0, y=0, width="100%", height=36),
        parts,
        class_="budget",
        width="100%",
        height=36,
        role="img",
        aria_label=words,
    )
    caption = f"{label}, epsilon {epsilon_text(total)} is spent" + (
        f"; {left:.4f} is left" if spending.cap and left > 5e-5 else ""
    )
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
    head = ("Entry", "Data", "Raised epsilon by", "Alone", "What was released")
    return el(
        "div",
        plain_table("Entries of the ledger in order", head, rows),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Entries of the ledger",
    )


def _split(gradient: float) -> Html:
    words = (
        f"Of each training step's budget, {100 * gradient:.0f}% went into the gradient and "
        f"{100 * (1 - gradient):.0f}% into counting predictions by group (by inverse squared noise)."
    )
    return el("p", words, class_="quiet")


def _epsilon_plot(spending: Spending) -> Html:
    high = max(spending.cap or 0.0, *spending.epsilons)
    tips = [
        (float(step), f"after {step:,} steps: epsilon {epsilon_text(value)}")
        for step, value in zip(spending.steps, spending.epsilons, strict=True)
    ]
    plot = Plot(
        f"Epsilon of the whole book over {spending.steps[-1]:,} training steps, "
        f"from {epsilon_text(spending.epsilons[0])} to {epsilon_text(spending.epsilons[-1])}",
        Axis(0.0, float(spending.steps[-1])),
        Axis(0.0, 1.08 * high),
        "step of the training",
        lines=[Line(spending.steps, spending.epsilons)],
        levels=[(spending.cap, "cap")] if spending.cap else [],
        tips=tips,
        area=True,
    )
    return _figure("Epsilon grows ever more slowly with the steps", plot, "ledger-curve")


def _figure(caption: str, plot: Plot, figure: str) -> Html:
    return el("figure", el("figcaption", caption), plot.html(), data_figure=figure, class_="panel-box")


def _numbers(summary: str, tables: Sequence[Html]) -> Html:
    box = el("div", tables, class_="scroll", tabindex="0", role="region", aria_label=summary)
    return el("details", el("summary", summary), box, class_="more behind")
