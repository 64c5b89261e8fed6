"""Features that enter twice: as they are, and by how near they are to the middle of their bounds.

A linear score cannot say that the middle-aged earn most. With a second column per number, ``1 - t^2`` where t
runs from -1 at the lower bound to 1 at the upper, it can bend in each number once. The second column is
computed from one row and bounds alone, declared ones or what released values leave of them
(`ratewise.tails`): nothing is released for it, and one person's row changes one row of it. Both columns are
prepared and clipped together like any other features.

>>> bend(np.array([[18.0], [49.0], [80.0], [200.0]]), np.array([18.0]), np.array([80.0])).ravel()
array([0., 1., 0., 0.])
"""

from __future__ import annotations

import reprlib
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


def bend(values: npt.NDArray[np.floating], lower: Floats, upper: Floats, out: Floats | None = None) -> Floats:
    """Return 1 in the middle of the bounds, 0 at their ends and beyond, and a parabola in between."""
    t = np.empty(values.shape) if out is None else out
    np.clip(values, lower, upper, out=t)
    np.subtract(t, lower / 2 + upper / 2, out=t)
    np.divide(t, half_width(lower, upper), out=t)
    np.multiply(t, t, out=t)
    np.subtract(1.0, t, out=t)
    return np.maximum(t, 0.0, out=t)


def half_width(lower: Floats, upper: Floats) -> Floats:
    """Return half the distance between bounds, which is finite even where the whole is not."""
    return np.asarray(upper / 2 - lower / 2)


def chosen_curves(
    asked: Any,
    bounds: tuple[Floats, Floats] | None,
    dense: bool = True,
    standardised: bool = True,
    numbers: Places | None = None,
) -> Places:
    """Return the places of the features that bend, which depend on public facts only.

    Parameters
    ----------
    asked : "auto", bool or list of places
        "auto": numbers, if they are dense and left to be standardised. True: all features whose bounds are
        apart.
    bounds : (lower, upper) or None
        Declared bounds of features.
    dense, standardised : bool
        How features come, and whether they are left to be standardised.
    numbers : array of places, or None
        Features that are declared to be numbers; None: bounds tell.

    Examples
    --------
    >>> bounds = np.array([18.0, 0.0, 0.0]), np.array([80.0, 1.0, 500.0])
    >>> chosen_curves("auto", bounds), chosen_curves([2], bounds)
    (array([0, 2]), array([2]))
    """
    none = np.zeros(0, dtype=np.intp)
    if isinstance(asked, str) and asked == "auto":
        if bounds is None or not dense or not standardised:
            return none
        return numbers_by_bounds(*bounds) if numbers is None else numbers
    if isinstance(asked, bool | np.bool_) and not asked:
        return none
    places = None if isinstance(asked, bool | np.bool_) else _listed(asked)
    if places is not None and not len(places):
        return none
    if bounds is None:
        raise InvalidInput(
            f"curves is {reprlib.repr(asked)}, but features have no bounds to bend between; declare "
            "feature_bounds"
        )
    if not dense:
        raise UnsupportedCombination(
            f"curves is {reprlib.repr(asked)}, but X is sparse, and curves would fill it; leave curves out"
        )
    apart = half_width(*bounds) > 0
    if places is None:
        return np.flatnonzero(apart)
    if places[0] < 0 or places[-1] >= len(apart):
        raise InvalidInput(
            f"curves must list places of features from 0 to {len(apart) - 1}, got {reprlib.repr(asked)}"
        )
    if not np.all(apart[places]):
        raise InvalidInput(
            f"curves lists a feature whose bounds are equal, or nearly, got {reprlib.repr(asked)}"
        )
    return places


def _listed(asked: Any) -> Places:
    """Return places of features in order, each once."""
    listed: list[Any] = list(asked) if isinstance(asked, list | tuple | range | np.ndarray) else [None]
    if not all(isinstance(p, Integral) and not isinstance(p, bool | np.bool_) for p in listed):
        raise InvalidType(
            f"curves must be 'auto', True, False or a list of places of features, got {reprlib.repr(asked)}"
        )
    return np.array(sorted({int(place) for place in listed}), dtype=np.intp)


def numbers_by_bounds(lower: Floats, upper: Floats) -> Places:
    """Return the features whose bounds say that they are numbers: other than 0 and 1, and apart; public.

    What lies between 0 and 1 is most often a category, which has no middle.
    """
    category = (lower == 0.0) & (upper == 1.0)
    return np.flatnonzero(~category & (half_width(lower, upper) > 0))
