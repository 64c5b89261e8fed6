"""The ledger: adds up, refuses in time, survives faults, and reads only what it wrote."""

import contextlib
import copy
import dataclasses
import errno
import json
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise.accounting import accountant, book, storage
from ratewise.accounting.events import (
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    UnprotectedEvent,
)
from ratewise.accounting.ledger import Budget, Ledger
from ratewise.exceptions import (
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    LedgerCorrupt,
    LedgerError,
    LedgerVersion,
    RatewiseWarning,
    UnsupportedCombination,
)

DELTA = 1e-5
GAUSS = GaussianEvent(noise=10.0)
TRAINING = TrainingEvent(sampling_rate=0.02, steps=300, gradient_noise=4.0, histogram_noise=2.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "book.json"


def run(phase, steps):
    with phase:
        for _ in range(steps):
            phase.step()


# --- adding up --------------------------------------------------------------------------------------------


def test_an_empty_book_costs_nothing():
    ledger = Ledger(cap=Budget(1.0, DELTA))
    assert ledger.total(1e-9) == 0
    assert ledger.total_delta(0.0) == 0
    assert ledger.total_epsilon == 0
    assert ledger.remaining == 1
    assert ledger.events() == ()


def test_phases_data_uses_and_resumed_runs_add_up(path):
    ledger = Ledger.create(path)
    ledger.book(GAUSS, purpose="feature means", data="train")
    run(ledger.phase(TRAINING, purpose="training", data="train"), 100)
    resumed = Ledger.open(path)
    run(resumed.phase(TRAINING.with_steps(1), planned_steps=200, data="train"), 200)
    resumed.book(LaplaceEvent(noise=20.0, count=3), purpose="evaluation", data="holdout")
    everything = (GAUSS, TRAINING, LaplaceEvent(noise=20.0, count=3))
    for handle in (ledger, resumed, Ledger.open(path)):
        assert handle.events() == everything
        assert handle.total(DELTA) == accountant.epsilon(everything, DELTA)
        assert handle.total(DELTA, data="holdout") == accountant.epsilon(everything[2], DELTA)
        assert handle.events("train") == everything[:2]
        assert handle.data_uses == ("train", "holdout")
        assert handle.unsettled_steps == 0


def test_total_delta_and_total_agree():
    ledger = Ledger()
    ledger.book(GAUSS)
    assert ledger.total_delta(ledger.total(DELTA)) == pytest.approx(DELTA, rel=0.01)


def test_equal_releases_are_merged_even_when_not_in_a_row():
    ledger = Ledger()
    for _ in range(3):
        ledger.book(GaussianEvent(noise=10, count=2))
        ledger.book(UnprotectedEvent("a picture"))
    assert ledger.events() == (GaussianEvent(noise=10, count=6), *[UnprotectedEvent("a picture")] * 3)


def test_totals_are_computed_once(monkeypatch):
    ledger = Ledger()
    ledger.book(GAUSS)
    asked = []
    real = accountant.epsilon
    monkeypatch.setattr(accountant, "epsilon", lambda *a, **k: asked.append(a) or real(*a, **k))
    first = ledger.total(DELTA)
    assert ledger.total(DELTA) == first
    assert len(asked) == 1
    ledger.book(GAUSS)
    assert ledger.total(DELTA) > first
    assert len(asked) == 2


def test_neighbours_belong_to_the_book(path):
    assert Ledger.create(path, neighbours="replace_one").neighbours == "replace_one"
    ledger = Ledger.open(path)
    ledger.book(GAUSS)
    assert ledger.total(DELTA) == accountant.epsilon(GAUSS, DELTA, "replace_one")
    assert ledger.total(DELTA) > accountant.epsilon(GAUSS, DELTA)


def test_an_unprotected_release_makes_the_total_infinite():
    ledger = Ledger()
    ledger.book(UnprotectedEvent("raw mean"))
    assert ledger.total(DELTA) == math.inf


def test_what_cannot_be_accounted_is_refused_before_it_happens(path):
    ledger = Ledger.create(path)
    with pytest.raises(UnsupportedCombination):
        ledger.book(OutsideEvent(epsilon=1.0, neighbours="replace_one"))
    assert Ledger.open(path).records == ()


def test_every_kind_of_event_survives_the_file(path):
    events = [
        TRAINING,
        TrainingEvent(0.1, 5, None, 3.0, "laplace"),
        GAUSS,
        LaplaceEvent(2.0),
        SelectionEvent((TRAINING,), mean_trials=4, shape=math.inf),
        OutsideEvent(0.1, description="counts, \u00e9tude \ud800"),
        UnprotectedEvent("plot"),
    ]
    ledger = Ledger.create(path)
    booked = [ledger.book(event, purpose="p") for event in events]
    assert list(Ledger.open(path).records) == booked
    assert [record.event for record in Ledger.from_json(ledger.to_json()).records] == events


def test_the_clock_may_run_backwards(path, monkeypatch):
    times = iter(f"19{99 - number}-01-01" for number in range(90))
    monkeypatch.setattr(book, "now", lambda: next(times))
    monkeypatch.setattr("ratewise.accounting.ledger.now", lambda: next(times))
    monkeypatch.setattr("ratewise.accounting.phase.now", lambda: next(times))
    ledger = Ledger.create(path)
    ledger.book(GAUSS)
    run(ledger.phase(LaplaceEvent(9.0), planned_steps=200, stride=7), 150)
    assert Ledger.open(path).events() == (GAUSS, LaplaceEvent(9.0, count=150))


# --- phases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt, SystemExit, BudgetExceeded])
def test_a_phase_is_settled_however_it_ends(path, error):
    ledger = Ledger.create(path)
    phase = ledger.phase(TRAINING)

    def train():
        with phase:
            for _ in range(70):
                phase.step()
            if error is not None:
                raise error

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        train()
    assert Ledger.open(path).events() == (TRAINING.with_steps(70),)
    assert phase.ran == 70
    with pytest.raises(LedgerError, match="settled"):
        phase.step()
    with pytest.raises(LedgerError, match="settled"), phase:
        pass
    assert Ledger.open(path).events() == (TRAINING.with_steps(70),)


def test_a_phase_without_steps_counts_nothing():
    ledger = Ledger()
    run(ledger.phase(TRAINING), 0)
    assert ledger.events() == ()


def test_a_phase_outside_its_block_takes_no_step():
    with pytest.raises(LedgerError, match="new"):
        Ledger().phase(TRAINING).step()


def test_what_is_on_disk_is_never_too_low_nor_far_too_high(path):
    ledger = Ledger.create(path)
    with ledger.phase(LaplaceEvent(noise=50.0), planned_steps=3000) as phase:
        for ran in range(1, 3001):
            phase.step()
            assert ran <= ledger.unsettled_steps <= ran + max(64, ran // 4) - 1
        assert Ledger.open(path).unsettled_steps == 3000
    assert len(ledger.records) < 40


def test_a_stride_of_one_over_counts_by_a_quarter_at_most():
    ledger = Ledger()
    with ledger.phase(LaplaceEvent(noise=50.0), planned_steps=100, stride=1) as phase:
        for ran in range(1, 101):
            phase.step()
            assert ran <= ledger.unsettled_steps <= ran + ran // 4


def test_without_a_cap_steps_beyond_the_plan_are_booked():
    ledger = Ledger()
    run(ledger.phase(GAUSS, planned_steps=2), 100)
    assert ledger.events() == (GaussianEvent(10.0, count=100),)


def test_threads_may_share_a_phase():
    ledger = Ledger()
    with ledger.phase(GAUSS, planned_steps=8000) as phase:
        threads = [threading.Thread(target=lambda: [phase.step() for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ledger.events() == (GaussianEvent(10.0, count=8000),)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["book", "phase", "crash"]), st.integers(1, 300), st.integers(1, 90)),
        max_size=8,
    )
)
def test_any_history_counts_the_truth_and_at_most_a_stride_more_per_crash(history):
    ledger, truth, slack = Ledger(), 0, 0
    for kind, steps, stride in history:
        if kind == "book":
            ledger.book(GaussianEvent(10.0, count=steps))
        else:
            phase = ledger.phase(GAUSS, planned_steps=steps + 40, stride=stride)
            phase.__enter__()
            for _ in range(steps):
                phase.step()
            if kind == "phase":
                phase.__exit__(None, None, None)
            else:
                slack += max(stride, steps // 4)
            ledger = Ledger.from_json(ledger.to_json())
        truth += steps
    found = sum(event.count for event in ledger.events())
    assert truth <= found <= truth + slack


# --- the cap ----------------------------------------------------------------------------------------------


def test_the_cap_refuses_before_anything_happens(path):
    ledger = Ledger.create(path, cap=Budget(epsilon=1.0, delta=DELTA))
    ledger.book(GAUSS)
    before = path.read_bytes()
    big = GaussianEvent(noise=1.0)
    assert ledger.would_exceed(big)
    assert ledger.would_exceed([GAUSS, big])
    assert not ledger.would_exceed(GAUSS)
    with pytest.raises(BudgetExceeded, match=r"'means' would bring epsilon to .* above the cap of 1"):
        ledger.book(big, purpose="means")
    with pytest.raises(BudgetExceeded, match="500 planned steps"), ledger.phase(GAUSS, planned_steps=500):
        pytest.fail("the block must not run")
    assert path.read_bytes() == before
    assert ledger.remaining == 1.0 - ledger.total_epsilon


def test_the_cap_is_in_the_file(path):
    Ledger.create(path, cap=Budget(epsilon=0.1, delta=DELTA))
    assert Ledger.open(path).cap == Budget(0.1, DELTA)
    with pytest.raises(BudgetExceeded):
        Ledger.open(path).book(GAUSS)


def test_remaining_steps_is_exact():
    ledger = Ledger(cap=Budget(epsilon=1.0, delta=DELTA))
    ledger.book(GaussianEvent(noise=8.0))
    step = TRAINING.with_steps(1)
    fits = ledger.remaining_steps(step)
    assert fits > 10
    assert not ledger.would_exceed(step.with_steps(fits))
    assert ledger.would_exceed(step.with_steps(fits + 1))
    assert ledger.remaining_steps(step, at_most=3) == 3
    assert ledger.remaining_steps(GaussianEvent(noise=0.5)) == 0
    run(ledger.phase(step, planned_steps=fits), fits)
    assert ledger.total_epsilon <= 1.0
    assert ledger.remaining_steps(step) == 0


def test_steps_beyond_the_plan_stop_at_the_cap():
    ledger = Ledger(cap=Budget(epsilon=1.0, delta=DELTA))
    fits = ledger.remaining_steps(GAUSS)
    with ledger.phase(GAUSS, planned_steps=2) as phase:
        for _ in range(fits):
            phase.step()
        with pytest.raises(BudgetExceeded, match="2 planned"):
            phase.step()
    assert phase.ran == fits
    assert ledger.events() == (GaussianEvent(10.0, count=fits),)


def test_open_phases_keep_the_budget_they_plan():
    ledger = Ledger(cap=Budget(epsilon=1.0, delta=DELTA))
    fits = ledger.remaining_steps(GAUSS)
    with ledger.phase(GAUSS, planned_steps=fits, stride=1) as phase:
        phase.step()
        assert ledger.would_exceed(GAUSS)
        with pytest.raises(BudgetExceeded):
            ledger.book(GAUSS)
        for _ in range(fits - 1):
            phase.step()
    assert ledger.total_epsilon <= 1


def test_a_budget_spent_by_another_process_ends_a_phase_in_time(path):
    ledger = Ledger.create(path, cap=Budget(epsilon=1.0, delta=DELTA))
    fits = ledger.remaining_steps(GAUSS)
    elsewhere = Ledger.open(path)  # another handle knows as little of our plan as another process
    with ledger.phase(GAUSS, planned_steps=fits, stride=1) as phase:
        phase.step()
        elsewhere.book(GaussianEvent(noise=10.0, count=3))
        for _ in range(fits - 4):
            phase.step()
        with pytest.raises(BudgetExceeded):
            phase.step()
    assert Ledger.open(path).events() == (GaussianEvent(10.0, count=fits),)


def test_a_capped_phase_asks_the_accountant_once(monkeypatch):
    ledger = Ledger(cap=Budget(epsilon=5.0, delta=DELTA))
    asked = []
    real = accountant.epsilon
    monkeypatch.setattr(accountant, "epsilon", lambda *a, **k: asked.append(a) or real(*a, **k))
    run(ledger.phase(LaplaceEvent(900.0), planned_steps=1000), 1000)
    assert len(asked) == 1


# --- files that cannot be trusted -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    ledger = Ledger(cap=Budget(3.0, DELTA))
    ledger.book(GAUSS, purpose="means", data="train")
    run(ledger.phase(TRAINING, purpose="training"), 70)
    return ledger.to_json()


def changed(good, change):
    document = json.loads(good)
    change(document)
    return json.dumps(document)


def resealed(good, change):
    """Return a document with another content and a checksum that fits it."""
    document = json.loads(good)
    change(document)
    lines = [book.canonical(record) for record in document["records"]]
    document["checksum"] = book._checksum(book.canonical(document["book"]), lines)
    return json.dumps(document)


def test_every_truncation_is_noticed(good, path):
    for length in range(len(good.rstrip())):
        with pytest.raises(LedgerCorrupt):
            Ledger.from_json(good[:length])
    path.write_text(good[:-20])
    with pytest.raises(LedgerCorrupt, match=r"book\.json.*truncated or not JSON; restore a copy"):
        Ledger.open(path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_edit_goes_unnoticed(good, data):
    position = data.draw(st.integers(0, len(good) - 1))
    letter = data.draw(st.sampled_from('0123456789ae+-."{}[], \n'))
    try:
        found = Ledger.from_json(good[:position] + letter + good[position + 1 :])
    except (LedgerCorrupt, LedgerVersion):
        return
    assert found.to_json() == good


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["records"][0]["event"].update(noise=1000.0), "checksum does not match"),
        (lambda d: d["records"].pop(), "checksum does not match"),
        (lambda d: d["records"].reverse(), "checksum does not match"),
        (lambda d: d["book"].update(cap=None), "checksum does not match"),
        (lambda d: d.update(checksum="sha256:0"), "checksum does not match"),
        (lambda d: d.pop("checksum"), "lacks its book, records or checksum"),
        (lambda d: d.pop("records"), "lacks its book, records or checksum"),
        (lambda d: d.pop("book"), "lacks its book, records or checksum"),
        (lambda d: d.update(records={}), "lacks its book, records or checksum"),
        (lambda d: d.pop("format"), "no ledger"),
        (lambda d: d.update(format="notes"), "no ledger"),
    ],
)
def test_edits_are_named(good, change, words):
    with pytest.raises(LedgerCorrupt, match=words):
        Ledger.from_json(changed(good, change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["records"][0].pop("data"), "missing or unknown fields: data"),
        (lambda d: d["records"][0].update(extra=1), "missing or unknown fields: extra"),
        (lambda d: d["records"][0].update(record="poem"), "record must be one of"),
        (lambda d: d["records"][0].update(record=["x"]), "record must be one of"),
        (lambda d: d["records"][0].update(event=None), "event description"),
        (lambda d: d["records"][0]["event"].update(kind="magic"), "kind must be one of"),
        (lambda d: d["records"][0]["event"].update(noise=-1), "noise must be above 0"),
        (lambda d: d["records"][0].update(purpose=3), "purpose must be text"),
        (lambda d: d["records"][-1].update(steps=10**6), "settles 1000000 steps"),
        (lambda d: d["records"][-1].update(steps=-1), "steps must be at least 0"),
        (lambda d: d["records"][-1].update(phase="other"), "not open"),
        (lambda d: d["records"].append(d["records"][-1]), "not open"),
        (lambda d: d["records"].append(d["records"][1]), "begins twice"),
        (lambda d: d["records"][1]["event"].update(steps=2), "more than one step"),
        (lambda d: d["records"].append(7), "record must be a mapping"),
        (lambda d: d["book"].update(neighbours="siblings"), "neighbours must be one of"),
        (lambda d: d["book"].update(cap=[1]), "cannot be trusted"),
        (lambda d: d["book"].update(cap={"epsilon": -1, "delta": 0.1}), "epsilon must be above 0"),
        (lambda d: d["book"].pop("id"), "cannot be trusted"),
        (lambda d: d["book"].update(id=5), "id must be text"),
    ],
)
def test_nonsense_with_a_fitting_checksum_is_refused(good, change, words):
    with pytest.raises(LedgerCorrupt, match=words):
        Ledger.from_json(resealed(good, change))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"\xff\xfe\x00",
        b"PK\x03\x04",
        b"[" * 100_000,
        b"{}{}",
        b"1" * 9999,
    ],
    ids=repr,
)
def test_what_is_no_ledger_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupt, match=r"book\.json"):
        Ledger.open(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_json_are_refused(good, number):
    assert good.count('"noise":10.0') == 1
    with pytest.raises(LedgerCorrupt):
        Ledger.from_json(good.replace('"noise":10.0', f'"noise":{number}'))


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, True, 1.5])
def test_unknown_versions_are_refused(good, path, version):
    path.write_text(changed(good, lambda d: d.update(version=version)))
    with pytest.raises(LedgerVersion, match=r"book\.json.*this ratewise knows version 1; open it with"):
        Ledger.open(path)


