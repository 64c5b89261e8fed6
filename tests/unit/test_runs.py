"""Run folders: whole files, interruption and resume without a second release, and what belongs to a run."""

import contextlib
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from ratewise._files import ModelFileError
from ratewise.accounting import Budget, Ledger
from ratewise.data.schema import Category, Number, Schema
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType
from ratewise.report import Report
from ratewise.runs import RunFolder, Settings, Watch, run, session_for, train_run
from ratewise.runs.folder import sealed
from ratewise.runs.run import read_checkpoint
from ratewise.training import session as session_module
from ratewise.training.certificate import HELD
from ratewise.training.plan import CERTIFICATE, CORRECTION, DISCOVERY, RANGES, STATISTICS, TRAINING

PARITY = ("demographic_parity(sex) <= 0.2",)
STEPS = 30


def people(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(17, 90, rows).round()
    job = rng.choice(["clerk", "sales"], rows)
    rich = age + 20 * (job == "sales") + rng.normal(0, 10, rows) > 60
    return pd.DataFrame(
        {"age": age, "job": job, "sex": rng.choice(["F", "M"], rows), "rich": np.where(rich, "yes", "no")}
    )


FRAME = people()
SCHEMA = Schema(
    {"age": Number(17, 90), "job": Category(["clerk", "sales"])},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)


def settings(**changes):
    given = {"label": "rich", "constraints": PARITY, "epsilon": 4.0, "training": {"steps": STEPS}}
    return Settings(**{**given, **changes})


class Stop(Exception):  # noqa: N818 - reads as what happens
    pass


def stop_after(step):
    def on_step(record):
        if record.step == step:
            raise Stop

    return Watch(on_step=on_step)


def made(path, wanted=None, schema=None, frame=FRAME, **options):
    """Return a new folder with the classifier and session that train it."""
    wanted = wanted or settings()
    ready = session_for(frame, wanted, schema)
    folder = RunFolder.create(
        path, settings=wanted, schema=schema, plan=ready[1].plan, data="people.csv", command=["x"],
        **options,
    )  # fmt: skip
    return folder, ready


def again(path, frame=FRAME, watch=None, **options):
    folder = RunFolder.open(path)
    return train_run(folder, *session_for(frame, folder.settings, folder.schema), watch=watch, **options)


def counted(folder):
    return folder.admission(folder.ledger()).released


def finished(path, **options):
    folder, ready = made(path, **options)
    return train_run(folder, *ready)


class TestWholeRuns:
    def test_a_run_leaves_a_whole_folder(self, tmp_path):
        result = finished(tmp_path / "run")
        names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
        assert names == {
            *("run.json", "plan.json", "ledger.json", "model.ratewise", "certificate.json"),
            *("statement.json", "statement.txt"),
        }
        folder = RunFolder.open(tmp_path / "run")
        assert folder.finished
        assert folder.statement().epsilon <= 4.0
        assert folder.certificate().to_dict() == result.certificate.to_dict()
        assert folder.model().constraints_.domain.columns == {"sex": ("F", "M")}
        assert counted(folder) == {
            DISCOVERY: 1,
            RANGES: 1,
            STATISTICS: 1,
            TRAINING: STEPS,
            CORRECTION: 1,
            CERTIFICATE: 1,
        }
        assert not list((tmp_path / "run").glob(".*.tmp"))
        planned = json.loads((tmp_path / "run" / "plan.json").read_text())
        assert list(planned["releases"]) == [DISCOVERY, RANGES, STATISTICS, TRAINING, CORRECTION, CERTIFICATE]

    def test_a_schema_replaces_releases(self, tmp_path):
        result = finished(tmp_path / "run", schema=SCHEMA)
        assert counted(result.folder).keys() == {STATISTICS, TRAINING, CORRECTION, CERTIFICATE}
        assert RunFolder.open(tmp_path / "run").schema == SCHEMA

    def test_without_privacy_and_without_constraints(self, tmp_path):
        result = finished(tmp_path / "run", wanted=settings(epsilon=None, constraints=()))
        assert result.statement.epsilon == float("inf")
        assert result.certificate is None
        assert RunFolder.open(tmp_path / "run").certificate() is None

    def test_ids_are_the_unit_of_privacy(self, tmp_path):
        frame = FRAME.assign(person=np.arange(len(FRAME)) // 3)
        result = finished(tmp_path / "run", wanted=settings(privacy_id="person"), frame=frame)
        assert result.statement.unit.kind == "id"
        assert result.statement.unit.column == "person"
        assert result.statement.n_units == 300
        assert "person" not in RunFolder.open(tmp_path / "run").model().feature_names_in_

    def test_what_was_read_off_the_data_is_in_the_statement(self, tmp_path):
        result = finished(tmp_path / "run", outside=["how the file is written"])
        assert RunFolder.open(tmp_path / "run").statement().outside == ("how the file is written",)
        assert "how the file is written" in str(result.statement)

    def test_wrong_bounds_are_reported_from_released_counts(self, tmp_path):
        wrong = SCHEMA.replace(columns={"age": Number(1000, 2000), "job": Category(["clerk", "sales"])})
        result = finished(tmp_path / "wrong", schema=wrong)
        (said,) = result.messages
        assert "of column 'age' lie at one end of the declared bounds 1000 to 2000" in said
        assert finished(tmp_path / "right", schema=SCHEMA).messages == ()

    def test_one_class_gives_a_constant_model_and_no_error(self, tmp_path):
        result = finished(tmp_path / "run", frame=FRAME.assign(rich="yes"))
        assert "fewer than two classes" in result.messages[0]
        assert "cannot be judged" in result.summary
        assert result.folder.finished
        model = result.folder.model()
        for report in (Report.from_training(model), Report.from_model(model, FRAME, "rich", "sex")):
            assert report.headline == "The model predicts yes for everyone: training found fewer than two classes"
            assert report.content.state == "cannot tell"
            assert "demographic_parity(sex) &lt;= " in report.to_html()
            assert "not judged" in report.model_card()


class TestResume:
    @pytest.mark.parametrize("step", [1, 7, STEPS])
    def test_a_stopped_run_goes_on_and_never_spends_more(self, tmp_path, step):
        folder, ready = made(tmp_path / "run")
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(step))
        folder = RunFolder.open(tmp_path / "run")
        assert not folder.finished
        assert read_checkpoint(folder.checkpoint_path)["loop"]["done"] == step
        assert counted(folder)[TRAINING] == step
        before = folder.ledger().total()
        result = again(tmp_path / "run")
        assert result.steps == STEPS
        assert result.messages == ()
        assert counted(folder)[TRAINING] == STEPS
        assert folder.ledger().total() == before <= 4.0
        assert not folder.checkpoint_path.exists()
        assert result.folder.model().history_["step"].tolist() == list(range(1, STEPS + 1))

    def test_nothing_is_released_twice(self, tmp_path, monkeypatch):
        folder, ready = made(tmp_path / "run")
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(5))
        saved = read_checkpoint(folder.checkpoint_path)
        names = []
        admit = session_module.Admission.release
        monkeypatch.setattr(
            session_module.Admission, "release", lambda self, key=None: (names.append(key), admit(self, key))
        )

        def never(*_, **__):
            raise AssertionError("a release was made again")

        for name in ("release_values", "release_grids"):
            monkeypatch.setattr(session_module, name, never)
        result = again(tmp_path / "run")
        assert names == [CORRECTION, CERTIFICATE]
        assert result.folder.model().history_["gradient_norm"][:5].tolist() == (
            saved["history"]["gradient_norm"].tolist()
        )
        grids = {grid.name: grid for grid in result.folder.model().model_.grids}
        assert grids == saved["released"][RANGES]

    def test_noise_is_fresh_when_a_run_goes_on(self, tmp_path):
        wanted = settings()
        folder, ready = made(tmp_path / "run", wanted)
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(3))
        shutil.copytree(tmp_path / "run", tmp_path / "twin")
        first, second = again(tmp_path / "run"), again(tmp_path / "twin")
        norms = [result.folder.model().history_["gradient_norm"] for result in (first, second)]
        np.testing.assert_array_equal(norms[0][:3], norms[1][:3])
        assert not np.any(norms[0][3:] == norms[1][3:])

    def test_steps_lost_in_a_crash_are_not_taken_again(self, tmp_path):
        folder, ready = made(tmp_path / "run")
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(4))
        # as a killed process leaves it: the ledger has reserved steps that no checkpoint holds
        admission = folder.admission(folder.ledger())
        folder.ledger()._release(admission._plan, admission.names.index(TRAINING), 10)
        result = again(tmp_path / "run")
        assert result.steps == STEPS - 10
        assert "10 of 30 steps were not taken" in result.messages[0]
        assert counted(folder)[TRAINING] == STEPS
        assert result.statement.epsilon <= 4.0

    def test_a_crash_during_preparation_is_refused_not_repeated(self, tmp_path, monkeypatch):
        folder, ready = made(tmp_path / "run")
        monkeypatch.setattr(run, "write_checkpoint", lambda *_: None)  # the kill comes before the file
        monkeypatch.setattr(session_module, "release_grids", lambda *_, **__: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            train_run(folder, *ready)
        monkeypatch.undo()
        with pytest.raises(BudgetExceeded, match="was killed while it prepared the features"):
            again(tmp_path / "run")
        assert counted(folder)[DISCOVERY] == 1

    def test_a_crash_between_two_preparations_goes_on(self, tmp_path, monkeypatch):
        folder, ready = made(tmp_path / "run")
        monkeypatch.setattr(
            session_module.Session, "prepare", lambda self: (_ for _ in ()).throw(Stop)
        )  # classes and groups are in the checkpoint
        with pytest.raises(Stop):
            train_run(folder, *ready)
        monkeypatch.undo()
        monkeypatch.setattr(session_module, "release_values", None)
        assert again(tmp_path / "run").steps == STEPS

    @pytest.mark.parametrize(("method", "lost"), [("margin_counts", CORRECTION), ("counts", CERTIFICATE)])
    def test_a_lost_measurement_is_not_released_again(self, method, lost, tmp_path):
        folder, ready = made(tmp_path / "run")

        def fail(*_):
            raise Stop

        def on_step(record):
            if record.step == STEPS:
                setattr(ready[1].engine, method, fail)

        with pytest.raises(Stop):
            train_run(folder, *ready, watch=Watch(on_step=on_step))
        assert counted(folder)[lost] == 1
        result = again(tmp_path / "run")
        assert counted(folder)[lost] == 1
        if lost == CORRECTION:  # the model stays as it is, and is certified
            assert result.certificate is not None
            return
        assert result.certificate is None
        assert "the certificate was released before the run was interrupted" in result.messages[0]

    def test_an_older_copy_of_the_ledger_cannot_make_steps_free(self, tmp_path):
        folder, ready = made(tmp_path / "run")
        early = (folder.path / "ledger.json").read_bytes()
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(5))
        (folder.path / "ledger.json").write_bytes(early)
        with pytest.raises(InvalidInput, match="older copy"):
            again(tmp_path / "run")

    def test_the_checkpoint_of_another_run_and_other_rows_are_rejected(self, tmp_path):
        for name in ("one", "two"):
            folder, ready = made(tmp_path / name)
            with pytest.raises(Stop):
                train_run(folder, *ready, watch=stop_after(5))
        with pytest.raises(InvalidInput, match="the run was planned for 900"):
            again(tmp_path / "one", frame=people(800))
        shutil.copy(tmp_path / "two" / "checkpoint.ratewise", tmp_path / "one" / "checkpoint.ratewise")
        with pytest.raises(InvalidInput, match="checkpoint of another run"):
            again(tmp_path / "one")

    def test_damaged_checkpoints_are_rejected(self, tmp_path):
        folder, ready = made(tmp_path / "run")
        with pytest.raises(Stop):
            train_run(folder, *ready, watch=stop_after(5))
        whole = folder.checkpoint_path.read_bytes()
        for spoilt in (b"", whole[:-20], whole.replace(b"parameters", b"parametern", 1)):
            folder.checkpoint_path.write_bytes(spoilt)
            with pytest.raises(ModelFileError):
                again(tmp_path / "run")

    def test_one_process_at_a_time_and_leftovers_are_removed(self, tmp_path):
        folder, ready = made(tmp_path / "run")
        (folder.path / ".checkpoint.ratewise.x.tmp").write_bytes(b"half")
        with folder.alone():
            assert not list(folder.path.glob(".*.tmp"))
            with pytest.raises(InvalidInput, match="another process is at work"):
                train_run(RunFolder.open(folder.path), *ready)
        finished(tmp_path / "other")
        with pytest.raises(InvalidInput, match="is finished"):
            again(tmp_path / "other")

    def test_a_kill_at_any_write_leaves_a_run_that_ends(self, tmp_path, monkeypatch):
        """The process dies at the n-th replacement of a file, for every n; nothing is half written."""

        class Killed(BaseException):
            pass

        replace, moment, count = os.replace, 0, 0

        def dying(source, target, *rest, **named):
            nonlocal count
            if str(target).startswith(str(tmp_path / "run")):
                count += 1
                if count == moment:
                    raise Killed
            return replace(source, target, *rest, **named)

        wanted = settings(training={"steps": 4})
        for moment in range(1, 60):  # noqa: B007 - read by `dying`
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            folder, ready = made(tmp_path / "run", wanted)
            count = 0
            monkeypatch.setattr(os, "replace", dying)
            try:
                train_run(folder, *ready)
                monkeypatch.undo()
                break
            except Killed:
                monkeypatch.undo()
            folder = RunFolder.open(tmp_path / "run")
            before = folder.ledger().total()
            if not folder.finished:
                with contextlib.suppress(BudgetExceeded):  # killed while it prepared: never prepared twice
                    again(tmp_path / "run")
            assert folder.ledger().total() >= before
            admission = folder.admission(folder.ledger())
            if admission is not None:
                assert admission.total() <= 4.0
        else:
            pytest.fail("the run never came to its end")
        assert moment > 8  # there were that many writes


