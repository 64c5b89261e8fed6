"""A minute with the library, on made-up people: ``python -m ratewise.demo``.

Five models of the same rows: plain; private; within a limit on the gap between women and men; private and
within it; private and within a limit on the gap among people of equal true income. What the table shows was
measured on other people, drawn from the same law. At the end the last model is reported on one page, which is
written to the current folder.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratewise.datasets import People, census_like
from ratewise.estimators import RateConstrainedClassifier
from ratewise.families import demographic_parity, equalized_odds
from ratewise.metrics import rate_report
from ratewise.report import Report

ROWS = 100_000
EPSILON, DELTA = 1.0, 1e-6
MAX_GAP = 0.05
PAGE = "ratewise-demo.html"

_RATES = demographic_parity("sex", max_gap=MAX_GAP)
_ODDS = equalized_odds("sex", max_gap=MAX_GAP)
_MODELS: tuple[tuple[str, Any, float | None], ...] = (
    ("plain", None, None),
    ("private", None, EPSILON),
    ("equal rates", _RATES, None),
    ("private, equal rates", _RATES, EPSILON),
    ("private, equal odds", _ODDS, EPSILON),
)
_HEAD = f"{'model':<22} {'accuracy':>8}    {'gap in rates':<18} {'gap in odds':<18} {'epsilon':>7}"

_LEGEND = f"""
Gaps between women and men in how often high income is predicted: among all ("rates"), and
among people of equal true income ("odds"); in brackets the limit that was asked for.
Measured on {2 * ROWS:,} other people, who differ from the training rows by chance."""


@dataclass(frozen=True)
class Row:
    """One model, and what it reached on people it has not seen.

    Attributes
    ----------
    name : str
    model : RateConstrainedClassifier
    accuracy : float
    rates_gap, odds_gap : float
        Largest gap between women and men in the rate of predicted high income: among all, and among people of
        equal true income.
    rates_asked, odds_asked : float or None
        The limit that the model was trained with; None for none.
    epsilon : float
        Spent, by the model's ledger; infinite without privacy.
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
        gaps = [_gap(self.rates_gap, self.rates_asked), _gap(self.odds_gap, self.odds_asked)]
        epsilon = "none" if math.isinf(self.epsilon) else f"{math.ceil(self.epsilon * 1e4) / 1e4:.4f}"
        return f"{self.name:<22} {self.accuracy:>8.4f}    {gaps[0]:<18} {gaps[1]:<18} {epsilon:>7}"


def compare(n_rows: int = ROWS, *, random_state: int = 0, **choices: Any) -> Iterator[Row]:
    """Train the five models on `n_rows` made-up people, and measure them on twice as many others.

    Further `choices`, such as ``steps`` or ``dual``, go to every classifier.
    """
    people = census_like(n_rows, random_state=2 * random_state)
    others = census_like(2 * n_rows, random_state=2 * random_state + 1)
    for name, constraints, epsilon in _MODELS:
        model = RateConstrainedClassifier(
            constraints,
            epsilon=epsilon,
            delta=DELTA,
            classes=people.classes,
            group_values={"sex": people.group_values["sex"]},
            feature_bounds=people.feature_bounds,
            unit="one made-up person",
            random_state=random_state,  # repeatable; with real people a seed is a secret, or None
            **choices,
        )
        model.fit(people.X, people.y, sensitive_features=people.sensitive)
        predicted = model.predict(others.X)
        yield Row(
            name=name,
            model=model,
            accuracy=float(np.mean(predicted == others.y)),
            rates_gap=_largest(_RATES, others, predicted),
            odds_gap=_largest(_ODDS, others, predicted),
            rates_asked=MAX_GAP if constraints is _RATES else None,
            odds_asked=MAX_GAP if constraints is _ODDS else None,
            epsilon=model.ledger_.total(DELTA),
        )


def report_of(rows: Sequence[Row], n_people: int = 2 * ROWS, *, random_state: int = 0) -> Report:
    """Return the report of the last model on people that no model has seen, beside the other models."""
    last, others = rows[-1], census_like(n_people, random_state=2 * random_state + 1)
    unlimited = [row for row in rows[:-1] if row.rates_asked is None and row.odds_asked is None]
    private = sorted(unlimited, key=lambda row: math.isinf(row.epsilon))
    rivals = [*private, *(row for row in rows[:-1] if row not in unlimited)]
    return Report.from_model(
        last.model,
        others.X,
        others.y,
        others.sensitive,
        baseline={row.name: row.model for row in rivals},
        by=["sex", "region"],
        name=last.name,
        title=f"Who earns much? A model that is {last.name.replace(', ', ' and within ')}",
    )


def main() -> None:
    """Print the table row by row and the privacy of the last model, and write the page of that model."""
    begin = time.monotonic()
    print(f"Who earns much? Five models of {ROWS:,} made-up people; delta is {DELTA:g}.\n")
    print(f"{_HEAD}\n{'-' * len(_HEAD)}")
    rows = []
    for row in _with_progress(compare()):
        print(row, flush=True)
        rows.append(row)
    print(_LEGEND)
    print(f"\nPrivacy of the last model ({rows[-1].name}):\n\n{rows[-1].model.privacy_}")
    print(f"\n{_written(report_of(rows))}")
    print(f"\n{time.monotonic() - begin:.0f} seconds in all.")


def _written(report: Report) -> str:
    """Write the page and say where; a folder that cannot be written to does not spoil the rest."""
    try:
        report.save_html(PAGE)
    except OSError as problem:
        return f"The page {PAGE} could not be written here: {problem.strerror}."
    return f"{report.headline}.\nAll about it on one page, to open in a browser:\n{os.path.abspath(PAGE)}"


def _with_progress(rows: Iterator[Row]) -> Iterator[Row]:
    """Say on a terminal which model is being trained, and wipe that off when it is done."""
    shown = sys.stderr.isatty()
    for done, (name, _, _) in enumerate(_MODELS, start=1):
        note = f"training {done} of {len(_MODELS)}: {name} ..."
        if shown:
            print(f"\r{note}", end="", file=sys.stderr, flush=True)
        row = next(rows)
        if shown:
            print(f"\r{' ' * len(note)}\r", end="", file=sys.stderr, flush=True)
        yield row


def _largest(family: Any, people: People, predicted: Any) -> float:
    report = rate_report(family, people.y, predicted, sensitive_features=people.sensitive)
    return max(abs(row.reached) for row in report)


def _gap(reached: float, asked: float | None) -> str:
    return f"{reached:.4f}" if asked is None else f"{reached:.4f} (of {asked:g})"


if __name__ == "__main__":
    main()
