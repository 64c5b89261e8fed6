"""Rows as bin numbers: coded once and kept in memory, or coded batch by batch from a memory map."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.data.table import FeatureTable
from ratewise.preprocessing.basis import Basis
from ratewise.preprocessing.grids import ContinuousGrid, Grid

Floats = npt.NDArray[np.float64]

_SMALL = 1 << 26  # bytes up to which bin numbers are kept in the type that is fastest to index with
_ROWS_AT_ONCE = 1 << 15


def bin_offsets(grids: tuple[Grid, ...]) -> npt.NDArray[np.intp]:
    """Return the first bin of each column, and the number of bins, in the joint numbering."""
    return np.concatenate([[0], np.cumsum([grid.n_bins for grid in grids])]).astype(np.intp)


def code_table(features: FeatureTable, grids: tuple[Grid, ...]) -> npt.NDArray[Any]:
    """Return the (d, n) bin numbers of all rows in the joint numbering; **private**."""
    offsets = bin_offsets(grids)
    size = features.n_rows * len(grids)
    dtype: Any = np.intp
    if size * 8 > _SMALL:
        dtype = np.uint16 if offsets[-1] < 2**16 else np.int32
    bins = np.empty((len(grids), features.n_rows), dtype=dtype)
    for place, (column, grid) in enumerate(zip(features.columns, grids, strict=True)):
        bins[place] = grid.code(column).astype(dtype) + dtype(offsets[place])
    return bins


@dataclass(frozen=True, eq=False)
class LazyBins:
    """Bin numbers computed from a numeric array when asked; nothing but the batch is held in memory."""

    features: FeatureTable
    grids: tuple[Grid, ...]
    offsets: npt.NDArray[np.intp] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", bin_offsets(self.grids))

    def take(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the bin numbers of the rows."""
        array = self.features.array
        assert array is not None  # noqa: S101 - a memory map is an array
        block = np.asarray(array[rows])
        bins = np.empty(block.shape[::-1], dtype=np.intp)
        for place, grid in enumerate(self.grids):
            column = block[:, place]
            coded = grid.code_numbers(column) if isinstance(grid, ContinuousGrid) else grid.code(column)
            bins[place] = coded
        bins += self.offsets[:-1, None]
        return bins

    def norms(self, basis: Basis, rows: npt.NDArray[np.intp], bins: npt.NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the norms of the rows' features, computed from their bins."""
        return basis.norms(bins)


@dataclass(frozen=True, eq=False)
class RowCodes:
    """Bin numbers of rows kept row by row, in memory or in a file: a sampled row is one read.

    Attributes
    ----------
    codes : (n, d) array of unsigned integers
        Bins of each column, from 0.
    offsets : (d + 1,) array
        First bin of each column in the joint numbering.
    """

    codes: npt.NDArray[Any]
    offsets: npt.NDArray[np.intp]

    def take(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the (d, len(rows)) bin numbers of the rows in the joint numbering."""
        bins = np.empty((self.codes.shape[1], len(rows)), dtype=np.intp)
        np.add(self.codes[rows].T, self.offsets[:-1, None], out=bins)
        return bins

    def norms(self, basis: Basis, rows: npt.NDArray[np.intp], bins: npt.NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the norms of the rows' features, computed from their bins."""
        return basis.norms(bins)


def code_rows(features: FeatureTable, grids: tuple[Grid, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return the (n, d) bins of all rows, each column from 0; **private**."""
    codes = np.empty((features.n_rows, len(grids)), dtype=dtype)
    for place, (column, grid) in enumerate(zip(features.columns, grids, strict=True)):
        codes[:, place] = grid.code(column)
    return codes


def bin_weights(bins: Any, grids: tuple[Grid, ...], weights: Floats) -> list[Floats]:
    """Return the total weight of the rows of each bin, by column; **private**.

    Parameters
    ----------
    bins : Bins
    grids : tuple of Grid
    weights : array
        Weight of each row of the table.
    """
    offsets = bin_offsets(grids)
    totals = np.zeros(int(offsets[-1]))
    for start in range(0, len(weights), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(weights)))
        repeated = np.tile(weights[rows], len(grids))
        totals += np.bincount(bins.take(rows).ravel(), repeated, minlength=len(totals))
    return np.split(totals, offsets[1:-1])
