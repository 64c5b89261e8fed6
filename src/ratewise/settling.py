"""Whether rates came to rest: a mean of many iterates predicts as often as they did only if they agree.

Limits far from what rows suggest, such as many positive predictions of a rare class, can throw predictions of
all rows from one class to the other and back, until the end. The mean of such rates may be right where the
rate of the mean model is not, so that they are no evidence of it. Released values in, no privacy spent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ratewise.counts import noise_as_read

if TYPE_CHECKING:
    from ratewise.multipliers import Constraints
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]

_CHANCE = 0.25  # largest variance of a yes or no
_BEYOND_NOISE = 1.5  # a spread this many times that of the noise is no chance, of ten readings or more
_FEWEST = 10


class Settling:
    """How far the readings of each limit spread over the second half of a run.

    Parameters
    ----------
    constraints : CompiledConstraints
    plan : Plan
    """

    STATE = ("total", "squares", "seen")

    def __init__(self, constraints: Constraints, plan: Plan) -> None:
        self._constraints = constraints
        self._from = 0.5 * plan.steps
        self._interval = plan.dual.interval
        self._noise = noise_as_read(plan, constraints.n_classes) / math.sqrt(self._interval)
        self.total: Floats = np.zeros(len(constraints))
        self.squares: Floats = np.zeros(len(constraints))
        self.seen = 0

    def add(self, values: Floats, step: int) -> None:
        """Take in left-hand sides as read off the histograms of an update."""
        if step > self._from:
            self.total += values
            self.squares += values * values
            self.seen += 1

    def swing(self, histogram: Floats, totals: Floats, floor: float) -> Floats:
        """Return the standard deviation of each limit's readings that noise does not explain, or 0.

        Parameters
        ----------
        histogram, totals, floor
            Mean released histogram, rows of each cell in a batch and smallest denominator, for the noise.
        """
        if self.seen < _FEWEST:
            return np.zeros(len(self._constraints))
        mean = self.total / self.seen
        variance = self.squares / self.seen - mean * mean
        noise = self._constraints.value_noise(
            histogram, totals, self._noise, floor=floor, chance=_CHANCE / self._interval
        )
        clear = variance > np.square(_BEYOND_NOISE * noise)
        return np.sqrt(np.where(clear, variance - np.square(noise), 0.0))
