"""Features and labels as users hand them over: checked, and brought into one form.

Arrays, data frames and sparse matrices become arrays of numbers; labels of any form become a vector. What
cannot be used ends in one exception that names the argument and the way out, never the value of a row.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import validate_data

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.tables import as_column, has_missing

_ACCEPTED: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}

_RESHAPE = (
    "X must have two dimensions, rows and features; Reshape your data with X.reshape(-1, 1) if it is a "
    "single feature, or X.reshape(len(X), -1) if it has more than two"
)
_TEXT = (
    "X holds text; encode such columns as numbers first (text that reads like a number, with astype(float))"
)
_WORDS = {  # what scikit-learn's message holds, and what is said instead: some of its words would quote rows
    "Expected 2D": _RESHAPE,
    "Expected a 2-dimensional": _RESHAPE,
    "Found array with dim": _RESHAPE,
    "inhomogeneous": "X must have as many entries in every row",
    "Complex data not supported": "Complex data not supported: X must hold real numbers",
    "could not convert string": _TEXT,
    "dtype='numeric'": _TEXT,
    "contains NaN": "X contains NaN or None; impute or drop such rows",
    "too large to convert": "X contains a number too large for its type; clip or drop such rows",
    "contains infinity": "X contains infinity or a value too large for its type; clip or drop such rows",
    "argument must be": "X holds entries that are no numbers (an argument must be a string or a number); "
    "encode such columns as numbers first",
    "np.matrix": "X is a np.matrix, which NumPy has given up; use np.asarray(X)",
}
_KEPT = ("sample(s)", "feature(s)", "features", "feature names")  # counts and names, no values of rows
_NO_TABLE = "X must be an array, a data frame or a sparse matrix of numbers, with two dimensions"

# what scikit-learn can score, split and search with
_LABELS = "use whole numbers or text, such as [str(label) for label in y]"


def read_features(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return X as a C-ordered float array, memory map or CSR matrix, finite throughout.

    Parameters
    ----------
    estimator : BaseEstimator
        Is not written to; see `learn_features`.
    X : array, data frame or sparse matrix
    reset : bool
        Whether X is to be learnt from; if not, it is held to the number and names of features learnt before.
    """
    _refuse_foreign(X)
    # a copy does the learning: a fit that is refused later on must leave the estimator as it was
    estimator = copy.copy(estimator) if reset else estimator
    try:
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what does not fit becomes infinite, and is refused as such
            return validate_data(estimator, X, reset=reset, **_ACCEPTED)
    except (ValueError, TypeError, OverflowError) as problem:
        kind = InvalidType if isinstance(problem, TypeError) else InvalidInput
        raise kind(_own_words(str(problem))) from None


def learn_features(estimator: Any, X: Any) -> None:
    """Let the estimator remember number and names of the features of X, which `read_features` has read."""
    vars(estimator).pop("feature_names_in_", None)
    validate_data(estimator, X, reset=True, skip_check_array=True)


def _refuse_foreign(X: Any) -> None:
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    if isinstance(X, Mapping | set | frozenset | str | bytes) and not scipy.sparse.issparse(X):
        raise InvalidType(f"{_NO_TABLE}; got {type(X).__name__}")
    kinds = X.dtypes if _is_frame(X) else [getattr(X, "dtype", None)]
    if any(_is_time(kind) for kind in kinds):
        raise InvalidType("X holds dates or times; turn them into numbers first, such as days since a date")
    if np.ma.is_masked(X):
        raise InvalidInput("X has masked entries, which are missing values; impute or drop such rows")
    if _is_frame(X) and hasattr(X, "iloc") and not X.columns.is_unique:
        twice = X.columns[X.columns.duplicated()][0]
        raise InvalidInput(f"X has two columns named {twice!r}; rename one of them")
    if _holds_text(X):
        raise InvalidInput(_TEXT)


def _is_frame(X: Any) -> bool:
    """Return whether X is a table with a type for each column, as those of pandas and polars are."""
    return hasattr(X, "dtypes") and hasattr(X, "columns")


def _holds_text(X: Any) -> bool:
    """Return whether there is text, which NumPy would turn into numbers where it reads like some."""
    if _is_frame(X) and hasattr(X, "iloc"):
        doubtful = [place for place, kind in enumerate(X.dtypes) if not _is_numeric(kind)]
        return any(_vector_of_text(np.asarray(X.iloc[:, place])) for place in doubtful)
    if _is_frame(X) and hasattr(X, "get_columns"):
        return any(_vector_of_text(np.asarray(c)) for c in X.get_columns() if not _is_numeric(c.dtype))
    if scipy.sparse.issparse(X):
        return False
    try:
        return _vector_of_text(np.asarray(X))
    except (ValueError, TypeError):  # rows of unequal length and the like, of which scikit-learn complains
        return False


