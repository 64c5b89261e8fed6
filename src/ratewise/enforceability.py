"""Which constraints cannot be relied on at a budget, judged from released counts.

A rate over a group is known only up to the noise on its counts, and means for new people only what the
group's size lets it mean. If twice that uncertainty exceeds what the constraint is about, it is named as
doubtful, and aiming at it more closely would be chasing noise. A limit that the released rates of the last
steps say was missed is named too, and one whose rates never came to rest. Released values in, no privacy
spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ratewise.compiled import CompiledConstraints
    from ratewise.multipliers import Constraints, Multipliers
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_NARROWEST, _BEARABLE, _WIDEST = 0.02, 0.07, 0.1
_CLEARLY = 0.02
_RESTLESS = 0.15  # held limits of three classes swing by up to 0.13 (measured)


@dataclass(frozen=True)
class Doubt:
    """A constraint that rests on too few rows, or that training did not reach.

    Attributes
    ----------
    constraint : str
        Its name.
    rows : float
        Estimated number of training rows behind its smallest rate, from released counts.
    uncertainty : float
        Standard error of its left-hand side.
    excess : float or None
        By how much released rates of the last steps exceeded its bound, if that is why it is named.
    swing : float or None
        By how much released rates went up and down until the end, if that is why it is named.
    """

    constraint: str
    rows: float
    uncertainty: float
    excess: float | None = None
    swing: float | None = None

    def __str__(self) -> str:
        if self.excess is not None:
            return f"{self.constraint} (exceeded by about {self.excess:.2g} at the end of training)"
        if self.swing is not None:
            return f"{self.constraint} (went up and down by about {self.swing:.2g} to the end of training)"
        return f"{self.constraint} (about {max(self.rows, 0):.0f} rows, " + (
            "not known at all)" if 2 * self.uncertainty > 1 else f"known to +-{2 * self.uncertainty:.2g})"
        )


def standard_errors(
    compiled: Constraints, histogram: Floats, totals: Floats, noise: float, rate: float, steps: int
) -> Floats:
    """Return the standard error of each constraint's value, for the mean of `steps` released histograms.

    Two parts add up: the noise on the counts, and the chance which people are among the rows.
    """
    # counts are of a batch, the share `rate` of the rows
    return compiled.value_noise(histogram, totals, noise / math.sqrt(steps), chance=0.25 * rate)


def hopeless(compiled: Constraints, histogram: Floats, totals: Floats, plan: Plan) -> Mask:
    """Return which constraints are so uncertain that enforcing them would be chasing noise.

    Twice their standard error exceeds their bound (or 0.02 for bounds below that, or 0.1 for those above).
    """
    errors = _errors(compiled, histogram, totals, plan, 0.5)
    return np.asarray(2 * errors > np.clip(_sizes(compiled), _NARROWEST, _WIDEST))


def faint(compiled: Constraints, histogram: Floats, totals: Floats, plan: Plan) -> Mask:
    """Return which constraints the noise on the counts hides, whoever is among the rows.

    Twice the standard error of their values, from that noise alone, exceeds 0.07 over half of the steps.
    """
    noise, steps = plan.histogram_mechanism.standard_deviation, max(1, plan.steps // 2)
    errors = standard_errors(compiled, histogram, totals, noise, 0.0, steps)
    return np.asarray(2 * errors > _BEARABLE)


def uncertain(compiled: Constraints, histogram: Floats, totals: Floats, plan: Plan) -> Mask:
    """Return which constraints may well be missed by more than people would put up with.

    Twice their standard error exceeds their bound, or for bounds above 0.07 that or a quarter of the bound.
    Where they are not `hopeless` they are enforced as well as can be, and named all the same.
    """
    errors, sizes = _errors(compiled, histogram, totals, plan, 0.5), _sizes(compiled)
    bearable = np.maximum(np.clip(sizes, _NARROWEST, _BEARABLE), sizes / 4)
    return np.asarray(2 * errors > bearable)


def missed(compiled: CompiledConstraints, multipliers: Multipliers, plan: Plan) -> Mask:
    """Return which constraints the released rates of the last quarter of the steps exceed clearly.

    By more than two standard errors and more than 0.02. Ratios such as precision are left out: those of noisy
    iterates say little about those of their mean, which is the model.
    """
    errors = _errors(compiled, multipliers.mean_histogram, multipliers.cell_totals, plan, 0.25)
    excess = multipliers.late_values - compiled.bounds
    return np.asarray((excess > np.maximum(_CLEARLY, 2 * errors)) & ~compiled.ratios)


def restless(compiled: CompiledConstraints, multipliers: Multipliers) -> Mask:
    """Return which constraints' released rates went up and down about their bound to the end of training.

    By more than 0.15 (a standard deviation) that noise does not explain. Rates of such iterates say little
    about those of their mean, which is the model.
    """
    swing = multipliers.swing
    return np.asarray((swing > _RESTLESS) & (multipliers.late_values - compiled.bounds > -swing))


def doubts(compiled: CompiledConstraints, multipliers: Multipliers, plan: Plan) -> tuple[Doubt, ...]:
    """Return the constraints that are `uncertain` or faint, those that were `missed`, and `restless` ones."""
    histogram, totals = multipliers.mean_histogram, multipliers.cell_totals
    errors = _errors(compiled, histogram, totals, plan, 0.5)
    unsure = uncertain(compiled, histogram, totals, plan) | multipliers.faint
    over, moving = missed(compiled, multipliers, plan), restless(compiled, multipliers)
    excess, swing = multipliers.late_values - compiled.bounds, multipliers.swing
    rows = compiled.smallest_denominators(histogram, totals) / plan.sampling_rate
    return tuple(
        Doubt(
            compiled.names[j],
            float(rows[j]),
            float(errors[j]),
            float(excess[j]) if over[j] and not unsure[j] else None,
            float(swing[j]) if moving[j] and not unsure[j] and not over[j] else None,
        )
        for j in np.flatnonzero(unsure | over | moving)
    )


def _sizes(compiled: Constraints) -> Floats:
    """Return what constraints are about: "at least 0.85" of a rate leaves 0.15, as "at most 0.15" does."""
    return np.minimum(np.abs(compiled.bounds), compiled.bounds - compiled.lowest)


def _errors(compiled: Constraints, histogram: Floats, totals: Floats, plan: Plan, share: float) -> Floats:
    """Return standard errors of values read off the mean histogram of this share of the steps."""
    # as released: of what totals put right in single counts, their errors leave less in means
    noise, steps = plan.histogram_mechanism.standard_deviation, max(1, int(share * plan.steps))
    return standard_errors(compiled, histogram, totals, noise, plan.sampling_rate, steps)
