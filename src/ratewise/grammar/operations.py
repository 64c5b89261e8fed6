"""What the operators of constraint text do to the values they meet; Python's own rules, told more kindly."""

from __future__ import annotations

import math
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import Family
from ratewise.grammar.words import Call, Listed, Ready, Star, Word, check_depth
from ratewise.predicates import Predicate
from ratewise.rates import Constraint, Constraints, Expression, Magnitude
from ratewise.terms import Rows

_LARGEST = 10**300
_HINTS = {
    "<": "rates are bounded with <= or >=; a strict < cannot be told apart from <=",
    ">": "rates are bounded with <= or >=; a strict > cannot be told apart from >=",
    "==": "rates are bounded with <= or >=; for an equality write rate(...).between(b, b)",
    "!=": "rates are bounded with <= or >=",
    "=": "expected <= or >= (a single = gives an argument inside brackets)",
}


class WrongOperand(InvalidInput):
    """A part of an operation that cannot stand there; `operand` counts the parts from the left, from 0."""

    def __init__(self, reason: str, operand: int) -> None:
        super().__init__(reason)
        self.operand = operand


def describe(value: Any) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, Word):
        return f"the name {str(value)[:40]!r}"
    kinds: list[tuple[Any, str]] = [
        (int | float, "a number"),
        (str, "a text"),
        (Predicate, "a set of rows"),
        (Expression, "a rate"),
        (Magnitude, "an absolute value"),
        (Ready, "a ready-made rate"),
        (Constraint | Constraints | Family, "a constraint"),
        (Rows, "rows(...)"),
        (Listed, "a list"),
        (Star, "*"),
    ]
    return next((said for kind, said in kinds if isinstance(value, kind)), "an interval")


def unfinished(value: Any) -> str:
    """Return what is missing for the value to be a constraint."""
    if isinstance(value, Expression | Magnitude | Ready):
        return "expected <= or >= and a bound"
    return f"expected a constraint, this is {describe(value)}; compare a rate with a number: rate(1) <= 0.2"


