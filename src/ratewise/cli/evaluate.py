"""``ratewise evaluate``, ``compare``, ``predict`` and ``report``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ratewise._files import write_whole
from ratewise.cli.console import current, read_table, reading_of, refuse_file, shared_ledger
from ratewise.cli.options import PLACE, file_options, force_option, ledger_options
from ratewise.constraints.compiled import named_values
from ratewise.constraints.domain import Domain, Numeric, list_values
from ratewise.data.cells import parse_text, text_of
from ratewise.data.table import code_labels, named_columns
from ratewise.estimators.evaluation import evaluate as certify_predictions
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.metrics.rates import text_table
from ratewise.preprocessing.discovery import count_values, release_values
from ratewise.runs import RunFolder
from ratewise.runs.run import constant_words
from ratewise.training.certificate import Certificate, short
from ratewise.training.config import TrainingConfig
from ratewise.training.session import LABEL

if TYPE_CHECKING:
    from ratewise.estimators.classifier import RateConstrainedClassifier
    from ratewise.report import Report

NOT_COVERED = (
    "evaluation reads the rows of the test table without noise; the run's privacy guarantee does not cover "
    "what it shows of them"
)
_NO_LEDGER = (
    "The ledger that this run shares with others is not where it was, so the page cannot show where the "
    "budget went. The statement is the one of the day of training."
)
_FOLDS = 5
_SECOND_CLASS = "another class"


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of all intervals together.")
@click.option("--tolerance", type=float, default=None, help="By default that of the run.")
@click.option("--epsilon", type=float, default=None, help="Measure by one private release at this cost.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="With --epsilon.")
@ledger_options
@file_options
def evaluate(run_folder: str, data: str, **values: Any) -> None:
    """Judge the constraints of a run on the labelled table DATA: held, missed, or cannot tell.

    With --epsilon the rows of DATA are private, and what is shown is one noisy release of them.
    """
    console, epsilon, delta = current(), values["epsilon"], values["delta"]
    if epsilon is None and values["ledger"] is not None:
        raise click.UsageError("--ledger is for private rows and needs --epsilon")
    folder = RunFolder.open(run_folder)
    tolerance = folder.settings.tolerance if values["tolerance"] is None else values["tolerance"]
    rows, confidence, ledger = LabelledTable(folder, data, values), values["confidence"], None
    private: dict[str, Any] = {}
    if epsilon is not None:
        # the one in the folder is made for this evaluation alone unless there is a cap
        own, cap = values["ledger"] is None, values["ledger_cap"]
        place = folder.path / "evaluations.json" if own else values["ledger"]
        cap = epsilon if own and cap is None else cap
        ledger = shared_ledger(place, cap, delta, neighbours=folder.settings.neighbours)
        private = {"epsilon": epsilon, "delta": delta, "ledger": ledger, **_persons(rows)}
        private["neighbours"] = folder.settings.neighbours
        private["data_name"] = f"rows of {os.path.basename(data)}"
    found = rows.judge(rows.predicted, tolerance, confidence, **private)
    said, more = str(found), found.to_dict()
    if ledger is None:
        rows.keep(found, rows.report(tolerance, confidence))
        console.note(f"note: {NOT_COVERED}")
    else:
        spent = ledger.total(delta)
        said += (
            f"\n\nreleased with noise for epsilon {epsilon:g} at delta {delta:g}; "
            f"the ledger {ledger.path} now has epsilon {spent:.4g}"
        )
        more |= {"total_epsilon": spent, "ledger": ledger.path}
    console.result(said, **more)


def _persons(rows: LabelledTable) -> dict[str, Any]:
    """Return the ids of a run that protects persons, and how their rows count, as arguments of an evaluation."""
    settings, schema = rows.folder.settings, rows.folder.schema
    person = settings.privacy_id or (None if schema is None else schema.privacy_id)
    if person is None:
        return {}
    if person not in rows.frame:
        raise InvalidInput(f"{rows.data!r} lacks the column {person!r}: the run protects all rows of one id")
    counted = {"rows_per_id": settings.rows_per_id, "id_weighting": settings.id_weighting}
    return {"privacy_ids": rows.frame[person], **counted}


class LabelledTable:
    """A labelled table beside the predictions of a run; `options` say how the file is read.

    Undeclared classes and group values count as other: they belong to no class and to no named group. The classes and
    group values of a model that predicts a constant are those of the rows.
    """

    def __init__(self, folder: RunFolder, data: str, options: Mapping[str, Any]) -> None:
        self.folder, self.model, self.data = folder, folder.model(), data
        reading, private = reading_of(options, folder.description["reading"], data), options.get("epsilon") is not None
        self.frame = read_table(data, reading, private=private).frame
        compiled, settings = self.model.constraints_, folder.settings
        columns = settings.groups if settings.constraints else ()
        names = (settings.label, *(columns if compiled is None else compiled.domain.columns))
        present = named_columns(self.frame, "the table")
        absent = [name for name in names if name not in present]
        if absent:
            raise InvalidInput(
                f"{data!r} lacks the column {', '.join(map(repr, absent))}; label and groups of the run are needed to "
                "judge it (ratewise predict needs neither)"
            )
        self.groups: dict[str, Any] = {name: present[name] for name in names}
        self.labels = self.groups.pop(settings.label)
        self.constant = constant_words(self.model)
        if not self.constant:
            self.labels = self._without_full_stops()
        self.predicted = self.model.predict(self.frame)

    @functools.cached_property
    def domain(self) -> Domain:
        """The domain of the run; of a constant, the values of these rows with those named: for public rows only."""
        if not self.constant:
            compiled = self.model.constraints_
            return Domain(tuple(self.model.classes_.tolist()), {}, other=True) if compiled is None else compiled.domain
        named = named_values(self.folder.settings.declared)
        public = {LABEL: (*self.model.classes_.tolist(), *named.classes), **named.columns}
        columns = {LABEL: self.labels, **self.groups}
        found = release_values(count_values(columns, None), 0.0, 0.0, np.random.default_rng(0), named=public)
        classes = found.pop(LABEL)
        values: dict[str, Any] = {**found, **dict.fromkeys(named.numeric, Numeric())}
        return Domain(classes if len(classes) > 1 else (*classes, _SECOND_CLASS), values, other=True)

    def _without_full_stops(self) -> Any:
        """Return labels without a full stop that no class has, as in the test file of Adult; each by itself."""
        classes = {text_of(name): name for name in self.domain.classes}
        if not all(isinstance(name, str) for name in classes.values()):
            return self.labels
        texts = parse_text(self.labels).tolist()
        return np.array([classes.get(t if t in classes else t.removesuffix("."), t) for t in texts], dtype=object)

    def judge(self, predicted: Any, tolerance: float, confidence: float = 0.95, **private: Any) -> Certificate:
        """Return the certificate of predictions for these rows: by exact counts, or by a `private` release."""
        if not private and not np.any(code_labels(self.labels, self.domain) >= 0):
            held = dict.fromkeys(parse_text(self.labels[:1000]))
            raise InvalidInput(
                f"no row of {self.data!r} has a label that the run knows: column "
                f"{self.folder.settings.label!r} holds {list_values(held)}, the classes are "
                f"{list_values(self.domain.classes)}; spell them as in the table of the run"
            )
        labels = self.labels
        if private and self.constant:
            named = named_values(self.folder.settings.declared).classes
            classes = {text_of(name): name for name in (*self.model.classes_.tolist(), *named)}
            known: dict[str, Any] = {"classes": (*classes.values(), _SECOND_CLASS)}
            texts = parse_text(labels)
            labels = np.array([classes.get(text, _SECOND_CLASS) if text else None for text in texts], object)
        else:
            known = {"classes": self.domain.classes, "group_values": self.domain.columns}
        found = certify_predictions(
            self.folder.settings.declared or None,
            labels,
            predicted,
            sensitive_features=self.groups or None,
            tolerance=tolerance,
            level=confidence,
            **{"data_name": os.path.basename(self.data), **known, **private},
        )
        said = (self.constant,) if self.constant and predicted is self.predicted else ()
        return replace(found, warnings=(*said, *found.warnings))

    def report(
        self, tolerance: float, confidence: float = 0.95, baselines: Iterable[RunFolder] = (), title: str | None = None
    ) -> Report:
        """Return the report of the run on these rows, with other runs to compare it with; of a constant, of its training."""
        from ratewise.report import Report

        known = _known(self.folder, title, data=self.data, confidence=confidence, tolerance=tolerance)
        if known["ledger"] is None:
            known["notes"] = (_NO_LEDGER,)
        others = {name: other.model() for name, other in _named(self.folder, baselines).items()}
        return Report.from_model(self.model, self.frame, self.labels, self.groups or None, others, **known)

    def keep(self, certificate: Certificate, report: Report) -> None:
        """Keep an evaluation in the run's folder; where nothing can be written, warn and go on."""
        found = {"certificate": certificate.to_dict(), "report": json.loads(report.to_json())}
        try:
            self.folder.keep_evaluation({"format": "ratewise-evaluation", **found})
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            current().warn(f"this evaluation is not kept in {str(self.folder.path)!r}: {reason}")

    def majority(self) -> Any:
        """Return the most common class of these rows, for each of them."""
        codes = code_labels(self.labels, self.domain)
        counts = np.bincount(codes[codes >= 0], minlength=len(self.domain.classes))
        return np.full(len(codes), self.domain.classes[int(counts.argmax())], dtype=object)

    def unconstrained(self) -> Any:
        """Return predictions without constraints and without privacy, of models that were trained on other rows."""
        from ratewise.estimators.classifier import RateConstrainedClassifier

        features = self.frame[list(self.model.feature_names_in_)]
        labels, fold = np.asarray(self.labels, dtype=object), np.arange(len(features)) % _FOLDS
        predicted = np.empty(len(features), dtype=object)
        for place in range(_FOLDS):
            own = fold == place
            reference = RateConstrainedClassifier(
                epsilon=None,
                classes=list(self.domain.classes),
                config=reference_config(int((~own).sum())),
                random_state=0,
            )
            predicted[own] = reference.fit(features[~own], labels[~own]).predict(features[own])
        return predicted


