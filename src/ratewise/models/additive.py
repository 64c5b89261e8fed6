"""The engine of additive and linear models on bins: the only code that reads rows during training.

With r = d(objective)/d(scores) the gradient of a row is the outer product of r and its features x, where x is
a row of the basis matrix for each column. So a step needs two sparse operations per row: look up and add one
table entry per column for the scores, and add the residual to one bin per column for the gradient.

**Sensitivity of the computed value.** A unit's residuals are multiplied by ``min(1, clip / sum_i |r_i| |x_i|)``
(sum over the unit's rows; a unit whose norm is not finite adds nothing), rounded toward zero to multiples of
``clip * 2**-k``, and added up as integers in double precision, which is exact. What one unit adds to the bin sums is
thus the rounded residuals at its bins and nothing else, whatever the other rows are; its image under the basis has
norm at most `clip`. The image is computed from the sums with rounding errors that `AdditiveEngine.slack` bounds.
Sums do not depend on the order or the partition of rows.
"""

from __future__ import annotations

import functools
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ratewise.data.table import Units
from ratewise.preprocessing.basis import BINS_AT_ONCE, BLOCK_ROWS, Basis, add_columns, add_weights, summable
from ratewise.training.certificate import margin_code_count, margin_codes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[Any]
Block = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp] | None]

_BITS = 52
SOFT_STEP = 2.0**-24


class Bins(Protocol):
    """Bin numbers of rows, in memory or computed when asked."""

    def take(self, rows: npt.NDArray[np.intp]) -> Ints:
        """Return the (len(rows), d) bins of rows, in the joint numbering; **private**."""
        ...

    def norms(self, basis: Basis, rows: npt.NDArray[np.intp], codes: Ints) -> Floats:
        """Return the norms of the rows' features, intercept included; **private**."""
        ...


@dataclass(frozen=True)
class Sums:
    """Sums over a sample of units; everything here is **private** until a mechanism releases it."""

    gradient: Floats  # (C * (P + 1),), clipped, intercepts last in each row; L2 norm of one unit at most `clip`
    histogram: Floats | None  # (Q, K), weight of rows by cell and predicted class; L1 norm of one unit at most 1


@dataclass(frozen=True, eq=False)
class BinSums:
    """Sums over a sample of units before the basis is applied: integers and multiples of a power of two; **private**."""

    bins: Floats  # (U + 1, C), clipped residuals of each bin and, last, of all rows, in multiples of the engine's grid
    histogram: Floats | None  # as in `Sums`

    def add(self, other: BinSums) -> None:
        """Add the sums over another sample, in place; exact."""
        self.bins[...] += other.bins
        if self.histogram is not None and other.histogram is not None:
            self.histogram[...] += other.histogram

    def __add__(self, other: BinSums) -> BinSums:
        """Return the sums over both samples; exact."""
        histogram = None if self.histogram is None else self.histogram.copy()
        found = BinSums(self.bins.copy(), histogram)
        found.add(other)
        return found


@dataclass(frozen=True)
class Problem:
    """Labels and cells of the rows, coded by public facts.

    Gradients are clipped after `loss_weights` (0 to 1), so that they change no sensitivity; rates are not weighted.
    """

    labels: Ints  # class numbers; -1 for labels that are no class: such a row adds nothing to any sum
    cells: Ints | None  # cell numbers; -1 for rows in no cell
    n_classes: int
    n_cells: int = 0
    loss_weights: Floats | None = None  # of each row; **private**

    def take(self, rows: npt.NDArray[np.intp]) -> Problem:
        """Return the problem of some rows; **private**."""
        cells = None if self.cells is None else self.cells.take(rows)
        weights = None if self.loss_weights is None else self.loss_weights.take(rows)
        return replace(self, labels=self.labels.take(rows), cells=cells, loss_weights=weights)


