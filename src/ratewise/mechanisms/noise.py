"""Mechanisms: the only way from private sums to values that may leave a step, for NumPy and for PyTorch.

Each mechanism adds its own independent draw to every entry of what it is given. The noise is in units of the
sensitivity, as in `ratewise.accounting`, and an integer number of steps of a grid, added to a value that was
rounded to that grid: the result has no low bits that could distinguish two data sets, and what is proven for
real numbers holds.

>>> rng = np.random.default_rng(0)
>>> released = RoundedGaussianMechanism(noise=2.0, sensitivity=0.5).release(np.zeros(3), rng)
>>> bool(np.all(released % 2.0**-24 == 0))
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.mechanisms.discrete import CHUNK, Prefetched, rounded_laplace, rounded_normal

Floats = npt.NDArray[np.float64]

Arrays = Sequence[npt.NDArray[Any]]

_MOST_STEPS = 2.0**52


class Mechanism(Protocol):
    """Turns a private value into one that may be seen."""

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry, in units of the value, before rounding."""

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return a new array: the value with fresh noise on every entry."""

    def release_parts(self, parts: Arrays, rng: np.random.Generator, out: Arrays | None = None) -> None:
        """Release one value that is held in several arrays into others, in their precision, or in place."""


@dataclass(frozen=True)
class _OnGrid:
    """What mechanisms that add noise on a grid share."""

    _draw: ClassVar[Any]  # of scale, number of draws and generator
    _fineness: ClassVar[int]  # of the grid, in octaves below the noise
    _rounding: ClassVar[Any]  # how far rounding d entries to integers moves two vectors apart
    _unit: ClassVar[float]  # standard deviation of a draw of scale 1

    noise: float
    sensitivity: float = 1.0
    whole: bool = False
    slack: float = 0.0
    step: float = 1.0
    grid: float = field(init=False)
    _noise: Prefetched = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        noise = _validate.positive(noise=self.noise)
        sensitivity = _validate.positive(sensitivity=self.sensitivity)
        octave = math.frexp(noise * sensitivity)[1] - 1
        grid = math.ldexp(1.0, octave - (20 if self.whole else self._fineness))
        grid = min(grid, self.step) if self.whole else grid  # multiples of the step lie on the grid
        slack, source = _validate.non_negative(slack=self.slack), Prefetched(type(self)._draw)
        checked = {"noise": noise, "sensitivity": sensitivity, "slack": slack, "grid": grid, "_noise": source}
        for name, found in checked.items():
            object.__setattr__(self, name, found)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.noise, self.sensitivity, self.whole, self.slack, self.step)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each entry, without what rounding adds."""
        return self._unit * self.noise * self.sensitivity

    def release(self, value: Floats, rng: np.random.Generator) -> Floats:
        """Return the rounded value with an independent rounded draw on every entry."""
        released: Floats = np.multiply(value, 1.0 / self.grid)
        entries = released.reshape(-1)
        scale = self._scale(len(entries))
        for start in range(0, len(entries), CHUNK):
            self._add_noise(entries[start : start + CHUNK], scale, rng)
        return released

    def release_parts(self, parts: Arrays, rng: np.random.Generator, out: Arrays | None = None) -> None:
        """Release arrays that together are one value into other arrays, or in place, as `release` would.

        Arrays in single precision get the released number rounded to it, which is post-processing. One thread does
        the work: a second one makes it no faster, as both wait for Python's lock.
        """
        out = parts if out is None else out
        values, results = [part.reshape(-1) for part in parts], [part.reshape(-1) for part in out]
        sizes = [len(entries) for entries in values]
        scale = self._scale(sum(sizes))

        for pieces in _pieces(sizes):
            buffer = np.concatenate([values[number][a:b] for number, a, b in pieces], dtype=np.float64)
            buffer *= 1.0 / self.grid
            self._add_noise(buffer, scale, rng)
            for number, a, b in pieces:
                results[number][a:b], buffer = buffer[: b - a], buffer[b - a :]
        for part, entries in zip(out, results, strict=True):
            if not np.shares_memory(part, entries):
                part[...] = entries.reshape(part.shape)

    def _scale(self, size: int) -> float:
        """Return the scale of the noise, in steps of the grid, for a value with so many entries."""
        rounding = 0.0 if self.whole else self.grid * self._rounding(size)
        return self.noise * (self.sensitivity * (1.0 + self.slack) + rounding) / self.grid

    def _add_noise(self, steps: Floats, scale: float, rng: np.random.Generator) -> None:
        """Turn a value in units of the grid, in place, into the released one.

        Doubles hold integers up to 2**53 exactly. Values are cut off at 2**52 steps, that is at 2**24
        deviations of the noise or more: the same function for all data, which moves no two values apart. NaN
        gives the largest value; engines must not pass it.
        """
        np.rint(steps, out=steps)
        np.clip(steps, -_MOST_STEPS, _MOST_STEPS, out=steps)
        np.copyto(steps, _MOST_STEPS, where=np.isnan(steps))
        steps += self._noise.take(scale, len(steps), rng)
        steps *= self.grid


