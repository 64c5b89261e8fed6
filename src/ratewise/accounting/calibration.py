"""From a target budget to noise, steps or a sampling rate.

Every answer is re-checked with the accountant: its epsilon is never above the target, and at least 0.999
of it wherever the target can be met that closely (steps are whole numbers, a rate ends at 1).

>>> found = calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=200)
>>> 0.999 <= found.epsilon <= 1.0
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ratewise import _validate
from ratewise.accounting.accountant import PrivacyCurve
from ratewise.accounting.accountant import epsilon as _epsilon_of
from ratewise.accounting.composition import TOLERANCE
from ratewise.accounting.events import Event, TrainingEvent
from ratewise.exceptions import InvalidInput

_TIGHT = 0.9992  # aim a little above the promised 0.999
_ROUGH = 1e-3  # excess allowed while the answer is only being approached
_LEAST_NOISE, _MOST_NOISE = 0.03, 1e9
_MOST_STEPS = 10**8
_MOST_PLANNED = 10_000_000  # answers take seconds there, and minutes beyond


@dataclass(frozen=True)
class Calibration:
    """Noise that meets a target, and what it really costs.

    Attributes
    ----------
    gradient_noise : float
        Standard deviation over clipping norm.
    histogram_noise : float or None
        Standard deviation ("gaussian") or scale ("laplace"), None without a histogram.
    epsilon, delta : float
        What the accountant says of the answer; epsilon is never above the target.
    event : TrainingEvent
        The phase with this noise.
    neighbours : str
    """

    gradient_noise: float
    histogram_noise: float | None
    epsilon: float
    delta: float
    event: TrainingEvent
    neighbours: str = "add_or_remove"


def calibrate(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    histogram: str | None = "gaussian",
    histogram_share: float = 0.1,
    neighbours: str = "add_or_remove",
    besides: Iterable[Event] = (),
) -> Calibration:
    """Return the least noise with which a training phase stays within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The target.
    sampling_rate : float in (0, 1]
    steps : int
    histogram : "gaussian", "laplace" or None
    histogram_share : float in (0, 1)
        Share s of the budget for the histogram. With a common level z, ``histogram_noise = z / sqrt(s)`` and
        ``gradient_noise = z / sqrt(1 - s)``: for two Gaussians z is the noise of the pair, for a Laplace
        histogram the same split of the leading 1/noise^2 terms, solved on the exact curve.
    neighbours : "add_or_remove", "replace_one" or "zero_out"
    besides : iterable of Event
        Other releases that the same target has to cover; `epsilon` of the answer includes them.
    """
    target = _validate.positive(epsilon=epsilon)
    delta = _validate.inside(delta=delta)
    _refuse_too_many(steps)
    histogram = _validate.one_of(("gaussian", "laplace", None), histogram=histogram)
    share = (
        0.0
        if histogram is None
        else _validate.inside(histogram_share=histogram_share, hint="histogram=None trains without one")
    )

    def phase(level: float) -> TrainingEvent:
        side = None if histogram is None else level / math.sqrt(share)
        return TrainingEvent(
            sampling_rate, steps, level / math.sqrt(1 - share), side, histogram or "gaussian"
        )

    others = tuple(besides)
    if others and _epsilon_of(others, delta, neighbours) >= target:
        raise InvalidInput(f"epsilon is {target:g}, which the other releases spend already; raise it")

    def spent(level: float) -> float:
        return PrivacyCurve([phase(level), *others], neighbours).epsilon_or_enough(delta, target)

    def roughly(level: float) -> float:
        curve = PrivacyCurve([phase(level), *others], neighbours, tolerance=_ROUGH)
        return curve.epsilon_or_enough(delta, 0.0)

    guess = _first_guess(phase(1.0), target, delta)
    try:
        guess, _ = _least_level(roughly, target, guess, least=_LEAST_NOISE, most=_MOST_NOISE)
        level, found = _least_level(spent, target, guess, least=_LEAST_NOISE, most=_MOST_NOISE)
    except _OutOfReach:
        raise InvalidInput(
            f"epsilon is {target:g}, out of reach with noise up to {_MOST_NOISE:g}; "
            "take fewer steps, a smaller sampling rate, or a larger epsilon or delta"
        ) from None
    event = phase(level)
    return Calibration(
        float(event.gradient_noise or 0.0), event.histogram_noise, found, delta, event, neighbours
    )


def calibrate_steps(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    gradient_noise: float | None,
    histogram_noise: float | None = None,
    histogram: str | None = "gaussian",
    neighbours: str = "add_or_remove",
) -> int:
    """Return the largest number of steps that stays within (epsilon, delta) at the given noise."""
    target = _validate.positive(epsilon=epsilon)
    delta = _validate.inside(delta=delta)
    step = TrainingEvent(sampling_rate, 1, gradient_noise, histogram_noise, histogram)

    def spent(steps: int, tolerance: float = TOLERANCE) -> float:
        return PrivacyCurve([step.with_steps(steps)], neighbours, tolerance=tolerance).epsilon(delta)

    if spent(1) > target:
        raise InvalidInput(
            f"epsilon is {target:g}, but a single step with this noise already costs {spent(1):.4g}; "
            "raise the noise or lower the sampling rate"
        )
    near, far = 1, 8
    while spent(far, _ROUGH) <= target:
        near, far = far, 8 * far
        if far > _MOST_STEPS:
            raise InvalidInput(
                f"epsilon is {target:g}, not reached in {near} steps with this noise; lower the noise"
            )
    near, _ = _bracket(lambda n: spent(n, _ROUGH) <= target, near, far)
    # the rough answer is a little low; the exact one lies close above it
    low, high = near, near + max(1, near // 256)
    while spent(high) <= target:
        low, high = high, high + max(1, high // 64)
    return _bracket(lambda n: spent(n) <= target, low, high)[0]


def _refuse_too_many(steps: Any) -> None:
    if _validate.count(steps=steps) > _MOST_PLANNED:
        raise InvalidInput(f"steps must be at most {_MOST_PLANNED:,}, got {steps:,}")


def _bracket(fits: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Return neighbouring whole numbers of which the first fits and the second does not, by bisection.

    `low` fits and `high` does not; far apart they are halved by ratio, then by difference.
    """
    while high - low > 1:
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def calibrate_sampling_rate(
    epsilon: float,
    delta: float,
    steps: int,
    gradient_noise: float | None,
    histogram_noise: float | None = None,
    histogram: str | None = "gaussian",
    neighbours: str = "add_or_remove",
) -> float:
    """Return the largest sampling rate that stays within (epsilon, delta) at the given noise."""
    target = _validate.positive(epsilon=epsilon)
    delta = _validate.inside(delta=delta)
    _refuse_too_many(steps)
    full = TrainingEvent(1.0, steps, gradient_noise, histogram_noise, histogram)

    def spent(rate: float) -> float:
        return _epsilon_of(replace(full, sampling_rate=rate), delta, neighbours)

    if spent(1.0) <= target:
        return 1.0
    try:
        # epsilon falls as 1/rate grows, just as it falls with the noise
        inverse, _ = _least_level(lambda level: spent(1.0 / level), target, 100.0, least=1.0, most=1e12)
    except _OutOfReach:
        raise InvalidInput(
            f"epsilon is {target:g}, out of reach at any sampling rate for {full.steps} steps; "
            "raise the noise or take fewer steps"
        ) from None
    return 1.0 / inverse


