"""Lower bounds on epsilon: published numbers, brute force, and what is refused."""

import json

import numpy as np
import pytest

from ratewise.accounting import TrainingEvent
from ratewise.audit import AuditResult, audit_one_run, audit_step, many_runs_bound, one_run_bound
from ratewise.exceptions import InvalidInput, RatewiseError, UnsupportedCombination


class TestManyRuns:
    def test_reference_numbers(self):
        assert many_runs_bound(900, 1000, 100, 1000, delta=1e-5) == pytest.approx(1.9897, abs=1e-4)
        assert many_runs_bound(1000, 1000, 0, 1000, delta=1e-5) == pytest.approx(5.6006, abs=1e-3)

    def test_a_coin_tells_nothing(self):
        assert many_runs_bound(500, 1000, 500, 1000) == 0.0
        assert many_runs_bound(0, 10, 0, 10) == 0.0
        assert many_runs_bound(10, 10, 10, 10) == 0.0

    def test_both_directions_count(self):
        """Hits are rare when the row is out, or misses are rare when it is in: the same evidence."""
        assert many_runs_bound(300, 1000, 3, 1000) == pytest.approx(many_runs_bound(997, 1000, 700, 1000))

    def test_right_at_least_as_often_as_promised(self):
        """Randomised response at epsilon 1, delta 0: the bound passes 1 in at most a twentieth of audits."""
        rng, p = np.random.default_rng(0), 1 / (1 + np.exp(-1.0))
        above = [
            many_runs_bound(int(rng.binomial(500, p)), 500, int(rng.binomial(500, 1 - p)), 500) > 1.0
            for _ in range(400)
        ]
        assert np.mean(above) <= 0.05
        tight = [
            many_runs_bound(int(rng.binomial(50_000, p)), 50_000, int(rng.binomial(50_000, 1 - p)), 50_000)
            for _ in range(20)
        ]
        assert min(tight) > 0.9


class TestOneRun:
    @pytest.mark.parametrize(
        ("numbers", "bound"), [((1000, 100, 75, 1e-4), 0.673), ((100_000, 1510, 1439, 1e-5), 2.67585)]
    )
    def test_published_numbers(self, numbers, bound):
        canaries, guesses, correct, delta = numbers
        assert one_run_bound(canaries, guesses, correct, delta=delta) == pytest.approx(bound, abs=1e-3)

    def test_closed_form_when_all_are_right(self):
        assert one_run_bound(50, 30, 30) == pytest.approx(-np.log(0.05 ** (-1 / 30) - 1), abs=1e-9)

    def test_a_delta_can_only_lower_it(self):
        bounds = [one_run_bound(1000, 100, 90, delta=delta) for delta in (0, 1e-6, 1e-4, 1e-2)]
        assert bounds == sorted(bounds, reverse=True)
        assert one_run_bound(1000, 100, 50) == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: many_runs_bound(5, 4, 0, 4), "hits_in must be at most games_in"),
        (lambda: many_runs_bound(0, 4, -1, 4), "hits_out must be at least 0"),
        (lambda: many_runs_bound(0, 0, 0, 4), "games_in must be at least 1"),
        (lambda: many_runs_bound(1, 4, 1, 4, delta=1.0), "delta must be below 1"),
        (lambda: many_runs_bound(1, 4, 1, 4, confidence=1.0), "confidence"),
        (lambda: one_run_bound(10, 20, 5), "guesses must be at most canaries"),
        (lambda: one_run_bound(10, 5, 6), "correct must be at most guesses"),
    ],
)
def test_bad_numbers(call, said):
    with pytest.raises(InvalidInput, match=said):
        call()


EVENT = TrainingEvent(sampling_rate=1.0, steps=1, gradient_noise=1.0, histogram=None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: audit_step(EVENT, releases="all"), "releases must be one of"),
        (lambda: audit_step(EVENT, attack="guess"), "attack must be one of"),
        (lambda: audit_step(EVENT, games=3), "games must be at least 20"),
        (lambda: audit_step(EVENT, games=50, releases="histogram"), "releases no histogram"),
        (lambda: audit_step(EVENT, games=50, attack="difference"), "releases no histogram"),
        (lambda: audit_one_run(EVENT, canaries=10, guesses=11), "guesses must be at most"),
    ],
)
def test_bad_audits(call, said):
    with pytest.raises(RatewiseError, match=said):
        call()
    assert issubclass(UnsupportedCombination, InvalidInput)


def result(lower, claimed):
    return AuditResult(
        lower_bound=lower,
        claimed=claimed,
        delta=1e-3,
        confidence=0.95,
        kind="step",
        releases="together",
        attack="likelihood",
        games=100,
        detail="nothing",
    )


def test_results_speak_plainly():
    passed, failed = result(1.0, 2.0), result(2.5, 2.0)
    assert passed.passed
    assert not failed.passed
    assert "evidence, not a proof" in str(passed)
    assert "FAILED" in str(failed)
    assert json.loads(json.dumps(passed.to_dict()))["passed"] is True
