"""The ledger: admits whole plans, adds up, refuses in time, survives faults, and reads only what it wrote."""

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

from ratewise import _files
from ratewise.accounting import accountant, storage
from ratewise.accounting.events import (
    Budget,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    PrivacyUnit,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
)
from ratewise.accounting.ledger import Ledger
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
    return tmp_path / "ledger.json"


def run(phase, steps):
    with phase:
        for _ in range(steps):
            phase.step()


def released(ledger):
    """Return how many repetitions may have happened, over all plans."""
    return sum(sum(plan.released.values()) for plan in ledger.admissions)


# --- adding up --------------------------------------------------------------------------------------------


def test_an_empty_ledger_costs_nothing():
    ledger = Ledger(cap=Budget(1.0, DELTA))
    assert ledger.total(1e-9) == 0
    assert ledger.total() == 0
    assert ledger.spent == 0
    assert ledger.events() == ()
    assert ledger.statement().epsilon == 0


def test_plans_and_data_uses_add_up(path):
    ledger = Ledger.create(path)
    fit = ledger.admit({"feature means": GAUSS, "training": TRAINING}, purpose="fit", data="train")
    resumed = Ledger.open(path)
    resumed.admit(LaplaceEvent(noise=20.0, count=3), purpose="evaluation", data="holdout")
    fit.release("feature means")
    run(fit.phase("training"), 100)
    everything = (GAUSS, TRAINING, LaplaceEvent(noise=20.0, count=3))
    for handle in (ledger, resumed, Ledger.open(path)):
        assert handle.events() == everything
        assert handle.total(DELTA) == accountant.epsilon(everything, DELTA)
        assert [plan.data for plan in handle.admissions] == ["train", "holdout"]
        assert [plan.purpose for plan in handle.admissions] == ["fit", "evaluation"]
        assert handle.admission(fit.id).released == {"feature means": 1, "training": 100}


def test_a_plan_is_admitted_as_a_whole_or_not_at_all(path):
    ledger = Ledger.create(path, cap=Budget(1.0, DELTA))
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded):
        ledger.admit({"fits": GAUSS, "does not": GaussianEvent(0.5)})
    assert path.read_bytes() == before
    assert ledger.admissions == ()


def test_a_run_goes_on_after_a_crash_with_what_is_left(path):
    plan = Ledger.create(path).admit({"training": TRAINING})
    phase = plan.phase("training")
    phase.__enter__()
    for _ in range(100):
        phase.step()
    # the process dies here: 64 + 64 steps were reserved
    found = Ledger.open(path).admission(plan.id)
    assert found.released == {"training": 128}
    assert found.left("training") == 300 - 128
    run(found.phase("training"), 172)
    assert found.left("training") == 0
    assert Ledger.open(path).events() == (TRAINING,)


def test_equal_releases_are_merged_even_when_not_in_a_row():
    ledger = Ledger()
    for _ in range(3):
        ledger.admit(GaussianEvent(noise=10, count=2))
        ledger.admit(UnprotectedEvent("a picture"))
    assert ledger.events() == (GaussianEvent(noise=10, count=6), *[UnprotectedEvent("a picture")] * 3)


def test_totals_are_computed_once(monkeypatch):
    ledger = Ledger()
    ledger.admit(GAUSS)
    asked = []
    real = accountant.epsilon
    monkeypatch.setattr(accountant, "epsilon", lambda *a, **k: asked.append(a) or real(*a, **k))
    first = ledger.total(DELTA)
    assert ledger.total(DELTA) == first
    assert len(asked) == 1
    ledger.admit(GAUSS)
    assert ledger.total(DELTA) > first
    assert len(asked) == 2


def test_neighbours_belong_to_the_ledger(path):
    assert Ledger.create(path, neighbours="replace_one").neighbours == "replace_one"
    ledger = Ledger.open(path)
    ledger.admit(GAUSS)
    assert ledger.total(DELTA) == accountant.epsilon(GAUSS, DELTA, "replace_one")
    assert ledger.total(DELTA) > accountant.epsilon(GAUSS, DELTA)


