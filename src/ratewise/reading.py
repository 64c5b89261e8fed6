"""What is handed to `fit`, translated by public facts before any privacy is spent.

Features and labels are read by `ratewise.incoming`. Everything else that can be wrong with rows is found here
and said in one exception that names the argument and the way out, never the value of a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratewise.coding import CellCodes, LabelCodes, RowCodes, counts, held
from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain, list_values
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.features import memory_mapped
from ratewise.incoming import read_labels
from ratewise.partition import compile_constraints
from ratewise.tables import (
    column_names,
    distinct,
    interval_columns,
    needed_columns,
    read_domain,
    sensitive_columns,
)

__all__ = ["PrivateRows", "read_labels", "read_rows"]

_ROUNDING = 1e-9
ONE_CLASS = "y holds one class only; a classifier needs rows of at least two classes"


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """The private rows of a fit and the public domain they were read with; lives as long as the fit.

    Attributes
    ----------
    X : array, memory map or CSR matrix
    labels, cells : RowCodes
        The class of each row, and its cell if there are constraints.
    domain : Domain
    constraints : CompiledConstraints or None
    leaks : tuple of str
        Public facts that were not declared and had to be read off the rows.
    """

    X: Any
    labels: RowCodes
    cells: RowCodes | None
    domain: Domain
    constraints: CompiledConstraints | None
    leaks: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """The number of rows, a public number."""
        return len(self.labels)


def read_rows(
    X: Any,
    y: Any,
    sensitive_features: Any,
    *,
    constraints: Any,
    classes: Any = None,
    group_values: Mapping[str, Any] | None = None,
) -> PrivateRows:
    """Translate labels and groups by public facts, compile the constraints, and refuse what cannot be held.

    Parameters
    ----------
    X : as `read_features` returns it
    y : as `read_labels` returns it
    sensitive_features : table, mapping, vector or None
    constraints : declarations
    classes, group_values
        Declared public facts; what is not declared is read off the rows and listed in `leaks`.
    """
    columns = _columns(sensitive_features, constraints, len(y))
    domain, leaks = read_domain(
        columns,
        y,
        classes=_two_classes(y) if classes is None else classes,
        group_values=group_values,
        numeric=interval_columns(constraints),
        present=column_names(sensitive_features),
    )
    if classes is None:
        leaks.insert(0, "the classes")
    compiled = compile_constraints(constraints, domain)
    warn_of_idle(compiled)
    found = compiled if len(compiled) else None
    labels: RowCodes = LabelCodes(domain, y)
    mapped = memory_mapped(X)
    if not mapped:
        labels = held(labels, len(domain.classes))
    _refuse_empty_classes(labels, domain)
    cells: RowCodes | None = None
    if found is not None:
        cells = CellCodes(found, labels, columns)
        if not mapped:
            cells = held(cells, found.n_cells)
        _refuse_empty_subsets(found, cells)
    return PrivateRows(X, labels, cells, domain, found, tuple(leaks))


def warn_of_idle(compiled: CompiledConstraints) -> None:
    """Warn of limits that no predictions can break: of those beyond what is possible, or if all are idle.

    ``rate(1).between(0, 0.3)`` is half idle on purpose, and passes without a word.
    """
    room = compiled.bounds - compiled.largest_values
    idle = np.flatnonzero(room > _ROUNDING) if np.any(room < -_ROUNDING) else np.arange(len(compiled))
    if len(idle):
        warnings.warn(
            f"no predictions can break {list_values([compiled.names[j] for j in idle], most=3)}: such limits "
            "change nothing, and cost their part of the budget. Drop them, or tighten them: rates are "
            "shares, 0.05 is five percent",
            RatewiseWarning,
            stacklevel=5,
        )


def _columns(sensitive_features: Any, constraints: Any, n_rows: int) -> dict[str, Any]:
    needed = needed_columns(constraints)
    if needed != set() and sensitive_features is None:
        listed = "all sensitive columns" if needed is None else ", ".join(sorted(map(repr, needed)))
        raise InvalidInput(
            f"sensitive_features is missing, but the constraints read {listed}; "
            "pass it to fit as a data frame or a mapping of columns"
        )
    lone = next(iter(needed)) if needed is not None and len(needed) == 1 else None
    return sensitive_columns(sensitive_features, n_rows, lone_name=lone, needed=needed)


def _two_classes(y: Any) -> Any:
    """Return the distinct labels, read off the rows."""
    found = distinct(y, "y")
    if len(found) < 2:
        raise InvalidInput(ONE_CLASS)
    return found


def _refuse_empty_classes(labels: RowCodes, domain: Domain) -> None:
    found = counts(labels, len(domain.classes))
    if np.count_nonzero(found) == 1:
        raise InvalidInput(ONE_CLASS)
    if not np.all(found):
        missing = domain.classes[int(np.argmin(found))]
        raise InvalidInput(
            f"no row of y has the declared class {missing!r}; leave it out of classes, or add such rows"
        )


def _refuse_empty_subsets(compiled: CompiledConstraints, cells: RowCodes) -> None:
    sizes = compiled.sizes(counts(cells, compiled.n_cells).astype(np.float64))
    if len(sizes) and not sizes.min() > 0:
        name = compiled.subset_names[int(np.argmin(sizes))]
        raise InvalidInput(
            f"no row is in {name!r}, which a constraint is about; drop that constraint or group, or add rows"
        )
