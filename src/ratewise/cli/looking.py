"""``ratewise schema`` and ``ratewise plan``: before anything is trained."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import click

from ratewise.accounting import Event
from ratewise.cli.config import merged, read_schema
from ratewise.cli.constraints import refuse_unheld
from ratewise.cli.options import PLACE, budget_options, force_option, plan_options, table_options
from ratewise.cli.output import Console
from ratewise.cli.places import refuse_file
from ratewise.cli.rehearsal import rehearse
from ratewise.cli.tables import read_table
from ratewise.cli.toml import to_toml
from ratewise.cli.training import required, settings_from
from ratewise.defaults import PublicFacts
from ratewise.domain import Domain, Numeric
from ratewise.drowning import warn_if_drowned
from ratewise.exceptions import InvalidInput, PrivacyLeakWarning
from ratewise.partition import compile_constraints
from ratewise.plan import Plan
from ratewise.runs import Settings, facts_of, plan_run
from ratewise.runs.job import bounds_of
from ratewise.runs.plain import write_json
from ratewise.schema import Schema
from ratewise.whole_files import write_whole

_HEAD = """\
# Public description of {data}, DRAFTED FROM THE DATA and not yet public knowledge.
# Check every line: round bounds outward to what anybody would expect, strike out values that only few people
# have, leave out columns that name people. Then write signed = true.
"""


@click.command()
@click.argument("data", type=PLACE)
@table_options
@click.option(
    "--out",
    type=PLACE,
    default=None,
    metavar="FILE",
    help="A .toml or .json file; standard output if left out.",
)
@force_option
@click.pass_context
def schema(ctx: click.Context, /, data: str, out: str | None, **values: Any) -> None:
    """Draft the public schema of the table DATA, for a person to check and sign."""
    console = ctx.find_object(Console) or Console()
    label = required(values, "label")
    if out is not None:
        refuse_file(out, values["force"], (".toml", ".json"))
    frame = read_table(data, values["missing"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # said below, in the words of a command
        found = Schema.draft(frame, label=label, groups=values["groups"], leave_out=values["leave_out"])
    description = found.to_dict()
    text = _HEAD.format(data=os.path.basename(data)) + to_toml(description) + "\n"
    if out is None:
        console.result(text.rstrip("\n"), schema=description)
    elif out.lower().endswith(".json"):
        write_json(Path(out), description)
    else:
        write_whole(out, text)
    console.warn(
        "this schema was READ OFF THE DATA: smallest and largest entries and rare values are in it. Keep it "
        "as confidential as the rows until a person has checked it and written signed = true"
    )


@click.command()
@click.option("--rows", type=int, default=None, help="Number of rows.")
@click.option("--features", type=int, default=None, help="Number of encoded features, those that bend twice.")
@click.option("--classes", type=int, default=2, show_default=True, help="Number of classes, 0, 1, ...")
@click.option("--group", "group", multiple=True, metavar="COLUMN=A,B", help="Values of a column.")
@click.option(
    "--schema", type=PLACE, default=None, metavar="FILE", help="Instead of features, classes and groups."
)
@budget_options
@plan_options
@click.option("--rehearse/--no-rehearse", default=True, help="Train on made-up rows of this size.")
@click.option(
    "--config", type=PLACE, default=None, metavar="FILE", help="TOML, JSON or YAML with these fields."
)
@click.pass_context
def plan(ctx: click.Context, /, **values: Any) -> None:
    """Show what noise, steps and accuracy loss to expect, before touching data."""
    console = ctx.find_object(Console) or Console()
    fields = merged(ctx, values)
    if fields["rows"] is None:
        raise click.UsageError("--rows is missing; give it as a flag or in --config")
    settings, facts, domain, own = _facts(fields)
    found = plan_run(facts, settings, own)
    warn_if_drowned(found, facts.n_parameters, settings.epsilon)
    shown = describe(found, facts, settings)
    if fields["schema"] is not None:
        shown["curves"] = facts.n_features - read_schema(fields["schema"]).n_features
    if fields["rehearse"]:
        shown["rehearsal"] = rehearse(facts, settings, domain)
    console.result("\n".join(_in_words(shown)), **shown)


def _facts(fields: dict[str, Any]) -> tuple[Settings, PublicFacts, Domain, tuple[Event, ...]]:
    if fields["schema"] is not None:
        described = read_schema(fields["schema"])
        refuse_unheld(fields["constraints"], described.domain)
        settings = settings_from({**fields, "label": described.label, "groups": tuple(described.groups)})
        own = bounds_of(described, settings, fields["rows"]).events
        return settings, facts_of(described, settings, fields["rows"]), described.domain, own
    if fields["features"] is None:
        raise click.UsageError("--features is missing; or give --schema FILE")
    if fields["curves"]:
        raise click.UsageError("--curves needs --schema, which tells numbers; or count them in --features")
    columns = dict(_column(text) for text in fields["group"])
    domain = Domain(range(fields["classes"]), columns)
    refuse_unheld(fields["constraints"], domain)
    settings = settings_from({**fields, "label": "label", "groups": tuple(columns)})
    compiled = compile_constraints(settings.declared, domain)
    facts = PublicFacts(
        n_rows=fields["rows"],
        n_features=fields["features"],
        n_classes=fields["classes"],
        constraints=compiled if len(compiled) else None,
        bounded=True,  # as with a schema, which is what a run takes
        n_numbers=fields["features"],
    )
    return settings, facts, domain, ()


def _column(text: str) -> tuple[str, Any]:
    name, mark, values = text.partition("=")
    listed = [value.strip() for value in values.split(",") if value.strip()]
    if not mark or not name.strip() or not listed:
        raise InvalidInput(f"--group {text!r} must be COLUMN=A,B,... or COLUMN=number")
    return name.strip(), Numeric() if listed == ["number"] else listed


def describe(plan: Plan, facts: PublicFacts, settings: Settings) -> dict[str, Any]:
    """Return the numbers of a plan that a person asks for."""
    gradient = plan.gradient_mechanism.standard_deviation
    parameters = facts.n_parameters
    counts = facts.constraints is not None and plan.private
    return {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "steps": plan.steps,
        "rows_per_step": plan.expected_rows,
        "sampling_rate": plan.sampling_rate,
        "clip": plan.clip,
        "gradient_noise": plan.gradient_noise,
        "gradient_error": gradient * parameters**0.5 / plan.expected_rows if plan.private else 0.0,
        "limits": 0 if facts.constraints is None else len(facts.constraints),
        "cells": 0 if facts.constraints is None else facts.constraints.n_cells,
        "l1": plan.l1,
        "histogram_noise": plan.histogram_noise,
        "count_error": plan.histogram_mechanism.standard_deviation if counts else None,
        "standardise": plan.preparation is not None,
        "tails": None if plan.preparation is None else plan.preparation.tails,
        "bends": None if plan.preparation is None else plan.preparation.bends,
    }


def _in_words(shown: dict[str, Any]) -> list[str]:
    private = shown["epsilon"] is not None
    budget = f"epsilon {shown['epsilon']:g}, delta {shown['delta']:g}" if private else "none, no privacy"
    features = "standardised by private means" if shown["standardise"] else "as they come"
    if shown["tails"] is not None:
        features += f", numbers cut off {shown['tails']:g} deviations from theirs"
    bent = f", {shown['curves']} of them with a curve" if shown.get("curves") else ""
    if shown["bends"] is not None:
        bent = f", numbers bend a little (at {shown['bends']:.2g} of the size of others)"
    lines = [
        f"budget:       {budget}",
        f"steps:        {shown['steps']}, each reading about {shown['rows_per_step']:.0f} rows",
        f"features:     {features}{bent}",
    ]
    if private:
        lines.append(
            f"gradient:     clipped at {shown['clip']:.3g}, noise {shown['gradient_noise']:.4g} times that; "
            f"the mean gradient is known to +-{shown['gradient_error']:.3g}"
        )
    if shown["l1"]:
        lines.append(f"weights:      drawn towards zero by a penalty of {shown['l1']:.2g} on their size")
    if shown["limits"]:
        error = shown["count_error"]
        said = "" if error is None else f"; each count of a step is known to +-{error:.3g} rows"
        lines.append(f"limits:       {shown['limits']} over {shown['cells']} groups{said}")
    rehearsal = shown.get("rehearsal")
    if rehearsal is not None:
        lines.append(
            f"accuracy:     on {rehearsal['rows']:,} made-up rows, {rehearsal['accuracy']:.3f} with this "
            f"plan and {rehearsal['accuracy_without']:.3f} without privacy and limits: a loss of "
            f"{rehearsal['loss']:.3f}"
        )
    return lines
