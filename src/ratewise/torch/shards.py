"""Data larger than memory: rows in several ``.npy`` files, mapped and never loaded as a whole.

A shard is a folder with ``x.npy``, ``y.npy`` and a ``<column>.npy`` per group column; several shards are one
table, their rows numbered through. A step reads only the rows it samples. Parquet files, which can only be
read in large pieces, are turned into shards once, a piece at a time (`shards_from_parquet`).

Every process of a training opens the same shards and reads its own share of the rows; or has only its own
files, and says so with `first` and `n_rows`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratewise import _validate
from ratewise.accounting.statement import texts
from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.torch.data import Batch, Numbers, TensorRows

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
        labels = self._domain.label_codes(np.asarray(shard["y"][rows]))
        cells = None
        if self._constraints is not None:
            columns = {name: np.asarray(shard[name][rows]) for name in self._domain.columns}
            cells = self._constraints.cells(labels, columns)
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
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install pyarrow") from None
    inputs, others, size = (
        texts(features=features),
        texts(groups=groups),
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
