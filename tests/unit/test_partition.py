import dataclasses
import doctest
import math
import pathlib
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratewise.constraints import partition as cells_module
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints, expand
from ratewise.constraints.domain import Domain, Numeric, at_least, below, between
from ratewise.constraints.families import demographic_parity, equalized_odds, error_rate_parity, precision
from ratewise.constraints.rates import everyone, group, label, rate, rows
from ratewise.data.table import code_groups, code_labels, code_table
from ratewise.exceptions import InvalidInput, InvalidType

PEOPLE = Domain((0, 1), {"sex": ("F", "M"), "race": ("A", "B", "C"), "age": Numeric(), "town": range(10)})


def compiled(*constraints, domain=PEOPLE):
    return compile_constraints(list(constraints), domain)


# ------------------------------------------------------------------------------------ domain


def test_domain_normalises_and_compares():
    a = Domain(np.array([0, 1]), {"sex": np.array(["F", "M"]), "age": Numeric()})
    b = Domain((0, 1), {"age": Numeric(), "sex": ["F", "M"]})
    assert a == b
    assert hash(a) == hash(b)
    assert pickle.loads(pickle.dumps(a)) == a
    assert eval(repr(a)) == a
    assert a != Domain((1, 0), {"age": Numeric(), "sex": ["F", "M"]})
    assert type(a.classes[0]) is int
    with pytest.raises(AttributeError):
        a.classes = (0, 1, 2)


@pytest.mark.parametrize(
    ("misuse", "kind"),
    [
        (lambda: Domain((0,)), InvalidInput),
        (lambda: Domain(()), InvalidInput),
        (lambda: Domain("ab"), InvalidType),
        (lambda: Domain(2), InvalidType),
        (lambda: Domain((0, 1, 1)), InvalidInput),
        (lambda: Domain((0, 1, True)), InvalidInput),
        (lambda: Domain((0, None)), InvalidInput),
        (lambda: Domain((0, math.nan)), InvalidInput),
        (lambda: Domain((0, 1), {"a": ()}), InvalidInput),
        (lambda: Domain((0, 1), {"a": (True, 1)}), InvalidInput),
        (lambda: Domain((0, 1), {"a": (1, 1.0)}), InvalidInput),
        (lambda: Domain((0, 1), {"a": "FM"}), InvalidType),
        (lambda: Domain((0, 1), {"a": Numeric}), InvalidType),
        (lambda: Domain((0, 1), {1: ("F", "M")}), InvalidType),
        (lambda: Domain((0, 1), {"": ("F", "M")}), InvalidType),
        (lambda: compile_constraints(rate(1) <= 0.2, (0, 1)), InvalidType),
    ],
)
def test_bad_domains(misuse, kind):
    with pytest.raises(kind):
        misuse()


def test_a_bool_and_a_number_are_not_merged_silently():
    with pytest.raises(InvalidInput, match="True and 1, which are equal in Python"):
        Domain((0, 1), {"flag": (True, False, 1)})


# -------------------------------------------------------------------------- the partition


@pytest.mark.parametrize(
    ("constraints", "cells"),
    [
        ([], 1),
        ([rate(1) <= 0.2], 1),
        ([rate(1, where=group(sex="F")) <= 0.2], 2),
        ([rate(1, where=group(race="B")) <= 0.2], 2),
        ([rate(1, where=~group(race="B")) <= 0.2], 2),
        ([rate(1, where=group(age=between(20, 30))) <= 0.2], 2),
        ([rate(1, where=group(town=below(5))) <= 0.2], 2),
        ([rate(0, where=label(1) & group(sex="F")) <= 0.2], 2),
        ([demographic_parity("race", max_gap=0.1)], 3),
        ([equalized_odds("sex", max_gap=0.1)], 4),
        ([precision(0.8)], 2),
    ],
)
def test_smallest_partition(constraints, cells):
    assert compiled(*constraints).n_cells == cells


