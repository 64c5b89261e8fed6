# ruff: noqa: ARG001 - one signature for all methods
"""The library itself on raw frames: declared or not, additive or linear, with and without constraints and privacy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from benchmarks.peers.base import Model, Predictor, hardened
from benchmarks.problem import Part
from ratewise import RateConstrainedClassifier, RatewiseWarning
from ratewise.training.config import TrainingConfig


def ours(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    declared: bool = True,
    model: str = "additive",
    **settings: Any,
) -> Model:
    """Fit the classifier on the raw columns; `knob` is the slack, None for no constraint.

    Parameters
    ----------
    declared : bool
        Whether the public schema of the table (classes, group values, ranges, categories) is passed.
    model : "additive" or "linear"
    settings
        Of `TrainingConfig`.
    """
    public: dict[str, Any] = {}
    if declared:
        schema = part.table.schema
        public = {
            "classes": part.table.classes,
            "group_values": part.table.group_values,
            "feature_bounds": {
                **{name: tuple(pair) for name, pair in schema.feature_bounds.items()},
                **{name: list(values) for name, values in schema.categories.items()},
            },
        }
    classifier = RateConstrainedClassifier(
        None if knob is None else part.task.family(knob),
        epsilon=epsilon,
        delta=delta,
        model=model,
        config=TrainingConfig(**settings),
        random_state=seed,
        **public,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)  # 1e-5 is above 1/n for the larger tables
        classifier.fit(part.frame, part.labels, sensitive_features=part.sensitive)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        return _classes(classifier, part, other.frame)

    return _model(classifier, predict)


def _model(classifier: Any, predict: Predictor) -> Model:
    certificate, privacy = classifier.certificate_, classifier.privacy_
    details = {"steps": classifier.plan_.steps, "verdict": "" if certificate is None else _verdict(certificate)}
    return Model(predict, privacy.epsilon, privacy.delta, classifier.neighbours, details)


def _classes(classifier: Any, part: Part, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions for all classes of the table; those that were not found get probability 0."""
    soft = np.zeros((len(X), len(part.table.classes)))
    soft[:, np.searchsorted(part.table.classes, classifier.classes_)] = classifier.predict_proba(X)
    return hardened(soft), soft


def network(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, *, width: int = 32, **settings: Any
) -> Model:
    """Fit a network with one hidden layer on encoded columns, within public bounds."""
    from ratewise.torch import MLP, TorchRateConstrainedClassifier

    lower, upper = part.table.feature_bounds
    classifier = TorchRateConstrainedClassifier(
        lambda: MLP(part.X.shape[1], len(part.table.classes), hidden=(width,)),
        None if knob is None else part.task.family(knob),
        epsilon=epsilon,
        delta=delta,
        classes=part.table.classes,
        group_values=part.table.group_values,
        feature_bounds=(lower, upper),
        random_state=seed,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        classifier.fit(part.X, part.labels, sensitive_features=part.sensitive)
    return _model(classifier, lambda other: _classes(classifier, part, other.X))


def undeclared(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit with nothing declared."""
    return ours(part, knob, epsilon, delta, seed, declared=False, **settings)


def linear(part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any) -> Model:
    """Fit scores that are linear in continuous columns."""
    return ours(part, knob, epsilon, delta, seed, model="linear", **settings)


def not_private(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit with constraints and without privacy. `epsilon` is not used."""
    return ours(part, knob, None, delta, seed, **settings)


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
    rates: str = "soft",
) -> Model:
    """Fit the published algorithm: linear scores, Laplace histogram, soft rates, no momentum, no damping.

    Noise is raised until the shared sample of both releases accounts to epsilon, and features are standardised
    by private releases; the published code reads raw means and deviations.
    """
    return ours(
        part,
        knob,
        epsilon,
        delta,
        seed,
        model="linear",
        steps=steps,
        sampling_rate=min(1.0, batch / len(part)),
        clip=clip,
        learning_rate=learning_rate,
        momentum=0.0,
        schedule="constant",
        l2=0.0,
        histogram="laplace",
        histogram_share=share,
        rates=rates,
        temperature=temperature,
        dual_rate=dual_rate,
        dual_damping=0.0,
    )


def _verdict(certificate: Any) -> str:
    """Return the worst verdict of a certificate."""
    verdicts = {row.verdict for row in certificate}
    return next((each for each in ("missed", "cannot tell") if each in verdicts), "held")
