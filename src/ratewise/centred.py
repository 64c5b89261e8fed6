"""Rows that are mostly zero but for what is taken off each feature: kept without the zeros.

A table of categories, one column each, is nine tenths zeros until its means are taken off. ``factor * (u -
shift)`` with u sparse is the same row, and both products that training needs follow from those with u:

    x w = u (factor w) - shift (factor w)            x' r = factor (u' r - shift sum(r))

That reads a tenth of the memory. Nothing is released here. Whether rows are kept so is told by means and
deviations that were released before, and what rounding can add to a sensitivity is bounded by public numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from ratewise.coded import Coding, coding_for
from ratewise.mechanisms import CENTRING_SLACK

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

# Zeros are left out where at most this share of the entries remains, and a step reads so many (measured).
_SPARSE_SHARE, _SPARSE_ENTRIES = 0.25, 1 << 19
_BYTES_PER_ENTRY = 12  # the number and its column
_RAISED, _RAISED_FLAGS = 0.01, 0.1  # variance that noise alone may make of a rare feature
# Rows summed at once: rounding grows with their number, and time falls.
_BLOCK_ROWS = 1 << 15, 1 << 14, 1 << 13, 1 << 12
# Products of factors, entries and weights stay far from the largest number.
_FACTORS = 1e-100, 1e100
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class CentredRows:
    """Rows ``factor * (entries - shift)``, with as much of an array's manners as the products need.

    Parameters
    ----------
    entries : CSR array of shape (m, d), or CodedRows
    shift, factor : array of d numbers
    """

    entries: Any
    shift: Floats
    factor: Floats

    def take(self, rows: Rows) -> CentredRows:
        """Return some of the rows."""
        return CentredRows(self.entries[rows], self.shift, self.factor)

    def dot(self, weights: Floats) -> Floats:
        """Return the product with weights of shape (d,) or (d, K)."""
        scaled = (self.factor * weights.T).T
        product: Floats = self.entries.dot(scaled)
        product -= self.shift.dot(scaled)
        return product

    @property
    def T(self) -> _Transposed:  # noqa: N802 - an array's name for it
        """The columns, for products with one number (or K of them) per row."""
        return _Transposed(self)


@dataclass(frozen=True, eq=False)
class _Transposed:
    of: CentredRows

    def dot(self, residual: Floats) -> Floats:
        """Return the product with residuals of shape (m,) or (m, K)."""
        rows = self.of
        product: Floats = rows.entries.T.dot(residual)
        product -= np.multiply.outer(rows.shift, residual.sum(axis=0))
        return (rows.factor * product.T).T


@dataclass(frozen=True, eq=False)
class Centring:
    """How rows are to be kept: as ``factor * (u - shift)``, u being what differs from `rest`; public.

    Parameters
    ----------
    rest, shift, factor : array of d numbers
    block_rows : int
        How many rows may be summed at once.
    coding : Coding or None
        How categories are kept by their distinct pieces, if so.
    """

    rest: Floats
    shift: Floats
    factor: Floats
    block_rows: int
    coding: Coding | None = None

    def differences(self, block: Floats) -> Any:
        """Return what differs from `rest` in rows that were cut off at their bounds, as it is to be kept."""
        others = block - self.rest
        return scipy.sparse.csr_array(others) if self.coding is None else self.coding.read(others)

    def rows(self, differences: list[Any], again: Callable[[Rows], Iterable[Floats]]) -> CentredRows:
        """Return the rows of several blocks; `again` gives blocks of some rows, as `differences` saw them."""
        if self.coding is None:
            return CentredRows(_stacked(differences), self.shift, self.factor)

        def some(rows: Rows, columns: Rows) -> Any:
            rest = self.rest[columns]
            return _stacked([scipy.sparse.csr_array(block[:, columns] - rest) for block in again(rows)])

        return CentredRows(self.coding.rows(differences, some), self.shift, self.factor)


def _stacked(blocks: list[Any]) -> Any:
    return scipy.sparse.vstack(blocks, format="csr")


def centring_for(
    bounds: tuple[Floats, Floats] | None,
    shift: Floats,
    factor: Floats,
    *,
    n_rows: int,
    most_rows: float,
    most_bytes: int,
    reads: float = 0.0,
    flags: Bools | None = None,
) -> Centring | None:
    """Return how to keep rows without what is zero, or None if that would not pay, or not be sound.

    All that is asked is public or was released: the size of the table, its bounds, means and deviations.

    Parameters
    ----------
    bounds : two arrays of d numbers, or None
        Where features are cut off; what rests is the value nearest to zero within them.
    shift, factor : array of d numbers
        What is taken off features after that, and what they are multiplied by.
    n_rows : int
    most_rows : float
        Rows of the largest batch.
    most_bytes : int
        Room for what is kept.
    reads : float
        How often a row will be read.
    flags : array of d bools, or None
        Which features are declared to lie between 0 and 1, as flags do; None if that is not known, or if
        products are with more than one number per row or feature.
    """
    n_features = len(shift)
    if most_rows * n_features < _SPARSE_ENTRIES:
        return None
    rest, width, one_sided = np.zeros(n_features), np.ones(n_features), np.zeros(n_features, dtype=bool)
    raised = np.full(n_features, _RAISED)
    if bounds is not None:
        lower, upper = bounds
        rest = np.clip(rest, lower, upper)
        width = np.maximum(np.maximum(upper - rest, rest - lower), _TINY)
        one_sided = (lower >= 0.0) | (upper <= 0.0)
        # beside numbers that were found, features without bounds are flags, or too rare to be seen
        raised, width = (
            np.where(np.isinf(width), _RAISED_FLAGS, _RAISED),
            np.where(np.isinf(width), 1.0, width),
        )
    with np.errstate(over="ignore"):
        mean = np.abs(shift - rest) / width
        deviation = 1.0 / np.maximum(factor * width, _TINY)
        share = stored_share(mean, deviation, one_sided, raised)
    if share > _SPARSE_SHARE or share * n_rows * n_features * _BYTES_PER_ENTRY > most_bytes:
        return None
    block_rows = block_rows_for(shift - rest, factor, most_rows)
    if block_rows is None:
        return None
    coding = None
    if flags is not None:
        coding = coding_for(
            mean,
            flags & categories(mean, deviation, one_sided, raised),
            reads=reads,
            n_rows=n_rows,
            most_rows=most_rows,
            block_rows=block_rows,
        )
    return Centring(rest, shift - rest, factor, block_rows, coding)


def categories(mean: Floats, deviation: Floats, one_sided: Bools, raised: Floats | float = _RAISED) -> Bools:
    """Return which features are mostly at rest, by released means and deviations from there.

    A feature of mean m that is 0 or 1 has variance m (1 - m) and is not zero in a share m of the rows. One
    with much less is a number, and counted as never zero; so is one with much more than that and than noise
    may have raised it by, unless its bounds begin where it rests: then it cannot have more, and it is rare.

    >>> one_sided = np.array([True, True, False])
    >>> categories(np.array([0.1, 0.1, 0.0]), np.array([0.3, 0.05, 1.0]), one_sided)
    array([ True, False, False])
    """
    with np.errstate(over="ignore"):
        variance = np.square(deviation)
    usual = mean * (1.0 - mean)
    return (mean < 1.0) & (variance > 0.5 * usual) & (one_sided | (variance < 4.0 * usual + raised))


def stored_share(
    mean: Floats, deviation: Floats, one_sided: Bools, raised: Floats | float = _RAISED
) -> float:
    """Return about what share of the entries is not at rest, by released means and deviations from there.

    >>> one_sided = np.array([True, True, False])
    >>> round(stored_share(np.array([0.1, 0.1, 0.0]), np.array([0.3, 0.05, 1.0]), one_sided), 3)
    0.7
    """
    return float(np.mean(np.where(categories(mean, deviation, one_sided, raised), mean, 1.0)))


def block_rows_for(shift: Floats, factor: Floats, most_rows: float) -> int | None:
    """Return how many rows may be summed at once for rounding to stay within `CENTRING_SLACK`, or None.

    Let S be the length of ``factor * shift``. A residual is at most ``clip / sqrt(|x|^2 + 1)``, so what a row
    adds to the two sums of a product has size at most ``clip * (1 + 2 S)`` in place of `clip`, and rounding
    goes by those sizes: over m rows in blocks of b by ``(b + 4) * m * 2**-52`` times them, for two data sets.
    The 1 of the bracket is in every plan's slack already, and so are sums over blocks, which have both parts
    in them.

    >>> block_rows_for(np.full(100, 0.3), np.full(100, 2.0), 20_000)
    32768
    >>> block_rows_for(np.array([2020.0]), np.array([0.2]), 60_000)  # a year beside its spread: None
    """
    sizes = np.abs(factor[factor != 0.0])
    if not np.all((sizes >= _FACTORS[0]) & (sizes <= _FACTORS[1])):
        return None
    added = 2.0 * float(np.linalg.norm(factor * shift)) * most_rows * 2.0**-52
    for block in _BLOCK_ROWS:
        if added * (min(block, most_rows) + 4.0) <= CENTRING_SLACK:
            return block
    return None
