"""Live progress of a run, from released values only, and a way to stop between two steps."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click
import numpy as np

from ratewise.accounting import Ledger, accountant
from ratewise.cli.output import HUMAN, JSON, Console
from ratewise.compiled import CompiledConstraints
from ratewise.plan import Plan
from ratewise.runs import Watch
from ratewise.training import StepRecord

_SECONDS_BETWEEN = 0.5
_LINES_APART = 10.0  # seconds, where standard error is a file
_WIDE, _SHORT = 99, 8  # columns of a wide terminal, and of the bar on a narrow one


class Stopped(Exception):  # noqa: N818 - reads as what happened
    """Somebody asked to stop; the step that was going on is complete and written down.

    Attributes
    ----------
    signal : int
        How they asked: Ctrl-C is SIGINT.
    """

    def __init__(self, message: str = "", signal: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = int(signal)


class Watcher:
    """Show step, epsilon so far, length of the released gradient, worst gap and time left.

    Everything is read off released values: the gradient with its noise, the constraints' values from noisy
    counts. It also stops the run when asked to, between two steps.
    """

    def __init__(self, console: Console, delta: float) -> None:
        self._console = console
        self._delta = delta
        self._asked: int | None = None
        self._bounds: Any = None
        self._live = console.mode == HUMAN and sys.stderr.isatty()
        self._apart = _SECONDS_BETWEEN if self._live or console.mode == JSON else _LINES_APART
        self._first = 0
        self._last = -np.inf
        self._shown = False
        self._timed: tuple[int, float] | None = None  # a step and when it was over, once the pace is steady

    @property
    def watch(self) -> Watch:
        """What `train_run` calls."""
        return Watch(on_start=self.on_start, on_step=self.on_step)

    def on_start(
        self, plan: Plan, compiled: CompiledConstraints | None, ledger: Ledger, steps_done: int
    ) -> None:
        """Note what is planned, and say it."""
        self._plan, self._ledger, self._first = plan, ledger, steps_done
        self._bounds = None if compiled is None else compiled.bounds
        self._before = tuple(ledger.events())
        going = f"going on after step {steps_done} of" if steps_done else "training for"
        limits = "no limits" if compiled is None else f"{len(compiled)} limits"
        rows = f"about {plan.expected_rows:.0f} of {plan.n_rows} rows in each"
        self._console.note(
            f"{going} {plan.steps} steps, {rows}, {limits}",
            steps=plan.steps,
            steps_done=steps_done,
            rows=plan.n_rows,
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
        if record.values is not None and self._bounds is not None:
            worst = float(np.max(record.values - self._bounds))
        epsilon = self._epsilon(record.step)
        if self._console.mode == JSON:
            self._console.step(
                step=record.step,
                steps=steps,
                epsilon=epsilon,
                gradient_norm=record.gradient_norm,
                worst_gap=worst,
                seconds_left=None if left is None else round(left, 1),
            )
            return
        said = {
            "step": f"{record.step}/{steps}",
            "epsilon": "no privacy" if epsilon is None else f"epsilon {epsilon:.3f}",
            "gradient": f"gradient {record.gradient_norm:.3g}",
            "gap": None if worst is None else f"worst gap {worst:+.3f}",
            "left": None if left is None else f"{left:.0f} s left",
        }
        width = shutil.get_terminal_size().columns - 1 if self._live else None  # a full line might be broken
        line = _line(record.step / steps, {name: text for name, text in said.items() if text}, width)
        click.echo(line if width is None else f"\r{line}", err=True, nl=not self._live)
        self._shown = True

    def _epsilon(self, step: int) -> float | None:
        """Return what was spent when this run's steps up to here are counted, whatever is reserved ahead."""
        event = self._plan.step_event
        if event is None:
            return None
        steps = max(1, step - self._first)
        events = (*self._before, event.with_steps(steps))
        return accountant.epsilon(events, self._delta, neighbours=self._ledger.neighbours)

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
    wide = f"{_bar(share)} step {', '.join(said.values())}"
    if width is None:
        return wide
    fewer = [text for name, text in said.items() if name != "gradient"]
    forms = [f"{_bar(share, _SHORT)} {', '.join(texts)}" for texts in (said.values(), fewer)]
    if width >= _WIDE:
        forms = [wide, *forms]
    line = next((form for form in forms if len(form) <= width), forms[-1])
    return f"{line[:width]:<{min(width, _WIDE)}}"


def _bar(share: float, width: int = 20) -> str:
    full = round(share * width)
    return f"[{'#' * full}{'.' * (width - full)}]"
