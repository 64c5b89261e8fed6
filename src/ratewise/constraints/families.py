"""Constraint families: parity between groups, and bounds on the usual rates.

A family is a declaration such as "demographic parity by sex, gap at most 0.05". Which constraints it stands for
depends on the classes and the groups, so it is expanded against a public `Domain`.

>>> people = Domain(classes=(0, 1), columns={"sex": ("Female", "Male")})
>>> family = demographic_parity("sex", max_gap=0.05)
>>> print(*family.expand(people), sep=", ")
P(1 | sex=Female) - P(1 | sex!=Female) <= 0.05, P(1 | sex=Female) - P(1 | sex!=Female) >= -0.05
>>> print(family.name)
demographic_parity(sex) <= 0.05
>>> print(family.describe(people))
Female and Male are predicted '1' at rates that differ by at most 5 points.

A new family is one class that defines the formula, the syntax, the description and the rates to plot: subclass
`GapFamily`, `RateFamily` or `Family`, and register it. Text, compilation, metrics and reports then know it.

>>> @register_family
... class AbstentionParity(GapFamily):
...     kind, measured = "abstention_parity", "are predicted 'abstain'"
...     def measures(self, domain):
...         return [lambda subset: rate("abstain", where=subset)]
>>> AbstentionParity("sex", max_gap=0.1)
abstention_parity('sex', max_gap=0.1)
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec, TypeVar

from ratewise import _validate
from ratewise.constraints.domain import Domain, Numeric, is_word, list_values, scalar, show_number
from ratewise.constraints.rates import (
    Constraint,
    Expression,
    Predicate,
    Term,
    conjunction,
    everyone,
    group,
    label,
    rate,
)
from ratewise.exceptions import InvalidInput, InvalidType

MAX_CONSTRAINTS = 1_000_000
MAX_GROUPS = 1_000_000
VERSUS = {
    "rest": "each group compared with everybody else",
    "everyone": "each group compared with everyone",
    "pairwise": "every two groups compared",
}

Measure = Callable[[Predicate], Expression]
"""A rate as a function of the group in which it is taken."""

Names = Mapping[tuple[str | None, Any], str]
"""Names of group values, by column and value, and of classes, by None and value."""


class NoGroups(InvalidInput):
    """A family has no groups on a domain, or nothing to compare them with."""


@dataclass(frozen=True, init=False, repr=False)
class Family(ABC):
    """A declaration that stands for constraints on a domain; immutable.

    Class attributes define the syntax. `kind` is the name, `short_names` are further names in text, `lower` and
    `upper` name the parameters that hold the bounds, and `options` holds further parameters and their defaults.
    With `by_keyword`, columns are given as ``by=`` (text: ``column=*``); otherwise they come first. With
    `one_rate`, the name of the family can stand for that rate in text; see `rate_in`.

    Instances have `columns`, whose crossed values make the groups, the bounds `low` and `high`, and `settings`,
    the values of the options.
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
    settings: tuple[tuple[str, Any], ...]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        columns: Any = arguments
        if self.by_keyword:
            names = (*self.bounds(), *self.options, "by")
            if len(arguments) > len(names) or keywords.keys() & names[: len(arguments)]:
                given = f"got {len(arguments)} values and {', '.join(keywords) or 'no'} by keyword"
                raise InvalidType(f"{self.kind} takes each of {', '.join(names)} once, {given}")
            keywords = {**dict(zip(names, arguments, strict=False)), **keywords}
            columns = keywords.pop("by", ())
        low, high = (_checked_bound(name, keywords.pop(name or "", None)) for name in (self.lower, self.upper))
        for unknown in (name for name in keywords if name not in self.options):
            known = ", ".join((*self.bounds(), *self.options))
            raise InvalidType(f"{self.kind} has no argument {unknown!r}; it has: {known}")
        if low is None and high is None:
            wanted = " or ".join(f"{name}=" for name in self.bounds())
            raise InvalidInput(f"{self.kind} needs a bound: {wanted}")
        if low is not None and high is not None and low > high:
            raise InvalidInput(f"{self.lower} must be at most {self.upper}, got {low:g} and {high:g}")
        columns = _checked_columns("by" if self.by_keyword else "columns", columns)
        options = {**self.options, **keywords}.items()
        settings = tuple((name, self.check_option(name, value)) for name, value in options)
        vars(self).update(columns=columns, low=low, high=high, settings=settings)  # the class is frozen

    def __bool__(self) -> bool:
        raise InvalidType(f"{self!r} has no truth value; give several families as a list")

    @abstractmethod
    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the constraints that the family stands for on this domain."""

    @abstractmethod
    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence with the names of the classes and groups if given."""

    def measures(self, domain: Domain) -> list[Measure]:  # noqa: ARG002 - subclasses read it
        """Return the rates that are bounded or compared."""
        return []

    def groups(self, domain: Domain) -> list[Predicate]:
        """Return the groups; everyone for a bounded rate without columns."""
        return crossed(self.columns, domain) if self.columns or not self.by_keyword else [everyone]

    def plot_data(self, domain: Domain) -> list[tuple[str, str, Expression]]:
        """Return the rates that a report plots: the series (which rate), the group, and the rate."""
        measures = self.measures(domain)
        return [(m(everyone).name, g.name, m(g)) for m in measures for g in self.groups(domain)]

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

    @classmethod
    def bounds(cls) -> tuple[str, ...]:
        """Return the names of the parameters that hold bounds."""
        return tuple(name for name in (cls.lower, cls.upper) if name)

    @property
    def positive(self) -> Any:
        """The class that counts as positive; None for families without one."""
        return dict(self.settings).get("positive")

    def positive_in(self, domain: Domain) -> Any:
        """Return the class of the domain that equals `positive`."""
        if self.positive not in domain.classes:
            known = list_values(domain.classes)
            raise InvalidInput(f"positive={self.positive!r} is not one of the classes: {known}; pass positive=...")
        return domain.classes[domain.code(None, self.positive)]

    def _set_options(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in self.settings if value != self.options[name])

    def __repr__(self) -> str:
        named = len(self.bounds()) > 1 or not self.by_keyword
        bounds = [(name, b) for name, b in ((self.lower, self.low), (self.upper, self.high)) if b is not None]
        arguments = [f"{name}={show_number(b)}" if named else show_number(b) for name, b in bounds]
        arguments += [f"{name}={value!r}" for name, value in self._set_options()]
        if not self.by_keyword:
            arguments = [*map(repr, self.columns), *arguments]
        elif self.columns:
            arguments.append(f"by={self.columns if len(self.columns) > 1 else self.columns[0]!r}")
        return f"{self.kind}({', '.join(arguments)})"

    @property
    def name(self) -> str:
        """The family as constraint text, such as ``demographic_parity(sex) <= 0.05``."""
        words = {"positive": "label"} if self.by_keyword else {}
        arguments = [f"{words.get(name, name)}={value!r}" for name, value in self._set_options()]
        taken = ("label", "by", *self.bounds(), *self.options)
        if not self.by_keyword:
            plain = [c if is_word(c) and c not in ("everyone", "nobody") else repr(c) for c in self.columns]
            arguments = [*plain, *arguments]
        elif all(is_word(column) and column not in taken for column in self.columns):
            arguments += [f"{column}=*" for column in self.columns]
        else:
            arguments.append(f"by=[{', '.join(map(repr, self.columns))}]")
        text = f"{self.kind}({', '.join(arguments)})"
        low, high = ("" if bound is None else show_number(bound) for bound in (self.low, self.high))
        if low and high:
            return f"{text}.between({low}, {high})"
        return f"{text} >= {low}" if low else f"{text} <= {high}"

    def __str__(self) -> str:
        return self.name


