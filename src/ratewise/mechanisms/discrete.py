"""Rounded Gaussian and Laplace noise on the integers, exact and vectorised.

Noise in floating point has holes: some outputs are possible from one data set and impossible from its
neighbour, and the low bits distinguish them (Mironov 2012). The draws here are integers with the law of
``round(s * Z)``, Z a standard normal or Laplace variable::

    p(n) = F((n + 1/2) / s) - F((n - 1/2) / s)

For an integer a, ``a + round(s * Z) = round(a + s * Z)``: what is proven for the real mechanism holds for the
result. The total variation distance between a draw and the exact law is below ``2**-200`` for ideal random
bits (`docs/guarantees.md`, section 13). Which draws take a slow path depends on the noise alone.

*Table* (`NormalTable`, normal draws of scale ``2**16`` or more, about 2 ns each) looks most draws up by 16
random bits. *Inversion* (all others, about 30 ns each): a 64-bit word gives a sign and the first 63 binary
digits of a uniform number u; ``|Z|`` is the quantile of u, which a double computes to about 50 bits. If
``s * |Z|`` is too close to a rounding boundary or u is tiny, 192 further digits are drawn and the comparison
is made in decimal arithmetic.

>>> rounded_normal(2.0, 5, np.random.default_rng(0))
array([ 2., -1.,  0.,  0.,  1.])
"""

from __future__ import annotations

import decimal
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from ratewise.mechanisms.randomness import ByteGenerator

Floats = npt.NDArray[np.float64]

_INDEX_BITS = 16  # of the table of segments: 256 kB
_PROPOSAL_BITS = 14
_SEGMENTS_PER_SCALE = 6  # log2 of the segments in one s, or up to twice as many
_REACH = 8.0  # segments cover so many s on either side
_UNDECIDED = 2.0**-40  # rounding errors of masses (which are below 2**-7) and levels are below 2**-50
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**16, 2.0**38
CHUNK = 1 << 16  # draws made at once: their arrays stay in the cache
_LEAST_AT_ONCE, _CALLS_AT_ONCE = 4096, 16  # draws that a pool makes at once, and calls that they serve

_BAND = 2.0**-42  # half the undecided band, in units of s; quantiles are off by less than 2**-46 (tested)
_FURTHER = 192  # digits drawn for an undecided draw
# Digits of the decimal arithmetic: tails down to 2**-256 minus 1/2 lose 77, 77 more are compared.
_CONTEXT = decimal.Context(prec=170, Emin=-10_000, Emax=10_000)
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
    "214808651328230664709384460955058223172535940812848111745028410270193852110555964"
)


