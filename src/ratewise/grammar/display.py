"""The notation of reports, ``P(1 | sex=Female & label=1)``, read back as the rate that it stands for.

Reports, warnings and messages print rates so. What they print can be copied into a constraint::

    rate  = "P(" value ["|" union] ")"                         out of the rows of a subset
          | "P(" value "," union ["|" union] ")"               of all rows of a subset
          | "P(" union "|" "predicted" value ["," union] ")"   out of the rows predicted so
    union = meet ("|" meet)...                    meet = part ("&" part)...
    part  = "everyone" | "nobody" | ["not"] "(" union ")"
          | column ("=" | "!=") value | column ["not"] "in" "{" value, ... "}"
          | column ("<" | ">=") number | number "<=" column "<" number

Columns and values are bare where that cannot be misread, else in quotes; ``label`` without quotes is the
true label. In the first bracket a union goes in brackets of its own, for the first bare ``|`` ends it.
"""

from __future__ import annotations

import re
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.grammar.errors import GrammarError
from ratewise.grammar.mentions import COLUMN, Mention
from ratewise.grammar.tokens import read_number, read_quoted
from ratewise.grammar.words import MAX_JOINED, MAX_NESTING, check_depth
from ratewise.predicates import (
    Member,
    Predicate,
    Within,
    conjunction,
    disjunction,
    everyone,
    nobody,
)
from ratewise.rates import Expression, rate
from ratewise.terms import rows
from ratewise.values import at_least, below, between

_BARE = re.compile(r"[^\W\d][\w.+/-]*(?: [\w.+/-]+)*")
_PREDICTED = re.compile(r"predicted\s+")
_NUMBER = re.compile(r"[+-]?\s*[.0-9]")
_NOT = re.compile(r"not\s*(?=\()")


def read_display(text: str, start: int, end: int) -> tuple[Expression, list[Mention]]:
    """Return the rate between the brackets of ``P(...)``, and what it names.

    Parameters
    ----------
    text : str
        The whole text, for messages.
    start, end : int
        The first character behind the opening bracket, and the closing bracket.
    """
    reader = _Reader(text, start, end)
    found = reader.whole()
    return found, reader.mentions


