"""Where results go: refused before any work if they could not be written, or would replace something."""

from __future__ import annotations

import os
from pathlib import Path

from ratewise.exceptions import InvalidInput
from ratewise.runs.placing import refuse_taken, refuse_unwritable


def refuse_folder(out: str, force: bool | None = False) -> None:
    """Refuse a folder that cannot be made, or that exists; `force` None belongs to a command without it."""
    target = Path(os.path.abspath(out))
    refuse_taken(target, bool(force), "or --force to replace a run" if force is not None else "")
    refuse_unwritable(target)


def refuse_file(out: str, force: bool, endings: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written, or that exists; `force` permits to replace it."""
    if endings and not out.lower().endswith(endings):
        raise InvalidInput(f"{out!r} must end in {' or '.join(endings)}")
    if os.path.isdir(out):
        raise InvalidInput(f"{out!r} is a folder; give the name of a file")
    if os.path.lexists(out) and not force:
        raise InvalidInput(f"{out!r} exists already; take another name, or --force to replace it")
    if not Path(out).absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(Path(out).parent)!r}")
    refuse_unwritable(Path(out).absolute())