_Kind = TypeVar("_Kind", bound=Family)
FAMILIES: dict[str, type[Family]] = {}
"""The registered families, by name and by short name."""


def register_family(family: type[_Kind]) -> type[_Kind]:
    """Make a family known to constraint text and to everything that reads constraints; a class decorator.

    Raises `InvalidInput` if the class has no `kind` that is an identifier, no bound, or another family's name.
    """
    names = (family.kind, *family.short_names)
    for name in names:
        if not (isinstance(name, str) and is_word(name)):
            raise InvalidInput(f"the kind of a family must be an identifier, got {name!r}")
        taken = FAMILIES.get(name, family)
        if (taken.__module__, taken.__qualname__) != (family.__module__, family.__qualname__):
            raise InvalidInput(f"there is a family {name!r} already: {taken.__qualname__}")
    if not family.bounds():
        raise InvalidInput(f"the family {family.kind!r} needs lower= or upper=, the name of its bound")
    FAMILIES.update(dict.fromkeys(names, family))
    return family


class GapFamily(Family):
    """Bounds the absolute difference of rates between groups, for every group and every measure.

    Define `measures` and the words for them: the sentence is "<groups> <measured> at rates that differ by at most
    5 points", where ``{class}`` stands for the class whose rate is compared and ``{positive}`` for the
    option of that name.
    """

    upper = "max_gap"
    options = MappingProxyType({"versus": "rest"})
    measured: ClassVar[str] = ""

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return an upper and a lower bound on every gap, each comparison once."""
        groups = self.groups(domain)
        if len(groups) + domain.other < 2:
            raise NoGroups(f"{self!r} compares groups, but the domain declares only one: {groups[0].name}")
        measures, versus, count = self.measures(domain), dict(self.settings)["versus"], len(groups)
        pairs: Iterable[tuple[Predicate, Predicate]] = ((group, everyone) for group in groups)
        if versus == "pairwise":
            count, pairs = count * (count - 1) // 2, itertools.combinations(groups, 2)
        elif versus == "rest":  # with two groups the rest of the second is the first: the same comparison
            pairs = ((group, ~group) for group in (groups[:1] if count == 2 else groups))
        _refuse_too_many(2 * count * len(measures), self)
        rates = functools.cache(lambda subset: [measure(subset) for measure in measures])
        return tuple(
            self.named(constraint, left, right)
            for left, right in pairs
            for first, second in zip(rates(left), rates(right), strict=True)
            for constraint in abs(first - second) <= self.high
        )

    def named(self, constraint: Constraint, left: Predicate, right: Predicate) -> Constraint:  # noqa: ARG002
        """Return the constraint on the gap between two groups, under the name that reports show."""
        return constraint

    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence."""
        values = domain.columns.get(self.columns[0], ()) if domain and len(self.columns) == 1 else ()
        if not isinstance(values, Numeric) and len(values) == 2:
            subject, versus = " and ".join(_shown(names, self.columns[0], value) for value in values), ""
        else:
            subject = f"Groups by {' and '.join(self.columns)}" if self.columns else "Groups"
            versus = f", {VERSUS[dict(self.settings)['versus']]}"
        classes = domain.classes if domain else ()
        compared = f"'{_shown(names, None, classes[1])}'" if len(classes) == 2 else "each class"
        positive, points = f"'{_shown(names, None, self.positive)}'", percent(self.high or 0.0)
        verb, unit = (
            self.measured.format(**{"positive": positive, "class": compared}),
            "point" + "s" * (points != "1"),
        )
        return f"{subject} {verb} at rates that differ by at most {points} {unit}{versus}."


