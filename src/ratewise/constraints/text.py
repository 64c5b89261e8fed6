r"""Constraint text: one parser and one writer, in the grammar of the Python language.

>>> constraint = parse_constraint("fnr(label=1, race=*) <= 0.2")
>>> format_constraint(constraint)
'false_negative_rate(race=*) <= 0.2'

The parser descends recursively, with Python's operators and their precedence::

    comparison = union [("<=" | ">=") union]...       union  = meet ("|" meet)...
    meet       = sum ("&" sum)...                     sum    = term (("+" | "-") term)...
    term       = factor (("*" | "/") factor)...       factor = ("-" | "+" | "~")... primary
    primary    = atom ("." name "(" arguments ")")...
    atom       = number | text | name | name "(" arguments ")" | display
               | "(" comparison ["," ...] ")" | "[" comparison, ... "]" | "{" comparison, ... "}"
    arguments  = union | name "=" ("*" | union) | "**" "{" text ":" ("*" | union), ... "}", ...

Values are built by the functions that Python calls, so text and Python cannot disagree; the functions of families
come from their registry. The text has short names (`fnr`) and families by group in addition: ``fnr(race=*)`` for
every race, ``fnr(race="B")`` for one of them. It also reads the notation that reports print::

    display = "P(" value ["|" rows] ")"                        out of the rows of a subset
            | "P(" value "," rows ["|" rows] ")"               of all rows of a subset
            | "P(" rows "|" "predicted" value ["," rows] ")"   out of the rows predicted so
    rows    = part (("&" | "|") part)...
    part    = "everyone" | "nobody" | ["not"] "(" rows ")"
            | column ("=" | "!=") value | column ["not"] "in" "{" value, ... "}"
            | column ("<" | ">=") number | number "<=" column "<" number

Columns and values of a display are bare where that cannot be misread, else in quotes; ``label`` without quotes is
the true label. Before its first bare ``|``, a union goes in brackets of its own.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratewise.constraints.domain import (
    Domain,
    Numeric,
    at_least,
    below,
    between,
    list_values,
    show_number,
)
from ratewise.constraints.families import Family, family_class, family_names
from ratewise.constraints.predicates import (
    Member,
    Predicate,
    Within,
    conjunction,
    disjunction,
    everyone,
    group,
    label,
    nobody,
)
from ratewise.constraints.rates import Constraint, Constraints, Expression, Magnitude, Rows, rate, rows
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["GrammarError", "format_constraint", "parse_constraint"]

MAX_TEXT = 20_000  # characters of a constraint
MAX_DIGITS = 400  # characters of a number; every float needs far fewer
MAX_NESTING = 40  # brackets that may be open at once
MAX_JOINED = 100  # parts of one chain of & or |; sets of values say the same shorter
MAX_PREDICATE_DEPTH = 12
_LARGEST = 10**300
_SHOWN = 100  # characters of the text that a message shows around the place


class GrammarError(InvalidInput):
    """Constraint text that cannot be read.

    Attributes
    ----------
    reason : str
        What is wrong, or what was expected.
    text : str
        The whole text.
    position : int
        Index of the character that the error points at; ``len(text)`` is its end.

    >>> print(GrammarError("expected a number", "rate(1) <= x", 11))
    constraint, character 12: expected a number
        rate(1) <= x
                   ^
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason = reason
        self.text = text
        self.position = position
        super().__init__(f"constraint, character {position + 1}: {reason}\n{_pointer(text, position)}")

    def __reduce__(self) -> tuple[type[GrammarError], tuple[str, str, int]]:
        return GrammarError, (self.reason, self.text, self.position)


