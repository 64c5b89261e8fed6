"""Predicates over public columns and the true label, prediction rates of the rows they select, and bounds on rates.

A predicate is a declaration: it holds no rows, and can be compared, hashed, pickled and printed as the Python code
that rebuilds it. For equality, order and repetition do not matter. Compilation merges predicates that select the same
cells of a domain.

>>> women = group(sex="Female")
>>> women & label(1)
label(1) & group(sex='Female')
>>> (women & label(1)).name
'label=1 & sex=Female'

Numeric columns are cut by **half-open** intervals. A row without a number is in no interval, and in the
complement of every interval.

Three kinds of rate, all of them numbers in [0, 1]:

==========================================  ==========================================================
``rate(k, where=I)``                        of the rows of I, the share that is predicted k
``rate(k, where=I, out_of=O)``              of the rows of O **predicted k**, the share that lies in I
``rate(k, where=I, out_of=rows(O))``        of **all** rows of O, the share that lies in I and is predicted k
==========================================  ==========================================================

Rates add, subtract and scale; a comparison with a number, or with another combination, is a `Constraint`.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ratewise import _validate
from ratewise.constraints.domain import PLAIN_TEXT, Interval, in_order, is_word, scalar, show_number, show_value
from ratewise.exceptions import InvalidInput, InvalidType

STRICT = "rates are bounded with <= or >=; a strict {0} cannot be distinguished from {0}="


class Predicate:
    """A condition on a row's public columns and its true label. Combine with ``&``, ``|`` and ``~``."""

    parts: tuple[Predicate, ...] = ()
    """The predicates this one is made of, in printing order; empty for a condition on one column."""

    def __and__(self, other: object) -> Predicate:
        return conjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __or__(self, other: object) -> Predicate:
        return disjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __invert__(self) -> Predicate:
        return Not((self,))

    def __bool__(self) -> NoReturn:
        raise InvalidType(
            f"{self!r} is a condition on rows and has no truth value; "
            "write & for and, | for or, ~ for not (with brackets around each side)"
        )

    def __repr__(self) -> str:
        return _code(self)[0]

    @property
    def name(self) -> str:
        """The predicate as report text, such as ``label=1 & sex=Female``."""
        return _prose(self)[0]

    def leaves(self) -> Iterator[Member]:
        """Yield the conditions on single columns that the predicate is built from."""
        if isinstance(self, Member):
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True, repr=False)
class Member(Predicate):
    """The column's value is (or, `negated`, is not) one of `values`; column None is the true label.

    `values` is a frozenset of values, or a tuple of half-open intervals in order. A row without a number is in no
    interval, so that the negation of some intervals is not the union of the others.
    """

    column: str | None
    values: Any
    negated: bool = False

    def __invert__(self) -> Member:
        return Member(self.column, self.values, not self.negated)

    @property
    def listed(self) -> frozenset[Any] | None:
        """The values; None for intervals."""
        return None if isinstance(self.values, tuple) else self.values


@dataclass(frozen=True, repr=False)
class Not(Predicate):
    """The part does not hold; made by ``~`` of a combination."""

    parts: tuple[Predicate, ...]

    def __invert__(self) -> Predicate:
        return self.parts[0]


@dataclass(frozen=True, repr=False)
class _Combined(Predicate):
    members: frozenset[Predicate]

    @cached_property
    def parts(self) -> tuple[Predicate, ...]:  # type: ignore[override]
        """The joined predicates, in printing order."""
        by_text = sorted(self.members, key=lambda part: repr(part).lstrip("~("))
        return tuple(sorted(by_text, key=lambda part: not (isinstance(part, Member) and part.column is None)))

    def __invert__(self) -> Predicate:
        if self.members:
            return Not((self,))
        return nobody if self == everyone else everyone


@dataclass(frozen=True, repr=False)
class Both(_Combined):
    """Every part holds; made by ``&``. Without parts: everyone."""


