"""One rate, as data: which predictions are counted, in which rows, out of which rows."""

from __future__ import annotations

from typing import Any, NoReturn

from ratewise.exceptions import InvalidType
from ratewise.predicates import Either, Predicate, Within, conjunction, conjuncts, everyone
from ratewise.values import show_value


def a_predicate(**argument: Any) -> Predicate:
    """Return the argument if it is a predicate."""
    ((name, value),) = argument.items()
    if not isinstance(value, Predicate):
        raise InvalidType(
            f"{name} must be a predicate such as group(sex='Female') or label(1), got {type(value).__name__}"
        )
    return value


class Rows:
    """All rows of a subset, as the denominator of a rate; made by `rows`."""

    __slots__ = ("where",)
    where: Predicate

    def __init__(self, where: Predicate) -> None:
        object.__setattr__(self, "where", where)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"rows(...) is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.where,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.where == other.where

    def __hash__(self) -> int:
        return hash((Rows, self.where))

    def __repr__(self) -> str:
        return f"rows({self.where!r})"


def rows(where: Predicate) -> Rows:
    """Return the denominator "all rows of `where`", whatever they are predicted.

    >>> from ratewise.predicates import group, label
    >>> from ratewise.rates import rate
    >>> rate(0, where=label(1), out_of=rows(group(sex="Female"))).name
    'P(0, label=1 | sex=Female)'
    """
    return Rows(a_predicate(where=where))


class Term:
    """One rate: predictions of `prediction` inside `where`, over the rows of `of` (or those predicted so).

    `where` always lies inside `of`. With `predicted` the denominator counts only the rows of `of` that are
    predicted `prediction`.
    """

    __slots__ = ("_hash", "of", "predicted", "prediction", "where")
    prediction: Any
    where: Predicate
    of: Predicate
    predicted: bool
    _hash: int

    def __init__(self, prediction: Any, where: Predicate, of: Predicate, predicted: bool) -> None:
        put = object.__setattr__
        put(self, "prediction", prediction)
        put(self, "where", where)
        put(self, "of", of)
        put(self, "predicted", predicted)
        put(self, "_hash", hash((prediction, where, of, predicted)))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a rate is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Term, self._key

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.prediction, self.where, self.of, self.predicted

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Term) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        where, plain = self._inside(), self.where == self.of and not self.predicted
        arguments = [repr(self.prediction)]
        if (where if not plain else self.where) != everyone:
            arguments.append(f"where={self.where if plain else where!r}")
        if not plain:
            arguments.append(f"out_of={self.of!r}" if self.predicted else f"out_of={Rows(self.of)!r}")
        return f"rate({', '.join(arguments)})"

    def _inside(self) -> Predicate:
        """Return what `where` says beyond `of`, for printing."""
        beyond = conjuncts(self.where) - conjuncts(self.of)
        return (
            conjunction(beyond) if conjunction((conjunction(beyond), self.of)) == self.where else self.where
        )

    @property
    def name(self) -> str:
        """The rate as report text, such as ``P(1 | sex=Female)``."""
        chosen, within = show_value(self.prediction), self._inside()
        united = isinstance(within, Either) or (isinstance(within, Within) and len(within.intervals) > 1)
        inside = f"({within.name})" if united else within.name  # the first bare | begins what is given
        # of two that are equal, False and 0 say, the one that repr shows
        of = self.where if self.where == self.of and not self.predicted else self.of
        given = [] if of == everyone else [of.name]
        if self.predicted:
            event, given = inside, [f"predicted {chosen}", *given]
        elif self.where == self.of:
            event = chosen
        else:
            event = f"{chosen}, {inside}"
        return f"P({event} | {', '.join(given)})" if given else f"P({event})"
