"""Answers about privacy loss that owe nothing to the accountant they check.

One step reads one Poisson sample of rate ``q`` and releases a Gaussian (noise ``sigma``), a Laplace (scale
``b``), or both. The oracles below reach the same numbers by different roads:

``plane_delta``      one step: the hockey-stick divergence integrated over the plane of both outputs
``sampled_delta``    few steps: plain Monte Carlo, with a confidence interval
``exact_epsilon``    many steps: the law of the loss put on a grid with its moments kept, tilted, convolved by
                     FFT; the grid is refined until the answer stands still
``bracket_epsilon``  many steps: every loss rounded up to a grid, which is rigorous, and down, likewise
``attack_epsilon``   any number of steps: the best of a family of explicit tests, so the truth is never below
``gaussian_delta``, ``laplace_delta``    textbook closed forms without sampling

Losses are written for the pair (upper, lower): for "remove" the sampled output against the unsampled one, for
"add" the reverse, for "replace" a row against the opposite row (Gaussian only).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, integrate, interpolate, optimize, special, stats

Array = NDArray[np.float64]
DIRECTIONS = ("remove", "add")


# ---------------------------------------------------------------- one step, closed forms and the plane


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Exact curve of the unsampled Gaussian mechanism (Balle and Wang, 2018)."""
    upper = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
    lower = epsilon + stats.norm.logcdf(-0.5 / sigma - epsilon * sigma)
    return float(upper - math.exp(lower))


def gaussian_epsilon(delta: float, sigma: float) -> float:
    """Inverse of `gaussian_delta`; zero when delta is reached without any loss."""
    if gaussian_delta(0.0, sigma) <= delta:
        return 0.0
    top = 1.0
    while gaussian_delta(top, sigma) > delta:
        top *= 2
    return float(optimize.brentq(lambda e: gaussian_delta(e, sigma) - delta, 0.0, top, xtol=1e-13))


def laplace_delta(epsilon: float, scale: float) -> float:
    """Exact curve of the unsampled Laplace mechanism, for epsilon of either sign."""
    if epsilon <= -1 / scale:
        return -math.expm1(epsilon)
    return max(0.0, -math.expm1((epsilon - 1 / scale) / 2))


def plane_delta(epsilon: float, q: float, sigma: float, noise: float, law: str, direction: str) -> float:
    """Integrate ``max(0, upper - e^epsilon lower)`` over (gradient, histogram) for one sampled step.

    For a given histogram output the gradient outputs that count form a half-line, so the inner integral is a
    difference of normal tails from the exact crossing; the outer one is adaptive.
    """
    second = stats.laplace(scale=noise) if law == "laplace" else stats.norm(scale=noise)

    def inner(y: float) -> float:
        without, with_row = second.pdf(y), second.pdf(y - 1)
        ratio = second.logpdf(y - 1) - second.logpdf(y)
        # likelihood ratio of the gradient above which (remove), below which (add) the integrand is positive
        if direction == "remove":
            odds = (math.exp(epsilon) - (1 - q)) / q
            cut = -math.inf if odds <= 0 else (math.log(odds) - ratio) * sigma**2 + 0.5
            tail0, tail1 = special.ndtr(-cut / sigma), special.ndtr((1 - cut) / sigma)
            upper = (1 - q) * without * tail0 + q * with_row * tail1
            return float(upper - math.exp(epsilon) * without * tail0)
        odds = (math.exp(-epsilon) - (1 - q)) / q
        if odds <= 0:
            return 0.0
        cut = (math.log(odds) - ratio) * sigma**2 + 0.5
        tail0, tail1 = special.ndtr(cut / sigma), special.ndtr((cut - 1) / sigma)
        lower = (1 - q) * without * tail0 + q * with_row * tail1
        return float(without * tail0 - math.exp(epsilon) * lower)

    reach = noise * (45 if law == "laplace" else 10)
    edges = [-reach, -reach / 8, -noise, 0.0, 0.5, 1.0, 1 + noise, 1 + reach / 8, 1 + reach]
    pieces = [
        integrate.quad(inner, a, b, epsabs=1e-15, epsrel=1e-12, limit=400)[0]
        for a, b in itertools.pairwise(edges)
        if b > a
    ]
    return math.fsum(pieces)


