"""A line on standard error that moves while a training runs; it shows released values only."""

from __future__ import annotations

import sys
import time
from typing import Self

from ratewise.training import StepRecord

_SECONDS_BETWEEN = 0.5


class Progress:
    """Show steps done, the largest constraint value as released, and the time left.

    Parameters
    ----------
    steps : int
    enabled : bool
        False shows nothing and costs next to nothing.
    """

    def __init__(self, steps: int, *, enabled: bool) -> None:
        self._steps = steps
        self._enabled = enabled
        self._start = self._last = time.monotonic() if enabled else 0.0

    def show(self, record: StepRecord) -> None:
        """Show a record, at most twice a second and once at the end."""
        if not self._enabled:
            return
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN and record.step < self._steps:
            return
        self._last = now
        left = (now - self._start) / record.step * (self._steps - record.step)
        worst = "" if record.values is None else f", largest constraint value {record.values.max():+.3f}"
        sys.stderr.write(f"\rstep {record.step}/{self._steps}{worst}, {left:.0f} s left   ")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the line, also if the training was stopped."""
        if self._enabled:
            sys.stderr.write("\n")
