"""How far errors read off noisy histograms are to be believed, constraint by constraint, at every update.

A single noisy reading of a limit on few rows says next to nothing, but many that agree do. So an error counts
for less the noisier it is, and a limit whose running mean stays clearly on one side is believed more and
more, as long as its noise over the whole training would let it be enforced at all. Limits that are kept as
far as one can see are left alone, so that they do not stir the others.

A limit is *faint* if it cannot be enforced and noise hides it even over half of the training. Adding up its
errors would follow their noise to wherever it leads, and a few rows answer to a multiplier many times as
strongly as many rows do. Its running mean is the error that counts, gently, and pushes only while it lasts.

Running means are of shares as read, outside of [0, 1] too: put back inside, those of a small group would have
a mean near one half, whatever the group's rate, and the group would be pushed away from that. Ratios, whose
denominators are noisy too, stay inside: unbounded, a single reading of theirs could outweigh all others.

Released values in, post-processing throughout: no privacy is spent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ratewise.counts import noise_as_read
from ratewise.enforceability import faint, hopeless

if TYPE_CHECKING:
    from ratewise.multipliers import Constraints
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_CHANCE = 0.25  # largest variance of a yes or no
_CLEAR = 2.0  # standard deviations of a running mean that cannot be chance
_KEPT = 1.4  # of them below its bound, and a limit counts as kept
_GROWTH, _DECAY = 1.15, 0.95  # of the belief in an error, per step, while it is clear and while it is not
_WIDEST = 1.0  # errors noisier than this are not believed in full, whatever the evidence
_GENTLY = 0.1  # of what its noise would let the mean error of a faint limit count


class Evidence:
    """What errors count for, beside their noise.

    An error of standard deviation s counts by ``1 / (1 + (s / tolerance)^2)``. If it has been clear for a
    while, and its limit does not look kept now, it counts by up to ``1 / (1 + s^2)``. For a faint limit the
    running mean counts instead, by a tenth of the first factor at the deviation that such a mean has in the
    long run (in its first `patience` steps it has up to 1.4 times that). `DualControl.patience` is the number
    of steps that running means go back; 0 leaves all errors at the first factor.

    How far a running mean strays is judged as if its readings were apart from each other. Counts beside
    totals share what is wrong with these, so that early means of rates near 0 or 1 stray up to twice as far.

    Parameters
    ----------
    constraints : CompiledConstraints
    plan : Plan
        Its `dual` has the tolerance and the patience.

    Attributes
    ----------
    able : (J,) array of bool
        Limits whose errors are noisier than the tolerance and that can be enforced all the same.
    faint : (J,) array of bool
        Limits whose errors are noisier, that cannot be enforced, and that noise hides over half of the
        training, as judged in the first `patience` steps: a later change of mind would let go of a multiplier
        from one step to the next. None without patience, or without a penalty to push them with.
    """

    STATE = ("believed", "level", "boost", "deviation", "able", "faint")

    def __init__(self, constraints: Constraints, plan: Plan) -> None:
        self._constraints = constraints
        self._plan = plan
        self._noise = noise_as_read(plan, constraints.n_classes)
        self._tolerance = plan.dual.noise_tolerance or math.inf
        self._patience = plan.dual.patience
        self._follows = self._tolerance < math.inf and plan.dual.patience > 0 and plan.dual.penalty > 0
        self.believed: Floats | None = None
        self.deviation: Floats = np.zeros(len(constraints))
        self.able: Mask = np.zeros(len(constraints), dtype=np.bool_)
        self.faint: Mask = np.zeros(len(constraints), dtype=np.bool_)
        self.level: Floats = np.zeros(len(constraints))
        self.boost: Floats = np.ones(len(constraints))

    def look(
        self, histogram: Floats, mean: Floats, totals: Floats, floor: float, updates: int, steps: int
    ) -> None:
        """Judge anew how noisy an error of `steps` steps is, and which limits can be enforced at all."""
        self.deviation = self._constraints.value_noise(
            histogram, totals, self._noise / math.sqrt(steps), floor=floor, chance=_CHANCE / steps
        )
        self.believed = 1.0 / (1.0 + np.square(self.deviation / self._tolerance))
        noisy = self.deviation > self._tolerance
        self.able = noisy & ~hopeless(self._constraints, mean, totals, self._plan)
        if self._follows and updates * steps < self._patience:
            self.faint = noisy & ~self.able & faint(self._constraints, mean, totals, self._plan)

    @property
    def followed(self) -> Mask:
        """Faint limits; none if the plan does not follow them, whatever a state that was restored says."""
        return self.faint & self._follows

    @property
    def gathers(self) -> bool:
        """Whether errors have to be gathered: some could come to be believed more, or are followed."""
        return self._patience > 0 and bool(self.able.any() or self.followed.any())

    def weigh(self, errors: Floats, read: Floats | None, updates: int, steps: int) -> Floats:
        """Return what each error counts for.

        Parameters
        ----------
        errors : (J,) array
        read : (J,) array or None
            Errors of rates as read, outside of [0, 1] too, so that their mean is right. None if nothing
            `gathers`.
        updates : int
            How many updates came before.
        steps : int
            Steps that this update stands for.
        """
        if self.believed is None:
            raise RuntimeError("weigh() needs a look() first")
        if read is None:
            return errors * self.believed
        length = min(max(1.0, self._patience / steps), updates + 1.0)
        counted: Floats = errors * self._factors(read, updates, steps, length)
        followed = self.followed
        if not followed.any():
            return counted
        steady = self.deviation / math.sqrt(2.0 * length - 1.0)
        gently = self.level * _GENTLY / (1.0 + np.square(steady / self._tolerance))
        return np.where(followed, gently, counted)

    def _factors(self, errors: Floats, updates: int, steps: int, length: float) -> Floats:
        """Move the running means of the errors, `length` updates long, and return how far errors count."""
        believed = np.asarray(self.believed)
        before = np.sign(self.level)
        self.level = self.level + (errors - self.level) / length
        steady = self.deviation / math.sqrt(2.0 * length - 1.0)
        clear = np.abs(self.level) > _CLEAR * steady
        if 2 * (updates + 1) * steps < self._patience:
            clear[:] = False  # too early to say
        boost = self.boost * np.where(clear, _GROWTH**steps, _DECAY**steps)
        boost = np.where(np.sign(self.level) == before, boost, np.sqrt(boost))  # it has crossed its limit
        most = np.where(self.able, 1.0 / (1.0 + np.square(self.deviation / _WIDEST)) / believed, 1.0)
        self.boost = np.clip(boost, 1.0, np.maximum(most, 1.0))
        # a limit that is kept needs no push; to believe its errors would only stir with their noise
        kept = self.level < -_KEPT * steady
        return np.where(kept, believed, believed * self.boost)
