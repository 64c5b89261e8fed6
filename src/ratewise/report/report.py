"""The report: made from a model or from predictions, shown as a page, a card, figures, or JSON."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from ratewise import _validate
from ratewise._files import Path, read_document, write_whole
from ratewise.constraints.compiled import as_constraints
from ratewise.constraints.domain import list_values
from ratewise.data.table import raw_columns
from ratewise.estimators.evaluation import evaluate
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.report import build, page
from ratewise.report.content import Content
from ratewise.report.evaluation import Evaluation
from ratewise.report.plots import new_axes
from ratewise.report.views import FIGURES, figure_of
from ratewise.training.certificate import Certificate


class Report:
    """What predictions reach of what was asked, for whom, and at what cost; `content` is all of it as data.

    In a notebook a report shows itself. It reads the rows it is given without noise: the privacy guarantee of
    a model does not cover it.

    Examples
    --------
    >>> from ratewise import demographic_parity
    >>> report = Report.from_predictions(
    ...     [0, 1, 0, 1], [0, 1, 0, 0], {"sex": ["F", "F", "M", "M"]}, demographic_parity("sex", max_gap=0.1)
    ... )
    >>> report
    <Report: 0 constraints held, 1 missed, 0 cannot tell, on 4 rows>
    """

    def __init__(self, content: Content) -> None:
        if not isinstance(content, Content):
            raise InvalidType(
                f"content must be a Content, got {type(content).__name__}; use Report.from_model, "
                "Report.from_predictions or Report.from_json"
            )
        self.content = content

    @classmethod
    def from_model(
        cls,
        model: Any,
        X: Any,
        y: Any,
        sensitive_features: Any = None,
        baseline: Any = None,
        *,
        constraints: Any = None,
        by: Iterable[Any] | None = None,
        confidence: float = 0.95,
        tolerance: float | None = None,
        **known: Any,
    ) -> Self:
        """Report on a fitted classifier, ours or not, by its predictions for rows it has not seen.

        Rows whose label the model does not know are left out, with a note; groups that it does not know are
        other values. With fewer than two classes, or a constraint without groups, see `from_training`.

        Parameters
        ----------
        model : classifier with ``predict``
            What it knows of its constraints, privacy and training is shown too.
        X, y, sensitive_features
            Rows to measure on.
        baseline : classifier, or mapping of names to classifiers, optional
            To compare with; usually the same model without constraints.
        constraints : optional
            Instead of the model's own.
        by : list of columns, or of tuples of columns to cross, optional
            The groups to show; by default those that the constraints name, or every column.
        confidence, tolerance : float
            Confidence of all intervals of constraints together, and of each other interval by itself. A constraint is
            held up to `tolerance` beyond its bound; by default as in training.
        **known
            `name` of the model, `title` of the page, names of the rows (`data`) and of the label (`target`),
            `ledger` (by default that of the model), and `notes`, a list of further warnings.
        """
        from ratewise.estimators.classifier import columns_by_name  # imports scikit-learn

        target = known.pop("target", None) or (y if isinstance(y, str) else getattr(y, "name", None))
        known["target"] = target if isinstance(target, str) else None
        background = build.Background.of_model(model, getattr(model, "privacy_", None), **known)
        ours = background.statement is not None
        if ours and (len(model.classes_) < 2 or getattr(background.compiled, "groupless", None)):
            return cls(build.content_of_training(replace(background, data=None)))
        X, y, sensitive_features, *_ = columns_by_name(X, y, sensitive_features)
        everything = y, sensitive_features
        used: Any = slice(None)
        if ours or background.compiled is not None:
            columns = raw_columns(sensitive_features, len(y))
            y, sensitive_features, used = build.known_rows(model, y, columns)
            if not used.any():
                raise InvalidInput(
                    "no row has a label and groups that the model knows; spell them as in training: the "
                    f"classes are {list_values(model.classes_.tolist())}"
                )
            if not used.all():
                note = f"{int((~used).sum()):,} rows without a label that the model knows are left out."
                background = replace(background, notes=(*background.notes, note))
        predicted, probabilities = model.predict(X), getattr(model, "predict_proba", None)
        rows = Evaluation.read(
            y,
            predicted[used],
            sensitive_features,
            getattr(model, "constraints", None) if constraints is None else constraints,
            scores=probabilities(X)[used] if callable(probabilities) else None,
            classes=getattr(model, "classes_", None),
            group_values=build.known_values(model),
            by=by,
            confidence=confidence,
            schema=getattr(model, "schema", None),
        )
        if tolerance is None:
            tolerance = getattr(getattr(model, "config", None), "tolerance", 0.01)
        judge = functools.partial(_certificate, rows, *everything, tolerance)
        others = build.comparisons_of(baseline, X, used, judge)
        return cls(build.content_of(rows, background, judge(predicted), others))

    @classmethod
    def from_training(cls, model: Any, **known: Any) -> Self:
        """Report on a fitted classifier of ours by what its training released; no rows are read.

        All of it is covered by the privacy guarantee. Constraints and accuracy are those of the certificate.
        Parameters are as in `from_model`.
        """
        return cls(build.content_of_training(build.Background.of_model(model, model.privacy_, **known)))

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        sensitive_features: Any = None,
        constraints: Any = None,
        *,
        baseline: Any = None,
        tolerance: float = 0.01,
        scores: Any = None,
        classes: Iterable[Any] | None = None,
        group_values: Any = None,
        by: Iterable[Any] | None = None,
        confidence: float = 0.95,
        **known: Any,
    ) -> Self:
        """Report on any predictions, whoever made them.

        Parameters
        ----------
        y_true, y_pred : (n,) array-like
        sensitive_features, constraints, tolerance, by, confidence
            As in `from_model`.
        baseline : predictions, or mapping of names to predictions, optional
        scores : probabilities of the classes, optional
            They add calibration.
        classes, group_values : optional
            Read off the data where not given.
        **known
            As in `from_model`; also the privacy `statement` and the fitted `model`.
        """
        read: dict[str, Any] = {"classes": classes, "group_values": group_values, "by": by}
        rows = Evaluation.read(
            y_true, y_pred, sensitive_features, constraints, scores=scores, confidence=confidence, **read
        )
        judge = functools.partial(_certificate, rows, y_true, sensitive_features, tolerance)
        background = build.Background(**known)
        others = baseline if isinstance(baseline, Mapping) else {"without constraints": baseline}
        compared = {name: (guess, judge(guess), None) for name, guess in others.items() if guess is not None}
        return cls(build.content_of(rows, background, judge(y_pred), compared))

    # -------------------------------------------------------------------------------- as text

    def to_json(self, path: Path | None = None) -> str:
        """Return the report as strict JSON, and write it to `path` if one is given."""
        return _written(json.dumps(self.content.to_dict(), allow_nan=False, indent=1), path)

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Read back what `to_json` returned."""
        return cls(Content.from_dict(read_document(document, "Report.to_json()")))

    def to_html(self, path: Path | None = None) -> str:
        """Return the page, one file that needs no other, and write it to `path` if one is given."""
        return _written(page.render(self.content), path)

    def model_card(self, path: Path | None = None) -> str:
        """Return a model card in Markdown, and write it to `path` if one is given."""
        return _written(page.model_card(self.content), path)

    def _repr_html_(self) -> str:
        return page.embedded(self.content)

    def __repr__(self) -> str:
        counts = self.content.counts
        return (
            f"<Report: {counts['held']:,} constraints held, {counts['missed']:,} missed, "
            f"{counts['cannot tell']:,} cannot tell, on {self.content.rows:,} rows>"
        )

    def __str__(self) -> str:
        return f"{self.headline}.\n{repr(self).strip('<>')}"

    @property
    def headline(self) -> str:
        """The decisive constraint: requested, reached and verdict, without a full stop."""
        return self.content.headline

    # ----------------------------------------------------------------------------- as figures

    def plot(self, figure: str, ax: Any = None, **choices: Any) -> Any:
        """Draw a figure and return its matplotlib axes. Needs ``ratewise[report]``.

        Parameters
        ----------
        figure : {"constraints", "rates", "error", "tradeoff", "calibration", "training", "shapes", "ledger"}
        ax : matplotlib axes, optional
        **choices
            Of "rates": `rate` (such as "true_positive_rate"), `by` (a column, or several) and class `k`; of
            "error": `by`; of "shapes": `feature`.
        """
        return figure_of(figure, self.content, **choices).draw(new_axes() if ax is None else ax)

    def figures(self) -> dict[str, Any]:
        """Return a matplotlib axes for every figure there is something to draw for, by name."""
        drawn = {name: make for name, (make, there, _) in FIGURES.items() if there(self.content)}
        return {name: make(self.content).draw(new_axes()) for name, make in drawn.items()}

    def save_figures(self, folder: Path, format: str = "svg") -> list[str]:
        """Write every figure into a folder as "png", "svg" or "pdf", and return the paths."""
        kind = _validate.one_of(("png", "svg", "pdf"), format=format)
        os.makedirs(folder, exist_ok=True)
        paths = []
        for name, ax in self.figures().items():
            buffer = io.BytesIO()
            ax.figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=200)
            paths.append(os.path.join(folder, f"{name}.{kind}"))
            write_whole(paths[-1], buffer.getvalue())
        return paths


def _certificate(rows: Evaluation, y: Any, sensitive: Any, tolerance: float, predicted: Any) -> Certificate | None:
    """Return the certificate of predictions by exact counts; None without constraints."""
    if not as_constraints(rows.constraints):
        return None
    return evaluate(
        rows.constraints,
        y,
        predicted,
        sensitive_features=sensitive,
        classes=rows.classes,
        group_values=rows.domain.columns,
        tolerance=tolerance,
        level=rows.confidence,
    )


def _written(document: str, path: Path | None) -> str:
    if path is not None:
        write_whole(path, document)
    return document
