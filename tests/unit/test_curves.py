"""Features that bend: what they become, which ones do, and that nothing else changes.

Nothing is released for a curve. The oracle is the same training on features to which the second columns were
added by hand beforehand: every number that leaves must agree.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.curves import bend, chosen_curves, numbers_by_bounds
from ratewise.datasets import census_like
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseWarning, UnsupportedCombination
from ratewise.features import Features
from ratewise.plan import Preparation
from ratewise.runs import Settings, facts_of
from ratewise.scaling import Scaling
from ratewise.schema import Number, Schema
from ratewise.standardisation import standardise
from ratewise.table_model import TableClassifier

LOWER, UPPER = np.array([-3.0, 0.0, 10.0]), np.array([5.0, 1.0, 10.5])
BY_HAND = np.array([0, 2])


def rows(n=50, dtype=np.float64, seed=0):
    """Rows within the bounds and a few beyond them."""
    rng = np.random.default_rng(seed)
    return (LOWER + (UPPER - LOWER) * rng.uniform(-0.2, 1.2, (n, 3))).astype(dtype)


def added_by_hand(X, lower=LOWER, upper=UPPER, places=BY_HAND):
    """4 u (1 - u) of each place, u from 0 to 1 between the bounds, written down anew."""
    u = np.clip((X[:, places].astype(np.float64) - lower[places]) / (upper - lower)[places], 0, 1)
    return np.hstack([X.astype(np.float64), 4 * u * (1 - u)])


def wider(bounds, by):
    return np.append(bounds[0], np.zeros(by)), np.append(bounds[1], np.ones(by))


class TestBend:
    def test_it_is_the_parabola_between_the_bounds(self):
        X = rows()
        found = bend(X, LOWER, UPPER)
        assert found == pytest.approx(added_by_hand(X, places=np.arange(3))[:, 3:], abs=1e-12)
        assert found.min() == 0.0
        assert found.max() <= 1.0
        assert np.any(found > 0.99)

    def test_bounds_of_any_size(self):
        lower, upper = np.array([-1.7e308, 0.0, -1e-310]), np.array([1.7e308, 1e-300, 1e-310])
        for values in (lower, upper):
            assert bend(values[None], lower, upper) == pytest.approx(np.zeros((1, 3)), abs=1e-12)
        assert bend(np.zeros((1, 3)), lower, upper) == pytest.approx(np.array([[1.0, 0.0, 1.0]]))

    def test_values_that_are_not_finite_stay_visible(self):
        assert np.isnan(bend(np.array([[np.nan]]), np.zeros(1), np.ones(1))).all()
        with pytest.raises(InvalidInput, match="finite"):
            Features(np.full((2, 1), np.nan), scaling=Scaling([0.0], [1.0], curved=np.array([0])))


class TestFeatures:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("form", [np.asarray, lambda X: X.view(np.memmap)])
    @pytest.mark.parametrize("reads", [1.0, 10.0])
    def test_rows_lengths_and_clips_are_those_of_features_added_by_hand(self, dtype, form, reads):
        X = rows(dtype=dtype)
        given = {"clip": 1.0, "row_norm": 0.9, "reads": reads, "block_rows": 7}
        moved = {"mean": np.linspace(0, 0.4, 5), "deviation": np.linspace(0.5, 2, 5)}
        found = Features(form(X), scaling=Scaling(LOWER, UPPER, **moved, curved=BY_HAND), **given)
        by_hand = added_by_hand(X)
        lower, upper = wider((LOWER, UPPER), 2)
        expected = Features(by_hand, scaling=Scaling(lower, upper, **moved), **given)
        assert found.n_features == expected.n_features == 5
        for batch in (np.arange(7), np.array([3, 3, 49]), np.array([0])):
            for ours, theirs in zip(found.gather(batch), expected.gather(batch), strict=True):
                assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)

    def test_large_batches_keep_them_without_zeros(self, monkeypatch):
        monkeypatch.setattr("ratewise.centred._SPARSE_ENTRIES", 0)
        monkeypatch.setattr("ratewise.centred._SPARSE_SHARE", 1.0)
        X = rows()
        scaling = Scaling(LOWER, UPPER, mean=np.full(5, 0.1), deviation=np.ones(5), curved=BY_HAND)
        kept = Features(X, clip=1.0, scaling=scaling, reads=10.0, most_rows=1e5)
        assert kept._centred is not None
        plain = Features(X, clip=1.0, scaling=scaling)
        batch, weights = np.arange(50), np.linspace(-1, 1, 5)
        ours, theirs = (features.gather(batch)[0] for features in (kept, plain))
        assert np.asarray(ours.dot(weights)) == pytest.approx(theirs.dot(weights))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"curved": np.array([3])}, "places 0 to 2"),
            ({"curved": np.array([-1])}, "places 0 to 2"),
            ({"curved": np.array([1, 0])}, "in order"),
            ({"curved": np.array([1, 1])}, "in order"),
            ({"curved": np.array([0]), "upper": LOWER}, "below the upper"),
            ({"curved": np.array([0]), "origin": "zero"}, "origin='lower'"),
            ({"curved": np.array([0]), "lower": None, "upper": None, "mean": np.zeros(4)}, "need bounds"),
            ({"curved": np.array([0]), "mean": np.zeros(3)}, "one number per feature"),
            ({"mean": np.zeros(4)}, "one number per feature"),
        ],
    )
    def test_scalings_that_do_not_fit_are_refused(self, changes, said):
        with pytest.raises(InvalidInput, match=said):
            Scaling(**{"lower": LOWER, "upper": UPPER, **changes})


class TestChoice:
    BOUNDS = np.array([18.0, 0.0, 0.0, 2.0]), np.array([80.0, 1.0, 500.0, 2.0])

    def test_numbers_are_told_by_their_bounds(self):
        assert numbers_by_bounds(*self.BOUNDS).tolist() == [0, 2]

    @pytest.mark.parametrize(
        ("asked", "options", "found"),
        [
            ("auto", {}, [0, 2]),
            ("auto", {"dense": False}, []),
            ("auto", {"standardised": False}, []),
            (False, {}, []),
            (True, {}, [0, 1, 2]),
            (True, {"standardised": False}, [0, 1, 2]),
            ([2, 0, 2], {}, [0, 2]),
            ([], {"dense": False}, []),
            (np.array([1]), {}, [1]),
        ],
    )
    def test_what_is_asked_for(self, asked, options, found):
        assert chosen_curves(asked, self.BOUNDS, **options).tolist() == found

    @pytest.mark.parametrize(
        ("asked", "options", "kind", "said"),
        [
            ("always", {}, InvalidType, "'auto', True, False or a list"),
            (None, {}, InvalidType, "'auto', True, False or a list"),
            (2, {}, InvalidType, "'auto', True, False or a list"),
            ([0.5], {}, InvalidType, "list of places"),
            (["age"], {}, InvalidType, "list of places"),
            ([True], {}, InvalidType, "list of places"),
            ([True, 2], {}, InvalidType, "list of places"),
            ([[1], [2, 3]], {}, InvalidType, "list of places"),
            (np.array([[1]]), {}, InvalidType, "list of places"),
            ([4], {}, InvalidInput, "0 to 3"),
            ([-1], {}, InvalidInput, "0 to 3"),
            ([3], {}, InvalidInput, "bounds are equal"),
            (True, {"dense": False}, UnsupportedCombination, "sparse"),
            ([0], {"dense": False}, UnsupportedCombination, "sparse"),
        ],
    )
    def test_what_cannot_be(self, asked, options, kind, said):
        with pytest.raises(kind, match=said):
            chosen_curves(asked, self.BOUNDS, **options)

    def test_bounds_so_near_that_they_have_no_middle(self):
        bounds = np.zeros(1), np.array([5e-324])
        assert chosen_curves("auto", bounds).tolist() == chosen_curves(True, bounds).tolist() == []
        with pytest.raises(InvalidInput, match="equal, or nearly"):
            chosen_curves([0], bounds)

    @pytest.mark.parametrize("asked", [True, np.True_, [0]])
    def test_without_bounds_there_is_no_middle(self, asked):
        with pytest.raises(InvalidInput, match="declare feature_bounds"):
            chosen_curves(asked, None)
        assert chosen_curves("auto", None).size == 0


def people(n=4000, seed=3):
    """Who earns: the middle-aged; a straight line through age tells little of it."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(18, 80, n), rng.normal(size=n), rng.random(n) < 0.4]).astype(float)
    score = 4 - np.square((X[:, 0] - 49) / 10) + X[:, 1]
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)
    return X, y, np.where(X[:, 2] > 0, "a", "b")


