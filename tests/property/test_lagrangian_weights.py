"""The weights table is the gradient of the Lagrangian, written out constraint by constraint.

The oracle below shares no code with the compiled tables: it loops over explicit rows in plain Python, with
its own reading of every predicate, and differentiates by complex steps.
"""

from unittest import mock

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratewise.constraints import compiled as compiled_module
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain, Numeric, below, between
from ratewise.constraints.rates import everyone, group, label, rate, rows
from ratewise.data.table import code_table

A, B, CUTS = ("x", "y", "z"), (0, 1), (20, 40)
AGES = (10, 30, 50)


def leaf(classes):
    a = st.sets(st.sampled_from(A), min_size=1).map(lambda v: (group(a=v), lambda r: r["a"] in v))
    b = st.sampled_from(B).map(lambda v: (group(b=v), lambda r: r["b"] == v))
    age = st.sampled_from(
        [(group(age=below(20)), lambda r: r["age"] < 20), (group(age=between(20, 40)), lambda r: 20 <= r["age"] < 40)]
    )
    y = st.sets(st.integers(0, classes - 1), min_size=1).map(lambda v: (label(*v), lambda r: r["y"] in v))
    return st.one_of(a, b, age, y, st.just((everyone, lambda r: True)))


def predicates(classes):
    """Pairs of a predicate and an independent function of a row that means the same."""
    return st.recursive(
        leaf(classes),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: (p[0][0] & p[1][0], lambda r: p[0][1](r) and p[1][1](r))),
            st.tuples(inner, inner).map(lambda p: (p[0][0] | p[1][0], lambda r: p[0][1](r) or p[1][1](r))),
            inner.map(lambda p: (~p[0], lambda r: not p[1](r))),
        ),
        max_leaves=4,
    )


@st.composite
def problems(draw):
    classes = draw(st.integers(2, 4))
    atoms = [{"a": a, "b": b, "age": age, "y": y} for a in A for b in B for age in AGES for y in range(classes)]
    # every combination at least once, so that no denominator is zero; some several times
    people = atoms + draw(st.lists(st.sampled_from(atoms), max_size=10))
    constraints = []
    for _ in range(draw(st.integers(1, 4))):
        terms = [draw(one_term(classes, atoms)) for _ in range(draw(st.integers(1, 3)))]
        amounts = [draw(st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 3.0])) for _ in terms]
        expression = sum(c * t for c, (t, _) in zip(amounts, terms, strict=True)) + draw(st.sampled_from([0, 1]))
        assume(expression.terms)
        upper = draw(st.booleans())
        constraint = expression <= 1000 if upper else expression >= -1000
        constraints.append((constraint, [(1 if upper else -1, c, t) for c, (_, t) in zip(amounts, terms, strict=True)]))
    return classes, people, constraints


@st.composite
def one_term(draw, classes, atoms):
    k = draw(st.integers(0, classes - 1))
    where, inside = draw(predicates(classes))
    kind = draw(st.sampled_from(["share", "ratio", "rows"]))
    of, around = (where, inside) if kind == "share" else draw(predicates(classes))
    assume(any(inside(r) and around(r) for r in atoms))
    out_of = {"share": None, "ratio": of, "rows": rows(of)}[kind]
    return rate(k, where=where, out_of=out_of), (k, inside, around, kind)


def term_value(term, people, soft):
    """The rate's definition, row by row."""
    k, inside, around, kind = term
    top = bottom = 0
    for row, prediction in zip(people, soft, strict=True):
        if around(row):
            bottom += prediction[k] if kind == "ratio" else 1
            if inside(row):
                top += prediction[k]
    return top / bottom


def lagrangian(constraints, multipliers, people, soft):
    total = 0
    for terms, multiplier in zip(constraints, multipliers, strict=True):
        total += multiplier * sum(sign * c * term_value(term, people, soft) for sign, c, term in terms)
    return total


@settings(deadline=None, max_examples=60)
@given(problems(), st.integers(0, 2**32 - 1), st.sampled_from([0, 10**9]))
def test_weights_are_the_gradient_of_the_written_out_lagrangian(problem, seed, dense):
    classes, people, declared = problem
    rng = np.random.default_rng(seed)
    soft = rng.dirichlet(np.ones(classes), len(people))
    domain = Domain(range(classes), {"a": A, "b": B, "age": Numeric()})
    with mock.patch.object(compiled_module, "_DENSE", dense):
        table = compile_constraints([constraint for constraint, _ in declared], domain)
        said = [dict(declared)[constraint] for constraint in table.declared]
        multipliers = rng.exponential(size=len(table))
        columns = {name: [row[name] for row in people] for name in ("a", "b", "age")}
        cells = code_table(table, np.array([row["y"] for row in people]), columns)[1]
        h = table.histogram(cells, soft)
        weights = table.weights(multipliers, h, floor=1e-12)
        totals = np.bincount(cells, minlength=table.n_cells).astype(float)
        again = table.weights(multipliers, h, totals, floor=1e-12)
        values = table.values(h, totals, floor=1e-12)
    straight = [lagrangian([terms], [1.0], people, soft) for terms in said]
    np.testing.assert_allclose(values, straight, atol=1e-9)
    np.testing.assert_allclose(again, weights, atol=1e-9)
    for i in rng.choice(len(people), 6, replace=False):
        for k in range(classes):
            moved = [list(map(complex, row)) if j == i else row for j, row in enumerate(soft)]
            moved[i][k] += 1e-30j
            slope = lagrangian(said, multipliers, people, moved)
            np.testing.assert_allclose(weights[cells[i], k], complex(slope).imag / 1e-30, atol=1e-9)
