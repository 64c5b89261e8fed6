# ruff: noqa: ARG001 - one signature for all methods
"""The library itself: defaults, the published algorithm's choices, and without constraints or privacy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.suite.methods.base import Model, RawScaler, hard
from benchmarks.suite.problem import Part
from ratewise import RateConstrainedClassifier, RatewiseWarning
from ratewise.plan import DualControl


def ours(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit with the library's defaults and linear scores, like all peers here; `knob` is the slack asked for.

    Without a constraint `knob` is None.
    """
    model = RateConstrainedClassifier(
        None if knob is None else part.task.family(knob),
        epsilon=epsilon,
        delta=delta,
        classes=part.table.classes,
        group_values=part.table.group_values,
        feature_bounds=part.table.feature_bounds,
        random_state=seed,
        curves=False,
        tails=None,
        **_with_dual(settings),
    )
    _fit(model, part.X, part)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = model.predict_proba(other.X)[:, 1]
        return hard(soft), soft

    return Model(predict, model.privacy_.epsilon, delta, details=_details(model))


def unconstrained(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit without constraints: DP-SGD, or SGD without privacy. `knob` is not used."""
    return ours(part, None, epsilon, delta, seed, **settings)


def not_private(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit with constraints and without privacy. `epsilon` is not used."""
    return ours(part, knob, None, delta, seed, **settings)


def plain(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit without constraints and without privacy. `knob` and `epsilon` are not used."""
    return ours(part, None, None, delta, seed, **settings)


def paper(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    steps: int = 100,
    learning_rate: float = 1.0,
    dual_rate: float = 1.0,
    batch: int = 512,
    clip: float = 3.0,
    temperature: float = 2.0,
    share: float = 0.1,
    standardised: str = "numbers",
) -> Model:
    """Fit as the published algorithm is run: Laplace histogram, soft dual, raw standardisation, last iterate.

    Noise is raised until the shared sample of both releases accounts to epsilon. The raw means and deviations
    of the features are not in the ledger: they leak, as published. `standardised` is "numbers" (the zeros and
    ones of categories stay as they are) or "all".
    """
    columns = {"numbers": len(part.table.schema.numbers), "all": None}
    scaler = RawScaler(part.X, columns[standardised])
    model = RateConstrainedClassifier(
        None if knob is None else part.task.family(knob),
        epsilon=epsilon,
        delta=delta,
        classes=part.table.classes,
        group_values=part.table.group_values,
        random_state=seed,
        steps=steps,
        sampling_rate=min(1.0, batch / len(part)),
        clip=clip,
        row_norm=None,
        standardise=False,
        learning_rate=learning_rate,
        schedule="constant",
        momentum=0.0,
        l1=0.0,
        averaging="none",
        dual=DualControl(rate=dual_rate, floor_deviations=0.0),
        histogram="laplace",
        histogram_share=share,
        temperature=temperature,
        rates="soft",
    )
    _fit(model, scaler(part.X), part)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = model.predict_proba(scaler(other.X))[:, 1]
        return hard(soft), soft

    return Model(predict, model.privacy_.epsilon, delta, details=_details(model))


def _fit(model: RateConstrainedClassifier, X: np.ndarray, part: Part) -> None:
    labels = np.asarray(part.table.classes)[part.y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)  # 1e-5 is above 1/n for the larger tables
        model.fit(X, labels, sensitive_features=part.sensitive)


def _with_dual(settings: dict[str, Any]) -> dict[str, Any]:
    dual = settings.get("dual")
    return {**settings, "dual": DualControl(**dual)} if isinstance(dual, dict) else settings


def _details(model: RateConstrainedClassifier) -> dict[str, Any]:
    plan = model.plan_
    return {
        "steps": plan.steps,
        "sampling_rate": plan.sampling_rate,
        "clip": plan.clip,
        "gradient_noise": plan.gradient_noise,
        "histogram_noise": plan.histogram_noise,
        "learning_rate": plan.learning_rate,
        "dual_rate": plan.dual.rate,
        "doubts": len(model.doubts_),
    }
