"""``ratewise train``, ``resume`` and ``sweep``."""

from __future__ import annotations

import functools
import itertools
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ratewise import _validate
from ratewise._files import write_whole
from ratewise.accounting import Budget, Event, Ledger, accountant
from ratewise.cli.console import Stopped, Table, Watcher, current, plain_data, reading_of, refuse_folder, shared_ledger
from ratewise.cli.evaluate import compared, side_by_side
from ratewise.cli.options import (
    PLACE,
    TRAINING,
    Listed,
    checkpoint_option,
    file_options,
    force_option,
    read_schema,
    run_options,
    table_options,
)
from ratewise.constraints.compiled import compile_constraints, named_values
from ratewise.constraints.domain import Domain, list_values
from ratewise.constraints.text import GrammarError, Reading, check_columns, parse_constraint
from ratewise.data.cells import text_of
from ratewise.data.schema import Schema
from ratewise.exceptions import BudgetExceeded, InvalidInput
from ratewise.runs import Result, RunFolder, Settings, Watch, admit_run, session_for, train_run
from ratewise.runs.folder import json_bytes
from ratewise.training.plan import Plan


@click.command()
@click.argument("data", type=PLACE, required=False)
@file_options
@table_options
@run_options
@force_option
def train(**fields: Any) -> None:
    """Train a classifier on the table DATA (CSV, Excel, Parquet, JSON lines or ARFF) and write a run folder.

    Nothing has to be declared: without --schema, classes, group values, types and ranges of columns are found
    by private releases within the budget.
    """
    data, out = required(fields, "data"), required(fields, "out")
    schema = given_schema(fields)
    settings = settings_from(fields)
    every = _validate.count(checkpoint_every=fields["checkpoint_every"])
    refuse_folder(out, fields["force"])
    check_declared([fields["constraints"]], settings, schema)
    table = _read_rows(data, fields, settings, schema, [fields["constraints"]])
    prepared = session_for(table.frame, settings, schema, fields["seed"])
    plan = prepared[1].plan
    made: dict[str, Any] = {"settings": settings, "schema": schema, "plan": plan, "command": _own_command()}
    made |= {"ledger": _shared_ledger(fields, plan), "force": fields["force"]}
    show_result(watched(out, lambda watch: train_run(table.new_run(out, **made), *prepared, watch=watch, every=every)))


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.option("--data", type=PLACE, default=None, help="Where the rows are now, if not where they were.")
@checkpoint_option
def resume(run_folder: str, data: str | None, checkpoint_every: int) -> None:
    """Go on with a run that was stopped, with fresh randomness; what was spent stays spent."""
    folder = RunFolder.open(run_folder)
    if folder.finished:
        raise InvalidInput(f"the run in {run_folder!r} is finished; there is nothing to go on with")
    place = data or folder.description["data"]
    if data is None and not os.path.exists(place):
        raise InvalidInput(f"the rows are no longer at {place!r}; say where they are: --data FILE")
    table = Table.read(place, folder.description["reading"])
    prepared = session_for(table.frame, folder.settings, folder.schema)
    run = functools.partial(train_run, folder, *prepared, every=checkpoint_every)
    show_result(watched(run_folder, lambda watch: run(watch=watch)))


# ------------------------------------------------------------------------- from options to settings


def required(fields: dict[str, Any], name: str) -> str:
    """Return a field that may come from a flag or from the configuration file."""
    if not fields[name]:
        flag = name.upper() if name == "data" else f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{flag} is missing; give it as a flag or in --config")
    return str(fields[name])


def given_schema(fields: dict[str, Any]) -> Schema | None:
    """Return the schema of `--schema`, if any; label and privacy id are taken from it unless given."""
    if fields["schema"] is None:
        return None
    schema = read_schema(fields["schema"])
    fields["label"] = fields["label"] or schema.label
    fields["privacy_id"] = fields["privacy_id"] or schema.privacy_id
    if schema.label != fields["label"]:
        raise InvalidInput(f"--label is {fields['label']!r}, but the schema's label is {schema.label!r}")
    for name in fields["groups"]:
        if name not in schema.groups and name not in schema.columns:
            listed = ", ".join(schema.groups) or "none"
            raise InvalidInput(f"--groups names {name!r}, which is not among the schema's groups: {listed}")
    return schema


