"""Constraint families: parity between groups, and bounds on the usual rates.

A family is a declaration such as "demographic parity by sex, gap at most 0.05". Which constraints it stands for
depends on the classes and the groups, so it is expanded against a public `Domain`.

>>> people = Domain(classes=(0, 1), columns={"sex": ("Female", "Male")})
>>> family = demographic_parity("sex", max_gap=0.05)
>>> family
demographic_parity('sex', max_gap=0.05)
>>> for constraint in family.expand(people):
...     print(constraint)
P(1 | sex=Female) - P(1 | sex!=Female) <= 0.05
P(1 | sex=Female) - P(1 | sex!=Female) >= -0.05
>>> print(family.name)
demographic_parity(sex) <= 0.05
>>> print(family.describe(people))
Female and Male are predicted '1' at rates that differ by at most 5 points.

To add a family, write one class: it defines the formula (the constraints it stands for), the syntax in Python and in
constraint text, the description in words, and the data of its plot. Subclass `GapFamily` (a gap between groups),
`RateFamily` (a bounded rate) or `Family`, and register the class. Text, compilation, metrics and reports then know it.

>>> @register_family
... class AbstentionParity(GapFamily):
...     kind = "abstention_parity"
...     measured = "are predicted 'abstain'"
...     def measures(self, domain):
...         return [lambda subset: rate("abstain", where=subset)]
>>> AbstentionParity("sex", max_gap=0.1)
abstention_parity('sex', max_gap=0.1)
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from ratewise import _validate
from ratewise.constraints.domain import Domain, Numeric, is_word, list_values, scalar, show_number
from ratewise.constraints.predicates import Member, Predicate, conjunction, everyone, label
from ratewise.constraints.rates import Constraint, Expression, Term, rate
from ratewise.exceptions import InvalidInput, InvalidType

# ------------------------------------------------------------------------------- base class and registry


MAX_CONSTRAINTS = 1_000_000
MAX_GROUPS = 1_000_000
VERSUS = {
    "rest": "each group compared with everybody else",
    "everyone": "each group compared with everyone",
    "pairwise": "every two groups compared",
}


class NoGroups(InvalidInput):
    """A family has no groups on a domain, or nothing to compare them with."""


Measure = Callable[[Predicate], Expression]
"""A rate as a function of the group in which it is taken."""

Names = Mapping[tuple[str | None, Any], str]
"""Names of group values, by column and value, and of classes, by None and value."""

_TEXT_OPTIONS = frozenset(("label", "positive", "by", "versus", "max_gap", "max_rate", "min_rate"))
_TEXT_WORDS = frozenset(("everyone", "nobody", "and", "or", "not"))


@dataclass(frozen=True)
class PlotData:
    """What to plot for a family: one rate per point, and what is allowed.

    Attributes
    ----------
    title, axis : str
    points : tuple of (str, str, Expression)
        The series (which rate), the group, and the rate.
    low, high : float or None
        Bounds on each rate.
    gap : float or None
        Largest allowed difference between the rates of one series.
    """

    title: str
    axis: str
    points: tuple[tuple[str, str, Expression], ...]
    low: float | None = None
    high: float | None = None
    gap: float | None = None


class Family(ABC):
    """A declaration that stands for constraints on a domain; immutable.

    Class attributes define the syntax, in Python and in text. The bounds are ``<=`` if the family has an
    `upper` parameter, ``>=`` if it has a `lower` one.

    Attributes
    ----------
    kind : str
        Name of the family.
    short_names : tuple of str
        Further names in text.
    lower, upper : str or None
        Names of the parameters that hold the bounds.
    options : mapping of str to value
        Further parameters and their defaults.
    one_rate : bool
        Whether the family bounds one rate, so that its name can stand for that rate in text; see `rate_in`.
    by_keyword : bool
        Whether columns are given as ``by=`` (text: ``column=*``); otherwise they come first, without keyword.
    columns : tuple of str
        The columns whose values make the groups, crossed.
    low, high : float or None
        The bounds.
    """

    kind: ClassVar[str] = ""
    short_names: ClassVar[tuple[str, ...]] = ()
    lower: ClassVar[str | None] = None
    upper: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    by_keyword: ClassVar[bool] = False
    one_rate: ClassVar[bool] = False

    columns: tuple[str, ...]
    low: float | None
    high: float | None
    _settings: dict[str, Any]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        given = dict(keywords)
        columns: Any = arguments
        if self.by_keyword:
            names = (*self.bounds(), *self.options, "by")
            if len(arguments) > len(names):
                raise InvalidType(f"{self.kind} takes at most {len(names)} arguments, got {len(arguments)}")
            given = {**dict(zip(names, arguments, strict=False)), **given}
            columns = given.pop("by", ())
        low, high = (given.pop(name, None) if name else None for name in (self.lower, self.upper))
        self._fill(columns, low, high, given)

    @classmethod
    def make(
        cls: type[_Kind],
        columns: Any = (),
        low: float | None = None,
        high: float | None = None,
        **options: Any,
    ) -> _Kind:
        """Return a family from its columns, its bounds and its options, whatever their Python names."""
        made = cls.__new__(cls)
        made._fill(columns, low, high, options)
        return made

    def _fill(self, columns: Any, low: Any, high: Any, options: dict[str, Any]) -> None:
        unknown = [name for name in options if name not in self.options]
        if unknown:
            known = ", ".join((*self.bounds(), *self.options))
            raise InvalidType(f"{self.kind} has no argument {unknown[0]!r}; it has: {known}")
        if low is None and high is None:
            wanted = " or ".join(f"{name}=" for name in self.bounds())
            raise InvalidInput(f"{self.kind} needs a bound: {wanted}")
        low = None if low is None else self.check_bound(**{str(self.lower): low})
        high = None if high is None else self.check_bound(**{str(self.upper): high})
        if low is not None and high is not None and low > high:
            raise InvalidInput(f"{self.lower} must be at most {self.upper}, got {low:g} and {high:g}")
        settings = {**self.options, **options}
        put = object.__setattr__
        put(self, "columns", _column_names("by" if self.by_keyword else "columns", columns))
        put(self, "low", low)
        put(self, "high", high)
        put(self, "_settings", {name: self.check_option(name, value) for name, value in settings.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a family is immutable, cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.columns, self.low, self.high, self._settings)

    def _key(self) -> tuple[Any, ...]:
        return self.kind, self.columns, self.low, self.high, tuple(self._settings.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Family) and type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __bool__(self) -> bool:
        raise InvalidType(f"{self!r} has no truth value; give several families as a list")

    # -------------------------------------------------------------------------------- definition

    @abstractmethod
    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the constraints that the family stands for on this domain."""

    @abstractmethod
    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence.

        Parameters
        ----------
        domain : Domain, optional
            The classes and groups, so that the sentence can name them.
        names : mapping of (column, value) to str, optional
            Names of group values, and of classes (column None).
        """

    def plot_data(self, domain: Domain) -> PlotData | None:  # noqa: ARG002 - subclasses read it
        """Return what a report plots for the family; None: nothing."""
        return None

    @classmethod
    def check_bound(cls, **bound: Any) -> float:
        """Return a bound as a float; `InvalidInput` if it is not between 0 and 1."""
        ((name, value),) = bound.items()
        number = _validate.real(**bound)
        if not 0 <= number <= 1:
            raise InvalidInput(f"{name} must be between 0 and 1, got {value!r}")
        return number

    @classmethod
    def check_option(cls, name: str, value: Any) -> Any:
        """Return the value of an option; `InvalidInput` or `InvalidType` if it cannot be used."""
        if name == "versus":
            return _validate.one_of(tuple(VERSUS), versus=value)
        return scalar(**{name: value})

    @classmethod
    def rate_in(cls, options: Mapping[str, Any], subset: Predicate) -> Expression:
        """Return the one rate that the family bounds, in a subset; for families with `one_rate`."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------ syntax

    @classmethod
    def bounds(cls) -> tuple[str, ...]:
        """Return the names of the parameters that hold bounds."""
        return tuple(name for name in (cls.lower, cls.upper) if name)

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the options."""
        return dict(self._settings)

    @property
    def positive(self) -> Any:
        """The class that counts as positive; None for families without one."""
        return self._settings.get("positive")

    def _set_options(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in self._settings.items() if value != self.options[name])

    def __repr__(self) -> str:
        bounds = [(self.lower, self.low), (self.upper, self.high)]
        named = len(self.bounds()) > 1 or not self.by_keyword
        arguments = [
            f"{name}={show_number(b)}" if named else show_number(b) for name, b in bounds if b is not None
        ]
        arguments += [f"{name}={value!r}" for name, value in self._set_options()]
        if not self.by_keyword:
            arguments = [*map(repr, self.columns), *arguments]
        elif self.columns:
            arguments.append(f"by={self.columns if len(self.columns) > 1 else self.columns[0]!r}")
        return f"{self.kind}({', '.join(arguments)})"

    @property
    def name(self) -> str:
        """The family as constraint text, such as ``demographic_parity(sex) <= 0.05``."""
        arguments = [
            f"{'label' if self.by_keyword and name == 'positive' else name}={value!r}"
            for name, value in self._set_options()
        ]
        if not self.by_keyword:
            arguments = [*map(_column_text, self.columns), *arguments]
        elif all(is_word(column) and column not in self._taken() for column in self.columns):
            arguments += [f"{column}=*" for column in self.columns]
        else:
            arguments.append(f"by=[{', '.join(map(repr, self.columns))}]")
        text = f"{self.kind}({', '.join(arguments)})"
        if self.low is not None and self.high is not None:
            return f"{text}.between({show_number(self.low)}, {show_number(self.high)})"
        if self.low is not None:
            return f"{text} >= {show_number(self.low)}"
        return f"{text} <= {show_number(self.high or 0.0)}"

    def _taken(self) -> frozenset[str]:
        return _TEXT_OPTIONS.union(self.bounds(), self.options)

    def __str__(self) -> str:
        return self.name


_Kind = TypeVar("_Kind", bound=Family)
_REGISTRY: dict[str, type[Family]] = {}
_SHORT: dict[str, str] = {}


def register_family(family: type[_Kind]) -> type[_Kind]:
    """Make a family known to constraint text and to everything that reads constraints; a class decorator.

    Raises
    ------
    InvalidInput
        The class has no `kind` that is an identifier, no bound, or a name that another family has.
    """
    for name in (family.kind, *family.short_names):
        if not (isinstance(name, str) and is_word(name)):
            raise InvalidInput(f"the kind of a family must be an identifier, got {name!r}")
        taken = _REGISTRY.get(_SHORT.get(name, name))
        if taken is not None and (taken.__module__, taken.__qualname__) != (
            family.__module__,
            family.__qualname__,
        ):
            raise InvalidInput(f"there is a family {name!r} already: {taken.__qualname__}")
    if not family.bounds():
        raise InvalidInput(f"the family {family.kind!r} needs lower= or upper=, the name of its bound")
    _REGISTRY[family.kind] = family
    _SHORT.update(dict.fromkeys(family.short_names, family.kind))
    return family


def family_class(name: str) -> type[Family] | None:
    """Return the registered family with this name or short name, None if there is none."""
    return _REGISTRY.get(_SHORT.get(name, name))


def family_names() -> list[str]:
    """Return the names and short names of all registered families."""
    return sorted((*_REGISTRY, *_SHORT))


def _rebuilt(cls: type[Family], columns: Any, low: Any, high: Any, settings: dict[str, Any]) -> Family:
    return cls.make(columns, low, high, **settings)


# ------------------------------------------------------------------------------ the two usual shapes


class GapFamily(Family):
    """Bounds the absolute difference of rates between groups, for every group and every measure.

    Define `measures`, the rates to compare, and `measured`, the words for them: the sentence is
    "<groups> <measured> at rates that differ by at most 5 points". ``{class}`` stands for the class whose
    rate is compared and ``{positive}`` for the option of that name; `among` restricts the groups in words.
    """

    upper = "max_gap"
    options = MappingProxyType({"versus": "rest"})
    measured: ClassVar[str] = ""
    among: ClassVar[str] = ""

    @abstractmethod
    def measures(self, domain: Domain) -> list[Measure]:
        """Return the rates that are compared between groups."""

    @property
    def max_gap(self) -> float:
        """Largest allowed gap."""
        return self.high or 0.0

    @property
    def versus(self) -> str:
        """What a group is compared with: "rest", "everyone" or "pairwise"."""
        return self._settings["versus"]  # type: ignore[no-any-return]

    @classmethod
    def check_bound(cls, **bound: Any) -> float:
        """Return the gap as a float; `InvalidInput` if it is not between 0 and 1."""
        ((name, value),) = bound.items()
        gap = _validate.non_negative(**bound)
        if gap > 1:
            raise InvalidInput(
                f"{name} must be at most 1, got {value!r}: rates are shares, 0.05 is a gap of five points"
            )
        return gap

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return an upper and a lower bound on every gap, each comparison once."""
        groups = crossed(self.columns, domain)
        if len(groups) + domain.other < 2:
            raise NoGroups(f"{self!r} compares groups, but the domain declares only one: {groups[0].name}")
        measures = self.measures(domain)
        comparisons = len(groups) * (len(groups) - 1) // 2 if self.versus == "pairwise" else len(groups)
        _refuse_too_many(2 * comparisons * len(measures), self)
        return tuple(self._bounds(groups, measures))

    def _bounds(self, groups: list[Predicate], measures: list[Measure]) -> Iterator[Constraint]:
        known: dict[Predicate, list[Expression]] = {}
        for left, right in _pairs(groups, self.versus):
            for side in (left, right):
                if side not in known:
                    known[side] = [measure(side) for measure in measures]
            for first, second in zip(known[left], known[right], strict=True):
                for constraint in abs(first - second) <= self.max_gap:
                    yield self.named(constraint, left, right)

    def named(self, constraint: Constraint, left: Predicate, right: Predicate) -> Constraint:  # noqa: ARG002
        """Return the constraint on the gap between two groups, under the name that reports show."""
        return constraint

    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence."""
        show = _shower(names)
        groups = _listed_groups(self.columns, domain)
        if len(groups) == 2:
            subject, versus = " and ".join(show(self.columns[0], value) for value in groups), ""
        else:
            by = f" by {' and '.join(self.columns)}" if self.columns else ""
            subject, versus = f"Groups{by}", f", {VERSUS[self.versus]}"
        classes = domain.classes if domain is not None else ()
        compared = f"'{show(None, classes[1])}'" if len(classes) == 2 else "each class"
        words = {"positive": f"'{show(None, self.positive)}'", "class": compared}
        verb = f"{self.among} {self.measured}".strip().format(**words)
        return f"{subject} {verb} at rates that differ by at most {_points(self.max_gap)}{versus}."

    def plot_data(self, domain: Domain) -> PlotData:
        """Return the rates of each group, and the gap that is allowed between them."""
        points = [
            (measure(everyone).name, group.name, measure(group))
            for measure in self.measures(domain)
            for group in crossed(self.columns, domain)
        ]
        return PlotData(self.describe(domain), "rate", tuple(points), gap=self.max_gap)


class RateFamily(Family):
    """Bounds one rate, for everyone or in every group.

    Define `formula`, the rate as a function of the class `positive` and a subset (or `rate_in`, for other
    options), and the sentence "At most 20% of <population> <event>".
    """

    options = MappingProxyType({"positive": 1})
    by_keyword = True
    one_rate = True
    population: ClassVar[str] = "rows"
    event: ClassVar[str] = ""
    formula: ClassVar[Any]  # (positive class, subset) -> Expression

    @classmethod
    def rate_in(cls, options: Mapping[str, Any], subset: Predicate) -> Expression:
        """Return the rate that the family bounds, in a subset."""
        found: Expression = cls.formula(options["positive"], subset)
        return found

    def rates(self, domain: Domain) -> list[Measure]:
        """Return the rates that are bounded; one, unless a family overrides this."""
        options = {**self._settings, "positive": positive_class(domain, self.positive)}
        return [lambda subset: self.rate_in(options, subset)]

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the bounds, for everyone or for each group."""
        groups = crossed(self.columns, domain) if self.columns else [everyone]
        rates = self.rates(domain)
        _refuse_too_many(2 * len(groups) * len(rates), self)
        return tuple(bound for group in groups for one in rates for bound in self._bounds(one(group)))

    def _bounds(self, expression: Expression) -> Iterator[Constraint]:
        if self.low is not None:
            yield expression >= self.low
        if self.high is not None:
            yield expression <= self.high

    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence."""
        positive = self.positive
        if domain is not None and positive in domain.classes:
            positive = domain.classes[domain.code(None, positive)]
        words = {"positive": f"'{_shower(names)(None, positive)}'"}
        population, event = self.population.format(**words), self.event.format(**words)
        where = f", in every group by {' and '.join(self.columns)}" if self.columns else ""
        return f"{amount_of(self.low, self.high)} of the {population} {event}{where}."

    def plot_data(self, domain: Domain) -> PlotData:
        """Return the rate of each group, and its bounds."""
        groups = crossed(self.columns, domain) if self.columns else [everyone]
        points = [
            (one(everyone).name, group.name, one(group)) for one in self.rates(domain) for group in groups
        ]
        return PlotData(self.describe(domain), "rate", tuple(points), self.low, self.high)


# --------------------------------------------------------------------------------------------- helpers


def crossed(columns: tuple[str, ...], domain: Domain) -> list[Predicate]:
    """Return one predicate per combination of the columns' declared values; no column means all of them."""
    columns = columns or tuple(domain.columns)
    if not columns:
        raise NoGroups("the family needs groups, but the domain declares no column")
    listed = [_listed_values(column, domain) for column in columns]
    if not all(listed):
        raise NoGroups(f"the family needs groups, but a column of {list_values(columns)} has no values")
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


