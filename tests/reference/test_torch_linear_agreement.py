"""The PyTorch engine against the linear engine, step by step on the same samples and noise."""

import numpy as np
import pytest
import torch
from torch import nn

from ratewise import Domain, demographic_parity, equalized_odds
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.torch.data import TensorRows
from ratewise.torch.noise import StreamNoise
from ratewise.torch.trainer import Trainer
from ratewise.training import Training

N, D = 400, 4


class Margin(nn.Module):
    """Two classes by one weight vector: logits (0, z), as the linear engine has them."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(D, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, x):
        z = self.score(x)
        return torch.cat([torch.zeros_like(z), z], dim=1)


def problem(n_classes):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, D))
    sex = rng.integers(0, 2, N)
    labels = (np.abs(X[:, 0] + sex + rng.normal(size=N)) * 1.3).astype(int).clip(0, n_classes - 1)
    domain = Domain(classes=tuple(range(n_classes)), columns={"sex": (0, 1)})
    family = demographic_parity if n_classes == 2 else equalized_odds
    compiled = compile_constraints(family("sex", max_gap=0.01), domain)
    return X, labels, compiled.cells(labels, {"sex": sex}), compiled


def plan_of(**changes):
    fields = {
        "n_rows": N,
        "sampling_rate": 0.3,
        "steps": 25,
        "clip": 0.8,
        "gradient_noise": 1.5,
        "histogram_noise": 2.0,
        "learning_rate": 3.0,
        "schedule": "linear",
        "momentum": 0.7,
        "averaging_fraction": 0.4,
        "temperature": 1.0,
        "dual": DualControl(rate=0.6, normalise=True, noise_tolerance=0.5),
    }
    return Plan(**{**fields, **changes})


class Fixed:
    """The samples that the core's sampler draws from a stream."""

    def __init__(self, plan, stream):
        self.batches = list(plan.sampler.batches(plan.steps, stream))

    def rows(self, step):
        return self.batches[step]


CASES = {
    "hard": {},
    "soft, another temperature": {"rates": "soft", "temperature": 2.5},
    "laplace histogram": {"histogram": "laplace"},
    "every third step": {"dual": DualControl(rate=0.6, interval=3, memory=0.5)},
    "polynomial average": {"averaging": "polynomial"},
    "no privacy, no clip": {
        "private": False,
        "clip": None,
        "gradient_noise": None,
        "histogram_noise": None,
    },
}


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_linear_engine_step_by_step(case, n_classes):
    X, labels, cells, compiled = problem(n_classes)
    plan = plan_of(**CASES[case])
    engine = LinearEngine(
        plan, X, labels, n_classes, cells=cells, n_cells=compiled.n_cells, intercept=n_classes == 2
    )
    training = Training(plan, engine, Multipliers(compiled, plan))
    module = Margin() if n_classes == 2 else nn.Linear(D, n_classes, bias=False)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    trainer = Trainer(
        module, TensorRows(torch.from_numpy(X), labels, cells), plan, compiled, physical_batch=17
    )
    ours = RandomStreams.from_seed(11)
    trainer._sampler = Fixed(plan, ours.sampling)
    trainer._noise = StreamNoise(ours.gradient)
    trainer._streams = ours
    both = zip(training.run(RandomStreams.from_seed(11)), trainer.steps(), strict=True)
    pushed = 0
    for expected, found in both:
        flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
        np.testing.assert_allclose(flat, training.descent.theta, rtol=1e-8, atol=1e-10)
        assert found.step == expected.step
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-8)
        np.testing.assert_allclose(found.multipliers, expected.multipliers, rtol=1e-7, atol=1e-10)
        assert (found.histograms is None) == (expected.histograms is None)
        if found.histograms is not None:
            np.testing.assert_allclose(found.histograms, expected.histograms, rtol=1e-9, atol=1e-9)
        pushed += trainer.multipliers.table is not None
    assert pushed > 5, "the constraints never pushed, so the comparison would say nothing of them"
    averaged = torch.cat([p.detach().reshape(-1) for p in trainer.averaged_module().parameters()]).numpy()
    np.testing.assert_allclose(averaged, training.theta, rtol=1e-8, atol=1e-10)
