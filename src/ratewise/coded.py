"""Rows that say the same as others, in groups of columns: each group's distinct pieces are kept once.

A table of categories, one column each, has few distinct rows within a group of its columns, and each row is a
sum of one piece per group (and of numbers, which are kept as they are). Both products that training needs
follow from those with the pieces:

    u w = sum over groups of (pieces w)[code] + numbers w
    u' r = sum over groups of pieces' (sum of r by code) + numbers' r

That reads one code per group in place of one entry per category. Nothing is released here. Which columns go
together is told by public and released numbers, never by the rows, so the margin of a row is the same to the
last bit whatever rows stand beside it. A sum over b rows is one over codes of sums over rows: no term of it
is rounded more than b times, as in any other order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

# Pieces of a group for each row that a step reads; columns that a key tells: sums of their powers of two stay
# exact.
_PIECES, _COLUMNS = 0.125, 52
# Rows read at least so often are coded, where each has at least so many categories per group (measured).
_MANY_READS, _CATEGORIES = 24.0, 3.0
# Where a step reads at least this share of the rows, numbers of all rows are multiplied (measured).
_WHOLE_SHARE = 0.4


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Rows of which each is a sum of pieces and of numbers; as much of an array's manners as products need.

    Parameters
    ----------
    pieces : CSR array with d columns
        The distinct pieces of all groups.
    columns : CSR array
        The same, transposed.
    codes : (G, n) array
        Which piece of each group a row has.
    numbers : (k, n) array
        The columns at `places`, which no piece fills.
    places : k whole numbers
    whole : bool
        Whether products are made for all rows, where only some are asked for: public.
    rows : array of row numbers, or None
        Which rows are meant, if products are made for all; None: all.
    """

    pieces: Any
    columns: Any
    codes: Rows
    numbers: Floats
    places: Rows
    whole: bool = False
    rows: Rows | None = None

    def __getitem__(self, rows: Rows) -> CodedRows:
        """Return some of the rows."""
        if self.whole:
            return CodedRows(self.pieces, self.columns, self.codes, self.numbers, self.places, True, rows)
        codes, numbers = self.codes.take(rows, axis=1), self.numbers.take(rows, axis=1)
        return CodedRows(self.pieces, self.columns, codes, numbers, self.places)

    def dot(self, weights: Floats) -> Floats:
        """Return the product with d weights."""
        product = _by_rows(self.numbers, weights.take(self.places))
        scores = self.pieces.dot(weights)
        for codes in self.codes:
            product += scores.take(codes)
        return product if self.rows is None else product.take(self.rows)

    @property
    def T(self) -> _Transposed:  # noqa: N802 - an array's name for it
        """The columns, for products with one number per row."""
        return _Transposed(self)


@dataclass(frozen=True, eq=False)
class _Transposed:
    of: CodedRows

    def dot(self, residual: Floats) -> Floats:
        """Return the product with a number per row; rows that are not meant add exactly nothing."""
        coded = self.of
        if coded.rows is not None:
            chosen, residual = residual, np.zeros(coded.codes.shape[1])
            residual[coded.rows] = chosen
        sums = np.zeros(coded.pieces.shape[0])
        for codes in coded.codes:
            sums += np.bincount(codes, residual, len(sums))
        product: Floats = coded.columns.dot(sums)
        product[coded.places] = coded.numbers.dot(residual)
        return product


@dataclass(frozen=True, eq=False)
class Coding:
    """Which columns are numbers, and which are categories to be coded together; public.

    Parameters
    ----------
    numbers : array of whole numbers
    groups : list of arrays of whole numbers
        Their columns hold numbers between 0 and 1.
    n_columns : int
    whole : bool
        As for `CodedRows`.
    """

    numbers: Rows
    groups: list[Rows]
    n_columns: int
    whole: bool

    def read(self, block: Floats) -> tuple[Floats, Floats]:
        """Return the numbers of rows, and keys that tell the 0s and 1s of columns; -1 where others occur.

        A group of many columns has several keys.
        """
        parts = [part for places in self.groups for part in _parts(places)]
        powers = np.zeros((self.n_columns, len(parts)))
        for number, places in enumerate(parts):
            powers[places, number] = np.exp2(np.arange(len(places)))
        keys: Floats = block @ powers
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers, which are not asked about
            between = np.einsum("ij,ij->j", block, 1.0 - block)
        for number, places in enumerate(parts):
            if between[places].any():
                values = block[:, places]
                keys[((values != 0.0) & (values != 1.0)).any(axis=1), number] = -1.0
        return np.ascontiguousarray(block[:, self.numbers].T), np.ascontiguousarray(keys.T)

    def rows(self, blocks: list[tuple[Floats, Floats]], again: Callable[[Rows, Rows], Any]) -> CodedRows:
        """Return the rows of several blocks, as `read` found them.

        `again` gives some rows and columns as a CSR array.
        """
        numbers = np.concatenate([block[0] for block in blocks], axis=1)
        keys = iter(np.concatenate([block[1] for block in blocks], axis=1).astype(np.int64))
        codes, pieces, known = [], [], 0
        for places in self.groups:
            key = _joined([next(keys) for _ in _parts(places)])
            _, first, found = np.unique(key, return_index=True, return_inverse=True)
            codes.append(found + known)
            pieces.append(_placed(again(first, places), places, self.n_columns))
            known += len(first)
        stacked = scipy.sparse.vstack(pieces, format="csr")
        columns = scipy.sparse.csr_array(stacked.T)
        return CodedRows(stacked, columns, np.stack(codes), numbers, self.numbers, self.whole)


