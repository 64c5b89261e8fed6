"""The PyTorch engine: networks, rows, plans, trainings, checkpoints."""

from __future__ import annotations

import json
import os
from functools import cache

import numpy as np
import torch
from fuzz_inputs import altered, both_classes, damaged_bytes, mostly, odd, odd_size, plain, scratch, things
from hypothesis import strategies as st
from lower_bounds import check_not_below_the_truth
from torch import nn

import ratewise as rw
import ratewise.torch as rt
from ratewise import accounting
from ratewise._files import state_from_bytes, state_to_bytes
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table
from ratewise.torch.trainer import CHECKPOINT
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING, Plan

torch.set_num_threads(1)
DOMAIN = rw.Domain((0, 1), {"g": (0, 1)})
COMPILED = compile_constraints(rw.demographic_parity("g", max_gap=0.2), DOMAIN)
small = mostly(st.integers(1, 6), 2, odd_size)


def fuzz_networks(draw):
    """Ready-made networks of any size give finite logits, one per class."""
    widths = st.lists(small, max_size=3)
    image = torch.zeros(1, 3, 16, 16)
    classes = draw(small)
    build, x = draw(
        st.sampled_from(
            [
                (lambda: rt.MLP(768, classes, draw(widths)), image),
                (lambda: rt.SmallCNN(classes, in_channels=3, width=draw(small)), image),
                (lambda: rt.ResNet(classes, draw(widths), draw(widths), groups=draw(small)), image),
                (lambda: rt.MLP(draw(small), classes, draw(mostly(st.just((2,))))), None),
            ]
        )
    )
    module = build()
    if x is not None:
        logits = module(x)
        assert logits.shape == (1, classes)
        assert torch.isfinite(logits).all()


def rows_of(draw, n):
    """Draw features, labels and groups of n rows as arrays."""
    cell = st.floats(-3, 3, width=32)
    if draw(st.integers(0, 15)) == 7:
        cell = st.one_of(cell, st.floats(width=32), st.sampled_from([0.0, 1e30, -1e30]))
    X = np.array(draw(st.lists(cell, min_size=2 * n, max_size=2 * n)), dtype=np.float32).reshape(n, 2)
    codes = st.lists(st.integers(0, 1), min_size=n, max_size=n)
    return X, np.array(both_classes(draw, n), dtype=np.int64), np.array(draw(codes), dtype=np.int64)


def budget(draw):
    """Draw a budget and its length."""
    return {
        "epsilon": draw(mostly(st.sampled_from([None, 2.0, 20.0]))),
        "delta": draw(mostly(st.sampled_from([1e-6, 1e-3]))),
    }


def length(draw):
    """Draw a number of steps."""
    return draw(mostly(st.integers(1, 3), 2, odd_size))


def fuzz_torch_fit(draw):
    """Whole fits of a network."""
    n = draw(mostly(st.integers(4, 10), 4, st.integers(1, 3)))
    X, y, g = rows_of(draw, n)
    options = {
        **budget(draw),
        "config": TrainingConfig(
            steps=length(draw),
            rates=draw(mostly(st.sampled_from(["hard", "soft"]))),
            clip=draw(mostly(st.sampled_from([None, 0.5]))),
        ),
        "random_state": draw(mostly(st.integers(0, 9))),
        "classes": draw(mostly(st.just([0, 1]))),
        "group_values": draw(mostly(st.just({"g": [0, 1]}))),
    }
    module = draw(mostly(st.sampled_from([lambda: rt.MLP(2, 2, (3,)), lambda: nn.Linear(2, 2)])))
    limit = draw(st.sampled_from([None, rw.demographic_parity("g", max_gap=0.2), [rw.rate(1) <= 0.5]]))
    model = rt.TorchRateConstrainedClassifier(module, limit, **options)
    model.fit(draw(mostly(st.just(X), 2, things)), y, sensitive_features={"g": g})
    for parameter in model.module_.parameters():
        assert torch.isfinite(parameter).all()
    if options["epsilon"] is not None:
        events = tuple(model.plan_.events.values())
        least = accounting.epsilon(events, options["delta"])
        assert least * (1 - 1e-6) <= model.privacy_.epsilon <= options["epsilon"]
        check_not_below_the_truth(model.privacy_.epsilon, events, options["delta"])


class Items(torch.utils.data.Dataset):
    """Rows as items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def fuzz_make_private(draw):
    """The parts for a loop of one's own, and two turns of it."""
    n = draw(st.integers(1, 8))
    X, y, g = rows_of(draw, n)
    whole = [(torch.from_numpy(X[i]), int(y[i]), {"g": int(g[i])}) for i in range(n)]
    spoilt = draw(mostly(st.just(-1), 4, st.integers(0, n - 1)))
    items = [draw(things) if i == spoilt else item for i, item in enumerate(whole)]
    data = Items(items)
    module = rt.MLP(2, 2, (3,))
    parts = rt.make_private(
        draw(mostly(st.just(module))),
        draw(mostly(st.just(torch.optim.SGD(module.parameters(), lr=0.1)))),
        draw(mostly(st.sampled_from([data, torch.utils.data.DataLoader(data, batch_size=2)]))),
        draw(st.sampled_from([None, rw.demographic_parity("g", max_gap=0.2)])),
        classes=draw(mostly(st.just([0, 1]))),
        group_values=draw(mostly(st.just({"g": [0, 1]}))),
        physical_batch=draw(mostly(st.integers(1, 4), 2, odd_size)),
        steps=length(draw),
        **budget(draw),
    )
    for batch in parts.loader:
        parts.optimizer.zero_grad()
        x, *known = batch
        parts.criterion(parts.model(x), *known).backward()
        parts.optimizer.step()
    for parameter in module.parameters():
        assert torch.isfinite(parameter).all()


