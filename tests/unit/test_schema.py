import copy
import json
import pickle
import tomllib

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratewise.cli.options import to_toml
from ratewise.constraints.domain import Numeric
from ratewise.data.cells import CellFormat
from ratewise.data.schema import Category, Date, Number, Schema, draft_schema, rounded_bounds
from ratewise.exceptions import InvalidInput, InvalidType


def people():
    return Schema(
        {"age": Number(17, 90), "income": Number(lower=0), "job": Category(["clerk", "sales"])},
        label="repaid",
        classes=[1, 0],
        groups={"sex": Category(["Female", "Male"]), "age": Number(17, 90)},
    )


def test_plain_data_round_trip_through_json():
    schema = people()
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_plain_data_are_what_toml_reads():
    text = """
    format = "ratewise-schema"
    version = 1
    signed = true
    [label]
    name = "repaid"
    classes = [0, 1]
    [groups.sex]
    type = "category"
    values = ["Female", "Male"]
    [groups.age]
    type = "number"
    lower = 17
    upper = 90
    [columns.age]
    type = "number"
    lower = 17
    upper = 90
    [columns.income]
    type = "number"
    lower = 0
    [columns.job]
    type = "category"
    values = ["clerk", "sales"]
    """
    assert Schema.from_dict(tomllib.loads(text)) == people()


def test_a_schema_says_what_a_classifier_asks_for():
    schema = people()
    assert schema.classes == (0, 1)
    assert schema.group_values == {"sex": ("Female", "Male"), "age": Numeric()}
    assert schema.leaks == ()


def test_copies_and_pickles_are_equal_and_hash_alike():
    schema = people()
    for other in (copy.deepcopy(schema), pickle.loads(pickle.dumps(schema)), eval(repr(schema))):
        assert other == schema
        assert hash(other) == hash(schema)
    with pytest.raises(AttributeError, match="cannot assign"):
        schema.label = "other"


@pytest.mark.parametrize(
    ("first", "second"), [(Category([0, 1]), Category([False, True])), (Category(["a", "b"]), Category(["b", "a"]))]
)
def test_schemas_differ_in_types_and_order_of_values(first, second):
    made = [Schema({"x": column}, label="y", classes=[0, 1]) for column in (first, second)]
    assert made[0] != made[1]


def test_order_of_features_counts():
    columns = {"a": Number(0, 1), "b": Number(0, 1)}
    swapped = {"b": Number(0, 1), "a": Number(0, 1)}
    assert Schema(columns, label="y", classes=[0, 1]) != Schema(swapped, label="y", classes=[0, 1])