class _OutOfReach(Exception):  # noqa: N818 - reads as what happened
    """No level up to the largest meets the target."""


def _first_guess(unit: TrainingEvent, target: float, delta: float) -> float:
    """Return a starting level from the central limit theorem: a Gaussian with the steps' summed variance."""
    shift = math.sqrt(2 * (target + math.log(1 / delta))) - math.sqrt(2 * math.log(1 / delta))
    variance = (
        shift * shift / (unit.steps * unit.sampling_rate**2)
    )  # of one step, in units of the rate: e^(z^-2) - 1
    level = 1 / math.sqrt(math.log1p(variance)) if variance > 0 else math.inf
    return min(max(level, 10 * _LEAST_NOISE), _MOST_NOISE / 10)


def _least_level(
    spent: Callable[[float], float], target: float, guess: float, *, least: float, most: float
) -> tuple[float, float]:
    """Return (level, epsilon) with epsilon in [_TIGHT * target, target]; `spent` falls as the level grows.

    A secant in logarithms, kept inside a bracket whose upper end is always safe. If even the least level is
    within the target, that level is the answer.
    """
    low, high = least, math.inf
    cost_low = cost_high = math.nan
    level = guess
    aim = math.log(target * (1 + _TIGHT) / 2)
    for _ in range(200):
        cost = spent(level)
        if _TIGHT * target <= cost <= target:
            return level, cost
        if cost > target:
            low, cost_low = level, cost
        else:
            high, cost_high = level, cost
        if high <= least * (1 + 1e-9) or high / low < 1 + 1e-13:
            break
        level = _next_level(low, cost_low, high, cost_high, aim)
        if level > most:
            raise _OutOfReach
    if math.isinf(high):
        raise _OutOfReach
    return high, cost_high


def _next_level(low: float, cost_low: float, high: float, cost_high: float, aim: float) -> float:
    """Return the next level to try: by secant where both ends are known and positive, else by scaling."""
    if math.isinf(high):
        steeper = max(math.log(cost_low) - aim, 0.02) if math.isfinite(cost_low) else 1.0
        return low * math.exp(min(steeper, 3.0) * 1.05)
    if math.isnan(cost_low) or not math.isfinite(cost_low):
        gap = aim - math.log(cost_high) if cost_high > 0 else 1.0
        return max(high * math.exp(-min(max(gap, 0.02), 3.0) * 1.05), low)
    if cost_high <= 0:
        return math.sqrt(low * high)
    slope = (math.log(cost_high) - math.log(cost_low)) / math.log(high / low)
    guess = low * math.exp((aim - math.log(cost_low)) / slope)
    margin = (high / low) ** 0.02
    return float(min(max(guess, low * margin), high / margin))
