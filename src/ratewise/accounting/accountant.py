"""From what was released to epsilon and delta, and from a target budget to noise.

`curve` is the whole answer; `epsilon` and `delta` read single points off it. All give upper bounds that hold
for every pair of neighbouring data sets and are tight to about 1e-4. **The list of events must be fixed in
advance**: what a release computes may depend on all earlier outputs, its noise and sampling rate may not.
Events that are chosen by earlier outputs need a privacy filter (`PrivacyFilter`). `calibrate`
and `calibrate_plan` are the inverse: the epsilon of their answers is never above the target, and at least
0.999 of it wherever the target can be met that closely.

The relations between neighbours: ``add_or_remove``, one data set has one row more (the default, and what the
noise of an event is measured against); ``zero_out``, one row is replaced by a blank one that adds nothing to
any release, which has the same curves and holds exactly if the number of rows is public; ``replace_one``, one
row is replaced by any other, so that its part moves by up to 2 in units of an event's noise.

>>> from ratewise.accounting import TrainingEvent, calibrate, epsilon
>>> step = TrainingEvent(0.05, steps=1, gradient_noise=1, histogram_noise=1, histogram="laplace")
>>> round(epsilon(step, delta=1e-5), 3)
1.655
>>> 0.999 <= calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=200).epsilon <= 1.0
True
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize
from scipy.special import log_ndtr, ndtr

from ratewise import _validate
from ratewise.accounting.events import (
    NEIGHBOURS,
    Budget,
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
    as_events,
    join_gaussian_noise,
    to_dp_event,
)
from ratewise.accounting.losses import (
    TOLERANCE,
    AddLoss,
    Array,
    AtomicLoss,
    Composition,
    GaussianCurve,
    Loss,
    Part,
    RemoveLoss,
    ReplaceLoss,
    RowLoss,
)
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

NAME = "ratewise joint privacy loss (pessimistic grid, tilted FFT; formula for Gaussians of all rows)"

_MOST_NOISE = 1e12  # more is counted as this: it is this with further noise added
_LEAST_DELTA = 1e-200  # tails far below have to be numbers still
_ROUGH = 1e-3  # excess allowed where the curve only guides a choice
_SELECTION_TAIL = 1e-18  # delta at which the curve of a selection is cut when it is composed further
RESERVED_SHARE = 0.5  # of the cap's delta: set aside, before the first release, for losses without moments
_TAIL = 1e-9  # of the cap's delta: tails of a plan that are left out of its divergence
_LOWEST_SHARE = 0.125  # smallest order considered, minus one, as a part of the best one for Gaussians
_ORDERS = 13
_LARGEST_EPSILON = 500.0

_TIGHT = 0.9992  # calibration aims a little above the promised 0.999
_LEAST_LEVEL, _MOST_LEVEL = 0.03, 1e9
_MOST_STEPS = 10_000_000  # calibration takes seconds there, and minutes beyond


def epsilon(events: Event | Iterable[Event], delta: float, neighbours: str = "add_or_remove") -> float:
    """Return the smallest known epsilon such that the events together are (epsilon, delta)-private.

    Parameters
    ----------
    events : Event or iterable of Event
        Everything that is released, as a list that was fixed before the first release.
    delta : float
        At least 1e-200.
    neighbours : "add_or_remove", "zero_out" or "replace_one", default "add_or_remove"
        Relation of neighbouring data sets.

    Returns
    -------
    float
        Infinite only if an event is unprotected, or brings as much delta of its own as is asked for; a selection
        beside other events counts as bringing 1e-18.
    """
    return curve(events, neighbours).epsilon(delta)


def delta(events: Event | Iterable[Event], epsilon: float, neighbours: str = "add_or_remove") -> float:
    """Return the smallest known delta such that the events together are (epsilon, delta)-private; see `epsilon`."""
    return curve(events, neighbours).delta(epsilon)


def curve(events: Event | Iterable[Event], neighbours: str = "add_or_remove") -> PrivacyCurve:
    """Return the privacy curve of the events, for several questions about one list; parameters as in `epsilon`."""
    return PrivacyCurve(events, neighbours)


def rdp_epsilon(events: Event | Iterable[Event], delta: float) -> float:
    """Return epsilon by the Renyi accountant of dp-accounting, for adding or removing one unit.

    A second accountant that shares no code with the first. Its bound is looser, by a few percent to a factor of two, so
    `epsilon` must never exceed it. Raises `UnsupportedCombination` as `to_dp_event` does.
    """
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for event in as_events(events):
        accountant.compose(to_dp_event(event))
    return float(accountant.get_epsilon(_validate.inside(delta=delta)))


class PrivacyCurve:
    """Upper bounds on delta for every epsilon, and on epsilon for every delta.

    An answer may be above the exact epsilon by about `tolerance`, relative; larger is quicker.
    """

    def __init__(
        self, events: Event | Iterable[Event], neighbours: str = "add_or_remove", *, tolerance: float = TOLERANCE
    ) -> None:
        self.events = as_events(events)
        self.neighbours = _validate.one_of(NEIGHBOURS, neighbours=neighbours)
        self._tolerance = tolerance
        for event in self.events:
            if isinstance(event, OutsideEvent) and event.neighbours != neighbours:
                raise UnsupportedCombination(
                    f"neighbours is {neighbours!r}, but an outside event states its guarantee for "
                    f"{event.neighbours!r}; account everything under one relation"
                )
        self._threshold_delta = _threshold_delta(self.events)
        self._unprotected = any(isinstance(event, UnprotectedEvent) for event in self.events)
        # the curves whose largest value is the answer
        self._ways: tuple[Composition | GaussianCurve | SelectionCurve, ...] = ()
        if not self._unprotected:
            alone = self._without_composition()
            self._ways = self._compositions() if alone is None else (alone,)

    def renyi(self, orders: npt.ArrayLike, tail: float) -> tuple[Array, float]:
        """Return Renyi divergences of the events at the orders, and the probability they leave out.

        The events are dominated by a pair whose loss L is finite except with probability at most the second
        number, and ``E[exp((order - 1) L); L finite] <= exp((order - 1) * divergence)`` in both directions.
        Tails of probability `tail` in all are left out, as are the deltas of threshold and outside events.
        """
        asked = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        if self._unprotected:
            return np.full(len(asked), math.inf), 0.0
        ways = self._compositions()
        share = tail / max(1, *(way.steps for way in ways))
        found = [way.renyi(asked, share) for way in ways]
        missing = max(infinite for _, infinite in found) + self._threshold_delta
        return np.max([values for values, _ in found], axis=0), min(1.0, missing)

    def epsilon(self, delta: float, enough: float = math.inf) -> float:
        """Return epsilon at a delta; for less work, some number between `enough` and epsilon if that is above it."""
        delta = _validate.inside(delta=delta)
        if delta < _LEAST_DELTA:
            raise InvalidInput(
                f"delta must be at least {_LEAST_DELTA:g}, for a selection times mean_trials, got {delta!r}"
            )
        # With probability x a threshold release shows what only one neighbour has, and d(e) holds otherwise:
        # x + (1 - x) d(e) <= delta.
        if self._threshold_delta > 0:
            delta = (delta - self._threshold_delta) / (1.0 - self._threshold_delta)
        if self._unprotected or delta < _LEAST_DELTA:
            return math.inf
        first, *others = self._ways
        answer = first.epsilon(delta)
        for other in others if answer <= enough else ():
            # nearly always the first direction is the worse one, and one look at the other shows it
            if not (isinstance(other, Composition) and other.holds(answer, delta)):
                answer = max(answer, other.epsilon(delta))
        return answer

    def delta(self, epsilon: float) -> float:
        """Return delta at an epsilon."""
        return float(self.deltas(np.array([_validate.non_negative(epsilon=epsilon)]))[0])

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at every epsilon of an array; neighbouring ones share the work."""
        if self._unprotected:
            return np.ones(len(epsilons))
        found = np.max([way.deltas(epsilons) for way in self._ways], axis=0)
        return np.asarray(self._threshold_delta + (1.0 - self._threshold_delta) * found)

    def _without_composition(self) -> SelectionCurve | GaussianCurve | None:
        """Return the curve of one selection, or of Gaussian releases of all rows (one Gaussian), or None."""
        if len(self.events) == 1 and isinstance(self.events[0], SelectionEvent):
            return _selection_curve(self.events[0], self.neighbours)
        if any(isinstance(event, SelectionEvent | OutsideEvent) for event in self.events):
            return None
        bases = [_base(event) for event in self.events]
        if any(rate != 1 or base.noise is None or base.scale is not None for base, rate, _ in bases):
            return None
        joint = join_gaussian_noise((base.noise or 0.0) / math.sqrt(count) for base, _, count in bases)
        return GaussianCurve(joint / (2.0 if self.neighbours == "replace_one" else 1.0))

    def _compositions(self) -> tuple[Composition, ...]:
        ways = (_replaced,) if self.neighbours == "replace_one" else (RemoveLoss, AddLoss)
        return tuple(Composition(_parts(self.events, self.neighbours, sampled), self._tolerance) for sampled in ways)


