"""What a column of a table is, as public data: a number with bounds, or one of a list of values.

>>> Number(17, 90)
Number(17.0, 90.0)
>>> column_from("columns.job", {"type": "category", "values": ["clerk", "sales"]})
Category(['clerk', 'sales'])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.domain import list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.values import show_number


@dataclass(frozen=True)
class Number:
    """A column of numbers, cut off at public bounds.

    Parameters
    ----------
    lower, upper : float or None
        Public bounds. None leaves a bound to be found privately, at a price (`ratewise.bounds`).
    missing : float or None
        The number that a missing entry stands for. None refuses missing entries.
    """

    lower: float | None = None
    upper: float | None = None
    missing: float | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "missing"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _validate.real(**{name: value}))
        if self.bounded and not self.lower < self.upper:  # type: ignore[operator]
            raise InvalidInput(f"lower must be below upper, got {self.lower:g} and {self.upper:g}")
        if self.bounded and not math.isfinite(self.upper - self.lower):  # type: ignore[operator]
            raise InvalidInput(
                f"lower and upper are too far apart to be scaled, got {self.lower:g} and {self.upper:g}"
            )

    @property
    def bounded(self) -> bool:
        """Whether both bounds are declared."""
        return self.lower is not None and self.upper is not None

    def __repr__(self) -> str:
        said = [(name, getattr(self, name)) for name in ("lower", "upper", "missing")]
        if self.bounded:
            shown = [f"{self.lower!r}, {self.upper!r}"]
            said = said[2:]
        else:
            shown = []
        return (
            f"Number({', '.join(shown + [f'{name}={value!r}' for name, value in said if value is not None])})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        said = {name: getattr(self, name) for name in ("lower", "upper", "missing")}
        return {"type": "number", **{name: value for name, value in said.items() if value is not None}}

    def in_words(self) -> str:
        """Return what the column is, for a person to read."""
        low, high = ("?" if end is None else show_number(end) for end in (self.lower, self.upper))
        return f"number from {low} to {high}"


@dataclass(frozen=True, init=False)
class Category:
    """A column of which every possible value is declared; true and false are a category too.

    Parameters
    ----------
    values : iterable of text, whole numbers, numbers or booleans
        Each once; the order is that of the encoded columns.
    missing : value or None
        The declared value that a missing entry stands for. None refuses missing entries.
    """

    values: tuple[Any, ...]
    missing: Any = None

    def __init__(self, values: Iterable[Any], missing: Any = None) -> None:
        object.__setattr__(self, "values", plain_values("values", values))
        object.__setattr__(self, "missing", missing)
        if missing is not None and missing not in self.values:
            raise InvalidInput(
                f"missing must be one of the declared values ({list_values(self.values)}), got {missing!r}"
            )

    def __repr__(self) -> str:
        missing = "" if self.missing is None else f", missing={self.missing!r}"
        return f"Category({list(self.values)!r}{missing})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        missing = {} if self.missing is None else {"missing": self.missing}
        return {"type": "category", "values": list(self.values), **missing}

    def in_words(self) -> str:
        """Return what the column is, for a person to read."""
        return f"one of {list_values(self.values)}"


Column = Number | Category


def plain_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return distinct plain scalars; text alone is refused, being a list of letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{name} must be a list of values, got {type(values).__name__}")
    items = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    for item in items:
        if not isinstance(item, str | bool | int | float):
            raise InvalidType(
                f"{name} must hold text, numbers or booleans, got {type(item).__name__}; convert the column"
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidInput(f"{name} must hold finite numbers, got {item!r}")
    if not items:
        raise InvalidInput(f"{name} must hold at least one value, got none")
    repeated = next((item for place, item in enumerate(items) if item in items[:place]), None)
    if repeated is not None:
        raise InvalidInput(f"{name} must hold each value once, got {repeated!r} twice")
    return items


def fields_of(what: str, description: Any, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a table of plain data, after checking that the needed ones are there."""
    if not isinstance(description, Mapping):
        raise InvalidType(f"{what} must be a table of named fields, got {type(description).__name__}")
    for name in needed:
        if name not in description:
            hint = (
                "; write signed = true once a person has checked that every bound and value is public"
                if name == "signed"
                else ""
            )
            raise InvalidInput(f"{what} lacks the field {name!r}{hint}")
    return dict(description)


def refuse_unknown(what: str, left: Mapping[str, Any]) -> None:
    """Raise if fields are left that nobody has read."""
    if left:
        raise InvalidInput(f"{what} has unknown fields: {list_values(left)}")


def listed(what: str, values: Any) -> Any:
    """Return the values if they are a list."""
    if not isinstance(values, list | tuple):
        raise InvalidType(f"{what} must be a list, got {type(values).__name__}")
    return values


def column_from(what: str, description: Any) -> Column:
    """Return the column that plain data describe; errors say which column is meant by `what`."""
    fields = fields_of(what, description, needed=("type",))
    kind = fields.pop("type")
    known = {"number": ("lower", "upper", "missing"), "category": ("values", "missing")}
    if not isinstance(kind, str) or kind not in known:
        raise InvalidInput(f"{what}: type must be 'number' or 'category', got {kind!r}")
    refuse_unknown(what, {name: value for name, value in fields.items() if name not in known[kind]})
    try:
        if kind == "number":
            return Number(**fields)
        fields_of(what, description, needed=("values",))
        return Category(listed("values", fields["values"]), fields.get("missing"))
    except (InvalidInput, InvalidType) as problem:
        raise type(problem)(f"{what}: {problem}") from None