class _Reader:
    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = self._at = start
        self._end = end
        self._open = 0
        self.mentions: list[Mention] = []

    def whole(self) -> Expression:
        bar = self._bar()
        given = self._predicted(bar + 1) if bar < self._end else None
        try:
            return self._counted(bar) if given is None else self._among_predicted(bar, *given)
        except (InvalidInput, InvalidType) as problem:
            if isinstance(problem, GrammarError):
                raise
            raise self._error(str(problem), self._start) from None

    def _counted(self, bar: int) -> Expression:
        prediction = self._class()
        inside = self._union(bar) if self._skip(",") else None
        self._expect_end(bar)
        given = self._given(bar)
        return rate(prediction, where=given) if inside is None else rate(prediction, inside, rows(given))

    def _among_predicted(self, bar: int, prediction: Any, given_at: int) -> Expression:
        inside = self._union(bar)
        self._expect_end(bar)
        self._at = given_at
        given = self._union(self._end) if self._skip(",") else everyone
        self._expect_end(self._end)
        return rate(prediction, inside, given)

    def _given(self, bar: int) -> Predicate:
        if bar == self._end:
            return everyone
        self._at = bar + 1
        found = self._union(self._end)
        self._expect_end(self._end)
        return found

    def _predicted(self, at: int) -> tuple[Any, int] | None:
        """Return the class after the word predicted, and the place behind it; None if it is a column."""
        kept, self._at = self._at, at
        self._blank()
        word = _PREDICTED.match(self._text, self._at, self._end)
        found = None
        if word is not None:
            self._at = word.end()
            known = len(self.mentions)
            value = self._class()
            if self._at == self._end or self._text[self._at] == ",":
                found = value, self._at
            else:
                del self.mentions[known:]
        self._at = kept
        return found

    # ------------------------------------------------------------------------------ subsets of rows

    def _union(self, end: int) -> Predicate:
        return self._joined("|", end)

    def _joined(self, mark: str, end: int) -> Predicate:
        parts = [self._one(mark, end)]
        while self._skip(mark, end):
            if len(parts) == MAX_JOINED:
                raise self._error(f"more than {MAX_JOINED} parts are joined by {mark}")
            parts.append(self._one(mark, end))
        return check_depth(disjunction(parts) if mark == "|" else conjunction(parts))

    def _one(self, mark: str, end: int) -> Predicate:
        return self._joined("&", end) if mark == "|" else self._part(end)

    def _part(self, end: int) -> Predicate:
        self._blank()
        if self._skip("("):
            if self._open >= MAX_NESTING:
                raise self._error(f"more than {MAX_NESTING} brackets are open here; write it flatter")
            self._open += 1
            found = self._union(end)
            self._open -= 1
            self._expect(")")
            return found
        denied = _NOT.match(self._text, self._at, end)
        if denied is not None:
            self._at = denied.end()
            return check_depth(~self._part(end))
        if _NUMBER.match(self._text, self._at, end):
            return self._between()
        return self._condition()

    def _condition(self) -> Predicate:
        start = self._at
        column, quoted = self._word("a column")
        if not quoted:
            column = self._without_in(column, start)
            if column in ("everyone", "nobody") and not self._ahead("=", "!=", "<", ">=", "in", "not in"):
                return everyone if column == "everyone" else nobody
        name = None if column == "label" and not quoted else column
        if name is not None:
            self.mentions.append(Mention(name, COLUMN, start, self._at))
        return self._compared(name)

    def _compared(self, column: str | None) -> Predicate:
        if self._skip("not in"):
            return self._members(column, negated=True)
        if self._skip("in"):
            return self._members(column, negated=False)
        if self._skip("!="):
            return Member(column, (self._value(column),), True)
        if self._skip("="):
            return Member(column, (self._value(column),))
        if column is not None and self._skip("<"):
            return Within(column, (below(self._number()),))
        if column is not None and self._skip(">="):
            return Within(column, (at_least(self._number()),))
        raise self._error("expected a condition such as sex=Female, race in {A, B} or age<25")

    def _between(self) -> Predicate:
        low = self._number()
        self._expect("<=")
        self._blank()
        start = self._at
        column, _ = self._word("a column")
        self.mentions.append(Mention(column, COLUMN, start, self._at))
        self._expect("<")
        return Within(column, (between(low, self._number()),))

    def _members(self, column: str | None, *, negated: bool) -> Predicate:
        self._expect("{")
        found = [self._value(column)]
        while self._skip(","):
            found.append(self._value(column))
        self._expect("}")
        return Member(column, found, negated)

    def _without_in(self, column: str, start: int) -> str:
        """Return a bare column without the words ``in`` and ``not in`` behind it, and go back before them."""
        if not self._ahead("{"):
            return column
        for word in (" not in", " in"):
            if column.endswith(word):
                column = column.removesuffix(word)
                self._at = start + len(column)
                break
        return column

    # --------------------------------------------------------------------------------- single words

    def _class(self) -> Any:
        return self._value(None)

    def _value(self, column: str | None) -> Any:
        self._blank()
        start = self._at
        if _NUMBER.match(self._text, start, self._end):
            value: Any = self._number()
        else:
            value, quoted = self._word("a value")
            if not quoted and value in ("True", "False"):
                value = value == "True"
        self.mentions.append(Mention(column, value, start, self._at))
        self._blank()
        return value

    def _word(self, what: str) -> tuple[str, bool]:
        self._blank()
        if self._at < self._end and self._text[self._at] in "'\"":
            value, self._at = read_quoted(self._text, self._at)
            if self._at > self._end:
                raise self._error("the text that ends here is not closed inside P(...)")
            return value, True
        found = _BARE.match(self._text, self._at, self._end)
        if found is None:
            raise self._error(f"expected {what}, found {self._shown()}")
        self._at = found.end()
        return found.group(), False

    def _number(self) -> Any:
        self._blank()
        negative = self._skip("-")
        if not negative:
            self._skip("+")
        self._blank()
        if self._at >= self._end or not (
            self._text[self._at].isascii() and _NUMBER.match(self._text, self._at)
        ):
            raise self._error(f"expected a number, found {self._shown()}")
        value, self._at = read_number(self._text, self._at)
        if self._at > self._end:
            raise self._error("expected a number inside P(...)")
        return -value if negative else value

    # ----------------------------------------------------------------------------------- small steps

    def _blank(self) -> None:
        while self._at < self._end and self._text[self._at].isspace():
            self._at += 1

    def _ahead(self, *marks: str) -> bool:
        at = self._at
        while at < self._end and self._text[at].isspace():
            at += 1
        return any(self._text.startswith(mark, at, self._end) for mark in marks)

    def _skip(self, mark: str, end: int | None = None) -> bool:
        self._blank()
        stop = self._end if end is None else end
        if not self._text.startswith(mark, self._at, stop):
            return False
        self._at += len(mark)
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

    def _bar(self) -> int:
        """Return the place of the first ``|`` that is in no bracket and in no quotes; else the end."""
        depth, at = 0, self._start
        while at < self._end:
            character = self._text[at]
            if character in "'\"":
                at = read_quoted(self._text, at)[1]
                continue
            if character == "|" and depth == 0:
                return at
            depth += (character in "({") - (character in ")}")
            at += 1
        return self._end