def _pointer(text: str, position: int) -> str:
    """Return the part of the text around a place, and a line with a caret under it."""
    start = max(0, min(position - _SHOWN // 2, len(text) - _SHOWN))
    head, tail = ("..." if start else ""), ("..." if start + _SHOWN < len(text) else "")
    # tabs, line ends and the like would move the caret
    shown = "".join(c if c.isprintable() else " " for c in text[start : start + _SHOWN])
    before = len(head) + sum(map(_columns, shown[: position - start]))
    return f"    {head}{shown}{tail}\n    {' ' * before}^"


def _columns(character: str) -> int:
    """Return how many columns of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# -------------------------------------------------------------------------------------------- tokens

_DIGITS = r"\d(?:_?\d)*"
_NUMBER = re.compile(r"(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?", re.ASCII)
_PYTHONS_NUMBER = re.compile(
    rf"0(?:_?0)*|[1-9](?:_?\d)*"  # whole
    rf"|(?:(?:{_DIGITS})?\.{_DIGITS}|{_DIGITS}\.)(?:[eE][+-]?{_DIGITS})?|{_DIGITS}[eE][+-]?{_DIGITS}",
    re.ASCII,
)
_MARK = re.compile(r"<=|>=|==|!=|\*\*|[()\[\]{},:.=*/+\-&|~<>]")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_CODED = {"x": 2, "u": 4, "U": 8}


class _Token(NamedTuple):
    """A piece of the text: its kind (name, number, text, mark, display, end), its value and its place.

    The value of a ``display`` is where the inside of ``P(...)`` begins and ends.
    """

    kind: str
    value: Any
    start: int
    end: int

    def is_mark(self, *marks: str) -> bool:
        return self.kind == "mark" and self.value in marks

    def __str__(self) -> str:
        if self.kind in ("end", "display"):
            return "the end of the text" if self.kind == "end" else "P(...)"
        shown = str(self.value) if self.kind in ("name", "mark") else repr(self.value)
        return shown if len(shown) <= 40 else shown[:37] + "..."


def _tokenize(text: Any) -> list[_Token]:
    """Return the tokens of the text, the last one of kind ``end``."""
    if not isinstance(text, str):
        raise InvalidType(f"a constraint must be text, got {type(text).__name__}")
    if len(text) > MAX_TEXT:
        said = f"a constraint may have {MAX_TEXT:,} characters, this one has {len(text):,}; split it"
        raise GrammarError(said, text, MAX_TEXT)
    tokens: list[_Token] = []
    at = _skip_blank(text, 0)
    while at < len(text):
        tokens.append(_next(text, at))
        at = _skip_blank(text, tokens[-1].end)
    return [*tokens, _Token("end", "", at, at)]


def _skip_blank(text: str, at: int, end: int | None = None) -> int:
    stop = len(text) if end is None else end
    while at < stop and text[at].isspace():
        at += 1
    return at


def _next(text: str, at: int) -> _Token:
    character = text[at]
    if character in "'\"":
        value, end = _read_quoted(text, at)
        return _Token("text", value, at, end)
    if _NUMBER.match(text, at):
        number, end = _read_number(text, at)
        return _Token("number", number, at, end)
    if character.isidentifier():
        end = at + 1
        while end < len(text) and (character + text[end]).isidentifier():
            end += 1
        opening = _skip_blank(text, end)
        if text[at:end] == "P" and text[opening : opening + 1] == "(":
            closing = _closing(text, opening)
            return _Token("display", (opening + 1, closing), at, closing + 1)
        return _Token("name", text[at:end], at, end)
    mark = _MARK.match(text, at)
    if mark is None:
        raise GrammarError(f"the character {character!r} has no meaning here; texts go in quotes", text, at)
    return _Token("mark", mark.group(), at, mark.end())


def _outside_quotes(text: str, at: int, end: int) -> Iterator[int]:
    """Yield the places of characters that are not inside quoted texts."""
    while at < end:
        if text[at] in "'\"":
            at = _read_quoted(text, at)[1]
        else:
            yield at
            at += 1


def _closing(text: str, opening: int) -> int:
    """Return the place of the bracket that closes another."""
    depth = 0
    for at in _outside_quotes(text, opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise GrammarError(f"expected ) for the ( at character {opening + 1}, found the end", text, len(text))


def _read_number(text: str, at: int) -> tuple[int | float, int]:
    """Return the number that begins here, and the place behind it."""
    found = _NUMBER.match(text, at)
    literal = found.group() if found else text[at]
    end = at + len(literal)
    if len(literal) > MAX_DIGITS:
        raise GrammarError(f"a number may have {MAX_DIGITS} characters, this one has more", text, at)
    follows = text[end : end + 1]
    if not _PYTHONS_NUMBER.fullmatch(literal) or (follows and (follows == "." or follows.isidentifier())):
        raise GrammarError("expected a number such as 3, 0.05 or 1e-3", text, at)
    plain = literal.replace("_", "")
    if plain.isdigit():
        return int(plain), end
    value = float(plain)
    if not math.isfinite(value):
        raise GrammarError("the number is too large for a computer's arithmetic", text, at)
    return value, end


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value of a quoted text with Python's escapes, and the place after it."""
    pieces: list[str] = []
    quote, here = text[at], at + 1
    while here < len(text) and text[here] != "\n":
        if text[here] == quote:
            return "".join(pieces), here + 1
        value, here = _escape(text, here) if text[here] == "\\" else (text[here], here + 1)
        pieces.append(value)
    raise GrammarError(f"the text that begins here has no closing {quote}", text, at)


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    length = _CODED.get(letter, 0)
    digits = text[at + 2 : at + 2 + length]
    if length and re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits) and int(digits, 16) <= 0x10FFFF:
        return chr(int(digits, 16)), at + 2 + length
    raise GrammarError(r"unknown escape; write \\ for a backslash, or \n \r \t \xhh \uhhhh", text, at)


# ---------------------------------------------------------------------------------------- what is named

COLUMN: Any = object()
"""The value of a mention that is about the column itself."""


class Mention(NamedTuple):
    """A column (`value` is `COLUMN`), a value of it, or a class (no column), and its place in the text.

    `groups` says that all values of the column are meant, and `call` names a family whose class was left out.
    """

    column: str | None
    value: Any
    start: int
    groups: bool = False
    call: str = ""


def check_mentions(mentions: Iterable[Mention], domain: Domain, text: str) -> None:
    """Raise at the first name that is no column, value or class of the domain."""
    for mention in mentions:
        reason = _unknown_mention(mention, domain)
        if reason is not None:
            raise GrammarError(reason, text, mention.start)


def check_columns(mentions: Iterable[Mention], columns: Iterable[str], text: str, what: str) -> None:
    """Raise at the first column that is none of these; `what` says whose columns they are."""
    known = list(columns)
    for mention in mentions:
        if mention.value is COLUMN and mention.column not in known:
            raise GrammarError(_unknown_column(mention.column, known, what), text, mention.start)


def _unknown_mention(mention: Mention, domain: Domain) -> str | None:
    column, value = mention.column, mention.value
    if column is not None and column not in domain.columns:
        return _unknown_column(column, list(domain.columns), "the groups")
    values = domain.values(column)
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
            f"{mention.call} means class {value!r} unless label= is given, which is not among the classes: "
            f"{list_values(values)}; write label=..., as in {mention.call}(label={values[-1]!r})"
        )
    place = "the classes" if column is None else f"the values of column {column!r}"
    return f"{value!r} is not among {place}: {list_values(values)}{_close(value, values)}"


def _unknown_column(column: Any, known: list[str], what: str) -> str:
    listed = list_values(known) if known else "there are none"
    return f"column {column!r} is not among {what}: {listed}{_close(column, known)}"


def _close(value: Any, known: Iterable[Any]) -> str:
    """Return a hint at what was probably meant: the same in another type, or spelled nearly so."""
    by_text = {str(one): one for one in known}
    near = difflib.get_close_matches(str(value)[:60], by_text, n=1)
    found = by_text.get(str(value), by_text[near[0]] if near else COLUMN)
    return "" if found is COLUMN else f"; did you mean {found!r}?"


# ----------------------------------------------------------------------------------- values while parsing


class _Word(str):
    """A bare word: a column or a value written without quotes."""

    __slots__ = ()


class _Star:
    """``*`` after a column: every value of it."""


class _Node(NamedTuple):
    """A value, where it was written, and where its name was, if it has one."""

    value: Any
    start: int
    named_at: int = -1

    @property
    def items(self) -> tuple[_Node, ...]:
        """The single values of a list, or the one value."""
        return tuple(self.value) if isinstance(self.value, _Listed) else (self,)


