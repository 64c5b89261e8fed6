"""``ratewise predict``, ``evaluate``, ``report`` and ``compare``: what a run is good for."""

from __future__ import annotations

from typing import Any

import click

from ratewise.cli.measuring import in_words, last, measured, measured_privately, missed, numbers, shown
from ratewise.cli.options import PLACE, force_option
from ratewise.cli.output import Console
from ratewise.cli.places import refuse_file
from ratewise.cli.tables import read_table, write_table
from ratewise.layout import text_table
from ratewise.runs import RunFolder
from ratewise.runs.settings import CUSTOMARY_DELTA

CONSTRAINT_MISSED = 4
_NOT_COVERED = (
    "evaluation reads the rows of the test table without noise; the run's privacy guarantee does not cover "
    "what it shows of them"
)


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--out", type=PLACE, default=None, metavar="FILE.csv", help="Standard output if left out.")
@click.option("--proba", is_flag=True, help="Also the probability of each class.")
@click.option(
    "--unknown",
    type=click.Choice(["error", "zeros"]),
    default="error",
    show_default=True,
    help="What becomes of values that the schema does not list.",
)
@force_option
@click.pass_context
def predict(
    ctx: click.Context, run_folder: str, data: str, out: str | None, proba: bool, unknown: str, force: bool
) -> None:
    """Predict the label of each row of the table DATA, in its order."""
    import pandas as pd

    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    model = folder.model()
    if out is not None:
        refuse_file(out, force)
    frame = read_table(data, folder.missing)
    found = pd.DataFrame({"prediction": model.predict(frame, unknown)})
    if proba:
        for name, column in zip(model.schema.classes, model.predict_proba(frame, unknown).T, strict=True):
            found[f"probability of {name}"] = column
    if out is None:
        columns = {str(name): found[name].tolist() for name in found}
        console.result(found.to_csv(index=False).removesuffix("\n"), rows=len(found), **columns)
        return
    write_table(found, out)
    console.done(f"{len(found)} predictions are in {out}", out=out, rows=len(found))


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--strict", is_flag=True, help="Exit with 4 unless every limit is held on these rows.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@click.option("--epsilon", type=float, default=None, help="Measure by one private release at this cost.")
@click.option("--delta", type=float, default=CUSTOMARY_DELTA, show_default=True, help="With --epsilon.")
@click.option(
    "--ledger", type=PLACE, default=None, metavar="FILE", help="With --epsilon: the book of these rows."
)
@click.pass_context
def evaluate(ctx: click.Context, /, run_folder: str, data: str, strict: bool, **values: Any) -> None:
    """Measure a run on the labelled table DATA: accuracy, and asked against reached for every limit.

    With --epsilon the rows of DATA are private, and what is shown is one noisy release of them.
    """
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    if values["epsilon"] is not None:
        held = _privately(console, folder, data, values)
    else:
        found = measured(folder, data, values["confidence"])
        _keep(console, folder, found.to_json())
        console.note(f"note: {_NOT_COVERED}")
        console.result(in_words(found.content), **numbers(found.content))
        held = not missed(found.content)
    if strict and not held:
        ctx.exit(CONSTRAINT_MISSED)


def _keep(console: Console, folder: RunFolder, document: str) -> None:
    """Keep an evaluation in the run's folder; where nothing can be written, say so and go on."""
    try:
        folder.keep_evaluation(document)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        console.warn(f"this evaluation is not kept in {str(folder.path)!r}: {reason}")


def _privately(console: Console, folder: RunFolder, data: str, values: dict[str, Any]) -> bool:
    found = measured_privately(folder, data, **values)
    spent = found.ledger.total(values["delta"])
    console.result(
        f"{found}\n\nreleased with noise for epsilon {values['epsilon']:g} at delta {values['delta']:g}; "
        f"the book {found.ledger.path} now holds epsilon {spent:.4g}",
        **{("release" if name == "event" else name): value for name, value in found.to_dict().items()},
        total_epsilon=spent,
        ledger=found.ledger.path,
    )
    return found.all_hold


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE, required=False)
@click.option("--out", type=PLACE, default=None, metavar="FILE.html", help="RUN/report.html if left out.")
@click.option("--card", type=PLACE, default=None, metavar="FILE.md", help="Also a model card.")
@click.option(
    "--baseline", type=PLACE, multiple=True, metavar="RUN", help="Runs to compare with; needs DATA."
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@force_option
@click.pass_context
def report(
    ctx: click.Context,
    run_folder: str,
    data: str | None,
    out: str | None,
    card: str | None,
    baseline: tuple[str, ...],
    confidence: float,
    force: bool,
) -> None:
    """Write one page about a run, measured on the table DATA or as last evaluated."""
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    page = out or str(folder.path / "report.html")
    for place in (page, card):
        if place is not None:
            refuse_file(place, force)
    if baseline and data is None:
        raise click.UsageError("--baseline needs DATA to measure the runs on")
    if data is not None:
        found = measured(folder, data, confidence, [RunFolder.open(path) for path in baseline])
        _keep(console, folder, found.to_json())
    else:
        found = last(folder)
    found.save_html(page)
    if card is not None:
        found.model_card(card)
    console.done(f"the page is {page}", out=page, card=card)


@click.command()
@click.argument("runs", type=PLACE, nargs=-1, required=True, metavar="RUN...")
@click.option("--data", type=PLACE, default=None, help="Measure all of them on this table.")
@click.pass_context
def compare(ctx: click.Context, runs: tuple[str, ...], data: str | None) -> None:
    """Show runs side by side; measured on --data, or as each was last evaluated."""
    console = ctx.find_object(Console) or Console()
    rows = [compared(RunFolder.open(path), path, data) for path in runs]
    if data is not None:
        console.note(f"note: {_NOT_COVERED}")
    console.result(side_by_side(rows), runs=rows)


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
    if folder.finished and (data is not None or folder.evaluations):
        content = (measured(folder, data) if data is not None else last(folder)).content
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
            shown(row["epsilon"]) if row["status"] == "finished" else "(not finished)",
            shown(row["accuracy"]),
            shown(row["worst_gap"]),
            "-" if row["missed"] is None else str(row["missed"]),
            "; ".join(row["constraints"]) or "none",
        ]
        for row in rows
    ]
    return text_table(header, lines)
