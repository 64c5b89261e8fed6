"""SIGKILL at any moment leaves a readable ledger that counts at least every release that happened."""

import collections
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratewise.accounting.events import GaussianEvent
from ratewise.accounting.ledger import Ledger
from ratewise.exceptions import LedgerError

SCRIPT = Path(__file__).with_name("ledger_crash_process.py")
STRIDE = 5


@pytest.fixture(scope="module")
def parent():
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    yield process
    process.stdin.close()
    process.wait()
    process.stdout.close()


def run_and_kill(parent, mode, ledger, side, delay):
    """Let a child run for `delay` seconds; return the signal that ended it."""
    parent.stdin.write(f"{mode}\t{ledger}\t{side}\n")
    parent.stdin.flush()
    child = int(parent.stdout.readline())
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return int(parent.stdout.readline())


def happened(side):
    return collections.Counter(side.read_text().split()) if side.exists() else collections.Counter()


def counted(ledger):
    """Return what may have been released, by the records of the ledger."""
    found = collections.Counter()
    for plan in Ledger.open(ledger).admissions:
        name = "whole" if isinstance(plan.events[0], GaussianEvent) else "step"
        found[name] += sum(plan.released.values())
    return found


def problem(ledger, side):
    """Return what is wrong with a ledger after a kill; None if it is readable and counts what happened."""
    truth = happened(side)
    if not ledger.exists():
        return "no ledger, though something was released" if truth else None
    try:
        counts = counted(ledger)
    except LedgerError as error:
        return f"unreadable: {error}"
    missing = truth - counts
    return f"under-counted: {dict(missing)}" if missing else None


def kills(parent, mode, folder, times, longest=0.12, seed=20):
    """Kill and resume on one ledger; yield after each kill. On a busy machine each run gets more time."""
    delays = random.Random(seed)
    ledger, side = folder / "ledger.json", folder / "released.txt"
    for number in range(1, times + 1):
        assert run_and_kill(parent, mode, ledger, side, delays.uniform(0, longest)) == signal.SIGKILL
        yield ledger, side
        if number % 20 == 0 and min(happened(side)[name] for name in ("whole", "step")) < number / 20:
            longest *= 2


@pytest.mark.parametrize("mode", ["plain", "slow"])
def test_never_under_counts_and_stays_readable(parent, tmp_path, mode):
    inside_a_write = 0
    for number, (ledger, side) in enumerate(kills(parent, mode, tmp_path, 200), start=1):
        assert problem(ledger, side) is None, f"after kill {number}"
        inside_a_write += (tmp_path / ".ledger.json.tmp").exists()
        truth = happened(side)
        enough = min(truth["whole"], truth["step"]) >= 3 and (mode == "plain" or inside_a_write >= 5)
        if number >= 40 and enough:  # more kills only where a slow machine lets little happen between them
            break
    assert enough, (truth, inside_a_write)
    counts = counted(ledger)
    # Each kill leaves at most one record of a release that did not happen, or one stride of steps.
    assert counts["whole"] <= truth["whole"] + number
    assert counts["step"] <= truth["step"] + number * STRIDE


@pytest.mark.parametrize(("mode", "expected"), [("late", "under-counted"), ("torn", "unreadable")])
def test_the_same_check_catches_broken_ledgers(parent, tmp_path, mode, expected):
    found = None
    for ledger, side in kills(parent, mode, tmp_path, 200):
        found = problem(ledger, side)
        if found is not None:
            break
    assert found is not None
    assert found.startswith(expected)
