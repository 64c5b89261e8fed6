"""Which constraints rest on too few rows to be enforced at a budget, judged from released counts.

A rate over a group is known only up to the noise on its counts, and means for new people only what the
group's size lets it mean. If twice that uncertainty exceeds what the constraint is about, aiming at it more
closely is chasing noise; the constraint is then named as doubtful. Released values in, no privacy spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ratewise.compiled import CompiledConstraints
    from ratewise.multipliers import Multipliers
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]

_NARROWEST, _WIDEST = 0.02, 0.1


@dataclass(frozen=True)
class Doubt:
    """A constraint that rests on too few rows.

    Attributes
    ----------
    constraint : str
        Its name.
    rows : float
        Estimated number of training rows behind its smallest rate, from released counts.
    uncertainty : float
        Standard error of its left-hand side.
    """

    constraint: str
    rows: float
    uncertainty: float

    def __str__(self) -> str:
        return (
            f"{self.constraint} (about {max(self.rows, 0):.0f} rows, known to +-{2 * self.uncertainty:.2g})"
        )


def standard_errors(
    compiled: CompiledConstraints, histogram: Floats, totals: Floats, noise: float, rate: float, steps: int
) -> Floats:
    """Return the standard error of each constraint's value, for the mean of `steps` released histograms.

    Two parts add up: the noise on the counts, and the chance which people are among the rows.
    """
    # counts are of a batch, the share `rate` of the rows
    return compiled.value_noise(histogram, totals, noise / math.sqrt(steps), chance=0.25 * rate)


def doubts(compiled: CompiledConstraints, multipliers: Multipliers, plan: Plan) -> tuple[Doubt, ...]:
    """Return the constraints whose standard error, doubled, exceeds their bound (between 0.02 and 0.1)."""
    histogram, totals = multipliers.mean_histogram, multipliers.cell_totals
    noise = plan.histogram_mechanism.standard_deviation
    errors = standard_errors(compiled, histogram, totals, noise, plan.sampling_rate, max(1, plan.steps // 2))
    tolerated = np.clip(np.abs(compiled.bounds), _NARROWEST, _WIDEST)
    rows = compiled.smallest_denominators(histogram, totals) / plan.sampling_rate
    return tuple(
        Doubt(compiled.names[j], float(rows[j]), float(errors[j]))
        for j in np.flatnonzero(2 * errors > tolerated)
    )