def _pairs(groups: list[Predicate], versus: str) -> Iterator[tuple[Predicate, Predicate]]:
    """Yield each group with what it is compared with, no comparison twice."""
    if versus == "pairwise":
        yield from itertools.combinations(groups, 2)
    elif versus == "everyone":
        yield from ((subset, everyone) for subset in groups)
    else:
        # with two groups the rest of the second is the first: the same comparison again
        yield from ((subset, ~subset) for subset in (groups[:1] if len(groups) == 2 else groups))


def positive_class(domain: Domain, positive: Any) -> Any:
    """Return the class of the domain that equals `positive`; an error if there is none."""
    known = domain.classes
    if positive not in known:
        raise InvalidInput(
            f"positive={positive!r} is not one of the classes: {list_values(known)}; pass positive=..."
        )
    return known[domain.code(None, positive)]


def _refuse_too_many(count: int, family: Family) -> None:
    if count > MAX_CONSTRAINTS:
        raise InvalidInput(
            f"{family!r} expands to {count:,} constraints, more than {MAX_CONSTRAINTS:,}; "
            "name fewer columns, merge small groups, or compare with versus='rest' or 'everyone'"
        )


def _column_names(what: str, columns: Any) -> tuple[str, ...]:
    if not isinstance(columns, Iterable):
        raise InvalidType(f"{what} must be the name of a column, or several names, got {columns!r}")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for column in names:
        if not isinstance(column, str):
            raise InvalidType(f"{what} must be column names, got {column!r}; the bound goes in by keyword")
    if len(set(names)) < len(names):
        raise InvalidInput(f"{what} must name each column once, got {list_values(names)}")
    return names


