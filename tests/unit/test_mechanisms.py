"""Releases: scale, shape, fresh arrays, refusals. Their law is tested in tests/statistical."""

import math

import numpy as np
import pytest

from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.noise import NoNoise, RoundedGaussianMechanism, RoundedLaplaceMechanism


@pytest.mark.parametrize("law", [RoundedGaussianMechanism, RoundedLaplaceMechanism])
def test_noise_scales_with_noise_and_sensitivity(law):
    value = np.arange(6.0).reshape(2, 3)
    small = law(0.5).release(value, np.random.default_rng(0)) - value
    large = law(1.0, sensitivity=4.0).release(value, np.random.default_rng(0)) - value
    assert small.shape == (2, 3)
    np.testing.assert_allclose(large, 8.0 * small, atol=1e-6)  # the same draws on another grid
    assert len(np.unique(small)) == 6


def test_standard_deviations():
    assert RoundedGaussianMechanism(2.0, 1.5).standard_deviation == 3.0
    assert RoundedLaplaceMechanism(2.0, 1.5).standard_deviation == pytest.approx(3.0 * math.sqrt(2.0))
    assert NoNoise().standard_deviation == 0.0


@pytest.mark.parametrize("mechanism", [RoundedGaussianMechanism(1.0), RoundedLaplaceMechanism(1.0), NoNoise()])
def test_release_never_touches_its_argument(mechanism):
    value = np.ones(4)
    released = mechanism.release(value, np.random.default_rng(0))
    released += 1.0
    assert np.array_equal(value, np.ones(4))


def test_no_noise_releases_the_value_itself():
    value = np.array([1.0, -2.0])
    assert np.array_equal(NoNoise().release(value, np.random.default_rng(0)), value)


@pytest.mark.parametrize("law", [RoundedGaussianMechanism, RoundedLaplaceMechanism])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_noise_must_be_positive(law, bad):
    with pytest.raises(InvalidInput, match="noise"):
        law(bad)
    with pytest.raises(InvalidInput, match="sensitivity"):
        law(1.0, bad)
