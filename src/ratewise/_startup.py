"""Ctrl-C while the command is still importing: one line and exit code 130, not a traceback.

Loaded before everything else. It does nothing unless this process is the command ``ratewise``.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from types import FrameType


def _stop(number: int, _: FrameType | None) -> None:
    os.write(2, b"error: stopped before anything was done\n")
    os._exit(128 + number)  # half an import cannot be unwound; nothing was opened yet


def ready() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` again: the command has begun, and knows what to do."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_script = bool(sys.argv) and os.path.basename(sys.argv[0]).removesuffix(".exe") == "ratewise"
_command = _script or ("-m", "ratewise") in itertools.pairwise(sys.orig_argv)
_untouched = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have it ignored
if _untouched and _command and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, _stop)
