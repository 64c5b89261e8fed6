"""The public facts a declaration is compiled against: the classes, and the values of each column.

>>> domain = Domain(classes=(0, 1), columns={"sex": ("Female", "Male"), "age": Numeric()})
>>> domain.columns["sex"]
('Female', 'Male')
>>> domain.label_codes([1, 0, 1])
array([1, 0, 1], dtype=int8)

Nothing here is read off private rows. Rows are only ever *translated* into codes by `encode`, and a value
that was not declared ends in an error that names the column and the declared values, not the row's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.values import scalar

# Whole numbers from 0, in the smallest type that holds them: there may be ten million.
Codes = NDArray[Any]

_CHUNK = 1 << 16  # rows translated at a time, so that ten million rows of text need no second copy


class Numeric:
    """A numeric column: its values are not listed, and only intervals can be said of it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numeric)

    def __hash__(self) -> int:
        return hash(Numeric)

    def __repr__(self) -> str:
        return "Numeric()"


class Domain:
    """The classes and the columns' values, declared by the user; immutable.

    Parameters
    ----------
    classes : iterable of scalars
        Label values, in the order of the model's outputs; at least two.
    columns : mapping of name to values
        For each column that constraints may read: its possible values, or ``Numeric()``.
    """

    __slots__ = ("_columns", "_lookups", "classes")
    classes: tuple[Any, ...]
    _columns: dict[str, tuple[Any, ...] | Numeric]
    _lookups: dict[str | None, dict[Any, int]]

    def __init__(
        self, classes: Iterable[Any], columns: Mapping[str, Iterable[Any] | Numeric] | None = None
    ) -> None:
        known = _distinct("classes", classes)
        if len(known) < 2:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(known)}")
        if columns is not None and not isinstance(columns, Mapping):
            raise InvalidType(f"columns must map names to values, got {type(columns).__name__}")
        declared = {
            _column_name(name): _column_values(name, values) for name, values in (columns or {}).items()
        }
        lookups: dict[str | None, dict[Any, int]] = {None: _positions(known)}
        for name, values in declared.items():
            if not isinstance(values, Numeric):
                lookups[name] = _positions(values)
        object.__setattr__(self, "classes", known)
        object.__setattr__(self, "_columns", declared)
        object.__setattr__(self, "_lookups", lookups)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a domain is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Domain, (self.classes, self._columns)

    @property
    def columns(self) -> dict[str, tuple[Any, ...] | Numeric]:
        """The declared columns, by name."""
        return dict(self._columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Domain):
            return False
        return self.classes == other.classes and self._columns == other._columns

    def __hash__(self) -> int:
        return hash((self.classes, frozenset(self._columns.items())))

    def __repr__(self) -> str:
        return f"Domain(classes={self.classes!r}, columns={self._columns!r})"

    def values(self, column: str | None) -> tuple[Any, ...] | Numeric:
        """Return the declared values of a column (None: the classes)."""
        if column is None:
            return self.classes
        try:
            return self._columns[column]
        except KeyError:
            known = ", ".join(map(repr, self._columns)) or "none"
            raise InvalidInput(f"column {column!r} is not declared; the columns are: {known}") from None

    def code(self, column: str | None, value: Any) -> int:
        """Return the position of a value among the declared ones (column None: among the classes)."""
        values = self.values(column)
        found = None if isinstance(values, Numeric) else self._lookups[column].get(value)
        if found is None:
            raise InvalidInput(_unknown_value(column, value, values))
        return found

    def label_codes(self, labels: Any) -> Codes:
        """Return the position of each label among the classes."""
        return encode(labels, self.classes, self._lookups[None], "the labels")

    def column_codes(self, column: str, data: Any) -> Codes:
        """Return the position of each row's value among the declared values of a categorical column."""
        values = self.values(column)
        if isinstance(values, Numeric):
            raise InvalidType(f"column {column!r} is numeric and has no list of values")
        return encode(data, values, self._lookups[column], f"column {column!r}")


def list_values(values: Iterable[Any], most: int = 12) -> str:
    """Return public values as text for a message, shortened after `most`."""
    items = list(values)
    shown = ", ".join(map(repr, items[:most])) or "none"
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def encode(data: Any, values: tuple[Any, ...], lookup: Mapping[Any, int], what: str) -> Codes:
    """Return the position of each entry of `data` in `values`, by Python's equality.

    Categorical columns of pandas are translated once per category; numbers by bisection; everything else by
    dictionary, a chunk at a time.
    """
    category: Any = getattr(data, "cat", None)
    if hasattr(category, "codes") and hasattr(category, "categories"):
        table = np.append(_translate(np.asarray(category.categories), lookup), -1)
        codes = by_chunks(np.asarray(category.codes), len(values), table.__getitem__)
    else:
        codes = _encode_array(as_vector(data, what), values, lookup)
    if codes.size and codes.min() < 0:
        raise InvalidInput(
            f"{what}: some entries are missing or not declared; declared are {list_values(values)}: "
            f"declare every value that may occur, or drop those rows{_mismatch(data, values)}"
        )
    return codes