class TestFolders:
    def test_nothing_is_replaced_without_force_and_ledgers_are_kept(self, tmp_path):
        first = finished(tmp_path / "run")
        old = (tmp_path / "run" / "ledger.json").read_bytes()
        (tmp_path / "run" / "evaluations.json").write_bytes(b"{}")
        with pytest.raises(InvalidInput, match="exists already"):
            made(tmp_path / "run")
        finished(tmp_path / "run", force=True)
        assert (tmp_path / "run" / "earlier" / "ledger-1.json").read_bytes() == old
        assert (tmp_path / "run" / "earlier" / "evaluations-1.json").exists()
        finished(tmp_path / "run", force=True)
        assert (tmp_path / "run" / "earlier" / "ledger-2.json").exists()
        assert RunFolder.open(tmp_path / "run").description["id"] != first.folder.description["id"]
        (tmp_path / "other").mkdir()
        with pytest.raises(InvalidInput, match="no run folder, and --force replaces nothing else"):
            made(tmp_path / "other", force=True)

    def test_a_failure_while_making_the_folder_leaves_nothing(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("ratewise.runs.folder.os.rename", full)
        with pytest.raises(OSError, match="No space left"):
            made(tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    def test_a_shared_ledger_admits_runs_up_to_its_cap(self, tmp_path):
        _, (_, session) = made(tmp_path / "plan")
        Ledger.create(tmp_path / "all.json", cap=Budget(6.0, 1e-4), neighbours="zero_out", unit=session.plan.unit)
        for name in ("one", "two"):
            finished(tmp_path / name, ledger=tmp_path / "all.json")
        with pytest.raises(BudgetExceeded):
            finished(tmp_path / "three", ledger=tmp_path / "all.json")
        assert len(Ledger.open(tmp_path / "all.json").admissions) == 2

    @pytest.mark.parametrize("name", ["model.ratewise", "certificate.json", "statement.json", "plan.json"])
    def test_a_file_of_another_run_is_rejected(self, tmp_path, name):
        finished(tmp_path / "one")
        finished(tmp_path / "two", wanted=settings(epsilon=2.0))
        shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
        with pytest.raises(InvalidInput, match="put the original file back"):
            RunFolder.open(tmp_path / "one")
        (tmp_path / "one" / name).unlink()
        with pytest.raises(InvalidInput, match="No such file"):
            RunFolder.open(tmp_path / "one")

    def test_an_edited_description_is_rejected(self, tmp_path):
        finished(tmp_path / "run")
        path = tmp_path / "run" / "run.json"
        described = json.loads(path.read_text())
        path.write_text(json.dumps({**described, "units": 5}))
        with pytest.raises(InvalidInput, match="its checksum does not fit"):
            RunFolder.open(tmp_path / "run")
        for files in ({}, {**described["files"], "../../etc/passwd": "0" * 64}):
            path.write_text(json.dumps(sealed({**described, "files": files})))
            with pytest.raises(InvalidInput, match="wrong fields"):
                RunFolder.open(tmp_path / "run")
        for spoilt in (b"[]", b"no json", json.dumps({**described, "version": 1}).encode()):
            path.write_bytes(spoilt)
            with pytest.raises(InvalidInput):
                RunFolder.open(tmp_path / "run")
        with pytest.raises(InvalidInput, match="there is no run folder"):
            RunFolder.open(tmp_path / "none")

    def test_the_ledger_must_be_the_runs_own(self, tmp_path):
        finished(tmp_path / "one")
        finished(tmp_path / "two")
        shutil.copy(tmp_path / "two" / "ledger.json", tmp_path / "one" / "ledger.json")
        with pytest.raises(InvalidInput, match="another ledger, or an older copy"):
            RunFolder.open(tmp_path / "one").ledger()


class TestSettings:
    def test_they_read_back(self):
        asked = settings(groups=("sex",), leave_out=("job",), privacy_id="person", title="x", classes=("0", "1"))
        assert Settings.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
        assert asked.declared_classes == [0, 1]
        assert asked.config.steps == STEPS

    @pytest.mark.parametrize(
        ("wrong", "problem"),
        [
            ({"label": ""}, InvalidInput),
            ({"groups": "sex"}, InvalidType),
            ({"groups": ("rich",)}, InvalidInput),
            ({"privacy_id": "rich"}, InvalidInput),
            ({"privacy_id": "sex", "groups": ("sex",)}, InvalidInput),
            ({"features": ("a",), "leave_out": ("b",)}, InvalidInput),
            ({"epsilon": -1.0}, InvalidInput),
            ({"delta": 2.0}, InvalidInput),
            ({"tolerance": -1.0}, InvalidInput),
            ({"training": {"stps": 3}}, InvalidInput),
            ({"training": {"steps": 0}}, InvalidInput),
            ({"constraints": ("rate(1) <",)}, InvalidInput),
        ],
    )
    def test_wrong_ones_are_rejected(self, wrong, problem):
        with pytest.raises(problem):
            settings(**wrong)

    def test_unknown_fields_are_rejected(self):
        with pytest.raises(InvalidInput, match="unknown settings: curves"):
            Settings.from_dict({"label": "y", "curves": True})

    def test_columns_that_are_not_there(self):
        with pytest.raises(InvalidInput, match="no column 'no such'"):
            session_for(FRAME, settings(label="no such"))
        with pytest.raises(InvalidInput, match="no column is left"):
            session_for(FRAME[["sex", "rich"]], settings())
        with pytest.raises(InvalidInput, match="the schema's label"):
            session_for(FRAME, settings(label="job"), SCHEMA)


def test_held_means_held_on_the_training_rows(tmp_path):
    result = finished(tmp_path / "run", wanted=settings(constraints=("demographic_parity(sex) <= 0.9",)))
    assert result.certificate.verdict == HELD
    predicted = result.folder.model().predict(FRAME)
    rates = [np.mean(predicted[FRAME["sex"] == sex] == "yes") for sex in ("F", "M")]
    assert abs(rates[0] - rates[1]) <= result.certificate[0].interval[1]
