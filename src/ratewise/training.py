"""The training loop, the same for every engine and with or without privacy and constraints.

::

    for rows in plan.sampler.batches(steps, streams.sampling):       # private: which rows take part
        before_release()                                             # the ledger books the step first
        gradient, tally = engine.sums(rows, theta, table)            # private: one pass over the batch
        gradient = plan.gradient_mechanism.release(gradient, ...)    # may be seen from here on
        descent.step(gradient)                                       # post-processing
        histogram = plan.histogram_mechanism.release(tally, ...)     # may be seen from here on
        multipliers.update(histogram)                                # post-processing
        yield StepRecord(...)                                        # released values, nothing else

The weights of a step come from *earlier* releases, so one pass over the batch serves both releases. An empty
batch releases its noise and counts like any other. If the multipliers move only every m-th step, the
histograms of m steps wait for their noise until then: each gets its own, and is booked in its own step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dnrm2

from ratewise import _validate
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import Rows

Floats = npt.NDArray[np.float64]

# Parameters of norm 1e30 are no model, and still far from the largest number of single precision.
_LARGEST = 1e30


class Engine(Protocol):
    """The part of a step that reads rows."""

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector."""
        ...

    @property
    def penalised(self) -> npt.NDArray[np.bool_]:
        """Which parameters penalties act on: weights, but no intercepts."""
        ...

    @property
    def histogram_shape(self) -> tuple[int, int] | None:
        """Cells and classes of the histogram, None if the engine counts nothing."""
        ...

    def sums(self, rows: Rows, theta: Floats, table: Floats | None, loss_weight: float) -> tuple[Floats, Any]:
        """Return the sum of clipped row gradients and a tally of predictions (or None), both **private**."""
        ...

    def histograms(self, tallies: list[Any]) -> npt.NDArray[Any]:
        """Return the (m, Q, K) histograms of m steps from their tallies, **private**."""
        ...


class StepRecord(NamedTuple):
    """What a step let out. Every field is a released value or computed from released values.

    Attributes
    ----------
    step : int
        Number of the step, from 1.
    gradient_norm : float
        Norm of the released mean gradient, noise included.
    histograms : (m, Q, K) array or None
        Noisy histograms of the last m steps, this one included, if they were released now.
    values, multipliers : (J,) arrays or None
        Left-hand sides of the constraints as last read off released histograms, and the multipliers.
    """

    step: int
    gradient_norm: float
    histograms: Floats | None = None
    values: Floats | None = None
    multipliers: Floats | None = None


