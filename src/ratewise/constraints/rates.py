"""Prediction rates, their linear combinations, and bounds on them.

Three kinds of rate, all of them numbers in [0, 1]:

==========================================  ==========================================================
``rate(k, where=I)``                        of the rows of I, the share that is predicted k
``rate(k, where=I, out_of=O)``              of the rows of O **predicted k**, the share that lies in I
``rate(k, where=I, out_of=rows(O))``        of **all** rows of O, the share that lies in I and is predicted k
==========================================  ==========================================================

Rates add, subtract and scale; a comparison with a number, or with another combination, is a `Constraint`.

>>> from ratewise.constraints.predicates import group, label, everyone
>>> female = group(sex="Female")
>>> gap = rate(1, where=female) - rate(1, where=~female)
>>> print(*(abs(gap) <= 0.05), sep=", ")
P(1 | sex=Female) - P(1 | sex!=Female) <= 0.05, P(1 | sex=Female) - P(1 | sex!=Female) >= -0.05

A two-sided bound is ``rate(1).between(0.1, 0.2)``. The chained form ``0.1 <= rate(1) <= 0.2`` raises
an error: Python would evaluate it as two comparisons joined by ``and`` and keep only the last.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ratewise import _validate
from ratewise.constraints.domain import scalar, show_number, show_value
from ratewise.constraints.predicates import Both, Either, Predicate, Within, conjunction, everyone
from ratewise.exceptions import InvalidInput, InvalidType

STRICT = "rates are bounded with <= or >=; a strict {0} cannot be distinguished from {0}="
__all__ = ["Constraint", "Constraints", "Expression", "rate", "rows"]


def rate(k: Any, where: Predicate = everyone, out_of: Predicate | Rows | None = None) -> Expression:
    """Return the rate of predictions of class `k`.

    Parameters
    ----------
    k : scalar
        The predicted class.
    where : Predicate
        The rows that count.
    out_of : Predicate, rows(Predicate) or None
        None: the share of `where` that is predicted `k`. A predicate O: of the rows of O predicted `k`, the
        share that lies in `where`. ``rows(O)``: of all rows of O, the share that lies in `where` and is
        predicted `k`. Rows outside O never count.
    """
    if isinstance(k, Predicate):
        raise InvalidType(f"k must be the predicted class, got the predicate {k!r}; pass that as where=")
    k = scalar("rate(k, where=...) takes the predicted class first", k=k)
    where = a_predicate(where=where)
    if out_of is None:
        return Expression(((Term(k, where, where, False), 1.0),))
    of = out_of.where if isinstance(out_of, Rows) else a_predicate(out_of=out_of)
    return Expression(((Term(k, where & of, of, not isinstance(out_of, Rows)), 1.0),))


def rows(where: Predicate) -> Rows:
    """Return the denominator "all rows of `where`", whatever they are predicted."""
    return Rows(a_predicate(where=where))


def a_predicate(**argument: Any) -> Predicate:
    """Return the argument if it is a predicate."""
    ((name, value),) = argument.items()
    if not isinstance(value, Predicate):
        raise InvalidType(
            f"{name} must be a predicate such as group(sex='Female') or label(1), got {type(value).__name__}"
        )
    return value


@dataclass(frozen=True, repr=False)
class Rows:
    """All rows of a subset, as the denominator of a rate; made by `rows`."""

    where: Predicate

    def __repr__(self) -> str:
        return f"rows({self.where!r})"


class Term(NamedTuple):
    """One rate: predictions of `prediction` inside `where`, over the rows of `of` (or those predicted so).

    `where` always lies inside `of`. With `predicted` the denominator counts only the rows of `of` that are
    predicted `prediction`.
    """

    prediction: Any
    where: Predicate
    of: Predicate
    predicted: bool

    def __repr__(self) -> str:
        plain = self.where == self.of and not self.predicted
        where, arguments = self.where if plain else self._inside(), [repr(self.prediction)]
        if where != everyone:
            arguments.append(f"where={where!r}")
        if not plain:
            arguments.append(f"out_of={self.of if self.predicted else Rows(self.of)!r}")
        return f"rate({', '.join(arguments)})"

    def _inside(self) -> Predicate:
        """Return the conditions of `where` that `of` does not have, for printing."""
        mine, theirs = (p.members if isinstance(p, Both) else {p} for p in (self.where, self.of))
        beyond = conjunction(mine - theirs)
        return beyond if beyond & self.of == self.where else self.where

    @property
    def name(self) -> str:
        """The rate as report text, such as ``P(1 | sex=Female)``."""
        chosen, within = show_value(self.prediction), self._inside()
        united = isinstance(within, Either) or (isinstance(within, Within) and len(within.intervals) > 1)
        inside = f"({within.name})" if united else within.name  # the first bare | begins what is given
        # of two that are equal, False and 0 say, the one that repr shows
        of = self.where if self.where == self.of and not self.predicted else self.of
        given = [] if of == everyone else [of.name]
        if self.predicted:
            event, given = inside, [f"predicted {chosen}", *given]
        elif self.where == self.of:
            event = chosen
        else:
            event = f"{chosen}, {inside}"
        return f"P({event} | {', '.join(given)})" if given else f"P({event})"


@dataclass(frozen=True, eq=False, repr=False)
class Expression:
    """A linear combination of rates plus a constant. Immutable; arithmetic gives new ones."""

    terms: tuple[tuple[Term, float], ...]
    constant: float = 0.0
    __array_ufunc__ = None  # np.float64(0.1) <= rate(1) must reach our comparison, not NumPy's

    def __post_init__(self) -> None:
        merged: dict[Term, float] = {}
        for term, coefficient in self.terms:
            merged[term] = merged.get(term, 0.0) + coefficient
        for number in (self.constant, *merged.values()):
            if not math.isfinite(number):
                raise InvalidInput(f"a coefficient of the expression overflows: {number}; scale it down")
        object.__setattr__(self, "terms", tuple(term for term in merged.items() if term[1]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return False
        return dict(self.terms) == dict(other.terms) and self.constant == other.constant

    def __hash__(self) -> int:
        return hash((frozenset(self.terms), self.constant))

    def __bool__(self) -> NoReturn:
        raise InvalidType(
            f"{self.name} is known only after training and has no truth value; compare it: <= or >="
        )

    def __add__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            return Expression((*self.terms, *other.terms), self.constant + other.constant)
        if not _is_number(other):
            return NotImplemented
        return Expression(self.terms, self.constant + _validate.real(constant=other))

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1

    def __pos__(self) -> Expression:
        return self

    def __sub__(self, other: Any) -> Expression:
        return self + -other if isinstance(other, Expression) or _is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Expression:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            raise InvalidType(
                "a product of two rates is not linear; only sums and multiples of rates can be bounded"
            )
        if not _is_number(other):
            return NotImplemented
        factor = _validate.real(factor=other)
        terms = tuple((term, c * factor) for term, c in self.terms)
        return Expression(terms, self.constant * factor + 0.0)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            raise InvalidType(
                "a quotient of two rates is not linear; a share of a share is rate(k, where=I, out_of=O), "
                "and 'a at least 80% of b' is a >= 0.8 * b"
            )
        if not _is_number(other):
            return NotImplemented
        divisor = _validate.real(divisor=other)
        if divisor == 0:
            raise InvalidInput("divisor must not be 0, got 0")
        return Expression(tuple((term, c / divisor) for term, c in self.terms), self.constant / divisor)

    def __abs__(self) -> Magnitude:
        return Magnitude(self)

    def __le__(self, other: Any) -> Constraint:
        return self._compare(other, "<=")

    def __ge__(self, other: Any) -> Constraint:
        return self._compare(other, ">=")

    def __lt__(self, other: Any) -> NoReturn:
        raise InvalidType(STRICT.format("<"))

    def __gt__(self, other: Any) -> NoReturn:
        raise InvalidType(STRICT.format(">"))

    def _compare(self, other: Any, sense: str) -> Constraint:
        if isinstance(other, Expression):
            return Constraint(Expression((self - other).terms, self.constant), sense, other.constant)
        bound = other if type(other) is float and math.isfinite(other) else _validate.real(bound=other)
        return Constraint(self, sense, bound)

    def between(self, low: float, high: float) -> Constraints:
        """Return the two constraints ``low <= self`` and ``self <= high``; both ends are allowed values."""
        low, high = _validate.real(low=low), _validate.real(high=high)
        if low > high:
            raise InvalidInput(f"between(low, high) needs low <= high, got {low:g} and {high:g}")
        return Constraints((self >= low, self <= high))

    def __repr__(self) -> str:
        return _sum(self, repr)

    @property
    def name(self) -> str:
        """The expression as report text."""
        return _sum(self, lambda term: term.name)


@dataclass(frozen=True, repr=False)
class Magnitude:
    """The absolute value of an expression; only an upper bound on it is a pair of rate constraints."""

    expression: Expression
    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"abs({self.expression!r})"

    def __le__(self, bound: Any) -> Constraints:
        bound = _validate.non_negative(bound=bound, hint="an absolute value is never negative")
        return Constraints((self.expression <= bound, self.expression >= -bound))

    def __ge__(self, bound: Any) -> NoReturn:
        raise InvalidType(
            "abs(expression) can only be bounded from above: a gap that must be large is two regions"
        )


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Constraint:
    """A bound on an expression: ``expression <= bound`` or ``expression >= bound``.

    Equality and hash compare the normal forms: ``rate(1) >= 0.2`` equals ``-rate(1) <= -0.2``, and a name
    given with `named` does not matter.
    """

    expression: Expression
    sense: str
    bound: float
    given_name: str | None = None

    def __post_init__(self) -> None:
        if not self.expression.terms:
            raise InvalidInput("a constraint must read at least one rate; here they cancel to a constant")
        object.__setattr__(self, "bound", self.bound + 0.0)

    @property
    def sign(self) -> float:
        """1 for an upper bound, -1 for a lower bound: ``sign * terms <= normal_bound`` is the normal form."""
        return 1.0 if self.sense == "<=" else -1.0

    @property
    def normal_bound(self) -> float:
        """Right-hand side of the normal form, with the constant of the expression moved into it."""
        return self.sign * (self.bound - self.expression.constant) + 0.0

    def _normal(self) -> tuple[frozenset[tuple[Term, float]], float]:
        return frozenset((term, self.sign * c) for term, c in self.expression.terms), self.normal_bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constraint) and self._normal() == other._normal()

    def __hash__(self) -> int:
        return hash(self._normal())

    def __bool__(self) -> NoReturn:
        raise InvalidType(
            f"the constraint {self.name!r} has no truth value. Python keeps only one half of a chained "
            "a <= rate <= b: write rate.between(a, b), or abs(rate) <= b. "
            "Give several constraints as a list instead of joining them with and"
        )

    @property
    def name(self) -> str:
        """The constraint as report text, or the name it was given."""
        if self.given_name is not None:
            return self.given_name
        return f"{self.expression.name} {self.sense} {show_number(self.bound)}"

    def named(self, name: str) -> Constraint:
        """Return the same constraint with a name for reports."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidType(f"name must be text that is not empty, got {name!r}")
        return Constraint(self.expression, self.sense, self.bound, name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        text = f"{self.expression!r} {self.sense} {show_number(self.bound)}"
        return text if self.given_name is None else f"({text}).named({self.given_name!r})"


class Constraints(tuple[Constraint, ...]):
    """Constraints that one expression makes, such as the two sides of a bound; behaves as a tuple."""

    __slots__ = ()

    def named(self, name: str) -> Constraints:
        """Return the same constraints with a name for reports, marked by the side they bound."""
        return Constraints(c.named(f"{name} (at {'most' if c.sense == '<=' else 'least'})") for c in self)

    def __repr__(self) -> str:
        return f"Constraints([{', '.join(map(repr, self))}])"


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _sum(expression: Expression, show: Any) -> str:
    """Return the summands; a positive constant leads where a minus sign would."""
    constant, terms = expression.constant, expression.terms
    summands = []
    for term, coefficient in terms:
        size = "" if abs(coefficient) == 1 else f"{show_number(abs(coefficient))} * "
        summands.append((coefficient, size + show(term)))
    if constant or not terms:
        lead = not terms or (constant > 0 and terms[0][1] < 0)
        summands.insert(0 if lead else len(terms), (constant, show_number(abs(constant))))
    text = "".join(f" {'-' if sign < 0 else '+'} {summand}" for sign, summand in summands)
    return f"-{text[3:]}" if summands[0][0] < 0 else text[3:]
