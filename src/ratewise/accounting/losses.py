"""Privacy losses of dominating pairs, and their pessimistic form on a grid.

A release is described by a pair of laws (P, Q) whose hockey-stick curve bounds that of the release on every
pair of neighbouring data sets, through the law of the loss ``L = log dP/dQ`` under P and under Q. Everything
here is one-dimensional; `docs/guarantees.md` proves why that is enough.

`discretise` moves each bucket's mass to the bucket's two edges so that its mass under P **and** under Q stays
what it was ("connect the dots"). The curve of the result is never below the exact one, and the excess is of
second order in the width of the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

Array = npt.NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Masses:
    """Mass of every bucket between neighbouring edges, and of the two tails, under P and under Q."""

    p: Array
    q: Array
    p_below: float
    p_above: float


class Loss(Protocol):
    """The privacy loss of a pair (P, Q)."""

    def span(self, tail: float) -> tuple[float, float]:
        """Return losses (low, high) with at most `tail` of P's finite mass outside on either side."""
        ...

    def masses(self, edges: Array) -> Masses:
        """Return the mass of each bucket ``(edges[i], edges[i+1]]`` under P and Q, and P's tails."""
        ...


class SymmetricLoss(Protocol):
    """An unsampled pair whose loss under Q is the mirror image of its loss under P.

    `cdf` and `sf` are those of L under P; both are accurate in their own tail. `cdf_mirrored` and
    `sf_mirrored` are those of L under Q.
    """

    def quantiles(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of P's mass below the first and above the second."""
        ...

    def cdf(self, loss: Array) -> Array:
        """P(L <= loss)."""
        ...

    def sf(self, loss: Array) -> Array:
        """P(L > loss)."""
        ...

    def cdf_mirrored(self, loss: Array) -> Array:
        """Q(L <= loss)."""
        ...

    def sf_mirrored(self, loss: Array) -> Array:
        """Q(L > loss)."""
        ...


@dataclass(frozen=True)
class GaussianLoss:
    """N(shift, noise^2) against N(0, noise^2) for a shift of 1: L is N(m^2/2, m^2) with m = 1/noise."""

    noise: float

    def quantiles(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of P's mass outside on either side."""
        m, z = 1.0 / self.noise, -float(ndtri(tail))
        return m * (m / 2 - z), m * (m / 2 + z)

    def cdf(self, loss: Array) -> Array:
        """P(L <= loss)."""
        return np.asarray(ndtr(loss * self.noise - 0.5 / self.noise))

    def sf(self, loss: Array) -> Array:
        """P(L > loss)."""
        return np.asarray(ndtr(0.5 / self.noise - loss * self.noise))

    def cdf_mirrored(self, loss: Array) -> Array:
        """Q(L <= loss)."""
        return self.sf(-loss)

    def sf_mirrored(self, loss: Array) -> Array:
        """Q(L > loss)."""
        return self.cdf(-loss)


@dataclass(frozen=True)
class LaplaceLoss:
    """A Laplace law of the given scale, shifted by 1, against itself unshifted.

    With c = 1/scale: atoms at +c (1/2 under P) and at -c (exp(-c)/2), density exp((l - c)/2)/4 between.
    """

    scale: float

    def quantiles(self, tail: float) -> tuple[float, float]:  # noqa: ARG002 - bounded support
        """Return the support."""
        return -1.0 / self.scale, 1.0 / self.scale

    def cdf(self, loss: Array) -> Array:
        """P(L <= loss)."""
        c = 1.0 / self.scale
        inner = 0.5 * np.exp((np.minimum(loss, c) - c) / 2)
        return np.where(loss >= c, 1.0, np.where(loss >= -c, inner, 0.0))

    def sf(self, loss: Array) -> Array:
        """P(L > loss)."""
        return 1.0 - self.cdf(loss)

    def cdf_mirrored(self, loss: Array) -> Array:
        """Q(L <= loss)."""
        return 1.0 - self.sf_mirrored(loss)

    def sf_mirrored(self, loss: Array) -> Array:
        """Q(L > loss)."""
        c = 1.0 / self.scale
        inner = 0.5 * np.exp((-np.maximum(loss, -c) - c) / 2)
        return np.where(loss >= c, 0.0, np.where(loss >= -c, inner, 1.0))


@dataclass(frozen=True)
class GaussianLaplaceLoss:
    """A Gaussian and a Laplace release of the same row, each shifted by 1: the two losses add.

    Integrating the Gaussian's distribution function over the Laplace loss gives, with m = 1/noise and
    c = 1/scale, ``P(L <= t) = F((t-c)/m - m/2) + exp((t-c)/2 - m^2/8)/2 * (F((c-t)/m) - F((-c-t)/m))``.
    """

    noise: float
    scale: float

    def quantiles(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of P's mass outside on either side."""
        low, high = GaussianLoss(self.noise).quantiles(tail)
        return low - 1.0 / self.scale, high + 1.0 / self.scale

    def cdf(self, loss: Array) -> Array:
        """P(L <= loss)."""
        c = 1.0 / self.scale
        return np.asarray(ndtr((loss - c) * self.noise - 0.5 / self.noise)) + self._overlap(loss)

    def sf(self, loss: Array) -> Array:
        """P(L > loss)."""
        c = 1.0 / self.scale
        direct = np.asarray(ndtr((c - loss) * self.noise + 0.5 / self.noise))
        return np.maximum(direct - self._overlap(loss), 0.0)

    def cdf_mirrored(self, loss: Array) -> Array:
        """Q(L <= loss)."""
        return self.sf(-loss)

    def sf_mirrored(self, loss: Array) -> Array:
        """Q(L > loss)."""
        return self.cdf(-loss)

    def _overlap(self, loss: Array) -> Array:
        c, m = 1.0 / self.scale, 1.0 / self.noise
        loss = np.clip(loss, -1e12, 1e12)  # infinite edges stand for losses that cannot occur
        # F(c-t) - F(-c-t), from whichever tail is the small one; in logarithms, for the factor can be huge
        far = np.where(loss > 0, c - loss, loss + c) / m
        near = np.where(loss > 0, -c - loss, loss - c) / m
        log_far = log_ndtr(far)
        log_difference = log_far + np.log(-np.expm1(np.minimum(log_ndtr(near) - log_far, -1e-300)))
        return np.asarray(0.5 * np.exp((loss - c) / 2 - m * m / 8 + log_difference))


@dataclass(frozen=True)
class OutsideLoss:
    """The worst pair that is (epsilon, delta)-private: losses +-epsilon, and delta at infinity."""

    epsilon: float
    delta: float

    def span(self, tail: float) -> tuple[float, float]:  # noqa: ARG002 - bounded support
        """Return the support."""
        return -self.epsilon, self.epsilon

    def masses(self, edges: Array) -> Masses:
        """Return the two atoms, each in its bucket."""
        finite = 1.0 - self.delta
        upper = finite / (1.0 + math.exp(-self.epsilon))
        p, q = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for loss, mass_p in ((self.epsilon, upper), (-self.epsilon, finite - upper)):
            bucket = min(max(int(np.searchsorted(edges, loss, side="left")) - 1, 0), len(p) - 1)
            p[bucket] += mass_p
            q[bucket] += finite - mass_p
        return Masses(p, q, 0.0, self.delta)


@dataclass(frozen=True)
class RemoveLoss:
    """Poisson sampling, one row less: ((1-rate) Q + rate P) against Q, with loss log(1 - rate + rate e^L)."""

    base: SymmetricLoss
    rate: float

    def span(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of the mixture outside on either side."""
        low, high = self.base.quantiles(tail)  # of P; those of Q are their mirror images
        high_p = self.base.quantiles(min(tail / self.rate, 0.25))[1]
        return _sampled(-high, self.rate), _sampled(max(high_p, -low), self.rate)

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under the mixture and under Q."""
        inner = _unsampled(edges, self.rate)
        p, p_below, p_above = _buckets(self.base.cdf(inner), self.base.sf(inner))
        q, q_below, q_above = _buckets(self.base.cdf_mirrored(inner), self.base.sf_mirrored(inner))
        mix = self.rate
        return Masses(
            (1 - mix) * q + mix * p,
            q,
            (1 - mix) * q_below + mix * p_below,
            (1 - mix) * q_above + mix * p_above,
        )


@dataclass(frozen=True)
class AddLoss:
    """Poisson sampling, one row more: Q against ((1-rate) Q + rate P); the mirror image of `RemoveLoss`."""

    base: SymmetricLoss
    rate: float

    def span(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of Q's mass outside on either side."""
        low, high = self.base.quantiles(tail)
        return -_sampled(-low, self.rate), -_sampled(-high, self.rate)

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under Q and under the mixture."""
        inner = _unsampled(-edges, self.rate)
        p, p_above, p_below = _buckets(self.base.sf_mirrored(inner), self.base.cdf_mirrored(inner))
        q, _, _ = _buckets(self.base.sf(inner), self.base.cdf(inner))
        return Masses(p, (1 - self.rate) * p + self.rate * q, p_above, p_below)


@dataclass(frozen=True)
class ReplaceLoss:
    """Poisson sampling and a Gaussian release, one row replaced by its opposite.

    (1-rate) N(0) + rate N(-1) against (1-rate) N(0) + rate N(+1); the loss falls as x grows.
    """

    noise: float
    rate: float

    def span(self, tail: float) -> tuple[float, float]:
        """Return losses with at most `tail` of P's mass outside on either side."""
        z = -self.noise * float(ndtri(tail))
        low, high = self._loss(z), self._loss(-1.0 - z)
        return low, high

    def masses(self, edges: Array) -> Masses:
        """Return the buckets' masses under both mixtures."""
        x = self._position(edges)
        p, p_below, p_above = _buckets(self._mixture(-x, -1.0), self._mixture(x, 1.0))
        q, _, _ = _buckets(self._mixture(-x, 1.0), self._mixture(x, -1.0))
        return Masses(p, q, p_below, p_above)

    def _mixture(self, x: Array, shift: float) -> Array:
        """Return the chance that a mixture of centres 0 and -shift is at most x."""
        kept = (1 - self.rate) * ndtr(x / self.noise) if self.rate < 1 else 0.0
        return np.asarray(kept + self.rate * ndtr((x + shift) / self.noise))

    def _loss(self, x: float) -> float:
        v = self.noise**-2
        stay = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        move = math.log(self.rate)
        upper = np.logaddexp(stay, move + (-0.5 - x) * v)
        return float(upper - np.logaddexp(stay, move + (-0.5 + x) * v))

    def _position(self, loss: Array) -> Array:
        v = self.noise**-2
        if self.rate == 1:
            return -loss / (2 * v)
        half = np.abs(loss) / 2
        log_sinh = half - math.log(2) + np.log(-np.expm1(-2 * np.maximum(half, 1e-300)))
        log_y = v / 2 + math.log1p(-self.rate) - math.log(self.rate) + log_sinh
        with np.errstate(over="ignore"):
            arcsinh = np.where(log_y > 300, log_y + math.log(2), np.arcsinh(np.exp(np.minimum(log_y, 300))))
        return np.asarray(-np.sign(loss) * (arcsinh + half) / v)


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


def discretise(loss: Loss, width: float, tail: float) -> LossGrid:
    """Return a loss on multiples of `width` whose curve is nowhere below that of `loss`.

    At most `tail` of the mass is cut on either side: above, it becomes infinite; below, it is moved up.
    """
    low, high = loss.span(tail)
    # one bucket to spare on either side, so that no atom at the end of the support falls off by rounding
    first, last = math.floor(low / width) - 1, math.ceil(high / width) + 1
    edges = width * np.arange(first, last + 1, dtype=np.float64)
    buckets = loss.masses(edges)
    upper = _upper_share(buckets, edges[:-1], width)
    mass = np.zeros(len(edges))
    mass[1:] = buckets.p * upper
    mass[:-1] += buckets.p * (1 - upper)
    mass[0] += buckets.p_below
    return LossGrid(width, first, mass, buckets.p_above)


def _upper_share(buckets: Masses, lower_edges: Array, width: float) -> Array:
    """Return the share of each bucket's mass that goes to its upper edge.

    Mass u at the upper edge and p - u at the lower one keep the mass under Q if
    ``(p - u) e^-a + u e^-(a + width) = q``. Rounding may only push the share up; where q is too small to be
    represented the whole bucket moves up.
    """
    known = (buckets.p > 0) & (buckets.q > 0)
    log_ratio = np.zeros_like(buckets.p)
    np.log(buckets.q, out=log_ratio, where=known)
    log_ratio -= np.log(buckets.p, out=np.zeros_like(buckets.p), where=known)
    share = np.expm1(np.minimum(lower_edges + log_ratio, 0.0)) / math.expm1(-width)
    slack = 8 * _EPS * (1.0 + np.abs(lower_edges)) / width
    return np.where(known, np.clip(share + slack, 0.0, 1.0), 1.0)


def _buckets(cdf: Array, sf: Array) -> tuple[Array, float, float]:
    """Return bucket masses from distribution functions that are each accurate in their own tail."""
    mass = np.where(cdf[1:] < 0.5, np.diff(cdf), -np.diff(sf))
    return np.maximum(mass, 0.0), float(cdf[0]), float(sf[-1])


def _sampled(loss: float, rate: float) -> float:
    """Return log(1 - rate + rate e^loss) without overflow."""
    if rate == 1:
        return loss
    if loss < 500.0:
        return math.log1p(rate * math.expm1(loss))
    return loss + math.log(rate)


def _unsampled(loss: Array, rate: float) -> Array:
    """Return the inverse of `_sampled`; losses that cannot occur map to minus infinity."""
    if rate == 1:
        return loss
    safe = np.minimum(loss, 500.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.log1p(np.maximum(np.expm1(safe) / rate, -1.0))
    return np.where(loss > 500.0, loss - math.log(rate), inner)
