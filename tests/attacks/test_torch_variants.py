"""Variants of the findings about networks: hooks, compiled modules, half precision, other layers and losses.

Every case either is refused on synthetic rows, or removing a row moves the clipped sum by at most the clip.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratewise.exceptions import RatewiseError
from ratewise.torch import TensorRows
from ratewise.torch.engine import Objective, TorchEngine

torch.set_num_threads(1)
ROWS = 12


def moved(module, x, loss=None, *, autocast=False):
    """Return how far one row moves the sum, or None if the module is refused before any row is read."""
    rows = TensorRows(x, np.arange(ROWS) % 2)
    try:
        engine = TorchEngine(module, rows, Objective(2, None, loss), autocast=autocast)
        engine.try_out()
    except RatewiseError:
        return None

    def total(rows):
        torch.manual_seed(3)
        return torch.cat([part.double().reshape(-1) for part in engine.sums(rows, clip=1.0, step=0).gradient])

    numbers = np.arange(ROWS)
    whole = total(numbers)
    assert bool(torch.isfinite(whole).all())
    largest = max(float((whole - total(np.delete(numbers, row))).norm()) for row in (0, ROWS // 2, ROWS - 1))
    assert largest <= 1.0 + engine.slack(ROWS)
    return largest


def inputs():
    torch.manual_seed(0)
    x = torch.randn(ROWS, 4)
    x[-1] = 50.0 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    return x


class Between(nn.Module):
    """Two layers with something in between."""

    def __init__(self, change=lambda z: z):
        super().__init__()
        self.first, self.last, self.change = nn.Linear(4, 8), nn.Linear(8, 2), change

    def forward(self, x):
        return self.last(self.change(torch.tanh(self.first(x))))


def gradients_added_up(z):
    if z.requires_grad:
        z.register_hook(lambda g: 9 * g.sum(0, keepdim=True).expand_as(g))
    return z


class AddsGradientsUp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z):
        return z.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 9 * g.sum(0, keepdim=True).expand_as(g)


BETWEEN = {
    "a hook on gradients": gradients_added_up,
    "a function of one's own": AddsGradientsUp.apply,
    "gradients in forward": lambda z: z + torch.func.grad(lambda row: row.square().sum())(z),
    "numbers by position": lambda z: z * torch.arange(1, len(z) + 1)[:, None],
    "batch norm as a function": lambda z: functional.batch_norm(z, None, None, training=True),
    "rows normalised together": lambda z: functional.normalize(z, dim=0),
    "values read": lambda z: z - float(z.detach().numpy().mean()),
    "shared noise": lambda z: z + torch.randn(8),
    "noise of each row": lambda z: z + torch.randn(len(z), 8),
    "dropout as a function": lambda z: functional.dropout(z, 0.5, training=True),
    "dropout in place": lambda z: functional.dropout(z.clone(), 0.5, training=True, inplace=True),
    "dropout of channels": lambda z: functional.dropout1d(z[:, None], 0.5, training=True)[:, 0],
    "a soft choice": functional.gumbel_softmax,
    "noise filled in": lambda z: z + torch.empty_like(z).normal_(),
    "the system's entropy": lambda z: z * (np.random.default_rng().random() + 0.5),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_layers_cannot_mix_rows(name):
    moved(Between(BETWEEN[name]), inputs())


@pytest.mark.parametrize("hook", ["forward", "backward", "before backward", "parameter"])
def test_hooks_cannot_mix_rows(hook):
    module = Between()
    if hook == "forward":
        module.first.register_forward_hook(lambda _layer, _x, out: out - out.mean(0))
    elif hook == "backward":
        module.last.register_full_backward_hook(lambda _layer, to, _of: (to[0].sum(0, keepdim=True),))
    elif hook == "before backward":
        module.last.register_full_backward_pre_hook(lambda _layer, of: (9 * of[0].sum(0, keepdim=True),))
    else:
        module.last.weight.register_hook(lambda gradient: 100 * gradient)
    moved(module, inputs())


def test_compiled_modules_run_on_each_row():
    assert moved(torch.compile(Between(), backend="eager"), inputs()) is not None
    assert moved(torch.compile(Between(lambda z: z - z.mean(0)), backend="eager"), inputs()) is None


def rooted(logits, labels):
    p = torch.sigmoid(logits[:, 1] - logits[:, 0])
    return -(labels * p.log() + (1 - labels) * (1 - p).log())


def focal(logits, labels):
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -(1 - p).sqrt() * p.log()


def inverse(logits, _labels):
    return 1.0 / (logits[:, 0] - logits[:, 1])


def hooked(logits, labels):
    return functional.cross_entropy(gradients_added_up(logits), labels, reduction="none")


@pytest.mark.parametrize("loss", [rooted, focal, inverse, hooked])
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e3, 1e20, 3e38])
def test_losses_of_confident_rows(loss, size):
    x = inputs()
    x[-1] = size * x[-1].sign()
    moved(nn.Linear(4, 2), x, loss)


class Sequence(nn.Module):
    """A layer on positions, their mean and a head."""

    def __init__(self, layer, combine=lambda layer, x: layer(x)):
        super().__init__()
        self.layer, self.head, self.combine = layer, nn.Linear(16, 2), combine

    def forward(self, x):
        return self.head(torch.tanh(self.combine(self.layer, x).mean(1)))


SEQUENCES = {
    "layer norm": lambda: Sequence(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))),
    "attention": lambda: Sequence(
        nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.3),
        lambda layer, x: layer(x, x, x, need_weights=False)[0],
    ),
    "an encoder layer": lambda: Sequence(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)),
    "used twice": lambda: Sequence(
        nn.Linear(16, 16, bias=False), lambda layer, x: layer(x) - layer(x * 1.0000001) + x @ layer.weight.T
    ),
    "weight norm": lambda: Sequence(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))),
    "GRU": lambda: Sequence(nn.GRU(16, 16, batch_first=True), lambda layer, x: layer(x)[0]),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SEQUENCES)
def test_cancelling_positions(name, kind):
    dtype = torch.float64 if kind == torch.float64 else torch.float32
    signs = torch.tensor([1.0, -1.0, 0.7, -0.7], dtype=dtype)[:, None]
    towards = torch.linspace(0.0, 5.0, 16, dtype=dtype).cos()
    for size in (1e-40, 1e9, 1e15, 1e20, 3e38):
        torch.manual_seed(0)
        x = torch.randn(ROWS, 4, 16, dtype=dtype)
        x[-1] = signs * size * towards
        moved(SEQUENCES[name]().to(dtype), x, autocast=kind == torch.bfloat16)
