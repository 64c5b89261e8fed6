import dataclasses
import itertools
import math
import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare, loguniform
from sklearn.base import clone

import ratewise.selection as room
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    RateConstrainedClassifier,
    RatewiseError,
    RatewiseWarning,
    SmallGroupWarning,
    demographic_parity,
    group,
    rate,
)
from ratewise.accounting import (
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    epsilon,
)
from ratewise.datasets import census_like
from ratewise.evaluation import Estimate, Measured
from ratewise.exceptions import LedgerError
from ratewise.metrics import RateRow
from ratewise.schema import Category, Number, Schema
from ratewise.scoring import Trial
from ratewise.selection import PrivateSearch
from ratewise.selection_cost import affordable_trial, selection_cost
from ratewise.table_model import TableClassifier
from ratewise.trials import Configurations, draw_number, shape_of

PEOPLE = census_like(3000, random_state=2)
PARITY = demographic_parity("sex", max_gap=0.1)
RATES = {"learning_rate": [1.0, 5.0, 10.0], "momentum": [0.5, 0.9]}


def base(**options):
    said = {"classes": PEOPLE.classes, "group_values": PEOPLE.group_values, "steps": 20, **options}
    return RateConstrainedClassifier(said.pop("constraints", PARITY), **said)


def search(estimator=None, configurations=RATES, **options):
    said = {"epsilon": 2.0, "mean_trials": 4, "random_state": 0, **options}
    return PrivateSearch(estimator if estimator is not None else base(), configurations, **said)


def fit(model):
    return model.fit(PEOPLE.X, PEOPLE.y, sensitive_features=PEOPLE.sensitive)


# --------------------------------------------------------------------------------- known answers


@pytest.mark.parametrize(
    ("mean", "shape", "published"),
    [(10, 1.0, 3.934), (100, 1.0, 5.091), (10, 0.0, 3.500), (10, math.inf, 4.350)],
)
def test_the_bound_from_the_curve_matches_independent_answers(mean, shape, published):
    candidate = (TrainingEvent(0.02, 1000, 1.5),)
    event, cost = selection_cost([candidate], mean, shape, 1e-6, "add_or_remove")
    assert cost == pytest.approx(published, abs=2e-3)
    assert event == SelectionEvent(candidate, mean, shape)


def test_a_pure_candidate_costs_at_most_three_times_as_much():
    for shape, factor in ((0.0, 2), (0.5, 2.5), (1.0, 3)):
        _, cost = selection_cost([(LaplaceEvent(1.0),)], 10, shape, 1e-9, "add_or_remove")
        assert cost <= factor * 1.0002


def test_unlike_candidates_cost_no_less_than_the_dearest():
    cheap, dear = (GaussianEvent(20.0),), (GaussianEvent(10.0),)
    mixed, cost = selection_cost([cheap, dear], 5, 1.0, 1e-5, "add_or_remove")
    _, alone = selection_cost([dear], 5, 1.0, 1e-5, "add_or_remove")
    assert isinstance(mixed, OutsideEvent)
    assert alone <= cost <= alone * 1.003
    assert epsilon(mixed, 1e-5) == cost


def test_the_trial_is_as_large_as_the_total_allows():
    def cost(trial):
        return selection_cost([(LaplaceEvent(1 / trial),)], 10, 1.0, 1e-6, "add_or_remove")

    trial, event = affordable_trial(cost, 1.5, 0.01)
    assert 0.99 * 1.5 <= epsilon(event, 1e-6) <= 1.5
    assert trial >= 0.99 * 0.5


# ------------------------------------------------------------------------------- number of trials


def law(mean, shape, most):
    """Return the probabilities of 1..most by the recurrence, normalised by summing."""
    low, high, j = 1e-3, 1 - 1e-9, np.arange(1, 20_000)
    while high - low > 1e-12:
        g = (low + high) / 2
        weights = np.cumprod(np.append(1.0, (1 - g) * (j + shape) / (j + 1)))
        found = float((weights * np.arange(1, 20_001)).sum() / weights.sum())
        low, high = (g, high) if found > mean else (low, g)
    return (weights / weights.sum())[:most]


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_the_number_of_trials_follows_its_law(shape):
    rng = np.random.default_rng(1)
    drawn = np.array([draw_number(6.0, shape, rng) for _ in range(20_000)])
    most = 12
    expected = law(6.0, shape, most)
    counts = np.bincount(np.minimum(drawn, most + 1), minlength=most + 2)[1:]
    expected = np.append(expected, 1 - expected.sum()) * len(drawn)
    assert chisquare(counts, expected).pvalue > 1e-4
    wrong = np.append(law(7.0, shape, most), 0)
    wrong[-1] = 1 - wrong.sum()
    assert chisquare(counts, wrong * len(drawn)).pvalue < 1e-4


