"""Run folders from Python: what is in them at every moment, and going on after a stop."""

import dataclasses
import json
import os
import stat
import warnings

import numpy as np
import pytest

from ratewise import Ledger
from ratewise.accounting import accountant
from ratewise.accounting.book import Release
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, LedgerError, RatewiseWarning
from ratewise.model_files import ModelFileError, TableModel
from ratewise.runs import RunFolder, Settings, Watch, facts_of, plan_run, row_count, schema_for, train_run
from ratewise.runs.job import bounds_of
from ratewise.runs.plain import plan_from
from ratewise.runs.resumable import booked_steps, read_checkpoint
from ratewise.schema import Category, Number, Schema
from ratewise.table_model import TableClassifier

SCHEMA = Schema(
    {"job": Category(["sales", "clerk"]), "age": Number(17, 90)},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)
SETTINGS = Settings(label="rich", groups=("sex",), constraints=("demographic_parity(sex) <= 0.1",), steps=30)


def people(rows=2000, seed=0):
    rng = np.random.default_rng(seed)
    age, job = rng.uniform(17, 90, rows), rng.choice(["sales", "clerk"], rows)
    sex = rng.choice(["F", "M"], rows)
    rich = (age - 50) / 10 + (job == "clerk") + (sex == "M") + rng.logistic(size=rows) > 0.5
    return {"age": age, "job": job, "sex": sex, "rich": np.where(rich, "yes", "no")}


def a_folder(path, settings=SETTINGS, schema=SCHEMA, rows=2000, **options):
    plan = plan_run(facts_of(schema, settings, rows), settings)
    return RunFolder.create(
        path, settings=settings, schema=schema, plan=plan, data="people.csv", command=["ratewise"], **options
    )


class Stop(Exception):  # noqa: N818 - reads as what happens
    pass


def stop_after(step):
    def on_step(record):
        if record.step == step:
            raise Stop

    return Watch(on_step=on_step)


def test_a_run_leaves_a_whole_folder(tmp_path):
    folder = a_folder(tmp_path / "run")
    names = {p.name for p in folder.path.iterdir() if not p.name.startswith(".")}
    assert names == {"run.json", "schema.json", "plan.json", "ledger.json"}
    assert Ledger.open(folder.path / "ledger.json").records == ()
    result = train_run(folder, people(), seed=1)
    assert result.steps == 30
    names = {p.name for p in folder.path.iterdir() if not p.name.startswith(".")}
    assert names == {
        *("run.json", "schema.json", "plan.json", "ledger.json", "model.npz", "history.npz"),
        *("statement.json", "statement.txt", "doubts.json"),
    }
    assert not list(tmp_path.glob(".*"))
    again = RunFolder.open(folder.path)
    assert again.finished
    assert again.schema == SCHEMA
    assert again.settings == SETTINGS
    assert again.plan == folder.plan
    assert 0.9 < again.statement().epsilon <= 1.0
    assert again.statement() == result.statement
    assert again.history()["step"].tolist() == list(range(1, 31))
    assert again.ledger().total_epsilon == again.statement().epsilon
    frame = people(4000, seed=5)
    assert np.mean(again.model().predict(frame) == frame["rich"]) > 0.75
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o777 & ~current_umask()


@pytest.mark.parametrize(("wide", "curves"), [(False, None), (True, None), (False, False)])
def test_features_are_prepared_as_by_the_table_classifier(tmp_path, wide, curves):
    """By bounds and kinds of the schema; without noise both find the same, to the last bit."""
    jobs = [f"job {number}" for number in range(300 if wide else 2)]
    columns = {"job": Category(jobs), "age": Number(17, 90)}
    schema = Schema(columns, label="rich", classes=["no", "yes"], groups=SCHEMA.groups)
    settings = Settings(label="rich", epsilon=None, steps=2, curves=curves)
    table = people()
    table["job"] = np.random.default_rng(1).choice(jobs, 2000)
    folder = a_folder(tmp_path / "run", settings, schema)
    train_run(folder, table, seed=0)
    found = TableModel.load(folder.path / "model.npz").model.scaling
    asked = {"curves": "auto" if curves is None else curves}
    expected = TableClassifier(schema, epsilon=None, steps=2, **asked).fit(table).classifier_._model.scaling
    bent = None if wide or curves is False else [2]
    assert [None if s.curved is None else s.curved.tolist() for s in (found, expected)] == [bent, bent]
    assert found.origin == expected.origin == ("zero" if wide else "lower")
    for name in ("lower", "upper", "deviation", *(() if wide else ("mean",))):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_run_that_was_begun_without_curves_goes_on_without(tmp_path, monkeypatch):
    folder = a_folder(tmp_path / "run")
    with monkeypatch.context() as before:
        before.setattr("ratewise.runs.job._curved", lambda *_: [])
        with pytest.raises(Stop):
            train_run(folder, people(), seed=0, watch=stop_after(7), every=1)
    train_run(folder, people())
    assert TableModel.load(folder.path / "model.npz").model.scaling.curved is None


