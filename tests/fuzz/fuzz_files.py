"""What is read from files that anybody may have changed: nothing in them is run, and damage is seen."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from fuzz_commands import invoke, world
from fuzz_inputs import altered, damaged_bytes, damaged_text, plain, scratch
from hypothesis import strategies as st

from ratewise._files import state_from_bytes
from ratewise.accounting import Budget, GaussianEvent, Ledger, PrivacyStatement
from ratewise.cli.options import read_schema, to_toml
from ratewise.data.schema import Schema
from ratewise.estimators.persistence import from_bytes, to_bytes
from ratewise.exceptions import RatewiseError
from ratewise.report import Report
from ratewise.runs import RunFolder, Settings
from ratewise.runs.run import read_checkpoint


def fuzz_ledger_file(draw):
    """A written book with some characters changed, cut or added is read as it was, or refused."""
    ledger = Ledger(cap=Budget(1.0, 1e-5))
    ledger.admit(GaussianEvent(30.0), purpose="means", data="rows").release()
    damaged = damaged_text(draw, ledger.to_json())
    if draw(st.booleans()):
        found = Ledger.from_json(damaged)
    else:
        path = scratch() / "book.json"
        path.write_text(damaged)
        found = Ledger.open(path)
    assert found.total(1e-5) >= ledger.total(1e-5) * (1 - 1e-9)


@cache
def archives():
    """Return a model and a checkpoint as this version writes them."""
    return (world() / "run" / "model.ratewise").read_bytes(), (world() / "stopped" / "checkpoint.ratewise").read_bytes()


def resealed(draw, content):
    """Return a file whose header was edited by somebody who knows how checksums are made."""
    _, header, numbers = content.split(b"\n", 2)
    rest = b"\n".join([json.dumps(altered(draw, json.loads(header)), separators=(",", ":")).encode(), numbers])
    return b"\n".join([hashlib.sha256(rest).hexdigest().encode(), rest])


def fuzz_model_file(draw):
    """A model that is read is sound and predicts; any other file is rejected."""
    content = archives()[0]
    spoilt = resealed(draw, content) if draw(st.booleans()) else damaged_bytes(draw, content)
    model = from_bytes(spoilt, Path("model.ratewise"))
    found = model.predict_proba({name: ["1"] for name in model.feature_names_in_})
    assert np.all(np.isfinite(found))
    assert to_bytes(from_bytes(to_bytes(model), Path("again"))) == to_bytes(model)


def fuzz_checkpoint_file(draw):
    """A checkpoint of a run; it goes on, or is refused."""
    content = archives()[1]
    spoilt = resealed(draw, content) if draw(st.booleans()) else damaged_bytes(draw, content)
    state_from_bytes(content, "checkpoint", "as written")
    path = scratch() / "checkpoint.ratewise"
    path.write_bytes(spoilt)
    read_checkpoint(path)


def fuzz_resumed_run(draw):
    """A stopped run whose files were changed goes on, or is refused; the book never shrinks."""
    folder = scratch() / "resumed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world() / "stopped", folder)
    before = Ledger.open(folder / "ledger.json").total(1e-5)
    name = draw(st.sampled_from(sorted(path.name for path in folder.iterdir() if path.is_file())))
    content = (folder / name).read_bytes()
    spoilt = resealed(draw, content) if name.endswith("npz") else damaged_bytes(draw, content)
    (folder / name).write_bytes(spoilt)
    invoke(["resume", str(folder), "--data", str(world() / "people.csv")])
    try:
        assert Ledger.open(folder / "ledger.json").total(1e-5) >= before * (1 - 1e-9)
    except RatewiseError:
        assert name == "ledger.json"


@cache
def schema_fields():
    """Return the description of the schema of the small world."""
    return read_schema(str(world() / "schema.toml")).to_dict()


def fuzz_schema_file(draw):
    """Schemas as plain data and as files, TOML or JSON, changed anywhere."""
    fields = altered(draw, schema_fields())
    if draw(st.booleans()):
        schema = Schema.from_dict(fields)
        assert Schema.from_dict(schema.to_dict()) == schema
        return
    ending = draw(st.sampled_from(["json", "toml"]))
    path = scratch() / f"schema.{ending}"
    text = json.dumps(fields) if ending == "json" else to_toml(schema_fields())
    path.write_text(damaged_text(draw, text))
    assert read_schema(str(path)).classes


def fuzz_settings(draw):
    """Settings of a run as plain data."""
    fields = altered(draw, Settings(label="rich", groups=("sex",)).to_dict())
    settings = Settings.from_dict(fields)
    assert Settings.from_dict(settings.to_dict()) == settings
    assert isinstance(settings.declared, list)


@cache
def documents():
    """Return a report and a statement as this version writes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = Report.from_predictions([0, 1, 0, 1], [0, 1, 1, 1], {"g": ["a", "b", "a", "b"]})
    return json.loads(report.to_json()), json.loads((world() / "run" / "statement.json").read_text())


def fuzz_report_file(draw):
    """A report that is read can be shown."""
    fields = altered(draw, documents()[0])
    text = json.dumps(fields) if draw(st.booleans()) else damaged_text(draw, json.dumps(fields))
    report = Report.from_json(text)
    assert report.to_html()
    assert report.model_card()


def fuzz_statement_file(draw):
    """A statement that is read is whole."""
    text = json.dumps(altered(draw, documents()[1]))
    found = PrivacyStatement.from_json(damaged_text(draw, text) if draw(st.booleans()) else text)
    assert str(found)


def fuzz_run_folder(draw):
    """A finished run whose description was changed is refused or opened."""
    folder = scratch() / "opened"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world() / "run", folder)
    name = draw(st.sampled_from(sorted(path.name for path in folder.iterdir() if path.is_file())))
    path = folder / name
    if name.endswith(".json") and draw(st.booleans()):
        path.write_text(json.dumps(altered(draw, json.loads(path.read_text()))))
    else:
        path.write_bytes(
            draw(st.one_of(st.just(damaged_bytes(draw, path.read_bytes())), plain.map(repr).map(str.encode)))
        )
    found = RunFolder.open(folder)
    assert found.finished in (True, False)
    for part in (found.settings, found.schema, found.ledger, found.model, found.statement):
        if callable(part):
            part()
    found.certificate()
