"""Rows in partitions that other processes hold: sums over units are requested from partitions and added.

Partitions are pandas data frames that an adapter (`ratewise.distributed.clusters`) holds where they
are. A fit goes over them a few times (counts, column histograms) and then codes them once; codes stay on the
workers. A step sends the score table and the key of the sample, and receives one vector.

* Units have numbers that do not depend on the partitions: rows by their place in the table, ids by the order of their
  digests. A partition holds consecutive units; with ids, rows are regrouped first so that it holds whole persons.
* A partition computes its part of the sample from the key. A partition that is lost and computed again gives the
  same numbers.
* Labels, sensitive features and ids are columns of the table, given by name (`Layout`). Packages that hold tables are not
  imported here: a table is known by the module of its type.
* Sums are exact, so that the order of addition does not matter. Noise is added once, by the session, and the ledger
  is kept there; workers know neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat, joined_cells
from ratewise.data.table import FeatureTable, Units, digest_ids, join_units, weight_step
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.models.additive import AdditiveEngine, BinSums, Problem, Scorer
from ratewise.models.rows import Rows
from ratewise.preprocessing.basis import Basis, JoinedCodes, RowCodes, bin_offsets, code_rows
from ratewise.preprocessing.discovery import ColumnDeclaration, RangeCounts, ValueCounts
from ratewise.preprocessing.grids import Grid
from ratewise.training.config import TrainingConfig

Floats = npt.NDArray[np.float64]
Function = Callable[..., Any]

ARROW, DASK, SPARK = "pyarrow dataset", "Dask data frame", "Spark data frame"
_MODULES = {"pyarrow": ARROW, "dask": DASK, "pyspark": SPARK}


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their use.

    Attributes
    ----------
    features : tuple of str
        All columns but the label and the id; sensitive columns are among them.
    label : str
    groups : tuple of str
        Sensitive columns that constraints read.
    ids : str or None
    """

    features: tuple[str, ...]
    label: str
    groups: tuple[str, ...] = ()
    ids: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in use, each once."""
        own = (self.label,) if self.ids is None else (self.label, self.ids)
        return (*self.features, *own)


class NamedTable:
    """What rows of tables have in common whose columns are given by name (`ratewise.training.session.RowSource`)."""

    layout: Layout
    named, sparse = True, False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.layout.features

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the sensitive columns."""
        return self.layout.groups


def table_kind(table: Any) -> str | None:
    """Return which supported kind of table this is, None for data in memory."""
    kinds = type(table).__mro__
    for kind in kinds:
        package = kind.__module__.partition(".")[0]
        if package in _MODULES and kind.__name__ in ("Dataset", "DataFrame"):
            return _MODULES[package]
    return None


def layout_of(columns: Sequence[Any], y: Any, sensitive: Any, ids: Any, needed: Collection[str] | None) -> Layout:
    """Return the layout of a table; names that are no columns are errors.

    Parameters
    ----------
    columns : sequence of str
        Columns of the table.
    y, sensitive, ids
        As given to `fit`: the names of columns.
    needed : collection of str or None
        Sensitive columns that constraints read; None keeps all.
    """
    names = [name for name in columns if isinstance(name, str)]
    if len(names) < len(columns) or len(set(names)) < len(names):
        raise InvalidType("the columns of X must have distinct names that are text")
    if not isinstance(y, str):
        raise InvalidType(f"y must be the name of a column of X for such a table, got {type(y).__name__}")
    if ids is not None and not isinstance(ids, str):
        raise InvalidType(f"privacy_ids must be the name of a column of X for such a table, got {type(ids).__name__}")
    given = () if sensitive is None else (sensitive,) if isinstance(sensitive, str) else sensitive
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise InvalidType(
            f"sensitive_features must be names of columns of X for such a table, got {type(sensitive).__name__}"
        )
    asked = {"y": (y,), "privacy_ids": () if ids is None else (ids,), "sensitive_features": tuple(given)}
    for what, wanted in asked.items():
        absent = [name for name in wanted if name not in names]
        if absent:
            raise InvalidInput(f"{what} is {absent[0]!r}, which is no column of X")
    missing = sorted(set(needed or ()) - set(given))
    if missing:
        raise InvalidInput(f"constraints read the column {missing[0]!r}; name it in sensitive_features")
    features = tuple(name for name in names if name not in (y, ids))
    if not features:
        raise InvalidInput("0 feature(s) (X has no columns but y) while a minimum of 1 is required.")
    return Layout(features, y, tuple(name for name in given if needed is None or name in needed), ids)


