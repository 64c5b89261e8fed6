"""Rows of a `pyarrow.dataset.Dataset`, such as a folder of Parquet files, read by row groups.

Each pass reads the columns it needs, batch by batch. Features are coded once; codes of two bytes per cell are kept
in memory if they are few, and otherwise in an unnamed temporary file. What else is kept is a few bytes per row:
label, cell, and with ids the order of rows. So memory is bounded by row groups, not by the features.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat
from ratewise.data.table import FeatureTable, Units, digest_ids, id_units, row_units
from ratewise.distributed.partitions import Layout, NamedTable, refuse_change, refuse_other_columns
from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.models.additive import AdditiveEngine, Problem, available_threads
from ratewise.models.rows import code_problem, usable_rows
from ratewise.preprocessing.basis import Basis, RowCodes, code_rows, new_codes
from ratewise.preprocessing.discovery import (
    ColumnDeclaration,
    RangeCounts,
    ValueCounts,
    count_ranges,
    count_values,
    size_histogram,
)
from ratewise.preprocessing.grids import Grid
from ratewise.training.config import TrainingConfig
from ratewise.training.session import LABEL

Floats = npt.NDArray[np.float64]

_BATCH_ROWS = 1 << 16
_BLOCK_BYTES = (1 << 20, 1 << 25, (1 << 31) - 1)  # of CSV files, tried one after the other
_IN_MEMORY = 1 << 28  # bytes of codes up to which they are kept in memory


def open_parquet(path: str) -> Any:
    """Return the `pyarrow.dataset.Dataset` of a Parquet file or a folder of them, for tables larger than memory.

    Columns that folder names give ("year=2024") are columns of the table.
    """
    from pyarrow import ArrowInvalid, dataset

    try:
        found = dataset.dataset(path, format="parquet", partitioning="hive")
        if not found.files:
            raise InvalidInput(f"{path!r} holds no Parquet files")
    except (ArrowInvalid, OSError) as problem:
        raise InvalidInput(f"cannot read {path!r} as Parquet: {type(problem).__name__}") from None
    return found


@dataclass(eq=False)
class ArrowRows(NamedTable):
    """Rows of a data set, for a session; see `ratewise.training.session.RowSource`.

    Parameters
    ----------
    dataset : pyarrow.dataset.Dataset
    layout : Layout
    """

    dataset: Any
    layout: Layout
    units: Units = field(init=False)
    _pieces: list[tuple[Any, int]] | None = field(init=False, default=None)
    _ids: tuple[npt.NDArray[np.intp], int] | None = field(init=False, default=None)
    _usable: npt.NDArray[np.bool_] = field(init=False)
    _domain: tuple[Domain, CompiledConstraints | None] | None = field(init=False, default=None)
    _codes: RowCodes | None = field(init=False, default=None)
    _problem: Problem = field(init=False)

    # --------------------------------------------------------------------------------------- reading

    def _row_groups(self) -> list[tuple[Any, int]]:
        """Return the pieces of the table with their numbers of rows, from the files' metadata."""
        if self._pieces is None:
            pieces: list[tuple[Any, int]] = []
            for number, fragment in enumerate(self.dataset.get_fragments()):
                where = f"file {number + 1} of the data set"
                with _reading(where):
                    whole = _readable(fragment)
                    _types(whole, self.dataset.schema, self.layout.columns, where)
                    if not hasattr(fragment, "split_by_row_group"):
                        pieces.append((whole, int(whole.count_rows())))
                        continue
                    pieces += [
                        (piece, sum(group.num_rows for group in piece.row_groups))
                        for piece in fragment.split_by_row_group()
                    ]
            if not sum(count for _, count in pieces):
                raise InvalidInput(
                    "Found array with 0 sample(s) (the data set is empty) while a minimum of 1 is required."
                )
            self._pieces = pieces
        return self._pieces

    @property
    def n_rows(self) -> int:
        """Number of rows of the table."""
        return sum(count for _, count in self._row_groups())

    def _batches(self, columns: tuple[str, ...]) -> Iterator[tuple[slice, dict[str, Any]]]:
        """Yield parts of columns with their places in the table; a table that has changed is an error."""
        wanted = list(dict.fromkeys(columns))
        place = 0
        for number, (piece, count) in enumerate(self._row_groups()):
            end = place + count
            where = f"row group {number + 1} of the data set"
            for batch in self._scan(piece, wanted, where):
                stop = place + batch.num_rows
                refuse_change(count, count if stop <= end else -1, where)
                yield slice(place, stop), dict(zip(wanted, batch.columns, strict=True))
                place = stop
            refuse_change(end, place, where)

    def _scan(self, piece: Any, columns: list[str], where: str) -> Iterator[Any]:
        with _reading(where):
            yield from piece.to_batches(
                schema=_types(piece, self.dataset.schema, columns, where),
                columns=columns,
                batch_size=_BATCH_ROWS,
                batch_readahead=2,
                fragment_readahead=1,
            )

    # ------------------------------------------------------------------------------- sums over units

    def count_units(self) -> int:
        """Return the number of units: rows, or distinct ids."""
        if self.layout.ids is None:
            return self.n_rows
        if self._ids is None:
            digests = np.empty(self.n_rows, dtype=np.uint64)
            for place, columns in self._batches((self.layout.ids,)):
                digests[place] = digest_ids(columns[self.layout.ids])
            distinct, codes = np.unique(digests, return_inverse=True)
            self._ids = codes.reshape(-1).astype(np.intp), len(distinct)
        return self._ids[1]

    def _find_usable(self, classes: tuple[Any, ...] | None) -> npt.NDArray[np.bool_]:
        usable = np.empty(self.n_rows, dtype=np.bool_)
        for place, columns in self._batches((self.layout.label,)):
            usable[place] = usable_rows(columns[self.layout.label], classes)
        return usable

    def count_sizes(self, classes: tuple[Any, ...] | None) -> Floats:
        """Return the number of ids by the logarithm of their number of usable rows; **private**."""
        assert self._ids is not None  # noqa: S101 - counted before
        codes, n_units = self._ids
        return size_histogram(np.bincount(codes[self._find_usable(classes)], minlength=n_units))

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:
        """Fix which usable rows each unit contributes."""
        self._usable = self._find_usable(classes)
        if self._ids is None:
            self.units = row_units(self.n_rows)
        else:
            self.units = id_units(*self._ids, max_rows, weighting, self._usable)
            used = np.zeros(self.n_rows, dtype=np.bool_)
            used[self.units.order] = True
            self._usable &= used
        return self.units

    def _weights(self, place: slice) -> Floats:
        usable = self._usable[place]
        if self.units.row_weights is None:
            return usable.astype(np.float64)
        return self.units.row_weights[place] * usable

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Code labels and groups; rows whose label is no class have no weight in all later sums."""
        label, groups = self.layout.label, self.layout.groups
        parts = []
        for _, columns in self._batches((label, *groups)):
            found = {name: columns[name] for name in groups}
            parts.append(code_problem(columns[label], found, domain, compiled))
        cells = None if compiled is None else np.concatenate([part.cells for part in parts])
        first = parts[0]
        self._problem = Problem(np.concatenate([part.labels for part in parts]), cells, first.n_classes, first.n_cells)
        self._usable &= self._problem.labels >= 0

    def count_values(self, names: tuple[str, ...]) -> dict[str, ValueCounts]:
        """Return the distinct values of columns with their weights; **private**."""
        source = {name: self.layout.label if name == LABEL else name for name in names}
        total = {name: ValueCounts() for name in names}
        for place, columns in self._batches(tuple(source.values())):
            found = count_values({name: columns[source[name]] for name in names}, self._weights(place))
            total = {name: total[name] + found[name] for name in names}
        return total

    def count_ranges(self, formats: Mapping[str, CellFormat]) -> dict[str, RangeCounts]:
        """Return the range cells and text values of features; **private**."""
        total: dict[str, RangeCounts] = {}
        for place, columns in self._batches(tuple(formats)):
            found = count_ranges(columns, formats, self._weights(place))
            total = {name: total[name] + found[name] if total else found[name] for name in formats}
        return total

    def bin_weights(self, grids: tuple[Grid, ...]) -> list[Floats]:
        """Code the features and return the weight of the rows of each bin, by column; **private**."""
        codes = self._new_codes(grids)
        totals = [np.zeros(grid.n_bins) for grid in grids]
        for place, columns in self._batches(self.names):
            features = FeatureTable(self.names, True, place.stop - place.start, tuple(columns.values()))
            codes[place], found = code_rows(features, grids, self._weights(place))
            totals = list(map(np.add, totals, found))
        self._codes = RowCodes(codes)
        return totals

    def _new_codes(self, grids: tuple[Grid, ...]) -> npt.NDArray[Any]:
        dtype = new_codes(0, grids).dtype
        shape = (self.n_rows, len(grids))
        if shape[0] * shape[1] * dtype.itemsize <= _IN_MEMORY:
            return np.empty(shape, dtype=dtype)
        with tempfile.TemporaryFile() as file:  # it has no name, and is gone with the last reference
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)

    def engine(
        self,
        basis: Basis | None,
        columns: Mapping[str, ColumnDeclaration],  # noqa: ARG002 - one signature
        config: TrainingConfig,
    ) -> AdditiveEngine:
        """Return the engine of the training steps."""
        assert basis is not None  # noqa: S101 - tables are dense
        if self._codes is None:
            self.bin_weights(basis.grids)
        assert self._codes is not None  # noqa: S101 - coded now
        hard, threads = config.rates == "hard", available_threads()
        return AdditiveEngine(self._codes, basis, self._problem, self.units, config.temperature, hard, threads)

    def select(self, sample: KeyedSample) -> npt.NDArray[np.intp]:
        """Return the numbers of the sampled units; **private**."""
        return sample.units(0, sample.n_units)


def _readable(fragment: Any) -> Any:
    """Return a file of a data set; a CSV file so that no content of a row is an error.

    Arrow reads CSV files in blocks, and by default fails for a row that is longer than a block, or whose text has a
    line break where a block ends. Such a file is read in larger blocks.
    """
    if _kind(fragment) != "csv":
        return fragment
    from pyarrow import ArrowInvalid

    for size in _BLOCK_BYTES[:-1]:
        found = _in_blocks(fragment, size)
        try:
            found.count_rows()
        except ArrowInvalid:  # a larger block may hold the row
            continue
        return found
    return _in_blocks(fragment, _BLOCK_BYTES[-1])


def _in_blocks(fragment: Any, size: int) -> Any:
    """Return a CSV file as a fragment that is read in blocks of so many bytes, with line breaks in its texts."""
    from pyarrow import dataset

    own = fragment.format
    parse, scan = own.parse_options, own.default_fragment_scan_options
    read = scan.read_options
    parse.newlines_in_values, read.block_size = True, size
    scan.read_options = read
    made = dataset.CsvFileFormat(parse_options=parse, default_fragment_scan_options=scan)
    return made.make_fragment(
        fragment.path, filesystem=fragment.filesystem, partition_expression=fragment.partition_expression
    )


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn errors of Arrow, which quote rows, into errors that do not."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as problem:
        raise InvalidInput(
            f"cannot read {where} ({type(problem).__name__}): the files were changed or removed while they "
            "were read, or are damaged; releases so far are in the ledger"
        ) from None


def _kind(fragment: Any) -> str:
    return str(getattr(getattr(fragment, "format", None), "default_extname", ""))


def _types(fragment: Any, schema: Any, columns: Sequence[str], where: str) -> Any:
    """Return the schema to read a file with: its own types, or bytes where a file has none.

    A type that rows of other files or an earlier part of a file suggest could fail to hold a cell. A file that lacks
    a column is an error.
    """
    import pyarrow as pa
    from pyarrow import dataset

    kind = _kind(fragment)
    if kind == "json":
        raise InvalidInput("X holds JSON files, whose types depend on rows; convert them to Parquet")
    own = fragment.physical_schema
    given = dataset.get_partition_keys(fragment.partition_expression)
    refuse_other_columns(columns, {*own.names, *given}, where)
    return pa.schema(
        schema.field(name) if name in given else pa.field(name, pa.binary()) if kind == "csv" else own.field(name)
        for name in columns
    )