class RowEngine(ABC):
    """What engines of scores that are linear in the parameters have in common (`ratewise.training.loop.Engine`).

    Parameters are one row per score function, intercepts last.
    """

    problem: Problem
    units: Units
    temperature: float
    hard: bool

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features, without the intercept."""

    @abstractmethod
    def counts_of(self, parameters: Floats, towards: int | None) -> tuple[Floats, Floats]:
        """Return `counts`, or `margin_counts` with `towards`; **private**."""

    @property
    def n_outputs(self) -> int:
        """Score functions: one for two classes, else one per class."""
        return 1 if self.problem.n_classes == 2 else self.problem.n_classes

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        return self.n_outputs * (self.n_features + 1)

    @property
    def penalised(self) -> npt.NDArray[np.bool_]:
        """All parameters but the intercepts."""
        return np.tile(np.arange(self.n_features + 1) < self.n_features, self.n_outputs)

    @property
    def cells(self) -> npt.NDArray[np.bool_]:
        """Which of the features, and of the intercept, are indicators of cells of continuous columns."""
        return np.zeros(self.n_features + 1, dtype=np.bool_)

    @property
    def count_step(self) -> float:
        """Power of two that all prediction counts are multiples of."""
        return self.units.step if self.hard else SOFT_STEP

    @np.errstate(all="ignore")
    def counts(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return cells by predicted class (Q, K), and labels by whether predicted correctly (K, 2); **private**.

        One unit adds a vector of L1 norm at most 1 to either.
        """
        return self.counts_of(parameters, None)

    @np.errstate(all="ignore")
    def margin_counts(self, parameters: Floats, towards: int) -> tuple[Floats, Floats]:
        """Return cells (Q, B) and labels (K, B) by the code of the margin (`margin_codes`); **private**.

        One unit adds a vector of L1 norm at most 1 to either.
        """
        return self.counts_of(parameters, towards)

    def shifted(self, parameters: Floats, towards: int, amount: float) -> Floats:
        """Return the parameters with `amount` added to the score of class `towards`."""
        return shift_intercept(parameters, self.n_outputs, towards, amount)

    def terms(self, rows: npt.NDArray[np.intp], scores: Floats, weights: Floats | None) -> tuple[Floats, Floats | None]:
        """Return d(objective)/d(scores) of some rows, and their prediction counts; **private**."""
        problem, row_weights = self.problem, self.units.weights(rows)
        labels = problem.labels.take(rows)
        cells = None if problem.cells is None else problem.cells.take(rows)
        loss_weights = None if problem.loss_weights is None else problem.loss_weights.take(rows)
        residuals = residuals_of(scores, labels, cells, weights, row_weights, self.temperature, loss_weights)
        if cells is None:
            return residuals, None
        shape = (problem.n_cells, problem.n_classes)
        return residuals, histogram_of(scores, cells, row_weights, shape, self.hard)


