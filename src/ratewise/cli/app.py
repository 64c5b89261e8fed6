"""The command ``ratewise``.

Exit codes: 0 done, 1 the job failed, 2 wrong usage or input, 3 refused for lack of budget, 4 a constraint is
missed (``evaluate --strict``), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import warnings
from typing import Any

import click

from ratewise import _startup
from ratewise.accounting.statement import software_version
from ratewise.cli import audit, looking, sweeping, training, using
from ratewise.cli.output import HUMAN, JSON, QUIET, Console
from ratewise.cli.watching import Stopped
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, RatewiseError, RatewiseWarning

_SHARED = ("--json", "--quiet", "-q")

FAILED, WRONG_INPUT, NO_BUDGET, INTERRUPTED = 1, 2, 3, 130


class Commands(click.Group):
    """Commands whose errors are one line and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the flags that all commands share wherever they stand."""
        end = args.index("--") if "--" in args else len(args)
        shared = [word for word in args[:end] if word in _SHARED]
        return super().parse_args(ctx, [*shared, *(w for w in args[:end] if w not in _SHARED), *args[end:]])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what goes wrong is said once and becomes the exit code."""
        _startup.ready()
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
                _console(ctx).error(said, code)
                raise click.exceptions.Exit(code) from None


def _console(ctx: click.Context) -> Console:
    return ctx.obj if isinstance(ctx.obj, Console) else Console()


def _judged(problem: BaseException) -> tuple[int, str | None]:
    """Return the exit code and the words; no words for what nobody foresaw, which shows its traceback."""
    if isinstance(problem, BudgetExceeded):
        return NO_BUDGET, str(problem)
    if isinstance(problem, InvalidInput | InvalidType):
        return WRONG_INPUT, str(problem)
    if isinstance(problem, Stopped):
        return 128 + problem.signal, str(problem)
    if isinstance(problem, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, str(problem) or "stopped"
    if isinstance(problem, RatewiseError):
        return FAILED, str(problem)
    if isinstance(problem, OSError):
        place = f" {problem.filename!r}" if problem.filename else ""
        return FAILED, f"{problem.strerror or type(problem).__name__}{place}"
    if isinstance(problem, MemoryError):
        return FAILED, "out of memory; use fewer rows, or float32 columns in Parquet"
    return FAILED, None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 no budget, 4 constraint missed, 130 stopped.",
)
@click.option("--quiet", "-q", is_flag=True, help="No notes and no progress.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output.")
@click.version_option(software_version(), prog_name="ratewise")
@click.pass_context
def cli(ctx: click.Context, quiet: bool, as_json: bool) -> None:
    """Classifiers under differential privacy that hold limits on prediction rates across groups."""
    ctx.obj = Console(JSON if as_json else QUIET if quiet else HUMAN)


for _command in (
    training.train,
    training.resume,
    looking.schema,
    looking.plan,
    using.predict,
    using.evaluate,
    using.report,
    using.compare,
    sweeping.sweep,
    audit.audit,
):
    cli.add_command(_command)
