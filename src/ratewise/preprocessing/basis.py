"""Rows as bin numbers, and the feature basis of additive and linear models.

Bin numbers are private. The basis is computed from released histograms only.

A row is a vector of bin numbers b_1, ..., b_d. Its features are the rows Phi_j[b_j] of one matrix per column:

* continuous: the standardised number, and centred indicators of the equal-width and logarithmic cells;
* categorical: centred indicators of the values.

An indicator is divided by the standard deviation sqrt(p (1 - p)) of its cell, at least sqrt(f), where p is
the released share and f twice the noise level of a share: cells that the release cannot see get a bounded weight.
The indicators of a continuous column are scaled so that their expected squared norm is at most `spread`,
a prior on the size of shape functions: the number, which has variance 1, carries what a straight line can say.

Scores are sums of one shape function per column, ``score(row) = intercept + sum_j f_j[b_j]``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ratewise.data.cells import stored_column
from ratewise.data.table import FeatureTable
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, Grid

Floats = npt.NDArray[np.float64]

_CELL_WEIGHT = 0.5  # of the cells of a continuous column beside its number
_VISIBLE = 2.0  # noise levels from which a cell counts
LONGEST_NUMBER = 3.0  # standard deviations; numbers are winsorised there
_SMALL = 1 << 26  # bytes of norms up to which they are kept
# Speed only. Handled at once: columns of doubles below the size from which memory is mapped anew, and codes that stay
# in the cache.
BLOCK_ROWS = 16_000
BINS_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Basis:
    """Features of the bins of all columns: U bins, P features."""

    grids: tuple[Grid, ...]
    offsets: npt.NDArray[np.intp]  # (d + 1,), first bin of each column in the joint numbering of bins
    matrix: sp.csr_array  # (U, P), features of each bin before centring
    centre: Floats  # (P,), subtracted from the features of every row
    squared_norms: (
        Floats  # (U,), part of each bin in the squared norm of a row's centred features; they add up, exactly
    )
    mean_squares: Floats  # (P,), estimate of the mean square of each centred feature
    cells: npt.NDArray[np.bool_]  # (P,), whether a feature indicates a cell of a continuous column, after its number
    shares: Floats  # (U,), released share of the rows in each bin; 1 in total for every column

    @functools.cached_property
    def n_features(self) -> int:
        """Number of features P."""
        return int(self.matrix.shape[1])

    @functools.cached_property
    def n_bins(self) -> int:
        """Number of bins U of all columns together."""
        return int(self.matrix.shape[0])

    def tables(self, parameters: Floats) -> Floats:
        """Return the shape functions on bins, and last the constants, (U + 1, C), for parameters of shape (C, P + 1).

        The score of output c for a row is ``constant[c] + sum_j table[b_j, c]``.
        """
        found: Floats = self._centred @ parameters.T
        return found

    def gradient(self, bin_sums: Floats) -> Floats:
        """Return the (C, P + 1) sum of outer products of residuals and features, with 1 as the last feature.

        `bin_sums` are the (U + 1, C) residuals summed over the rows of each bin and, last, over all rows.
        """
        found: Floats = (self._centred_transposed @ bin_sums).T
        return found

    def norms(self, codes: npt.NDArray[Any]) -> Floats:
        """Return the norm of each row's features, intercept included, from its (n, d) bins; **private**."""
        return np.sqrt(add_columns(self.squared_norms[:, None], codes)[:, 0] + 1.0)

    @functools.cached_property
    def _centred(self) -> sp.csr_array:
        """The matrix, and last a row that all rows of a table have: minus the centre, and 1 for the intercept."""
        constant = sp.csr_array(np.append(-self.centre, 1.0)[None])
        return sp.csr_array(sp.vstack([sp.hstack([self.matrix, sp.csr_array((self.n_bins, 1))]), constant]))

    @functools.cached_property
    def _centred_transposed(self) -> sp.csr_array:
        return sp.csr_array(self._centred.T)


