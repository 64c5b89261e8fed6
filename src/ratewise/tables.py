"""Tables of group values, in whatever form they come, and the public facts that constraints need of them.

pandas and polars frames and series, Arrow tables, mappings of columns, record arrays and plain vectors all
become one mapping from column name to vector. Neither pandas nor polars is imported: a table is known by its
manners.

>>> columns = sensitive_columns({"sex": ["F", "M", "F"]}, 3)
>>> domain, read = read_domain(columns, [0, 1, 1], classes=(0, 1))
>>> domain
Domain(classes=(0, 1), columns={'sex': ('F', 'M')})
>>> read
["the values of column 'sex'"]

Messages name columns, never the value of a row nor how many rows are amiss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise.domain import Domain, Numeric, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import Limit, Parity
from ratewise.predicates import Member, Within
from ratewise.rates import Constraint
from ratewise.values import in_order, scalar

LONE_NAME = "group"
MOST_FLOATS = 50  # distinct floats up to which a column is taken for a list of groups

_CHUNK = 1 << 18  # rows looked at a time, so that ten million rows of text need no second copy
_MISSING_TYPES = ("NAType", "NaTType")  # pandas' own markers, without importing pandas


# ------------------------------------------------------------------------------- columns of a table


def sensitive_columns(
    sensitive_features: Any,
    n_rows: int,
    *,
    lone_name: str | None = None,
    needed: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the columns of `sensitive_features` by name, each a vector of `n_rows` entries, none missing.

    Parameters
    ----------
    sensitive_features : table, mapping of name to column, record array, vector, or None
        None gives no columns.
    n_rows : int
        Number of rows that each column must have.
    lone_name : str, optional
        Name for a vector that has none of its own; "group" unless told.
    needed : collection of str, optional
        The columns to keep; the others are neither checked nor returned, and each of these must be there.
        None keeps all.

    Returns
    -------
    dict
        Vectors that `Domain.column_codes` and `CompiledConstraints.cells` understand. Categorical columns of
        pandas stay as they are, everything else is a NumPy array.
    """
    found = _named_columns(sensitive_features, lone_name or LONE_NAME)
    if needed is not None:
        _refuse_absent(found, needed, given=sensitive_features is not None)
        found = {name: column for name, column in found.items() if name in needed}
    uncut = isinstance(sensitive_features, Mapping)
    return {name: _checked(name, column, n_rows, uncut=uncut) for name, column in found.items()}


def column_names(sensitive_features: Any) -> set[str]:
    """Return the names of the columns, those of no use included; a vector without a name has none.

    >>> column_names({"sex": ["F", "M"]})
    {'sex'}
    """
    return set(_named_columns(sensitive_features, LONE_NAME))


def as_column(data: Any, what: str) -> Any:
    """Return one column as a vector: pandas categoricals as they are, everything else as a NumPy array."""
    if _is_categorical(data):
        return data
    if isinstance(data, list | tuple):
        # np.asarray would turn a mix such as [1, "a"] into text
        array: NDArray[Any] = np.fromiter(data, dtype=object, count=len(data))
        return array
    if isinstance(data, str | bytes | Mapping | set | frozenset):
        raise InvalidType(f"{what} must be a vector with one entry per row, got {type(data).__name__}")
    array = np.ma.asanyarray(data) if isinstance(data, np.ma.MaskedArray) else np.asarray(data)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidType(
            f"{what} must be a vector with one entry per row, got an array of {array.ndim} dimensions"
        )
    return array


def has_missing(column: Any) -> bool:
    """Return whether a column made by `as_column` holds missing values: None, NaN, NaT, NA or masked."""
    if _is_categorical(column):
        return bool((np.asarray(column.cat.codes) < 0).any())
    if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):
        return True
    if column.dtype.kind in "fcmM":
        absent = np.isnat if column.dtype.kind in "mM" else np.isnan
        return any(absent(column[start : start + _CHUNK]).any() for start in range(0, len(column), _CHUNK))
    return column.dtype.kind == "O" and any(_is_missing(value) for value in _entries(column))


