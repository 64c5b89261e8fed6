"""Elements of the page and its pictures: escaped HTML, strips in tables, forests of intervals, and plots.

Plain text can only enter a page as text. Pictures are inline SVG that needs no script and keeps its text
size at every width: marks are placed in percent, lines are stretched. With ``ratewise[report]``, matplotlib
draws the same `Plot` and `Forest`.
"""

from __future__ import annotations

import html
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_OPEN = frozenset({"input", "meta", "br", "hr", "wbr"})
_EMPTY = frozenset({"line", "rect", "circle", "polyline", "path", "polygon"})
STRIP_HEIGHT = 24
_MIDDLE = STRIP_HEIGHT / 2
MOST_ROWS = 40
_MODEL, _REFERENCE, _BEHIND = "#0072b2", "#6b747d", "#c3c9cf"
_STATE = {"held": _MODEL, "missed": "#d55e00", "cannot tell": _REFERENCE}
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


# ----------------------------------------------------------------------------------------- elements


class Html(str):
    """Markup that is safe to put into a page as it is; made by `el` and `join` only."""

    __slots__ = ()


def el(name: str, *children: Any, **attributes: Any) -> Html:
    """Return an element.

    Children are elements, plain text (which is escaped), iterables of both, or None. Attributes that are None
    or False are left out; ``class_`` and ``aria_label`` mean ``class`` and ``aria-label``.

    >>> el("p", "a < b ", el("b", "& c"), title='say "so"')
    '<p title="say &quot;so&quot;">a &lt; b <b>&amp; c</b></p>'
    """
    head = name
    for key, value in attributes.items():
        if value is not None and value is not False:
            head += " " + key.rstrip("_").replace("_", "-")
            head += "" if value is True else f'="{html.escape(str(value))}"'
    if not children and name in _OPEN | _EMPTY:
        return Html(f"<{head}>" if name in _OPEN else f"<{head}/>")
    return Html(f"<{head}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Return children one after the other, text escaped."""
    return Html("".join(_child(child) for child in children))


def _child(child: Any) -> str:
    if isinstance(child, str):
        return child if isinstance(child, Html) else html.escape(child)
    return "" if child is None else join(child)


# --------------------------------------------------------------------------------- axes and strips


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, drawn from 0 to 100 percent."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], *, least: float = 0.02) -> Axis:
        """Return an axis that holds all values, with some room at both ends."""
        found = [value for value in values if math.isfinite(value)]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        room = max(0.06 * (high - low), least / 2)
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

    def labels(self, ticks: Iterable[float], y: float, *, signed: bool = False) -> list[Html]:
        """Return the numbers of ticks of a horizontal axis, inside it at both ends."""
        found = []
        for tick in ticks:
            share = self.share(tick)
            anchor = "start" if share < 0.08 else "end" if share > 0.92 else "middle"
            words = number_text(tick, signed=signed)
            found.append(el("text", words, x=self.percent(tick), y=y, text_anchor=anchor))
        return found


UNIT = Axis(0.0, 1.0)


def strip(
    axis: Axis,
    value: float | None,
    interval: tuple[float, float] | None = None,
    *,
    state: str = "model",
    zero: float | None = None,
    beyond: bool = False,
    other: float | None = None,
    tip: str = "",
) -> Html:
    """Return one row of a forest plot: interval, dot, a reference line and, hollow, another model."""
    parts = [el("title", tip)] if tip else []
    if zero is not None:
        x = axis.percent(zero)
        if beyond:
            parts.append(el("rect", class_="beyond", x=x, y=0, width="100%", height=STRIP_HEIGHT))
        parts.append(el("line", class_="zero", x1=x, x2=x, y1=0, y2=STRIP_HEIGHT))
    if interval is not None:
        low, high = map(axis.percent, interval)
        parts.append(el("line", class_="whisker", y1=_MIDDLE, y2=_MIDDLE, x1=low, x2=high))
    if other is not None:
        parts.append(el("circle", class_="other", cx=axis.percent(other), cy=_MIDDLE, r=4))
    if value is not None and axis.holds(value):
        parts.append(el("circle", class_="dot", cx=axis.percent(value), cy=_MIDDLE, r=5))
    elif value is not None:  # off the scale: an arrow at the edge
        sign, x, anchor = ("◀", "0%", "start") if value < axis.low else ("▶", "100%", "end")
        parts.append(el("text", sign, class_="dot off", y=_MIDDLE + 4, x=x, text_anchor=anchor))
    return _hidden_svg(parts, f"strip {state}", STRIP_HEIGHT)


def strip_axis(axis: Axis, *, signed: bool = False) -> Html:
    """Return the scale above a column of strips."""
    ticks = next((found for most in (4, 5, 6, 8) if len(found := axis.ticks(most)) > 1), axis.ticks(8))
    return _hidden_svg(axis.labels(ticks, 14, signed=signed), "scale", 18)


def _hidden_svg(parts: Iterable[Html], kind: str, height: int) -> Html:
    """Return a picture that screen readers pass over: its numbers stand beside it."""
    return el("svg", parts, class_=kind, width="100%", height=height, aria_hidden="true", focusable="false")


def number_text(number: float, *, signed: bool = False) -> str:
    """Return a tick's number, short, with a true minus sign.

    >>> number_text(-0.05), number_text(0.1, signed=True), number_text(20000.0)
    ('−0.05', '+0.1', '20,000')
    """
    form = ",.0f" if abs(number) >= 10_000 else "+.4g" if signed and number > 0 else ".4g"
    return f"{number:{form}}".replace("-", "\N{MINUS SIGN}")


# -------------------------------------------------------------------------------------------- plots


@dataclass(frozen=True)
class Line:
    """A line through points; None breaks it. `kind` is its CSS class."""

    x: Sequence[float]
    y: Sequence[float | None]
    kind: str = "main"
    name: str = ""

    def runs(self) -> list[list[tuple[float, float]]]:
        """Return the stretches between the gaps."""
        runs: list[list[tuple[float, float]]] = [[]]
        for x, y in zip(self.x, self.y, strict=True):
            if y is None:
                runs.append([])
            else:
                runs[-1].append((x, y))
        return [run for run in runs if len(run) > 1]


@dataclass(frozen=True)
class Point:
    """A dot with an optional interval, what to say when it is pointed at, and its name in a legend."""

    x: float
    y: float
    interval: tuple[float, float] | None = None
    tip: str = ""
    name: str = ""


@dataclass(frozen=True)
class Plot:
    """A frame with lines and points, `height` pixels high and as wide as it may be.

    `tips` are places and words to point at, `levels` horizontal lines with names, `band` has (x, low, high).
    """

    label: str
    x: Axis
    y: Axis
    x_title: str
    y_title: str = ""
    height: int = 220
    lines: Sequence[Line] = ()
    points: Sequence[Point] = ()
    tips: Sequence[tuple[float, str]] = ()
    levels: Sequence[tuple[float, str]] = ()
    area: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    identifier: str | None = None

    def draw(self, ax: Any) -> Any:
        """Draw the plot on matplotlib axes and return them."""
        if self.band:
            x, low, high = zip(*self.band, strict=True)
            ax.fill_between(x, low, high, color=_MODEL, alpha=0.25, linewidth=0)
        hues = itertools.cycle(_HUES)
        for line in self.lines:
            color = {"reference": _REFERENCE, "behind": _BEHIND}.get(line.kind) or next(hues)
            style = "--" if line.kind == "reference" else "-"
            name = _words(line.name) if line.kind == "main" and line.name else "_nolegend_"
            y = [math.nan if y is None else y for y in line.y]
            ax.plot(line.x, y, color=color, label=name, linestyle=style)
        for place, point in enumerate(self.points):
            ends = None if point.interval is None else [[abs(end - point.y)] for end in point.interval]
            color = _HUES[place % len(_HUES)] if point.name else _MODEL
            name = _words(point.name) or "_nolegend_"
            ax.errorbar(point.x, point.y, ends, fmt="o", color=color, label=name, capsize=3, markersize=4)
        for level, words in self.levels:
            ax.axhline(level, color=_REFERENCE, linewidth=1, linestyle="--", label=words)
        ax.set_xlabel(_words(self.x_title))
        ax.set_ylabel(self.y_title)
        if any(not name.startswith("_") for name in ax.get_legend_handles_labels()[1]):
            ax.legend(frameon=False, fontsize="small")
        return ax

    def html(self) -> Html:
        """Return the plot: a scale at the left, the area, and a title below the x axis."""
        ticks = self.y.ticks(5)
        scale = [el("text", number_text(tick), x="100%", y=self._row(tick) + 4, text_anchor="end") for tick in ticks]
        levels = []
        for level, words in self.levels:
            y = self._row(level) - 5
            label = el("text", words, class_="level-label", x="100%", y=y, text_anchor="end")
            levels += [self._across(level, "level"), label]
        area = el(
            "svg",
            [self._across(tick, "grid") for tick in ticks],
            self._stretched(),
            levels,
            [self._point(point) for point in self.points],
            self._columns(),
            self.x.labels(self.x.ticks(4), self.height - 6),
            class_="area",
            width="100%",
            height=self.height,
            role="img",
            aria_label=self.label,
        )
        left = el("svg", scale, class_="y-scale", width=46, height=self.height, aria_hidden="true")
        below = el("div", self.x_title, class_="x-title", aria_hidden="true")
        frame = el("div", left, area, class_="frame")
        return el("div", frame, below, class_="plot", role="group", aria_label=self.label, id=self.identifier)

    @property
    def _inner(self) -> int:
        return self.height - 24

    def _row(self, value: float) -> float:
        return round((1.0 - self.y.share(value)) * (self._inner - 12) + 6, 2)

    def _across(self, value: float, kind: str) -> Html:
        return el("line", class_=kind, x1=0, x2="100%", y1=self._row(value), y2=self._row(value))

    def _stretched(self) -> Html:
        """Return the lines, in a box of 1000 by 1000 that is stretched to the frame."""

        def path(points: Iterable[tuple[float, float]]) -> str:
            places = ((1000 * self.x.share(x), 1000 * self._row(y) / self._inner) for x, y in points)
            return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

        drawn = []
        if self.band:
            around = [(x, high) for x, _, high in self.band] + [(x, low) for x, low, _ in reversed(self.band)]
            drawn.append(el("polygon", class_="band", points=path(around)))
        for line in self.lines:
            for run in line.runs():
                points = path(run)
                if self.area:
                    first, last = (f"{1000 * self.x.share(x):.1f}" for x, _ in (run[0], run[-1]))
                    drawn.append(el("polygon", class_="fill", points=f"{first},1000 {points} {last},1000"))
                kind, name = f"line {line.kind}", line.name or None
                drawn.append(el("polyline", class_=kind, points=points, data_name=name))
        size: dict[str, Any] = {"width": "100%", "height": self._inner, "class_": "stretched"}
        return el("svg", drawn, viewBox="0 0 1000 1000", preserveAspectRatio="none", **size)

    def _point(self, point: Point) -> Html:
        x, whisker = self.x.percent(point.x), None
        if point.interval is not None:
            low, high = map(self._row, point.interval)
            whisker = el("line", class_="whisker", x1=x, x2=x, y1=low, y2=high)
        dot = el("circle", class_="dot", cx=x, cy=self._row(point.y), r=4)
        return el("g", el("title", point.tip), whisker, dot, class_="mark")

    def _columns(self) -> list[Html]:
        """Return invisible columns to point at, one for each tip, from half-way to half-way."""
        places = [self.x.share(x) for x, _ in self.tips]
        between = [(a + b) / 2 for a, b in itertools.pairwise(places)]
        found = []
        for left, right, (_, words) in zip([0.0, *between], [*between, 1.0], self.tips, strict=False):
            x, width = f"{100 * left:.3f}%", f"{100 * max(right - left, 0):.3f}%"
            title = el("title", words)
            found.append(el("rect", title, class_="column", x=x, y=0, width=width, height=self._inner))
        return found


@dataclass(frozen=True)
class Forest:
    """Rows of a name, a value, an interval and a state ("" for none), drawn by matplotlib."""

    x_title: str
    rows: Sequence[tuple[str, float | None, tuple[float, float] | None, str]]
    line: float | None = 0.0
    line_name: str = ""

    def draw(self, ax: Any) -> Any:
        """Draw the first rows on matplotlib axes and return them."""
        shown = self.rows[:MOST_ROWS]
        places = range(len(shown), 0, -1)
        for place, (_, value, interval, state) in zip(places, shown, strict=True):
            color = _STATE.get(state, _MODEL)
            if interval is not None:
                ax.plot(interval, (place, place), color=color, linewidth=2, alpha=0.6)
            if value is not None:
                ax.plot(value, place, "o", color=color)
        if self.line is not None:
            ax.axvline(self.line, color=_REFERENCE, linewidth=1, linestyle="--", label=self.line_name or None)
        if self.line_name:
            ax.legend(frameon=False, fontsize="small")
        ax.set_yticks(places, [textwrap.fill(_words(name), 48) for name, *_ in shown], fontsize="small")
        ax.set_ylim(0.4, len(shown) + 0.6)
        if len(shown) > 12 and ax.figure is not None:
            ax.figure.set_figheight(max(ax.figure.get_figheight(), 0.24 * len(shown) + 1.0))
        ax.set_xlabel(_words(self.x_title))
        return ax


def new_axes() -> Any:
    """Return axes of a new figure, not through pyplot: there is no window and nothing to close."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'ratewise[report]'") from None
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def _words(text: str) -> str:
    return text.replace("$", r"\$")  # a dollar sign would start a formula
