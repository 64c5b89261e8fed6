"""Accuracy and rates on private hold-out rows, released once with noise.

`ratewise.metrics` reads rows and tells exactly what it finds: right for rows that may be told about. Here the
hold-out is private too.

What is released: one histogram, of the cells that the constraints, the groups and the label need, by
predicted class. What one row changes: one entry, by 1, when it is added or removed; sensitivity 1. Where it
is booked: in the ledger, before the release, as one `GaussianEvent`. Accuracy, rates, gaps and intervals are
all read off that one table.

>>> from ratewise import demographic_parity
>>> from ratewise.datasets import census_like
>>> people = census_like(20_000, random_state=0)
>>> report = private_evaluation(
...     demographic_parity("sex", max_gap=0.3), people.y, people.y, sensitive_features=people.sensitive,
...     classes=people.classes, group_values=people.group_values, epsilon=0.5, random_state=0,
... )
>>> low, high = report.accuracy.interval
>>> low <= 1.0 <= high, [row.holds for row in report]
(True, [True, True])
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from ratewise import _validate
from ratewise.accounting import Budget, Ledger, calibrate
from ratewise.accounting.events import NEIGHBOURS, GaussianEvent
from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain, Numeric
from ratewise.exceptions import InvalidInput, InvalidType, PrivacyLeakWarning
from ratewise.families import Family, flatten
from ratewise.layout import html_table, number, plain, text_table
from ratewise.mechanisms import RoundedGaussianMechanism
from ratewise.metrics import RateRow
from ratewise.noisy_rates import noisy_intervals
from ratewise.partition import compile_constraints
from ratewise.predicates import Predicate, everyone, group, label
from ratewise.predictions import Predictions
from ratewise.randomness import warn_of_seed
from ratewise.rates import Constraint, Expression, rate, rows
from ratewise.seeds import USED_SEEDS, streams_for
from ratewise.tables import interval_columns, needed_columns, read_domain, sensitive_columns
from ratewise.values import show_number

__all__ = ["Estimate", "PrivateReport", "private_evaluation"]

Floats = NDArray[np.float64]


_UNBOUNDED = -1e6  # a bound that is never tight: what is measured and not limited
_USELESS = 0.5  # half width of accuracy's interval, from noise alone, at which nothing is learned


@dataclass(frozen=True)
class Estimate:
    """One released number: its name, value, and an interval for noise and sampling together.

    Value and interval are NaN where the number rests on too few rows beside the noise.
    """

    name: str
    value: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; NaN becomes None."""
        return {
            "name": self.name,
            "value": plain(self.value),
            "interval": [plain(end) for end in self.interval],
        }


