"""Predicates over public columns and the true label: which rows a rate is about.

A predicate is a declaration: it holds no rows, and can be compared, hashed, pickled and printed as the Python code
that rebuilds it.

>>> women = group(sex="Female")
>>> women & label(1)
label(1) & group(sex='Female')
>>> ~women | group(age=below(25))
group(age=below(25)) | ~group(sex='Female')
>>> group(race={"A", "B"}) == group(race="A") | group(race="B")
True
>>> (women & label(1)).name
'label=1 & sex=Female'

Numeric columns are cut by **half-open** intervals, so intervals that share an end neither overlap nor leave a gap. A
row without a number is in no interval, and in the complement of every interval.

Equality is up to normalisation: order and repetition do not matter, ``~~p`` is ``p``, conditions on the same
column are merged. It is not logical equivalence; the compiler merges predicates that select the same cells of
a domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
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

_COLLECTIONS = (set, frozenset, list, tuple, range, np.ndarray)


class Predicate:
    """A condition on a row's public columns and its true label. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ("_hash", "_key")
    _key: tuple[Any, ...]
    _hash: int

    def _freeze(self, *key: Any) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash((type(self).__name__, key)))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a predicate is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Hashes of text differ between processes, so a pickle must rebuild rather than restore.
        return type(self), self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __and__(self, other: object) -> Predicate:
        return conjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __or__(self, other: object) -> Predicate:
        return disjunction((self, other)) if isinstance(other, Predicate) else NotImplemented

    def __invert__(self) -> Predicate:
        return Not(self)

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

    @property
    def parts(self) -> tuple[Predicate, ...]:
        """The predicates this one is made of, in printing order; empty for a condition on one column."""
        return ()

    def leaves(self) -> Iterator[Member | Within]:
        """Yield the conditions on single columns that the predicate is built from."""
        for part in self.parts:
            yield from part.leaves()


def _field(position: int, doc: str) -> Any:
    return property(lambda self: self._key[position], doc=doc)


class Truth(Predicate):
    """Everyone, or nobody."""

    __slots__ = ()
    value = _field(0, "True for everyone, False for nobody.")

    def __init__(self, value: bool) -> None:
        self._freeze(value)

    def __invert__(self) -> Predicate:
        return Truth(not self.value)


class Member(Predicate):
    """The column's value is (or, `negated`, is not) one of `values`; column None is the true label."""

    __slots__ = ()
    column = _field(0, "Name of the column; None for the true label.")
    values = _field(1, "The values named.")
    negated = _field(2, "Whether the condition is that the value is none of them.")

    def __init__(self, column: str | None, values: Iterable[Any], negated: bool = False) -> None:
        self._freeze(column, frozenset(values), negated)

    def __invert__(self) -> Member:
        return Member(self.column, self.values, not self.negated)

    def leaves(self) -> Iterator[Member | Within]:
        """Yield itself."""
        yield self


class Within(Predicate):
    """The column's number lies in one of `intervals`, half-open, kept disjoint and in order.

    A row without a number is in no interval, so the complement is not the union of the other intervals.
    """

    __slots__ = ()
    column = _field(0, "Name of the column.")
    intervals = _field(1, "The intervals.")

    def __init__(self, column: str, intervals: Iterable[Interval]) -> None:
        self._freeze(column, tuple(intervals))

    def leaves(self) -> Iterator[Member | Within]:
        """Yield itself."""
        yield self


class _Combined(Predicate):
    __slots__ = ("_parts",)
    _parts: tuple[Predicate, ...]

    def __init__(self, members: Iterable[Predicate]) -> None:
        self._freeze(frozenset(members))

    @property
    def parts(self) -> tuple[Predicate, ...]:
        """The joined predicates, in printing order."""
        try:
            return self._parts
        except AttributeError:  # sorted when first asked for: most are never printed
            object.__setattr__(self, "_parts", tuple(sorted(self._key[0], key=_print_order)))
            return self._parts


class Both(_Combined):
    """Every part holds; made by ``&``."""

    __slots__ = ()


