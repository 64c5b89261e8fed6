"""Rates that never come to rest say nothing of the model that is their mean, and the model says so."""

import warnings

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, positive_rate
from ratewise.domain import Domain
from ratewise.enforceability import doubts
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.predicates import group
from ratewise.rates import rate

DOMAIN = Domain(classes=(0, 1), columns={"g": ("a", "b")})
LIMIT = compile_constraints(rate(1, where=group(g="a")) <= 0.3, DOMAIN)
OWN = LIMIT.cells([0], {"g": ["a"]})[0]


def after(shares, noise=5.0, interval=1, rows=2000.0):
    """Return plan and multipliers after histograms of a group with these true shares of positives."""
    rng = np.random.default_rng(0)
    plan = Plan(
        n_rows=20_000,
        sampling_rate=0.5,
        steps=len(shares),
        clip=1.0,
        gradient_noise=1.0,
        histogram_noise=noise,
        dual=DualControl(rate=0.1, interval=interval),
    )
    multipliers, tables = Multipliers(LIMIT, plan), []
    for share in shares:
        table = np.full((LIMIT.n_cells, 2), 4000.0)
        table[OWN] = [rows * (1 - share), rows * share]
        tables.append(table + rng.normal(scale=noise, size=table.shape))
        if len(tables) == interval:
            multipliers.update(tables[0] if interval == 1 else np.stack(tables))
            tables = []
    return plan, multipliers


def swinging(steps, low=0.0, high=0.6):
    return np.where(np.arange(steps) // 5 % 2 == 0, low, high)


@pytest.mark.parametrize("interval", [1, 5])
def test_a_swing_is_measured(interval):
    _, multipliers = after(swinging(200), interval=interval)
    assert multipliers.swing == pytest.approx([0.3], abs=0.02)


@pytest.mark.parametrize("noise", [5.0, 100.0, 400.0])
def test_noise_is_no_swing(noise):
    _, multipliers = after(np.full(200, 0.3), noise=noise)
    assert multipliers.swing == [0.0]


def test_what_has_come_to_rest_by_half_time_is_forgotten():
    _, multipliers = after(np.concatenate([swinging(100), np.full(100, 0.3)]))
    assert multipliers.swing == [0.0]


def test_few_readings_say_nothing():
    _, multipliers = after(swinging(18))
    assert multipliers.swing == [0.0]


def test_a_limit_that_swings_about_its_bound_is_named():
    plan, multipliers = after(swinging(200))
    (doubt,) = doubts(LIMIT, multipliers, plan)
    assert doubt.swing == pytest.approx(0.3, abs=0.02)
    assert doubt.excess is None
    assert str(doubt) == "P(1 | g=a) <= 0.3 (went up and down by about 0.3 to the end of training)"


def test_a_limit_that_swings_far_below_its_bound_is_not():
    loose = compile_constraints(rate(1, where=group(g="a")) <= 0.9, DOMAIN)
    plan, multipliers = after(swinging(200, high=0.4))
    multipliers.constraints = loose
    assert multipliers.swing[0] > 0.15
    assert doubts(loose, multipliers, plan) == ()


def test_a_resumed_run_has_swung_as_much():
    _, multipliers = after(swinging(200))
    _, other = after(np.full(200, 0.3))
    other.restore(multipliers.state())
    np.testing.assert_array_equal(other.swing, multipliers.swing)


@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_many_positives_of_a_rare_class(epsilon):
    """One in a hundred is positive, three in ten are asked for: all rows are thrown over and back."""
    rng = np.random.default_rng(0)
    n = 10_000
    x, g = rng.normal(size=(n, 20)), rng.integers(0, 2, n)
    x[:, 0] += g
    y = (x[:, 1] + rng.logistic(size=n) > 5.0).astype(int)
    model = RateConstrainedClassifier(
        positive_rate(min_rate=0.3, by="g"),
        epsilon=epsilon,
        classes=(0, 1),
        group_values={"g": (0, 1)},
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y, sensitive_features={"g": g})
    held = min(model.predict(x[g == value]).mean() for value in (0, 1)) > 0.28
    assert held or [doubt.swing is not None for doubt in model.doubts_] == [True, True]
