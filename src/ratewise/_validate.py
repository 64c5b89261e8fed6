"""Checks of scalar arguments, given as keywords so that the message writes itself.

Every check returns the value in its canonical Python type, and treats NaN as out of range.

>>> positive(epsilon=2)
2.0
>>> fraction(sampling_rate=1.5)
Traceback (most recent call last):
...
ratewise.exceptions.InvalidInput: sampling_rate must be above 0 and at most 1, got 1.5
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ratewise.exceptions import InvalidInput, InvalidType

_Kind = TypeVar("_Kind")


def _single(arguments: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = arguments.items()
    return name, value


def real(*, hint: str = "", rule: str = "", holds: Callable[[float], bool] = bool, **argument: Any) -> float:
    """Return a finite real number as ``float``; booleans, text and NaN are refused, and what breaks the rule."""
    name, value = _single(argument)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidType(_say(name, "a number", value, hint))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(_say(name, "finite", value, hint))
    if rule and not holds(number):
        raise InvalidInput(_say(name, rule, value, hint))
    return number


def positive(**argument: Any) -> float:
    """Return a finite number above zero."""
    return real(rule="above 0", holds=lambda number: number > 0, **argument)


def non_negative(**argument: Any) -> float:
    """Return a finite number that is zero or more."""
    return real(rule="at least 0", holds=lambda number: number >= 0, **argument)


def fraction(**argument: Any) -> float:
    """Return a number in (0, 1]."""
    return real(rule="above 0 and at most 1", holds=lambda number: 0 < number <= 1, **argument)


def inside(**argument: Any) -> float:
    """Return a number strictly between 0 and 1."""
    return real(rule="strictly between 0 and 1", holds=lambda number: 0 < number < 1, **argument)


def count(*, at_least: int = 1, **argument: Any) -> int:
    """Return a whole number; ``3.0`` is taken as 3, ``3.5`` and ``True`` are refused."""
    real(rule="a whole number", holds=float.is_integer, **argument)
    return int(real(rule=f"at least {at_least}", holds=lambda number: number >= at_least, **argument))


def one_of(choices: tuple[Any, ...], *, hint: str = "", **argument: Any) -> Any:
    """Return the value if it is one of the choices."""
    name, value = _single(argument)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInput(_say(name, f"one of {listed}", value, hint))
    return value


def instance(kind: type[_Kind], **argument: Any) -> _Kind:
    """Return the value if it is one of that class."""
    name, value = _single(argument)
    if not isinstance(value, kind):
        raise InvalidType(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    return value


def text(*, required: bool = False, **argument: Any) -> str:
    """Return the value if it is text (and not blank, if `required`)."""
    name, value = _single(argument)
    if not isinstance(value, str):
        raise InvalidType(_say(name, "text", value, ""))
    if required and not value.strip():
        raise InvalidInput(f"{name} must not be empty, got {value!r}")
    return value


def texts(**argument: Any) -> tuple[str, ...]:
    """Return a list of non-blank texts as a tuple."""
    name, value = _single(argument)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidType(f"{name} must be a list of texts, got {value!r}; put a single text into a list")
    return tuple(text(required=True, **{f"each of {name}": item}) for item in value)


def _say(name: str, rule: str, value: Any, hint: str) -> str:
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return f"{name} must be {rule}, got {shown}" + (f"; {hint}" if hint else "")