def test_relations_with_the_same_curves_share_a_ledger():
    for one in ("add_or_remove", "zero_out"):
        assert Ledger(neighbours=one).accepts("add_or_remove")
        assert Ledger(neighbours=one).accepts("zero_out")
        assert not Ledger(neighbours=one).accepts("replace_one")
        assert not Ledger(neighbours="replace_one").accepts(one)
    assert Ledger(neighbours="replace_one").accepts("replace_one")
    with pytest.raises(InvalidInput, match="neighbours must be one of"):
        Ledger().accepts("both")


def test_an_unprotected_release_makes_the_total_infinite():
    ledger = Ledger()
    ledger.admit(UnprotectedEvent("raw mean"))
    assert ledger.total(DELTA) == math.inf
    for adaptive in (True, False):
        assert Ledger(cap=Budget(9.0, DELTA), adaptive=adaptive).would_exceed(UnprotectedEvent())


def test_what_cannot_be_accounted_is_refused_before_it_happens(path):
    ledger = Ledger.create(path)
    with pytest.raises(UnsupportedCombination):
        ledger.admit(OutsideEvent(epsilon=1.0, neighbours="replace_one"))
    assert Ledger.open(path).records == ()


def test_every_kind_of_event_survives_the_file(path):
    events = (
        TRAINING,
        TrainingEvent(0.1, 5, None, 3.0, "laplace"),
        GAUSS,
        ThresholdEvent(12.0, 1e-7),
        LaplaceEvent(2.0),
        SelectionEvent((TRAINING,), mean_trials=4),
        OutsideEvent(0.1, description="counts, \u00e9tude \ud800"),
        UnprotectedEvent("plot"),
    )
    ledger = Ledger.create(path)
    plan = ledger.admit(events, purpose="p", unit=PrivacyUnit("id", "person", 5, "row"))
    found = Ledger.open(path)
    assert found.records == ledger.records
    assert found.admissions[0].events == plan.events == events
    assert found.admissions[0].unit == found.unit == PrivacyUnit("id", "person", 5, "row")
    assert found.admissions[0].names[:2] == ("training 1", "training 2")
    assert Ledger.from_json(ledger.to_json()).records == ledger.records


# --- releases and phases ----------------------------------------------------------------------------------


def test_releases_are_named_by_name_or_position():
    ledger = Ledger()
    plan = ledger.admit({"a": GAUSS, "b": GaussianEvent(10.0, count=3), "c": LaplaceEvent(2.0)})
    plan.release("a")
    assert plan.released == {"a": 1, "b": 0, "c": 0}
    plan.release(1)
    plan.release("c")
    assert plan.released == {"a": 1, "b": 3, "c": 1}
    plan.release()
    for key in ("d", 3, -1, GaussianEvent(3.0)):
        with pytest.raises(InvalidInput, match="is not in this plan, which has 'a', 'b', 'c'"):
            plan.release(key)


def test_release_without_a_name_releases_what_is_left():
    plan = Ledger().admit({"a": GAUSS, "b": GaussianEvent(20.0, count=3)})
    plan.release("a")
    plan.release()
    assert plan.released == {"a": 1, "b": 3}


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt, SystemExit, BudgetExceeded])
def test_a_phase_returns_unused_steps_however_it_ends(path, error):
    plan = Ledger.create(path).admit(TRAINING)
    phase = plan.phase(0)

    def train():
        with phase:
            for _ in range(70):
                phase.step()
            if error is not None:
                raise error

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        train()
    assert released(Ledger.open(path)) == 70
    assert phase.ran == 70
    with pytest.raises(LedgerError, match="closed"):
        phase.step()
    with pytest.raises(LedgerError, match="closed"), phase:
        pass
    assert released(Ledger.open(path)) == 70
    assert Ledger.open(path).events() == (TRAINING,)


def test_a_phase_outside_its_block_takes_no_step():
    with pytest.raises(LedgerError, match="new"):
        Ledger().admit(TRAINING).phase(0).step()