class RateFamily(Family):
    """Bounds one rate, for everyone or in every group.

    Define `formula`, the rate as a function of the class `positive` and a subset (or `rate_in`, for other
    options), and the sentence "At most 20% of the <population> <event>".
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

    def measures(self, domain: Domain) -> list[Measure]:
        """Return the rates that are bounded; one, unless a family overrides this."""
        options = {**dict(self.settings), "positive": self.positive_in(domain)}
        return [lambda subset: self.rate_in(options, subset)]

    def expand(self, domain: Domain) -> tuple[Constraint, ...]:
        """Return the bounds, for everyone or for each group."""
        groups, measures = self.groups(domain), self.measures(domain)
        _refuse_too_many(2 * len(groups) * len(measures), self)
        rates = (measure(group) for group in groups for measure in measures)
        sides = [(">=", self.low), ("<=", self.high)]
        return tuple(Constraint(one, s, b) for one in rates for s, b in sides if b is not None)

    def describe(self, domain: Domain | None = None, names: Names | None = None) -> str:
        """Return what the family asks for, as a sentence."""
        known = domain is not None and self.positive in domain.classes
        positive = self.positive_in(domain) if domain is not None and known else self.positive
        words = f"{self.population} {self.event}".format(positive=f"'{_shown(names, None, positive)}'")
        where = f", in every group by {' and '.join(self.columns)}" if self.columns else ""
        return f"{amount_of(self.low, self.high)} of the {words}{where}."


def crossed(columns: tuple[str, ...], domain: Domain) -> list[Predicate]:
    """Return one predicate per combination of the columns' declared values; no column means all of them."""
    columns = columns or tuple(domain.columns)
    listed: list[Any] = [domain.values(column) for column in columns]
    for column, values in zip(columns, listed, strict=True):
        if isinstance(values, Numeric):
            raise InvalidInput(
                f"column {column!r} is numeric and has no list of groups; name the columns to use, or write the "
                f"constraints out with group({column}=below(...)) and the like"
            )
    if not columns:
        raise NoGroups("the family needs groups, but the domain declares no column")
    total = math.prod(map(len, listed))
    if not total:
        raise NoGroups(f"the family needs groups, but a column of {list_values(columns)} has no values")
    if total > MAX_GROUPS:
        raise InvalidInput(
            f"crossing {list_values(columns)} gives {total:,} groups, more than {MAX_GROUPS:,}; name fewer columns"
        )
    single = ([group(**{c: value}) for value in values] for c, values in zip(columns, listed, strict=True))
    return [conjunction(combination) for combination in itertools.product(*single)]