class _Listed(tuple[_Node, ...]):
    """Several values in brackets of any kind."""

    __slots__ = ()


@dataclass
class _Call:
    """A function of the language with its arguments as written, and the place of its name."""

    name: str
    start: int
    positional: list[_Node] = field(default_factory=list)
    keywords: dict[str, _Node] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()

    def blamed(self, message: str) -> int | None:
        """Return the place of the argument that a message of the library begins with, if there is one."""
        assigned = {**dict(zip(self.parameters, self.positional, strict=False)), **self.keywords}
        return next((a.start for name, a in assigned.items() if message.startswith(f"{name} ")), None)


@dataclass(frozen=True)
class _Unbounded:
    """A family without its bound; for one group, or for everyone, a rate like any other."""

    family: type[Family]
    columns: tuple[str, ...]
    where: Predicate
    options: dict[str, Any]

    def bounded(self, low: Any = None, high: Any = None) -> Family | Constraint | Constraints:
        """Return the family with its bounds; for one group, the constraint."""
        if low is not None and self.family.lower is None:
            raise InvalidInput(f"{self.family.kind} is bounded from above only: write <=")
        if high is not None and self.family.upper is None:
            raise InvalidInput(f"{self.family.kind} is bounded from below only: write >=")
        if self.where == everyone:
            return self.family.make(self.columns, low, high, **self.options)
        expression = self.expression()
        if low is not None and high is not None:
            return expression.between(low, high)
        one: Constraint = expression >= low if low is not None else expression <= high
        return one

    def expression(self) -> Expression:
        """Return the rate of one group, or of everyone, as an expression."""
        if self.columns and self.family.has_one_rate():
            raise InvalidInput(
                f"{self.family.kind} by {', '.join(self.columns)} stands for several rates; compare it with "
                "one number, or give each column a value"
            )
        return self.family.rate_in({**self.family.options, **self.options}, self.where)


def _describe(value: Any) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, _Word):
        return f"the name {str(value)[:40]!r}"
    kinds: list[tuple[Any, str]] = [
        (int | float, "a number"),
        (str, "a text"),
        (Predicate, "a set of rows"),
        (Expression, "a rate"),
        (Magnitude, "an absolute value"),
        (_Unbounded, "a family without a bound"),
        (Constraint | Constraints | Family, "a constraint"),
        (Rows, "rows(...)"),
        (_Listed, "a list"),
        (_Star, "*"),
    ]
    return next((words for kind, words in kinds if isinstance(value, kind)), "an interval")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_depth(predicate: Predicate, allowed: int = MAX_PREDICATE_DEPTH) -> Predicate:
    """Return the predicate; raise if it is nested too deeply."""
    if allowed < 0:
        raise InvalidInput(f"predicates may be nested {MAX_PREDICATE_DEPTH} levels deep, this is deeper")
    for part in predicate.parts:
        _check_depth(part, allowed - 1)
    return predicate


def _sensible(value: Any) -> Any:
    """Return a value; raise if it is a number beyond what sums of rates can hold."""
    # whole numbers first: those beyond the floats must not meet a float
    if (isinstance(value, int) and abs(value) >= _LARGEST) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise InvalidInput("a number here is too large")
    return value


def _add(parts: list[tuple[str, Any]]) -> Any:
    """Return a sum of rates and numbers; all at once, for one by one would take quadratic time."""
    terms: list[Any] = []
    total: Any = 0
    for mark, value in parts:
        signed = value if mark == "+" else -value
        if isinstance(signed, Expression):
            terms.extend(signed.terms)
            signed = signed.constant
        total = _sensible(total + signed)
    if not any(isinstance(value, Expression) for _, value in parts):
        return total
    whole = Expression(terms, float(total))
    for _, coefficient in whole.terms:
        _sensible(coefficient)
    return whole


def _multiply(left: Any, mark: str, right: Any) -> Any:
    if mark == "*":
        return _sensible(left * right)
    if _is_number(left) and not _is_number(right):
        raise InvalidInput("a number divided by a rate is not linear; only multiples of rates can be bounded")
    return _sensible(left / right)


# -------------------------------------------------------------------------------------------- parser

_COMPARISONS = ("<=", ">=", "<", ">", "==", "!=", "=")
_HINTS = {
    "<": "rates are bounded with <= or >=; a strict < cannot be distinguished from <=",
    ">": "rates are bounded with <= or >=; a strict > cannot be distinguished from >=",
    "==": "rates are bounded with <= or >=; for an equality write rate(...).between(b, b)",
    "!=": "rates are bounded with <= or >=",
    "=": "expected <= or >= (a single = gives an argument inside brackets)",
}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_PYTHONS_WORDS = {
    "and": "write & for and",
    "or": "write | for or",
    "not": "write ~ for not",
    "None": "None is a missing value and has no meaning here",
}
_CONSTANTS: dict[str, Any] = {"everyone": everyone, "nobody": nobody, "True": True, "False": False}
# function, parameters, how many of them are needed
_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], int]] = {
    "rate": (rate, ("k", "where", "out_of"), 1),
    "rows": (rows, ("where",), 1),
    "below": (below, ("threshold",), 1),
    "at_least": (at_least, ("threshold",), 1),
    "between": (between, ("low", "high"), 2),
    "abs": (abs, ("expression",), 1),
}


