"""What cutting off tails and bends buy and cost on made-up truths: two tables of docs/sharp-edges.md.

    python benchmarks/tails.py [--fits 6] [--workers 2]
    python benchmarks/tails.py --no-bounds      # nothing declared: bounds are found

Eight features of one shape within declared bounds, labels by a logistic law that is linear in them (or as
said), no limits; accuracy on 5,000 more rows, mean of several fits, and how it changes with `tails` and, at
the default of that, with scores kept linear.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from ratewise import RateConstrainedClassifier

FEATURES, JUDGING = 8, 5_000
WEIGHTS = np.array([2.0, -1.5, 1.0, 1.0, -0.5, 0.5, 0.0, 0.0])
SIZES = ((500, 1.0), (2_000, 1.0), (20_000, 1.0), (20_000, 0.1))
SIZES_NO_BOUNDS = ((2_000, 1.0), (5_000, 0.3), (20_000, 1.0))
Draw = Callable[[np.random.Generator, tuple[int, int]], Any]


def linear(X: Any) -> Any:
    return X @ WEIGHTS


class Shape(NamedTuple):
    """How features are drawn, between which bounds, and what decides the label."""

    draw: Draw
    bounds: tuple[float, float]
    score: Callable[[Any], Any] = linear


def rare(rng: np.random.Generator, size: tuple[int, int]) -> Any:
    return np.where(rng.random(size) < 0.05, 1.0 + rng.exponential(5.0, size), 0.0)


def far_out(rng: np.random.Generator, size: tuple[int, int]) -> Any:
    X = rng.lognormal(3.0, 0.5, size)
    X[:, 0] *= np.where(rng.random(len(X)) < 0.1, 30.0, 1.0)
    return X


SHAPES = {
    "normal, bounds at 10 deviations": Shape(lambda rng, size: rng.normal(size=size), (-10, 10)),
    "normal, bounds at 3 deviations": Shape(lambda rng, size: rng.normal(size=size), (-3, 3)),
    "normal around 500, bounds 0 and 1,000": Shape(
        lambda rng, size: 500 + rng.normal(size=size), (0, 1000), lambda X: linear(X - 500)
    ),
    "even between bounds": Shape(lambda rng, size: rng.uniform(-1, 1, size), (-1, 1)),
    "exponential, bounds at 20 means": Shape(
        lambda rng, size: rng.exponential(size=size), (0, 20), lambda X: linear(X - 1)
    ),
    "log-normal, truth linear in logarithms": Shape(
        lambda rng, size: np.exp(rng.normal(size=size)), (0, 50), lambda X: linear(np.log(X))
    ),
    "zero in 95% of the rows, else 1 + exponential": Shape(rare, (0, 50)),
    "normal, label 1 near the mean of the first": Shape(
        lambda rng, size: rng.normal(size=size), (-6, 6), lambda X: 3 * (1 - np.abs(X[:, 0])) + X[:, 1]
    ),
    "Student's t, label 1 beyond 4 of the first": Shape(
        lambda rng, size: rng.standard_t(2.5, size), (-50, 50), lambda X: 3 * (np.abs(X[:, 0]) - 4)
    ),
}
# further, where nothing is declared
MORE = {
    "a tenth of the first 30 times as large, label 1 there": Shape(
        far_out, (0, 10_000), lambda X: np.where(X[:, 0] > 150.0, 3.0, -3.0)
    ),
}


CHANGES: tuple[dict[str, Any], ...] = ({"tails": None}, {"tails": 2.0}, {"tails": 3.0}, {"curves": False})


def accuracy(name: str, n: int, epsilon: float, changes: dict[str, Any], seed: int) -> float:
    shape, rng = (SHAPES | MORE)[name], np.random.default_rng(seed)
    X = shape.draw(rng, (n + JUDGING, FEATURES))
    y = (shape.score(X) + 0.5 * rng.logistic(size=len(X)) > 0).astype(int)
    given = {"classes": (0, 1), "feature_bounds": shape.bounds, "epsilon": epsilon, "random_state": seed}
    given |= changes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(RateConstrainedClassifier(**given).fit(X[:n], y[:n]).score(X[n:], y[n:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-bounds", action="store_true")
    options = parser.parse_args()
    shapes, sizes, every = list(SHAPES), SIZES, CHANGES
    if options.no_bounds:  # the default may leave the look out
        shapes, sizes = [*SHAPES, *MORE], SIZES_NO_BOUNDS
        every = tuple({"feature_bounds": None, **each} for each in (CHANGES[0], {}, *CHANGES[2:]))
    print("| features | rows | epsilon | `tails=None` | 2 (the default) | 3 | 2, `curves=False` |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(options.workers) as pool:
        for name in shapes:
            for n, epsilon in sizes:
                kept, two, three, straight = (
                    np.mean(
                        [
                            run.result()
                            for run in [
                                pool.submit(accuracy, name, n, epsilon, changes, seed)
                                for seed in range(options.fits)
                            ]
                        ]
                    )
                    for changes in every
                )
                cells = " | ".join(f"{found - kept:+.3f}" for found in (two, three, straight))
                print(f"| {name} | {n:,} | {epsilon:g} | {kept:.3f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
