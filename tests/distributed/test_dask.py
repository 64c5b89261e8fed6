"""Fits on Dask data frames: the same numbers for any number of workers, with workers killed, and clear errors."""

import os
import signal
import threading
import time
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import Delayed

from distributed import Client, LocalCluster
from ratewise import InvalidInput, InvalidType, Ledger, RateConstrainedClassifier
from ratewise.distributed import clusters
from ratewise.distributed.partitions import join_by_id, layout_of, split_by_id
from ratewise.exceptions import ClusterLost

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask and Tornado warn about ports and closed connections

CUTS = {"one": (), "some": (200, 210, 900), "many with empty ones": (0, 50, 50, 300, 301, 800, 1499, 1500)}


def frame_of(frame, cuts):
    """Return a Dask data frame with these partitions of rows."""
    edges = [0, *cuts, len(frame)]
    parts = [frame.iloc[start:stop] for start, stop in pairwise(edges)]
    return dd.from_delayed([dask.delayed(part) for part in parts], meta=frame.iloc[:0], verify_meta=False)


def cluster(workers):
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50, memory_limit=0
    )


@pytest.fixture(scope="module")
def client():
    with cluster(2) as processes, Client(processes) as found:
        yield found


@pytest.fixture(scope="module")
def in_memory(people, fit):
    return {ids: fit(people if ids else people.drop(columns="person"), ids) for ids in (None, "person")}