def _refuse_too_many(count: int, family: Family) -> None:
    if count > MAX_CONSTRAINTS:
        raise InvalidInput(
            f"{family!r} expands to {count:,} constraints, more than {MAX_CONSTRAINTS:,}; "
            "name fewer columns, merge small groups, or compare with versus='rest' or 'everyone'"
        )


def _checked_bound(name: str | None, value: Any) -> float | None:
    if value is None:
        return None
    number = _validate.real(**{str(name): value})
    if not 0 <= number <= 1:
        raise InvalidInput(f"{name} must be between 0 and 1, got {value!r}: rates are shares, 5 points are 0.05")
    return number


def _checked_columns(what: str, columns: Any) -> tuple[str, ...]:
    if not isinstance(columns, Iterable):
        raise InvalidType(f"{what} must be the name of a column, or several names, got {columns!r}")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for column in (column for column in names if not isinstance(column, str)):
        raise InvalidType(f"{what} must be column names, got {column!r}; the bound goes in by keyword")
    if len(set(names)) < len(names):
        raise InvalidInput(f"{what} must name each column once, got {list_values(names)}")
    return names


def _shown(names: Names | None, column: str | None, value: Any) -> str:
    return str((names or {}).get((column, value), value))


def percent(share: float) -> str:
    """Return a share in percent, without the digits that rounding of floats adds."""
    return show_number(float(f"{100 * share:.10g}"))


def amount_of(low: float | None, high: float | None) -> str:
    """Return the bounds of a rate in words."""
    if low is not None and high is not None:
        return f"Between {percent(low)}% and {percent(high)}%"
    return f"At least {percent(low)}%" if low is not None else f"At most {percent(high or 0.0)}%"


# ---------------------------------------------------------------------------------- the families of the package

