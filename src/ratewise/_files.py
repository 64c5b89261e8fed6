"""Files that are whole or not there, strict JSON and what it describes, and arrays in a file that is safe to open.

Models and checkpoints are a checksum, a line of JSON (the header) and the numbers of all arrays, one after the other.
Opening one runs nothing that is in it, and the sizes in the header are compared with the file before an array is made.
A damaged or edited file is refused. A checksum is no signature: it shows accidents and careless edits, not who wrote
the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError

Path = str | os.PathLike[str]

FORMAT = "ratewise-state"
VERSION = 1

_TYPES = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "bool": "|b1"}  # of arrays, and how they are written


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


# --- models and checkpoints --------------------------------------------------------------------------------


class ModelFileError(InvalidInput):
    """A file is no file of ours, is damaged, was edited, or is of another kind or version."""


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
    arrays: list[npt.NDArray[Any]] = []

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if isinstance(value, np.ndarray) and value.dtype.name in _TYPES:
            arrays.append(value)
            return {"array": len(arrays) - 1}
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

    header = {"format": FORMAT, "version": VERSION, "kind": kind, "state": plain(state)}
    header["arrays"] = [[array.dtype.name, list(array.shape)] for array in arrays]
    numbers = (array.astype(_TYPES[array.dtype.name], copy=False).tobytes() for array in arrays)
    # keys in their order: that of a schema's columns is that of the model's features
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    content = b"\n".join([text, b"".join(numbers)])
    return b"\n".join([_digest(content), content])


def state_from_bytes(content: bytes, kind: str, path: Path) -> dict[str, Any]:
    """Return what `state_to_bytes` was given; nothing in it is executed, and `path` is named in messages."""
    try:
        state, arrays = _parts(content, kind)
    except ModelFileError as problem:
        raise ModelFileError(f"{os.fspath(path)!r} {problem}") from None

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
        return dict(read(state))


def _parts(content: bytes, kind: str) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return the plain state and the arrays of a file, after checking its header and the sizes in it."""
    digest, _, rest = content.partition(b"\n")
    text, _, numbers = rest.partition(b"\n")
    try:
        header = strict_json(text)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError("is no file that ratewise wrote, or it is damaged; nothing in it was run")
    if header.get("version") != VERSION:
        raise ModelFileError(f"has version {header.get('version')!r}; this ratewise reads version {VERSION}")
    described = header.get("arrays")
    if _digest(rest) != digest or header.keys() != {"format", "version", "kind", "state", "arrays"}:
        raise ModelFileError("was edited or is damaged: its checksum does not fit; take the original file")
    if header["kind"] != kind:
        raise ModelFileError(f"holds {str(header['kind'])[:40]!r}, expected {kind!r}")
    if not isinstance(described, list) or not all(map(_is_described, described)):
        raise ModelFileError("describes its arrays in an unknown way")
    arrays, at = [], 0
    for name, shape in described:
        dtype, start = np.dtype(_TYPES[name]), at
        at += math.prod(shape) * dtype.itemsize
        if at > len(numbers):
            break
        arrays.append(np.ndarray(shape, dtype, numbers[start:at]).copy())
    if at != len(numbers):
        raise ModelFileError("holds arrays of another size than its header says")
    return header["state"], arrays


def _is_described(said: Any) -> bool:
    """Return whether this is the type and the shape of an array."""
    known = isinstance(said, list) and len(said) == 2 and str(said[0]) in _TYPES and isinstance(said[1], list)
    return known and all(type(side) is int and side >= 0 for side in said[1])


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


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
