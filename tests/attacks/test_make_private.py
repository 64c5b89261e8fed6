"""Loops of one's own that mix rows, repeat samples, or train one model per process."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ratewise import demographic_parity
from ratewise.exceptions import InvalidInput, RatewiseError, UnsupportedCombination
from ratewise.torch import MLP, TensorRows, Trainer, make_private, network_plan
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING

torch.set_num_threads(1)
N, D, STEPS = 200, 4, 20
rng = np.random.default_rng(8)
X = rng.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


class People(Dataset):
    """The rows, counting how often they are read."""

    def __init__(self, n=N):
        self.n, self.reads = n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        self.reads += 1
        return X[row], int(Y[row]), "F" if row % 2 else "M"


def parts(module=None, data=None, **changes):
    torch.manual_seed(0)
    module = MLP(D, 2, (6,)) if module is None else module
    choices = {
        "constraints": demographic_parity("sex", max_gap=0.05),
        "epsilon": 3.0,
        "delta": 1e-5,
        "steps": STEPS,
        "classes": (0, 1),
        "group_values": {"sex": ("F", "M")},
        "random_state": 5,
        **changes,
    }
    loader = DataLoader(data or People(), batch_size=20)
    return make_private(module, torch.optim.SGD(module.parameters(), lr=0.1), loader, **choices)


# -------------------------------------------------------------------------------- rows mixed in the loop


def mixed_logits(model, criterion, x, labels, cells):
    z = model(x)
    return criterion(z / z.std(0), labels, cells)


def centred_logits(model, criterion, x, labels, cells):
    return criterion(torch.sub(model(x), 1), labels, cells)


def mixed_inputs(model, criterion, x, labels, cells):
    return criterion(model(x - x.mean(0)), labels, cells)


def mixup(model, criterion, x, labels, cells):
    return criterion(model(0.5 * x + 0.5 * x), labels, cells)


def flipped_inputs(model, criterion, x, labels, cells):
    return criterion(model(torch.flip(x, (0,))), labels, cells)


def inputs_in_place(model, criterion, x, labels, cells):
    x.sub_(1.0)
    return criterion(model(x), labels, cells)


def data_in_place(model, criterion, x, labels, cells):
    x.data[:] = x.data.cumsum(0)
    return criterion(model(x), labels, cells)


def one_row(model, criterion, x, labels, cells):
    return criterion(model(x[:1]), labels[:1], cells[:1])


def counted_labels(model, criterion, x, labels, cells):
    if (labels == 1).sum() > 3:
        return criterion(model(x), labels, cells)
    return criterion(model(x), labels, cells)


def sample_size(model, criterion, x, labels, cells):
    return criterion(model(x), labels, cells) if len(x) else None


def own_tensors(model, criterion, x, labels, cells):
    return criterion(model(torch.from_numpy(X)), torch.from_numpy(Y), torch.zeros(N, dtype=torch.long))


def own_loss(model, _criterion, x, labels, _cells):
    return functional.cross_entropy(model(x), labels)


def cells_for_labels(model, criterion, x, labels, cells):
    return criterion(model(x), cells, labels)


def labels_for_inputs(model, criterion, x, labels, cells):
    return criterion(model(labels), labels, cells)


def scaled_loss(model, criterion, x, labels, cells):
    return criterion(model(x), labels, cells) / 4


def added_losses(model, criterion, x, labels, cells):
    return sum([criterion(model(x), labels, cells), criterion(model(x), labels, cells)])


LOOPS = [
    mixed_logits, centred_logits, mixed_inputs, mixup, flipped_inputs, inputs_in_place, data_in_place,
    one_row, sample_size, own_tensors, own_loss, cells_for_labels, labels_for_inputs,
    scaled_loss, added_losses,
]  # fmt: skip


@pytest.mark.parametrize("body", LOOPS, ids=lambda body: body.__name__)
@pytest.mark.parametrize("sampling_rate", [0.1, 1e-9], ids=["rows", "no rows"])
def test_loops_cannot_touch_rows(body, sampling_rate):
    """Refused before any row is read, in the same words whether the sample has rows or not."""
    data = People()
    model, optimizer, loader, criterion = parts(data=data, config=TrainingConfig(sampling_rate=sampling_rate))
    reads = data.reads
    item = next(iter(loader))
    with pytest.raises(RatewiseError):
        body(model, criterion, *item)
    assert data.reads == reads
    assert optimizer.ledger.records == ()


def test_values_of_a_sample_cannot_decide_what_the_loop_does():
    model, _, loader, criterion = parts()
    x, labels, cells = next(iter(loader))
    with pytest.raises((RatewiseError, TypeError)):
        counted_labels(model, criterion, x, labels, cells)
    assert str(x) == "<inputs of a private sample>"
    for read in (len, list, bool, float, torch.as_tensor, np.asarray, lambda v: v.shape, lambda v: v.tolist()):
        with pytest.raises((RatewiseError, TypeError)):
            read(labels)


def test_usual_words_around_a_step_are_allowed():
    model, optimizer, loader, criterion = parts()
    for x, labels, cells in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.to("cpu", non_blocking=True)), labels.to("cpu"), cells.cpu())
        loss.backward()
        optimizer.step()
    assert optimizer.history.arrays()["histogram"].shape[0] == len(loader)


def standardised(logits, labels):
    scaled = logits / (logits.std(0, correction=0) + 1e-6) if len(logits) > 2 else logits
    return functional.cross_entropy(scaled, labels, reduction="none")


def test_loss_that_looks_at_the_batch_moves_nothing_but_its_row():
    """With z / z.std(0) as a loss, one row moved the clipped sum by 60 clips."""
    private = parts(loss=standardised, config=TrainingConfig(clip=1.0, sampling_rate=1.0))
    engine = private.optimizer.trainer.engine
    table = private.optimizer.dual.table
    rows = np.arange(N)
    whole = engine.sums(rows, None, table, 1.0).gradient
    fewer = engine.sums(rows[:-1], None, table, 1.0).gradient
    gap = torch.cat([(a - b).double().reshape(-1) for a, b in zip(whole, fewer, strict=True)]).norm()
    assert gap <= 1 + 1e-4


# ------------------------------------------------------------------------------- one item is one step


def outcome(loop, rows=None):
    """What a loop shows to the outside: the error, the steps taken and the samples drawn."""
    model, optimizer, loader, criterion = parts()
    trainer, drawn = optimizer.trainer, []
    draw = trainer._sampler
    trainer._sampler = lambda step: (drawn.append(step), draw(step) if rows is None else rows)[1]
    error = None
    try:
        loop(model, optimizer, loader, criterion)
    except RatewiseError as problem:
        error = str(problem)
    return error, trainer.steps_done, drawn


def every_fourth(model, optimizer, loader, criterion):
    for number, (x, labels, cells) in enumerate(loader):
        criterion(model(x), labels, cells).backward()
        if number % 4 == 3:
            optimizer.step()


def every_fourth_fresh(model, optimizer, loader, criterion):
    for number in range(8):
        x, labels, cells = next(iter(loader))
        criterion(model(x), labels, cells).backward()
        if number % 4 == 3:
            optimizer.step()


def no_backward(model, optimizer, loader, criterion):
    for x, labels, cells in loader:
        criterion(model(x), labels, cells)
        optimizer.step()


def no_step(model, optimizer, loader, criterion):
    for x, labels, cells in loader:
        criterion(model(x), labels, cells).backward()


def skipping(model, optimizer, loader, criterion):
    for number, (x, labels, cells) in enumerate(loader):
        if number % 2:
            continue
        criterion(model(x), labels, cells).backward()
        optimizer.step()


def two_backwards(model, optimizer, loader, criterion):
    for x, labels, cells in loader:
        criterion(model(x), labels, cells).backward()
        criterion(model(x), labels, cells).backward()
        optimizer.step()


def two_steps(model, optimizer, loader, criterion):
    for x, labels, cells in loader:
        criterion(model(x), labels, cells).backward()
        optimizer.step()
        optimizer.step()


def late_backward(model, optimizer, loader, criterion):
    items = iter(loader)
    x, labels, cells = next(items)
    old = criterion(model(x), labels, cells)
    old.backward()
    optimizer.step()
    next(items)
    old.backward()


def two_items_in_one(model, optimizer, loader, criterion):
    items = iter(loader)
    x, labels, cells = next(items)
    criterion(model(x), labels, cells).backward()
    optimizer.step()
    _, labels, _ = next(items)
    criterion(model(x), labels, cells).backward()


def earlier_item(model, optimizer, loader, criterion):
    kept = next(iter(loader))
    loader.discard()
    for _ in loader:
        criterion(model(kept[0]), kept[1], kept[2]).backward()
        optimizer.step()


def last_item_of_a_pass(model, optimizer, loader, criterion):
    loader.steps = 1
    for x, labels, cells in loader:
        criterion(model(x), labels, cells).backward()


def evaluation_mode(model, optimizer, loader, criterion):
    model.eval()
    no_step(model, optimizer, loader, criterion)


WRONG = [
    every_fourth, every_fourth_fresh, no_backward, no_step, skipping, two_backwards, two_steps, late_backward,
    two_items_in_one, earlier_item, evaluation_mode,
    last_item_of_a_pass,
]  # fmt: skip


@pytest.mark.parametrize("loop", WRONG, ids=lambda loop: loop.__name__)
def test_other_than_one_step_per_item_is_an_error_whatever_the_rows(loop):
    error, steps, drawn = outcome(loop)
    assert error is not None
    assert steps <= 1
    assert drawn == sorted(set(drawn)), "no sample is drawn twice"
    assert outcome(loop, np.zeros(0, dtype=np.intp)) == (error, steps, drawn), "an empty sample shows the same"
    assert outcome(loop, np.arange(N)) == (error, steps, drawn)


def test_every_item_is_a_step_and_a_scheduler_sees_as_many():
    model, optimizer, loader, criterion = parts(physical_batch=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    items = 0
    for _ in range(2):
        for x, labels, cells in loader:
            criterion(model(x), labels, cells).backward()
            optimizer.step()
            scheduler.step()
            items += 1
    assert items == STEPS == optimizer.trainer.steps_done
    assert optimizer.original.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**STEPS)
    assert optimizer.ledger.admissions[0].released[TRAINING] == STEPS


def test_a_discarded_item_is_never_drawn():
    def loop(model, optimizer, loader, criterion):
        for number, (x, labels, cells) in enumerate(loader):
            if number == 2:
                loader.discard()
                continue
            criterion(model(x), labels, cells).backward()
            optimizer.step()

    error, steps, drawn = outcome(loop)
    assert error is None
    assert (steps, drawn) == (9, list(range(9)))


# -------------------------------------------------------------------------------------- several processes

UNDER_TORCHRUN = """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from ratewise.torch import make_private
if {grouped}:
    dist.init_process_group("gloo")
