"""Rates that predictions reach, against what was asked: for any model, ours or not.

>>> from ratewise.constraints.families import demographic_parity
>>> report = rate_report(
...     demographic_parity("sex", max_gap=0.3),
...     y_true=[0, 1, 0, 1, 1, 0],
...     y_pred=[0, 1, 0, 1, 1, 0],
...     sensitive_features={"sex": ["F", "F", "F", "M", "M", "M"]},
... )
>>> for row in report:
...     print(row.name, round(row.reached, 3), row.holds)
P(1 | sex=F) - P(1 | sex!=F) <= 0.3 -0.333 True
P(1 | sex=F) - P(1 | sex!=F) >= -0.3 -0.333 False

Nothing here is private: reports read the rows they are given. Use them on data whose rates may be published.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.constraints.compiled import compile_constraints, expand, named_values
from ratewise.constraints.domain import Numeric, list_values, show_number
from ratewise.data.cells import text_of
from ratewise.data.table import code_public, declared_domain, distinct, known_texts, read_domain, sensitive_columns
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics.intervals import mix_intervals, moments, share_interval

_SUM_ROUNDING = 1e-3  # soft predictions of float32 models sum to one only roughly
_ROUNDING = 1e-9  # a rate computed as 0.05 + 1e-17 holds a bound of 0.05

# ------------------------------------------------------------------------------------------ small tables


def text_table(head: list[str], rows: list[list[str]]) -> str:
    """Return columns aligned by spaces, under a ruled head."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def html_table(head: list[str], rows: list[list[str]], caption: str) -> str:
    """Return a plain HTML table; every text is escaped."""

    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead>{line('th scope=col', head).replace('</th scope=col>', '</th>')}</thead>"
        f"<tbody>{body}</tbody></table>"
    )


Row = TypeVar("Row")


