"""Fits on Spark data frames in local mode: the same numbers as in memory, and clear errors."""

import os
import shutil
import sys

import pandas as pd
import pytest

from ratewise import InvalidInput, Ledger
from ratewise.distributed.partitions import PartitionedRows
from ratewise.exceptions import ClusterLost

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.filterwarnings("ignore"),  # Spark warns about versions of pandas and closed sockets
]


@pytest.fixture(scope="module")
def builder():
    session = pytest.importorskip("pyspark.sql").SparkSession
    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = (
        session.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    yield found
    found.getOrCreate().stop()


@pytest.fixture
def spark(builder):
    """The session of this module, or a new one where a test has stopped it."""
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def read(spark, frame, cuts):
    edges = [0, *cuts, len(frame)]
    parts = [frame.iloc[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]
    table = spark.createDataFrame(parts[0])
    for part in parts[1:]:
        table = table.union(spark.createDataFrame(part))
    return table


@pytest.mark.parametrize("ids", [None, "person"])
def test_same_as_in_memory(people, fit, same, spark, ids):
    frame = people if ids else people.drop(columns="person")
    assert same(fit(frame, ids, steps=2), fit(read(spark, frame, (900,)), ids, steps=2))


def test_empty_partitions_are_accepted(people, fit, same, spark):
    frame = people.drop(columns="person")
    table = read(spark, frame, ())
    nobody = spark.createDataFrame(spark.sparkContext.parallelize([], 2), table.schema)
    table = nobody.union(table).union(nobody)
    assert min(table.rdd.glom().map(len).collect()) == 0
    assert same(fit(frame, steps=1), fit(table, steps=1))


def test_a_table_that_changes_between_passes(people, fit, spark, tmp_path, monkeypatch):
    frame, place, ledger = people.drop(columns="person"), tmp_path / "part-0.parquet", Ledger()
    frame.to_parquet(place, index=False)
    use = PartitionedRows.use_domain

    def changed(self, *given):
        frame.iloc[:700].to_parquet(place, index=False)
        return use(self, *given)

    monkeypatch.setattr(PartitionedRows, "use_domain", changed)
    with pytest.raises(InvalidInput, match="the table changed while it was read: partition 1"):
        fit(spark.read.parquet(str(tmp_path)), None, steps=2, ledger=ledger)
    assert ledger.total(1e-6) > 0.0


def test_names_that_are_no_columns(people, fit, spark):
    table = spark.createDataFrame(pd.DataFrame({"y": ["a", "b"], "x": [1.0, 2.0]}))
    with pytest.raises(InvalidInput, match="sensitive_features is 'sex', which is no column of X"):
        fit(table)


def test_a_cluster_that_disappears(people, fit, spark):
    steps, ledger = [], Ledger()

    def stop(record):
        steps.append(record.step)
        if record.step == 2:
            spark.stop()

    with pytest.raises(ClusterLost, match="steps so far are in the ledger"):
        fit(read(spark, people.drop(columns="person"), ()), steps=5, callback=stop, ledger=ledger)
    assert steps == [1, 2]
    assert ledger.admissions[0].left("training") <= 5 - 2
