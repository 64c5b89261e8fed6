"""Tables as users pass them: features, groups, labels and units of privacy, in any frame, array or mapping.

Neither pandas nor polars is imported: a table is known by its methods. For private rows (`read_features`, `raw_columns`,
`code_ids`) only structure (shape, names, complex storage) can be an error; the content of a cell never
is. `sensitive_columns` and `read_domain` are for public rows: they raise on missing values and read undeclared values
off the data. Messages name columns, never the value of a row nor how many rows are amiss.

A unit of privacy is one row, or all rows of one id. The number of units is public; the rows of an id are private, and
so is their number.

>>> columns = sensitive_columns({"sex": ["F", "M", "F"]}, 3)
>>> read_domain(columns, [0, 1, 1]).columns
{'sex': ('F', 'M')}
>>> named_columns({"age": [31, 45], "job": ["clerk", "sales"]}, "X")["job"]
['clerk', 'sales']
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain, Numeric, in_order, list_values, scalar
from ratewise.data.cells import (
    MISSING_TEXT,
    NUMBER,
    UNREADABLE_TEXT,
    code_cells,
    number_of_text,
    parse_ids,
    parse_number,
    parse_text,
    refuse_ambiguous,
    stored_column,
)
from ratewise.exceptions import InvalidInput, InvalidType

LONE_NAME = "group"
MOST_FLOATS = 50  # distinct floats up to which a column is taken for a list of groups

_ROWS_AT_ONCE = 1 << 17
_NO_VECTOR = (str, bytes, Mapping, set, frozenset)


@dataclass(frozen=True)
class Finding:
    """One thing that was found out about a file or a table, for its owner to confirm."""

    topic: str  # what it is about, such as "separator" or "identifier"
    message: str  # a plain sentence, or a few
    option: str | None = None  # the argument that overrides what was decided: "sep" is `--sep` on the command line
    column: str | None = None
    severe: bool = False  # whether the owner must decide something before the table can be used

    def __str__(self) -> str:
        return self.message if self.option is None else f"{self.message} (To change it: {self.option}=.)"

    def for_command_line(self) -> str:
        """Return the message with the option in the terms of the command line."""
        if self.option is None:
            return self.message
        return f"{self.message} (To change it: --{self.option.replace('_', '-')}.)"


# ------------------------------------------------------------------------------------- columns by name


def named_columns(table: Any, what: str, lone_name: str | None = None) -> dict[str, Any]:
    """Return the columns of a frame, Arrow table, mapping of columns or record array by name.

    Names that are whole numbers become text; `what` is the argument, for messages. A vector without a name is called
    `lone_name`, or refused without one.
    """
    found: dict[str, Any] = {}
    for name, column in _columns(table, what, lone_name):
        text = _column_name(name, what)
        if text in found:
            raise InvalidInput(f"{what} has two columns named {text!r}; rename one of them")
        found[text] = column
    return found


def _columns(table: Any, what: str, lone_name: str | None) -> Iterable[tuple[Any, Any]]:
    if hasattr(table, "collect") and not hasattr(table, "shape"):
        raise InvalidType(f"{what} is a lazy frame; call .collect() on it first")
    fields = getattr(getattr(table, "dtype", None), "names", None)
    if isinstance(table, Mapping):
        return table.items()
    if hasattr(table, "iloc") and hasattr(table, "columns"):  # by position: names may repeat
        return ((name, table.iloc[:, place]) for place, name in enumerate(table.columns))
    if hasattr(table, "column_names"):
        return zip(table.column_names, table.columns, strict=True)
    if hasattr(table, "columns") or fields:
        return ((name, table[name]) for name in fields or table.columns)
    if lone_name is None:
        raise InvalidType(
            f"{what} must be a table with named columns (a data frame, a mapping of columns), "
            f"got {type(table).__name__}"
        )
    name = getattr(table, "name", None)
    return [(lone_name if name is None or name == "" or callable(name) else name, _lone_column(table))]


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
    shape: tuple[int, ...] = getattr(data, "shape", (len(data),) if hasattr(data, "__array__") else ())
    if isinstance(data, list | tuple):
        data = list(map(_plain_row, data))
        widths = {len(row) if type(row) is list or (type(row) is np.ndarray and row.ndim) else 1 for row in data}
        shape = (len(data), *widths) if len(widths) == 1 else (len(data), 1)
        # a row of one entry is that entry; nothing that another entry contains decides how it is read
        data = [row[0] if type(row) is list and len(row) == 1 else row for row in data]
    if len(shape) == 2 and shape[1] != 1:
        raise InvalidInput(
            f"sensitive_features is an array of {shape[1]} columns without names; pass a data frame "
            "or a dict such as {'sex': ..., 'race': ...}, so that constraints can name them"
        )
    if not shape:
        raise InvalidType(
            "sensitive_features must be a data frame, a dict of columns or a vector with one entry per row, "
            f"got {type(data).__name__}"
        )
    return data


def _plain_row(row: Any) -> Any:
    """Return a list or tuple as a list, and anything else as it is; no code of a class of the user's own runs."""
    for base in (list, tuple):
        if issubclass(type(row), base):
            return list(base.__iter__(row))
    return row


