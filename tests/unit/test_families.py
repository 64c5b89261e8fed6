import pickle

import numpy as np
import pytest

from ratewise.constraints.compiled import compile_constraints, expand
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.families import (
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    error_rate_parity,
    false_discovery_rate,
    false_negative_rate,
    false_positive_rate,
    paper_false_negative_rate,
    positive_rate,
    precision,
    predictive_equality,
    true_negative_rate,
    true_positive_rate,
)
from ratewise.constraints.rates import everyone, group, label, rate
from ratewise.data.table import code_table
from ratewise.exceptions import InvalidInput, InvalidType

SEX, RACE = ("F", "M"), ("A", "B", "C")
PARITIES = (demographic_parity, equalized_odds, equal_opportunity, predictive_equality, error_rate_parity)
VERSUS = ("rest", "everyone", "pairwise")


def people(classes=2):
    return Domain(range(classes), {"sex": SEX, "race": RACE})


def some_rows(classes, seed, n=400):
    rng = np.random.default_rng(seed)
    columns = {"sex": np.array(SEX)[rng.integers(0, 2, n)], "race": np.array(RACE)[rng.integers(0, 3, n)]}
    return columns, rng.integers(0, classes, n), rng.integers(0, classes, n)


def reach(constraints, domain, columns, truth, predicted):
    compiled = compile_constraints(constraints, domain)
    table = compiled.histogram(code_table(compiled, truth, columns)[1], predicted)
    return compiled, compiled.values(table, floor=1e-12)


def group_masks(names, columns):
    codes = [np.char.add(name, columns[name]) for name in names]
    joined = codes[0] if len(codes) == 1 else np.char.add(codes[0], codes[1])
    return [joined == value for value in np.unique(joined)]


def statistics(kind, classes, truth, predicted):
    """The definitions, straight from predictions: rates of a mask that must be alike between groups."""
    if kind is demographic_parity:
        return [lambda m, k=k: (predicted == k)[m].mean() for k in range(classes)]
    if kind is equalized_odds:
        return [
            lambda m, k=k, y=y: (predicted == k)[m & (truth == y)].mean()
            for k in range(classes)
            for y in range(classes)
        ]
    if kind is equal_opportunity:
        return [lambda m: (predicted == 1)[m & (truth == 1)].mean()]
    if kind is predictive_equality:
        return [lambda m: (predicted == 1)[m & (truth != 1)].mean()]
    return [lambda m: (predicted != truth)[m].mean()]


def largest_gap(kind, versus, masks, classes, truth, predicted):
    gaps = []
    for number, mask in enumerate(masks):
        others = {"rest": [~mask], "everyone": [np.ones_like(mask)], "pairwise": masks[:number]}[versus]
        for rates in statistics(kind, classes, truth, predicted):
            gaps += [abs(rates(mask) - rates(other)) for other in others]
    return max(gaps)


