"""Confidence intervals for linear mixes of rates, from counts of predictions per cell.

The rows are taken as independent draws from a population, and an interval is about that population's value.
For one constraint, with L the sum that it bounds:

1. Terms with the same denominator are one mean. Means whose rows overlap, such as a group's rate and
   everyone's, are cut into parts over disjoint rows: the sum over parts A of N_A/N times the mean over A.
2. Each mean gets exact (Clopper-Pearson) limits l, u, given how many rows it rests on.
3. The limits are L - sqrt(sum (m - l)^2) and L + sqrt(sum (u - m)^2). Where means were cut, the sums also
   hold what L would move by if the number of rows in each part lay at its exact Poisson limits.

This is the method of variance estimates recovery (MOVER): with Wilson limits and two shares it is Newcombe's
interval. A single rate, ratios such as precision included, keeps its exact limits. Only where a ratio and a
share rest on the same rows (precision minus recall, say) no such cut exists, since one counts rows by their
prediction and the other does not; there the sums of step 3 carry the correlation of the means under
multinomial sampling instead.

A mean of more than two values, or of soft predictions, varies less than a share with the same mean. Its
limits are those of a share on n/f rows, f the ratio of the two variances, drawn towards 1 in small samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaincinv

from ratewise.compiled import CompiledConstraints

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRIOR_ROWS = 1.0  # rows of pretended evidence, so that rates of exactly 0 or 1 have a correlation
_PRIOR_SPREAD = 0.25  # the variance of one fair coin, to draw the variance ratio f towards 1


def share_interval(hits: Floats, rows: Floats, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Return exact two-sided limits (Clopper-Pearson) for a share; counts need not be whole.

    Holds with at least the stated confidence for every true share and any number of rows, also where no row
    or every row is a hit.

    >>> low, high = share_interval(np.array([0.0]), np.array([10.0]))
    >>> float(low[0]), round(float(high[0]), 4)
    (0.0, 0.3085)
    """
    tail = (1.0 - confidence) / 2.0
    misses = np.maximum(rows - hits, 0.0)
    low, high = np.zeros_like(hits), np.ones_like(hits)
    some, lacking = hits > 0, misses > 0
    low[some] = betaincinv(hits[some], misses[some] + 1.0, tail)
    high[lacking] = betaincinv(hits[lacking] + 1.0, misses[lacking], 1.0 - tail)
    return low, high


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of predictions per cell: all that rates and their variances need.

    `sums` is the Q x K histogram. `squares` is None for hard predictions, whose products vanish; for soft
    ones it is Q x K x K, the sums of ``soft_k * soft_l`` over the rows of each cell.
    """

    sums: Floats
    squares: Floats | None = None

    @cached_property
    def _rows(self) -> Floats:
        rows: Floats = self.sums.sum(axis=1)
        return rows

    def reduced(self, classes: Ints) -> Moments:
        """Return the moments of the named classes and, last, of all others together."""
        chosen = self.sums[:, classes]
        rest = np.maximum(self._rows - chosen.sum(axis=1), 0.0) * (len(classes) < self.sums.shape[1])
        sums = np.column_stack([chosen, rest])
        if self.squares is None:
            return Moments(sums)
        table = np.zeros((self.sums.shape[1], sums.shape[1]))
        table[:, -1] = 1.0
        table[classes] = np.eye(len(classes), sums.shape[1])
        return Moments(sums, np.einsum("ak,qab,bl->qkl", table, self.squares, table, optimize=True))

    def padded(self, weight: Floats) -> Moments:
        """Return the moments with pretended hard predictions, `weight` per class, spread as the rows are."""
        rows = self.sums.sum(axis=1)
        extra = np.outer(_PRIOR_ROWS * rows / max(rows.sum(), 1.0), weight)
        if self.squares is None:
            return Moments(self.sums + extra)
        return Moments(self.sums + extra, self.squares + extra[:, :, None] * np.eye(len(weight)))

    def products(self, functions: Floats) -> Floats:
        """Return sums over rows of the products of functions of the prediction (D x Q x K), by pair."""
        if self.squares is None:
            weighted = functions * self.sums
        else:
            weighted = np.einsum("dqk,qkl->dql", functions, self.squares)
        return np.tensordot(weighted, functions, axes=([1, 2], [1, 2]))


def moments(compiled: CompiledConstraints, cells: NDArray[np.int32], predictions: NDArray[Any]) -> Moments:
    """Return the moments of class codes (n,) or soft predictions (n, K)."""
    sums = compiled.histogram(cells, predictions)
    if predictions.ndim == 1:
        return Moments(sums)
    classes = range(compiled.n_classes)
    squares = np.empty((compiled.n_cells, compiled.n_classes, compiled.n_classes))
    for k in classes:
        for other in classes[k:]:
            product = predictions[:, k] * predictions[:, other]
            squares[:, k, other] = np.bincount(cells, product, minlength=compiled.n_cells)
            squares[:, other, k] = squares[:, k, other]
    return Moments(sums, squares)


def mix_intervals(
    compiled: CompiledConstraints, data: Moments, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return values, lower and upper limits of the normal forms; NaN where a rate has no rows."""
    masks: dict[int, NDArray[np.bool_]] = {}
    known: dict[bytes, tuple[float, float, float]] = {}
    out = np.empty((3, len(compiled)))
    table = compiled.coefficients
    for j in range(len(compiled)):
        part = slice(table.indptr[j], table.indptr[j + 1])
        numbers, coefficients = table.indices[part], table.data[part]
        key, mirror = (numbers.tobytes() + c.tobytes() for c in (coefficients, -coefficients))
        if mirror in known:  # the lower bound of a two-sided limit
            value, low, high = known[mirror]
            out[:, j] = -value, -high, -low
            continue
        scale = _power_of_two(coefficients)
        means, classes = _means(compiled, numbers, coefficients / scale, masks)
        value, low, high = _interval(means, data.reduced(classes), confidence)
        out[:, j] = known[key] = value * scale, low * scale, high * scale
    return out[0], out[1], out[2]


