"""From a model or from predictions to the content of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.accounting import Ledger, PrivacyStatement
from ratewise.accounting.book import now, text
from ratewise.accounting.statement import software_version
from ratewise.enforceability import Doubt
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics import RateReport
from ratewise.report.content import Content, Note, Rival, finite
from ratewise.report.curves import training_of
from ratewise.report.evaluation import Evaluation, as_probabilities
from ratewise.report.measure import (
    accuracy_of,
    calibration_of,
    class_names,
    difference,
    families_of,
    groups_of,
    limits_of,
)
from ratewise.report.spending import spending_of
from ratewise.report.words import doubt_in_words, privacy_in_words

FEW_ROWS = 30


@dataclass(frozen=True)
class Background:
    """What is known about a model beside its predictions; every part may be missing.

    Attributes
    ----------
    name : str
        What the model is called on the page.
    statement : PrivacyStatement or None
    ledger : Ledger or None
    history : mapping or None
        Released values by step.
    compiled : CompiledConstraints or None
        What the history's columns stand for.
    doubts : iterable of Doubt
        Constraints that rest on too few rows, or that training did not reach.
    notes : iterable of str
        Further warnings, in words.
    """

    name: str = "model"
    statement: PrivacyStatement | None = None
    ledger: Ledger | None = None
    history: Mapping[str, Any] | None = None
    compiled: Any = None
    doubts: Iterable[Doubt] = ()
    notes: Iterable[str] = ()

    @classmethod
    def of(cls, model: Any, name: str | None = None) -> Background:
        """Return what a fitted classifier knows about itself; a foreign one knows little."""
        statement = getattr(model, "privacy_", None)
        ledger = getattr(model, "ledger_", None)
        return cls(
            name=type(model).__name__ if name is None else name,
            statement=statement if isinstance(statement, PrivacyStatement) else None,
            ledger=ledger if isinstance(ledger, Ledger) else None,
            history=getattr(model, "history_", None),
            compiled=getattr(model, "constraints_", None),
            doubts=tuple(getattr(model, "doubts_", ())),
        )


def content_of(
    data: Evaluation,
    background: Background,
    rivals: Mapping[str, Any] | None = None,
    title: str | None = None,
) -> Content:
    """Measure everything and return the content of the report."""
    report = data.rates()
    doubts = {doubt.constraint: doubt_in_words(doubt) for doubt in background.doubts}
    limits = limits_of(report, doubts)
    everyone, groupings = groups_of(data)
    statement = background.statement
    delta = None if statement is None else statement.delta
    spending = None
    if background.ledger is not None and delta is not None and background.ledger.records:
        spending = spending_of(background.ledger, delta)
    history = background.history
    content = Content(
        title=_title(title, background),
        model=background.name,
        created=now(),
        version=software_version(),
        rows=len(data.truth),
        confidence=data.confidence,
        soft=data.soft,
        classes=tuple(class_names(data.classes).values()),
        score_words=_score_words(data),
        families=families_of(data, report),
        limits=limits,
        everyone=everyone,
        groupings=groupings,
        calibration=calibration_of(data),
        models=_models(data, report, background, rivals or {}),
        training=None if history is None else training_of(history, background.compiled),
        spending=spending,
        statement=None if statement is None else statement.to_dict(),
        words=() if statement is None else tuple(privacy_in_words(statement)),
        notes=(),
    )
    return _with_notes(content, statement, background)


def rivals_of(baseline: Any, X: Any) -> dict[str, Any]:
    """Return the predictions of other models: a model, or a mapping of name to model."""
    if baseline is None:
        return {}
    models = baseline if isinstance(baseline, Mapping) else {"without limits": baseline}
    found: dict[str, Any] = {}
    for name, model in models.items():
        if not callable(getattr(model, "predict", None)):
            raise InvalidType(
                f"baseline must be a fitted classifier, or a mapping of names to such, got "
                f"{type(model).__name__}"
            )
        scores = probabilities(model, X)
        found[text(required=True, **{"each name of baseline": name})] = (
            model.predict(X),
            scores,
            getattr(getattr(model, "privacy_", None), "epsilon", None),
        )
    return found


def known_values(model: Any) -> dict[str, Any]:
    """Return the values of the columns that a model was trained with, so that its limits mean the same."""
    domain = getattr(getattr(model, "constraints_", None), "domain", None)
    declared = getattr(model, "group_values", None) or {}
    return {**({} if domain is None else domain.columns), **declared}


def probabilities(model: Any, X: Any) -> Any:
    """Return the model's probabilities, None if it has none to give."""
    return model.predict_proba(X) if callable(getattr(model, "predict_proba", None)) else None


