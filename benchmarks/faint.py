"""Limits that noise hides: how hard should the mean of many readings push? Judged on held-out training rows.

    python benchmarks/faint.py run [--workers 2]
    python benchmarks/faint.py page        # docs/small-groups.md and its picture from the recorded runs

Employment, nine races, equal rates. The training part of each split of benchmarks/defaults.py is split again:
85 in 100 rows train, the rest judges; test rows are not read. Runs are lines of
benchmarks/results/faint.jsonl.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from defaults import ROOT, TASKS, defaults, gaps, recorded, run_missing, run_or_page, split, table, usual_plan
from ratewise import evidence

RESULTS = ROOT / "benchmarks" / "results" / "faint.jsonl"
TASK, EPSILONS, SPLITS = "employment-dp", (0.5, 1.0), 10
SMALL = 300  # training rows of a small group, at most; the smallest race (five rows) is left out

# how hard faint limits push, as a share of what the noise of their mean allows
PUSHES: dict[str, float | None] = {
    "one reading at a time, multipliers built up": None,
    "not at all": 0.0,
    "by a tenth (default)": 0.1,
    "by three tenths": 0.3,
    "in full": 1.0,
}


def measure(epsilon: float, slack: float, seed: int, push: str) -> dict[str, Any]:
    """Train on 85 in 100 of the training rows; judge errors on the others, rates of small races on both."""
    data, constraint = table(TASKS[TASK].table), TASKS[TASK].family(slack)
    rows, _ = split(len(data.y), seed)
    edge = int(0.85 * len(rows))
    training, judging = rows[:edge], rows[edge:]
    strength = PUSHES[push]
    usual = usual_plan(constraint, data, len(training)).dual
    changes = {"dual": replace(usual, patience=0)} if strength is None else {}
    model = defaults(constraint, data, epsilon, seed, curves=False, tails=None, **changes)
    with warnings.catch_warnings(), patch.object(evidence, "_GENTLY", strength):
        warnings.simplefilter("ignore")
        model.fit(data.X[training], data.y[training], sensitive_features=data.sensitive.iloc[training])
    predicted, races = model.predict(data.X[training]) == 1, data.sensitive["race"].iloc[training].to_numpy()
    found = {
        race: float(predicted[races == race].mean() - predicted[races != race].mean())
        for race in np.unique(races)
        if 10 < (races == race).sum() <= SMALL
    }
    judged = model.predict(data.X[judging])
    held = gaps("held", constraint, data, judging, judged, set(), slack)["held_all_held"]
    return {
        "epsilon": epsilon, "slack": slack, "seed": seed, "push": push, "held": held,
        "error": float(np.mean(judged != data.y[judging])), "small": found,
    }  # fmt: skip


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("epsilon", "slack", "seed", "push"))


def run(workers: int) -> None:
    done = {key(record) for record in recorded(RESULTS)}
    every = [
        (epsilon, slack, seed, push)
        for epsilon in EPSILONS
        for seed in range(SPLITS)
        for slack in TASKS[TASK].slacks
        for push in PUSHES
    ]
    run_missing(measure, [job for job in every if job not in done], RESULTS, workers)


def row(records: list[dict[str, Any]], epsilon: float, slack: float, push: str) -> str:
    found = [r for r in records if (r["epsilon"], r["slack"], r["push"]) == (epsilon, slack, push)]
    gaps_found = np.array([list(r["small"].values()) for r in found])
    excess = np.maximum(np.abs(gaps_found) - slack, 0.0)
    return (
        f"| {epsilon:g} | {slack:g} | {push} | {np.mean([r['error'] for r in found]):.4f} "
        f"| {gaps_found.mean():+.3f} ± {gaps_found.std():.3f} | {excess.mean():.3f} "
        f"| {np.mean([r['held'] for r in found]):.0%} |"
    )


def picture(records: list[dict[str, Any]], epsilon: float = 1.0) -> None:
    """Draw the gaps of the small races, a dot for each race and run."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TASKS[TASK].slacks), figsize=(11, 3.2), sharey=True)
    shades = np.random.default_rng(0)
    for axis, slack in zip(axes, TASKS[TASK].slacks, strict=True):
        axis.axvspan(-slack, slack, color="#dcebdc")
        for place, push in enumerate(PUSHES):
            wanted = [r for r in records if (r["epsilon"], r["slack"], r["push"]) == (epsilon, slack, push)]
            dots = np.concatenate([list(r["small"].values()) for r in wanted])
            heights = place + shades.uniform(-0.2, 0.2, len(dots))
            axis.scatter(dots, heights, s=14, alpha=0.7, color="#1f4e79", linewidths=0)
            axis.plot([dots.mean()] * 2, [place - 0.35, place + 0.35], color="#c0392b", lw=2)
        axis.set_title(f"slack {slack:g}", fontsize=10)
        axis.set_xlim(-0.45, 0.45)
    axes[0].set_yticks(range(len(PUSHES)), list(PUSHES), fontsize=9)
    axes[0].invert_yaxis()
    figure.supxlabel("rate of a small race less that of all others", fontsize=10)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "figures" / "small-groups.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def page() -> None:
    records = recorded(RESULTS)
    picture(records)
    lines = [_HEAD, *_COLUMNS]
    lines += [
        row(records, e, slack, push) for e in EPSILONS for slack in TASKS[TASK].slacks for push in PUSHES
    ]
    Path(ROOT / "docs" / "small-groups.md").write_text("\n".join(lines) + "\n")


_HEAD = f"""# Groups that noise hides

Written by `python benchmarks/faint.py page` from `benchmarks/results/faint.jsonl`.

At a small budget the rate of a group of a hundred rows can be known to 0.1 or 0.3 at best, however one looks
at it, and a single step says nothing of it. Such limits are named in `doubts_`; what should training do about
them? Readings of single steps pushed too hard: a few rows answer to a multiplier many times as strongly as
many rows do. And put back into [0, 1], as they were, noisy rates have a mean near one half whatever the rate,
so that groups were pushed away from it. By default the mean of many readings pushes now, gently
(`ratewise.evidence`).

Employment, nine races, equal rates, linear scores (`curves=False`, `tails=None`); three races of 60 to 200
training rows are small. Everything was measured on training rows: 85 in 100 train, the others judge. "Gap":
of the small races' rates, on rows trained on, mean and deviation over races and runs. "Beyond": by how much
such gaps exceed the slack, in the mean. "All held": runs in which every limit on any race is within 0.01 and
1.96 of its own standard errors on rows held out.
{SPLITS} splits; shares of ten runs are known to 0.1 or 0.2. The
strength of the push was chosen by such runs, so the table leans to our side.

![Gaps of small races by how hard their limits push](figures/small-groups.png)

*Epsilon 1: a dot for each small race and run, the red line their mean, the slack in green.*
"""
_COLUMNS = (
    "| epsilon | slack | small groups push | error | gap of small groups | beyond | all held |",
    "|---|---|---|---|---|---|---|",
)


if __name__ == "__main__":
    run_or_page(__doc__, run, page)
