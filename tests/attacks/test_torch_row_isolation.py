"""Modules and losses that let one row influence the gradients of others.

Each attack must be refused on synthetic rows, before a row is read, or leave the sensitivity at one clip:
removing one row moves the sum of clipped gradients by at most the clip. Many attacks start only above two
rows, so that a check on two synthetic rows cannot see them.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratewise.exceptions import RatewiseError, UnsupportedCombination
from ratewise.torch import MLP, SmallCNN, TensorRows, resnet16
from ratewise.torch.engine import Objective, TorchEngine

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.transformer import TransformerEncoder

torch.set_num_threads(1)
N, D, CLIP = 16, 4, 1.0


@pytest.fixture(autouse=True)
def _no_state_left():
    yield
    assert torch._C._functorch._is_vmap_fallback_enabled()


def features():
    """Ordinary rows and, last, the one whose influence is measured."""
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[-1] = 50.0 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    return x


def token_ids():
    """Ids of eight positions, 0 is padding; the last row is longest and has the largest ids."""
    ids = torch.randint(1, 9, (N, 8), generator=torch.Generator().manual_seed(2))
    ids[:, 5:] = 0
    ids[-1] = 19
    return ids


def engine_of(module, x, loss=None):
    rows = TensorRows(x, np.arange(len(x)) % 2)
    return TorchEngine(module, rows, Objective(2, None, loss))


def sum_of(engine, rows, clip=CLIP):
    sums = engine.sums(rows, clip=clip, step=0).gradient
    return torch.cat([part.double().reshape(-1) for part in sums])


def largest_move(engine, n_rows):
    rows = np.arange(n_rows)
    whole = sum_of(engine, rows)
    return max(
        float((whole - sum_of(engine, np.delete(rows, left_out))).norm()) for left_out in (n_rows - 1, 0, n_rows // 2)
    )


def assert_isolated(module, x, loss=None):
    """Refused before rows are read, or sensitivity of one clip."""
    torch.manual_seed(0)
    engine = engine_of(module, x, loss)
    try:
        engine.try_out()
    except RatewiseError:
        return "refused"
    assert largest_move(engine, len(x)) <= CLIP * (1 + 1e-5)
    return "isolated"


class Mixed(nn.Module):
    """Mixes the rows of its hidden layer, in batches of more than two rows only."""

    def __init__(self, mix, *, hidden, at_least):
        super().__init__()
        self.first = nn.Linear(D, 6)
        self.last = nn.Linear(6 if hidden else D, 2)
        self.mix, self.hidden, self.at_least = mix, hidden, at_least

    def forward(self, x):
        h = torch.tanh(self.first(x)) if self.hidden else x
        if len(h) > self.at_least:
            h = self.mix(h)
        return self.last(h)


def second_half_first(h):
    parts = h.chunk(2)
    return torch.cat(parts[::-1])


def scattered(h):
    return h + torch.zeros_like(h).index_add(0, torch.zeros(len(h), dtype=torch.long), h)


def written_in_place(h):
    out = h.clone()
    out[1:] += h[:-1]
    return out


def by_the_longest(h):
    return h / h.abs().max().item()


def if_large(h):
    return h * 100 if h.max() > 3 else h


def without_small_rows(h):
    keep = h.abs().sum(1) > 1
    out = h.clone()
    out[keep] = h[keep] * h[keep].norm()
    return out


def by_unique(h):
    return h * len(torch.unique(h.detach().round()))


def by_nonzero(h):
    return h * len((h > 1).nonzero())


def by_listed(h):
    return h * max(max(row) for row in h.tolist())


def by_array(h):
    return h * float(h.detach().numpy().max())


def by_printed(h):
    return h * (1 + repr(h).count("."))


def by_formatted(h):
    return h * (1 + f"{h}".count("-"))


def sorted_and_restored(h):
    order = h.norm(dim=1).argsort()
    ranks = torch.linspace(0, 3, len(h), dtype=h.dtype)
    return (h[order] * ranks[:, None])[order.argsort()]


def gram(h):
    return torch.softmax(h @ h.T, dim=1) @ h


def flattened(h):
    return (h.reshape(-1) - h.reshape(-1).mean()).reshape(h.shape)


def transposed(h):
    return h + h.T.reshape(h.shape)


def one_after_another(h):
    rows, state = [], torch.zeros_like(h[0])
    for row in h:
        state = 0.9 * state + row
        rows.append(state)
    return torch.stack(rows)


class Sums(torch.autograd.Function):
    """Adds rows up in its backward only; the old style, which has no vmap."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.cumsum(0)


