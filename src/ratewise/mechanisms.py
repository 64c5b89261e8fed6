"""Releases: the only way from private sums to values that may leave a step.

Each mechanism adds its own independent draw to every entry of what it is given. The noise is in units of the
sensitivity, as in `ratewise.accounting`, so that the numbers in a ledger are the numbers used here.

Two kinds of noise. *Continuous* noise is drawn and added in double precision. *Discrete* noise is a whole
number of steps of a grid, drawn exactly and added to a value that was rounded to that grid: what comes out
has no low bits that could tell two data sets apart, and what is proven for real numbers holds of it.

>>> rng = np.random.default_rng(0)
>>> GaussianMechanism(noise=2.0, sensitivity=0.5).release(np.zeros(3), rng).round(2)
array([ 0.13, -0.13,  0.64])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.discrete_noise import Prefetched, grid_below, rounded_laplace, rounded_normal

Floats = npt.NDArray[np.float64]

_MOST_STEPS = np.array(2.0**52)  # arithmetic with Python's numbers takes longer


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
class RoundedGaussianMechanism:
    """The outcome of `GaussianMechanism`, rounded to a grid, without its floating-point holes.

    The value is rounded to whole multiples of `grid` (a rule without data), and an exact draw of a rounded
    Gaussian is added in whole numbers. That is the real Gaussian mechanism on the rounded value, followed by
    rounding: post-processing. Rounding d entries can move two neighbouring values apart by another
    ``grid * sqrt(d)``, and summing rows in double precision by ``slack * sensitivity``. The noise is
    `noise` times the sensitivity **with both added**, so that `noise` is true of what happens.

    Parameters
    ----------
    noise, sensitivity : float
        As for `GaussianMechanism`.
    whole : bool
        The value holds whole numbers, such as counts: rounding does nothing to it and costs nothing.
    slack : float
        Relative room for rounding errors in the sums that are released.
    """

    noise: float
    sensitivity: float = 1.0
    whole: bool = False
    slack: float = 0.0
    grid: float = field(init=False)
    _noise: Prefetched = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self, rounded_normal, 20)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.noise, self.sensitivity, self.whole, self.slack)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry, but for the room that rounding takes."""
        return self.noise * self.sensitivity

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return the rounded value with an independent rounded normal draw on every entry."""
        return _on_grid(self, value, math.sqrt(value.size), rng)


@dataclass(frozen=True)
class RoundedLaplaceMechanism:
    """The outcome of `LaplaceMechanism`, rounded to a grid, without its floating-point holes.

    As `RoundedGaussianMechanism`; in L1 norm rounding d entries moves neighbours apart by ``grid * d``, so
    the grid of values that are not whole numbers is finer.
    """

    noise: float
    sensitivity: float = 1.0
    whole: bool = False
    slack: float = 0.0
    grid: float = field(init=False)
    _noise: Prefetched = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self, rounded_laplace, 28)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.noise, self.sensitivity, self.whole, self.slack)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry, but for the room that rounding takes."""
        return math.sqrt(2.0) * self.noise * self.sensitivity

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return the rounded value with an independent rounded Laplace draw on every entry."""
        return _on_grid(self, value, float(value.size), rng)


# Relative room for sums over rows that are kept apart from their means (`ratewise.centred`).
CENTRING_SLACK = 1e-5


def summation_slack(rows: float, in_blocks_of: float | None = None) -> float:
    """Return the relative room that sums of so many rows in double precision need, for two data sets.

    Adding m numbers in any order is off by at most ``m * 2**-53`` times the sum of their sizes, to first
    order; in blocks, by the rows of a block plus the number of blocks in place of m. A billionth on top
    covers the rounding within rows, norms and clipping factors among it.

    >>> summation_slack(512) < 1e-8 and summation_slack(1e7, in_blocks_of=1000) < 1e-4
    True
    """
    added = rows if in_blocks_of is None else min(rows, in_blocks_of + rows / in_blocks_of)
    return 1e-9 + rows * added * 2.0**-52


_Draw = Callable[[float, int, np.random.Generator], Floats]


def _check(mechanism: RoundedGaussianMechanism | RoundedLaplaceMechanism, draw: _Draw, fineness: int) -> None:
    noise = _validate.positive(noise=mechanism.noise)
    sensitivity = _validate.positive(sensitivity=mechanism.sensitivity)
    grid = grid_below(noise * sensitivity, 20 if mechanism.whole else fineness)
    checked: dict[str, Any] = {
        "noise": noise,
        "sensitivity": sensitivity,
        "slack": _validate.non_negative(slack=mechanism.slack),
        "grid": min(grid, 1.0) if mechanism.whole else grid,  # whole numbers lie on the grid
        "_noise": Prefetched(draw),
    }
    for name, found in checked.items():
        object.__setattr__(mechanism, name, found)


def _on_grid(
    mechanism: RoundedGaussianMechanism | RoundedLaplaceMechanism,
    value: Floats,
    rounding: float,
    rng: np.random.Generator,
) -> Floats:
    """Return value and noise, added in whole steps of the grid.

    Doubles count exactly to 2**53 steps, that is to 2**24 deviations of the noise or more. What is further
    out is cut off: cutting off is the same rule for all data, and moves no two values apart.
    """
    grid = mechanism.grid
    apart = mechanism.sensitivity * (1.0 + mechanism.slack) + (0.0 if mechanism.whole else grid * rounding)
    steps = np.multiply(value, 1.0 / grid)
    np.rint(steps, out=steps)
    np.minimum(steps, _MOST_STEPS, out=steps)
    np.maximum(steps, -_MOST_STEPS, out=steps)
    steps += mechanism._noise.take(mechanism.noise * apart / grid, value.size, rng).reshape(value.shape)
    steps *= grid
    return steps


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
