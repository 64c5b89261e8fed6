"""Rows to report on, read and checked once, and what predictions reach on them.

Nothing here is private. The functions read raw rows, and what they return may only be shown to those who may
know it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.constraints.compiled import as_constraints, compile_constraints, named_values
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.families import Family
from ratewise.data.cells import parse_text
from ratewise.data.schema import Schema
from ratewise.data.table import code_public, declared_domain, distinct_or_numeric, read_domain, sensitive_columns
from ratewise.exceptions import InvalidType
from ratewise.metrics.intervals import share_interval
from ratewise.metrics.rates import (
    ClassRates,
    GroupRates,
    GroupRow,
    Predictions,
    as_probabilities,
    group_rates,
    rate_report,
)
from ratewise.report import content as c
from ratewise.report.content import Calibration, Group, Grouping, Share, finite, finites
from ratewise.training.certificate import CANNOT_TELL, Certificate, CertificateRow

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 5000
OTHER = "other values"  # the group of rows whose value of a column the model does not know
BINS = 10
FEW_ROWS = 300  # fewer rows show no calibration
FEW_IN_BIN = 20
_UNBOUNDED = -1e6  # a bound that is never tight: what is measured and not constrained


class ValueNames:
    """What columns, values and classes are called on the page: as in the schema, otherwise as they are.

    `classes` has the names of classes, `values` those of each (column, value); classes have the column None.
    """

    def __init__(self, schema: Schema | None, classes: tuple[Any, ...], columns: Mapping[str, Any]) -> None:
        self._schema = schema
        distinct = len(set(map(str, classes))) == len(classes)
        self.classes = {k: str(k) if distinct else repr(k) for k in classes}
        self.values: dict[tuple[str | None, Any], str] = {}
        tokens: dict[str, str] = {}
        listed: dict[str | None, Any] = {None: classes}
        listed |= {name: values for name, values in columns.items() if not isinstance(values, Numeric)}
        for column, value in ((column, value) for column, values in listed.items() for value in values):
            if schema is None:
                continue
            name = schema.value_label(column or schema.label, value)
            if name == str(value):
                continue
            self.values[column, value] = name
            if column is None:
                self.classes[value], tokens[f"'{value}'"] = name, f"'{name}'"
            title = "label" if column is None else schema.title_of(column)
            for left in {column or "label", repr(column or "label")}:
                for right in {str(value), repr(value)}:
                    tokens[f"{left}={right}"] = f"{title} = {name}"
                    tokens[f"{left}!={right}"] = f"{title} other than {name}"
        self._tokens = tokens
        longest = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.'])({'|'.join(map(re.escape, longest))})(?![\w.'])")

    def title(self, column: str) -> str:
        """Return what a column is called."""
        return column if self._schema is None else self._schema.title_of(column)

    def value(self, column: str, value: Any) -> str:
        """Return what a value of a column is called."""
        return str(value) if self._schema is None else self._schema.value_label(column, value)

    def text(self, words: str) -> str:
        """Return a text with names in place of ``column=value`` and of quoted classes."""
        return self._pattern.sub(lambda found: self._tokens[found[1]], words) if self._tokens else words


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Rows to report on, read and checked once; only the columns that the report reads.

    A group without rows is listed if the values of its columns are declared in `group_values`. `domain` has the classes,
    and the values of the columns that constraints are about: without `OTHER`.
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
    names: ValueNames
    domain: Domain

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
        schema: Schema | None = None,
    ) -> Evaluation:
        """Check everything that can be wrong with the rows, before anything is measured."""
        data = Predictions.read(y_true, y_pred, None, classes)
        n_rows = len(data.truth)
        by = [by] if isinstance(by, str) else by
        if by is not None and not isinstance(by, Iterable):
            raise InvalidType(f"by must be a list of columns, got {type(by).__name__}")
        wanted = None if by is None else [_columns_of(item) for item in by]
        needed = named_values(constraints).needed
        if wanted is None:
            needed = needed or None
        elif needed is not None:
            needed = needed | {name for names in wanted for name in names}
        columns = sensitive_columns(sensitive_features, n_rows, needed)
        declared = {name: values for name, values in dict(group_values or {}).items() if name in columns}
        for name, values in declared.items():
            if not isinstance(values, Numeric) and np.any(parse_text(columns[name]) == OTHER):
                declared[name] = (*values, OTHER)
        found: dict[str, Any] = {
            name: declared_domain((0, 1), {name: declared[name]}).values(name)
            if name in declared
            else distinct_or_numeric(column, name)
            for name, column in columns.items()
        }
        known = {
            name: values if isinstance(values, Numeric) else tuple(v for v in values if v != OTHER)
            for name, values in found.items()
        }
        return cls(
            constraints=constraints,
            truth=data.truth,
            predicted=np.asarray(y_pred) if not isinstance(y_pred, list | tuple) else y_pred,
            scores=None if scores is None else as_probabilities(scores, n_rows, data.classes, "scores"),
            sensitive=columns,
            classes=data.classes,
            group_values=declared,
            groupings=tuple(dict.fromkeys(_groupings(constraints, found) if wanted is None else wanted)),
            confidence=_validate.inside(confidence=confidence),
            names=ValueNames(schema, data.classes, declared),
            domain=Domain(data.classes, known, other=True),
        )


def _columns_of(item: Any) -> tuple[str, ...]:
    if isinstance(item, str):
        return (item,)
    if isinstance(item, tuple | list) and item and all(isinstance(name, str) for name in item):
        return tuple(item)
    raise InvalidType(f"by must list column names, or tuples of them to cross, got {item!r}")


def families(constraints: Any) -> list[Family]:
    """Return the families among the declarations, in order."""
    return [item for item in as_constraints(constraints) if isinstance(item, Family)]


def _groupings(constraints: Any, values: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return which columns make the groups: each by itself, and crossed where a family crosses them."""
    intervals = named_values(constraints).numeric
    found = [(name,) for name, of in values.items() if name not in intervals and not isinstance(of, Numeric)]
    for family in families(constraints):
        names = family.columns if family.columns or family.by_keyword else tuple(values)
        found += [names] if len(names) > 1 else []  # type: ignore[list-item]
    return [by for by in found if math.prod(len(values[name]) for name in by) <= MAX_GROUPS]