def _vector(data: Any, what: str) -> Any:
    """Return a column without the second axis of an array of one column; entries are not looked at."""
    if not hasattr(data, "__len__") and hasattr(data, "__array__"):
        data = np.asarray(data)
    if not hasattr(data, "__len__") or isinstance(data, _NO_VECTOR):
        raise InvalidType(f"{what} must be a vector with one entry per row, got {type(data).__name__}")
    if isinstance(data, list | tuple):  # np.asarray would turn a mix such as [1, "a"] into text
        return np.fromiter(data, dtype=object, count=len(data))
    shape: tuple[int, ...] = np.shape(data) if hasattr(data, "shape") else (len(data),)
    if len(shape) == 2 and shape[1] == 1:
        return data.iloc[:, 0] if hasattr(data, "iloc") else np.asanyarray(data)[:, 0]
    if len(shape) != 1:
        raise InvalidType(f"{what} must be a vector with one entry per row, got an array of {len(shape)} dimensions")
    return data


def read_vector(values: Any, n_rows: int, what: str) -> Any:
    """Return a vector with one entry per row; only its shape can be wrong."""
    if values is None:
        raise InvalidInput(f"fit requires {what} to be passed, but the target {what} is None")
    shape: tuple[int, ...] = tuple(getattr(values, "shape", (0,)))
    if len(shape) > 1 and shape[1:] != (1,):
        raise InvalidInput(f"{what} should be a 1d array, got an array of shape {shape} instead.")
    if len(shape) > 1:
        from sklearn.exceptions import DataConversionWarning

        said = f"A column-vector {what} was passed when a 1d array was expected; pass {what}.ravel()"
        warnings.warn(said, DataConversionWarning, stacklevel=5)
    found = _vector(values, what)
    if len(found) != n_rows:
        raise InvalidInput(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows, {what} has {len(found)}"
        )
    return found


# ------------------------------------------------------------------------------------- sensitive columns


def raw_columns(sensitive_features: Any, n_rows: int, needed: Collection[str] | None = None) -> dict[str, Any]:
    """Return the columns of `sensitive_features` by name as they are given; only their number of entries is checked.

    For private rows: nothing that an entry contains raises an error. Columns that are not `needed` are neither checked
    nor returned; None keeps all. A vector without a name of its own is the one column that is needed, or "group".
    """
    given: dict[str, Any] = {}
    if sensitive_features is not None:
        lone_name = next(iter(needed)) if needed and len(needed) == 1 else LONE_NAME
        given = named_columns(sensitive_features, "sensitive_features", lone_name)
    absent = [name for name in sorted(needed or ()) if name not in given]
    if absent:
        listed = f"column{'s' if len(absent) > 1 else ''} {list_values(absent)}"
        if sensitive_features is None:
            said = f"is missing, but the constraints read {listed}; pass the groups, one row per sample"
        else:
            said = f"lacks {listed}, which the constraints read; its columns are {list_values(given)}"
        raise InvalidInput(f"sensitive_features {said}")
    names = [name for name in given if needed is None or name in needed]
    found = {name: _vector(given[name], f"column {name!r} of sensitive_features") for name in names}
    for name, column in found.items():
        if len(column) != n_rows:
            # scikit-learn splits what has as many entries as there are rows; a dict has as many as columns
            hint = (
                "; inside GridSearchCV or cross_validate pass a data frame (or a record array) rather than a "
                "dict, which scikit-learn does not split"
            )
            unsplit = isinstance(sensitive_features, Mapping) and len(column) > n_rows
            raise InvalidInput(
                f"sensitive_features must have one entry per row of the data: column {name!r} has {len(column)}, "
                f"expected {n_rows}{hint if unsplit else ''}"
            )
    return found