def is_number(value: Any) -> bool:
    """Tell numbers from truth values and everything else."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def linear(value: Any, operand: int) -> Any:
    """Return a number or an expression as it is, a ready-made rate as an expression; refuse the rest."""
    try:
        if isinstance(value, Ready):
            return value.expression()
        if isinstance(value, Expression) or is_number(value):
            return _sensible(value)
    except InvalidInput as problem:
        raise WrongOperand(str(problem), operand) from None
    raise WrongOperand(f"expected a rate or a number, this is {describe(value)}", operand)


def compare(operands: list[Any], marks: list[str]) -> Any:
    """Return the constraint that a comparison says; its parts are operand, mark, operand, and so on."""
    for place, mark in enumerate(marks):
        if mark in _HINTS:
            raise WrongOperand(_HINTS[mark], 2 * place + 1)
    for place, operand in enumerate(operands):
        if not isinstance(operand, Expression | Magnitude | Ready) and not is_number(operand):
            raise WrongOperand(f"expected a rate or a number, this is {describe(operand)}", 2 * place)
    if len(marks) > 1:
        return _chain(operands, marks)
    left, right, upper = (0, operands[0]), (2, operands[1]), marks[0] == "<="
    if is_number(operands[0]) and not is_number(operands[1]):
        left, right, upper = right, left, not upper
    if isinstance(left[1], Ready) and is_number(right[1]):
        low, high = (None, right[1]) if upper else (right[1], None)
        return _family(left[1], low, high, right[0], right[0])
    if isinstance(left[1], Magnitude) and is_number(right[1]):
        return left[1] <= right[1] if upper else left[1] >= right[1]
    first, second = linear(left[1], left[0]), linear(right[1], right[0])
    if not isinstance(first, Expression):
        raise InvalidInput("a number is no rate: a constraint compares a rate with a number")
    return first <= second if upper else first >= second


def _family(ready: Ready, low: Any, high: Any, low_at: int, high_at: int) -> Any:
    """Return the bounded family; a bound that cannot be is reported at its own place."""
    try:
        return ready.family(low, high)
    except (InvalidInput, InvalidType) as problem:
        name, _, rest = str(problem).partition(" ")
        place = {"min_rate": low_at, "max_rate": high_at, "max_gap": high_at}.get(name)
        if place is None:
            raise
        raise WrongOperand(f"the bound {rest}", place) from None


def _chain(operands: list[Any], marks: list[str]) -> Any:
    low, middle, high = operands if len(operands) == 3 else (None, None, None)
    first, last = 0, 4
    if marks == [">=", ">="]:
        low, high, first, last = high, low, last, first
    if isinstance(middle, Ready) and marks[0] == marks[1] and is_number(low) and is_number(high):
        return _family(middle, low, high, first, last)
    raise WrongOperand("Python keeps only one half of a chained comparison: write rate(...).between(a, b)", 3)


def join(mark: str, left: Any, right: Any) -> Any:
    """Return ``left & right`` or ``left | right``."""
    for place, side in enumerate((left, right)):
        if not isinstance(side, Predicate):
            raise WrongOperand(
                f"{mark} joins sets of rows such as group(sex='Female') or label(1), not {describe(side)}",
                place,
            )
    return check_depth(left & right if mark == "&" else left | right)


def check_summands(summands: list[tuple[str, Any]]) -> None:
    """Refuse what cannot be added, at the place where it is."""
    for place, (_, value) in enumerate(summands):
        linear(value, place)


def add(summands: list[tuple[str, Any]]) -> Any:
    """Return the sum; all at once, for one by one would take quadratic time."""
    parts = [(mark, linear(value, place)) for place, (mark, value) in enumerate(summands)]
    if all(is_number(value) for _, value in parts):
        total = parts[0][1]
        for mark, value in parts[1:]:
            total = _sensible(total + value if mark == "+" else total - value)
        return total
    terms: list[Any] = []
    constant = 0.0
    for mark, value in parts:
        signed = value if mark == "+" else -value
        if isinstance(signed, Expression):
            terms.extend(signed.terms)
            constant += signed.constant
        else:
            constant += _sensible(signed)
    whole = Expression(terms, _sensible(constant))
    for _, coefficient in whole.terms:
        _sensible(coefficient)
    return whole


def scale(left: Any, mark: str, right: Any) -> Any:
    """Return a product or a quotient; columns are crossed by ``*``."""
    if mark == "*" and isinstance(right, Word) and isinstance(left, Word | Listed):
        return Listed((*(left if isinstance(left, Listed) else (left,)), right))
    left, right = linear(left, 0), linear(right, 1)
    if mark == "*":
        return _sensible(left * right)
    if is_number(right) and right == 0:
        raise WrongOperand("division by 0", 1)
    if is_number(left) and not is_number(right):
        raise InvalidInput("a number divided by a rate is not linear; only multiples of rates can be bounded")
    return _sensible(left / right)


def sign(mark: str, value: Any) -> Any:
    """Return ``-value``, ``+value`` or ``~value``."""
    if mark == "~":
        if not isinstance(value, Predicate):
            raise WrongOperand(
                f"~ denies a set of rows such as group(sex='Female'), not {describe(value)}", 0
            )
        return check_depth(~value)
    value = linear(value, 0)
    return -value if mark == "-" else value


def method(value: Any, made: Call) -> Any:
    """Return ``value.between(low, high)`` or ``value.named(text)``."""
    if made.name == "named":
        if not isinstance(value, Constraint | Constraints):
            raise InvalidType(f".named(text) goes behind a constraint in brackets, not {describe(value)}")
        return value.named(made.bound_to("name", least=1)["name"])
    bounds = made.bound_to("low", "high", least=2)
    for name, bound in bounds.items():
        if not is_number(bound):
            raise InvalidType(f"{name} must be a number, this is {describe(bound)}")
    if isinstance(value, Ready):
        return value.family(bounds["low"], bounds["high"])
    if not isinstance(value, Expression):
        raise InvalidType(f".between(low, high) goes behind a rate, not {describe(value)}")
    return value.between(**bounds)


def gather(items: list[Any], bracket: str) -> Any:
    """Return several values in brackets; several constraints in square brackets are constraints."""
    if bracket == "[" and all(isinstance(item, Constraint | Constraints) for item in items):
        return Constraints(
            one for item in items for one in (item if isinstance(item, Constraints) else (item,))
        )
    return Listed(items)


def _sensible(value: Any) -> Any:
    # whole numbers first: those beyond the floats must not meet a float
    if (isinstance(value, int) and abs(value) >= _LARGEST) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise InvalidInput("a number here is too large")
    return value
