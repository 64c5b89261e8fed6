"""A minute with the library, on synthetic people: ``python -m ratewise.cli.demo``.

Five models of the same raw columns, with nothing declared, with and without privacy and constraints on the gap between
women and men. The table shows accuracy and gaps on other people from the same distribution. At the end the last model
is certified, and reported on a page that is written to the current folder.
"""

from __future__ import annotations

import math
import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ratewise.constraints.families import demographic_parity, equalized_odds
from ratewise.datasets import People, census_like
from ratewise.estimators.classifier import RateConstrainedClassifier
from ratewise.exceptions import SeedWarning
from ratewise.metrics.rates import rate_report

if TYPE_CHECKING:
    from ratewise.report import Report

ROWS = 60_000
EPSILON, DELTA = 1.0, 1e-6
MAX_GAP = 0.05
PAGE = "ratewise-demo.html"

_RATES, _ODDS = demographic_parity("sex", max_gap=MAX_GAP), equalized_odds("sex", max_gap=MAX_GAP)
_MODELS: tuple[tuple[str, Any, float | None], ...] = (
    ("plain", None, None),
    ("private", None, EPSILON),
    ("equal rates", _RATES, None),
    ("private, equal odds", _ODDS, EPSILON),
    ("private, equal rates", _RATES, EPSILON),
)
_LEGEND = f"""
Gaps between women and men in how often high income is predicted: among all ("rates"), and
among people of equal true income ("odds"); in brackets the requested bound. Measured on
{2 * ROWS:,} other people, who differ from the training rows by chance."""


class Row(NamedTuple):
    """One model, and what it reached on people it has not seen: accuracy, and gaps of rates (`_RATES`, `_ODDS`)."""

    name: str
    model: RateConstrainedClassifier
    accuracy: float
    rates_gap: float
    odds_gap: float

    @property
    def epsilon(self) -> float:
        """What was spent; infinite without privacy."""
        return float(self.model.privacy_.epsilon)

    def __str__(self) -> str:
        # upwards: a table that rounds down would claim more privacy than there is
        spent = "none" if math.isinf(self.epsilon) else f"{math.ceil(self.epsilon * 1e4) / 1e4:.4f}"
        gaps = []
        for gap, family in ((self.rates_gap, _RATES), (self.odds_gap, _ODDS)):
            gaps.append(f"{gap:.4f}" + f" (of {MAX_GAP:g})" * (self.model.constraints is family))
        return f"{self.name:<22} {self.accuracy:>8.4f}    {gaps[0]:<18} {gaps[1]:<18} {spent:>7}"


def raw_columns(people: People) -> dict[str, Any]:
    """Return the features of people as raw columns: numbers, and text for occupation and household."""
    columns: dict[str, Any] = {}
    for name, values in zip(people.feature_names, people.X.T, strict=True):
        column, _, value = name.partition("=")
        columns[column] = np.where(values == 1, value, columns.get(column, "")).astype("<U16") if value else values
    return columns


def compare(n_rows: int = ROWS) -> Iterator[Row]:
    """Yield a row per model, as soon as it is trained on `n_rows` people and measured on twice as many others."""
    people, others = census_like(n_rows, random_state=0), census_like(2 * n_rows, random_state=1)
    X, unseen = raw_columns(people), raw_columns(others)
    for seed, (name, asked, epsilon) in enumerate(_MODELS):  # repeatable; for real people None, or a secret
        model = RateConstrainedClassifier(asked, epsilon=epsilon, delta=DELTA, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeedWarning)  # these people are synthetic
            model.fit(X, people.y, sensitive_features=people.sensitive)
        predicted = model.predict(unseen)
        found = [rate_report(one, others.y, predicted, sensitive_features=others.sensitive) for one in (_RATES, _ODDS)]
        gaps = [max(abs(row.reached) for row in rows) for rows in found]
        yield Row(name, model, float(np.mean(predicted == others.y)), *gaps)


def report_of(rows: Sequence[Row], n_people: int = 2 * ROWS) -> Report:
    """Return the report of the last model on people that no model has seen, beside the other models."""
    from ratewise.report import Report

    last, others = rows[-1], census_like(n_people, random_state=1)
    compared = sorted(rows[:-1], key=lambda row: (row.model.constraints is _RATES, math.isinf(row.epsilon)))
    return Report.from_model(
        last.model,
        raw_columns(others),
        others.y,
        others.sensitive,
        baseline={row.name: row.model for row in compared},
        by=["sex", "region"],
        name=last.name,
        title="Who has a high income?",
        data="synthetic people that no model has seen",
    )


def main() -> None:
    """Print the table row by row, the certificate and the privacy of the last model, and write its page."""
    head = f"{'model':<22} {'accuracy':>8}    {'gap in rates':<18} {'gap in odds':<18} {'epsilon':>7}"
    print(f"Who has a high income? Five models of {ROWS:,} synthetic people; delta is {DELTA:g}.\n")
    print(f"{head}\n{'-' * len(head)}")
    rows = []
    for row in compare():
        print(row, flush=True)
        rows.append(row)
    last = rows[-1]
    print(f"{_LEGEND}\n\nCertificate of the last model ({last.name}), released within its epsilon:\n")
    for line in str(last.model.certificate_).splitlines():
        print(textwrap.fill(line, 88, subsequent_indent="  "))
    report = report_of(rows)
    print(f"\nIts privacy:\n\n{last.model.privacy_}\n\nOn other people:\n{report.headline}.")
    report.to_html(PAGE)
    print(f"The report with shape functions, to open in a browser:\n{os.path.abspath(PAGE)}")


if __name__ == "__main__":
    main()
