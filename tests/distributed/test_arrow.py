"""Fits on Arrow data sets: the same numbers as in memory, and one clear error for tables that cannot be used."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ratewise import InvalidInput, InvalidType, Ledger
from ratewise.distributed import arrow, open_parquet


def write(frame, folder, cuts, rows=200):
    """Write parts of a frame as Parquet files; parts may be empty."""
    folder.mkdir(exist_ok=True)
    edges = [0, *cuts, len(frame)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        table = pa.Table.from_pandas(frame.iloc[start:stop], preserve_index=False)
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=rows)
    return open_parquet(str(folder))


@pytest.mark.parametrize("ids", [None, "person"])
@pytest.mark.parametrize(("cuts", "rows"), [((), 2000), ((400, 400, 1499), 37)])
def test_same_as_in_memory(people, fit, same, tmp_path, ids, cuts, rows):
    frame = people if ids else people.drop(columns="person")
    assert same(fit(frame, ids), fit(write(frame, tmp_path / "t", cuts, rows), ids))


def test_codes_in_a_file_give_the_same(people, fit, same, tmp_path, monkeypatch):
    table = write(people, tmp_path / "t", (700,))
    inside = fit(table, "person")
    monkeypatch.setattr(arrow, "_IN_MEMORY", 0)
    assert same(inside, fit(table, "person"))


def test_folder_names_are_columns(people, fit, tmp_path):
    for sex, part in people.groupby("sex"):
        write(part.drop(columns="sex"), tmp_path / f"sex={sex}", ())
    model = fit(open_parquet(str(tmp_path)), "person")
    assert "sex" in model.feature_names_in_


def test_declared_columns_are_the_only_ones_read(people, fit, tmp_path, monkeypatch):
    seen = []
    scan = arrow.ArrowRows._scan

    def noted(self, piece, columns, where):
        seen.append(tuple(columns))
        return scan(self, piece, columns, where)

    monkeypatch.setattr(arrow.ArrowRows, "_scan", noted)
    fit(write(people, tmp_path / "t", (), 2000), "person")
    assert ("person",) in seen
    assert ("y", "sex") in seen
    assert ("age", "hours", "job", "sex") in seen


def test_a_file_without_a_column_is_refused_before_anything_is_recorded(people, fit, tmp_path):
    write(people, tmp_path / "t", ())
    other = pa.Table.from_pandas(people.drop(columns="job"), preserve_index=False)
    pq.write_table(other, tmp_path / "t" / "part-9.parquet")
    ledger = Ledger()
    with pytest.raises(InvalidInput, match="file 2 of the data set lacks the column 'job'"):
        fit(open_parquet(str(tmp_path / "t")), "person", ledger=ledger)
    assert not ledger.records


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("ids", [None, "person"])
def test_the_storage_of_a_file_does_not_matter(people, fit, same, tmp_path, ids, kind):
    """One cell that is no number would change the type of its file, or not fit the type of the others."""

    def written(name, second):
        (tmp_path / name).mkdir()
        for number, part in enumerate((people.iloc[:700], second)):
            path = tmp_path / name / f"part-{number}.{kind}"
            if kind == "csv":
                part.to_csv(path, index=False)
            else:
                pq.write_table(pa.Table.from_pandas(part, preserve_index=False), path)
        return ds.dataset(tmp_path / name, format=kind)

    second = people.iloc[700:].copy()
    plain = fit(written("plain", second), ids)
    other = fit(written("text", second.astype({"age": str, "person": str})), ids)
    assert same(plain, other)
    second["age"] = second["age"].astype(object)
    second.iloc[3, list(second.columns).index("age")] = "a word"
    fit(written("word", second.astype({"age": str})), ids)


def test_json_files_are_refused(people, fit, tmp_path):
    (tmp_path / "t").mkdir()
    people.to_json(tmp_path / "t" / "part.json", orient="records", lines=True)
    ledger = Ledger()
    with pytest.raises(InvalidInput, match="convert them to Parquet"):
        fit(ds.dataset(tmp_path / "t", format="json"), "person", ledger=ledger)
    assert not ledger.records


@pytest.mark.parametrize("rows", [1, 1400, 1600])
def test_a_table_that_changes_between_passes(people, fit, tmp_path, monkeypatch, rows):
    table = write(people, tmp_path / "t", (), 5000)
    use = arrow.ArrowRows.use_domain

    def changed(self, *given):
        longer = people.sample(rows, replace=True, random_state=0)
        pq.write_table(pa.Table.from_pandas(longer, preserve_index=False), tmp_path / "t" / "part-0.parquet")
        return use(self, *given)

    monkeypatch.setattr(arrow.ArrowRows, "use_domain", changed)
    ledger = Ledger()
    with pytest.raises(InvalidInput, match="changed"):
        fit(table, "person", ledger=ledger)
    assert ledger.total(1e-5) > 0.0  # the whole plan is recorded before the first release


def test_names_that_are_no_columns(people, fit, tmp_path):
    table = write(people, tmp_path / "t", ())
    with pytest.raises(InvalidInput, match="privacy_ids is 'nobody', which is no column of X"):
        fit(table, "nobody")
    with pytest.raises(InvalidType, match="privacy_ids must be the name of a column"):
        fit(table, np.arange(len(people)))


def test_an_empty_data_set(people, fit, tmp_path):
    with pytest.raises(InvalidInput, match="0 sample"):
        fit(write(people.iloc[:0], tmp_path / "t", ()), "person")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidInput, match="holds no Parquet files"):
        open_parquet(str(tmp_path / "nothing"))


def test_a_data_set_in_memory(people, fit, same):
    table = ds.dataset(pa.Table.from_pandas(people, preserve_index=False))
    assert same(fit(people, "person"), fit(table, "person"))


def test_memory_is_bounded_by_row_groups_and_a_few_bytes_per_row(fit, tmp_path, monkeypatch):
    """Codes are in a file; neither the table (48 MB) nor a column of each kind is in memory at once."""
    n, columns = 300_000, 20
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, columns)), columns=[f"x{i}" for i in range(columns)])
    frame["sex"], frame["y"] = rng.integers(0, 2, n), (frame["x0"] > 0).astype(int)
    table = write(frame, tmp_path / "t", (), 10_000)
    size = int(frame.memory_usage().sum())
    del frame
    monkeypatch.setattr(arrow, "_IN_MEMORY", 0)
    public = {"classes": [0, 1], "group_values": {"sex": [0, 1]}}
    bounds = {f"x{i}": (-4.0, 4.0) for i in range(columns)} | {"sex": [0, 1]}
    tracemalloc.start()
    try:
        before = pa.default_memory_pool().max_memory()
        fit(table, steps=2, feature_bounds=bounds, **public)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 4  # 9 MB were measured
    assert pa.default_memory_pool().max_memory() - before < size / 4
