"""The records of a ledger, their text, and the file that keeps them.

There are two kinds of records, only ever appended. A *plan* lists events that are admitted together; all of
them count from there on, whether or not they happen. A *release* says that a number of repetitions of one
event of a plan may happen; a negative number returns repetitions that were reserved and did not happen. What
a ledger costs depends on its plans alone, so a process that dies leaves a count that is too high, never one
that is too low.

The file is replaced as a whole: new text goes to a temporary file in the same folder, is flushed to the disk
and then takes the name of the old file in one step. Writers in several processes take turns through a lock
file (where the system has ``flock``; elsewhere one process at a time may write).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ratewise import _validate
from ratewise._files import canonical, strict_json, write_whole
from ratewise.accounting.events import NEIGHBOURS, Budget, Described, Event, PrivacyUnit, single
from ratewise.exceptions import InvalidInput, InvalidType, LedgerCorrupt, LedgerError, LedgerVersion, RatewiseError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock
    fcntl = None

FORMAT = "ratewise-ledger"
VERSION = 2
LOCK_PATIENCE = 120.0  # seconds to wait for another process before giving up


@dataclass(frozen=True)
class Header(Described):
    """What a ledger fixes once, when it is opened for the first time."""

    id: str
    adaptive: bool = False
    neighbours: str = "add_or_remove"
    cap: Budget | None = None
    unit: PrivacyUnit | None = None

    def _checked(self) -> dict[str, Any]:
        _validate.text(id=self.id)
        _validate.one_of((True, False), adaptive=self.adaptive)
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        if not isinstance(self.cap, Budget | None):
            raise InvalidType(f"cap must be a Budget(epsilon, delta) or None, got {self.cap!r}")
        if not isinstance(self.unit, PrivacyUnit | None):
            raise InvalidType(f"unit must be a PrivacyUnit or None, got {self.unit!r}")
        if self.adaptive and self.cap is None:
            raise InvalidInput("adaptive use needs a cap, got cap=None; for example cap=Budget(1.0, 1e-5)")
        return {}


@dataclass(frozen=True)
class PlanRecord(Described):
    """Events that were admitted together. `order` is that of the filter, in the first plan of a filter."""

    plan: str
    names: tuple[str, ...]
    events: tuple[Event, ...]
    purpose: str
    data: str
    unit: PrivacyUnit
    order: float | None
    version: str

    def _checked(self) -> dict[str, Any]:
        for name, required in {"plan": True, "data": True, "purpose": False, "version": False}.items():
            _validate.text(required=required, **{name: getattr(self, name)})
        for name in _validate.instance(tuple, names=self.names):
            _validate.text(required=True, name=name)
        if not isinstance(self.unit, PrivacyUnit):
            raise InvalidType(f"unit must be a PrivacyUnit or None, got {self.unit!r}")
        if len(self.names) != len(self.events) or len(set(self.names)) != len(self.names) or not self.names:
            raise InvalidInput(f"plan {self.plan!r} must give each of its events a name of its own")
        if self.order is not None and not _validate.real(order=self.order) > 1:
            raise InvalidInput(f"order must be above 1, got {self.order!r}")
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `record_from_dict` reads it back."""
        return {"record": "plan", **super().to_dict()}

    def planned(self, position: int) -> int:
        """Return how many repetitions of an event are planned."""
        return single(self.events[position])[1]


