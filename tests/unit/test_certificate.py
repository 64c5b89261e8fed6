import json
import math
import warnings

import numpy as np
import pytest

from ratewise import (
    CertificateWarning,
    InvalidInput,
    RateConstrainedClassifier,
    TrainingConfig,
    demographic_parity,
    precision,
    rate,
)
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.datasets import census_like
from ratewise.estimators.evaluation import evaluate
from ratewise.models.additive import shift_intercept
from ratewise.training.certificate import (
    COUNT_SENSITIVITY,
    MARGIN_EDGES,
    Certificate,
    _room,
    certify,
    choose_shift,
    count_stds,
    expected_half_widths,
    margin_code_count,
    margin_codes,
    pack_counts,
    packed_tables,
    unpack_counts,
    verdict_of,
)
from ratewise.training.plan import CORRECTION

DOMAIN = Domain((0, 1), {"sex": ("F", "M")})
PARITY = compile_constraints(demographic_parity("sex", max_gap=0.05), DOMAIN)
TABLE = np.array([[7000.0, 3000.0], [20400.0, 9600.0]])  # rates .3 and .32


def test_the_first_line_says_what_was_requested_and_reached():
    found = certify(PARITY, TABLE, 30.0, n_units=40_000)
    assert str(found).splitlines()[0] == (
        "Largest gap: requested .05, reached .02 (.015 to .025): held (tolerance .01)"
    )
    assert found.summary == str(found).splitlines()[0]
    assert [row.verdict for row in found] == ["held"]
    assert found.verdict == "held"
    assert len(found) == 1
    assert "held" in str(found).splitlines()[1]
    assert repr(found).startswith("<Certificate: Largest gap")


def test_what_cannot_be_measured_is_not_held_and_has_no_number():
    """A group without rows, and a family for which the private release found no groups."""
    empty = certify(PARITY, np.array([[0.0, 0.0], [20400.0, 9600.0]]), 0.0, n_units=30_000)
    lost = compile_constraints(
        demographic_parity("sex", max_gap=0.05), Domain((0, 1), {"sex": ()}, other=True), allow_empty=True
    )
    nothing = certify(lost, np.zeros((lost.n_cells, 2)), 30.0, n_units=30_000)
    for found in (empty, nothing, Certificate.from_dict(json.loads(json.dumps(nothing.to_dict())))):
        assert found.verdict == "cannot tell"
        assert found.verdict != "held"
        assert "too few rows to measure it: cannot tell" in found.summary
        assert "reached" not in str(found)
    assert "No value is frequent enough" in str(nothing)


def test_exact_counts_have_intervals_without_length():
    (row,) = certify(PARITY, TABLE, 0.0, n_units=40_000)
    assert row.estimate == pytest.approx(0.02)
    assert row.interval == pytest.approx((0.02, 0.02))
    low, high = row.population_interval
    # a difference of two shares of 10,000 and 30,000 rows
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.3 * 0.7 / 1e4 + 0.32 * 0.68 / 3e4), rel=0.02)


def test_the_interval_is_that_of_two_noisy_shares():
    (row,) = certify(PARITY, TABLE, 30.0, n_units=40_000)
    sd = 30.0 * math.sqrt((0.3**2 + 0.7**2) / 1e4**2 + (0.32**2 + 0.68**2) / 3e4**2)
    assert row.half_width == pytest.approx(1.96 * sd, rel=0.01)
    (shorter,) = certify(PARITY, TABLE, 30.0, n_units=40_000, cell_totals=TABLE.sum(axis=1))
    sd = 30.0 * math.sqrt(0.5 / 1e4**2 + 0.5 / 3e4**2)
    assert shorter.half_width == pytest.approx(1.96 * sd, rel=0.01)


def test_useless_totals_change_nothing():
    plain = certify(PARITY, TABLE, 30.0, n_units=40_000)
    same = certify(PARITY, TABLE, 30.0, n_units=40_000, cell_totals=[0.0, 0.0], cell_totals_std=1e12)
    assert same[0].interval == pytest.approx(plain[0].interval)


def test_groups_without_rows_cannot_be_told():
    for noise in (0.0, 10.0):
        (row,) = certify(PARITY, np.array([[0.0, 0.0], [50.0, 50.0]]), noise, n_units=100)
        assert row.verdict == "cannot tell"
        assert "merge groups" in row.remedy
        assert row.interval[0] <= row.estimate <= row.interval[1] <= 1.0
    (row,) = certify(PARITY, np.full((2, 2), -40.0), 10.0, n_units=100)
    assert row.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("interval", "bounds", "tolerance", "said"),
    [
        ((0.04, 0.06), (-math.inf, 0.05), 0.01, "held"),
        ((0.04, 0.0601), (-math.inf, 0.05), 0.01, "cannot tell"),
        ((0.051, 0.059), (-math.inf, 0.05), 0.01, "held"),
        ((0.051, 0.07), (-math.inf, 0.05), 0.01, "missed"),
        ((0.18, 0.3), (0.2, math.inf), 0.01, "cannot tell"),
        ((0.19, 0.3), (0.2, math.inf), 0.01, "held"),
        ((0.1, 0.19), (0.2, math.inf), 0.01, "missed"),
        ((0.1, 0.2), (0.1, 0.2), 0.0, "held"),
        ((math.nan, 0.2), (0.1, 0.2), 0.0, "cannot tell"),
    ],
)
def test_verdicts(interval, bounds, tolerance, said):
    assert verdict_of(interval, bounds, tolerance) == said


