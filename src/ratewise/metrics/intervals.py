"""Confidence intervals for linear combinations of rates: from exact counts, and from counts released with noise.

From exact counts (`mix_intervals`)
-----------------------------------
The rows are independent draws from a population, and an interval is about that population's value. For one
constraint, with L the sum that it bounds:

1. Terms with the same denominator are one mean. Means whose rows overlap, such as a group's rate and
   everyone's, are cut into parts over disjoint rows: the sum over parts A of N_A/N times the mean over A.
2. Each mean gets exact (Clopper-Pearson) limits l, u, given how many rows it rests on.
3. The limits are L - sqrt(sum (m - l)^2) and L + sqrt(sum (u - m)^2) (MOVER, the method of variance estimates
   recovery). Where means were cut, the sums also hold what L would move by if the number of rows in each part
   lay at its exact Poisson limits.

A single rate, ratios such as precision included, keeps its exact limits. Where a ratio and a share rest on the same
rows (precision minus recall, say) no such cut exists, since one counts rows by their prediction and the other
does not; there the sums of step 3 carry the correlation of the means under multinomial sampling instead. A mean of
more than two values, or of soft predictions, has the limits of a share on n/f rows, f the ratio of its variance
to that of such a share, drawn towards 1 in small samples.

From a histogram released with Gaussian noise (`noisy_intervals`)
-----------------------------------------------------------------
A released histogram is ``H = H0 + s Z`` with Z standard normal; the intervals are post-processing, and hold together.
If independent estimates of the cell sizes are given, the counts of each cell are first adjusted to them by
inverse-variance weighting (`adjust_to_totals`); the errors of a cell then have covariance ``s^2 (I - w 1 1^T)``,
``w = s^2 / (K s^2 + s_T^2)``. A constraint is a sum of means ``m_d = A_d.H0 / B_d.H0``, one per denominator.

1. *One mean.* ``A.H - m B.H`` is exactly normal with mean 0 at the true m, so the set
   ``{m : |A.H - m B.H| <= c sd(A.H - m B.H)}`` (Fieller) has exact coverage, whatever the size of the
   denominator. It is a finite interval iff ``B.H > c sd(B.H)``; otherwise the mean is *unresolved*, and its
   interval is its whole range (as it is where the finite interval contains the range).
2. *Several means.* The limits of the sum lie at ``sqrt(sum_de rho_de x_d x_e)`` from its estimate, x being the
   distances of the means from their own limits and rho the correlation of their errors (MOVER). Unresolved
   means add their range.
3. *Several constraints.* The critical value c is the `level` quantile of the largest ``|N_j|``, N having the
   correlation of the errors of the constraints; it is simulated with a fixed seed and is at most the Sidak value.
4. Limits are finally moved into the range that the sum can take. They are not moved earlier: clamping single
   rates inside a difference would lose coverage near 0 and 1.

For the population the distance of step 2 is joined with that of sampling (`mix_intervals`, at the same
critical value) as the root of the sum of squares, since noise and sampling are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaincinv, ndtr, ndtri

from ratewise.constraints.compiled import CompiledConstraints

# ------------------------------------------------------------------------------------------ exact counts


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_PRIOR_ROWS = 1.0  # rows of pretended evidence, so that rates of exactly 0 or 1 have a correlation
_PRIOR_SPREAD = 0.25  # the variance of one fair coin, to draw the variance ratio f towards 1


def share_interval(hits: Any, rows: Any, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Return exact two-sided limits (Clopper-Pearson) for shares; counts need not be whole.

    Holds with at least the stated confidence for every true share and any number of rows, also where no row
    or every row is a hit.

    >>> low, high = share_interval(0, 10)
    >>> float(low), round(float(high), 4)
    (0.0, 0.3085)
    """
    tail = (1.0 - confidence) / 2.0
    hits = np.asarray(hits, dtype=np.float64)
    misses = np.maximum(rows - hits, 0.0)
    low = np.where(hits > 0, betaincinv(hits, misses + 1.0, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1.0, misses, 1.0 - tail), 1.0)
    return low, high


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of predictions per cell: all that rates and their variances need.

    `sums` is the Q x K histogram. `squares` is None for hard predictions, whose products vanish; for soft
    ones it is Q x K x K, the sums of ``soft_k * soft_l`` over the rows of each cell.
    """

    sums: Floats
    squares: Floats | None = None

    def padded(self) -> Moments:
        """Return the moments with pretended hard predictions, of all classes alike, spread as the rows are."""
        rows, classes = self.sums.sum(axis=1), self.sums.shape[1]
        extra = np.outer(_PRIOR_ROWS * rows / max(rows.sum(), 1.0), np.full(classes, 1.0 / classes))
        if self.squares is None:
            return Moments(self.sums + extra)
        return Moments(self.sums + extra, self.squares + extra[:, :, None] * np.eye(classes))

    def products(self, functions: Floats) -> Floats:
        """Return sums over rows of the products of functions of the prediction (D x Q x K), by pair."""
        first = functions * self.sums if self.squares is None else np.einsum("dqk,qkl->dql", functions, self.squares)
        return np.tensordot(first, functions, axes=([1, 2], [1, 2]))


def moments(compiled: CompiledConstraints, cells: NDArray[np.int32], predictions: NDArray[Any]) -> Moments:
    """Return the moments of class codes (n,) or soft predictions (n, K)."""
    sums = compiled.histogram(cells, predictions)
    if predictions.ndim == 1:
        return Moments(sums)
    products = [compiled.histogram(cells, column[:, None] * predictions) for column in predictions.T]
    return Moments(sums, np.stack(products, axis=1))


def mix_intervals(
    compiled: CompiledConstraints, data: Moments, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return values, lower and upper limits of the normal forms; NaN where a rate has no rows."""
    known: dict[bytes, Floats] = {}
    out = np.empty((3, len(compiled)))
    table = compiled.coefficients
    for j in range(len(compiled)):
        part = slice(table.indptr[j], table.indptr[j + 1])
        numbers, coefficients = table.indices[part], table.data[part]
        key, mirror = (numbers.tobytes() + c.tobytes() for c in (coefficients, -coefficients))
        if mirror in known:  # the lower bound of a two-sided constraint
            out[:, j] = -known[mirror][[0, 2, 1]]
            continue
        means = _Means.of(compiled, j)
        out[:, j] = known[key] = means.scale * np.array(_interval(means, data, confidence))
    return out[0], out[1], out[2]