def _parts(places: Rows) -> list[Rows]:
    """Return a group cut in parts that one key can tell."""
    return [places[start : start + _COLUMNS] for start in range(0, len(places), _COLUMNS)]


def _joined(keys: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return one key in place of several; negative, and of its own, for a row with a negative one."""
    joined, *others = keys
    odd = np.flatnonzero(np.min(keys, axis=0) < 0)
    for key in others:
        _, joined = np.unique(joined, return_inverse=True)
        names, key = np.unique(key, return_inverse=True)
        joined = joined * len(names) + key
    joined[odd] = -1 - odd
    return joined


def coding_for(
    mean: Floats, category: Bools, *, reads: float, n_rows: int, most_rows: float, block_rows: int
) -> Coding | None:
    """Return which columns to code together, or None if that would not pay; all that is asked is public.

    Columns are taken in their order, into groups that tell so little that they have few pieces: together no
    more than the sum of what each tells alone.

    Parameters
    ----------
    mean : array of d numbers
        Released means of the columns; for categories the share of rows that have one.
    category : array of d bools
        Which columns are 0 or 1, by what is public or released; all their values lie between.
    reads : float
        How often a row will be read.
    n_rows, most_rows, block_rows
        How many rows there are, how many a step reads at most, and how many of them at once.

    >>> sizes = {"n_rows": 30_000, "most_rows": 16_000, "block_rows": 32_768}
    >>> found = coding_for(np.full(100, 0.2), np.arange(100) > 3, reads=100, **sizes)
    >>> [len(group) for group in found.groups], found.numbers
    ([15, 16, 16, 16, 16, 17], array([0, 1, 2, 3]))
    """
    share = np.clip(mean, 1e-9, 1.0 - 1e-9)[category]
    groups = _grouped(np.flatnonzero(category), share, max(2.0, _PIECES * most_rows))
    if reads < _MANY_READS or not groups or float(share.sum()) < _CATEGORIES * len(groups):
        return None
    whole = _WHOLE_SHARE * n_rows <= most_rows <= block_rows
    return Coding(np.flatnonzero(~category), groups, len(mean), whole)


def _grouped(places: Rows, share: Floats, pieces: float) -> list[Rows]:
    """Return places cut into groups that tell about as much each, and have about so many pieces or fewer."""
    bits = np.cumsum(-share * np.log2(share) - (1.0 - share) * np.log2(1.0 - share))
    if not len(places):
        return []
    groups = max(1, round(float(bits[-1]) / math.log2(pieces)))
    cuts = np.searchsorted(bits, bits[-1] * np.arange(1, groups) / groups)
    return [group for group in np.split(places, cuts) if len(group)]


def _by_rows(numbers: Floats, weights: Floats) -> Floats:
    """Return ``weights @ numbers``, each entry rounded as if it stood alone.

    BLAS rounds the last few entries otherwise than the others, and `einsum` does so with a single one.
    """
    if numbers.shape[1] == 1:
        return _by_rows(np.repeat(numbers, 2, axis=1), weights)[:1]
    product: Floats = np.einsum("ij,i->j", numbers, weights)
    return product


def _placed(rows: Any, places: Rows, n_columns: int) -> Any:
    """Return a CSR array whose columns go to some places among others, which are empty."""
    shape = rows.shape[0], n_columns
    return scipy.sparse.csr_array((rows.data, places[rows.indices], rows.indptr), shape=shape)
