"""One small file that is replaced as a whole or not at all.

A reader sees the old text or the new text, never a mixture, whenever the writer is killed: new text goes to a
temporary file in the same folder, is flushed to the disk, and then takes the name of the old file in one
step. Writers in several processes take turns through a lock file beside it (where the system has ``flock``;
elsewhere one process at a time may write).

Nothing here knows what the text means.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType, LedgerError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock
    fcntl = None

LOCK_PATIENCE = 120.0
"""Seconds to wait for another process before giving up."""


class AtomicFile:
    """A text file with whole-file reads, atomic writes, and a lock that processes share.

    Parameters
    ----------
    path : str or os.PathLike
        Links are followed once, here, so that replacing the file never replaces a link.
    """

    def __init__(self, path: Any) -> None:
        self.path = os.path.realpath(_path_text(path))
        self._folder, name = os.path.split(self.path)
        self._lock_path = os.path.join(self._folder, f".{name}.lock")
        # One name is enough, for only the holder of the lock writes; and what a killed writer
        # left behind is swept away by the next one.
        self._temporary = os.path.join(self._folder, f".{name}.tmp")

    def exists(self) -> bool:
        """Tell whether there is anything at the path."""
        return os.path.lexists(self.path)

    def read(self) -> bytes:
        """Return the whole content."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise LedgerError(
                f"there is no ledger at {self.path!r}; Ledger.create(path) starts one"
            ) from None
        except OSError as error:
            raise LedgerError(f"cannot read the ledger {self.path!r}: {_reason(error)}") from error

    def signature(self) -> tuple[int, int, int]:
        """Return numbers that change whenever the content does, as long as the content only grows."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path!r} has gone: {_reason(error)}; put the file back before going on"
            ) from error
        return status.st_size, status.st_ino, status.st_mtime_ns

    def write(self, text: str) -> None:
        """Replace the content. On failure the old content stands and `LedgerError` is raised."""
        try:
            self._write_temporary(text.encode("ascii"))
            os.replace(self._temporary, self.path)
            self._flush_folder()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise LedgerError(
                f"cannot write the ledger {self.path!r}: {_reason(error)}; nothing may be released until "
                "there is space and permission to write there"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock file; other processes (and other handles of this one) wait."""
        if fcntl is None:  # pragma: no cover
            yield
            return
        handle = self._take_lock()
        try:
            yield
        finally:
            # Unlock by name: a forked child may hold a copy of the handle, and closing ours would not do.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _write_temporary(self, content: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)
        handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            while content:
                content = content[os.write(handle, content) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def _flush_folder(self) -> None:
        if os.name != "posix":  # pragma: no cover - folders cannot be opened there
            return
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _take_lock(self) -> int:
        try:
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise LedgerError(
                f"cannot create the lock file of the ledger {self.path!r}: {_reason(error)}; "
                "the folder must exist and be writable"
            ) from error
        try:
            self._wait_for(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _wait_for(self, handle: int) -> None:
        assert fcntl is not None  # noqa: S101 - for the type checker
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise LedgerError(
                        f"cannot lock the ledger {self.path!r}: {_reason(error)}; "
                        "keep it on a file system that has locks"
                    ) from error
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"another process has held the ledger {self.path!r} for {LOCK_PATIENCE:g} seconds; "
                    "end it, then try again"
                )
            time.sleep(0.002)


def _path_text(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"path must be text or a path object, got {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidType(f"path must be text or a path object, got {path!r}")
    if not text or "\0" in text:
        raise InvalidInput(f"path must name a file, got {text!r}")
    return text


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
