r"""Constraint text: one parser and one writer, in the syntax of Python.

>>> constraint = parse_constraint("fnr(label=1, race=*) <= 0.2")
>>> format_constraint(constraint)
'false_negative_rate(race=*) <= 0.2'

The text is one Python expression. It is parsed by `ast.parse` and evaluated here, node by node: only the names
and operators of this language have a meaning, and nothing of the text is executed. Values are built by the
functions that Python calls, so text and Python cannot disagree; the functions of families come from their
registry. The text differs from Python in four ways:

* columns and values need no quotes if they are plain words: ``group(sex=Female)``,
* families have short names (`fnr`) and are compared with their bound: ``demographic_parity(sex) <= 0.05``,
* ``fnr(race=*)`` stands for every race, ``fnr(race="B")`` for one of them,
* a family with two bounds may be a chained comparison: ``0.1 <= positive_rate() <= 0.3``.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ratewise.constraints.domain import Domain, Numeric, at_least, below, between, list_values, show_number
from ratewise.constraints.families import FAMILIES, Family
from ratewise.constraints.predicates import (
    Member,
    Predicate,
    everyone,
    group,
    label,
    nobody,
)
from ratewise.constraints.rates import Constraint, Constraints, Expression, Magnitude, Rows, rate, rows
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["GrammarError", "format_constraint", "parse_constraint"]

MAX_TEXT = 20_000  # characters of a constraint
MAX_NESTING = 40  # brackets that may be open at once
MAX_JOINED = 100  # sets of rows in one chain of & or |
_LARGEST = 10**300
_REPORT_NOTATION = "P(...) is the notation of reports; write rate(1, where=group(sex=Female))"
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


# ------------------------------------------------------------------------------------- text to syntax tree

_QUOTED = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_STAR = "_"  # the name that stands for * in the syntax tree
# quoted texts, and what is not Python's outside of them: line ends, comments, and * for every value of a column
_PIECES = re.compile(
    rf"(?P<quoted>{_QUOTED})|(?P<star>[=:]\s*\*(?=\s*[,)}}]))|(?P<blank>\s)|[#'\"()\[\]{{}}]"
)
_UNKNOWN_ESCAPE = re.compile(r"\\(?!\\|['\"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")


def _as_python(text: str) -> str:
    """Return the text as Python of the same length: ``*`` for all values as a name, blanks for line ends."""
    depth = 0

    def replaced(piece: re.Match[str]) -> str:
        nonlocal depth
        found = piece.group()
        if piece["quoted"]:
            escape = _UNKNOWN_ESCAPE.search(found.replace("\\\\", "__"))
            if escape:
                at = piece.start() + escape.start()
                raise GrammarError(
                    r"unknown escape; write \\ for a backslash, or \n \r \t \xhh \uhhhh", text, at
                )
        elif piece["star"]:
            return re.sub(r"\s", " ", found[:-1]) + _STAR
        elif piece["blank"]:
            return " "
        elif found in "'\"":
            raise GrammarError(f"the text that begins here has no closing {found}", text, piece.start())
        elif found == "#":
            raise GrammarError(
                "the character '#' has no meaning here; texts go in quotes", text, piece.start()
            )
        else:
            depth += 1 if found in "([{" else -1
            if depth > MAX_NESTING:
                said = f"more than {MAX_NESTING} brackets are open here; write it flatter"
                raise GrammarError(said, text, piece.start())
        return found

    return _PIECES.sub(replaced, text)


def _parse(text: Any) -> tuple[ast.expr, Callable[[ast.AST], int]]:
    """Return the syntax tree of a text, and a function from its nodes to places in the text."""
    if not isinstance(text, str):
        raise InvalidType(f"a constraint must be text, got {type(text).__name__}")
    if len(text) > MAX_TEXT:
        said = f"a constraint may have {MAX_TEXT:,} characters, this one has {len(text):,}; split it"
        raise GrammarError(said, text, MAX_TEXT)
    source = _as_python(text)
    blank = len(source) - len(source.lstrip())
    if blank == len(source):
        raise GrammarError("expected a constraint such as demographic_parity(sex) <= 0.05", text, blank)
    try:
        tree = ast.parse(source[blank:], mode="eval").body
    except SyntaxError as problem:
        offset = problem.offset or 0
        ended = problem.lineno != 1 or not offset
        at = len(text) if ended else min(blank + offset - 1, len(text))
        raise GrammarError(_syntax_reason(str(problem.msg), source, at), text, at) from None
    except (ValueError, RecursionError, MemoryError) as problem:  # characters or depths that Python refuses
        raise GrammarError(
            f"this is not a constraint: {str(problem) or 'too long a chain'}", text, blank
        ) from None
    encoded = source[blank:].encode()

    def place(node: ast.AST) -> int:
        return blank + len(encoded[: getattr(node, "col_offset", 0)].decode(errors="ignore"))

    return tree, place


def _syntax_reason(message: str, source: str, at: int) -> str:
    if re.search(r"\bP\s*\(", source):
        return _REPORT_NOTATION
    if source[at : at + 1] == "=" or "Maybe you meant '=='" in message or "cannot assign" in message:
        return "expected <= or >= (a single = gives an argument inside brackets)"
    return (
        f"this is not a constraint: {message}. Write for example demographic_parity(sex) <= 0.05 or "
        "rate(1, where=group(sex=Female)) <= 0.2; names with blanks or marks and words of Python go in quotes"
    )


# ----------------------------------------------------------------------------------- values while reading


class _Word(str):
    """A bare word: a column or a value written without quotes."""

    __slots__ = ()


@dataclass(frozen=True)
class _Unbounded:
    """A family without its bound; for one group, or for everyone, a rate like any other."""

    family: type[Family]
    columns: tuple[str, ...]
    where: Predicate
    options: dict[str, Any]

    def between(self, low: Any = None, high: Any = None) -> Family | Constraint | Constraints:
        """Return the family with its bounds; for one group, the constraint."""
        if low is not None and self.family.lower is None:
            raise InvalidInput(f"{self.family.kind} is bounded from above only: write <=")
        if high is not None and self.family.upper is None:
            raise InvalidInput(f"{self.family.kind} is bounded from below only: write >=")
        if self.where == everyone:
            bounds = {str(self.family.lower): low, str(self.family.upper): high}
            given = {name: bound for name, bound in bounds.items() if bound is not None} | self.options
            return (
                self.family(by=self.columns, **given)
                if self.family.by_keyword
                else self.family(*self.columns, **given)
            )
        expression = self.expression()
        if low is not None and high is not None:
            return expression.between(low, high)
        one: Constraint = expression >= low if low is not None else expression <= high
        return one

    def expression(self) -> Expression:
        """Return the rate of one group, or of everyone, as an expression."""
        if self.columns and self.family.one_rate:
            raise InvalidInput(
                f"{self.family.kind} by {', '.join(self.columns)} stands for several rates; compare it with "
                "one number, or give each column a value"
            )
        if not self.family.one_rate:
            raise InvalidInput(f"{self.family.kind} stands for several rates; compare it with one number")
        return self.family.rate_in({**self.family.options, **self.options}, self.where)


def _describe(value: Any) -> str:
    """Return what a value is, for messages."""
    kinds: list[tuple[Any, str]] = [
        (_Word, f"the name {str(value)[:40]!r}"),
        (bool, "a truth value"),
        (int | float, "a number"),
        (str, "a text"),
        (Predicate, "a set of rows"),
        (Expression, "a rate"),
        (Magnitude, "an absolute value"),
        (_Unbounded, "a family without a bound"),
        (Constraint | Constraints | Family, "a constraint"),
        (Rows, "rows(...)"),
        (list, "a list"),
    ]
    return next((words for kind, words in kinds if isinstance(value, kind)), "an interval")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sensible(number: Any) -> bool:
    """Return whether a number is one that sums of rates can hold."""
    # whole numbers first: those beyond the floats must not meet a float
    return abs(number) < _LARGEST if isinstance(number, int) else math.isfinite(number)


# -------------------------------------------------------------------------------------------- parser

_HINTS: dict[type[ast.AST], str] = {
    ast.Lt: "rates are bounded with <= or >=; a strict < cannot be distinguished from <=",
    ast.Gt: "rates are bounded with <= or >=; a strict > cannot be distinguished from >=",
    ast.Eq: "rates are bounded with <= or >=; for an equality write rate(...).between(b, b); "
    "a value in brackets is given with one =",
    ast.And: "write & for and",
    ast.Or: "write | for or",
    ast.Not: "write ~ for not",
}
_OPERATORS: dict[type[ast.AST], tuple[Callable[..., Any], str]] = {
    ast.LtE: (operator.le, "<="),
    ast.GtE: (operator.ge, ">="),
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mult: (operator.mul, "*"),
    ast.Div: (operator.truediv, "/"),
    ast.BitAnd: (operator.and_, "&"),
    ast.BitOr: (operator.or_, "|"),
    ast.USub: (operator.neg, "-"),
    ast.UAdd: (operator.pos, "+"),
    ast.Invert: (operator.invert, "~"),
}
_CONSTANTS: dict[str, Any] = {"everyone": everyone, "nobody": nobody}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rate": rate,
    "rows": rows,
    "group": group,
    "label": label,
    "abs": abs,
    "below": below,
    "at_least": at_least,
    "between": between,
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
    reader = _Reader(text)
    constraint = reader.whole()
    return Read(constraint, tuple(sorted(reader.mentions, key=lambda m: m.start)), reader.bound_at)


class _Reader:
    """Evaluates the syntax tree of a constraint."""

    def __init__(self, text: str) -> None:
        self._tree, self._place = _parse(text)
        self._text = text
        self.mentions: list[Mention] = []
        self.bound_at = 0
        self._name_nodes: dict[ast.expr, ast.AST] = {}

    def whole(self) -> Constraint | Constraints | Family:
        value = self._value(self._tree)
        if isinstance(value, list) and all(isinstance(one, Constraint | Constraints) for one in value):
            several = (one if isinstance(one, Constraints) else (one,) for one in value)
            return Constraints(itertools.chain.from_iterable(several))
        if isinstance(value, Expression | Magnitude | _Unbounded):
            raise GrammarError("expected <= or >= and a bound", self._text, len(self._text))
        if not isinstance(value, Constraint | Constraints | Family):
            said = f"expected a constraint, this is {_describe(value)}; "
            raise self._error(said + "compare a rate with a number: rate(1) <= 0.2", self._tree)
        return value

    def _error(self, reason: Any, node: ast.AST) -> GrammarError:
        return GrammarError(str(reason), self._text, self._place(node))

    def _build(
        self,
        node: ast.AST,
        function: Callable[..., Any],
        *arguments: Any,
        written: dict[str, ast.expr] | None = None,
        **more: Any,
    ) -> Any:
        """Call a function; its error is reported at the argument of `written` that it names, else at `node`."""
        try:
            return function(*arguments, **more)
        except (InvalidInput, TypeError, OverflowError, ZeroDivisionError) as problem:
            name = str(problem).split(" ", 1)[0]
            raise self._error(problem, (written or {}).get(name, node)) from None

    # ------------------------------------------------------------------------------------ values

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return _CONSTANTS.get(node.id, _Word(node.id))
            case ast.Call():
                return self._call(node)
            case ast.Compare():
                return self._compare(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.List() | ast.Tuple() | ast.Set() if node.elts:
                return [self._value(item) for item in node.elts]
            case ast.BoolOp():
                raise self._error(_HINTS[type(node.op)], node)
            case _:
                raise self._error("expected a rate, a number or a name", node)

    def _constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, str | bool) or (_is_number(value) and _is_sensible(value)):
            return value
        if _is_number(value):
            raise self._error("the number is too large", node)
        said = "None is a missing value and has" if value is None else f"{type(value).__name__} has"
        raise self._error(f"{said} no meaning here; values are texts, numbers and truth values", node)

    def _plain(self, node: ast.expr) -> Any:
        """Return an argument as Python would hold it: bare words are texts, families of one rate are rates."""
        if isinstance(node, ast.Name) and node.id == _STAR:
            raise self._error("* goes with a column of a family, as in fnr(race=*)", node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and node.elts:
            return [self._plain(item) for item in node.elts]
        value = self._value(node)
        if isinstance(value, _Unbounded):
            return self._build(node, value.expression)
        return str(value) if isinstance(value, _Word) else value

    # --------------------------------------------------------------------------------- operators

    def _operand(self, node: ast.expr) -> Any:
        """Return a number, an expression, an absolute value or a set of rows; raise for anything else."""
        value = self._value(node)
        if isinstance(value, _Unbounded):
            return self._build(node, value.expression)
        if isinstance(value, Expression | Magnitude | Predicate) or _is_number(value):
            return value
        raise self._error(f"expected a rate, a number or a set of rows, this is {_describe(value)}", node)

    def _operated(self, node: ast.expr, op: ast.AST, *operands: Any) -> Any:
        apply, mark = _OPERATORS.get(type(op), (None, ""))
        if apply is None:
            hint = "the operators are + - * / for rates, & | ~ for sets of rows, <= and >= for bounds"
            raise self._error(_HINTS.get(type(op), hint), node)
        try:
            value = apply(*operands)
        except (InvalidInput, InvalidType, ZeroDivisionError, OverflowError) as problem:
            raise self._error(problem, node) from None
        except TypeError:
            kinds = " and ".join(map(_describe, operands))
            said = (
                f"{mark} is for {'sets of rows' if mark in '&|~' else 'rates and numbers'}, not for {kinds}"
            )
            raise self._error(said, node) from None
        if isinstance(value, bool) or (_is_number(value) and not _is_sensible(value)):
            said = (
                "a constraint compares a rate with a number"
                if isinstance(value, bool)
                else "too large a number"
            )
            raise self._error(said, node)
        return value

    def _binary(self, node: ast.BinOp) -> Any:
        """Evaluate a chain such as ``a + b - c`` from the left, without recursion."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        joined = sum(isinstance(step.op, ast.BitAnd | ast.BitOr) for step in chain)
        if joined > MAX_JOINED:
            raise self._error(
                f"more than {MAX_JOINED} sets of rows are joined; name several values at once", node
            )
        parts = [self._operand(chain[-1].left)]
        for step in reversed(chain):
            right = self._operand(step.right)
            rates = isinstance(parts[-1], Expression) and isinstance(right, Expression)
            if rates and isinstance(step.op, ast.Add | ast.Sub):  # summed at once: one by one is quadratic
                parts.append(right if isinstance(step.op, ast.Add) else -right)
                continue
            parts = [self._operated(step.right, step.op, self._total(parts, node), right)]
        return self._total(parts, node)

    def _total(self, parts: list[Any], node: ast.expr) -> Any:
        if len(parts) == 1:
            return parts[0]
        terms = itertools.chain.from_iterable(part.terms for part in parts)
        return self._build(node, Expression, terms, sum(part.constant for part in parts))

    def _unary(self, node: ast.UnaryOp) -> Any:
        signs = [node]
        while isinstance(signs[-1].operand, ast.UnaryOp):
            signs.append(signs[-1].operand)
        value = self._operand(signs[-1].operand)
        for sign in reversed(signs):
            value = self._operated(sign, sign.op, value)
        return value

    def _compare(self, node: ast.Compare) -> Any:
        nodes, marks = [node.left, *node.comparators], node.ops
        for mark, part in zip(marks, node.comparators, strict=True):
            if not isinstance(mark, ast.LtE | ast.GtE):
                raise self._error(_HINTS.get(type(mark), "rates are bounded with <= or >="), part)
        if node is self._tree:
            self.bound_at = self._place(nodes[1])
        values = [self._value(part) for part in nodes]
        for part, value in zip(nodes, values, strict=True):
            if not isinstance(value, Expression | Magnitude | _Unbounded) and not _is_number(value):
                raise self._error(f"expected a rate or a number, this is {_describe(value)}", part)
        upper = isinstance(marks[0], ast.LtE)
        if len(values) == 2:
            for (family, bound), at, low in ((values, nodes[1], not upper), (values[::-1], nodes[0], upper)):
                if isinstance(family, _Unbounded) and _is_number(bound):
                    return self._build(at, family.between, **{"low" if low else "high": bound})
            return self._operated(nodes[1], marks[0], *map(self._operand, nodes))
        low, family, high = values[:3] if upper else values[2::-1]
        if len(values) == 3 and type(marks[0]) is type(marks[1]) and isinstance(family, _Unbounded):
            return self._build(nodes[2], family.between, low, high)
        said = "Python keeps only one half of a chained comparison: write rate(...).between(a, b)"
        raise self._error(said, nodes[2])

    # ------------------------------------------------------------------------------------- calls

    def _call(self, node: ast.Call) -> Any:
        """Return what a call stands for, and note what it names."""
        keywords = self._keywords(node)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, keywords)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        family = FAMILIES.get(name)
        if family is not None:
            return self._family(node, name, family, keywords)
        if name == "group" and not node.args:
            return self._group(node, keywords)
        if name not in _FUNCTIONS:
            raise self._error(_unknown_function(name), node)
        found = self._applied(_FUNCTIONS[name], node, keywords)
        if name == "label":
            self._mention_values(None, *node.args)
        elif name == "rate":
            self._mention_values(None, *(node.args[:1] or [keywords["k"]]))
        return found

    def _applied(self, function: Callable[..., Any], node: ast.Call, keywords: dict[str, ast.expr]) -> Any:
        """Call a function of the language with the arguments as written."""
        written = {**dict(zip(_parameters(function), node.args, strict=False)), **keywords}
        arguments = [self._plain(argument) for argument in node.args]
        named = {name: self._plain(argument) for name, argument in keywords.items()}
        return self._build(node, function, *arguments, written=written, **named)

    def _keywords(self, node: ast.Call) -> dict[str, ast.expr]:
        """Return the arguments given by name, those of a ``**{"a name": value}`` included."""
        found: dict[str, ast.expr] = {}
        for keyword in node.keywords:
            pairs: list[tuple[Any, Any]] = [(keyword, keyword.value)]
            if keyword.arg is None and isinstance(keyword.value, ast.Dict):
                pairs = list(zip(keyword.value.keys, keyword.value.values, strict=True))
            for key, value in pairs:
                name = key.arg if key is keyword else getattr(key, "value", None)
                if not isinstance(name, str):
                    raise self._error(
                        'expected columns in quotes with values: **{"a name": value}', keyword.value
                    )
                if name in found:
                    raise self._error(f"{name!r} is given twice", value)
                found[name] = value
                self._name_nodes[value] = key
        return found

    def _method(self, node: ast.Call, function: ast.Attribute, keywords: dict[str, ast.expr]) -> Any:
        """Return ``value.between(low, high)`` or ``value.named(text)``."""
        value = self._value(function.value)
        holders: Any = {"between": Expression | _Unbounded, "named": Constraint | Constraints}
        if not isinstance(value, holders.get(function.attr, ())):
            said = (
                "expected .between(low, high) behind a rate, or .named(text) behind a constraint in brackets"
            )
            raise self._error(said, node)
        if node is self._tree and node.args:
            self.bound_at = self._place(node.args[0])
        return self._applied(getattr(value, function.attr), node, keywords)

    def _group(self, node: ast.AST, conditions: dict[str, ast.expr]) -> Predicate:
        given = {column: self._plain(value) for column, value in conditions.items()}
        found: Predicate = self._build(node, lambda: group(**given), written=conditions)
        for column, value in conditions.items():
            self._mention_column(column, value)
            self._mention_values(column, value)
        return found

    # ---------------------------------------------------------------------------------- families

    def _family(self, node: ast.Call, name: str, family: type[Family], keywords: dict[str, ast.expr]) -> Any:
        """Read ``demographic_parity(sex)``, ``fnr(label=1, race=*)`` and the Python forms with a bound inside."""
        names = (*family.bounds(), *family.options, *(("by",) if family.by_keyword else ()))
        if "label" in keywords and "positive" in names:
            if "positive" in keywords:
                raise self._error("label and positive are two words for one thing", keywords["positive"])
            keywords = {"positive" if key == "label" else key: value for key, value in keywords.items()}
        options = {key: value for key, value in keywords.items() if key in names}
        others = {key: value for key, value in keywords.items() if key not in names}
        crossed = {k: v for k, v in others.items() if isinstance(v, ast.Name) and v.id == _STAR}
        valued = {key: value for key, value in others.items() if key not in crossed}
        where = self._one_group(node, name, family, crossed, valued) if valued else everyone
        listed, written = list(node.args), options
        if family.by_keyword:
            if len(listed) > len(names) or set(names[: len(listed)]) & set(options):
                raise self._error(f"{name} takes each of {', '.join(names)} once", node)
            written = {**dict(zip(names, listed, strict=False)), **options}
            listed = self._items(written["by"]) if "by" in written else []
        columns = (*self._column_names(listed, crossed), *crossed)
        for column, at in crossed.items():
            self._mention_column(column, at, groups=True)
        given = {key: self._option(value) for key, value in written.items() if key != "by"}
        bounds = [given.pop(side, None) if side else None for side in (family.lower, family.upper)]
        checked = {
            key: self._build(written[key], family.check_option, key, value) for key, value in given.items()
        }
        if "positive" in written:
            self._mention_values(None, written["positive"])
        elif "positive" in names:
            default = family.options["positive"]
            self.mentions.append(Mention(None, default, self._place(node), call=name))
        found = _Unbounded(family, columns, where, checked)
        if bounds == [None, None]:
            return found
        return self._build(node, found.between, *bounds, written=written)

    def _option(self, node: ast.expr) -> Any:
        value = self._plain(node)
        return "everyone" if value is everyone else value  # of versus=, the word and not the rows

    def _one_group(
        self,
        node: ast.Call,
        name: str,
        family: type[Family],
        crossed: Iterable[str],
        valued: dict[str, ast.expr],
    ) -> Predicate:
        """Return the group of a family whose columns have values."""
        first = next(iter(valued.values()))
        if not family.one_rate:
            said = f"{name} compares groups or classes: give columns without a value, as in sex=*"
            raise self._error(said, first)
        if crossed:
            said = "give every column a value, or every column a *; for a mixture write rate(...)"
            raise self._error(said, first)
        return self._group(node, valued)

    def _column_names(self, nodes: list[ast.expr], crossed: Iterable[str]) -> Iterator[str]:
        """Yield the columns that are listed, each of which may stand there once."""
        seen = set(crossed)
        for node in nodes:
            name = self._plain(node)
            if not isinstance(name, str):
                raise self._error("expected the name of a column; the bound goes behind <=", node)
            if name in seen:
                raise self._error(f"name each column once; {name!r} is here twice", node)
            seen.add(name)
            self._mention_column(name, node, groups=True)
            yield name

    # ---------------------------------------------------------------------------------- mentions

    @staticmethod
    def _items(node: ast.expr) -> list[ast.expr]:
        """Return the single values of a list, or the one value."""
        return node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]

    def _mention_column(self, column: str, node: ast.expr, groups: bool = False) -> None:
        self.mentions.append(Mention(column, COLUMN, self._place(self._name_nodes.get(node, node)), groups))

    def _mention_values(self, column: str | None, *nodes: ast.expr) -> None:
        for item in itertools.chain.from_iterable(map(self._items, nodes)):
            value = self._plain(item) if isinstance(item, ast.Constant | ast.Name | ast.UnaryOp) else None
            if isinstance(value, str | int | float):
                self.mentions.append(Mention(column, value, self._place(item)))


def _parameters(function: Callable[..., Any]) -> Iterable[str]:
    return inspect.signature(function).parameters


def _unknown_function(name: str) -> str:
    if name == "error":  # as reports print it
        return "error(...) stands for one rate per class; write error_rate_parity(sex) <= 0.1"
    if name == "P":
        return _REPORT_NOTATION
    known = sorted((*_FUNCTIONS, *FAMILIES))
    close = difflib.get_close_matches(name[:60], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
    return f"there is no function {name[:60]}{hint}"


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
        # exactly these types: a subclass may print itself as anything
        if type(value) not in (str, int, float, bool) or not (isinstance(value, str) or _is_sensible(value)):
            raise InvalidInput(
                f"a value of type {type(value).__name__} cannot be written as text; constraint text knows texts, "
                "truth values, and numbers that are finite and have at most 300 digits"
            )
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
        yield from dict(constraint.settings).values()
        return
    for one in constraint if isinstance(constraint, Constraints) else (constraint,):
        for term, _ in one.expression.terms:
            yield term.prediction
            for leaf in (*term.where.leaves(), *term.of.leaves()):
                if isinstance(leaf, Member):
                    yield from leaf.values