def parse_constraint(text: str, domain: Domain | None = None) -> Constraint | Constraints | Family:
    """Return the constraint or the family that a text declares.

    The text is Python as one would write it with `ratewise`, or one of the shorter forms: a family compared
    with its bound, columns and values without quotes, and ``column=*`` for "in every group".

    Parameters
    ----------
    text : str
    domain : Domain, optional
        The classes and the columns' values; a name in the text that is none of them raises an error.

    Raises
    ------
    GrammarError
        An `InvalidInput` that points at the character and states what was expected.

    Examples
    --------
    >>> parse_constraint("demographic_parity(sex) <= 0.05")
    demographic_parity('sex', max_gap=0.05)
    >>> parse_constraint("P(1 | sex=F) - P(1) <= 0.1")
    rate(1, where=group(sex='F')) - rate(1) <= 0.1
    >>> parse_constraint('rate(1, where=group(sex="F")) >= 0.8 * rate(1, where=group(sex="M"))')
    rate(1, where=group(sex='F')) - 0.8 * rate(1, where=group(sex='M')) >= 0
    >>> people = Domain(classes=(0, 1), columns={"sex": ("Female", "Male")})
    >>> parse_constraint("fnr(sex=Femal) <= 0.2", people)
    Traceback (most recent call last):
    ...
    ratewise.constraints.text.GrammarError: constraint, character 9: 'Femal' is not among the values of column ...
        fnr(sex=Femal) <= 0.2
                ^
    """
    found = read_constraint(text)
    if domain is not None:
        check_mentions(found.mentions, domain, text)
    return found.constraint


class Read(NamedTuple):
    """The constraint of a text, the names in the text with their places, and where its bound begins."""

    constraint: Constraint | Constraints | Family
    mentions: tuple[Mention, ...]
    bound_at: int