def test_a_run_goes_on_within_the_bounds_that_it_found(tmp_path):
    folder = a_folder(tmp_path / "run", dataclasses.replace(SETTINGS, tails=1.0))
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(7), every=1)
    saved = read_checkpoint(folder.checkpoint_path)["arrays"]
    train_run(folder, people())
    found = TableModel.load(folder.path / "model.npz").model.scaling
    assert np.any(found.upper < 1.0)
    for name in ("lower", "upper", "mean", "deviation"):
        np.testing.assert_array_equal(getattr(found, name), saved[f"scaling.{name}"])


@pytest.mark.parametrize("step", [1, 7, 20, 29])
def test_a_stopped_run_goes_on_and_never_spends_more(tmp_path, step):
    folder = a_folder(tmp_path / "run")
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(step), every=10)
    stopped = RunFolder.open(folder.path)
    assert not stopped.finished
    with pytest.raises(InvalidInput, match="not finished"):
        stopped.model()
    saved = read_checkpoint(stopped.checkpoint_path)
    assert saved["fields"]["steps_done"] == step
    assert booked_steps(stopped.ledger(), stopped.purpose) == step
    seen = []
    result = train_run(stopped, people(), watch=Watch(on_step=lambda record: seen.append(record.step)))
    assert seen == list(range(step + 1, 31))
    assert result.steps == 30
    assert result.statement.epsilon <= 1.0
    assert booked_steps(stopped.ledger(), stopped.purpose) == 30
    history = stopped.history()
    assert history["step"].tolist() == list(range(1, 31))
    assert history["values"].shape == (30, 2)
    assert np.isfinite(history["gradient_norm"]).all()
    # the same total as a run that was never stopped
    events = (*folder.plan.events,)
    assert result.statement.epsilon == pytest.approx(accountant.epsilon(events, 1e-5), rel=1e-6)
    with pytest.raises(InvalidInput, match="finished"):
        train_run(RunFolder.open(folder.path), people())


def test_the_second_part_starts_from_the_released_state(tmp_path):
    folder = a_folder(tmp_path / "run")
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(15))
    saved = read_checkpoint(folder.checkpoint_path)
    started = []

    def on_start(plan, compiled, ledger, steps_done):
        started.append((steps_done, read_checkpoint(folder.checkpoint_path)))
        raise Stop

    with pytest.raises(Stop):
        train_run(folder, people(), watch=Watch(on_start=on_start))
    (steps_done, again), *_ = started
    assert steps_done == 15
    assert again["fields"] == saved["fields"]
    for name, array in saved["arrays"].items():
        np.testing.assert_array_equal(again["arrays"][name], array)


def test_noise_is_fresh_when_a_run_goes_on(tmp_path):
    """Two continuations of one checkpoint release different values."""
    import shutil

    folder = a_folder(tmp_path / "run")
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(10))
    shutil.copytree(folder.path, tmp_path / "copy")
    first, second = (train_run(RunFolder.open(tmp_path / n), people()).folder for n in ("run", "copy"))
    a, b = first.history()["gradient_norm"], second.history()["gradient_norm"]
    np.testing.assert_array_equal(a[:10], b[:10])
    assert not np.any(a[10:] == b[10:])


@pytest.mark.parametrize("shared", [False, True])
def test_steps_lost_in_a_crash_are_not_paid_twice(tmp_path, shared):
    """A killed process leaves 64 reserved steps and an old checkpoint; the run ends earlier instead.

    In a book without a cap nothing else would hold it back.
    """
    settings = Settings(label="rich", groups=("sex",), steps=200)
    book = None
    if shared:
        book = tmp_path / "book.json"
        Ledger.create(book)
    folder = a_folder(tmp_path / "run", settings, ledger=book)
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(40), every=10)
    ledger = folder.ledger()
    phase = ledger.phase(folder.plan.step_event, planned_steps=100, purpose=folder.purpose, data="x")
    phase.__enter__()  # and never left, as after kill -9
    phase.step()
    counted = booked_steps(folder.ledger(), folder.purpose)
    assert counted == 40 + 64
    del ledger, phase
    result = train_run(RunFolder.open(folder.path), people())
    assert result.steps == 40 + 200 - counted
    assert result.statement.epsilon <= 1.0
    assert booked_steps(folder.ledger(), folder.purpose) == 200


