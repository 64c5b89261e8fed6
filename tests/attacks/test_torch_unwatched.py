"""Functions of PyTorch that show whole batches, or whose operations nobody watches, and numbers that end the process.

As in the other attacks: refused before rows are read, or a row moves nothing but its own share.
"""

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import debug_unwrap
from torch.nn import functional
from torch.utils.data import Dataset

from ratewise import Domain
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.exceptions import UnsupportedCombination
from ratewise.torch import TensorRows, TorchRateConstrainedClassifier, Trainer, make_private, network_plan
from ratewise.torch.engine import DatasetRows, Objective, TorchEngine
from ratewise.torch.isolation import RowRandomness
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
N, D = 16, 4
ROWS = np.arange(N)


class Between(nn.Module):
    """Two layers with something in between, which acts in any batch but one of two rows."""

    def __init__(self, between):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last, self.between = nn.Linear(D, 6), nn.Linear(6, 2), between

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h if len(h) == 2 else self.between(h))


def engine_of(module, x=None, loss=None):
    if x is None:
        x = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
        x[-1] = 50.0 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    return TorchEngine(module, TensorRows(x, ROWS % 2), Objective(2, None, loss))


def sum_of(engine, rows=ROWS):
    return torch.cat([part.double().ravel() for part in engine.sums(np.asarray(rows), clip=1.0, step=0).gradient])


def assert_isolated(engine):
    whole = sum_of(engine)
    for row in (0, N // 2, N - 1):
        assert float((whole - sum_of(engine, np.delete(ROWS, row))).norm()) <= 1.0 + engine.slack(N)


# --------------------------------------------------------------------------- tensors without their wrapping


def signs(raw, width=6):
    return raw.detach().reshape(-1, width).mean(0).sign()


def in_a_thread(h):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.func.debug_unwrap(h)))
    thread.start()
    thread.join()
    return h * signs(found[0])


def hooked(h):
    raw = debug_unwrap(h)
    if raw.requires_grad:
        raw.register_hook(lambda gradient: 9 * gradient.sum(0, keepdim=True).expand_as(gradient))
    return h


UNWRAPPED = {
    "values": lambda h: h * signs(debug_unwrap(h)),
    "a condition": lambda h: -h if float(debug_unwrap(h).detach().sum()) > 0 else h,
    "gradients": hooked,
}


@pytest.mark.parametrize("name", UNWRAPPED)
def test_rows_are_not_unwrapped(name):
    """``torch.func.debug_unwrap`` is public, and returns the tensor of all rows."""
    with pytest.raises(UnsupportedCombination, match="unwraps tensors of rows"):
        sum_of(engine_of(Between(UNWRAPPED[name])))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rows_are_not_unwrapped_in_a_thread():
    with pytest.raises(IndexError):
        sum_of(engine_of(Between(in_a_thread)))


def unwrapping_loss(logits, labels):
    return functional.cross_entropy(logits * signs(debug_unwrap(logits), 2), labels, reduction="none")


def test_losses_do_not_unwrap():
    with pytest.raises(UnsupportedCombination, match="unwraps tensors of rows"):
        sum_of(engine_of(nn.Linear(D, 2), loss=unwrapping_loss))


# ----------------------------------------------------------------------- operations that are not substituted


def rolled(h):
    return h * torch.roll(h.sum(), 1)


class Rolls(nn.Module):
    def forward(self, h):
        return rolled(h)


class Holds:
    """Holds a module that is no part of the module which calls it."""

    def __init__(self, module):
        self.module = module

    def __call__(self, h):
        return self.module(h)


ROLLS = {
    "script": lambda: torch.jit.script(rolled),
    "trace": lambda: torch.jit.trace(rolled, torch.rand(4, 6)),
    "scripted module": lambda: Holds(torch.jit.script(Rolls())),
    "operator": lambda: lambda h: h * torch.ops.aten.roll(h.sum(), [1]),
    "overload": lambda: lambda h: h * torch.ops.aten.roll.default(h.sum(), [1]),
    "named": lambda: lambda h: h * torch.ops.aten.roll(self=h.sum(), shifts=[1]),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ROLLS)
def test_a_number_of_a_row_does_not_roll_to_the_next_by_other_ways(name):
    """The batching rule of ``torch.roll`` passes single numbers on to the next row; it moved the sum by 1.7 clips."""
    with pytest.raises(UnsupportedCombination, match=r"torch\.jit|operator aten"):
        sum_of(engine_of(Between(ROLLS[name]())))


