import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

import ratewise.estimators.postprocess as module
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    UnsupportedCombination,
    below,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    group,
    postprocess,
    precision,
    rate,
)
from ratewise.accounting import GaussianEvent, ThresholdEvent
from ratewise.estimators.postprocess import ScoreGrid

N = 20_000
RNG = np.random.default_rng(0)
SEX = RNG.integers(0, 2, N)
CHANCE = 1 / (1 + np.exp(-RNG.normal(1.2 * SEX - 1.2, 1.5)))
Y = (RNG.random(N) < CHANCE).astype(int)
PARITY = demographic_parity("sex", max_gap=0.05)


def rule(constraints=PARITY, scores=CHANCE, y=Y, **changes):
    said = {
        "sensitive_features": {"sex": SEX},
        "epsilon": 1.0,
        "delta": 1e-5,
        "classes": [0, 1],
        "group_values": {"sex": [0, 1]},
        "random_state": 0,
    }
    said.update(changes)
    return postprocess(scores, y, constraints, **said)


def gap(predicted, sex=SEX):
    return abs(predicted[sex == 1].mean() - predicted[sex == 0].mean())


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_the_gap_is_what_was_asked_for(aware, epsilon):
    found = rule(group_aware=aware, epsilon=epsilon, random_state=None)
    predicted = found.predict(CHANCE, {"sex": SEX}, random_state=1)
    assert gap(predicted) <= 0.058
    assert gap((CHANCE > 0.5).astype(int)) > 0.2
    assert found.certificate_.verdict == "held"
    low, high = found.certificate_[0].interval
    assert low - 0.01 <= gap(predicted) <= high + 0.01  # new draws in bins with mixtures
    assert "DecisionRule" in repr(found)


def test_using_groups_costs_less_error():
    blind, aware = rule(), rule(group_aware=True)
    errors = [np.mean(r.predict(CHANCE, {"sex": SEX}, random_state=1) != Y) for r in (blind, aware)]
    assert errors[1] < errors[0] - 0.02
    assert errors[1] <= np.mean((CHANCE > 0.5) != Y) + 0.03
    assert aware.group_aware
    assert not blind.group_aware


def test_a_constraint_that_holds_anyway_leaves_the_classifier_as_it_is():
    found = rule(demographic_parity("sex", max_gap=0.6), epsilon=None, random_state=None)
    agree = np.mean(found.predict(CHANCE, random_state=0) == (CHANCE > 0.5))
    assert agree >= 0.985
    assert np.isin(found.probabilities_, [0.0, 1.0]).mean() > 0.95


def test_probabilities_rise_with_the_score_and_few_are_mixtures():
    found = rule()
    scores = np.linspace(0.001, 0.999, 500)
    chances = found.predict_proba(scores)
    assert (np.diff(chances[:, 1]) >= -1e-9).all()
    assert np.allclose(chances.sum(axis=1), 1.0)
    levels = np.unique(chances[:, 1].round(6))
    assert len(levels) <= 4


def test_every_family_can_be_used():
    for constraints in (
        equalized_odds("sex", max_gap=0.1),
        equal_opportunity("sex", max_gap=0.05),
        [rate(1) <= 0.25, precision(min_rate=0.75)],
        "demographic_parity(sex) <= 0.05",
    ):
        found = rule(constraints, group_aware=True)
        assert found.certificate_.verdict == "held", str(found.certificate_)


def test_demands_beyond_reach_are_approached_and_the_certificate_says_so():
    noisy = RNG.random(N)  # scores that know nothing
    found = rule(precision(min_rate=0.9), scores=noisy, group_aware=False)
    assert found.certificate_.verdict in {"missed", "cannot tell"}


