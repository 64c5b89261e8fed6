"""Would training rows choose the defaults? Other settings beside them, on training rows that are held out.

    python benchmarks/choice.py run [--workers 2]
    python benchmarks/choice.py page        # docs/choice.md from the recorded runs

Every training part of benchmarks/defaults.py is split again: three quarters train, a quarter judges. The test
rows of a split are not read in it (they are training rows of other splits). A setting's score on a split is
its error plus a quarter of what its gap exceeds the slack by (a convention). Each data set is left out in
turn: the setting that is best on the others is what one would have chosen without it.
Runs are lines of benchmarks/results/choice.jsonl.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import ratewise.defaults
from defaults import (
    COST_OF_A_GAP,
    ROOT,
    TASKS,
    gaps,
    recorded,
    run_missing,
    run_or_page,
    split,
    table,
    usual_plan,
)
from defaults import defaults as fresh

RESULTS = ROOT / "benchmarks" / "results" / "choice.jsonl"
DEFAULTS = "defaults"

# task, slack, epsilon, splits: large tables get fewer
PLACES = (
    ("adult-dp", 0.1, 1.0, 6),
    ("adult-dp", 0.1, 0.1, 6),
    ("credit-dp", 0.01, 1.0, 10),
    ("credit-eo", 0.04, 1.0, 10),
    ("credit-dp", 0.01, 0.1, 6),
    ("parkinsons-dp", 0.02, 1.0, 20),
    ("parkinsons-dp", 0.02, 0.2, 20),
    ("employment-dp", 0.1, 1.0, 2),
    ("heart-dp", 0.01, 1.0, 2),
    ("heart-fnr", 0.35, 1.0, 2),
)
SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "100 steps": {"steps": 100},
    "400 steps": {"steps": 400},
    "learning rate 1": {"learning_rate": 1.0},
    "learning rate 4": {"learning_rate": 4.0},
    "momentum 0.9, learning rate 0.4": {"momentum": 0.9, "learning_rate": 0.4},
    "clip 1": {"clip": 1.0},
    "clip 3": {"clip": 3.0},
    "clip 10": {"clip": 10.0},
    "rows of length 5": {"row_norm": 5.0},
    "curves": {"curves": "auto"},
    "tails cut off": {"tails": "auto"},
    "curves, tails cut off": {"curves": "auto", "tails": "auto"},
    "features as they come": {"standardise": False},
    "never more than 6% to prepare features": {"rules": {"_MORE": 1.0}},
    "98% of rows within their bound": {"rules": {"_WITHIN": (0.98, 0.98)}},
    "6% to prepare, 98% within": {"rules": {"_MORE": 1.0, "_WITHIN": (0.98, 0.98)}},
    "histograms 5%": {"histogram_share": 0.05},
    "histograms 40%": {"histogram_share": 0.4},
    "soft rates, temperature 2": {"rates": "soft", "temperature": 2.0},
    "last iterate": {"averaging": "none"},
    "dual rate 1": {"dual": {"rate": 1.0}},
    "dual rate 4": {"dual": {"rate": 4.0}},
    "no damping": {"dual": {"penalty": 0.0}},
    "no penalty on weights": {"l1": 0.0},
    "half the penalty on weights": {"times_l1": 0.5},
    "twice the penalty on weights": {"times_l1": 2.0},
    "three times the penalty on weights": {"times_l1": 3.0},
}


def measure(task: str, slack: float, epsilon: float, seed: int, setting: str) -> dict[str, Any]:
    """Train on three quarters of the training rows and judge on the fourth."""
    data, constraint = table(TASKS[task].table), TASKS[task].family(slack)
    rows, _ = split(len(data.y), seed)
    order = np.random.default_rng(1000 + seed).permutation(len(rows))
    judging, training = rows[order[: len(rows) // 4]], rows[order[len(rows) // 4 :]]
    changes = dict(SETTINGS[setting])
    if "dual" in changes:
        changes["dual"] = replace(usual_plan(constraint, data, len(training)).dual, **changes["dual"])
    times, rules = changes.pop("times_l1", None), changes.pop("rules", {})
    people = data.X[training], data.y[training]
    with warnings.catch_warnings(), patch.dict(vars(ratewise.defaults), rules):
        warnings.simplefilter("ignore")
        groups = {"sensitive_features": data.sensitive.iloc[training]}
        changes = {"curves": False, "tails": None, **changes}
        model = fresh(constraint, data, epsilon, seed, **changes).fit(*people, **groups)
        if times is not None:
            model.set_params(l1=times * model.plan_.l1).fit(*people, **groups)
    predicted = model.predict(data.X[judging])
    doubted = {doubt.constraint for doubt in model.doubts_}
    gap = gaps("held", constraint, data, judging, predicted, doubted, slack)["held_gap"]
    error = float(np.mean(predicted != data.y[judging]))
    return {
        "task": task, "slack": slack, "epsilon": epsilon, "seed": seed, "setting": setting,
        "error": error, "gap": gap, "score": error + COST_OF_A_GAP * max(0.0, gap - slack),
    }  # fmt: skip


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("task", "slack", "epsilon", "seed", "setting"))


def run(workers: int) -> None:
    done = {key(record) for record in recorded(RESULTS)}
    every = [(*place, seed, name) for *place, splits in PLACES for seed in range(splits) for name in SETTINGS]
    run_missing(measure, [job for job in every if job not in done], RESULTS, workers)


Place = tuple[str, float, float]


def differences(records: list[dict[str, Any]]) -> dict[str, dict[Place, np.ndarray]]:
    """Return, for each setting and place, its scores less those of the defaults, split by split."""
    scores = {key(record): record["score"] for record in records}
    return {
        setting: {
            (task, slack, epsilon): np.array(
                [
                    scores[task, slack, epsilon, seed, setting] - scores[task, slack, epsilon, seed, DEFAULTS]
                    for seed in range(splits)
                ]
            )
            for task, slack, epsilon, splits in PLACES
        }
        for setting in SETTINGS
    }


def by_table(found: dict[Place, np.ndarray]) -> dict[str, float]:
    """Return the mean difference on each data set, over its places."""
    means: dict[str, list[float]] = {}
    for (task, _, _), each in found.items():
        means.setdefault(TASKS[task].table, []).append(float(each.mean()))
    return {name: float(np.mean(values)) for name, values in means.items()}


def left_out(found: dict[str, dict[Place, np.ndarray]]) -> list[tuple[str, str, float, float]]:
    """Return, for each data set, what the others choose, by how much, and what that means for it."""
    tables = {setting: by_table(places) for setting, places in found.items()}
    chosen = []
    for name in tables[DEFAULTS]:
        others = {s: np.mean([v for t, v in each.items() if t != name]) for s, each in tables.items()}
        best = min(others, key=lambda setting: others[setting])
        chosen.append((name, best, float(others[best]), tables[best][name]))
    return chosen


def page() -> None:
    found = differences(recorded(RESULTS))
    head = (
        "| setting | " + " | ".join(f"{t} {s:g}, ε {e:g}" for t, s, e, _ in PLACES) + " | mean of data sets |"
    )
    lines = [_HEAD, head, "|" + "---|" * (head.count("|") - 1)]
    for setting, places in found.items():
        if setting == DEFAULTS:
            continue
        cells = [
            f"{1e4 * v.mean():+.0f} ± {1e4 * v.std(ddof=1) / np.sqrt(len(v)):.0f}" for v in places.values()
        ]
        mean = 1e4 * float(np.mean(list(by_table(places).values())))
        lines.append(f"| {setting} | " + " | ".join(cells) + f" | {mean:+.0f} |")
    lines += ["", _LEFT_OUT, "| left out | the others choose | ahead of the defaults there by | and on it |"]
    lines.append("|---|---|---|---|")
    for name, best, ahead, own in left_out(found):
        lines.append(f"| {name} | {best} | {abs(1e4 * ahead):.0f} | {1e4 * own:+.0f} |")
    mean = 1e4 * float(np.mean([own for *_, own in left_out(found)]))
    lines.append(f"| mean | | | {mean:+.0f} |")
    Path(ROOT / "docs" / "choice.md").write_text("\n".join(lines) + "\n")


_HEAD = """# Would training rows choose the defaults?

