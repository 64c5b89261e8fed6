"""Noise, steps or sampling rate from a target: never above it, hardly below it."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import pytest
from dp_accounting import pld

from ratewise import accounting
from ratewise.accounting import GaussianEvent, ThresholdEvent, TrainingEvent, accountant, losses
from ratewise.accounting.losses import Composition
from ratewise.exceptions import InvalidInput

TIGHT = 0.999


def native_epsilon(event: TrainingEvent, delta: float) -> float:
    """An accountant that is not ours, for Gaussian releases; the pair is collapsed here by hand."""
    inverse = [1 / event.gradient_noise]
    if event.histogram == "gaussian":
        inverse.append(1 / event.histogram_noise)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    gaussian = dp_accounting.GaussianDpEvent(1 / math.hypot(*inverse))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sampling_rate, gaussian), event.steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("histogram", ["gaussian", "laplace", None])
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (1.0, 1e-5, 0.2, 200),
        (1.0, 1e-5, 0.0016, 12_000),
        (0.01, 1e-6, 0.01, 100),
        (50.0, 1e-5, 0.5, 50),
        (8.0, 1e-12, 1.0, 10),
        (3.0, 1e-5, 1.0, 1),
    ],
)
def test_target_is_kept_and_used(epsilon, delta, rate, steps, histogram):
    found = accounting.calibrate(epsilon, delta, rate, steps, histogram=histogram)
    assert found.event == TrainingEvent(rate, steps, found.gradient_noise, found.histogram_noise, found.event.histogram)
    spent = accounting.epsilon(found.event, delta)
    assert TIGHT * epsilon <= spent <= epsilon
    assert found.epsilon == pytest.approx(spent, rel=1e-9)
    assert found.event.histogram == histogram


@pytest.mark.parametrize("histogram", ["gaussian", None])
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"), [(1.0, 1e-5, 0.2, 200), (4.0, 1e-6, 0.05, 100), (0.3, 1e-5, 1.0, 3)]
)
def test_another_accountant_agrees_that_the_target_is_kept(epsilon, delta, rate, steps, histogram):
    found = accounting.calibrate(epsilon, delta, rate, steps, histogram=histogram)
    # its own answer is an upper limit with a little slack of its own
    assert 0.998 * epsilon <= native_epsilon(found.event, delta) <= 1.001 * epsilon


@pytest.mark.parametrize("histogram", ["gaussian", "laplace"])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_share_is_the_split_of_the_leading_terms(histogram, share):
    found = accounting.calibrate(1.0, 1e-5, 0.1, 100, histogram=histogram, histogram_share=share)
    assert found.histogram_noise * math.sqrt(share) == pytest.approx(
        found.gradient_noise * math.sqrt(1 - share), rel=1e-9
    )


def test_gaussian_share_does_not_change_the_joint_noise():
    plain = accounting.calibrate(1.0, 1e-5, 0.1, 100, histogram=None)
    shared = accounting.calibrate(1.0, 1e-5, 0.1, 100, histogram_share=0.3)
    assert shared.event.joint_gaussian_noise == pytest.approx(plain.gradient_noise, rel=2e-3)
    assert plain.histogram_noise is None


def test_default_share_is_a_tenth():
    assert accounting.calibrate(1.0, 1e-5, 0.1, 100) == accounting.calibrate(1.0, 1e-5, 0.1, 100, histogram_share=0.1)


@pytest.mark.parametrize("neighbours", ["replace_one", "zero_out"])
def test_other_neighbours(neighbours):
    found = accounting.calibrate(2.0, 1e-5, 0.1, 100, neighbours=neighbours)
    assert TIGHT * 2.0 <= accounting.epsilon(found.event, 1e-5, neighbours) <= 2.0


def test_replacing_needs_more_noise_than_removing():
    removing = accounting.calibrate(2.0, 1e-5, 0.1, 100).gradient_noise
    replacing = accounting.calibrate(2.0, 1e-5, 0.1, 100, neighbours="replace_one").gradient_noise
    assert 1.3 * removing < replacing < 2.1 * removing


def test_gaussian_histogram_is_quieter_than_laplace():
    gaussian = accounting.calibrate(1.0, 1e-5, 0.2, 200, histogram_share=0.5)
    laplace = accounting.calibrate(1.0, 1e-5, 0.2, 200, histogram="laplace", histogram_share=0.5)
    assert laplace.gradient_noise > 1.1 * gaussian.gradient_noise or (
        math.sqrt(2) * laplace.histogram_noise > 1.2 * gaussian.histogram_noise
    )


def test_result_is_frozen():
    found = accounting.calibrate(1.0, 1e-5, 0.1, 100)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.gradient_noise = 0.1


def test_integers_are_floats():
    assert accounting.calibrate(1, 1e-5, 1, 10) == accounting.calibrate(1.0, 1e-5, 1.0, 10.0)


class TestBothDirections:
    """A search may look at one direction of neighbours; what it settles on is checked in both."""

    @pytest.fixture
    def adding_is_worse(self, monkeypatch):
        """Let the direction that is looked at second be the dearer one, as for real events it hardly is."""
        monkeypatch.setattr(
            accountant, "AddLoss", lambda base, rate: losses.RemoveLoss(losses.RowLoss(0.8 * base.noise), rate)
        )

    def test_the_worse_direction_is_never_forgotten(self, adding_is_worse):
        found = accounting.calibrate(epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=200)
        assert TIGHT <= found.epsilon <= 1.0
        assert accounting.epsilon(found.event, 1e-5) == found.epsilon

    def test_it_costs_what_it_should(self, adding_is_worse):
        usual = TrainingEvent(0.2, 200, 10.0)
        dearer = dataclasses.replace(usual, gradient_noise=8.0)
        removing_only = accountant._parts((dearer,), "add_or_remove", losses.RemoveLoss)
        assert accounting.epsilon(usual, 1e-5) == Composition(removing_only).epsilon(1e-5)

    @pytest.mark.parametrize("enough", [0.0, 0.5, 1.0, 2.0, math.inf])
    def test_an_answer_that_is_not_too_much_is_exact(self, adding_is_worse, enough):
        curve = accounting.curve(TrainingEvent(0.2, 200, 8.0))
        found, exact = curve.epsilon(1e-5, enough), curve.epsilon(1e-5)
        assert found == exact if found <= enough else enough < found <= exact
        one_way = curve._ways[0].epsilon(1e-5)
        assert 1.0 < one_way < exact  # so both cases occur
        assert found == (one_way if enough <= 1.0 else exact)

    def test_a_rough_answer_is_not_taken_for_an_exact_one(self):
        events = [TrainingEvent(0.2, 200, 8.0)]
        rough = accounting.PrivacyCurve(events, tolerance=1e-2).epsilon(1e-5)
        exact = accounting.PrivacyCurve(events).epsilon(1e-5)
        assert exact < rough
        assert accounting.PrivacyCurve(events).epsilon(1e-5) == exact


# --- whole plans --------------------------------------------------------------------------------------------


def fit_of(rate, steps, own=0.0):
    """Return a plan of a fit by its scale: column histograms, discovery, training and certificate."""
    spread = rate * math.sqrt(steps)

    def build(scale):
        discovery = [ThresholdEvent(scale / 0.1, own)] if own else []
        training = TrainingEvent(rate, steps, scale * spread / 0.9, scale * spread / 0.3)
        return (GaussianEvent(scale / 0.2), *discovery, training, GaussianEvent(scale / 0.3))

    return build


@pytest.mark.parametrize("own", [0.0, 1e-7, 9e-7])
@pytest.mark.parametrize("relation", ["add_or_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(0.1, 0.05, 500), (1.0, 0.1, 300), (9.0, 0.05, 100)])
def test_a_plan_meets_its_budget_on_the_safe_side(epsilon, rate, steps, relation, own):
    found = accounting.calibrate_plan(epsilon, 1e-6, fit_of(rate, steps, own), relation)
    assert found.events == fit_of(rate, steps, own)(found.scale)
    assert 0.999 * epsilon <= found.epsilon <= epsilon
    assert accounting.epsilon(found.events, 1e-6, relation) == pytest.approx(found.epsilon, rel=1e-9)
    assert accounting.epsilon(fit_of(rate, steps, own)(found.scale * 0.998), 1e-6, relation) > found.epsilon


def test_a_plan_of_unsampled_gaussians_is_exact():
    found = accounting.calibrate_plan(1.0, 1e-5, GaussianEvent)
    assert 0.999 <= accounting.epsilon(GaussianEvent(found.scale), 1e-5) <= 1.0


def test_thresholds_that_use_up_delta_are_refused():
    with pytest.raises(InvalidInput, match="threshold releases alone have"):
        accounting.calibrate_plan(1.0, 1e-6, fit_of(0.1, 10, own=1e-6))


def test_a_plan_that_cannot_be_met_is_refused():
    with pytest.raises(InvalidInput, match="out of reach"):
        accounting.calibrate_plan(1.0, 1e-6, lambda scale: (GaussianEvent(scale), GaussianEvent(2.0)))
