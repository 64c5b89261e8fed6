"""The report of other libraries' predictions agrees with Fairlearn's MetricFrame on every rate."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, brier_score_loss, precision_score

from ratewise import demographic_parity, equalized_odds
from ratewise.datasets import census_like
from ratewise.report import Report

metrics = pytest.importorskip("fairlearn.metrics")
reductions = pytest.importorskip("fairlearn.reductions")

# In Fairlearn and scikit-learn a rate of no rows is 0, here it is None; the rows below leave none.
RATES = {
    "selection_rate": metrics.selection_rate,
    "true_positive_rate": metrics.true_positive_rate,
    "false_positive_rate": metrics.false_positive_rate,
    "false_negative_rate": metrics.false_negative_rate,
    "true_negative_rate": metrics.true_negative_rate,
    "precision": precision_score,
    "base_rate": lambda truth, _: float(np.mean(truth)),
    "false_discovery_rate": lambda truth, guess: 1.0 - precision_score(truth, guess),
}
LIMITS = [demographic_parity("sex", max_gap=0.1), equalized_odds("sex", "region", max_gap=0.2)]


def framed(truth, guess, columns):
    functions = {**RATES, "accuracy": accuracy_score, "count": metrics.count}
    return metrics.MetricFrame(
        metrics=functions, y_true=truth, y_pred=guess, sensitive_features=columns
    ).by_group.to_dict("index")


def agree(report, truth, guess, sensitive):
    compared = 0
    assert [grouping.by for grouping in report.content.groupings] == [("sex",), ("region",), ("sex", "region")]
    for grouping in report.content.groupings:
        expected = framed(truth, guess, {name: sensitive[name] for name in grouping.by})
        assert len(grouping.groups) == len(expected)
        for key, row in expected.items():
            values = key if isinstance(key, tuple) else (key,)
            name = " & ".join(f"{column}={value}" for column, value in zip(grouping.by, values, strict=True))
            (group,) = [group for group in grouping.groups if group.name == name]
            assert group.rows == row["count"]
            assert group.accuracy.value == pytest.approx(row["accuracy"], abs=1e-12)
            for rate in RATES:
                share = group.rates["1"][rate]
                assert share.value == pytest.approx(row[rate], abs=1e-12), (name, rate)
                assert share.low <= share.value <= share.high
                compared += 1
    assert compared == (2 + 4 + 8) * len(RATES)


@pytest.fixture(scope="module")
def rows():
    people, others = census_like(3000, random_state=0), census_like(8000, random_state=1)
    scale = people.feature_bounds[1]
    return people.X / scale, people.y, people.sensitive, others.X / scale, others.y, others.sensitive


def test_predictions_of_scikit_learn(rows):
    X, y, _, X_new, truth, sensitive = rows
    model = LogisticRegression(max_iter=1000).fit(X, y)
    guess = model.predict(X_new)
    report = Report.from_predictions(truth, guess, sensitive, LIMITS, scores=model.predict_proba(X_new)[:, 1])
    agree(report, truth, guess, sensitive)
    assert report.content.calibration[0].brier == pytest.approx(
        brier_score_loss(truth, model.predict_proba(X_new)[:, 1])
    )
    # the same through the model itself
    direct = Report.from_model(model, X_new, truth, sensitive, constraints=LIMITS)
    agree(direct, truth, guess, sensitive)


def test_predictions_of_fairlearn(rows):
    X, y, known, X_new, truth, sensitive = rows
    mitigator = reductions.ExponentiatedGradient(
        LogisticRegression(max_iter=1000), reductions.DemographicParity(difference_bound=0.05), max_iter=10
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how Fairlearn uses pandas is not ours to judge
        mitigator.fit(X, y, sensitive_features=known["sex"])
    guess = mitigator.predict(X_new, random_state=0)
    report = Report.from_predictions(truth, guess, sensitive, LIMITS)
    agree(report, truth, guess, sensitive)


def test_gaps_are_those_of_fairlearn(rows):
    X, y, _, X_new, truth, sensitive = rows
    guess = LogisticRegression(max_iter=1000).fit(X, y).predict(X_new)
    report = Report.from_predictions(truth, guess, sensitive, demographic_parity("sex", max_gap=0.1))
    gap = metrics.demographic_parity_difference(truth, guess, sensitive_features=sensitive["sex"])
    assert max(abs(constraint.reached) for constraint in report.content.constraints) == pytest.approx(gap, abs=1e-12)
    odds = Report.from_predictions(truth, guess, sensitive, equalized_odds("sex", max_gap=0.1))
    gap = metrics.equalized_odds_difference(truth, guess, sensitive_features=sensitive["sex"])
    assert max(abs(constraint.reached) for constraint in odds.content.constraints) == pytest.approx(gap, abs=1e-12)


def test_a_wrong_rate_would_be_noticed(rows):
    X, y, _, X_new, truth, sensitive = rows
    guess = LogisticRegression(max_iter=1000).fit(X, y).predict(X_new)
    report = Report.from_predictions(truth, np.roll(guess, 1), sensitive, LIMITS)
    with pytest.raises(AssertionError):
        agree(report, truth, guess, sensitive)
