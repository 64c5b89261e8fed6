"""Numbers that bend a little: where rows are few, second columns are narrow and weighed down.

A second column for each number (`ratewise.curves`) meets as much noise as the first. Where rows are enough,
nobody notices. Where they are not, each enters at a size that the plan fixes from public facts
(`ratewise.defaults.bends_for`): what is weighed down by a factor adds its noise to scores by that factor, and
makes rows hardly longer, so that a bend has to be worth more before it shows. It is 1 at the released mean of
its number, 0 from one released deviation on, and a parabola in between; beyond its bounds a number is cut off
before.

Nothing is released for it. Where it bends is computed from released means and deviations; its own middle and
size are not measured but taken to be those of a normal number, which is near enough for a column that the
intercept shifts anyway. The column itself looks at one row at a time and is clipped and summed with the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ratewise.curves import Places, half_width
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.scaling import Scaling

# of max(0, 1 - z^2), z standard normal
MIDDLE, DEVIATION = 0.4839, 0.4041
_LARGEST = float(np.finfo(np.float64).max)


def check_bends(X: Any, scaling: Scaling | None, numbers: Places | None, size: float) -> Places:
    """Return the places of numbers if they can bend; refuse before anything is released if they cannot."""
    bounded = scaling is not None and scaling.lower is not None and scaling.curved is None
    if numbers is None or not len(numbers) or not bounded or not isinstance(X, np.ndarray):
        raise UnsupportedCombination(
            f"bends is {size:g}, which needs dense features, some of them numbers with declared bounds, and "
            "no curves besides"
        )
    return numbers


def bent(scaling: Scaling, numbers: Places, size: float) -> Scaling:
    """Return `scaling` with a second column for each number, bent around its mean: post-processing.

    Parameters
    ----------
    scaling : Scaling
        With bounds, and with released means and deviations.
    numbers : array of places
        Public.
    size : float
        What a deviation of a second column counts for, in units of that of a first one; public.

    Examples
    --------
    >>> plain = Scaling([0.0, 0.0], [1.0, 100.0], mean=[0.3, 0.5], deviation=[0.5, 0.1])
    >>> found = bent(plain, np.array([1]), 0.25)
    >>> found.bend_lower, found.bend_upper, found.n_prepared
    (array([40.]), array([60.]), 3)
    """
    if scaling.lower is None or scaling.upper is None or scaling.mean is None or scaling.deviation is None:
        raise InvalidInput("bends need bounds, and released means and deviations")
    first, last = scaling.lower[numbers], scaling.upper[numbers]
    mean, deviation = scaling.mean[numbers], scaling.deviation[numbers]
    with np.errstate(over="ignore"):
        ends = [first + (mean + side * deviation) * (last - first) for side in (-1.0, 1.0)]
    low, high = (np.clip(end, -_LARGEST, _LARGEST) for end in ends)
    apart = half_width(low, high) > 0  # else the mean is so far out, or the number so narrow, that nothing is
    return replace(
        scaling,
        curved=numbers,
        bend_lower=np.where(apart, low, first),
        bend_upper=np.where(apart, high, last),
        mean=np.append(scaling.mean, np.full(len(numbers), MIDDLE)),
        deviation=np.append(scaling.deviation, np.full(len(numbers), DEVIATION / size)),
    )