def _parts(events: tuple[Event, ...], neighbours: str, sampled: Callable[[RowLoss, float], Loss]) -> tuple[Part, ...]:
    """Return each distinct loss with its number of occurrences; unsampled Gaussians become a single one."""
    counts: dict[Loss, int] = {}
    gaussians: list[float] = []
    parts: list[Part] = []
    for event in events:
        if isinstance(event, SelectionEvent):
            parts.append((_selected_loss(event, neighbours), 1))
        elif isinstance(event, OutsideEvent):
            parts.append((AtomicLoss.outside(event.epsilon, event.delta), 1))
        else:
            base, rate, count = _base(event)
            if rate == 1 and base.noise is not None and base.scale is None:
                gaussians.append(base.noise / math.sqrt(count))
            else:
                key = sampled(base, rate)
                counts[key] = counts.get(key, 0) + count
    if gaussians:
        counts[sampled(RowLoss(join_gaussian_noise(gaussians)), 1.0)] = 1
    return (*parts, *counts.items())


def _threshold_delta(events: tuple[Event, ...]) -> float:
    """Return the chance that any threshold release shows what only one neighbour has, from above."""
    spared = sum(math.log1p(-event.delta) for event in events if isinstance(event, ThresholdEvent))
    return -math.expm1(spared) * (1.0 + 1e-12)


