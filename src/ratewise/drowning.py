"""Whether a budget leaves anything to be learnt from so few rows, judged from public facts before training.

The noise on a mean gradient, averaged over all steps, has an expected length; the gradient itself is at most
as long as the clipping norm. Their quotient falls in proportion to rows times epsilon. On made-up rows of 3
and 50 normal features, labels from one of them, models were right on

=============  ===========================
quotient       share of right predictions
=============  ===========================
below 0.05     0.89 to 0.93
0.05 to 0.3    0.69 to 0.90
0.3 to 1       0.51 to 0.69
above 1        0.45 to 0.61
=============  ===========================

(80 to 20,000 rows, epsilon 0.001 to 1, means of 6 fits, twice: benchmarks/drowning.py.) Past 0.3 a fit warns.
"""

from __future__ import annotations

import math
import warnings

from ratewise.exceptions import RatewiseWarning
from ratewise.plan import Plan

_DROWNED, _GOOD = 0.3, 0.05


def noise_share(plan: Plan, n_parameters: int) -> float:
    """Return the length of the noise on the mean gradient of all steps, in units of the clipping norm.

    >>> plan = Plan(n_rows=1_000, sampling_rate=0.5, steps=100, clip=1.0, gradient_noise=20.0)
    >>> noise_share(plan, 25)
    0.02
    """
    if plan.gradient_noise is None:
        return 0.0
    return plan.gradient_noise * math.sqrt(n_parameters / plan.steps) / plan.expected_rows


def warn_if_drowned(plan: Plan, n_parameters: int, epsilon: float | None) -> None:
    """Warn if noise will drown whatever the rows say, and tell what would work. No row is read."""
    share = noise_share(plan, n_parameters)
    if share <= _DROWNED or epsilon is None:
        return
    factor = share / _GOOD
    warnings.warn(
        f"{plan.n_rows} rows are too few for {n_parameters} parameters at epsilon={epsilon:g}: noise will "
        f"drown most of what they say, and the model will hardly be better than chance. About {factor:.2g} "
        f"times as many rows, or epsilon={epsilon * factor:.2g}, would do; or fewer features "
        "(curves count as some)",
        RatewiseWarning,
        stacklevel=3,
    )


def warn_if_unmeasured(plan: Plan, epsilon: float | None) -> None:
    """Warn that features without declared bounds stay as they are, if rows are too few to measure them."""
    if plan.preparation is not None or epsilon is None:
        return
    warnings.warn(
        f"{plan.n_rows} rows are too few to find the sizes of the features privately at epsilon={epsilon:g}: "
        "they are used as they come, and little is left of those far from unit size. Declare "
        "feature_bounds=(lower, upper), which costs nothing; standardise=False says that sizes are fine",
        RatewiseWarning,
        stacklevel=3,
    )
