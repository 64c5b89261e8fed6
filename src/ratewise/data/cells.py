"""Cells of a table as numbers or as canonical text: total functions of one cell and of public declarations.

`parse_number` and `parse_text` are used by training and by prediction. Both map every cell separately:

    parse_number(column)[i] = number_of(column[i])        parse_text(column)[i] = text_of(column[i])

**Guarantee.** The result for a cell depends on that cell and on the `CellFormat` only: not on other cells of
the column, not on the data type in which the column is stored, and no content raises an exception or emits a
warning. Replacing one row of a table therefore changes the result of that row alone, also if the new row
changes the storage of the column (text in a column of numbers, a missing value in a column of integers).

Conversions between storage types are undone by canonical forms. All numbers are read as float64, because a
missing value turns an integer column into float64. Text that spells a number is that number, because one
word turns a column of a CSV file from numbers into text: 1, 1.0, True, "1", "1.0" and "true" are one value.

>>> parse_number([1, "2.5", "n/a", "abc", None]).values.tolist()
[1.0, 2.5, nan, nan, nan]
>>> parse_number([1, "2.5", "n/a", "abc", None]).codes.tolist()
[0, 0, 1, 2, 1]
>>> parse_text([1, 1.0, "1", True, " clerk ", None]).tolist()
['1', '1', '1', '1', 'clerk', '']
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import math
import operator
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratewise.exceptions import InvalidInput, InvalidType

NUMBER, MISSING, UNPARSABLE = 0, 1, 2
MISSING_TEXT = ""
UNREADABLE_TEXT = "<unreadable>"

# In a column of numbers these words mean that no number is known. Compared without case and white space.
MISSING_WORDS = frozenset(
    [
        *("?", "-", "--", "---", ".", "..", "...", "*", "\u2013", "\u2014", "\\n"),
        *("na", "n/a", "n.a.", "n.a", "n/d", "nd", "k.a.", "nan", "nat", "<na>", "null", "none", "nil"),
        *("#n/a", "#n/a!", "#na", "#value!", "#ref!", "#div/0!", "#null!", "#name?", "#num!"),
        *("missing", "unknown", "unk", "undefined", "unspecified", "blank", "empty", "tbd"),
        *("(blank)", "(null)", "(empty)", "[null]", "not available", "not applicable", "not known"),
        *("no data", "not specified", "don't know", "not reported"),
    ]
)

_FLAGS = {"true": 1.0, "false": 0.0}
_SYMBOLS = "$\u20ac\u00a3\u00a5%"  # a price or a percentage is a number
_BLANKS = "\ufeff\u200b\u200c\u200d\u2060\x00" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))
_FIXED = "biufmM"  # kinds of arrays whose cells are all numbers, or all times; others are read cell by cell
_CHUNK = 1 << 16  # cells read at a time
_INTERVAL = re.compile(r"[\[(](?P<low>[^\[\]()]+), (?P<high>[^\[\]()]+)[\])]\Z")

_US_PER_DAY = 86_400_000_000
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_FURTHEST_DAY = 10**8  # about 270,000 years: what dates can say; counts of days beyond are moved here

Floats = NDArray[np.float64]
_Times = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


@dataclass(frozen=True)
class CellFormat:
    """How numbers and dates are written in text cells: a public declaration, never inferred from rows.

    Parameters
    ----------
    decimal : {".", ","}
        The decimal mark. With "," both "1,5" and "1.5" are 1.5, unless "." separates thousands.
    thousands : {None, ",", ".", " ", "'"}
        The mark between groups of three digits; None accepts no such mark.
    date_order : {None, "dmy", "mdy"}
        How "03/04/2020" is read; None does not read it. ISO dates (2020-04-03) and dates with the English name of a
        month (3 Apr 2020, April 3, 2020, 03-APR-20, Apr-2020) are read in any case.
    missing : tuple of str
        Further texts that mean "missing", in numbers and in categories; compared without case.
    """

    decimal: str = "."
    thousands: str | None = None
    date_order: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, choices in (
            ("decimal", (".", ",")),
            ("thousands", (None, ",", ".", " ", "'")),
            ("date_order", (None, "dmy", "mdy")),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise InvalidInput(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        if self.decimal == self.thousands:
            raise InvalidInput(f"decimal and thousands must differ, got {self.decimal!r} for both")
        listed = isinstance(self.missing, Sequence) and not isinstance(self.missing, str)
        if not listed or not all(isinstance(word, str) for word in self.missing):
            raise InvalidType(f"missing must be a list of texts, got {self.missing!r}")
        object.__setattr__(self, "missing", tuple(self.missing))


DEFAULT_FORMAT = CellFormat()


class CellKind(enum.IntEnum):
    """What a cell looks like, by itself."""

    MISSING = 0
    WORD = 1  # a word such as "n/a": missing in a column of numbers, a value in a column of categories
    NUMBER = 2
    DATE = 3
    DURATION = 4  # and a time of day
    TEXT = 5
    UNREADABLE = 6


class ParsedNumbers(NamedTuple):
    """A column as numbers: NaN where there is none, and `NUMBER`, `MISSING` or `UNPARSABLE` for each cell."""

    values: Floats
    codes: NDArray[np.uint8]


# ------------------------------------------------------------------------------------- whole columns


def parse_number(values: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> ParsedNumbers:
    """Return a column (list, array, series, Arrow array) as float64, with a code for cells that hold no number.

    Dates and times are days since 1970-01-01 in UTC (date and time truncated to microseconds), durations
    are days, clock times are fractions of a day, booleans are 0 and 1. Plus and minus infinity are numbers.
    """
    stored, reader = stored_column(values), _reader(cell_format)
    if isinstance(stored, _Dictionary):
        known = parse_number(stored.entries, cell_format)
        return ParsedNumbers(stored.spread(known.values, math.nan), stored.spread(known.codes, MISSING))
    if stored.dtype.kind in _FIXED:
        return _numbers(stored, reader)
    found = _each(stored, reader.number, np.dtype([("value", np.float64), ("code", np.uint8)]))
    return ParsedNumbers(found["value"].copy(), found["code"].copy())


def parse_text(values: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> NDArray[np.object_]:
    """Return a column as canonical text: an object array of `str`, "" where a cell is missing.

    Two cells have the same text exactly if they mean the same value: 1, 1.0, "1" and True do, and so do a
    timestamp and its ISO text. Objects that are no scalars give `UNREADABLE_TEXT`.
    """
    return _column(stored_column(values), _reader(cell_format).text, MISSING_TEXT)


def plain_texts(values: Any, cell_format: CellFormat) -> NDArray[np.object_]:
    """Return cells as texts that the default format reads as `cell_format` reads the cells."""
    return _each(np.asarray(values, dtype=object), _reader(cell_format).plain, np.dtype(object))


def parse_ids(values: Any) -> NDArray[np.object_]:
    """Return a column as texts that identify: as `parse_text`; of a tuple, the texts of its parts."""
    reader = _reader(DEFAULT_FORMAT)

    def text(cell: Any) -> str:
        if type(cell) is tuple:
            return "".join(f"({len(part)}:{part})" for part in map(reader.text, cell))
        return reader.text(cell)

    return _column(stored_column(values), text, MISSING_TEXT)


def code_cells(values: Any, declared: Sequence[Any], cell_format: CellFormat = DEFAULT_FORMAT) -> NDArray[np.intp]:
    """Return the place of each cell among declared values, -1 if it is none of them, -2 if it is missing.

    A cell is a declared value if their canonical texts are equal (`parse_text`). Of declared values with the same
    text, the first counts.

    >>> code_cells([1, "1.0", " b ", None, "c"], declared=("b", 1)).tolist()
    [1, 1, 0, -2, -1]
    """
    reader = _reader(cell_format)
    table: dict[str, int] = {}
    for place, value in enumerate(declared):
        table.setdefault(reader.text(value), place)
    table[MISSING_TEXT] = -2

    return _column(stored_column(values), lambda cell: table.get(reader.text(cell), -1), -2, np.intp)


def refuse_ambiguous(what: str, declared: Iterable[Any]) -> None:
    """Raise if two declared values have the same canonical text, or if one has the text of no value."""
    seen: dict[str, Any] = {}
    for value in declared:
        text = text_of(value)
        if text in (MISSING_TEXT, UNREADABLE_TEXT):
            read = "missing" if text == MISSING_TEXT else "no text, number or date"
            raise InvalidInput(f"{what} must hold values that cells can have, got {value!r}: such a cell is {read}")
        if text in seen:
            also = "" if repr(seen[text]) == repr(value) else f": cells cannot tell it from {seen[text]!r}"
            raise InvalidInput(f"{what} must hold each value once, got {value!r} twice{also}")
        seen[text] = value


def cell_kinds(values: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> NDArray[np.uint8]:
    """Return what each cell of a column looks like, as values of `CellKind`; each cell by itself."""
    stored, reader = stored_column(values), _reader(cell_format)
    if isinstance(stored, np.ndarray) and stored.dtype.kind in "biuf":  # the same, in less time
        return np.array([CellKind.NUMBER, CellKind.MISSING], dtype=np.uint8)[_numbers(stored, reader).codes]
    return _column(stored, reader.kind, int(CellKind.MISSING), np.uint8)


def count_kinds(values: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> NDArray[np.intp]:
    """Return the number of cells of each `CellKind`."""
    return np.bincount(cell_kinds(values, cell_format), minlength=len(CellKind))


def _column(
    stored: NDArray[Any] | _Dictionary, of_cell: Callable[[Any], Any], missing: Any, dtype: Any = object
) -> NDArray[Any]:
    """Return the result of every row: of the entries of a dictionary, of the values of an array, or cell by cell."""
    if isinstance(stored, _Dictionary):
        return stored.spread(_column(stored_column(stored.entries), of_cell, missing, dtype), missing)
    if stored.dtype.kind not in _FIXED:
        return _each(stored, of_cell, np.dtype(dtype))
    distinct, places = np.unique(stored, return_inverse=True)
    found = np.empty(len(distinct), dtype=dtype)
    found[:] = list(map(of_cell, distinct if stored.dtype.kind in "mM" else distinct.tolist()))
    return found[places.reshape(-1)]


def _each(stored: NDArray[Any], parse: Callable[[Any], Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the result of every cell; in each chunk a repeated text is parsed once."""
    found = np.empty(len(stored), dtype=dtype)
    for start in range(0, len(stored), _CHUNK):
        cells = stored[start : start + _CHUNK].tolist()
        if set(map(id, map(type, cells))) == {id(str)}:  # the same, in less time; hashing a type may run its code
            known = {text: parse(text) for text in set(cells)}
            found[start : start + len(cells)] = list(map(known.__getitem__, cells))
            continue
        # cells of other types may run code of their own, and are not compared
        known = {text: parse(text) for text in {cell for cell in cells if type(cell) is str}}
        found[start : start + len(cells)] = [known[cell] if type(cell) is str else parse(cell) for cell in cells]
    return found


