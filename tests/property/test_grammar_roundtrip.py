"""Round trips between Python and text, and a parser that a fuzzer cannot surprise.

For minutes rather than seconds, fifty times as many examples::

    RATEWISE_FUZZ=50 python -m pytest tests/property/test_grammar_roundtrip.py
"""

import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratewise import Domain, InvalidInput, Numeric, at_least, below, between, everyone, group, label, nobody, rate, rows
from ratewise.constraints import families
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.text import GrammarError, format_constraint, parse_constraint

FUZZ = int(os.environ.get("RATEWISE_FUZZ", "1"))

numbers = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
values = st.one_of(st.text(max_size=6), st.integers(-(10**20), 10**20), numbers, st.booleans())
columns = st.one_of(st.sampled_from(["sex", "race", "hours-per-week", "class", "label", "é", ""]), st.text(max_size=4))
columns = columns.filter(bool)
intervals = st.one_of(
    numbers.map(below),
    numbers.map(at_least),
    st.tuples(numbers, numbers).filter(lambda p: p[0] < p[1]).map(lambda p: between(*p)),
)
conditions = st.one_of(
    values, st.sets(values, min_size=1, max_size=3), intervals, st.lists(intervals, min_size=1, max_size=2)
)
predicates = st.recursive(
    st.one_of(
        st.dictionaries(columns, conditions, min_size=1, max_size=2).map(lambda d: group(**d)),
        st.lists(values, min_size=1, max_size=2).map(lambda v: label(*v)),
        st.sampled_from([everyone, nobody]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
        inner.map(lambda p: ~p),
    ),
    max_leaves=4,
)
terms = st.one_of(
    st.builds(rate, values, predicates),
    st.builds(rate, values, predicates, predicates),
    st.builds(rate, values, predicates, predicates.map(rows)),
)
expressions = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(numbers, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, numbers).map(lambda p: p[0] + p[1]),
    ),
    max_leaves=4,
).filter(lambda e: bool(e.terms))
bounds = st.tuples(numbers, numbers).map(sorted)
constraints = st.one_of(
    st.tuples(expressions, numbers).map(lambda p: p[0] <= p[1]),
    st.tuples(expressions, numbers).map(lambda p: p[0] >= p[1]),
    st.tuples(expressions, bounds).map(lambda p: p[0].between(*p[1])),
    st.tuples(expressions, numbers).map(lambda p: abs(p[0]) <= abs(p[1])),
    st.tuples(expressions, numbers, st.text(min_size=1).filter(str.strip)).map(lambda p: (p[0] <= p[1]).named(p[2])),
)
shares = st.floats(0, 1)
several = st.lists(columns, max_size=3, unique=True)
parities = st.one_of(
    st.builds(
        lambda kind, by, gap, versus: getattr(families, kind)(*by, max_gap=gap, versus=versus),
        st.sampled_from(["demographic_parity", "equalized_odds", "error_rate_parity"]),
        several,
        shares,
        st.sampled_from(["rest", "everyone", "pairwise"]),
    ),
    st.builds(
        lambda kind, by, gap, positive: getattr(families, kind)(*by, max_gap=gap, positive=positive),
        st.sampled_from(["equal_opportunity", "predictive_equality"]),
        several,
        shares,
        values,
    ),
)
limits = st.one_of(
    st.builds(
        lambda kind, bound, positive, by: getattr(families, kind)(bound, positive, by),
        st.sampled_from(
            [
                "false_negative_rate",
                "false_positive_rate",
                "true_positive_rate",
                "true_negative_rate",
                "precision",
                "false_discovery_rate",
            ]
        ),
        shares,
        values,
        several,
    ),
    st.builds(families.paper_false_negative_rate, shares, several),
    st.builds(lambda low, by: families.positive_rate(low / 2, low, by=by), shares, several),
    st.builds(lambda high, positive: families.positive_rate(max_rate=high, positive=positive), shares, values),
)
declarations = st.one_of(constraints, parities, limits)


@settings(deadline=None, max_examples=300 * FUZZ)
@given(declarations)
def test_python_to_text_and_back_is_the_same(declared):
    text = format_constraint(declared)
    again = parse_constraint(text)
    assert again == declared
    assert type(again) is type(declared)
    assert getattr(again, "name", None) == getattr(declared, "name", None)
    assert format_constraint(again) == text


@settings(deadline=None, max_examples=300 * FUZZ)
@given(constraints)
def test_what_python_prints_is_text_too(declared):
    for one in declared if isinstance(declared, tuple) else (declared,):
        assert parse_constraint(repr(one)) == one


@settings(deadline=None, max_examples=200 * FUZZ)
@given(st.one_of(parities, limits))
def test_families_as_python_prints_them_are_text_too(family):
    assert parse_constraint(repr(family)) == family


PIECES = st.sampled_from(
    [
        *"()[]{},:.=*/+-&|~<>'\"\\ 01_",
        *("<=", ">=", "==", "**", "rate", "group", "label", "rows", "abs", "below", "between", "everyone"),
        *("fnr", "demographic_parity", "positive_rate", "race=*", "where=", "out_of=", "sex", ".named", ".between"),
        *("0.5", "1e308", "1e-320", "9" * 30, "True", "None", "'a'", "\\x", "é", "\x00", "\ud800", "²", "٣", "\n"),
    ]
)
soup = st.lists(PIECES, max_size=40).map("".join)


PEOPLE = Domain(classes=(0, 1), columns={"sex": ("a", 0.5), "race": (True,), "age": Numeric()})


def refusal(text, domain=None):
    try:
        return parse_constraint(text, domain), None
    except GrammarError as error:
        found = error
    assert 0 <= found.position <= len(text)
    assert found.reason
    return None, found


def survives(text):
    found, error = refusal(text)
    known, unknown = refusal(text, PEOPLE)
    assert (error is not None) <= (unknown is not None)  # knowing more never lets more through
    if error is not None:
        assert unknown.position == error.position
        return
    assert unknown is not None or known == found
    try:
        written = format_constraint(found)
    except InvalidInput:
        return
    assert parse_constraint(written) == found


@settings(deadline=None, max_examples=500 * FUZZ)
@given(st.one_of(soup, st.text(max_size=60)))
def test_any_text_is_read_or_refused_with_the_one_error(text):
    survives(text)


@settings(deadline=None, max_examples=300 * FUZZ)
@given(declarations, st.data())
def test_damaged_constraints_are_read_or_refused_with_the_one_error(declared, data):
    text = format_constraint(declared)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 5)))
    survives(text[:start] + data.draw(st.one_of(st.just(""), PIECES)) + text[end:])


@settings(deadline=None, max_examples=200 * FUZZ)
@given(declarations)
def test_what_is_pointed_at_is_what_compiling_refuses(declared):
    """Words that nobody declared are pointed at exactly if the compiler would not know them."""
    _, unknown = refusal(format_constraint(declared), PEOPLE)
    try:
        compile_constraints(declared, PEOPLE)
    except InvalidInput as problem:
        if any(said in str(problem) for said in ("not declared", "is not among", "is not one of")):
            assert unknown is not None
    else:
        assert unknown is None


@settings(deadline=None, max_examples=50 * FUZZ)
@given(st.text(alphabet="()[]{}~-+!*&|,.<=>'\"", min_size=100, max_size=3000))
def test_brackets_and_signs_without_end_are_no_recursion(text):
    assume(text)
    with pytest.raises(GrammarError):
        parse_constraint(text)
