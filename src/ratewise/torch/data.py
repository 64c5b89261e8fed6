"""Rows for a network: where they come from, and how they become tensors.

A source knows how many rows there are (public) and returns the rows of a batch by number. Labels and group
values are coded with the declared or privately found classes and values. A label that is no class has the code
-1, as has the cell of a row in no cell. No content of a row raises an error: such rows, and items of a Dataset
that fail or have another shape, add nothing (`ratewise.torch.engine`).

Data larger than memory are shards: folders with ``x.npy``, ``y.npy`` and a ``<column>.npy`` per group column, mapped and never
loaded as a whole (`ShardedRows`). Parquet files are turned into shards once (`shards_from_parquet`). Every process opens the
same shards and reads its own share of the rows; or has only its own files, and says so with `first` and `n_rows`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratewise import _validate
from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.compiler import compile_constraints
from ratewise.constraints.domain import Domain, in_order, scalar
from ratewise.data.table import needed_columns
from ratewise.data.units import Units, id_units, row_units
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError
from ratewise.models.rows import Rows
from ratewise.preprocessing.discovery import size_histogram

Numbers = npt.NDArray[np.intp]

_CHUNK = 1 << 12


class RowCodes(Protocol):
    """A small whole number for each row, such as an array."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def take(self, rows: Numbers, /) -> npt.NDArray[Any]:
        """Return the numbers of the given rows; **private**."""
        ...


class Batch(NamedTuple):
    """Some rows as tensors, **private**."""

    x: Tensor
    labels: Tensor
    cells: Tensor | None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        cells = None if self.cells is None else self.cells.to(device)
        return Batch(self.x.to(device), self.labels.to(device), cells)


class RowSource(Protocol):
    """Rows by number."""

    @property
    def n_rows(self) -> int:
        """Number of rows, of all processes together; public."""
        ...

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers, **private**."""
        ...

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row: to try a module out without reading rows."""
        ...