class OwnRule(torch.autograd.Function):
    """Comes with a vmap of its own, which mixes rows."""

    @staticmethod
    def forward(h):
        return h.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, h):
        return h.cumsum(0), 0


class Generated(torch.autograd.Function):
    """Has a generated vmap, and mixes rows forwards and backwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h):
        return h + h.sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.cumsum(0)


def hooked(h):
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient.cumsum(0))
    return h


def repacked(h):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cumsum(0) if t.dim() else t, lambda t: t):
        return h.sin()


def checkpointed(h):
    return torch.utils.checkpoint.checkpoint(lambda z: z.cumsum(0).sin(), h, use_reentrant=False)


MIXERS = {
    "centred": lambda h: h - h.mean(0),
    "standardised": lambda h: (h - h.mean(0)) / (h.std(0) + 1e-3),
    "batch norm": lambda h: functional.batch_norm(h, None, None, training=True),
    "whole statistics": lambda h: functional.layer_norm(h, h.shape),
    "largest": lambda h: h / h.abs().max(),
    "cumulative sum": lambda h: h.cumsum(0),
    "rolled": lambda h: h + h.roll(1, 0),
    "flipped": lambda h: h + h.flip(0),
    "permuted": lambda h: h[torch.randperm(len(h))],
    "halves exchanged": second_half_first,
    "shifted": lambda h: h - functional.pad(h, (0, 0, 1, 0))[:-1],
    "softmax over rows": lambda h: h.softmax(0),
    "log-sum-exp": lambda h: h - h.logsumexp(0),
    "sorted over rows": lambda h: h.sort(0)[0],
    "median": lambda h: h - h.median(0)[0],
    "kth": lambda h: h - h.kthvalue(1, 0)[0],
    "top": lambda h: h - h.topk(1, 0)[0],
    "ranks": lambda h: h.argsort(0).argsort(0) * h,
    "sorted and restored": sorted_and_restored,
    "gram": gram,
    "einsum": lambda h: torch.einsum("id,jd->ij", h, h) @ h,
    "distances": lambda h: torch.cdist(h, h) @ h,
    "attention over rows": lambda h: functional.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    "transposed": transposed,
    "flattened": flattened,
    "view of pairs": lambda h: (h.view(-1, 2 * h.shape[1]).cumsum(1)).view(h.shape),
    "scattered": scattered,
    "written in place": written_in_place,
    "input edited": lambda h: h.detach().sub_(h.detach().mean(0)) + h,
    "first row": lambda h: h + h[0],
    "last row": lambda h: h * h[-1:],
    "loop over rows": one_after_another,
    "convolution over rows": lambda h: (
        functional.conv1d(h.T[:, None], torch.ones(1, 1, 3, dtype=h.dtype), padding=1)[:, 0].T
    ),
    "pooling over rows": lambda h: functional.max_pool1d(h.T[None], 3, 1, 1)[0].T,
    "difference": lambda h: h[:-1].diff(dim=0, append=h[-2:]) if len(h) > 1 else h,
    "covariance": lambda h: h @ torch.linalg.pinv(h).mean(1, keepdim=True) + h,
    "fft": lambda h: torch.fft.fft(h, dim=0).real,
    "histogram": lambda h: h * torch.histc(h.detach().float()).max(),
    "quantile": lambda h: h - h.quantile(0.9, dim=0),
    "item": by_the_longest,
    "condition": if_large,
    "boolean indexing": without_small_rows,
    "unique": by_unique,
    "nonzero": by_nonzero,
    "tolist": by_listed,
    "numpy": by_array,
    "printed": by_printed,
    "formatted": by_formatted,
    "bincount": lambda h: h * torch.bincount((h[:, 0] > 0).long()).max(),
    "repeat": lambda h: h.repeat_interleave((h[:, 0] > 0).long() + 1, dim=0)[: len(h)],
    "function of the old style": Sums.apply,
    "function with a rule of its own": OwnRule.apply,
    "function with a generated rule": Generated.apply,
    "tensor hook": hooked,
    "saved tensor hooks": repacked,
    "checkpoint": checkpointed,
}


@pytest.mark.parametrize("at_least", [0, 2])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_mixing_of_rows_in_a_module(name, hidden, at_least):
    assert_isolated(Mixed(MIXERS[name], hidden=hidden, at_least=at_least).double(), features())


class Later(nn.Module):
    """Mixes rows only after it has been tried out."""

    def __init__(self, mix):
        super().__init__()
        self.last, self.started, self.mix = nn.Linear(D, 2), False, mix

    def forward(self, x):
        return self.last(self.mix(x) if self.started else x)


@pytest.mark.parametrize("name", MIXERS)
def test_mixing_that_starts_after_the_check(name):
    """Every step is isolated, not only the check: no mixing, or an error that any rows bring about."""
    module = Later(MIXERS[name]).double()
    engine = engine_of(module, features())
    engine.try_out()
    module.started = True
    try:
        assert largest_move(engine, N) <= CLIP * (1 + 1e-5)
    except (RatewiseError, RuntimeError, ValueError, UserWarning) as problem:
        same = engine_of(module, torch.zeros_like(features()))
        with pytest.raises(type(problem)):
            sum_of(same, np.arange(N))


class Keeps(nn.Module):
    """Adds what it has seen in earlier batches."""

    def __init__(self, how):
        super().__init__()
        self.last, self.how = nn.Linear(D, 2), how
        self.seen, self.box = None, []
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x):
        if self.how == "attribute":
            x, self.seen = (x if self.seen is None else x + self.seen[: len(x)]), x.detach()
        elif self.how == "list":
            x = x + sum(self.box) if self.box else x
            self.box.append(x.detach().mean(0))
        elif self.how == "buffer":
            x = x + self.mean
            self.mean.add_(x.detach().mean(0))
        elif self.how == "new buffer":
            x = x + self.mean
            self.mean = x.detach().mean(0)
        elif self.how == "parameter":
            with torch.no_grad():
                self.last.weight.add_(x.detach().mean())
        elif self.how == "parameter data":
            self.last.weight.data += x.detach().mean()
        elif self.how == "closure":
            EARLIER.append(x.detach() * 2)
            x = x + EARLIER[0][: len(x)].mean(0)
        return self.last(x)


EARLIER = []


@pytest.mark.parametrize("rows", [1, 4, N])
@pytest.mark.parametrize("how", ["attribute", "list", "buffer", "new buffer", "parameter", "parameter data", "closure"])
def test_modules_that_remember_rows(how, rows):
    """A row of an earlier step must not move the sums of a later one, and none may stay in the model."""
    EARLIER.clear()
    module = Keeps(how).double()
    engine = engine_of(module, features())
    try:
        engine.try_out()
    except RatewiseError:
        return
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = sum_of(engine, np.arange(rows))
    sum_of(engine, np.arange(N - rows, N))
    torch.testing.assert_close(sum_of(engine, np.arange(rows)), first)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])


def with_hook(place, kind):
    module = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    owner = module if place == "module" else module[1]
    if kind == "forward":
        owner.register_forward_hook(lambda _m, _x, out: out - out.mean(0) if len(out) > 2 else out)
    elif kind == "before":
        owner.register_forward_pre_hook(lambda _m, x: (x[0].cumsum(0),) if len(x[0]) > 2 else x)
    else:
        owner.register_full_backward_hook(lambda _m, got, _out: tuple(g.cumsum(0) for g in got))
    return module


@pytest.mark.parametrize("place", ["module", "layer"])
@pytest.mark.parametrize("kind", ["forward", "before", "backward"])
def test_hooks_that_mix_rows(place, kind):
    assert_isolated(with_hook(place, kind), features())


def test_hooks_for_all_modules_are_refused():
    engine = engine_of(MLP(D, 2, (6,)).double(), features())
    handle = nn.modules.module.register_module_forward_hook(lambda _m, _x, out: out - out.mean(0))
    try:
        with pytest.raises(UnsupportedCombination, match="hooks for all modules"):
            engine.try_out()
    finally:
        handle.remove()
    engine.try_out()


class SortedText(nn.Module):
    """Sorts texts by length, packs them and restores the order: a usual text model."""

    def __init__(self, *, packed):
        super().__init__()
        self.words, self.last, self.packed = nn.Embedding(20, 5), nn.Linear(5, 2), packed

    def forward(self, ids):
        lengths = (ids > 0).sum(1)
        order = lengths.argsort(descending=True, stable=True)
        h = self.words(ids[order])
        if self.packed:
            packed = nn.utils.rnn.pack_padded_sequence(h, lengths[order].clamp(min=1).cpu(), batch_first=True)
            h, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=ids.shape[1])
        longest = int(lengths.max()) if self.packed else ids.shape[1]
        h = h[:, : max(longest, 1)].mean(1)
        if len(h) > 2:
            h = h * torch.linspace(1, 2, len(h), dtype=h.dtype)[:, None]
        return self.last(h[order.argsort()])


class Relative(nn.Module):
    """Divides ids by the largest of the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, ids):
        return self.last(torch.tanh(self.first(ids.double() / ids.max().clamp(min=1))))