def reference_config(rows: int) -> TrainingConfig:
    """Return settings for models without privacy, which need a prior where rows are few."""
    return TrainingConfig(spread=min(4.0, rows / 5000.0), l2=1e-3)


def _named(folder: RunFolder, others: Iterable[RunFolder]) -> dict[str, RunFolder]:
    """Return runs by the names of their folders; where two would be the same, by their whole paths."""
    found = list(others)
    names = [folder.path.name, *(other.path.name for other in found)]
    return {str(o.path) if names.count(o.path.name) > 1 else o.path.name: o for o in found}


def _known(folder: RunFolder, title: str | None, data: str | None = None, **more: Any) -> dict[str, Any]:
    """Return what a report says about a run besides its measurements.

    The ledger is None if the run shares one that is not here: the statement outlives it.
    """
    place = folder.description["ledger"]
    return {
        "name": folder.path.name,
        "title": title or default_title(folder),
        "data": os.path.basename(data or folder.description["data"]),
        "target": folder.settings.label,
        "ledger": folder.ledger() if place is None or (folder.path / place).exists() else None,
        **more,
    }


# ---------------------------------------------------------------------------------------- comparing


@click.command()
@click.argument("runs", type=PLACE, nargs=-1, required=True, metavar="RUN...")
@click.option("--data", type=PLACE, default=None, help="Judge all of them on this table.")
@file_options
def compare(runs: tuple[str, ...], data: str | None, **values: Any) -> None:
    """Show runs side by side; on --data, or as each was last evaluated, or on its training rows.

    With --data, a model without constraints and privacy and the most common class are shown as references.
    """
    console = current()
    folders = [RunFolder.open(path) for path in runs]
    rows = [compared(folder, path, data, values) for folder, path in zip(folders, runs, strict=True)]
    if data is not None:
        rows += references(folders[0], data, values)
        console.note(f"note: {NOT_COVERED}")
    console.result(side_by_side(rows), runs=rows)