def test_columns_no_constraint_reads_are_not_crossed():
    wide = Domain((0, 1), {f"c{i}": range(10) for i in range(30)})
    table = compile_constraints(demographic_parity("c3", max_gap=0.1), wide)
    assert table.n_cells == 10
    assert code_table(table, np.zeros(10, int), {"c3": np.arange(10)})[1].tolist() == list(range(10))


def test_values_no_condition_separates_are_merged_before_crossing():
    wide = Domain((0, 1), {f"c{i}": range(10) for i in range(10)})
    conditions = [rate(1, where=group(**{f"c{i}": 3})) <= 0.5 for i in range(10)]
    assert compile_constraints(conditions, wide).n_cells == 2**10


def test_too_many_combinations_end_in_an_error_with_the_count():
    wide = Domain((0, 1), {f"c{i}": range(10) for i in range(10)})
    families = [demographic_parity(f"c{i}", max_gap=0.1) for i in range(10)]
    with pytest.raises(InvalidInput, match=r"10,000,000,000 combinations.*c0 \(10\).*constrain fewer"):
        compile_constraints(families, wide)


def test_too_many_cells_end_in_an_error_with_the_count():
    wide = Domain((0, 1), {f"c{i}": range(60) for i in range(3)})
    with pytest.raises(InvalidInput, match="216,000 cells"):
        compile_constraints([demographic_parity(f"c{i}", max_gap=0.1) for i in range(3)], wide)


def test_too_many_nonzeros_end_in_an_error(monkeypatch):
    crowd = Domain((0, 1), {"town": range(200)})
    monkeypatch.setattr(cells_module, "MAX_NONZEROS", 10_000)
    with pytest.raises(InvalidInput, match="versus='everyone'"):
        compile_constraints(equalized_odds("town", max_gap=0.1), crowd)
    sparse = compile_constraints(equalized_odds("town", max_gap=0.1, versus="everyone"), crowd)
    assert sparse.n_cells == 400


def test_wordings_of_the_same_subset_are_one_subset():
    a = rate(1, where=group(sex="F")) <= 0.2
    b = rate(1, where=~group(sex="M")) <= 0.3
    table = compiled(a, b)
    assert len(table.subsets) == 1
    assert table.names == (a.name,)


# --------------------------------------------------------------------- impossible demands


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([rate(1) >= 1.2], "no classifier.*never exceed 1"),
        ([rate(1) <= -0.1], "no classifier.*never fall below 0"),
        ([rate(0) + rate(1) <= 0.9], "no classifier.*never fall below 1"),
        ([rate(0) + rate(1) >= 1.1], "no classifier"),
        ([rate(1, where=group(sex="F")) - rate(1, where=group(sex="M")) <= -1.01], "no classifier"),
        ([1 - rate(1, where=label(1)) >= 1.5], "no classifier"),
        ([rate(1, where=label(1), out_of=everyone) >= 1.1], "no classifier"),
        (
            [1 - sum(rate(k, where=label(k), out_of=rows(group(sex="F"))) for k in (0, 1)) <= -0.1],
            "no classifier.*never fall below 0",
        ),
        ([rate(1) >= 0.5, rate(1) <= 0.4], "contradict"),
        ([2 * rate(1) >= 1, rate(1) <= 0.4], "contradict"),
        ([rate(1, where=group(sex="F")) >= 0.5, rate(1, where=~group(sex="M")) <= 0.4], "contradict"),
        ([rate(1, where=group(sex="F") & ~group(sex={"F", "M"})) <= 0.5], "no row"),
        ([rate(1, where=~group(sex=["F", "M"])) <= 0.5], "no row"),
        ([rate(1, where=label(0) & label(1)) <= 0.5], "no row"),
        ([rate(1, where=label(1), out_of=label(0)) <= 0.5], "no row"),
        ([rate(1, where=group(town=below(0))) <= 0.5], "no row"),
        ([rate(2) <= 0.5], r"P\(2\).*2 is not among the classes: 0, 1"),
        ([rate("1") <= 0.5], r"did you mean 1 \(int\)"),
        ([rate(1, where=label(7)) <= 0.5], "7 is not among the classes: 0, 1"),
        ([rate(1, where=group(sex="X")) <= 0.5], "'X' is not among the declared values of column 'sex': 'F', 'M'"),
        ([rate(1, where=group(town="3")) <= 0.5], r"did you mean 3 \(int\)"),
        ([rate(1, where=group(height=3)) <= 0.5], "column 'height' is not declared; the columns are: 'sex'"),
        ([rate(1, where=group(height=below(3))) <= 0.5], "column 'height' is not declared"),
        ([rate(1, where=group(age=25)) <= 0.5], "numeric: use below"),
        ([rate(1, where=group(sex=below(3))) <= 0.5], "column 'sex' is not numeric"),
    ],
)
def test_impossible(constraints, message):
    with pytest.raises(InvalidInput, match=message):
        compiled(*constraints)


