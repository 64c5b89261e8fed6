"""What is publicly known about a table, as data, and the encoding that follows from it alone.

A `Schema` lists features with their bounds or values, the classes, and the sensitive columns with their
values. `encode` turns columns into numbers by the schema and nothing else, so two tables with one schema are
encoded alike whatever their rows hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.exceptions import InvalidInput


@dataclass(frozen=True)
class Schema:
    """Public facts about a table.

    Attributes
    ----------
    name : str
    numbers : mapping of column to (low, high)
        Features used as numbers; what lies outside is moved to the nearer bound.
    categories : mapping of column to values
        Features used one-hot, in this order.
    label : str
        Column that the classes are read from.
    classes : tuple
        Possible labels, in the order of predictions.
    sensitive : mapping of column to values
        Possible values of each sensitive column. Whether such a column is a feature too is said by `numbers`
        and `categories`.
    unit : str
        What a row stands for.
    note : str
    """

    name: str
    numbers: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[Any, ...]]
    label: str
    classes: tuple[Any, ...]
    sensitive: Mapping[str, tuple[Any, ...]]
    unit: str = "one person"
    note: str = ""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features: numbers first, then ``column=value``."""
        hot = (f"{column}={value}" for column, values in self.categories.items() for value in values)
        return (*self.numbers, *hot)

    @property
    def feature_bounds(self) -> npt.NDArray[np.float64]:
        """Lower and upper bound of each encoded feature, shape (2, d)."""
        hot = sum(map(len, self.categories.values()))
        pairs = [*self.numbers.values(), *[(0.0, 1.0)] * hot]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2).T


def encode(frame: Any, schema: Schema) -> npt.NDArray[np.float32]:
    """Return the features (n, d): numbers within their bounds, then zeros and ones for categories."""
    X = np.zeros((len(frame), len(schema.feature_names)), dtype=np.float32)
    for place, (column, (low, high)) in enumerate(schema.numbers.items()):
        X[:, place] = np.clip(frame[column].to_numpy(dtype=np.float64), low, high)
    rows, first = np.arange(len(frame)), len(schema.numbers)
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
        groups = ", ".join(self.schema.sensitive)
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
        return self.schema.feature_names

    @property
    def feature_bounds(self) -> npt.NDArray[np.float64]:
        """Public lower and upper bounds of the encoded features, shape (2, d)."""
        return self.schema.feature_bounds

    @property
    def classes(self) -> tuple[Any, ...]:
        """Possible labels."""
        return self.schema.classes

    @property
    def group_values(self) -> dict[str, tuple[Any, ...]]:
        """Possible values of each sensitive column."""
        return dict(self.schema.sensitive)


def table(frame: Any, y: Any, sensitive: Mapping[str, Any], schema: Schema) -> Table:
    """Return a checked table: labels and groups hold known values only."""
    labels = np.asarray(schema.classes)[codes(y, schema.classes, schema.label)]
    groups = pandas().DataFrame(
        {name: np.asarray(v)[codes(sensitive[name], v, name)] for name, v in schema.sensitive.items()}
    )
    return Table(frame, encode(frame, schema), labels, groups, schema)


def pandas() -> Any:
    """Return pandas, or say how to get it."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("the loaders of public data sets need pandas: pip install pandas") from None
    return pd
