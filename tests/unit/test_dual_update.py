"""The dual update against the textbook Kalman filter, and on a problem with a known solution."""

import numpy as np
import pytest

from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.rates import rate
from ratewise.exceptions import InvalidInput
from ratewise.training.dual import DualUpdate

DOMAIN = Domain((0, 1), {"g": ["a", "b"]})


def dual(bound=0.5, **options):
    compiled = compile_constraints([rate(1) <= bound], DOMAIN)
    numbers = {"total": 1000.0, "sampling_rate": 0.5, "noise": 10.0, "rate": 0.1, "damping": 1.0, **options}
    return DualUpdate(compiled, **numbers)


def table(made, share):
    """Return a histogram of 500 rows, of which `share` are predicted positive, spread over the cells."""
    cells = made.constraints.n_cells
    return np.tile([500 * (1 - share) / cells, 500 * share / cells], (cells, 1))


def test_estimates_follow_a_kalman_filter():
    """State x with drift of variance q_t, observations of variance r: the textbook recursion."""
    made = dual()
    compiled = made.constraints
    rng = np.random.default_rng(0)
    x = p = None
    for step in range(30):
        schedule = 1.0 - step / 30
        histogram = table(made, 0.6) + rng.normal(0, 10.0, (compiled.n_cells, 2))
        made.update(histogram, schedule)
        sizes = np.maximum(made.cell_totals, 0.0)
        consistent = histogram + ((sizes - histogram.sum(axis=1)) / 2)[:, None]
        z = compiled.values(consistent, sizes, floor=1.0)
        r = compiled.value_noise(consistent, sizes, 10.0 * np.sqrt(0.5), floor=1.0) ** 2
        if x is None:
            x, p = z, r
        else:
            p = p + (0.02 * schedule) ** 2
            gain = p / (p + r)
            x, p = x + gain * (z - x), (1 - gain) * p
        assert np.allclose(made.estimate, x)
        assert np.allclose(made.variance, p)
    assert made.variance[0] < r[0]


def test_multipliers_by_hand():
    made = dual(bound=0.5, noise=1e-9)
    integral = 0.0
    for share in (0.9, 0.9, 0.2, 0.2, 0.7):
        made.update(table(made, share), 1.0)
        error = made.estimate[0] - (made.constraints.bounds - made.margin)[0]
        integral = max(0.0, integral + 0.1 * error)
        assert made.integral[0] == pytest.approx(integral)
        assert made.multipliers[0] == pytest.approx(max(0.0, integral + error))


def test_it_balances_a_toy_problem():
    """Raising the cost of predicting 1 lowers the share of positives: the share settles at the bound."""
    made = dual(bound=0.3, noise=1.0)
    share = 0.8
    for _ in range(400):
        made.update(table(made, share), 1.0)
        cost = float((made.table[:, 1] - made.table[:, 0]).mean())
        share += 0.2 * (1.0 / (1.0 + np.exp(2.0 * cost - 1.4)) - share)
    assert share == pytest.approx(0.3, abs=0.02)
    assert made.multipliers[0] > 0


def test_satisfied_constraints_have_no_multiplier():
    made = dual(bound=0.9)
    for _ in range(10):
        made.update(table(made, 0.2), 1.0)
    assert made.multipliers[0] == 0.0
    assert not made.table.any()


def test_a_margin_moves_the_bound():
    near, far = dual(bound=0.5), dual(bound=0.5, margin=0.2)
    for made in (near, far):
        made.update(table(made, 0.45), 1.0)
    assert near.multipliers[0] == 0.0
    assert far.multipliers[0] > 0.0


def test_state_goes_on_where_it_was():
    rng = np.random.default_rng(1)
    one, other = dual(), dual()
    tables = [table(one, 0.7) + rng.normal(0, 10, (one.constraints.n_cells, 2)) for _ in range(8)]
    for histogram in tables[:4]:
        one.update(histogram, 1.0)
    other.restore(one.state())
    for histogram in tables[4:]:
        one.update(histogram, 0.5)
        other.update(histogram, 0.5)
    assert np.array_equal(one.multipliers, other.multipliers)
    assert np.array_equal(one.table, other.table)
    with pytest.raises(InvalidInput, match="other constraints"):
        DualUpdate(
            compile_constraints([rate(1) <= 0.5, rate(0) <= 0.5, rate(1) >= 0.1], DOMAIN),
            total=1.0, sampling_rate=1.0, noise=1.0, rate=0.1, damping=1.0,
        ).restore(one.state())  # fmt: skip


def test_the_mean_histogram_of_an_interval_makes_one_update():
    """Four noisy histograms count as one with half the noise, also when training stops between them."""
    rng = np.random.default_rng(1)
    often, seldom = dual(noise=10.0), dual(noise=20.0, interval=4)
    for schedule in (1.0, 0.5):
        histograms = table(often, 0.7) + rng.normal(0, 20.0, (4, often.constraints.n_cells, 2))
        often.update(histograms.mean(axis=0), schedule)
        for number, histogram in enumerate(histograms):
            if number == 2:
                state, seldom = seldom.state(), dual(noise=20.0, interval=4)
                seldom.restore(state)
            seldom.update(histogram, schedule)
    assert np.allclose(seldom.multipliers, often.multipliers)
    assert np.allclose(seldom.table, often.table)
    assert np.allclose(seldom.variance, often.variance)
    assert np.allclose(seldom.cell_totals, often.cell_totals)
