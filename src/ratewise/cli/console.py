"""What a person, a script or a log sees, progress of a run, and the files that commands read and write."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click
import numpy as np

from ratewise.data.cells import parse_text
from ratewise.data.files import FileTable
from ratewise.data.files import read_table as read_file
from ratewise.data.schema import MOST_CLASSES, Schema
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.runs import RunFolder, Settings, Watch
from ratewise.runs.folder import refuse_taken, refuse_unwritable
from ratewise.training.certificate import certificate_half_width
from ratewise.training.loop import StepRecord
from ratewise.training.plan import Plan
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

    def note(self, text: str, **fields: Any) -> None:
        """Say what is going on."""
        if self.mode == JSON:
            self._line("note", message=text, **fields)
        elif self.mode == HUMAN:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Say what the user should know; also when quiet."""
        if self.mode == JSON:
            self._line("warning", message=text)
        else:
            click.echo(f"warning: {text}", err=True)

    def error(self, text: str, code: int) -> None:
        """Say why the command ends."""
        if self.mode == JSON:
            self._line("error", message=text, exit_code=code)
        else:
            click.echo(f"error: {text}", err=True)

    def result(self, text: str, **fields: Any) -> None:
        """Give what was asked for."""
        if self.mode == JSON:
            self._line("result", **fields)
        else:
            click.echo(text)

    def done(self, text: str, **fields: Any) -> None:
        """Say how a job ended; a quiet one ends without words."""
        if self.mode == JSON:
            self._line("done", **fields)
        elif self.mode == HUMAN:
            click.echo(text)

    def step(self, **fields: Any) -> None:
        """Say how far a job is, in JSON mode."""
        self._line("step", **fields)

    def _line(self, event: str, **fields: Any) -> None:
        click.echo(json.dumps({"event": event, **plain_data(fields)}, allow_nan=False, ensure_ascii=False))
        sys.stdout.flush()

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
    found = None if context is None else context.find_object(Console)
    return Console() if found is None else found


_SECONDS_BETWEEN = 0.5
_LINES_APART = 10.0  # seconds, where standard error is a file
_WIDE, _SHORT = 99, 8  # columns of a wide terminal, and of the bar on a narrow one


