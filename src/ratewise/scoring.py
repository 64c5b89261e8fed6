"""How a trial of a private selection is scored: by accuracy among those that hold the constraints.

The table counts predictions of the scored rows by cell, as in `ratewise.evaluation`. When a row is added or
removed, one entry changes by 1: sensitivity 1. It is released with Gaussian noise inside the trial's budget,
and only the winner's is ever shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone

from ratewise.accounting.events import GaussianEvent
from ratewise.domain import Domain
from ratewise.evaluation import Estimate, Measured
from ratewise.exceptions import InvalidInput
from ratewise.metrics import RateRow
from ratewise.table_model import TableClassifier
from ratewise.tables import interval_columns, needed_columns, read_domain, sensitive_columns


@dataclass(frozen=True)
class TrialBudget:
    """What one trial may cost, and the release of its score."""

    epsilon: float
    delta: float
    score: GaussianEvent


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial that ran, with its released score."""

    estimator: Any
    setting: dict[str, Any]
    accuracy: Estimate
    rates: tuple[RateRow, ...]
    tolerance: float

    @property
    def rank(self) -> tuple[int, float]:
        """Order of the runs: those that hold the constraints by accuracy, then the others by how far off."""
        off = max((row.violation for row in self.rates if row.holds is not None), default=0.0)
        return (1, self.accuracy.value) if off <= self.tolerance else (0, -off)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The private rows of a search, and what their scores are measured by; lives as long as the fit."""

    given: tuple[Any, Any]
    sensitive: Any
    cells: Any
    domain: Domain
    measured: Measured

    @classmethod
    def read(cls, estimator: Any, constraints: Any, X: Any, y: Any, sensitive: Any) -> ScoredRows:
        """Return the rows with their cells; classes and group values must be declared."""
        if isinstance(estimator, TableClassifier):
            labels, groups = (
                clone(estimator).set_params(constraints=constraints).labels_and_groups(X, y, sensitive)
            )
            classes, values = estimator.schema.classes, {n: estimator.schema.group_values[n] for n in groups}
        else:
            labels, classes, values = y, estimator.classes, estimator.group_values
            if labels is None:
                raise InvalidInput("y is missing; pass the labels to fit")
            needed = needed_columns(constraints) if constraints is not None else set()
            lone = next(iter(needed)) if needed and len(needed) == 1 else None
            groups = sensitive_columns(sensitive, len(labels), lone_name=lone, needed=needed)
        if classes is None:
            raise InvalidInput("classes must be declared for a search: set classes=... on the estimator")
        domain, leaks = read_domain(groups, labels, classes, values, numeric=interval_columns(constraints))
        if leaks:
            raise InvalidInput(
                f"group values must be declared for a search, but {'; '.join(leaks)} would be read off the "
                "data; set group_values=... on the estimator"
            )
        measured = Measured(constraints, domain)
        codes = domain.label_codes(labels)
        return cls((X, y), sensitive, measured.partition.cells(codes, groups), domain, measured)

    def score_deviation(self, noise: float) -> float:
        """Return by how much noise moves the accuracy of a trial; from public facts only."""
        partition = self.measured.partition
        entries = partition.n_cells * (1 - 1 / partition.n_classes)
        return noise * math.sqrt(entries) / len(self.cells)
