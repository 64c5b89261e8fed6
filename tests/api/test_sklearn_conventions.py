"""The classifier among scikit-learn's tools: pipelines, searches, routing, copies, seeds."""

import copy
import io
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ratewise import (
    Budget,
    Ledger,
    RateConstrainedClassifier,
    TrainingConfig,
    demographic_parity,
    equalized_odds,
    group,
    rate,
)

N = 600
RNG = np.random.default_rng(0)
SEX = RNG.choice(["F", "M"], N)
X = RNG.normal(size=(N, 3)) + [1, 0, 0] * (SEX == "M")[:, None]
Y = (2 * X[:, 0] + (SEX == "M") + RNG.normal(size=N) > 0.5).astype(int)
GROUPS = {"sex": SEX}
PARITY = demographic_parity("sex", max_gap=0.1)


PUBLIC = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}, "feature_bounds": (-4, 5)}


def classifier(constraints=PARITY, steps=30, **changes):
    config = TrainingConfig(steps=steps)
    return RateConstrainedClassifier(constraints, **{**PUBLIC, "random_state": 0, "config": config, **changes})


def fitted(constraints=PARITY, **changes):
    return classifier(constraints, **changes).fit(X, Y, sensitive_features=GROUPS)


def weights(model):
    """Return the released table of contributions and the intercepts as one vector."""
    return np.append(model.model_.scorer.table, model.model_.scorer.intercept)


def halved(x):
    return x / 2


class TestRouting:
    @pytest.fixture(autouse=True)
    def routed(self):
        with config_context(enable_metadata_routing=True):
            yield

    def test_pipeline(self):
        model = classifier().set_fit_request(sensitive_features=True)
        pipeline = make_pipeline(FunctionTransformer(halved), model)
        pipeline.fit(X, Y, sensitive_features=SEX)
        alone = classifier().fit(X / 2, Y, sensitive_features=GROUPS)
        np.testing.assert_array_equal(weights(pipeline[-1]), weights(alone))
        np.testing.assert_array_equal(pipeline.predict(X), alone.predict(X / 2))
        assert pipeline.score(X, Y) == alone.score(X / 2, Y)

    def test_pipeline_without_a_request_is_told(self):
        with pytest.raises(ValueError, match="sensitive_features"):
            make_pipeline(FunctionTransformer(halved), classifier()).fit(X, Y, sensitive_features=SEX)

    def test_grid_search_splits_the_groups_like_the_rows(self):
        model = classifier().set_fit_request(sensitive_features=True)
        grid = {"epsilon": [1.0, None], "constraints": [None, PARITY, [equalized_odds("sex", max_gap=0.2), PARITY]]}
        search = GridSearchCV(model, grid, cv=3, error_score="raise")
        search.fit(X, Y, sensitive_features=SEX)
        scores = search.cv_results_["mean_test_score"]
        assert scores.shape == (6,)
        assert np.all(scores > 0.5)
        assert set(search.predict(X)) == {0, 1}
        assert search.best_score_ == scores.max()

    def test_grid_search_over_a_pipeline(self):
        model = classifier(epsilon=None).set_fit_request(sensitive_features=True)
        pipeline = make_pipeline(FunctionTransformer(halved), model)
        grid = {"rateconstrainedclassifier__constraints": [None, rate(1, where=group(sex="M")) <= 0.02]}
        search = GridSearchCV(pipeline, grid, cv=3, error_score="raise")
        search.fit(X, Y, sensitive_features=SEX)
        free, limited = search.cv_results_["mean_test_score"]
        assert free > limited + 0.05

    def test_cross_validate(self):
        model = classifier(epsilon=8.0).set_fit_request(sensitive_features=True)
        found = cross_validate(
            model,
            X,
            Y,
            cv=3,
            params={"sensitive_features": SEX},
            return_estimator=True,
            error_score="raise",
            scoring=["accuracy", "roc_auc", "neg_log_loss"],
        )
        assert np.all(found["test_roc_auc"] > 0.7)
        assert {model.plan_.steps for model in found["estimator"]} == {30}
        sizes = sorted(model.plan_.n_units for model in found["estimator"])
        assert sizes == [400, 400, 400]

    @pytest.mark.parametrize(
        "table", [pd.DataFrame(GROUPS), np.rec.fromarrays([SEX], names=["sex"])], ids=["frame", "records"]
    )
    def test_tables_that_scikit_learn_can_split(self, table):
        model = classifier().set_fit_request(sensitive_features=True)
        params = {"sensitive_features": table}
        found = cross_validate(model, X, Y, cv=3, params=params, error_score="raise")
        plain = cross_validate(model, X, Y, cv=3, params={"sensitive_features": SEX}, error_score="raise")
        np.testing.assert_array_equal(found["test_score"], plain["test_score"])

    def test_a_dict_cannot_be_split_and_the_way_out_is_told(self):
        model = classifier().set_fit_request(sensitive_features=True)
        with pytest.raises(ValueError, match=r"pass a data frame \(or a record array\) rather than a dict"):
            cross_validate(model, X, Y, cv=3, params={"sensitive_features": GROUPS}, error_score="raise")

    def test_groups_of_the_wrong_rows_would_be_noticed(self):
        """Routing that forgot to cut the groups would hand over 600 of them for 400 rows."""
        with pytest.raises(ValueError, match="600, expected 400"):
            classifier().fit(X[:400], Y[:400], sensitive_features=SEX)


