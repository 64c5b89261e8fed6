"""What constraint text can name: the functions of the language, and ready-made rates that wait for a bound.

A `Call` is a function's name with its arguments as they were written; `call` turns it into the same object
that the Python function of that name makes. The text knows two things more than Python: short names (`fnr`
for `false_negative_rate`), and ready-made rates by group, ``fnr(label=1, race=*)`` for every race and
``fnr(label=1, race="B")`` for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ratewise import families, predicates, rates, values
from ratewise.exceptions import InvalidInput
from ratewise.families import Limit, Parity
from ratewise.measures import LIMITS, PARITIES
from ratewise.predicates import Predicate, everyone, label
from ratewise.rates import Constraint, Constraints, Expression, rate

SHORT_NAMES = {
    "fnr": "false_negative_rate",
    "fpr": "false_positive_rate",
    "tpr": "true_positive_rate",
    "tnr": "true_negative_rate",
    "fdr": "false_discovery_rate",
}
UPPER = ("false_negative_rate", "false_positive_rate", "false_discovery_rate", "paper_false_negative_rate")
LOWER = ("true_positive_rate", "true_negative_rate", "precision")
MAX_PREDICATE_DEPTH = 12

MAX_NESTING = 40
"""Brackets that may be open at once."""

MAX_JOINED = 100
"""Parts that one chain of ``&`` or ``|`` may have; sets of values say the same shorter."""


class Word(str):
    """A bare word: a column or a value written without quotes."""

    __slots__ = ()


class Star:
    """``*`` after a column: every value of it."""


class Listed(tuple[Any, ...]):
    """Several values in brackets of any kind."""

    __slots__ = ()


class Argument(NamedTuple):
    """A value, where it was written, and where its name was, if it has one."""

    value: Any
    start: int
    end: int = -1
    named_at: int = -1

    @property
    def items(self) -> tuple[Any, ...]:
        """The single values of a list, or the one value."""
        return tuple(self.value) if isinstance(self.value, Listed) else (self.value,)


class WrongArgument(InvalidInput):
    """An argument that a function of the language does not take; `start` is its place."""

    def __init__(self, reason: str, start: int | None = None) -> None:
        super().__init__(reason)
        self.start = start


@dataclass
class Call:
    """A function of the language with its arguments as written, and the place of its name."""

    name: str
    start: int = 0
    positional: list[Argument] = field(default_factory=list)
    keywords: dict[str, Argument] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()

    def blamed(self, message: str) -> int | None:
        """Return the place of the argument that a message of the library begins with, if there is one."""
        assigned = {**dict(zip(self.parameters, self.positional, strict=False)), **self.keywords}
        return next((a.start for name, a in assigned.items() if message.startswith(f"{name} ")), None)

    def bound_to(self, *names: str, least: int = 0) -> dict[str, Any]:
        """Return the arguments by parameter name, as Python would assign them."""
        self.parameters = names
        if len(self.positional) > len(names):
            raise WrongArgument(
                f"{self.name}() takes at most {len(names)} arguments", self.positional[len(names)].start
            )
        found = dict(zip(names, self.positional, strict=False))
        for name, argument in self.keywords.items():
            if name not in names:
                known = ", ".join(names) or "none"
                raise WrongArgument(
                    f"{self.name}() has no argument {name!r}; it has: {known}", argument.start
                )
            if name in found:
                raise WrongArgument(f"{self.name}() got {name!r} twice", argument.start)
            found[name] = argument
        missing = [name for name in names[:least] if name not in found]
        if missing:
            raise WrongArgument(f"{self.name}() needs {' and '.join(missing)}")
        return {name: plain(argument) for name, argument in found.items()}


def plain(argument: Argument) -> Any:
    """Return an argument as Python would hold it: bare words are texts."""
    value, start = argument.value, argument.start
    if isinstance(value, Star):
        raise WrongArgument("* goes with a column of a ready-made rate, as in fnr(race=*)", start)
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, Listed):
        return [plain(Argument(item, start)) for item in value]
    if isinstance(value, Ready):
        return value.expression() if value.limit else value
    return value


def check_depth(predicate: Predicate, allowed: int = MAX_PREDICATE_DEPTH) -> Predicate:
    """Return the predicate, or refuse one that is nested beyond reason."""
    if allowed < 0:
        raise InvalidInput(f"predicates may be nested {MAX_PREDICATE_DEPTH} levels deep, this is deeper")
    for part in predicate.parts:
        check_depth(part, allowed - 1)
    return predicate


# ------------------------------------------------------------------- ready-made rates and parities


@dataclass(frozen=True)
class Ready:
    """A ready-made rate or parity: complete with a bound, a family; for one group, a rate like any other."""

    kind: str
    columns: tuple[str, ...] = ()
    where: Predicate = everyone
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def limit(self) -> bool:
        """Whether it is one rate, rather than a comparison of groups."""
        return self.kind in LIMITS

    def family(self, low: Any = None, high: Any = None) -> Parity | Limit | Constraint | Constraints:
        """Return the family with its bounds; for one group, the constraint."""
        self._check_sides(low, high)
        if self.where != everyone:
            return _bounded(self.expression(), low, high)
        build = getattr(families, self.kind)
        options = dict(self.options)
        if not self.limit:
            return build(*self.columns, max_gap=high, **options)  # type: ignore[no-any-return]
        bounds = {"min_rate": low, "max_rate": high}
        given = {name: value for name, value in bounds.items() if value is not None}
        return build(**given, by=self.columns, **options)  # type: ignore[no-any-return]

    def _check_sides(self, low: Any, high: Any) -> None:
        if low is not None and (not self.limit or self.kind in UPPER):
            raise InvalidInput(f"{self.kind} is bounded from above only: write <=")
        if high is not None and self.kind in LOWER:
            raise InvalidInput(f"{self.kind} is bounded from below only: write >=")

    def expression(self) -> Expression:
        """Return the rate of one group, or of everyone, as an expression."""
        if not self.limit or self.kind not in _RATES:
            raise InvalidInput(f"{self.kind} stands for several rates; compare it with one number")
        if self.columns:
            raise InvalidInput(
                f"{self.kind} by {', '.join(self.columns)} stands for several rates; compare it with one "
                "number, or give each column a value"
            )
        return _RATES[self.kind](dict(self.options).get("positive", 1), self.where)


_RATES: dict[str, Callable[[Any, Predicate], Expression]] = {
    "false_negative_rate": lambda k, where: 1 - rate(k, where=label(k) & where),
    "false_positive_rate": lambda k, where: rate(k, where=~label(k) & where),
    "true_positive_rate": lambda k, where: rate(k, where=label(k) & where),
    "true_negative_rate": lambda k, where: 1 - rate(k, where=~label(k) & where),
    "precision": lambda k, where: rate(k, where=label(k), out_of=where),
    "false_discovery_rate": lambda k, where: rate(k, where=~label(k), out_of=where),
    "positive_rate": lambda k, where: rate(k, where=where),
}


def _bounded(expression: Expression, low: Any, high: Any) -> Constraint | Constraints:
    if low is not None and high is not None:
        return expression.between(low, high)
    return expression._compare(low, ">=") if low is not None else expression._compare(high, "<=")


def _ready(call: Call) -> Any:
    """Read ``demographic_parity(sex)``, ``fnr(label=1, race=*)`` and the Python forms with a bound inside."""
    kind = SHORT_NAMES.get(call.name, call.name)
    bounds, names = parameters(kind)
    columns, where = _groups(call, (*bounds, *names, "label"))
    keywords = {name: a for name, a in call.keywords.items() if name in (*bounds, *names)}
    if "label" in call.keywords and "positive" in names:
        if "positive" in keywords:
            raise WrongArgument("label and positive are two words for one thing", keywords["positive"].start)
        keywords["positive"] = call.keywords["label"]
    if kind in PARITIES:
        if "versus" in keywords and keywords["versus"].value == everyone:
            keywords["versus"] = keywords["versus"]._replace(value="everyone")  # the word, not the rows
        columns = (*_columns(call), *columns)
        given = Call(call.name, call.start, [], keywords).bound_to(*bounds, *names)
    else:
        given = Call(call.name, call.start, call.positional, keywords).bound_to(*bounds, *names)
        call.parameters = (*bounds, *names)
        columns = (*_by(given.pop("by", ())), *columns)
        if len(set(columns)) < len(columns):
            by = call.keywords.get("by", call.positional[-1] if call.positional else None)
            raise WrongArgument("name each column once", None if by is None else by.start)
    found = {name: given.pop(name, None) for name in bounds}
    ready = replace(_together(call, kind, columns, where), options=tuple(given.items()))
    if all(value is None for value in found.values()):
        return ready
    return ready.family(found.get("min_rate"), found.get("max_rate", found.get("max_gap")))


def parameters(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a family's bounds and of its other arguments, in Python's order."""
    if kind in PARITIES:
        positive = ("positive",) if kind in ("equal_opportunity", "predictive_equality") else ()
        return ("max_gap",), (*positive, "versus")
    if kind == "paper_false_negative_rate":
        return ("max_rate",), ("by",)
    bounds = ("max_rate",) if kind in UPPER else ("min_rate",) if kind in LOWER else ("min_rate", "max_rate")
    return bounds, ("positive", "by")


