"""What a classifier tells about itself: a report on rows, and a summary above scikit-learn's diagram.

`Reported` is mixed into the classifiers. It reads fitted attributes only (`privacy_`, `doubts_`, ...), so any
engine that leaves them behind can use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sklearn import get_config
from sklearn.utils import estimator_html_repr

if TYPE_CHECKING:
    from ratewise.report import Report

_MOST = 6


class Reported:
    """Mixin of classifiers: `report`, and an HTML summary in notebooks."""

    def report(
        self,
        X: Any,
        y: Any,
        *,
        sensitive_features: Any = None,
        baseline: Any = None,
        by: Iterable[Any] | None = None,
        confidence: float = 0.95,
        name: str | None = None,
        title: str | None = None,
    ) -> Report:
        """Report what this model reaches of what was asked, on rows it has not seen.

        The rows are read without noise, and the privacy guarantee does not cover what is measured on them.

        Parameters
        ----------
        X, y, sensitive_features
            Rows to measure on, as in ``fit``.
        baseline : classifier, or mapping of names to classifiers, optional
            To compare with; usually the same model without limits.
        by, confidence, name, title
            See `ratewise.report.Report.from_model`.

        Returns
        -------
        Report
            Shows itself in notebooks; ``.to_html(path)``, ``.to_json(path)``, ``.model_card(path)``,
            ``.figures()``.
        """
        from ratewise.report import Report

        return Report.from_model(
            self,
            X,
            y,
            sensitive_features,
            baseline,
            by=by,
            confidence=confidence,
            name=name,
            title=title,
        )

    # scikit-learn asks for either of these, by version and by who displays

    def _repr_html_inner(self) -> str:
        return self._html_repr()

    def _html_repr(self) -> str:
        return summary(self) + str(estimator_html_repr(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            shown["text/html"] = self._html_repr()
        return shown


def summary(model: Any) -> str:
    """Return what matters most about a classifier as a small piece of HTML; every text is escaped."""
    from ratewise.report.markup import el

    lines = _fitted_lines(model) if hasattr(model, "privacy_") else _asked_lines(model)
    items = [el("div", el("b", f"{title}: "), text) for title, text in lines]
    style = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;margin:.3em 0;max-width:60em"
    return el("div", items, style=style)


def _asked_lines(model: Any) -> list[tuple[str, str]]:
    epsilon = getattr(model, "epsilon", None)
    budget = (
        "none asked for" if epsilon is None else f"epsilon {epsilon:g}, delta {model.delta:g}, to be spent"
    )
    return [
        ("Not fitted yet", "fit(X, y, sensitive_features=...)"),
        ("Privacy", budget),
        ("Limits", _asked(model)),
    ]


def _fitted_lines(model: Any) -> list[tuple[str, str]]:
    from ratewise.report.words import epsilon_text

    statement = model.privacy_
    if math.isinf(statement.epsilon):
        privacy = "no guarantee"
    else:
        privacy = (
            f"epsilon {epsilon_text(statement.epsilon)}, delta {statement.delta:g}, for {statement.unit}"
        )
    lines = [("Privacy", privacy), ("Limits", _asked(model))]
    if statement.leaks:
        lines.append(("Not covered by epsilon", "; ".join(statement.leaks)))
    doubts = getattr(model, "doubts_", ())
    if doubts:
        lines.append(("Not to be relied on at this budget", _listed(map(str, doubts))))
    lines.append(("What was reached", "report(X, y, sensitive_features=...) on rows it has not seen"))
    return lines


def _asked(model: Any) -> str:
    asked = getattr(model, "constraints", None)
    if asked is None:
        return "none"
    items = asked if isinstance(asked, list | tuple | set | frozenset) else [asked]
    compiled = getattr(model, "constraints_", None)
    count = "" if compiled is None else f" ({len(compiled):,} constraints)"
    return _listed(map(str, items)) + count


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f"; and {len(items) - _MOST} more" if len(items) > _MOST else ""
    return "; ".join(items[:_MOST]) + more
