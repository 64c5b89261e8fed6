"""The statement: says everything that epsilon rests on, and first what it does not cover."""

import dataclasses
import json
import math
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise.accounting import accountant
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
from ratewise.accounting.statement import PrivacyStatement, epsilon_text, state
from ratewise.exceptions import InvalidInput, InvalidType

DELTA = 1e-5
TRAINING = TrainingEvent(sampling_rate=0.02, steps=1000, gradient_noise=4.0, histogram_noise=2.0)
GAUSS = GaussianEvent(noise=10.0)


def words(statement):
    return " ".join(str(statement).split())


def full():
    return PrivacyStatement(
        epsilon=1.25,
        delta=DELTA,
        neighbours="replace_one",
        events=[GAUSS, TRAINING, SelectionEvent((GAUSS,), mean_trials=3)],
        unit=PrivacyUnit("id", column="patient"),
        n_units=20_000,
        public=["the bounds of the columns", "the list of classes"],
        found=["the values of column 'city'"],
        outside=["the means used for scaling"],
    )


def test_a_statement_names_everything_it_rests_on():
    said = words(full())
    for part in (
        "epsilon = 1.25",
        "delta = 1e-05",
        "one is the other with all rows of one id replaced by any other",
        "Protected: all rows of one id (column 'patient')",
        "the number of ids: 20,000",
        "Found by private releases: - the values of column 'city'",
        "Composition: exact composition of a plan",
        "the bounds of the columns",
        "the list of classes",
        "1,000 training steps",
        "from that one sample",
        "1 release with Gaussian noise of standard deviation 10",
        "best of a random number of private candidates (geometric law with mean 3)",
        accountant.NAME,
        f"ratewise {full().ratewise_version}",
    ):
        assert part in said


def test_what_is_outside_comes_first():
    said = words(full())
    assert said.startswith("NOT COVERED by the guarantee below, as it was read from private data without noise")
    assert said.index("the means used for scaling") < said.index("epsilon")
    assert not full().private
    assert "NOT COVERED" not in str(dataclasses.replace(full(), outside=()))
    assert dataclasses.replace(full(), outside=()).private


def test_an_infinite_epsilon_is_called_no_guarantee():
    statement = state([GAUSS, UnprotectedEvent("a raw histogram")], DELTA)
    assert statement.epsilon == math.inf
    assert not statement.private
    said = words(statement)
    assert said.startswith("There is NO PRIVACY GUARANTEE: something was released without protection")
    assert "a raw histogram, WITHOUT PROTECTION" in said
    assert "differentially private" not in said


def test_an_infinite_epsilon_without_a_culprit_names_delta():
    said = words(PrivacyStatement(epsilon=math.inf, delta=1e-9, events=OutsideEvent(1.0, 1e-6)))
    assert said.startswith("There is NO PRIVACY GUARANTEE: epsilon is infinite at delta = 1e-09.")


def test_an_empty_ledger_released_nothing():
    statement = Ledger(cap=Budget(1.0, DELTA)).statement()
    assert (statement.epsilon, statement.delta, statement.events) == (0.0, DELTA, ())
    assert words(statement).startswith("Nothing was released")


def test_ledger_and_events_agree():
    ledger = Ledger(neighbours="replace_one")
    first = ledger.admit(GAUSS, data="train")
    ledger.admit(LaplaceEvent(50.0), data="holdout")
    more = {"public": ["n"], "found": ["f"], "outside": ["x"], "n_units": 100}
    asked = ledger.statement(DELTA, **more)
    same = state([GAUSS, LaplaceEvent(50.0)], DELTA, neighbours="replace_one", **more)
    assert dataclasses.replace(asked, terms=same.terms) == same
    same = state(GAUSS, DELTA, neighbours="replace_one")
    assert dataclasses.replace(first.statement(DELTA), terms=same.terms, names=()) == same
    assert "plan 1 of 2 on a ledger" in first.statement(DELTA).terms
    assert asked.epsilon == ledger.total(DELTA)


def test_releases_of_a_plan_are_named_each_by_itself():
    plan = {"histograms": GaussianEvent(50.0), "certificate": GaussianEvent(50.0)}
    statement = Ledger().admit(plan).statement(DELTA)
    assert [text.partition(":")[0] for text in statement.mechanism] == list(plan)
    assert statement.epsilon == state(GaussianEvent(50.0, count=2), DELTA).epsilon
    assert PrivacyStatement.from_json(statement.to_json()) == statement
    with pytest.raises(InvalidInput, match="one entry per event, got 1 for 2 events"):
        dataclasses.replace(statement, names=("histograms",))


@pytest.mark.parametrize("statement", [full(), state(UnprotectedEvent(), DELTA), state(TRAINING, 1e-9)])
def test_json_round_trip(statement):
    document = json.loads(statement.to_json(), parse_constant=pytest.fail)
    assert document["mechanism"] == list(statement.mechanism)
    assert document["events"] == [event.to_dict() for event in statement.events]
    assert PrivacyStatement.from_json(statement.to_json()) == statement
    assert PrivacyStatement.from_dict(statement.to_dict()) == statement
    assert str(PrivacyStatement.from_json(statement.to_json())) == str(statement)


def test_a_large_delta_is_cautioned():
    assert "CAUTION" not in str(state(GAUSS, 0.01, n_units=100))
    assert "CAUTION: delta is above 1/100" in words(state(GAUSS, 0.02, n_units=100))