def _column_text(name: str) -> str:
    return name if is_word(name) and name not in _TEXT_WORDS else repr(name)


def _listed_groups(columns: tuple[str, ...], domain: Domain | None) -> tuple[Any, ...]:
    """Return the values of the one column that makes the groups, if they are few enough to be named."""
    if domain is None or len(columns) != 1 or columns[0] not in domain.columns:
        return ()
    values = domain.values(columns[0])
    return () if isinstance(values, Numeric) else values


def _shower(names: Names | None) -> Callable[[str | None, Any], str]:
    return lambda column, value: str((names or {}).get((column, value), value))


def percent(share: float) -> str:
    """Return a share in percent, without the digits that rounding of floats adds."""
    return show_number(float(f"{100 * share:.10g}"))


def _points(gap: float) -> str:
    shown = percent(gap)
    return f"{shown} point" if shown == "1" else f"{shown} points"


def amount_of(low: float | None, high: float | None) -> str:
    """Return the bounds of a rate in words."""
    if low is not None and high is not None:
        return f"Between {percent(low)}% and {percent(high)}%"
    return f"At least {percent(low)}%" if low is not None else f"At most {percent(high or 0.0)}%"


# ---------------------------------------------------------------------------------- gaps between groups


@register_family
class DemographicParity(GapFamily):
    """``|P(k | group) - P(k | other)| <= max_gap`` for every class k; see `demographic_parity`."""

    kind = "demographic_parity"
    measured = "are predicted {class}"

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the rate of each prediction."""
        return [_share(k) for k in _sufficient_classes(domain)]


@register_family
class EqualizedOdds(GapFamily):
    """``|P(k | label=y & group) - P(k | label=y & other)| <= max_gap``; see `equalized_odds`."""

    kind = "equalized_odds"
    among = "of the same true class"
    measured = "are predicted {class}"

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the rate of each prediction among the rows of each true class."""
        return [_share(k, label(truth)) for truth in domain.classes for k in _sufficient_classes(domain)]


