"""Real processes: one, two or three give the same result; a killed run resumes, and its ledger is right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("torch_training_processes.py")
STEPS, EVERY = 40, 5


@pytest.fixture(scope="module")
def happened(tmp_path_factory):
    """What real processes did, with the folder it worked in and its standard error."""
    folder = tmp_path_factory.mktemp("processes")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return {"folder": folder, "errors": done.stderr, **json.loads((folder / "result.json").read_text())}


@pytest.fixture(scope="module")
def runs(happened):
    """What each process of a training in one, two and three processes ended with, for rows and for persons."""
    found = {}
    for kind, world in (("together", 1), ("together", 2), ("together", 3), ("persons", 1), ("persons", 2)):
        assert happened[f"{kind} {world}"]["codes"] == [0] * world, happened["errors"]
        folder = happened["folder"] / f"{kind}-{world}"
        found[world if kind == "together" else (kind, world)] = [
            np.load(folder / f"rank{rank}.npz") for rank in range(world)
        ]
    return found


@pytest.mark.parametrize(
    ("alone", "world"), [(1, 2), (1, 3), (("persons", 1), ("persons", 2))], ids=["2", "3", "2, persons"]
)
def test_several_processes_give_the_result_of_one(runs, alone, world):
    """Also if persons with several rows, which lie far apart in the table, are the units."""
    one, several = runs[alone][0], runs[world][0]
    np.testing.assert_allclose(several["parameters"], one["parameters"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(several["histogram"], one["histogram"], rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(several["multipliers"], one["multipliers"], rtol=1e-9, atol=1e-12)
    assert one["step"][-1] == STEPS
    assert np.any(one["multipliers"] > 0), "constraints never pushed: the comparison says nothing of them"


@pytest.mark.parametrize("world", [2, 3])
def test_all_processes_hold_the_same_model(runs, world):
    for other in runs[world][1:]:
        np.testing.assert_array_equal(other["parameters"], runs[world][0]["parameters"])
        np.testing.assert_array_equal(other["histogram"], runs[world][0]["histogram"])
        assert other["booked"] == runs[world][0]["booked"] == STEPS


def test_a_process_that_dies_ends_the_run_and_others_resume_it(happened):
    result, errors = happened["orphan"], happened["errors"]
    assert result["codes"] == [7, -9, 7], errors
    assert errors.count("ProcessLost: ") == 2
    assert "resume from the last checkpoint" in errors
    released, booked = result["counted"]
    assert booked >= released > 10  # process 0 alone releases
    assert result["again"] == [0, 0], errors
    assert result["at_last"] == STEPS


@pytest.mark.parametrize(("seed", "kind"), [(1, "MEMORY"), (2, "FILE")])
def test_killed_at_random_moments_every_resume_works_and_the_ledger_never_understates(happened, seed, kind):
    result, errors = happened[f"crash {seed} {kind}"], happened["errors"]
    *killed, last = result["codes"]
    assert last == 0, errors
    assert set(killed) == {-9}, errors
    assert len(killed) >= 2, "the run ended before it was ever killed"
    for released, booked in result["lives"]:
        assert booked is None or booked <= STEPS
        assert released <= (booked or 0)
    assert result["lives"][-1][1] == STEPS
    assert result["lives"][-1][0] > EVERY, "hardly a step was released: the comparison says nothing"
