"""Bounds of columns of numbers that nobody declared, found privately.

Smallest and largest entries are what single people have; a model scaled by them tells on them. Here bounds
come from two releases, which the ledger books before they happen. Both count the rows of m columns at once.
When a row is added or removed, one bin of every column changes by 1, so the sensitivity is ``sqrt(m)``.

1. *The order of magnitude.* Counts over fixed bins, an octave each, of either sign.
2. *The place within it.* Counts over 32 equal bins of the range that the first release left.

Everything after that is post-processing. Counts that could be noise are dropped, and the bounds are the edges
between which 99 of 100 of the other rows lie: entries beyond are cut off.

`outside_counts` goes the other way: how many entries lie beyond bounds that were declared.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.accounting import calibrate
from ratewise.accounting.events import Event, GaussianEvent
from ratewise.domain import list_values
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.mechanisms import Mechanism, NoNoise, RoundedGaussianMechanism

__all__ = ["BoundsPlan", "OutsideCount", "bounds_plan", "count_outside", "private_bounds"]

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]
Book = Callable[[Event, str], object]

_OCTAVES = np.exp2(np.arange(-20, 41))
_COARSE = np.concatenate([-_OCTAVES[::-1], _OCTAVES])  # a millionth to a million million, and zero between
_FINE_BINS = 32
_TAIL = 0.005
_NOISE_DEVIATIONS = 3.0
_SHARE = 0.02  # of the budget, for each of the two releases
_OUTSIDE_SHARE = 0.01
_LEAST_ROWS = 18.0  # deviations of the noise: a column over six octaves then has one that stands out


@dataclass(frozen=True)
class BoundsPlan:
    """Noise of the releases of this module, in units of their sensitivities; None: no such release.

    Attributes
    ----------
    bounds_noise : float or None
        Of each of the two releases that find bounds.
    outside_noise : float or None
        Of the release that counts entries beyond declared bounds.
    """

    bounds_noise: float | None = None
    outside_noise: float | None = None

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """Everything that is released, for the ledger."""
        found = () if self.bounds_noise is None else (GaussianEvent(self.bounds_noise, 2),)
        return (*found, *(() if self.outside_noise is None else (GaussianEvent(self.outside_noise),)))


def bounds_plan(
    epsilon: float | None,
    delta: float,
    neighbours: str = "add_or_remove",
    *,
    n_rows: int,
    n_columns: int,
    outside: bool = False,
) -> BoundsPlan:
    """Return the noise for a share of the budget: 2% for each release of bounds, 1% for the count.

    Parameters
    ----------
    epsilon : float or None
        The whole budget; None plans releases without noise.
    delta, neighbours
        As in `ratewise.accounting`.
    n_rows : int
        Public number of rows.
    n_columns : int
        Number of columns whose bounds are to be found; 0 for none.
    outside : bool
        Whether entries beyond declared bounds are to be counted.

    Raises
    ------
    InvalidInput
        The rows are too few for bounds at this budget. The rule reads public facts only.
    """
    if epsilon is None or not (n_columns or outside):
        return BoundsPlan()
    whole = calibrate(epsilon, delta, 1.0, 1, histogram=None, neighbours=neighbours).gradient_noise
    noise = whole / math.sqrt(_SHARE)
    needed = _LEAST_ROWS * noise * math.sqrt(n_columns)
    if n_columns and n_rows < needed:
        raise InvalidInput(
            f"{n_rows} rows are too few to find the bounds of {n_columns} columns privately at epsilon "
            f"{epsilon:g}: it takes about {math.ceil(needed)}; declare the bounds in the schema, "
            "Number(lower, upper), which costs nothing, or raise epsilon"
        )
    return BoundsPlan(noise if n_columns else None, whole / math.sqrt(_OUTSIDE_SHARE) if outside else None)


def private_bounds(
    columns: Columns, noise: float | None, rng: np.random.Generator, book: Book
) -> dict[str, tuple[float, float]]:
    """Return bounds of each column, from two releases.

    Parameters
    ----------
    columns : mapping of name to vector
        **Private** numbers, none missing; infinite ones count in the outermost bins.
    noise : float or None
        Of each release, in units of its sensitivity. None releases without noise.
    rng : numpy.random.Generator
    book : callable
        Called with each event and its purpose **before** the release.
    """
    if not columns:
        return {}
    mechanism = _mechanism(noise, len(columns))
    _book(book, noise, "orders of magnitude of numbers")
    coarse = mechanism.release(coarse_counts(columns), rng)
    ranges = np.array([range_from(row, _COARSE, mechanism.standard_deviation) for row in coarse])
    _warn_unclear(columns, coarse, mechanism.standard_deviation)
    _book(book, noise, "bounds of numbers")
    fine = mechanism.release(fine_counts(columns, ranges), rng)
    found = {}
    for name, (low, high), row in zip(columns, ranges, fine, strict=True):
        edges = np.linspace(low, high, _FINE_BINS + 1)
        found[name] = range_from(row, edges, mechanism.standard_deviation)
    return found


def coarse_counts(columns: Columns) -> Floats:
    """Return how many rows lie in each octave, one line per column; **private**.

    A row adds 1 to one entry of every line: sensitivity ``sqrt(m)`` in L2 norm for m columns.
    """
    return _counts(columns, [_COARSE] * len(columns))


def fine_counts(columns: Columns, ranges: Floats) -> Floats:
    """Return how many rows lie in each equal part of the ranges; **private**, sensitivity ``sqrt(m)``."""
    return _counts(columns, [np.linspace(low, high, _FINE_BINS + 1) for low, high in ranges])


def _counts(columns: Columns, edges: list[Floats]) -> Floats:
    table = np.zeros((len(columns), len(edges[0]) + 1))
    for line, column, marks in zip(table, columns.values(), edges, strict=True):
        line += np.bincount(np.searchsorted(marks, column, side="right"), minlength=len(line))
    return table


def range_from(counts: Floats, edges: Floats, noise: float) -> tuple[float, float]:
    """Return the edges between which 99 of 100 rows lie, by counts that stand out of the noise.

    Post-processing of released counts; what lies beyond the outermost edges counts in the outermost bins.

    >>> range_from(np.array([0.0, 3.0, 100.0, 90.0, 2.0]), np.array([0.0, 1.0, 2.0, 3.0]), noise=5.0)
    (1.0, 3.0)
    """
    inner = counts[1:-1].copy()
    inner[0] += counts[0]
    inner[-1] += counts[-1]
    sure = np.where(inner > _NOISE_DEVIATIONS * noise, inner, 0.0)
    if not sure.any():
        return float(edges[0]), float(edges[-1])
    below = np.cumsum(sure) / sure.sum()
    first = int(np.searchsorted(below, _TAIL, side="right"))
    last = int(np.searchsorted(below, 1.0 - _TAIL))
    return float(edges[first]), float(edges[last + 1])


def _warn_unclear(columns: Columns, coarse: Floats, noise: float) -> None:
    unclear = [
        name for name, row in zip(columns, coarse, strict=True) if not (row > _NOISE_DEVIATIONS * noise).any()
    ]
    if unclear:
        warnings.warn(
            f"too much noise to find the bounds of {list_values(unclear)}: they are scaled by bounds so wide "
            "that little will be left of them; declare their bounds in the schema",
            RatewiseWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class OutsideCount:
    """About how many entries lie below and above the declared bounds of a column: released, noisy values."""

    below: float
    above: float
    deviation: float

    def __str__(self) -> str:
        return (
            f"about {max(self.below, 0.0):.0f} below and {max(self.above, 0.0):.0f} above "
            f"(noise {self.deviation:.0f})"
        )


def outside_counts(columns: Columns, bounds: Mapping[str, tuple[float, float]]) -> Floats:
    """Return how many entries lie below and above the bounds of each column; **private**.

    A row adds 1 to at most one entry of every column: sensitivity ``sqrt(m)`` in L2 norm.
    """
    return np.array(
        [
            [np.count_nonzero(columns[name] < low), np.count_nonzero(columns[name] > high)]
            for name, (low, high) in bounds.items()
        ],
        dtype=np.float64,
    ).reshape(-1, 2)


def count_outside(
    columns: Columns,
    bounds: Mapping[str, tuple[float, float]],
    noise: float | None,
    rng: np.random.Generator,
    book: Book,
) -> dict[str, OutsideCount]:
    """Return noisy counts of the entries beyond the bounds; arguments as in `private_bounds`."""
    if not bounds:
        return {}
    mechanism = _mechanism(noise, len(bounds))
    _book(book, noise, "entries beyond declared bounds")
    released = mechanism.release(outside_counts(columns, bounds), rng)
    return {
        name: OutsideCount(float(below), float(above), mechanism.standard_deviation)
        for name, (below, above) in zip(bounds, released, strict=True)
    }


def warn_outside(found: Mapping[str, OutsideCount], n_rows: int, share: float = 0.01) -> None:
    """Warn of columns that are cut off in more than `share` of the rows, by released counts."""
    cut = [
        f"{name!r}: {count}"
        for name, count in found.items()
        if max(count.below, count.above) - _NOISE_DEVIATIONS * count.deviation > share * n_rows
    ]
    if cut:
        warnings.warn(
            f"of {n_rows} rows many lie beyond the declared bounds and are cut off there: "
            f"{'; '.join(cut)}. Declare wider bounds if that is not meant",
            RatewiseWarning,
            stacklevel=3,
        )


def _mechanism(noise: float | None, n_columns: int) -> Mechanism:
    if noise is None:
        return NoNoise()
    # the slack covers the rounding of the root
    return RoundedGaussianMechanism(noise, math.sqrt(n_columns), whole=True, slack=1e-12)


def _book(book: Any, noise: float | None, purpose: str) -> None:
    if noise is not None:
        book(GaussianEvent(noise), purpose)
