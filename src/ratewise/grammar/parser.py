"""Recursive descent over constraint text, with Python's operators and their precedence.

::

    comparison = union [("<=" | ">=") union]...       union  = meet ("|" meet)...
    meet       = sum ("&" sum)...                     sum    = term (("+" | "-") term)...
    term       = factor (("*" | "/") factor)...       factor = ("-" | "+" | "~")... primary
    primary    = atom ("." name "(" arguments ")")...
    atom       = number | text | name | name "(" arguments ")" | "P(" ... ")", see `ratewise.grammar.display`
               | "(" comparison ["," ...] ")" | "[" comparison, ... "]" | "{" comparison, ... "}"
    arguments  = union | name "=" ("*" | union) | "**" "{" text ":" ("*" | union), ... "}", ...

Values are made on the way, by the same functions that Python calls, so text and Python cannot disagree.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import Family
from ratewise.grammar import operations
from ratewise.grammar.display import read_display
from ratewise.grammar.errors import GrammarError
from ratewise.grammar.mentions import Mention, check_mentions, mentions_of
from ratewise.grammar.tokens import Token, tokenize
from ratewise.grammar.words import (
    CONSTANTS,
    MAX_JOINED,
    MAX_NESTING,
    Argument,
    Call,
    Star,
    Word,
    WrongArgument,
    call,
    function_names,
    is_function,
)
from ratewise.rates import Constraint, Constraints

_COMPARISONS = ("<=", ">=", "<", ">", "==", "!=", "=")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_PYTHONS_WORDS = {"and": "write & for and", "or": "write | for or", "not": "write ~ for not"}


def parse_constraint(text: str, domain: Domain | None = None) -> Constraint | Constraints | Family:
    """Return the constraint, or the family of constraints, that the text says.

    The text is Python as one would write it with `ratewise`, or one of the shorter forms: a ready-made family
    compared with its bound, columns and values without quotes, and ``column=*`` for "in every group".

    Parameters
    ----------
    text : str
    domain : Domain, optional
        The classes and the columns' values; a word of the text that is none of them is pointed at.

    Raises
    ------
    GrammarError
        An `InvalidInput` that points at the character and says what was expected.

    Examples
    --------
    >>> parse_constraint("demographic_parity(sex) <= 0.05")
    demographic_parity('sex', max_gap=0.05)
    >>> parse_constraint("fnr(label=1, race=*) <= 0.2")
    false_negative_rate(0.2, by='race')
    >>> parse_constraint("P(1 | sex=F) - P(1) <= 0.1")
    rate(1, where=group(sex='F')) - rate(1) <= 0.1
    >>> parse_constraint('rate(1, where=group(sex="F")) >= 0.8 * rate(1, where=group(sex="M"))')
    rate(1, where=group(sex='F')) - 0.8 * rate(1, where=group(sex='M')) >= 0
    >>> parse_constraint("rate(1 <= 0.2")
    Traceback (most recent call last):
    ...
    ratewise.grammar.errors.GrammarError: constraint, character 8: expected , or ) in rate(...), found <=
        rate(1 <= 0.2
               ^
    >>> people = Domain(classes=(0, 1), columns={"sex": ("Female", "Male")})
    >>> parse_constraint("fnr(sex=Femal) <= 0.2", people)
    Traceback (most recent call last):
    ...
    ratewise.grammar.errors.GrammarError: constraint, character 9: 'Femal' is not among the values of ...
        fnr(sex=Femal) <= 0.2
                ^
    """
    found = read_constraint(text)
    if domain is not None:
        check_mentions(found.mentions, domain, text)
    return found.meant


class Read(NamedTuple):
    """What a text says, what it names and where, and where its bound begins."""

    meant: Constraint | Constraints | Family
    mentions: tuple[Mention, ...]
    bound_at: int


def read_constraint(text: str) -> Read:
    """Return the constraint that the text says, with the places of what it names."""
    parser = _Parser(text)
    meant = parser.whole()
    return Read(meant, tuple(parser.mentions), parser.bound_at)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._text = text
        self._at = 0
        self._open = 0
        self.mentions: list[Mention] = []
        self.bound_at = 0

    def whole(self) -> Constraint | Constraints | Family:
        if self._here.kind == "end":
            raise self._error("expected a constraint such as demographic_parity(sex) <= 0.05")
        value = self._comparison()
        if self._here.kind != "end":
            raise self._error(f"expected <= or >=, an operator or the end, found {self._here}")
        if not isinstance(value, Constraint | Constraints | Family):
            raise self._error(operations.unfinished(value))
        return value

    # ------------------------------------------------------------------------------ small steps

    @property
    def _here(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._here
        self._at += 1
        return token

    def _skip(self, *marks: str) -> bool:
        if self._here.is_mark(*marks):
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(f"expected {mark} , found {self._here}")

    def _error(self, reason: str, start: int | None = None) -> GrammarError:
        return GrammarError(reason, self._text, self._here.start if start is None else start)

    def _make(
        self,
        build: Callable[..., Any],
        *arguments: Any,
        start: int,
        places: Sequence[int] = (),
        made: Call | None = None,
    ) -> Any:
        """Build a value; what the library refuses is reported at the place where it was written.

        That is the place of an operand among `places`, of an argument of the call `made`, or else `start`.
        """
        try:
            return build(*arguments)
        except GrammarError:
            raise
        except operations.WrongOperand as problem:
            raise self._error(str(problem), places[problem.operand]) from None
        except WrongArgument as problem:
            raise self._error(str(problem), start if problem.start is None else problem.start) from None
        except (InvalidInput, InvalidType) as problem:
            blamed = None if made is None else made.blamed(str(problem))
            raise self._error(str(problem), start if blamed is None else blamed) from None

    def _nested(self, read: Callable[[], Any]) -> Any:
        if self._open >= MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} brackets are open here; write it flatter")
        self._open += 1
        value = read()
        self._open -= 1
        return value

    # ------------------------------------------------------------------------------- operators

    def _comparison(self) -> Any:
        places = [self._here.start]
        operands, marks = [self._union()], []
        while self._here.is_mark(*_COMPARISONS):
            marks.append(self._take())
            places += [marks[-1].start, self._here.start]
            operands.append(self._union())
        if not marks:
            return operands[0]
        if not self._open:
            self.bound_at = marks[0].start
        words = [mark.value for mark in marks]
        return self._make(operations.compare, operands, words, start=marks[0].start, places=places)

    def _union(self) -> Any:
        return self._joined("|", self._meet)

    def _meet(self) -> Any:
        return self._joined("&", self._sum)

    def _joined(self, mark: str, read: Callable[[], Any]) -> Any:
        first = self._here.start
        value, count = read(), 1
        while self._here.is_mark(mark):
            token = self._take()
            count += 1
            if count > MAX_JOINED:
                raise self._error(f"more than {MAX_JOINED} parts are joined by {mark}", token.start)
            places = (first, self._here.start)
            value = self._make(operations.join, mark, value, read(), start=token.start, places=places)
        return value

    def _sum(self) -> Any:
        places = [self._here.start]
        total = self._term()
        if not self._here.is_mark("+", "-"):
            return total
        summands, start = [("+", total)], self._here.start
        while self._here.is_mark("+", "-"):
            mark = self._take()
            places.append(self._here.start)
            summands.append((mark.value, self._term()))
            self._make(operations.check_summands, summands[-2:], start=mark.start, places=places[-2:])
        return self._make(operations.add, summands, start=start, places=places)

    def _term(self) -> Any:
        first = self._here.start
        value = self._factor()
        while self._here.is_mark("*", "/"):
            mark = self._take()
            places = (first, self._here.start)
            right = self._factor()
            value = self._make(operations.scale, value, mark.value, right, start=mark.start, places=places)
        return value

    def _factor(self) -> Any:
        signs = []
        while self._here.is_mark("-", "+", "~"):
            signs.append(self._take())
        places = (self._here.start,)
        value = self._primary()
        for sign in reversed(signs):
            value = self._make(operations.sign, sign.value, value, start=sign.start, places=places)
        return value

    # ------------------------------------------------------------------------- names and brackets

    def _primary(self) -> Any:
        value = self._atom()
        while self._here.is_mark("."):
            self._take()
            name = self._take()
            if name.kind != "name" or name.value not in ("between", "named"):
                raise self._error("expected .between(low, high) or .named(text)", name.start)
            made = self._arguments(name.value, name.start)
            value = self._make(operations.method, value, made, start=name.start, made=made)
        return value

    def _atom(self) -> Any:
        token = self._here
        if token.kind in ("number", "text"):
            return self._take().value
        if token.kind == "name":
            return self._name(self._take())
        if token.kind == "display":
            value, mentions = read_display(self._text, *self._take().value)
            self.mentions += mentions
            return value
        if token.is_mark(*_CLOSING):
            return self._nested(self._bracket)
        raise self._error(f"expected a rate, a number or a name, found {token}")

    def _name(self, token: Token) -> Any:
        name = token.value
        if self._here.is_mark("("):
            if not is_function(name):
                raise self._error(_unknown(name), token.start)
            made = self._arguments(name, token.start)
            value = self._make(call, made, start=token.start, made=made)
            self.mentions += mentions_of(made)
            return value
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name == "None":
            raise self._error("None is a missing value and has no meaning here", token.start)
        if name in _PYTHONS_WORDS:
            raise self._error(_PYTHONS_WORDS[name], token.start)
        return Word(name)

    def _bracket(self) -> Any:
        opening = self._take()
        closing = _CLOSING[opening.value]
        if self._skip(closing):
            raise self._error("expected something between the brackets", opening.start)
        items = [self._comparison()]
        comma = False
        while comma := self._skip(","):
            if self._here.is_mark(closing):
                break
            items.append(self._comparison())
        if not self._here.is_mark(closing):
            where = f"for the {opening.value} at character {opening.start + 1}"
            raise self._error(f"expected {closing} {where}, found {self._here}")
        self._take()
        if opening.value == "(" and len(items) == 1 and not comma:
            return items[0]
        return self._make(operations.gather, items, opening.value, start=opening.start)

    def _arguments(self, name: str, start: int) -> Call:
        return self._nested(lambda: self._read_arguments(Call(name, start)))  # type: ignore[no-any-return]

    def _read_arguments(self, made: Call) -> Call:
        self._expect("(")
        while not self._here.is_mark(")"):
            self._argument(made)
            if not self._skip(","):
                break
        if not self._here.is_mark(")"):
            hint = "; a value is given with one =" if self._here.is_mark("==") else ""
            raise self._error(f"expected , or ) in {made.name}(...), found {self._here}{hint}")
        self._take()
        return made

    def _argument(self, made: Call) -> None:
        token = self._here
        if self._skip("**"):
            self._nested(lambda: self._mapping(made))
        elif token.kind == "name" and self._tokens[self._at + 1].is_mark("="):
            self._at += 2
            self._keyword(made, token.value, token.start)
        elif made.keywords:
            raise self._error("expected column=value or option=value after the first such argument")
        else:
            made.positional.append(Argument(self._union(), token.start, self._here.start))

    def _keyword(self, made: Call, name: str, start: int) -> None:
        if name in made.keywords:
            raise self._error(f"{name!r} is given twice", start)
        here = self._here
        value = Star() if self._skip("*") else self._union()
        made.keywords[name] = Argument(value, here.start, self._here.start, start)

    def _mapping(self, made: Call) -> None:
        self._expect("{")
        while not self._here.is_mark("}"):
            key = self._take()
            if key.kind != "text":
                raise self._error("expected a column's name in quotes", key.start)
            self._expect(":")
            self._keyword(made, key.value, key.start)
            if not self._skip(","):
                break
        self._expect("}")


def _unknown(name: str) -> str:
    if name == "error":  # as reports print it
        return "error(...) stands for one rate per class; write error_rate_parity(sex) <= 0.1"
    close = difflib.get_close_matches(name[:60], function_names(), n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(function_names())}"
    return f"there is no function {name[:60]}{hint}"
