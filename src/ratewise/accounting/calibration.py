"""From a target budget to noise.

Every answer is re-checked with the accountant: its epsilon is never above the target, and at least 0.999 of
it wherever the target can be met that closely.

>>> found = calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=200)
>>> 0.999 <= found.epsilon <= 1.0
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ratewise import _validate
from ratewise.accounting.accountant import PrivacyCurve
from ratewise.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    ThresholdEvent,
    TrainingEvent,
    as_events,
)
from ratewise.exceptions import InvalidInput

_TIGHT = 0.9992  # aim a little above the promised 0.999
_ROUGH = 1e-3  # excess allowed while the answer is only being approached
_LEAST_NOISE, _MOST_NOISE = 0.03, 1e9
_MOST_PLANNED = 10_000_000  # answers take seconds there, and minutes beyond


@dataclass(frozen=True)
class Calibration:
    """Noise of a training phase that meets a target, and what it costs: never more than the target."""

    gradient_noise: float
    histogram_noise: float | None
    epsilon: float
    delta: float
    event: TrainingEvent


def calibrate(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    histogram: str | None = "gaussian",
    histogram_share: float = 0.1,
    neighbours: str = "add_or_remove",
) -> Calibration:
    """Return the least noise with which a training phase stays within (epsilon, delta).

    The histogram is "gaussian", "laplace" or None, and gets the share s of the budget: with a common level z,
    ``histogram_noise = z / sqrt(s)`` and ``gradient_noise = z / sqrt(1 - s)``. For two Gaussians z is the
    noise of the pair, for a Laplace histogram the same split of the leading 1/noise^2 terms, solved on the
    exact curve.
    """
    if _validate.count(steps=steps) > _MOST_PLANNED:
        raise InvalidInput(f"steps must be at most {_MOST_PLANNED:,}, got {steps:,}")
    share = 0.0
    if _validate.one_of(("gaussian", "laplace", None), histogram=histogram) is not None:
        share = _validate.inside(histogram_share=histogram_share, hint="histogram=None trains without one")

    def phase(level: float) -> TrainingEvent:
        side = level / math.sqrt(share) if share else None
        return TrainingEvent(sampling_rate, steps, level / math.sqrt(1 - share), side, histogram)

    found = calibrate_plan(epsilon, delta, lambda level: (phase(level),), neighbours)
    event = phase(found.scale)
    return Calibration(event.gradient_noise or 0.0, event.histogram_noise, found.epsilon, found.delta, event)


@dataclass(frozen=True)
class PlanCalibration:
    """The scale that meets a target, the plan at that scale, and what it costs: never more."""

    scale: float
    events: tuple[Event, ...]
    epsilon: float
    delta: float


def calibrate_plan(
    epsilon: float, delta: float, build: Callable[[float], Iterable[Event]], neighbours: str = "add_or_remove"
) -> PlanCalibration:
    """Return the least scale at which a plan of several releases stays within (epsilon, delta).

    `build` returns the events of the plan for a scale; no noise may fall as the scale grows. With shares s_i
    of the budget, take ``noise_i = scale / sqrt(s_i)``.

    >>> def build(scale):
    ...     return GaussianEvent(scale / 0.3), TrainingEvent(0.1, 100, gradient_noise=scale)
    >>> 0.999 <= calibrate_plan(1.0, 1e-5, build).epsilon <= 1.0
    True
    """
    target = _validate.positive(epsilon=epsilon)
    delta = _validate.inside(delta=delta)

    def events(scale: float) -> tuple[Event, ...]:
        return as_events(build(scale))

    own = sum(event.delta for event in events(1.0) if isinstance(event, ThresholdEvent))
    if own >= delta:
        raise InvalidInput(f"delta is {delta:g}, but threshold releases alone have {own:g}; raise it")

    def spent(scale: float) -> float:
        return PrivacyCurve(events(scale), neighbours).epsilon_or_enough(delta, target)

    def roughly(scale: float) -> float:
        return PrivacyCurve(events(scale), neighbours, tolerance=_ROUGH).epsilon_or_enough(delta, 0.0)

    try:
        guess, _ = _least_level(roughly, target, _first_guess(events, target, delta - own))
        scale, found = _least_level(spent, target, guess)
    except _OutOfReach:
        raise InvalidInput(
            f"epsilon is {target:g}, out of reach with noise up to {_MOST_NOISE:g}; "
            "take fewer steps, a smaller sampling rate, or a larger epsilon or delta"
        ) from None
    return PlanCalibration(scale, events(scale), found, delta)


def group_budget(epsilon: float, delta: float, rows: int) -> tuple[float, float]:
    """Return the row-level budget at which groups of so many rows have (epsilon, delta), by group privacy.

    With e = epsilon / rows, rows that are removed one after the other multiply the guarantee to ``rows * e``
    and ``d * (exp(rows * e) - 1) / (exp(e) - 1)``. A baseline for persons with several rows: `privacy_ids`
    need less noise.

    >>> "{:.2f}, {:.2g}".format(*group_budget(1.0, 1e-5, 10))
    '0.10, 6.1e-07'
    """
    each = _validate.positive(epsilon=epsilon) / _validate.count(rows=rows)
    return each, _validate.inside(delta=delta) * math.expm1(each) / math.expm1(epsilon)


class _OutOfReach(Exception):  # noqa: N818 - reads as what happened
    """No level up to the largest meets the target."""


def _first_guess(events: Callable[[float], tuple[Event, ...]], target: float, delta: float) -> float:
    """Return a starting scale by the central limit theorem: a Gaussian with the summed variance."""
    shift = math.sqrt(2 * (target + math.log(1 / delta))) - math.sqrt(2 * math.log(1 / delta))
    low, high = 10 * _LEAST_NOISE, _MOST_NOISE / 10
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sum(map(_variance, events(middle))) > shift**2 else (low, middle)
    return high


def _variance(event: Event) -> float:
    """Return about the variance of an event's privacy loss."""
    if isinstance(event, TrainingEvent):
        noises = (event.joint_gaussian_noise, event.laplace_scale)
        inverse = sum(noise**-2 for noise in noises if noise is not None)
        growth = inverse if event.sampling_rate == 1 else math.expm1(min(inverse, 700.0))
        return event.steps * event.sampling_rate**2 * growth
    if isinstance(event, GaussianEvent | LaplaceEvent):
        return event.count * event.noise**-2
    return event.noise**-2 if isinstance(event, ThresholdEvent) else 0.0


