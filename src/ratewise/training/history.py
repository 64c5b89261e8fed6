"""Released values of a run, thinned so that memory stays bounded whatever its length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.training.loop import Loop, StepRecord

_MOST_VALUES = 4_000_000


class History:
    """Released values by step.

    Parameters
    ----------
    steps : int
    shape : (int, int) or None
        Cells and classes of the histogram.
    n_constraints : int
    """

    def __init__(self, steps: int, shape: tuple[int, int] | None = None, n_constraints: int = 0) -> None:
        width = 2 + 2 * n_constraints + (0 if shape is None else shape[0] * shape[1])
        self.every = max(1, math.ceil(steps * width / _MOST_VALUES))
        self._records: list[StepRecord] = []
        self._earlier: dict[str, npt.NDArray[Any]] = {}

    @classmethod
    def of(cls, loop: Loop, steps: int) -> History:
        """Return an empty history for a loop."""
        if loop.dual is None:
            return cls(steps)
        constraints = loop.dual.constraints
        return cls(steps, (constraints.n_cells, constraints.n_classes), len(constraints))

    def add(self, record: StepRecord) -> None:
        """Store a record; steps between kept ones are passed over."""
        if (record.step - 1) % self.every == 0:
            self._records.append(record)

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Begin with what `arrays` of an earlier part of the run returned."""
        self._earlier = dict(arrays) if len(arrays.get("step", ())) else {}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the stored values by name, one row per kept step."""
        stored: dict[str, npt.NDArray[Any]] = {
            "step": np.array([record.step for record in self._records], dtype=np.int64),
            "gradient_norm": np.array([record.gradient_norm for record in self._records]),
        }
        kept = [record for record in self._records if record.histogram is not None]
        if kept:
            stored["histogram"] = np.stack([np.asarray(record.histogram) for record in kept])
            stored["values"] = np.stack([np.asarray(record.values) for record in kept])
            stored["multipliers"] = np.stack([np.asarray(record.multipliers) for record in kept])
        if not self._earlier:
            return stored
        if not self._records:
            return dict(self._earlier)
        return {name: np.concatenate([self._earlier[name], values]) for name, values in stored.items()}
