"""What was released, as plain data.

An event is a frozen description of releases that read private rows, independent of training code and of
accountants. Noise is always given **in units of the release's sensitivity** under adding or removing one unit
(a row, or all rows of one id; see `PrivacyUnit`): the standard deviation of a Gaussian, the *scale* of a
Laplace distribution (its standard deviation is ``sqrt(2)`` times that).

>>> event = TrainingEvent(sampling_rate=0.02, steps=1000, gradient_noise=4, histogram_noise=2)
>>> event == event_from_dict(event.to_dict())
True
>>> round(event.joint_gaussian_noise, 4)
1.7889
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

if TYPE_CHECKING:
    import dp_accounting

NEIGHBOURS = ("add_or_remove", "replace_one", "zero_out")

_SMALLEST_RATE = 1e-100  # its square has to be a number
_MOST_TIMES = 10**8  # rounding errors of many more would be as large as delta
_MOST_TRIALS = 10**9
_LEAST_NOISE = 1e-4  # an epsilon of 5e7
_MOST_EPSILON = 10**6
_UNPROTECTED = "this gives no protection: record an UnprotectedEvent"


class Described:
    """Base of frozen dataclasses that JSON can hold; their fields are checked and put into canonical types."""

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)

    def _checked(self) -> dict[str, Any]:
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `from_dict` reads it back."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, description: Any) -> Self:
        """Read back what `to_dict` wrote; anything else raises `InvalidInput` or `InvalidType`."""
        what = "a" + re.sub("([A-Z])", r" \1", cls.__name__).lower()  # such as "a privacy unit"
        if not isinstance(description, Mapping):
            raise InvalidType(f"{what} must be a mapping, got {description!r:.60}")
        expected = {field.name for field in dataclasses.fields(cast(Any, cls))}
        if description.keys() != expected:
            odd = ", ".join(sorted(map(str, description.keys() ^ expected)))
            raise InvalidInput(f"{what} has missing or unknown fields: {odd}; use what to_dict() wrote")
        return cls(**{name: _parsed(name, value) for name, value in description.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Described) else value


def _parsed(name: str, value: Any) -> Any:
    """Return a field of a description with nested descriptions read, and lists as tuples."""
    if name in ("events", "candidate"):
        if not isinstance(value, list | tuple):
            raise InvalidType(f"{name} must be a list of events, got {value!r:.60}")
        return tuple(event_from_dict(event) for event in value)
    kinds: dict[str, type[Described]] = {"unit": PrivacyUnit, "cap": Budget}
    if name in kinds and value is not None:
        return kinds[name].from_dict(value)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Budget(Described):
    """A bound on the privacy loss: (`epsilon`, `delta`)."""

    epsilon: float
    delta: float

    def _checked(self) -> dict[str, Any]:
        epsilon = _validate.positive(epsilon=self.epsilon)
        return {"epsilon": epsilon, "delta": _validate.inside(delta=self.delta)}


@dataclass(frozen=True)
class PrivacyUnit(Described):
    """What one neighbouring data set has and the other has not: a row, or all rows of one id.

    For ids, `column` is the name of their column, at most `max_rows` rows of an id are used, and `weighting`
    says whether rates count every "id" once or every used "row" once.
    """

    kind: str = "row"
    column: str | None = None
    max_rows: int | None = None
    weighting: str | None = None

    def _checked(self) -> dict[str, Any]:
        _validate.one_of(("row", "id"), kind=self.kind)
        _validate.one_of(("id", "row", None), weighting=self.weighting)
        if self.kind == "row" and (self.column, self.max_rows, self.weighting) != (None, None, None):
            raise InvalidInput("column, max_rows and weighting describe ids; leave them out for kind='row'")
        if self.column is not None:
            _validate.text(required=True, column=self.column)
        return {} if self.max_rows is None else {"max_rows": _validate.count(max_rows=self.max_rows)}

    @property
    def noun(self) -> str:
        """The plural noun of what is counted: "rows" or "ids"."""
        return f"{self.kind}s"

    def __str__(self) -> str:
        if self.kind == "row":
            return "one row"
        details = [f"column {self.column!r}"] if self.column is not None else []
        if self.max_rows is not None:
            details.append(f"at most {self.max_rows} rows of an id are used")
        if self.weighting is not None:
            details.append(f"rates count each {'id' if self.weighting == 'id' else 'used row'} once")
        return "all rows of one id" + (f" ({'; '.join(details)})" if details else "")


@dataclass(frozen=True)
class Event(Described):
    """Base of all events: what was, or will be, released. `str` gives a sentence without full stop."""

    kind: ClassVar[str]
    repeats: ClassVar[str | None] = None  # the field that says how often the release is repeated

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `event_from_dict` reads it back."""
        return {"kind": self.kind, **super().to_dict()}


