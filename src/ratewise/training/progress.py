"""A bar that moves while a training runs, in a terminal or in a notebook; it shows released values only.

In a terminal the bar is one line of standard error that is written over. In a notebook (IPython with a
kernel) it is one output that is replaced. Elsewhere, a log file say, it is a line now and then.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

from ratewise.accounting import Ledger, accountant

_SECONDS_BETWEEN = 0.5
_WIDTH = 24


class Screen(Protocol):
    """Where a bar is shown."""

    def show(self, share: float, words: str) -> None:
        """Show how much is done, 0 to 1, and what there is to say."""
        ...

    def end(self) -> None:
        """Leave the last state standing."""
        ...


class Progress:
    """Show steps done, the largest constraint value as released, epsilon so far, and the time left.

    Parameters
    ----------
    steps : int
    enabled : bool
        False shows nothing and costs next to nothing.
    epsilon : callable, optional
        Epsilon after so many steps; asked only when something is shown.
    screen : Screen, optional
        By default a notebook's output if there is one, else standard error.
    """

    def __init__(
        self,
        steps: int,
        *,
        enabled: bool,
        epsilon: Callable[[int], float] | None = None,
        screen: Screen | None = None,
    ) -> None:
        self._steps = steps
        self._epsilon = epsilon
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
        if self._epsilon is not None:
            said.append(f"epsilon {self._epsilon(record.step):.4g}")
        if left is not None:
            said.append(f"{left:.0f} s left")
        return ", ".join(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the line, also if the training was stopped."""
        if self._screen is not None:
            self._screen.end()


def epsilon_so_far(plan: Any, ledger: Ledger, delta: float) -> Callable[[int], float] | None:
    """Return epsilon of a book as a function of the steps done, before the first of them; None without noise.

    It counts what the book held before, what the plan releases before its steps, and the steps that ran: not
    those that the book has reserved ahead.
    """
    step_event = plan.step_event
    if step_event is None:
        return None
    before = (*ledger.events(), *plan.events[:-1])
    return lambda step: accountant.epsilon(
        (*before, step_event.with_steps(step)), delta, neighbours=ledger.neighbours
    )


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