def test_one_process_at_a_time_and_leftovers_are_swept(tmp_path):
    folder = a_folder(tmp_path / "run")
    leftover = folder.path / ".checkpoint.npz.abc123.tmp"
    leftover.write_bytes(b"half a check")

    def on_step(record):
        assert not leftover.exists()
        with pytest.raises(InvalidInput, match="another process"):
            train_run(RunFolder.open(folder.path), people())
        raise Stop

    with pytest.raises(Stop):
        train_run(folder, people(), watch=Watch(on_step=on_step))
    assert booked_steps(folder.ledger(), folder.purpose) == 1
    assert train_run(folder, people()).steps == 30


def test_nothing_left_of_the_budget_is_said(tmp_path):
    folder = a_folder(tmp_path / "run")
    with folder.ledger().phase(
        folder.plan.step_event, planned_steps=30, purpose=folder.purpose, data="x"
    ) as phase:
        for _ in range(30):
            phase.step()
    with pytest.raises(BudgetExceeded):
        train_run(folder, people())
    assert not RunFolder.open(folder.path).finished


def test_a_shared_book_refuses_before_anything_is_released(tmp_path):
    book = tmp_path / "book.json"
    from ratewise import Budget

    Ledger.create(book, cap=Budget(1.2, 1e-5))
    first = a_folder(tmp_path / "one", ledger=book)
    assert not (first.path / "ledger.json").exists()
    train_run(first, people())
    assert first.description["ledger"] == os.path.join("..", "book.json")
    before = book.read_bytes()
    second = a_folder(tmp_path / "two", ledger=book)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        train_run(second, people())
    assert book.read_bytes() == before


def test_one_seed_for_two_runs_of_a_book_is_refused(tmp_path):
    book = tmp_path / "book.json"
    Ledger.create(book)
    train_run(a_folder(tmp_path / "one", ledger=book), people(), seed=7)
    before = book.read_bytes()
    second = a_folder(tmp_path / "two", ledger=book)
    with pytest.raises(InvalidInput, match="random_state was used for an earlier fit"):
        train_run(second, people(), seed=7)
    assert book.read_bytes() == before
    train_run(second, people(), seed=8)


def test_nothing_is_replaced_without_force_and_books_are_kept(tmp_path):
    folder = a_folder(tmp_path / "run")
    train_run(folder, people())
    model = (folder.path / "model.npz").read_bytes()
    with pytest.raises(InvalidInput, match="exists already"):
        a_folder(tmp_path / "run")
    assert (folder.path / "model.npz").read_bytes() == model
    book = (folder.path / "ledger.json").read_bytes()
    a_folder(tmp_path / "run", force=True)
    assert not (folder.path / "model.npz").exists()
    assert (folder.path / "earlier" / "ledger-1.json").read_bytes() == book
    a_folder(tmp_path / "run", force=True)
    assert sorted(p.name for p in (folder.path / "earlier").iterdir()) == ["ledger-1.json", "ledger-2.json"]
    assert (folder.path / "earlier" / "ledger-1.json").read_bytes() == book
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="replaces nothing else"):
        a_folder(tmp_path / "mine", force=True)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_force_keeps_every_book_in_its_order_also_those_of_private_evaluations(tmp_path):
    place = tmp_path / "run"
    a_folder(place)
    for number in range(1, 13):
        (place / "evaluations.json").write_text(f"what was spent on test rows: {number}")
        a_folder(place, force=True)
    assert not (place / "evaluations.json").exists()
    for number in range(1, 13):
        kept = (place / "earlier" / f"evaluations-{number}.json").read_text()
        assert kept == f"what was spent on test rows: {number}"
    assert len(list((place / "earlier").glob("ledger-*.json"))) == 12


