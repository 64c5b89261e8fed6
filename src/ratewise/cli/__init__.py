"""The command line; needs ``pip install 'ratewise[cli]'``.

`app` (the commands and what their exit codes mean), `options` and `config` (flags and files of settings),
`tables` (reading and writing tables), `output` and `watching` (what a person, a script or a log sees).
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
        sys.stderr.write(
            f"the command line needs {' and '.join(absent)}: pip install 'ratewise[cli]' brings it\n"
        )
        sys.exit(1)
    from ratewise.cli.app import cli

    cli.main(prog_name="ratewise")
