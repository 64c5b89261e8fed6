"""Whatever is wrong with the input is said once, clearly, and before any privacy is spent."""

import datetime
import decimal
import enum
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
    InvalidInput,
    InvalidType,
    Ledger,
    Numeric,
    RateConstrainedClassifier,
    RatewiseError,
    RatewiseWarning,
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
from ratewise.drowning import noise_share

N = 80
RNG = np.random.default_rng(4)
SEX = np.resize(["F", "M"], N)
X = RNG.normal(size=(N, 3))
Y = np.resize([0, 1, 1], N)
AGE = np.resize(np.arange(20, 60), N)
PARITY = demographic_parity("sex", max_gap=0.1)

small = pytest.mark.filterwarnings("ignore::ratewise.SmallGroupWarning")
pytestmark = small


class Colour(enum.Enum):
    RED, BLUE = 0, 1


class Word(enum.StrEnum):
    A, B = "a", "b"


def with_entry(value, kind=float):
    changed = X.astype(kind)
    changed[7, 1] = value
    return changed


def refused(
    kind, match, *, features=X, labels=Y, groups=None, constraints=PARITY, give_groups=True, **changes
):
    """Fit, expect one error of this kind, and find the ledger empty."""
    ledger = Ledger()
    parameters = {
        "classes": (0, 1),
        "group_values": {"sex": ("F", "M")},
        "ledger": ledger,
        "steps": 3,
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
    assert not hasattr(model, "coef_")
    assert not hasattr(model, "ledger_")
    assert isinstance(caught.value, ValueError | TypeError)
    return str(caught.value)


def test_the_data_are_fine_as_they_are():
    """Every refusal below has a reason of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            refused(Exception, "no error comes")


class TestRows:
    @pytest.mark.parametrize(
        ("features", "kind", "words"),
        [
            (with_entry(np.nan), InvalidInput, "X contains NaN.*impute or drop"),
            (with_entry(np.inf), InvalidInput, "X contains infinity.*clip or drop"),
            (with_entry(-np.inf, np.float32), InvalidInput, "X contains infinity"),
            (scipy.sparse.csr_array(with_entry(np.nan)), InvalidInput, "NaN"),
            (scipy.sparse.csc_array(with_entry(np.inf)), InvalidInput, "infinity"),
            (pd.DataFrame(X).mask(X > 2), InvalidInput, "X contains NaN"),
            (pl.DataFrame(X).with_columns(column_0=pl.lit(None)), InvalidInput, "NaN or None"),
            (with_entry(None, object), InvalidInput, "NaN or None"),
            (with_entry("secret", object), InvalidInput, "X holds text; encode such columns"),
            (np.full((N, 2), "secret"), InvalidInput, "X holds text; encode such columns"),
            (with_entry("7", object), InvalidInput, r"X holds text.*astype\(float\)"),
            (X.astype(str), InvalidInput, "X holds text"),
            (X.astype("S"), InvalidInput, "X holds text"),
            (X.astype(str).tolist(), InvalidInput, "X holds text"),
            ([[1.0, "2"]] * N, InvalidInput, "X holds text"),
            (pd.DataFrame(X).assign(day="7"), InvalidInput, "X holds text"),
            (pd.DataFrame(X).assign(day=pd.Categorical(["7"] * N)), InvalidInput, "X holds text"),
            (pd.DataFrame(X).astype("string"), InvalidInput, "X holds text"),
            (pl.DataFrame(X).with_columns(day=pl.lit("7")), InvalidInput, "X holds text"),
            (pyarrow.table({"day": ["7"] * N}), InvalidInput, "X holds text"),
            (pd.Series(X[:, 0]), InvalidInput, "two dimensions"),
            (pd.DataFrame(X, columns=["a", "a", "b"]), InvalidInput, "X has two columns named 'a'"),
            (np.ma.array(X, mask=X > 2), InvalidInput, "X has masked entries"),
            ([[10**400, 1]] * N, InvalidInput, "number too large for its type"),
            (X.astype(complex), InvalidInput, "Complex data not supported"),
            (X[:, 0], InvalidInput, "two dimensions"),
            (X[:, :, None], InvalidInput, "two dimensions"),
            (X[:, :0], InvalidInput, "X does not fit: .*0 feature"),
            (X[:0], InvalidInput, "X does not fit: .*0 sample"),
            (pl.DataFrame(X).lazy(), InvalidType, "lazy frame; call .collect"),
            (None, InvalidInput, "two dimensions"),
            ({"a": [1.0] * N}, InvalidType, "X must be an array.*got dict"),
            ({1.0, 2.0}, InvalidType, "got set"),
            (X.astype("datetime64[s]"), InvalidType, "dates or times; turn them into numbers"),
            (pd.DataFrame(X).assign(day=pd.Timestamp(0)), InvalidType, "dates or times"),
            (pl.DataFrame(X).with_columns(day=pl.lit(0).cast(pl.Datetime)), InvalidType, "dates or times"),
            (X.astype("timedelta64[s]"), InvalidType, "dates or times"),
            ([[1.0, 2.0], [3.0]] * (N // 2), InvalidInput, "as many entries in every row"),
            (iter([1]), InvalidType, "entries that are no numbers"),
            (object(), InvalidType, "entries that are no numbers"),
            (X.astype(np.longdouble) * np.longdouble("1e4000"), InvalidInput, "infinity"),
            ("X", InvalidType, "X must be an array.*got str"),
        ],
    )
    def test_features(self, features, kind, words):
        message = refused(kind, words, features=features)
        assert "secret" not in message
        assert not re.search(r"\d\.\d{4}", message)  # no values of rows

    @pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
    def test_a_matrix_of_old(self):
        refused(InvalidType, "np.matrix", features=np.matrix(X))

    @pytest.mark.parametrize(
        ("labels", "kind", "words"),
        [
            (Y[:-1], InvalidInput, "inconsistent numbers of samples"),
            (np.append(Y, 1), InvalidInput, "inconsistent numbers of samples"),
            (np.zeros(N, int), InvalidInput, "one class only"),
            (np.where(Y, np.nan, 0.0), InvalidInput, "y holds missing values"),
            (np.where(Y, np.inf, 0.0), InvalidInput, "y holds infinity"),
            (np.where(Y, None, 0), InvalidInput, "y holds missing values"),
            (np.where(Y, "a", None), InvalidInput, "y holds missing values"),
            (["a", float("nan")] * (N // 2), InvalidInput, "y holds missing values"),
            (["a", None] * (N // 2), InvalidInput, "y holds missing values"),
            (["a", 1] * (N // 2), InvalidType, "y mixes labels"),
            (X[:, 0], InvalidInput, "Unknown label type: .* cut them into classes"),
            (np.column_stack([Y, Y]), InvalidType, "y must be a vector"),
            ([[0, 1], [1]] * (N // 2), InvalidType, "y holds entries that are no scalars"),
            ("y", InvalidType, "y must be a vector"),
            (3, InvalidType, "y must be a vector"),
            ({"y": Y}, InvalidType, "y must be a vector"),
            (Y.astype(complex), InvalidType, "Unknown label type"),
            (Y.astype("datetime64[D]"), InvalidType, "Unknown label type: y holds dates or times; use"),
            (pd.Series(Y.astype("datetime64[ns]")), InvalidType, "y holds dates or times"),
            ([datetime.date(2020, 1, int(k) + 1) for k in Y], InvalidType, "y holds date; use whole numbers"),
            (Y.astype("timedelta64[D]"), InvalidType, "y holds dates or times"),
            (Y.astype("S"), InvalidType, "Unknown label type"),
            ([decimal.Decimal(int(k)) for k in Y], InvalidType, "y holds Decimal; use whole numbers or text"),
            (Y * 1e300, InvalidInput, "numbers beyond 64 bits"),
            ([10**30 + int(k) for k in Y], InvalidType, "whole numbers beyond 64 bits"),
            ([Colour(int(k)) for k in Y], InvalidType, "y holds Colour; use whole numbers or text"),
            ([Word("ab"[k]) for k in Y], InvalidType, "y holds Word; use whole numbers or text"),
            (np.ma.array(Y, mask=Y > 0), InvalidInput, "y holds missing values"),
            (pd.Series(pd.Categorical(np.where(Y, "a", None))), InvalidInput, "y holds missing values"),
            (pd.Series(Y, dtype="Int64").mask(Y > 0), InvalidInput, "y holds missing values"),
            (pl.Series(np.where(Y, None, 0)), InvalidInput, "y holds missing values"),
            (np.where(Y, "a", "b"), InvalidInput, "declared are 0, 1"),
            (np.array(["a", 1] * (N // 2), dtype=object), InvalidType, "y mixes labels"),
            (None, InvalidInput, "requires y"),
            (np.where(Y, 2, 0), InvalidInput, "declared are 0, 1"),
        ],
    )
    def test_labels(self, labels, kind, words):
        refused(kind, words, labels=labels)

    @pytest.mark.parametrize("classes", [None, (0, 1)])
    def test_one_class_only(self, classes):
        for labels in (np.ones(N, int), np.zeros(N, int)):
            refused(InvalidInput, "one class only; a classifier needs", labels=labels, classes=classes)

    def test_a_declared_class_without_a_row(self):
        refused(InvalidInput, "no row of y has the declared class 2; leave it out", classes=(0, 1, 2))

    def test_a_declared_group_without_a_row(self):
        refused(
            InvalidInput,
            "no row is in 'sex=X', which a constraint is about; drop",
            group_values={"sex": ("F", "M", "X")},
        )


class TestGroups:
    @pytest.mark.parametrize(
        ("groups", "kind", "words"),
        [
            ({"sex": SEX[:-1]}, InvalidInput, "column 'sex' has 79, expected 80"),
            ({"gender": SEX}, InvalidInput, "lacks column 'sex'.*its columns are 'gender'"),
            ({}, InvalidInput, "lacks column 'sex'"),
            ({"sex": np.where(SEX == "F", "X", "M")}, InvalidInput, "'sex'.*declared are 'F', 'M'"),
            ({"sex": np.where(Y, SEX, None)}, InvalidInput, "missing values in column 'sex'; drop those"),
            ({"sex": np.where(Y, 1.0, np.nan)}, InvalidInput, "missing values in column 'sex'"),
            (pd.DataFrame({"sex": pd.Series(SEX).mask(Y > 0)}), InvalidInput, "missing values"),
            (pd.DataFrame({"sex": pd.Categorical([None, *SEX[1:]])}), InvalidInput, "missing values"),
            (pl.DataFrame({"sex": [None, *SEX[1:].tolist()]}), InvalidInput, "missing values"),
            (pl.DataFrame({"sex": SEX}).lazy(), InvalidType, "sensitive_features is a lazy frame"),
            (pd.DataFrame(np.array([SEX, SEX]).T, columns=["sex", "sex"]), InvalidInput, "two columns"),
            (np.column_stack([SEX, SEX]), InvalidInput, "2 columns without names"),
            ("sex", InvalidType, "sensitive_features must be a data frame"),
            (3, InvalidType, "sensitive_features must be a data frame"),
            ({"sex": "F"}, InvalidType, "'sex' of sensitive_features must be a vector"),
            ({"sex": [["F"]] * N}, InvalidType, "column 'sex' .*no scalars.*a group is one text or number"),
            (
                pd.DataFrame({"sex": SEX}).groupby("sex"),
                InvalidType,
                "sensitive_features must be a data frame",
            ),
            ({"sex": np.resize(SEX, 2 * N)}, InvalidInput, "has 160, expected 80; inside GridSearchCV or"),
        ],
        ids=range(18),
    )
    def test_tables(self, groups, kind, words):
        refused(kind, words, groups=groups)

    @pytest.mark.parametrize("constraint", [PARITY, demographic_parity(max_gap=0.1)])
    def test_missing(self, constraint):
        refused(
            InvalidInput, "sensitive_features is missing.*pass it", give_groups=False, constraints=constraint
        )

    @pytest.mark.parametrize(
        ("declared", "kind", "words"),
        [
            ({"sx": ("F", "M")}, InvalidInput, "group_values declares column 'sx'.*are 'sex'"),
            ({"sex": "FM"}, InvalidType, "'sex' must be a collection"),
            ({"sex": 2}, InvalidType, "'sex' must be a collection"),
            ({"sex": ()}, InvalidInput, "at least one value"),
            ({"sex": (0, 1)}, InvalidInput, "data are text and the declared values are not"),
            ({"sex": ("F", "F", "M")}, InvalidInput, "'F' twice"),
            ({"sex": ("F", "M", None)}, InvalidInput, "missing"),
            ({"sex": Numeric()}, (InvalidInput, InvalidType), "'sex'.*numeric"),
            (["F", "M"], InvalidType, "group_values must map"),
        ],
        ids=str,
    )
    def test_declarations(self, declared, kind, words):
        refused(kind, words, group_values=declared)


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
            ([rate(0) <= 0.2, rate(1) <= 0.2], InvalidInput, "limits contradict.*relax or drop one"),
            ([rate(1, female) <= 0.2, rate(1, ~female) <= 0.2, rate(1) >= 0.5], InvalidInput, "contradict"),
            ([PARITY, rate(1, female) <= 0.1, rate(1, ~female) >= 0.5], InvalidInput, "contradict"),
            (rate(1) <= -0.1, InvalidInput, "no classifier can meet"),
            (rate(1) >= 1.2, InvalidInput, "no classifier can meet"),
            (rate(1, where=female) + rate(0, where=female) <= 0.5, InvalidInput, "no classifier can meet"),
            (rate(1, where=female & group(sex="M")) <= 0.2, InvalidInput, "no row of the declared domain"),
            (3, InvalidType, "constraints must be"),
            ("sex", InvalidType, "constraints must be"),
            ([PARITY, 0.1], InvalidType, "constraints must be"),
            (demographic_parity, InvalidType, "constraints must be"),
            (abs(rate(1)), InvalidType, "constraints must be bounds, got abs"),
            (iter([PARITY]), InvalidType, "iterator can be read only once"),
        ],
        ids=range(21),
    )
    def test_declarations(self, constraints, kind, words):
        refused(kind, words, constraints=constraints)

    @pytest.mark.parametrize("interval", [below(5), at_least(200)])
    def test_an_empty_subset_of_rows(self, interval):
        refused(
            InvalidInput,
            "no row is in 'age.*drop that constraint",
            constraints=rate(1, where=group(age=interval)) <= 0.1,
            groups={"age": AGE},
            group_values=None,
        )

    @pytest.mark.parametrize(
        ("ages", "kind", "words"),
        [
            (AGE.astype(str), InvalidType, "'age' is numeric.*no numbers; convert it first"),
            (AGE.astype(str).astype(object), InvalidType, "'age' is numeric.*no numbers"),
            (pd.Series(AGE).astype("string"), InvalidType, "'age' is numeric.*no numbers"),
            (AGE.astype("datetime64[D]"), InvalidType, "'age' is numeric.*no numbers"),
            (AGE.astype(complex), InvalidType, "'age' is numeric.*no numbers"),
            (np.where(AGE > 50, np.inf, AGE), InvalidInput, "'age' holds missing values .NaN. or infinity"),
            (np.where(AGE > 50, np.nan, AGE), InvalidInput, "missing values in column 'age'"),
        ],
        ids=range(7),
    )
    @pytest.mark.parametrize("declared", [None, {"age": Numeric()}])
    def test_a_numeric_column_holds_numbers(self, ages, kind, words, declared):
        constraints = rate(1, where=group(age=below(30))) <= 0.3
        refused(kind, words, constraints=constraints, groups={"age": ages}, group_values=declared)

    def test_an_interval_of_text(self):
        refused(
            (InvalidInput, InvalidType),
            "sex",
            constraints=rate(1, where=group(sex=below(5))) <= 0.1,
            group_values=None,
        )

    @pytest.mark.parametrize(
        ("declare", "kind", "words"),
        [
            (lambda: demographic_parity("sex", max_gap=-0.1), InvalidInput, "max_gap must be at least 0"),
            (
                lambda: equalized_odds("sex", max_gap="0.1"),
                InvalidType,
                "max_gap must be a number, got '0.1'",
            ),
            (lambda: demographic_parity("sex", max_gap=np.nan), InvalidInput, "max_gap must be finite"),
            (
                lambda: demographic_parity("sex", max_gap=5),
                InvalidInput,
                "max_gap must be at most 1, got 5: .*",
            ),
            (lambda: equal_opportunity("sex", max_gap=1.01), InvalidInput, "max_gap must be at most 1"),
            (lambda: demographic_parity(3, max_gap=0.1), InvalidType, "3"),
            (
                lambda: demographic_parity("sex", max_gap=0.1, versus="x"),
                InvalidInput,
                "versus must be one of",
            ),
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


class TestIdleLimits:
    """A limit that nothing can break is paid for like any other; whoever writes one hears of it."""

    @staticmethod
    def heard(constraints):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = RateConstrainedClassifier(
                constraints, classes=(0, 1), group_values={"sex": ("F", "M")}, steps=2
            )
            model.fit(X, Y, sensitive_features={"sex": SEX})
        return [str(w.message) for w in caught if "no predictions can break" in str(w.message)]

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
        "constraints",
        [PARITY, rate(1).between(0, 0.3), [PARITY, rate(1) <= 1], None],
        ids=range(4),
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

    @pytest.mark.parametrize(
        "name",
        [
            *("epsilon", "delta", "steps", "sampling_rate", "clip", "row_norm", "learning_rate", "momentum"),
            *("histogram_share", "temperature", "l1", "l2"),
        ],
    )
    @pytest.mark.parametrize("value", ["1", [1.0], True])
    def test_no_number_where_one_is_due(self, name, value):
        refused(InvalidType, f"{name} must be a number, got", **{name: value})

    @pytest.mark.parametrize(
        ("changes", "kind", "words"),
        [
            ({"steps": 1.5}, InvalidInput, "steps must be a whole number, got 1.5"),
            ({"steps": 0}, InvalidInput, "steps must be at least 1"),
            ({"sampling_rate": 0}, InvalidInput, "sampling_rate must be above 0 and at most 1"),
            ({"sampling_rate": 1.01}, InvalidInput, "sampling_rate must be above 0 and at most 1"),
            ({"clip": 0}, InvalidInput, "clip must be above 0"),
            ({"clip": None}, UnsupportedCombination, "clip is None, but epsilon is 1.0"),
            ({"clip": "large"}, InvalidType, "clip must be a number"),
            ({"row_norm": -1}, InvalidInput, "row_norm must be above 0"),
            ({"learning_rate": 0}, InvalidInput, "learning_rate must be above 0"),
            ({"schedule": "x"}, InvalidInput, "schedule must be one of"),
            ({"momentum": 1}, InvalidInput, "momentum must be at least 0 and below 1"),
            ({"averaging": "x"}, InvalidInput, "averaging must be one of"),
            ({"dual": {"rate": 1}}, InvalidType, "dual must be a DualControl"),
            ({"histogram": "x"}, InvalidInput, "histogram must be one of 'gaussian', 'laplace'"),
            ({"histogram": None}, InvalidInput, "histogram must be one of 'gaussian', 'laplace'"),
            ({"histogram": "x", "epsilon": None}, InvalidInput, "histogram must be one of"),
            (
                {"histogram": "laplace", "neighbours": "replace_one", "ledger": None},
                UnsupportedCombination,
                "use histogram='gaussian', or neighbours='add_or_remove'",
            ),
            ({"histogram_share": 0}, InvalidInput, "histogram_share must be strictly between"),
            ({"histogram_share": 1}, InvalidInput, "histogram_share must be strictly between"),
            ({"temperature": 0}, InvalidInput, "temperature must be above 0"),
            ({"rates": "x"}, InvalidInput, "rates must be one of 'hard', 'soft'"),
            ({"l1": -1}, InvalidInput, "l1 must be at least 0"),
            ({"l2": -1}, InvalidInput, "l2 must be at least 0"),
            ({"l2": 1e300}, InvalidInput, "their product must be at most 3"),
            ({"fit_intercept": "no"}, InvalidType, "fit_intercept must be True or False"),
            ({"neighbours": "x"}, InvalidInput, "neighbours must be one of"),
            ({"data_name": ""}, InvalidInput, "data_name must not be empty"),
            ({"data_name": 5}, InvalidType, "data_name must be text"),
            ({"unit": ""}, InvalidInput, "unit must not be empty"),
            ({"unit": 5}, InvalidType, "unit must be text"),
            ({"callback": 5}, InvalidType, "callback must be a function"),
            ({"verbose": "x"}, InvalidType, "verbose must be"),
            ({"verbose": -3}, InvalidInput, "verbose must be at least 0, got -3"),
            ({"fit_intercept": 5}, InvalidType, "fit_intercept must be True or False, got 5"),
            ({"clip": 1e-320}, InvalidInput, "clip must lie between 1e-100 and"),
            ({"learning_rate": 1e300}, InvalidInput, "learning_rate must lie between"),
            ({"feature_bounds": (0, 0)}, InvalidInput, "equal lower and upper bounds for every feature"),
            ({"random_state": "x"}, InvalidType, "random_state must be a whole number"),
            ({"random_state": 1.5}, InvalidType, "random_state must be a whole number"),
            ({"random_state": -1}, InvalidInput, "random_state must be a whole number of at least 0"),
            ({"classes": 3}, InvalidType, "classes must be a collection"),
            ({"classes": "ab"}, InvalidType, "classes must be a collection"),
            ({"classes": {0: 1.0, 1: 2.0}}, InvalidType, "classes must be a collection"),
            ({"classes": ("0", "1")}, InvalidInput, "data are numbers and the declared values text"),
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

    def test_iterators(self):
        words = "must be a list or tuple: an iterator can be read only once"
        refused(InvalidType, f"classes {words}", classes=iter([0, 1]))
        refused(InvalidType, f"group_values {words}", group_values={"sex": iter("FM")})

    @pytest.mark.parametrize(
        "bounds", [3, (1, 0), ("a", "b"), (0, np.nan), (0, np.inf), ([0, 0], [1, 1]), (0, 1, 2), {"a": 1}]
    )
    def test_feature_bounds(self, bounds):
        refused(InvalidInput, r"feature_bounds must be a pair \(lower, upper\)", feature_bounds=bounds)

    @pytest.mark.parametrize(
        "kinds",
        [
            3,
            "abc",
            b"abc",
            ["a", "b"],
            ["a", "b", "c", "d"],
            [],
            iter("abc"),
            np.array("abc"),
            np.ones((3, 2)),
            {"a": 1, "b": 1, "c": 2},
            {"a", "b", "c"},
            ["a", "a", None],
            ["a", "a", np.nan],
            pd.Series(["a", "a", pd.NA]),
            [["a"], ["a"], ["b"]],
            [1j, 1, 2],
        ],
        ids=range(16),
    )
    def test_feature_kinds(self, kinds):
        words = "feature_kinds must list the kind of each of 3 features, a name or a number, got .*; leave"
        refused(InvalidInput, words, feature_kinds=kinds)
        refused(InvalidInput, words, feature_kinds=kinds, feature_bounds=(-9, 9))

    @pytest.mark.parametrize("changes", [{"feature_kinds": ["a"]}, {"feature_bounds": (1, 0)}])
    def test_what_is_planned_is_refused_alike(self, changes):
        model = RateConstrainedClassifier(classes=(0, 1), steps=3, **changes)
        with pytest.raises(InvalidInput, match=f"{next(iter(changes))} must"):
            model.planned_events(X, Y)

    def test_bounds_of_sparse_features_include_zero(self):
        refused(
            UnsupportedCombination, "include 0", features=scipy.sparse.csr_array(X), feature_bounds=(1, 2)
        )

    def test_an_error_of_ours_is_one_of_ours(self):
        for kind in (InvalidInput, InvalidType, UnsupportedCombination):
            assert issubclass(kind, RatewiseError)


def fitted(**changes):
    facts = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}, "steps": 3}
    model = RateConstrainedClassifier(PARITY, **{**facts, **changes})
    return model.fit(pd.DataFrame(X, columns=list("abc")), Y, sensitive_features={"sex": SEX})


class TestRefits:
    """A fit that is refused leaves an earlier model as it was, to the last attribute."""

    @pytest.mark.parametrize(
        ("changes", "features", "labels", "groups"),
        [
            ({}, pd.DataFrame(X[:, :2], columns=["u", "v"]), Y, {"sex": np.where(Y, SEX, None)}),
            ({}, X[:, :2], np.zeros(N, int), {"sex": SEX}),
            ({}, with_entry(np.nan), Y, {"sex": SEX}),
            ({"constraints": rate(7) <= 0.1}, X[:, :2], Y, {"sex": SEX}),
            ({"constraints": [rate(0) <= 0.2, rate(1) <= 0.2]}, X[:, :2], Y, {"sex": SEX}),
            ({"feature_bounds": (1, 0)}, X[:, :2], Y, {"sex": SEX}),
            ({"feature_kinds": ["a"] * 3}, X[:, :2], Y, {"sex": SEX}),
            ({"random_state": -1}, X[:, :2], Y, {"sex": SEX}),
            ({"momentum": 2}, X[:, :2], Y, {"sex": SEX}),
            ({"ledger": Ledger(cap=Budget(0.5, 1e-5))}, X[:, :2], Y, {"sex": SEX}),
        ],
        ids=range(10),
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
    @pytest.mark.parametrize("n", [2, 3, 5, 20])
    @pytest.mark.parametrize("rate", [None, 1.0, 0.001])
    @pytest.mark.filterwarnings("ignore:.*rows are too few:ratewise.RatewiseWarning")
    def test_batches_are_never_larger_than_the_rows(self, n, epsilon, rate):
        """A share of the rows is asked for, so few rows make small batches, or empty ones."""
        model = RateConstrainedClassifier(
            PARITY,
            epsilon=epsilon,
            classes=(0, 1),
            group_values={"sex": ("F", "M")},
            sampling_rate=rate,
            steps=20,
        )
        model.fit(X[:n], np.resize([0, 1], n), sensitive_features=SEX[:n])
        assert np.all(np.isfinite(model.predict_proba(X)))
        assert model.n_iter_ == 20

    @pytest.mark.parametrize(
        ("n", "epsilon", "drowned"), [(80, 0.01, True), (80, 1.0, False), (20, 1.0, True), (20, None, False)]
    )
    def test_rows_too_few_for_the_budget_are_told_before_any_of_it_is_spent(self, n, epsilon, drowned):
        ledger = Ledger()
        model = RateConstrainedClassifier(
            epsilon=epsilon, classes=(0, 1), steps=3, ledger=ledger, standardise=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if not drowned:
                model.fit(X[:n], Y[:n])
                return
            words = f"{n} rows are too few for 4 parameters at epsilon={epsilon:g}.*times as many rows, or"
            with pytest.raises(RatewiseWarning, match=words):
                model.fit(X[:n], Y[:n])
        assert ledger.records == ()
        assert not hasattr(model, "ledger_")

    def test_what_the_warning_advises_is_enough(self):
        """A budget as large as it says brings the noise down to what is called good."""
        with pytest.warns(RatewiseWarning, match="too few") as caught:
            RateConstrainedClassifier(epsilon=0.01, classes=(0, 1), steps=3).fit(X, Y)
        said = next(str(w.message) for w in caught if "too few" in str(w.message))
        enough = float(re.search(r"or epsilon=([\d.e+]+),", said).group(1))
        model = RateConstrainedClassifier(epsilon=enough, classes=(0, 1), steps=3).fit(X, Y)
        assert 0.02 < noise_share(model.plan_, 4) < 0.1

    def test_one_row_has_one_class(self):
        refused(InvalidInput, "one class only", features=X[:1], labels=Y[:1], groups=SEX[:1])


# ------------------------------------------------------------------------------------------ fuzz

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, 1e-8]),
)
labels = st.one_of(
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["a", "b", ""]),
    st.booleans(),
    st.sampled_from([None, 0.5, "a", 1]),
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
        "steps": draw(st.integers(1, 5)),
        "sampling_rate": draw(st.sampled_from([None, 0.01, 1.0])),
        "row_norm": draw(st.sampled_from(["auto", None, 1e-3])),
        "feature_bounds": draw(st.sampled_from([None, (-1, 1), (0, 0.5)])),
        "feature_kinds": draw(st.sampled_from([None, range(d), ["a"] * d, ["a"]])),
        "standardise": draw(st.sampled_from(["auto", True])),
        "rates": draw(st.sampled_from(["hard", "soft"])),
        "l1": draw(st.sampled_from([None, 0.0, 0.1, 1e300])),
        "l2": draw(st.sampled_from([0.0, 0.1])),
        "random_state": draw(st.integers(0, 5)),
    }
    with np.errstate(over="ignore"):
        features = form(features)
    return features, truth, table, parameters


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
@pytest.mark.filterwarnings(
    "ignore::ratewise.RatewiseWarning",
    "ignore:.* in reduce:RuntimeWarning",  # scikit-learn adds up all entries before it looks at each
)
def test_a_finite_model_or_a_clear_error(problem):
    features, truth, table, parameters = problem
    ledger = Ledger()
    model = RateConstrainedClassifier(**parameters, ledger=ledger)
    said = None
    try:
        model.fit(features, truth, sensitive_features=table)
    except (ValueError, TypeError) as error:
        said = str(error)
    if said is not None:
        assert ledger.records == () or "diverged" in said
        return
    assert np.all(np.isfinite(model.coef_))
    chances = model.predict_proba(features)
    assert np.all((chances >= 0) & (chances <= 1))
    assert set(model.predict(features)) <= set(truth)