def _base(event: Event) -> tuple[RowLoss, float, int]:
    """Return the unsampled loss of an event, its sampling rate and its number of occurrences."""
    noise, scale, rate, count = None, None, 1.0, 1
    if isinstance(event, TrainingEvent):
        noise, scale, rate, count = (
            *(event.joint_gaussian_noise, event.laplace_scale),
            *(event.sampling_rate, event.steps),
        )
    elif isinstance(event, GaussianEvent):
        noise, count = event.noise, event.count
    elif isinstance(event, ThresholdEvent):
        noise = event.noise
    elif isinstance(event, LaplaceEvent):
        scale, count = event.noise, event.count
    else:
        raise InvalidType(f"events must be of a kind defined in ratewise.accounting, got {event!r}")
    bounded = (None if value is None else min(value, _MOST_NOISE) for value in (noise, scale))
    return RowLoss(*bounded), rate, count


def _replaced(base: RowLoss, rate: float) -> Loss:
    """Return the loss when one row is replaced: its part moves by 2 units instead of 1."""
    if rate == 1:
        noise, scale = (None if value is None else value / 2 for value in (base.noise, base.scale))
        return RemoveLoss(RowLoss(noise, scale), 1.0)
    if base.noise is not None and base.scale is None:
        return ReplaceLoss(base.noise, rate)
    raise UnsupportedCombination(
        "neighbours='replace_one' has no sound bound for a Poisson-sampled release with histogram='laplace'; "
        "use histogram='gaussian', or neighbours='add_or_remove'"
    )


# --- the best of a random number of private candidates ----------------------------------------------------


