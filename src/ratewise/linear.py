"""Linear classifiers in NumPy: binary and multinomial logistic regression with closed-form row gradients.

With r the derivative of a row's objective by its logits, the row's gradient is the outer product of r and the
row (with a 1 appended for the intercept), so its norm is ``|r| * sqrt(|x|^2 + 1)`` and a clipped sum over a
batch takes two matrix products and nothing per row. Constraints enter through the Q x K table of weights:
they add ``sum_k table[cell, k] * soft_k`` to a row's objective, whatever their number.

Two classes need one weight vector: with logits ``(0, z)`` the softmax at temperature t is ``sigmoid(t * z)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ratewise.coding import CellCodes, LabelCodes, RowCodes
from ratewise.exceptions import InvalidInput
from ratewise.features import Features
from ratewise.plan import Plan
from ratewise.row_kernels import BinaryKernel, SoftmaxKernel, softmax
from ratewise.sampling import Rows
from ratewise.scaling import Scaling

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

# Rows of enormous length score no higher: differences of scores must stay finite.
_LARGEST_SCORE = 1e150


class LinearEngine:
    """Sums of clipped row gradients and histograms of predictions of a linear classifier.

    One row changes the gradient's sum by at most ``plan.clip`` in L2 norm, and the histogram by at most 1 in
    L1 and L2 norm; arithmetic is in double precision, whatever the features are stored in. Parameters are one
    vector: ``(w, b)`` for two classes, the rows of ``[W | b]`` for more.

    Parameters
    ----------
    plan : Plan
    X : array or CSR matrix of shape (n, d), float32 or float64
    labels : n class numbers 0..K-1, an array or what gives them batch by batch
    n_classes : int
    cells : n cell numbers 0..Q-1, likewise, optional
        Together with `n_cells`; without them nothing is counted.
    scaling : Scaling, optional
    intercept : bool
    """

    def __init__(
        self,
        plan: Plan,
        X: Any,
        labels: npt.ArrayLike | RowCodes,
        n_classes: int,
        *,
        cells: npt.ArrayLike | RowCodes | None = None,
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
            reads=plan.sampling_rate * plan.steps,
            most_rows=plan.most_rows,
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
        kernel = BinaryKernel if n_classes == 2 else SoftmaxKernel
        shape = self.histogram_shape or (0, n_classes)
        self._kernel: BinaryKernel | SoftmaxKernel = kernel(plan, self.features, shape, intercept)
        self._codes: tuple[Array, ...] | None = None
        if not self.features.mapped and isinstance(self._labels, np.ndarray):
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
        if isinstance(self._kernel, BinaryKernel) and self._kernel.later:
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
            part = np.asarray(x.dot(weights.T))
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
        return np.asarray(softmax(scores), dtype=np.float64)

    def predictions(self, X: Any, theta: Floats) -> npt.NDArray[np.intp]:
        """Return the predicted class numbers (n,); a tie goes to the lower number."""
        scores = self.scores(X, theta)
        if self.n_classes == 2:
            return (scores > 0).astype(np.intp)
        return np.asarray(scores.argmax(axis=1), dtype=np.intp)


def _codes(name: str, codes: Any, n_rows: int, limit: int) -> Any:
    """Return whole numbers 0..limit-1 in the smallest type that holds them, or what gives them when asked."""
    if isinstance(codes, LabelCodes | CellCodes) and len(codes) == n_rows:
        return codes
    array = np.asarray(codes)
    if array.shape != (n_rows,) or array.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be {n_rows} whole numbers, got {array.dtype} of shape {array.shape}")
    if n_rows and (array.min() < 0 or array.max() >= limit):
        raise InvalidInput(f"{name} must lie between 0 and {limit - 1}")
    return array.astype(np.min_scalar_type(-max(1, limit)), copy=False)