@dataclass(frozen=True)
class RoundedGaussianMechanism(_OnGrid):
    """Gaussian noise of standard deviation ``noise * sensitivity`` on a grid, without floating-point holes.

    If one unit changes the value by at most `sensitivity` in L2 norm, a release is the Gaussian mechanism
    with noise multiplier `noise`, whatever the number of entries: an exact draw of a rounded Gaussian is
    added in integers to the value rounded to multiples of `grid` (a power of two that does not depend on
    data). Rounding d entries can move two neighbouring values apart by another ``grid * sqrt(d)``, and
    rounding errors in the sums that are released by ``slack * sensitivity`` (see `summation_slack`). The
    noise is `noise` times the sensitivity **with both added**. A value that is `whole` holds multiples of
    `step`, a power of two, such as counts: rounding does nothing to it and costs nothing.
    """

    _draw, _rounding = staticmethod(rounded_normal), staticmethod(math.sqrt)
    _fineness, _unit = 24, 1.0


@dataclass(frozen=True)
class RoundedLaplaceMechanism(_OnGrid):
    """Laplace noise of scale ``noise * sensitivity`` on a grid, otherwise as `RoundedGaussianMechanism`.

    If one unit changes the value by at most `sensitivity` in L1 norm, a release is (1 / `noise`)-private. In
    L1 norm rounding d entries moves neighbours apart by ``grid * d``, so the grid of values that are not
    whole is finer.
    """

    _draw, _rounding = staticmethod(rounded_laplace), staticmethod(float)
    _fineness, _unit = 28, math.sqrt(2.0)


def _pieces(lengths: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Cut arrays, seen as one, into pieces of CHUNK entries: lists of array number, start and stop."""
    ends = np.cumsum(lengths).tolist()
    total = ends[-1] if ends else 0
    for first in range(0, total, CHUNK):
        last = min(first + CHUNK, total)
        spans = enumerate(zip(ends, lengths, strict=True))
        cut = [(n, max(0, first - end + size), min(size, last - end + size)) for n, (end, size) in spans]
        yield [(number, start, stop) for number, start, stop in cut if start < stop]


def summation_slack(rows: float) -> float:
    """Return the relative bound on rounding errors of sums in double precision, for two data sets.

    Adding m numbers in any order is off by at most ``m * 2**-53`` times the sum of their sizes, to first
    order. A billionth on top covers the second order and rounding within rows, such as in norms and clipping
    factors.
    """
    return 1e-9 + rows * rows * 2.0**-52


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

    def release_parts(self, parts: Arrays, rng: np.random.Generator, out: Arrays | None = None) -> None:  # noqa: ARG002
        """Copy the arrays into the others."""
        for part, released in zip(parts, parts if out is None else out, strict=True):
            released[...] = part
