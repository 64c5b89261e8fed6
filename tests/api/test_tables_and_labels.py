"""Data in every shape that users have: one table, one model, whatever it came in."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from ratewise import (
    Numeric,
    RateConstrainedClassifier,
    below,
    demographic_parity,
    equalized_odds,
    false_negative_rate,
    group,
    label,
    positive_rate,
    rate,
)

N = 500
RNG = np.random.default_rng(1)
SEX = RNG.choice(["F", "M"], N)
REGION = RNG.choice(["east", "north", "west"], N)
AGE = RNG.integers(18, 80, N)
X = RNG.normal(size=(N, 3)).round(3)
CODES = (2 * X[:, 0] + (SEX == "M") + RNG.normal(size=N) > 0.5).astype(int)
PARITY = demographic_parity("sex", max_gap=0.1)
PUBLIC = {"sex": ("F", "M"), "region": ("east", "north", "west"), "age": Numeric()}

pytestmark = [
    pytest.mark.filterwarnings("ignore::ratewise.SmallGroupWarning"),
    pytest.mark.filterwarnings("ignore::ratewise.PrivacyLeakWarning"),
]


def fit(features=X, labels=CODES, groups=None, constraints=PARITY, **changes):
    model = RateConstrainedClassifier(constraints, **{"random_state": 0, "steps": 20, **changes})
    return model.fit(features, labels, sensitive_features={"sex": SEX} if groups is None else groups)


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
        np.testing.assert_array_equal(model.coef_, fit().coef_)
        np.testing.assert_array_equal(model.predict(features), fit().predict(X))

    @pytest.mark.parametrize(
        "form",
        [
            scipy.sparse.csr_array,
            scipy.sparse.csc_array,
            scipy.sparse.coo_array,
            scipy.sparse.csr_matrix,
            scipy.sparse.csc_matrix,
        ],
    )
    @pytest.mark.parametrize("bounds", [None, (0, 2)])
    @pytest.mark.parametrize("epsilon", [1.0, None])
    def test_sparse_and_dense_give_the_same_model(self, form, bounds, epsilon):
        cut = np.where(np.abs(X) < 0.7, 0.0, X)
        # sparse features are scaled but not shifted, so only without that do the two agree to the last digit
        sparse = fit(form(cut), feature_bounds=bounds, epsilon=epsilon, standardise=False)
        dense = fit(cut, feature_bounds=bounds, epsilon=epsilon, standardise=False)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8)
        np.testing.assert_allclose(sparse.predict_proba(form(cut)), dense.predict_proba(cut), rtol=1e-8)
        np.testing.assert_allclose(sparse.predict_proba(cut), dense.predict_proba(form(cut)), rtol=1e-8)

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
        sparse, dense = fit(twice, standardise=False), fit(standardise=False)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8)

    def test_single_precision_stays_single_and_agrees(self):
        single = fit(X.astype(np.float32))
        np.testing.assert_allclose(single.coef_, fit().coef_, rtol=0.02, atol=0.02)
        assert single.coef_.dtype == np.float64

    @pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, bool])
    def test_whole_numbers(self, kind):
        whole = (X > 0).astype(kind)
        np.testing.assert_array_equal(fit(whole).coef_, fit(whole.astype(float)).coef_)

    def test_names_of_features_are_kept_and_checked(self):
        frame = pd.DataFrame(X, columns=["b", "a", "c"])
        model = fit(frame)
        assert model.feature_names_in_.tolist() == ["b", "a", "c"]
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(frame[["a", "b", "c"]])
        with pytest.raises(ValueError, match="2 features"):
            fit().predict(X[:, :2])

    def test_bounds_cut_off_and_scale(self):
        wide = np.column_stack([X, 1000 * X[:, 0]])
        lower, upper = [-1.0, -1.0, -1.0, -500.0], [1.0, 1.0, 1.0, 500.0]
        scaled = (np.clip(wide, lower, upper) - lower) / np.subtract(upper, lower)
        bounded = fit(wide, feature_bounds=(lower, upper), standardise=False)
        plain = fit(scaled, standardise=False)
        np.testing.assert_allclose(bounded.coef_, plain.coef_)
        np.testing.assert_allclose(bounded.predict_proba(wide), plain.predict_proba(scaled))

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
        model = fit(labels=labels, constraints=None)
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
        constraint = demographic_parity("sex", max_gap=0.1)
        model = fit(labels=given, constraints=constraint, classes=names)
        assert model.classes_.tolist() == list(names)
        assert model.classes_.dtype.kind == kind
        np.testing.assert_array_equal(model.coef_, fit().coef_)
        np.testing.assert_array_equal(model.predict(X), np.array(names)[fit().predict(X)])
        assert model.score(X, labels) == fit().score(X, CODES)

    def test_declared_classes_come_sorted_and_cost_nothing(self):
        model = fit(classes=(1, 0))
        assert model.classes_.tolist() == [0, 1]
        np.testing.assert_array_equal(model.coef_, fit().coef_)

    def test_many_classes_and_text_in_constraints(self):
        names = np.array(["a", "b", "c", "d"])
        labels = names[CODES + 2 * (X[:, 1] > 0)]
        limits = [
            rate("c", where=group(sex="F")) - rate("c", where=group(sex="M")) <= 0.1,
            rate("a", where=label("d")) <= 0.2,
            false_negative_rate(0.4, positive="b", by="sex"),
            positive_rate(min_rate=0.05, positive="d"),
        ]
        model = fit(labels=labels, constraints=limits)
        assert set(model.predict(X)) <= set(names)
        assert model.predict_proba(X).shape == (N, 4)
        assert len(model.multipliers_) == len(model.constraints_) == 5

    def test_a_positive_class_of_another_type_is_explained(self):
        with pytest.raises(ValueError, match="positive=1 is not one of the classes: 'no', 'yes'"):
            fit(labels=np.array(["no", "yes"])[CODES], constraints=false_negative_rate(0.2))


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
        np.testing.assert_array_equal(model.coef_, fit().coef_)
        np.testing.assert_array_equal(model.history_["histogram"], fit().history_["histogram"])

    @pytest.mark.parametrize(
        "values", [(False, True), (0, 1), (-5, 9), (0.5, 1.5)], ids=["bool", "integer", "signed", "float"]
    )
    @pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame])
    def test_groups_of_any_type(self, values, frame):
        column = np.array(values)[(SEX == "M").astype(int)]
        limit = rate(1, where=group(sex=values[0])) - rate(1, where=group(sex=values[1])) <= 0.1
        expected = fit(constraints=rate(1, where=group(sex="F")) - rate(1, where=group(sex="M")) <= 0.1)
        for declared in (None, {"sex": values}):
            model = fit(groups=frame({"sex": column}), constraints=limit, group_values=declared)
            np.testing.assert_array_equal(model.coef_, expected.coef_)

    @pytest.mark.parametrize("ages", [AGE, AGE.astype(float), AGE + RNG.random(N)])
    def test_intervals_of_a_number(self, ages):
        young = group(age=below(25))
        limit = rate(1, where=young) - rate(1, where=~young) <= 0.1
        model = fit(groups={"age": ages}, constraints=limit, classes=(0, 1))
        assert model.constraints_.n_cells == 2
        assert model.privacy_.leaks == ()  # an interval needs no list of values
        named = rate(1, where=group(age="young")) - rate(1, where=group(age="old")) <= 0.1
        words = {"age": np.where(AGE < 25, "young", "old")}
        by_name = fit(groups=words, constraints=named, epsilon=None)
        by_number = fit(groups={"age": ages}, constraints=limit, epsilon=None)
        np.testing.assert_allclose(by_number.coef_, by_name.coef_, rtol=1e-10)

    def test_intersections(self):
        people = {"sex": SEX, "region": REGION, "age": AGE}
        limits = [
            demographic_parity("sex", "region", max_gap=0.2),
            rate(1, where=group(sex="F", region={"east", "west"}, age=below(40))) <= 0.6,
        ]
        model = fit(groups=people, constraints=limits, group_values=PUBLIC, classes=(0, 1))
        assert model.constraints_.n_cells == 8  # age matters in two of the six cells only
        assert model.history_["histogram"].shape == (20, 8, 2)
        assert model.privacy_.leaks == ()

    def test_no_column_named_crosses_all(self):
        people = pd.DataFrame({"sex": SEX, "region": REGION})
        crossed = fit(groups=people, constraints=demographic_parity(max_gap=0.2))
        named = fit(groups=people, constraints=demographic_parity("sex", "region", max_gap=0.2))
        assert crossed.constraints_.n_cells == 6
        assert crossed.constraints_.names == named.constraints_.names
        np.testing.assert_array_equal(crossed.coef_, named.coef_)
        odds = fit(groups=people, constraints=equalized_odds(max_gap=0.2))
        assert odds.constraints_.n_cells == 12

    def test_no_column_named_and_a_vector(self):
        model = fit(groups=SEX, constraints=demographic_parity(max_gap=0.2))
        assert model.constraints_.n_cells == 2

    def test_declarations_of_other_columns_are_of_no_matter(self):
        expected = fit(group_values={"sex": ("F", "M")}).coef_
        for groups in ({"sex": SEX, "region": REGION}, {"sex": SEX}):
            np.testing.assert_array_equal(fit(groups=groups, group_values=PUBLIC).coef_, expected)
        np.testing.assert_array_equal(
            fit(groups={"sex": SEX, "region": REGION}, group_values={"region": PUBLIC["region"]}).coef_,
            expected,
        )

    def test_columns_that_nobody_reads_are_not_read(self):
        bad = pd.DataFrame({"sex": SEX, "note": [None, *range(N - 1)], "map": [{}] * N})
        np.testing.assert_array_equal(fit(groups=bad).coef_, fit().coef_)

    def test_groups_without_constraints_are_ignored(self):
        free = fit(groups=pd.DataFrame({"sex": [None] * N}), constraints=None)
        alone = RateConstrainedClassifier(random_state=0, steps=20).fit(X, CODES)
        np.testing.assert_array_equal(free.coef_, alone.coef_)

    def test_constraints_without_groups_need_none(self):
        model = RateConstrainedClassifier([rate(1) <= 0.3, rate(0, where=label(1)) <= 0.5], random_state=0)
        model.fit(X, CODES)
        assert model.constraints_.n_cells == 2

    def test_order_of_rows_of_a_frame_is_by_position(self):
        """An index must not be aligned: it would pair people with the groups of others."""
        shuffled = RNG.permutation(N)
        frame = pd.DataFrame({"sex": SEX}, index=shuffled)
        model = fit(pd.DataFrame(X, columns=list("abc")), pd.Series(CODES), frame)
        np.testing.assert_array_equal(model.coef_, fit().coef_)
