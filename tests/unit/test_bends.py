"""Numbers that bend a little where rows are few: what is computed, when, and that it releases nothing."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.bends import DEVIATION, MIDDLE, bent
from ratewise.columns import Number
from ratewise.datasets import census_like
from ratewise.defaults import PublicFacts, bends_for, plan_for, preparation_for
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.features import Features
from ratewise.model_files import TableModel, scaling_arrays, scaling_of
from ratewise.plan import Preparation
from ratewise.runs.job import facts_of, plan_run
from ratewise.runs.settings import Settings
from ratewise.scaling import Scaling
from ratewise.schema import Schema
from ratewise.standardisation import standardise
from ratewise.table_model import TableClassifier

BOUNDS = np.array([18.0, -4.0, 0.0]), np.array([80.0, 4.0, 1.0])
NUMBERS = np.array([0, 1])
FREE = Preparation(norm_noise=None, moment_noise=None)


def people(n=1500, seed=3):
    """Whether people of middle age say yes: a line in age cannot tell."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(18, 80, n), rng.normal(size=n), rng.integers(0, 2, n)])
    y = (np.abs(X[:, 0] - 49) < 13).astype(int)
    return X, y, rng.choice(["a", "b"], n)


def model(**changes):
    told = {"classes": [0, 1], "group_values": {"group": ["a", "b"]}, "feature_bounds": BOUNDS}
    limit = demographic_parity("group", max_gap=0.2)
    return RateConstrainedClassifier(**{"constraints": limit, "random_state": 0, **told, **changes})


def fitted(**changes):
    X, y, group = people()
    return model(**changes).fit(X, y, sensitive_features={"group": group})


class TestWhatIsComputed:
    def test_middle_and_deviation_are_those_of_a_normal_number(self):
        first = stats.norm.expect(lambda z: max(0.0, 1 - z * z), lb=-1, ub=1)
        second = stats.norm.expect(lambda z: max(0.0, 1 - z * z) ** 2, lb=-1, ub=1)
        assert pytest.approx(first, abs=1e-4) == MIDDLE
        assert pytest.approx(math.sqrt(second - first**2), abs=1e-4) == DEVIATION

    @pytest.mark.parametrize("size", [0.05, 0.4, 1.0])
    def test_it_is_the_parabola_of_the_standardised_number(self, size):
        X = people()[0]
        plain = standardise(X, Scaling(*BOUNDS), None, FREE, np.random.default_rng(0), print, NUMBERS)
        found = Features(X, scaling=bent(plain, NUMBERS, size)).prepared(np.arange(len(X))).copy()
        z = Features(X, scaling=plain).prepared(np.arange(len(X)))
        assert found[:, :3] == pytest.approx(z, rel=1e-12)
        by_hand = size * (np.maximum(0.0, 1.0 - z[:, NUMBERS] ** 2) - MIDDLE) / DEVIATION
        assert found[:, 3:] == pytest.approx(by_hand, abs=1e-9)
        assert np.ptp(found[:, 3:], axis=0) == pytest.approx(size / DEVIATION, rel=0.01)

    def test_beyond_its_bounds_a_number_is_cut_off_first(self):
        """Where it bends may lie beyond them: of two numbers, 0 to 100, one bends at 60 to 120."""
        plain = Scaling([0.0, 0.0], [100.0, 100.0], mean=[0.9, 0.1], deviation=[0.3, 0.3])
        scaling = bent(plain, NUMBERS, 0.4)
        assert scaling.bend_upper[0] > 100
        assert scaling.bend_lower[1] < 0
        inside = np.array([[100.0, 0.0]])
        beyond = np.array([[110.0, -5.0], [1e6, -1e6]])
        expected = Features(inside, scaling=scaling).prepared(np.arange(1)).copy()
        for row in Features(beyond, scaling=scaling).prepared(np.arange(2)):
            np.testing.assert_array_equal(row, expected[0])

    @given(
        st.floats(-1.7e308, 1.7e308), st.floats(5e-324, 1.7e308), st.floats(-1e6, 1e6), st.floats(1e-12, 1e6)
    )
    def test_any_released_values_give_columns_between_0_and_1(self, lower, width, mean, deviation):
        upper = min(lower + width, 1.7e308)
        if not upper / 2 > lower / 2 or not math.isfinite(upper - lower):
            return
        scaling = bent(Scaling([lower], [upper], mean=[mean], deviation=[deviation]), np.array([0]), 0.3)
        rows = np.array([[lower], [upper], [lower / 2 + upper / 2], [1.7e308], [-1.7e308]])
        out = np.full((5, 1), np.nan)
        scaling.bend(rows, out)
        assert np.all((out >= 0) & (out <= 1))

    def test_a_mean_beyond_all_numbers_leaves_the_bounds(self):
        far = Scaling([1e308], [1.7e308], mean=[5.0], deviation=[0.1])
        found = bent(far, np.array([0]), 0.3)
        assert (found.bend_lower.tolist(), found.bend_upper.tolist()) == ([1e308], [1.7e308])

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"bend_lower": [0.0]}, "both"),
            ({"bend_lower": [0.0, 1.0], "bend_upper": [1.0, 2.0]}, "one number per curved"),
            ({"bend_lower": [1.0], "bend_upper": [1.0]}, "below"),
            ({"bend_lower": [np.nan], "bend_upper": [1.0]}, "finite"),
            ({"bend_lower": [0.0], "bend_upper": [np.inf]}, "finite"),
            ({"curved": None, "bend_lower": [0.0], "bend_upper": [1.0]}, "none is curved"),
        ],
    )
    def test_scalings_that_do_not_fit_are_refused(self, changes, said):
        with pytest.raises(InvalidInput, match=said):
            Scaling(**{"lower": [0.0, 0.0], "upper": [1.0, 9.0], "curved": np.array([1]), **changes})