def lattice_delta(
    epsilon: float, q: float, sigma: float, noise: float, law: str, direction: str, points: int = 3000
) -> float:
    """The same integral by brute force: a mid-point sum over a lattice in the plane, nothing analytic."""
    second = stats.laplace(scale=noise) if law == "laplace" else stats.norm(scale=noise)
    wide = noise * (20 if law == "laplace" else 7)
    xs, dx = np.linspace(-7 * sigma, 1 + 7 * sigma, points, retstep=True)
    ys, dy = np.linspace(-wide, 1 + wide, points, retstep=True)
    without = np.outer(second.pdf(ys), stats.norm.pdf(xs, scale=sigma))
    with_row = np.outer(second.pdf(ys - 1), stats.norm.pdf(xs, loc=1, scale=sigma))
    mixed = (1 - q) * without + q * with_row
    upper, lower = (mixed, without) if direction == "remove" else (without, mixed)
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * dx * dy)


def split_delta(epsilon: float, q: float, sigma: float, scale: float, parts: Sequence[float]) -> float:
    """One step, remove, when the row's histogram entry is spread over several cells (parts sum to 1).

    By sampling identity on the unsampled curve, itself an average of Gaussian curves over all Laplace losses.
    """
    losses, weights = np.zeros(1), np.ones(1)
    for part in parts:
        values, mass = _laplace_nodes(scale / part)
        losses = np.add.outer(losses, values).ravel()
        weights = np.multiply.outer(weights, mass).ravel()
    shifted = math.log1p(math.expm1(epsilon) / q) - losses
    upper = special.ndtr(0.5 / sigma - shifted * sigma)
    return q * float(weights @ (upper - np.exp(shifted + special.log_ndtr(-0.5 / sigma - shifted * sigma))))


def _laplace_nodes(scale: float, order: int = 20) -> tuple[Array, Array]:
    """Atoms and Gauss-Legendre nodes of the Laplace privacy loss under the upper distribution."""
    top = 1 / scale
    nodes, weights = np.polynomial.legendre.leggauss(order)
    values, density = nodes * top, 0.25 * np.exp((nodes * top - top) / 2) * weights * top
    atoms, masses = np.array([top, -top]), np.array([0.5, 0.5 * math.exp(-top)])
    return np.concatenate([atoms, values]), np.concatenate([masses, density])


# ---------------------------------------------------------------- few steps, Monte Carlo


@dataclass(frozen=True)
class Estimate:
    """Mean of a sample, with its standard error."""

    mean: float
    error: float

    def lower(self, deviations: float = 4.0) -> float:
        return self.mean - deviations * self.error

    def upper(self, deviations: float = 4.0) -> float:
        return self.mean + deviations * self.error


def sampled_delta(
    epsilon: float,
    steps: int,
    q: float,
    sigma: float | None,
    noise: float | None,
    law: str,
    direction: str,
    *,
    draws: int = 1_000_000,
    seed: int = 0,
) -> Estimate:
    """Run the mechanism: draw outputs from the upper distribution, average ``(1 - e^(epsilon - loss))+``."""
    rng = np.random.default_rng(seed)
    total = np.zeros(draws)
    for _ in range(steps):
        present = (rng.random(draws) < q) if direction == "remove" else np.zeros(draws, dtype=bool)
        log_ratio = np.zeros(draws)
        if sigma is not None:
            x = present + sigma * rng.standard_normal(draws)
            log_ratio += (x - 0.5) / sigma**2
        if noise is not None and law == "laplace":
            y = present + rng.laplace(scale=noise, size=draws)
            log_ratio += (np.abs(y) - np.abs(y - 1)) / noise
        elif noise is not None:
            y = present + noise * rng.standard_normal(draws)
            log_ratio += (y - 0.5) / noise**2
        loss = np.log(1 - q + q * np.exp(log_ratio))
        total += loss if direction == "remove" else -loss
    gain = np.maximum(0.0, -np.expm1(epsilon - total))
    return Estimate(float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(draws)))


