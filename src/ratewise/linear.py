"""Linear classifiers in NumPy: binary and multinomial logistic regression with closed-form row gradients.

With r the derivative of a row's objective by its logits, the row's gradient is the outer product of r and the
row (with a 1 appended for the intercept), so its norm is ``|r| * sqrt(|x|^2 + 1)`` and a clipped sum over a
batch takes two matrix products and nothing per row. Constraints enter through the Q x K table of weights:
they add ``sum_k table[cell, k] * soft_k`` to a row's objective, whatever their number.

Two classes need one weight vector: with logits ``(0, z)`` the softmax at temperature t is ``sigmoid(t * z)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.special import expit

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.plan import Plan
from ratewise.sampling import Rows

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

# Bytes of gathered rows handled at once: about what stays in the second-level cache (measured).
_BLOCK_BYTES = 1 << 21
# Rows of steps that may wait to be counted together, 2 bytes each.
_MOST_WAITING = 1 << 20
# Coefficients of 1, s and s * s (and one idle) in s - y, for the labels y = 0 and y = 1.
_PLAIN = np.array([[0.0, 1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]])
# Rows of enormous length score no higher: differences of scores must stay finite.
_LARGEST_SCORE = 1e150


@dataclass(frozen=True, eq=False)
class Scaling:
    """Prepare features: cut them off at declared public bounds, then shift and stretch them.

    Parameters
    ----------
    lower, upper : array of d numbers, or None
        Public bounds. Features are cut off there and mapped to [0, 1] (or [-1, 1]). None: as they come.
    origin : "lower" or "zero"
        "lower" sends `lower` to 0 and `upper` to 1. "zero" keeps zero at zero (as sparse features need) and
        divides by the larger of ``|lower|`` and ``|upper|``.
    mean, deviation : array of d numbers, or None
        Taken off, and divided by, after that. They are **released** values (`ratewise.standardisation`).
    """

    lower: Floats | None = None
    upper: Floats | None = None
    origin: str = "lower"
    mean: Floats | None = None
    deviation: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "mean", "deviation"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, np.asarray(value, dtype=np.float64))
        self._check()

    def _check(self) -> None:
        given = [value for value in (self.lower, self.upper, self.mean, self.deviation) if value is not None]
        shapes = [value.shape for value in given]
        if (
            not given
            or len(shapes[0]) != 1
            or len(set(shapes)) != 1
            or (self.lower is None) != (self.upper is None)
        ):
            raise InvalidInput(
                "lower and upper must be one number per feature each, got shapes "
                + " and ".join(str(shape) for shape in shapes)
            )
        if self.lower is not None and not np.all(self.lower <= np.asarray(self.upper)):
            raise InvalidInput("bounds of features must be finite, with lower at most upper")
        if not all(np.all(np.isfinite(value)) for value in given):
            raise InvalidInput("bounds of features must be finite, with lower at most upper")
        if self.deviation is not None and not np.all(self.deviation > 0):
            raise InvalidInput("deviation must be above 0 for every feature")
        if self.origin not in ("lower", "zero"):
            raise InvalidInput(f"origin must be 'lower' or 'zero', got {self.origin!r}")

    @property
    def n_features(self) -> int:
        """Number of features."""
        return next(len(v) for v in (self.lower, self.mean, self.deviation) if v is not None)

    def standardised(self, mean: Floats | None, deviation: Floats) -> Scaling:
        """Return the same preparation with a released mean and deviation on top."""
        return replace(self, mean=mean, deviation=deviation)

    def tables(self, dtype: npt.DTypeLike) -> _ScalingTables:
        """Return what has to be done to each feature, in the type of the features."""
        shift, width = np.zeros(self.n_features), np.ones(self.n_features)
        with np.errstate(over="ignore"):
            if self.lower is not None and self.upper is not None:
                if self.origin == "lower":
                    shift, width = self.lower, self.upper - self.lower
                else:
                    width = np.maximum(np.abs(self.lower), np.abs(self.upper))
            if self.mean is not None:
                shift = shift + self.mean * width
            if self.deviation is not None:
                width = width * self.deviation
            factor = np.divide(1.0, width, out=np.zeros(self.n_features), where=width > 0).astype(dtype)
        factor[~np.isfinite(factor)] = 0.0  # bounds that coincide, or nearly: the feature counts for nothing
        bounds = None
        if self.lower is not None and self.upper is not None:
            bounds = self.lower.astype(dtype), self.upper.astype(dtype)
        return _ScalingTables(bounds, shift.astype(dtype), factor)


class _ScalingTables(NamedTuple):
    bounds: tuple[Array, Array] | None
    shift: Array
    factor: Array

    def guarded(self) -> _ScalingTables:
        """Return the same tables with cuts so far out that only what would overflow is cut off."""
        with np.errstate(divide="ignore", over="ignore"):
            reach = float(np.finfo(self.factor.dtype).max) * 1e-3 / np.maximum(np.abs(self.factor), 1.0)
        lower, upper = (-reach, reach) if self.bounds is None else self.bounds
        return self._replace(bounds=(np.maximum(lower, -reach), np.minimum(upper, reach)))

    def apply(self, block: Any) -> None:
        """Scale a dense or sparse block in place."""
        if _is_sparse(block):
            columns = block.indices
            if self.bounds is not None:
                np.clip(block.data, self.bounds[0][columns], self.bounds[1][columns], out=block.data)
            with np.errstate(over="ignore"):
                block.data *= self.factor[columns]
            return
        if self.bounds is not None:
            np.clip(block, self.bounds[0], self.bounds[1], out=block)
        with np.errstate(over="ignore"):  # rows of enormous length are dealt with by their norm
            block -= self.shift
            block *= self.factor


class Features:
    """Rows of features, handed out in blocks that are ready for use. Never copies the whole matrix.

    A block comes with a factor per row (from the bound on row norms) and with the longest residual that a row
    may have: ``clip / sqrt(|x|^2 + 1)``. One pass at the start refuses NaN and infinity.

    Parameters
    ----------
    X : C-ordered float32 or float64 array (or memory map), or SciPy CSR matrix
    clip, row_norm : float or None
    scaling : Scaling or None
    intercept : bool
    n_classes : int
        Only sets how much room rounding needs.
    """

    def __init__(
        self,
        X: Any,
        *,
        clip: float | None = None,
        row_norm: float | None = None,
        scaling: Scaling | None = None,
        intercept: bool = True,
        n_classes: int = 2,
        block_rows: int | None = None,
    ) -> None:
        self.matrix = _usable(X)
        self.sparse = _is_sparse(self.matrix)
        self.n_rows, self.n_features = self.matrix.shape
        self.dtype = self.matrix.dtype
        self.block_rows = block_rows or _block_rows(self.matrix)
        self.scaling = scaling_tables(scaling, self.n_features, self.sparse, self.dtype)
        self._row_norm = row_norm
        self._extra = 1.0 if intercept else 0.0
        # What rounding can add to a row's norm, in single or double precision, is taken off the clip.
        room = (min(self.n_features, 1024) + n_classes + 16) * float(np.finfo(self.dtype).eps)
        self._clip = None if clip is None else clip * (1.0 - room)
        # A norm whose squares underflow is this much longer than computed, at most.
        self._lost = float(np.sqrt(self.n_features * float(np.finfo(self.dtype).tiny)))
        self._buffer: Array = np.empty((0, self.n_features), dtype=self.dtype)
        self._factors: Array | None = None
        self._limits: Array | None = None
        self._guarded = False
        self.mapped = not self.sparse and _memory_mapped(X)
        self._first_pass(keep=not self.mapped)

    def _first_pass(self, *, keep: bool) -> None:
        """Refuse values that are not finite; keep what each row needs in every step, if there is room.

        Rows so long that their products could overflow switch the whole matrix to slower, careful arithmetic.
        """
        largest, factors, limits = 0.0, [], []
        for start in range(0, self.n_rows, self.block_rows):
            block = self._raw_block(np.arange(start, min(start + self.block_rows, self.n_rows)))
            norms = _norms(block, exact=keep)
            if not np.all(np.isfinite(norms)) and not _all_finite(block):
                if self.scaling is not None and not self._guarded:
                    self.scaling, self._guarded = self.scaling.guarded(), True
                    return self._first_pass(keep=keep)
                raise InvalidInput("X must be finite, but it holds NaN or infinity; impute or drop such rows")
            largest = max(largest, float(norms.max(initial=0.0)))
            if keep:
                factor, limit = self._factor_and_limit(norms)
                factors.append(factor)
                limits.append(limit)
        self.careful = largest > float(np.finfo(self.dtype).max) ** 0.25
        if keep and not self.careful:
            self._factors = _joined(factors, self.dtype) if self._row_norm is not None else None
            self._limits = _joined(limits, self.dtype) if self._clip is not None else None
        self._kept = keep and not self.careful
        return None

    def blocks(self, rows: Rows) -> list[Rows]:
        """Cut row numbers into pieces of at most `block_rows`."""
        if len(rows) <= self.block_rows:
            return [rows] if len(rows) else []
        return [rows[start : start + self.block_rows] for start in range(0, len(rows), self.block_rows)]

    def gather(self, rows: Rows) -> tuple[Any, Array | None, Array | None]:
        """Return the block of rows, the factor of each row, and the longest residual of each row.

        The rows meant are ``factor[:, None] * block``. The block is overwritten by the next call.
        """
        if self.careful:
            return self._gather_carefully(rows)
        block = self._raw_block(rows)
        if self._kept:
            factor = None if self._factors is None else self._factors.take(rows)
            limit = None if self._limits is None else self._limits.take(rows)
            return block, factor, limit
        if self._row_norm is None and self._clip is None:
            return block, None, None
        factor, limit = self._factor_and_limit(_norms(block, exact=self.n_features > 1024))
        return block, (None if self._row_norm is None else factor), (None if self._clip is None else limit)

    def prepared(self, rows: Rows) -> Any:
        """Return the rows after scaling, before any bound on their norms; overwritten by the next call."""
        return self._raw_block(rows)

    def _raw_block(self, rows: Rows) -> Any:
        if self.sparse:
            block = self.matrix[rows]
        else:
            block = self._room_for(len(rows))
            self.matrix.take(rows, 0, block, "clip")  # row numbers are in range; "clip" skips a copy
        if self.scaling is not None:
            self.scaling.apply(block)
        return block

    def _room_for(self, count: int) -> Array:
        if len(self._buffer) < count:
            self._buffer = np.empty((min(count + count // 8, self.block_rows), self.n_features), self.dtype)
        return self._buffer[:count]

    def _factor_and_limit(self, norms: Array) -> tuple[Array, Array]:
        """Return min(1, row_norm / norm) and clip / sqrt((factor * norm)^2 + 1), in the features' type."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            factor = np.ones(len(norms), dtype=self.dtype)
            if self._row_norm is not None:
                factor = np.minimum(1.0, self._row_norm / norms).astype(self.dtype)
            length = np.hypot(factor * norms, self._extra) + self._lost
            limit = (self._clip or np.inf) / length
            largest = float(np.finfo(self.dtype).max)
            return factor, np.minimum(limit, largest).astype(self.dtype)

    def _gather_carefully(self, rows: Rows) -> tuple[Any, Array | None, Array | None]:
        """Gather with every row divided by its largest entry, in double precision: no product overflows."""
        block = self._raw_block(rows).astype(np.float64)
        entries = abs(block)
        largest = entries.max(axis=1)
        largest = np.asarray(largest.todense()).ravel() if _is_sparse(largest) else largest
        largest = np.maximum(largest, 1.0)
        if self.sparse:
            block = scipy.sparse.csr_array(scipy.sparse.diags_array(1.0 / largest) @ block)
        else:
            block /= largest[:, None]
        norms = _norms(block, exact=True)
        with np.errstate(over="ignore", divide="ignore"):
            shrink = np.ones(len(norms))
            if self._row_norm is not None:
                shrink = np.minimum(1.0, self._row_norm / norms / largest)
            factor = largest * shrink
            limit = None
            if self._clip is not None:
                limit = np.minimum(self._clip / np.hypot(factor * norms, self._extra), 1e290)
                limit[limit < 1e-290] = 0.0  # nearer to zero, numbers are too coarse to keep the promise
        return block, factor, limit


