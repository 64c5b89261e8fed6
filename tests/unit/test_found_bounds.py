"""Numbers without declared bounds: found by their sizes, cut off by a first look, bent in what is left."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ratewise import RateConstrainedClassifier
from ratewise.accounting import GaussianEvent
from ratewise.accounting import epsilon as epsilon_of
from ratewise.centred import centring_for
from ratewise.defaults import TAILS, PublicFacts, plan_for, preparation_for
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.features import Features
from ratewise.plan import Preparation
from ratewise.scaling import Scaling
from ratewise.sizes import Sizes
from ratewise.standardisation import standardise
from ratewise.tails import between

FREE = Preparation(norm_noise=None, moment_noise=None, sized=True, tails=2.0, curves=True)


def people(n=12_000, seed=0):
    """Flags, a number that is mostly zero, and two dense ones, one of them bent."""
    rng = np.random.default_rng(seed)
    job = rng.random(n) < 0.3
    gain = np.where(rng.random(n) < 0.15, rng.exponential(4_000.0, n), 0.0)
    age, score = rng.normal(40.0, 12.0, n), rng.normal(size=n)
    X = np.column_stack([job, gain, rng.random(n) < 0.5, age, score])
    truth = job + (gain > 0) + 3.0 * (np.abs(age - 40.0) < 10.0) + score - 2.0
    return X, (rng.random(n) < 1 / (1 + np.exp(-2 * truth))).astype(int)


def sizes(features, numbers, most, below_zero, flags=()):
    seen = np.isin(np.arange(features), flags)
    return Sizes(np.ones(features), np.array(numbers, int), np.array(most), np.array(below_zero), seen)


def model(**changes):
    return RateConstrainedClassifier(**{"classes": [0, 1], "random_state": 0, "steps": 60} | changes)


class TestPlan:
    MANY = PublicFacts(n_rows=30_000, n_features=9, n_classes=2)

    def test_sizes_come_first_then_a_look_that_costs_nothing_more(self):
        one, two = (preparation_for(self.MANY, 4.0, tails=tails) for tails in (None, "auto"))
        assert (one.sized, two.sized, one.tails, two.tails) == (True, True, None, TAILS)
        assert [len(found.events) for found in (one, two)] == [5, 9]
        assert two.events[0] == GaussianEvent(two.moment_noise)
        assert two.look.events == two.events[1:5]
        assert not two.look.sized
        assert not two.look.curves
        four = [sum(event.noise**-2 for event in found.events[1:]) for found in (one, two)]
        assert four[0] == pytest.approx(four[1], rel=1e-9)

    @pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
    def test_the_whole_plan_is_within_its_budget(self, relation):
        plan = plan_for(self.MANY, epsilon=1.0, delta=1e-5, neighbours=relation)
        assert plan.preparation.curves
        assert 0.99 <= epsilon_of(plan.events, 1e-5, neighbours=relation) <= 1.0

    def test_curves_need_rows_enough_for_twice_as_many_features(self):
        for n in range(1_000, 30_000, 1_000):
            found = preparation_for(dataclasses.replace(self.MANY, n_rows=n), 4.0)
            enough = 0.004 * n / (4.0 * 18**0.5) >= 1.0
            assert found.curves == enough
            assert (found.bends is not None) == (not enough and found.tails is not None)
        assert preparation_for(self.MANY, None).curves
        named = dataclasses.replace(self.MANY, n_rows=4_000, n_numbers=1)
        assert preparation_for(named, 4.0).curves  # ten columns in place of eighteen
        assert not preparation_for(dataclasses.replace(named, n_numbers=0), 4.0).curves

    @pytest.mark.parametrize("changes", [{"curves": False}, {"tails": None}])
    def test_who_asks_for_none_gets_none(self, changes):
        found = preparation_for(self.MANY, 4.0, **changes)
        assert not found.curves
        assert found.bends is None

    def test_sparse_features_are_left_alone(self):
        found = preparation_for(dataclasses.replace(self.MANY, sparse=True), 4.0)
        assert (found.sized, found.tails, found.curves, found.bends) == (True, None, False, None)

    def test_noise_that_reaches_far_leaves_the_look_out(self):
        found = {
            n: preparation_for(dataclasses.replace(self.MANY, n_rows=n), 40.0)
            for n in range(10_500, 20_000, 500)
        }
        assert None not in found.values()
        looked = [n for n, each in found.items() if each.tails is not None]
        assert looked == list(range(looked[0], 20_000, 500))
        reach = {n: 1.5 * 1.5 * found[n].look.moment_noise / n for n in looked}
        assert max(reach.values()) < 0.08
        assert reach[looked[0]] * looked[0] / (looked[0] - 500) >= 0.08

    @pytest.mark.parametrize(
        "changes", [{"sized": False}, {"tails": None}, {"bends": 0.3}], ids=["declared", "no look", "bends"]
    )
    def test_curves_that_cannot_be_found_are_refused(self, changes):
        with pytest.raises(UnsupportedCombination, match="need sized=True and tails"):
            dataclasses.replace(FREE, **changes)


class TestScaling:
    def test_a_feature_without_bounds_stays_as_it_comes(self):
        x = np.array([[-7.0, 5.0], [1e6, 30.0]])
        scaling = Scaling([-np.inf, 10.0], [np.inf, 20.0])
        assert Features(x, scaling=scaling, intercept=False).prepared(np.arange(2)).tolist() == [
            [-7.0, 0.0],
            [1e6, 1.0],
        ]
        on_top = scaling.standardised(np.array([3.0, 0.5]), np.array([2.0, 0.25]))
        found = Features(x, scaling=on_top, intercept=False).prepared(np.arange(2))
        assert found.tolist() == [[-5.0, -2.0], [499_998.5, 2.0]]

    @pytest.mark.parametrize(
        ("lower", "upper"),
        [(-np.inf, 1.0), (0.0, np.inf), (np.inf, np.inf), (np.nan, 1.0), (np.inf, -np.inf)],
    )
    def test_half_a_pair_of_bounds_is_none(self, lower, upper):
        with pytest.raises(InvalidInput, match="finite, with lower at most upper"):
            Scaling([0.0, lower], [1.0, upper])

    def test_means_and_deviations_are_finite_whatever_the_bounds(self):
        with pytest.raises(InvalidInput):
            Scaling([-np.inf], [np.inf], mean=[np.inf])
        with pytest.raises(InvalidInput):
            Scaling([-np.inf], [np.inf], deviation=[np.inf])

    def test_an_open_feature_cannot_be_curved(self):
        with pytest.raises(InvalidInput, match="curved features need"):
            Scaling([-np.inf], [np.inf], curved=[0])

    def test_rows_are_kept_without_zeros_as_if_they_had_no_bounds(self):
        shift, factor = np.full(4, 0.05), np.full(4, 1 / 0.22)
        asked = {"n_rows": 1_000_000, "most_rows": 500_000, "most_bytes": 1 << 30}
        none = centring_for(None, shift, factor, **asked)
        opened = centring_for((np.full(4, -np.inf), np.full(4, np.inf)), shift, factor, **asked)
        assert none is not None
        for name in ("rest", "shift", "factor", "block_rows"):
            assert np.array_equal(getattr(none, name), getattr(opened, name))

    def test_rare_flags_whose_deviation_noise_raised_are_kept_without_zeros(self):
        """Beside a number that was found; what is 1 or -1 in every row is no such flag."""
        asked = {"n_rows": 1_000_000, "most_rows": 500_000, "most_bytes": 1 << 30}
        bounds = np.append(np.full(30, -np.inf), 10.0), np.append(np.full(30, np.inf), 60.0)
        shift, factor = np.append(np.full(30, 0.001), 35.0), np.append(np.full(30, 1 / 0.15), 1 / 12)
        assert centring_for(bounds, shift, factor, **asked) is not None
        assert centring_for(None, shift, factor, **asked) is None
        signs = np.append(np.zeros(30), 35.0), np.append(np.ones(30), 1 / 12)
        assert centring_for(bounds, *signs, **asked) is None

    def test_enormous_entries_do_not_overflow(self):
        X, y = people(2_000)
        X[5, 0], X[6, 3] = 1.7e308, -1.7e308
        fitted = model(epsilon=None).fit(X, y)
        assert np.all(np.isfinite(fitted.decision_function(X)))


class TestBetween:
    @given(
        mean=st.lists(st.floats(-3, 3), min_size=2, max_size=2),
        reach=st.lists(st.floats(1e-9, 5), min_size=2, max_size=2),
        deviation=st.floats(1e-9, 3),
        most=st.sampled_from([2.0**-39, 1.0, 2.0**59]),
        below=st.booleans(),
    )
    def test_bounds_are_apart_and_around_the_mean(self, mean, reach, deviation, most, below):
        found = sizes(3, [0, 2], [most, most], [below, True])
        lower, upper = between(found, np.array(mean), np.full(2, deviation), np.array(reach))
        assert (lower[1], upper[1]) == (-np.inf, np.inf)
        assert np.all(lower < upper)
        roomy = np.array(reach) > 1e-8
        assert np.all((upper[[0, 2]] >= np.array(mean) * most)[roomy])
        assert lower[2] == (mean[1] - reach[1]) * most or not roomy[1]

    def test_where_nothing_would_be_left_it_is_what_was_seen(self):
        found = sizes(1, [0], [10.0], [False])
        lower, upper = between(found, np.array([0.3]), np.array([0.1]), np.array([1e-99]))
        assert (lower[0], upper[0]) == (-10.0, 10.0)
        X, y = people(500)
        assert np.all(np.isfinite(model(epsilon=None, tails=1e-99).fit(X, y).coef_))

    def test_what_is_not_seen_below_zero_ends_there_if_moments_agree(self):
        found = sizes(1, [0], [10.0], [False])
        reach = np.array([0.9])
        agree = between(found, np.array([0.1]), np.array([0.4]), reach)
        assert (agree[0][0], agree[1][0]) == pytest.approx((0.0, 10.0))
        # a square of 1 is not that of what lies between 0 and 1 and has a mean of 0.1: something is hidden
        assert between(found, np.array([0.1]), np.array([1.0]), reach)[0][0] == pytest.approx(-8.0)
        seen = found._replace(below_zero=np.array([True]))
        assert between(seen, np.array([0.1]), np.array([0.4]), reach)[0][0] == pytest.approx(-8.0)


@pytest.mark.parametrize(("d", "n", "noise"), [(8, 5_000, 110.0), (8, 1_500, 33.0), (20, 2_000, 26.0)])
def test_numbers_on_both_sides_of_zero_are_not_cut_off_there(d, n, noise):
    """Noise hides some of their bins; that none was seen below zero is no sign that there are none."""
    cut = straight = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        preparation = Preparation(norm_noise=1.4 * noise, moment_noise=noise, sized=True, tails=2.0)
        found = standardise(rng.normal(size=(n, d)), None, None, preparation, rng, lambda *_: None)
        if found.lower is not None:
            cut += np.count_nonzero(found.lower == 0.0)
        found = standardise(rng.exponential(size=(n, d)), None, None, preparation, rng, lambda *_: None)
        if found.lower is not None:
            straight += np.count_nonzero(found.lower == 0.0)
    assert cut <= 0.01 * 12 * d
    assert straight > 0.3 * 12 * d  # of what has no negative entries, many are seen to end at zero


def test_no_feature_is_lost_for_want_of_a_length():
    """A kind of one or two numbers has lengths in many bins, none of which may stand out of the noise."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        X = np.column_stack([rng.beta(2, 5, size=(3_000, 2)), rng.random((3_000, 6)) < 0.4])
        preparation = Preparation(norm_noise=110.0, moment_noise=60.0, sized=True, tails=2.0, bends=0.2)
        found = standardise(X, None, None, preparation, rng, lambda *_: None)
        prepared = Features(X, scaling=found, intercept=False).prepared(np.arange(3_000))[:, :8]
        assert 0.1 < prepared.std(axis=0).min() <= prepared.std(axis=0).max() < 8.0