@dataclass(eq=False)
class AdditiveEngine(RowEngine):
    """Sums of clipped gradients and histograms of predictions of an additive model."""

    bins: Bins
    basis: Basis
    problem: Problem
    units: Units
    temperature: float = 1.0  # of the soft predictions that constraints differentiate
    hard: bool = True  # whether histograms count predicted classes or predicted probabilities
    threads: int = 1  # that share the work; results do not depend on it

    @property
    def n_features(self) -> int:
        """Length of a row of the basis matrix."""
        return self.basis.n_features

    @property
    def cells(self) -> npt.NDArray[np.bool_]:
        """Which of the features, and of the intercept, are indicators of cells of continuous columns."""
        return np.append(self.basis.cells, False)

    @property
    def mean_squares(self) -> Floats:
        """Estimate of the mean square of the feature that each parameter multiplies."""
        return np.tile(np.append(self.basis.mean_squares, 1.0), self.n_outputs)

    def slack(self, rows: float) -> float:
        """Return a bound on the rounding errors of the gradient sum of two samples, relative to the clipping norm.

        With b = |x before centring| + |centre|, largest over bins and added up over columns, the matrix product of
        exact bin sums is off by at most ``terms * 2**-53 * rows * clip * b`` in norm, where `terms` is the largest
        number of bins of a feature. The squared norms, from which clipping factors follow, are off by at most
        ``terms * 2**-52 * b**2``. A billionth covers rounding within rows.
        """
        matrix = self.basis.matrix
        lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
        longest = [
            float(lengths[start:stop].max())
            for start, stop in zip(self.basis.offsets[:-1], self.basis.offsets[1:], strict=True)
        ]
        reach = 1.0 + sum(longest) + math.sqrt(len(longest)) * float(np.linalg.norm(self.basis.centre))
        terms = 8.0 + max(np.diff(self.basis.offsets), default=0)
        return 1e-9 + terms * 2.0**-52 * (rows * reach + reach**2)

    def scorer(self, parameters: Floats) -> Scorer:
        """Return the shape functions of a parameter vector."""
        tables = self.basis.tables(parameters.reshape(self.n_outputs, -1))
        return Scorer.rounded(tables, len(self.basis.grids))

    def sums(self, sample: npt.NDArray[np.intp], parameters: Floats, weights: Floats | None, clip: float) -> Sums:
        """Return the clipped gradient sum and the prediction counts of a sample of units; **private**.

        `weights` (Q, K) are the costs of predicting class k for a row of cell q, relative to a loss of weight 1; `clip`
        bounds the L2 norm of what one unit adds to the gradient.
        """
        found = self.bin_sums(sample, self.scorer(parameters), weights, clip)
        gradient = self.basis.gradient(found.bins).ravel()
        gradient *= self._grid(clip)
        return Sums(gradient, found.histogram)

    def bin_sums(self, sample: Any, scorer: Scorer, weights: Floats | None, clip: float) -> BinSums:
        """Return the clipped residuals of a sample of units, summed by bin, and the prediction counts; **private**.

        Arguments as for `sums`. Results for parts of a sample may be added in any order.
        """
        length = len(sample) if isinstance(sample, np.ndarray) else self.units.n_units
        grid, problem = self._grid(clip), self.problem
        found: BinSums | None = None

        def work(block: Block) -> BinSums:
            return self._block_sums(block, scorer, weights, clip, grid)

        at_once = BLOCK_ROWS if length > 2 * BLOCK_ROWS else 2 * BLOCK_ROWS  # no block with a few rows left over
        blocks = list(self.units.blocks(sample, at_once))
        if len(blocks) == 1:
            return work(blocks[0])
        for part in in_threads(work, blocks, self.threads):
            if found is None:
                found = part
            else:
                found.add(part)
        if found is None:  # units without rows
            histogram = None if problem.cells is None else np.zeros((problem.n_cells, problem.n_classes))
            return BinSums(np.zeros((self.basis.n_bins + 1, self.n_outputs)), histogram)
        return found

    @np.errstate(all="ignore")  # belongs here: threads do not inherit it
    def _block_sums(self, block: Block, scorer: Scorer, weights: Floats | None, clip: float, grid: float) -> BinSums:
        rows, starts = block
        codes = self.bins.take(rows)
        if codes.size <= BINS_AT_ONCE:
            codes = codes.astype(np.intp)  # once for both uses
        residuals, histogram = self.terms(rows, scorer.scores(codes), weights)
        clip_units(residuals, self.bins.norms(self.basis, rows, codes), starts, clip)
        residuals *= 1.0 / grid
        steps = np.trunc(residuals, out=residuals).T
        sums = np.zeros((len(steps), self.basis.n_bins + 1))
        for totals, of_rows in zip(sums, steps, strict=True):
            add_weights(totals, codes, of_rows)
        sums[:, -1] = np.add.reduce(steps, axis=1)
        return BinSums(sums.T, histogram)

    def counts_of(self, parameters: Floats, towards: int | None) -> tuple[Floats, Floats]:
        """Return `counts`, or `margin_counts` with `towards`; **private**."""
        return self.prediction_counts(self.scorer(parameters), towards)

    @np.errstate(all="ignore")
    def prediction_counts(self, scorer: Scorer, towards: int | None = None) -> tuple[Floats, Floats]:
        """Return `counts`, or `margin_counts`, for given shape functions; **private**.

        Results for parts of the units may be added.
        """

        def scores(rows: npt.NDArray[np.intp]) -> Floats:
            return scorer.scores(self.bins.take(rows))

        return count_predictions(self.problem, self.units, scores, BLOCK_ROWS, self.threads, towards)

    def _grid(self, clip: float) -> float:
        """Return the unit that residuals are rounded to: sums of all rows stay exact integers."""
        return math.ldexp(1.0, math.frexp(clip)[1] - self._bits)

    @functools.cached_property
    def _bits(self) -> int:
        return _BITS - math.ceil(math.log2(self.units.n_rows + 1))