def test_the_document_is_strict_json_with_one_record_per_line(good):
    document = json.loads(good, parse_constant=pytest.fail)
    assert (document["format"], document["version"]) == ("ratewise-ledger", 1)
    assert len([line for line in good.splitlines() if '"record":' in line]) == len(document["records"])
    assert Ledger.from_json(json.dumps(document, indent=3)).to_json() == good


# --- files that cannot be read or written -----------------------------------------------------------------


def test_create_never_overwrites(path):
    path.write_text("precious")
    with pytest.raises(LedgerError, match=r"exists already; go on with it by Ledger\.open"):
        Ledger.create(path)
    assert path.read_text() == "precious"


def test_at_opens_or_starts(path):
    cap = Budget(1.0, DELTA)
    Ledger.at(path, cap=cap).book(GAUSS)
    assert Ledger.at(path, cap=cap).events() == (GAUSS,)
    with pytest.raises(InvalidInput, match="fixed when a book is started"):
        Ledger.at(path)
    with pytest.raises(InvalidInput, match="fixed when a book is started"):
        Ledger.at(path, cap=cap, neighbours="zero_out")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(LedgerError, match=r"no ledger at .*Ledger\.create"):
        Ledger.open(tmp_path / "none.json")
    with pytest.raises(LedgerError, match="cannot read"):
        Ledger.open(tmp_path)
    for start in (Ledger.create, Ledger.at):
        with pytest.raises(LedgerError, match="folder must exist and be writable"):
            start(tmp_path / "none" / "book.json")