def _numbers(array: NDArray[Any], reader: _Reader) -> ParsedNumbers:
    """Return numbers of an array of a fixed type."""
    if array.dtype.kind in "mM":
        days, microseconds, absent = _days(array)
        for time in reader.missing_times:
            if time.duration == (array.dtype.kind == "m") and not time.clock:
                absent |= (days == time.days) & (microseconds == time.microseconds)
        found = days + microseconds / _US_PER_DAY
        found[absent] = math.nan
        return ParsedNumbers(found, absent.astype(np.uint8))
    with np.errstate(all="ignore"):
        found = array.astype(np.float64)
    codes = np.isnan(found).astype(np.uint8)
    for value in reader.missing_numbers:
        codes[found == value] = MISSING
    found[codes == MISSING] = math.nan
    return ParsedNumbers(found, codes)


# ------------------------------------------------------------------------------- storage of a column


class _Dictionary(NamedTuple):
    """A column stored as places in a list of entries; the place -1 is a missing cell."""

    entries: Any
    places: NDArray[np.intp]

    def spread(self, results: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return the result of each row, given those of the entries."""
        with_missing = np.empty(len(results) + 1, dtype=results.dtype)
        with_missing[:-1], with_missing[-1] = results, missing
        return with_missing[self.places]


def stored_column(values: Any) -> NDArray[Any] | _Dictionary:
    """Return a column as a one-dimensional array, or as a dictionary; cells are not looked at."""
    if isinstance(values, str | bytes | Mapping | set | frozenset):
        raise InvalidType(f"a column must be a vector with one cell per row, got {type(values).__name__}")
    if isinstance(values, Sequence) and not hasattr(values, "__array__"):
        # np.asarray would turn a mix such as [1, "a"] into text
        return np.fromiter(values, dtype=object, count=len(values))
    if isinstance(values, np.ma.MaskedArray):
        known = _vector(values.data)  # as it is stored: as objects, some times would be integers
        return _Dictionary(known, np.where(_vector(np.ma.getmaskarray(values)), -1, np.arange(len(known))))
    dtype = None if isinstance(values, np.ndarray) else getattr(values, "dtype", None)
    kind = type(dtype).__name__
    if kind == "CategoricalDtype":
        held = values.cat if hasattr(values, "cat") else values
        return _Dictionary(held.categories, np.asarray(held.codes, dtype=np.intp))
    if kind == "StringDtype" and (found_texts := _distinct(values)) is not None:
        return found_texts
    if kind == "DatetimeTZDtype":  # in UTC
        values = values.dt.tz_convert(None) if hasattr(values, "dt") else values.tz_convert(None)
    elif hasattr(dtype, "numpy_dtype") and getattr(dtype, "kind", "O") in "iufb":
        values = values.to_numpy(dtype=np.float64, na_value=math.nan)
    elif hasattr(getattr(dtype, "pyarrow_dtype", None), "index_type"):
        values = getattr(values, "array", values).__arrow_array__()
    arrow: Any = getattr(values, "type", None)
    if hasattr(arrow, "index_type") and hasattr(values, "cast"):
        values = values.cast(arrow.value_type)  # as an array, a dictionary of Arrow loses which rows are null
    return _vector(_cells(values))


def _distinct(values: Any) -> _Dictionary | None:
    """Return a pandas column of texts as a dictionary, which is read faster; None if a text is no UTF-8."""
    try:
        places, entries = getattr(values, "array", values).factorize()
        return _Dictionary(np.asarray(entries, dtype=object), np.asarray(places, dtype=np.intp))
    except Exception:  # pandas and Arrow raise errors of many kinds
        return None


def _cells(values: Any, dtype: Any = None) -> NDArray[Any]:
    """Return a column of another library as an array.

    A conversion that fails because of one cell (a date beyond the calendar, a time of more than a day, text that is
    no UTF-8) or because of the type that one cell gave the column (integers of 128 bits, structures with its fields,
    which become columns) is done cell by cell. Nested cells of polars, of which some end in a panic, are not converted.
    """
    nested = getattr(getattr(values, "dtype", None), "is_nested", None)
    if nested is not None and nested():
        found = np.full(len(values), _UNREADABLE, dtype=object)
        found[values.is_null().to_numpy()] = None
        return found
    with contextlib.suppress(Exception):  # pandas, polars and Arrow raise errors of many kinds
        found = np.asarray(values, dtype=dtype)
        if found.ndim <= len(getattr(values, "shape", found.shape)):
            return found
    return np.fromiter(map(_cell, repeat(values), range(len(values))), dtype=object, count=len(values))


def joined_cells(parts: Sequence[Any]) -> Any:
    """Return the cells of series of pandas one after the other, each read as in its own series.

    Series of several types become one of objects: their common type may not hold a cell of some of them.
    """
    import pandas as pd

    if all(part.dtype == parts[0].dtype for part in parts):
        return pd.concat(parts, ignore_index=True)
    cells = [cell for part in parts for cell in _cells(part, object)]
    return pd.Series(np.fromiter(cells, dtype=object, count=len(cells)), dtype=object)


def _cell(values: Any, place: int) -> Any:
    try:
        cell = values.iloc[place] if hasattr(values, "iloc") else values[place]
        return cell.as_py() if hasattr(cell, "as_py") else cell
    except KeyboardInterrupt:
        raise
    except BaseException:  # of a library, or of a class of the user's own
        return _UNREADABLE


def _vector(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidType(f"a column must be a vector with one cell per row, got an array of {array.ndim} dimensions")
    return array


# --------------------------------------------------------------------------------------- single cells


def number_of(cell: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> tuple[float, int]:
    """Return one cell as a number and its code: the definition of `parse_number`.

    >>> number_of("1.234,5", CellFormat(decimal=",", thousands="."))
    (1234.5, 0)
    """
    return _reader(cell_format).number(cell)


def text_of(cell: Any, cell_format: CellFormat = DEFAULT_FORMAT) -> str:
    """Return one cell, or one declared value, as canonical text: the definition of `parse_text`.

    >>> text_of(3.0), text_of("003"), text_of("2020-01-05 00:00:00")
    ('3', '3', '2020-01-05')
    """
    return _reader(cell_format).text(cell)


def number_of_text(text: str) -> float:
    """Return the number whose canonical text this is, NaN if there is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if _text_of_float(number) == text else math.nan


def date_of_days(days: float) -> str:
    """Return the date, with the time if it is not midnight, of a number of days since 1970-01-01.

    >>> date_of_days(18266.5)
    '2020-01-05T12:00:00'
    """
    if not math.isfinite(days):
        return MISSING_TEXT
    day = math.floor(days)
    return _Time(_near(day), min(round((days - day) * _US_PER_DAY), _US_PER_DAY - 1)).text()


class _Reader:
    """Reads single cells of one format; it has no state, so that one reader per format is enough."""

    def __init__(self, cell_format: CellFormat) -> None:
        self._format = cell_format
        mark, point = cell_format.thousands, re.escape(cell_format.decimal)
        self._grouped = None
        if mark is not None:
            group = rf"{re.escape(mark)}\d{{3}}"
            self._grouped = re.compile(rf"[+-]?\d{{1,3}}(?:{group})+(?:{point}\d*)?\Z", re.ASCII)
        words = frozenset(_clean(word).lower() for word in cell_format.missing)
        self._missing_values = words | {"", "nan", "nat", "<na>"}
        self._missing_words = words | MISSING_WORDS | {""}
        spelled = (self._spelled(word) for word in words)
        self.missing_numbers = tuple(value for value in spelled if value is not None and value == value)
        times = (_time_of_text(_clean(word), cell_format.date_order) for word in cell_format.missing)
        self.missing_times = frozenset(time for time in times if time is not None)

    def number(self, cell: Any) -> tuple[float, int]:
        """Return the number and its code."""
        value = self._read(cell, self._missing_words, symbols=True)
        if type(value) is float:
            return value, NUMBER
        if type(value) is _Time:
            return value.days + value.microseconds / _US_PER_DAY, NUMBER
        return math.nan, MISSING if value is None else UNPARSABLE

    def text(self, cell: Any) -> str:
        """Return the canonical text."""
        return _canonical(self._read(cell, self._missing_values, symbols=False))

    def plain(self, cell: Any) -> str:
        """Return text that means in the default format what the cell means in this one."""
        text, (value, code) = self.text(cell), self.number(cell)
        if code != NUMBER or number_of(text)[1] == NUMBER:
            return text
        return text.replace(text.strip(_SYMBOLS).strip(), _text_of_float(value))  # a price or a percentage

    def kind(self, cell: Any) -> CellKind:
        """Return what the cell looks like."""
        value = self._read(cell, self._missing_values, symbols=True)
        if type(value) is str:
            return CellKind.WORD if value.lower() in self._missing_words else CellKind.TEXT
        if type(value) is _Time:
            return CellKind.DURATION if value.duration or value.clock else CellKind.DATE
        if type(value) is float:
            return CellKind.NUMBER
        return CellKind.MISSING if value is None else CellKind.UNREADABLE

    def _read(self, cell: Any, missing: frozenset[str], symbols: bool) -> Any:
        """Return a number, a `_Time`, None if the cell means missing, other text, or `_UNREADABLE`."""
        value = cell if type(cell) is str or type(cell) is float else _plain(cell)
        if type(value) is str:
            value = self._of_text(_clean(value), missing, symbols)
        if type(value) is float and (value != value or value in self.missing_numbers):
            return None
        return None if type(value) is _Time and value in self.missing_times else value

    def _of_text(self, text: str, missing: frozenset[str], symbols: bool) -> Any:
        value = self._spelled(text)
        if value is not None:
            return value
        if text.lower() in missing:
            return None
        if symbols:
            value = self._spelled(text.strip(_SYMBOLS).strip())
            if value is not None:
                return value
        time = _time_of_text(text, self._format.date_order)
        return self._interval(text) if time is None else time

    def _interval(self, text: str) -> str:
        """Return an interval with its ends in canonical form: one missing interval turns whole ends into floats."""
        found = _INTERVAL.match(text) if len(text) <= 120 else None
        if found is None:
            return text
        low, high = (_canonical(self._of_text(end, frozenset(), symbols=False)) for end in found.group("low", "high"))
        return f"{text[0]}{low}, {high}{text[-1]}"

    def _spelled(self, text: str) -> float | None:
        """Return the number that a text spells, also NaN, or None."""
        # float() accepts 1_000 and the digits of all scripts
        if not text or not text.isascii() or "_" in text:
            return None
        if self._grouped is not None and self._grouped.match(text):
            text = text.replace(str(self._format.thousands), "")
        if self._format.decimal == ",":
            text = text.replace(",", ".")
        try:
            return float(text)
        except ValueError:
            return _FLAGS.get(text.lower())


_reader = functools.lru_cache(maxsize=64)(_Reader)


class _Time(NamedTuple):
    """A moment, a duration, or a time of day."""

    days: int
    microseconds: int
    duration: bool = False
    clock: bool = False

    def text(self) -> str:
        """Return the canonical text: an ISO date, with the time if it is not midnight, or days and the time."""
        day = f"{self.days} days" if self.duration else str(np.datetime64(self.days, "D"))
        if not self.microseconds and not self.clock:
            return day
        since = datetime.datetime.min + datetime.timedelta(microseconds=self.microseconds)
        clock = since.time().isoformat()
        return clock if self.clock else f"{day}{' ' if self.duration else 'T'}{clock}"


_UNREADABLE = object()


def _clean(text: str) -> str:
    """Return text without surrounding white space, in one Unicode form that can be written to any file."""
    if text.isascii():
        return text.strip(" \t\r\n\v\f\x00")
    text = text.translate(_SPACES).encode("utf-8", "replace").decode("utf-8")
    return unicodedata.normalize("NFC", text).strip(_BLANKS)


def _canonical(value: Any) -> str:
    """Return the canonical text of what a reader reads."""
    if type(value) is float:
        return _text_of_float(value)
    if type(value) is _Time:
        return value.text()
    if value is None:
        return MISSING_TEXT
    return value if type(value) is str else UNREADABLE_TEXT


def _text_of_float(value: float) -> str:
    """Return the canonical text of a number: whole numbers without a point."""
    if value != value:
        return MISSING_TEXT
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def _near(days: int) -> int:
    return max(-_FURTHEST_DAY, min(days, _FURTHEST_DAY))


# -------------------------------------------------------------------------------- cells that are objects


def _plain(cell: Any) -> Any:
    """Return a cell as text, float, `_Time`, None for missing, or `_UNREADABLE`; never raises.

    Only types whose behaviour is known are converted; a subclass is read by the methods of its base, so that
    no code of an unknown class decides.
    """
    kind = type(cell)
    try:
        if cell is None or kind.__name__ in ("NAType", "NaTType", "MaskedConstant"):
            return None
        bases = list(map(id, _bases(kind)))  # comparing or hashing a class may run code of its metaclass
        for base, convert in _CONVERSIONS:
            if id(base) in bases:
                return convert(cell)
        if kind.__module__.partition(".")[0] == "pandas":
            if kind.__name__ == "Period":
                return _of_datetime(cell.start_time)
            return str.__str__(str(cell)) if kind.__name__ == "Interval" else _UNREADABLE
    except KeyboardInterrupt:
        raise
    except BaseException:  # the time zone of a date, or a method of a subclass, may raise anything
        return _UNREADABLE
    return _UNREADABLE


def _of_ratio(numerator: int, denominator: int = 1) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return -math.inf if numerator < 0 else math.inf


def _of_numpy(cell: Any) -> Any:
    if not issubclass(type(cell), np.longdouble | np.clongdouble | np.datetime64 | np.timedelta64):
        plain = np.generic.item(cell)
        return _UNREADABLE if issubclass(type(plain), np.generic) else _plain(plain)
    array = np.array([cell])
    if array.dtype.kind in "mM":
        days, rest, absent = _days(array)
        return None if absent[0] else _Time(int(days[0]), int(rest[0]), array.dtype.kind == "m")
    with np.errstate(all="ignore"):
        return _of_complex(complex(array.astype(np.complex128)[0]))


def _of_complex(cell: complex) -> Any:
    value = complex.__complex__(cell)
    if math.isnan(value.real) or math.isnan(value.imag):
        return None
    return value.real if value.imag == 0 else _UNREADABLE


def _of_datetime(cell: datetime.datetime) -> Any:
    if not datetime.MINYEAR <= cell.year <= datetime.MAXYEAR:  # of pandas; Python's methods give another date
        return _of_numpy(cell.to_datetime64())  # type: ignore[attr-defined]
    days, rest = datetime.datetime.toordinal(cell) - _EPOCH, _since_midnight(cell)
    offset = datetime.datetime.utcoffset(cell)
    if offset is not None:
        days, rest = days - offset.days, rest - offset.seconds * 10**6 - offset.microseconds
    return _whole(days, rest)


def _since_midnight(cell: datetime.datetime | datetime.time) -> int:
    return ((cell.hour * 60 + cell.minute) * 60 + cell.second) * 10**6 + cell.microsecond


def _of_timedelta(cell: datetime.timedelta) -> _Time:
    return _whole(cell.days, cell.seconds * 10**6 + cell.microseconds, duration=True)


def _whole(days: Any, microseconds: Any, **kind: bool) -> _Time:
    """Return a time from parts that a subclass may define as it likes; raises if they are no integers."""
    more, rest = divmod(operator.index(microseconds), _US_PER_DAY)
    return _Time(_near(operator.index(days) + more), rest, **kind)


_bases = type.__dict__["__mro__"].__get__
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda cell: _UNREADABLE if issubclass(type(cell._value_), enum.Enum) else _plain(cell._value_)),
    (str, str.__str__),
    *((kind, lambda cell: bytes(cell).decode("utf-8", "replace")) for kind in (bytes, bytearray, memoryview)),
    (int, lambda cell: _of_ratio(int.__int__(cell))),  # and bool
    (float, float.__float__),  # and np.float64
    (np.generic, _of_numpy),
    (complex, _of_complex),
    (decimal.Decimal, lambda cell: None if decimal.Decimal.is_nan(cell) else decimal.Decimal.__float__(cell)),
    (fractions.Fraction, lambda cell: _of_ratio(cell.numerator, cell.denominator)),
    (datetime.datetime, _of_datetime),  # and pandas.Timestamp
    (datetime.date, lambda cell: _Time(datetime.date.toordinal(cell) - _EPOCH, 0)),
    (datetime.timedelta, _of_timedelta),  # and pandas.Timedelta
    (datetime.time, lambda cell: _whole(0, _since_midnight(cell), clock=True)),
    (uuid.UUID, uuid.UUID.__str__),
)