@dataclass(frozen=True)
class TrainingEvent(Event):
    """A phase of training: in each step one Poisson sample, read by one or two releases.

    Each of `steps` steps keeps every row independently with probability `sampling_rate`; an empty sample
    counts as a step. From that **one** sample it releases the sum of clipped row gradients with Gaussian
    noise of standard deviation `gradient_noise` times the clipping norm (None: no gradient), and the table of
    predictions per cell, whose sensitivity is 1, with noise of the law `histogram` ("gaussian" or "laplace")
    and the standard deviation or scale `histogram_noise` (None: no histogram). Steps may depend on everything
    released before them.
    """

    kind: ClassVar[str] = "training"
    repeats: ClassVar[str | None] = "steps"

    sampling_rate: float
    steps: int
    gradient_noise: float | None
    histogram_noise: float | None = None
    histogram: str | None = "gaussian"

    def _checked(self) -> dict[str, Any]:
        rate = _validate.fraction(sampling_rate=self.sampling_rate)
        if rate < _SMALLEST_RATE:
            raise InvalidInput(f"sampling_rate must be at least {_SMALLEST_RATE:g}, got {rate!r}")
        law = _validate.one_of(("gaussian", "laplace", None), histogram=self.histogram)
        gradient, noise = self.gradient_noise, self.histogram_noise
        if gradient is not None:
            gradient = _noise(gradient_noise=gradient, hint="None means no gradient release")
        if noise is not None:
            noise = _noise(histogram_noise=noise, hint="None means no histogram release")
            if law is None:
                raise InvalidInput(
                    f"histogram is None but histogram_noise is {noise:g}; say histogram='gaussian' or 'laplace'"
                )
        elif law == "laplace":
            raise InvalidInput("histogram_noise is missing for histogram='laplace'; give the scale of its noise")
        elif gradient is None:
            raise InvalidInput("a training event needs gradient_noise or histogram_noise, got None for both")
        law = None if noise is None else law
        found = {"sampling_rate": rate, "steps": _times(steps=self.steps), "gradient_noise": gradient}
        return {**found, "histogram_noise": noise, "histogram": law}

    @property
    def joint_gaussian_noise(self) -> float | None:
        """Noise of the one Gaussian release that equals all Gaussian releases of a step together."""
        side = self.histogram_noise if self.histogram == "gaussian" else None
        parts = [noise for noise in (self.gradient_noise, side) if noise is not None]
        return join_gaussian_noise(parts) if parts else None

    @property
    def laplace_scale(self) -> float | None:
        """Scale of the Laplace noise on the histogram, if it has any."""
        return self.histogram_noise if self.histogram == "laplace" else None

    def with_steps(self, steps: int) -> TrainingEvent:
        """Return the same phase with another number of steps."""
        return dataclasses.replace(self, steps=steps)

    def __str__(self) -> str:
        releases = []
        if self.gradient_noise is not None:
            releases.append(
                "the sum of clipped gradients with Gaussian noise of standard deviation "
                f"{self.gradient_noise:.6g} times the clipping norm"
            )
        if self.histogram_noise is not None:
            law = "Laplace noise of scale" if self.laplace_scale else "Gaussian noise of standard deviation"
            releases.append(f"the histogram of predictions per cell with {law} {self.histogram_noise:.6g}")
        return (
            f"{_number(self.steps, 'training step')}, each of which samples every protected unit independently with "
            f"probability {self.sampling_rate:.6g} and releases, from that one sample, {' and '.join(releases)}"
        )


@dataclass(frozen=True)
class _RepeatedEvent(Event):
    repeats: ClassVar[str | None] = "count"
    _law: ClassVar[str]

    noise: float
    count: int = 1

    def _checked(self) -> dict[str, Any]:
        return {"noise": _noise(noise=self.noise), "count": _times(count=self.count)}

    def __str__(self) -> str:
        return f"{_number(self.count, 'release')} with {self._law} {self.noise:.6g} times its sensitivity"


@dataclass(frozen=True)
class GaussianEvent(_RepeatedEvent):
    """`count` releases, each with Gaussian noise of standard deviation `noise` times its L2 sensitivity."""

    kind: ClassVar[str] = "gaussian"
    _law: ClassVar[str] = "Gaussian noise of standard deviation"


