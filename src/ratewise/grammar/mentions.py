"""Columns, values and classes that a text names, each with its place, held against public facts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ratewise.domain import Domain, Numeric, list_values
from ratewise.grammar.errors import GrammarError
from ratewise.grammar.tokens import tokenize
from ratewise.grammar.words import SHORT_NAMES, Argument, Call, Star, Word, parameters
from ratewise.measures import LIMITS, PARITIES
from ratewise.values import Interval

COLUMN = object()
"""The value of a mention that is about the column itself."""


class Mention(NamedTuple):
    """A column (`column` alone), or a value of it, or a class (no column); from `start` to `end` in the text.

    `groups` tells that all values of the column are meant, and `call` names a ready-made rate whose class was
    left out.
    """

    column: str | None
    value: Any
    start: int
    end: int
    groups: bool = False
    call: str = ""


def mentions_of(made: Call) -> Iterator[Mention]:
    """Yield what a call names."""
    kind = SHORT_NAMES.get(made.name, made.name)
    if kind == "group":
        for column, argument in made.keywords.items():
            yield from _condition(column, argument)
    elif kind == "label":
        for argument in made.positional:
            yield from _values(None, argument)
    elif kind == "rate":
        for argument in (*made.positional[:1], *(a for name, a in made.keywords.items() if name == "k")):
            yield from _values(None, argument)
    elif kind in PARITIES or kind in LIMITS:
        yield from _ready(made, kind)


def _ready(made: Call, kind: str) -> Iterator[Mention]:
    bounds, names = parameters(kind)
    assigned = dict(made.keywords)
    if kind in PARITIES:
        for argument in made.positional:
            yield from _groups(argument)
    else:
        assigned.update(zip((*bounds, *names), made.positional, strict=False))
    classes = [assigned[name] for name in ("label", "positive") if name in assigned]
    for argument in classes:
        yield from _values(None, argument)
    if "positive" in names and not classes:
        yield Mention(None, 1, made.start, made.start, call=made.name)
    if "by" in assigned:
        yield from _groups(assigned["by"])
    for column, argument in assigned.items():
        if column not in (*bounds, *names, "label"):
            yield from _condition(column, argument)


def _condition(column: str, argument: Argument) -> Iterator[Mention]:
    star = isinstance(argument.value, Star)
    yield Mention(column, COLUMN, argument.named_at, argument.start, groups=star)
    if not star:
        yield from _values(column, argument)


def _values(column: str | None, argument: Argument) -> Iterator[Mention]:
    for item in argument.items:
        if not isinstance(item, Interval):
            value = str(item) if isinstance(item, Word) else item
            yield Mention(column, value, argument.start, argument.end)


def _groups(argument: Argument) -> Iterator[Mention]:
    for item in argument.items:
        if isinstance(item, str):
            yield Mention(str(item), COLUMN, argument.start, argument.end, groups=True)


# ---------------------------------------------------------------------------------------- checking


def check_mentions(mentions: Iterable[Mention], domain: Domain, text: str) -> None:
    """Refuse the first word that is no column, value or class of the domain, at its place."""
    for mention in mentions:
        reason = _unknown(mention, domain)
        if reason is not None:
            raise GrammarError(reason, text, place_of(mention, text))


def check_columns(mentions: Iterable[Mention], columns: Iterable[str], text: str, what: str) -> None:
    """Refuse the first column that is none of these, at its place; `what` says whose columns they are."""
    known = list(columns)
    for mention in mentions:
        if mention.value is COLUMN and mention.column not in known:
            reason = f"column {mention.column!r} is not among {what}: {_listed(known)}"
            raise GrammarError(reason + _close(mention.column, known), text, place_of(mention, text))


def _unknown(mention: Mention, domain: Domain) -> str | None:
    column, value = mention.column, mention.value
    if column is not None and column not in domain.columns:
        known = list(domain.columns)
        return f"column {column!r} is not among the groups: {_listed(known)}{_close(column, known)}"
    values = domain.classes if column is None else domain.columns[column]
    if isinstance(values, Numeric):
        if value is COLUMN and not mention.groups:
            return None
        return (
            f"column {column!r} is a number and has no list of values; write conditions such as "
            f"group({column}=below(25)), at_least(65) or between(25, 65), or declare it as a category"
        )
    if value is COLUMN or value in values:
        return None
    if mention.call:
        return (
            f"{mention.call} means class 1 unless told otherwise, which is not among the classes: "
            f"{list_values(values)}; write label=..., as in {mention.call}(label={values[-1]!r})"
        )
    place = "the classes" if column is None else f"the values of column {column!r}"
    return f"{value!r} is not among {place}: {list_values(values)}{_close(value, values)}"


def _listed(names: list[str]) -> str:
    return list_values(names) if names else "there are none"


def _close(value: Any, known: Iterable[Any]) -> str:
    """Return a hint at what was probably meant: the same in another type, or spelled nearly so."""
    by_text = {str(one): one for one in known}
    near = difflib.get_close_matches(str(value)[:60], by_text, n=1)
    found = by_text.get(str(value), by_text[near[0]] if near else COLUMN)
    return "" if found is COLUMN else f"; did you mean {found!r}?"


def place_of(mention: Mention, text: str) -> int:
    """Return where the word itself stands: in a list, not at its bracket."""
    sought = mention.column if mention.value is COLUMN else mention.value
    for token in tokenize(text):
        inside = mention.start <= token.start < mention.end
        if inside and token.kind in ("name", "text", "number") and token.value == sought:
            return token.start
    return mention.start
