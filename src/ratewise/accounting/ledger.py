"""The book of what really ran.

A release is booked **before** it happens, so the book can be too high but never too low::

    ledger = Ledger.create("privacy.json", cap=Budget(epsilon=1.0, delta=1e-5))
    ledger.book(GaussianEvent(noise=20.0), purpose="feature means", data="train")
    with ledger.phase(event, purpose="training", data="train") as phase:
        for batch in batches:
            phase.step()                    # raises, or this step may happen
            ...                             # release
    ledger.total_epsilon                    # what has been spent, at the cap's delta

Guarantees, each of which has a test:

- Whenever the process dies, the file is whole and counts at least every release that was allowed to happen.
- When `book` or `step` raises, the release it was asked about is not allowed, and the old file is intact.
- With a cap, nothing is allowed that would bring the total above it.
- Threads, and processes on one file, add up in one book and lose nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from ratewise import _validate
from ratewise.accounting import accountant
from ratewise.accounting.book import (
    Book,
    Budget,
    Header,
    PhaseBegun,
    PhaseSettled,
    Record,
    Release,
    StepsReserved,
    now,
    read_book,
    repeated,
    summed,
    text,
    unit,
)
from ratewise.accounting.events import Event, GaussianEvent, LaplaceEvent, TrainingEvent, as_events
from ratewise.accounting.phase import STRIDE, Phase
from ratewise.accounting.statement import PrivacyStatement, software_version, texts
from ratewise.accounting.storage import AtomicFile
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, LedgerError

__all__ = ["Budget", "Ledger", "Phase"]


class Ledger:
    """The book of what was released, in memory (this constructor) or in a file (`create`, `open`, `at`).

    Parameters
    ----------
    cap : Budget or None
        Nothing is booked that would bring epsilon at the cap's delta above the cap's epsilon. The cap belongs
        to the book and is kept in its file.
    neighbours : str
        The relation between neighbouring data sets under which this book adds up.

    Notes
    -----
    A ledger is one book, not a value: ``copy.copy`` and ``copy.deepcopy`` (hence scikit-learn's ``clone``)
    return the same object, because two copies would each miss what is booked in the other. For the same
    reason an unpickled ledger, or one kept in memory and inherited by a forked process, is read-only.

    Examples
    --------
    >>> ledger = Ledger(cap=Budget(epsilon=1.0, delta=1e-5))
    >>> entry = ledger.book(GaussianEvent(noise=10.0), purpose="feature means", data="train")
    >>> ledger.would_exceed(GaussianEvent(noise=1.0))
    True
    >>> ledger
    Ledger(1 record, in memory, cap=Budget(epsilon=1.0, delta=1e-05), neighbours='add_or_remove')
    """

    def __init__(self, *, cap: Budget | None = None, neighbours: str = "add_or_remove") -> None:
        self._take_up(Book(Header(uuid.uuid4().hex, now(), neighbours, cap)), None)

    def _take_up(self, book: Book, file: AtomicFile | None, frozen: str = "") -> None:
        self._book = book
        self._file = file
        self._frozen = frozen
        self._seen = file.signature() if file is not None else None
        self._lock = threading.RLock()
        self._open: weakref.WeakValueDictionary[str, Phase] = weakref.WeakValueDictionary()
        self._epsilons: dict[tuple[tuple[Event, ...], float], float] = {}
        _alive.add(self)

    @classmethod
    def _of(cls, book: Book, file: AtomicFile | None = None, frozen: str = "") -> Self:
        ledger = cls.__new__(cls)
        ledger._take_up(book, file, frozen)
        return ledger

    # --- starting and finding a book -------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cap: Budget | None = None,
        neighbours: str = "add_or_remove",
    ) -> Self:
        """Start a new book in a file. An existing file is never touched: `LedgerError`."""
        file = AtomicFile(path)
        new = Book(Header(uuid.uuid4().hex, now(), neighbours, cap))
        with file.locked():
            if file.exists():
                raise LedgerError(
                    f"{file.path!r} exists already; go on with it by Ledger.open(path), or take another name"
                )
            file.write(new.document())
            return cls._of(new, file)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read and verify the book in a file, and go on with it.

        Raises
        ------
        LedgerError
            There is no such file, or it cannot be read.
        LedgerVersion
            The file was written by an unknown version.
        LedgerCorrupt
            The file is truncated, was edited, or is no ledger.
        """
        file = AtomicFile(path)
        # The signature is taken before the content, so a change in between is noticed later, not missed.
        seen = file.signature() if file.exists() else None
        ledger = cls._of(read_book(file.read(), source=f"the ledger {file.path!r}"), file)
        ledger._seen = seen
        return ledger

    @classmethod
    def at(
        cls,
        path: str | os.PathLike[str],
        *,
        cap: Budget | None = None,
        neighbours: str = "add_or_remove",
    ) -> Self:
        """Open the book at `path`, or start it; an existing one must have the same cap and neighbours."""
        file = AtomicFile(path)
        header = Header("", "", neighbours, cap)
        if not file.exists():
            try:
                return cls.create(path, cap=cap, neighbours=neighbours)
            except LedgerError:
                if not file.exists():  # otherwise another process was quicker
                    raise
        ledger = cls.open(path)
        if (ledger.cap, ledger.neighbours) != (header.cap, header.neighbours):
            raise InvalidInput(
                f"the ledger {file.path!r} has cap {ledger.cap} and neighbours {ledger.neighbours!r}, not "
                f"{cap} and {neighbours!r}; these are fixed when a book is started: use Ledger.open(path)"
            )
        return ledger

    # --- what the book says ----------------------------------------------------------------------------

    @property
    def cap(self) -> Budget | None:
        """The limit of this book."""
        return self._book.header.cap

    @property
    def neighbours(self) -> str:
        """The relation between neighbouring data sets."""
        return self._book.header.neighbours

    @property
    def path(self) -> str | None:
        """Where the book is kept; None in memory."""
        return None if self._file is None else self._file.path

    @property
    def read_only(self) -> bool:
        """Whether this is a copy that cannot be written (see the notes of the class)."""
        return bool(self._frozen)

    @property
    def records(self) -> tuple[Record, ...]:
        """Everything that was ever booked, in order of booking."""
        return tuple(self._current().records)

    @property
    def data_uses(self) -> tuple[str, ...]:
        """Names of the data sets that entries are about."""
        return self._current().data_uses()

    @property
    def unsettled_steps(self) -> int:
        """Steps counted for phases that run now, or whose process died before it could say how far it got."""
        return sum(state.reserved for state in self._current().phases.values() if not state.settled)

    def events(self, data: str | None = None) -> tuple[Event, ...]:
        """Return what counts, equal releases merged; `data` restricts to one data use."""
        return repeated(self._counts(data))

    def total(self, delta: float | None = None, *, data: str | None = None) -> float:
        """Return epsilon of everything in the book.

        Parameters
        ----------
        delta : float or None
            None stands for the cap's delta.
        data : str or None
            Only what was booked for this data use. **By default everything adds up**, whatever data it was
            booked for; the total of one data use is the guarantee of a person whose rows are in that data
            set and in no other.
        """
        return self._epsilon(self._counts(data), self._delta(delta))

    def total_delta(self, epsilon: float, *, data: str | None = None) -> float:
        """Return delta of everything in the book at this epsilon."""
        events = self.events(data)
        _validate.non_negative(epsilon=epsilon)
        return accountant.delta(events, epsilon, neighbours=self.neighbours) if events else 0.0

    @property
    def total_epsilon(self) -> float:
        """Epsilon of everything in the book, at the cap's delta."""
        return self.total()

    @property
    def remaining(self) -> float:
        """The cap's epsilon minus `total_epsilon`; infinite without a cap.

        This is a gauge, not an allowance: epsilons do not add up. When half of it is left, the number of
        steps that still fit may be far from half. `would_exceed` and `remaining_steps` answer exactly.
        """
        return math.inf if self.cap is None else max(0.0, self.cap.epsilon - self.total_epsilon)

    def would_exceed(self, events: Event | Iterable[Event]) -> bool:
        """Tell whether booking these events now would be refused.

        Phases that are open in this process count with all the steps they plan. Without a cap: never.
        """
        asked = summed(unit(event) for event in as_events(events))
        with self._lock:
            self._current()
            return self._over_cap(asked) is not None

    def remaining_steps(self, step: Event, *, at_most: int = 1_000_000) -> int:
        """Return how many releases like `step` still fit under the cap, and never more than `at_most`."""
        event, _ = _one_step(step, 1)
        most = _validate.count(at_most=at_most)
        with self._lock:
            self._current()
            fits, fails = 0, most + 1
            tried = 1
            while fails - fits > 1:
                if self._over_cap({event: tried}) is None:
                    fits = tried
                else:
                    fails = tried
                tried = min(2 * fits, most) if fails > most else (fits + fails) // 2
            return fits

    def statement(
        self,
        delta: float | None = None,
        *,
        data: str | None = None,
        unit: str = "one row",
        public: Iterable[str] = (),
        leaks: Iterable[str] = (),
        rows: int | None = None,
    ) -> PrivacyStatement:
        """Return the guarantee of this book in words; see `PrivacyStatement` for the arguments."""
        delta = self._delta(delta)
        counts = self._counts(data)
        return PrivacyStatement(
            epsilon=self._epsilon(counts, delta),
            delta=delta,
            neighbours=self.neighbours,
            events=repeated(counts),
            unit=unit,
            public=texts(public=public),
            leaks=texts(leaks=leaks),
            rows=rows,
        )

    def to_json(self) -> str:
        """Return the whole book as a versioned JSON document with a checksum."""
        return self._current().document()

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Go on, in memory, with a book that `to_json` wrote; the other one must not be used any more."""
        if not isinstance(document, (str, bytes)):
            raise InvalidType(f"document must be JSON text, got {type(document).__name__}")
        return cls._of(read_book(document, source="the ledger document"))

    # --- writing ---------------------------------------------------------------------------------------

    def book(self, event: Event, *, purpose: str = "", data: str = "data") -> Release:
        """Book a whole release that is about to happen.

        Parameters
        ----------
        event : Event
        purpose : str
            What it is for, in words.
        data : str
            Name of the data set that it reads.

        Raises
        ------
        BudgetExceeded
            The total would pass the cap. Nothing was booked, and the release must not happen.
        LedgerError
            The book cannot be written. The release must not happen.
        """
        if not isinstance(event, Event):
            raise InvalidType(f"event must be an event, got {type(event).__name__}")
        release = Release(
            event, text(purpose=purpose), text(required=True, data=data), now(), software_version()
        )
        with self._writing():
            line = self._book.check(release)
            self._refuse_over_cap(summed([unit(event)]), f"booking {_name(event, purpose)}")
            self._append(release, line)
        return release

    def phase(
        self,
        event: Event,
        *,
        planned_steps: int | None = None,
        purpose: str = "",
        data: str = "data",
        stride: int = STRIDE,
    ) -> Phase:
        """Return a context in which a loop books each of its steps; see `Phase`.

        Parameters
        ----------
        event : TrainingEvent, GaussianEvent or LaplaceEvent
            The planned loop; or one step of it, if `planned_steps` is given.
        planned_steps : int or None
            None: the number that the event itself says.
        purpose, data : str
            As in `book`.
        stride : int
            A killed process leaves at most ``max(stride, ran // 4)`` steps counted that did not run.
            Small strides cost more writes; 1 is right for steps that take seconds.
        """
        step, planned = _one_step(event, planned_steps)
        begun = PhaseBegun(
            phase="",
            event=step,
            planned=planned,
            steps=0,  # this, the name and the time are filled in when the phase begins
            purpose=text(purpose=purpose),
            data=text(required=True, data=data),
            time="",
            version=software_version(),
        )
        return Phase(self, begun, _validate.count(stride=stride))

    # --- how a phase writes; called by Phase alone -------------------------------------------------------

    def _begin(self, phase: Phase, begun: PhaseBegun) -> None:
        with self._writing():
            line = self._book.check(begun)
            self._refuse_over_cap(
                {begun.event: begun.planned},
                f"{begun.planned} planned steps of {_name(begun.event, begun.purpose)}",
            )
            before = len(self._book.records)
            self._append(begun, line)
            self._open[begun.phase] = phase
            phase._written, phase._checked = 1, before

    def _reserve(self, phase: Phase, begun: PhaseBegun, wanted: int) -> int:
        with self._writing():
            granted = self._grant(phase, begun, wanted)
            record = StepsReserved(begun.phase, granted, now())
            self._append(record, self._book.check(record))
            phase._written += 1
            return granted

    def _grant(self, phase: Phase, begun: PhaseBegun, wanted: int) -> int:
        """Return how many of the wanted steps fit: all, or at least one, or raise."""
        reserved = self._book.phases[begun.phase].reserved
        left = begun.planned - reserved
        others = len(self._book.records) - phase._written
        if left > 0 and others != phase._checked and self._fits(begun, left):
            phase._checked = others
        # The plan was found to fit, and nobody else has booked since: no need to ask again.
        if wanted <= left and others == phase._checked:
            return wanted
        for steps in (wanted, 1):
            if self._fits(begun, steps):
                return steps
        asked = f"step {reserved + 1} ({begun.planned} planned) of {_name(begun.event, begun.purpose)}"
        self._refuse_over_cap({begun.event: 1}, asked, asking=begun.phase)
        return 1

    def _fits(self, begun: PhaseBegun, steps: int) -> bool:
        return self._over_cap({begun.event: steps}, asking=begun.phase) is None

    def _settle(self, begun: PhaseBegun, ran: int) -> None:
        with self._writing():
            self._open.pop(begun.phase, None)
            record = PhaseSettled(begun.phase, ran, now())
            self._append(record, self._book.check(record))

    # --- the cap -----------------------------------------------------------------------------------------

    def _refuse_over_cap(self, asked: Mapping[Event, int], what: str, *, asking: str | None = None) -> None:
        # What has no sound bound could be booked but never be added up again: refused here, cap or not.
        accountant.curve(tuple(asked), self.neighbours)
        epsilon = self._over_cap(asked, asking=asking)
        if epsilon is None or self.cap is None:
            return
        raise BudgetExceeded(
            f"{what} would bring epsilon to {epsilon:.4g} at delta {self.cap.delta:g}, above the cap of "
            f"{self.cap.epsilon:g} (spent so far: {self.total_epsilon:.4g}); nothing was released: use "
            "fewer steps or more noise, and ask would_exceed() or remaining_steps() first"
        )

    def _over_cap(self, asked: Mapping[Event, int], *, asking: str | None = None) -> float | None:
        """Return the epsilon that `asked` would lead to, if it is above the cap."""
        if self.cap is None:
            return None
        planned = self._planned(besides=asking)
        counts = summed([*self._book.counts().items(), *planned, *asked.items()])
        epsilon = self._epsilon(counts, self.cap.delta)
        return None if epsilon <= self.cap.epsilon else epsilon

    def _planned(self, *, besides: str | None) -> list[tuple[Event, int]]:
        """Return the steps that open phases of this process plan and have not reserved yet."""
        found = []
        for name in list(self._open):
            state = self._book.phases[name]
            if name != besides and not state.settled:
                found.append((state.begun.event, max(0, state.begun.planned - state.reserved)))
        return found

    def _epsilon(self, counts: Mapping[Event, int], delta: float) -> float:
        events = repeated(counts)
        if not events:
            return 0.0
        key = (events, delta)
        if key not in self._epsilons:
            if len(self._epsilons) >= 256:
                self._epsilons.clear()
            self._epsilons[key] = accountant.epsilon(events, delta, neighbours=self.neighbours)
        return self._epsilons[key]

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return _validate.inside(delta=delta)
        if self.cap is None:
            raise InvalidInput("delta must be given for a ledger without a cap, got None; for example 1e-5")
        return self.cap.delta

    # --- the file ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep everybody else out, and be up to date."""
        with self._lock:
            if self._frozen:
                raise LedgerError(self._frozen)
            if self._file is None:
                yield
                return
            with self._file.locked():
                self._current()
                yield

    def _append(self, record: Record, line: str) -> None:
        if self._file is not None:
            self._file.write(self._book.document(line))
            self._seen = self._file.signature()
        self._book.append(record, line)

    def _current(self) -> Book:
        """Return the book, with what other processes have added to the file."""
        with self._lock:
            if self._file is None or self._frozen:
                return self._book
            seen = self._file.signature()
            if seen != self._seen:
                found = read_book(self._file.read(), source=f"the ledger {self._file.path!r}")
                if not found.extends(self._book):
                    raise LedgerError(
                        f"the ledger {self._file.path!r} was replaced by another book or an older copy of "
                        "this one; put the right file back, or take the new one by Ledger.open(path)"
                    )
                self._book, self._seen = found, seen
            return self._book

    def _counts(self, data: str | None) -> dict[Event, int]:
        with self._lock:
            current = self._current()
            if data is not None and text(data=data) not in current.data_uses():
                known = ", ".join(map(repr, current.data_uses())) or "none yet"
                raise InvalidInput(f"data must be a data use of this book ({known}), got {data!r}")
            return current.counts(data)

    # --- manners -----------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.to_json(), self._frozen or self._copied())

    def _copied(self) -> str:
        way_out = (
            "Ledger.from_json(ledger.to_json()), if the original is not used any more"
            if self.path is None
            else f"Ledger.open({self.path!r})"
        )
        return f"this ledger is a copy from a pickle and can only be read; go on booking with {way_out}"

    def __repr__(self) -> str:
        number = len(self._book.records)
        place = "in memory" if self._file is None else f"file {self._file.path!r}"
        copy = "read-only copy, " if self._frozen else ""
        return (
            f"Ledger({number} record{'' if number == 1 else 's'}, {copy}{place}, cap={self.cap}, "
            f"neighbours={self.neighbours!r})"
        )


_alive: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_alive):
        ledger._lock = threading.RLock()
        for phase in list(ledger._open.values()):
            phase._forked()
        ledger._open.clear()
        if ledger._file is None and not ledger._frozen:
            ledger._frozen = (
                "this ledger is kept in the memory of another process, which would not see what is booked "
                "here; keep it in a file with Ledger.create(path), or make it in the process that releases"
            )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _unpickle(cls: type[Ledger], document: str, frozen: str) -> Ledger:
    return cls._of(read_book(document, source="the pickled ledger"), frozen=frozen)


def _one_step(event: Event, planned_steps: int | None) -> tuple[Event, int]:
    if not isinstance(event, (TrainingEvent, GaussianEvent, LaplaceEvent)):
        raise InvalidType(
            f"event must be a TrainingEvent, GaussianEvent or LaplaceEvent, got {type(event).__name__}; "
            "book other events one by one with ledger.book(event)"
        )
    step, times = unit(event)
    if planned_steps is None:
        return step, times
    planned = _validate.count(planned_steps=planned_steps)
    if times != 1:
        raise InvalidInput(
            f"with planned_steps={planned}, event must be one step, got an event of {times} steps; "
            "leave planned_steps out to run the steps that the event says"
        )
    return step, planned


def _name(event: Event, purpose: str) -> str:
    return repr(purpose) if purpose else f"a {event.kind} event"
