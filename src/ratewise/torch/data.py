"""Rows for a network: where they come from, and how they become tensors.

A source knows how many rows there are (public) and hands out the rows of a batch by number. It keeps nothing
of what it handed out. Labels and group values are translated with the *declared* classes and values; a value
that was not declared ends in an error that never shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratewise.coding import RowCodes
from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, InvalidType

Numbers = npt.NDArray[np.intp]


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
        tensors, or what translates on demand.
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

    def check_codes(self, n_classes: int, n_cells: int | None) -> None:
        """Refuse arrays that hold other numbers than those of classes and cells; which ones is not said."""
        for name, codes, count in (("labels", self._labels, n_classes), ("cells", self._cells, n_cells)):
            if count is None or not isinstance(codes, np.ndarray) or len(codes) == 0:
                continue  # what translates on demand has declared values only
            if codes.dtype.kind not in "biu":
                raise InvalidType(f"{name} must be whole numbers from 0 to {count - 1}, got {codes.dtype}")
            if codes.min() < 0 or codes.max() >= count:
                raise InvalidInput(
                    f"{name} must be whole numbers from 0 to {count - 1}, and some are not; translate them, "
                    "with Domain.label_codes for labels and CompiledConstraints.cells for cells"
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
        items = [self._parts(self._dataset[int(row)]) for row in rows]
        if not items:
            cells = None if self._constraints is None else torch.zeros(0, dtype=torch.int64)
            return Batch(self.blank(0), torch.zeros(0, dtype=torch.int64), cells)
        x = torch.stack([_narrow(torch.as_tensor(item[0])) for item in items])
        labels = self._domain.label_codes([_plain(item[1]) for item in items])
        return Batch(x, _codes(labels), self._cells(labels, [item[2] for item in items]))

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        return made_up((count, *self._shape), self._dtype)

    def _cells(self, labels: Any, groups: Sequence[Mapping[str, Any]]) -> Tensor | None:
        if self._constraints is None:
            return None
        columns = {name: [_plain(group[name]) for group in groups] for name in self._columns}
        return _codes(self._constraints.cells(labels, columns))

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


def check_codes(rows: RowSource, n_classes: int, n_cells: int | None) -> None:
    """Refuse rows without cells where cells are counted, or with numbers that are no class or cell."""
    if n_cells is not None and rows.take(np.zeros(0, dtype=np.intp)).cells is None:
        raise InvalidInput(
            "rows have no groups: the constraints count predictions by cell, and the rows come without "
            "cells; give them, such as TensorRows(x, labels, constraints.cells(labels, columns))"
        )
    if isinstance(rows, TensorRows):
        rows.check_codes(n_classes, n_cells)


def refuse_loader(data: Any) -> None:
    """Refuse a loader where rows are wanted: its batches are no Poisson sample."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise InvalidType(
            "data is a DataLoader, which is batched already; privacy rests on each row being drawn "
            "independently: pass its dataset (loader.dataset) instead"
        )


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
