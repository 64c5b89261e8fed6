"""A drafted schema accepts the next table from the same source: every split, every storage, every cell."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratewise.cli.options import to_toml
from ratewise.data.cells import NUMBER, UNPARSABLE, parse_number, parse_text, text_of
from ratewise.data.files import read_table
from ratewise.data.schema import Category, Number, Schema, draft_schema, rounded_bounds
from ratewise.exceptions import InvalidInput

DATA = Path(os.environ.get("RATEWISE_DATA", Path(__file__).parents[2] / "../shared/data"))
TABLES = {
    "adult": ("adult/adult.data", "column_15", ("column_10",)),
    "credit card": ("credit-card/UCI_Credit_Card.csv", "default.payment.next.month", ("SEX",)),
    "parkinsons": ("parkinsons/parkinsons_updrs_processed.csv", "total_UPDRS", ("sex",)),
    "german": ("german/german.data", "column_21", ("column_9",)),
    "student": ("student/student-mat.csv", "sex", ()),
    "student por": ("student/student-por.csv", "G3", ("sex",)),
    "nursery": ("nursery/nursery.data", "column_9", ("column_6",)),
    "faces": ("faces/utkface_crop_part1_labels.csv", "gender", ()),
}


def accepted(schema, part):
    """Check that the table is accepted; return the largest share of a column that is not understood."""
    assert {*schema.columns, *schema.groups, schema.label} <= {*part}
    lost = [0.0]
    for name, column in schema.columns.items():
        if isinstance(column, Category):
            known = {text_of(value) for value in column.values} | {""}
            lost.append(np.mean([text not in known for text in parse_text(part[name], schema.cell_format)]))
        else:
            values, codes = parse_number(part[name], schema.cell_format)
            lost.append(np.mean(codes == UNPARSABLE))
            if column.bounded:
                clipped = np.clip(values[codes == NUMBER], column.lower, column.upper)
                scaled = (clipped - column.lower) / (column.upper - column.lower)
                assert np.all((scaled >= 0) & (scaled <= 1))
    return max(lost)


@pytest.mark.parametrize("name", TABLES)
def test_random_splits_of_public_tables(name, tmp_path):
    path, label, groups = TABLES[name]
    frame = read_table(DATA / path).frame
    rng = np.random.default_rng(0)
    frame = frame.iloc[rng.permutation(len(frame))[:6000]].reset_index(drop=True)
    for share in (0.02, 0.4):
        order = rng.permutation(len(frame))
        first, second = np.split(order, [max(60, int(share * len(frame)))])
        draft = draft_schema(frame.iloc[first], label=label, groups=groups)
        schema = Schema.from_dict(draft.schema.to_dict())
        assert accepted(schema, frame.iloc[second]) < 0.15
        # the second part as a file of its own, whose columns may be stored in other types
        frame.iloc[second[:500]].to_csv(tmp_path / "next.csv", index=False, sep=";", decimal=",")
        assert accepted(schema, read_table(tmp_path / "next.csv", header=True).frame) < 0.15
        again = draft_schema(frame.iloc[second], label=label, groups=groups)
        assert accepted(again.schema, frame.iloc[first]) < 0.1


CELLS = {
    "integer": st.integers(-5, 5) | st.integers(),
    "float": st.floats(width=64),
    "count": st.integers(0, 3),
    "flag": st.booleans(),
    "category": st.sampled_from(["a", "b", "c", "d ", "1", "n/a", ""]),
    "text": st.text(max_size=5),
    "number text": st.integers(-9, 999).map(str) | st.sampled_from(["n/a", "?", "1.5"]),
    "date": st.dates().map(str) | st.just("unknown"),
    "datetime": st.datetimes(),
    "mixed": st.integers() | st.text(max_size=3) | st.none() | st.floats() | st.binary(max_size=2),
}


@st.composite
def tables(draw):
    n = draw(st.integers(4, 40))
    columns = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    frame = {"y": [0, 1] * (n // 2) + [0] * (n % 2)}
    for place, kind in enumerate(columns):
        cells = CELLS[kind] | st.none() if draw(st.booleans()) else CELLS[kind]
        frame[f"x{place}"] = pd.Series(draw(st.lists(cells, min_size=n, max_size=n)), dtype=object)
    made = pd.DataFrame(frame)
    return made.infer_objects() if draw(st.booleans()) else made


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frame=tables(), data=st.data())
def test_random_splits_of_generated_tables(frame, data):
    cut = data.draw(st.integers(2, len(frame) - 2))
    order = data.draw(st.permutations(range(len(frame))))
    first, second = frame.iloc[order[:cut]], frame.iloc[order[cut:]]
    needed = ""
    try:
        schema = draft_schema(first, label="y", groups=[]).schema
    except InvalidInput as problem:
        needed = str(problem)
    if needed:  # one message with all decisions
        assert needed.startswith("decisions are needed: ")
        return
    assert Schema.from_dict(schema.to_dict()) == schema
    assert to_toml(schema.to_dict())
    assert set(schema.columns) | set(schema.leave_out) == set(frame.columns) - {"y"}
    accepted(schema, second)
    accepted(schema, first)


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_rounded_bounds_hold_the_values(first, second):
    lower, upper = min(first, second), max(first, second)
    low, high = rounded_bounds(lower, upper)
    assert low <= lower <= upper <= high
    assert low < high
    assert np.isfinite(high - low)
    assert (lower >= 0) <= (low >= 0)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_counts_are_numbers_and_drafts_agree_across_splits(share):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "visits": rng.poisson(1.5, 3000),
            "job": rng.choice(["clerk", "sales", "nurse"], 3000),
            "since": pd.to_datetime("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, 3000), "D"),
            "y": rng.integers(0, 2, 3000),
        }
    )
    part = frame.sample(frac=share, random_state=0)
    whole, some = (draft_schema(table, label="y").schema for table in (frame, part))
    for schema in (whole, some):
        assert {name: column.type for name, column in schema.columns.items()} == {
            "visits": "number",
            "job": "category",
            "since": "date",
        }
    assert isinstance(some.columns["visits"], Number)
    assert isinstance(some.columns["job"], Category)
    assert whole.columns["since"] == some.columns["since"]