def test_every_kind_of_constraint_is_one_row():
    constraints = [
        demographic_parity("sex", max_gap=0.05),
        rate(1) >= 0.2,
        rate(1).between(0.25, 0.5),
        abs(rate(0) - 0.65) <= 0.1,
        precision(min_rate=0.5),
    ]
    compiled = compile_constraints(constraints, DOMAIN, to_hold=False)
    rng = np.random.default_rng(0)
    found = certify(compiled, rng.integers(500, 2000, (compiled.n_cells, 2)), 5.0, n_units=5000)
    kinds = {row.kind for row in found}
    assert kinds == {"gap", "within", ">="}
    within = next(row for row in found if row.kind == "within")
    assert within.bounds == (0.25, 0.5)
    assert within.bound in within.bounds
    for row in found:
        assert row.interval[0] <= row.estimate <= row.interval[1]
        assert row.population_interval[0] <= row.interval[0]
        assert row.population_interval[1] >= row.interval[1]
        assert row.name in str(found)
    assert f"of {len(found)} constraints" in found.summary


def test_remedies_say_by_how_much():
    (row,) = certify(PARITY, TABLE, 150.0, n_units=40_000)
    assert row.verdict == "held"
    (row,) = certify(PARITY, TABLE, 400.0, n_units=40_000)
    assert row.verdict == "cannot tell"
    factor = row.half_width / (0.06 - row.estimate)
    assert f"{math.ceil(10 * factor) / 10:g} times as large" in row.remedy
    (row,) = certify(PARITY, np.array([[7000.0, 3000.0], [12000.0, 18000.0]]), 30.0, n_units=40_000)
    assert row.verdict == "missed"
    assert "wider" in row.remedy


def test_accuracy_stands_beside_that_of_the_most_common_class():
    outcomes = np.array([[2000.0, 26000.0], [4000.0, 8000.0]])
    found = certify(PARITY, TABLE, 10.0, n_units=40_000, outcomes=outcomes, outcomes_std=20.0)
    assert found.accuracy.value == pytest.approx(0.85)
    assert found.majority_accuracy == pytest.approx(0.7)
    sd = 20.0 * math.sqrt(2 * (0.85**2 + 0.15**2)) / 40_000
    assert np.diff(found.accuracy.interval)[0] / 2 == pytest.approx(1.96 * sd, rel=0.01)
    assert "always predicting the most common class: .7" in str(found)
    unknown = certify(PARITY, TABLE, 10.0, n_units=40_000, outcomes=np.zeros((2, 2)), outcomes_std=20.0)
    assert math.isnan(unknown.accuracy.value)
    assert "unknown" in str(unknown)


def test_one_class_for_everyone_is_a_warning():
    one = np.array([[9990.0, 10.0], [29970.0, 30.0]])
    outcomes = np.array([[30.0, 27970.0], [11990.0, 10.0]])
    found = certify(PARITY, one, 5.0, n_units=40_000, outcomes=outcomes, outcomes_std=10.0)
    assert found.verdict == "held"
    assert "nearly everyone gets the same prediction" in found.warnings[0]
    assert "Warning" in found._repr_html_()
    assert not certify(PARITY, TABLE, 5.0, n_units=40_000).warnings
    # rare classes are predicted rarely by good models too
    rare = np.array([[9800.0, 200.0], [29400.0, 600.0]])
    outcomes = np.array([[200.0, 39000.0], [200.0, 600.0]])
    assert not certify(PARITY, rare, 5.0, n_units=40_000, outcomes=outcomes).warnings


def test_plain_data_comes_back():
    outcomes = np.array([[2000.0, 26000.0], [4000.0, 8000.0]])
    compiled = compile_constraints([demographic_parity("sex", max_gap=0.05), rate(1) >= 0.4], DOMAIN)
    found = certify(compiled, TABLE, 10.0, n_units=40_000, outcomes=outcomes, unit="persons")
    back = Certificate.from_dict(json.loads(json.dumps(found.to_dict())))
    assert str(back) == str(found)
    assert tuple(back) == tuple(found)
    assert back.to_dict() == found.to_dict()
    with pytest.raises(InvalidInput, match="no description of a certificate"):
        Certificate.from_dict({"constraints": []})


