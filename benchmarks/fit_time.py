"""Time of one whole fit on Adult, calibration included, beside Fairlearn's ExponentiatedGradient.

    python benchmarks/fit_time.py [--rounds 3] [--slack 0.05] [--json FILE]

All run in one process on the same rows (each person once, features scaled by public bounds, three quarters to
train on), with one thread, and ours again beside every run of a peer: the mean of a fit before and one
after, since times of this machine move. Ours is private at epsilon 1, its noise calibrated in every round.
Fairlearn's reduction trains scikit-learn's logistic regression again and again: with the default solver, and
with "liblinear", which Fairlearn's own examples take; with features scaled by public bounds, standardised by
raw means and deviations, and as they come. `max_iter` is 1000, so that it converges where it can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from defaults import defaults, split, table
from ratewise import demographic_parity
from ratewise.accounting.accountant import forget_last_answer


def ours(data: Any, rows: np.ndarray, slack: float) -> Callable[[], object]:
    X, y, groups = data.X[rows], data.y[rows], data.sensitive.iloc[rows]

    def fit() -> object:
        model = defaults(demographic_parity("sex", max_gap=slack), data, 1.0, 0)
        return model.fit(X, y, sensitive_features=groups)

    return fit


def scaled(data: Any, rows: np.ndarray, how: str) -> np.ndarray:
    x = np.asarray(data.X[rows], dtype=np.float64)
    if how == "as they come":
        return x
    lower, upper = (np.asarray(bound) for bound in data.feature_bounds)
    x = (x - lower) / np.maximum(upper - lower, 1e-12)
    return x if how == "by bounds" else (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)


def fairlearn(data: Any, rows: np.ndarray, slack: float, solver: str, how: str) -> Callable[[], object]:
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient

    x, y, groups = scaled(data, rows, how), data.y[rows], data.sensitive.iloc[rows]["sex"]
    largest = float(groups.value_counts(normalize=True).max())

    def fit() -> object:
        reduction = ExponentiatedGradient(
            LogisticRegression(solver=solver, max_iter=1000),
            DemographicParity(difference_bound=slack * largest),
        )
        return reduction.fit(x, y, sensitive_features=groups)

    return fit


def seconds(fit: Callable[[], object]) -> float:
    """Return the processor time of one fit that starts from nothing."""
    forget_last_answer()
    begin = time.process_time()
    fit()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    data = table("adult")
    rows, _ = split(len(data.y), 0)
    mine = ours(data, rows, options.slack)
    peers: dict[str, Callable[[], object]] = {}
    for solver in ("lbfgs", "liblinear"):
        for how in ("raw-standardised", "by bounds", "as they come"):
            peers[f"fairlearn, {solver}, {how}"] = fairlearn(data, rows, options.slack, solver, how)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    with threadpool_limits(limits=1):
        ours(data, rows[:2_000], options.slack)()  # what is imported on first use does not count, for anyone
        fairlearn(data, rows[:2_000], options.slack, "liblinear", "by bounds")()
        for number in range(options.rounds):
            for name, fit in peers.items():
                before, theirs, after = (seconds(each) for each in (mine, fit, mine))
                times[name].append((theirs, (before + after) / 2))
                print(
                    f"round {number + 1}: {name} {theirs:.2f} s, ours {before:.2f}, {after:.2f} s", flush=True
                )
    for name, pairs in times.items():
        theirs, ours_beside = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"{name:40s} {theirs:7.2f} s, ours {ours_beside:.2f} s: {ratio:6.1f} times ours")
    if options.json:
        found = {"slack": options.slack, "processor_seconds_and_ours_beside": times}
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
