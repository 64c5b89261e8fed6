"""Rows that are mostly zero but for what is taken off each feature: kept without the zeros.

A table of categories, one column each, is nine tenths zeros until its means are taken off. ``factor * (u -
shift)`` with u sparse is the same row, and both products that training needs follow from those with u:

    x w = u (factor w) - shift (factor w)            x' r = factor (u' r - shift sum(r))

That reads a tenth of the memory. Nothing is released here. Whether rows are kept so is told by means and
deviations that were released before, and what rounding can add to a sensitivity is bounded by public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.mechanisms import CENTRING_SLACK

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

# Rows summed at once: rounding grows with their number, and time falls.
_BLOCK_ROWS = 1 << 15, 1 << 14, 1 << 13, 1 << 12
# Products of factors and weights stay far from the largest number.
_LARGEST_FACTOR = 1e100


@dataclass(frozen=True, eq=False)
class CentredRows:
    """Rows ``factor * (entries - shift)``, with as much of an array's manners as the products need.

    Parameters
    ----------
    entries : CSR array of shape (m, d)
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


def stored_share(mean: Floats, deviation: Floats) -> float:
    """Return about what share of the entries is not zero, by released means and deviations of features.

    A feature of mean m that is 0 or 1 has variance m (1 - m) and is not zero in a share m of the rows. One
    with much less is a number, and counted as never zero.

    >>> float(stored_share(np.array([0.1, 0.1]), np.array([0.3, 0.05])))
    0.55
    """
    category = (mean < 1.0) & (np.square(deviation) > 0.5 * mean * (1.0 - mean))
    return float(np.mean(np.where(category, np.maximum(mean, 0.0), 1.0)))


def block_rows_for(shift: Floats, factor: Floats, most_rows: float) -> int | None:
    """Return how many rows may be summed at once for rounding to stay within `CENTRING_SLACK`, or None.

    Let S be the length of ``factor * shift``. A residual is at most ``clip / sqrt(|x|^2 + 1)``, so what a row
    adds to the two sums of a product has size at most ``clip * (1 + 2 S)`` in place of `clip`, and rounding
    goes by those sizes: over m rows in blocks of b by ``(b + m/b) * m * 2**-52`` times them, for two data
    sets. The 1 of the bracket is in every plan's slack already.

    >>> block_rows_for(np.full(100, 0.3), np.full(100, 2.0), 20_000)
    32768
    >>> block_rows_for(np.array([2020.0]), np.array([0.2]), 60_000)  # a year beside its spread: None
    """
    if not np.all(np.abs(factor) <= _LARGEST_FACTOR):
        return None
    added = 2.0 * float(np.linalg.norm(factor * shift)) * most_rows * 2.0**-52
    for block in _BLOCK_ROWS:
        if added * (min(block, most_rows) + math.ceil(most_rows / block)) <= CENTRING_SLACK:
            return block
    return None
