"""Whatever is wrong with the input is said once, clearly, and before any privacy is spent."""

import datetime
import decimal
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratewise import (
    Budget,
    BudgetExceeded,
    CertificateWarning,
    InvalidInput,
    InvalidType,
    Ledger,
    Numeric,
    RateConstrainedClassifier,
    RatewiseError,
    RatewiseWarning,
    SeedWarning,
    TrainingConfig,
    UnsupportedCombination,
    at_least,
    below,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    everyone,
    false_negative_rate,
    group,
    label,
    positive_rate,
    precision,
    rate,
)

N = 80
RNG = np.random.default_rng(4)
SEX = np.resize(["F", "M"], N)
X = RNG.normal(size=(N, 3))
Y = np.resize([0, 1, 1], N)
AGE = np.resize(np.arange(20, 60), N)
PARITY = demographic_parity("sex", max_gap=0.1)

SHORT = TrainingConfig(steps=3)


def with_entry(value, kind=float):
    changed = X.astype(kind)
    changed[7, 1] = value
    return changed


def refused(kind, match, *, features=X, labels=Y, groups=None, constraints=PARITY, give_groups=True, **changes):
    """Fit, expect one error of this kind, and find the ledger empty."""
    ledger = Ledger()
    parameters = {
        "classes": (0, 1),
        "group_values": {"sex": ("F", "M")},
        "ledger": ledger,
        "config": SHORT,
        "random_state": 0,
        **changes,
    }
    model = RateConstrainedClassifier(constraints, **parameters)
    given = {"sensitive_features": {"sex": SEX} if groups is None else groups} if give_groups else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        with pytest.raises(kind, match=match) as caught:
            model.fit(features, labels, **given)
    assert ledger.records == ()
    assert not hasattr(model, "model_")
    assert not hasattr(model, "ledger_")
    assert isinstance(caught.value, ValueError | TypeError)
    return str(caught.value)