@dataclass(frozen=True, eq=False)
class Scorer:
    """Shape functions on bins and intercepts: what a fitted model needs to score rows."""

    table: Floats  # (U, C)
    intercept: Floats  # (C,)

    @classmethod
    def rounded(cls, tables: Floats, n_columns: int) -> Scorer:
        """Return shape functions whose scores are exact sums, equal in training and prediction and in any order.

        The last entries of `tables` are the intercepts.
        """
        both = summable(tables, n_columns + 1)
        return cls(both[:-1], both[-1])

    def scores(self, codes: Ints) -> Floats:
        """Return the (n, C) scores of rows given by their (n, d) bins."""
        scores = add_columns(self.table, codes)
        scores += self.intercept
        return scores

    @staticmethod
    def predictions(scores: Floats) -> npt.NDArray[np.intp]:
        """Return class numbers; a tie goes to the lower one."""
        return _predictions(scores)


def clip_units(residuals: Floats, norms: Floats, starts: npt.NDArray[np.intp] | None, clip: float) -> None:
    """Scale residuals, in place, so that every unit's gradient has L2 norm at most `clip`.

    The norm of a unit's gradient is bounded by the sum of the norms of its rows' gradients. A unit for which that is
    not a finite number adds nothing.
    """
    clip *= 1.0 - 1e-9  # covers the rounding of norms and products
    if starts is None and residuals.shape[1] == 1:  # the same bound, in less time
        one = residuals[:, 0]
        limits = clip / norms
        np.minimum(one, limits, out=one)
        np.maximum(one, np.negative(limits, out=limits), out=one)
        np.putmask(one, np.isnan(one), 0.0)
        return
    lengths = np.sqrt(np.square(residuals).sum(axis=1)) * norms
    if starts is not None:
        unit = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(norms))))
        lengths = np.bincount(unit, lengths, minlength=len(starts))[unit]
    residuals *= np.minimum(1.0, clip / np.maximum(lengths, 1e-300))[:, None]
    residuals[~(lengths < math.inf)] = 0.0


def residuals_of(
    scores: Floats,
    labels: Ints,
    cells: Ints | None,
    weights: Floats | None,
    row_weights: Floats | None,
    temperature: float,
    loss_weights: Floats | None = None,
) -> Floats:
    """Return d(objective)/d(scores) of every row; 0 for rows whose label is no class."""
    known = labels >= 0
    used = known if row_weights is None else known * row_weights
    if scores.shape[1] == 1:
        soft = _sigmoid(scores[:, 0])
        found = soft - labels
        if loss_weights is not None:
            found *= loss_weights
        if cells is not None and weights is not None:
            if temperature != 1.0:
                soft = _sigmoid(temperature * scores[:, 0])
            slopes = 1.0 - soft
            slopes *= soft
            costs = np.concatenate([temperature * (weights[:, 1] - weights[:, 0]), [0.0]])  # the last entry is cell -1
            slopes *= costs.take(cells)
            found += slopes
        found *= used
        return found[:, None]
    soft = _softmax(scores)
    residuals = soft.copy()
    residuals[np.arange(len(labels)), np.where(known, labels, 0)] -= 1.0
    if loss_weights is not None:
        residuals *= loss_weights[:, None]
    if cells is not None and weights is not None:
        soft = soft if temperature == 1.0 else _softmax(temperature * scores)
        costs = np.vstack([weights, np.zeros(weights.shape[1])]).take(cells, axis=0)
        residuals += temperature * soft * (costs - np.sum(soft * costs, axis=1, keepdims=True))
    residuals *= used[:, None]
    return residuals