# ---------------------------------------------------------------- losses of one step, as laws on the line


@dataclass(frozen=True)
class Step:
    """What one step, or one plain release (q = 1), gives out. `count` of them are composed."""

    count: int = 1
    q: float = 1.0
    sigma: float | None = None
    scale: float | None = None

    # ``y`` is the log likelihood ratio with : without the row, before sampling

    def y_density(self, y: Array) -> Array:
        """Density of y when the row is absent. With the row it is e^y times this."""
        assert self.sigma is not None
        m, s = -0.5 / self.sigma**2, 1 / self.sigma
        if self.scale is None:
            return stats.norm.pdf(y, m, s)
        top = 1 / self.scale
        atoms = 0.5 * stats.norm.pdf(y + top, m, s) + 0.5 * math.exp(-top) * stats.norm.pdf(y - top, m, s)
        # integral over l in [-top, top] of  e^(-(l + top)/2)/4 * normal(y - l)
        centre = y - m - s**2 / 2
        middle = np.exp(s**2 / 8 - (y - m) / 2 - top / 2 + _log_normal_between(-top, top, centre, s))
        return atoms + middle / 4

    def y_tails(self, y: Array) -> tuple[Array, Array]:
        """Return P(Y > y) without and with the row."""
        if self.sigma is None:
            assert self.scale is not None
            return _laplace_tail(y, self.scale, -1), _laplace_tail(y, self.scale, +1)
        m, s = 0.5 / self.sigma**2, 1 / self.sigma
        if self.scale is None:
            return special.ndtr((-m - y) / s), special.ndtr((m - y) / s)
        nodes, weights = _fine_laplace_nodes(self.scale, s)
        absent = weights @ special.ndtr((-m - y[None, :] - nodes[:, None]) / s)
        present = weights @ special.ndtr((m - y[None, :] + nodes[:, None]) / s)
        return absent, present

    # the loss of the sampled step, with its law under the upper distribution of the pair

    def nodes(self, direction: str, spacing: float) -> tuple[Array, Array]:
        """Losses and masses of a quadrature in the outcome, where all densities are smooth.

        A step without a Gaussian keeps its atoms, which is fine beside something smooth.
        """
        if direction == "replace":
            return self._replace_nodes(spacing)
        y, mass = self._absent_nodes(spacing)
        # log(1 - q + q e^y) without rounding for tiny q, and without overflow for large y
        small = np.expm1(np.clip(y, -700, 30))
        loss = y if self.q == 1 else np.where(y < 30, np.log1p(self.q * small), y + math.log(self.q))
        return (loss, mass * np.exp(loss)) if direction == "remove" else (-loss, mass)

    def _absent_nodes(self, spacing: float) -> tuple[Array, Array]:
        """Values of y, and their masses when the row is absent."""
        if self.sigma is None:
            assert self.scale is not None
            y, present = _fine_laplace_nodes(self.scale, 1 / (64 * self.scale))
            return y, present * np.exp(-y)
        s, top = 1 / self.sigma, 0.0 if self.scale is None else 1 / self.scale
        y, gap = _trapezoid(s**2 / 2 + 22 * s + top, min(spacing, s / 8))
        return y, self.y_density(y) * gap

    def _replace_nodes(self, spacing: float) -> tuple[Array, Array]:
        assert self.sigma is not None
        assert self.scale is None
        q, v, reach = self.q, self.sigma**2, 1 + 22 * self.sigma
        x, gap = _trapezoid(reach, min(spacing * v / 2, self.sigma / 8))
        rows = ((-0.5 - x) / v, (x - 0.5) / v)
        towards, away = rows if q == 1 else (np.log1p(q * np.expm1(row)) for row in rows)
        return towards - away, stats.norm.pdf(x, scale=self.sigma) * np.exp(towards) * gap

    def tail(self, loss: Array, direction: str) -> Array:
        """P(loss > value) under the upper distribution."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if direction == "remove":
                y = self._unsampled(loss)
                absent, present = self.y_tails(np.where(np.isfinite(y), y, 0.0))
                found = (1 - self.q) * absent + self.q * present
                return np.where(loss <= math.log1p(-self.q) if self.q < 1 else False, 1.0, found)
            y = self._unsampled(-loss)
            found = 1 - self.y_tails(np.where(np.isfinite(y), y, 0.0))[0]
        return np.where(loss >= -math.log1p(-self.q) if self.q < 1 else False, 0.0, found)

    def _unsampled(self, loss: Array) -> Array:
        """Return y with ``log(1 - q + q e^y) = loss``."""
        return np.log1p(np.expm1(loss) / self.q)


def _trapezoid(reach: float, spacing: float) -> tuple[Array, float]:
    half = math.ceil(reach / spacing)
    gap = reach / half  # not a difference of neighbours, which would lose digits
    return np.arange(-half, half + 1) * gap, gap


def _log_normal_between(low: float, high: float, mean: Array, deviation: float) -> Array:
    """Log of the mass that a normal law puts between two numbers, accurate in both tails."""
    a, b = (low - mean) / deviation, (high - mean) / deviation
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    log_b = special.log_ndtr(b)
    return log_b + np.log1p(-np.exp(special.log_ndtr(a) - log_b))


def _laplace_tail(y: Array, scale: float, sign: int) -> Array:
    """P(Y > y) of the Laplace log ratio; sign +1 with the row, -1 without it."""
    top = 1 / scale
    inside = 1 - 0.5 * np.exp((y - top) / 2) if sign > 0 else 0.5 * np.exp(-(y + top) / 2)
    return np.where(y >= top, 0.0, np.where(y < -top, 1.0, inside))


def _fine_laplace_nodes(scale: float, width: float) -> tuple[Array, Array]:
    """Laplace loss (with the row) as nodes and masses, fine enough to be averaged over normal tails."""
    top = 1 / scale
    panels = max(1, math.ceil(2 * top / (1.5 * width)))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(-top, top, panels + 1)
    half = (edges[1:] - edges[:-1]) / 2
    values = ((edges[1:] + edges[:-1]) / 2)[:, None] + half[:, None] * nodes[None, :]
    mass = 0.25 * np.exp((values - top) / 2) * half[:, None] * weights[None, :]
    atoms, masses = np.array([top, -top]), np.array([0.5, 0.5 * math.exp(-top)])
    return np.concatenate([atoms, values.ravel()]), np.concatenate([masses, mass.ravel()])


# ---------------------------------------------------------------- composition by tilted convolution


@dataclass(frozen=True)
class Law:
    """`count` copies of a law that puts `mass` on `values` (slightly negative masses may occur)."""

    values: Array
    mass: Array
    count: int

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """Return log moment generating function, mean and variance of the tilted law, for all copies."""
        top = theta * self.values.max()
        weights = self.mass * np.exp(theta * self.values - top)
        total = weights.sum()
        mean = float(weights @ self.values / total)
        variance = float(weights @ (self.values - mean) ** 2 / total)
        return self.count * float(top + math.log(total)), self.count * mean, self.count * variance

    def tilted(self, theta: float) -> Array:
        return self.mass * np.exp(theta * self.values - self.cumulants(theta)[0] / self.count)


def cumulants_of(laws: Sequence[Law], theta: float) -> tuple[float, float, float]:
    """Cumulants of the sum of everything."""
    return tuple(math.fsum(parts) for parts in zip(*(law.cumulants(theta) for law in laws), strict=True))


@dataclass(frozen=True)
class Convolved:
    """Law of a sum near its interesting point: tilted masses on ``(first + i) * width``."""

    first: int
    width: float
    tilt: float
    log_moment: float
    tilted: Array

    def delta_at(self, index: int, *, smooth: bool) -> float:
        """Expected ``(1 - e^(e - loss))+`` at the grid point e; `smooth` adds the Euler-Maclaurin term."""
        position = index - self.first
        above = (np.arange(index + 1, self.first + self.tilted.size)) * self.width
        start = index * self.width
        # untilt relative to the grid point, so that nothing overflows
        gains = self.tilted[position + 1 :] * np.exp(-self.tilt * (above - start)) * -np.expm1(start - above)
        total = float(gains.sum())
        if smooth:
            total += self.width * float(self.tilted[position]) / 12
        return max(total, 0.0) * math.exp(self.log_moment - self.tilt * start)


def convolve(laws: Sequence[Law], width: float, theta: float, deviations: float = 12.0) -> Convolved:
    """Compose: multiply the Fourier transforms of the tilted laws, in a window around the tilted mean.

    The values of every law must be multiples of `width`.
    """
    log_moment, mean, variance = cumulants_of(laws, theta)
    if not variance > 0:
        raise ArithmeticError("the grid is too coarse for the tilt")
    empty = 1e-13 * (1 + sum(law.count for law in laws) / 1000)
    for _ in range(8):
        size = _fast_size(2 * deviations * math.sqrt(variance) / width)
        transform, shift = np.ones(size // 2 + 1, dtype=complex), 0
        for law in laws:
            middle = round(law.cumulants(theta)[1] / law.count / width)
            places = np.rint(law.values / width).astype(np.int64) - middle
            folded = np.bincount(places % size, weights=law.tilted(theta), minlength=size)
            transform *= np.fft.rfft(folded) ** law.count
            shift += middle * law.count
        summed = np.fft.irfft(transform, size)
        start = round(mean / width) - size // 2
        window = summed[(start - shift + np.arange(size)) % size]
        edge = size // 64
        # the outer rim must be empty up to rounding, or the sum wrapped around
        if np.abs(window[:edge]).sum() + np.abs(window[-edge:]).sum() < empty:
            return Convolved(start, width, theta, log_moment, window)
        deviations *= 1.7
    raise ArithmeticError("the window of the convolution never became wide enough")


def _fast_size(points: float) -> int:
    """Even length that the FFT likes."""
    size = int(fft.next_fast_len(max(64, math.ceil(points)), real=True))
    return size + size % 2


def saddle(laws: Sequence[Law], delta: float) -> float:
    """Tilt that centres the sum where delta is reached, by the saddle-point formula."""

    def gap(log_theta: float) -> float:
        theta = math.exp(log_theta)
        k, mean, variance = cumulants_of(laws, theta)
        log_delta = k - theta * mean - math.log(theta * (1 + theta)) - 0.5 * math.log(2 * math.pi * variance)
        return log_delta - math.log(delta)

    low = high = math.log(1e-3)
    while gap(high) > 0 and high < math.log(1e4):
        low, high = high, high + 0.5
    return math.exp(low if gap(low) <= 0 or gap(high) > 0 else optimize.brentq(gap, low, high, xtol=1e-3))


def _crossing(found: Convolved, delta: float, *, smooth: bool) -> tuple[int, int]:
    """Grid indices around the point where the curve passes delta (the left one is still above).

    The search starts in the middle and gallops: far from it, untilting blows rounding up.
    """
    bottom, top = found.first + 8, found.first + found.tilted.size - 8
    start = (bottom + top) // 2
    above = found.delta_at(start, smooth=smooth) > delta
    near, stride = start, 1
    while True:
        far = min(max(near + (stride if above else -stride), bottom), top)
        if (found.delta_at(far, smooth=smooth) > delta) != above:
            break
        if far in (bottom, top):
            raise ArithmeticError("the curve does not pass delta inside the window")
        near, stride = far, 2 * stride
    low, high = min(near, far), max(near, far)
    while high - low > 1:
        middle = (low + high) // 2
        if found.delta_at(middle, smooth=smooth) > delta:
            low = middle
        else:
            high = middle
    return low, high


def _smooth_epsilon(found: Convolved, delta: float) -> float:
    low, _ = _crossing(found, delta, smooth=True)
    indices = np.arange(low - 2, low + 4)
    values = np.array([found.delta_at(int(i), smooth=True) for i in indices])
    if values.min() <= 0 or not values[2] >= delta >= values[3]:
        raise ArithmeticError("the grid is too coarse, or the window too narrow, to find the crossing")
    curve = np.polynomial.Polynomial.fit(indices - low, np.log(values), 5)
    return found.width * (low + float(optimize.brentq(lambda t: curve(t) - math.log(delta), -0.01, 1.01)))


# ---------------------------------------------------------------- the two oracles for many steps


def exact_epsilon(
    steps: Step | Sequence[Step],
    delta: float,
    *,
    directions: Sequence[str] = DIRECTIONS,
    tolerance: float = 2e-10,
    tilt: float | None = None,
) -> float:
    """Epsilon of a composition that has some Gaussian in it; the grid is refined until nothing moves.

    Zero when even epsilon 0 has a smaller delta. The tilt is found by itself; give one where rare
    large losses draw the saddle point away from the bulk.
    """
    parts = [steps] if isinstance(steps, Step) else list(steps)
    best = -math.inf
    for direction in directions:
        if best > -math.inf and _chernoff(parts, best, direction) <= delta:
            continue  # this direction is certainly the smaller one
        best = max(best, _exact_one_way(parts, delta, direction, tolerance, tilt))
    return best


def _chernoff(parts: Sequence[Step], epsilon: float, direction: str) -> float:
    """Upper limit of delta at epsilon from moments: ``(1 - e^-u)+`` is at most a multiple of e^(t u)."""
    laws = [Law(*part.nodes(direction, math.inf), part.count) for part in parts]

    def log_limit(t: float) -> float:
        return cumulants_of(laws, t)[0] - t * epsilon - math.log1p(t) + t * math.log(t / (1 + t))

    return math.exp(min(0.0, *(log_limit(t) for t in np.geomspace(0.01, 1e4, 200))))


def _exact_one_way(parts: Sequence[Step], delta: float, direction: str, tolerance: float, tilt: float | None) -> float:
    rough = [Law(*part.nodes(direction, math.inf), part.count) for part in parts]
    theta = tilt or saddle(rough, delta)
    width, previous = math.sqrt(cumulants_of(rough, theta)[2]) / 16, math.inf
    for _ in range(12):
        laws = [deposit(*part.nodes(direction, width / 4), width, part.count) for part in parts]
        try:
            found = _smooth_epsilon(convolve(laws, width, theta), delta)
        except ArithmeticError:
            found = math.nan
        if abs(found - previous) <= tolerance:
            return max(0.0, found)
        previous, width = found, width / 2
    raise ArithmeticError(f"no agreement to {tolerance:g} between successive grids")


def exact_delta(steps: Step | Sequence[Step], epsilon: float, direction: str, *, tolerance: float = 1e-9) -> float:
    """Delta of the same compositions in one direction, for epsilon of either sign; relative tolerance."""
    parts = [steps] if isinstance(steps, Step) else list(steps)
    if epsilon < 0:
        reverse = {"remove": "add", "add": "remove", "replace": "replace"}[direction]
        beyond = exact_delta(parts, -epsilon, reverse, tolerance=tolerance)
        return -math.expm1(epsilon) + math.exp(epsilon) * beyond
    rough = [Law(*part.nodes(direction, math.inf), part.count) for part in parts]
    theta = _centring(rough, epsilon)
    if theta == math.inf:
        return 0.0  # no loss is as large as that
    width, previous = math.sqrt(cumulants_of(rough, theta)[2]) / 16, math.inf
    for _ in range(12):
        laws = [deposit(*part.nodes(direction, width / 4), width, part.count) for part in parts]
        try:
            found = _delta_between(convolve(laws, width, theta), epsilon)
        except ArithmeticError:
            found = math.nan
        if abs(found - previous) <= tolerance * found:
            return found
        previous, width = found, width / 2
    raise ArithmeticError(f"no agreement to {tolerance:g} between successive grids")


def _centring(laws: Sequence[Law], epsilon: float) -> float:
    """Tilt that moves the mean of the sum to epsilon, or almost no tilt when it is beyond already."""
    low, high = 1e-3, 1e4
    if cumulants_of(laws, low)[1] >= epsilon:
        return low
    if cumulants_of(laws, high)[1] <= epsilon:
        return math.inf
    gap = lambda log_theta: cumulants_of(laws, math.exp(log_theta))[1] - epsilon  # noqa: E731
    return math.exp(optimize.brentq(gap, math.log(low), math.log(high), xtol=1e-3))


def _delta_between(found: Convolved, epsilon: float) -> float:
    low = math.floor(epsilon / found.width)
    indices = np.arange(low - 2, low + 4)
    values = np.array([found.delta_at(int(i), smooth=True) for i in indices])
    if values.min() <= 0:
        raise ArithmeticError("the grid is too coarse")
    curve = np.polynomial.Polynomial.fit(indices - low, np.log(values), 5)
    return math.exp(curve(epsilon / found.width - low))


def deposit(losses: Array, masses: Array, width: float, count: int) -> Law:
    """Spread point masses over eight grid points each, keeping all moments up to the seventh."""
    alive = masses > 1e-70
    losses, masses = losses[alive], masses[alive]
    base = np.floor(losses / width).astype(np.int64)
    fraction = losses / width - base
    offsets = range(-3, 5)
    first = int(base.min()) - 3
    grid = np.zeros(int(base.max()) + 5 - first)
    for j in offsets:
        share = masses.copy()
        for m in offsets:
            if m != j:
                share *= (fraction - m) / (j - m)
        grid += np.bincount(base + j - first, weights=share, minlength=grid.size)
    return Law((first + np.arange(grid.size)) * width, grid, count)


@dataclass(frozen=True)
class Bracket:
    """The truth lies between."""

    low: float
    high: float


def bracket_epsilon(
    steps: Step | Sequence[Step], delta: float, width: float, *, directions: Sequence[str] = DIRECTIONS
) -> Bracket:
    """Rigorous interval for epsilon, atoms or not.

    Rounding every loss up to the grid can only raise the curve; mass beyond the grid counts as a certain
    breach. Rounding down is rounding up and then going back one grid point per step, so the lower end is the
    upper one less ``width`` times the number of steps (without the breach).
    """
    parts = [steps] if isinstance(steps, Step) else list(steps)
    total = sum(part.count for part in parts)
    ends = [_rounded_up(parts, delta, width, direction) for direction in directions]
    low = max(end[1] for end in ends) - (total + 1) * width
    return Bracket(max(0.0, low), max(0.0, *(end[0] for end in ends)))


def _rounded_up(parts: Sequence[Step], delta: float, width: float, direction: str) -> tuple[float, float]:
    laws, lost = [], 0.0
    negligible = 1e-5 * delta / sum(part.count for part in parts)
    for part in parts:
        law, beyond = _rounded_law(part, width, direction, negligible)
        laws.append(law)
        lost += beyond * part.count
    theta = saddle(laws, delta)
    found = convolve(laws, width, theta)
    ends = [_crossing(found, target, smooth=False)[1] * width for target in (delta - lost, delta)]
    return ends[0], ends[1]


def _rounded_law(part: Step, width: float, direction: str, negligible: float) -> tuple[Law, float]:
    probe = np.concatenate([-np.geomspace(1e-6, 300, 2000)[::-1], np.geomspace(1e-6, 300, 2000)])
    tails = part.tail(probe, direction)
    first = math.floor(probe[tails >= 1 - 1e-15][-1] / width)
    last = math.ceil(probe[tails <= negligible][0] / width)
    edges = np.arange(first, last + 1) * width
    tails = part.tail(edges, direction)
    mass = np.concatenate([[1 - tails[0]], tails[:-1] - tails[1:]])
    return Law(edges, np.maximum(mass, 0.0), part.count), float(tails[-1])


def attack_epsilon(step: Step, delta: float, *, cuts: int = 60) -> float:
    """Lower limit of epsilon by explicit tests: "at least m of the steps looked as if the row was in".

    Every such test must obey (epsilon, delta), in both directions; the worst one is a true lower limit.
    """
    centre = 1.0 if step.sigma is None else 1 / step.sigma**2
    levels = np.linspace(-4 * centre - 8, 4 * centre + 8, cuts)
    absent, present = step.y_tails(levels)
    sampled = (1 - step.q) * absent + step.q * present
    best = 0.0
    for p_in, p_out in zip(sampled, absent, strict=True):
        if not 0 < p_out < p_in < 1:
            continue
        middle, spread = step.count * p_in, math.sqrt(step.count * p_in) + 1
        hits = np.unique(np.round(np.linspace(max(1, middle - 9 * spread), middle + 9 * spread, 200)))
        pairs = [
            (stats.binom.logsf(hits - 1, step.count, p_in), stats.binom.logsf(hits - 1, step.count, p_out)),
            (stats.binom.logcdf(hits - 1, step.count, p_out), stats.binom.logcdf(hits - 1, step.count, p_in)),
        ]
        for upper, lower in pairs:
            won = np.exp(upper) - delta
            useful = won > 0
            if useful.any():
                best = max(best, float((np.log(won[useful]) - lower[useful]).max()))
    return best


# ---------------------------------------------------------------- on top of a curve


def with_outside(curve: Callable[[float], float], epsilon: float, delta: float) -> Callable[[float], float]:
    """Compose with an (epsilon, delta) guarantee: its worst pair has two finite losses and a breach."""
    up = 1 / (1 + math.exp(-epsilon))

    def composed(e: float) -> float:
        return delta + (1 - delta) * (up * curve(e - epsilon) + (1 - up) * curve(e + epsilon))

    return composed


def tabulated(
    steps: Step | Sequence[Step], top: float, points: int = 40, directions: Sequence[str] = DIRECTIONS
) -> Callable[[float], float]:
    """The larger of the curves from 0 to `top`, through exact points; quick to ask again and again."""
    grid = np.linspace(0.0, top, points)
    logs = [math.log(max(exact_delta(steps, float(e), way, tolerance=1e-8) for way in directions)) for e in grid]
    spline = interpolate.CubicSpline(grid, logs)

    def asked(epsilon: float) -> float:
        if not 0 <= epsilon <= top:
            raise ValueError(f"the table goes from 0 to {top:g}, asked for {epsilon:g}")
        return math.exp(float(spline(epsilon)))

    return asked


def invert(curve: Callable[[float], float], delta: float) -> float:
    """Smallest epsilon at which a falling curve is at most delta."""
    if curve(0.0) <= delta:
        return 0.0
    top = 0.125
    while curve(top) > delta:
        top *= 1.25
    return float(optimize.brentq(lambda e: curve(e) - delta, 0.0, top, xtol=1e-12))


def selection_epsilon(curve: Callable[[float], float], mean: float, shape: float, delta: float) -> float:
    """Best of a random number of candidates, by the candidate's own curve (Koskela et al. 2024)."""
    if shape == math.inf:
        return invert(curve, delta / mean) + mean * curve(0.0)
    halting = _halting(mean, shape)

    def cost(first: float) -> float:
        return (1 + shape) * math.log(math.exp(first) + curve(first) * (1 - halting) / halting)

    grid = np.linspace(0, 3, 61)
    start = float(grid[np.argmin([cost(e) for e in grid])])
    best = optimize.minimize_scalar(cost, bounds=(max(0, start - 0.1), start + 0.1), method="bounded")
    return invert(curve, delta / mean) + float(best.fun)


def _halting(mean: float, shape: float) -> float:
    def expected(g: float) -> float:
        if shape == 0:
            return (1 / g - 1) / math.log(1 / g)
        return shape * (1 - g) / (g * (1 - g**shape))

    return float(optimize.brentq(lambda g: expected(g) - mean, 1e-9, 1 - 1e-9, xtol=1e-14))