def test_a_failure_while_making_the_folder_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ratewise.runs.folder.os.rename", full)
    with pytest.raises(OSError, match="space"):
        a_folder(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_foreign_and_damaged_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no run folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"run\.json"):
        RunFolder.open(tmp_path)
    folder = a_folder(tmp_path / "run")
    described = json.loads((folder.path / "run.json").read_text())
    for change, words in (
        ({"format": "x"}, "another kind"),
        ({"version": 9}, "version 9"),
        ({"status": "x"}, "wrong fields"),
        ({"more": 1}, "wrong fields"),
        ({"settings": []}, "wrong fields"),
        ({"data": 3}, "wrong fields"),
        ({"reading": {}}, "wrong fields"),
    ):
        (folder.path / "run.json").write_text(json.dumps({**described, **change}))
        with pytest.raises(InvalidInput, match=words):
            RunFolder.open(folder.path)
    (folder.path / "run.json").write_text("{")
    with pytest.raises(InvalidInput, match="no JSON"):
        RunFolder.open(folder.path)
    (folder.path / "run.json").write_text(json.dumps(described))
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(3))
    whole = folder.checkpoint_path.read_bytes()
    folder.checkpoint_path.write_bytes(whole[:-200])
    with pytest.raises(ModelFileError):
        train_run(folder, people())
    folder.checkpoint_path.write_bytes(whole)
    (folder.path / "ledger.json").write_text("{}")
    with pytest.raises(LedgerError):
        train_run(folder, people())


def test_other_rows_are_refused(tmp_path):
    folder = a_folder(tmp_path / "run")
    with pytest.raises(InvalidInput, match="planned for 2000"):
        train_run(folder, people(1999))
    assert folder.ledger().records == ()


