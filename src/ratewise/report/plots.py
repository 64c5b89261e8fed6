"""Elements of the page, and figures: tables, forests of intervals, and plots.

Plain text can only enter a page as text. A `Forest` or `Plot` describes a figure once: `html` draws it as inline SVG
that needs no script and keeps its text size at every width (marks are placed in percent, lines are stretched), `draw`
with matplotlib, which ``ratewise[report]`` installs.
"""

from __future__ import annotations

import html
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_OPEN = frozenset({"input", "meta", "br", "hr", "wbr"})
_EMPTY = frozenset({"line", "rect", "circle", "polyline", "path", "polygon"})
STRIP_HEIGHT = 24
_MIDDLE = STRIP_HEIGHT / 2
MOST_ROWS = 40
_MODEL, _REFERENCE, _BEHIND = "#0072b2", "#6b747d", "#c3c9cf"
_STATE = {"missed": "#d55e00", "cannot-tell": _REFERENCE}
_HUES = (_MODEL, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
Interval = tuple[float, float]


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


def number_text(number: float, *, signed: bool = False) -> str:
    """Return a tick's number, short, with a true minus sign.

    >>> number_text(-0.05), number_text(0.1, signed=True), number_text(20000.0)
    ('−0.05', '+0.1', '20,000')
    """
    form = ",.0f" if abs(number) >= 10_000 else "+.4g" if signed and number > 0 else ".4g"
    return f"{number:{form}}".replace("-", "\N{MINUS SIGN}")


# --------------------------------------------------------------------------------- axes and strips


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, drawn from 0 to 100 percent."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], *, least: float = 0.02, within: Interval | None = None) -> Axis:
        """Return an axis that holds all values, with some room at both ends that stays `within` a range."""
        found = [value for value in values if math.isfinite(value)]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        room = max(0.06 * (high - low), least / 2)
        least_low, most_high = within or (-math.inf, math.inf)
        return cls(max(low - room, least_low), min(high + room, most_high))

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

    def labels(self, y: float, *, signed: bool = False) -> list[Html]:
        """Return the numbers of a horizontal axis, inside it at both ends."""
        found = []
        for tick in next((ticks for most in (4, 5, 6, 8) if len(ticks := self.ticks(most)) > 1), self.ticks(8)):
            share = self.share(tick)
            anchor = "start" if share < 0.08 else "end" if share > 0.92 else "middle"
            found.append(el("text", number_text(tick, signed=signed), x=self.percent(tick), y=y, text_anchor=anchor))
        return found


UNIT = Axis(0.0, 1.0)


def strip(
    axis: Axis,
    value: float | None,
    interval: Interval | None = None,
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


def _hidden_svg(parts: Iterable[Html], kind: str, height: int) -> Html:
    """Return a picture that screen readers pass over: its numbers stand beside it."""
    return el("svg", parts, class_=kind, width="100%", height=height, aria_hidden="true", focusable="false")


# ------------------------------------------------------------------------------------------- tables


class Column(NamedTuple):
    """A column of a table: `text` is what the model card has of a row, `shown` what the page has, if that differs.

    The head of pictures is their axis. They are on the page only, and so is a column without `text`.
    """

    head: str | Axis
    kind: str
    text: Callable[[Any], Any] | None = None
    shown: Callable[[Any], Any] | None = None


# roles are written out because narrow screens lay rows out as blocks, which would hide them
def table(
    figure: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Any],
    kind: str = "forest panel",
    *,
    visible: bool = True,
    scales: str = "",
    signed: bool = False,
    attributes: Callable[[Any], Mapping[str, Any]] = lambda _: {},
) -> Html:
    """Return a table of the page, with row headers in the first column; `scales` is the name of all axes."""

    def head(column: Column) -> Html:
        words: Any = column.head
        if isinstance(words, Axis):
            title = el("span", scales, class_="scale-title") if scales else el("span", "Picture", class_="sr")
            words = [title, _hidden_svg(words.labels(14, signed=signed), "scale", 18)]
        return el("th", words, scope="col", class_=column.kind, role="columnheader")

    def cell(column: Column, row: Any) -> Html:
        words: Any = (column.shown or column.text or str)(row)
        if column is columns[0]:
            if type(words) is str:  # may be broken after an equals sign, so that no word is
                first, *rest = words.split("=")
                words = [first, *(["=", el("wbr"), part] for part in rest)]
            return el("th", words, scope="row", class_=column.kind, role="rowheader")
        label = column.head if isinstance(column.head, str) and column.kind != "result" else None
        return el("td", words, class_=column.kind, role="cell", data_label=label)  # narrow screens show the label

    body = [el("tr", [cell(column, row) for column in columns], role="row", **attributes(row)) for row in rows]
    return el(
        "table",
        el("caption", caption, class_=None if visible else "sr"),
        el("thead", el("tr", [head(column) for column in columns], role="row"), role="rowgroup"),
        el("tbody", body, role="rowgroup"),
        class_=kind,
        role="table",
        data_figure=figure,
    )


# -------------------------------------------------------------------------------------------- plots


class Mark(NamedTuple):
    """A row of a forest: `kind` is the CSS class of its state, `words` its number as text."""

    name: str
    value: float | None
    interval: Interval | None = None
    words: Any = ""
    tip: str = ""
    kind: str = "model"


@dataclass(frozen=True)
class Forest:
    """Rows of a name, a number and an interval on one axis, with a line through all of them."""

    title: str
    axis: Axis
    rows: Sequence[Mark]
    heads: tuple[str, str] = ("Group", "Rate")
    line: float | None = None
    line_name: str = ""
    signed: bool = False

    def html(self, figure: str, *, visible: bool = True) -> Html:
        """Return a table of names, numbers and strips."""
        columns = (
            Column(self.heads[0], "name", lambda row: row.name),
            Column(self.heads[1], "number", lambda row: row.words),
            Column(self.axis, "picture", shown=lambda row: strip(
                self.axis, row.value, row.interval, state=row.kind, zero=self.line, tip=row.tip
            )),
        )  # fmt: skip
        options: dict[str, Any] = {"visible": visible, "signed": self.signed}
        return table(figure, self.title, columns, self.rows, attributes=lambda row: {"class_": row.kind}, **options)

    def draw(self, ax: Any) -> Any:
        """Draw the first rows on matplotlib axes and return them."""
        shown = self.rows[:MOST_ROWS]
        places = range(len(shown), 0, -1)
        for place, row in zip(places, shown, strict=True):
            color = _STATE.get(row.kind, _MODEL)
            if row.interval is not None:
                ax.plot(row.interval, (place, place), color=color, linewidth=2, alpha=0.6)
            if row.value is not None:
                ax.plot(row.value, place, "o", color=color)
        if self.line is not None:
            ax.axvline(self.line, color=_REFERENCE, linewidth=1, linestyle="--", label=self.line_name or None)
        if self.line_name:
            ax.legend(frameon=False, fontsize="small")
        ax.set_yticks(places, [textwrap.fill(_words(row.name), 48) for row in shown], fontsize="small")
        ax.set_ylim(0.4, len(shown) + 0.6)
        if len(shown) > 12 and ax.figure is not None:
            ax.figure.set_figheight(max(ax.figure.get_figheight(), 0.24 * len(shown) + 1.0))
        ax.set_xlabel(textwrap.fill(_words(self.title), 60))
        return ax


class Line(NamedTuple):
    """A line through points; None breaks it. `kind` is its CSS class: main, behind or reference."""

    x: Sequence[float]
    y: Sequence[float | None]
    kind: str = "main"
    name: str = ""


class Point(NamedTuple):
    """A dot with an optional interval, what to say when it is pointed at, and its name in a legend."""

    x: float
    y: float
    interval: Interval | None = None
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
    band: Sequence[tuple[float, float, float]] = ()

    def draw(self, ax: Any) -> Any:
        """Draw the plot on matplotlib axes and return them."""
        if self.band:
            ax.fill_between(*zip(*self.band, strict=True), color=_MODEL, alpha=0.25, linewidth=0)
        hues = itertools.cycle(_HUES)
        for line in self.lines:
            color = {"reference": _REFERENCE, "behind": _BEHIND}.get(line.kind) or next(hues)
            style = "--" if line.kind == "reference" else "-"
            name = _words(line.name) if line.kind == "main" and line.name else "_nolegend_"
            ax.plot(line.x, [math.nan if y is None else y for y in line.y], color=color, label=name, linestyle=style)
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

    def html(self, figure: str) -> Html:
        """Return the plot: a scale at the left, the area, and a title below the x axis."""
        ticks = self.y.ticks(5)
        scale = [el("text", number_text(tick), x="100%", y=self._row(tick) + 4, text_anchor="end") for tick in ticks]
        levels = []
        for level, words in self.levels:
            where = {"x": "100%", "y": self._row(level) - 5, "text_anchor": "end"}
            levels += [self._across(level, "level"), el("text", words, class_="level-label", **where)]
        area = [
            [self._across(tick, "grid") for tick in ticks],
            self._stretched(),
            levels,
            [self._point(point) for point in self.points],
            self._columns(),
            self.x.labels(self.height - 6),
        ]
        size: dict[str, Any] = {"width": "100%", "height": self.height, "role": "img", "aria_label": self.label}
        left = el("svg", scale, class_="y-scale", width=46, height=self.height, aria_hidden="true")
        below = el("div", self.x_title, class_="x-title", aria_hidden="true")
        frame = el("div", left, el("svg", area, class_="area", **size), class_="frame")
        return el("div", frame, below, class_="plot", role="group", aria_label=self.label, id=figure or None)

    @property
    def _inner(self) -> int:
        return self.height - 24

    def _row(self, value: float) -> float:
        return round((1.0 - self.y.share(value)) * (self._inner - 12) + 6, 2)

    def _across(self, value: float, kind: str) -> Html:
        return el("line", class_=kind, x1=0, x2="100%", y1=self._row(value), y2=self._row(value))

    def _stretched(self) -> Html:
        """Return the lines, in a box of 1000 by 1000 that is stretched to the frame."""

        def path(points: Iterable[tuple[float, Any]]) -> str:
            places = ((1000 * self.x.share(x), 1000 * self._row(y) / self._inner) for x, y in points)
            return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

        drawn = []
        if self.band:
            around = [(x, high) for x, _, high in self.band] + [(x, low) for x, low, _ in reversed(self.band)]
            drawn.append(el("polygon", class_="band", points=path(around)))
        for line in self.lines:
            places = zip(line.x, line.y, strict=True)
            runs = [[*run] for there, run in itertools.groupby(places, lambda place: place[1] is not None) if there]
            for run in (run for run in runs if len(run) > 1):  # the stretches between the gaps
                kind, name = f"line {line.kind}", line.name or None
                drawn.append(el("polyline", class_=kind, points=path(run), data_name=name))
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
            found.append(el("rect", el("title", words), class_="column", x=x, y=0, width=width, height=self._inner))
        return found


def new_axes(shown: bool = False) -> Any:
    """Return axes of a new figure: of pyplot if it is `shown`, as in notebooks; others have nothing to close."""
    try:
        if shown:
            from matplotlib import pyplot

            return pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")[1]
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'ratewise[report]'") from None
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def _words(text: str) -> str:
    return text.replace("$", r"\$")  # a dollar sign would start a formula
