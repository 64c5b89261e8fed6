"""Limits of every kind are held by default settings on made-up people, without and with privacy.

The gap of an unconstrained model is several times each limit, so a model that ignores its limits goes red.
"""

import numpy as np
import pytest

from ratewise import (
    RateConstrainedClassifier,
    demographic_parity,
    equalized_odds,
    false_discovery_rate,
    false_negative_rate,
    precision,
)
from ratewise.metrics import rate_report

N = 20_000


def people(seed):
    """Return features, groups, and labels of two and of three classes; groups differ in one feature."""
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=(N, 5)), rng.integers(0, 3, N)
    x[:, 1] += group - 1
    three = (np.c_[x[:, 0], x[:, 1], 0.5 * x[:, 2]] + rng.gumbel(size=(N, 3))).argmax(axis=1)
    two = (x[:, 0] + x[:, 1] + rng.logistic(size=N) > 0.5).astype(int)
    return x, group, {2: two, 3: three}


LIMITS = {
    "equal rates": (demographic_parity("group", max_gap=0.05), 2, 0.66),
    "equal rates, three classes": (demographic_parity("group", max_gap=0.05), 3, 0.47),
    "equal odds": (equalized_odds("group", max_gap=0.1), 2, 0.70),
    "equal odds, three classes": (equalized_odds("group", max_gap=0.1), 3, 0.50),
    "precision": (precision(0.85), 2, 0.66),
    "false discoveries": (false_discovery_rate(0.1), 2, 0.60),
    "false negatives": (false_negative_rate(0.1, by="group"), 2, 0.58),
}


def excess(limit, classes, seed, constraints, epsilon, **choices):
    """Return the accuracy and how far the worst limit is exceeded, on the training rows."""
    x, group, labels = people(seed)
    y = labels[classes]
    model = RateConstrainedClassifier(
        constraints,
        epsilon=epsilon,
        classes=tuple(range(classes)),
        group_values={"group": (0, 1, 2)},
        random_state=seed,
        **choices,
    ).fit(x, y, sensitive_features={"group": group})
    report = rate_report(limit, y, model.predict(x), sensitive_features={"group": group})
    return model.score(x, y), max(row.gap for row in report)


@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_is_held(name, epsilon):
    limit, classes, accuracy = LIMITS[name]
    runs = [excess(limit, classes, seed, limit, epsilon) for seed in range(4)]
    assert np.mean([run[1] for run in runs]) <= 0.015
    assert max(run[1] for run in runs) <= 0.03
    assert np.mean([run[0] for run in runs]) >= accuracy


@pytest.mark.parametrize("name", ["equal rates, three classes", "precision", "false negatives"])
def test_it_is_held_in_other_numbers_of_steps(name):
    """Five times the steps, with noise to match: no swinging to the end (which warns), nothing needless."""
    limit, classes, accuracy = LIMITS[name]
    runs = [excess(limit, classes, seed, limit, 1.0, steps=1000) for seed in range(3)]
    assert max(run[1] for run in runs) <= 0.03
    assert np.mean([run[1] for run in runs]) >= -0.03  # was 0.04 below the limit, for 3% of accuracy
    assert np.mean([run[0] for run in runs]) >= accuracy - 0.01


@pytest.mark.parametrize("name", LIMITS)
def test_without_the_limit_it_is_missed(name):
    limit, classes, _ = LIMITS[name]
    assert excess(limit, classes, 0, None, 1.0)[1] > 0.06


def rare_people(seed, n=50_000):
    """Return people of whom 8 in 100 are positive, few of them in the smaller group."""
    rng = np.random.default_rng(seed)
    group, x = rng.choice(["a", "b"], n, p=[0.625, 0.375]), rng.normal(size=(n, 6))
    x[:, 0] += np.where(group == "a", 0.7, -0.4)
    score = 1.5 * x[:, 0] + x[:, 2] - 0.5 * x[:, 3] + 0.3 * (group == "a") + rng.logistic(size=n)
    return x, (score > np.quantile(score, 0.92)).astype(int), group


@pytest.mark.filterwarnings("ignore::ratewise.SmallGroupWarning")
@pytest.mark.parametrize(("curves", "most"), [(False, 0.1), ("auto", 0.15)])
def test_limits_on_rare_events_are_enforced_and_named_where_they_are_uncertain(curves, most):
    """One step says nothing of a few hundred positives; what all steps say together is used.

    Without that it is 0.2 for lines. With curves, scores do more for the many (0.77 right in place of 0.73),
    and the few are held less: beyond their limit by 0.10 in the mean in place of 0.05 (docs/sharp-edges.md).
    """
    limit, excesses, trusted = false_negative_rate(0.2, by="g", positive=1), [], []
    for seed in range(4):
        x, y, group = rare_people(seed)
        public = {"classes": (0, 1), "group_values": {"g": ("a", "b")}}
        model = RateConstrainedClassifier(limit, epsilon=1.0, curves=curves, random_state=seed, **public).fit(
            x, y, sensitive_features={"g": group}
        )
        doubted = {doubt.constraint for doubt in model.doubts_}
        for row in rate_report(limit, y, model.predict(x), sensitive_features={"g": group}):
            excesses.append(row.gap)
            trusted += [] if row.name in doubted else [row.gap]
    assert max(trusted) <= 0.02
    assert len(trusted) >= 4  # the larger group is not in doubt
    assert max(excesses) <= most