WOMEN, MEN = group(sex="F"), group(sex="M")
PARITY = demographic_parity("sex", max_gap=0.05)


@pytest.mark.parametrize(
    ("constraints", "named"),
    [
        ([rate(0) <= 0.2, rate(1) <= 0.2], ["P(0) <= 0.2", "P(1) <= 0.2"]),
        (
            [rate(1, WOMEN) <= 0.2, rate(1, MEN) <= 0.2, rate(1) >= 0.5],
            ["P(1 | sex=F) <= 0.2", "P(1 | sex=M) <= 0.2", "P(1) >= 0.5"],
        ),
        (
            [PARITY, rate(1, WOMEN) <= 0.1, rate(1, MEN) >= 0.5],
            ["P(1 | sex=F) - P(1 | sex!=F) >= -0.05", "P(1 | sex=F) <= 0.1", "P(1 | sex=M) >= 0.5"],
        ),
        # women and everyone bounded, the gap ties men to women: men cannot make up for it
        (
            [PARITY, rate(1, WOMEN) <= 0.1, rate(1) >= 0.5],
            ["P(1 | sex=F) - P(1 | sex!=F) >= -0.05", "P(1 | sex=F) <= 0.1", "P(1) >= 0.5"],
        ),
        # other groups of the same people
        (
            [rate(1, group(race=race)) <= 0.2 for race in "ABC"] + [rate(1, WOMEN) >= 0.5, rate(1, MEN) >= 0.5],
            [*(f"P(1 | race={race}) <= 0.2" for race in "ABC"), "P(1 | sex=F) >= 0.5", "P(1 | sex=M) >= 0.5"],
        ),
        # wrong on half of each class, and right on nine tenths of all
        (
            [
                rate(1, label(1)) <= 0.5,
                rate(0, label(0)) <= 0.5,
                sum(rate(k, where=label(k), out_of=rows(everyone)) for k in (0, 1)) >= 0.9,
            ],
            ["P(1 | label=1) <= 0.5", "P(0 | label=0) <= 0.5", "P(0, label=0) + P(1, label=1) >= 0.9"],
        ),
        (
            [precision(0.8), rate(1, where=label(0), out_of=everyone) >= 0.3, rate(1) >= 0.1],
            ["P(label=1 | predicted 1) >= 0.8", "P(label=0 | predicted 1) >= 0.3", "P(1) >= 0.1"],
        ),
        (
            [rate(k, WOMEN) <= 0.3 for k in (0, 1, 2)],
            ["P(0 | sex=F) <= 0.3", "P(1 | sex=F) <= 0.3", "P(2 | sex=F) <= 0.3"],
        ),
    ],
    ids=range(8),
)
def test_constraints_that_exclude_each_other_are_named(constraints, named):
    domain = Domain((0, 1, 2), PEOPLE.columns) if "P(2 | sex=F) <= 0.3" in named else PEOPLE
    innocent = [rate(1, where=group(age=below(30))) <= 0.4, equalized_odds("sex", max_gap=0.1)]
    with pytest.raises(InvalidInput, match=r"contradict each other.*relax or drop one") as refused:
        compiled(*innocent, *constraints, domain=domain)
    assert all(name in str(refused.value) for name in named)
    assert "age" not in str(refused.value)
    assert "label=1 & sex" not in str(refused.value)
    for left_out in range(len(constraints)):
        rest = [c for j, c in enumerate(constraints) if j != left_out]
        compiled(*innocent, *rest, domain=domain)


