"""What the commands say: to a person on standard error, to a script as JSON lines on standard output."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click

from ratewise.exceptions import RatewiseWarning

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
        click.echo(json.dumps({"event": event, **_plain(fields)}, allow_nan=False, ensure_ascii=False))
        sys.stdout.flush()

    def show_warning(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        """Take the place of ``warnings.showwarning``: words without a place in the source."""
        kind = "" if issubclass(category, RatewiseWarning) else f"{category.__name__}: "
        self.warn(f"{kind}{message}")


def _plain(value: Any) -> Any:
    """Return plain data without what JSON cannot hold."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "infinity" if value > 0 else None
    return value


def current() -> Console:
    """Return the console of the running command."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_object(Console)
    return Console() if found is None else found