def _mismatch(data: Any, values: tuple[Any, ...]) -> str:
    """Return a hint if the data are numbers and the declared values text, or the other way about."""
    kind = getattr(getattr(data, "dtype", None), "kind", "")
    if kind in "biuf" and kind and all(isinstance(value, str) for value in values):
        return ". The data are numbers and the declared values text: convert one of them"
    if kind in "UST" and kind and not any(isinstance(value, str) for value in values):
        return ". The data are text and the declared values are not: convert one of them"
    return ""


def by_chunks(array: NDArray[Any], count: int, translate: Callable[[NDArray[Any]], NDArray[Any]]) -> Codes:
    """Translate a vector into codes below `count` (or -1), some rows at a time and into few bytes a row."""
    codes = np.empty(len(array), dtype=np.min_scalar_type(-max(1, count)))
    for start in range(0, len(array), _CHUNK):
        codes[start : start + _CHUNK] = translate(array[start : start + _CHUNK])
    return codes


def as_vector(data: Any, what: str) -> NDArray[Any]:
    """Return a column as a one-dimensional array."""
    if isinstance(data, list | tuple):
        # np.asarray would turn a mix such as [1, "a"] into text
        return np.fromiter(data, dtype=object, count=len(data))
    if isinstance(data, str | bytes) or np.ndim(data) != 1:
        raise InvalidType(f"{what} must be one-dimensional, one entry per row")
    return np.asarray(data)


def _encode_array(array: NDArray[Any], values: tuple[Any, ...], lookup: Mapping[Any, int]) -> Codes:
    if array.dtype.kind in "biuf":
        return _encode_numbers(array, values)
    return by_chunks(array, len(values), lambda part: _translate(part, lookup))


def _translate(array: NDArray[Any], lookup: Mapping[Any, int]) -> NDArray[np.int32]:
    try:
        return np.fromiter(map(lookup.get, array.tolist(), repeat(-1)), dtype=np.int32, count=len(array))
    except TypeError:
        raise InvalidType("a column holds entries that are no scalars (unhashable)") from None


def _encode_numbers(array: NDArray[Any], values: tuple[Any, ...]) -> Codes:
    """Translate by bisection among the declared numbers; text among the values can match no number."""
    numbers = [(value, code) for code, value in enumerate(values) if isinstance(value, bool | int | float)]
    if not numbers:
        return np.full(len(array), -1, dtype=np.int8)
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if array.dtype.kind in "iu" and not all(_fits(value, array.dtype) for value, _ in numbers):
        # 0.5 or 10**30 can match no entry of this integer column, and must not be rounded into one
        numbers = [(value, code) for value, code in numbers if _fits(value, array.dtype)] or [(0, -1)]
    numbers.sort()
    keys = np.array([value for value, _ in numbers], dtype=array.dtype)
    codes = np.array([code for _, code in numbers], dtype=np.int32)

    def find(part: NDArray[Any]) -> NDArray[Any]:
        place = np.searchsorted(keys, part)
        np.minimum(place, len(keys) - 1, out=place)
        found = codes[place]
        found[keys[place] != part] = -1
        return found

    return by_chunks(array, len(values), find)


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    info = np.iinfo(dtype)
    return bool(value == value // 1 and info.min <= value <= info.max)


def _column_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidType(f"a column's name must be text that is not empty, got {name!r}")
    return name


def _column_values(name: str, values: Any) -> tuple[Any, ...] | Numeric:
    if isinstance(values, Numeric):
        return values
    if values is Numeric:
        raise InvalidType(f"column {name!r}: write Numeric() with brackets")
    return _distinct(f"column {name!r}", values)


def _distinct(what: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{what} must be a collection of values, got {type(values).__name__}")
    items = tuple(scalar(**{what: value}) for value in values)
    if not items:
        raise InvalidInput(f"{what} must hold at least one value, got none")
    seen: dict[Any, Any] = {}
    for item in items:
        if item in seen:
            also = (
                f"{seen[item]!r} and {item!r}, which Python holds equal"
                if repr(seen[item]) != repr(item)
                else repr(item)
            )
            raise InvalidInput(f"{what} must hold each value once, got {also} twice")
        seen[item] = item
    return items


def _positions(values: tuple[Any, ...]) -> dict[Any, int]:
    return {value: code for code, value in enumerate(values)}


def _unknown_value(column: str | None, value: Any, values: tuple[Any, ...] | Numeric) -> str:
    if isinstance(values, Numeric):
        return f"column {column!r} is numeric: use below, at_least or between, not the value {value!r}"
    place = "the classes" if column is None else f"the declared values of column {column!r}"
    listed = list_values(values)
    twin = next((known for known in values if str(known) == str(value)), None)
    hint = f"; did you mean {twin!r} ({type(twin).__name__})?" if twin is not None else ""
    return f"{value!r} is not among {place}: {listed}{hint}"
