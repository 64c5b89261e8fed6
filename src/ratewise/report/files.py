"""Writing a file so that nobody ever sees half of it under its final name."""

from __future__ import annotations

import contextlib
import os
import tempfile

Path = str | os.PathLike[str]


def write_whole(path: Path, content: str | bytes) -> str:
    """Write text or bytes to `path`, replacing what is there in one step, and return the path.

    Text is written as UTF-8; halves of surrogate pairs, which that cannot hold, as question marks.

    On failure an `OSError` is raised, the old file stands, and no partial file is left behind.
    """
    target = os.fspath(path)
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(
        prefix=f".{os.path.basename(target)}.", suffix=".tmp", dir=os.path.dirname(target) or "."
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return target
