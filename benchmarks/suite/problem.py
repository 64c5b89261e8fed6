"""A problem: rows of a public data set, split in two, with a constraint; and what predictions reach on it."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import demographic_parity, equalized_odds, false_negative_rate
from ratewise.compiled import CompiledConstraints
from ratewise.datasets import LOADERS
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput
from ratewise.partition import compile_constraints

CONSTRAINTS = ("demographic_parity", "equalized_odds", "false_negative_rate")
TRAIN_SHARE = 0.75
SMALLEST_GROUP = 100  # test rows below which a rate is not worth comparing


@dataclass(frozen=True)
class Task:
    """A data set, a family of constraints and the column it is about."""

    dataset: str
    constraint: str
    column: str = "sex"

    def __post_init__(self) -> None:
        if self.constraint not in CONSTRAINTS:
            raise InvalidInput(f"constraint must be one of {', '.join(CONSTRAINTS)}, got {self.constraint!r}")
        if self.dataset not in LOADERS:
            raise InvalidInput(f"dataset must be one of {', '.join(LOADERS)}, got {self.dataset!r}")

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
    def y(self) -> np.ndarray:
        """Labels, 0 or 1."""
        return np.searchsorted(self.table.classes, self.table.y[self.rows])

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
        return compiled.cells(self.y.astype(np.int32), columns)


def data_home() -> Path | None:
    """Return ``shared/data`` beside the repository if it is there and $RATEWISE_DATA says nothing else."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return beside if "RATEWISE_DATA" not in os.environ and beside.is_dir() else None


@functools.lru_cache(maxsize=2)
def load(dataset: str) -> Any:
    """Return the table of a data set; the last two are kept."""
    return LOADERS[dataset](data_home())


def split(task: Task, seed: int, share: float = TRAIN_SHARE) -> tuple[Part, Part, str]:
    """Return training rows, test rows and the hash of the split.

    A seed below 0 stands for a run on the one split that DP-FERMI's published runs share.
    """
    table = load(task.dataset)
    if seed < 0:
        import pandas as pd

        train = pd.RangeIndex(len(table)).to_frame().sample(frac=share, random_state=100).index.to_numpy()
        test = np.setdiff1d(np.arange(len(table)), train)
    else:
        order = np.random.default_rng(seed).permutation(len(table))
        train, test = np.split(order, [int(share * len(order))])
    digest = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()[:16]
    return Part(task, table, train), Part(task, table, test), digest


def measure(part: Part, positive: np.ndarray, soft: np.ndarray | None = None) -> dict[str, Any]:
    """Return error and rates of predictions on a part.

    Parameters
    ----------
    positive : (n,) array
        Probability with which each row is given class 1: 0 or 1 unless the classifier is randomised.
    soft : (n,) array, optional
        Predicted probability of class 1.
    """
    compiled = part.compiled(0.5)
    cells = part.cells(compiled)
    hard, rows = _reached(compiled, cells, positive)
    found: dict[str, Any] = {
        "error": float(np.mean(np.where(part.y == 1, 1.0 - positive, positive))),
        "hard": hard,
        "rows": rows,
        "violation": _worst(hard, rows),
        "positive_rate": float(np.mean(positive)),
        "share_of_ones": float(np.mean(part.y)),
    }
    if soft is not None:
        found["soft"], _ = _reached(compiled, cells, soft)
        found["soft_violation"] = _worst(found["soft"], rows)
    return found


def _reached(compiled: CompiledConstraints, cells: np.ndarray, positive: np.ndarray) -> tuple[dict, dict]:
    """Return left-hand sides and smallest group by name, each gap once."""
    histogram = compiled.histogram(cells, np.column_stack([1.0 - positive, positive]))
    reached = compiled.reached(compiled.values(histogram, floor=1e-9))
    rows = compiled.smallest_denominators(histogram)
    names = [name.rsplit(" ", 2)[0] for name in compiled.names]
    return (
        {name: round(float(value), 6) for name, value in zip(names, reached, strict=True)},
        {name: round(float(value)) for name, value in zip(names, rows, strict=True)},
    )


def _worst(reached: dict[str, float], rows: dict[str, int]) -> float:
    """Return the largest magnitude among the rates that rest on enough rows."""
    return max((abs(v) for name, v in reached.items() if rows[name] >= SMALLEST_GROUP), default=0.0)