def test_contradictions_are_looked_for_up_to_a_size(monkeypatch):
    limits = [rate(0) <= 0.2, rate(1) <= 0.2]
    monkeypatch.setattr("ratewise.constraints.feasibility.MOST_ENTRIES", 5)
    assert len(compiled(*limits)) == 2


def test_the_second_kind_of_proof_is_looked_for_up_to_a_size(monkeypatch):
    limits = [rate(1, WOMEN) <= 0.2, rate(1, MEN) <= 0.2, rate(1) >= 0.5]
    monkeypatch.setattr("ratewise.constraints.feasibility._MOST_COUNTS", 7)
    assert len(compiled(*limits)) == 3
    monkeypatch.setattr("ratewise.constraints.feasibility._MOST_COUNTS", 8)
    with pytest.raises(InvalidInput, match="contradict"):
        compiled(*limits)


def test_what_is_only_measured_may_contradict():
    limits = [rate(0) <= 0.2, rate(1) <= 0.2, rate(1) >= 0.3]
    assert len(compile_constraints(limits, PEOPLE, to_hold=False)) == 3


@pytest.mark.parametrize(
    "constraint",
    [
        rate(1) <= 5,
        rate(1) >= 1,
        rate(1) <= 0,
        rate(0) + rate(1) <= 1,
        rate(1, where=group(sex="F")) - rate(1, where=group(sex="M")) <= -1,
        rate(1, where=group(sex="F")) - rate(1, where=~group(sex="M")) <= 0.1,
    ],
)
def test_trivial_and_extreme_bounds_are_allowed(constraint):
    assert len(compiled(constraint)) == 1


def test_equal_bounds_on_both_sides_are_allowed():
    assert len(compiled(rate(1).between(0.3, 0.3))) == 2


def test_a_gap_of_a_group_with_itself_is_nothing_and_cannot_be_negative():
    with pytest.raises(InvalidInput, match="no classifier"):
        compiled(rate(1, where=group(sex="F")) - rate(1, where=~group(sex="M")) <= -0.1)


# -------------------------------------------------------------------------- rows to cells


def sex_and_age():
    return compiled(
        rate(1, where=group(sex="F") & label(1)) <= 0.2,
        rate(1, where=group(sex="M") | label(0)) <= 0.9,
        rate(1, where=group(age=at_least(30))) <= 0.5,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "wrap",
    [
        np.array,
        list,
        tuple,
        lambda v: np.array(v, dtype=object),
        pd.Series,
        lambda v: pd.Series(v, dtype="category"),
        lambda v: pd.Series(pd.Categorical(v, categories=["Z", "M", "F"])),
        lambda v: pd.Series(v, index=range(5, 5 + len(v))),
        pl.Series,
        lambda v: pl.Series(v).cast(pl.Categorical),
    ],
)
def test_every_kind_of_column_gives_the_same_cells(wrap, seed):
    rng = np.random.default_rng(seed)
    truth, age = rng.integers(0, 2, 50), rng.uniform(20, 40, 50)
    sex = [("F", "M")[code] for code in rng.integers(0, 2, 50)]
    table = sex_and_age()
    found = code_table(table, truth, {"sex": wrap(sex), "age": age, "unread": None})[1]
    keys = [(s == "F" and t == 1, a >= 30) for s, t, a in zip(sex, truth, age, strict=True)]
    expected = {}
    for key, cell in zip(keys, found, strict=True):
        assert expected.setdefault(key, cell) == cell
    assert len(set(expected.values())) == len(expected)
    assert found.dtype == np.int8


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float32, np.float64, object])
def test_numbers_and_bools_match(dtype):
    domain = Domain((0, 1), {"flag": (False, True), "n": (1, 0), "x": (0.0, 0.5, 1.0)})
    table = compile_constraints([demographic_parity(c, max_gap=0.5) for c in ("flag", "n")], domain)
    data = np.array([0, 1, 1, 0]).astype(dtype)
    cells = code_table(table, np.zeros(4, int), {"flag": data, "n": data})[1]
    assert cells.tolist() == [1, 2, 2, 1]
    halves = compile_constraints(demographic_parity("x", max_gap=0.5), domain)
    assert code_table(halves, np.zeros(4, int), {"x": data})[1].tolist() == [0, 2, 2, 0]