module = nn.Linear(3, 2)
model = nn.parallel.DistributedDataParallel(module) if {wrapped} else module
try:
    make_private(model, torch.optim.SGD(model.parameters(), lr=0.1),
                 TensorDataset(torch.zeros(50, 3), torch.zeros(50, dtype=torch.long)),
                 epsilon=1.0, delta=1e-5, steps=2, classes=(0, 1))
except ValueError as problem:
    print("REFUSED", problem)
if {grouped}:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("grouped", "wrapped"), [(False, False), (True, True)])
def test_one_of_several_processes_is_refused(grouped, wrapped):
    """Each would train a model of its own and claim the whole budget for it."""
    code = UNDER_TORCHRUN.format(grouped=grouped, wrapped=wrapped)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # what torchrun starts; without a group a process does not wait for the others
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2 if grouped else 1)
    ]
    for child in children:
        said, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors[-2000:]
        assert "REFUSED" in said
        assert "processes=ratewise.torch.join()" in said


def test_distributed_module_is_refused_by_itself():
    class Wrapped(nn.parallel.DistributedDataParallel):
        def __init__(self, module):
            nn.Module.__init__(self)
            self.module = module

    with pytest.raises(UnsupportedCombination, match=r"\.module.*join"):
        parts(Wrapped(MLP(D, 2, (6,))))
    with pytest.raises(UnsupportedCombination, match=r"\.module"):
        parts(nn.DataParallel(MLP(D, 2, (6,))))


def test_processes_that_start_after_make_private(monkeypatch):
    model, optimizer, loader, criterion = parts()
    x, labels, cells = next(iter(loader))
    criterion(model(x), labels, cells).backward()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsupportedCombination, match="several processes"):
        optimizer.step()
    assert optimizer.ledger.records == ()


def test_trainer_alone_in_one_of_several_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = network_plan(N, epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidInput, match="several processes"):
        Trainer(MLP(D, 2), TensorRows(torch.from_numpy(X), Y), plan, n_classes=2)