_P = ParamSpec("_P")
_Columns = str | Iterable[str]
_POSITIVES, _NEGATIVES = "rows whose true class is {positive}", "rows whose true class is not {positive}"
_CHOSEN = "rows predicted {positive}"


def _declares(base: type[Family], **attributes: Any) -> Callable[[Callable[_P, Any]], Callable[_P, Family]]:
    """Make a family of a function: its name, bounds and options are those of the signature."""

    def build(function: Callable[_P, Any]) -> Callable[_P, Family]:
        kind, parameters = function.__name__, inspect.signature(function).parameters
        sides = {"min_rate": "lower", "max_rate": "upper", "max_gap": "upper"}
        attributes.update((side, name) for name, side in sides.items() if name in parameters)
        options = {name: p.default for name, p in parameters.items() if name not in (*sides, "columns", "by")}
        attributes.update(kind=kind, options=options, __module__=__name__)
        attributes["__qualname__"] = f"{kind}.family"  # where pickle finds the class
        family: type[Family] = type(kind, (base,), attributes)
        register_family(family)

        @functools.wraps(function)
        def declare(*arguments: _P.args, **keywords: _P.kwargs) -> Family:
            return family(*arguments, **keywords)

        vars(declare)["family"] = family
        return declare

    return build


def _gap(
    measures: Callable[[Any, Domain], list[Measure]], measured: str, **more: Any
) -> Callable[[Callable[_P, Any]], Callable[_P, Family]]:
    return _declares(GapFamily, measures=measures, measured=measured, **more)


def _bounded(
    formula: Callable[[Any, Predicate], Expression], population: str, event: str, *short: str
) -> Callable[[Callable[_P, Any]], Callable[_P, Family]]:
    words = {"population": population, "event": event, "short_names": short}
    return _declares(RateFamily, formula=staticmethod(formula), **words)


def _within(k: Any, rows: Predicate = everyone) -> Measure:
    return lambda subset: rate(k, where=rows & subset)


def _compared(domain: Domain) -> tuple[Any, ...]:
    """Return the classes whose rates determine all gaps: for two classes, the second."""
    return domain.classes[1:] if len(domain.classes) == 2 else domain.classes


def _errors(domain: Domain) -> Measure:
    """Return the error rate, as 1 minus the rate of correct predictions, which has fewer terms."""
    return lambda subset: Expression(
        tuple((Term(k, label(k) & subset, subset, False), -1.0) for k in domain.classes), 1.0
    )


def _error_gap(_: Any, constraint: Constraint, left: Predicate, right: Predicate) -> Constraint:
    bound = f"{constraint.sense} {show_number(constraint.bound)}"
    return constraint.named(f"error({left.name}) - error({right.name}) {bound}")


