"""Settings of a training run that most users leave alone, for every kind of model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ratewise import _validate
from ratewise.exceptions import InvalidInput

HISTOGRAMS = ("gaussian", "laplace")
SCHEDULES = ("linear", "constant")
_MOST_STEPS = 10_000_000  # accounting takes seconds there, and minutes beyond
_SIZES = 1e-100, 1e100  # of clipping norms and learning rates whose products are still numbers


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of training; None leaves a setting to a rule of public numbers (`ratewise.training.plan`).

    Parameters
    ----------
    steps : int, optional
        Number of steps; 200 for tables.
    sampling_rate : float, optional
        Probability that a unit takes part in a step; a half, with at most 65,536 expected units per step.
    clip : float, optional
        Bound on the norm of a unit's gradient.
    learning_rate : float, optional
    momentum : float
    schedule : "linear" or "constant"
        Whether the learning rate falls linearly to zero.
    l2 : float, optional
        Penalty ``l2 / 2 * |weights|**2``, intercepts excluded, a Gaussian prior on the weights of standardised
        features; for tables 0.001, with constraints 80 / n but at most 0.004. It reads no rows.
    histogram : "gaussian" or "laplace"
        Law of the noise of prediction counts.
    histogram_share : float, optional
        Share of a step's budget, in units of 1 / sigma**2, that prediction counts get.
    rates : "hard" or "soft"
        Whether constraints refer to predicted classes or predicted probabilities.
    temperature : float
        Soft predictions are ``softmax(temperature * scores)``.
    dual_rate, dual_damping : float
        Integral gain of the multipliers per step of 200, and proportional gain.
    margin : float or "certified"
        Training aims below every bound by this much; "certified": by the expected half-width of the
        certificate's intervals, so that a constraint is likely to be held at tolerance 0.
    statistics_share, discovery_share, certificate_share : float
        Shares of the budget, in units of 1 / sigma**2, of the column histograms, of finding undeclared
        values, and of the certificate.
    correction : bool
        Whether the trained model is measured once before the certificate and, if it clearly misses a constraint, the
        score of one class is shifted (`ratewise.training.certificate.choose_shift`). It counts predicted classes, so there
        is none with soft rates.
    tolerance : float
        Of the certificate's verdicts.
    max_sample_weight : float
        Public upper end of `sample_weight`: weights are divided by it and clipped to 0 to 1.
    spread : float, optional
        Prior on shape functions: expected squared norm of the cell indicators of a continuous column; 0.025 n / sigma_1
        divided by the number of such columns, with sigma_1 the noise of a single release that spends the budget.
    """

    steps: int | None = None
    sampling_rate: float | None = None
    clip: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.5
    schedule: str = "linear"
    l2: float | None = None
    histogram: str = "gaussian"
    histogram_share: float | None = None
    rates: str = "hard"
    temperature: float = 1.0
    dual_rate: float = 0.3
    dual_damping: float = 3.0
    margin: float | str = 0.0
    statistics_share: float = 0.1
    discovery_share: float = 0.05
    certificate_share: float = 0.05
    correction: bool = True
    tolerance: float = 0.01
    max_sample_weight: float = 1.0
    spread: float | None = None

    def __post_init__(self) -> None:
        optional: dict[str, Any] = {
            "steps": _validate.count,
            "sampling_rate": _validate.fraction,
            "clip": _validate.positive,
            "learning_rate": _validate.positive,
            "histogram_share": _validate.inside,
            "spread": _validate.positive,
            "l2": _validate.non_negative,
        }
        for name, check in optional.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(**{name: value}))
        self._check_sizes()
        for name in ("dual_rate", "dual_damping", "tolerance"):
            object.__setattr__(self, name, _validate.non_negative(**{name: getattr(self, name)}))
        for name in ("statistics_share", "discovery_share", "certificate_share"):
            share = _validate.fraction(**{name: getattr(self, name)})
            if share > 0.5:
                raise InvalidInput(f"{name} must be at most 0.5, got {share!r}: training needs the rest")
            object.__setattr__(self, name, share)
        if not 0.0 <= _validate.non_negative(momentum=self.momentum) < 1.0:
            raise InvalidInput(f"momentum must be at least 0 and below 1, got {self.momentum!r}")
        _validate.positive(temperature=self.temperature)
        _validate.positive(max_sample_weight=self.max_sample_weight)
        _validate.one_of(HISTOGRAMS, histogram=self.histogram)
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        _validate.one_of(("hard", "soft"), rates=self.rates)
        if self.margin != "certified":
            object.__setattr__(self, "margin", _validate.non_negative(margin=self.margin))

    def _check_sizes(self) -> None:
        if self.steps is not None and self.steps > _MOST_STEPS:
            raise InvalidInput(
                f"steps must be at most {_MOST_STEPS}, got {self.steps}; a larger sampling_rate needs fewer"
            )
        for name in ("clip", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not _SIZES[0] <= value <= _SIZES[1]:
                raise InvalidInput(f"{name} must lie between {_SIZES[0]:g} and {_SIZES[1]:g}, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
