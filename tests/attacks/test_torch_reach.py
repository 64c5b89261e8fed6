"""What lies within reach of a module, a data set or a process, and would let one row act on others or on the outside.

As in the other attacks: refused before rows are read, or a row moves nothing but its own share.
"""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from ratewise import Domain
from ratewise.exceptions import InvalidInput, RatewiseError, UnsupportedCombination
from ratewise.torch import DatasetRows, TensorRows, Trainer, isolation, network_plan
from ratewise.torch.engine import Objective, TorchEngine
from ratewise.training.config import TrainingConfig

torch.set_num_threads(1)
N, D = 16, 4
ROWS = np.arange(N)
PLAIN = Domain((0, 1), {})


def features():
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    x[-1] = 50.0 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    return x


def engine_of(module, x=None, cells=None, **options):
    x = features() if x is None else x
    rows = TensorRows(x, np.arange(len(x)) % 2, cells)
    return TorchEngine(module, rows, Objective(2, None if cells is None else 1), **options)


def sum_of(engine, rows=ROWS):
    return torch.cat([part.double().ravel() for part in engine.sums(np.asarray(rows), clip=1.0, step=0).gradient])


# ------------------------------------------------------- code of tensors and modes, which runs below vmap


def centred(out):
    return out - 3 * out.mean(0) if out.dim() > 1 and len(out) > 2 else out


