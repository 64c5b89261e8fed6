"""Checks of what a game cannot see: the law of the sample, of the noise, what the dual side reads, the book.

Each returns a `Check`. Statistical ones have p-values and alarm falsely in one of ten thousand cases; the
others are exact.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ratewise import _validate
from ratewise.accounting import Event, Ledger
from ratewise.accounting import epsilon as account
from ratewise.audit.games import WorstRows, checked_plan, still
from ratewise.multipliers import Multipliers
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import PoissonSampler
from ratewise.training import Training

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 1e-4
_OUT_OF_REACH = 3.0  # off bounds of differences of rates, which are 1 at most


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    Attributes
    ----------
    name : str
    passed : bool
    detail : str
    """

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
    for number, rows in enumerate(PoissonSampler(n_rows, rate).batches(steps, streams.sampling), start=1):
        taken[number - 1, rows] = 1.0
    if number != steps:
        return Check("sampling", False, f"{number} batches instead of {steps}")
    spread = np.sqrt(steps * rate * (1 - rate)) if rate < 1 else 1.0
    each = 2 * stats.norm.sf(np.abs(taken.sum(axis=0) - steps * rate) / spread)
    sizes = np.bincount(taken.sum(axis=1).astype(np.intp), minlength=n_rows + 1)
    expected = steps * stats.binom.pmf(np.arange(n_rows + 1), n_rows, rate)
    p_value = min(1.0, float(min(each.min() * n_rows, _chi_square(sizes, expected)) * 2))
    return Check("sampling", p_value > FALSE_ALARM, f"p-value {p_value:.3g} over {steps} batches")


def check_noise(plan: Plan, *, steps: int = 3000, streams: RandomStreams | None = None) -> Check:
    """Check that what a silent training releases is noise of the promised law, a fresh draw per entry."""
    streams = RandomStreams.from_seed() if streams is None else streams
    rows = WorstRows(3, 0, counted=checked_plan(plan).histogram_noise is not None)
    quiet = _silent(plan, steps, rows)
    training = Training(quiet, _Silent(rows), _dual(rows, quiet))
    gradient, tables, before = [], [], np.zeros(_Silent.n_parameters)
    for record in training.run(streams):
        after = training.descent.theta.copy()
        gradient.append((before - after) * quiet.expected_rows / quiet.gradient_mechanism.standard_deviation)
        before = after
        if record.histograms is not None:
            tables += [table.ravel() for table in record.histograms]
    p_values = [_scale_p_value(np.array(gradient), "gaussian")]
    columns = [np.array(gradient)]
    if tables:
        noise = quiet.histogram_noise or 1.0
        columns.append(np.array(tables) / noise)
        p_values.append(_scale_p_value(columns[1], quiet.histogram or "gaussian"))
    p_values.append(_dependence_p_value(np.hstack(columns)))
    p_value = min(1.0, min(p_values) * len(p_values))
    return Check("noise", p_value > FALSE_ALARM, f"p-value {p_value:.3g} over {steps} steps")


def check_replay(plan: Plan, *, steps: int = 40, streams: RandomStreams | None = None) -> Check:
    """Check that all that is made of histograms comes from released ones: a replay must give the same.

    Twice: with a plain control, and with that of the plan, which may read histograms in ways of its own. Both
    limit rates so tightly that no prediction holds them, so multipliers move whatever noise says.
    """
    streams = RandomStreams.from_seed() if streams is None else streams
    rows = WorstRows(3, 3, counted=True)
    for dual in (DualControl(rate=0.5, interval=4), checked_plan(plan).dual):
        moving = _silent(plan, steps, rows, dual=dataclasses.replace(dual, margin=_OUT_OF_REACH))
        if moving.histogram_noise is None:
            return Check("replay", True, "nothing is counted")
        step = _first_difference(moving, rows, streams)
        if step is not None:
            return Check("replay", False, f"step {step} used something else than what was released")
    return Check("replay", True, f"{steps} steps, twice")


