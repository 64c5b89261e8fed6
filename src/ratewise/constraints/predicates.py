"""Predicates over public columns and the true label: which rows a rate is about.

A predicate is a declaration: it holds no rows, and can be compared, hashed, pickled and printed as the Python code
that rebuilds it. Equality is up to normalisation: order and repetition do not matter, and conditions on the same
column are merged. Compilation merges predicates that select the same cells of a domain.

>>> women = group(sex="Female")
>>> women & label(1)
label(1) & group(sex='Female')
>>> group(race={"A", "B"}) == group(race="A") | group(race="B")
True
>>> (women & label(1)).name
'label=1 & sex=Female'

Numeric columns are cut by **half-open** intervals. A row without a number is in no interval, and in the
complement of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ratewise.constraints.domain import (
    PLAIN_TEXT,
    Interval,
    at_least,
    below,
    between,
    in_order,
    is_word,
    scalar,
    show_value,
)
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["Interval", "Predicate", "at_least", "below", "between", "everyone", "group", "label"]


class Predicate:
    """A condition on a row's public columns and its true label. Combine with ``&``, ``|`` and ``~``."""

    parts: tuple[Predicate, ...] = ()
    """The predicates this one is made of, in printing order; empty for a condition on one column."""

    def __and__(self, other: object) -> Predicate:
        return conjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __or__(self, other: object) -> Predicate:
        return disjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __invert__(self) -> Predicate:
        return Not((self,))  # of an interval, whose complement also holds rows without a number

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

    def leaves(self) -> Iterator[Member | Within]:
        """Yield the conditions on single columns that the predicate is built from."""
        if isinstance(self, Member | Within):
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True, repr=False)
class Member(Predicate):
    """The column's value is (or, `negated`, is not) one of `values`; column None is the true label."""

    column: str | None
    values: frozenset[Any]
    negated: bool = False

    def __invert__(self) -> Member:
        return Member(self.column, self.values, not self.negated)


@dataclass(frozen=True, repr=False)
class Within(Predicate):
    """The column's number lies in one of `intervals`, half-open, kept disjoint and in order.

    A row without a number is in no interval, so the complement is not the union of the other intervals.
    """

    column: str
    intervals: tuple[Interval, ...]


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
    spans = [Within(column, (item,)) for item in items if isinstance(item, Interval)]
    if not spans:
        return _values(column, column, items)
    if len(spans) < len(items):
        raise InvalidType(f"{column} mixes intervals with single values; join them with | instead")
    return disjunction(spans)


def _values(column: str | None, name: str, values: Iterable[Any], hint: str = "") -> Member:
    for value in values:
        if isinstance(value, Predicate):
            raise InvalidType(
                f"{name} must be a value, got the predicate {value!r}; join predicates with &, | or ~"
            )
    return Member(column, frozenset(scalar(hint, **{name: value}) for value in values))


def _join(kind: type[Both] | type[Either], parts: Iterable[Predicate]) -> Predicate:
    """Flatten, merge conditions on one column, drop what is neutral, stop at what absorbs."""
    absorbing = nobody if kind is Both else everyone
    merged: dict[Any, Predicate] = {}
    for part in _flat(kind, parts):
        key = (type(part), part.column) if isinstance(part, Member | Within) else part
        merged[key] = _merge(kind, merged[key], part) if key in merged else part
    left = set(merged.values())
    denied = (_flat(kind, part.parts) for part in left if isinstance(part, Not))
    if absorbing in left or any(map(left.issuperset, denied)):
        return absorbing
    return left.pop() if len(left) == 1 else kind(frozenset(left))


def _flat(kind: type[_Combined], parts: Iterable[Predicate]) -> Iterator[Predicate]:
    for part in parts:
        if not isinstance(part, Predicate):
            raise InvalidType(f"expected a predicate such as group(sex='Female'), got {type(part).__name__}")
        yield from part.parts if isinstance(part, kind) else (part,)


def _merge(kind: type[_Combined], a: Predicate, b: Predicate) -> Predicate:
    if isinstance(a, Member) and isinstance(b, Member):
        return _common_values(a, b) if kind is Both else ~_common_values(~a, ~b)
    if isinstance(a, Within) and isinstance(b, Within):
        if kind is Either:
            outside = _common_intervals(_outside(a.intervals), _outside(b.intervals))
            return Within(a.column, _outside(outside))
        common = _common_intervals(a.intervals, b.intervals)
        return Within(a.column, common) if common else nobody
    return a  # equal combinations, or an absorbed column


