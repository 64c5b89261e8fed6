"""Numerators and denominators of terms from a histogram, and the way back; dense if small, else sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.cells import Subset

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Terms:
    """The distinct terms, as positions: numerator subset, class, denominator subset, and whether a ratio."""

    numerator: Ints
    klass: Ints
    denominator: Ints
    ratio: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.klass)


class Kernel(Protocol):
    """How the fractions are computed; `totals` are row counts per cell, None: those of the histogram."""

    def fractions(self, h: Floats, totals: Floats | None) -> tuple[Floats, Floats]:
        """Return numerators and denominators of the terms."""

    def denominators(self, h: Floats, totals: Floats | None) -> Floats:
        """Return the denominators of the terms."""

    def spread(self, share: Floats) -> Floats:
        """Return the table (Q * K) that gives each numerator's entries their term's amount."""

    def spread_ratios(self, share: Floats) -> Floats:
        """Return the table (Q * K) that gives each ratio's denominator entries their term's amount."""


class DenseKernel:
    """Everything as small matrices over the Q * K histogram."""

    def __init__(self, subsets: list[Subset], terms: Terms, cells: int, classes: int) -> None:
        inside = np.stack([_mask(subset, cells) for subset in subsets])
        chosen = np.eye(classes)[terms.klass]
        self._numerator = _pairs(inside[terms.numerator], chosen)
        rows = inside[terms.denominator]
        share = ~terms.ratio[:, None]
        self._ratio = _pairs(rows * ~share, chosen)
        self._of_cells = np.ascontiguousarray(rows * share)
        over = np.repeat(self._of_cells, classes, axis=1) + self._ratio
        self._denominator = over
        self._both = np.concatenate([self._numerator, over])
        self._terms, self._has_ratio = len(terms), bool(terms.ratio.any())

    def fractions(self, h: Floats, totals: Floats | None) -> tuple[Floats, Floats]:
        """Return numerators and denominators of the terms."""
        if totals is None:
            both = self._both @ h
            return both[: self._terms], both[self._terms :]
        return self._numerator @ h, self.denominators(h, totals)

    def denominators(self, h: Floats, totals: Floats | None) -> Floats:
        """Return the denominators of the terms."""
        if totals is None:
            return self._denominator @ h
        counts = self._of_cells @ totals
        return counts + self._ratio @ h if self._has_ratio else counts

    def spread(self, share: Floats) -> Floats:
        """Return the table that gives each numerator's entries their term's amount."""
        return share @ self._numerator

    def spread_ratios(self, share: Floats) -> Floats:
        """Return the table that gives each ratio's denominator entries their term's amount."""
        return share @ self._ratio


class SparseKernel:
    """Distinct (subset, class) pairs as rows of one sparse matrix; "all but" subsets by subtraction."""

    def __init__(self, subsets: list[Subset], terms: Terms, cells: int, classes: int) -> None:
        self._shape = cells, classes
        self._ratio, self._share = np.flatnonzero(terms.ratio), np.flatnonzero(~terms.ratio)
        self._pairs = _Pairs(subsets, terms, self._ratio, cells, classes)
        counted, self._counted = np.unique(terms.denominator[self._share], return_inverse=True)
        self._counts = _Sums(
            [subsets[s].listed for s in counted], [subsets[s].others for s in counted], cells
        )

    def fractions(self, h: Floats, totals: Floats | None) -> tuple[Floats, Floats]:
        """Return numerators and denominators of the terms."""
        pairs = self._pairs.counts(h)
        return self._pairs.numerators(pairs), self._denominators(h, totals, pairs)

    def denominators(self, h: Floats, totals: Floats | None) -> Floats:
        """Return the denominators of the terms."""
        return self._denominators(h, totals, self._pairs.counts(h) if len(self._ratio) else None)

    def _denominators(self, h: Floats, totals: Floats | None, pairs: Floats | None) -> Floats:
        totals = h.reshape(self._shape).sum(axis=1) if totals is None else totals
        shares = self._counts.of(totals)[self._counted]
        if pairs is None or not len(self._ratio):
            return shares
        result = np.empty(len(self._ratio) + len(self._share))
        result[self._share] = shares
        result[self._ratio] = pairs[self._pairs.of_ratio]
        return result

    def spread(self, share: Floats) -> Floats:
        """Return the table that gives each numerator's entries their term's amount."""
        return self._pairs.spread_numerators(share)

    def spread_ratios(self, share: Floats) -> Floats:
        """Return the table that gives each ratio's denominator entries their term's amount."""
        return self._pairs.spread(sum_by(self._pairs.of_ratio, share[self._ratio], len(self._pairs)))


class _Sums:
    """Sums over index sets, some of them given as "all but these"."""

    def __init__(self, listed: list[Ints], others: list[bool], columns: int) -> None:
        self._matrix = zero_one_rows(listed, columns)
        self._others = np.array(others, dtype=np.float64)
        self._sign = 1.0 - 2.0 * self._others
        self._plain = not any(others)

    def of(self, numbers: Floats) -> Floats:
        sums: Floats = self._matrix @ numbers
        if not self._plain:
            sums *= self._sign
            sums += self._others * numbers.sum()
        return sums


class _Pairs:
    """The (subset, class) pairs that terms count; in the order of the terms if each has its own."""

    def __init__(self, subsets: list[Subset], terms: Terms, ratio: Ints, cells: int, classes: int) -> None:
        keys = np.concatenate([terms.numerator, terms.denominator[ratio]]) * classes
        keys += np.concatenate([terms.klass, terms.klass[ratio]])
        distinct, place = np.unique(keys, return_inverse=True)
        self._own = len(distinct) == len(keys)
        distinct, place = (keys, np.arange(len(keys))) if self._own else (distinct, place)
        self._of_term, self.of_ratio = place[: len(terms)], place[len(terms) :]
        owners, self._class = distinct // classes, distinct % classes
        self._others = np.array([subsets[s].others for s in owners], dtype=np.float64)
        self._sign, self._plain = 1.0 - 2.0 * self._others, not self._others.any()
        self._shape, self._own = (cells, classes), self._own and not len(ratio)
        listed = [subsets[s].listed * classes + k for s, k in zip(owners, self._class, strict=True)]
        self._matrix = zero_one_rows(listed, cells * classes)
        self._transposed = sp.csr_array(self._matrix.T)

    def __len__(self) -> int:
        return len(self._sign)

    def counts(self, h: Floats) -> Floats:
        counts: Floats = self._matrix @ h
        if not self._plain:
            counts *= self._sign
            counts += self._others * h.reshape(self._shape).sum(axis=0)[self._class]
        return counts

    def numerators(self, counts: Floats) -> Floats:
        return counts if self._own else counts[self._of_term]

    def spread_numerators(self, amount: Floats) -> Floats:
        return self.spread(amount if self._own else sum_by(self._of_term, amount, len(self)))

    def spread(self, amount: Floats) -> Floats:
        if self._plain:
            return self._transposed @ amount
        table: Floats = self._transposed @ (amount * self._sign)
        everywhere = sum_by(self._class, amount * self._others, self._shape[1])
        table.reshape(self._shape)[...] += everywhere
        return table


def _mask(subset: Subset, cells: int) -> Floats:
    mask = np.full(cells, float(subset.others))
    mask[subset.listed] = 1.0 - subset.others
    return mask


def _pairs(cells: Floats, classes: Floats) -> Floats:
    """Return row by row the outer product of a set of cells and a class, flattened to Q * K."""
    return np.ascontiguousarray((cells[:, :, None] * classes[:, None, :]).reshape(len(cells), -1))


def sum_by(place: NDArray[Any], amount: Floats, count: int) -> Floats:
    """Return the sum of the amounts at each of 0..count-1."""
    sums: Floats = np.bincount(place, amount, count)  # type: ignore[assignment]  # with amounts it gives floats
    return sums


def zero_one_rows(lists: list[Ints], columns: int) -> Any:
    """Return the 0/1 matrix whose row r has ones at ``lists[r]``."""
    ends = np.cumsum([0, *map(len, lists)])
    listed = np.concatenate(lists) if lists else np.empty(0, dtype=np.int64)
    kind = np.int32 if max(columns, len(listed)) < 2**31 else np.int64
    return sp.csr_array(
        (np.ones(len(listed)), listed.astype(kind), ends.astype(kind)), shape=(len(lists), columns)
    )
