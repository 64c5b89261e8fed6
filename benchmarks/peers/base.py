"""What a method is: fit on training rows, then predict; with a word on what it protects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.problem import Part

Predictor = Callable[[Part], tuple[np.ndarray, np.ndarray | None]]


class GaveUp(Exception):  # noqa: N818 - reads as what happened
    """By its own rules a method has no answer here: that is a result, unlike any other exception."""


class OutOfTime(GaveUp):
    """A method did not finish within the minutes of processor time that it may use."""

    def __init__(self, minutes: float) -> None:
        super().__init__(f"did not finish in {minutes:g} minutes")
        self.minutes = minutes


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted method.

    Attributes
    ----------
    predict : callable
        From a part to the probability with which each row is given each class (0 or 1 unless randomised), and to the
        predicted probabilities (or None). Both are arrays (n, K), or (n,) with those of class 1.
    epsilon, delta : float
        What was spent, computed from what ran; infinite without privacy.
    neighbours : str
        The relation that epsilon is about.
    """

    predict: Predictor
    epsilon: float
    delta: float
    neighbours: str = "add_or_remove"
    details: dict[str, Any] = field(default_factory=dict)


class Fit(Protocol):
    """Train on a part: `knob` is the slack or weight, `epsilon` None for no privacy."""

    def __call__(
        self, part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
    ) -> Model:
        """Return the model."""
        ...


def hard(soft: np.ndarray) -> np.ndarray:
    """Return 1.0 where the probability of class 1 is above a half, else 0.0."""
    return (soft > 0.5).astype(float)


def hardened(soft: np.ndarray) -> np.ndarray:
    """Return 1.0 for the most probable class of each row (n, K), else 0.0."""
    found = np.zeros(soft.shape)
    found[np.arange(len(soft)), soft.argmax(axis=1)] = 1.0
    return found


class RawScaler:
    """Standardise by raw means and deviations of training rows: **it leaks**, and no ledger covers it.

    Several published methods do so; they are run as published.

    Parameters
    ----------
    X : (n, d) array
    numbers : int, optional
        Only so many leading columns are standardised, the zeros and ones of categories stay as they are.
    """

    def __init__(self, X: np.ndarray, numbers: int | None = None) -> None:
        self.mean = X.mean(axis=0, dtype=np.float64)
        deviation = X.std(axis=0, dtype=np.float64)
        self.scale = np.where(deviation > 0, 1.0 / np.maximum(deviation, 1e-12), 0.0)
        if numbers is not None:
            self.mean[numbers:], self.scale[numbers:] = 0.0, 1.0

    def __call__(self, X: np.ndarray, intercept: bool = False) -> np.ndarray:
        """Return the standardised rows, with a column of ones if there is to be an intercept."""
        Z = (X - self.mean) * self.scale
        return np.hstack([Z, np.ones((len(Z), 1))]) if intercept else Z
