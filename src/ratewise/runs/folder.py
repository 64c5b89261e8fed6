"""A run as a folder: what was asked, what was spent, what was released.

::

    run.json         what was asked: settings, command, versions, times, and how far it got
    schema.json      the public description of the table
    plan.json        what was planned from public facts
    ledger.json      the book, written before each release (unless the run books in one elsewhere)
    checkpoint.npz   released state of a run that is not finished
    model.npz        the model, once finished           statement.json, statement.txt   the guarantee
    history.npz      released values by step            evaluation-1.json, report.html  once asked for

The folder appears in one step, with its ledger inside, before the first row is read for a release. Each file
appears and changes in one step too: whenever the process dies, every file is whole, and no file bears a final
name before it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from ratewise.accounting import Budget, Ledger, PrivacyStatement
from ratewise.accounting.book import now, strict_json
from ratewise.accounting.statement import software_version
from ratewise.accounting.storage import fcntl
from ratewise.exceptions import InvalidInput
from ratewise.model_files import TableModel, flush_folder, read_arrays, write_arrays, write_whole
from ratewise.plan import DualControl, Plan, Preparation
from ratewise.runs.settings import Settings
from ratewise.schema import Schema

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
}


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
            "ledger": None if ledger is None else _place_of(ledger, target),
            "reading": {"missing": list((reading or {}).get("missing", ()))},
            "data_name": f"rows of {os.path.basename(data)}",
            "versions": versions(),
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            _fill(draft, description, settings, schema, plan, own_ledger=ledger is None)
            _keep_books(target, draft)
            _take_place(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return cls(target, description)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Read the folder of a run; anything else is refused."""
        target = Path(os.path.abspath(path))
        if not target.is_dir():
            raise InvalidInput(f"there is no run folder {os.fspath(path)!r}; ratewise train --out makes one")
        description = read_json(target / "run.json", "a run folder's run.json")
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise InvalidInput(f"{os.fspath(path)!r} is no run folder: run.json is of another kind")
        if description.get("version") != VERSION:
            found = description.get("version")
            raise InvalidInput(f"{os.fspath(path)!r} has version {found!r}; this ratewise reads {VERSION}")
        if not _sound(description):
            raise InvalidInput(f"{os.fspath(path)!r}: run.json has missing, unknown or wrong fields")
        return cls(target, description)

    # --- what is in it ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the training came to its end."""
        return bool(self.description["status"] == FINISHED)

    @property
    def purpose(self) -> str:
        """What the ledger calls the steps of this run."""
        return f"train (run {self.description['id']})"

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
        return Schema.from_dict(read_json(self.path / "schema.json", "schema.json"))

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return plan_from(read_json(self.path / "plan.json", "plan.json"))

    def ledger(self) -> Ledger:
        """Open the book."""
        return Ledger.open(self.path / (self.description["ledger"] or "ledger.json"))

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
        return TableModel.load(self.path / "model.npz")

    def statement(self) -> PrivacyStatement:
        """Read the guarantee of a finished run."""
        return PrivacyStatement.from_dict(read_json(self.path / "statement.json", "statement.json"))

    def history(self) -> dict[str, Any]:
        """Read the released values by step."""
        return read_arrays(self.path / "history.npz", "history")[1]

    @property
    def evaluations(self) -> list[Path]:
        """The evaluations that were written, in order."""
        found = [path for path in self.path.glob("evaluation-*.json") if path.stem[11:].isdecimal()]
        return sorted(found, key=lambda path: int(path.stem[11:]))

    def keep_evaluation(self, document: str) -> Path:
        """Write an evaluation beside the earlier ones, and return its place."""
        earlier = self.evaluations
        number = int(earlier[-1].stem[11:]) + 1 if earlier else 1
        path = self.path / f"evaluation-{number}.json"
        write_whole(path, document)
        return path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from working on the run, and sweep away what a killed one left behind."""
        with open(self.path / ".run.lock", "a") as handle:
            if fcntl is not None:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise InvalidInput(
                        f"another process is at work on the run in {str(self.path)!r}; wait, or end it first"
                    ) from None
            for leftover in self.path.glob(".*.npz.*.tmp"):
                leftover.unlink(missing_ok=True)
            yield

    # --- writing ---------------------------------------------------------------------------------------

    def finish(self, model: TableModel, statement: PrivacyStatement, history: Mapping[str, Any]) -> None:
        """Write the results, and only then say that the run is finished."""
        model.save(self.path / "model.npz")
        write_arrays(self.path / "history.npz", "history", {}, history)
        write_json(self.path / "statement.json", statement.to_dict())
        write_whole(self.path / "statement.txt", f"{statement}\n")
        self.description = {**self.description, "status": FINISHED, "changed": now()}
        write_json(self.path / "run.json", self.description)
        self.checkpoint_path.unlink(missing_ok=True)


def _sound(description: dict[str, Any]) -> bool:
    """Tell whether every field of run.json is there and of its kind."""
    if description.keys() != _FIELDS.keys() or description["status"] not in (TRAINING, FINISHED):
        return False
    missing = description["reading"].get("missing") if isinstance(description["reading"], dict) else None
    return isinstance(missing, list) and all(isinstance(description[n], kind) for n, kind in _FIELDS.items())


def refuse_taken(target: Path, force: bool) -> None:
    """Refuse a place that is taken; with `force`, any but that of an earlier run."""
    if not os.path.lexists(target):
        return
    if not force:
        raise InvalidInput(f"{str(target)!r} exists already; take another --out, or --force to replace a run")
    if not (target / "run.json").is_file():
        raise InvalidInput(f"{str(target)!r} is no run folder, and --force replaces nothing else")


def versions() -> dict[str, str]:
    """Return the versions of what computes, for the record."""
    names = ("ratewise", "numpy", "scipy", "scikit-learn", "dp-accounting", "pandas")
    return {"python": platform.python_version(), **{name: software_version(name) for name in names}}


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file; anything else is refused by name."""
    try:
        return strict_json(path.read_bytes())
    except OSError as problem:
        raise InvalidInput(
            f"cannot read {str(path)!r}: {problem.strerror or type(problem).__name__}"
        ) from None
    except ValueError:
        raise InvalidInput(f"{str(path)!r} is no JSON, so it cannot be {what}") from None


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON, in one step."""
    write_whole(path, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def plan_from(fields: Any) -> Plan:
    """Return the plan that ``dataclasses.asdict`` described."""
    try:
        given = dict(fields)
        given["dual"] = DualControl(**given["dual"])
        if given["preparation"] is not None:
            given["preparation"] = Preparation(**given["preparation"])
        return Plan(**given)
    except (TypeError, KeyError, ValueError):
        raise InvalidInput("plan.json holds no plan of this version") from None


def _fill(
    draft: Path, description: dict[str, Any], settings: Settings, schema: Schema, plan: Plan, own_ledger: bool
) -> None:
    os.chmod(draft, 0o777 & ~_umask())
    write_json(draft / "run.json", description)
    write_json(draft / "schema.json", schema.to_dict())
    write_json(draft / "plan.json", dataclasses.asdict(plan))
    if own_ledger:
        cap = None if settings.epsilon is None else Budget(float(settings.epsilon), float(settings.delta))
        Ledger.create(draft / "ledger.json", cap=cap, neighbours=settings.neighbours)


def _place_of(ledger: str | os.PathLike[str], target: Path) -> str:
    """Return where the book is: beside the run, it is found again when both are moved."""
    place = Path(os.path.abspath(ledger))
    return os.path.join("..", place.name) if place.parent == target.parent else str(place)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _keep_books(old: Path, draft: Path) -> None:
    """Copy the books of the run that is replaced, and of those that it replaced."""
    kept = sorted((old / "earlier").glob("ledger-*.json")) if old.is_dir() else []
    current = old / "ledger.json"
    if current.is_file():
        kept.append(current)
    for number, book in enumerate(kept, start=1):
        (draft / "earlier").mkdir(exist_ok=True)
        write_whole(draft / "earlier" / f"ledger-{number}.json", book.read_bytes())


def _take_place(draft: Path, target: Path) -> None:
    """Give the folder its name; an earlier run steps aside first and is removed last."""
    aside = None
    if os.path.lexists(target):
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        os.replace(target, aside / "run")
    os.rename(draft, target)
    flush_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
