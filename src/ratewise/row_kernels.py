"""What one block of rows adds to a step: residuals, their clip, counts, the gradient; two classes or more.

A kernel sees blocks and never a whole matrix. One row adds at most the clipping norm to the gradient, and to
the histogram a vector that sums to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ratewise.features import Features
from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

# Rows of steps that may wait to be counted together, 2 bytes each.
_MOST_WAITING = 1 << 20
# Coefficients of 1, s and s * s (and one idle) in s - y, for the labels y = 0 and y = 1.
_PLAIN = np.array([[0.0, 1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]])


class BinaryKernel:
    """Two classes, one weight vector.

    With s the soft prediction, y the label and a the slope of the row's cell (what class 1 costs more than
    class 0), the residual is ``loss_weight * (s - y) + a * s * (1 - s)``: a polynomial in s whose
    coefficients are one row of a small table, looked up by label and cell at once.
    """

    def __init__(self, plan: Plan, features: Features, shape: tuple[int, int], intercept: bool) -> None:
        self._n_features = features.n_features
        self._shape = shape
        self._n_codes = 2 * shape[0]
        self._intercept = intercept
        self._temperature = plan.temperature
        self._hard = plan.rates == "hard"
        waiting = plan.expected_rows * plan.dual.interval
        self.later = shape[0] > 0 and self._hard and plan.dual.interval > 1 and waiting <= _MOST_WAITING
        self._ones = np.ones(features.block_rows)
        # arrays without dimensions: arithmetic with Python's numbers takes twice as long
        self._zero = np.zeros(())
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
        """Take the parameters and the costs of a step."""
        self._weights = theta[: self._n_features].copy()
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
        self._terms = terms.reshape(-1, 4)

    def sums(self, x: Any, factor: Array | None, limit: Array | None, codes: Array) -> tuple[Floats, Any]:
        """Return the block's sum of clipped gradients and its tally, both **private**."""
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
        predicted = margin > self._zero
        return residual, [(codes, predicted)] if self.later else self._count_one(codes, predicted)

    def _count_one(self, codes: Array, predicted: Array) -> Array:
        """Return the histogram of one block; its codes are used up."""
        codes &= self._even  # the label goes, the cell stays
        codes += predicted.view(np.int8)
        return np.bincount(codes, minlength=self._n_codes).reshape(self._shape)

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


class SoftmaxKernel:
    """Three classes or more, one weight vector each."""

    def __init__(self, plan: Plan, features: Features, shape: tuple[int, int], intercept: bool) -> None:
        self._n_features = features.n_features
        self._shape = shape
        self._intercept = intercept
        self._temperature = plan.temperature
        self._hard = plan.rates == "hard"
        self._table: Floats | None = None
        self._loss_weight = 1.0
        self._costs: Array | None = None
        # infinite logits (from rows of enormous length) would make NaN of a difference
        self._largest = float(np.finfo(np.float64).max) ** 0.5

    def codes(self, labels: Array, cells: Array | None) -> tuple[Array, ...]:
        """Return what `sums` needs to know of rows: labels, and with cells ``cell * K``."""
        if cells is None:
            return (labels,)
        bases = cells.astype(np.min_scalar_type(-self._shape[0] * self._shape[1] - 1))
        bases *= bases.dtype.type(self._shape[1])
        return labels, bases

    def load(self, theta: Floats, table: Floats | None, loss_weight: float) -> None:
        """Take the parameters and the costs of a step."""
        matrix = theta.reshape(self._shape[1], -1)
        self._weights = np.ascontiguousarray(matrix[:, : self._n_features].T)
        self._bias = matrix[:, -1].copy() if self._intercept else None
        if table is not self._table:
            self._table = table
            self._loss_weight = loss_weight
            self._costs = None if table is None else table * self._temperature

    def sums(
        self, x: Any, factor: Array | None, limit: Array | None, labels: Array, base: Array | None = None
    ) -> tuple[Floats, Array | None]:
        """Return the block's sum of clipped gradients and its histogram, both **private**."""
        logits = self._logits(x, factor)
        residual = softmax(logits)
        counts = push = None
        if base is not None:
            soft = residual if self._temperature == 1.0 else softmax(logits * self._temperature)
            counts = self._count(logits, soft, base)
            push = self._push(soft, base)
        residual[np.arange(len(labels)), labels] -= 1.0
        if push is not None:
            residual *= self._loss_weight
            residual += push
        if limit is not None:
            lengths = np.sqrt(np.einsum("ij,ij->i", residual, residual))
            np.maximum(lengths, np.finfo(np.float64).tiny, out=lengths)  # 0 / 0 would be NaN
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


def softmax(logits: Array) -> Array:
    """Return the soft predictions of each row of logits."""
    exponentials = logits - logits.max(axis=1, keepdims=True)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    return np.asarray(exponentials)
