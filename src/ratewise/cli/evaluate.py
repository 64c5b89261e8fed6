"""``ratewise evaluate``, ``compare``, ``predict`` and ``report``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ratewise.accounting import Budget, Ledger
from ratewise.cli.console import Console, read_table, reading_of, refuse_file, write_table
from ratewise.cli.options import PLACE, file_options, force_option
from ratewise.data.schema import Schema
from ratewise.data.table import as_column, named_columns
from ratewise.estimators.classifier import RateConstrainedClassifier
from ratewise.estimators.evaluation import evaluate as certify_predictions
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.metrics.verdicts import Certificate, short, text_table
from ratewise.runs import RunFolder
from ratewise.runs.folder import domain_of
from ratewise.training.config import TrainingConfig

if TYPE_CHECKING:
    from ratewise.report import Report


CONSTRAINT_MISSED = 4
FORMAT = "ratewise-evaluation"
NOT_COVERED = (
    "evaluation reads the rows of the test table without noise; the run's privacy guarantee does not cover "
    "what it shows of them"
)
_NO_LEDGER = (
    "The ledger that this run shares with others is not where it was, so the page cannot show where the "
    "budget went. The statement is the one of the day of training."
)
_FOLDS = 5


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--strict", is_flag=True, help="Exit with 4 unless every constraint is held on these rows.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of all intervals together.")
@click.option("--tolerance", type=float, default=None, help="By default that of the run.")
@click.option("--epsilon", type=float, default=None, help="Measure by one private release at this cost.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="With --epsilon.")
@click.option(
    "--ledger", type=PLACE, default=None, metavar="FILE", help="With --epsilon: the ledger of these rows."
)
@click.option("--ledger-cap", type=float, default=None, help="Cap of a new ledger, in epsilon.")
@file_options
@click.pass_context
def evaluate(ctx: click.Context, /, run_folder: str, data: str, strict: bool, **values: Any) -> None:
    """Judge the constraints of a run on the labelled table DATA: held, missed, or cannot tell.

    With --epsilon the rows of DATA are private, and what is shown is one noisy release of them.
    """
    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    reading = reading_of(values, folder.reading, data)
    tolerance = folder.settings.tolerance if values["tolerance"] is None else values["tolerance"]
    if values["epsilon"] is not None:
        names = ("epsilon", "delta", "confidence", "ledger", "ledger_cap")
        options = {name: values[name] for name in names}
        found, ledger = evaluate_privately(folder, data, reading=reading, tolerance=tolerance, **options)
        spent = ledger.total(values["delta"])
        console.result(
            f"{found}\n\nreleased with noise for epsilon {values['epsilon']:g} at delta {values['delta']:g}; "
            f"the ledger {ledger.path} now has epsilon {spent:.4g}",
            **found.to_dict(),
            total_epsilon=spent,
            ledger=ledger.path,
        )
    else:
        rows = LabelledTable(folder, data, reading)
        found = rows.certificate(values["confidence"], tolerance)
        keep(console, folder, found, rows.report(values["confidence"]))
        console.note(f"note: {NOT_COVERED}")
        console.result(str(found), **found.to_dict())
    if strict and not found.all_held:
        ctx.exit(CONSTRAINT_MISSED)


class LabelledTable:
    """A labelled table beside the predictions of a run.

    Undeclared classes and group values count as other: they belong to no class and to no named group.
    """

    def __init__(self, folder: RunFolder, data: str, reading: Mapping[str, Any] | None = None) -> None:
        self.folder, self.model = folder, folder.model()
        self.domain = domain_of(self.model)
        self.data = data
        self.frame = read_table(data, folder.reading if reading is None else reading).frame
        present = named_columns(self.frame, "the table")
        label = folder.settings.label
        needed = tuple(self.domain.columns)
        absent = [name for name in (label, *needed) if name not in present]
        if absent:
            raise InvalidInput(
                f"{data!r} lacks the column {', '.join(map(repr, absent))}, which the constraints of the run need"
            )
        self.labels: Any = as_column(present[label], "the label")
        self.groups: dict[str, Any] = {name: as_column(present[name], name) for name in needed}
        self.predicted = self.model.predict(self.frame)

    def certificate(self, confidence: float = 0.95, tolerance: float = 0.01) -> Certificate:
        """Return the certificate of the run on these rows, by exact counts."""
        return self.judge(self.predicted, confidence, tolerance)

    def judge(self, predicted: Any, confidence: float, tolerance: float) -> Certificate:
        """Return the certificate of any predictions for these rows."""
        return certify_predictions(
            self.folder.settings.declared or None,
            self.labels,
            predicted,
            sensitive_features=self.groups or None,
            classes=self.domain.classes,
            group_values=self.domain.columns,
            data_name=os.path.basename(self.data),
            tolerance=tolerance,
            level=confidence,
        )

    def report(
        self, confidence: float = 0.95, baselines: Iterable[RunFolder] = (), title: str | None = None
    ) -> Report:
        """Return the report of the run on these rows, with other runs to compare it with."""
        from ratewise.report import Report

        folder, ledger = self.folder, _ledger(self.folder)
        rivals = {name: _rival(other, self.frame) for name, other in _named(folder, baselines).items()}
        codes = self.domain.code_labels(self.labels)
        groups = {name: self._spelt(name) for name in self.groups}
        known = (codes >= 0) & np.all([kept for _, kept in groups.values()] or [codes >= 0], axis=0)
        if not known.any():
            raise InvalidInput(f"no row of {self.data!r} has a label and groups that the run knows")
        notes = [] if ledger is not None else [_NO_LEDGER]
        if not known.all():
            notes.append(
                f"{int((~known).sum()):,} rows with values that the run does not know are not shown here."
            )
        found = Report.from_predictions(
            np.array(self.domain.classes, dtype=object)[codes[known]],
            self.predicted[known],
            {name: column[known] for name, (column, _) in groups.items()} or None,
            folder.settings.declared or None,
            scores=self.model.predict_proba(self.frame)[known],
            classes=self.domain.classes,
            group_values=self.domain.columns,
            confidence=confidence,
            tolerance=folder.settings.tolerance,
            baseline={n: (p[known], s[known], e) for n, (p, s, e) in rivals.items()} or None,
            name=folder.path.name,
            title=title or folder.settings.title or None,
            statement=folder.statement(),
            ledger=ledger,
            notes=notes,
            model=self.model,
            target=folder.settings.label,
            data=os.path.basename(self.data),
        )
        if folder.schema is None:
            return found
        return Report.from_json(json.dumps(with_names(json.loads(found.to_json()), folder.schema)))

    def _spelt(self, name: str) -> tuple[Any, Any]:
        """Return a sensitive column in the declared values, and which rows have one."""
        codes, values = self.domain.code_column(name, self.groups[name]), self.domain.columns[name]
        if not isinstance(values, tuple):
            return codes, np.isfinite(codes)
        kept = (codes >= 0) & (codes < len(values))
        return np.array([*values, None], dtype=object)[np.where(kept, codes, len(values))], kept

    def majority(self) -> Any:
        """Return the most common class of these rows, for each of them."""
        codes = self.domain.code_labels(self.labels)
        counts = np.bincount(codes[codes >= 0], minlength=len(self.domain.classes))
        return np.full(len(codes), self.domain.classes[int(counts.argmax())], dtype=object)

    def unconstrained(self) -> Any:
        """Return predictions without constraints and without privacy, of models that were trained on other rows."""
        names = list(self.model.feature_names_in_)
        fold = np.arange(len(self.frame)) % _FOLDS
        predicted = np.empty(len(self.frame), dtype=object)
        for place in range(_FOLDS):
            other, own = self.frame[fold != place], self.frame[fold == place]
            reference = RateConstrainedClassifier(
                epsilon=None,
                classes=list(self.domain.classes),
                config=reference_config(len(other)),
                random_state=0,
            )
            reference.fit(other[names], _only(self.labels, fold != place))
            predicted[fold == place] = reference.predict(own[names])
        return predicted


def reference_config(rows: int) -> TrainingConfig:
    """Return settings for models without privacy, which need a prior where rows are few."""
    return TrainingConfig(spread=min(4.0, rows / 5000.0), l2=1e-3)


def _only(column: Any, kept: Any) -> Any:
    return column[kept] if hasattr(column, "dtype") else np.asarray(column, dtype=object)[kept]


def _rival(folder: RunFolder, frame: Any) -> tuple[Any, Any, float]:
    """Return the predictions of another run on the same rows, their probabilities, and what it spent."""
    model = folder.model()
    return model.predict(frame), model.predict_proba(frame), folder.statement().epsilon


def _named(folder: RunFolder, others: Iterable[RunFolder]) -> dict[str, RunFolder]:
    """Return runs by the names of their folders; where two would be the same, by their whole paths."""
    found = list(others)
    names = [folder.path.name, *(other.path.name for other in found)]
    return {
        other.path.name if names.count(other.path.name) == 1 else str(other.path): other for other in found
    }


def _ledger(folder: RunFolder) -> Ledger | None:
    """Return the run's ledger; None for one that it shares and that is not here: the statement outlives it."""
    place = folder.description["ledger"]
    return None if place is not None and not (folder.path / place).exists() else folder.ledger()


