# ruff: noqa: ARG001 - one signature for all methods
"""Methods without privacy from other packages: Fairlearn, logistic regression and XGBoost."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.peers.base import Model, RawScaler, hardened
from benchmarks.problem import Part


def exponentiated_gradient(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    max_iter: int = 25,
    base: str = "logistic",
    **trees: Any,
) -> Model:
    """Fit Fairlearn's reduction; `knob` is the gap between two groups. Not private; `epsilon` is not used.

    Fairlearn bounds the distance of a group's rate to the overall rate, which for two groups is ``1 - share``
    times the gap, so the bound asked for is ``gap * largest share``. The result is randomised; it is scored
    in expectation. `trees` are settings of XGBoost.
    """
    from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient

    shares = np.bincount(part.groups) / len(part)
    kind = EqualizedOdds if part.task.constraint == "equalized_odds" else DemographicParity
    scaler = RawScaler(part.X)
    plain = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
    learner = plain if base == "logistic" else _trees(seed, **trees)
    constraint = kind(difference_bound=float(knob or 0.0) * float(shares.max()))
    model: Any = ExponentiatedGradient(learner, constraint, max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(scaler(part.X), part.y, sensitive_features=part.groups)

    def predict(other: Part) -> tuple[np.ndarray, None]:
        return expected(model, scaler(other.X)), None

    return Model(predict, math.inf, 1.0)


def expected(model: Any, X: np.ndarray) -> np.ndarray:
    """Return the probability that the randomised classifier says 1."""
    weights = np.asarray(model.weights_)
    votes = [np.asarray(p.predict(X), dtype=float) for p, w in zip(model.predictors_, weights, strict=True) if w]
    return np.average(votes, axis=0, weights=weights[weights > 0])


def _trees(seed: int, **settings: Any) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_jobs=1, random_state=seed, **settings)


def boosted_trees(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit XGBoost with its defaults. Neither private nor constrained; `knob` and `epsilon` are not used."""
    return _plain(part, _trees(seed, **settings), lambda X: X)


def logistic_regression(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit scikit-learn's logistic regression. Neither private nor constrained; `knob` and `epsilon` are not used."""
    return _plain(part, LogisticRegression(max_iter=1000, **settings), RawScaler(part.X))


def _plain(part: Part, model: Any, scaler: Any) -> Model:
    """Fit on encoded features; classes without training rows get probability 0."""
    present, y = np.unique(part.y, return_inverse=True)
    model.fit(scaler(part.X), y)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = np.zeros((len(other), len(part.table.classes)))
        soft[:, present] = model.predict_proba(scaler(other.X))
        return hardened(soft), soft

    return Model(predict, math.inf, 1.0)
