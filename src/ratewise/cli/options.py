"""Flags of the commands. Every field of a configuration file is also a flag, and the flag wins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ratewise.accounting.events import NEIGHBOURS
from ratewise.defaults import AUTO
from ratewise.plan import AVERAGINGS, NOISES, SCHEDULES
from ratewise.runs.settings import CUSTOMARY_DELTA

Function = TypeVar("Function", bound=Callable[..., Any])


class Budget(click.ParamType[float | None]):
    """A number, or the word none."""

    name = "number|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Return the number, or None for "none"."""
        if value is None or str(value).lower() == "none":
            return None
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor none", param, ctx)


class Tails(click.ParamType[float | str | None]):
    """A number, or one of the words auto and none."""

    name = "number|auto|none"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        """Return the number, "auto", or None for "none"."""
        word = str(value).lower()
        if word in (AUTO, "none"):
            return AUTO if word == AUTO else None
        try:
            return float(word)  # of text: true and false in a file are no numbers
        except ValueError:
            self.fail(f"{value!r} is neither a number nor auto nor none", param, ctx)


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


PLACE = click.Path(
    readable=False
)  # of a file or folder: shells complete it, commands look whether it is there


def _stack(function: Function, options: list[Any]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def budget_options(function: Function) -> Function:
    """Add what the privacy budget and the constraints are."""
    return _stack(
        function,
        [
            click.option("--constraint", "constraints", multiple=True, metavar="TEXT", help=_CONSTRAINT),
            click.option(
                "--epsilon",
                type=Budget(),
                default=1.0,
                show_default=True,
                help="Budget of everything released.",
            ),
            click.option("--delta", type=float, default=CUSTOMARY_DELTA, show_default=True),
            click.option(
                "--neighbours", type=click.Choice(NEIGHBOURS), default="add_or_remove", show_default=True
            ),
        ],
    )


def plan_options(function: Function) -> Function:
    """Add the choices of training; without them the defaults decide, by public facts."""
    number: dict[str, Any] = {"type": float, "default": None}
    return _stack(
        function,
        [
            click.option("--steps", type=int, default=None, help="Training steps."),
            click.option("--sampling-rate", **number, help="Share of the rows that a step reads."),
            click.option("--clip", **number, help="Bound on each row's gradient."),
            click.option("--row-norm", **number, help="Bound on each row's length."),
            click.option(
                "--standardise/--no-standardise", default=None, help="Standardise features privately."
            ),
            click.option(
                "--tails",
                type=Tails(),
                default=AUTO,
                show_default=True,
                help="Cut numbers off so many deviations from their mean.",
            ),
            click.option(
                "--curves/--no-curves",
                default=None,
                help="Let scores bend in numbers; by default where rows are enough, and else a little.",
            ),
            click.option("--learning-rate", **number),
            click.option("--schedule", type=click.Choice(SCHEDULES), default=None),
            click.option("--momentum", **number),
            click.option("--averaging", type=click.Choice(AVERAGINGS), default=None),
            click.option(
                "--histogram",
                type=click.Choice(["gaussian", "laplace"]),
                default="gaussian",
                show_default=True,
            ),
            click.option(
                "--histogram-share", **number, help="Share of the budget for counts of predictions."
            ),
            click.option("--noise", type=click.Choice(NOISES), default="discrete", show_default=True),
            click.option("--temperature", type=float, default=1.0, show_default=True),
            click.option("--rates", type=click.Choice(["hard", "soft"]), default="hard", show_default=True),
            click.option("--l1", **number, help="Lasso penalty; by default what noise explains."),
            click.option("--l2", type=float, default=0.0, show_default=True, help="Ridge penalty."),
            click.option("--fit-intercept/--no-fit-intercept", default=True),
        ],
    )


def table_options(function: Function) -> Function:
    """Add what the columns of the table are."""
    return _stack(
        function,
        [
            click.option("--label", default=None, help="Column to predict."),
            click.option("--groups", type=Names(), default=(), help="Sensitive columns: a,b."),
            click.option("--leave-out", type=Names(), default=(), help="Columns not to use."),
            click.option(
                "--missing",
                multiple=True,
                metavar="TEXT",
                help="Text that stands for a missing cell of a CSV.",
            ),
        ],
    )


def run_options(function: Function) -> Function:
    """Add where a run reads and writes, and how it is kept."""
    return _stack(
        function,
        [
            click.option(
                "--schema", type=PLACE, default=None, metavar="FILE", help="Public description of the table."
            ),
            click.option("--unit", default="one row", show_default=True, help="What a row stands for."),
            click.option(
                "--ledger",
                type=PLACE,
                default=None,
                metavar="FILE",
                help="A book to write into; made if absent.",
            ),
            click.option(
                "--ledger-cap", type=Budget(), default=None, help="Cap of a new --ledger, in epsilon."
            ),
            click.option(
                "--seed",
                type=click.IntRange(min=0),
                default=None,
                help="For made-up data only; must stay secret.",
            ),
            click.option(
                "--checkpoint-every",
                type=int,
                default=20,
                show_default=True,
                help="Steps between checkpoints.",
            ),
            click.option("--out", type=PLACE, default=None, metavar="FOLDER", help="Where the results go."),
            click.option(
                "--config",
                type=PLACE,
                default=None,
                metavar="FILE",
                help="TOML, JSON or YAML with these fields.",
            ),
        ],
    )


def force_option(function: Function) -> Function:
    """Add the leave to replace."""
    return click.option("--force", is_flag=True, help="Replace what is there.")(function)


_CONSTRAINT = 'Such as "demographic_parity(sex) <= 0.05" or "fnr(label=1, race=*) <= 0.2"; may be repeated.'
