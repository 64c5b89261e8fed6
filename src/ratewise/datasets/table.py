"""Public data sets as tables with a public `Schema`, and the encoding that follows from it alone.

`encode` turns columns into numbers by the schema and nothing else, so two tables with one schema are encoded
alike whatever their rows hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.data.schema import Category, Column, Number, Schema
from ratewise.exceptions import InvalidInput


def described(
    name: str,
    numbers: Mapping[str, tuple[float, float]],
    categories: Mapping[str, tuple[Any, ...]],
    label: str,
    classes: Iterable[Any],
    sensitive: Mapping[str, tuple[Any, ...]],
    unit: str = "one person",
    note: str = "",
) -> Schema:
    """Return the schema of a data set: first the numbers with their bounds, then the categories."""
    columns: dict[str, Column] = {column: Number(low, high) for column, (low, high) in numbers.items()}
    columns |= {column: Category(values) for column, values in categories.items()}
    groups = {column: Category(values) for column, values in sensitive.items()}
    return Schema(columns, label=label, classes=classes, groups=groups, name=name, unit=unit, note=note)


def feature_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the encoded features: numbers first, then ``column=value``."""
    hot = (f"{column}={value}" for column, values in schema.categories.items() for value in values)
    return (*schema.feature_bounds, *hot)


def encode(frame: Any, schema: Schema) -> npt.NDArray[np.float32]:
    """Return the features (n, d): numbers within their bounds, then zeros and ones for categories."""
    X = np.zeros((len(frame), len(feature_names(schema))), dtype=np.float32)
    for place, (column, (low, high)) in enumerate(schema.feature_bounds.items()):
        X[:, place] = np.clip(frame[column].to_numpy(dtype=np.float64), low, high)
    rows, first = np.arange(len(frame)), len(schema.feature_bounds)
    for column, values in schema.categories.items():
        X[rows, first + codes(frame[column], values, column)] = 1.0
        first += len(values)
    return X


def codes(column: Any, values: tuple[Any, ...], name: str) -> npt.NDArray[np.intp]:
    """Return the place of each entry among the values; an entry that is none of them is an error."""
    found = np.asarray(pandas().Index(list(values)).get_indexer(column), dtype=np.intp)
    if (found < 0).any():
        raise InvalidInput(
            f"{int((found < 0).sum())} rows of column {name!r} hold none of its {len(values)} known values; "
            "the file is not the published one"
        )
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Rows of a public data set with its public schema; made by the loaders.

    Attributes
    ----------
    frame : pandas data frame
        The columns as published, label included.
    X : (n, d) float32 array
        Encoded features, within `feature_bounds`.
    y : (n,) array
        Labels, values of `classes`.
    sensitive : pandas data frame
        The sensitive columns, with values of `group_values`.
    schema : Schema
    """

    frame: Any
    X: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    sensitive: Any
    schema: Schema = field(compare=False)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        groups = ", ".join(self.schema.groups)
        return f"<Table {self.schema.name}: {len(self)} rows, {self.X.shape[1]} features, groups by {groups}>"

    @property
    def data(self) -> Any:
        """The published columns without the label, as in scikit-learn's bunches."""
        return self.frame.drop(columns=self.schema.label)

    @property
    def target(self) -> Any:
        """The published label column, as in scikit-learn's bunches."""
        return self.frame[self.schema.label]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features."""
        return feature_names(self.schema)

    @property
    def feature_bounds(self) -> npt.NDArray[np.float64]:
        """Public lower and upper bounds of the encoded features, shape (2, d)."""
        hot = len(self.feature_names) - len(self.schema.feature_bounds)
        pairs = [*self.schema.feature_bounds.values(), *[(0.0, 1.0)] * hot]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2).T

    @property
    def classes(self) -> tuple[Any, ...]:
        """Possible labels."""
        return self.schema.classes

    @property
    def group_values(self) -> dict[str, tuple[Any, ...]]:
        """Possible values of each sensitive column."""
        return self.schema.group_values


def table(frame: Any, y: Any, sensitive: Mapping[str, Any], schema: Schema) -> Table:
    """Return a checked table: labels and groups hold known values only."""
    labels = np.asarray(schema.classes)[codes(y, schema.classes, schema.label)]
    groups = pandas().DataFrame(
        {name: np.asarray(v)[codes(sensitive[name], v, name)] for name, v in schema.group_values.items()}
    )
    return Table(frame, encode(frame, schema), labels, groups, schema)


def pandas() -> Any:
    """Return pandas, or say how to get it."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("the loaders of public data sets need pandas: pip install pandas") from None
    return pd