@_gap(lambda _, domain: [_within(k) for k in _compared(domain)], "are predicted {class}")
def demographic_parity(*columns: str, max_gap: float, versus: str = "rest") -> Any:
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
    versus : "rest", "everyone" or "pairwise", default "rest"
        What a group is compared with: all rows outside it, all rows, or every other group in turn.
    """


@_gap(
    lambda _, domain: [_within(k, label(truth)) for truth in domain.classes for k in _compared(domain)],
    "of the same true class are predicted {class}",
)
def equalized_odds(*columns: str, max_gap: float, versus: str = "rest") -> Any:
    """Bound the gaps of demographic parity among the rows of each true class.

    ``|P(k | label=y & group) - P(k | label=y & other)| <= max_gap`` for every prediction k, true class y and
    group. Parameters as in `demographic_parity`.
    """


@_gap(
    lambda self, domain: [_within(k := self.positive_in(domain), label(k))],
    "whose true class is {positive} are predicted {positive}",
)
def equal_opportunity(*columns: str, max_gap: float, positive: Any = 1, versus: str = "rest") -> Any:
    """Bound how far the true positive rate, ``P(positive | label=positive & group)``, may differ.

    Parameters
    ----------
    positive : a class, default 1
        The class that counts as the good outcome.
    *columns, max_gap, versus
        As in `demographic_parity`.
    """


@_gap(
    lambda self, domain: [_within(k := self.positive_in(domain), ~label(k))],
    "whose true class is not {positive} are predicted {positive}",
)
def predictive_equality(*columns: str, max_gap: float, positive: Any = 1, versus: str = "rest") -> Any:
    """Bound how far the false positive rate, ``P(positive | label!=positive & group)``, may differ.

    Parameters as in `equal_opportunity`.
    """


@_gap(lambda _, domain: [_errors(domain)], "are predicted wrongly", named=_error_gap)
def error_rate_parity(*columns: str, max_gap: float, versus: str = "rest") -> Any:
    """Bound how far the error rate, the share of a group's rows predicted wrongly, may differ.

    Parameters as in `demographic_parity`.
    """


@_bounded(lambda k, s: 1 - rate(k, where=label(k) & s), _POSITIVES, "are predicted another class", "fnr")
def false_negative_rate(max_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound the share of rows of class `positive` that are predicted another class.

    Parameters
    ----------
    max_rate : float
        Largest allowed rate, from 0 to 1.
    positive : a class, default 1
        The class that the rate is about.
    by : str or sequence of str, optional
        Columns in each of whose groups (crossed) the rate is bounded; by default it is bounded overall.
    """


@_bounded(lambda k, s: rate(k, where=~label(k) & s), _NEGATIVES, "are predicted {positive}", "fpr")
def false_positive_rate(max_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound the share of rows of other classes that are predicted `positive`.

    Parameters as in `false_negative_rate`.
    """


@_bounded(lambda k, s: rate(k, where=label(k) & s), _POSITIVES, "are predicted {positive}", "tpr")
def true_positive_rate(min_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound from below the share of rows of class `positive` that are predicted so.

    `min_rate` is the smallest allowed rate; other parameters as in `false_negative_rate`.
    """


@_bounded(
    lambda k, s: 1 - rate(k, where=~label(k) & s), _NEGATIVES, "are predicted another class than {positive}", "tnr"
)
def true_negative_rate(min_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound from below the share of rows of other classes that are not predicted `positive`.

    `min_rate` is the smallest allowed rate; other parameters as in `false_negative_rate`.
    """


@_bounded(lambda k, s: rate(k, where=label(k), out_of=s), _CHOSEN, "have that true class")
def precision(min_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound from below the share of rows of class `positive` among those predicted so.

    `min_rate` is the smallest allowed rate; other parameters as in `false_negative_rate`.
    """


@_bounded(lambda k, s: rate(k, where=~label(k), out_of=s), _CHOSEN, "have another true class", "fdr")
def false_discovery_rate(max_rate: float, positive: Any = 1, by: _Columns = ()) -> Any:
    """Bound the share of rows of other classes among those predicted `positive`.

    Parameters as in `false_negative_rate`.
    """


@_bounded(lambda k, s: rate(k, where=s), "rows", "are predicted {positive}")
def positive_rate(
    min_rate: float | None = None, max_rate: float | None = None, positive: Any = 1, by: _Columns = ()
) -> Any:
    """Bound the share of rows predicted `positive` from below, above, or both.

    `min_rate` and `max_rate` are the smallest and the largest allowed rate; at least one is given. Other parameters as
    in `false_negative_rate`.
    """


@_declares(
    RateFamily,
    one_rate=False,
    measures=lambda _, domain: [_within(k, ~label(k)) for k in domain.classes],
    population="rows of other classes",
    event="are predicted a class, for every class",
)
def paper_false_negative_rate(max_rate: float, by: _Columns = ()) -> Any:
    """Bound, for every class k, the share of rows of other classes that are predicted k.

    The RaCO-DP paper calls this the false negative rate; for two classes and k = 0 it is the usual one. Parameters
    as in `false_negative_rate`.
    """
