"""One row decides in which type a library stores a column, or whether it can convert it; no other row may notice.

Each attack changes one row of a table so that the storage of a whole column changes, or so that a conversion of the
column fails, and compares the codes of all other rows, or what is released.
"""

import io
from collections import deque

import numpy as np
import pandas as pd
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity, group, rate
from ratewise.constraints.domain import Domain, Numeric, at_least
from ratewise.data.cells import UNREADABLE_TEXT, cell_kinds, code_cells, parse_number, parse_text
from ratewise.data.files import read_table
from ratewise.data.table import code_groups, code_labels, digest_ids, raw_columns, read_features
from ratewise.estimators.evaluation import evaluate
from ratewise.estimators.postprocess import postprocess
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.preprocessing.discovery import count_values, release_values

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 400
VICTIM = 7


# ------------------------------------------------------------------- a word in a column of a CSV file

SPELLINGS = [("False", "True"), ("00", "01"), ("0.0", "1.00"), (" 0", " 1"), ("-0", "+1"), ("0e0", "1e0")]


def column(spelling, last):
    """Return a column as pandas reads it from a file: `last` decides whether it holds numbers or text."""
    lines = [spelling[place % 2] for place in range(N - 1)]
    return pd.read_csv(io.StringIO("\n".join(["v", *lines, last, ""])), skip_blank_lines=False)["v"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_labels_and_groups_are_coded_alike(spelling):
    domain = Domain((0, 1), {"group": (0, 1), "number": Numeric()}, other=True)
    numbers, texts = column(spelling, spelling[1]), column(spelling, "a word")
    assert numbers.dtype.kind in "bif"
    assert texts.dtype.kind not in "bif"
    assert code_labels(numbers, domain).tolist()[:-1] == code_labels(texts, domain).tolist()[:-1]
    assert set(code_labels(numbers, domain)) == {0, 1}
    first, second = (code_groups({"group": one, "number": one}, domain) for one in (numbers, texts))
    for name in domain.columns:
        assert first[name].tolist()[:-1] == second[name].tolist()[:-1]
        assert set(first[name]) == {0, 1}


def released_by(call, monkeypatch):
    """Return the vectors of a call before they got noise, with their mechanisms; releases return them as they are."""
    private = []

    def release(mechanism, value, rng):
        private.append((mechanism, np.array(value, dtype=np.float64)))
        return np.full(np.shape(value), 10.0)

    with monkeypatch.context() as patch:
        patch.setattr(RoundedGaussianMechanism, "release", release)
        call()
    return private


def assert_near(first, second):
    assert len(first) == len(second) > 0
    for (mechanism, one), (_, other) in zip(first, second, strict=True):
        assert np.linalg.norm((one - other).ravel()) <= mechanism.sensitivity * (1 + mechanism.slack) + 1e-9


DECLARED = {"classes": [0, 1], "group_values": {"sex": [0, 1]}, "epsilon": 5.0, "delta": 1e-6}
PARITY = demographic_parity("sex", max_gap=0.1)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("part", ["y", "sex", "predicted"])
def test_a_word_moves_an_evaluation_by_its_row(spelling, part, monkeypatch):
    def counts(last):
        given = {name: column(spelling, spelling[1]) for name in ("y", "sex", "predicted")}
        given[part] = column(spelling, last)
        return released_by(
            lambda: evaluate(
                PARITY, given["y"], given["predicted"], sensitive_features={"sex": given["sex"]}, **DECLARED
            ),
            monkeypatch,
        )

    assert_near(counts(""), counts("a word"))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("part", ["y", "sex", "scores"])
@pytest.mark.parametrize("aware", [False, True])
def test_a_word_moves_a_rule_by_its_row(spelling, part, aware, monkeypatch):
    def counts(last):
        given = {name: column(spelling, spelling[1]) for name in ("y", "sex", "scores")}
        given[part] = column(spelling, last)
        sex = {"sex": given["sex"]}
        return released_by(
            lambda: postprocess(
                given["scores"], given["y"], PARITY, sensitive_features=sex, group_aware=aware, **DECLARED
            ),
            monkeypatch,
        )[:1]  # the second release counts drawn predictions

    assert_near(counts(""), counts("a word"))


def test_a_word_moves_training_with_a_numeric_group_by_its_row(monkeypatch):
    X = np.random.default_rng(0).normal(size=(N, 1))
    labels = [0, 1] * (N // 2)
    config = TrainingConfig(steps=1, sampling_rate=1.0)

    def sums(last):
        model = RateConstrainedClassifier(
            [rate(1, where=group(flag=at_least(0.5))) <= 0.3],
            epsilon=5.0,
            delta=1e-6,
            classes=[0, 1],
            feature_bounds=(-3, 3),
            group_values={"flag": Numeric()},
            config=config,
        )
        flags = {"flag": column(("False", "True"), last)}
        return released_by(lambda: model.fit(X, labels, sensitive_features=flags), monkeypatch)

    assert_near(sums(""), sums("a word"))


# ----------------------------------------------------------------- cells that a library cannot convert


def views(counts, kind):
    return pa.chunked_array([pa.array(counts, pa.int32() if "32" in str(kind) else pa.int64()).view(kind)])


def in_pandas(arrow):
    return pd.Series(pd.arrays.ArrowExtensionArray(arrow))


def utf8(*cells):
    """Return an Arrow column of text whose bytes nobody checked, as a Parquet file may hold it."""
    edges = np.cumsum([0, *map(len, cells)]).astype(np.int32)
    buffers = pa.py_buffer(edges.tobytes()), pa.py_buffer(b"".join(cells))
    return pa.chunked_array([pa.StringArray.from_buffers(len(cells), *buffers)])


BERLIN = pa.timestamp("us", "Europe/Berlin")
LATE = 9 * 10**18
COLUMNS = {
    "date": (views([0, 3, 5], pa.date32()), views([0, 3, 2**31 - 1], pa.date32())),
    "date in milliseconds": (views([0, 86400000, 5], pa.date64()), views([0, 86400000, LATE], pa.date64())),
    "time of day": (views([0, 3600, 5], pa.time32("s")), views([0, 3600, 2**31 - 1], pa.time32("s"))),
    "fine time of day": (views([0, 10**6, 5], pa.time64("us")), views([0, 10**6, LATE], pa.time64("us"))),
    "moment": (views([0, 10**15, 5], pa.timestamp("s")), views([0, 10**15, LATE], pa.timestamp("s"))),
    "moment with a zone": (views([0, 10**15, 5], BERLIN), views([0, 10**15, LATE], BERLIN)),
    "duration": (views([0, 10**6, 5], pa.duration("s")), views([0, 10**6, LATE], pa.duration("s"))),
    "text": (utf8(b"a", b"\xc3\xa4", b"b"), utf8(b"a", b"\xc3\xa4", b"\xff\xfe")),
}


@pytest.mark.parametrize("wrap", [lambda arrow: arrow, in_pandas], ids=["arrow", "pandas"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_cell_that_cannot_be_converted_concerns_its_row_only(kind, wrap):
    first, second = map(wrap, COLUMNS[kind])
    for read in (
        parse_text,
        cell_kinds,
        digest_ids,
        lambda values: parse_number(values).values,
        lambda values: code_cells(values, ("a", "1970-01-01", 0)),
    ):
        np.testing.assert_array_equal(read(first)[:2], read(second)[:2])
        assert len(read(second)) == 3
    assert UNREADABLE_TEXT not in parse_text(first).tolist()


@pytest.mark.parametrize("kind", [kind for kind in COLUMNS if kind != "moment"])  # Parquet has no seconds
def test_a_cell_that_cannot_be_converted_in_a_parquet_file(kind, tmp_path):
    frames = []
    for name, values in zip(("first", "second"), COLUMNS[kind], strict=True):
        parquet.write_table(pa.table({"a": values, "b": [1, 2, 3]}), tmp_path / f"{name}.parquet")
        frames.append(read_table(tmp_path / f"{name}.parquet").frame)
    for name in "ab":
        first, second = (parse_text(frame[name]) for frame in frames)
        assert first[:2].tolist() == second[:2].tolist()


def test_integers_of_any_size_in_polars():
    pl = pytest.importorskip("polars")
    if not hasattr(pl, "Int128"):
        pytest.skip("polars has no integers of 128 bits")
    first, second = pl.Series([1, 2, 3]), pl.Series([1, 2, 2**70], dtype=pl.Int128)
    for read in (parse_text, digest_ids, lambda values: parse_number(values).values):
        np.testing.assert_array_equal(read(first)[:2], read(second)[:2])
    assert parse_number(second).values[2] == 2.0**70


@pytest.mark.parametrize("days", [2**31 - 1, -(2**31)])
@pytest.mark.parametrize("kind", ["struct", "list", "array"])
def test_a_date_within_a_nested_cell_of_polars(kind, days, capfd):
    """The conversion to an object of Python panics: that is no `Exception`, and is written to standard error."""
    pl = pytest.importorskip("polars")

    def nested(last):
        dates = pl.Series("a", [1, None, last], dtype=pl.Int32).cast(pl.Date)
        if kind == "struct":
            return pl.select(pl.when(dates.is_not_null()).then(pl.struct(dates))).to_series()
        return dates.reshape((3, 1)) if kind == "array" else dates.reshape((3, 1)).arr.to_list()

    for read in (parse_text, cell_kinds, digest_ids, lambda values: parse_number(values).codes):
        np.testing.assert_array_equal(read(nested(2)), read(nested(days)))
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------------------------ lists of entries


@pytest.mark.parametrize("rows", [["F", "M"] * 200, [["F"], ["M"]] * 200], ids=["entries", "rows"])
@pytest.mark.parametrize(
    "cell",
    ["x" * 10**8, ["F", "X"], [], "F", np.zeros((2, 2)), [["F"]], np.datetime64("2020"), None, 10**400],
    ids=["long", "ragged", "empty", "entry", "array", "deep", "date", "blank", "huge"],
)
@pytest.mark.parametrize("place", [0, VICTIM])
def test_a_list_of_groups(rows, cell, place):
    other = [*rows[:place], cell, *rows[place + 1 :]]
    first, second = (parse_text(raw_columns(given, N)["group"]) for given in (rows, other))
    kept = np.arange(N) != place
    assert first[kept].tolist() == second[kept].tolist()
    assert set(first) == {"F", "M"}


@pytest.mark.parametrize(
    "row",
    [["a", "b"], ["x" * 10**7, "b"], [1j, 2], [b"a", b"b"], [None, "b"], np.array(["2020", "2021"], "M8[D]")],
    ids=["text", "long text", "complex", "bytes", "objects", "dates"],
)
def test_rows_that_are_arrays(row):
    rows = [np.array([0.1, 0.2], dtype=np.float32)] * N
    first, second = (read_features([*rows[:VICTIM], one, *rows[VICTIM + 1 :]]) for one in (rows[0], np.array(row)))
    kept = np.arange(N) != VICTIM
    for one, other in zip(first.columns, second.columns, strict=True):
        assert parse_text(one)[kept].tolist() == parse_text(other)[kept].tolist()


def test_other_sequences():
    entries = deque([np.float32(0.1), np.float32(0.2), "x" * 10])
    assert parse_number(entries).values[:2].tolist() == parse_number(list(entries)).values[:2].tolist()


def test_a_missing_label_does_not_decide_the_type_of_the_classes():
    """One missing cell turns truth values of an array into floats; the found values must not show it."""
    rng = np.random.default_rng(0)
    labels = rng.random(3_000) < 0.5
    stored = [labels, labels.astype(object), pd.Series(labels), pd.Series(labels, dtype="boolean")]
    for gap in (np.nan, None):
        cells = labels.astype(object)
        cells[7] = gap
        stored += [cells, pd.Series(cells), pd.Series(cells, dtype="boolean")]
    gone = labels.astype(float)
    gone[7] = np.nan
    found = []
    for column in (*stored, gone):
        counted = count_values({"y": column}, None)["y"]
        released = release_values({"y": counted}, 1.0, 1e-6, np.random.default_rng(1))["y"]
        found.append([(type(value), value) for value in released])
    assert found == [[(int, 0), (int, 1)]] * len(found)