class Either(_Combined):
    """At least one part holds; made by ``|``."""

    __slots__ = ()


class Not(Predicate):
    """The part does not hold; made by ``~`` of a combination."""

    __slots__ = ()

    def __init__(self, part: Predicate) -> None:
        self._freeze(part)

    @property
    def parts(self) -> tuple[Predicate, ...]:
        """The denied predicate."""
        return self._key

    def __invert__(self) -> Predicate:
        return self.parts[0]


everyone = Truth(True)
nobody = Truth(False)


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
    hint = "give classes one by one: label(0, 1)"
    return Member(None, [_value("label", value, hint) for value in values])


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the predicate that all parts hold (``&`` of any number)."""
    return _join(Both, parts)


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the predicate that some part holds (``|`` of any number)."""
    return _join(Either, parts)


def conjuncts(predicate: Predicate) -> frozenset[Predicate]:
    """Return the predicates whose ``&`` is the given one."""
    if isinstance(predicate, Both):
        return frozenset(predicate.parts)
    return frozenset() if predicate == everyone else frozenset((predicate,))


def _condition(column: str, value: Any) -> Predicate:
    if isinstance(value, Interval):
        return Within(column, (value,))
    if not isinstance(value, _COLLECTIONS):
        return Member(column, (_value(column, value),))
    items = list(value)
    if not items:
        raise InvalidInput(f"{column} must name at least one value, got an empty {type(value).__name__}")
    spans = [item for item in items if isinstance(item, Interval)]
    if not spans:
        return Member(column, [_value(column, item) for item in items])
    if len(spans) < len(items):
        raise InvalidType(f"{column} mixes intervals with single values; join them with | instead")
    return disjunction(Within(column, (span,)) for span in spans)


def _value(name: str, value: Any, hint: str = "") -> Any:
    if isinstance(value, Predicate):
        raise InvalidType(
            f"{name} must be a value, got the predicate {value!r}; join predicates with &, | or ~"
        )
    return scalar(hint, **{name: value})


def _join(kind: type[Both] | type[Either], parts: Iterable[Predicate]) -> Predicate:
    """Flatten, merge conditions on one column, drop what is neutral, stop at what absorbs."""
    neutral, absorbing = (everyone, nobody) if kind is Both else (nobody, everyone)
    merged: dict[Any, Predicate] = {}
    for part in _flat(kind, parts):
        key = (type(part), part.column) if isinstance(part, Member | Within) else part
        merged[key] = _merge(kind, merged[key], part) if key in merged else part
    left = {part for part in merged.values() if part != neutral}
    denied = (_flat(kind, part.parts) for part in left if isinstance(part, Not))
    if absorbing in left or any(map(left.issuperset, denied)):
        return absorbing
    if len(left) > 1:
        return kind(left)
    return left.pop() if left else neutral


def _flat(kind: type[_Combined], parts: Iterable[Predicate]) -> Iterator[Predicate]:
    for part in parts:
        if not isinstance(part, Predicate):
            raise InvalidType(f"expected a predicate such as group(sex='Female'), got {type(part).__name__}")
        if isinstance(part, kind):
            yield from part.parts
        else:
            yield part


def _merge(kind: type[_Combined], a: Predicate, b: Predicate) -> Predicate:
    if isinstance(a, Member) and isinstance(b, Member):
        return _common_values(a, b) if kind is Both else ~_common_values(~a, ~b)
    if isinstance(a, Within) and isinstance(b, Within):
        if kind is Either:
            outside = _common_intervals(_outside(a.intervals), _outside(b.intervals))
            return Within(a.column, _outside(tuple(outside)))
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


def _common_intervals(a: Iterable[Interval], b: tuple[Interval, ...]) -> list[Interval]:
    pairs = ((max(x.low, y.low), min(x.high, y.high)) for x in a for y in b)
    return [Interval(low, high) for low, high in pairs if low < high]


