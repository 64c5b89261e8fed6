"""What predictions do, measured on rows that are given: limits, rates by group, calibration, rivals.

Nothing here is private. The functions read raw rows, and what they return may only be shown to those who
may know it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.confusion import ClassRates, GroupRow, group_rates
from ratewise.exceptions import InvalidInput
from ratewise.families import Family
from ratewise.grammar import format_constraint
from ratewise.intervals import share_interval
from ratewise.metrics import RateReport, RateRow
from ratewise.predictions import Predictions
from ratewise.report.content import (
    HELD,
    MISSED,
    STATES,
    UNCLEAR,
    Bin,
    Calibration,
    Declared,
    Group,
    Grouping,
    Limit,
    Share,
    finite,
)
from ratewise.report.evaluation import Evaluation, families
from ratewise.report.words import family_in_words
from ratewise.tables import read_domain

Floats = npt.NDArray[np.float64]

BINS = 10
_STATE = {"held": HELD, "broken": MISSED, "open": UNCLEAR, "no rows": UNCLEAR}


def limits_of(report: RateReport, doubts: Mapping[str, str] | None = None) -> tuple[Limit, ...]:
    """Return a limit per row of a rate report, with the doubts that training had about it."""
    known = doubts or {}
    return tuple(_limit(row, known.get(row.name)) for row in report)


def families_of(data: Evaluation, report: RateReport) -> tuple[Declared, ...]:
    """Return the families that were declared, in words, with the state of the worst of each."""
    found = []
    for family in families(data.constraints):
        states = [_STATE[row.verdict] for row in report if row.family == family.name]
        worst = min(states, key=STATES.index, default=UNCLEAR)
        found.append(Declared(_text(family), family_in_words(family), len(states), worst))
    return tuple(dict.fromkeys(found))


def _text(family: Family) -> str:
    """Return a family as text that can be copied into a constraint, if there is such a text."""
    try:
        return format_constraint(family)
    except InvalidInput:
        return family.name


def groups_of(data: Evaluation) -> tuple[Group, tuple[Grouping, ...]]:
    """Return the rates of everyone, and of the groups by each list of columns."""

    def table(by: tuple[str, ...]) -> Any:
        return group_rates(
            data.truth,
            data.predicted,
            sensitive_features={name: data.sensitive[name] for name in by} or None,
            by=by or None,
            classes=data.classes,
            group_values={name: v for name, v in data.group_values.items() if name in by} or None,
        )

    names = class_names(data.classes)
    everyone = _group(table(()).overall, names, data.confidence)
    return everyone, tuple(
        Grouping(by, tuple(_group(row, names, data.confidence) for row in table(by))) for by in data.groupings
    )


def calibration_of(data: Evaluation) -> tuple[Calibration, ...]:
    """Return scores against outcomes, for everyone and for each group by a single column.

    For two classes the score is the probability of the second class; for more it is the probability of the
    predicted class, and the outcome is whether the prediction was right.
    """
    if data.scores is None:
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


def accuracy_of(data: Evaluation, predicted: Any) -> tuple[Share, npt.NDArray[np.bool_]]:
    """Return how often predictions are right, and which."""
    codes = Predictions.read(data.truth, predicted, None, data.classes)
    right = codes.truth_codes == codes.predictions
    return _share(float(right.sum()), len(right), data.confidence), right


def difference(
    ours: npt.NDArray[np.bool_], theirs: npt.NDArray[np.bool_], confidence: float
) -> tuple[float, float, float]:
    """Return how much oftener `theirs` is right than `ours` on the same rows, with limits.

    Only rows on which the two differ tell anything. Given how many those are, the share that `theirs` has
    right gets exact limits.
    """
    more, less = int(np.sum(theirs & ~ours)), int(np.sum(ours & ~theirs))
    differing, n = more + less, len(ours)
    low, high = share_interval(np.array([float(more)]), np.array([float(differing)]), confidence)
    ends = (float(low[0]), float(high[0])) if differing else (0.5, 0.5)
    scale = differing / n
    return (more - less) / n, scale * (2 * ends[0] - 1), scale * (2 * ends[1] - 1)


def class_names(classes: tuple[Any, ...]) -> dict[Any, str]:
    """Return the classes as texts; as Python writes them if their plain texts do not tell them apart."""
    names = {k: str(k) for k in classes}
    return names if len(set(names.values())) == len(names) else {k: repr(k) for k in classes}


# ---------------------------------------------------------------------------------------- measuring


def _limit(row: RateRow, doubt: str | None) -> Limit:
    return Limit(
        name=row.name,
        family=row.family,
        sense=row.sense,
        bound=float(row.bound),
        reached=finite(row.reached),
        low=finite(row.interval[0]),
        high=finite(row.interval[1]),
        gap=finite(row.gap),
        state=_STATE[row.verdict],
        doubt=doubt,
    )


def _group(row: GroupRow, names: dict[Any, str], confidence: float) -> Group:
    rates = {names[k]: _class_shares(rate, row.count, confidence) for k, rate in row.rates.items()}
    right = 0.0 if math.isnan(row.accuracy) else row.accuracy * row.count
    return Group(row.name, row.count, _share(right, row.count, confidence), rates)


def _class_shares(rates: ClassRates, count: int, confidence: float) -> dict[str, Share]:
    true = 0.0 if math.isnan(rates.base_rate) else round(rates.base_rate * count)
    predicted = 0.0 if math.isnan(rates.selection_rate) else round(rates.selection_rate * count)
    below = {
        "base_rate": count,
        "selection_rate": count,
        "true_positive_rate": true,
        "false_negative_rate": true,
        "false_positive_rate": count - true,
        "true_negative_rate": count - true,
        "precision": predicted,
        "false_discovery_rate": predicted,
    }
    names = list(below)
    values = np.array([getattr(rates, name) for name in names])
    rows = np.array([float(below[name]) for name in names])
    low, high = share_interval(np.round(np.nan_to_num(values) * rows), rows, confidence)
    return {name: _shown_share(values[i], low[i], high[i], int(rows[i])) for i, name in enumerate(names)}


def _shown_share(value: float, low: float, high: float, rows: int) -> Share:
    return Share(float(value), float(low), float(high), rows) if rows else Share(None, None, None, 0)


def _share(hits: float, rows: int, confidence: float) -> Share:
    if not rows:
        return Share(None, None, None, 0)
    low, high = share_interval(np.array([hits]), np.array([float(rows)]), confidence)
    return Share(hits / rows, float(low[0]), float(high[0]), rows)


def _calibrations(data: Evaluation, column: str, score: Floats, outcome: Any) -> Iterator[Calibration]:
    domain, _ = read_domain(
        {column: data.sensitive[column]}, data.truth, data.classes, _only(data.group_values, column)
    )
    codes = domain.column_codes(column, data.sensitive[column])
    values: Any = domain.values(column)
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(values) + 1))
    for code, value in enumerate(values):
        rows = order[edges[code] : edges[code + 1]]
        if len(rows):
            yield _calibration(f"{column}={value}", column, score[rows], outcome[rows], data.confidence)


def _only(values: dict[str, Any], column: str) -> dict[str, Any] | None:
    return {column: values[column]} if column in values else None


def _calibration(group: str, by: str, score: Floats, outcome: Any, confidence: float) -> Calibration:
    place = np.minimum((score * BINS).astype(np.intp), BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    hits = np.bincount(place, outcome, minlength=BINS)
    sums = np.bincount(place, score, minlength=BINS)
    bins = tuple(
        Bin(float(sums[b] / rows[b]), _share(float(hits[b]), int(rows[b]), confidence))
        for b in np.flatnonzero(rows)
    )
    error = float(np.abs(sums - hits).sum() / len(score))
    return Calibration(group, by, bins, error, float(np.mean((score - outcome) ** 2)), len(score))
