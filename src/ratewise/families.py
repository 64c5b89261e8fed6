"""Ready-made constraints: parity between groups, and bounds on the usual rates.

A family is a sentence such as "demographic parity by sex, gap at most 0.05". Which constraints that means
depends on the classes and on the groups there are, so a family is expanded against a public `Domain`.

>>> from ratewise.domain import Domain
>>> people = Domain(classes=(0, 1), columns={"sex": ("Female", "Male")})
>>> family = demographic_parity("sex", max_gap=0.05)
>>> family
demographic_parity('sex', max_gap=0.05)
>>> for constraint in family.expand(people):
...     print(constraint)
P(1 | sex=Female) - P(1 | sex!=Female) <= 0.05
P(1 | sex=Female) - P(1 | sex!=Female) >= -0.05
>>> for constraint in false_negative_rate(0.2, by="sex").expand(people):
...     print(constraint)
1 - P(1 | label=1 & sex=Female) <= 0.2
1 - P(1 | label=1 & sex=Male) <= 0.2

Every parity family bounds the **absolute** gap, for every group and every class. For two classes the rates
of one class say it all (the other's are one minus them), and for two groups "against the rest" is one
comparison; such duplicates are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ratewise import _validate
from ratewise.domain import Domain, list_values
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.measures import LIMITS, PARITIES, Measure, comparisons, crossed, pairs
from ratewise.predicates import Predicate, everyone
from ratewise.rates import Constraint, Constraints, Expression, Magnitude
from ratewise.terms import Rows
from ratewise.values import scalar, show_number

VERSUS = ("rest", "everyone", "pairwise")
MAX_CONSTRAINTS = 1_000_000


class Family(ABC):
    """A declaration that stands for several constraints; see `Parity` and `Limit`."""

    kind: str

    @abstractmethod
    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the constraints that the family means on this domain."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The family as report text."""

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        raise InvalidType(f"{self!r} has no truth value; give several families as a list")


@dataclass(frozen=True, repr=False)
class Parity(Family):
    """Groups must not differ by more than `max_gap` in some rates."""

    kind: str
    columns: tuple[str, ...]
    max_gap: float
    versus: str = "rest"
    positive: Any = None

    def __repr__(self) -> str:
        arguments = [*map(repr, self.columns), f"max_gap={show_number(self.max_gap)}"]
        if self.positive not in (None, 1):
            arguments.append(f"positive={self.positive!r}")
        if self.versus != "rest":
            arguments.append(f"versus={self.versus!r}")
        return f"{self.kind}({', '.join(arguments)})"

    @property
    def name(self) -> str:
        """The family as report text, such as ``demographic_parity(sex) <= 0.05``."""
        details = list(self.columns)
        if self.positive not in (None, 1):
            details.append(f"positive={self.positive}")
        if self.versus != "rest":
            details.append(f"versus={self.versus}")
        return f"{self.kind}({', '.join(details)}) <= {show_number(self.max_gap)}"

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return an upper and a lower bound on every gap, each comparison once."""
        groups = crossed(self.columns, domain)
        if len(groups) < 2:
            raise InvalidInput(
                f"{self!r} compares groups, but the domain declares only one: {groups[0].name}"
            )
        measures = PARITIES[self.kind](domain, self.positive)
        _refuse_too_many(2 * comparisons(len(groups), self.versus) * len(measures), self)
        return tuple(self._bounds(groups, measures))

    def _bounds(self, groups: list[Predicate], measures: list[Measure]) -> Iterator[Constraint]:
        known: dict[Predicate, list[Expression]] = {}
        for left, right in pairs(groups, self.versus):
            for side in (left, right):
                if side not in known:
                    known[side] = [measure(side) for measure in measures]
            for first, second in zip(known[left], known[right], strict=True):
                bounds = abs(first - second) <= self.max_gap
                yield from bounds if self.kind != "error_rate_parity" else _as_errors(bounds, left, right)


@dataclass(frozen=True, repr=False)
class Limit(Family):
    """A rate must stay within bounds, overall or in every group."""

    kind: str
    min_rate: float | None
    max_rate: float | None
    positive: Any
    by: tuple[str, ...] = ()

    def __repr__(self) -> str:
        both = self.kind == "positive_rate"
        arguments = []
        if self.min_rate is not None:
            arguments.append(f"{'min_rate=' if both else ''}{show_number(self.min_rate)}")
        if self.max_rate is not None:
            arguments.append(f"{'max_rate=' if both else ''}{show_number(self.max_rate)}")
        if self.positive not in (None, 1):
            arguments.append(f"positive={self.positive!r}")
        if self.by:
            arguments.append(f"by={self.by[0]!r}" if len(self.by) == 1 else f"by={self.by!r}")
        return f"{self.kind}({', '.join(arguments)})"

    @property
    def name(self) -> str:
        """The family as report text, such as ``false_negative_rate(by=sex) <= 0.2``."""
        details = [] if self.positive in (None, 1) else [f"positive={self.positive}"]
        if self.by:
            details.append(f"by={'*'.join(self.by)}")
        low = f"{show_number(self.min_rate)} <= " if self.min_rate is not None else ""
        high = f" <= {show_number(self.max_rate)}" if self.max_rate is not None else ""
        text = f"{self.kind}({', '.join(details)})"
        return (
            f"{text} >= {show_number(self.min_rate)}"
            if self.min_rate is not None and not high
            else low + text + high
        )

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the bounds, for everyone or for each group."""
        groups = crossed(self.by, domain) if self.by else [everyone]
        measures = LIMITS[self.kind](domain, self.positive)
        _refuse_too_many(2 * len(groups) * len(measures), self)
        return tuple(
            constraint
            for subset in groups
            for measure in measures
            for constraint in self._bounds(measure(subset))
        )

    def _bounds(self, expression: Expression) -> Iterator[Constraint]:
        if self.min_rate is not None:
            yield expression >= self.min_rate
        if self.max_rate is not None:
            yield expression <= self.max_rate