def test_wide_integers_are_not_rounded_into_declared_ones():
    domain = Domain((0, 1), {"n": (300, 10**30, 44)})
    table = compile_constraints(demographic_parity("n", max_gap=0.5), domain)
    assert code_table(table, np.zeros(1, int), {"n": np.array([44], dtype=np.uint8)})[1].tolist() == [2]
    exhaustive = compile_constraints(demographic_parity("n", max_gap=0.5), Domain((0, 1), {"n": (300, 400)}))
    assert code_table(exhaustive, [0], {"n": np.array([44], dtype=np.uint8)})[1].tolist() == [-1]


def test_intervals_are_half_open_on_rows():
    table = compiled(rate(1, where=group(age=between(20, 30))) <= 0.5)
    inside = code_table(table, np.zeros(1, int), {"age": [25]})[1][0]
    found = code_table(table, np.zeros(5, int), {"age": np.array([19, 20, 29, 30, 1e9])})[1]
    assert (found == inside).tolist() == [False, True, True, False, False]


def test_bad_columns():
    with pytest.raises(InvalidInput, match=r"'sex' has 1 rows.*2 labels"):
        sex_and_age().code_cells([0, 1], {"sex": [0], "age": [1.0, 2.0]})
    with pytest.raises(InvalidInput, match="column 'age' is read"):
        sex_and_age().code_cells([0, 1], {"sex": [0, 1]})


@pytest.mark.parametrize("codes", [[0.0, 1.0], ["a", "b"], [[0, 1]], 3])
def test_bad_label_codes(codes):
    with pytest.raises(InvalidType, match="label_codes"):
        compiled().code_cells(codes, {})


def test_labels_to_codes():
    domain = Domain(("no", "yes"))
    assert code_labels(np.array(["yes", "no"]), domain).tolist() == [1, 0]
    assert code_labels(["maybe"], domain).tolist() == [-1]


# --------------------------------------------------------------------- values and weights


def test_by_hand():
    table = compiled(rate(1, where=group(sex="F")) - rate(1, where=~group(sex="F")) <= 0.05, rate(1) >= 0.2)
    h = np.array([[6.0, 4.0], [5.0, 15.0]])
    np.testing.assert_allclose(table.values(h), [0.4 - 0.75, -19 / 30])
    np.testing.assert_allclose(table.bounds, [0.05, -0.2])
    np.testing.assert_allclose(table.reached(table.values(h)), [0.4 - 0.75, 19 / 30])
    weights = table.weights(np.array([2.0, 3.0]), h)
    np.testing.assert_allclose(weights, [[0, 2 / 10 - 3 / 30], [0, -2 / 20 - 3 / 30]])
    np.testing.assert_allclose(table.sizes(h), table.sizes(h.sum(axis=1)))
    assert dict(zip((subset.name for subset in table.subsets), table.sizes(h), strict=True)) == {
        "sex=F": 10,
        "sex!=F": 20,
        "everyone": 30,
    }


