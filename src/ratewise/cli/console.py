"""What a person, a script or a log sees, progress of a run, and the files that commands read and write."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click

from ratewise.accounting import Budget, Ledger
from ratewise.data.files import FileTable
from ratewise.data.files import read_table as read_file
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.runs import RunFolder, Watch
from ratewise.runs.folder import refuse_taken, refuse_unwritable
from ratewise.training.callbacks import Line, Moment, Progress
from ratewise.training.certificate import certificate_half_width
from ratewise.training.loop import StepRecord
from ratewise.training.session import Session

HUMAN, QUIET, JSON = "human", "quiet", "json"


class Console:
    """Where words go.

    Results go to standard output; progress, notes and warnings to standard error, so that results can be
    piped. `quiet` leaves notes and progress out. In JSON mode everything is a line of JSON on standard
    output, with an `event` that says what it is.
    """

    def __init__(self, mode: str = HUMAN) -> None:
        self.mode = mode
        self.findings: set[str] = set()  # that were noted already

    def note(self, text: str, **fields: Any) -> None:
        """Say what is going on."""
        self._say("note", text, self.mode == HUMAN, message=text, **fields)

    def warn(self, text: str) -> None:
        """Say what the user should know; also when quiet."""
        self._say("warning", f"warning: {text}", message=text)

    def error(self, text: str, code: int) -> None:
        """Say why the command ends."""
        self._say("error", f"error: {text}", message=text, exit_code=code)

    def result(self, text: str, **fields: Any) -> None:
        """Give what was asked for."""
        self._say("result", text, err=False, **fields)

    def done(self, text: str, **fields: Any) -> None:
        """Say how a job ended; a quiet one ends without words."""
        self._say("done", text, self.mode == HUMAN, err=False, **fields)

    seconds = 0.5  # between two moments that are shown

    def show(self, moment: Moment) -> None:
        """Say how far a training is, in JSON mode: a screen of `Progress`."""
        self._say("step", "", False, **moment._asdict())

    def end(self) -> None:
        """There is no line to end."""

    def _say(self, event: str, text: str, shown: bool = True, err: bool = True, **fields: Any) -> None:
        if self.mode == JSON:
            content = {"event": event, **plain_data(fields)}
            click.echo(json.dumps(content, allow_nan=False, ensure_ascii=False))
            sys.stdout.flush()
        elif shown:
            click.echo(text, err=err)

    def show_warning(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        """Take the place of ``warnings.showwarning``: words without a place in the source."""
        kind = "" if issubclass(category, RatewiseWarning) else f"{category.__name__}: "
        self.warn(f"{kind}{message}")


def plain_data(value: Any) -> Any:
    """Return plain data without what JSON cannot hold: infinity becomes a word, NaN null."""
    if isinstance(value, dict):
        return {str(name): plain_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "infinity" if value > 0 else None
    return value


def current() -> Console:
    """Return the console of the running command."""
    context = click.get_current_context(silent=True)
    return (None if context is None else context.find_object(Console)) or Console()


# ------------------------------------------------------------------------------------------ progress


class Stopped(Exception):  # noqa: N818 - reads as what happened
    """The user asked to stop, by `signal`; the step that was going on is complete and written down."""

    def __init__(self, message: str = "", signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = int(signal)


class Watcher:
    """Follow a run, and stop it between two steps when asked to; everything shown is computed from released values."""

    def __init__(self, console: Console) -> None:
        self.watch = Watch(on_start=self.on_start, on_step=self.on_step)
        self._console = console
        self._asked: int | None = None
        self._shown = contextlib.ExitStack()

    def on_start(self, session: Session) -> None:
        """Show what is planned."""
        plan, done = session.plan, 0 if session.loop is None else session.loop.optimizer.done
        going = f"going on after step {done} of" if done else "training for"
        count = 0 if session.compiled is None else len(session.compiled.items)
        said = "no constraints" if not count else f"{count} constraint{'s' * (count > 1)}"
        if session.compiled is not None and count and plan.private:
            width = certificate_half_width(session.compiled, plan)
            said += f", to be certified to about +- {width:.3f}"
        unit = "rows" if plan.unit.kind == "row" else "ids"
        self._console.note(
            f"{going} {plan.steps} steps, about {plan.expected_units:.0f} of {plan.n_units} {unit} in each, {said}",
            steps=plan.steps,
            steps_done=done,
            units=plan.n_units,
        )
        screen = Line() if self._console.mode == HUMAN else self._console
        self._progress = self._shown.enter_context(Progress(session, screen))
        self._stop_if_asked()

    def on_step(self, record: StepRecord) -> None:
        """Show the step, now and then; stop if asked to."""
        self._progress.show(record)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._asked is not None:
            raise Stopped(signal=self._asked)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Let Ctrl-C or SIGTERM stop the run after the step that is going on; a second one stops at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._asked is not None:
                signal.default_int_handler(number, frame)
            self._asked = number

        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            with self._shown:
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# -------------------------------------------------------------------------------------------- files

_READING = ("missing", "sep", "decimal", "encoding", "header", "sheet", "date_order")
_OF_ROWS = ("missing", "nested", "ragged")  # findings about cells of some rows
_DETECTED = {"sep": "separator", "decimal": "decimal mark", "date_order": "order of dates"}


def reading_of(fields: Mapping[str, Any], before: Mapping[str, Any] | None = None, path: str = "") -> dict[str, Any]:
    """Return how a file is read: the options that were given, over those of the run's own table.

    The sheet of an earlier workbook is kept for workbooks only.
    """
    workbook = path.lower().endswith((".xlsx", ".xlsm"))
    kept = {name: value for name, value in (before or {}).items() if name != "sheet" or workbook}
    given = {name: fields.get(name) for name in _READING if fields.get(name) not in (None, ())}
    return {**kept, **{name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}}


def read_table(path: str, reading: Mapping[str, Any], *, private: bool = False) -> FileTable:
    """Return a table; what was detected is noted on the console, once; of private rows, how the file is written only."""
    console = current()
    table = read_file(path, **reading)
    for finding in table.findings:
        if private and finding.topic in _OF_ROWS:
            continue
        if (said := finding.for_command_line()) not in console.findings:
            console.findings.add(said)
            console.note(said, finding=finding.topic)
    return table


@dataclass(frozen=True)
class Table:
    """A table that was read to train on.

    `given` are the options that were given to read the file `data`, `reading` all that read a further file in the
    same way, `outside` what was found out by looking at the file, outside the guarantee, for the statement.
    """

    data: str
    frame: Any
    given: dict[str, Any]
    reading: dict[str, Any]
    outside: tuple[str, ...]

    @classmethod
    def read(cls, data: str, given: Mapping[str, Any]) -> Table:
        """Read the file; what was detected is noted on the console."""
        current().note(f"reading {data}")
        found = read_table(data, given, private=True)
        looked = [_DETECTED.get(name, name) for name in found.options if name not in given]
        # of what no option declares
        looked += ["marks of thousands"] if "sep" in found.options else []
        looked += ["lines around the table"] if found.options else []
        outside = (f"how the file is written ({', '.join(looked)})",) if looked else ()
        return cls(data, found.frame, dict(given), {**found.options, **given}, outside)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [str(name) for name in self.frame.columns]

    def new_run(self, out: str | Path, **made: Any) -> RunFolder:
        """Make the folder of a run on this table; further arguments are those of `RunFolder.create`."""
        own: dict[str, Any] = {"data": self.data, "reading": self.reading, "outside": self.outside}
        return RunFolder.create(out, **own, **made)


def shared_ledger(path: str | Path, cap: float | None, delta: float, **made: Any) -> Ledger:
    """Open a ledger that several runs or evaluations share; a new one is made with `cap` and what else is given."""
    if not os.path.lexists(path):
        if cap is None:
            raise click.UsageError("a new --ledger needs --ledger-cap: runs and evaluations that follow share a cap")
        Ledger.create(path, cap=Budget(float(cap), float(delta)), **made)
    return Ledger.open(path)


def refuse_folder(out: str, force: bool | None = False) -> None:
    """Raise if a folder cannot be made, or exists; `force` None belongs to a command without it."""
    target = Path(os.path.abspath(out))
    refuse_taken(target, bool(force), "or --force to replace a run" if force is not None else "")
    refuse_unwritable(target)


def refuse_file(out: str, force: bool, endings: tuple[str, ...] = ()) -> None:
    """Raise if a file cannot be written, or exists; `force` permits to replace it."""
    if endings and not out.lower().endswith(endings):
        raise InvalidInput(f"{out!r} must end in {' or '.join(endings)}")
    if os.path.isdir(out):
        raise InvalidInput(f"{out!r} is a folder; give the name of a file")
    if os.path.lexists(out) and not force:
        raise InvalidInput(f"{out!r} exists already; give another name with --out, or --force to replace it")
    if not Path(out).absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(Path(out).parent)!r}; make it, or take another --out")
    refuse_unwritable(Path(out).absolute())
