"""Rounded Gaussian and Laplace noise on the integers, exact and vectorised.

Noise in floating point has holes: some outputs are possible from one data set and impossible from its
neighbour, and the low bits tell them apart (Mironov 2012). The draws here are whole numbers with exactly the
law of ``round(s * Z)``, Z a true normal or Laplace variable::

    P(N = k) = F((k + 1/2) / s) - F((k - 1/2) / s)

For whole a, ``a + round(s * Z) = round(a + s * Z)``: adding such a draw to a whole number is the same as
rounding the outcome of the *real* mechanism, so whatever is proven for that one holds to the last bit, in any
number of dimensions (`docs/threat-model.md`, "Noise on a grid").

How a draw is exact: a 64-bit word gives a sign and the first 63 binary digits of a uniform number u; ``|Z|``
is the quantile of u, and a double computes it to about 50 bits. That settles the rounding unless ``s * |Z|``
falls within a band around a boundary between whole numbers that is far wider than all errors, or u is tiny.
About one draw in half a million is undecided in this way; it gets 192 further digits and is settled in exact
decimal arithmetic. Which draws need that depends on the noise alone, never on what it is added to.

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

from ratewise import _validate
from ratewise.randomness import SecureGenerator

Floats = npt.NDArray[np.float64]

# Half the width of the undecided band, in units of s. The quantile is off by less than 2**-46 (tested).
_BAND = 2.0**-42
# Below this (Laplace: sixteen times this) a word holds too few digits of u: what they move a quantile by, at
# most 2**-64 over the density, must stay below a sixteenth of the band.
_TINY = 2.0**-20
_FURTHER = 192  # digits drawn for an undecided draw
# Digits of the decimal arithmetic: tails down to 2**-256 minus 1/2 lose 77, 77 more are compared.
_CONTEXT = decimal.Context(prec=170, Emin=-10_000, Emax=10_000)


def rounded_normal(s: float, size: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent draws of ``round(s * Z)``, Z standard normal, as whole floats."""
    words = _words(rng, size)
    signed = words.astype(np.float64)
    u = np.abs(signed)
    u *= 2.0**-64  # in (0, 1/2): the tail beyond |Z|
    return _round(ndtri(u), u, signed, words, s, rng, _NORMAL)


def rounded_laplace(s: float, size: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return independent draws of ``round(s * L)``, L Laplace of scale 1, as whole floats."""
    words = _words(rng, size)
    signed = words.astype(np.float64)
    u = np.abs(signed)
    u *= 2.0**-63  # in (0, 1): the tail of |L|
    return _round(np.log(u), u, signed, words, s, rng, _LAPLACE)


def _words(rng: np.random.Generator, size: int | tuple[int, ...]) -> npt.NDArray[np.int64]:
    if isinstance(rng, SecureGenerator):
        return rng.words(size).view(np.int64)
    return rng.integers(-(1 << 63), 1 << 63, size, dtype=np.int64)


def _round(
    length: Floats,
    u: Floats,
    signed: Floats,
    words: npt.NDArray[np.int64],
    s: float,
    rng: np.random.Generator,
    law: _Law,
) -> Floats:
    """Round s times the lengths (given with a minus), settle undecided ones, add the words' signs."""
    if u.size == 0:
        return length
    length *= s
    whole = np.rint(length)
    length -= whole
    np.abs(length, out=length)  # at most 1/2, where the boundary is
    limit = 0.5 - s * _BAND
    tiny = law.tiny * _TINY
    if length.max() > limit or u.min() < tiny:
        undecided = (length > limit) | (u < tiny)
        flat, coded = whole.reshape(-1), words.reshape(-1)
        for place in np.flatnonzero(undecided).tolist():
            word = int(coded[place])
            flat[place] = _settle(word if word >= 0 else ~word, s, rng, law)
    np.copysign(whole, signed, out=whole)
    whole += 0.0  # no negative zeros
    return whole


class _Law(NamedTuple):
    """A law of lengths.

    Its tail, the inverse of the tail in double precision, digits of u in a word, and what is tiny.
    """

    tail: Callable[[Decimal], Decimal]
    quantile: Callable[[float], float]
    digits: int
    tiny: float


def _settle(word: int, s: float, rng: np.random.Generator, law: _Law) -> float:
    """Return the whole number n with ``n - 1/2 <= s * |Z| < n + 1/2`` for u with further digits."""
    further = int.from_bytes(rng.bytes(_FURTHER // 8), "little")
    with decimal.localcontext(_CONTEXT):
        u = (Decimal((word << _FURTHER) | further) + Decimal("0.5")) / (1 << (law.digits + _FURTHER))
        n = int(s * law.quantile(float(u)))
        scale, half = Decimal(s), Decimal("0.5")
        while u <= law.tail((n + half) / scale):
            n += 1
        while n > 0 and u > law.tail((n - half) / scale):
            n -= 1
    return float(n)


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
    density = (-square / 2).exp() / (2 * _pi()).sqrt()
    return Decimal("0.5") - density * total


def _exponential_tail(x: Decimal) -> Decimal:
    return (-x).exp()


_NORMAL = _Law(_normal_tail, lambda u: -float(ndtri(u)), 64, 1.0)
_LAPLACE = _Law(_exponential_tail, lambda u: -math.log(u), 63, 16.0)


@functools.cache
def _pi() -> Decimal:
    """Return pi by Machin's formula, in the precision of our context."""
    with decimal.localcontext(_CONTEXT) as context:
        context.prec += 10
        return 16 * _arctan_inverse(5) - 4 * _arctan_inverse(239)


def _arctan_inverse(n: int) -> Decimal:
    total, power, k = Decimal(0), Decimal(1) / n, 0
    while power > Decimal(10) ** -(decimal.getcontext().prec + 5):
        total += power / (2 * k + 1) * (-1 if k % 2 else 1)
        power /= n * n
        k += 1
    return total


class Prefetched:
    """Hands out draws that were made in bulk: for small arrays that is three times as fast.

    Every draw is handed out once. Draws wait in memory for one stream and one scale only, are never pickled,
    and a forked process throws away what it inherited, so it never repeats its parent's noise.
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
        if count > _AT_ONCE // 2:
            return self._draw(s, count, rng)
        with self._lock:
            made_for = self._made_for
            current = made_for is not None and made_for[0] == s and made_for[1] is rng
            if not current or self._at + count > len(self._draws):
                self._draws, self._at, self._made_for = self._draw(s, _AT_ONCE, rng), 0, (s, rng)
            self._at += count
            return self._draws[self._at - count : self._at]


_AT_ONCE = 4096
_pools: weakref.WeakSet[Prefetched] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def probability(kind: str, s: float, k: Any) -> Floats:
    """Return the law P(N = k) in double precision, for checks: the oracle of the tests and of the audit.

    >>> round(float(probability("normal", 3.0, 0)), 4)
    0.1324
    """
    s = _validate.positive(s=s)
    k = np.abs(np.asarray(k, dtype=np.float64))
    low, high = (k - 0.5) / s, (k + 0.5) / s
    if _validate.one_of(("normal", "laplace"), kind=kind) == "normal":
        return np.asarray(ndtr(-low) - ndtr(-high))
    inner = np.exp(-np.abs(low)) / 2
    return np.asarray(np.where(k == 0, -np.expm1(-high), inner - np.exp(-high) / 2))


def grid_below(deviation: float, fineness: int = 20) -> float:
    """Return the power of two that is `fineness` octaves below a deviation.

    >>> grid_below(1.0, 3)
    0.125
    """
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - fineness)
