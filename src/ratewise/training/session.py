"""One fit, from declarations to a certified model: the only orchestration.

::

    declare    validate the declarations; no row is read
    plan       every release with its noise, from public facts
    admit      the ledger records the whole plan, or refuses it
    discover   release: undeclared classes, group values; then constraints are compiled
               release: types, ranges and vocabularies of undeclared columns
    prepare    release: histograms of all columns; from them the feature basis
    train      releases of each step: clipped gradient sum, prediction counts
    correct    release: margins of the trained model; its threshold moves if it clearly misses a constraint
    certify    release: counts of the returned model
    state      the privacy statement

Every release is recorded in the ledger before it is computed. Between `declare` and the end no exception,
warning, branch or record depends on the content of a row other than through released values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ratewise.accounting import (
    Admission,
    Budget,
    Event,
    GaussianEvent,
    Ledger,
    PrivacyStatement,
    PrivacyUnit,
    UnprotectedEvent,
)
from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.compiler import as_constraints, compile_constraints, named_values
from ratewise.constraints.domain import Domain, Numeric
from ratewise.data.units import Units
from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.noise import Mechanism
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import keyed_samples
from ratewise.preprocessing.basis import Basis, build_basis
from ratewise.preprocessing.discovery import ColumnDeclaration, release_grids, release_values, rows_per_id
from ratewise.preprocessing.grids import LOG_CELLS, Grid, UnusedGrid
from ratewise.training.certificate import (
    COUNT_SENSITIVITY,
    Certificate,
    Shift,
    certify,
    choose_shift,
    count_stds,
    expected_half_width,
    packed_tables,
    unpack_counts,
)
from ratewise.training.config import TrainingConfig
from ratewise.training.dual import DualUpdate
from ratewise.training.history import History
from ratewise.training.loop import Engine, GradientDescent, Loop, Release, StepRecord
from ratewise.training.plan import (
    CERTIFICATE,
    CORRECTION,
    DISCOVERY,
    RANGES,
    ROWS_PER_ID,
    STATISTICS,
    STEPS,
    TRAINING,
    Plan,
    PublicFacts,
    plan_for,
    single_release_noise,
)
from ratewise.training.source import LABEL, Rows, RowSource

__all__ = ["Declarations", "Rows", "Session", "constraints_of", "needed_columns"]

Floats = npt.NDArray[np.float64]

_FEW, _MANY = (
    500.0,
    5000.0,
)  # units per noise multiplier from which logarithmic cells are used, and finer ones
_MOST_LOG_CELLS = 2560
_SPREAD = (8.0, 200.0)  # prior on shape functions: the resolution by the second, at least the first
_L2 = (0.004, 80.0)  # penalty on weights: the lesser of the first and of the second divided by the units
_GRADIENT_NOISE = 0.075  # noise of the mean gradient, in score units, that the clipping norm is chosen for
_CLIPS = (0.5, 5.0)
_LEARNING_RATE = 2.0


@dataclass(frozen=True)
class Declarations:
    """What the user declares; validated before any row is read.

    Attributes
    ----------
    constraints : list of declarations
    classes : tuple or None
    group_values : mapping of column to values or Numeric()
        Declared values of sensitive columns.
    columns : mapping of feature name to ColumnDeclaration
    model : "additive" or "linear"
    unit : "row" or "id"
    id_column : str or None
    rows_per_id : int or None
    weighting : "id" or "row"
    """

    constraints: list[Any]
    classes: tuple[Any, ...] | None
    group_values: Mapping[str, Any]
    columns: Mapping[str, ColumnDeclaration]
    model: str = "additive"
    unit: str = "row"
    id_column: str | None = None
    rows_per_id: int | None = None
    weighting: str = "id"

    @property
    def needed_columns(self) -> frozenset[str] | None:
        """Sensitive columns that constraints read; None means all that are passed."""
        return needed_columns(self.constraints)


@dataclass(eq=False)
class Session:
    """A fit in stages; `run` goes through all of them.

    Parameters
    ----------
    declarations : Declarations
    rows : RowSource
        In memory (`Rows`) or in partitions (`ratewise.distributed`).
    config : TrainingConfig
    epsilon, delta, neighbours
        The budget; epsilon None trains without privacy.
    streams : RandomStreams
    ledger : Ledger or None
        None opens one for this fit.
    other_events : tuple of Event
        Releases of the same rows outside this fit that the budget has to cover.
    data_name : str
    tolerance : float, optional
        Of the certificate's verdicts; that of `config` by default.
    purpose : str
        What the ledger calls the plan.
    on_release : callable, optional
        Called after each release before the first step, and after the certificate: `state` has then more.
    on_start : callable, optional
        Called before the first step.

    Attributes
    ----------
    released : dict of str to released values
        What each release before the first step returned, by its name in the plan, and the certificate. A
        stage whose release is in here does not release again.
    """

    declarations: Declarations
    rows: RowSource
    config: TrainingConfig
    epsilon: float | None
    delta: float
    neighbours: str
    streams: RandomStreams
    ledger: Ledger | None = None
    other_events: tuple[Event, ...] = ()
    data_name: str = "training rows"
    tolerance: float | None = None
    purpose: str = "fit"
    on_release: Callable[[], object] | None = None
    on_start: Callable[[], object] | None = None
    released: dict[str, Any] = field(init=False, default_factory=dict)
    plan: Plan = field(init=False)
    admission: Admission = field(init=False)
    domain: Domain | None = field(init=False, default=None)
    compiled: CompiledConstraints | None = field(init=False, default=None)
    grids: tuple[Grid, ...] = field(init=False, default=())
    basis: Basis | None = field(init=False, default=None)
    loop: Loop | None = field(init=False, default=None)
    history: History | None = field(init=False, default=None)
    certificate: Certificate | None = field(init=False, default=None)
    found: list[str] = field(init=False, default_factory=list)
    classes: tuple[Any, ...] = field(init=False, default=())

    # ------------------------------------------------------------------------- before rows are read

    def declare_and_plan(self) -> None:
        """Count the units, make the plan and have it admitted, unless that is done."""
        if not hasattr(self, "plan"):
            self.plan_units()
        if not hasattr(self, "admission"):
            self.admit()

    def plan_units(self) -> None:
        """Count the units and make the plan; nothing is released."""
        self._n_units = self.rows.count_units()
        self.plan = self.make_plan(self._n_units)

    def make_plan(self, n_units: int) -> Plan:
        """Return the plan of this fit, from declarations and the number of units."""
        declared = self.declarations
        self._resolution = 1e6
        if self.epsilon is not None:
            self._resolution = n_units / single_release_noise(self.epsilon, self.delta)
        self._log_cells = self._logarithmic_cells()
        facts = PublicFacts(
            n_units=n_units,
            n_columns=len(self.rows.names),
            n_discovered=len(self.undeclared()),
            n_unbounded=len(self._undeclared_columns()),
            statistics_norm=self._statistics_norm(self._log_cells),
            constrained=bool(declared.constraints),
            find_rows_per_id=declared.unit == "id" and declared.rows_per_id is None,
            corrected=self.config.correction and self.config.rates == "hard",
        )
        return plan_for(
            facts,
            self.config,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            unit=self._unit(),
            other_events=self.other_events,
        )

    def _logarithmic_cells(self) -> int:
        """Return the number of logarithmic cells per continuous column: the resolution that the budget can resolve.

        It depends on units per noise multiplier of a single release that spends the budget; a large table
        shares a fixed number of cells among its columns, because every cell is a parameter.
        """
        if self.declarations.model != "additive":
            return 0
        resolution = self._resolution
        if resolution < _FEW:
            return 0
        if resolution < _MANY:
            return LOG_CELLS
        declared = self.declarations.columns
        columns = sum(declared[name].values is None for name in self.rows.names)
        return min(max(_MOST_LOG_CELLS // max(columns, 1), LOG_CELLS), 8 * LOG_CELLS)

    def admit(self) -> None:
        """Record the whole plan, or refuse it before any row is read."""
        self.admission = self.open_ledger().admit(
            self.planned, purpose=self.purpose, data=self.data_name, unit=self.plan.unit
        )

    def open_ledger(self) -> Ledger:
        """Return the ledger of this fit; one with the budget as its cap is opened unless it was given."""
        if self.ledger is None:
            cap = None if self.epsilon is None else Budget(self.epsilon, self.delta)
            self.ledger = Ledger(cap=cap, adaptive=False, neighbours=self.neighbours, unit=self.plan.unit)
        return self.ledger

    @property
    def planned(self) -> dict[str, Event]:
        """What the ledger admits: every release of the plan, or that training adds no noise."""
        return self.plan.events or {TRAINING: UnprotectedEvent("training without noise")}

    def _unit(self) -> PrivacyUnit:
        declared = self.declarations
        if declared.unit == "row":
            return PrivacyUnit()
        return PrivacyUnit(
            "id", column=declared.id_column, max_rows=declared.rows_per_id, weighting=declared.weighting
        )

    def undeclared(self) -> tuple[str, ...]:
        """Return the label and the sensitive columns whose values must be found."""
        declared = self.declarations
        needed = declared.needed_columns
        named = named_values(declared.constraints)
        missing = [
            name
            for name in self.rows.group_names
            if (needed is None or name in needed)
            and name not in declared.group_values
            and name not in named.numeric
        ]
        return (*((LABEL,) if declared.classes is None else ()), *missing)

    def _undeclared_columns(self) -> tuple[str, ...]:
        if self.rows.sparse:
            return ()
        return tuple(name for name in self.rows.names if not self.declarations.columns[name].complete)

    def _statistics_norm(self, log_cells: int) -> float:
        if self.rows.sparse:
            return 0.0
        declared = self.declarations.columns
        return math.sqrt(sum(declared[name].norm_squared(log_cells) for name in self.rows.names))

    # ------------------------------------------------------------------------------------ releases

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the released values of a name; record the release and compute them unless they are there."""
        if name not in self.released:
            if self.plan.private:
                self._record(name)
            self.released[name] = compute()
            if self.on_release is not None:
                self.on_release()
        return self.released[name]

    def _record(self, name: str) -> None:
        self.admission.release(name)

    def _left(self, name: str) -> int:
        return self.admission.left(name)

    def _total(self, mechanism: Mechanism) -> Release:
        """Return the mechanism of a sum over all units, if this session holds some of them only."""
        return mechanism

    def state(self) -> dict[str, Any]:
        """Return what a later session needs to go on: released values only, no rows, no random state."""
        return {
            "released": dict(self.released),
            "loop": None if self.loop is None else self.loop.state(),
            "history": {} if self.history is None else self.history.arrays(),
        }

    def restore(self, state: Mapping[str, Any], admission: Admission) -> None:
        """Go on from `state`, under a plan that is admitted already; call it before the first stage.

        Releases that the state holds are not made again. Training steps that the ledger counts and the state
        does not have are not taken again either: the learning rate goes on as if they had been.
        """
        self.released = dict(state["released"])
        self.admission, self.ledger = admission, admission.ledger
        self._state = state

    @np.errstate(all="ignore")
    def bound_units(self) -> None:
        """Fix which rows each unit contributes: rows with a label, that of a class if classes are declared."""
        declared, most = self.declarations, self.declarations.rows_per_id
        if declared.unit == "row":
            most = 1
        elif most is None:

            def release() -> int:
                mechanism = self.plan.gaussian(ROWS_PER_ID, 1.0)
                sizes = self.rows.count_sizes(declared.classes)
                return rows_per_id(sizes, mechanism, self.streams.preparation)

            most = int(self._once(ROWS_PER_ID, release))
            self.found.append(
                f"at most {most} rows of an id are used: by released counts, all rows of nine tenths of the ids"
            )
        self.max_rows = most
        self.units: Units = self.rows.bound(most, declared.weighting, declared.classes)

    max_rows: int = field(init=False, default=1)
    _state: Mapping[str, Any] | None = field(init=False, default=None)

    @np.errstate(all="ignore")
    def discover(self) -> None:
        """Find undeclared classes and group values, and compile the constraints."""
        declared, named = self.declarations, named_values(self.declarations.constraints)
        missing = self.undeclared()
        values: dict[str, tuple[Any, ...]] = {}
        if missing:
            noise, delta = self._threshold_event(DISCOVERY)
            public = {**(named.columns or {}), LABEL: named.classes}
            values = self._once(
                DISCOVERY,
                lambda: release_values(
                    self.rows.count_values(missing),
                    noise,
                    delta,
                    self.streams.preparation,
                    named=public,
                    step=self.units.step,
                    max_rows=self.max_rows,
                ),
            )
            self.found += [
                f"{'the classes' if n == LABEL else f'the values of {n!r}'}: {_shown(v)}"
                for n, v in values.items()
            ]
        classes = declared.classes if declared.classes is not None else values[LABEL]
        self.classes = tuple(classes)
        if len(self.classes) < 2:
            return
        groups: dict[str, Any] = {}
        for name in self.rows.group_names:
            if name in declared.group_values:
                groups[name] = declared.group_values[name]
            elif name in named.numeric:
                groups[name] = Numeric()
            elif name in values:
                groups[name] = values[name]
        self.domain = Domain(self.classes, groups, other=True)
        if declared.constraints:
            self.compiled = compile_constraints(declared.constraints, self.domain, allow_empty=bool(missing))
        self.rows.use_domain(self.domain, self.compiled)

    def _threshold_event(self, name: str) -> tuple[float, float]:
        event: Any = self.plan.events.get(name)
        return (0.0, 0.0) if event is None else (float(event.noise), float(event.delta))

    @np.errstate(all="ignore")
    def prepare(self) -> None:
        """Find undeclared columns' types and ranges, release column histograms and build the basis."""
        declared, names = self.declarations, self.rows.names
        if self.rows.sparse:
            return
        missing = self._undeclared_columns()
        grids: dict[str, Grid] = {
            name: declared.columns[name].grid(name, self._log_cells) for name in names if name not in missing
        }
        if missing:
            noise, delta = self._threshold_event(RANGES)
            formats = {name: declared.columns[name].cell_format for name in missing}
            grids |= self._once(
                RANGES,
                lambda: release_grids(
                    self.rows.count_ranges(formats),
                    formats,
                    noise,
                    delta,
                    self.streams.preparation,
                    self._log_cells,
                    step=self.units.step,
                    max_rows=self.max_rows,
                ),
            )
            self.found.append("types, ranges and values of " + _shown(missing))
        self.grids = tuple(grids[name] for name in names)
        mechanism = self.plan.gaussian(STATISTICS, self.plan.statistics_norm, self.units.step)

        def release() -> Floats:
            totals = self.rows.bin_weights(self.grids)
            private = [grid.histogram(part) for grid, part in zip(self.grids, totals, strict=True)]
            return mechanism.release(np.concatenate(private), self.streams.preparation)

        released = self._once(STATISTICS, release)
        self.histograms = np.split(released, np.cumsum([grid.n_counts for grid in self.grids])[:-1])
        self.statistics_noise = mechanism.standard_deviation
        self.build()

    def build(self) -> None:
        """Build the basis from released histograms: post-processing."""
        self.basis = build_basis(
            self.grids,
            self.histograms,
            self.statistics_noise,
            float(self._n_units),
            self.config.spread or max(_SPREAD[0], self._resolution / _SPREAD[1]),
            cells=self.declarations.model == "additive",
        )

    # ------------------------------------------------------------------------------------ training

    @np.errstate(all="ignore")
    def bind(self) -> None:
        """Make the engine and the loop."""
        assert self.domain is not None  # noqa: S101 - only called with two classes or more
        engine = self.rows.engine(self.basis, self.declarations.columns, self.config)
        self.engine = engine
        self.loop = self._loop(engine)
        self.history = History.of(self.loop, self.plan.steps)
        if self._state is not None and self._state["loop"] is not None:
            self.loop.restore(self._state["loop"])
            self.history.restore(self._state["history"])

    def _loop(self, engine: Any) -> Loop:
        plan, config = self.plan, self.config
        clip, rate = self._step_sizes(engine)
        counts = plan.histogram_mechanism(engine.count_step)
        dual = dual_update(self.compiled, plan, config, counts.standard_deviation)
        optimizer = GradientDescent(
            np.zeros(engine.n_parameters),
            rate,
            plan.steps,
            momentum=config.momentum,
            schedule=config.schedule,
            l2=min(_L2[0], _L2[1] / self._n_units) if config.l2 is None else config.l2,
            penalised=engine.penalised,
        )
        gradient = plan.gradient_mechanism(clip, engine.slack(most_rows(plan, self.units)))
        return Loop(engine, optimizer, dual, gradient, counts, clip, plan.expected_units)

    def _step_sizes(self, engine: Any) -> tuple[float, float]:
        """Return the clipping norm and the learning rate.

        The noise of a mean gradient moves scores by ``noise * clip * sqrt(E |x|**2) / (n q)``. The clipping
        norm is the one that makes this 0.075, between 0.5 and the larger of 5 and sqrt(E |x|**2). Noise beyond
        twice that shortens the steps in proportion.
        """
        plan, config = self.plan, self.config
        scale = math.sqrt(float(engine.mean_squares.sum()) / engine.n_outputs)
        longest = max(_CLIPS[1], scale)
        event = plan.training
        if event is None or event.gradient_noise is None:
            return config.clip or math.inf, config.learning_rate or _LEARNING_RATE
        unit = event.gradient_noise * scale / plan.expected_units
        clip = config.clip or min(max(_GRADIENT_NOISE / unit, _CLIPS[0]), longest)
        noise = unit * clip
        rate = config.learning_rate or _LEARNING_RATE * min(1.0, 2.0 * _GRADIENT_NOISE / noise)
        return clip, rate

    def samples(self, steps: int) -> Iterator[Any]:
        """Yield Poisson samples of units, each with a fresh secret key, as the engine takes them; **private**."""
        drawn = keyed_samples(self._n_units, self.plan.sampling_rate, steps, self.streams.sampling)
        return map(self.rows.select, drawn)

    def train(self, on_step: Callable[[StepRecord], object] | None = None) -> None:
        """Run the steps that remain."""
        assert self.loop is not None  # noqa: S101 - bound before
        assert self.history is not None  # noqa: S101
        left = self.plan.steps - self.loop.optimizer.done
        if not self.plan.private:
            self._steps(left, None, on_step)
            return
        left = min(left, self.admission.left(TRAINING))
        self.loop.optimizer.done = (
            self.plan.steps - left
        )  # steps that may have been released are not taken again
        if left == 0:
            return
        with self.admission.phase(TRAINING) as phase:
            self._steps(left, phase.step, on_step)

    def _steps(
        self, steps: int, before: Callable[[], object] | None, on_step: Callable[[StepRecord], object] | None
    ) -> None:
        assert self.loop is not None  # noqa: S101 - bound before
        assert self.history is not None  # noqa: S101
        for record in self.loop.run(self.samples(steps), self.streams, before):
            self.history.add(record)
            if on_step is not None:
                on_step(record)

    # ------------------------------------------------------------------------------------- the end

    @property
    def certificate_tolerance(self) -> float:
        """Tolerance of the certificate's verdicts."""
        return self.config.tolerance if self.tolerance is None else self.tolerance

    def _lost(self, name: str) -> bool:
        """Return whether an interrupted process has made a release, which is then not made again."""
        return name not in self.released and self.plan.private and self._left(name) == 0

    @np.errstate(all="ignore")
    def correct(self) -> None:
        """Release the margins of the trained model; if it clearly misses a constraint, shift the score of a class."""
        if not self.plan.corrected or self.compiled is None or self.loop is None or self._lost(CORRECTION):
            return
        dual, plan, parameters = self.loop.dual, self.plan, self.loop.optimizer.parameters
        assert dual is not None  # noqa: S101 - there are constraints
        towards = dual.largest_class

        def release() -> Floats:
            packed = packed_tables(*self.engine.margin_counts(parameters, towards))
            mechanism = self._total(plan.gaussian(CORRECTION, COUNT_SENSITIVITY, self.units.step))
            found: Floats = mechanism.release(packed, self.streams.preparation)
            return found

        released = self._once(CORRECTION, release)
        self.shift = shift_for(released, self.compiled, plan, dual, self.certificate_tolerance)

    shift: Shift | None = field(init=False, default=None)

    @np.errstate(all="ignore")
    def certify(self) -> None:
        """Release the counts of the returned model and judge the constraints."""
        if self.compiled is None or self.loop is None or self._lost(CERTIFICATE):
            return
        compiled, plan, parameters = self.compiled, self.plan, self.parameters

        def release() -> Floats:
            packed = certificate_counts(self.engine, parameters)
            mechanism = self._total(plan.gaussian(CERTIFICATE, COUNT_SENSITIVITY, self.units.step))
            found: Floats = mechanism.release(packed, self.streams.preparation)
            return found

        released = self._once(CERTIFICATE, release)
        self.certificate = judged(
            released, compiled, plan, self.certificate_tolerance, self.loop.dual, self.shift
        )

    def run(self, on_step: Callable[[StepRecord], object] | None = None) -> None:
        """Go through all stages."""
        with self._threads():
            self.declare_and_plan()
            self.bound_units()
            self.discover()
            if len(self.classes) < 2:
                return
            self.prepare()
            self.bind()
            if self.on_start is not None:
                self.on_start()
            self.train(on_step)
            self.correct()
            self.certify()

    def _threads(self) -> AbstractContextManager[object]:
        limits: AbstractContextManager[object] = threadpool_limits(1)
        return limits  # small operations gain nothing from threads, and sums stay repeatable

    @property
    def parameters(self) -> Floats:
        """The released model."""
        if self.loop is None:
            raise InvalidInput("nothing was trained: fewer than two classes were found")
        released: Floats = self.loop.optimizer.parameters
        if self.shift is not None:
            released = self.engine.shifted(released, self.shift.towards, self.shift.amount)
        return released

    def statement(self, public: tuple[str, ...], outside: tuple[str, ...] = ()) -> PrivacyStatement:
        """Return the privacy statement of this fit."""
        return self.admission.statement(
            self.delta, n_units=self._n_units, public=public, found=tuple(self.found), outside=outside
        )

    @property
    def unused(self) -> dict[str, str]:
        """Columns that got no weight, with the reason, judged from released values."""
        return {grid.name: grid.reason for grid in self.grids if isinstance(grid, UnusedGrid)}


