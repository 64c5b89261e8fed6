"""Tables of group values in every form, and the public facts read from them."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ratewise.constraints.compiled import named_values
from ratewise.constraints.domain import Domain, Numeric, at_least, below
from ratewise.constraints.families import demographic_parity, false_negative_rate, positive_rate
from ratewise.constraints.rates import everyone, group, label, rate
from ratewise.data.table import code_groups, read_domain, sensitive_columns
from ratewise.exceptions import InvalidInput, InvalidType

SEX = ["F", "M", "F", "M"]
AGE = [20, 30, 40, 50]

NAMED = {
    "pandas frame": pd.DataFrame({"sex": SEX, "age": AGE}),
    "pandas frame, reversed index": pd.DataFrame({"sex": SEX, "age": AGE}, index=[3, 2, 1, 0]),
    "pandas categorical": pd.DataFrame({"sex": pd.Categorical(SEX), "age": AGE}),
    "pandas extension types": pd.DataFrame({"sex": pd.array(SEX, dtype="string"), "age": pd.array(AGE, dtype="Int64")}),
    "polars frame": pl.DataFrame({"sex": SEX, "age": AGE}),
    "polars categorical": pl.DataFrame({"sex": SEX, "age": AGE}, schema_overrides={"sex": pl.Categorical}),
    "arrow table": pa.table({"sex": SEX, "age": AGE}),
    "dict of lists": {"sex": SEX, "age": AGE},
    "dict of mixed kinds": {"sex": pd.Series(SEX, dtype="category"), "age": pl.Series(AGE)},
    "record array": np.array(list(zip(SEX, AGE, strict=True)), dtype=[("sex", "U1"), ("age", int)]),
}


@pytest.mark.parametrize("table", NAMED.values(), ids=NAMED)
def test_every_kind_of_table_gives_the_same_columns(table):
    columns = sensitive_columns(table, 4)
    domain = read_domain(columns, [0, 1, 1, 0])
    assert domain == Domain((0, 1), {"sex": ("F", "M"), "age": (20, 30, 40, 50)})
    codes = code_groups(columns, domain)
    assert {name: column.tolist() for name, column in codes.items()} == {"sex": [0, 1, 0, 1], "age": [0, 1, 2, 3]}


LONE = {
    "list": SEX,
    "tuple": tuple(SEX),
    "array": np.array(SEX),
    "column": np.array(SEX)[:, None],
    "list of lists": [[sex] for sex in SEX],
    "series": pd.Series(SEX),
    "polars series": pl.Series(SEX),
    "categorical": pd.Categorical(SEX),
}


@pytest.mark.parametrize("vector", LONE.values(), ids=LONE)
def test_a_vector_without_a_name_is_given_one(vector):
    assert list(sensitive_columns(vector, 4)) == ["group"]
    columns = sensitive_columns(vector, 4, needed={"sex"})
    assert code_groups(columns, read_domain(columns, [0, 1, 0, 1]))["sex"].tolist() == [0, 1, 0, 1]


def test_a_series_keeps_its_own_name():
    assert list(sensitive_columns(pd.Series(SEX, name="sex"), 4)) == ["sex"]
    assert list(sensitive_columns(pl.Series("sex", SEX), 4)) == ["sex"]


def test_whole_number_names_become_text():
    assert list(sensitive_columns(pd.DataFrame({0: SEX, 1: AGE}), 4)) == ["0", "1"]


def test_nothing_given_is_no_columns():
    assert sensitive_columns(None, 4) == {}


MISSING = {
    "None": ["a", None, "b", "b"],
    "NaN in a list": ["a", float("nan"), "b", "b"],
    "NaN": np.array([1.0, np.nan, 2.0, 2.0]),
    "pandas NA": pd.Series([1, None, 2, 2], dtype="Int64"),
    "pandas NA in a list": [pd.NA, 1, 2, 2],
    "pandas text": pd.Series(["a", None, "b", "b"]),
    "pandas categorical": pd.Series(["a", None, "b", "b"], dtype="category"),
    "NaT": pd.Series(pd.to_datetime(["2020-01-01", None, "2020-01-02", "2020-01-02"])),
    "polars null": pl.Series([1, None, 2, 2]),
    "polars text null": pl.Series(["a", None, "b", "b"]),
    "polars NaN": pl.Series([1.0, float("nan"), 2.0, 2.0]),
    "masked": np.ma.array([1, 2, 3, 3], mask=[0, 1, 0, 0]),
}


@pytest.mark.parametrize("column", MISSING.values(), ids=MISSING)
def test_missing_values_are_refused_by_column(column):
    with pytest.raises(InvalidInput, match="column 'race' holds missing values"):
        sensitive_columns({"race": column}, 4)


@pytest.mark.parametrize("column", MISSING.values(), ids=MISSING)
def test_columns_that_are_not_needed_are_not_looked_at(column):
    assert list(sensitive_columns({"sex": SEX, "race": column}, 4, needed={"sex"})) == ["sex"]


@pytest.mark.parametrize(
    ("table", "kind", "message"),
    [
        (SEX[:3], InvalidInput, "has 3, expected 4"),
        ({"sex": SEX, "age": AGE + AGE}, InvalidInput, "column 'age' has 8, expected 4"),
        (np.zeros((4, 2)), InvalidInput, "pass a data frame or a dict"),
        ([["a", "b"]] * 4, InvalidInput, "pass a data frame or a dict"),
        ("FMFM", InvalidType, "got str"),
        (3, InvalidType, "got int"),
        ({"sex": 3}, InvalidType, "column 'sex'.*vector"),
        ({"sex": "FMFM"}, InvalidType, "got str"),
        ({"sex": np.zeros((4, 2))}, InvalidType, "2 dimensions"),
        ({("a", "b"): SEX}, InvalidType, "named by text"),
        ({"": SEX}, InvalidType, "named by text"),
        ([[], [], [], []], InvalidInput, "0 columns"),
        ({"sex": [{}, {}, {}, {}]}, InvalidType, "no scalars"),
        (pd.DataFrame([[1, 2]] * 4, columns=["a", "a"]), InvalidInput, "two columns named 'a'"),
        (pd.DataFrame([[1, 2]] * 4, columns=[1, "1"]), InvalidInput, "two columns named '1'"),
        (pl.LazyFrame({"sex": SEX}), InvalidType, "collect"),
    ],
)
def test_unusable_tables_are_refused(table, kind, message):
    with pytest.raises(kind, match=message):
        sensitive_columns(table, 4)


def test_needed_columns_must_be_there():
    with pytest.raises(InvalidInput, match=r"lacks column 'race'.*columns are 'sex'"):
        sensitive_columns({"sex": SEX}, 4, needed={"race", "sex"})
    with pytest.raises(InvalidInput, match=r"sensitive_features is missing.*'race', 'sex'"):
        sensitive_columns(None, 4, needed={"race", "sex"})


def test_declared_facts_are_not_read():
    columns = {"sex": np.array(["undeclared", "M"])}
    domain = read_domain(columns, object(), classes=[1, 0], group_values={"sex": ("M", "F")})
    assert (domain.classes, domain.columns) == ((0, 1), {"sex": ("M", "F")})


def test_declared_classes_are_sorted_if_they_can_be():
    assert read_domain({}, None, classes=np.array(["b", "a"])).classes == ("a", "b")
    assert read_domain({}, None, classes={2, "a"}).classes == (2, "a")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([1, 0]), (0, 1)),
        (np.array(["b", "a"]), ("a", "b")),
        ([True, False], (False, True)),
        (pd.Series(["y", "x"], dtype="category"), ("x", "y")),
        (pd.Categorical(["y", "x"], categories=["x", "y", "never"]), ("x", "y")),
        (pl.Series([2, 1]), (1, 2)),
        (np.array([[1], [0]]), (0, 1)),
        (np.array([1, "a"], dtype=object), (1, "a")),
    ],
)
def test_classes_of_any_kind_are_read_sorted(labels, classes):
    found = read_domain({}, labels).classes
    assert found == classes
    assert all(not isinstance(value, np.generic) for value in found)


def test_missing_labels_are_refused():
    with pytest.raises(InvalidInput, match="y holds missing values"):
        read_domain({}, [0, 1, None])


def test_many_floats_are_a_numeric_column_and_few_are_groups():
    columns = {"income": np.arange(51.0), "score": np.arange(51.0) % 50, "zip": np.arange(51)}
    domain = read_domain(columns, [0, 1])
    assert domain.columns == {"income": Numeric(), "score": tuple(np.arange(50.0).tolist()), "zip": tuple(range(51))}
    objects = np.array([*np.arange(51.0).tolist(), 3], dtype=object)
    assert read_domain({"income": objects}, [0, 1]).columns == {"income": Numeric()}


def test_reading_goes_over_all_chunks():
    many = np.array(["a"] * 300_000 + ["b"])
    assert read_domain({"g": many}, [0, 1]).columns["g"] == ("a", "b")
    assert read_domain({"g": many.astype(object)}, [0, 1]).columns["g"] == ("a", "b")
    assert read_domain({"g": (many == "b").astype(float)}, [0, 1]).columns["g"] == (0.0, 1.0)


def test_columns_cut_only_by_intervals_are_numeric_without_a_look():
    domain = read_domain({"age": np.array([1, 2])}, None, classes=(0, 1), numeric={"age"})
    assert domain.columns == {"age": Numeric()}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"group_values": ["F"]}, InvalidType, "group_values must map"),
        ({"group_values": {"Sex": ("F",)}}, InvalidInput, "declares column 'Sex'.*are 'sex'"),
        ({"group_values": {"sex": "FM"}}, InvalidType, "collection of values"),
        ({"group_values": {"sex": ("F", "F")}}, InvalidInput, "each value once"),
        ({"group_values": {"sex": Numeric}}, InvalidType, "brackets"),
        ({"classes": "01"}, InvalidType, "classes must be a collection"),
        ({"classes": [1]}, InvalidInput, "at least two"),
        ({"classes": [0, None]}, InvalidInput, "missing value"),
    ],
)
def test_bad_declarations_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        read_domain({"sex": np.array(SEX)}, [0, 1, 0, 1], **arguments)


def test_what_declarations_read():
    young = rate(1, where=group(age=below(25), sex="F") & label(1)) - rate(1, where=group(age=at_least(60)))
    ratio = rate(1, where=label(1), out_of=group(race="A"))
    assert named_values(None).needed == set()
    assert named_values([rate(1, where=everyone) <= 0.5, positive_rate(max_rate=0.5)]).needed == set()
    assert named_values([young <= 0.1, [ratio >= 0.5]]).needed == {"age", "sex", "race"}
    assert named_values((demographic_parity("sex", "race", max_gap=0.1),)).needed == {"sex", "race"}
    assert named_values(false_negative_rate(0.1, by=("sex",))).needed == {"sex"}
    assert named_values([demographic_parity(max_gap=0.1), young <= 0.1]).needed is None
    assert named_values(young <= 0.1).numeric == {"age"}
    assert named_values([young <= 0.1, demographic_parity("age", max_gap=0.1)]).numeric == set()
    assert named_values([young <= 0.1, demographic_parity(max_gap=0.1)]).numeric == set()
    with pytest.raises(InvalidType, match="iterator"):
        named_values(iter([young <= 0.1]))


def test_messages_hold_no_value_of_a_row():
    with pytest.raises(InvalidInput) as refusal:
        sensitive_columns({"race": ["secret", None]}, 2)
    assert "secret" not in str(refusal.value)
    assert "1" not in str(refusal.value)


def test_everything_works_where_neither_pandas_nor_polars_is_installed():
    code = """
import sys
sys.modules.update(pandas=None, polars=None, pyarrow=None)
from ratewise.datasets import census_like
from ratewise.constraints.families import demographic_parity
from ratewise.metrics import group_rates, rate_report
people = census_like(100, random_state=0)
report = rate_report(
    demographic_parity("sex", max_gap=1), people.y, people.y, sensitive_features=people.sensitive
)
group_rates(people.y, people.y, sensitive_features=people.sensitive)
try:
    people.frame()
except ImportError as refusal:
    print(all(row.holds for row in report), 'torch' in sys.modules, refusal)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True False People.frame() needs pandas: pip install pandas\n"