def test_three_classes():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(N, 3)) + 0.8 * SEX[:, None] * np.array([0.0, 0.0, 1.0])
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(3, p=p) for p in chances[:2000]] * (N // 2000))
    found = rule(demographic_parity("sex", max_gap=0.05), scores=chances, y=y, classes=[0, 1, 2], group_aware=True)
    predicted = found.predict(chances, {"sex": SEX}, random_state=0)
    for k in range(3):
        assert gap((predicted == k).astype(float)) <= 0.06
    frame = pd.DataFrame(chances, columns=list("abc"))
    assert (found.predict_proba(frame, {"sex": SEX}) == found.predict_proba(chances, {"sex": SEX})).all()
    with pytest.raises(InvalidInput, match="one per class"):
        found.predict(chances[:, 0])


def test_the_plan_is_admitted_first_and_stays_within_the_budget(monkeypatch):
    order = []
    admit, bins = Ledger.admit, ScoreGrid.bins
    monkeypatch.setattr(Ledger, "admit", lambda self, e, **k: (order.append("admit"), admit(self, e, **k))[1])
    monkeypatch.setattr(ScoreGrid, "bins", lambda *a: (order.append("read"), bins(*a))[1])
    found = rule(epsilon=0.7)
    assert order[:2] == ["admit", "read"]
    (plan,) = found.ledger_.admissions
    histogram, certificate = plan.events
    assert isinstance(histogram, GaussianEvent)
    assert histogram.noise**-2 / certificate.noise**-2 == pytest.approx(9.0)
    assert 0.99 * 0.7 <= found.privacy_.epsilon <= 0.7
    assert found.privacy_.delta == 1e-5
    assert found.privacy_.n_units == N


def test_undeclared_classes_and_groups_are_found_privately():
    found = rule(classes=None, group_values=None)
    assert list(found.classes_) == [0, 1]
    assert isinstance(found.ledger_.admissions[0].events[0], ThresholdEvent)
    assert found.privacy_.epsilon <= 1.0
    assert found.certificate_.verdict == "held"
    text = rule(
        y=np.array(["no", "yes"])[Y],
        sensitive_features=pd.DataFrame({"sex": np.array(["F", "M"])[SEX]}),
        classes=None,
        group_values=None,
        group_aware=True,
    )
    assert set(text.predict(CHANCE[:50], {"sex": ["F", "M"] * 25})) <= {"no", "yes"}


def test_without_delta_it_is_below_one_over_n():
    assert rule(delta=None).privacy_.delta == min(1e-5, 0.1 / N)


def test_a_ledger_without_room_is_refused():
    ledger = Ledger(cap=Budget(0.5, 1e-5))
    with pytest.raises(BudgetExceeded):
        rule(ledger=ledger)
    assert not ledger.admissions


def test_rules_hold_no_rows_and_can_be_stored():
    found = rule(group_aware=True)
    document = pickle.dumps(found)
    assert len(document) < 200_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        back = pickle.loads(document)
    scores, groups = CHANCE[:100], {"sex": SEX[:100]}
    assert (back.predict_proba(scores, groups) == found.predict_proba(scores, groups)).all()


def test_the_report_has_the_rule_and_its_statement():
    report = rule().report(CHANCE[:3000], Y[:3000], sensitive_features={"sex": SEX[:3000]})
    assert "sex" in report.to_json()


def test_without_privacy_the_statement_says_so():
    assert math.isinf(rule(epsilon=None, random_state=None).privacy_.epsilon)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"constraints": None}, InvalidInput, "constraints is empty"),
        ({"scores": CHANCE[:-1]}, InvalidInput, "one entry per row"),
        ({"scores": np.zeros((N, 3))}, InvalidInput, "one column per class"),
        ({"epsilon": 0.0}, InvalidInput, "epsilon"),
        ({"sensitive_features": None}, InvalidInput, "sensitive_features is missing"),
        ({"ledger": 3}, InvalidType, "ledger must be"),
        ({"ledger": Ledger(neighbours="replace_one")}, InvalidInput, "accounts for"),
        (
            {"constraints": rate(1, where=group(sex=below(1))) <= 0.3, "group_values": None, "group_aware": True},
            UnsupportedCombination,
            "is numeric",
        ),
    ],
)
def test_bad_arguments(changes, error, said):
    with pytest.raises(error, match=said):
        rule(**changes)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_bins_are_those_of_the_two_largest_probabilities(n_classes):
    grid = ScoreGrid(n_classes)
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.full(n_classes, 0.4), size=3000)
    bins = grid.bins(chances)
    top, second = grid.candidates
    order = np.argsort(-chances, axis=1)
    assert (top[bins] == order[:, 0]).all()
    assert (second[bins] == order[:, 1]).all()
    assert grid.bins(np.full((1, n_classes), np.nan))[0] == grid.n_bins - 1
    assert sorted(v for chain in grid.chains() for v in chain) == list(range(grid.n_bins - 1))
    for chain in grid.chains():
        odds = np.where(top[chain] < second[chain], grid.odds[chain], 1 - grid.odds[chain])
        assert (np.diff(odds) > 0).all()


def test_no_group_takes_part_in_a_rule_without_groups():
    """The rule is one function of the score: changing the groups of new rows changes nothing."""
    found = rule()
    scores = CHANCE[:200]
    first = found.predict_proba(scores, {"sex": np.zeros(200)})
    assert (first == found.predict_proba(scores)).all()
    assert found.probabilities_.shape[0] == 1
    assert found.probabilities_.shape[1] == module._MARGINS * 2 + 1
