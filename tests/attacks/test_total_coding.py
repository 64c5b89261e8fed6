"""Coding of labels and group values is total: no value of a row raises, warns or changes other rows' codes."""

import datetime
import decimal
import enum
import fractions
import time
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratewise import Domain, Numeric, RateConstrainedClassifier, below, demographic_parity, everyone, group, label, rate
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.cells import code_cells, parse_number, text_of
from ratewise.data.table import code_groups, code_labels, code_table, declared_domain
from ratewise.exceptions import InvalidInput

CALLS: list[str] = []


def called(what):
    """Note that code of a row's value ran, and fail: an exception alone could be swallowed."""
    CALLS.append(what)
    raise RuntimeError(what)


class Hostile:
    """Every method that a lookup might call fails."""

    def _fail(self, *_):
        called("a method of a value")

    __eq__ = __hash__ = __lt__ = __bool__ = __str__ = __repr__ = __float__ = __int__ = __index__ = _fail
    __len__ = __iter__ = __array__ = __class__ = property(_fail)


class HostileMeta(type):
    def _fail(cls, *_):
        called("the hash of a type")

    __eq__ = __hash__ = _fail


class OfHostileType(metaclass=HostileMeta):
    pass


class Text(str):
    def _fail(self, *_):
        called("equality of a text subclass")

    __eq__ = __hash__ = __str__ = _fail


class Whole(int):
    def _fail(self, *_):
        called("equality of an integer subclass")

    __eq__ = __hash__ = __int__ = __index__ = __float__ = _fail


class Real(float):
    def _fail(self, *_):
        called("equality of a float subclass")

    __eq__ = __hash__ = __int__ = __float__ = _fail


class Colour(enum.Enum):
    RED = 1


ODD = [
    None,
    float("nan"),
    float("inf"),
    -float("inf"),
    np.float64("nan"),
    np.datetime64("NaT"),
    pd.NaT,
    pd.NA,
    10**30,
    10**5000,
    -(10**400),
    1e308,
    b"G",
    b"\xff",
    "",
    "f",
    "\ud800",
    "x" * 100_000,
    "9" * 100_000,
    "1_0",
    "nan",
    "inf",
    1 + 2j,
    [],
    ["F"],
    ("F",),
    {"F"},
    {"sex": "F"},
    np.array(["F"]),
    np.array(1.5),
    pd.Series(["F"]),
    pd.Timestamp("2020-01-01"),
    datetime.date(2020, 1, 1),
    decimal.Decimal("NaN"),
    decimal.Decimal("sNaN"),
    decimal.Decimal("1e999999"),
    fractions.Fraction(10**400),
    np.longdouble("1e4000"),
    np.void(b"abc"),
    Colour.RED,
    Colour,
    Hostile,
    Hostile(),
    HostileMeta,
    OfHostileType,
    OfHostileType(),
    Text("unknown"),
    Whole(77),
    Real(7.5),
    Ellipsis,
    lambda: None,
]
VALUES = {"text": ("F", "M"), "numbers": (0, 1, 2.5), "flags": (False, True), "mixed": ("F", 2, Colour.RED)}


def code_values(entries, declared):
    return np.maximum(code_cells(entries, declared), -1)


def read_numbers(entries):
    return parse_number(entries).values


def objects(entries):
    return np.fromiter(entries, dtype=object, count=len(entries))


@pytest.fixture(autouse=True)
def no_code_of_values_runs():
    CALLS.clear()
    yield
    assert CALLS == []


def wrappers():
    yield list
    yield tuple
    yield objects
    yield lambda entries: pd.Series(objects(entries), dtype=object)


@pytest.mark.parametrize("declared", VALUES)
@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_odd_value_changes_only_its_own_code(number, declared):
    values = VALUES[declared]
    domain = Domain(("no", "yes"), {"g": values, "x": Numeric()}, other=True)
    usual = [values[i % len(values)] for i in range(7)]
    expected = code_values(usual, values).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wrap in wrappers():
            entries = [*usual[:3], ODD[number], *usual[3:]]
            codes = code_values(wrap(entries), values)
            assert codes[:3].tolist() + codes[4:].tolist() == expected
            assert -1 <= codes[3] < len(values)
            column = code_groups({"g": wrap(entries)}, domain)["g"]
            assert (column == np.where(codes < 0, len(values), codes)).all()
            labels = code_labels(wrap(["no", ODD[number], "yes"]), domain)
            assert labels.tolist() == [0, -1, 1]
            numbers = code_groups({"x": wrap([3, ODD[number], "4.5", None])}, domain)["x"]
            assert numbers[[0, 2]].tolist() == [3.0, 4.5]
            assert np.isnan(numbers[3])
            assert np.isnan(numbers[1]) or np.isfinite(numbers[1])