class RowSequence(Sequence[Row]):
    """A sequence of the `rows` of a table, which is printed as `_table` (head, body) says."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table(), repr(self).strip("<>"))


def plain_data(value: Any) -> Any:
    """Return dataclasses, dictionaries and tuples as plain data, fit for JSON: numbers not finite become None."""
    if is_dataclass(value):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain_data(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -------------------------------------------------------------------------------------------- input


@dataclass(frozen=True, eq=False)
class Predictions:
    """True labels, and predictions as class codes (n,) or probabilities (n, K)."""

    classes: tuple[Any, ...]
    truth: Any
    truth_codes: NDArray[np.int32]
    predictions: NDArray[Any]

    @classmethod
    def read(cls, y_true: Any, y_pred: Any, y_prob: Any, classes: Iterable[Any] | None) -> Predictions:
        """Check and translate; exactly one of `y_pred` and `y_prob` is given."""
        if (y_pred is None) == (y_prob is None):
            raise InvalidInput("pass y_pred (labels, for hard rates) or y_prob (probabilities, for soft rates)")
        truth = _labels(y_true, "y_true")
        if not len(truth):
            raise InvalidInput("y_true is empty; a report needs at least one row")
        labels = [truth] if y_pred is None else [truth, _labels(y_pred, "y_pred")]
        if len(labels[-1]) != len(truth):
            raise InvalidInput(f"y_pred must have one entry per row of y_true: {len(labels[-1])} against {len(truth)}")
        known = declared_domain(_found_classes(labels) if classes is None else classes).classes
        codes = code_public(truth, known, "y_true")
        if y_pred is None:
            return cls(known, truth, codes, as_probabilities(y_prob, len(truth), known, "y_prob"))
        return cls(known, truth, codes, code_public(labels[1], known, "y_pred"))


def _labels(labels: Any, name: str) -> Any:
    shape: tuple[int, ...] = getattr(labels, "shape", ())
    if len(shape) == 2 and shape[1] > 1:
        raise InvalidInput(
            f"{name} must be one label per row, got an array with {shape[1]} columns; give probabilities as y_prob"
        )
    known_texts(labels, name)
    return labels


def _found_classes(labels: list[Any]) -> list[Any]:
    """Return the classes of several columns of labels, as the first of them spells them."""
    found = {text_of(value): value for column in reversed(labels) for value in distinct(column, "y")}
    if len({isinstance(value, str) for value in found.values()}) > 1:
        raise InvalidInput(
            "y_true and y_pred hold text as well as numbers; give both in the same form, or declare classes="
        )
    if len(found) < 2:
        raise InvalidInput("the labels hold one class only; declare all of them with classes=")
    return list(found.values())


def as_probabilities(given: Any, n_rows: int, classes: tuple[Any, ...], name: str) -> NDArray[np.float64]:
    """Return scores as an (n, K) table of probabilities; for two classes (n,) of the second will do."""
    try:
        table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be numbers: the probability of each class") from None
    if table.ndim == 1 and len(classes) == 2:
        table = np.column_stack([1.0 - table, table])
    if table.shape != (n_rows, len(classes)):
        raise InvalidInput(
            f"{name} must have {n_rows} rows and a column for each class ({list_values(classes)}), or for two classes "
            f"one number per row, the probability of the second; got shape {np.shape(given)}; classes that y_true lacks "
            "are declared with classes="
        )
    sums = table.sum(axis=1)
    if not (table.min() >= 0 and np.abs(sums - 1.0).max() <= _SUM_ROUNDING):
        raise InvalidInput(
            f"{name} must be probabilities: between 0 and 1, no NaN, each row summing to 1; turn margins into "
            f"probabilities first, or leave {name} out"
        )
    return np.asarray(table / sums[:, None])


# ------------------------------------------------------------------------------------ rates by group


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
        counts = confusion[k, k], confusion[k].sum(), confusion[:, k].sum(), confusion.sum()
        hit, true, predicted, total = map(float, counts)
        alarm, negative = predicted - hit, total - true
        parts = (true, predicted, hit, alarm, true - hit, negative - alarm, hit, alarm)
        return cls(*map(_share, parts, cls._wholes(true, predicted, total)))

    @staticmethod
    def _wholes(true: Any, predicted: Any, total: Any) -> tuple[Any, ...]:
        return total, total, true, total - true, true, total - true, predicted, predicted

    def denominators(self, count: int) -> dict[str, int]:
        """Return the number of rows that each rate is a share of, in a group of `count` rows."""
        shares = (self.base_rate, self.selection_rate)
        true, predicted = (0 if math.isnan(share) else round(share * count) for share in shares)
        return dict(zip(ClassRates.__dataclass_fields__, self._wholes(true, predicted, count), strict=True))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


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


@dataclass(frozen=True, repr=False)
class GroupRates(RowSequence[GroupRow]):
    """Rates of every group, and of everyone (`overall`); made by `group_rates`."""

    rows: tuple[GroupRow, ...]
    overall: GroupRow
    classes: tuple[Any, ...]

    def interval(
        self, row: GroupRow, rate: str = "selection_rate", k: Any = None, confidence: float = 0.95
    ) -> tuple[float, tuple[float, float], int]:
        """Return a rate of a group, its exact (Clopper-Pearson) interval, and the rows that it is a share of."""
        value, n = self._read(row, rate, k)
        if math.isnan(value) or not n:
            return math.nan, (math.nan, math.nan), 0
        low, high = map(float, share_interval(round(value * n), n, confidence))
        return value, (low, high), n

    def largest_gap(self, rate: str, k: Any = None) -> float:
        """Return the largest difference of a rate between groups: "accuracy", or a field of `ClassRates`.

        `k` is the class meant, for two classes the second by default. Groups where the rate is not defined
        are left out.
        """
        read = [self._read(row, rate, k)[0] for row in (*self.rows, self.overall)][:-1]
        values = [value for value in read if not math.isnan(value)]
        return max(values) - min(values) if values else math.nan

    def _read(self, row: GroupRow, rate: str, k: Any) -> tuple[float, int]:
        """Return a rate of a group, and the number of rows that it is a share of."""
        choices = ("accuracy", *ClassRates.__dataclass_fields__)
        if rate not in choices:
            raise InvalidInput(f"rate must be one of {list_values(choices)}, got {rate!r}")
        if rate == "accuracy":
            return row.accuracy, row.count
        chosen = self.classes[1] if k is None and len(self.classes) == 2 else k
        if chosen not in self.classes:
            several = ": there are several" if k is None else ""
            raise InvalidInput(f"k must be one of the classes {list_values(self.classes)}, got {k!r}{several}")
        rates = row.rates[chosen]
        return float(getattr(rates, rate)), rates.denominators(row.count)[rate]

    def __repr__(self) -> str:
        return f"<GroupRates: {len(self)} groups, {self.overall.count} rows, {len(self.classes)} classes>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shown = self.classes[1:] if len(self.classes) == 2 else self.classes
        columns = {"selected": "selection_rate", "TPR": "true_positive_rate", "FPR": "false_positive_rate"}
        columns["precision"] = "precision"
        head = ["group", "rows", "accuracy", *(f"{name}({k})" for k in shown for name in columns)]
        body = []
        for row in (*self.rows, self.overall):
            rates = [getattr(row.rates[k], rate) for k in shown for rate in columns.values()]
            body.append([row.name, str(row.count), *map(_four, (row.accuracy, *rates))])
        return head, body


def _four(value: float) -> str:
    """Return a rate as text; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.4f}"


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
        Columns whose values are crossed to make the groups; all of them by default.
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
    columns = sensitive_columns(sensitive_features, len(data.truth), wanted)
    columns = columns if wanted is None else {name: columns[name] for name in wanted}
    domain = read_domain(columns, data.truth, data.classes, group_values)
    listed: dict[str, Any] = {name: domain.values(name) for name in columns}
    place = np.zeros(len(data.truth), dtype=np.int64)
    for name, values in listed.items():
        if isinstance(values, Numeric):
            raise InvalidInput(f"column {name!r} is numeric and has no list of groups; cut it into ranges, or name by=")
        place = place * len(values) + code_public(columns[name], values, f"column {name!r}")
    size, shape = len(data.classes), tuple(map(len, listed.values()))
    if columns and all(name in (group_values or {}) for name in columns):
        shown = np.arange(math.prod(shape))
    else:
        shown, place = np.unique(place, return_inverse=True)
    flat = (place.reshape(-1) * size + data.truth_codes) * size + data.predictions
    tables = np.bincount(flat, minlength=len(shown) * size * size).astype(np.float64).reshape(-1, size, size)
    rows = []
    for combination, table in zip(shown.tolist() if columns else (), tables, strict=bool(columns)):
        codes = np.unravel_index(combination, shape)
        group = {name: values[c] for (name, values), c in zip(listed.items(), codes, strict=True)}
        rows.append(_group_row(group, table, data.classes))
    return GroupRates(tuple(rows), _group_row({}, tables.sum(axis=0), data.classes), data.classes)


