"""Ways around the isolation of rows: code beside `forward`, errors, warnings, counters, items of data sets, copies.

As in the other attacks, a module is refused before rows are read, or removing a row moves the sum of clipped
gradients by at most the clip and leaves nothing else behind.
"""

import copy
import os
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset

from ratewise import Domain
from ratewise.exceptions import InvalidType, LedgerError, RatewiseError, UnsupportedCombination
from ratewise.torch import TensorRows, Trainer, make_private, network_plan
from ratewise.torch.clipping import PerRowClipper
from ratewise.torch.engine import DatasetRows, Objective, TorchEngine
from ratewise.training.config import TrainingConfig

torch.set_num_threads(1)
N, D = 16, 4


def features(last=50.0):
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    x[-1] = last * torch.tensor([1.0, -1.0, 1.0, 1.0])
    return x


def engine_of(module, x=None, loss=None, **options):
    x = features() if x is None else x
    return TorchEngine(module, TensorRows(x, np.arange(len(x)) % 2), Objective(2, None, loss), **options)


def sum_of(engine, rows, clip=1.0, step=0):
    torch.manual_seed(1)
    return torch.cat([part.double().ravel() for part in engine.sums(np.asarray(rows), clip=clip, step=step).gradient])


def assert_isolated(module, x=None):
    engine = engine_of(module, x)
    try:
        engine.try_out()
    except RatewiseError:
        return "refused"
    rows = np.arange(N)
    whole = sum_of(engine, rows)
    assert max(float((whole - sum_of(engine, np.delete(rows, out))).norm()) for out in (N - 1, 0, N // 2)) <= 1.001
    return "isolated"


class Between(nn.Module):
    """Two layers with something in between, which acts in any batch but one of two rows."""

    def __init__(self, between):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last, self.between = nn.Linear(D, 6), nn.Linear(6, 2), between

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h if len(h) == 2 else self.between(h))


# ------------------------------------------------------------------------- code that saw whole batches


class OwnCall(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x - 3 * x.mean(0) if len(x) > 2 else x)


def test_a_call_of_its_own_sees_one_row():
    torch.manual_seed(0)
    module = OwnCall(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 2))
    assert assert_isolated(module) == "isolated"
    with pytest.raises(UnsupportedCombination, match="__call__"), PerRowClipper(module).recording():
        module(features())


class Centred(nn.Parameter):
    """A parameter whose products are taken of rows relative to their mean."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is functional.linear and args[0].dim() > 1 and len(args[0]) > 2:
                args = (args[0] - 3 * args[0].mean(0), *args[1:])
            found = func(*args, **(kwargs or {}))
            return found.as_subclass(cls) if func in (torch.Tensor.detach, torch.Tensor.to) else found


def test_a_parameter_of_its_own_kind_meets_one_row():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 2))
    module[0].weight = Centred(module[0].weight.data)
    assert assert_isolated(module) == "isolated"


class Reads(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [one.as_subclass(torch.Tensor) if isinstance(one, torch.Tensor) else one for one in args]
        return func(*plain, **(kwargs or {})) * (1 + repr(plain[0]).count("-"))


def read_in_a_thread(h):
    texts = []

    def read():
        try:
            texts.append(repr(h))
        except RatewiseError as problem:
            texts.append(problem)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if isinstance(texts[0], RatewiseError):
        raise texts[0]
    return h * (1 + texts[0].count("-"))


class OnTheWay(torch.autograd.Function):
    """Does something forwards, before it keeps values, or backwards."""

    generate_vmap_rule = True
    at_first = before_keeping = on_the_way_back = staticmethod(torch.clone)

    @staticmethod
    def forward(z):
        return OnTheWay.at_first(z) * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        OnTheWay.before_keeping(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return OnTheWay.on_the_way_back(gradient)


SEEN = []


def with_earlier(g):
    SEEN.append(g)
    return g + 5 * SEEN[0].sum(0) if len(SEEN) > 5 else g


def caught(h):
    """Take another way if the inverse fails, as implementations of Gaussian processes do."""
    try:
        torch.linalg.inv((h[:, :1].abs() < 0.95).float()[:, :, None])
    except RuntimeError:
        return 100 * h
    return h


BACK = {
    "draws": lambda g: g * 2 * (torch.rand_like(g) < 0.5),
    "dropout": lambda g: functional.dropout(g, 0.5),
    "draws of NumPy": lambda g: g * np.random.rand(),  # noqa: NPY002 - is refused
    "text": lambda g: g * (1 + repr(g).count("-")),
    "earlier gradients": with_earlier,
    "errors that are caught": caught,
}


@pytest.mark.parametrize("name", BACK)
@pytest.mark.parametrize("where", ["at_first", "before_keeping", "on_the_way_back"])
def test_functions_of_the_module_are_isolated_forwards_and_backwards(name, where, monkeypatch):
    SEEN.clear()
    monkeypatch.setattr(OnTheWay, where, staticmethod(BACK[name]))
    assert_isolated(Between(OnTheWay.apply))


@pytest.mark.parametrize("read", [read_in_a_thread, lambda h: (h.as_subclass(Reads) * 1).as_subclass(torch.Tensor)])
def test_rows_cannot_be_read_as_text(read):
    assert assert_isolated(Between(read)) == "refused"


def test_errors_that_one_row_brings_about_are_no_signal_to_the_others():
    """A row whose matrix is singular made the module take another way for all rows."""
    x = features()
    x[:-1] *= 0.1
    module = Between(caught)
    nn.init.constant_(module.first.weight, 0.3)
    assert assert_isolated(module, x) == "isolated"
    with_row, without = (sum_of(engine_of(module, x), np.arange(rows)) for rows in (N, N - 1))
    torch.testing.assert_close(with_row, without)  # the row itself fails, and adds nothing


class Writes(nn.Module):
    """Writes into its weight, once it was tried out."""

    def __init__(self):
        super().__init__()
        self.weight, self.active = nn.Parameter(torch.ones(2, D)), []

    def forward(self, x):
        if self.active:
            self.weight.detach().index_put_((torch.zeros(1, dtype=torch.long),), x[:1])
        return functional.linear(x, self.weight)


def test_rows_are_not_written_into_parameters():
    module = Writes()
    engine = engine_of(module)
    engine.try_out()
    module.active.append(True)
    with pytest.raises((UnsupportedCombination, RuntimeError), match=r"parameters|in-?place"):
        engine.sums(np.arange(N), clip=1.0)
    assert torch.equal(module.weight, torch.ones(2, D))


# --------------------------------------------------------------------- what a sample leaves behind


class Counts(nn.Module):
    """Counts its calls in a buffer and an attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(D, 2), [0]
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.calls[0] += 1
        self.passes += 1
        return self.layer(x)


