"""Files that are whole or not there, strict JSON and what it describes, and arrays in a file that is safe to open.

Models, checkpoints and histories are uncompressed ``.npz`` archives: ``header.json`` first, then one ``.npy`` per
array, which ``numpy.load`` reads too. Opening one runs nothing that is in it: there is no pickle, every name, type and
shape is compared with the header before an array is read, and sizes are checked before memory is taken. The header
carries a checksum of each array and of itself, so a damaged or edited file is refused. A checksum is no signature: it
shows accidents and careless edits, not who wrote the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import secrets
import types
import typing
import zipfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError

Path = str | os.PathLike[str]
Arrays = dict[str, npt.NDArray[Any]]

FORMAT = "ratewise-arrays"
VERSION = 1

_HEADER = "header.json"
_START = b"PK\x03\x04"
_LARGEST_HEADER = 1 << 26
_NPY_HEADER = 1 << 12  # what precedes the numbers of an array, at most
_KINDS = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "bool": "|b1"}


def write_whole(path: Path, content: bytes | str, temporary: str = "") -> None:
    """Write a file under its final name in one step, on disk when this returns; or raise `OSError`.

    Text is written as UTF-8; halves of surrogate pairs, which that cannot hold, as question marks. The name of
    the temporary file beside it is random, or given by whoever makes sure that there is one writer at a time: then the
    next writer sweeps away what a killed one left behind.
    """
    target = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, temporary or f".{name}.{secrets.token_hex(4)}.tmp")
    data = memoryview(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    with named(target):
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            try:
                while data:
                    data = data[os.write(handle, data) :]
                os.fsync(handle)
            finally:
                os.close(handle)
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


def now() -> str:
    """Return the time of the system's clock, in UTC, for file descriptions that people read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def canonical(value: Any) -> str:
    """Return the one strict JSON text of a value: sorted, no spaces, ASCII, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def strict_json(content: bytes | str) -> Any:
    """Parse JSON, and raise `ValueError` for anything that is not strictly JSON."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        decoded = content.decode("utf-8") if isinstance(content, bytes) else content
        return json.loads(decoded, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_document(document: Any, writer: str) -> Any:
    """Parse JSON text that a function named `writer` wrote; `InvalidInput` or `InvalidType` for anything else."""
    if not isinstance(document, str | bytes):
        raise InvalidType(f"document must be JSON text, got {type(document).__name__}")
    try:
        return strict_json(document)
    except ValueError:
        raise InvalidInput(f"document must be JSON that {writer} wrote, got something else") from None


def revive(kind: Any, value: Any, where: str, remedy: str, *, nan: bool = False) -> Any:
    """Return plain data as the type that an annotation says, such as a dataclass; `InvalidInput` for what does not fit.

    `where` names the value in messages, and `remedy` ends them. With `nan`, None stands for a number that is not finite.
    """

    def expect(fits: bool, what: str) -> None:
        if not fits:
            raise InvalidInput(f"{where} must be {what}; {remedy}")

    def each(kind: Any, item: Any, name: str = "") -> Any:
        return revive(kind, item, where + name, remedy, nan=nan)

    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, typing.Union):  # of something and None
        return None if value is None else each(inside[0], value)
    if origin is tuple:
        expect(isinstance(value, list), "a list")
        kinds = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        expect(len(value) == len(kinds), f"a list of {len(kinds)}")
        return tuple(map(each, kinds, value))
    if origin is dict:
        expect(isinstance(value, dict), "an object")
        return {name: each(inside[1], item, f".{name}") for name, item in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fits = isinstance(value, dict) and value.keys() == hints.keys()
        expect(fits, f"an object with the fields {', '.join(sorted(hints))}")
        make: Any = kind
        return make(**{name: each(hints[name], value[name], f".{name}") for name in hints})
    if nan and kind is float and value is None:
        return math.nan
    wanted = int | float if kind is float else kind
    expect(isinstance(value, wanted) and isinstance(value, bool) <= (kind is bool), kind.__name__)
    return float(value) if kind is float else value


# --- arrays in a file ------------------------------------------------------------------------------------------


class ModelFileError(InvalidInput):
    """A file is no file of ours, is damaged, was edited, or is of another kind or version."""


def arrays_to_bytes(kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Return plain fields and arrays of float64, float32, int64 or bool as the content of a file of this kind."""
    described: dict[str, Any] = {}
    members: dict[str, str | bytes] = {}
    for name, array in arrays.items():
        found, buffer = np.asarray(array), io.BytesIO()
        if found.dtype.name not in _KINDS:
            raise InvalidType(f"arrays in a file must be {', '.join(_KINDS)}, got {found.dtype}")
        stored = found.astype(_KINDS[found.dtype.name], order="C", copy=False)
        np.lib.format.write_array(buffer, stored, version=(1, 0), allow_pickle=False)
        members[f"{name}.npy"] = content = buffer.getvalue()
        described[name] = {"dtype": found.dtype.name, "shape": list(found.shape), "sha256": _digest(content)}
    header = {"format": FORMAT, "version": VERSION, "kind": kind, "fields": dict(fields), "arrays": described}
    header["sha256"] = _digest(_compact(header))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, part in {_HEADER: _compact(header), **members}.items():
            # one date: the same bytes for the same content
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), part)
    return buffer.getvalue()


def arrays_from_bytes(content: bytes, kind: str, path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return fields and arrays of a file that `arrays_to_bytes` made as this kind; `path` is named in messages.

    Raises `ModelFileError` if it is not what it should be. Nothing in it is run.
    """
    try:
        if not content.startswith(_START):  # zipfile passes over what precedes an archive
            raise zipfile.BadZipFile
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            header = _header(archive, kind)
            arrays = {name: _array(archive, name, said) for name, said in header["arrays"].items()}
            return header["fields"], arrays
    except ModelFileError as problem:
        raise ModelFileError(f"{os.fspath(path)!r} {problem}") from None
    except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError):
        raise ModelFileError(
            f"{os.fspath(path)!r} is no file that ratewise wrote, or it is damaged; nothing in it was run"
        ) from None


# --- values in files: models and checkpoints -------------------------------------------------------------------

KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "map": (Mapping, lambda value: [[key, entry] for key, entry in value.items()], dict),
    "tuple": (tuple, list, tuple),
    "texts": (
        np.ndarray,
        lambda value: [value.dtype.str, value.tolist()],
        lambda held: np.array(held[1], dtype=np.dtype(str(held[0]))),
    ),
}
"""Kinds of values that a file holds: their type, a value by values of other kinds, and back; later ones come first."""


