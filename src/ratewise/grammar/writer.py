"""Constraints and families to text that reads back as the same."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import Family, Limit, Parity
from ratewise.grammar.errors import GrammarError
from ratewise.grammar.parser import parse_constraint
from ratewise.predicates import Member, Predicate
from ratewise.rates import Constraint, Constraints
from ratewise.values import show_number

_OPTIONS = frozenset(("label", "positive", "by", "versus", "max_gap", "max_rate", "min_rate"))
_WORDS = frozenset(("everyone", "nobody", "and", "or", "not"))


def format_constraint(constraint: Constraint | Constraints | Family) -> str:
    """Return the text that `parse_constraint` reads as an equal object; the same text for the same object.

    Raises
    ------
    InvalidInput
        The constraint says something that text cannot: values that are no texts, numbers or truth values, or
        more than the grammar's limits of length and nesting.

    Examples
    --------
    >>> from ratewise import demographic_parity, rate, group
    >>> format_constraint(demographic_parity("sex", max_gap=0.05))
    'demographic_parity(sex) <= 0.05'
    >>> format_constraint(abs(rate(1, where=group(sex="F")) - rate(1)) <= 0.1)
    "abs(rate(1, where=group(sex='F')) - rate(1)) <= 0.1"
    """
    if not isinstance(constraint, Constraint | Constraints | Parity | Limit):
        raise InvalidType(f"expected a constraint or a family, got {type(constraint).__name__}")
    for value in _values(constraint):
        _refuse_unwritable(value)
    text = _text(constraint)
    try:
        same = parse_constraint(text)
    except GrammarError as problem:
        raise InvalidInput(f"the constraint cannot be written as text: {problem.reason}") from None
    if same != constraint:
        raise InvalidInput("the constraint cannot be written as text that reads back as the same")
    return text


def _text(constraint: Any) -> str:
    if isinstance(constraint, Parity):
        return _parity(constraint)
    if isinstance(constraint, Limit):
        return _limit(constraint)
    if isinstance(constraint, Constraints):
        return _several(constraint)
    return repr(constraint)


def _parity(family: Parity) -> str:
    arguments = [_column(column) for column in family.columns]
    if family.positive is not None and family.positive != 1:
        arguments.append(f"positive={family.positive!r}")
    if family.versus != "rest":
        arguments.append(f"versus={family.versus!r}")
    return f"{family.kind}({', '.join(arguments)}) <= {show_number(family.max_gap)}"


def _limit(family: Limit) -> str:
    arguments = []
    if family.positive is not None and family.positive != 1:
        arguments.append(f"label={family.positive!r}")
    if all(_is_word(column) and column not in _OPTIONS for column in family.by):
        arguments += [f"{column}=*" for column in family.by]
    else:
        arguments.append(f"by=[{', '.join(map(repr, family.by))}]")
    rate = f"{family.kind}({', '.join(arguments)})"
    low, high = family.min_rate, family.max_rate
    if low is not None and high is not None:
        return f"{rate}.between({show_number(low)}, {show_number(high)})"
    return f"{rate} >= {show_number(low)}" if low is not None else f"{rate} <= {show_number(high or 0.0)}"


def _several(constraints: Constraints) -> str:
    if len(constraints) == 2 and all(one._name is None for one in constraints):
        first, second = constraints
        if first.expression == second.expression and repr(first.expression) == repr(second.expression):
            expression, bounds = repr(first.expression), (first.bound, second.bound)
            if (first.sense, second.sense) == ("<=", ">=") and bounds[0] == -bounds[1] >= 0:
                return f"abs({expression}) <= {show_number(bounds[0])}"
            if (first.sense, second.sense) == (">=", "<=") and bounds[0] <= bounds[1]:
                return f"({expression}).between({show_number(bounds[0])}, {show_number(bounds[1])})"
    return f"[{', '.join(map(repr, constraints))}]"


def _is_word(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _column(name: str) -> str:
    return name if _is_word(name) and name not in _WORDS else repr(name)


def _values(constraint: Any) -> Iterator[Any]:
    """Yield every label and group value that the constraint holds."""
    if isinstance(constraint, Parity | Limit):
        if constraint.positive is not None:
            yield constraint.positive
    elif isinstance(constraint, Constraints):
        for one in constraint:
            yield from _values(one)
    else:
        for term, _ in constraint.expression.terms:
            yield term.prediction
            for predicate in (term.where, term.of):
                yield from _predicate_values(predicate)


def _predicate_values(predicate: Predicate) -> Iterator[Any]:
    for leaf in predicate.leaves():
        if isinstance(leaf, Member):
            yield from leaf.values


def _refuse_unwritable(value: Any) -> None:
    # exactly these types: a subclass may print itself as anything
    if type(value) not in (str, int, float, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(
            f"a value of type {type(value).__name__} cannot be written as text; constraint text knows texts, "
            "finite numbers and truth values"
        )
    if isinstance(value, int) and abs(value) >= 10**300:
        raise InvalidInput("a whole number of more than 300 digits cannot be written as constraint text")
