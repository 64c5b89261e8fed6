"""A run as a folder: what was asked, what was spent, what was released.

::

    run.json           what was asked: settings, command, versions, times, and how far it got
    schema.json        the public description of the table, if one was given
    plan.json          every planned release with its noise, from public facts
    ledger.json        the ledger, written before each release (unless the run shares one)
    checkpoint.ratewise   released state of a run that is not finished
    model.ratewise      the classifier, once finished, with the released values of each step
    certificate.json   the constraints on training rows
    statement.json, statement.txt   the guarantee
    evaluation-1.json, report.html  once asked for

The folder appears in one step, with its ledger inside, before the first row is read for a release. Each file
appears and changes in one step too: whenever the process dies, every file is whole, and no file has its final
name before it is.

run.json holds the SHA-256 of every file that says what the run is, of the ledger as it was, and of itself. It is
written last: a process killed before leaves an unfinished run that resumes from its checkpoint. Files that do
not fit are rejected by name: a model of another run must not be shown under this run's statement.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratewise._files import canonical, flush_folder, named, now, strict_json, umask, write_whole
from ratewise.accounting import Admission, Budget, Ledger, PrivacyStatement
from ratewise.accounting.statement import software_version
from ratewise.accounting.storage import fcntl
from ratewise.data.schema import Schema
from ratewise.estimators.persistence import from_bytes, to_bytes
from ratewise.exceptions import InvalidInput
from ratewise.runs.settings import Settings
from ratewise.training.certificate import Certificate
from ratewise.training.plan import Plan

if TYPE_CHECKING:
    from ratewise.estimators.classifier import RateConstrainedClassifier

FORMAT, VERSION = "ratewise-run", 3
TRAINING, FINISHED = "training", "finished"

_RESULTS = {"model.ratewise", "certificate.json", "statement.json", "statement.txt"}
_SOFTWARE = ("ratewise", "numpy", "scipy", "scikit-learn", "dp-accounting", "pandas")


def json_bytes(content: Any) -> bytes:
    """Return plain data as the content of a JSON file."""
    return (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


def sealed(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the digest of all its other fields.

    >>> first = sealed({"status": "finished"})
    >>> sealed(first) == first, sealed({**first, "status": "training"}) == first
    (True, False)
    """
    fields = {name: value for name, value in description.items() if name != "sha256"}
    return {**fields, "sha256": _digest(canonical(fields).encode("ascii"))}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _mark(ledger: Ledger, records: int | None = None) -> dict[str, Any]:
    """Return what identifies a ledger: how many records it has, and a digest of them and its header.

    A ledger only grows, so its first `records` records (None: all) have the same mark for ever.
    """
    document = strict_json(ledger.to_json())
    lines = [canonical(part) for part in (document["ledger"], *document["records"][:records])]
    return {"records": len(lines) - 1, "sha256": _digest("\n".join(lines).encode("ascii"))}


def refuse_taken(target: Path, force: bool, hint: str = "or --force to replace a run") -> None:
    """Raise if the place is taken; with `force`, unless an earlier run is there."""
    if not os.path.lexists(target):
        return
    if not force:
        raise InvalidInput(f"{str(target)!r} exists already; take another --out{', ' * bool(hint)}{hint}")
    if not (target / "run.json").is_file():
        raise InvalidInput(f"{str(target)!r} is no run folder, and --force replaces nothing else")


def refuse_unwritable(target: Path) -> None:
    """Raise if nothing can be written there, by writing: before rows are read or budget is spent.

    Nothing is left behind. Folders on the way that do not exist yet are not made.
    """
    place = target.parent
    while not os.path.lexists(place):
        place = place.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".ratewise.", suffix=".tmp", dir=place))
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise InvalidInput(
            f"cannot write {str(target)!r}: {reason} ({str(place)!r}); nothing was spent: take another --out"
        ) from None