def _group_row(values: dict[str, Any], confusion: NDArray[np.float64], classes: tuple[Any, ...]) -> GroupRow:
    total = float(confusion.sum())
    rates = {k: ClassRates.of(confusion, code) for code, k in enumerate(classes)}
    return GroupRow(values, int(total), _share(float(np.trace(confusion)), total), rates)


# ---------------------------------------------------------------------------------- constraints on predictions


@dataclass(frozen=True)
class RateRow:
    """One constraint on some predictions: what was asked, what was reached.

    `family` is the family it was declared by. `reached` is the left-hand side on the rows given, and `interval` holds
    confidence limits of the population's value, for this constraint alone; both are NaN if a rate has no rows.
    """

    name: str
    family: str | None
    reached: float
    sense: str
    bound: float
    interval: tuple[float, float]

    @property
    def gap(self) -> float:
        """By how much the bound is exceeded; negative where there is room left, NaN without rows."""
        return self.reached - self.bound if self.sense == "<=" else self.bound - self.reached

    @property
    def violation(self) -> float:
        """By how much the bound is exceeded; 0 where it is held, NaN without rows."""
        return self.gap if math.isnan(self.gap) or self.gap > _ROUNDING else 0.0

    @property
    def holds(self) -> bool | None:
        """Whether the bound is held on the rows given; None, never True, if one of its rates has no rows."""
        return None if math.isnan(self.gap) else self.gap <= _ROUNDING