class TestKinds:
    def test_flags_are_apart_from_numbers(self):
        assert sizes(4, [1, 3], [1.0, 1.0], [True, True], flags=[0]).kinds().tolist() == [1, 0, 1, 0]

    def test_what_is_not_seen_is_no_kind(self):
        assert sizes(4, [1, 3], [1.0, 1.0], [True, True]).kinds().tolist() == [0, 0, 0, 0]
        assert sizes(4, [1, 3], [1.0, 1.0], [True, True], flags=[1]).kinds().tolist() == [0, 0, 0, 0]

    def test_a_number_does_not_drown_beside_flags(self):
        for seed in range(12):
            rng = np.random.default_rng(seed)
            X = np.column_stack([rng.normal(size=1_500), rng.random((1_500, 5)) < 0.4])
            preparation = Preparation(norm_noise=44.0, moment_noise=31.0, sized=True, tails=2.0)
            found = standardise(X, None, None, preparation, rng, lambda *_: None)
            prepared = Features(X, scaling=found, intercept=False).prepared(np.arange(1_500))
            assert prepared.std(axis=0).min() > 0.3


class TestStandardise:
    def test_without_noise_bounds_are_those_found_by_hand(self):
        X, _ = people()
        found = standardise(X, None, None, FREE, np.random.default_rng(0), print)
        assert found.curved.tolist() == [1, 3, 4]
        for place in (3, 4):
            middle, reach = X[:, place].mean(), TAILS * X[:, place].std()
            assert found.lower[place] == pytest.approx(middle - reach, abs=0.15 * reach)
            assert found.upper[place] == pytest.approx(middle + reach, abs=0.15 * reach)
        assert found.lower[1] == 0.0
        assert 3_000.0 < found.upper[1] < X[:, 1].mean() + TAILS * X[:, 1].std()
        assert np.isinf(found.lower[[0, 2]]).all()
        prepared = Features(X, scaling=found, intercept=False).prepared(np.arange(len(X)))
        assert np.abs(prepared.mean(axis=0)).max() < 0.1
        assert prepared.std(axis=0) == pytest.approx(np.ones(8), abs=0.15)

    def test_flags_alone_are_not_looked_at_and_the_look_is_not_booked(self):
        X = (np.random.default_rng(1).random((4_000, 3)) < 0.4).astype(float)
        booked = []
        preparation = Preparation(norm_noise=20.0, moment_noise=20.0, sized=True, tails=2.0, bends=0.3)
        found = standardise(
            X, None, None, preparation, np.random.default_rng(0), lambda *e: booked.append(e[1])
        )
        assert len(booked) == 5
        assert not any("look" in purpose for purpose in booked)
        assert found.lower is None
        assert found.curved is None
        y = (X.sum(axis=1) > 1).astype(int)
        fitted = model(epsilon=1.0).fit(X, y)
        assert fitted.plan_.preparation.tails == TAILS
        said = fitted.explain()
        assert "sizes, means" in said
        assert "cut off 2" not in said
        assert "second time" not in said

    def test_who_names_numbers_says_which_features_may_be_some(self):
        X, _ = people()
        found = standardise(X, None, None, FREE, np.random.default_rng(0), print, np.array([0, 3]))
        assert found.curved.tolist() == [3]
        assert np.isinf(found.lower[[0, 1, 2, 4]]).all()
        prepared = Features(X, scaling=found, intercept=False).prepared(np.arange(len(X)))
        # a number that is no number keeps its tails, whose rows are shrunk: its deviation comes out small
        assert prepared.std(axis=0)[[0, 2, 3, 4, 5]] == pytest.approx(np.ones(5), abs=0.3)

    def test_bends_follow_found_means(self):
        X, _ = people()
        preparation = dataclasses.replace(FREE, curves=False, bends=0.3)
        found = standardise(X, None, None, preparation, np.random.default_rng(0), print)
        assert found.curved.tolist() == [1, 3, 4]
        middle = (found.bend_lower + found.bend_upper) / 2
        assert middle[1:] == pytest.approx(X[:, 3:].mean(axis=0), abs=0.5)
        assert found.deviation[-3:] == pytest.approx(np.full(3, 0.4041 / 0.3))

    @pytest.mark.parametrize(
        ("form", "scaling"), [(sp.csr_array, None), (np.asarray, Scaling(deviation=np.ones(5)))]
    )
    def test_only_dense_features_as_they_come_have_bounds_found(self, form, scaling):
        X, _ = people(500)
        with pytest.raises(UnsupportedCombination, match="dense features as they come"):
            standardise(form(X), scaling, None, FREE, np.random.default_rng(0), print)


