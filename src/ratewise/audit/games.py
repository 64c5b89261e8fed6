"""The games: who is attacked, and what the adversary sees.

A `Subject` is a training with rows that may be there or not. Leaving a row out is done where a step takes up
its rows, so that everything after it, and the public number of rows, is what it would be without that row.
Everything else is the shipped code: sampler, engine, mechanisms, loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.compiled import CompiledConstraints
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import demographic_parity
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import Rows
from ratewise.training import Training

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Long enough that a row's gradient is clipped, whatever the clip is.
_LONG = 1e6
# So small that the model stays where it is: every step then shows the worst case.
_STILL = 1e-20
# Steps whose histograms are released together; each has its own noise, and it saves time.
_TOGETHER = 50
_MOST_ROWS = 20_000  # every canary has a feature of its own


class Sight(NamedTuple):
    """What an adversary makes of one step; one number per canary, in units of the sensitivity.

    Attributes
    ----------
    gradient : array
        The released sum along the canary's own gradient: about 1 if it took part, 0 if not.
    tally : array or None
        The released entry of the histogram that the canary adds 1 to.
    beside : array or None
        An entry that no row adds to: under independent noise it tells nothing.
    """

    gradient: Floats
    tally: Floats | None = None
    beside: Floats | None = None


class Subject(Protocol):
    """A training that can be attacked."""

    @property
    def plan(self) -> Plan:
        """What is played: noise, rate and kinds of release."""
        ...

    @property
    def n_canaries(self) -> int:
        """How many rows may be there or not."""
        ...

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Sight]:
        """Play ``len(coins)`` games of `steps` steps, canary i being there in game g if ``coins[g, i]``."""
        ...


class WorstRows:
    """Rows that show the most of themselves.

    Every canary has a feature of its own, so large that its gradient is clipped, and a cell of its own.
    Opponents, rows that are always there, pull the other way along the first canary's feature: rules that let
    one row change what others add (an average over the rows that came) are at their worst then. One cell
    stays empty.
    """

    def __init__(self, n_canaries: int, n_opponents: int, *, counted: bool) -> None:
        n_canaries = _validate.count(n_canaries=n_canaries)
        n_rows = n_canaries + _validate.count(at_least=0, n_opponents=n_opponents)
        if n_rows > _MOST_ROWS:
            raise InvalidInput(f"canaries and opponents must be at most {_MOST_ROWS} rows, got {n_rows}")
        self.X = np.zeros((n_rows, n_canaries))
        self.X[np.arange(n_canaries), np.arange(n_canaries)] = _LONG
        self.X[n_canaries:, 0] = -_LONG
        self.labels = np.zeros(n_rows, dtype=np.int64)  # a residual of a half pulls all of them
        self.constraints: CompiledConstraints | None = None
        if counted:
            groups = np.minimum(np.arange(n_rows), n_canaries)
            self.constraints = compile_constraints(
                [demographic_parity("cell", max_gap=1.0)],
                Domain(classes=(0, 1), columns={"cell": list(range(n_canaries + 2))}),
            )
            self.cells = self.constraints.cells(self.labels, {"cell": groups})
            self._own = self.cells[:n_canaries].astype(np.intp)
            self._empty = max(set(range(self.constraints.n_cells)) - set(self.cells.tolist()))

    def sight(self, along: Floats, histogram: Floats | None, positive: Bools) -> Sight:
        """Return what is seen of each canary, given whether the model predicts it positive."""
        if histogram is None:
            return Sight(along)
        predicted = positive.astype(np.intp)
        return Sight(along, histogram[self._own, predicted], histogram[self._empty, predicted])


class LinearSubject:
    """The NumPy engine with worst-case rows.

    Parameters
    ----------
    plan : Plan
        Noise, rate, clip, kinds of release; how the model would learn does not matter and is replaced.
    n_canaries : int
    n_opponents : int or None
        None: a few, unless rows are sampled, for then they would hide the canary.
    dtype : type of the features
    """

    def __init__(
        self, plan: Plan, n_canaries: int = 1, n_opponents: int = 9, dtype: Any = np.float64
    ) -> None:
        counting = checked_plan(plan).histogram_noise is not None
        self._rows = rows = WorstRows(n_canaries, n_opponents, counted=counting)
        self.n_canaries = rows.X.shape[1]
        self.plan = still(plan, len(rows.X))
        counted: dict[str, Any] = {}
        if rows.constraints is not None:
            counted = {"cells": rows.cells, "n_cells": rows.constraints.n_cells}
        self._engine = LinearEngine(
            self.plan, rows.X.astype(dtype), rows.labels, 2, intercept=False, **counted
        )

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Sight]:
        """Play the games one after another in one long run of the shipped loop."""
        plan = dataclasses.replace(self.plan, steps=len(coins) * steps)
        guarded = _Present(self._engine, np.ones(plan.n_rows, dtype=np.bool_))
        compiled = self._rows.constraints
        dual = None if compiled is None else Multipliers(compiled, plan)
        training = Training(plan, guarded, dual)
        rest, shifts = self._shifts(training)
        guarded.present[: self.n_canaries] = coins[0]
        before, waiting = training.descent.theta.copy(), []
        for number, record in enumerate(training.run(streams), start=1):
            after = training.descent.theta.copy()
            along = shifts @ ((before - after) * (plan.expected_rows / _STILL) - rest)
            waiting.append((along / (plan.clip or 1.0) ** 2, before))
            before = after
            if number % steps == 0 and number < plan.steps:
                guarded.present[: self.n_canaries] = coins[number // steps]
            if dual is None or record.histograms is not None:
                yield from self._sights(waiting, record.histograms)
                waiting.clear()

    def _shifts(self, training: Training) -> tuple[Floats, Floats]:
        """Return, of sums without noise: what the opponents add, and what each canary adds to that."""
        theta, rows = training.descent.theta, np.arange(self.plan.n_rows)
        if self.plan.sampling_rate >= 1 and self.n_canaries == 1:
            everybody = training.engine.sums(rows, theta, None, 1.0)[0]
            rest = training.engine.sums(rows[1:], theta, None, 1.0)[0]
            return rest, (everybody - rest)[None, :]
        # who else takes part is left to chance, or does not pull along a canary's feature
        alone = [self._engine.sums(rows[i : i + 1], theta, None)[0] for i in range(self.n_canaries)]
        return np.zeros_like(theta), np.array(alone)

    def _sights(self, waiting: list[tuple[Floats, Floats]], histograms: Floats | None) -> Iterator[Sight]:
        for place, (along, theta) in enumerate(waiting):
            yield self._rows.sight(along, None if histograms is None else histograms[place], theta > 0)


def opponents(plan: Plan) -> int:
    """Return how many opponents make the worst case; in a sampled batch they would hide the canary."""
    return 9 if plan.sampling_rate >= 1 else 0


def checked_plan(plan: Any) -> Plan:
    """Return the plan, or say that it is none."""
    if not isinstance(plan, Plan):
        raise InvalidType(f"plan must be a ratewise.plan.Plan, got {type(plan).__name__}")
    return plan


def still(plan: Plan, n_rows: int) -> Plan:
    """Return the plan with the same releases, for so many rows, in which the model does not move."""
    return dataclasses.replace(
        checked_plan(plan),
        n_rows=n_rows,
        row_norm=None,
        learning_rate=_STILL,
        schedule="constant",
        warmup=0.0,
        momentum=0.0,
        l1=0.0,
        l2=0.0,
        averaging="none",
        dual=DualControl(rate=0.0, interval=_TOGETHER),
        preparation=None,
        block_rows=None,
    )


class _Present:
    """An engine that sees the rows that are there, and no others."""

    def __init__(self, engine: Any, present: Bools) -> None:
        self._engine = engine
        self.present = present
        self.n_parameters = engine.n_parameters
        self.penalised = engine.penalised
        self.histogram_shape = engine.histogram_shape
        self.histograms = engine.histograms

    def sums(self, rows: Rows, theta: Floats, table: Floats | None, loss_weight: float) -> tuple[Floats, Any]:
        """Return the engine's sums over the rows that are there."""
        there: tuple[Floats, Any] = self._engine.sums(rows[self.present[rows]], theta, table, loss_weight)
        return there
