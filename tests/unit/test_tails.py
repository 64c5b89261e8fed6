"""Numbers cut off a few deviations from their mean: from what is declared to what a model predicts."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ratewise import RateConstrainedClassifier
from ratewise.accounting import epsilon as epsilon_of
from ratewise.columns import Category
from ratewise.defaults import TAILS, PublicFacts, plan_for, preparation_for
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.features import Features
from ratewise.plan import Preparation
from ratewise.runs import Settings, facts_of
from ratewise.scaling import Scaling
from ratewise.schema import Number, Schema
from ratewise.standardisation import standardise
from ratewise.table_model import TableClassifier
from ratewise.tails import cut_off, declared_numbers, of_numbers

LOWER, UPPER = np.array([0.0, -50.0, 0.0]), np.array([1.0, 50.0, 1000.0])
NUMBERS = np.array([1, 2])


def people(n=3000, seed=0, dtype=np.float64):
    """A flag, and two numbers that fill little of their bounds."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.4, rng.normal(10, 2, n), rng.exponential(20, n)]).astype(dtype)
    score = X[:, 0] + (X[:, 1] - 10) - (X[:, 2] - 20) / 20
    return X, (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)


def model(**changes):
    given = {"classes": [0, 1], "feature_bounds": (LOWER, UPPER), "random_state": 0, "steps": 40}
    return RateConstrainedClassifier(**{**given, **changes})


def scaling_of(fitted):
    return fitted._model.scaling


class TestNumbers:
    def test_they_are_told_by_their_kind_or_by_bounds(self):
        assert declared_numbers(None, LOWER, UPPER).tolist() == [1, 2]
        assert declared_numbers(["a", "b", "b"], LOWER, UPPER).tolist() == [1, 2]
        assert declared_numbers(["number", "b", "number"], LOWER, UPPER).tolist() == [0, 2]
        assert declared_numbers(np.array([0, 1, 1]), LOWER, UPPER).tolist() == [1, 2]

    def test_what_has_one_value_has_no_tails(self):
        equal = np.array([0.0, 3.0, 3.0])
        assert declared_numbers(None, equal, equal).size == 0
        assert declared_numbers(["number"] * 3, equal, np.array([0.0, 4.0, 3.0])).tolist() == [1]


class TestCut:
    @given(
        mean=st.lists(st.floats(-3, 3), min_size=2, max_size=2),
        reach=st.lists(st.floats(1e-12, 5), min_size=2, max_size=2),
        ends=st.sampled_from([(-1e-300, 0.0), (1e6, 3e6), (-1.7e308, 1.7e308), (1e16, 1e16 + 64)]),
    )
    def test_new_bounds_are_inside_the_old_ones_and_apart(self, mean, reach, ends):
        old = Scaling(np.array([ends[0], 0.0, ends[0]]), np.array([ends[1], 1.0, ends[1]]))
        found = cut_off(old, np.array([0, 2]), np.array(mean), np.array(reach))
        assert (found.lower[1], found.upper[1]) == (0.0, 1.0)
        assert np.all(old.lower <= found.lower)
        assert np.all(found.upper <= old.upper)
        assert np.all(found.lower < found.upper)

    def test_they_are_where_released_values_say(self):
        old = Scaling(LOWER, UPPER)
        found = cut_off(old, NUMBERS, np.array([0.6, 0.02]), np.array([0.1, 0.05]))
        assert found.lower == pytest.approx(np.array([0.0, 0.0, 0.0]), abs=1e-9)
        assert found.upper == pytest.approx(np.array([1.0, 20.0, 70.0]))

    def test_where_nothing_would_be_left_nothing_is_cut(self):
        found = cut_off(Scaling(LOWER, UPPER), NUMBERS, np.array([-0.5, 1.5]), np.array([0.1, 0.1]))
        assert found.lower.tolist() == LOWER.tolist()
        assert found.upper.tolist() == UPPER.tolist()

    def test_of_numbers(self):
        found = of_numbers(Scaling(LOWER, UPPER), NUMBERS)
        assert (found.lower.tolist(), found.upper.tolist()) == ([-50.0, 0.0], [50.0, 1000.0])
        assert of_numbers(None, NUMBERS) is None
        assert of_numbers(Scaling(LOWER, UPPER), NUMBERS[:0]) is None
        assert of_numbers(Scaling(deviation=np.ones(3)), NUMBERS) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [np.asarray, lambda X: X.view(np.memmap)])
@pytest.mark.parametrize("reads", [1.0, 10.0])
@pytest.mark.parametrize("curved", [None, np.array([1])])
def test_some_columns_are_read_as_if_there_were_no_others(dtype, form, reads, curved):
    X, _ = people(50, dtype=dtype)
    scaling = Scaling(LOWER[[2, 1]], UPPER[[2, 1]], curved=curved)
    given = {"clip": 1.0, "scaling": scaling, "reads": reads, "block_rows": 7}
    found = Features(form(X), columns=np.array([2, 1]), **given)
    expected = Features(np.ascontiguousarray(X[:, [2, 1]]), **given)
    assert found.n_features == expected.n_features == 2 + (curved is not None)
    for batch in (np.arange(7), np.array([3, 3, 49]), np.array([0])):
        block, _, limit = found.gather(batch)
        same, _, other = expected.gather(batch)
        assert block.tolist() == same.tolist()
        assert limit.tolist() == other.tolist()


