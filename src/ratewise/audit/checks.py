"""Checks of what a game cannot see: the law of sample and noise, what the dual side reads.

Each returns a `Check`. Statistical ones have p-values and alarm falsely in one of ten thousand cases; the
others are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ratewise import _validate
from ratewise.accounting import TrainingEvent
from ratewise.audit.games import WorstRows, make_dual, make_loop, run_loop
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import keyed_samples
from ratewise.models.additive import Sums

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 1e-4
_OUT_OF_REACH = 3.0  # off bounds of differences of rates, which are 1 at most


@dataclass(frozen=True)
class Check:
    """The outcome of a check."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {'passed' if self.passed else 'FAILED'} ({self.detail})"


def check_sampling(rate: float, *, n_rows: int = 12, steps: int = 6000, streams: RandomStreams | None = None) -> Check:
    """Check that batches are Poisson samples: rows at their rate, sizes binomial, empty ones included."""
    streams = RandomStreams.from_seed() if streams is None else streams
    steps, n_rows = _validate.count(steps=steps), _validate.count(n_rows=n_rows)
    rate = _validate.fraction(rate=rate)
    taken, number = np.zeros((steps, n_rows)), 0
    for number, sample in enumerate(keyed_samples(n_rows, rate, steps, streams.sampling), start=1):
        taken[number - 1, sample.units(0, n_rows)] = 1.0
    if number != steps:
        return Check("sampling", False, f"{number} batches instead of {steps}")
    spread = np.sqrt(steps * rate * (1 - rate)) if rate < 1 else 1.0
    each = 2 * stats.norm.sf(np.abs(taken.sum(axis=0) - steps * rate) / spread)
    sizes = np.bincount(taken.sum(axis=1).astype(np.intp), minlength=n_rows + 1)
    expected = steps * stats.binom.pmf(np.arange(n_rows + 1), n_rows, rate)
    p_value = min(1.0, float(min(each.min() * n_rows, _chi_square(sizes, expected)) * 2))
    return Check("sampling", p_value > FALSE_ALARM, f"p-value {p_value:.3g} over {steps} batches")


def check_noise(event: TrainingEvent, *, steps: int = 3000, streams: RandomStreams | None = None) -> Check:
    """Check that what a silent training releases is noise of the promised law, a fresh draw per entry."""
    streams = RandomStreams.from_seed() if streams is None else streams
    event = _validate.instance(TrainingEvent, event=event).with_steps(steps)
    rows = WorstRows(3, 0, counted=event.histogram_noise is not None)
    loop = make_loop(event, _Counting(rows, silent=True), rows.units, make_dual(rows, event), 1.0)
    released, before = [], np.zeros(_Counting.n_parameters)
    for record in run_loop(loop, event, rows.n_units, streams):
        after = loop.optimizer.parameters.copy()
        gradient = (before - after) * loop.expected_units / (event.gradient_noise or 1.0)
        table = np.zeros(0) if record.histogram is None else record.histogram.ravel()
        released.append(np.concatenate([gradient, table / (event.histogram_noise or 1.0)]))
        before = after
    noise = np.array(released)
    gradients, tables = np.split(noise, [_Counting.n_parameters], axis=1)
    p_values = [scale_p_value(gradients, "gaussian"), _dependence_p_value(noise)]
    if tables.size:
        p_values.append(scale_p_value(tables, event.histogram or "gaussian"))
    p_value = min(1.0, min(p_values) * len(p_values))
    return Check("noise", p_value > FALSE_ALARM, f"p-value {p_value:.3g} over {steps} steps")


def check_replay(event: TrainingEvent, *, steps: int = 40, streams: RandomStreams | None = None) -> Check:
    """Check that all that is made of histograms comes from released ones: a replay must give the same.

    Bounds are out of reach, so that multipliers move whatever the noise.
    """
    streams = RandomStreams.from_seed() if streams is None else streams
    event = _validate.instance(TrainingEvent, event=event).with_steps(steps)
    if event.histogram_noise is None:
        return Check("replay", True, "nothing is counted")
    rows = WorstRows(3, 3, counted=True)
    gains = {"rate": 0.5, "damping": 1.0, "margin": _OUT_OF_REACH}
    used, replayed = (make_dual(rows, event, **gains) for _ in range(2))
    assert used is not None and replayed is not None  # noqa: S101, PT018 - there are constraints
    loop = make_loop(event, _Counting(rows), rows.units, used, 1.0)
    for record in run_loop(loop, event, rows.n_units, streams):
        if record.histogram is None:
            continue
        replayed.update(record.histogram, 1.0)
        pairs: tuple[tuple[Any, Any], ...] = (
            (record.values, replayed.estimate),
            (record.multipliers, replayed.multipliers),
            (used.table, replayed.table),  # what rows meet in the next step
        )
        if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            return Check("replay", False, f"step {record.step} used something else than what was released")
    return Check("replay", True, f"{steps} steps")


class _Counting:
    """An engine whose gradients are zero and that counts its rows, unless it is silent."""

    n_parameters = 4
    count_step = 1.0

    def __init__(self, rows: WorstRows, *, silent: bool = False) -> None:
        self._rows, self._silent = rows, silent

    def slack(self, rows: float) -> float:  # noqa: ARG002 - one signature
        """Return that nothing is rounded."""
        return 0.0

    def sums(self, sample: Any, parameters: Any, weights: Any, clip: float) -> Sums:  # noqa: ARG002
        """Return no gradient, and the counts."""
        compiled, cells = self._rows.constraints, self._rows.cells
        if compiled is None or cells is None:
            return Sums(np.zeros(self.n_parameters), None)
        counts = np.zeros((compiled.n_cells, compiled.n_classes))
        if not self._silent:
            np.add.at(counts, (cells[sample], 0), 1.0)
        return Sums(np.zeros(self.n_parameters), counts)


def _chi_square(observed: npt.NDArray[Any], expected: Floats) -> float:
    rare = expected < 5
    seen = np.append(observed[~rare], observed[rare].sum())
    meant = np.append(expected[~rare], expected[rare].sum())
    if meant[-1] < 1e-9:
        if seen[-1] > 0:
            return 0.0
        seen, meant = seen[:-1], meant[:-1]
    if len(seen) < 2:
        return 1.0
    return float(stats.chi2.sf(np.sum((seen - meant) ** 2 / meant), len(seen) - 1))


def scale_p_value(noise: Floats, law: str) -> float:
    """Return the smallest p-value of the variance of each column and of the law of all entries."""
    reference = stats.norm if law == "gaussian" else stats.laplace
    variance, fourth = (1.0, 3.0) if law == "gaussian" else (2.0, 24.0)
    z = (np.mean(noise**2, axis=0) - variance) / np.sqrt((fourth - variance**2) / len(noise))
    shape = stats.kstest(noise.ravel(), reference.cdf).pvalue
    return float(min(2 * stats.norm.sf(np.abs(z)).min() * noise.shape[1], shape) * 2)


def _dependence_p_value(noise: Floats) -> float:
    """Return the smallest p-value of correlations between entries, and of entries with the next step's."""
    scores = noise - noise.mean(axis=0)
    spread = scores.std(axis=0)
    if not np.all(spread > 1e-9):
        return 0.0  # an entry that does not vary
    scores /= spread
    between = (scores.T @ scores / np.sqrt(len(scores)))[np.triu_indices(noise.shape[1], 1)]
    later = (scores[:-1].T @ scores[1:] / np.sqrt(len(scores) - 1)).ravel()
    found = np.concatenate([between, later])
    return float(2 * stats.norm.sf(np.abs(found)).min() * found.size)