SAMPLERS = {
    "operator": lambda x, grid: torch.ops.aten.grid_sampler_2d(x, grid, 0, 1, False),
    "three dimensions": lambda x, grid: torch.grid_sampler_3d(
        x[:, :, None], functional.pad(grid, (0, 1))[:, None], 0, 1, False
    ).flatten(1),
    "three dimensions, as an operator": lambda x, grid: torch.ops.aten.grid_sampler_3d(
        x[:, :, None], functional.pad(grid, (0, 1))[:, None], 0, 1, False
    ),
}


class Turned(nn.Module):
    """Looks where the picture says."""

    def __init__(self, sampler):
        super().__init__()
        self.turn, self.last, self.sampler = nn.Linear(8, 128), nn.Linear(64, 2), sampler

    def forward(self, x):
        grid = self.turn(x[:, 0, 0]).reshape(-1, 8, 8, 2)
        return self.last(self.sampler(x.nan_to_num(), grid).flatten(1).clamp(-3.0, 3.0))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("value", [float("nan"), 3e38])
def test_other_samplers_look_within_reach(name, value):
    x = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[5] = value
    try:
        assert bool(torch.isfinite(sum_of(engine_of(Turned(SAMPLERS[name]), x))).all())
    except UnsupportedCombination as problem:
        assert "aten" in str(problem)  # noqa: PT017 - either way is right


# ---------------------------------------------------------------------------------- divisions that end the process


class Divides(nn.Module):
    def __init__(self, divide):
        torch.manual_seed(0)
        super().__init__()
        self.table, self.last, self.divide = nn.Embedding(50, 6), nn.Linear(6, 2), divide

    def forward(self, ids):
        by = torch.where(ids[:, :1] == 0, 1, ids[:, :1])
        return self.last(self.table(self.divide(ids, by).clamp(0, 49)).mean(1))