def refuse_other_columns(expected: Collection[str], found: Collection[str], where: str) -> None:
    """Raise if a partition lacks a column. Types may differ: one row can change how its partition is stored."""
    absent = [name for name in expected if name not in found]
    if absent:
        raise InvalidInput(f"{where} lacks the column {absent[0]!r}; all partitions must have the same columns")


def refuse_change(expected: int, found: int, where: str) -> None:
    """Raise if a partition has another number of rows than when it was counted."""
    if found != expected:
        raise InvalidInput(
            f"the table changed while it was read: {where} no longer has the number of rows it was counted with. "
            "Use a table that nobody writes to; releases so far are in the ledger"
        )


class Partitions(Protocol):
    """Objects, one per partition, that workers hold, and functions of them that workers compute.

    Functions are called with the object, the common arguments, and the entry of `each` for the partition.
    """

    @property
    def n_parts(self) -> int:
        """Number of partitions."""
        ...

    def map(self, function: Function, *common: Any, each: Sequence[Any]) -> list[Any]:
        """Return the result of every partition, in order."""
        ...

    def total(self, function: Function, add: Function, *common: Any, each: Sequence[Any]) -> Any:
        """Return the sum of the results of all partitions, added in any order."""
        ...

    def hold(self, function: Function, *common: Any, each: Sequence[Any]) -> Partitions:
        """Return the results as partitions; they stay on the workers, and are computed again if they are lost."""
        ...

    def regroup(self, split: Function, join: Function, *common: Any, each: Sequence[Any]) -> Partitions:
        """Return as many partitions, the i-th joined from the i-th pieces that `split` makes of every partition."""
        ...

    def gather(self, join: Function, *common: Any) -> Partitions:
        """Return fewer partitions, joined from those that a worker holds, in their order."""
        ...


