"""A search costs what was asked, keeps nothing but the winner, and behaves alike on all rows."""

import math
import pickle
import warnings

import numpy as np
import pytest
from scipy.stats import chisquare

import ratewise.estimators.search as module
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    PrivateSearch,
    RateConstrainedClassifier,
    RatewiseError,
    RatewiseWarning,
    TrainingConfig,
    demographic_parity,
)
from ratewise.accounting import GaussianEvent, LaplaceEvent, OutsideEvent, SelectionEvent, TrainingEvent, epsilon
from ratewise.datasets import census_like
from ratewise.estimators.search import affordable_trial, distinct, draw_number, read_settings, selection_event
from ratewise.training.session import Session

pytestmark = pytest.mark.slow

PEOPLE = census_like(3000, random_state=2)
PARITY = demographic_parity("sex", max_gap=0.1)
RATES = {"config__learning_rate": [0.5, 1.0, 2.0], "config__momentum": [0.5, 0.9]}
SHORT = TrainingConfig(steps=10)


def search(grid=RATES, *, constraints=PARITY, estimator=None, **options):
    base = estimator or RateConstrainedClassifier(constraints, classes=PEOPLE.classes, config=SHORT)
    return PrivateSearch(base, grid, **{"epsilon": 2.0, "mean_trials": 4, "random_state": 0, **options})


def fit(model, people=PEOPLE, **columns):
    return model.fit(people.X, people.y, sensitive_features=people.sensitive, **columns)


# ------------------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize(("mean", "published"), [(10, 3.934), (100, 5.091)])
def test_the_bound_from_the_curve_matches_independent_answers(mean, published):
    candidate = (TrainingEvent(0.02, 1000, 1.5),)
    event = selection_event([candidate], mean, 1e-6, "add_or_remove")
    assert event == SelectionEvent(candidate, mean)
    assert epsilon(event, 1e-6) == pytest.approx(published, abs=2e-3)


def test_a_pure_candidate_costs_at_most_three_times_as_much():
    event = selection_event([(LaplaceEvent(1.0),)], 10, 1e-9, "add_or_remove")
    assert epsilon(event, 1e-9) <= 3 * 1.0002


def test_different_candidates_cost_no_less_than_the_most_expensive():
    cheap, expensive = (GaussianEvent(20.0),), (GaussianEvent(10.0),)
    mixed = selection_event([cheap, expensive], 5, 1e-5, "add_or_remove")
    alone = epsilon(selection_event([expensive], 5, 1e-5, "add_or_remove"), 1e-5)
    assert isinstance(mixed, OutsideEvent)
    assert alone <= epsilon(mixed, 1e-5) <= alone * 1.01


def test_the_trial_is_as_large_as_the_total_allows():
    trial = affordable_trial(
        lambda e: epsilon(selection_event([(LaplaceEvent(1 / e),)], 10, 1e-6, "add_or_remove"), 1e-6), 1.5, 0.01
    )
    assert 0.99 * 0.5 <= trial <= 0.5


# ---------------------------------------------------------------------------------- trials and settings


def test_the_number_of_trials_has_its_distribution():
    rng = np.random.default_rng(1)
    drawn = np.array([draw_number(6.0, rng) for _ in range(20_000)])
    most = 12
    expected = np.power(5 / 6, np.arange(most)) / 6
    counts = np.bincount(np.minimum(drawn, most + 1), minlength=most + 2)[1:]
    expected = np.append(expected, 1 - expected.sum()) * len(drawn)
    assert chisquare(counts, expected).pvalue > 1e-4


def test_settings_are_all_combinations_and_each_cost_is_looked_at_once():
    settings = read_settings({"config__l2": [0.0, 0.1], "config__steps": [1, 2, 2]})
    assert len(settings) == 6
    assert {"config__l2": 0.1, "config__steps": 2} in settings
    assert len(distinct(settings)) == 4
    assert [one["config__steps"] for one in distinct(settings, without={"config__l2"})] == [1, 2]
    assert read_settings([{"model": "linear"}, {"config__steps": 3}]) == [{"model": "linear"}, {"config__steps": 3}]


# ------------------------------------------------------------------------------------------ the search


@pytest.fixture(scope="module")
def found():
    return fit(search())


def test_a_search_costs_what_was_asked_as_one_plan(found):
    assert 0.98 * 2 <= found.privacy_.epsilon <= 2.0
    plan = found.ledger_.records[0]
    assert [type(event) for event in plan.events] == [SelectionEvent, GaussianEvent]
    assert plan.names == ("selection", "certificate")
    assert epsilon(plan.events, found.privacy_.delta, "zero_out") <= 2.0
    assert found.best_estimator_.privacy_ == found.privacy_
    assert found.best_estimator_.ledger_ is found.ledger_
    assert found.ledger_.cap.epsilon == 2.0
    assert found.trial_epsilon_ < 1.5
    assert found.best_params_.keys() == RATES.keys()
    assert 0.5 < found.best_score_ <= 1
    assert found.certificate_ is found.best_estimator_.certificate_
    assert len(found.certificate_) == 1
    assert np.array_equal(found.predict(PEOPLE.X), found.best_estimator_.predict(PEOPLE.X))
    assert found.predict_proba(PEOPLE.X).shape == (3000, 2)
    assert found.score(PEOPLE.X, PEOPLE.y) > 0.6


