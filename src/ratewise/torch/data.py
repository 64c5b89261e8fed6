"""Rows for a network: where they come from, and how they become tensors.

A source knows how many rows there are (public) and returns the rows of a batch by number. Labels and group
values are coded with the declared or privately found classes and values. A label that is no class has the code
-1, as has the cell of a row in no cell. No content of a row raises an error: such rows, and items of a Dataset
that fail or have another shape, add nothing (`ratewise.torch.engine`).

Data larger than memory are mapped, not loaded: ``TensorRows(np.load("x.npy", mmap_mode="r"), ...)``. Of several processes, each
maps the same file and reads its own share of the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratewise.constraints.compiled import CompiledConstraints, compile_constraints
from ratewise.constraints.domain import Domain, in_order, scalar
from ratewise.data.table import Units, id_units, needed_columns, row_units
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.models.rows import Rows
from ratewise.preprocessing.discovery import size_histogram

Numbers = npt.NDArray[np.intp]

_CHUNK = 1 << 12
_LOOKED_AT = 5  # items of a Dataset whose shape and type are looked at


class Batch(NamedTuple):
    """Some rows as tensors, **private**."""

    x: Tensor
    labels: Tensor
    cells: Tensor | None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]

    def select(self, rows: Tensor) -> Batch:
        """Return some of the rows, by number or by mask."""
        return Batch(*(None if part is None else part[rows.to(part.device)] for part in self))  # type: ignore[arg-type]

    def spread(self, places: Tensor | slice, size: int) -> Batch:
        """Return so many rows with these at the places, and blank ones, which add nothing, elsewhere."""

        def placed(part: Tensor | None, blank: int) -> Any:
            if part is None:
                return None
            whole = part.new_full((size, *part.shape[1:]), blank)
            whole[places if isinstance(places, slice) else places.to(part.device)] = part
            return whole

        return Batch(placed(self.x, 0), placed(self.labels, -1), placed(self.cells, -1))


class RowSource(Protocol):
    """Rows by number; `n_rows`, of all processes together, is public."""

    n_rows: int

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers, **private**."""

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row: to try a module out without reading rows."""


class TensorRows:
    """Rows in memory, or mapped into it.

    Parameters
    ----------
    x : tensor or array of shape (n, ...)
        Numbers of 64 bits are handed out with 32, unless the tensor itself has 64.
    labels, cells : arrays or tensors
        The class of each row and, if something is counted, its cell, as whole numbers from 0. A row whose label is
        no class adds nothing to any sum.
    """

    def __init__(self, x: Any, labels: Any, cells: Any = None) -> None:
        for name, values in (("x", x), ("labels", labels), ("cells", cells)):
            if values is None and name == "cells":
                continue
            if not hasattr(values, "__len__") or getattr(values, "shape", None) == ():
                raise InvalidType(f"{name} must hold one entry per row, got {type(values).__name__}")
            if len(values) != len(x):
                raise InvalidInput(f"{name} must be one number per row: {len(values)} for {len(x)} rows")
        self._x, self._labels = x, _array(labels)
        self._cells = None if cells is None else _array(cells)
        self.n_rows = len(self._labels)

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers."""
        x = self._x[torch.from_numpy(rows)] if isinstance(self._x, Tensor) else _tensor(self._x[rows])
        cells = None if self._cells is None else _codes(self._cells.take(rows))
        return Batch(x, _codes(self._labels.take(rows)), cells)

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        x = self._x[:0] if isinstance(self._x, Tensor) else _tensor(self._x[:0])
        return made_up((count, *x.shape[1:]), x.dtype)

    def check_types(self) -> None:
        """Refuse arrays of labels or cells that do not hold whole numbers; their content is not read."""
        for name, codes in (("labels", self._labels), ("cells", self._cells)):
            if codes is not None and codes.dtype.kind not in "biu":
                raise InvalidType(
                    f"{name} must be whole numbers from 0, got {codes.dtype}; translate them, with "
                    "Domain.code_labels for labels and CompiledConstraints.code_cells for cells"
                )


