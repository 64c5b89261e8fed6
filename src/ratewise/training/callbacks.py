"""Followers of a training run: a progress bar, and callbacks that write to MLflow or TensorBoard.

They see released values only: what a `StepRecord` holds. Both libraries are imported when a callback is made.

::

    model = RateConstrainedClassifier(constraints, callback=TensorBoardCallback("runs/first"))
"""

from __future__ import annotations

import html
import importlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ratewise import _validate
from ratewise.exceptions import InvalidType
from ratewise.training.loop import StepRecord

if TYPE_CHECKING:
    from ratewise.training.session import Session

_SECONDS_BETWEEN, _SECONDS_IN_A_FILE = 0.5, 10.0  # of what is shown
_WIDTH = 20


class Moment(NamedTuple):
    """How far a training is, in released values; `epsilon` is None without privacy."""

    step: int
    steps: int
    epsilon: float | None  # of everything that was admitted: a plan counts as a whole
    gradient_norm: float
    largest_gap: float | None
    seconds_left: float | None  # None before there is a pace

    @property
    def share(self) -> float:
        """The share of the steps that is done."""
        return self.step / self.steps

    def __repr__(self) -> str:
        said = [f"step {self.step}/{self.steps}"]  # what matters most comes first: a narrow terminal cuts off the rest
        said += [] if self.seconds_left is None else [f"{self.seconds_left:.0f} s left"]
        said += [] if self.largest_gap is None else [f"largest gap {self.largest_gap:.3f}"]
        said += ["no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.3f}"]
        return ", ".join([*said, f"gradient {self.gradient_norm:.3g}"])

    def _repr_html_(self) -> str:
        label = html.escape(str(self))
        return (
            f'<progress max="1" value="{self.share:.4f}" style="width:16em" aria-label="{label}">'
            f'</progress> <span style="font-variant-numeric:tabular-nums">{label}</span>'
        )


class Progress:
    """Show now and then how far a session is, from released values.

    A `screen` has `seconds` between two moments, ``show(moment)`` and ``end()``; None shows nothing and costs next to
    nothing.
    """

    def __init__(self, session: Session, screen: Any = None) -> None:
        self._session, self._screen = session, screen
        self._last, self._apart = -math.inf, 0.0
        self._first: tuple[int, float] | None = None  # a step and when it had been shown

    def show(self, record: StepRecord) -> None:
        """Show a record, unless the last one was shown a moment ago; the last step is always shown."""
        if self._screen is None:
            return
        now, plan, compiled = time.monotonic(), self._session.plan, self._session.compiled
        if now - self._last < self._apart and record.step < plan.steps:
            return
        self._last = now
        left = worst = None
        if self._first is not None or record.step == plan.steps:
            first, then = self._first or (0, now)
            left = round((now - then) / max(record.step - first, 1) * (plan.steps - record.step), 1)
        if compiled is not None and record.values is not None:
            worst = max((float(item.gap(record.values)) for item in compiled.items if item.is_gap), default=None)
        epsilon = plan.epsilon if plan.private else None
        self._screen.show(Moment(record.step, plan.steps, epsilon, record.gradient_norm, worst, left))
        over = time.monotonic()
        if self._first is None:  # the first step warms up, and showing it does: neither tells the pace
            self._first = record.step, over
        self._apart = max(self._screen.seconds, 10.0 * (over - self._last) * (record.step > self._first[0]))

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
        self.seconds = _SECONDS_BETWEEN if self._over else _SECONDS_IN_A_FILE
        self._length = 0

    def show(self, moment: Moment) -> None:
        """Write the bar; on a terminal, over the old one."""
        done = round(_WIDTH * moment.share)
        line = f"[{'#' * done}{'.' * (_WIDTH - done)}] {moment}"
        if self._over:  # a line that is wider than the terminal would be broken in two, and pile up instead of moving
            line = line[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{line.ljust(self._length)}" if self._over else f"{line}\n")
        self._length = len(line)
        self._stream.flush()

    def end(self) -> None:
        """End the line."""
        if self._over and self._length:
            self._stream.write("\n")


class Output:
    """A bar in a notebook: one output that is replaced, so a saved notebook keeps the last state only."""

    seconds = _SECONDS_BETWEEN

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, moment: Moment) -> None:
        """Replace the output."""
        if self._handle is None:
            self._handle = self._display(moment, display_id=True)
        else:
            self._handle.update(moment)

    def end(self) -> None:
        """Leave the last state standing."""


def find_screen() -> Line | Output:
    """Return the notebook's output if this runs in one, else standard error. IPython is never imported."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    display = getattr(sys.modules.get("IPython.display"), "display", None)
    # a kernel can show HTML, IPython in a terminal cannot
    return Output(display) if display and getattr(shell, "kernel", None) is not None else Line()


def scalars(record: StepRecord, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the finite numbers of a record by name; with `names` of the constraints, also those of each of them."""
    found = {"gradient_norm": float(record.gradient_norm)}
    for kind, values in (("value", record.values), ("multiplier", record.multipliers)):
        if values is not None and len(values):
            found[f"largest_{kind}"] = float(values.max())
            found |= {f"{kind}/{name}": float(v) for name, v in zip(names or (), values, strict=False)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


class _Callback:
    """Writes the first record and every n-th with a function of name, value and step."""

    def __init__(self, write: Callable[[str, float, int], Any], every: int, names: Sequence[str] | None) -> None:
        self._write, self._every, self._names = write, _validate.count(every=every), names

    def __call__(self, record: StepRecord) -> None:
        if record.step == 1 or record.step % self._every == 0:
            for name, value in scalars(record, self._names).items():
                self._write(name, value, record.step)


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
        if isinstance(log, str) or hasattr(log, "__fspath__"):
            module = _load("torch.utils.tensorboard", "TensorBoard", "pip install torch tensorboard")
            log = module.SummaryWriter(str(log))
        if not callable(getattr(log, "add_scalar", None)):
            raise InvalidType(f"log must be a folder or a writer with add_scalar, got {type(log).__name__}")
        super().__init__(log.add_scalar, every, names)
        self._writer = log

    def close(self) -> None:
        """Write out what is still waiting."""
        self._writer.close()


class MLflowCallback(_Callback):
    """Writes released values to the MLflow run named by `run_id`, by default to the active one.

    Other parameters as for `TensorBoardCallback`. Names keep the signs that MLflow takes, at most 250 of them.
    """

    def __init__(self, run_id: str | None = None, *, every: int = 10, names: Sequence[str] | None = None) -> None:
        client = _load("mlflow", "MLflow", "pip install mlflow")
        options = {} if run_id is None else {"run_id": run_id}

        def write(name: str, value: float, step: int) -> None:
            plain = "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)[:250]
            client.log_metric(plain, value, step=step, **options)

        super().__init__(write, every, names)


def _load(module: str, what: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"logging to {what} needs it installed: {remedy}") from None