class TestModel:
    def test_every_release_is_booked_and_the_total_is_what_was_asked(self):
        X, y = people()
        fitted = model(epsilon=1.0).fit(X, y)
        booked = [r for r in fitted.ledger_.records if getattr(r, "purpose", "train") != "train"]
        assert [record.event for record in booked] == list(fitted.plan_.preparation.events)
        looked = ["a first look" in record.purpose for record in booked]
        assert looked == [False] + [True] * 4 + [False] * 4
        assert 0.99 <= fitted.privacy_.epsilon <= 1.0
        assert fitted.curves_.tolist() == [1, 3, 4]
        assert fitted.coef_.shape == (1, 8)

    @pytest.mark.parametrize("epsilon", [1.0, None])
    def test_a_bent_truth_is_found_without_bounds(self, epsilon):
        X, y = people(20_000)
        straight, bent = (
            model(epsilon=epsilon, steps=None, curves=curves).fit(X[:12_000], y[:12_000])
            for curves in (False, "auto")
        )
        right = [each.score(X[12_000:], y[12_000:]) for each in (straight, bent)]
        assert right[1] > right[0] + 0.05

    def test_a_year_is_found_beside_its_size(self):
        """It varies by a two thousandth of its size, which one look at moments is too coarse for."""
        rng = np.random.default_rng(3)
        z = rng.normal(size=(9_000, 4))
        X, y = 2020.0 + z, (z @ [1.0, -1.0, 2.0, 0.5] > 0).astype(int)
        kept, cut = (
            model(steps=None, curves=False, tails=tails).fit(X[:6_000], y[:6_000]).score(X[6_000:], y[6_000:])
            for tails in (None, "auto")
        )
        assert cut > 0.9
        assert cut > kept + 0.1

    def test_flags_that_somebody_standardised_are_still_told_apart(self):
        """Their rare side is hidden by noise, and would be cut off if only what is seen counted."""
        rng = np.random.default_rng(4)
        n = 12_000
        flags = rng.random((n, 12)) < 0.015
        other = rng.normal(size=(n, 3))
        y = (flags.any(axis=1) ^ (rng.random(n) < 0.03)).astype(int)
        X = np.column_stack([(flags - flags.mean(axis=0)) / flags.std(axis=0), other])
        fitted = model(steps=None).fit(X[:9_000], y[:9_000])
        assert fitted.score(X[9_000:], y[9_000:]) > 0.94 > 1 - y.mean() + 0.05

    def test_predictions_do_not_depend_on_units(self):
        X, y = people()
        scale = np.array([1.0, 1e-3, 1.0, 0.5, 4.0])
        one = model(epsilon=None).fit(X, y)
        other = model(epsilon=None).fit(X * scale, y)
        assert np.mean(one.predict(X) == other.predict(X * scale)) > 0.98

    def test_kinds_called_number_keep_standardised_flags_straight(self):
        X, y = people()
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        assert model().fit(X, y).curves_.tolist() == [0, 1, 2, 3, 4]
        kinds = ["flag", "number", "flag", "number", "number"]
        named = model(feature_kinds=kinds).fit(X, y)
        assert named.curves_.tolist() == [1, 3, 4]
        assert 0.99 <= named.privacy_.epsilon <= 1.0

    def test_it_says_so(self):
        X, y = people()
        said = model().fit(X, y).explain()
        assert "sizes, means and deviations" in said
        assert "numbers are cut off 2 deviations" in said
        assert "3 of the features enter a second time" in said

    def test_bounds_may_not_be_declared_infinite(self):
        X, y = people(500)
        unfitted = model(feature_bounds=(-np.inf, np.inf))
        with pytest.raises(InvalidInput, match=r"feature_bounds must be a pair .* finite"):
            unfitted.fit(X, y)
        assert not hasattr(unfitted, "ledger_")
