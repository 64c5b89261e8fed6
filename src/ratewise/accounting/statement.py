"""The guarantee in words.

A number without its conditions is no guarantee. A statement carries epsilon together with everything it rests on:
delta, the neighbouring relation, the unit that is protected, what is taken as public, what was found by private
releases, what was released and how it was accounted; and it opens with what is **outside** the guarantee.

>>> from ratewise.accounting.events import GaussianEvent
>>> statement = PrivacyStatement(epsilon=0.5, delta=1e-6, events=[GaussianEvent(noise=9.0)])
>>> print(statement)
These releases are (epsilon, delta)-differentially private with epsilon = 0.5 and delta = 1e-06.
...
>>> PrivacyStatement.from_json(statement.to_json()) == statement
True
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import numbers
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ratewise import _validate
from ratewise._files import strict_json
from ratewise.accounting import accountant
from ratewise.accounting.events import (
    NEIGHBOURS,
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    PrivacyUnit,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
    as_events,
    event_from_dict,
)
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["PrivacyStatement", "in_words", "state"]

FORMAT = "ratewise-privacy-statement"
VERSION = 2
WIDTH = 88

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
class PrivacyStatement:
    """What is guaranteed, and on which conditions.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee; an infinite epsilon means that there is none.
    neighbours : str
        The relation between neighbouring data sets.
    events : iterable of Event
        What was released; empty if nothing was.
    unit : PrivacyUnit
        What is protected: a row, or all rows of one id.
    n_units : int or None
        Public number of rows (or ids).
    public : iterable of str
        Facts that are taken as known to everybody, so that they are not protected.
    found : iterable of str
        What was not declared and was found by private releases, within the guarantee.
    outside : iterable of str
        What was read off the private data outside the guarantee.
    terms : str
        Why the events may be added up: a list fixed in advance, or a privacy filter.
    accountant, ratewise_version, dp_accounting_version : str
        What computed epsilon.
    """

    epsilon: float
    delta: float
    neighbours: str = "add_or_remove"
    events: tuple[Event, ...] = ()
    unit: PrivacyUnit = field(default_factory=PrivacyUnit)
    n_units: int | None = None
    public: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    terms: str = FIXED_LIST
    accountant: str = accountant.NAME
    ratewise_version: str = field(default_factory=software_version)
    dp_accounting_version: str = field(default_factory=lambda: software_version("dp-accounting"))

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        if not (isinstance(epsilon, numbers.Real) and epsilon == math.inf):
            epsilon = _validate.non_negative(epsilon=epsilon, hint="math.inf means no guarantee")
        delta = _validate.non_negative(delta=self.delta)
        size = None if self.n_units is None else _validate.count(n_units=self.n_units)
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        _validate.instance(PrivacyUnit, unit=self.unit)
        if delta >= 1:
            raise InvalidInput(f"delta must be below 1, got {delta:g}; 1e-5 is a usual choice")
        for name in ("terms", "accountant", "ratewise_version", "dp_accounting_version"):
            _validate.text(**{name: getattr(self, name)})
        canonical = {
            "epsilon": float(epsilon),
            "delta": delta,
            "events": () if self.events in ((), []) else as_events(self.events),
            "public": _validate.texts(public=self.public),
            "found": _validate.texts(found=self.found),
            "outside": _validate.texts(outside=self.outside),
            "n_units": size,
        }
        for name, value in canonical.items():
            object.__setattr__(self, name, value)

    @property
    def private(self) -> bool:
        """Whether everything that was read off the data is covered by a finite epsilon."""
        return math.isfinite(self.epsilon) and not self.outside

    @property
    def mechanism(self) -> tuple[str, ...]:
        """What was released, in words, one text per event."""
        return tuple(in_words(event) for event in self.events)

    def __str__(self) -> str:
        return "\n".join([*self._warning(), _wrap(self._guarantee()), self._conditions()])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; an infinite epsilon is written as the word "infinity"."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["epsilon"] = "infinity" if self.epsilon == math.inf else self.epsilon
        fields["events"] = [event.to_dict() for event in self.events]
        fields["unit"] = self.unit.to_dict()
        for name in ("public", "found", "outside"):
            fields[name] = list(fields[name])
        return {"format": FORMAT, "version": VERSION, **fields, "mechanism": list(self.mechanism)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> PrivacyStatement:
        """Read back what `to_dict` wrote; the words of the mechanism are derived anew."""
        if not isinstance(description, Mapping):
            raise InvalidType(f"a statement description must be a mapping, got {type(description).__name__}")
        fields = dict(description)
        _known(fields.pop("format", None), fields.pop("version", None))
        fields.pop("mechanism", None)
        expected = {field.name for field in dataclasses.fields(cls)}
        if fields.keys() != expected:
            odd = ", ".join(sorted(map(str, fields.keys() ^ expected)))
            raise InvalidInput(f"a statement has missing or unknown fields: {odd}; use what to_dict() wrote")
        if fields["epsilon"] == "infinity":
            fields["epsilon"] = math.inf
        if not isinstance(fields["events"], (list, tuple)):
            raise InvalidType(f"events must be a list, got {type(fields['events']).__name__}")
        fields["events"] = tuple(event_from_dict(event) for event in fields["events"])
        fields["unit"] = PrivacyUnit.from_dict(fields["unit"])
        return cls(**fields)

    def to_json(self) -> str:
        """Return the statement as strict JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, document: str) -> PrivacyStatement:
        """Read back what `to_json` wrote."""
        if not isinstance(document, (str, bytes)):
            raise InvalidType(f"document must be JSON text, got {type(document).__name__}")
        try:
            description = strict_json(document)
        except ValueError:
            raise InvalidInput("document must be JSON that to_json() wrote, got something else") from None
        return cls.from_dict(description)

    def _warning(self) -> list[str]:
        if not self.outside:
            return []
        return [
            _wrap("NOT COVERED: this was read off the private data outside the guarantee below:"),
            *(_wrap(item, bullet="  - ") for item in self.outside),
            "",
        ]

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
            f"epsilon = {_upwards(self.epsilon)} and delta = {self.delta:g}."
        )

    def _conditions(self) -> str:
        unit, noun = self.unit, self.unit.noun
        one = "one row" if unit.kind == "row" else "all rows of one id"
        public = list(self.public)
        words = _RELATION[self.neighbours]
        if self.n_units is not None and self.neighbours == "add_or_remove":
            words = _ADD_OR_REMOVE_OF_PUBLIC_SIZE
        words = words.format(unit=one, noun=noun)
        relation = f"Protected: {unit}. {words[0].upper()}{words[1:]}."
        if self.n_units is not None:
            public.insert(0, f"the number of {noun}: {self.n_units:,}")
            if self.neighbours != "add_or_remove":
                relation += _PUBLIC_SIZE.format(noun=noun)
            if self.delta > 1 / self.n_units:
                relation += (
                    f" CAUTION: delta is above 1/{self.n_units:,}, which permits publishing {one} at random."
                )
        lines = [
            _wrap(relation),
            _listed("Taken as public:", public, nothing="nothing was named."),
            *([_listed("Found by private releases:", self.found, nothing="")] if self.found else []),
            _listed("Released:", self.mechanism, nothing="nothing."),
            _wrap(f"Composition: {self.terms}."),
            _wrap(
                f"Accountant: {self.accountant}; ratewise {self.ratewise_version}, "
                f"dp-accounting {self.dp_accounting_version}."
            ),
        ]
        return "\n".join(lines)


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
    listed = as_events(events)
    return PrivacyStatement(
        epsilon=accountant.epsilon(listed, delta, neighbours=neighbours),
        delta=delta,
        neighbours=neighbours,
        unit=PrivacyUnit() if unit is None else unit,
        events=listed,
        **facts,
    )