def column_names(sensitive_features: Any) -> set[str]:
    """Return the names of the columns, those of no use included; a vector without a name is "group"."""
    return set(named_columns(sensitive_features, "sensitive_features", LONE_NAME))


def declared_values(group_values: Any) -> dict[str, Any]:
    """Return declared values by column; None declares nothing."""
    if group_values is None:
        return {}
    if not isinstance(group_values, Mapping):
        raise InvalidType(
            f"group_values must map column names to their values, got {type(group_values).__name__}; "
            "write {'sex': ('Female', 'Male')}"
        )
    found = {}
    for name, values in group_values.items():
        _refuse_iterator("group_values", values)
        # values without an order are sorted, so that every run sees the same domain
        ordered = in_order(values) if isinstance(values, set | frozenset) else values
        found[_column_name(name, "group_values")] = ordered
    return found


def declared_classes(classes: Any) -> Any:
    """Return declared classes in sorted order, as scikit-learn's ``classes_``."""
    _refuse_iterator("classes", classes)
    if isinstance(classes, str | bytes | Mapping) or not isinstance(classes, Iterable):
        return classes  # refused by Domain, with the reason
    return in_order(scalar(classes=value) for value in classes)


def declared_domain(classes: Any, group_values: Any = None, *, other: bool = False) -> Domain:
    """Return the domain of declared classes and group values; raise if cells cannot tell two of them apart."""
    domain = Domain(declared_classes(classes), declared_values(group_values), other=other)
    refuse_ambiguous("classes", domain.classes)
    for name, values in domain.columns.items():
        refuse_ambiguous(f"column {name!r}", () if isinstance(values, Numeric) else values)
    return domain


def _refuse_iterator(name: str, values: Any) -> None:
    if isinstance(values, Iterator):
        raise InvalidType(f"{name} must be a list or tuple: an iterator can be read only once")


def refuse_misspelt(declared: Mapping[str, Any], columns: Mapping[str, Any], fine: Collection[str]) -> None:
    """Raise if values are declared for a column that is nowhere while those of another are not declared."""
    unknown = [name for name in declared if name not in columns and name not in fine]
    if unknown and any(name not in declared for name in columns):
        raise InvalidInput(
            f"group_values declares column {unknown[0]!r}, but the columns of sensitive_features are "
            f"{list_values(columns)}"
        )


# ------------------------------------------------------------------------------------------ public rows


def sensitive_columns(sensitive_features: Any, n_rows: int, needed: Collection[str] | None = None) -> dict[str, Any]:
    """Return the columns by name, none of their cells missing; for public rows. Arguments as in `raw_columns`."""
    found = raw_columns(sensitive_features, n_rows, needed)
    for name, column in found.items():
        hint = "or give them a group of their own such as 'unknown'"
        known_texts(column, f"sensitive_features: column {name!r}", hint)
    return found


def known_texts(column: Any, what: str, hint: str = "or fill them") -> NDArray[np.object_]:
    """Return the canonical texts of a public column; raise if a cell is missing or no scalar."""
    texts = parse_text(_vector(column, what))
    if (texts == UNREADABLE_TEXT).any():
        raise InvalidType(f"{what} holds entries that are no scalars, such as lists; give one text or number per row")
    if (texts == MISSING_TEXT).any():
        raise InvalidInput(f"{what} holds missing values; drop those rows, {hint}")
    return texts


