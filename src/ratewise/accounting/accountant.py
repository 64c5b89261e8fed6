"""From what was released to epsilon and delta.

`curve` is the whole answer; `epsilon` and `delta` read single points off it. All give upper bounds that hold
for every pair of neighbouring data sets and are tight to about 1e-4. **The list of events must be fixed in
advance**: what a release computes may depend on all earlier outputs, its noise and sampling rate may not.
Events that are chosen by earlier outputs need a privacy filter (`ratewise.accounting.filter`).

The relations between neighbours: ``add_or_remove``, one data set has one row more (the default, and what the
noise of an event is measured against); ``zero_out``, one row is replaced by a blank one that adds nothing to
any release, which has the same curves and holds exactly if the number of rows is public; ``replace_one``, one
row is replaced by any other, so that its part moves by up to 2 in units of an event's noise.

>>> from ratewise.accounting import TrainingEvent, epsilon
>>> step = TrainingEvent(0.05, steps=1, gradient_noise=1, histogram_noise=1, histogram="laplace")
>>> round(epsilon(step, delta=1e-5), 3)
1.655
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.accounting.events import (
    NEIGHBOURS,
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
from ratewise.accounting.selection import SelectionCurve, selected_loss
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

NAME = "ratewise joint privacy loss (pessimistic grid, tilted FFT; formula for Gaussians of all rows)"

_MOST_NOISE = 1e12  # more is counted as this: it is this with further noise added
_LEAST_DELTA = 1e-200  # tails far below have to be numbers still
_ROUGH = 1e-3  # excess allowed where the curve only guides a choice
_SELECTION_TAIL = 1e-18  # delta at which the curve of a selection is cut when it is composed further

Sampled = Callable[[RowLoss, float], Loss]


def epsilon(events: Event | Iterable[Event], delta: float, neighbours: str = "add_or_remove") -> float:
    """Return the smallest known epsilon such that the events together are (epsilon, delta)-private.

    Infinite only if an event is unprotected, or brings as much delta of its own as is asked for; a selection
    beside other events counts as bringing 1e-18. A delta below 1e-200 is refused.
    """
    return curve(events, neighbours).epsilon(_validate.inside(delta=delta))


def delta(events: Event | Iterable[Event], epsilon: float, neighbours: str = "add_or_remove") -> float:
    """Return the smallest known delta such that the events together are (epsilon, delta)-private."""
    return curve(events, neighbours).delta(_validate.non_negative(epsilon=epsilon))


def curve(events: Event | Iterable[Event], neighbours: str = "add_or_remove") -> PrivacyCurve:
    """Return the whole privacy curve of the events."""
    return PrivacyCurve(events, neighbours)


class PrivacyCurve:
    """Upper bounds on delta for every epsilon, and on epsilon for every delta.

    An answer may be above the exact epsilon by about `tolerance`, relative; larger is quicker.
    """

    def __init__(
        self,
        events: Event | Iterable[Event],
        neighbours: str = "add_or_remove",
        *,
        tolerance: float = TOLERANCE,
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
        self._unprotected = any(isinstance(event, UnprotectedEvent) for event in self.events)
        self._threshold_delta = _threshold_delta(self.events)
        self._alone = self._without_composition()
        self._directions: tuple[Composition, ...] = ()
        if not self._unprotected and self._alone is None:
            self._directions = self._compositions()

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: npt.ArrayLike) -> Array: ...
    def epsilon(self, delta: Any) -> Any:
        """Return epsilon for one delta or an array of them."""
        return _elementwise(lambda deltas: [self.epsilon_or_enough(float(d)) for d in deltas], delta=delta)

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: npt.ArrayLike) -> Array: ...
    def delta(self, epsilon: Any) -> Any:
        """Return delta for one epsilon or an array of them."""
        return _elementwise(self.deltas, epsilon=epsilon)

    def renyi(self, orders: npt.ArrayLike, tail: float) -> tuple[Array, float]:
        """Return Renyi divergences of the events at the orders, and the probability they leave out.

        The events are dominated by a pair whose loss L is finite except with probability at most the second
        number, and ``E[exp((order - 1) L); L finite] <= exp((order - 1) * divergence)`` in both directions.
        Tails of probability `tail` in all are left out, as are the deltas of threshold and outside events.
        """
        asked = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        if self._unprotected:
            return np.full(len(asked), math.inf), 0.0
        ways = self._directions or self._compositions()
        share = tail / max(1, *(way.steps for way in ways))
        found = [way.renyi(asked, share) for way in ways]
        missing = max(infinite for _, infinite in found) + self._threshold_delta
        return np.max([values for values, _ in found], axis=0), min(1.0, missing)

    def epsilon_or_enough(self, delta: float, enough: float = math.inf) -> float:
        """Return epsilon or, for less work, some number between `enough` and epsilon if that is above it.

        For searches: an answer of at most `enough` is what `epsilon` says.
        """
        _validate.inside(delta=delta)
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
        if self._alone is not None:
            return self._alone.epsilon(delta)
        first, *others = self._directions
        answer = first.epsilon(delta)
        for other in others if answer <= enough else ():
            # nearly always the first direction is the worse one, and one look at the other shows it
            if not other.holds(answer, delta):
                answer = max(answer, other.epsilon(delta))
        return answer

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at every one of a list of epsilons."""
        for value in epsilons:
            _validate.non_negative(epsilon=float(value))
        if self._unprotected:
            return np.ones(len(epsilons))
        ways = self._directions if self._alone is None else (self._alone,)
        found = np.max([way.deltas(epsilons) for way in ways], axis=0)
        return np.asarray(self._threshold_delta + (1.0 - self._threshold_delta) * found)

    def _without_composition(self) -> SelectionCurve | GaussianCurve | None:
        """Return the curve of one selection, or of Gaussian releases of all rows (one Gaussian), or None."""
        if len(self.events) == 1 and isinstance(self.events[0], SelectionEvent):
            return _selection_curve(self.events[0], self.neighbours)
        noises = []
        for event in self.events:
            if not isinstance(event, GaussianEvent | ThresholdEvent | TrainingEvent):
                return None
            base, rate, count = _base(event)
            if rate != 1 or base.noise is None or base.scale is not None:
                return None
            noises.append(base.noise / math.sqrt(count))
        return GaussianCurve(join_gaussian_noise(noises) / (2.0 if self.neighbours == "replace_one" else 1.0))

    def _compositions(self) -> tuple[Composition, ...]:
        ways = (_replaced,) if self.neighbours == "replace_one" else (RemoveLoss, AddLoss)
        return tuple(
            Composition(_parts(self.events, self.neighbours, sampled), self._tolerance) for sampled in ways
        )


