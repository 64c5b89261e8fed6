"""Checks of what a game cannot see: the law of sample and noise, what the dual side reads, the ledger.

Each returns a `Check`. Statistical ones have p-values and alarm falsely in one of ten thousand cases; the
others are exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ratewise import _validate
from ratewise.accounting import Event, Ledger, TrainingEvent
from ratewise.accounting import epsilon as account
from ratewise.accounting.events import single
from ratewise.audit.games import WorstRows, checked_event, make_dual, make_loop, run_loop
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


def check_sampling(
    rate: float, *, n_rows: int = 12, steps: int = 6000, streams: RandomStreams | None = None
) -> Check:
    """Check that batches are Poisson samples: rows at their rate, sizes binomial, empty ones included."""
    streams = RandomStreams.from_seed() if streams is None else streams
    steps, n_rows = _validate.count(steps=steps), _validate.count(n_rows=n_rows)
    rate = _validate.fraction(rate=rate)
    taken = np.zeros((steps, n_rows))
    number = 0
    samples = keyed_samples(n_rows, rate, steps, streams.sampling)
    for number, sample in enumerate(samples, start=1):
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
    event = checked_event(event).with_steps(steps)
    rows = WorstRows(3, 0, counted=event.histogram_noise is not None)
    n_rows = len(rows.labels)
    dual = None if rows.constraints is None else make_dual(rows.constraints, event, n_rows)
    loop = make_loop(event, _Silent(rows), n_rows, dual, 1.0)
    gradient, tables, before = [], [], np.zeros(_Silent.n_parameters)
    for record in run_loop(loop, event, n_rows, streams):
        after = loop.optimizer.parameters.copy()
        gradient.append((before - after) * loop.expected_units / (event.gradient_noise or 1.0))
        before = after
        if record.histogram is not None:
            tables.append(record.histogram.ravel())
    p_values = [scale_p_value(np.array(gradient), "gaussian")]
    columns = [np.array(gradient)]
    if tables:
        columns.append(np.array(tables) / (event.histogram_noise or 1.0))
        p_values.append(scale_p_value(columns[1], event.histogram or "gaussian"))
    p_values.append(_dependence_p_value(np.hstack(columns)))
    p_value = min(1.0, min(p_values) * len(p_values))
    return Check("noise", p_value > FALSE_ALARM, f"p-value {p_value:.3g} over {steps} steps")


def check_replay(event: TrainingEvent, *, steps: int = 40, streams: RandomStreams | None = None) -> Check:
    """Check that all that is made of histograms comes from released ones: a replay must give the same.

    Bounds are out of reach, so that multipliers move whatever the noise.
    """
    streams = RandomStreams.from_seed() if streams is None else streams
    event = checked_event(event).with_steps(steps)
    if event.histogram_noise is None:
        return Check("replay", True, "nothing is counted")
    step = _first_difference(event, WorstRows(3, 3, counted=True), streams)
    if step is not None:
        return Check("replay", False, f"step {step} used something else than what was released")
    return Check("replay", True, f"{steps} steps")


def _first_difference(event: TrainingEvent, rows: WorstRows, streams: RandomStreams) -> int | None:
    """Return the first step that a replay of a training does not lead to, if there is one."""
    n_rows = len(rows.labels)
    gains = {"rate": 0.5, "damping": 1.0, "margin": _OUT_OF_REACH}
    used, replayed = (make_dual(rows.constraints, event, n_rows, **gains) for _ in range(2))  # type: ignore[arg-type]
    loop = make_loop(event, _Counting(rows), n_rows, used, 1.0)
    for record in run_loop(loop, event, n_rows, streams):
        if record.histogram is None:
            continue
        replayed.update(record.histogram, 1.0)
        pairs = (
            (record.values, replayed.estimate),
            (record.multipliers, replayed.multipliers),
            (used.table, replayed.table),  # what rows meet in the next step
        )
        if not all(_equal(*pair) for pair in pairs):
            return record.step
    return None


def check_ledger(ledger: Ledger, happened: list[Event], delta: float = 1e-5) -> Check:
    """Check that a ledger has admitted, and recorded as released, at least what an observer saw happen."""
    admitted = ledger.total(delta) if ledger.records else 0.0
    truth = account(happened, delta, neighbours=ledger.neighbours) if happened else 0.0
    recorded: Counter[Event] = Counter()
    for plan in ledger.admissions:
        for event, count in zip(plan.events, plan.released.values(), strict=True):
            recorded[single(event)[0]] += count
    seen: Counter[Event] = Counter()
    for event in happened:
        one, times = single(event)
        seen[one] += times
    missing = sum((seen - recorded).values())
    return Check(
        "ledger",
        admitted >= truth * (1 - 1e-9) and not missing,
        f"admitted epsilon {admitted:.4g}, what happened costs {truth:.4g}; {missing} releases were not recorded",
    )


class _Silent:
    """An engine whose sums are all zero."""

    n_parameters = 4
    count_step = 1.0

    def __init__(self, rows: WorstRows) -> None:
        found = rows.constraints
        self._shape = None if found is None else (found.n_cells, found.n_classes)

    def slack(self, rows: float) -> float:  # noqa: ARG002 - one signature
        """Return that nothing is rounded."""
        return 0.0

    def sums(self, sample: Any, parameters: Any, weights: Any, clip: float) -> Sums:  # noqa: ARG002
        """Return zeros."""
        return Sums(np.zeros(self.n_parameters), self._tally(sample))

    def counts(self, parameters: Any) -> tuple[Floats, Floats]:  # noqa: ARG002 - one signature
        """Return zeros."""
        return np.zeros((1, 2)), np.zeros((2, 2))

    def _tally(self, sample: Any) -> Floats | None:  # noqa: ARG002 - one signature
        return None if self._shape is None else np.zeros(self._shape)


class _Counting(_Silent):
    """A silent engine that counts its rows."""

    def __init__(self, rows: WorstRows) -> None:
        super().__init__(rows)
        self._cells = rows.cells

    def _tally(self, sample: Any) -> Floats:
        shape = self._shape or (0, 0)
        counts = np.bincount(2 * self._cells[sample].astype(np.intp), minlength=shape[0] * shape[1])
        return counts.reshape(shape).astype(np.float64)


def _equal(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other, equal_nan=True))


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
