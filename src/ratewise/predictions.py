"""True labels and predictions, of any model and dtype, checked and translated to class codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise.domain import encode, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.tables import as_column, distinct, has_missing, read_domain

_SUM_ROUNDING = 1e-3  # soft predictions of float32 models sum to one only roughly


@dataclass(frozen=True, eq=False)
class Predictions:
    """True labels, and predictions as class codes (n,) or probabilities (n, K)."""

    classes: tuple[Any, ...]
    truth: Any
    truth_codes: NDArray[np.int32]
    predictions: NDArray[Any]

    @classmethod
    def read(cls, y_true: Any, y_pred: Any, y_prob: Any, classes: Iterable[Any] | None) -> Predictions:
        """Check and translate; exactly one of `y_pred` and `y_prob` is given."""
        if (y_pred is None) == (y_prob is None):
            raise InvalidInput(
                "pass y_pred (labels, for hard rates) or y_prob (probabilities, for soft rates)"
            )
        truth = _labels(y_true, "y_true")
        if not len(truth):
            raise InvalidInput("y_true is empty; a report needs at least one row")
        if y_prob is not None:
            known = _classes(classes, (truth,))
            return cls(
                known, truth, _codes(truth, known, "y_true"), _probabilities(y_prob, len(truth), known)
            )
        guess = _labels(y_pred, "y_pred")
        if len(guess) != len(truth):
            raise InvalidInput(
                f"y_pred must have one entry per row of y_true: {len(guess)} against {len(truth)}"
            )
        known = _classes(classes, (truth, guess))
        return cls(known, truth, _codes(truth, known, "y_true"), _codes(guess, known, "y_pred"))


def _labels(labels: Any, name: str) -> Any:
    try:
        np.ndim(labels)
    except ValueError:  # entries of unlike length
        raise InvalidInput(f"{name} must be one label per row, got entries that are no scalars") from None
    if np.ndim(labels) == 2 and np.shape(labels)[1] > 1:
        raise InvalidInput(
            f"{name} must be one label per row, got an array with {np.shape(labels)[1]} columns; "
            "give probabilities as y_prob"
        )
    column = as_column(labels, name)
    if has_missing(column):
        raise InvalidInput(f"{name} holds missing values; drop those rows")
    return column


def _classes(declared: Iterable[Any] | None, labels: tuple[Any, ...]) -> tuple[Any, ...]:
    if declared is not None:
        return read_domain({}, labels[0], declared)[0].classes
    found = set().union(*(distinct(column, "y") for column in labels))
    if len({isinstance(value, str) for value in found}) > 1:
        raise InvalidInput(
            "y_true and y_pred hold text as well as numbers; give both in the same form, or declare classes="
        )
    if len(found) < 2:
        raise InvalidInput("the labels hold one class only; declare all of them with classes=")
    return read_domain({}, labels[0], found)[0].classes


def _codes(labels: Any, classes: tuple[Any, ...], name: str) -> NDArray[np.int32]:
    return encode(labels, classes, {value: code for code, value in enumerate(classes)}, name)


def _probabilities(y_prob: Any, n_rows: int, classes: tuple[Any, ...]) -> NDArray[np.float64]:
    try:
        table = np.asarray(y_prob, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidType("y_prob must be a table of numbers, one column per class") from None
    if table.shape != (n_rows, len(classes)):
        raise InvalidInput(
            f"y_prob must have {n_rows} rows and a column for each class ({list_values(classes)}), "
            f"got shape {table.shape}; classes that y_true lacks are declared with classes="
        )
    sums = table.sum(axis=1)
    if not (table.min() >= 0 and np.abs(sums - 1.0).max() <= _SUM_ROUNDING):
        raise InvalidInput("y_prob must hold probabilities: no NaN, none negative, each row summing to 1")
    result: NDArray[np.float64] = table / sums[:, None]
    return result
