"""Attack: with a known state of PyTorch's generator, removing one row shifts the dropout masks of the others.

Masks that are drawn for a batch by position change for every row after the removed one, and the clipped sum
moves by many times the clip. Draws that belong to the rows leave the sensitivity at one clip.
"""

import os
import random

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.exceptions import UnsupportedCombination
from ratewise.torch import PerRowClipper, TensorRows, Trainer, make_private
from ratewise.torch import engine as engine_module
from ratewise.torch.engine import Objective, TorchEngine
from ratewise.torch.isolation import RowRandomness, map_rows
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
N, D, CLIP = 40, 6, 1.0
ROWS = np.arange(N)


def features():
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Between(nn.Module):
    """A random function between two layers."""

    def __init__(self, noisy, shape=(12,)):
        super().__init__()
        self.first, self.last = nn.Linear(D, 12), nn.Linear(12, 2)
        self.noisy, self.shape = noisy, shape

    def forward(self, x):
        h = self.first(x).reshape(len(x), *self.shape)
        return self.last(self.noisy(h).reshape(len(x), -1))


def attention(h):
    return functional.scaled_dot_product_attention(h, h, h, dropout_p=0.4)


RANDOM = {
    "dropout": lambda: Between(nn.Dropout(0.5)),
    "dropout in place": lambda: Between(lambda h: functional.dropout(h * 1.0, 0.5, inplace=True)),
    "functional dropout": lambda: Between(lambda h: functional.dropout(h, 0.5)),
    "dropout of channels": lambda: Between(nn.Dropout1d(0.5), (3, 4)),
    "dropout of maps": lambda: Between(nn.Dropout2d(0.5), (3, 2, 2)),
    "dropout of volumes": lambda: Between(nn.Dropout3d(0.5), (3, 2, 2, 1)),
    "alpha dropout": lambda: Between(nn.AlphaDropout(0.5)),
    "feature alpha dropout": lambda: Between(nn.FeatureAlphaDropout(0.5), (3, 2, 2)),
    "random rectifier": lambda: Between(nn.RReLU(0.0, 1.0)),
    "random rectifier in place": lambda: Between(lambda h: functional.rrelu(h * 1.0, 0.0, 1.0, True, True)),
    "attention with dropout": lambda: Between(attention, (1, 3, 4)),
    "gaussian noise": lambda: Between(lambda h: h + 3.0 * torch.randn_like(h)),
    "noise of a size": lambda: Between(lambda h: h * torch.randn(12, dtype=h.dtype)),
    "uniform noise": lambda: Between(lambda h: h * torch.rand_like(h)),
    "filled in place": lambda: Between(lambda h: h * torch.empty_like(h).uniform_(-1, 1)),
    "bernoulli of probabilities": lambda: Between(lambda h: h * torch.bernoulli(h.detach().sigmoid())),
    "gumbel softmax": lambda: Between(lambda h: functional.gumbel_softmax(h, tau=0.3)),
    "a generator of its own in forward": lambda: Between(
        lambda h: h * torch.bernoulli(torch.full_like(h, 0.5), generator=torch.Generator().manual_seed(0))
    ),
    "transformer layer": lambda: Between(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True), (3, 4)),
}


def noisy_loss(logits, labels):
    return functional.cross_entropy(logits + 5.0 * torch.randn_like(logits), labels, reduction="none")