def test_what_is_on_disk_is_never_too_low_nor_far_too_high(path):
    ledger = Ledger.create(path)
    with ledger.admit(LaplaceEvent(noise=50.0, count=3000)).phase(0) as phase:
        for ran in range(1, 3001):
            phase.step()
            assert ran <= released(ledger) <= ran + max(64, ran // 4) - 1
        assert released(Ledger.open(path)) == 3000
    assert len(ledger.records) < 40


def test_a_stride_of_one_reserves_a_quarter_more_at_most():
    ledger = Ledger()
    with ledger.admit(LaplaceEvent(noise=50.0, count=100)).phase(0, stride=1) as phase:
        for ran in range(1, 101):
            phase.step()
            assert ran <= released(ledger) <= ran + ran // 4


def test_threads_may_share_a_phase():
    ledger = Ledger()
    with ledger.admit(GaussianEvent(10.0, count=8000)).phase(0) as phase:
        threads = [threading.Thread(target=lambda: [phase.step() for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert released(ledger) == 8000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["whole", "phase", "crash"]), st.integers(1, 300), st.integers(1, 90)), max_size=8
    )
)
def test_any_history_counts_its_plans_and_at_least_what_happened(history):
    ledger = Ledger(cap=Budget(1e3, DELTA))
    truth = slack = planned = 0
    for kind, steps, stride in history:
        plan = ledger.admit(GaussianEvent(10.0, count=steps + 40))
        planned += steps + 40
        if kind == "whole":
            plan.release()
            truth += 40
        else:
            phase = plan.phase(0, stride=stride)
            phase.__enter__()
            for _ in range(steps):
                phase.step()
            if kind == "phase":
                phase.__exit__(None, None, None)
            else:
                slack += max(stride, steps // 4)
            ledger = Ledger.from_json(ledger.to_json())
        truth += steps
    assert truth <= released(ledger) <= truth + slack
    assert sum(event.count for event in ledger.events()) == planned


# --- the cap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_cap_refuses_before_anything_happens(path, adaptive):
    ledger = Ledger.create(path, cap=Budget(epsilon=1.0, delta=DELTA), adaptive=adaptive)
    ledger.admit(GAUSS)
    before = path.read_bytes()
    big = GaussianEvent(noise=1.0)
    assert ledger.would_exceed(big)
    assert ledger.would_exceed([GAUSS, big])
    assert not ledger.would_exceed(GAUSS)
    ledger.check(GAUSS)
    words = "the plan 'means' would bring the filter" if adaptive else "the plan 'means' would bring epsilon to"
    with pytest.raises(BudgetExceeded, match=words):
        ledger.admit(big, purpose="means")
    with pytest.raises(BudgetExceeded):
        ledger.check(big)
    assert path.read_bytes() == before
    assert 0 < ledger.spent < 1


def test_the_cap_is_in_the_file(path):
    Ledger.create(path, cap=Budget(epsilon=0.1, delta=DELTA))
    assert Ledger.open(path).cap == Budget(0.1, DELTA)
    assert Ledger.open(path).adaptive
    with pytest.raises(BudgetExceeded):
        Ledger.open(path).admit(GAUSS)


def test_a_fixed_plan_may_use_the_cap_to_its_end():
    ledger = Ledger(cap=Budget(epsilon=1.0, delta=DELTA), adaptive=False)
    count = 1
    while not ledger.would_exceed(GaussianEvent(10.0, count=count + 1)):
        count += 1
    ledger.admit(GaussianEvent(10.0, count=count - 2))
    ledger.admit(GaussianEvent(10.0, count=2))
    assert ledger.total() <= 1.0 < accountant.epsilon(GaussianEvent(10.0, count=count + 1), DELTA)
    assert ledger.would_exceed(GAUSS)


def test_a_phase_never_asks_the_accountant(monkeypatch):
    ledger = Ledger(cap=Budget(epsilon=5.0, delta=DELTA))
    plan = ledger.admit(LaplaceEvent(900.0, count=1000))
    monkeypatch.setattr(accountant, "epsilon", lambda *a, **k: pytest.fail("asked"))
    run(plan.phase(0), 1000)


def test_admissions_of_another_process_count(path):
    ledger = Ledger.create(path, cap=Budget(epsilon=1.0, delta=DELTA))
    ledger.admit(GaussianEvent(6.0))
    elsewhere = Ledger.open(path)
    elsewhere.admit(GaussianEvent(6.0))
    with pytest.raises(BudgetExceeded):
        ledger.admit(GaussianEvent(6.0))


# --- files that cannot be trusted -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    ledger = Ledger(cap=Budget(3.0, DELTA))
    plan = ledger.admit({"means": GAUSS, "training": TRAINING}, purpose="fit", data="train")
    run(plan.phase("training"), 70)
    return ledger.to_json()


def changed(good, change):
    document = json.loads(good)
    change(document)
    return json.dumps(document)


def resealed(good, change):
    """Return a document with another content and a checksum that fits it."""
    document = json.loads(good)
    change(document)
    lines = [storage.canonical(record) for record in document["records"]]
    document["checksum"] = storage._checksum(storage.canonical(document["ledger"]), lines)
    return json.dumps(document)


def test_every_truncation_is_noticed(good, path):
    for length in range(len(good.rstrip())):
        with pytest.raises(LedgerCorrupt):
            Ledger.from_json(good[:length])
    path.write_text(good[:-20])
    with pytest.raises(LedgerCorrupt, match=r"ledger\.json.*truncated or not JSON; restore a copy"):
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
        (lambda d: d["records"][0]["events"][0].update(noise=1000.0), "checksum does not match"),
        (lambda d: d["records"].pop(), "checksum does not match"),
        (lambda d: d["records"].reverse(), "checksum does not match"),
        (lambda d: d["ledger"].update(cap=None), "checksum does not match"),
        (lambda d: d.update(checksum="sha256:0"), "checksum does not match"),
        (lambda d: d.pop("checksum"), "lacks its header, records or checksum"),
        (lambda d: d.pop("records"), "lacks its header, records or checksum"),
        (lambda d: d.pop("ledger"), "lacks its header, records or checksum"),
        (lambda d: d.update(records={}), "lacks its header, records or checksum"),
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
        (lambda d: d["records"][0].update(time="now"), "missing or unknown fields: time"),
        (lambda d: d["records"][0].update(record="poem"), "record must be plan or release"),
        (lambda d: d["records"][0].update(record=["x"]), "record must be plan or release"),
        (lambda d: d["records"][0].update(events=None), "must be a list of events"),
        (lambda d: d["records"][0].update(events=[None, None]), "event description"),
        (lambda d: d["records"][0]["events"].pop(), "a name of its own"),
        (lambda d: d["records"][0].update(names=["a", "a"]), "a name of its own"),
        (lambda d: d["records"][0]["events"][0].update(kind="magic"), "kind must be one of"),
        (lambda d: d["records"][0]["events"][0].update(noise=-1), "noise must be above 0"),
        (lambda d: d["records"][0].update(purpose=3), "purpose must be text"),
        (lambda d: d["records"][0].update(order=1.0), "order must be above 1"),
        (lambda d: d["records"][0].update(order="two"), "order must be a number"),
        (lambda d: d["records"][0].update(unit="one patient"), "a privacy unit must be a mapping"),
        (lambda d: d["records"][1].update(count=10**6), "makes that 1000000"),
        (lambda d: d["records"][1].update(count=-1), "makes that -1"),
        (lambda d: d["records"][1].update(count=0), "other than 0"),
        (lambda d: d["records"][1].update(count=1.5), "a whole number"),
        (lambda d: d["records"][1].update(position=7), "unknown"),
        (lambda d: d["records"][1].update(plan="other"), "unknown"),
        (lambda d: d["records"].append(d["records"][0]), "admitted twice"),
        (lambda d: d["records"].append(7), "record must be a mapping"),
        (lambda d: d["ledger"].update(adaptive=1), "adaptive must be one of"),
        (lambda d: d["ledger"].update(cap=None), "adaptive use needs a cap"),
        (lambda d: d["ledger"].update(created="1999"), "cannot be trusted"),
        (lambda d: d["ledger"].update(neighbours="siblings"), "neighbours must be one of"),
        (lambda d: d["ledger"].update(cap=[1]), "cannot be trusted"),
        (lambda d: d["ledger"].update(cap={"epsilon": -1, "delta": 0.1}), "epsilon must be above 0"),
        (lambda d: d["ledger"].pop("id"), "cannot be trusted"),
        (lambda d: d["ledger"].update(id=5), "id must be text"),
    ],
)
def test_nonsense_with_a_fitting_checksum_is_refused(good, change, words):
    with pytest.raises(LedgerCorrupt, match=words):
        Ledger.from_json(resealed(good, change))


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"3", b'"text"', b"\xff\xfe\x00", b"PK\x03\x04", b"[" * 100_000, b"{}{}", b"1" * 9999],
    ids=repr,
)
def test_what_is_no_ledger_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupt, match=r"ledger\.json"):
        Ledger.open(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_json_are_refused(good, number):
    assert good.count('"noise":10.0') == 1
    with pytest.raises(LedgerCorrupt):
        Ledger.from_json(good.replace('"noise":10.0', f'"noise":{number}'))


@pytest.mark.parametrize("version", [0, 1, 3, 99, "2", None, True, 1.5])
def test_unknown_versions_are_refused(good, path, version):
    path.write_text(changed(good, lambda d: d.update(version=version)))
    with pytest.raises(LedgerVersion, match=r"ledger\.json.*this ratewise knows version 2; open it with"):
        Ledger.open(path)


def test_the_document_is_strict_json_with_one_record_per_line(good):
    document = json.loads(good, parse_constant=pytest.fail)
    assert (document["format"], document["version"]) == ("ratewise-ledger", 2)
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
    Ledger.at(path, cap=cap).admit(GAUSS)
    assert Ledger.at(path, cap=cap).events() == (GAUSS,)
    for other in ({}, {"cap": cap, "neighbours": "zero_out"}, {"cap": cap, "adaptive": False}):
        with pytest.raises(InvalidInput, match="fixed when a ledger is started"):
            Ledger.at(path, **other)


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
    plan = ledger.admit(GAUSS)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, function, fail)
        with pytest.raises(LedgerError, match=os.strerror(code)):
            ledger.admit(GAUSS)
        with pytest.raises(LedgerError, match=os.strerror(code)):
            plan.release()
        with pytest.raises(LedgerError, match=os.strerror(code)), plan.phase(0):
            pytest.fail("the block must not run")
    assert path.read_bytes() == before
    assert ledger.events() == (GAUSS,)
    assert not (path.parent / ".ledger.json.tmp").exists()
    ledger.admit(GAUSS)
    assert Ledger.open(path).events() == (GaussianEvent(10.0, count=2),)


