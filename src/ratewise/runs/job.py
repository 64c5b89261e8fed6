"""Training a run folder from a table, and going on with one that was stopped.

What is released, in order and each booked before it happens: bounds of numbers that the schema leaves open
(`ratewise.bounds`), means and deviations of features (`ratewise.standardisation`), and per training step the
noisy gradient and histogram (`ratewise.training`). The folder holds these and what follows from them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.accounting import Event, Ledger, PrivacyStatement
from ratewise.accounting.book import Release
from ratewise.bounds import BoundsPlan, bounds_plan
from ratewise.compiled import CompiledConstraints
from ratewise.defaults import AUTO, PublicFacts, curves_pay, plan_for
from ratewise.encoding import TableEncoder, curved_features, encoded_sparsely, feature_kinds
from ratewise.enforceability import Doubt, doubts
from ratewise.exceptions import BudgetExceeded, InvalidInput, PrivacyLeakWarning, RatewiseWarning
from ratewise.frames import chosen_columns, named_columns
from ratewise.kinds import kinds_by_name
from ratewise.model_files import TableModel
from ratewise.partition import compile_constraints
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams, warn_of_seed
from ratewise.reading import PrivateRows, read_labels, read_rows
from ratewise.runs.folder import RunFolder
from ratewise.runs.resumable import ResumableFitting, booked_steps, read_checkpoint, write_checkpoint
from ratewise.runs.settings import CUSTOMARY_DELTA, Settings
from ratewise.scaling import Scaling
from ratewise.schema import Schema
from ratewise.seeds import USED_SEEDS
from ratewise.table_preparation import group_column, prepare, provisional
from ratewise.tables import needed_columns
from ratewise.tails import NUMBER
from ratewise.training import StepRecord

CHECKPOINT_EVERY = 20
SECONDS_APART = 0.5  # between checkpoints of a run with quick steps


@dataclass(frozen=True)
class Watch:
    """Who looks at a run while it goes on; everything shown is released.

    Parameters
    ----------
    on_start : callable
        Called once before the first step, with the plan, the compiled constraints and the ledger.
    on_step : callable
        Called after each step with its `StepRecord`; an exception stops the run between two steps.
    """

    on_start: Callable[[Plan, CompiledConstraints | None, Ledger, int], object] = lambda *_: None
    on_step: Callable[[StepRecord], object] = lambda _: None


def facts_of(schema: Schema, settings: Settings, n_rows: int) -> PublicFacts:
    """Return what is known without reading rows; constraints that cannot be held are refused here."""
    compiled = compile_constraints(settings.declared, schema.domain)
    curved = _curved(schema, settings, n_rows)
    return PublicFacts(
        n_rows=n_rows,
        n_features=schema.n_features + len(curved),
        n_classes=len(schema.classes),
        constraints=compiled if len(compiled) else None,
        n_kinds=len(set(feature_kinds(schema))),
        bounded=True,
        sparse=encoded_sparsely(schema),
        n_numbers=feature_kinds(schema).count(NUMBER),
        n_curves=len(curved),
    )


def bounds_of(schema: Schema, settings: Settings, n_rows: int) -> BoundsPlan:
    """Return the releases that find bounds of numbers which the schema leaves open; usually none."""
    _check(settings, n_rows)
    return bounds_plan(
        settings.epsilon, settings.delta, settings.neighbours, n_rows=n_rows, n_columns=len(schema.unbounded)
    )


def plan_run(facts: PublicFacts, settings: Settings, besides: Iterable[Event] = ()) -> Plan:
    """Return the plan of a run, from public facts; `besides` are other releases in the same budget."""
    _check(settings, facts.n_rows, warn=True)
    return plan_for(
        facts,
        epsilon=settings.epsilon,
        delta=settings.delta,
        neighbours=settings.neighbours,
        histogram=settings.histogram,
        histogram_share=settings.histogram_share,
        sampling_rate=settings.sampling_rate,
        steps=settings.steps,
        clip=AUTO if settings.clip is None else settings.clip,
        row_norm=AUTO if settings.row_norm is None else settings.row_norm,
        standardise=AUTO if settings.standardise is None else settings.standardise,
        tails=settings.tails,
        curves=AUTO if settings.curves is None else settings.curves,
        learning_rate=settings.learning_rate,
        schedule=settings.schedule,
        momentum=settings.momentum,
        averaging=settings.averaging,
        temperature=settings.temperature,
        rates=settings.rates,
        l1=settings.l1,
        l2=settings.l2,
        noise=settings.noise,
        besides=besides,
    )


def _check(settings: Settings, n_rows: int, *, warn: bool = False) -> None:
    """Refuse a delta above 1/n, or warn if it is the customary one."""
    _validate.count(rows=n_rows)
    if settings.epsilon is None or settings.delta <= 1 / n_rows:
        return
    advice = f"delta is {settings.delta:g}, above 1/n = {1 / n_rows:.3g} for {n_rows} rows"
    if settings.delta > CUSTOMARY_DELTA:
        raise InvalidInput(f"{advice}, which permits publishing a whole row; use a delta well below 1/n")
    if warn:
        warnings.warn(f"{advice}; a delta below 1/n says more", RatewiseWarning, stacklevel=3)


def schema_for(frame: Any, settings: Settings, schema: Schema | None) -> Schema:
    """Return the schema to train by: the given one, if it fits the settings, or one read off the data."""
    if schema is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyLeakWarning)  # the caller says it in its own words
            return Schema.draft(
                frame, label=settings.label, groups=settings.groups, leave_out=settings.leave_out
            )
    if schema.label != settings.label:
        raise InvalidInput(f"label is {settings.label!r}, but the schema's label is {schema.label!r}")
    for name in settings.groups:
        if name not in schema.groups:
            raise InvalidInput(
                f"group {name!r} is not among the schema's groups: {', '.join(schema.groups) or 'none'}"
            )
    return schema


@dataclass(frozen=True)
class Result:
    """What a run left behind, beside its folder."""

    folder: RunFolder
    statement: PrivacyStatement
    steps: int
    doubts: tuple[Doubt, ...]


def train_run(
    folder: RunFolder,
    frame: Any,
    *,
    rows: PrivateRows | None = None,
    seed: int | None = None,
    watch: Watch | None = None,
    every: int = CHECKPOINT_EVERY,
) -> Result:
    """Train, or go on training, the run of a folder on its rows.

    Parameters
    ----------
    folder : RunFolder
        Fresh, or stopped at any moment.
    frame : data frame
        The rows; the same as before, if the run goes on.
    rows : PrivateRows, optional
        What `read_run_rows` made of the frame, if that was done already.
    seed : int, optional
        For made-up data. A run that goes on must not be given the seed it began with.
    watch : Watch, optional
    every : int
        Steps between two checkpoints; quick steps are written down at most twice a second.
    """
    _validate.count(checkpoint_every=every)
    with folder.alone():
        if RunFolder.open(folder.path).finished:
            raise InvalidInput(f"the run in {str(folder.path)!r} is finished; there is nothing to go on with")
        return _train(folder, frame, rows, seed, watch or Watch(), every)


def _train(
    folder: RunFolder, frame: Any, rows: PrivateRows | None, seed: int | None, watch: Watch, every: int
) -> Result:
    settings, plan, schema = folder.settings, folder.plan, folder.schema
    saved = _saved(folder)
    if saved is not None:
        schema = saved["schema"]
    if rows is None or saved is not None:
        rows = read_run_rows(frame, provisional(schema), settings)
    if rows.n_rows != plan.n_rows:
        raise InvalidInput(f"the table has {rows.n_rows} rows, the run was planned for {plan.n_rows}")
    ledger = folder.ledger()
    _refuse_older_book(ledger, folder, plan, saved)
    own = bounds_of(schema, settings, plan.n_rows)
    if saved is None:
        _refuse_without_room(ledger, folder, own, plan)
    streams = RandomStreams.from_seed(seed)
    if plan.private:
        warn_of_seed(seed)
        USED_SEEDS.add(ledger, streams)
    if schema.unbounded:
        schema = _with_bounds(frame, schema, own, streams, ledger, folder)
        rows = read_run_rows(frame, schema, settings)
    scaling = _encoded_bounds(rows.X, _curved(schema, settings, plan.n_rows))
    kinds = feature_kinds(schema)
    fitting = ResumableFitting(
        rows,
        plan,
        ledger,
        streams,
        scaling=scaling,
        kinds=kinds_by_name(kinds, schema.n_features),
        numbers=np.flatnonzero(np.array(kinds) == NUMBER),
        intercept=settings.fit_intercept,
        data_name=folder.description["data_name"],
    )
    fitting.booked_as = folder.booked_as
    fitting.start_from(saved)
    _run(fitting, folder, schema, watch, every)
    return _results(fitting, folder, schema)


def _curved(schema: Schema, settings: Settings, n_rows: int) -> list[int]:
    found = curved_features(schema, settings.curves, settings.standardise is not False)
    width, budget = schema.n_features + len(found), (settings.epsilon, settings.delta, settings.neighbours)
    if settings.curves is None and not curves_pay(n_rows, width, len(schema.classes), *budget):
        return []
    return found


def _encoded_bounds(X: Any, curved: list[int]) -> Scaling:
    """Return the bounds of encoded features, 0 and 1, on which standardising may rely, and what bends."""
    width = X.shape[1]
    origin = "lower" if isinstance(X, np.ndarray) else "zero"
    places = np.array(curved, dtype=np.intp) if curved else None
    return Scaling(np.zeros(width), np.ones(width), origin=origin, curved=places)


def _saved(folder: RunFolder) -> dict[str, Any] | None:
    """Return the released state that the run stopped at, if it was written down."""
    path = folder.checkpoint_path
    return read_checkpoint(path, folder.description["id"]) if path.exists() else None


def _refuse_older_book(ledger: Ledger, folder: RunFolder, plan: Plan, saved: dict[str, Any] | None) -> None:
    """Refuse a book without the steps that the checkpoint has run: it would let them be spent again."""
    done = 0 if saved is None or not plan.private else saved["fields"]["steps_done"]
    if booked_steps(ledger, folder.purpose) < done:
        raise InvalidInput(
            f"{str(ledger.path)!r} does not count the {done} steps that checkpoint.npz has run, so it is an "
            "older copy; put the newest book back, or train anew"
        )


def _refuse_without_room(ledger: Ledger, folder: RunFolder, own: BoundsPlan, plan: Plan) -> None:
    """Refuse a run that starts from nothing unless its book has room for all of it.

    A run that was killed while it prepared the features has spent that, whether or not it was released. In a
    book of its own, whose cap is its budget, it prepares them once more and runs as many steps as still fit.
    """
    mine = folder.booked_as("")
    if not any(isinstance(record, Release) and record.purpose.endswith(mine) for record in ledger.records):
        refuse_over_cap(ledger, (*own.events, *plan.events))
        return
    before = () if plan.preparation is None else plan.preparation.events
    least = (*own.events, *before, *(() if plan.step_event is None else (plan.step_event.with_steps(1),)))
    shared = folder.description["ledger"] is not None
    if least and (shared or ledger.would_exceed(least)):
        raise BudgetExceeded(
            "the run was killed while it prepared the features: what that cost is spent, and the rest of its "
            "budget does not pay for it again; train anew with a budget of its own"
        )


def _with_bounds(
    frame: Any, schema: Schema, own: BoundsPlan, streams: RandomStreams, ledger: Ledger, folder: RunFolder
) -> Schema:
    """Return the schema with released bounds where it has none."""

    def book(event: Event, purpose: str) -> None:
        ledger.book(event, purpose=folder.booked_as(purpose), data=folder.description["data_name"])

    return prepare(frame, schema, own, streams.preparation, book, outside=False).schema


def refuse_over_cap(ledger: Ledger, events: tuple[Event, ...]) -> None:
    """Refuse a run of which not everything fits under the cap of its book: no budget for half a run."""
    if events and ledger.cap is not None and ledger.would_exceed(events):
        raise BudgetExceeded(
            f"the run would pass the cap {ledger.cap} of its ledger, of which {ledger.total_epsilon:.4g} is "
            "spent; nothing was released: lower epsilon, or open a ledger with a larger cap"
        )


def read_run_rows(frame: Any, schema: Schema, settings: Settings) -> PrivateRows:
    """Return the rows, encoded by the schema; what is wrong with them is found here, before any release."""
    declared = settings.declared
    needed = needed_columns(declared)
    groups = tuple(schema.groups) if needed is None else tuple(sorted(needed))
    unknown = [name for name in groups if name not in schema.groups]
    if unknown:
        raise InvalidInput(
            f"the constraints read column {unknown[0]!r}, which is not among the groups "
            f"({', '.join(schema.groups) or 'none'}); name it with --groups"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # said once, by the caller
        X = TableEncoder(schema).fit_transform(frame)
    chosen = chosen_columns(frame, (schema.label, *groups), "the table")
    return read_rows(
        X,
        read_labels(chosen[schema.label], X.shape[0]),
        {name: group_column(schema, name, chosen[name]) for name in groups},
        constraints=declared,
        classes=schema.classes,
        group_values={name: schema.group_values[name] for name in groups},
    )


def _run(fitting: ResumableFitting, folder: RunFolder, schema: Schema, watch: Watch, every: int) -> None:
    last = -math.inf

    def save() -> None:
        nonlocal last
        write_checkpoint(folder.checkpoint_path, fitting, schema, folder.description["id"])
        if fitting.training.steps_done:  # the first steps are written down soon, whatever the clock says
            last = time.monotonic()

    def on_start() -> None:
        save()
        watch.on_start(fitting.plan, fitting.rows.constraints, fitting.ledger, fitting.training.steps_done)

    def on_step(record: StepRecord) -> None:
        try:
            watch.on_step(record)
        except BaseException:
            save()  # between two steps: all of it is released
            raise
        if record.step % every == 0 and time.monotonic() - last >= SECONDS_APART:
            save()

    fitting.run(on_step, on_start)
    save()  # a kill while the results are written loses no step


def _results(fitting: ResumableFitting, folder: RunFolder, schema: Schema) -> Result:
    training, compiled = fitting.training, fitting.rows.constraints
    statement = _statement(fitting, folder)
    model = TableModel(schema, fitting.model, fitting.theta)
    found: tuple[Doubt, ...] = ()
    if compiled is not None and training.multipliers is not None and training.steps_done > 0:
        found = doubts(compiled, training.multipliers, fitting.plan)
    folder.finish(model, statement, fitting.history.arrays(), found)
    return Result(folder, statement, training.steps_done, found)


def _statement(fitting: ResumableFitting, folder: RunFolder) -> PrivacyStatement:
    settings, schema = folder.settings, folder.schema  # as declared: bounds that were found are releases
    public = [f"the number of rows, {fitting.plan.n_rows}", "the columns and their kinds", *schema.public]
    leaks = schema.leaks if settings.epsilon is not None else ()
    return fitting.ledger.statement(
        delta=settings.delta, unit=settings.unit, public=tuple(dict.fromkeys(public)), leaks=leaks
    )


def row_count(frame: Any) -> int:
    """Return the number of rows, which is public."""
    columns = named_columns(frame, "the table")
    if not columns:
        raise InvalidInput("the table has no columns")
    return len(next(iter(columns.values())))