def planned(n_units, rate, steps, gradient_noise=1.0, histogram_noise=None, histogram="gaussian"):
    """Return a plan of training steps alone."""
    law = None if histogram_noise is None else histogram
    event = TrainingEvent(rate, steps, gradient_noise, histogram_noise, law)
    return Plan(n_units, rate, steps, {TRAINING: event}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def engine_of(module, x=None, loss=None, **choices):
    x = features() if x is None else x
    rows = TensorRows(x, np.arange(len(x)) % 2)
    return TorchEngine(module, rows, Objective(2, None, loss), **choices)


def sum_of(engine, rows, step=0):
    torch.manual_seed(0)  # what the attacker knows
    sums = engine.sums(rows, clip=CLIP, step=step).gradient
    return torch.cat([part.double().reshape(-1) for part in sums])


def made(name):
    torch.manual_seed(0)
    return RANDOM[name]().double()


@pytest.mark.parametrize("name", RANDOM)
def test_removing_a_row_moves_the_sum_by_at_most_the_clip(name):
    engine = engine_of(made(name))
    engine.try_out()
    whole = sum_of(engine, ROWS)
    for left_out in (0, 1, N // 2, N - 1):
        moved = float((whole - sum_of(engine, np.delete(ROWS, left_out))).norm())
        assert 1e-9 < moved <= CLIP * (1 + engine.slack(N))
    # draws of another step differ, so the layer is at work
    assert float((whole - sum_of(engine, ROWS, step=1)).norm()) > 0.1


def test_a_loss_with_noise_of_its_own():
    engine = engine_of(made("dropout"), loss=noisy_loss)
    engine.try_out()
    whole = sum_of(engine, ROWS)
    moved = float((whole - sum_of(engine, ROWS[1:])).norm())
    assert moved <= CLIP * (1 + engine.slack(N))
    assert float((whole - sum_of(engine_of(made("dropout")), ROWS)).norm()) > 0.1


def test_power_masks_by_position_break_the_bound(monkeypatch):
    """What the test above would find if draws belonged to places in the batch."""
    monkeypatch.setattr(
        RowRandomness, "__init__", lambda self, key, step, rows, use=0: _by_place(self, key, step, len(rows))
    )
    engine = engine_of(made("dropout"))
    moved = float((sum_of(engine, ROWS) - sum_of(engine, ROWS[1:])).norm())
    assert moved > 3 * CLIP


def _by_place(randomness, key, step, count):
    randomness._key, randomness._step, randomness._rows = key, step, list(range(count))
    randomness._generators, randomness._use = [], ()


@pytest.mark.parametrize("name", ["dropout", "attention with dropout", "gumbel softmax"])
def test_draws_do_not_depend_on_pieces_order_or_company(name):
    module = made(name)
    engines = [engine_of(module, physical_batch=size) for size in (1, 7, 100)]
    for engine in engines:
        engine.random_key = bytes(range(32))
    whole = sum_of(engines[0], ROWS)
    for engine in engines[1:]:
        torch.testing.assert_close(sum_of(engine, ROWS), whole, rtol=1e-9, atol=1e-9)
    alone = sum(sum_of(engines[2], np.array([row])) for row in ROWS)
    torch.testing.assert_close(alone, whole, rtol=1e-9, atol=1e-9)


def test_a_row_on_which_the_module_fails_changes_no_draw_of_others():
    def factored(h):
        scale = torch.linalg.cholesky(torch.eye(2, dtype=h.dtype) * (h[:, :1, None] + 9))  # fails below -9
        return functional.dropout(h * scale[:, 0, :1], 0.5)

    class Factored(Between):
        def forward(self, x):
            return self.last(self.noisy(torch.cat([x, x], dim=1))) + 0 * self.first(x)[:, :2]

    x = features().abs() + 0.1
    engine = engine_of(Factored(factored).double(), x)
    engine.try_out()
    fine = sum_of(engine, ROWS)
    x[17, 0] = -10.0
    failing, without = sum_of(engine, ROWS), sum_of(engine, np.delete(ROWS, 17))
    assert float((failing - without).norm()) <= 1e-9
    assert 1e-3 < float((fine - without).norm()) <= CLIP * (1 + engine.slack(N))


def test_the_key_is_secret_and_global_generators_are_neither_read_nor_moved():
    sums = [sum_of(engine_of(made("dropout")), ROWS) for _ in range(2)]
    assert float((sums[0] - sums[1]).norm()) > 1.0
    engine = engine_of(made("dropout"))
    before = torch.get_rng_state(), random.getstate()
    engine.sums(ROWS, clip=CLIP)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_clipper_alone_draws_from_the_secure_source():
    module, x, labels = made("dropout"), features(), torch.arange(N) % 2
    clipper, found = PerRowClipper(module), []
    for _ in range(2):
        torch.manual_seed(0)
        with clipper.recording():
            losses = functional.cross_entropy(module(x), labels, reduction="none")
        found.append(torch.cat([part.reshape(-1) for part in clipper.clipped_sum(losses, CLIP)]))
    assert float((found[0] - found[1]).norm()) > 1.0


def test_seeds_repeat_a_training_and_steps_draw_afresh():
    def weights(seed):
        trainer = Trainer(
            made("dropout"),
            TensorRows(features(), np.arange(N) % 2),
            planned(N, 0.5, 4),
            config=TrainingConfig(clip=CLIP),
            n_classes=2,
            random_state=seed,
        )
        trainer.run()
        return torch.cat([p.detach().reshape(-1) for p in trainer.module.parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws_of_the_draws(dtype):
    """Each operation has PyTorch's law: frequencies, moments and Kolmogorov-Smirnov tests."""
    x = torch.zeros(50, 400, dtype=dtype)

    def drawn(function):
        with RowRandomness(bytes(range(32)), 0, range(50)):
            found = map_rows(function, x, what="function")
        assert found.dtype == dtype
        rows = found.double().numpy()
        assert len({row.tobytes() for row in rows}) == 50  # every row has its own
        return rows.ravel()

    for p in (0.1, 0.5, 0.73):
        kept = drawn(lambda row, p=p: functional.dropout(row + 1.0, p))
        assert set(np.unique(kept)) <= {0.0, kept.max()}
        assert kept.max() == pytest.approx(1 / (1 - p), rel=1e-6)
        assert stats.binomtest(int((kept > 0).sum()), kept.size, 1 - p).pvalue > 1e-6
    for function, law in (
        (torch.rand_like, stats.uniform.cdf),
        (torch.randn_like, stats.norm.cdf),
        (lambda row: torch.empty_like(row).exponential_(2.0), stats.expon(scale=0.5).cdf),
        (lambda row: torch.empty_like(row).uniform_(-1, 3), stats.uniform(-1, 4).cdf),
        (lambda row: torch.empty_like(row).normal_(2.0, 3.0), stats.norm(2, 3).cdf),
        (lambda row: torch.normal(row + 1.0, 2.0), stats.norm(1, 2).cdf),
    ):
        assert stats.kstest(drawn(function), law).pvalue > 1e-6
    slopes = drawn(lambda row: functional.rrelu(row - 1.0, 0.25, 0.5, True))
    assert stats.kstest(-slopes, stats.uniform(0.25, 0.25).cdf).pvalue > 1e-6


class Unread(TensorRows):
    """Rows that must not be read."""

    def take(self, rows):
        raise AssertionError("rows were read before the module was refused")


class Holder(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.layer, self.generator = nn.Linear(D, 2), generator

    def forward(self, x):
        return self.layer(x)


def hidden_generator():
    rng = np.random.default_rng(0)
    return lambda h: h * float(rng.random())


UNCONTROLLED = {
    "permutation": lambda: Between(lambda h: h[:, torch.randperm(12)]),
    "multinomial": lambda: Between(lambda h: h * torch.multinomial(h.detach().softmax(1), 12, True)),
    "integers": lambda: Between(lambda h: h * torch.randint(0, 2, (12,))),
    "poisson": lambda: Between(lambda h: torch.poisson(h.detach().abs()) * h),
    "fractional pooling": lambda: Between(nn.FractionalMaxPool2d(2, output_size=(2, 2)), (3, 2, 2)),
    "python": lambda: Between(lambda h: h * (random.random() < 0.01)),
    "numpy": lambda: Between(lambda h: h * float(np.random.rand())),  # noqa: NPY002
    "a mask of numpy": lambda: Between(lambda h: h * torch.from_numpy(np.random.rand(12))),  # noqa: NPY002
    "bytes of the system": lambda: Between(lambda h: h * os.urandom(1)[0]),
    "a generator of NumPy in a closure": lambda: Between(hidden_generator()),
    "a generator as an attribute": lambda: Holder(torch.Generator()),
    "a generator of NumPy as an attribute": lambda: Holder(np.random.default_rng(0)),
    "a generator of Python as an attribute": lambda: Holder(random.Random(0)),
}


@pytest.mark.parametrize("name", UNCONTROLLED)
def test_other_randomness_is_refused_before_rows_are_read(name):
    rows = Unread(features(), np.arange(N) % 2)
    engine = TorchEngine(UNCONTROLLED[name]().double(), rows, Objective(2))
    state = random.getstate()
    with pytest.raises(UnsupportedCombination, match=r"; use |replace"):
        engine.try_out()
    random.setstate(state)


@pytest.mark.parametrize("way", ["trainer", "make_private"])
def test_every_step_of_a_training_draws_afresh(way, monkeypatch):
    """Each step has its own number, and the key of a run is not that of another run."""
    seen = []

    class Watched(engine_module.RowRandomness):
        def __init__(self, key, step, rows, **use):
            if not seen or seen[-1] != (key, step):
                seen.append((key, step))
            super().__init__(key, step, rows, **use)

    monkeypatch.setattr(engine_module, "RowRandomness", Watched)
    for _ in range(2):
        module = made("dropout")
        if way == "trainer":
            Trainer(
                module,
                TensorRows(features(), np.arange(N) % 2),
                planned(N, 0.5, 4),
                config=TrainingConfig(clip=CLIP),
                n_classes=2,
            ).run()
        else:
            module = module.float()
            data = torch.utils.data.TensorDataset(features().float(), torch.arange(N) % 2)
            model, optimizer, loader, criterion = make_private(
                module,
                torch.optim.SGD(module.parameters(), lr=0.1),
                torch.utils.data.DataLoader(data, batch_size=10),
                epsilon=8.0,
                delta=1e-5,
                steps=4,
                classes=(0, 1),
            )
            for x, labels, cells in loader:
                criterion(model(x), labels, cells).backward()
                optimizer.step()
    assert len(seen) == 8
    assert len(set(seen)) == 8
    assert len({key for key, _ in seen}) == 2