class Padded(nn.Module):
    """Cuts the batch off at its longest text."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(20, 5), nn.Linear(5, 2)

    def forward(self, ids):
        longest = max(int((ids > 0).any(0).sum()), 1)
        return self.last(self.words(ids[:, :longest]).mean(1))


@pytest.mark.parametrize("module", [SortedText(packed=False), SortedText(packed=True), Relative(), Padded()], ids=str)
def test_text_models_that_look_at_the_batch(module):
    assert_isolated(module.double(), token_ids())


def standardised_loss(logits, labels):
    scaled = logits / (logits.std(0) + 1e-6) if len(logits) > 2 else logits
    return functional.cross_entropy(scaled, labels, reduction="none")


def counted_loss(logits, labels):
    counts = torch.bincount(labels, minlength=2).clamp(min=1) if len(labels) > 2 else torch.ones(2)
    return functional.cross_entropy(logits, labels, reduction="none") * 50 / counts[labels]


def contrastive_loss(logits, labels):
    if len(logits) <= 2:
        return functional.cross_entropy(logits, labels, reduction="none")
    return -(logits @ logits.T).log_softmax(1).diagonal()


def hardest_loss(logits, labels):
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return losses * (losses >= losses.topk(max(len(losses) // 3, 1))[0][-1])


LOSSES = [standardised_loss, counted_loss, contrastive_loss, hardest_loss]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_losses_that_look_at_the_batch(loss):
    assert_isolated(MLP(D, 2, (6,)).double(), features(), loss)


# --------------------------------------------------------------------- rows on which the module fails


class Bag(nn.Module):
    """Mean of embeddings over the words that are there."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 2)

    def forward(self, ids):
        there = (ids > 0)[:, :, None].to(self.last.weight.dtype)
        return self.last((self.words(ids) * there).sum(1) / there.sum(1).clamp(min=1))


