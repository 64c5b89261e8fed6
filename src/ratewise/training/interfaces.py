"""What a session needs from rows, models and noise: the extension points of training.

Everything that a fit needs from rows is a sum over units: numbers of ids by their rows, counts of values, column
histograms, clipped gradients, prediction counts. A `RowSource` returns the sums before training, its `Engine` those of
training; all of them are **private** until a mechanism releases them. Sums are exact (integers, or multiples of a power
of two), so that they do not depend on the order or the partition of rows, and units are numbered in a way that does not
either: rows by their place in the table, ids by the order of a digest of the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat
from ratewise.data.table import Units
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.preprocessing.basis import Basis
from ratewise.preprocessing.discovery import ColumnDeclaration, RangeCounts, ValueCounts
from ratewise.preprocessing.grids import Grid
from ratewise.training.config import TrainingConfig

Floats = npt.NDArray[np.float64]

LABEL = "label"  # the name of the label column in `RowSource.count_values`


class RowSource(Protocol):
    """The rows of a fit: in memory (`ratewise.models.rows`) or in partitions (`ratewise.distributed`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features; public."""
        ...

    @property
    def named(self) -> bool:
        """Whether the names are the user's."""
        ...

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the sensitive columns; public."""
        ...

    @property
    def sparse(self) -> bool:
        """Whether the features are a sparse matrix, which is used as it is."""
        ...

    def count_units(self) -> int:
        """Return the number of units, rows or distinct ids; public."""
        ...

    def count_sizes(self, classes: tuple[Any, ...] | None) -> Floats:
        """Return the number of ids by the logarithm of their number of usable rows; **private**.

        A row is usable if it has a label, that of a class if classes are given.
        """
        ...

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:
        """Fix which usable rows each unit contributes; called once, after `count_units`."""
        ...

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Code labels and groups; rows whose label is no class have no weight in all later sums."""
        ...

    def count_values(self, names: tuple[str, ...]) -> dict[str, ValueCounts]:
        """Return the distinct values of sensitive columns and of `LABEL`, with their weights; **private**."""
        ...

    def count_ranges(self, formats: Mapping[str, CellFormat]) -> dict[str, RangeCounts]:
        """Return the range cells and text values of features, with their weights; **private**."""
        ...

    def bin_weights(self, grids: tuple[Grid, ...]) -> list[Floats]:
        """Code the features and return the weight of the rows of each bin, by column; **private**."""
        ...

    def engine(
        self, basis: Basis | None, columns: Mapping[str, ColumnDeclaration], config: TrainingConfig
    ) -> Any:
        """Return the engine of the training steps."""
        ...

    def select(self, sample: KeyedSample) -> Any:
        """Return a sample as the engine takes it; **private**."""
        ...


class Engine(Protocol):
    """The only object that reads rows during a step."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        ...

    @property
    def count_step(self) -> float:
        """Power of two that all prediction counts are multiples of."""
        ...

    def slack(self, rows: float) -> float:
        """Return a bound on the rounding errors of the gradient sum, relative to the clipping norm."""
        ...

    def sums(self, sample: Any, parameters: Any, weights: Floats | None, clip: float) -> Any:
        """Return `.gradient` (clipped sum) and `.histogram` (prediction counts) of a sample; **private**."""
        ...

    def counts(self, parameters: Any) -> tuple[Floats, Floats]:
        """Return cells by predicted class and labels by whether predicted correctly, over all units; **private**."""
        ...

    def margin_counts(self, parameters: Any, towards: int) -> tuple[Floats, Floats]:
        """Return cells and labels by `ratewise.training.certificate.margin_codes` over all units; **private**."""
        ...

    def shifted(self, parameters: Any, towards: int, amount: float) -> Any:
        """Return parameters for `counts` with `amount` added to the score of class `towards`."""
        ...


class Release(Protocol):
    """Adds noise to a private value; `ratewise.mechanisms.noise.Mechanism` for arrays."""

    def release(self, value: Any, rng: np.random.Generator, /) -> Any:
        """Return the value with fresh noise on every entry."""
        ...


class Optimizer(Protocol):
    """Moves parameters by released gradients: post-processing. `ratewise.training.loop.GradientDescent` for arrays."""

    done: int

    @property
    def parameters(self) -> Any:
        """The model, as the engine takes it."""
        ...

    @property
    def relative_rate(self) -> float:
        """Learning rate of the coming step relative to the first one."""
        ...

    def step(self, total: Any, expected_units: float) -> float:
        """Move by a released sum over the constant `expected_units`; return the norm of that mean."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...
