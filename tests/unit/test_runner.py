"""The benchmark runner: resumable, free when finished, and careful with files it did not write."""

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.suite import __main__ as command
from benchmarks.suite import config, runner, store

from ratewise.exceptions import InvalidInput

ROOT = Path(__file__).parents[2]


def fake_job(job):
    return {"key": store.job_key(job), **job, "error": 0.1, "violation": 0.2, "process": os.getpid()}


class Pool:
    """Runs jobs at once, in this process."""

    def __init__(self, count, mp_context):
        self.count = count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def submit(self, function, job):
        done = Future()
        try:
            done.set_result(function(job))
        except BaseException as problem:
            done.set_exception(problem)
        return done

    def shutdown(self, wait, cancel_futures):
        pass


@pytest.fixture
def calm(tmp_path, monkeypatch):
    """Results in a temporary folder, jobs that cost nothing, and a list of what was said."""
    monkeypatch.setattr(store, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(runner, "run_job", fake_job)
    for name in runner._THREADS:
        monkeypatch.setenv(name, "1")
    return tmp_path


def quiet(_):
    pass


def test_every_config_names_known_things():
    from benchmarks.suite.methods import METHODS

    assert len(config.names()) >= 9
    for name in config.names():
        found = config.experiment(name)
        quick, full = found.jobs("quick"), found.jobs("full")
        assert 0 < len(quick) < len(full)
        for job in full.values():
            assert job["method"] in METHODS or found.constraint == "timing"


def test_committed_targets_have_ten_splits():
    for name in ("parity", "acs", "false-negatives", "equalized-odds", "satisfiability", "clipping"):
        jobs = config.experiment(name).jobs("full").values()
        assert {job["split"] for job in jobs if job["method"] in ("ours", "sgda")} == set(range(10))


def test_a_finished_experiment_costs_nothing(calm, monkeypatch):
    found = config.experiment("clipping")
    assert runner.run(found, "quick", say=quiet) == len(found.jobs("quick"))
    before = store.results_path("clipping", "quick").read_bytes()
    monkeypatch.setattr(runner, "run_job", lambda job: pytest.fail("a finished job was run again"))
    assert runner.run(found, "quick", say=quiet) == 0
    assert store.results_path("clipping", "quick").read_bytes() == before


def test_a_stopped_run_goes_on_where_it_was(calm, monkeypatch):
    found = config.experiment("clipping")
    total = len(found.jobs("quick"))
    ran = []

    def stopping(job):
        if len(ran) == 4:
            raise KeyboardInterrupt
        ran.append(job)
        return fake_job(job)

    monkeypatch.setattr(runner, "run_job", stopping)
    monkeypatch.setattr(runner, "as_completed", lambda futures: futures)
    with pytest.raises(KeyboardInterrupt):
        runner.run(found, "quick", say=quiet)
    monkeypatch.setattr(runner, "run_job", fake_job)
    assert runner.run(found, "quick", say=quiet) == total - 4
    assert len(store.Store(store.results_path("clipping", "quick"), "clipping")) == total


def test_only_restricts_a_run(calm):
    found = config.experiment("clipping")
    some = runner.run(found, "quick", only={"variant": "plain"}, say=quiet)
    assert 0 < some < len(found.jobs("quick"))


def test_forgotten_results_are_run_again_and_kept_beside(calm, monkeypatch):
    found = config.experiment("clipping")
    total = runner.run(found, "full", say=quiet)
    path = store.results_path("clipping", "full")
    before = path.read_bytes()
    assert command.main(["forget", "clipping", "--only", "variant=plain"]) == 0
    assert path.with_suffix(".before").read_bytes() == before
    assert 0 < len(store.Store(path, "clipping")) < total
    assert runner.run(found, "full", say=quiet) == total - before.count(b'"variant": "default"')


def test_no_copy_of_earlier_results_is_ever_replaced(calm):
    runner.run(config.experiment("clipping"), "full", say=quiet)
    path = store.results_path("clipping", "full")
    first = path.read_bytes()
    assert command.main(["forget", "clipping", "--only", "split=0"]) == 0
    second = path.read_bytes()
    assert command.main(["forget", "clipping", "--only", "split=1"]) == 0
    assert path.with_suffix(".before").read_bytes() == first
    assert path.with_suffix(".before-2").read_bytes() == second
    assert len(path.read_bytes()) < len(second) < len(first)


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_to_forget_changes_nothing_and_says_so(calm, capsys):
    runner.run(config.experiment("clipping"), "full", only={"split": "0"}, say=quiet)
    before = files_in(calm)
    assert command.main(["forget", "clipping", "--only", "split=1"]) == 0
    assert "0 of" in (said := capsys.readouterr().out)
    assert "nothing was changed" in said
    assert command.main(["forget", "clipping", "--only", "varaint=plain"]) == 2
    assert "variant" in capsys.readouterr().err
    assert files_in(calm) == before


CHOICES = {
    ("--only", "nonsense"): ("'nonsense' is not FIELD=VALUE", "method"),
    ("--only", "metod=ours"): ("no field 'metod'", "method"),
    ("--only", "method=tpyo"): ("no method is 'tpyo'", "sgda"),
    ("--only", "method=sgda,tpyo"): ("no method is 'tpyo'", "sgda"),
    ("--only", "split=0", "--only", "split=1"): ("names split twice", "split=0,1"),
    ("--workers", "-1"): ("--workers must be at least 1", "-1"),
    ("--workers", "0"): ("--workers must be at least 1", "one per core"),
}


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("name", ["clipping", "all"])
def test_an_option_that_asks_for_nothing_there_is_refused(calm, capsys, options, name):
    assert command.main(["run", name, "--quick", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    for part in CHOICES[options]:
        assert part in said.err
    assert files_in(calm) == {}


def test_choices_that_no_job_has_together_are_refused(calm, capsys):
    options = ["--only", "method=sgd", "--only", "epsilon=1.0"]
    assert command.main(["run", "parity", "--full", *options]) == 2
    assert "no full job of parity has method=sgd with epsilon=1.0" in capsys.readouterr().err


def test_a_choice_may_concern_only_some_experiments(calm):
    assert command.main(["run", "all", "--quick", "--only", "variant=plain"]) == 0
    assert store.results_path("clipping", "quick") in files_in(calm)
    assert store.results_path("parity", "quick") not in files_in(calm)


def raising(problem, at):
    """Return a job that raises the problem at one split."""

    def job(asked):
        if asked["split"] == at:
            raise problem
        return fake_job(asked)

    return job


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (ValueError("shapes (3,) and (4,)\nnot aligned"), ("ValueError: shapes (3,) and (4,) not aligned",)),
        (InvalidInput("slack must be at least 0"), ("InvalidInput: slack must be",)),
        (ModuleNotFoundError("No module", name="fairlearn"), ("needs fairlearn", "not installed", "--only")),
        (ImportError("libgomp.so: cannot open"), ("ImportError: libgomp.so",)),
    ],
)
def test_a_mistake_ends_the_run_names_its_job_and_keeps_the_others(calm, monkeypatch, capsys, problem, parts):
    jobs = config.experiment("clipping").jobs("quick")
    monkeypatch.setattr(runner, "run_job", raising(problem, at=0))
    assert command.main(["run", "clipping", "--quick"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    named = [key for key in jobs if f"job {key} (" in said]
    assert len(named) == 1
    assert jobs[named[0]]["split"] == 0
    assert "split=0" in said
    for part in parts:
        assert part in said
    kept = store.Store(store.results_path("clipping", "quick"), "clipping")
    assert set(kept.records) == {key for key, job in jobs.items() if job["split"] != 0}
    assert f"{len(kept)} results are kept" in said
    monkeypatch.setattr(runner, "run_job", fake_job)
    assert runner.run(config.experiment("clipping"), "quick", say=quiet) == len(jobs) - len(kept)


class BreakingPool(Pool):
    """As after a process was killed: jobs of split 0 have no result, others were done before."""

    def submit(self, function, job):
        if job["split"] != 0:
            return super().submit(function, job)
        broken = Future()
        broken.set_exception(BrokenProcessPool("terminated abruptly"))
        return broken


def test_a_process_that_dies_ends_the_run_with_one_line_and_done_jobs_are_kept(calm, monkeypatch, capsys):
    jobs = config.experiment("clipping").jobs("quick")
    monkeypatch.setattr(runner, "ProcessPoolExecutor", BreakingPool)
    assert command.main(["run", "clipping", "--quick"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "a process ended before its job did" in said
    assert "--workers" in said
    kept = store.Store(store.results_path("clipping", "quick"), "clipping")
    assert set(kept.records) == {key for key, job in jobs.items() if job["split"] != 0}


def test_the_key_tells_jobs_apart():
    job = {"method": "ours", "settings": {"clip": 1.0}}
    assert store.job_key(job) == store.job_key(dict(reversed(job.items())))
    assert store.job_key(job) != store.job_key({**job, "settings": {"clip": 1.5}})


DAMAGE = {
    "cut off in line 3": lambda lines: "\n".join(lines)[:-5],
    "damaged in line 2": lambda lines: "\n".join([lines[0], lines[1][:20], lines[2]]) + "\n",
    "written with format 0": lambda lines: "\n".join([lines[0].replace('"format": 1', '"format": 0')]) + "\n",
    "written with ratewise '0.0.1'": lambda lines: (
        json.dumps({**json.loads(lines[0]), "ratewise": "0.0.1"}) + "\n"
    ),
    "written with experiment 'acs'": lambda lines: lines[0].replace("clipping", "acs") + "\n",
    "no result in line 2": lambda lines: lines[0] + "\n{}\n",
}


@pytest.mark.parametrize("complaint", DAMAGE)
def test_files_of_others_and_halves_are_refused_and_kept(calm, complaint, capsys):
    path = store.results_path("clipping", "quick")
    runner.run(config.experiment("clipping"), "quick", say=quiet)
    path.write_text(DAMAGE[complaint](path.read_text().splitlines()[:3]))
    before = path.read_bytes()
    assert command.main(["run", "clipping", "--quick"]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "nothing was changed" in said
    assert path.read_bytes() == before


def full_disk(monkeypatch, room):
    """Let `room` more bytes through, at most seven at a time, then refuse."""
    left, write = [room], os.write

    def writing(handle, text):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        piece = text[: min(7, left[0])]
        left[0] -= len(piece)
        return write(handle, piece)

    monkeypatch.setattr(store.os, "write", writing)


def test_a_line_that_is_written_in_pieces_is_whole(calm, monkeypatch):
    path = store.results_path("clipping", "quick")
    full_disk(monkeypatch, 10**9)
    store.Store(path, "clipping").add({"key": "a", "error": 0.25})
    assert store.Store(path, "clipping").records == {"a": {"key": "a", "error": 0.25}}


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("room", [0, 5, 10])
def test_a_full_disk_leaves_whole_lines(calm, monkeypatch, before, room):
    path = store.results_path("clipping", "quick")
    kept = store.Store(path, "clipping")
    for number in range(before):
        kept.add({"key": str(number)})
    old = files_in(calm)
    full_disk(monkeypatch, room)
    with pytest.raises(store.ResultsError, match=r"clipping.jsonl cannot be written to \(No space left"):
        kept.add({"key": "new"})
    assert files_in(calm) == old
    assert "new" not in kept


def test_a_full_disk_forgets_nothing(calm, monkeypatch):
    path = store.results_path("clipping", "quick")
    kept = store.Store(path, "clipping")
    for key in "ab":
        kept.add({"key": key})
    old = files_in(calm)
    full_disk(monkeypatch, 10)
    with pytest.raises(store.ResultsError, match="cannot be written anew"):
        kept.forget(["a"])
    assert files_in(calm) == old
    assert set(kept.records) == {"a", "b"}


def test_a_damaged_file_is_refused_before_any_figure_is_drawn(calm, monkeypatch, capsys):
    figures = pytest.importorskip("benchmarks.suite.figures")
    monkeypatch.setattr(figures, "ROOT", calm)
    drawn = []
    monkeypatch.setattr(figures, "draw", lambda found, lines, path: drawn.append(path) or path)
    runs = config.names()
    for name in (runs[0], runs[-1]):
        runner.run(config.experiment(name), "quick", say=quiet)
    assert command.main(["figures", "--quick"]) == 0
    assert len(drawn) == 2
    path = store.results_path(runs[-1], "quick")
    path.write_bytes(path.read_bytes()[:-9])
    drawn.clear()
    assert command.main(["figures", "--quick"]) == 2
    assert "cut off" in capsys.readouterr().err
    assert drawn == []


def test_figures_without_matplotlib_are_an_error_of_one_line(calm, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "benchmarks.suite.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command.main(["figures"]) == 2
    assert capsys.readouterr().err == "error: this command needs matplotlib, which is not installed\n"


@pytest.mark.parametrize("changed", ["src/ratewise/a.py", "benchmarks/suite/methods/b.py"])
def test_a_plus_sign_says_that_the_package_or_the_suite_has_changed(tmp_path, monkeypatch, changed):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.delenv("RATEWISE_COMMIT", raising=False)
    for name in (changed, "docs/c.md"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("one\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / "docs/c.md").write_text("two\n")
    clean = runner._commit.__wrapped__()
    (tmp_path / changed).write_text("two\n")
    assert len(clean) >= 7
    assert runner._commit.__wrapped__() == f"{clean}+"
    assert "+" not in clean


def test_an_unknown_experiment_is_answered_with_the_known_ones(capsys):
    assert command.main(["run", "everything", "--quick"]) == 2
    said = capsys.readouterr().err
    assert "no experiment 'everything'" in said
    assert "parity" in said


def test_missing_data_are_an_error_of_one_line(calm, monkeypatch, capsys, tmp_path):
    from benchmarks.suite import problem

    monkeypatch.setenv("RATEWISE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem.load.cache_clear()
    monkeypatch.setattr(runner, "run_job", lambda job: problem.load("acs_employment"))
    assert command.main(["run", "acs", "--quick"]) == 2
    assert "get it from" in capsys.readouterr().err
    assert not store.results_path("acs", "quick").exists()


def test_the_command_line_lists_experiments_in_a_fresh_process():
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.suite", "list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "parity" in found.stdout


@pytest.fixture
def toy(monkeypatch):
    """A job on made-up rows that any method learns in no time."""
    import numpy as np
    import pandas as pd
    from benchmarks.suite import problem

    from ratewise.datasets.schema import Schema, table

    rng = np.random.default_rng(0)
    schema = Schema("toy", {"a": (0, 1)}, {}, "y", (0, 1), {"sex": ("female", "male")})
    frame = pd.DataFrame({"a": rng.random(2000)})
    frame["y"] = (frame["a"] > 0.5).astype(int)
    made = table(frame, frame["y"], {"sex": rng.choice(["female", "male"], 2000)}, schema)
    monkeypatch.setattr(problem, "load", lambda dataset: made)
    job = next(iter(config.experiment("hard-soft").jobs("quick").values()))
    return {**job, "settings": {"steps": 20}}


def test_only_giving_up_on_purpose_is_a_result(toy):
    """Post-processing gives up where noise swallows a group, and answers where it does not."""
    job = {**toy, "constraint": "equalized_odds", "method": "jagielski_post", "knob": 0.1, "settings": {}}
    found = runner.run_job({**job, "epsilon": 1e-6})
    assert "too few rows" in found["failed"]
    assert "error" in runner.run_job({**job, "epsilon": 100.0})


@pytest.mark.parametrize("problem", [ValueError("shapes do not fit"), InvalidInput("slack is wrong")])
def test_a_mistake_of_a_method_is_no_result(toy, monkeypatch, problem):
    from benchmarks.suite.methods import METHODS, Method

    def mistaken(*_, **__):
        raise problem

    monkeypatch.setitem(METHODS, "broken", Method(mistaken, "broken", "nothing", "none"))
    with pytest.raises(
        runner.RunStopped, match=rf"method=broken .*failed: {type(problem).__name__}: {problem}"
    ):
        runner.attempt({**toy, "method": "broken"})


def test_a_real_job_has_everything_needed_to_plot_it(toy):
    found = runner.run_job(toy)
    for field in ("seed", "split_hash", "versions", "spent", "error", "hard", "soft", "violation", "seconds"):
        assert field in found
    assert 0.9 < found["spent"]["epsilon"] <= 1.0
    json.dumps(found, allow_nan=False)


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main(["run", "clipping", "--quick"]) == 130
    assert capsys.readouterr().err.splitlines() == [
        "stopped; results are kept, and the same command goes on from here"
    ]
