"""Hostile but valid input ends in a finite model or in one of our errors, and its cost is bounded.

Bounds are of memory, in bytes that Python and NumPy ask for on top of the input; time follows from the steps.
"""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity, equalized_odds, group, rate
from ratewise.exceptions import RatewiseError, RatewiseWarning
from ratewise.metrics import rate_report

MEGABYTE = 1 << 20


def rows(n, d=3, scale=1.0, seed=0):
    X = np.random.default_rng(seed).uniform(-1, 1, size=(n, d)) * scale
    return X, (X[:, 0] > 0).astype(int)


def fit(X, y, groups=None, constraints=None, steps=4, settings=None, **changes):
    """Fit, and insist on finite predictions and a ledger that keeps its cap."""
    options = {"epsilon": 1.0, "delta": 1e-7, "random_state": 0, **changes}
    options["config"] = TrainingConfig(steps=steps, **(settings or {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        model = RateConstrainedClassifier(constraints, **options).fit(X, y, sensitive_features=groups)
    assert np.all(np.isfinite(model.predict_proba(X)))
    if options["epsilon"] is not None:
        assert 0 < model.privacy_.epsilon <= options["epsilon"]
    return model


def peak(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_two_thousand_groups():
    X, y = rows(10_000)
    groups = {"g": np.arange(10_000) % 2_000}
    limit = demographic_parity("g", max_gap=0.1)
    facts = {"classes": [0, 1], "group_values": {"g": list(range(2_000))}}
    model = fit(X, y, groups, limit, steps=2, **facts)
    assert model.constraints_.n_cells == 2_001  # and one of undeclared values


def test_thousands_of_constraints():
    """A million of them take minutes: python tests/fuzz/run.py --limits."""
    X, y = rows(4_000)
    groups = {"g": np.arange(4_000) % 80}
    limit = demographic_parity("g", max_gap=0.1, versus="pairwise")
    model = fit(X, y, groups, limit, steps=1, classes=[0, 1], group_values={"g": list(range(80))})
    assert len(model.constraints_) == 80 * 79


def test_classes_with_one_row():
    X, _ = rows(1_000)
    fit(X, np.minimum(np.arange(1_000), 200), classes=list(range(201)))


@pytest.mark.parametrize("scale", [1.7e308, 1e300, 1e-300, 5e-324])
@pytest.mark.parametrize("model", ["additive", "linear", "sparse"])
@pytest.mark.parametrize("choices", [{}, {"epsilon": None}], ids=str)
def test_enormous_and_tiny_features(scale, model, choices):
    X, _ = rows(400, scale=scale)
    y = np.arange(400) % 2
    kind = "additive" if model == "additive" else "linear"
    fit(sp.csr_array(X) if model == "sparse" else X, y, classes=[0, 1], model=kind, **choices)


def test_declared_bounds_of_any_size():
    for bound in (1e300, 1e-300):
        X, y = rows(400, scale=bound)
        fit(X, y, classes=[0, 1], feature_bounds=(-bound, bound))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_handful_of_rows(n):
    fit(np.ones((n, 2)), np.arange(n) % 2, classes=[0, 1])


def test_rows_that_are_very_wide():
    X = sp.random_array((200, 300_000), density=2e-5, format="csr", random_state=np.random.default_rng(0))
    assert peak(lambda: fit(X, np.arange(200) % 2, classes=[0, 1], model="linear", steps=2)) < 400 * MEGABYTE


def test_constant_features_and_labels_by_chance():
    fit(np.zeros((300, 4)), np.arange(300) % 2, classes=[0, 1])


@pytest.mark.parametrize("epsilon", [1e-6, 1e3])
def test_budgets_at_both_ends(epsilon):
    X, y = rows(500)
    fit(X, y, classes=[0, 1], epsilon=epsilon)


def test_many_classes_and_groups_at_once():
    rng = np.random.default_rng(0)
    X, _ = rows(3_000)
    groups = {"g": rng.integers(0, 8, 3_000), "h": rng.integers(0, 5, 3_000)}
    facts = {"classes": list(range(8)), "group_values": {"g": list(range(8)), "h": list(range(5))}}
    fit(X, rng.integers(0, 8, 3_000), groups, equalized_odds("g", "h", max_gap=0.2), **facts)


def test_more_steps_than_anybody_could_wait_for():
    X, y = rows(500)
    with pytest.raises(RatewiseError, match="steps must be at most 10000000"):
        fit(X, y, classes=[0, 1], steps=10**12)


@pytest.mark.parametrize("factor", [1e-281, 2.2e-309])
def test_constraints_with_tiny_coefficients(factor):
    """Found by fuzzing: such limits, alone or in a report, gave warnings of overflow."""
    limit = factor * rate(0, where=group(g="a")) - rate(0) <= 0.5
    found = rate_report([limit], [0, 1, 1], [1, 1, 0], sensitive_features={"g": ["a", "b", "a"]})
    assert np.isfinite(next(iter(found)).reached)


@pytest.mark.parametrize("factor", [1e300, 1e308, 1e-300, 5e-324])
def test_a_report_on_scaled_constraints_is_the_same_up_to_the_scale(factor):
    def report(size):
        gap = size * rate(1, where=group(g="a")) - size * rate(1, where=group(g="b"))
        limits = [size * rate(1) <= size * 0.75, gap <= size * 0.25]
        return rate_report(limits, [0, 1, 1, 0], [1, 1, 0, 0], sensitive_features={"g": list("abab")})

    if factor == 5e-324:  # too coarse for a quarter of it
        assert all(np.isfinite(row.interval).all() for row in report(factor))
        return
    for row, plain in zip(report(factor), report(1.0), strict=True):
        assert row.holds is plain.holds
        np.testing.assert_allclose(np.array(row.interval) / factor, plain.interval, rtol=1e-12)
        np.testing.assert_allclose(row.reached / factor, plain.reached, rtol=1e-12)


def test_a_report_on_ragged_predictions_is_refused():
    with pytest.raises(RatewiseError, match="entries that are no scalars"):
        rate_report(rate(1) <= 0.5, [0, 1], [0, []])
