"""Privacy losses of dominating pairs on a pessimistic grid, and their composition.

A release is described by a pair of laws (P, Q) whose hockey-stick curve bounds that of the release on every
pair of neighbouring data sets, through the law of the loss ``L = log dP/dQ`` (proofs: `docs/guarantees.md`,
sections 3 to 8).

`discretise` moves each bucket's mass to the bucket's two edges so that its mass under P **and** under Q stays
what it was: the curve is never below the exact one, and the excess is of second order in the width.
`Composition` adds independent losses up by FFT after weighting each law with ``exp(tilt * loss)``, so that
the sum concentrates where it is asked about, whether delta is 1e-2 or 1e-30. What the FFT cannot see is added
on the safe side: mass above the window by a Chernoff bound, rounding by an allowance; mass below the window
wraps around to its top and is counted as loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy import fft, optimize
from scipy.special import erfcx, log_ndtr, logsumexp, ndtr, ndtri

Array = npt.NDArray[np.float64]
Window = tuple[float, float]

_EPS = float(np.finfo(np.float64).eps)
_CURVE_ROUNDING = 1e-13  # of the larger term; the functions are right to some 1e-15
_ROUNDING_OF_NOISE = 1e-12  # covers what is lost in sums of noise, and in e/m - m/2 where m is large
_NARROW = 5e-7  # half of m: below it the difference of the terms is lost in their rounding
_SMALLEST = 1e-300  # smaller values are reported as this
_ROOT_HALF = math.sqrt(0.5)

TOLERANCE = 2e-5  # excess of epsilon by discretisation, relative
_SMALLEST_EPSILON = 1e-5  # below it the tolerance is absolute
_WINDOW_TAIL = math.log(1e13)  # tilted mass outside the window, each side: at most exp(-this)
_CUT = 1e-26  # deltas below this are bounded, not computed
_COARSE = 1e-2  # the same for the first look, which only finds the place
_STEEPEST = 64.0  # largest tilt, in inverse standard deviations: a bounded sum has no best one
_NEGLIGIBLE = 60.0  # weights beyond exp(-this) of the scale are bounded, not summed
_MOST_POINTS = 1 << 21  # of a grid and of a window: a second each
_MOST_LOOKS = 6  # further places to look at; each only makes epsilon smaller
_RENYI_TOLERANCE = 3e-4  # excess of a Renyi divergence by discretisation, relative
_RENYI_POINTS = 1 << 17  # of a grid for Renyi divergences; more would only lower the excess
_ROUNDING = 5e-15  # per step: sqrt(N) * |law|_2 * log2(N) * machine epsilon, generously


class Masses(NamedTuple):
    """Mass of every bucket ``(edges[i], edges[i+1]]`` under P and Q, and P's mass outside of all."""

    p: Array
    q: Array
    p_below: float
    p_above: float


class Loss(Protocol):
    """The privacy loss of a pair (P, Q)."""

    def span(self, tail: float) -> Window:
        """Return losses (low, high) with at most `tail` of P's finite mass outside on either side."""

    def masses(self, edges: Array) -> Masses:
        """Return the masses of the buckets between neighbouring edges."""