class DatasetRows:
    """Rows of a map-style ``torch.utils.data.Dataset`` whose items are ``(x, label, groups)``.

    `groups` is a mapping of column to value, or a bare value if there is one column; items may be ``(x, label)`` if
    no constraint reads a column. The domain has the declared classes and group values. The shape and the type of the
    inputs, those of most items, are public; an item of another shape is a row whose label is no class.
    """

    def __init__(self, dataset: Any, domain: Domain, constraints: CompiledConstraints | None = None) -> None:
        refuse_loader(dataset)
        if (
            not isinstance(dataset, Sized)
            or not hasattr(dataset, "__getitem__")
            or isinstance(dataset, Mapping)
        ):
            raise InvalidType(
                f"data must be a Dataset with a length and items by number, got {type(dataset).__name__}; "
                "an iterable one cannot be sampled: each row must be drawn independently"
            )
        if not isinstance(domain, Domain):
            raise InvalidType(f"domain must be a Domain, got {type(domain).__name__}")
        self._dataset, self._domain, self._constraints = dataset, domain, constraints
        self._columns, self.n_rows = tuple(domain.columns), len(dataset)
        if self.n_rows == 0:
            raise InvalidInput("data holds no rows")
        self._shape, self._dtype = self._form()

    def _form(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the type that most of a few items have: public, and not what a single row decides."""
        found: Counter[tuple[tuple[int, ...], torch.dtype]] = Counter()
        problems: list[Exception] = []
        for row in sorted(set(np.linspace(0, self.n_rows - 1, _LOOKED_AT).astype(int).tolist())):
            try:
                x = _narrow(torch.as_tensor(self._parts(self._dataset[row])[0]))
            except Exception as problem:
                problems.append(problem)
            else:
                found[tuple(x.shape), x.dtype] += 1
        if not found:
            raise problems[0]
        return found.most_common(1)[0][0]

    def take(self, rows: Numbers) -> Batch:
        """Return the rows of these numbers."""
        items = [self._item(int(row)) for row in rows]
        x = torch.stack([item[0] for item in items]) if items else self.blank(0)
        labels = self._domain.code_labels([item[1] for item in items])
        if self._constraints is None:
            return Batch(x, _codes(labels), None)
        columns = {name: [item[2][name] for item in items] for name in self._columns}
        return Batch(x, _codes(labels), _codes(self._constraints.code_cells(labels, columns)))

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        return made_up((count, *self._shape), self._dtype)

    def _item(self, row: int) -> tuple[Tensor, Any, Mapping[str, Any]]:
        """Return one row; an item that fails, or that has another shape, is a row whose label is no class."""
        try:
            x, label, groups = self._parts(self._dataset[row])
            inputs = _narrow(torch.as_tensor(x))
            if tuple(inputs.shape) == self._shape and inputs.is_complex() <= self._dtype.is_complex:
                return (
                    inputs.to(self._dtype),
                    _plain(label),
                    {name: _plain(groups[name]) for name in self._columns},
                )
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
        columns = self._columns
        if not columns:
            return item[0], item[1], {}
        if len(item) == 2:
            raise InvalidInput(
                "data has no groups: its items are (x, label), but the constraints read "
                f"{', '.join(map(repr, columns))}; let items be (x, label, {{column: value}})"
            )
        groups = item[2]
        if not isinstance(groups, Mapping):
            if len(columns) > 1:
                raise InvalidType(
                    "the groups of an item must map columns to values, for there are several columns, got "
                    f"{type(groups).__name__}"
                )
            groups = {columns[0]: groups}
        absent = [name for name in columns if name not in groups]
        if absent:
            raise InvalidInput(f"data has no group column {absent[0]!r}, which the constraints read")
        return item[0], item[1], groups


def check_rows(rows: RowSource, *, counted: bool) -> None:
    """Refuse rows without cells where cells are counted, or with labels or cells of another type."""
    if counted and rows.take(np.zeros(0, dtype=np.intp)).cells is None:
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
    """Return a tensor, array, memory map or data frame as numbers, rows first; the numbers are not looked at."""
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


def _array(codes: Any) -> npt.NDArray[Any]:
    return codes.detach().cpu().numpy() if isinstance(codes, Tensor) else np.asarray(codes)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


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