class TensorRows:
    """Rows in memory, or mapped into it.

    Parameters
    ----------
    x : tensor or array of shape (n, ...)
        Numbers of 64 bits are handed out with 32, unless the tensor itself has 64.
    labels, cells : RowCodes
        The class of each row and, if something is counted, its cell, as whole numbers from 0: arrays,
        tensors, or what translates on demand. A row whose label is no class adds nothing to any sum.
    """

    def __init__(self, x: Any, labels: RowCodes | Tensor, cells: RowCodes | Tensor | None = None) -> None:
        for name, values in (("x", x), ("labels", labels), ("cells", cells)):
            absent = values is None and name == "cells"
            if not absent and (not hasattr(values, "__len__") or getattr(values, "shape", None) == ()):
                raise InvalidType(f"{name} must hold one entry per row, got {type(values).__name__}")
        self._x = x
        self._labels: RowCodes = _with_take(labels)
        self._cells: RowCodes | None = None if cells is None else _with_take(cells)
        for name, values in (("labels", labels), ("cells", cells)):
            if values is not None and len(values) != len(x):
                raise InvalidInput(f"{name} must be one number per row: {len(values)} for {len(x)} rows")

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self._labels)

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers."""
        x = self._x[torch.from_numpy(rows)] if isinstance(self._x, Tensor) else _tensor(self._x[rows])
        cells = None if self._cells is None else _codes(self._cells.take(rows))
        return Batch(x, _codes(self._labels.take(rows)), cells)

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        x = (
            self._x
            if isinstance(self._x, Tensor)
            else _tensor(np.zeros((0, *self._x.shape[1:]), self._x.dtype))
        )
        return made_up((count, *x.shape[1:]), x.dtype)

    def check_types(self) -> None:
        """Refuse arrays of labels or cells that do not hold whole numbers; their content is not read."""
        for name, codes in (("labels", self._labels), ("cells", self._cells)):
            if isinstance(codes, np.ndarray) and codes.dtype.kind not in "biu":
                raise InvalidType(
                    f"{name} must be whole numbers from 0, got {codes.dtype}; translate them, with "
                    "Domain.code_labels for labels and CompiledConstraints.code_cells for cells"
                )


class DatasetRows:
    """Rows of a map-style ``torch.utils.data.Dataset`` whose items are ``(x, label, groups)``.

    Parameters
    ----------
    dataset : Dataset
        `groups` is a mapping of column to value, or a bare value if there is one column; items may be
        ``(x, label)`` if no constraint reads a column.
    domain : Domain
        The declared classes and group values.
    constraints : CompiledConstraints, optional
    """

    def __init__(self, dataset: Any, domain: Domain, constraints: CompiledConstraints | None = None) -> None:
        refuse_loader(dataset)
        if not _by_number(dataset):
            raise InvalidType(
                f"data must be a Dataset with a length and items by number, got {type(dataset).__name__}; "
                "an iterable one cannot be sampled: each row must be drawn independently"
            )
        if not isinstance(domain, Domain):
            raise InvalidType(f"domain must be a Domain, got {type(domain).__name__}")
        self._dataset: Any = dataset
        self._domain = domain
        self._constraints = constraints
        self._columns = tuple(domain.columns)
        if len(dataset) == 0:
            raise InvalidInput("data holds no rows")
        x, _, _ = self._parts(self._dataset[0])
        first = _narrow(torch.as_tensor(x))
        self._shape, self._dtype = tuple(first.shape), first.dtype

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self._dataset)

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers."""
        if len(rows) == 0:
            cells = None if self._constraints is None else torch.zeros(0, dtype=torch.int64)
            return Batch(self.blank(0), torch.zeros(0, dtype=torch.int64), cells)
        items = [self._item(int(row)) for row in rows]
        labels = self._domain.code_labels([item[1] for item in items])
        return Batch(
            torch.stack([item[0] for item in items]),
            _codes(labels),
            self._cells(labels, [item[2] for item in items]),
        )

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        return made_up((count, *self._shape), self._dtype)

    def _cells(self, labels: Any, groups: Sequence[Mapping[str, Any]]) -> Tensor | None:
        if self._constraints is None:
            return None
        columns = {name: [group[name] for group in groups] for name in self._columns}
        return _codes(self._constraints.code_cells(labels, columns))

    def _item(self, row: int) -> tuple[Tensor, Any, Mapping[str, Any]]:
        """Return one row; an item that fails, or that has another shape, is a row whose label is no class."""
        try:
            x, label, groups = self._parts(self._dataset[row])
            inputs = _narrow(torch.as_tensor(x)).to(self._dtype)
            if tuple(inputs.shape) == self._shape:
                return inputs, _plain(label), {name: _plain(groups[name]) for name in self._columns}
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: S110 - whatever a data set does with a row must not be visible
            pass
        return self.blank(1)[0], None, dict.fromkeys(self._columns)

    def _parts(self, item: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise InvalidType(
                f"items of data must be (x, label, groups), got {type(item).__name__}"
                + (f" of {len(item)}" if isinstance(item, tuple | list) else "")
            )
        if not self._columns:
            return item[0], item[1], {}
        if len(item) == 2:
            raise InvalidInput(
                "data has no groups: its items are (x, label), but the constraints read "
                f"{', '.join(map(repr, self._columns))}; let items be (x, label, {{column: value}})"
            )
        return item[0], item[1], self._named(item[2])

    def _named(self, groups: Any) -> Mapping[str, Any]:
        if not isinstance(groups, Mapping):
            if len(self._columns) > 1:
                raise InvalidType(
                    "the groups of an item must map columns to values, for there are several columns, got "
                    f"{type(groups).__name__}"
                )
            return {self._columns[0]: groups}
        absent = [name for name in self._columns if name not in groups]
        if absent:
            raise InvalidInput(f"data has no group column {absent[0]!r}, which the constraints read")
        return groups


def check_rows(rows: RowSource, n_cells: int | None) -> None:
    """Refuse rows without cells where cells are counted, or with labels or cells of another type."""
    if n_cells is not None and rows.take(np.zeros(0, dtype=np.intp)).cells is None:
        raise InvalidInput(
            "rows have no groups: the constraints count predictions by cell, and the rows come without "
            "cells; give them, such as TensorRows(x, labels, constraints.code_cells(labels, columns))"
        )
    if isinstance(rows, TensorRows):
        rows.check_types()


def refuse_loader(data: Any) -> None:
    """Refuse a loader where rows are wanted: its batches are no Poisson sample."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise InvalidType(
            "data is a DataLoader, which is batched already; privacy rests on each row being drawn "
            "independently: pass its dataset (loader.dataset) instead"
        )


def declared(
    constraints: Any, classes: Any, group_values: Mapping[str, Any] | None
) -> tuple[Domain, CompiledConstraints | None]:
    """Compile constraints for declared classes and group values."""
    if classes is None:
        raise InvalidInput("classes must be declared for a Dataset, got None; for example classes=(0, 1)")
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise InvalidType(f"classes must be a collection of values, got {type(classes).__name__}")
    if group_values is not None and not isinstance(group_values, Mapping):
        raise InvalidType(f"group_values must map columns to values, got {type(group_values).__name__}")
    needed, values = needed_columns(constraints), dict(group_values or {})
    absent = sorted((needed or set()) - set(values))
    if absent or (needed is None and not values):
        shown = repr(absent[0]) if absent else "every column that is a group"
        raise InvalidInput(
            f"group_values must be declared for a Dataset: the values of {shown} are missing; "
            "for example group_values={'sex': ('Female', 'Male')}"
        )
    kept = values if needed is None else {name: values[name] for name in values if name in needed}
    domain = Domain(in_order(scalar(classes=value) for value in classes), kept, other=True)
    compiled = compile_constraints(constraints, domain)
    return domain, compiled if len(compiled) else None


def read_inputs(X: Any) -> Any:
    """Return inputs as a tensor or an array of numbers, rows first; the numbers are not looked at.

    Parameters
    ----------
    X : tensor, array, memory map or data frame
    """
    refuse_loader(X)
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    if hasattr(X, "tocsr"):
        raise InvalidType("X is a sparse matrix, which networks do not read; pass X.toarray()")
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidType("X is a masked array; fill in masked entries first, for example with X.filled(0)")
    x = X if isinstance(X, Tensor) else np.asanyarray(X)
    if x.ndim < 2 or len(x) == 0:
        raise InvalidInput(f"X must have rows first and at least one of them, got shape {tuple(x.shape)}")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biuf":
        raise InvalidType(f"X must hold numbers, got {x.dtype}; encode other columns as numbers first")
    return x


def read_for_prediction(X: Any, shape: tuple[int, ...]) -> Any:
    """Return inputs of the fitted shape, finite throughout."""
    x = read_inputs(X)
    if tuple(x.shape[1:]) != shape:
        raise InvalidInput(f"X has rows of shape {tuple(x.shape[1:])}, the module was fitted on {shape}")
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK]
        fine = torch.isfinite(part).all() if isinstance(part, Tensor) else np.isfinite(part).all()
        if not bool(fine):
            raise InvalidInput("X contains NaN or infinity; impute, clip or drop such rows")
    return x


def made_up(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """Return numbers of no meaning: spread over [0, 1) for floats, zeros for whole numbers."""
    shape = tuple(shape)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator, dtype=torch.float32).to(dtype)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise InvalidType(f"X must hold numbers, got {array.dtype}")
    with np.errstate(all="ignore"):  # numbers beyond the range become infinite without a warning
        array = np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else None)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float64, torch.float16) else x


def _codes(codes: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


def _by_number(data: Any) -> bool:
    return isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, Mapping)


def _with_take(codes: Any) -> Any:
    """Return codes that can be taken by number: tensors and lists become arrays."""
    if isinstance(codes, Tensor):
        return codes.detach().cpu().numpy()
    return codes if hasattr(codes, "take") else np.asarray(codes)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


Array = npt.NDArray[Any]


class ShardedRows:
    """Rows of mapped shards, a source for `ratewise.torch.Trainer`.

    Parameters
    ----------
    folders : sequence of paths
        The shards, in order.
    domain : Domain
        The declared classes and group values.
    constraints : CompiledConstraints, optional
    first, n_rows : int, optional
        For a process that has some of the rows only: the number of its first row, and how many rows all
        processes have together. Unless told the shards hold all rows.
    """

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        domain: Domain,
        constraints: CompiledConstraints | None = None,
        *,
        first: int = 0,
        n_rows: int | None = None,
    ) -> None:
        if not folders:
            raise InvalidInput("folders is empty; give at least one shard")
        columns = ("x", "y", *(domain.columns if constraints is not None else ()))
        shards = [_open(Path(folder), columns) for folder in folders]
        shapes = {shard["x"].shape[1:] for shard in shards}
        if len(shapes) > 1:
            raise InvalidInput(f"shards hold rows of different shapes: {sorted(shapes)}")
        self._shards = shards
        self._domain, self._constraints = domain, constraints
        self._edges = np.cumsum([0, *(len(shard["y"]) for shard in shards)])
        self._first = _validate.count(at_least=0, first=first)
        held = int(self._edges[-1])
        self._n_rows = held if n_rows is None else _validate.count(n_rows=n_rows)
        if self._first + held > self._n_rows:
            raise InvalidInput(
                f"the shards hold {held} rows from row {first} on, more than n_rows={self._n_rows}"
            )

    @property
    def n_rows(self) -> int:
        """Number of rows of all processes together."""
        return self._n_rows

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers, which must be rising."""
        local = rows - self._first
        if len(local) and not (local[0] >= 0 and local[-1] < self._edges[-1]):
            raise InvalidInput(
                f"this process holds rows {self._first} to {self._first + int(self._edges[-1]) - 1}, and was "
                "asked for others; give each process the shards of its share (ratewise.torch.share_of)"
            )
        places = np.searchsorted(local, self._edges)
        pieces = [
            self._piece(shard, local[places[i] : places[i + 1]] - self._edges[i])
            for i, shard in enumerate(self._shards)
            if places[i] < places[i + 1]
        ]
        return _joined(pieces) if pieces else self._piece(self._shards[0], local[:0])

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        x = self._shards[0]["x"]
        return TensorRows(x[:0], np.zeros(0, dtype=np.int8)).blank(count)

    def _piece(self, shard: dict[str, Array], rows: Numbers) -> Batch:
        labels = self._domain.code_labels(np.asarray(shard["y"][rows]))
        cells = None
        if self._constraints is not None:
            columns = {name: np.asarray(shard[name][rows]) for name in self._domain.columns}
            cells = self._constraints.code_cells(labels, columns)
        everything = np.arange(len(rows))
        return TensorRows(np.asarray(shard["x"][rows]), labels, cells).take(everything)


def shards_from_parquet(
    files: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    features: Sequence[str],
    label: str,
    groups: Sequence[str] = (),
    batch_rows: int = 65_536,
) -> list[Path]:
    """Turn Parquet files into shards, one each, holding `batch_rows` rows in memory at a time.

    Text columns must be dictionaries or short: they are stored with a fixed width, found in a first pass.

    Parameters
    ----------
    files : Parquet files
    folder : path
        Where the shards go, as ``shard-00000`` and so on.
    features, label, groups
        Names of columns; features become 32-bit numbers.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install pyarrow") from None
    inputs, others, size = (
        _validate.texts(features=features),
        _validate.texts(groups=groups),
        _validate.count(batch_rows=batch_rows),
    )
    _check_names(inputs, others)
    made = []
    for number, name in enumerate(files):
        target = Path(folder) / f"shard-{number:05d}"
        target.mkdir(parents=True, exist_ok=True)
        try:
            with parquet.ParquetFile(os.fspath(name)) as source:
                _check_columns(source, (*inputs, label, *others), name)
                rows = source.metadata.num_rows
                _write(target / "x.npy", source, list(inputs), rows, size, np.dtype(np.float32))
                for column, file in ((label, "y"), *((name, name) for name in others)):
                    _write(target / f"{file}.npy", source, [column], rows, size, None)
        except (ValueError, TypeError, OSError) as problem:
            if isinstance(problem, RatewiseError | FileNotFoundError):
                raise
            raise InvalidInput(
                f"{os.fspath(name)!r} cannot be turned into a shard ({type(problem).__name__}): it must be a "
                "Parquet file whose features are numbers"
            ) from None
        made.append(target)
    return made


def _check_names(features: tuple[str, ...], groups: tuple[str, ...]) -> None:
    """Refuse columns that are none, and groups whose files would be others' or lie elsewhere."""
    if not features:
        raise InvalidInput("features must name at least one column, got none")
    for name in groups:
        if name in ("x", "y") or Path(name).name != name:
            raise InvalidInput(f"groups must be names that can be file names beside x and y, got {name!r}")


def _check_columns(source: Any, columns: tuple[Any, ...], file: Any) -> None:
    known = source.schema_arrow.names
    absent = [column for column in columns if column not in known]
    if absent:
        raise InvalidInput(f"{os.fspath(file)!r} has no column {absent[0]!r}; its columns are {known}")


def _write(
    path: Path, source: Any, columns: list[str], rows: int, batch_rows: int, dtype: np.dtype[Any] | None
) -> None:
    kind = _common_type(source, columns, batch_rows) if dtype is None else dtype
    shape = (rows,) if dtype is None else (rows, len(columns))
    out = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
    start = 0
    for batch in source.iter_batches(batch_rows, columns=columns):
        found = [batch.column(column).to_numpy(zero_copy_only=False) for column in columns]
        out[start : start + len(batch)] = found[0] if dtype is None else np.stack(found, axis=1)
        start += len(batch)
    out.flush()


def _common_type(source: Any, columns: list[str], batch_rows: int) -> np.dtype[Any]:
    kinds = {
        np.array(batch.column(columns[0]).to_pylist()).dtype
        for batch in source.iter_batches(batch_rows, columns=columns)
    }
    common = np.result_type(*kinds) if kinds else np.dtype(np.int64)
    if common.kind not in "biufU":
        raise InvalidInput(f"column {columns[0]!r} holds {common}; labels and groups must be numbers or text")
    return common


def _open(folder: Path, columns: tuple[str, ...]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name in columns:
        path = folder / f"{name}.npy"
        try:
            found[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            what = "groups" if name not in ("x", "y") else "inputs or labels"
            raise InvalidInput(f"shard {str(folder)!r} has no {name}.npy: {what} are missing") from None
        except ValueError as problem:
            raise InvalidInput(f"{str(path)!r} is no array that can be mapped: {problem}") from None
        if len(found[name]) != len(found[columns[0]]):
            raise InvalidInput(f"{str(path)!r} has {len(found[name])} rows, x.npy {len(found[columns[0]])}")
    return found


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    cells = [piece.cells for piece in pieces if piece.cells is not None]
    return Batch(
        torch.cat([piece.x for piece in pieces]),
        torch.cat([piece.labels for piece in pieces]),
        torch.cat(cells) if cells else None,
    )


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """Inputs of a network, in the place of the feature table of a session: there are no columns to prepare."""

    x: Any  # tensor or array of inputs, or a Dataset
    n_rows: int
    names: tuple[str, ...] = ()
    named: bool = False
    sparse: None = None
    mapped: bool = False


class DatasetSource(Rows):
    """Items of a Dataset, whose labels and groups are read later, row by row."""

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:  # noqa: ARG002
        """Fix which rows each unit contributes, whatever their labels."""
        usable = np.ones(self.features.n_rows, dtype=np.bool_)
        self.units = row_units(self.features.n_rows)
        if self._ids is not None:
            self.units = id_units(*self._ids, max_rows, weighting, usable)
        return self.units

    def count_sizes(self, classes: tuple[Any, ...] | None) -> npt.NDArray[np.float64]:  # noqa: ARG002 - labels are not read
        """Return the number of ids by the logarithm of their number of rows; **private**."""
        assert self._ids is not None  # noqa: S101 - counted before
        return size_histogram(np.bincount(self._ids[0], minlength=self._ids[1]))

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Do nothing: `DatasetRows` codes labels and groups when it reads them."""


def network_rows(rows: Any, domain: Domain, constraints: CompiledConstraints | None) -> RowSource:
    """Return the rows of a session, whose features are `NetworkInputs`, as the engine reads them."""
    if isinstance(rows, DatasetSource):
        dataset: Any = rows.features
        return DatasetRows(dataset.x, domain, constraints)
    return TensorRows(rows.features.x, rows.problem.labels, rows.problem.cells)
