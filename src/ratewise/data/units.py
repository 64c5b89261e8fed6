"""Units of privacy: one row, or all rows of one id.

The number of units is public. The rows of an id are private, and so is their number. At most `max_rows` rows
of an id are used, in the order of the table; rows without a usable label are not. Weights bound what an id adds to
a histogram to L1 norm 1: ``1 / (rows used)`` per row, so that every person counts the same, or ``1 / max_rows``, so
that every row does. They are rounded down to multiples of `Units.step`, so that sums of them are exact.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.data.cells import NUMBER, parse_ids, parse_number, stored_column, text_of_float

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

_WEIGHT_BITS = 20


@dataclass(frozen=True, eq=False)
class Units:
    """Which rows belong to which unit.

    Attributes
    ----------
    n_units : int
        Public.
    n_rows : int
        Public bound on the number of rows in use.
    order : array or None
        Rows in use, those of a unit side by side; None if every row is a unit.
    starts : (n_units + 1,) array or None
        Where each unit begins in `order`.
    row_weights : (rows of the table,) array or None
        Weight of each row; None means 1 for every row in use.
    step : float
        Power of two that all weights are multiples of.
    """

    n_units: int
    n_rows: int
    order: Rows | None = None
    starts: Rows | None = None
    row_weights: Floats | None = None
    step: float = 1.0

    def blocks(self, sample: Rows | None, at_once: int) -> Iterator[tuple[Rows, Rows | None]]:
        """Yield the rows of sampled units, and where each unit starts among them (None: one row each).

        No sample means all units. A unit may have no rows; the start of the last units may then be the number of rows.
        """
        if self.order is None or self.starts is None:
            length = self.n_units if sample is None else len(sample)
            for start in range(0, max(length, 1), at_once):
                stop = min(start + at_once, length)
                yield (np.arange(start, stop) if sample is None else sample[start:stop]), None
            return
        if sample is None:
            sample = np.arange(self.n_units)
        lengths = self.starts[sample + 1] - self.starts[sample]
        ends = np.cumsum(lengths)
        first = 0
        while first < len(sample):
            done = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + at_once, side="right")))
            units = sample[first:last]
            counts = lengths[first:last]
            begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
            places = np.repeat(self.starts[units] - begins, counts)
            places += np.arange(len(places))
            yield self.order[places], begins
            first = last

    def weights(self, rows: Rows) -> Floats | None:
        """Return the weights of rows; None if all are 1."""
        return None if self.row_weights is None else self.row_weights.take(rows)

    def side_by_side(self) -> Units:
        """Return the same units of a table that has only the rows in use, in the order of `order`."""
        if self.order is None:
            return self
        weights = None if self.row_weights is None else self.row_weights[self.order]
        return replace(self, order=np.arange(len(self.order)), row_weights=weights)

    def table_weights(self, usable: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Return the weight of every row of the table, 0 for rows that are not in use or not `usable`."""
        if self.order is None:  # every row has weight 1: a byte is enough
            return usable
        found: Floats = np.zeros(len(usable))
        found[self.order] = 1.0 if self.row_weights is None else self.row_weights[self.order]
        return found * usable


def row_units(n_rows: int) -> Units:
    """Return units of one row each."""
    return Units(n_rows, n_rows)


def code_ids(ids: Any) -> tuple[npt.NDArray[np.intp], int]:
    """Return a number for the unit of each row, and the number of units; rows without an id are one unit.

    Two rows belong to one unit exactly if the texts of their ids are equal (`parse_ids`). Whole numbers are compared in
    double precision, however they are stored: one missing id turns a column of integers into floats, and must not
    change the units of others. Units are numbered in the order of the digests of their ids, which is the same however
    rows are ordered or spread over partitions; if no two rows share an id, in the order of the rows. Samples are drawn
    independently of these numbers.
    """
    distinct, codes = np.unique(digest_ids(ids), return_inverse=True)
    if len(distinct) == codes.size:  # one row per id: number units as rows are numbered without ids
        return np.arange(codes.size), codes.size
    return codes.reshape(-1).astype(np.intp), len(distinct)


