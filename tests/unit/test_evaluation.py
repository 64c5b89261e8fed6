import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ratewise.training.plan as plan_module
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    demographic_parity,
    equalized_odds,
    group,
    rate,
)
from ratewise.accounting import GaussianEvent, ThresholdEvent
from ratewise.datasets import census_like
from ratewise.estimators.evaluation import evaluate
from ratewise.metrics import rate_report
from ratewise.metrics.intervals import nearest_table
from ratewise.training.certificate import COUNT_SENSITIVITY

PEOPLE = census_like(4000, random_state=3)
GUESS = (PEOPLE.X[:, 1] > 11).astype(int)
CONSTRAINTS = [
    demographic_parity("sex", max_gap=0.1),
    equalized_odds("sex", "region", max_gap=0.2),
    rate(1, where=group(sex="Female")) >= 0.1,
]


def evaluated(**changes):
    said = {
        "constraints": CONSTRAINTS,
        "y_true": PEOPLE.y,
        "y_pred": GUESS,
        "sensitive_features": PEOPLE.sensitive,
        "classes": PEOPLE.classes,
        "group_values": PEOPLE.group_values,
        "epsilon": 1.0,
        "random_state": 0,
    }
    said.update(changes)
    return evaluate(said.pop("constraints"), said.pop("y_true"), said.pop("y_pred"), **said)


@pytest.fixture
def seen(monkeypatch):
    """The exact counts that were given to the mechanism, which adds no noise here."""
    values = []

    class Spy:
        def __init__(self, noise, sensitivity, whole, step):
            assert sensitivity == COUNT_SENSITIVITY
            assert whole

        def release(self, value, rng):
            values.append(value.copy())
            return value.copy()

    monkeypatch.setattr(plan_module, "RoundedGaussianMechanism", Spy)
    return values


def test_without_noise_it_reaches_what_the_public_report_reaches(seen):
    exact = {
        row.name: row.reached
        for row in rate_report(
            CONSTRAINTS, PEOPLE.y, GUESS, sensitive_features=PEOPLE.sensitive, group_values=PEOPLE.group_values
        )
    }
    for found in (evaluated(), evaluated(epsilon=None, random_state=None)):
        assert found.accuracy.value == pytest.approx(np.mean(PEOPLE.y == GUESS))
        for row in found:
            if row.kind == "gap":
                upper = next(name for name in exact if name.replace(" <= ", ") <= ") == row.name[4:])
                assert row.estimate == pytest.approx(abs(exact[upper]))
            else:
                assert row.estimate == pytest.approx(exact[row.name])


def test_a_public_holdout_has_exact_intervals():
    found = evaluated(epsilon=None, random_state=None, constraints=demographic_parity("sex", max_gap=0.1))
    (row,) = found
    assert row.interval[0] == row.interval[1] == row.estimate
    assert row.population_interval[0] < row.estimate < row.population_interval[1]
    assert found.noise_std == 0
    undeclared = evaluated(
        epsilon=None,
        random_state=None,
        classes=None,
        group_values=None,
        constraints=demographic_parity("sex", max_gap=0.1),
    )
    assert undeclared[0].estimate == row.estimate


@settings(deadline=None, max_examples=8)
@given(st.integers(0, len(PEOPLE) - 1))
def test_one_row_moves_the_counts_by_the_sensitivity(row):
    values = []

    class Spy:
        def __init__(self, *_, **__):
            pass

        def release(self, value, rng):
            values.append(value.copy())
            return value.copy()

    real, plan_module.RoundedGaussianMechanism = plan_module.RoundedGaussianMechanism, Spy
    try:
        kept = np.arange(len(PEOPLE)) != row
        evaluated()
        evaluated(
            y_true=PEOPLE.y[kept],
            y_pred=GUESS[kept],
            sensitive_features={name: column[kept] for name, column in PEOPLE.sensitive.items()},
        )
    finally:
        plan_module.RoundedGaussianMechanism = real
    moved = values[0] - values[1]
    assert sorted(moved[moved != 0]) == [1, 2]
    assert np.linalg.norm(moved) == pytest.approx(COUNT_SENSITIVITY)