def test_a_poisson_number_may_be_none():
    rng = np.random.default_rng(0)
    drawn = [draw_number(2.0, math.inf, rng) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(2.0, abs=0.1)
    assert min(drawn) == 0
    assert (shape_of("poisson"), shape_of("geometric"), shape_of(0.5)) == (math.inf, 1.0, 0.5)


def test_settings_are_drawn_alike_from_lists_and_laws():
    rng = np.random.default_rng(0)
    settings = [{"steps": s} for s in (1, 2, 3)]
    drawn = [Configurations(settings).draw(rng)["steps"] for _ in range(3000)]
    assert chisquare(np.bincount(drawn)[1:]).pvalue > 1e-3
    space = Configurations({"l2": loguniform(1e-3, 1.0), "steps": [1, 2]})
    assert not space.finite
    values = [space.draw(rng) for _ in range(100)]
    assert all(1e-3 <= value["l2"] <= 1 for value in values)
    assert {value["steps"] for value in values} == {1, 2}
    assert [v["steps"] for v in space.variants(of=("steps",))] == [1, 2]
    with pytest.raises(InvalidInput, match="steps decides what a trial costs"):
        list(Configurations({"steps": loguniform(1, 2)}).variants(of=("steps",)))


# ----------------------------------------------------------------------------------- the search


@pytest.fixture(scope="module")
def found():
    return fit(search())


def test_a_search_costs_what_was_asked_as_one_entry(found):
    model = found
    assert 0.99 * 2 <= model.privacy_.epsilon <= 2.0
    (record,) = model.ledger_.records
    assert isinstance(record.event, SelectionEvent)
    assert record.purpose == "selection"
    assert 0.99 * 2 <= epsilon(record.event, 1e-5) <= 2.0
    assert model.best_estimator_.privacy_ == model.privacy_
    assert model.best_estimator_.ledger_ is model.ledger_
    assert model.trial_epsilon_ < 1.5
    assert model.best_params_.keys() == RATES.keys()
    assert 0.6 < model.best_score_ < 1
    assert len(model.best_rates_) == 2
    assert np.array_equal(model.predict(PEOPLE.X), model.best_estimator_.predict(PEOPLE.X))
    assert model.predict_proba(PEOPLE.X).shape == (3000, 2)
    assert model.score(PEOPLE.X, PEOPLE.y) > 0.7


def one_by_one(events):
    """Count releases, however a book has grouped equal ones."""
    found = Counter()
    for event in events:
        single = dataclasses.replace(event, count=1) if isinstance(event, GaussianEvent) else event
        found[single] += getattr(event, "count", 1)
    return found


def test_the_entry_is_booked_first_and_covers_training_and_score(monkeypatch):
    order, trials, scores = [], [], []
    book, run, estimates = Ledger.book, PrivateSearch._run, Measured.estimates

    def trial(self, *args):
        order.append("trial")
        found = run(self, *args)
        trials.append(found.estimator.ledger_.events())
        return found

    def score(self, released, n_rows, noise, confidence):
        scores.append(noise)
        return estimates(self, released, n_rows, noise, confidence)

    monkeypatch.setattr(
        Ledger, "book", lambda self, e, **k: (order.append(k.get("purpose")), book(self, e, **k))[1]
    )
    monkeypatch.setattr(PrivateSearch, "_run", trial)
    monkeypatch.setattr(Measured, "estimates", score)
    model = fit(search())
    assert order[:2] == ["selection", "trial"]
    (record,) = model.ledger_.records
    told, *training = record.event.candidate
    assert trials
    assert all(one_by_one(events) == one_by_one(training) for events in trials)
    assert scores == [told.noise] * len(trials)


def test_a_trial_that_releases_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(room, "_merged", lambda events: ())
    with pytest.raises(LedgerError, match="other things than were planned"):
        fit(search())


def watched(monkeypatch):
    """Keep, for the test's eyes only, what every trial ends with."""
    runs = []
    original = PrivateSearch._run

    def run(self, *args):
        found = original(self, *args)
        runs.append((found.estimator, found.rank))
        return found

    monkeypatch.setattr(PrivateSearch, "_run", run)
    return runs


def test_the_best_by_the_rule_wins_and_nothing_of_the_others_stays(monkeypatch):
    runs = watched(monkeypatch)
    monkeypatch.setattr(room, "draw_number", lambda *_: 7)
    model = fit(search(mean_trials=8))
    assert len(runs) == 7
    ranks = [rank for _, rank in runs]
    winner = runs[ranks.index(max(ranks))][0]
    assert model.best_estimator_ is winner
    assert model.best_holds_ == (max(ranks)[0] == 1)
    stored = pickle.dumps(model)
    assert winner._theta.tobytes() in stored
    for loser in [estimator for estimator, _ in runs if estimator is not winner]:
        assert loser._theta.tobytes() not in stored
        assert loser.coef_.tobytes() not in stored
    numbers = {value for value in vars(model).values() if isinstance(value, float)}
    assert numbers & {rank[1] for rank in ranks} == {model.best_score_}
    assert len(runs) not in [value for value in vars(model).values() if isinstance(value, int)]
    again = pickle.loads(stored)
    assert np.array_equal(again.predict(PEOPLE.X), model.predict(PEOPLE.X))


def test_trials_that_hold_come_before_accurate_ones_that_do_not():
    def run(accuracy, gap):
        row = RateRow("gap", None, gap, "<=", 0.1, (gap, gap))
        return Trial(None, {}, Estimate("accuracy", accuracy, (0, 1)), (row,), 0.01)

    held, accurate, far, unknown = run(0.7, 0.09), run(0.9, 0.2), run(0.95, 0.4), run(0.8, math.nan)
    ordered = sorted([far, accurate, held, unknown], key=lambda r: r.rank)
    assert ordered == [far, accurate, held, unknown]
    assert run(0.7, 0.105).rank[0] == 1


def test_a_seed_repeats_a_search_and_neither_seed_nor_callback_travels(found):
    seen = []
    again = fit(search(base(callback=seen.append, verbose=1)))
    assert seen == []
    assert again.best_estimator_.random_state is None
    assert np.array_equal(again.best_estimator_.coef_, found.best_estimator_.coef_)
    assert again.best_params_ == found.best_params_


def test_trials_do_not_warn_of_what_their_counts_show():
    tiny = rate(1, where=group(region="Islands", sex="Female")) <= 0.1
    estimator = base(constraints=[PARITY, tiny])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(search(estimator))
    # by itself, a training like the winner does warn
    assert model.best_estimator_.doubts_
    with pytest.warns(SmallGroupWarning):
        fit(clone(estimator).set_params(epsilon=model.trial_epsilon_))


def test_settings_that_cost_differently_are_bounded_by_the_dearest():
    model = fit(search(configurations=[{"steps": 20}, {"steps": 40}, {"sampling_rate": 0.2}]))
    (record,) = model.ledger_.records
    assert isinstance(record.event, OutsideEvent)
    assert 0.985 * 2 <= model.privacy_.epsilon <= 2.0


def test_tails_may_be_searched():
    """Eight releases or four: trials of both plans, and one cost that covers either."""
    few, estimator = census_like(3500, random_state=3), base(constraints=None)
    settings = {"feature_bounds": [few.feature_bounds], "tails": [None, "auto"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            search(estimator, settings, random_state=seed).fit(few.X, few.y, sensitive_features=few.sensitive)
            for seed in range(6)
        ]
    assert all(0.98 * 2 <= model.privacy_.epsilon <= 2.0 for model in found)
    assert {model.best_params_["tails"] for model in found} == {None, "auto"}


def test_curves_may_be_searched():
    """More columns, and so another plan: at few rows another share of the budget prepares features."""
    few, estimator = census_like(3500, random_state=3), base(constraints=None)
    settings = {"feature_bounds": [few.feature_bounds], "curves": [False, True]}
    planned = {
        clone(estimator)
        .set_params(epsilon=1.36, **setting)
        .planned_events(few.X, few.y, sensitive_features=few.sensitive)
        for setting in Configurations(settings).variants(of=("feature_bounds", "curves"))
    }
    assert len(planned) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            search(estimator, settings, random_state=seed).fit(few.X, few.y, sensitive_features=few.sensitive)
            for seed in range(6)
        ]
    assert all(0.98 * 2 <= model.privacy_.epsilon <= 2.0 for model in found)
    assert {model.best_params_["curves"] for model in found} == {False, True}
    assert all(isinstance(model.ledger_.records[0].event, OutsideEvent) for model in found)  # of two plans


@pytest.mark.parametrize(
    ("rows", "configurations", "releases"),
    [
        (250, {"feature_bounds": [None, (-5, 5)]}, 4),
        (1200, {"feature_kinds": [None, list(range(16))]}, 5),
    ],
)
def test_what_decides_whether_features_are_standardised_may_be_searched(
    monkeypatch, rows, configurations, releases
):
    """So few rows are measured or left as they are by whether bounds are declared, or by how many kinds."""
    monkeypatch.setattr(room, "draw_number", lambda *_: 8)  # so that both are drawn
    few = census_like(rows, random_state=3)
    estimator = base(constraints=None)
    planned = [
        clone(estimator)
        .set_params(epsilon=1.0, **setting)
        .planned_events(few.X, few.y, sensitive_features=few.sensitive)
        for setting in Configurations(configurations).variants(of=("feature_bounds", "feature_kinds"))
    ]
    assert sorted(len(events) for events in planned) == [1, 1 + releases]
    model = search(estimator, configurations, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        model.fit(few.X, few.y, sensitive_features=few.sensitive)
    assert 0.985 * 2 <= model.privacy_.epsilon <= 2.0


def test_a_table_is_searched_with_its_preparation_inside():
    schema = Schema(
        {"age": Number(17, 90), "years": Number(), "hours": Number(1, 99)},
        label="income",
        classes=PEOPLE.classes,
        groups={"sex": Category(PEOPLE.group_values["sex"])},
    )
    names = ("age", "years", "hours")
    table = {
        **dict(zip(names, PEOPLE.X.T[:3].astype(float), strict=True)),
        **PEOPLE.sensitive,
        "income": PEOPLE.y,
    }
    estimator = TableClassifier(schema, PARITY, steps=20)
    model = search(estimator, {"learning_rate": [1.0, 10.0]}, epsilon=6.0, mean_trials=2).fit(table)
    assert 0.99 * 6 <= model.privacy_.epsilon <= 6.0
    (record,) = model.ledger_.records
    assert GaussianEvent in {type(event) for event in record.event.candidate}
    assert model.best_estimator_.classifier_.privacy_ == model.privacy_
    assert len(model.predict(table)) == 3000


def test_what_is_asked_in_training_may_be_searched():
    asked = [{"constraints": demographic_parity("sex", max_gap=gap)} for gap in (0.02, 0.1)]
    model = fit(search(configurations=asked, constraints=demographic_parity("sex", max_gap=0.1)))
    assert isinstance(model.ledger_.records[0].event, SelectionEvent)
    assert all(row.bound in (0.1, -0.1) for row in model.best_rates_)


def test_a_budget_already_spent_is_refused():
    ledger = Ledger(cap=Budget(2.0, 1e-5))
    ledger.book(GaussianEvent(3.0))
    with pytest.raises(BudgetExceeded, match="'selection'"):
        fit(search(ledger=ledger))
    assert len(ledger.records) == 1


def test_too_few_rows_to_choose_by_are_said():
    few = census_like(400, random_state=3)
    with pytest.warns(RatewiseWarning, match="400 rows .* chosen nearly at random; raise epsilon"):
        search(epsilon=1.0).fit(few.X, few.y, sensitive_features=few.sensitive)


def test_no_model_is_said_and_the_budget_stays_spent(monkeypatch):
    monkeypatch.setattr(room, "draw_number", lambda *_: 0)
    model = search(trials="poisson")
    with pytest.raises(RatewiseError, match="ended without a model"):
        fit(model)
    assert len(model.ledger_.records) == 1
    assert not hasattr(model, "best_estimator_")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"estimator": 3}, "estimator must be a RateConstrainedClassifier"),
        ({"configurations": {}}, "at least one setting"),
        ({"configurations": 3}, "configurations must be a list"),
        ({"configurations": [3]}, "a setting must map"),
        ({"configurations": {"steps": 3}}, "steps must have a list"),
        ({"configurations": {"epsilon": [1.0, 2.0]}}, "epsilon cannot be searched"),
        ({"configurations": {"stepz": [1, 2]}}, "'stepz' is no parameter"),
        ({"configurations": {"learning_rate": [1.0, -1.0]}}, "learning_rate must be above 0"),
        ({"mean_trials": 1.0}, "mean_trials must be above 1"),
        ({"trials": "fixed"}, "trials must be one of"),
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"estimator": base(classes=None)}, "classes must be declared"),
        ({"estimator": base(group_values=None)}, "group values must be declared"),
        ({"ledger": 1}, "ledger must be a Ledger"),
        ({"ledger": Ledger(neighbours="replace_one")}, "keeps its book"),
    ],
)
def test_slips_are_found_before_anything_is_spent(monkeypatch, options, said):
    monkeypatch.setattr(Ledger, "book", lambda *_, **__: pytest.fail("something was booked"))
    with pytest.raises((InvalidInput, InvalidType), match=said):
        fit(search(**options))


def test_it_can_be_cloned():
    model = clone(search())
    assert model.get_params()["estimator__steps"] == 20
    assert list(itertools.chain(model.configurations)) == list(RATES)
