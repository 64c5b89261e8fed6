"""What a plan from public facts promises, whatever constants it was tuned to."""

import dataclasses
import inspect
import itertools
import math

import numpy as np
import pytest

from ratewise import defaults
from ratewise.accounting import GaussianEvent, OutsideEvent, calibrate
from ratewise.accounting import epsilon as epsilon_of
from ratewise.defaults import PublicFacts, plan_for, sampling_rate_for
from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.families import demographic_parity, equalized_odds, positive_rate
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.predicates import group
from ratewise.rates import rate

DELTA = 1e-5


def compiled(cells, classes, slack=0.1):
    domain = Domain(classes=range(classes), columns={"g": range(max(2, cells))})
    return compile_constraints(demographic_parity("g", max_gap=slack), domain)


def facts(n=5000, d=10, classes=2, cells=2):
    constraints = None if cells is None else compiled(cells, classes)
    return PublicFacts(n_rows=n, n_features=d, n_classes=classes, constraints=constraints)


def run_event(plan):
    return plan.events


class TestEverySize:
    @pytest.mark.parametrize("n", [500, 20_000, 10_000_000])
    @pytest.mark.parametrize("asked", [0.05, 1.0, 10.0])
    @pytest.mark.parametrize("cells", [None, 2])
    def test_budget_is_kept_and_used(self, n, asked, cells):
        plan = plan_for(facts(n, cells=cells), epsilon=asked, delta=DELTA)
        assert plan.n_rows == n
        assert 0 < plan.sampling_rate <= 1
        assert plan.expected_rows <= n
        assert 0.99 * asked <= epsilon_of(run_event(plan), DELTA) <= asked
        assert (plan.histogram_noise is None) == (cells is None)

    @pytest.mark.parametrize("classes", [2, 3, 20])
    @pytest.mark.parametrize("cells", [2, 50, 500])
    def test_classes_and_cells(self, classes, cells):
        plan = plan_for(facts(100_000, classes=classes, cells=cells), epsilon=1.0, delta=DELTA)
        assert epsilon_of(run_event(plan), DELTA) <= 1.0
        assert 1 <= plan.dual.interval <= plan.steps

    @pytest.mark.parametrize(("n", "d"), [(500, 5), (20_000, 100), (1_000_000, 10_000), (10_000_000, 5)])
    def test_no_clip_is_longer_than_gradients_are(self, n, d):
        plan = plan_for(facts(n, d), epsilon=1.0, delta=DELTA)
        assert 0.5 <= plan.clip <= min(10.0, max(5.0, np.sqrt(d + 1)))

    def test_rows_are_bounded_only_where_features_come_as_they_are(self):
        few, many = (
            plan_for(facts(400), epsilon=1.0, delta=DELTA),
            plan_for(facts(), epsilon=1.0, delta=DELTA),
        )
        assert (few.preparation, few.row_norm) == (None, 3.0)
        assert many.preparation is not None
        assert (many.row_norm, many.learning_rate) == (None, 2.0)

    @pytest.mark.parametrize("n", [1, 2, 500, 10_000_000])
    @pytest.mark.parametrize("d", [1, 10_000])
    def test_without_privacy(self, n, d):
        plan = plan_for(facts(n, d), epsilon=None, delta=DELTA)
        assert (plan.private, plan.step_event) == (False, None)
        assert (plan.gradient_noise, plan.histogram_noise) == (None, None)

    @pytest.mark.parametrize(
        ("neighbours", "histogram"),
        [
            ("add_or_remove", "gaussian"),
            ("add_or_remove", "laplace"),
            ("replace_one", "gaussian"),
            ("zero_out", "gaussian"),
            ("zero_out", "laplace"),
        ],
    )
    def test_relations_and_laws(self, neighbours, histogram):
        plan = plan_for(facts(), epsilon=1.0, delta=DELTA, neighbours=neighbours, histogram=histogram)
        assert plan.histogram == histogram
        assert 0.99 <= epsilon_of(run_event(plan), DELTA, neighbours=neighbours) <= 1.0

    def test_batches_grow_with_the_rows_but_memory_does_not(self):
        sizes = [n * sampling_rate_for(n) for n in (10, 1000, 10**5, 10**7, 10**9)]
        assert sizes == sorted(sizes)
        assert sizes[-1] < 10**6
        assert all(0 < sampling_rate_for(n) <= 1 for n in (1, 2, 10**9))

    def test_more_budget_less_noise(self):
        noises = [plan_for(facts(), epsilon=e, delta=DELTA).gradient_noise for e in (0.1, 1.0, 10.0)]
        assert noises == sorted(noises, reverse=True)


