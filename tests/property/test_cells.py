"""Vectorised parsing of columns agrees exactly with the definition for single cells."""

import datetime
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ratewise.data.cells import (
    MISSING,
    NUMBER,
    UNPARSABLE,
    CellFormat,
    CellKind,
    cell_kinds,
    date_of_days,
    number_of,
    parse_number,
    parse_text,
    text_of,
)
from ratewise.exceptions import InvalidInput, InvalidType

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    st.just(np.dtype(np.longdouble)),
    hnp.complex_number_dtypes(endianness="="),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.unicode_string_dtypes(endianness="=", min_len=1, max_len=6),
    hnp.byte_string_dtypes(endianness="=", min_len=1, max_len=6),
)
ARRAYS = hnp.arrays(DTYPES, st.integers(0, 12))
FORMATS = st.builds(
    CellFormat,
    decimal=st.just("."),
    thousands=st.sampled_from([None, ",", " ", "'"]),
    date_order=st.sampled_from([None, "dmy", "mdy"]),
    missing=st.lists(st.sampled_from(["0", "-1", "99.0", "x", "TRUE", "nan", "1e400"]), max_size=3).map(tuple),
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.floats().map(repr),
    st.integers().map(str),
    st.datetimes().map(str),
    st.dates().map(lambda date: date.strftime("%d/%m/%Y")),
    st.timedeltas().map(str),
    st.times().map(str),
    st.from_regex(r"[+-]?\d{1,3}([,.' ]\d{3}){0,2}([.,]\d{0,3})?%?", fullmatch=True),
    st.sampled_from(["n/a", "NULL", "?", "-", "", " ", "true", "FALSE", "nan", "inf", "\ufeff1", "1\u00a0234"]),
)
OBJECTS = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.dates(),
    st.timedeltas(),
    st.times(),
    st.binary(max_size=5),
    st.uuids(),
    st.lists(st.integers(), max_size=2),
)


def agree(column, cells, cell_format):
    numbers, texts = parse_number(column, cell_format), parse_text(column, cell_format)
    assert numbers.values.dtype == np.float64
    assert len(numbers.values) == len(numbers.codes) == len(texts) == len(cells)
    kinds = cell_kinds(column, cell_format)
    assert kinds.tolist() == [cell_kinds([cell], cell_format)[0] for cell in cells]
    for value, code, text, kind, cell in zip(*numbers, texts, kinds, cells, strict=True):
        expected, status = number_of(cell, cell_format)
        assert code == status, cell
        assert value == expected or (math.isnan(value) and math.isnan(expected)), cell
        assert text == text_of(cell, cell_format), cell
        assert (status != NUMBER) == math.isnan(value)
        assert (status == NUMBER) == (kind in (CellKind.NUMBER, CellKind.DATE, CellKind.DURATION)), cell
        assert (text == "") == (kind == CellKind.MISSING), cell


@settings(max_examples=400, deadline=None)
@given(array=ARRAYS, cell_format=FORMATS)
def test_arrays_agree_with_their_cells(array, cell_format):
    agree(array, list(array), cell_format)
    agree(array.astype(object), array.astype(object).tolist(), cell_format)
    if array.dtype.kind not in "SmM":  # as objects, numpy turns times of fine units into counts
        agree(array, array.astype(object).tolist(), cell_format)


@settings(max_examples=300, deadline=None)
@given(cells=st.lists(OBJECTS, max_size=12), cell_format=FORMATS)
def test_mixed_columns_agree_with_their_cells(cells, cell_format):
    agree(cells, cells, cell_format)
    agree(pd.Series(cells, dtype=object), cells, cell_format)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TEXTS, max_size=12), cell_format=FORMATS)
def test_text_columns_agree_with_their_cells(texts, cell_format):
    agree(np.array(texts, dtype=object), texts, cell_format)
    agree(pd.Categorical(texts), texts, cell_format)
    if not any("\ud800" <= mark <= "\udfff" for text in texts for mark in text):
        agree(pd.Series(texts, dtype="str"), texts, cell_format)


@settings(max_examples=300, deadline=None)
@given(cell=OBJECTS)
def test_canonical_text_is_a_fixed_point_and_keeps_the_number(cell):
    text = text_of(cell)
    assert text_of(text) == text
    (before, status), (after, again) = number_of(cell), number_of(text)
    if status == NUMBER:  # "$5" is a number of a column of numbers, and stays "$5" in one of categories
        assert again == NUMBER
        assert after == before


@settings(max_examples=200, deadline=None)
@given(value=st.floats(allow_nan=False), where=st.integers(-(2**70), 2**70))
def test_numbers_have_one_text_in_every_spelling(value, where):
    assert text_of(value) == text_of(repr(value)) == text_of(np.float64(value)) == text_of(f"  {value!r}")
    assert text_of(where) == text_of(str(where)) == text_of(float(where))
    assert number_of(text_of(value)) == (value, NUMBER)


