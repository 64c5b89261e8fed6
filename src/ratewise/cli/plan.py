"""``ratewise schema``, ``plan`` and ``audit``: what needs no training."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ratewise._files import write_whole
from ratewise.accounting import TrainingEvent
from ratewise.cli.console import current, read_table, reading_of, refuse_file
from ratewise.cli.evaluate import reference_config
from ratewise.cli.options import (
    PLACE,
    budget_options,
    config_option,
    file_options,
    force_option,
    id_option,
    plan_options,
    read_schema,
    schema_option,
    table_options,
    to_toml,
)
from ratewise.cli.train import check_declared, required, settings_from
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain, Numeric
from ratewise.data.schema import Category, Number, Schema, draft_schema
from ratewise.exceptions import InvalidInput, RatewiseWarning
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.runs import RunFolder, Settings, plan_run
from ratewise.runs.folder import json_bytes
from ratewise.training.certificate import certificate_half_width, short
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import CERTIFICATE

if TYPE_CHECKING:
    from ratewise.audit import AuditResult, Check, Subject

MOST_ROWS = 50_000
_TEST_ROWS = 10_000
_INFORMATIVE = 8
_BOUNDS = (-5.0, 5.0)
_HEAD = """\
# Description of {data}, DRAFTED FROM THE DATA. It is confidential until a person has checked it.
# Check every line: are bounds and values public knowledge? Remove values that only few people have, and
# columns that identify people. Give columns a title and values a label for reports, if you like:
#   title = "race"
#   labels = {{3 = "American Indian"}}
# Then write signed = true.
"""


@click.command()
@click.argument("data", type=PLACE)
@file_options
@table_options
@click.option("--positive", default=None, metavar="CLASS", help="The class that rates are about.")
@click.option("--out", type=PLACE, metavar="FILE", help="A .toml or .json file; else standard output.")
@force_option
def schema(data: str, out: str | None, **values: Any) -> None:
    """Draft the public schema of the table DATA, for a person to check and sign."""
    console = current()
    label = required(values, "label")
    if values["features"] and values["leave_out"]:
        raise click.UsageError("--features and --leave-out exclude each other; give one of them")
    if out is not None:
        refuse_file(out, values["force"], (".toml", ".json"))
    frame = read_table(data, reading_of(values)).frame
    given = {name: values[name] for name in ("groups", "leave_out", "privacy_id", "positive")}
    found = draft_schema(frame, label=label, features=values["features"] or None, **given)
    for finding in found.findings:
        console.note(finding.for_command_line(), finding=finding.topic)
    description = found.schema.to_dict()
    text = _HEAD.format(data=os.path.basename(data)) + to_toml(description)
    if out is None:
        console.result(text, schema=description)
    else:
        write_whole(out, json_bytes(description) if out.lower().endswith(".json") else f"{text}\n")
    console.warn(
        "this schema was READ OFF THE DATA: smallest and largest entries and rare values are in it. Keep it "
        "as confidential as the rows until a person has checked it and written signed = true"
    )


@click.command()
@click.option("--rows", type=click.IntRange(1), required=True, help="Number of rows, or of ids with --privacy-id.")
@click.option("--features", type=click.IntRange(1), help="Number of feature columns.")
@click.option(
    "--classes",
    type=click.UNPROCESSED,
    default="2",
    show_default=True,
    callback=lambda *given: _classes(given[-1]),
    help="The classes: no,yes; or their number.",
)
@click.option("--group", "group", multiple=True, metavar="COLUMN=A,B", help="Values of a column.")
@schema_option
@id_option
@budget_options
@plan_options
@click.option("--rehearse/--no-rehearse", default=True, help="Train on made-up rows of this size.")
@config_option
def plan(**fields: Any) -> None:
    """Show the releases, the noise and the accuracy to expect, from public facts: no data is read."""
    console = current()
    settings, described = _described(fields)
    shown = expected(fields["rows"], settings, described, rehearsal=fields["rehearse"])
    console.result("\n".join(_in_lines(shown)), **shown)


def _described(fields: dict[str, Any]) -> tuple[Settings, Schema]:
    """Return the settings, and the table as a schema: the given one, or one with as many made-up columns."""
    if fields["schema"] is not None:
        found = read_schema(fields["schema"])
        person = fields["privacy_id"] or found.privacy_id
        given = {"label": found.label, "groups": tuple(found.groups), "privacy_id": person, "features": None}
    else:
        if fields["features"] is None:
            raise click.UsageError("--features is missing; or give --schema FILE")
        columns = dict(_column(text) for text in fields["group"])
        found = Schema(
            {f"x{place}": Number(*_BOUNDS) for place in range(fields["features"])},
            label="label",
            classes=fields["classes"],
            groups=columns,
        )
        given = {"label": "label", "groups": tuple(columns), "features": None}
    settings = settings_from({**fields, **given, "leave_out": (), "classes": None})
    check_declared([fields["constraints"]], settings, found)
    return settings, found


def _classes(given: Any) -> tuple[Any, ...]:
    items = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    found: tuple[Any, ...] = tuple(item.strip() if isinstance(item, str) else item for item in items)
    if len(found) == 1 and str(found[0]).isdecimal():
        found = tuple(range(int(found[0])))
    if len(found) < 2:
        raise click.BadParameter(f"expected at least two classes, or their number, got {given!r}")
    return found


def _column(text: str) -> tuple[str, Any]:
    name, mark, values = text.partition("=")
    listed = [value.strip() for value in values.split(",") if value.strip()]
    if not mark or not name.strip() or not listed:
        raise InvalidInput(f"--group {text!r} must be COLUMN=A,B,... or COLUMN=number")
    return name.strip(), Number() if listed == ["number"] else Category(listed)


# ------------------------------------------------------------------------------ what to expect


def expected(
    n_units: int, settings: Settings, schema: Schema, *, rehearsal: bool = True, most: int = MOST_ROWS
) -> dict[str, Any]:
    """Return what a plan would release, the width of the certificate, and accuracy on at most `most` made-up rows.

    What the schema does not declare is planned to be found privately; made-up rows have two values instead.
    """
    found, values = plan_run(n_units, settings, schema), schema.group_values
    groups = {name: values.get(name, ("a", "b")) for name in schema.groups}
    domain = Domain(schema.classes or (0, 1), groups, other=True)
    compiled = compile_constraints(settings.declared, domain, allow_empty=True)
    width = certificate_half_width(compiled, found) if len(compiled) and CERTIFICATE in found.events else None
    shown: dict[str, Any] = {
        "epsilon": settings.epsilon,
        "delta": found.delta,
        "units": n_units,
        "unit": found.unit.kind,
        "steps": found.steps,
        "units_per_step": found.expected_units,
        "releases": {name: str(event) for name, event in found.events.items()},
        "constraints": len(compiled.items),
        "cells": compiled.n_cells if len(compiled) else 0,
        "certificate_half_width": width,
    }
    if rehearsal:
        shown["rehearsal"] = _rehearse(min(n_units, most), min(_TEST_ROWS, most), settings, schema, domain)
    return shown


def _rehearse(rows: int, test: int, settings: Settings, schema: Schema, domain: Domain) -> dict[str, Any]:
    """Return accuracy with and without the plan on made-up rows; every number here is made up or public.

    Features are independent normal numbers, of which up to eight are informative about the label; groups are
    drawn at random. With more rows than these the loss is smaller.
    """
    rng = np.random.default_rng(0)
    weights = np.zeros((len(schema.columns), len(domain.classes)))
    weights[:_INFORMATIVE] = rng.standard_normal(weights[:_INFORMATIVE].shape)
    people, others = (_people(rng, n, weights, domain) for n in (rows, test))
    plain = replace(settings, epsilon=None, constraints=())
    with_plan = _accuracy(settings, settings.config, domain, people, others)
    without = _accuracy(plain, reference_config(rows), domain, people, others)
    loss = max(0.0, without - with_plan)
    return {"rows": rows, "accuracy": with_plan, "accuracy_without": without, "loss": loss}


def _people(rng: np.random.Generator, rows: int, weights: Any, domain: Domain) -> tuple[Any, Any, dict[str, Any]]:
    X = rng.standard_normal((rows, len(weights)))
    scores = X @ weights + rng.gumbel(size=(rows, weights.shape[1]))  # draws from the softmax
    groups = {}
    for name, values in domain.columns.items():
        if isinstance(values, Numeric):
            groups[name] = rng.uniform(0.0, 100.0, rows)
        else:
            groups[name] = np.array(values, dtype=object)[rng.integers(0, len(values), rows)]
    return X, np.array(domain.classes, dtype=object)[scores.argmax(axis=1)], groups


def _accuracy(settings: Settings, config: TrainingConfig, domain: Domain, train: Any, test: Any) -> float:
    from ratewise.estimators.classifier import RateConstrainedClassifier

    model = RateConstrainedClassifier(
        settings.declared or None,
        epsilon=settings.epsilon,
        neighbours=settings.neighbours,
        classes=domain.classes,
        group_values=domain.columns,
        feature_bounds=_BOUNDS,
        model=settings.model,
        config=config,
        random_state=0,  # repeatable; no real rows are involved
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        model.fit(train[0], train[1], sensitive_features=train[2] or None)
    return float(model.score(test[0], test[1]))


def _in_lines(shown: dict[str, Any]) -> Iterator[str]:
    """Yield what to expect as lines of text."""
    private = shown["epsilon"] is not None
    budget = f"epsilon {shown['epsilon']:g}, delta {shown['delta']:g}" if private else "none, no privacy"
    unit, width = "rows" if shown["unit"] == "row" else "ids", shown["certificate_half_width"]
    yield f"budget:       {budget}"
    yield f"steps:        {shown['steps']}, each reading about {shown['units_per_step']:.0f} of {shown['units']} {unit}"
    for name, words in shown["releases"].items():
        yield f"release:      {name}: {words}"
    if shown["constraints"]:
        yield f"constraints:  {shown['constraints']} over {shown['cells']} cells"
    if width is not None:
        yield (
            f"certificate:  intervals of about +-{short(width)} for the rates of the training rows, if groups are of "
            "equal size"
        )
    if "rehearsal" in shown:
        found = shown["rehearsal"]
        yield (
            f"accuracy:     on {found['rows']:,} made-up rows, {found['accuracy']:.3f} with this plan and "
            f"{found['accuracy_without']:.3f} without privacy and constraints: a loss of {found['loss']:.3f}"
        )


_MEANING = (
    "A pass is evidence, not a proof: this adversary found no contradiction to the claim on worst-case rows. "
    "It says nothing about data that was read before, files, clocks or seeds."
)


@click.command()
@click.argument("run", type=PLACE, required=False)
@click.option("--sampling-rate", type=float, default=1.0, show_default=True, help="Without RUN.")
@click.option("--steps", type=int, default=1, show_default=True, help="Without RUN.")
@click.option("--gradient-noise", type=float, default=1.0, show_default=True, help="Without RUN.")
@click.option("--histogram-noise", type=float, default=2.0, show_default=True, help="Without RUN.")
@click.option("--histogram", type=click.Choice(["gaussian", "laplace"]), default="gaussian")
@click.option("--engine", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True)
@click.option("--games", type=int, default=10_000, show_default=True, help="Games with a single step.")
@click.option("--canaries", type=int, default=1000, show_default=True, help="Of the audit in one run.")
@click.option("--rows-per-id", type=click.IntRange(1), default=1, help="Canaries are persons with so many rows each.")
@click.option("--delta", type=float, default=1e-3, show_default=True, help="In one run at most 0.1 / CANARIES.")
@click.option("--confidence", type=float, default=0.99, show_default=True)
def audit(run: str | None, **values: Any) -> None:
    """Try to break the guarantee of RUN, a run folder, or of the noise given; exit 1 if it breaks.

    Plays on synthetic worst-case rows and reads no data: it costs no privacy. With PyTorch installed, the
    engine for networks is checked with adversarial modules and rows as well.
    """
    from ratewise.audit import AuditResult

    console = current()
    event = _event(run, values)
    passed = True
    for found in _findings(event, values):
        fields = found.to_dict() if isinstance(found, AuditResult) else dataclasses.asdict(found)
        console.result(str(found), **fields)
        passed = passed and found.passed
    console.note(_MEANING)
    if not passed:
        raise click.exceptions.Exit(1)


def _event(run: str | None, values: dict[str, Any]) -> TrainingEvent:
    """Return the training of a run, as its ledger has it, or the one that is described by options."""
    if run is None:
        names = ("sampling_rate", "steps", "gradient_noise", "histogram_noise", "histogram")
        return TrainingEvent(**{name: values[name] for name in names})
    folder = RunFolder.open(run)
    admission = folder.admission(folder.ledger())
    for event in () if admission is None else admission.events:
        if isinstance(event, TrainingEvent):
            return event
    raise InvalidInput("the run has no noise, or has not begun, so there is nothing to audit; give a private run")


def _findings(event: TrainingEvent, values: dict[str, Any]) -> Iterator[AuditResult | Check]:
    from ratewise.audit import audit_one_run, audit_step, check_noise, check_replay, check_sampling

    level = {"delta": values["delta"], "confidence": values["confidence"]}
    # sampling hides what the noise does; it comes below
    alone = dataclasses.replace(event, sampling_rate=1.0)
    kinds = [("gradient", "likelihood")]
    if event.histogram_noise is not None:
        kinds += [("histogram", "likelihood"), ("histogram", "difference"), ("together", "likelihood")]
    for releases, attack in kinds:
        how: dict[str, Any] = {"games": values["games"], "releases": releases, "attack": attack}
        yield audit_step(alone, subject=_subject(values, alone, 1, None), **how, **level)
    subject = _subject(values, event, values["canaries"], 0)
    level["delta"] = min(values["delta"], 0.1 / values["canaries"])  # many canaries times delta hide every epsilon
    yield audit_one_run(event, canaries=values["canaries"], subject=subject, **level)
    streams = RandomStreams.from_seed()
    yield check_noise(event, streams=streams)
    yield check_replay(event, streams=streams)
    yield check_sampling(event.sampling_rate, streams=streams)
    if values["engine"] == "torch" or find_spec("torch") is not None:
        from ratewise.torch.audit import network_checks

        yield from network_checks()


def _subject(values: dict[str, Any], event: TrainingEvent, n_canaries: int, n_opponents: int | None) -> Subject:
    if values["engine"] == "numpy":
        from ratewise.audit import TableSubject

        return TableSubject(event, n_canaries, n_opponents, values["rows_per_id"])
    try:
        from ratewise.torch.audit import TorchSubject
    except ImportError:
        raise InvalidInput("engine 'torch' needs PyTorch: pip install ratewise[torch]") from None
    return TorchSubject(event, n_canaries, n_opponents, values["rows_per_id"])