class TestPublicOnly:
    def test_equal_facts_give_equal_plans(self):
        assert plan_for(facts(), epsilon=1.0, delta=DELTA) == plan_for(facts(), epsilon=1.0, delta=DELTA)

    def test_facts_are_numbers_and_constraints(self):
        names = [field.name for field in dataclasses.fields(PublicFacts)]
        assert names == [
            *("n_rows", "n_features", "n_classes", "constraints"),
            *("n_kinds", "bounded", "sparse", "n_numbers", "n_curves"),
        ]

    def test_no_array_ever_enters(self):
        """A plan of public facts has no use for NumPy; a look at rows would need it."""
        assert not any(value is np for value in vars(defaults).values())


class TestOverrides:
    @pytest.mark.parametrize("asked", [1.0, None])
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("sampling_rate", 0.123),
            ("steps", 17),
            ("clip", 0.77),
            ("row_norm", 1.7),
            ("row_norm", None),
            ("dual", DualControl(rate=0.017, interval=3)),
            ("learning_rate", 0.37),
            ("schedule", "linear"),
            ("momentum", 0.37),
            ("averaging", "none"),
            ("temperature", 2.5),
            ("rates", "soft"),
            ("l1", 0.05),
            ("l1", 0.0),
            ("l2", 0.05),
            ("warmup", 0.1),
            ("block_rows", 64),
        ],
    )
    def test_they_win(self, name, value, asked):
        plan = plan_for(facts(), epsilon=asked, delta=DELTA, **{name: value})
        assert getattr(plan, name) == value
        if asked is not None:
            assert 0.99 <= epsilon_of(run_event(plan), DELTA) <= 1.0

    def test_share_of_the_histogram(self):
        plan = plan_for(facts(), epsilon=1.0, delta=DELTA, histogram_share=0.36)
        assert (plan.gradient_noise / plan.histogram_noise) ** 2 == pytest.approx(0.36 / 0.64)

    def test_none_leaves_the_choice(self):
        free = plan_for(facts(), epsilon=1.0, delta=DELTA)
        names = set(inspect.signature(plan_for).parameters) & {
            field.name for field in dataclasses.fields(Plan)
        }
        open_ones = dict.fromkeys(names - {"clip", "row_norm", "histogram"})
        left = {"learning_rate": None, "l1": None, "momentum": None, "averaging": None, "schedule": None}
        assert plan_for(facts(), epsilon=1.0, delta=DELTA, **open_ones, **left) == free

    def test_no_clip_without_privacy(self):
        assert plan_for(facts(), epsilon=None, delta=DELTA, clip=None).clip is None

    @pytest.mark.parametrize(
        "bad",
        [{"steps": 0}, {"steps": "x"}, {"sampling_rate": 2}, {"clip": None}, {"clip": "x"}, {"dual": 3}],
        ids=str,
    )
    def test_what_cannot_be_is_refused(self, bad):
        with pytest.raises(RatewiseError):
            plan_for(facts(), epsilon=1.0, delta=DELTA, **bad)