def test_precision_by_hand():
    table = compiled(rate(1, where=label(1), out_of=everyone) >= 0.8)
    h = np.array([[6.0, 4.0], [5.0, 12.0]])  # rows: truth 0, truth 1
    np.testing.assert_allclose(table.values(h), [-0.75])
    np.testing.assert_allclose(table.weights(np.array([2.0]), h), [[0, 2 * 0.75 / 16], [0, -2 * 0.25 / 16]])


@pytest.mark.parametrize("dense", [0, 10**9])
def test_floor_clamp_and_better_totals(dense, monkeypatch):
    monkeypatch.setattr("ratewise.constraints.compiled._DENSE", dense)
    table = compiled(
        rate(1, where=group(sex="F")) <= 0.5,
        rate(1, where=group(sex="M")) <= 0.5,
        rate(1, where=group(sex="M"), out_of=everyone) <= 0.5,
    )
    noisy = np.array([[0.2, -0.5], [3.0, 5.0]])
    np.testing.assert_allclose(table.values(noisy), [0, 5 / 8, 1])
    np.testing.assert_allclose(table.values(noisy, clamp=False), [-0.5, 5 / 8, 5 / 4.5])
    np.testing.assert_allclose(table.values(noisy, floor=10.0, clamp=False), [-0.05, 0.5, 0.5])
    totals = np.array([2.0, 10.0])
    np.testing.assert_allclose(table.values(noisy, totals, clamp=False), [-0.25, 0.5, 5 / 4.5])
    weights = table.weights(np.array([1.0, 2.0, 0.0]), noisy, totals)
    np.testing.assert_allclose(weights, [[0, 1 / 2], [0, 2 / 10]])
    # the clamped value enters the ratio's weights: 1 - 1 for men, -1 for women, over 4.5
    np.testing.assert_allclose(table.weights(np.array([0.0, 0.0, 9.0]), noisy, totals), [[0, -2], [0, 0]], atol=1e-12)


def test_no_constraints():
    table = compile_constraints(None, PEOPLE)
    h = np.ones((1, 2))
    assert len(table) == 0
    assert table.values(h).shape == (0,)
    assert table.denominators(h).shape == (0,)
    assert (table.weights(np.zeros(0), h) == 0).all()
    assert table.sizes(h).shape == (0,)
    assert code_table(table, [0, 1, 1], {})[1].tolist() == [0, 0, 0]


def test_histogram_of_codes_and_of_soft_predictions():
    table = sex_and_age()
    rng = np.random.default_rng(0)
    cells = rng.integers(0, table.n_cells, 100)
    codes = rng.integers(0, 2, 100)
    hard = table.histogram(cells, codes)
    np.testing.assert_array_equal(hard, table.histogram(cells, np.eye(2)[codes]))
    assert hard.sum() == 100
    assert hard[cells[0], codes[0]] == ((cells == cells[0]) & (codes == codes[0])).sum()
    for nothing in (np.full(100, 2), np.full(100, -1)):
        assert table.histogram(cells, nothing).sum() == 0
    for wrong in (np.zeros((100, 3)), np.zeros(99, int), np.zeros(100)):
        with pytest.raises((InvalidInput, InvalidType)):
            table.histogram(cells, wrong)


def test_wrong_shapes_are_refused():
    table = sex_and_age()
    for wrong in (np.ones((3, 3)), np.ones(4), np.ones((2, 4))):
        with pytest.raises(InvalidInput):
            table.values(wrong)
        with pytest.raises(InvalidInput):
            table.sizes(wrong.T[:1])


def test_compiled_is_frozen_and_pickles():
    table = sex_and_age()
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.bounds = None
    again = pickle.loads(pickle.dumps(table))
    h = np.random.default_rng(0).random((table.n_cells, 2)) * 9
    np.testing.assert_array_equal(again.values(h), table.values(h))
    assert isinstance(again, CompiledConstraints)
    assert again.names == table.names