@settings(max_examples=200, deadline=None)
@given(st.datetimes(min_value=datetime.datetime(1000, 1, 1)))
def test_dates_have_one_number_in_every_spelling(moment):
    spelled = [
        moment,
        np.datetime64(moment),
        str(moment),
        moment.isoformat(),
        f"{moment.isoformat()}Z",
        pd.Timestamp(moment),
    ]
    assert len({number_of(form) for form in spelled}) == 1
    assert len({text_of(form) for form in spelled}) == 1
    assert text_of(date_of_days(number_of(moment.date())[0])) == str(moment.date())


@pytest.mark.parametrize(
    ("text", "cell_format", "expected"),
    [
        ("1,5", CellFormat(), (math.nan, UNPARSABLE)),
        ("1,5", CellFormat(decimal=","), (1.5, NUMBER)),
        ("1.5", CellFormat(decimal=","), (1.5, NUMBER)),
        ("1.234,5", CellFormat(decimal=",", thousands="."), (1234.5, NUMBER)),
        ("1.234", CellFormat(decimal=",", thousands="."), (1234.0, NUMBER)),
        ("1,234.5", CellFormat(thousands=","), (1234.5, NUMBER)),
        ("12,34", CellFormat(thousands=","), (math.nan, UNPARSABLE)),
        ("1\u00a0234", CellFormat(thousands=" "), (1234.0, NUMBER)),
        ("1'234'567", CellFormat(thousands="'"), (1234567.0, NUMBER)),
        ("$1,200.50", CellFormat(thousands=","), (1200.5, NUMBER)),
        ("45 %", CellFormat(), (45.0, NUMBER)),
        ("03/04/2020", CellFormat(), (math.nan, UNPARSABLE)),
        ("03/04/2020", CellFormat(date_order="dmy"), (18355.0, NUMBER)),
        ("03/04/2020", CellFormat(date_order="mdy"), (18325.0, NUMBER)),
        ("31.12.69 12:00", CellFormat(date_order="dmy"), (-0.5, NUMBER)),
        ("2020-01-05T01:00+02:00", CellFormat(), (18265 + 23 / 24, NUMBER)),
        ("1 days 12:00:00", CellFormat(), (1.5, NUMBER)),
        ("06:00", CellFormat(), (0.25, NUMBER)),
        *(
            (text, CellFormat(), (18698.0, NUMBER))
            for text in (
                *("12 Mar 2021", "March 12, 2021", "12-MAR-21", "12th mar. 2021 12:00 am"),
                *("12MAR2021", "2021-Mar-12", "Mar 12 2021 0:00"),
            )
        ),
        ("Mar-2021 3:00 PM", CellFormat(), (18687.625, NUMBER)),
        *((text, CellFormat(), (math.nan, UNPARSABLE)) for text in ("31 Feb 2020", "10-Dec", "May", "13:00 PM")),
        ("Unknown", CellFormat(), (math.nan, MISSING)),
        (" N/A ", CellFormat(), (math.nan, MISSING)),
        ("-", CellFormat(), (math.nan, MISSING)),
        ("1_000", CellFormat(), (math.nan, UNPARSABLE)),
        ("0x10", CellFormat(), (math.nan, UNPARSABLE)),
        ("-9", CellFormat(missing=("-9",)), (math.nan, MISSING)),
        ("1e5", CellFormat(), (1e5, NUMBER)),
    ],
)
def test_spellings_of_numbers(text, cell_format, expected):
    assert number_of(text, cell_format) == pytest.approx(expected, nan_ok=True)


def test_words_for_missing_are_values_of_categories():
    """The country NA and the answer "unknown" are categories; spellings of NaN are not."""
    assert parse_text(["NA", "unknown", "?", "None", "nan", "<NA>", "NaT", ""]).tolist() == [
        *("NA", "unknown", "?", "None"),
        *("", "", "", ""),
    ]


@pytest.mark.parametrize(
    "fields", [{"decimal": ";"}, {"thousands": "_"}, {"date_order": "ymd"}, {"decimal": ",", "thousands": ","}]
)
def test_formats_are_checked(fields):
    with pytest.raises(InvalidInput, match=r"must (be one of|differ)"):
        CellFormat(**fields)


@pytest.mark.parametrize("column", ["abc", b"abc", {"a": 1}, {1}, np.zeros((2, 2)), 3.0])
def test_a_column_is_a_vector(column):
    with pytest.raises(InvalidType, match="must be a vector"):
        parse_number(column)