def settings_from(fields: dict[str, Any]) -> Settings:
    """Return the settings; columns that constraints read are groups without being named."""
    if fields.get("features") and fields.get("leave_out"):
        raise click.UsageError("--features and --leave-out exclude each other; give one of them")
    label, texts = required(fields, "label"), tuple(fields["constraints"])
    for text in texts:
        for mention in Reading(text).mentions:
            if mention.column == label:
                said = f"{label!r} is the label, not a group; a true class is label(...), as in "
                raise GrammarError(f"{said}rate(1, where=label(1))", text, mention.start)
    read = named_values([parse_constraint(text) for text in texts]).columns
    names = (
        *("epsilon", "delta", "neighbours", "model", "tolerance", "title"),
        *("leave_out", "privacy_id", "rows_per_id", "id_weighting"),
    )
    lists = {n: fields.get(n) for n in ("features", "classes")}  # not of `ratewise plan`
    given: dict[str, Any] = {name: value for name, value in lists.items() if isinstance(value, tuple)}
    given |= {name: fields[name] for name in names if fields.get(name) is not None}
    return Settings(
        label=label,
        groups=tuple(dict.fromkeys((*fields["groups"], *sorted(read)))),
        constraints=texts,
        training={name: fields[name] for name in TRAINING if fields.get(name) is not None},
        **{"epsilon": None, **given},
    )


def check_declared(texts: Iterable[Sequence[str]], settings: Settings, schema: Schema | None) -> None:
    """Check constraints against a schema: unknown columns, values, classes, and bounds that no model satisfies.

    What is wrong with one text is shown in it; what is wrong with several together has no place.
    """
    classes = settings.declared_classes
    if schema is None:
        for text in itertools.chain.from_iterable(texts):
            _check_classes(text, classes)
        return
    groups = {**{n: c for n, c in schema.columns.items() if n in settings.groups}, **schema.groups}
    described = schema.replace(groups=groups, **({} if classes is None else {"classes": classes}))
    values = described.group_values
    if not described.classes or any(name not in values for name in described.groups):
        _check_columns(texts, [*schema.columns, *schema.groups], "the columns of the schema")
        return
    domain = Domain(described.classes, values, other=True)
    for listed in texts:
        declared = [parse_constraint(text, domain) for text in listed]
        try:
            compile_constraints(declared, domain)
        except InvalidInput:
            for text in listed:
                found = Reading(text)
                try:
                    compile_constraints(found.constraint, domain)
                except InvalidInput as problem:
                    raise GrammarError(str(problem), text, found.bound_at) from None
            raise


def _check_classes(text: str, classes: list[Any] | None) -> None:
    """Raise if a text leaves the class of a rate to a default, or names one that is not among the declared."""
    for mention in Reading(text).mentions:
        said = ""
        if mention.column is None and classes is None and mention.call:
            said = (
                f"{mention.call} means class {mention.value!r} unless label= is given; the classes are not declared, "
                "so name the class, as in label=1 or label='yes', or declare the classes: --classes no,yes"
            )
        elif mention.column is None and classes and text_of(mention.value) not in map(text_of, classes):
            said = f"{mention.value!r} is not among the classes: {list_values(classes)}; name one with label="
        if said:
            raise GrammarError(said, text, mention.start)


def _check_columns(texts: Iterable[Sequence[str]], columns: list[str], what: str) -> None:
    for text in itertools.chain.from_iterable(texts):
        check_columns(Reading(text).mentions, columns, text, what)


# ------------------------------------------------------------------------------ reading and running