@dataclass(frozen=True)
class RowLoss:
    """One row's part moved by 1 under Gaussian noise, Laplace noise or both, whose losses add; no sampling.

    With m = 1/noise, the Gaussian loss is N(m^2/2, m^2). With c = 1/scale, the Laplace loss has atoms at +c
    (1/2 under P) and at -c (exp(-c)/2) and density exp((l - c)/2)/4 between. With F the normal distribution
    function, both together have ``P(L <= t) = F((t-c)/m - m/2) + exp((t-c)/2 - m^2/8)/2 * (F((c-t)/m) -
    F((-c-t)/m))``. The loss under Q is the mirror image of the loss under P.
    """

    noise: float | None = None
    scale: float | None = None

    def quantiles(self, tail: float) -> Window:
        """Return losses with at most `tail` of P's mass below the first and above the second."""
        c = 0.0 if self.scale is None else 1.0 / self.scale
        if self.noise is None:
            return -c, c
        m, z = 1.0 / self.noise, -float(ndtri(tail))
        return m * (m / 2 - z) - c, m * (m / 2 + z) + c

    def tails(self, loss: Array) -> tuple[Array, Array]:
        """Return P(L <= loss) and P(L > loss), each accurate where it is small."""
        c = 0.0 if self.scale is None else 1.0 / self.scale
        if self.noise is None:
            inner = 0.5 * np.exp((np.minimum(loss, c) - c) / 2)
            below = np.where(loss >= c, 1.0, np.where(loss >= -c, inner, 0.0))
            return below, 1.0 - below
        place = (loss - c) * self.noise - 0.5 / self.noise
        below, above = np.asarray(ndtr(place)), np.asarray(ndtr(-place))
        if self.scale is None:
            return below, above
        loss = np.clip(loss, -1e12, 1e12)  # infinite edges stand for losses that cannot occur
        # F(c-t) - F(-c-t), from whichever tail is the small one; in logarithms, for the factor can be huge
        m = 1.0 / self.noise
        log_far = log_ndtr(np.where(loss > 0, c - loss, loss + c) / m)
        log_near = log_ndtr(np.where(loss > 0, -c - loss, loss - c) / m)
        log_difference = log_far + np.log(-np.expm1(np.minimum(log_near - log_far, -1e-300)))
        overlap = 0.5 * np.exp((loss - c) / 2 - m * m / 8 + log_difference)
        return below + overlap, np.maximum(above - overlap, 0.0)

    def mirrored(self, loss: Array) -> tuple[Array, Array]:
        """Return Q(L <= loss) and Q(L > loss)."""
        if self.noise is not None or self.scale is None:
            below, above = self.tails(-loss)
            return above, below
        c = 1.0 / self.scale  # the atoms belong to the lower side
        inner = 0.5 * np.exp((-np.maximum(loss, -c) - c) / 2)
        above = np.where(loss >= c, 0.0, np.where(loss >= -c, inner, 1.0))
        return 1.0 - above, above


@dataclass(frozen=True, eq=False)
class AtomicLoss:
    """A loss with atoms at the knots, in rising order, of masses p and q, that is otherwise infinite."""

    knots: Array
    p: Array
    q: Array
    infinite: float

    @classmethod
    def outside(cls, epsilon: float, delta: float) -> AtomicLoss:
        """Return the loss of the worst pair that is (epsilon, delta)-private."""
        finite = 1.0 - delta
        upper = finite / (1.0 + math.exp(-epsilon))
        p = np.array([finite - upper, upper])
        return cls(np.array([-epsilon, epsilon]), p, finite - p, delta)

    def span(self, tail: float) -> Window:  # noqa: ARG002 - bounded support
        """Return the first and the last knot."""
        return float(self.knots[0]), float(self.knots[-1])

    def masses(self, edges: Array) -> Masses:
        """Return the atoms, each in its bucket."""
        bucket = np.clip(np.searchsorted(edges, self.knots, side="left") - 1, 0, len(edges) - 2)
        p, q = (np.zeros(len(edges) - 1), np.zeros(len(edges) - 1))
        np.add.at(p, bucket, self.p)
        np.add.at(q, bucket, self.q)
        return Masses(p, q, 0.0, self.infinite)


