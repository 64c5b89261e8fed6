"""Followers of a training run: a progress bar, and callbacks that write to MLflow or TensorBoard.

They see released values only: what a `StepRecord` holds. Both libraries are imported when a callback is made.

::

    model = RateConstrainedClassifier(constraints, callback=TensorBoardCallback("runs/first"))
"""

from __future__ import annotations

import html
import importlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from ratewise import _validate
from ratewise.exceptions import InvalidType
from ratewise.training.loop import StepRecord

_SECONDS_BETWEEN = 0.5
_WIDTH = 24


class Progress:
    """Show steps done, the largest constraint value as released, and the time left.

    Parameters
    ----------
    steps : int
    enabled : bool
        False shows nothing and costs next to nothing.
    screen : Line or Output, optional
        By default a notebook's output if there is one, else standard error.
    """

    def __init__(self, steps: int, *, enabled: bool, screen: Any = None) -> None:
        self._steps = steps
        self._screen = (screen or find_screen()) if enabled else None
        self._last = time.monotonic()
        self._apart = _SECONDS_BETWEEN
        self._first: tuple[int, float] | None = None  # a step and when it was over: the first one warms up

    def show(self, record: Any) -> None:
        """Show a record, at most twice a second and once at the end."""
        if self._screen is None:
            return
        now, step = time.monotonic(), record.step
        self._first = self._first or (step, now)
        if now - self._last < self._apart and step < self._steps:
            return
        self._last = now
        said = [f"step {step}/{self._steps}"]
        if record.values is not None:
            said.append(f"largest constraint value {record.values.max():+.3f}")
        if step > self._first[0] or step == self._steps:
            pace = (now - self._first[1]) / max(step - self._first[0], 1)
            said.append(f"{pace * (self._steps - step):.0f} s left")
        self._screen.show(step / self._steps, ", ".join(said))
        # adding up many steps takes a moment: never more than a tenth of the time
        self._apart = max(_SECONDS_BETWEEN, 10 * (time.monotonic() - now))

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
        self._stream.write(f"\r{line.ljust(self._length)}" if self._over else f"{line}\n")
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
        bar = _Bar(min(1.0, max(0.0, share)), words)
        if self._handle is None:
            self._handle = self._display(bar, display_id=True)
        else:
            self._handle.update(bar)

    def end(self) -> None:
        """Leave the last state standing."""


class _Bar:
    """What a notebook shows: a progress element, or its words where there is no HTML."""

    def __init__(self, share: float, words: str) -> None:
        self._share, self._words = share, words

    def _repr_html_(self) -> str:
        label = html.escape(self._words)
        return (
            f'<progress max="1" value="{self._share:.4f}" style="width:16em" aria-label="{label}">'
            f'</progress> <span style="font-variant-numeric:tabular-nums">{label}</span>'
        )

    def __repr__(self) -> str:
        return self._words


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