class LinearEngine:
    """Sums of clipped row gradients and histograms of predictions of a linear classifier.

    One row changes the gradient's sum by at most ``plan.clip`` in L2 norm, and the histogram by at most 1 in
    L1 and L2 norm. Parameters are one vector: ``(w, b)`` for two classes, the rows of ``[W | b]`` for more.

    Parameters
    ----------
    plan : Plan
    X : array or CSR matrix of shape (n, d), float32 or float64
    labels : array of n class numbers 0..K-1
    n_classes : int
    cells : array of n cell numbers 0..Q-1, optional
        Together with `n_cells`; without them nothing is counted.
    scaling : Scaling, optional
    intercept : bool
    """

    def __init__(
        self,
        plan: Plan,
        X: Any,
        labels: npt.ArrayLike,
        n_classes: int,
        *,
        cells: npt.ArrayLike | None = None,
        n_cells: int | None = None,
        scaling: Scaling | None = None,
        intercept: bool = True,
    ) -> None:
        self.features = Features(
            X,
            clip=plan.clip,
            row_norm=plan.row_norm,
            scaling=scaling,
            intercept=intercept,
            n_classes=n_classes,
            block_rows=plan.block_rows,
        )
        n_rows = self.features.n_rows
        if n_rows != plan.n_rows:
            raise InvalidInput(f"X has {n_rows} rows, the plan was made for {plan.n_rows}")
        if n_classes < 2:
            raise InvalidInput(f"n_classes must be at least 2, got {n_classes}")
        if (cells is None) != (n_cells is None):
            raise InvalidInput("cells and n_cells belong together, got only one of them")
        self._labels = _codes("labels", labels, n_rows, n_classes)
        self._cells = None if cells is None else _codes("cells", cells, n_rows, n_cells or 0)
        self.histogram_shape = None if n_cells is None else (n_cells, n_classes)
        kernel = _BinaryKernel if n_classes == 2 else _SoftmaxKernel
        shape = self.histogram_shape or (0, n_classes)
        self._kernel: _BinaryKernel | _SoftmaxKernel = kernel(plan, self.features, shape, intercept)
        self._codes: tuple[Array, ...] | None = None
        if not self.features.mapped:
            self._codes = self._kernel.codes(self._labels, self._cells)
        self.model = LinearModel(
            self.features.n_features, n_classes, intercept, row_norm=plan.row_norm, scaling=scaling
        )

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        return self.model.n_parameters

    @property
    def penalised(self) -> npt.NDArray[np.bool_]:
        """All parameters but the intercepts."""
        mask = np.ones(self.n_parameters, dtype=np.bool_)
        if self.model.intercept:
            mask[self.features.n_features :: self.features.n_features + 1] = False
        return mask

    def sums(
        self, rows: Rows, theta: Floats, table: Floats | None, loss_weight: float = 1.0
    ) -> tuple[Floats, Any]:
        """Return the sum of clipped row gradients and the tally over the given rows, both **private**.

        The tally is the histogram, or if several small steps are released together what `histograms` needs
        to count all of them at once.

        Parameters
        ----------
        rows : row numbers
        theta : parameters
        table : (Q, K) array or None
            What predicting class k costs a row of cell q.
        loss_weight : float
            Weight of a row's loss beside those costs.
        """
        self._kernel.load(theta, table, loss_weight)
        if self.features.careful:
            with np.errstate(over="ignore", invalid="ignore"):
                return self._sums(rows)
        return self._sums(rows)

    def histograms(self, tallies: list[Any]) -> Array:
        """Return the (m, Q, K) histograms of m steps from what `sums` returned for them, **private**."""
        if isinstance(self._kernel, _BinaryKernel) and self._kernel.later:
            return self._kernel.count(tallies)
        return np.stack(tallies)

    def _sums(self, rows: Rows) -> tuple[Floats, Any]:
        block = self.features.block_rows
        gradient, counts = self._block_sums(rows[:block])
        for start in range(block, len(rows), block):
            more, counted = self._block_sums(rows[start : start + block])
            gradient += more
            if counts is not None and counted is not None:
                counts += counted
        return gradient, counts

    def _block_sums(self, rows: Rows) -> tuple[Floats, Any]:
        codes = self._codes
        if codes is not None:
            taken = [code.take(rows) for code in codes]
        else:
            cells = None if self._cells is None else self._cells.take(rows)
            taken = list(self._kernel.codes(self._labels.take(rows), cells))
        x, factor, limit = self.features.gather(rows)
        return self._kernel.sums(x, factor, limit, *taken)


