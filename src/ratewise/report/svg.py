"""Pictures that keep their text size at every width: marks are placed in percent, lines are stretched.

A strip is one row of a table: a dot with its interval on a shared axis. A plot is a frame with lines and
points. Both are inline SVG, drawn here, and need no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratewise.report.markup import Html, el

STRIP_HEIGHT = 24
_MIDDLE = STRIP_HEIGHT / 2


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, drawn from 0 to 100 percent."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], *, margin: float = 0.06, least: float = 0.02) -> Axis:
        """Return an axis that holds all values, with some room at both ends."""
        found = [value for value in values if math.isfinite(value)]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        room = max(margin * (high - low), least / 2)
        return cls(low - room, high + room)

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1; values outside are put at the edge."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def percent(self, value: float) -> str:
        """Return where a value lies, as text such as ``12.5%``."""
        return f"{100 * self.share(value):.3f}%"

    def holds(self, value: float) -> bool:
        """Tell whether a value is on the axis."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 5) -> list[float]:
        """Return round numbers on the axis.

        >>> Axis(0.0, 1.0).ticks()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        raw = (self.high - self.low) / max(1, most - 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def strip(
    axis: Axis,
    value: float | None,
    interval: tuple[float, float] | None,
    *,
    state: str = "model",
    zero: float | None = None,
    beyond: bool = False,
    other: float | None = None,
    tip: str = "",
) -> Html:
    """Return one row of a forest plot: interval, dot, a reference line and, hollow, another model."""
    parts: list[Any] = []
    if beyond and zero is not None:
        parts.append(
            el("rect", class_="beyond", x=axis.percent(zero), y=0, width="100%", height=STRIP_HEIGHT)
        )
    if zero is not None:
        x = axis.percent(zero)
        parts.append(el("line", class_="zero", x1=x, x2=x, y1=0, y2=STRIP_HEIGHT))
    if interval is not None:
        ends = {"x1": axis.percent(interval[0]), "x2": axis.percent(interval[1])}
        parts.append(el("line", class_="whisker", y1=_MIDDLE, y2=_MIDDLE, **ends))
    if other is not None:
        parts.append(el("circle", class_="other", cx=axis.percent(other), cy=_MIDDLE, r=4))
    if value is not None:
        parts.append(_dot(axis, value))
    return el(
        "svg",
        el("title", tip) if tip else None,
        parts,
        class_=f"strip {state}",
        width="100%",
        height=STRIP_HEIGHT,
        aria_hidden="true",
        focusable="false",
    )


def _dot(axis: Axis, value: float) -> Html:
    if axis.holds(value):
        return el("circle", class_="dot", cx=axis.percent(value), cy=_MIDDLE, r=5)
    # off the scale: an arrow at the edge
    left = value < axis.low
    sign, anchor = (
        ("\N{BLACK LEFT-POINTING TRIANGLE}", "start")
        if left
        else ("\N{BLACK RIGHT-POINTING TRIANGLE}", "end")
    )
    return el("text", sign, class_="dot off", x="0%" if left else "100%", y=_MIDDLE + 4, text_anchor=anchor)


def strip_axis(axis: Axis, *, signed: bool = False) -> Html:
    """Return the scale above a column of strips."""
    ticks = next((found for most in (4, 5, 6, 8) if len(found := axis.ticks(most)) > 1), axis.ticks(8))
    return el(
        "svg",
        [_x_label(axis, tick, 14, number_text(tick, signed=signed)) for tick in ticks],
        class_="scale",
        width="100%",
        height=18,
        aria_hidden="true",
        focusable="false",
    )


@dataclass(frozen=True)
class Line:
    """A line through points; None breaks it. `kind` is its CSS class."""

    x: Sequence[float]
    y: Sequence[float | None]
    kind: str = "main"
    name: str = ""


@dataclass(frozen=True)
class Point:
    """A dot with an optional interval, and what to say when it is pointed at."""

    x: float
    y: float
    interval: tuple[float, float] | None = None
    tip: str = ""


@dataclass(frozen=True)
class Plot:
    """A frame with lines and points, `height` pixels high and as wide as it may be."""

    label: str
    x: Axis
    y: Axis
    x_title: str
    height: int = 220
    lines: Sequence[Line] = ()
    points: Sequence[Point] = ()
    tips: Sequence[tuple[float, str]] = ()
    levels: Sequence[tuple[float, str]] = ()
    area: bool = False
    identifier: str | None = field(default=None)

    def html(self) -> Html:
        """Return the plot: a scale at the left, the area, and a title below the x axis."""
        return el(
            "div",
            el("div", self._scale(), self._area(), class_="frame"),
            el("div", self.x_title, class_="x-title", aria_hidden="true"),
            class_="plot",
            role="group",
            aria_label=self.label,
            id=self.identifier,
        )

    def _inner(self) -> int:
        return self.height - 24

    def _row(self, value: float) -> float:
        return round((1.0 - self.y.share(value)) * (self._inner() - 12) + 6, 2)

    def _scale(self) -> Html:
        labels = [
            el("text", number_text(tick), x="100%", y=self._row(tick) + 4, text_anchor="end")
            for tick in self.y.ticks(5)
        ]
        return el("svg", labels, class_="y-scale", width=46, height=self.height, aria_hidden="true")

    def _area(self) -> Html:
        grid = [
            el("line", class_="grid", x1=0, x2="100%", y1=self._row(tick), y2=self._row(tick))
            for tick in self.y.ticks(5)
        ]
        levels = [
            [
                el("line", class_="level", x1=0, x2="100%", y1=self._row(level), y2=self._row(level)),
                el("text", words, class_="level-label", x="100%", y=self._row(level) - 5, text_anchor="end"),
            ]
            for level, words in self.levels
        ]
        labels = [_x_label(self.x, tick, self.height - 6, number_text(tick)) for tick in self.x.ticks(4)]
        return el(
            "svg",
            grid,
            self._stretched(),
            levels,
            [self._point(point) for point in self.points],
            self._columns(),
            labels,
            class_="area",
            width="100%",
            height=self.height,
            role="img",
            aria_label=self.label,
        )

    def _stretched(self) -> Html:
        """Return the lines, in a box of 1000 by 1000 that is stretched to the frame."""
        drawn = []
        for line in self.lines:
            for run in _runs(line):
                path = " ".join(f"{1000 * self.x.share(x):.1f},{self._fraction(y):.1f}" for x, y in run)
                if self.area:
                    first, last = (f"{1000 * self.x.share(run[i][0]):.1f}" for i in (0, -1))
                    drawn.append(el("polygon", class_="fill", points=f"{first},1000 {path} {last},1000"))
                drawn.append(
                    el("polyline", class_=f"line {line.kind}", points=path, data_name=line.name or None)
                )
        return el(
            "svg",
            drawn,
            viewBox="0 0 1000 1000",
            preserveAspectRatio="none",
            width="100%",
            height=self._inner(),
            class_="stretched",
        )

    def _fraction(self, value: float) -> float:
        return 1000 * self._row(value) / self._inner()

    def _point(self, point: Point) -> Html:
        x = self.x.percent(point.x)
        whisker = None
        if point.interval is not None:
            low, high = (self._row(end) for end in point.interval)
            whisker = el("line", class_="whisker", x1=x, x2=x, y1=low, y2=high)
        dot = el("circle", class_="dot", cx=x, cy=self._row(point.y), r=4)
        return el("g", el("title", point.tip), whisker, dot, class_="mark")

    def _columns(self) -> list[Html]:
        """Return invisible columns to point at, one for each tip, from half-way to half-way."""
        places = [self.x.share(x) for x, _ in self.tips]
        found = []
        for i, (_, words) in enumerate(self.tips):
            left = (places[i - 1] + places[i]) / 2 if i else 0.0
            right = (places[i] + places[i + 1]) / 2 if i + 1 < len(places) else 1.0
            found.append(
                el(
                    "rect",
                    el("title", words),
                    class_="column",
                    x=f"{100 * left:.3f}%",
                    y=0,
                    width=f"{100 * max(right - left, 0):.3f}%",
                    height=self._inner(),
                )
            )
        return found


def number_text(number: float, *, signed: bool = False) -> str:
    """Return a tick's number, short, with a true minus sign.

    >>> number_text(-0.05), number_text(0.1, signed=True), number_text(20000.0)
    ('−0.05', '+0.1', '20,000')
    """
    if abs(number) >= 10_000:
        text = f"{number:,.0f}"
    else:
        text = f"{number:+.4g}" if signed and number > 0 else f"{number:.4g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _x_label(axis: Axis, tick: float, y: float, words: str) -> Html:
    share = axis.share(tick)
    anchor = "start" if share < 0.08 else "end" if share > 0.92 else "middle"
    return el("text", words, x=f"{100 * share:.3f}%", y=y, text_anchor=anchor)


def _runs(line: Line) -> list[list[tuple[float, float]]]:
    """Return the stretches of a line between its gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if len(run) > 1]