def compared(folder: RunFolder, name: str, data: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of a comparison: on `data`, as last evaluated, or on the training rows."""
    settings, found = folder.settings, None
    if folder.finished and data is not None:
        table = LabelledTable(folder, data, options)
        found = table.judge(table.predicted, settings.tolerance)
    elif folder.evaluations:
        found = Certificate.from_dict(folder.last_evaluation()["certificate"])
    elif folder.finished:
        found = folder.certificate()
    return _row(
        name,
        folder.description["status"],
        found,
        asked_epsilon=settings.epsilon,
        constraints=list(settings.constraints),
        epsilon=folder.statement().epsilon if folder.finished else None,
        constant=constant_words(folder.model()) if folder.finished else "",
    )


def references(folder: RunFolder, data: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the most common class and of a model without constraints, judged as the run is."""
    if not folder.finished:
        return []
    table, found = LabelledTable(folder, data, options), []
    models = {"unconstrained, no privacy": table.unconstrained, "most common class": table.majority}
    for name, predict in models.items():
        with contextlib.suppress(RatewiseError):  # too few rows for such a model
            found.append(_row(name, "reference", table.judge(predict(), folder.settings.tolerance)))
    return found


def _row(name: str, status: str, certificate: Certificate | None, **known: Any) -> dict[str, Any]:
    """Return a row of a comparison, with what it shows of a certificate."""
    blank: dict[str, Any] = {"asked_epsilon": None, "constraints": [], "epsilon": None, "constant": ""}
    row: dict[str, Any] = {"run": name, "status": status, **blank, **known}
    if certificate is None:
        names = ("summary", "verdict", "rows", "largest_gap", "gap_interval", "accuracy", "majority_accuracy")
        return {**row, **dict.fromkeys(names), "undecided": []}
    gaps = [row for row in certificate if row.kind == "gap" and row.resolved]
    largest = max(gaps, key=lambda row: row.estimate, default=None)
    undecided = [item for item in certificate if item.remedy]
    return {
        **row,
        "summary": certificate.summary,
        "verdict": certificate.verdict if len(certificate) else None,
        "rows": certificate.data,
        "largest_gap": None if largest is None else largest.estimate,
        "gap_interval": None if largest is None else list(largest.interval),
        "accuracy": None if certificate.accuracy is None else certificate.accuracy.value,
        "majority_accuracy": certificate.to_dict()["majority_accuracy"],
        "undecided": [{n: getattr(item, n) for n in ("name", "verdict", "remedy")} for item in undecided],
    }


def side_by_side(rows: list[dict[str, Any]]) -> str:
    """Return runs as text: a summary line each, a table, and the remedies of what is not held."""
    header = ["run", "epsilon", "accuracy", "largest gap", "verdict", "rows", "constraints"]
    lines, table, remedies = [], [], []
    for row in rows:
        epsilon = {"reference": "-", "training": "(not finished)"}.get(row["status"])
        epsilon = epsilon or ("none" if row["asked_epsilon"] is None else f"{row['epsilon']:.4g}")
        numbers = ["-" if row[name] is None else short(row[name]) for name in ("accuracy", "largest_gap")]
        words = [row["verdict"] or "-", row["rows"] or "-", "; ".join(row["constraints"]) or "none"]
        table.append([str(row["run"]), epsilon, *numbers, *words])
        if row["status"] != "reference":
            lines += [f"{row['run']}: {row['summary']}"] if row["summary"] else []
            remedies += [f"{row['run']}: {row['constant']}"] if row["constant"] else []
            remedies += [f"{row['run']}: {i['verdict']}: {i['name']}: {i['remedy']}" for i in row["undecided"]]
    return "\n".join([*lines, *([""] if lines else []), text_table(header, table), *remedies])


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE)
@click.option("--out", type=PLACE, default=None, metavar="FILE.csv", help="Standard output if left out.")
@click.option("--proba", is_flag=True, help="Also the probability of each class.")
@file_options
@force_option
def predict(run_folder: str, data: str, out: str | None, proba: bool, force: bool, **values: Any) -> None:
    """Predict the label of each row of the table DATA, in its order.

    Values that the model does not know count as "other", and every column may have missing cells.
    """
    import pandas as pd

    console = current()
    folder = RunFolder.open(run_folder)
    model = folder.model()
    if out is not None:
        refuse_file(out, force)
    frame = read_table(data, reading_of(values, folder.description["reading"], data)).frame
    found = pd.DataFrame({"prediction": model.predict(frame)})
    if constant := constant_words(model):
        console.warn(constant)
    if proba:
        for name, column in zip(model.classes_, model.predict_proba(frame).T, strict=True):
            found[f"probability of {name}"] = column
    if out is None:
        columns = {str(name): found[name].tolist() for name in found}
        console.result(found.to_csv(index=False).removesuffix("\n"), rows=len(found), **columns)
        return
    write_whole(out, found.to_csv(index=False).encode("utf-8"))
    console.done(f"{len(found)} predictions are in {out}", out=out, rows=len(found))


