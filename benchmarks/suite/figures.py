"""Figures from result lines: one colour and mark for a method everywhere (most are Okabe and Ito's).

Intervals are 95% intervals of means over splits. Points that others published are open and grey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.suite.config import Experiment, experiment, names
from benchmarks.suite.methods import METHODS
from benchmarks.suite.methods.base import ROW
from benchmarks.suite.store import ROOT
from benchmarks.suite.summary import Curve, curves, front, published, records

mpl.use("Agg")
import matplotlib.pyplot as plt

# colour, mark, line
STYLE = {
    "ours": ("#0072B2", "o", "-"),
    "raco_100": ("#D55E00", "s", "-"),
    "raco_1000": ("#E69F00", "D", "-"),
    "fermi": ("#009E73", "^", "-"),
    "fermi_published": ("#009E73", "v", ":"),
    "mitigation": ("#CC79A7", "P", "-"),
    "pfld": ("#56B4E9", "X", ":"),
    "jagielski_post": ("#8C6D1F", "<", ":"),
    "jagielski_reductions": ("#B8A038", ">", ":"),
    "dp_sgd": ("#0072B2", "*", ""),
    "sgda": ("#000000", ".", "--"),
    "sgd": ("#000000", "*", ""),
    "fairlearn": ("#777777", "d", "--"),
    "xgboost": ("#777777", "X", ""),
}
VARIANTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
TITLES = {
    "adult": "Adult",
    "credit_card": "Credit-Card",
    "parkinsons": "Parkinsons",
    "heart": "Heart",
    "acs_employment": "ACSEmployment",
}
MEASURES = {
    "demographic_parity": "largest gap in positive rates",
    "equalized_odds": "largest gap in TPR or FPR",
    "false_negative_rate": "false negative rate",
}
_FAR = 4.0  # interquartile ranges above the third quartile
_RC = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
}


def draw_all(mode: str = "full") -> Iterator[Path]:
    """Draw a figure for every experiment that has results, and yield their paths."""
    for name in names():
        found = experiment(name)
        lines = records(found, mode)
        if lines:
            yield draw(found, lines, folder(mode) / f"{name}.png")


def folder(mode: str) -> Path:
    """Return where figures go: those of full results beside the docs."""
    return ROOT / "docs" / "figures" if mode == "full" else ROOT / ".benchmarks" / "figures"


def draw(found: Experiment, lines: list[dict[str, Any]], path: Path) -> Path:
    """Draw the figure of an experiment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[[Experiment, list[dict[str, Any]]], Any]] = {
        "tradeoff": _tradeoff,
        "requested": _requested,
        "clipping": _clipping,
        "times": _times,
    }
    with mpl.rc_context(_RC):
        figure = kinds[found.figure](found, lines)
        figure.savefig(path)
        plt.close(figure)
    return path


def _tradeoff(found: Experiment, lines: list[dict[str, Any]]) -> Any:
    every = curves(lines)
    datasets = sorted({c.dataset for c in every}, key=list(TITLES).index)
    budgets = sorted({c.epsilon for c in every if c.epsilon is not None})
    figure, axes = plt.subplots(
        len(datasets),
        len(budgets),
        figsize=(3.1 * len(budgets) + 2.6, 3.0 * len(datasets) + 0.4),
        squeeze=False,
        sharex="row",
        sharey="row",
    )
    marks: dict[str, Any] = {}
    for (row, dataset), (column, epsilon) in [
        (a, b) for a in enumerate(datasets) for b in enumerate(budgets)
    ]:
        panel = axes[row][column]
        here = [c for c in every if c.dataset == dataset and c.epsilon in (None, epsilon)]
        _panel(panel, here, found, dataset, epsilon, marks)
        panel.set_title(f"{TITLES[dataset]}, ε = {epsilon:g}", fontsize=10)
        if column == 0:
            panel.set_ylabel(MEASURES[found.constraint])
        if row == len(datasets) - 1:
            panel.set_xlabel("test error")
    for row, dataset in zip(axes, datasets, strict=True):
        row[0].set_ylim(bottom=0.0)
        others = [published(found.name, dataset, epsilon) for epsilon in budgets]
        _cut(row, [c for c in every if c.dataset == dataset], others)
    _legend(figure, marks)
    return figure