@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_odd_value_never_stops_the_coding_of_cells(number):
    domain = Domain((0, 1), {"sex": ("F", "M"), "age": Numeric()}, other=True)
    compiled = compile_constraints(
        [demographic_parity("sex", max_gap=0.1), rate(1, where=group(age=below(25)) & label(1)) <= 0.3], domain
    )
    truth = objects([0, 1, ODD[number], 1])
    columns = {"sex": objects(["F", ODD[number], "M", "M"]), "age": objects([ODD[number], 20, 30, 20])}
    cells = code_table(compiled, truth, columns)[1]
    usual = code_table(compiled, [0, 1, 0, 1], {"sex": ["F", None, "M", "M"], "age": [20, 20, 30, 20]})[1]
    assert cells[1] == usual[1]
    assert cells[3] == usual[3]
    table = compiled.histogram(cells, np.array([0, 1, 1, 0]))
    assert table.sum() == (cells >= 0).sum()
    assert np.isfinite(compiled.values(table)).all()


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.5, -0.0, 1.0]),
    st.sampled_from(["0", "1", "1.0", "01", "a", "True", "0.5", " 1", ""]),
    st.text(max_size=3),
    st.binary(max_size=2),
    st.decimals(),
    st.fractions(max_denominator=3),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
)
DECLARED = st.lists(
    st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, "0", "1", "1.0", "01", "a", "True", b"a"])),
    min_size=1,
    max_size=5,
    unique_by=text_of,
)


@given(st.lists(SCALARS, max_size=8), DECLARED)
def test_the_code_of_a_row_does_not_depend_on_other_rows(entries, declared):
    together = code_values(entries, declared)
    alone = [int(code_values([entry], declared)[0]) for entry in entries]
    assert together.tolist() == alone
    numbers = read_numbers(entries)
    one_by_one = np.array([read_numbers([entry])[0] for entry in entries])
    np.testing.assert_array_equal(numbers, one_by_one)
    for entry, code in zip(entries, alone, strict=True):
        if isinstance(entry, bool | int | float | str | bytes) and entry in declared:
            assert text_of(declared[code]) == text_of(entry)


@given(st.lists(st.one_of(st.integers(-3, 3), st.sampled_from([0.5, np.nan, np.inf, -1e300])), min_size=1), DECLARED)
def test_an_array_of_numbers_is_coded_as_its_entries_are(entries, declared):
    expected = code_values(entries, declared)
    assert code_values(np.array(entries), declared).tolist() == expected.tolist()
    assert code_values(pd.Series(entries).astype("category"), declared).tolist() == expected.tolist()
    np.testing.assert_array_equal(read_numbers(np.array(entries)), read_numbers(entries))


def test_soft_predictions_that_are_not_finite_add_nothing():
    compiled = compile_constraints(rate(1) <= 0.5, Domain((0, 1)))
    soft = np.array([[0.5, 0.5], [np.nan, 1.0], [np.inf, 0.0], [0.25, 0.75]])
    assert compiled.histogram(np.array([0, 0, 0, -1]), soft).tolist() == [[0.5, 0.5]]


def test_subclasses_of_scalars_are_read_as_the_scalar_itself():
    assert code_values([Text("F"), Whole(1), Real(1.0), np.str_("F"), np.int8(1)], ("F", 1)).tolist() == [0, 1, 1, 0, 1]
    assert read_numbers([Text("2"), Whole(3), Real(4.5), np.float32(0.5)]).tolist() == [2.0, 3.0, 4.5, 0.5]


@pytest.mark.parametrize(
    "column",
    [
        np.array(["F", "M", "?"]),
        np.array(["F", "M", "?"], dtype=object),
        pd.Series(["F", "M", None]),
        pd.Series(["F", "M", None], dtype="category"),
        pd.Series(["F", "M", None], dtype="string"),
        pd.Categorical(["F", "M", "?"]),
        pl.Series(["F", "M", None]),
        pl.Series(["F", "M", "?"]).cast(pl.Categorical),
        ["F", "M", float("nan")],
        np.ma.masked_array(["F", "M", "M"], mask=[False, False, True]),
    ],
)
def test_every_kind_of_column_has_a_place_for_undeclared_values(column):
    domain = Domain((0, 1), {"sex": ("F", "M")}, other=True)
    assert code_groups({"sex": column}, domain)["sex"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.uint64, np.float16, np.float32, np.float64, "M8[D]", "m8[s]", complex]
)
def test_arrays_of_every_type_are_coded(dtype):
    data = np.array([0, 1, 1]).astype(dtype)
    codes = code_values(data, (1, "a", 10**30, 1e300, 0.1))
    assert codes.dtype.kind == "i"
    assert set(codes.tolist()) <= {-1, 0}
    assert len(read_numbers(data)) == 3