def digest_ids(ids: Any) -> npt.NDArray[np.uint64]:
    """Return 64 bits for the canonical text of each id.

    Numbers are mixed by a bijection; the digests of other texts are those of BLAKE2. Two ids that shared a digest,
    by chance or on purpose, would be one unit.

    >>> bool(np.array_equal(digest_ids([7, 8]), digest_ids(["7", "8.0"])))
    True
    """
    stored = stored_column(ids)
    if not isinstance(stored, np.ndarray):
        return stored.spread(digest_ids(stored.entries), _MISSING)
    if stored.dtype.kind in "biuf":
        numbers = parse_number(stored)
        found = _mixed(numbers.values)
        found[numbers.codes != NUMBER] = _MISSING
        return found
    texts = parse_ids(stored).tolist()
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return _digests(list(places))[
        np.fromiter(map(places.__getitem__, texts), dtype=np.intp, count=len(texts))
    ]


def _digests(texts: list[str]) -> npt.NDArray[np.uint64]:
    numbers = np.array(list(map(_number, texts)), dtype=np.float64)
    found = _mixed(numbers)
    for place in np.flatnonzero(np.isnan(numbers)):
        digest = hashlib.blake2b(texts[place].encode(errors="surrogatepass"), digest_size=8).digest()
        found[place] = int.from_bytes(digest, "little")
    return found


def _number(text: str) -> float:
    """Return the number that a canonical text is, NaN if it is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if text_of_float(number) == text else math.nan


def _mixed(numbers: Floats) -> npt.NDArray[np.uint64]:
    """Return the bits of numbers, spread by the finaliser of SplitMix64, a bijection."""
    words = (numbers + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


_MISSING = _digests([""])[0]


def id_units(
    codes: npt.NDArray[np.intp],
    n_units: int,
    max_rows: int,
    weighting: str,
    usable: npt.NDArray[np.bool_] | None = None,
) -> Units:
    """Return units of the rows with one id, at most `max_rows` of them.

    Parameters
    ----------
    codes : array
        Unit number of each row.
    n_units, max_rows : int
    weighting : "id" or "row"
        Rates are per id (every id has total weight 1) or per row (every row has weight ``1 / max_rows``).
    usable : array of bool, optional
        Rows that may be used; all of them by default. A unit may end up with no row.
    """
    rows = np.arange(len(codes)) if usable is None else np.flatnonzero(usable)
    order = rows[np.argsort(codes[rows], kind="stable")]
    starts = np.searchsorted(codes[order], np.arange(n_units + 1))
    position = np.arange(len(order)) - np.repeat(starts[:-1], np.diff(starts))
    order, used = order[position < max_rows], np.minimum(np.diff(starts), max_rows)
    starts = np.concatenate([[0], np.cumsum(used)])
    if max_rows == 1:  # the same numbers as without ids
        return Units(n_units, n_units, order, starts)
    weights = np.zeros(len(codes))
    count = np.repeat(used, used) if weighting == "id" else np.full(len(order), max_rows)
    step = weight_step(max_rows)
    weights[order] = np.floor(1.0 / (count * step)) * step
    return Units(n_units, n_units * max_rows, order, starts, weights, step)


def weight_step(max_rows: int) -> float:
    """Return the power of two that weights of rows are multiples of."""
    return 1.0 if max_rows == 1 else 2.0**-_WEIGHT_BITS


def join_units(parts: Sequence[Units], first_rows: npt.NDArray[np.intp]) -> Units:
    """Return the units of neighbouring parts of a table, whose rows begin at `first_rows`."""
    first, n_units = parts[0], sum(part.n_units for part in parts)
    if first.order is None:
        return replace(first, n_units=n_units)
    places = np.cumsum([0, *(len(part.order) for part in parts if part.order is not None)])
    orders = [
        part.order + row for part, row in zip(parts, first_rows, strict=False) if part.order is not None
    ]
    starts = [
        part.starts[:-1] + place
        for part, place in zip(parts, places, strict=False)
        if part.starts is not None
    ]
    weights = [part.row_weights for part in parts if part.row_weights is not None]
    return replace(
        first,
        n_units=n_units,
        order=np.concatenate(orders),
        starts=np.append(np.concatenate(starts), places[-1]),
        row_weights=np.concatenate(weights) if weights else None,
    )