Written by `python benchmarks/choice.py page` from `benchmarks/results/choice.jsonl`. Each training part of
the [benchmark of the defaults](defaults.md) is split again, three quarters to train on and a quarter to judge
by. The test rows of a split are not read in it; rows that test in one split do train and judge in others. The
score is the error plus a quarter of what the gap exceeds the slack by. Each entry is the score of a setting
less that of the defaults, **in units of 0.0001**, with its standard error over the splits: positive means
that the defaults are better. One setting changes at a time. Employment and heart have two splits: their
standard errors say little. All but the rows of curves and tails have linear scores of features as declared
(`curves=False`, `tails=None`), and "defaults" means those. "Curves" lets numbers bend where rows are enough
for it, "tails cut off" cuts them off two deviations from their mean; defaults do both now
([what they buy](defaults.md#what-curves-and-cut-tails-buy)). Those rows use a later rule for the lengths of
rows, which differs on Heart. More steps where parameters are few: [steps](steps.md).
"""
_LEFT_OUT = """## Without a look at the data set itself

Each data set is left out in turn, and the setting with the best mean score on the others is chosen. The last
column is what that choice would mean for the one left out (same units, against the defaults with linear
scores). That choice has not seen the data set it is judged on; the defaults have, so what they are ahead by
may be just that. What the table shows is that, whichever data set is left out, the others choose curves and
cut tails, as the defaults do now.
"""


if __name__ == "__main__":
    run_or_page(__doc__, run, page)
