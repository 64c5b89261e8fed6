"""Faults and load: full disks, folders that cannot be written, clocks that jump, damaged books, many fits.

In every case nothing that happened is missing in the book, what was saved is still there, and the message
says what is wrong. Kills at random moments: tests/reference/test_ledger_crash.py. A thousand fits:
``python tests/fuzz/load.py``.
"""

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.accounting import Budget, GaussianEvent, Ledger, TrainingEvent, accountant
from ratewise.exceptions import BudgetExceeded, LedgerCorrupt, LedgerError
from ratewise.mechanisms.discrete import normal_table

STEPS = 12
DELTA = 1e-6


def people(n=1500):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] > 0).astype(int), {"g": np.where(rng.random(n) < 0.5, "a", "b")}


def classifier(**changes):
    options = {
        "epsilon": 1.0,
        "delta": DELTA,
        "classes": [0, 1],
        "group_values": {"g": ["a", "b"]},
        "feature_bounds": (-5, 5),
        "config": TrainingConfig(steps=STEPS, clip=1.0),  # tables of noise are kept by scale
        **changes,
    }
    return RateConstrainedClassifier(demographic_parity("g", max_gap=0.9), **options)


def fit(**changes):
    X, y, groups = people()
    return classifier(**changes).fit(X, y, sensitive_features=groups)


def steps_in(ledger):
    return sum(event.steps for event in ledger.events() if isinstance(event, TrainingEvent))


class TestDisk:
    CHILD = textwrap.dedent(
        """
        import resource, signal, sys, warnings
        import numpy as np
        from ratewise import RateConstrainedClassifier, TrainingConfig
        from ratewise.accounting import Ledger
        from ratewise.exceptions import LedgerError
        warnings.simplefilter("ignore")
        path, limit = sys.argv[1], int(sys.argv[2])
        ledger = Ledger.open(path)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)       # a full disk is an error, not a signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        X = np.random.default_rng(0).normal(size=(1500, 3))
        seen = []
        model = RateConstrainedClassifier(
            epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(-5, 5), ledger=ledger,
            config=TrainingConfig(steps=400),
            callback=lambda record: seen.append(record.step),
        )
        try:
            model.fit(X, (X[:, 0] > 0).astype(int))
            print("done", len(seen))
        except LedgerError as refused:
            print("refused", len(seen), str(refused).replace(chr(10), " "))
        """
    )

    def run_with_limit(self, path, limit):
        found = subprocess.run(
            [sys.executable, "-c", self.CHILD, str(path), str(limit)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=True,
        )
        return found.stdout.split(maxsplit=2)

    def test_a_disk_that_fills_up(self, tmp_path):
        """The file may grow by a little: the fit stops, and what happened before is in the book."""
        path = tmp_path / "privacy.json"
        ledger = Ledger.create(path, cap=Budget(20.0, DELTA))
        ledger.admit(GaussianEvent(30.0), purpose="means", data="rows").release()
        before = path.read_text()
        word, seen, said = self.run_with_limit(path, len(before) + 500)
        assert word == "refused"
        assert str(path) in said
        again = Ledger.open(path)
        assert steps_in(again) >= int(seen)
        assert any(isinstance(event, GaussianEvent) for event in again.events())
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".json"] == ["privacy.json"]

    def test_room_enough_is_no_error(self, tmp_path):
        path = tmp_path / "privacy.json"
        Ledger.create(path, cap=Budget(20.0, DELTA))
        assert self.run_with_limit(path, 10_000_000)[:2] == ["done", "400"]
        assert steps_in(Ledger.open(path)) == 400

    def test_a_folder_that_is_not_there_or_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        for place in (tmp_path / "missing" / "book.json", tmp_path / "file" / "book.json"):
            with pytest.raises(LedgerError, match=r"book\.json"):
                Ledger.create(place)

    @pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a read-only file system")
    def test_a_folder_that_cannot_be_written(self):
        with pytest.raises(LedgerError, match="cannot"):
            Ledger.create("/proc/ratewise-ledger.json")

    def test_a_fit_whose_ledger_vanished_releases_nothing_unrecorded(self, tmp_path):
        path = tmp_path / "sub" / "privacy.json"
        path.parent.mkdir()
        ledger = Ledger.create(path)
        for entry in path.parent.iterdir():
            entry.unlink()
        path.parent.rmdir()
        seen = []
        with pytest.raises(LedgerError):
            fit(ledger=ledger, callback=lambda record: seen.append(record.step))
        assert seen == []