FAULTS = [(name, code) for name in ("write", "fsync", "replace") for code in (errno.ENOSPC, errno.EIO)]


@pytest.mark.parametrize(("function", "code"), [*FAULTS, ("open", errno.EROFS), ("open", errno.EACCES)])
def test_a_failed_write_refuses_the_release_and_keeps_the_file(path, monkeypatch, function, code):
    ledger = Ledger.create(path)
    ledger.book(GAUSS)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, function, fail)
        with pytest.raises(LedgerError, match=os.strerror(code)):
            ledger.book(GAUSS)
        with pytest.raises(LedgerError, match=os.strerror(code)), ledger.phase(TRAINING):
            pytest.fail("the block must not run")
    assert path.read_bytes() == before
    assert ledger.events() == (GAUSS,)
    assert not (path.parent / ".book.json.tmp").exists()
    ledger.book(GAUSS)
    assert Ledger.open(path).events() == (GaussianEvent(10.0, count=2),)


def test_a_disk_that_fills_up_while_a_phase_runs(path, monkeypatch):
    ledger = Ledger.create(path)

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def train():
        with ledger.phase(TRAINING, stride=10) as phase:
            for _ in range(15):
                phase.step()
            monkeypatch.setattr(storage.os, "fsync", fail)
            for _ in range(5):
                phase.step()
            with pytest.raises(LedgerError, match="nothing may be released"):
                phase.step()
            assert phase.ran == 20

    with pytest.warns(RatewiseWarning, match="20 steps ran.*stay counted.*No space left"):
        train()
    assert Ledger.open(path).events() == (TRAINING.with_steps(20),)