def test_dates_are_matched_whatever_the_unit():
    day = datetime.date(2020, 5, 1)
    for unit in ("D", "s", "ns"):
        data = np.array(["2020-05-01", "NaT", "2020-05-02"], dtype=f"M8[{unit}]")
        assert code_values(data, (day,)).tolist() == [0, -1, -1]
    assert code_values(pd.Series(data), (pd.Timestamp(day),)).tolist() == [0, -1, -1]


def test_cells_that_mean_the_same_are_one_value():
    assert code_values(["1", "1.0", 1, 1.0, True, " 1", "01"], (0, 1)).tolist() == [1] * 7
    assert code_values(np.array([0.0, 1.0, np.nan]), ("0", "1")).tolist() == [0, 1, -1]
    assert code_values(np.array([True, False]), ("False", "True")).tolist() == [1, 0]


@pytest.mark.parametrize(
    "values", [(1, "1"), ("a", " a"), ("01", 1), (True, "true"), ("", "a"), ("nan", 2), (object(), "a")]
)
def test_declared_values_that_cells_cannot_tell_apart_are_refused(values):
    with pytest.raises(InvalidInput, match=r"column 'g' must hold (each value once|values that cells can have)"):
        declared_domain((0, 1), {"g": values})
    with pytest.raises(InvalidInput, match="classes must hold"):
        RateConstrainedClassifier(classes=values).fit(np.zeros((2, 1)), [0, 1])


def test_rows_with_an_undeclared_value_belong_to_everyone_and_to_complements():
    female, young = group(sex="F"), group(age=below(25))
    subsets = [everyone, female, ~female, group(sex="M"), young, ~young, ~young & ~female]
    domain = Domain((0, 1), {"sex": ("F", "M"), "age": Numeric()}, other=True)
    compiled = compile_constraints([rate(1, where=subset) <= 0.9 for subset in subsets], domain)
    cells = code_table(compiled, [0, -1], {"sex": ["unknown", "F"], "age": ["unknown", 20]})[1]
    assert cells[1] == -1
    sizes = compiled.sizes(compiled.histogram(cells, np.array([1, 1])))
    found = dict(zip(compiled.subsets, sizes.tolist(), strict=True))
    assert [found[subset] for subset in subsets] == [1, 0, 1, 0, 0, 1, 1]


def test_rows_with_an_undeclared_value_are_in_no_cell_of_an_exhaustive_domain():
    domain = Domain((0, 1), {"sex": ("F", "M"), "age": Numeric()})
    compiled = compile_constraints(
        [demographic_parity("sex", max_gap=0.1), rate(1, where=group(age=below(25))) <= 0.5], domain
    )
    cells = code_table(compiled, [0, 1, 1, 0], {"sex": ["F", "?", "M", "M"], "age": [20, 20, None, 30]})[1]
    assert (cells < 0).tolist() == [False, True, True, False]


def test_values_are_finite_whatever_noise_does_to_denominators():
    domain = Domain((0, 1), {"sex": ("F", "M")}, other=True)
    compiled = compile_constraints(
        [demographic_parity("sex", max_gap=0.1), rate(1, where=label(1), out_of=everyone) >= 0.2], domain
    )
    shape = compiled.n_cells, compiled.n_classes
    for table in (np.zeros(shape), np.full(shape, -3.0), np.full(shape, -1e300), np.eye(*shape) * 1e-320):
        for floor in (1.0, 0.0):
            assert np.isfinite(compiled.values(table, floor=floor)).all()
            assert np.isfinite(compiled.weights(np.ones(len(compiled)), table, floor=floor)).all()


@pytest.mark.parametrize("kind", ["text", "objects", "category", "floats", "mixed"])
def test_a_million_rows_are_coded_in_a_second(kind):
    values = np.array(["F", "M", "unknown"])
    codes = np.random.default_rng(0).integers(0, 3, 1_000_000)
    declared: tuple = ("F", "M")
    data = {
        "text": lambda: values[codes],
        "objects": lambda: values[codes].astype(object),
        "category": lambda: pd.Series(values[codes]).astype("category"),
        "floats": lambda: codes.astype(float),
        "mixed": lambda: np.append(values[codes].astype(object), [None]),
    }[kind]()
    if kind == "floats":
        declared = (0, 1)
    start = time.process_time()
    found = code_groups({"g": data}, Domain((0, 1), {"g": declared}, other=True))["g"]
    assert time.process_time() - start < 1.0
    assert (found[: len(codes)] == codes).all()