class TestParameters:
    def test_constructor_only_stores(self):
        strange = object()
        names = RateConstrainedClassifier().get_params()
        kept = RateConstrainedClassifier(**dict.fromkeys(names, strange))
        assert set(vars(kept)) == set(names)
        assert all(value is strange for value in vars(kept).values())

    def test_clone_keeps_parameters_and_drops_what_was_learnt(self):
        model = fitted(config=TrainingConfig(steps=20, clip=0.5, l2=0.1))
        twin = clone(model)
        assert twin.get_params() == model.get_params()
        assert not hasattr(twin, "model_")
        with pytest.raises(NotFittedError):
            twin.predict(X)
        twin.fit(X, Y, sensitive_features=GROUPS)
        np.testing.assert_array_equal(weights(twin), weights(model))

    def test_fit_changes_no_parameter(self):
        model = classifier()
        before = {name: copy.deepcopy(value) for name, value in model.get_params().items()}
        model.fit(X, Y, sensitive_features=GROUPS)
        assert model.get_params() == before

    def test_set_params(self):
        model = classifier().set_params(epsilon=None, config=TrainingConfig(steps=7))
        model.fit(X, Y, sensitive_features=GROUPS)
        assert (model.n_iter_, model.privacy_.epsilon) == (7, np.inf)
        with pytest.raises(ValueError, match="nonsense"):
            model.set_params(nonsense=1)

    def test_a_cloned_ledger_is_the_same_ledger(self):
        ledger = Ledger(cap=Budget(2.0, 1e-5))
        model = classifier(ledger=ledger)
        assert clone(model).ledger is ledger
        assert copy.deepcopy(model).ledger is ledger

    def test_repr_shows_the_constraint(self):
        assert "demographic_parity('sex', max_gap=0.1)" in repr(classifier())

    def test_is_a_classifier(self):
        assert is_classifier(classifier())


class TestCopies:
    @pytest.fixture
    def model(self):
        return fitted()

    @pytest.mark.parametrize(
        "again",
        [
            pytest.param(lambda model: pickle.loads(pickle.dumps(model)), id="pickle"),
            pytest.param(copy.copy, id="copy"),
            pytest.param(copy.deepcopy, id="deepcopy"),
        ],
    )
    def test_copies_predict_alike(self, model, again):
        self.check(model, again(model))

    def test_joblib(self, model):
        file = io.BytesIO()
        joblib.dump(model, file)
        file.seek(0)
        self.check(model, joblib.load(file))

    @staticmethod
    def check(model, twin):
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
        assert twin.privacy_ == model.privacy_
        assert twin.ledger_.total() == model.ledger_.total()
        assert twin.constraints_.names == model.constraints_.names
        assert twin.constraints == model.constraints
        assert twin.plan_ == model.plan_

    def test_an_unpickled_model_can_be_fitted_again(self, model):
        twin = pickle.loads(pickle.dumps(model)).fit(X, Y, sensitive_features=GROUPS)
        np.testing.assert_array_equal(weights(twin), weights(model))


