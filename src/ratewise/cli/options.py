"""Flags of the commands and files of settings. Every field of a configuration file is also a flag, and the flag wins."""

from __future__ import annotations

import difflib
import importlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ratewise.accounting.events import NEIGHBOURS
from ratewise.data.schema import Schema, truth
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.training.config import HISTOGRAMS, SCHEDULES

Function = TypeVar("Function", bound=Callable[..., Any])


class NumberOr(click.ParamType[float | str | None]):
    """A number, or one word; the word none means that there is no number."""

    def __init__(self, word: str) -> None:
        self.word, self.name = word, f"number|{word}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        """Return the number or the word."""
        if value is None or str(value).lower() == self.word:
            return None if value is None or self.word == "none" else self.word
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {self.word}", param, ctx)


class Names(click.ParamType[tuple[str, ...]]):
    """Names separated by commas; a list in a configuration file."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names."""
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            self.fail("expected names, separated by commas", param, ctx)
        return tuple(item.strip() for item in items if item.strip())


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers separated by commas; a list in a configuration file."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the numbers."""
        items = value.split(",") if isinstance(value, str) else value
        items = items if isinstance(items, list | tuple) else [items]
        try:
            found = tuple(float(item) for item in items if not isinstance(item, bool))
        except (TypeError, ValueError):
            found = ()
        if len(found) != len(items) or not all(map(math.isfinite, found)):
            self.fail(f"expected finite numbers, separated by commas, got {value!r}", param, ctx)
        return found


PLACE = click.Path(readable=False)
"""A file or folder: shells complete it, commands look whether it is there."""

option = click.option


def _options(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(function: Function) -> Function:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


_CONSTRAINT = 'Such as "demographic_parity(sex) <= 0.05" or "fnr(label=1, race=*) <= 0.2"; may be repeated.'
_number: dict[str, Any] = {"type": float, "default": None}

budget_options = _options(
    option("--constraint", "constraints", multiple=True, metavar="TEXT", help=_CONSTRAINT),
    option(
        "--epsilon", type=NumberOr("none"), default=1.0, show_default=True, help="Budget of all releases."
    ),
    option("--delta", **_number, help="By default 1e-5, or half of 1/n if that is smaller."),
    option("--neighbours", type=click.Choice(NEIGHBOURS), default="zero_out", show_default=True),
    option(
        "--tolerance",
        type=float,
        default=0.01,
        show_default=True,
        help="A constraint is held if its interval ends at most this much above the bound.",
    ),
)
"""What the privacy budget and the constraints are."""

TRAINING = (
    *("steps", "sampling_rate", "clip", "learning_rate", "schedule", "momentum", "histogram"),
    *("histogram_share", "temperature", "rates", "l2", "margin"),
)
"""Options that are fields of `TrainingConfig`."""

plan_options = _options(
    option(
        "--model",
        type=click.Choice(["additive", "linear"]),
        default="additive",
        show_default=True,
        help="One shape function per feature, or linear scores.",
    ),
    option("--steps", type=int, default=None, help="Training steps."),
    option("--sampling-rate", **_number, help="Share of the rows (or ids) that a step reads."),
    option("--clip", **_number, help="Bound on the gradient of a row (or id)."),
    option("--learning-rate", **_number),
    option("--schedule", type=click.Choice(SCHEDULES), default=None),
    option("--momentum", **_number),
    option("--histogram", type=click.Choice(HISTOGRAMS), default=None),
    option("--histogram-share", **_number, help="Share of a step's budget for counts of predictions."),
    option("--temperature", **_number, help="Of soft predictions."),
    option("--rates", type=click.Choice(["hard", "soft"]), default=None),
    option("--l2", **_number, help="Ridge penalty."),
    option("--margin", type=NumberOr("certified"), help="Aim below every bound by this; or certified."),
)
"""The choices of training; without them the defaults decide, by public facts."""

file_options = _options(
    option("--sep", default=None, metavar="MARK", help="Separator of fields; or tab, semicolon."),
    option("--decimal", type=click.Choice([".", ","]), default=None, help="Decimal mark."),
    option("--encoding", default=None, metavar="NAME", help="Such as utf-8 or cp1252."),
    option("--header/--no-header", default=None, help="Whether the first row holds names of columns."),
    option("--sheet", default=None, metavar="NAME", help="Sheet of an Excel workbook."),
    option("--date-order", type=click.Choice(["dmy", "mdy"]), help="How 03/04/2020 is read."),
    option("--missing", multiple=True, metavar="TEXT", help="Text for a missing cell; may be repeated."),
)
"""How the file is written; what is left out is detected, and reported."""

id_option = option(
    "--privacy-id", metavar="COLUMN", help="All rows with one entry of this column are protected together."
)
table_options = _options(
    option("--label", default=None, help="Column to predict; by default that of the schema."),
    option("--groups", type=Names(), default=(), help="Sensitive columns: a,b."),
    option("--features", type=Names(), default=(), help="Columns to predict from: a,b."),
    option("--leave-out", type=Names(), default=(), help="Columns not to use."),
    id_option,
)
"""What the columns of the table are."""

schema_option = option("--schema", type=PLACE, metavar="FILE", help="Public description of the table.")
config_option = option(
    "--config", type=PLACE, metavar="FILE", help="TOML, JSON or YAML with the fields of this command."
)
force_option = option("--force", is_flag=True, help="Replace what is there.")
ledger_options = _options(
    option("--ledger", type=PLACE, metavar="FILE", help="A ledger of these rows, to admit what is released."),
    option("--ledger-cap", type=NumberOr("none"), help="Cap of a new --ledger, in epsilon."),
)
checkpoint_option = option(
    "--checkpoint-every", type=int, default=20, show_default=True, help="Steps between checkpoints."
)

run_options = _options(
    option(
        "--classes",
        type=Names(),
        default=(),
        help="The possible labels, if they are public: no,yes. Otherwise they are found privately.",
    ),
    option(
        "--rows-per-id",
        type=click.IntRange(min=1),
        help="Rows of an id that are used at most; found privately by default.",
    ),
    option(
        "--id-weighting",
        type=click.Choice(["id", "row"]),
        default="id",
        show_default=True,
        help="Whether rates are per id or per row.",
    ),
    budget_options,
    plan_options,
    schema_option,
    ledger_options,
    option("--seed", type=click.IntRange(min=0), help="For made-up data only; must stay secret."),
    checkpoint_option,
    option("--title", default="", help="Heading of reports."),
    option("--out", type=PLACE, metavar="FOLDER", help="Where the results go."),
    config_option,
)
"""Everything that decides a run and where it is kept; for `train` and `sweep`."""


_WORDS = re.compile(
    r"^(\s*[\w.\"'-]+\s*=\s*)(yes|no|on|off|true|false)(?=\s*(?:#.*)?$)", re.IGNORECASE | re.MULTILINE
)
_BESIDES = frozenset(("config", "force"))
# what a file may hold; text is converted as a flag's is
_SUITABLE: dict[str, tuple[str, tuple[type, ...]]] = {
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
        ".toml": _toml,
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


def _toml(text: str) -> Any:
    """Read TOML; the words yes, no, on and off are accepted for true and false."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        plain = _WORDS.sub(lambda found: f"{found[1]}{str(truth('', found[2])).lower()}", text)
        return tomllib.loads(plain)


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
    except (ValueError, TypeError) as problem:
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


# ------------------------------------------------------------------------------------ writing TOML

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
