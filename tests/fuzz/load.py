"""A thousand fits in one process: does memory grow?

    python tests/fuzz/load.py [--fits 1000]

Prints the memory of the process after every tenth of the fits, and what the last half added. Ends with an
error if that is more than five megabytes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.accounting import Ledger

ALLOWED = 5_000_000


def fit(ledger: Ledger | None = None) -> Any:
    """Fit a small model with a limit; return its intercept."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 3))
    model = RateConstrainedClassifier(
        demographic_parity("g", max_gap=0.9),
        epsilon=1.0,
        delta=1e-6,
        classes=[0, 1],
        group_values={"g": ["a", "b"]},
        feature_bounds=(-5, 5),
        config=TrainingConfig(steps=12),
        ledger=ledger,
    )
    groups = {"g": np.where(rng.random(1500) < 0.5, "a", "b")}
    return model.fit(X, (X[:, 0] > 0).astype(int), sensitive_features=groups).model_.scorer.intercept


def fit_on(path: str) -> Any:
    """Fit with the book in a file; for processes."""
    warnings.simplefilter("ignore")
    return fit(Ledger.open(path))


def resident() -> int:
    """Return the bytes of memory that the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=1000)
    count = parser.parse_args().fits
    warnings.simplefilter("ignore")
    held = []
    for done in range(1, count + 1):
        fit()
        if done % max(1, count // 10) == 0:
            gc.collect()
            held.append(resident())
            sys.stdout.write(f"{done:>6} fits: {held[-1] / 1e6:.1f} MB\n")
            sys.stdout.flush()
    grown = held[-1] - held[len(held) // 2]
    sys.stdout.write(f"the last half added {grown / 1e6:.2f} MB\n")
    if grown > ALLOWED:
        sys.exit("memory grows with the number of fits")


if __name__ == "__main__":
    main()
