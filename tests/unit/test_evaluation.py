import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

import ratewise.evaluation as evaluation
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    PrivacyLeakWarning,
    RateConstrainedClassifier,
    demographic_parity,
    equalized_odds,
    group,
    rate,
)
from ratewise.accounting import GaussianEvent
from ratewise.datasets import census_like
from ratewise.domain import Domain
from ratewise.evaluation import private_evaluation
from ratewise.metrics import rate_report
from ratewise.noisy_rates import gradient_norms, nearest_table
from ratewise.partition import compile_constraints
from ratewise.randomness import RandomStreams
from ratewise.seeds import streams_for

PEOPLE = census_like(4000, random_state=3)
GUESS = (PEOPLE.X[:, 1] > 11).astype(int)
CONSTRAINTS = [
    demographic_parity("sex", max_gap=0.1),
    equalized_odds("sex", "region", max_gap=0.2),
    rate(1, where=group(sex="Female")) >= 0.1,
    rate(1, where=group(sex="Female")) >= 0.05,
    -rate(1, where=~group(sex="Male")) <= -0.02,
]


def evaluate(**changes):
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
    return private_evaluation(said.pop("constraints"), said.pop("y_true"), said.pop("y_pred"), **said)


def test_without_noise_it_tells_what_the_open_report_tells(monkeypatch):
    class Silent:
        def __init__(self, noise, sensitivity, whole):
            self.standard_deviation = 1e-9

        def release(self, value, rng):
            return value.copy()

    monkeypatch.setattr(evaluation, "RoundedGaussianMechanism", Silent)
    private = evaluate()
    report = rate_report(
        CONSTRAINTS, PEOPLE.y, GUESS, sensitive_features=PEOPLE.sensitive, group_values=PEOPLE.group_values
    )
    assert [row.name for row in private] == [row.name for row in report]
    for told, exact in zip(private, report, strict=True):
        assert told.reached == pytest.approx(exact.reached, abs=1e-9)
        assert told.interval == pytest.approx(exact.interval, abs=1e-6)
        assert told.family == exact.family
    assert private.accuracy.value == pytest.approx(np.mean(PEOPLE.y == GUESS))
    by_name = {estimate.name: estimate.value for estimate in private.groups}
    female = PEOPLE.sensitive["sex"] == "Female"
    assert by_name["P(1 | sex=Female)"] == pytest.approx(GUESS[female].mean())
    assert by_name["accuracy | sex=Female"] == pytest.approx(np.mean((PEOPLE.y == GUESS)[female]))
    assert private.counts.sum() == len(PEOPLE)


def test_one_row_changes_one_count_by_one(monkeypatch):
    seen = []

    class Spy:
        def __init__(self, noise, sensitivity, whole):
            assert sensitivity == 1.0
            self.standard_deviation = noise

        def release(self, value, rng):
            seen.append(value.copy())
            return value.copy()

    monkeypatch.setattr(evaluation, "RoundedGaussianMechanism", Spy)

    @settings(deadline=None, max_examples=8)
    @given(st.integers(0, len(PEOPLE) - 1))
    def leave_out(row):
        seen.clear()
        kept = np.arange(len(PEOPLE)) != row
        evaluate()
        evaluate(
            y_true=PEOPLE.y[kept],
            y_pred=GUESS[kept],
            sensitive_features={name: column[kept] for name, column in PEOPLE.sensitive.items()},
        )
        moved = seen[0] - seen[1]
        assert np.count_nonzero(moved) == 1
        assert moved.sum() == 1

    leave_out()


def test_it_is_booked_before_it_is_released_and_costs_what_was_asked(monkeypatch):
    order = []
    book, release = Ledger.book, evaluation.RoundedGaussianMechanism.release
    monkeypatch.setattr(Ledger, "book", lambda self, e, **k: (order.append("book"), book(self, e, **k))[1])
    monkeypatch.setattr(
        evaluation.RoundedGaussianMechanism, "release", lambda *a: (order.append("release"), release(*a))[1]
    )
    report = evaluate(epsilon=0.7)
    assert order == ["book", "release"]
    assert 0.99 * 0.7 <= report.ledger.total_epsilon <= 0.7
    (record,) = report.ledger.records
    assert record.event == report.event == GaussianEvent(report.noise)
    assert (record.purpose, record.data) == ("evaluation", "hold-out rows")


def test_a_budget_already_spent_is_refused_and_nothing_is_booked():
    ledger = Ledger(cap=Budget(1.0, 1e-5))
    evaluate(epsilon=0.9, ledger=ledger)
    with pytest.raises(BudgetExceeded, match="above the cap"):
        evaluate(epsilon=0.9, ledger=ledger, random_state=1)
    assert len(ledger.records) == 1


def test_the_same_noise_twice_in_one_book_is_refused():
    ledger = Ledger()
    evaluate(epsilon=0.9, ledger=ledger)
    with pytest.raises(InvalidInput, match="random_state was used"):
        evaluate(epsilon=0.9, ledger=ledger)
    assert len(ledger.records) == 1


