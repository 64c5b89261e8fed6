"""The ledger: what may be released, admitted before anything is released.

A plan is a list of events that is fixed inside: a fit, an evaluation, a search. It is admitted as a whole or
not at all, and counts from then on, whether or not all of it happens::

    ledger = Ledger(cap=Budget(epsilon=1.0, delta=1e-5))
    plan = ledger.admit({"column statistics": GaussianEvent(20.0), "training": training_event}, purpose="fit")
    plan.release("column statistics")       # raises, or this release may happen
    with plan.phase("training") as phase:
        for batch in batches:
            phase.step()                    # raises, or this step may happen

Guarantees, each of which has a test:

- Whenever the process dies, the file is whole and counts at least every release that was allowed to happen.
- When `admit`, `release` or `step` raises, what it was asked about is not allowed, and the old file is
  intact.
- Everything admitted is, together, within the cap; in adaptive use however the plans were chosen.
- Threads, and processes on one file, add up in one ledger and lose nothing.
- Records contain no clock times: the duration of a run depends on the rows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from ratewise import _validate
from ratewise.accounting import accountant
from ratewise.accounting.accountant import RESERVED_SHARE, PrivacyFilter, gaussian_order
from ratewise.accounting.events import NEIGHBOURS, Budget, Event, PrivacyUnit, as_events, merged
from ratewise.accounting.statement import FIXED_LIST, PrivacyStatement, software_version
from ratewise.accounting.storage import AtomicFile, Header, PlanRecord, Record, Records, ReleaseRecord, read_records
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, LedgerError, RatewiseWarning

STRIDE = 64  # steps that a phase reserves at a time at first; later, a quarter of the steps that it has run


class Admission:
    """A plan that a ledger has admitted; all of it counts. `id` serves `Ledger.admission`, after a crash.

    An event is referred to by its name or its position.
    """

    def __init__(self, ledger: Ledger, plan: PlanRecord) -> None:
        self.ledger = ledger
        self._plan = plan
        self.id, self.purpose, self.data, self.unit = plan.plan, plan.purpose, plan.data, plan.unit
        self.names, self.events = plan.names, plan.events

    @property
    def released(self) -> dict[str, int]:
        """For each event, how many of its repetitions have happened or may have happened."""
        done = self.ledger._current().released
        return {name: done.get((self.id, position), 0) for position, name in enumerate(self.names)}

    def left(self, key: str | int) -> int:
        """Return how many repetitions of an event are planned and have not been released."""
        return self.ledger._current().left(self.id, self._position(key))

    def release(self, key: str | int | None = None) -> None:
        """Record a release that is about to happen; if this raises, it must not happen.

        All that is left of the event is released, without a key all that is left of the plan. Raises
        `BudgetExceeded` if nothing of the event is left, and `LedgerError` if the ledger cannot be written.
        """
        for name in [name for name in self.names if self.left(name)] if key is None else [key]:
            self.ledger._release(self._plan, self._position(name))

    def phase(self, key: str | int, *, stride: int = STRIDE) -> Phase:
        """Return a context in which a loop records each of its steps before it happens; see `Phase`.

        A killed process leaves at most ``max(stride, ran // 4)`` steps recorded that did not run.
        """
        position = self._position(key)
        name, event = self.names[position], self.events[position]
        if event.repeats is None:
            raise InvalidType(f"{name!r} is a {event.kind} event, which has no steps; use release()")
        return Phase(self, position, _validate.count(stride=stride))

    def total(self, delta: float | None = None) -> float:
        """Return epsilon of the whole plan by exact composition; None stands for the cap's delta."""
        return self.ledger._epsilon(merged(self.events), delta)

    def statement(self, delta: float | None = None, **facts: Any) -> PrivacyStatement:
        """Return the guarantee of this plan, all of it, whether or not all of it was released.

        Facts are `n_units`, `public`, `found`, `outside` and `neighbours` of `PrivacyStatement`.
        """
        ledger = self.ledger
        terms, plans = FIXED_LIST, list(ledger._current().plans)
        if len(plans) > 1 or ledger.adaptive:
            terms += (
                f". It is plan {plans.index(self.id) + 1} of {len(plans)} on a ledger with the cap {ledger.cap}; "
                "ledger.statement() gives the guarantee of all of them together"
            )
        return ledger._statement(self.events, delta, names=self.names, unit=self.unit, terms=terms, **facts)

    def _position(self, key: str | int) -> int:
        if isinstance(key, str) and key in self.names:
            return self.names.index(key)
        if isinstance(key, int) and 0 <= key < len(self.events):
            return key
        raise InvalidInput(f"{key!r} is not in this plan, which has {', '.join(map(repr, self.names))}")

    def __repr__(self) -> str:
        return f"Admission({self.id!r}, {dict(zip(self.names, self.events, strict=True))!r})"


class Phase:
    """A loop of releases, each of which is recorded before it happens: call `step` before every release.

    Steps are reserved on the ledger in strides. Leaving the ``with`` block returns those that were not taken;
    a process that is killed inside leaves them reserved: they may have happened. One phase may be stepped by
    several threads, but only in the process that began it. `ran` counts the steps that were allowed so far.
    """

    def __init__(self, admission: Admission, position: int, stride: int) -> None:
        self._admission, self._position, self._stride = admission, position, stride
        self._lock = threading.Lock()
        self._reserved = 0
        self._state = "new"
        self.ran = 0

    def step(self) -> None:
        """Record one step that is about to happen; if this raises, it must not happen.

        Raises `BudgetExceeded` beyond the plan, and `LedgerError` if the ledger cannot be written or the
        phase is not open in this process.
        """
        with self._lock:
            if self._state != "open":
                raise LedgerError(
                    f"this phase is {self._state}, so it takes no step; use `with plan.phase(...) as phase:` "
                    "in the process that releases"
                )
            if self.ran == self._reserved:
                self._reserve(max(self._stride, self._reserved // 4))
            self.ran += 1

    def __enter__(self) -> Self:
        with self._lock:
            if self._state != "new":
                raise LedgerError(f"this phase is {self._state} already; plan.phase(...) makes another one")
            self._reserve(self._stride)
            self._state = "open"
            self._admission.ledger._open.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._state != "open":
                return
            self._state, unused = "closed", self._reserved - self.ran
            try:
                if unused:
                    self._reserve(-unused)
            except LedgerError as problem:
                warnings.warn(
                    f"{self.ran} steps ran, but this could not be written, so {unused} more count as "
                    f"released: {problem}",
                    RatewiseWarning,
                    stacklevel=2,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidType("a phase cannot be pickled or copied: it is a loop that runs in this process")

    def __repr__(self) -> str:
        return f"Phase({self._admission.names[self._position]!r}, {self._state}, {self.ran} steps)"

    def _reserve(self, wanted: int) -> None:
        admission = self._admission
        self._reserved += admission.ledger._release(admission._plan, self._position, wanted)

    def _forked(self) -> None:
        """In a forked child: the steps of this phase belong to the parent."""
        self._lock = threading.Lock()
        if self._state == "open":
            self._state = "open in another process"


class Ledger:
    """What was admitted and released, in memory (this constructor) or in a file (`create`, `open`, `at`).

    `path` is that of the file; None in memory. Copies, such as those of scikit-learn's ``clone``, are the
    same object, because two copies would each miss what is admitted in the other; an unpickled ledger, or one
    in memory that a forked process inherits, is read-only.

    Parameters
    ----------
    cap : Budget or None
        Bound on everything that is ever admitted. It is kept with the ledger.
    adaptive : bool or None
        False: a fixed plan, admitted before the first release; the total is that of exact composition. True:
        a plan may be chosen after looking at the outputs of earlier ones; a privacy filter keeps everything
        together within the cap, which is required. None: True if there is a cap.
    neighbours : str
        The relation between neighbouring data sets.
    unit : PrivacyUnit or None
        What is protected. None: that of the first plan. Plans for another unit are rejected.
    """

    # by `process_total`; False for parts of a plan that was admitted elsewhere
    _counted: ClassVar[bool] = True

    def __init__(
        self,
        *,
        cap: Budget | None = None,
        adaptive: bool | None = None,
        neighbours: str = "add_or_remove",
        unit: PrivacyUnit | None = None,
    ) -> None:
        chosen = cap is not None if adaptive is None else adaptive
        self._take_up(Records(Header(uuid.uuid4().hex, chosen, neighbours, cap, unit)))

    def _take_up(self, records: Records, file: AtomicFile | None = None, frozen: str = "") -> Self:
        self._records, self._file, self._frozen = records, file, frozen
        self.path = None if file is None else file.path
        self._seen = file.signature() if file is not None else None
        self._lock = threading.RLock()
        self._open: weakref.WeakSet[Phase] = weakref.WeakSet()
        self._composed = functools.lru_cache(maxsize=256)(
            lambda events, delta: accountant.epsilon(events, delta, neighbours=records.header.neighbours)
        )
        _alive.add(self)
        return self

    # --- opening ---------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str], **terms: Any) -> Self:
        """Start a ledger in a new file, with the parameters of the class; `LedgerError` if the file exists."""
        file = AtomicFile(path)
        new = cls(**terms)._records
        with file.locked():
            if file.exists():
                raise LedgerError(
                    f"{file.path!r} exists already; go on with it by Ledger.open(path), or take another name"
                )
            file.write(new.document())
            return cls.__new__(cls)._take_up(new, file)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read and verify the ledger in a file, and go on with it.

        Raises `LedgerVersion` if an unknown version wrote the file, `LedgerCorrupt` if it is truncated, was
        edited or is no ledger, and `LedgerError` if it cannot be read.
        """
        file = AtomicFile(path)
        # The signature is taken before the content, so a change in between is noticed later, not missed.
        seen = file.signature() if file.exists() else None
        ledger = cls.__new__(cls)._take_up(read_records(file.read(), f"the ledger {file.path!r}"), file)
        ledger._seen = seen
        return ledger

    @classmethod
    def at(cls, path: str | os.PathLike[str], **terms: Any) -> Self:
        """Open the ledger at `path`, or start it; an existing one must have the same parameters."""
        file = AtomicFile(path)
        wanted = cls(**terms)
        if not file.exists():
            try:
                return cls.create(path, **terms)
            except LedgerError:
                if not file.exists():  # otherwise another process was quicker
                    raise
        found = cls.open(path)
        if (found.cap, found.adaptive, found.neighbours) != (wanted.cap, wanted.adaptive, wanted.neighbours):
            raise InvalidInput(
                f"the ledger {file.path!r} has cap {found.cap}, adaptive={found.adaptive} and neighbours "
                f"{found.neighbours!r}, not {wanted.cap}, {wanted.adaptive} and {wanted.neighbours!r}; these "
                "are fixed when a ledger is started: use Ledger.open(path)"
            )
        return found

    # --- what the ledger says --------------------------------------------------------------------------

    @property
    def cap(self) -> Budget | None:
        """Bound on everything that is admitted."""
        return self._records.header.cap

    @property
    def adaptive(self) -> bool:
        """Whether plans may be chosen after looking at earlier outputs."""
        return self._records.header.adaptive

    @property
    def neighbours(self) -> str:
        """The relation between neighbouring data sets."""
        return self._records.header.neighbours

    def accepts(self, neighbours: str) -> bool:
        """Return whether plans for this relation add up here: zero-out has the curves of add-or-remove."""
        _validate.one_of(NEIGHBOURS, neighbours=neighbours)
        return "replace_one" not in (neighbours, self.neighbours) or neighbours == self.neighbours

    @property
    def unit(self) -> PrivacyUnit | None:
        """What is protected; None until the first plan if it was not given."""
        return self._current().unit

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in order."""
        return tuple(self._current().all)

    @property
    def admissions(self) -> tuple[Admission, ...]:
        """Everything that was admitted, in order."""
        return tuple(Admission(self, plan) for plan in self._current().plans.values())

    def admission(self, plan: str) -> Admission:
        """Return the admission with this id, for example to go on with it after a crash."""
        found = self._current().plans.get(plan)
        if found is None:
            raise LedgerError(f"this ledger has admitted no plan with id {plan!r}; see ledger.admissions")
        return Admission(self, found)

    def events(self) -> tuple[Event, ...]:
        """Return everything that was admitted, whatever data it reads, equal releases merged."""
        return merged(event for plan in self._current().plans.values() for event in plan.events)

    def total(self, delta: float | None = None) -> float:
        """Return epsilon of everything that was admitted, as a fixed list, at delta or the cap's delta.

        In adaptive use this is a measure of what was spent, not a guarantee: `statement` gives that.
        """
        return self._epsilon(self.events(), delta)

    @property
    def spent(self) -> float:
        """Part of the cap that is spent: of the filter's budget or, for a fixed plan, of epsilon; or 0."""
        plans = [plan.events for plan in self._current().plans.values()]
        if self.cap is None or not plans:
            return 0.0
        if not self.adaptive:
            return self.total() / self.cap.epsilon
        filtered = self._filter()
        return 1.0 if filtered is None else filtered.spent(plans)

    @property
    def terms(self) -> str:
        """Which of the two uses this ledger was opened for, and what that costs."""
        if not self.adaptive or self.cap is None:
            return (
                "fixed plan: everything is admitted before the first release, so exact composition applies "
                "at no extra cost; nothing can be added once something was released"
            )
        filtered = self._filter()
        if filtered is None and self.admissions:
            return (
                "adaptive use: the first plan spends the whole cap by exact composition, so nothing can "
                "be admitted after it"
            )
        filtered = filtered or PrivacyFilter(self.cap, gaussian_order(self.cap), self.neighbours)
        return (
            "adaptive use: a plan may be chosen after looking at earlier outputs, and a privacy filter at Renyi "
            f"order {filtered.order:.4g} keeps everything together within the cap. It has spent {self.spent:.1%} of "
            f"its budget. Cost: a Gaussian release needs {filtered.noise_factor():.3g} times the noise that a fixed "
            f"plan needs for the same cap, and {RESERVED_SHARE:.0%} of delta is set aside for threshold releases"
        )

    def would_exceed(self, events: Event | Iterable[Event]) -> bool:
        """Return whether admitting these events now would pass the cap. Without a cap: never."""
        asked = as_events(events)
        with self._lock:
            try:
                self._order_for(asked, "this plan")
            except BudgetExceeded:
                return True
            return False

    def check(self, events: Event | Iterable[Event]) -> None:
        """Raise what `admit` would raise for these events now, and record nothing."""
        with self._lock:
            self._check(as_events(events), "this plan")

    def statement(self, delta: float | None = None, **facts: Any) -> PrivacyStatement:
        """Return the guarantee of everything on this ledger; facts as for `Admission.statement`.

        For a fixed plan, epsilon is that of everything admitted. In adaptive use it is the cap: that is what
        a filter guarantees, at whatever point somebody stops.
        """
        facts = {"unit": self.unit or PrivacyUnit(), "terms": self.terms, **facts}
        if self.cap is not None and self._filter() is not None:
            if self._delta(delta) < self.cap.delta:
                raise InvalidInput(
                    f"delta must be at least the cap's {self.cap.delta:g} in adaptive use, got {delta:g}: a "
                    "filter guarantees its cap"
                )
            facts["epsilon"] = self.cap.epsilon
        return self._statement(self.events(), delta, **facts)

    def _statement(self, events: tuple[Event, ...], delta: float | None, **facts: Any) -> PrivacyStatement:
        facts = {"epsilon": self._epsilon(merged(events), delta), "neighbours": self.neighbours, **facts}
        return PrivacyStatement(delta=self._delta(delta), events=events, **facts)

    def to_json(self) -> str:
        """Return the whole ledger as a versioned JSON document with a checksum."""
        return self._current().document()

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Go on, in memory, with a ledger that `to_json` wrote; the other one must not be used any more."""
        if not isinstance(document, (str, bytes)):
            raise InvalidType(f"document must be JSON text, got {type(document).__name__}")
        return cls.__new__(cls)._take_up(read_records(document, "the ledger document"))

    @classmethod
    def read_only(cls, document: str, reason: str) -> Self:
        """Return a copy of a ledger that `to_json` wrote; admitting to it raises `LedgerError` with the reason."""
        return cls.__new__(cls)._take_up(read_records(document, "the stored ledger"), frozen=reason)

    # --- admitting ---------------------------------------------------------------------------------------

    def admit(
        self,
        events: Event | Iterable[Event] | Mapping[str, Event],
        *,
        purpose: str = "",
        data: str = "data",
        unit: PrivacyUnit | None = None,
    ) -> Admission:
        """Admit a plan as a whole, before any of it is released; if this raises, none of it may be.

        In adaptive use the first plan may also spend the whole cap by exact composition, because it is fixed
        before any output is seen; nothing can be admitted after it. Raises `BudgetExceeded` if the plan does
        not fit under the cap, `LedgerError` if something of a fixed plan was released already or the ledger
        cannot be written, and `InvalidInput` if the plan protects another unit than the ledger.

        Events without a name are named by their kind and position. `purpose` says in words what the plan is
        for, `data` names the data set that it reads, and the noise of the events is measured against `unit`
        (None: that of the ledger, or one row).
        """
        listed = as_events(events.values() if isinstance(events, Mapping) else events)
        names = events if isinstance(events, Mapping) else [f"{e.kind} {i}" for i, e in enumerate(listed, 1)]
        what = f"the plan {purpose!r}" if purpose else f"a plan of {len(listed)} event(s)"
        with self._writing():
            own = unit if unit is not None else self._records.unit or PrivacyUnit()
            order, version = self._check(listed, what), software_version()
            plan = PlanRecord(uuid.uuid4().hex[:16], tuple(names), listed, purpose, data, own, order, version)
            self._append(plan)
        if self._counted:
            _PROCESS.setdefault(data, []).append((listed, self.neighbours, own))
        return Admission(self, plan)

    def _check(self, events: tuple[Event, ...], what: str) -> float | None:
        accountant.curve(events, self.neighbours)  # rejects what has no sound bound
        if not self.adaptive and any(count > 0 for count in self._current().released.values()):
            raise LedgerError(
                f"{what} cannot be added: this ledger was opened for a fixed plan, of which something was "
                "released already. For plans that follow each other open "
                "Ledger(cap=Budget(epsilon, delta), adaptive=True)"
            )
        return self._order_for(events, what)

    def _filter(self) -> PrivacyFilter | None:
        """Return the filter; None before the first plan, for a fixed plan, or if one plan spends the cap."""
        order = next((plan.order for plan in self._current().plans.values()), None)
        return None if self.cap is None or order is None else PrivacyFilter(self.cap, order, self.neighbours)

    def _order_for(self, events: tuple[Event, ...], what: str) -> float | None:
        """Return the order of the filter if this plan starts one, or raise `BudgetExceeded`."""
        plans = [plan.events for plan in self._current().plans.values()]
        if self.cap is None:
            return None
        if self.adaptive and not plans:
            first = PrivacyFilter.for_first_plan(self.cap, events, self.neighbours)
            if first.spent([events]) <= 1:
                return first.order
        elif self.adaptive:
            filtered = self._filter()
            if filtered is None:
                raise BudgetExceeded(
                    f"{what} does not fit: the first plan spends the whole cap {self.cap}; nothing was admitted: "
                    "open a ledger with a larger cap"
                )
            spent = filtered.spent([*plans, events])
            if spent > 1:
                raise BudgetExceeded(
                    f"{what} would bring the filter to {spent:.4g} times its budget for the cap {self.cap} "
                    f"({self.spent:.1%} of it is spent); nothing was admitted: use fewer steps or more noise, or "
                    "open a ledger with a larger cap"
                )
            return None
        total = self._epsilon(merged(event for plan in (*plans, events) for event in plan), self.cap.delta)
        if total > self.cap.epsilon:
            raise BudgetExceeded(
                f"{what} would bring epsilon to {total:.4g} at delta {self.cap.delta:g}, above the cap of "
                f"{self.cap.epsilon:g} ({self.spent:.1%} of it is spent); nothing was admitted: use fewer steps or "
                "more noise"
            )
        return None

    def _epsilon(self, events: tuple[Event, ...], delta: float | None) -> float:
        delta = self._delta(delta)
        return self._composed(events, delta) if events else 0.0

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return _validate.inside(delta=delta)
        if self.cap is None:
            raise InvalidInput("delta must be given for a ledger without a cap, got None; for example 1e-5")
        return self.cap.delta

    # --- the file ----------------------------------------------------------------------------------------

    def _release(self, plan: PlanRecord, position: int, wanted: int | None = None) -> int:
        """Record that repetitions may happen: all that are left, or as wanted (negative: did not happen)."""
        with self._writing():
            left = self._records.left(plan.plan, position)
            granted = left if wanted is None else min(wanted, left)
            if granted == 0:
                raise BudgetExceeded(
                    f"all planned repetitions of {plan.names[position]!r} were released already; admit another "
                    "plan first"
                )
            self._append(ReleaseRecord(plan.plan, position, granted))
            return granted

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep everybody else out, and be up to date."""
        with self._lock:
            if self._frozen:
                raise LedgerError(self._frozen)
            with self._file.locked() if self._file is not None else contextlib.nullcontext():
                self._current()
                yield

    def _append(self, record: Record) -> None:
        line = self._records.check(record)
        if self._file is not None:
            self._file.write(self._records.document(line))
            self._seen = self._file.signature()
        self._records.append(record, line)

    def _current(self) -> Records:
        """Return the records, with what other processes have added to the file."""
        with self._lock:
            if self._file is None or self._frozen:
                return self._records
            seen = self._file.signature()
            if seen != self._seen:
                found = read_records(self._file.read(), f"the ledger {self._file.path!r}")
                if not found.extends(self._records):
                    raise LedgerError(
                        f"the ledger {self._file.path!r} was replaced by another one or by an older copy of "
                        "itself; put the right file back, or take the new one by Ledger.open(path)"
                    )
                self._records, self._seen = found, seen
            return self._records

    # --- copies ------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        way_out = f"Ledger.open({self.path!r})"
        if self.path is None:
            way_out = "Ledger.from_json(ledger.to_json()), if the original is not used any more"
        copied = f"this ledger is a copy from a pickle and can only be read; to go on, use {way_out}"
        return type(self).read_only, (self.to_json(), self._frozen or copied)

    def __repr__(self) -> str:
        number = len(self._records.plans)
        place = "in memory" if self._file is None else f"file {self._file.path!r}"
        copy = "read-only copy, " if self._frozen else ""
        return (
            f"Ledger({number} plan{'' if number == 1 else 's'}, {copy}{place}, cap={self.cap}, "
            f"adaptive={self.adaptive}, neighbours={self.neighbours!r})"
        )


_alive: weakref.WeakSet[Ledger] = weakref.WeakSet()
_PROCESS: dict[str, list[tuple[tuple[Event, ...], str, PrivacyUnit]]] = {}


@dataclass(frozen=True)
class ProcessTotal:
    """What all plans that this process admitted on one data set cost together; see `process_total`."""

    data: str
    plans: int
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"{self.plans} plans on {self.data!r} in this process: epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            "together, if they were fixed in advance. Scores of a search on private rows, such as best_score_ of "
            "GridSearchCV, are computed without noise and are NOT covered; nor is a choice that follows from them."
        )


def process_total(data: str, delta: float) -> ProcessTotal:
    """Return the cost of everything that this process admitted, in any ledger, on the data set of this name.

    The name is that of `data_name` in a classifier or `data` in `Ledger.admit`, so it also covers fits inside
    `GridSearchCV`, whose copies have ledgers of their own. Work in other processes (``n_jobs``) is not
    counted; plans that are chosen by earlier results need a ledger with a cap.
    """
    delta = _validate.inside(delta=delta)
    found = _PROCESS.get(_validate.text(required=True, data=data), [])
    if len({(neighbours, unit.kind) for _, neighbours, unit in found}) > 1:
        raise InvalidInput(f"the plans on {data!r} differ in neighbours or in their unit, so they have no common total")
    events = [event for listed, _, _ in found for event in listed]
    cost = accountant.epsilon(events, delta, neighbours=found[0][1]) if events else 0.0
    return ProcessTotal(data, len(found), cost, delta)


def _after_fork() -> None:
    for ledger in list(_alive):
        ledger._lock = threading.RLock()
        for phase in list(ledger._open):
            phase._forked()
        ledger._open.clear()
        if ledger._file is None and not ledger._frozen:
            ledger._frozen = (
                "this ledger is kept in the memory of another process, which would not see what is admitted "
                "here; keep it in a file with Ledger.create(path), or make it in the process that releases"
            )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