def _least_level(spent: Callable[[float], float], target: float, level: float) -> tuple[float, float]:
    """Return (level, epsilon) with epsilon in [_TIGHT * target, target]; `spent` falls as the level grows.

    A secant in logarithms, kept inside a bracket whose upper end is always safe. If even the least level is
    within the target, that level is the answer.
    """
    low, high = _LEAST_NOISE, math.inf
    cost_low = cost_high = math.nan
    aim = math.log(target * (1 + _TIGHT) / 2)
    for _ in range(200):
        cost = spent(level)
        if _TIGHT * target <= cost <= target:
            return level, cost
        if cost > target:
            low, cost_low = level, cost
        else:
            high, cost_high = level, cost
        if high <= _LEAST_NOISE * (1 + 1e-9) or high / low < 1 + 1e-13:
            break
        level = _next_level(low, cost_low, high, cost_high, aim)
        if level > _MOST_NOISE:
            raise _OutOfReach
    if math.isinf(high):
        raise _OutOfReach
    return high, cost_high


def _next_level(low: float, cost_low: float, high: float, cost_high: float, aim: float) -> float:
    """Return the next level to try: by secant where both ends are known and positive, else by scaling."""
    if math.isinf(high):
        steeper = max(math.log(cost_low) - aim, 0.02) if math.isfinite(cost_low) else 1.0
        return low * math.exp(min(steeper, 3.0) * 1.05)
    if not math.isfinite(cost_low):
        gap = aim - math.log(cost_high) if cost_high > 0 else 1.0
        return max(high * math.exp(-min(max(gap, 0.02), 3.0) * 1.05), low)
    if cost_high <= 0:
        return math.sqrt(low * high)
    slope = (math.log(cost_high) - math.log(cost_low)) / math.log(high / low)
    guess = low * math.exp((aim - math.log(cost_low)) / slope)
    margin = (high / low) ** 0.02
    return float(min(max(guess, low * margin), high / margin))