# ------------------------------------------------------------------------------ what workers compute


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Rows of a partition sorted by digest of their id, and by their place in the table."""

    frame: Any
    digests: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Bounds:
    """Which rows the units of a partition contribute, and how rows are coded; public."""

    max_rows: int
    weighting: str
    classes: tuple[Any, ...] | None
    n_units: int
    domain: Domain | None = None
    compiled: CompiledConstraints | None = None


def describe(frame: Any, columns: Sequence[str], number: int, count: int | None = None) -> int:
    """Return the number of rows; a column that is missing, or a number other than `count`, is an error."""
    refuse_other_columns(columns, set(map(str, frame.columns)), f"partition {number + 1}")
    refuse_change(len(frame) if count is None else count, len(frame), f"partition {number + 1}")
    return len(frame)


def split_by_id(
    frame: Any, layout: Layout, n_parts: int, place: tuple[int, int, int]
) -> list[tuple[Any, npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
    """Return pieces of a partition for ranges of digests, with the digests and the places of their rows."""
    number, count, first = place
    describe(frame, layout.columns, number, count)
    digests = digest_ids(frame[layout.ids])
    target = ((digests >> np.uint64(32)) * np.uint64(n_parts)) >> np.uint64(32)
    pieces = []
    for part in range(n_parts):
        rows = np.flatnonzero(target == part)
        pieces.append((frame.iloc[rows], digests[rows], rows + first))
    return pieces


def join_by_id(pieces: list[Any]) -> GroupedRows:
    """Return the rows of all pieces, those of an id side by side in the order of the table."""
    import pandas as pd

    filled = [piece for piece in pieces if len(piece[1])] or pieces[:1]
    digests = np.concatenate([piece[1] for piece in filled])
    order = np.lexsort((np.concatenate([piece[2] for piece in filled]), digests))
    frames = [piece[0] for piece in filled]
    shared = [name for name in frames[0].columns if all(name in frame.columns for frame in frames)]
    columns = {name: joined_cells([frame[name] for frame in frames]) for name in shared}
    frame = pd.DataFrame(columns, copy=False)
    return GroupedRows(frame.iloc[order], digests[order])


def count_ids(part: GroupedRows, _: Any) -> int:
    """Return the number of ids of a partition."""
    return len(np.unique(part.digests))


def read_part(part: Any, layout: Layout, place: tuple[int, int, int]) -> Rows:
    """Return the rows of a partition; its number of rows must be the one it was counted with."""
    number, count, _ = place
    frame = part.frame if isinstance(part, GroupedRows) else part
    if not isinstance(part, GroupedRows):
        describe(frame, layout.columns, number, count)
    columns = tuple(frame[name] for name in layout.features)
    features = FeatureTable(layout.features, True, len(frame), columns)
    rows = Rows(features, frame[layout.label], {name: frame[name] for name in layout.groups})
    if isinstance(part, GroupedRows):
        distinct, codes = np.unique(part.digests, return_inverse=True)
        rows.use_ids(codes.reshape(-1).astype(np.intp), len(distinct))
    return rows


def bounded_part(part: Any, layout: Layout, bounds: Bounds, place: tuple[int, int, int]) -> Rows:
    """Return the rows of a partition with their weights."""
    rows = read_part(part, layout, place)
    units = rows.bound(bounds.max_rows, bounds.weighting, bounds.classes)
    rows.units = replace(units, n_rows=bounds.n_units * bounds.max_rows)
    if bounds.domain is not None:
        rows.use_domain(bounds.domain, bounds.compiled)
    return rows


@np.errstate(all="ignore")
def sizes_of(part: Any, layout: Layout, classes: tuple[Any, ...] | None, place: Any) -> Floats:
    """Return `RowSource.count_sizes` of a partition; **private**."""
    return read_part(part, layout, place).count_sizes(classes)


@np.errstate(all="ignore")
def values_of(part: Any, layout: Layout, bounds: Bounds, names: tuple[str, ...], place: Any) -> dict[str, ValueCounts]:
    """Return `RowSource.count_values` of a partition; **private**."""
    return bounded_part(part, layout, bounds, place).count_values(names)


@np.errstate(all="ignore")
def ranges_of(
    part: Any, layout: Layout, bounds: Bounds, formats: Mapping[str, CellFormat], place: Any
) -> dict[str, RangeCounts]:
    """Return `RowSource.count_ranges` of a partition; **private**."""
    return bounded_part(part, layout, bounds, place).count_ranges(formats)


@dataclass(frozen=True, eq=False)
class CodedPart:
    """A partition after coding: bins, labels, cells and units of its rows."""

    codes: RowCodes
    problem: Problem
    units: Units
    first: int
    bin_weights: Floats


@np.errstate(all="ignore")
def code_part(part: Any, layout: Layout, bounds: Bounds, grids: tuple[Grid, ...], place: Any) -> CodedPart:
    """Return the codes of a partition; the last entry of `place` is its first unit; **private**."""
    rows = bounded_part(part, layout, bounds, place)
    codes, totals = code_rows(rows.features, grids, rows.units.table_weights(rows.problem.labels >= 0))
    return CodedPart(RowCodes(codes), rows.problem, rows.units, place[2], np.concatenate(totals))


def bins_of(part: CodedPart, _: Any) -> Floats:
    """Return the weight of the rows of each bin of all columns; **private**."""
    return part.bin_weights


@dataclass(frozen=True, eq=False)
class PartEngine:
    """The engine of some partitions: the first unit of each, ascending, and where its units begin in `engine`."""

    engine: AdditiveEngine
    firsts: npt.NDArray[np.intp]
    edges: npt.NDArray[np.intp]

    def select(self, sample: KeyedSample) -> npt.NDArray[np.intp]:
        """Return the units of a sample that these partitions have, as `engine` numbers them; **private**."""
        lengths = np.diff(self.edges)
        units = sample.units(int(self.firsts[0]), int(self.firsts[-1] + lengths[-1]))
        starts, stops = np.searchsorted(units, (self.firsts, self.firsts + lengths))
        own = np.concatenate([units[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
        own -= np.repeat(self.firsts - self.edges[:-1], stops - starts)
        return own


def bind_parts(parts: list[CodedPart], basis: Basis, temperature: float, hard: bool) -> PartEngine:
    """Return the engine of partitions in rising order; their codes are not copied."""
    rows = np.cumsum([0, *(len(part.problem.labels) for part in parts)])
    units = join_units([part.units for part in parts], rows)
    problems = [part.problem for part in parts]
    cells = None if problems[0].cells is None else np.concatenate([one.cells for one in problems])
    problem = replace(problems[0], labels=np.concatenate([one.labels for one in problems]), cells=cells)
    codes = JoinedCodes([part.codes for part in parts], rows)
    engine = AdditiveEngine(codes, basis, problem, units, temperature, hard)
    edges = np.cumsum([0, *(part.units.n_units for part in parts)])
    return PartEngine(engine, np.array([part.first for part in parts]), edges)


def sums_of(
    part: PartEngine, sample: KeyedSample, scorer: Scorer, weights: Floats | None, clip: float, _: Any
) -> BinSums:
    """Return what partitions add to a step; **private**."""
    return part.engine.bin_sums(part.select(sample), scorer, weights, clip)


def predictions_of(part: PartEngine, scorer: Scorer, towards: int | None, _: Any) -> tuple[Floats, Floats]:
    """Return what partitions add to the counts of the certificate or of margins; **private**."""
    return part.engine.prediction_counts(scorer, towards)


def add(one: Any, other: Any) -> Any:
    """Return the sum of two results of partitions: arrays, sums of steps, tuples and dicts of them."""
    if isinstance(one, dict) and not isinstance(one, ValueCounts):
        return {name: add(one[name], other[name]) for name in one}
    if isinstance(one, tuple):
        return tuple(add(first, second) for first, second in zip(one, other, strict=True))
    return one + other


# ------------------------------------------------------------------------------------- the coordinator


@dataclass(eq=False)
class PartitionEngine(AdditiveEngine):
    """An engine that adds the sums of partitions; it holds no rows."""

    parts: Partitions | None = None

    def bin_sums(self, sample: KeyedSample, scorer: Scorer, weights: Floats | None, clip: float) -> BinSums:
        """Return the sums of all partitions over their parts of a sample; **private**."""
        assert self.parts is not None  # noqa: S101 - given by PartitionedRows
        each = range(self.parts.n_parts)
        found: BinSums = self.parts.total(sums_of, add, sample, scorer, weights, clip, each=each)
        return found

    def prediction_counts(self, scorer: Scorer, towards: int | None = None) -> tuple[Floats, Floats]:
        """Return the counts of the certificate or of margins over all partitions; **private**."""
        assert self.parts is not None  # noqa: S101 - given by PartitionedRows
        found: tuple[Floats, Floats] = self.parts.total(
            predictions_of, add, scorer, towards, each=range(self.parts.n_parts)
        )
        return found


@dataclass(eq=False)
class PartitionedRows(NamedTable):
    """Rows in partitions, for a session; see `ratewise.training.session.RowSource`.

    Parameters
    ----------
    parts : Partitions
        Of pandas data frames.
    layout : Layout
    counted : Partitions, optional
        The same with the label only, if columns can be read by themselves.
    """

    parts: Partitions
    layout: Layout
    counted: Partitions | None = None
    units: Units = field(init=False)
    _places: list[tuple[int, int, int]] = field(init=False, default_factory=list)
    _n_units: int = field(init=False, default=0)
    _bounds: Bounds = field(init=False)
    _coded: Partitions | None = field(init=False, default=None)

    def count_units(self) -> int:
        """Return the number of units; with ids, rows are regrouped so that a partition holds whole persons."""
        if not self._n_units:
            columns = self.layout.columns if self.counted is None else (self.layout.label,)
            counts = (self.counted or self.parts).map(describe, columns, each=range(self.parts.n_parts))
            if not sum(counts):
                raise InvalidInput("Found array with 0 sample(s) (X has no rows) while a minimum of 1 is required.")
            self._places = _places(counts, counts)
            if self.layout.ids is not None:
                self.parts = self.parts.regroup(
                    split_by_id, join_by_id, self.layout, self.parts.n_parts, each=self._places
                )
                ids = self.parts.map(count_ids, each=range(self.parts.n_parts))
                self._places = _places(counts, ids)
                counts = ids
            self._n_units = sum(counts)
        return self._n_units

    def count_sizes(self, classes: tuple[Any, ...] | None) -> Floats:
        """Return the number of ids by the logarithm of their number of usable rows; **private**."""
        found: Floats = self.parts.total(sizes_of, add, self.layout, classes, each=self._places)
        return found

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:
        """Fix which usable rows each unit contributes."""
        self._bounds = Bounds(max_rows, weighting, classes, self._n_units)
        self.units = Units(self._n_units, self._n_units * max_rows, step=weight_step(max_rows))
        return self.units

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Give rows whose label is no class no weight in all later sums."""
        self._bounds = replace(self._bounds, domain=domain, compiled=compiled)

    def count_values(self, names: tuple[str, ...]) -> dict[str, ValueCounts]:
        """Return the distinct values of columns with their weights; **private**."""
        found: dict[str, ValueCounts] = self.parts.total(
            values_of, add, self.layout, self._bounds, names, each=self._places
        )
        return found

    def count_ranges(self, formats: Mapping[str, CellFormat]) -> dict[str, RangeCounts]:
        """Return the range cells and text values of features; **private**."""
        found: dict[str, RangeCounts] = self.parts.total(
            ranges_of, add, self.layout, self._bounds, dict(formats), each=self._places
        )
        return found

    def bin_weights(self, grids: tuple[Grid, ...]) -> list[Floats]:
        """Code the features and return the weight of the rows of each bin, by column; **private**."""
        self._coded = self.parts.hold(code_part, self.layout, self._bounds, grids, each=self._places)
        totals: Floats = self._coded.total(bins_of, add, each=range(self.parts.n_parts))
        return np.split(totals, bin_offsets(grids)[1:-1])

    def engine(
        self,
        basis: Basis | None,
        columns: Mapping[str, ColumnDeclaration],  # noqa: ARG002 - one signature
        config: TrainingConfig,
    ) -> PartitionEngine:
        """Return the engine of the training steps."""
        assert basis is not None  # noqa: S101 - tables are dense
        coded = self._coded
        if coded is None:
            coded = self.parts.hold(code_part, self.layout, self._bounds, basis.grids, each=self._places)
        hard = config.rates == "hard"
        engines = coded.gather(bind_parts, basis, config.temperature, hard)
        self._coded = None
        domain, compiled = self._bounds.domain, self._bounds.compiled
        assert domain is not None  # noqa: S101 - known before the basis
        nobody = np.zeros(0, dtype=np.intp)
        problem = Problem(
            nobody,
            None if compiled is None else nobody,
            len(domain.classes),
            0 if compiled is None else compiled.n_cells,
        )
        codes = RowCodes(np.zeros((0, len(basis.grids)), dtype=np.uint16))
        return PartitionEngine(codes, basis, problem, self.units, config.temperature, hard, parts=engines)

    def select(self, sample: KeyedSample) -> KeyedSample:
        """Return the sample itself: partitions compute their parts of it."""
        return sample


def _places(counts: Sequence[int], units: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return number, rows and first unit of each partition."""
    firsts = np.concatenate([[0], np.cumsum(units)[:-1]]).astype(int).tolist()
    return list(zip(range(len(counts)), counts, firsts, strict=True))