@dataclass(frozen=True)
class RemoveLoss:
    """Poisson sampling, one row less: ((1-rate) Q + rate P) against Q, with loss log(1 - rate + rate e^L)."""

    base: RowLoss
    rate: float

    def span(self, tail: float) -> Window:
        """Return losses with at most `tail` of the mixture outside on either side."""
        low, high = self.base.quantiles(tail)  # of P; those of Q are their mirror images
        high_p = self.base.quantiles(min(tail / self.rate, 0.25))[1]
        return _sampled(-high, self.rate), _sampled(max(high_p, -low), self.rate)

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under the mixture and under Q."""
        inner = _unsampled(edges, self.rate)
        p, p_below, p_above = _buckets(*self.base.tails(inner))
        q, q_below, q_above = _buckets(*self.base.mirrored(inner))
        stay, move = 1 - self.rate, self.rate
        return Masses(stay * q + move * p, q, stay * q_below + move * p_below, stay * q_above + move * p_above)


class AddLoss(RemoveLoss):
    """Poisson sampling, one row more: Q against ((1-rate) Q + rate P); the mirror image of `RemoveLoss`."""

    def span(self, tail: float) -> Window:
        """Return losses with at most `tail` of Q's mass outside on either side."""
        low, high = self.base.quantiles(tail)
        return -_sampled(-low, self.rate), -_sampled(-high, self.rate)

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under Q and under the mixture."""
        inner = _unsampled(-edges, self.rate)
        p, below, above = _buckets(*reversed(self.base.mirrored(inner)))
        q, _, _ = _buckets(*reversed(self.base.tails(inner)))
        return Masses(p, (1 - self.rate) * p + self.rate * q, below, above)


@dataclass(frozen=True)
class ReplaceLoss:
    """Poisson sampling (rate below 1) and a Gaussian release, one row replaced by its opposite.

    (1-rate) N(0) + rate N(-1) against (1-rate) N(0) + rate N(+1); the loss falls as x grows.
    """

    noise: float
    rate: float

    def span(self, tail: float) -> Window:
        """Return losses with at most `tail` of P's mass outside on either side."""
        z = -self.noise * float(ndtri(tail))
        return self._loss(z), self._loss(-1.0 - z)

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under both mixtures."""
        x = self._position(edges)
        p, below, above = _buckets(self._mixture(-x, -1.0), self._mixture(x, 1.0))
        q, _, _ = _buckets(self._mixture(-x, 1.0), self._mixture(x, -1.0))
        return Masses(p, q, below, above)

    def _mixture(self, x: Array, shift: float) -> Array:
        """Return the chance that a mixture of centres 0 and -shift is at most x."""
        kept = (1 - self.rate) * ndtr(x / self.noise)
        return np.asarray(kept + self.rate * ndtr((x + shift) / self.noise))

    def _loss(self, x: float) -> float:
        stay, move, v = math.log1p(-self.rate), math.log(self.rate), self.noise**-2
        upper, lower = (np.logaddexp(stay, move + (-0.5 - sign * x) * v) for sign in (1, -1))
        return float(upper - lower)

    def _position(self, loss: Array) -> Array:
        half = np.abs(loss) / 2
        log_sinh = half - math.log(2) + np.log(-np.expm1(-2 * np.maximum(half, 1e-300)))
        log_y = self.noise**-2 / 2 + math.log1p(-self.rate) - math.log(self.rate) + log_sinh
        arcsinh = np.where(log_y > 300, log_y + math.log(2), np.arcsinh(np.exp(np.minimum(log_y, 300))))
        return np.asarray(-np.sign(loss) * (arcsinh + half) * self.noise**2)


@dataclass(frozen=True)
class GaussianCurve:
    """The curve of one Gaussian release of all rows, exact but for rounding; noise is over the sensitivity.

    With m = 1/noise and F the normal distribution function, ``delta(e) = F(m/2 - e/m) - exp(e) F(-m/2 -
    e/m)`` (Balle and Wang 2018, theorem 8), in both directions.
    """

    noise: float

    def delta(self, epsilon: float) -> float:
        """Return a delta such that (epsilon, delta)-privacy holds."""
        noise = self.noise * (1.0 - _ROUNDING_OF_NOISE)
        half, place = 0.5 / noise, epsilon * noise
        near, far = place - half, place + half
        # exp(e) F(-far) = exp(-near^2 / 2) erfcx(far / sqrt 2) / 2, since far^2 - near^2 = 2 e
        scale = 0.5 * math.exp(-0.5 * near * near) if abs(near) < 1e100 else 0.0
        if half < _NARROW:
            # the terms nearly agree; the slope of erfcx(x / sqrt 2) is x erfcx(x / sqrt 2) - sqrt(2 / pi)
            slope = math.sqrt(2.0 / math.pi) - place * float(erfcx(place * _ROOT_HALF))
            found = scale * (2.0 * half * max(0.0, slope) * (1.0 + 1e-9) + _CURVE_ROUNDING * half)
            return min(1.0, found + _SMALLEST)
        second = scale * float(erfcx(far * _ROOT_HALF))
        first = float(ndtr(-near)) if near < 0.0 else scale * float(erfcx(near * _ROOT_HALF))
        return min(1.0, max(0.0, first - second) + _CURVE_ROUNDING * first + _SMALLEST)

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at every epsilon."""
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])

    def epsilon(self, delta: float) -> float:
        """Return an epsilon, at least 0, such that (epsilon, delta)-privacy holds; delta above 1e-299."""
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0 / self.noise
        while self.delta(high) > delta:
            high *= 2.0
        return _crossing(self.delta, delta, (0.0, high), xtol=1e-15 * high, rtol=1e-13)


