"""Gains of the multipliers are chosen by whoever asks for a fit; no choice of them may take the clipping off."""

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, group, rate
from ratewise.mechanisms.noise import RoundedGaussianMechanism

N = 300
VICTIM = 17


@pytest.mark.parametrize("model", ["additive", "linear"])
@pytest.mark.parametrize(
    "gains",
    [
        {"dual_rate": 1e160},
        {"dual_rate": 1e300},
        {"dual_damping": 1e300},
        {"dual_rate": 1e308, "dual_damping": 1e308, "temperature": 1e200},
        {"temperature": 1e300},
    ],
    ids=str,
)
def test_the_only_row_of_a_group_is_clipped(gains, model, monkeypatch):
    rng = np.random.default_rng(1)
    X, labels = rng.normal(size=(N, 2)), rng.integers(0, 2, N).astype(object)
    sex = np.array(["M"] * N, dtype=object)
    sex[VICTIM] = "F"
    constraints = [rate(1, where=group(sex="F")) <= 0.01, rate(0, where=group(sex="M")) <= 0.99]

    def private(labels, sex):
        """Return what gets noise; histograms are released as a constant, other vectors as zeros."""
        found = []

        def release(mechanism, value, rng):
            found.append((mechanism, np.array(value, dtype=np.float64)))
            return np.full(np.shape(value), 50.0 if np.ndim(value) == 2 else 0.0)

        with monkeypatch.context() as patch:
            patch.setattr(RoundedGaussianMechanism, "release", release)
            RateConstrainedClassifier(
                constraints,
                epsilon=5.0,
                delta=1e-5,
                classes=[0, 1],
                group_values={"sex": ["F", "M"]},
                feature_bounds=(-3, 3),
                model=model,
                config=TrainingConfig(steps=6, sampling_rate=1.0, **gains),
            ).fit(X, labels, sensitive_features={"sex": sex})
        return found

    first = private(labels, sex)
    labels[VICTIM] = sex[VICTIM] = None
    second = private(labels, sex)
    assert len(first) == len(second) >= 13
    for (mechanism, value), (_, neighbour) in zip(first, second, strict=True):
        moved = np.linalg.norm((value - neighbour).ravel())
        assert moved <= mechanism.sensitivity * (1 + mechanism.slack)  # and a number