@pytest.mark.parametrize("asked", [True, False])
def test_a_disk_that_fills_up_while_a_phase_runs(path, monkeypatch, asked):
    plan = Ledger.create(path).admit(TRAINING)

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def train():
        with plan.phase(0, stride=10) as phase:
            for _ in range(15):
                phase.step()
            monkeypatch.setattr(storage.os, "fsync", fail)
            if asked:
                for _ in range(5):
                    phase.step()
                with pytest.raises(LedgerError, match="nothing may be released"):
                    phase.step()
                assert phase.ran == 20

    if asked:
        train()
    else:
        with pytest.warns(RatewiseWarning, match="15 steps ran.*5 more count as released.*No space left"):
            train()
    assert released(Ledger.open(path)) == 20


def test_a_write_that_fails_after_the_file_was_replaced_counts_too_much_not_too_little(path, monkeypatch):
    ledger = Ledger.create(path)

    def fail(folder):
        raise OSError(errno.EIO, "the folder")

    with monkeypatch.context() as patch:
        patch.setattr(_files, "flush_folder", fail)
        with pytest.raises(LedgerError, match="the folder"):
            ledger.admit(GAUSS)
    assert ledger.events() == Ledger.open(path).events() == (GAUSS,)
    ledger.admit(GAUSS)
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
    ledger.admit(GAUSS)
    assert calls == ["write", "fsync", "replace", "flush folder"]