def _title(title: str | None, background: Background) -> str:
    return f"Report on {background.name}" if title is None else text(required=True, title=title)


def _score_words(data: Evaluation) -> str:
    if data.scores is None:
        return ""
    if len(data.classes) == 2:
        return f"predicted probability of {class_names(data.classes)[data.classes[1]]}"
    return "predicted probability of the predicted class"


def _models(
    data: Evaluation, report: RateReport, background: Background, rivals: Mapping[str, Any]
) -> tuple[Rival, ...]:
    statement = background.statement
    epsilon = None if statement is None else statement.epsilon
    first, ours = _rival(data, report, background.name, data.predicted, epsilon)
    found = [first]
    for name, rival in rivals.items():
        predicted, scores, spent = (
            rival if isinstance(rival, tuple) and len(rival) == 3 else (rival, None, None)
        )
        if np.shape(predicted)[:1] != np.shape(data.truth)[:1]:
            raise InvalidInput(
                f"baseline {name!r} must have one prediction per row: {np.shape(predicted)[:1]} against "
                f"{len(data.truth)} rows"
            )
        table = None if scores is None else as_probabilities(scores, len(data.truth), data.classes)
        other, theirs = _rival(data, data.rates(predicted, table), name, predicted, spent)
        found.append(Rival(**{**vars(other), "difference": difference(ours, theirs, data.confidence)}))
    return tuple(found)


def _rival(
    data: Evaluation, report: RateReport, name: str, predicted: Any, epsilon: float | None
) -> tuple[Rival, npt.NDArray[np.bool_]]:
    """Return a model as it does on the rows, and on which of them it is right."""
    accuracy, right = accuracy_of(data, predicted)
    gaps = [row.gap for row in report if not math.isnan(row.gap)]
    spent = None if epsilon is None else finite(epsilon)
    return (
        Rival(
            name=name,
            accuracy=accuracy,
            worst=max(gaps) if gaps else None,
            reached=tuple(finite(row.reached) for row in report),
            epsilon=spent,
            private=spent is not None,
        ),
        right,
    )


# -------------------------------------------------------------------------------------------- notes


def _with_notes(content: Content, statement: PrivacyStatement | None, background: Background) -> Content:
    notes = [
        *_privacy_notes(statement),
        *(Note("doubt", f"Not to be relied on at this budget: {d}.") for d in background.doubts),
        *_row_notes(content),
        *_chance_notes(content),
        *(Note("page", said) for said in background.notes),
        *_page_notes(content, statement),
    ]
    return Content(**{**vars(content), "notes": tuple(notes)})


def _page_notes(content: Content, statement: PrivacyStatement | None) -> list[Note]:
    covered = (
        ""
        if statement is None
        else " The privacy guarantee covers the model and its training, not these measurements."
    )
    notes = [
        Note(
            "page",
            f"This page was measured on the rows it was given, without noise.{covered} Show it only to those "
            "who may know rates of these rows.",
        )
    ]
    if content.limits and statement is not None:
        notes.append(
            Note(
                "aim",
                "Limits were aimed at on training rows. Other people differ by chance, and more so if they "
                "come from another population.",
            )
        )
    return notes


def _privacy_notes(statement: PrivacyStatement | None) -> list[Note]:
    if statement is None:
        return [Note("privacy", "Nothing is known about the privacy of these predictions.")]
    notes = [
        Note("leak", f"Read off the private data and not covered by epsilon: {leak}.")
        for leak in statement.leaks
    ]
    if math.isinf(statement.epsilon):
        notes.append(Note("privacy", "The model has no privacy guarantee: epsilon is infinite."))
    if statement.unit == "one row":
        notes.append(Note("privacy", "Protected is one row. A person with several rows is protected less."))
    return notes


def _row_notes(content: Content) -> list[Note]:
    empty = sum(limit.reached is None for limit in content.limits)
    small = sum(group.rows < FEW_ROWS for grouping in content.groupings for group in grouping.groups)
    notes = []
    if empty:
        notes.append(
            Note("rows", f"{empty:,} of {len(content.limits):,} limits are about groups without a row here.")
        )
    if small:
        notes.append(
            Note("rows", f"{small:,} of the groups have fewer than {FEW_ROWS} rows; their rates say little.")
        )
    return notes


def _chance_notes(content: Content) -> list[Note]:
    expected = len(content.limits) * (1.0 - content.confidence)
    if expected < 1:
        return []
    return [
        Note(
            "chance",
            f"Each interval stands for itself. Of {len(content.limits):,} intervals at "
            f"{100 * content.confidence:g}%, about {expected:.0f} miss the true rate by chance alone.",
        )
    ]
