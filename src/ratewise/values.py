"""The values that declarations are made of: single labels and group values, and intervals of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType

PLAIN_TEXT = re.compile(r"[A-Za-z_][\w.+/-]*(?: [\w.+/-]+)*\Z")


def scalar(hint: str = "", /, **argument: Any) -> Any:
    """Return one label or group value as a Python scalar; missing values and collections are refused."""
    ((name, value),) = argument.items()
    if isinstance(value, np.generic):
        value = value.item()
    for plain in (
        str,
        int,
        float,
    ):  # members of an enumeration, say, which print and convert in their own way
        if isinstance(value, plain) and type(value) not in (plain, bool):
            value = plain.__str__(value) if plain is str else plain(value)
    tail = f"; {hint}" if hint else ""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise InvalidInput(f"{name} must not be a missing value, got {value!r}{tail}")
    if isinstance(value, Interval | dict | np.ndarray | list | set | tuple | frozenset):
        raise InvalidType(f"{name} must be one value, got {type(value).__name__}{tail}")
    try:
        hash(value)
    except TypeError:
        raise InvalidType(f"{name} must be a hashable value, got {type(value).__name__}{tail}") from None
    return value


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return values sorted where Python can sort them, else by type and text: the same on every run."""
    items = list(values)
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=lambda value: (type(value).__name__, repr(value)))


def show_value(value: Any) -> str:
    """Return a value as report text: bare where that cannot be misread, else quoted."""
    if isinstance(value, str) and PLAIN_TEXT.match(value) and value not in ("True", "False"):
        return value
    return show_number(value) if isinstance(value, float) else repr(value)


def show_number(number: float) -> str:
    """Return the shortest text that reads back as the same number, without a trailing ``.0``."""
    text = repr(float(number))
    return text[:-2] if text.endswith(".0") else text


class Interval:
    """The numbers from `low` (included) to `high` (not included); made by `below`, `at_least`, `between`."""

    __slots__ = ("high", "low")
    low: float
    high: float

    def __init__(self, low: float, high: float) -> None:
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an interval is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Interval, (self.low, self.high)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Interval) and (self.low, self.high) == (other.low, other.high)

    def __hash__(self) -> int:
        return hash((Interval, self.low, self.high))

    def __repr__(self) -> str:
        if self.low == -math.inf:
            return f"below({show_number(self.high)})"
        if self.high == math.inf:
            return f"at_least({show_number(self.low)})"
        return f"between({show_number(self.low)}, {show_number(self.high)})"

    def describe(self, column: str) -> str:
        """Return the interval as an inequality on `column`."""
        if self.low == -math.inf:
            return f"{column}<{show_number(self.high)}"
        if self.high == math.inf:
            return f"{column}>={show_number(self.low)}"
        return f"{show_number(self.low)}<={column}<{show_number(self.high)}"


def below(threshold: float) -> Interval:
    """Return the numbers strictly below `threshold`.

    >>> from ratewise.predicates import group
    >>> group(age=below(25)).name
    'age<25'
    """
    return Interval(-math.inf, _validate.real(threshold=threshold) + 0.0)


def at_least(threshold: float) -> Interval:
    """Return the numbers from `threshold` upwards, `threshold` included."""
    return Interval(_validate.real(threshold=threshold) + 0.0, math.inf)


def between(low: float, high: float) -> Interval:
    """Return the numbers from `low` (included) to `high` (not included).

    For a two-sided bound on a rate see `ratewise.rates.Expression.between`.
    """
    start, stop = _validate.real(low=low) + 0.0, _validate.real(high=high) + 0.0
    if not start < stop:
        raise InvalidInput(f"between(low, high) needs low < high, got {start:g} and {stop:g}")
    return Interval(start, stop)