class TestPrivacy:
    def test_nothing_is_released_for_it(self):
        """The same releases, booked alike, with the same noise; the rest is computed from them."""
        bending, straight = fitted(), fitted(curves=False)
        assert bending.plan_.preparation.bends is not None
        assert bending.plan_ == dataclasses.replace(
            straight.plan_,
            preparation=dataclasses.replace(
                straight.plan_.preparation, bends=bending.plan_.preparation.bends
            ),
        )
        assert bending.plan_.events == straight.plan_.events
        assert bending.privacy_.epsilon == straight.privacy_.epsilon
        found, plain = bending._model.scaling, straight._model.scaling
        for name in ("lower", "upper"):
            np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
        for name in ("mean", "deviation"):
            np.testing.assert_array_equal(getattr(found, name)[:3], getattr(plain, name))
        expected = bent(plain, NUMBERS, bending.plan_.preparation.bends)
        for name, array in scaling_arrays(expected).items():
            np.testing.assert_array_equal(getattr(found, name), array)

    def test_predictions_look_at_one_row_at_a_time(self):
        X = people()[0]
        bending = fitted()
        whole = bending.decision_function(X)
        assert bending.decision_function(X[700:701])[0] == pytest.approx(whole[700], rel=1e-12)

    @pytest.mark.parametrize(
        ("X", "scaling", "numbers"),
        [
            (sp.csr_array(people()[0]), Scaling(np.zeros(3), BOUNDS[1], "zero"), NUMBERS),
            (people()[0], Scaling(*BOUNDS), None),
            (people()[0], Scaling(*BOUNDS), NUMBERS[:0]),
            (people()[0], Scaling(*BOUNDS, curved=NUMBERS), NUMBERS),
            (people()[0], None, NUMBERS),
        ],
    )
    def test_what_cannot_bend_is_refused_before_anything_is_released(self, X, scaling, numbers):
        booked = []
        preparation = Preparation(norm_noise=3.0, moment_noise=3.0, bends=0.3)
        with pytest.raises(UnsupportedCombination, match=r"bends is 0\.3, which needs dense"):
            standardise(
                X, scaling, None, preparation, np.random.default_rng(0), lambda *e: booked.append(e), numbers
            )
        assert booked == []

    def test_the_look_before_does_not_bend(self):
        looked = Preparation(norm_noise=1.0, moment_noise=1.0, tails=2.0, bends=0.3)
        assert looked.look.bends is None
        assert dataclasses.replace(looked, norm_noise=None, moment_noise=None).look.bends is None
        assert looked.events == dataclasses.replace(looked, bends=None).events

    def test_without_bounds_they_need_those_that_tails_find(self):
        with pytest.raises(UnsupportedCombination, match="give tails, which find some"):
            Preparation(norm_noise=1.0, moment_noise=1.0, sized=True, bends=0.3)
        assert fitted(feature_bounds=None, tails=None).curves_.tolist() == []