def test_the_data_are_fine_as_they_are():
    """Every refusal below has a reason of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            refused(Exception, "no error comes")


def accepted(*, features=X, labels=Y, groups=None, constraints=PARITY, **changes):
    """Fit and return the model; no error and no warning may come from the content of rows."""
    parameters = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}, "config": SHORT, **changes}
    model = RateConstrainedClassifier(constraints, random_state=0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SeedWarning)
        warnings.simplefilter("ignore", CertificateWarning)
        model.fit(features, labels, sensitive_features={"sex": SEX} if groups is None else groups)
    assert np.all(np.isfinite(model.predict_proba(features)))
    return model


class TestRows:
    @pytest.mark.parametrize(
        ("features", "kind", "words"),
        [
            (pd.Series(X[:, 0]), InvalidInput, "Expected 2D array"),
            (pd.DataFrame(X, columns=["a", "a", "b"]), InvalidInput, "X has two columns named 'a'"),
            (pd.DataFrame(X, columns=[0, 1, 1]), InvalidInput, "X has two columns named '1'"),
            (pd.DataFrame(X, columns=["a", 1, "b"]), InvalidType, "names of several types"),
            (X.astype(complex), InvalidInput, "Complex data not supported"),
            (pd.DataFrame({"a": X[:, 0], "b": X[:, 1] * 1j}), InvalidInput, "column 'b' of X holds complex"),
            (scipy.sparse.csr_array(X.astype(complex)), InvalidInput, "Complex data not supported"),
            (X[:, 0], InvalidInput, "Expected 2D array.*reshape"),
            (X[:, :, None], InvalidInput, "Expected 2D array, got 3D"),
            (X[:, :0], InvalidInput, "0 feature"),
            (X[:0], InvalidInput, "0 sample"),
            (pl.DataFrame(X).lazy(), InvalidType, "lazy frame; call .collect"),
            (None, InvalidType, "X must be a table.*got NoneType"),
            ({"a": X[:, 0], "b": X[:-1, 1]}, InvalidInput, "columns of X have different lengths"),
            ({"a": X}, InvalidInput, "column 'a' of X must be one-dimensional"),
            ({1.0, 2.0}, InvalidType, "X must be a table.*got set"),
            ([[1.0, 2.0], [3.0]] * (N // 2), InvalidInput, "rows of X have different lengths"),
            (iter([1]), InvalidType, "X must be a table.*got list_iterator"),
            (object(), InvalidType, "X must be a table.*got object"),
            ("X", InvalidType, "X must be a table.*got str"),
            (scipy.sparse.csr_array(X), UnsupportedCombination, "use model='linear', or X.toarray"),
        ],
    )
    def test_features_of_a_wrong_structure(self, features, kind, words):
        message = refused(kind, words, features=features)
        assert not re.search(r"\d\.\d{4}", message)  # no values of rows

    @pytest.mark.parametrize(
        "features",
        [
            with_entry(np.nan),
            with_entry(np.inf),
            with_entry(-np.inf, np.float32),
            pd.DataFrame(X).mask(X > 2),
            pl.DataFrame(X).with_columns(column_0=pl.lit(None)),
            with_entry(None, object),
            with_entry("secret", object),
            np.full((N, 2), "secret"),
            X.astype(str),
            X.astype("S"),
            X.astype(str).tolist(),
            [[1.0, "2"]] * N,
            pd.DataFrame(X).astype("string"),
            pl.DataFrame(X).with_columns(day=pl.lit("7")),
            pyarrow.table({"day": ["7"] * N}),
            np.ma.array(X, mask=X > 2),
            [[10**400, 1]] * N,
            [[{}, []]] * N,
            X.astype("datetime64[s]"),
            pd.DataFrame(X).assign(day=pd.Timestamp(0)).astype({"day": "datetime64[s]"}).set_axis(list("abcd"), axis=1),
            X.astype("timedelta64[s]"),
            X.astype(np.longdouble) * np.longdouble("1e4000"),
        ],
        ids=range(22),
    )
    def test_no_content_of_a_feature_is_an_error(self, features):
        accepted(features=features)

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
    def test_no_content_of_a_sparse_feature_is_an_error(self, value):
        accepted(features=scipy.sparse.csr_array(with_entry(value)), model="linear")

    @pytest.mark.parametrize(
        ("labels", "kind", "words"),
        [
            (Y[:-1], InvalidInput, "inconsistent numbers of samples"),
            (np.append(Y, 1), InvalidInput, "inconsistent numbers of samples"),
            (np.column_stack([Y, Y]), InvalidInput, "y should be a 1d array"),
            ("y", InvalidInput, "y is 'y', which is no column of X"),
            (3, InvalidType, "y must be a vector"),
            ({"y": Y}, InvalidType, "y must be a vector"),
            (None, InvalidInput, "requires y"),
        ],
        ids=range(7),
    )
    def test_labels_of_a_wrong_structure(self, labels, kind, words):
        refused(kind, words, labels=labels)

    @pytest.mark.parametrize(
        "labels",
        [
            np.zeros(N, int),
            np.ones(N, int),
            np.where(Y, np.nan, 0.0),
            np.where(Y, np.inf, 0.0),
            np.where(Y, None, 0),
            np.where(Y, "a", None),
            ["a", float("nan")] * (N // 2),
            ["a", 1] * (N // 2),
            X[:, 0],
            [[0, 1], [1]] * (N // 2),
            Y.astype(complex),
            Y.astype("datetime64[D]"),
            [datetime.date(2020, 1, int(k) + 1) for k in Y],
            Y.astype("S"),
            [decimal.Decimal(int(k)) for k in Y],
            Y * 1e300,
            [10**30 + int(k) for k in Y],
            np.ma.array(Y, mask=Y > 0),
            pd.Series(pd.Categorical(np.where(Y, "a", None))),
            pd.Series(Y, dtype="Int64").mask(Y > 0),
            pl.Series(np.where(Y, None, 0)),
            np.where(Y, 2, 0),
        ],
        ids=range(22),
    )
    def test_no_content_of_a_label_is_an_error(self, labels):
        model = accepted(labels=labels)
        assert model.classes_.tolist() == [0, 1]

    def test_declared_classes_and_groups_need_no_rows(self):
        accepted(classes=(0, 1, 2))
        accepted(group_values={"sex": ("F", "M", "X")})

    def test_the_ledger_and_the_plan_do_not_depend_on_content(self):
        plain, odd = accepted(), accepted(labels=np.full(N, None), features=with_entry(np.nan))
        assert plain.plan_ == odd.plan_
        assert list(plain.ledger_.events()) == list(odd.ledger_.events())


class TestGroups:
    @pytest.mark.parametrize(
        ("groups", "kind", "words"),
        [
            ({"sex": SEX[:-1]}, InvalidInput, "column 'sex' has 79, expected 80"),
            ({"gender": SEX}, InvalidInput, "lacks column 'sex'.*its columns are 'gender'"),
            ({}, InvalidInput, "lacks column 'sex'"),
            (pl.DataFrame({"sex": SEX}).lazy(), InvalidType, "sensitive_features is a lazy frame"),
            (pd.DataFrame(np.array([SEX, SEX]).T, columns=["sex", "sex"]), InvalidInput, "two columns"),
            (np.column_stack([SEX, SEX]), InvalidInput, "2 columns without names"),
            ("sex", InvalidInput, "sensitive_features is 'sex', which is no column of X"),
            (3, InvalidType, "sensitive_features must be a data frame"),
            ({"sex": "F"}, InvalidType, "'sex' of sensitive_features must be a vector"),
            ({"sex": 3}, InvalidType, "'sex' of sensitive_features must be a vector"),
            ({"sex": np.column_stack([SEX, SEX])}, InvalidType, "'sex' of sensitive_features must be a vector"),
            (pd.DataFrame({"sex": SEX}).groupby("sex"), InvalidType, "sensitive_features must be a data frame"),
            ({"sex": np.resize(SEX, 2 * N)}, InvalidInput, "has 160, expected 80; inside GridSearchCV or"),
        ],
        ids=range(13),
    )
    def test_tables_of_a_wrong_structure(self, groups, kind, words):
        refused(kind, words, groups=groups)

    @pytest.mark.parametrize(
        "groups",
        [
            {"sex": np.where(SEX == "F", "X", "M")},
            {"sex": np.where(Y, SEX, None)},
            {"sex": np.where(Y, 1.0, np.nan)},
            {"sex": np.full(N, None)},
            pd.DataFrame({"sex": pd.Series(SEX).mask(Y > 0)}),
            pd.DataFrame({"sex": pd.Categorical([None, *SEX[1:]])}),
            pl.DataFrame({"sex": [None, *SEX[1:].tolist()]}),
            {"sex": [["F"]] * N},
            {"sex": [{}, "F"] * (N // 2)},
            {"sex": SEX.astype("S")},
        ],
        ids=range(10),
    )
    def test_no_content_is_an_error(self, groups):
        accepted(groups=groups)

    @pytest.mark.parametrize("constraint", [PARITY, demographic_parity(max_gap=0.1)])
    def test_missing(self, constraint):
        refused(InvalidInput, "sensitive_features is missing.*pass", give_groups=False, constraints=constraint)

    @pytest.mark.parametrize(
        ("declared", "kind", "words"),
        [
            ({"sx": ("F", "M")}, InvalidInput, "group_values declares column 'sx'.*are 'sex'"),
            ({"sex": "FM"}, InvalidType, "'sex'.* must be a (list|collection) of values"),
            ({"sex": 2}, InvalidType, "'sex'.* must be a (list|collection) of values"),
            ({"sex": ()}, InvalidInput, "at least one value"),
            ({"sex": ("F", "F", "M")}, InvalidInput, "'F' twice"),
            ({"sex": ("F", "M", None)}, InvalidInput, "missing"),
            ({"sex": Numeric()}, (InvalidInput, InvalidType), "'sex'.*numeric"),
            ({3.5: ("F", "M")}, InvalidType, "named by text, got 3.5"),
            (["F", "M"], InvalidType, "group_values must map"),
        ],
        ids=str,
    )
    def test_declarations(self, declared, kind, words):
        refused(kind, words, group_values=declared)
        refused(kind, words, group_values=declared, classes=None)


class TestConstraints:
    female = group(sex="F")

    @pytest.mark.parametrize(
        ("constraints", "kind", "words"),
        [
            (rate(1, where=group(race="a")) <= 0.1, InvalidInput, "lacks column 'race'"),
            (rate(1, where=group(sex="X")) <= 0.1, InvalidInput, "'X' is not among.*'F', 'M'"),
            (rate(7) <= 0.1, InvalidInput, "7 is not among the classes: 0, 1"),
            (rate("1") <= 0.1, InvalidInput, r"did you mean 1 \(int\)"),
            (rate(1, where=label(3)) <= 0.1, InvalidInput, "3 is not among the classes"),
            (equal_opportunity("sex", max_gap=0.1, positive="yes"), InvalidInput, "'yes'"),
            (false_negative_rate(0.1, by="race"), InvalidInput, "lacks column 'race'"),
            ([rate(1) <= 0.2, rate(1) >= 0.3], InvalidInput, "contradict each other"),
            ([rate(0) <= 0.2, rate(1) <= 0.2], InvalidInput, "constraints contradict.*relax or drop one"),
            ([rate(1, female) <= 0.2, rate(1, ~female) <= 0.2, rate(1) >= 0.5], InvalidInput, "contradict"),
            ([PARITY, rate(1, female) <= 0.1, rate(1, ~female) >= 0.5], InvalidInput, "contradict"),
            (rate(1) <= -0.1, InvalidInput, "no classifier can meet"),
            (rate(1) >= 1.2, InvalidInput, "no classifier can meet"),
            (rate(1, where=female) + rate(0, where=female) <= 0.5, InvalidInput, "no classifier can meet"),
            (rate(1, where=female & group(sex="M")) <= 0.2, InvalidInput, "no row of the declared domain"),
            (3, InvalidType, "constraints must be"),
            ("sex", InvalidInput, "expected a constraint, this is the name 'sex'"),
            ([PARITY, 0.1], InvalidType, "constraints must be"),
            (demographic_parity, InvalidType, "constraints must be"),
            (abs(rate(1)), InvalidType, "bounds on rates.*got Magnitude abs"),
            (iter([PARITY]), InvalidType, "iterator can be read only once"),
        ],
        ids=range(21),
    )
    def test_declarations(self, constraints, kind, words):
        refused(kind, words, constraints=constraints)

    @pytest.mark.parametrize(
        "ages",
        [
            AGE.astype("datetime64[D]"),
            AGE.astype(complex),
            np.where(AGE > 50, np.inf, AGE),
            np.where(AGE > 50, np.nan, AGE),
            SEX,
        ],
        ids=range(5),
    )
    @pytest.mark.parametrize("declared", [None, {"age": Numeric()}])
    @pytest.mark.parametrize("interval", [below(30), below(5), at_least(200)])
    def test_no_content_of_a_numeric_column_is_an_error(self, ages, declared, interval):
        constraints = rate(1, where=group(age=interval)) <= 0.3
        accepted(constraints=constraints, groups={"age": ages}, group_values=declared)

    def test_an_interval_of_declared_values(self):
        refused((InvalidInput, InvalidType), "sex", constraints=rate(1, where=group(sex=below(5))) <= 0.1)

    @pytest.mark.parametrize(
        ("declare", "kind", "words"),
        [
            (lambda: demographic_parity("sex", max_gap=-0.1), InvalidInput, "max_gap must be between 0 and 1"),
            (lambda: equalized_odds("sex", max_gap="0.1"), InvalidType, "max_gap must be a number, got '0.1'"),
            (lambda: demographic_parity("sex", max_gap=np.nan), InvalidInput, "max_gap must be finite"),
            (lambda: demographic_parity("sex", max_gap=5), InvalidInput, "max_gap must be between 0 and 1, got 5: .*"),
            (lambda: equal_opportunity("sex", max_gap=1.01), InvalidInput, "max_gap must be between 0"),
            (lambda: demographic_parity(3, max_gap=0.1), InvalidType, "3"),
            (lambda: demographic_parity("sex", max_gap=0.1, versus="x"), InvalidInput, "versus must be one of"),
            (lambda: false_negative_rate(-0.2), InvalidInput, "max_rate must be"),
            (lambda: false_negative_rate("x"), InvalidType, "max_rate must be a number"),
            (lambda: rate(1) <= "x", InvalidType, "must be a number, got 'x'"),
            (lambda: rate(1) <= np.inf, InvalidInput, "finite"),
            (lambda: rate(1) * rate(0), InvalidType, "product of two rates"),
            (positive_rate, InvalidInput, "min_rate"),
            (lambda: positive_rate(min_rate=0.5, max_rate=0.4), InvalidInput, "min_rate|contradict"),
        ],
    )
    def test_declared_wrongly(self, declare, kind, words):
        with pytest.raises(kind, match=words):
            declare()


class TestConstraintsThatAlwaysHold:
    """A constraint that nothing can violate costs its share of the budget; a warning says so."""

    @staticmethod
    def heard(constraints):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = RateConstrainedClassifier(
                constraints, classes=(0, 1), group_values={"sex": ("F", "M")}, config=SHORT
            )
            model.fit(X, Y, sensitive_features={"sex": SEX})
        return [str(w.message) for w in caught if "no predictions can violate" in str(w.message)]

    @pytest.mark.parametrize(
        "constraints",
        [
            demographic_parity("sex", max_gap=1),
            rate(1) <= 1,
            [rate(1) <= 1, rate(0) >= 0],
            rate(1) <= 5,
            [PARITY, rate(1).between(-1, 0.6)],
            [PARITY, rate(1) - rate(0) <= 2],
            [PARITY, rate(0) + rate(1) <= 1.5],
            [PARITY, rate(1, where=label(1), out_of=everyone) <= 80],
        ],
        ids=range(8),
    )
    def test_are_named(self, constraints):
        (said,) = self.heard(constraints)
        assert "Drop them, or tighten them" in said

    @pytest.mark.parametrize(
        "constraints", [PARITY, rate(1).between(0, 0.3), [PARITY, rate(1) <= 1], None], ids=range(4)
    )
    def test_a_bound_at_the_end_of_the_range_is_a_way_to_say_none(self, constraints):
        assert self.heard(constraints) == []


class TestParameters:
    @pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, -np.inf])
    def test_epsilon_out_of_range(self, value):
        refused(InvalidInput, "epsilon must be .*None trains without privacy", epsilon=value)

    @pytest.mark.parametrize("value", [0, 1, 1.5, -1e-5, np.nan, np.inf])
    def test_delta_out_of_range(self, value):
        refused(InvalidInput, "delta must be", delta=value)

    def test_delta_that_lets_a_row_out(self):
        refused(InvalidInput, "delta is 0.02, above 1/n = 0.0125 for 80 rows", delta=0.02)

    @pytest.mark.parametrize("name", ["epsilon", "delta", "rows_per_id"])
    @pytest.mark.parametrize("value", ["1", [1.0], True])
    def test_no_number_where_one_is_due(self, name, value):
        refused(InvalidType, f"{name} must be a number, got", **{name: value})

    @pytest.mark.parametrize(
        "name",
        [
            *("steps", "sampling_rate", "clip", "learning_rate", "momentum", "histogram_share", "temperature"),
            *("l2", "dual_rate", "dual_damping", "spread", "certificate_share", "statistics_share", "margin"),
        ],
    )
    @pytest.mark.parametrize("value", ["1", [1.0], True])
    def test_no_number_in_the_configuration(self, name, value):
        with pytest.raises(InvalidType, match=f"{name} must be a number, got"):
            TrainingConfig(**{name: value})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"steps": 1.5}, "steps must be a whole number, got 1.5"),
            ({"steps": 0}, "steps must be at least 1"),
            ({"steps": 10**12}, "steps must be at most 10000000"),
            ({"sampling_rate": 0}, "sampling_rate must be above 0 and at most 1"),
            ({"sampling_rate": 1.01}, "sampling_rate must be above 0 and at most 1"),
            ({"clip": 0}, "clip must be above 0"),
            ({"clip": 1e-320}, "clip must lie between 1e-100 and"),
            ({"learning_rate": 0}, "learning_rate must be above 0"),
            ({"learning_rate": 1e300}, "learning_rate must lie between"),
            ({"schedule": "x"}, "schedule must be one of"),
            ({"momentum": 1}, "momentum must be at least 0 and below 1"),
            ({"histogram": "x"}, "histogram must be one of 'gaussian', 'laplace'"),
            ({"histogram": None}, "histogram must be one of 'gaussian', 'laplace'"),
            ({"histogram_share": 0}, "histogram_share must be strictly between"),
            ({"histogram_share": 1}, "histogram_share must be strictly between"),
            ({"statistics_share": 0.8}, "training needs the rest"),
            ({"temperature": 0}, "temperature must be above 0"),
            ({"rates": "x"}, "rates must be one of 'hard', 'soft'"),
            ({"l2": -1}, "l2 must be at least 0"),
            ({"margin": -1}, "margin must be at least 0"),
            ({"dual_rate": -1}, "dual_rate must be at least 0"),
        ],
        ids=str,
    )
    def test_a_configuration_out_of_range(self, changes, words):
        with pytest.raises(InvalidInput, match=words):
            TrainingConfig(**changes)

    @pytest.mark.parametrize(
        ("changes", "kind", "words"),
        [
            ({"neighbours": "x"}, InvalidInput, "neighbours must be one of"),
            ({"model": "forest"}, InvalidInput, "model must be one of 'additive', 'linear'"),
            ({"config": {"steps": 3}}, InvalidType, "config must be a TrainingConfig or None, got dict"),
            ({"rows_per_id": 0}, InvalidInput, "rows_per_id must be at least 1"),
            ({"id_weighting": "x"}, InvalidInput, "id_weighting must be one of 'id', 'row'"),
            ({"schema": "schema.json"}, InvalidType, "schema must be a Schema or None, got str"),
            ({"data_name": ""}, InvalidInput, "data_name must not be empty"),
            ({"data_name": 5}, InvalidType, "data_name must be text"),
            ({"callback": 5}, InvalidType, "callback must be a function"),
            ({"verbose": "x"}, InvalidType, "verbose must be"),
            ({"verbose": -3}, InvalidInput, "verbose must be at least 0, got -3"),
            ({"random_state": "x"}, InvalidType, "random_state must be a whole number"),
            ({"random_state": 1.5}, InvalidType, "random_state must be a whole number"),
            ({"random_state": -1}, InvalidInput, "random_state must be a whole number of at least 0"),
            ({"classes": 3}, InvalidType, "classes must be a (list|collection)"),
            ({"classes": "ab"}, InvalidType, "classes must be a (list|collection)"),
            ({"classes": {0: 1.0, 1: 2.0}}, InvalidType, "classes must be a (list|collection)"),
            ({"delta": 5e-324}, InvalidInput, "delta must be at least 1e-300"),
            ({"classes": (0,)}, InvalidInput, "at least two"),
            ({"classes": (0, 0, 1)}, InvalidInput, "0 twice"),
            ({"classes": (0, 1, None)}, InvalidInput, "missing"),
            ({"ledger": "book.json"}, InvalidType, "ledger must be a Ledger or None, got str"),
            ({"ledger": Ledger(neighbours="replace_one")}, InvalidInput, "one relation for both"),
        ],
        ids=str,
    )
    def test_out_of_range(self, changes, kind, words):
        refused(kind, words, **changes)

    def test_one_plan_beyond_the_cap_of_the_ledger(self):
        ledger = Ledger(cap=Budget(0.5, 1e-5))
        model = RateConstrainedClassifier(PARITY, classes=(0, 1), ledger=ledger, config=SHORT)
        with pytest.raises(BudgetExceeded, match=r"0\.5"):
            model.fit(X, Y, sensitive_features={"sex": SEX})
        assert ledger.records == ()

    @pytest.mark.parametrize("ids", [SEX[:-1], np.column_stack([SEX, SEX]), 3, "person"])
    def test_privacy_ids(self, ids):
        model = RateConstrainedClassifier(classes=(0, 1), config=SHORT)
        with pytest.raises((InvalidInput, InvalidType), match="privacy_ids"):
            model.fit(X, Y, privacy_ids=ids)

    def test_iterators(self):
        words = "must be a list or tuple: an iterator can be read only once"
        refused(InvalidType, f"classes {words}", classes=iter([0, 1]))
        refused(InvalidType, f"group_values {words}", group_values={"sex": iter("FM")})

    @pytest.mark.parametrize(
        "bounds", [3, (1, 0), ("a", "b"), (0, np.nan), (0, np.inf), ([0, 0], [1, 1]), (0, 1, 2), "ab"]
    )
    def test_feature_bounds(self, bounds):
        refused(InvalidInput, r"feature_bounds must be a pair \(lower, upper\)", feature_bounds=bounds)

    def test_feature_bounds_too_far_apart(self):
        refused(InvalidInput, "too far apart", feature_bounds=(-1e308, 1e308))

    @pytest.mark.parametrize(
        ("bounds", "words"),
        [
            ({"z": (0, 1)}, "feature_bounds names 'z', which is no column of X; its columns are .*'a'"),
            ({"a": (1, 0)}, r"feature_bounds\['a'\] must be finite with lower at most upper"),
            ({"a": (0, np.inf)}, r"feature_bounds\['a'\] must be finite"),
            ({"a": "text"}, r"feature_bounds\['a'\] must be \(lower, upper\) or a list of values"),
            ({"a": []}, r"feature_bounds\['a'\] must be \(lower, upper\) or a list of values"),
            ({"a": ["u", "u"]}, r"feature_bounds\['a'\].*'u' twice"),
            ({"a": ["u", None]}, r"feature_bounds\['a'\].*missing"),
        ],
        ids=str,
    )
    def test_feature_bounds_by_column(self, bounds, words):
        refused(InvalidInput, words, features=pd.DataFrame(X, columns=list("abc")), feature_bounds=bounds)

    def test_what_is_planned_is_refused_alike(self):
        model = RateConstrainedClassifier(classes=(0, 1), config=SHORT, feature_bounds=(1, 0))
        with pytest.raises(InvalidInput, match="feature_bounds must"):
            model.planned_events(X, Y)

    def test_laplace_counts_of_replaced_rows(self):
        refused(
            UnsupportedCombination,
            "use histogram='gaussian', or neighbours='add_or_remove'",
            config=TrainingConfig(histogram="laplace", steps=3),
            neighbours="replace_one",
            ledger=None,
        )

    def test_an_error_of_ours_is_one_of_ours(self):
        for kind in (InvalidInput, InvalidType, UnsupportedCombination):
            assert issubclass(kind, RatewiseError)


def fitted(**changes):
    facts = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}, "config": SHORT}
    model = RateConstrainedClassifier(PARITY, **{**facts, **changes})
    return model.fit(pd.DataFrame(X, columns=list("abc")), Y, sensitive_features={"sex": SEX})


class TestRefits:
    """A fit that is refused leaves an earlier model as it was, to the last attribute."""

    @pytest.mark.parametrize(
        ("changes", "features", "labels", "groups"),
        [
            ({}, pd.DataFrame(X[:, :2], columns=["u", "v"]), Y, {"sex": SEX[:-1]}),
            ({}, X[:, :2], Y[:-1], {"sex": SEX}),
            ({}, X[:, 0], Y, {"sex": SEX}),
            ({"constraints": rate(7) <= 0.1}, X[:, :2], Y, {"sex": SEX}),
            ({"constraints": [rate(0) <= 0.2, rate(1) <= 0.2]}, X[:, :2], Y, {"sex": SEX}),
            ({"feature_bounds": (1, 0)}, X[:, :2], Y, {"sex": SEX}),
            ({"random_state": -1}, X[:, :2], Y, {"sex": SEX}),
            ({"epsilon": -1}, X[:, :2], Y, {"sex": SEX}),
            ({"ledger": Ledger(cap=Budget(0.5, 1e-5))}, X[:, :2], Y, {"sex": SEX}),
        ],
        ids=range(9),
    )
    def test_nothing_is_half_written(self, changes, features, labels, groups):
        model = fitted()
        before, predicted = dict(vars(model)), model.predict(pd.DataFrame(X, columns=list("abc")))
        with pytest.raises(RatewiseError):
            model.set_params(**changes).fit(features, labels, sensitive_features=groups)
        model.set_params(**{name: before[name] for name in changes})
        after = vars(model)
        assert after.keys() == before.keys()
        assert all(after[name] is before[name] for name in before)
        np.testing.assert_array_equal(model.predict(pd.DataFrame(X, columns=list("abc"))), predicted)

    def test_a_refit_without_names_forgets_them(self):
        model = fitted()
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        model.fit(X[:, :2], Y, sensitive_features={"sex": SEX})
        assert model.n_features_in_ == 2
        assert not hasattr(model, "feature_names_in_")

    def test_looking_ahead_writes_nothing(self):
        model = fitted()
        before = dict(vars(model))
        model.planned_events(X[:, :2], Y, sensitive_features={"sex": SEX})
        assert vars(model) == before


class TestFewRows:
    @pytest.mark.parametrize("epsilon", [1.0, None])
    @pytest.mark.parametrize("n", [1, 2, 3, 20])
    @pytest.mark.parametrize("rate", [None, 1.0, 0.001])
    def test_few_rows_make_small_or_empty_samples(self, n, epsilon, rate):
        model = RateConstrainedClassifier(
            PARITY,
            epsilon=epsilon,
            classes=(0, 1),
            group_values={"sex": ("F", "M")},
            config=TrainingConfig(sampling_rate=rate, steps=20),
        )
        model.fit(X[:n], np.resize([0, 1], n), sensitive_features=SEX[:n])
        assert np.all(np.isfinite(model.predict_proba(X)))
        assert model.n_iter_ == 20


# ------------------------------------------------------------------------------------------ fuzz

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64), st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, 1e-8])
)
labels = st.one_of(
    st.sampled_from([0, 1, 2]), st.sampled_from(["a", "b", ""]), st.booleans(), st.sampled_from([None, 0.5, "a", 1])
)
groups = st.one_of(st.sampled_from(["F", "M"]), st.integers(0, 2), st.booleans(), st.none(), st.floats())
families = st.sampled_from(
    [
        None,
        PARITY,
        demographic_parity(max_gap=0.0),
        equalized_odds("sex", max_gap=0.05),
        rate(1) <= 0.3,
        rate("a", where=label("b")) <= 0.5,
        rate(1, where=group(sex=below(1))) >= 0.1,
        precision(min_rate=0.6),
        [PARITY, positive_rate(min_rate=0.2, max_rate=0.4)],
    ]
)


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    wild = draw(st.booleans())
    value = numbers if wild else st.floats(-5, 5)
    features = np.array([[draw(value) for _ in range(d)] for _ in range(n)])
    kind = draw(st.sampled_from([labels, st.integers(0, 1), st.sampled_from("ab")]))
    truth = [draw(kind) for _ in range(n)]
    kind = draw(st.sampled_from([groups, st.sampled_from("FM"), st.integers(0, 1)]))
    table = {"sex": [draw(kind) for _ in range(n)]}
    form = draw(st.sampled_from([np.array, scipy.sparse.csr_array, pd.DataFrame, np.float32]))
    parameters = {
        "constraints": draw(families),
        "epsilon": draw(st.sampled_from([None, 0.1, 1.0, 50.0])),
        "classes": draw(st.sampled_from([None, (0, 1), ("a", "b"), (0, 1, 2)])),
        "model": draw(st.sampled_from(["additive", "linear"])),
        "feature_bounds": draw(st.sampled_from([None, (-1, 1), (0, 0.5)])),
        "config": TrainingConfig(
            steps=draw(st.integers(1, 5)),
            sampling_rate=draw(st.sampled_from([None, 0.01, 1.0])),
            rates=draw(st.sampled_from(["hard", "soft"])),
            l2=draw(st.sampled_from([None, 0.0, 0.1])),
        ),
        "random_state": draw(st.integers(0, 5)),
    }
    with np.errstate(over="ignore"):
        features = form(features)
    return features, truth, table, parameters


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
@pytest.mark.filterwarnings("ignore::ratewise.RatewiseWarning")
def test_a_finite_model_or_a_clear_error(problem):
    features, truth, table, parameters = problem
    ledger = Ledger()
    model = RateConstrainedClassifier(**parameters, ledger=ledger)
    try:
        model.fit(features, truth, sensitive_features=table)
    except RatewiseError:
        assert ledger.records == ()
        return
    chances = model.predict_proba(features)
    assert np.all((chances >= 0) & (chances <= 1))
    assert set(model.predict(features)) <= set(model.classes_.tolist())


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (rate(1, where=group(sex=1)) - rate(1, where=group(sex="1")) <= 0.1, "values of column 'sex' in constraints"),
        ((rate(1) - rate("1")).between(-0.5, 0.5), "classes in constraints"),
    ],
)
def test_named_values_that_cells_cannot_tell_apart_are_refused_before_a_release(constraint, message):
    ledger = Ledger()
    with pytest.raises(InvalidInput, match=f"{message} must hold each value once"):
        RateConstrainedClassifier(constraint, ledger=ledger).fit(
            np.arange(40.0)[:, None], np.arange(40) % 2, sensitive_features={"sex": np.arange(40) % 3}
        )
    assert ledger.records == ()
