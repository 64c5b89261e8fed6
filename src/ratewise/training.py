"""The training loop, the same for every engine and with or without privacy and constraints.

::

    for rows in plan.sampler.batches(steps, streams.sampling):       # private: which rows take part
        before_release()                                             # the ledger books the step first
        gradient, counts = engine.sums(rows, theta, table)           # private: one pass over the batch
        histogram = plan.histogram_mechanism.release(counts, ...)    # may be seen from here on
        gradient = plan.gradient_mechanism.release(gradient, ...)
        multipliers.update(histogram)                                # post-processing
        descent.step(gradient)                                       # post-processing
        yield StepRecord(...)                                        # released values, nothing else

The weights of a step come from *earlier* releases, so one pass over the batch serves both releases. An empty
batch releases its noise and counts like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import Rows

Floats = npt.NDArray[np.float64]


class Engine(Protocol):
    """The part of a step that reads rows."""

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        ...

    @property
    def penalised(self) -> npt.NDArray[np.bool_]:
        """Which parameters an L2 penalty acts on."""
        ...

    @property
    def histogram_shape(self) -> tuple[int, int] | None:
        """Cells and classes of the histogram, None if the engine counts nothing."""
        ...

    def sums(self, rows: Rows, theta: Floats, table: Floats | None) -> tuple[Floats, Floats | None]:
        """Return the sum of clipped row gradients and the histogram of predictions, both **private**."""
        ...


class StepRecord(NamedTuple):
    """What a step let out. Every field is a released value or computed from released values."""

    step: int
    histogram: Floats | None
    values: Floats | None
    multipliers: Floats | None
    gradient_norm: float


class Descent:
    """Gradient descent with momentum and an average of the iterates.

    Parameters
    ----------
    plan : Plan
    penalised : array of bool
        Parameters that ``plan.l2`` acts on. The penalty reads no rows and is added after the release.
    """

    def __init__(self, plan: Plan, penalised: npt.NDArray[np.bool_]) -> None:
        self.theta: Floats = np.zeros(len(penalised))
        self.velocity: Floats = np.zeros(len(penalised))
        self.average: Floats = np.zeros(len(penalised))
        self.averaged = False
        self._scratch: Floats = np.zeros(len(penalised))
        self._rates = plan.learning_rates()
        self._weights = plan.averaging_weights()
        self._momentum = plan.momentum
        self._penalty = plan.l2 * penalised if plan.l2 > 0 else None

    def step(self, gradient: Floats, number: int) -> None:
        """Move by one released mean gradient (its array is used up)."""
        theta, velocity = self.theta, self.velocity
        if self._penalty is not None:
            gradient += self._penalty * theta
        velocity *= self._momentum
        velocity += gradient
        np.multiply(velocity, self._rates[number], out=self._scratch)
        theta -= self._scratch
        weight = self._weights[number]
        if weight > 0:
            np.subtract(theta, self.average, out=self._scratch)
            self._scratch *= weight
            self.average += self._scratch
            self.averaged = True


class Training:
    """A training that can be run, watched step by step, stopped, and taken up again.

    Parameters
    ----------
    plan : Plan
    engine : Engine
    multipliers : Multipliers, optional
        Needed exactly if the engine counts a histogram.
    """

    def __init__(self, plan: Plan, engine: Engine, multipliers: Multipliers | None = None) -> None:
        _check_together(plan, engine, multipliers)
        self.plan = plan
        self.engine = engine
        self.multipliers = multipliers
        self.descent = Descent(plan, engine.penalised)
        self.steps_done = 0

    @property
    def theta(self) -> Floats:
        """The model: the averaged iterate, or the last one while averaging has not begun."""
        return self.descent.average if self.descent.averaged else self.descent.theta

    def run(
        self, streams: RandomStreams, before_release: Callable[[], object] | None = None
    ) -> Iterator[StepRecord]:
        """Run the steps that remain and yield what each of them released.

        `before_release` is called once per step before the step reads its rows, so that a ledger can refuse.
        """
        plan, engine, descent, dual = self.plan, self.engine, self.descent, self.multipliers
        release_gradient = plan.gradient_mechanism.release
        release_histogram = None if dual is None else plan.histogram_mechanism.release
        scale = 1.0 / plan.expected_rows
        for rows in plan.sampler.batches(plan.steps - self.steps_done, streams.sampling):
            if before_release is not None:
                before_release()
            private_sum, counts = engine.sums(rows, descent.theta, None if dual is None else dual.table)
            gradient = release_gradient(private_sum, streams.gradient)
            histogram = values = multipliers = None
            if dual is not None and release_histogram is not None and counts is not None:
                histogram = release_histogram(counts, streams.histogram)
                dual.update(histogram)
                values, multipliers = dual.values, dual.multipliers
            gradient *= scale
            norm = _finite_norm(gradient)
            descent.step(gradient, self.steps_done)
            self.steps_done += 1
            yield StepRecord(self.steps_done, histogram, values, multipliers, norm)

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later: released and derived values only, no random state."""
        descent = self.descent
        return {
            "steps_done": self.steps_done,
            "theta": descent.theta.copy(),
            "velocity": descent.velocity.copy(),
            "average": descent.average.copy(),
            "averaged": descent.averaged,
            "multipliers": None if self.multipliers is None else self.multipliers.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; `run` then needs streams that have not been used before."""
        theta = np.array(state["theta"], dtype=np.float64)
        if theta.shape != self.descent.theta.shape:
            raise InvalidInput(
                f"state has {theta.size} parameters, the model {self.descent.theta.size}; "
                "resume with the same features and classes"
            )
        if (state["multipliers"] is None) != (self.multipliers is None):
            raise InvalidInput("state and training differ in having constraints; resume with the same ones")
        self.steps_done = _validate.count(at_least=0, steps_done=state["steps_done"])
        self.descent.theta = theta
        self.descent.velocity = np.array(state["velocity"], dtype=np.float64)
        self.descent.average = np.array(state["average"], dtype=np.float64)
        self.descent.averaged = bool(state["averaged"])
        if self.multipliers is not None:
            self.multipliers.restore(state["multipliers"])


class History:
    """Released values of a run, thinned so that memory stays bounded whatever the run's length.

    Parameters
    ----------
    steps : int
        Steps of the run.
    shape : (int, int) or None
        Cells and classes of the histogram.
    n_constraints : int
    budget : int
        Largest number of stored values; a long run with many cells keeps every m-th step.
    """

    def __init__(
        self,
        steps: int,
        shape: tuple[int, int] | None = None,
        n_constraints: int = 0,
        budget: int = 4_000_000,
    ) -> None:
        width = 2 + 2 * n_constraints + (0 if shape is None else shape[0] * shape[1])
        self.every = max(1, math.ceil(steps * width / budget))
        kept = math.ceil(steps / self.every)
        self._next = 1
        self._count = 0
        self._step = np.zeros(kept, dtype=np.int64)
        self._gradient_norm = np.zeros(kept)
        self._histogram = None if shape is None else np.zeros((kept, *shape))
        self._n_constraints = n_constraints
        self._dual: list[tuple[int, Floats | None, Floats | None]] = [(0, None, None)]

    @classmethod
    def of(cls, training: Training) -> History:
        """Return an empty history that fits a training."""
        dual = training.multipliers
        if dual is None:
            return cls(training.plan.steps)
        return cls(training.plan.steps, dual.shape, len(dual))

    def add(self, record: StepRecord) -> None:
        """Store a record, or pass over it if it falls between kept steps."""
        if record.step < self._next:
            return
        at = self._count
        self._step[at] = record.step
        self._gradient_norm[at] = record.gradient_norm
        if self._histogram is not None and record.histogram is not None:
            self._histogram[at] = record.histogram
            if record.values is not self._dual[-1][1]:  # the dual side has moved
                self._dual.append((at, record.values, record.multipliers))
        self._count = at + 1
        self._next = record.step + self.every

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the stored values by name: one row per kept step."""
        end = self._count
        stored: dict[str, npt.NDArray[Any]] = {
            "step": self._step[:end].copy(),
            "gradient_norm": self._gradient_norm[:end].copy(),
        }
        if self._histogram is not None:
            stored["histogram"] = self._histogram[:end].copy()
            stored["values"] = np.full((end, self._n_constraints), np.nan)
            stored["multipliers"] = np.zeros((end, self._n_constraints))
            for at, values, multipliers in self._dual[1:]:
                stored["values"][at:] = values
                stored["multipliers"][at:] = multipliers
        return stored


def _finite_norm(gradient: Floats) -> float:
    square = float(gradient @ gradient)
    if not math.isfinite(square):
        raise InvalidInput(
            "training diverged: the released gradient is not finite; lower learning_rate or l2"
        )
    return math.sqrt(square)


def _check_together(plan: Plan, engine: Engine, multipliers: Multipliers | None) -> None:
    counted = engine.histogram_shape
    wanted = None if multipliers is None else multipliers.shape
    if counted != wanted:
        raise UnsupportedCombination(
            f"the engine counts a histogram of shape {counted}, the multipliers need {wanted}; "
            "build both from the same constraints"
        )
    if plan.private and (plan.histogram_noise is None) != (wanted is None):
        raise UnsupportedCombination(
            f"histogram_noise is {plan.histogram_noise}, but the histogram to release has shape {wanted}; "
            "a private plan has histogram_noise exactly if there are constraints"
        )