def _crossing(curve: Callable[[float], float], delta: float, window: Window, xtol: float, rtol: float) -> float:
    """Return about the least epsilon at which a falling curve is at most delta, on the safe side."""

    def excess(epsilon: float) -> float:
        found = curve(epsilon)
        return math.log(found) - math.log(delta) if found > 0 else -1.0

    found = float(optimize.brentq(excess, *window, xtol=xtol, rtol=rtol))
    step = 10 * max(xtol, rtol * abs(found))
    while curve(found) > delta:  # the root finder may stop a hair short
        found, step = found + step, 2 * step
    return found


@dataclass(frozen=True)
class LossGrid:
    """A loss that takes the values ``(first + i) * width`` with probability ``mass[i]``, or is infinite."""

    width: float
    first: int
    mass: Array
    infinite: float

    @cached_property
    def losses(self) -> Array:
        """The finite values, in rising order."""
        return self.width * (self.first + np.arange(len(self.mass), dtype=np.float64))

    def tilted(self, tilt: float) -> tuple[float, Array]:
        """Return log E exp(tilt * loss) over the finite losses, and the normalised tilted law."""
        weights = tilt * self.losses
        peak = float(weights[-1] if tilt > 0 else weights[0])  # losses rise
        weights -= peak
        np.exp(weights, out=weights)
        weights *= self.mass
        total = float(np.add.reduce(weights))
        if total <= 0.0:  # all mass sits where the tilt sends it below the smallest number
            with np.errstate(divide="ignore"):
                logs = np.log(self.mass) + tilt * self.losses
            log_total = float(logsumexp(logs))
            return log_total, np.exp(logs - log_total)
        weights /= total
        return peak + math.log(total), weights


def discretise(loss: Loss, width: float, tail: float) -> LossGrid:
    """Return a loss on multiples of `width` whose curve is nowhere below that of `loss`.

    At most `tail` of the mass is cut on either side: above, it becomes infinite; below, it is moved up.
    """
    low, high = loss.span(tail)
    # one bucket to spare on either side, so that no atom at the end of the support falls off by rounding
    first, last = math.floor(low / width) - 1, math.ceil(high / width) + 1
    edges = width * np.arange(first, last + 1, dtype=np.float64)
    p, q, below, above = loss.masses(edges)
    # Mass u at the upper edge and p - u at the lower one keep the mass under Q if
    # (p - u) e^-a + u e^-(a + width) = q. Rounding may only push the share u / p up; where q is too small to
    # be represented the whole bucket moves up.
    known = (p > 0) & (q > 0)
    log_ratio = np.zeros_like(p)
    np.log(q, out=log_ratio, where=known)
    log_ratio -= np.log(p, out=np.zeros_like(p), where=known)
    share = np.expm1(np.minimum(edges[:-1] + log_ratio, 0.0)) / math.expm1(-width)
    slack = 8 * _EPS * (1.0 + np.abs(edges[:-1])) / width
    upper = np.where(known, np.clip(share + slack, 0.0, 1.0), 1.0)
    mass = np.zeros(len(edges))
    mass[1:] = p * upper
    mass[:-1] += p * (1 - upper)
    mass[0] += below
    return LossGrid(width, first, mass, above)