def _groups(call: Call, known: tuple[str, ...]) -> tuple[tuple[str, ...], Predicate]:
    """Split the keywords that are columns into those with ``*`` and conditions on one group."""
    columns: list[str] = []
    where: Predicate = everyone
    for name, argument in call.keywords.items():
        if name in known:
            continue
        if isinstance(argument.value, Star):
            columns.append(name)
        else:
            where = check_depth(where & predicates.group(**{name: plain(argument)}))
    return tuple(columns), where


def _together(call: Call, kind: str, columns: tuple[str, ...], where: Predicate) -> Ready:
    bounds, names = parameters(kind)
    known = (*bounds, *names, "label")
    valued = [a for name, a in call.keywords.items() if name not in known and not isinstance(a.value, Star)]
    if valued and kind not in _RATES:
        raise WrongArgument(
            f"{call.name} compares groups or classes: give columns without a value, as in sex=*",
            valued[0].start,
        )
    if valued and columns:
        raise WrongArgument(
            "give every column a value, or every column a *; for a mixture write rate(...)", valued[0].start
        )
    return Ready(kind, columns, where)


def _columns(call: Call) -> Iterator[str]:
    """Yield the columns of a parity, each of which may stand there once."""
    seen = {name for name, argument in call.keywords.items() if isinstance(argument.value, Star)}
    for argument in call.positional:
        if not isinstance(argument.value, str):
            raise WrongArgument("expected the name of a column; the bound goes behind <=", argument.start)
        if argument.value in seen:
            raise WrongArgument(
                f"name each column once; {str(argument.value)!r} is here twice", argument.start
            )
        seen.add(argument.value)
        yield str(argument.value)


