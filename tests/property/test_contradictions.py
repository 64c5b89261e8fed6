"""A set of limits is refused only if no rows and no predictions meet it.

The witnesses are explicit: made-up people in groups of any sizes, with predictions of any kind, whose rates
are counted row by row in plain Python. Whatever limits they meet must pass. On the other side, limits of one
denominator are compared with a search for numbers of rows that shares no code with the proofs.
"""

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ratewise.constraints import feasibility
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.feasibility import contradiction, refuse_contradictions
from ratewise.constraints.rates import everyone, group, label, rate, rows
from ratewise.exceptions import InvalidInput

A = ("x", "y", "z")


def atoms(classes):
    """Every combination of two columns and the true label."""
    return [(a, b, y) for a in A for b in (0, 1) for y in range(classes)]


def domain(classes):
    return Domain(range(classes), {"a": A, "b": (0, 1)})


@st.composite
def subsets(draw, classes):
    """A predicate, and which atoms it is about; None leaves a column out."""
    a = draw(st.sampled_from([None, *A]))
    b = draw(st.sampled_from([None, None, 0, 1]))
    y = draw(st.sampled_from([None, None, *range(classes)]))
    predicate = everyone
    for column, part in ((a, group(a=a or "x")), (b, group(b=b or 0)), (y, label(y or 0))):
        predicate = predicate if column is None else predicate & part
    inside = np.array([a in (None, p) and b in (None, q) and y in (None, r) for p, q, r in atoms(classes)])
    if draw(st.booleans()) and not inside.all():
        return ~predicate, ~inside
    return predicate, inside


@st.composite
def terms(draw, classes, kinds):
    k, kind = draw(st.integers(0, classes - 1)), draw(st.sampled_from(kinds))
    where, inside = draw(subsets(classes))
    if kind == "share":
        return rate(k, where=where), (k, inside, inside, kind)
    of, around = draw(subsets(classes))
    assume((inside & around).any())
    out_of = of if kind == "ratio" else rows(of)
    return rate(k, where=where, out_of=out_of), (k, inside & around, around, kind)


def value(term, counts):
    k, inside, around, kind = term
    bottom = counts[around, k].sum() if kind == "ratio" else counts[around].sum()
    return counts[inside, k].sum() / bottom if bottom > 0 else None


@st.composite
def met_limits(draw):
    """Limits that some people and predictions meet, some of them with nothing to spare."""
    classes = draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = len(atoms(classes))
    people = rng.choice([0, 1, 3, 100, 10**6], size=size).astype(float)
    shares = rng.dirichlet(np.full(classes, draw(st.sampled_from([0.1, 1.0]))), size)
    if draw(st.booleans()):
        shares = np.eye(classes)[shares.argmax(axis=1)]
    counts = people[:, None] * shares
    limits = []
    for _ in range(draw(st.integers(2, 7))):
        kinds = ("share", "share", "ratio", "rows")
        chosen = [draw(terms(classes, kinds)) for _ in range(draw(st.integers(1, 3)))]
        found = [value(term, counts) for _, term in chosen]
        # as in a fit, every subset that a limit reads has a row
        if None in found or not all(counts[inside].sum() > 0 for _, (_, inside, _, _) in chosen):
            continue
        amounts = [draw(st.sampled_from([1.0, -1.0, 0.8, 1e-6, 1e12])) for _ in chosen]
        total = sum(c * t for c, (t, _) in zip(amounts, chosen, strict=True))
        if total.terms:
            reached = sum(c * v for c, v in zip(amounts, found, strict=True))
            room = draw(st.sampled_from([0.0, 0.0, 1e-3, 0.1])) * max(map(abs, amounts))
            limits.append(total <= reached + room if draw(st.booleans()) else total >= reached - room)
    return classes, limits


