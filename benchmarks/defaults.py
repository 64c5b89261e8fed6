"""Good without tuning? Defaults on all data, slacks and budgets, beside non-private training and the paper.

    python benchmarks/defaults.py run [--workers 2] [--splits 3] [--only adult-dp] [--methods ratewise]
    python benchmarks/defaults.py run --first 100 --epsilons 1 --methods ratewise nonprivate paper-100 \
        paper-1000 leaking --results benchmarks/results/fresh.jsonl --only TASKS...        # fresh splits
    python benchmarks/defaults.py page        # docs/defaults.md from the recorded runs

Every run is one line of benchmarks/results/defaults.jsonl; finished runs are not repeated, so a stopped run
goes on where it was. Data come from $RATEWISE_DATA (default: ../shared/data beside the repository). Nothing
is chosen per data set. A split holds out a quarter. The rules themselves were found on these tables: see the
page.

The methods: `ratewise` is RateConstrainedClassifier(constraint, epsilon=..., delta=1e-5) with public bounds
and nothing else; `nonprivate` is the same with epsilon=None; `linear` and `linear-nonprivate` are both with
curves=False and tails=None, like for like beside linear peers; `unbounded` is `ratewise` without public
bounds, on features as the tables have them; `paper-100` and
`paper-1000` are the paper's method, accounted honestly: Laplace histogram, soft dual, temperature 2, clip 3,
features standardised by RAW means and deviations, last iterate, 100 or 1000 steps. `leaking` is `linear` on
features standardised as raw as that, which nothing is paid for: what of a difference to the paper's method is
the leak?
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ratewise import (
    DualControl,
    RateConstrainedClassifier,
    datasets,
    demographic_parity,
    equalized_odds,
    false_negative_rate,
)
from ratewise.defaults import LEARNING_RATE, PublicFacts, plan_for
from ratewise.domain import Domain
from ratewise.metrics import rate_report
from ratewise.partition import compile_constraints
from ratewise.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "defaults.jsonl"
FRESH = RESULTS.with_name("fresh.jsonl")  # splits 100 and up
EPSILONS = (0.1, 0.5, 1.0, 3.0, 9.0)
DELTA = 1e-5
LEAKING = "leaking"
LINEAR = "linear"
NOT_PRIVATE = ("nonprivate", "linear-nonprivate")
SPLITS = 10
COST_OF_A_GAP = 0.25  # in errors, where settings are compared: a convention


@dataclass(frozen=True)
class Task:
    """A data set, a family of constraints, how tight to make it, and where else to look for the front.

    Quick data sets with small test sets get more `splits` at epsilon 1, so that luck with them weighs less.
    """

    table: str
    family: Callable[[float], Any]
    slacks: tuple[float, float, float]
    besides: tuple[float, ...] = ()
    splits: int = SPLITS


def _parity(column: str) -> Callable[[float], Any]:
    return lambda slack: demographic_parity(column, max_gap=slack)


TASKS = {
    "adult-dp": Task("adult", _parity("sex"), (0.05, 0.10, 0.15), (0.01, 0.03)),
    "credit-dp": Task("credit_card", _parity("sex"), (0.005, 0.01, 0.02), (0.03,), 40),
    "parkinsons-dp": Task("parkinsons", _parity("sex"), (0.01, 0.02, 0.04), (0.001, 0.06), 80),
    "employment-dp": Task("acs_employment", _parity("race"), (0.05, 0.10, 0.15), splits=20),
    "heart-dp": Task("heart", _parity("sex"), (0.005, 0.01, 0.02), (0.002,)),
    "credit-eo": Task(
        "credit_card", lambda slack: equalized_odds("sex", max_gap=slack), (0.01, 0.02, 0.04), (0.002,), 40
    ),
    "heart-fnr": Task("heart", false_negative_rate, (0.2, 0.35, 0.5), (0.95,)),
}
# settings were never compared on the first of these, and only the penalty on weights on the others
UNSEEN = {
    "diabetes-dp": Task("diabetes", _parity("sex"), (0.005, 0.01, 0.02)),
    "nursery-dp": Task("nursery", _parity("finance"), (0.02, 0.05, 0.10)),
    "german-dp": Task("german", _parity("sex"), (0.05, 0.10, 0.20)),
    "student-dp": Task("student", _parity("sex"), (0.05, 0.10, 0.20)),
}
EVERY = TASKS | UNSEEN


@cache
def table(name: str) -> Any:
    os.environ.setdefault("RATEWISE_DATA", str(ROOT.parent / "shared" / "data"))
    if name == "diabetes":  # three classes on the rows of heart
        return datasets.load_heart(label="Diabetes")
    return datasets.LOADERS[name]()


def split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(n)
    return order[n // 4 :], order[: n // 4]


def defaults(constraint: Any, data: Any, epsilon: float | None, seed: int, **changes: Any) -> Any:
    return RateConstrainedClassifier(
        constraint,
        epsilon=epsilon,
        delta=DELTA,
        classes=data.classes,
        group_values=data.group_values,
        feature_bounds=data.feature_bounds,
        random_state=seed,
        **changes,
    )


def paper(constraint: Any, data: Any, epsilon: float, seed: int, steps: int) -> Any:
    """Return the paper's method at its authors' settings, the noise raised until the joint account fits."""
    return RateConstrainedClassifier(
        constraint,
        epsilon=epsilon,
        delta=DELTA,
        classes=data.classes,
        group_values=data.group_values,
        standardise=False,
        row_norm=None,
        clip=3.0,
        sampling_rate=512 / len(data.y) if steps >= 1000 else min(0.5, 4096 / len(data.y)),
        steps=steps,
        learning_rate=1.0 if steps < 1000 else 0.1,
        schedule="constant",
        momentum=0.0,
        l1=0.0,
        averaging="none",
        histogram="laplace",
        temperature=2.0,
        rates="soft",
        dual=DualControl(rate=0.1),
        random_state=seed,
    )


# Each free improvement switched off, the rest as it is by default.
ABLATIONS: dict[str, dict[str, Any]] = {
    "no averaging": {"averaging": "none"},
    "no momentum": {"momentum": 0.0},
    "constant learning rate": {"schedule": "constant"},
    "no curves": {"curves": False},
    "tails not cut off": {"tails": None},
    "features as they come": {"standardise": False},
    "one kind of features": {"feature_kinds": 0},
    "a tenth for histograms": {"histogram_share": 0.1},
    "rows of length 5": {"row_norm": 5.0, "learning_rate": 10.0},
    "clip of 1": {"clip": 1.0},
    "Laplace histogram": {"histogram": "laplace"},
    "soft dual": {"rates": "soft"},
    "no damping": {"dual": {"penalty": 0.0}},
    "counts as released": {"dual": {"known_totals": False}},
    "noise not weighed": {"dual": {"noise_tolerance": None}},
    "no evidence over time": {"dual": {"patience": 0}},
    "objective not normalised": {"dual": {"normalise": False}},
    "smoothed rates": {"dual": {"memory": 0.8}},
    "nu-PI": {"dual": {"penalty": 0.0, "proportional": 5.0, "smoothing": 0.9}},
}
# Where each is looked at.
STUDIED = {"adult-dp": 0.1, "credit-dp": 0.01, "credit-eo": 0.04, "heart-fnr": 0.35, "parkinsons-dp": 0.02}
# What acts only where noise is large is looked at there.
NOISY: dict[str, dict[str, Any]] = {"no penalty on weights": {"l1": 0.0}}


def usual_plan(constraint: Any, data: Any, n_rows: int) -> Plan:
    """Return what defaults plan for so many rows, without privacy."""
    domain = Domain(classes=data.classes, columns=data.group_values)
    facts = PublicFacts(
        n_rows=n_rows,
        n_features=data.X.shape[1],
        n_classes=len(data.classes),
        constraints=compile_constraints(constraint, domain),
    )
    return plan_for(facts, epsilon=None, delta=DELTA)


def ablated(constraint: Any, data: Any, n_rows: int, epsilon: float, seed: int, name: str) -> Any:
    changes = dict((ABLATIONS | NOISY)[name])
    if "dual" in changes:
        changes["dual"] = replace(usual_plan(constraint, data, n_rows).dual, **changes["dual"])
    if "feature_kinds" in changes:
        changes["feature_kinds"] = [changes["feature_kinds"]] * data.X.shape[1]
    return defaults(constraint, data, epsilon, seed, **changes)


@cache
def without_limits(name: str, epsilon: float, seed: int, **changes: Any) -> Any:
    """Return the default model without constraints, to see which constraints bind."""
    data = table(name)
    train, _ = split(len(data.y), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return defaults(None, data, epsilon, seed, **changes).fit(data.X[train], data.y[train])


def measure(task: str, slack: float, epsilon: float | None, seed: int, method: str) -> dict[str, Any]:
    """Fit on three quarters of the rows and return what the other quarter shows."""
    spec, data = EVERY[task], table(EVERY[task].table)
    train, test = split(len(data.y), seed)
    constraint = spec.family(slack)
    X = data.X
    if method == LEAKING or method.startswith("paper"):
        mean, deviation = X[train].mean(axis=0), X[train].std(axis=0)
        X = (X - mean) / np.where(deviation > 0, deviation, 1.0)
    if method == LEAKING:
        raw = {"standardise": False, "row_norm": None, "learning_rate": LEARNING_RATE}
        model = defaults(constraint, data, epsilon, seed, **raw).set_params(feature_bounds=None)
    elif method.startswith("paper"):
        model = paper(constraint, data, float(epsilon or 1.0), seed, int(method.split("-")[1]))
    elif method in ABLATIONS | NOISY:
        model = ablated(constraint, data, len(train), float(epsilon or 1.0), seed, method)
    else:
        model = defaults(constraint, data, epsilon, seed)
        if method.startswith(LINEAR):
            model.set_params(curves=False, tails=None)
        if method == "unbounded":
            model.set_params(feature_bounds=None)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[train], data.y[train], sensitive_features=data.sensitive.iloc[train])
    seconds = time.perf_counter() - begin
    doubted = {doubt.constraint for doubt in model.doubts_}
    found = {
        "task": task, "slack": slack, "epsilon": epsilon, "seed": seed, "method": method,
        "spent": model.privacy_.epsilon if epsilon is not None else None,
        "error": float(np.mean(model.predict(X[test]) != data.y[test])),
        "seconds": round(seconds, 3), "doubted": len(doubted),
    }  # fmt: skip
    for name, rows in (("train", train), ("test", test)):
        found |= gaps(name, constraint, data, rows, model.predict(X[rows]), doubted, slack)
    if method in ("ratewise", LINEAR) and epsilon == 1.0:
        shape = {"curves": model.curves, "tails": model.tails}
        free = without_limits(spec.table, epsilon, seed, **shape).predict(X[test])
        found["free_gap"] = gaps("free", constraint, data, test, free, doubted, slack)["free_gap"]
    return found


def gaps(
    name: str, constraint: Any, data: Any, rows: np.ndarray, predicted: Any, doubted: set[str], slack: float
) -> dict[str, Any]:
    """Largest left-hand side over the constraints that the model does not doubt, and its sampling error.

    Also over all constraints, and whether each of them is within 0.01 and 1.96 of its own sampling errors, or
    as many as keep chance from passing any of J limits in 95 of 100 runs (Bonferroni; 1.96 for two limits).
    """
    report = rate_report(
        constraint,
        data.y[rows],
        predicted,
        sensitive_features=data.sensitive.iloc[rows],
        classes=data.classes,
        group_values=data.group_values,
    )
    report = [row for row in report if not math.isnan(row.gap)]  # groups without test rows say nothing
    trusted = [row for row in report if row.name not in doubted] or report
    # two-sided limits are two constraints: the gap on the side that matters is the slack plus the excess
    everyone = max(report, key=lambda row: row.gap)
    worst = max(trusted, key=lambda row: row.gap)
    if slack + worst.gap < 0:
        worst = everyone  # what is left is only the far side of limits that are doubted
    half = (worst.interval[1] - worst.interval[0]) / 2 / 1.96
    return {
        f"{name}_gap": slack + worst.gap,
        f"{name}_gap_error": half,
        f"{name}_all": slack + everyone.gap,
        f"{name}_all_held": _within(report, 1.96),
        f"{name}_jointly": _within(report, NormalDist().inv_cdf(1.0 - 0.05 / max(2, len(report)))),
    }


def _within(report: list[Any], errors: float) -> bool:
    """Return whether no limit is passed by more than 0.01 and so many of its own sampling errors."""
    return all(row.gap <= 0.01 + errors * (row.interval[1] - row.interval[0]) / 2 / 1.96 for row in report)


def wanted(options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    for task in options.only or EVERY:
        first = options.first
        for seed in range(first, first + (options.splits or EVERY[task].splits)):
            epsilons = [e for e in options.epsilons if e == 1.0 or seed - first < (options.splits or SPLITS)]
            for slack in EVERY[task].slacks:
                for method in options.methods:
                    if method == "unbounded" and slack != EVERY[task].slacks[1]:
                        continue
                    if method in ABLATIONS and slack != STUDIED.get(task):
                        continue
                    for epsilon in (None,) if method in NOT_PRIVATE else epsilons:
                        yield task, slack, epsilon, seed, method
            for method in {"ratewise", LINEAR} & set(options.methods) if 1.0 in epsilons else ():
                yield from ((task, slack, 1.0, seed, method) for slack in EVERY[task].besides)


def recorded(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("task", "slack", "epsilon", "seed", "method"))


def run(options: argparse.Namespace) -> None:
    done = {key(record) for record in recorded(options.results)}
    run_missing(
        measure, [job for job in wanted(options) if job not in done], options.results, options.workers
    )


def run_missing(
    measure: Callable[..., dict[str, Any]], jobs: list[tuple[Any, ...]], results: Path, workers: int
) -> None:
    """Measure every job and add a line for each to the results as soon as it is done."""
    print(f"{len(jobs)} runs to go", file=sys.stderr)
    begin = time.perf_counter()
    results.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool, results.open("a") as out:
        running = [pool.submit(measure, *job) for job in jobs]
        for count, job in enumerate(as_completed(running), 1):
            out.write(json.dumps(job.result()) + "\n")
            out.flush()
            left = (time.perf_counter() - begin) / count * (len(jobs) - count)
            if count % 20 == 0 or count == len(jobs):
                print(f"{count}/{len(jobs)}, {left:.0f} s left", file=sys.stderr, flush=True)


def run_or_page(text: str | None, run: Callable[[int], None], page: Callable[[], None]) -> None:
    """Do what the command line says: run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    run(options.workers) if options.action == "run" else page()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--splits", type=int, help="of every task (default: 10, quick ones 40 at epsilon 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--only", nargs="*", choices=list(EVERY))
    parser.add_argument("--methods", nargs="*", default=["ratewise", "nonprivate"])
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.action == "run":
        run(options)
    else:
        import defaults_page

        defaults_page.write(recorded(options.results), recorded(FRESH))


if __name__ == "__main__":
    main()
