"""Columns of a table by name, in whatever form the table comes; neither pandas nor polars is imported.

>>> named_columns({"age": [31, 45], "job": ["clerk", "sales"]}, "X")["job"]
['clerk', 'sales']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise.domain import list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.tables import as_column


def named_columns(table: Any, what: str, positions: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the columns of a table by name.

    Parameters
    ----------
    table : pandas or polars frame, Arrow table, mapping of columns, record array, or array
    what : str
        Name of the argument, for messages.
    positions : sequence of str, optional
        Names of the columns of an array that has none; without them such an array is refused.
    """
    if hasattr(table, "collect") and not hasattr(table, "shape"):
        raise InvalidType(f"{what} is a lazy frame; call .collect() on it first")
    if isinstance(table, Mapping):
        return _by_name(table.keys(), table.values(), what)
    if hasattr(table, "iloc") and hasattr(table, "columns"):  # by position: names may repeat
        columns = [table.iloc[:, place] for place in range(len(table.columns))]
        return _by_name(table.columns, columns, what)
    if hasattr(table, "column_names"):
        return _by_name(table.column_names, table.columns, what)
    if hasattr(table, "columns"):
        return _by_name(table.columns, [table[name] for name in table.columns], what)
    names = getattr(getattr(table, "dtype", None), "names", None)
    if names:
        return _by_name(names, [table[name] for name in names], what)
    return _by_position(table, what, positions)


def _by_name(names: Iterable[Any], columns: Iterable[Any], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in zip(names, columns, strict=True):
        if not isinstance(name, str) or not name:
            raise InvalidType(
                f"the columns of {what} must be named by text, got {name!r} of type {type(name).__name__}"
            )
        if name in found:
            raise InvalidInput(f"{what} has two columns named {name!r}; rename one of them")
        found[str(name)] = column
    return found


def _by_position(table: Any, what: str, positions: Sequence[str] | None) -> dict[str, Any]:
    if positions is None or isinstance(table, str | bytes) or np.ndim(table) != 2:
        raise InvalidType(
            f"{what} must be a table with named columns (a data frame, a mapping of columns), "
            f"got {type(table).__name__}"
        )
    array = table if isinstance(table, np.ndarray) else np.asarray(table, dtype=object)
    if array.shape[1] != len(positions):
        raise InvalidInput(
            f"{what} has {array.shape[1]} columns without names, expected {len(positions)} in the order of "
            f"the schema: {list_values(positions)}"
        )
    return {name: array[:, place] for place, name in enumerate(positions)}


def chosen_columns(table: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """Return the named columns as vectors of one length; others are not looked at.

    An array without names is taken to hold exactly these columns in this order.
    """
    found = named_columns(table, what, positions=names)
    absent = [name for name in names if name not in found]
    if absent:
        raise InvalidInput(
            f"{what} lacks the column{'s' if len(absent) > 1 else ''} {list_values(absent)} of the schema; "
            f"its columns are {list_values(found)}"
        )
    columns = {name: as_column(found[name], f"column {name!r} of {what}") for name in names}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InvalidInput(f"the columns of {what} have different lengths")
    return columns


def missing_entries(column: Any) -> NDArray[np.bool_]:
    """Return which entries of a column made by `as_column` are missing: None, NaN, NaT, NA or masked."""
    if hasattr(column, "cat"):
        return np.asarray(column.cat.codes) < 0
    array = np.asarray(column)
    gaps: NDArray[np.bool_] = np.array(np.ma.getmaskarray(column))
    if array.dtype.kind in "fc":
        gaps |= np.isnan(array)
    elif array.dtype.kind in "mM":
        gaps |= np.isnat(array)
    elif array.dtype.kind == "O":
        gaps |= np.fromiter(map(_is_missing, array.tolist()), dtype=bool, count=len(array))
    return gaps


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
    )