def summable(table: Floats, n_terms: int, rounding: Callable[[Floats], Floats] = np.rint) -> Floats:
    """Return a table rounded to multiples of a power of two, so that sums of `n_terms` entries are exact in any order.

    The unit is at most 2**-50 times `n_terms` times the largest entry.
    """
    largest = float(np.maximum.reduce(np.abs(table), axis=None, initial=0.0))
    exponent = max(math.frexp(largest)[1] + math.frexp(n_terms)[1] - 52, -1000)
    found: Floats = rounding(table * math.ldexp(1.0, -exponent))
    found *= math.ldexp(1.0, exponent)
    return found


def add_columns(table: Floats, codes: npt.NDArray[Any]) -> Floats:
    """Return for each row the sum of the (U, C) table's entries at its bins, (n, C).

    The table is `summable`: the result for a row does not depend on the order of columns and on the number of rows.
    """
    if codes.size > BINS_AT_ONCE and len(codes) > 1:
        return np.concatenate([add_columns(table, codes[rows]) for rows in _parts(codes)])
    bins, ones = np.ascontiguousarray(codes, dtype=np.intp), _ones(codes.shape[1])
    found = [values.take(bins, mode="wrap").dot(ones) for values in table.T]  # codes are valid, and this mode is fast
    return found[0][:, None] if len(found) == 1 else np.stack(found, axis=1)


@functools.cache
def _ones(count: int) -> Floats:
    return np.ones(count)


