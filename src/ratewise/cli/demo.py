"""A minute with the library, on synthetic people: ``python -m ratewise.cli.demo``.

Five models of the same raw columns, with nothing declared: without privacy and constraints; private; with a constraint
on the gap between women and men; private with that constraint; private with a constraint on the gap among people of
equal true income. The table shows accuracy and gaps on other people from the same distribution. At the end the
private model with equal rates is certified, and reported on a page that is written to the current folder.
"""

from __future__ import annotations

import math
import os
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

_RATES = demographic_parity("sex", max_gap=MAX_GAP)
_ODDS = equalized_odds("sex", max_gap=MAX_GAP)
_MODELS: tuple[tuple[str, Any, float | None], ...] = (
    ("plain", None, None),
    ("private", None, EPSILON),
    ("equal rates", _RATES, None),
    ("private, equal odds", _ODDS, EPSILON),
    ("private, equal rates", _RATES, EPSILON),
)
_HEAD = f"{'model':<22} {'accuracy':>8}    {'gap in rates':<18} {'gap in odds':<18} {'epsilon':>7}"

_LEGEND = f"""
Gaps between women and men in how often high income is predicted: among all ("rates"), and
among people of equal true income ("odds"); in brackets the requested bound. Measured on
{2 * ROWS:,} other people, who differ from the training rows by chance."""


@dataclass(frozen=True)
class Row:
    """One model, and what it reached on people it has not seen.

    The gaps are the largest between women and men in the rate of predicted high income: among all (`rates_gap`), and
    among people of equal true income (`odds_gap`). `rates_asked` and `odds_asked` are the bounds of the training, if
    any. `epsilon` was spent, by the model's ledger; infinite without privacy.
    """

    name: str
    model: RateConstrainedClassifier
    accuracy: float
    rates_gap: float
    odds_gap: float
    rates_asked: float | None
    odds_asked: float | None
    epsilon: float

    def __str__(self) -> str:
        # upwards: a table that rounds down would claim more privacy than there is
        spent = "none" if math.isinf(self.epsilon) else f"{math.ceil(self.epsilon * 1e4) / 1e4:.4f}"
        gaps = _gap(self.rates_gap, self.rates_asked), _gap(self.odds_gap, self.odds_asked)
        return f"{self.name:<22} {self.accuracy:>8.4f}    {gaps[0]:<18} {gaps[1]:<18} {spent:>7}"


def raw_columns(people: People) -> dict[str, Any]:
    """Return the features of people as raw columns: numbers, and text for occupation and household."""
    columns: dict[str, Any] = {}
    categories: dict[str, dict[str, Any]] = {}
    for name, values in zip(people.feature_names, people.X.T, strict=True):
        column, _, value = name.partition("=")
        if value:
            categories.setdefault(column, {})[value] = values
        else:
            columns[column] = values
    for column, shares in categories.items():
        columns[column] = np.array([*shares])[np.argmax([*shares.values()], axis=0)]
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
        predicted, measured = model.predict(unseen), dict[str, Any]()
        for kind, family in (("rates", _RATES), ("odds", _ODDS)):
            found = rate_report(family, others.y, predicted, sensitive_features=others.sensitive)
            measured[f"{kind}_gap"] = max(abs(row.reached) for row in found)
            measured[f"{kind}_asked"] = MAX_GAP if asked is family else None
        accuracy = float(np.mean(predicted == others.y))
        yield Row(name, model, accuracy, epsilon=model.privacy_.epsilon, **measured)


def report_of(rows: Sequence[Row], n_people: int = 2 * ROWS) -> Report:
    """Return the report of the last model on people that no model has seen, beside the other models."""
    from ratewise.report import Report

    last, others = rows[-1], census_like(n_people, random_state=1)
    rivals = sorted(rows[:-1], key=lambda row: (row.rates_asked is not None, math.isinf(row.epsilon)))
    return Report.from_model(
        last.model,
        raw_columns(others),
        others.y,
        others.sensitive,
        baseline={row.name: row.model for row in rivals},
        by=["sex", "region"],
        name=last.name,
        title="Who has a high income?",
        data="synthetic people that no model has seen",
    )


def main() -> None:
    """Print the table row by row, the certificate and the privacy of the last model, and write its page."""
    begin = time.monotonic()
    print(f"Who has a high income? Five models of {ROWS:,} synthetic people; delta is {DELTA:g}.\n")
    print(f"{_HEAD}\n{'-' * len(_HEAD)}")
    rows = []
    for row in compare():
        print(row, flush=True)
        rows.append(row)
    print(_LEGEND)
    last = rows[-1]
    print(f"\nCertificate of the last model ({last.name}), released within its epsilon:\n")
    print("\n".join(_wrapped(str(last.model.certificate_))))
    print(f"\nIts privacy:\n\n{last.model.privacy_}")
    print(f"\n{_written(report_of(rows))}")
    print(f"\n{time.monotonic() - begin:.0f} seconds in all.")


def _wrapped(text: str) -> Iterator[str]:
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        yield from textwrap.wrap(line, 88, subsequent_indent=" " * (indent + 2)) or [""]


def _written(report: Report) -> str:
    """Write the page and return where it is, or why it could not be written."""
    try:
        report.to_html(PAGE)
    except OSError as problem:
        return f"The page {PAGE} could not be written here: {problem.strerror}."
    return (
        f"On other people:\n{report.headline}.\nThe report with shape functions, to open in a browser:\n"
        f"{os.path.abspath(PAGE)}"
    )


def _gap(reached: float, asked: float | None) -> str:
    return f"{reached:.4f}" if asked is None else f"{reached:.4f} (of {asked:g})"


if __name__ == "__main__":
    main()