def _by(value: Any) -> tuple[Any, ...]:
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (value,)
    )


# ----------------------------------------------------------------------------- the other functions


def _group(call: Call) -> Predicate:
    if call.positional:
        raise WrongArgument("group() takes column=value", call.positional[0].start)
    return check_depth(predicates.group(**{name: plain(a) for name, a in call.keywords.items()}))


def _label(call: Call) -> Predicate:
    if call.keywords:
        raise WrongArgument("label() takes classes, as in label(1)", next(iter(call.keywords.values())).start)
    return label(*map(plain, call.positional))


def _abs(call: Call) -> Any:
    value = call.bound_to("expression", least=1)["expression"]
    if not isinstance(value, Expression):
        raise WrongArgument("abs() takes a combination of rates", call.positional[0].start)
    return abs(value)


_FUNCTIONS: dict[str, Callable[[Call], Any]] = {
    "group": _group,
    "label": _label,
    "abs": _abs,
    "below": lambda call: values.below(**call.bound_to("threshold", least=1)),
    "at_least": lambda call: values.at_least(**call.bound_to("threshold", least=1)),
    "between": lambda call: values.between(**call.bound_to("low", "high", least=2)),
    "rate": lambda call: rate(**call.bound_to("k", "where", "out_of", least=1)),
    "rows": lambda call: rates.rows(**call.bound_to("where", least=1)),
    **dict.fromkeys((*PARITIES, *LIMITS, *SHORT_NAMES), _ready),
}

CONSTANTS: dict[str, Any] = {"everyone": everyone, "nobody": predicates.nobody, "True": True, "False": False}


def is_function(name: str) -> bool:
    """Tell whether the language has a function of this name."""
    return name in _FUNCTIONS


def function_names() -> list[str]:
    """Return the names of all functions, for messages."""
    return sorted(_FUNCTIONS)


def call(made: Call) -> Any:
    """Return what the call stands for."""
    return _FUNCTIONS[made.name](made)