@click.command()
@click.argument("run_folder", type=PLACE, metavar="RUN")
@click.argument("data", type=PLACE, required=False)
@click.option("--out", type=PLACE, default=None, metavar="FILE.html", help="RUN/report.html if left out.")
@click.option("--card", type=PLACE, default=None, metavar="FILE.md", help="Also a model card.")
@click.option("--baseline", type=PLACE, multiple=True, metavar="RUN", help="Run to compare with; needs DATA.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of each interval.")
@click.option("--title", default=None, help="Heading of the page.")
@file_options
@force_option
def report(run_folder: str, data: str | None, confidence: float, title: str | None, **values: Any) -> None:
    """Write one page about a run: measured on the table DATA, as last evaluated, or from its released values.

    The run's own report.html is replaced.
    """
    from ratewise.report import Report

    folder = RunFolder.open(run_folder)
    out, card, baseline = values["out"], values["card"], values["baseline"]
    page = out or str(folder.path / "report.html")
    for place in (out, card):
        if place is not None:
            refuse_file(place, values["force"])
    if baseline and data is None:
        raise click.UsageError("--baseline needs DATA to measure the runs on")
    model = folder.model()
    if data is not None:
        rows, tolerance = LabelledTable(folder, data, values), folder.settings.tolerance
        certificate = rows.judge(rows.predicted, tolerance, confidence)
        found = rows.report(tolerance, confidence, [RunFolder.open(path) for path in baseline], title)
        rows.keep(certificate, found)
    elif folder.evaluations:
        found = Report.from_json(json.dumps(folder.last_evaluation()["report"]))
        found = found if title is None else Report(replace(found.content, title=title))
    else:
        found = released_report(folder, model, title)
    if constant := constant_words(model):
        current().warn(constant)
    found.to_html(page)
    if card is not None:
        found.model_card(card)
    current().done(f"the page is {page}", out=page, card=card)


def default_title(folder: RunFolder) -> str:
    """Return the heading of a report: what is predicted, who is compared, and the file of the training rows."""
    settings, schema = folder.settings, folder.schema
    label, *groups = (name if schema is None else schema.title_of(name) for name in (settings.label, *settings.groups))
    compared = f", compared by {' and '.join(groups)}," if settings.constraints and groups else ""
    file = os.path.basename(folder.description["data"])
    return settings.title or f"Prediction of {label}{compared} from {file}"


def released_report(
    folder: RunFolder, model: RateConstrainedClassifier, title: str | None = None, notes: Iterable[str] = ()
) -> Report:
    """Return the report of what the training released; all of it is covered by the guarantee."""
    from ratewise.report import Report

    return Report.from_training(model, **_known(folder, title, notes=notes))
