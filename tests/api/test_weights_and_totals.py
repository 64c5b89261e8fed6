"""Weights of the loss, rates of groups with intervals, and the total of all fits on a data set of a name."""

import numpy as np
import pytest
from scipy.stats import beta
from sklearn.model_selection import GridSearchCV

from ratewise import InvalidInput, InvalidType, RateConstrainedClassifier, RatewiseWarning, TrainingConfig
from ratewise.accounting import epsilon, process_total
from ratewise.metrics import group_rates

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 2))
Y = np.where(X[:, 0] + RNG.logistic(size=3000) > 1.5, "yes", "no")
SETTINGS = {"classes": ["no", "yes"], "feature_bounds": (-5, 5), "random_state": 0}


def positives(fit=None, **settings):
    model = RateConstrainedClassifier(**{**SETTINGS, **settings}).fit(X, Y, **(fit or {}))
    return np.mean(model.predict(X) == "yes"), model


def test_weights_of_classes_move_predictions_and_cost_nothing():
    plain, before = positives()
    weighted, model = positives(class_weight={"no": 1, "yes": 5})
    assert weighted > plain + 0.1
    assert model.plan_.events == before.plan_.events
    assert "weights of the classes" in str(model.privacy_)
    assert positives(class_weight={"no": 2, "yes": 10})[0] == weighted  # relative to the largest


def test_weights_of_rows_are_relative_to_a_public_maximum_and_clipped():
    weights = np.where(Y == "yes", 5.0, 1.0)
    by_class, _ = positives(class_weight={"no": 1, "yes": 5})
    by_row, model = positives({"sample_weight": weights}, config=TrainingConfig(max_sample_weight=5))
    assert by_row == by_class
    assert "weights are clipped to it" in str(model.privacy_)
    assert positives({"sample_weight": weights})[0] == positives()[0]  # the maximum is 1: all are clipped to it


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e308, "text", None])
def test_an_odd_weight_changes_no_record_and_raises_nothing(odd):
    weights = np.ones(3000, dtype=object)
    weights[7] = odd
    _, model = positives({"sample_weight": weights})
    assert np.isfinite(model.decision_function(X)).all()
    assert model.ledger_.events() == positives({"sample_weight": np.ones(3000)})[1].ledger_.events()


def test_weights_that_would_read_private_labels_are_refused():
    with pytest.raises(InvalidType, match="balanced"):
        positives(class_weight="balanced")
    with pytest.raises(InvalidInput, match="class_weight"):
        positives(class_weight={"yes": -1})
    with pytest.raises(InvalidInput, match="sample_weight"):
        positives({"sample_weight": np.ones(7)})


def test_a_search_counts_every_fit_on_its_data():
    name = "people of the search test"
    model = RateConstrainedClassifier(**SETTINGS, data_name=name, config=TrainingConfig(steps=5))
    search = GridSearchCV(model, {"epsilon": [0.3, 0.6]}, cv=2).fit(X, Y)
    found = process_total(name, 1e-6)
    assert found.plans == 5  # two budgets by two folds, and the last fit
    assert found.epsilon > 0.3 + 0.6
    assert "NOT covered" in str(found)
    last = list(search.best_estimator_.plan_.events.values())
    assert found.epsilon > epsilon(last, 1e-6, neighbours="zero_out")
    assert process_total("nobody used this name", 1e-6).epsilon == 0.0


def test_intervals_of_group_rates_are_exact():
    sex = np.where(np.arange(3000) % 3 == 0, "a", "b")
    found = group_rates(Y, np.where(X[:, 0] > 0.5, "yes", "no"), sensitive_features={"sex": sex})
    value, (low, high), rows = found.interval(found[0], "true_positive_rate", "yes", 0.9)
    true = (sex == "a") & (Y == "yes")
    hits = int(np.sum(true & (X[:, 0] > 0.5)))
    assert (value, rows) == (hits / true.sum(), true.sum())
    assert low == pytest.approx(beta.ppf(0.05, hits, rows - hits + 1))
    assert high == pytest.approx(beta.ppf(0.95, hits + 1, rows - hits))
    with pytest.raises(InvalidInput, match="rate must be one of"):
        found.interval(found[0], "luck")


def test_a_class_weight_of_no_class_is_rejected():
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2
    model = RateConstrainedClassifier(classes=[0, 1], class_weight={"yes": 2.0})
    with pytest.raises(InvalidInput, match="class_weight names 'yes'"):
        model.fit(X, y)
    RateConstrainedClassifier(classes=[0, 1], class_weight={1: 2.0}).planned_events(X, y)


@pytest.mark.parametrize("use", ["shape_functions", "feature_importances"])
def test_a_constant_model_says_why_it_has_no_shape_functions(use):
    with pytest.warns(RatewiseWarning, match="fewer than two classes"):
        model = RateConstrainedClassifier(epsilon=1.0).fit(np.arange(20.0)[:, None], np.zeros(20))
    with pytest.raises(InvalidInput, match="this is a constant"):
        getattr(model, use)()
