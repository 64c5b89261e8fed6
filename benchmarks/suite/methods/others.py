# ruff: noqa: ARG001 - one signature for all methods
"""Methods without privacy from other packages: Fairlearn's exponentiated gradient, and XGBoost."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.suite.methods.base import Model, RawScaler, hard
from benchmarks.suite.problem import Part


def exponentiated_gradient(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, *, max_iter: int = 25
) -> Model:
    """Fit Fairlearn's reduction; `knob` is the gap between two groups. Not private; `epsilon` is not used.

    Fairlearn bounds the distance of a group's rate to the overall rate, which for two groups is ``1 - share``
    times the gap, so the bound asked for is ``gap * largest share``. The result is randomised; it is scored
    in expectation.
    """
    from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient

    shares = np.bincount(part.groups) / len(part)
    kind = EqualizedOdds if part.task.constraint == "equalized_odds" else DemographicParity
    scaler = RawScaler(part.X)
    base = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
    constraint = kind(difference_bound=float(knob) * float(shares.max()))
    model: Any = ExponentiatedGradient(base, constraint, max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(scaler(part.X), part.y, sensitive_features=part.groups)

    def predict(other: Part) -> tuple[np.ndarray, None]:
        return expected(model, scaler(other.X)), None

    return Model(predict, math.inf, 1.0)


def expected(model: Any, X: np.ndarray) -> np.ndarray:
    """Return the probability that the randomised classifier says 1."""
    weights = np.asarray(model.weights_)
    votes = [
        np.asarray(p.predict(X), dtype=float) for p, w in zip(model.predictors_, weights, strict=True) if w
    ]
    return np.average(votes, axis=0, weights=weights[weights > 0])


def boosted_trees(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit XGBoost with its defaults. Neither private nor constrained; `knob` and `epsilon` are not used."""
    from xgboost import XGBClassifier

    model = XGBClassifier(n_jobs=1, random_state=seed, **settings)
    model.fit(part.X, part.y)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = model.predict_proba(other.X)[:, 1]
        return hard(soft), soft

    return Model(predict, math.inf, 1.0)