def _outside(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return what is left of the line, for intervals that are disjoint and in order."""
    ends = [-math.inf, *(end for span in intervals for end in (span.low, span.high)), math.inf]
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return tuple(Interval(low, high) for low, high in pairs if low < high)


# ------------------------------------------------------------------------------------- printing


def _print_order(part: Predicate) -> tuple[bool, str]:
    is_label = isinstance(part, Member) and part.column is None
    return not is_label, repr(part).lstrip("~(")


def _bracket(piece: tuple[str, int], outer: int) -> str:
    """Return the text, in brackets if it binds less tightly than its surroundings."""
    text, strength = piece
    return text if strength >= outer else f"({text})"


_OR, _AND, _NOT, _CALL = range(4)


def _code(predicate: Predicate) -> tuple[str, int]:
    """Return Python text and how tightly its outermost operator binds."""
    match predicate:
        case Truth():
            return ("everyone", _CALL) if predicate.value else ("~everyone", _NOT)
        case Member() | Within():
            return _leaf_code(predicate)
        case Not():
            return f"~{_bracket(_code(predicate.parts[0]), _NOT)}", _NOT
        case Either():
            return " | ".join(_bracket(_code(part), _AND) for part in predicate.parts), _OR
        case _:
            return _both_code(predicate.parts)


def _leaf_code(leaf: Member | Within) -> tuple[str, int]:
    if isinstance(leaf, Member) and leaf.negated:
        return f"~{_leaf_code(~leaf)[0]}", _NOT
    if isinstance(leaf, Member) and leaf.column is None:
        return f"label({', '.join(map(repr, in_order(leaf.values)))})", _CALL
    return _group_code([leaf]), _CALL


def _group_code(leaves: Iterable[Member | Within]) -> str:
    pairs = [(leaf.column, _leaf_values(leaf)) for leaf in leaves]
    if all(is_word(column) for column, _ in pairs):
        return f"group({', '.join(f'{column}={value}' for column, value in pairs)})"
    return f"group(**{{{', '.join(f'{column!r}: {value}' for column, value in pairs)}}})"


def _leaf_values(leaf: Member | Within) -> str:
    values = _shown_intervals(leaf) if isinstance(leaf, Within) else in_order(leaf.values)
    listed = ", ".join(map(repr, values))
    if len(values) == 1:
        return listed
    return f"[{listed}]" if isinstance(leaf, Within) else f"{{{listed}}}"


def _shown_intervals(within: Within) -> tuple[Interval, ...]:
    """Return the intervals; the whole line, which no function makes by itself, as two halves."""
    if within.intervals == (Interval(-math.inf, math.inf),):
        return Interval(-math.inf, 0.0), Interval(0.0, math.inf)
    return tuple(within.intervals)


def _both_code(parts: tuple[Predicate, ...]) -> tuple[str, int]:
    """Join with ``&``, gathering plain conditions on different columns into one ``group(...)``."""
    together: dict[str, Member | Within] = {}
    alone: list[str] = []
    for part in parts:
        plain = isinstance(part, Within) or (isinstance(part, Member) and not part.negated and part.column)
        if plain and part.column not in together:  # type: ignore[attr-defined]
            together[part.column] = part  # type: ignore[attr-defined,assignment]
        else:
            alone.append(_bracket(_code(part), _AND))
    if together:
        at = 1 if alone and alone[0].startswith("label(") else 0
        alone.insert(at, _group_code(together.values()))
    return " & ".join(alone), (_CALL if len(alone) == 1 else _AND)


def _prose(predicate: Predicate) -> tuple[str, int]:
    match predicate:
        case Truth():
            return ("everyone" if predicate.value else "nobody"), _CALL
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
        case _:
            mark, strength = (" & ", _AND) if isinstance(predicate, Both) else (" | ", _OR)
            return mark.join(_bracket(_prose(part), strength + 1) for part in predicate.parts), strength


def _show_column(column: str | None) -> str:
    if column is None:
        return "label"
    return column if PLAIN_TEXT.match(column) and column != "label" else repr(column)