def test_groups_by_name_are_features_too():
    schema = Schema({"sex": Category(["F", "M"])}, label="y", classes=[0, 1], groups=["sex"])
    assert schema.groups == {"sex": Category(["F", "M"])}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Number(3, 3), "lower must be below upper"),
        (lambda: Number(float("nan"), 3), "lower must be finite"),
        (lambda: Category("abc"), "list of values"),
        (lambda: Category([]), "at least one"),
        (lambda: Category(["a", "a"]), "'a' twice"),
        (lambda: Category([1, True]), "True twice"),
        (lambda: Category([None]), "text, numbers or booleans"),
        (lambda: Schema({}, label="y", classes=[0, 1]), "at least one feature"),
        (lambda: Schema({"x": 3}, label="y", classes=[0, 1]), r"columns\['x'\] must be"),
        (lambda: Schema({"x": Number()}, label="x", classes=[0, 1]), "'x' is both the label and among the columns"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0]), "at least two"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups=["z"]), "'z' is not among"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups="x"), "list of names"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], signed=1), "signed must be"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups={"x": Category([1])}), "differently"),
    ],
)
def test_slips_are_named(make, said):
    with pytest.raises((InvalidInput, InvalidType), match=said):
        make()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("signed"), "signed = true once a person"),
        (lambda d: d.pop("columns"), "lacks the field 'columns'"),
        (lambda d: d.update(format="csv"), "format must be"),
        (lambda d: d.update(version=True), "version must be 1"),
        (lambda d: d.update(colums={}), "unknown fields: 'colums'"),
        (lambda d: d["label"].update(kind="x"), "label has unknown fields"),
        (lambda d: d["columns"]["age"].update(low=3), "columns.age has unknown fields: 'low'"),
        (lambda d: d["columns"]["age"].update(lower=100), "columns.age: lower must be below upper"),
        (lambda d: d["columns"]["age"].update(type="int"), "columns.age: type must be"),
        (lambda d: d["columns"]["job"].pop("type"), "columns.job lacks the field 'type'"),
        (lambda d: d["columns"]["job"].update(labels={"x": "y"}), "columns.job: labels names 'x'"),
        (lambda d: d["columns"]["job"].update(title=3), "columns.job: title must be text"),
        (lambda d: d["columns"]["age"].update(type="date", lower="soon"), "columns.age: lower must be a date"),
        (lambda d: d.update(cells={"decimal": ";"}), "decimal must be one of"),
        (lambda d: d.update(cells={"comma": ";"}), "cells has unknown fields"),
        (lambda d: d.update(positive=7), "positive must be one of the classes"),
        (lambda d: d.update(privacy_id="sex"), "'sex' is both the privacy id and among the columns or groups"),
        (lambda d: d.update(leave_out=["age"]), "'age' is both left out and among the columns"),
        (lambda d: d.update(leave_out=["repaid"]), "'repaid' is both the label and left out"),
        (lambda d: d["columns"]["job"].update(values="ab"), "columns.job: values must be a list"),
        (lambda d: d.update(columns=[1]), "columns must be a table"),
        (lambda d: d.update(signed="perhaps"), "signed must be true or false"),
    ],
)
def test_bad_plain_data_say_where(change, said):
    description = people().to_dict()
    change(description)
    with pytest.raises((InvalidInput, InvalidType), match=said):
        Schema.from_dict(description)


def table():
    return {
        "age": [31.0, 45.5, 62.0, 31.0],
        "children": [0, 1, 2, 0],
        "year": list(range(1990, 1994)),
        "home": [True, False, True, True],
        "job": ["clerk", None, "sales", "clerk"],
        "weight": [70.0, np.nan, 90.0, 80.0],
        "name": ["a", "b", "c", "d"],
        "sex": ["F", "M", "F", "M"],
        "repaid": [1, 0, 1, 1],
    }


@pytest.mark.parametrize("form", [dict, pd.DataFrame, pl.DataFrame])
def test_a_draft_counts_as_a_leak_and_can_be_signed(form):
    draft = draft_schema(form(table()), label="repaid", groups=["sex"], leave_out=["name"]).schema
    assert draft.columns == {
        "age": Number(20, 70),
        "children": Number(0, 3),
        "year": Number(1989, 1994),
        "home": Category([False, True]),
        "job": Category(["clerk", "sales"]),
        "weight": Number(60, 100),
    }
    assert draft.groups == {"sex": Category(["F", "M"])}
    assert not draft.signed
    assert "the values of column 'sex'" in draft.leaks
    assert "the bounds of column 'age'" in draft.leaks
    assert draft.replace(signed=True).leaks == ()
    assert Schema.from_dict(draft.to_dict()) == draft


def test_a_draft_leaves_names_of_people_out_and_refuses_unknown_columns():
    frame = {"name": [f"person {i}" for i in range(1001)], "age": [3, 4, 5] * 333 + [1, 2], "y": [0, 1] * 500 + [0]}
    draft = draft_schema(frame, label="y")
    assert list(draft.schema.columns) == ["age"]
    assert draft.schema.leave_out == ("name",)
    (finding,) = [finding for finding in draft.findings if finding.column == "name"]
    assert finding.topic == "identifier"
    assert "person" not in finding.message
    with pytest.raises(InvalidInput, match=r"no column 'wage'.*no column 'id'"):
        draft_schema(frame, label="wage", leave_out=["id"])


def test_few_whole_numbers_of_a_group_are_its_values_however_they_are_written():
    frame = {"sex": [0.0, 1.0, 1.0], "part": [0.5, 1.0, 1.5], "rank": [1.0, np.nan, 2.0], "job": [0.0, 1.0, 0.0]}
    frame = pd.DataFrame({"y": [0, 1, 0], **frame})
    draft = draft_schema(frame, label="y", groups=["sex", "part", "rank"]).schema
    assert draft.groups == {
        "sex": Category([0, 1]),
        "part": Number(0.0, 2.0),
        "rank": Category([1, 2]),  # rows without a value belong to no group
    }
    assert all(type(value) is int for value in draft.groups["sex"].values)
    assert draft.columns == {"job": Category([0, 1])}