class _PositiveGapFamily(GapFamily):
    options = MappingProxyType({"positive": 1, "versus": "rest"})


@register_family
class EqualOpportunity(_PositiveGapFamily):
    """Bounds the gap of true positive rates; see `equal_opportunity`."""

    kind = "equal_opportunity"
    among = "whose true class is {positive}"
    measured = "are predicted {positive}"

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the true positive rate."""
        k = positive_class(domain, self.positive)
        return [_share(k, label(k))]


@register_family
class PredictiveEquality(_PositiveGapFamily):
    """Bounds the gap of false positive rates; see `predictive_equality`."""

    kind = "predictive_equality"
    among = "whose true class is not {positive}"
    measured = "are predicted {positive}"

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the false positive rate."""
        k = positive_class(domain, self.positive)
        return [_share(k, ~label(k))]


@register_family
class ErrorRateParity(GapFamily):
    """Bounds the gap of error rates; see `error_rate_parity`."""

    kind = "error_rate_parity"
    measured = "are predicted wrongly"

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the error rate, as 1 minus the rate of correct predictions, which has fewer terms."""

        def errors(subset: Predicate) -> Expression:
            right = ((Term(k, label(k) & subset, subset, False), -1.0) for k in domain.classes)
            return Expression(right, 1.0)

        return [errors]

    def named(self, constraint: Constraint, left: Predicate, right: Predicate) -> Constraint:
        """Return the constraint under the name of error rates, rather than of one term per class."""
        bound = f"{constraint.sense} {show_number(constraint.bound)}"
        return constraint.named(f"error({left.name}) - error({right.name}) {bound}")


# --------------------------------------------------------------------------------------- bounded rates


@register_family
class FalseNegativeRate(RateFamily):
    """``1 - P(positive | label=positive) <= max_rate``; see `false_negative_rate`."""

    kind = "false_negative_rate"
    upper = "max_rate"
    short_names = ("fnr",)
    population = "rows whose true class is {positive}"
    event = "are predicted another class"
    formula = staticmethod(lambda k, subset: 1 - rate(k, where=label(k) & subset))


@register_family
class FalsePositiveRate(RateFamily):
    """``P(positive | label!=positive) <= max_rate``; see `false_positive_rate`."""

    kind = "false_positive_rate"
    upper = "max_rate"
    short_names = ("fpr",)
    population = "rows whose true class is not {positive}"
    event = "are predicted {positive}"
    formula = staticmethod(lambda k, subset: rate(k, where=~label(k) & subset))


@register_family
class TruePositiveRate(RateFamily):
    """``P(positive | label=positive) >= min_rate``; see `true_positive_rate`."""

    kind = "true_positive_rate"
    lower = "min_rate"
    short_names = ("tpr",)
    population = "rows whose true class is {positive}"
    event = "are predicted {positive}"
    formula = staticmethod(lambda k, subset: rate(k, where=label(k) & subset))


@register_family
class TrueNegativeRate(RateFamily):
    """``1 - P(positive | label!=positive) >= min_rate``; see `true_negative_rate`."""

    kind = "true_negative_rate"
    lower = "min_rate"
    short_names = ("tnr",)
    population = "rows whose true class is not {positive}"
    event = "are predicted another class than {positive}"
    formula = staticmethod(lambda k, subset: 1 - rate(k, where=~label(k) & subset))


@register_family
class Precision(RateFamily):
    """``P(label=positive | predicted positive) >= min_rate``; see `precision`."""

    kind = "precision"
    lower = "min_rate"
    population = "rows predicted {positive}"
    event = "have that true class"
    formula = staticmethod(lambda k, subset: rate(k, where=label(k), out_of=subset))


@register_family
class FalseDiscoveryRate(RateFamily):
    """``P(label!=positive | predicted positive) <= max_rate``; see `false_discovery_rate`."""

    kind = "false_discovery_rate"
    upper = "max_rate"
    short_names = ("fdr",)
    population = "rows predicted {positive}"
    event = "have another true class"
    formula = staticmethod(lambda k, subset: rate(k, where=~label(k), out_of=subset))


@register_family
class PositiveRate(RateFamily):
    """``min_rate <= P(positive) <= max_rate``; see `positive_rate`."""

    kind = "positive_rate"
    lower, upper = "min_rate", "max_rate"
    event = "are predicted {positive}"
    formula = staticmethod(lambda k, subset: rate(k, where=subset))


@register_family
class PaperFalseNegativeRate(RateFamily):
    """``P(k | label!=k) <= max_rate`` for every class k; see `paper_false_negative_rate`."""

    kind = "paper_false_negative_rate"
    upper = "max_rate"
    options = MappingProxyType({})
    one_rate = False
    population = "rows of other classes"
    event = "are predicted a class, for every class"

    def rates(self, domain: Domain) -> list[Measure]:
        """Return, for every class, its rate among the rows of other classes."""
        return [_share(k, ~label(k)) for k in domain.classes]


# ------------------------------------------------------------------------------------- what users call


def demographic_parity(*columns: str, max_gap: float, versus: str = "rest") -> DemographicParity:
    """Bound how far the rate of every prediction may differ between groups.

    ``|P(k | group) - P(k | other)| <= max_gap`` for every class k and every group. With two classes the rates
    of one determine those of the other, and with two groups "against the rest" is one comparison; such
    duplicates are left out.

    Parameters
    ----------
    *columns : str
        Columns whose values make the groups; several are crossed, none means all declared columns, crossed.
    max_gap : float
        Largest allowed gap, from 0 to 1.
    versus : "rest", "everyone" or "pairwise"
        What a group is compared with: all rows outside it, all rows, or every other group in turn.
    """
    return DemographicParity(*columns, max_gap=max_gap, versus=versus)


def equalized_odds(*columns: str, max_gap: float, versus: str = "rest") -> EqualizedOdds:
    """Bound the gaps of demographic parity among the rows of each true class.

    ``|P(k | label=y & group) - P(k | label=y & other)| <= max_gap`` for every prediction k, true class y and
    group. Parameters as in `demographic_parity`.
    """
    return EqualizedOdds(*columns, max_gap=max_gap, versus=versus)


def equal_opportunity(
    *columns: str, max_gap: float, positive: Any = 1, versus: str = "rest"
) -> EqualOpportunity:
    """Bound how far the true positive rate, ``P(positive | label=positive & group)``, may differ.

    `positive` is the class that counts as the good outcome; other parameters as in `demographic_parity`.
    """
    return EqualOpportunity(*columns, max_gap=max_gap, positive=positive, versus=versus)


def predictive_equality(
    *columns: str, max_gap: float, positive: Any = 1, versus: str = "rest"
) -> PredictiveEquality:
    """Bound how far the false positive rate, ``P(positive | label!=positive & group)``, may differ.

    Parameters as in `equal_opportunity`.
    """
    return PredictiveEquality(*columns, max_gap=max_gap, positive=positive, versus=versus)


def error_rate_parity(*columns: str, max_gap: float, versus: str = "rest") -> ErrorRateParity:
    """Bound how far the error rate, the share of a group's rows predicted wrongly, may differ.

    Parameters as in `demographic_parity`.
    """
    return ErrorRateParity(*columns, max_gap=max_gap, versus=versus)


def false_negative_rate(
    max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()
) -> FalseNegativeRate:
    """Bound the share of rows of class `positive` that are predicted another class.

    Parameters
    ----------
    max_rate : float in [0, 1]
    positive
        The class in question; any class of a problem with many.
    by : column or columns
        Bound the rate in every group of these columns (crossed) rather than overall.
    """
    return FalseNegativeRate(max_rate, positive, by)


def false_positive_rate(
    max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()
) -> FalsePositiveRate:
    """Bound the share of rows of other classes that are predicted `positive`; see `false_negative_rate`."""
    return FalsePositiveRate(max_rate, positive, by)


def true_positive_rate(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> TruePositiveRate:
    """Bound from below the share of rows of class `positive` that are predicted so."""
    return TruePositiveRate(min_rate, positive, by)


def true_negative_rate(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> TrueNegativeRate:
    """Bound from below the share of rows of other classes that are not predicted `positive`."""
    return TrueNegativeRate(min_rate, positive, by)


def precision(min_rate: float, positive: Any = 1, by: str | Iterable[str] = ()) -> Precision:
    """Bound from below the share of rows of class `positive` among those predicted so."""
    return Precision(min_rate, positive, by)


def false_discovery_rate(
    max_rate: float, positive: Any = 1, by: str | Iterable[str] = ()
) -> FalseDiscoveryRate:
    """Bound the share of rows of other classes among those predicted `positive`."""
    return FalseDiscoveryRate(max_rate, positive, by)


def positive_rate(
    min_rate: float | None = None,
    max_rate: float | None = None,
    positive: Any = 1,
    by: str | Iterable[str] = (),
) -> PositiveRate:
    """Bound the share of rows predicted `positive` from below, above, or both."""
    return PositiveRate(min_rate, max_rate, positive, by)


def paper_false_negative_rate(max_rate: float, by: str | Iterable[str] = ()) -> PaperFalseNegativeRate:
    """Bound, for every class k, the share of rows of other classes that are predicted k.

    The RaCO-DP paper calls this the false negative rate; for two classes and k = 0 it is the usual one.
    """
    return PaperFalseNegativeRate(max_rate, by)


def _share(k: Any, within: Predicate = everyone) -> Measure:
    return lambda subset: rate(k, where=within & subset)


def _sufficient_classes(domain: Domain) -> tuple[Any, ...]:
    """Return the classes whose rates determine all gaps: for two classes, the second."""
    return domain.classes[1:] if len(domain.classes) == 2 else domain.classes