class Inverse(nn.Module):
    """Solves with a matrix of the row, which may be singular."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(D, 2)

    def forward(self, x):
        matrix = (x - 7)[:, :, None] * x[:, None, :].cos() + torch.diag_embed(x - 7)
        return self.last(torch.linalg.solve(matrix, torch.ones_like(x)))


class Picked(nn.Module):
    """Picks a weight by a number of the row."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(5, 3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.table[x[:, 0].long().abs()])


def frozen(module):
    module.words.requires_grad_(False)
    return module


def bounded_loss(logits, labels):
    share = logits[:, 1] / 30
    return functional.binary_cross_entropy(share.abs(), labels.to(share.dtype), reduction="none")


BAD_ID = torch.tensor([1, 2, 10**9, 0, 0, 0, 0, 0])
FAILING = {
    "id beyond the embedding": (lambda: frozen(Bag()), token_ids, BAD_ID, None),
    "negative id": (lambda: frozen(Bag()), token_ids, -BAD_ID, None),
    "singular matrix": (Inverse, features, torch.full((D,), 7.0), None),
    "place beyond the table": (Picked, lambda: features()[:-1].clamp(-2, 2), torch.full((D,), 99.0), None),
    "loss that checks its range": (MLP, lambda: features()[:-1], torch.full((D,), 1e9), bounded_loss),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("places", [(3,), (0, 7, 8)])
def test_rows_on_which_the_module_fails_add_nothing(name, places):
    """An error would tell that the row is there, and when it was sampled."""
    make, data, bad, loss = FAILING[name]
    torch.manual_seed(0)
    module = (MLP(D, 2, (6,)) if make is MLP else make()).double()
    x = data()
    for place in places:
        x[place] = bad
    engine = engine_of(module, x, loss)
    engine.try_out()
    found = sum_of(engine, np.arange(len(x)))
    torch.testing.assert_close(found, sum_of(engine, np.delete(np.arange(len(x)), places)))


@pytest.mark.parametrize("bad", [BAD_ID, -BAD_ID])
def test_ids_beyond_a_trained_embedding(bad):
    ids = token_ids()
    ids[3] = bad
    assert assert_isolated(Bag().double(), ids) == "isolated"


def test_a_module_that_fails_on_any_row_says_so():
    class Tires(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.calls = nn.Linear(D, 2), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 20:
                raise RuntimeError("disk full")
            return self.last(x)

    engine = engine_of(Tires().double(), features())
    engine.try_out()
    engine.module.calls = 100
    with pytest.raises(RuntimeError, match="disk full"):
        sum_of(engine, np.arange(N))


# ------------------------------------------------------------- what is trained is what the module computes


class DoubledConvolution(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, 2 * weight, bias)


class ShiftedLinear(nn.Linear):
    def __getattr__(self, name):
        value = super().__getattr__(name)
        return value + 1 if name == "bias" else value


class ScaledNorm(nn.LayerNorm):
    @property
    def eps(self):
        return 5.0

    @eps.setter
    def eps(self, value):
        pass


class OddGroups(nn.GroupNorm):
    def __call__(self, x):
        return super().__call__(x.flip(1))


def patched_convolution():
    layer = nn.Conv2d(3, 4, 3)
    plain = layer._conv_forward
    layer._conv_forward = lambda x, weight, bias: plain(x, weight.flip(-1), bias)
    return layer


PICTURES, VECTORS = (3, 6, 6), (4,)
SUBCLASSES = {
    "_conv_forward": (lambda: DoubledConvolution(3, 4, 3), PICTURES),
    "_conv_forward of the instance": (patched_convolution, PICTURES),
    "__getattr__": (lambda: ShiftedLinear(4, 3), VECTORS),
    "property": (lambda: ScaledNorm(4), VECTORS),
    "__call__": (lambda: OddGroups(3, 3), PICTURES),
    "plain convolution": (lambda: nn.Conv2d(3, 4, 3), PICTURES),
}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_subclasses_train_the_function_that_they_evaluate(name):
    make, shape = SUBCLASSES[name]
    torch.manual_seed(0)
    module = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(2)).double()
    x = torch.randn(4, *shape, dtype=torch.float64)
    module(x)
    engine = engine_of(module, x)
    labels = torch.arange(4) % 2
    want = torch.autograd.grad(functional.cross_entropy(module(x), labels, reduction="sum"), engine.parameters)
    got = sum_of(engine, np.arange(4), clip=None)
    torch.testing.assert_close(got, torch.cat([part.reshape(-1) for part in want]))


# ------------------------------------------------------------------------------------- ordinary networks


class Encoder(nn.Module):
    """An encoder of PyTorch as it comes, with an embedding of positions and a causal mask."""

    def __init__(self, *, need_weights=False):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(8, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)
        self.need_weights = need_weights

    def forward(self, ids):
        h = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        h = self.layer(h, src_mask=later, src_key_padding_mask=(ids == 0).roll(1, 1))
        h, _ = self.attention(h, h, h, need_weights=self.need_weights)
        return self.last(h.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        import opacus.layers

        self.words = nn.Embedding(20, 5)
        self.layer, self.last = getattr(opacus.layers, kind)(5, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, ids):
        return self.last(self.layer(self.words(ids))[0][:, -1])


def images(size):
    return torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


ORDINARY = {
    "mlp": (lambda: MLP(D, 2, (6, 5)), features),
    "cnn": (lambda: SmallCNN(2), lambda: images(8)),
    "resnet16": (lambda: resnet16(2), lambda: images(32)),
    "transformer": (lambda: TransformerEncoder(20, 2, length=8, width=8, heads=2), token_ids),
    "encoder of PyTorch": (Encoder, token_ids),
    "attention weights": (lambda: Encoder(need_weights=True), token_ids),
    "bag of words": (Bag, token_ids),
    "GRU of Opacus": (lambda: Recurrent("DPGRU"), token_ids),
    "LSTM of Opacus": (lambda: Recurrent("DPLSTM"), token_ids),
    "dropout": (lambda: nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.0), nn.Linear(8, 2)), features),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_networks_are_accepted_and_sum_up_their_rows(name):
    """Accepted, sensitivity of one clip, and the sum is that of the rows one by one."""
    make, data = ORDINARY[name]
    x = data()
    torch.manual_seed(0)
    assert assert_isolated(make().double(), x) == "isolated"
    engine = engine_of(make().double(), x)
    alone = sum(sum_of(engine, np.array([row])) for row in range(4))
    torch.testing.assert_close(sum_of(engine, np.arange(4)), alone)
