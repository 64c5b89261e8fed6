"""Partitions of a `dask.dataframe.DataFrame` and of a `pyspark.sql.DataFrame`.

Dask runs on a cluster (`distributed.Client`) or with a scheduler of this process. Codes are persisted on the workers. The scheduler computes lost ones again from the graph of the table, so a table must
give the same rows each time it is computed. The arguments of a step are part of the graph as well; nothing that is
needed to go on exists on one worker only.

A partition of Spark becomes a pandas data frame in the Python worker that Spark runs for it. Codes are persisted in Spark's
storage, as bytes; Spark computes lost ones again from the lineage of the table, which must give the same rows in
the same order each time (files do; the result of a shuffle may not: write it to Parquet first). A step reads the
codes of a partition from that storage, which is the first bottleneck of large partitions.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ratewise.distributed.partitions import Layout, PartitionedRows, runs
from ratewise.exceptions import ClusterLost, InvalidInput, RatewiseError

PATIENCE = 60.0  # seconds to wait for a worker if there is none
_POLL = 0.5
_FAN_IN = 8
_MARK = "ratewise-refused:"  # starts the message of an error that a worker of Spark raised on purpose


@dataclass(frozen=True, eq=False)
class DaskPartitions:
    """Delayed objects, one per partition.

    Attributes
    ----------
    parts : list of dask.delayed.Delayed
    held : bool
        Whether they are persisted on the workers.
    """

    parts: list[Any]
    held: bool = False

    @property
    def n_parts(self) -> int:
        """Number of partitions."""
        return len(self.parts)

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any]) -> list[Any]:
        """Return the result of every partition, in order."""
        return _computed(self._tasks(function, common, each))

    def total(
        self, function: Callable[..., Any], add: Callable[[Any, Any], Any], *common: Any, each: Sequence[Any]
    ) -> Any:
        """Return the sum of the results of all partitions; those of many are added as a tree on the workers."""
        import dask

        client = _client()
        if client is not None and self.held and self.n_parts <= _FAN_IN:
            return _add_up(add, self._submitted(client, function, common, each))
        level = self._tasks(function, common, each)
        sum_up = dask.delayed(_add_up, pure=False)
        while len(level) > 1:
            groups = [level[start : start + _FAN_IN] for start in range(0, len(level), _FAN_IN)]
            level = [sum_up(add, group) for group in groups]
        return _computed(level)[0]

    def hold(self, function: Callable[..., Any], *common: Any, each: Sequence[Any]) -> DaskPartitions:
        """Return the results as partitions that are persisted on the workers."""
        return DaskPartitions(_persisted(self._tasks(function, common, each)), held=True)

    def regroup(
        self, split: Callable[..., list[Any]], join: Callable[[list[Any]], Any], *common: Any, each: Sequence[Any]
    ) -> DaskPartitions:
        """Return as many partitions, the i-th joined from the i-th pieces of every partition."""
        import dask

        pieces = [
            dask.delayed(split, pure=False, nout=self.n_parts)(part, *common, entry)
            for part, entry in zip(self.parts, each, strict=True)
        ]
        joined = dask.delayed(join, pure=False)
        return DaskPartitions(
            _persisted([joined([piece[number] for piece in pieces]) for number in range(self.n_parts)]), held=True
        )

    def gather(self, join: Callable[..., Any], *common: Any, sizes: Sequence[int]) -> DaskPartitions:
        """Return partitions joined from runs of these, one per thread of the workers."""
        import dask

        client, arguments = _client(), dask.delayed(_Arguments(common), pure=False, traverse=False)
        count = 1 if client is None else max(1, sum(client.nthreads().values()))
        joined = dask.delayed(_join, pure=False)
        tasks = [joined(join, [self.parts[number] for number in run], arguments) for run in runs(sizes, count)]
        return DaskPartitions(_persisted(tasks), held=True)

    def _submitted(
        self, client: Any, function: Callable[..., Any], common: tuple[Any, ...], each: Sequence[Any]
    ) -> list[Any]:
        """Return the results of few partitions that workers hold; a task of its own is faster than a graph."""
        from distributed import futures_of

        arguments = _Arguments(common)
        held = [futures_of(part)[0] for part in self.parts]
        futures = [
            client.submit(_call, function, part, arguments, entry, pure=False)
            for part, entry in zip(held, each, strict=True)
        ]
        with _computing():
            return _wait(client, futures, gather=True)

    def _tasks(self, function: Callable[..., Any], common: tuple[Any, ...], each: Sequence[Any]) -> list[Any]:
        import dask

        arguments = dask.delayed(_Arguments(common), pure=False, traverse=False)
        task = dask.delayed(_call, pure=False)
        return [task(function, part, arguments, entry) for part, entry in zip(self.parts, each, strict=True)]


@dataclass(frozen=True, eq=False)
class _Arguments:
    """Arguments that all partitions share; Dask does not look into them."""

    values: tuple[Any, ...]


def _call(function: Callable[..., Any], part: Any, arguments: _Arguments, entry: Any) -> Any:
    return function(part, *arguments.values, entry)


def _join(join: Callable[..., Any], parts: list[Any], arguments: _Arguments) -> Any:
    return join(parts, *arguments.values)


def _add_up(add: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


def open_dask(table: Any, layout: Layout) -> PartitionedRows:
    """Return the rows of a Dask data frame as a source for a session."""
    with _computing():
        return PartitionedRows(DaskPartitions(list(table.to_delayed())), layout)


@contextmanager
def _computing() -> Iterator[None]:
    """Turn errors of a table's own tasks, which quote rows, into errors that do not."""
    try:
        yield
    except (RatewiseError, MemoryError):
        raise
    except Exception as problem:  # a task may raise anything
        raise InvalidInput(
            f"the Dask data frame cannot be computed ({type(problem).__name__}); what has happened so far is in the "
            "ledger. Compute it by itself to see why, or write it to Parquet first"
        ) from None