@dataclass(frozen=True, repr=False, eq=False)
class PrivateReport(Sequence[RateRow]):
    """Released accuracy, rates and constraints of private rows; made by `private_evaluation`.

    Attributes
    ----------
    rows : tuple of RateRow
        One per declared constraint: `reached` is a noisy value, `interval` covers noise and sampling.
    accuracy : Estimate
    groups : tuple of Estimate
        Rate of each class and accuracy, for every value of each column.
    counts : (Q, K) array
        The released histogram, cells by predicted class; everything above is computed from it.
    cells : tuple of str
        What the rows of each cell have in common.
    noise : float
        Standard deviation of the noise on each entry of `counts`.
    event : GaussianEvent
        What the ledger has booked.
    ledger : Ledger
    n_rows, confidence
    """

    rows: tuple[RateRow, ...]
    accuracy: Estimate
    groups: tuple[Estimate, ...]
    counts: Floats
    cells: tuple[str, ...]
    noise: float
    event: GaussianEvent
    ledger: Ledger
    n_rows: int
    confidence: float

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
        """Whether every constraint is held by the released values; one that rests on too few rows is not."""
        return all(row.holds is True for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON."""
        return {
            "rows": self.n_rows,
            "confidence": self.confidence,
            "noise": self.noise,
            "event": self.event.to_dict(),
            "accuracy": self.accuracy.to_dict(),
            "groups": [estimate.to_dict() for estimate in self.groups],
            "constraints": [row.to_dict() for row in self.rows],
            "cells": list(self.cells),
            "counts": self.counts.tolist(),
        }

    def __repr__(self) -> str:
        return (
            f"<PrivateReport: accuracy {number(self.accuracy.value)} on {self.n_rows} private rows, "
            f"noise {self.noise:.3g} on each count>"
        )

    def __str__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table(), repr(self).strip("<>"))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["released", "value", "bound", f"{show_number(100 * self.confidence)}% interval", "result"]
        lines = [[e.name, number(e.value), "", _span(e.interval), ""] for e in (self.accuracy, *self.groups)]
        for row in self.rows:
            bound = f"{row.sense} {show_number(row.bound)}"
            verdict = "too few rows" if row.holds is None else row.verdict
            lines.append([row.name, number(row.reached), bound, _span(row.interval), verdict])
        return head, lines


def private_evaluation(
    constraints: Any,
    y_true: Any,
    y_pred: Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    X: Any = None,
    sensitive_features: Any = None,
    classes: Iterable[Any] | None = None,
    group_values: Any = None,
    neighbours: str = "add_or_remove",
    ledger: Ledger | None = None,
    data_name: str = "hold-out rows",
    confidence: float = 0.95,
    random_state: Any = None,
) -> PrivateReport:
    """Release accuracy, rates and gaps of a private hold-out, (epsilon, delta)-privately.

    Parameters
    ----------
    constraints : constraint, family, or any nesting of lists of them; None for accuracy and groups only
    y_true : (n,) array-like
        True labels of the hold-out.
    y_pred : (n,) array-like, or a fitted model
        Predicted labels; or a model whose `predict` is called with `X`.
    epsilon, delta : float
        What this release may cost.
    X : table, optional
        Features of the hold-out, if `y_pred` is a model.
    sensitive_features : data frame, mapping, vector
        The groups; only columns that constraints read are looked at (all of them without constraints).
    classes, group_values : optional
        All classes, and all values of each column. Declare them: otherwise they are read off the hold-out,
        with a `PrivacyLeakWarning`. The classes of a model need no declaration.
    neighbours : str
    ledger : Ledger, optional
        Where to book; by default a new one with this budget as its cap. If the hold-out is part of the data
        that a model was trained on, it must be that model's ledger.
    data_name : str
        Name of these rows in the ledger.
    confidence : float
        Of each interval by itself.
    random_state : int, NumPy generator or None
        None takes a secure source. A seed must stay secret, and serves one evaluation per ledger.

    Raises
    ------
    BudgetExceeded
        The ledger's cap does not allow this release; nothing was released.
    InvalidInput
        The rows are too few for this budget to learn anything; nothing was released.
    """
    level = _validate.inside(confidence=confidence)
    noise = _noise(epsilon, delta, neighbours, ledger)
    streams = streams_for("evaluation", random_state)
    labels, known = _predicted(y_pred, X, classes)
    data = Predictions.read(y_true, labels, None, known)
    columns, domain, leaks = _groups(constraints, data, sensitive_features, group_values)
    if known is None:
        leaks = ["the classes", *leaks]
    measured = Measured(constraints, domain)
    _refuse_useless(len(data.truth), noise, measured.partition, epsilon, level)
    _warn_leaks(leaks)
    cells = measured.partition.cells(data.truth_codes, columns)
    book = ledger if ledger is not None else Ledger(cap=Budget(epsilon, delta), neighbours=neighbours)
    event = GaussianEvent(noise)
    warn_of_seed(random_state)
    USED_SEEDS.add(book, streams)
    book.book(event, purpose="evaluation", data=data_name)
    mechanism = RoundedGaussianMechanism(noise, 1.0, whole=True)
    released = mechanism.release(measured.partition.histogram(cells, data.predictions), streams.histogram)
    estimates = measured.estimates(released, len(data.truth), mechanism.standard_deviation, level)
    return PrivateReport(
        rows=tuple(measured.limits(estimates)),
        accuracy=estimates[0],
        groups=tuple(estimates[1 : measured.n_measures]),
        counts=released,
        cells=measured.partition.cell_names,
        noise=mechanism.standard_deviation,
        event=event,
        ledger=book,
        n_rows=len(data.truth),
        confidence=level,
    )


# ------------------------------------------------------------------------- before anything is spent


def _noise(epsilon: Any, delta: Any, neighbours: Any, ledger: Any) -> float:
    _validate.one_of(NEIGHBOURS, neighbours=neighbours)
    if ledger is not None:
        if not isinstance(ledger, Ledger):
            raise InvalidType(f"ledger must be a Ledger or None, got {type(ledger).__name__}")
        if ledger.neighbours != neighbours:
            raise InvalidInput(
                f"neighbours is {neighbours!r}, but the ledger keeps its book for {ledger.neighbours!r}; "
                "use one relation for both"
            )
    return calibrate(epsilon, delta, 1.0, 1, histogram=None, neighbours=neighbours).gradient_noise


def _predicted(y_pred: Any, X: Any, classes: Any) -> tuple[Any, Any]:
    """Return predicted labels and the classes that are known without looking at the hold-out."""
    if not hasattr(y_pred, "predict"):
        if X is not None:
            raise InvalidInput("X is given, but y_pred is no model; pass a fitted model, or leave X out")
        return y_pred, classes
    if X is None:
        raise InvalidInput("y_pred is a model, so X must be given: the features of the hold-out")
    return y_pred.predict(X), getattr(y_pred, "classes_", None) if classes is None else classes


def _groups(
    constraints: Any, data: Predictions, sensitive_features: Any, group_values: Any
) -> tuple[dict[str, Any], Domain, list[str]]:
    needed = None if constraints is None else needed_columns(constraints)
    lone = next(iter(needed)) if needed and len(needed) == 1 else None
    columns = sensitive_columns(sensitive_features, len(data.truth), lone_name=lone, needed=needed)
    domain, leaks = read_domain(
        columns, data.truth, data.classes, group_values, numeric=interval_columns(constraints)
    )
    return columns, domain, leaks


def _warn_leaks(leaks: list[str]) -> None:
    if leaks:
        warnings.warn(
            f"read off the data, and not covered by epsilon: {'; '.join(leaks)}. Declare them as public "
            "facts with classes=... and group_values=...",
            PrivacyLeakWarning,
            stacklevel=3,
        )


def _refuse_useless(
    n_rows: int, noise: float, partition: CompiledConstraints, epsilon: float, confidence: float
) -> None:
    """Raise if noise alone leaves accuracy open; by public facts only."""
    half = math.sqrt(partition.n_cells * (1 - 1 / partition.n_classes))
    reach = float(norm.ppf((1 + confidence) / 2)) * noise * half / n_rows
    if reach > _USELESS:
        raise InvalidInput(
            f"{n_rows} rows are too few for epsilon {epsilon:g}: accuracy would be known to +-{reach:.2g} "
            f"only; take an epsilon of about {epsilon * reach / 0.05:.2g} or more, or at least "
            f"{math.ceil(n_rows * reach / 0.05)} rows"
        )


# ------------------------------------------------------------------------------- what is measured


class Measured:
    """Accuracy, group rates and constraints on one partition, so that one histogram tells them all."""

    def __init__(self, constraints: Any, domain: Domain) -> None:
        self.declared = list(_declared(constraints, domain))
        measures = list(_measures(domain))
        self.n_measures = len(measures)
        limits = [constraint for constraint, _ in self.declared]
        self._all = [expression >= _UNBOUNDED for _, expression in measures] + limits
        self._names = [name for name, _ in measures] + [constraint.name for constraint in limits]
        # one sum that reads everything comes first in each round, so that each has the same cells; its
        # coefficients are all positive and all different, so nothing cancels and nothing else is like it
        terms = dict.fromkeys(term for c in self._all for term, _ in c.expression.terms)
        together = Expression((term, 1.0 + place) for place, term in enumerate(terms))
        self._anchor = together >= _UNBOUNDED
        self._rounds = self._compiled(domain)
        self.partition = self._rounds[0]

    def _compiled(self, domain: Domain) -> list[CompiledConstraints]:
        """Return compiled rounds that hold every expression; compiling keeps one of several alike."""
        waiting = {id(constraint): constraint for constraint in self._all}
        rounds = []
        while waiting:
            compiled = compile_constraints([self._anchor, *waiting.values()], domain, to_hold=False)
            for constraint in compiled.declared:
                waiting.pop(id(constraint), None)
            rounds.append(compiled)
        return rounds

    def estimates(self, released: Floats, n_rows: int, noise: float, confidence: float) -> list[Estimate]:
        """Return an estimate for each measure and each constraint, in order."""
        found: dict[int, tuple[float, float, float]] = {}
        for compiled in self._rounds:
            values, low, high = noisy_intervals(compiled, released, n_rows, noise, confidence)
            reached = [compiled.reached(ends) for ends in (values, low, high)]
            for j, constraint in enumerate(compiled.declared):
                value, first, second = (float(ends[j]) for ends in reached)
                found[id(constraint)] = value, min(first, second), max(first, second)
        return [
            Estimate(name, found[id(constraint)][0], found[id(constraint)][1:])
            for name, constraint in zip(self._names, self._all, strict=True)
        ]

    def limits(self, estimates: list[Estimate]) -> Iterator[RateRow]:
        """Yield the rows of the constraints."""
        for (constraint, family), estimate in zip(self.declared, estimates[self.n_measures :], strict=True):
            yield RateRow(
                name=constraint.name,
                family=family,
                reached=estimate.value,
                sense=constraint.sense,
                bound=constraint.bound,
                interval=estimate.interval,
            )


def _declared(constraints: Any, domain: Domain) -> Iterator[tuple[Constraint, str | None]]:
    """Yield the constraints, each with the name of the family that it was declared by."""
    if isinstance(constraints, list | tuple | set | frozenset) and not isinstance(constraints, Constraint):
        for item in constraints:
            yield from _declared(item, domain)
    elif constraints is not None:
        family = constraints.name if isinstance(constraints, Family) else None
        yield from ((constraint, family) for constraint in flatten(constraints, domain))


def _measures(domain: Domain) -> Iterator[tuple[str, Expression]]:
    """Yield what is told besides the constraints: accuracy, then rates and accuracy of each group."""
    yield "accuracy", _accuracy(domain, everyone)
    for column, values in domain.columns.items():
        if isinstance(values, Numeric):
            continue
        for value in values:
            members = group(**{column: value})
            for k in domain.classes[1:] if len(domain.classes) == 2 else domain.classes:
                told = rate(k, where=members)
                yield told.name, told
            yield f"accuracy | {members.name}", _accuracy(domain, members)


def _accuracy(domain: Domain, members: Predicate) -> Expression:
    right = [rate(k, where=label(k) & members, out_of=rows(members)) for k in domain.classes]
    return sum(right[1:], start=right[0])


def _span(interval: tuple[float, float]) -> str:
    return "-" if math.isnan(interval[0]) else f"[{interval[0]:.4f}, {interval[1]:.4f}]"
