import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import OneHotEncoder

from ratewise.encoding import TableEncoder
from ratewise.exceptions import InvalidInput, InvalidType, PrivacyLeakWarning
from ratewise.schema import Category, Number, Schema

SCHEMA = Schema(
    {
        "age": Number(20, 60),
        "job": Category(["clerk", "sales", "unknown"], missing="unknown"),
        "home": Category([False, True]),
        "pay": Number(0, 10, missing=5),
    },
    label="y",
    classes=[0, 1],
)
TABLE = {
    "age": [20, 30, 70, -5],
    "job": ["sales", "clerk", None, "sales"],
    "home": [True, False, False, True],
    "pay": [1.0, np.nan, 10.0, 2.5],
    "other": [1, 2, 3, 4],
}
ENCODED = np.array(
    [
        [0, 0, 1, 0, 0, 1, 0.1],
        [0.25, 1, 0, 0, 1, 0, 0.5],
        [1, 0, 0, 1, 1, 0, 1],
        [0, 0, 1, 0, 0, 1, 0.25],
    ]
)


@pytest.mark.parametrize(
    "form",
    [
        dict,
        pd.DataFrame,
        pl.DataFrame,
        pa.table,
        lambda t: pd.DataFrame(t).astype({"job": "category"}),
        lambda t: pd.DataFrame(t).convert_dtypes(),
        lambda t: np.array([list(row) for row in zip(*list(t.values())[:4], strict=True)], dtype=object),
    ],
)
def test_every_form_of_table_is_encoded_alike(form):
    encoder = TableEncoder(SCHEMA)
    assert np.array_equal(encoder.fit_transform(form(TABLE)), ENCODED)
    assert np.array_equal(encoder.transform(form(TABLE)), ENCODED)


def test_names_and_manners():
    encoder = TableEncoder(SCHEMA).fit(TABLE)
    names = ["age", "job=clerk", "job=sales", "job=unknown", "home=False", "home=True", "pay"]
    assert encoder.get_feature_names_out().tolist() == names
    assert encoder.n_features_in_ == 4
    assert np.array_equal(pickle.loads(pickle.dumps(encoder)).transform(TABLE), ENCODED)
    assert clone(encoder).schema == SCHEMA
    with pytest.raises(NotFittedError):
        TableEncoder(SCHEMA).transform(TABLE)


def test_a_row_is_encoded_by_itself_and_nothing_is_kept_of_it():
    encoder = TableEncoder(SCHEMA).fit(TABLE)
    for row in range(4):
        alone = {name: [column[row]] for name, column in TABLE.items()}
        assert np.array_equal(encoder.transform(alone)[0], ENCODED[row])
        assert np.array_equal(TableEncoder(SCHEMA).fit_transform(alone)[0], ENCODED[row])
    assert sorted(vars(encoder)) == ["feature_names_in_", "n_features_in_", "schema", "sparse", "unknown"]
    other = TableEncoder(SCHEMA).fit({name: column[:1] for name, column in TABLE.items()})
    assert {n: str(v) for n, v in vars(other).items()} == {n: str(v) for n, v in vars(encoder).items()}


def test_wide_tables_are_sparse_and_the_same():
    values = [f"town {i}" for i in range(300)]
    schema = Schema({"town": Category(values), "age": Number(0, 50)}, label="y", classes=[0, 1])
    rng = np.random.default_rng(0)
    table = {"town": rng.choice(values, 50), "age": rng.uniform(0, 50, 50)}
    wide = TableEncoder(schema).fit_transform(table)
    assert sp.issparse(wide)
    assert wide.format == "csr"
    dense = TableEncoder(schema, sparse=False).fit_transform(table)
    assert np.array_equal(wide.toarray(), dense)
    oracle = OneHotEncoder(categories=[values]).fit_transform(np.array(table["town"])[:, None])
    assert np.array_equal(dense[:, :300], oracle.toarray())


def test_unknown_values_are_refused_at_fit_and_by_policy_later():
    strange = {**TABLE, "job": ["sales", "clerk", "pirate", "sales"]}
    with pytest.raises(InvalidInput, match=r"column 'job'.*not declared") as told:
        TableEncoder(SCHEMA, unknown="zeros").fit(strange)
    assert "pirate" not in str(told.value)
    strict = TableEncoder(SCHEMA).fit(TABLE)
    with pytest.raises(InvalidInput, match="column 'job'") as told:
        strict.transform(strange)
    assert "pirate" not in str(told.value)
    for sparse in (False, True):
        lenient = TableEncoder(SCHEMA, unknown="zeros", sparse=sparse).fit(TABLE).transform(strange)
        row = (lenient.toarray() if sparse else lenient)[2]
        assert np.array_equal(row, [1, 0, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": [20, None, 30, 40]}, "column 'age' holds missing values"),
        ({"age": [20.0, np.nan, 30, 40]}, "column 'age' holds missing values"),
        ({"age": ["20", "31", "4", "5"]}, "column 'age' holds text"),
        ({"age": [20, 3, object(), 4]}, "column 'age' holds entries that are no numbers"),
        ({"home": [True, None, True, True]}, "column 'home' holds missing values"),
        ({"age": [20, 30]}, "different lengths"),
    ],
)
def test_bad_columns_are_named_and_no_value_is_shown(change, said):
    with pytest.raises((InvalidInput, InvalidType), match=said) as told:
        TableEncoder(SCHEMA).fit({**TABLE, **change})
    assert "31" not in str(told.value)


def test_bad_tables_and_schemas():
    with pytest.raises(InvalidInput, match="lacks the columns 'job', 'pay'"):
        TableEncoder(SCHEMA).fit({"age": [1], "home": [True]})
    with pytest.raises(InvalidInput, match="has 2 columns without names, expected 4"):
        TableEncoder(SCHEMA).fit(np.zeros((3, 2)))
    with pytest.raises(InvalidType, match="lazy frame"):
        TableEncoder(SCHEMA).fit(pl.DataFrame({"a": [1]}).lazy())
    with pytest.raises(InvalidType, match="schema must be a Schema"):
        TableEncoder({"age": (0, 1)}).fit(TABLE)
    with pytest.raises(InvalidInput, match="unknown must be one of"):
        TableEncoder(SCHEMA, unknown="ignore").fit(TABLE)
    open_bounds = Schema({"age": Number(lower=0)}, label="y", classes=[0, 1])
    with pytest.raises(InvalidInput, match=r"no bounds for 'age'.*TableClassifier"):
        TableEncoder(open_bounds).fit(TABLE)


def test_an_unsigned_schema_warns():
    draft = Schema({"age": Number(0, 1)}, label="y", classes=[0, 1], signed=False)
    with pytest.warns(PrivacyLeakWarning, match="not signed"):
        TableEncoder(draft).fit({"age": [0.5]})
