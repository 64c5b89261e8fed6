"""The content of a ledger: records that are only ever appended, and what they add up to.

A book is a list of four kinds of records::

    release   a whole event, about to happen
    phase     a loop of steps begins; the first steps are reserved
    reserve   more steps of that phase are reserved
    settle    the phase has ended in order; so many of its steps ran

A phase counts what is reserved until it is settled, and what ran from then on. So a process that dies leaves
a count that is too high, never one that is too low. Nothing depends on the times that the records carry.

Everything here is in memory: `storage` keeps the text in a file, and `ledger` decides what is booked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from ratewise import _validate
from ratewise.accounting.events import (
    NEIGHBOURS,
    Event,
    GaussianEvent,
    LaplaceEvent,
    TrainingEvent,
    event_from_dict,
)
from ratewise.exceptions import InvalidInput, InvalidType, LedgerCorrupt, LedgerVersion, RatewiseError

FORMAT = "ratewise-ledger"
VERSION = 1


@dataclass(frozen=True)
class Budget:
    """A limit on what may be released: (`epsilon`, `delta`)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", _validate.inside(delta=self.delta))


@dataclass(frozen=True)
class Record:
    """One line of a book; `time` is when it was written, by a clock that nobody trusts."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `record_from_dict` reads it back."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if isinstance(fields.get("event"), Event):
            fields["event"] = fields["event"].to_dict()
        return {"record": self.kind, **fields}


@dataclass(frozen=True)
class Release(Record):
    """A whole event, booked before it happened."""

    kind: ClassVar[str] = "release"

    event: Event
    purpose: str
    data: str
    time: str
    version: str


@dataclass(frozen=True)
class PhaseBegun(Record):
    """A loop begins: `event` is one step, `planned` how many are intended, `steps` the first reservation."""

    kind: ClassVar[str] = "phase"

    phase: str
    event: Event
    planned: int
    steps: int
    purpose: str
    data: str
    time: str
    version: str


@dataclass(frozen=True)
class StepsReserved(Record):
    """`steps` more steps of a phase may happen from now on."""

    kind: ClassVar[str] = "reserve"

    phase: str
    steps: int
    time: str


@dataclass(frozen=True)
class PhaseSettled(Record):
    """A phase ended in order, and `steps` of its steps ran."""

    kind: ClassVar[str] = "settle"

    phase: str
    steps: int
    time: str


_RECORDS: dict[str, type[Record]] = {
    cls.kind: cls for cls in (Release, PhaseBegun, StepsReserved, PhaseSettled)
}
_FEWEST = {"planned": 1, "steps": 0}


def record_from_dict(description: Mapping[str, Any]) -> Record:
    """Read back what `Record.to_dict` wrote, or raise `InvalidInput` or `InvalidType`."""
    if not isinstance(description, dict):
        raise InvalidType(f"a record must be a mapping, got {description!r}")
    fields = dict(description)
    kind = fields.pop("record", None)
    cls = _RECORDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidInput(f"record must be one of {', '.join(sorted(_RECORDS))}, got {kind!r}")
    expected = {field.name for field in dataclasses.fields(cls)}
    if fields.keys() != expected:
        odd = ", ".join(sorted(map(str, fields.keys() ^ expected)))
        raise InvalidInput(f"a {kind} record has missing or unknown fields: {odd}")
    for name, value in fields.items():
        if name == "event":
            fields[name] = event_from_dict(value)
        elif name in _FEWEST:
            fields[name] = _validate.count(at_least=_FEWEST[name], **{name: value})
        else:
            text(**{name: value})
    return cls(**fields)


@dataclass
class PhaseState:
    """What a book knows about one phase."""

    begun: PhaseBegun
    reserved: int
    settled: bool = False


@dataclass(frozen=True)
class Header:
    """What a book fixes once, when it is started."""

    id: str
    created: str
    neighbours: str = "add_or_remove"
    cap: Budget | None = None

    def __post_init__(self) -> None:
        text(id=self.id)
        text(created=self.created)
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        if self.cap is not None and not isinstance(self.cap, Budget):
            raise InvalidType(f"cap must be a Budget(epsilon, delta) or None, got {self.cap!r}")


class Book:
    """Records, and their sum."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.records: list[Record] = []
        self.phases: dict[str, PhaseState] = {}
        self._lines: list[str] = []
        self._counts: dict[tuple[str, Event], int] = {}

    def check(self, record: Record) -> str:
        """Return the record as one line of JSON, or raise if it does not fit into this book."""
        self._check_phase(record)
        try:
            line = canonical(record.to_dict())
            same = record_from_dict(json.loads(line)) == record
            hash(record)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the event cannot be kept in a ledger: {error}") from None
        if not same:
            raise InvalidInput(f"the event cannot be kept in a ledger: {record!r} does not survive JSON")
        return line

    def append(self, record: Record, line: str) -> None:
        """Add a record that `check` has passed."""
        self._check_phase(record)
        if isinstance(record, Release):
            self._count(record.data, *unit(record.event))
        elif isinstance(record, PhaseBegun):
            self.phases[record.phase] = PhaseState(record, record.steps)
            self._count(record.data, record.event, record.steps)
        elif isinstance(record, StepsReserved):
            self._move(self.phases[record.phase], record.steps)
        elif isinstance(record, PhaseSettled):
            state = self.phases[record.phase]
            self._move(state, record.steps - state.reserved)
            state.settled = True
        self.records.append(record)
        self._lines.append(line)

    def counts(self, data: str | None = None) -> dict[Event, int]:
        """Return how often each single release counts, over all data uses or over one."""
        found: dict[Event, int] = {}
        for (use, event), times in self._counts.items():
            if times and data in (None, use):
                found[event] = found.get(event, 0) + times
        return found

    def data_uses(self) -> tuple[str, ...]:
        """Return the names of all data uses, in order of appearance."""
        return tuple(dict.fromkeys(use for use, _ in self._counts))

    def document(self, *more: str) -> str:
        """Return the book (with `more` lines at its end) as a JSON document, one record per line."""
        lines = [*self._lines, *more]
        header = canonical(dataclasses.asdict(self.header))
        checksum = _checksum(header, lines)
        listed = ",\n".join(lines)
        return (
            f'{{\n"format": "{FORMAT}",\n"version": {VERSION},\n"book": {header},\n'
            f'"records": [\n{listed}\n],\n"checksum": "{checksum}"\n}}\n'
        )

    def extends(self, older: Book) -> bool:
        """Tell whether this is the same book as `older`, with nothing taken out or changed."""
        return self.header == older.header and self._lines[: len(older._lines)] == older._lines

    def _check_phase(self, record: Record) -> None:
        if isinstance(record, PhaseBegun):
            if record.phase in self.phases:
                raise InvalidInput(f"phase {record.phase!r} begins twice")
            if unit(record.event)[1] != 1:
                raise InvalidInput(f"the event of phase {record.phase!r} is more than one step")
        if not isinstance(record, (StepsReserved, PhaseSettled)):
            return
        state = self.phases.get(record.phase)
        if state is None or state.settled:
            raise InvalidInput(f"phase {record.phase!r} is not open")
        if isinstance(record, PhaseSettled) and record.steps > state.reserved:
            raise InvalidInput(
                f"phase {record.phase!r} settles {record.steps} steps but reserved {state.reserved}"
            )

    def _move(self, state: PhaseState, steps: int) -> None:
        state.reserved += steps
        self._count(state.begun.data, state.begun.event, steps)

    def _count(self, data: str, event: Event, times: int) -> None:
        key = (data, event)
        self._counts[key] = self._counts.get(key, 0) + times


