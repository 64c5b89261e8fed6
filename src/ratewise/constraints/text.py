"""Constraint text: one parser and one writer, in the syntax of Python.

>>> constraint = parse_constraint("fnr(label=1, race=*) <= 0.2")
>>> format_constraint(constraint)
'false_negative_rate(race=*) <= 0.2'

The text is one Python expression. It is parsed by `ast.parse` and evaluated here, node by node: only the names
and operators of this language have a meaning, and nothing of the text is executed. Values are built by the
functions that Python calls, so text and Python cannot disagree. In addition to Python, columns and values need no
quotes if they are plain words, families have short names (`fnr`) and are compared with their bound, ``fnr(race=*)``
stands for every race, and a family with two bounds may be a chained comparison.
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
from typing import Any, NamedTuple

from ratewise.constraints.domain import Domain, Numeric, at_least, below, between, list_values, show_number
from ratewise.constraints.families import FAMILIES, Family
from ratewise.constraints.rates import (
    STRICT,
    Constraint,
    Constraints,
    Expression,
    Magnitude,
    Predicate,
    Rows,
    everyone,
    group,
    is_number,
    label,
    nobody,
    rate,
    rows,
)
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["GrammarError", "format_constraint", "parse_constraint"]

MAX_TEXT = 20_000  # characters of a constraint
MAX_NESTING = 40  # brackets that may be open at once
MAX_JOINED = 100  # sets of rows in one chain of & or |
_LARGEST = 10**300
_SHOWN = 100  # characters of the text that a message shows around the place
_REPORT_NOTATION = "P(...) is the notation of reports; write rate(1, where=group(sex=Female))"
_Declared = Constraint | Constraints | Family
_Nodes = dict[str, ast.expr]


class GrammarError(InvalidInput):
    """Constraint text that cannot be read: the `reason`, the whole `text`, and the `position` it points at.

    >>> print(GrammarError("expected a number", "rate(1) <= x", 11))
    constraint, character 12: expected a number
        rate(1) <= x
                   ^
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason, self.text, self.position = reason, text, position
        start = max(0, min(position - _SHOWN // 2, len(text) - _SHOWN))
        head, tail = ("..." if start else ""), ("..." if start + _SHOWN < len(text) else "")
        # tabs, line ends and the like would move the caret
        shown = "".join(c if c.isprintable() else " " for c in text[start : start + _SHOWN])
        before = " " * (len(head) + sum(map(_terminal_width, shown[: position - start])))
        super().__init__(f"constraint, character {position + 1}: {reason}\n    {head}{shown}{tail}\n    {before}^")

    def __reduce__(self) -> tuple[type[GrammarError], tuple[str, str, int]]:
        return GrammarError, (self.reason, self.text, self.position)


def _terminal_width(character: str) -> int:
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


def check_columns(mentions: Iterable[Mention], columns: Iterable[str], text: str, what: str) -> None:
    """Raise at the first column that is none of these; `what` says whose columns they are."""
    known = list(columns)
    for column, value, start, *_ in mentions:
        if value is COLUMN and column not in known:
            raise GrammarError(_unknown(f"column {column!r}", column, known, what), text, start)


def _unknown_mention(mention: Mention, domain: Domain) -> str | None:
    """Return why a mention is no column, value or class of the domain."""
    column, value, _, groups, call = mention
    if column is not None and column not in domain.columns:
        return _unknown(f"column {column!r}", column, list(domain.columns), "the groups")
    values = domain.values(column)
    if isinstance(values, Numeric):
        return (
            None
            if value is COLUMN and not groups
            else (
                f"column {column!r} is a number and has no list of values; write conditions such as "
                f"group({column}=below(25)), at_least(65) or between(25, 65), or declare it as a category"
            )
        )
    if value is COLUMN or value in values:
        return None
    if call:
        return (
            f"{call} means class {value!r} unless label= is given, which is not among the classes: "
            f"{list_values(values)}; write label=..., as in {call}(label={values[-1]!r})"
        )
    place = "the classes" if column is None else f"the values of column {column!r}"
    return _unknown(repr(value), value, values, place)


def _unknown(shown: str, value: Any, known: Iterable[Any], place: str) -> str:
    """Return the message, with what was probably meant: the same in another type, or spelled nearly so."""
    by_text = {str(one): one for one in known}
    near = [str(value)] if str(value) in by_text else difflib.get_close_matches(str(value)[:60], by_text, n=1)
    hint = f"; did you mean {by_text[near[0]]!r}?" if near else ""
    return f"{shown} is not among {place}: {list_values(known) if by_text else 'there are none'}{hint}"


# ------------------------------------------------------------------------------------- text to syntax tree

_QUOTED = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_STAR = "_"  # the name that stands for * in the syntax tree
# quoted texts, and what is not Python's outside of them: line ends, comments, and * for every value of a column
_PIECES = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<star>[=:]\s*\*(?=\s*[,)}}]))|(?P<blank>\s)|[#'\"()\[\]{{}}]")
_UNKNOWN_ESCAPE = re.compile(r"\\(?!\\|['\"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")


def _as_python(text: str) -> str:
    """Return the text as Python of the same length: ``*`` for all values as a name, blanks for line ends."""
    depth = 0

    def replaced(piece: re.Match[str]) -> str:
        nonlocal depth
        found, reason, at = piece.group(), "", piece.start()
        if piece["star"]:
            return re.sub(r"\s", " ", found[:-1]) + _STAR
        if piece["blank"]:
            return " "
        if piece["quoted"]:
            escape = _UNKNOWN_ESCAPE.search(found.replace("\\\\", "__"))
            if escape:
                reason = r"unknown escape; write \\ for a backslash, or \n \r \t \xhh \uhhhh"
                at += escape.start()
        elif found in "'\"":
            reason = f"the text that begins here has no closing {found}"
        elif found == "#":
            reason = "the character '#' has no meaning here; texts go in quotes"
        else:
            depth += 1 if found in "([{" else -1
            if depth > MAX_NESTING:
                reason = f"more than {MAX_NESTING} brackets are open here; write it flatter"
        if reason:
            raise GrammarError(reason, text, at)
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
        ended = problem.lineno != 1 or not problem.offset
        at = len(text) if ended else min(blank + (problem.offset or 0) - 1, len(text))
        raise GrammarError(_syntax_reason(str(problem.msg), source, at), text, at) from None
    except (ValueError, RecursionError, MemoryError) as problem:  # characters or depths that Python refuses
        raise GrammarError(f"this is not a constraint: {str(problem) or 'too long a chain'}", text, blank) from None
    encoded = source[blank:].encode()
    return tree, lambda node: blank + len(encoded[: getattr(node, "col_offset", 0)].decode(errors="ignore"))


def _syntax_reason(message: str, source: str, at: int) -> str:
    if re.search(r"\bP\s*\(", source):
        return _REPORT_NOTATION
    if source[at : at + 1] == "=" or "Maybe you meant '=='" in message or "cannot assign" in message:
        return "expected <= or >= (a single = gives an argument inside brackets)"
    return (
        f"this is not a constraint: {message}. Write for example demographic_parity(sex) <= 0.05 or "
        "rate(1, where=group(sex=Female)) <= 0.2; names with blanks or marks and words of Python go in quotes"
    )


# ---------------------------------------------------------------------------------------------- values


class _Word(str):
    """A bare word: a column or a value written without quotes."""

    __slots__ = ()


class _Unbounded(NamedTuple):
    """A family without its bound; for one group, or for everyone, a rate like any other."""

    family: type[Family]
    columns: tuple[str, ...]
    where: Predicate
    options: dict[str, Any]

    def between(self, low: Any = None, high: Any = None) -> _Declared:
        """Return the family with its bounds; for one group, the constraint."""
        family, bounds = self.family, {}
        for name, bound in ((self.family.lower, low), (self.family.upper, high)):
            if bound is not None and not name:
                side = "below only: write >=" if family.lower else "above only: write <="
                raise InvalidInput(f"{family.kind} is bounded from {side}")
            bounds.update({} if bound is None else {str(name): bound})
        if self.where == everyone:
            columns, by = ((), {"by": self.columns}) if family.by_keyword else (self.columns, {})
            return family(*columns, **by, **bounds, **self.options)
        if len(bounds) == 2:
            return self.expression().between(low, high)
        one: Constraint = self.expression() <= high if low is None else self.expression() >= low
        return one

    def expression(self) -> Expression:
        """Return the rate of one group, or of everyone, as an expression."""
        one = self.family.one_rate
        if self.columns or not one:
            by, way = f" by {', '.join(self.columns)}" * one, ", or give each column a value" * one
            raise InvalidInput(f"{self.family.kind}{by} stands for several rates; compare it with one number{way}")
        return self.family.rate_in({**self.family.options, **self.options}, self.where)


_KINDS: list[tuple[Any, str]] = [
    (bool, "a truth value"),
    (int | float, "a number"),
    (str, "a text"),
    (Predicate, "a set of rows"),
    (Expression, "a rate"),
    (Magnitude, "an absolute value"),
    (_Unbounded, "a family without a bound"),
    (_Declared, "a constraint"),
    (Rows, "rows(...)"),
    (list, "a list"),
]


def _describe(value: Any) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, _Word):
        return f"the name {str(value)[:40]!r}"
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "an interval")