@pytest.mark.parametrize("ids", [None, "person"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_same_in_one_process_with_any_partition(people, fit, same, in_memory, ids, cuts):
    frame = people if ids else people.drop(columns="person")
    with dask.config.set(scheduler="sync"):
        assert same(in_memory[ids], fit(frame_of(frame, cuts), ids))


@pytest.mark.parametrize("ids", [None, "person"])
def test_same_on_two_workers(people, fit, same, in_memory, client, ids):
    frame = people if ids else people.drop(columns="person")
    assert same(in_memory[ids], fit(frame_of(frame, CUTS["some"]), ids))


def test_workers_reuse_freed_memory(people, fit, client):
    def faults():
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(100):
            np.ones(1 << 17)  # 256 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    fit(frame_of(people, CUTS["some"]), None)
    found = [client.submit(faults, workers=[one], pure=False) for one in client.scheduler_info()["workers"]]
    assert max(client.gather(found)) < 10_000


@pytest.mark.parametrize(("ids", "kills"), [(None, 1), ("person", 2)])
def test_killing_workers(people, fit, same, client, ids, kills, monkeypatch):
    monkeypatch.setattr(clusters, "PATIENCE", 600.0)  # workers start slowly on a busy machine
    frame = people if ids else people.drop(columns="person")
    steps, rng = 12, np.random.default_rng(os.getpid())
    doomed = set(rng.choice(np.arange(1, steps), kills, replace=False).tolist())
    recorded = []

    def kill(record):
        recorded.append(record.step)
        if record.step in doomed:
            workers = []
            while not workers:  # the one killed before may be about to start again
                workers = list(client.run(os.getpid, on_error="ignore").values())
            pid = int(rng.choice(workers))
            threading.Timer(rng.uniform(0.0, 0.02), os.kill, (pid, signal.SIGKILL)).start()  # while it computes

    ledger, calm = Ledger(), fit(frame, ids, steps=steps)
    stormy = fit(frame_of(frame, CUTS["some"]), ids, steps=steps, callback=kill, ledger=ledger)
    assert same(calm, stormy)
    assert recorded == list(range(1, steps + 1))
    assert ledger.total(1e-6) == pytest.approx(calm.ledger_.total(1e-6))


def test_same_on_four_workers(people, fit, same, in_memory, client):
    client.cluster.scale(4)
    client.wait_for_workers(4, timeout=600)
    for ids in (None, "person"):
        frame = people if ids else people.drop(columns="person")
        assert same(in_memory[ids], fit(frame_of(frame, CUTS["many with empty ones"]), ids))


def test_a_cluster_that_disappears(people, fit, monkeypatch):
    monkeypatch.setattr(clusters, "PATIENCE", 1.0)
    frame, ledger, steps = people.drop(columns="person"), Ledger(), []
    with cluster(1) as processes, Client(processes) as found:

        def stop(record):
            steps.append(record.step)
            if record.step == 3:
                processes.scale(0)
                while found.scheduler_info()["workers"]:
                    time.sleep(0.05)

        with pytest.raises(ClusterLost, match="steps so far are in the ledger"):
            fit(frame_of(frame, (700,)), None, steps=9, callback=stop, ledger=ledger)
    assert steps == [1, 2, 3]
    assert ledger.total(1e-6) > 0.0
    left = ledger.admissions[0].left("training")
    assert left <= 9 - 3  # the step that was cut off may count, those that were released do


def in_two_parts(first, second):
    parts = [dask.delayed(first), dask.delayed(second)]
    return dd.from_delayed(parts, meta=first.iloc[:0], verify_meta=False)


def test_partitions_without_a_column(people, fit):
    table = in_two_parts(people.iloc[:700], people.iloc[700:].drop(columns="job"))
    ledger = Ledger()
    with dask.config.set(scheduler="sync"), pytest.raises(InvalidInput, match="partition 2 lacks the column 'job'"):
        fit(table, "person", ledger=ledger)
    assert not ledger.records


@pytest.mark.parametrize("ids", [None, "person"])
def test_files_are_counted_by_one_column(people, fit, same, in_memory, tmp_path, ids):
    frame = people if ids else people.drop(columns="person")
    for number, part in enumerate((frame.iloc[:700], frame.iloc[700:])):
        part.to_parquet(tmp_path / f"part-{number}.parquet", index=False, row_group_size=100)
    table = dd.read_parquet(str(tmp_path), split_row_groups=True)
    layout = layout_of(list(table.columns), "y", "sex", ids, None)
    counted = clusters.open_dask(table, layout).counted
    assert clusters.open_dask(frame_of(frame, ()), layout).counted is None
    with dask.config.set(scheduler="sync"):
        assert [list(part.compute().columns) for part in counted.parts] == [["y"]] * 15
        assert not any(isinstance(clusters._reader(part), Delayed) for part in counted.parts)  # no task for reading
        assert same(in_memory[ids], fit(table, ids))
    frame.iloc[700:].drop(columns="job").to_parquet(tmp_path / "part-1.parquet", index=False)
    with dask.config.set(scheduler="sync"), pytest.raises(InvalidInput, match=r"cannot be computed \(KeyError\)"):
        fit(dd.read_parquet(str(tmp_path)), ids)


def test_errors_of_tasks_do_not_quote_rows(people, fit, client):
    def secret(frame):
        raise ValueError(f"cannot read {frame['age'].iloc[0]}")

    table = frame_of(people, (700,))
    for scheduler in ("sync", None):
        with dask.config.set(scheduler=scheduler), pytest.raises(InvalidInput, match=r"\(ValueError\)") as found:
            fit(table.map_partitions(secret, meta=people.iloc[:0]), "person")
        assert str(people["age"].iloc[0]) not in str(found.value)


@pytest.mark.parametrize("dtype", [object, str, "string", "category"])
@pytest.mark.parametrize("ids", [None, "person"])
def test_the_storage_of_a_partition_does_not_matter(people, fit, same, ids, dtype):
    """One cell that is no number would change the type of its partition, and an error would tell."""
    with dask.config.set(scheduler="sync"):
        plain = fit(in_two_parts(people.iloc[:700], people.iloc[700:]), ids)
        other = fit(in_two_parts(people.iloc[:700], people.iloc[700:].astype({"age": dtype, "person": dtype})), ids)
        blank = people.iloc[700:].astype({"age": object, "person": object})
        blank.iloc[3, list(blank.columns).index("age")] = "a word"
        fit(in_two_parts(people.iloc[:700], blank), ids)
    assert same(plain, other)


class Shrinking:
    """A partition that loses a row after it was computed some times."""

    def __init__(self, frame, times):
        self.frame, self.left = frame, times

    def __call__(self):
        self.left -= 1
        return self.frame if self.left >= 0 else self.frame.iloc[1:]


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_table_that_changes_between_passes(people, fit, passes):
    frame = people.drop(columns="person")
    parts = [
        dask.delayed(frame.iloc[:700]),
        dask.delayed(Shrinking(frame.iloc[700:], passes), pure=False, traverse=False)(),
    ]
    table = dd.from_delayed(parts, meta=frame.iloc[:0], verify_meta=False)
    ledger = Ledger()
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(InvalidInput, match="the table changed while it was read: partition 2"),
    ):
        fit(table, None, ledger=ledger)
    assert ledger.total(1e-6) > 0.0


def test_names(people, fit):
    table = frame_of(people, ())
    with pytest.raises(InvalidInput, match="y is 'z', which is no column of X"):
        RateConstrainedClassifier().fit(table, "z")
    with pytest.raises(InvalidType, match="y must be the name of a column of X"):
        RateConstrainedClassifier().fit(table, people["y"])


def test_rows_of_a_person_come_together_in_the_order_of_the_table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": rng.integers(0, 40, 300), "row": np.arange(300), "y": 1})

    class Named:
        ids, columns = "id", ("id", "row", "y")

    cuts, n = (0, 100, 130, 300), 3
    pieces = [split_by_id(frame.iloc[start:stop], Named, n, (0, stop - start, start)) for start, stop in pairwise(cuts)]
    joined = [join_by_id([piece[part] for piece in pieces]) for part in range(n)]
    homes = [set(part.frame["id"]) for part in joined]
    assert sum(map(len, homes)) == len(set.union(*homes)) == frame["id"].nunique()
    for part in joined:
        assert all(rows["row"].is_monotonic_increasing for _, rows in part.frame.groupby("id"))
        assert (np.diff(part.digests.astype(object)) >= 0).all()
    assert sum(len(part.frame) for part in joined) == 300
