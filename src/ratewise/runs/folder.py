"""A run as a folder: what was asked, what was spent, what was released.

::

    run.json         what was asked: settings, command, versions, times, and how far it got
    schema.json      the public description of the table
    plan.json        what was planned from public facts
    ledger.json      the book, written before each release (unless the run books in one elsewhere)
    checkpoint.npz   released state of a run that is not finished
    model.npz        the model, once finished           statement.json, statement.txt   the guarantee
    history.npz      released values by step            evaluation-1.json, report.html  once asked for
    doubts.json      limits not to be relied on, judged from released values

The folder appears in one step, with its ledger inside, before the first row is read for a release. Each file
appears and changes in one step too: whenever the process dies, every file is whole, and no file bears a final
name before it is.

run.json holds the SHA-256 of every file that says what the run is, of the book as it was, and of itself. It
is written last, so that a kill before it leaves an unfinished run that goes on from its checkpoint, and one
after it a finished run. Files that do not fit are refused by name: a model of another run must not be shown
under this run's statement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from ratewise.accounting import Budget, Ledger, PrivacyStatement
from ratewise.accounting.book import now
from ratewise.accounting.storage import fcntl
from ratewise.enforceability import Doubt
from ratewise.exceptions import InvalidInput
from ratewise.model_files import TableModel, arrays_from_bytes, arrays_to_bytes
from ratewise.plan import Plan
from ratewise.runs.placing import draft_beside, keep_books, place_of, refuse_taken, take_place
from ratewise.runs.plain import doubts_from, json_bytes, parsed, plan_from, read_json, versions, write_json
from ratewise.runs.seal import book_mark, digest, is_sealed, sealed
from ratewise.runs.settings import Settings
from ratewise.schema import Schema
from ratewise.whole_files import umask, write_whole

FORMAT = "ratewise-run"
VERSION = 1
TRAINING, FINISHED = "training", "finished"

_FIELDS: dict[str, type | UnionType] = {
    "format": str,
    "version": int,
    "id": str,
    "status": str,
    "created": str,
    "changed": str,
    "command": list,
    "data": str,
    "rows": int,
    "settings": dict,
    "ledger": str | None,
    "reading": dict,
    "data_name": str,
    "versions": dict,
    "files": dict,
    "book": dict,
    "sha256": str,
}
_AT_FIRST = frozenset(("schema.json", "plan.json"))
_AT_LAST = frozenset(("model.npz", "history.npz", "doubts.json", "statement.json", "statement.txt"))
_EVALUATION = re.compile(r"evaluation-([1-9][0-9]*)\.json")


class RunFolder:
    """A folder that holds a run; made by `create` or `open`."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        self.path = path
        self.description = description

    # --- making and finding ----------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: Settings,
        schema: Schema,
        plan: Plan,
        data: str,
        command: list[str],
        reading: Mapping[str, Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> RunFolder:
        """Make the folder, with its book, in one step; nothing has been released before.

        Parameters
        ----------
        path : path
            Must not exist, unless `force`: then an earlier run there is replaced, and its book is kept
            inside, because what it spent on the same rows stays spent.
        settings, schema, plan
            What will run.
        data : str
            The file that the rows come from, and which `resume` reads again.
        command : list of str
            How the run was started.
        reading : mapping, optional
            How the file is read: the texts that stand for missing cells, as ``missing``.
        ledger : path, optional
            A book that exists already; by default the run gets its own, capped at its budget.
        """
        target = Path(os.path.abspath(path))
        refuse_taken(target, force)
        run_id = uuid.uuid4().hex[:12]
        description = {
            "format": FORMAT,
            "version": VERSION,
            "id": run_id,
            "status": TRAINING,
            "created": now(),
            "changed": now(),
            "command": list(command),
            "data": os.path.abspath(data),
            "rows": plan.n_rows,
            "settings": settings.to_dict(),
            "ledger": None if ledger is None else place_of(ledger, target),
            "reading": {"missing": list((reading or {}).get("missing", ()))},
            "data_name": f"rows of {os.path.basename(data)}",
            "versions": versions(),
        }
        draft = draft_beside(target)
        try:
            description = _fill(draft, description, settings, schema, plan, ledger)
            keep_books(target, draft)
            take_place(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return cls(target, description)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Read the folder of a run; anything else is refused, and so are files that are not the run's own."""
        target = Path(os.path.abspath(path))
        if not target.is_dir():
            raise InvalidInput(f"there is no run folder {os.fspath(path)!r}; ratewise train --out makes one")
        if not (target / "run.json").is_file():
            raise InvalidInput(f"{os.fspath(path)!r} is no run folder: there is no run.json in it")
        description = read_json(target / "run.json", "a run folder's run.json")
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise InvalidInput(f"{os.fspath(path)!r} is no run folder: run.json is of another kind")
        if description.get("version") != VERSION:
            found = description.get("version")
            raise InvalidInput(f"{os.fspath(path)!r} has version {found!r}; this ratewise reads {VERSION}")
        if not _sound(description):
            raise InvalidInput(f"{os.fspath(path)!r}: run.json has missing, unknown or wrong fields")
        if not is_sealed(description):
            raise _foreign(target / "run.json", "its checksum does not fit: it was edited or is damaged")
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
        """What the ledger calls the steps of this run."""
        return self.booked_as("train")

    def booked_as(self, purpose: str) -> str:
        """Return what the ledger calls a release of this run; it tells runs in one book apart."""
        return f"{purpose} (run {self.description['id']})"

    @property
    def missing(self) -> tuple[str, ...]:
        """Texts that stand for missing cells in the run's tables."""
        return tuple(self.description["reading"]["missing"])

    @property
    def settings(self) -> Settings:
        """What was asked."""
        return Settings.from_dict(self.description["settings"])

    @property
    def schema(self) -> Schema:
        """The public description of the table, as given or drafted."""
        return Schema.from_dict(self._json("schema.json"))

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return plan_from(self._json("plan.json"))

    def ledger(self) -> Ledger:
        """Open the book, which must be the one the run began with, with nothing taken out since."""
        ledger = Ledger.open(self.path / (self.description["ledger"] or "ledger.json"))
        mark = self.description["book"]
        if book_mark(ledger, mark["records"]) != mark:
            raise _foreign(Path(str(ledger.path)), "it is another book, or an older copy")
        return ledger

    @property
    def checkpoint_path(self) -> Path:
        """Where released state of an unfinished run is."""
        return self.path / "checkpoint.npz"

    def model(self) -> TableModel:
        """Read the model of a finished run."""
        if not self.finished:
            raise InvalidInput(
                f"the run in {str(self.path)!r} is not finished; ratewise resume goes on with it"
            )
        return TableModel.from_bytes(self._content("model.npz"), self.path / "model.npz")

    def statement(self) -> PrivacyStatement:
        """Read the guarantee of a finished run."""
        return PrivacyStatement.from_dict(self._json("statement.json"))

    def history(self) -> dict[str, Any]:
        """Read the released values by step."""
        return arrays_from_bytes(self._content("history.npz"), "history", self.path / "history.npz")[1]

    def doubts(self) -> tuple[Doubt, ...]:
        """Read which limits are not to be relied on, as training judged from released values."""
        return doubts_from(self._json("doubts.json"))

    @property
    def evaluations(self) -> list[Path]:
        """The evaluations that were written, in order."""
        return [self.path / name for name in sorted(self.description["files"], key=_number) if _number(name)]

    def last_evaluation(self) -> str:
        """Read the newest of the evaluations."""
        return self._content(self.evaluations[-1].name).decode("utf-8")

    def keep_evaluation(self, document: str) -> Path:
        """Write an evaluation beside the earlier ones, and return its place."""
        with self._lock(wait=True):
            current = RunFolder.open(self.path).description  # another process may have written one meanwhile
            number = 1 + max(map(_number, (*current["files"], *os.listdir(self.path))))
            path = self.path / f"evaluation-{number}.json"
            self._write({path.name: document.encode("utf-8")}, current)
        return path

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

    def _content(self, name: str) -> bytes:
        """Return the bytes of a file that run.json names, if they are the run's own."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise _foreign(path, f"cannot be read: {problem.strerror or type(problem).__name__}") from None
        if digest(content) != self.description["files"].get(name):
            raise _foreign(path, "its SHA-256 is not the one in run.json: edited, damaged, or of another run")
        return content

    def _json(self, name: str) -> Any:
        return parsed(self._content(name), self.path / name, name)

    # --- writing ---------------------------------------------------------------------------------------

    def finish(
        self,
        model: TableModel,
        statement: PrivacyStatement,
        history: Mapping[str, Any],
        doubts: Iterable[Doubt] = (),
    ) -> None:
        """Write the results, and only then say that the run is finished."""
        contents = {
            "model.npz": model.to_bytes(),
            "history.npz": arrays_to_bytes("history", {}, history),
            "doubts.json": json_bytes([dataclasses.asdict(doubt) for doubt in doubts]),
            "statement.json": json_bytes(statement.to_dict()),
            "statement.txt": f"{statement}\n".encode(),
        }
        self._write(contents, {**self.description, "status": FINISHED, "book": book_mark(self.ledger())})
        self.checkpoint_path.unlink(missing_ok=True)

    def _write(self, contents: Mapping[str, bytes], description: Mapping[str, Any]) -> None:
        """Write files, and then the run.json that names them: a kill in between leaves them unnamed."""
        for name, content in contents.items():
            write_whole(self.path / name, content)
        files = {**description["files"], **{name: digest(content) for name, content in contents.items()}}
        self.description = sealed({**description, "files": files, "changed": now()})
        write_json(self.path / "run.json", self.description)


def _sound(description: dict[str, Any]) -> bool:
    """Tell whether every field of run.json is there and of its kind."""
    if description.keys() != _FIELDS.keys() or description["status"] not in (TRAINING, FINISHED):
        return False
    if not all(isinstance(description[name], kind) for name, kind in _FIELDS.items()):
        return False
    expected = _AT_FIRST | _AT_LAST if description["status"] == FINISHED else _AT_FIRST
    names = {name for name in description["files"] if not _number(name)}
    return names == expected and isinstance(description["reading"].get("missing"), list)


def _number(name: str) -> int:
    """Return which evaluation a file is; 0 for any other file."""
    found = _EVALUATION.fullmatch(name)
    return int(found[1]) if found else 0


def _foreign(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{str(path)!r} is not as the run left it ({problem}); put the original file back, or train anew"
    )


def _fill(
    draft: Path,
    description: dict[str, Any],
    settings: Settings,
    schema: Schema,
    plan: Plan,
    ledger: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """Write the first files of a run, and return what run.json says."""
    os.chmod(draft, 0o777 & ~umask())
    contents = {
        "schema.json": json_bytes(schema.to_dict()),
        "plan.json": json_bytes(dataclasses.asdict(plan)),
    }
    for name, content in contents.items():
        write_whole(draft / name, content)
    if ledger is None:
        cap = None if settings.epsilon is None else Budget(float(settings.epsilon), float(settings.delta))
        book = Ledger.create(draft / "ledger.json", cap=cap, neighbours=settings.neighbours)
    else:
        book = Ledger.open(ledger)
    files = {name: digest(content) for name, content in contents.items()}
    found = sealed({**description, "files": files, "book": book_mark(book)})
    write_json(draft / "run.json", found)
    return found
