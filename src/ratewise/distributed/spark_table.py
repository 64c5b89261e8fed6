"""Partitions of a `pyspark.sql.DataFrame`.

A partition becomes a pandas data frame in the Python worker that Spark runs for it. Codes are persisted in Spark's
storage, as bytes; Spark computes lost ones again from the lineage of the table, which must give the same rows in
the same order each time (files do; the result of a shuffle may not: write it to Parquet first). A step reads the
codes of a partition from that storage, which is the first bottleneck of large partitions.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ratewise.distributed.partitions import Layout, PartitionedRows
from ratewise.exceptions import ClusterLost, InvalidInput, RatewiseError

_MARK = "ratewise-refused:"  # starts the message of an error that a worker raised on purpose


@dataclass(frozen=True, eq=False)
class SparkPartitions:
    """Objects, one per partition.

    Attributes
    ----------
    parts : pyspark.RDD of (number of the partition, object)
    n_parts : int
    """

    parts: Any
    n_parts: int

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any]) -> list[Any]:
        """Return the result of every partition, in order."""
        found = dict(_run(self._results(function, common, each).collect))
        return [found[number] for number in range(self.n_parts)]

    def total(
        self, function: Callable[..., Any], add: Callable[[Any, Any], Any], *common: Any, each: Sequence[Any]
    ) -> Any:
        """Return the sum of the results of all partitions, added as a tree."""
        values = self._results(function, common, each).values()
        return _run(lambda: values.treeReduce(add))

    def hold(self, function: Callable[..., Any], *common: Any, each: Sequence[Any]) -> SparkPartitions:
        """Return the results as partitions that Spark persists."""
        return self._persisted(self._results(function, common, each))

    def regroup(
        self,
        split: Callable[..., list[Any]],
        join: Callable[[list[Any]], Any],
        *common: Any,
        each: Sequence[Any],
    ) -> SparkPartitions:
        """Return as many partitions, the i-th joined from the i-th pieces of every partition."""
        pieces = self._results(split, common, each).flatMap(
            lambda pair: [(number, (pair[0], piece)) for number, piece in enumerate(pair[1])]
        )
        grouped = pieces.groupByKey(self.n_parts, _itself)

        def joined(pair: tuple[int, Any]) -> tuple[int, Any]:
            found = sorted(pair[1], key=lambda entry: entry[0])
            return pair[0], join([piece for _, piece in found])

        return self._persisted(grouped.map(joined))

    def gather(self, join: Callable[..., Any], *common: Any, sizes: Sequence[int]) -> SparkPartitions:  # noqa: ARG002
        """Return each partition by itself: Spark runs the partitions of a core one after the other."""
        return self.hold(lambda part, *given: join([part], *given[:-1]), *common, each=range(self.n_parts))

    def _persisted(self, parts: Any) -> SparkPartitions:
        from pyspark import StorageLevel

        held = parts.persist(StorageLevel.MEMORY_AND_DISK)
        _run(held.count)
        return SparkPartitions(held, self.n_parts)

    def _results(self, function: Callable[..., Any], common: tuple[Any, ...], each: Sequence[Any]) -> Any:
        shared = _run(lambda: self.parts.context.broadcast((common, list(each))))

        def call(pair: tuple[int, Any]) -> tuple[int, Any]:
            number, part = pair
            arguments, entries = shared.value
            try:
                return number, function(part, *arguments, entries[number])
            except RatewiseError as problem:
                raise RuntimeError(f"{_MARK}{problem}{_MARK}") from None

        return self.parts.map(call)


def _itself(number: int) -> int:
    return number


def open_spark(table: Any, layout: Layout) -> PartitionedRows:
    """Return the rows of a Spark data frame as a source for a session."""
    names = list(layout.columns)
    kept = table.select(*names)
    rows = kept.mapInArrow(_Packed(names), "part int, payload binary").rdd
    parts = rows.map(lambda row: (row.part, pickle.loads(row.payload)))  # noqa: S301 - packed by `_Packed`
    return PartitionedRows(SparkPartitions(parts, _run(rows.getNumPartitions)), layout)


@dataclass(frozen=True)
class _Packed:
    """Turns the batches of a partition into one row: its number and its rows as a pickled data frame."""

    names: list[str]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - runs in a task
        found = list(batches)
        frame = pd.DataFrame(columns=self.names)
        if found:  # in the types of Arrow, which no cell fails to fit
            frame = pa.Table.from_batches(found).to_pandas(types_mapper=pd.ArrowDtype)
        yield pa.RecordBatch.from_pydict(
            {
                "part": pa.array([context.partitionId()], pa.int32()),
                "payload": [pickle.dumps(frame, protocol=5)],
            }
        )


def _run(action: Callable[[], Any]) -> Any:
    """Run a job; refusals of workers and a cluster that is gone are errors of their own.

    A session that was stopped has lost its Java objects: calls of them are attribute errors.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return action()
    except (PySparkException, Py4JError, ConnectionError, AttributeError) as problem:
        text = str(problem)
        if _MARK in text:
            raise InvalidInput(text.split(_MARK)[1]) from None
        raise ClusterLost(
            f"the Spark cluster was lost or a job failed ({type(problem).__name__}); steps so far are in the "
            "ledger. See the log of Spark"
        ) from None
