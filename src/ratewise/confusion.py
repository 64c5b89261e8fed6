"""Rates by group: accuracy, counts and the usual rates of each class, from tables of true by predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ratewise.domain import Domain, Numeric, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.layout import html_table, number, plain, text_table
from ratewise.predictions import Predictions
from ratewise.tables import read_domain, sensitive_columns


@dataclass(frozen=True)
class ClassRates:
    """The rates of one class in one group, each class against all others; NaN where nothing counts."""

    base_rate: float
    selection_rate: float
    true_positive_rate: float
    false_positive_rate: float
    false_negative_rate: float
    true_negative_rate: float
    precision: float
    false_discovery_rate: float

    @classmethod
    def of(cls, confusion: NDArray[np.float64], k: int) -> ClassRates:
        """Return the rates of class k from a table of counts, true class by predicted class."""
        hit, true, predicted, total = (
            float(confusion[k, k]),
            float(confusion[k].sum()),
            float(confusion[:, k].sum()),
            float(confusion.sum()),
        )
        false_alarm, negative = predicted - hit, total - true
        return cls(
            base_rate=_share(true, total),
            selection_rate=_share(predicted, total),
            true_positive_rate=_share(hit, true),
            false_positive_rate=_share(false_alarm, negative),
            false_negative_rate=_share(true - hit, true),
            true_negative_rate=_share(negative - false_alarm, negative),
            precision=_share(hit, predicted),
            false_discovery_rate=_share(false_alarm, predicted),
        )


@dataclass(frozen=True)
class GroupRow:
    """What predictions do to one group: `values` by column, rows counted, rates by class."""

    values: dict[str, Any]
    count: int
    accuracy: float
    rates: dict[Any, ClassRates]

    @property
    def name(self) -> str:
        """The group as text; "everyone" for no column."""
        return " & ".join(f"{column}={value}" for column, value in self.values.items()) or "everyone"

    @property
    def error_rate(self) -> float:
        """The share of rows predicted wrongly."""
        return 1.0 - self.accuracy

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data; NaN becomes None."""
        rates = {k: {name: plain(v) for name, v in vars(rate).items()} for k, rate in self.rates.items()}
        return {
            "group": dict(self.values),
            "count": self.count,
            "accuracy": plain(self.accuracy),
            "rates": rates,
        }