# ---------------------------------------------------------------------------- what users call


def demographic_parity(*columns: str, max_gap: float, versus: str = "rest") -> Parity:
    """Limit how far the rate of every prediction may differ between groups.

    ``|P(k | group) - P(k | other)| <= max_gap`` for every class k and every group.

    Parameters
    ----------
    *columns : str
        Columns whose values make the groups; several are crossed, none means all declared columns, crossed.
    max_gap : float
        Largest allowed gap, from 0 to 1.
    versus : "rest", "everyone" or "pairwise"
        What a group is compared with: all rows outside it, all rows, or every other group in turn.
    """
    return _parity("demographic_parity", columns, max_gap, versus)


def equalized_odds(*columns: str, max_gap: float, versus: str = "rest") -> Parity:
    """Limit the gaps of demographic parity among the rows of each true class.

    ``|P(k | label=y & group) - P(k | label=y & other)| <= max_gap`` for every prediction k, true class y and
    group. Parameters as in `demographic_parity`.
    """
    return _parity("equalized_odds", columns, max_gap, versus)


def equal_opportunity(*columns: str, max_gap: float, positive: Any = 1, versus: str = "rest") -> Parity:
    """Limit how far the true positive rate, ``P(positive | label=positive & group)``, may differ.

    `positive` is the class that counts as the good outcome; other parameters as in `demographic_parity`.
    """
    return _parity("equal_opportunity", columns, max_gap, versus, positive)


def predictive_equality(*columns: str, max_gap: float, positive: Any = 1, versus: str = "rest") -> Parity:
    """Limit how far the false positive rate, ``P(positive | label!=positive & group)``, may differ.

    Parameters as in `equal_opportunity`.
    """
    return _parity("predictive_equality", columns, max_gap, versus, positive)


def error_rate_parity(*columns: str, max_gap: float, versus: str = "rest") -> Parity:
    """Limit how far the error rate, the share of a group's rows predicted wrongly, may differ.

    Parameters as in `demographic_parity`.
    """
    return _parity("error_rate_parity", columns, max_gap, versus)