@pytest.mark.real_noise
class TestSeeds:
    def test_same_seed_same_model(self):
        one, other = fitted(random_state=5), fitted(random_state=5)
        np.testing.assert_array_equal(weights(one), weights(other))
        np.testing.assert_array_equal(one.history_["histogram"], other.history_["histogram"])

    def test_other_seed_other_model(self):
        assert np.all(weights(fitted(random_state=5)) != weights(fitted(random_state=6)))

    def test_no_seed_is_new_each_time(self):
        assert np.all(weights(fitted(random_state=None)) != weights(fitted(random_state=None)))
        model = classifier(random_state=None)
        first = weights(model.fit(X, Y, sensitive_features=GROUPS))
        assert np.all(first != weights(model.fit(X, Y, sensitive_features=GROUPS)))

    def test_global_seed_is_neither_read_nor_moved(self):
        np.random.seed(0)  # noqa: NPY002 - the very thing that must not matter
        state = np.random.get_state()[1].copy()  # noqa: NPY002
        one = weights(fitted(random_state=None))
        assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
        np.random.seed(0)  # noqa: NPY002
        assert np.all(weights(fitted(random_state=None)) != one)

    def test_a_generator_goes_on(self):
        model = classifier(random_state=np.random.default_rng(5))
        first = weights(model.fit(X, Y, sensitive_features=GROUPS))
        assert np.all(first != weights(model.fit(X, Y, sensitive_features=GROUPS)))
        again = fitted(random_state=np.random.default_rng(5))
        np.testing.assert_array_equal(weights(again), first)

    def test_a_generator_of_the_old_kind(self):
        one, other = (fitted(random_state=np.random.RandomState(5)) for _ in range(2))
        np.testing.assert_array_equal(weights(one), weights(other))


class TestPredictions:
    @pytest.fixture
    def model(self):
        return fitted(epsilon=None, steps=200)

    @pytest.fixture
    def three(self):
        y = Y + (X[:, 1] > 1)
        model = classifier(None, epsilon=None, classes=(0, 1, 2), group_values=None, steps=200)
        return model.fit(X, y), y

    def test_two_classes(self, model):
        scores, chances = model.decision_function(X), model.predict_proba(X)
        assert scores.shape == (N,)
        assert chances.shape == (N, 2)
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-scores)))
        np.testing.assert_array_equal(model.predict(X), (scores > 0).astype(int))
        assert model.score(X, Y) == np.mean(model.predict(X) == Y) > 0.65

    def test_three_classes(self, three):
        model, y = three
        scores, chances = model.decision_function(X), model.predict_proba(X)
        assert scores.shape == chances.shape == (N, 3)
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(model.predict(X), scores.argmax(axis=1))
        assert model.model_.scorer.intercept.shape == (3,)
        assert np.mean(model.predict(X) == y) > 0.7

    def test_shape_functions_are_the_model(self, model):
        contributions = model.explain(X)
        scores = model.decision_function(X)
        sums = np.array([sum(row.values()) for row in contributions])
        np.testing.assert_allclose(scores - sums, np.full(N, scores[0] - sums[0]), atol=1e-9)
        assert [shape.feature for shape in model.shape_functions()] == ["x0", "x1", "x2"]

    def test_prediction_takes_no_groups(self, model):
        with pytest.raises(TypeError):
            model.predict(X, sensitive_features=GROUPS)

    def test_one_row_at_a_time_is_the_same(self, model):
        single = np.concatenate([model.decision_function(X[i : i + 1]) for i in range(20)])
        np.testing.assert_allclose(single, model.decision_function(X[:20]))

    def test_training_holds_the_constraint(self, model):
        """The point of it all, at its plainest: without noise the gap is near what was asked."""
        free = fitted(None, epsilon=None, group_values=None, steps=200)

        def gap(fit):
            predicted = fit.predict(X)
            return abs(predicted[SEX == "F"].mean() - predicted[SEX == "M"].mean())

        assert gap(free) > 0.2
        assert gap(model) < 0.15