BOUNDS = np.array([18.0, -4.0, 0.0]), np.array([80.0, 4.0, 1.0])


def model(**changes):
    given = {"classes": [0, 1], "group_values": {"group": ["a", "b"]}, "feature_bounds": BOUNDS}
    limit = demographic_parity("group", max_gap=0.2)
    return RateConstrainedClassifier(**{"constraints": limit, "random_state": 0, **given, **changes})


class TestEstimator:
    @pytest.mark.parametrize("epsilon", [1.0, None])
    def test_it_is_the_training_on_columns_added_by_hand(self, epsilon):
        X, y, group = people()
        ours = model(epsilon=epsilon, tails=None).fit(X, y, sensitive_features={"group": group})
        by_hand = added_by_hand(X, *BOUNDS, np.array([0, 1]))
        same = model(
            epsilon=epsilon,
            curves=False,
            tails=None,
            feature_bounds=wider(BOUNDS, 2),
            feature_kinds=["n", "n", "c", "n", "n"],
        ).fit(by_hand, y, sensitive_features={"group": group})
        assert ours.curves_.tolist() == [0, 1]
        assert ours.coef_ == pytest.approx(same.coef_, rel=1e-9)
        assert ours.plan_ == same.plan_
        for name in ours.history_:
            assert ours.history_[name] == pytest.approx(same.history_[name], rel=1e-9, abs=1e-12)
        for name in ("mean", "deviation"):
            found, expected = (getattr(each._model.scaling, name) for each in (ours, same))
            assert found == pytest.approx(expected, rel=1e-9)
        assert ours.privacy_.epsilon == same.privacy_.epsilon
        assert ours.decision_function(X) == pytest.approx(same.decision_function(by_hand), rel=1e-9)
        assert ours.n_features_in_ == 3
        assert ours.coef_.shape == (1, 5)

    def test_it_says_what_lines_cannot(self):
        X, y, group = people()
        wrong = {
            curves: np.mean(
                model(curves=curves).fit(X, y, sensitive_features={"group": group}).predict(X) != y
            )
            for curves in ("auto", False)
        }
        assert wrong["auto"] < wrong[False] - 0.1

    @pytest.mark.parametrize("curves", ["auto", False])
    def test_off_is_linear(self, curves):
        X, y, group = people()
        fitted = model(curves=curves, row_norm=None).fit(X, y, sensitive_features={"group": group})
        young, middle, old = fitted.decision_function(np.array([[18.0, 0, 1], [49.0, 0, 1], [80.0, 0, 1]]))
        straight = middle == pytest.approx((young + old) / 2, rel=1e-9)
        assert straight == (curves is False)
        assert fitted.coef_.shape == (1, 3 if curves is False else 5)
        assert ("curves:" in fitted.explain()) == (curves == "auto")

    def test_it_is_explained(self):
        X, y, group = people()
        said = " ".join(model().fit(X, y, sensitive_features={"group": group}).explain().split())
        assert "curves: 2 of the features" in said

    def test_bad_values_are_refused_before_anything_is_spent(self):
        X, y, group = people()
        for changes in ({"curves": "yes"}, {"curves": [7]}, {"curves": True, "feature_bounds": None}):
            asked = model(**changes)
            with pytest.raises((InvalidInput, InvalidType), match="curves"):
                asked.fit(X, y, sensitive_features={"group": group})
            assert not hasattr(asked, "ledger_")

    def test_sparse_features_stay_straight(self):
        X, y, group = people()
        bounds = np.array([0.0, -4.0, 0.0]), BOUNDS[1]
        fitted = model(feature_bounds=bounds).fit(sp.csr_array(X), y, sensitive_features={"group": group})
        assert fitted.curves_.tolist() == []

    def test_sparse_rows_are_not_scored_by_a_model_that_bends(self):
        X, y, group = people()
        bounds = np.array([0.0, -4.0, 0.0]), BOUNDS[1]
        fitted = model(feature_bounds=bounds, curves=True).fit(X, y, sensitive_features={"group": group})
        with pytest.raises(UnsupportedCombination, match="sparse"):
            fitted.predict(sp.csr_array(X))

    def test_second_columns_count_where_noise_drowns_rows(self):
        X, y, _ = people(60)
        told = {}
        for curves in ("auto", (0, 1), False):
            with pytest.warns(RatewiseWarning) as warned:
                model(epsilon=0.1, curves=curves, constraints=None).fit(X, y)
            told[curves] = [
                int(n) for w in warned for n in re.findall(r"too few for (\d+) par", str(w.message))
            ]
        assert told == {"auto": [4], (0, 1): [6], False: [4]}

    def test_a_memory_map_bends_alike(self, tmp_path):
        X, y, group = people()
        place = tmp_path / "X.npy"
        np.save(place, X)
        mapped = np.load(place, mmap_mode="r")
        found = [model().fit(rows, y, sensitive_features={"group": group}).coef_ for rows in (X, mapped)]
        assert found[0] == pytest.approx(found[1], rel=1e-6)

    def test_predictions_look_at_one_row_at_a_time(self):
        X, y, group = people()
        fitted = model().fit(X, y, sensitive_features={"group": group})
        whole = fitted.decision_function(X)
        assert fitted.decision_function(X[700:701])[0] == pytest.approx(whole[700], rel=1e-12)