@pytest.mark.parametrize("columns", [("sex",), ("race",), ("sex", "race")])
@pytest.mark.parametrize("versus", VERSUS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", PARITIES)
def test_parity_bounds_the_largest_absolute_gap(kind, classes, versus, columns):
    for seed in range(4):
        values, truth, predicted = some_rows(classes, seed)
        family = kind(*columns, max_gap=0.05, versus=versus)
        compiled, reached = reach(family, people(classes), values, truth, predicted)
        expected = largest_gap(kind, versus, group_masks(columns, values), classes, truth, predicted)
        assert reached.max() == pytest.approx(expected, abs=1e-12)
        np.testing.assert_array_equal(compiled.bounds, 0.05)


@pytest.mark.parametrize(
    ("family", "classes", "count"),
    [
        (demographic_parity("sex", max_gap=0.1), 2, 2),
        (demographic_parity("race", max_gap=0.1), 2, 6),
        (demographic_parity("race", max_gap=0.1), 3, 18),
        (demographic_parity("race", max_gap=0.1, versus="pairwise"), 2, 6),
        (demographic_parity("sex", max_gap=0.1, versus="everyone"), 2, 4),
        (demographic_parity("sex", max_gap=0.1, versus="pairwise"), 2, 2),
        (demographic_parity(max_gap=0.1), 2, 12),
        (equalized_odds("sex", max_gap=0.1), 2, 4),
        (equalized_odds("race", max_gap=0.1), 3, 54),
        (equal_opportunity("sex", max_gap=0.1), 2, 2),
        (error_rate_parity("race", max_gap=0.1), 3, 6),
    ],
)
def test_no_comparison_is_made_twice(family, classes, count):
    compiled = compile_constraints(family, people(classes))
    assert len(compiled) == len(family.expand(people(classes))) == count
    rows = {row.tobytes() for row in compiled.coefficients.toarray()}
    assert len(rows) == count


def test_saying_it_twice_adds_nothing_and_the_tightest_bound_stays():
    domain = people()
    once = compile_constraints(demographic_parity("race", max_gap=0.05), domain)
    twice = compile_constraints(
        [demographic_parity("race", max_gap=0.1), demographic_parity("race", max_gap=0.05)], domain
    )
    assert set(once.names) == set(twice.names)
    np.testing.assert_array_equal(twice.bounds, once.bounds)


LIMITS = {
    "fnr": (false_negative_rate(0.3), lambda t, p: (p != 1)[t == 1].mean()),
    "fpr": (false_positive_rate(0.3), lambda t, p: (p == 1)[t != 1].mean()),
    "tpr": (true_positive_rate(0.3), lambda t, p: (p == 1)[t == 1].mean()),
    "tnr": (true_negative_rate(0.3), lambda t, p: (p != 1)[t != 1].mean()),
    "precision": (precision(0.3), lambda t, p: (t == 1)[p == 1].mean()),
    "fdr": (false_discovery_rate(0.3), lambda t, p: (t != 1)[p == 1].mean()),
    "positive": (positive_rate(max_rate=0.3), lambda t, p: (p == 1).mean()),
}


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("by", [(), "sex", ("sex", "race")])
@pytest.mark.parametrize("which", LIMITS)
def test_limits_are_the_usual_rates(which, by, classes):
    plain, expected = LIMITS[which]
    bound = "max_rate" if plain.low is None else "min_rate"
    family = type(plain)(by=by, **{bound: 0.3})
    columns, truth, predicted = some_rows(classes, 7, 2000)
    compiled, reached = reach(family, people(classes), columns, truth, predicted)
    masks = group_masks(family.columns, columns) if by else [np.ones(2000, bool)]
    straight = sorted(expected(truth[mask], predicted[mask]) for mask in masks)
    np.testing.assert_allclose(sorted(compiled.reached(reached)), straight, atol=1e-12)
    assert {constraint.bound for constraint in compiled.declared} == {0.3}
    lower = family.low is not None
    assert all((">=" if lower else "<=") in name for name in compiled.names)


def test_the_papers_family():
    columns, truth, predicted = some_rows(3, 1)
    compiled, reached = reach(paper_false_negative_rate(0.4), people(3), columns, truth, predicted)
    expected = [(predicted == k)[truth != k].mean() for k in range(3)]
    np.testing.assert_allclose(reached, expected)
    assert compiled.n_cells == 3


def test_positive_rate_two_sided():
    compiled = compile_constraints(positive_rate(min_rate=0.1, max_rate=0.2, by="sex"), people())
    assert compiled.names == (
        "P(1 | sex=F) >= 0.1",
        "P(1 | sex=F) <= 0.2",
        "P(1 | sex=M) >= 0.1",
        "P(1 | sex=M) <= 0.2",
    )


def test_expansion_is_what_it_says():
    assert false_negative_rate(0.2).expand(people()) == (1 - rate(1, where=label(1)) <= 0.2,)
    assert precision(0.8).expand(people()) == (rate(1, where=label(1), out_of=everyone) >= 0.8,)
    female = group(sex="F")
    gap = rate(1, where=female) - rate(1, where=~female)
    assert demographic_parity("sex", max_gap=0.05).expand(people()) == (gap <= 0.05, gap >= -0.05)


def test_error_rates_have_short_names():
    names = [constraint.name for constraint in error_rate_parity("sex", max_gap=0.1).expand(people())]
    assert names == ["error(sex=F) - error(sex!=F) <= 0.1", "error(sex=F) - error(sex!=F) >= -0.1"]


@pytest.mark.parametrize(
    ("family", "code", "name"),
    [
        (demographic_parity("sex", max_gap=0.05), None, "demographic_parity(sex) <= 0.05"),
        (
            equal_opportunity("sex", "race", max_gap=0.1, positive="yes", versus="pairwise"),
            "equal_opportunity('sex', 'race', max_gap=0.1, positive='yes', versus='pairwise')",
            "equal_opportunity(sex, race, positive='yes', versus='pairwise') <= 0.1",
        ),
        (demographic_parity(max_gap=0), "demographic_parity(max_gap=0)", "demographic_parity() <= 0"),
        (false_negative_rate(0.2), "false_negative_rate(0.2)", "false_negative_rate() <= 0.2"),
        (
            true_positive_rate(0.5, positive=0, by=("sex", "race")),
            "true_positive_rate(0.5, positive=0, by=('sex', 'race'))",
            "true_positive_rate(label=0, sex=*, race=*) >= 0.5",
        ),
        (
            positive_rate(min_rate=0.1, max_rate=0.2, by="sex"),
            "positive_rate(min_rate=0.1, max_rate=0.2, by='sex')",
            "positive_rate(sex=*).between(0.1, 0.2)",
        ),
        (paper_false_negative_rate(0.3), "paper_false_negative_rate(0.3)", "paper_false_negative_rate() <= 0.3"),
    ],
)
def test_text(family, code, name):
    assert code is None or repr(family) == code
    assert family.name == str(family) == name
    assert eval(repr(family)) == family
    assert hash(eval(repr(family))) == hash(family)
    assert pickle.loads(pickle.dumps(family)) == family


def test_labels_of_any_kind():
    domain = Domain(("no", "yes"), {"sex": (True, False)})
    compiled = compile_constraints(false_negative_rate(0.2, positive="yes", by="sex"), domain)
    assert compiled.names[0] == "1 - P(yes | label=yes & sex=True) <= 0.2"
    truth = compile_constraints(equal_opportunity("sex", max_gap=0.1), Domain((False, True), {"sex": (0, 1)}))
    assert len(truth) == 2


@pytest.mark.parametrize("family", [equal_opportunity("sex", max_gap=0.1), precision(0.8), positive_rate(0.1)])
def test_a_positive_class_that_is_none_lists_the_classes(family):
    with pytest.raises(InvalidInput, match=r"positive=1.*'no', 'yes'.*positive="):
        family.expand(Domain(("no", "yes"), {"sex": SEX}))


@pytest.mark.parametrize(
    ("misuse", "kind"),
    [
        (lambda: demographic_parity("sex", max_gap=-0.1), InvalidInput),
        (lambda: demographic_parity("sex", max_gap=float("nan")), InvalidInput),
        (lambda: demographic_parity("sex", max_gap=float("inf")), InvalidInput),
        (lambda: demographic_parity("sex", max_gap="0.1"), InvalidType),
        (lambda: demographic_parity("sex", max_gap=0.1, versus="others"), InvalidInput),
        (lambda: demographic_parity("sex", 0.1, max_gap=0.1), InvalidType),
        (lambda: demographic_parity("sex", "sex", max_gap=0.1), InvalidInput),
        (lambda: false_negative_rate(1.2), InvalidInput),
        (lambda: false_negative_rate(-0.1), InvalidInput),
        (lambda: true_positive_rate(float("nan")), InvalidInput),
        (lambda: false_negative_rate(0.1, by=(1,)), InvalidType),
        (lambda: false_negative_rate(0.1, positive=None), InvalidInput),
        (positive_rate, InvalidInput),
        (lambda: positive_rate(min_rate=0.5, max_rate=0.4), InvalidInput),
        (lambda: bool(demographic_parity("sex", max_gap=0.1)), InvalidType),
        (lambda: demographic_parity("town", max_gap=0.1).expand(people()), InvalidInput),
        (lambda: demographic_parity(max_gap=0.1).expand(Domain((0, 1))), InvalidInput),
        (lambda: demographic_parity("a", max_gap=0.1).expand(Domain((0, 1), {"a": ("x",)})), InvalidInput),
        (lambda: demographic_parity("a", max_gap=0.1).expand(Domain((0, 1), {"a": Numeric()})), InvalidInput),
    ],
)
def test_bad_input(misuse, kind):
    with pytest.raises(kind):
        misuse()


def test_expand_takes_any_nesting_and_explains_what_it_does_not_take():
    bound = rate(1) <= 0.2
    nested = [bound, [None, (demographic_parity("sex", max_gap=0.1),)], rate(1).between(0.1, 0.3)]
    assert len(list(expand(nested, people()))) == 5
    for wrong, message in [
        (True, "between"),
        (rate(1), "compare"),
        (("rate(1) <= 0.2", 3), "int"),
        (group(sex="F"), "compare"),
        ({"a": bound}, "dict"),
    ]:
        with pytest.raises(InvalidType, match=message):
            list(expand([wrong], people()))


def test_too_many_constraints_end_before_they_are_built():
    crowd = Domain((0, 1), {"town": range(3000), "street": range(3000)})
    with pytest.raises(InvalidInput, match="8,997,000 constraints"):
        demographic_parity("town", max_gap=0.1, versus="pairwise").expand(crowd)
    with pytest.raises(InvalidInput, match="9,000,000 groups"):
        demographic_parity(max_gap=0.1).expand(crowd)