class TestPlan:
    MANY = PublicFacts(n_rows=9_000, n_features=9, n_classes=2, bounded=True, n_numbers=5)

    def test_both_looks_cost_what_one_would(self):
        one, two = (preparation_for(self.MANY, 4.0, tails=tails) for tails in (None, "auto"))
        cost = [sum(event.noise**-2 for event in found.events) for found in (one, two)]
        assert cost[0] == pytest.approx(cost[1], rel=1e-9)
        assert [len(found.events) for found in (one, two)] == [4, 8]
        assert two.look.events == two.events[:4]
        assert two.look.look is None
        assert two.tails == TAILS

    @pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
    def test_the_whole_plan_is_within_its_budget(self, relation):
        plan = plan_for(self.MANY, epsilon=1.0, delta=1e-5, neighbours=relation)
        assert plan.preparation.tails == TAILS
        assert 0.99 <= epsilon_of(plan.events, 1e-5, neighbours=relation) <= 1.0

    def test_noise_that_reaches_far_leaves_the_look_out(self):
        """Rows of nine numbers are about 1.5 long; 1.5 times the noise on means is to stay below 0.3."""
        facts = {"n_features": 9, "n_classes": 2, "bounded": True, "n_numbers": 9}
        found = {n: preparation_for(PublicFacts(n_rows=n, **facts), 40.0) for n in range(500, 4000, 100)}
        looked = [n for n, each in found.items() if each.tails is not None]
        assert looked == list(range(looked[0], 4000, 100))
        reach = {n: 1.5 * 1.5 * found[n].look.moment_noise / n for n in looked}
        assert max(reach.values()) < 0.3
        assert reach[looked[0]] * looked[0] / (looked[0] - 100) >= 0.3
        few = PublicFacts(n_rows=500, **facts)
        assert found[500] == preparation_for(few, 40.0, tails=None)
        assert preparation_for(few, 40.0, tails=2.0).tails == 2.0
        assert preparation_for(few, None).tails == TAILS

    def test_none_is_as_before(self):
        assert preparation_for(self.MANY, 4.0, tails=None) == Preparation(
            norm_noise=40.0, moment_noise=4.0 / 0.02**0.5
        )

    @pytest.mark.parametrize("changes", [{"n_numbers": 0}, {"sparse": True}])
    def test_where_nothing_can_be_cut_off_auto_does_not_and_a_number_is_refused(self, changes):
        known = {"n_rows": 9_000, "n_features": 9, "n_classes": 2, "bounded": True, "n_numbers": 5}
        facts = PublicFacts(**{**known, **changes})
        assert preparation_for(facts, 4.0).tails is None
        with pytest.raises(UnsupportedCombination, match=r"tails is 2.5, but .* leave tails out"):
            preparation_for(facts, 4.0, tails=2.5)

    def test_without_standardising_nothing_is_known(self):
        assert preparation_for(self.MANY, 4.0, standardise=False) is None
        assert preparation_for(self.MANY, 4.0, standardise=False, tails=None) is None
        with pytest.raises(UnsupportedCombination, match="not standardised"):
            preparation_for(self.MANY, 4.0, standardise=False, tails=2.0)

    @pytest.mark.parametrize("tails", [0, -1.0, float("nan"), float("inf"), "none", True, [2]])
    def test_other_values_are_refused_before_anything_is_spent(self, tails):
        X, y = people(200)
        unfitted = model(tails=tails)
        with pytest.raises((InvalidInput, InvalidType), match="tails"):
            unfitted.fit(X, y)
        assert not hasattr(unfitted, "ledger_")

    def test_no_look_at_what_is_not_there(self):
        preparation = Preparation(norm_noise=None, moment_noise=None, tails=2.0)
        X = np.ones((5, 3))
        for data, scaling, numbers in (
            (X, None, NUMBERS),
            (X, Scaling(LOWER, UPPER), None),
            (X, Scaling(LOWER, UPPER), NUMBERS[:0]),
            (sp.csr_array(X), Scaling(LOWER, UPPER, origin="zero"), NUMBERS),
        ):
            with pytest.raises(UnsupportedCombination, match="dense features, some of them numbers"):
                standardise(data, scaling, None, preparation, np.random.default_rng(0), print, numbers)


