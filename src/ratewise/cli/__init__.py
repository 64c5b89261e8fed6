"""The command line; needs ``pip install 'ratewise[cli]'``.

`app` (the commands and exit codes), `options` (flags and files of settings), `console` (what a person, a script or a
log sees, and files that are read and written), and one module per group of commands: `plan` (schema, plan, audit),
`train` (train, resume, sweep), `evaluate` (evaluate, compare, predict, report), `guided` (start) and `webapp` (app).
`demo` is what ``make demo`` runs.

This file is imported before the rest of the library. If this process is the command ``ratewise``, Ctrl-C during the
imports is one line and exit code 130, not a traceback.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["main"]

_NEEDED = ("click", "pandas")


def _stop(number: int, _: FrameType | None) -> None:
    os.write(2, b"error: stopped before anything was done\n")
    os._exit(128 + number)  # half an import cannot be unwound; nothing was opened yet


def ready() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` again: the command has begun, and handles it."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_script = bool(sys.argv) and os.path.basename(sys.argv[0]).removesuffix(".exe") == "ratewise"
_command = _script or ("-m", "ratewise") in itertools.pairwise(sys.orig_argv)
_untouched = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have it ignored
if _untouched and _command and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, _stop)


def main() -> None:
    """Run the command line; ends the process."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        sys.stderr.write(f"the command line needs {' and '.join(absent)}: pip install 'ratewise[cli]' brings it\n")
        sys.exit(1)
    from ratewise.cli.app import cli

    cli.main(prog_name="ratewise")