class Wrapped(torch.Tensor):
    """A matrix whose products are taken relative to their mean over the batch."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tree_map(lambda one: one.inner if isinstance(one, Wrapped) else one, args)
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::mul"):
            return centred(out)
        return Wrapped(out) if name in ("aten::t", "aten::detach", "aten::clone", "aten::unsqueeze") else out


class Centring(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return centred(out) if func is torch.ops.aten.sin.default else out


class Reaches(nn.Module):
    def __init__(self, where):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last, self.where = nn.Linear(D, 6), nn.Linear(6, 2), where
        if where == "parameter":
            self.own = nn.Parameter(Wrapped(torch.eye(6)), requires_grad=False)
        elif where == "buffer":
            self.register_buffer("own", Wrapped(torch.eye(6)))
        elif where == "attribute":
            self.own = Wrapped(torch.eye(6))

    def forward(self, x):
        h = self.first(x)
        if self.where == "mode":
            with Centring():
                h = h.sin()
        else:
            h = functional.linear(h, Wrapped(torch.eye(6)) if self.where == "made" else self.own)
        return self.last(h)


@pytest.mark.parametrize("where", ["parameter", "buffer", "attribute", "made", "mode"])
@pytest.mark.parametrize("tried", [True, False])
def test_dispatch_of_ones_own_sees_no_batch(where, tried):
    """Operations reach ``__torch_dispatch__`` below vmap, with the rows of the whole batch."""
    engine = engine_of(Reaches(where))
    with pytest.raises(UnsupportedCombination, match="whole batches"):
        engine.try_out() if tried else sum_of(engine)


def test_a_dispatch_mode_around_a_training_sees_no_batch():
    engine = engine_of(nn.Linear(D, 2))
    with Centring(), pytest.raises(UnsupportedCombination, match="whole batches"):
        sum_of(engine)
    sum_of(engine)


# ------------------------------------------------------------------------------ memory that rows have left behind

MEMORY = {
    "empty": lambda h, n: torch.empty(1, n),
    "empty like": lambda h, n: torch.empty_like(h[:, :1].expand(-1, n)),
    "new empty": lambda h, n: h.new_empty(1, n),
    "strides": lambda h, n: torch.empty_strided((1, n), (n, 1)),
    "permuted": lambda h, n: torch.empty_permuted((1, n), (0, 1)),
    "constructor": lambda h, n: torch.Tensor(1, n),
    "resized": lambda h, n: torch.zeros(1).resize_(1, n),
    "a storage": lambda h, n: torch.tensor([]).set_(torch.UntypedStorage(4 * n), 0, (1, n)),
    "quantized": lambda h, n: torch._empty_affine_quantized((1, n), scale=1, zero_point=0, dtype=torch.quint8).float(),
}


class Unwritten(nn.Module):
    """Reads memory that nobody has written, where it finds what was computed of other rows."""

    def __init__(self, how, width):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last, self.how, self.width = nn.Linear(D, 6), nn.Linear(6, 2), how, width

    def forward(self, x):
        h = self.first(x).tanh()
        h = h + 0.0 * (3.0 * h[:, :1].expand(-1, self.width)).sum(-1, keepdim=True)
        found = MEMORY[self.how](h, self.width).nan_to_num(0.0, 0.0, 0.0).clamp(-3.0, 3.0)
        return self.last(h + found.flip(-1).mean(-1, keepdim=True))


@pytest.mark.parametrize("how", MEMORY)
def test_freed_memory_shows_nothing_of_other_rows(how):
    for width in (8, 64, 1000):
        engine = engine_of(Unwritten(how, width))
        try:
            whole = sum_of(engine)
        except UnsupportedCombination:
            continue
        for row in (0, N // 2, N - 1):
            assert float((whole - sum_of(engine, np.delete(ROWS, row))).norm()) <= 1.0 + engine.slack(N)
        assert torch.equal(whole, sum_of(engine))


class Tangents(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z):
        return z * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, tangent):
        SEEN.append(tangent.detach() * 1.0)
        return tangent * 2


SEEN = []


def in_a_gradient(_module, h):
    torch.func.grad(lambda z: (SEEN.append(z * 1.0), z.sum())[1])(h)


def in_a_derivative(_module, h):
    torch.func.jvp(Tangents.apply, (h,), (3 * h,))


def as_a_parameter(module, h):
    module.seen = nn.Parameter(h, requires_grad=False)


def in_a_part(module, h):
    module.part = nn.Module()
    module.part.seen = nn.Parameter(h, requires_grad=False)


class Stores(nn.Module):
    def __init__(self, store):
        super().__init__()
        self.last, self.store = nn.Linear(D, 2), store

    def forward(self, x):
        self.store(self, x.detach() * 1.0)
        return self.last(x)


@pytest.mark.parametrize("store", [in_a_gradient, in_a_derivative, as_a_parameter, in_a_part])
def test_tensors_of_rows_cannot_be_kept_in_other_ways(store):
    """Later batches would meet them, and those in parameters would be released with the module."""
    SEEN.clear()
    with pytest.raises(UnsupportedCombination, match="keeps tensors of its rows"):
        sum_of(engine_of(Stores(store)))
    SEEN.clear()


# --------------------------------------------------- operations whose batching rules or kernels check no numbers


class Tokens(nn.Module):
    def __init__(self, look_up):
        torch.manual_seed(0)
        super().__init__()
        self.table, self.last, self.look_up = nn.Parameter(torch.randn(10, 6)), nn.Linear(6, 2), look_up

    def forward(self, ids):
        return self.last(self.look_up(ids, self.table).tanh())


def filled(ids, table):
    return table.new_zeros(10).index_fill(0, ids[0], 1.0)[None] @ table


LOOK_UPS = {
    "embedding": lambda ids, table: functional.embedding(ids, table).mean(1),
    "padded": lambda ids, table: functional.embedding(ids, table, padding_idx=-1).mean(1),
    "embedding of torch": lambda ids, table: torch.embedding(table, ids).mean(1),
    "operator": lambda ids, table: torch.ops.aten.embedding(table, ids).mean(1),
    "filled": filled,
}


@pytest.mark.parametrize("name", LOOK_UPS)
@pytest.mark.parametrize("bad", [10, 19, -1, -11, 2**40])
def test_ids_outside_the_table_reach_no_other_row(name, bad):
    """Without a clip, a row adds what it adds alone: PyTorch would count such an id as one of the next row."""
    ids = torch.randint(1, 10, (N, 7), generator=torch.Generator().manual_seed(0))
    ids[7] = bad
    engine = engine_of(Tokens(LOOK_UPS[name]), ids)

    def total(rows):
        return torch.cat([part.double().ravel() for part in engine.sums(np.asarray(rows), clip=1e6, step=0).gradient])

    try:
        whole = total(ROWS)
    except UnsupportedCombination:
        return
    for row in (6, 7, 8):
        torch.testing.assert_close(whole, total(np.delete(ROWS, row)) + total([row]), rtol=0, atol=1e-4)


def test_lookups_inside_the_table_are_those_of_pytorch():
    ids, table = torch.tensor([[1, 9, 3], [9, 9, 0]]), torch.randn(10, 6, requires_grad=True)
    own = isolation._embedding(ids, table, -1)
    plain = functional.embedding(ids, table, -1)
    weights = torch.randn(2, 3, 6)
    assert torch.equal(own, plain)
    for found in zip(torch.autograd.grad(own, table, weights), torch.autograd.grad(plain, table, weights), strict=True):
        torch.testing.assert_close(*found)


class Rolled(nn.Module):
    def __init__(self, roll):
        torch.manual_seed(0)
        super().__init__()
        self.last, self.roll = nn.Linear(D, 2), roll

    def forward(self, x):
        return self.last(x + self.roll(x.sum()))


@pytest.mark.parametrize(
    "roll", [lambda z: torch.roll(z, 1), lambda z: z.roll(1), lambda z: torch.roll(input=z, shifts=1)]
)
def test_a_number_of_a_row_does_not_roll_to_the_next(roll):
    engine = engine_of(Rolled(roll))
    whole = sum_of(engine)
    for row in (0, N - 1):
        assert float((whole - sum_of(engine, np.delete(ROWS, row))).norm()) <= 1.0 + engine.slack(N)
    torch.testing.assert_close(whole, sum_of(engine_of(Rolled(torch.clone))))


class Turned(nn.Module):
    """A spatial transformer: where it looks depends on the picture."""

    def __init__(self, padding):
        torch.manual_seed(0)
        super().__init__()
        self.turn, self.last, self.padding = nn.Linear(20, 40), nn.Linear(400, 2), padding

    def forward(self, x):
        grid = self.turn(x[:, 0]).unflatten(-1, (20, 2))
        seen = functional.grid_sample(x.nan_to_num(), grid, padding_mode=self.padding, align_corners=False)
        return self.last(seen.flatten(1).clamp(-3.0, 3.0))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_places_that_are_not_finite_do_not_end_the_process(padding, value):
    x = torch.rand(N, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    x[5] = value
    whole = sum_of(engine_of(Turned(padding), x))
    assert bool(torch.isfinite(whole).all())


# -------------------------------------------------------------------------------- generators of data sets

GENERATOR = np.random.default_rng(0)


class Jitter:
    def __init__(self, generator):
        self.generator = generator

    def __call__(self, x):
        return x + self.generator.normal()


class Slotted:
    __slots__ = ("generator",)

    def __init__(self):
        self.generator = random.Random(0)


class Changed(Dataset):
    def __init__(self, change, **others):
        self.change = change
        vars(self).update(others)

    def __len__(self):
        return N

    def __getitem__(self, row):
        return self.change(features()[row]), row % 2


class Named(Dataset):
    """Draws from a generator of its file."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        return self.drawn(features()[row]), row % 2

    def drawn(self, x):
        return jittered(x)