class Descent:
    """Gradient descent with momentum and an average of the iterates.

    Parameters
    ----------
    plan : Plan
    penalised : array of bool
        Parameters that ``plan.l1`` and ``plan.l2`` act on. The penalties read no rows and come after the
        release: l2 as a part of the gradient, l1 as a move towards zero that does not pass it.
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
        self._penalised = penalised
        self._shrinkage = _shrinkage(plan) if plan.l1 > 0 else None
        # below this, and while the parameters are below theirs, no product here can overflow
        self._extreme = max(plan.l2, float(np.max(self._rates, initial=0.0))) > 1e100

    def step(self, gradient: Floats, number: int) -> None:
        """Move by one released mean gradient (its array is used up); refuse to go on from nowhere."""
        if self._extreme:
            with np.errstate(over="ignore", invalid="ignore"):
                self._move(gradient, number)
        else:
            self._move(gradient, number)
        if not dnrm2(self.theta) < _LARGEST:
            raise InvalidInput(
                "training diverged: the parameters have grown beyond measure; lower learning_rate or l2"
            )

    def _move(self, gradient: Floats, number: int) -> None:
        theta, velocity = self.theta, self.velocity
        if self._penalty is not None:
            gradient += self._penalty * theta
        velocity *= self._momentum
        velocity += gradient
        np.multiply(velocity, self._rates[number], out=self._scratch)
        theta -= self._scratch
        if self._shrinkage is not None:
            self._shrink(self._shrinkage[number])
        weight = self._weights[number]
        if weight > 0:
            np.subtract(theta, self.average, out=self._scratch)
            self._scratch *= weight
            self.average += self._scratch
            self.averaged = True

    def _shrink(self, length: float) -> None:
        """Move the penalised parameters towards zero by a length, and no further."""
        shorter = np.abs(self.theta, out=self._scratch)
        shorter -= length
        np.maximum(shorter, 0.0, out=shorter)
        np.copysign(shorter, self.theta, out=shorter)
        np.copyto(self.theta, shorter, where=self._penalised)


def _shrinkage(plan: Plan) -> Floats:
    """Return how far each step moves towards zero: as far as a gradient of l1 would in the end."""
    with np.errstate(over="ignore"):
        return np.asarray(plan.learning_rates() * (plan.l1 / (1.0 - plan.momentum)))


class _Window:
    """Tallies of the steps since the multipliers last moved, **private** until they are released together.

    It lives inside a run and is never stored: if the run stops, what it holds is lost, though booked.
    """

    def __init__(self, plan: Plan, engine: Engine, dual: Multipliers, rng: np.random.Generator) -> None:
        self._histograms = engine.histograms
        self._release = plan.histogram_mechanism.release
        self._dual = dual
        self._rng = rng
        self._interval = plan.dual.interval
        self._kept: list[Any] = []

    def add(self, tally: Any, last: bool) -> Floats | None:
        """Keep a step's tally; when the window is full, release all of it and move the multipliers."""
        kept = self._kept
        kept.append(tally)
        if len(kept) < self._interval and not last:
            return None
        released = self._release(self._histograms(kept), self._rng)
        kept.clear()
        self._dual.update(released)
        return released


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
        window = None if dual is None else _Window(plan, engine, dual, streams.histogram)
        scale = 1.0 / plan.expected_rows
        for rows in plan.sampler.batches(plan.steps - self.steps_done, streams.sampling):
            if before_release is not None:
                before_release()
            table, weight = (None, 1.0) if dual is None else (dual.table, dual.loss_weight)
            private_sum, tally = engine.sums(rows, descent.theta, table, weight)
            gradient = release_gradient(private_sum, streams.gradient)
            gradient *= scale
            norm = _finite_norm(gradient)
            descent.step(gradient, self.steps_done)
            self.steps_done += 1
            if dual is None or window is None:
                yield StepRecord(self.steps_done, norm)
                continue
            histograms = window.add(tally, self.steps_done == plan.steps)
            yield StepRecord(self.steps_done, norm, histograms, dual.values, dual.multipliers)

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
        self._first: int | None = None
        self._end = 0
        self._n_constraints = n_constraints
        self._gradient_norm = np.full(kept, np.nan)
        self._histogram = None if shape is None else np.full((kept, *shape), np.nan)
        self._dual: list[tuple[int, Floats, Floats]] = []

    @classmethod
    def of(cls, training: Training) -> History:
        """Return an empty history that fits a training."""
        dual = training.multipliers
        if dual is None:
            return cls(training.plan.steps)
        return cls(training.plan.steps, dual.shape, len(dual))

    def add(self, record: StepRecord) -> None:
        """Store a record; steps that fall between kept ones are passed over."""
        place, between = divmod(record.step - 1, self.every)
        if self._first is None:
            self._first = place + (between > 0)
        if not between:
            self._gradient_norm[place] = record.gradient_norm
            self._end = place + 1
        if record.histograms is not None:
            self._add_window(record, record.histograms)

    def _add_window(self, record: StepRecord, histograms: Floats) -> None:
        first = record.step - len(histograms)  # counted from 0
        place = -(-first // self.every)
        kept = histograms[place * self.every - first :: self.every]
        if self._histogram is not None:
            self._histogram[place : place + len(kept)] = kept
        if record.values is not None and record.multipliers is not None:
            known_from = -(-(record.step - 1) // self.every)
            self._dual.append((known_from, record.values, record.multipliers))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the stored values by name: one row per kept step.

        `step`, `gradient_norm`; with constraints also `histogram` (NaN if the run
        stopped before its release), `values` and `multipliers` as they were known after the step.
        """
        first, end = self._first or 0, self._end
        stored: dict[str, npt.NDArray[Any]] = {
            "step": np.arange(first, end) * self.every + 1,
            "gradient_norm": self._gradient_norm[first:end].copy(),
        }
        if self._histogram is not None:
            values = np.full((end, self._n_constraints), np.nan)
            multipliers = np.zeros((end, self._n_constraints))
            for place, value, multiplier in self._dual:
                values[place:] = value
                multipliers[place:] = multiplier
            stored["histogram"] = self._histogram[first:end].copy()
            stored["values"], stored["multipliers"] = values[first:], multipliers[first:]
        return stored


def _finite_norm(gradient: Floats) -> float:
    norm = float(dnrm2(gradient))  # unlike a dot product it neither overflows nor warns
    if not math.isfinite(norm):
        raise InvalidInput(
            "training diverged: the released gradient is not finite; lower learning_rate or l2"
        )
    return norm


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
