"""Training in a run folder, and going on after a stop."""

from __future__ import annotations

import difflib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ratewise import _validate
from ratewise._files import Path, read_bytes, sound, state_from_bytes, state_to_bytes, write_whole
from ratewise.accounting import Ledger, PrivacyStatement
from ratewise.constraints.compiled import named_values
from ratewise.constraints.domain import list_values
from ratewise.data.schema import Schema
from ratewise.data.table import named_columns
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.mechanisms.randomness import USED_SEEDS
from ratewise.models.fitted import unused_words
from ratewise.preprocessing.discovery import discovery_threshold
from ratewise.preprocessing.grids import ContinuousGrid, Grid
from ratewise.runs.folder import RunFolder
from ratewise.runs.settings import Settings
from ratewise.training import plan as names
from ratewise.training.certificate import Certificate
from ratewise.training.loop import StepRecord
from ratewise.training.session import LABEL, Session

if TYPE_CHECKING:
    from ratewise.estimators.classifier import RateConstrainedClassifier

KIND = "checkpoint"
CHECKPOINT_EVERY = 20
SECONDS_APART = 0.5  # between checkpoints of a run with quick steps
_COUNTS = (names.STATISTICS, names.CORRECTION, names.CERTIFICATE)
_NEARLY_ALL = 0.95  # share of a column in an outermost cell from which its declared bounds are doubted
_NEARLY_ALL_ZERO = 0.99  # the same where the cell contains zero, which many columns hold nearly always


# -------------------------------------------------------------------------------------- checkpoints


def write_checkpoint(path: Path, state: Mapping[str, Any], run: str) -> None:
    """Write the state of a session (`Session.state`) of the run with this id, in one step."""
    write_whole(path, state_to_bytes(KIND, {**state, "run": run}))


def read_checkpoint(path: Path, run: str | None = None) -> dict[str, Any]:
    """Return the state that `write_checkpoint` wrote; `run` is the id of the run that it must belong to."""
    state = state_from_bytes(read_bytes(path), KIND, path)
    if run is not None and state.get("run") != run:
        raise InvalidInput(f"{str(path)!r} is the checkpoint of another run; put this run's own back, or train anew")
    with sound(path):
        released, loop = state["released"], state["loop"]
        counts = [released[name] for name in _COUNTS if name in released]
        moved = [] if loop is None else [loop["parameters"], loop["velocity"], *state["history"].values()]
        moved += [] if loop is None or loop["dual"] is None else [v for n, v in loop["dual"].items() if n != "variance"]
        if not all(isinstance(part, np.ndarray) and np.all(np.isfinite(part)) for part in (*counts, *moved)):
            raise ValueError("numbers that are not finite")
        if loop is not None and (type(loop["done"]) is not int or loop["done"] < 0 or moved[0].shape != moved[1].shape):
            raise ValueError("parts that do not fit together")
        if not all(isinstance(grid, Grid) for grid in released.get(names.RANGES, {}).values()):
            raise TypeError("no grids")
    return state


# --------------------------------------------------------------------------- before anything is released


def session_for(
    frame: Any, settings: Settings, schema: Schema | None = None, seed: int | None = None
) -> tuple[RateConstrainedClassifier, Session]:
    """Return a classifier and the session that trains it on the rows of a frame, after all checks.

    Nothing is released. What the schema leaves open is found privately; a seed is for made-up data only.
    """
    classifier, session = _session(frame, settings, schema, seed)
    session.plan_units()
    _check_findable(session)
    return classifier, session


def plan_run(n_units: int, settings: Settings, schema: Schema) -> names.Plan:
    """Return the plan of a run on so many rows or ids of a table with this schema; nothing is read."""
    from pandas import DataFrame

    columns = {settings.label, *schema.columns, *settings.groups, settings.privacy_id} - {None}
    delta = settings.delta or min(1e-5, 0.5 / n_units)
    _, session = _session(DataFrame(dict.fromkeys(columns, (0, 1))), replace(settings, delta=delta), schema)
    return session.make_plan(n_units)


def _session(
    frame: Any, settings: Settings, schema: Schema | None, seed: int | None = None
) -> tuple[RateConstrainedClassifier, Session]:
    from ratewise.estimators.classifier import RateConstrainedClassifier, session_of

    if schema is not None and schema.label != settings.label:
        raise InvalidInput(f"label is {settings.label!r}, but the schema's label is {schema.label!r}")
    groups, features, person = _roles(named_columns(frame, "the table"), settings, schema)
    same = ("epsilon", "delta", "neighbours", "model", "config", "rows_per_id", "id_weighting")
    classifier = RateConstrainedClassifier(
        settings.declared or None,
        classes=settings.declared_classes,
        schema=schema,
        random_state=seed,
        **{name: getattr(settings, name) for name in same},
    )
    session = session_of(
        classifier,
        frame[features],
        frame[settings.label],
        sensitive_features={name: frame[name] for name in groups} or None,
        privacy_ids=None if person is None else frame[person],
    )
    return classifier, session


