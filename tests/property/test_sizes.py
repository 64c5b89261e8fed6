"""The release of sizes of features: what one row can change, and what the sizes are good for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ratewise import RateConstrainedClassifier
from ratewise.accounting import GaussianEvent, epsilon
from ratewise.features import Features
from ratewise.mechanisms import summation_slack
from ratewise.scaling import Scaling
from ratewise.sizes import PLACES, Sizes, find_sizes, numbers_from, size_counts, sizes_from

HARD = st.one_of(
    st.floats(-10, 10),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-30, 1e15, -1e300, 3.0, 1.0, -1.0]),
    st.floats(-1e3, 1e3),
)
ROWS = st.tuples(st.integers(2, 9), st.integers(1, 7)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=HARD)
)


def counts(X, form=np.asarray, **options):
    return size_counts(Features(form(X), intercept=False, **options))


@settings(deadline=None, max_examples=200)
@given(ROWS, st.sampled_from([np.asarray, sp.csr_array]), st.sampled_from([None, 0.37]))
def test_one_row_changes_the_counts_by_a_vector_of_norm_one(X, form, factor):
    scaling = None if factor is None else Scaling(deviation=np.full(X.shape[1], factor))
    moved = counts(X, form, scaling=scaling) - counts(X[1:], form, scaling=scaling)
    assert np.linalg.norm(moved) <= 1.0 + 1e-15
    assert np.all(moved >= 0.0)
    seen = np.count_nonzero(np.abs(X[0]) >= np.finfo(np.float64).tiny)
    if factor is None:
        assert np.count_nonzero(moved) == seen
        assert np.linalg.norm(moved) >= min(seen, 1) * (1 - 1e-6)  # the noise is not larger than it needs


def test_what_a_row_adds_does_not_depend_on_the_rows_beside_it():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 7)) * rng.integers(0, 2, size=(5000, 7)) * 10.0 ** rng.integers(-3, 4, size=7)
    whole = counts(X)
    assert np.array_equal(whole, counts(X[rng.permutation(len(X))]))
    assert np.array_equal(whole, counts(X, sp.csr_array))
    assert np.array_equal(whole, counts(X, block_rows=17))
    assert np.array_equal(whole, counts(X[:1234]) + counts(X[1234:]))


def test_a_count_is_of_its_magnitude_and_sign():
    ends = [2.0, 0.5, 2.0, 8.0, 2.0**59, 2.0**-39, 2.0**59]
    for value, end in zip([1.1, 0.3, 1.9, 2.0, 1e300, 1e-300, 2.0**58], ends, strict=True):
        for sign in (1, -1):
            (found,) = np.flatnonzero(counts(np.array([[sign * value]]))[0])
            assert found // 50 == (sign < 0)
            assert np.exp2(-41.0 + 2 * (found % 50 + 1)) == end
    near = np.nextafter(1.0, [0.0, 2.0])
    for value in (1.0, -1.0, *near, *-near):
        (found,) = np.flatnonzero(counts(np.array([[value]]))[0])
        assert (found == 100) == (abs(value) == 1.0)


@pytest.mark.parametrize("noise", [None, 26.0])
def test_numbers_are_told_from_flags(noise):
    """By entries other than 0, 1 and -1, if more than a few rows have any."""
    rng = np.random.default_rng(9)
    n = 20_000
    X = np.column_stack(
        [
            rng.random(n) < 0.3,
            rng.choice([-1.0, 1.0], n),
            rng.normal(size=n),
            rng.exponential(700.0, n) * (rng.random(n) < 0.1),
            rng.integers(0, 3, n),
            np.where(rng.random(n) < 0.0005, 40.0, rng.random(n) < 0.5),
            -rng.exponential(5.0, n),
        ]
    )
    found = find_sizes(Features(X, intercept=False), noise, rng, lambda *_: None)
    rare = [5] if noise is None else []  # ten rows are not seen
    assert found.numbers.tolist() == sorted([2, 3, 4, 6, *rare])
    most = dict(zip(found.numbers.tolist(), found.most.tolist(), strict=True))
    assert 2.0 <= most[2] <= 8.0
    assert 8.0 <= most[4] <= 10.0  # of two octaves, the end, and a little more
    assert 700.0 < most[3] < 40_000.0
    below = dict(zip(found.numbers.tolist(), found.below_zero.tolist(), strict=True))
    assert [below[place] for place in (2, 3, 4, 6)] == [True, False, False, True]


def test_the_fewer_entries_are_seen_the_larger_may_others_be():
    table = np.zeros((3, PLACES))
    table[:, 23] = [300.0, 3000.0, 30_000.0]
    _, most, _ = numbers_from(table, 10.0)
    assert (most / most[2]).tolist() == pytest.approx([50 / 6, 1.0, 1.0])


def test_chance_alone_makes_no_number():
    rng = np.random.default_rng(12)
    odd = sum(len(numbers_from(rng.normal(0, 26, (30, PLACES)), 26.0)[0]) for _ in range(300))
    assert odd <= 2
    assert len(numbers_from(rng.normal(0, 52, (30, PLACES)), 26.0)[0]) > 5


def test_small_counts_on_both_sides_of_zero_stand_out_together():
    table = np.zeros((3, PLACES))
    table[0, [20, 70]] = 4.0
    table[1, 20] = 6.0
    table[2, 20] = 4.0
    assert numbers_from(table, 1.0)[0].tolist() == [0, 1]


def test_what_is_above_zero_has_to_outnumber_what_is_below_for_sure():
    table = np.zeros((4, PLACES))
    table[:, 20] = [40.0, 40.0, 40.0, 6.0]
    table[:, 70] = [0.0, 4.0, 36.0, 0.0]
    assert numbers_from(table, 1.0)[2].tolist() == [False, False, True, True]


def test_sizes_are_booked_before_rows_are_read(monkeypatch):
    import ratewise.sizes as room

    order = []
    monkeypatch.setattr(room, "size_counts", lambda _: order.append("rows") or np.zeros((2, PLACES)))
    features = Features(np.ones((3, 2)), intercept=False)
    found = find_sizes(features, 7.0, np.random.default_rng(0), lambda *entry: order.append(entry))
    assert order == [(GaussianEvent(7.0), "sizes of features"), "rows"]
    assert isinstance(found, Sizes)
    assert found.of.tolist() == [1.0, 1.0]
    assert len(found.numbers) == len(found.most) == len(found.below_zero) == 0
    order.clear()
    find_sizes(features, None, np.random.default_rng(0), lambda *entry: order.append(entry))
    assert order == ["rows"]


@pytest.mark.parametrize(("rows", "slack"), [(3, 1e-12), (2**29, 1e-12), (2**30, summation_slack(2**30))])
def test_noise_makes_up_for_the_grid_and_for_sums_that_are_not_exact(monkeypatch, rows, slack):
    import ratewise.sizes as room

    made = []
    whole = room.RoundedGaussianMechanism
    monkeypatch.setattr(
        room, "RoundedGaussianMechanism", lambda *a, **k: made.append(whole(*a, **k)) or made[-1]
    )
    monkeypatch.setattr(room, "size_counts", lambda _: np.zeros((2, PLACES)))
    features = Features(np.ones((3, 2)), intercept=False)
    features.n_rows = rows
    find_sizes(features, 7.0, np.random.default_rng(0), lambda *_: None)
    (used,) = made
    assert (used.noise, used.sensitivity, used.whole, used.slack) == (7.0, 1.0, False, slack)


@pytest.mark.parametrize("noise", [None, 26.0])
def test_large_features_are_found_and_others_left_in_proportion(noise):
    rng = np.random.default_rng(1)
    size = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 1e6, 0.3, 1e-5])
    X = rng.normal(size=(20_000, 10)) * size
    found = find_sizes(Features(X, intercept=False), noise, rng, lambda *_: None).of
    assert np.ptp(found[[0, 1, 2, 3, 4, 5, 8]]) == 0.0  # nothing is done to what is of like size
    assert found[[6, 7]] / found[0] == pytest.approx(size[[6, 7]], rel=1.0)
    assert found[9] / found[0] == pytest.approx(16 * size[9], rel=1.0)


def test_noise_alone_leaves_features_as_they_are():
    rng = np.random.default_rng(2)
    odd = sum(np.ptp(sizes_from(rng.normal(0, 26, (30, PLACES)), 26.0)) > 0 for _ in range(300))
    assert odd <= 3
    assert np.ptp(sizes_from(rng.normal(0, 52, (30, PLACES)), 26.0)) > 0  # with more noise than said it shows


def test_rare_categories_share_one_size_and_standardised_ones_are_not_blown_up():
    rng = np.random.default_rng(3)
    n = 30_000
    rare = (rng.random((n, 40)) < 0.02).astype(float)
    numbers = rng.normal(size=(n, 10))
    raw, *_ = find_sizes(
        Features(np.hstack([rare, 1e4 * numbers]), intercept=False), 26.0, rng, lambda *_: None
    )
    assert np.ptp(raw[:40]) == 0.0
    assert np.all(raw[40:] / raw[0] > 1e3)
    standardised = np.hstack([(rare - rare.mean(0)) / rare.std(0), numbers])
    found, *_ = find_sizes(Features(standardised, intercept=False), 26.0, rng, lambda *_: None)
    assert np.ptp(found) == 0.0


def people(seed, n=12_000):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    y = (X @ [1.0, -1.0, 0.5, 1.0, 0.0, 0.7] + 0.5 * rng.normal(size=n) > 0).astype(int)
    return X, y


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("size", [[1e3, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1e-3], np.logspace(-3, 3, 6)])
def test_features_of_any_size_serve_as_well_as_those_of_one(form, size):
    X, y = people(4)
    scores = [
        RateConstrainedClassifier(classes=(0, 1), random_state=5).fit(form(Z), y).score(form(Z), y)
        for Z in (X, X * size)
    ]
    assert scores[1] > scores[0] - 0.01 > 0.85


def test_the_ledger_of_a_fit_holds_sizes_exactly_where_no_bounds_are_declared():
    X, y = people(6)
    for bounds, tails, releases in ((None, "auto", 9), (None, None, 5), ((-5, 5), "auto", 8)):
        model = RateConstrainedClassifier(
            classes=(0, 1), steps=20, feature_bounds=bounds, tails=tails, random_state=0
        ).fit(X, y)
        purposes = [getattr(record, "purpose", None) for record in model.ledger_.records]
        assert ("sizes of features" in purposes) == (bounds is None)
        everything = [*model.plan_.preparation.events, model.plan_.step_event.with_steps(20)]
        assert len(everything) == releases + 1
        assert model.privacy_.epsilon == pytest.approx(epsilon(everything, 1e-5), rel=1e-9)
        assert 0.99 < model.privacy_.epsilon <= 1.0


@pytest.mark.parametrize(
    ("changes", "rows", "said"),
    [
        ({}, 500, True),
        ({"feature_bounds": (-5, 5)}, 500, False),
        ({"standardise": False}, 500, False),
        ({"standardise": True}, 500, False),
        ({"epsilon": None}, 500, False),
        ({}, 2000, False),
    ],
)
def test_features_that_stay_as_they_are_for_want_of_rows_are_warned_of(changes, rows, said):
    X, y = people(8, rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RateConstrainedClassifier(**{"classes": (0, 1), "steps": 3} | changes).fit(X, y)
    found = [str(warning.message) for warning in caught if "find the sizes" in str(warning.message)]
    assert len(found) == said
    assert all("500 rows" in text and "feature_bounds=(lower, upper)" in text for text in found)
    assert all(warning.filename == __file__ for warning in caught if "sizes" in str(warning.message))


def test_scalings_are_put_on_top_of_each_other():
    rng = np.random.default_rng(7)
    x = rng.normal(3.0, 2.0, size=(50, 2))
    below = Scaling(np.zeros(2), np.full(2, 5.0)).standardised(np.array([0.2, 0.3]), np.array([2.0, 4.0]))
    both = below.standardised(np.array([0.1, -0.1]), np.array([0.5, 3.0]))

    def prepared(scaling):
        return Features(x, scaling=scaling, intercept=False).prepared(np.arange(50)).copy()

    expected = (prepared(below) - [0.1, -0.1]) / [0.5, 3.0]
    assert prepared(both) == pytest.approx(expected)
    only = Scaling(deviation=np.array([2.0, 8.0])).standardised(None, np.array([0.5, 0.5]))
    assert only.mean is None
    assert only.deviation.tolist() == [1.0, 4.0]