def _is_sensible(number: Any) -> bool:
    """Return whether a number is one that sums of rates can hold."""
    # whole numbers first: those beyond the floats must not meet a float
    return abs(number) < _LARGEST if isinstance(number, int) else math.isfinite(number)


# ---------------------------------------------------------------------------------------------- parser

_HINTS: dict[type[ast.AST], str] = {
    ast.Lt: STRICT.format("<"),
    ast.Gt: STRICT.format(">"),
    ast.Eq: "rates are bounded with <= or >=; for an equality write rate(...).between(b, b); "
    "a value in brackets is given with one =",
    ast.And: "write & for and",
    ast.Or: "write | for or",
    ast.Not: "write ~ for not",
}
_NO_OPERATOR = "the operators are + - * / for rates, & | ~ for sets of rows, <= and >= for bounds"
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.LtE: operator.le, ast.GtE: operator.ge, ast.Add: operator.add, ast.Sub: operator.sub},
    **{ast.Mult: operator.mul, ast.Div: operator.truediv, ast.BitAnd: operator.and_, ast.BitOr: operator.or_},
    **{ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert},
}
_CONSTANTS: dict[str, Any] = {"everyone": everyone, "nobody": nobody}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (rate, rows, group, label, abs, below, at_least, between)
}


def parse_constraint(text: str, domain: Domain | None = None) -> _Declared:
    """Return the constraint or the family that a text declares; `GrammarError` if it cannot be read.

    With a `domain`, a name in the text that is none of its classes, columns or values raises an error.

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
    found = Reading(text)
    for mention in found.mentions:
        reason = None if domain is None else _unknown_mention(mention, domain)
        if reason is not None:
            raise GrammarError(reason, text, mention.start)
    return found.constraint


class Reading:
    """The `constraint` of a text, the `mentions` of names in the text with their places, and where its bound begins.

    It evaluates the syntax tree of the text.
    """

    def __init__(self, text: str) -> None:
        self._tree, self._place = _parse(text)
        self._text = text
        self.mentions: list[Mention] = []
        self.bound_at = 0
        self._name_nodes: dict[ast.expr, ast.AST] = {}
        try:
            self.constraint = self._whole()
        except RecursionError:
            raise GrammarError("this is not a constraint: too long a chain", text, 0) from None
        self.mentions.sort(key=operator.attrgetter("start"))

    def _whole(self) -> _Declared:
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

    def _build(self, node: ast.AST, written: _Nodes, make: Callable[..., Any], *given: Any, unfit: str = "") -> Any:
        """Call a function; its error is reported at the argument of `written` that it names, else at `node`.

        An operator that Python does not know for the `given` values is `unfit` for them.
        """
        try:
            return make(*given)
        except (InvalidInput, TypeError, OverflowError, ZeroDivisionError) as problem:
            if unfit and not isinstance(problem, InvalidType) and isinstance(problem, TypeError):
                raise self._error(unfit + " and ".join(map(_describe, given)), node) from None
            name = str(problem).split(" ", 1)[0]
            raise self._error(problem, written.get(name, node)) from None

    # ------------------------------------------------------------------------------------ values

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, str | bool) or (is_number(value) and _is_sensible(value)):
                    return value
                said = "None is a missing value and has" if value is None else f"{type(value).__name__} has"
                said += " no meaning here; values are texts, numbers and truth values"
                raise self._error("the number is too large" if is_number(value) else said, node)
            case ast.Name():
                return _CONSTANTS.get(node.id, _Word(node.id))
            case ast.Call():
                return self._call(node)
            case ast.Compare():
                return self._compare(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                return self._operated(node, node.op, self._operand(node.operand))
            case ast.List() | ast.Tuple() | ast.Set() if node.elts:
                return [self._value(item) for item in node.elts]
            case ast.BoolOp():
                raise self._error(_HINTS[type(node.op)], node)
        raise self._error("expected a rate, a number or a name", node)

    def _plain(self, node: ast.expr) -> Any:
        """Return an argument as Python would hold it: bare words are texts, families of one rate are rates."""
        if isinstance(node, ast.Name) and node.id == _STAR:
            raise self._error("* goes with a column of a family, as in fnr(race=*)", node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and node.elts:
            return [self._plain(item) for item in node.elts]
        value = self._rate(node)
        return str(value) if isinstance(value, _Word) else value

    def _rate(self, node: ast.expr) -> Any:
        """Return a value, a family without a bound as the one rate that it stands for."""
        value = self._value(node)
        return self._build(node, {}, value.expression) if isinstance(value, _Unbounded) else value

    # --------------------------------------------------------------------------------- operators

    def _operand(self, node: ast.expr) -> Any:
        """Return a number, an expression, an absolute value or a set of rows; raise for anything else."""
        value = self._rate(node)
        if isinstance(value, Expression | Magnitude | Predicate) or is_number(value):
            return value
        raise self._error(f"expected a rate, a number or a set of rows, this is {_describe(value)}", node)

    def _operated(self, node: ast.expr, op: ast.AST, *operands: Any) -> Any:
        apply = _OPERATORS.get(type(op))
        if apply is None:
            raise self._error(_HINTS.get(type(op), _NO_OPERATOR), node)
        of_rows = isinstance(op, ast.BitAnd | ast.BitOr | ast.Invert)
        meant = "& | ~ are for sets of rows" if of_rows else "+ - * / <= >= are for rates and numbers"
        value = self._build(node, {}, apply, *operands, unfit=f"{meant}, not for ")
        if isinstance(value, bool):
            raise self._error("a constraint compares a rate with a number", node)
        if is_number(value) and not _is_sensible(value):
            raise self._error("too large a number", node)
        return value

    def _binary(self, node: ast.BinOp) -> Any:
        """Evaluate a chain such as ``a + b - c`` from the left, without recursion."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        if sum(isinstance(step.op, ast.BitAnd | ast.BitOr) for step in chain) > MAX_JOINED:
            said = f"more than {MAX_JOINED} sets of rows are joined; name several values at once"
            raise self._error(said, node)
        parts = [self._operand(chain[-1].left)]
        for step in reversed(chain):
            right = self._operand(step.right)
            sums = isinstance(step.op, ast.Add | ast.Sub) and isinstance(right, Expression)
            if sums and isinstance(parts[-1], Expression):  # added at once: one by one is quadratic
                parts.append(right if isinstance(step.op, ast.Add) else -right)
            else:
                parts = [self._operated(step.right, step.op, self._total(node, parts), right)]
        return self._total(node, parts)

    def _total(self, node: ast.expr, parts: list[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]
        terms = itertools.chain.from_iterable(part.terms for part in parts)
        return self._build(node, {}, Expression, terms, sum(part.constant for part in parts))

    def _compare(self, node: ast.Compare) -> Any:
        nodes, marks = [node.left, *node.comparators], node.ops
        for mark, part in zip(marks, node.comparators, strict=True):
            if not isinstance(mark, ast.LtE | ast.GtE):
                raise self._error(_HINTS.get(type(mark), "rates are bounded with <= or >="), part)
        if node is self._tree:
            self.bound_at = self._place(nodes[1])
        values = [self._value(part) for part in nodes]
        for part, value in zip(nodes, values, strict=True):
            if not isinstance(value, Expression | Magnitude | _Unbounded) and not is_number(value):
                raise self._error(f"expected a rate or a number, this is {_describe(value)}", part)
        upper = isinstance(marks[0], ast.LtE)
        if len(values) == 2:
            for (family, bound), at, low in ((values, nodes[1], not upper), (values[::-1], nodes[0], upper)):
                if isinstance(family, _Unbounded) and is_number(bound):
                    sides = (bound, None) if low else (None, bound)
                    return self._build(at, {}, family.between, *sides)
            return self._operated(nodes[1], marks[0], *map(self._operand, nodes))
        low, family, high = values[:3] if upper else values[2::-1]
        if len(values) == 3 and type(marks[0]) is type(marks[1]) and isinstance(family, _Unbounded):
            return self._build(nodes[2], {}, family.between, low, high)
        said = "Python keeps only one half of a chained comparison: write rate(...).between(a, b)"
        raise self._error(said, nodes[2])

    # ------------------------------------------------------------------------------------- calls

    def _call(self, node: ast.Call) -> Any:
        """Return what a call stands for, and note what it names."""
        keywords = self._keywords(node)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, keywords)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in FAMILIES:
            return self._family(node, name, FAMILIES[name], keywords)
        if name not in _FUNCTIONS:
            raise self._error(_unknown_function(name), node)
        found = self._applied(_FUNCTIONS[name], node, node.args, keywords)
        if name == "label":
            self._mention_values(None, *node.args)
        elif name == "rate":
            self._mention_values(None, *(node.args[:1] or [keywords["k"]]))
        return found

    def _applied(self, function: Callable[..., Any], node: ast.AST, listed: list[ast.expr], keywords: _Nodes) -> Any:
        """Call a function of the language with the arguments as written; note the columns of ``group``."""
        written = {**dict(zip(inspect.signature(function).parameters, listed, strict=False)), **keywords}
        arguments = [self._plain(argument) for argument in listed]
        named = {name: self._plain(argument) for name, argument in keywords.items()}
        found = self._build(node, written, lambda: function(*arguments, **named))
        for column, value in keywords.items() if function is group else ():
            self._mention_column(column, value)
            self._mention_values(column, value)
        return found

    def _keywords(self, node: ast.Call) -> _Nodes:
        """Return the arguments given by name, those of a ``**{"a name": value}`` included."""
        found: _Nodes = {}
        for keyword in node.keywords:
            pairs: list[tuple[Any, Any]] = [(keyword, keyword.value)]
            if keyword.arg is None and isinstance(keyword.value, ast.Dict):
                pairs = list(zip(keyword.value.keys, keyword.value.values, strict=True))
            for key, value in pairs:
                name = key.arg if key is keyword else getattr(key, "value", None)
                if not isinstance(name, str):
                    said = 'expected columns in quotes with values: **{"a name": value}'
                    raise self._error(said, keyword.value)
                if name in found:
                    raise self._error(f"{name!r} is given twice", value)
                found[name], self._name_nodes[value] = value, key
        return found

    def _method(self, node: ast.Call, function: ast.Attribute, keywords: _Nodes) -> Any:
        """Return ``value.between(low, high)`` or ``value.named(text)``."""
        value = self._value(function.value)
        holders: Any = {"between": Expression | _Unbounded, "named": Constraint | Constraints}
        if not isinstance(value, holders.get(function.attr, ())):
            said = "expected .between(low, high) behind a rate, or .named(text) behind a constraint in brackets"
            raise self._error(said, node)
        if node is self._tree and node.args:
            self.bound_at = self._place(node.args[0])
        return self._applied(getattr(value, function.attr), node, node.args, keywords)

    def _family(self, node: ast.Call, name: str, family: type[Family], keywords: _Nodes) -> Any:
        """Read ``demographic_parity(sex)``, ``fnr(label=1, race=*)`` and the Python forms with a bound inside."""
        names = (*family.bounds(), *family.options, *(("by",) if family.by_keyword else ()))
        if "label" in keywords and "positive" in names:
            if "positive" in keywords:
                raise self._error("label and positive are two words for one thing", keywords["positive"])
            keywords = {"positive" if key == "label" else key: value for key, value in keywords.items()}
        written = {key: value for key, value in keywords.items() if key in names}
        others = {key: value for key, value in keywords.items() if key not in names}
        crossed = {k: v for k, v in others.items() if isinstance(v, ast.Name) and v.id == _STAR}
        valued = {key: value for key, value in others.items() if key not in crossed}
        said = (
            "" if family.one_rate else f"{name} compares groups or classes: give columns without a value, as in sex=*"
        )
        said = said or "give every column a value, or every column a *; for a mixture write rate(...)"
        if valued and (crossed or not family.one_rate):
            raise self._error(said, next(iter(valued.values())))
        where = self._applied(group, node, [], valued) if valued else everyone
        listed = list(node.args)
        if family.by_keyword:
            if len(listed) > len(names) or set(names[: len(listed)]) & set(written):
                raise self._error(f"{name} takes each of {', '.join(names)} once", node)
            written = {**dict(zip(names, listed, strict=False)), **written}
            listed = _items(written.pop("by")) if "by" in written else []
        columns = (*self._column_names(listed, crossed), *crossed)
        for column, at in crossed.items():
            self._mention_column(column, at, groups=True)
        given = {key: self._plain(value) for key, value in written.items()}
        bounds = [given.pop(side or "", None) for side in (family.lower, family.upper)]
        for key, value in given.items():
            value = "everyone" if value is everyone else value  # of versus=, the word and not the rows
            given[key] = self._build(written[key], {}, family.check_option, key, value)
        if "positive" in written:
            self._mention_values(None, written["positive"])
        elif "positive" in names:
            self.mentions.append(Mention(None, family.options["positive"], self._place(node), call=name))
        found = _Unbounded(family, columns, where, given)
        return found if bounds == [None, None] else self._build(node, written, found.between, *bounds)

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

    def _mention_column(self, column: str, node: ast.expr, groups: bool = False) -> None:
        self.mentions.append(Mention(column, COLUMN, self._place(self._name_nodes.get(node, node)), groups))

    def _mention_values(self, column: str | None, *nodes: ast.expr) -> None:
        for item in itertools.chain.from_iterable(map(_items, nodes)):
            value = self._plain(item) if isinstance(item, ast.Constant | ast.Name | ast.UnaryOp) else None
            if isinstance(value, str | int | float):
                self.mentions.append(Mention(column, value, self._place(item)))