class TestTightLimits:
    """Limits tighter than noise: more for histograms, no bends, multipliers that keep their pace."""

    def plan(self, slack, rows=4_400, family=demographic_parity, values=("F", "M"), **choices):
        domain = Domain(classes=(0, 1), columns={"sex": values})
        public = PublicFacts(
            n_rows=rows,
            n_features=19,
            n_classes=2,
            constraints=compile_constraints(family("sex", max_gap=slack), domain),
            bounded=True,
            n_numbers=19,
        )
        return plan_for(public, epsilon=1.0, delta=DELTA, **choices)

    def share(self, plan):
        return 1 / (1 + (plan.histogram_noise / plan.gradient_noise) ** 2)

    def test_tight_and_loose(self):
        tight, loose = self.plan(0.001), self.plan(0.02)
        assert (tight.dual.schedule, loose.dual.schedule) == ("constant", "linear")
        assert tight.preparation.bends is None
        assert loose.preparation.bends > 0.3
        assert self.share(tight) > 0.45
        assert self.share(loose) == pytest.approx(0.25, abs=0.01)

    def test_it_begins_where_a_quarter_no_longer_does(self):
        """7.6 times the noise of one release of everything, by the number of rows."""
        edge = 7.6 * 3.73 / 4_400
        assert self.plan(0.98 * edge).dual.schedule == "constant"
        assert self.plan(1.02 * edge).dual.schedule == "linear"

    @pytest.mark.parametrize(
        "changes",
        [
            {"family": equalized_odds},
            {"values": ("F", "M", "X")},
            {"rows": 2_500},
        ],
        ids=["odds", "three groups", "gradients have no room"],
    )
    def test_not_where_it_was_lost(self, changes):
        plan = self.plan(0.001, **changes)
        assert plan.dual.schedule == "linear"
        assert self.share(plan) <= 0.26

    def test_not_without_privacy(self):
        domain = Domain(classes=(0, 1), columns={"sex": ("F", "M")})
        limits = compile_constraints(demographic_parity("sex", max_gap=0.001), domain)
        public = PublicFacts(n_rows=4_400, n_features=19, n_classes=2, constraints=limits)
        assert plan_for(public, epsilon=None, delta=DELTA).dual.schedule == "linear"

    def test_what_is_asked_for_is_given(self):
        kept = DualControl(rate=0.1, schedule="cosine")
        assert self.plan(0.001, dual=kept).dual is kept