@settings(deadline=None, max_examples=200)
@given(met_limits())
def test_what_some_predictions_meet_is_never_refused(problem):
    classes, limits = problem
    compiled = compile_constraints(limits, domain(classes), to_hold=False)
    assert contradiction(compiled) == ()
    never = {"_met_by_constants": lambda _: False, "_feasible_for_equal_cells": lambda _: False}
    with mock.patch.multiple(feasibility, **never):  # straight to the proofs
        assert contradiction(compiled) == ()


def rows_exist(limits, classes):
    """Search for numbers of rows that meet limits of one rate each, with a row in every subset."""
    above, right = [], []
    shape = len(atoms(classes)), classes
    for k, inside, around, kind, sign, bound in limits:
        top, bottom = np.zeros(shape), np.zeros(shape)
        top[inside, k] = 1
        bottom[around, k if kind == "ratio" else slice(None)] = 1
        above.append(sign * (top - bound * bottom).ravel())
        right.append(0.0)
        for subset in (inside, around):
            present = np.zeros(shape)
            present[subset] = -1
            above.append(present.ravel())
            right.append(-1.0)
    found = linprog(np.zeros(shape[0] * classes), A_ub=np.array(above), b_ub=right, method="highs")
    assert found.status in (0, 2)
    return found.status == 0


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_constraints_on_single_rates_are_refused_exactly_if_no_rows_could_meet_them(data):
    classes = data.draw(st.integers(2, 3))
    declared, said = [], []
    for _ in range(data.draw(st.integers(2, 6))):
        kinds = ("share", "share", "share", "ratio", "rows")
        term, (k, inside, around, kind) = data.draw(terms(classes, kinds))
        bound, upper = data.draw(st.sampled_from([0.1, 0.3, 0.45, 0.7])), data.draw(st.booleans())
        declared.append(term <= bound if upper else term >= bound)
        said.append((k, inside, around, kind, 1 if upper else -1, bound))
    compiled = compile_constraints(declared, domain(classes), to_hold=False)
    found = contradiction(compiled)
    exist = rows_exist(said, classes)
    # limits that touch in one point, such as a mean of 0.3 of groups at most 0.3 and 0.1, are met as nearly
    # as one likes: whether that contradicts is a matter of rounding
    assume(exist == rows_exist([(*limit, sign, bound + sign * 1e-6) for *limit, sign, bound in said], classes))
    assert bool(found) == (not exist)
    if found:  # what is named contradicts by itself
        alone = compile_constraints([compiled.declared[j] for j in found], domain(classes), to_hold=False)
        with pytest.raises(InvalidInput, match="contradict"):
            refuse_contradictions(alone)


def test_a_proof_is_checked_and_not_taken_from_the_solver(monkeypatch):
    """Weights that a solver might return by mistake prove nothing."""
    limits = [rate(1, where=group(a="x")) >= 0.5, rate(1, where=group(a="y")) <= 0.4, rate(1) <= 0.45]
    compiled = compile_constraints(limits, domain(2))
    true_solve = feasibility._solve

    def wrong(cost, **conditions):
        found = true_solve(cost, **conditions)
        found.x = np.ones_like(cost)
        return found

    monkeypatch.setattr(feasibility, "_solve", wrong)
    monkeypatch.setattr(feasibility, "_feasible_for_equal_cells", lambda system: False)
    assert contradiction(compiled) == ()


def test_subsets_without_a_cell_contradict_nothing():
    """Values found by a release may leave a subset empty; an error would then come after the release."""
    found = Domain((0, 1), {"a": ("x",)})
    limits = [rate(1, where=~group(a="x")) >= 0.5, rate(1) <= 0.3, rate(0) <= 0.9, rate(1) >= 0.2]
    compiled = compile_constraints(limits, found, to_hold=False, allow_empty=True)
    never = {"_met_by_constants": lambda _: False, "_feasible_for_equal_cells": lambda _: False}
    with mock.patch.multiple(feasibility, **never):
        assert contradiction(compiled) == ()
