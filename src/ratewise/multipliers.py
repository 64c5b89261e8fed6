"""The dual side: one multiplier per constraint, driven by released histograms only.

::

    table = multipliers.table            # Q x K, what each predicted class costs a row of each cell
    multipliers.update(released)         # one or several histograms: ascent on their rates, then projection

Everything here is post-processing of released values, so it is free: running means of group sizes, smoothing
of rates, momentum, projection. No method ever sees a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratewise.counts import beside_totals
from ratewise.evidence import Evidence
from ratewise.exceptions import InvalidInput
from ratewise.plan import DualControl, Plan
from ratewise.settling import Settling

Floats = npt.NDArray[np.float64]

_LATE = 0.75  # of the steps are behind when rates count as those of the end


class Constraints(Protocol):
    """What the dual side needs to know of constraints: `ratewise.partition.CompiledConstraints` knows it."""

    @property
    def n_cells(self) -> int:
        """Number of cells Q."""
        ...

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        ...

    @property
    def bounds(self) -> Floats:
        """Upper bounds of the J constraints."""
        ...

    def __len__(self) -> int: ...

    @property
    def leverage(self) -> Floats:
        """Sum of the magnitudes of each constraint's coefficients."""
        ...

    @property
    def lowest(self) -> Floats:
        """What the left-hand sides cannot fall below."""
        ...

    @property
    def ratios(self) -> npt.NDArray[np.bool_]:
        """Which constraints have a ratio, whose denominator moves with the model."""
        ...

    def value_noise(
        self,
        histogram: Floats,
        cell_totals: Floats | None,
        noise: float,
        *,
        floor: float = 1.0,
        chance: float = 0.0,
    ) -> Floats:
        """Return the standard deviation of each left-hand side, from noise on the counts and from chance."""
        ...

    def values(
        self, histogram: Floats, cell_totals: Floats | None = None, *, floor: float = 1.0, clamp: bool = True
    ) -> Floats:
        """Return the J left-hand sides."""
        ...

    def weights(
        self,
        multipliers: Floats,
        histogram: Floats,
        cell_totals: Floats | None = None,
        *,
        floor: float = 1.0,
        clamp: bool = True,
        ratio_floor: float = 0.0,
    ) -> Floats:
        """Return the Q x K derivative of the multipliers' term by the histogram."""
        ...


def project(values: Floats, cap: float | None = None, radius: float | None = None) -> Floats:
    """Return the nearest point (in L2) of ``0 <= x <= cap, sum(x) <= radius``.

    Exact up to rounding, in time J log J: the solution is ``clip(values - shift, 0, cap)`` with the smallest
    shift >= 0 that meets the radius, and the sum is piecewise linear in the shift.

    >>> project(np.array([3.0, 1.0, -2.0]), radius=3.0).tolist()
    [2.5, 0.5, 0.0]
    """
    upper = np.inf if cap is None else cap
    inside: Floats = np.clip(values, 0.0, upper)
    if radius is None or inside.sum() <= radius:
        return inside
    return np.clip(values - _shift(values, upper, radius), 0.0, upper)


def _shift(values: Floats, upper: float, radius: float) -> float:
    """Solve ``sum(clip(values - shift, 0, upper)) == radius`` for the shift."""
    values = values[values > 0]
    # slope of the sum: entry i starts to fall at values[i] - upper and has reached zero at values[i]
    breaks = np.concatenate([values, values - upper]) if np.isfinite(upper) else values
    change = np.ones(len(breaks))
    change[len(values) :] = -1.0
    order = np.argsort(-breaks, kind="stable")
    breaks, slope = breaks[order], np.cumsum(change[order])
    # walk from the largest shift (sum 0) downwards; sums[i] is the sum at shift breaks[i]
    sums = np.concatenate([[0.0], np.cumsum(slope[:-1] * -np.diff(breaks))])
    last = int(np.searchsorted(sums, radius, side="right")) - 1
    return float(breaks[last] - (radius - sums[last]) / slope[last])