def _read_rows(
    data: str, fields: dict[str, Any], settings: Settings, schema: Schema | None, texts: Iterable[Sequence[str]]
) -> Table:
    """Read the table of a run; columns that are not there are an error that shows where they are named."""
    table = Table.read(data, reading_of(fields))
    _check_columns(texts, table.columns, "the columns of the table")
    if settings.epsilon is None:
        return replace(table, outside=())
    if schema is None or schema.signed:
        return table
    current().warn(
        "the schema is not signed, so what it says counts as read off the data, outside the guarantee: "
        f"{'; '.join(schema.leaks)}. Once a person has checked that all of it is public knowledge, write "
        "signed = true in it"
    )
    return replace(table, outside=(*table.outside, *schema.leaks))


def _shared_ledger(fields: dict[str, Any], plan: Plan) -> str | None:
    """Return the path of the ledger that shall admit the run, making it if it is new."""
    path = fields["ledger"]
    if path is None:
        return None
    ledger = shared_ledger(path, fields["ledger_cap"], plan.delta, neighbours=plan.neighbours, unit=plan.unit)
    if not ledger.accepts(plan.neighbours):
        raise InvalidInput(f"--neighbours is {plan.neighbours!r}, but the ledger was opened for {ledger.neighbours!r}")
    if plan.private and ledger.would_exceed(list(plan.events.values())):
        raise BudgetExceeded(
            f"the run would pass the cap {ledger.cap} of its ledger, of which {ledger.spent:.4g} is spent; "
            "nothing was released: lower --epsilon, or open a ledger with a larger cap"
        )
    return str(path)


def _own_command() -> list[str]:
    """Return the words of the command, without a seed: whoever knows it can subtract the noise."""
    words = ["ratewise", *sys.argv[1:]]
    for place, word in enumerate(words):
        if word == "--seed" and place + 1 < len(words):
            words[place + 1] = "(not kept)"
        elif word.startswith("--seed="):
            words[place] = "--seed=(not kept)"
    return words


def watched(out: str, run: Callable[[Watch], Result]) -> Result:
    """Train with live progress; a stop says how to go on with the run in the folder `out`."""
    console = current()
    watcher = Watcher(console)
    try:
        with watcher.following():
            result = run(watcher.watch)
    except (Stopped, KeyboardInterrupt) as asked:
        said = "stopped; nothing was made and nothing was spent"
        if os.path.isfile(os.path.join(out, "run.json")):
            place = shlex.quote(os.path.abspath(out))
            said = f"stopped; what was released is written down. Go on with: ratewise resume {place}"
        raise Stopped(said, asked.signal if isinstance(asked, Stopped) else signal.SIGINT) from None
    for message in result.messages:
        console.warn(message)
    return result


def show_result(result: Result, more: str = "", **fields: Any) -> None:
    """Show how a training ended: the certificate, the statement, where everything is, and what the caller adds."""
    statement, certificate, place = result.statement, result.certificate, result.folder.path
    said = result.summary if certificate is None else str(certificate)
    more = more or f"model, ledger, certificate, statement and history are in {place}"
    current().done(
        f"{said}\n\n{statement}\n\n{more}",
        out=str(place),
        epsilon=statement.epsilon,
        delta=statement.delta,
        steps=result.steps,
        outside=list(statement.outside),
        certificate=None if certificate is None else certificate.to_dict(),
        messages=list(result.messages),
        **fields,
    )


# ------------------------------------------------------------------------------------------- sweeps

SLACK = "{slack}"


