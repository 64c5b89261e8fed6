"""Files that are whole or not there: nobody ever sees half of one under its final name."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

Path = str | os.PathLike[str]


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under its final name in one step, on disk when this returns; or raise `OSError`.

    Text is written as UTF-8; halves of surrogate pairs, which that cannot hold, as question marks.
    """
    target = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(target)
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with named(target):
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~umask())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        flush_folder(folder)


@contextlib.contextmanager
def named(target: Path) -> Iterator[None]:
    """Let errors of the system name the file that was asked for, not a temporary one beside it."""
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), os.fspath(target)) from None


def flush_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    if os.name != "posix":  # pragma: no cover - folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """Return the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