def test_no_constraints_and_html_is_escaped():
    compiled = compile_constraints(None, DOMAIN)
    found = certify(compiled, np.array([[30.0, 10.0]]), 1.0, n_units=40)
    assert found.summary == "No constraints were requested."
    assert found.verdict == "held"
    assert found.worst is None
    named = compile_constraints((rate(1) <= 0.5).named("<b>"), DOMAIN)
    assert "<b>" not in certify(named, np.array([[30.0, 10.0]]), 1.0, n_units=40)._repr_html_()


def test_counts_are_packed_as_whole_numbers_of_known_sensitivity():
    rng = np.random.default_rng(0)
    n = 300
    cells, labels, guesses = rng.integers(-1, 3, n), rng.integers(-1, 3, n), rng.integers(-1, 3, n)
    whole = pack_counts(PARITY, cells, labels, guesses)
    assert np.array_equal(whole, np.rint(whole))
    moved = [
        np.linalg.norm(whole - pack_counts(PARITY, *(np.delete(a, i) for a in (cells, labels, guesses))))
        for i in range(n)
    ]
    assert max(moved) == pytest.approx(COUNT_SENSITIVITY)
    histogram, outcomes = unpack_counts(whole, 2, 2)
    assert histogram[1, 0] == np.sum((cells == 1) & (guesses == 0))
    assert outcomes[1, 1] == np.sum((labels == 1) & (guesses == 1))
    assert outcomes[0, 0] == np.sum((labels == 0) & (guesses == 1))
    first, second = count_stds(2.0)
    assert (first, second) == pytest.approx((2 * math.sqrt(1.25), 4 * math.sqrt(1.25)))
    with pytest.raises(InvalidInput, match="packed vector"):
        unpack_counts(whole[:-1], 2, 2)


def test_the_expected_half_width_is_about_the_one_that_comes():
    expected = expected_half_widths(PARITY, 40_000, 30.0)
    (row,) = certify(PARITY, np.array([[14e3, 6e3], [15e3, 5e3]]), 30.0, n_units=40_000)
    assert expected == pytest.approx([row.half_width], rel=0.1)
    assert expected_half_widths(PARITY, 100, 300.0) == pytest.approx(1.0)
    assert len(expected_half_widths(compile_constraints(None, DOMAIN), 100, 1.0)) == 0


def test_a_budget_that_is_too_small_for_a_certificate_is_reported_before_training():
    table = census_like(400)
    seen = []

    def fit(**changes):
        model = RateConstrainedClassifier(
            demographic_parity("sex", max_gap=0.05),
            classes=table.classes,
            group_values=table.group_values,
            callback=lambda record: seen.append(record.step),
            random_state=0,
            **changes,
        )
        return model.fit(table.X, table.y, sensitive_features=table.sensitive)

    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        with pytest.raises(CertificateWarning, match=r"cannot say 'held' for 1 of 1 .* larger epsilon, more rows"):
            fit(epsilon=1.0)
        assert seen == []  # before the first step
        fit(epsilon=50.0)
        fit(epsilon=None)
    with pytest.warns(CertificateWarning):
        found = fit(epsilon=1.0).certificate_
    assert found.rows[0].verdict != "held"


@pytest.mark.parametrize(
    ("constraint", "room"),
    [
        (demographic_parity("sex", max_gap=0.05), 0.05),
        (rate(1) <= 0.3, 0.3),
        (rate(1) >= 0.9, 0.1),
        (rate(1).between(0.2, 0.3), 0.05),
    ],
)
def test_the_best_value_of_a_quantity_decides_what_can_be_certified(constraint, room):
    compiled = compile_constraints(constraint, DOMAIN)
    (item,) = compiled.items
    assert _room(item) == pytest.approx(room)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"histogram": np.zeros((3, 2))}, "histogram must be 2 x 2"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"level": 1.0}, "level"),
    ],
)
def test_bad_arguments(changes, said):
    given = {"histogram": TABLE, "noise_std": 1.0, **changes}
    with pytest.raises(InvalidInput, match=said):
        certify(PARITY, given.pop("histogram"), given.pop("noise_std"), n_units=10, **given)


# ------------------------------------------------------------------------------------------ correction


def margins_of(scores, labels, groups, noise=0.0, seed=0):
    """Return the packed counts of margins towards class 0, and the cell sizes, for PARITY."""
    cells = np.asarray(groups)
    codes = margin_codes(scores[:, None], 0)
    width = margin_code_count(2)
    by_cell, by_label = np.zeros((2, width)), np.zeros((2, width))
    np.add.at(by_cell, (cells, codes), 1.0)
    np.add.at(by_label, (labels, codes), 1.0)
    packed = packed_tables(by_cell, by_label)
    return packed + noise * np.random.default_rng(seed).standard_normal(packed.shape), np.bincount(cells)