@dataclass(frozen=True)
class ReleaseRecord(Described):
    """`count` repetitions of the event at `position` of a plan may happen (negative: did not happen)."""

    plan: str
    position: int
    count: int

    def _checked(self) -> dict[str, Any]:
        _validate.text(required=True, plan=self.plan)
        _validate.count(at_least=0, position=self.position)
        if _validate.real(count=self.count) != int(self.count) or self.count == 0:
            raise InvalidInput(f"count must be a whole number other than 0, got {self.count!r}")
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `record_from_dict` reads it back."""
        return {"record": "release", **super().to_dict()}


Record = PlanRecord | ReleaseRecord


def record_from_dict(description: Any) -> Record:
    """Read back what `to_dict` of a record wrote, or raise `InvalidInput` or `InvalidType`."""
    if not isinstance(description, dict):
        raise InvalidType(f"a record must be a mapping, got {description!r}")
    fields = dict(description)
    kind = fields.pop("record", None)
    if kind not in ("plan", "release"):
        raise InvalidInput(f"record must be plan or release, got {kind!r}")
    return PlanRecord.from_dict(fields) if kind == "plan" else ReleaseRecord.from_dict(fields)


class Records:
    """The header and the records of a ledger, in memory."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.all: list[Record] = []
        self.plans: dict[str, PlanRecord] = {}
        self.released: dict[tuple[str, int], int] = {}
        self._lines: list[str] = []

    def check(self, record: Record) -> str:
        """Return the record as one line of JSON, or raise if it does not fit here."""
        self._check_fit(record)
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
        """Add a record and its line of JSON, or raise if it does not fit here."""
        self._check_fit(record)
        if isinstance(record, PlanRecord):
            self.plans[record.plan] = record
        else:
            key = (record.plan, record.position)
            self.released[key] = self.released.get(key, 0) + record.count
        self.all.append(record)
        self._lines.append(line)

    def left(self, plan: str, position: int) -> int:
        """Return how many planned repetitions of an event have not been released or reserved."""
        return self.plans[plan].planned(position) - self.released.get((plan, position), 0)

    def document(self, *more: str) -> str:
        """Return the records (with `more` lines at their end) as a JSON document, one record per line."""
        lines = [*self._lines, *more]
        header = canonical(self.header.to_dict())
        listed = ",\n".join(lines)
        return (
            f'{{\n"format": "{FORMAT}",\n"version": {VERSION},\n"ledger": {header},\n'
            f'"records": [\n{listed}\n],\n"checksum": "{_checksum(header, lines)}"\n}}\n'
        )

    def extends(self, older: Records) -> bool:
        """Return whether this is the same ledger as `older`, with nothing taken out or changed."""
        return self.header == older.header and self._lines[: len(older._lines)] == older._lines

    @property
    def unit(self) -> PrivacyUnit | None:
        """What is protected: as given when the ledger was opened, else that of its first plan."""
        return self.header.unit or next((plan.unit for plan in self.plans.values()), None)

    def _check_fit(self, record: Record) -> None:
        if isinstance(record, PlanRecord):
            if record.plan in self.plans:
                raise InvalidInput(f"plan {record.plan!r} is admitted twice")
            own, other = self.unit or record.unit, record.unit
            if (own.kind, own.column) != (other.kind, other.column):  # whatever number of rows they use
                raise InvalidInput(
                    f"this ledger protects {self.unit}, but the plan protects {record.unit}; the two do not add "
                    "up: keep one ledger for each unit of privacy"
                )
            return
        plan, position = self.plans.get(record.plan), record.position
        if plan is None or position >= len(plan.events):
            raise InvalidInput(f"a release refers to event {position} of {record.plan!r}: unknown")
        done = self.released.get((record.plan, position), 0) + record.count
        if not 0 <= done <= plan.planned(position):
            raise InvalidInput(
                f"plan {record.plan!r} has {plan.planned(position)} repetitions of {plan.names[position]!r}, "
                f"and a record makes that {done}"
            )


def read_records(content: bytes | str, source: str) -> Records:
    """Read and verify a document that `Records.document` wrote; `source` is named in every message.

    Raises `LedgerVersion` for a ledger of another version, and `LedgerCorrupt` for what is truncated, was
    changed by other means, or is no ledger at all.
    """
    try:
        document = strict_json(content)
    except ValueError:
        raise _corrupt(source, "it is truncated or not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _corrupt(source, "it is no ledger")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise LedgerVersion(
            f"{source} has ledger version {version!r:.60}, and this ratewise knows version {VERSION}; "
            "open it with the ratewise that wrote it, or with a newer one"
        )
    header, records, checksum = (document.get(name) for name in ("ledger", "records", "checksum"))
    if not isinstance(header, dict) or not isinstance(records, list) or not isinstance(checksum, str):
        raise _corrupt(source, "it lacks its header, records or checksum")
    try:
        lines = [canonical(record) for record in records]
        fitting = _checksum(canonical(header), lines)
    except ValueError:
        raise _corrupt(source, "it holds a number that is not finite") from None
    if checksum != fitting:
        raise _corrupt(source, "its checksum does not match: it was changed by hand or damaged")
    try:
        found = Records(Header.from_dict(header))
        for record, line in zip(records, lines, strict=True):
            found.append(record_from_dict(record), line)
    except (RatewiseError, TypeError) as error:
        raise _corrupt(source, str(error)) from None
    return found


