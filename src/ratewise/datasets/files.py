"""Files of public data sets: found in a folder or the cache, else fetched from their home; by checksum.

Folders are looked through in this order: the one given, else $RATEWISE_DATA; then the cache
($XDG_CACHE_HOME/ratewise, else ~/.cache/ratewise). A file that is found is never changed, and a download
takes its place in the cache only once its checksum is right.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError

VARIABLE = "RATEWISE_DATA"


class DataNotFound(RatewiseError, FileNotFoundError):  # noqa: N818 - reads as what happened
    """A data file is in no known folder and cannot be fetched."""


class DataCorrupt(RatewiseError, ValueError):  # noqa: N818
    """A data file is not the one that was published: its checksum differs."""


@dataclass(frozen=True)
class KnownFile:
    """A file by its place under a data folder and its content.

    `archive` is the https address of a zip archive that holds the file; None if no program can fetch it.
    """

    path: str
    sha256: str
    archive: str | None = None


def find(places: Sequence[str], home: str, data_home: Any = None) -> Path | DataNotFound:
    """Return the first of several places that exists in a folder, or the error that says what to do.

    `home` says where the data are published.
    """
    cache = cache_folder()
    if data_home is None:
        value = os.environ.get(VARIABLE)
        folders = [Path(value), cache] if value else [cache]
    elif not isinstance(data_home, str | os.PathLike):
        raise InvalidType(f"data_home must be a path, got {type(data_home).__name__}")
    elif not Path(data_home).is_dir():
        raise InvalidInput(f"data_home must be an existing folder, got {str(data_home)!r}")
    else:
        folders = [Path(data_home), cache]
    for folder in folders:
        for place in places:
            if os.path.exists(folder / place):  # Path.exists raises where a folder may not be read
                return folder / place
    return DataNotFound(
        f"{' or '.join(places)} is in none of {', '.join(map(str, folders))}; get it from {home} and name the "
        f"folder above it in data_home or ${VARIABLE}"
    )


def cache_folder() -> Path:
    """Return the folder that downloads are kept in; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ratewise"


def locate(choices: Sequence[KnownFile], home: str, data_home: Any = None) -> Path:
    """Return the path of the first of several forms of a file that is found, fetching one if none is."""
    found = find([file.path for file in choices], home, data_home)
    if isinstance(found, Path):
        (known,) = (file for file in choices if found.as_posix().endswith(file.path))
        _verify(found, known.sha256)
        return found
    for file in choices:
        if file.archive is not None:
            return _fetch(file, file.archive, home)
    raise found


def _verify(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataCorrupt(
            f"{path} has sha256 {found[:16]}..., expected {sha256[:16]}...; it is cut off or "
            "another version: move it away and get the published file"
        )


def _fetch(file: KnownFile, address: str, home: str) -> Path:
    """Download the archive, take the file out of it, check it, and only then put it into the cache."""
    target = cache_folder() / file.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            archive, fresh = Path(scratch) / "archive.zip", Path(scratch) / target.name
            _download(address, archive, file, home)
            try:
                with zipfile.ZipFile(archive) as opened:
                    members = {member.rsplit("/", 1)[-1]: member for member in opened.namelist()}
                    content = opened.read(members[target.name])
            except Exception as damage:  # of many types: of zipfile, of each way to compress, of seeking
                raise DataCorrupt(
                    f"{address} came damaged, or is no zip archive that holds {target.name}; try again, or get "
                    f"the file by hand from {home}"
                ) from damage
            fresh.write_bytes(content)
            _verify(fresh, file.sha256)
            os.replace(fresh, target)
    except RatewiseError:
        raise
    except OSError as problem:
        raise DataNotFound(
            f"cannot keep {file.path} in the cache folder {cache_folder()} ({problem.strerror or problem}); "
            f"name another one in $XDG_CACHE_HOME, or get the file from {home} and name the folder above it "
            f"in data_home or ${VARIABLE}"
        ) from None
    return target


def _download(address: str, target: Path, file: KnownFile, home: str) -> None:
    if not address.startswith("https://"):
        raise InvalidInput(f"data are fetched over https only, got {address!r}")
    try:
        # S310: https, checked above
        with urllib.request.urlopen(address, timeout=30) as source, target.open("wb") as out:  # noqa: S310
            shutil.copyfileobj(source, out)
    except (http.client.HTTPException, OSError) as problem:
        raise DataNotFound(
            f"cannot fetch {address} ({getattr(problem, 'reason', problem)}); without a network get the file "
            f"from {home}, put it into a folder as {file.path} and name that folder in data_home or ${VARIABLE}"
        ) from None
