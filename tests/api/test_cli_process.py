"""The command as its own process: Ctrl-C and kill, models between processes, terminals, completion."""

import json
import os
import pty
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from ratewise.runs import RunFolder
from ratewise.runs.run import read_checkpoint
from ratewise.training.plan import TRAINING

COMMAND = [sys.executable, "-m", "ratewise"]
STEPS = 25_000  # a second or more, so that signals arrive in time
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    place = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    rows = 3000
    age, sex = rng.integers(18, 90, rows), rng.choice(["F", "M"], rows)
    rich = ((age - 50) / 10 + (sex == "M") + rng.logistic(size=rows) > 0.5).astype(int)
    pd.DataFrame({"age": age, "hours": rng.normal(40, 8, rows), "sex": sex, "rich": rich}).to_csv(
        place / "people.csv", index=False
    )
    return place / "people.csv"


def ratewise(*words, **options):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, check=False, **options
    )


def training(table, out, *words):
    return [
        *(*COMMAND, "--json", "train", str(table), "--label", "rich", "--out", str(out)),
        *("--constraint", "demographic_parity(sex) <= 0.1", *words),
    ]


def steps_of(lines):
    return [line["step"] for line in map(json.loads, lines) if line["event"] == "step"]


def released_steps(folder):
    return folder.admission(folder.ledger()).released[TRAINING]


def interrupted(table, out, how, *words):
    """Start a long training, wait until its progress has moved, and send it a signal."""
    child = subprocess.Popen(
        training(table, out, "--steps", str(STEPS), *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    seen = []
    for line in child.stdout:
        seen.append(line)
        if len(steps_of(seen)) >= 2:
            child.send_signal(how)
            break
    rest, errors = child.communicate(timeout=120)
    assert "Traceback" not in errors
    return child.returncode, seen + rest.splitlines()


def test_ctrl_c_leaves_a_valid_folder_and_resume_finishes(table, tmp_path):
    out = tmp_path / "run"
    code, lines = interrupted(table, out, signal.SIGINT)
    assert code == 130
    steps = steps_of(lines)
    assert steps == sorted(set(steps))  # it moves
    assert steps[-1] > steps[0]
    said = json.loads(lines[-1])
    assert said["event"] == "error"
    assert f"ratewise resume {out}" in said["message"]
    folder = RunFolder.open(out)
    assert not folder.finished
    done = read_checkpoint(folder.checkpoint_path)["loop"]["done"]
    assert done >= steps[-1]
    # nothing is lost: the ledger counts exactly the steps that are in the checkpoint
    assert released_steps(folder) == done
    spent = folder.ledger().total()
    assert 0 < spent <= 1.0
    assert not [p for p in out.iterdir() if p.name.endswith(".tmp")]
    resumed = ratewise("resume", out)
    assert resumed.returncode == 0, resumed.stderr
    assert f"going on after step {done} of {STEPS}" in resumed.stderr
    folder = RunFolder.open(out)
    assert folder.finished
    assert folder.statement().epsilon <= 1.0
    assert released_steps(folder) == STEPS
    # and the model that two processes have made predicts the same in a third as here
    found = ratewise("predict", out, table, "--proba", "--out", tmp_path / "found.csv")
    assert found.returncode == 0, found.stderr
    frame, read = pd.read_csv(table), pd.read_csv(tmp_path / "found.csv")
    np.testing.assert_array_equal(read["prediction"], folder.model().predict(frame))
    here = folder.model().predict_proba(frame)[:, 1]
    assert read["probability of 1"].map(repr).tolist() == pd.Series(here).map(repr).tolist()


def test_kill_leaves_a_valid_folder_and_resume_never_spends_more(table, tmp_path):
    out = tmp_path / "run"
    code, _ = interrupted(table, out, signal.SIGKILL, "--checkpoint-every", "500")
    assert code == -signal.SIGKILL
    folder = RunFolder.open(out)
    kept = read_checkpoint(folder.checkpoint_path)["loop"]["done"]
    recorded = released_steps(folder)
    assert recorded > kept
    resumed = ratewise("resume", out)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{recorded - kept} of {STEPS} steps were not taken" in resumed.stderr
    folder = RunFolder.open(out)
    assert folder.finished
    assert folder.statement().epsilon <= 1.0
    assert released_steps(folder) == STEPS


def test_a_terminal_sees_a_line_that_moves(table, tmp_path):
    master, slave = pty.openpty()
    words = [word for word in training(table, tmp_path / "run", "--steps", "1500") if word != "--json"]
    wide = {**ENVIRONMENT, "COLUMNS": "120"}
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=slave, env=wide)
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert child.wait(timeout=60) == 0
    bars = [part for part in shown.decode().split("\r") if "step " in part]
    assert len(bars) >= 2
    assert "step 1500/1500" in bars[-1]
    for part in ("epsilon", "gradient", "largest gap", "s left"):
        assert part in bars[-1]


def test_without_click_the_message_names_the_extra():
    script = "import sys; sys.modules['click'] = None; from ratewise.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'ratewise[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_shell_completion_knows_commands_and_flags():
    for words, place, expected in (
        ("ratewise re", "1", {"report", "resume"}),
        ("ratewise train --schedule ", "3", {"constant", "linear"}),
        ("ratewise predict runs/a te", "3", {"te"}),  # a file: the shell completes it
    ):
        asked = {"_RATEWISE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **asked})
        assert {line.split(",")[1] for line in done.stdout.splitlines()} == expected
        kind = "plain" if len(expected) > 1 else "file"
        assert {line.split(",")[0] for line in done.stdout.splitlines()} == {kind}