class CountingLoss:
    def __init__(self):
        self.calls = 0

    def __call__(self, logits, labels):
        self.calls += 1
        return functional.cross_entropy(logits, labels, reduction="none")

    def method(self, logits, labels):
        return self(logits, labels)


@pytest.mark.parametrize("tried", [True, False])
@pytest.mark.parametrize("bound", [True, False])
def test_the_number_of_batches_leaves_no_trace(tried, bound):
    """A module that counts its calls told how many batches a sample had, and whether it was empty."""
    found = []
    for rows in (0, 4, 5, N):
        torch.manual_seed(0)
        module, loss = Counts(), CountingLoss()
        engine = engine_of(module, loss=loss.method if bound else loss, physical_batch=4)
        if tried:
            engine.try_out()
            assert module.calls == [0]
        sum_of(engine, np.arange(rows))
        found.append((module.calls[0], float(module.passes), loss.calls, sum_of(engine, np.arange(3)).tolist()))
    assert found[0][:3] == (1, 1.0, 1)
    assert all(one == found[0] for one in found)


class Late(nn.Module):
    """Fails on blanks once its bias is positive."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(D, 2), nn.Embedding(3, 2).requires_grad_(requires_grad=False)
        nn.init.constant_(self.layer.bias, -1.0)

    def forward(self, x):
        late = (self.layer.bias.detach().sum() > 0).long() * (x.abs().sum(1) == 0)
        return self.layer(x) + functional.embedding(9 * late, self.table.weight)


@pytest.mark.parametrize("rows", [0, 3, 8, N])
def test_what_fails_for_a_public_reason_fails_whatever_the_sample(rows):
    """Only samples whose size is no multiple of 8 were filled up with blanks, and an empty one was not run at all."""
    module = Late()
    engine = engine_of(module)
    engine.try_out()
    nn.init.constant_(module.layer.bias, 1.0)
    with pytest.raises(IndexError):
        engine.sums(np.arange(rows), clip=1.0)
    nn.init.constant_(module.layer.bias, -1.0)
    module.layer.weight.requires_grad_(requires_grad=False)
    with pytest.raises(RatewiseError, match="other trainable parameters"):
        engine.sums(np.arange(rows), clip=1.0)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, 2)

    def forward(self, x):
        return self.layer(torch.normal(x, x.abs()))


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("module", [Noisy, lambda: nn.Sequential(nn.Linear(D, 2), nn.Softplus())])
def test_rows_bring_about_no_warning(value, module):
    """Neither of NumPy, which draws for random layers, nor of PyTorch's search for anomalies."""
    engine = engine_of(module(), features(value))
    engine.try_out()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anomalies = torch.autograd.set_detect_anomaly(True)
    with anomalies, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine.sums(np.arange(N), clip=1.0)
    assert said == []


