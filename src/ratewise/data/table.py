"""Columns of tables as users pass them: features, groups and labels, in any frame, array or mapping.

Neither pandas nor polars is imported: a table is known by its methods. For private rows (`read_features`, `raw_columns`,
`LabelledRows`) only structure (shape, names, complex storage) can be an error; the content of a cell never is.
`sensitive_columns` and `read_domain` are for public rows: they raise on missing values and read undeclared values
off the data. Messages name columns, never the value of a row nor how many rows are amiss.

>>> columns = sensitive_columns({"sex": ["F", "M", "F"]}, 3)
>>> read_domain(columns, [0, 1, 1], classes=(0, 1))
Domain(classes=(0, 1), columns={'sex': ('F', 'M')})
>>> named_columns({"age": [31, 45], "job": ["clerk", "sales"]}, "X")["job"]
['clerk', 'sales']
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.compiled import CompiledConstraints, as_constraints, named_values
from ratewise.constraints.domain import Domain, Numeric, in_order, list_values, scalar
from ratewise.constraints.families import Family
from ratewise.data.cells import code_cells, parse_number
from ratewise.exceptions import InvalidInput, InvalidType

LONE_NAME = "group"
MOST_FLOATS = 50  # distinct floats up to which a column is taken for a list of groups

_CHUNK = 1 << 18  # rows looked at a time, so that ten million rows of text need no second copy
_MISSING_TYPES = ("NAType", "NaTType")  # pandas' own markers, without importing pandas
_NO_VECTOR = (str, bytes, Mapping, set, frozenset)


# --------------------------------------------------------------------------------------------- any table


@dataclass(frozen=True)
class Finding:
    """One thing that was found out about a file or a table, for its owner to confirm.

    Parameters
    ----------
    topic : str
        What it is about, such as "separator" or "identifier".
    message : str
        One plain sentence, or a few.
    option : str or None
        The argument that overrides what was decided: "sep" is `--sep` on the command line.
    column : str or None
        The column that it concerns.
    severe : bool
        Whether the owner must decide something before the table can be used.
    """

    topic: str
    message: str
    option: str | None = None
    column: str | None = None
    severe: bool = False

    def __str__(self) -> str:
        return self.message if self.option is None else f"{self.message} (To change it: {self.option}=.)"

    def for_command_line(self) -> str:
        """Return the message with the option in the terms of the command line.

        >>> Finding("separator", "Fields are separated by semicolons.", "sep").for_command_line()
        'Fields are separated by semicolons. (To change it: --sep.)'
        """
        if self.option is None:
            return self.message
        return f"{self.message} (To change it: --{self.option.replace('_', '-')}.)"


def named_columns(table: Any, what: str, lone_name: str | None = None) -> dict[str, Any]:
    """Return the columns of a table by name; names that are whole numbers become text.

    Parameters
    ----------
    table : pandas or polars frame, Arrow table, mapping of columns, or record array
    what : str
        Name of the argument, for messages.
    lone_name : str, optional
        Name of a vector that has none; without it a vector is refused.
    """
    if hasattr(table, "collect") and not hasattr(table, "shape"):
        raise InvalidType(f"{what} is a lazy frame; call .collect() on it first")
    fields = getattr(getattr(table, "dtype", None), "names", None)
    if isinstance(table, Mapping):
        return _by_name(table.keys(), table.values(), what)
    if hasattr(table, "iloc") and hasattr(table, "columns"):  # by position: names may repeat
        columns = [table.iloc[:, place] for place in range(len(table.columns))]
        return _by_name(table.columns, columns, what)
    if hasattr(table, "column_names"):
        return _by_name(table.column_names, table.columns, what)
    if hasattr(table, "columns") or fields:
        names = fields or table.columns
        return _by_name(names, [table[name] for name in names], what)
    if lone_name is None:
        raise InvalidType(
            f"{what} must be a table with named columns (a data frame, a mapping of columns), "
            f"got {type(table).__name__}"
        )
    name = getattr(table, "name", None)
    lone = lone_name if name is None or name == "" or callable(name) else name
    return _by_name([lone], [_lone_column(table)], what)


def _by_name(names: Iterable[Any], columns: Iterable[Any], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in zip(names, columns, strict=True):
        text = _column_name(name, what)
        if text in found:
            raise InvalidInput(f"{what} has two columns named {text!r}; rename one of them")
        found[text] = column
    return found


def _column_name(name: Any, what: str) -> str:
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str) or not name:
        raise InvalidType(
            f"the columns of {what} must be named by text, got {name!r} of type {type(name).__name__}; "
            "rename the columns"
        )
    return str(name)


def _lone_column(data: Any) -> Any:
    if isinstance(data, list | tuple):
        lengths = {len(entry) if isinstance(entry, list | tuple | np.ndarray) else 1 for entry in data}
        if len(lengths) == 1 and 1 not in lengths:
            raise InvalidInput(_unnamed(lengths.pop()))
        # a row of one entry is that entry; nothing that another entry contains decides how it is read
        return [entry[0] if isinstance(entry, list | tuple) and len(entry) == 1 else entry for entry in data]
    shape: tuple[int, ...] = getattr(data, "shape", (len(data),) if hasattr(data, "__array__") else ())
    if len(shape) == 2 and shape[1] != 1:
        raise InvalidInput(_unnamed(shape[1]))
    if not shape:
        raise InvalidType(
            "sensitive_features must be a data frame, a dict of columns or a vector with one entry per row, "
            f"got {type(data).__name__}"
        )
    return data


def _unnamed(columns: int) -> str:
    return (
        f"sensitive_features is an array of {columns} columns without names; pass a data frame "
        "or a dict such as {'sex': ..., 'race': ...}, so that constraints can name them"
    )


# ------------------------------------------------------------------------------------- sensitive columns


def raw_columns(
    sensitive_features: Any,
    n_rows: int,
    *,
    lone_name: str | None = None,
    needed: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the columns of `sensitive_features` by name as they are given; only their number of entries is checked.

    For private rows: nothing that an entry contains raises an error.

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
    """
    found = _selected(sensitive_features, lone_name, needed)
    uncut = isinstance(sensitive_features, Mapping)
    return {name: _raw(name, column, n_rows, uncut) for name, column in found.items()}


