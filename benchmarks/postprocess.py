"""Post-processing of scores on Adult, beside Fairlearn's ThresholdOptimizer and private training.

    python -m benchmarks postprocess [--splits 3]

Half of the rows train XGBoost (without privacy, constraints or the sensitive attribute), a quarter is used by the
post-processing, a quarter judges. Private training (`RateConstrainedClassifier`, epsilon 1) uses the first three quarters.
Writes error, gap between the positive rates of the two sexes on the judging rows, and verdict of every run to
benchmarks/results/postprocess.csv, and prints the means that docs/certificate.md quotes.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split

from ratewise import RateConstrainedClassifier, demographic_parity, postprocess
from ratewise.datasets import load_adult

RESULTS = Path(__file__).parent / "results" / "postprocess.csv"
FIELDS = ("method", "slack", "epsilon", "split", "error", "gap", "verdict")
SLACKS = (0.1, 0.05, 0.02)
EPSILONS = (None, 3.0, 1.0, 0.3)
# rows of the page: method, epsilon, text
ROWS = (
    ("ThresholdOptimizer", "", "Fairlearn ThresholdOptimizer, not private, uses sex"),
    ("rule with sex", "1.0", "ratewise, epsilon 1, uses sex"),
    ("rule without sex", "1.0", "ratewise, epsilon 1, without sex"),
    ("training without sex", "1.0", "private training with constraints, epsilon 1, without sex"),
)


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Hands scores through: the features are the scores."""

    def fit(self, X: Any = None, y: Any = None) -> Scores:  # noqa: ARG002 - scikit-learn's signature
        """Learn nothing."""
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the scores."""
        second = np.asarray(X, dtype=np.float64)[:, 0]
        return np.stack([1.0 - second, second], axis=1)


def gap(predicted: Any, sex: Any) -> float:
    """Return the absolute difference of positive rates."""
    female = np.asarray(sex) == "Female"
    return abs(float(predicted[female].mean() - predicted[~female].mean()))


def one_split(seed: int) -> list[tuple[Any, ...]]:
    """Return the lines of one split."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from xgboost import XGBClassifier

    table = load_adult()
    rows = np.arange(len(table.y))
    fit, judge = train_test_split(rows, test_size=0.25, random_state=seed, stratify=table.y)
    train, post = train_test_split(fit, test_size=1 / 3, random_state=seed, stratify=table.y[fit])
    features = table.frame.drop(columns=["sex", "label"])
    X, y, sex = table.X, np.asarray(table.y), np.asarray(table.sensitive["sex"])
    model = XGBClassifier(n_estimators=200, max_depth=5, learning_rate=0.1, n_jobs=1).fit(X[train], y[train])
    chances = model.predict_proba(X)[:, 1].astype(np.float64)
    known = {"classes": [0, 1], "group_values": {"sex": ["Female", "Male"]}}
    found: list[tuple[Any, ...]] = []

    def note(method: str, slack: float, epsilon: float | None, predicted: Any, verdict: str = "") -> None:
        error = float((predicted != y[judge]).mean())
        shown = "" if epsilon is None else epsilon
        found.append(
            (method, slack, shown, seed, f"{error:.5f}", f"{gap(predicted, sex[judge]):.5f}", verdict)
        )

    for slack in SLACKS:
        parity = demographic_parity("sex", max_gap=slack)
        peer = ThresholdOptimizer(
            estimator=Scores().fit(), prefit=True, predict_method="predict_proba", tol=slack
        )
        peer.fit(chances[post, None], y[post], sensitive_features=sex[post])
        guesses = peer.predict(chances[judge, None], sensitive_features=sex[judge], random_state=seed)
        note("ThresholdOptimizer", slack, None, np.asarray(guesses))
        for epsilon in EPSILONS:
            for aware in (True, False):
                rule = postprocess(
                    chances[post],
                    y[post],
                    parity,
                    sensitive_features={"sex": sex[post]},
                    epsilon=epsilon,
                    delta=1e-5,
                    group_aware=aware,
                    **known,
                )
                predicted = rule.predict(chances[judge], {"sex": sex[judge]})
                name = "rule with sex" if aware else "rule without sex"
                note(name, slack, epsilon, predicted, rule.certificate_.verdict)
        trained = RateConstrainedClassifier(parity, epsilon=1.0, delta=1e-5, **known)
        trained.fit(features.iloc[fit], y[fit], sensitive_features={"sex": sex[fit]})
        predicted = trained.predict(features.iloc[judge])
        note("training without sex", slack, 1.0, predicted, trained.certificate_.verdict)
    return found


def markdown(path: Path = RESULTS) -> list[str]:
    """Return the lines of the table in docs/certificate.md: mean error / gap by slack."""
    with path.open(newline="") as file:
        runs = list(csv.DictReader(file))
    lines = []
    for method, epsilon, text in ROWS:
        cells = []
        for slack in SLACKS:
            asked = (method, epsilon, slack)
            mine = [run for run in runs if (run["method"], run["epsilon"], float(run["slack"])) == asked]
            error, distance = (np.mean([float(run[name]) for run in mine]) for name in ("error", "gap"))
            cells.append(f"{error:.4f} / {distance:.3f}".replace("0.", "."))
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run all splits, write the file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [line for seed in range(splits) for line in one_split(seed)]
    with RESULTS.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([FIELDS, *found])
    print(*markdown(), sep="\n")


if __name__ == "__main__":
    main()
