"""Data in every shape that users have: one table, one model, whatever it came in."""

import datetime
import functools

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from ratewise import (
    Numeric,
    RateConstrainedClassifier,
    RatewiseWarning,
    TrainingConfig,
    below,
    demographic_parity,
    equalized_odds,
    false_negative_rate,
    group,
    label,
    positive_rate,
    rate,
)
from ratewise.data.schema import Number, Schema

N = 500
RNG = np.random.default_rng(1)
SEX = RNG.choice(["F", "M"], N)
REGION = RNG.choice(["east", "north", "west"], N)
AGE = RNG.integers(18, 80, N)
X = RNG.normal(size=(N, 3)).round(3)
CODES = (2 * X[:, 0] + (SEX == "M") + RNG.normal(size=N) > 0.5).astype(int)
PARITY = demographic_parity("sex", max_gap=0.1)
PUBLIC = {"sex": ("F", "M"), "region": ("east", "north", "west"), "age": Numeric()}

CONFIG = TrainingConfig(steps=20)


def fit(features=X, labels=CODES, groups=None, constraints=PARITY, **changes):
    public = {"classes": (0, 1), "group_values": PUBLIC, "feature_bounds": (-4, 4)}
    parameters = {**public, "random_state": 0, "config": CONFIG, **changes}
    model = RateConstrainedClassifier(constraints, **parameters)
    return model.fit(features, labels, sensitive_features={"sex": SEX} if groups is None else groups)


@functools.cache
def plain_fit():
    """Return the model that other forms of the same table must give."""
    return fit()


def weights(model):
    """Return what training released, as one vector."""
    found = model.model_
    parts = (
        (found.weights, found.intercept)
        if model.model == "linear" and hasattr(found, "weights")
        else (found.scorer.table, found.scorer.intercept)
    )
    return np.concatenate([np.ravel(part) for part in parts])