def keep(console: Console, folder: RunFolder, certificate: Certificate, report: Report) -> None:
    """Keep an evaluation in the run's folder; where nothing can be written, warn and go on."""
    document = {
        "format": FORMAT,
        "certificate": certificate.to_dict(),
        "report": json.loads(report.to_json()),
    }
    try:
        folder.keep_evaluation(document)
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        console.warn(f"this evaluation is not kept in {str(folder.path)!r}: {reason}")


def last_certificate(folder: RunFolder) -> Certificate | None:
    """Return the certificate of the last evaluation; without one, that of the training rows."""
    if not folder.evaluations:
        return folder.certificate()
    return Certificate.from_dict(folder.last_evaluation()["certificate"])


def evaluate_privately(
    folder: RunFolder,
    data: str,
    *,
    epsilon: float,
    delta: float,
    confidence: float,
    tolerance: float,
    ledger: str | None,
    ledger_cap: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> tuple[Certificate, Ledger]:
    """Return the certificate on private rows, by one release that a ledger admits first; and the ledger.

    Parameters
    ----------
    folder : RunFolder
    data : str
        The labelled table.
    epsilon, delta : float
        What the release costs the people in that table.
    confidence, tolerance : float
    ledger : str or None
        A ledger; None takes the one for evaluations in the run's folder.
    ledger_cap : float or None
        Cap of a ledger that does not exist yet. None: the run's own is made for this evaluation alone, and a
        `ledger` must exist.
    reading : mapping, optional
        How the table is read; by default as the run's table was.
    """
    rows, settings = LabelledTable(folder, data, reading), folder.settings
    place = folder.path / "evaluations.json" if ledger is None else ledger
    if os.path.lexists(place) or (ledger is not None and ledger_cap is None):
        found = Ledger.open(place)
    else:
        cap = Budget(epsilon if ledger_cap is None else ledger_cap, delta)
        found = Ledger.create(place, cap=cap, neighbours=settings.neighbours)
    certificate = certify_predictions(
        settings.declared or None,
        rows.labels,
        rows.predicted,
        epsilon=epsilon,
        delta=delta,
        sensitive_features=rows.groups or None,
        classes=rows.domain.classes,
        group_values=rows.domain.columns,
        neighbours=settings.neighbours,
        ledger=found,
        data_name=f"rows of {os.path.basename(data)}",
        tolerance=tolerance,
        level=confidence,
    )
    return certificate, found


# ---------------------------------------------------------------------------------------- comparing


@click.command()
@click.argument("runs", type=PLACE, nargs=-1, required=True, metavar="RUN...")
@click.option("--data", type=PLACE, default=None, help="Judge all of them on this table.")
@file_options
@click.pass_context
def compare(ctx: click.Context, /, runs: tuple[str, ...], data: str | None, **values: Any) -> None:
    """Show runs side by side; on --data, or as each was last evaluated, or on its training rows.

    With --data, a model without constraints and privacy and the most common class are shown as references.
    """
    console = ctx.find_object(Console) or Console()
    rows = [compared(RunFolder.open(path), path, data, values) for path in runs]
    if data is not None:
        rows += references(runs[0], data, values)
        console.note(f"note: {NOT_COVERED}")
    console.result(side_by_side(rows), runs=rows)


def compared(
    folder: RunFolder, name: str, data: str | None, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return one row of a comparison."""
    settings = folder.settings
    found = None
    if folder.finished:
        reading = reading_of(values or {}, folder.reading, data or "")
        found = (
            last_certificate(folder)
            if data is None
            else LabelledTable(folder, data, reading).certificate(tolerance=settings.tolerance)
        )
    return {
        "run": name,
        "status": folder.description["status"],
        "asked_epsilon": settings.epsilon,
        "constraints": list(settings.constraints),
        "epsilon": folder.statement().epsilon if folder.finished else None,
        **_judged(found),
    }


def references(first: str, data: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the most common class and of a model without constraints, judged as the first run is."""
    folder = RunFolder.open(first)
    if not folder.finished:
        return []
    table = LabelledTable(folder, data, reading_of(values or {}, folder.reading, data))
    found = []
    for name, predict in (
        ("unconstrained, no privacy", table.unconstrained),
        ("most common class", table.majority),
    ):
        try:
            judged = table.judge(predict(), 0.95, folder.settings.tolerance)
        except RatewiseError:  # too few rows for such a model
            continue
        row: dict[str, Any] = {
            "run": name,
            "status": "reference",
            "asked_epsilon": None,
            "constraints": [],
            "epsilon": None,
        }
        found.append({**row, **_judged(judged)})
    return found


def _judged(certificate: Certificate | None) -> dict[str, Any]:
    """Return what a comparison shows of a certificate."""
    gaps = [] if certificate is None else [row for row in certificate if row.kind == "gap"]
    largest = max(gaps, key=lambda row: row.estimate, default=None)
    accuracy = None if certificate is None else certificate.accuracy
    return {
        "summary": None if certificate is None else certificate.summary,
        "verdict": None if certificate is None or not len(certificate) else certificate.verdict,
        "rows": None if certificate is None else certificate.data,
        "largest_gap": None if largest is None else largest.estimate,
        "gap_interval": None if largest is None else list(largest.interval),
        "accuracy": None if accuracy is None else accuracy.value,
        "majority_accuracy": None if certificate is None else certificate.to_dict()["majority_accuracy"],
        "undecided": []
        if certificate is None
        else [{"name": r.name, "verdict": r.verdict, "remedy": r.remedy} for r in certificate if r.remedy],
    }


def side_by_side(rows: list[dict[str, Any]]) -> str:
    """Return runs as text: a summary line each, a table, and the remedies of what is not held."""
    lines = [
        f"{row['run']}: {row['summary']}" for row in rows if row["summary"] and row["status"] != "reference"
    ]
    header = ["run", "epsilon", "accuracy", "largest gap", "verdict", "rows", "constraints"]
    table = [
        [
            str(row["run"]),
            _epsilon(row),
            _number(row["accuracy"]),
            _number(row["largest_gap"]),
            row["verdict"] or "-",
            row["rows"] or "-",
            "; ".join(row["constraints"]) or "none",
        ]
        for row in rows
    ]
    lines += ["", text_table(header, table)] if lines else [text_table(header, table)]
    for row in rows:
        if row["status"] != "reference":
            lines += [
                f"{row['run']}: {item['verdict']}: {item['name']}: {item['remedy']}"
                for item in row["undecided"]
            ]
    return "\n".join(lines)


def _epsilon(row: dict[str, Any]) -> str:
    if row["status"] == "reference":
        return "-"
    if row["status"] != "finished":
        return "(not finished)"
    return "none" if row["asked_epsilon"] is None else f"{row['epsilon']:.4g}"


def _number(value: float | None) -> str:
    return "-" if value is None else short(value)


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--out", type=PLACE, default=None, metavar="FILE.csv", help="Standard output if left out.")
@click.option("--proba", is_flag=True, help="Also the probability of each class.")
@file_options
@force_option
@click.pass_context
def predict(
    ctx: click.Context,
    /,
    run_folder: str,
    data: str,
    out: str | None,
    proba: bool,
    force: bool,
    **values: Any,
) -> None:
    """Predict the label of each row of the table DATA, in its order.

    Values that the model does not know count as "other", and every column may have missing cells.
    """
    import pandas as pd

    console = ctx.find_object(Console) or Console()
    folder = RunFolder.open(run_folder)
    model = folder.model()
    if out is not None:
        refuse_file(out, force)
    frame = read_table(data, reading_of(values, folder.reading, data)).frame
    found = pd.DataFrame({"prediction": model.predict(frame)})
    if proba:
        for name, column in zip(model.classes_, model.predict_proba(frame).T, strict=True):
            found[f"probability of {name}"] = column
    if out is None:
        columns = {str(name): found[name].tolist() for name in found}
        console.result(found.to_csv(index=False).removesuffix("\n"), rows=len(found), **columns)
        return
    write_table(found, out)
    console.done(f"{len(found)} predictions are in {out}", out=out, rows=len(found))


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE, required=False)
@click.option("--out", type=PLACE, default=None, metavar="FILE.html", help="RUN/report.html if left out.")
@click.option("--card", type=PLACE, default=None, metavar="FILE.md", help="Also a model card.")
@click.option(
    "--baseline", type=PLACE, multiple=True, metavar="RUN", help="Runs to compare with; needs DATA."
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@click.option("--title", default=None, help="Heading of the page.")
@file_options
@force_option
@click.pass_context
def report(
    ctx: click.Context,
    /,
    run_folder: str,
    data: str | None,
    out: str | None,
    card: str | None,
    baseline: tuple[str, ...],
    confidence: float,
    title: str | None,
    force: bool,
    **values: Any,
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
    found = make_report(console, folder, data, baseline, confidence, title, values)
    found.save_html(page)
    if card is not None:
        found.model_card(card)
    console.done(f"the page is {page}", out=page, card=card)


def with_names(report: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the plain data of a report with the titles and labels of the schema: "RAC1P=3: American Indian"."""
    described = {**schema.columns, **schema.groups}
    labels = {name: getattr(column, "labels", {}) for name, column in described.items()}
    full = {
        f"{name}{sign}{text}": f"{name}{sign}{text}: {label}"
        for name, of_values in labels.items()
        for text, label in of_values.items()
        for sign in ("=", "!=")
    }
    full |= {f"'{value}'": f"'{schema.value_label(schema.label, value)}'" for value in schema.classes}
    known = re.compile(rf"(?<![\w'])(?:{'|'.join(map(re.escape, full)) or '(?!)'})(?![\w.])")

    def named(value: Any) -> Any:
        if isinstance(value, dict):  # formulas stay as they are written
            kept = ("name", "family") if "words" in value else ()
            return {key: each if key in kept else named(each) for key, each in value.items()}
        if isinstance(value, list):
            return [named(each) for each in value]
        return known.sub(lambda found: full[found[0]], value) if isinstance(value, str) else value

    parts = {part: named(report[part]) for part in ("families", "constraints", "groupings", "calibration")}
    shapes = [{**shape, "feature": schema.title_of(shape["feature"])} for shape in report["shapes"]]
    labels[schema.label] = schema.class_labels
    legend = [
        f"{name}: {schema.title_of(name)}"
        + "".join(f", {text}: {label}" for text, label in of_values.items())
        for name, of_values in labels.items()
        if of_values or schema.title_of(name) != name
    ]
    about = [*report["about"], *([{"label": "Names", "text": "; ".join(legend)}] if legend else [])]
    return {**report, **parts, "shapes": shapes, "about": about}


def make_report(
    console: Console,
    folder: RunFolder,
    data: str | None,
    baseline: tuple[str, ...] = (),
    confidence: float = 0.95,
    title: str | None = None,
    values: dict[str, Any] | None = None,
) -> Any:
    """Return the report of a run on a labelled table, which is kept as an evaluation, or of the last one."""
    from ratewise.report import Report

    if data is None:
        if not folder.evaluations:
            raise InvalidInput(
                f"the run in {str(folder.path)!r} was not evaluated yet; give a labelled table: "
                f"ratewise report {folder.path} test.csv"
            )
        return Report.from_json(json.dumps(folder.last_evaluation()["report"]))
    rows = LabelledTable(folder, data, reading_of(values or {}, folder.reading, data))
    found = rows.report(confidence, [RunFolder.open(path) for path in baseline], title)
    keep(console, folder, rows.certificate(confidence, folder.settings.tolerance), found)
    return found