def false_negative_rate(max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Limit the share of rows of class `positive` that are predicted anything else.

    Parameters
    ----------
    max_rate : float in [0, 1]
    positive
        The class meant; any class of a problem with many.
    by : column or columns
        Bound the rate in every group of these columns (crossed) rather than overall.
    """
    return _limit("false_negative_rate", None, max_rate, positive, by)


def false_positive_rate(max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Limit the share of rows of other classes that are predicted `positive`; see `false_negative_rate`."""
    return _limit("false_positive_rate", None, max_rate, positive, by)


def true_positive_rate(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Demand that a share of the rows of class `positive` be predicted so; see `false_negative_rate`."""
    return _limit("true_positive_rate", min_rate, None, positive, by)


def true_negative_rate(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Demand a share of rows of other classes not predicted `positive`; see `false_negative_rate`."""
    return _limit("true_negative_rate", min_rate, None, positive, by)


def precision(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Demand a share of true ones among the rows predicted `positive`; see `false_negative_rate`."""
    return _limit("precision", min_rate, None, positive, by)


def false_discovery_rate(max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Limit:
    """Limit the share of false ones among the rows predicted `positive`; see `false_negative_rate`."""
    return _limit("false_discovery_rate", None, max_rate, positive, by)


def positive_rate(
    min_rate: float | None = None,
    max_rate: float | None = None,
    positive: Any = 1,
    by: str | Iterable[str] = (),
) -> Limit:
    """Bound the share of rows predicted `positive` from below, above, or both; see `false_negative_rate`."""
    if min_rate is None and max_rate is None:
        raise InvalidInput("positive_rate needs min_rate=, max_rate= or both, got neither")
    return _limit("positive_rate", min_rate, max_rate, positive, by)


def paper_false_negative_rate(max_rate: float, by: str | Iterable[str] = ()) -> Limit:
    """Limit, for every class k, the share of rows of other classes that are predicted k.

    This is what the RaCO-DP paper calls its false negative rate; for two classes and k = 0 it is the usual
    one.
    """
    return _limit("paper_false_negative_rate", None, max_rate, None, by)


def flatten(constraints: Any, domain: Domain) -> Iterator[Constraint]:
    """Yield the constraints of any nesting of lists, families and constraints; None is none."""
    if isinstance(constraints, Constraint):
        yield constraints
    elif isinstance(constraints, Family):
        yield from constraints.expand(domain)
    elif isinstance(constraints, Constraints | list | tuple | set | frozenset | Iterator):
        for item in constraints:
            yield from flatten(item, domain)
    elif constraints is not None:
        raise InvalidType(_not_a_constraint(constraints))


def _refuse_too_many(count: int, family: Family) -> None:
    if count > MAX_CONSTRAINTS:
        raise InvalidInput(
            f"{family!r} expands to {count:,} constraints, more than {MAX_CONSTRAINTS:,}; "
            "name fewer columns, merge small groups, or compare with versus='rest' or 'everyone'"
        )


def _as_errors(bounds: Constraints, left: Predicate, right: Predicate) -> Iterator[Constraint]:
    """Name an error gap as such, rather than by its one term per class."""
    for bound in bounds:
        yield bound.named(
            f"error({left.name}) - error({right.name}) {bound.sense} {show_number(bound.bound)}"
        )


def _parity(kind: str, columns: tuple[str, ...], max_gap: float, versus: str, positive: Any = None) -> Parity:
    gap = _validate.non_negative(max_gap=max_gap)
    if gap > 1:
        raise InvalidInput(
            f"max_gap must be at most 1, got {max_gap!r}: rates are shares, 0.05 is a gap of five points"
        )
    _validate.one_of(VERSUS, versus=versus)
    chosen = None if positive is None else scalar(positive=positive)
    return Parity(kind, _column_names("columns", columns), gap, versus, chosen)


def _limit(kind: str, low: float | None, high: float | None, positive: Any, by: str | Iterable[str]) -> Limit:
    low = None if low is None else _unit(min_rate=low)
    high = None if high is None else _unit(max_rate=high)
    if low is not None and high is not None and low > high:
        raise InvalidInput(f"min_rate must be at most max_rate, got {low:g} and {high:g}")
    if not isinstance(by, Iterable):
        raise InvalidType(f"by must be the name of a column, or several names, got {by!r}")
    chosen = None if kind == "paper_false_negative_rate" else scalar(positive=positive)
    return Limit(kind, low, high, chosen, _column_names("by", (by,) if isinstance(by, str) else tuple(by)))


def _unit(**argument: Any) -> float:
    ((name, value),) = argument.items()
    number = _validate.real(**argument)
    if not 0 <= number <= 1:
        raise InvalidInput(f"{name} must be between 0 and 1, got {value!r}")
    return number


def _column_names(what: str, columns: tuple[Any, ...]) -> tuple[str, ...]:
    for column in columns:
        if not isinstance(column, str):
            raise InvalidType(f"{what} must be column names, got {column!r}; the bound goes in by keyword")
    if len(set(columns)) < len(columns):
        raise InvalidInput(f"{what} must name each column once, got {list_values(columns)}")
    return columns


def _not_a_constraint(thing: Any) -> str:
    if isinstance(thing, bool):
        return (
            "constraints must be rate constraints, got a truth value: == compares declarations; "
            "for an equality write rate.between(b, b)"
        )
    if isinstance(thing, Expression | Magnitude | Rows | Predicate):
        return f"constraints must be bounds, got {thing!r}; compare a rate with a number: rate(1) <= 0.2"
    return f"constraints must be rate constraints, families or lists of them, got {type(thing).__name__}"