class TestModel:
    @pytest.mark.parametrize("curves", [False, True])
    def test_without_noise_it_is_the_training_within_bounds_found_by_hand(self, curves):
        X, y = people()
        ours = model(epsilon=None, curves=curves).fit(X, y)
        found = scaling_of(ours)
        for place in NUMBERS:
            column = X[:, place]
            middle, reach = column.mean(), TAILS * column.std()
            low, high = max(LOWER[place], middle - reach), min(UPPER[place], middle + reach)
            # the longest rows are shrunk for their deviations, so those come out a little small
            assert found.lower[place] == pytest.approx(low, abs=0.15 * reach)
            assert found.upper[place] == pytest.approx(high, abs=0.15 * reach)
        assert (found.lower[0], found.upper[0]) == (0.0, 1.0)
        same = model(epsilon=None, curves=curves, tails=None, feature_bounds=(found.lower, found.upper)).fit(
            X, y
        )
        assert ours.coef_.tolist() == same.coef_.tolist()
        assert ours.plan_.events == same.plan_.events == ()

    def test_predictions_do_not_go_on_beyond(self):
        X, y = people()
        fitted = model(curves=False).fit(X, y)
        far = np.array([[0.0, 10.0, 20.0]] * 2)
        far[:, 1] = scaling_of(fitted).upper[1], 50.0
        assert np.ptp(fitted.decision_function(far)) == 0.0
        kept = model(curves=False, tails=None).fit(X, y)
        assert np.ptp(kept.decision_function(far)) > 1.0

    def test_every_release_is_booked_and_the_total_is_what_was_asked(self):
        X, y = people()
        fitted = model(epsilon=1.0).fit(X, y)
        booked = [r for r in fitted.ledger_.records if getattr(r, "purpose", "train") != "train"]
        assert [record.event for record in booked] == list(fitted.plan_.preparation.events)
        assert ["a first look" in record.purpose for record in booked] == [True] * 4 + [False] * 4
        assert 0.99 <= fitted.privacy_.epsilon <= 1.0

    def test_it_says_so(self):
        X, y = people()
        assert "numbers are cut off 2 deviations" in model().fit(X, y).explain()
        assert "cut off" not in model(tails=None).fit(X, y).explain()

    def test_narrow_numbers_in_wide_bounds_are_told_apart(self):
        """Values that differ by a thousandth of their bounds; one look is too coarse for that."""
        right = accuracies(middle=500.0, bounds=(0, 1000), n=2000, epsilon=1.0)
        assert right["auto"] > right[None] + 0.03

    @pytest.mark.parametrize(("n", "epsilon"), [(2000, 1.0), (20_000, 0.1)])
    def test_noise_on_means_does_not_cut_into_the_middle(self, n, epsilon):
        """Were the noisy mean taken for the true one, a truth that is straight would lose 0.01 to 0.02."""
        right = accuracies(middle=0.0, bounds=(-10, 10), n=n, epsilon=epsilon)
        assert right["auto"] > right[None] - 0.005


def accuracies(middle, bounds, n, epsilon):
    """Mean accuracy over four fits on numbers of deviation 1, with tails cut off and kept."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(n + 5000, 8))
    y = (z @ [2, -1.5, 1, 1, -0.5, 0.5, 0, 0] + rng.logistic(size=len(z)) * 0.5 > 0).astype(int)
    X, given = middle + z, {"classes": [0, 1], "feature_bounds": bounds, "epsilon": epsilon}
    return {
        tails: np.mean(
            [
                RateConstrainedClassifier(**given, tails=tails, random_state=seed)
                .fit(X[:n], y[:n])
                .score(X[n:], y[n:])
                for seed in range(4)
            ]
        )
        for tails in ("auto", None)
    }


class TestTables:
    SCHEMA = Schema(
        {"job": Category(["a", "b"]), "age": Number(0, 120), "hours": Number(0, 99)},
        label="rich",
        classes=[0, 1],
    )

    def table(self, n=1500):
        rng = np.random.default_rng(2)
        age = rng.normal(40, 10, n)
        return {
            "job": rng.choice(["a", "b"], n),
            "age": age,
            "hours": rng.normal(38, 3, n),
            "rich": (age + rng.normal(0, 5, n) > 45).astype(int),
        }

    def test_the_schema_tells_numbers(self):
        fitted = TableClassifier(self.SCHEMA, random_state=0, steps=20).fit(self.table())
        scaling = scaling_of(fitted.classifier_)
        assert fitted.plan_.preparation.tails == TAILS
        assert scaling.lower[:2].tolist() == [0.0, 0.0]
        assert scaling.upper[:2].tolist() == [1.0, 1.0]
        assert np.all(scaling.upper[2:] < 1.0)
        kept = TableClassifier(self.SCHEMA, random_state=0, steps=20, tails=None).fit(self.table())
        assert scaling_of(kept.classifier_).upper.tolist() == [1.0] * 4

    def test_runs_plan_the_same(self):
        settings = Settings(label="rich")
        facts = facts_of(self.SCHEMA, settings, 1500)
        assert facts.n_numbers == 2
        fitted = TableClassifier(self.SCHEMA, random_state=0).fit(self.table())
        planned = plan_for(facts, epsilon=1.0, delta=1e-5)
        assert planned.preparation == fitted.plan_.preparation

    def test_categories_alone_are_not_looked_at(self):
        schema = Schema({"job": Category(["a", "b"])}, label="rich", classes=[0, 1])
        fitted = TableClassifier(schema, random_state=0, steps=5).fit(self.table())
        assert fitted.plan_.preparation.tails is None