def _named_columns(table: Any, lone_name: str) -> dict[str, Any]:
    if table is None:
        return {}
    if isinstance(table, Mapping):
        return _by_name(table.keys(), table.values())
    if hasattr(table, "collect") and not hasattr(table, "shape"):
        raise InvalidType("sensitive_features is a lazy frame; call .collect() on it first")
    if hasattr(table, "columns"):
        return _by_name(*_frame(table))
    names = getattr(getattr(table, "dtype", None), "names", None)
    if names:
        return _by_name(names, (table[name] for name in names))
    name = getattr(table, "name", None)
    lone = lone_name if name is None or name == "" or callable(name) else name
    return _by_name([lone], [_lone_column(table)])


def _frame(table: Any) -> tuple[list[Any], list[Any]]:
    """Return names and columns of a frame; by position where names may repeat."""
    if hasattr(table, "iloc"):
        names = list(table.columns)
        return names, [table.iloc[:, place] for place in range(len(names))]
    if hasattr(table, "column_names"):
        return list(table.column_names), list(table.columns)
    names = list(table.columns)
    return names, [table[name] for name in names]


def _by_name(names: Iterable[Any], columns: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in zip(names, columns, strict=True):
        text = _column_name(name)
        if text in found:
            raise InvalidInput(f"sensitive_features has two columns named {text!r}; rename one of them")
        found[text] = column
    return found


def _column_name(name: Any) -> str:
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str) or not name:
        raise InvalidType(
            f"the columns of sensitive_features must be named by text, got {name!r} of type "
            f"{type(name).__name__}; rename the columns"
        )
    return str(name)


def _lone_column(data: Any) -> Any:
    if isinstance(data, list | tuple) and data and isinstance(data[0], list | tuple | np.ndarray):
        data = np.array(data, dtype=object)
    shape = _shape(data)
    if len(shape) == 2 and shape[1] != 1:
        raise InvalidInput(
            f"sensitive_features is an array of {shape[1]} columns without names; pass a data frame "
            "or a dict such as {'sex': ..., 'race': ...}, so that constraints can name them"
        )
    if not shape and not isinstance(data, list | tuple):
        raise InvalidType(
            "sensitive_features must be a data frame, a dict of columns or a vector with one entry per row, "
            f"got {type(data).__name__}"
        )
    return data


def _shape(data: Any) -> tuple[int, ...]:
    try:
        return np.shape(data)
    except ValueError:  # parts of unequal length, such as those of a grouped frame: no array
        return ()


def _refuse_absent(found: Mapping[str, Any], needed: Collection[str], given: bool) -> None:
    absent = [name for name in sorted(needed) if name not in found]
    if not absent:
        return
    if not given:
        raise InvalidInput(
            f"sensitive_features is missing, but the constraints read {_columns_text(absent)}; "
            "pass the groups with sensitive_features=..., one row per sample"
        )
    raise InvalidInput(
        f"sensitive_features lacks {_columns_text(absent)}, which the constraints read; "
        f"its columns are {list_values(found)}"
    )


