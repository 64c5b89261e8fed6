"""What a training run is asked to do, as plain data: the fields of a configuration file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratewise import _validate
from ratewise.constraints.text import format_constraint, parse_constraint
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides a run, except the rows, the schema, the place of the results and the randomness.

    Budget, model and ids are as in `RateConstrainedClassifier`; epsilon None trains without privacy.
    """

    label: str  # column to predict
    groups: tuple[str, ...] = ()  # sensitive columns that constraints may read; features only if `features` lists them
    constraints: tuple[str, ...] = ()  # text: see `ratewise.constraints.text`
    classes: tuple[str, ...] = ()  # declared labels; without them those of the schema, or found privately
    epsilon: float | None = 1.0
    delta: float | None = None
    neighbours: str = "zero_out"
    model: str = "additive"
    features: tuple[str, ...] = ()  # columns to predict from; by default all others that are not left out
    leave_out: tuple[str, ...] = ()
    privacy_id: str | None = None  # column whose equal entries form one unit of privacy
    rows_per_id: int | None = None
    id_weighting: str = "id"
    tolerance: float = 0.01  # of the certificate's verdicts
    title: str = ""  # heading of reports
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `TrainingConfig` that differ

    def __post_init__(self) -> None:
        for name in ("groups", "constraints", "classes", "features", "leave_out"):
            object.__setattr__(self, name, _validate.texts(**{name: getattr(self, name)}))
        if not isinstance(self.label, str) or not self.label:
            raise InvalidInput(f"label must name the column to predict, got {self.label!r}")
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon, hint="none trains without privacy")
        if self.delta is not None:
            _validate.inside(delta=self.delta)
        _validate.non_negative(tolerance=self.tolerance)
        self._check_roles()
        _ = self.config
        # one spelling for one constraint, and errors before anything is read
        object.__setattr__(self, "constraints", tuple(map(format_constraint, self.declared)))

    def _check_roles(self) -> None:
        if self.features and self.leave_out:
            raise InvalidInput("features and leave_out exclude each other; give one of them")
        roles = {name: getattr(self, name) for name in ("groups", "features", "leave_out")}
        for role, names in {**roles, "privacy_id": (self.privacy_id,)}.items():
            if self.label in names:
                raise InvalidInput(f"column {self.label!r} is the label and cannot be in {role}")
            if role in ("groups", "features") and self.privacy_id in names:
                raise InvalidInput(f"column {self.privacy_id!r} is the privacy id and cannot be in {role}")

    @property
    def config(self) -> TrainingConfig:
        """The settings of training."""
        if not isinstance(self.training, Mapping):
            raise InvalidType(f"training must map names to settings, got {type(self.training).__name__}")
        _refuse_unknown("setting of training", self.training, TrainingConfig().to_dict())
        return TrainingConfig(**{"tolerance": self.tolerance, **self.training})

    @property
    def declared_classes(self) -> list[Any] | None:
        """The declared classes; whole numbers if all of them are."""
        whole = all(text.removeprefix("-").isdecimal() for text in self.classes)
        return [int(text) if whole else text for text in self.classes] or None

    @property
    def declared(self) -> list[Any]:
        """The constraints as objects."""
        return [parse_constraint(text) for text in self.constraints]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; tuples become lists."""
        found = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}
        return {**found, "training": dict(self.training)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Settings:
        """Read what `to_dict` wrote; unknown fields are rejected."""
        if not isinstance(fields, Mapping) or "label" not in fields:
            raise InvalidInput("settings must be fields by name, a label among them")
        _refuse_unknown("settings", fields, [field.name for field in dataclasses.fields(cls)])
        return cls(**fields)


def _refuse_unknown(what: str, given: Any, known: Any) -> None:
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise InvalidInput(f"unknown {what}: {', '.join(unknown)}; known are {', '.join(known)}")
