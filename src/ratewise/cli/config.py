"""Settings from files: TOML, JSON, and YAML where PyYAML is installed."""

from __future__ import annotations

import difflib
import importlib
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ratewise.exceptions import InvalidInput
from ratewise.schema import Schema

_BESIDES = frozenset(("config", "force"))
_SUITABLE: dict[
    str, tuple[str, tuple[type, ...]]
] = {  # what a file may hold; text is converted as a flag's is
    "boolean": ("true or false", (bool, str)),
    "integer": ("a whole number", (int, str)),
    "integer range": ("a whole number", (int, str)),
    "float": ("a number", (int, float, str)),
    "number|none": ("a number or none", (int, float, str)),
    "text": ("text", (str,)),
    "path": ("text", (str,)),
    "choice": ("text", (str,)),
}


def read_plain(path: str) -> Any:
    """Return the content of a TOML, JSON or YAML file as plain data."""
    place = Path(path)
    kind = place.suffix.lower()
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    if kind not in readers:
        raise InvalidInput(f"{path!r} must end in .toml, .json or .yaml")
    try:
        text = place.read_text(encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"cannot read {path!r}: {problem.strerror or type(problem).__name__}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path!r} is not UTF-8 text") from None
    try:
        return readers[kind](text)
    except (InvalidInput, RecursionError):
        raise
    except Exception as problem:  # YAML has errors of its own
        raise InvalidInput(f"{path!r} is no {kind[1:].upper()}: {problem}") from None


def _yaml(text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise InvalidInput("YAML needs PyYAML: pip install pyyaml, or write TOML or JSON") from None
    return yaml.safe_load(text)  # safe: plain data only, nothing in the file is run


def read_schema(path: str) -> Schema:
    """Return the schema in a file."""
    content = read_plain(path)
    try:
        return Schema.from_dict(content)
    except ValueError as problem:
        raise InvalidInput(f"{path!r} is no schema: {problem}") from None
    except TypeError as problem:
        raise InvalidInput(f"{path!r} is no schema: {problem}") from None


def merged(context: click.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the configuration file, under the flags that were given, over the defaults."""
    found = dict(values)
    path = found.pop("config", None)
    if path is None:
        return found
    content = read_plain(path)
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{path!r} must hold fields by name")
    seen: set[str] = set()
    for given, value in content.items():
        parameter = _parameter(context.command, str(given), path)
        name = str(parameter.name)
        if name in seen:
            raise InvalidInput(f"{path!r} has {given!r} twice, under two names")
        seen.add(name)
        if context.get_parameter_source(name) == ParameterSource.DEFAULT:
            found[name] = _converted(context, parameter, value, path)
    return found


def _parameter(command: click.Command, given: str, path: str) -> click.Parameter:
    """Return what a field of a file stands for: a parameter by its name, or by its flag without dashes."""
    known: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if parameter.name not in _BESIDES:
            for word in (str(parameter.name), *parameter.opts):
                known[word.lstrip("-").replace("-", "_")] = parameter
    name = given.replace("-", "_")
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        names = ", ".join(sorted({str(parameter.name) for parameter in known.values()}))
        hint = f"did you mean {close[0]!r}?" if close else f"known are {names}"
        raise InvalidInput(f"{path!r} has the unknown field {given!r}; {hint}")
    return known[name]


def _converted(context: click.Context, parameter: click.Parameter, value: Any, path: str) -> Any:
    if parameter.multiple and isinstance(value, str):
        value = [value]
    _refuse_unsuitable(parameter, value, path)
    try:
        return parameter.type_cast_value(context, value)
    except (click.BadParameter, TypeError, ValueError) as problem:
        said = problem.format_message() if isinstance(problem, click.BadParameter) else str(problem)
        raise InvalidInput(f"{path!r}, field {parameter.name!r}: {said}") from None


def _refuse_unsuitable(parameter: click.Parameter, value: Any, path: str) -> None:
    """Refuse what a field cannot mean: true for a number, 1.5 for a whole one, a list for a single text."""
    wanted, kinds = _SUITABLE.get(parameter.type.name, ("", (object,)))
    listed = parameter.multiple and isinstance(value, list | tuple)
    for item in value if listed else [value]:
        fits = isinstance(item, kinds) and (not isinstance(item, bool) or bool in kinds or object in kinds)
        if item is not None and not fits:
            raise InvalidInput(f"{path!r}, field {parameter.name!r}: expected {wanted}, got {item!r}")
