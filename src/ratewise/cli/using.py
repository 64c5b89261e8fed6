"""``ratewise predict``, ``evaluate``, ``report`` and ``compare``: what a run is good for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratewise.cli.options import force_option
from ratewise.cli.output import Console
from ratewise.cli.tables import read_table, write_table
from ratewise.exceptions import InvalidInput
from ratewise.frames import chosen_columns, named_columns
from ratewise.layout import text_table
from ratewise.model_files import write_whole
from ratewise.partition import compile_constraints
from ratewise.runs import RunFolder

if TYPE_CHECKING:  # loaded when asked for: other commands need not wait for it
    from ratewise.report import Report
    from ratewise.report.content import Content

CONSTRAINT_MISSED = 4
_ROUNDING = 1e-9
_NOT_COVERED = (
    "evaluation reads the rows of the test table without noise; the run's privacy guarantee does not cover "
    "what it shows of them"
)


@click.command()
@click.argument("run_folder", metavar="RUN")
@click.argument("data")
@click.option("--out", default=None, metavar="FILE.csv", help="Standard output if left out.")
@click.option("--proba", is_flag=True, help="Also the probability of each class.")
@force_option
@click.pass_context
def predict(
    ctx: click.Context, run_folder: str, data: str, out: str | None, proba: bool, force: bool
) -> None:
    """Predict the label of each row of the table DATA, in its order."""
    import pandas as pd

    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    model = folder.model()
    if out is not None:
        _refuse_file(out, force)
    frame = read_table(data, folder.missing)
    found = pd.DataFrame({"prediction": model.predict(frame)})
    if proba:
        for name, column in zip(model.schema.classes, model.predict_proba(frame).T, strict=True):
            found[f"probability of {name}"] = column
    if out is None:
        click.echo(found.to_csv(index=False), nl=False)
        return
    write_table(found, out)
    console.done(f"{len(found)} predictions are in {out}", out=out, rows=len(found))


@click.command()
@click.argument("run_folder", metavar="RUN")
@click.argument("data")
@click.option("--strict", is_flag=True, help="Exit with 4 unless every limit is held on these rows.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@click.pass_context
def evaluate(ctx: click.Context, run_folder: str, data: str, strict: bool, confidence: float) -> None:
    """Measure a run on the labelled table DATA: accuracy, and asked against reached for every limit."""
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    found = measured(folder, data, confidence)
    write_whole(folder.path / "report.json", found.to_json())
    console.note(f"note: {_NOT_COVERED}")
    console.result(in_words(found.content), **numbers(found.content))
    if strict and missed(found.content):
        ctx.exit(CONSTRAINT_MISSED)


@click.command()
@click.argument("run_folder", metavar="RUN")
@click.argument("data", required=False)
@click.option("--out", default=None, metavar="FILE.html", help="RUN/report.html if left out.")
@click.option("--card", default=None, metavar="FILE.md", help="Also a model card.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@force_option
@click.pass_context
def report(
    ctx: click.Context,
    run_folder: str,
    data: str | None,
    out: str | None,
    card: str | None,
    confidence: float,
    force: bool,
) -> None:
    """Write one page about a run, measured on the table DATA or as last evaluated."""
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    for place in (out, card):
        if place is not None:
            _refuse_file(place, force)
    if data is not None:
        found = measured(folder, data, confidence)
        write_whole(folder.path / "report.json", found.to_json())
    else:
        found = _last(folder)
    page = out or str(folder.path / "report.html")
    found.save_html(page)
    if card is not None:
        found.model_card(card)
    console.done(f"the page is {page}", out=page, card=card)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--data", default=None, help="Measure all of them on this table.")
@click.pass_context
def compare(ctx: click.Context, runs: tuple[str, ...], data: str | None) -> None:
    """Show runs side by side; measured on --data, or as each was last evaluated."""
    console = ctx.find_object(Console) or Console()
    rows = [compared(RunFolder.open(path), path, data) for path in runs]
    if data is not None:
        console.note(f"note: {_NOT_COVERED}")
    console.result(side_by_side(rows), runs=rows)


# ------------------------------------------------------------------------------------- measuring


def measured(folder: RunFolder, data: str, confidence: float = 0.95) -> Report:
    """Return the report of a run on a labelled table."""
    from ratewise.report import Report

    model = folder.model()
    schema, settings = model.schema, folder.settings
    frame = read_table(data, folder.missing)
    present = named_columns(frame, "the table")
    needed = {*settings.groups}
    groups = [name for name in schema.groups if name in present or name in needed]
    chosen = chosen_columns(frame, (schema.label, *groups), "the table")
    compiled = compile_constraints(settings.declared, schema.domain)
    return Report.from_predictions(
        chosen[schema.label],
        model.predict(frame),
        {name: chosen[name] for name in groups} or None,
        settings.declared or None,
        scores=model.predict_proba(frame),
        classes=schema.classes,
        group_values={name: schema.group_values[name] for name in groups},
        confidence=confidence,
        name=folder.path.name,
        statement=folder.statement(),
        ledger=folder.ledger(),
        history=folder.history(),
        compiled=compiled if len(compiled) else None,
    )


def _last(folder: RunFolder) -> Report:
    from ratewise.report import Report

    path = folder.path / "report.json"
    if not path.exists():
        raise InvalidInput(
            f"the run in {str(folder.path)!r} was not evaluated yet; give a labelled table: "
            f"ratewise report {folder.path} test.csv"
        )
    return Report.from_json(path.read_text(encoding="utf-8"))


def _refuse_file(out: str, force: bool) -> None:
    if os.path.lexists(out) and not force:
        raise InvalidInput(f"{out!r} exists already; take another name, or --force to replace it")
    if not Path(out).absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(Path(out).parent)!r}")


def missed(content: Content) -> list[str]:
    """Return the limits that are not held on the rows: exceeded, or without rows to tell."""
    return [limit.name for limit in content.limits if limit.gap is None or limit.gap > _ROUNDING]


def numbers(content: Content) -> dict[str, Any]:
    """Return the measured values as plain data."""
    return {
        "rows": content.rows,
        "accuracy": content.everyone.accuracy.value,
        "limits": [
            {
                "name": limit.name,
                "asked": f"{limit.sense} {limit.bound:g}",
                "reached": limit.reached,
                "interval": [limit.low, limit.high],
                "gap": limit.gap,
                "state": limit.state,
            }
            for limit in content.limits
        ],
        "missed": missed(content),
    }


def in_words(content: Content) -> str:
    """Return what was measured as text: the worst limits first."""
    accuracy = content.everyone.accuracy
    lines = [f"{content.rows:,} rows, accuracy {_number(accuracy.value)}"]
    if content.limits:
        table = [
            [
                limit.name,
                f"{limit.sense} {limit.bound:g}",
                _number(limit.reached),
                _interval(limit),
                limit.state,
            ]
            for limit in content.by_worst()
        ]
        header = ["limit", "asked", "reached", f"{content.confidence:.0%} interval", "state"]
        lines += ["", text_table(header, table)]
        lines += ["", f"{len(missed(content))} of {len(content.limits)} limits are exceeded on these rows"]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(limit: Any) -> str:
    return f"{_number(limit.low)} to {_number(limit.high)}"


# ------------------------------------------------------------------------------------- comparing


def compared(folder: RunFolder, name: str, data: str | None) -> dict[str, Any]:
    """Return one line of a comparison."""
    settings = folder.settings
    row: dict[str, Any] = {
        "run": name,
        "status": folder.description["status"],
        "asked_epsilon": settings.epsilon,
        "constraints": list(settings.constraints),
        "epsilon": folder.statement().epsilon if folder.finished else None,
        "accuracy": None,
        "worst_gap": None,
        "missed": None,
    }
    if folder.finished and (data is not None or (folder.path / "report.json").exists()):
        content = (measured(folder, data) if data is not None else _last(folder)).content
        gaps = [limit.gap for limit in content.limits if limit.gap is not None]
        row["accuracy"] = content.everyone.accuracy.value
        row["worst_gap"] = max(gaps) if gaps else None
        row["missed"] = len(missed(content))
    return row


def side_by_side(rows: list[dict[str, Any]]) -> str:
    """Return runs as a table of text."""
    header = ["run", "asked epsilon", "ledger says", "accuracy", "worst gap", "missed", "constraints"]
    lines = [
        [
            str(row["run"]),
            "none" if row["asked_epsilon"] is None else f"{row['asked_epsilon']:g}",
            _number(row["epsilon"]) if row["status"] == "finished" else "(not finished)",
            _number(row["accuracy"]),
            _number(row["worst_gap"]),
            "-" if row["missed"] is None else str(row["missed"]),
            "; ".join(row["constraints"]) or "none",
        ]
        for row in rows
    ]
    return text_table(header, lines)
