"""A fitted model: released values only, enough to score rows and to show shape functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.constraints.domain import list_values
from ratewise.data.table import FeatureTable
from ratewise.models.additive import Scorer
from ratewise.models.linear import prepare_sparse
from ratewise.preprocessing.basis import bin_offsets
from ratewise.preprocessing.discovery import ColumnDeclaration
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, Grid

Floats = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 1 << 15


def unused_words(unused: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each reason for which columns are not used."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in unused.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, columns in by_reason.items():
        many = "columns are" if len(columns) > 1 else "column is"
        yield f"{len(columns)} {many} not used ({list_values(columns)}): {reason}."


@dataclass(frozen=True)
class ShapeFunction:
    """The contribution of one feature to the score of one output.

    `output` is 0 for two classes (the score of the second class), else the class number. `values` are the contributions
    of the bins, `standard_error` the standard deviation of the training noise in them, to first order, and `shares` the
    released shares of the rows. Bins of a continuous feature have `edges`, one more than values, and are followed by
    bins of their own for the base value, missing values and entries that are not numbers (`special`,
    `special_shares`), which `labels` name; those of a categorical feature are named by `labels`. `importance` is the
    mean absolute contribution over all rows.
    """

    feature: str
    output: int
    kind: str  # "continuous" or "categorical"
    edges: Floats | None
    labels: tuple[str, ...]
    values: Floats
    special: Floats
    standard_error: Floats
    shares: Floats
    special_shares: Floats
    importance: float

    def interval(self, level_factor: float = 1.96) -> tuple[Floats, Floats]:
        """Return lower and upper ends of intervals for the training noise."""
        half = level_factor * self.standard_error
        return self.values - half, self.values + half


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """Shape functions on the bins of every column."""

    grids: tuple[Grid, ...]
    scorer: Scorer
    bin_shares: Floats  # (U,), released share of the rows in each bin, by column
    bin_noise: Floats  # (U,), standard deviation of the training noise of the table, to first order

    @property
    def n_features(self) -> int:
        """Number of feature columns."""
        return len(self.grids)

    def scores(self, features: FeatureTable) -> Floats:
        """Return the (n, C) scores of rows."""
        offsets = bin_offsets(self.grids)
        scores = np.tile(self.scorer.intercept, (features.n_rows, 1))
        for start in range(0, features.n_rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, features.n_rows)
            for place, (grid, column) in enumerate(zip(self.grids, features.columns, strict=True)):
                part = (column.iloc if hasattr(column, "iloc") else column)[start:stop]
                bins = grid.code(part).astype(np.intp) + offsets[place]
                scores[start:stop] += self.scorer.table[bins]
        return scores

    def contributions(self, features: FeatureTable) -> Floats:
        """Return the (n, d, C) contributions of every feature, relative to its mean contribution."""
        offsets = bin_offsets(self.grids)
        found = np.empty((features.n_rows, len(self.grids), self.scorer.table.shape[1]))
        for place, (grid, column) in enumerate(zip(self.grids, features.columns, strict=True)):
            part = slice(offsets[place], offsets[place + 1])
            mean = self.bin_shares[part] @ self.scorer.table[part]
            found[:, place] = self.scorer.table[grid.code(column).astype(np.intp) + offsets[place]] - mean
        return found

    def shape_functions(self) -> list[ShapeFunction]:
        """Return the shape function of every feature and output, centred at their mean contribution."""
        offsets = bin_offsets(self.grids)
        found = []
        for place, grid in enumerate(self.grids):
            part = slice(offsets[place], offsets[place + 1])
            shares, noise = self.bin_shares[part], self.bin_noise[part]
            for output in range(self.scorer.table.shape[1]):
                values = self.scorer.table[part, output]
                found.append(_shape(grid, output, values - shares @ values, shares, noise))
        return found


def _shape(grid: Grid, output: int, values: Floats, shares: Floats, noise: Floats) -> ShapeFunction:
    edges, count = None, len(values)
    labels = (*map(str, grid.values), "other", "missing") if isinstance(grid, CategoricalGrid) else ("all",)
    if isinstance(grid, ContinuousGrid):
        edges, count = grid.points, grid.n_intervals
        labels = (f"exactly {grid.base:g}", "missing", "not a number")
    return ShapeFunction(
        grid.name,
        output,
        grid.kind,
        edges,
        labels,
        values=values[:count],
        special=values[count:],
        standard_error=noise[:count],
        shares=shares[:count],
        special_shares=shares[count:],
        importance=float(shares @ np.abs(values)),
    )


@dataclass(frozen=True, eq=False)
class SparseModel:
    """A linear model on sparse matrices."""

    columns: dict[str, ColumnDeclaration]
    names: Sequence[str]
    weights: Floats  # (C, d)
    intercept: Floats  # (C,)

    @property
    def n_features(self) -> int:
        """Number of feature columns."""
        return len(self.names)

    def scores(self, features: FeatureTable) -> Floats:
        """Return the (n, C) scores of rows."""
        matrix: Any = features.sparse
        if matrix is None:
            matrix = np.column_stack([np.asarray(c, dtype=np.float64) for c in features.columns])
        return np.asarray(prepare_sparse(matrix, self.columns, self.names) @ self.weights.T) + self.intercept