def add_weights(totals: Floats, codes: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
    """Add the weight of every row to the totals of its bins; **private**."""
    if codes.size > BINS_AT_ONCE and len(codes) > 1:
        for rows in _parts(codes):
            add_weights(totals, codes[rows], weights[rows])
        return
    bins = np.ascontiguousarray(codes, dtype=np.intp)
    np.add.at(totals, bins.ravel(), weights.astype(np.float64, copy=False).repeat(bins.shape[1]))


def _parts(codes: npt.NDArray[Any]) -> Iterator[slice]:
    """Yield slices of rows that have at most `BINS_AT_ONCE` codes."""
    step = max(1, BINS_AT_ONCE // max(1, codes.shape[1]))
    return (slice(start, start + step) for start in range(0, len(codes), step))


# ----------------------------------------------------------------------------------- rows as bin numbers


def bin_offsets(grids: Sequence[Grid]) -> npt.NDArray[np.intp]:
    """Return the first bin of each column, and the number of bins, in the joint numbering."""
    return np.concatenate([[0], np.cumsum([grid.n_bins for grid in grids])]).astype(np.intp)


def new_codes(n_rows: int, grids: Sequence[Grid]) -> npt.NDArray[Any]:
    """Return an array for the bins of rows."""
    return np.empty((n_rows, len(grids)), dtype=np.min_scalar_type(int(bin_offsets(grids)[-1])))


def code_rows(
    features: FeatureTable, grids: tuple[Grid, ...], weights: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], list[Floats]]:
    """Return the (n, d) bins of all rows, in the joint numbering, and the total weight of each bin; **private**.

    `weights` are those of the rows; totals are by column, as those of `bin_weights`.
    """
    codes = new_codes(features.n_rows, grids)
    totals = [np.zeros(grid.n_bins) for grid in grids]
    offsets = bin_offsets(grids).astype(np.int32)  # as codes are
    floats = [_plain_floats(column) for column in features.columns]
    whole = slice(0, features.n_rows)
    # neighbouring columns of floats are coded by blocks of rows, which stay in the cache; others once per value
    for _, run in groupby(range(len(grids)), lambda place: place if floats[place] is None else -1):
        places = list(run)
        first = floats[places[0]]
        for rows in (whole,) if first is None else row_blocks(features.n_rows):
            block = np.empty((len(places), rows.stop - rows.start), dtype=codes.dtype)
            for line, place in zip(block, places, strict=True):
                grid, column = grids[place], floats[place]
                bins = grid.code(features.columns[place] if column is None else column[rows])
                np.add(bins, offsets[place], out=line, casting="unsafe")
                totals[place] += np.bincount(bins, weights[rows], minlength=grid.n_bins)
            codes[rows, places[0] : places[-1] + 1] = block.T
    return codes, totals


def _plain_floats(column: Any) -> npt.NDArray[Any] | None:
    """Return a column that is stored as an array of floats as this array, which is no copy; None for others."""
    dtype = getattr(column, "dtype", None)
    stored = stored_column(column) if isinstance(dtype, np.dtype) and dtype.kind == "f" else None
    return stored if isinstance(stored, np.ndarray) else None


@dataclass(frozen=True, eq=False)
class LazyBins:
    """Bin numbers computed from a numeric array when asked; nothing but the batch is held in memory."""

    features: FeatureTable
    grids: tuple[Grid, ...]

    def take(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the (len(rows), d) bins of the rows, in the joint numbering."""
        array = self.features.array
        assert array is not None  # noqa: S101 - a memory map is an array
        columns = np.empty((array.shape[1], len(rows)), dtype=array.dtype)
        step = max(1, BINS_AT_ONCE // len(columns))
        for part in (slice(start, start + step) for start in range(0, len(rows), step)):
            columns[:, part] = array[rows[part]].T  # a large table of rows would be memory that is mapped anew
        codes = new_codes(len(rows), self.grids).reshape(columns.shape)
        for place, (column, grid, first) in enumerate(zip(columns, self.grids, self._offsets, strict=False)):
            np.add(grid.code(column), first, out=codes[place], casting="unsafe")
        return codes.T

    @functools.cached_property
    def _offsets(self) -> npt.NDArray[np.int32]:
        return bin_offsets(self.grids).astype(np.int32)

    def norms(self, basis: Basis, rows: npt.NDArray[np.intp], codes: npt.NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the norms of the rows' features, computed from their bins."""
        return basis.norms(codes)


@dataclass(eq=False)
class RowCodes:
    """Bin numbers of rows kept row by row, in memory or in a file: a sampled row is one read."""

    codes: npt.NDArray[Any]  # (n, d), unsigned, in the joint numbering
    _norms: Floats | None = field(init=False, default=None)

    @property
    def _small(self) -> bool:
        """Whether to keep a number for every row."""
        return not isinstance(self.codes, np.memmap) and len(self.codes) * 8 <= _SMALL

    def take(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the (len(rows), d) bins of the rows, in the joint numbering."""
        return self.codes.take(rows, axis=0)

    def norms(self, basis: Basis, rows: npt.NDArray[np.intp], codes: npt.NDArray[Any]) -> Floats:
        """Return the norms of the rows' features; those of all rows are computed once, unless they are too many."""
        if not self._small:
            return basis.norms(codes)
        if self._norms is None:
            parts = [self.codes[rows] for rows in row_blocks(len(self.codes))]
            self._norms = np.concatenate([np.zeros(0), *map(basis.norms, parts)])
        return self._norms.take(rows)


@dataclass(frozen=True, eq=False)
class JoinedCodes:
    """Codes of neighbouring parts of a table, which stay where they are."""

    parts: list[RowCodes]
    edges: npt.NDArray[np.intp]  # first row of each part, and the number of rows

    def take(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the (len(rows), d) bins of rows, which must be in rising order."""
        cuts = np.searchsorted(rows, self.edges).tolist()
        pieces = [
            part.take(rows[start:stop] - first)
            for part, start, stop, first in zip(self.parts, cuts, cuts[1:], self.edges.tolist(), strict=False)
            if start < stop
        ]
        return np.concatenate(pieces) if pieces else self.parts[0].take(rows)

    norms = LazyBins.norms


def row_blocks(n_rows: int) -> Iterator[slice]:
    """Yield slices of rows whose columns, as doubles, fit into the processor's cache."""
    for start in range(0, n_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n_rows))


def bin_weights(
    bins: Any, grids: tuple[Grid, ...], weights: Callable[[npt.NDArray[np.intp]], npt.NDArray[Any]], n_rows: int
) -> list[Floats]:
    """Return the total weight of the rows of each bin, by column; **private**. `weights` is a function of rows."""
    offsets = bin_offsets(grids)
    totals = np.zeros(int(offsets[-1]))
    for block in row_blocks(n_rows):
        rows = np.arange(block.start, block.stop)
        add_weights(totals, bins.take(rows), weights(rows))
    return np.split(totals, offsets[1:-1])


# ---------------------------------------------------------------------------- features of released histograms


def build_basis(
    grids: Sequence[Grid],
    histograms: Sequence[Floats],
    noise: float,
    n_units: float,
    spread: float,
    *,
    cells: bool = True,
) -> Basis:
    """Return the basis for released histograms, one per column as `Grid.histogram` lays it out.

    `noise` is the standard deviation of the noise of each count and `n_units` the total of each histogram. `spread` is
    the largest expected squared norm of the cell indicators of a continuous column; without `cells` there are none, and
    scores are linear in continuous columns.
    """
    floor = max(_VISIBLE * noise, 1.0) / n_units
    blocks = [
        _block(grid, counts, noise, floor, spread if cells else 0.0)
        for grid, counts in zip(grids, histograms, strict=True)
    ]
    return Basis(
        tuple(grids),
        bin_offsets(grids),
        sp.csr_array(sp.block_diag([block.matrix for block in blocks], format="csr")),
        np.concatenate([block.centre for block in blocks]),
        summable(np.concatenate([block.squared_norms for block in blocks]), len(blocks) + 1, np.ceil),
        np.concatenate([block.mean_squares for block in blocks]),
        np.concatenate(
            [
                _cells(grid, block) if cells else block.mean_squares < 0.0
                for grid, block in zip(grids, blocks, strict=True)
            ]
        ),
        np.concatenate([_bin_shares(grid, counts) for grid, counts in zip(grids, histograms, strict=True)]),
    )


@dataclass(frozen=True)
class _Part:
    """Some features of one column: features of each bin, their means and mean squares."""

    matrix: sp.csr_array
    means: Floats
    mean_squares: Floats


@dataclass(frozen=True)
class _Block:
    """All features of one column."""

    matrix: sp.csr_array
    centre: Floats
    squared_norms: Floats
    mean_squares: Floats


def _block(grid: Grid, counts: Floats, noise: float, floor: float, spread: float) -> _Block:
    if isinstance(grid, ContinuousGrid):
        return _joined(grid.n_bins, _continuous(grid, counts, noise, floor, spread))
    return _joined(grid.n_bins, [_indicators(cells, counts, floor, 1.0) for cells, _ in grid.families])


def _cells(grid: Grid, block: _Block) -> npt.NDArray[np.bool_]:
    """Return which features of an additive model are indicators of cells: those of a continuous column after its number."""
    return (np.arange(len(block.centre)) > 0) & isinstance(grid, ContinuousGrid)


def _continuous(grid: ContinuousGrid, counts: Floats, noise: float, floor: float, spread: float) -> list[_Part]:
    (equal_cells, n_equal), *logarithmic = grid.families
    equal = counts[:n_equal]
    number = sp.csr_array(_standardised(grid, counts, noise)[:, None])
    parts = [_Part(number, np.zeros(1), np.ones(1))]
    cells = [(equal_cells, equal), *(_occupied(log_cells, counts[n_equal:]) for log_cells, _ in logarithmic)]
    if spread <= 0.0:  # a linear model still tells missing values and other entries apart
        special = _indicators(equal_cells, equal, floor, 1.0)
        kept = slice(grid.equal_cells, None)
        return [*parts, _Part(special.matrix[:, kept], special.means[kept], special.mean_squares[kept])]
    indicators = [_indicators(cell_of_bin, count, floor, _CELL_WEIGHT) for cell_of_bin, count in cells]
    expected = sum(float(part.mean_squares.sum()) for part in indicators)
    shrink = min(1.0, float(np.sqrt(spread / max(expected, 1e-300))))
    return [
        *parts,
        *(_Part(part.matrix * shrink, part.means * shrink, part.mean_squares * shrink**2) for part in indicators),
    ]


def _occupied(cell_of_bin: npt.NDArray[np.intp], counts: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
    """Leave out the cells that no bin lies in, such as those below the lower bound."""
    cells, places = np.unique(cell_of_bin, return_inverse=True)
    missing = int(np.count_nonzero(cells < 0))
    return places - missing, counts[cells[missing:]]


def _indicators(cell_of_bin: npt.NDArray[np.intp], counts: Floats, floor: float, weight: float) -> _Part:
    shares = _shares(counts)
    scale = weight / np.sqrt(np.maximum(shares * (1.0 - shares), floor))
    kept = np.flatnonzero(cell_of_bin >= 0)
    places = (kept, cell_of_bin[kept])
    matrix = sp.csr_array((scale[cell_of_bin[kept]], places), shape=(len(cell_of_bin), len(counts)))
    return _Part(matrix, shares * scale, shares * (1.0 - shares) * np.square(scale))


def _joined(n_bins: int, parts: list[_Part]) -> _Block:
    if not parts:
        return _Block(sp.csr_array((n_bins, 0)), np.zeros(0), np.zeros(n_bins), np.zeros(0))
    matrix = sp.csr_array(sp.hstack([part.matrix for part in parts], format="csr"))
    centre = np.concatenate([part.means for part in parts])
    squares = np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()
    norms = squares - 2.0 * np.asarray(matrix @ centre) + float(centre @ centre)
    return _Block(matrix, centre, np.maximum(norms, 0.0), np.concatenate([part.mean_squares for part in parts]))


def _standardised(grid: ContinuousGrid, counts: Floats, noise: float) -> Floats:
    """Return the standardised number of each bin; 0 for missing values and other entries.

    Mean and deviation are those of the released shares of the bins. Rows are taken to be spread evenly within an equal
    cell, but for the cells at the base value: there the logarithmic cells tell how, so that a column of which nearly all
    values are in one equal cell has the deviation of its values, not that of the cell.
    """
    visible = np.where(counts > _VISIBLE * noise, counts, 0.0)
    equal, logarithmic = np.split(visible, [grid.equal_cells + 2])
    if equal[:-2].sum() <= 0:
        equal = np.ones(grid.equal_cells + 2)
    cells, span = grid.families[0][0][:-2], grid.upper - grid.lower
    widths = np.append(np.diff(grid.points) / span, 0.0)  # in units of the range, whose square is always a number
    within = widths
    if grid.log_cells:
        spread = _spread_over(grid.families[1][0][:-2], logarithmic, np.append(widths[:-1], 1.0))
        at_base = (cells == cells[-1]) | ((cells == cells[-1] - 1) & (grid.lower < grid.base))
        known = np.bincount(cells, spread)[cells] > 0
        within = np.where(at_base & known, spread, widths)
    shares = _spread_over(cells, equal, within)
    shares /= shares.sum()
    places = (grid.representatives - grid.lower) / span
    mean = float(shares @ places[:-2])
    deviation = float(np.sqrt(shares @ (np.square(places[:-2] - mean) + np.square(widths) / 12.0)))
    values = (places - mean) / max(deviation, float(widths[:-1].min()))  # bins tell no smaller one
    return np.asarray(np.nan_to_num(np.clip(values, -LONGEST_NUMBER, LONGEST_NUMBER)))


def _spread_over(cells: npt.NDArray[np.intp], counts: Floats, widths: Floats) -> Floats:
    """Return the share of each bin in the count of its cell, in proportion to its width."""
    per_cell = np.bincount(cells, widths, minlength=len(counts))
    found: Floats = counts[cells] * widths / np.maximum(per_cell[cells], 1e-300)
    return found


def _shares(counts: Floats) -> Floats:
    positive = np.maximum(counts, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(len(counts), 1.0 / max(len(counts), 1))


def _bin_shares(grid: Grid, counts: Floats) -> Floats:
    """Return the released share of the rows in each bin; logarithmic cells are spread over their bins."""
    if isinstance(grid, CategoricalGrid):
        return _shares(counts)
    if not isinstance(grid, ContinuousGrid):
        return np.ones(1)
    (_, n_equal), (cells, _) = grid.families[0], grid.families[-1]
    equal = _shares(counts[:n_equal])
    shares = _shares(counts[n_equal:]) if grid.log_cells else equal
    numbers, cells = float(equal[: grid.equal_cells].sum()), cells[:-2]
    widths = np.append(np.diff(grid.points), 1.0 if grid.log_cells else 0.0)  # the last one is the base value
    found = _spread_over(cells, shares, widths)
    return np.concatenate([found / max(float(found.sum()), 1e-300) * numbers, equal[-2:]])
