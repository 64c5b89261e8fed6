"""The best of a random number of private candidates (Papernot and Steinke 2022).

Let the candidate have the curve delta(eps), larger of both directions, and let R be the number of trials. For
every first >= 0, with c = (1 + shape) * log(e^first + delta(first) * (1 - g) / g),

    delta_selected(eps) <= E[R] * delta(eps - c),

g being the stopping parameter of R's truncated negative binomial law; for a Poisson number of trials
delta_selected(eps) <= E[R] * delta(eps - E[R] * delta(0)). Proof: docs/guarantees.md, section 9. For eps
below c the total variation of R trials gives delta_selected(eps) <= delta_selected(0) <= E[R] * delta(0).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from ratewise.accounting.losses import Array, AtomicLoss

_LARGEST_LOGIT = 30.0
_LARGEST_EPSILON = 500.0


@dataclass(frozen=True)
class SelectionCurve:
    """Upper bound on the curve of a selection, from that of one candidate."""

    candidate_deltas: Callable[[Array], Array]
    candidate_epsilon: Callable[[float], float]
    rough_deltas: Callable[[Array], Array]  # about the same at less cost; for a choice, not for an answer
    mean_trials: float
    shape: float

    def epsilon(self, delta: float) -> float:
        """Return an epsilon at which the selection has at most the given delta."""
        share = delta / self.mean_trials
        # a Poisson number of trials may be so small that not even a candidate without privacy shows
        inner = self.candidate_epsilon(share) if share < 1.0 else 0.0
        return inner + self.shift if inner > 0 else 0.0

    def deltas(self, epsilons: Array) -> Array:
        """Return delta of the selection at every epsilon."""
        inner = np.maximum(epsilons - self.shift, 0.0)
        return np.minimum(1.0, self.mean_trials * self.candidate_deltas(inner))

    @functools.cached_property
    def shift(self) -> float:
        """The number c, made as small as the free parameter allows; it does not depend on delta."""
        if math.isinf(self.shape):
            return self.mean_trials * float(self.candidate_deltas(np.zeros(1))[0])
        stop = stopping_parameter(self.mean_trials, self.shape)
        log_odds = math.log1p(-stop) - math.log(stop)

        def cost(first: float, deltas: Callable[[Array], Array]) -> float:
            found = float(deltas(np.asarray([first]))[0])
            return float(np.logaddexp(first, log_odds + math.log(max(found, 1e-300))))

        # any value is valid, the best one only makes the bound smaller: past log_odds nothing can be won
        best = optimize.minimize_scalar(
            cost,
            args=(self.rough_deltas,),
            bounds=(0.0, max(log_odds, 1e-6) + 1.0),
            method="bounded",
            options={"xatol": 1e-4},
        )
        return (1 + self.shape) * min(cost(first, self.candidate_deltas) for first in (0.0, float(best.x)))


def stopping_parameter(mean_trials: float, shape: float) -> float:
    """Return g in (0, 1) for which the truncated negative binomial law has the given mean.

    >>> round(stopping_parameter(10.0, 1.0), 6)
    0.1
    """

    def sigmoid(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    def excess(logit: float) -> float:
        g = sigmoid(logit)
        mean = (
            (1 / g - 1) / -math.log(g)
            if shape == 0
            else -shape * (1 - g) / (g * math.expm1(shape * math.log(g)))
        )
        return math.log(mean / mean_trials)

    # so few trials that g is 1 to nearly all digits: a smaller one is on the safe side
    if excess(_LARGEST_LOGIT) >= 0:
        return sigmoid(_LARGEST_LOGIT)
    return sigmoid(float(optimize.brentq(excess, -60.0, _LARGEST_LOGIT, xtol=1e-13)))


def selected_loss(curve: SelectionCurve, smallest_delta: float) -> AtomicLoss:
    """Return a loss whose curve is nowhere below that of a selection, cut where delta is negligible.

    It goes through the selection's curve at knots. Between them it is linear in e^epsilon, never below a
    convex curve through the same points.
    """
    # a candidate with thresholds has a delta of its own, below which no epsilon is finite
    smallest_delta = max(smallest_delta, 1.05 * float(curve.deltas(np.asarray([_LARGEST_EPSILON]))[0]))
    while smallest_delta < 0.1 and math.isinf(curve.epsilon(smallest_delta)):
        smallest_delta *= 10
    highest = min(max(curve.epsilon(smallest_delta), 1e-3), _LARGEST_EPSILON)
    positive = np.linspace(0.0, highest, 200)
    deltas = np.minimum.accumulate(curve.deltas(positive))
    mirrored = -np.expm1(-positive[:0:-1]) + np.exp(-positive[:0:-1]) * deltas[:0:-1]
    knots = np.concatenate([-positive[:0:-1], positive])
    y = np.exp(knots)
    # an upper bound of a curve that is convex in e^epsilon stays one when it is made convex
    convex = _convex_minorant(y, np.concatenate([mirrored, deltas]))
    slopes = np.concatenate([[-1.0], np.diff(convex) / np.diff(y), [0.0]])
    q = np.maximum(np.diff(slopes), 0.0)
    return AtomicLoss(knots, q * y, q, max(float(convex[-1]), 1.0 - float((q * y).sum()), 0.0))


def _convex_minorant(x: Array, values: Array) -> Array:
    """Return the largest convex function on the points x that is nowhere above `values`."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (x[i] - x[a]) < (values[i] - values[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.interp(x, x[hull], values[hull])
