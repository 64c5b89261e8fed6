"""Reports on small data whose rates can be counted by hand, and everything that is refused."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from ratewise.constraints.domain import Numeric, below
from ratewise.constraints.families import (
    demographic_parity,
    error_rate_parity,
    false_negative_rate,
    positive_rate,
    precision,
)
from ratewise.constraints.rates import group, label, rate
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics import group_rates, rate_report

SEX = ["F", "F", "F", "F", "M", "M", "M", "M"]
TRUE = [0, 1, 1, 0, 1, 1, 0, 0]
PRED = [0, 1, 0, 0, 1, 1, 1, 0]


def report(constraints, y_true=TRUE, y_pred=PRED, sensitive_features=SEX, **more):
    return rate_report(constraints, y_true, y_pred, sensitive_features=sensitive_features, **more)


def test_rates_counted_by_hand():
    women = group(sex="F")
    rows = report(
        [
            (rate(1, where=women) <= 0.2).named("women chosen"),
            rate(1, where=women) - rate(1, where=~women) >= -0.5,
            false_negative_rate(0.25),
            precision(0.75),
            error_rate_parity("sex", max_gap=0.1),
        ]
    )
    assert [row.reached for row in rows] == pytest.approx([0.25, -0.5, 0.25, 0.75, 0.0, 0.0])
    assert [row.holds for row in rows] == [False, True, True, True, True, True]
    assert [row.bound for row in rows] == [0.2, -0.5, 0.25, 0.75, 0.1, -0.1]
    assert [row.sense for row in rows] == ["<=", ">=", "<=", ">=", "<=", ">="]
    assert rows[0].name == "women chosen"
    assert rows[0].violation == pytest.approx(0.05)
    assert rows[1].violation == 0.0
    assert [row.family for row in rows[:3]] == [None, None, "false_negative_rate() <= 0.25"]
    assert all(row.interval[0] <= row.reached <= row.interval[1] for row in rows)


def test_report_as_a_whole():
    rows = report([rate(1) <= 0.4, rate(1) >= 0.1, rate(0) <= 0.45])
    assert len(rows) == 3
    assert rows[0].holds is False
    assert rows[0].violation == pytest.approx(0.1)
    assert len(report([])) == len(report(None)) == 0
    assert "P(1) <= 0.4" in str(rows)
    assert "yes" in str(rows)
    assert repr(rows) == "<RateReport: 1 of 3 constraints held by hard rates on 8 rows>"


def test_html_escapes_names():
    text = report((rate(1) <= 0.5).named("<script>"))._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<th scope=col>reached</th>" in text


def test_several_bounds_on_the_same_rate_each_have_a_row():
    same = rate(1) <= 0.5
    rows = report([rate(1) <= 0.6, same, rate(1) <= 0.3, same, 2 * rate(1) <= 0.9])
    assert [row.bound for row in rows] == [0.6, 0.5, 0.3, 0.5, 0.9]
    assert [row.holds for row in rows] == [True, True, False, True, False]


def test_rounding_does_not_break_a_bound():
    third = report(rate(1) <= 0.1 + 0.2, y_true=[0, 1] * 5, y_pred=[1, 1, 1] + [0] * 7, sensitive_features=None)
    assert third[0].holds is True
    assert report(rate(1) <= 0.5 - 1e-6)[0].holds is False


def test_confidence_widens_the_interval():
    wide, narrow = (report(rate(1) <= 0.5, confidence=level)[0].interval for level in (0.99, 0.5))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_a_group_without_rows_is_never_said_to_hold():
    rows = report(
        [demographic_parity("sex", max_gap=1, versus="pairwise"), rate(1, where=group(sex="X")) <= 1],
        group_values={"sex": ("F", "M", "X")},
    )
    empty = [row for row in rows if "sex=X" in row.name]
    assert len(empty) == 5
    for row in empty:
        assert math.isnan(row.reached)
        assert all(map(math.isnan, row.interval))
        assert row.holds is None
        assert math.isnan(row.violation)
    assert "no rows" in str(rows)


def test_precision_without_a_positive_prediction_has_no_rows():
    row = report(precision(0.5), y_pred=[0] * 8)[0]
    assert row.holds is None


def test_soft_rates():
    prob = np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.9, 0.1]])
    rows = rate_report(
        [rate(1, where=group(g="a")) <= 0.5, rate(1, where=label(1), out_of=group(g="a")) >= 0.7],
        [0, 1, 1, 0],
        y_prob=prob,
        sensitive_features={"g": ["a", "a", "b", "b"]},
    )
    assert rows.soft
    assert [row.reached for row in rows] == pytest.approx([0.4, 0.75])
    assert "soft" in repr(rows)


def test_one_hot_probabilities_are_hard_predictions():
    constraints = [demographic_parity("sex", max_gap=0.1), precision(0.5), error_rate_parity("sex", max_gap=0.2)]
    hard = report(constraints)
    soft = rate_report(constraints, TRUE, y_prob=np.eye(2)[PRED], sensitive_features=SEX)
    for one, other in zip(hard, soft, strict=True):
        assert one.reached == pytest.approx(other.reached)
        assert one.interval == pytest.approx(other.interval)


def test_soft_intervals_are_narrower_where_predictions_vary_less():
    flat = rate_report(rate(1) <= 0.5, [0, 1] * 100, y_prob=np.full((200, 2), 0.5))[0].interval
    hard = rate_report(rate(1) <= 0.5, [0, 1] * 100, [0, 1] * 100)[0].interval
    assert flat[1] - flat[0] < 0.5 * (hard[1] - hard[0])


@pytest.mark.parametrize("kind", [np.array, pd.Series, pl.Series, lambda x: pd.Series(x, dtype="category")])
def test_any_kind_of_labels_and_groups(kind):
    names = {0: "no", 1: "yes"}
    rows = rate_report(
        rate("yes", where=group(sex="F")) <= 0.3,
        kind([names[y] for y in TRUE]),
        kind([names[y] for y in PRED]),
        sensitive_features={"sex": kind(SEX)},
    )
    assert rows[0].reached == 0.25


def test_numeric_columns():
    ages = {"age": [20, 22, 30, 40, 50, 60, 24, 70], "unused": [None] * 8}
    assert report(rate(1, where=group(age=below(25))) <= 0.7, sensitive_features=ages)[0].reached == pytest.approx(
        2 / 3
    )


def test_a_lone_vector_takes_the_name_that_constraints_use():
    assert all(row.holds for row in report(demographic_parity("whatever", max_gap=0.6)))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"y_pred": PRED[:5]}, InvalidInput, "y_pred must have one entry per row of y_true: 5 against 8"),
        ({"y_pred": None}, InvalidInput, "pass y_pred .* or y_prob"),
        ({"y_prob": np.eye(2)[PRED]}, InvalidInput, "pass y_pred .* or y_prob"),
        ({"y_pred": np.eye(2)[PRED]}, InvalidInput, "2 columns; give probabilities as y_prob"),
        ({"y_pred": [0, 1, None, 0, 1, 0, 1, 0]}, InvalidInput, "y_pred holds missing values"),
        ({"y_true": [0, 1, math.nan, 0, 1, 0, 1, 0]}, InvalidInput, "y_true holds missing values"),
        ({"y_true": [], "y_pred": [], "sensitive_features": []}, InvalidInput, "y_true is empty"),
        ({"y_true": "labels"}, InvalidType, "y_true must be a vector"),
        ({"classes": (0, 2)}, InvalidInput, "y_true: some entries are missing or not declared"),
        ({"y_true": [0, 2] * 4, "classes": (0, 2)}, InvalidInput, "y_pred: some entries are missing or not declared"),
        ({"y_pred": list("abababab")}, InvalidInput, "text as well as numbers"),
        ({"y_true": [0] * 8, "y_pred": [0] * 8}, InvalidInput, "one class only"),
        ({"sensitive_features": SEX[:3]}, InvalidInput, "has 3, expected 8"),
        ({"sensitive_features": None}, InvalidInput, "sensitive_features is missing"),
        ({"sensitive_features": {"race": SEX}}, InvalidInput, "lacks column 'sex'"),
        ({"group_values": {"sex": ("F",)}}, InvalidInput, "column 'sex': some entries"),
        ({"confidence": 1.0}, InvalidInput, "confidence must be strictly between 0 and 1"),
        ({"confidence": "high"}, InvalidType, "confidence must be a number"),
        ({"constraints": 5}, InvalidType, "rate constraints"),
        ({"constraints": rate(3) <= 0.5}, InvalidInput, "3 is not among the classes"),
        ({"constraints": rate(1) <= -0.5}, InvalidInput, "no classifier can meet"),
        (
            {"constraints": demographic_parity("sex", max_gap=1), "group_values": {"sex": Numeric()}},
            InvalidInput,
            "numeric",
        ),
    ],
)
def test_bad_input(changes, kind, message):
    arguments = {"constraints": rate(1, where=group(sex="F")) <= 0.5, **changes}
    with pytest.raises(kind, match=message):
        report(**arguments)


def test_constraints_that_exclude_each_other_can_be_measured_side_by_side():
    """A report asks which of some limits are held, not whether all could be."""
    rows = report([rate(1) <= 0.4, rate(1) >= 0.6, rate(0) <= 0.1, rate(1) <= 0.1])
    assert [row.reached for row in rows[:2]] == [rows[0].reached] * 2
    assert not all(row.holds for row in rows)


@pytest.mark.parametrize(
    ("prob", "kind", "message"),
    [
        (np.full((8, 3), 1 / 3), InvalidInput, r"got shape \(8, 3\)"),
        (np.full(7, 0.5), InvalidInput, r"got shape \(7,\)"),
        (np.full((8, 2), 0.4), InvalidInput, "summing to 1"),
        (np.tile([1.5, -0.5], (8, 1)), InvalidInput, "between 0 and 1"),
        (np.tile([np.nan, 0.5], (8, 1)), InvalidInput, "no NaN"),
        ([["a", "b"]] * 8, InvalidType, "must be numbers"),
    ],
)
def test_bad_probabilities(prob, kind, message):
    with pytest.raises(kind, match=message):
        rate_report(rate(1) <= 0.5, TRUE, y_prob=prob)


def test_a_report_of_many_constraints_is_quick_enough_to_run_here():
    rng = np.random.default_rng(0)
    groups, truth, guess = rng.integers(0, 100, 5000), rng.integers(0, 3, 5000), rng.integers(0, 3, 5000)
    rows = rate_report(demographic_parity("g", max_gap=0.5), truth, guess, sensitive_features={"g": groups})
    assert len(rows) == 600


# -------------------------------------------------------------------------------- rates by group


def test_group_rates_agree_with_scikit_learn():
    rng = np.random.default_rng(1)
    n = 600
    table = pd.DataFrame({"sex": rng.choice(["F", "M"], n), "race": rng.choice(["A", "B", "C"], n)})
    truth, guess = rng.integers(0, 3, n), rng.integers(0, 3, n)
    found = group_rates(truth, guess, sensitive_features=table)
    assert len(found) == 6
    assert sum(row.count for row in found) == found.overall.count == n
    for row in (*found, found.overall):
        inside = np.ones(n, dtype=bool)
        for column, value in row.values.items():
            inside &= (table[column] == value).to_numpy()
        t, g = truth[inside], guess[inside]
        assert row.accuracy == pytest.approx((t == g).mean())
        assert 1 - row.accuracy == pytest.approx((t != g).mean())
        for k in (0, 1, 2):
            (tn, fp), (fn, tp) = confusion_matrix(t == k, g == k)
            rates = row.rates[k]
            assert rates.base_rate == pytest.approx((t == k).mean())
            assert rates.selection_rate == pytest.approx((g == k).mean())
            assert rates.true_positive_rate == pytest.approx(recall_score(t == k, g == k))
            assert rates.false_positive_rate == pytest.approx(fp / (fp + tn))
            assert rates.false_negative_rate == pytest.approx(fn / (fn + tp))
            assert rates.true_negative_rate == pytest.approx(tn / (fp + tn))
            assert rates.precision == pytest.approx(precision_score(t == k, g == k))
            assert rates.false_discovery_rate == pytest.approx(fp / (fp + tp))


def test_group_rates_by_some_columns():
    table = {"sex": SEX, "race": ["A", "B"] * 4, "id": np.arange(8) + np.linspace(0, 1, 8)}
    found = group_rates(TRUE, PRED, sensitive_features=table, by="sex")
    assert [row.name for row in found] == ["sex=F", "sex=M"]
    assert [row.values for row in found[:1]] == [{"sex": "F"}]
    crossed = group_rates(TRUE, PRED, sensitive_features=table, by=("race", "sex"))
    assert [row.name for row in crossed] == ["race=A & sex=F", "race=A & sex=M", "race=B & sex=F", "race=B & sex=M"]
    with pytest.raises(InvalidInput, match="'id' is numeric"):
        group_rates(TRUE, PRED, sensitive_features=table, group_values={"id": Numeric()})
    with pytest.raises(InvalidInput, match="lacks column 'age'"):
        group_rates(TRUE, PRED, sensitive_features=table, by="age")


def test_largest_gap():
    found = group_rates(TRUE, PRED, sensitive_features=SEX)
    assert found.largest_gap("selection_rate") == pytest.approx(0.5)
    assert found.largest_gap("true_positive_rate", 1) == pytest.approx(0.5)
    assert found.largest_gap("accuracy") == 0.0
    assert math.isnan(group_rates(TRUE, PRED).largest_gap("accuracy"))
    with pytest.raises(InvalidInput, match="rate must be one of"):
        found.largest_gap("kindness")
    with pytest.raises(InvalidInput, match="k must be one of the classes"):
        found.largest_gap("precision", 7)
    with pytest.raises(InvalidInput, match="there are several"):
        group_rates([0, 1, 2], [0, 1, 2], sensitive_features=["a"] * 3).largest_gap("precision")


def test_groups_without_rows_are_listed_only_if_declared():
    assert len(group_rates(TRUE, PRED, sensitive_features=SEX)) == 2
    found = group_rates(TRUE, PRED, sensitive_features={"sex": SEX}, group_values={"sex": ("F", "X", "M")})
    assert [row.count for row in found] == [4, 0, 4]
    assert math.isnan(found[1].accuracy)
    assert found.largest_gap("accuracy") == 0.0


def test_group_rates_print():
    found = group_rates(TRUE, PRED, sensitive_features=pd.Series(SEX, name="sex"))
    assert "sex=F" in str(found)
    assert "everyone" in str(found)
    assert "TPR(1)" in found._repr_html_()
    assert repr(found) == "<GroupRates: 2 groups, 8 rows, 2 classes>"
    assert [row.count for row in (*found, found.overall)] == [4, 4, 8]


def test_positive_rate_agrees_between_report_and_table():
    found = group_rates(TRUE, PRED, sensitive_features=SEX)
    rows = report(positive_rate(max_rate=1.0, by="sex"))
    assert [row.reached for row in rows] == [row.rates[1].selection_rate for row in found]
