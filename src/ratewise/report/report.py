"""The report: made from a model or from predictions, shown as a page, a card, figures, or JSON."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ratewise import _validate
from ratewise._files import Path, strict_json, write_whole
from ratewise.constraints.compiler import as_constraints
from ratewise.constraints.domain import list_values
from ratewise.data.table import raw_columns
from ratewise.estimators.evaluation import evaluate
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics.verdicts import Certificate
from ratewise.report import page
from ratewise.report.build import (
    Background,
    content_of,
    content_of_training,
    known_rows,
    known_values,
    rivals_of,
)
from ratewise.report.content import Content
from ratewise.report.evaluation import Evaluation
from ratewise.report.plots import new_axes
from ratewise.report.views import FIGURES, figure_of

if TYPE_CHECKING:
    from ratewise.accounting import Ledger, PrivacyStatement


class Report:
    """What predictions reach of what was asked, for whom, and at what cost.

    Made by `from_model` or `from_predictions`. In a notebook a report shows itself.

    Attributes
    ----------
    content : Content
        Everything that is shown, as plain data.

    Examples
    --------
    >>> from ratewise import demographic_parity
    >>> report = Report.from_predictions(
    ...     [0, 1, 0, 1], [0, 1, 0, 0], {"sex": ["F", "F", "M", "M"]}, demographic_parity("sex", max_gap=0.1)
    ... )
    >>> report
    <Report: 0 constraints held, 1 missed, 0 cannot tell, on 4 rows>

    Notes
    -----
    A report reads the rows it is given, without noise. A model's privacy guarantee does not cover it.
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
        name: str | None = None,
        title: str | None = None,
        data: str | None = None,
        target: str | None = None,
        ledger: Ledger | None = None,
        notes: Iterable[str] = (),
    ) -> Self:
        """Report on a fitted classifier, ours or not, by its predictions for rows it has not seen.

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
        confidence : float
            Of all intervals of constraints together, and of each other interval by itself.
        tolerance : float, optional
            A constraint is held if its value is at most this much beyond the bound; by default as in training.
        name, title, data, target : str, optional
            What the model is called, the heading of the page, and what the rows and the label are called.
        ledger : Ledger, optional
            By default that of the model.
        notes : iterable of str
            Further warnings to show.

        Notes
        -----
        Rows whose label the model does not know are left out, with a note; groups that it does not know are shown as
        other values. Of a model that found fewer than two classes, or no group for a constraint, the page is that of
        `from_training`.
        """
        target = target or (y if isinstance(y, str) else getattr(y, "name", None))
        groupless = getattr(getattr(model, "constraints_", None), "groupless", ())
        if hasattr(model, "privacy_") and (len(model.classes_) < 2 or groupless):
            named = target if isinstance(target, str) else None
            return cls.from_training(model, name=name, title=title, target=named, ledger=ledger, notes=notes)
        y, sensitive_features, X = _columns_by_name(X, y, sensitive_features)
        notes = _validate.texts(notes=notes)
        everything = y, sensitive_features
        known: Any = slice(None)
        if getattr(model, "constraints_", None) is not None or hasattr(model, "privacy_"):
            columns = raw_columns(sensitive_features, len(y), needed=None)
            y, sensitive_features, known = known_rows(model, y, columns)
            if not known.any():
                raise InvalidInput(
                    "no row has a label and groups that the model knows; spell them as in training: the classes "
                    f"are {list_values(model.classes_.tolist())}"
                )
            if not known.all():
                count = int((~known).sum())
                notes += (f"{count:,} rows without a label that the model knows are left out.",)
        config = getattr(model, "config", None)
        constraints = getattr(model, "constraints", None) if constraints is None else constraints
        predicted = model.predict(X)
        rows = Evaluation.read(
            y,
            predicted[known],
            sensitive_features,
            constraints,
            scores=model.predict_proba(X)[known] if callable(getattr(model, "predict_proba", None)) else None,
            classes=getattr(model, "classes_", None),
            group_values=known_values(model),
            by=by,
            confidence=confidence,
            schema=getattr(model, "schema", None),
        )
        tolerance = getattr(config, "tolerance", 0.01) if tolerance is None else tolerance
        judge = functools.partial(_certificate, rows, *everything, tolerance)
        background = Background(
            type(model).__name__ if name is None else name,
            getattr(model, "privacy_", None),
            ledger or getattr(model, "ledger_", None),
            model,
            target if isinstance(target, str) else None,
            data,
            notes,
            title,
        )
        return cls(content_of(rows, background, judge(predicted), rivals_of(baseline, X, known, judge)))

    @classmethod
    def from_training(
        cls,
        model: Any,
        *,
        name: str | None = None,
        title: str | None = None,
        data: str | None = None,
        target: str | None = None,
        ledger: Ledger | None = None,
        notes: Iterable[str] = (),
    ) -> Self:
        """Report on a fitted classifier of ours by what its training released; no rows are read.

        All of it is covered by the privacy guarantee. Constraints and accuracy are those of the certificate.
        Parameters are as in `from_model`.
        """
        background = Background(
            type(model).__name__ if name is None else name,
            model.privacy_,
            ledger or getattr(model, "ledger_", None),
            model,
            target,
            data,
            _validate.texts(notes=notes),
            title,
        )
        return cls(content_of_training(background))

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        sensitive_features: Any = None,
        constraints: Any = None,
        *,
        baseline: Any = None,
        name: str = "model",
        title: str | None = None,
        statement: PrivacyStatement | None = None,
        ledger: Ledger | None = None,
        model: Any = None,
        target: str | None = None,
        data: str | None = None,
        notes: Iterable[str] = (),
        tolerance: float = 0.01,
        **reading: Any,
    ) -> Self:
        """Report on any predictions, whoever made them.

        Parameters
        ----------
        y_true, y_pred : (n,) array-like
        sensitive_features : data frame, mapping, vector
        constraints : constraint, family, or list of them, optional
        baseline : predictions, or mapping of names to predictions, optional
        name, title
            As in `from_model`.
        statement, ledger, model, target, data : optional
            What is known of the training, the label and the rows: see `ratewise.report.build.Background`.
        notes : iterable of str
            Further warnings to show.
        tolerance : float
            Of the verdicts.
        **reading
            Of `ratewise.report.evaluation.Evaluation.read`: `scores` (probabilities, which add calibration),
            `classes` and `group_values` (read off the data where not given), `by` and `confidence`.
        """
        rows = Evaluation.read(y_true, y_pred, sensitive_features, constraints, **reading)
        judge = functools.partial(_certificate, rows, y_true, sensitive_features, tolerance)
        background = Background(
            name, statement, ledger, model, target, data, _validate.texts(notes=notes), title
        )
        others = baseline if isinstance(baseline, Mapping) else {"without constraints": baseline}
        rivals = {name: (guess, judge(guess), None) for name, guess in others.items() if guess is not None}
        return cls(content_of(rows, background, judge(y_pred), rivals))

    # -------------------------------------------------------------------------------- as text

    def to_json(self, path: Path | None = None) -> str:
        """Return the report as strict JSON, and write it to `path` if one is given."""
        document = json.dumps(self.content.to_dict(), allow_nan=False, indent=1)
        return _written(document, path)

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Read back what `to_json` returned."""
        if not isinstance(document, str | bytes):
            raise InvalidType(f"document must be JSON text, got {type(document).__name__}")
        try:
            description = strict_json(document)
        except ValueError:
            raise InvalidInput("document must be JSON that Report.to_json() wrote") from None
        return cls(Content.from_dict(description))

    def to_html(self, path: Path | None = None) -> str:
        """Return the page, one file that needs no other, and write it to `path` if one is given."""
        return _written(page.render(self.content), path)

    def save_html(self, path: Path) -> None:
        """Write the page to a file. The file is whole at every moment."""
        self.to_html(path)

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
            "rates": `rate` (such as "true_positive_rate"), `by` (a column, or several) and class `k`; "error": `by`;
            "shapes": `feature`.
        """
        drawn = figure_of(figure, self.content, **choices)
        return drawn.draw(new_axes() if ax is None else ax)

    def figures(self) -> dict[str, Any]:
        """Return a matplotlib axes for every figure there is something to draw for, by name."""
        drawn = {name: make(self.content) for name, (make, _) in FIGURES.items()}
        return {name: figure.draw(new_axes()) for name, figure in drawn.items() if figure is not None}

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


def _certificate(
    rows: Evaluation, y: Any, sensitive: Any, tolerance: float, predicted: Any
) -> Certificate | None:
    """Return the certificate of predictions by exact counts, as `evaluate` gives it; None without constraints."""
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


def _columns_by_name(X: Any, y: Any, sensitive: Any) -> tuple[Any, Any, Any]:
    """Take labels and sensitive columns out of a frame where they are given as names of its columns."""
    if hasattr(X, "columns"):
        names = [sensitive] if isinstance(sensitive, str) else sensitive
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            sensitive = {name: X[name] for name in names}
        if isinstance(y, str):
            y, X = X[y], X.drop(columns=[y]) if hasattr(X, "iloc") else X.drop([y])
    return y, sensitive, X


def _written(document: str, path: Path | None) -> str:
    if path is not None:
        write_whole(path, document)
    return document
