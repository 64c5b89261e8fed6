"""The formula of one Gaussian release, against fifty digits and against the composition by FFT."""

import mpmath
import numpy as np
import pytest

from ratewise.accounting import GaussianEvent, LaplaceEvent, TrainingEvent, accountant, curve
from ratewise.accounting.losses import AddLoss, Composition, GaussianCurve, RemoveLoss, RowLoss


def exact(epsilon, noise):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), 1 / mpmath.mpf(noise)
        below = lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2  # noqa: E731
        return below(m / 2 - e / m) - mpmath.exp(e) * below(-m / 2 - e / m)


def test_delta_is_never_below_the_truth_and_hardly_above():
    rng = np.random.default_rng(0)
    for _ in range(1500):
        noise = 10 ** rng.uniform(-8, 12)
        epsilon = max(0.0, 0.5 / noise**2 + rng.uniform(-8, 28) / noise)
        truth = exact(epsilon, noise)
        if truth > 1e-200:
            assert 1.0 <= GaussianCurve(noise).delta(epsilon) / truth <= 1.0 + 5e-6 + 1e-10 / noise


def test_neither_is_that_of_many_releases_together():
    """Adding up their noise rounds, too."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        noises = 10 ** rng.uniform(-1.5, 2, rng.integers(1, 9))
        events = [GaussianEvent(float(noise), int(rng.integers(1, 9))) for noise in noises]
        with mpmath.workdps(60):
            one = 1 / mpmath.sqrt(sum(event.count / mpmath.mpf(event.noise) ** 2 for event in events))
        epsilon = float(1 / (2 * one**2) + rng.uniform(-2, 8) / one)
        assert curve(events).delta(max(0.0, epsilon)) >= exact(max(0.0, epsilon), one)


@pytest.mark.parametrize("noise", [0.05, 0.7, 4.0, 300.0, 1e6, 1e11])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-100])
def test_epsilon_is_the_least_one_on_the_safe_side(noise, delta):
    found = GaussianCurve(noise).epsilon(delta)
    assert found >= 0.0
    assert exact(found, noise) <= delta
    if found > 0.0:
        assert exact(found * (1 - 1e-6), noise) > delta * (1 - 1e-5)


@pytest.mark.parametrize("sampled", [RemoveLoss, AddLoss])
@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0, 40.0])
def test_the_composition_agrees(sampled, noise):
    composed = Composition(((sampled(RowLoss(noise), 1.0), 1),))
    formula = GaussianCurve(noise)
    for delta in (1e-3, 1e-5, 1e-10):
        assert composed.epsilon(delta) == pytest.approx(formula.epsilon(delta), rel=1e-4)
    for epsilon in (0.01, 0.5, 3.0):
        assert composed.deltas(np.array([epsilon]))[0] == pytest.approx(formula.delta(epsilon), rel=5e-3, abs=1e-26)
    assert formula.delta(1e6) > 0.0


class TestWhereItIsUsed:
    def test_releases_of_all_rows_are_one(self):
        events = GaussianEvent(3.0), GaussianEvent(8.0, 4), TrainingEvent(1.0, 4, 10.0, 10.0)
        one = 1.0 / np.sqrt(1 / 9 + 4 / 64 + 8 / 100)
        assert curve(events).epsilon(1e-5) == pytest.approx(GaussianCurve(one).epsilon(1e-5), rel=1e-10)
        both = curve(events, "replace_one").epsilon(1e-5)
        assert both == pytest.approx(GaussianCurve(one / 2).epsilon(1e-5), rel=1e-10)

    @pytest.mark.parametrize(
        "other", [TrainingEvent(0.9, 1, 10.0), LaplaceEvent(10.0), TrainingEvent(1.0, 1, 9.0, 9.0, "laplace")]
    )
    def test_anything_else_is_composed(self, other):
        events = GaussianEvent(3.0), other
        assert [type(part) for part in curve(events)._ways] == [Composition, Composition]
        assert curve(events).epsilon(1e-5) > curve(events[0]).epsilon(1e-5)

    def test_replacing_agrees_with_the_composition(self):
        parts = accountant._parts((GaussianEvent(2.0),), "replace_one", accountant._replaced)
        formula = curve(GaussianEvent(2.0), "replace_one").epsilon(1e-6)
        assert Composition(parts).epsilon(1e-6) == pytest.approx(formula, rel=1e-4)