class TestShareOfHistograms:
    """Rates of many groups get more of the budget, out of what gradients can spare."""

    def share(self, rows, cells, **choices):
        plan = plan_for(facts(rows, cells=cells), epsilon=1.0, delta=DELTA, **choices)
        ratio = (plan.gradient_noise / plan.histogram_noise) ** 2
        return ratio / (1 + ratio)

    @pytest.mark.parametrize(
        ("cells", "share"), [(2, 0.1), (4, 0.1), (5, 0.13), (7, 0.19), (9, 0.25), (50, 0.25)]
    )
    def test_by_cells_where_rows_are_many(self, cells, share):
        assert self.share(2_000_000, cells) == pytest.approx(share)

    def test_not_at_the_cost_of_gradients(self):
        assert self.share(12_000, 9) == pytest.approx(0.1)
        little = [self.share(int(rows), 9) for rows in np.geomspace(12_000, 20_000, 8)]
        assert all(a <= b + 1e-9 for a, b in itertools.pairwise(little))
        assert any(0.12 < share < 0.24 for share in little)

    @pytest.mark.parametrize(
        ("besides", "bounded", "steps", "neighbours"),
        [
            (0.0, False, None, "add_or_remove"),
            (0.0, True, 400, "add_or_remove"),
            (0.3, True, None, "add_or_remove"),
            (0.3, False, None, "replace_one"),
        ],
    )
    def test_the_clip_stays_as_long_as_it_was(self, besides, bounded, steps, neighbours):
        """What is taken from gradients is what their noise has room for, and all of that if it is wanted."""
        whole = calibrate(1.0, DELTA, 1.0, 1, histogram=None, neighbours=neighbours).gradient_noise
        others = [GaussianEvent(whole / math.sqrt(besides))] if besides else []

        def plan(rows, cells, share=None):
            known = dataclasses.replace(facts(rows, cells=cells), bounded=bounded)
            given = {"steps": steps, "besides": others, "neighbours": neighbours, "histogram_share": share}
            return plan_for(known, epsilon=1.0, delta=DELTA, **given)

        shares = []
        for rows in np.geomspace(6000, 120_000, 24).astype(int):  # only a narrow stretch spares a little
            many, few = plan(rows, 9), plan(rows, 2)
            assert many.clip >= 0.995 * few.clip
            ratio = (many.gradient_noise / many.histogram_noise) ** 2
            shares.append(ratio / (1 + ratio))
            if shares[-1] < 0.249:
                assert plan(rows, 9, 0.25).clip < few.clip  # else there was room that nobody used
        assert min(shares) < 0.11
        assert max(shares) == pytest.approx(0.25)

    @pytest.mark.parametrize(
        ("rows", "slack", "share"),
        [
            (4_406, 0.02, 0.25),
            (4_406, 0.005, 0.415),
            (4_406, 0.001, 0.5),
            (40_000, 0.005, 0.1),
            (400, 0.001, 0.25),
        ],
    )
    def test_limits_tighter_than_noise_get_up_to_half_if_gradients_can_do_without(self, rows, slack, share):
        known = dataclasses.replace(facts(rows, d=19), constraints=compiled(2, 2, slack))
        plan = plan_for(known, epsilon=1.0, delta=DELTA)
        ratio = (plan.gradient_noise / plan.histogram_noise) ** 2
        assert ratio / (1 + ratio) == pytest.approx(share, abs=0.01)
        assert epsilon_of(plan.events, DELTA) <= 1.0

    def tight(self, limits, rows=4_406, **choices):
        domain = Domain(classes=(0, 1), columns={"g": (0, 1)})
        known = dataclasses.replace(facts(rows, d=19), constraints=compile_constraints(limits, domain))
        plan = plan_for(known, epsilon=1.0, delta=DELTA, **choices)
        ratio = (plan.gradient_noise / plan.histogram_noise) ** 2
        return ratio / (1 + ratio)

    def test_the_tightest_limit_counts(self):
        loose, tight = positive_rate(max_rate=0.3), demographic_parity("g", max_gap=0.003)
        assert self.tight([loose, tight]) == self.tight([tight, loose]) == self.tight(tight)
        assert self.tight(tight) > self.tight(loose) + 0.2

    def test_a_limit_is_as_tight_however_it_is_written(self):
        gap = rate(1, where=group(g=0)) - rate(1, where=group(g=1))
        for slack in (0.05, 0.004):
            shares = [self.tight(factor * gap <= factor * slack) for factor in (0.01, 1.0, 100.0)]
            assert shares == pytest.approx([shares[0]] * 3, rel=1e-6)

    def test_what_others_have_spent_is_not_there_for_tight_limits(self):
        tight = demographic_parity("g", max_gap=0.001)
        assert self.tight(tight) == pytest.approx(0.5, abs=0.01)
        assert self.tight(tight, besides=[GaussianEvent(4.2)]) == pytest.approx(0.25, abs=0.01)

    def test_it_comes_on_little_by_little(self):
        tight = demographic_parity("g", max_gap=0.001)
        shares = [self.tight(tight, rows=int(rows)) for rows in np.geomspace(2_500, 5_500, 30)]
        assert shares[0] == pytest.approx(0.25, abs=0.01)
        assert shares[-1] == pytest.approx(0.5, abs=0.01)
        assert np.abs(np.diff(shares)).max() < 0.06

    @pytest.mark.parametrize("limit", [positive_rate(min_rate=0.001), rate(1) >= 0.8 * rate(0)])
    def test_bounds_that_are_no_slacks_do_not_count(self, limit):
        """A floor has a bound below zero, a comparison one of zero: neither says how tight it is."""
        found = compile_constraints(limit, Domain(classes=(0, 1), columns={}))
        assert np.all(found.bounds <= 0)
        known = dataclasses.replace(facts(4_406, d=19), constraints=found)
        plan = plan_for(known, epsilon=1.0, delta=DELTA)
        ratio = (plan.gradient_noise / plan.histogram_noise) ** 2
        assert ratio / (1 + ratio) == pytest.approx(0.25, abs=0.01)

    def test_next_to_nothing_left_is_not_the_end(self):
        """One release of all rows does not fit beside the others; one of few rows does."""
        others, known = [OutsideEvent(0.999)], facts(100_000, cells=9)
        with pytest.raises(InvalidInput, match="epsilon is 1, out of reach"):
            calibrate(1.0, DELTA, 1.0, 1, histogram=None, besides=others)
        given = {"standardise": False, "sampling_rate": 1e-4, "steps": 1, "besides": others}
        plan = plan_for(known, epsilon=1.0, delta=DELTA, **given)
        assert 0.99 <= epsilon_of([*plan.events, *others], DELTA) <= 1.0
        with pytest.raises(RatewiseError, match="epsilon"):
            plan_for(known, epsilon=1.0, delta=DELTA, besides=[OutsideEvent(1.001)])

    def test_what_is_given_wins(self):
        assert self.share(2_000_000, 9, histogram_share=0.4) == pytest.approx(0.4)


