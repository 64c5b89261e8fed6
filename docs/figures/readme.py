"""Draw the figure of the README from the committed results: ``python docs/figures/readme.py``, or with all pages ``python -m benchmarks page``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib as mpl
import matplotlib.pyplot as plt
from benchmarks.page import summaries
from benchmarks.scoreboard import read

FIGURE = Path(__file__).with_suffix(".svg")
# label, system without a constraint, system with the constraint
_SYSTEMS = (
    ("ratewise", "ours_undeclared", "ours_undeclared"),
    ("DP-EBM, tuned; with private thresholds", "dp_ebm_tuned", "dp_ebm_rule"),
    ("DP-SGD; RaCO-DP", "dp_sgd", "raco"),
    ("AIM and XGBoost; with Fairlearn", "aim", "aim"),
    ("logistic regression; with Fairlearn, not private", "logistic", "fairlearn"),
    ("XGBoost; with Fairlearn, not private", "xgboost", "fairlearn_xgboost"),
)


class Line(NamedTuple):
    """A system on Adult: test error and gap without a constraint, and with a bound of .05 on the gap."""

    label: str
    free: tuple[float, float]
    bound: tuple[float, float]

    @property
    def texts(self) -> tuple[str, ...]:
        """The numbers of the line as they are printed in the figure."""
        return tuple(f"{value:.3f}".replace("0.", ".") for value in (*self.free, *self.bound))


def lines() -> list[Line]:
    """Return what is drawn: the cells of the scoreboard; systems that were not run are left out."""
    found = summaries(read())
    drawn = []
    for label, free, bound in _SYSTEMS:
        cells = found.get(("adult", "none", 1.0, free)), found.get(("adult", "medium parity", 1.0, bound))
        if None not in cells:
            drawn.append(Line(label, *((cell.error, cell.gap) for cell in cells)))
    return drawn


def main() -> None:
    """Write the figure."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ratewise", "font.family": "sans-serif"})
    shown = lines()[::-1]
    figure, axes = plt.subplots(1, 2, figsize=(4.8, 4.4), layout="constrained", sharey=True)
    for place, axis in enumerate(axes):
        for height, line in enumerate(shown):
            color = "#2166ac" if line.label.startswith("ratewise") else "#666666"
            ends = line.free[place], line.bound[place]
            axis.plot(ends, [height, height], color=color, linewidth=1.5)
            for end, face, text in zip(ends, ("white", color), (line.texts[place], line.texts[2 + place]), strict=True):
                axis.plot(end, height, "o", color=color, markerfacecolor=face)
                right = end >= max(ends)
                offset, align = ((7, -3), "left") if right else ((-7, -3), "right")
                axis.annotate(
                    text, (end, height), offset, textcoords="offset points", color=color, ha=align, fontsize=9
                )
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False)
        axis.margins(x=0.3)
        axis.set(yticks=[], ylim=(-0.4, len(shown) - 0.2))
    for height, line in enumerate(shown):
        axes[0].annotate(
            line.label, (0.0, height + 0.3), xycoords=("axes fraction", "data"), annotation_clip=False, fontsize=9
        ).set_in_layout(False)  # it spans both panels
    axes[0].set(xlabel="test error on Adult", xticks=(0.13, 0.15, 0.17))
    axes[1].axvline(0.05, color="black", linewidth=1, linestyle=":")
    axes[1].set(xlabel="gap in positive rates by sex", xlim=(-0.03, 0.25), xticks=(0, 0.1, 0.2))
    axes[1].patch.set_visible(False)  # labels end there
    title = "epsilon 1 or not private; hollow: no constraint, filled: gap at most .05"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.savefig(FIGURE, metadata={"Date": None})
    print(FIGURE)


if __name__ == "__main__":
    main()