def _items(node: ast.expr) -> list[ast.expr]:
    """Return the single values of a list, or the one value."""
    return node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]


def _unknown_function(name: str) -> str:
    if name == "error":  # as reports print it
        return "error(...) stands for one rate per class; write error_rate_parity(sex) <= 0.1"
    if name == "P":
        return _REPORT_NOTATION
    known = sorted((*_FUNCTIONS, *FAMILIES))
    close = difflib.get_close_matches(name[:60], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
    return f"there is no function {name[:60]}{hint}"


# ---------------------------------------------------------------------------------------------- writer


def format_constraint(constraint: _Declared) -> str:
    """Return the text that `parse_constraint` reads as an equal object; the same text for the same object.

    Raises `InvalidInput` if there is none: values are no texts, numbers or truth values, or the limits of length
    and nesting are exceeded.

    >>> from ratewise import rate, group
    >>> format_constraint(abs(rate(1, where=group(sex="F")) - rate(1)) <= 0.1)
    "abs(rate(1, where=group(sex='F')) - rate(1)) <= 0.1"
    """
    if isinstance(constraint, Constraint | Family):
        text = constraint.name if isinstance(constraint, Family) else repr(constraint)
    elif isinstance(constraint, Constraints):
        text = _several(constraint)
    else:
        raise InvalidType(f"expected a constraint or a family, got {type(constraint).__name__}")
    try:
        reason = "" if parse_constraint(text) == constraint else " (it reads as another)"
    except GrammarError as problem:
        reason = f" ({problem.reason})"
    if reason:
        raise InvalidInput(
            f"the constraint cannot be written as text that reads back as the same{reason}; constraint text knows "
            "texts, truth values, and numbers that are finite and have at most 300 digits"
        )
    return text


def _several(constraints: Constraints) -> str:
    if len(constraints) == 2 and all(one.given_name is None for one in constraints):
        first, second = constraints
        if first.expression == second.expression and repr(first.expression) == repr(second.expression):
            expression, bounds = repr(first.expression), (first.bound, second.bound)
            if (first.sense, second.sense) == ("<=", ">=") and bounds[0] == -bounds[1] >= 0:
                return f"abs({expression}) <= {show_number(bounds[0])}"
            if (first.sense, second.sense) == (">=", "<=") and bounds[0] <= bounds[1]:
                return f"({expression}).between({show_number(bounds[0])}, {show_number(bounds[1])})"
    return f"[{', '.join(map(repr, constraints))}]"
