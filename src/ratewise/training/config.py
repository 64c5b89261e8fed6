"""Settings of a training run that most users leave alone, and the rules of public numbers for those not given.

Every constant of training that was chosen by measurement is here; nothing depends on rows. `resolution` is the number
of units per noise multiplier of a single release that spends the budget, n / sigma_1: how fine a model the budget can
resolve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from ratewise import _validate
from ratewise.accounting.accountant import single_release_noise
from ratewise.exceptions import InvalidInput
from ratewise.preprocessing.grids import LOG_CELLS, REFINEMENT

HISTOGRAMS = ("gaussian", "laplace")
SCHEDULES = ("linear", "constant")
_MOST_STEPS = 10_000_000  # accounting takes seconds there, and minutes beyond
_SIZES = 1e-100, 1e100  # of clipping norms and learning rates whose products are still numbers

STEPS = 200
LARGEST_SAMPLE = 65_536  # expected units of a step; small tables are sampled with probability 1/2
# Of a budget, for what a fit releases beside gradients: column histograms (in units of 1 / sigma**2), prediction counts (of
# a step), a threshold (of delta). Each release of found values, and the certificate, get half of it.
SIDE_SHARE = 0.1
LEAST_STEP_NOISE = 0.2  # with less, a small sampling rate hides nothing
ROWS_PER_ID_SHARE = CORRECTION_SHARE = 0.01  # of the budget, in units of 1 / sigma**2

_FEW = 500.0  # resolution from which logarithmic cells are used; finer ones from ten times as much
_FINE_COLUMNS = 5  # so many columns can have the finest logarithmic cells; more columns share their number
_ROWS_OF_A_CELL = 50  # units per logarithmic cell of a column, on average: with fewer, fine cells fit the sample
# prior on shape functions: squared norm of all cell indicators of a row, per unit of resolution
_SPREAD = 0.025
_L2 = 0.001  # penalty on weights without constraints
_CONSTRAINED_L2 = (0.004, 80.0)  # with constraints: the lesser of the first and of the second divided by the units
_GRADIENT_NOISE = 0.075  # noise of the mean gradient, in score units, that the clipping norm is chosen for
_CLIPS = (0.5, 4.0)
_LEARNING_RATE = 2.0
SHIFTS_BETWEEN_EDGES = REFINEMENT  # shifts of a class that are tried between two edges of margins
KNOWN_SHARE = 0.002  # of the rows: counts are to be known to this, and denominators are at least this

_CHECKS: dict[str, Any] = {
    **dict.fromkeys(("clip", "learning_rate", "spread", "temperature", "max_sample_weight"), _validate.positive),
    **dict.fromkeys(
        ("l2", "group_penalty", "momentum", "dual_rate", "dual_damping", "margin", "tolerance"), _validate.non_negative
    ),
    **dict.fromkeys(("sampling_rate", "statistics_share", "discovery_share", "certificate_share"), _validate.fraction),
    "steps": _validate.count,
    "histogram_share": _validate.inside,
}
_CHOICES = {"histogram": HISTOGRAMS, "schedule": SCHEDULES, "rates": ("hard", "soft")}


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
    group_penalty : float
        Penalty on the norm of the cell weights of each continuous column, in standard errors of their mean gradient for
        residuals of 1. It shrinks the cells of columns whose shape says little, and reads no rows.
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
    statistics_share: float = SIDE_SHARE
    discovery_share: float = SIDE_SHARE / 2.0
    certificate_share: float = SIDE_SHARE / 2.0
    correction: bool = True
    tolerance: float = 0.01
    max_sample_weight: float = 1.0
    spread: float | None = None
    group_penalty: float = 0.08

    def __post_init__(self) -> None:
        for entry in fields(self):
            check, value = _CHECKS.get(entry.name), getattr(self, entry.name)
            unset = value is None and entry.default is None
            if check is not None and not unset and (entry.name, value) != ("margin", "certified"):
                object.__setattr__(self, entry.name, check(**{entry.name: value}))
        for name, choices in _CHOICES.items():
            _validate.one_of(choices, **{name: getattr(self, name)})
        self._check_sizes()
        spent = self.statistics_share + 2.0 * self.discovery_share + self.certificate_share
        if spent > 0.9:
            raise InvalidInput(
                f"statistics_share + 2 * discovery_share + certificate_share must be at most 0.9, got {spent:g}: "
                "training needs the rest"
            )

    def _check_sizes(self) -> None:
        if not self.momentum < 1.0:
            raise InvalidInput(f"momentum must be at least 0 and below 1, got {self.momentum!r}")
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


def resolution(n_units: int, epsilon: float | None, delta: float) -> float:
    """Return the number of units per noise multiplier of a single release."""
    return math.inf if epsilon is None else n_units / single_release_noise(epsilon, delta)


def logarithmic_cells(resolution: float, n_units: int, n_continuous: int) -> int:
    """Return the number of logarithmic cells per continuous column of an additive model.

    They are as fine as noise and sample allow. A large table shares a fixed number of cells among its columns, because
    every cell is a parameter.
    """
    if resolution < _FEW:
        return 0
    if resolution < 10.0 * _FEW:
        return LOG_CELLS
    most = _FINE_COLUMNS * REFINEMENT * LOG_CELLS // max(n_continuous, _FINE_COLUMNS)
    return max(min(most, n_units // _ROWS_OF_A_CELL), LOG_CELLS)


def spread(resolution: float, n_continuous: int) -> float:
    """Return the expected squared norm of the cell indicators of a continuous column; columns share one norm."""
    return _SPREAD * resolution / max(n_continuous, 1)


def l2(n_units: int, constrained: bool) -> float:
    """Return the penalty on the weights.

    With constraints it is larger on small tables: large scores saturate the soft predictions that constraints
    differentiate, and the multipliers cannot move them within the steps.
    """
    return min(_CONSTRAINED_L2[0], _CONSTRAINED_L2[1] / n_units) if constrained else _L2


def step_sizes(
    noise: float | None, length: float, expected_units: float, clip: float | None, constrained: bool
) -> tuple[float, float]:
    """Return the clipping norm, unless it is given, and the learning rate.

    The noise of a mean gradient moves scores by ``noise * clip * length / (n q)`` with length = sqrt(E |x|**2). The
    clipping norm makes this 0.075, between 0.5 and 4; it is 4 without noise. With constraints, whose gradients are large,
    it is at most `length` if that is more. No unit moves a step by more than 8: a larger clipping norm shortens the steps,
    which keeps them stable where many features are correlated, which public facts do not tell. Noise beyond twice 0.075
    shortens the steps in proportion.
    """
    most = max(_CLIPS[1], length) if constrained else _CLIPS[1]
    unit = 0.0 if noise is None else noise * length / expected_units
    clip = clip or min(max(_GRADIENT_NOISE / max(unit, 1e-300), _CLIPS[0]), most)
    shortened = min(1.0, _CLIPS[1] / clip, 2.0 * _GRADIENT_NOISE / max(unit * clip, 1e-300))
    return clip, _LEARNING_RATE * shortened


def histogram_share(single_release: float, n_units: int) -> float:
    """Return the share of a step that prediction counts get: a tenth, up to a quarter on small tables.

    With a tenth, the noise of a count followed over a quarter of the steps is about ``6 * single_release / n``
    of the rows. Where that passes `KNOWN_SHARE`, more goes to the counts.
    """
    return min(max(SIDE_SHARE, SIDE_SHARE * (6.0 / KNOWN_SHARE) * single_release / n_units), 0.25)