def _cut(row: Any, here: list[Curve], others: list[dict[str, np.ndarray]]) -> None:
    """Keep a few points far off from squeezing all others into a corner; the tables have them."""
    points = [p for c in here for p in c.points]
    places = np.array([(p.error, p.violation) for p in points])
    first, third = np.quantile(places, (0.25, 0.75), axis=0)
    far = places > third + _FAR * (third - first)
    shown = places[~far.any(axis=1)]
    if len(shown) == len(places):
        return
    room = 0.15 * np.ptp(shown, axis=0)
    if far[:, 0].any():
        left = min(p.error - p.error_margin for p in points)
        row[0].set_xlim(left - room[0] / 3, shown[:, 0].max() + room[0])
    if far[:, 1].any():
        row[0].set_ylim(top=shown[:, 1].max() + room[1])
    right, top = row[0].get_xlim()[1], row[0].get_ylim()[1]
    known = [point for panel in others for points in panel.values() for point in points]
    outside = sum(x > right or y > top for x, y in known)
    row[-1].annotate(
        f"beyond the edge in this row: {len(places) - len(shown)} measured\npoints (see the tables), "
        f"{outside} published ones", (0.98, 0.97),
        xycoords="axes fraction", ha="right", va="top", fontsize=7, color="#666666",
    )  # fmt: skip


def _panel(
    panel: Any, here: list[Curve], found: Experiment, dataset: str, epsilon: float, marks: dict[str, Any]
) -> None:
    for label, points in published(found.name, dataset, epsilon).items():
        marks.setdefault(
            label,
            panel.plot(
                points[:, 0],
                points[:, 1],
                "o" if label.startswith("RaCO") else "v" if "FERMI" in label else "s",
                mfc="none",
                mec="#999999",
                ms=5,
            )[0],
        )
    variants = sorted({c.variant for c in here})
    for curve in here:
        colour, mark, line = STYLE[curve.method]
        label = METHODS[curve.method].label
        if len(variants) > 1:
            colour, label = VARIANTS[variants.index(curve.variant)], curve.variant
        points = sorted(curve.points, key=lambda p: (p.knob is None, p.knob))
        drawn = panel.errorbar(
            [p.error for p in points],
            [p.violation for p in points],
            xerr=[p.error_margin for p in points],
            yerr=[p.violation_margin for p in points],
            fmt=mark + line,
            color=colour,
            ms=9 if mark == "*" else 5,
            lw=2.0 if curve.method == "ours" else 1.0,
            elinewidth=0.8,
            zorder=5 if curve.method == "ours" else 3,
        )
        marks.setdefault(label, drawn)
    if found.name != "fermi-curves":
        _fronts(panel, here, marks)


def _fronts(panel: Any, here: list[Curve], marks: dict[str, Any]) -> None:
    """Draw our front, and that of all peers that protect whole rows together, as steps."""
    own = [c for c in here if c.method in ("ours", "dp_sgd")]
    peers = [c for c in here if METHODS[c.method].protects == ROW and c.method not in ("ours", "dp_sgd")]
    for side, colour, label in (
        (own, "#0072B2", "front of ratewise"),
        (peers, "#555555", "front of the private peers"),
    ):
        points = front([(p.violation, p.error) for c in side for p in c.points])
        if len(points):
            drawn = panel.step(
                points[:, 1], points[:, 0], where="pre", color=colour, lw=5, alpha=0.18, zorder=1
            )
            marks.setdefault(label, drawn[0])