def test_second_columns_are_of_the_kind_of_the_first(monkeypatch):
    import ratewise.standardisation as room

    seen = []
    whole = room.Kinds
    monkeypatch.setattr(room, "Kinds", lambda of: seen.append(of.tolist()) or whole(of))
    scaling = Scaling(*BOUNDS, curved=np.array([0, 1]))
    found = standardise(
        people(200)[0],
        scaling,
        None,
        Preparation(norm_noise=None, moment_noise=None),
        np.random.default_rng(0),
        print,
    )
    assert seen == [[0, 0, 1, 0, 0]]
    assert found.curved.tolist() == [0, 1]
    prepared = Features(people(200)[0], scaling=found).prepared(np.arange(200))
    assert prepared.mean(axis=0) == pytest.approx(np.zeros(5), abs=1e-9)
    assert prepared.shape == (200, 5)


@pytest.mark.parametrize(
    ("rows", "epsilon", "curves", "bent"),
    [
        (12_000, 1.0, "auto", True),
        (300, 1.0, "auto", False),
        (12_000, 0.01, "auto", False),
        (3000, None, "auto", True),
        (3000, 1.0, True, True),
    ],
)
def test_made_up_people_bend_in_their_numbers_if_they_are_enough(rows, epsilon, curves, bent):
    """The classifier, that of tables and runs decide alike, by public facts."""
    made = census_like(rows, random_state=0)
    lower, upper = made.feature_bounds
    places = np.flatnonzero(~((lower == 0) & (upper == 1))) if curves == "auto" else np.arange(len(lower))
    fitted = RateConstrainedClassifier(
        classes=made.classes,
        feature_bounds=made.feature_bounds,
        epsilon=epsilon,
        curves=curves,
        random_state=0,
        steps=3,
    ).fit(made.X, made.y)
    assert fitted.curves_.tolist() == (places.tolist() if bent else [])
    columns = {f"n{k}": Number(lower[k], upper[k]) for k in range(len(lower))}
    schema = Schema(columns, label="y", classes=made.classes)
    table = {name: made.X[:, k] for k, name in enumerate(columns)} | {"y": made.y}
    told = {"epsilon": epsilon, "curves": curves, "random_state": 0, "steps": 3}
    of_table = TableClassifier(schema, **told).fit(table)
    settings = Settings(label="y", epsilon=epsilon, curves=None if curves == "auto" else curves)
    width = len(columns)
    assert len(of_table.classifier_.curves_) == (width if bent else 0)
    assert facts_of(schema, settings, rows).n_features == (2 * width if bent else width)
