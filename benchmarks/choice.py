"""Would training rows choose the defaults? Other settings beside them, on training rows that are held out.

    python benchmarks/choice.py run [--workers 2]
    python benchmarks/choice.py page        # docs/choice.md from the recorded runs

Every training part of benchmarks/defaults.py is split again: three quarters train, a quarter judges. The test
rows of a split are not read in it (they are training rows of other splits). A setting's score on a split is
its error plus a quarter of what its gap exceeds the slack by (a convention). Each data set is left out in
turn: the setting that is best on the others is what one would have chosen without it. And for every split of
a data set a setting is chosen that has seen none of its test rows, in any split, and judged on them.
Runs are lines of benchmarks/results/choice.jsonl.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import ratewise.defaults
from defaults import COST_OF_A_GAP, ROOT, TASKS, gaps, recorded, run_missing, run_or_page, split, table
from defaults import defaults as fresh

RESULTS = ROOT / "benchmarks" / "results" / "choice.jsonl"
DEFAULTS = "defaults"
Place = tuple[str, float, float]
HELD, TEST = "held out", "test"
_NAMED = 4  # choices shown by name

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
# what is given to the classifier; under "rules" names in the package that are put in place of others, under
# "dual" fields of the plan's dual control, under "times_l1" a factor
SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "100 steps": {"steps": 100},
    "400 steps": {"steps": 400},
    "learning rate 1": {"learning_rate": 1.0},
    "learning rate 4": {"learning_rate": 4.0},
    "no momentum, learning rate 4": {"momentum": 0.0, "learning_rate": 4.0},
    "momentum 0.9, learning rate 0.4": {"momentum": 0.9, "learning_rate": 0.4},
    "half the clipping norm": {"rules": {"defaults._GRADIENT_NOISE": 0.0375}},
    "twice the clipping norm": {"rules": {"defaults._GRADIENT_NOISE": 0.15}},
    "clip 1": {"clip": 1.0},
    "clip 3": {"clip": 3.0},
    "clip 10": {"clip": 10.0},
    "rows of length 5": {"row_norm": 5.0},
    "straight lines": {"curves": False},
    "tails kept": {"tails": None},
    "straight lines, tails kept": {"curves": False, "tails": None},
    "tails cut off at 1.5 deviations": {"tails": 1.5},
    "tails cut off at 3 deviations": {"tails": 3.0},
    "curves at twice the noise": {"rules": {"defaults._CALM": 0.008}},
    "curves at half the noise": {"rules": {"defaults._CALM": 0.002}},
    "features as they come": {"standardise": False, "curves": False},
    "never more than 6% to prepare features": {"rules": {"defaults._MORE": 1.0}},
    "98% of rows within their bound": {"rules": {"defaults._WITHIN": (0.98, 0.98)}},
    "histograms 5%": {"histogram_share": 0.05},
    "histograms 40%": {"histogram_share": 0.4},
    "soft rates, temperature 2": {"rates": "soft", "temperature": 2.0},
    "last iterate": {"averaging": "none"},
    "dual rate 1": {"dual": {"rate": 1.0}},
    "dual rate 4": {"dual": {"rate": 4.0}},
    "no damping": {"dual": {"penalty": 0.0}},
    "twice the damping": {"dual": {"penalty": 6.0}},
    "counts as released": {"dual": {"known_totals": False}},
    "kept from 2 deviations on": {"rules": {"evidence._KEPT": 2.0}},
    "no penalty on weights": {"l1": 0.0},
    "half the penalty on weights": {"times_l1": 0.5},
    "twice the penalty on weights": {"times_l1": 2.0},
    "three times the penalty on weights": {"times_l1": 3.0},
}


@contextmanager
def changed_rules(rules: dict[str, Any], dual: dict[str, Any], times_l1: float) -> Iterator[None]:
    """Put other rules in the place of the package's, for as long as this lasts."""
    usual_dual, usual_l1 = ratewise.defaults._dual_for, ratewise.defaults.l1_for
    others: dict[str, Callable[..., Any]] = {}
    if dual:
        others["defaults._dual_for"] = lambda *facts: replace(usual_dual(*facts), **dual)
    if times_l1 != 1.0:
        others["defaults.l1_for"] = lambda *facts: times_l1 * usual_l1(*facts)
    with ExitStack() as stack:
        for name, rule in (rules | others).items():
            stack.enter_context(patch(f"ratewise.{name}", rule))
        yield


