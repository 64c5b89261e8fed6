"""The guarantee in words.

A statement carries epsilon together with everything it rests on: delta, the neighbouring relation, the unit
that is protected, what is taken as public, what was found by private releases, what was released and how it
was accounted; and it opens with what is **outside** the guarantee.

>>> from ratewise.accounting.events import GaussianEvent
>>> statement = PrivacyStatement(epsilon=0.5, delta=1e-6, events=[GaussianEvent(noise=9.0)])
>>> print(statement)
These releases are (epsilon, delta)-differentially private with epsilon = 0.5 and delta = 1e-06.
...
>>> PrivacyStatement.from_json(statement.to_json()) == statement
True
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ratewise import _validate
from ratewise._files import read_document
from ratewise.accounting import accountant
from ratewise.accounting.events import NEIGHBOURS, Described, Event, PrivacyUnit, UnprotectedEvent, as_events
from ratewise.exceptions import InvalidInput, InvalidType

FORMAT = "ratewise-privacy-statement"
VERSION = 4
WIDTH = 88

_LISTS = ("names", "public", "found", "outside")
FIXED_LIST = "exact composition of a plan that was fixed before its first release"

_ZERO_OUT = (
    "two tables are neighbours if they are equal except that {unit} of one is blank in the other; what is blank "
    "adds nothing to any sum"
)
_RELATION = {
    "add_or_remove": "two tables are neighbours if one is the other with {unit} added or removed",
    "replace_one": "two tables are neighbours if one is the other with {unit} replaced by any other",
    "zero_out": _ZERO_OUT,
}
_PUBLIC_SIZE = " The number of {noun} is public and not protected: neighbours have the same number."
_ADD_OR_REMOVE_OF_PUBLIC_SIZE = (
    "the number of {noun} is public and not protected, so the relation that holds exactly is zero-out: "
    + _ZERO_OUT
    + '. "{unit} added or removed" holds in this sense: with the number of {noun} given as an input, the same for '
    "both tables"
)


@functools.cache
def software_version(distribution: str = "ratewise") -> str:
    """Return the installed version of a distribution; "unknown" if it runs without being installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement(Described):
    """What is guaranteed, and on which conditions.

    An infinite epsilon means that there is no guarantee. `n_units` is the public number of rows (or ids).
    `public` lists facts that are taken as known to everybody, so that they are not protected; `found`, what
    was not declared and was found by private releases, within the guarantee; `outside`, what was read off the
    private data outside the guarantee. `terms` says why the events may be added up: a list fixed in advance,
    or a privacy filter. `names` are those of the events in their plan, if they belong to one.
    """

    epsilon: float
    delta: float
    neighbours: str = "add_or_remove"
    events: tuple[Event, ...] = ()
    names: tuple[str, ...] = ()
    unit: PrivacyUnit = field(default_factory=PrivacyUnit)
    n_units: int | None = None
    public: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    terms: str = FIXED_LIST
    accountant: str = accountant.NAME
    ratewise_version: str = field(default_factory=software_version)

    def _checked(self) -> dict[str, Any]:
        epsilon, delta = self.epsilon, _validate.non_negative(delta=self.delta)
        if epsilon != math.inf:
            epsilon = _validate.non_negative(epsilon=epsilon, hint="math.inf means no guarantee")
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        _validate.instance(PrivacyUnit, unit=self.unit)
        if delta >= 1:
            raise InvalidInput(f"delta must be below 1, got {delta:g}; 1e-5 is a usual choice")
        for name in ("terms", "accountant", "ratewise_version"):
            _validate.text(**{name: getattr(self, name)})
        events = () if self.events in ((), []) else as_events(self.events)
        number = None if self.n_units is None else _validate.count(n_units=self.n_units)
        if self.names and len(self.names) != len(events):
            raise InvalidInput(f"names must have one entry per event, got {len(self.names)} for {len(events)} events")
        lists = {name: _validate.texts(**{name: getattr(self, name)}) for name in _LISTS}
        return {"epsilon": float(epsilon), "delta": delta, "events": events, "n_units": number, **lists}

    @property
    def private(self) -> bool:
        """Whether everything that was read off the data is covered by a finite epsilon."""
        return math.isfinite(self.epsilon) and not self.outside

    @property
    def mechanism(self) -> tuple[str, ...]:
        """What was released, in words, one text per event."""
        names = (f"{name}: " for name in self.names) if self.names else itertools.repeat("")
        return tuple(f"{name}{event}" for name, event in zip(names, self.events, strict=False))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; an infinite epsilon is written as the word "infinity"."""
        epsilon = "infinity" if self.epsilon == math.inf else self.epsilon
        fields = {**super().to_dict(), "epsilon": epsilon, "mechanism": list(self.mechanism)}
        return {"format": FORMAT, "version": VERSION, **fields}

    @classmethod
    def from_dict(cls, description: Any) -> PrivacyStatement:
        """Read back what `to_dict` wrote; the words of the mechanism are derived anew."""
        if not isinstance(description, Mapping):
            raise InvalidType(f"a statement description must be a mapping, got {type(description).__name__}")
        fields = dict(description)
        form, version, _ = (fields.pop(name, None) for name in ("format", "version", "mechanism"))
        if form != FORMAT:
            raise InvalidInput(f"format must be {FORMAT!r}, got {form!r}; use what to_dict() wrote")
        if version != VERSION or isinstance(version, bool):
            raise InvalidInput(f"version must be {VERSION}, got {version!r}; read it with a newer ratewise")
        if fields.get("epsilon") == "infinity":
            fields["epsilon"] = math.inf
        return super().from_dict(fields)

    def to_json(self) -> str:
        """Return the statement as strict JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, document: str) -> PrivacyStatement:
        """Read back what `to_json` wrote."""
        return cls.from_dict(read_document(document, "to_json()"))

    def __str__(self) -> str:
        size = () if self.n_units is None else (f"the number of {self.unit.noun}: {self.n_units:,}",)
        title = "NOT COVERED by the guarantee below, as it was read from private data without noise:"
        lines = [_listed(title, self.outside), ""] if self.outside else []
        lines += [_wrap(self._guarantee()), _wrap(self._protected())]
        lines.append(_listed("Taken as public:", (*size, *self.public), nothing="nothing was named."))
        lines += [_listed("Found by private releases:", self.found)] if self.found else []
        lines.append(_listed("Released:", self.mechanism, nothing="nothing."))
        lines += [
            _wrap(f"Composition: {self.terms}."),
            _wrap(f"Accountant: {self.accountant}; ratewise {self.ratewise_version}."),
        ]
        return "\n".join(lines)

    def _guarantee(self) -> str:
        if not self.events:
            return f"Nothing was released: epsilon = 0 and delta = {self.delta:g}."
        if self.epsilon == math.inf:
            why = f"epsilon is infinite at delta = {self.delta:g}"
            if any(isinstance(event, UnprotectedEvent) for event in self.events):
                why = "something was released without protection, so epsilon is infinite"
            return f"There is NO PRIVACY GUARANTEE: {why}."
        return (
            "These releases are (epsilon, delta)-differentially private with "
            f"epsilon = {epsilon_text(self.epsilon)} and delta = {self.delta:g}."
        )

    def _protected(self) -> str:
        one, noun = "one row" if self.unit.kind == "row" else "all rows of one id", self.unit.noun
        relation, more = _RELATION[self.neighbours], ""
        if self.n_units is not None and self.neighbours == "add_or_remove":
            relation = _ADD_OR_REMOVE_OF_PUBLIC_SIZE
        elif self.n_units is not None:
            more = _PUBLIC_SIZE.format(noun=noun)
        if self.n_units is not None and self.delta > 1 / self.n_units:
            more += f" CAUTION: delta is above 1/{self.n_units:,}, which permits publishing {one} at random."
        relation = relation.format(unit=one, noun=noun)
        return f"Protected: {self.unit}. {relation[0].upper()}{relation[1:]}.{more}"