DIVISIONS = {
    "trunc": lambda ids, by: torch.div(ids, by, rounding_mode="trunc"),
    "method": lambda ids, by: ids.div(by, rounding_mode="trunc"),
    "in place": lambda ids, by: (ids + 0).div_(by, rounding_mode="trunc"),
    "by a number": lambda ids, by: torch.div(ids, -1, rounding_mode="trunc"),
    "of short numbers": lambda ids, by: torch.div(ids.int(), by.int(), rounding_mode="trunc").long(),
    "floor": lambda ids, by: torch.div(ids, by, rounding_mode="floor"),
    "remainder": lambda ids, by: ids % by,
    "remainder of C": torch.fmod,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_no_row_ends_the_process_by_a_division(name):
    """The smallest whole number divided by -1 is an exception of the processor: one row stopped the training."""
    ids = torch.randint(1, 40, (N, 7), generator=torch.Generator().manual_seed(0))
    engine = engine_of(Divides(DIVISIONS[name]), ids)
    try:
        engine.try_out()
    except UnsupportedCombination as problem:
        assert "rounding_mode" in str(problem)  # noqa: PT017
        return
    ids[7], ids[8] = -(2**63), -(2**31)
    ids[7:9, 0] = -1
    assert_isolated(engine)


def test_quotients_of_real_numbers_towards_zero_are_allowed():
    assert_isolated(engine_of(Between(lambda h: torch.div(h, 0.3, rounding_mode="trunc") + h)))


# ------------------------------------------------------------------------------- a relation that does not hold


class Unread(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, row):
        raise AssertionError("a row was read")


def test_rows_that_are_removed_are_refused_before_rows_are_read():
    """The others would move to other places of a batch, where products round differently."""
    module = nn.Linear(D, 2)
    declared = {"epsilon": 1.0, "delta": 1e-5, "neighbours": "add_or_remove", "classes": (0, 1)}
    event = TrainingEvent(0.5, 2, 2.0, None, None)
    plan = Plan(N, 0.5, 2, {TRAINING: event}, PrivacyUnit(), "add_or_remove", 1.0, 1e-5)
    for run in (
        lambda: make_private(module, torch.optim.SGD(module.parameters(), lr=0.1), Unread(), steps=2, **declared),
        lambda: TorchRateConstrainedClassifier(module, **declared).fit(Unread()),
        lambda: TorchRateConstrainedClassifier(module, **declared).planned_events(Unread()),
        lambda: network_plan(N, epsilon=1.0, delta=1e-5, neighbours="add_or_remove"),
        lambda: Trainer(module, TensorRows(torch.zeros(N, D), ROWS % 2), plan, n_classes=2),
    ):
        with pytest.raises(UnsupportedCombination, match="zero_out"):
            run()


# ------------------------------------------------------------------------------------------------- threads


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_two_threads_never_step_on_one_sample():
    """Steps are accounted as independent samples; a thread that was between drawing and counting let another repeat."""
    config = TrainingConfig(steps=6, sampling_rate=0.5)
    plan = network_plan(N, config, epsilon=2.0, delta=1e-5)
    trainer = Trainer(nn.Linear(D, 2), TensorRows(torch.zeros(N, D), ROWS % 2), plan, config=config, n_classes=2)
    trainer.start()
    trainer.admit()
    drawn, draw = [], trainer._sampler

    def slowly(step):
        drawn.append(step)
        time.sleep(0.05)
        return draw(step)

    trainer._sampler = slowly
    in_threads(lambda: list(trainer.steps()), lambda: list(trainer.steps()))
    assert drawn == list(range(len(drawn)))
    assert len(drawn) <= plan.steps


class Slow(Dataset):
    """Items with noise of PyTorch's generator, which take a while."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        time.sleep(0.002)
        return torch.randn(D), row % 2


def test_another_thread_does_not_change_what_an_item_draws():
    """Both set the global generators; what a row drew depended on the rows that the other thread read."""
    source = DatasetRows(Slow(), Domain((0, 1), {}))
    key, found = bytes(32), []

    def read():
        for _ in range(3):
            with RowRandomness(key, 0, ROWS, use=1):
                found.append(source.take(ROWS).x)

    in_threads(read, read, read)
    assert all(torch.equal(found[0], other) for other in found)


class Pauses(nn.Module):
    """Takes a while; then prints."""

    def __init__(self, seconds):
        super().__init__()
        self.last, self.seconds = nn.Linear(D, 2), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.last(x) * (1 + repr(x).count("-"))


def test_what_is_closed_to_rows_stays_closed_while_another_training_ends():
    problems = []

    def run(seconds):
        try:
            sum_of(engine_of(Pauses(seconds)))
        except UnsupportedCombination as problem:
            problems.append(problem)

    in_threads(lambda: run(0.1), lambda: run(0.3), lambda: run(0.2))
    assert len(problems) == 3
    texts = []
    torch.func.vmap(lambda x: (texts.append(repr(x)), x)[1])(torch.ones(2))
    assert "BatchedTensor" in texts[0]  # and is open again afterwards


# -------------------------------------------------------------------------------------- places in a batch


class Waves(nn.Module):
    """Sines of high frequency, whose gradients are mostly the rounding of the layers before them."""

    def __init__(self, first, second, outputs):
        super().__init__()
        self.first, self.second, self.last = first, second, nn.Linear(outputs, 2)

    def forward(self, x):
        h = torch.sin(1e8 * self.second(torch.sin(1e8 * self.first(x))))
        return self.last(h.flatten(1))


LAYERS = {
    "linear": lambda width, hidden: (nn.Linear(width, hidden), nn.Linear(hidden, hidden), (width,), hidden),
    "positions": lambda width, hidden: (nn.Linear(width, hidden), nn.Linear(hidden, 5), (3, width), 15),
    "frozen": lambda width, hidden: (
        nn.Linear(width, hidden).requires_grad_(requires_grad=False), nn.Linear(hidden, 6), (width,), 6
    ),
    "convolution": lambda width, hidden: (nn.Conv1d(3, hidden, 3), nn.Conv1d(hidden, 2, 1), (3, width), 2 * width - 4),
    "norm": lambda width, _: (nn.LayerNorm(width), nn.LayerNorm(width), (3, width), 3 * width),
}  # fmt: skip


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (9, 6), (15, 9), (17, 3), (33, 7), (64, 33)])
@pytest.mark.parametrize("layers", LAYERS)
def test_other_places_in_a_batch_change_nothing(layers, sizes):
    """Amplification by sampling compares samples with and without a row: it moved six others by a clip each."""
    torch.manual_seed(1)
    *parts, shape, outputs = LAYERS[layers](*sizes)
    engine = TorchEngine(Waves(*parts, outputs), TensorRows(torch.randn(24, *shape), np.arange(24) % 2), Objective(2))
    rows = np.arange(24)
    whole = sum_of(engine, rows)
    for row in (0, 5, 10, 23):
        assert float((whole - sum_of(engine, np.delete(rows, row))).norm()) <= 1.0 + engine.slack(24)