def test_it_is_admitted_before_it_is_released_and_costs_what_was_asked(monkeypatch):
    order = []
    admit, release = Ledger.admit, plan_module.RoundedGaussianMechanism.release
    monkeypatch.setattr(Ledger, "admit", lambda self, e, **k: (order.append("admit"), admit(self, e, **k))[1])
    monkeypatch.setattr(
        plan_module.RoundedGaussianMechanism, "release", lambda *a: (order.append("release"), release(*a))[1]
    )
    ledger = Ledger(cap=Budget(0.7, 1e-5), adaptive=False)
    found = evaluated(epsilon=0.7, ledger=ledger)
    assert order == ["admit", "release"]
    assert 0.99 * 0.7 <= ledger.total() <= 0.7
    (admission,) = ledger.admissions
    (event,) = admission.events
    assert isinstance(event, GaussianEvent)
    assert found.noise_std == pytest.approx(event.noise * COUNT_SENSITIVITY / 2)
    assert admission.purpose == "evaluation"
    assert "epsilon 0.7" in str(found)


def test_what_is_not_declared_is_found_within_the_same_budget():
    ledger = Ledger(cap=Budget(1.0, 1e-5), adaptive=False)
    found = evaluated(
        classes=None, group_values=None, constraints=demographic_parity("sex", max_gap=0.1), ledger=ledger
    )
    assert [type(event) for event in ledger.admissions[0].events] == [ThresholdEvent, GaussianEvent]
    assert ledger.total() <= 1.0
    assert len(found) == 1


def test_a_budget_that_is_spent_is_refused_and_nothing_is_admitted():
    ledger = Ledger(cap=Budget(1.0, 1e-5))
    evaluated(epsilon=0.7, ledger=ledger)
    with pytest.raises(BudgetExceeded):
        evaluated(epsilon=0.9, ledger=ledger, random_state=1)
    assert len(ledger.admissions) == 1


def test_the_same_noise_twice_on_one_ledger_is_refused():
    ledger = Ledger(cap=Budget(5.0, 1e-5))
    evaluated(epsilon=0.5, ledger=ledger)
    with pytest.raises(InvalidInput, match="random_state was used"):
        evaluated(epsilon=0.5, ledger=ledger)
    assert len(ledger.admissions) == 1


def test_a_model_needs_rows_and_gives_its_classes():
    class Model:
        classes_ = np.array([0, 1])

        def predict(self, X):
            return X

    found = evaluated(y_pred=Model(), X=GUESS, classes=None, constraints=None)
    assert len(found) == 0
    with pytest.raises(InvalidInput, match="X must be given"):
        evaluated(y_pred=Model())


def test_groups_below_the_noise_are_not_told():
    found = evaluated(epsilon=0.05)
    assert next(row for row in found if "Islands" in row.name).verdict == "cannot tell"
    assert found.verdict != "held"


def test_plain_data():
    found = evaluated()
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["accuracy"]["value"] == found.accuracy.value
    assert len(plain["constraints"]) == len(found)
    assert {row["verdict"] for row in plain["constraints"]} <= {"held", "missed", "cannot tell"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": 0.0005}, r"4000 rows are too few for epsilon 0\.0005.*take an epsilon of about"),
        ({"X": PEOPLE.X}, "y_pred is no model"),
        ({"level": 1.0}, "level must be"),
        ({"ledger": 3}, "ledger must be a Ledger"),
        ({"ledger": Ledger(neighbours="replace_one")}, "accounts for"),
        ({"sensitive_features": None}, "sensitive_features is missing"),
        ({"y_pred": GUESS[:-1]}, "one entry per row"),
        ({"y_true": []}, "y is empty"),
        ({"sensitive_features": {"sex": ["F"], "region": ["N"]}}, "one entry per row"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(changes, said):
    with pytest.raises((InvalidInput, InvalidType), match=said):
        evaluated(**changes)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-20, 100), min_size=1, max_size=12), st.floats(1, 500))
def test_the_nearest_table_has_the_total_no_negative_entry_and_is_nearest(entries, total):
    table = np.array(entries)
    found = nearest_table(table, total)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total, rel=1e-9)
    # Karush-Kuhn-Tucker: one common shift where positive, at least that much elsewhere
    shift = (table - found)[found > 0]
    assert np.ptp(shift) <= 1e-7
    assert np.all(table[found == 0] <= shift.mean() + 1e-7)