def test_a_statement_is_a_frozen_value():
    statement = full()
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement.epsilon = 0.1
    assert pickle.loads(pickle.dumps(statement)) == statement
    assert len({statement, full()}) == 1


def test_lines_are_short():
    long = dataclasses.replace(full(), public=["columns " * 40], outside=["means " * 60])
    assert max(map(len, str(long).splitlines())) <= 88


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-12, 1e6))
def test_epsilon_is_never_shown_smaller_than_it_is(epsilon):
    assert epsilon <= float(epsilon_text(epsilon)) <= epsilon * 1.0011


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (TrainingEvent(0.1, 1, None, 2.0, "laplace"), "1 training step, each .* with Laplace noise of scale 2$"),
        (TrainingEvent(0.1, 2, 3.0), "2 training steps.* deviation 3 times the clipping norm$"),
        (ThresholdEvent(9.0, 1e-7), "values whose counts.* deviation 9 .* at most 1e-07$"),
        (GaussianEvent(2.5, count=4), "4 releases with Gaussian noise of standard deviation 2.5 times"),
        (SelectionEvent((GAUSS,), 3.0), "geometric law with mean 3.*each of them: 1 release"),
        (OutsideEvent(0.5, 1e-7, description="a survey"), "a survey, taken to be private with epsilon 0.5 and"),
        (OutsideEvent(0.5), "a release by other means"),
        (UnprotectedEvent(), "a release, WITHOUT PROTECTION"),
    ],
)
def test_events_in_words(event, said):
    assert re.search(said, str(event))


def without(name):
    return {key: value for key, value in full().to_dict().items() if key != name}


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: PrivacyStatement(epsilon=-1, delta=DELTA), InvalidInput, "epsilon must be at least 0, got -1"),
        (lambda: PrivacyStatement(epsilon=math.nan, delta=DELTA), InvalidInput, "epsilon must be finite"),
        (lambda: PrivacyStatement(epsilon=-math.inf, delta=DELTA), InvalidInput, "epsilon must be finite"),
        (lambda: PrivacyStatement(epsilon="1", delta=DELTA), InvalidType, "epsilon must be a number"),
        (lambda: PrivacyStatement(epsilon=1, delta=1), InvalidInput, "delta must be below 1, got 1"),
        (lambda: PrivacyStatement(epsilon=1, delta=-1), InvalidInput, "delta must be at least 0"),
        (lambda: PrivacyStatement(epsilon=1, delta=math.nan), InvalidInput, "delta must be finite"),
        (lambda: state(GAUSS, DELTA, n_units=0), InvalidInput, "n_units must be at least 1"),
        (lambda: state(GAUSS, DELTA, n_units=2.5), InvalidInput, "n_units must be a whole number"),
        (lambda: state([], DELTA), InvalidInput, "events must hold at least one event"),
        (lambda: state(GAUSS, DELTA, neighbours="near"), InvalidInput, "neighbours must be one of"),
        (lambda: PrivacyStatement(epsilon=1, delta=0, neighbours="near"), InvalidInput, "neighbours must be one"),
        (lambda: state(GAUSS, DELTA, unit="one row"), InvalidType, "unit must be a PrivacyUnit"),
        (lambda: PrivacyUnit("person"), InvalidInput, "kind must be one of 'row', 'id'"),
        (lambda: PrivacyUnit("id", column=""), InvalidInput, "column must not be empty"),
        (lambda: PrivacyUnit("id", max_rows=0), InvalidInput, "max_rows must be at least 1"),
        (lambda: PrivacyUnit("id", weighting="both"), InvalidInput, "weighting must be one of"),
        (lambda: state(GAUSS, DELTA, public="n"), InvalidType, "public must be a list of texts, got 'n'"),
        (lambda: state(GAUSS, DELTA, outside=[3]), InvalidType, "each of outside must be text, got 3"),
        (lambda: state(GAUSS, DELTA, outside=[""]), InvalidInput, "each of outside must not be empty"),
        (lambda: state(GAUSS, DELTA, found="all"), InvalidType, "found must be a list of texts"),
        (lambda: Ledger().statement(), InvalidInput, "delta must be given"),
        (lambda: PrivacyStatement(epsilon=1, delta=0, events=["x"]), InvalidType, "events must hold events only"),
        (lambda: PrivacyStatement(epsilon=1, delta=0, accountant=None), InvalidType, "accountant must be text"),
        (lambda: PrivacyStatement.from_json(3), InvalidType, "document must be JSON text"),
        (lambda: PrivacyStatement.from_json("{"), InvalidInput, "document must be JSON that to_json"),
        (lambda: PrivacyStatement.from_json('{"epsilon": NaN}'), InvalidInput, "document must be JSON"),
        (lambda: PrivacyStatement.from_json("[]"), InvalidType, "must be a mapping, got"),
        (lambda: PrivacyStatement.from_dict({}), InvalidInput, "format must be"),
        (lambda: PrivacyStatement.from_dict({**full().to_dict(), "version": 9}), InvalidInput, "version must be 4"),
        (lambda: PrivacyStatement.from_dict(without("unit")), InvalidInput, "missing or unknown fields: unit"),
        (lambda: PrivacyStatement.from_dict({**full().to_dict(), "b": 1}), InvalidInput, "unknown fields: b"),
        (lambda: PrivacyStatement.from_dict({**full().to_dict(), "events": 1}), InvalidType, "events must be a"),
    ],
)
def test_bad_input_has_one_clear_message(use, error, message):
    with pytest.raises(error, match=message) as caught:
        use()
    assert type(caught.value) is error