def _first_difference(plan: Plan, rows: WorstRows, streams: RandomStreams) -> int | None:
    """Return the first step that a replay of a training does not lead to, if there is one."""
    used, replayed = (Multipliers(_compiled(rows), plan) for _ in range(2))
    for record in Training(plan, _Counting(rows), used).run(streams):
        if record.histograms is None:
            continue
        replayed.update(record.histograms)
        same = _equal(record.values, replayed.values) and _equal(record.multipliers, replayed.multipliers)
        # what rows meet in the next step
        same = same and _equal(used.table, replayed.table) and used.loss_weight == replayed.loss_weight
        if not same:
            return record.step
    return None


def check_book(ledger: Ledger, happened: list[Event], delta: float = 1e-5) -> Check:
    """Check that a book counts at least what happened, as noted by somebody who watched the releases."""
    booked = ledger.total(delta) if ledger.records else 0.0
    truth = account(happened, delta, neighbours=ledger.neighbours) if happened else 0.0
    return Check(
        "book", booked >= truth * (1 - 1e-9), f"booked epsilon {booked:.4g}, what happened costs {truth:.4g}"
    )


def _silent(plan: Plan, steps: int, rows: WorstRows, dual: DualControl | None = None) -> Plan:
    found = still(plan, len(rows.labels))
    return dataclasses.replace(
        found, steps=steps, learning_rate=1.0, dual=found.dual if dual is None else dual
    )


def _compiled(rows: WorstRows) -> Any:
    return rows.constraints


def _dual(rows: WorstRows, plan: Plan) -> Multipliers | None:
    return None if rows.constraints is None else Multipliers(rows.constraints, plan)


class _Silent:
    """An engine whose sums are all zero."""

    n_parameters = 4
    penalised = np.ones(4, dtype=np.bool_)

    def __init__(self, rows: WorstRows) -> None:
        found = rows.constraints
        self.histogram_shape = None if found is None else (found.n_cells, found.n_classes)

    def sums(self, rows: Any, theta: Any, table: Any, loss_weight: float) -> tuple[Floats, Any]:  # noqa: ARG002
        """Return zeros."""
        return np.zeros(self.n_parameters), self._tally(rows)

    def _tally(self, rows: Any) -> Any:  # noqa: ARG002
        return None if self.histogram_shape is None else np.zeros(self.histogram_shape)

    def histograms(self, tallies: list[Any]) -> npt.NDArray[Any]:
        """Return the tallies."""
        return np.stack(tallies)


class _Counting(_Silent):
    """A silent engine that counts its rows."""

    def __init__(self, rows: WorstRows) -> None:
        super().__init__(rows)
        self._cells = rows.cells

    def _tally(self, rows: Any) -> Any:
        shape = self.histogram_shape or (0, 0)
        return np.bincount(2 * self._cells[rows].astype(np.intp), minlength=shape[0] * shape[1]).reshape(
            shape
        )


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


def _scale_p_value(noise: Floats, law: str) -> float:
    reference = stats.norm if law == "gaussian" else stats.laplace
    variance, fourth = (1.0, 3.0) if law == "gaussian" else (2.0, 24.0)
    z = (np.mean(noise**2, axis=0) - variance) / np.sqrt((fourth - variance**2) / len(noise))
    shape = stats.kstest(noise.ravel(), reference.cdf).pvalue
    return float(min(2 * stats.norm.sf(np.abs(z)).min() * noise.shape[1], shape) * 2)


def _dependence_p_value(noise: Floats) -> float:
    """Return the smallest p-value of correlations between entries, and of entries with the next step's."""
    scores = noise - noise.mean(axis=0)
    scores /= np.maximum(scores.std(axis=0), 1e-300)
    between = (scores.T @ scores / np.sqrt(len(scores)))[np.triu_indices(noise.shape[1], 1)]
    later = (scores[:-1].T @ scores[1:] / np.sqrt(len(scores) - 1)).ravel()
    found = np.concatenate([between, later])
    return float(2 * stats.norm.sf(np.abs(found)).min() * found.size)