def sensitive_columns(
    sensitive_features: Any,
    n_rows: int,
    *,
    lone_name: str | None = None,
    needed: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the columns by name, none of their entries missing; for public rows. Arguments as in `raw_columns`.

    Returns
    -------
    dict
        Vectors that `Domain.column_codes` and `CompiledConstraints.cells` understand. Categorical columns of
        pandas stay as they are, everything else is a NumPy array.
    """
    found = raw_columns(sensitive_features, n_rows, lone_name=lone_name, needed=needed)
    return {name: _checked(name, column) for name, column in found.items()}


def column_names(sensitive_features: Any) -> set[str]:
    """Return the names of the columns, those of no use included; a vector without a name is "group".

    >>> column_names({"sex": ["F", "M"]})
    {'sex'}
    """
    return set(_selected(sensitive_features, None, None))


def _selected(
    sensitive_features: Any, lone_name: str | None, needed: Collection[str] | None
) -> dict[str, Any]:
    """Return the needed columns by name; a vector without a name is called `lone_name`."""
    found: dict[str, Any] = {}
    if sensitive_features is not None:
        found = named_columns(sensitive_features, "sensitive_features", lone_name or LONE_NAME)
    if needed is None:
        return found
    absent = [name for name in sorted(needed) if name not in found]
    listed = f"column{'s' if len(absent) > 1 else ''} {list_values(absent)}"
    if absent and sensitive_features is None:
        raise InvalidInput(
            f"sensitive_features is missing, but the constraints read {listed}; "
            "pass the groups with sensitive_features=..., one row per sample"
        )
    if absent:
        raise InvalidInput(
            f"sensitive_features lacks {listed}, which the constraints read; its columns are {list_values(found)}"
        )
    return {name: column for name, column in found.items() if name in needed}


def _raw(name: str, column: Any, n_rows: int, uncut: bool) -> Any:
    """Return a column after a check of its shape."""
    column = _vector(column, f"column {name!r} of sensitive_features")
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
    return column


def _vector(data: Any, what: str) -> Any:
    """Return a column as it is given, without the second axis of an array of one column; entries are not read."""
    if not hasattr(data, "__len__") or isinstance(data, _NO_VECTOR):
        raise InvalidType(f"{what} must be a vector with one entry per row, got {type(data).__name__}")
    shape: tuple[int, ...] = np.shape(data) if hasattr(data, "shape") else (len(data),)
    if len(shape) == 2 and shape[1] == 1:
        return data.iloc[:, 0] if hasattr(data, "iloc") else np.asarray(data)[:, 0]
    if len(shape) != 1:
        raise InvalidType(
            f"{what} must be a vector with one entry per row, got an array of {len(shape)} dimensions"
        )
    return data


def _checked(name: str, data: Any) -> Any:
    column = as_column(data, f"column {name!r} of sensitive_features")
    try:
        missing = has_missing(column)
    except InvalidType:
        raise InvalidType(
            f"column {name!r} of sensitive_features holds entries that are no scalars but unhashable things "
            "such as lists; a group is one text or number"
        ) from None
    if missing:
        raise InvalidInput(
            f"sensitive_features holds missing values in column {name!r}; drop those rows, or give them "
            "a group of their own such as 'unknown'"
        )
    return np.asarray(column) if isinstance(column, np.ma.MaskedArray) else column


# ------------------------------------------------------------------------------------------ public rows


def as_column(data: Any, what: str) -> Any:
    """Return one column as a vector: pandas categoricals as they are, everything else as a NumPy array."""
    if _is_categorical(data):
        return data
    column = _vector(
        np.asarray(data) if hasattr(data, "__array__") and not hasattr(data, "__len__") else data, what
    )
    if isinstance(column, list | tuple):
        # np.asarray would turn a mix such as [1, "a"] into text
        return np.fromiter(column, dtype=object, count=len(column))
    return column if isinstance(column, np.ma.MaskedArray) else np.asarray(column)


def has_missing(column: Any) -> bool:
    """Return whether a column made by `as_column` holds missing values: None, NaN, NaT, NA or masked."""
    if _is_categorical(column):
        return bool((np.asarray(column.cat.codes) < 0).any())
    if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):
        return True
    if column.dtype.kind in "fcmM":
        return bool((np.isnat if column.dtype.kind in "mM" else np.isnan)(column).any())
    return column.dtype.kind == "O" and any(map(_is_missing, _entries(column)))


def _is_categorical(data: Any) -> bool:
    category = getattr(data, "cat", None)
    return hasattr(category, "codes") and hasattr(category, "categories")


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _entries(column: Any) -> set[Any]:
    """Return the distinct entries of a column; text is looked at in parts, which needs no second copy."""
    if _is_categorical(column):
        present = np.unique(np.asarray(column.cat.codes))
        return set(np.asarray(column.cat.categories)[present[present >= 0]].tolist())
    if column.dtype.kind in "biuf":
        return set(np.unique(column).tolist())
    seen: set[Any] = set()
    try:
        for start in range(0, len(column), _CHUNK):
            seen.update(column[start : start + _CHUNK].tolist())
    except TypeError:
        raise InvalidType("a column holds entries that are no scalars (unhashable)") from None
    return seen


def read_domain(
    columns: Mapping[str, Any],
    labels: Any,
    classes: Iterable[Any] | None = None,
    group_values: Mapping[str, Any] | None = None,
    *,
    numeric: Collection[str] = (),
) -> Domain:
    """Return the domain; what is not declared is read off the data. Not for private rows.

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
    numeric : collection of str
        Columns of which only intervals are named (see `interval_columns`): numeric without a look.
    """
    declared = declared_values(group_values)
    refuse_misspelt(declared, columns, numeric)
    if classes is None:
        classes = distinct(as_column(labels, "y"), "y")
    values: dict[str, Any] = {}
    for name, column in columns.items():
        if name in declared:
            values[name] = declared[name]
        else:
            values[name] = Numeric() if name in numeric else distinct_or_numeric(column, f"column {name!r}")
    return Domain(declared_classes(classes), values)


def distinct(column: Any, what: str) -> tuple[Any, ...]:
    """Return the distinct entries of a vector as Python scalars, sorted. It reads rows."""
    found = _entries(column)
    if any(map(_is_missing, found)):
        raise InvalidInput(f"{what} holds missing values; drop those rows or fill them")
    return tuple(in_order({scalar(**{what: value}) for value in found}))


def distinct_or_numeric(column: Any, what: str) -> tuple[Any, ...] | Numeric:
    """Return the distinct entries, or ``Numeric()`` for a column of many distinct floats. It reads rows."""
    if not _is_categorical(column) and column.dtype.kind == "f" and len(np.unique(column)) > MOST_FLOATS:
        return Numeric()
    entries = distinct(column, what)
    many = len(entries) > MOST_FLOATS and any(isinstance(value, float) for value in entries)
    return Numeric() if many and all(isinstance(value, int | float) for value in entries) else entries


def declared_values(group_values: Any) -> dict[str, Any]:
    """Return declared values by column; None declares nothing."""
    if group_values is None:
        return {}
    if not isinstance(group_values, Mapping):
        raise InvalidType(
            f"group_values must map column names to their values, got {type(group_values).__name__}; "
            "write {'sex': ('Female', 'Male')}"
        )
    return {_column_name(name, "group_values"): _listed(values) for name, values in group_values.items()}


def refuse_misspelt(declared: Mapping[str, Any], columns: Mapping[str, Any], fine: Collection[str]) -> None:
    """Raise if values are declared for a column that is nowhere while those of another are not declared."""
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


def declared_classes(classes: Any) -> Any:
    """Return declared classes in sorted order, as scikit-learn's ``classes_``."""
    _refuse_iterator("classes", classes)
    if isinstance(classes, str | bytes | Mapping) or not isinstance(classes, Iterable):
        return classes  # refused by Domain, with the reason
    return in_order(scalar(classes=value) for value in classes)


# ------------------------------------------------------------------------- what declarations read


def needed_columns(constraints: Any) -> set[str] | None:
    """Return the columns that the declarations read; None if some family names none, which means all.

    >>> from ratewise.constraints.families import demographic_parity, false_negative_rate
    >>> sorted(needed_columns([demographic_parity("sex", max_gap=0.1), false_negative_rate(0.2, by="race")]))
    ['race', 'sex']
    >>> needed_columns(demographic_parity(max_gap=0.1)) is None
    True
    """
    named = named_values(constraints)
    return None if named.all_columns else set(named.columns)


def interval_columns(constraints: Any) -> set[str]:
    """Return the columns of which the declarations only name intervals, so that no value need be known.

    >>> from ratewise.constraints.predicates import below, group
    >>> from ratewise.constraints.rates import rate
    >>> interval_columns(rate(1, where=group(age=below(25), sex="F")) <= 0.3)
    {'age'}
    """
    return set(named_values(constraints).numeric)


# ---------------------------------------------------------------------------------------------- features


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Columns of features.

    Attributes
    ----------
    names : tuple of str
        Column names; ``x0``, ``x1``, ... for arrays.
    named : bool
        Whether the names are the user's.
    n_rows : int
    columns : tuple
        One vector per column; empty for a sparse matrix.
    array : numeric array or None
        The columns as one array, if they came as one.
    sparse : CSR matrix or None
    """

    names: tuple[str, ...]
    named: bool
    n_rows: int
    columns: tuple[Any, ...] = ()
    array: npt.NDArray[Any] | None = None
    sparse: Any = None

    @property
    def mapped(self) -> bool:
        """Whether the features lie in a file that is not to be read into memory as a whole."""
        array: Any = self.array
        while array is not None:
            if isinstance(array, np.memmap):
                return True
            array = getattr(array, "base", None)
        return False

    def column(self, name: str) -> Any:
        """Return a column by name."""
        return self.columns[self.names.index(name)]


def read_features(X: Any, *, expected: Sequence[str] | None = None) -> FeatureTable:
    """Return features as columns.

    Parameters
    ----------
    X : data frame, mapping of columns, two-dimensional array, list of rows, or sparse matrix
    expected : sequence of str, optional
        Names of the columns that a model was trained on: a table with names may have them in another order,
        and may have more columns, which are ignored.
    """
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    if sp.issparse(X):  # one of the sparse formats is a mapping too
        return _array(X, expected)
    fields = getattr(getattr(X, "dtype", None), "names", None)
    if isinstance(X, Mapping) or hasattr(X, "columns") or hasattr(X, "column_names") or fields:
        return _frame(X, expected)
    return _array(X, expected)


def _frame(X: Any, expected: Sequence[str] | None) -> FeatureTable:
    if hasattr(X, "iloc") and len({isinstance(name, str) for name in X.columns}) > 1:
        raise InvalidType(
            "Feature names are only supported if all input features have string names, but your input has "
            "names of several types. If you want feature names to be stored and validated, you must convert "
            "them all to strings, by using X.columns = X.columns.astype(str)."
        )
    found = named_columns(X, "X")
    if not found:
        raise InvalidInput("0 feature(s) (X has no columns) while a minimum of 1 is required.")
    for name, column in found.items():
        if getattr(column, "ndim", 1) != 1:
            raise InvalidInput(f"column {name!r} of X must be one-dimensional")
        if getattr(getattr(column, "dtype", None), "kind", "") == "c":
            raise InvalidInput(
                f"Complex data not supported: column {name!r} of X holds complex numbers; pass real and "
                "imaginary parts"
            )
        found[name] = column if hasattr(column, "__len__") else list(column)
    lengths = {len(column) for column in found.values()}
    if len(lengths) > 1:
        raise InvalidInput(f"the columns of X have different lengths: {sorted(lengths)}")
    (n_rows,) = lengths
    _refuse_empty(n_rows, len(found))
    absent = [name for name in expected or () if name not in found]
    if absent:
        raise InvalidInput(
            f"X lacks the column{'s' if len(absent) > 1 else ''} {', '.join(map(repr, absent[:5]))} that the "
            "model was trained on. The feature names should match those that were passed during fit."
        )
    names = tuple(expected or found)
    return FeatureTable(names, True, n_rows, tuple(found[name] for name in names))


def _array(X: Any, expected: Sequence[str] | None) -> FeatureTable:
    sparse = sp.issparse(X)
    array = X if sparse else None if isinstance(X, _NO_VECTOR) or X is None else _as_array(X)
    if array is None or (array.ndim == 0 and array.dtype.kind == "O"):
        raise InvalidType(
            f"X must be a table: a data frame, a two-dimensional array or a sparse matrix, got {type(X).__name__}"
        )
    if array.dtype.kind == "c":
        raise InvalidInput(
            "Complex data not supported: X holds complex numbers; pass real and imaginary parts"
        )
    if array.ndim != 2:
        raise InvalidInput(
            f"Expected 2D array, got {array.ndim}D array instead. Reshape your data either using "
            "array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it contains a "
            "single sample."
        )
    n_rows, n_columns = array.shape
    _refuse_empty(n_rows, n_columns)
    names = tuple(expected or (f"x{place}" for place in range(n_columns)))
    if len(names) != n_columns:
        raise InvalidInput(
            f"X has {n_columns} features, but RateConstrainedClassifier is expecting {len(names)} features as input."
        )
    if (
        sparse
    ):  # repeated entries of a row are added in double precision, whatever type other rows give the matrix
        return FeatureTable(names, False, n_rows, sparse=sp.csr_array(array.astype(np.float64, copy=False)))
    columns = tuple(array[:, place] for place in range(n_columns))
    return FeatureTable(names, False, n_rows, columns, array if array.dtype.kind in "biuf" else None)


def _as_array(X: Any) -> npt.NDArray[Any]:
    """Return a table as an array. Cells of a list of rows stay what they are, and are not looked at."""
    listed = isinstance(X, list | tuple)
    if not listed or not all(hasattr(row, "__len__") and not isinstance(row, _NO_VECTOR) for row in X):
        return np.asarray(X)
    X = [row if isinstance(row, list | tuple) else np.asarray(row) for row in X]
    arrays = all(isinstance(row, np.ndarray) for row in X)
    if len({row.shape if arrays else len(row) for row in X}) > 1:
        raise InvalidInput("the rows of X have different lengths; X must be a table")
    if not X or (arrays and len({row.dtype for row in X}) == 1):
        return np.asarray(X)
    cells = [cell for row in X for cell in row]
    return np.fromiter(cells, dtype=object, count=len(cells)).reshape(len(X), -1)


def _refuse_empty(n_rows: int, n_columns: int) -> None:
    shape = f"(shape=({n_rows}, {n_columns}))"
    if n_columns == 0:
        raise InvalidInput(f"0 feature(s) {shape} while a minimum of 1 is required.")
    if n_rows == 0:
        raise InvalidInput(f"Found array with 0 sample(s) {shape} while a minimum of 1 is required.")


def read_vector(values: Any, n_rows: int, what: str) -> Any:
    """Return a vector with one entry per row; only its shape can be wrong."""
    if values is None:
        raise InvalidInput(f"fit requires {what} to be passed, but the target {what} is None")
    found = values
    if not hasattr(found, "__len__") and hasattr(found, "__array__"):
        found = np.asarray(found)
    if not hasattr(found, "__len__") or isinstance(found, str | bytes | Mapping):
        raise InvalidType(f"{what} must be a vector with one entry per row, got {type(values).__name__}")
    if isinstance(found, list | tuple):
        # numbers beside text stay what they are
        found = np.fromiter(found, dtype=object, count=len(found))
    shape = tuple(np.shape(found)) if hasattr(found, "shape") else (len(found),)
    if len(shape) == 2 and shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(
            f"A column-vector {what} was passed when a 1d array was expected; pass {what}.ravel()",
            DataConversionWarning,
            stacklevel=5,
        )
        found = found.iloc[:, 0] if hasattr(found, "iloc") else np.asarray(found)[:, 0]
    elif len(shape) != 1:
        raise InvalidInput(f"{what} should be a 1d array, got an array of shape {shape} instead.")
    if len(found) != n_rows:
        raise InvalidInput(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows, {what} has {len(found)}"
        )
    return found


# ------------------------------------------------------------------------------------- labels and groups


LABEL = "label"
"""The name under which undeclared classes are found; the columns are found as ``group <name>``."""


def code_labels(labels: Any, domain: Domain) -> NDArray[Any]:
    """Return the place of each label among the classes, -1 for others; each cell by itself, however it is stored."""
    return np.maximum(code_cells(labels, domain.classes), -1)


def code_groups(columns: Mapping[str, Any], domain: Domain) -> dict[str, NDArray[Any]]:
    """Return the columns of a domain as `CompiledConstraints.code_cells` takes them, each cell by itself.

    Undeclared and missing values are "other": the code after the last. Numeric columns are numbers, NaN where
    there is no finite one.
    """
    coded: dict[str, NDArray[Any]] = {}
    for name, values in domain.columns.items():
        if isinstance(values, Numeric):
            numbers = parse_number(columns[name]).values
            coded[name] = np.where(np.isfinite(numbers), numbers, np.nan)
        else:
            places = code_cells(columns[name], values)
            coded[name] = np.where(places < 0, len(values), places)
    return coded


class LabelledRows:
    """Labels and sensitive columns of n rows, with what is publicly known about them.

    Parameters
    ----------
    constraints : any form of declarations, or None
    y : (n,) column
        Labels.
    sensitive_features : data frame, mapping, vector or None
        Only columns that constraints read are kept (all of them without constraints).
    classes, group_values : optional
        Declared classes and values of columns. Values that constraints name count as declared.
    """

    def __init__(
        self,
        constraints: Any,
        y: Any,
        sensitive_features: Any,
        classes: Iterable[Any] | None = None,
        group_values: Mapping[str, Any] | None = None,
    ) -> None:
        self.declarations = as_constraints(constraints)
        if y is None:
            raise InvalidInput("y is missing; pass one label per row")
        self.n_rows = len(y)
        if not self.n_rows:
            raise InvalidInput("y is empty; at least one row is needed")
        named = named_values(self.declarations)
        needed = None if named.all_columns or not self.declarations else set(named.columns)
        lone = next(iter(needed)) if needed and len(needed) == 1 else None
        self._y = y
        self._columns = raw_columns(sensitive_features, self.n_rows, lone_name=lone, needed=needed)
        self._classes = None if classes is None else declared_classes(classes)
        declared = declared_values(group_values)
        by_family = {name for item in self.declarations if isinstance(item, Family) for name in item.columns}
        self._values: dict[str, Any] = {}
        for name in self._columns:
            if name in declared:
                self._values[name] = declared[name]
            elif name in named.numeric:
                self._values[name] = Numeric()
            elif named.columns.get(name) and name not in by_family and not named.all_columns:
                self._values[name] = named.columns[name]
        self._named = {LABEL: named.classes, **{f"group {n}": v for n, v in named.columns.items()}}
        if self._classes is not None:
            Domain(self._classes, self._values, other=True)  # validates what is declared

    @property
    def unknown(self) -> dict[str, Any]:
        """The columns whose values are not declared, by the names under which they are to be found."""
        found = {
            f"group {name}": column for name, column in self._columns.items() if name not in self._values
        }
        return found if self._classes is not None else {LABEL: self._y, **found}

    @property
    def named(self) -> dict[str, tuple[Any, ...]]:
        """Public values by the names of `unknown`."""
        return self._named

    def domain(self, found: Mapping[str, tuple[Any, ...]]) -> Domain:
        """Return the domain, with the values that were found for `unknown`."""
        classes = self._classes if self._classes is not None else found[LABEL]
        if len(classes) < 2:
            raise InvalidInput(
                f"only {len(classes)} class is frequent enough to be found within this budget; declare classes=..."
            )
        values = {name: self._values.get(name, found.get(f"group {name}")) for name in self._columns}
        return Domain(classes, {name: of or () for name, of in values.items()}, other=True)

    def labels(self, domain: Domain) -> NDArray[Any]:
        """Return the codes of the labels, -1 for undeclared ones."""
        return code_labels(self._y, domain)

    def cells(self, compiled: CompiledConstraints, labels: NDArray[Any]) -> NDArray[Any]:
        """Return the cell of each row, -1 for rows in no cell."""
        return compiled.code_cells(labels, code_groups(self._columns, compiled.domain), coded=True)

    def group_codes(self, domain: Domain, sensitive_features: Any, n_rows: int) -> dict[str, NDArray[Any]]:
        """Return codes of the same columns of other rows, as for a prediction."""
        only = next(iter(self._columns)) if len(self._columns) == 1 else None
        columns = raw_columns(sensitive_features, n_rows, lone_name=only, needed=set(self._columns))
        return code_groups(columns, domain)

    def forget(self) -> LabelledRows:
        """Return what codes other rows, without any of these rows."""
        other = object.__new__(LabelledRows)
        other.__dict__.update(vars(self))
        other._y = np.empty(0)
        other._columns = {name: np.empty(0) for name in self._columns}
        return other
