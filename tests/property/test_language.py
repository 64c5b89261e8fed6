import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ratewise.constraints.domain
import ratewise.constraints.rates as language
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain, Numeric, at_least, below, between
from ratewise.constraints.rates import everyone, group, label, nobody, rate, rows
from ratewise.data.table import code_table
from ratewise.exceptions import InvalidInput

SEX, RACE, CLASSES, AGES = ("F", "M"), ("A", "B", "C", "D"), ("no", "yes", "maybe"), (5, 10, 15, 20, 25)
DOMAIN = Domain(CLASSES, {"sex": SEX, "race": RACE, "age": Numeric()})
ATOMS = [{"sex": s, "race": r, "age": a, "label": y} for s, r, a, y in itertools.product(SEX, RACE, AGES, CLASSES)]
NAMES = {**vars(ratewise.constraints.domain), **vars(language)}


def members(column, values, make):
    return st.sets(st.sampled_from(values), min_size=1).map(lambda v: (make(v), lambda r: r[column] in v))


intervals = st.one_of(
    st.sampled_from([10, 20]).map(lambda t: (group(age=below(t)), lambda r: r["age"] < t)),
    st.sampled_from([10, 20]).map(lambda t: (group(age=at_least(t)), lambda r: r["age"] >= t)),
    st.just((group(age=between(10, 20)), lambda r: 10 <= r["age"] < 20)),
)
leaves = st.one_of(
    members("sex", SEX, lambda v: group(sex=v)),
    members("race", RACE, lambda v: group(race=v)),
    members("label", CLASSES, lambda v: label(*v)),
    intervals,
    st.just((everyone, lambda r: True)),
    st.just((nobody, lambda r: False)),
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: (p[0][0] & p[1][0], lambda r: p[0][1](r) and p[1][1](r))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] | p[1][0], lambda r: p[0][1](r) or p[1][1](r))),
        inner.map(lambda p: (~p[0], lambda r: not p[1](r))),
    ),
    max_leaves=6,
)


def cells_of_atoms(table):
    columns = {name: [atom[name] for atom in ATOMS] for name in ("sex", "race", "age")}
    return code_table(table, [atom["label"] for atom in ATOMS], columns)[1]


@settings(deadline=None, max_examples=150)
@given(st.lists(predicates, min_size=1, max_size=4))
def test_cells_cover_the_domain_and_two_atoms_share_one_iff_no_subset_separates_them(pairs):
    signatures = [tuple(means(atom) for _, means in pairs) for atom in ATOMS]
    empty = [not any(column) for column in zip(*signatures, strict=True)]
    constraints = [rate("yes", where=predicate) <= 1 for predicate, _ in pairs]
    if any(empty):
        with pytest.raises(InvalidInput, match="no row"):
            compile_constraints(constraints, DOMAIN)
        return
    table = compile_constraints(constraints, DOMAIN)
    cells = cells_of_atoms(table)
    assert set(cells) == set(range(table.n_cells))
    by_cell = {cell: {s for s, c in zip(signatures, cells, strict=True) if c == cell} for cell in set(cells)}
    assert all(len(found) == 1 for found in by_cell.values())
    assert len({next(iter(found)) for found in by_cell.values()}) == table.n_cells
    # and every subset is counted as what its predicate means
    sizes = table.sizes(np.bincount(cells, minlength=table.n_cells).astype(float))
    counted = dict(zip(table.subsets, sizes, strict=True))
    for (predicate, _), column in zip(pairs, zip(*signatures, strict=True), strict=True):
        if predicate in counted:
            assert counted[predicate] == sum(column)
    assert len(counted) == len({tuple(column) for column in zip(*signatures, strict=True)})


@settings(deadline=None, max_examples=200)
@given(predicates, predicates)
def test_operators_mean_what_they_say_and_repr_rebuilds(a, b):
    for predicate, means in (a, b, (a[0] & b[0], lambda r: a[1](r) and b[1](r)), (~a[0], lambda r: not a[1](r))):
        again = eval(repr(predicate), dict(NAMES))
        assert again == predicate
        assert hash(again) == hash(predicate)
        assert repr(again) == repr(predicate)
        assert again.name == predicate.name
        assert any(map(means, ATOMS)) or predicate == nobody or not _accepted(predicate)
    assert a[0] & b[0] == b[0] & a[0]
    assert a[0] | b[0] == b[0] | a[0]
    assert ~~a[0] == a[0]


def _accepted(predicate):
    try:
        compile_constraints(rate("yes", where=predicate) <= 1, DOMAIN)
    except InvalidInput:
        return False
    return True


numbers = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: x + 0.0)


@st.composite
def expressions(draw):
    total = draw(numbers)
    for _ in range(draw(st.integers(1, 4))):
        where, of = draw(predicates)[0], draw(predicates)[0]
        out_of = draw(st.sampled_from([None, of, rows(of)]))
        total = total + draw(numbers) * rate(draw(st.sampled_from(CLASSES)), where=where, out_of=out_of)
    return total


@settings(deadline=None, max_examples=150)
@given(expressions(), numbers, st.booleans(), st.none() | st.text(min_size=1).filter(str.strip))
def test_constraints_are_rebuilt_by_their_repr(expression, bound, upper, name):
    assume(expression.terms)
    assert eval(repr(expression), dict(NAMES)) == expression
    constraint = expression <= bound if upper else expression >= bound
    constraint = constraint if name is None else constraint.named(name)
    again = eval(repr(constraint), dict(NAMES))
    assert again == constraint
    assert again.name == constraint.name
    assert hash(again) == hash(constraint)