def fuzz_torch_parts(draw):
    """Plans, shares, rows and clippers with any arguments."""
    n = draw(st.integers(1, 6))
    X, y, g = rows_of(draw, n)
    cells = code_table(COMPILED, y, {"g": g})[1]
    build = draw(
        st.sampled_from(
            [
                lambda: rt.network_plan(
                    draw(mostly(st.integers(1, 9))), TrainingConfig(clip=draw(odd)), **budget(draw)
                ),
                lambda: rt.network_plan(500, epsilon=1.0, delta=draw(odd), epochs=draw(odd_size), constrained=True),
                lambda: rt.share_of(draw(odd), draw(odd), draw(odd)),
                lambda: rt.share_of(draw(st.integers(0, 9)), draw(small), draw(small)),
                lambda: rt.TensorRows(draw(mostly(st.just(X))), draw(mostly(st.just(y))), draw(mostly(st.just(cells)))),
                lambda: rt.DatasetRows(
                    draw(mostly(st.just(Items([(X[0], 0, {"g": 1})])))), draw(mostly(st.just(DOMAIN))), COMPILED
                ),
                lambda: rt.PerRowClipper(draw(mostly(st.sampled_from([nn.Linear(2, 2), nn.BatchNorm1d(2)])))),
                lambda: processes(draw),
                lambda: trained(draw, X, y, cells),
            ]
        )
    )
    build()


def processes(draw):
    """Join the processes of this run, whatever the environment says of their number."""
    said = draw(st.sampled_from(["1", "0", "x", "-2", ""]))
    before = os.environ.get("WORLD_SIZE")
    os.environ["WORLD_SIZE"] = said
    try:
        assert isinstance(rt.join(draw(mostly(st.floats(1, 9)))), rt.Processes)
    except rt.ProcessLost:
        pass
    finally:
        os.environ.pop("WORLD_SIZE")
        if before is not None:
            os.environ["WORLD_SIZE"] = before


def planned(n_units, rate, steps):
    """Return a plan of training steps alone."""
    event = TrainingEvent(rate, steps, 2.0, 4.0)
    return Plan(n_units, rate, steps, {TRAINING: event}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def trained(draw, X, y, cells):
    """Run a trainer with any choices."""
    plan = planned(len(y), draw(st.sampled_from([0.3, 1.0])), 2)
    trainer = rt.Trainer(
        rt.MLP(2, 2, (2,)),
        rt.TensorRows(X, y, cells),
        draw(mostly(st.just(plan))),
        draw(mostly(st.just(COMPILED))),
        n_classes=draw(mostly(st.just(2))),
        physical_batch=draw(mostly(st.just(2), 2, odd_size)),
        loss=draw(mostly(st.none())),
    )
    trainer.run()
    for parameter in trainer.module.parameters():
        assert torch.isfinite(parameter).all()


@cache
def stopped():
    """Return the content of a checkpoint of a training."""
    path = scratch() / "torch.checkpoint"
    if not path.exists():
        training(path).run()
    return path.read_bytes()


def training(path):
    """Return a small training that writes checkpoints."""
    rng = np.random.default_rng(0)
    y, g = np.arange(8) % 2, np.arange(8) // 4
    plan = planned(8, 0.5, 3)
    torch.manual_seed(0)
    rows = rt.TensorRows(rng.normal(size=(8, 2)).astype(np.float32), y, code_table(COMPILED, y, {"g": g})[1])
    return rt.Trainer(rt.MLP(2, 2, (2,)), rows, plan, COMPILED, checkpoint=str(path), checkpoint_every=1)


def fuzz_torch_checkpoint(draw):
    """A checkpoint that was changed, by accident or with its checksum made anew, is refused or goes on."""
    content = stopped()
    if draw(st.booleans()):
        spoilt = damaged_bytes(draw, content)
    else:
        state = state_from_bytes(content, CHECKPOINT, "as written")
        key = draw(st.sampled_from(sorted(state)))
        if draw(st.integers(0, 3)) == 0:
            del state[key]
        else:
            same = (
                altered(draw, state[key])
                if isinstance(state[key], dict | list | str | int) and draws_plain(state[key])
                else draw(plain)
            )
            state[key] = same
        spoilt = state_to_bytes(CHECKPOINT, state)
    path = scratch() / "spoilt.checkpoint"
    path.write_bytes(spoilt)
    trainer = training(path)
    trainer.resume()
    trainer.run()
    for parameter in trainer.module.parameters():
        assert torch.isfinite(parameter).all()


def draws_plain(value):
    """Return whether JSON can hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