# ------------------------------------------------------------------------------------ further declarations


def full():
    return Schema(
        {
            "age": Number(17, 90, title="age in years"),
            "since": Date("2010-01-01", "2020-12-31"),
            "race": Category([1, 2, 3], labels={3: "American Indian"}, title="race"),
            "smoker": Category([False, True]),
            "job": Category(),
        },
        label="repaid",
        classes=["no", "yes"],
        groups=["race"],
        positive="yes",
        privacy_id="person",
        leave_out=["case"],
        class_labels={"yes": "repaid in time"},
        cell_format=CellFormat(decimal=",", missing=("-9",)),
        title="repayment",
        name="loans",
        note="made up",
    )


def test_everything_goes_through_plain_data_toml_pickle_and_repr():
    schema = full()
    description = schema.to_dict()
    assert Schema.from_dict(json.loads(json.dumps(description))) == schema
    assert Schema.from_dict(tomllib.loads(to_toml(description))) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert eval(repr(schema)) == schema
    assert hash(eval(repr(schema))) == hash(schema)
    assert schema.replace(title="x") != schema


def test_what_a_classifier_takes_from_a_schema():
    schema = full()
    assert schema.feature_bounds == {"age": (17.0, 90.0), "since": (14610.0, 18627.0)}
    assert schema.categories == {"race": (1, 2, 3), "smoker": (False, True)}
    assert schema.group_values == {"race": (1, 2, 3)}
    assert schema.positive == "yes"
    assert schema.privacy_id == "person"
    assert schema.value_label("race", "3") == "3: American Indian"
    assert schema.value_label("race", 1) == "1"
    assert schema.value_label("repaid", "yes") == "yes: repaid in time"
    assert schema.title_of("age") == "age in years"
    assert schema.title_of("repaid") == "repayment"
    assert schema.title_of("smoker") == "smoker"


def test_a_schema_by_hand():
    text = """
    signed = "yes"
    label = "repaid"
    positive = true
    classes = [false, true]
    groups = ["sex"]
    leave_out = ["case"]
    privacy_id = "person"
    [columns.sex]
    type = "binary"
    values = ["F", "M"]
    labels = {F = "female", M = "male"}
    [columns.since]
    type = "number"
    lower = 2010-01-01
    upper = 2020-12-31
    [columns.born]
    type = "date"
    lower = 1900-01-01
    [columns.age]
    type = "continuous"
    """
    schema = Schema.from_dict(tomllib.loads(text))
    assert schema.signed
    assert schema.positive is True
    assert schema.groups == {"sex": Category(["F", "M"], labels={"F": "female", "M": "male"})}
    assert schema.columns["since"] == Number(14610, 18627)  # a date is a number of days
    assert schema.columns["born"] == Date(lower="1900-01-01")
    assert not any(schema.columns[name].bounded for name in ("born", "age"))


@pytest.mark.parametrize("values", [[1, "1"], [1, 1.0], ["1", "01"], [True, "true"], ["a ", "a"]])
def test_values_that_cells_cannot_tell_apart_are_refused(values):
    with pytest.raises(InvalidInput, match="twice"):
        Category(values)


# ----------------------------------------------------------------------------------------------- drafts


def table_of(n=300):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "row": np.arange(n),
            "CustomerID": rng.permutation(n) + 10_000,
            "patient_id": np.repeat(np.arange(n // 5), 5)[:n],
            "case": [f"2020/{i:05d}" for i in range(n)],
            "comment": [f"the {i}th person said {'this and ' * (i % 5)}that" for i in range(n)],
            "country": ["DE"] * n,
            "nothing": [None] * n,
            "nested": [[i] for i in range(n)],
            "children": rng.integers(0, 4, n),
            "race": rng.integers(1, 7, n),
            "retired": rng.integers(0, 2, n),
            "age": [*rng.integers(18, 91, n - 2).tolist(), "n/a", "?"],
            "income": [*rng.lognormal(10, 1, n - 1).round(2).tolist(), "about 30"],
            "since": [f"20{i % 20:02d}-0{1 + i % 9}-15" for i in range(n)],
            "job": [*rng.choice(["clerk", "sales"], n - 3), "astronaut", "diver", None],
            "height": [*rng.normal(170, 10, n - 1), np.inf],
            "sex": rng.choice(["F", "M"], n),
            "y": rng.choice(["no", "yes"], n),
        }
    )


