"""The dual update: one multiplier per constraint, driven by released histograms only.

A Kalman filter per constraint turns the noisy values of successive steps into an estimate and its variance:

    v_t = Gamma(H_t) + noise of known variance s_t**2        (delta method)
    x_t = x_(t-1) + drift of standard deviation rho * eta_t  (eta_t: learning rate schedule, 1 to 0)

The multipliers follow the filtered violation e_t = w_t (x_t - gamma) with integral and proportional gain:

    I_t = max(0, I_(t-1) + rate * e_t),    lambda_t = max(0, I_t + damping * e_t)

The weight w_t = r**2 / (r**2 + variance of x_t) leaves violations that are below the noise level to themselves, and a
subset whose size is not known is taken to be predicted like all rows. The weights table W that the multipliers
collapse to is used together with a loss of weight 1; both are divided by a power of two (`DualUpdate.scale`). In
trainings of many small samples, the mean histogram of several steps makes one update.

Everything here is post-processing of released values.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.exceptions import InvalidInput
from ratewise.training.certificate import certificate_half_width
from ratewise.training.config import STEPS, TrainingConfig
from ratewise.training.plan import Plan

Floats = npt.NDArray[np.float64]

_DRIFT = 0.02  # change of a rate per step at the full learning rate
_SCALE = 2.0  # of the objective, per mean span of the weights of a row
_RELIABLE = 0.05  # standard error of a constraint's value above which a violation is given less weight
_KNOWN = 3.0  # standard deviations of a cell's size below which the cell is taken to be no different from all rows
_LARGEST = 1e100  # weight of a row; squares and sums of such weights are finite
_STATE = ("step", "integral", "multipliers", "estimate", "variance", "_totals", "_predicted", "_waiting")


@dataclass(eq=False, repr=False)
class DualUpdate:
    """Multipliers, cell sizes and constraint estimates of a training run."""

    constraints: CompiledConstraints
    _: KW_ONLY
    total: float  # weight of the rows, public or released
    sampling_rate: float
    noise: float  # standard deviation of one count
    rate: float  # integral gain
    damping: float  # proportional gain
    margin: Any = 0.0  # training aims below the bounds by this much
    interval: int = 1  # the mean histogram of so many steps counts as that of one step

    def __post_init__(self) -> None:
        count, n_cells, n_classes = len(self.constraints), self.constraints.n_cells, self.constraints.n_classes
        self._totals, self._predicted = np.zeros(n_cells), np.zeros(n_classes)
        self._waiting: Floats = np.zeros((n_cells, n_classes))
        self.step, self.scale = 0, 1.0
        self.integral: Floats = np.zeros(count)
        self.multipliers: Floats = np.zeros(count)
        self.estimate: Floats = np.zeros(count)
        self.variance: Floats = np.full(count, np.inf)
        self.table: Floats = np.zeros((n_cells, n_classes))

    @property
    def cell_totals(self) -> Floats:
        """Mean of the released cell sizes of the steps up to the last update, per step."""
        return self._totals / self._steps

    @property
    def _steps(self) -> int:
        """Steps up to the last update, at least 1."""
        return max(self.step - self.step % self.interval, 1)

    @property
    def cell_totals_std(self) -> float:
        """Standard deviation of the noise of `cell_totals`."""
        return self.noise * float(np.sqrt(self.constraints.n_classes / self._steps))

    @property
    def largest_class(self) -> int:
        """The class that the samples of all steps were predicted most often."""
        return int(self._predicted.argmax())

    def cell_sizes(self) -> tuple[Floats, Floats]:
        """Return the total weight of each cell, from the sizes of all samples, and its standard deviation."""
        rate = self.sampling_rate
        sizes = self.cell_totals / rate
        sampling = np.maximum(sizes, 0.0) * (1.0 - rate) / (rate * self._steps)
        return sizes, np.sqrt(np.square(self.cell_totals_std / rate) + sampling)

    def update(self, histogram: Floats, schedule: float) -> None:
        """Take in one released histogram; `schedule` is the learning rate relative to the first step."""
        self._waiting += histogram
        self.step += 1
        if self.step % self.interval == 0:
            self._update(self._waiting / self.interval, schedule)
            self._waiting[...] = 0.0

    @np.errstate(all="ignore")
    def _update(self, histogram: Floats, schedule: float) -> None:
        """Move the multipliers by the mean histogram of `interval` steps."""
        constraints = self.constraints
        counted = histogram.sum(axis=1)
        self._totals += self.interval * counted
        self._predicted += self.interval * histogram.sum(axis=0)
        floor = max(1.0, _KNOWN * self.cell_totals_std)
        sizes = np.maximum(self.cell_totals, 0.0)
        # counts of a cell sum to its size, which the mean over steps knows better: project on that sum
        consistent = histogram + ((sizes - counted) / self.constraints.n_classes)[:, None]
        spread = self.noise * float(np.sqrt((1.0 - 1.0 / self.constraints.n_classes) / self.interval))
        values = constraints.values(consistent, sizes, floor=floor, clamp=False, shrink=True)
        observed = np.square(constraints.value_noise(consistent, sizes, max(spread, 1e-9), floor=floor))
        self._filter(values, np.maximum(observed, 1e-12), schedule)
        error = (self.estimate - (constraints.bounds - self.margin)) * _RELIABLE**2 / (_RELIABLE**2 + self.variance)
        self.integral = np.maximum(self.integral + self.rate * error, 0.0)
        self.multipliers = np.maximum(self.integral + self.damping * error, 0.0)
        weights = constraints.weights(self.multipliers, consistent, sizes, floor=floor, ratio_floor=floor)
        self.table = weights * (self.total * self.sampling_rate)
        if not np.abs(self.table).max(initial=0.0) <= _LARGEST:
            # finite whatever the gains are: an infinite scale would be an infinite clipping norm
            self.table = np.clip(np.nan_to_num(self.table, nan=0.0), -_LARGEST, _LARGEST)
        self.scale = self._loss_scale(sizes)

    def _loss_scale(self, sizes: Floats) -> float:
        """Return the power of two that a step's objective is divided by.

        Rows are clipped to one norm. Large multipliers would make all rows of the constrained cells reach it, and
        the gradient of the constraints could grow no more; divided by a scale that follows the mean weight of a row, the
        objective keeps the ratio of loss and constraints. The penalty on weights is not divided: where constraints
        dominate, the prior is stronger.
        """
        size = float(sizes @ np.ptp(self.table, axis=1)) / max(float(sizes.sum()), 1.0)
        return float(2.0 ** np.round(np.log2(1.0 + _SCALE * size)))

    def _filter(self, values: Floats, observed: Floats, schedule: float) -> None:
        if self.step == self.interval:
            self.estimate, self.variance = values, observed
            return
        variance = self.variance + (_DRIFT * schedule) ** 2
        gain = variance / (variance + observed)
        self.estimate = self.estimate + gain * (values - self.estimate)
        self.variance = (1.0 - gain) * variance

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on later; released and derived values only."""
        return {**{name: np.copy(getattr(self, name)) for name in _STATE}, "table": self.table.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name in (*_STATE, "table"):
            value = np.array(state[name], dtype=np.float64)
            if name != "step" and value.shape != np.shape(getattr(self, name)):
                raise InvalidInput(f"state of {name} has shape {value.shape}; it belongs to other constraints")
            setattr(self, name, int(value) if name == "step" else value)
        self.scale = self._loss_scale(np.maximum(self.cell_totals, 0.0))


def dual_update(
    compiled: CompiledConstraints | None, plan: Plan, config: TrainingConfig, noise: float
) -> DualUpdate | None:
    """Return the multipliers of a training run; `noise` is the standard deviation of one count."""
    if compiled is None:
        return None
    margin = config.margin
    interval = max(1, min(plan.steps // STEPS, int(1.0 / plan.sampling_rate)))  # it reads no row twice, on average
    if margin == "certified":
        margin = certificate_half_width(compiled, plan)
    return DualUpdate(
        compiled,
        total=float(plan.n_units),
        sampling_rate=plan.sampling_rate,
        noise=noise,
        rate=config.dual_rate * STEPS * interval / plan.steps,
        damping=config.dual_damping,
        margin=margin,
        interval=interval,
    )
