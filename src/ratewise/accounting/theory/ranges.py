"""Numbers that a formula cannot be worked out for in floating point."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ratewise.exceptions import InvalidInput

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def within_range(formula: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Refuse arguments for which a formula overflows, divides by a zero it rounded to, or is undetermined.

    An infinite result is one: nothing is promised. A NaN is none.
    """

    @functools.wraps(formula)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            result = formula(*args, **kwargs)
        except (OverflowError, ZeroDivisionError):
            raise InvalidInput(_message(formula.__name__)) from None
        if isinstance(result, float) and math.isnan(result):
            raise InvalidInput(_message(formula.__name__))
        return result

    return checked


def _message(name: str) -> str:
    return f"the arguments of {name} are too large or too small for floating point; use other units"