def read_book(content: bytes | str, *, source: str) -> Book:
    """Read and verify a document that `Book.document` wrote; `source` is named in every message.

    Raises
    ------
    LedgerVersion
        It is a ledger, of another version.
    LedgerCorrupt
        It is truncated, was changed by other means, or is no ledger at all.
    """
    document = _parse(content, source)
    if document.get("format") != FORMAT:
        raise _corrupt(source, f"it is no ledger: its format is {_short(document.get('format'))}")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise LedgerVersion(
            f"{source} has ledger version {_short(version)}, and this ratewise knows version {VERSION}; "
            "open it with the ratewise that wrote it, or with a newer one"
        )
    header, records, checksum = (document.get(name) for name in ("book", "records", "checksum"))
    if not isinstance(header, dict) or not isinstance(records, list) or not isinstance(checksum, str):
        raise _corrupt(source, "it lacks its book, records or checksum")
    try:
        lines = [canonical(record) for record in records]
        fitting = _checksum(canonical(header), lines)
    except ValueError:
        raise _corrupt(source, "it holds a number that is not finite") from None
    if checksum != fitting:
        raise _corrupt(source, "its checksum does not match: it was changed by hand or damaged")
    try:
        book = Book(_header(header))
        for record, line in zip(records, lines, strict=True):
            book.append(record_from_dict(record), line)
    except (RatewiseError, TypeError) as error:
        raise _corrupt(source, str(error)) from None
    return book


