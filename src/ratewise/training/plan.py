"""The plan: every release of a fit, with its noise, fixed from public facts before a row is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ratewise.accounting import Event, GaussianEvent, PrivacyUnit, ThresholdEvent, TrainingEvent, calibrate_plan
from ratewise.mechanisms.noise import Mechanism, NoNoise, RoundedGaussianMechanism, RoundedLaplaceMechanism
from ratewise.training import config as defaults
from ratewise.training.config import TrainingConfig

DISCOVERY = "classes and group values"
RANGES = "column types and ranges"
STATISTICS = "column histograms"
ROWS_PER_ID = "rows per id"
TRAINING = "training"
CORRECTION = "correction"
CERTIFICATE = "certificate"


@dataclass(frozen=True)
class PublicFacts:
    """What is known before a row is read."""

    n_units: int
    n_discovered: int = 0  # label and groups whose values must be found
    n_unbounded: int = 0  # features whose type, bounds or values must be found
    statistics_norm: float = 0.0  # L2 norm of what a unit adds to the column histograms; 0 if none are released
    constrained: bool = False
    find_rows_per_id: bool = False
    corrected: bool = False  # whether the trained model is measured before the certificate, to correct it


@dataclass(frozen=True)
class Plan:
    """Every release of a fit. The ledger admits `events` as a whole before the first of them."""

    n_units: int
    sampling_rate: float
    steps: int
    events: dict[str, Event]  # by name, in the order of release; empty without privacy
    unit: PrivacyUnit
    neighbours: str
    epsilon: float  # what `events` cost together, with `delta`
    delta: float
    statistics_norm: float = 0.0  # sensitivity of the column histograms
    corrected: bool = False  # whether the model is measured before the certificate (`certificate.choose_shift`)

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

    @property
    def most_rows_share(self) -> float:
        """Bound on the share of units in a sample; a sample is larger with a probability below 1e-20."""
        largest = self.expected_units + 10.0 * math.sqrt(self.expected_units) + 40.0
        return min(1.0, largest / self.n_units)

    def threshold(self, name: str) -> tuple[float, float]:
        """Return noise multiplier and delta of a release with a threshold; zeros without privacy."""
        event: Any = self.events.get(name)
        return (0.0, 0.0) if event is None else (float(event.noise), float(event.delta))

    def gaussian(self, name: str, sensitivity: float, step: float = 1.0) -> Mechanism:
        """Return the mechanism of a Gaussian release of a vector whose entries are multiples of `step`, a power of two."""
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
    """Return the plan of a fit that spends (`epsilon`, `delta`), of which `other_events` take their part."""
    rate = config.sampling_rate or min(0.5, defaults.LARGEST_SAMPLE / facts.n_units)
    steps = config.steps or defaults.STEPS
    corrected = facts.constrained and facts.corrected
    base = Plan(facts.n_units, rate, steps, {}, unit, neighbours, math.inf, 0.0, facts.statistics_norm, corrected)

    def training(noise: float) -> Event:
        return _training_event(facts, config, rate, steps, noise)

    return calibrated(base, _shares(facts, config), epsilon, delta, training=training, other_events=other_events)


def calibrated(
    plan: Plan,
    shares: Mapping[str, float],
    epsilon: float | None,
    delta: float,
    *,
    training: Callable[[float], Event] = GaussianEvent,
    other_events: tuple[Event, ...] = (),
) -> Plan:
    """Return a plan with the releases of `shares`, which spend (`epsilon`, `delta`) together with `other_events`.

    Every release i has a share s_i of the budget in units of 1/sigma**2: its noise multiplier is
    ``scale / sqrt(s_i)``, for a step of training ``scale * q * sqrt(steps / s)``, and one scale for all is found by exact
    composition. Without privacy there are no releases.
    """
    if epsilon is None:
        return plan

    def build(scale: float) -> dict[str, Event]:
        events: dict[str, Event] = {}
        for name, share in shares.items():
            noise = scale / math.sqrt(share)
            if name in (DISCOVERY, RANGES):
                events[name] = ThresholdEvent(noise, defaults.SIDE_SHARE * delta)
            else:
                events[name] = training(noise) if name == TRAINING else GaussianEvent(noise)
        return events

    found = calibrate_plan(
        epsilon, delta, lambda scale: (*build(scale).values(), *other_events), neighbours=plan.neighbours
    )
    return replace(plan, events=build(found.scale), epsilon=found.epsilon, delta=delta)


def _shares(facts: PublicFacts, config: TrainingConfig) -> dict[str, float]:
    shares: dict[str, float] = {}
    if facts.find_rows_per_id:
        shares[ROWS_PER_ID] = defaults.ROWS_PER_ID_SHARE
    if facts.n_discovered:
        shares[DISCOVERY] = config.discovery_share
    if facts.n_unbounded:
        shares[RANGES] = config.discovery_share
    if facts.statistics_norm:
        shares[STATISTICS] = config.statistics_share
    shares[TRAINING] = 0.0  # keeps its place in the order of releases
    if facts.constrained and facts.corrected:
        shares[CORRECTION] = defaults.CORRECTION_SHARE
    if facts.constrained:
        shares[CERTIFICATE] = config.certificate_share
    shares[TRAINING] = 1.0 - sum(shares.values())
    return shares


def _training_event(facts: PublicFacts, config: TrainingConfig, rate: float, steps: int, noise: float) -> TrainingEvent:
    joint = max(noise * rate * math.sqrt(steps), defaults.LEAST_STEP_NOISE)
    if not facts.constrained:
        return TrainingEvent(rate, steps, gradient_noise=joint, histogram=None)
    share = config.histogram_share or defaults.histogram_share(noise, facts.n_units)
    counts = joint / math.sqrt(share)
    if config.histogram == "laplace":
        counts /= math.sqrt(2.0)  # equal leading terms of 1 / noise**2
    return TrainingEvent(
        rate, steps, gradient_noise=joint / math.sqrt(1.0 - share), histogram_noise=counts, histogram=config.histogram
    )


_PURPOSE = {
    ROWS_PER_ID: "bounds the number of rows of an id",
    DISCOVERY: "finds classes and group values that were not declared",
    RANGES: "finds types, ranges and vocabularies of columns that were not declared",
    STATISTICS: "scales the features: means, deviations and frequencies come from it",
    TRAINING: "one clipped gradient sum per step, and prediction counts if there are constraints",
    CORRECTION: "measures the trained model, whose decision threshold is moved if it clearly misses a constraint",
    CERTIFICATE: "measures the constraints on the returned model",
}


def explain_plan(plan: Plan, config: TrainingConfig, *, constrained: bool) -> str:
    """Return the releases of a plan and the settings that follow from public facts."""
    unit = "rows" if plan.unit.kind == "row" else "ids"
    lines = [
        f"{plan.n_units} {unit}; {plan.steps} steps; each step reads every one of them with probability {plan.sampling_rate:.4g}."
    ]
    if not plan.private:
        lines.append("No noise is added: there is no privacy guarantee.")
    for name, event in plan.events.items():
        if name == CERTIFICATE and not constrained:
            continue
        lines.append(f"- {name}: {event}; {_PURPOSE.get(name, '')}.")
    changed = {k: v for k, v in config.to_dict().items() if v != TrainingConfig().to_dict()[k]}
    if changed:
        lines.append("Settings that were changed: " + ", ".join(f"{k}={v!r}" for k, v in changed.items()) + ".")
    return "\n".join(lines)