@dataclass(frozen=True, eq=False)
class _Means:
    """The means that one constraint adds up, as tables over mean, cell and class.

    A row counts in mean d if `inside` says so, and adds `x`. `ratio` marks means whose denominator depends on
    the predictions. The coefficients are divided by `scale`, so that squares neither overflow nor vanish.
    """

    x: Floats
    inside: Bools
    ratio: Bools
    scale: float = 1.0

    @classmethod
    def of(cls, compiled: CompiledConstraints, j: int) -> _Means:
        """Return the means of constraint j, one per distinct denominator."""
        rows, terms = compiled.coefficients, compiled.terms
        part = slice(rows.indptr[j], rows.indptr[j + 1])
        largest = float(np.abs(rows.data[part]).max(initial=0.0))
        scale = max(math.ldexp(1.0, math.frexp(largest)[1] - 1), 2.0**-1022)
        numbers, coefficients = rows.indices[part], rows.data[part] / scale
        keys = np.where(terms.ratio[numbers], terms.klass[numbers], -1)
        keys = keys + (compiled.n_classes + 1) * terms.denominator[numbers]
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        shape = len(first), compiled.n_cells, compiled.n_classes
        x, inside = np.zeros(shape), np.zeros(shape, dtype=bool)
        ratio = terms.ratio[numbers[first]]
        for d, r in enumerate(numbers[first]):
            chosen = terms.klass[r] if ratio[d] else slice(None)
            inside[d].T[chosen] = compiled.index_sets[terms.denominator[r]].mask(compiled.n_cells)
        for d, r, coefficient in zip(place, numbers, coefficients, strict=True):
            mask = compiled.index_sets[terms.numerator[r]].mask(compiled.n_cells)
            x[d, :, terms.klass[r]] += coefficient * mask
        return cls(x, inside, ratio, scale)

    def rows(self, data: Moments) -> Floats:
        """Return the number of rows that count in each mean."""
        return np.asarray(np.tensordot(self.inside.astype(np.float64), data.sums))

    def totals(self, data: Moments) -> Floats:
        """Return the sums of x over the rows that count."""
        return np.asarray(np.tensordot(self.x, data.sums))

    def range(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest value that each mean can take; 0 if no row can count."""
        some = self.inside.any(axis=(1, 2))
        least = np.where(self.inside, self.x, np.inf).min(axis=(1, 2))
        most = np.where(self.inside, self.x, -np.inf).max(axis=(1, 2))
        return np.where(some, least, 0.0), np.where(some, most, 0.0)

    def scatter(self, data: Moments, mean: Floats) -> Floats:
        """Return sums over rows of products of deviations, for each pair of means."""
        return data.products(self.x - mean[:, None, None] * self.inside)


def _interval(means: _Means, data: Moments, confidence: float) -> tuple[float, float, float]:
    """Return the sum of some means and its limits."""
    rows = means.rows(data)
    if not (rows > 0).all():
        return np.nan, np.nan, np.nan
    total = float((means.totals(data) / rows).sum())
    ratio, share = means.inside[means.ratio].any(axis=0), means.inside[~means.ratio].any(axis=0)
    if (ratio & share).any():  # some row can count in a ratio and in a share
        below, above = _correlated(means, data, confidence)
    elif len(means.x) > 1 and (np.count_nonzero(means.inside, axis=0) > 1).any():
        below, above = _cut(means, data, confidence)
    else:
        low, high, mean = _limits(means, data, confidence)
        below, above = _length(mean - low), _length(high - mean)
    return total, total - below, total + above


def _correlated(means: _Means, data: Moments, confidence: float) -> tuple[float, float]:
    """Return how far the limits lie from the sum, by the correlation of the means."""
    low, high, mean = _limits(means, data, confidence)
    padded = data.padded()
    scatter = means.scatter(padded, means.totals(padded) / means.rows(padded))
    scale = np.sqrt(np.maximum(np.diagonal(scatter), np.finfo(float).tiny))
    together = np.clip(scatter / np.outer(scale, scale), -1.0, 1.0)
    return _length(mean - low, together), _length(high - mean, together)


def _cut(means: _Means, data: Moments, confidence: float) -> tuple[float, float]:
    """Return how far the limits lie from the sum, by cutting the means where they overlap.

    A mean over D is the sum over its parts A, which are disjoint, of N_A/N_D times the mean over A. The sum also lies
    off because the sample holds more or fewer rows of each part: one row more of part A moves the mean over D by
    (mean over A - mean over D)/N_D. There the mean over A is taken at whichever of its limits is worse, the number of
    rows at its exact Poisson limits. A part without a row in the sample is not taken for one without a row in the
    population: of it the worst is assumed.
    """
    flat = means.inside.reshape(len(means.inside), -1).T
    joined, part_of = np.unique(flat, axis=0, return_inverse=True)  # of which means each is a part
    inside = np.arange(len(joined))[:, None, None] == part_of.reshape(means.inside.shape[1:])
    kept = joined.any(axis=1)
    joined, inside, rows = joined[kept], inside[kept], means.rows(data)
    sizes = np.tensordot(inside.astype(np.float64), data.sums)
    x = np.tensordot(joined / rows, means.x, axes=1) * inside * sizes[:, None, None]
    low, high, mean = _limits(_Means(x, inside, joined @ means.ratio), data, confidence)
    below, above, base = _limits(means, data, confidence)
    limits = (below, base, above, *means.range())
    least, base, most, lowest, highest = (joined @ (limit / rows) for limit in limits)
    slopes = np.stack([low, high]) / np.maximum(sizes, np.finfo(float).tiny) - base
    slopes = np.where(sizes > 0, slopes, [lowest - most, highest - least])
    tail = (1.0 - confidence) / 2.0
    fewer = sizes - np.where(sizes > 0, gammaincinv(np.maximum(sizes, 1e-9), tail), 0.0)
    more = gammaincinv(sizes + 1.0, 1.0 - tail) - sizes
    down = np.maximum(slopes * fewer, -slopes * more).max(axis=0)
    up = np.maximum(slopes * more, -slopes * fewer).max(axis=0)
    return math.hypot(_length(mean - low), _length(down)), math.hypot(_length(high - mean), _length(up))


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
    effective_rows = rows * (rows * share * (1.0 - share) + _PRIOR_SPREAD) / (spread + _PRIOR_SPREAD)
    low, high = share_interval(share * effective_rows, effective_rows, confidence)
    return np.where(moving, least + width * low, mean), np.where(moving, least + width * high, mean), mean


def _length(deviation: Floats, together: Floats | None = None) -> float:
    square = float(deviation @ (deviation if together is None else together @ deviation))
    return math.sqrt(max(square, 0.0))


# ------------------------------------------------------------------------------------------ noisy counts


_DRAWS = 20_000  # of the largest deviation; the quantile is then known to .0015 in probability
_LARGEST_PRODUCT = 4e9  # multiplications spent on the draws; larger problems take the Sidak value
_CHUNK = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True, eq=False)
class NoisyIntervals:
    """Estimates and limits of the normal forms of some constraints, one entry each.

    `low` and `high` are limits for the rows that were counted, with the `estimate` between them; `population_low` and
    `population_high` for the population that they were drawn from. `resolved` says whether every denominator
    differs from 0 by more than its noise, and `rows_needed` is the smallest denominator that the noise would
    resolve, for the denominator that is worst. `critical` is the critical value c.
    """

    estimate: Floats
    low: Floats
    high: Floats
    population_low: Floats
    population_high: Floats
    resolved: Bools
    rows_needed: Floats
    critical: float


def noisy_intervals(
    compiled: CompiledConstraints,
    histogram: Floats,
    noise_std: float,
    *,
    members: Sequence[int] | None = None,
    cell_totals: Floats | None = None,
    cell_totals_std: float | Floats = 0.0,
    level: float = 0.95,
) -> NoisyIntervals:
    """Return intervals for the normal forms of the constraints `members` (all by default).

    `histogram` is the released (Q, K) histogram of hard predictions and `noise_std` the standard deviation of its
    noise, 0 for exact counts. `cell_totals` are independent estimates of the number of rows in each cell. `level` is
    the confidence of all intervals together.
    """
    chosen = np.arange(len(compiled)) if members is None else np.asarray(members, dtype=np.int64)
    table, beta = adjust_to_totals(histogram, noise_std, cell_totals, cell_totals_std)
    critical = sidak_value(level, len(chosen))
    sums = [_NoisySum(_Means.of(compiled, int(j)), table, noise_std, beta) for j in chosen]
    small = len(chosen) * table.size * _DRAWS <= _LARGEST_PRODUCT
    if len(chosen) > 1 and noise_std > 0 and small:
        critical = critical_value(np.array([one.direction() for one in sums]), level)
    found = [one.interval(critical) for one in sums]
    estimate, middle, low, high, least, most, resolved, needed = np.array(found).reshape(-1, 8).T
    confidence = 1.0 - 2.0 * float(ndtr(-critical))
    people = Moments(np.maximum(nearest_table(table, max(float(table.sum()), 0.0)), 0.0))
    value, below, above = (ends[chosen] for ends in mix_intervals(compiled, people, confidence))
    wide_low = np.where(np.isnan(value), least, middle - np.hypot(middle - low, value - below))
    wide_high = np.where(np.isnan(value), most, middle + np.hypot(high - middle, above - value))
    low, high, wide_low, wide_high = (np.clip(ends, least, most) for ends in (low, high, wide_low, wide_high))
    return NoisyIntervals(
        estimate=np.clip(estimate, low, high),
        low=low,
        high=high,
        population_low=np.minimum(wide_low, low),
        population_high=np.maximum(wide_high, high),
        resolved=resolved > 0,
        rows_needed=needed,
        critical=critical,
    )


def adjust_to_totals(
    histogram: Floats, noise_std: float, cell_totals: Floats | None, cell_totals_std: float | Floats
) -> tuple[Floats, Floats]:
    """Return the histogram adjusted to known cell sizes, and beta, which describes its errors.

    The errors of cell q are ``s (I - beta_q 1 1^T) Z``: ``(1 - beta K)^2 = 1 - w K``.
    """
    table = np.array(histogram, dtype=np.float64)
    classes = table.shape[1]
    beta = np.zeros(len(table))
    if cell_totals is None:
        return table, beta
    own, other = (noise_std**2, np.broadcast_to(np.square(np.asarray(cell_totals_std, dtype=float)), beta.shape))
    weight = np.where(other + own > 0, own / np.maximum(classes * own + other, np.finfo(float).tiny), 0.0)
    table += (weight * (np.asarray(cell_totals, dtype=float) - table.sum(axis=1)))[:, None]
    return table, (1.0 - np.sqrt(np.maximum(1.0 - classes * weight, 0.0))) / classes


def nearest_table(table: Floats, total: float) -> Floats:
    """Return the nearest table without negative entries that sums to `total`.

    >>> nearest_table(np.array([[5.0, -1.0], [4.0, 2.0]]), 10.0)
    array([[4.66666667, 0.        ],
           [3.66666667, 1.66666667]])
    """
    if total <= 0:
        return np.zeros_like(table)
    falling = np.sort(table, axis=None)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    kept = int(np.flatnonzero(falling > excess)[-1])
    return np.asarray(np.maximum(table - excess[kept], 0.0))


def fieller(
    a: float, b: float, variance_a: float, covariance: float, variance_b: float, critical: float
) -> tuple[float, float] | None:
    """Return the limits of the ratio of the means of two normal numbers a and b; None if they are infinite.

    >>> low, high = fieller(30.0, 100.0, 4.0, 4.0, 8.0, 1.96)
    >>> round(low, 3), round(high, 3)
    (0.269, 0.329)
    """
    square = critical * critical
    lead = b * b - square * variance_b
    if not (b > 0 and lead > 0):
        return None
    middle = a * b - square * covariance
    spread = b * b * variance_a - 2.0 * a * b * covariance + a * a * variance_b
    root = critical * math.sqrt(max(spread - square * (variance_a * variance_b - covariance**2), 0.0))
    return (middle - root) / lead, (middle + root) / lead


def sidak_value(level: float, count: int) -> float:
    """Return the critical value for so many independent normal deviations; valid under any correlation."""
    return float(-ndtri((1.0 - level ** (1.0 / max(count, 1))) / 2.0))


def critical_value(directions: Floats, level: float) -> float:
    """Return the `level` quantile of the largest of |normal deviations| along unit vectors (rows of a table)."""
    bound = sidak_value(level, len(directions))
    rng = np.random.default_rng(20_260_101)
    largest = np.empty(_DRAWS)
    step = max(_CHUNK // max(*directions.shape, 1), 1)
    for start in range(0, _DRAWS, step):
        stop = min(start + step, _DRAWS)
        draws = rng.standard_normal((stop - start, directions.shape[1])) @ directions.T
        largest[start:stop] = np.abs(draws).max(axis=1)
    # two standard errors above the quantile: the error of the simulation is on the safe side
    place = level + 2.0 * math.sqrt(level * (1.0 - level) / _DRAWS)
    return min(float(np.quantile(largest, min(place, 1.0), method="higher")), bound)


class _NoisySum:
    """A sum of means ``a / b`` of a noisy table; ``u.Z`` and ``v.Z`` are the errors of a and b."""

    def __init__(self, means: _Means, table: Floats, noise: float, beta: Floats) -> None:
        parts = means.x, means.inside.astype(np.float64)
        self.scale, self._noise, (self._lows, self._highs) = means.scale, noise, means.range()
        self._a, self._b = (np.tensordot(part, table, 2) for part in parts)
        # functions of the counts as functions of standard normal noise; see `adjust_to_totals`
        white = (part - beta[:, None] * part.sum(axis=2, keepdims=True) for part in parts)
        self._u, self._v = (noise * part.reshape(len(part), -1) for part in white)

    def interval(self, critical: float) -> list[float]:
        """Return estimate, centre, limits, range, whether resolved, and the denominator that would be."""
        a, b, u, v, lows, highs = self._a, self._b, self._u, self._v, self._lows, self._highs
        spreads = np.square(u).sum(axis=1), (u * v).sum(axis=1), np.square(v).sum(axis=1)
        inside = [fieller(*numbers, critical) for numbers in zip(a, b, *spreads, strict=True)]
        finite = np.array([limits is not None for limits in inside], dtype=bool)
        limits = np.array([limit or (-np.inf, np.inf) for limit in inside])
        known = (limits[:, 0] > lows) | (limits[:, 1] < highs) | ((self._noise == 0) & finite)
        ratio = np.divide(a, b, out=(lows + highs) / 2.0, where=known)
        errors = u - ratio[:, None] * v
        size = np.linalg.norm(errors, axis=1)
        unit = errors / np.where(size > 0, size, 1.0)[:, None]
        together = unit @ unit.T
        np.fill_diagonal(together, 1.0)
        down, up = np.where(known[:, None], np.abs(limits - ratio[:, None]), 0.0).T
        middle, unresolved = float(ratio.sum()), float(((highs - lows) / 2.0)[~known].sum())
        low = middle - _length(down, together) - unresolved
        high = middle + _length(up, together) + unresolved
        estimate = float(np.clip(np.divide(a, b, out=ratio.copy(), where=b > 0), lows, highs).sum())
        needed = critical * float(np.sqrt(spreads[2]).max(initial=0.0))
        ends = (estimate, middle, low, high, float(lows.sum()), float(highs.sum()))
        return [*(self.scale * end for end in ends), float(finite.all()), needed]

    def direction(self) -> Floats:
        """Return the unit vector, over standard normal noise, along which the sum errs to first order."""
        floor = np.maximum(self._b, np.linalg.norm(self._v, axis=1))
        floor = np.where(floor > 0, floor, 1.0)
        ratio = np.clip(self._a / floor, self._lows, self._highs)
        errors = ((self._u - ratio[:, None] * self._v) / floor[:, None]).sum(axis=0)
        size = float(np.linalg.norm(errors))
        return np.asarray(errors / size if size > 0 else errors)
