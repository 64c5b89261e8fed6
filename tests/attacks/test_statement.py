"""Attacks on what is written down: statements and records must not say more, or other things, than is true."""

import datetime
import json
import re
import time

import numpy as np
import pytest

import ratewise
from ratewise.accounting import Budget, GaussianEvent, Ledger, PrivacyStatement, PrivacyUnit, TrainingEvent, state
from ratewise.exceptions import InvalidInput

CAP = Budget(1.0, 1e-5)
PATIENT = PrivacyUnit("id", column="patient", max_rows=5, weighting="id")
CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\b\d\d:\d\d\b|\btime\b|\bcreated\b|\bdate\b|\bseconds\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (2000, 2)), rng.integers(0, 2, 2000)
    return ratewise.RateConstrainedClassifier(classes=[0, 1], feature_bounds=(-1, 1)).fit(X, y)


# --- clock times -----------------------------------------------------------------------------------------------


def numbers_in(value):
    if isinstance(value, dict):
        return [n for part in value.values() for n in numbers_in(part)]
    if isinstance(value, list):
        return [n for part in value for n in numbers_in(part)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def assert_no_clock(document):
    assert not CLOCK.search(document), CLOCK.search(document)
    now = time.time()
    for number in numbers_in(json.loads(document)):
        for scale in (1, 1e3, 1e6, 1e9):
            assert not abs(number / scale - now) < 10 * 365 * 86400, number


def played(pause=0.0):
    """Return the document of a ledger whose releases took more or less time."""
    ledger = Ledger(cap=CAP)
    plan = ledger.admit({"counts": GaussianEvent(30.0), "training": TrainingEvent(0.1, 200, 40.0)}, purpose="fit")
    plan.release("counts")
    with plan.phase("training", stride=16) as phase:
        for step in range(100):
            phase.step()
            if step % 25 == 0:
                time.sleep(pause)
    return ledger.to_json()


def test_ledger_documents_have_no_clock_times(fitted, tmp_path):
    assert_no_clock(played())
    assert_no_clock(fitted.ledger_.to_json())
    ledger = Ledger.create(tmp_path / "ledger.json", cap=CAP)
    ledger.admit(GaussianEvent(20.0)).release()
    assert_no_clock((tmp_path / "ledger.json").read_text())


def test_statements_have_no_clock_times(fitted):
    assert_no_clock(fitted.privacy_.to_json())
    assert not CLOCK.search(str(fitted.privacy_))


def test_how_long_releases_take_leaves_no_trace():
    """The duration of a run depends on its rows; two runs that differ in it alone leave the same records."""
    quick, slow = (re.sub(r'"(id|plan|checksum)": ?"[^"]*"', "", played(pause)) for pause in (0.0, 0.01))
    assert quick == slow


def test_the_clock_is_never_asked(monkeypatch):
    class NoClock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            pytest.fail("a ledger asked for the time")

    monkeypatch.setattr(datetime, "datetime", NoClock)
    monkeypatch.setattr(time, "time", lambda: pytest.fail("a ledger asked for the time"))
    ledger = Ledger(cap=CAP)
    ledger.admit(GaussianEvent(20.0)).release()
    str(ledger.statement())


# --- the unit of privacy ---------------------------------------------------------------------------------------


def test_nobody_can_write_a_unit_of_their_own():
    """unit="one patient" used to print "Protected: one patient" although accounting was per row."""
    for make in (
        lambda: PrivacyStatement(epsilon=1.0, delta=1e-5, unit="one patient"),
        lambda: state(GaussianEvent(9.0), 1e-5, unit="one patient"),
        lambda: Ledger(unit="one patient"),
        lambda: Ledger().admit(GaussianEvent(9.0), unit="one patient"),
        lambda: ratewise.RateConstrainedClassifier(unit="one patient"),
    ):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(InvalidInput, match="describe ids"):
        PrivacyUnit("row", column="patient")


def test_a_fit_on_rows_states_that_it_protects_one_row(fitted):
    assert fitted.privacy_.unit == PrivacyUnit()
    assert "Protected: one row." in str(fitted.privacy_)


def test_units_do_not_mix_on_one_ledger():
    ledger = Ledger(cap=CAP)
    ledger.admit(GaussianEvent(50.0), unit=PATIENT)
    ledger.admit(GaussianEvent(50.0), unit=PrivacyUnit("id", column="patient", max_rows=9))
    for other in (PrivacyUnit(), PrivacyUnit("id", column="clinic"), PrivacyUnit("id")):
        with pytest.raises(InvalidInput, match="keep one ledger for each unit of privacy"):
            ledger.admit(GaussianEvent(50.0), unit=other)
    assert len(ledger.admissions) == 2
    assert "all rows of one id (column 'patient'" in str(ledger.statement())
    declared = Ledger(cap=CAP, unit=PATIENT)
    with pytest.raises(InvalidInput, match="keep one ledger"):
        declared.admit(GaussianEvent(50.0), unit=PrivacyUnit())
    assert declared.admit(GaussianEvent(50.0)).unit == PATIENT


def test_the_statement_of_ids_says_what_was_done():
    words = " ".join(str(state(GaussianEvent(9.0), 1e-6, unit=PATIENT, n_units=42)).split())
    assert "all rows of one id (column 'patient'; at most 5 rows of an id are used; rates count each id once)" in words
    assert "the number of ids: 42" in words
    assert "one row" not in words


# --- the relation -----------------------------------------------------------------------------------------------


def test_a_public_number_of_rows_means_zero_out(fitted):
    for relation in ("add_or_remove", "zero_out"):
        words = " ".join(str(state(GaussianEvent(9.0), 1e-6, neighbours=relation, n_units=1000)).split())
        assert "one row of one is blank in the other" in words
        assert "The number of rows is public and not protected" in words
    words = " ".join(str(state(GaussianEvent(9.0), 1e-6, n_units=1000)).split())
    assert "the relation that holds exactly is zero-out" in words
    assert "with the number of rows given as an input, the same for both tables" in words
    words = " ".join(str(fitted.privacy_).split())
    assert "one row of one is blank in the other" in words
    assert "the number of rows: 2,000" in words


def test_without_a_public_number_of_rows_nothing_is_claimed_about_it():
    words = str(state(GaussianEvent(9.0), 1e-6))
    assert "number of rows" not in words
    assert "added or\nremoved" in words or "added or removed" in words


def test_replacing_a_row_is_said_and_costs_more():
    blanked, replaced = (state(GaussianEvent(9.0), 1e-6, neighbours=n) for n in ("zero_out", "replace_one"))
    assert "replaced by any other" in " ".join(str(replaced).split())
    assert replaced.epsilon > 1.9 * blanked.epsilon


# --- what the statement lists -------------------------------------------------------------------------------------


def test_public_found_and_outside_are_told_apart():
    found = state(GaussianEvent(9.0), 1e-6, public=["the classes"], found=["the values of 'city'"], outside=["a plot"])
    words = str(found)
    assert words.index("NOT COVERED") < words.index("differentially private")
    assert "Taken as public:\n  - the classes" in words
    assert "Found by private releases:\n  - the values of 'city'" in words
    assert not found.private
    assert PrivacyStatement.from_json(found.to_json()) == found


def test_a_stopped_fit_states_its_whole_plan():
    """Stopping early, because of what was seen, does not make the statement smaller than the plan."""
    ledger = Ledger(cap=CAP, adaptive=False)
    plan = ledger.admit({"a": GaussianEvent(8.0), "b": GaussianEvent(8.0)})
    plan.release("a")
    both = state((GaussianEvent(8.0), GaussianEvent(8.0)), CAP.delta).epsilon
    assert ledger.statement().epsilon == pytest.approx(both)
    assert plan.statement().epsilon == pytest.approx(both)


def test_an_adaptive_ledger_never_states_less_than_its_cap():
    ledger = Ledger(cap=CAP)
    ledger.admit(GaussianEvent(100.0)).release()
    assert ledger.statement().epsilon == CAP.epsilon
    with pytest.raises(InvalidInput, match="a filter guarantees its cap"):
        ledger.statement(1e-7)


def test_a_fit_states_its_own_relation_and_not_that_of_its_ledger():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (300, 2)), rng.integers(0, 2, 300)
    ledger = Ledger(neighbours="add_or_remove")
    model = ratewise.RateConstrainedClassifier(classes=[0, 1], feature_bounds=(-1, 1), ledger=ledger).fit(X, y)
    assert model.privacy_.neighbours == "zero_out" == model.plan_.neighbours
