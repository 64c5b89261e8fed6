"""Followers of a training run: a progress bar, and callbacks that write to MLflow or TensorBoard.

They see released values only: what a `StepRecord` holds, and the numbers of a report. A report is measured on rows
without noise, so log it only where its numbers may be told.

::

    model = RateConstrainedClassifier(constraints, callback=TensorBoardCallback("runs/first"))

Neither library is needed to import this module; each is imported when its callback is made.
"""

from __future__ import annotations

import html
import importlib
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from ratewise import _validate
from ratewise.exceptions import InvalidType
from ratewise.training.loop import StepRecord

if TYPE_CHECKING:
    from ratewise.report import Report

_SECONDS_BETWEEN = 0.5
_WIDTH = 24
_MOST_CONSTRAINTS = 100


# ------------------------------------------------------------------------------------------ progress


class Screen(Protocol):
    """Where a bar is shown."""

    def show(self, share: float, words: str) -> None:
        """Show how much is done, 0 to 1, and what there is to say."""
        ...

    def end(self) -> None:
        """Leave the last state standing."""
        ...


class Progress:
    """Show steps done, the largest constraint value as released, and the time left.

    Parameters
    ----------
    steps : int
    enabled : bool
        False shows nothing and costs next to nothing.
    screen : Screen, optional
        By default a notebook's output if there is one, else standard error.
    """

    def __init__(self, steps: int, *, enabled: bool, screen: Screen | None = None) -> None:
        self._steps = steps
        self._screen = (screen or find_screen()) if enabled else None
        self._last = time.monotonic() if enabled else 0.0
        self._apart = _SECONDS_BETWEEN
        self._timed: tuple[int, float] | None = None  # a step and when it was over

    def show(self, record: Any) -> None:
        """Show a record, at most twice a second and once at the end."""
        if self._screen is None:
            return
        now = time.monotonic()
        if self._timed is None:  # the first step warms up: it does not tell the pace of the others
            self._timed = record.step, now
        if now - self._last < self._apart and record.step < self._steps:
            return
        self._last = now
        self._screen.show(
            record.step / self._steps, self._words(record, self._seconds_left(record.step, now))
        )
        # adding up many steps takes a moment: never more than a tenth of the time
        self._apart = max(_SECONDS_BETWEEN, 10 * (time.monotonic() - now))

    def _seconds_left(self, step: int, now: float) -> float | None:
        if self._timed is None or step <= self._timed[0]:
            return 0.0 if step == self._steps else None
        return (now - self._timed[1]) / (step - self._timed[0]) * (self._steps - step)

    def _words(self, record: Any, left: float | None) -> str:
        said = [f"step {record.step}/{self._steps}"]
        if record.values is not None:
            said.append(f"largest constraint value {record.values.max():+.3f}")
        if left is not None:
            said.append(f"{left:.0f} s left")
        return ", ".join(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the line, also if the training was stopped."""
        if self._screen is not None:
            self._screen.end()


class Line:
    """A bar on one line of standard error, written over and over; below each other if it is no terminal."""

    def __init__(self, stream: Any = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._over = bool(getattr(self._stream, "isatty", bool)())
        self._length = 0

    def show(self, share: float, words: str) -> None:
        """Write the bar; on a terminal, over the old one."""
        done = round(_WIDTH * min(1.0, max(0.0, share)))
        line = f"[{'#' * done}{'.' * (_WIDTH - done)}] {words}"
        if self._over:
            self._stream.write(f"\r{line.ljust(self._length)}")
        else:
            self._stream.write(f"{line}\n")
        self._length = len(line)
        self._stream.flush()

    def end(self) -> None:
        """End the line."""
        if self._over or not self._length:
            self._stream.write("\n")


class Output:
    """A bar in a notebook: one output that is replaced, so a saved notebook keeps the last state only."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, share: float, words: str) -> None:
        """Replace the output."""
        drawn = _Bar(share, words)
        if self._handle is None:
            self._handle = self._display(drawn, display_id=True)
        else:
            self._handle.update(drawn)

    def end(self) -> None:
        """Leave the last state standing."""


class _Bar:
    """What a notebook shows: a progress element, or its words where there is no HTML."""

    def __init__(self, share: float, words: str) -> None:
        self._share = min(1.0, max(0.0, share))
        self._words = words

    def _repr_html_(self) -> str:
        label = html.escape(self._words)
        return (
            f'<progress max="1" value="{self._share:.4f}" style="width:16em" aria-label="{label}">'
            f'</progress> <span style="font-variant-numeric:tabular-nums">{label}</span>'
        )

    def __repr__(self) -> str:
        return self._words


def find_screen() -> Screen:
    """Return the notebook's output if this runs in one, else standard error. IPython is never imported."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    display = getattr(sys.modules.get("IPython.display"), "display", None)
    # a kernel can show HTML, IPython in a terminal cannot
    if display is not None and getattr(shell, "kernel", None) is not None:
        return Output(display)
    return Line()


# ------------------------------------------------------------------------------------------ trackers


def scalars(record: StepRecord, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the numbers of a record by name; NaN and infinities, which trackers refuse, are left out.

    Parameters
    ----------
    record : StepRecord
    names : sequence of str, optional
        Names of the constraints, in order; without them only the largest value and multiplier are given.
    """
    found = {"gradient_norm": float(record.gradient_norm)}
    for kind, values in (("value", record.values), ("multiplier", record.multipliers)):
        if values is not None and len(values):
            found[f"largest_{kind}"] = float(values.max())
            found |= {f"{kind}/{name}": float(v) for name, v in zip(names or (), values, strict=False)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


class _Callback(ABC):
    """Writes the first record and every n-th."""

    def __init__(self, every: int, names: Sequence[str] | None) -> None:
        self._every = _validate.count(every=every)
        self._names = names

    def __call__(self, record: StepRecord) -> None:
        if record.step == 1 or record.step % self._every == 0:
            for name, value in scalars(record, self._names).items():
                self._write(name, value, record.step)

    @abstractmethod
    def _write(self, name: str, value: float, step: int) -> None: ...

    def log_report(self, report: Report) -> None:
        """Write the numbers of a report (see `report_scalars`)."""
        for name, value in report_scalars(report).items():
            self._write(name, value, 0)


class TensorBoardCallback(_Callback):
    """Writes released values to TensorBoard.

    Parameters
    ----------
    log : str or writer
        A folder, or anything with ``add_scalar(name, value, step)``, such as a ``SummaryWriter``.
    every : int
        Write every so many steps.
    names : sequence of str, optional
        Names of the constraints, to write each of them.
    """

    def __init__(self, log: Any, *, every: int = 10, names: Sequence[str] | None = None) -> None:
        super().__init__(every, names)
        if callable(getattr(log, "add_scalar", None)):
            self._writer = log
        elif isinstance(log, str) or hasattr(log, "__fspath__"):
            module = _load("torch.utils.tensorboard", "TensorBoard", "pip install torch tensorboard")
            self._writer = module.SummaryWriter(str(log))
        else:
            raise InvalidType(f"log must be a folder or a writer with add_scalar, got {type(log).__name__}")

    def _write(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is still waiting."""
        self._writer.close()


class MLflowCallback(_Callback):
    """Writes released values to the MLflow run that is active, or to the one named.

    Parameters
    ----------
    run_id : str, optional
        By default the active run.
    every, names
        As in `TensorBoardCallback`.
    client : optional
        Anything with MLflow's ``log_metric``; by default the module ``mlflow``.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        every: int = 10,
        names: Sequence[str] | None = None,
        client: Any = None,
    ) -> None:
        super().__init__(every, names)
        self._run = run_id
        self._client = _load("mlflow", "MLflow", "pip install mlflow") if client is None else client

    def _write(self, name: str, value: float, step: int) -> None:
        options = {} if self._run is None else {"run_id": self._run}
        self._client.log_metric(_plain(name), value, step=step, **options)


def report_scalars(report: Report) -> dict[str, float]:
    """Return the numbers of a report worth tracking: accuracy, worst gap, epsilon, states, rates reached."""
    content = report.content
    first = content.models[0]
    numbers = {
        "report/accuracy": first.accuracy.value,
        "report/worst_gap": first.worst,
        "report/epsilon": first.epsilon,
        **{f"report/{state.replace(' ', '_')}": float(count) for state, count in content.counts.items()},
        **{f"report/reached/{one.name}": one.reached for one in content.by_worst()[:_MOST_CONSTRAINTS]},
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _plain(name: str) -> str:
    """Return a name that MLflow takes: letters, digits and a few signs, at most 250 of them."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)[:250]


def _load(module: str, what: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"logging to {what} needs it installed: {remedy}") from None
