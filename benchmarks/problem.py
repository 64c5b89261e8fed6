"""A problem: rows of a public data set, split in two, with a constraint; and the measures of predictions on it."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import demographic_parity, equalized_odds, false_negative_rate
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.data.table import code_table
from ratewise.datasets import LOADERS
from ratewise.exceptions import InvalidInput

CONSTRAINTS = ("demographic_parity", "equalized_odds", "false_negative_rate")
TRAIN_SHARE = 0.75
SMALLEST_GROUP = 100  # test rows below which a rate is not worth comparing


@dataclass(frozen=True)
class Task:
    """A data set, a family of constraints and the column it is about."""

    dataset: str
    constraint: str
    column: str = ""

    def __post_init__(self) -> None:
        if self.constraint not in CONSTRAINTS:
            raise InvalidInput(f"constraint must be one of {', '.join(CONSTRAINTS)}, got {self.constraint!r}")
        if self.dataset not in LOADERS:
            raise InvalidInput(f"dataset must be one of {', '.join(LOADERS)}, got {self.dataset!r}")
        if not self.column:
            object.__setattr__(self, "column", "finance" if self.dataset == "nursery" else "sex")

    def family(self, bound: float) -> Any:
        """Return the constraints with this bound."""
        if self.constraint == "demographic_parity":
            return demographic_parity(self.column, max_gap=bound)
        if self.constraint == "equalized_odds":
            return equalized_odds(self.column, max_gap=bound)
        return false_negative_rate(bound)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one side of a split, with labels and groups as numbers."""

    task: Task
    table: Any
    rows: np.ndarray

    @functools.cached_property
    def X(self) -> np.ndarray:  # noqa: N802 - the name of the mathematics
        """Encoded features, within the public bounds."""
        return self.table.X[self.rows]

    @functools.cached_property
    def frame(self) -> Any:
        """The raw feature columns, as published."""
        schema = self.table.schema
        columns = [*schema.feature_bounds, *schema.categories]
        return self.table.frame[columns].iloc[self.rows].reset_index(drop=True)

    @functools.cached_property
    def y(self) -> np.ndarray:
        """Labels as places among the classes."""
        return np.searchsorted(self.table.classes, self.table.y[self.rows])

    @property
    def labels(self) -> np.ndarray:
        """Labels as published."""
        return self.table.y[self.rows]

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the row numbers."""
        return hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest()[:16]

    @functools.cached_property
    def sensitive(self) -> Any:
        """The sensitive columns."""
        return self.table.sensitive.iloc[self.rows].reset_index(drop=True)

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """Group numbers, in the order of the schema's values."""
        values = np.array(self.table.group_values[self.task.column])
        return np.argmax(values[None, :] == self.sensitive[self.task.column].to_numpy()[:, None], axis=1)

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.table.group_values[self.task.column])

    def __len__(self) -> int:
        return len(self.rows)

    def compiled(self, bound: float) -> CompiledConstraints:
        """Return the constraints, compiled against the public schema."""
        domain = Domain(classes=self.table.classes, columns=self.table.group_values)
        return compile_constraints([self.task.family(bound)], domain)

    def cells(self, compiled: CompiledConstraints) -> np.ndarray:
        """Return the cell of each row."""
        columns = {name: self.sensitive[name].to_numpy() for name in self.sensitive}
        return code_table(compiled, self.labels, columns)[1]


def data_home() -> Path | None:
    """Return ``shared/data`` beside the repository if it is there and $RATEWISE_DATA says nothing else."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if "RATEWISE_DATA" not in os.environ and beside.is_dir() else None


@functools.lru_cache(maxsize=2)
def load(dataset: str) -> Any:
    """Return the table of a data set; the last two are kept."""
    return LOADERS[dataset](data_home())


def split(task: Task, seed: int, share: float = TRAIN_SHARE) -> tuple[Part, Part]:
    """Return training rows and test rows.

    Split 0 is a permutation of the rows by seed 0, and so on; a quarter of the rows is for testing.
    """
    table = load(task.dataset)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test = np.split(order, [int(share * len(order))])
    return Part(task, table, train), Part(task, table, test)


def measure(part: Part, chances: np.ndarray, soft: np.ndarray | None = None) -> dict[str, Any]:
    """Return error, area under the ROC curve and rates of predictions on a part.

    Parameters
    ----------
    chances : (n, K) array, or (n,) with the column of class 1
        Probability with which each row is given each class: 0 or 1 unless the classifier is randomised.
    soft : (n, K) or (n,) array, optional
        Predicted probabilities.

    Returns
    -------
    dict
        ``violation`` is the largest gap (or rate) of the constraint among groups of at least 100 rows; ``auc``, with
        several classes, is the mean of one class against the rest by the number of its rows, and None without
        probabilities.
    """
    chances = _columns(chances)
    compiled = part.compiled(0.5)
    reached, rows = _reached(compiled, part.cells(compiled), chances)
    return {
        "error": 1.0 - float(np.mean(chances[np.arange(len(part)), part.y])),
        "auc": None if soft is None else _auc(part.y, _columns(soft)),
        "reached": reached,
        "rows": rows,
        "violation": max((abs(v) for name, v in reached.items() if rows[name] >= SMALLEST_GROUP), default=0.0),
    }


def _columns(values: np.ndarray) -> np.ndarray:
    return np.column_stack([1.0 - values, values]) if values.ndim == 1 else values


def _auc(y: np.ndarray, soft: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    if soft.shape[1] == 2:
        return float(roc_auc_score(y, soft[:, 1]))
    present = [k for k in range(soft.shape[1]) if 0 < (y == k).sum() < len(y)]
    each = [roc_auc_score(y == k, soft[:, k]) for k in present]
    return float(np.average(each, weights=[(y == k).sum() for k in present]))


def _reached(compiled: CompiledConstraints, cells: np.ndarray, chances: np.ndarray) -> tuple[dict, dict]:
    """Return left-hand sides and smallest group by name, each gap once."""
    histogram = compiled.histogram(cells, chances)
    reached = compiled.reached(compiled.values(histogram, floor=1e-9))
    below, table = compiled.denominators(histogram), compiled.coefficients
    rows = [below[table.indices[a:b]].min() for a, b in zip(table.indptr, table.indptr[1:], strict=False)]
    names = [name.rsplit(" ", 2)[0] for name in compiled.names]
    return (
        {name: round(float(value), 6) for name, value in zip(names, reached, strict=True)},
        {name: round(float(value)) for name, value in zip(names, rows, strict=True)},
    )
