"""Result files: JSON lines, a header first, then one line per finished job; only ever appended to.

A file that another format or version wrote, or that is cut in half, is refused with a clear error and left as
it is. A line is written in one go when its job is done, so a killed run leaves whole lines only; what a full
disk lets through of a line is taken back.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

FORMAT = 1
ROOT = Path(__file__).resolve().parents[2]


class ResultsError(Exception):
    """A result file cannot be used."""


def results_path(name: str, mode: str) -> Path:
    """Return the file of an experiment: full results are kept with the code, quick ones are not."""
    folder = ROOT / "benchmarks" / "results" if mode == "full" else ROOT / ".benchmarks" / "quick"
    return folder / f"{name}.jsonl"


def job_key(job: Mapping[str, Any]) -> str:
    """Return a short hash of everything that a job's result depends on.

    >>> job_key({"b": 1, "a": 2}) == job_key({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]


class Store:
    """The results of one experiment.

    Parameters
    ----------
    path : Path
    name : str
        Of the experiment; a file of another one is refused.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.records = {record["key"]: record for record in self._read()}

    def __contains__(self, key: object) -> bool:
        return key in self.records

    def __len__(self) -> int:
        return len(self.records)

    @property
    def header(self) -> dict[str, Any]:
        """What the first line says."""
        return {"experiment": self.name, "format": FORMAT, "ratewise": version("ratewise")}

    def add(self, record: dict[str, Any]) -> None:
        """Append a line; the header comes with the first one."""
        lines = [record] if self.path.exists() else [self.header, record]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _append(self.path, _text(lines))
        except OSError as problem:
            raise ResultsError(
                f"{self.path} cannot be written to ({problem.strerror}); what was in it is kept, the result "
                "of this job is not: make room, then run again"
            ) from None
        self.records[record["key"]] = record

    def forget(self, keys: Iterable[str]) -> Path | None:
        """Leave out some results, such as those of older defaults.

        The file as it was is kept beside it under a name that was free, which is returned. Without a result
        to leave out nothing happens, and None is returned.
        """
        dropped = self.records.keys() & set(keys)
        if not dropped:
            return None
        kept = [record for key, record in self.records.items() if key not in dropped]
        fresh = self.path.with_suffix(".fresh")
        try:
            before = self._copy()
            fresh.write_bytes(_text([self.header, *kept]))
            os.replace(fresh, self.path)
        except OSError as problem:
            fresh.unlink(missing_ok=True)
            raise ResultsError(self._advice(f"cannot be written anew ({problem.strerror})")) from None
        self.records = {record["key"]: record for record in kept}
        return before

    def _copy(self) -> Path:
        """Copy the file to the first of NAME.before, NAME.before-2, ... that is free; none is replaced."""
        endings = (".before" if number == 1 else f".before-{number}" for number in itertools.count(1))
        before = next(path for path in map(self.path.with_suffix, endings) if not path.exists())
        _append(before, self.path.read_bytes())
        return before

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        try:
            text = self.path.read_bytes()
        except OSError as problem:
            raise ResultsError(self._advice(f"cannot be read ({problem.strerror})")) from None
        lines = text.decode(errors="replace").splitlines()
        if not lines or not text.endswith(b"\n"):
            raise ResultsError(self._advice(f"is cut off in line {len(lines)}"))
        parsed = [self._parse(line, number) for number, line in enumerate(lines, 1)]
        self._check_header(parsed[0])
        for number, record in enumerate(parsed[1:], 2):
            if "key" not in record:
                raise ResultsError(self._advice(f"has no result in line {number}"))
            yield record

    def _parse(self, line: str, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            raise ResultsError(self._advice(f"is cut off or damaged in line {number}")) from None
        if not isinstance(found, dict):
            raise ResultsError(self._advice(f"holds no result in line {number}"))
        return found

    def _check_header(self, found: dict[str, Any]) -> None:
        for field, value in self.header.items():
            if found.get(field) != value:
                raise ResultsError(
                    self._advice(f"was written with {field} {found.get(field)!r}, this is {value!r}")
                )

    def _advice(self, problem: str) -> str:
        return f"{self.path} {problem}; nothing was changed: repair it or move it away, then run again"


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


def _append(path: Path, text: bytes) -> None:
    """Append all of a text or, where the system refuses (a full disk), nothing of it."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    written = 0
    try:
        while written < len(text):
            written += os.write(handle, text[written:])
    except OSError:
        _take_back(path, handle, written)
        raise
    finally:
        os.close(handle)


def _take_back(path: Path, handle: int, written: int) -> None:
    """Cut off what was just written, unless another process has written after it; leave no empty file."""
    size = os.fstat(handle).st_size
    if written and os.lseek(handle, 0, os.SEEK_CUR) == size:
        size -= written
        os.ftruncate(handle, size)
    if size == 0:
        path.unlink()