def _common_values(a: Member, b: Member) -> Predicate:
    if a.negated and b.negated:
        return Member(a.column, a.values | b.values, True)
    if a.negated:
        a, b = b, a
    common = a.values - b.values if b.negated else a.values & b.values
    return Member(a.column, common) if common else nobody


def _common_intervals(a: Iterable[Interval], b: tuple[Interval, ...]) -> tuple[Interval, ...]:
    pairs = ((max(x.low, y.low), min(x.high, y.high)) for x in a for y in b)
    return tuple(Interval(low, high) for low, high in pairs if low < high)


def _outside(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return what is left of the line, for intervals that are disjoint and in order."""
    ends = [-math.inf, *(end for span in intervals for end in (span.low, span.high)), math.inf]
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return tuple(Interval(low, high) for low, high in pairs if low < high)


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
        case Member() | Within():
            return _group_code([predicate]), _CALL
        case Not():
            return f"~{_bracket(_code(predicate.parts[0]), _NOT)}", _NOT
        case Either():
            return " | ".join(_bracket(_code(part), _AND) for part in predicate.parts), _OR
    # conditions on different columns are gathered into one group(...)
    together: dict[str | None, Any] = {}
    alone: list[str] = []
    for part in predicate.parts:
        plain = isinstance(part, Within) or (isinstance(part, Member) and not part.negated and part.column)
        column = getattr(part, "column", None)
        if plain and column not in together:
            together[column] = part
        else:
            alone.append(_bracket(_code(part), _AND))
    if together:
        at = 1 if alone and alone[0].startswith("label(") else 0
        alone.insert(at, _group_code(together.values()))
    return " & ".join(alone), (_CALL if len(alone) == 1 else _AND)


def _group_code(leaves: Iterable[Member | Within]) -> str:
    pairs = []
    for leaf in leaves:
        values = _shown_intervals(leaf) if isinstance(leaf, Within) else in_order(leaf.values)
        listed, marks = ", ".join(map(repr, values)), "[]" if isinstance(leaf, Within) else "{}"
        pairs.append((str(leaf.column), listed if len(values) == 1 else f"{marks[0]}{listed}{marks[1]}"))
    if all(is_word(column) for column, _ in pairs):
        return f"group({', '.join(f'{column}={value}' for column, value in pairs)})"
    return f"group(**{{{', '.join(f'{column!r}: {value}' for column, value in pairs)}}})"


def _shown_intervals(within: Within) -> tuple[Interval, ...]:
    """Return the intervals; the whole line, which no function makes by itself, as two halves."""
    if within.intervals == (Interval(-math.inf, math.inf),):
        return Interval(-math.inf, 0.0), Interval(0.0, math.inf)
    return within.intervals


def _prose(predicate: Predicate) -> tuple[str, int]:
    """Return report text and how tightly its outermost operator binds."""
    match predicate:
        case _ if predicate in (everyone, nobody):
            return ("everyone" if predicate == everyone else "nobody"), _CALL
        case Member():
            values, column = (
                [show_value(v) for v in in_order(predicate.values)],
                _show_column(predicate.column),
            )
            if len(values) == 1:
                return f"{column}{'!=' if predicate.negated else '='}{values[0]}", _CALL
            return f"{column} {'not in' if predicate.negated else 'in'} {{{', '.join(values)}}}", _CALL
        case Within():
            spans = [span.describe(_show_column(predicate.column)) for span in _shown_intervals(predicate)]
            return " | ".join(spans), (_CALL if len(spans) == 1 else _OR)
        case Not():
            return f"not ({_prose(predicate.parts[0])[0]})", _NOT
    mark, strength = (" & ", _AND) if isinstance(predicate, Both) else (" | ", _OR)
    return mark.join(_bracket(_prose(part), strength + 1) for part in predicate.parts), strength


def _show_column(column: str | None) -> str:
    if column is None:
        return "label"
    return column if PLAIN_TEXT.match(column) and column != "label" else repr(column)