def _roles(
    present: Mapping[str, Any], settings: Settings, schema: Schema | None
) -> tuple[list[str], list[str], str | None]:
    """Return groups, features and privacy id; a column that is not there is an `InvalidInput`."""
    groups = [*dict.fromkeys((*settings.groups, *named_values(settings.declared).columns))]
    person, features = settings.privacy_id, list(settings.features)
    if schema is not None:
        person, features = person or schema.privacy_id, features or [*schema.columns]
    if not features:
        used = {settings.label, *groups, *settings.leave_out, person}
        features = [name for name in present if name not in used]
    asked = (settings.label, *groups, *features, *settings.leave_out, *(() if person is None else (person,)))
    absent = [name for name in dict.fromkeys(asked) if name not in present]
    if absent:
        close = difflib.get_close_matches(absent[0], present, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidInput(
            f"the table has no column {list_values(absent)}; its columns are {list_values(present)}{hint}"
        )
    if person is not None and person in (*features, *groups):
        raise InvalidInput(f"column {person!r} is the privacy id and cannot be a feature or a group")
    if not features:
        raise InvalidInput("no column is left to predict from; name some with --features")
    return groups, features, person


def _check_findable(session: Session) -> None:
    """Raise if the rows cannot be enough to find two values of what is not declared, by public numbers."""
    event: Any = session.plan.events.get(names.DISCOVERY)
    missing = session.undeclared()
    if event is None or not missing:
        return
    least = discovery_threshold(float(event.noise), float(event.delta), len(missing))
    if session.plan.n_units >= 2 * least:
        return
    remedies = [
        "--classes no,yes" if name == LABEL else f"the values of {name!r} in a --schema FILE" for name in missing
    ]
    raise InvalidInput(
        f"{session.plan.n_units:,} rows or ids are too few to find classes and groups at this budget: a value is found "
        f"if about {least:,.0f} have it. Nothing was spent. Declare what is public: {'; '.join(remedies)} "
        "(ratewise schema drafts one); or use more rows or a larger --epsilon"
    )


# ------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Watch:
    """Callbacks of a run, which see released values only.

    `on_start` is called once before the first step with the session; `on_step` after each step with its
    `StepRecord`: an exception stops the run between two steps.
    """

    on_start: Callable[[Session], object] = lambda _: None
    on_step: Callable[[StepRecord], object] = lambda _: None


@dataclass(frozen=True)
class Result:
    """What a run left behind; `messages` say what the user should check, judged from released values."""

    folder: RunFolder
    statement: PrivacyStatement
    certificate: Certificate | None
    steps: int
    messages: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The certificate in one line."""
        if self.certificate is not None:
            return self.certificate.summary
        if self.folder.settings.constraints:
            return "The constraints cannot be judged: cannot tell (see the messages)."
        return "No constraints were requested."


def train_run(
    folder: RunFolder,
    classifier: RateConstrainedClassifier,
    session: Session,
    *,
    watch: Watch | None = None,
    every: int = CHECKPOINT_EVERY,
) -> Result:
    """Train, or go on training, the run of a folder with what `session_for` returned for its rows.

    There are `every` steps between two checkpoints; quick steps are written at most twice a second.
    """
    from ratewise.estimators.classifier import keep_session

    _validate.count(checkpoint_every=every)
    with folder.alone():
        if RunFolder.open(folder.path).finished:
            raise InvalidInput(f"the run in {str(folder.path)!r} is finished; there is nothing to go on with")
        ledger = folder.ledger()
        if session.plan.private:
            USED_SEEDS.add(ledger, session.streams)
        _connect(folder, session, ledger)
        _train(folder, session, watch or Watch(), every)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RatewiseWarning)  # the messages of the result include it
            keep_session(classifier, session, tuple(folder.description["outside"]))
        folder.finish(classifier)
        steps = len(classifier.history_.get("step", ()))
        messages = tuple(_messages(classifier, session))
        return Result(folder, classifier.privacy_, classifier.certificate_, steps, messages)


def admit_run(folder: RunFolder, session: Session, ledger: Ledger) -> None:
    """Admit the plan of a run to a ledger before any run of that ledger releases something."""
    session.purpose, session.data_name, session.ledger = folder.purpose, folder.description["data_name"], ledger
    session.admit()


def _connect(folder: RunFolder, session: Session, ledger: Ledger) -> None:
    """Give the session its ledger, or what an earlier process released under it."""
    session.purpose, session.data_name, session.ledger = folder.purpose, folder.description["data_name"], ledger
    if session.plan.n_units != folder.description["units"]:
        raise InvalidInput(
            f"the table has {session.plan.n_units} rows or ids, the run was planned for "
            f"{folder.description['units']}; give the table that the run began with"
        )
    path = folder.checkpoint_path
    state = read_checkpoint(path, folder.description["id"]) if path.exists() else None
    session.restore(state, folder.admission(ledger), "checkpoint.ratewise")


def _train(folder: RunFolder, session: Session, watch: Watch, every: int) -> None:
    last = -math.inf

    def save() -> None:
        nonlocal last
        write_checkpoint(folder.checkpoint_path, session.state(), folder.description["id"])
        if session.loop is not None and session.loop.optimizer.done:
            last = time.monotonic()  # the first steps are written soon, whatever the clock says

    def on_start() -> None:
        save()
        watch.on_start(session)

    def on_step(record: StepRecord) -> None:
        try:
            watch.on_step(record)
        except BaseException:
            save()  # between two steps: all of it is released
            raise
        due = record.step % every == 0 and time.monotonic() - last >= SECONDS_APART
        if due or record.step == session.plan.steps:
            save()

    session.on_release, session.on_start = save, on_start
    session.run(on_step)
    save()  # a kill while the results are written loses no step


# --------------------------------------------------------------- what to check, from released values


def constant_words(classifier: RateConstrainedClassifier) -> str:
    """Return what a classifier predicts for everyone, why, and what would help; "" if it is no constant."""
    if classifier.model_ is not None:
        return ""
    return (
        f"The model predicts {classifier.classes_[0]!s} for everyone: training found fewer than two classes that are "
        "frequent enough at its budget. Declare the classes (--classes no,yes or a --schema), or use more rows "
        "or a larger --epsilon"
    )


def _messages(classifier: RateConstrainedClassifier, session: Session) -> Iterator[str]:
    if session.history is not None and session.history.every == 1:
        lost = session.plan.steps - len(session.history.arrays()["step"])
        if lost > 0:
            yield (
                f"{lost} of {session.plan.steps} steps were not taken: they may have been released before the run "
                "was interrupted, and a step is never released twice"
            )
    if session.loop is None:
        yield constant_words(classifier)
    if session.compiled is not None and session.certificate is None:
        yield (
            "the certificate was released before the run was interrupted, and its values are lost: the "
            "constraints are not judged; evaluate the run on other rows"
        )
    histograms = zip(session.grids, session.histograms, strict=True) if session.basis is not None else ()
    rows = (float(np.sum(counts[: grid.families[0][1]])) for grid, counts in histograms if grid.families)
    counted = max(rows, default=math.inf)
    if counted < 0.5 * session.plan.n_units:
        said = "spell the classes as in the table"
        if session.declarations.classes is None:
            said = "the others are too rare to be found; take another label, or cut its values into a few ranges"
        yield (
            f"about {max(counted, 0.0):,.0f} of {session.plan.n_units:,} rows or ids have a label among the classes "
            f"(released counts): {said}"
        )
    for name, share, grid in _doubtful_bounds(session):
        yield (
            f"{share:.0%} of column {name!r} lie at one end of the declared bounds {grid.lower:g} to {grid.upper:g} "
            "or beyond it (released counts): check these bounds in the schema, or leave them out"
        )
    yield from unused_words(session.unused)


def _doubtful_bounds(session: Session) -> Iterator[tuple[str, float, ContinuousGrid]]:
    """Yield declared columns nearly all of whose values are in an outermost cell of the bounds or outside.

    Judged from the released histograms: values outside the bounds are counted in the outermost cells.
    """
    for grid, counts in zip(session.grids, session.histograms, strict=True) if session.basis else ():
        if not isinstance(grid, ContinuousGrid) or not session.declarations.columns[grid.name].complete:
            continue
        cells = np.asarray(counts[: grid.equal_cells])
        total = float(cells.sum())
        if total <= max(10.0 * session.statistics_noise * math.sqrt(grid.equal_cells), 0.0):
            continue
        width = (grid.upper - grid.lower) / grid.equal_cells
        least = _NEARLY_ALL_ZERO if grid.lower <= 0.0 < grid.lower + width else _NEARLY_ALL
        for share, enough in ((float(cells[0]) / total, least), (float(cells[-1]) / total, _NEARLY_ALL)):
            if share >= enough:
                yield grid.name, min(share, 1.0), grid