# --------------------------------------------------------------------------------------- measuring


def constraints_of(
    certificate: Certificate | None,
    declared: Any,
    domain: Domain,
    names: ValueNames,
    *,
    trained: Certificate | None = None,
    population: bool = True,
) -> tuple[c.Constraint, ...]:
    """Return the rows of a certificate in words, and what the certificate of the training says of each.

    The interval is that of the population, or that of the rows.
    """
    if certificate is None:
        return ()
    known = Domain(domain.classes, domain.columns, other=True)
    items = compile_constraints(declared, known, to_hold=False, allow_empty=True).items
    words = {item.name: names.text(item.description) for item in items}

    def found(row: CertificateRow, population: bool, certified: c.Constraint | None = None) -> c.Constraint:
        ends = row.population_interval if population else row.interval
        numbers = (row.estimate, *ends, row.excess) if row.resolved else (math.nan,) * 4
        lower, upper, reached, low, high, excess = finites(*row.bounds, *numbers)
        text, gap = words.get(row.name, row.name), row.kind == "gap"
        about = row.name, text, row.family, gap, None if gap else lower, upper
        return c.Constraint(*about, reached, low, high, excess, row.verdict, certified)

    others = {row.name: found(row, False) for row in trained or ()}
    return tuple(found(row, population, others.get(row.name)) for row in certificate)


def families_of(
    declared: Any,
    domain: Domain,
    names: ValueNames,
    constraints: tuple[c.Constraint, ...],
    data: Evaluation | None = None,
) -> tuple[c.Declared, ...]:
    """Return the declared families in words, with their worst state and the rates compared."""
    found = []
    for family in dict.fromkeys(families(declared)):
        states = [constraint.state for constraint in constraints if constraint.family == family.name]
        worst = min(states, key=c.STATES.index, default=CANNOT_TELL)
        points = () if data is None else _points(data, family, domain)
        found.append(c.Declared(family.name, family.describe(domain, names.values), worst, points))
    return tuple(found)