class TestWhen:
    FEW = PublicFacts(n_rows=4_000, n_features=20, n_classes=2, bounded=True, n_numbers=20)

    def test_size_falls_with_noise_from_half_to_a_twentieth(self):
        rows = np.arange(400, 9_000, 50)
        sizes = [bends_for(dataclasses.replace(self.FEW, n_rows=int(n)), 3.73) for n in rows]
        some = np.array([0.0 if size is None else size for size in sizes])
        first, last = np.flatnonzero(some)[[0, -1]]
        assert 0.05 <= some[first] < 0.06
        assert 0.49 < some[last] < 0.5
        np.testing.assert_allclose(np.diff(some[first : last + 1]), np.diff(some[first : first + 2])[0])
        assert not np.any(some[:first])
        assert not np.any(some[last + 1 :])

    @pytest.mark.parametrize("changes", [{"n_numbers": 0}, {"sparse": True}, {"n_curves": 3}])
    def test_not_where_nothing_can_bend_or_curves_do(self, changes):
        facts = dataclasses.replace(self.FEW, **changes)
        assert bends_for(self.FEW, 3.73) is not None
        assert bends_for(facts, 3.73) is None
        assert preparation_for(facts, 3.73).bends is None

    def test_classes_count(self):
        three = dataclasses.replace(self.FEW, n_classes=3)
        assert bends_for(three, 3.73) == pytest.approx(bends_for(self.FEW, 3.73) / math.sqrt(3))

    def test_curves_that_just_pay_are_not_taken_for_a_reason_to_bend(self):
        """With curves among the features there are more of them, and noise would look larger than it is."""
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(2_100, 4)), rng.integers(0, 2, 2_100)
        for rows, curved in ((2_100, False), (3_000, True)):
            part = np.resize(X, (rows, 4)), np.resize(y, rows)
            found = RateConstrainedClassifier(
                classes=[0, 1], feature_bounds=(-5, 5), random_state=0, steps=2
            ).fit(*part)
            assert (found.plan_.preparation.bends is None) == curved
            assert (found._model.scaling.bend_lower is None) == curved
            assert found.curves_.tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("curves", [False, True, [0, 1]])
    def test_only_if_it_is_left_open(self, curves):
        assert plan_for(self.FEW, epsilon=1.0, delta=1e-5).preparation.bends is not None
        assert plan_for(self.FEW, epsilon=1.0, delta=1e-5, curves=curves).preparation.bends is None
        asked = fitted(curves=curves)
        assert asked.plan_.preparation.bends is None
        assert asked._model.scaling.bend_lower is None

    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 40.0, None])
    def test_classifier_table_and_run_agree(self, epsilon):
        made = census_like(2_000, random_state=0)
        lower, upper = made.feature_bounds
        places = np.flatnonzero(~((lower == 0) & (upper == 1)))
        X, y = made.X[:, places], made.y
        bounds = lower[places], upper[places]
        told = {"epsilon": epsilon, "random_state": 0, "steps": 3}
        one = RateConstrainedClassifier(classes=made.classes, feature_bounds=bounds, **told).fit(X, y)
        columns = {f"n{k}": Number(*ends) for k, ends in enumerate(zip(*bounds, strict=True))}
        schema = Schema(columns, label="y", classes=made.classes)
        frame = {f"n{k}": X[:, k] for k in range(len(places))} | {"y": y}
        other = TableClassifier(schema, **told).fit(frame)
        settings = Settings(label="y", epsilon=epsilon, steps=3)
        run = plan_run(facts_of(schema, settings, len(y)), settings)
        sizes = {plan.preparation.bends for plan in (one.plan_, other.plan_, run)}
        assert len(sizes) == 1
        assert (sizes != {None}) == (epsilon in (0.5, 1.0))
        assert one.curves_.tolist() == other.classifier_.curves_.tolist() == list(range(len(places)))

    def test_a_feature_that_is_called_a_number_is_one(self):
        bounds = np.zeros(3), np.ones(3)
        X, y, group = people()
        X = (X - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0])
        kinds = ["number", "number", "flag"]
        found = model(feature_bounds=bounds, feature_kinds=kinds).fit(
            X, y, sensitive_features={"group": group}
        )
        assert found.curves_.tolist() == [0, 1]

    def test_it_is_explained(self):
        said = " ".join(fitted().explain().split())
        assert "bends: numbers enter a second time" in said
        assert "curves: " not in said
        assert "bends:" not in fitted(curves=False).explain()


class TestWhatItBuys:
    def test_it_says_what_lines_cannot(self):
        X, y, _ = people(4_000, seed=9)
        wrong = {curves: np.mean(fitted(curves=curves).predict(X) != y) for curves in ("auto", False)}
        assert wrong["auto"] < wrong[False] - 0.05

    def test_a_straight_truth_loses_next_to_nothing(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(9_000, 8))
        y = (X @ np.array([2.0, -1.5, 1.0, 1.0, -0.5, 0.5, 0.0, 0.0]) + rng.logistic(size=9_000) > 0).astype(
            int
        )
        scores = {"auto": [], False: []}
        for seed in range(6):
            for curves, found in scores.items():
                asked = RateConstrainedClassifier(
                    classes=[0, 1], feature_bounds=(-6, 6), curves=curves, random_state=seed
                ).fit(X[:1500], y[:1500])
                found.append(asked.score(X[1500:], y[1500:]))
                assert (asked.plan_.preparation.bends is None) == (curves is False)
        assert np.mean(scores["auto"]) > np.mean(scores[False]) - 0.01


class TestFiles:
    def test_a_model_file_keeps_where_numbers_bend(self, tmp_path):
        X, y, _ = people()
        columns = {"age": Number(18, 80), "weight": Number(-4, 4)}
        schema = Schema(columns, label="y", classes=[0, 1])
        frame = {"age": X[:, 0], "weight": np.clip(X[:, 1], -4, 4), "y": y}
        found = TableClassifier(schema, random_state=0).fit(frame)
        assert found.plan_.preparation.bends is not None
        TableModel.of(found).save(tmp_path / "model.npz")
        again = TableModel.load(tmp_path / "model.npz")
        np.testing.assert_array_equal(again.predict_proba(frame), found.predict_proba(frame))

    def test_a_file_with_one_end_is_refused(self):
        whole = scaling_arrays(fitted()._model.scaling)
        assert scaling_of("lower", whole).bend_upper is not None
        with pytest.raises(InvalidInput, match="both"):
            scaling_of("lower", {name: array for name, array in whole.items() if name != "bend_upper"})