@dataclass(frozen=True)
class LaplaceEvent(_RepeatedEvent):
    """`count` releases, each with Laplace noise of scale `noise` times its L1 sensitivity."""

    kind: ClassVar[str] = "laplace"
    _law: ClassVar[str] = "Laplace noise of scale"


@dataclass(frozen=True)
class ThresholdEvent(Event):
    """A stability-based histogram: noisy counts of the values that occur, above a threshold.

    Each occurring value's count gets Gaussian noise of standard deviation `noise` times the L2 sensitivity of
    all counts together, and a value is released if its noisy count reaches a threshold, so high that a value
    which only one unit has is released with probability at most `delta`. The cost is that of
    ``GaussianEvent(noise)``, plus `delta`.
    """

    kind: ClassVar[str] = "threshold"

    noise: float
    delta: float

    def _checked(self) -> dict[str, Any]:
        return {"noise": _noise(noise=self.noise), "delta": _validate.inside(delta=self.delta)}

    def __str__(self) -> str:
        return (
            f"the values whose counts, with Gaussian noise of standard deviation {self.noise:.6g} times their "
            "sensitivity, are above a threshold; a value that occurs in only one of two neighbours passes it with "
            f"probability at most {self.delta:.6g}"
        )


@dataclass(frozen=True)
class SelectionEvent(Event):
    """The best of a random number of private candidates (Papernot and Steinke 2022).

    A candidate is everything that `candidate` lists, score included. It is run R times, independently, with R
    drawn independently of the data; only the best is released, and neither R nor the time taken is shown. R
    is geometric, at least 1, with the mean `mean_trials`, above 1.
    """

    kind: ClassVar[str] = "selection"

    candidate: tuple[Event, ...]
    mean_trials: float

    def _checked(self) -> dict[str, Any]:
        candidate = as_events(self.candidate, name="candidate")
        mean = _validate.positive(mean_trials=self.mean_trials)
        _at_most(_MOST_TRIALS, mean_trials=self.mean_trials)
        if mean <= 1:
            raise InvalidInput(
                f"mean_trials must be above 1, got {mean:g}; a single candidate needs no selection: record its "
                "events as they are"
            )
        return {"candidate": candidate, "mean_trials": mean}

    def __str__(self) -> str:
        candidate = "; ".join(str(part) for part in self.candidate)
        return (
            f"the best of a random number of private candidates (geometric law with mean {self.mean_trials:.6g}), "
            f"each of them: {candidate}"
        )


@dataclass(frozen=True)
class OutsideEvent(Event):
    """A release by other means, known to be (`epsilon`, `delta`)-private under the relation `neighbours`."""

    kind: ClassVar[str] = "outside"

    epsilon: float
    delta: float = 0.0
    neighbours: str = "add_or_remove"
    description: str = ""

    def _checked(self) -> dict[str, Any]:
        delta = _validate.non_negative(delta=self.delta)
        epsilon = _validate.non_negative(epsilon=self.epsilon)
        if delta >= 1:
            raise InvalidInput(f"delta must be below 1, got {self.delta!r}")
        _at_most(_MOST_EPSILON, _UNPROTECTED, epsilon=self.epsilon)
        _validate.text(description=self.description)
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        return {"epsilon": epsilon, "delta": delta}

    def __str__(self) -> str:
        return (
            f"{self.description or 'a release by other means'}, taken to be private with epsilon {self.epsilon:.6g} "
            f"and delta {self.delta:.6g} (neighbours: {self.neighbours})"
        )


@dataclass(frozen=True)
class UnprotectedEvent(Event):
    """A release without protection: whatever it is composed with, epsilon is infinite."""

    kind: ClassVar[str] = "unprotected"

    description: str = ""

    def __str__(self) -> str:
        return f"{self.description or 'a release'}, WITHOUT PROTECTION"


_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        *(TrainingEvent, GaussianEvent, ThresholdEvent, LaplaceEvent),
        *(SelectionEvent, OutsideEvent, UnprotectedEvent),
    )
}


def event_from_dict(description: Mapping[str, Any]) -> Event:
    """Read back what `Event.to_dict` wrote; anything else raises `InvalidInput` or `InvalidType`."""
    if not isinstance(description, Mapping):
        raise InvalidType(f"an event description must be a mapping, got {description!r}")
    fields = dict(description)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(sorted(_KINDS))}, got {kind!r}")
    return _KINDS[kind].from_dict(fields)


