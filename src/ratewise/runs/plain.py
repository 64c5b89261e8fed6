"""Plain data of a run as JSON files."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from ratewise.accounting.book import strict_json
from ratewise.accounting.statement import software_version
from ratewise.enforceability import Doubt
from ratewise.exceptions import InvalidInput
from ratewise.plan import DualControl, Plan, Preparation
from ratewise.whole_files import write_whole


def versions() -> dict[str, str]:
    """Return the versions of what computes, for the record."""
    names = ("ratewise", "numpy", "scipy", "scikit-learn", "dp-accounting", "pandas")
    return {"python": platform.python_version(), **{name: software_version(name) for name in names}}


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file; anything else is refused by name."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read {str(path)!r}: {problem.strerror or type(problem).__name__}"
        ) from None
    return parsed(content, path, what)


def parsed(content: bytes, path: Path, what: str) -> Any:
    """Return plain data from bytes that were read already; `path` is named in messages."""
    try:
        return strict_json(content)
    except ValueError:
        raise InvalidInput(f"{str(path)!r} is no JSON, so it cannot be {what}") from None


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON, in one step."""
    write_whole(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Return plain data as the content of a JSON file."""
    return (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")


def plan_from(fields: Any) -> Plan:
    """Return the plan that ``dataclasses.asdict`` described."""
    try:
        given = dict(fields)
        given["dual"] = DualControl(**given["dual"])
        if given["preparation"] is not None:
            given["preparation"] = Preparation(**given["preparation"])
        return Plan(**given)
    except (TypeError, KeyError, ValueError):
        raise InvalidInput("plan.json holds no plan of this version") from None


def doubts_from(items: Any) -> tuple[Doubt, ...]:
    """Return the doubts that ``dataclasses.asdict`` described."""
    try:
        return tuple(Doubt(**item) for item in items)
    except TypeError:
        raise InvalidInput("doubts.json holds no doubts of this version") from None