def read_domain(
    columns: Mapping[str, Any],
    labels: Any,
    classes: Iterable[Any] | None = None,
    group_values: Mapping[str, Any] | None = None,
    *,
    numeric: Collection[str] = (),
) -> Domain:
    """Return the domain; what is not declared is read off the data. Not for private rows.

    `columns` are those of `sensitive_columns`; `labels` are read only if `classes` is None; columns of which only
    intervals are named (`named_values`) are `numeric` without a look.
    """
    declared = declared_values(group_values)
    refuse_misspelt(declared, columns, numeric)
    values: dict[str, Any] = {**dict.fromkeys(numeric, Numeric()), **declared}
    known = {name: values[name] if name in values else distinct_or_numeric(columns[name], name) for name in columns}
    return declared_domain(distinct(labels, "y") if classes is None else classes, known)


def distinct(column: Any, what: str) -> tuple[Any, ...]:
    """Return the distinct values of a public column as Python scalars, sorted; cells of equal text are one value."""
    places = {text: place for place, text in enumerate(known_texts(column, what).tolist())}
    stored, rows = stored_column(column), list(places.values())
    if not isinstance(stored, np.ndarray):
        stored = np.asarray(stored.entries, dtype=object)[stored.places[rows]]
    else:
        stored = np.array(list(places), dtype=object) if stored.dtype.kind in "mM" else stored[rows]
    return tuple(in_order(scalar(**{what: value}) for value in stored.tolist()))


def distinct_or_numeric(column: Any, name: str) -> tuple[Any, ...] | Numeric:
    """Return the distinct values, or ``Numeric()`` for a column of many distinct floats. It reads rows."""
    values = distinct(column, f"column {name!r}")
    many = len(values) > MOST_FLOATS and any(isinstance(value, float) for value in values)
    return Numeric() if many and all(isinstance(value, int | float) for value in values) else values