class _BinaryKernel:
    """Two classes, one weight vector.

    With s the soft prediction, y the label and a the slope of the row's cell (what class 1 costs more than
    class 0), the residual is ``loss_weight * (s - y) + a * s * (1 - s)``: a polynomial in s whose
    coefficients are one row of a small table, looked up by label and cell at once.
    """

    def __init__(self, plan: Plan, features: Features, shape: tuple[int, int], intercept: bool) -> None:
        self._dtype = np.dtype(np.float64) if features.careful else features.dtype
        self._n_features = features.n_features
        self._shape = shape
        self._n_codes = 2 * shape[0]
        self._intercept = intercept
        self._temperature = plan.temperature
        self._hard = plan.rates == "hard"
        waiting = plan.expected_rows * plan.dual.interval
        self.later = shape[0] > 0 and self._hard and plan.dual.interval > 1 and waiting <= _MOST_WAITING
        self._ones = np.ones(features.block_rows, dtype=self._dtype)
        # arrays without dimensions: arithmetic with Python's numbers takes twice as long
        self._zero = np.zeros((), dtype=self._dtype)
        self._even = np.array(-2, dtype=np.min_scalar_type(-max(2, self._n_codes)))
        # what a slope of 1 adds to the coefficients; at other temperatures s * (1 - s) is kept apart
        tilt = [0.0, 1.0, -1.0, 0.0] if plan.temperature == 1.0 else [0.0, 0.0, 1.0, 0.0]
        self._tilt = np.array([tilt, tilt])
        self._table: Floats | None = None
        self._tabulate(None, 1.0)

    def codes(self, labels: Array, cells: Array | None) -> tuple[Array, ...]:
        """Return what `sums` needs to know of rows, in few bytes: labels, or ``2 * cell + label``."""
        if cells is None:
            return (labels,)
        codes = cells.astype(self._even.dtype)
        codes *= 2
        codes += labels
        return (codes,)

    def load(self, theta: Floats, table: Floats | None, loss_weight: float) -> None:
        self._weights = theta[: self._n_features].astype(self._dtype)
        self._bias = float(theta[-1]) if self._intercept else 0.0
        if table is not self._table:
            self._table = table
            self._tabulate(table, loss_weight)

    def _tabulate(self, table: Floats | None, loss_weight: float) -> None:
        """Write down, for each code, the coefficients of 1, s and s * s in the residual (and one idle)."""
        slopes = np.zeros((self._shape[0], 1, 1))
        if table is not None:
            np.subtract(table[:, 1:], table[:, :1], out=slopes[:, 0])
            slopes *= self._temperature
        terms = slopes * self._tilt
        terms += _PLAIN if loss_weight == 1.0 else _PLAIN * loss_weight
        self._terms = terms.reshape(-1, 4).astype(self._dtype)

    def sums(self, x: Any, factor: Array | None, limit: Array | None, codes: Array) -> tuple[Floats, Any]:
        margin = x.dot(self._weights)
        if factor is not None:
            margin *= factor
        margin += self._bias
        residual = expit(margin)
        counts = None
        if self._n_codes:
            residual, counts = self._constrained(margin, residual, codes)
        else:
            residual -= codes
        if limit is not None:
            np.minimum(residual, limit, out=residual)
            np.maximum(residual, np.negative(limit, out=limit), out=residual)
        gradient = np.empty(self._n_features + self._intercept)
        if self._intercept:
            gradient[-1] = residual.dot(self._ones[: len(residual)])
        if factor is not None:
            residual *= factor
        gradient[: self._n_features] = x.T.dot(residual)
        return gradient, counts

    def _constrained(self, margin: Array, probability: Array, codes: Array) -> tuple[Array, Any]:
        """Return residuals with the constraints' push, and the tally."""
        soft = probability if self._temperature == 1.0 else expit(margin * self._temperature)
        terms = self._terms.take(codes, 0)
        if soft is probability:
            residual = soft * terms[:, 2]
            residual += terms[:, 1]
            residual *= soft
        else:
            residual = soft - soft * soft
            residual *= terms[:, 2]
            residual += probability * terms[:, 1]
        residual += terms[:, 0]
        if not self._hard:
            return residual, self._soft_counts(soft, codes)
        tally = [(codes, margin > self._zero)]
        return residual, tally if self.later else self.count([tally])[0]

    def count(self, tallies: list[list[tuple[Array, Array]]]) -> Array:
        """Return the histograms of several steps, each given as codes and hard predictions of its blocks."""
        found = [(step, *block) for step, tally in enumerate(tallies) for block in tally]
        steps, coded, predicted = zip(*found, strict=True)
        codes = np.concatenate(coded)
        codes &= self._even  # the label goes, the cell stays
        codes += np.concatenate(predicted).view(np.int8)
        n_places = len(tallies) * self._n_codes
        firsts = np.array([step * self._n_codes for step in steps], dtype=np.min_scalar_type(-n_places))
        places = np.repeat(firsts, [len(block) for block in coded])
        places += codes
        return np.bincount(places, minlength=n_places).reshape(len(tallies), *self._shape)

    def _soft_counts(self, soft: Array, codes: Array) -> Array:
        """Return the histogram in which each row adds (1 - soft, soft) to one cell."""
        cells, n_cells = codes >> 1, self._shape[0]
        positive = np.bincount(cells, soft, n_cells)
        return np.column_stack([np.bincount(cells, minlength=n_cells) - positive, positive])