@dataclass(frozen=True, repr=False)
class RateReport(RowSequence[RateRow]):
    """The rows of a report, one per declared constraint and in that order; made by `rate_report`."""

    rows: tuple[RateRow, ...]
    confidence: float
    soft: bool
    n_rows: int

    def __repr__(self) -> str:
        kind = "soft" if self.soft else "hard"
        held = sum(row.holds is True for row in self.rows)
        return f"<RateReport: {held} of {len(self)} constraints held by {kind} rates on {self.n_rows} rows>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        level, body = f"{show_number(100 * self.confidence)}% interval", []
        for row in self.rows:
            low, high = row.interval
            span = "-" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
            holds = {None: "no rows", True: "yes", False: "no"}[row.holds]
            bound = f"{row.sense} {show_number(row.bound)}"
            body.append([row.name, _four(row.reached), bound, span, holds])
        return ["constraint", "reached", "bound", level, "holds"], body


def rate_report(
    constraints: Any,
    y_true: Any,
    y_pred: Any = None,
    *,
    sensitive_features: Any = None,
    y_prob: Any = None,
    classes: Iterable[Any] | None = None,
    group_values: Any = None,
    confidence: float = 0.95,
) -> RateReport:
    """Return what predictions reach of each constraint, with confidence intervals.

    Parameters
    ----------
    constraints : constraint, family, constraint text, or any nesting of lists of them
    y_true : (n,) array-like
        True labels.
    y_pred : (n,) array-like, optional
        Predicted labels: the report is about hard rates.
    sensitive_features : data frame, mapping, vector
        The groups, as in ``fit``; only the columns that constraints read are looked at.
    y_prob : (n, K) array-like, optional
        Instead of `y_pred`, the probability of each class, in the order of the sorted classes: the report is
        about soft rates.
    classes, group_values : optional
        All classes, and all values of each column; where not given they are read off the data. Declare them
        to have rows for groups that do not occur.
    confidence : float
        Of the interval of each row by itself, strictly between 0 and 1. With many rows some intervals miss.

    Returns
    -------
    RateReport
        One row per constraint. A row that rests on a group without rows has ``reached`` NaN and ``holds``
        None, so it is never counted as held.

    Notes
    -----
    Intervals take the rows as independent draws of a population; see `ratewise.metrics.intervals`.
    """
    level = _validate.inside(confidence=confidence)
    named = named_values(constraints)
    data = Predictions.read(y_true, y_pred, y_prob, classes)
    columns = sensitive_columns(sensitive_features, len(data.truth), named.needed)
    domain = read_domain(columns, data.truth, data.classes, group_values, numeric=named.numeric)
    coded = {name: code_public(columns[name], domain.values(name), f"column {name!r}") for name in columns}
    declared = list(expand(constraints, domain))
    found: dict[int, tuple[float, tuple[float, float]]] = {}
    # compiling keeps the tightest of several bounds on the same rates: what was left out is compiled again
    while waiting := {id(one): one for one, _ in declared if id(one) not in found}:
        compiled = compile_constraints(list(waiting.values()), domain, to_hold=False)
        cells = compiled.code_cells(data.truth_codes, coded)
        ends = mix_intervals(compiled, moments(compiled, cells, data.predictions), level)
        for one, reached, *limits in zip(compiled.declared, *map(compiled.reached, ends), strict=True):
            low, high = limits if one.sense == "<=" else limits[::-1]
            found[id(one)] = float(reached), (float(low), float(high))
    rows = []
    for one, family in declared:
        reached, interval = found[id(one)]
        name = None if family is None else family.name
        rows.append(RateRow(one.name, name, reached, one.sense, one.bound, interval))
    return RateReport(tuple(rows), level, y_prob is not None, len(data.truth))
