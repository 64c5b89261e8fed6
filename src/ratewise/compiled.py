"""Compiled constraints: from a histogram of predictions to the constraints' values and the weights table.

A constraint is a sparse row of coefficients over *terms*; a term is a fraction whose numerator counts the
predictions of one class in one subset, and whose denominator counts the rows of a subset (a share) or the
rows of a subset predicted that class (a ratio). With H the Q x K histogram and lambda the multipliers::

    num_r = sum of H[i, k_r], i in I_r      den_r = sum of totals[o], o in O_r      (share)
    v_r = num_r / den_r                     den_r = sum of H[o, k_r], o in O_r      (ratio)
    value_j = sum_r A[j, r] v_r             c = A^T lambda
    W[q, k] = sum_r c_r / den_r * (1[q in I_r, k = k_r] - v_r * 1[r is a ratio, q in O_r, k = k_r])

Small problems use three small dense matrices, large ones sparse products over (subset, class) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from ratewise.cells import CellMap, Subset
from ratewise.domain import Codes, Domain, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.feasibility import smallest_values
from ratewise.kernels import DenseKernel, Floats, Kernel, SparseKernel, Terms, zero_one_rows
from ratewise.predicates import Predicate
from ratewise.rates import Constraint

_DENSE = 40_000  # entries of a matrix up to which a dense product beats the overhead of a sparse one


@dataclass(frozen=True, eq=False, repr=False)
class CompiledConstraints:
    """Constraints ready for training: cells, sparse coefficients, slacks. Made by `compile_constraints`.

    Constraint j, of J, says ``values(histogram)[j] <= bounds[j]``. Q is `n_cells`, K is `n_classes`; a
    histogram H is Q x K, and ``H[q, k]`` counts the rows of cell q that are predicted class k (softly or
    hard). Nothing in here was read off rows.

    Attributes
    ----------
    declared : tuple of Constraint
        The constraints after expansion of families and removal of duplicates (the tightest bound stays).
    bounds : (J,) array
        Right-hand sides of the normal form.
    subsets : tuple of Predicate
        The S distinct subsets the constraints read, in the order of `sizes`.
    """

    domain: Domain
    declared: tuple[Constraint, ...]
    bounds: Floats
    coefficients: Any
    terms: Terms
    subsets: tuple[Predicate, ...]
    index_sets: tuple[Subset, ...]
    cell_map: CellMap

    def __len__(self) -> int:
        return len(self.bounds)

    def __repr__(self) -> str:
        size = f"{len(self)} constraints, {self.n_cells} cells, {self.n_classes} classes"
        return f"<{type(self).__name__}: {size}: {list_values(self.names, most=3)}>"

    @property
    def n_cells(self) -> int:
        """Number of cells, Q."""
        return self.cell_map.n_cells

    @cached_property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.domain.classes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the constraints, for reports."""
        return tuple(constraint.name for constraint in self.declared)

    @property
    def cell_names(self) -> tuple[str, ...]:
        """What the rows of each cell have in common."""
        return self.cell_map.names

    @cached_property
    def subset_names(self) -> tuple[str, ...]:
        """Names of the subsets, in the order of `sizes`."""
        return tuple(subset.name for subset in self.subsets)

    @cached_property
    def signs(self) -> Floats:
        """1 for an upper bound, -1 for a lower bound, as declared."""
        return np.array([constraint.sign for constraint in self.declared])

    @cached_property
    def declared_bounds(self) -> Floats:
        """The bounds as the user wrote them, to set beside `reached`."""
        return np.array([constraint.bound for constraint in self.declared])

    @cached_property
    def _constants(self) -> Floats:
        return np.array([constraint.expression.constant for constraint in self.declared])

    def reached(self, values: Floats) -> Floats:
        """Return the declared left-hand sides for values of the normal form.

        ``rate(1) >= 0.2`` is kept as ``-rate(1) <= -0.2``; a report wants the rate, and 0.2 beside it.
        """
        return self._constants + self.signs * values

    def cells(self, label_codes: Any, columns: Mapping[str, Any]) -> Codes:
        """Return the cell of each row, in the smallest type of whole numbers that holds all cells.

        Parameters
        ----------
        label_codes : (n,) integers
            Positions of the true labels in ``domain.classes``; see `Domain.label_codes`.
        columns : mapping of name to (n,) array-like
            The rows' values; columns that no constraint reads may be missing and are never touched.
        """
        return self.cell_map.cells(label_codes, columns)

    def histogram(self, cells: Any, predictions: Any) -> Floats:
        """Return the exact Q x K histogram of predictions. It reads rows: release it only with noise.

        Parameters
        ----------
        cells : (n,) integers
        predictions : (n,) integers or (n, K) floats
            Codes of predicted classes, or soft predictions.
        """
        cells, predictions = np.asarray(cells), np.asarray(predictions)
        if cells.ndim != 1 or len(cells) != len(predictions):
            raise InvalidInput(
                f"predictions must have one row per cell entry: {len(predictions)} against {cells.size}"
            )
        shape = self.n_cells, self.n_classes
        if predictions.ndim == 1 and predictions.dtype.kind in "iu":
            if predictions.size and not (predictions.min() >= 0 and predictions.max() < shape[1]):
                raise InvalidInput(f"predictions must be class codes in 0..{shape[1] - 1}")
            flat = np.bincount(cells.astype(np.int64) * shape[1] + predictions, minlength=shape[0] * shape[1])
            return flat.reshape(shape).astype(np.float64)
        if predictions.ndim != 2 or predictions.shape[1] != shape[1]:
            raise InvalidType(f"predictions must be class codes or a table with {shape[1]} columns")
        columns = [np.bincount(cells, predictions[:, k], minlength=shape[0]) for k in range(shape[1])]
        return np.stack(columns, axis=1).astype(np.float64)

    def sizes(self, histogram: Any) -> Floats:
        """Return the number of rows of each subset, from a Q x K histogram or from Q cell totals."""
        totals = np.asarray(histogram, dtype=np.float64)
        totals = totals.sum(axis=1) if totals.ndim == 2 else totals
        if totals.shape != (self.n_cells,):
            raise InvalidInput(f"expected {self.n_cells} cells, got an array of shape {np.shape(histogram)}")
        counts: Floats = self._size_matrix @ totals
        others = np.array([subset.others for subset in self.index_sets])
        return np.where(others, totals.sum() - counts, counts)

    def denominators(self, histogram: Any, cell_totals: Floats | None = None) -> Floats:
        """Return the (R,) denominators of the terms, unfloored: what each rate rests on."""
        if not len(self.terms):
            return np.zeros(0)
        return self._kernel.denominators(self._flat(histogram), cell_totals)

    def smallest_denominators(self, histogram: Any, cell_totals: Floats | None = None) -> Floats:
        """Return, per constraint, the smallest denominator among its rates (infinite if it reads none)."""
        below = self.denominators(histogram, cell_totals)
        smallest = np.full(len(self), np.inf)
        table = sp.csr_array(self._a)
        owner = np.repeat(np.arange(len(self)), np.diff(table.indptr))
        np.minimum.at(smallest, owner, below[table.indices])
        return smallest

    def value_noise(
        self,
        histogram: Any,
        cell_totals: Floats | None,
        noise: float,
        *,
        floor: float = 1.0,
        chance: float = 0.0,
    ) -> Floats:
        """Return the (J,) standard deviations of `values` under noise of the given one on each count.

        `chance` adds what the draw of the rows does: a rate over m rows has variance ``chance / m`` from it.
        """
        below = np.maximum(self.denominators(histogram, cell_totals), floor)
        cells = np.array([subset.size(self.n_cells) for subset in self.index_sets], dtype=np.float64)
        rates = np.square(noise / below) * cells[self.terms.numerator] + chance / below
        variances: Floats = self._squares @ rates
        return np.sqrt(variances)

    def values(
        self, histogram: Any, cell_totals: Floats | None = None, *, floor: float = 1.0, clamp: bool = True
    ) -> Floats:
        """Return the (J,) left-hand sides from a (noisy) histogram.

        Parameters
        ----------
        histogram : (Q, K) array
        cell_totals : (Q,) array, optional
            Better estimates of the number of rows per cell than the histogram's row sums.
        floor : float
            Smallest denominator, in rows; for exact counts a tiny one gives exact rates.
        clamp : bool
            Move each rate into [0, 1] first, where noise may have driven it out.
        """
        if not len(self.terms):
            return np.zeros(len(self))
        numerator, denominator = self._kernel.fractions(self._flat(histogram), cell_totals)
        np.maximum(denominator, floor, out=denominator)
        return self._a @ _fraction(numerator, denominator, clamp)  # type: ignore[no-any-return]

    def weights(
        self,
        multipliers: Floats,
        histogram: Any,
        cell_totals: Floats | None = None,
        *,
        floor: float = 1.0,
        clamp: bool = True,
        ratio_floor: float = 0.0,
    ) -> Floats:
        """Return the (Q, K) table W: the gradient of ``multipliers @ values`` in the histogram's entries.

        W is per row of the histogram's sample: adding ``sum_k W[cell, k] * soft_k`` over its rows to the loss
        gives theta the gradient of the Lagrangian. Shares are differentiated with fixed denominators, which a
        row's prediction cannot change; ratios with both, their denominators at least `ratio_floor`. Other
        arguments as in `values`.
        """
        shape = self.n_cells, self.n_classes
        if not len(self.terms):
            return np.zeros(shape)
        h = self._flat(histogram)
        amount = self._a_t @ multipliers
        if not self._has_ratio:
            denominator = self._kernel.denominators(h, cell_totals)
            np.maximum(denominator, floor, out=denominator)
            amount = amount / denominator
            return self._kernel.spread(amount).reshape(shape)
        numerator, denominator = self._kernel.fractions(h, cell_totals)
        np.maximum(denominator, floor, out=denominator)
        value = _fraction(numerator, denominator, clamp)
        amount = amount / np.where(self.terms.ratio, np.maximum(denominator, ratio_floor), denominator)
        return (self._kernel.spread(amount) - self._kernel.spread_ratios(amount * value)).reshape(shape)

    def _flat(self, histogram: Any) -> Floats:
        table: Floats = np.asarray(histogram, dtype=np.float64)
        if table.shape != (self.n_cells, self.n_classes):
            raise InvalidInput(
                f"histogram must be {self.n_cells} x {self.n_classes}, got shape {table.shape}"
            )
        return table.reshape(-1)

    @cached_property
    def ratios(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the J constraints have a ratio, whose denominator moves with the model."""
        return np.asarray(self._squares @ self.terms.ratio.astype(np.float64) > 0)

    @cached_property
    def _has_ratio(self) -> bool:
        return bool(self.terms.ratio.any())

    @cached_property
    def _kernel(self) -> Kernel:
        entries = len(self.terms) * self.n_cells * self.n_classes
        kind = DenseKernel if entries <= _DENSE else SparseKernel
        return kind(list(self.index_sets), self.terms, self.n_cells, self.n_classes)

    @cached_property
    def _a(self) -> Any:
        small = self.coefficients.shape[0] * self.coefficients.shape[1] <= _DENSE
        return self.coefficients.toarray() if small else self.coefficients

    @cached_property
    def _a_t(self) -> Any:
        # its own copy by rows of the transpose: the product runs in every step
        return np.ascontiguousarray(self._a.T) if isinstance(self._a, np.ndarray) else sp.csr_array(self._a.T)

    @cached_property
    def leverage(self) -> Floats:
        """How far each constraint's value can move at most: the sum of its coefficients' magnitudes."""
        total: Floats = abs(sp.csr_array(self.coefficients)) @ np.ones(len(self.terms))
        return total

    @cached_property
    def lowest(self) -> Floats:
        """What each value cannot fall below, each of its rates being between 0 and 1."""
        table = sp.csr_array(self.coefficients)
        total: Floats = table.minimum(0.0) @ np.ones(len(self.terms))
        return total

    @cached_property
    def largest_values(self) -> Floats:
        """How large each value can get at most, whatever the predictions and whatever the rows."""
        table = sp.csr_array(self.coefficients)
        return -smallest_values(-table, self.terms, list(self.index_sets), self.n_cells, self.n_classes)

    @cached_property
    def _squares(self) -> Any:
        return sp.csr_array(self.coefficients).power(2)

    @cached_property
    def _size_matrix(self) -> Any:
        return zero_one_rows([subset.listed for subset in self.index_sets], self.n_cells)


def _fraction(numerator: Floats, denominator: Floats, clamp: bool) -> Floats:
    value = numerator / denominator
    if clamp:
        np.maximum(value, 0.0, out=value)
        np.minimum(value, 1.0, out=value)
    return value