# ---------------------------------------------------------------------------------------------- features


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Columns of features."""

    names: tuple[str, ...]  # x0, x1, ... for arrays
    named: bool  # whether the names are the user's
    n_rows: int
    columns: tuple[Any, ...] = ()  # one vector per column; empty for a sparse matrix
    array: NDArray[Any] | None = None  # the columns as one numeric array, if they came as one
    sparse: Any = None  # a CSR matrix

    @property
    def mapped(self) -> bool:
        """Whether the features lie in a file that is not to be read into memory as a whole."""
        array: Any = self.array
        while array is not None and not isinstance(array, np.memmap):
            array = getattr(array, "base", None)
        return array is not None

    def column(self, name: str) -> Any:
        """Return a column by name."""
        return self.columns[self.names.index(name)]

    def without(self, left_out: Collection[str]) -> FeatureTable:
        """Return the table without some of its named columns."""
        if not self.named or not set(left_out) & set(self.names):
            return self
        kept = {name: part for name, part in zip(self.names, self.columns, strict=True) if name not in left_out}
        if not kept:
            raise InvalidInput("the schema leaves out every column of X; name at least one feature")
        return replace(self, names=tuple(kept), columns=tuple(kept.values()))


def read_features(X: Any, *, expected: Sequence[str] | None = None) -> FeatureTable:
    """Return a frame, mapping of columns, two-dimensional array, list of rows or sparse matrix as columns.

    `expected` are the names of the columns that a model was trained on: a table with names may have them in another
    order, and may have more columns, which are ignored.
    """
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    fields = getattr(getattr(X, "dtype", None), "names", None)
    named = isinstance(X, Mapping) or hasattr(X, "columns") or hasattr(X, "column_names") or fields
    # one of the sparse formats is a mapping too
    return _frame(X, expected) if named and not sp.issparse(X) else _array(X, expected)


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
        _refuse_complex(column, f"column {name!r} of X")
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
    _refuse_complex(array, "X")
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
    if sparse:  # repeated entries are added in double precision, whatever type others give the matrix
        return FeatureTable(names, False, n_rows, sparse=sp.csr_array(array.astype(np.float64, copy=False)))
    columns = tuple(array[:, place] for place in range(n_columns))
    return FeatureTable(names, False, n_rows, columns, array if array.dtype.kind in "biuf" else None)


def _as_array(X: Any) -> NDArray[Any]:
    """Return a table as an array. Cells of a list of rows stay what they are, and are not looked at."""
    listed = isinstance(X, list | tuple)
    if isinstance(X, np.ma.MaskedArray):
        known = np.fromiter(X.data.flat, dtype=object, count=X.size).reshape(X.shape)
        known[np.ma.getmaskarray(X)] = None  # masked cells are missing
        return known
    if not listed or not all(hasattr(row, "__len__") and not isinstance(row, _NO_VECTOR) for row in X):
        return np.asarray(X)
    X = [row if isinstance(row, list | tuple) else _as_array(row) for row in X]
    arrays = all(isinstance(row, np.ndarray) for row in X)
    if len({row.shape if arrays else len(row) for row in X}) > 1:
        raise InvalidInput("the rows of X have different lengths; X must be a table")
    if not X or (arrays and len({row.dtype for row in X}) == 1):
        return np.asarray(X)
    cells = [cell for row in X for cell in row]
    return np.fromiter(cells, dtype=object, count=len(cells)).reshape(len(X), -1)


def _refuse_complex(column: Any, what: str) -> None:
    if getattr(getattr(column, "dtype", None), "kind", "") == "c":
        raise InvalidInput(f"Complex data not supported: {what} holds complex numbers; pass real and imaginary parts")


def _refuse_empty(n_rows: int, n_columns: int) -> None:
    for count, what in ((n_columns, "0 feature(s)"), (n_rows, "Found array with 0 sample(s)")):
        if not count:
            raise InvalidInput(f"{what} (shape=({n_rows}, {n_columns})) while a minimum of 1 is required.")


# ------------------------------------------------------------------------------------- labels and groups


def code_labels(labels: Any, domain: Domain) -> NDArray[Any]:
    """Return the place of each label among the classes, -1 for others; each cell by itself, however it is stored."""
    return np.maximum(code_cells(labels, domain.classes), -1)


def code_groups(columns: Mapping[str, Any], domain: Domain) -> dict[str, NDArray[Any]]:
    """Return the columns of a domain as `CompiledConstraints.code_cells` takes them, each cell by itself.

    Undeclared and missing values are "other": the code after the last. Numeric columns are numbers, NaN where
    there is no finite one.

    >>> domain = Domain((0, 1), {"sex": ("F", "M"), "age": Numeric()})
    >>> code_groups({"sex": ["M", None, "F", ["a", "list"]], "age": [31, "42", None, float("inf")]}, domain)
    {'sex': array([1, 2, 0, 2]), 'age': array([31., 42., nan, nan])}
    """
    coded: dict[str, NDArray[Any]] = {}
    for name, values in domain.columns.items():
        if name not in columns:  # no constraint reads it
            continue
        if isinstance(values, Numeric):
            numbers = parse_number(columns[name]).values
            coded[name] = np.where(np.isfinite(numbers), numbers, np.nan)
        else:
            places = code_cells(columns[name], values)
            coded[name] = np.where(places < 0, len(values), places)
    return coded


def code_table(
    known: Domain | CompiledConstraints, labels: Any, columns: Mapping[str, Any]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the place of each label among the classes, and the cell of each row (None without constraints); -1 for none.

    No cell of the table is an error.
    """
    compiled = None if isinstance(known, Domain) else known
    domain = known if isinstance(known, Domain) else known.domain
    codes = np.empty(len(labels), dtype=np.min_scalar_type(-len(domain.classes)))
    cells = None if compiled is None else np.empty(len(labels), dtype=np.min_scalar_type(-compiled.n_cells))
    columns = {name: columns[name] for name in domain.columns if name in columns}
    for rows, (label, *groups) in in_parts(labels, *columns.values()):
        codes[rows] = code_labels(label, domain)
        if compiled is not None and cells is not None:
            coded = code_groups(dict(zip(columns, groups, strict=True)), domain)
            cells[rows] = compiled.code_cells(codes[rows], coded)
    return codes, cells


def in_parts(*columns: Any) -> Iterator[tuple[slice, list[Any]]]:
    """Yield columns part by part, with their rows: coding large columns needs little more memory than their codes."""
    for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        yield rows, [column.iloc[rows] if hasattr(column, "iloc") else column[rows] for column in columns]


