"""What the user declares, and the checks of it: everything here happens before a row is read.

Arguments are checked by their names, shapes and types; cells are not looked at.
"""

from __future__ import annotations

import datetime
import math
import numbers
import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratewise.accounting import Ledger, PrivacyUnit
from ratewise.constraints.compiled import compile_constraints, named_values
from ratewise.constraints.domain import Domain, Numeric, list_values, scalar
from ratewise.constraints.feasibility import smallest_values
from ratewise.data.cells import DEFAULT_FORMAT, parse_number, refuse_ambiguous
from ratewise.data.table import column_names, raw_columns, refuse_misspelt
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseWarning
from ratewise.preprocessing.discovery import ColumnDeclaration

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Declarations:
    """What the user declares."""

    constraints: list[Any]
    classes: tuple[Any, ...] | None
    group_values: Mapping[str, Any]  # values of a sensitive column, or Numeric()
    columns: Mapping[str, ColumnDeclaration]
    model: str = "additive"  # or "linear"
    unit: str = "row"  # or "id"
    id_column: str | None = None
    rows_per_id: int | None = None
    weighting: str = "id"  # or "row"

    @property
    def needed_columns(self) -> frozenset[str] | None:
        """Sensitive columns that constraints read; None means all that are passed."""
        return named_values(self.constraints).needed

    @property
    def finds_rows_per_id(self) -> bool:
        """Whether the number of rows of an id must be found."""
        return self.unit == "id" and self.rows_per_id is None

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """The unit of privacy."""
        if self.unit == "row":
            return PrivacyUnit()
        return PrivacyUnit("id", column=self.id_column, max_rows=self.rows_per_id, weighting=self.weighting)

    def undeclared_groups(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of the sensitive columns have values that must be found."""
        needed, numeric = self.needed_columns, named_values(self.constraints).numeric
        return tuple(
            name
            for name in names
            if (needed is None or name in needed) and name not in self.group_values and name not in numeric
        )

    def domain(self, classes: tuple[Any, ...], names: tuple[str, ...], found: Mapping[str, tuple[Any, ...]]) -> Domain:
        """Return the domain of sensitive columns, from declared and found values."""
        numeric = dict.fromkeys(named_values(self.constraints).numeric, Numeric())
        known = {**found, **numeric, **self.group_values}
        return Domain(classes, {name: known[name] for name in names if name in known}, other=True)


def read_groups(sensitive_features: Any, n_rows: int, declared: Declarations) -> dict[str, Any]:
    """Return the sensitive columns that the constraints read, after checks of names and lengths."""
    needed = declared.needed_columns
    if not declared.constraints:
        return raw_columns(sensitive_features, n_rows, needed=frozenset())
    if sensitive_features is None and needed is None:
        raise InvalidInput(
            "sensitive_features is missing, but a constraint reads all of its columns; pass the groups with "
            "sensitive_features=..., one row per sample"
        )
    groups = raw_columns(sensitive_features, n_rows, needed)
    numeric = named_values(declared.constraints).numeric
    present = column_names(sensitive_features) if sensitive_features is not None else set()
    refuse_misspelt(declared.group_values, groups, {*numeric, *present})
    return groups


def check_ledger(ledger: Any, neighbours: str) -> None:
    """Raise unless a ledger is None or one in which plans for this relation add up."""
    if not isinstance(ledger, Ledger | None):
        raise InvalidType(f"ledger must be a Ledger or None, got {type(ledger).__name__}")
    if ledger is not None and not ledger.accepts(neighbours):
        raise InvalidInput(
            f"neighbours is {neighbours!r}, but the ledger accounts for {ledger.neighbours!r}; "
            "use one relation for both"
        )


def check_compiles(declared: Declarations, columns: tuple[str, ...]) -> None:
    """Reject constraints that fit no domain with the declared values, before anything is recorded.

    Where values are not declared, the domain has those that the constraints name, and further ones. Warns of
    constraints that always hold: of those with a bound beyond what is possible, or if all hold always.
    ``rate(1).between(0, 0.3)`` holds always on one side on purpose.
    """
    named = named_values(declared.constraints)
    for name in columns:
        refuse_ambiguous(f"the values of column {name!r} in constraints", named.columns.get(name, ()))
    refuse_ambiguous("the classes in constraints", named.classes)
    further = ("an undeclared value", "another undeclared value")
    values: dict[str, Any] = {
        name: declared.group_values[name]
        if name in declared.group_values
        else Numeric()
        if name in named.numeric
        else (*named.columns.get(name, ()), *further)
        for name in columns
    }
    classes = declared.classes if declared.classes is not None else (*named.classes, *further)
    complete = declared.classes is not None and all(
        name in declared.group_values or name in named.numeric for name in columns
    )
    domain = Domain(classes, values, other=True)
    compiled = compile_constraints(declared.constraints, domain, allow_empty=not complete)
    room = compiled.bounds + smallest_values(compiled, -1.0)
    idle = np.flatnonzero(room > _ROUNDING) if np.any(room < -_ROUNDING) else np.arange(len(compiled))
    if len(idle):
        warnings.warn(
            f"no predictions can violate {list_values([compiled.names[j] for j in idle], most=3)}: such "
            "constraints change nothing, and cost their share of the budget. Drop them, or tighten them: "
            "rates are shares, 0.05 is five percent",
            RatewiseWarning,
            stacklevel=4,
        )


def declared_columns(names: tuple[str, ...], bounds: Any, schema: Any) -> dict[str, ColumnDeclaration]:
    """Return what is declared of every feature."""
    if schema is not None:
        bounds, values, cells = schema.feature_bounds, schema.categories, schema.cell_format
        return {
            name: ColumnDeclaration(bounds=bounds.get(name), values=values.get(name), cell_format=cells)
            for name in names
        }
    if bounds is None:
        return dict.fromkeys(names, ColumnDeclaration())
    if isinstance(bounds, Mapping):
        unknown = [name for name in bounds if name not in names]
        if unknown:
            raise InvalidInput(
                f"feature_bounds names {unknown[0]!r}, which is no column of X; its columns are {reprlib.repr(list(names))}"
            )
        return {name: _declared(name, bounds[name]) if name in bounds else ColumnDeclaration() for name in names}
    try:
        lower, upper = bounds
        count = len(names)
        low, high = (np.broadcast_to(np.asarray(side, dtype=np.float64), count) for side in (lower, upper))
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low <= high)):
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidInput(
            f"feature_bounds must be a pair (lower, upper), each a finite number or {len(names)}, lower at "
            f"most upper, or a mapping of columns to them, got {reprlib.repr(bounds)}"
        ) from None
    with np.errstate(over="ignore"):
        if not np.all(np.isfinite(high - low)):
            raise InvalidInput("feature_bounds are too far apart for double precision; give narrower bounds")
    return {name: ColumnDeclaration(bounds=(float(low[place]), float(high[place]))) for place, name in enumerate(names)}


def _declared(name: str, value: Any) -> ColumnDeclaration:
    if isinstance(value, ColumnDeclaration):
        return value
    entries = None if isinstance(value, str | bytes) or not hasattr(value, "__iter__") else list(value)
    if not entries:
        raise InvalidInput(f"feature_bounds[{name!r}] must be (lower, upper) or a list of values, got {value!r}")
    numeric = all(isinstance(entry, numbers.Real) and not isinstance(entry, bool | np.bool_) for entry in entries)
    dates = all(isinstance(entry, datetime.date | np.datetime64) for entry in entries)
    if isinstance(value, tuple) and len(entries) == 2 and (numeric or dates):
        low, high = parse_number(entries).values.tolist()  # dates in days
        if not (math.isfinite(low) and math.isfinite(high) and low <= high and math.isfinite(high - low)):
            raise InvalidInput(f"feature_bounds[{name!r}] must be finite with lower at most upper, got {value!r}")
        return ColumnDeclaration(bounds=(low, high))
    what = f"feature_bounds[{name!r}]"
    values = tuple(scalar(**{what: entry}) for entry in entries)
    if len(set(values)) < len(values):
        twice = next(entry for place, entry in enumerate(values) if entry in values[:place])
        raise InvalidInput(f"{what} must hold each value once, got {twice!r} twice")
    return ColumnDeclaration(values=values, cell_format=DEFAULT_FORMAT)