class SelectionCurve:
    """Upper bound on the curve of a selection (Papernot and Steinke 2022), from those of its candidates.

    Let delta(eps) be the largest of the candidates' curves and R the geometric number of trials. For every
    first >= 0, with c = 2 log(e^first + delta(first) * (E[R] - 1)),

        delta_selected(eps) <= E[R] * delta(eps - c).

    Proof: docs/guarantees.md, section 9. For eps below c the total variation of R trials gives
    delta_selected(eps) <= delta_selected(0) <= E[R] * delta(0).
    """

    def __init__(self, candidates: Iterable[Iterable[Event]], neighbours: str, mean_trials: float) -> None:
        listed = [tuple(events) for events in candidates]
        self._exact = [PrivacyCurve(events, neighbours) for events in listed]
        self._rough = [PrivacyCurve(events, neighbours, tolerance=_ROUGH) for events in listed]
        self.mean_trials = mean_trials

    def epsilon(self, delta: float) -> float:
        """Return an epsilon at which the selection has at most the given delta."""
        inner = max(curve.epsilon(delta / self.mean_trials) for curve in self._exact)
        return inner + self.shift if inner > 0 else 0.0

    def deltas(self, epsilons: Array) -> Array:
        """Return delta of the selection at every epsilon."""
        inner = np.maximum(epsilons - self.shift, 0.0)
        return np.minimum(1.0, self.mean_trials * _largest(self._exact, inner))

    @functools.cached_property
    def shift(self) -> float:
        """The number c, made as small as the free parameter allows; it does not depend on delta."""
        log_odds = math.log(self.mean_trials - 1.0)

        def cost(first: float, curves: list[PrivacyCurve]) -> float:
            found = float(_largest(curves, np.asarray([first]))[0])
            return float(np.logaddexp(first, log_odds + math.log(max(found, 1e-300))))

        # any value is valid, the best one only makes the bound smaller: past log_odds nothing can be won
        best = optimize.minimize_scalar(
            cost,
            args=(self._rough,),
            bounds=(0.0, max(log_odds, 1e-6) + 1.0),
            method="bounded",
            options={"xatol": 1e-4},
        )
        return 2.0 * min(cost(first, self._exact) for first in (0.0, float(best.x)))


def _largest(curves: list[PrivacyCurve], epsilons: Array) -> Array:
    return np.asarray(np.max([curve.deltas(epsilons) for curve in curves], axis=0))


def _selection_curve(event: SelectionEvent, neighbours: str) -> SelectionCurve:
    return SelectionCurve((event.candidate,), neighbours, event.mean_trials)


# A search asks for the same selection several times: in both directions, for its budget and for its ledger.
@functools.lru_cache(maxsize=4)
def _selected_loss(event: SelectionEvent, neighbours: str) -> AtomicLoss:
    """Return a loss whose curve is nowhere below that of a selection, cut where delta is negligible.

    It goes through the selection's curve at knots. Between them it is linear in e^epsilon, never below a
    convex curve through the same points.
    """
    curve = _selection_curve(event, neighbours)
    # a candidate with thresholds has a delta of its own, below which no epsilon is finite
    smallest_delta = max(_SELECTION_TAIL, 1.05 * float(curve.deltas(np.asarray([_LARGEST_EPSILON]))[0]))
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


# --- from a target to noise -------------------------------------------------------------------------------


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

    Parameters
    ----------
    epsilon, delta : float
        The target, which is never exceeded.
    sampling_rate, steps
        Probability of a unit to be in the sample of a step, and number of steps.
    histogram : "gaussian", "laplace" or None, default "gaussian"
        Noise of the prediction counts; None releases gradients only.
    histogram_share : float, default 0.1
        Share s of the budget for the histogram: with a common level z, ``histogram_noise = z / sqrt(s)`` and
        ``gradient_noise = z / sqrt(1 - s)``. For two Gaussians z is the noise of the pair. A Laplace histogram has the
        same split of the leading 1/noise^2 terms, solved on the exact curve.
    neighbours
        As in `epsilon`.
    """
    if _validate.count(steps=steps) > _MOST_STEPS:
        raise InvalidInput(f"steps must be at most {_MOST_STEPS:,}, got {steps:,}")
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

    def spent(scale: float, tolerance: float, enough: float) -> float:
        return PrivacyCurve(build(scale), neighbours, tolerance=tolerance).epsilon(delta, enough)

    own = sum(event.delta for event in as_events(build(1.0)) if isinstance(event, ThresholdEvent))
    if own >= delta:
        raise InvalidInput(f"delta is {delta:g}, but threshold releases alone have {own:g}; raise it")
    guess = _first_guess(build, target, delta - own)
    scale, _ = _least_level(lambda scale: spent(scale, _ROUGH, 0.0), target, guess)
    scale, found = _least_level(lambda scale: spent(scale, TOLERANCE, target), target, scale)
    return PlanCalibration(scale, as_events(build(scale)), found, delta)


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


def _first_guess(build: Callable[[float], Iterable[Event]], target: float, delta: float) -> float:
    """Return a starting scale by the central limit theorem: a Gaussian with the summed variance."""
    shift = math.sqrt(2 * (target + math.log(1 / delta))) - math.sqrt(2 * math.log(1 / delta))
    low, high = 10 * _LEAST_LEVEL, _MOST_LEVEL / 10
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sum(map(_variance, as_events(build(middle)))) > shift**2 else (low, middle)
    return high


def _variance(event: Event) -> float:
    """Return about the variance of an event's privacy loss."""
    if isinstance(event, SelectionEvent | OutsideEvent | UnprotectedEvent):
        return 0.0
    base, rate, count = _base(event)
    inverse = sum(noise**-2 for noise in (base.noise, base.scale) if noise is not None)
    return count * rate**2 * (inverse if rate == 1 else math.expm1(min(inverse, 700.0)))


