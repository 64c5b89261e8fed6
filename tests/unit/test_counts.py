"""Counts beside known totals: the estimate of least variance, and what it is worth to the dual side."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ratewise import Domain, RateConstrainedClassifier, demographic_parity
from ratewise.counts import beside_totals, noise_as_read
from ratewise.datasets import census_like
from ratewise.defaults import PublicFacts, plan_for
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan

PARITY = compile_constraints([demographic_parity("sex", max_gap=0.1)], Domain([0, 1], {"sex": ["f", "m"]}))


def plan(noise=40.0, private=True, rate=0.5, **control):
    mechanism = {"gradient_noise": 30.0, "histogram_noise": noise} if private else {"gradient_noise": None}
    dual = DualControl(rate=0.0, **control)
    shape = {"n_rows": 4_000, "sampling_rate": rate, "steps": 400, "clip": 1.0}
    return Plan(**shape, **mechanism, private=private, dual=dual)


def projected(told, total, variances):
    """Solve the normal equations of ``min sum (x - told)^2 / variances, sum(x) = total`` outright."""
    k = len(told)
    system = np.zeros((k + 1, k + 1))
    system[:k, :k] = np.diag(1.0 / variances)
    system[:k, k] = system[k, :k] = 1.0
    return np.linalg.solve(system, np.append(told / variances, total))[:k]


@settings(max_examples=80, deadline=None)
@given(
    arrays(np.float64, (3, 4), elements=st.floats(-50.0, 500.0)),
    arrays(np.float64, 3, elements=st.floats(0.0, 900.0)),
    st.floats(0.5, 50.0),
    st.floats(0.01, 1.0),
)
def test_the_nearest_counts_that_add_up(told, totals, noise, rate):
    found = beside_totals(told, totals, noise, rate)
    variances = noise**2 + (1 - rate) * np.maximum(told, 0.0)
    for q in range(3):
        assert found[q] == pytest.approx(projected(told[q], totals[q], variances[q]), abs=1e-6)
    assert found.sum(axis=1) == pytest.approx(totals, abs=1e-6)


def test_arguments_are_left_alone():
    told, totals = np.array([[30.0, 80.0]]), np.array([100.0])
    beside_totals(told, totals, 3.0, 0.5)
    assert told.tolist() == [[30.0, 80.0]]
    assert totals.tolist() == [100.0]


def test_without_noise_rates_are_those_within_the_batch():
    told = np.array([[30.0, 90.0], [5.0, 15.0], [0.0, 7.0]])
    totals = np.array([100.0, 24.0, 9.0])
    rates = beside_totals(told, totals, 0.0, 0.5) / totals[:, None]
    assert rates == pytest.approx(told / told.sum(axis=1)[:, None])


def test_nothing_is_moved_where_nothing_can_vary():
    """All rows in every batch and no noise; and a cell that nobody is in."""
    told = np.array([[30.0, 90.0], [0.0, 0.0]])
    np.testing.assert_array_equal(beside_totals(told, told.sum(axis=1), 0.0, 1.0), told)
    np.testing.assert_array_equal(beside_totals(told, np.array([120.0, 7.0]), 0.0, 0.5)[1], [0.0, 0.0])


@pytest.mark.parametrize("noise", [0.0, 10.0, 60.0])
@pytest.mark.parametrize("shares", [(0.1, 0.9), (0.2, 0.3, 0.5)])
def test_the_variance_is_the_least_there_is(noise, shares):
    """Unbiased, and with what Gauss and Markov say is left: v (1 - v / sum of v). 20,000 draws know it to 1%.

    Counts as drawn have clearly more, and counts corrected by equal shares where draws are most of it.
    """
    rng, rate, rows = np.random.default_rng(0), 0.5, 2_000
    members = rows * np.array(shares)
    drawn = rng.binomial(members.astype(int), rate, size=(20_000, len(shares)))
    told = drawn + rng.normal(scale=noise, size=drawn.shape)
    usual, total = members * rate, rows * rate
    variances = noise**2 + (1 - rate) * usual
    expected = variances * (1 - variances / variances.sum())
    found = beside_totals(told, np.full(20_000, total), noise, rate)
    assert found.mean(axis=0) == pytest.approx(usual, abs=5 * np.sqrt(expected.max() / 20_000))
    assert found.var(axis=0) == pytest.approx(expected, rel=0.05)
    assert told.var(axis=0).sum() > 1.2 * expected.sum()
    evenly = told - (told.sum(axis=1) - total)[:, None] / len(shares)
    assert evenly.var(axis=0).sum() > (1.05 if noise == 0.0 else 0.999) * expected.sum()


def batches(made, shares, steps, seed=0):
    """Return released histograms of rows that are drawn anew in every step, 1,000 of each sex."""
    rng = np.random.default_rng(seed)
    members = np.array([[1_000 * (1 - share), 1_000 * share] for share in shares]).astype(int)
    drawn = rng.binomial(members, made.sampling_rate, size=(steps, 2, 2)).astype(np.float64)
    return made.histogram_mechanism.release(drawn, rng)


def read(made, shares=(0.3, 0.25), steps=400):
    """Return the gap as read in the later of many steps, and the dual side after them."""
    multipliers, gaps = Multipliers(PARITY, made), []
    for released in batches(made, shares, steps):
        multipliers.update(released)
        gaps.append(multipliers.values[0])
    return np.array(gaps[steps // 4 :]), multipliers


def test_two_classes_are_read_with_half_of_the_noise():
    """Noise of 40 on counts of 500 rows; the draw adds to both sides alike."""
    known, _ = read(plan(known_totals=True, clamp=False))
    raw, _ = read(plan(known_totals=False, clamp=False))
    assert abs(known.mean()) == pytest.approx(abs(raw.mean()), abs=0.015)
    assert known.var() < 0.65 * raw.var()


def test_without_privacy_rates_are_no_noisier():
    known, _ = read(plan(private=False, known_totals=True))
    raw, _ = read(plan(private=False, known_totals=False))
    assert known.var() < 0.95 * raw.var()


@pytest.mark.parametrize("noise", [10.0, 40.0, 120.0])
@pytest.mark.parametrize("known", [False, True])
def test_errors_are_no_noisier_than_they_are_held_to_be(noise, known):
    """What `noise_as_read` says bounds what values do, and not by much more than the draw is overrated."""
    made = plan(noise=noise, known_totals=known, clamp=False, noise_tolerance=0.05)
    gaps, multipliers = read(made)
    held = multipliers._evidence.deviation[0]
    assert 0.7 * held < gaps.std() < 1.1 * held


def test_noise_as_read_goes_by_classes_and_plan():
    assert noise_as_read(plan(known_totals=True), 4) == pytest.approx(40.0 * np.sqrt(0.75))
    assert noise_as_read(plan(known_totals=False), 4) == 40.0


def test_rates_of_the_end_are_read_the_same_way():
    """The late mean of all classes adds up to what all histograms say; its positives follow."""
    spread = []
    for known in (True, False):
        made = plan(known_totals=known, clamp=False)
        ends = []
        for seed in range(120):
            multipliers = Multipliers(PARITY, made)
            multipliers.update(batches(made, (0.3, 0.25), 300, seed))
            multipliers.update(batches(made, (0.3, 0.25), 100, 1_000 + seed))
            ends.append(multipliers.late_values[0])
        spread.append(np.var(ends))
    assert spread[0] < 0.8 * spread[1]


def test_rates_that_move_are_not_held_to_what_they_were():
    """Half of the rows in the first steps and nobody since: nobody is what is read, without noise."""
    made = plan(private=False, known_totals=True)
    multipliers = Multipliers(PARITY, made)
    for shares, seed in (((0.5, 0.5), 1), ((0.0, 0.0), 2)):
        for released in batches(made, shares, 200, seed):
            multipliers.update(released)
    np.testing.assert_array_equal(multipliers.values, np.zeros(len(PARITY)))


def test_smoothed_counts_are_put_right_too():
    known, _ = read(plan(known_totals=True, clamp=False, memory=0.8))
    raw, _ = read(plan(known_totals=False, clamp=False, memory=0.8))
    assert known.var() < 0.7 * raw.var()


def test_a_swing_is_what_noise_as_read_leaves():
    """Gaps of 0.2 to and fro: held to be noisier than they are, they would seem to swing by 0.18."""
    made = plan(known_totals=True, clamp=False)
    multipliers = Multipliers(PARITY, made)
    there, back = (batches(made, shares, 200, seed=1) for shares in ((0.5, 0.3), (0.3, 0.5)))
    for pair in zip(there, back, strict=True):
        for released in pair:
            multipliers.update(released)
    assert multipliers.swing == pytest.approx([0.2, 0.2], abs=0.01)


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_defaults_know_totals(epsilon):
    facts = PublicFacts(n_rows=5_000, n_features=9, n_classes=2, constraints=PARITY)
    assert plan_for(facts, epsilon=epsilon, delta=1e-6).dual.known_totals
    assert not DualControl().known_totals


def test_a_fit_by_defaults_can_be_replayed_from_what_it_released():
    """Whatever is read beside totals is read off released histograms: nothing else gives the same numbers."""
    people = census_like(10_000, random_state=0)
    public = {"classes": people.classes, "group_values": people.group_values, "random_state": 0}
    model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.05), **public)
    model.fit(people.X, people.y, sensitive_features=people.sensitive)
    assert model.plan_.dual.known_totals
    assert model.plan_.dual.interval == 1
    replayed = Multipliers(model.constraints_, model.plan_)
    for step, released in enumerate(model.history_["histogram"]):
        replayed.update(released)
        np.testing.assert_array_equal(replayed.values, model.history_["values"][step])
        np.testing.assert_array_equal(replayed.multipliers, model.history_["multipliers"][step])