def read_constraint(text: str) -> Read:
    """Return the constraint of a text, with the places of the names in it."""
    parser = _Parser(text)
    constraint = parser.whole()
    return Read(constraint, tuple(parser.mentions), parser.bound_at)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._text = text
        self._at = 0
        self._open = 0
        self.mentions: list[Mention] = []
        self.bound_at = 0

    def whole(self) -> Constraint | Constraints | Family:
        if self._here.kind == "end":
            raise self._error("expected a constraint such as demographic_parity(sex) <= 0.05")
        value = self._comparison().value
        if self._here.kind != "end":
            raise self._error(f"expected <= or >=, an operator or the end, found {self._here}")
        if isinstance(value, Expression | Magnitude | _Unbounded):
            raise self._error("expected <= or >= and a bound")
        if not isinstance(value, Constraint | Constraints | Family):
            said = f"expected a constraint, this is {_describe(value)}; "
            raise self._error(said + "compare a rate with a number: rate(1) <= 0.2")
        return value

    # ------------------------------------------------------------------------------ small steps

    @property
    def _here(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, *marks: str) -> bool:
        found = self._here.is_mark(*marks)
        self._at += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(f"expected {mark} , found {self._here}")

    def _error(self, reason: Any, start: int | None = None) -> GrammarError:
        return GrammarError(str(reason), self._text, self._here.start if start is None else start)

    def _build(
        self,
        start: int,
        function: Callable[..., Any],
        *arguments: Any,
        made: _Call | None = None,
        **more: Any,
    ) -> Any:
        """Call a function; its error is reported at the argument of `made` that it names, else at `start`."""
        try:
            return function(*arguments, **more)
        except GrammarError:
            raise
        except (InvalidInput, InvalidType) as problem:
            blamed = None if made is None else made.blamed(str(problem))
            raise self._error(problem, start if blamed is None else blamed) from None

    def _nested(self, read: Callable[[], Any]) -> Any:
        if self._open >= MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} brackets are open here; write it flatter")
        self._open += 1
        value = read()
        self._open -= 1
        return value

    def _linear(self, node: _Node) -> Any:
        """Return a number or an expression as it is, a family as an expression; raise for anything else."""
        if isinstance(node.value, _Unbounded):
            return self._build(node.start, node.value.expression)
        if isinstance(node.value, Expression) or _is_number(node.value):
            return self._build(node.start, _sensible, node.value)
        raise self._error(f"expected a rate or a number, this is {_describe(node.value)}", node.start)

    def _plain(self, node: _Node) -> Any:
        """Return an argument as Python would hold it: bare words are texts."""
        value = node.value
        if isinstance(value, _Star):
            raise self._error("* goes with a column of a family, as in fnr(race=*)", node.start)
        if isinstance(value, _Word):
            return str(value)
        if isinstance(value, _Listed):
            return [self._plain(item) for item in value]
        if isinstance(value, _Unbounded) and value.family.has_one_rate():
            return self._build(node.start, value.expression)
        return value

    # ------------------------------------------------------------------------------- operators

    def _comparison(self) -> _Node:
        parts, marks = [self._union()], []
        while self._here.is_mark(*_COMPARISONS):
            marks.append(self._take())
            parts.append(self._union())
        if not marks:
            return parts[0]
        if not self._open:
            self.bound_at = marks[0].start
        return _Node(self._compare(parts, marks), parts[0].start)

    def _compare(self, parts: list[_Node], marks: list[_Token]) -> Any:
        for mark in marks:
            if mark.value in _HINTS:
                raise self._error(_HINTS[mark.value], mark.start)
        for part in parts:
            if not isinstance(part.value, Expression | Magnitude | _Unbounded) and not _is_number(part.value):
                raise self._error(f"expected a rate or a number, this is {_describe(part.value)}", part.start)
        start = marks[0].start
        if len(marks) > 1:
            return self._chain(parts, marks)
        left, right = parts
        upper = marks[0].value == "<="
        if _is_number(left.value) and not _is_number(right.value):
            left, right, upper = right, left, not upper
        compare = operator.le if upper else operator.ge
        if isinstance(left.value, _Unbounded) and _is_number(right.value):
            low, high = (None, right) if upper else (right, None)
            return self._bounded(left.value, low, high, start)
        if isinstance(left.value, Magnitude) and _is_number(right.value):
            return self._build(start, compare, left.value, right.value)
        first, second = self._linear(left), self._linear(right)
        if not isinstance(first, Expression):
            raise self._error("a number is no rate: a constraint compares a rate with a number", start)
        return self._build(start, compare, first, second)

    def _chain(self, parts: list[_Node], marks: list[_Token]) -> Any:
        if len(parts) == 3 and marks[0].value == marks[1].value:
            low, middle, high = parts if marks[0].value == "<=" else parts[::-1]
            if isinstance(middle.value, _Unbounded) and _is_number(low.value) and _is_number(high.value):
                return self._bounded(middle.value, low, high, marks[0].start)
        said = "Python keeps only one half of a chained comparison: write rate(...).between(a, b)"
        raise self._error(said, marks[1].start)

    def _bounded(self, found: _Unbounded, low: _Node | None, high: _Node | None, start: int) -> Any:
        """Return the bounded family; a bound that cannot be used is reported at its own place."""
        try:
            return found.bounded(low and low.value, high and high.value)
        except (InvalidInput, InvalidType) as problem:
            name, _, rest = str(problem).partition(" ")
            node = {found.family.lower: low, found.family.upper: high}.get(name)
            raise (
                self._error(problem, start) if node is None else self._error(f"the bound {rest}", node.start)
            ) from None

    def _union(self) -> _Node:
        return self._joined("|", operator.or_, self._meet)

    def _meet(self) -> _Node:
        return self._joined("&", operator.and_, self._sum)

    def _joined(self, mark: str, join: Callable[[Any, Any], Any], read: Callable[[], _Node]) -> _Node:
        left, count = read(), 1
        while self._here.is_mark(mark):
            token = self._take()
            count += 1
            if count > MAX_JOINED:
                raise self._error(f"more than {MAX_JOINED} parts are joined by {mark}", token.start)
            right = read()
            for side in (left, right):
                if not isinstance(side.value, Predicate):
                    said = f"{mark} joins sets of rows such as group(sex='Female') or label(1), not "
                    raise self._error(said + _describe(side.value), side.start)
            joined = join(left.value, right.value)
            left = _Node(self._build(token.start, _check_depth, joined), left.start)
        return left

    def _sum(self) -> _Node:
        first = self._term()
        if not self._here.is_mark("+", "-"):
            return first
        start = self._here.start
        parts = [("+", self._linear(first))]
        while self._here.is_mark("+", "-"):
            mark = self._take().value
            parts.append((mark, self._linear(self._term())))
        return _Node(self._build(start, _add, parts), first.start)

    def _term(self) -> _Node:
        left = self._factor()
        while self._here.is_mark("*", "/"):
            mark = self._take()
            right = self._factor()
            if (
                mark.value == "*"
                and isinstance(right.value, _Word)
                and isinstance(left.value, _Word | _Listed)
            ):
                left = _Node(_Listed((*left.items, right)), left.start)  # crossed columns
                continue
            first, second = self._linear(left), self._linear(right)
            if mark.value == "/" and _is_number(second) and second == 0:
                raise self._error("division by 0", right.start)
            left = _Node(self._build(mark.start, _multiply, first, mark.value, second), left.start)
        return left

    def _factor(self) -> _Node:
        signs = []
        while self._here.is_mark("-", "+", "~"):
            signs.append(self._take())
        node = self._primary()
        for sign in reversed(signs):
            if sign.value != "~":
                value = self._linear(node)
                value = -value if sign.value == "-" else value
            elif isinstance(node.value, Predicate):
                value = self._build(sign.start, _check_depth, ~node.value)
            else:
                said = f"~ denies a set of rows such as group(sex='Female'), not {_describe(node.value)}"
                raise self._error(said, node.start)
            node = _Node(value, node.start)
        return _Node(node.value, signs[0].start) if signs else node

    # ------------------------------------------------------------------------- names and brackets

    def _primary(self) -> _Node:
        node = self._atom()
        while self._skip("."):
            name = self._take()
            if name.kind != "name" or name.value not in ("between", "named"):
                raise self._error("expected .between(low, high) or .named(text)", name.start)
            call = self._arguments(name)
            node = _Node(self._method(node.value, call), node.start)
        return node

    def _method(self, value: Any, call: _Call) -> Any:
        """Return ``value.between(low, high)`` or ``value.named(text)``."""
        if call.name == "named":
            given = self._assigned(call, ("name",), 1)
            if not isinstance(value, Constraint | Constraints):
                said = f".named(text) goes behind a constraint in brackets, not {_describe(value)}"
                raise self._error(said, call.start)
            return self._build(call.start, value.named, made=call, **given)
        given = self._assigned(call, ("low", "high"), 2)
        for name, bound in given.items():
            if not _is_number(bound):
                said = f"{name} must be a number, this is {_describe(bound)}"
                raise self._error(said, call.blamed(said))
        if not isinstance(value, Expression | _Unbounded):
            raise self._error(f".between(low, high) goes behind a rate, not {_describe(value)}", call.start)
        make = value.bounded if isinstance(value, _Unbounded) else value.between
        return self._build(call.start, make, made=call, **given)

    def _atom(self) -> _Node:
        token = self._here
        if token.kind in ("number", "text"):
            return _Node(self._take().value, token.start)
        if token.kind == "name":
            return self._name(self._take())
        if token.kind == "display":
            reader = _Display(self._text, *self._take().value)
            value = reader.whole()
            self.mentions += reader.mentions
            return _Node(value, token.start)
        if token.is_mark(*_BRACKETS):
            return self._nested(self._bracket)  # type: ignore[no-any-return]
        raise self._error(f"expected a rate, a number or a name, found {token}")

    def _name(self, token: _Token) -> _Node:
        name = token.value
        if self._here.is_mark("("):
            known = sorted((*_FUNCTIONS, "group", "label", *family_names()))
            if name not in known:
                raise self._error(_unknown_function(name, known), token.start)
            call = self._arguments(token)
            return _Node(self._called(call), token.start)
        if name in _CONSTANTS:
            return _Node(_CONSTANTS[name], token.start)
        if name in _PYTHONS_WORDS:
            raise self._error(_PYTHONS_WORDS[name], token.start)
        return _Node(_Word(name), token.start)

    def _bracket(self) -> _Node:
        opening = self._take()
        closing = _BRACKETS[opening.value]
        if self._skip(closing):
            raise self._error("expected something between the brackets", opening.start)
        items = [self._comparison()]
        comma = False
        while comma := self._skip(","):
            if self._here.is_mark(closing):
                break
            items.append(self._comparison())
        if not self._skip(closing):
            where = f"for the {opening.value} at character {opening.start + 1}"
            raise self._error(f"expected {closing} {where}, found {self._here}")
        if opening.value == "(" and len(items) == 1 and not comma:
            return items[0]
        values = [item.value for item in items]
        if opening.value == "[" and all(isinstance(value, Constraint | Constraints) for value in values):
            several = (value if isinstance(value, Constraints) else (value,) for value in values)
            return _Node(Constraints(one for each in several for one in each), opening.start)
        return _Node(_Listed(items), opening.start)

    def _arguments(self, name: _Token) -> _Call:
        return self._nested(lambda: self._read_arguments(_Call(name.value, name.start)))  # type: ignore[no-any-return]

    def _read_arguments(self, call: _Call) -> _Call:
        self._expect("(")
        while not self._here.is_mark(")"):
            token = self._here
            if self._skip("**"):
                self._nested(lambda: self._mapping(call))
            elif token.kind == "name" and self._tokens[self._at + 1].is_mark("="):
                self._at += 2
                self._keyword(call, token)
            elif call.keywords:
                raise self._error("expected column=value or option=value after the first such argument")
            else:
                call.positional.append(self._union()._replace(start=token.start))
            if not self._skip(","):
                break
        if not self._skip(")"):
            hint = "; a value is given with one =" if self._here.is_mark("==") else ""
            raise self._error(f"expected , or ) in {call.name}(...), found {self._here}{hint}")
        return call

    def _keyword(self, call: _Call, name: _Token) -> None:
        if name.value in call.keywords:
            raise self._error(f"{name.value!r} is given twice", name.start)
        start = self._here.start
        value = _Star() if self._skip("*") else self._union().value
        call.keywords[name.value] = _Node(value, start, name.start)

    def _mapping(self, call: _Call) -> None:
        self._expect("{")
        while not self._here.is_mark("}"):
            key = self._take()
            if key.kind != "text":
                raise self._error("expected a column's name in quotes", key.start)
            self._expect(":")
            self._keyword(call, key)
            if not self._skip(","):
                break
        self._expect("}")

    # ------------------------------------------------------------------------------------- calls

    def _called(self, call: _Call) -> Any:
        """Return what a call stands for, and note what it names."""
        family = family_class(call.name)
        if family is not None:
            return self._family(call, family)
        if call.name == "group":
            if call.positional:
                raise self._error("group() takes column=value", call.positional[0].start)
            given = {name: self._plain(node) for name, node in call.keywords.items()}
            found = self._build(call.start, lambda: _check_depth(group(**given)), made=call)
            self._mention_conditions(call.keywords)
            return found
        if call.name == "label":
            if call.keywords:
                first = next(iter(call.keywords.values()))
                raise self._error("label() takes classes, as in label(1)", first.start)
            found = self._build(call.start, label, *map(self._plain, call.positional), made=call)
            self._mention_values(None, *call.positional)
            return found
        function, parameters, least = _FUNCTIONS[call.name]
        given = self._assigned(call, parameters, least)
        if call.name == "abs":
            if not isinstance(given["expression"], Expression):
                start = (*call.positional, *call.keywords.values())[0].start
                raise self._error("abs() takes a combination of rates", start)
            return abs(given["expression"])
        found = self._build(call.start, function, made=call, **given)
        if call.name == "rate":
            self._mention_values(None, call.positional[0] if call.positional else call.keywords["k"])
        return found

    def _assigned(self, call: _Call, names: tuple[str, ...], least: int = 0) -> dict[str, Any]:
        """Return the arguments by parameter name, as Python would assign them."""
        call.parameters = names
        if len(call.positional) > len(names):
            said = f"{call.name}() takes at most {len(names)} arguments"
            raise self._error(said, call.positional[len(names)].start)
        found = dict(zip(names, call.positional, strict=False))
        for name, node in call.keywords.items():
            if name not in names:
                known = ", ".join(names) or "none"
                raise self._error(f"{call.name}() has no argument {name!r}; it has: {known}", node.start)
            if name in found:
                raise self._error(f"{call.name}() got {name!r} twice", node.start)
            found[name] = node
        missing = [name for name in names[:least] if name not in found]
        if missing:
            raise self._error(f"{call.name}() needs {' and '.join(missing)}", call.start)
        return {name: self._plain(node) for name, node in found.items()}

    def _family(self, call: _Call, family: type[Family]) -> Any:
        """Read ``demographic_parity(sex)``, ``fnr(label=1, race=*)`` and the Python forms with a bound inside."""
        names = (*family.bounds(), *family.options, *(("by",) if family.by_keyword else ()))
        options = {name: node for name, node in call.keywords.items() if name in names}
        groups = {name: node for name, node in call.keywords.items() if name not in (*names, "label")}
        if "label" in call.keywords and "positive" in names:
            if "positive" in options:
                raise self._error("label and positive are two words for one thing", options["positive"].start)
            options["positive"] = call.keywords["label"]
        if "versus" in options and options["versus"].value == everyone:
            options["versus"] = options["versus"]._replace(value="everyone")  # the word, not the rows
        crossed, where = self._groups(call.name, family, groups)
        positional = call.positional if family.by_keyword else []
        bound = _Call(call.name, call.start, positional, options)
        given = self._assigned(bound, names)
        call.parameters = names if family.by_keyword else ()
        classes = [options[name] for name in ("positive",) if name in options]
        if family.by_keyword:
            assigned = {**dict(zip(names, positional, strict=False)), **options}
            classes = [assigned["positive"]] if "positive" in assigned else []
            by = given.pop("by", ())
            columns = (*(by if isinstance(by, list | tuple) else (by,)), *crossed)
            if len(set(map(str, columns))) < len(columns):
                place = assigned.get("by")
                raise self._error("name each column once", call.start if place is None else place.start)
            self._mention_groupings(*([assigned["by"]] if "by" in assigned else []))
        else:
            columns = (*self._positional_columns(call, crossed), *crossed)
            self._mention_groupings(*call.positional)
        low, high = (given.pop(name, None) if name else None for name in (family.lower, family.upper))
        checked = {
            name: self._build(call.start, family.check_option, name, value, made=call)
            for name, value in given.items()
        }
        found = _Unbounded(family, columns, where, checked)
        self._mention_values(None, *classes)
        if "positive" in names and not classes:
            self.mentions.append(Mention(None, family.options["positive"], call.start, call=call.name))
        self._mention_conditions(groups)
        if low is None and high is None:
            return found
        return self._build(call.start, found.bounded, low, high, made=call)

    def _groups(
        self, name: str, family: type[Family], groups: dict[str, _Node]
    ) -> tuple[tuple[str, ...], Predicate]:
        """Split columns given by keyword into those with ``*`` and a condition on one group."""
        columns = tuple(column for column, node in groups.items() if isinstance(node.value, _Star))
        valued = {column: node for column, node in groups.items() if column not in columns}
        if not valued:
            return columns, everyone
        first = next(iter(valued.values())).start
        if not family.has_one_rate():
            said = f"{name} compares groups or classes: give columns without a value, as in sex=*"
            raise self._error(said, first)
        if columns:
            said = "give every column a value, or every column a *; for a mixture write rate(...)"
            raise self._error(said, first)
        given = {column: self._plain(node) for column, node in valued.items()}
        blamed = _Call(name, first, [], valued)
        return columns, self._build(first, lambda: _check_depth(group(**given)), made=blamed)

    def _positional_columns(self, call: _Call, crossed: tuple[str, ...]) -> Iterator[str]:
        """Yield the columns that stand without keyword, each of which may stand there once."""
        seen = set(crossed)
        for node in call.positional:
            if not isinstance(node.value, str):
                raise self._error("expected the name of a column; the bound goes behind <=", node.start)
            if node.value in seen:
                raise self._error(f"name each column once; {str(node.value)!r} is here twice", node.start)
            seen.add(node.value)
            yield str(node.value)

    def _mention_values(self, column: str | None, *nodes: _Node) -> None:
        for item in (item for node in nodes for item in node.items):
            if isinstance(item.value, str | int | float):
                value = str(item.value) if isinstance(item.value, _Word) else item.value
                self.mentions.append(Mention(column, value, item.start))

    def _mention_conditions(self, conditions: dict[str, _Node]) -> None:
        for column, node in conditions.items():
            star = isinstance(node.value, _Star)
            self.mentions.append(Mention(column, COLUMN, node.named_at, groups=star))
            if not star:
                self._mention_values(column, node)

    def _mention_groupings(self, *nodes: _Node) -> None:
        for item in (item for node in nodes for item in node.items):
            if isinstance(item.value, str):
                self.mentions.append(Mention(str(item.value), COLUMN, item.start, groups=True))


