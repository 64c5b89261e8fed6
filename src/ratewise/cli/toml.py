"""Plain data as TOML, for files that a person edits; the standard library can only read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ratewise.exceptions import InvalidType

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def to_toml(content: Mapping[str, Any]) -> str:
    r"""Return tables, lists and scalars as TOML.

    >>> print(to_toml({"label": "income", "columns": {"hours per week": {"type": "number", "upper": 99.0}}}))
    label = "income"
    <BLANKLINE>
    [columns."hours per week"]
    type = "number"
    upper = 99.0
    """
    lines: list[str] = []
    _table(content, (), lines)
    return "\n".join(lines).strip("\n")


def _table(content: Mapping[str, Any], place: tuple[str, ...], lines: list[str]) -> None:
    scalars = {name: value for name, value in content.items() if not isinstance(value, Mapping)}
    if place and (scalars or not content):
        lines.append(f"\n[{'.'.join(map(_key, place))}]")
    lines += [f"{_key(name)} = {_value(value)}" for name, value in scalars.items()]
    for name, value in content.items():
        if isinstance(value, Mapping):
            _table(value, (*place, name), lines)


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise InvalidType(f"TOML cannot hold a {type(value).__name__}")
