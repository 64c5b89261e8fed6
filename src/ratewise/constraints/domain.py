"""The public facts that constraints are compiled against, and the coding of rows by them.

>>> domain = Domain(classes=(0, 1), columns={"sex": ("Female", "Male"), "age": Numeric()}, other=True)
>>> domain.code_labels([1, 0, None, "1", "unknown"])
array([ 1,  0, -1,  1, -1], dtype=int8)
>>> domain.code_column("sex", ["Male", float("nan"), "Female", ["a", "list"]])
array([1, 2, 0, 2], dtype=int8)
>>> domain.code_column("age", [31, "42", None, float("inf")])
array([31., 42., nan, nan])

Rows are coded by total functions: the code of a row depends on that row and on the declarations only, and no
value of a row raises an error. This is part of the privacy guarantee, because an error that depends on a row
is an answer about that row. A label that is not among the classes has code -1: the row is in no cell and adds
nothing to any sum. An undeclared or missing value of a column (a numeric one: anything but a finite number) has
the code after the last declared value; `Domain` says what becomes of such rows.
"""

from __future__ import annotations

import contextlib
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from itertools import repeat
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType

# -------------------------------------------------------------------------------------- coding of values


# Integer codes in the smallest type that holds them; numeric columns are coded as float64.
Codes = NDArray[Any]

_CHUNK = 1 << 16  # rows coded at a time, so that ten million rows of text need no second copy
_NUMBER_TEXT = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)
_LONGEST_NUMBER = 400  # characters; longer texts are not parsed as numbers
# types are compared by identity: even the hash of a class can be code of its metaclass
_BUILTIN = frozenset(map(id, (str, int, float, bool, bytes, NoneType)))
_CONVERTED = frozenset(map(id, (int, float, bool, Decimal, Fraction)))
_NUMERIC = frozenset(map(id, (int, float, bool, NoneType)))


def code_values(data: Any, declared: Iterable[Any], what: str = "values") -> Codes:
    """Return the position of each entry of `data` among the declared values, -1 if it is none of them.

    An entry matches a declared value if the two are equal in Python, or if they are the same number or the
    same truth value and one of them is text: 1 matches ``"1"`` and ``"1.0"``, unless two declared values would
    match. Entries are compared one by one, and only if their type is a built-in scalar, a NumPy scalar, a
    decimal, a fraction, or the type of a declared value: no method of any other object is called.

    >>> code_values(["b", 1, None, object(), b"b"], declared=("a", "b", "1"))
    array([ 1,  2, -1, -1, -1], dtype=int8)
    """
    return _Coding(tuple(declared)).codes(data, what)


def read_numbers(data: Any, what: str = "values") -> NDArray[np.float64]:
    """Return a vector as float64, with NaN for every entry that is not a finite number.

    Numbers as text count as numbers. Entries are read one by one, and none of them raises an error.

    >>> read_numbers(["1.5", True, None, "n/a", 10**400, [3]])
    array([1.5, 1. , nan, nan, nan, nan])
    """
    categories = _categories(data)
    if categories is not None:
        table: NDArray[np.float64] = np.append(read_numbers(categories[1], what), np.nan)
        return np.take(table, categories[0], mode="wrap")
    array = _as_vector(data, what)
    numbers = np.full(len(array), np.nan)
    if array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            numbers = array.astype(np.float64)
    elif array.dtype.kind in "OUT":
        for start in range(0, len(array), _CHUNK):
            numbers[start : start + _CHUNK] = _numbers_of(array[start : start + _CHUNK].tolist())
    numbers[~np.isfinite(numbers) | _masked(data)] = np.nan
    return numbers


