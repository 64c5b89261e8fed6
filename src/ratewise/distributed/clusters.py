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

import asyncio
import ctypes
import functools
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ratewise.distributed.partitions import Function, Layout, PartitionedRows
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
    _known: list[str] = field(default_factory=list, repr=False)  # homes, as long as sums come from there

    @property
    def n_parts(self) -> int:
        """Number of partitions."""
        return len(self.parts)

    def map(self, function: Function, *common: Any, each: Sequence[Any]) -> list[Any]:
        """Return the result of every partition, in order."""
        return _done(self._tasks(function, common, each))

    def total(self, function: Function, add: Function, *common: Any, each: Sequence[Any]) -> Any:
        """Return the sum of the results of all partitions.

        Each worker adds those of the partitions that it holds, in answer to one message. If a worker or a partition is
        lost, or none is held yet, the sum is a graph of tasks: a tree on the workers.
        """
        import dask

        client = _client()
        if client is not None and self.held:
            found = self._sums_of_workers(client, each, function, add, common)
            if found:
                return _add_up(add, found)
        level = self._tasks(function, common, each)
        sum_up = dask.delayed(_add_up, pure=False)
        while len(level) > 1:
            groups = [level[start : start + _FAN_IN] for start in range(0, len(level), _FAN_IN)]
            level = [sum_up(add, group) for group in groups]
        return _done(level)[0]

    def hold(self, function: Function, *common: Any, each: Sequence[Any]) -> DaskPartitions:
        """Return the results as partitions that are persisted on the workers."""
        return DaskPartitions(_done(self._tasks(function, common, each), keep=True), held=True)

    def regroup(self, split: Function, join: Function, *common: Any, each: Sequence[Any]) -> DaskPartitions:
        """Return as many partitions, the i-th joined from the i-th pieces of every partition."""
        import dask

        pieces = [
            dask.delayed(split, pure=False, nout=self.n_parts)(part, *common, entry)
            for part, entry in zip(self.parts, each, strict=True)
        ]
        joined = dask.delayed(join, pure=False)
        tasks = [joined([piece[number] for piece in pieces]) for number in range(self.n_parts)]
        return DaskPartitions(_done(tasks, keep=True), held=True)

    def gather(self, join: Function, *common: Any) -> DaskPartitions:
        """Return partitions joined from those that a worker holds, one per thread of the workers; nothing moves."""
        import dask

        client, arguments = _client(), dask.delayed(_Arguments(common), pure=False, traverse=False)
        at: dict[str, list[Any]] = {}
        for part, home in zip(self.parts, self._homes(client), strict=True):
            at.setdefault(home, []).append(part)
        workers = {} if client is None else client.scheduler_info(n_workers=-1)["workers"]
        tasks, task = [], dask.delayed(_call, pure=False)
        for home, held in at.items():
            length = -(-len(held) // (workers[home]["nthreads"] if home in workers else 1))
            tasks += [task(join, held[start : start + length], arguments) for start in range(0, len(held), length)]
        return DaskPartitions(_done(tasks, keep=True), held=True)

    def _homes(self, client: Any) -> list[str]:
        """Return the worker that holds each partition, "" where there is none."""
        if client is None:
            return [""] * self.n_parts
        from distributed import futures_of

        held = [futures_of(part)[0] for part in self.parts]
        try:
            homes = {} if any(future.status != "finished" for future in held) else client.who_has(held)
        except OSError:
            homes = {}
        return [min(homes.get(future.key, ()), default="") for future in held]

    def _sums_of_workers(self, client: Any, each: Sequence[Any], *call: Any) -> list[Any]:
        """Return the sum of each worker that holds partitions, none if one is lost: then nothing was added."""
        entries: dict[str, dict[Any, Any]] = {}
        homes = self._known.copy() or self._homes(client)
        self._known.clear()
        for part, home, entry in zip(self.parts, homes, each, strict=True):
            entries.setdefault(home, {})[part.key] = entry
        if "" in entries:
            return []
        try:
            found = client.run(_sum_of_worker, entries, *call, workers=list(entries), on_error="return").values()
        except OSError:
            return []
        if any(isinstance(one, Exception | None) for one in found):
            return []
        self._known.extend(homes)
        return list(found)

    def _tasks(self, function: Function, common: tuple[Any, ...], each: Sequence[Any]) -> list[Any]:
        import dask

        arguments = dask.delayed(_Arguments(common), pure=False, traverse=False)
        task = dask.delayed(_call, pure=False)
        return [task(function, _reader(part), arguments, entry) for part, entry in zip(self.parts, each, strict=True)]


@dataclass(frozen=True, eq=False)
class _Arguments:
    """Arguments that all partitions share; Dask does not look into them."""

    values: tuple[Any, ...]


def _reader(part: Any) -> Any:
    """Return the task of a partition that depends on no other task, so that its rows are read where they are used."""
    task = part.dask[part.key]
    return part if getattr(task, "dependencies", True) else functools.partial(task)


def _call(function: Function, part: Any, arguments: _Arguments, *entry: Any) -> Any:
    _reuse_memory()
    return function(part() if isinstance(part, functools.partial) else part, *arguments.values, *entry)


@functools.cache
def _reuse_memory() -> None:
    """Let a worker of Dask reuse freed memory, up to the sizes that the C library chooses without Dask's setting.

    Dask makes its workers return freed memory at once: page faults then take as long as the work itself.
    """
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(library, "mallopt") and "MALLOC_TRIM_THRESHOLD_" in os.environ:
        library.mallopt(-1, 1 << 26)  # M_TRIM_THRESHOLD
        library.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD


async def _sum_of_worker(
    entries: dict[str, dict[Any, Any]], function: Function, add: Function, common: tuple[Any, ...], dask_worker: Any
) -> Any:
    """Return the sum of the results of partitions that a worker holds, computed in its threads; None if one is gone."""
    own = entries[dask_worker.address]
    if any(key not in dask_worker.data for key in own):
        return None

    def result(key: Any) -> Any:
        return function(dask_worker.data[key], *common, own[key])

    loop, threads = asyncio.get_running_loop(), dask_worker.executors["default"]
    results = [loop.run_in_executor(threads, result, key) for key in own]
    return _add_up(add, await asyncio.gather(*results))


def _add_up(add: Function, parts: list[Any]) -> Any:
    return functools.reduce(add, parts)


def open_dask(table: Any, layout: Layout) -> PartitionedRows:
    """Return the rows of a Dask data frame as a source for a session."""
    with _computing():
        label = table[[layout.label]]
        narrow = not label.optimize(fuse=False).expr.dependencies()  # files are read by columns
        counted = DaskPartitions(list(label.to_delayed())) if narrow else None
        return PartitionedRows(DaskPartitions(list(table.to_delayed())), layout, counted)


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


def _done(tasks: list[Any], keep: bool = False) -> list[Any]:
    """Return the results of tasks, or objects for results that workers keep."""
    import dask

    client = _client()
    with _computing():
        if client is None:
            return list((dask.persist if keep else dask.compute)(*tasks))
        if not keep:
            return _wait(client, client.compute(tasks), gather=True)
        from distributed import futures_of

        held = client.persist(tasks)
        _wait(client, futures_of(held))
        return list(held)


def _wait(client: Any, futures: list[Any], gather: bool = False) -> list[Any]:
    """Wait for results; a cluster that does not come back is an error."""
    from distributed.comm import CommClosedError

    from distributed import CancelledError, KilledWorker, wait

    empty_since: float | None = None
    try:
        while not all(future.done() for future in futures):  # a result may be lost while others are waited for
            for future in futures:  # one by one: waiting for many costs time for each of them
                while not future.done():
                    try:
                        wait(future, timeout=_POLL)
                    except TimeoutError:
                        empty_since = _empty_since(client, empty_since)
        if any(future.cancelled() for future in futures):
            raise CancelledError
        failed = [future for future in futures if future.status == "error"]
        if failed:
            problem = failed[0].exception()
            if isinstance(problem, KilledWorker):
                raise problem
            with _computing():  # errors of files are no loss of the cluster
                raise problem
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

    def map(self, function: Function, *common: Any, each: Sequence[Any]) -> list[Any]:
        """Return the result of every partition, in order."""
        found = dict(_run(self._results(function, common, each).collect))
        return [found[number] for number in range(self.n_parts)]

    def total(self, function: Function, add: Function, *common: Any, each: Sequence[Any]) -> Any:
        """Return the sum of the results of all partitions, added as a tree."""
        values = self._results(function, common, each).values()
        return _run(lambda: values.treeReduce(add))

    def hold(self, function: Function, *common: Any, each: Sequence[Any]) -> SparkPartitions:
        """Return the results as partitions that Spark persists."""
        return self._persisted(self._results(function, common, each))

    def regroup(self, split: Function, join: Function, *common: Any, each: Sequence[Any]) -> SparkPartitions:
        """Return as many partitions, the i-th joined from the i-th pieces of every partition."""
        pieces = self._results(split, common, each).flatMap(
            lambda pair: [(number, (pair[0], piece)) for number, piece in enumerate(pair[1])]
        )
        grouped = pieces.groupByKey(self.n_parts, _itself)

        def joined(pair: tuple[int, Any]) -> tuple[int, Any]:
            found = sorted(pair[1], key=lambda entry: entry[0])
            return pair[0], join([piece for _, piece in found])

        return self._persisted(grouped.map(joined))

    def gather(self, join: Function, *common: Any) -> SparkPartitions:
        """Return each partition by itself: Spark runs the partitions of a core one after the other."""
        return self.hold(lambda part, *given: join([part], *given[:-1]), *common, each=range(self.n_parts))

    def _persisted(self, parts: Any) -> SparkPartitions:
        from pyspark import StorageLevel

        held = parts.persist(StorageLevel.MEMORY_AND_DISK)
        _run(held.count)
        return SparkPartitions(held, self.n_parts)

    def _results(self, function: Function, common: tuple[Any, ...], each: Sequence[Any]) -> Any:
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
