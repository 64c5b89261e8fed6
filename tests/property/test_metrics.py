"""Reports against a slow oracle that knows only rows and masks."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.rates import everyone, group, label, rate, rows
from ratewise.exceptions import InvalidInput
from ratewise.metrics import rate_report

VALUES = ("a", "b", "c")
PREDICATES = {
    everyone: lambda g, y: np.ones(len(y), dtype=bool),
    group(g="a"): lambda g, y: g == "a",
    group(g={"a", "b"}): lambda g, y: (g == "a") | (g == "b"),
    ~group(g="b"): lambda g, y: g != "b",
    label(1): lambda g, y: y == 1,
    label(0, 2) & group(g="c"): lambda g, y: (y != 1) & (g == "c"),
}


@st.composite
def terms(draw):
    """Draw a rate, and the same rate as a function of groups, labels and predictions (n x K)."""
    k, where = draw(st.integers(0, 2)), draw(st.sampled_from(list(PREDICATES)))
    kind = draw(st.sampled_from(("share", "ratio", "rows")))
    inside = PREDICATES[where]
    if kind == "share":
        return rate(k, where=where), lambda g, y, p: _over(p[inside(g, y), k].sum(), inside(g, y).sum())
    of = draw(st.sampled_from(list(PREDICATES)))
    outer = PREDICATES[of]
    if kind == "ratio":
        return rate(k, where=where, out_of=of), lambda g, y, p: _over(
            p[inside(g, y) & outer(g, y), k].sum(), p[outer(g, y), k].sum()
        )
    return rate(k, where=where, out_of=rows(of)), lambda g, y, p: _over(
        p[inside(g, y) & outer(g, y), k].sum(), outer(g, y).sum()
    )


@functools.cache
def _possible(predicate):
    """Return whether some combination of a group and a label satisfies a predicate."""
    try:
        compile_constraints(rate(0, where=predicate) <= 1, Domain((0, 1, 2), {"g": VALUES}))
    except InvalidInput:
        return False
    return True


def _over(part, whole):
    return part / whole if whole else math.nan


@st.composite
def data(draw):
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups, truth = rng.choice(VALUES, n), rng.integers(0, 3, n)
    prob = rng.dirichlet([0.3, 0.3, 0.3], n)
    return groups, truth, prob


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.tuples(terms(), st.sampled_from((-2.0, -1.0, 0.5, 1.0))), min_size=1, max_size=4),
    data(),
    st.booleans(),
    st.booleans(),
    st.floats(-0.5, 0.5),
)
def test_report_equals_the_oracle(mix, rows_drawn, soft, upper, constant):
    groups, truth, prob = rows_drawn
    expression = sum((c * term for (term, _), c in mix), start=0.0 * mix[0][0][0]) + constant
    if not expression.terms or not all(_possible(term.where) for term, _ in expression.terms):
        return
    predicted = prob if soft else np.eye(3)[prob.argmax(axis=1)]
    expected = constant + sum(c * oracle(groups, truth, predicted) for (_, oracle), c in mix)
    constraint = expression <= 50 if upper else expression >= -50
    given_as = {"y_prob": prob} if soft else {"y_pred": prob.argmax(axis=1)}
    (row,) = rate_report(
        constraint, truth, **given_as, sensitive_features={"g": groups}, classes=(0, 1, 2), group_values={"g": VALUES}
    )
    if math.isnan(row.reached):
        assert math.isnan(expected)
        assert row.holds is None
        return
    # a rate that cancels out of the sum needs no rows, so the oracle may be NaN where the report is not
    if not math.isnan(expected):
        assert row.reached == pytest.approx(expected, abs=1e-9)
    low, high = row.interval
    assert low - 1e-9 <= row.reached <= high + 1e-9
    assert row.holds is True


@settings(max_examples=50, deadline=None)
@given(data())
def test_the_order_of_rows_does_not_matter_and_copies_narrow_the_interval(rows_drawn):
    groups, truth, prob = rows_drawn
    guess = prob.argmax(axis=1)
    gap = rate(1, where=group(g="a")) - rate(1) <= 2

    def interval(*places):
        order = np.concatenate(places)
        (row,) = rate_report(
            gap,
            truth[order],
            guess[order],
            sensitive_features={"g": groups[order]},
            classes=(0, 1, 2),
            group_values={"g": VALUES},
        )
        return row.interval

    forwards = np.arange(len(truth))
    once, backwards, often = interval(forwards), interval(forwards[::-1]), interval(*[forwards] * 20)
    assert once == pytest.approx(backwards, nan_ok=True)
    if not math.isnan(once[0]):
        assert often[1] - often[0] <= once[1] - once[0] + 1e-9