class _Coding:
    """The declared values of one column, and the codes of the entries that match them."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.exact = {value: code for code, value in enumerate(values)}
        other_forms: dict[Any, set[int]] = {}
        for value, code in self.exact.items():
            for form in _other_forms(value):
                other_forms.setdefault(form, set()).add(code)
        unique = {form: codes.pop() for form, codes in other_forms.items() if len(codes) == 1}
        self._table = {**unique, **self.exact}
        self._kinds = _BUILTIN | {id(type(value)) for value in values} | {id(Decimal), id(Fraction)}

    def codes(self, data: Any, what: str) -> Codes:
        """Return the code of each entry, -1 if it matches no declared value."""
        categories = _categories(data)
        if categories is not None:
            table = np.append(self.codes(categories[1], what), -1)
            return by_chunks(categories[0], len(self.exact), table.__getitem__)
        array = _as_vector(data, what)
        look_up: Callable[[NDArray[Any]], Any] = self._of_objects
        if array.dtype.kind in "mM":
            times, array = self._times(array.dtype), array.view(np.int64)
            look_up = _bisection(times, array.dtype)
        elif array.dtype.kind in "biuf":
            array = array.view(np.uint8) if array.dtype.kind == "b" else array
            look_up = _bisection(self._table, array.dtype)
        found = by_chunks(array, len(self.exact), look_up)
        found[np.broadcast_to(_masked(data), found.shape)] = -1
        return found

    def _of_objects(self, array: NDArray[Any]) -> NDArray[np.int32]:
        items = array.tolist()
        builtin = set(map(id, map(type, items))) <= _BUILTIN
        codes = map(self._table.get, items, repeat(-1)) if builtin else map(self._one, items)
        return np.fromiter(codes, dtype=np.int32, count=len(items))

    def _one(self, value: Any) -> int:
        value = _plain(value)
        if id(type(value)) not in self._kinds:
            return -1
        try:
            return self._table.get(value, -1)
        except Exception:  # a value that cannot be hashed or compared, such as a signalling NaN, matches none
            return -1

    def _times(self, dtype: np.dtype[Any]) -> dict[int, int]:
        """Return the codes of the declared dates, times and durations, as integers in the unit of `dtype`."""
        found = {}
        for value, code in self.exact.items():
            if isinstance(value, date if dtype.kind == "M" else timedelta):
                with contextlib.suppress(OverflowError, TypeError, ValueError):  # outside the range of the unit
                    found[int(np.array(value, dtype=dtype).view(np.int64))] = code
        return found


def _bisection(table: Mapping[Any, int], dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return the function that codes numbers of a type by bisection among the numbers of a table."""
    fitting = ((key, code) for key, code in table.items() if _fits(key, dtype))
    numbers = sorted(fitting) or [(0, -1)]
    keys, codes = np.array([key for key, _ in numbers], dtype=dtype), np.array([code for _, code in numbers])

    def find(part: NDArray[Any]) -> NDArray[Any]:
        place = np.minimum(np.searchsorted(keys, part), len(keys) - 1)
        return np.where(keys[place] == part, codes[place], -1)

    return find