def _columns_text(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {list_values(names)}"


def _checked(name: str, data: Any, n_rows: int, *, uncut: bool) -> Any:
    column = as_column(data, f"column {name!r} of sensitive_features")
    if len(column) != n_rows:
        # scikit-learn splits what has as many entries as there are rows; a dict has as many as columns
        hint = (
            "; inside GridSearchCV or cross_validate pass a data frame (or a record array) rather than a "
            "dict, which scikit-learn does not split"
        )
        raise InvalidInput(
            f"sensitive_features must have one entry per row of the data: column {name!r} has {len(column)}, "
            f"expected {n_rows}{hint if uncut and len(column) > n_rows else ''}"
        )
    if _has_missing(name, column):
        raise InvalidInput(
            f"sensitive_features holds missing values in column {name!r}; drop those rows, or give them "
            "a group of their own such as 'unknown'"
        )
    return np.asarray(column) if isinstance(column, np.ma.MaskedArray) else column


def _has_missing(name: str, column: Any) -> bool:
    try:
        return has_missing(column)
    except InvalidType:
        raise InvalidType(
            f"column {name!r} of sensitive_features holds entries that are no scalars but unhashable things "
            "such as lists; a group is one text or number"
        ) from None


def _is_categorical(data: Any) -> bool:
    category = getattr(data, "cat", None)
    return hasattr(category, "codes") and hasattr(category, "categories")


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _entries(array: NDArray[Any]) -> set[Any]:
    """Return the distinct entries of an object array."""
    seen: set[Any] = set()
    try:
        for start in range(0, len(array), _CHUNK):
            seen.update(array[start : start + _CHUNK].tolist())
    except TypeError:
        raise InvalidType("a column holds entries that are no scalars (unhashable)") from None
    return seen


# ------------------------------------------------------------------------------------ public facts


def read_domain(
    columns: Mapping[str, Any],
    labels: Any,
    classes: Iterable[Any] | None = None,
    group_values: Mapping[str, Any] | None = None,
    *,
    needed: Collection[str] | None = None,
    numeric: Collection[str] = (),
    present: Collection[str] = (),
) -> tuple[Domain, list[str]]:
    """Return the public domain, and what had to be read off the data because it was not declared.

    Parameters
    ----------
    columns : mapping of name to vector
        As `sensitive_columns` returns them.
    labels : vector
        Read only if `classes` is None.
    classes : iterable, optional
        The declared classes; kept in sorted order, as scikit-learn's ``classes_``.
    group_values : mapping, optional
        For each column its possible values, or ``Numeric()``.
    needed : collection of str, optional
        Only these columns become part of the domain and are ever looked at; None: all.
    numeric : collection of str
        Columns of which only intervals are said (see `interval_columns`): numeric without a look.
    present : collection of str
        Names of further columns that the table has. Values declared for a column that is nowhere are taken
        for a slip of the pen if a column remains whose values nobody declared, and are of no use otherwise.

    Returns
    -------
    domain : Domain
    leaks : list of str
        What was read, to be put after "read off the data:"; empty if everything was declared.
    """
    declared = _declared_values(group_values)
    _refuse_misspelt(declared, columns, {*numeric, *present})
    leaks: list[str] = []
    if classes is None:
        classes = distinct(as_column(labels, "y"), "y")
        leaks.append("the classes")
    values: dict[str, Any] = {}
    for name in columns:
        if needed is not None and name not in needed:
            continue
        if name in declared:
            values[name] = declared[name]
        elif name in numeric:
            values[name] = Numeric()
        else:
            values[name] = distinct_or_numeric(columns[name], f"column {name!r}")
            kind = "kind" if isinstance(values[name], Numeric) else "values"
            leaks.append(f"the {kind} of column {name!r}")
    return Domain(_sorted_classes(classes), values), leaks


def distinct(column: Any, what: str) -> tuple[Any, ...]:
    """Return the distinct entries of a vector as Python scalars, sorted. It reads rows."""
    found: set[Any] = set()
    for values in _distinct_by_chunk(column):
        found.update(values)
    if any(map(_is_missing, found)):
        raise InvalidInput(f"{what} holds missing values; drop those rows or fill them")
    return tuple(in_order({scalar(**{what: value}) for value in found}))


def distinct_or_numeric(column: Any, what: str) -> tuple[Any, ...] | Numeric:
    """Return the distinct entries, or ``Numeric()`` for a column of many distinct floats. It reads rows."""
    if not _is_categorical(column) and column.dtype.kind == "f":
        found: set[float] = set()
        for values in _distinct_by_chunk(column):
            found.update(values)
            if len(found) > MOST_FLOATS:
                return Numeric()
    entries = distinct(column, what)
    many = len(entries) > MOST_FLOATS and any(isinstance(value, float) for value in entries)
    return Numeric() if many and all(isinstance(value, int | float) for value in entries) else entries


def _distinct_by_chunk(column: Any) -> Iterator[Collection[Any]]:
    if _is_categorical(column):
        present = np.unique(np.asarray(column.cat.codes))
        yield np.asarray(column.cat.categories)[present[present >= 0]].tolist()
        return
    for start in range(0, len(column), _CHUNK):
        part = column[start : start + _CHUNK]
        # hashing beats sorting for text; numbers sort fast, and many NaN must not become many entries
        yield np.unique(part).tolist() if part.dtype.kind in "biuf" else _entries(part)


def _declared_values(group_values: Any) -> dict[str, Any]:
    if group_values is None:
        return {}
    if not isinstance(group_values, Mapping):
        raise InvalidType(
            f"group_values must map column names to their values, got {type(group_values).__name__}; "
            "write {'sex': ('Female', 'Male')}"
        )
    return {_column_name(name): _listed(values) for name, values in group_values.items()}


def _refuse_misspelt(declared: Mapping[str, Any], columns: Mapping[str, Any], fine: Collection[str]) -> None:
    if all(name in declared for name in columns):
        return
    unknown = next((name for name in declared if name not in columns and name not in fine), None)
    if unknown is not None:
        raise InvalidInput(
            f"group_values declares column {unknown!r}, but the columns of sensitive_features are "
            f"{list_values(columns)}"
        )


def _listed(values: Any) -> Any:
    """Sort values that come without an order, so that every run sees the same domain."""
    _refuse_iterator("group_values", values)
    return in_order(values) if isinstance(values, set | frozenset) else values


def _refuse_iterator(name: str, values: Any) -> None:
    if isinstance(values, Iterator):
        raise InvalidType(f"{name} must be a list or tuple: an iterator can be read only once")


def _sorted_classes(classes: Any) -> Any:
    _refuse_iterator("classes", classes)
    if isinstance(classes, str | bytes | Mapping) or not isinstance(classes, Iterable):
        return classes  # refused by Domain, with the reason
    return in_order(scalar(classes=value) for value in classes)


# ------------------------------------------------------------------------- what declarations read


def needed_columns(constraints: Any) -> set[str] | None:
    """Return the columns that the declarations read; None if some family names none, which means all.

    >>> from ratewise.families import demographic_parity, false_negative_rate
    >>> sorted(needed_columns([demographic_parity("sex", max_gap=0.1), false_negative_rate(0.2, by="race")]))
    ['race', 'sex']
    >>> needed_columns(demographic_parity(max_gap=0.1)) is None
    True
    """
    needed: set[str] = set()
    for item in _items(constraints):
        if isinstance(item, Parity) and not item.columns:
            return None
        needed.update(column for column, _ in _reads(item))
    return needed


def interval_columns(constraints: Any) -> set[str]:
    """Return the columns of which the declarations only say intervals, so that no value need be known.

    >>> from ratewise.predicates import below, group
    >>> from ratewise.rates import rate
    >>> interval_columns(rate(1, where=group(age=below(25), sex="F")) <= 0.3)
    {'age'}
    """
    if needed_columns(constraints) is None:
        return set()
    reads = {read for item in _items(constraints) for read in _reads(item)}
    return {column for column, whole in reads if not whole and (column, True) not in reads}


def _items(constraints: Any) -> Iterator[Any]:
    """Yield the single declarations; what is none is left for `compile_constraints` to refuse."""
    if isinstance(constraints, Iterator):
        raise InvalidType("constraints must be a list: an iterator can be read only once")
    if isinstance(constraints, list | tuple | set | frozenset):
        for item in constraints:
            yield from _items(item)
    else:
        yield constraints


def _reads(item: Any) -> Iterator[tuple[str, bool]]:
    """Yield the columns a declaration reads, and whether by value (True) or by interval."""
    if isinstance(item, Parity):
        yield from ((column, True) for column in item.columns)
    elif isinstance(item, Limit):
        yield from ((column, True) for column in item.by)
    elif isinstance(item, Constraint):
        for term, _ in item.expression.terms:
            for leaf in (*term.where.leaves(), *term.of.leaves()):
                yield from _leaf_reads(leaf)


def _leaf_reads(leaf: Member | Within) -> Iterator[tuple[str, bool]]:
    if leaf.column is not None:
        yield leaf.column, isinstance(leaf, Member)
