"""Attack: take the noise off a network's releases by knowing or recovering the state of PyTorch's generator.

A token model with unused ids has parameters whose private gradient is zero in every step: what is released
there is the noise itself. If the noise came from a Mersenne Twister, enough such coordinates would determine
its state, and with it the noise on all other coordinates.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import SecureGenerator
from ratewise.torch import TensorRows, TorchRateConstrainedClassifier, Trainer, make_private, network_plan
from ratewise.torch.distributed import TotalRelease
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
USED, UNUSED, WIDTH, ROWS, STEPS = 4, 260, 16, 60, 4


class Tokens(nn.Module):
    """Mean of embeddings, then a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(USED + UNUSED, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(dim=1))


def tokens():
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, USED, (ROWS, 5))), torch.from_numpy(rng.integers(0, 2, ROWS))


def by_trainer(seed, plan):
    """Yield the released sums of each step, in units of the sum."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generators are what the attacker knows
    module, (ids, labels) = Tokens(), tokens()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=1.0)
    trainer = Trainer(module, TensorRows(ids, labels), plan, n_classes=2, optimizer=optimizer)
    torch.manual_seed(seed)
    buffers = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for _ in trainer.steps():
        now = [optimizer.state[parameter]["momentum_buffer"].clone() for parameter in module.parameters()]
        yield [(a - b) * plan.expected_units for a, b in zip(now, buffers, strict=True)]
        buffers = now


def by_make_private(seed, plan):
    torch.manual_seed(seed)
    module, (ids, labels) = Tokens(), tokens()
    rows = torch.utils.data.TensorDataset(ids, labels)
    inner = torch.optim.SGD(module.parameters(), lr=1.0, momentum=1.0)
    model, optimizer, loader, criterion = make_private(
        module,
        inner,
        torch.utils.data.DataLoader(rows, batch_size=30),
        epsilon=8.0,
        delta=1e-5,
        steps=STEPS,
        classes=(0, 1),
    )
    torch.manual_seed(seed)
    buffers = [torch.zeros_like(parameter) for parameter in module.parameters()]
    while optimizer.trainer.steps_done < STEPS:
        for x, targets, cells in loader:
            criterion(model(x), targets, cells).backward()
            optimizer.step()
            now = [inner.state[parameter]["momentum_buffer"].clone() for parameter in module.parameters()]
            yield [(a - b) * optimizer.plan.expected_units for a, b in zip(now, buffers, strict=True)]
            buffers = now


def plan_of():
    event = TrainingEvent(0.5, STEPS, 2.0, None, None)
    return Plan(ROWS, 0.5, STEPS, {TRAINING: event}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


WAYS = {"trainer": by_trainer, "make_private": by_make_private}


def pure_noise(released):
    """Return the coordinates of unused ids, in which the private sum is zero."""
    return released[0][USED:].reshape(-1).double()


def twister(state, count):
    """Return what a generator of PyTorch in this state draws next."""
    generator = torch.Generator()
    generator.set_state(state)
    return torch.randn(count, generator=generator, dtype=torch.float32).double()


@pytest.mark.parametrize("way", WAYS)
def test_a_known_state_of_the_global_generators_predicts_nothing(way):
    """Two runs from one global state: their noise is unrelated, and unrelated to that state's draws."""
    first = [pure_noise(released) for released in WAYS[way](7, plan_of())]
    second = [pure_noise(released) for released in WAYS[way](7, plan_of())]
    assert len(first) == len(second) == STEPS
    count = UNUSED * WIDTH
    torch.manual_seed(7)
    predicted = twister(torch.get_rng_state(), STEPS * count)
    noise, other = torch.cat(first), torch.cat(second)
    assert float(noise.std()) > 0
    for guess in (other, predicted, predicted.flip(0)):
        correlation = float(torch.corrcoef(torch.stack([noise, guess]))[0, 1])
        assert abs(correlation) < 6 / np.sqrt(len(noise))
    for earlier, later in itertools.pairwise(first):
        assert abs(float(torch.corrcoef(torch.stack([earlier, later]))[0, 1])) < 6 / np.sqrt(count)


def test_training_does_not_read_or_move_the_generators_of_pytorch_and_numpy(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a generator of PyTorch was made or read")

    module, (ids, labels) = Tokens(), tokens()
    trainer = Trainer(module, TensorRows(ids, labels), plan_of(), n_classes=2)
    steps = trainer.steps()
    next(steps)  # the model is checked on made-up rows before the first step
    monkeypatch.setattr(torch, "Generator", refuse)
    for name in ("rand", "randn", "rand_like", "randn_like", "normal"):
        monkeypatch.setattr(torch, name, refuse)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert len(list(steps)) == STEPS - 1
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_pure_noise_lies_on_the_grid_and_has_the_stated_scale():
    plan = plan_of()
    mechanism = Trainer(Tokens(), TensorRows(*tokens()), plan, n_classes=2).loop.gradient_mechanism.mechanism
    assert isinstance(mechanism, RoundedGaussianMechanism)
    released = next(iter(by_trainer(3, plan)))
    noise = pure_noise(released)
    # momentum and mean are post-processing in single precision: undone up to their rounding
    steps = (noise / mechanism.grid).numpy()
    size = sum(part.numel() for part in released)
    assert stats.kstest(steps / mechanism._scale(size), stats.norm.cdf).pvalue > 1e-6
    assert 1.0 < mechanism._scale(size) * mechanism.grid / 2.0 < 1.02


def test_released_sums_lie_on_the_grid(monkeypatch):
    seen = []
    release = TotalRelease.release

    def watched(self, value, rng):
        released = release(self, value, rng)
        seen.append((torch.cat([part.reshape(-1) for part in released]).double(), self.mechanism.grid, rng))
        return released

    monkeypatch.setattr(TotalRelease, "release", watched)
    list(by_trainer(1, plan_of()))
    assert len(seen) == STEPS
    for released, grid, stream in seen:
        assert torch.equal(released / grid, (released / grid).round())
        assert grid == 2.0 ** round(np.log2(grid))
        assert isinstance(stream, SecureGenerator)


def test_every_entry_point_uses_the_grid_and_the_secure_source_by_default():
    module, (ids, labels) = Tokens(), tokens()
    trainer = Trainer(module, TensorRows(ids, labels), plan_of(), n_classes=2)
    assert trainer.streams.secure
    model = TorchRateConstrainedClassifier(
        nn.Linear(3, 2), epsilon=4.0, delta=1e-5, classes=[0, 1], config=TrainingConfig(steps=2)
    )
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    model.fit(X, np.arange(50) % 2)
    plan = network_plan(1000, epsilon=1.0, delta=1e-6)
    for found in (model.plan_.gradient_mechanism(1.0, 0.0), plan.gradient_mechanism(1.0, 0.0)):
        assert isinstance(found, RoundedGaussianMechanism)
