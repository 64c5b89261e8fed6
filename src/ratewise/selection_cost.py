"""What a private selection costs as a whole, and the budget of a trial that makes it cost what was asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ratewise.accounting import PrivacyCurve, epsilon
from ratewise.accounting.events import Event, OutsideEvent, SelectionEvent
from ratewise.accounting.losses import Array
from ratewise.accounting.selection import SelectionCurve
from ratewise.exceptions import InvalidInput

Candidate = tuple[Event, ...]

_TIGHT = 0.992
_ROUNDS = 40
_ROUGH = 1e-3  # excess of a curve that only guides a choice


def selection_cost(
    candidates: Sequence[Candidate], mean_trials: float, shape: float, delta: float, neighbours: str
) -> tuple[Event, float]:
    """Return the event of the whole selection, for a ledger, and its epsilon at `delta`.

    Parameters
    ----------
    candidates : sequence of tuples of events
        What a trial releases, its score included, for every configuration it may draw.
    mean_trials, shape, delta, neighbours
        As in `ratewise.accounting.SelectionEvent`.

    Notes
    -----
    A trial draws its configuration without a look at the data and tells which it was: its curve is the mean
    of the configurations' curves, hence at most their largest. If all release alike, the event is a
    `SelectionEvent`; otherwise the bound for the largest curve is booked as an `OutsideEvent`.
    """
    distinct = tuple(dict.fromkeys(candidates))
    if len(distinct) == 1:
        event: Event = SelectionEvent(distinct[0], mean_trials, shape)
        return event, epsilon(event, delta, neighbours)
    curves = [PrivacyCurve(candidate, neighbours) for candidate in distinct]
    rough = [PrivacyCurve(candidate, neighbours, tolerance=_ROUGH) for candidate in distinct]

    def deltas(of: list[PrivacyCurve], epsilons: Array) -> Array:
        return np.asarray(np.max([curve.delta(epsilons) for curve in of], axis=0))

    def largest(share: float) -> float:
        return max(curve.epsilon(share) for curve in curves)

    stated = 0.999 * delta  # a ledger asked at `delta` needs a little more than what the event brings
    bound = SelectionCurve(
        partial(deltas, curves), largest, partial(deltas, rough), mean_trials, shape
    ).epsilon(stated)
    words = f"the best of a random number of trials, {mean_trials:g} on average, of unlike configurations"
    event = OutsideEvent(bound, stated, neighbours, words)
    return event, epsilon(event, delta, neighbours)


def affordable_trial(
    cost: Callable[[float], tuple[Event, float]], target: float, guess: float
) -> tuple[float, Event]:
    """Return the largest epsilon of one trial at which the selection stays within `target`, and its event.

    `cost` gives event and total for an epsilon of one trial, and grows with it. The answer's total is within
    [0.99, 1] times the target.
    """
    low, high = 0.0, math.inf
    trial = guess
    for _ in range(_ROUNDS):
        event, total = cost(trial)
        if _TIGHT * target <= total <= target:
            return trial, event
        low, high = (trial, high) if total <= target else (low, trial)
        step = trial * (0.5 * (1 + _TIGHT) * target / total if math.isfinite(total) else 0.25)
        trial = step if low < step < high else 0.5 * (low + min(high, 4 * low + guess))
    raise InvalidInput(
        f"epsilon is {target:g}, too small for a selection of this many trials; raise it, or lower "
        "mean_trials"
    )