def histogram_of(scores: Floats, cells: Ints, row_weights: Floats | None, shape: tuple[int, ...], hard: bool) -> Floats:
    """Return the weight of the rows of each cell by predicted class; rows in no cell add nothing."""
    n_cells, n_classes = shape
    found = np.zeros((n_cells + 1, n_classes))  # the last line is that of cell -1
    place = cells.astype(np.intp)
    if hard:
        place *= n_classes
        place += _predictions(scores)
        np.add.at(found.reshape(-1), place, 1.0 if row_weights is None else row_weights)
        return found[:-1]
    weights = 1.0 if row_weights is None else row_weights[:, None]
    steps = np.floor(probabilities(scores) * weights / SOFT_STEP)  # rounded down: a row adds at most its weight
    for of_class, of_rows in zip(found.T, steps.T, strict=True):
        np.add.at(of_class, place, of_rows)
    return found[:-1] * SOFT_STEP


def shift_intercept(parameters: Floats, n_outputs: int, towards: int, amount: float) -> Floats:
    """Return parameters, intercepts last, with `amount` added to the score of a class."""
    theta = parameters.reshape(n_outputs, -1).copy()
    if n_outputs == 1:
        theta[0, -1] += amount if towards == 1 else -amount
    else:
        theta[towards, -1] += amount
    return theta.ravel()


def count_predictions(
    problem: Problem, units: Units, scores: Any, at_once: int, threads: int = 1, towards: int | None = None
) -> tuple[Floats, Floats]:
    """Return cells by predicted class (Q, K) and labels by whether predicted correctly (K, 2); **private**.

    With `towards`: cells and labels by `margin_codes`. A unit adds a vector of L1 norm at most 1 to either. `scores` is a
    function of rows; `at_once` and `threads` matter for speed only.
    """
    n_classes = problem.n_classes
    width = n_classes if towards is None else margin_code_count(n_classes)
    by_cell = np.zeros((max(problem.n_cells, 1), width))
    outcomes = np.zeros((n_classes, 2 if towards is None else width))

    @np.errstate(all="ignore")
    def work(block: Block) -> tuple[Floats, Floats | None]:
        rows = block[0]
        labels = problem.labels.take(rows)
        row_weights = units.weights(rows)
        found = scores(rows)
        predicted = _predictions(found) if towards is None else margin_codes(found, towards)
        known = labels >= 0
        weights = known.astype(np.float64) if row_weights is None else known * row_weights
        outcome = predicted == labels if towards is None else predicted
        correct = _table(np.where(known, labels, 0), outcome, weights, outcomes.shape)
        if problem.cells is None:
            return correct, None
        cells = problem.cells.take(rows)
        inside = cells >= 0
        return correct, _table(np.where(inside, cells, 0), predicted, weights * inside, by_cell.shape)

    for correct, counted in in_threads(work, units.blocks(None, at_once), threads):
        outcomes += correct
        if counted is not None:
            by_cell += counted
    return by_cell, outcomes


def available_threads() -> int:
    """Return the number of processors that this process may use, at most OMP_NUM_THREADS."""
    affinity = getattr(os, "sched_getaffinity", None)
    found = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(found, int(asked)) if asked.isdecimal() else found)


def in_threads(work: Callable[[Block], Any], blocks: Iterable[Block], threads: int) -> Iterator[Any]:
    """Yield the result of every block, in order; up to `threads` of them are computed at a time.

    NumPy releases the interpreter's lock in most of the work on a block.
    """
    if threads == 1:
        yield from map(work, blocks)
        return
    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > 2 * threads:  # bounds the results that are held
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def probabilities(scores: Floats) -> Floats:
    """Return class probabilities (n, K) from scores."""
    if scores.shape[1] == 1:
        return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
    return _softmax(scores)


def _predictions(scores: Floats) -> npt.NDArray[np.intp]:
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.intp)
    return np.asarray(scores.argmax(axis=1), dtype=np.intp)


def _softmax(scores: Floats) -> Floats:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _table(rows: Ints, columns: Any, weights: Floats, shape: tuple[int, ...]) -> Floats:
    found = np.zeros(shape)
    np.add.at(found.reshape(-1), rows.astype(np.intp) * shape[1] + columns, weights)
    return found


def _sigmoid(scores: Floats) -> Floats:
    found = np.exp(-scores)
    found += 1.0
    return np.divide(1.0, found, out=found)