def _checksum(header: str, lines: list[str]) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{VERSION}\n{header}\n".encode("ascii"))
    for line in lines:
        digest.update(line.encode("ascii") + b"\n")
    return "sha256:" + digest.hexdigest()


def _corrupt(source: str, problem: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"{source} cannot be trusted: {problem}; restore a copy that is known to be whole, or open a new "
        "ledger and admit everything again that may have been released"
    )


class AtomicFile:
    """A text file with whole-file reads, atomic writes, and a lock that processes share.

    Links are followed once, in the constructor, so that replacing the file never replaces a link.
    """

    def __init__(self, path: Any) -> None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(text, str):
            raise InvalidType(f"path must be text or a path object, got {path!r}")
        if not text or "\0" in text:
            raise InvalidInput(f"path must name a file, got {text!r}")
        self.path = os.path.realpath(text)
        folder, name = os.path.split(self.path)
        self._lock_path = os.path.join(folder, f".{name}.lock")
        self._temporary = f".{name}.tmp"  # one name is enough, for only the holder of the lock writes

    def exists(self) -> bool:
        """Tell whether there is anything at the path."""
        return os.path.lexists(self.path)

    def read(self) -> bytes:
        """Return the whole content."""
        if not os.path.exists(self.path):
            raise LedgerError(f"there is no ledger at {self.path!r}; Ledger.create(path) starts one")
        with self._explained("cannot read the ledger {}"), open(self.path, "rb") as file:
            return file.read()

    def signature(self) -> tuple[int, int, int]:
        """Return numbers that change whenever the content does, as long as the content only grows."""
        with self._explained("the ledger {} has gone", "put the file back before going on"):
            status = os.stat(self.path)
        return status.st_size, status.st_ino, status.st_mtime_ns

    def write(self, text: str) -> None:
        """Replace the content. On failure the old content stands and `LedgerError` is raised."""
        remedy = "nothing may be released until there is space and permission to write there"
        with self._explained("cannot write the ledger {}", remedy):
            write_whole(self.path, text, self._temporary)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock file; other processes (and other handles of this one) wait."""
        if fcntl is None:  # pragma: no cover
            yield
            return
        remedy = "the folder must exist and be writable"
        with self._explained("cannot create the lock file of the ledger {}", remedy):
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + LOCK_PATIENCE
            while not self._lock_now(fcntl, handle):
                if time.monotonic() > deadline:
                    raise LedgerError(
                        f"another process has held the ledger {self.path!r} for {LOCK_PATIENCE:g} seconds; "
                        "end it, then try again"
                    )
                time.sleep(0.002)
            yield
        finally:
            # Unlock by name: a forked child may hold a copy of the handle, and closing ours would not do.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _lock_now(self, system: ModuleType, handle: int) -> bool:
        """Lock the file unless another process holds it; return whether it is ours."""
        with self._explained("cannot lock the ledger {}", "keep it on a file system that has locks"):
            try:
                system.flock(handle, system.LOCK_EX | system.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
                return False
        return True

    @contextlib.contextmanager
    def _explained(self, problem: str, remedy: str = "") -> Iterator[None]:
        """Turn errors of the system into `LedgerError`."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            words = f"{problem.format(repr(self.path))}: {reason}" + (f"; {remedy}" if remedy else "")
            raise LedgerError(words) from error