def jittered(x):
    return x + GENERATOR.normal()


def closed():
    generator = np.random.default_rng(0)
    return lambda x: x + generator.normal()


REACHABLE = {
    "transform": lambda: Changed(Jitter(np.random.default_rng(0))),
    "several transforms": lambda: Changed(None, changes=[{"first": [Jitter(np.random.RandomState(0))]}]),
    "slots": lambda: Changed(None, part=Slotted()),
    "closure": lambda: Changed(closed()),
    "part of a function": lambda: Changed(functools.partial(np.add, np.random.PCG64(0))),
    "bound method": lambda: Changed(np.random.default_rng(0).normal),
    "default": lambda: Changed(lambda x, bits=GENERATOR: x + bits.normal()),
    "global": Named,
    "one of several data sets": lambda: ConcatDataset([TensorDataset(features()), Subset(Changed(closed()), [1])]),
}


@pytest.mark.parametrize("name", REACHABLE)
def test_generators_within_reach_of_a_data_set_are_refused(name):
    """What they draw for a row depends on which rows were read before, and on what is in them."""
    with pytest.raises(UnsupportedCombination, match="generator of its own"):
        DatasetRows(REACHABLE[name](), PLAIN)


def test_global_generators_and_plain_data_are_no_obstacle():
    for change in (np.random.normal, lambda x: x + random.gauss(0, 1), lambda x: x + torch.randn(D), random.uniform):
        source = DatasetRows(Changed(lambda x: x, change_of_labels=change), PLAIN)
        assert source.blank(2).shape == (2, D)
    rows = [(row, 1) for row in features()] * 200
    assert DatasetRows(rows, PLAIN).n_rows == 200 * N
    halves = torch.utils.data.random_split(
        TensorDataset(features(), torch.arange(N) % 2), [8, 8], generator=torch.Generator().manual_seed(0)
    )
    assert DatasetRows(halves[0], PLAIN).n_rows == 8


