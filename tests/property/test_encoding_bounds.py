"""Bounds found privately, counts beyond declared ones: what one row can change, and the order of booking."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ratewise.bounds as bounds_room
from ratewise.accounting import GaussianEvent, epsilon
from ratewise.bounds import (
    bounds_plan,
    coarse_counts,
    count_outside,
    fine_counts,
    outside_counts,
    private_bounds,
    range_from,
    warn_outside,
)
from ratewise.exceptions import InvalidInput, RatewiseWarning

HARD = st.one_of(
    st.floats(-10, 10),
    st.sampled_from([0.0, -0.0, 1e-30, 2.0**-20, -(2.0**40), 1e300, -1e300, math.inf, -math.inf, 1024.0]),
)
ROWS = st.tuples(st.integers(2, 10), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=HARD)
)


def named(X):
    return {f"c{j}": X[:, j] for j in range(X.shape[1])}


@settings(deadline=None, max_examples=150)
@given(ROWS, st.floats(-100, 100), st.floats(1e-3, 1e6))
def test_one_row_moves_every_release_by_at_most_its_sensitivity(X, low, width):
    m = X.shape[1]
    ranges = np.array([(low, low + width)] * m)
    bounds = dict.fromkeys(named(X), (low, low + width))
    for count in (
        coarse_counts,
        lambda columns: fine_counts(columns, ranges),
        lambda columns: outside_counts(columns, bounds),
    ):
        moved = count(named(X)) - count(named(X[1:]))
        assert np.linalg.norm(moved) <= math.sqrt(m) * (1 + 1e-12)
        assert np.abs(moved).sum(axis=1).max() <= 1
    assert np.linalg.norm(coarse_counts(named(X)) - coarse_counts(named(X[1:]))) == pytest.approx(
        math.sqrt(m)
    )


def test_releases_are_booked_first_and_have_noise_in_units_of_the_sensitivity(monkeypatch):
    order = []

    class Watched(bounds_room.RoundedGaussianMechanism):
        def release(self, value, rng):
            order.append((value.shape, self.noise, self.sensitivity))
            return super().release(value, rng)

    monkeypatch.setattr(bounds_room, "RoundedGaussianMechanism", Watched)
    rng = np.random.default_rng(0)
    columns = {name: np.linspace(20, 60, 5000) for name in "abcd"}
    private_bounds(columns, 20.0, rng, lambda event, purpose: order.append(event))
    bounds = dict.fromkeys(columns, (0.0, 30.0))
    found = count_outside(columns, bounds, 40.0, rng, lambda event, purpose: order.append(event))
    assert order == [
        GaussianEvent(20.0),
        ((4, 123), 20.0, 2.0),
        GaussianEvent(20.0),
        ((4, 34), 20.0, 2.0),
        GaussianEvent(40.0),
        ((4, 2), 40.0, 2.0),
    ]
    assert {count.deviation for count in found.values()} == {80.0}


def test_every_entry_has_noise_of_its_own():
    columns = {name: np.full(100, 7.0) for name in "ab"}
    exact = coarse_counts(columns)
    released = bounds_room._mechanism(30.0, 2).release(exact, np.random.default_rng(0)) - exact
    assert len(np.unique(released)) > 0.9 * released.size
    assert released.std() == pytest.approx(30.0 * math.sqrt(2), rel=0.15)


def test_the_plan_costs_what_its_events_say_and_little_of_the_budget():
    plan = bounds_plan(1.0, 1e-5, n_rows=10_000, n_columns=3, outside=True)
    assert plan.events == (GaussianEvent(plan.bounds_noise, 2), GaussianEvent(plan.outside_noise))
    whole = epsilon(GaussianEvent(1 / math.sqrt(2 / plan.bounds_noise**2 + 1 / plan.outside_noise**2)), 1e-5)
    assert epsilon(plan.events, 1e-5) == pytest.approx(whole, rel=1e-3)
    assert whole < 0.25
    assert bounds_plan(None, 1e-5, n_rows=10, n_columns=3).events == ()
    assert bounds_plan(1.0, 1e-5, n_rows=10, n_columns=0).events == ()


def test_too_few_rows_are_refused_with_a_way_out():
    with pytest.raises(InvalidInput, match=r"300 rows are too few .* declare the bounds .* or raise epsilon"):
        bounds_plan(1.0, 1e-5, n_rows=300, n_columns=3)
    assert bounds_plan(10.0, 1e-5, n_rows=300, n_columns=3).bounds_noise is not None


@pytest.mark.parametrize(
    ("draw", "low", "high"),
    [
        (lambda rng, n: rng.normal(40, 10, n), (5, 25), (55, 80)),
        (lambda rng, n: rng.integers(1990, 2025, n).astype(float), (1900, 1990), (2024, 2060)),
        (lambda rng, n: np.where(rng.random(n) < 0.9, 0.0, rng.exponential(8000, n)), (-300, 0), (5e3, 7e4)),
        (lambda rng, n: -rng.lognormal(2, 1, n), (-300, -20), (-8, 0)),
        (lambda rng, n: np.full(n, 3.0), (2, 3), (3, 4.01)),
    ],
)
def test_bounds_hold_most_rows_and_not_much_more(draw, low, high):
    rng = np.random.default_rng(5)
    values = draw(rng, 20_000)
    noise = bounds_plan(1.0, 1e-5, n_rows=len(values), n_columns=1).bounds_noise
    (found,) = private_bounds({"x": values}, noise, rng, lambda *_: None).values()
    assert np.mean((values >= found[0]) & (values <= found[1])) > 0.96
    assert low[0] <= found[0] <= low[1]
    assert high[0] <= found[1] <= high[1]


def test_counts_that_are_all_noise_keep_the_whole_range_and_say_so():
    assert range_from(np.array([1.0, -2.0, 2.0, 1.0, 0.0]), np.array([0.0, 1.0, 2.0, 3.0]), 5.0) == (0.0, 3.0)
    with pytest.warns(RatewiseWarning, match="too much noise to find the bounds of 'x'"):
        private_bounds({"x": np.ones(10)}, 1000.0, np.random.default_rng(0), lambda *_: None)


def test_a_warning_for_bounds_that_cut_off_many_rows_comes_from_released_counts():
    rng = np.random.default_rng(0)
    columns = {"age": np.linspace(0, 100, 10_000), "pay": np.linspace(0, 1, 10_000)}
    found = count_outside(columns, {"age": (20.0, 90.0), "pay": (0.0, 1.0)}, 20.0, rng, lambda *_: None)
    assert found["age"].below == pytest.approx(2000, abs=5 * found["age"].deviation)
    with pytest.warns(RatewiseWarning, match="'age': about .* below") as told:
        warn_outside(found, 10_000)
    assert "pay" not in str(told[0].message)