def _parts(events: tuple[Event, ...], neighbours: str, sampled: Sampled) -> tuple[Part, ...]:
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
    if isinstance(event, TrainingEvent):
        found = (event.joint_gaussian_noise, event.laplace_scale)
        noise, scale = (None if value is None else min(value, _MOST_NOISE) for value in found)
        return RowLoss(noise, scale), event.sampling_rate, event.steps
    if isinstance(event, GaussianEvent):
        return RowLoss(min(event.noise, _MOST_NOISE)), 1.0, event.count
    if isinstance(event, ThresholdEvent):
        return RowLoss(min(event.noise, _MOST_NOISE)), 1.0, 1
    if isinstance(event, LaplaceEvent):
        return RowLoss(scale=min(event.noise, _MOST_NOISE)), 1.0, event.count
    raise InvalidType(f"events must be of a kind defined in ratewise.accounting, got {event!r}")


def _replaced(base: RowLoss, rate: float) -> Loss:
    """Return the loss when one row is replaced: its part moves by 2 units instead of 1."""
    if base.noise is not None and base.scale is None:
        return ReplaceLoss(base.noise, rate)
    if rate == 1:
        noise, scale = (None if value is None else value / 2 for value in (base.noise, base.scale))
        return RemoveLoss(RowLoss(noise, scale), 1.0)
    raise UnsupportedCombination(
        "neighbours='replace_one' has no sound bound for a Poisson-sampled release with histogram='laplace'; "
        "use histogram='gaussian', or neighbours='add_or_remove'"
    )


# A search asks for the same selection several times: in both directions, for its budget and for its ledger.
@functools.lru_cache(maxsize=4)
def _selected_loss(event: SelectionEvent, neighbours: str) -> AtomicLoss:
    return selected_loss(_selection_curve(event, neighbours), _SELECTION_TAIL)


def _selection_curve(event: SelectionEvent, neighbours: str) -> SelectionCurve:
    exact = PrivacyCurve(event.candidate, neighbours)
    rough = PrivacyCurve(event.candidate, neighbours, tolerance=_ROUGH)
    return SelectionCurve(exact.deltas, exact.epsilon_or_enough, rough.deltas, event.mean_trials, event.shape)


def _elementwise(function: Callable[[Array], Any], **argument: Any) -> Any:
    """Apply a function of a list of numbers to a number or to an array of any shape."""
    ((name, values),) = argument.items()
    if isinstance(values, (str, bytes, bool)) or values is None:
        raise InvalidType(f"{name} must be a number or an array of numbers, got {values!r}")
    try:
        asked = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a number or an array of numbers, got {values!r}") from None
    answers = np.asarray(function(asked.ravel()), dtype=np.float64).reshape(asked.shape)
    return answers if asked.ndim else float(answers)