class TestShrinking:
    """Weights are drawn to zero by what noise explains, only where noise is large, by public numbers."""

    def plan(self, rows, epsilon=1.0, **choices):
        return plan_for(facts(rows), epsilon=epsilon, delta=DELTA, **choices)

    def noise(self, plan):
        return plan.gradient_noise * math.sqrt(11) / plan.expected_rows

    def test_none_where_noise_is_small_or_absent(self):
        assert self.noise(self.plan(50_000)) < 0.07
        assert self.plan(50_000).l1 == 0.0
        assert self.plan(500, epsilon=None).l1 == 0.0

    def test_in_full_it_is_the_noise_of_a_mean_gradient(self):
        plan = self.plan(500, steps=50)
        assert self.noise(plan) > 0.14
        deviation = plan.gradient_noise * plan.clip / plan.expected_rows
        assert plan.l1 == pytest.approx(deviation / math.sqrt(50))

    def test_what_is_given_wins(self):
        assert self.plan(500).l1 > 0
        assert self.plan(500, l1=0.0).l1 == 0.0
        assert self.plan(500, l1=0.5).l1 == 0.5

    def test_the_clip_that_is_given_counts(self):
        short, long = self.plan(500, clip=0.5), self.plan(500, clip=2.0)
        assert long.l1 == pytest.approx(4 * short.l1)

    def test_every_class_has_its_weights(self):
        """Five classes have five times the parameters: more noise on the gradient as a whole."""
        plan = plan_for(facts(5000, classes=5), epsilon=1.0, delta=DELTA)
        noise = plan.gradient_noise * math.sqrt(55) / plan.expected_rows
        full = plan.gradient_noise * plan.clip / plan.expected_rows / math.sqrt(plan.steps)
        assert 0.0 < noise / 0.07 - 1 < 1
        assert plan.l1 == pytest.approx(full * (noise / 0.07 - 1))
        assert plan.clip == pytest.approx(defaults.clip_for(noise, 55))

    def test_it_comes_in_by_and_by(self):
        shares = []
        for rows in np.geomspace(1000, 50_000, 15).astype(int):
            plan = self.plan(int(rows))
            full = plan.gradient_noise * plan.clip / plan.expected_rows / math.sqrt(plan.steps)
            assert plan.l1 == pytest.approx(full * np.clip(self.noise(plan) / 0.07 - 1, 0, 1))
            shares.append(plan.l1 / full)
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(shares))
        assert 0.0 in shares
        assert 1.0 in [round(share, 9) for share in shares]
        assert any(0.1 < share < 0.9 for share in shares)


