"""What is handed to `fit` of a network, checked and translated before any privacy is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.partition import compile_constraints
from ratewise.reading import read_labels, read_rows
from ratewise.tables import needed_columns
from ratewise.torch.data import DatasetRows, RowSource, TensorRows, refuse_loader
from ratewise.values import in_order, scalar

_CHUNK = 1 << 12


@dataclass(frozen=True, eq=False)
class NetworkRows:
    """The private rows of a fit, and the public facts they were read with."""

    source: RowSource
    domain: Domain
    constraints: CompiledConstraints | None
    leaks: tuple[str, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row's input."""
        return tuple(self.source.blank(0).shape[1:])


def read(
    X: Any,
    y: Any,
    sensitive_features: Any,
    *,
    constraints: Any,
    classes: Any,
    group_values: Mapping[str, Any] | None,
) -> NetworkRows:
    """Read arrays, or a Dataset whose items are ``(x, label, groups)``."""
    refuse_loader(X)
    if isinstance(X, Dataset):
        if y is not None or sensitive_features is not None:
            raise InvalidInput("X is a Dataset, which brings its labels and groups; leave the others out")
        return _of_dataset(X, declared(constraints, classes, group_values))
    x = read_inputs(X)
    rows = read_rows(
        x,
        read_labels(y, len(x)),
        sensitive_features,
        constraints=constraints,
        classes=classes,
        group_values=group_values,
    )
    return NetworkRows(TensorRows(x, rows.labels, rows.cells), rows.domain, rows.constraints, rows.leaks)


def declared(
    constraints: Any, classes: Any, group_values: Mapping[str, Any] | None
) -> tuple[Domain, CompiledConstraints | None]:
    """Compile constraints against declared classes and group values alone."""
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
    domain = Domain(in_order(scalar(classes=value) for value in classes), kept)
    compiled = compile_constraints(constraints, domain)
    return domain, compiled if len(compiled) else None


def read_inputs(X: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return inputs as a tensor or an array of numbers, rows first, finite throughout.

    Parameters
    ----------
    X : tensor, array, memory map or data frame
    shape : tuple, optional
        What each row must look like.
    """
    refuse_loader(X)
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    if hasattr(X, "tocsr"):
        raise InvalidType("X is a sparse matrix, which networks do not read; pass X.toarray()")
    if np.ma.is_masked(X):
        raise InvalidInput("X has masked entries, which are missing values; impute or drop such rows")
    x = X if isinstance(X, Tensor) else np.asanyarray(X)
    if x.ndim < 2 or len(x) == 0:
        raise InvalidInput(f"X must have rows first and at least one of them, got shape {tuple(x.shape)}")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biuf":
        raise InvalidType(f"X must hold numbers, got {x.dtype}; encode other columns as numbers first")
    if shape is not None and tuple(x.shape[1:]) != shape:
        raise InvalidInput(f"X has rows of shape {tuple(x.shape[1:])}, the module was fitted on {shape}")
    _refuse_not_finite(x)
    return x


def _of_dataset(dataset: Any, facts: tuple[Domain, CompiledConstraints | None]) -> NetworkRows:
    domain, compiled = facts
    return NetworkRows(DatasetRows(dataset, domain, compiled), domain, compiled, ())


def _refuse_not_finite(x: Any) -> None:
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK]
        fine = torch.isfinite(part).all() if isinstance(part, Tensor) else np.isfinite(part).all()
        if not bool(fine):
            raise InvalidInput("X contains NaN or infinity; impute, clip or drop such rows")
