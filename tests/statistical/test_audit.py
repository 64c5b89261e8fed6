"""Audits of the shipped mechanisms: never above the claim more often than promised, and not without power."""

import pytest
import torch
from scipy import stats

from ratewise.accounting import TrainingEvent
from ratewise.audit import (
    RELEASES,
    TableSubject,
    audit_one_run,
    audit_step,
    audit_training,
    check_noise,
    check_replay,
    check_sampling,
)
from ratewise.data.table import Units
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.torch import clipping
from ratewise.torch.audit import TorchSubject


def plan(**changes):
    numbers = {"sampling_rate": 1.0, "steps": 1, "gradient_noise": 1.0, "histogram_noise": 1.5, **changes}
    return TrainingEvent(**{"histogram": "gaussian", **numbers})


KINDS = {
    "gaussian": plan(),
    "laplace": plan(histogram="laplace", histogram_noise=1.0),
    "less noise": plan(gradient_noise=0.7),
    "gradient only": plan(histogram_noise=None, histogram=None),
}


# The gradient is the same beside both laws of the histogram, and the histogram beside both noises of the gradient.
@pytest.mark.parametrize(
    ("kind", "releases"),
    [
        *(("gaussian", releases) for releases in RELEASES),
        *(("laplace", "together"), ("laplace", "histogram")),
        *(("less noise", "together"), ("less noise", "gradient")),
        ("gradient only", "gradient"),
    ],
)
def test_a_single_step_passes_and_half_of_the_claim_is_found(kind, releases):
    found = audit_step(KINDS[kind], games=4000, releases=releases, delta=0.05, confidence=0.99, random_state=1)
    assert found.passed, str(found)
    assert found.lower_bound >= 0.5 * found.claimed, str(found)


@pytest.mark.parametrize("releases", RELEASES)
def test_canaries_that_are_persons_with_several_rows(releases):
    """All rows of a person together show no more than the claim, and at least half of it."""
    subject = TableSubject(KINDS["gaussian"], rows_per_id=4)
    options = {"games": 4000, "releases": releases, "delta": 0.05, "confidence": 0.99, "random_state": 1}
    found = audit_step(KINDS["gaussian"], subject=subject, **options)
    assert found.passed, str(found)
    assert found.lower_bound >= 0.5 * found.claimed, str(found)


def test_an_engine_that_bounds_rows_instead_of_persons_fails_the_audit(monkeypatch):
    blocks = Units.blocks

    def by_rows(self, sample, at_once):
        return ((rows, None) for rows, _ in blocks(self, sample, at_once))

    monkeypatch.setattr(Units, "blocks", by_rows)
    subject = TableSubject(KINDS["gaussian"], rows_per_id=4)
    found = audit_step(KINDS["gaussian"], subject=subject, games=4000, releases="gradient", delta=0.05, random_state=1)
    assert not found.passed, str(found)


def test_a_network_that_clips_rows_instead_of_persons_fails_the_audit(monkeypatch):
    torch.set_num_threads(1)
    weights = clipping._weights
    monkeypatch.setattr(clipping, "_weights", lambda shares, scales, clip, units: weights(shares, scales, clip))
    subject = TorchSubject(KINDS["gaussian"], rows_per_id=4)
    found = audit_step(KINDS["gaussian"], subject=subject, games=1000, releases="gradient", delta=0.05, random_state=1)
    assert not found.passed, str(found)


def test_repeated_audits_stay_below_the_claim():
    """At 95% confidence one audit in twenty may be above: of forty, more than eight would be a surprise."""
    above = 0
    for seed in range(40):
        releases = RELEASES[seed % 3]
        kind = list(KINDS.values())[seed // 3 % 3]
        above += not audit_step(kind, games=200, releases=releases, delta=0.01, random_state=seed).passed
    assert above <= stats.binom.isf(1e-3, 40, 0.05)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_short_trainings(rate):
    several = plan(sampling_rate=rate, steps=5, gradient_noise=1.5, histogram_noise=3.0)
    found = audit_training(several, games=4000, delta=0.05, random_state=6)
    assert found.passed, str(found)
    assert found.lower_bound > 0.25 * found.claimed, str(found)


def test_one_run_with_many_canaries():
    whole = plan(sampling_rate=0.5, steps=60, gradient_noise=6.0, histogram_noise=12.0)
    found = audit_one_run(whole, canaries=500, delta=1e-4, random_state=0)
    assert found.passed, str(found)
    assert found.lower_bound > 0.25 * found.claimed, str(found)


def test_one_run_finds_noise_that_is_too_small():
    """What is played has a third of the noise of what is claimed."""
    honest = plan(sampling_rate=1.0, steps=10, gradient_noise=9.0, histogram_noise=18.0)
    lying = plan(sampling_rate=1.0, steps=10, gradient_noise=3.0, histogram_noise=6.0)
    found = audit_one_run(lying, canaries=500, delta=1e-4, random_state=0)
    claimed = audit_one_run(honest, canaries=100, delta=1e-4, random_state=0).claimed
    assert found.lower_bound > claimed


@pytest.mark.parametrize(
    ("releases", "rows_per_id"), [("gradient", 4), ("histogram", 1), ("together", 1), ("together", 4)]
)
def test_the_torch_engine(releases, rows_per_id):
    """Canaries are rows, or persons with several rows."""
    torch.set_num_threads(1)
    worst = plan(gradient_noise=0.5, histogram_noise=0.75)
    subject = TorchSubject(worst, rows_per_id=rows_per_id)
    found = audit_step(worst, games=4500, releases=releases, delta=0.05, random_state=5, subject=subject)
    assert found.passed, str(found)
    assert found.lower_bound >= 0.5 * found.claimed, str(found)


def test_the_torch_engine_in_one_run():
    torch.set_num_threads(1)
    whole = plan(sampling_rate=0.5, steps=40, gradient_noise=6.0, histogram_noise=12.0)
    found = audit_one_run(whole, delta=1e-4, random_state=1, subject=TorchSubject(whole, 800, 0))
    assert found.passed, str(found)
    assert found.lower_bound > 0.2 * found.claimed, str(found)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", [1, None])
def test_checks_pass_on_the_shipped_code(law, seed):
    shipped = plan(sampling_rate=0.3, histogram=law, histogram_noise=4.0)
    assert check_noise(shipped, steps=1500, streams=RandomStreams.from_seed(seed)).passed
    assert check_replay(shipped, streams=RandomStreams.from_seed(seed)).passed
    assert check_sampling(0.1, steps=3000, streams=RandomStreams.from_seed(seed)).passed
