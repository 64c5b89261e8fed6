"""Lower bounds on epsilon from the results of guessing games.

They hold with probability at least `confidence` over the games, whatever the mechanism and the adversary do, if
how to guess was fixed without looking at the games that are counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from ratewise import _validate
from ratewise.exceptions import InvalidInput
from ratewise.metrics.intervals import share_interval

Floats = npt.NDArray[np.float64]


def many_runs_bound(
    hits_in: int, games_in: int, hits_out: int, games_out: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the lower bound on epsilon from games in which the row was in, and games in which it was not.

    A hit is a game that the adversary guessed "in". If the mechanism is (epsilon, delta)-private, then
    ``P(hit | in) <= exp(epsilon) P(hit | out) + delta``, and the same of guesses "out" with the roles
    exchanged. Both use the same two bounds on proportions, so nothing more has to be corrected.

    >>> round(many_runs_bound(900, 1000, 100, 1000, delta=1e-5), 4)
    1.9897
    """
    power, alarms = _error_bounds(hits_in, games_in, hits_out, games_out, delta, confidence)
    found = 0.0
    if power > delta and alarms > 0:
        found = max(found, math.log((power - delta) / alarms))
    if 1.0 - alarms > delta and power < 1:
        found = max(found, math.log((1.0 - alarms - delta) / (1.0 - power)))
    return found


def one_run_bound(canaries: int, guesses: int, correct: int, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return the lower bound on epsilon from one training with many canaries (Steinke, Nasr, Jagielski 2023).

    Each of `canaries` rows was in with probability 1/2, independently; the adversary guessed `guesses` of
    them (a number fixed beforehand) and abstained from the rest; `correct` guesses were right.

    >>> round(one_run_bound(1000, 100, 75, delta=1e-4), 3)
    0.673
    >>> round(one_run_bound(100_000, 1510, 1439, delta=1e-5), 3)
    2.676
    """
    alpha = 1.0 - _validate.inside(confidence=confidence)
    _check_delta(delta)
    _check_hits(correct=correct, guesses=guesses)
    if guesses > canaries:
        raise InvalidInput(f"guesses must be at most canaries ({canaries}), got {guesses}")
    if _one_run_p_value(canaries, guesses, correct, 0.0, delta) >= alpha:
        return 0.0
    low, high = 0.0, 1024.0
    for _ in range(70):
        middle = (low + high) / 2.0
        rejected = _one_run_p_value(canaries, guesses, correct, middle, delta) < alpha
        low, high = (middle, high) if rejected else (low, middle)
    return low


def _one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the chance that an (epsilon, delta)-private training lets at least so many guesses be right."""
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    plain = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0 or correct == 0:
        return plain
    back = np.arange(1, correct + 1)
    between: Floats = binom.cdf(correct - 1, guesses, chance) - binom.cdf(correct - back - 1, guesses, chance)
    return plain + 2.0 * canaries * delta * float(np.max(between / back))


def _error_bounds(
    hits_in: int, games_in: int, hits_out: int, games_out: int, delta: float, confidence: float
) -> tuple[float, float]:
    """Return a lower bound on the probability of a hit with the row, and an upper bound without it."""
    _validate.inside(confidence=confidence)
    _check_delta(delta)
    _check_hits(hits_in=hits_in, games_in=games_in)
    _check_hits(hits_out=hits_out, games_out=games_out)
    lower, _ = share_interval(hits_in, games_in, confidence)
    _, upper = share_interval(hits_out, games_out, confidence)
    return float(lower), float(upper)


def _check_delta(delta: float) -> None:
    if _validate.non_negative(delta=delta) >= 1:
        raise InvalidInput(f"delta must be below 1, got {delta!r}")


def _check_hits(**arguments: Any) -> None:
    (name, hits), (total_name, total) = arguments.items()
    if _validate.count(at_least=0, **{name: hits}) > _validate.count(**{total_name: total}):
        raise InvalidInput(f"{name} must be at most {total_name} ({total}), got {hits}")
