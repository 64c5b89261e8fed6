"""The command ``ratewise``.

Exit codes: 0 done, 1 the job failed, 2 wrong usage or input, 3 refused for lack of budget, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any

import click

from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, RatewiseError, RatewiseWarning

if TYPE_CHECKING:
    from ratewise.cli.console import Console

_SHARED = ("--json", "--quiet", "-q")

_TERMS = {"level": "--confidence", "frame": "the table", "X": "the table"}
"""Arguments of the library that no option is named after."""

_ARGUMENTS = (
    r"^(\w+)( must | is )",
    r"^(level|frame|X)( )",
    r"(?<= cannot be in )(\w+)()$",
    r"(?<=To change it: )(\w+)=()",
    r"(?<![\w'-])(sep|decimal|encoding|sheet|header|date_order)( is | out\b|=)",
)
"""Where messages name an argument, as the first group; the second one is kept."""

FAILED, WRONG_INPUT, NO_BUDGET, INTERRUPTED = 1, 2, 3, 130

COMMANDS = {
    "start": ("guided", "Train on a table step by step, by questions with suggestions."),
    "app": ("webapp", "The questions of `ratewise start` as a web page on this computer."),
    "train": ("train", "Train a classifier on a table and write a run folder."),
    "resume": ("train", "Go on with a run that was stopped."),
    "evaluate": ("evaluate", "Judge the constraints of a run on a labelled table."),
    "report": ("evaluate", "Write one page about a run."),
    "predict": ("evaluate", "Predict the label of each row of a table."),
    "compare": ("evaluate", "Show runs side by side, with reference models."),
    "sweep": ("train", "Train a run for every pair of slack and epsilon, in one ledger."),
    "schema": ("plan", "Draft the public schema of a table, for a person to check and sign."),
    "plan": ("plan", "Show releases, noise and accuracy to expect; no data is read."),
    "audit": ("plan", "Try to break the guarantee of a run, on made-up rows."),
}
"""The module of each command and its line in the list; modules are loaded when a command is used."""


class Commands(click.Group):
    """Commands whose errors are one line and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the flags that all commands share wherever they stand."""
        end = args.index("--") if "--" in args else len(args)
        args[:end] = sorted(args[:end], key=lambda word: word not in _SHARED)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Load a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ratewise.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the list of the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what goes wrong is said once and becomes the exit code."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", RatewiseWarning)
            warnings.showwarning = lambda *said: _console(ctx).show_warning(*said)
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit):
                raise
            except (Exception, KeyboardInterrupt) as problem:
                code, said = _judged(problem)
                if said is None:
                    raise
                _console(ctx).error(self._in_flags(ctx, said), code)
                raise click.exceptions.Exit(code) from None

    def _in_flags(self, ctx: click.Context, said: str) -> str:
        """Return a message about an argument of the library in terms of the command: ``--steps must be ...``."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        flags = {str(p.name): p.opts[0] for p in (command.params if command else ()) if p.opts[0][:2] == "--"}
        terms = {**flags, **_TERMS}
        for pattern in _ARGUMENTS:
            said = re.sub(pattern, lambda found: terms.get(found[1], found[1]) + found[2], said)
        return said


def _console(ctx: click.Context) -> Console:
    from ratewise.cli.console import Console

    return ctx.obj if isinstance(ctx.obj, Console) else Console()


def _judged(problem: BaseException) -> tuple[int, str | None]:
    """Return the exit code and the words; no words for what nobody foresaw, which shows its traceback."""
    from ratewise.cli.console import Stopped

    if isinstance(problem, Stopped):
        return 128 + problem.signal, str(problem)
    if isinstance(problem, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, str(problem) or "stopped"
    if isinstance(problem, RatewiseError):
        wrong = WRONG_INPUT if isinstance(problem, InvalidInput | InvalidType) else FAILED
        return NO_BUDGET if isinstance(problem, BudgetExceeded) else wrong, str(problem)
    if isinstance(problem, OSError):
        place = f" {problem.filename!r}" if problem.filename else ""
        return FAILED, f"{problem.strerror or type(problem).__name__}{place}"
    if isinstance(problem, MemoryError):
        return FAILED, "out of memory; use fewer rows, or float32 columns in Parquet"
    return FAILED, None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 no budget, 130 stopped.",
)
@click.option("--quiet", "-q", is_flag=True, help="No notes and no progress.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output.")
@click.version_option(package_name="ratewise", prog_name="ratewise")
@click.pass_context
def cli(ctx: click.Context, quiet: bool, as_json: bool) -> None:
    """Classifiers under differential privacy with constraints on prediction rates of groups."""
    from ratewise.cli.console import HUMAN, JSON, QUIET, Console

    ctx.obj = Console(JSON if as_json else QUIET if quiet else HUMAN)
