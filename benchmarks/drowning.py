"""How much noise a model survives: accuracy against `ratewise.drowning.noise_share`, on made-up rows.

    python benchmarks/drowning.py [--fits 4]

Rows of 3 and 50 normal features, the label from one of them and some noise; defaults, no limits.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from ratewise import RateConstrainedClassifier
from ratewise.drowning import noise_share


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=4, help="private fits on the same rows (default 4)")
    fits = parser.parse_args().fits
    warnings.simplefilter("ignore")
    print(f"{'rows':>7} {'features':>9} {'epsilon':>8} {'noise share':>12} {'accuracy':>9}")
    for n in (80, 500, 2_000, 20_000):
        for d in (3, 50):
            rng = np.random.default_rng(1)
            X = rng.normal(size=(n, d))
            y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)
            for epsilon in (0.001, 0.01, 0.1, 1.0):
                models = [
                    RateConstrainedClassifier(epsilon=epsilon, classes=(0, 1)).fit(X, y) for _ in range(fits)
                ]
                share = noise_share(models[0].plan_, d + 1)
                accuracy = np.mean([model.score(X, y) for model in models])
                print(f"{n:>7} {d:>9} {epsilon:>8g} {share:>12.3f} {accuracy:>9.3f}", flush=True)


if __name__ == "__main__":
    main()