def test_a_run_without_curves_does_not_bend(tmp_path):
    settings = Settings(label="rich", steps=2, curves=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = a_folder(tmp_path / "run", settings, rows=300)
        train_run(folder, people(300), seed=0)
    assert folder.plan.preparation.bends is None
    assert TableModel.load(folder.path / "model.npz").model.n_features == SCHEMA.n_features


def test_a_run_that_bends_goes_on_where_it_bent(tmp_path):
    settings = Settings(label="rich", steps=12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = a_folder(tmp_path / "run", settings, rows=300)
        with pytest.raises(Stop):
            train_run(folder, people(300), seed=0, watch=stop_after(7), every=1)
        before = read_checkpoint(folder.checkpoint_path)["arrays"]
        train_run(folder, people(300))
    after = TableModel.load(folder.path / "model.npz").model.scaling
    for name in ("bend_lower", "bend_upper", "mean", "deviation"):
        np.testing.assert_array_equal(getattr(after, name), before[f"scaling.{name}"])


@pytest.mark.parametrize(("rows", "curved"), [(300, False), (2000, True)])
def test_a_run_bends_as_its_plan_does(tmp_path, rows, curved):
    settings = Settings(label="rich", steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = a_folder(tmp_path / "run", settings, rows=rows)
        train_run(folder, people(rows), seed=0)
    model = TableModel.load(folder.path / "model.npz").model
    assert model.scaling.curved is not None
    assert (folder.plan.preparation.bends is None) == curved == (model.scaling.bend_lower is None)
    assert model.n_features == SCHEMA.n_features + 1
    assert facts_of(SCHEMA, settings, rows).n_curves == int(curved)


@pytest.mark.parametrize("curves", ["auto", [0], 2])
def test_settings_know_curves_or_none(curves):
    with pytest.raises(InvalidInput, match="curves"):
        Settings(label="rich", curves=curves)


@pytest.mark.parametrize("tails", [0, -1.0, "none", True, float("inf")])
def test_settings_know_tails_auto_or_none(tails):
    with pytest.raises((InvalidInput, InvalidType), match="tails"):
        Settings(label="rich", tails=tails)


def test_settings_from_before_tails_were_cut_off_keep_them():
    written = {name: value for name, value in SETTINGS.to_dict().items() if name != "tails"}
    assert Settings.from_dict(written).tails is None
    assert Settings.from_dict(SETTINGS.to_dict()).tails == "auto"


def test_settings_from_before_curves_have_none():
    written = {name: value for name, value in SETTINGS.to_dict().items() if name != "curves"}
    assert Settings.from_dict(written).curves is False
    assert Settings.from_dict(SETTINGS.to_dict()).curves is None


def test_settings_are_checked_and_read_back():
    assert Settings.from_dict(SETTINGS.to_dict()) == SETTINGS
    assert Settings.from_dict(json.loads(json.dumps(SETTINGS.to_dict()))) == SETTINGS
    with pytest.raises(InvalidInput, match="unknown settings: speed"):
        Settings.from_dict({"label": "y", "speed": 1})
    with pytest.raises(InvalidInput, match="character 4"):
        Settings(label="y", constraints=("fnr) <= 1",))
    with pytest.raises(InvalidType, match="groups"):
        Settings(label="y", groups="sex")
    with pytest.raises(InvalidInput, match="label"):
        Settings(label="")
    with pytest.raises(InvalidInput, match="a label among them"):
        Settings.from_dict({})
    with pytest.raises(InvalidInput, match="plan"):
        plan_from({"steps": 3})


def test_a_schema_that_does_not_fit_is_refused():
    frame = people(100)
    assert schema_for(frame, SETTINGS, SCHEMA) is SCHEMA
    assert row_count(frame) == 100
    with pytest.raises(InvalidInput, match="label is 'poor'"):
        schema_for(frame, Settings(label="poor"), SCHEMA)
    with pytest.raises(InvalidInput, match="group 'race'"):
        schema_for(frame, Settings(label="rich", groups=("race",)), SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted = schema_for(frame, SETTINGS, None)
    assert not drafted.signed
    assert drafted.leaks


def test_what_was_read_off_the_data_is_in_the_statement(tmp_path):
    frame = people()
    drafted = schema_for(frame, SETTINGS, None)
    result = train_run(a_folder(tmp_path / "run", schema=drafted), frame)
    assert "the values of column 'sex'" in result.statement.leaks
    assert not result.statement.private
    assert train_run(a_folder(tmp_path / "two"), frame).statement.private


def test_bounds_that_nobody_declared_are_found_within_the_budget(tmp_path):
    """Released bounds count in the one epsilon, are in the model, and are not released again after a stop."""
    schema = Schema(
        {"job": Category(["sales", "clerk"]), "age": Number()},
        label="rich",
        classes=["no", "yes"],
        groups={"sex": Category(["F", "M"])},
    )
    rows, settings = 20_000, Settings(label="rich", groups=("sex",), steps=20, delta=1e-5)
    own = bounds_of(schema, settings, rows)
    assert len(own.events) == 1
    plan = plan_run(facts_of(schema, settings, rows), settings, own.events)
    folder = RunFolder.create(
        tmp_path / "run", settings=settings, schema=schema, plan=plan, data="x.csv", command=["ratewise"]
    )
    frame = people(rows)
    with pytest.raises(Stop):
        train_run(folder, frame, watch=stop_after(5))
    found = read_checkpoint(folder.checkpoint_path)["schema"].columns["age"]
    assert 0 <= found.lower < 30
    assert 80 < found.upper <= 128
    before = sum(isinstance(record, Release) for record in folder.ledger().records)
    result = train_run(RunFolder.open(folder.path), frame)
    assert sum(isinstance(record, Release) for record in folder.ledger().records) == before
    assert RunFolder.open(folder.path).model().schema.columns["age"] == found
    assert RunFolder.open(folder.path).schema.columns["age"] == Number()
    assert 0.97 < result.statement.epsilon <= 1.0
    assert not any("age" in said for said in result.statement.public)
    assert result.statement.epsilon == pytest.approx(accountant.epsilon((*own.events, *plan.events), 1e-5))
    assert np.mean(RunFolder.open(folder.path).model().predict(frame) == frame["rich"]) > 0.75


def test_without_privacy_the_statement_says_so(tmp_path):
    settings = Settings(label="rich", groups=("sex",), steps=20, epsilon=None)
    result = train_run(a_folder(tmp_path / "run", settings), people())
    assert result.statement.epsilon == np.inf
    assert "NO PRIVACY" in (tmp_path / "run" / "statement.txt").read_text()


def test_the_customary_delta_is_let_pass_for_many_rows_with_a_warning():
    """As the classifier does it: a table of a million rows trains by the plainest command."""
    with pytest.warns(RatewiseWarning, match="delta is 1e-05, above 1/n = 1e-06 for 1000000 rows"):
        plan_run(facts_of(SCHEMA, SETTINGS, 1_000_000), SETTINGS)
    larger = dataclasses.replace(SETTINGS, delta=2e-5)
    with pytest.raises(InvalidInput, match="use a delta well below 1/n"):
        plan_run(facts_of(SCHEMA, larger, 1_000_000), larger)
