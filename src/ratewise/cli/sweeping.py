"""``ratewise sweep``: several runs on the same rows, in one book whose total is stated before the first."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ratewise import _validate
from ratewise.accounting import Budget, Event, Ledger, accountant
from ratewise.cli.config import merged, read_schema
from ratewise.cli.options import PLACE, Numbers, budget_options, plan_options, run_options, table_options
from ratewise.cli.output import Console
from ratewise.cli.places import refuse_folder
from ratewise.cli.tables import read_table
from ratewise.cli.training import (
    own_command,
    read_and_describe,
    required,
    run,
    settings_from,
    warn_of_leaks,
)
from ratewise.cli.using import compared, side_by_side
from ratewise.exceptions import BudgetExceeded, InvalidInput
from ratewise.plan import Plan
from ratewise.runs import RunFolder, Settings, facts_of, plan_run, read_run_rows
from ratewise.runs.job import bounds_of
from ratewise.runs.plain import write_json
from ratewise.schema import Schema
from ratewise.table_preparation import provisional

SLACK = "{slack}"


@click.command()
@click.argument("data", type=PLACE, required=False)
@click.option("--slack", type=Numbers(), default=(), help="Bounds to try in place of {slack}: 0.01,0.05.")
@click.option("--epsilons", type=Numbers(), default=(), help="Budgets to try: 0.5,1,2.")
@click.option("--max-total", type=float, default=None, help="Refuse if all runs together spend more.")
@click.option(
    "--test", "test", type=PLACE, default=None, metavar="FILE", help="Labelled table to measure the runs on."
)
@table_options
@budget_options
@plan_options
@run_options
@click.pass_context
def sweep(ctx: click.Context, /, **values: Any) -> None:
    """Train a run for every pair of slack and epsilon, all on DATA and in one ledger.

    Write {slack} for the bound: --constraint "demographic_parity(sex) <= {slack}" --slack 0.01,0.05.
    """
    console = ctx.find_object(Console) or Console()
    fields = merged(ctx, values)
    data, out = required(fields, "data"), Path(os.path.abspath(required(fields, "out")))
    if fields["ledger"] is not None:
        raise click.UsageError("a sweep keeps a ledger of its own; leave --ledger out")
    every = _validate.count(checkpoint_every=fields["checkpoint_every"])
    asked = pairs(fields)
    refuse_folder(str(out), force=None)
    given = None if fields["schema"] is None else read_schema(fields["schema"])
    texts = [_filled(fields["constraints"], how["slack"]) for how, _ in asked]
    frame, schema = read_and_describe(console, fields, asked[0][1], given, texts)
    warn_of_leaks(console, schema, drafted=given is None, private=any(s.epsilon for _, s in asked))
    n_rows = read_run_rows(frame, provisional(schema), asked[0][1]).n_rows
    if fields["test"] is not None:  # what cannot be measured is found before the first run has spent anything
        read_run_rows(read_table(fields["test"], fields["missing"]), provisional(schema), asked[0][1])
    planned = [(how, s, *_planned(schema, s, n_rows)) for how, s in asked]
    total = total_epsilon([events for *_, events in planned], asked[0][1])
    _say_total(console, total, asked[0][1], len(planned), fields["max_total"])
    ledger = _open_book(out, total, asked[0][1])
    rows = []
    for number, (how, settings, plan, _) in enumerate(planned, start=1):
        place = out / f"run-{number:02d}"
        create = functools.partial(
            RunFolder.create,
            place,
            settings=settings,
            schema=schema,
            plan=plan,
            data=data,
            command=own_command(),
            reading={"missing": list(fields["missing"])},
            ledger=ledger,
        )
        console.note(f"run {number} of {len(planned)}: {_in_words(how)}")
        seed = None if fields["seed"] is None else fields["seed"] + number  # never the same noise twice
        folder = run(
            console,
            str(place),
            create,
            frame,
            delta=settings.delta,
            seed=seed,
            every=every,
            final=False,
        ).folder
        rows.append({**compared(folder, folder.path.name, fields["test"]), **how})
        write_json(
            out / "sweep.json", {"total_epsilon": _plain(total), "runs": [_plain_row(r) for r in rows]}
        )
    spent = Ledger.open(ledger).total(asked[0][1].delta)
    console.result(
        f"{side_by_side(rows)}\n\nall {len(rows)} runs together: epsilon {spent:.4g} at delta "
        f"{asked[0][1].delta:g}. Choosing one of them uses them all: state this total, not the run's own",
        runs=rows,
        total_epsilon=spent,
        out=str(out),
    )


def pairs(fields: dict[str, Any]) -> list[tuple[dict[str, Any], Settings]]:
    """Return what to vary and the settings of every run."""
    texts = fields["constraints"]
    slacks: list[float | None] = [*fields["slack"]] or [None]
    budgets = [*fields["epsilons"]] or [fields["epsilon"]]
    if (slacks != [None]) != any(SLACK in text for text in texts):
        raise InvalidInput(f"--slack and {SLACK} in a --constraint go together; one is missing")
    found = []
    for slack in slacks:
        filled = _filled(texts, slack)
        for epsilon in budgets:
            settings = settings_from({**fields, "constraints": filled, "epsilon": epsilon})
            found.append(({"slack": slack, "asked_epsilon": epsilon}, settings))
    return found


def _filled(texts: Iterable[str], slack: float | None) -> tuple[str, ...]:
    return tuple(text.replace(SLACK, repr(slack)) for text in texts)


def _in_words(how: dict[str, Any]) -> str:
    said = [] if how["slack"] is None else [f"slack {how['slack']:g}"]
    budget = how["asked_epsilon"]
    return ", ".join([*said, "no privacy" if budget is None else f"epsilon {budget:g}"])


def _planned(schema: Schema, settings: Settings, n_rows: int) -> tuple[Plan, tuple[Event, ...]]:
    """Return the plan of a run, and everything that it will release."""
    own = bounds_of(schema, settings, n_rows)
    plan = plan_run(facts_of(schema, settings, n_rows), settings, own.events)
    return plan, (*own.events, *plan.events)


def total_epsilon(planned: list[tuple[Event, ...]], settings: Settings) -> float:
    """Return epsilon of all that is planned together, at the runs' delta; infinite if one has no noise."""
    if not all(planned):
        return math.inf
    events = [event for events in planned for event in events]
    return accountant.epsilon(events, settings.delta, neighbours=settings.neighbours)


def _say_total(console: Console, total: float, settings: Settings, runs: int, most: float | None) -> None:
    console.note(
        f"{runs} runs on the same rows: together epsilon {total:.4g} at delta {settings.delta:g}",
        total_epsilon=total,
        runs=runs,
    )
    if most is not None and total > most:
        raise BudgetExceeded(
            f"all runs together would spend epsilon {total:.4g}, above --max-total {most:g}; nothing was "
            "released: try fewer runs or smaller budgets"
        )


def _open_book(out: Path, total: float, settings: Settings) -> str:
    out.mkdir(parents=True)
    # a hair above the total, for sums in another order
    cap = Budget(total * (1 + 1e-3), float(settings.delta)) if math.isfinite(total) else None
    Ledger.create(out / "ledger.json", cap=cap, neighbours=settings.neighbours)
    return str(out / "ledger.json")


def _plain(number: float | None) -> Any:
    return number if number is None or math.isfinite(number) else "infinity"


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) if isinstance(value, float) else value for name, value in row.items()}
