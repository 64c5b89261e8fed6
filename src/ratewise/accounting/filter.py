"""A privacy filter: a cap that holds although each plan is chosen after the outputs of all earlier ones.

Exact composition (`ratewise.accounting.accountant`) needs a list of events that is fixed in advance. If the
next plan may depend on earlier outputs, "admit what keeps the composed epsilon within the cap" is not private
(`docs/ledger.md` has an attack).

The filter fixes a Renyi order a > 1 before the first release. A plan is described by a pair of numbers:

    rho     with  E[exp((a - 1) L); L finite] <= exp((a - 1) rho)    for its privacy loss L, both directions
    delta   with  P(L infinite) <= delta                             (threshold releases, cut tails)

and it is admitted if the sum of all rho stays within R and the sum of all delta within D, where

    D = cap.delta / 2      R = cap.epsilon + log(a (cap.delta - D)) / (a - 1) - log(1 - 1/a).

*Everything that is ever admitted is, together, (cap.epsilon, cap.delta)-differentially private*: section 3.6
of ``docs/guarantees.md``, after Feldman and Zrnic (2021) and Whitehouse, Ramdas, Rogers and Wu (2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from ratewise.accounting.accountant import PrivacyCurve
from ratewise.accounting.events import Budget, Event
from ratewise.accounting.losses import GaussianCurve

RESERVED_SHARE = 0.5  # of the cap's delta: set aside, before the first release, for losses without moments
_TAIL = 1e-9  # of the cap's delta: tails of a plan that are left out of its divergence
_LOWEST_SHARE = 0.125  # smallest order considered, minus one, as a part of the best one for Gaussians
_ORDERS = 13


@dataclass(frozen=True)
class PrivacyFilter:
    """The filter for a cap at one Renyi order above 1, which is fixed before the first release."""

    cap: Budget
    order: float
    neighbours: str = "add_or_remove"

    @classmethod
    def for_first_plan(cls, cap: Budget, events: tuple[Event, ...], neighbours: str) -> PrivacyFilter:
        """Return the filter at the order of which the first plan uses the least.

        No order above the best one for Gaussian releases is considered: a first plan of pure Laplace noise
        would otherwise leave nothing for later Gaussians. The first plan is fixed before any output is seen,
        so the choice is not adaptive.
        """
        orders = 1.0 + (gaussian_order(cap) - 1.0) * np.geomspace(1.0, _LOWEST_SHARE, _ORDERS)
        budgets = np.asarray([_divergence_budget(cap, float(order)) for order in orders])
        used, _ = PrivacyCurve(events, neighbours).renyi(orders, _TAIL * cap.delta)
        shares = np.where(budgets > 0, used / np.maximum(budgets, 1e-300), math.inf)
        return cls(cap, float(orders[int(np.argmin(shares))]), neighbours)

    @property
    def divergence(self) -> float:
        """What the Renyi divergences of all plans may sum up to; not positive if the order does not suit."""
        return _divergence_budget(self.cap, self.order) * (1.0 - 1e-12)

    @property
    def delta(self) -> float:
        """What the deltas of all plans may sum up to."""
        return RESERVED_SHARE * self.cap.delta

    def spent(self, plans: Iterable[tuple[Event, ...]]) -> float:
        """Return the part of the budget that plans use: at most 1 if they may all be admitted."""
        if self.divergence <= 0:
            return math.inf
        costs = [_cost(self, events) for events in plans]
        return max(sum(c[0] for c in costs) / self.divergence, sum(c[1] for c in costs) / self.delta)

    def noise_factor(self) -> float:
        """Return by how much more noise one Gaussian release needs to fit than by exact composition."""
        by_filter = math.sqrt(self.order / (2 * max(self.divergence, 1e-300)))
        return by_filter / gaussian_noise_exactly(self.cap)


@functools.lru_cache(maxsize=256)
def _cost(chosen: PrivacyFilter, events: tuple[Event, ...]) -> tuple[float, float]:
    """Return the divergence at the filter's order and the delta of a plan."""
    curve = PrivacyCurve(events, chosen.neighbours)
    found, missing = curve.renyi(chosen.order, _TAIL * chosen.cap.delta)
    return float(found[0]), missing


def gaussian_order(cap: Budget) -> float:
    """Return the order at which the filter admits the least noisy Gaussian release.

    The divergence of a Gaussian is proportional to the order, so this maximises budget / order.
    """
    # 1 + sqrt(2 log(1 / delta)) / mu for the mu of a Gaussian within the cap: about where the best one lies
    centre = math.log(math.sqrt(2 * math.log(1 / cap.delta)) * gaussian_noise_exactly(cap))

    def loss(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return -_divergence_budget(cap, order) / order

    found = minimize_scalar(loss, bounds=(centre - 3.0, centre + 3.0), method="bounded")
    return 1.0 + math.exp(float(found.x))


@functools.lru_cache(maxsize=64)
def gaussian_noise_exactly(cap: Budget) -> float:
    """Return the least noise of one Gaussian release within the cap, by its exact curve."""
    low, high = 1e-3, 1.0
    while GaussianCurve(high).delta(cap.epsilon) > cap.delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if GaussianCurve(middle).delta(cap.epsilon) > cap.delta else (low, middle)
    return high


def _divergence_budget(cap: Budget, order: float) -> float:
    left = math.log(cap.delta * (1.0 - RESERVED_SHARE))
    return cap.epsilon + (left + math.log(order)) / (order - 1.0) - math.log1p(-1.0 / order)