def parts(n_rows: int, seed: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and those to judge by."""
    rows, test = split(n_rows, seed)
    if where == TEST:
        return rows, test
    order = np.random.default_rng(1000 + seed).permutation(len(rows))
    return rows[order[len(rows) // 4 :]], rows[order[: len(rows) // 4]]


def measure(task: str, slack: float, epsilon: float, seed: int, setting: str, where: str) -> dict[str, Any]:
    """Train and judge: on three quarters of the training rows and the fourth, or on those and test rows."""
    data, constraint = table(TASKS[task].table), TASKS[task].family(slack)
    training, judging = parts(len(data.y), seed, where)
    changes = dict(SETTINGS[setting])
    rules = [changes.pop(name, usual) for name, usual in (("rules", {}), ("dual", {}), ("times_l1", 1.0))]
    with warnings.catch_warnings(), changed_rules(*rules):
        warnings.simplefilter("ignore")
        model = fresh(constraint, data, epsilon, seed, **changes).fit(
            data.X[training], data.y[training], sensitive_features=data.sensitive.iloc[training]
        )
    predicted = model.predict(data.X[judging])
    doubted = {doubt.constraint for doubt in model.doubts_}
    gap = gaps("held", constraint, data, judging, predicted, doubted, slack)["held_gap"]
    error = float(np.mean(predicted != data.y[judging]))
    return {
        "task": task, "slack": slack, "epsilon": epsilon, "seed": seed, "setting": setting, "where": where,
        "error": error, "gap": gap, "score": error + COST_OF_A_GAP * max(0.0, gap - slack),
    }  # fmt: skip


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("task", "slack", "epsilon", "seed", "setting", "where"))


def run(workers: int) -> None:
    every = [
        (*place, seed, name, HELD) for *place, splits in PLACES for seed in range(splits) for name in SETTINGS
    ]
    _run_missing(every, workers)
    _run_missing(
        [
            (*place, seed, setting, TEST)
            for (name, seed), best in unseen_choices(recorded(RESULTS)).items()
            for place in _places_of(name, seed)
            for setting in dict.fromkeys((best, DEFAULTS))
        ],
        workers,
    )


def _run_missing(jobs: list[tuple[Any, ...]], workers: int) -> None:
    done = {key(record) for record in recorded(RESULTS)}
    run_missing(measure, [job for job in jobs if job not in done], RESULTS, workers)


def _places_of(name: str, seed: int) -> list[Place]:
    """Return the places of a data set that have a split of this number."""
    return [
        (task, slack, epsilon)
        for task, slack, epsilon, splits in PLACES
        if TASKS[task].table == name and seed < splits
    ]


def differences(records: list[dict[str, Any]]) -> dict[str, dict[Place, np.ndarray]]:
    """Return, for each setting and place, its scores less those of the defaults, split by split."""
    scores = {key(record): record["score"] for record in records}
    return {
        setting: {
            (task, slack, epsilon): np.array(
                [
                    scores[task, slack, epsilon, seed, setting, HELD]
                    - scores[task, slack, epsilon, seed, DEFAULTS, HELD]
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


def unseen_choices(records: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Return, for each data set and split, the setting chosen without a look at that split's test rows.

    Of the data set itself only the training rows of that one split speak; of the others all of theirs.
    """
    found = differences(records)
    tables = {setting: by_table(places) for setting, places in found.items()}
    chosen = {}
    for name in tables[DEFAULTS]:
        for seed in range(max(splits for task, _, _, splits in PLACES if TASKS[task].table == name)):
            own = {s: np.mean([found[s][place][seed] for place in _places_of(name, seed)]) for s in SETTINGS}
            means = {
                s: np.mean([own[s], *(value for other, value in tables[s].items() if other != name)])
                for s in SETTINGS
            }
            chosen[name, seed] = min(means, key=lambda setting: means[setting])
    return chosen


def unseen_rows(records: list[dict[str, Any]]) -> list[str]:
    """Return the table of what is chosen without a look at test rows, and what it does on them."""
    chosen = unseen_choices(records)
    tested = {key(record): record for record in records if record["where"] == TEST}
    lines = [
        "| task | slack | epsilon | splits | chosen, how often | error of defaults | of the choice | "
        "difference | gap of defaults | of the choice |",
        "|" + "---|" * 10,
    ]
    for task, slack, epsilon, splits in PLACES:
        names = [chosen[TASKS[task].table, seed] for seed in range(splits)]
        pairs = [
            (
                tested[task, slack, epsilon, seed, DEFAULTS, TEST],
                tested[task, slack, epsilon, seed, name, TEST],
            )
            for seed, name in enumerate(names)
        ]
        errors, found = (np.array([[r[what] for r in pair] for pair in pairs]) for what in ("error", "gap"))
        difference = errors[:, 1] - errors[:, 0]
        spread = difference.std(ddof=1) / np.sqrt(splits)
        often = Counter(names).most_common()
        said = ", ".join(f"{name} ({count})" for name, count in often[:_NAMED])
        said += f", {len(often) - _NAMED} others" if len(often) > _NAMED else ""
        lines.append(
            f"| {task} | {slack:g} | {epsilon:g} | {splits} | {said} | {errors[:, 0].mean():.4f} | "
            f"{errors[:, 1].mean():.4f} | {difference.mean():+.4f} ± {spread:.4f} | "
            f"{found[:, 0].mean():.4f} | {found[:, 1].mean():.4f} |"
        )
    return lines


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
    lines += ["", _UNSEEN, *unseen_rows(recorded(RESULTS))]
    Path(ROOT / "docs" / "choice.md").write_text("\n".join(lines) + "\n")


_HEAD = """# Would training rows choose the defaults?

Written by `python benchmarks/choice.py page` from `benchmarks/results/choice.jsonl`. Each training part of
the [benchmark of the defaults](defaults.md) is split again, three quarters to train on and a quarter to judge
by. The test rows of a split are not read in it; rows that test in one split do train and judge in others. The
score is the error plus a quarter of what the gap exceeds the slack by. Each entry is the score of a setting
less that of the defaults, **in units of 0.0001**, with its standard error over the splits: positive means
that the defaults are better. One setting changes at a time. Employment and heart have two splits: their
standard errors say little. More steps where parameters are few: [steps](steps.md).
"""
_LEFT_OUT = """## Without a look at the data set itself

Each data set is left out in turn, and the setting with the best mean score on the others is chosen, the
defaults among them. The last column is what that choice would mean for the one left out (same units, against
the defaults). Whichever is left out, the others find nothing that is ahead of the defaults by more than
0.0005, and what they choose does neither good nor harm to the one left out.
"""
_UNSEEN = """## Without a look at the test rows

What would the [benchmark](defaults.md) say if test rows had never been used for a choice? For each split of a
data set, the setting is chosen that is best in the mean of all data sets; of the data set itself only the
training rows of that very split speak (a quarter of them judges), so its test rows have no say, not even as
training rows of other splits. What is chosen is then trained on all training rows and judged on the test
rows, beside the defaults. It ends 0.0020 below to 0.0006 above their error: that earlier rules saw test rows
buys the defaults nothing that could be told. What it cannot show is what the kinds of rules, of which
settings vary the numbers, owe to that look.
"""


if __name__ == "__main__":
    run_or_page(__doc__, run, page)
