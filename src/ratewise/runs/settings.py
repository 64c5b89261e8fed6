"""What a training run is asked to do, as plain data: the fields of a configuration file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratewise import _validate
from ratewise.defaults import AUTO
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.grammar import format_constraint, parse_constraint

CUSTOMARY_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides a run, but the rows, the place of the results and the randomness.

    Parameters
    ----------
    label, groups
        Column to predict, and the sensitive columns that constraints may read; they are no features.
    constraints : tuple of str
        Constraint text; see `ratewise.grammar`.
    epsilon : float or None
        Of everything the run releases. None trains without privacy.
    delta, neighbours, unit
        As in `RateConstrainedClassifier`.
    leave_out : tuple of str
        Columns that are not used, if the schema is drafted.
    steps, sampling_rate, clip, row_norm, standardise, tails, curves, learning_rate, schedule, momentum,
    averaging, histogram, histogram_share, noise, temperature, rates, l1, l2, fit_intercept
        As in `RateConstrainedClassifier`; None leaves the choice to `ratewise.defaults` ("auto" for `tails`).
    """

    label: str
    groups: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    epsilon: float | None = 1.0
    delta: float = CUSTOMARY_DELTA
    neighbours: str = "add_or_remove"
    unit: str = "one row"
    leave_out: tuple[str, ...] = ()
    steps: int | None = None
    sampling_rate: float | None = None
    clip: float | None = None
    row_norm: float | None = None
    standardise: bool | None = None
    tails: float | str | None = AUTO
    curves: bool | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    momentum: float | None = None
    averaging: str | None = None
    histogram: str = "gaussian"
    histogram_share: float | None = None
    noise: str = "discrete"
    temperature: float = 1.0
    rates: str = "hard"
    l1: float | None = None
    l2: float = 0.0
    fit_intercept: bool = True

    def __post_init__(self) -> None:
        for name in ("groups", "constraints", "leave_out"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if not isinstance(self.label, str) or not self.label:
            raise InvalidInput(f"label must name the column to predict, got {self.label!r}")
        if self.label in self.groups:
            raise InvalidInput(f"label {self.label!r} is among the groups; it is what the model predicts")
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon, hint="none trains without privacy")
        _validate.inside(delta=self.delta)
        _validate.one_of((None, True, False), curves=self.curves)
        if self.tails is not None and self.tails != AUTO:
            _validate.positive(tails=self.tails, hint="none keeps tails, auto leaves it open")
        # one spelling for one constraint, and errors before anything is read
        written = tuple(format_constraint(parse_constraint(text)) for text in self.constraints)
        object.__setattr__(self, "constraints", written)

    @property
    def declared(self) -> list[Any]:
        """The constraints as objects."""
        return [parse_constraint(text) for text in self.constraints]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; tuples become lists."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Settings:
        """Read what `to_dict` wrote; unknown fields are refused.

        Without `curves` or `tails` it is older, from when numbers neither bent nor were cut off.
        """
        if not isinstance(fields, Mapping) or "label" not in fields:
            raise InvalidInput("settings must be fields by name, a label among them")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(map(str, fields.keys() - known))
        if unknown:
            raise InvalidInput(
                f"unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        return cls(**{"curves": False, "tails": None, **fields})


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidType(f"{name} must be a list of texts, got {value!r}")
    for item in value:
        if not isinstance(item, str) or not item:
            raise InvalidType(f"{name} must be a list of texts that are not empty, got {item!r}")
    return tuple(value)
