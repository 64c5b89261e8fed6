"""The report: made from a model or from predictions, shown as a page, a card, figures, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ratewise.accounting.book import strict_json
from ratewise.accounting.statement import texts
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.report import card, page
from ratewise.report.build import Background, content_of, known_values, probabilities, rivals_of
from ratewise.report.content import Content
from ratewise.report.evaluation import Evaluation
from ratewise.report.words import verdict
from ratewise.whole_files import Path, write_whole

if TYPE_CHECKING:
    from ratewise.accounting import Ledger, PrivacyStatement
    from ratewise.enforceability import Doubt


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
    <Report: 0 limits held, 0 missed, 2 cannot be told, on 4 rows>

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
        name: str | None = None,
        title: str | None = None,
    ) -> Self:
        """Report on a fitted classifier, ours or not, by its predictions for rows it has not seen.

        Parameters
        ----------
        model : classifier with ``predict``
            What it knows of its constraints, privacy and training is shown too.
        X, y, sensitive_features
            Rows to measure on.
        baseline : classifier, or mapping of names to classifiers, optional
            To compare with; usually the same model without limits.
        constraints : optional
            Instead of the model's own.
        by : list of columns, or of tuples of columns to cross, optional
            The groups to show; by default those that the constraints name, or every column.
        confidence : float
            Of each interval by itself.
        name, title : str, optional
            What the model is called, and the heading of the page.
        """
        own = getattr(model, "constraints", None) if constraints is None else constraints
        soft = getattr(getattr(model, "plan_", None), "rates", "hard") == "soft"
        data = Evaluation.read(
            y,
            model.predict(X),
            sensitive_features,
            own,
            scores=probabilities(model, X),
            classes=getattr(model, "classes_", None),
            group_values=known_values(model),
            by=by,
            confidence=confidence,
            soft=soft,
        )
        return cls(content_of(data, Background.of(model, name), rivals_of(baseline, X), title))

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        sensitive_features: Any = None,
        constraints: Any = None,
        *,
        scores: Any = None,
        baseline: Any = None,
        classes: Iterable[Any] | None = None,
        group_values: Any = None,
        by: Iterable[Any] | None = None,
        confidence: float = 0.95,
        soft: bool = False,
        name: str = "model",
        title: str | None = None,
        statement: PrivacyStatement | None = None,
        ledger: Ledger | None = None,
        history: Mapping[str, Any] | None = None,
        compiled: Any = None,
        doubts: Iterable[Doubt] = (),
        notes: Iterable[str] = (),
    ) -> Self:
        """Report on any predictions, whoever made them.

        Parameters
        ----------
        y_true, y_pred : (n,) array-like
        sensitive_features : data frame, mapping, vector
        constraints : constraint, family, or list of them, optional
        scores : optional
            Probabilities, (n, K) or for two classes (n,) of the second; they add calibration.
        baseline : predictions, or mapping of names to predictions, optional
        classes, group_values : optional
            All classes, and all values of each column; where not given they are read off the data.
        by, confidence, name, title
            As in `from_model`.
        soft : bool
            Whether limits are meant for the probabilities in `scores` instead of predicted classes.
        statement, ledger, history, compiled, doubts : optional
            What is known of the training: see `ratewise.report.build.Background`.
        notes : iterable of str
            Further warnings to show.
        """
        data = Evaluation.read(
            y_true,
            y_pred,
            sensitive_features,
            constraints,
            scores=scores,
            classes=classes,
            group_values=group_values,
            by=by,
            confidence=confidence,
            soft=soft,
        )
        background = Background(name, statement, ledger, history, compiled, tuple(doubts), texts(notes=notes))
        rivals = baseline if isinstance(baseline, Mapping) else {"without limits": baseline}
        return cls(content_of(data, background, {} if baseline is None else rivals, title))

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
        return _written(card.render(self.content), path)

    def _repr_html_(self) -> str:
        return page.embedded(self.content)

    def __repr__(self) -> str:
        counts = self.content.counts
        return (
            f"<Report: {counts['held']:,} limits held, {counts['missed']:,} missed, "
            f"{counts['unclear']:,} cannot be told, on {self.content.rows:,} rows>"
        )

    def __str__(self) -> str:
        return f"{self.headline}.\n{repr(self).strip('<>')}"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, without its full stop."""
        return verdict(self.content.counts)[1]

    # ----------------------------------------------------------------------------- as figures

    def figures(self) -> dict[str, Any]:
        """Return a matplotlib axes for every figure there is something to draw for, by name."""
        from ratewise.report import figures

        return figures.draw_all(self.content)

    def save_figures(self, folder: Path, format: str = "svg") -> list[str]:
        """Write every figure into a folder as "png", "svg" or "pdf", and return the paths."""
        from ratewise.report import figures

        return figures.save_all(self.content, folder, format)

    def plot_limits(self, ax: Any = None) -> Any:
        """Draw how far each limit is kept or missed, and return the matplotlib axes."""
        return self._plot("limits", ax)

    def plot_rates(self, ax: Any = None, *, rate: str = "selection_rate", by: Any = None) -> Any:
        """Draw a rate of each group with its interval, and return the matplotlib axes."""
        return self._plot("rates", ax, rate=rate, by=by)

    def plot_tradeoff(self, ax: Any = None) -> Any:
        """Draw accuracy against the worst limit of every model, and return the matplotlib axes."""
        return self._plot("tradeoff", ax)

    def plot_calibration(self, ax: Any = None) -> Any:
        """Draw scores against outcomes by group, and return the matplotlib axes."""
        return self._plot("calibration", ax)

    def plot_error(self, ax: Any = None, *, by: Any = None) -> Any:
        """Draw the error rate of each group with its interval, and return the matplotlib axes."""
        return self._plot("error", ax, by=by)

    def plot_training(self, ax: Any = None) -> Any:
        """Draw released values of the constraints over the steps, and return the matplotlib axes."""
        return self._plot("training", ax)

    def plot_ledger(self, ax: Any = None) -> Any:
        """Draw where the privacy budget went, and return the matplotlib axes."""
        return self._plot("ledger", ax)

    def _plot(self, figure: str, ax: Any, **choices: Any) -> Any:
        from ratewise.report import figures

        return figures.draw(figure, self.content, ax, **choices)


def _written(document: str, path: Path | None) -> str:
    if path is not None:
        write_whole(path, document)
    return document
