"""Releases that make a table ready for training: bounds nobody declared, counts beyond declared ones.

Both come from `ratewise.bounds`; here a schema and a table are taken apart for them and put together again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.bounds import Book, BoundsPlan, OutsideCount, count_outside, private_bounds, warn_outside
from ratewise.columns import Number
from ratewise.encoding import category_codes, numbers
from ratewise.frames import chosen_columns
from ratewise.schema import Schema

Floats = npt.NDArray[np.float64]
Bounds = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Prepared:
    """Released values: the schema with bounds throughout, the bounds that were found, and counts beyond."""

    schema: Schema
    bounds: Bounds = field(default_factory=dict)
    outside: dict[str, OutsideCount] = field(default_factory=dict)


def prepare(
    frame: Any, schema: Schema, plan: BoundsPlan, rng: np.random.Generator, book: Book, *, outside: bool
) -> Prepared:
    """Return what training needs to know of a table, from the releases that the plan lists.

    Parameters
    ----------
    frame : table
        **Private** rows.
    schema : Schema
    plan : BoundsPlan
    rng : numpy.random.Generator
    book : callable
        Called with each event and its purpose **before** the release.
    outside : bool
        Whether to count entries beyond declared bounds, and to warn where they are many.
    """
    columns = _numbers(schema)
    read = chosen_columns(frame, tuple(schema.columns), "frame")
    private = {name: numbers(name, column, read[name]) for name, column in columns.items()}
    unclear = {name: _within(columns[name], private[name]) for name in schema.unbounded}
    found = private_bounds(unclear, plan.bounds_noise, rng, book)
    bounds = {name: _beside(columns[name], *ends) for name, ends in found.items()}
    counts = {}
    if outside:
        counts = count_outside(private, declared_bounds(schema), plan.outside_noise, rng, book)
        warn_outside(counts, len(next(iter(read.values()))))
    return Prepared(schema.with_bounds(bounds), bounds, counts)


def group_column(schema: Schema, name: str, data: Any) -> Any:
    """Return a sensitive column of a table with its gaps filled as the schema declares."""
    column = schema.groups[name]
    if isinstance(column, Number):
        return numbers(name, column, data)
    if column.missing is None:
        return data
    values = np.empty(len(column.values), dtype=object)
    values[:] = column.values
    return values[category_codes(name, column, data)]


def declared_bounds(schema: Schema) -> Bounds:
    """Return the bounds of the numbers for which both are declared."""
    return {
        name: (column.lower, column.upper)
        for name, column in _numbers(schema).items()
        if column.lower is not None and column.upper is not None
    }


def provisional(schema: Schema) -> Schema:
    """Return the schema with made-up bounds where it has none, to check a table before anything is spent."""
    columns = _numbers(schema)
    return schema.with_bounds({name: _beside(columns[name], 0.0, 1.0) for name in schema.unbounded})


def _numbers(schema: Schema) -> dict[str, Number]:
    return {name: column for name, column in schema.columns.items() if isinstance(column, Number)}


def _within(column: Number, values: Floats) -> Floats:
    """Return the values cut off at the one bound that may be declared."""
    low = -np.inf if column.lower is None else column.lower
    high = np.inf if column.upper is None else column.upper
    return np.clip(values, low, high)


def _beside(column: Number, low: float, high: float) -> tuple[float, float]:
    """Return bounds with the declared one, if there is one, in its place, and room between them."""
    if column.lower is not None:
        return column.lower, high if high > column.lower else column.lower + 1.0
    if column.upper is not None:
        return low if low < column.upper else column.upper - 1.0, column.upper
    return low, high
