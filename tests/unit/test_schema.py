import copy
import json
import pickle
import tomllib

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratewise.domain import Numeric
from ratewise.exceptions import InvalidInput, InvalidType, PrivacyLeakWarning
from ratewise.schema import Category, Number, Schema


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
    assert schema.unbounded == ("income",)
    assert schema.n_features == 4
    assert schema.names == ("age", "income", "job", "sex", "repaid")
    assert schema.leaks == ()


def test_copies_and_pickles_are_equal_and_hash_alike():
    schema = people()
    for other in (copy.deepcopy(schema), pickle.loads(pickle.dumps(schema)), eval(repr(schema))):
        assert other == schema
        assert hash(other) == hash(schema)
    with pytest.raises(AttributeError, match="immutable"):
        schema.label = "other"


@pytest.mark.parametrize(
    ("first", "second"),
    [(Category([0, 1]), Category([False, True])), (Category(["a", "b"]), Category(["b", "a"]))],
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


def test_bounds_fill_open_sides_only():
    schema = people().with_bounds({"income": (-5.0, 900.0)})
    assert schema.columns["income"] == Number(0, 900)
    assert schema.unbounded == ()
    with pytest.raises(InvalidInput, match="'job' is none"):
        schema.with_bounds({"job": (0.0, 1.0)})


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
        (lambda: Category(["a"], missing="b"), "one of the declared values"),
        (lambda: Schema({}, label="y", classes=[0, 1]), "at least one feature"),
        (lambda: Schema({"x": 3}, label="y", classes=[0, 1]), r"columns\['x'\] must be"),
        (lambda: Schema({"x": Number()}, label="x", classes=[0, 1]), "also among the columns"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0]), "at least two"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups=["z"]), "'z' is not among"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups="x"), "list of names"),
        (lambda: Schema({"x": Number()}, label="y", classes=[0, 1], signed=1), "signed must be"),
        (
            lambda: Schema({"x": Number()}, label="y", classes=[0, 1], groups={"x": Category([1])}),
            "differently",
        ),
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
        (lambda d: d["columns"]["job"].pop("values"), "columns.job.*lacks the field 'values'"),
        (lambda d: d["columns"]["job"].update(values="ab"), "columns.job: values must be a list"),
        (lambda d: d.update(columns=[1]), "columns must be a table"),
        (lambda d: d.update(signed="yes"), "signed must be True or False"),
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
def test_a_draft_warns_counts_as_a_leak_and_can_be_signed(form):
    with pytest.warns(PrivacyLeakWarning, match="read off the data"):
        draft = Schema.draft(form(table()), label="repaid", groups=["sex"], leave_out=["name"])
    assert draft.columns == {
        "age": Number(31, 62),
        "children": Category([0, 1, 2]),
        "year": Category([1990, 1991, 1992, 1993]),
        "home": Category([False, True]),
        "job": Category(["clerk", "sales", "missing"], missing="missing"),
        "weight": Number(70, 90, missing=80),
    }
    assert draft.groups == {"sex": Category(["F", "M"])}
    assert not draft.signed
    assert "the values of column 'sex'" in draft.leaks
    assert "the bounds of column 'age'" in draft.leaks
    assert draft.sign().leaks == ()
    assert Schema.from_dict(draft.to_dict()) == draft


def test_a_draft_may_leave_bounds_open():
    with pytest.warns(PrivacyLeakWarning):
        draft = Schema.draft({"age": [1.5, 2.0], "y": [0, 1]}, label="y", bounds=False)
    assert draft.unbounded == ("age",)
    assert "the bounds of column 'age'" not in draft.leaks


def test_a_draft_refuses_names_of_people_and_unknown_columns():
    frame = {"name": [f"person {i}" for i in range(1001)], "y": [0, 1] * 500 + [0]}
    with pytest.warns(PrivacyLeakWarning), pytest.raises(InvalidInput, match=r"leave_out=\['name'\]") as told:
        Schema.draft(frame, label="y")
    assert "person" not in str(told.value)
    with pytest.raises(InvalidInput, match="no column 'wage'"):
        Schema.draft(frame, label="wage")


def test_few_whole_numbers_of_a_group_are_its_values_however_they_are_written():
    frame = {
        "sex": [0.0, 1.0, 1.0],
        "part": [0.5, 1.0, 1.5],
        "rank": [1.0, np.nan, 2.0],
        "job": [0.0, 1.0, 0.0],
    }
    frame = pd.DataFrame({"y": [0, 1, 0], **frame})
    with pytest.warns(PrivacyLeakWarning):
        draft = Schema.draft(frame, label="y", groups=["sex", "part", "rank"])
    assert draft.groups == {
        "sex": Category([0, 1]),
        "part": Number(0.5, 1.5),
        "rank": Category([1, 2, "missing"], missing="missing"),
    }
    assert all(type(value) is int for value in draft.groups["sex"].values)
    assert draft.columns == {"job": Number(0.0, 1.0)}  # a feature: one number, not two columns