def state_to_bytes(kind: str, state: Any) -> bytes:
    """Return numbers, texts, arrays and what `KINDS` makes of them as the content of a file of this kind."""
    arrays: Arrays = {}

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if isinstance(value, np.ndarray) and value.dtype.name in _KINDS:
            arrays[name := str(len(arrays))] = value
            return {"array": name}
        for name, (made, to_plain, _) in reversed(KINDS.items()):
            if isinstance(value, made):
                return {name: plain(to_plain(value))}
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InvalidType(
            f"a {kind} cannot hold {type(value).__name__}, only numbers, texts and arrays: let optimizer and scheduler "
            "keep nothing else, or train without a checkpoint; keep a classifier with joblib or skops"
        )

    return arrays_to_bytes(kind, {"state": plain(state)}, arrays)


def state_from_bytes(content: bytes, kind: str, path: Path) -> dict[str, Any]:
    """Return what `state_to_bytes` was given; nothing in it is executed."""
    fields, arrays = arrays_from_bytes(content, kind, path)

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        ((key, held),) = value.items()
        if key in ("array", "float"):
            return arrays[held] if key == "array" else float(held)
        return KINDS[key][2](read(held))

    with sound(path, kind.split()[-1]):
        return dict(read(fields["state"]))


@contextlib.contextmanager
def sound(path: Path, kind: str = "checkpoint") -> Iterator[None]:
    """Turn whatever goes wrong with the parts of a file into one message; a checksum can be made anew."""
    try:
        yield
    except RatewiseError:
        raise
    except Exception as problem:
        raise ModelFileError(
            f"the {kind} {os.fspath(path)!r} is no sound {kind} ({type(problem).__name__} in its parts), and "
            "nothing in it was run; take an older copy, or train anew"
        ) from problem


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise `ModelFileError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise ModelFileError(f"cannot read {os.fspath(path)!r}: {reason}") from None


def _compact(header: Any) -> str:
    # keys in their order: that of a schema's columns is that of the model's features
    return json.dumps(header, allow_nan=False, separators=(",", ":"))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def _header(archive: zipfile.ZipFile, kind: str) -> dict[str, Any]:
    """Return the header, compared with the members and their sizes before an array is read."""
    listed = archive.infolist()
    foreign = ModelFileError("is no file that ratewise wrote; nothing in it was run")
    if not listed or listed[0].filename != _HEADER:
        raise foreign
    if any(info.compress_type != zipfile.ZIP_STORED for info in listed):
        raise ModelFileError("holds compressed parts, which ratewise does not write; nothing in it was run")
    if listed[0].file_size > _LARGEST_HEADER:
        raise ModelFileError("has a header beyond all measure")
    header = strict_json(archive.read(_HEADER))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise foreign
    if header.get("version") != VERSION:
        raise ModelFileError(f"has version {header.get('version')!r}; this ratewise reads version {VERSION}")
    claimed = header.pop("sha256", None)
    known = {"format", "version", "kind", "fields", "arrays"}
    if header.keys() != known or _digest(_compact(header)) != claimed:
        raise ModelFileError("was edited or is damaged: its checksum does not fit; take the original file")
    if header["kind"] != kind:
        raise ModelFileError(f"holds {str(header['kind'])[:40]!r}, expected {kind!r}")
    _check_members(header, listed[1:])
    return header


def _check_members(header: Mapping[str, Any], listed: list[zipfile.ZipInfo]) -> None:
    arrays, sizes = header["arrays"], {info.filename: info.file_size for info in listed}
    if not isinstance(arrays, dict) or not isinstance(header["fields"], dict):
        raise ModelFileError("has a header of the wrong shape")
    if sorted(info.filename for info in listed) != sorted(f"{name}.npy" for name in arrays):
        raise ModelFileError("holds parts that its header does not name; take the original file")
    for name, said in arrays.items():
        shape: Any = said.get("shape") if isinstance(said, dict) else None
        if not isinstance(shape, list) or str(said.get("dtype")) not in _KINDS or not all(map(_side, shape)):
            raise ModelFileError(f"describes the array {name!r} in an unknown way")
        expected = math.prod(shape) * np.dtype(said["dtype"]).itemsize
        if not expected <= sizes[f"{name}.npy"] <= expected + _NPY_HEADER:
            raise ModelFileError(f"holds an array {name!r} of another size than its header says")


def _side(side: Any) -> bool:
    return type(side) is int and 0 <= side < 1 << 40


def _array(archive: zipfile.ZipFile, name: str, said: Mapping[str, Any]) -> npt.NDArray[Any]:
    content = archive.read(f"{name}.npy")
    if _digest(content) != said["sha256"]:
        raise ModelFileError(f"was edited or is damaged: the checksum of {name!r} does not fit")
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.str != _KINDS[said["dtype"]] or list(array.shape) != said["shape"]:
        raise ModelFileError(f"holds an array {name!r} of another type or shape than its header says")
    return array
