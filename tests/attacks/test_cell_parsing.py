"""One row must not change how the cells of other rows are read: not by its content, not by its storage."""

import datetime
import decimal
import enum
import fractions
import uuid
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ratewise.data.cells import (
    MISSING,
    NUMBER,
    UNPARSABLE,
    UNREADABLE_TEXT,
    CellFormat,
    number_of,
    parse_number,
    parse_text,
    text_of,
)
from ratewise.data.table import read_features


class Raises:
    """Raises from every method that a parser could call."""

    def _fail(self, *_):
        raise RuntimeError("called")

    __str__ = __repr__ = __eq__ = __hash__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = _fail
    __array__ = __index__ = __lt__ = __getitem__ = __bytes__ = __complex__ = __format__ = _fail

    @property
    def __class__(self):
        raise RuntimeError("called")


class Lies(str):
    """Text that claims to equal everything."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("1")

    def strip(self, *_):
        raise RuntimeError("called")

    lower = isascii = encode = __str__ = strip


class BadFloat(float):
    def __float__(self):
        raise RuntimeError("called")

    __eq__ = __ne__ = __hash__ = __float__


class BadInt(int):
    def __float__(self):
        raise KeyboardInterrupt

    __lt__ = __eq__ = __hash__ = __float__


class BadZone(datetime.tzinfo):
    problem = RuntimeError("called")

    def utcoffset(self, _):
        raise self.problem


class Exits(BadZone):
    problem = SystemExit()


def odd(base, **parts):
    """Return a subclass whose parts are no whole numbers, or any."""
    return type("Odd", (base,), {name: property(lambda _, part=part: part) for name, part in parts.items()})


class OddZone(datetime.tzinfo):
    def utcoffset(self, _):
        return odd(datetime.timedelta, days=1e30)(0)


class FakeInterval:
    __module__ = "pandas.fake"

    def __str__(self):
        raise RuntimeError("called")


FakeInterval.__name__ = "Interval"
Colour = enum.Enum("Colour", ["RED"])

HOSTILE = [
    *(None, pd.NA, pd.NaT, np.nan, float("inf"), -np.inf, -0.0, np.ma.masked, decimal.Decimal("sNaN")),
    *(10**400, -(10**400), 2**63, 2**64, 1e308, decimal.Decimal("1e999999"), fractions.Fraction(10**400, 3)),
    *("", " ", "abc", "n/a", "NULL", "?", "-", "nan", "inf", "-Infinity", "1e999", "1_000", "0x1F", "1,5"),
    *("\x00", "1\x00", "\ud800", "\ufeff7", "e\u0301", "\u0661", "9" * 5000, "$1", "true", "FALSE", "1" * 400),
    *("2020-13-45", "2020-01-01", "2020-01-01T25:00", "0000-01-01", "9999-12-31T23:59:59-23:59", "10:70"),
    *("2020-01-01T00:00:00+99:99", "-999999999 days", "99999999999 days", "3 days 04:05:06.789"),
    *("12 Mar 2021 10:00z", "12 Mar 2021 10:00 utc", "2020-01-01t10:00z", "Feb 30, 2021", "12 Mar 2021 13:00 pm"),
    *(b"abc", b"\xff\xfe", bytearray(b"5"), memoryview(b"6"), True, np.True_, 1j, complex(3, 0), np.nan * 1j),
    *([1, 2], (1,), {"a": 1}, {1}, frozenset(), np.array([1, 2]), np.array(3), object(), type, len),
    *(Raises(), Lies("x"), Lies("1"), BadFloat(2.0), BadInt(3), FakeInterval(), Colour.RED, uuid.UUID(int=7)),
    *(datetime.datetime.max, datetime.datetime.min, datetime.date.max, datetime.timedelta.max),
    *(datetime.datetime(2020, 1, 1, tzinfo=Exits()), datetime.datetime(2020, 1, 1, tzinfo=BadZone())),
    *(datetime.time(23, 59), datetime.timedelta.min),
    *(odd(datetime.datetime, hour=1e308)(2020, 1, 1), odd(datetime.time, hour=1e308)(1), OddZone()),
    *(odd(datetime.timedelta, seconds=1e308)(1), odd(datetime.timedelta, days=float("nan"))(1)),
    *(odd(datetime.timedelta, days=10**400)(1), odd(datetime.datetime, hour=10**400)(2020, 1, 1)),
    *(odd(datetime.time, microsecond=10**400)(1), datetime.datetime(2020, 1, 1, tzinfo=OddZone())),
    *("\u200b \u200b \u200b", "\u00e9\x00 \x00"),
    *(pd.Timestamp("2020-01-01", tz="Asia/Tokyo"), pd.Timedelta("1D"), pd.Period("2020-01"), pd.Interval(0, 1)),
    *(np.datetime64(2**62, "Y"), np.datetime64("NaT"), np.timedelta64(2**62, "W"), np.datetime64(5, "as")),
    *(np.timedelta64(7), np.float16(1), np.longdouble("1e4000"), np.int8(-3), np.void(b"xy"), np.str_("4")),
]

NAMES = [f"{place}-{type(cell).__name__}" for place, cell in enumerate(HOSTILE)]

ORDINARY = [
    [1, 2, 3, 40],
    [1.5, -2.0, 3.25, 1e-300],
    [True, False, True, False],
    ["a", "b", "a", "c d"],
    ["1", "02", "3.50", "4e1"],
    [2**53 + 1, 2**60 + 3, -(2**55) - 1, 7],
    [datetime.datetime(2020, 1, 1, 3, 4, 5, 678), datetime.datetime(1960, 2, 29), *[datetime.datetime.max] * 2],
]


def same(first, second):
    return np.array_equal(first.values, second.values, equal_nan=True) and np.array_equal(first.codes, second.codes)


@pytest.mark.parametrize("which", range(len(HOSTILE)), ids=NAMES.__getitem__)
@pytest.mark.parametrize("clean", ORDINARY, ids=lambda clean: type(clean[0]).__name__)
def test_a_hostile_cell_changes_only_its_own_row(clean, which):
    cell = HOSTILE[which]  # by its place: the test runner looks at its parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers, texts = parse_number(clean), parse_text(clean)
        for place in range(len(clean) + 1):
            rows = [*clean[:place], cell, *clean[place:]]
            others = np.arange(len(rows)) != place
            found = parse_number(rows)
            np.testing.assert_array_equal(found.values[others], numbers.values)
            np.testing.assert_array_equal(found.codes[others], numbers.codes)
            assert parse_text(rows)[others].tolist() == texts.tolist()
            assert (found.values[place], found.codes[place]) == pytest.approx(number_of(cell), nan_ok=True)
            assert parse_text(rows)[place] == text_of(cell)


@pytest.mark.parametrize("which", range(len(HOSTILE)), ids=NAMES.__getitem__)
def test_every_cell_has_a_writable_text_and_a_consistent_number(which):
    text, (value, code) = text_of(HOSTILE[which]), number_of(HOSTILE[which])
    assert type(text) is str
    assert text.encode("utf-8").decode("utf-8") == text
    assert (code == NUMBER) == (not np.isnan(value))
    assert code in (NUMBER, MISSING, UNPARSABLE)
    # the canonical text is a fixed point: a column written as text and read again is the same column
    assert text_of(text) == text


def stored_as(cells):
    """Return the same cells in the storage that other libraries choose for them, with one further row."""
    yield "object array", np.array(cells, dtype=object)
    yield "series of objects", pd.Series(cells, dtype=object)
    yield "series", pd.Series(cells)
    yield "nullable", pd.Series(cells).convert_dtypes()
    yield "categorical", pd.Series(cells).astype("category")
    yield "categorical array", pd.Categorical(cells)
    yield "index", pd.Index(cells)
    yield "polars", pl.Series(cells, strict=False)
    yield "arrow", pa.array(cells)
    yield "arrow dictionary", pa.chunked_array([pa.array(cells).dictionary_encode()])
    dictionary = pa.array(cells).dictionary_encode()
    yield "arrow dictionary series", pd.Series(pd.arrays.ArrowExtensionArray(dictionary))
    yield "polars categories", pl.Series([None if c is None else str(c) for c in cells], dtype=pl.Categorical)
    yield "arrow series", pd.Series(pa.array(cells), dtype=pd.ArrowDtype(pa.array(cells).type))
    if None not in cells:
        yield "array", np.array(cells)
        yield "masked", np.ma.array(np.array(cells), mask=[False] * len(cells))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("clean", ORDINARY, ids=lambda clean: type(clean[0]).__name__)
def test_storage_does_not_decide(clean, missing):
    rows = [*clean, None] if missing else clean
    numbers, texts = parse_number(rows), parse_text(rows)
    for name, column in stored_as(rows):
        assert same(parse_number(column), numbers), name
        assert parse_text(column).tolist() == texts.tolist(), name


def test_a_missing_value_in_an_integer_column_changes_only_its_row():
    whole = pd.Series([2**53 + 1, 3, 2**53 + 3])
    gap = pd.Series([2**53 + 1, np.nan, 2**53 + 3])  # float64 now, so the large integers are rounded
    for parsed in (parse_text(whole), parse_text(gap), parse_text(whole.astype(object))):
        assert parsed[[0, 2]].tolist() == ["9007199254740992", "9007199254740996"]
    np.testing.assert_array_equal(parse_number(whole).values[[0, 2]], parse_number(gap).values[[0, 2]])


@pytest.mark.parametrize("word", ["abc", "True", "", "2020-01-01", "9" * 30, "inf", "1;2", "-"])
@pytest.mark.parametrize(
    "lines", [["1", "02", "3.50"], ["true", "False", "TRUE"], ["0.1", "1e5", "12345678901234567890"]]
)
def test_a_word_in_a_csv_file_changes_only_its_line(tmp_path, lines, word):
    """pandas reads a column as numbers, booleans or text, depending on all its lines."""
    read = []
    for name, content in (("clean", lines), ("word", [*lines, word])):
        path = tmp_path / f"{name}.csv"
        path.write_text("column,other\n" + "".join(f"{line},x\n" for line in content))
        read.append(pd.read_csv(path)["column"])
    clean, mixed = read
    np.testing.assert_array_equal(parse_number(mixed).values[: len(lines)], parse_number(clean).values)
    assert parse_text(mixed)[: len(lines)].tolist() == parse_text(clean).tolist()


@pytest.mark.parametrize("word", ["999", "-1", "?", "None"])
def test_declared_missing_words_hold_in_every_storage(word):
    declared = CellFormat(missing=(word,))
    columns = [[1, 999, -1], [1.0, 999.0, -1.0], ["1", "999", "-1"], pd.Series([1, 999, -1]), [1, "999.0", -1.0]]
    numbers = [parse_number(column, declared) for column in columns]
    assert all(same(found, numbers[0]) for found in numbers)
    assert len({tuple(parse_text(column, declared)) for column in columns}) == 1


def test_large_columns_are_read_cell_by_cell():
    cells = [f"{i % 7}" if i % 3 else i % 7 for i in range(200_000)]
    clean = parse_text(cells)
    cells[150_000] = Raises()
    found = parse_text(cells)
    assert found[150_000] == UNREADABLE_TEXT
    assert np.flatnonzero(found != clean).tolist() == [150_000]


@pytest.mark.parametrize("unit", ["D", "h", "m", "s", "ms", "us", "ns"])
def test_dates_agree_in_every_resolution(unit):
    exact = np.array(["1969-12-31", "2020-02-29", "1970-01-01"], dtype=f"datetime64[{unit}]")
    written = ["1969-12-31", "2020-02-29 00:00:00", datetime.date(1970, 1, 1)]
    assert parse_number(exact).values.tolist() == [-1.0, 18321.0, 0.0]
    assert same(parse_number(exact), parse_number(written))
    assert parse_text(exact).tolist() == parse_text(written).tolist() == ["1969-12-31", "2020-02-29", "1970-01-01"]
    zoned = pd.Series(pd.to_datetime(exact)).dt.tz_localize("UTC").dt.tz_convert("America/New_York")
    assert same(parse_number(zoned), parse_number(exact))
    assert same(parse_number(zoned.astype(object)), parse_number(exact))


@pytest.mark.parametrize(
    "ends", [[0, 1, 30], [-0.5, 2.0, 3.25], pd.to_datetime(["2020-01-01", "2020-02-29", "2021-06-01"])]
)
@pytest.mark.parametrize("closed", ["left", "right", "both", "neither"])
def test_a_missing_interval_changes_only_its_row(ends, closed):
    """It turns whole ends into floats, and "(0, 1]" into "(0.0, 1.0]"."""
    whole = pd.Series(pd.arrays.IntervalArray.from_breaks(ends, closed=closed))
    texts = parse_text(whole).tolist()
    assert len(set(texts)) == 2
    for kind in ("interval", object, "category"):
        assert parse_text(pd.Series([*whole, None]).astype(kind)).tolist() == [*texts, ""]
    assert parse_text(pd.Series([*whole, "a word"])).tolist() == [*texts, "a word"]
    assert parse_text([str(cell) for cell in [*whole][:2]]).tolist() == texts
    assert parse_text([str(cell) for cell in pd.Series([*whole, None])][:2]).tolist() == texts


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_a_mask_does_not_decide_how_times_are_read(unit):
    """As objects, times of nanoseconds are integers, and so were those of a masked array."""
    times = np.array(["2020-02-29", "1960-01-01", "1970-01-02"], dtype=f"datetime64[{unit}]")
    masked = np.ma.array(times, mask=[False, True, False])
    for found in (parse_text(masked), parse_text(read_features(masked[:, None]).columns[0])):
        assert found.tolist() == ["2020-02-29", "", "1970-01-02"]
    assert same(parse_number(masked), parse_number(["2020-02-29", None, "1970-01-02"]))


def test_the_fields_of_a_structure_decide_nothing():
    """A field that one row has gives the structures of all rows two fields, which were read as two columns."""
    one, two = ([{"u": {"a": k}, "v": k} for k in range(4)] for _ in range(2))
    two[1]["u"] = {"b": 7}
    for rows in (one, two):
        column = pl.DataFrame(rows)["u"]
        assert parse_text(column).tolist() == [UNREADABLE_TEXT] * 4
        assert parse_number(column).codes.tolist() == [UNPARSABLE] * 4
