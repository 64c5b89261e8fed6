"""The command line; needs ``pip install 'ratewise[cli]'``.

`app` (the commands and exit codes), `options` (flags and files of settings), `console` (what a person, a script or a
log sees, and files that are read and written), and one module per group of commands: `plan` (schema, plan, audit),
`train` (train, resume, sweep), `evaluate` (evaluate, compare, predict, report), `guided` (start) and `webapp` (app).
`demo` is what ``make demo`` runs.
"""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

_NEEDED = ("click", "pandas")


def main() -> None:
    """Run the command line; ends the process."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        sys.stderr.write(f"the command line needs {' and '.join(absent)}: pip install 'ratewise[cli]' brings it\n")
        sys.exit(1)
    from ratewise.cli.app import cli

    cli.main(prog_name="ratewise")
