"""``ratewise train`` and ``ratewise resume``."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from ratewise import _validate
from ratewise.accounting import Budget, Event, Ledger
from ratewise.cli.config import merged, read_schema
from ratewise.cli.constraints import refuse_label, refuse_unheld, refuse_unknown_columns
from ratewise.cli.options import PLACE, budget_options, force_option, plan_options, run_options, table_options
from ratewise.cli.output import Console
from ratewise.cli.places import refuse_folder
from ratewise.cli.tables import read_table
from ratewise.cli.watching import Stopped, Watcher
from ratewise.domain import list_values
from ratewise.drowning import warn_if_drowned
from ratewise.exceptions import InvalidInput
from ratewise.frames import named_columns
from ratewise.grammar import parse_constraint
from ratewise.reading import PrivateRows
from ratewise.runs import (
    Result,
    RunFolder,
    Settings,
    facts_of,
    plan_run,
    read_run_rows,
    schema_for,
    train_run,
)
from ratewise.runs.job import bounds_of, refuse_over_cap
from ratewise.schema import Schema
from ratewise.table_preparation import provisional
from ratewise.tables import needed_columns


@click.command()
@click.argument("data", type=PLACE, required=False)
@table_options
@budget_options
@plan_options
@run_options
@force_option
@click.pass_context
def train(ctx: click.Context, /, **values: Any) -> None:
    """Train a classifier on the table DATA (CSV, CSV.gz or Parquet) and write a run folder."""
    console = ctx.find_object(Console) or Console()
    fields = merged(ctx, values)
    data, out = required(fields, "data"), required(fields, "out")
    settings = settings_from(fields)
    every = _validate.count(checkpoint_every=fields["checkpoint_every"])
    refuse_folder(out, fields["force"])
    given = None if fields["schema"] is None else read_schema(fields["schema"])
    frame, schema = read_and_describe(console, fields, settings, given, [fields["constraints"]])
    warn_of_leaks(console, schema, drafted=given is None, private=settings.epsilon is not None)
    rows = read_run_rows(frame, provisional(schema), settings)
    own = bounds_of(schema, settings, rows.n_rows)
    facts = facts_of(schema, settings, rows.n_rows)
    plan = plan_run(facts, settings, own.events)
    warn_if_drowned(plan, facts.n_parameters, settings.epsilon)

    def create() -> RunFolder:
        return RunFolder.create(
            out,
            settings=settings,
            schema=schema,
            plan=plan,
            data=data,
            command=own_command(),
            reading={"missing": list(fields["missing"])},
            ledger=shared_ledger(fields, settings, (*own.events, *plan.events)),
            force=fields["force"],
        )

    run(console, out, create, frame, rows=rows, delta=settings.delta, seed=fields["seed"], every=every)


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.option("--data", type=PLACE, default=None, help="Where the rows are now, if not where they were.")
@click.option("--checkpoint-every", type=int, default=20, show_default=True)
@click.pass_context
def resume(ctx: click.Context, run_folder: str, data: str | None, checkpoint_every: int) -> None:
    """Go on with a run that was stopped, with fresh randomness; what was spent stays spent."""
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    if folder.finished:
        raise InvalidInput(f"the run in {run_folder!r} is finished; there is nothing to go on with")
    place = data or folder.description["data"]
    if data is None and not os.path.isfile(place):
        raise InvalidInput(f"the rows are no longer at {place!r}; say where they are: --data FILE")
    console.note(f"reading {place}")
    frame = read_table(place, folder.missing)
    delta = folder.settings.delta
    run(console, run_folder, lambda: folder, frame, delta=delta, seed=None, every=checkpoint_every)


# ----------------------------------------------------------------------- shared with other commands


def required(fields: dict[str, Any], name: str) -> str:
    """Return a field that may come from a flag or from the configuration file."""
    value = fields[name]
    if not value:
        flag = name.upper() if name == "data" else f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{flag} is missing; give it as a flag or in --config")
    return str(value)


def settings_from(fields: dict[str, Any]) -> Settings:
    """Return the settings; columns that constraints read are groups without being named."""
    refuse_label(fields["constraints"], required(fields, "label"))
    read = needed_columns([parse_constraint(text) for text in fields["constraints"]]) or set()
    groups = tuple(dict.fromkeys((*fields["groups"], *sorted(read))))
    names = {field.name for field in dataclasses.fields(Settings)}
    return Settings(**{**{name: fields[name] for name in names if name in fields}, "groups": groups})


def read_and_describe(
    console: Console,
    fields: dict[str, Any],
    settings: Settings,
    given: Schema | None,
    texts: Sequence[Sequence[str]],
) -> tuple[Any, Schema]:
    """Return the table and its schema; each list of constraint texts is checked as soon as it can be."""
    if given is not None:
        _refuse_unheld(texts, given)
    console.note(f"reading {fields['data']}")
    frame = read_table(fields["data"], fields["missing"])
    if given is None:
        _refuse_columns(frame, settings, texts)
    schema = schema_for(frame, settings, given)
    if given is None:
        _refuse_unheld(texts, schema)
    return frame, schema


def _refuse_columns(frame: Any, settings: Settings, texts: Sequence[Sequence[str]]) -> None:
    """Refuse a table without the columns that are spoken of, before it is described."""
    columns = named_columns(frame, "the table")
    for listed in texts:
        refuse_unknown_columns(listed, columns)
    for name in (settings.label, *settings.groups, *settings.leave_out):
        if name not in columns:
            close = difflib.get_close_matches(name, columns, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidInput(
                f"the table has no column {name!r}; its columns are {list_values(columns)}{hint}"
            )
    if frame[settings.label].nunique() == 1:
        raise InvalidInput(
            f"the label {settings.label!r} has the same value in every row; a classifier needs two classes"
        )


def _refuse_unheld(texts: Sequence[Sequence[str]], schema: Schema) -> None:
    for listed in texts:
        refuse_unheld(listed, schema.domain)


def warn_of_leaks(console: Console, schema: Schema, *, drafted: bool, private: bool) -> None:
    """Say plainly what was read off the data outside the budget."""
    if schema.signed or not private:
        return
    what = "; ".join(schema.leaks)
    if drafted:
        console.warn(
            "no --schema was given, so these were READ OFF THE DATA, and the privacy guarantee does not "
            f"cover them: {what}. To close the leak: ratewise schema, check and sign the file, --schema FILE"
        )
    else:
        console.warn(
            f"the schema is not signed, so what it says counts as leaked: {what}. Once a person has checked "
            "that all of it is public knowledge, write signed = true in it"
        )


def shared_ledger(fields: dict[str, Any], settings: Settings, events: tuple[Event, ...]) -> str | None:
    """Return the path of the book that the run shall write into, making it if it is new and has room."""
    path = fields["ledger"]
    if path is None:
        return None
    if not os.path.lexists(path):
        cap = fields["ledger_cap"]
        limit = None if cap is None else Budget(float(cap), float(settings.delta))
        Ledger.create(path, cap=limit, neighbours=settings.neighbours)
    ledger = Ledger.open(path)
    if ledger.neighbours != settings.neighbours:
        raise InvalidInput(
            f"neighbours is {settings.neighbours!r}, but the ledger keeps its book for {ledger.neighbours!r}"
        )
    refuse_over_cap(ledger, events)
    return str(path)


def own_command() -> list[str]:
    """Return the words of the command, without a seed: whoever knows it can take the noise off."""
    words = ["ratewise", *sys.argv[1:]]
    for place, word in enumerate(words):
        if word == "--seed" and place + 1 < len(words):
            words[place + 1] = "(not kept)"
        elif word.startswith("--seed="):
            words[place] = "--seed=(not kept)"
    return words


def run(
    console: Console,
    out: str,
    make: Callable[[], RunFolder],
    frame: Any,
    *,
    rows: PrivateRows | None = None,
    delta: float,
    seed: int | None,
    every: int,
    final: bool = True,
) -> Result:
    """Make the folder and train with live progress; say how it ended (unless it is not the `final` word)."""
    watcher = Watcher(console, delta)
    try:
        with watcher.stoppable():
            folder = make()
            result = train_run(folder, frame, rows=rows, seed=seed, watch=watcher.watch, every=every)
    except (Stopped, KeyboardInterrupt) as asked:
        number = asked.signal if isinstance(asked, Stopped) else signal.SIGINT
        raise Stopped(_how_to_go_on(out), number) from None
    finally:
        watcher.end()
    for doubt in result.doubts[:5]:
        console.warn(f"not to be relied on at this budget: {doubt}")
    if result.steps < folder.plan.steps:
        console.warn(
            f"{folder.plan.steps - result.steps} of {folder.plan.steps} steps were not run: they were booked "
            "before the run was interrupted, and a step is never paid for twice"
        )
    statement = result.statement
    if not final:
        return result
    console.done(
        f"{statement}\n\nmodel, ledger, statement and history are in {folder.path}",
        out=str(folder.path),
        epsilon=statement.epsilon,
        delta=statement.delta,
        steps=result.steps,
        leaks=list(statement.leaks),
    )
    return result


def _how_to_go_on(out: str) -> str:
    if not os.path.isfile(os.path.join(out, "run.json")):
        return "stopped; nothing was made and nothing was spent"
    place = shlex.quote(os.path.abspath(out))
    return f"stopped; what was released is written down. Go on with: ratewise resume {place}"