def _points(data: Evaluation, family: Family, domain: Domain) -> tuple[tuple[str, str, float | None], ...]:
    points = family.plot_data(domain)
    measured = rate_report(
        [expression >= _UNBOUNDED for _, _, expression in points],
        data.truth,
        data.predicted,
        sensitive_features=data.sensitive or None,
        classes=data.classes,
        group_values=data.group_values or None,
    )
    return tuple(
        (data.names.text(series), data.names.text(group), finite(row.reached))
        for (series, group, _), row in zip(points, measured, strict=True)
    )


def groups_of(data: Evaluation) -> tuple[Group, tuple[Grouping, ...]]:
    """Return the rates of everyone, and of the groups by each list of columns."""

    def table(by: tuple[str, ...]) -> GroupRates:
        return group_rates(
            data.truth,
            data.predicted,
            sensitive_features={name: data.sensitive[name] for name in by} or None,
            by=by or None,
            classes=data.classes,
            group_values={name: v for name, v in data.group_values.items() if name in by} or None,
        )

    def groups(by: tuple[str, ...]) -> tuple[Group, ...]:
        found = table(by)
        return tuple(_group(data, found, row) for row in (*found, found.overall))

    return groups(())[-1], tuple(Grouping(by, groups(by)[:-1]) for by in data.groupings)


def calibration_of(data: Evaluation) -> tuple[Calibration, ...]:
    """Return scores against outcomes, for everyone and for each group of enough rows by a single column.

    For two classes the score is the probability of the second class; for more it is the probability of the
    predicted class, and the outcome is whether the prediction was right.
    """
    if data.scores is None or len(data.truth) < FEW_ROWS:
        return ()
    codes = Predictions.read(data.truth, data.predicted, None, data.classes)
    if len(data.classes) == 2:
        score, outcome = data.scores[:, 1], codes.truth_codes == 1
    else:
        score, outcome = data.scores.max(axis=1), codes.truth_codes == codes.predictions
    found = [_calibration("everyone", "", score, outcome, data.confidence)]
    for by in data.groupings:
        if len(by) == 1:
            found += _calibrations(data, by[0], score, outcome)
    return tuple(found)


def accuracy_of(data: Evaluation, predicted: Any) -> Share:
    """Return how often predictions are right."""
    codes = Predictions.read(data.truth, predicted, None, data.classes)
    right = codes.truth_codes == codes.predictions
    return _share(float(right.sum()), len(right), data.confidence)


def _group(data: Evaluation, table: GroupRates, row: GroupRow) -> Group:
    def share(rate: str, k: Any = None) -> Share:
        value, (low, high), rows = table.interval(row, rate, k, data.confidence)
        return Share(finite(value), finite(low), finite(high), rows)

    rates = {
        data.names.classes[k]: {name: share(name, k) for name in ClassRates.__dataclass_fields__} for k in row.rates
    }
    return Group(data.names.text(row.name), row.count, share("accuracy"), rates)


def _share(hits: float, rows: int, confidence: float) -> Share:
    if not rows:
        return Share(None, None, None, 0)
    low, high = map(float, share_interval(hits, rows, confidence))
    return Share(hits / rows, low, high, rows)


def _calibrations(data: Evaluation, column: str, score: Floats, outcome: Any) -> Iterator[Calibration]:
    declared = {name: values for name, values in data.group_values.items() if name == column} or None
    domain = read_domain({column: data.sensitive[column]}, data.truth, data.classes, declared)
    values: Any = domain.values(column)
    codes = code_public(data.sensitive[column], values, f"column {column!r}")
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(values) + 1))
    for code, value in enumerate(values):
        rows = order[edges[code] : edges[code + 1]]
        if len(rows) >= FEW_ROWS:
            name = data.names.text(f"{column}={value}")
            yield _calibration(name, column, score[rows], outcome[rows], data.confidence)


def _calibration(group: str, by: str, score: Floats, outcome: Any, confidence: float) -> Calibration:
    place = np.minimum((score * BINS).astype(np.intp), BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    hits = np.bincount(place, outcome, minlength=BINS)
    sums = np.bincount(place, score, minlength=BINS)
    bins = tuple(
        c.Bin(float(sums[b] / rows[b]), _share(float(hits[b]), int(rows[b]), confidence))
        for b in np.flatnonzero(rows >= FEW_IN_BIN)
    )
    error = float(np.abs(sums - hits).sum() / len(score))
    return Calibration(group, by, bins, error, float(np.mean((score - outcome) ** 2)), len(score))
