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

from ratewise.accounting.events import NEIGHBOURS
from ratewise.data.schema import Schema, truth
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.training.config import HISTOGRAMS, SCHEDULES

Function = TypeVar("Function", bound=Callable[..., Any])


class NumberOr(click.ParamType[float | str | None]):
    """A number, or one word; the word none means that there is no number."""

    def __init__(self, word: str) -> None:
        self.word, self.name = word, f"number|{word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str | None:
        """Return the number or the word."""
        if value is None or str(value).lower() == self.word:
            return None if value is None or self.word == "none" else self.word
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {self.word}", param, ctx)


class Listed(click.ParamType[tuple[Any, ...]]):
    """Texts or finite numbers (`kind` is str or float) separated by commas; a list in a configuration file."""

    def __init__(self, kind: type) -> None:
        self.kind, self.name = kind, "names" if kind is str else "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the entries."""
        items = value.split(",") if isinstance(value, str) else value
        items = items if isinstance(items, list | tuple) else [items]
        if self.kind is str:
            if not all(isinstance(item, str) for item in items):
                self.fail("expected names, separated by commas", param, ctx)
            return tuple(item.strip() for item in items if item.strip())
        try:
            found = tuple(float(item) for item in items if not isinstance(item, bool))
        except (TypeError, ValueError):
            found = ()
        if len(found) != len(items) or not all(map(math.isfinite, found)):
            self.fail(f"expected finite numbers, separated by commas, got {value!r}", param, ctx)
        return found


# -------------------------------------------------------------------------------- files of settings

_WORDS = re.compile(r"^(\s*[\w.\"'-]+\s*=\s*)(yes|no|on|off|true|false)(?=\s*(?:#.*)?$)", re.IGNORECASE | re.MULTILINE)
_BESIDES = frozenset(("config", "force"))


def read_plain(path: str) -> Any:
    """Return the content of a TOML, JSON or YAML file as plain data."""
    kind = Path(path).suffix.lower()
    readers: dict[str, Callable[[str], Any]] = {".toml": _toml, ".json": json.loads}
    readers |= {".yaml": _yaml, ".yml": _yaml}
    if kind not in readers:
        raise InvalidInput(f"{path!r} must end in .toml, .json or .yaml")
    try:
        text = Path(path).read_text(encoding="utf-8")
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
        return tomllib.loads(_WORDS.sub(lambda m: f"{m[1]}{str(truth('', m[2])).lower()}", text))


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


