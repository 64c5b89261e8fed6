"""Rows to report on, read and checked once, and which groups of them to show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.domain import Domain, Numeric, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import Family, Limit, Parity
from ratewise.metrics import RateReport, rate_report
from ratewise.predictions import Predictions
from ratewise.tables import distinct_or_numeric, interval_columns, needed_columns, sensitive_columns

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 5000


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Rows to report on, read and checked once.

    Attributes
    ----------
    truth, predicted : vectors of labels
    scores : (n, K) probabilities or None
    sensitive : mapping of column to vector
        Only the columns that the report reads.
    classes : tuple
    group_values : mapping or None
        Declared values; a group without rows is then listed too.
    groupings : tuple of tuples of column names
    """

    constraints: Any
    truth: Any
    predicted: Any
    scores: Floats | None
    sensitive: dict[str, Any]
    classes: tuple[Any, ...]
    group_values: dict[str, Any]
    groupings: tuple[tuple[str, ...], ...]
    confidence: float
    soft: bool

    @classmethod
    def read(
        cls,
        y_true: Any,
        y_pred: Any,
        sensitive_features: Any,
        constraints: Any,
        *,
        scores: Any = None,
        classes: Iterable[Any] | None = None,
        group_values: Any = None,
        by: Iterable[Any] | None = None,
        confidence: float = 0.95,
        soft: bool = False,
    ) -> Evaluation:
        """Check everything that can be wrong with the rows, before anything is measured."""
        data = Predictions.read(y_true, y_pred, None, classes)
        by = [by] if isinstance(by, str) else by
        if by is not None and not isinstance(by, Iterable):
            raise InvalidType(f"by must be a list of columns, got {type(by).__name__}")
        wanted = None if by is None else [_columns_of(item) for item in by]
        needed = _columns_read(constraints, wanted)
        lone = next(iter(needed)) if needed is not None and len(needed) == 1 else None
        n_rows = len(data.truth)
        columns = sensitive_columns(sensitive_features, n_rows, lone_name=lone, needed=needed)
        declared = {name: values for name, values in dict(group_values or {}).items() if name in columns}
        table = None if scores is None else as_probabilities(scores, n_rows, data.classes)
        if soft and table is None:
            raise InvalidInput(
                "scores is missing, but the rates are soft: give the probability of each class"
            )
        return cls(
            constraints=constraints,
            truth=data.truth,
            predicted=np.asarray(y_pred) if not isinstance(y_pred, list | tuple) else y_pred,
            scores=table,
            sensitive=columns,
            classes=data.classes,
            group_values=declared,
            groupings=_groupings(constraints, columns, declared, wanted),
            confidence=confidence,
            soft=soft,
        )

    def rates(self, predicted: Any = None, scores: Floats | None = None) -> RateReport:
        """Return what these (or other) predictions of the same rows reach of each constraint."""
        guess = self.predicted if predicted is None else predicted
        table = self.scores if predicted is None else scores
        hard = not self.soft or table is None
        return rate_report(
            self.constraints,
            self.truth,
            guess if hard else None,
            y_prob=None if hard else table,
            sensitive_features=self.sensitive or None,
            classes=self.classes,
            group_values=self.group_values or None,
            confidence=self.confidence,
        )


def _columns_of(item: Any) -> tuple[str, ...]:
    if isinstance(item, str):
        return (item,)
    if isinstance(item, tuple | list) and item and all(isinstance(name, str) for name in item):
        return tuple(item)
    raise InvalidType(f"by must list column names, or tuples of them to cross, got {item!r}")


def _columns_read(constraints: Any, wanted: list[tuple[str, ...]] | None) -> set[str] | None:
    """Return the columns to read; None for all of them."""
    needed = needed_columns(constraints)
    if wanted is not None:
        return None if needed is None else needed | {name for by in wanted for name in by}
    return needed or None


def families(constraints: Any) -> Iterator[Family]:
    """Yield the families among the declarations, in order."""
    if isinstance(constraints, list | tuple | set | frozenset):
        for item in constraints:
            yield from families(item)
    elif isinstance(constraints, Family):
        yield constraints


def _groupings(
    constraints: Any, columns: dict[str, Any], declared: dict[str, Any], wanted: list[tuple[str, ...]] | None
) -> tuple[tuple[str, ...], ...]:
    """Return which columns make the groups: each by itself, and crossed where a family crosses them."""
    if wanted is not None:
        return tuple(dict.fromkeys(wanted))
    numeric = interval_columns(constraints) | {
        name for name in columns if isinstance(_values(name, columns, declared), Numeric)
    }
    found: list[tuple[str, ...]] = [(name,) for name in columns if name not in numeric]
    for family in families(constraints):
        names: tuple[str, ...] = ()
        if isinstance(family, Parity):
            names = family.columns or tuple(columns)
        elif isinstance(family, Limit):
            names = family.by
        if len(names) > 1:
            found.append(names)
    sizes = {name: len(_values(name, columns, declared)) for by in found for name in by}
    return tuple(by for by in dict.fromkeys(found) if math.prod(sizes[name] for name in by) <= MAX_GROUPS)


def _values(name: str, columns: dict[str, Any], declared: dict[str, Any]) -> Any:
    if name in declared:
        return Domain((0, 1), {name: declared[name]}).values(name)
    return distinct_or_numeric(columns[name], f"column {name!r}")


def as_probabilities(scores: Any, n_rows: int, classes: tuple[Any, ...]) -> Floats:
    """Return scores as an (n, K) table of probabilities; for two classes (n,) of the second will do."""
    try:
        table = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidType("scores must be numbers: the probability of each class") from None
    if table.ndim == 1 and len(classes) == 2:
        table = np.column_stack([1.0 - table, table])
    if table.shape != (n_rows, len(classes)):
        raise InvalidInput(
            f"scores must have {n_rows} rows and a column for each class ({list_values(classes)}), or for "
            f"two classes one number per row, the probability of the second; got shape {np.shape(scores)}"
        )
    if not (table.min() >= 0 and np.abs(table.sum(axis=1) - 1.0).max() <= 1e-3):
        raise InvalidInput(
            "scores must be probabilities: between 0 and 1, no NaN, each row summing to 1; turn margins into "
            "probabilities first, or leave scores out"
        )
    return table
