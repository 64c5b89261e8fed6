"""Releases: the only way from private sums to values that may leave a step.

Each mechanism adds its own independent draw to every entry of what it is given. The noise is in units of the
sensitivity, as in `ratewise.accounting`, so that the numbers in a ledger are the numbers used here.

>>> rng = np.random.default_rng(0)
>>> GaussianMechanism(noise=2.0, sensitivity=0.5).release(np.zeros(3), rng).round(2)
array([ 0.13, -0.13,  0.64])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate

Floats = npt.NDArray[np.float64]


class Mechanism(Protocol):
    """Turns a private value into one that may be seen."""

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry, in the units of the value."""
        ...

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return a new array: the value with fresh noise on every entry."""
        ...


@dataclass(frozen=True)
class GaussianMechanism:
    """Gaussian noise of standard deviation ``noise * sensitivity``.

    If one row changes the value by at most `sensitivity` in L2 norm, a release is the Gaussian mechanism with
    noise multiplier `noise`, whatever the number of entries.
    """

    noise: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", _validate.positive(noise=self.noise))
        object.__setattr__(self, "sensitivity", _validate.positive(sensitivity=self.sensitivity))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry."""
        return self.noise * self.sensitivity

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return the value with an independent normal draw on every entry."""
        noisy = rng.standard_normal(value.shape)
        noisy *= self.noise * self.sensitivity
        noisy += value
        return noisy


@dataclass(frozen=True)
class LaplaceMechanism:
    """Laplace noise of scale ``noise * sensitivity`` (standard deviation: sqrt(2) times the scale).

    If one row changes the value by at most `sensitivity` in L1 norm, a release is (1 / `noise`)-private.
    """

    noise: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", _validate.positive(noise=self.noise))
        object.__setattr__(self, "sensitivity", _validate.positive(sensitivity=self.sensitivity))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry."""
        return math.sqrt(2.0) * self.noise * self.sensitivity

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return the value with an independent Laplace draw on every entry."""
        return value + rng.laplace(0.0, self.noise * self.sensitivity, value.shape)


@dataclass(frozen=True)
class NoNoise:
    """Releases the value as it is: **no privacy at all**, for training without a budget only."""

    @property
    def standard_deviation(self) -> float:
        """There is no noise."""
        return 0.0

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:  # noqa: ARG002 - one signature
        """Return a copy of the value."""
        return np.array(value, dtype=np.float64)