def in_words(event: Event) -> str:
    """Return what an event released, as a sentence without its full stop.

    >>> in_words(LaplaceEvent(noise=2))
    '1 release with Laplace noise of scale 2 times its sensitivity'
    """
    for kind, words in _WORDS.items():
        if isinstance(event, kind):
            return words(event)
    raise InvalidType(f"event must be an event of ratewise, got {type(event).__name__}")


def _training_in_words(event: TrainingEvent) -> str:
    releases = []
    if event.gradient_noise is not None:
        releases.append(
            "the sum of clipped row gradients with Gaussian noise of standard deviation "
            f"{event.gradient_noise:.6g} times the clipping norm"
        )
    if event.histogram_noise is not None:
        noise = (
            "Laplace noise of scale"
            if event.histogram == "laplace"
            else "Gaussian noise of standard deviation"
        )
        releases.append(f"the histogram of predictions per cell with {noise} {event.histogram_noise:.6g}")
    return (
        f"{_number(event.steps, 'training step')}, each of which keeps every row independently with "
        f"probability {event.sampling_rate:.6g} and releases, from that one sample, {' and '.join(releases)}"
    )


def _gaussian_in_words(event: GaussianEvent) -> str:
    return (
        f"{_number(event.count, 'release')} with Gaussian noise of standard deviation {event.noise:.6g} "
        "times its sensitivity"
    )