def _power_of_two(coefficients: Floats) -> float:
    """Return the size of the largest coefficient: divided by it, squares neither overflow nor vanish."""
    largest = float(np.abs(coefficients).max(initial=0.0))
    return math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1022)) if largest else 1.0


@dataclass(frozen=True, eq=False)
class _Means:
    """The means that one constraint adds up, as tables over mean, cell and class read (others last).

    A row counts in mean d if `inside` says so, and adds `x`. `ratio` marks means whose denominator depends on
    the predictions; `weight` is the share of all classes that each column stands for.
    """

    x: Floats
    inside: NDArray[np.bool_]
    ratio: NDArray[np.bool_]
    weight: Floats

    def rows(self, data: Moments) -> Floats:
        """Return the number of rows that count in each mean."""
        counts: Floats = np.tensordot(self.inside.astype(np.float64), data.sums)
        return counts

    def totals(self, data: Moments) -> Floats:
        """Return the sums of x over the rows that count."""
        sums: Floats = np.tensordot(self.x, data.sums)
        return sums

    def range(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest value that x can take on a row that counts."""
        possible = self.inside & (self.weight > 0)
        least = np.where(possible, self.x, np.inf).min(axis=(1, 2))
        return least, np.where(possible, self.x, -np.inf).max(axis=(1, 2))

    def scatter(self, data: Moments, mean: Floats) -> Floats:
        """Return sums over rows of products of deviations, for each pair of means."""
        deviation = self.x - mean[:, None, None] * self.inside
        return data.products(deviation)

    def ratio_meets_share(self) -> bool:
        """Return whether some row can count in a ratio and in a share."""
        return bool((self.inside[self.ratio].any(axis=0) & self.inside[~self.ratio].any(axis=0)).any())


def _means(
    compiled: CompiledConstraints, numbers: Ints, coefficients: Floats, masks: dict[int, NDArray[np.bool_]]
) -> tuple[_Means, Ints]:
    """Return the means of one constraint, and the classes its terms read."""
    terms, total = compiled.terms, compiled.n_classes
    classes, column = np.unique(terms.klass[numbers], return_inverse=True)
    keys = np.where(terms.ratio[numbers], terms.klass[numbers], -1) + (total + 1) * terms.denominator[numbers]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    shape = len(first), compiled.n_cells, len(classes) + 1
    x, inside = np.zeros(shape), np.zeros(shape, dtype=bool)
    ratio = terms.ratio[numbers[first]]
    for d, r in enumerate(first):
        chosen = column[r] if ratio[d] else slice(None)
        inside[d].T[chosen] = _mask(compiled, int(terms.denominator[numbers[r]]), masks)
    for r, number in enumerate(numbers):
        x[place[r], :, column[r]] += coefficients[r] * _mask(compiled, int(terms.numerator[number]), masks)
    weight = np.append(np.full(len(classes), 1.0 / total), 1.0 - len(classes) / total)
    weight[-1] *= len(classes) < total
    return _Means(x, inside, ratio, weight), classes.astype(np.int64)


def _interval(means: _Means, data: Moments, confidence: float) -> tuple[float, float, float]:
    rows = means.rows(data)
    if not (rows > 0).all():
        return np.nan, np.nan, np.nan
    total = float((means.totals(data) / rows).sum())
    join = _correlated if means.ratio_meets_share() else _disjoint
    below, above = join(means, data, confidence)
    return total, total - below, total + above


def _disjoint(means: _Means, data: Moments, confidence: float) -> tuple[float, float]:
    """Return how far the limits lie from the sum, by cutting the means where they overlap."""
    if len(means.x) == 1 or not (np.count_nonzero(means.inside, axis=0) > 1).any():
        low, high, mean = _limits(means, data, confidence)
        return _length(mean - low), _length(high - mean)
    parts, joined = _parts(means, data)
    low, high, mean = _limits(parts, data, confidence)
    down, up = _composition(means, (low, high, parts.rows(data)), joined, data, confidence)
    return math.hypot(_length(mean - low), down), math.hypot(_length(high - mean), up)


def _correlated(means: _Means, data: Moments, confidence: float) -> tuple[float, float]:
    """Return how far the limits lie from the sum, by the correlation of the means."""
    low, high, mean = _limits(means, data, confidence)
    padded = data.padded(means.weight)
    scatter = means.scatter(padded, means.totals(padded) / means.rows(padded))
    scale = np.sqrt(np.maximum(np.diagonal(scatter), np.finfo(float).tiny))
    together = np.clip(scatter / np.outer(scale, scale), -1.0, 1.0)
    return _length(mean - low, together), _length(high - mean, together)


def _parts(means: _Means, data: Moments) -> tuple[_Means, NDArray[np.bool_]]:
    """Return the same sum as means over disjoint rows, and of which means each is a part (parts x means).

    A mean over D is the sum over its parts A of N_A/N_D times the mean over A.
    """
    flat = means.inside.reshape(len(means.inside), -1).T
    joined, part_of = np.unique(flat, axis=0, return_inverse=True)
    inside = np.arange(len(joined))[:, None, None] == part_of.reshape(means.inside.shape[1:])
    kept = joined.any(axis=1)
    joined, inside = joined[kept], inside[kept]
    sizes = np.tensordot(inside.astype(np.float64), data.sums)
    x = np.tensordot(joined / means.rows(data), means.x, axes=1) * inside * sizes[:, None, None]
    return _Means(x, inside, joined @ means.ratio, means.weight), joined


def _composition(
    means: _Means,
    parts: tuple[Floats, Floats, Floats],
    joined: NDArray[np.bool_],
    data: Moments,
    confidence: float,
) -> tuple[float, float]:
    """Return how far the sum may lie off because the sample holds more or fewer rows of each part.

    One row more of part A moves the mean over D by (mean over A - mean over D)/N_D. The mean over A is taken
    at whichever of its limits is worse, the number of rows at its exact Poisson limits. A part without a row
    in the sample is not taken for one without a row in the population: of it the worst is assumed.
    """
    low, high, sizes = parts
    below, above, mean = _limits(means, data, confidence)
    limits = (below, mean, above, *means.range())
    least, base, most, lowest, highest = (joined @ (limit / means.rows(data)) for limit in limits)
    some, counted = sizes > 0, np.maximum(sizes, np.finfo(float).tiny)
    slopes = np.where(some, np.stack([low, high]) / counted - base, [lowest - most, highest - least])
    fewer, more = _count_limits(sizes, confidence)
    down = np.maximum(slopes * fewer, -slopes * more).max(axis=0)
    up = np.maximum(slopes * more, -slopes * fewer).max(axis=0)
    return _length(down), _length(up)


def _count_limits(counts: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Return how far below and above a Poisson count its exact limits lie."""
    tail = (1.0 - confidence) / 2.0
    below = np.where(counts > 0, gammaincinv(np.maximum(counts, 1e-9), tail), 0.0)
    return counts - below, gammaincinv(counts + 1.0, 1.0 - tail) - counts


def _limits(means: _Means, data: Moments, confidence: float) -> tuple[Floats, Floats, Floats]:
    """Return limits of each mean, and the means; a mean without rows has weight zero and stays zero."""
    rows = means.rows(data)
    mean = means.totals(data) / np.maximum(rows, np.finfo(float).tiny)
    least, most = means.range()
    width = most - least
    moving = width > 0
    scale = np.where(moving, width, 1.0)
    share = np.clip((mean - least) / scale, 0.0, 1.0)
    spread = np.diagonal(means.scatter(data, mean)) / scale / scale  # a tiny scale has no square
    worth = rows * (rows * share * (1.0 - share) + _PRIOR_SPREAD) / (spread + _PRIOR_SPREAD)
    low, high = share_interval(share * worth, worth, confidence)
    return np.where(moving, least + width * low, mean), np.where(moving, least + width * high, mean), mean


def _length(deviation: Floats, together: Floats | None = None) -> float:
    square = float(deviation @ (deviation if together is None else together @ deviation))
    return math.sqrt(max(square, 0.0))


def _mask(
    compiled: CompiledConstraints, subset: int, masks: dict[int, NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Return which cells a subset holds, remembering the last thousand or so."""
    if subset not in masks:
        if len(masks) > 1000:
            masks.clear()
        mask = np.full(compiled.n_cells, compiled.index_sets[subset].others)
        mask[compiled.index_sets[subset].listed] ^= True
        masks[subset] = mask
    return masks[subset]