class TestFeatures:
    @pytest.mark.parametrize(
        "features",
        [
            pytest.param(X.tolist(), id="lists"),
            pytest.param(np.asfortranarray(X), id="fortran"),
            pytest.param(np.repeat(X, 2, axis=1)[:, ::2], id="strided"),
            pytest.param(X.astype(object), id="objects"),
            pytest.param(pd.DataFrame(X, columns=list("abc")), id="pandas"),
            pytest.param(pd.DataFrame(X, columns=list("abc"), index=RNG.permutation(N)), id="pandas index"),
            pytest.param(pl.DataFrame(X, schema=list("abc")), id="polars"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:X does not have valid feature names")
    def test_dense_forms_give_the_very_same_model(self, features):
        model = fit(features)
        np.testing.assert_array_equal(weights(model), weights(plain_fit()))
        np.testing.assert_array_equal(model.predict(features), plain_fit().predict(X))

    @pytest.mark.parametrize(
        "form", [scipy.sparse.csc_array, scipy.sparse.coo_array, scipy.sparse.csr_matrix, scipy.sparse.csc_matrix]
    )
    @pytest.mark.parametrize("epsilon", [1.0, None])
    def test_sparse_forms_give_the_very_same_model(self, form, epsilon):
        cut = np.where(np.abs(X) < 0.7, 0.0, X)
        rows = scipy.sparse.csr_array(cut)
        plain = fit(rows, model="linear", epsilon=epsilon)
        other = fit(form(cut), model="linear", epsilon=epsilon)
        np.testing.assert_array_equal(weights(other), weights(plain))
        np.testing.assert_allclose(other.predict_proba(cut), plain.predict_proba(rows), rtol=1e-12)

    def test_sparse_rows_with_repeated_entries(self):
        """Entries of one place add up, in the model and in the norm that is clipped."""
        rows, columns = np.indices(X.shape)
        order = np.argsort(np.concatenate([rows.ravel()] * 2), kind="stable")
        twice = scipy.sparse.csr_array(
            (
                np.concatenate([X.ravel() - 50, np.full(X.size, 50.0)])[order],
                np.concatenate([columns.ravel()] * 2)[order],
                np.arange(0, 2 * X.size + 1, 6),
            ),
            shape=X.shape,
        )
        plain = fit(scipy.sparse.csr_array(X), model="linear", epsilon=None)
        np.testing.assert_allclose(weights(fit(twice, model="linear", epsilon=None)), weights(plain), rtol=1e-8)

    def test_single_precision_agrees(self):
        single, double = fit(X.astype(np.float32), epsilon=None), fit(epsilon=None)
        agreed = np.mean(single.predict(X) == double.predict(X))
        assert agreed > 0.98
        assert weights(single).dtype == np.float64

    @pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, bool])
    def test_whole_numbers(self, kind):
        whole = (X > 0).astype(kind)
        np.testing.assert_array_equal(weights(fit(whole)), weights(fit(whole.astype(float))))

    def test_names_of_features_are_kept_and_columns_are_found_by_name(self):
        frame = pd.DataFrame(X, columns=["b", "a", "c"])
        model = fit(frame)
        assert model.feature_names_in_.tolist() == ["b", "a", "c"]
        np.testing.assert_array_equal(model.predict(frame[["a", "c", "b"]]), model.predict(frame))
        np.testing.assert_array_equal(model.predict(frame.assign(d="unused")), model.predict(frame))
        with pytest.raises(ValueError, match="X lacks the column 'c'"):
            model.predict(frame[["a", "b"]])
        with pytest.raises(ValueError, match="2 features"):
            plain_fit().predict(X[:, :2])

    def test_values_beyond_the_bounds_count_as_the_bounds(self):
        cut = np.clip(X, -1, 1)
        np.testing.assert_array_equal(
            weights(fit(X, feature_bounds=(-1, 1))), weights(fit(cut, feature_bounds=(-1, 1)))
        )

    def test_bounds_by_column_and_lists_of_values(self):
        frame = pd.DataFrame({"number": X[:, 0], "region": REGION, "age": AGE})
        bounds = {"number": (-4, 4), "region": ["east", "north", "west"]}
        model = fit(frame, feature_bounds=bounds, epsilon=8.0)
        kinds = {shape.feature: shape.kind for shape in model.shape_functions()}
        assert (kinds["number"], kinds["region"]) == ("continuous", "categorical")
        assert any("age" in found for found in model.privacy_.found)
        assert np.all(np.isfinite(model.predict_proba(frame)))

    def test_input_is_not_written_to(self):
        features, labels = X.copy(), CODES.copy()
        features.flags.writeable = labels.flags.writeable = False
        fit(features, labels, feature_bounds=(-1, 1)).predict(features)
        np.testing.assert_array_equal(features, X)


class TestLabels:
    @pytest.mark.parametrize(
        "labels",
        [
            CODES.astype(object),
            CODES.tolist(),
            CODES.astype(float),
            pd.Series(CODES, dtype="Int64"),
            pd.Series(CODES).astype("category"),
            pl.Series(CODES),
        ],
        ids=["objects", "list", "floats", "nullable", "category", "polars"],
    )
    def test_score_takes_what_fit_takes(self, labels):
        model = fit(labels=labels)
        assert model.score(X, labels) == np.mean(model.predict(X) == CODES)

    def test_text_of_variable_length(self):
        labels = np.array(["no", "yes"], dtype=np.dtypes.StringDType())[CODES]
        model = fit(labels=labels, constraints=None, classes=("no", "yes"))
        assert model.score(X, labels) == np.mean(model.predict(X) == np.array(["no", "yes"])[CODES])

    @pytest.mark.parametrize(
        ("names", "kind"),
        [
            pytest.param(("no", "yes"), "U", id="text"),
            pytest.param((False, True), "b", id="bool"),
            pytest.param((-1, 1), "i", id="signs"),
            pytest.param((3, 70), "i", id="integers"),
            pytest.param((0.0, 1.0), "f", id="floats"),
        ],
    )
    @pytest.mark.parametrize("form", ["array", "object", "pandas", "categorical", "polars", "list"])
    def test_every_type_of_label(self, names, kind, form):
        labels = np.array(names)[CODES]
        given = {
            "array": lambda: labels,
            "object": lambda: labels.astype(object),
            "pandas": lambda: pd.Series(labels),
            "categorical": lambda: pd.Series(labels).astype("category"),
            "polars": lambda: pl.Series(labels),
            "list": labels.tolist,
        }[form]()
        model = fit(labels=given, classes=names)
        assert model.classes_.tolist() == list(names)
        assert model.classes_.dtype.kind == kind
        np.testing.assert_array_equal(weights(model), weights(plain_fit()))
        np.testing.assert_array_equal(model.predict(X), np.array(names)[plain_fit().predict(X)])
        assert model.score(X, labels) == plain_fit().score(X, CODES)

    def test_declared_classes_come_sorted_and_cost_nothing(self):
        model = fit(classes=(1, 0))
        assert model.classes_.tolist() == [0, 1]
        np.testing.assert_array_equal(weights(model), weights(plain_fit()))

    def test_many_classes_and_text_in_constraints(self):
        names = np.array(["a", "b", "c", "d"])
        labels = names[CODES + 2 * (X[:, 1] > 0)]
        limits = [
            rate("c", where=group(sex="F")) - rate("c", where=group(sex="M")) <= 0.1,
            rate("a", where=label("d")) <= 0.2,
            false_negative_rate(0.4, positive="b", by="sex"),
            positive_rate(min_rate=0.05, positive="d"),
        ]
        model = fit(labels=labels, constraints=limits, classes=tuple(names))
        assert set(model.predict(X)) <= set(names)
        assert model.predict_proba(X).shape == (N, 4)
        assert len(model.multipliers_) == len(model.constraints_) == 5

    def test_a_positive_class_of_another_type_is_explained(self):
        with pytest.raises(ValueError, match="positive=1 is not one of the classes: 'no', 'yes'"):
            fit(classes=("no", "yes"), constraints=false_negative_rate(0.2))


class TestGroups:
    @pytest.mark.parametrize(
        "table",
        [
            pytest.param({"sex": SEX.tolist()}, id="dict of lists"),
            pytest.param({"sex": SEX.astype(object)}, id="objects"),
            pytest.param(SEX.tolist(), id="list"),
            pytest.param(SEX, id="vector"),
            pytest.param(SEX[:, None], id="one column"),
            pytest.param(pd.Series(SEX), id="series"),
            pytest.param(pd.Series(SEX, name="sex", index=RNG.permutation(N)), id="series with index"),
            pytest.param(pd.Series(SEX, name="sex", dtype="category"), id="categorical"),
            pytest.param(pd.Series(SEX, name="sex", dtype="string"), id="string"),
            pytest.param(pd.DataFrame({"sex": SEX, "other": [None] * N}), id="frame"),
            pytest.param(pd.DataFrame({"sex": pd.Categorical(SEX, ["M", "X", "F"])}), id="frame category"),
            pytest.param(pl.DataFrame({"sex": SEX, "other": [None] * N}), id="polars"),
            pytest.param(pl.Series("sex", SEX), id="polars series"),
            pytest.param(pl.DataFrame({"sex": pl.Series(SEX, dtype=pl.Categorical)}), id="polars category"),
            pytest.param(np.array(list(zip(SEX)), dtype=[("sex", "U1")]), id="records"),
        ],
    )
    def test_every_form_of_table_gives_the_same_model(self, table):
        model = fit(groups=table)
        np.testing.assert_array_equal(weights(model), weights(plain_fit()))
        np.testing.assert_array_equal(model.history_["histogram"], plain_fit().history_["histogram"])

    @pytest.mark.parametrize(
        "values", [(False, True), (0, 1), (-5, 9), (0.5, 1.5)], ids=["bool", "integer", "signed", "float"]
    )
    @pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame])
    def test_groups_of_any_type(self, values, frame):
        column = np.array(values)[(SEX == "M").astype(int)]
        limit = rate(1, where=group(sex=values[0])) - rate(1, where=group(sex=values[1])) <= 0.1
        expected = fit(constraints=rate(1, where=group(sex="F")) - rate(1, where=group(sex="M")) <= 0.1)
        model = fit(groups=frame({"sex": column}), constraints=limit, group_values={"sex": values})
        np.testing.assert_array_equal(weights(model), weights(expected))

    @pytest.mark.parametrize("ages", [AGE, AGE.astype(float), AGE + RNG.random(N)])
    def test_intervals_of_a_number(self, ages):
        young = group(age=below(25))
        limit = rate(1, where=young) - rate(1, where=~young) <= 0.1
        model = fit(groups={"age": ages}, constraints=limit, group_values=None)
        assert model.constraints_.n_cells == 2
        assert model.privacy_.found == ()  # an interval needs no list of values
        named = rate(1, where=group(age="young")) - rate(1, where=group(age="old")) <= 0.1
        words = {"age": np.where(AGE < 25, "young", "old")}
        by_name = fit(groups=words, constraints=named, group_values={"age": ("old", "young")}, epsilon=None)
        by_number = fit(groups={"age": ages}, constraints=limit, epsilon=None)
        np.testing.assert_allclose(weights(by_number), weights(by_name), rtol=1e-10)

    def test_intersections(self):
        people = {"sex": SEX, "region": REGION, "age": AGE}
        limits = [
            demographic_parity("sex", "region", max_gap=0.2),
            rate(1, where=group(sex="F", region={"east", "west"}, age=below(40))) <= 0.6,
        ]
        model = fit(groups=people, constraints=limits, group_values=PUBLIC, classes=(0, 1))
        assert model.constraints_.n_cells == 9  # age matters in two of the six cells only; undeclared values have one
        assert model.history_["histogram"].shape == (20, 9, 2)
        assert model.privacy_.found == ()

    def test_no_column_named_crosses_all(self):
        people = pd.DataFrame({"sex": SEX, "region": REGION})
        crossed = fit(groups=people, constraints=demographic_parity(max_gap=0.2))
        named = fit(groups=people, constraints=demographic_parity("sex", "region", max_gap=0.2))
        assert crossed.constraints_.n_cells == 7
        assert crossed.constraints_.names == named.constraints_.names
        np.testing.assert_array_equal(weights(crossed), weights(named))
        odds = fit(groups=people, constraints=equalized_odds(max_gap=0.2))
        assert odds.constraints_.n_cells == 14

    def test_no_column_named_and_a_vector(self):
        declared = {"group": ("F", "M")}
        model = fit(groups=SEX, constraints=demographic_parity(max_gap=0.2), group_values=declared)
        assert model.constraints_.n_cells == 2

    def test_declarations_of_other_columns_are_of_no_matter(self):
        expected = weights(fit(group_values={"sex": ("F", "M")}))
        for groups in ({"sex": SEX, "region": REGION}, {"sex": SEX}):
            np.testing.assert_array_equal(weights(fit(groups=groups)), expected)

    def test_columns_that_nobody_reads_are_not_read(self):
        bad = pd.DataFrame({"sex": SEX, "note": [None, *range(N - 1)], "map": [{}] * N})
        np.testing.assert_array_equal(weights(fit(groups=bad)), weights(plain_fit()))

    def test_groups_without_constraints_are_ignored(self):
        free = fit(groups=pd.DataFrame({"sex": [None] * N}), constraints=None)
        public = {"classes": (0, 1), "feature_bounds": (-4, 4)}
        alone = RateConstrainedClassifier(random_state=0, config=CONFIG, **public).fit(X, CODES)
        np.testing.assert_array_equal(weights(free), weights(alone))

    def test_constraints_without_groups_need_none(self):
        limits = [rate(1) <= 0.3, rate(0, where=label(1)) <= 0.5]
        model = RateConstrainedClassifier(limits, classes=(0, 1), config=CONFIG, random_state=0)
        model.fit(X, CODES)
        assert model.constraints_.n_cells == 2

    def test_order_of_rows_of_a_frame_is_by_position(self):
        """An index must not be aligned: it would pair people with the groups of others."""
        shuffled = RNG.permutation(N)
        frame = pd.DataFrame({"sex": SEX}, index=shuffled)
        model = fit(pd.DataFrame(X, columns=list("abc")), pd.Series(CODES), frame)
        np.testing.assert_array_equal(weights(model), weights(plain_fit()))


