"""The curve of one Gaussian release that every row takes part in, which needs no composition: a formula.

With m the sensitivity over the noise (several such releases are one, with the squares of m added up)

    delta(e) = F(m/2 - e/m) - exp(e) F(-m/2 - e/m),

F the normal law. (Balle and Wang 2018, theorem 8.) Both neighbours of a pair give the same curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-13  # of the larger term; the functions are right to some 1e-15
_ROUNDING_OF_NOISE = 1e-12  # covers what is lost in sums of noise, and in e/m - m/2 where m is large
_NARROW = 5e-7  # half of m: below it the difference of the terms is lost in their rounding
_SMALLEST = 1e-300  # what is less than this is said to be this
_ROOT_HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class GaussianCurve:
    """Upper bounds on delta and epsilon, as `Composition` has them, exact but for rounding.

    Parameters
    ----------
    noise : float
        Standard deviation over sensitivity.
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
            found = scale * (2.0 * half * max(0.0, slope) * (1.0 + 1e-9) + _ROUNDING * half)
            return min(1.0, found + _SMALLEST)
        second = scale * float(erfcx(far * _ROOT_HALF))
        first = float(ndtr(-near)) if near < 0.0 else scale * float(erfcx(near * _ROOT_HALF))
        return min(1.0, max(0.0, first - second) + _ROUNDING * first + _SMALLEST)

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

        def excess(epsilon: float) -> float:
            return math.log(self.delta(epsilon)) - math.log(delta)

        found = float(brentq(excess, 0.0, high, xtol=1e-15 * high, rtol=1e-13))
        step = 1e-12 * found + 1e-300
        while self.delta(found) > delta:  # the root finder may stop a hair short of the safe side
            found, step = found + step, 2.0 * step
        return found