def _threshold_in_words(event: ThresholdEvent) -> str:
    return (
        f"the values that occur often enough, by counts with Gaussian noise of standard deviation {event.noise:.6g} "
        "times their sensitivity and a threshold that shows what only one neighbour has with probability at most "
        f"{event.delta:.6g}"
    )


def _laplace_in_words(event: LaplaceEvent) -> str:
    count = _number(event.count, "release")
    return f"{count} with Laplace noise of scale {event.noise:.6g} times its sensitivity"


def _selection_in_words(event: SelectionEvent) -> str:
    law = {math.inf: "Poisson", 1.0: "geometric", 0.0: "logarithmic"}.get(
        event.shape, f"truncated negative binomial (shape {event.shape:.6g})"
    )
    candidate = "; ".join(in_words(part) for part in event.candidate)
    return (
        f"the best of a random number of private candidates ({law} law with mean {event.mean_trials:.6g}), "
        f"each of them: {candidate}"
    )


def _outside_in_words(event: OutsideEvent) -> str:
    what = event.description or "a release by other means"
    return (
        f"{what}, taken to be private with epsilon {event.epsilon:.6g} and delta {event.delta:.6g} "
        f"(neighbours: {event.neighbours})"
    )


def _unprotected_in_words(event: UnprotectedEvent) -> str:
    return f"{event.description or 'a release'}, WITHOUT PROTECTION"


_WORDS: dict[type[Event], Callable[[Any], str]] = {
    TrainingEvent: _training_in_words,
    GaussianEvent: _gaussian_in_words,
    ThresholdEvent: _threshold_in_words,
    LaplaceEvent: _laplace_in_words,
    SelectionEvent: _selection_in_words,
    OutsideEvent: _outside_in_words,
    UnprotectedEvent: _unprotected_in_words,
}


def _known(found: Any, version: Any) -> None:
    if found != FORMAT:
        raise InvalidInput(f"format must be {FORMAT!r}, got {found!r}; use what to_dict() wrote")
    if version != VERSION or isinstance(version, bool):
        raise InvalidInput(f"version must be {VERSION}, got {version!r}; read it with a newer ratewise")


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _upwards(epsilon: float) -> str:
    """Show epsilon with four digits, never less than it is.

    >>> _upwards(1.23412)
    '1.235'
    """
    shown = f"{epsilon:.4g}"
    if float(shown) < epsilon:
        step = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
        shown = f"{float(shown) + step:.4g}"
    return shown


def _listed(title: str, items: Iterable[str], *, nothing: str) -> str:
    bullets = [_wrap(item, bullet="  - ") for item in items]
    return "\n".join([title, *bullets]) if bullets else f"{title} {nothing}"


def _wrap(words: str, *, bullet: str = "") -> str:
    return textwrap.fill(words, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet))
