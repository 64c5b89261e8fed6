"""What features of wrong size or place cost, standardised and not: the table of docs/sharp-edges.md.

    python benchmarks/unscaled.py [--fits 5]

20,000 made-up rows of 8 normal features, labels from all of them by a logistic law, epsilon 1, no limits;
accuracy on 20,000 more rows, mean of several fits.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier

ROWS, FEATURES, RANGE = 20_000, 8, 5.0


def factors(first: float) -> np.ndarray:
    return np.array([first, *[1.0] * (FEATURES - 1)])


# name: factors, shift, whether bounds are declared
CASES: dict[str, tuple[np.ndarray, float, bool]] = {
    "unit size": (factors(1.0), 0.0, False),
    "all times 1,000, plus 3,000": (1000.0 * factors(1.0), 3000.0, False),
    "all plus 30": (factors(1.0), 30.0, False),
    "one of them times 10": (factors(10.0), 0.0, False),
    "one of them times 1,000": (factors(1000.0), 0.0, False),
    "one of them times 0.001": (factors(0.001), 0.0, False),
    "each ten times the one before": (10.0 ** np.arange(FEATURES), 0.0, False),
    "one of them times 1,000, `feature_bounds` given": (factors(1000.0), 0.0, True),
}


def accuracy(case: str, standardise: Any, seed: int) -> float:
    size, shift, bounded = CASES[case]
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((2 * ROWS, FEATURES))
    y = (normal @ np.linspace(0.5, 1.5, FEATURES) + rng.logistic(size=2 * ROWS) > 0).astype(int)
    X = normal * size + shift
    model = RateConstrainedClassifier(
        classes=(0, 1),
        standardise=standardise,
        feature_bounds=(shift - RANGE * size, shift + RANGE * size) if bounded else None,
        random_state=seed,
    )
    return float(model.fit(X[:ROWS], y[:ROWS]).score(X[ROWS:], y[ROWS:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=5)
    fits = parser.parse_args().fits
    warnings.simplefilter("ignore")
    print('| features | "auto" | `standardise=False` |\n|---|---|---|')
    for case in CASES:
        means = [np.mean([accuracy(case, how, seed) for seed in range(fits)]) for how in ("auto", False)]
        print(f"| {case} | {means[0]:.3f} | {means[1]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