def code_public(column: Any, values: tuple[Any, ...] | Numeric, what: str) -> NDArray[Any]:
    """Return a column as `code_groups` does, and raise if a cell is undeclared. Not for private rows."""
    if isinstance(values, Numeric):
        numbers = parse_number(column).values
        if not np.isfinite(numbers).all():
            raise InvalidInput(
                f"{what} is numeric, by its declaration or because constraints name intervals of it, but holds missing "
                "values, infinity or entries that are not numbers; convert it (dates into days), or drop those rows"
            )
        return numbers
    codes = code_cells(column, values)
    if codes.size and codes.min() < 0:
        raise InvalidInput(
            f"{what}: some entries are missing or not declared; declared are {list_values(values)}: "
            "declare every value that may occur, or drop those rows"
        )
    return codes


# ------------------------------------------------------------------------------------- units of privacy

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_WEIGHT_BITS = 20


@dataclass(frozen=True, eq=False)
class Units:
    """Which rows belong to which unit.

    Weights bound what an id adds to a histogram to L1 norm 1: ``1 / (rows used)`` per row, so that every person counts
    the same, or ``1 / max_rows``, so that every row does. They are rounded down to multiples of `step`, so that sums of
    them are exact.
    """

    n_units: int  # public
    n_rows: int  # public bound on the number of rows in use
    order: Rows | None = None  # rows in use, those of a unit side by side; None if every row is a unit
    starts: Rows | None = None  # where each unit begins in `order`, and its end
    row_weights: Floats | None = None  # by row of the table; None means 1 for every row in use
    step: float = 1.0  # power of two that all weights are multiples of

    def blocks(self, sample: Rows | None, at_once: int) -> Iterator[tuple[Rows, Rows | None]]:
        """Yield the rows of sampled units, and where each unit starts among them (None: one row each).

        No sample means all units. A unit may have no rows; the start of the last units may then be the number of rows.
        """
        if self.order is None or self.starts is None:
            length = self.n_units if sample is None else len(sample)
            for start in range(0, max(length, 1), at_once):
                stop = min(start + at_once, length)
                yield (np.arange(start, stop) if sample is None else sample[start:stop]), None
            return
        if sample is None:
            sample = np.arange(self.n_units)
        lengths = self.starts[sample + 1] - self.starts[sample]
        ends = np.cumsum(lengths)
        first = 0
        while first < len(sample):
            done = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + at_once, side="right")))
            counts = lengths[first:last]
            begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
            places = np.repeat(self.starts[sample[first:last]] - begins, counts)
            places += np.arange(len(places))
            yield self.order[places], begins
            first = last

    def weights(self, rows: Rows) -> Floats | None:
        """Return the weights of rows; None if all are 1."""
        return None if self.row_weights is None else self.row_weights.take(rows)

    def side_by_side(self) -> Units:
        """Return the same units of a table that has only the rows in use, in the order of `order`."""
        if self.order is None:
            return self
        return replace(self, order=np.arange(len(self.order)), row_weights=self.weights(self.order))

    def table_weights(self, usable: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the weight of every row of the table, 0 for rows that are not in use or not `usable`."""
        if self.order is None:  # every row has weight 1: a byte is enough
            return usable
        found: Floats = np.zeros(len(usable))
        found[self.order] = 1.0 if self.row_weights is None else self.row_weights[self.order]
        return found * usable


def row_units(n_rows: int) -> Units:
    """Return units of one row each."""
    return Units(n_rows, n_rows)


def id_units(
    codes: Rows, n_units: int, max_rows: int, weighting: str, usable: NDArray[np.bool_] | None = None
) -> Units:
    """Return units of the rows with one id: of those `usable`, the first `max_rows` in the order of the table.

    `codes` are the unit numbers of the rows. With weighting "id" every id has total weight 1, with "row" every row has
    weight ``1 / max_rows``. A unit may end up with no row.
    """
    rows = np.arange(len(codes)) if usable is None else np.flatnonzero(usable)
    order = rows[np.argsort(codes[rows], kind="stable")]
    starts = np.searchsorted(codes[order], np.arange(n_units + 1))
    position = np.arange(len(order)) - np.repeat(starts[:-1], np.diff(starts))
    order, used = order[position < max_rows], np.minimum(np.diff(starts), max_rows)
    starts = np.concatenate([[0], np.cumsum(used)])
    if max_rows == 1:  # the same numbers as without ids
        return Units(n_units, n_units, order, starts)
    weights = np.zeros(len(codes))
    count = np.repeat(used, used) if weighting == "id" else np.full(len(order), max_rows)
    step = weight_step(max_rows)
    weights[order] = np.floor(1.0 / (count * step)) * step
    return Units(n_units, n_units * max_rows, order, starts, weights, step)


def join_units(parts: Sequence[Units], first_rows: Rows) -> Units:
    """Return the units of neighbouring parts of a table, whose rows begin at `first_rows`."""
    first, n_units = parts[0], sum(part.n_units for part in parts)
    held = [(part.order, part.starts) for part in parts if part.order is not None and part.starts is not None]
    if not held:
        return replace(first, n_units=n_units)
    places = np.cumsum([0, *(len(order) for order, _ in held)])
    orders = [order + row for (order, _), row in zip(held, first_rows, strict=False)]
    starts = [begins[:-1] + place for (_, begins), place in zip(held, places, strict=False)]
    weights = [part.row_weights for part in parts if part.row_weights is not None]
    return replace(
        first,
        n_units=n_units,
        order=np.concatenate(orders),
        starts=np.append(np.concatenate(starts), places[-1]),
        row_weights=np.concatenate(weights) if weights else None,
    )


def weight_step(max_rows: int) -> float:
    """Return the power of two that weights of rows are multiples of."""
    return 1.0 if max_rows == 1 else 2.0**-_WEIGHT_BITS


def code_ids(ids: Any, *, like_rows: bool = True) -> tuple[Rows, int]:
    """Return a number for the unit of each row, and the number of units; rows without an id are one unit.

    Two rows belong to one unit exactly if the texts of their ids are equal (`parse_ids`). Whole numbers are compared in
    double precision, however they are stored: one missing id turns a column of integers into floats, and must not
    change the units of others. Units are numbered in the order of the digests of their ids, which is the same however
    rows are ordered or spread over partitions; with `like_rows`, if no two rows share an id, in the order of the rows,
    as without ids. That one id has a second row then changes the order of all: not for sums that depend on the order
    of units by rounding. Samples are drawn independently of these numbers.
    """
    distinct, codes = np.unique(digest_ids(ids), return_inverse=True)
    if like_rows and len(distinct) == codes.size:
        return np.arange(codes.size), codes.size
    return codes.reshape(-1).astype(np.intp), len(distinct)


def digest_ids(ids: Any) -> NDArray[np.uint64]:
    """Return 64 bits for the canonical text of each id.

    Numbers are mixed by a bijection; the digests of other texts are those of BLAKE2. Two ids that shared a digest,
    by chance or on purpose, would be one unit.

    >>> bool(np.array_equal(digest_ids([7, 8]), digest_ids(["7", "8.0"])))
    True
    """
    stored = stored_column(ids)
    if not isinstance(stored, np.ndarray):
        return stored.spread(digest_ids(stored.entries), _MISSING_ID)
    if stored.dtype.kind in "biuf":
        numbers = parse_number(stored)
        found = _mixed(numbers.values)
        found[numbers.codes != NUMBER] = _MISSING_ID
        return found
    texts = parse_ids(stored).tolist()
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return _digests(list(places))[np.fromiter(map(places.__getitem__, texts), dtype=np.intp, count=len(texts))]


def _digests(texts: list[str]) -> NDArray[np.uint64]:
    numbers = np.array(list(map(number_of_text, texts)), dtype=np.float64)
    found = _mixed(numbers)
    for place in np.flatnonzero(np.isnan(numbers)):
        digest = hashlib.blake2b(texts[place].encode(errors="surrogatepass"), digest_size=8).digest()
        found[place] = int.from_bytes(digest, "little")
    return found


def _mixed(numbers: Floats) -> NDArray[np.uint64]:
    """Return the bits of numbers, spread by the finaliser of SplitMix64, a bijection."""
    words = (numbers + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


_MISSING_ID = _digests([""])[0]
