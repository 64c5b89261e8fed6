"""The dual side: projection, ascent, smoothing, group sizes, state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput
from ratewise.families import demographic_parity
from ratewise.multipliers import Multipliers, affordable_interval, project
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan

DOMAIN = Domain(classes=(0, 1), columns={"sex": ("f", "m")})
PARITY = compile_constraints([demographic_parity("sex", max_gap=0.1)], DOMAIN)


def plan(private=False, **dual):
    noise = {"gradient_noise": 1.0, "histogram_noise": 4.0, "clip": 1.0} if private else {}
    settings_ = {"clip": None, "gradient_noise": None, **noise}
    return Plan(
        n_rows=1000, sampling_rate=0.2, steps=100, private=private, dual=DualControl(**dual), **settings_
    )


def histogram(female, male, size=100.0):
    """Counts of 100 rows of each sex with the given positive rates, in the order of the cells."""
    rates = {"f": female, "m": male}
    order = PARITY.cells(np.zeros(2, dtype=int), {"sex": np.array(["f", "m"])})
    table = np.zeros((2, 2))
    for cell, sex in zip(order, "fm", strict=True):
        table[cell] = size * (1 - rates[sex]), size * rates[sex]
    return table


def dual_for(**control):
    return Multipliers(PARITY, plan(**control))


class ErrorsOnly:
    """Stands in for constraints whose one value can be dictated: the count of class 1 in one cell."""

    n_cells, n_classes = 1, 2
    bounds = np.zeros(1)

    def __len__(self):
        return 1

    def values(self, histogram, cell_totals=None, *, floor=1.0, clamp=True):
        return histogram[:, 1].copy()

    def weights(self, multipliers, histogram, cell_totals=None, *, floor=1.0, clamp=True, ratio_floor=0.0):
        return np.array([[0.0, multipliers[0]]])


def path(errors, **control):
    """Multipliers after each step, shifted up so that the projection at zero stays out of the way."""
    dual = Multipliers(ErrorsOnly(), plan(**control))
    dual.multipliers = dual.multipliers + 100.0
    found = []
    interval = dual.control.interval
    for start in range(0, len(errors), interval):
        histograms = np.array([[[0.0, error]] for error in errors[start : start + interval]])
        dual.update(histograms if interval > 1 else histograms[0])
        found.append(dual.multipliers[0] - 100.0)
    return found


ERRORS = [1.0, 1.0, 1.0, 0.0, 0.0, -1.0]


class TestAscent:
    def test_plain(self):
        np.testing.assert_allclose(path(ERRORS, rate=0.5), [0.5, 1.0, 1.5, 1.5, 1.5, 1.0])

    def test_nu_pi_without_memory(self):
        # published sequence for k_i = 0.1, k_p = 1: a rate of 0.1 and a proportional weight of 10
        expected = [0.1, 1.2, 1.3, 0.3, 0.3, -0.8]
        np.testing.assert_allclose(path(ERRORS, rate=0.1, proportional=10.0), expected)

    def test_nu_pi_with_memory(self):
        expected = [0.1, 0.3, 0.49, 0.471, 0.4539, 0.23851]
        np.testing.assert_allclose(path(ERRORS, rate=0.1, proportional=10.0, smoothing=0.9), expected)

    def test_heavy_ball(self):
        np.testing.assert_allclose(path([1.0, 1.0, 0.0], rate=1.0, momentum=0.5), [1.0, 2.5, 3.25])

    def test_schedule(self):
        falling = path([1.0] * 100, rate=1.0, schedule="linear")
        np.testing.assert_allclose(np.diff([0.0, *falling]), 1.0 - np.arange(100) / 100)

    def test_memory_averages_released_histograms(self):
        # weights .5 and .25, made to sum to one
        np.testing.assert_allclose(path([1.0, 0.0], rate=1.0, memory=0.5), [1.0, 1.0 + 1.0 / 3.0])

    def test_interval_takes_the_mean_and_keeps_the_pace(self):
        np.testing.assert_allclose(path([1.0, 0.0, 2.0, 3.0], rate=1.0, interval=2), [1.0, 6.0])

    def test_interval_keeps_the_long_run_gain_of_momentum(self):
        every, seldom = (
            path([1.0] * 96, rate=1.0, momentum=0.5, interval=interval)[-1] for interval in (1, 8)
        )
        assert every == pytest.approx(seldom, rel=0.05)

    def test_margin_is_taken_off_the_bound(self):
        assert path([1.0], rate=1.0, margin=0.25) == pytest.approx([1.25])
        dual = Multipliers(ErrorsOnly(), plan(rate=1.0), margins=[0.5])
        dual.update(np.array([[0.0, 1.0]]))
        assert dual.multipliers == pytest.approx([1.5])

    def test_never_negative_and_average_kept(self):
        dual = Multipliers(ErrorsOnly(), plan(rate=1.0))
        for error in (2.0, -5.0, 1.0):
            dual.update(np.array([[0.0, error]]))
        assert dual.multipliers == pytest.approx([1.0])
        assert dual.average == pytest.approx([1.0])

    def test_cap_and_radius_hold(self):
        dual = dual_for(rate=10.0, cap=0.5)
        dual.update(histogram(0.9, 0.1))
        assert dual.multipliers.max() == 0.5
        dual = dual_for(rate=10.0, radius=0.7)
        dual.update(histogram(0.9, 0.1))
        assert dual.multipliers.sum() == pytest.approx(0.7)

    def test_penalty_enters_the_table_only(self):
        dual = Multipliers(ErrorsOnly(), plan(rate=1.0, penalty=3.0))
        dual.update(np.array([[0.0, 1.0]]))
        assert dual.multipliers == pytest.approx([1.0])
        assert dual.table[0, 1] == pytest.approx((1.0 + 3.0) * 200.0)


class TestTable:
    def test_no_table_while_all_multipliers_are_zero(self):
        dual = dual_for()
        assert dual.table is None
        dual.update(histogram(0.5, 0.5))
        assert dual.table is None
        assert dual.values == pytest.approx([0.0, 0.0])

    def test_table_is_the_derivative_in_units_of_a_row(self):
        dual = dual_for(rate=1.0)
        released = histogram(0.6, 0.3)
        dual.update(released)
        expected = PARITY.weights(dual.multipliers, released, released.sum(axis=1)) * 200.0
        np.testing.assert_allclose(dual.table, expected)
        assert np.abs(dual.table).max() > 0

    def test_group_sizes_are_the_mean_of_all_released_ones(self):
        dual = dual_for(rate=0.0)
        for size in (50.0, 100.0, 150.0):
            dual.update(histogram(0.5, 0.2, size))
        np.testing.assert_allclose(dual.cell_totals, [100.0, 100.0])
        # the newest counts (75 and 30) over the mean size
        assert dual.values.max() == pytest.approx(0.45)

    def test_floor_follows_the_noise_of_the_mean_size(self):
        dual = Multipliers(PARITY, plan(private=True, floor_deviations=2.0))
        assert dual.floor == pytest.approx(2.0 * 4.0 * np.sqrt(2.0))
        for _ in range(50):
            dual.update(histogram(0.5, 0.5))
        assert dual.floor == pytest.approx(2.0 * 4.0 * np.sqrt(2.0 / 50))
        for _ in range(5000):
            dual.update(histogram(0.5, 0.5))
        assert dual.floor == 1.0

    def test_empty_and_negative_counts_stay_finite(self):
        dual = dual_for(rate=1.0)
        for released in (np.zeros((2, 2)), np.full((2, 2), -30.0), histogram(1.0, 0.0)):
            dual.update(released)
            assert np.all(np.isfinite(dual.values))
            assert np.all(np.isfinite(dual.multipliers))
            assert dual.table is None or np.all(np.isfinite(dual.table))


class TestState:
    def test_restored_state_goes_on_alike(self):
        control = {
            "rate": 0.3,
            "memory": 0.5,
            "momentum": 0.5,
            "proportional": 1.0,
            "smoothing": 0.5,
        }
        one, two = dual_for(**control), dual_for(**control)
        for rates in ((0.9, 0.1), (0.8, 0.3), (0.7, 0.3)):
            one.update(histogram(*rates))
        state = one.state()
        one.update(histogram(0.6, 0.1))
        two.restore(state)
        two.update(histogram(0.6, 0.1))
        one.update(histogram(0.6, 0.1))
        two.update(histogram(0.6, 0.1))
        np.testing.assert_array_equal(one.multipliers, two.multipliers)
        np.testing.assert_array_equal(one.table, two.table)
        np.testing.assert_array_equal(one.average, two.average)

    def test_state_of_other_constraints_is_refused(self):
        state = Multipliers(ErrorsOnly(), plan()).state()
        with pytest.raises(InvalidInput, match="other constraints"):
            dual_for().restore(state)

    @pytest.mark.parametrize("margins", [[0.1], [0.1, np.nan], [[0.1, 0.1]]])
    def test_margins_must_fit(self, margins):
        with pytest.raises(InvalidInput, match="margins"):
            Multipliers(PARITY, plan(), margins=margins)


class TestInterval:
    def test_small_problems_on_large_batches_update_every_step(self):
        assert affordable_interval(PARITY, 200_000, 100, 10_000) == 1

    def test_short_runs_still_make_two_hundred_updates(self):
        assert affordable_interval(PARITY, 64, 10, 150) == 1
        assert affordable_interval(PARITY, 64, 10, 1000) == 1
        assert affordable_interval(PARITY, 64, 10, 10_000) == 5

    def test_more_constraints_wait_longer(self):
        many = compile_constraints(
            [demographic_parity("g", max_gap=0.1, versus="pairwise")],
            Domain(classes=(0, 1), columns={"g": tuple(range(60))}),
        )
        assert affordable_interval(many, 5000, 100, 10**6) > affordable_interval(PARITY, 5000, 100, 10**6) > 1


vectors = arrays(np.float64, st.integers(1, 8), elements=st.floats(-10, 10))
limits = st.none() | st.floats(0.01, 12)


def by_solver(values, cap, radius):
    """The same projection by a general solver."""
    constraints = [] if radius is None else [{"type": "ineq", "fun": lambda x: radius - x.sum()}]
    start = np.clip(values, 0, 0.01 / len(values))
    solution = minimize(
        lambda x: 0.5 * np.sum((x - values) ** 2),
        start,
        jac=lambda x: x - values,
        bounds=[(0, cap)] * len(values),
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return solution.x


class TestProjection:
    @settings(max_examples=150, deadline=None)
    @given(values=vectors, cap=limits, radius=limits)
    def test_agrees_with_a_general_solver(self, values, cap, radius):
        ours = project(values, cap, radius)
        theirs = by_solver(values, cap, radius)
        assert np.sum((ours - values) ** 2) <= np.sum((theirs - values) ** 2) + 1e-6
        np.testing.assert_allclose(ours, theirs, atol=2e-4)

    @settings(max_examples=200, deadline=None)
    @given(values=vectors, cap=limits, radius=limits)
    def test_lands_in_the_set_and_stays_there(self, values, cap, radius):
        ours = project(values, cap, radius)
        assert ours.min() >= 0
        assert cap is None or ours.max() <= cap
        assert radius is None or ours.sum() <= radius * (1 + 1e-9) + 1e-12
        np.testing.assert_allclose(project(ours, cap, radius), ours, atol=1e-9)

    def test_ten_thousand_values(self):
        values = np.random.default_rng(0).normal(size=10_000)
        ours = project(values, cap=1.0, radius=50.0)
        assert ours.sum() == pytest.approx(50.0)