def _configure(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make the fields of a configuration file, each as the text of its flag, the defaults of the command."""
    content = {} if path is None else read_plain(path)
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{path!r} must hold fields by name")
    known: dict[str, click.Parameter] = {}
    for parameter in (one for one in ctx.command.params if one.name not in _BESIDES):
        known |= {word.lstrip("-").replace("-", "_"): parameter for word in (str(parameter.name), *parameter.opts)}
    found: dict[str, Any] = {}
    for given, value in content.items():
        name = str(given).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            names = ", ".join(sorted({str(parameter.name) for parameter in known.values()}))
            hint = f"did you mean {close[0]!r}?" if close else f"known are {names}"
            raise InvalidInput(f"{path!r} has the unknown field {given!r}; {hint}")
        name = str((parameter := known[name]).name)
        if name in found:
            raise InvalidInput(f"{path!r} has {given!r} twice, under two names")
        listed = isinstance(value, list)
        found[name] = value if listed or value is None else [str(value)] if parameter.multiple else str(value)
        try:
            if listed and not (parameter.multiple or isinstance(parameter.type, Listed)):
                raise click.BadParameter(f"expected a single value, got {value!r}")
            parameter.type_cast_value(ctx, found[name])
        except click.BadParameter as problem:
            raise InvalidInput(f"{path!r}, field {name!r}: {problem.message}") from None
    ctx.default_map = {name: value for name, value in found.items() if value is not None}


def to_toml(content: Mapping[str, Any], place: tuple[str, ...] = ()) -> str:
    r"""Return tables, lists and scalars as TOML; `place` is the path of the table in its document.

    >>> print(to_toml({"label": "income", "columns": {"hours per week": {"type": "number", "upper": 99.0}}}))
    label = "income"
    <BLANKLINE>
    [columns."hours per week"]
    type = "number"
    upper = 99.0
    """
    tables = {name: value for name, value in content.items() if isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in content.items() if name not in tables]
    if place and (lines or not content):
        lines.insert(0, f"[{'.'.join(map(_key, place))}]")
    parts = ["\n".join(lines), *(to_toml(value, (*place, name)) for name, value in tables.items())]
    return "\n\n".join(part for part in parts if part)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise InvalidType(f"TOML cannot hold a {type(value).__name__}")


# ------------------------------------------------------------------------------------------- flags

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
_TOLERANCE = "A constraint is held if its interval ends at most this much above the bound."
_number: dict[str, Any] = {"type": float, "default": None}
_shown: dict[str, Any] = {"show_default": True}

budget_options = _options(
    option("--constraint", "constraints", multiple=True, metavar="TEXT", help=_CONSTRAINT),
    option("--epsilon", type=NumberOr("none"), default=1.0, **_shown, help="Budget of all releases."),
    option("--delta", **_number, help="By default 1e-5, or half of 1/n if that is smaller."),
    option("--neighbours", type=click.Choice(NEIGHBOURS), default="zero_out", **_shown),
    option("--tolerance", type=float, default=0.01, **_shown, help=_TOLERANCE),
)
"""What the privacy budget and the constraints are."""

TRAINING = (
    *("steps", "sampling_rate", "clip", "learning_rate", "schedule", "momentum", "histogram"),
    *("histogram_share", "temperature", "rates", "l2", "margin"),
)
"""Options that are fields of `TrainingConfig`."""

_MODELS = click.Choice(["additive", "linear"])
plan_options = _options(
    option("--model", type=_MODELS, default="additive", **_shown, help="Shape functions, or linear scores."),
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

_TOGETHER = "All rows with one entry of this column are protected together."
id_option = option("--privacy-id", metavar="COLUMN", help=_TOGETHER)
table_options = _options(
    option("--label", default=None, help="Column to predict; by default that of the schema."),
    option("--groups", type=Listed(str), default=(), help="Sensitive columns: a,b."),
    option("--features", type=Listed(str), default=(), help="Columns to predict from: a,b."),
    option("--leave-out", type=Listed(str), default=(), help="Columns not to use."),
    id_option,
)
"""What the columns of the table are."""

schema_option = option("--schema", type=PLACE, metavar="FILE", help="Public description of the table.")
_CONFIG: dict[str, Any] = {"help": "TOML, JSON or YAML with the fields of this command.", "metavar": "FILE"}
_CONFIG |= {"is_eager": True, "expose_value": False, "callback": _configure}
config_option = option("--config", type=PLACE, **_CONFIG)
force_option = option("--force", is_flag=True, help="Replace what is there.")
ledger_options = _options(
    option("--ledger", type=PLACE, metavar="FILE", help="A ledger of these rows, to admit what is released."),
    option("--ledger-cap", type=NumberOr("none"), help="Cap of a new --ledger, in epsilon."),
)
checkpoint_option = option("--checkpoint-every", type=int, default=20, **_shown, help="Steps between checkpoints.")
_CLASSES = "The possible labels, if they are public: no,yes. Otherwise they are found privately."
_ROWS = "Rows of an id that are used at most; found privately by default."
_WEIGHTING = "Whether rates are per id or per row."

run_options = _options(
    option("--classes", type=Listed(str), default=(), help=_CLASSES),
    option("--rows-per-id", type=click.IntRange(min=1), help=_ROWS),
    option("--id-weighting", type=click.Choice(["id", "row"]), default="id", **_shown, help=_WEIGHTING),
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