def _least_level(spent: Callable[[float], float], target: float, level: float) -> tuple[float, float]:
    """Return (level, epsilon) with epsilon in [_TIGHT * target, target]; `spent` falls as the level grows.

    A secant in logarithms, kept inside a bracket whose upper end is always safe. If even the least level is
    within the target, that level is the answer.
    """
    low, high = _LEAST_LEVEL, math.inf
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
        if high <= _LEAST_LEVEL * (1 + 1e-9) or high / low < 1 + 1e-13:
            break
        level = _next_level(low, cost_low, high, cost_high, aim)
        if level > _MOST_LEVEL:
            break
    if math.isinf(high):
        raise InvalidInput(
            f"epsilon is {target:g}, out of reach with noise up to {_MOST_LEVEL:g}; "
            "take fewer steps, a smaller sampling rate, or a larger epsilon or delta"
        )
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


# ------------------------------------------------------------------------------- the filter


@dataclass(frozen=True)
class PrivacyFilter:
    """A cap that holds although each plan is chosen after the outputs of all earlier ones.

    Exact composition needs a list of events that is fixed in advance. If the next plan may depend on earlier outputs,
    "admit what keeps the composed epsilon within the cap" is not private (`docs/ledger.md` has an attack).

    The filter fixes a Renyi order a > 1 before the first release. A plan is described by a pair of numbers:

        rho     with  E[exp((a - 1) L); L finite] <= exp((a - 1) rho)    for its privacy loss L, both directions
        delta   with  P(L infinite) <= delta                             (threshold releases, cut tails)

    and it is admitted if the sum of all rho stays within R and the sum of all delta within D, where

        D = cap.delta / 2      R = cap.epsilon + log(a (cap.delta - D)) / (a - 1) - log(1 - 1/a).

    *Everything that is ever admitted is, together, (cap.epsilon, cap.delta)-differentially private*: section 3.6
    of ``docs/guarantees.md``, after Feldman and Zrnic (2021) and Whitehouse, Ramdas, Rogers and Wu (2023).
    """

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
        return by_filter / single_release_noise(self.cap.epsilon, self.cap.delta)


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
    noise = single_release_noise(cap.epsilon, cap.delta)
    centre = math.log(math.sqrt(2 * math.log(1 / cap.delta)) * noise)

    def loss(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return -_divergence_budget(cap, order) / order

    found = optimize.minimize_scalar(loss, bounds=(centre - 3.0, centre + 3.0), method="bounded")
    return 1.0 + math.exp(float(found.x))


@functools.lru_cache(maxsize=64)
def single_release_noise(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one Gaussian release that spends (epsilon, delta)."""

    def excess(noise: float) -> float:
        a, b = 0.5 / noise - epsilon * noise, -0.5 / noise - epsilon * noise
        return float(ndtr(a) - math.exp(epsilon + float(log_ndtr(b)))) - delta

    low, high = 1e-3, 1.0
    while excess(high) > 0:
        low, high = high, 2.0 * high
    while excess(low) < 0:
        low, high = low / 2.0, low
    return float(optimize.brentq(excess, low, high))


def _divergence_budget(cap: Budget, order: float) -> float:
    left = math.log(cap.delta * (1.0 - RESERVED_SHARE))
    return cap.epsilon + (left + math.log(order)) / (order - 1.0) - math.log1p(-1.0 / order)