@dataclass(frozen=True, repr=False)
class Either(_Combined):
    """At least one part holds; made by ``|``. Without parts: nobody."""


everyone = Both(frozenset())
nobody = Either(frozenset())


def group(**values: Any) -> Predicate:
    """Return the rows whose columns have the given values; several columns must all match.

    Parameters
    ----------
    **values
        Column name = one value, a collection of values, an interval (`below`, `at_least`, `between`) or a
        collection of intervals. A column whose name is no identifier: ``group(**{"hours-per-week": 40})``.

    >>> from ratewise import between
    >>> group(sex="Female", age=between(25, 65))
    group(age=between(25, 65), sex='Female')
    """
    if not values:
        raise InvalidInput("group() needs at least one column=value; for all rows write everyone")
    return conjunction(_condition(column, value) for column, value in values.items())


def label(*values: Any) -> Predicate:
    """Return the rows whose true label is one of `values`.

    >>> ~label(0, 1)
    ~label(0, 1)
    """
    if not values:
        raise InvalidInput("label() needs at least one class; for all rows write everyone")
    return _values(None, "label", values, "give classes one by one: label(0, 1)")


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the predicate that all parts hold (``&`` of any number)."""
    return _join(Both, parts)


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the predicate that some part holds (``|`` of any number)."""
    return _join(Either, parts)


def _condition(column: str, value: Any) -> Predicate:
    several = isinstance(value, set | frozenset | list | tuple | range | np.ndarray)
    items = list(value) if several else [value]
    if not items:
        raise InvalidInput(f"{column} must name at least one value, got an empty {type(value).__name__}")
    spans = {item for item in items if isinstance(item, Interval)}
    if not spans:
        return _values(column, column, items)
    if not all(isinstance(item, Interval) for item in items):
        raise InvalidType(f"{column} mixes intervals with single values; join them with | instead")
    return Member(column, tuple(sorted(spans, key=lambda span: (span.low, span.high))))


def _values(column: str | None, name: str, values: Iterable[Any], hint: str = "") -> Member:
    for value in values:
        if isinstance(value, Predicate):
            raise InvalidType(f"{name} must be a value, got the predicate {value!r}; join predicates with &, | or ~")
    return Member(column, frozenset(scalar(hint, **{name: value}) for value in values))


def _join(kind: type[Both] | type[Either], parts: Iterable[Predicate]) -> Predicate:
    """Flatten, drop repetitions and what is neutral, stop at what absorbs."""
    absorbing = nobody if kind is Both else everyone
    left = set(_flat(kind, parts))
    denied = (_flat(kind, (~part,)) for part in left)
    if absorbing in left or any(map(left.issuperset, denied)):
        return absorbing
    return left.pop() if len(left) == 1 else kind(frozenset(left))


def _flat(kind: type[_Combined], parts: Iterable[Predicate]) -> Iterator[Predicate]:
    for part in parts:
        if not isinstance(part, Predicate):
            raise InvalidType(f"expected a predicate such as group(sex='Female'), got {type(part).__name__}")
        yield from part.parts if isinstance(part, kind) else (part,)


# ------------------------------------------------------------------------------------- printing

_OR, _AND, _NOT, _CALL = range(4)


def _bracket(piece: tuple[str, int], outer: int) -> str:
    """Return the text, in brackets if it binds less tightly than its surroundings."""
    text, strength = piece
    return text if strength >= outer else f"({text})"


