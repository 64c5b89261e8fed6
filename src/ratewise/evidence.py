"""How far errors read off noisy histograms are to be believed: one factor per constraint, at every update.

A single noisy reading of a limit on few rows says next to nothing, but many that agree do. So an error counts
for less the noisier it is, and a limit whose running mean stays clearly on one side is believed more and
more, as long as its noise over the whole training would let it be enforced at all. Limits that could not be
enforced anyway, and those that are clearly kept, are left alone, so that they do not stir the others.

Released values in, post-processing throughout: no privacy is spent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ratewise.enforceability import hopeless

if TYPE_CHECKING:
    from ratewise.multipliers import Constraints
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]

_CHANCE = 0.25  # largest variance of a yes or no
_CLEAR = 2.0  # standard deviations of a running mean that cannot be chance
_GROWTH, _DECAY = 1.15, 0.95  # of the belief in an error, per step, while it is clear and while it is not
_WIDEST = 1.0  # errors noisier than this are not believed in full, whatever the evidence


class Evidence:
    """Factors between 0 and 1 by which errors count.

    An error of standard deviation s counts by ``1 / (1 + (s / tolerance)^2)``. If it has been clear for a
    while, and is not clearly below zero now, it counts by up to ``1 / (1 + s^2)``. `DualControl.patience` is
    the number of steps that the running mean of an error goes back; 0 leaves it at the first factor.

    Parameters
    ----------
    constraints : CompiledConstraints
    plan : Plan
        Its `dual` has the tolerance and the patience.
    """

    STATE = ("believed", "level", "boost", "deviation", "able")

    def __init__(self, constraints: Constraints, plan: Plan) -> None:
        self._constraints = constraints
        self._plan = plan
        self._noise = plan.histogram_mechanism.standard_deviation
        self._tolerance = plan.dual.noise_tolerance or math.inf
        self._patience = plan.dual.patience
        self.believed: Floats | None = None
        self.deviation: Floats = np.zeros(len(constraints))
        self.able: npt.NDArray[np.bool_] = np.zeros(len(constraints), dtype=np.bool_)
        self.level: Floats = np.zeros(len(constraints))
        self.boost: Floats = np.ones(len(constraints))

    def look(self, histogram: Floats, mean: Floats, totals: Floats, floor: float, steps: int) -> None:
        """Judge anew how noisy an error of `steps` steps is, and which limits can be enforced at all."""
        self.deviation = self._constraints.value_noise(
            histogram, totals, self._noise / math.sqrt(steps), floor=floor, chance=_CHANCE / steps
        )
        self.believed = 1.0 / (1.0 + np.square(self.deviation / self._tolerance))
        noisy = self.deviation > self._tolerance
        self.able = noisy & ~hopeless(self._constraints, mean, totals, self._plan)

    @property
    def gathers(self) -> bool:
        """Whether errors have to be gathered, because some could come to be believed more."""
        return self._patience > 0 and bool(self.able.any())

    def factors(self, errors: Floats | None, updates: int, steps: int) -> Floats:
        """Return how far each error counts.

        Parameters
        ----------
        errors : (J,) array or None
            Errors of rates as read, outside of [0, 1] too, so that their mean is right. None if nothing
            `gathers`.
        updates : int
            How many updates came before.
        steps : int
            Steps that this update stands for.
        """
        believed = self.believed
        if believed is None:
            raise RuntimeError("factors() needs a look() first")
        if errors is None:
            return believed
        length = min(max(1.0, self._patience / steps), updates + 1.0)
        before = np.sign(self.level)
        self.level = self.level + (errors - self.level) / length
        clear = np.abs(self.level) > _CLEAR * self.deviation / math.sqrt(2.0 * length - 1.0)
        if 2 * (updates + 1) * steps < self._patience:
            clear[:] = False  # too early to say
        boost = self.boost * np.where(clear, _GROWTH**steps, _DECAY**steps)
        boost = np.where(np.sign(self.level) == before, boost, np.sqrt(boost))  # it has crossed its limit
        most = np.where(self.able, 1.0 / (1.0 + np.square(self.deviation / _WIDEST)) / believed, 1.0)
        self.boost = np.clip(boost, 1.0, np.maximum(most, 1.0))
        # a limit that is clearly kept needs no push; to believe its errors would only stir with their noise
        kept = clear & (self.level < 0)
        return np.where(kept, believed, believed * self.boost)