def two_groups(gap, n=40_000):
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 2, n)
    scores = rng.normal(size=n) - 0.7 + gap * groups
    return scores, (scores + rng.logistic(size=n) > 0).astype(int), groups


def gap_of(scores, groups, amount):
    predicted = scores - amount > 0  # a shift towards class 0
    return abs(predicted[groups == 1].mean() - predicted[groups == 0].mean())


def test_a_model_that_clearly_misses_is_shifted_until_it_does_not():
    scores, labels, groups = two_groups(0.6)
    assert gap_of(scores, groups, 0.0) > 0.15
    packed, sizes = margins_of(scores, labels, groups)
    loose = compile_constraints(demographic_parity("sex", max_gap=0.1), DOMAIN)
    shift = choose_shift(packed, loose, (0.0, 0.0), towards=0, cell_totals=sizes, tolerance=0.01)
    assert shift.amount > 0
    assert 0.07 <= gap_of(scores, groups, shift.amount) <= 0.105
    assert "Corrected" in shift.describe(loose)


def test_a_model_that_holds_or_may_hold_is_left_alone():
    scores, labels, groups = two_groups(0.1)
    packed, sizes = margins_of(scores, labels, groups)
    options = {"towards": 0, "cell_totals": sizes, "tolerance": 0.01}
    assert choose_shift(packed, PARITY, (0.0, 0.0), **options) is None
    scores, labels, groups = two_groups(0.3)  # beyond the bound, but not by 2.5 standard deviations of the noise
    packed, sizes = margins_of(scores, labels, groups)
    assert choose_shift(packed, PARITY, (0.0, 0.0), **options) is not None
    assert choose_shift(packed, PARITY, (2000.0, 2000.0), **options) is None


def test_one_class_for_everyone_is_no_correction():
    scores, labels, groups = two_groups(4.0)
    packed, sizes = margins_of(scores, labels, groups)
    tight = compile_constraints(demographic_parity("sex", max_gap=0.001), DOMAIN)
    shift = choose_shift(packed, tight, (0.0, 0.0), towards=0, cell_totals=sizes, tolerance=0.0)
    if shift is not None:
        predicted = scores - shift.amount > 0
        assert 0.05 < predicted.mean() < 0.95


def test_margins_of_several_classes_say_what_a_shift_predicts():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(500, 3))
    for towards in range(3):
        codes = margin_codes(scores, towards)
        others = [k for k in range(3) if k != towards]
        for place, edge in enumerate(MARGIN_EDGES):
            moved = scores.copy()
            moved[:, towards] += edge
            expected = moved.argmax(axis=1)
            found = np.where(codes // 2 <= place, towards, np.array(others)[codes % 2])
            assert np.array_equal(found, expected)


def test_a_shift_of_parameters_is_a_shift_of_scores():
    theta = np.arange(6.0)
    assert shift_intercept(theta, 1, 1, 0.5)[-1] == 5.5
    assert shift_intercept(theta, 1, 0, 0.5)[-1] == 4.5
    assert shift_intercept(theta, 3, 1, 0.5).tolist() == [0, 1, 2, 3.5, 4, 5]
    assert theta.tolist() == list(range(6))


@pytest.mark.parametrize("model", ["additive", "linear"])
def test_a_fit_plans_the_correction_and_certifies_the_corrected_model(model, monkeypatch):
    """Without multipliers training misses the bound, so that the correction has to act."""
    people = census_like(20_000, random_state=0)
    facts = {"classes": [0, 1], "group_values": {"sex": people.group_values["sex"]}, "model": model}
    limit = demographic_parity("sex", max_gap=0.15)
    found = {}
    for correction in (True, False):
        config = TrainingConfig(steps=60, dual_rate=0.0, dual_damping=0.0, correction=correction)
        classifier = RateConstrainedClassifier(limit, epsilon=3.0, config=config, random_state=1, **facts)
        classifier.fit(people.X, people.y, sensitive_features={"sex": people.sensitive["sex"]})
        assert (CORRECTION in classifier.plan_.events) == correction
        exact = evaluate(
            limit, people.y, classifier.predict(people.X), sensitive_features=people.sensitive, **{k: facts[k] for k in ("classes", "group_values")}
        )  # fmt: skip
        low, high = classifier.certificate_[0].interval
        assert low - 0.005 <= exact[0].estimate <= high + 0.005
        noted = any(note.startswith("Corrected") for note in classifier.certificate_.notes)
        found[correction] = exact[0].estimate, noted
    assert found[False][0] > 0.17
    assert not found[False][1]
    assert found[True][0] < 0.16
    assert found[True][1]