def affordable_interval(constraints: Constraints, batch_rows: float, n_features: int, steps: int) -> int:
    """Return how many steps to put between updates so that they add a few percent to the time of a step.

    A rule of public numbers (measured, in microseconds): an update costs some small array operations and some
    time per constraint and cell; a step costs in proportion to the entries of its batch. Updates may take a
    fiftieth of the time, or a tenth where that would put them more than 50 steps apart; at least 2,000 of
    them are made whatever they cost, since multipliers that stand still for long swing. With large batches
    and few constraints the answer is 1.

    Parameters
    ----------
    constraints : CompiledConstraints
    batch_rows : float
        Expected rows of a batch.
    n_features : int
    steps : int
    """
    update = 50.0 + 0.012 * len(constraints) + 0.03 * constraints.n_cells * constraints.n_classes
    step = 25.0 + batch_rows * (0.02 + 0.0003 * n_features)
    interval = min(math.ceil(50.0 * update / step), max(50, math.ceil(10.0 * update / step)))
    return max(1, min(interval, steps // 2000))


class Multipliers:
    """State of the dual side: multipliers, running group sizes, smoothed rates.

    Group sizes do not move while training, so denominators are the running mean over all released histograms,
    floored at the level of their noise. Numerators come from the newest histogram, or from an average over
    time (`DualControl.memory`).

    Parameters
    ----------
    constraints : CompiledConstraints
    plan : Plan
        Its `dual` says how the multipliers move; its noise sets the floor under denominators.
    margins : array of J numbers, optional
        Taken off the bounds, besides ``plan.dual.margin``.

    Attributes
    ----------
    shape : (int, int)
        Cells and classes of the histograms.
    table : (Q, K) array or None
        What predicting class k costs a row of cell q. None while all multipliers are zero.
    loss_weight : float
        Weight of a row's loss beside those costs: 1, or less if the objective is normalised.
    values : (J,) array or None
        Left-hand sides as last read off released histograms.
    """

    def __init__(self, constraints: Constraints, plan: Plan, margins: npt.ArrayLike | None = None) -> None:
        self.constraints = constraints
        self.control: DualControl = plan.dual
        self.step = 0
        self.multipliers: Floats = np.zeros(len(constraints))
        self.table: Floats | None = None
        self.loss_weight = 1.0
        self._evidence = Evidence(constraints, plan)
        self._settling = Settling(constraints, plan)
        self.values: Floats | None = None
        self._expected_rows = plan.expected_rows
        self._noise = plan.histogram_mechanism.standard_deviation
        self._sampling_rate = plan.sampling_rate
        self._rates = plan.dual_rates()
        self._targets = constraints.bounds - self.control.margin
        if margins is not None:
            self._targets = self._targets - _finite_vector(margins, len(constraints))
        shape = (constraints.n_cells, constraints.n_classes)
        self.shape = shape
        self._ones = np.ones(constraints.n_classes)
        self._sum: Floats = np.zeros(shape)
        self._seen = 0
        self._late_from = _LATE * plan.steps
        self._late: Floats = np.zeros(shape)
        self._late_seen = 0
        self._smoothed: Floats = np.zeros(shape)
        self._smoothed_weight = 0.0
        self._velocity: Floats = np.zeros(len(constraints))
        self._error_mean: Floats | None = None
        self._multiplier_sum: Floats = np.zeros(len(constraints))
        self._updates = 0

    def __len__(self) -> int:
        return len(self.multipliers)

    @property
    def average(self) -> Floats:
        """Mean of the multipliers over all updates."""
        return self._multiplier_sum / max(1, self._updates)

    @property
    def mean_histogram(self) -> Floats:
        """Running mean of the released histograms."""
        return self._sum / max(1, self._seen)

    @property
    def late_values(self) -> Floats:
        """Left-hand sides by the mean histogram of the last quarter of the steps; of all before that."""
        mean = self._late / self._late_seen if self._late_seen else self.mean_histogram
        totals = self.cell_totals
        counts = self._beside_totals(mean, totals) if self.control.known_totals else mean
        return self.constraints.values(counts, totals, floor=self.floor, clamp=self.control.clamp)

    @property
    def faint(self) -> npt.NDArray[np.bool_]:
        """Limits that noise hides: their multipliers stay zero, and running means push (`Evidence`)."""
        return self._evidence.followed

    @property
    def swing(self) -> Floats:
        """How far left-hand sides spread over the second half of the steps, beyond noise (`Settling`)."""
        return self._settling.swing(self.mean_histogram, self.cell_totals, self.floor)

    @property
    def cell_totals(self) -> Floats:
        """Running mean of the released number of rows of each cell in a batch."""
        totals: Floats = self._sum.dot(self._ones)
        totals /= max(1, self._seen)
        return totals

    @property
    def floor(self) -> float:
        """Smallest denominator, in rows of a batch: one row, or the noise of a cell's mean size."""
        noise = self._noise * math.sqrt(self.shape[1] / max(1, self._seen))
        return max(1.0, self.control.floor_deviations * noise)

    def update(self, released: Floats) -> None:
        """Take in one released histogram (Q, K), or those of several steps (m, Q, K), and move once.

        Several steps count by their mean, and move the multipliers as far as that many single updates would.
        """
        control, steps = self.control, 1 if released.ndim == 2 else len(released)
        self.step += steps
        histogram = self._take_in(released, steps)
        totals, floor = self.cell_totals, self.floor
        if control.known_totals:
            histogram = self._beside_totals(histogram, totals)
        self.values = self.constraints.values(histogram, totals, floor=floor, clamp=control.clamp)
        self._settling.add(self.values, self.step)
        error = self.values - self._targets
        if control.noise_tolerance is not None:
            error = self._weighed(error, histogram, totals, floor, steps)
        moved = self._direction(error, steps) * self._rates[min(self.step, len(self._rates)) - 1]
        moved += self.multipliers
        moved[self.faint] = 0.0
        self.multipliers = self._project(moved)
        self._multiplier_sum += self.multipliers
        self._updates += 1
        effective = self.multipliers
        if control.penalty > 0:
            effective = self._project(effective + control.penalty * error)
        self.loss_weight = 1.0
        if not effective.any():
            self.table = None
            return
        table = self.constraints.weights(
            effective,
            histogram,
            totals,
            floor=floor,
            clamp=control.clamp,
            ratio_floor=control.ratio_floor * self._expected_rows,
        )
        if control.normalise:
            self.loss_weight = 1.0 / (1.0 + float(self.constraints.leverage @ effective))
        self.table = table * (self._expected_rows * self.loss_weight)

    def _weighed(self, error: Floats, histogram: Floats, totals: Floats, floor: float, steps: int) -> Floats:
        """Return what each error counts for. Group sizes settle: their noise is rarely looked at."""
        evidence = self._evidence
        if self._updates & (self._updates - 1) == 0:
            evidence.look(histogram, self.mean_histogram, totals, floor, self._updates, steps)
        read = None
        if evidence.gathers:
            read = self.constraints.values(histogram, totals, floor=floor, clamp=False) - self._targets
            read = np.where(self.constraints.ratios, error, read)
        return evidence.weigh(error, read, self._updates, steps)

    def _beside_totals(self, histogram: Floats, totals: Floats) -> Floats:
        """Return counts without the noise that shows in what they add up to."""
        return beside_totals(histogram, totals, self._noise, self._sampling_rate)

    def _take_in(self, released: Floats, steps: int) -> Floats:
        """Book the histograms and return their mean, smoothed over time."""
        total = released if released.ndim == 2 else np.add.reduce(released)
        self._sum += total
        self._seen += steps
        if self.step > self._late_from:
            self._late += total
            self._late_seen += steps
        mean = total if steps == 1 else total / steps
        if self.control.memory == 0:
            return mean
        memory = self.control.memory**steps
        self._smoothed = memory * self._smoothed + (1.0 - memory) * mean
        self._smoothed_weight = memory * self._smoothed_weight + (1.0 - memory)
        return self._smoothed / self._smoothed_weight

    def _direction(self, error: Floats, steps: int) -> Floats:
        """Return the sum of the errors of `steps` steps, with proportional and momentum terms."""
        control = self.control
        direction = error if steps == 1 else error * steps
        if control.proportional > 0:
            direction = direction + control.proportional * self._change(error, control.smoothing**steps)
        if control.momentum > 0:
            momentum = control.momentum**steps
            # the long-run gain of single updates, 1 / (1 - momentum), is kept
            gain = (1.0 - momentum) / (1.0 - control.momentum)
            self._velocity = momentum * self._velocity + gain * direction
            direction = self._velocity
        return direction

    def _change(self, error: Floats, memory: float) -> Floats:
        """Return how much the running mean of the errors has moved; the first error only starts it."""
        if self._error_mean is None:
            self._error_mean = np.zeros_like(error)
            return self._error_mean
        before = self._error_mean
        self._error_mean = memory * before + (1.0 - memory) * error
        return self._error_mean - before

    def _project(self, values: Floats) -> Floats:
        if self.control.cap is None and self.control.radius is None:
            return np.maximum(values, 0.0, out=values)
        return project(values, self.control.cap, self.control.radius)

    def state(self) -> dict[str, Any]:
        """Return copies of all released and derived values, enough to go on from here."""
        return {name: _copy(getattr(owner, key)) for name, owner, key in self._parts()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name, owner, key in self._parts():
            value = _copy(state[name])
            if isinstance(value, np.ndarray) and value.shape not in (self.shape, (len(self),)):
                raise InvalidInput(
                    f"state of {name} has shape {value.shape}; it belongs to other constraints"
                )
            setattr(owner, key, value)

    def _parts(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the name of every value to keep, what holds it and how it is called there."""
        yield from ((name, self, name) for name in _STATE)
        yield from ((f"evidence_{name}", self._evidence, name) for name in Evidence.STATE)
        yield from ((f"settling_{name}", self._settling, name) for name in Settling.STATE)


_STATE = (
    "step",
    "multipliers",
    "table",
    "loss_weight",
    "values",
    "_sum",
    "_seen",
    "_late",
    "_late_seen",
    "_smoothed",
    "_smoothed_weight",
    "_velocity",
    "_error_mean",
    "_multiplier_sum",
    "_updates",
)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _finite_vector(values: npt.ArrayLike, length: int) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (length,) or not np.all(np.isfinite(vector)):
        raise InvalidInput(f"margins must be {length} finite numbers, one per constraint")
    return vector