class TestStandardising:
    """Whether features are measured depends on rows and kinds, and on nothing that rows hold."""

    @pytest.mark.parametrize(
        ("rows", "kinds", "measured"), [(1000, 1, True), (1000, 2, False), (1400, 2, True)]
    )
    def test_more_kinds_take_more_rows(self, rows, kinds, measured):
        public = dataclasses.replace(facts(rows), n_kinds=kinds)
        assert (plan_for(public, epsilon=1.0, delta=DELTA).preparation is not None) == measured
        assert plan_for(public, epsilon=1.0, delta=DELTA, standardise=True).preparation is not None

    @pytest.mark.parametrize(("rows", "asked"), [(20, 1.0), (300, 0.05), (5000, 0.01)])
    def test_declared_bounds_make_up_for_rows(self, rows, asked):
        public = facts(rows)
        assert plan_for(public, epsilon=asked, delta=DELTA).preparation is None
        bounded = dataclasses.replace(public, bounded=True)
        plan = plan_for(bounded, epsilon=asked, delta=DELTA)
        assert plan.preparation is not None
        assert 0.99 * asked <= epsilon_of(run_event(plan), DELTA) <= asked
        assert plan_for(bounded, epsilon=asked, delta=DELTA, standardise=False).preparation is None

    @pytest.mark.parametrize("asked", [0.5, 1.0, None])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_sizes_are_found_exactly_where_no_bounds_are_declared(self, asked, sparse):
        public = dataclasses.replace(facts(20_000), sparse=sparse)
        for bounded in (False, True):
            plan = plan_for(dataclasses.replace(public, bounded=bounded), epsilon=asked, delta=DELTA)
            assert plan.preparation.sized != bounded
            if asked is not None:
                looked = 4 if plan.preparation.tails is not None else 0
                assert (looked > 0) == (not bounded and not sparse)
                assert len(plan.preparation.events) == 5 - bounded + looked
                assert 0.99 * asked <= epsilon_of(run_event(plan), DELTA) <= asked

    def test_more_is_spent_where_noise_hides_variances(self):
        """From a fifth of the mean variance on, so that it stays a fifth, up to twice the least share."""
        whole, shares, blurs = 4.0, [], []
        for rows in np.geomspace(300, 100_000, 40).astype(int):
            found = defaults.preparation_for(dataclasses.replace(facts(int(rows)), bounded=True), whole)
            spent = 2 * (whole / found.norm_noise) ** 2 + 2 * (whole / found.moment_noise) ** 2
            assert 0.06 - 1e-12 <= spent <= 0.12 + 1e-12
            shares.append(spent)
            blurs.append(found.moment_noise * 10 / rows)
            if 0.06 + 1e-9 < spent < 0.12 - 1e-9:
                assert blurs[-1] == pytest.approx(0.2)
                assert 0.5 < found.within < 0.98
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(shares))
        assert (round(shares[0], 9), round(shares[-1], 9)) == (0.12, 0.06)
        assert any(blur == pytest.approx(0.2) for blur in blurs)

    def test_rows_are_shrunk_to_a_shorter_length_where_noise_is_large(self):
        sizes = np.geomspace(300, 100_000, 40).astype(int)
        bounded = [dataclasses.replace(facts(int(rows)), bounded=True) for rows in sizes]
        within = [defaults.preparation_for(public, 4.0).within for public in bounded]
        assert (within[0], within[-1]) == (0.5, 0.98)
        assert all(a <= b for a, b in itertools.pairwise(within))
        assert defaults.preparation_for(bounded[0], None).within == 0.98

    def test_what_gradients_can_spare_falls_with_the_square_of_their_noise(self):
        """A release with the whole budget has noise ``4 sqrt(200 * 25) / n``; the longest clip is 5."""
        for rows in (20_000, 40_000, 200_000):
            noise = 4.0 * math.sqrt(200 * 25) / rows
            spare = defaults.spare_for(4.0, rows, 25, 200)
            assert spare == pytest.approx(max(0.0, 1 - (noise / (0.075 / 5.0)) ** 2))
        assert 0.1 < defaults.spare_for(4.0, 20_000, 25, 200) < 0.2

    @pytest.mark.parametrize("standardise", [True, False])
    def test_noise_that_clipping_cannot_bring_down_shortens_steps(self, standardise):
        asked = (0.01, 0.02, 0.05, 1.0, 10.0)
        plans = [plan_for(facts(), epsilon=e, delta=DELTA, standardise=standardise) for e in asked]
        rates = [plan.learning_rate for plan in plans]
        assert rates == sorted(rates)
        assert rates[0] < 0.6 * rates[1] < 0.6 * rates[3] == 0.6 * rates[4]
        moved = [p.learning_rate * p.clip * p.gradient_noise for p in plans[:2]]
        assert moved[0] == pytest.approx(moved[1], rel=0.01)  # what noise adds to a step
        assert plan_for(facts(), epsilon=0.01, delta=DELTA, learning_rate=3.0).learning_rate == 3.0

    @pytest.mark.parametrize(("rows", "share"), [(500, 0.25), (4000, 0.25), (100_000, 0.1)])
    def test_histograms_get_more_where_noise_hides_rates(self, rows, share):
        plan = plan_for(facts(rows), epsilon=1.0, delta=DELTA)
        # precision (1 / noise^2) is what a budget is divided by
        gradient, histogram = plan.gradient_noise**-2, plan.histogram_noise**-2
        assert histogram / (gradient + histogram) == pytest.approx(share, rel=0.02)