def _buckets(cdf: Array, sf: Array) -> tuple[Array, float, float]:
    """Return bucket masses from distribution functions that are each accurate in their own tail."""
    mass = np.where(cdf[1:] < 0.5, np.diff(cdf), -np.diff(sf))
    return np.maximum(mass, 0.0), float(cdf[0]), float(sf[-1])


def _sampled(loss: float, rate: float) -> float:
    """Return log(1 - rate + rate e^loss) without overflow."""
    if rate == 1:
        return loss
    return math.log1p(rate * math.expm1(loss)) if loss < 500.0 else loss + math.log(rate)


def _unsampled(loss: Array, rate: float) -> Array:
    """Return the inverse of `_sampled`; losses that cannot occur map to minus infinity."""
    if rate == 1:
        return loss
    with np.errstate(divide="ignore"):
        inner = np.log1p(np.maximum(np.expm1(np.minimum(loss, 500.0)) / rate, -1.0))
    return np.where(loss > 500.0, loss - math.log(rate), inner)


# --- composition ------------------------------------------------------------------------------------------

Part = tuple[Loss, int]


@dataclass(frozen=True)
class _Grids:
    """The parts on one grid, with the cumulant function of their sum."""

    parts: tuple[tuple[LossGrid, int], ...]

    @property
    def width(self) -> float:
        return self.parts[0][0].width

    @property
    def span(self) -> Window:
        """The smallest and the largest finite sum."""
        low = sum(count * float(grid.losses[0]) for grid, count in self.parts)
        return low, sum(count * float(grid.losses[-1]) for grid, count in self.parts)

    @property
    def infinite(self) -> float:
        """Chance that any of the losses is infinite, from above."""
        finite = sum(count * math.log1p(-min(grid.infinite, 1.0 - 1e-16)) for grid, count in self.parts)
        return min(1.0, -math.expm1(finite))

    def cumulant(self, tilt: float) -> tuple[float, float]:
        """Return log E exp(tilt * sum) over the finite losses, and its derivative, the tilted sum's mean."""
        total = slope = 0.0
        for grid, count in self.parts:
            log_mgf, weights = grid.tilted(tilt)
            total += count * log_mgf
            slope += count * _dot(weights, grid.losses)
        return total, slope

    def deviation(self, tilt: float) -> float:
        """Return the standard deviation of the tilted sum, at least one grid width."""
        variance = 0.0
        for grid, count in self.parts:
            weights = grid.tilted(tilt)[1]
            variance += count * _dot(weights, np.square(grid.losses - _dot(weights, grid.losses)))
        return math.sqrt(max(variance, self.width**2))

    def slopes(self, tilt: float) -> Window:
        """Return changes of the tilt, down and up, whose Chernoff bounds give about the narrowest window."""
        scale, centre = self.cumulant(tilt)
        gaussian = math.log(math.sqrt(2 * _WINDOW_TAIL) / self.deviation(tilt))

        def distance(log_s: float, sign: float) -> float:
            s = math.exp(log_s)
            bound = (self.cumulant(tilt + sign * s)[0] - scale + _WINDOW_TAIL) / s - sign * centre
            return math.log(max(bound, 1e-300))

        def best(sign: float) -> float:
            bounds = (gaussian - 6.0, gaussian + 0.5)
            found = optimize.minimize_scalar(
                distance, args=(sign,), bounds=bounds, method="bounded", options={"xatol": 0.05}
            )
            return sign * math.exp(float(found.x))

        return best(-1.0), best(1.0)

    def window(self, tilt: float, slopes: Window) -> Window:
        """Return (low, high), with at most exp(-_WINDOW_TAIL) of the tilted sum outside either, by Chernoff.

        The bounds hold for all slopes. What lies below low wraps around to the top and is counted too high,
        so low may be anything (`_TiltedSum.delta` answers for epsilons below it).
        """
        log_scale = self.cumulant(tilt)[0]
        low, high = ((self.cumulant(tilt + s)[0] - log_scale + _WINDOW_TAIL) / s for s in slopes)
        return max(self.span[0], low), min(self.span[1], high)

    def compose(self, tilt: float, window: Window) -> _TiltedSum:
        """Return the law of the sum, tilted, on a window that holds all but a negligible part of it."""
        width, (low, high) = self.width, window
        low = min(max(low, high - 2 * _MOST_POINTS * width), high)
        first, last = math.floor(low / width), math.ceil(high / width)
        size = fft.next_fast_len(last - first + 1, real=True)
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        shift = steps = 0
        log_scale = 0.0
        for grid, count in self.parts:
            log_mgf, weights = grid.tilted(tilt)
            log_scale += count * log_mgf
            middle = round(_dot(weights, grid.losses) / width)
            shift += count * middle
            steps += count
            start = (grid.first - middle) % size  # on a circle of the given size, its index 0 at loss 0
            padded = np.zeros(-(-(start + len(weights)) // size) * size)
            padded[start : start + len(weights)] = weights
            law = fft.rfft(padded.reshape(-1, size).sum(axis=0))
            with np.errstate(divide="ignore", invalid="ignore"):  # the power of an exact 0 comes out as 0
                spectrum *= law if count == 1 else np.exp(count * np.log(law))
        weights = np.roll(np.maximum(fft.irfft(spectrum, size), 0.0), -((first - shift) % size))
        positions = width * (first + np.arange(size, dtype=np.float64))
        # both allowances are relative to the scale at the asked epsilon, which falls above the window
        rounding = _ROUNDING * (steps + 1) + math.exp(-_WINDOW_TAIL)
        return _TiltedSum(positions, weights, tilt, log_scale, rounding, self.infinite, self.span[1])


@dataclass(frozen=True)
class _TiltedSum:
    """The composed law near the point it was tilted to, as weights ``law * exp(tilt * loss - log_scale)``."""

    losses: Array
    weights: Array
    tilt: float
    log_scale: float
    rounding: float
    infinite: float
    largest: float

    def delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at epsilon."""
        scale = _exp(self.log_scale - self.tilt * epsilon)
        if self.tilt > 0 and epsilon < self.losses[0]:
            # what lies between epsilon and the window is not in it: all the weight there is bounds it
            return min(1.0, scale + self.infinite)
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        stop = int(np.searchsorted(self.losses, epsilon + _NEGLIGIBLE / (self.tilt + 1e-300)))
        gain = self.losses[start:stop] - epsilon
        body = float(np.sum(self.weights[start:stop] * np.exp(-self.tilt * gain) * -np.expm1(-gain)))
        body += math.exp(-_NEGLIGIBLE) if stop < len(self.losses) else 0.0
        return min(1.0, (body + self.rounding) * scale + self.infinite)

    def allowance(self, epsilon: float) -> float:
        """Return the part of `delta` that was not computed; infinite outside the window."""
        inside = self.losses[0] <= epsilon < self.losses[-1]
        return self.rounding * _exp(self.log_scale - self.tilt * epsilon) if inside else math.inf

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon whose delta is at most the given one; infinite if there is none."""
        left, right = float(self.losses[0]), float(self.losses[-1])
        if self.delta(right) > delta:
            return math.inf
        if self.delta(left) <= delta:
            return left
        return _crossing(self.delta, delta, (left, right), xtol=1e-12, rtol=1e-12)


@dataclass(frozen=True)
class Composition:
    """Independent losses, each occurring a number of times, added up.

    `epsilon` and `deltas` are upper bounds that hold for every pair of neighbouring data sets the losses
    dominate; the excess over the exact value stays near `tolerance` (relative, for epsilon).
    """

    parts: tuple[Part, ...]
    tolerance: float = TOLERANCE

    @property
    def steps(self) -> int:
        """Number of losses, repetitions included."""
        return sum(count for _, count in self.parts)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon, at least 0, such that (epsilon, delta)-privacy holds."""
        tail = 1e-8 * delta / self.steps
        unit, tilt, grids = self._place(lambda g: _tilt_for_delta(g, delta), tail)
        if grids.infinite >= delta:
            return max(0.0, grids.span[1]) if grids.infinite <= delta * (1 + 1e-12) else math.inf
        near = self._refined(unit, tilt, grids, tail, self.tolerance)
        # no finite loss exceeds the largest, and the infinite ones are rarer than delta
        found = min(near.epsilon(delta), max(0.0, near.largest))
        # a delta close to its largest value lies below the place that Chernoff's bound points to: look there
        for _ in range(_MOST_LOOKS):
            if found <= 0.0 or (found >= unit / 2 and near.allowance(found) <= 1e-3 * delta):
                break
            unit = min(unit / 2, found)
            _, tilt, grids = self._place(functools.partial(_tilt_for_epsilon, epsilon=found), tail)
            near = self._refined(unit, tilt, grids, tail, self.tolerance)
            found = min(found, near.epsilon(delta))
            if unit < _SMALLEST_EPSILON:
                break
        return max(0.0, found)

    def holds(self, epsilon: float, delta: float) -> bool:
        """Tell whether (epsilon, delta)-privacy is seen to hold at a quick look; False may mean "unclear"."""
        return self._near(epsilon, _COARSE, enough=delta).delta(epsilon) <= delta

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at every epsilon; neighbouring ones share the work."""
        answers = np.empty(len(epsilons))
        near: _TiltedSum | None = None
        for index in np.argsort(epsilons):
            epsilon = float(epsilons[index])
            if near is None or near.allowance(epsilon) > 1e-6 * near.delta(epsilon):
                near = self._near(epsilon, self.tolerance)
            answers[index] = near.delta(epsilon)
        return answers

    def renyi(self, orders: Array, tail: float) -> tuple[Array, float]:
        """Return Renyi divergences of the sum of losses, and the probability that is left out of them.

        Each divergence is ``log E[exp((order - 1) L); L finite] / (order - 1)``, from above. The second
        number bounds the probability that a loss is infinite, `tail` of every loss included.
        """
        total, infinite = np.zeros(len(orders)), 0.0
        for loss, count in self.parts:
            values, missing = _renyi_of_one(loss, orders, tail)
            total += count * values
            infinite += count * missing
        return total, min(1.0, infinite)

    def _near(self, epsilon: float, tolerance: float, enough: float = _CUT) -> _TiltedSum:
        """Return the law of the sum near epsilon, or Chernoff's bound where that is `enough`."""
        tail = _CUT / self.steps
        choose = functools.partial(_tilt_for_epsilon, epsilon=epsilon)
        coarse = self._grids(self._widths(tail)[0], tail)
        tilt, _ = choose(coarse)
        bound = _exp(coarse.cumulant(tilt)[0] - tilt * epsilon) + coarse.infinite
        if bound < enough:  # a law that is infinite with this probability, and has no other loss from epsilon on
            return _TiltedSum(np.array([epsilon, 1e300]), np.zeros(2), 0.0, 0.0, 0.0, bound, epsilon)
        return self._refined(*self._place(choose, tail), tail, tolerance)

    def _place(self, choose: Callable[[_Grids], tuple[float, float]], tail: float) -> tuple[float, float, _Grids]:
        """Return the unit of excess and the tilt for what is asked, found on a grid just fine enough."""
        width, finest = self._widths(tail)
        for _ in range(8):
            grids = self._grids(width, tail)
            tilt, unit = choose(grids)
            coarse = max(self._width_for(_COARSE, tilt, unit), finest)
            if width <= 2 * coarse:
                break
            width = coarse
        return unit, tilt, grids

    def _refined(self, unit: float, tilt: float, grids: _Grids, tail: float, tolerance: float) -> _TiltedSum:
        """Return the sum on grids that raise epsilon by at most `tolerance` units, if they can."""
        slopes = grids.slopes(tilt)
        low, high = grids.window(tilt, slopes)
        finest = max(self._widths(tail)[1], (high - low) / _MOST_POINTS)
        fine = max(self._width_for(tolerance, tilt, unit), finest)
        if not (fine < grids.width or finest > grids.width):
            return grids.compose(tilt, (low, high))
        finer = self._grids(fine, tail)
        return finer.compose(tilt, finer.window(tilt, slopes))

    def _width_for(self, tolerance: float, tilt: float, unit: float) -> float:
        """Return a width that raises epsilon by at most `tolerance` units.

        Splitting a bucket of width w raises log E exp(tilt * loss) by at most ``tilt (tilt + 1) w^2 / 8``
        a step, hence epsilon by ``steps (tilt + 1) w^2 / 8``; and no loss moves by more than w.
        """
        excess = tolerance * unit
        return max(math.sqrt(8 * excess / (self.steps * (tilt + 1))), excess / self.steps)

    def _grids(self, width: float, tail: float) -> _Grids:
        return _Grids(tuple((discretise(loss, width, tail), count) for loss, count in self.parts))

    def _widths(self, tail: float) -> tuple[float, float]:
        """Return the width of the first grid, and of the finest."""
        spans = [loss.span(tail) for loss, _ in self.parts]
        spread = max(high - low for low, high in spans)
        return max(spread / 512, 1e-12), max(spread / _MOST_POINTS, 1e-13)


def _renyi_of_one(loss: Loss, orders: Array, tail: float) -> tuple[Array, float]:
    """Return what `Composition.renyi` does, of one loss.

    Splitting a bucket of width w raises a divergence by at most ``order * w^2 / 8``, so the width is lowered
    until that is a small part of every divergence.
    """
    if isinstance(loss, RemoveLoss) and loss.rate == 1 and loss.base.noise and loss.base.scale is None:
        return orders / (2 * loss.base.noise**2), 0.0
    low, high = loss.span(tail)
    finest = max((high - low) / _RENYI_POINTS, 1e-12)
    width = max((high - low) / 1024, finest)
    while True:
        grid = discretise(loss, width, tail)
        log_mgf = np.array([grid.tilted(float(order) - 1.0)[0] for order in orders])
        allowance = _ROUNDING * (1.0 + (orders - 1.0) * max(abs(low), abs(high)))
        values = np.maximum(log_mgf + allowance, 0.0) / (orders - 1.0)
        wanted = math.sqrt(8 * _RENYI_TOLERANCE * float(np.min(values / orders)))
        if width <= max(wanted, finest):
            return values, grid.infinite
        width = max(wanted / 2, finest)


def _tilt_for_delta(grids: _Grids, delta: float) -> tuple[float, float]:
    """Return the tilt whose Chernoff bound gives the smallest epsilon at delta, and that epsilon as unit."""
    target = -math.log(delta)

    def excess(tilt: float) -> float:
        value, slope = grids.cumulant(tilt)
        return tilt * slope - value - target

    tilt = _solve_tilt(grids, excess)
    return tilt, max(abs(grids.cumulant(tilt)[1]), _SMALLEST_EPSILON)


def _tilt_for_epsilon(grids: _Grids, epsilon: float) -> tuple[float, float]:
    """Return the tilt that centres the sum at epsilon (or 0 if it lies above anyway), and the unit of excess.

    A shift of the losses by that unit changes delta by a factor of about e.
    """
    tilt = 0.0
    if grids.cumulant(0.0)[1] < epsilon:
        tilt = _solve_tilt(grids, lambda t: grids.cumulant(t)[1] - epsilon)
    return tilt, 1.0 / (tilt + 1.0 / grids.deviation(tilt))


def _solve_tilt(grids: _Grids, excess: Callable[[float], float]) -> float:
    """Return the root of an increasing function of the tilt (to a percent)."""
    unit = 1.0 / grids.deviation(0.0)
    high, ceiling = unit, _STEEPEST * unit
    while high < ceiling and excess(high) < 0:
        high *= 4
    low = high / 4
    while low > 1e-12 * unit and excess(low) > 0:
        low, high = low / 4, low
    for _ in range(8):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return low


def _dot(x: Array, y: Array) -> float:
    """Return the sum of the products, without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, y))


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, 700.0))
