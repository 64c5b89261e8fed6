"""Post-processing of scores on Adult, beside Fairlearn's ThresholdOptimizer and private training.

    python -m benchmarks postprocess [--splits 3]

Half of the rows train XGBoost (without privacy, constraints or the sensitive attribute), a quarter is used by the
post-processing, a quarter judges. Private training (`RateConstrainedClassifier`, epsilon 1) uses the first three quarters.
Prints the mean error, the mean gap between the positive rates of the two sexes on the judging rows, and the verdicts.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
from fairlearn.postprocessing import ThresholdOptimizer
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from xgboost import XGBClassifier

from ratewise import RateConstrainedClassifier, demographic_parity, postprocess
from ratewise.datasets import load_adult

SLACKS = (0.1, 0.05, 0.02)
EPSILONS = (None, 3.0, 1.0, 0.3)


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


def one_split(seed: int, found: dict[str, list[tuple[float, float, str]]]) -> None:
    """Run every method on one split."""
    table = load_adult()
    rows = np.arange(len(table.y))
    fit, judge = train_test_split(rows, test_size=0.25, random_state=seed, stratify=table.y)
    train, post = train_test_split(fit, test_size=1 / 3, random_state=seed, stratify=table.y[fit])
    features = table.frame.drop(columns=["sex", "label"])
    X, y, sex = table.X, np.asarray(table.y), np.asarray(table.sensitive["sex"])
    model = XGBClassifier(n_estimators=200, max_depth=5, learning_rate=0.1, n_jobs=1).fit(X[train], y[train])
    chances = model.predict_proba(X)[:, 1].astype(np.float64)

    def note(name: str, predicted: Any, verdict: str = "") -> None:
        error = float((predicted != y[judge]).mean())
        found[name].append((error, gap(predicted, sex[judge]), verdict))

    note("XGBoost alone", (chances[judge] > 0.5).astype(int))
    for slack in SLACKS:
        limit = demographic_parity("sex", max_gap=slack)
        peer = ThresholdOptimizer(
            estimator=Scores().fit(), prefit=True, predict_method="predict_proba", tol=slack
        )
        peer.fit(chances[post, None], y[post], sensitive_features=sex[post])
        guesses = peer.predict(chances[judge, None], sensitive_features=sex[judge], random_state=seed)
        note(f"Fairlearn ThresholdOptimizer, tol {slack}, not private, uses sex", np.asarray(guesses))
        known = {"classes": [0, 1], "group_values": {"sex": ["Female", "Male"]}}
        for epsilon in EPSILONS:
            for aware in (True, False):
                rule = postprocess(
                    chances[post],
                    y[post],
                    limit,
                    sensitive_features={"sex": sex[post]},
                    epsilon=epsilon,
                    delta=1e-5,
                    group_aware=aware,
                    **known,
                )
                predicted = rule.predict(chances[judge], {"sex": sex[judge]})
                name = f"ours, slack {slack}, epsilon {epsilon}, {'uses sex' if aware else 'without sex'}"
                note(name, predicted, rule.certificate_.verdict)
        trained = RateConstrainedClassifier(limit, epsilon=1.0, delta=1e-5, **known)
        trained.fit(features.iloc[fit], y[fit], sensitive_features={"sex": sex[fit]})
        name = f"training, slack {slack}, epsilon 1, without sex"
        note(name, trained.predict(features.iloc[judge]), trained.certificate_.verdict)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    found: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(splits):
            one_split(seed, found)
    print("| method | error | gap | verdicts |\n|---|---|---|---|")
    for name, runs in found.items():
        errors, gaps, verdicts = zip(*runs, strict=True)
        said = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts) if v)
        print(f"| {name} | {np.mean(errors):.4f} | {np.mean(gaps):.4f} | {said} |")


if __name__ == "__main__":
    main()
