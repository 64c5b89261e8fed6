"""What families measure, and between whom: rates as functions of a group, and the groups of a domain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from ratewise.domain import Domain, Numeric, list_values
from ratewise.exceptions import InvalidInput
from ratewise.predicates import Member, Predicate, conjunction, everyone, label
from ratewise.rates import Expression, rate
from ratewise.terms import Term

MAX_GROUPS = 1_000_000

Measure = Callable[[Predicate], Expression]
"""A rate as a function of the group it is taken in."""


def crossed(columns: tuple[str, ...], domain: Domain) -> list[Predicate]:
    """Return one predicate per combination of the columns' values; no column means all of them."""
    columns = columns or tuple(domain.columns)
    if not columns:
        raise InvalidInput("the family needs groups, but the domain declares no column")
    listed = [_listed_values(column, domain) for column in columns]
    total = math.prod(map(len, listed))
    if total > MAX_GROUPS:
        raise InvalidInput(
            f"crossing {list_values(columns)} gives {total:,} groups, more than {MAX_GROUPS:,}; "
            "name fewer columns"
        )
    single = [
        [Member(column, (value,)) for value in values] for column, values in zip(columns, listed, strict=True)
    ]
    return [conjunction(combination) for combination in itertools.product(*single)]


def _listed_values(column: str, domain: Domain) -> tuple[Any, ...]:
    values = domain.values(column)
    if isinstance(values, Numeric):
        raise InvalidInput(
            f"column {column!r} is numeric and has no list of groups; name the columns to use, or write the "
            f"constraints out with group({column}=below(...)) and the like"
        )
    return values


def pairs(groups: list[Predicate], versus: str) -> Iterator[tuple[Predicate, Predicate]]:
    """Yield each group with what it is compared with, no comparison twice."""
    if versus == "pairwise":
        yield from itertools.combinations(groups, 2)
    elif versus == "everyone":
        yield from ((subset, everyone) for subset in groups)
    else:
        # with two groups the rest of the second is the first: the same comparison again
        yield from ((subset, ~subset) for subset in (groups[:1] if len(groups) == 2 else groups))


def comparisons(groups: int, versus: str) -> int:
    """Return how many pairs there are, at most, without listing them."""
    return groups * (groups - 1) // 2 if versus == "pairwise" else groups


def _share(k: Any, within: Predicate = everyone) -> Measure:
    return lambda subset: rate(k, where=within & subset)


def _miss(k: Any, within: Predicate) -> Measure:
    return lambda subset: 1 - rate(k, where=within & subset)


def _of_predicted(k: Any, where: Predicate) -> Measure:
    return lambda subset: rate(k, where=where, out_of=subset)


def _error_rate(domain: Domain) -> Measure:
    def measure(subset: Predicate) -> Expression:
        # right answers are one cell per class, wrong ones all others: one minus the former is the sparse form
        right = ((Term(k, label(k) & subset, subset, False), -1.0) for k in domain.classes)
        return Expression(right, 1.0)

    return measure


def _telling_classes(domain: Domain) -> tuple[Any, ...]:
    """Return the classes whose rates determine all others up to the bound: for two classes, the second."""
    return domain.classes[1:] if len(domain.classes) == 2 else domain.classes


def _positive(domain: Domain, positive: Any) -> Any:
    known = domain.classes
    if positive not in known:
        raise InvalidInput(
            f"positive={positive!r} is not one of the classes: {list_values(known)}; pass positive=..."
        )
    return known[domain.code(None, positive)]


def _demographic(domain: Domain, _: Any) -> list[Measure]:
    return [_share(k) for k in _telling_classes(domain)]


def _odds(domain: Domain, _: Any) -> list[Measure]:
    return [_share(k, label(truth)) for truth in domain.classes for k in _telling_classes(domain)]


def _hits(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_share(k, label(k))]


def _false_alarms(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_share(k, ~label(k))]


def _misses(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_miss(k, label(k))]


def _rejections(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_miss(k, ~label(k))]


def _precision(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_of_predicted(k, label(k))]


def _false_discoveries(domain: Domain, positive: Any) -> list[Measure]:
    k = _positive(domain, positive)
    return [_of_predicted(k, ~label(k))]


PARITIES: dict[str, Callable[[Domain, Any], list[Measure]]] = {
    "demographic_parity": _demographic,
    "equalized_odds": _odds,
    "equal_opportunity": _hits,
    "predictive_equality": _false_alarms,
    "error_rate_parity": lambda domain, _: [_error_rate(domain)],
}

LIMITS: dict[str, Callable[[Domain, Any], list[Measure]]] = {
    "false_negative_rate": _misses,
    "false_positive_rate": _false_alarms,
    "true_positive_rate": _hits,
    "true_negative_rate": _rejections,
    "precision": _precision,
    "false_discovery_rate": _false_discoveries,
    "positive_rate": lambda domain, positive: [_share(_positive(domain, positive))],
    "paper_false_negative_rate": lambda domain, _: [_share(k, ~label(k)) for k in domain.classes],
}