def _fits(key: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a number can match one of a type: 0.5 must not be rounded into an integer column."""
    if not isinstance(key, bool | int | float):
        return False
    if dtype.kind in "iu":
        return bool(key == key // 1 and np.iinfo(dtype).min <= key <= np.iinfo(dtype).max)
    return abs(key) <= float(np.finfo(dtype).max) or (isinstance(key, float) and math.isinf(key))


def _other_forms(value: Any) -> list[Any]:
    """Return what else means a declared value: a number or a truth value as text, or text as one."""
    if isinstance(value, bool):
        return [str(value)]
    if value in ("True", "False"):
        return [value == "True"]
    number = _number(value) if isinstance(value, str | int | float) else math.nan
    texts = [repr(number).removesuffix(".0"), repr(number)]
    if isinstance(value, str):
        return [] if math.isnan(number) else [number, *texts]
    return texts if number == value else []


def _plain(value: Any) -> Any:
    """Return a built-in scalar for NumPy scalars and for instances of subclasses of built-in scalars."""
    kind = type(value)
    if id(kind) in _BUILTIN:
        return value
    if issubclass(kind, np.generic):
        value = np.generic.item(value)
        kind = type(value)
    # operations of the built-in type itself, which a subclass cannot replace
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, float):
        return float.__add__(value, 0.0)
    if issubclass(kind, int) and kind is not bool:
        return int.__add__(value, 0)
    return value


def _numbers_of(items: list[Any]) -> Any:
    if set(map(id, map(type, items))) <= _NUMERIC:
        with contextlib.suppress(OverflowError):  # an integer beyond the floats; others are read as before
            return np.array(items, dtype=np.float64)
    return np.fromiter(map(_number, items), dtype=np.float64, count=len(items))


def _number(value: Any) -> float:
    """Return a scalar as a finite float, NaN if it is none."""
    value = _plain(value)
    if type(value) is str:
        readable = len(value) <= _LONGEST_NUMBER and _NUMBER_TEXT.fullmatch(value) is not None
    else:
        readable = id(type(value)) in _CONVERTED
    try:
        number = float(value) if readable else math.nan
    except (OverflowError, ValueError):  # beyond the floats, or a signalling NaN
        return math.nan
    return number if math.isfinite(number) else math.nan


def _categories(data: Any) -> tuple[NDArray[Any], Any] | None:
    """Return codes and categories of a categorical column of pandas, None for everything else."""
    holder: Any
    for holder in (data, getattr(data, "cat", None)):
        if hasattr(holder, "codes") and hasattr(holder, "categories"):
            return np.asarray(holder.codes), np.asarray(holder.categories)
    return None


def _masked(data: Any) -> Any:
    """Return which entries of a masked array are missing; False if `data` is none."""
    return np.ma.getmask(data) if isinstance(data, np.ma.MaskedArray) else False


def by_chunks(array: NDArray[Any], count: int, translate: Callable[[NDArray[Any]], NDArray[Any]]) -> Codes:
    """Translate a vector into codes in -1..count, a chunk at a time and into the smallest integer type."""
    codes = np.empty(len(array), dtype=np.min_scalar_type(-max(1, count + 1)))
    for start in range(0, len(array), _CHUNK):
        codes[start : start + _CHUNK] = translate(array[start : start + _CHUNK])
    return codes


def _as_vector(data: Any, what: str) -> NDArray[Any]:
    """Return a column as a one-dimensional array, without a common type for the entries of a list."""
    if isinstance(data, list | tuple):
        # np.asarray would turn a mix such as [1, "a"] into text
        return np.fromiter(data, dtype=object, count=len(data))
    if isinstance(data, str | bytes) or np.ndim(data) != 1:
        raise InvalidType(f"{what} must be one-dimensional, one entry per row")
    return np.asarray(data)


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

    def __reduce__(self) -> tuple[Any, ...]:
        # without the codings, which hold addresses of types
        return partial(Domain, other=self.other), (self.classes, self.columns)

    def __hash__(self) -> int:
        return hash((self.classes, frozenset(self.columns.items()), self.other))

    @cached_property
    def _codings(self) -> dict[str | None, _Coding]:
        found: Any = {None: self.classes, **self.columns}
        return {name: _Coding(values) for name, values in found.items() if not isinstance(values, Numeric)}

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
        found = self._codings[column].exact.get(value)
        if found is None:
            place = "the classes" if column is None else f"the declared values of column {column!r}"
            twin = next((known for known in values if str(known) == str(value)), None)
            hint = f"; did you mean {twin!r} ({type(twin).__name__})?" if twin is not None else ""
            raise InvalidInput(f"{value!r} is not among {place}: {list_values(values)}{hint}")
        return found

    def code_labels(self, labels: Any) -> Codes:
        """Return the position of each label among the classes, -1 for undeclared and missing labels; total."""
        return self._codings[None].codes(labels, "the labels")

    def code_column(self, column: str, data: Any, *, strict: bool = False) -> Codes:
        """Return a vector of a declared column, of any library, as codes or (numeric columns) as numbers; total.

        With V declared values the codes are 0..V, where V stands for undeclared and missing values; see
        `code_values`. Numbers are float64, NaN where an entry is not a finite number; see `read_numbers`. With
        `strict`, which is not for private rows, such entries raise an error.
        """
        values, what = self.values(column), f"column {column!r}"
        if isinstance(values, Numeric):
            numbers = read_numbers(data, what)
            if strict and np.isnan(numbers).any():
                raise InvalidInput(
                    f"{what} is numeric, by its declaration or because constraints name intervals "
                    "of it, but holds missing values, infinity or entries that are not numbers; convert it "
                    "(dates into days), or drop those rows"
                )
            return numbers
        if strict:
            return encode(data, values, what)
        codes = self._codings[column].codes(data, what)
        codes[codes < 0] = len(values)
        return codes


def list_values(values: Iterable[Any], most: int = 12) -> str:
    """Return public values as text for a message, shortened after `most`."""
    items = list(values)
    shown = ", ".join(map(repr, items[:most])) or "none"
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def encode(data: Any, values: tuple[Any, ...], what: str) -> Codes:
    """Return `code_values`, and raise if an entry is undeclared. Not for private rows."""
    codes = code_values(data, values, what)
    if codes.size and codes.min() < 0:
        kind, hint = getattr(getattr(data, "dtype", None), "kind", "") or "?", ""
        if kind in "biuf" and all(isinstance(value, str) for value in values):
            hint = ". The data are numbers and the declared values text: convert one of them"
        if kind in "UST" and not any(isinstance(value, str) for value in values):
            hint = ". The data are text and the declared values are not: convert one of them"
        raise InvalidInput(
            f"{what}: some entries are missing or not declared; declared are {list_values(values)}: "
            f"declare every value that may occur, or drop those rows{hint}"
        )
    return codes


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