def test_a_phase_that_could_not_begin_may_be_tried_again(path, monkeypatch):
    ledger = Ledger.create(path)
    phase = ledger.admit(GaussianEvent(10.0, count=8)).phase(0, stride=4)

    def fail(folder):
        raise OSError(errno.EIO, "the folder")

    with monkeypatch.context() as patch:
        patch.setattr(_files, "flush_folder", fail)
        with pytest.raises(LedgerError, match="the folder"):
            run(phase, 4)
    run(phase, 3)
    assert released(Ledger.open(path)) == 7


def test_a_file_that_goes_away_or_goes_back_in_time_is_noticed(path):
    ledger = Ledger.create(path)
    ledger.admit(GAUSS)
    older = path.read_bytes()
    ledger.admit(GAUSS)
    newest = path.read_bytes()
    path.write_bytes(older)
    for use in (lambda: ledger.total(DELTA), lambda: ledger.admit(GAUSS)):
        with pytest.raises(LedgerError, match="older copy"):
            use()
    path.unlink()
    for use in (lambda: ledger.total(DELTA), lambda: ledger.admit(GAUSS)):
        with pytest.raises(LedgerError, match="has gone"):
            use()
    path.write_bytes(newest)
    assert ledger.events() == (GaussianEvent(10.0, count=2),)