def test_a_write_that_fails_after_the_file_was_replaced_counts_too_much_not_too_little(path, monkeypatch):
    ledger = Ledger.create(path)

    def fail():
        raise OSError(errno.EIO, "the folder")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._file, "_flush_folder", fail)
        with pytest.raises(LedgerError, match="the folder"):
            ledger.book(GAUSS)
    assert ledger.events() == Ledger.open(path).events() == (GAUSS,)
    ledger.book(GAUSS)
    assert Ledger.open(path).events() == (GaussianEvent(10.0, count=2),)


def test_content_reaches_the_disk_before_the_name_and_the_name_before_the_release(path, monkeypatch):
    ledger = Ledger.create(path)
    calls = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def note(*args, name=name, real=real):
            folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            calls.append("flush folder" if folder else name)
            return real(*args)

        monkeypatch.setattr(storage.os, name, note)
    ledger.book(GAUSS)
    assert calls == ["write", "fsync", "replace", "flush folder"]


def test_a_phase_that_could_not_begin_may_be_tried_again(path, monkeypatch):
    ledger = Ledger.create(path)
    phase = ledger.phase(GAUSS, planned_steps=4)

    def fail():
        raise OSError(errno.EIO, "the folder")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._file, "_flush_folder", fail)
        with pytest.raises(LedgerError, match="the folder"):
            run(phase, 4)
    run(phase, 3)
    assert ledger.unsettled_steps == 4
    assert Ledger.open(path).events() == (GaussianEvent(10.0, count=7),)