class RunFolder:
    """A folder that holds a run; made by `create` or `open`."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        self.path = path
        self.description = description

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: Settings,
        schema: Schema | None,
        plan: Plan,
        data: str,
        command: list[str],
        reading: Mapping[str, Any] | None = None,
        outside: Iterable[str] = (),
        ledger: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> RunFolder:
        """Make the folder, with its ledger, in one step; nothing has been released before.

        With `force` an earlier run at `path` is replaced, and its ledger is kept inside, because what it spent on the
        same rows stays spent. `data` is the file that `resume` reads again, with the options `reading`; `outside` is
        what was read off the data outside the guarantee. Without a shared `ledger` the run gets its own, capped at its
        budget.
        """
        target = Path(os.path.abspath(path))
        refuse_taken(target, force)
        description = {
            "format": FORMAT,
            "version": VERSION,
            "id": uuid.uuid4().hex[:12],
            "status": TRAINING,
            "created": now(),
            "command": list(command),
            "data": os.path.abspath(data),
            "units": plan.n_units,  # with ids, the number of rows is private
            "settings": settings.to_dict(),
            "ledger": None if ledger is None else _place_of(ledger, target),
            "reading": dict(reading or {}),
            "outside": list(outside),
            "data_name": f"rows of {os.path.basename(data)}",
            "versions": {"python": platform.python_version(), **{n: software_version(n) for n in _SOFTWARE}},
            "files": {},
        }
        with named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            os.chmod(draft, 0o777 & ~umask())
            if ledger is None:
                cap = None if settings.epsilon is None else Budget(float(settings.epsilon), float(plan.delta))
                own = {"cap": cap, "adaptive": False, "neighbours": plan.neighbours, "unit": plan.unit}
                found = Ledger.create(draft / "ledger.json", **own)
            else:
                found = Ledger.open(ledger)
            contents = {"plan.json": json_bytes(_plan_to_dict(plan))}
            if schema is not None:
                contents["schema.json"] = json_bytes(schema.to_dict())
            folder = cls(draft, description)
            folder._write(contents, {**description, "ledger_mark": _mark(found)})
            _keep_ledgers(target, draft)
            _take_place(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return cls(target, folder.description)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Read the folder of a run; anything else is rejected, and so are files that are not the run's own."""
        target, shown = Path(os.path.abspath(path)), repr(os.fspath(path))
        if not target.is_dir():
            raise InvalidInput(f"there is no run folder {shown}; ratewise train --out makes one")
        place = target / "run.json"
        if not place.is_file():
            raise InvalidInput(f"{shown} is no run folder: there is no run.json in it")
        try:
            description = _parsed(place.read_bytes(), place)
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise InvalidInput(f"cannot read {str(place)!r}: {reason}") from None
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise InvalidInput(f"{shown} is no run folder: run.json is of another kind")
        if description.get("version") != VERSION:
            found = description.get("version")
            raise InvalidInput(f"{shown} has version {found!r}; this ratewise reads {VERSION}")
        if sealed(description) != description:
            raise _foreign(place, "its checksum does not fit: it was edited or is damaged")
        expected = {"plan.json", *(_RESULTS if description["status"] == FINISHED else ())}
        listed = {name for name in description["files"] if not _number(name)}
        if not expected <= listed <= expected | {"schema.json"}:  # no file outside the folder is read
            raise InvalidInput(f"{shown}: run.json has missing, unknown or wrong fields")
        folder = cls(target, description)
        for name in description["files"]:
            folder._content(name)
        return folder

    # --- what is in it ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the training came to its end."""
        return bool(self.description["status"] == FINISHED)

    @property
    def purpose(self) -> str:
        """What the ledger calls the plan of this run; it identifies the run in a shared ledger."""
        return f"train (run {self.description['id']})"

    @property
    def settings(self) -> Settings:
        """What was asked."""
        return Settings.from_dict(self.description["settings"])

    @property
    def schema(self) -> Schema | None:
        """The public description of the table, if one was given."""
        given = "schema.json" in self.description["files"]
        return Schema.from_dict(self._json("schema.json")) if given else None

    @property
    def checkpoint_path(self) -> Path:
        """Where released state of an unfinished run is."""
        return self.path / "checkpoint.ratewise"

    def ledger(self) -> Ledger:
        """Open the ledger, which must be the one the run began with, with nothing taken out since."""
        ledger = Ledger.open(self.path / (self.description["ledger"] or "ledger.json"))
        mark = self.description["ledger_mark"]
        if _mark(ledger, mark["records"]) != mark:
            raise _foreign(Path(str(ledger.path)), "it is another ledger, or an older copy")
        return ledger

    def admission(self, ledger: Ledger) -> Admission | None:
        """Return the admission of this run, if the ledger has it."""
        return next((found for found in ledger.admissions if found.purpose == self.purpose), None)

    def model(self) -> RateConstrainedClassifier:
        """Read the classifier of a finished run."""
        if not self.finished:
            raise InvalidInput(f"the run in {str(self.path)!r} is not finished; ratewise resume goes on with it")
        return from_bytes(self._content("model.ratewise"), self.path / "model.ratewise")

    def certificate(self) -> Certificate | None:
        """Read the certificate on the training rows; None without constraints."""
        described = self._json("certificate.json")
        return None if described is None else Certificate.from_dict(described)

    def statement(self) -> PrivacyStatement:
        """Read the guarantee of a finished run."""
        return PrivacyStatement.from_dict(self._json("statement.json"))

    @property
    def evaluations(self) -> list[Path]:
        """The evaluations that were written, in order."""
        return [self.path / name for name in sorted(self.description["files"], key=_number) if _number(name)]

    def last_evaluation(self) -> Any:
        """Read the newest of the evaluations, as plain data."""
        return self._json(self.evaluations[-1].name)

    def _content(self, name: str) -> bytes:
        """Return the bytes of a file that run.json names, if they are the run's own."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise _foreign(path, f"cannot be read: {problem.strerror or type(problem).__name__}") from None
        if _digest(content) != self.description["files"].get(name):
            raise _foreign(path, "its SHA-256 is not the one in run.json: edited, damaged, or of another run")
        return content

    def _json(self, name: str) -> Any:
        return _parsed(self._content(name), self.path / name)

    # --- writing ---------------------------------------------------------------------------------------

    def finish(self, classifier: RateConstrainedClassifier) -> None:
        """Write the results, and only then that the run is finished."""
        statement, certificate = classifier.privacy_, classifier.certificate_
        contents = {
            "model.ratewise": to_bytes(classifier),
            "certificate.json": json_bytes(None if certificate is None else certificate.to_dict()),
            "statement.json": json_bytes(statement.to_dict()),
            "statement.txt": f"{statement}\n".encode(),
        }
        mark = _mark(self.ledger())
        self._write(contents, {**self.description, "status": FINISHED, "ledger_mark": mark})
        self.checkpoint_path.unlink(missing_ok=True)

    def keep_evaluation(self, evaluation: Any) -> Path:
        """Write an evaluation beside the earlier ones, and return its place."""
        with self._lock(wait=True):
            current = RunFolder.open(self.path).description  # another process may have written one meanwhile
            number = 1 + max(map(_number, (*current["files"], *os.listdir(self.path))))
            path = self.path / f"evaluation-{number}.json"
            self._write({path.name: json_bytes(evaluation)}, current)
        return path

    def _write(self, contents: Mapping[str, bytes], description: Mapping[str, Any]) -> None:
        """Write files, and then the run.json that names them: a kill in between leaves them unnamed."""
        for name, content in contents.items():
            write_whole(self.path / name, content)
        files = {**description["files"], **{name: _digest(content) for name, content in contents.items()}}
        self.description = sealed({**description, "files": files, "changed": now()})
        write_whole(self.path / "run.json", json_bytes(self.description))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from working on the run, and sweep away what a killed one left behind."""
        with self._lock(wait=False):
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)
            yield

    @contextlib.contextmanager
    def _lock(self, *, wait: bool) -> Iterator[None]:
        with open(self.path / ".run.lock", "a") as handle:
            if fcntl is not None:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except OSError:
                    raise InvalidInput(
                        f"another process is at work on the run in {str(self.path)!r}; wait, or end it first"
                    ) from None
            yield


