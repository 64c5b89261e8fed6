"""A run folder knows its own files: what comes from another run, from before or from an editor is refused."""

import itertools
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from ratewise import Ledger
from ratewise.accounting import GaussianEvent
from ratewise.cli.app import cli
from ratewise.exceptions import InvalidInput
from ratewise.runs import RunFolder, Settings, Watch, facts_of, plan_run, train_run
from ratewise.runs.resumable import booked_steps
from ratewise.runs.seal import sealed
from ratewise.schema import Category, Number, Schema

SCHEMA = Schema(
    {"age": Number(17, 90)},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)


def people(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(17, 90, rows), rng.choice(["F", "M"], rows)
    return {"age": age, "sex": sex, "rich": np.where(age + rng.normal(0, 9, rows) > 50, "yes", "no")}


def a_run(path, epsilon=1.0, steps=6, **options):
    limit = "demographic_parity(sex) <= 0.1"
    settings = Settings(label="rich", groups=("sex",), constraints=(limit,), epsilon=epsilon, steps=steps)
    plan = plan_run(facts_of(SCHEMA, settings, 600), settings)
    return RunFolder.create(
        path, settings=settings, schema=SCHEMA, plan=plan, data="people.csv", command=["ratewise"], **options
    )


def invoke(*words):
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two evaluated runs of the same schema on the same rows, at different budgets, and a table."""
    place = tmp_path_factory.mktemp("world")
    pd.DataFrame(people(seed=1)).to_csv(place / "test.csv", index=False)
    for name, epsilon in (("one", 1.0), ("eight", 8.0)):
        train_run(a_run(place / name, epsilon), people())
        assert invoke("evaluate", place / name, place / "test.csv").exit_code == 0
    return place


@pytest.fixture
def pair(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    return tmp_path / "world"


SEALED = [
    *("model.npz", "history.npz", "doubts.json", "statement.json", "statement.txt"),
    *("schema.json", "plan.json", "evaluation-1.json"),
]


@pytest.mark.parametrize("name", SEALED)
def test_a_file_of_another_run_is_refused_by_every_command(pair, name):
    test, run = pair / "test.csv", pair / "one"
    other = (pair / "eight" / name).read_bytes()
    if other == (run / name).read_bytes():  # the same schema: an edit instead
        other = other.replace(b"90", b"91")
    (run / name).write_bytes(other)
    page = pair / "page.html"
    for words in (
        ("predict", run, test),
        ("evaluate", run, test),
        ("report", run, "--out", page),
        ("report", run, test, "--out", page),
        ("report", pair / "eight", test, "--baseline", run, "--out", page),
        ("compare", pair / "eight", run),
        ("resume", run),
        ("audit", run, "--games", "10"),
    ):
        done = invoke(*words)
        assert done.exit_code == 2, words
        assert str(run / name) in done.stderr
        assert "put the original file back" in done.stderr
    assert not page.exists()


@pytest.mark.parametrize("name", SEALED)
def test_a_missing_file_is_named(pair, name):
    (pair / "one" / name).unlink()
    done = invoke("predict", pair / "one", pair / "test.csv")
    assert done.exit_code == 2
    assert name in done.stderr
    assert "No such file" in done.stderr


def test_an_edited_description_is_refused(pair):
    path = pair / "one" / "run.json"
    described = json.loads(path.read_text())
    described["settings"]["epsilon"] = 0.1
    path.write_text(json.dumps(described))
    with pytest.raises(InvalidInput, match="its checksum does not fit"):
        RunFolder.open(pair / "one")
    # sealed again, the files it names must still be there and no others may be named
    for files in ({}, {**described["files"], "../../etc/passwd": "0" * 64}):
        path.write_text(json.dumps(sealed({**described, "files": files})))
        with pytest.raises(InvalidInput, match="wrong fields"):
            RunFolder.open(pair / "one")


def test_the_book_must_be_the_runs_own_and_may_only_grow(pair):
    mine = pair / "one" / "ledger.json"
    whole = mine.read_bytes()
    shutil.copy(pair / "eight" / "ledger.json", mine)
    done = invoke("evaluate", pair / "one", pair / "test.csv")
    assert done.exit_code == 2
    assert "ledger.json" in done.stderr
    assert "another book" in done.stderr
    mine.write_bytes(whole)
    book = Ledger.open(mine)
    book.book(GaussianEvent(noise=1000.0), purpose="something else")
    assert invoke("evaluate", pair / "one", pair / "test.csv").exit_code == 0
    older = json.loads(whole)
    shutil.copytree(pair / "one", pair / "copy")
    fresh = Ledger.create(pair / "other.json", cap=book.cap)
    assert len(older["records"]) > len(fresh.records) == 0
    os.replace(pair / "other.json", pair / "copy" / "ledger.json")
    with pytest.raises(InvalidInput, match="older copy"):
        RunFolder.open(pair / "copy").ledger()


class Stop(Exception):  # noqa: N818 - reads as what happens
    pass


def stop_after(step):
    def on_step(record):
        if record.step == step:
            raise Stop

    return Watch(on_step=on_step)


def test_an_older_copy_of_the_book_cannot_make_steps_free(tmp_path):
    folder = a_run(tmp_path / "run")
    early = (folder.path / "ledger.json").read_bytes()
    with pytest.raises(Stop):
        train_run(folder, people(), watch=stop_after(4))
    late = (folder.path / "ledger.json").read_bytes()
    (folder.path / "ledger.json").write_bytes(early)
    with pytest.raises(InvalidInput, match="does not count the 4 steps"):
        train_run(RunFolder.open(folder.path), people())
    assert (folder.path / "ledger.json").read_bytes() == early
    (folder.path / "ledger.json").write_bytes(late)
    assert train_run(RunFolder.open(folder.path), people()).steps == 6


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    for name in ("one", "two"):
        with pytest.raises(Stop):
            train_run(a_run(tmp_path / name), people(), watch=stop_after(3))
    shutil.copy(tmp_path / "one" / "checkpoint.npz", tmp_path / "two" / "checkpoint.npz")
    before = (tmp_path / "two" / "ledger.json").read_bytes()
    with pytest.raises(InvalidInput, match="checkpoint of another run"):
        train_run(RunFolder.open(tmp_path / "two"), people())
    assert (tmp_path / "two" / "ledger.json").read_bytes() == before


def test_an_evaluation_that_the_run_does_not_name_is_not_shown(pair):
    shutil.copy(pair / "eight" / "evaluation-1.json", pair / "one" / "evaluation-7.json")
    assert [path.name for path in RunFolder.open(pair / "one").evaluations] == ["evaluation-1.json"]
    assert invoke("evaluate", pair / "one", pair / "test.csv").exit_code == 0
    named = [path.name for path in RunFolder.open(pair / "one").evaluations]
    assert named == ["evaluation-1.json", "evaluation-8.json"]  # nothing is overwritten


# ------------------------------------------------------------------------- killed at every moment


def killed_at(call, work):
    """Run `work` in a child that dies, as by kill, before its n-th change of a name; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        calls = itertools.count()

        def dying(real):
            return lambda *words, **options: os._exit(77) if next(calls) == call else real(*words, **options)

        for name in ("replace", "rename", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


def test_a_kill_at_any_write_leaves_a_folder_that_opens_and_a_run_that_ends(tmp_path):
    """Before every rename and removal of a whole run its process is killed once.

    The book reserves 64 of the 100 steps at once, so that steps are left whatever a killed process had taken.
    """

    def work(path):
        train_run(a_run(path, steps=100), people(), every=1)

    counted = 0
    for call in range(0, 400):
        path = tmp_path / f"run-{call}"
        code = killed_at(call, lambda place=path: work(place))
        assert code in (0, 77)
        if code == 0:
            break
        counted += 1
        if not path.exists():
            continue
        folder = RunFolder.open(path)  # every file is whole and the run's own
        if not folder.finished:
            booked = booked_steps(folder.ledger(), folder.purpose)
            writing = (path / "model.npz").exists()
            ran = train_run(folder, people()).steps
            assert ran == 100 or not writing  # results that were begun lose no step
            assert 85 - booked <= ran <= 100  # some less, if the features are prepared and paid for once more
        found = RunFolder.open(path)
        assert found.finished
        assert found.statement().epsilon <= 1.0
        assert found.model().predict(people()).shape == (600,)
        assert not [name for name in os.listdir(path) if name.endswith(".tmp")]
    assert code == 0
    assert counted > 20