# ------------------------------------------------------------------------------------------- the cluster


def _client() -> Any:
    """Return the cluster that Dask would use, None for a scheduler of this process."""
    import dask

    if dask.config.get("scheduler", None) in ("threads", "sync", "synchronous", "single-threaded", "processes"):
        return None
    try:
        from distributed import default_client
    except ImportError:
        return None
    try:
        return default_client()
    except ValueError:  # there is none
        return None


def _persisted(tasks: list[Any]) -> list[Any]:
    import dask

    client = _client()
    with _computing():
        if client is None:
            return list(dask.persist(*tasks))
        held = client.persist(tasks)
        from distributed import futures_of

        _wait(client, futures_of(held))
        return list(held)


def _computed(tasks: list[Any]) -> list[Any]:
    import dask

    client = _client()
    with _computing():
        if client is None:
            return list(dask.compute(*tasks))
        return _wait(client, client.compute(tasks), gather=True)


def _wait(client: Any, futures: list[Any], gather: bool = False) -> list[Any]:
    """Wait for results; a cluster that does not come back is an error."""
    from distributed.comm import CommClosedError

    from distributed import CancelledError, KilledWorker, wait

    empty_since: float | None = None
    try:
        while True:
            try:
                wait(futures, timeout=_POLL)
                break
            except TimeoutError:
                empty_since = _empty_since(client, empty_since)
        failed = [future for future in futures if future.status == "error"]
        if failed:
            failed[0].result()
        return list(client.gather(futures)) if gather else []
    except RatewiseError:
        raise
    except (CancelledError, KilledWorker, CommClosedError, OSError, TimeoutError) as problem:
        raise ClusterLost(
            f"the Dask cluster was lost ({type(problem).__name__}); steps so far are in the ledger. Start a new "
            "cluster and fit again"
        ) from None


def _empty_since(client: Any, since: float | None) -> float | None:
    """Return since when the cluster has had no worker, None if it has one."""
    if client.status not in ("running", "newly-created"):
        raise TimeoutError("the scheduler is gone")
    if client.scheduler_info(n_workers=-1)["workers"]:
        return None
    now = time.monotonic()
    since = now if since is None else since
    if now - since > PATIENCE:
        raise TimeoutError("there is no worker")
    return since


# ------------------------------------------------------------------------------------------------- Spark


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
        self, split: Callable[..., list[Any]], join: Callable[[list[Any]], Any], *common: Any, each: Sequence[Any]
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
            {"part": pa.array([context.partitionId()], pa.int32()), "payload": [pickle.dumps(frame, protocol=5)]}
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