def test_a_link_is_followed_and_stays_a_link(tmp_path, path):
    link = tmp_path / "link.json"
    link.symlink_to(path)
    Ledger.create(path)
    Ledger.open(link).admit(GAUSS)
    assert link.is_symlink()
    assert Ledger.open(path).events() == (GAUSS,)


def test_a_lock_that_is_never_given_up_ends_in_a_message(path, monkeypatch):
    ledger = Ledger.create(path)
    monkeypatch.setattr(storage, "LOCK_PATIENCE", 0.02)
    with storage.AtomicFile(path).locked(), pytest.raises(LedgerError, match="another process has held"):
        ledger.admit(GAUSS)
    ledger.admit(GAUSS)


# --- many at once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handles", ["one", "each", "memory"])
def test_threads_lose_nothing(path, handles):
    cap = Budget(1e3, DELTA)
    shared = Ledger(cap=cap) if handles == "memory" else Ledger.create(path, cap=cap)
    failures = []

    def work():
        try:
            ledger = Ledger.open(path) if handles == "each" else shared
            for _ in range(5):
                ledger.admit(GAUSS).release()
            run(ledger.admit(LaplaceEvent(9.0, count=20)).phase(0, stride=4), 15)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {event.kind: event.count for event in shared.events()} == {"gaussian": 30, "laplace": 120}
    assert released(shared) == 30 + 90


