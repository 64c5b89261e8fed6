"""The public facts that constraints are compiled against; `ratewise.data.table` codes rows by them.

>>> domain = Domain(classes=(0, 1), columns={"sex": ("Female", "Male"), "age": Numeric()}, other=True)
>>> domain.values("sex")
('Female', 'Male')
"""

from __future__ import annotations

import keyword
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType

# -------------------------------------------------------------------------------------------- the domain


@dataclass(frozen=True)
class Numeric:
    """A numeric column: its values are not listed, and constraints name intervals of it."""


@dataclass(frozen=True, init=False)
class Domain:
    """The classes and the columns' values, declared by the user or found by a release; not to be modified.

    Parameters
    ----------
    classes : iterable of scalars
        Label values, in the order of the model's outputs; at least two.
    columns : mapping of name to values
        For each column that constraints may read: its possible values (at least one, or none with
        ``other=True``), or ``Numeric()``.
    other : bool
        True: every column has one more value, for rows with an undeclared or missing value. It cannot be named in
        a constraint, and is part of `everyone` and of complements. False: the declared values are exhaustive, and
        rows with other values are in no cell.
    """

    classes: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...] | Numeric]
    other: bool

    def __init__(
        self,
        classes: Iterable[Any],
        columns: Mapping[str, Iterable[Any] | Numeric] | None = None,
        *,
        other: bool = False,
    ) -> None:
        known = _distinct("classes", classes)
        if len(known) < 2:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(known)}")
        if columns is not None and not isinstance(columns, Mapping):
            raise InvalidType(f"columns must map names to values, got {type(columns).__name__}")
        if not isinstance(other, bool):
            raise InvalidType(f"other must be True or False, got {other!r}")
        declared: dict[str, tuple[Any, ...] | Numeric] = {}
        given: dict[Any, Any] = dict(columns or {})
        for name, values in given.items():
            if not isinstance(name, str) or not name:
                raise InvalidType(f"a column's name must be text that is not empty, got {name!r}")
            if values is Numeric:
                raise InvalidType(f"column {name!r}: write Numeric() with brackets")
            listed = not isinstance(values, Numeric)
            declared[name] = _distinct(f"column {name!r}", values, other) if listed else values
        vars(self).update(classes=known, columns=declared, other=other)  # the class is frozen

    def __hash__(self) -> int:
        return hash((self.classes, frozenset(self.columns.items()), self.other))

    @cached_property
    def _places(self) -> dict[str | None, dict[Any, int]]:
        listed: dict[Any, Any] = {None: self.classes, **self.columns}
        return {
            name: {value: place for place, value in enumerate(values)}
            for name, values in listed.items()
            if not isinstance(values, Numeric)
        }

    def values(self, column: str | None) -> tuple[Any, ...] | Numeric:
        """Return the declared values of a column (None: the classes)."""
        if column is None:
            return self.classes
        if column not in self.columns:
            known = ", ".join(map(repr, self.columns)) or "none"
            raise InvalidInput(f"column {column!r} is not declared; the columns are: {known}")
        return self.columns[column]

    def code(self, column: str | None, value: Any) -> int:
        """Return the position of a value among the declared ones (column None: among the classes)."""
        values = self.values(column)
        if isinstance(values, Numeric):
            raise InvalidInput(f"column {column!r} is numeric: use below, at_least or between, not the value {value!r}")
        found = self._places[column].get(value)
        if found is None:
            place = "the classes" if column is None else f"the declared values of column {column!r}"
            twin = next((known for known in values if str(known) == str(value)), None)
            hint = f"; did you mean {twin!r} ({type(twin).__name__})?" if twin is not None else ""
            raise InvalidInput(f"{value!r} is not among {place}: {list_values(values)}{hint}")
        return found


def list_values(values: Iterable[Any], most: int = 12) -> str:
    """Return public values as text for a message, shortened after `most`."""
    items = list(values)
    shown = ", ".join(map(repr, items[:most])) or "none"
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def _distinct(what: str, values: Any, may_be_empty: bool = False) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{what} must be a collection of values, got {type(values).__name__}")
    items = tuple(scalar(**{what: value}) for value in values)
    if not items and not may_be_empty:
        raise InvalidInput(f"{what} must hold at least one value, got none")
    seen: dict[Any, str] = {}
    for item in items:
        if item in seen:
            first, again = seen[item], repr(item)
            also = again if first == again else f"{first} and {again}, which are equal in Python"
            raise InvalidInput(f"{what} must hold each value once, got {also} twice")
        seen[item] = repr(item)
    return items


# --------------------------------------------------------------------------- single values and intervals

PLAIN_TEXT = re.compile(r"[A-Za-z_][\w.+/-]*(?: [\w.+/-]+)*\Z")


def scalar(hint: str = "", /, **argument: Any) -> Any:
    """Return one label or group value as a Python scalar; raise for missing values and collections."""
    ((name, value),) = argument.items()
    if isinstance(value, np.generic):
        value = value.item()
    for plain in (str, int, float):  # members of an enumeration, say, print and convert in their own way
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


def is_word(text: str) -> bool:
    """Return whether constraint text may hold a name without quotes: an identifier that Python does not change."""
    reserved = keyword.iskeyword(text) or text == "_"  # which stands for * in constraint text
    return text.isidentifier() and not reserved and unicodedata.is_normalized("NFKC", text)


def show_number(number: float) -> str:
    """Return the shortest text that reads back as the same number, without a trailing ``.0``."""
    text = repr(float(number))
    return text[:-2] if text.endswith(".0") else text


@dataclass(frozen=True, repr=False)
class Interval:
    """The numbers from `low` (included) to `high` (not included); made by `below`, `at_least`, `between`."""

    low: float
    high: float

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
    """Return the numbers strictly below `threshold`."""
    return Interval(-math.inf, _validate.real(threshold=threshold) + 0.0)


def at_least(threshold: float) -> Interval:
    """Return the numbers from `threshold` upwards, `threshold` included."""
    return Interval(_validate.real(threshold=threshold) + 0.0, math.inf)


def between(low: float, high: float) -> Interval:
    """Return the numbers from `low` (included) to `high` (not included)."""
    start, stop = _validate.real(low=low) + 0.0, _validate.real(high=high) + 0.0
    if not start < stop:
        raise InvalidInput(f"between(low, high) needs low < high, got {start:g} and {stop:g}")
    return Interval(start, stop)
