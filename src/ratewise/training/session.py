"""One fit, from declarations to a certified model: the only orchestration.

::

    declare    validate the declarations; no row is read
    plan       every release with its noise, from public facts
    admit      the ledger records the whole plan, or refuses it
    bound      release: the number of rows per id, if ids are the units and it is not declared
    discover   release: undeclared classes, group values; then constraints are compiled
    prepare    release: types, ranges and vocabularies of undeclared columns
               release: histograms of all columns; from them the feature basis
    train      releases of each step: clipped gradient sum, prediction counts
    correct    release: margins of the trained model; its threshold moves if it clearly misses a constraint
    certify    release: counts of the returned model
    state      the privacy statement

Every release is recorded in the ledger before it is computed. Between `declare` and the end no exception,
warning, branch or record depends on the content of a row other than through released values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ratewise.accounting import Admission, Budget, Event, Ledger, PrivacyStatement, UnprotectedEvent
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints, named_values
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat
from ratewise.data.table import Units
from ratewise.exceptions import BudgetExceeded, CertificateWarning, InvalidInput
from ratewise.mechanisms.noise import Mechanism
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import KeyedSample, keyed_samples
from ratewise.preprocessing.basis import Basis, build_basis
from ratewise.preprocessing.discovery import (
    ColumnDeclaration,
    RangeCounts,
    ValueCounts,
    release_grids,
    release_values,
    rows_per_id,
    rows_per_id_words,
)
from ratewise.preprocessing.grids import ContinuousGrid, Grid, UnusedGrid
from ratewise.training import config as defaults
from ratewise.training.certificate import (
    COUNT_SENSITIVITY,
    Certificate,
    Shift,
    choose_shift,
    judged,
    packed_tables,
    plan_stds,
    undecidable,
)
from ratewise.training.config import TrainingConfig
from ratewise.training.declarations import Declarations
from ratewise.training.dual import dual_update
from ratewise.training.loop import GradientDescent, GroupPenalty, History, Loop, Optimizer, Release, StepRecord
from ratewise.training.plan import (
    CERTIFICATE,
    CORRECTION,
    DISCOVERY,
    RANGES,
    ROWS_PER_ID,
    STATISTICS,
    TRAINING,
    Plan,
    PublicFacts,
    plan_for,
)

__all__ = ["LABEL", "RowSource", "Session"]

Floats = npt.NDArray[np.float64]
OnStep = Callable[[StepRecord], object]


LABEL = "label"  # the name of the label column in `RowSource.count_values`


class RowSource(Protocol):
    """The rows of a fit: in memory (`ratewise.models.rows`) or in partitions (`ratewise.distributed`).

    Its methods return sums over units, which are **private** until a mechanism releases them. Sums are exact (integers,
    or multiples of a power of two), so that they do not depend on the order or the partition of rows, and units are
    numbered in a way that does not either: rows by their place in the table, ids by the order of a digest of the id.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features; public."""

    @property
    def named(self) -> bool:
        """Whether the names are the user's."""

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the sensitive columns; public."""

    @property
    def sparse(self) -> bool:
        """Whether the features are a sparse matrix, which is used as it is."""

    def count_units(self) -> int:
        """Return the number of units, rows or distinct ids; public."""

    def count_sizes(self, classes: tuple[Any, ...] | None) -> Floats:
        """Return the number of ids by the logarithm of their number of usable rows; **private**.

        A row is usable if it has a label, that of a class if classes are given.
        """

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:
        """Fix which usable rows each unit contributes; called once, after `count_units`."""

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Code labels and groups; rows whose label is no class have no weight in all later sums."""

    def count_values(self, names: tuple[str, ...]) -> dict[str, ValueCounts]:
        """Return the distinct values of sensitive columns and of `LABEL`, with their weights; **private**."""

    def count_ranges(self, formats: Mapping[str, CellFormat]) -> dict[str, RangeCounts]:
        """Return the range cells and text values of features, with their weights; **private**."""

    def bin_weights(self, grids: tuple[Grid, ...]) -> list[Floats]:
        """Code the features and return the weight of the rows of each bin, by column; **private**."""

    def engine(self, basis: Basis | None, columns: Mapping[str, ColumnDeclaration], config: TrainingConfig) -> Any:
        """Return the engine of the training steps."""

    def select(self, sample: KeyedSample) -> Any:
        """Return a sample as the engine takes it; **private**."""