def _code(predicate: Predicate) -> tuple[str, int]:
    """Return Python text and how tightly its outermost operator binds."""
    match predicate:
        case _ if predicate in (everyone, nobody):
            return ("everyone", _CALL) if predicate == everyone else ("~everyone", _NOT)
        case Member(negated=True):
            return f"~{_code(~predicate)[0]}", _NOT
        case Member(column=None):
            return f"label({', '.join(map(repr, in_order(predicate.values)))})", _CALL
        case Member():
            return _group_code([predicate]), _CALL
        case Not():
            return f"~{_bracket(_code(predicate.parts[0]), _NOT)}", _NOT
        case Either():
            return " | ".join(_bracket(_code(part), _AND) for part in predicate.parts), _OR
    # conditions on different columns are gathered into one group(...)
    together: dict[str | None, Any] = {}
    alone: list[str] = []
    for part in predicate.parts:
        if isinstance(part, Member) and part.column and not part.negated and part.column not in together:
            together[part.column] = part
        else:
            alone.append(_bracket(_code(part), _AND))
    if together:
        at = 1 if alone and alone[0].startswith("label(") else 0
        alone.insert(at, _group_code(together.values()))
    return " & ".join(alone), (_CALL if len(alone) == 1 else _AND)


def _group_code(leaves: Iterable[Member]) -> str:
    pairs = []
    for leaf in leaves:
        shown, marks = _shown(leaf), "[]" if leaf.listed is None else "{}"
        listed = ", ".join(map(repr, shown))
        pairs.append((str(leaf.column), listed if len(shown) == 1 else f"{marks[0]}{listed}{marks[1]}"))
    if all(is_word(column) for column, _ in pairs):
        return f"group({', '.join(f'{column}={value}' for column, value in pairs)})"
    return f"group(**{{{', '.join(f'{column!r}: {value}' for column, value in pairs)}}})"


def _shown(leaf: Member) -> Sequence[Any]:
    """Return the intervals, or the values in order."""
    return leaf.values if isinstance(leaf.values, tuple) else in_order(leaf.values)


def _prose(predicate: Predicate) -> tuple[str, int]:
    """Return report text and how tightly its outermost operator binds."""
    match predicate:
        case _ if predicate in (everyone, nobody):
            return ("everyone" if predicate == everyone else "nobody"), _CALL
        case Member(listed=None):
            text = " | ".join(span.describe(_show_column(predicate.column)) for span in _shown(predicate))
            if predicate.negated:
                return f"not ({text})", _NOT
            return text, (_CALL if len(_shown(predicate)) == 1 else _OR)
        case Member():
            values, column = [show_value(v) for v in _shown(predicate)], _show_column(predicate.column)
            if len(values) == 1:
                return f"{column}{'!=' if predicate.negated else '='}{values[0]}", _CALL
            return f"{column} {'not in' if predicate.negated else 'in'} {{{', '.join(values)}}}", _CALL
        case Not():
            return f"not ({_prose(predicate.parts[0])[0]})", _NOT
    mark, strength = (" & ", _AND) if isinstance(predicate, Both) else (" | ", _OR)
    return mark.join(_bracket(_prose(part), strength + 1) for part in predicate.parts), strength


def _show_column(column: str | None) -> str:
    if column is None:
        return "label"
    return column if PLAIN_TEXT.match(column) and column != "label" else repr(column)


# ------------------------------------------------------------------------------------------------- rates


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
        united = _prose(within)[1] == _OR
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
        raise InvalidType(f"{self.name} is known only after training and has no truth value; compare it: <= or >=")

    def __add__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            return Expression((*self.terms, *other.terms), self.constant + other.constant)
        if not is_number(other):
            return NotImplemented
        return Expression(self.terms, self.constant + _validate.real(constant=other))

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1

    def __pos__(self) -> Expression:
        return self

    def __sub__(self, other: Any) -> Expression:
        return self + -other if isinstance(other, Expression) or is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Expression:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            raise InvalidType("a product of two rates is not linear; only sums and multiples of rates can be bounded")
        if not is_number(other):
            return NotImplemented
        factor = _validate.real(factor=other)
        return Expression(tuple((term, c * factor) for term, c in self.terms), self.constant * factor + 0.0)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            raise InvalidType(
                "a quotient of two rates is not linear; a share of a share is rate(k, where=I, out_of=O), "
                "and 'a at least 80% of b' is a >= 0.8 * b"
            )
        if not is_number(other):
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
        raise InvalidType("abs(expression) can only be bounded from above: a gap that must be large is two regions")


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


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, and no truth value."""
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
