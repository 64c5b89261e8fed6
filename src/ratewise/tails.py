"""Numbers cut off where they are rare: a few deviations from their mean, both released.

Bounds that are public and safe are wide. Within them most numbers crowd in one place, and the few far away
make long rows, which clipping cuts down and noise has to cover. So numbers are looked at first, by the
releases of `ratewise.standardisation` with more noise, and cut off `tails` deviations from the mean that was
found. The new bounds are computed from released values and public ones; cutting off looks at one row at a
time. Means and deviations are then released of what is left, and curves (`ratewise.curves`) bend between the
new bounds, where the rows are.

Where no bounds are declared, the release of sizes (`ratewise.sizes`) tells which features are numbers and
makes them alike in size, and the same look finds bounds for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.curves import Places, half_width, numbers_by_bounds
from ratewise.scaling import Scaling
from ratewise.sizes import Sizes

Floats = npt.NDArray[np.float64]

NUMBER = "number"  # the kind by which features are numbers whatever their bounds
_LEAST_ROOM = 1e-9  # between new bounds, as a share of that between declared ones


def declared_numbers(kinds: Any, lower: Floats, upper: Floats) -> Places:
    """Return the places of the features that are numbers rather than categories; public.

    Parameters
    ----------
    kinds : list or None
        If some are called "number", those are. Else bounds tell: other than 0 and 1.
    lower, upper : arrays
        Declared bounds.

    Examples
    --------
    >>> lower, upper = np.zeros(3), np.array([1.0, 1.0, 90.0])
    >>> declared_numbers(None, lower, upper), declared_numbers(["number", "flag", "flag"], lower, upper)
    (array([2]), array([0]))
    """
    named = named_numbers(kinds)
    if len(named):
        return named[half_width(lower, upper)[named] > 0]
    return numbers_by_bounds(lower, upper)


def named_numbers(kinds: Any) -> Places:
    """Return the places of the features of the kind "number", if any; public."""
    listed = [] if kinds is None else list(kinds)
    return np.flatnonzero([isinstance(kind, str) and kind == NUMBER for kind in listed])


def of_numbers(scaling: Scaling | None, numbers: Places | None) -> Scaling | None:
    """Return the declared bounds of numbers alone; None if there are no numbers, or no bounds."""
    if scaling is None or scaling.lower is None or scaling.upper is None or numbers is None:
        return None
    return Scaling(lower=scaling.lower[numbers], upper=scaling.upper[numbers]) if len(numbers) else None


def cut_off(scaling: Scaling, numbers: Places, mean: Floats, reach: Floats) -> Scaling:
    """Return `scaling` with tighter bounds of numbers: post-processing of released values.

    A number whose released mean is so far out that nothing would be left between the new bounds keeps the old
    ones.

    Parameters
    ----------
    scaling : Scaling
        With declared bounds, and nothing released yet.
    numbers : array of places
    mean, reach : arrays
        Released: the middle of the new bounds, and how far they are from it; one per number, in units of the
        distance between its declared bounds.

    Examples
    --------
    >>> wide = Scaling(lower=[0.0, 0.0], upper=[1.0, 100.0])
    >>> cut_off(wide, np.array([1]), np.array([0.1]), np.array([0.4])).upper
    array([ 1., 50.])
    """
    if scaling.lower is None or scaling.upper is None:
        return scaling
    low, high = (np.clip(mean + side * reach, 0.0, 1.0) for side in (-1.0, 1.0))
    lower, upper = scaling.lower.copy(), scaling.upper.copy()
    first, last = lower[numbers], upper[numbers]
    # weights rather than a difference, which may overflow
    least, most = (np.clip((1.0 - at) * first + at * last, first, last) for at in (low, high))
    room = half_width(least, most) > _LEAST_ROOM * half_width(first, last)
    lower[numbers], upper[numbers] = np.where(room, least, first), np.where(room, most, last)
    return replace(scaling, lower=lower, upper=upper)


def between(found: Sizes, mean: Floats, deviation: Floats, reach: Floats) -> tuple[Floats, Floats]:
    """Return bounds for all features, of which numbers had none declared: post-processing of released values.

    Numbers lie within `reach` of their mean, and those not seen below zero not below it, if mean and
    deviation say the same; where that leaves no room, within the largest magnitude seen. Other features get
    no bounds.

    Parameters
    ----------
    found : Sizes
        Released: which features are numbers, and how large.
    mean, deviation, reach : arrays
        Released: the middle of the bounds, the deviation from it, and how far bounds are from it; one per
        number, in units of the largest magnitude seen.

    Examples
    --------
    >>> largest, below_zero = np.array([64.0, 64.0]), np.array([False, True])
    >>> found = Sizes(np.ones(3), np.array([1, 2]), largest, below_zero, flags=np.zeros(3, dtype=bool))
    >>> between(found, np.array([0.1, 0.1]), np.array([0.2, 0.2]), np.array([0.5, 0.5]))[0]
    array([ -inf,   0. , -25.6])
    """
    lower, upper = np.full(len(found.of), -np.inf), np.full(len(found.of), np.inf)
    least, most = mean - reach, mean + reach
    # what lies between 0 and 1 has no larger square than itself; twice that is still no sign of the contrary
    positive = ~found.below_zero & (np.square(mean) + np.square(deviation) <= 2.0 * mean)
    least = np.where(positive & (most > 0.0), np.maximum(least, 0.0), least)
    room = most - least > _LEAST_ROOM
    least, most = np.where(room, least, -1.0), np.where(room, most, 1.0)
    lower[found.numbers], upper[found.numbers] = least * found.most, most * found.most
    return lower, upper