def to_dp_event(event: Event) -> dp_accounting.DpEvent:
    """Return the same event as a `DpEvent` of dp-accounting; a Gaussian pair is given as its one Gaussian.

    Raises `UnsupportedCombination` for what dp-accounting has no event for: thresholds, guarantees from outside,
    and Poisson-sampled Laplace histograms.
    """
    import dp_accounting as dp  # takes a second to import

    match event:
        case GaussianEvent():
            return dp.SelfComposedDpEvent(dp.GaussianDpEvent(event.noise), event.count)
        case LaplaceEvent():
            return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(event.noise), event.count)
        case TrainingEvent() if event.laplace_scale is None or event.sampling_rate == 1:
            gaussian, scale = event.joint_gaussian_noise, event.laplace_scale
            releases = [] if gaussian is None else [dp.GaussianDpEvent(gaussian)]
            releases += [] if scale is None else [dp.LaplaceDpEvent(scale)]
            step = releases[0] if len(releases) == 1 else dp.ComposedDpEvent(releases)
            step = dp.PoissonSampledDpEvent(event.sampling_rate, step) if event.sampling_rate < 1 else step
            return dp.SelfComposedDpEvent(step, event.steps)
        case SelectionEvent():
            candidate = dp.ComposedDpEvent([to_dp_event(part) for part in event.candidate])
            return dp.dp_event.RepeatAndSelectDpEvent(candidate, event.mean_trials, 1.0)
        case UnprotectedEvent():
            return dp.NonPrivateDpEvent()
    raise UnsupportedCombination(f"dp-accounting has no event for {event!r}; use ratewise.accounting.epsilon")


def as_events(events: Event | Iterable[Event], *, name: str = "events") -> tuple[Event, ...]:
    """Return one event or a list of events as a non-empty tuple."""
    if isinstance(events, Event):
        return (events,)
    if isinstance(events, (str, bytes, Mapping)) or not isinstance(events, Iterable):
        raise InvalidType(f"{name} must be an event or a list of events, got {events!r}")
    found = tuple(events)
    if not found:
        raise InvalidInput(f"{name} must hold at least one event, got an empty list; nothing was released")
    for event in found:
        if not isinstance(event, Event):
            raise InvalidType(f"{name} must hold events only, got {event!r}")
    return found


def single(event: Event) -> tuple[Event, int]:
    """Return the single release that an event repeats, and how often.

    >>> single(GaussianEvent(noise=2.0, count=5))
    (GaussianEvent(noise=2.0, count=1), 5)
    """
    if event.repeats is None:
        return event, 1
    return dataclasses.replace(event, **{event.repeats: 1}), getattr(event, event.repeats)


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events with equal repeated releases as one event, in order of first appearance.

    >>> merged([GaussianEvent(2.0), LaplaceEvent(1.0), GaussianEvent(2.0, count=3)])
    (GaussianEvent(noise=2.0, count=4), LaplaceEvent(noise=1.0, count=1))
    """
    counts: dict[Event, int] = {}
    for event in events:
        one, times = single(event)
        counts[one] = counts.get(one, 0) + times
    return tuple(
        dataclasses.replace(one, **{one.repeats: times}) if one.repeats else one
        for one, times in counts.items()
        for _ in range(1 if one.repeats else times)
    )


def join_gaussian_noise(noises: Iterable[float]) -> float:
    """Return the noise of one Gaussian release that equals several of the same rows together.

    Releases with noise z1 and z2 of one row move the scaled output by at most ``sqrt(z1**-2 + z2**-2)``.
    """
    # hypot of the inverses neither overflows nor underflows where the squares would
    return 1.0 / math.hypot(*(1.0 / noise for noise in noises))


def _noise(*, hint: str = "", **argument: Any) -> float:
    """Return noise in units of the sensitivity, enough of it for a number that accountants can work with."""
    ((name, value),) = argument.items()
    noise = _validate.positive(hint=hint, **argument)
    if noise < _LEAST_NOISE:
        raise InvalidInput(f"{name} must be at least {_LEAST_NOISE:g}, got {value!r}; {_UNPROTECTED}")
    return noise


def _times(**argument: Any) -> int:
    """Return how often something is released, a number that accountants can multiply with."""
    times = _validate.count(**argument)
    _at_most(_MOST_TIMES, **argument)
    return times


def _at_most(most: int, remedy: str = "", **argument: Any) -> None:
    ((name, value),) = argument.items()
    if value > most:
        words = f"{name} must be at most {most:,}, got {value!r}"
        raise InvalidInput(f"{words}; {remedy}" if remedy else words)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
