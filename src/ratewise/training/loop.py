"""The training loop, the same for every engine, with or without privacy and constraints.

::

    for sample in samples:                                        # private: which units take part
        ledger phase: step                                        # recorded before anything is read
        sums = engine.sums(sample, parameters, weights, clip)     # private: one pass over the sample
        gradient = gradient_mechanism.release(sums.gradient)      # released
        histogram = histogram_mechanism.release(sums.histogram)   # released
        optimizer.step(gradient, n * q)                           # post-processing
        dual.update(histogram)                                    # post-processing
        yield StepRecord(...)                                     # released values, nothing else

An empty sample releases its noise and counts like any other. Sums are divided by the constant n * q. To add a model
class, implement `Engine`: every method is a sum over units in which one unit has bounded norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.training.dual import DualUpdate

Floats = npt.NDArray[np.float64]

LARGEST = 1e30  # parameters beyond this norm are no model
_MOST_VALUES = 4_000_000  # of a history


class Engine(Protocol):
    """The only object that reads rows during a step."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""

    @property
    def count_step(self) -> float:
        """Power of two that all prediction counts are multiples of."""

    def slack(self, rows: float) -> float:
        """Return a bound on the rounding errors of the gradient sum, relative to the clipping norm."""

    def sums(self, sample: Any, parameters: Any, weights: Floats | None, clip: float) -> Any:
        """Return `.gradient` (clipped sum) and `.histogram` (prediction counts) of a sample; **private**."""

    def counts(self, parameters: Any) -> tuple[Floats, Floats]:
        """Return cells by predicted class and labels by whether predicted correctly, over all units; **private**."""

    def margin_counts(self, parameters: Any, towards: int) -> tuple[Floats, Floats]:
        """Return cells and labels by `ratewise.training.certificate.margin_codes` over all units; **private**."""

    def shifted(self, parameters: Any, towards: int, amount: float) -> Any:
        """Return parameters for `counts` with `amount` added to the score of class `towards`."""


class Release(Protocol):
    """Adds noise to a private value; `ratewise.mechanisms.noise.Mechanism` for arrays."""

    def release(self, value: Any, rng: np.random.Generator, /) -> Any:
        """Return the value with fresh noise on every entry."""


class Optimizer(Protocol):
    """Moves parameters by released gradients: post-processing. `ratewise.training.loop.GradientDescent` for arrays."""

    done: int

    @property
    def parameters(self) -> Any:
        """The model, as the engine takes it."""

    @property
    def relative_rate(self) -> float:
        """Learning rate of the coming step relative to the first one."""

    def step(self, total: Any, expected_units: float) -> float:
        """Move by a released sum over the constant `expected_units`; return the norm of that mean."""

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""


class StepRecord(NamedTuple):
    """What a step (from 1) released, or was computed from released values; constraint values are filtered."""

    step: int
    gradient_norm: float  # of the mean, noise included
    histogram: Floats | None = None
    values: Floats | None = None
    multipliers: Floats | None = None