# ------------------------------------------------------------------------------------- data sets


class Augmented(Dataset):
    """Adds noise of the global generators to its items."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return N

    def __getitem__(self, row):
        return features()[row] + 20 * torch.as_tensor(self.draw()), row % 2


def python_draw():
    import random

    return random.gauss(0, 1)


DRAWS = {"torch": lambda: torch.randn(()), "numpy": np.random.randn, "python": python_draw}


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_data_set_draws_belongs_to_rows(name):
    """From one state of a global generator, removing a row gave all later rows other draws."""
    engines = [
        TorchEngine(nn.Linear(D, 2), DatasetRows(Augmented(DRAWS[name]), Domain((0, 1), {})), Objective(2))
        for _ in range(2)
    ]
    torch.manual_seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - is watched
    found = [engines[0]._take(np.arange(first, N), 3).x[-4:] for first in (0, 1, 5)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], engines[0]._take(np.arange(N), 4).x[-4:])  # another step
    assert not torch.equal(found[0], engines[1]._take(np.arange(N), 3).x[-4:])  # another run
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert np.array_equal(engines[0].counts()[1], engines[0].counts()[1])


class OwnGenerator(Augmented):
    def __init__(self):
        super().__init__(self.own)
        self.generator = np.random.default_rng(0)

    def own(self):
        return self.generator.normal()


def test_a_generator_of_a_data_set_is_refused():
    for data in (OwnGenerator(), Subset(OwnGenerator(), range(8))):
        with pytest.raises(UnsupportedCombination, match="generator of its own"):
            DatasetRows(data, Domain((0, 1), {}))


class Odd(Dataset):
    """One item of an unusual kind, at a place that is looked at beforehand or not."""

    def __init__(self, place, kind):
        self.place, self.kind = place, kind

    def __len__(self):
        return N

    def __getitem__(self, row):
        x = torch.full((D,), 0.1 * row)
        return (self.kind(x), 5) if row == self.place else (x, row % 2)


def fake(x):
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


def warned(x):
    warnings.warn("the content of a row", stacklevel=1)
    return np.log(np.zeros(D)) if float(x[0]) > 0 else x


KINDS = {
    "nested": lambda x: torch.nested.nested_tensor([x]),
    "fake": fake,
    "warning": warned,
    "division": lambda x: x.numpy() / np.zeros(D),
    "overflow": lambda x: np.full(D, 1e300),
}


@pytest.mark.parametrize("place", [6, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_items_of_other_kinds_raise_and_warn_of_nothing(place, kind):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = DatasetRows(Odd(place, KINDS[kind]), Domain((0, 1), {}))
        engine = TorchEngine(nn.Linear(D, 2), rows, Objective(2))
        engine.try_out()
        found = sum_of(engine, np.arange(N))
        engine.counts()
    assert said == []
    torch.testing.assert_close(found, sum_of(engine, np.delete(np.arange(N), place)))


# ---------------------------------------------------------------------------- copies and processes


def trainer_of(steps=6):
    config = TrainingConfig(steps=steps, sampling_rate=0.5)
    plan = network_plan(N, config, epsilon=2.0, delta=1e-5)
    return Trainer(nn.Linear(D, 2), TensorRows(features(), np.arange(N) % 2), plan, config=config, n_classes=2)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_training_cannot_be_copied(duplicate):
    """A copy would take its steps on the same samples, which are accounted as independent ones."""
    trainer = trainer_of()
    next(trainer.steps())
    with pytest.raises(InvalidType, match="cannot be copied"):
        duplicate(trainer)
    parts = make_private(
        nn_model := nn.Linear(D, 2), torch.optim.SGD(nn_model.parameters(), lr=0.1), Odd(-1, None), epsilon=2.0,
        delta=1e-5, steps=4, classes=(0, 1), config=TrainingConfig(sampling_rate=0.5),
    )  # fmt: skip
    if duplicate is copy.deepcopy:
        with pytest.raises((InvalidType, AttributeError)):
            next(iter(duplicate(parts).loader))


def test_a_child_process_does_not_draw_the_samples_of_its_parent():
    trainer = trainer_of()
    trainer.start()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trainer._step(None)
            os.write(writing, b"drawn")
        except UnsupportedCombination as problem:
            os.write(writing, str(problem).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"started in another process" in os.read(reading, 1000)
    assert next(trainer.steps()).step == 1


def test_no_step_of_a_private_plan_goes_unrecorded():
    trainer = trainer_of()
    trainer.start()
    before = trainer.module.weight.detach().clone()
    with pytest.raises(LedgerError, match="phase"):
        trainer._step(None)
    assert torch.equal(trainer.module.weight, before)