@click.command()
@click.argument("data", type=PLACE, required=False)
@click.option("--slack", type=Listed(float), default=(), help="Bounds to try in place of {slack}: 0.01,0.05.")
@click.option("--epsilons", type=Listed(float), default=(), help="Budgets to try: 0.5,1,2.")
@file_options
@table_options
@run_options
def sweep(**fields: Any) -> None:
    """Train a run for every pair of slack and epsilon, all on DATA and in one ledger.

    Write {slack} for the bound: --constraint "demographic_parity(sex) <= {slack}" --slack 0.01,0.05.
    """
    console = current()
    data, out = required(fields, "data"), Path(os.path.abspath(required(fields, "out")))
    if fields["ledger"] is not None:
        raise click.UsageError("a sweep keeps a ledger of its own; leave --ledger out")
    every = _validate.count(checkpoint_every=fields["checkpoint_every"])
    schema = given_schema(fields)
    asked = _pairs(fields)
    refuse_folder(str(out), force=None)
    texts, first = [text for _, text, _ in asked], asked[0][2]
    check_declared(texts, first, schema)
    table = _read_rows(data, fields, first, schema, texts)
    prepared = []
    for number, (_, _, settings) in enumerate(asked, start=1):
        seed = None if fields["seed"] is None else fields["seed"] + number
        prepared.append(session_for(table.frame, settings, schema, seed))
    plans = [session.plan for _, session in prepared]
    total, delta = _total_epsilon(plans), max(plan.delta for plan in plans)
    console.note(
        f"{len(plans)} runs on the same rows: together epsilon {total:.4g} at delta {delta:g}",
        total_epsilon=total,
        runs=len(plans),
    )
    out.mkdir(parents=True)
    # a little above the total, for sums in another order
    cap = Budget(total * (1 + 1e-3), float(delta)) if math.isfinite(total) else None
    common = {"neighbours": plans[0].neighbours, "unit": plans[0].unit}
    ledger = Ledger.create(out / "ledger.json", cap=cap, adaptive=False, **common)
    folders = []
    for number, ((_, _, settings), (_, session)) in enumerate(zip(asked, prepared, strict=True), start=1):
        made = {"settings": settings, "schema": schema, "plan": session.plan, "command": _own_command()}
        folders.append(table.new_run(out / f"run-{number:02d}", ledger=out / "ledger.json", **made))
        admit_run(folders[-1], session, ledger)  # all runs, before the first one releases anything
    rows: list[dict[str, Any]] = []
    for number, (folder, (slack, _, settings), ready) in enumerate(zip(folders, asked, prepared, strict=True), start=1):
        said = "" if slack is None else f"slack {slack:g}, "
        said += "no privacy" if settings.epsilon is None else f"epsilon {settings.epsilon:g}"
        console.note(f"run {number} of {len(asked)}: {said}")
        run = functools.partial(train_run, folder, *ready, every=every)
        watched(str(folder.path), lambda watch, run=run: run(watch=watch))  # type: ignore[misc]
        rows.append({**compared(RunFolder.open(folder.path), folder.path.name, None, {}), "slack": slack})
        write_whole(out / "sweep.json", json_bytes(plain_data({"total_epsilon": total, "runs": rows})))
    spent = Ledger.open(out / "ledger.json").total(delta) if math.isfinite(total) else total
    console.result(
        f"{side_by_side(rows)}\n\nall {len(folders)} runs together: epsilon {spent:.4g} at delta {delta:g}. "
        "Choosing one of them uses them all: state this total, not the run's own",
        runs=rows,
        total_epsilon=spent,
        out=str(out),
    )


def _pairs(fields: dict[str, Any]) -> list[tuple[float | None, tuple[str, ...], Settings]]:
    """Return the slack, the constraints as text, and the settings of every run."""
    slacks: list[float | None] = [*fields["slack"]] or [None]
    if (slacks != [None]) != any(SLACK in text for text in fields["constraints"]):
        raise InvalidInput(f"--slack and {SLACK} in a --constraint go together; one is missing")
    found = []
    for slack, epsilon in itertools.product(slacks, fields["epsilons"] or [fields["epsilon"]]):
        texts = tuple(text.replace(SLACK, repr(slack)) for text in fields["constraints"])
        found.append((slack, texts, settings_from({**fields, "constraints": texts, "epsilon": epsilon})))
    return found


def _total_epsilon(plans: list[Plan]) -> float:
    """Return epsilon of all plans together; infinite if one has no noise."""
    if not all(plan.private for plan in plans):
        return math.inf
    events: list[Event] = [event for plan in plans for event in plan.events.values()]
    return accountant.epsilon(events, max(plan.delta for plan in plans), neighbours=plans[0].neighbours)
