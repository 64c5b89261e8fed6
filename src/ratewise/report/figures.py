"""The figures of a report for papers: matplotlib axes, one function each. Needs ``ratewise[report]``.

Every function takes the content and an axes (None makes a figure), draws, and returns the axes. Nothing is
computed here: what is drawn is what the page shows.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ratewise import _validate
from ratewise.exceptions import InvalidInput
from ratewise.report.content import HELD, MEASURES, MISSED, UNCLEAR, Content, Grouping, Share
from ratewise.whole_files import Path, write_whole

FORMATS = ("png", "svg", "pdf")
MOST_ROWS = 40

_MODEL, _REFERENCE, _BEHIND = "#0072b2", "#6b747d", "#c3c9cf"
_STATE = {HELD: _MODEL, MISSED: "#d55e00", UNCLEAR: _REFERENCE}
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_MARKERS = "osD^v<>PX*"


def draw(name: str, content: Content, ax: Any = None, **choices: Any) -> Any:
    """Draw one figure by name; say what is missing if there is nothing to draw."""
    function, ready, missing = _FIGURES[name]
    if not ready(content):
        raise InvalidInput(f"there is no figure {name!r} in this report: {missing}")
    return function(content, _axes() if ax is None else ax, **choices)


def draw_all(content: Content) -> dict[str, Any]:
    """Draw every figure there is something to draw for."""
    return {name: draw(name, content) for name, (_, ready, _) in _FIGURES.items() if ready(content)}


def save_all(content: Content, folder: Path, format: str) -> list[str]:
    """Write every figure into a folder and return the paths."""
    kind = _validate.one_of(FORMATS, format=format)
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, ax in draw_all(content).items():
        buffer = io.BytesIO()
        ax.figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=200)
        paths.append(os.path.join(folder, f"{name}.{kind}"))
        write_whole(paths[-1], buffer.getvalue())
    return paths


def _axes() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'ratewise[report]'") from None
    # not through pyplot: no global state, no window, nothing to close
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


# ------------------------------------------------------------------------------------------ figures


def _limits(content: Content, ax: Any) -> Any:
    limits = content.by_worst()[:MOST_ROWS]
    places = range(len(limits), 0, -1)
    for place, limit in zip(places, limits, strict=True):
        if limit.gap is None or limit.gap_interval is None:
            continue
        ax.plot(limit.gap_interval, (place, place), color=_STATE[limit.state], linewidth=2, alpha=0.6)
        ax.plot(limit.gap, place, "o", color=_STATE[limit.state])
    ax.axvline(0.0, color=_REFERENCE, linewidth=1)
    _rows(ax, [limit.name for limit in limits])
    ax.set_xlabel("distance from the limit (positive: beyond it)")
    return ax


def _rates(content: Content, ax: Any, *, rate: str = "selection_rate", by: Any = None, k: Any = None) -> Any:
    _validate.one_of(tuple(MEASURES), rate=rate)
    chosen = content.shown_classes[0] if k is None else str(k)
    if chosen not in content.classes:
        raise InvalidInput(f"k must be one of the classes {', '.join(content.classes)}, got {k!r}")
    grouping = _grouping(content, by)
    shares = [(group.name, group.rates[chosen][rate]) for group in grouping.groups]
    _shares(ax, shares, content.everyone.rates[chosen][rate])
    ax.set_xlabel(f"{MEASURES[rate]}, class {chosen}")
    return ax


def _error(content: Content, ax: Any, *, by: Any = None) -> Any:
    grouping = _grouping(content, by)
    shares = [(group.name, _wrong(group.accuracy)) for group in grouping.groups]
    _shares(ax, shares, _wrong(content.everyone.accuracy))
    ax.set_xlabel("share of wrong predictions")
    return ax


def _tradeoff(content: Content, ax: Any) -> Any:
    for place, model in enumerate(content.models):
        right, worst = model.accuracy, model.worst
        if right.value is None or right.low is None or right.high is None or worst is None:
            continue
        color, marker = _HUES[place % len(_HUES)], _MARKERS[place % len(_MARKERS)]
        ends = [[right.value - right.low], [right.high - right.value]]
        ax.errorbar(worst, right.value, ends, fmt=marker, color=color, label=model.name, capsize=3)
    ax.axvline(0.0, color=_REFERENCE, linewidth=1, linestyle="--")
    ax.set_xlabel("worst limit: distance from the bound (positive: beyond it)")
    ax.set_ylabel("accuracy")
    ax.legend(frameon=False, fontsize="small")
    return ax


def _calibration(content: Content, ax: Any) -> Any:
    ax.plot((0, 1), (0, 1), color=_REFERENCE, linewidth=1, linestyle="--")
    for place, each in enumerate(content.calibration[: len(_MARKERS)]):
        x = [b.score for b in each.bins]
        y = [b.observed.value for b in each.bins]
        color = "black" if place == 0 else _HUES[(place - 1) % len(_HUES)]
        ax.plot(x, y, marker=_MARKERS[place], color=color, markersize=4, label=each.group)
    ax.set_xlabel(content.score_words)
    ax.set_ylabel("observed")
    ax.legend(frameon=False, fontsize="small")
    return ax


def _training(content: Content, ax: Any) -> Any:
    training = content.training
    if training is None:  # draw() has checked; for the type checker
        return ax
    if not training.curves:
        ax.plot(training.steps, training.gradient_norm, color=_MODEL)
        ax.set_ylabel("norm of the released gradient")
    for place, curve in reversed(list(enumerate(training.curves))):
        front = {"color": _MODEL, "label": curve.name} if place == 0 else {"color": _BEHIND, "linewidth": 0.8}
        ax.plot(training.steps, curve.excess, **front)
    if training.curves:
        ax.axhline(0.0, color=_REFERENCE, linewidth=1, linestyle="--")
        ax.set_ylabel("distance from the limit, as released")
        ax.legend(frameon=False, fontsize="small")
    ax.set_xlabel("step")
    return ax


def _ledger(content: Content, ax: Any) -> Any:
    spending = content.spending
    if spending is None:
        return ax
    for place, entry in enumerate(spending.entries):
        before, after = entry.before or 0.0, entry.after or 0.0
        color, label = _HUES[place % len(_HUES)], entry.purpose or "release"
        ax.barh(0, after - before, left=before, color=color, label=label, edgecolor="white")
    if spending.cap is not None:
        ax.axvline(spending.cap, color=_REFERENCE, linewidth=1, linestyle="--", label="cap")
    ax.set_yticks([])
    ax.set_ylim(-1.2, 1.6)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"epsilon at delta = {spending.delta:g}, in order of booking")
    ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper left")
    return ax


_Entry = tuple[Callable[..., Any], Callable[[Content], bool], str]
_FIGURES: dict[str, _Entry] = {
    "limits": (_limits, lambda c: bool(c.limits), "no limits were asked for"),
    "rates": (_rates, lambda c: bool(c.groupings), "there are no groups; give sensitive_features"),
    "error": (_error, lambda c: bool(c.groupings), "there are no groups; give sensitive_features"),
    "tradeoff": (
        _tradeoff,
        lambda c: len(c.models) > 1 and bool(c.limits),
        "it needs limits and a model to compare with; give baseline",
    ),
    "calibration": (_calibration, lambda c: bool(c.calibration), "there are no scores; give probabilities"),
    "training": (_training, lambda c: c.training is not None, "nothing is known of the training"),
    "ledger": (
        _ledger,
        lambda c: c.spending is not None and c.spending.total is not None,
        "there is no ledger with a finite epsilon",
    ),
}


# ------------------------------------------------------------------------------------------- pieces


def _grouping(content: Content, by: Any) -> Grouping:
    if by is None:
        return content.groupings[0]
    wanted = (by,) if isinstance(by, str) else tuple(by)
    for grouping in content.groupings:
        if grouping.by == wanted:
            return grouping
    known = ", ".join(" and ".join(grouping.by) for grouping in content.groupings)
    raise InvalidInput(f"by must be one of the groupings of the report ({known}), got {by!r}")


def _wrong(right: Share) -> Share:
    if right.value is None or right.low is None or right.high is None:
        return right
    return Share(1.0 - right.value, 1.0 - right.high, 1.0 - right.low, right.rows)


def _shares(ax: Any, shares: Sequence[tuple[str, Share]], everyone: Share) -> None:
    shown = shares[:MOST_ROWS]
    for place, (_, share) in zip(range(len(shown), 0, -1), shown, strict=True):
        if share.value is not None:
            ax.plot((share.low, share.high), (place, place), color=_MODEL, linewidth=2, alpha=0.6)
            ax.plot(share.value, place, "o", color=_MODEL)
    if everyone.value is not None:
        ax.axvline(everyone.value, color=_REFERENCE, linewidth=1, linestyle="--", label="everyone")
        ax.legend(frameon=False, fontsize="small")
    _rows(ax, [name for name, _ in shown])


def _rows(ax: Any, names: Sequence[str]) -> None:
    # a dollar sign would start a formula
    labels = [textwrap.fill(name.replace("$", r"\$"), 48) for name in names]
    ax.set_yticks(range(len(names), 0, -1), labels, fontsize="small")
    ax.set_ylim(0.4, len(names) + 0.6)
    if len(names) > 12 and ax.figure is not None:
        ax.figure.set_figheight(max(ax.figure.get_figheight(), 0.24 * len(names) + 1.0))