def state(
    events: Event | Iterable[Event],
    delta: float,
    *,
    neighbours: str = "add_or_remove",
    unit: PrivacyUnit | None = None,
    **facts: Any,
) -> PrivacyStatement:
    """Account a list of events fixed in advance and return its guarantee.

    Facts are `n_units`, `public`, `found` and `outside` of `PrivacyStatement`.
    """
    curve = accountant.curve(events, neighbours)
    facts = {"unit": unit or PrivacyUnit(), "neighbours": neighbours, "events": curve.events, **facts}
    return PrivacyStatement(epsilon=curve.epsilon(_validate.inside(delta=delta)), delta=delta, **facts)


def epsilon_text(epsilon: float | None) -> str:
    """Return epsilon with four digits, rounded upwards: a text never claims more privacy than there is.

    >>> epsilon_text(1.23412), epsilon_text(None)
    ('1.235', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    shown = f"{epsilon:.4g}"
    if float(shown) < epsilon:
        shown = f"{float(shown) + 10.0 ** (math.floor(math.log10(epsilon)) - 3):.4g}"
    return shown


def _listed(title: str, items: Iterable[str], *, nothing: str = "") -> str:
    bullets = [_wrap(item, bullet="  - ") for item in items]
    return "\n".join([title, *bullets]) if bullets else f"{title} {nothing}"


def _wrap(words: str, *, bullet: str = "") -> str:
    return textwrap.fill(words, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet))
