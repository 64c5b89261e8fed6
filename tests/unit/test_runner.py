"""The benchmark runner: resumable, free when finished, and careful with files it did not write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.suite import __main__ as command
from benchmarks.suite import config, runner, store

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
        from concurrent.futures import Future

        done = Future()
        try:
            done.set_result(runner.run_job(job))
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


def test_a_real_job_has_everything_needed_to_plot_it(monkeypatch):
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
    found = runner.run_job({**job, "settings": {"steps": 20}})
    for field in ("seed", "split_hash", "versions", "spent", "error", "hard", "soft", "violation", "seconds"):
        assert field in found
    assert 0.9 < found["spent"]["epsilon"] <= 1.0
    json.dumps(found, allow_nan=False)