@dataclass(frozen=True, eq=False)
class GroupPenalty:
    """A penalty ``sum_j t_j |w_j|`` on groups of weights, by proximal steps.

    A step of size s turns the weights w_j of a group into ``w_j max(0, 1 - s t_j / |w_j|)``. Weights of a group whose
    mean gradient is shorter than t_j go to zero. Groups cover the features, and have a weight per feature and score
    function.
    """

    starts: npt.NDArray[np.intp]  # first feature of each group
    lengths: npt.NDArray[np.intp]  # number of features of each group
    thresholds: Floats  # t_j, 0 for weights without penalty
    n_outputs: int  # number of score functions

    @classmethod
    def of(cls, grouped: npt.NDArray[np.bool_], mean_squares: Floats, strength: float) -> GroupPenalty:
        """Return the penalty of the runs of `grouped` features: `strength` times the length of a group's features.

        `mean_squares` are those of the features, by parameter. With one over the root of the number of units as strength,
        the threshold is the standard error of the mean gradient of the group for residuals of 1.
        """
        starts = np.flatnonzero(np.append(True, grouped[1:] != grouped[:-1]))
        of_features = mean_squares.reshape(-1, len(grouped)).sum(axis=0) * grouped
        thresholds = strength * np.sqrt(np.add.reduceat(of_features, starts))
        return cls(starts, np.diff(starts, append=len(grouped)), thresholds, len(mean_squares) // len(grouped))

    def shrink(self, parameters: Floats, size: float) -> None:
        """Take a proximal step, in place."""
        weights = parameters.reshape(self.n_outputs, -1)
        norms = np.sqrt(np.add.reduceat(np.square(weights), self.starts, axis=1).sum(axis=0))
        kept = np.maximum(1.0 - size * self.thresholds / np.maximum(norms, 1e-300), 0.0)
        weights *= kept.repeat(self.lengths)


@dataclass
class GradientDescent:
    """Gradient descent with momentum and a learning rate that may fall linearly to zero.

    The last iterate is the model. With the falling rate the last steps average the noise of gradients, and
    the model whose rates drive the multipliers is the one that is returned.
    """

    parameters: Floats
    learning_rate: float
    steps: int
    momentum: float = 0.5
    schedule: str = "linear"
    l2: float = 0.0
    penalised: npt.NDArray[np.bool_] | None = None
    groups: GroupPenalty | None = None
    velocity: Floats = field(init=False)
    done: int = field(default=0, init=False)
    _decay: Floats | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.velocity = np.zeros_like(self.parameters)
        if self.l2 and self.penalised is not None:
            self._decay = np.where(self.penalised, self.l2, 0.0)

    @property
    def relative_rate(self) -> float:
        """Learning rate of the coming step relative to the first one."""
        return schedule_value(self.schedule, self.done, self.steps)

    def step(self, total: Floats, expected_units: float) -> float:
        """Move by a released sum; a model that is not finite is an error with a public cause."""
        gradient = total / expected_units
        norm = math.sqrt(gradient.dot(gradient))
        if self._decay is not None:
            gradient += self._decay * self.parameters
        self.velocity *= self.momentum
        self.velocity += gradient
        rate = self.learning_rate * self.relative_rate
        self.parameters = self.parameters - rate * self.velocity
        if self.groups is not None:
            self.groups.shrink(self.parameters, rate / (1.0 - self.momentum))
        self.done += 1
        if not self.parameters.dot(self.parameters) < LARGEST**2:
            raise InvalidInput(
                "training diverged: the released parameters have grown beyond measure; lower learning_rate or l2"
            )
        return norm

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later."""
        return {"done": self.done, "parameters": self.parameters.copy(), "velocity": self.velocity.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        parameters = np.array(state["parameters"], dtype=np.float64)
        if parameters.shape != self.parameters.shape:
            raise InvalidInput(
                f"state has {parameters.size} parameters, the model {self.parameters.size}; "
                "resume with the same features and classes"
            )
        self.parameters = parameters
        self.velocity = np.array(state["velocity"], dtype=np.float64)
        self.done = int(state["done"])


def _divided(gradient: Any, scale: float) -> Any:
    """Return a gradient sum, an array or a list of tensors, divided by a power of two: exact, so the norm is too."""
    if scale == 1.0:
        return gradient
    return [part / scale for part in gradient] if isinstance(gradient, list) else gradient / scale


def schedule_value(schedule: str, done: int, steps: int) -> float:
    """Return the learning rate after `done` of `steps` steps, relative to the first one."""
    return 1.0 if schedule == "constant" else max(0.0, 1.0 - done / steps)


@dataclass
class Loop:
    """A training run that can be stopped and resumed between steps."""

    engine: Engine
    optimizer: Optimizer
    dual: DualUpdate | None
    gradient_mechanism: Release
    histogram_mechanism: Release
    clip: float  # sensitivity of the gradient sum
    expected_units: float  # the constant that sums are divided by

    def run(
        self,
        samples: Iterable[npt.NDArray[np.intp]],
        streams: RandomStreams,
        before_step: Callable[[], object] | None = None,
    ) -> Iterator[StepRecord]:
        """Take a step for every sample and yield what it released; `before_step` records it first."""
        for sample in samples:
            if before_step is not None:
                before_step()
            yield self.step(sample, streams)

    def step(self, sample: npt.NDArray[np.intp], streams: RandomStreams) -> StepRecord:
        """Release the sums of a sample and update; the step must have been recorded."""
        optimizer, dual = self.optimizer, self.dual
        weights, scale = (None, 1.0) if dual is None else (dual.table, dual.scale)
        sums = self.engine.sums(sample, optimizer.parameters, weights, scale * self.clip)
        gradient = self.gradient_mechanism.release(_divided(sums.gradient, scale), streams.gradient)
        schedule = optimizer.relative_rate
        norm = optimizer.step(gradient, self.expected_units)
        if dual is None:
            return StepRecord(optimizer.done, norm)
        histogram = self.histogram_mechanism.release(sums.histogram, streams.histogram)
        dual.update(histogram, schedule)
        return StepRecord(optimizer.done, norm, histogram, dual.estimate, dual.multipliers)

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later: released and derived values only, no random state."""
        return {**self.optimizer.state(), "dual": None if self.dual is None else self.dual.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned, with random streams that have not been used before."""
        if (state["dual"] is None) != (self.dual is None):
            raise InvalidInput("state and training differ in having constraints; resume with the same ones")
        self.optimizer.restore(state)
        if self.dual is not None:
            self.dual.restore(state["dual"])


class History:
    """Released values by step, thinned so that memory stays bounded; `shape` is that of a histogram."""

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