def needed_columns(constraints: list[Any]) -> frozenset[str] | None:
    """Return the sensitive columns that constraints read; None means all that are passed."""
    named = named_values(constraints)
    return None if named.all_columns else frozenset(named.columns)


def most_rows(plan: Plan, units: Units) -> float:
    """Return a bound on the rows of a sample that is exceeded with a probability below 1e-20."""
    largest = plan.expected_units + 10.0 * math.sqrt(plan.expected_units) + 40.0
    return min(1.0, largest / units.n_units) * units.n_rows


def dual_update(
    compiled: CompiledConstraints | None, plan: Plan, config: TrainingConfig, noise: float
) -> DualUpdate | None:
    """Return the multipliers of a training run; `noise` is the standard deviation of one count."""
    if compiled is None:
        return None
    margin = config.margin
    if margin == "certified":
        margin = certificate_half_width(compiled, plan)
    return DualUpdate(
        compiled,
        total=float(plan.n_units),
        sampling_rate=plan.sampling_rate,
        noise=noise,
        rate=config.dual_rate * STEPS / plan.steps,
        damping=config.dual_damping,
        margin=margin,
    )


def certificate_half_width(compiled: CompiledConstraints, plan: Plan) -> float:
    """Return the largest half-width to expect of the certificate's intervals, from public facts; 0 without noise."""
    event = plan.events.get(CERTIFICATE)
    if not isinstance(event, GaussianEvent):
        return 0.0
    return float(expected_half_width(compiled, plan.n_units, count_stds(float(event.noise))[0]))