def test_the_users_guide_is_true():
    guide = pathlib.Path(__file__).parents[2] / "docs" / "constraints.md"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testfile(str(guide), module_relative=False, optionflags=flags)
    assert tried > 15
    assert failed == 0


# ------------------------------------------------------------------------------- scale


def peak_and_nonzeros(constraints, domain):
    tracemalloc.start()
    try:
        table = compile_constraints(constraints, domain)
        h = np.ones((table.n_cells, table.n_classes))
        table.weights(np.ones(len(table)), h)
        table.values(h)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    listed = sum(len(table.index_sets[s].listed) for s in table.terms.numerator)
    return table, peak, table.coefficients.nnz + listed + table.n_cells * table.n_classes


def test_memory_follows_the_nonzeros():
    # 10,000 constraints, 1,000 cells, 100 classes; as a dense J x Q x K array this would be 8 GB
    rng = np.random.default_rng(0)
    domain = Domain(range(100), {"town": range(1000)})
    towns = [group(town=t) for t in range(1000)]
    picks = zip(rng.integers(0, 1000, 10_000).tolist(), rng.integers(0, 100, 10_000).tolist(), strict=True)
    constraints = [rate(k, where=towns[t]) - rate(k, where=~towns[t]) <= 0.3 for t, k in picks]
    table, peak, nonzeros = peak_and_nonzeros(constraints, domain)
    assert table.n_cells == 1000
    assert len(table) > 9000
    assert peak < 500 * nonzeros


def test_memory_grows_in_proportion():
    def per_nonzero(groups):
        domain = Domain((0, 1), {"town": range(groups)})
        _, peak, nonzeros = peak_and_nonzeros(demographic_parity("town", max_gap=0.1), domain)
        return peak / nonzeros

    per_nonzero(10)  # imports and caches
    assert per_nonzero(800) < 2 * per_nonzero(100)


def test_rest_subsets_are_stored_as_complements():
    table = compile_constraints(demographic_parity("town", max_gap=0.1), Domain((0, 1), {"town": range(1000)}))
    assert sum(len(subset.listed) for subset in table.index_sets) == 2000


@pytest.mark.parametrize("exact_totals", [False, True])
@pytest.mark.parametrize(
    "declared",
    [
        [demographic_parity("race", max_gap=0.1), rate(1, where=label(1), out_of=everyone) >= 0.1],
        [equalized_odds("race", max_gap=0.1, versus="everyone"), precision(0.1, by="sex")],
        [rate(1, where=group(sex="F"), out_of=rows(~group(race="B"))) <= 0.9, error_rate_parity("sex", max_gap=0.5)],
    ],
)
def test_standard_deviations_of_values_follow_from_the_gradient(declared, exact_totals):
    table = compile_constraints(declared, PEOPLE)
    rng = np.random.default_rng(1)
    h = rng.uniform(50, 200, (table.n_cells, 2))
    totals = h.sum(axis=1) if exact_totals else None
    std = rng.uniform(0.5, 2.0, h.shape)
    gradients = np.empty((len(table), h.size))
    for entry in range(h.size):
        step = np.zeros(h.size)
        step[entry] = 1e-4
        up, down = (table.values(h + sign * step.reshape(h.shape), totals) for sign in (1, -1))
        gradients[:, entry] = (up - down) / 2e-4
    values, found = table.value_and_std(h, std, totals)
    np.testing.assert_allclose(values, table.values(h, totals))
    np.testing.assert_allclose(found, np.sqrt(gradients**2 @ std.ravel() ** 2), rtol=1e-6)
    uniform = table.value_and_std(h, 1.5, totals)[1]
    np.testing.assert_allclose(uniform, 1.5 * np.sqrt((gradients**2).sum(axis=1)), rtol=1e-6)
    for wild in (np.zeros_like(h), np.full_like(h, -5.0)):
        assert np.isfinite(table.value_and_std(wild, 3.0)).all()


