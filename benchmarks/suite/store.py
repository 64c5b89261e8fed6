"""Result files: JSON lines, a header first, then one line per finished job; only ever appended to.

A file that another format or version wrote, or that is cut in half, is refused with a clear error and left as
it is. A line is written in one go when its job is done, so a killed run leaves whole lines only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
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
        if self.path.exists():
            lines = [record]
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = [self.header, record]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, text)
        finally:
            os.close(handle)
        self.records[record["key"]] = record

    def forget(self, keys: Iterable[str]) -> Path:
        """Leave out some results, such as those of older defaults; the file as it was is kept beside it."""
        dropped = set(keys)
        kept = [record for key, record in self.records.items() if key not in dropped]
        before = self.path.with_suffix(".before")
        shutil.copy2(self.path, before)
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in [self.header, *kept]))
        os.replace(fresh, self.path)
        self.records = {record["key"]: record for record in kept}
        return before

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        text = self.path.read_bytes()
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
