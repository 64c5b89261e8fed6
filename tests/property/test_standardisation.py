"""The four releases that standardise features: what one row can change, and that they are booked first.

The release of sizes that may come before them is looked at in test_sizes.py.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.accounting import Budget, GaussianEvent, Ledger, epsilon
from ratewise.encoding import feature_kinds
from ratewise.features import Features
from ratewise.kinds import Kinds, kinds_by_bounds, kinds_by_name
from ratewise.plan import Preparation
from ratewise.scaling import Scaling
from ratewise.schema import Category, Number, Schema
from ratewise.standardisation import (
    Bounded,
    bound_from,
    deviations,
    drawn_together,
    longest_pieces,
    norm_counts,
    row_sums,
    square_sums,
    standardise,
)

ONE = Kinds(np.zeros(2, dtype=int))
HARD = st.one_of(
    st.floats(-10, 10), st.sampled_from([0.0, 1e-30, 1e6, -1e15, 3.0]), st.floats(-1e3, 1e3, width=32)
)
ROWS = st.tuples(st.integers(2, 12), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=HARD)
)


@settings(deadline=None, max_examples=150)
@given(
    ROWS,
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.lists(st.sampled_from([0.01, 1.0, 3.0, 1e4]), min_size=3, max_size=3),
    st.sampled_from([0.0, -2.5, 1e6]),
    st.sampled_from(["sparse", "dense", "curved"]),
    st.booleans(),
)
def test_one_row_changes_the_sums_by_at_most_their_sensitivity(X, of, bounds, shift, given, single):
    kinds, scaling, sparse = np.array(of[: X.shape[1]]), None, given == "sparse"
    if given == "curved":
        curved = np.arange(0, X.shape[1], 2)
        scaling = Scaling(np.full(X.shape[1], -5.0), np.full(X.shape[1], 7.0), curved=curved)
        kinds = np.append(kinds, kinds[curved])
    kinds = Kinds(kinds)
    bounds = np.array(bounds[: len(kinds)])
    X = X.astype(np.float32 if single else np.float64)
    form = sp.csr_array if sparse else np.asarray
    with_row, without = (
        Features(form(rows), intercept=False, scaling=scaling, block_rows=3) for rows in (X, X[1:])
    )
    centre = None if sparse else np.full(with_row.n_features, shift)
    for sums in (row_sums, lambda *given: square_sums(*given, centre)):
        less = sums(without, kinds, bounds)
        moved = sums(with_row, kinds, bounds) - less
        scale = max(1.0, np.abs(less).max())
        assert np.linalg.norm(moved) <= math.sqrt(len(kinds)) * (1 + 1e-12 * scale)
        for members in kinds.members:
            assert np.linalg.norm(moved[members]) <= 1 + 1e-12 * scale
    for origin in (None, centre):
        counted = norm_counts(with_row, kinds, origin) - norm_counts(without, kinds, origin)
        assert np.abs(counted).sum(axis=1).tolist() == [1.0] * len(kinds)


def test_the_sensitivity_is_reached():
    X = np.array([[3.0, 0.0], [0.1, 0.2]])
    both, one = Features(X, intercept=False), Features(X[1:], intercept=False)
    bound, centre = np.array([3.0]), np.array([1.0, 0.0])
    moved = row_sums(both, ONE, bound) - row_sums(one, ONE, bound)
    assert np.linalg.norm(moved) == pytest.approx(1.0, rel=1e-6)
    moved = square_sums(both, ONE, bound - 1, centre) - square_sums(one, ONE, bound - 1, centre)
    assert np.linalg.norm(moved) == pytest.approx(1.0, rel=1e-6)
    two, bounds = Kinds(np.arange(2)), np.array([3.0, 0.01])
    X = np.array([[3.0, 0.5], [0.1, 0.2]])
    both = Features(X, intercept=False)
    moved = row_sums(both, two, bounds) - row_sums(one, two, bounds)
    assert np.linalg.norm(moved) == pytest.approx(math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize(
    "of", [np.arange(40) % 2, np.arange(40) // 20, np.arange(40) > 2], ids=["mixed", "halves", "few and many"]
)
def test_a_row_at_the_edge_of_a_bin_stays_there_when_another_comes(form, of):
    """Numbers added in another order give another last bit: a row alone in its block is summed alike."""
    rng = np.random.default_rng(5)
    kinds = Kinds(of)
    rows = rng.normal(size=(200, 40))
    for members in kinds.members:
        rows[:, members] /= np.linalg.norm(rows[:, members], axis=1)[:, None]  # 1 is an edge
    other = np.ones(40)
    for row in rows:
        alone, two = form(row[None]), form(np.vstack([row, other]))
        many = form(np.vstack([*[other] * 30, row, *[other] * 40]))
        assert (
            kinds.norms(alone)[0].tolist() == kinds.norms(two)[0].tolist() == kinds.norms(many)[30].tolist()
        )
        counts = (norm_counts(Features(X, intercept=False), kinds) for X in (two, alone))
        moved = np.abs(np.subtract(*counts)).sum(axis=1)
        assert moved.tolist() == [1.0, 1.0]


def test_the_size_of_noise_does_not_depend_on_entries(monkeypatch):
    """Blocks of sparse rows are larger if rows hold less; the noise knows nothing of it."""
    import ratewise.standardisation as room

    made = []
    whole = room.RoundedGaussianMechanism
    monkeypatch.setattr(
        room, "RoundedGaussianMechanism", lambda *a, **k: made.append((a, k)) or whole(*a, **k)
    )
    full = sp.random_array((40_000, 40), density=0.5, rng=np.random.default_rng(0), format="csr")
    empty = sp.csr_array((40_000, 40))
    assert Features(full).block_rows != Features(empty).block_rows
    preparation = Preparation(norm_noise=40.0, moment_noise=20.0)
    for X in (full, empty):
        standardise(X, None, None, preparation, np.random.default_rng(0), lambda *_: None)
    assert made[:2] == made[2:]
    assert len(made) == 4


def test_kinds_are_names_or_numbers():
    assert kinds_by_name(["b", "a", "b"], 3).tolist() == [1, 0, 1]
    assert kinds_by_name((2, 2.0, "2"), 3).tolist() == [0, 0, 1]
    assert kinds_by_name(np.array([True, False]), 2).tolist() == [1, 0]
    assert kinds_by_name([10**400], 1).tolist() == [0]


def test_small_numbers_do_not_drown_beside_many_categories():
    """Ten categories of twenty values each; two numbers that vary a hundredth as much as a row is long."""
    rng = np.random.default_rng(11)
    n, true = 20_000, np.array([0.03, 0.05])
    categories = np.eye(20)[rng.integers(0, 20, size=(n, 10))].reshape(n, -1)
    X = np.column_stack([0.5 + true * rng.normal(size=(n, 2)), categories])
    bounds = Scaling(np.zeros(202), np.ones(202))
    preparation = Preparation(norm_noise=100.0, moment_noise=70.0)
    numbers = np.array([0, 0, *[1] * 200])
    apart, together = (
        standardise(X, bounds, kinds, preparation, np.random.default_rng(0), lambda *_: None).deviation[:2]
        for kinds in (numbers, None)
    )
    assert apart == pytest.approx(true, rel=0.3)
    assert min(together) > 2 * max(true)


def test_kinds_are_told_by_bounds_and_by_the_schema():
    scaling = Scaling(np.array([0.0, 0.0, -1.0, 0.0]), np.array([1.0, 2.0, 1.0, 1.0]))
    assert kinds_by_bounds(scaling, 4).tolist() == [1, 0, 0, 1]
    assert kinds_by_bounds(None, 3).tolist() == [0, 0, 0]
    assert kinds_by_bounds(Scaling(deviation=np.ones(2)), 2).tolist() == [0, 0]
    schema = Schema({"a": Category(["x", "y", "z"]), "n": Number(0, 9)}, label="y", classes=[0, 1])
    assert feature_kinds(schema) == ["category"] * 3 + ["number"]


def test_without_noise_it_standardises():
    rng = np.random.default_rng(0)
    X = rng.normal([50.0, 0.0, -2.0], [0.1, 3.0, 1.0], size=(5000, 3))
    booked = []
    scaling = standardise(
        X,
        None,
        None,
        Preparation(norm_noise=None, moment_noise=None),
        rng,
        lambda *entry: booked.append(entry),
    )
    prepared = Features(X, scaling=scaling, intercept=False).prepared(np.arange(len(X)))
    assert not booked
    assert np.abs(prepared.mean(axis=0)).max() < 0.3
    # only rows far from the means are shrunk, so that a feature that is all mean keeps its deviation
    assert prepared.std(axis=0)[1:] == pytest.approx(np.ones(2), rel=0.25)
    assert 0.05 < prepared.std(axis=0)[0] < 1.5


def test_what_features_have_in_common_does_not_drown_their_deviations():
    """Rows of length 30 that differ by less than 1: noise in proportion to 30^2 would hide all deviations."""
    rng = np.random.default_rng(8)
    true = np.array([0.05, 0.1, 0.2, 0.4])
    X = 15.0 + rng.normal(size=(20_000, 4)) * true
    found = standardise(X, None, None, Preparation(norm_noise=37.0, moment_noise=26.0), rng, lambda *_: None)
    assert found.deviation == pytest.approx(true, rel=0.35)
    assert found.mean == pytest.approx(np.full(4, 15.0), abs=0.2)


def test_bounds_come_first_and_sparse_features_are_not_shifted():
    rng = np.random.default_rng(1)
    X = sp.random_array((4000, 5), density=0.3, rng=rng, format="csr")
    scaling = standardise(
        X,
        Scaling(np.full(5, -1.0), np.full(5, 2.0), origin="zero"),
        None,
        Preparation(norm_noise=30.0, moment_noise=15.0),
        rng,
        lambda *_: None,
    )
    assert scaling.mean is None
    assert scaling.origin == "zero"
    assert np.all(scaling.deviation > 0)


def test_noise_alone_does_not_set_the_bound():
    rng = np.random.default_rng(2)
    counts = norm_counts(Features(rng.normal(size=(4000, 10)), intercept=False), Kinds(np.zeros(10, int)))[0]
    bounds = [bound_from(counts + rng.normal(0, 37, counts.shape), 37.0, 0.98) for _ in range(200)]
    assert min(bounds) > 2.5
    assert max(bounds) < 6.0
    assert np.isfinite(bound_from(rng.normal(0, 37, counts.shape), 37.0, 0.98))


@pytest.mark.parametrize("within", [0.1, 0.5, 0.9, 0.98, 1.0])
def test_the_bound_is_the_first_edge_that_enough_rows_are_within(within):
    norms = np.sort(np.linalg.norm(np.random.default_rng(3).normal(size=(4001, 4)), axis=1))
    counts = norm_counts(Features(norms[:, None], intercept=False), Kinds(np.zeros(1, int)))[0]
    bound = bound_from(np.where(counts > 0, counts, 0.0), 0.0, within)
    near = norms[norms <= 4 * 2**0.25 * np.median(norms)]
    assert np.mean(near <= bound) >= within
    assert np.mean(near <= bound / 2**0.25) < within


def test_a_few_of_many_empty_bins_that_stand_out_do_not_set_the_bound():
    """With 161 bins, one in five histograms has an empty bin that stands out by three deviations."""
    rng = np.random.default_rng(7)
    counts = norm_counts(Features(rng.normal(size=(1000, 3)), intercept=False), Kinds(np.zeros(3, int)))[0]
    bounds = [bound_from(counts + rng.normal(0, 37, counts.shape), 37.0, 0.98) for _ in range(300)]
    assert np.mean([0.9 < bound < 8.0 for bound in bounds]) > 0.99


@pytest.mark.parametrize("d", [1, 2])
def test_lengths_that_no_bin_tells_alone_are_told_by_several(d):
    """As few rows as "auto" measures without bounds, of few features: their lengths differ by octaves."""
    rng = np.random.default_rng(d)
    found, alone = [], 0
    for _ in range(200):
        features = Features(rng.normal(size=(930, d)), intercept=False)
        counts = norm_counts(features, Kinds(np.zeros(d, int)))[0] + rng.normal(0, 37.3, 161)
        alone += (counts > 4 * 37.3).any()
        found.append(bound_from(counts, 37.3, 0.98))
    assert alone < 190
    assert np.mean([0.5 * math.sqrt(d) < bound < 10.0 * math.sqrt(d) for bound in found]) > 0.96


@pytest.mark.parametrize("noise", [0.0, 37.0])
@pytest.mark.parametrize("share", [0.6, 0.3, 0.05, 0.02, 0.015])
def test_a_flag_that_most_rows_lack_is_no_feature_of_no_size(noise, share):
    """A row without the flag has no length: were that taken for the usual one, the flag would be blown up."""
    rng = np.random.default_rng(11)
    flag = (rng.random((20_000, 1)) < share).astype(float)
    counts = norm_counts(Features(flag, intercept=False), Kinds(np.zeros(1, int)))[0]
    assert counts[0] == np.sum(flag == 0)
    for longest in (1.0, math.inf):
        assert bound_from(counts + rng.normal(0, noise, counts.shape), noise, 0.98, longest) == 1.0
    for relation in (None, 40.0):
        preparation = Preparation(norm_noise=relation, moment_noise=relation)
        scaling = standardise(flag, Scaling([0.0], [1.0]), None, preparation, rng, lambda *_: None)
        assert scaling.mean == pytest.approx(flag.mean(axis=0), abs=0.02)
        assert scaling.deviation == pytest.approx(flag.std(axis=0), rel=0.1 if share > 0.1 else 0.3)


@pytest.mark.parametrize("longest", [1.0, math.inf])
def test_pieces_that_are_all_tiny_tell_that_they_are(longest):
    rng = np.random.default_rng(2)
    counts = np.zeros(161)
    counts[0] = 20_000.0
    for noise in (0.0, 37.0):
        told = counts + np.r_[noise, rng.normal(0, noise, 160)]
        assert bound_from(told, noise, 0.98, longest, 20_000) == 2.0**-10


def test_a_flag_too_rare_to_stand_out_is_not_taken_for_tiny():
    counts = np.zeros(161)
    counts[[0, 40]] = 850.0, 150.0
    assert bound_from(counts, 50.0, 0.98, 1.2, 1000) == pytest.approx(0.4)
    assert bound_from(counts, 50.0, 0.98, math.inf, 1000) == 2.0**-10
    counts[[0, 40]] = 950.0, 50.0  # could be chance
    assert bound_from(counts, 50.0, 0.98, 1.2, 1000) == 2.0**-10


def test_people_with_a_flag_are_predicted_as_well_as_others():
    rng = np.random.default_rng(6)

    def people(n):
        X = np.column_stack([rng.normal(size=(n, 3)), rng.random(n) < 0.15])
        score = 1.5 * X[:, 0] - X[:, 1] + X[:, 3]
        return X, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)

    bounds = np.array([-4.0, -4.0, -4.0, 0.0]), np.array([4.0, 4.0, 4.0, 1.0])
    others, truth = people(20_000)
    flagged = others[:, 3] > 0
    right = []
    for seed in range(4):
        model = RateConstrainedClassifier(classes=[0, 1], feature_bounds=bounds, random_state=seed)
        right.append(model.fit(*people(1000)).score(others[flagged], truth[flagged]))
    assert np.mean(right) > 0.72


@pytest.mark.parametrize(
    ("middle", "spread", "bounds"),
    [(500.0, 100.0, (0.0, 1e8)), (1e6, 100.0, None), (500.0, 100.0, (0.0, 1e6))],
)
def test_bounds_however_loose_and_values_far_from_zero_leave_features_of_use(middle, spread, bounds):
    rng = np.random.default_rng(0)
    z = rng.normal(size=60_000)
    y = (rng.random(60_000) < 1 / (1 + np.exp(-2 * z))).astype(int)
    X = (middle + spread * z)[:, None]
    right = [
        RateConstrainedClassifier(classes=[0, 1], feature_bounds=bounds, random_state=seed)
        .fit(X, y)
        .score(X, y)
        for seed in range(2)
    ]
    assert min(right) > 0.74


def test_lengths_far_from_the_usual_one_count_if_they_stand_out_and_are_possible():
    counts = np.zeros(161)
    counts[[20, 60]] = 9000.0, 800.0  # ten octaves apart
    assert bound_from(counts, 100.0, 0.98, 2.0) == pytest.approx(2.0 ** ((20 - 40) / 4))  # not possible
    far, near = (bound_from(counts, 100.0, 0.98, longest) for longest in (1e3, math.inf))
    assert far == pytest.approx(2.0 ** ((60 - 40) / 4))
    assert near == pytest.approx(2.0 ** ((20 - 40) / 4))
    counts[60] = 500.0  # could be chance, of so many bins
    assert bound_from(counts, 100.0, 0.98, 1e3) == pytest.approx(2.0 ** ((20 - 40) / 4))


def test_limits_are_held_where_the_group_is_the_only_category():
    """One 0/1 column beside numbers, as tables of few columns have it."""
    rng = np.random.default_rng(4)
    n = 20_000
    X = np.column_stack([rng.uniform(18, 80, n), rng.normal(size=n), rng.random(n) < 0.3]).astype(float)
    y = (rng.random(n) < 1 / (1 + np.exp(-(X[:, 1] + (X[:, 0] - 49) / 20 + X[:, 2] - 0.3)))).astype(int)
    group = np.where(X[:, 2] > 0, "a", "b")
    bounds = np.array([18.0, -4.0, 0.0]), np.array([80.0, 4.0, 1.0])
    model = RateConstrainedClassifier(
        demographic_parity("group", max_gap=0.1),
        classes=[0, 1],
        group_values={"group": ["a", "b"]},
        feature_bounds=bounds,
        random_state=0,
    ).fit(X, y, sensitive_features={"group": group})
    predicted = model.predict(X)
    gap = abs(predicted[group == "a"].mean() - predicted[group == "b"].mean())
    assert 0.08 < gap < 0.115
    assert not model.doubts_


def test_what_declared_bounds_rule_out_is_noise():
    """Without bounds noise alone leads anywhere; with them to their middle, or near."""
    rng = np.random.default_rng(5)
    counts = norm_counts(Features(rng.random((60, 9)), intercept=False), Kinds(np.zeros(9, int)))[0]
    noisy = [counts + rng.normal(0, 37, counts.shape) for _ in range(200)]
    assert max(bound_from(found, 37.0, 0.98) for found in noisy) > 1000
    bounds = [bound_from(found, 37.0, 0.98, 3.0) for found in noisy]
    assert max(bounds) < 3.6  # the edge above 3
    assert np.median(bounds) == 1.0


@pytest.mark.parametrize("centre", [None, 0.2, -0.4, 1.3])
def test_no_piece_is_longer_than_said(centre):
    rng = np.random.default_rng(0)
    kinds = Kinds(np.array([0, 0, 1, 1, 1]))
    corners = rng.integers(0, 2, (500, 5)).astype(float)
    shift = np.full(5, centre) if centre is not None else None
    norms = kinds.norms(corners - (0 if centre is None else centre)).max(axis=0)
    everything = Bounded(np.ones(5, dtype=bool), declared=True)
    assert longest_pieces(kinds, shift, everything) == pytest.approx(norms)
    around_zero = kinds.norms(2 * corners - 1 - (0 if centre is None else centre)).max(axis=0)
    assert longest_pieces(kinds, shift, everything._replace(lowest=-1.0)) == pytest.approx(around_zero)
    some = everything._replace(features=np.array([True, True, True, False, True]))
    assert longest_pieces(kinds, shift, some).tolist() == [pytest.approx(norms[0]), np.inf]


def test_what_a_scaling_says_of_bounds():
    assert not Bounded.of(None, 2, declared=True).declared
    assert Bounded.of(Scaling(deviation=np.ones(2)), 2, declared=True).features.tolist() == [False, False]
    open_one = Scaling([-np.inf, 0.0], [np.inf, 9.0], curved=[1])
    assert Bounded.of(open_one, 3, declared=False) == (pytest.approx([False, True, True]), False, 0.0)
    around_zero = Scaling([-2.0], [2.0], origin="zero")
    assert Bounded.of(around_zero, 1, declared=False).lowest == -1.0
    assert Bounded.of(around_zero, 1, declared=True).lowest == 0.0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("stand_out", [0.0, 1000.0])
def test_with_bounds_only_releases_and_bounds_reach_the_scaling(monkeypatch, sparse, stand_out):
    """The same released values, put in place, lead to the same bounds and the same scaling on any rows."""
    import ratewise.standardisation as room

    rng = np.random.default_rng(1)
    counts = np.zeros((2, 161))
    counts[:, 37] = stand_out  # or no bin at all, as with few rows: then declared bounds decide
    forced = [counts, rng.normal(size=5), counts, rng.normal(size=5)]
    whole = room.Kinds.shrunk
    seen = []
    for X in (rng.random((12, 5)), np.full((12, 5), 1e-6), np.eye(12, 5)):
        queue, used = iter(forced), []
        monkeypatch.setattr(room.RoundedGaussianMechanism, "release", lambda *_, q=queue: next(q).copy())
        monkeypatch.setattr(
            room.Kinds,
            "shrunk",
            lambda self, block, to, u=used: u.append(to.tolist()) or whole(self, block, to),
        )
        scaling = standardise(
            sp.csr_array(X) if sparse else X,
            Scaling(np.zeros(5), np.ones(5), origin="zero" if sparse else "lower"),
            np.array([0, 0, 1, 1, 1]),
            Preparation(norm_noise=40.0, moment_noise=20.0),
            rng,
            lambda *_: None,
        )
        seen.append((used, None if sparse else scaling.mean.tolist(), scaling.deviation.tolist()))
    assert seen[0] == seen[1] == seen[2]
    fallback = [math.sqrt(2) / 3, math.sqrt(3) / 3]
    assert (seen[0][0][0] == pytest.approx(fallback)) == (stand_out == 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_with_bounds_are_standardised_to_advantage(seed):
    """Numbers that fill a fifth of their bounds, 600 rows, epsilon 0.5: as they come, they say little."""
    rng = np.random.default_rng(seed)
    X = 0.35 + 0.05 * rng.normal(size=(2600, 4))
    y = (X[:, 0] + X[:, 1] > 0.7).astype(int)

    def right(standardise):
        model = RateConstrainedClassifier(
            None, epsilon=0.5, delta=1e-5, classes=[0, 1], feature_bounds=(0, 1), standardise=standardise,
            random_state=seed,
        )  # fmt: skip
        return np.mean(model.fit(X[:600], y[:600]).predict(X[600:]) == y[600:])

    with_it = right("auto")
    assert with_it > 0.85
    assert right(False) < with_it - 0.1


def test_means_that_noise_explains_become_one():
    values = np.random.default_rng(3).normal(0.3, 0.1, 400)
    assert np.ptp(drawn_together(values, 0.2)) == 0.0
    assert drawn_together(values, 0.0) == pytest.approx(values)
    closer = drawn_together(values, 0.07)
    assert np.ptp(closer) == pytest.approx(0.5 * np.ptp(values), rel=0.2)
    assert closer.mean() == pytest.approx(values.mean())


def test_deviations_are_floored_by_their_noise():
    found = deviations(np.array([4.0, 4.0, -0.3, 0.01]), 0.1, 2.0)
    assert found[:2] == pytest.approx([2.0, 2.0], rel=0.01)
    assert found[2:] == pytest.approx(np.full(2, math.sqrt(0.2)))


def test_variances_that_noise_explains_become_one():
    rng = np.random.default_rng(9)
    found = deviations(1.0 + rng.normal(scale=0.5, size=400), 0.5, 20.0)
    assert np.sqrt(np.mean((found - 1.0) ** 2)) < 0.1
    assert deviations(np.full(5, -1.0), 0.5, 2.0) == pytest.approx(np.full(5, math.sqrt(1 / math.sqrt(5))))


def test_without_noise_deviations_are_those_given():
    assert deviations(np.array([0.04, 9.0]), 0.0, 5.0) == pytest.approx([0.2, 3.0])


def test_rows_are_shrunk_to_the_length_that_the_planned_share_has(monkeypatch):
    import ratewise.standardisation as room

    X = np.linspace(0.1, 3.9, 4000)[:, None] * np.array([[1.0, 0.0]])
    whole, used = room.Kinds.shrunk, []
    monkeypatch.setattr(room.Kinds, "shrunk", lambda s, block, to: used.append(to[0]) or whole(s, block, to))
    for within in (0.25, 0.5, 0.98):
        used.clear()
        planned = Preparation(norm_noise=1.0, moment_noise=1.0, within=within)
        standardise(X, None, None, planned, np.random.default_rng(0), lambda *_: None)
        shorter = np.mean(X[:, 0] <= used[0])
        assert within - 0.02 <= shorter <= within + 0.2  # bins are a quarter of an octave wide


def test_each_release_is_booked_before_it_happens(monkeypatch):
    import ratewise.standardisation as room

    order = []
    monkeypatch.setattr(room, "norm_counts", lambda f, k, c: order.append("counts") or np.ones((1, 161)))
    monkeypatch.setattr(room, "row_sums", lambda f, k, b: order.append("rows") or np.ones(2))
    monkeypatch.setattr(room, "square_sums", lambda f, k, b, c: order.append("squares") or np.ones(2))

    def book(event, purpose):
        order.append(event)

    rng = np.random.default_rng(0)
    preparation = Preparation(norm_noise=40.0, moment_noise=20.0)
    standardise(np.ones((10, 2)), None, None, preparation, rng, book)
    counted, summed = GaussianEvent(40.0), GaussianEvent(20.0)
    assert order == [counted, "counts", summed, "rows", counted, "counts", summed, "squares"]
    assert tuple(entry for entry in order if not isinstance(entry, str)) == preparation.events


def test_the_ledger_of_a_fit_holds_the_preparation_and_the_whole_stays_within_the_budget():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(6000, 4))
    y = (X[:, 0] + rng.normal(size=6000) > 0).astype(int)
    clf = RateConstrainedClassifier(epsilon=1.0, steps=20, classes=(0, 1), random_state=0).fit(X, y)
    assert clf.plan_.preparation is not None
    booked = Counter()
    for event in clf.ledger_.events():
        booked[event.noise if isinstance(event, GaussianEvent) else None] += getattr(event, "count", 1)
    planned = Counter(event.noise for event in clf.plan_.preparation.events)
    assert sorted(planned.values()) == [2, 2, 2, 3]
    assert planned == {noise: count for noise, count in booked.items() if noise is not None}
    everything = [*clf.plan_.preparation.events, clf.plan_.step_event.with_steps(20)]
    assert 0.99 < clf.privacy_.epsilon <= 1.0
    assert clf.privacy_.epsilon == pytest.approx(epsilon(everything, 1e-5), rel=1e-9)
    assert epsilon(everything[-1], 1e-5) < 0.995


def test_a_cap_refuses_the_whole_fit_before_the_preparation():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(6000, 4))
    y = (X[:, 0] > 0).astype(int)
    ledger = Ledger(cap=Budget(0.5, 1e-5))
    with pytest.raises(Exception, match="would pass the ledger's cap"):
        RateConstrainedClassifier(epsilon=1.0, steps=20, classes=(0, 1), ledger=ledger).fit(X, y)
    assert ledger.total_epsilon == 0.0


def test_scale_of_features_does_not_matter():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(8000, 5)).astype(np.float64)
    y = (X @ [1.0, -1.0, 0.5, 0.0, 0.0] + 0.5 * rng.normal(size=8000) > 0).astype(int)
    small = X * 0.05 + 0.2
    scores = [
        RateConstrainedClassifier(epsilon=2.0, classes=(0, 1), random_state=0).fit(Z, y).score(Z, y)
        for Z in (X, small)
    ]
    plain = RateConstrainedClassifier(epsilon=2.0, classes=(0, 1), random_state=0, standardise=False)
    assert min(scores) > 0.85
    assert plain.fit(small, y).score(small, y) < min(scores)


@pytest.mark.parametrize(("norm", "moment"), [(None, 1.0), (1.0, None)])
def test_half_a_preparation_is_refused(norm, moment):
    with pytest.raises(ValueError, match="both or neither"):
        Preparation(norm_noise=norm, moment_noise=moment)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("dtype", "size", "huge"), [("float32", 1e-3, 3e38), ("float64", 1e-9, 1e308)])
def test_one_enormous_row_neither_stops_the_fit_nor_spoils_it(sparse, dtype, size, huge):
    rng = np.random.default_rng(6)
    X = (rng.normal(size=(4000, 3)) * size).astype(dtype)
    y = (X[:, 0] > 0).astype(int)
    X[7] = huge
    form = sp.csr_array if sparse else np.asarray
    model = RateConstrainedClassifier(epsilon=1.0, steps=5, classes=(0, 1), random_state=0, standardise=True)
    model.fit(form(X), y)
    assert np.all(np.isfinite(model.coef_))
    assert np.all(np.isfinite(model.predict_proba(form(X))))