def test_standard_deviations_cover_noise_and_sampling():
    table = compile_constraints(demographic_parity("sex", max_gap=0.1), PEOPLE)
    rng = np.random.default_rng(0)
    expected, sigma = np.array([[300.0, 100.0], [350.0, 250.0]]), 4.0
    drawn = [table.values(rng.poisson(expected) + rng.normal(0, sigma, expected.shape)) for _ in range(20_000)]
    _, std = table.value_and_std(expected, np.sqrt(expected + sigma**2))
    np.testing.assert_allclose(np.std(drawn, axis=0), std, rtol=0.03)


def test_domains_found_by_a_release_never_stop_compilation():
    found = Domain((0, 1), {"sex": (), "race": ("A",)}, other=True)
    declared = [demographic_parity("sex", max_gap=0.1), demographic_parity("race", max_gap=0.1)]
    table = compile_constraints(declared, found, allow_empty=True)
    assert table.n_cells == 2
    narrow = Domain((0, 1), {"race": ("A",)})
    empty = compile_constraints([*declared[1:], rate(1, where=~group(race="A")) <= 0.5], narrow, allow_empty=True)
    assert empty.values([[5.0, 5.0]]).tolist() == [0.0]
    assert empty.weights(np.ones(1), [[5.0, 5.0]]).tolist() == [[0.0, 0.0]]
    with pytest.raises(InvalidInput, match="compares groups"):
        compile_constraints(declared[1:], narrow)


def test_error_rates_of_many_classes_stay_sparse():
    table = compile_constraints(error_rate_parity("sex", max_gap=0.1), Domain(range(50), {"sex": ("F", "M")}))
    assert table.coefficients.nnz == 2 * 2 * 50
    assert len(list(expand(error_rate_parity("sex", max_gap=0.1), table.domain))) == len(table)


@pytest.mark.parametrize("n_values", [2, 126, 127, 128, 129, 300])
def test_codes_and_cells_of_many_values_fit_their_small_types(n_values):
    domain = Domain((0, 1), {"g": range(n_values)})
    data = np.arange(n_values)[::-1]
    assert code_groups({"g": data}, domain)["g"].tolist() == data.tolist()
    table = compile_constraints(demographic_parity("g", max_gap=0.5), domain)
    cells = code_table(table, np.zeros(n_values, int), {"g": data})[1]
    assert len(set(cells.tolist())) == (n_values if n_values > 2 else 2)
    assert cells.min() == 0
    assert cells.max() == table.n_cells - 1


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float64, "category", "<U1"])
def test_labels_and_cells_take_a_few_bytes_a_row(kind):
    """One byte for a label and one for a cell, and little more on the way, beside what was given."""
    n_rows = 1_000_000
    groups = np.full(n_rows, 0, dtype=np.int8 if kind == "category" else kind)
    groups[::3] = 1
    domain = Domain((0, 1), {"g": ("0", "1") if kind == "<U1" else (0, 1)})
    table = compile_constraints(demographic_parity("g", max_gap=0.5), domain)
    labels = np.zeros(n_rows, dtype=np.int8)
    given = pd.Series(groups).astype("category") if kind == "category" else groups
    tracemalloc.start()
    cells = code_table(table, labels, {"g": given})[1]
    counted = np.bincount(cells, minlength=table.n_cells)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(counted.tolist()) == [333_334, 666_666]
    assert kept < 1.1 * n_rows
    assert peak < 4 * n_rows + 6e6


def test_the_repr_is_one_readable_line():
    domain = Domain(classes=(0, 1), columns={"g": ("a", "b", "c")})
    compiled = compile_constraints(demographic_parity("g", max_gap=0.1), domain)
    assert repr(compiled) == (
        "<CompiledConstraints: 6 constraints, 3 cells, 2 classes: 'P(1 | g=a) - P(1 | g!=a) <= 0.1', "
        "'P(1 | g=a) - P(1 | g!=a) >= -0.1', 'P(1 | g=b) - P(1 | g!=b) <= 0.1' and 3 more>"
    )