def test_processes_and_forks_lose_nothing(path):
    """In an interpreter of its own, because forking is no pastime for a process with a test runner in it."""
    script = """
        import os, sys
        from ratewise.accounting.events import Budget, GaussianEvent, LaplaceEvent
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
        cap = Budget(1e3, 1e-5)
        inherited = Ledger.at(path, cap=cap)

        def work():
            fresh = Ledger.at(path, cap=cap)
            for ledger in (inherited, fresh):
                for _ in range(4):
                    ledger.admit(GaussianEvent(10.0)).release()
                with ledger.admit(LaplaceEvent(9.0, count=9)).phase(0, stride=2) as phase:
                    for _ in range(7):
                        phase.step()

        in_children(6, work)
        assert inherited.events() == Ledger.open(path).events()
        assert sum(sum(plan.released.values()) for plan in inherited.admissions) == 48 + 84
        assert {e.kind: e.count for e in inherited.events()} == {"gaussian": 48, "laplace": 108}

        memory = Ledger(cap=cap)
        memory.admit(GaussianEvent(10.0))
        in_children(1, lambda: refused(lambda: memory.admit(GaussianEvent(10.0)), "memory of another process"))
        assert "read-only" not in repr(memory)

        def leave(phase):
            refused(phase.step, "open in another process")
            phase.__exit__(None, None, None)

        for ledger in (memory, inherited):
            plan = ledger.admit(LaplaceEvent(3.0, count=50))
            with plan.phase(0, stride=5) as phase:
                for _ in range(8):
                    phase.step()
                in_children(1, lambda: leave(phase))
                for _ in range(8):
                    phase.step()
            assert plan.released == {"laplace 1": 16}
        print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


# --- manners ----------------------------------------------------------------------------------------------


def test_copies_are_the_same_ledger():
    ledger = Ledger()
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger


@pytest.mark.parametrize("kept", ["file", "memory"])
def test_a_pickled_ledger_is_faithful_and_read_only(path, kept):
    ledger = Ledger.create(path, cap=Budget(1.0, DELTA)) if kept == "file" else Ledger(cap=Budget(1.0, DELTA))
    ledger.admit(GAUSS)
    found = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(ledger))))
    assert found.records == ledger.records
    assert found.cap == ledger.cap
    assert found.total() == ledger.total()
    assert "read-only copy" in repr(found)
    way_out = r"Ledger\.open\(" if kept == "file" else r"Ledger\.from_json"
    for use in (lambda: found.admit(GAUSS), found.admissions[0].release):
        with pytest.raises(LedgerError, match=way_out):
            use()
    revived = Ledger.from_json(found.to_json())
    revived.admit(GAUSS)
    assert len(revived.admissions) == 2


def test_a_phase_is_neither_pickled_nor_copied():
    with pytest.raises(InvalidType, match="cannot be pickled"):
        pickle.dumps(Ledger().admit(TRAINING).phase(0))


def test_records_are_frozen_and_say_what_they_are():
    ledger = Ledger()
    plan = ledger.admit({"means": GAUSS}, purpose="means", data="train")
    (record,) = ledger.records
    assert (record.events, record.purpose, record.data) == ((GAUSS,), "means", "train")
    assert record.version
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.purpose = "other"
    assert repr(ledger).startswith("Ledger(1 plan, in memory, cap=None, adaptive=False")
    assert repr(plan) == f"Admission({plan.id!r}, {{'means': {GAUSS!r}}})"
    assert repr(plan.phase("means")) == "Phase('means', new, 0 steps)"


class Homemade(GaussianEvent):
    kind = "homemade"


def tampered(description):
    event = UnprotectedEvent()
    object.__setattr__(event, "description", description)
    return event


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda led: led.admit("gaussian"), InvalidType, "events must be an event or a list of events"),
        (lambda led: led.admit([GAUSS, 3]), InvalidType, "events must hold events only"),
        (lambda led: led.admit({}), InvalidInput, "events must hold at least one event"),
        (lambda led: led.admit({"": GAUSS}), InvalidInput, "name must not be empty"),
        (lambda led: led.admit({1: GAUSS}), InvalidType, "name must be text"),
        (lambda led: led.admit(GAUSS, purpose=3), InvalidType, "purpose must be text, got 3"),
        (lambda led: led.admit(GAUSS, data=""), InvalidInput, "data must not be empty"),
        (lambda led: led.admit(GAUSS, data=None), InvalidType, "data must be text, got None"),
        (lambda led: led.admit(GAUSS, unit="row"), InvalidType, "unit must be a PrivacyUnit or None"),
        (lambda led: led.admit(tampered(object())), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.admit(tampered([])), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.admit(tampered(math.nan)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.admit(tampered(math.inf)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.admit(Homemade(1.0)), InvalidInput, "cannot be kept in a ledger"),
        (lambda led: led.admission("none"), LedgerError, "admitted no plan with id 'none'"),
        (lambda led: led.total(), InvalidInput, "delta must be given"),
        (lambda led: led.total(0), InvalidInput, "delta must be strictly between 0 and 1, got 0"),
        (lambda led: led.total(1.0), InvalidInput, "delta must be strictly between"),
        (lambda led: led.total(-1e-5), InvalidInput, "delta must be strictly between"),
        (lambda led: led.total(math.nan), InvalidInput, "delta must be finite"),
        (lambda led: led.total("1e-5"), InvalidType, "delta must be a number"),
        (lambda led: led.would_exceed([]), InvalidInput, "events must hold at least one event"),
        (lambda led: led.would_exceed(3), InvalidType, "events must be an event or a list"),
        (lambda led: Ledger(adaptive="yes", cap=Budget(1, DELTA)), InvalidInput, "adaptive must be one of"),
        (lambda led: Ledger(unit="row"), InvalidType, "unit must be a PrivacyUnit or None"),
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


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda plan: plan.phase("plot"), InvalidType, "is a unprotected event, which has no steps"),
        (lambda plan: plan.phase("steps", stride=0), InvalidInput, "stride must be at least 1"),
        (lambda plan: plan.phase("other"), InvalidInput, "is not in this plan"),
        (lambda plan: plan.left(None), InvalidInput, "is not in this plan"),
    ],
)
def test_bad_use_of_a_plan_has_one_clear_message(use, error, words):
    plan = Ledger().admit({"plot": UnprotectedEvent(), "steps": TRAINING})
    with pytest.raises(error, match=words):
        use(plan)
    assert plan.released == {"plot": 0, "steps": 0}