def rounded_normal(s: float, size: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent draws of ``round(s * Z)``, Z standard normal, as whole floats."""
    if not _SMALLEST_SCALE <= s < _LARGEST_SCALE:
        return _inverted(s, size, rng, _NORMAL)
    found = np.empty(size)
    normal_table(s).fill(found.reshape(-1), rng)
    return found


def rounded_laplace(s: float, size: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent draws of ``round(s * L)``, L Laplace of scale 1, as whole floats."""
    return _inverted(s, size, rng, _LAPLACE)


def _words(rng: np.random.Generator, size: int | tuple[int, ...]) -> npt.NDArray[np.int64]:
    if isinstance(rng, ByteGenerator):
        return rng.words(size).view(np.int64)
    return rng.integers(-(1 << 63), 1 << 63, size, dtype=np.int64)


class NormalTable:
    """Draws ``round(s * Z)``, Z standard normal, from a table; exact up to ``2**-200`` per draw.

    Let p be the law, L the segment length, m_J and M_J the smallest and the largest probability in segment J,
    and c_J an integer with ``c_J <= 2**16 * L * m_J``. A uniform 16-bit index selects segment J with
    probability ``c_J / 2**16``, and a uniform position in it: each integer n of J gets
    ``c_J / (2**16 * L) <= p(n)``. Any other index, about one in a hundred, draws from the remainder
    ``p(n) - c_J / (2**16 * L)``, normalised. The mixture of the two is p.

    The remainder is drawn by rejection: segment J is proposed with probability ``a_J / 2**14``, where ``a_J *
    g >= L * M_J - c_J / 2**16`` for a constant g, then a position n in it, and a uniform V. It is accepted if
    ``V * a_J * g < L * p(n) - c_J / 2**16``, in double precision, or in decimal arithmetic if that is within
    ``2**-40`` of a tie. Integers beyond the segments (8 standard deviations) are one further proposal of
    height g, drawn by inversion in decimal arithmetic. c_J and a_J come from bounds on p that include
    rounding errors, so that errors in them change the speed and not the law.
    """

    def __init__(self, s: float) -> None:
        self.s = s
        self._bits = bits = math.frexp(s)[1] - 1 - _SEGMENTS_PER_SCALE
        width = 1 << bits
        self._mask = width - 1
        self._density = width / (s * math.sqrt(2.0 * math.pi))
        side = math.ceil(_REACH * s / width)
        self._end = side * width
        segments = np.arange(-side, side, dtype=np.int64)
        near = np.where(segments >= 0, segments, -segments - 1) * width + (segments < 0)
        far = np.where(segments >= 0, (segments + 1) * width - 1, -segments * width)
        counts = np.floor(self._mass(far) * (1.0 - _UNDECIDED) * 2.0**_INDEX_BITS)
        floors = counts * 2.0**-_INDEX_BITS
        excess = self._mass(near) * (1.0 + _UNDECIDED) - floors
        # a unit with few digits: its multiples are exact, so heights are in exact proportion to probabilities
        unit = math.frexp(float(excess.sum()) / (2.0**_PROPOSAL_BITS - 2 * side - 8))
        self._unit = math.ldexp(math.ceil(unit[0] * 2.0**24), unit[1] - 24)
        proposals = np.ceil(excess / self._unit)
        self._tail = 2.0 * float(ndtr(-(self._end - 0.5) / s))

        numbers = np.int32 if self._end < 1 << 31 else np.int64
        self._listed = int(counts.sum())
        self._table = np.zeros(1 << _INDEX_BITS, dtype=numbers)
        self._table[: self._listed] = np.repeat(segments * width, counts.astype(np.intp))
        # proposals: the segments, then the tail, then indices that propose nothing
        times = np.append(proposals, 1.0).astype(np.intp)
        self._proposed = np.full(1 << _PROPOSAL_BITS, len(times), dtype=np.intp)
        self._proposed[: times.sum()] = np.repeat(np.arange(len(times)), times)
        self._tail_at = len(segments)
        self._starts = np.concatenate([segments * width, [self._end, 0]])
        self._floors = np.concatenate([floors, [0.0, 2.0]])  # 2 is above every mass: never accepted
        self._heights = np.concatenate([proposals * self._unit, [self._unit, 0.0]])
        self._rate = float((1.0 - floors.sum()) / (self._unit * 2.0**_PROPOSAL_BITS))
        self._low = np.dtype("<u2" if bits <= 16 else "<i4")  # signed like the table: added without a conversion

    def fill(self, out: Floats, rng: np.random.Generator) -> None:
        """Write an independent draw into every entry of a one-dimensional array."""
        for start in range(0, len(out), CHUNK):
            piece = out[start : start + CHUNK]
            count, each = len(piece), self._low.itemsize
            raw = rng.bytes((each + 2) * count)
            index = np.frombuffer(raw, "<u2", count, offset=each * count)
            draws = self._table.take(index, mode="wrap")  # an index is in the table, which need not be checked
            np.add(draws, np.frombuffer(raw, self._low, count) & self._low.type(self._mask), out=draws)
            rest = np.flatnonzero(index >= self._listed)
            if rest.size:
                draws[rest] = self._remainder(rest.size, rng)
            piece[...] = draws

    def _mass(self, n: npt.NDArray[np.int64]) -> Floats:
        """Return the segment length times p(n), for |n| up to about 8 s, with relative error below 2**-44.

        ``s * p(n)`` is the density at ``x = n / s`` averaged over an interval of length 1 / s; its expansion
        is ``density * (1 + (x * x - 1) / (24 * s * s))``, with a next term below 2**-53.
        """
        square = n / self.s
        square *= square
        mass = np.exp(square * -0.5)
        mass *= self._density
        square -= 1.0
        square *= 1.0 / (24.0 * self.s * self.s)
        square += 1.0
        mass *= square
        return mass

    def _remainder(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return independent draws from the law that is left when the listed segments are subtracted."""
        accepted = []
        while count > 0:
            tries = int(1.1 * count / self._rate) + 16
            words = _words(rng, 2 * tries).view(np.uint64)
            chosen = self._proposed.take((words[:tries] & np.uint64((1 << _PROPOSAL_BITS) - 1)).view(np.int64))
            numbers = (words[:tries] >> np.uint64(_PROPOSAL_BITS)).astype(np.int64)
            numbers &= self._mask
            numbers += self._starts.take(chosen)
            uniform = words[tries:] >> np.uint64(11)
            level = uniform * 2.0**-53
            level *= self._heights.take(chosen)
            # above the level a proposal is accepted; the tail's levels are compared with its probability
            above = self._mass(numbers)
            above -= self._floors.take(chosen)
            above -= level
            keep = above > 0.0
            undecided = (np.abs(above) < _UNDECIDED) | (chosen == self._tail_at)
            for place in np.flatnonzero(undecided).tolist():
                found = self._settle(int(chosen[place]), int(numbers[place]), int(uniform[place]), rng)
                keep[place] = found is not None
                numbers[place] = 0 if found is None else found
            accepted.append(numbers[keep][:count])
            count -= len(accepted[-1])
        return np.concatenate(accepted)

    def _settle(self, chosen: int, n: int, uniform: int, rng: np.random.Generator) -> int | None:
        """Return the accepted integer of a proposal or None, with 192 further digits of its V."""
        if chosen == self._tail_at and uniform * 2.0**-53 * self._unit > 1.001 * self._tail:
            return None
        further = int.from_bytes(rng.bytes(_FURTHER // 8), "little")
        with decimal.localcontext(_CONTEXT):
            v = (Decimal((uniform << _FURTHER) | further) + Decimal("0.5")) / (1 << (53 + _FURTHER))
            level = v * Decimal(float(self._heights[chosen]))
            if chosen == self._tail_at:
                return self._from_tail(level)
            mass = self._upper_tail(abs(n) - 1) - self._upper_tail(abs(n))
            accepted = level + Decimal(float(self._floors[chosen])) < mass * (1 << self._bits)
        return n if accepted else None

    def _from_tail(self, level: Decimal) -> int | None:
        """Return the integer beyond the segments whose share of the tail's probability holds the level."""
        right, left = self._upper_tail(self._end - 1), self._upper_tail(self._end)
        if level < right:
            return _quantile(level, self.s, _NORMAL)
        return -_quantile(level - right, self.s, _NORMAL) if level < right + left else None

    def _upper_tail(self, n: int) -> Decimal:
        """Return P(N > n), for n >= -1."""
        edge = (n + Decimal("0.5")) / Decimal(self.s)
        return _normal_tail(edge) if edge >= 0 else 1 - _normal_tail(-edge)


@functools.lru_cache(maxsize=16)
def normal_table(s: float) -> NormalTable:
    """Return the table of a scale: public numbers only, shared by all who draw."""
    return NormalTable(s)


class _Law(NamedTuple):
    """A law of lengths: tail, minus the inverse of the tail in doubles, digits of u in a word, tiny u."""

    tail: Callable[[Decimal], Decimal]
    minus_quantile: Callable[[Any], Any]
    digits: int
    tiny: float


def _inverted(s: float, size: int | tuple[int, ...], rng: np.random.Generator, law: _Law) -> Floats:
    """Draw signs and lengths by inversion, and settle those that a double leaves undecided."""
    words = _words(rng, size)
    signed = words.astype(np.float64)
    u = np.abs(signed)
    u *= 2.0**-law.digits  # in (0, 1) or, for two sides, in (0, 1/2): the tail beyond the length
    length: Floats = law.minus_quantile(u)
    if u.size == 0:
        return length
    length *= s
    whole = np.rint(length)
    length -= whole
    np.abs(length, out=length)  # at most 1/2, where the boundary is
    limit = 0.5 - s * _BAND
    if length.max() > limit or u.min() < law.tiny:
        flat, coded = whole.reshape(-1), words.reshape(-1)
        for place in np.flatnonzero((length > limit) | (u < law.tiny)).tolist():
            word = int(coded[place])
            flat[place] = _settle(word if word >= 0 else ~word, s, rng, law)
    np.copysign(whole, signed, out=whole)
    whole += 0.0  # no negative zeros
    return whole


def _settle(word: int, s: float, rng: np.random.Generator, law: _Law) -> float:
    """Return the whole number n with ``n - 1/2 <= s * |Z| < n + 1/2`` for u with further digits."""
    further = int.from_bytes(rng.bytes(_FURTHER // 8), "little")
    with decimal.localcontext(_CONTEXT):
        u = (Decimal((word << _FURTHER) | further) + Decimal("0.5")) / (1 << (law.digits + _FURTHER))
        return float(_quantile(u, s, law))


def _quantile(u: Decimal, s: float, law: _Law) -> int:
    """Return the integer n >= 0 with ``tail((n + 1/2) / s) < u <= tail((n - 1/2) / s)``."""
    n = int(s * -float(law.minus_quantile(float(u))))
    scale, half = Decimal(s), Decimal("0.5")
    while u <= law.tail((n + half) / scale):
        n += 1
    while n > 0 and u > law.tail((n - half) / scale):
        n -= 1
    return n


def _normal_tail(x: Decimal) -> Decimal:
    """Return P(Z > x) for x >= 0, by the series of the distribution function whose terms are positive."""
    square = x * x
    total = term = x
    odd = 1
    smallest = Decimal(10) ** -_CONTEXT.prec
    while term > smallest * total:
        odd += 2
        term = term * square / odd
        total += term
    density = (-square / 2).exp() / (2 * _PI).sqrt()
    return Decimal("0.5") - density * total


# Below the last number a word holds too few digits of u: what they move a quantile by, at most 2**-64 over
# the density, must stay below a sixteenth of the band.
_NORMAL = _Law(_normal_tail, ndtri, 64, 2.0**-20)
_LAPLACE = _Law(lambda x: (-x).exp(), np.log, 63, 2.0**-16)


class Prefetched:
    """Draws in bulk and hands out each draw once, which is faster for small arrays.

    Draws wait in memory for one stream and one scale only, are never pickled, and a forked process discards
    what it inherited, so it never repeats its parent's noise.
    """

    __slots__ = ("__weakref__", "_at", "_draw", "_draws", "_lock", "_made_for")

    def __init__(self, draw: Callable[[float, int, np.random.Generator], Floats]) -> None:
        self._draw = draw
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._draws: Floats = np.empty(0)
        self._at = 0
        self._made_for: tuple[float, np.random.Generator] | None = None
        self._lock = threading.Lock()  # a new one: in a fork, nobody would open the old one

    def take(self, s: float, count: int, rng: np.random.Generator) -> Floats:
        """Return `count` draws of scale s; they must be copied before they leave."""
        at_once = max(_LEAST_AT_ONCE, _CALLS_AT_ONCE * count)
        if at_once > CHUNK:
            return self._draw(s, count, rng)
        with self._lock:
            made_for = self._made_for
            current = made_for is not None and made_for[0] == s and made_for[1] is rng
            if not current or self._at + count > len(self._draws):
                self._draws, self._at, self._made_for = self._draw(s, at_once, rng), 0, (s, rng)
            self._at += count
            return self._draws[self._at - count : self._at]


_pools: weakref.WeakSet[Prefetched] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
