"""Constraint text to tokens: names, numbers, quoted texts and marks, each with its place.

>>> [(token.kind, token.value) for token in tokenize("rate(1) <= .5")]
[('name', 'rate'), ('mark', '('), ('number', 1), ('mark', ')'), ('mark', '<='), ('number', 0.5), ('end', '')]
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from ratewise.exceptions import InvalidType
from ratewise.grammar.errors import GrammarError

MAX_TEXT = 20_000
"""Characters that a constraint may have."""

MAX_DIGITS = 400
"""Characters that a number may have; every float needs far fewer."""

_NUMBER = re.compile(r"(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?", re.ASCII)
_DIGITS = r"\d(?:_?\d)*"
_PYTHONS_NUMBER = re.compile(
    rf"0(?:_?0)*|[1-9](?:_?\d)*"  # whole
    rf"|(?:(?:{_DIGITS})?\.{_DIGITS}|{_DIGITS}\.)(?:[eE][+-]?{_DIGITS})?|{_DIGITS}[eE][+-]?{_DIGITS}",
    re.ASCII,
)
_MARKS = ("<=", ">=", "==", "!=", "**", *"()[]{},:.=*/+-&|~<>")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_CODED = {"x": 2, "u": 4, "U": 8}


class Token(NamedTuple):
    """A piece of the text: its kind (name, number, text, mark, display, end), its value, and where it starts.

    The value of a ``display``, a rate in the notation of reports, is where the inside of ``P(...)`` is.
    """

    kind: str
    value: Any
    start: int

    def is_mark(self, *marks: str) -> bool:
        """Tell whether it is one of these marks."""
        return self.kind == "mark" and self.value in marks

    def __str__(self) -> str:
        """Return the token as an error message calls it."""
        if self.kind == "end":
            return "the end of the text"
        if self.kind == "display":
            return "P(...)"
        shown = str(self.value) if self.kind in ("name", "mark") else repr(self.value)
        return shown if len(shown) <= 40 else shown[:37] + "..."


def tokenize(text: Any) -> list[Token]:
    """Return the tokens of the text, the last one of kind ``end``."""
    if not isinstance(text, str):
        raise InvalidType(f"a constraint must be text, got {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise GrammarError(
            f"a constraint may have {MAX_TEXT:,} characters, this one has {len(text):,}; split it",
            text,
            MAX_TEXT,
        )
    tokens: list[Token] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return [*tokens, Token("end", "", at)]
        token, at = _next(text, at)
        tokens.append(token)


def _next(text: str, at: int) -> tuple[Token, int]:
    character = text[at]
    if character in "'\"":
        value, end = read_quoted(text, at)
        return Token("text", value, at), end
    if character.isascii() and (
        character.isdigit() or (character == "." and text[at + 1 : at + 2].isdigit())
    ):
        number, end = read_number(text, at)
        return Token("number", number, at), end
    if character.isidentifier():
        end = at + 1
        while end < len(text) and (text[at : at + 1] + text[end]).isidentifier():
            end += 1
        opening = _opening(text, end) if text[at:end] == "P" else None
        if opening is not None:
            closing = _closing(text, opening)
            return Token("display", (opening + 1, closing), at), closing + 1
        return Token("name", text[at:end], at), end
    for mark in _MARKS:
        if text.startswith(mark, at):
            return Token("mark", mark, at), at + len(mark)
    raise GrammarError(f"the character {character!r} has no meaning here; texts go in quotes", text, at)


def _opening(text: str, at: int) -> int | None:
    """Return the place of the bracket that comes next, if one does."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at if text[at : at + 1] == "(" else None


def _closing(text: str, opening: int) -> int:
    """Return the place of the bracket that closes another, passing over quoted texts."""
    depth, at = 0, opening
    while at < len(text):
        if text[at] in "'\"":
            at = read_quoted(text, at)[1]
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
        at += 1
    raise GrammarError(f"expected ) for the ( at character {opening + 1}, found the end", text, len(text))


def read_number(text: str, at: int) -> tuple[int | float, int]:
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


def read_quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value of a quoted text with Python's escapes, and the place after it."""
    pieces: list[str] = []
    quote, here = text[at], at + 1
    while here < len(text):
        character = text[here]
        if character == quote:
            return "".join(pieces), here + 1
        if character == "\n":
            break
        if character == "\\":
            value, here = _escape(text, here)
            pieces.append(value)
        else:
            pieces.append(character)
            here += 1
    raise GrammarError(f"the text that begins here has no closing {quote}", text, at)


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    length = _CODED.get(letter, 0)
    digits = text[at + 2 : at + 2 + length]
    if length and len(digits) == length and all(d in "0123456789abcdefABCDEF" for d in digits):
        code = int(digits, 16)
        if code <= 0x10FFFF:
            return chr(code), at + 2 + length
    raise GrammarError(r"unknown escape; write \\ for a backslash, or \n \r \t \xhh \uhhhh", text, at)