# --------------------------------------------------------------------------------------- items that fail


class Panic(BaseException):
    """What libraries in Rust raise; no Exception."""


def too_long(_x):
    return np.zeros(10**16)


def panics(_x):
    raise Panic


@pytest.mark.parametrize("change", [too_long, panics])
@pytest.mark.parametrize("place", [0, 6])
def test_an_item_that_asks_for_too_much_memory_or_panics_adds_nothing(change, place):
    class One(Changed):
        def __getitem__(self, row):
            return (change(None) if row == place else features()[row]), row % 2

    engine = TorchEngine(nn.Linear(D, 2), DatasetRows(One(None), PLAIN), Objective(2))
    engine.try_out()
    torch.testing.assert_close(sum_of(engine), sum_of(engine, np.delete(ROWS, place)))


# ------------------------------------------------------------------------------------------ evaluation


class Unlucky(nn.Module):
    """In evaluation, fails on the last row for half of all draws."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, 2)

    def forward(self, x):
        if not self.training:
            draw = torch.rand_like(x[:, :1]) - 0.5
            torch.linalg.cholesky(torch.where(x[:, :1].abs() > 40, draw, 1.0)[:, :, None])
        return self.layer(x)


def test_a_row_that_fails_in_some_draws_takes_no_other_row_along():
    """Rows that fail were found with other draws than those of the counts."""
    for _ in range(12):
        engine = engine_of(Unlucky(), cells=np.zeros(N, np.int64))
        engine.try_out()
        assert engine.counts()[0].sum() >= N - 1


class Evaluated(nn.Module):
    """Computes something else in evaluation mode."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(D, 2), change

    def forward(self, x):
        h = self.layer(x)
        return h if self.training else self.change(h)


@pytest.mark.parametrize(
    "change",
    [lambda h: -h if h.max() > 1 else h, lambda h: torch.cat([h, h], 1), lambda h: h * torch.unique(h).numel()],
    ids=["condition", "four logits", "unique"],
)
def test_what_cannot_be_certified_is_refused_before_training(change):
    """It was found after the last step, when the budget was spent."""
    with pytest.raises(RatewiseError):
        engine_of(Evaluated(change), cells=np.zeros(N, np.int64)).try_out()


# --------------------------------------------------------------------------- settings and other processes


def test_a_training_that_others_join_later_takes_no_step(monkeypatch):
    config = TrainingConfig(steps=3, sampling_rate=0.5)
    plan = network_plan(N, config, epsilon=2.0, delta=1e-5)
    trainer = Trainer(nn.Linear(D, 2), TensorRows(features(), ROWS % 2), plan, config=config, n_classes=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsupportedCombination, match="several processes"):
        trainer.run()
    assert trainer.steps_done == 0


