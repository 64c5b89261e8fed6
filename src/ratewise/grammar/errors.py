"""The one error of the grammar: what is wrong, and at which character."""

from __future__ import annotations

import unicodedata

from ratewise.exceptions import InvalidInput

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