def unit(event: Event) -> tuple[Event, int]:
    """Return the single release that an event repeats, and how often.

    >>> unit(GaussianEvent(noise=2.0, count=5))
    (GaussianEvent(noise=2.0, count=1), 5)
    """
    if isinstance(event, TrainingEvent):
        return event.with_steps(1), event.steps
    if isinstance(event, (GaussianEvent, LaplaceEvent)):
        return dataclasses.replace(event, count=1), event.count
    return event, 1


def repeated(counts: Mapping[Event, int]) -> tuple[Event, ...]:
    """Return single releases and their counts as a list of events, each kind of release once if it can be."""
    events: list[Event] = []
    for event, times in counts.items():
        if isinstance(event, TrainingEvent):
            events.append(event.with_steps(times))
        elif isinstance(event, (GaussianEvent, LaplaceEvent)):
            events.append(dataclasses.replace(event, count=times))
        else:
            events.extend([event] * times)
    return tuple(events)


def summed(parts: Iterable[tuple[Event, int]]) -> dict[Event, int]:
    """Return single releases with their counts added up."""
    total: dict[Event, int] = {}
    for event, times in parts:
        if times:
            total[event] = total.get(event, 0) + times
    return total


def text(*, required: bool = False, **argument: Any) -> str:
    """Check that the argument is text (and not empty, if `required`)."""
    ((name, value),) = argument.items()
    if not isinstance(value, str):
        raise InvalidType(f"{name} must be text, got {_short(value)}")
    if required and not value.strip():
        raise InvalidInput(f"{name} must not be empty, got {value!r}")
    return value


def now() -> str:
    """Return the time of the system's clock, in UTC; a note for people, never used for a decision."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def canonical(value: Any) -> str:
    """Return the one strict JSON text of a value: sorted, no spaces, ASCII, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def strict_json(content: bytes | str) -> Any:
    """Parse JSON, and raise `ValueError` for anything that is not strictly JSON."""
    try:
        decoded = content.decode("utf-8") if isinstance(content, bytes) else content
        return json.loads(decoded, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse(content: bytes | str, source: str) -> dict[str, Any]:
    try:
        document = strict_json(content)
    except ValueError:
        raise _corrupt(source, "it is truncated or not JSON") from None
    if not isinstance(document, dict):
        raise _corrupt(source, "it is no ledger: not a JSON object")
    return document


def _header(fields: dict[str, Any]) -> Header:
    cap = fields.get("cap")
    return Header(**{**fields, "cap": None if cap is None else Budget(**cap)})


def _checksum(header: str, lines: list[str]) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{VERSION}\n{header}\n".encode("ascii"))
    for line in lines:
        digest.update(line.encode("ascii") + b"\n")
    return "sha256:" + digest.hexdigest()


def _corrupt(source: str, problem: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"{source} cannot be trusted: {problem}; restore a copy that is known to be whole, or start a new "
        "book and book again everything that may have run"
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
