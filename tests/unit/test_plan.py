"""Plans: what is composed, in which shares, and that a fit releases exactly what was planned."""

import math

import numpy as np
import pandas as pd
import pytest

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.accounting import GaussianEvent, PrivacyUnit, ThresholdEvent, TrainingEvent, epsilon
from ratewise.accounting.accountant import single_release_noise
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import (
    CERTIFICATE,
    DISCOVERY,
    RANGES,
    ROWS_PER_ID,
    STATISTICS,
    TRAINING,
    PublicFacts,
    plan_for,
)

NOTHING = PublicFacts(n_units=5000)
EVERYTHING = PublicFacts(5000, 2, 3, 2.0, True, True)


def planned(facts, target=1.0, **options):
    config = TrainingConfig(**options.pop("config", {}))
    options = {"delta": 1e-6, "neighbours": "zero_out", "unit": PrivacyUnit(), **options}
    return plan_for(facts, config, epsilon=target, **options)


@pytest.mark.parametrize("facts", [NOTHING, EVERYTHING])
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("neighbours", ["zero_out", "replace_one", "add_or_remove"])
def test_events_cost_what_was_asked_for(facts, target, neighbours):
    plan = planned(facts, target, neighbours=neighbours)
    cost = epsilon(list(plan.events.values()), 1e-6, neighbours=neighbours)
    assert 0.999 * target <= cost <= target
    assert plan.epsilon == pytest.approx(cost, rel=1e-3)


def test_other_events_take_their_part():
    other = (GaussianEvent(6.0),)
    plan = planned(EVERYTHING, other_events=other)
    assert 0.999 <= epsilon([*plan.events.values(), *other], 1e-6) <= 1.0


def test_shares_are_as_documented():
    plan = planned(EVERYTHING)
    assert list(plan.events) == [ROWS_PER_ID, DISCOVERY, RANGES, STATISTICS, TRAINING, CERTIFICATE]
    config = TrainingConfig()
    weights = {}
    for name, event in plan.events.items():
        if isinstance(event, TrainingEvent):
            per_step = event.gradient_noise**-2 + event.histogram_noise**-2
            weights[name] = per_step * event.steps * event.sampling_rate**2
        else:
            weights[name] = event.noise**-2
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    assert shares[STATISTICS] == pytest.approx(config.statistics_share)
    assert shares[DISCOVERY] == shares[RANGES] == pytest.approx(config.discovery_share)
    assert shares[CERTIFICATE] == pytest.approx(config.certificate_share)
    assert shares[ROWS_PER_ID] == pytest.approx(0.01)
    assert all(e.delta == pytest.approx(1e-7) for e in plan.events.values() if isinstance(e, ThresholdEvent))


@pytest.mark.parametrize("histogram", ["gaussian", "laplace"])
def test_the_share_of_prediction_counts(histogram):
    plan = planned(EVERYTHING, config={"histogram": histogram, "histogram_share": 0.2})
    event = plan.training
    counts = event.histogram_noise * (math.sqrt(2.0) if histogram == "laplace" else 1.0)
    assert counts**-2 / (counts**-2 + event.gradient_noise**-2) == pytest.approx(0.2)


def test_only_what_is_needed_is_planned():
    assert list(planned(NOTHING).events) == [TRAINING]
    assert planned(NOTHING).training.histogram_noise is None
    free = planned(EVERYTHING, target=None)
    assert not free.private
    assert free.events == {}


def test_mechanisms_have_the_noise_of_the_events():
    plan = planned(EVERYTHING)
    statistics = plan.gaussian(STATISTICS, 2.0)
    assert statistics.noise == plan.events[STATISTICS].noise
    assert statistics.standard_deviation == pytest.approx(2.0 * statistics.noise)
    gradient = plan.gradient_mechanism(3.0, 1e-3)
    assert (gradient.noise, gradient.sensitivity, gradient.slack) == (plan.training.gradient_noise, 3.0, 1e-3)
    fine = plan.histogram_mechanism(2.0**-20)
    assert fine.noise == plan.training.histogram_noise
    assert fine.grid <= 2.0**-20


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
def test_a_fit_releases_every_planned_event_exactly_once(persons, declared, constrained, monkeypatch):
    n, rng = 600, np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=n), "k": rng.choice(["a", "b"], n)})
    y, sex = (X["x"] > 0).astype(int), rng.choice(["F", "M"], n)
    released = []
    release = RoundedGaussianMechanism.release

    def watched(self, value, rng):
        released.append(self.noise)
        return release(self, value, rng)

    monkeypatch.setattr(RoundedGaussianMechanism, "release", watched)
    options = {"feature_bounds": {"x": (-3, 3), "k": ["a", "b"]}, "classes": [0, 1]} if declared else {}
    groups = {"sensitive_features": {"sex": sex}} if constrained else {}
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=0.3) if constrained else None,
        epsilon=20.0,
        config=TrainingConfig(steps=5),
        group_values={"sex": ["F", "M"]} if declared else None,
        **options,
    ).fit(X, y, **groups, **({"privacy_ids": np.arange(n) // 2} if persons else {}))
    plan = model.plan_
    expected = []
    for event in plan.events.values():
        if isinstance(event, TrainingEvent):
            for _ in range(event.steps):
                expected.append(event.gradient_noise)
                if event.histogram_noise is not None:
                    expected.append(event.histogram_noise)
        else:
            expected.append(event.noise)
    assert released == expected
    taken = model.ledger_.admissions[-1].released
    assert list(taken) == list(plan.events)
    assert all(count == (5 if name == TRAINING else 1) for name, count in taken.items())


def test_noise_of_a_single_release_is_found_for_any_budget():
    noises = [single_release_noise(epsilon, 1e-6) for epsilon in (1e-3, 1.0, 1e3, 1e7, 1e12)]
    assert noises == sorted(noises, reverse=True)
    assert noises[-1] < 1e-5