@dataclass(eq=False)
class Session:
    """A fit in stages; `run` goes through all of them."""

    declarations: Declarations
    rows: RowSource
    config: TrainingConfig
    epsilon: float | None  # None trains without privacy
    delta: float
    neighbours: str
    streams: RandomStreams
    ledger: Ledger | None = None  # None opens one for this fit
    other_events: tuple[Event, ...] = ()  # releases of the same rows outside this fit that the budget has to cover
    data_name: str = "training rows"
    purpose: str = "fit"  # what the ledger calls the plan
    on_release: Callable[[], object] | None = None  # after each release outside the steps: `state` has then more
    on_start: Callable[[], object] | None = None  # before the first step
    # what each release outside the steps returned, by its name in the plan; a stage that finds its own releases nothing
    released: dict[str, Any] = field(init=False, default_factory=dict)
    plan: Plan = field(init=False)
    admission: Admission = field(init=False)
    max_rows: int = field(init=False, default=1)
    units: Units = field(init=False)
    classes: tuple[Any, ...] = field(init=False, default=())
    domain: Domain | None = field(init=False, default=None)
    compiled: CompiledConstraints | None = field(init=False, default=None)
    grids: tuple[Grid, ...] = field(init=False, default=())
    basis: Basis | None = field(init=False, default=None)
    engine: Any = field(init=False)
    loop: Loop | None = field(init=False, default=None)
    history: History | None = field(init=False, default=None)
    shift: Shift | None = field(init=False, default=None)
    certificate: Certificate | None = field(init=False, default=None)
    found: list[str] = field(init=False, default_factory=list)
    _state: Mapping[str, Any] | None = field(init=False, default=None)

    def run(self, on_step: OnStep | None = None) -> None:
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

    # --------------------------------------------------------------- plan, admit: before rows are read

    def declare_and_plan(self) -> None:
        """Count the units, make the plan and have it admitted, unless that is done."""
        if not hasattr(self, "plan"):
            self.plan_units()
        if not hasattr(self, "admission"):
            self.admit()

    def plan_units(self) -> None:
        """Count the units and make the plan; nothing is released."""
        self.plan = self.make_plan(self.rows.count_units())

    def make_plan(self, n_units: int) -> Plan:
        """Return the plan of this fit, from declarations and the number of units."""
        declared = self.declarations
        facts = PublicFacts(
            n_units=n_units,
            n_discovered=len(self.undeclared()),
            n_unbounded=len(self._undeclared_columns()),
            statistics_norm=self._statistics_norm(self._log_cells(n_units)),
            constrained=bool(declared.constraints),
            find_rows_per_id=declared.finds_rows_per_id,
            corrected=self.config.correction and self.config.rates == "hard",
        )
        return plan_for(
            facts,
            self.config,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            unit=declared.privacy_unit,
            other_events=self.other_events,
        )

    def undeclared(self) -> tuple[str, ...]:
        """Return the label and the sensitive columns whose values must be found."""
        label = (LABEL,) if self.declarations.classes is None else ()
        return (*label, *self.declarations.undeclared_groups(self.rows.group_names))

    def _undeclared_columns(self) -> tuple[str, ...]:
        if self.rows.sparse:
            return ()
        return tuple(name for name in self.rows.names if not self.declarations.columns[name].complete)

    def _resolution(self, n_units: int) -> float:
        return defaults.resolution(n_units, self.epsilon, self.delta)

    def _log_cells(self, n_units: int) -> int:
        if self.declarations.model != "additive":
            return 0
        declared = self.declarations.columns
        continuous = sum(declared[name].values is None for name in self.rows.names)
        return defaults.logarithmic_cells(self._resolution(n_units), n_units, continuous)

    def _statistics_norm(self, log_cells: int) -> float:
        if self.rows.sparse:
            return 0.0
        declared = self.declarations.columns
        return math.sqrt(sum(declared[name].norm_squared(log_cells) for name in self.rows.names))

    def admit(self) -> None:
        """Record the whole plan, or refuse it before any row is read."""
        planned = self.plan.events or {TRAINING: UnprotectedEvent("training without noise")}
        self.admission = self.open_ledger().admit(
            planned, purpose=self.purpose, data=self.data_name, unit=self.plan.unit
        )

    def open_ledger(self) -> Ledger:
        """Return the ledger of this fit; one with the budget as its cap is opened unless it was given."""
        if self.ledger is None:
            cap = None if self.epsilon is None else Budget(self.epsilon, self.delta)
            self.ledger = Ledger(cap=cap, adaptive=False, neighbours=self.neighbours, unit=self.plan.unit)
        return self.ledger

    # ------------------------------------------------------------------- bound, discover, prepare

    @np.errstate(all="ignore")
    def bound_units(self) -> None:
        """Fix which rows each unit contributes: rows with a label, that of a class if classes are declared."""
        declared = self.declarations

        def release() -> int:
            mechanism = self.plan.gaussian(ROWS_PER_ID, 1.0)
            return rows_per_id(self.rows.count_sizes(declared.classes), mechanism, self.streams.preparation)

        if declared.finds_rows_per_id:
            self.max_rows = int(self._once(ROWS_PER_ID, release))
            self.found.append(rows_per_id_words(self.max_rows))
        elif declared.unit == "id":
            self.max_rows = declared.rows_per_id or 1
        self.units = self.rows.bound(self.max_rows, declared.weighting, declared.classes)

    @np.errstate(all="ignore")
    def discover(self) -> None:
        """Find undeclared classes and group values, and compile the constraints."""
        declared, missing = self.declarations, self.undeclared()
        named = named_values(declared.constraints)

        def release() -> dict[str, tuple[Any, ...]]:
            return release_values(
                self.rows.count_values(missing),
                *self.plan.threshold(DISCOVERY),
                self.streams.preparation,
                named={**(named.columns or {}), LABEL: named.classes},
                step=self.units.step,
                max_rows=self.max_rows,
            )

        found: dict[str, tuple[Any, ...]] = self._once(DISCOVERY, release) if missing else {}
        for name, values in found.items():
            what = "the classes" if name == LABEL else f"the values of {name!r}"
            self.found.append(f"{what}: {_shown(values)}")
        self.classes = tuple(found[LABEL] if declared.classes is None else declared.classes)
        if len(self.classes) < 2:
            return
        self.domain = declared.domain(self.classes, self.rows.group_names, found)
        self.compiled = self._compile(self.domain, allow_empty=bool(missing))
        self.rows.use_domain(self.domain, self.compiled)

    def _compile(self, domain: Domain, *, allow_empty: bool) -> CompiledConstraints | None:
        """Return the compiled constraints; warn if the budget is too small for a useful certificate of them.

        The warning depends on public and released facts only.
        """
        if not self.declarations.constraints:
            return None
        compiled = compile_constraints(self.declarations.constraints, domain, allow_empty=allow_empty)
        lost = undecidable(compiled, self.plan, self.config.tolerance)
        if lost and CERTIFICATE not in self.released:
            warnings.warn(lost, CertificateWarning, stacklevel=3)
        return compiled

    @np.errstate(all="ignore")
    def prepare(self) -> None:
        """Find undeclared columns' types and ranges, release column histograms and build the basis."""
        if self.rows.sparse:
            return
        columns, missing = self.declarations.columns, self._undeclared_columns()
        log_cells = self._log_cells(self.plan.n_units)

        def release_ranges() -> dict[str, Grid]:
            formats = {name: columns[name].cell_format for name in missing}
            return release_grids(
                self.rows.count_ranges(formats),
                formats,
                *self.plan.threshold(RANGES),
                self.streams.preparation,
                log_cells,
                step=self.units.step,
                max_rows=self.max_rows,
            )

        grids: dict[str, Grid] = {}
        if missing:
            grids = self._once(RANGES, release_ranges)
            self.found.append("types, ranges and values of " + _shown(missing))
        self.grids = tuple(
            grids[name] if name in grids else columns[name].grid(name, log_cells) for name in self.rows.names
        )
        mechanism = self.plan.gaussian(STATISTICS, self.plan.statistics_norm, self.units.step)

        def release_histograms() -> Floats:
            totals = self.rows.bin_weights(self.grids)
            private = [grid.histogram(part) for grid, part in zip(self.grids, totals, strict=True)]
            return mechanism.release(np.concatenate(private), self.streams.preparation)

        released = self._once(STATISTICS, release_histograms)
        self.histograms = np.split(released, np.cumsum([grid.n_counts for grid in self.grids])[:-1])
        self.statistics_noise = mechanism.standard_deviation
        n_continuous = sum(isinstance(grid, ContinuousGrid) for grid in self.grids)
        self.basis = build_basis(
            self.grids,
            self.histograms,
            self.statistics_noise,
            float(self.plan.n_units),
            self.config.spread or defaults.spread(self._resolution(self.plan.n_units), n_continuous),
            cells=self.declarations.model == "additive",
        )

    # ------------------------------------------------------------------------------------ train

    @np.errstate(all="ignore")
    def bind(self) -> None:
        """Make the engine and the loop, and go on from a state that was restored."""
        plan = self.plan
        optimizer, clip = self._make_engine()
        gradient = plan.gradient_mechanism(clip, self.engine.slack(self.most_rows))
        counts = plan.histogram_mechanism(self.engine.count_step)
        dual = dual_update(self.compiled, plan, self.config, counts.standard_deviation)
        like = getattr(self.engine, "parameters", None)  # of a network: sums are released as its tensors
        self.loop = Loop(
            self.engine, optimizer, dual, self._total(gradient, like), self._total(counts), clip, plan.expected_units
        )
        self.history = History.of(self.loop, plan.steps)
        if self._state is not None and self._state["loop"] is not None:
            self._go_on(self._state)

    def _make_engine(self) -> tuple[Optimizer, float]:
        """Make the engine; return what moves its parameters, and the clip."""
        plan, config = self.plan, self.config
        engine = self.engine = self.rows.engine(self.basis, self.declarations.columns, config)
        noise = None if plan.training is None else plan.training.gradient_noise
        length = math.sqrt(float(engine.mean_squares.sum()) / engine.n_outputs)
        clip, rate = defaults.step_sizes(noise, length, plan.expected_units, config.clip, self.compiled is not None)
        penalty = config.group_penalty / math.sqrt(plan.n_units)
        optimizer = GradientDescent(
            np.zeros(engine.n_parameters),
            config.learning_rate or rate,
            plan.steps,
            momentum=config.momentum,
            schedule=config.schedule,
            l2=defaults.l2(plan.n_units, self.compiled is not None) if config.l2 is None else config.l2,
            penalised=engine.penalised,
            groups=GroupPenalty.of(engine.cells, engine.mean_squares, penalty) if engine.cells.any() else None,
        )
        return optimizer, clip

    def _go_on(self, state: Mapping[str, Any]) -> None:
        assert self.loop is not None and self.history is not None  # noqa: S101, PT018 - bound before
        self.loop.restore(state["loop"])
        self.history.restore(state["history"])

    @property
    def most_rows(self) -> float:
        """Bound on the rows of a sample that is exceeded with a probability below 1e-20."""
        return self.plan.most_rows_share * self.units.n_rows

    def samples(self, steps: int) -> Iterator[Any]:
        """Yield Poisson samples of units, each with a fresh secret key, as the engine takes them; **private**."""
        drawn = keyed_samples(self.plan.n_units, self.plan.sampling_rate, steps, self.streams.sampling)
        return map(self.rows.select, drawn)

    def train(self, on_step: OnStep | None = None) -> None:
        """Run the steps that remain."""
        for record in self.steps():
            if on_step is not None:
                on_step(record)

    def steps(self) -> Generator[StepRecord, None, None]:
        """Take the steps that remain one by one; steps that may have been released are not taken again."""
        assert self.loop is not None and self.history is not None  # noqa: S101, PT018 - bound before
        left = self.plan.steps - self.loop.optimizer.done
        if self.plan.private:
            left = min(left, self.admission.left(TRAINING))
            self.loop.optimizer.done = self.plan.steps - left
        phase = self.admission.phase(TRAINING) if self.plan.private and left else nullcontext()
        with phase as recorded:
            before = None if recorded is None else recorded.step
            for record in self.loop.run(self.samples(left), self.streams, before):
                self.history.add(record)
                yield record

    # ------------------------------------------------------------------------------ correct, certify

    @np.errstate(all="ignore")
    def correct(self) -> None:
        """Release the margins of the trained model; if it clearly misses a constraint, shift the score of a class."""
        if not self.plan.corrected or self.compiled is None or self.loop is None or self._lost(CORRECTION):
            return
        dual, parameters = self.loop.dual, self.loop.optimizer.parameters
        assert dual is not None  # noqa: S101 - there are constraints
        released = self._counts(CORRECTION, lambda: self.engine.margin_counts(parameters, dual.largest_class))
        self.shift = choose_shift(
            released,
            self.compiled,
            plan_stds(self.plan, CORRECTION),
            towards=dual.largest_class,
            cell_totals=dual.cell_sizes()[0],
            tolerance=self.config.tolerance,
        )

    @np.errstate(all="ignore")
    def certify(self) -> None:
        """Release the counts of the returned model and judge the constraints."""
        if self.compiled is None or self.loop is None or self._lost(CERTIFICATE):
            return
        parameters = self.parameters
        released = self._counts(CERTIFICATE, lambda: self.engine.counts(parameters))
        dual, shift = self.loop.dual, self.shift
        # training has measured the sizes of cells as well, with noise of its own; they shorten the intervals
        sizes, sizes_std = dual.cell_sizes() if dual is not None and dual.step and self.plan.private else (None, 0.0)
        self.certificate = judged(
            released,
            self.compiled,
            self.plan,
            cell_totals=sizes,
            cell_totals_std=sizes_std,
            tolerance=self.config.tolerance,
            notes=() if shift is None else (shift.describe(self.compiled),),
        )

    def _counts(self, name: str, count: Callable[[], tuple[Floats, Floats]]) -> Floats:
        """Return released counts of predictions, as one vector (`packed_tables`)."""

        def release() -> Any:
            mechanism = self._total(self.plan.gaussian(name, COUNT_SENSITIVITY, self.units.step))
            return mechanism.release(packed_tables(*count()), self.streams.preparation)

        released: Floats = self._once(name, release)
        return released

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
        """Return the privacy statement of this fit, for the relation of the fit: its ledger may have another."""
        facts: dict[str, Any] = {"neighbours": self.neighbours, "found": tuple(self.found), "outside": outside}
        return self.admission.statement(self.delta, n_units=self.plan.n_units, public=public, **facts)

    @property
    def unused(self) -> dict[str, str]:
        """Columns that got no weight, with the reason, judged from released values."""
        return {grid.name: grid.reason for grid in self.grids if isinstance(grid, UnusedGrid)}

    # ----------------------------------------------------------------- releases on record, stop and go on

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the released values of a name; record the release and compute them unless they are there."""
        if name not in self.released:
            if self.plan.private:
                self.admission.release(name)
            self.released[name] = compute()
            if self.on_release is not None:
                self.on_release()
        return self.released[name]

    def _left(self, name: str) -> int:
        return self.admission.left(name)

    def _lost(self, name: str) -> bool:
        """Return whether an interrupted process has made a release, which is then not made again."""
        return name not in self.released and self.plan.private and self._left(name) == 0

    def _total(self, mechanism: Mechanism, like: Any = None) -> Release:  # noqa: ARG002 - for tensors
        """Return the mechanism of a sum over all units, if this session holds some of them only."""
        return mechanism

    def state(self) -> dict[str, Any]:
        """Return what a later session needs to go on: released values only, no rows, no random state."""
        return {
            "released": dict(self.released),
            "loop": None if self.loop is None else self.loop.state(),
            "history": {} if self.history is None else self.history.arrays(),
        }

    def restore(
        self, state: Mapping[str, Any] | None, admission: Admission | None, source: str = "the checkpoint"
    ) -> None:
        """Go on from the state in `source` under a plan that is admitted already; before the first stage.

        Releases that the state holds are not made again. Training steps that the ledger counts and the state
        does not have are not taken again either: the learning rate goes on as if they had been. Nothing happens if
        there is neither a state nor an admission.
        """
        if state is None and admission is None:
            return
        if not hasattr(self, "plan"):
            self.plan_units()
        held: Mapping[str, Any] = {"released": {}, "loop": None, "history": {}} if state is None else state
        done = 0 if held["loop"] is None else held["loop"]["done"]
        if type(done) is not int or not 0 <= done <= self.plan.steps:
            raise InvalidInput(f"{source} is no sound checkpoint: its steps are not; take an older copy")
        if admission is not None and self.plan.private and admission.events != tuple(self.plan.events.values()):
            raise InvalidInput(
                f"{source} belongs to another run: its planned releases differ; give the rows and settings that the run "
                "began with, to the same version of ratewise, or train anew"
            )
        counted = admission.released if admission is not None and self.plan.private else {}
        if admission is None or counted.get(TRAINING, done) < done:
            raise InvalidInput(
                f"the ledger does not count what {source} holds, so it is an older copy; put the newest ledger back, or "
                "train anew"
            )
        later = (TRAINING, CORRECTION, CERTIFICATE)
        lost = any(count and name not in (*later, *held["released"]) for name, count in counted.items())
        if lost or (counted.get(TRAINING) and held["loop"] is None):
            raise BudgetExceeded(
                "the run was killed while it prepared the features: what that cost is spent, and its plan does "
                "not pay for it again; train anew with a budget of its own"
            )
        self.released = dict(held["released"])
        self.admission, self.ledger = admission, admission.ledger
        self._state = held


def _shown(values: tuple[Any, ...]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return f"{shown} and {len(values) - 8} more" if len(values) > 8 else shown or "none"