_PARTS = {"h": 24, "m": 1440, "s": 86_400, "ms": 86_400_000, "us": _US_PER_DAY}
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}


def _days(array: NDArray[Any]) -> _Times:
    """Return whole days, the remaining microseconds (rounded down), and which entries are no time."""
    absent = np.isnat(array)
    unit, step = np.datetime_data(array.dtype)
    rest = np.zeros(len(array), dtype=np.int64)
    if unit == "generic":
        return rest, rest, np.ones(len(array), bool)
    counts = np.where(absent, 0, array.astype(array.dtype.newbyteorder("=")).view(np.int64))
    if step != 1:
        counts = np.clip(counts, -(2**62) // step, 2**62 // step) * step
    if unit in ("Y", "M"):
        counts = np.clip(counts, -3_000_000, 3_000_000)
        if array.dtype.kind == "M":
            days = counts.astype(f"datetime64[{unit}]").astype("datetime64[D]").view(np.int64)
        else:
            days = np.floor(counts * (365.2425 if unit == "Y" else 30.436875)).astype(np.int64)
    elif unit in ("W", "D"):
        days = np.clip(counts, -_FURTHEST_DAY, _FURTHEST_DAY) * (7 if unit == "W" else 1)
    else:
        parts = _PARTS.get(unit, _US_PER_DAY)
        days, rest = np.divmod(counts // _FINER.get(unit, 1), parts)
        rest = rest * (_US_PER_DAY // parts)
    return np.clip(days, -_FURTHEST_DAY, _FURTHEST_DAY), rest, absent


# ------------------------------------------------------------------------------- dates and times in text


_CLOCK = r"(?P<h>\d{1,2}):(?P<m>\d{2})(?::(?P<s>\d{2})(?:\.(?P<f>\d+))?)?(?:\s?(?P<half>[AaPp])\.?[Mm]\.?)?"
_ZONE = r"(?:\s?(?P<zone>Z|UTC|[+-]\d{2}:?\d{2}))?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<mo>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY, _YEAR, _MARK = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?", r"(?P<y>\d{4}|\d{2})", r"(?:,? |[-/. ]?)"


def _dates(*patterns: str) -> tuple[re.Pattern[str], ...]:
    whole = rf"(?:[T ,]\s?{_CLOCK}{_ZONE})?\Z"
    return tuple(re.compile(pattern + whole, re.ASCII | re.IGNORECASE) for pattern in patterns)


_ANY_ORDER = _dates(
    r"(?P<y>\d{4})([-/.])(?P<mo>\d{1,2})\2(?P<d>\d{1,2})",  # 2021-03-12
    rf"{_DAY}{_MARK}{_MONTH}{_MARK}{_YEAR}",  # 12 Mar 2021, 12-MAR-21, 12MAR2021
    rf"{_MONTH}[-/. ]?{_DAY}(?:, ?|[-/. ]){_YEAR}",  # March 12, 2021
    rf"(?P<y>\d{{4}})[-/. ]?{_MONTH}[-/. ]?{_DAY}",  # 2021-Mar-12
    rf"{_MONTH}(?:, ?|[-/. ])(?P<y>\d{{4}})(?P<d>)",  # Mar-2021: its first day
)
_DATES = {
    None: _ANY_ORDER,
    "dmy": (*_ANY_ORDER, *_dates(rf"(?P<d>\d{{1,2}})([-/.])(?P<mo>\d{{1,2}})\2{_YEAR}")),
    "mdy": (*_ANY_ORDER, *_dates(rf"(?P<mo>\d{{1,2}})([-/.])(?P<d>\d{{1,2}})\2{_YEAR}")),
}
_LENGTH = re.compile(rf"(?P<n>-?\d{{1,9}}) days?(?:,? \+?{_CLOCK})?\Z", re.ASCII)
_DAY_TIME = re.compile(_CLOCK + r"\Z", re.ASCII)


def _time_of_text(text: str, order: str | None) -> _Time | None:
    """Return the moment, duration or time of day that a text spells, or None."""
    if len(text) > 60 or not (text[:1] in "0123456789-" or text[:3].lower() in _MONTHS):
        return None
    try:
        for pattern in _DATES[order]:
            found = pattern.match(text)
            if found is not None:
                return _moment(found)
        found = _LENGTH.match(text)
        if found is not None:
            return _Time(_near(int(found["n"])), _time_part(found), duration=True)
        found = _DAY_TIME.match(text)
        return None if found is None else _Time(0, _time_part(found), clock=True)
    except ValueError:  # there is no such date or time
        return None


def _moment(found: re.Match[str]) -> _Time:
    year, month, rest = int(found["y"]), found["mo"], _time_part(found)
    if len(found["y"]) == 2:
        year += 2000 if year < 69 else 1900
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3].lower()) + 1
    date = datetime.date(year, number, int(found["d"] or 1))
    zone = found["zone"]
    if zone is not None and zone.upper() not in ("Z", "UTC"):
        offset = (int(zone[1:3]) * 60 + int(zone[-2:])) * 60 * 10**6
        rest -= offset if zone[0] == "+" else -offset
    return _Time(date.toordinal() - _EPOCH + rest // _US_PER_DAY, rest % _US_PER_DAY)


def _time_part(found: re.Match[str]) -> int:
    """Return the microseconds since midnight, 0 without a time; raises `ValueError` if there is no such time."""
    if found["h"] is None:
        return 0
    hours, fraction = int(found["h"]), int(f"{found['f'] or 0:0<6}"[:6])
    if found["half"] is not None:
        if not 1 <= hours <= 12:
            raise ValueError
        hours = hours % 12 + (12 if found["half"] in "pP" else 0)
    return _since_midnight(datetime.time(hours, int(found["m"]), int(found["s"] or 0), fraction))