def test_the_certificate_uses_counts_of_its_own(monkeypatch):
    """Counts by which a model won are biased; the winner's certificate has the noise of the whole search."""
    runs = watched(monkeypatch)
    model = fit(search())
    selected = max(runs, key=lambda trial: trial.rank)
    assert model.certificate_.noise_std != selected.certificate_before.noise_std
    noise = model.ledger_.records[0].events[1].noise
    assert model.certificate_.noise_std == pytest.approx(noise * math.sqrt(5) / 2, rel=0.01)


def watched(monkeypatch):
    """Record, for the test only, what every trial ends with."""
    runs, run = [], PrivateSearch._run

    def kept(self, *args):
        trial = run(self, *args)
        object.__setattr__(trial, "certificate_before", trial.session.certificate)
        runs.append(trial)
        return trial

    monkeypatch.setattr(PrivateSearch, "_run", kept)
    return runs


def test_the_plan_is_admitted_before_rows_are_read_and_covers_every_release(monkeypatch):
    order, trials = [], []
    admit, run = Ledger.admit, Session.run
    monkeypatch.setattr(Ledger, "admit", lambda self, e, **k: (order.append(k["purpose"]), admit(self, e, **k))[1])

    def ran(self, *args):
        run(self, *args)
        trials.append(self)

    monkeypatch.setattr(Session, "run", ran)
    model = fit(search())
    assert order[0] == "private search"
    candidate = model.ledger_.records[0].events[0].candidate
    assert trials
    for session in trials:
        assert tuple(session.plan.events.values()) == candidate
    unconstrained = fit(search(constraints=None))
    candidate = unconstrained.ledger_.records[0].events[0].candidate
    assert candidate[:-1] == tuple(trials[-1].plan.events.values())
    assert isinstance(candidate[-1], GaussianEvent)  # of the score
    assert len(unconstrained.ledger_.records[0].events) == 1
    assert unconstrained.certificate_ is None


def test_the_best_wins_and_nothing_of_the_others_stays(monkeypatch):
    runs = watched(monkeypatch)
    monkeypatch.setattr(module, "draw_number", lambda *_: 6)
    model = fit(search(mean_trials=8))
    assert len(runs) == 6
    winner = max(runs, key=lambda trial: trial.rank)
    assert model.best_score_ == winner.accuracy
    stored = pickle.dumps(model)
    table = model.best_estimator_.model_.scorer.table
    assert table.tobytes() in stored
    for trial in runs:
        scorer = trial.session.engine.scorer(trial.session.parameters)
        assert (scorer.table.tobytes() in stored) == np.array_equal(scorer.table, table)
        if trial is not winner:
            assert trial.accuracy not in [v for v in vars(model).values() if isinstance(v, float)]
    assert 6 not in [value for value in vars(model).values() if isinstance(value, int)]
    assert np.array_equal(pickle.loads(stored).predict(PEOPLE.X), model.predict(PEOPLE.X))


def test_a_seed_repeats_a_search_and_does_not_travel(found):
    again = fit(search())
    assert again.best_estimator_.random_state is None
    assert np.array_equal(again.decision_function(PEOPLE.X), found.decision_function(PEOPLE.X))
    assert again.best_params_ == found.best_params_
    ledger = Ledger(cap=Budget(10.0, 1e-4), neighbours="zero_out")
    fit(search(ledger=ledger))
    with pytest.raises(InvalidInput, match="random_state was used for an earlier search"):
        fit(search(ledger=ledger))


def test_settings_with_different_plans_are_bounded_by_the_most_expensive():
    grid = [{"config__steps": 5}, {"config__steps": 10}, {"config__sampling_rate": 0.2}, {"model": "linear"}]
    model = fit(search(grid, epsilon=4.0))
    assert isinstance(model.ledger_.records[0].events[0], OutsideEvent)
    assert 0.95 * 4 <= model.privacy_.epsilon <= 4.0


def test_whole_configurations_and_constraints_may_be_searched():
    grid = {
        "config": [TrainingConfig(steps=5), TrainingConfig(steps=5, l2=0.1)],
        "constraints": [PARITY, demographic_parity("sex", max_gap=0.2)],
        "config__momentum": [0.5],
    }
    model = fit(search(grid, epsilon=4.0))
    assert model.best_estimator_.config.steps == 5
    assert model.certificate_ is not None


def test_ids_are_the_unit_of_privacy():
    ids = np.arange(3000) // 2
    model = fit(search(epsilon=8.0), privacy_ids=ids)
    assert model.privacy_.unit.kind == "id"
    assert model.privacy_.n_units == 1500
    assert model.ledger_.unit.kind == "id"