def _requested(found: Experiment, lines: list[dict[str, Any]]) -> Any:
    every = curves(lines)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    marks: dict[str, Any] = {}
    variants = sorted({c.variant for c in every})
    top = max(p.knob for c in every for p in c.points if p.knob is not None)
    marks["reached = requested"] = left.plot([0, top], [0, top], color="#999999", lw=1, ls="--")[0]
    for curve in every:
        colour, mark, line = STYLE[curve.method]
        label = METHODS[curve.method].label
        if len(variants) > 1:
            place = variants.index(curve.variant)
            colour, mark, label = VARIANTS[place], "osD^"[place], curve.variant
        points = sorted((p for p in curve.points if p.knob is not None), key=lambda p: p.knob)
        knobs = [p.knob for p in points]
        look = {"fmt": mark + line, "color": colour, "ms": 5, "lw": 1.4, "elinewidth": 0.8}
        marks.setdefault(
            label,
            left.errorbar(
                knobs, [p.violation for p in points], yerr=[p.violation_margin for p in points], **look
            ),
        )
        right.errorbar(knobs, [p.error for p in points], yerr=[p.error_margin for p in points], **look)
    left.set_ylabel("gap reached on test rows")
    right.set_ylabel("test error")
    for panel in (left, right):
        panel.set_xlabel("gap requested")
    epsilon = found.curves[0]["epsilons"][0]
    left.set_title(f"{TITLES[every[0].dataset]}, ε = {epsilon:g}")
    _legend(figure, marks)
    return figure


def _clipping(found: Experiment, lines: list[dict[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    marks: dict[str, Any] = {}
    for place, curve in enumerate(sorted(curves(lines), key=lambda c: c.variant)):
        points = sorted(curve.points, key=lambda p: p.settings["clip"])
        clips = [p.settings["clip"] for p in points]
        look = {"fmt": "osD"[place] + "-", "color": VARIANTS[place], "ms": 5, "lw": 1.4, "elinewidth": 0.8}
        left.errorbar(clips, [p.violation for p in points], yerr=[p.violation_margin for p in points], **look)
        marks[f"{curve.variant} objective"] = right.errorbar(
            clips, [p.error for p in points], yerr=[p.error_margin for p in points], **look
        )
    left.set_ylabel("false negative rate reached, 0 requested")
    right.set_ylabel("test error")
    left.set_ylim(bottom=0.0)
    for panel in (left, right):
        panel.set_xscale("log")
        panel.set_xlabel("clipping norm")
    left.set_title(f"{TITLES[found.curves[0]['datasets'][0]]}, no noise")
    _legend(figure, marks)
    return figure


def _times(found: Experiment, lines: list[dict[str, Any]]) -> Any:
    datasets = sorted({line["dataset"] for line in lines}, key=list(TITLES).index)
    figure, axes = plt.subplots(1, len(datasets), figsize=(4.4 * len(datasets), 2.8), squeeze=False)
    for panel, dataset in zip(axes[0], datasets, strict=True):
        rounds = [line["step_seconds"] for line in lines if line["dataset"] == dataset]
        methods = list(rounds[0])
        values = np.array([[r[m] for m in methods] for r in rounds]) * 1e6
        places = np.arange(len(methods))[::-1]
        panel.barh(places, np.median(values, axis=0), color=[STYLE[m][0] for m in methods], alpha=0.85)
        for place, column in zip(places, values.T, strict=True):
            panel.text(np.median(column), place, f" {np.median(column):.0f}", va="center")
        panel.set_yticks(places, [METHODS[m].label for m in methods])
        panel.set_xlabel("microseconds of one thread per step")
        panel.set_title(f"{TITLES[dataset]}, batch {found.curves[0]['settings']['batch']}")
        panel.set_xlim(right=1.15 * np.median(values, axis=0).max())
        panel.grid(visible=False, axis="y")
    figure.tight_layout()
    return figure


def _legend(figure: Any, marks: dict[str, Any]) -> None:
    figure.tight_layout()
    figure.legend(
        marks.values(), marks.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8
    )