def test_a_file_that_goes_away_or_goes_back_in_time_is_noticed(path):
    ledger = Ledger.create(path)
    ledger.book(GAUSS)
    older = path.read_bytes()
    ledger.book(GAUSS)
    newest = path.read_bytes()
    path.write_bytes(older)
    for use in (lambda: ledger.total(DELTA), lambda: ledger.book(GAUSS)):
        with pytest.raises(LedgerError, match="older copy"):
            use()
    path.unlink()
    for use in (lambda: ledger.total(DELTA), lambda: ledger.book(GAUSS)):
        with pytest.raises(LedgerError, match="has gone"):
            use()
    path.write_bytes(newest)
    assert ledger.events() == (GaussianEvent(10.0, count=2),)


def test_a_link_is_followed_and_stays_a_link(tmp_path, path):
    link = tmp_path / "link.json"
    link.symlink_to(path)
    Ledger.create(path)
    Ledger.open(link).book(GAUSS)
    assert link.is_symlink()
    assert Ledger.open(path).events() == (GAUSS,)


def test_a_lock_that_is_never_given_up_ends_in_a_message(path, monkeypatch):
    ledger = Ledger.create(path)
    monkeypatch.setattr(storage, "LOCK_PATIENCE", 0.02)
    with storage.AtomicFile(path).locked(), pytest.raises(LedgerError, match="another process has held"):
        ledger.book(GAUSS)
    ledger.book(GAUSS)