def test_the_cap_of_a_ledger_is_kept_before_rows_are_read():
    ledger = Ledger(cap=Budget(1.0, 1e-5), neighbours="zero_out")
    with pytest.raises(BudgetExceeded):
        fit(search(ledger=ledger))
    assert ledger.records == ()


def test_few_rows_are_reported_from_public_facts():
    few = census_like(150, random_state=3)
    with pytest.warns(RatewiseWarning, match="the winner is nearly random"):
        fit(search(epsilon=0.5), few)


def test_a_search_without_a_model_is_an_error_and_stays_counted(monkeypatch):
    monkeypatch.setattr(module, "draw_number", lambda *_: 0)
    model = search(ledger=Ledger(cap=Budget(2.0, 1e-4), neighbours="zero_out"))
    with pytest.raises(RatewiseError, match="without a model"):
        fit(model)
    assert model.ledger.total() > 0.5
    assert not hasattr(model, "best_estimator_")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grid": {"epsilon": [1.0]}}, InvalidInput, "epsilon cannot be searched"),
        ({"grid": {"learning_rate": [1.0]}}, InvalidInput, "no parameter of the estimator"),
        ({"grid": {"config__speed": [1.0]}}, InvalidInput, "no parameter of the estimator"),
        ({"grid": {"config__steps": [0]}}, InvalidInput, "steps"),
        ({"grid": {"model": ["forest"]}}, InvalidInput, "model"),
        ({"grid": []}, InvalidInput, "at least one setting"),
        ({"grid": 3}, InvalidType, "grid"),
        ({"grid": {}}, InvalidInput, "at least one setting"),
        ({"grid": {"config__steps": 3}}, InvalidType, "config__steps must have a list of values"),
        ({"grid": {"config__steps": range(400), "config__l2": range(300)}}, InvalidInput, "at most 100,000 settings"),
        ({"grid": [3]}, InvalidType, "a setting must map"),
        ({"grid": {3: [1]}}, InvalidType, "a setting must map"),
        ({"epsilon": 0.0}, InvalidInput, "epsilon"),
        ({"delta": 2.0}, InvalidInput, "delta"),
        ({"mean_trials": 1.0}, InvalidInput, "above 1"),
        ({"ledger": 1}, InvalidType, "ledger"),
        ({"ledger": Ledger(neighbours="replace_one")}, InvalidInput, "one relation"),
        ({"estimator": 3}, InvalidType, "RateConstrainedClassifier"),
    ],
)
def test_invalid_searches_are_rejected_before_anything_is_spent(change, error, words, monkeypatch):
    monkeypatch.setattr(Session, "run", None)
    model = search().set_params(**change)
    with pytest.raises(error, match=words):
        fit(model)
    assert not hasattr(model, "ledger_")


# ----------------------------------------------------------- nothing observable depends on a row's content


def observed(X, y, sex, **options):
    """Return what a search shows besides released values: its plan, statement, warnings and errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = search(
            estimator=RateConstrainedClassifier(PARITY, config=SHORT, **options.pop("settings", {})),
            random_state=None,
            epsilon=4.0,
            **options,
        )
        model.fit(X, y, sensitive_features={"sex": sex})
    plan = model.ledger_.records[0]
    return plan.names, plan.events, model.privacy_.epsilon, [str(w.message) for w in caught]


ROWS = np.random.default_rng(0)
BINARY = ROWS.integers(0, 2, size=(2500, 4)).astype(float)
LABELS = (BINARY[:, 0] + 0.3 * ROWS.normal(size=2500) > 0.5).astype(int)
SEX = ROWS.choice(["F", "M"], 2500)


def neighbours():
    yield "as it is", BINARY, LABELS, SEX
    for value in (np.nan, np.inf, 1e300, -1e77, 0.5):
        X = BINARY.copy()
        X[7] = value
        yield f"value {value}", X, LABELS, SEX
    y = LABELS.astype(object)
    y[7] = "something else"
    yield "label", BINARY, y, SEX
    sex = SEX.astype(object)
    sex[7] = None
    yield "group", BINARY, LABELS, sex
    yield "one class", BINARY, np.ones(2500, dtype=int), SEX
    yield "one group", BINARY, LABELS, np.full(2500, "F")
    yield "constant features", np.ones((2500, 4)), LABELS, SEX


@pytest.mark.parametrize("settings", [{}, {"classes": [0, 1], "group_values": {"sex": ["F", "M"]}}])
def test_plan_cost_and_warnings_do_not_depend_on_rows(settings):
    """0/1 features without bounds used to raise after most of the budget was spent."""
    seen = {}
    for name, X, y, sex in list(neighbours())[:: 2 if settings else 1]:
        *plan, words = observed(X, y, sex, settings=settings)
        seen[name] = plan
        assert all("fewer than two classes" in word for word in words), (name, words)
    assert all(plan == seen["as it is"] for plan in seen.values())