class TestDamage:
    @pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    @pytest.mark.parametrize("kind", ["flip", "cut", "zero"])
    def test_a_damaged_ledger_is_refused(self, tmp_path, place, kind):
        path = tmp_path / "privacy.json"
        fit(ledger=Ledger.create(path))
        content = bytearray(path.read_bytes())
        at = int(place * len(content))
        if kind == "flip":
            content[at] ^= 1
        elif kind == "cut":
            del content[at:]
        else:
            content[at : at + 8] = bytes(8)
        path.write_bytes(content)
        with pytest.raises(LedgerError):
            Ledger.open(path)

    def test_an_older_copy_put_back_under_a_running_process(self, tmp_path):
        path = tmp_path / "privacy.json"
        ledger = Ledger.create(path)
        old = path.read_bytes()
        ledger.admit(GaussianEvent(10.0), data="rows")
        path.write_bytes(old)
        with pytest.raises(LedgerError, match="replaced"):
            ledger.admit(GaussianEvent(10.0), data="rows")

    def test_a_checksum_of_somebody_elses(self, tmp_path):
        ledger = Ledger()
        ledger.admit(GaussianEvent(10.0), data="rows")
        lines = ledger.to_json()
        forged = lines.replace("10.0", "99.0")
        assert forged != lines
        with pytest.raises(LedgerCorrupt):
            Ledger.from_json(forged)


class TestParallel:
    @pytest.mark.real_noise
    def test_eight_threads_share_one_ledger(self):
        ledger, models, problems = Ledger(cap=Budget(99.0, DELTA)), [], []

        def work():
            try:
                models.append(fit(ledger=ledger))
            except Exception as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert steps_in(ledger) == 8 * STEPS
        self.check_independent([model.model_.scorer.intercept for model in models])
        events = list(models[0].plan_.events.values()) * 8
        assert ledger.total(DELTA) == pytest.approx(accountant.epsilon(events, DELTA, "zero_out"), rel=1e-6)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_eight_forked_processes_on_one_file(self, tmp_path):
        path = tmp_path / "privacy.json"
        Ledger.create(path, cap=Budget(99.0, DELTA))
        command = (
            "import sys, warnings; sys.path.insert(0, sys.argv[2]); warnings.simplefilter('ignore');"
            "import multiprocessing, numpy as np, load;"
            "pool = multiprocessing.get_context('fork').Pool(8);"
            "found = pool.map(load.fit_on, [sys.argv[1]] * 8, chunksize=1);"
            "print(repr([list(map(float, coef)) for coef in found]))"
        )
        folder = Path(__file__).parents[1] / "fuzz"
        found = subprocess.run(
            [sys.executable, "-c", command, str(path), str(folder)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=False,
        )
        assert found.returncode == 0, found.stderr
        self.check_independent(np.array(json.loads(found.stdout)))
        assert steps_in(Ledger.open(path)) == 8 * STEPS

    def check_independent(self, coefficients):
        flat = np.array([np.ravel(found) for found in coefficients])
        assert len(np.unique(flat, axis=0)) == len(flat)
        for column in flat.T:
            assert len(np.unique(column)) == len(column)

    def test_a_cap_is_shared_by_threads(self):
        ledger, refused = Ledger(cap=Budget(1.5, DELTA)), []

        def work():
            try:
                fit(ledger=ledger)
            except BudgetExceeded as problem:
                refused.append(problem)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused
        assert ledger.total() <= 1.5


def test_many_fits_do_not_grow(tmp_path):
    """After a warm-up, ten more fits leave no more memory in use than one fit's small change.

    Tables for drawing noise are kept for the last sixteen scales: a bounded cache, emptied before each look.
    """
    X, y, groups = people()

    def some(count):
        for _ in range(count):
            classifier().fit(X, y, sensitive_features=groups)
        assert normal_table.cache_info().maxsize <= 16
        normal_table.cache_clear()
        gc.collect()

    some(3)
    tracemalloc.start()
    try:
        some(2)
        before = tracemalloc.get_traced_memory()[0]
        some(10)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 60_000  # the rows alone are 36,000 bytes
