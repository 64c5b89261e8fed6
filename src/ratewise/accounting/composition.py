"""Composition of privacy losses: add independent losses up, and read the curve off the sum.

The sum of many losses is computed by FFT **after exponential tilting**: each law is weighted with
``exp(tilt * loss)`` and normalised, so that the sum concentrates where it is asked about. Rounding errors and
cut tails are then small relative to the answer, whether delta is 1e-2 or 1e-30, with one step or a million.

What the FFT cannot see is added on the safe side: mass above the window by a Chernoff bound, rounding by an
explicit allowance. Mass below the window wraps around to its top and is counted as loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft, optimize
from scipy.special import logsumexp

from ratewise.accounting.losses import Array, Loss, LossGrid, discretise

TOLERANCE = 2e-5  # excess of epsilon by discretisation, relative
_SMALLEST_EPSILON = 1e-5  # below it the tolerance is absolute
_WINDOW_TAIL = math.log(1e13)  # tilted mass outside the window, each side: at most exp(-this)
_CUT = 1e-26  # deltas below this are bounded, not computed
_COARSE = 1e-2  # the same for the first look, which only finds the place
_BLOCK = 16  # grid points merged where only a choice is made
_STEEPEST = 64.0  # largest tilt, in inverse standard deviations: a bounded sum has no best one
_NEGLIGIBLE = 60.0  # weights beyond exp(-this) of the scale are bounded, not summed
_MOST_POINTS = 1 << 21  # of a grid and of a window: a second each
_MOST_LOOKS = 6  # further places to look at; each only makes epsilon smaller
_ROUNDING = 5e-15  # per step: sqrt(N) * |law|_2 * log2(N) * machine epsilon, generously

ComplexArray = npt.NDArray[np.complex128]
Part = tuple[Loss, int]
Window = tuple[float, float]


@dataclass(frozen=True)
class _Grids:
    """The parts on one grid, with the cumulant function of their sum."""

    parts: tuple[tuple[LossGrid, int], ...]

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def width(self) -> float:
        return self.parts[0][0].width

    @property
    def largest(self) -> float:
        """The largest finite sum, or 0."""
        return max(0.0, sum(count * float(grid.losses[-1]) for grid, count in self.parts))

    @property
    def infinite(self) -> float:
        """Chance that any of the losses is infinite, from above."""
        return min(
            1.0,
            -math.expm1(sum(count * math.log1p(-min(g.infinite, 1.0 - 1e-16)) for g, count in self.parts)),
        )

    def cumulant(self, tilt: float) -> tuple[float, float]:
        """Return log E exp(tilt * sum) over the finite losses, and its derivative."""
        total = slope = 0.0
        for grid, count in self.parts:
            losses = grid.losses
            log_mgf, weights = _tilted(grid, losses, tilt)
            total += count * log_mgf
            slope += count * float(weights @ losses)
        return total, slope

    def log_mgf(self, tilt: float) -> float:
        """Return log E exp(tilt * sum) over the finite losses: the first half of `cumulant`, for less."""
        total = 0.0
        for grid, count in self.parts:
            _, peak, mass = _weighted(grid, grid.losses, tilt)
            found = peak + math.log(mass) if mass > 0.0 else _faint(grid, grid.losses, tilt)[0]
            total += count * found
        return total

    def coarsened(self) -> _Grids:
        """Return about the same laws on a grid that is cheaper to read; for choices, not for answers."""
        return _Grids(tuple((_coarsened(grid), count) for grid, count in self.parts))

    def deviation(self, tilt: float) -> float:
        """Return the standard deviation of the tilted sum, at least one grid width."""
        variance = 0.0
        for grid, count in self.parts:
            losses = grid.losses
            _, weights = _tilted(grid, losses, tilt)
            variance += count * float(weights @ np.square(losses - weights @ losses))
        return math.sqrt(max(variance, self.width**2))


@dataclass(frozen=True)
class _TiltedSum:
    """The composed law near the point it was tilted to, as weights ``law * exp(tilt * loss - log_scale)``."""

    losses: Array
    weights: Array
    tilt: float
    log_scale: float
    rounding: float
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at epsilon."""
        if self.tilt > 0 and epsilon < self.losses[0]:
            # what lies between epsilon and the window is not in it: all the weight there is bounds it
            return min(1.0, _exp(self.log_scale - self.tilt * epsilon) + self.infinite)
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        stop = int(np.searchsorted(self.losses, epsilon + _NEGLIGIBLE / (self.tilt + 1e-300)))
        gain = self.losses[start:stop] - epsilon
        body = float(self.weights[start:stop] @ (np.exp(-self.tilt * gain) * -np.expm1(-gain)))
        body += math.exp(-_NEGLIGIBLE) if stop < len(self.losses) else 0.0
        return min(1.0, (body + self.rounding) * _exp(self.log_scale - self.tilt * epsilon) + self.infinite)

    def covers(self, epsilon: float, delta: float) -> bool:
        """Tell whether epsilon lies in the window, and what was not computed is small beside delta."""
        inside = self.losses[0] <= epsilon < self.losses[-1]
        return bool(inside and self.rounding * _exp(self.log_scale - self.tilt * epsilon) <= 1e-3 * delta)

    def reliable(self, epsilon: float) -> bool:
        """Tell whether delta at epsilon is computed rather than mostly allowance."""
        if not self.losses[0] <= epsilon < self.losses[-1]:
            return False
        allowance = self.rounding * _exp(self.log_scale - self.tilt * epsilon)
        return allowance <= 1e-6 * self.delta(epsilon)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon whose delta is at most the given one; infinite if there is none."""
        left, right = float(self.losses[0]), float(self.losses[-1])
        if self.delta(right) > delta:
            return math.inf
        if self.delta(left) <= delta:
            return left

        def excess(epsilon: float) -> float:
            found = self.delta(epsilon)
            return math.log(found) - math.log(delta) if found > 0 else -1.0

        exact = float(optimize.brentq(excess, left, right, xtol=1e-12, rtol=1e-12))
        step = 1e-11 * max(1.0, abs(exact))
        while self.delta(exact) > delta:  # the root finder may stop a hair short of the safe side
            exact, step = exact + step, 2 * step
        return exact


@dataclass(frozen=True)
class _Chernoff:
    """A bound on delta from some epsilon on, where it is too small to be worth more."""

    start: float
    bound: float

    def delta(self, epsilon: float) -> float:  # noqa: ARG002 - the bound holds from `start` on
        return min(1.0, self.bound)

    def reliable(self, epsilon: float) -> bool:
        return epsilon >= self.start


class _Look(NamedTuple):
    """What a coarse grid tells about an epsilon: tilt and unit there, and a bound on delta from there on."""

    grids: _Grids
    tilt: float
    unit: float
    bound: float


@dataclass(frozen=True)
class Composition:
    """Independent losses, each occurring a number of times, added up.

    `epsilon` and `delta` are upper bounds that hold for every pair of neighbouring data sets the losses
    dominate; the excess over the exact value stays near `tolerance` (relative, for epsilon).

    Parameters
    ----------
    parts : tuple of (Loss, int)
    tolerance : float
    """

    parts: tuple[Part, ...]
    tolerance: float = TOLERANCE

    @property
    def _steps(self) -> int:
        return sum(count for _, count in self.parts)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon, at least 0, such that (epsilon, delta)-privacy holds."""
        tail = 1e-8 * delta / self._steps
        unit, tilt, grids = self._place(lambda g: _tilt_for_delta(g, delta), tail)
        if grids.infinite >= delta:
            return grids.largest if grids.infinite <= delta * (1 + 1e-12) else math.inf
        fine, window = self._refine(unit, tilt, grids, tail, self.tolerance)
        near = _compose(fine, tilt, window)
        # no finite loss exceeds the largest, and the infinite ones are rarer than delta
        found = min(near.epsilon(delta), fine.largest)
        # a delta close to its largest value lies below the place that Chernoff's bound points to: look there
        for _ in range(_MOST_LOOKS):
            if found <= 0.0 or (found >= unit / 2 and near.covers(found, delta)):
                break
            unit = min(unit / 2, found)
            _, tilt, grids = self._place(functools.partial(_tilt_for_epsilon, epsilon=found), tail)
            finer, window = self._refine(unit, tilt, grids, tail, self.tolerance)
            near = _compose(finer, tilt, window)
            found = min(found, near.epsilon(delta))
            if unit < _SMALLEST_EPSILON:
                break
        return max(0.0, found)

    def delta(self, epsilon: float) -> float:
        """Return a delta such that (epsilon, delta)-privacy holds."""
        return self._near(epsilon, self.tolerance).delta(epsilon)

    def holds(self, epsilon: float, delta: float) -> bool:
        """Tell whether (epsilon, delta)-privacy is seen to hold at a quick look; False may mean "unclear"."""
        look = self._look(epsilon)
        return look.bound <= delta or self._near(epsilon, _COARSE, look).delta(epsilon) <= delta

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at every epsilon; neighbouring ones share the work."""
        answers = np.empty(len(epsilons))
        near: _TiltedSum | _Chernoff | None = None
        for index in np.argsort(epsilons):
            epsilon = float(epsilons[index])
            if near is None or not near.reliable(epsilon):
                near = self._near(epsilon, self.tolerance)
            answers[index] = near.delta(epsilon)
        return answers

    def _near(self, epsilon: float, tolerance: float, look: _Look | None = None) -> _TiltedSum | _Chernoff:
        """Return the law of the sum near epsilon, or only its bound where next to nothing is left there."""
        look = self._look(epsilon) if look is None else look
        if look.bound < _CUT:
            return _Chernoff(epsilon, look.bound)
        tail = _CUT / self._steps
        unit, tilt, grids = self._place(functools.partial(_tilt_for_epsilon, epsilon=epsilon), tail, look)
        fine, window = self._refine(unit, tilt, grids, tail, tolerance)
        return _compose(fine, tilt, window)

    def _look(self, epsilon: float) -> _Look:
        """Return what a coarse grid alone tells about epsilon."""
        tail = _CUT / self._steps
        grids = self._grids(self._first_width(tail), tail)
        tilt, unit = _tilt_for_epsilon(grids, epsilon)
        bound = _exp(grids.log_mgf(tilt) - tilt * epsilon) + grids.infinite
        return _Look(grids, tilt, unit, bound)

    def _place(
        self,
        choose: Callable[[_Grids], tuple[float, float]],
        tail: float,
        look: _Look | None = None,
    ) -> tuple[float, float, _Grids]:
        """Return the unit of excess and the tilt for what is asked, found on a grid just fine enough.

        `look` is what was found on the first grid, if that is known.
        """
        width = self._first_width(tail)
        for _ in range(8):
            if look is None:
                grids = self._grids(width, tail)
                tilt, unit = choose(grids)
            else:
                (grids, tilt, unit, _), look = look, None
            coarse = max(self._width_for(_COARSE, tilt, unit), self._finest_width(tail))
            if width <= 2 * coarse:
                break
            width = coarse
        return unit, tilt, grids

    def _refine(
        self, unit: float, tilt: float, grids: _Grids, tail: float, tolerance: float
    ) -> tuple[_Grids, Window]:
        """Return grids that raise epsilon by at most `tolerance` units, if they can, and their window."""
        low, high = _window(grids, tilt)
        finest = max(self._finest_width(tail), (high - low) / _MOST_POINTS)
        fine = max(self._width_for(tolerance, tilt, unit), finest)
        if not (fine < grids.width or finest > grids.width):
            return grids, (low, high)
        finer = self._grids(fine, tail)
        return finer, _window(finer, tilt)

    def _width_for(self, tolerance: float, tilt: float, unit: float) -> float:
        """Return a width that raises epsilon by at most `tolerance` units.

        Splitting a bucket of width w raises log E exp(tilt * loss) by at most ``tilt (tilt + 1) w^2 / 8``
        a step, hence epsilon by ``steps (tilt + 1) w^2 / 8``; and no loss moves by more than w.
        """
        excess = tolerance * unit
        return max(math.sqrt(8 * excess / (self._steps * (tilt + 1))), excess / self._steps)

    def _grids(self, width: float, tail: float) -> _Grids:
        return _Grids(tuple((discretise(loss, width, tail), count) for loss, count in self.parts))

    def _spread(self, tail: float) -> float:
        spans = [loss.span(tail) for loss, _ in self.parts]
        return max(high - low for low, high in spans)

    def _first_width(self, tail: float) -> float:
        return max(self._spread(tail) / 512, 1e-12)

    def _finest_width(self, tail: float) -> float:
        return max(self._spread(tail) / _MOST_POINTS, 1e-13)


def _compose(grids: _Grids, tilt: float, window: Window) -> _TiltedSum:
    """Return the law of the sum, tilted, on a window that holds all but a negligible part of it."""
    log_scale = grids.log_mgf(tilt)
    low, high = window
    width = grids.width
    low = min(max(low, high - 2 * _MOST_POINTS * width), high)
    first, last = math.floor(low / width), math.ceil(high / width)
    size = fft.next_fast_len(last - first + 1, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    shift = 0
    for grid, count in grids.parts:
        losses = grid.losses
        _, weights = _tilted(grid, losses, tilt)
        middle = round(float(weights @ losses) / width)
        shift += count * middle
        spectrum *= _power(_fold(weights, grid.first - middle, size), count)
    cyclic = np.maximum(fft.irfft(spectrum, size), 0.0)
    weights = np.roll(cyclic, -((first - shift) % size))
    positions = width * (first + np.arange(size, dtype=np.float64))
    # both allowances are relative to the scale at the asked epsilon; above the window the scale only falls
    rounding = _ROUNDING * (grids.steps + 1) + math.exp(-_WINDOW_TAIL)
    return _TiltedSum(positions, weights, tilt, log_scale, rounding, grids.infinite)


def _coarsened(grid: LossGrid) -> LossGrid:
    if len(grid.mass) < 64 * _BLOCK:
        return grid
    padded = np.zeros(-(-len(grid.mass) // _BLOCK) * _BLOCK)
    padded[: len(grid.mass)] = grid.mass
    middle = (grid.first + (_BLOCK - 1) / 2) / _BLOCK
    return LossGrid(
        grid.width * _BLOCK, math.floor(middle), padded.reshape(-1, _BLOCK).sum(axis=1), grid.infinite
    )


def _power(law: Array, count: int) -> ComplexArray:
    spectrum = fft.rfft(law)
    if count == 1:
        return spectrum
    with np.errstate(divide="ignore", invalid="ignore"):  # the power of an exact 0 comes out as 0
        return np.asarray(np.exp(count * np.log(spectrum)))


def _fold(law: Array, first: int, size: int) -> Array:
    """Return the law on a circle of the given size, its index 0 at loss 0."""
    start = first % size
    total = -(-(start + len(law)) // size) * size
    padded = np.zeros(total)
    padded[start : start + len(law)] = law
    return np.asarray(padded.reshape(-1, size).sum(axis=0))


def _window(grids: _Grids, tilt: float) -> Window:
    """Return (low, high), with at most exp(-_WINDOW_TAIL) of the tilted sum outside either, by Chernoff.

    What lies below low wraps around to the top and is counted too high, so low may be anything
    (`_TiltedSum.delta` answers for epsilons below it).
    """
    low = sum(count * float(grid.losses[0]) for grid, count in grids.parts)
    high = sum(count * float(grid.losses[-1]) for grid, count in grids.parts)
    log_scale = grids.log_mgf(tilt)
    slope = _slopes(grids.coarsened(), tilt)
    for sign in (1.0, -1.0):
        s = sign * slope(sign)
        bound = (grids.log_mgf(tilt + s) - log_scale + _WINDOW_TAIL) / s  # valid for every s
        low, high = (low, min(high, bound)) if sign > 0 else (max(low, bound), high)
    return low, high


def _slopes(grids: _Grids, tilt: float) -> Callable[[float], float]:
    """Return what finds, by its sign, about the s for which Chernoff's bound on a tail is tightest."""
    log_scale, centre = grids.cumulant(tilt)
    gaussian = math.log(math.sqrt(2 * _WINDOW_TAIL) / grids.deviation(tilt))

    def best(sign: float) -> float:
        def distance(log_s: float) -> float:
            s = math.exp(log_s)
            bound = (grids.log_mgf(tilt + sign * s) - log_scale + _WINDOW_TAIL) / s - sign * centre
            return math.log(max(bound, 1e-300))

        found = optimize.minimize_scalar(
            distance, bounds=(gaussian - 6.0, gaussian + 0.5), method="bounded", options={"xatol": 0.05}
        )
        return math.exp(float(found.x))

    return best


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


def _tilted(grid: LossGrid, losses: Array, tilt: float) -> tuple[float, Array]:
    """Return the logarithm of the moment generating function, and the normalised tilted law."""
    weights, peak, total = _weighted(grid, losses, tilt)
    if total <= 0.0:
        return _faint(grid, losses, tilt)
    weights /= total
    return peak + math.log(total), weights


def _weighted(grid: LossGrid, losses: Array, tilt: float) -> tuple[Array, float, float]:
    """Return ``mass * exp(tilt * loss - peak)``, the largest exponent `peak`, and the sum of the weights."""
    weights = tilt * losses
    peak = float(weights[-1] if tilt > 0 else weights[0])  # losses rise
    weights -= peak
    np.exp(weights, out=weights)
    weights *= grid.mass
    return weights, peak, float(np.add.reduce(weights))


def _faint(grid: LossGrid, losses: Array, tilt: float) -> tuple[float, Array]:
    """Return the same as `_tilted` where all mass sits where the tilt sends it below the smallest number."""
    with np.errstate(divide="ignore"):
        logs = np.log(grid.mass) + tilt * losses
    log_total = float(logsumexp(logs))
    return log_total, np.exp(logs - log_total)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, 700.0))