# --- many at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handles", ["one", "each", "memory"])
def test_threads_lose_nothing(path, handles):
    shared = Ledger() if handles == "memory" else Ledger.create(path)
    failures = []

    def work():
        try:
            ledger = Ledger.open(path) if handles == "each" else shared
            for _ in range(5):
                ledger.book(GAUSS)
            run(ledger.phase(LaplaceEvent(9.0), planned_steps=20, stride=4), 15)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert dict(book.summed(book.unit(event) for event in shared.events())) == {
        GAUSS: 30,
        LaplaceEvent(9.0): 90,
    }


def test_processes_and_forks_lose_nothing(path):
    """In an interpreter of its own, because forking is no pastime for a process with a test runner in it."""
    script = """
        import os, sys
        from ratewise.accounting.events import GaussianEvent, LaplaceEvent
        from ratewise.accounting.ledger import Ledger
        from ratewise.exceptions import LedgerError

        def in_children(number, work):
            children = []
            for _ in range(number):
                child = os.fork()
                if child == 0:
                    try:
                        work()
                        os._exit(0)
                    except BaseException as error:
                        print(repr(error), file=sys.stderr, flush=True)
                        os._exit(1)
                children.append(child)
            for child in children:
                assert os.waitpid(child, 0)[1] == 0

        def refused(action, words):
            try:
                action()
            except LedgerError as error:
                assert words in str(error), error
            else:
                raise AssertionError("not refused")

        path = sys.argv[1]
        inherited = Ledger.at(path)

        def work():
            fresh = Ledger.at(path)
            for ledger in (inherited, fresh):
                for _ in range(4):
                    ledger.book(GaussianEvent(10.0))
                with ledger.phase(LaplaceEvent(9.0), planned_steps=9, stride=2) as phase:
                    for _ in range(7):
                        phase.step()

        in_children(6, work)
        assert inherited.events() == Ledger.open(path).events()
        assert {e.kind: e.count for e in inherited.events()} == {"gaussian": 48, "laplace": 84}

        memory = Ledger()
        memory.book(GaussianEvent(10.0))
        in_children(1, lambda: refused(lambda: memory.book(GaussianEvent(10.0)), "memory of another process"))
        assert not memory.read_only

        def leave(phase):
            refused(phase.step, "open in another process")
            phase.__exit__(None, None, None)

        for ledger in (memory, inherited):
            with ledger.phase(LaplaceEvent(3.0), planned_steps=50, stride=5) as phase:
                for _ in range(8):
                    phase.step()
                in_children(1, lambda: leave(phase))
                for _ in range(8):
                    phase.step()
            assert ledger.events()[-1] == LaplaceEvent(3.0, count=16)
        print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


# --- manners ----------------------------------------------------------------------------------------------


def test_copies_are_the_same_book():
    ledger = Ledger()
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger


@pytest.mark.parametrize("kept", ["file", "memory"])
def test_a_pickled_book_is_faithful_and_read_only(path, kept):
    ledger = Ledger.create(path, cap=Budget(1.0, DELTA)) if kept == "file" else Ledger(cap=Budget(1.0, DELTA))
    ledger.book(GAUSS)
    found = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(ledger))))
    assert found.read_only
    assert found.records == ledger.records
    assert found.cap == ledger.cap
    assert found.total_epsilon == ledger.total_epsilon
    assert "read-only copy" in repr(found)
    way_out = r"Ledger\.open\(" if kept == "file" else r"Ledger\.from_json"
    for use in (lambda: found.book(GAUSS), lambda: run(found.phase(TRAINING), 1)):
        with pytest.raises(LedgerError, match=way_out):
            use()
    revived = Ledger.from_json(found.to_json())
    revived.book(GAUSS)
    assert len(revived.records) == 2


def test_a_phase_is_neither_pickled_nor_copied():
    with pytest.raises(InvalidType, match="cannot be pickled"):
        pickle.dumps(Ledger().phase(TRAINING))


def test_records_are_frozen_and_tell_what_they_are():
    ledger = Ledger()
    record = ledger.book(GAUSS, purpose="means", data="train")
    assert (record.event, record.purpose, record.data) == (GAUSS, "means", "train")
    assert record.version
    assert record.time.endswith("+00:00")
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.purpose = "other"
    assert ledger.records == (record,)
    ledger.records[:0]
    assert repr(ledger) == "Ledger(1 record, in memory, cap=None, neighbours='add_or_remove')"
    assert repr(ledger.phase(TRAINING)).endswith("new, 0 of 300 steps)")


class Homemade(GaussianEvent):
    kind = "homemade"


def tampered(description):
    event = UnprotectedEvent()
    object.__setattr__(event, "description", description)
    return event


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda led: led.book("gaussian"), InvalidType, "event must be an event"),
        (lambda led: led.book([GAUSS]), InvalidType, "event must be an event"),
        (lambda led: led.book(GAUSS, purpose=3), InvalidType, "purpose must be text, got 3"),
        (lambda led: led.book(GAUSS, data=""), InvalidInput, "data must not be empty"),
        (lambda led: led.book(GAUSS, data=None), InvalidType, "data must be text, got None"),
        (lambda led: led.book(tampered(object())), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.book(tampered([])), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.book(tampered(math.nan)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.book(tampered(math.inf)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.book(Homemade(1.0)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.phase(UnprotectedEvent()), InvalidType, "book other events one by one"),
        (lambda led: led.phase(None), InvalidType, "got NoneType"),
        (lambda led: led.phase(TRAINING, planned_steps=5), InvalidInput, "got an event of 300 steps"),
        (lambda led: led.phase(GAUSS, planned_steps=0), InvalidInput, "planned_steps must be at least 1"),
        (lambda led: led.phase(GAUSS, planned_steps=math.nan), InvalidInput, "planned_steps must be finite"),
        (lambda led: led.phase(GAUSS, planned_steps="5"), InvalidType, "planned_steps must be a number"),
        (lambda led: led.phase(GAUSS, stride=0), InvalidInput, "stride must be at least 1"),
        (lambda led: led.phase(GAUSS, purpose=b""), InvalidType, "purpose must be text"),
        (lambda led: led.total(), InvalidInput, "delta must be given"),
        (lambda led: led.total_epsilon, InvalidInput, "delta must be given"),
        (lambda led: led.total(0), InvalidInput, "delta must be strictly between 0 and 1, got 0"),
        (lambda led: led.total(1.0), InvalidInput, "delta must be strictly between"),
        (lambda led: led.total(-1e-5), InvalidInput, "delta must be strictly between"),
        (lambda led: led.total(math.nan), InvalidInput, "delta must be finite"),
        (lambda led: led.total("1e-5"), InvalidType, "delta must be a number"),
        (lambda led: led.total(DELTA, data="other"), InvalidInput, "data must be a data use of this book"),
        (lambda led: led.total(DELTA, data=1), InvalidType, "data must be text"),
        (lambda led: led.total_delta(-1.0), InvalidInput, "epsilon must be at least 0"),
        (lambda led: led.would_exceed([]), InvalidInput, "events must hold at least one event"),
        (lambda led: led.would_exceed(3), InvalidType, "events must be an event or a list"),
        (lambda led: led.remaining_steps(GAUSS, at_most=0), InvalidInput, "at_most must be at least 1"),
        (lambda led: Ledger(cap=1.0), InvalidType, r"cap must be a Budget\(epsilon, delta\) or None"),
        (lambda led: Ledger(neighbours="both"), InvalidInput, "neighbours must be one of"),
        (lambda led: Budget(0, DELTA), InvalidInput, "epsilon must be above 0"),
        (lambda led: Budget(math.inf, DELTA), InvalidInput, "epsilon must be finite"),
        (lambda led: Budget(1, 1), InvalidInput, "delta must be strictly between"),
        (lambda led: Budget(1, 0), InvalidInput, "delta must be strictly between"),
        (lambda led: Ledger.open(3), InvalidType, "path must be text or a path object, got 3"),
        (lambda led: Ledger.open(b"x"), InvalidType, "path must be text"),
        (lambda led: Ledger.create(""), InvalidInput, "path must name a file"),
        (lambda led: Ledger.create("a\0b"), InvalidInput, "path must name a file"),
        (lambda led: Ledger.from_json(None), InvalidType, "document must be JSON text"),
    ],
)
def test_bad_input_has_one_clear_message(use, error, words):
    ledger = Ledger()
    with pytest.raises(error, match=words) as caught:
        use(ledger)
    assert type(caught.value) is error
    assert ledger.records == ()
