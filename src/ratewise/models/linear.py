"""The engine of linear models on sparse matrices, for very wide tables.

Entries are divided by the declared magnitude of their column, and rows longer than a fixed length are
shortened to it: rules without data, so nothing is released before training. The gradient of a row is the
outer product of its residual and its features; a clipped sum is one sparse product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ratewise.data.table import Units
from ratewise.mechanisms.noise import summation_slack
from ratewise.models.additive import Problem, RowEngine, Sums, clip_units, count_predictions
from ratewise.preprocessing.basis import LONGEST_NUMBER

Floats = npt.NDArray[np.float64]

ROW_NORM = LONGEST_NUMBER  # a sparse row is no longer than one standardised number can be
_ROWS_AT_ONCE = 1 << 14


@dataclass(eq=False)
class SparseEngine(RowEngine):
    """Sums of clipped gradients and histograms of predictions of a linear model on sparse rows.

    Fields are those of `ratewise.models.additive.AdditiveEngine`.
    """

    rows: Any  # CSR matrix as `prepare_sparse` returns it: finite entries, rows of norm at most `ROW_NORM`
    problem: Problem
    units: Units
    temperature: float = 1.0
    hard: bool = True

    @property
    def n_features(self) -> int:
        """Number of columns of the matrix."""
        return int(self.rows.shape[1])

    @property
    def mean_squares(self) -> Floats:
        """Bound on the mean square of the feature that each parameter multiplies, on average."""
        squares = np.full(self.n_features, ROW_NORM**2 / self.n_features)
        return np.tile(np.append(squares, 1.0), self.n_outputs)

    def slack(self, rows: float) -> float:
        """Return a bound on the rounding errors of the gradient sum of two samples, relative to the clipping norm."""
        return summation_slack(rows)

    @np.errstate(all="ignore")
    def sums(self, sample: npt.NDArray[np.intp], parameters: Floats, weights: Floats | None, clip: float) -> Sums:
        """Return the clipped gradient sum and the prediction counts of a sample of units; **private**."""
        theta = parameters.reshape(self.n_outputs, -1)
        gradient = np.zeros_like(theta)
        problem = self.problem
        histogram = None if problem.cells is None else np.zeros((problem.n_cells, problem.n_classes))
        for rows, starts in self.units.blocks(sample, _ROWS_AT_ONCE):
            x = self.rows[rows]
            scores = np.asarray(x @ theta[:, :-1].T) + theta[:, -1]
            residuals, counted = self.terms(rows, scores, weights)
            if histogram is not None and counted is not None:
                histogram += counted
            norms = np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel() + 1.0)
            clip_units(residuals, norms, starts, clip)
            gradient[:, :-1] += np.asarray(x.T @ residuals).T
            gradient[:, -1] += residuals.sum(axis=0)
        return Sums(gradient.ravel(), histogram)

    def counts_of(self, parameters: Floats, towards: int | None) -> tuple[Floats, Floats]:
        """Return `counts`, or `margin_counts` with `towards`; **private**."""
        theta = parameters.reshape(self.n_outputs, -1)

        def scores(rows: npt.NDArray[np.intp]) -> Floats:
            return np.asarray(self.rows[rows] @ theta[:, :-1].T) + theta[:, -1]

        return count_predictions(self.problem, self.units, scores, _ROWS_AT_ONCE, towards=towards)


def prepare_sparse(matrix: Any, bounds: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return a CSR matrix with entries in declared units and rows of norm at most `ROW_NORM`.

    Entries that are not finite count as 0. Nothing is learned: the result for a row depends on that row only.
    """
    found = sp.csr_array(matrix, copy=True)
    # flags of the caller do not count: entries of a row in the order of columns, repeated ones added up
    found = sp.csr_array((found.data.astype(np.float64), found.indices, found.indptr), shape=found.shape)
    found.sum_duplicates()
    found.data[~np.isfinite(found.data)] = 0.0
    scale = np.ones(found.shape[1])
    for place, name in enumerate(names):
        declared = bounds[name].bounds
        if declared is not None:
            lower, upper = declared
            magnitude = max(math.fabs(lower), math.fabs(upper), 1e-300)
            scale[place] = 1.0 / magnitude
    starts = found.indptr[:-1]
    lengths = np.diff(found.indptr)
    found.data = np.clip(found.data * scale[found.indices], -1e150, 1e150)
    largest = np.zeros(found.shape[0])
    filled = lengths > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(np.abs(found.data), starts[filled])
    safe = np.where(largest > 0, largest, 1.0)
    squares = np.square(found.data / np.repeat(safe, lengths))
    norms = np.zeros(found.shape[0])
    if filled.any():
        norms[filled] = np.sqrt(np.add.reduceat(squares, starts[filled])) * safe[filled]
    factor = np.minimum(1.0, ROW_NORM / np.maximum(norms, 1e-300))
    found.data *= np.repeat(factor, lengths)
    return found
