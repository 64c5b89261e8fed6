"""Measuring a run on a labelled table: as it is, or by one private release."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ratewise.accounting import Ledger
from ratewise.cli.tables import read_table
from ratewise.evaluation import PrivateReport, private_evaluation
from ratewise.exceptions import InvalidInput
from ratewise.frames import chosen_columns, named_columns
from ratewise.layout import text_table
from ratewise.model_files import TableModel
from ratewise.partition import compile_constraints
from ratewise.runs import RunFolder
from ratewise.table_preparation import group_column

if TYPE_CHECKING:  # loaded when asked for: other commands need not wait for it
    from ratewise.report import Report
    from ratewise.report.content import Content

_ROUNDING = 1e-9
_NO_BOOK = (
    "The ledger that this run shares with others is not where it was, so the page cannot show where the "
    "budget went. The statement is the one of the day of training."
)


def measured(
    folder: RunFolder, data: str, confidence: float = 0.95, baselines: Iterable[RunFolder] = ()
) -> Report:
    """Return the report of a run on a labelled table, with other runs to compare it with."""
    from ratewise.report import Report

    model, settings, book = folder.model(), folder.settings, _book(folder)
    frame, labels, groups = _labelled(folder, model, data)
    compiled = compile_constraints(settings.declared, model.schema.domain)
    rivals = {name: _rival(other, frame) for name, other in _named(folder, baselines).items()}
    return Report.from_predictions(
        labels,
        model.predict(frame),
        groups or None,
        settings.declared or None,
        scores=model.predict_proba(frame),
        classes=model.schema.classes,
        group_values={name: model.schema.group_values[name] for name in groups},
        confidence=confidence,
        baseline=rivals or None,
        name=folder.path.name,
        statement=folder.statement(),
        ledger=book,
        notes=[] if book is not None else [_NO_BOOK],
        history=folder.history(),
        compiled=compiled if len(compiled) else None,
        doubts=folder.doubts(),
    )


def _rival(folder: RunFolder, frame: Any) -> tuple[Any, Any, float]:
    """Return the predictions of another run on the same rows, their probabilities, and what it spent."""
    model = folder.model()
    return model.predict(frame), model.predict_proba(frame), folder.statement().epsilon


def _named(folder: RunFolder, others: Iterable[RunFolder]) -> dict[str, RunFolder]:
    """Return runs by the names of their folders; where two would be the same, by their whole paths."""
    found = list(others)
    names = [folder.path.name, *(other.path.name for other in found)]
    return {
        other.path.name if names.count(other.path.name) == 1 else str(other.path): other for other in found
    }


def measured_privately(
    folder: RunFolder, data: str, *, epsilon: float, delta: float, confidence: float, ledger: str | None
) -> PrivateReport:
    """Return accuracy, rates and limits on private rows, by one release that a ledger books first.

    Parameters
    ----------
    folder : RunFolder
    data : str
        The labelled table.
    epsilon, delta : float
        What the release costs the people in that table.
    confidence : float
    ledger : str or None
        A book to write into; None takes the one for evaluations in the run's folder.
    """
    model, settings = folder.model(), folder.settings
    frame, labels, groups = _labelled(folder, model, data)
    if ledger is None:
        book = Ledger.at(folder.path / "evaluations.json", neighbours=settings.neighbours)
    else:
        book = Ledger.open(ledger)
    return private_evaluation(
        settings.declared or None,
        labels,
        model.predict(frame),
        epsilon=epsilon,
        delta=delta,
        sensitive_features=groups or None,
        classes=model.schema.classes,
        group_values={name: model.schema.group_values[name] for name in groups},
        neighbours=settings.neighbours,
        ledger=book,
        data_name=f"rows of {os.path.basename(data)}",
        confidence=confidence,
    )


def _book(folder: RunFolder) -> Ledger | None:
    """Return the run's book; None for one that it shares and that is not here: the statement outlives it."""
    place = folder.description["ledger"]
    return None if place is not None and not (folder.path / place).exists() else folder.ledger()


def _labelled(folder: RunFolder, model: TableModel, data: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return a table, its labels, and its sensitive columns: those that constraints read must be there."""
    schema, needed = model.schema, {*folder.settings.groups}
    frame = read_table(data, folder.missing)
    present = named_columns(frame, "the table")
    groups = [name for name in schema.groups if name in present or name in needed]
    chosen = chosen_columns(frame, (schema.label, *groups), "the table")
    return frame, chosen[schema.label], {name: group_column(schema, name, chosen[name]) for name in groups}


def last(folder: RunFolder) -> Report:
    """Return the last evaluation of a run."""
    from ratewise.report import Report

    if not folder.evaluations:
        raise InvalidInput(
            f"the run in {str(folder.path)!r} was not evaluated yet; give a labelled table: "
            f"ratewise report {folder.path} test.csv"
        )
    return Report.from_json(folder.last_evaluation())


def missed(content: Content) -> list[str]:
    """Return the limits that are not held on the rows: exceeded, or without rows to tell."""
    return [limit.name for limit in content.limits if limit.gap is None or limit.gap > _ROUNDING]


def numbers(content: Content) -> dict[str, Any]:
    """Return the measured values as plain data."""
    return {
        "rows": content.rows,
        "accuracy": content.everyone.accuracy.value,
        "limits": [
            {
                "name": limit.name,
                "asked": f"{limit.sense} {limit.bound:g}",
                "reached": limit.reached,
                "interval": [limit.low, limit.high],
                "gap": limit.gap,
                "state": limit.state,
            }
            for limit in content.limits
        ],
        "missed": missed(content),
    }


def in_words(content: Content) -> str:
    """Return what was measured as text: the worst limits first."""
    accuracy = content.everyone.accuracy
    lines = [f"{content.rows:,} rows, accuracy {shown(accuracy.value)}"]
    if content.limits:
        table = [
            [
                limit.name,
                f"{limit.sense} {limit.bound:g}",
                shown(limit.reached),
                _interval(limit),
                limit.state,
            ]
            for limit in content.by_worst()
        ]
        header = ["limit", "asked", "reached", f"{content.confidence:.0%} interval", "state"]
        lines += ["", text_table(header, table)]
        lines += ["", f"{len(missed(content))} of {len(content.limits)} limits are exceeded on these rows"]
    return "\n".join(lines)


def shown(value: float | None) -> str:
    """Return a number as text; a dash where there is none."""
    return "-" if value is None else f"{value:.4f}"


def _interval(limit: Any) -> str:
    return f"{shown(limit.low)} to {shown(limit.high)}"