def test_a_draft_reports_everything_at_once():
    draft = draft_schema(table_of(), label="y", groups=["sex"])
    topics = {}
    for finding in draft.findings:
        topics.setdefault(finding.topic, []).append(finding.column)
    assert topics == {
        "identifier": ["row", "CustomerID", "patient_id", "case"],
        "free_text": ["comment"],
        "constant": ["country"],
        "empty": ["nothing", "nested"],
        "unparsable": ["income"],
        "infinite": ["height"],
        "missing": [None],
        "few_values": [None],
        "rare": [None],
    }
    said = {finding.topic: finding.message for finding in draft.findings}
    assert "age 2 (1%), job 1 (0%)" in said["missing"]
    assert "'children', 'race'" in said["few_values"]
    assert "job (2)" in said["rare"]
    assert {name: column.type for name, column in draft.schema.columns.items()} == {
        "children": "number",
        "race": "number",
        "retired": "category",
        "age": "number",
        "income": "number",
        "since": "date",
        "job": "category",
        "height": "number",
    }
    assert set(draft.schema.leave_out) == {
        *("row", "CustomerID", "patient_id", "case", "comment", "country", "nothing", "nested")
    }
    (person,) = [finding for finding in draft.findings if finding.column == "patient_id"]
    assert person.option == "privacy_id"


def test_columns_that_are_asked_for_are_used():
    draft = draft_schema(table_of(), label="y", features=["case", "CustomerID", "age"], privacy_id="patient_id")
    assert list(draft.schema.columns) == ["CustomerID", "age"]  # no case number occurs in enough rows
    assert draft.schema.privacy_id == "patient_id"


def test_decisions_are_listed_in_one_message():
    frame = pd.DataFrame({"x": [1.0] * 60, "g": [None] * 60, "y": np.linspace(0, 1, 60)})
    with pytest.raises(InvalidInput) as told:
        draft_schema(frame, label="y", groups=["g"])
    for said in ("'y' has 60 different values", "'g' holds nothing but missing", "No column is left"):
        assert said in str(told.value)
    with pytest.raises(InvalidInput, match=r"'y' is both the label and among the groups.*'x' is both"):
        draft_schema(frame, label="y", groups=["y", "x"], leave_out=["x"])


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (17, 90, (0, 100)),
        (0, 4, (0, 5)),
        (0, 99_999, (0, 110_000)),
        (-3.2, 4.8, (-4, 6)),
        (1990, 1993, (1989, 1994)),
        (0.001, 0.009, (0, 0.01)),
        (-90, -17, (-100, 0)),
        (-1e300, 1e300, (-2e300, 2e300)),
        (5e-324, 1e-323, (5e-324, 1.5e-323)),
    ],
)
def test_bounds_are_rounded_outward(lower, upper, expected):
    found = rounded_bounds(lower, upper)
    assert found == pytest.approx(expected, rel=1e-9, abs=0)
    assert found[0] <= lower < upper <= found[1]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.linspace(0, 1, 30), "30 different values in 30 rows; choose a column of classes, or cut"),
        ([f"person {row}" for row in range(40)] * 2, None),
        ([f"person {row}" for row in range(60)] * 2, "60 different values in 120 rows"),
        (["yes"] * 40, "same value in every row"),
        (["yes", "no"] * 20, None),
    ],
)
def test_labels_that_are_no_classes_need_a_decision(label, said):
    frame = {"x": np.arange(len(label)) % 7 / 2, "y": label}
    if said is None:
        assert len(draft_schema(frame, label="y").schema.classes) == len(set(label))
        return
    with pytest.raises(InvalidInput, match=said) as told:
        draft_schema(frame, label="y")
    assert "person" not in str(told.value)