def certificate_counts(engine: Engine, parameters: Any) -> Floats:
    """Return the vector (2 H, M) of the certificate; L2 sensitivity `COUNT_SENSITIVITY`, **private**."""
    return packed_tables(*engine.counts(parameters))


def _count_stds(plan: Plan, name: str) -> tuple[float, float]:
    event = plan.events.get(name)
    return count_stds(float(event.noise)) if isinstance(event, GaussianEvent) else (0.0, 0.0)


def shift_for(
    released: Floats, compiled: CompiledConstraints, plan: Plan, dual: DualUpdate, tolerance: float
) -> Shift | None:
    """Return the correction of a trained model from the released counts of its margins."""
    return choose_shift(
        released,
        compiled,
        _count_stds(plan, CORRECTION),
        towards=dual.largest_class,
        cell_totals=dual.cell_sizes()[0],
        tolerance=tolerance,
    )


def judged(
    released: Floats,
    compiled: CompiledConstraints,
    plan: Plan,
    tolerance: float,
    dual: DualUpdate | None = None,
    shift: Shift | None = None,
) -> Certificate:
    """Return the certificate from the released counts of the returned model (`certificate_counts`).

    Training has measured the sizes of cells as well, with noise of its own; they shorten the intervals.
    """
    histogram, outcomes = unpack_counts(released, compiled.n_cells, compiled.n_classes)
    stds = _count_stds(plan, CERTIFICATE)
    sizes = None if dual is None or not dual.step or not plan.private else dual.cell_sizes()
    return certify(
        compiled,
        histogram,
        stds[0],
        n_units=plan.n_units,
        outcomes=outcomes,
        outcomes_std=stds[1],
        cell_totals=None if sizes is None else sizes[0],
        cell_totals_std=0.0 if sizes is None else sizes[1],
        tolerance=tolerance,
        notes=() if shift is None else (shift.describe(compiled),),
        unit="rows" if plan.unit.kind == "row" else "ids",
    )


def constraints_of(constraints: Any) -> list[Any]:
    """Return declared constraints as a list; text is parsed."""
    return list(as_constraints(constraints))


def _shown(values: tuple[Any, ...]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return f"{shown} and {len(values) - 8} more" if len(values) > 8 else shown or "none"