@pytest.mark.parametrize(
    "seed",
    [lambda: 0, lambda: np.random.default_rng(0), lambda: np.random.RandomState(0), lambda: SeedSequence(0)],
)
def test_one_seed_for_training_and_evaluation_gives_two_noises(seed):
    trained, evaluated = RandomStreams.from_seed(seed()), streams_for("evaluation", seed())
    for name in ("sampling", "gradient", "histogram", "preparation"):
        numbers = [getattr(streams, name).random() for streams in (trained, evaluated)]
        others = [getattr(streams_for(use, seed()), name).random() for use in ("table", "selection")]
        assert len({*numbers, *others}) == 4


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, SeedSequence])
def test_a_generator_serves_several_evaluations_and_copies_of_it_do_not(make):
    same, ledger = make(0), Ledger()
    first, second = (evaluate(epsilon=0.5, ledger=ledger, random_state=same) for _ in range(2))
    assert first.accuracy.value != second.accuracy.value
    with pytest.raises(InvalidInput, match="random_state was used for an earlier evaluation"):
        evaluate(epsilon=0.5, ledger=ledger, random_state=make(0))


def test_a_model_can_be_evaluated_in_the_ledger_of_its_training():
    train = census_like(4000, random_state=5)
    ledger = Ledger(cap=Budget(2.0, 1e-5))
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=0.1),
        classes=train.classes,
        group_values=train.group_values,
        ledger=ledger,
        random_state=0,
    ).fit(train.X, train.y, sensitive_features=train.sensitive)
    report = evaluate(
        constraints=model.constraints, y_pred=model, X=PEOPLE.X, classes=None, ledger=ledger, epsilon=0.5
    )
    assert len(report) == 2
    assert ledger.total_epsilon <= 2.0
    low, high = report.accuracy.interval
    assert low <= model.score(PEOPLE.X, PEOPLE.y) <= high


def test_what_is_not_declared_is_a_leak_and_said():
    with pytest.warns(PrivacyLeakWarning, match=r"the classes; the values of column 'sex'"):
        evaluate(classes=None, group_values=None, constraints=demographic_parity("sex", max_gap=0.1))


def test_groups_beside_the_noise_are_not_told():
    report = evaluate(epsilon=0.05)
    unsure = [estimate for estimate in report.groups if "Islands" in estimate.name]
    assert unsure
    assert all(math.isnan(estimate.value) for estimate in unsure)
    row = next(row for row in report if "Islands" in row.name)
    assert row.holds is None
    assert not report.all_hold
    assert "too few rows" in str(report)


def test_printing_and_plain_data():
    report = evaluate()
    assert "accuracy | sex=Female" in str(report)
    assert "95% interval" in report._repr_html_()
    assert "private rows" in repr(report)
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["accuracy"]["value"] == report.accuracy.value
    assert len(plain["constraints"]) == len(report) == len(report[:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": 0.0005}, r"4000 rows are too few for epsilon 0\.0005.*take an epsilon of about"),
        ({"X": PEOPLE.X}, "y_pred is no model"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"ledger": 3}, "ledger must be a Ledger"),
        ({"ledger": Ledger(neighbours="replace_one")}, "keeps its book for"),
        ({"sensitive_features": None}, "sensitive_features is missing"),
        ({"y_pred": GUESS[:-1]}, "one entry per row"),
        ({"classes": (0, 2)}, "not declared"),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(changes, said):
    with pytest.raises((InvalidInput, InvalidType), match=said):
        evaluate(**changes)


def test_a_model_needs_rows():
    with pytest.raises(InvalidInput, match="X must be given"):
        evaluate(y_pred=RateConstrainedClassifier())


def test_accuracy_and_all_groups_without_constraints():
    report = evaluate(constraints=None)
    assert len(report) == 0
    assert len(report.groups) == 2 * 6


def test_the_gradient_is_that_of_the_values():
    domain = Domain((0, 1, 2), {"g": ("a", "b")})
    compiled = compile_constraints(
        [
            rate(1, where=group(g="a")) - rate(1) <= 0.3,
            rate(2, where=group(g="a"), out_of=group(g="a") | group(g="b")) <= 0.9,
        ],
        domain,
    )
    rng = np.random.default_rng(0)
    table = rng.uniform(50, 100, (compiled.n_cells, 3))
    norms = gradient_norms(compiled, table)
    for j in range(len(compiled)):
        numeric = np.zeros(table.size)
        for place in range(table.size):
            step = np.zeros(table.size)
            step[place] = 1e-4
            up, down = (
                compiled.values(table + sign * step.reshape(table.shape), floor=1e-9)[j] for sign in (1, -1)
            )
            numeric[place] = (up - down) / 2e-4
        assert norms[j] == pytest.approx(np.linalg.norm(numeric - numeric.mean()), rel=1e-5)


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