class _SoftmaxKernel:
    """Three classes or more, one weight vector each."""

    def __init__(self, plan: Plan, features: Features, shape: tuple[int, int], intercept: bool) -> None:
        self._dtype = np.dtype(np.float64) if features.careful else features.dtype
        self._n_features = features.n_features
        self._shape = shape
        self._intercept = intercept
        self._temperature = plan.temperature
        self._hard = plan.rates == "hard"
        self._table: Floats | None = None
        self._loss_weight: Any = 1.0
        self._costs: Array | None = None
        # infinite logits (from rows of enormous length) would make NaN of a difference
        self._largest = float(np.finfo(self._dtype).max) ** 0.5

    def codes(self, labels: Array, cells: Array | None) -> tuple[Array, ...]:
        """Return what `sums` needs to know of rows: labels, and with cells ``cell * K``."""
        if cells is None:
            return (labels,)
        bases = cells.astype(np.min_scalar_type(-self._shape[0] * self._shape[1] - 1))
        bases *= bases.dtype.type(self._shape[1])
        return labels, bases

    def load(self, theta: Floats, table: Floats | None, loss_weight: float) -> None:
        matrix = theta.reshape(self._shape[1], -1)
        self._weights = np.ascontiguousarray(matrix[:, : self._n_features].T, dtype=self._dtype)
        self._bias = matrix[:, -1].astype(self._dtype) if self._intercept else None
        if table is not self._table:
            self._table = table
            self._loss_weight = self._dtype.type(loss_weight)
            self._costs = None if table is None else (table * self._temperature).astype(self._dtype)

    def sums(
        self, x: Any, factor: Array | None, limit: Array | None, labels: Array, base: Array | None = None
    ) -> tuple[Floats, Array | None]:
        logits = self._logits(x, factor)
        residual = _softmax(logits)
        counts = push = None
        if base is not None:
            soft = residual if self._temperature == 1.0 else _softmax(logits * self._temperature)
            counts = self._count(logits, soft, base)
            push = self._push(soft, base)
        residual[np.arange(len(labels)), labels] -= 1.0
        if push is not None:
            residual *= self._loss_weight
            residual += push
        if limit is not None:
            lengths = np.sqrt(np.einsum("ij,ij->i", residual, residual))
            np.maximum(lengths, np.finfo(self._dtype).tiny, out=lengths)  # 0 / 0 would be NaN
            residual *= (limit / np.maximum(lengths, limit))[:, None]
        gradient = np.empty((self._shape[1], self._n_features + self._intercept))
        if self._intercept:
            gradient[:, -1] = residual.sum(axis=0)
        if factor is not None:
            residual *= factor[:, None]
        gradient[:, : self._n_features] = x.T.dot(residual).T
        return gradient.reshape(-1), counts

    def _logits(self, x: Any, factor: Array | None) -> Array:
        logits: Array = x.dot(self._weights)
        if factor is not None:
            logits *= factor[:, None]
        if self._bias is not None:
            logits += self._bias
        return np.clip(logits, -self._largest, self._largest, out=logits)

    def _count(self, logits: Array, soft: Array, base: Array) -> Array:
        """Return the histogram: each row adds a vector that sums to 1 to one cell."""
        n_codes = self._shape[0] * self._shape[1]
        if self._hard:
            counts = np.bincount(base + logits.argmax(axis=1), minlength=n_codes)
        else:
            codes = base[:, None] + np.arange(self._shape[1])
            counts = np.bincount(codes.reshape(-1), soft.reshape(-1), n_codes)
        return counts.reshape(self._shape)

    def _push(self, soft: Array, base: Array) -> Array | None:
        """Return what the constraints add to the residuals: soft * (cost - mean cost)."""
        if self._costs is None:
            return None
        push: Array = self._costs[base // self._shape[1]]
        push -= np.einsum("ij,ij->i", push, soft)[:, None]
        push *= soft
        return push


@dataclass(frozen=True, eq=False)
class LinearModel:
    """How a parameter vector scores rows; holds no training data.

    Parameters
    ----------
    n_features, n_classes, intercept
        Shape of the model.
    row_norm, scaling
        The preparation of rows that training used; prediction uses the same.
    """

    n_features: int
    n_classes: int
    intercept: bool = True
    row_norm: float | None = None
    scaling: Scaling | None = None

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        return (1 if self.n_classes == 2 else self.n_classes) * (self.n_features + self.intercept)

    def coefficients(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return weights (1 or K, d) and intercepts (1 or K,), on features as prepared."""
        matrix = np.asarray(theta).reshape(-1, self.n_features + self.intercept)
        bias = matrix[:, -1].copy() if self.intercept else np.zeros(len(matrix))
        return matrix[:, : self.n_features].copy(), bias

    def scores(self, X: Any, theta: Floats) -> Floats:
        """Return the margin of class 1 (n,) for two classes, the logits (n, K) for more."""
        features = Features(X, row_norm=self.row_norm, scaling=self.scaling)
        if features.n_features != self.n_features:
            raise InvalidInput(f"X has {features.n_features} features, the model {self.n_features}")
        weights, bias = self.coefficients(theta)
        scores = np.empty((features.n_rows, len(weights)))
        for piece in features.blocks(np.arange(features.n_rows)):
            x, factor, _ = features.gather(piece)
            part = np.asarray(x @ weights.T.astype(x.dtype), dtype=np.float64)
            if factor is not None:
                with np.errstate(over="ignore"):
                    part = np.clip(part * factor[:, None], -_LARGEST_SCORE, _LARGEST_SCORE)
            scores[piece] = part
        scores += bias
        return scores[:, 0] if self.n_classes == 2 else scores

    def probabilities(self, X: Any, theta: Floats, temperature: float = 1.0) -> Floats:
        """Return the soft predictions (n, K)."""
        scores = self.scores(X, theta) * temperature
        if self.n_classes == 2:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(_softmax(scores), dtype=np.float64)

    def predictions(self, X: Any, theta: Floats) -> npt.NDArray[np.intp]:
        """Return the predicted class numbers (n,); a tie goes to the lower number."""
        scores = self.scores(X, theta)
        if self.n_classes == 2:
            return (scores > 0).astype(np.intp)
        return np.asarray(scores.argmax(axis=1), dtype=np.intp)


def _is_sparse(matrix: Any) -> bool:
    return bool(scipy.sparse.issparse(matrix))


def _softmax(logits: Array) -> Array:
    exponentials = logits - logits.max(axis=1, keepdims=True)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    return np.asarray(exponentials)


def _usable(X: Any) -> Any:
    """Return X as a plain C-ordered array (a view where possible) or a canonical CSR array."""
    if _is_sparse(X):
        csr = scipy.sparse.csr_array(X)
        # a fresh object: the flag of the old one may be stale, and a repeated entry would hide from the norm
        csr = scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        X = csr
    else:
        X = np.asarray(X)
        if X.ndim == 2 and not X.flags.c_contiguous:
            X = np.ascontiguousarray(X)
    if X.ndim != 2:
        raise InvalidInput(f"X must have two dimensions, got {X.ndim}")
    if X.dtype not in (np.float32, np.float64):
        raise InvalidType(f"X must hold float32 or float64, got {X.dtype}; convert it")
    return X


def _memory_mapped(X: Any) -> bool:
    while X is not None:
        if isinstance(X, np.memmap):
            return True
        X = getattr(X, "base", None)
    return False


def _block_rows(matrix: Any) -> int:
    width = matrix.shape[1]
    if _is_sparse(matrix):
        width = 2 * max(1, matrix.nnz // max(1, matrix.shape[0]))
    return int(min(1 << 16, max(16, _BLOCK_BYTES // (max(1, width) * matrix.dtype.itemsize))))


def scaling_tables(
    scaling: Scaling | None, n_features: int, sparse: bool, dtype: npt.DTypeLike
) -> _ScalingTables | None:
    """Return the tables of a scaling, or say why it does not fit the features."""
    if scaling is None:
        return None
    if scaling.n_features != n_features:
        raise InvalidInput(f"bounds are given for {scaling.n_features} features, X has {n_features}")
    tables = scaling.tables(dtype)
    if sparse and np.any(tables.shift != 0):
        raise UnsupportedCombination(
            "sparse features cannot be shifted without becoming dense; scale them with origin='zero'"
        )
    lower, upper = scaling.lower, scaling.upper
    if sparse and lower is not None and not np.all((lower <= 0) & (np.asarray(upper) >= 0)):
        raise UnsupportedCombination(
            "bounds of sparse features must include 0, which is most of their values"
        )
    return tables


def _norms(block: Any, *, exact: bool) -> Array:
    """Return the L2 norm of each row; `exact` adds up in double precision."""
    with np.errstate(over="ignore"):
        if _is_sparse(block):
            squares = scipy.sparse.csr_array(
                (block.data.astype(np.float64), block.indices, block.indptr), block.shape
            )
            squares.data **= 2
            return np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
        if exact:
            block = block.astype(np.float64)
        squared: Array = np.einsum("ij,ij->i", block, block)
        return np.sqrt(squared, out=squared)


def _joined(pieces: list[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate([np.empty(0, dtype), *pieces])


def _all_finite(block: Any) -> bool:
    return bool(np.all(np.isfinite(block.data if _is_sparse(block) else block)))


def _codes(name: str, codes: npt.ArrayLike, n_rows: int, limit: int) -> Array:
    """Return whole numbers 0..limit-1 in the smallest type that holds them."""
    array = np.asarray(codes)
    if array.shape != (n_rows,) or array.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be {n_rows} whole numbers, got {array.dtype} of shape {array.shape}")
    if n_rows and (array.min() < 0 or array.max() >= limit):
        raise InvalidInput(f"{name} must lie between 0 and {limit - 1}")
    return array.astype(np.min_scalar_type(-max(1, limit)), copy=False)