class Stopped(Exception):  # noqa: N818 - reads as what happened
    """The user asked to stop; the step that was going on is complete and written down.

    Attributes
    ----------
    signal : int
        How they asked: Ctrl-C is SIGINT.
    """

    def __init__(self, message: str = "", signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = int(signal)


class Watcher:
    """Show step, epsilon, norm of the released gradient, largest gap and time left.

    Everything is computed from released values: the gradient with its noise, the constraints' values from noisy
    counts. It also stops the run when asked to, between two steps.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._asked: int | None = None
        self._items: Any = ()
        self._live = console.mode == HUMAN and sys.stderr.isatty()
        self._apart = _SECONDS_BETWEEN if self._live or console.mode == JSON else _LINES_APART
        self._last = -np.inf
        self._shown = False
        self._timed: tuple[int, float] | None = None  # a step and when it was over, once the pace is steady

    @property
    def watch(self) -> Watch:
        """What `train_run` calls."""
        return Watch(on_start=self.on_start, on_step=self.on_step)

    def on_start(self, session: Session) -> None:
        """Show what is planned."""
        plan, done = session.plan, 0 if session.loop is None else session.loop.optimizer.done
        self._plan = plan
        self._items = () if session.compiled is None else session.compiled.items
        self._spent = plan.epsilon if plan.private else None
        going = f"going on after step {done} of" if done else "training for"
        count = len(self._items)
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
        self._stop_if_asked()

    def on_step(self, record: StepRecord) -> None:
        """Show the step, now and then; stop if asked to."""
        now = time.monotonic()
        if now - self._last >= self._apart or record.step == self._plan.steps:
            first, self._last = self._last < 0, now
            self._show(record, now)
            if not first:  # adding up many steps takes a moment: never more than a tenth of the time
                self._apart = max(self._apart, 10 * (time.monotonic() - now))
        if self._timed is None:  # the first step warms up, and showing it does: neither tells the pace
            self._timed = record.step, time.monotonic()
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._asked is not None:
            raise Stopped(signal=self._asked)

    def _seconds_left(self, step: int, now: float) -> float | None:
        """Return the time that the other steps will take at the pace since the first; None before that."""
        if self._timed is None or step <= self._timed[0]:
            return 0.0 if step == self._plan.steps else None
        return (now - self._timed[1]) / (step - self._timed[0]) * (self._plan.steps - step)

    def end(self) -> None:
        """End the line."""
        if self._live and self._shown:
            click.echo("", err=True)

    def _show(self, record: StepRecord, now: float) -> None:
        if self._console.mode not in (HUMAN, JSON):
            return
        steps = self._plan.steps
        left = self._seconds_left(record.step, now)
        worst = None
        if record.values is not None:
            worst = max((float(i.gap(record.values)) for i in self._items if i.is_gap), default=None)
        epsilon = self._spent  # of everything that was admitted: a plan counts as a whole
        if self._console.mode == JSON:
            self._console.step(
                step=record.step,
                steps=steps,
                epsilon=epsilon,
                gradient_norm=record.gradient_norm,
                largest_gap=worst,
                seconds_left=None if left is None else round(left, 1),
            )
            return
        said = {
            "step": f"{record.step}/{steps}",
            "epsilon": "no privacy" if epsilon is None else f"epsilon {epsilon:.3f}",
            "gradient": f"gradient {record.gradient_norm:.3g}",
            "gap": None if worst is None else f"largest gap {worst:.3f}",
            "left": None if left is None else f"{left:.0f} s left",
        }
        width = shutil.get_terminal_size().columns - 1 if self._live else None  # a full line might be broken
        line = _line(record.step / steps, {name: text for name, text in said.items() if text}, width)
        click.echo(line if width is None else f"\r{line}", err=True, nl=not self._live)
        self._shown = True

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let Ctrl-C or SIGTERM stop the run after the step that is going on; a second one stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self._asked is not None:
                signal.default_int_handler(number, frame)
            self._asked = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _line(share: float, said: dict[str, str], width: int | None = None) -> str:
    """Return a bar and what is said beside it; on a narrow terminal less of both.

    A line that is wider than the terminal would be broken in two, and pile up instead of moving.
    """
    if width is None or width >= _WIDE:
        line = f"{_bar(share)} step {', '.join(said.values())}"
    else:
        line = f"{_bar(share, _SHORT)} {', '.join(said.values())}"
        if len(line) > width:
            line = f"{_bar(share, _SHORT)} {', '.join(text for name, text in said.items() if name != 'gradient')}"
    return line if width is None else f"{line[:width]:<{min(width, _WIDE)}}"


def _bar(share: float, width: int = 20) -> str:
    full = round(share * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


# -------------------------------------------------------------------------------------------- files

_ARGUMENT = re.compile(r"(?<![\w'-])(sep|decimal|encoding|sheet|header|date_order)( is | out\b|=)")
READING = ("missing", "sep", "decimal", "encoding", "header", "sheet", "date_order")


def reading_of(
    fields: Mapping[str, Any], before: Mapping[str, Any] | None = None, path: str = ""
) -> dict[str, Any]:
    """Return how a file is read: the options that were given, over those of the run's own table.

    The sheet of an earlier workbook is kept for workbooks only.
    """
    workbook = path.lower().endswith((".xlsx", ".xlsm"))
    before = {name: value for name, value in (before or {}).items() if name != "sheet" or workbook}
    given = {name: fields.get(name) for name in READING if fields.get(name) not in (None, ())}
    return {**before, **{name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}}


def read_table(path: str, reading: Mapping[str, Any]) -> FileTable:
    """Return a table; what was detected is noted on the console."""
    try:
        table = read_file(path, **reading)
    except InvalidInput as problem:  # in the terms of the command line
        raise InvalidInput(
            _ARGUMENT.sub(lambda m: f"--{m[1].replace('_', '-')}{m[2]}", str(problem))
        ) from None
    console = current()
    for finding in table.findings:
        console.note(finding.for_command_line(), finding=finding.topic)
    return table


@dataclass(frozen=True)
class Table:
    """A table that was read to train on.

    Attributes
    ----------
    data : str
        The file.
    frame : data frame
    given, reading : dict
        The options that were given to read it, and all that read a further file in the same way.
    outside : tuple of str
        What was found out about the file by looking at it, outside the guarantee, in words for the statement.
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
        found = read_table(data, given)
        names = {"sep": "separator", "decimal": "decimal mark", "date_order": "order of dates"}
        looked = [names.get(name, name) for name in found.options if name not in given]
        outside = (f"how the file is written ({', '.join(looked)})",) if looked else ()
        return cls(data, found.frame, dict(given), {**found.options, **given}, outside)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [str(name) for name in self.frame.columns]

    def with_label(self, label: str) -> Table:
        """Return the table if a column can be the label of undeclared classes; otherwise raise.

        This looks at the rows, outside the guarantee: a training would spend its budget for a constant.
        """
        count = len({*parse_text(self.frame[label])} - {""})
        if 1 < count <= MOST_CLASSES:
            return replace(self, outside=(*self.outside, "that the label has a few different values"))
        found = f"{count:,} different values" if count != 1 else "the same value in every row"
        remedy = "cut its values into a few ranges in a column of their own, " if count > MOST_CLASSES else ""
        raise InvalidInput(
            f"column {label!r} has {found} and cannot be the label as it is; nothing was spent: take another --label, "
            f"{remedy}or declare the classes (--classes no,yes)"
        )

    def new_run(
        self,
        out: str | Path,
        settings: Settings,
        schema: Schema | None,
        plan: Plan,
        command: list[str],
        ledger: str | None = None,
        force: bool = False,
    ) -> RunFolder:
        """Make the folder of a run on this table."""
        return RunFolder.create(
            out,
            settings=settings,
            schema=schema,
            plan=plan,
            rows=len(self.frame),
            data=self.data,
            command=command,
            reading=self.reading,
            outside=self.outside,
            ledger=ledger,
            force=force,
        )


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