def _parsed(content: bytes, path: Path) -> Any:
    try:
        return strict_json(content)
    except ValueError:
        raise InvalidInput(f"{str(path)!r} is no JSON, so it cannot be a file of a run") from None


def _number(name: str) -> int:
    """Return which evaluation a file is; 0 for any other file."""
    found = re.fullmatch(r"evaluation-([1-9][0-9]*)\.json", name)
    return int(found[1]) if found else 0


def _foreign(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{str(path)!r} is not as the run left it ({problem}); put the original file back, or train anew"
    )


def _plan_to_dict(plan: Plan) -> dict[str, Any]:
    return {
        "units": plan.n_units,
        "unit": plan.unit.to_dict(),
        "epsilon": plan.epsilon if plan.private else None,
        **{name: getattr(plan, name) for name in ("neighbours", "delta", "sampling_rate", "steps")},
        "releases": {name: event.to_dict() for name, event in plan.events.items()},
    }


def _place_of(ledger: str | os.PathLike[str], target: Path) -> str:
    """Return where a shared ledger is: beside the run, it is found again when both are moved."""
    place = Path(os.path.abspath(ledger))
    return os.path.join("..", place.name) if place.parent == target.parent else str(place)


def _keep_ledgers(old: Path, draft: Path) -> None:
    """Copy the ledgers of the run that is replaced, and of those that it replaced.

    That of its training, and that of private evaluations: what was spent on those rows stays spent.
    """
    for name in ("ledger", "evaluations"):
        kept = sorted((old / "earlier").glob(f"{name}-*.json"), key=lambda file: (len(file.name), file.name))
        current = old / f"{name}.json"
        for number, file in enumerate([*kept, *([current] if current.is_file() else [])], start=1):
            (draft / "earlier").mkdir(exist_ok=True)
            write_whole(draft / "earlier" / f"{name}-{number}.json", file.read_bytes())


def _take_place(draft: Path, target: Path) -> None:
    """Give the folder its name; an earlier run is moved aside first and removed last."""
    with named(target):
        aside = None
        if os.path.lexists(target):
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
            os.replace(target, aside / "run")
        os.rename(draft, target)
        flush_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
