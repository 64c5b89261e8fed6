"""Rates that predictions reach, against what was asked: for any model, ours or not.

>>> from ratewise.families import demographic_parity
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
>>> report.all_hold, report.worst.verdict
(False, 'open')

Nothing here is private: reports read the rows they are given. Use them on data whose rates may be told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from ratewise import _validate
from ratewise.confusion import ClassRates, GroupRates, GroupRow, group_rates
from ratewise.domain import Domain
from ratewise.families import Family, flatten
from ratewise.intervals import mix_intervals, moments
from ratewise.layout import html_table, number, plain, text_table
from ratewise.partition import compile_constraints
from ratewise.predictions import Predictions
from ratewise.rates import Constraint
from ratewise.tables import interval_columns, needed_columns, read_domain, sensitive_columns
from ratewise.values import show_number

__all__ = ["ClassRates", "GroupRates", "GroupRow", "RateReport", "RateRow", "group_rates", "rate_report"]

_ROUNDING = 1e-9  # a rate computed as 0.05 + 1e-17 holds a bound of 0.05


@dataclass(frozen=True)
class RateRow:
    """One constraint on some predictions: what was asked, what was reached.

    Attributes
    ----------
    name : str
        The constraint as text, or the name it was given.
    family : str or None
        The family it was declared by, such as ``demographic_parity(sex) <= 0.05``.
    reached : float
        Value of the left-hand side on the rows given; NaN if one of its rates has no rows.
    sense : "<=" or ">="
    bound : float
    interval : (float, float)
        Confidence limits of the population's value, for this constraint alone; NaN without rows.
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

    @property
    def verdict(self) -> str:
        """What the interval says of the population: "held", "broken", "open" (either), or "no rows"."""
        if self.holds is None:
            return "no rows"
        low, high = (end - self.bound for end in self.interval)
        better, worse = (low, high) if self.sense == "<=" else (-high, -low)
        if worse <= _ROUNDING:
            return "held"
        return "broken" if better > _ROUNDING else "open"

    @property
    def significant(self) -> bool:
        """Whether the whole interval lies beyond the bound: a violation that chance does not explain."""
        return self.verdict == "broken"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data, fit for JSON: NaN becomes None."""
        return {
            "name": self.name,
            "family": self.family,
            "reached": plain(self.reached),
            "sense": self.sense,
            "bound": self.bound,
            "interval": [plain(end) for end in self.interval],
            "holds": self.holds,
            "violation": plain(self.violation),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, repr=False)
class RateReport(Sequence[RateRow]):
    """The rows of a report, one per declared constraint and in that order; made by `rate_report`."""

    rows: tuple[RateRow, ...]
    confidence: float
    soft: bool
    n_rows: int

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> RateRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RateRow, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def all_hold(self) -> bool:
        """Whether every constraint is held; a constraint without rows is not."""
        return all(row.holds is True for row in self.rows)

    @property
    def worst(self) -> RateRow | None:
        """The row that exceeds its bound most (or has least room left); None if no row could be judged."""
        judged = [row for row in self.rows if row.holds is not None]
        return max(judged, key=lambda row: row.gap, default=None)

    @property
    def max_violation(self) -> float:
        """Largest amount by which a bound is exceeded; 0 if none is."""
        return max((row.violation for row in self.rows if row.holds is not None), default=0.0)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as plain data, fit for JSON."""
        return [row.to_dict() for row in self.rows]

    def __repr__(self) -> str:
        kind = "soft" if self.soft else "hard"
        held = sum(row.holds is True for row in self.rows)
        return f"<RateReport: {held} of {len(self)} constraints held by {kind} rates on {self.n_rows} rows>"

    def __str__(self) -> str:
        return text_table(self._head(), [_cells(row) for row in self.rows])

    def _repr_html_(self) -> str:
        return html_table(self._head(), [_cells(row) for row in self.rows], repr(self).strip("<>"))

    def _head(self) -> list[str]:
        return ["constraint", "reached", "bound", f"{show_number(100 * self.confidence)}% interval", "result"]


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
    constraints : constraint, family, or any nesting of lists of them
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
    Intervals take the rows as independent draws of a population; see `ratewise.intervals`.
    """
    level = _validate.inside(confidence=confidence)
    columns_read = needed_columns(constraints)
    data = Predictions.read(y_true, y_pred, y_prob, classes)
    columns = sensitive_columns(
        sensitive_features,
        len(data.truth),
        lone_name=next(iter(columns_read)) if columns_read and len(columns_read) == 1 else None,
        needed=columns_read,
    )
    numeric = interval_columns(constraints)
    domain, _ = read_domain(columns, data.truth, data.classes, group_values, numeric=numeric)
    declared = [(c, family) for item, family in _sources(constraints) for c in flatten(item, domain)]
    rows = _rows(declared, domain, data, columns, level)
    return RateReport(tuple(rows), level, y_prob is not None, len(data.truth))


def _sources(constraints: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield single declarations, with the name of the family if it is one."""
    if isinstance(constraints, list | tuple | set | frozenset):
        for item in constraints:
            yield from _sources(item)
    elif constraints is not None:
        yield constraints, constraints.name if isinstance(constraints, Family) else None


def _rows(
    declared: list[tuple[Constraint, str | None]],
    domain: Domain,
    data: Predictions,
    columns: dict[str, Any],
    confidence: float,
) -> list[RateRow]:
    """Return a row per declared constraint.

    Compiling keeps the tightest of several bounds on the same rates; a report shows each, so what was left
    out is compiled again until nothing is left.
    """
    found: dict[int, RateRow] = {}
    families = {id(constraint): family for constraint, family in declared}
    waiting = {id(constraint): constraint for constraint, _ in declared}
    while waiting:
        compiled = compile_constraints(list(waiting.values()), domain, to_hold=False)
        cells = compiled.cells(data.truth_codes, columns)
        values, low, high = mix_intervals(compiled, moments(compiled, cells, data.predictions), confidence)
        reached, ends = compiled.reached(values), (compiled.reached(low), compiled.reached(high))
        for j, constraint in enumerate(compiled.declared):
            del waiting[id(constraint)]
            first, second = float(ends[0][j]), float(ends[1][j])
            found[id(constraint)] = RateRow(
                name=constraint.name,
                family=families[id(constraint)],
                reached=float(reached[j]),
                sense=constraint.sense,
                bound=constraint.bound,
                interval=(first, second) if constraint.sense == "<=" else (second, first),
            )
    return [found[id(constraint)] for constraint, _ in declared]


def _cells(row: RateRow) -> list[str]:
    low, high = row.interval
    span = "-" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
    result = {True: "holds", False: "broken", None: "no rows"}[row.holds]
    if row.holds is False and not row.significant:
        result = "broken, within chance"
    return [row.name, number(row.reached), f"{row.sense} {show_number(row.bound)}", span, result]