@dataclass(frozen=True, repr=False)
class GroupRates(Sequence[GroupRow]):
    """Rates of every group, and of everyone (`overall`); made by `group_rates`."""

    rows: tuple[GroupRow, ...]
    overall: GroupRow
    classes: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> GroupRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GroupRow, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def largest_gap(self, rate: str, k: Any = None) -> float:
        """Return the largest difference of a rate between groups: "accuracy", or a field of `ClassRates`.

        `k` is the class meant, for two classes the second unless told. Groups where the rate is not defined
        are left out.
        """
        if rate != "accuracy" and rate not in ClassRates.__dataclass_fields__:
            choices = ("accuracy", *ClassRates.__dataclass_fields__)
            raise InvalidInput(f"rate must be one of {list_values(choices)}, got {rate!r}")
        read = self._reader(rate, k)
        values = [value for row in self.rows if not math.isnan(value := read(row))]
        return max(values) - min(values) if values else math.nan

    def _reader(self, rate: str, k: Any) -> Callable[[GroupRow], float]:
        if rate == "accuracy":
            return lambda row: row.accuracy
        if k is None and len(self.classes) > 2:
            raise InvalidInput(f"k must be one of the classes {list_values(self.classes)}: there are several")
        chosen = self.classes[1] if k is None else k
        if chosen not in self.classes:
            raise InvalidInput(f"k must be one of the classes {list_values(self.classes)}, got {k!r}")
        return lambda row: float(getattr(row.rates[chosen], rate))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as plain data, groups first and everyone last."""
        return [row.to_dict() for row in (*self.rows, self.overall)]

    def __repr__(self) -> str:
        return f"<GroupRates: {len(self)} groups, {self.overall.count} rows, {len(self.classes)} classes>"

    def __str__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table(), repr(self).strip("<>"))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shown = self.classes[1:] if len(self.classes) == 2 else self.classes
        head = ["group", "rows", "accuracy"]
        head += [f"{name}({k})" for k in shown for name in ("selected", "TPR", "FPR", "precision")]
        return head, [self._cells(row, shown) for row in (*self.rows, self.overall)]

    @staticmethod
    def _cells(row: GroupRow, shown: Iterable[Any]) -> list[str]:
        numbers = [row.accuracy]
        for k in shown:
            rates = row.rates[k]
            numbers += [
                rates.selection_rate,
                rates.true_positive_rate,
                rates.false_positive_rate,
                rates.precision,
            ]
        return [row.name, str(row.count), *map(number, numbers)]


def group_rates(
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any = None,
    by: str | Iterable[str] | None = None,
    classes: Iterable[Any] | None = None,
    group_values: Any = None,
) -> GroupRates:
    """Return accuracy, counts and the usual rates of each group and each class.

    Parameters
    ----------
    y_true, y_pred : (n,) array-like
    sensitive_features : data frame, mapping, vector
    by : column or columns, optional
        Columns whose values are crossed to make the groups; all of them unless told.
    classes, group_values : optional
        As in `rate_report`. A combination without rows is listed only if the values of all columns are
        declared.

    Notes
    -----
    The definitions are those of scikit-learn and Fairlearn, except that a rate of no rows is NaN here and 0
    there.

    >>> table = group_rates([0, 1, 1, 0], [0, 1, 0, 0], sensitive_features=["a", "a", "b", "b"])
    >>> table[1].name, table[1].accuracy, table[1].rates[1].false_negative_rate
    ('group=b', 0.5, 1.0)
    """
    data = Predictions.read(y_true, y_pred, None, classes)
    by = (by,) if isinstance(by, str) else by
    if by is not None and not isinstance(by, Iterable):
        raise InvalidType(f"by must be a column or a list of columns, got {type(by).__name__}")
    wanted = None if by is None else list(by)
    lone = wanted[0] if wanted and len(wanted) == 1 else None
    columns = sensitive_columns(sensitive_features, len(data.truth), lone_name=lone, needed=wanted)
    columns = columns if wanted is None else {name: columns[name] for name in wanted}
    domain, _ = read_domain(columns, data.truth, data.classes, group_values)
    listed = {name: _group_list(name, domain) for name in columns}
    declared = all(name in (group_values or {}) for name in columns)
    place = np.zeros(len(data.truth), dtype=np.int64)
    for name, values in listed.items():
        place = place * len(values) + domain.column_codes(name, columns[name])
    occupied, place = _occupied(place, listed, declared)
    size = len(data.classes)
    flat = (place * size + data.truth_codes) * size + data.predictions
    tables = np.bincount(flat, minlength=len(occupied) * size * size).astype(np.float64)
    tables = tables.reshape(len(occupied), size, size)
    rows = [
        _group_row(_values(number, listed), table, data.classes)
        for number, table in zip(occupied, tables, strict=True)
    ]
    overall = _group_row({}, tables.sum(axis=0), data.classes)
    return GroupRates(tuple(rows) if columns else (), overall, data.classes)


def _group_list(name: str, domain: Domain) -> tuple[Any, ...]:
    values = domain.values(name)
    if isinstance(values, Numeric):
        raise InvalidInput(
            f"column {name!r} is numeric and has no list of groups; cut it into ranges, or name by="
        )
    return values


def _occupied(
    place: NDArray[np.int64], listed: dict[str, tuple[Any, ...]], declared: bool
) -> tuple[list[int], NDArray[np.int64]]:
    """Return the combinations to list, by number, and each row's position among them."""
    if declared and listed:
        return list(range(math.prod(map(len, listed.values())))), place
    present, position = np.unique(place, return_inverse=True)
    return present.tolist(), position.reshape(-1)


def _values(number: int, listed: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    shape = tuple(map(len, listed.values()))
    codes = np.unravel_index(number, shape) if shape else ()
    return {name: values[code] for (name, values), code in zip(listed.items(), codes, strict=True)}


def _group_row(values: dict[str, Any], confusion: NDArray[np.float64], classes: tuple[Any, ...]) -> GroupRow:
    total = float(confusion.sum())
    return GroupRow(
        values=values,
        count=int(total),
        accuracy=_share(float(np.trace(confusion)), total),
        rates={k: ClassRates.of(confusion, code) for code, k in enumerate(classes)},
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
