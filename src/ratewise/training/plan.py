"""The plan: every release of a fit, with its noise, fixed from public facts before a row is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from ratewise.accounting import (
    Event,
    GaussianEvent,
    PrivacyUnit,
    ThresholdEvent,
    TrainingEvent,
    calibrate_plan,
)
from ratewise.mechanisms.noise import (
    Mechanism,
    NoNoise,
    RoundedGaussianMechanism,
    RoundedLaplaceMechanism,
)
from ratewise.training.config import TrainingConfig

DISCOVERY = "classes and group values"
RANGES = "column types and ranges"
STATISTICS = "column histograms"
ROWS_PER_ID = "rows per id"
TRAINING = "training"
CORRECTION = "correction"
CERTIFICATE = "certificate"

STEPS = 200
_LARGEST_SAMPLE = 65_536
_THRESHOLD_DELTA = 0.1  # of delta, for each of two releases with thresholds
_LEAST_STEP_NOISE = 0.2  # with less, a small sampling rate hides nothing
_CORRECTION_SHARE = 0.01  # of the budget, in units of 1 / sigma**2


@dataclass(frozen=True)
class PublicFacts:
    """What is known before a row is read.

    Attributes
    ----------
    n_units : int
    n_columns : int
        Feature columns.
    n_discovered : int
        Columns (label, groups) whose values must be found.
    n_unbounded : int
        Feature columns whose type, bounds or values must be found.
    statistics_norm : float
        L2 norm of what a unit adds to the column histograms; 0 if none are released.
    constrained : bool
    find_rows_per_id : bool
    corrected : bool
        Whether the trained model is measured once before the certificate, and corrected if it misses a constraint.
    """

    n_units: int
    n_columns: int
    n_discovered: int = 0
    n_unbounded: int = 0
    statistics_norm: float = 0.0
    constrained: bool = False
    find_rows_per_id: bool = False
    corrected: bool = False


@dataclass(frozen=True)
class Plan:
    """Every release of a fit. The ledger admits `events` as a whole before the first of them.

    Attributes
    ----------
    n_units : int
    sampling_rate : float
    steps : int
    events : dict of str to Event
        By name, in the order of release; empty without privacy.
    unit : PrivacyUnit
    neighbours : str
    epsilon, delta : float
        What `events` cost together.
    statistics_norm : float
        Sensitivity of the column histograms.
    corrected : bool
        Whether there is a measurement before the certificate (`ratewise.training.certificate.choose_shift`).
    """

    n_units: int
    sampling_rate: float
    steps: int
    events: dict[str, Event]
    unit: PrivacyUnit
    neighbours: str
    epsilon: float
    delta: float
    statistics_norm: float = 0.0
    corrected: bool = False

    @property
    def private(self) -> bool:
        """Whether noise is added."""
        return bool(self.events)

    @property
    def expected_units(self) -> float:
        """The constant that sums over a sample are divided by."""
        return self.n_units * self.sampling_rate

    @property
    def training(self) -> TrainingEvent | None:
        """The event of the training steps."""
        event = self.events.get(TRAINING)
        return event if isinstance(event, TrainingEvent) else None

    def gaussian(self, name: str, sensitivity: float, step: float = 1.0) -> Mechanism:
        """Return the mechanism of a Gaussian release of the plan.

        Parameters
        ----------
        name : str
        sensitivity : float
            Of the vector that is released.
        step : float
            Power of two that all entries of the vector are multiples of.
        """
        event: Any = self.events.get(name)
        if event is None:
            return NoNoise()
        return RoundedGaussianMechanism(float(event.noise), sensitivity, whole=True, step=step)

    def gradient_mechanism(self, clip: float, slack: float) -> Mechanism:
        """Return the mechanism of the clipped gradient sums; `slack` bounds their rounding errors."""
        if self.training is None or self.training.gradient_noise is None:
            return NoNoise()
        return RoundedGaussianMechanism(float(self.training.gradient_noise), clip, slack=slack)

    def histogram_mechanism(self, step: float) -> Mechanism:
        """Return the mechanism of the prediction counts of a step, which are multiples of `step`."""
        if self.training is None or self.training.histogram_noise is None:
            return NoNoise()
        law = RoundedLaplaceMechanism if self.training.histogram == "laplace" else RoundedGaussianMechanism
        return law(float(self.training.histogram_noise), 1.0, whole=True, step=step)


def plan_for(
    facts: PublicFacts,
    config: TrainingConfig,
    *,
    epsilon: float | None,
    delta: float,
    neighbours: str,
    unit: PrivacyUnit,
    other_events: tuple[Event, ...] = (),
) -> Plan:
    """Return the plan that spends (`epsilon`, `delta`), of which `other_events` take their part.

    Every release i has a share s_i of the budget in units of 1/sigma**2: its noise multiplier is
    ``scale / sqrt(s_i)``, for a step of training ``scale * q * sqrt(steps / s)``, and one scale for all is found by exact
    composition.
    """
    rate = config.sampling_rate or min(0.5, _LARGEST_SAMPLE / facts.n_units)
    steps = config.steps or STEPS
    base = Plan(
        facts.n_units,
        rate,
        steps,
        {},
        unit,
        neighbours,
        math.inf,
        0.0,
        facts.statistics_norm,
        facts.constrained and facts.corrected,
    )
    if epsilon is None:
        return base
    shares = _shares(facts, config)
    threshold = _THRESHOLD_DELTA * delta

    def build(scale: float) -> dict[str, Event]:
        events: dict[str, Event] = {}
        for name, share in shares.items():
            noise = scale / math.sqrt(share)
            if name in (DISCOVERY, RANGES):
                events[name] = ThresholdEvent(noise, threshold)
            elif name == TRAINING:
                events[name] = _training_event(facts, config, rate, steps, noise)
            else:
                events[name] = GaussianEvent(noise)
        return events

    found = calibrate_plan(
        epsilon, delta, lambda scale: (*build(scale).values(), *other_events), neighbours=neighbours
    )
    return replace(base, events=build(found.scale), epsilon=found.epsilon, delta=delta)


def _shares(facts: PublicFacts, config: TrainingConfig) -> dict[str, float]:
    shares: dict[str, float] = {}
    if facts.find_rows_per_id:
        shares[ROWS_PER_ID] = 0.01
    if facts.n_discovered:
        shares[DISCOVERY] = config.discovery_share
    if facts.n_unbounded:
        shares[RANGES] = config.discovery_share
    if facts.statistics_norm:
        shares[STATISTICS] = config.statistics_share
    shares[TRAINING] = 0.0  # keeps its place in the order of releases
    if facts.constrained and facts.corrected:
        shares[CORRECTION] = _CORRECTION_SHARE
    if facts.constrained:
        shares[CERTIFICATE] = config.certificate_share
    shares[TRAINING] = max(0.1, 1.0 - sum(shares.values()))
    return shares


def _training_event(
    facts: PublicFacts, config: TrainingConfig, rate: float, steps: int, noise: float
) -> TrainingEvent:
    joint = max(noise * rate * math.sqrt(steps), _LEAST_STEP_NOISE)
    if not facts.constrained:
        return TrainingEvent(rate, steps, gradient_noise=joint, histogram=None)
    share = config.histogram_share or histogram_share(noise, facts.n_units)
    counts = joint / math.sqrt(share)
    if config.histogram == "laplace":
        counts /= math.sqrt(2.0)  # equal leading terms of 1 / noise**2
    return TrainingEvent(
        rate,
        steps,
        gradient_noise=joint / math.sqrt(1.0 - share),
        histogram_noise=counts,
        histogram=config.histogram,
    )


def histogram_share(single_release: float, n_units: int) -> float:
    """Return the share of a step that prediction counts get: a tenth, up to a quarter on small tables.

    With a tenth, the noise of a count followed over a quarter of the steps is about ``6 * single_release / n``
    of the rows. Where that passes 0.002, more goes to the counts.
    """
    return min(max(0.1, 300.0 * single_release / n_units), 0.25)


@lru_cache(maxsize=64)
def single_release_noise(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one Gaussian release that spends (epsilon, delta)."""

    def excess(noise: float) -> float:
        a, b = 0.5 / noise - epsilon * noise, -0.5 / noise - epsilon * noise
        return float(ndtr(a) - math.exp(epsilon + float(log_ndtr(b)))) - delta

    low, high = 1e-3, 1.0
    while excess(high) > 0:
        low, high = high, 2.0 * high
    while excess(low) < 0:
        low, high = low / 2.0, low
    return float(brentq(excess, low, high))
