"""A first guess at what a column is, **read off the data** for a person to check: see `Schema.draft`.

>>> read_column("age", [31, 45, 45, 62], bounds=True, few=2)
Number(31.0, 62.0)
"""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise.columns import Category, Column, Number
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.frames import missing_entries
from ratewise.tables import as_column, distinct

MOST_VALUES = 1000  # distinct texts up to which a column is taken for categories
FEW_NUMBERS = 10  # distinct whole numbers up to which a column is taken for categories
MISSING = "missing"


def read_column(name: str, data: Any, bounds: bool, few: int = FEW_NUMBERS, *, group: bool = False) -> Column:
    """Return what the column seems to be; missing entries get a value of their own, for a person to check.

    Few whole numbers of a `group` are its values also if they are written with a point, as 0.0 and 1.0: files
    with gaps have them so.
    """
    what = f"column {name!r}"
    column = as_column(data, what)
    gaps = missing_entries(column)
    if gaps.all():
        raise InvalidInput(f"{what} holds nothing but missing values; {_leave_out(name)}")
    known = column if hasattr(column, "cat") else column[~gaps]
    if group and not hasattr(column, "cat") and column.dtype.kind == "f":
        known = _without_points(known, few)
    if not hasattr(column, "cat") and known.dtype.kind == "f":
        return _number(what, known, bounds, bool(gaps.any()))
    entries = distinct(known, what)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in entries):
        if len(entries) > few or not all(isinstance(value, int) for value in entries):
            return _number(what, np.asarray(entries, dtype=np.float64), bounds, bool(gaps.any()))
    elif len(entries) > MOST_VALUES:
        raise InvalidInput(
            f"{what} holds more than {MOST_VALUES} different values, as names and numbers of people do; "
            f"{_leave_out(name)}"
        )
    try:
        if gaps.any():
            return Category([*(value for value in entries if value != MISSING), MISSING], missing=MISSING)
        return Category(entries)
    except InvalidType as problem:
        raise InvalidType(f"{what}: {problem}, or {_leave_out(name)}") from None


def _without_points(known: NDArray[np.float64], few: int) -> NDArray[Any]:
    """Return the entries as whole numbers if they are few and all are; else as they are."""
    found = np.unique(known)
    few_whole = (
        len(found) <= few and bool(np.all(np.isfinite(found))) and bool(np.all(found == found.round()))
    )
    return known.astype(np.int64) if few_whole and np.abs(found).max() < 2**53 else known


def _leave_out(name: str) -> str:
    return f"leave it out with leave_out=[{name!r}], on the command line --leave-out {shlex.quote(name)}"


def _number(what: str, known: NDArray[np.float64], bounds: bool, gaps: bool) -> Number:
    if not bounds:
        return Number(missing=0.0 if gaps else None)
    low, high = float(known.min()), float(known.max())
    if not math.isfinite(low) or not math.isfinite(high):
        raise InvalidInput(f"{what} holds infinite values; cut them off, or describe it without bounds")
    high = high if low < high else low + 1.0
    try:
        return Number(low, high, missing=low / 2 + high / 2 if gaps else None)
    except InvalidInput as problem:
        raise InvalidInput(f"{what}: {problem}; cut them off, or describe it without bounds") from None