def _is_numeric(kind: Any) -> bool:
    """Return whether a type of column, of NumPy, pandas or polars, is one of numbers."""
    by_name = getattr(kind, "is_numeric", None)
    return by_name() is True if callable(by_name) else getattr(kind, "kind", "O") in "biufc"


def _vector_of_text(values: npt.NDArray[Any]) -> bool:
    if values.dtype.kind != "O":
        return values.dtype.kind in "UST"
    return any(issubclass(kind, str | bytes) for kind in set(map(type, values.ravel().tolist())))


def _is_time(kind: Any) -> bool:
    return getattr(kind, "kind", "") in ("m", "M") or str(kind).lower().startswith(("datetime", "duration"))


def _own_words(problem: str) -> str:
    said = next((words for part, words in _WORDS.items() if part in problem), None)
    if said is not None:
        return said
    # scikit-learn's words about shapes and names quote no rows, and its users know them
    return f"X does not fit: {problem}" if any(part in problem for part in _KEPT) else _NO_TABLE


def read_labels(y: Any, n_rows: int) -> Any:
    """Return y as a vector of `n_rows` labels, none missing: an array, a memory map or a pandas series.

    Numbers with a fraction are refused, as scikit-learn refuses them: they are measurements, not classes.
    """
    if y is None:
        raise InvalidInput("fit requires y to be passed, but the target y is None")
    y = _vector(y)
    if len(y) != n_rows:
        raise InvalidInput(f"X and y have inconsistent numbers of samples: {n_rows} rows, {len(y)} labels")
    if y.dtype.kind == "O":
        y = _typed(y)
    if y.dtype.kind not in "biufOUT":
        kind = "dates or times" if y.dtype.kind in "mM" else y.dtype
        raise InvalidType(f"Unknown label type: y holds {kind}; {_LABELS}")
    if y.dtype.kind == "f":
        _by_parts(y, _refuse_measurements)
    return np.array(y.tolist()) if y.dtype.kind == "T" else y


def _vector(y: Any) -> Any:
    shape = np.shape(y) if hasattr(y, "shape") else None
    if shape is not None and len(shape) == 2 and shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; pass y.ravel()",
            DataConversionWarning,
            stacklevel=5,
        )
    try:
        column = as_column(y, "y")
    except InvalidType:
        raise
    except (ValueError, TypeError):
        raise InvalidInput("y must be a vector with one label per row") from None
    if hasattr(column, "cat"):
        if has_missing(column):
            raise InvalidInput("y holds missing values; drop those rows or fill them")
        column = np.asarray(column)
    if isinstance(column, np.ma.MaskedArray):
        if has_missing(column):
            raise InvalidInput("y holds missing values; drop those rows or fill them")
        column = np.asarray(column)
    return column


def _by_parts(y: Any, check: Callable[[npt.NDArray[Any]], None], size: int = 1 << 16) -> None:
    for start in range(0, len(y), size):
        check(y[start : start + size])


def _refuse_measurements(part: npt.NDArray[Any]) -> None:
    if np.isnan(part).any():
        raise InvalidInput("y holds missing values (NaN); drop those rows or fill them")
    if np.isinf(part).any():
        raise InvalidInput("y holds infinity; drop those rows")
    if np.any(np.abs(part) >= 2.0**63):
        raise InvalidInput(f"Unknown label type: y holds numbers beyond 64 bits; {_LABELS}")
    if np.any(part != np.floor(part)):
        raise InvalidInput(
            "Unknown label type: y holds numbers with a fraction, which are measurements; cut them into "
            "classes first"
        )


def _typed(y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give numbers in an object array the type they have in common; a mix without an order is refused."""
    kinds = {type(value) for value in y.tolist()}
    if any(issubclass(kind, list | tuple | dict | set | np.ndarray) for kind in kinds):
        raise InvalidType("y holds entries that are no scalars; a label is a whole number or a text")
    if has_missing(y):
        raise InvalidInput("y holds missing values; drop those rows or fill them")
    families = {_family(kind) for kind in kinds}
    if len(families) > 1:
        raise InvalidType(
            "y mixes labels of types that have no common order; use labels of one type, such as text"
        )
    if families == {"text"}:
        return y
    common = np.array(y.tolist())
    if families != {"number"} or common.dtype.kind not in "biufc":
        kind = "whole numbers beyond 64 bits" if families == {"number"} else families.pop()
        raise InvalidType(f"Unknown label type: y holds {kind}; {_LABELS}")
    return common


def _family(kind: type) -> str:
    if issubclass(kind, bool | int | float | complex | np.number | np.bool_):
        return "number"
    return "text" if kind in (str, np.str_) else kind.__name__