@pytest.mark.parametrize("part", ["matmul", "conv"])
def test_reduced_precision_by_the_newer_settings(part, monkeypatch):
    """Products of float32 are then formed in float64 instead of ending with an error."""
    settings = getattr(torch.backends.mkldnn, part, None)
    if not hasattr(settings, "fp32_precision"):
        pytest.skip("this version of PyTorch has no such setting")
    engine = engine_of(nn.Linear(D, 2))
    try:
        settings.fp32_precision = "bf16"
        engine.try_out()
        moved = float((sum_of(engine) - sum_of(engine, ROWS[:-1])).norm())
    finally:
        settings.fp32_precision = "none"
    assert moved <= 1 + engine.slack(N)


@pytest.mark.parametrize("make", [lambda: nn.Linear(48, 2), lambda: nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 2))])
def test_autocast_around_a_training_does_not_round_sums(make):
    """Sums and norms were formed in bfloat16 by callers who trained under autocast."""
    for seed in range(4):
        torch.manual_seed(seed)
        module, labels = make(), np.zeros(128, np.int64)
        x = 9 * torch.randn(48) + 0.01 * torch.randn(128, 48)
        found = []
        for last in (0, -1):
            labels[-1] = last
            engine = TorchEngine(module, TensorRows(x, labels.copy()), Objective(2))
            with torch.autocast("cpu", torch.bfloat16):
                found.append(sum_of(engine, np.arange(128)))
        assert float((found[0] - found[1]).norm()) <= 1 + engine.slack(128)


# ---------------------------------------------------------------------------------------- ordinary networks


def replaced(layer):
    plain = type(layer).forward
    layer.forward = lambda x: plain(layer, 2 * x)


def padded(layer):
    layer.padding_mode = "reflect"


def subclassed(layer):
    class Tripled(nn.Conv1d):
        def forward(self, x):
            return 3 * super().forward(x)

    layer.__class__ = Tripled


def patched(monkeypatch):
    plain = nn.Conv1d._conv_forward
    monkeypatch.setattr(nn.Conv1d, "_conv_forward", functools.wraps(plain)(lambda *parts: -2 * plain(*parts)))


@pytest.mark.parametrize("change", [replaced, padded, subclassed, patched], ids=lambda change: change.__name__)
def test_layers_that_are_changed_later_are_trained_as_they_are_evaluated(change, monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(24, 2))
    x = torch.randn(6, 2, 8)
    engine = engine_of(module, x)
    engine.try_out()
    change(monkeypatch if change is patched else module[0])
    loss = functional.cross_entropy(module(x), torch.arange(6) % 2, reduction="sum")
    want = torch.cat([part.ravel() for part in torch.autograd.grad(loss, engine.parameters)])
    for _ in range(2):
        got = torch.cat([part.ravel() for part in engine.sums(np.arange(6), clip=None).gradient])
        torch.testing.assert_close(got.float(), want, rtol=1e-4, atol=1e-5)


def test_inputs_of_a_layer_that_are_written_to_are_refused():
    """PyTorch refuses it too: the gradient would be that of another function."""

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(D, 6), nn.Linear(6, 2)

        def forward(self, x):
            z = x * 1
            h = self.first(z)
            z.mul_(5)
            return self.last(h)

    with pytest.raises(InvalidInput, match="modified by an inplace operation"):
        engine_of(Writes()).try_out()


def frozen_encoder():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).requires_grad_(requires_grad=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 2))


def written_positions():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 2))


@pytest.mark.parametrize("make", [frozen_encoder, written_positions])
def test_frozen_encoders_and_writing_into_outputs_work(make):
    torch.manual_seed(0)
    module, x = make(), torch.randn(6, 3, 8)
    engine = engine_of(module, x)
    engine.try_out()
    loss = functional.cross_entropy(module(x), torch.arange(6) % 2, reduction="sum")
    want = torch.cat([part.ravel() for part in torch.autograd.grad(loss, engine.parameters)])
    got = torch.cat([part.ravel() for part in engine.sums(np.arange(6), clip=None).gradient])
    torch.testing.assert_close(got.float(), want, rtol=1e-4, atol=1e-5)