def test_labels_are_read_alike_in_fits_and_scores():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    labels = np.where(X[:, 0] > 0, "yes", "no")
    model = RateConstrainedClassifier(epsilon=None, classes=["no", "yes"], random_state=0)
    padded = [f" {label} " for label in labels]
    assert model.fit(X, padded).score(X, padded) == model.score(X, labels) > 0.9


def test_a_class_that_is_named_but_not_found_is_said():
    """With labels "no" and "yes", the default ``positive=1`` adds a class."""
    labels = np.where(CODES, "yes", "no")
    model = RateConstrainedClassifier(false_negative_rate(0.5), epsilon=None, config=CONFIG)
    with pytest.warns(RatewiseWarning, match="names 1, which is not among the values of 'label'.*: 'no', 'yes'"):
        model.fit(X, labels)
    assert model.set_params(constraints=false_negative_rate(0.5, positive="yes")).fit(X, labels).classes_.size == 2


@pytest.mark.parametrize("kind", [datetime.date.fromisoformat, pd.Timestamp, np.datetime64])
def test_bounds_of_dates_are_dates(kind):
    frame = pd.DataFrame({"x": X[:, 0], "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(AGE, unit="D")})
    bounds = {"x": (-4, 4), "since": (kind("2020-01-01"), kind("2020-06-30"))}
    in_days = bounds | {"since": (18262.0, 18443.0)}
    models = [fit(frame, constraints=None, feature_bounds=given) for given in (bounds, in_days)]
    assert models[0].shape_functions()[1].kind == "continuous"
    assert np.array_equal(models[0].predict_proba(frame), models[1].predict_proba(frame))


def test_columns_that_a_schema_leaves_out_are_no_features():
    frame = pd.DataFrame({"x": X[:, 0], "note": X[:, 1], "person": AGE})
    schema = Schema({"x": Number(-4, 4)}, label="y", classes=[0, 1], leave_out=["note"], privacy_id="person")
    model = RateConstrainedClassifier(schema=schema, config=CONFIG, random_state=0).fit(frame, CODES)
    assert model.feature_names_in_.tolist() == ["x"]
    assert np.array_equal(model.predict(frame), model.predict(frame[["x"]]))
    everything = Schema({"x": Number(-4, 4)}, label="y", classes=[0, 1], leave_out=["note"])
    with pytest.raises(ValueError, match="leaves out every column"):
        RateConstrainedClassifier(schema=everything).fit(frame[["note"]], CODES)