def _unknown_function(name: str, known: list[str]) -> str:
    if name == "error":  # as reports print it
        return "error(...) stands for one rate per class; write error_rate_parity(sex) <= 0.1"
    close = difflib.get_close_matches(name[:60], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
    return f"there is no function {name[:60]}{hint}"


# ------------------------------------------------------------------------------ the notation of reports

_BARE = re.compile(r"[^\W\d][\w.+/-]*(?: [\w.+/-]+)*")
_PREDICTED = re.compile(r"\s*predicted\s+")
_SIGNED = re.compile(r"[+-]?\s*(?=[.0-9])")
_NOT = re.compile(r"not\s*(?=\()")
_AFTER_COLUMN = re.compile(r"\s*(?:=|!=|<|>=|in|not in)")


class _Display:
    """Reads what is between the brackets of ``P(...)``: from `start` to `end` of the text."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = self._at = start
        self._end = end
        self._open = 0
        self.mentions: list[Mention] = []

    def whole(self) -> Expression:
        """Return the rate."""
        try:
            return self._rate()
        except GrammarError:
            raise
        except (InvalidInput, InvalidType) as problem:
            raise self._error(str(problem), self._start) from None

    def _rate(self) -> Expression:
        bar = self._bar()
        predicted = self._predicted(bar + 1) if bar < self._end else None
        if predicted is not None:
            prediction, given_at = predicted
            inside = self._rows(bar)
            self._expect_end(bar)
            self._at = given_at
            given = self._rows(self._end) if self._skip(",") else everyone
            self._expect_end(self._end)
            return rate(prediction, inside, given)
        prediction = self._value(None)
        within = self._rows(bar) if self._skip(",") else None
        self._expect_end(bar)
        given = everyone
        if bar < self._end:
            self._at = bar + 1
            given = self._rows(self._end)
            self._expect_end(self._end)
        return rate(prediction, where=given) if within is None else rate(prediction, within, rows(given))

    def _bar(self) -> int:
        """Return the place of the first ``|`` that is in no bracket and in no quotes; else the end."""
        depth = 0
        for at in _outside_quotes(self._text, self._start, self._end):
            if self._text[at] == "|" and depth == 0:
                return at
            depth += (self._text[at] in "({") - (self._text[at] in ")}")
        return self._end

    def _predicted(self, at: int) -> tuple[Any, int] | None:
        """Return the class after the word predicted, and the place behind it; None if it is a column."""
        word = _PREDICTED.match(self._text, at, self._end)
        if word is None:
            return None
        kept, known = self._at, len(self.mentions)
        self._at = word.end()
        value, behind = self._value(None), self._at
        self._at = kept
        if behind < self._end and self._text[behind] != ",":
            del self.mentions[known:]
            return None
        return value, behind

    # ------------------------------------------------------------------------------ subsets of rows

    def _rows(self, end: int, mark: str = "|") -> Predicate:
        def one() -> Predicate:
            return self._rows(end, "&") if mark == "|" else self._part(end)

        parts = [one()]
        while self._skip(mark, end):
            if len(parts) == MAX_JOINED:
                raise self._error(f"more than {MAX_JOINED} parts are joined by {mark}")
            parts.append(one())
        return _check_depth(disjunction(parts) if mark == "|" else conjunction(parts))

    def _part(self, end: int) -> Predicate:
        if self._skip("("):
            if self._open >= MAX_NESTING:
                raise self._error(f"more than {MAX_NESTING} brackets are open here; write it flatter")
            self._open += 1
            found = self._rows(end)
            self._open -= 1
            self._expect(")")
            return found
        denied = _NOT.match(self._text, self._at, end)
        if denied is not None:
            self._at = denied.end()
            return _check_depth(~self._part(end))
        if _SIGNED.match(self._text, self._at, end):
            low = self._number()
            self._expect("<=")
            column = self._column(*self._word("a column"))
            self._expect("<")
            return Within(str(column), (between(low, self._number()),))
        return self._condition()

    def _condition(self) -> Predicate:
        name, start, quoted = self._word("a column")
        if not quoted and self._ahead("{"):  # the words in and not in are no part of the name
            for word in (" not in", " in"):
                if name.endswith(word):
                    name = name.removesuffix(word)
                    self._at = start + len(name)
                    break
        compared = quoted or _AFTER_COLUMN.match(self._text, self._at, self._end)
        if name in ("everyone", "nobody") and not compared:
            return everyone if name == "everyone" else nobody
        column = None if name == "label" and not quoted else self._column(name, start, quoted)
        for mark in ("not in", "in", "!=", "="):
            if self._skip(mark):
                values = self._values(column) if mark.endswith("in") else [self._value(column)]
                return Member(column, values, mark in ("not in", "!="))
        if column is not None and self._skip("<"):
            return Within(column, (below(self._number()),))
        if column is not None and self._skip(">="):
            return Within(column, (at_least(self._number()),))
        raise self._error("expected a condition such as sex=Female, race in {A, B} or age<25")

    def _column(self, name: str, start: int, quoted: bool) -> str:  # noqa: ARG002 - as `_word` returns it
        self.mentions.append(Mention(name, COLUMN, start))
        return name

    def _values(self, column: str | None) -> list[Any]:
        self._expect("{")
        found = [self._value(column)]
        while self._skip(","):
            found.append(self._value(column))
        self._expect("}")
        return found

    # --------------------------------------------------------------------------------- single words

    def _value(self, column: str | None) -> Any:
        self._blank()
        start = self._at
        value: Any
        if _SIGNED.match(self._text, start, self._end):
            value = self._number()
        else:
            value, _, quoted = self._word("a value")
            if not quoted and value in ("True", "False"):
                value = value == "True"
        self.mentions.append(Mention(column, value, start))
        self._blank()
        return value

    def _word(self, what: str) -> tuple[str, int, bool]:
        """Return a word, where it begins, and whether it was in quotes."""
        self._blank()
        start = self._at
        if start < self._end and self._text[start] in "'\"":
            value, self._at = _read_quoted(self._text, start)
            return value, start, True
        found = _BARE.match(self._text, start, self._end)
        if found is None:
            raise self._error(f"expected {what}, found {self._shown()}")
        self._at = found.end()
        return found.group(), start, False

    def _number(self) -> Any:
        self._blank()
        found = _SIGNED.match(self._text, self._at, self._end)
        if found is None:
            raise self._error(f"expected a number, found {self._shown()}")
        value, self._at = _read_number(self._text, found.end())
        if self._at > self._end:
            raise self._error("expected a number inside P(...)")
        return -value if found.group().startswith("-") else value

    # ----------------------------------------------------------------------------------- small steps

    def _blank(self) -> None:
        self._at = _skip_blank(self._text, self._at, self._end)

    def _ahead(self, mark: str) -> bool:
        return self._text.startswith(mark, _skip_blank(self._text, self._at, self._end), self._end)

    def _skip(self, mark: str, end: int | None = None) -> bool:
        self._blank()
        if not self._text.startswith(mark, self._at, self._end if end is None else end):
            return False
        self._at += len(mark)
        self._blank()
        return True

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(f"expected {mark} , found {self._shown()}")

    def _expect_end(self, end: int) -> None:
        self._blank()
        if self._at != end:
            raise self._error(f"expected & or | or the end of P(...), found {self._shown()}")

    def _shown(self) -> str:
        return repr(self._text[self._at]) if self._at < self._end else "the end of P(...)"

    def _error(self, reason: str, at: int | None = None) -> GrammarError:
        return GrammarError(reason, self._text, self._at if at is None else at)


# -------------------------------------------------------------------------------------------- writer


def format_constraint(constraint: Constraint | Constraints | Family) -> str:
    """Return the text that `parse_constraint` reads as an equal object; the same text for the same object.

    Raises
    ------
    InvalidInput
        The constraint cannot be written as text: it has values that are no texts, numbers or truth values, or
        more than the grammar allows in length and nesting.

    >>> from ratewise import rate, group
    >>> format_constraint(abs(rate(1, where=group(sex="F")) - rate(1)) <= 0.1)
    "abs(rate(1, where=group(sex='F')) - rate(1)) <= 0.1"
    """
    if not isinstance(constraint, Constraint | Constraints | Family):
        raise InvalidType(f"expected a constraint or a family, got {type(constraint).__name__}")
    for value in _values(constraint):
        _refuse_unwritable(value)
    if isinstance(constraint, Family):
        text = constraint.name
    else:
        text = _several(constraint) if isinstance(constraint, Constraints) else repr(constraint)
    try:
        same = parse_constraint(text)
    except GrammarError as problem:
        raise InvalidInput(f"the constraint cannot be written as text: {problem.reason}") from None
    if same != constraint:
        raise InvalidInput("the constraint cannot be written as text that reads back as the same")
    return text


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


def _values(constraint: Constraint | Constraints | Family) -> Iterator[Any]:
    """Yield every label and group value that the constraint holds."""
    if isinstance(constraint, Family):
        yield from constraint.settings.values()
        return
    for one in constraint if isinstance(constraint, Constraints) else (constraint,):
        for term, _ in one.expression.terms:
            yield term.prediction
            for leaf in (*term.where.leaves(), *term.of.leaves()):
                if isinstance(leaf, Member):
                    yield from leaf.values


def _refuse_unwritable(value: Any) -> None:
    # exactly these types: a subclass may print itself as anything
    if type(value) not in (str, int, float, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(
            f"a value of type {type(value).__name__} cannot be written as text; constraint text knows texts, "
            "finite numbers and truth values"
        )
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InvalidInput("a whole number of more than 300 digits cannot be written as constraint text")
