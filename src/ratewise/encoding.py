"""From mixed columns to numbers, by the schema alone: nothing is learned, so nothing leaks.

>>> from ratewise.schema import Category, Number, Schema
>>> schema = Schema(
...     {"age": Number(20, 60), "job": Category(["clerk", "sales"])}, label="repaid", classes=[0, 1]
... )
>>> encoder = TableEncoder(schema).fit({"age": [30, 75], "job": ["sales", "clerk"]})
>>> encoder.transform({"age": [30, 75], "job": ["sales", "clerk"]})
array([[0.25, 0.  , 1.  ],
       [1.  , 1.  , 0.  ]])
>>> encoder.get_feature_names_out().tolist()
['age', 'job=clerk', 'job=sales']
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ratewise import _validate
from ratewise.columns import Category, Column, Number
from ratewise.domain import encode, list_values
from ratewise.exceptions import InvalidInput, InvalidType, PrivacyLeakWarning, UnsupportedCombination
from ratewise.frames import chosen_columns, missing_entries
from ratewise.schema import Schema
from ratewise.tails import NUMBER

Floats = npt.NDArray[np.float64]

_WIDE = 256  # encoded features from which a table is sparse, if most of them are zero
_DENSITY = 0.25


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers cut off at their declared bounds and scaled to [0, 1]; categories one-hot by declared values.

    The output for a row depends on that row and the schema, on no other row: encoding is no release, costs no
    privacy and needs no entry in a ledger.

    Parameters
    ----------
    schema : Schema
        Every number must have bounds; `ratewise.bounds.private_bounds` finds missing ones privately, and
        `ratewise.TableClassifier` does so by itself.
    unknown : "error" or "zeros"
        What `transform` makes of a value that is not declared. `fit` always refuses it.
    sparse : bool or "auto"
        Whether the output is a CSR matrix. "auto": if it has 256 columns or more, most of them zeros.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As in scikit-learn: the columns before encoding.
    """

    def __init__(self, schema: Schema, *, unknown: str = "error", sparse: bool | str = "auto") -> None:
        self.schema = schema
        self.unknown = unknown
        self.sparse = sparse

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that the schema fits the table; nothing is learned from it."""
        self.fit_transform(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None, **_: Any) -> Any:  # noqa: ARG002 - scikit-learn's signature
        """Check that the schema fits the table, and encode it."""
        self._check()
        encoded = self._encode(X, unknown="error")
        if not self.schema.signed:
            warnings.warn(
                "the schema is not signed: its bounds and values were read off data and count as leaked; "
                "check them and call schema.sign()",
                PrivacyLeakWarning,
                stacklevel=2,
            )
        self.n_features_in_ = len(self.schema.columns)
        self.feature_names_in_ = np.array(list(self.schema.columns), dtype=object)
        return encoded

    def transform(self, X: Any) -> Any:
        """Return the encoded rows: an array of float64, or a CSR matrix if it is wide."""
        check_is_fitted(self)
        return self._encode(X, unknown=self.unknown)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:  # noqa: ARG002 - ditto
        """Return the names of the encoded features: a number's own, ``column=value`` for categories."""
        names: list[str] = []
        for name, column in self.schema.columns.items():
            if isinstance(column, Category):
                names += [f"{name}={value}" for value in column.values]
            else:
                names.append(name)
        return np.array(names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def _check(self) -> None:
        if not isinstance(self.schema, Schema):
            raise InvalidType(f"schema must be a Schema, got {type(self.schema).__name__}")
        _validate.one_of(("error", "zeros"), unknown=self.unknown)
        _validate.one_of((True, False, "auto"), sparse=self.sparse)
        if self.schema.unbounded:
            raise InvalidInput(
                f"the schema has no bounds for {list_values(self.schema.unbounded)}; declare them with "
                "Number(lower, upper), or use TableClassifier, which finds them privately"
            )

    def _encode(self, X: Any, unknown: str) -> Any:
        columns = self.schema.columns
        data = chosen_columns(X, tuple(columns), "X")
        n_rows, width = len(next(iter(data.values()))), self.schema.n_features
        if encoded_sparsely(self.schema) if isinstance(self.sparse, str) else self.sparse:
            return _sparse(list(_entries(columns, data, unknown)), n_rows, width)
        table = np.zeros((n_rows, width))
        rows = np.arange(n_rows)
        for first, codes, values in _entries(columns, data, unknown):
            if codes is None:
                table[:, first] = values
            else:
                known = codes >= 0
                table[rows[known], first + codes[known].astype(np.int64)] = 1.0
        return table


def encoded_sparsely(schema: Schema) -> bool:
    """Return whether "auto" encodes by this schema to a CSR matrix: public, the rows do not matter."""
    width = schema.n_features
    return width >= _WIDE and len(schema.columns) <= _DENSITY * width


def feature_kinds(schema: Schema) -> list[str]:
    """Return for each encoded feature whether it is a number or stands for a category; public.

    >>> from ratewise.schema import Category
    >>> columns = {"age": Number(0, 120), "job": Category(["a", "b"])}
    >>> feature_kinds(Schema(columns, label="y", classes=[0, 1]))
    ['number', 'category', 'category']
    """
    kinds: list[str] = []
    for column in schema.columns.values():
        kinds += [NUMBER] if isinstance(column, Number) else ["category"] * len(column.values)
    return kinds


def curved_features(schema: Schema, curves: bool | None = None, standardised: bool = True) -> list[int]:
    """Return the encoded features that bend (`ratewise.curves`): numbers, if they do; public.

    Parameters
    ----------
    schema : Schema
    curves : bool or None
        Whether numbers bend. None: if features are standardised, and not encoded sparsely (and if rows are
        enough, which is for the caller to say: `ratewise.defaults.curves_pay`).
    standardised : bool
        Whether features are left to be standardised.

    Examples
    --------
    >>> from ratewise.schema import Category
    >>> columns = {"job": Category(["a", "b"]), "age": Number(0, 120)}
    >>> curved_features(Schema(columns, label="y", classes=[0, 1]))
    [2]
    """
    sparse = encoded_sparsely(schema)
    if curves and sparse:
        raise UnsupportedCombination(
            f"curves is True, but a table of {schema.n_features} encoded features is sparse, and curves "
            "would fill it; leave curves out"
        )
    if curves is False or (curves is None and (sparse or not standardised)):
        return []
    return [place for place, kind in enumerate(feature_kinds(schema)) if kind == NUMBER]


_Entry = tuple[int, npt.NDArray[Any] | None, Floats | None]


def _entries(columns: dict[str, Column], data: dict[str, Any], unknown: str) -> Iterator[_Entry]:
    """Yield, for each column, its first encoded feature, and the codes or the numbers of the rows."""
    first = 0
    for name, column in columns.items():
        if isinstance(column, Number):
            yield first, None, scaled(column, numbers(name, column, data[name]))
            first += 1
        else:
            yield first, category_codes(name, column, data[name], unknown), None
            first += len(column.values)


def _sparse(entries: list[_Entry], n_rows: int, width: int) -> sp.csr_matrix:
    """Return the entries as rows of a sparse matrix, without zeros."""
    where = np.empty((n_rows, len(entries)), dtype=np.int64)
    table = np.ones((n_rows, len(entries)))
    for place, (first, codes, values) in enumerate(entries):
        if codes is None:
            where[:, place], table[:, place] = first, values
        else:
            where[:, place] = first + np.maximum(codes.astype(np.int64), 0)
            table[:, place] = codes >= 0
    starts = np.arange(n_rows + 1) * len(entries)
    found = sp.csr_matrix((table.ravel(), where.ravel(), starts), shape=(n_rows, width))
    found.eliminate_zeros()
    return found


def numbers(name: str, column: Number, data: Any) -> Floats:
    """Return a column as float64 without gaps, not yet cut off; **private**."""
    found = np.asarray(data)
    gaps = missing_entries(data)
    if gaps.any() and column.missing is None:
        raise InvalidInput(
            f"column {name!r} holds missing values; drop those rows, or declare what stands for them: "
            "Number(..., missing=0)"
        )
    if found.dtype.kind not in "biuf":
        found = _parsed(name, found, gaps)
    result: Floats = found.astype(np.float64)
    if gaps.any():
        result[gaps] = column.missing
    return result


def _parsed(name: str, found: npt.NDArray[Any], gaps: npt.NDArray[np.bool_]) -> Floats:
    """Return numbers out of an array of objects; text is no number, even if it looks like one."""
    filled = np.where(gaps, 0.0, found)
    if any(issubclass(kind, str | bytes) for kind in set(map(type, filled.tolist()))):
        raise InvalidType(f"column {name!r} holds text, but the schema says it is a number")
    try:
        return filled.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidType(f"column {name!r} holds entries that are no numbers") from None


def scaled(column: Number, values: Floats) -> Floats:
    """Return numbers cut off at the bounds and mapped to [0, 1]."""
    if column.lower is None or column.upper is None:
        raise InvalidInput("a number without bounds cannot be scaled; declare Number(lower, upper)")
    return (np.clip(values, column.lower, column.upper) - column.lower) / (column.upper - column.lower)


def category_codes(name: str, column: Category, data: Any, unknown: str = "error") -> npt.NDArray[Any]:
    """Return the position of each entry among the declared values; -1 for others if they are let pass."""
    lookup = {value: code for code, value in enumerate(column.values)}
    gaps = missing_entries(data)
    if gaps.any():
        if column.missing is None:
            raise InvalidInput(
                f"column {name!r} holds missing values; drop those rows, or declare what stands for them: "
                f"Category([...], missing=...)"
            )
        data = np.where(gaps, np.array(column.missing, dtype=object), np.asarray(data, dtype=object))
    if unknown == "error":
        return encode(data, column.values, lookup, f"column {name!r}")
    listed = np.asarray(data, dtype=object).tolist()
    return np.fromiter((lookup.get(value, -1) for value in listed), dtype=np.int64, count=len(listed))
