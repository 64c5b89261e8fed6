"""Attacks by rows that overflow: their error, or its absence, would tell that they exist and were sampled.

A run with such a row and a run with an ordinary row in its place must look the same: no exception, no warning, the
same number of steps, the same ledger. The row itself adds nothing, or a clipped gradient, and one valid count.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from ratewise import demographic_parity
from ratewise.accounting import Ledger, PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.data.table import code_table
from ratewise.exceptions import InvalidInput
from ratewise.torch import MLP, SmallCNN, TensorRows, TorchRateConstrainedClassifier, Trainer, make_private
from ratewise.torch import engine as engine_module
from ratewise.torch.clipping import clipping_slack
from ratewise.torch.engine import Objective, TorchEngine
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING, Plan

N, D, BAD = 60, 4, 17
VALUES = [1e20, 1e30, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 1e-45]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def log_loss(logits, labels):
    """The logarithm of a probability, infinite for a confident row."""
    chances = torch.softmax(logits, dim=1)
    return -torch.log(chances.gather(1, labels[:, None]).squeeze(1))


def hinge_of_roots(logits, labels):
    """Not a number where a logit is negative, and of infinite slope at zero."""
    return torch.sqrt(logits.gather(1, labels[:, None]).squeeze(1))


def reciprocal(logits, labels):
    return 1.0 / (logits.gather(1, labels[:, None]).squeeze(1) - logits.mean(1)).abs()


LOSSES = {
    "default": None,
    "log loss": log_loss,
    "roots": hinge_of_roots,
    "reciprocal": reciprocal,
    "infinite": lambda logits, labels: (
        functional.cross_entropy(logits, labels, reduction="none") / (logits.detach().abs().sum(1) < 30)
    ),
}


def data(value=None, entry=1):
    torch.manual_seed(0)
    x = torch.randn(N, D)
    if value is not None:
        x[BAD, entry] = value
    labels = (np.arange(N) % 2).astype(np.int64)
    groups = (np.arange(N) // 2) % 2
    return x, labels, groups


def compiled():
    return compile_constraints(demographic_parity("sex", max_gap=0.02), Domain((0, 1), {"sex": (0, 1)}))


def plan_of(steps=8):
    event = TrainingEvent(0.5, steps, 2.0, 4.0)
    return Plan(N, 0.5, steps, {TRAINING: event}, PrivacyUnit(), "zero_out", float("inf"), 1e-5)


def observed(run):
    """Everything that a bystander sees of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ledger, steps, values = run()
            outcome = None
        except Exception as problem:  # what ends a run is part of what is seen
            ledger, steps, values, outcome = None, None, [], (type(problem), str(problem))
    events = () if ledger is None else ledger.events()
    records = None if ledger is None else len(ledger.records)
    finite = all(bool(torch.isfinite(value).all()) for value in values)
    said = [str(w.message) for w in caught if "random_state" not in str(w.message)]  # said once per process
    return outcome, events, records, steps, said, finite


def trained(x, labels, groups, loss=None, steps=8, **changes):
    torch.manual_seed(1)
    constraints = compiled()
    trainer = Trainer(
        MLP(D, 2, (6,)),
        TensorRows(x, labels, code_table(constraints, labels, {"sex": groups})[1]),
        plan_of(steps),
        constraints,
        config=TrainingConfig(**{"learning_rate": 0.3, **changes}),
        loss=loss,
        random_state=1,
    )
    history = trainer.run()
    return trainer.ledger, len(history.arrays()["step"]), list(trainer.module.parameters())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rates", ["hard", "soft"])
def test_a_trainer_looks_the_same_with_and_without_the_row(loss, rates):
    def run(value):
        return observed(lambda: trained(*data(value), LOSSES[loss], rates=rates))

    without = run(None)
    assert [value for value in VALUES if run(value) != without] == []
    assert without[0] is None
    assert without[3] == 8
    assert without[5]


class People(Dataset):
    def __init__(self, value):
        self.x, self.labels, self.groups = data(value)

    def __len__(self):
        return N

    def __getitem__(self, row):
        return self.x[row], int(self.labels[row]), int(self.groups[row])


def looped(value, loss=None):
    torch.manual_seed(1)
    module, ledger = MLP(D, 2, (6,)), Ledger()
    model, optimizer, loader, criterion = make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.3),
        People(value),
        demographic_parity("sex", max_gap=0.05),
        epsilon=5.0,
        delta=1e-3,
        steps=6,
        config=TrainingConfig(sampling_rate=0.5),
        classes=(0, 1),
        group_values={"sex": (0, 1)},
        loss=loss,
        ledger=ledger,
        random_state=2,
    )
    model.train()
    steps = 0
    for _ in range(3):
        for x, labels, cells in loader:
            optimizer.zero_grad()
            criterion(model(x), labels, cells).backward()
            optimizer.step()
            steps += 1
    optimizer.finish()
    return ledger, steps, list(module.parameters())


@pytest.mark.parametrize("loss", ["default", "log loss", "infinite"])
def test_a_custom_loop_looks_the_same_with_and_without_the_row(loss):
    def run(value):
        return observed(lambda: looped(value, LOSSES[loss]))

    without = run(None)
    assert [value for value in VALUES if run(value) != without] == []
    assert without[0] is None
    assert without[3] == 6


def fitted(value):
    x, labels, groups = data(value)
    ledger = Ledger()
    model = TorchRateConstrainedClassifier(
        MLP(D, 2, (6,)),
        demographic_parity("sex", max_gap=0.05),
        epsilon=5.0,
        delta=1e-3,
        config=TrainingConfig(steps=5),
        classes=(0, 1),
        group_values={"sex": (0, 1)},
        ledger=ledger,
        random_state=3,
    )
    model.fit(x.numpy(), labels, sensitive_features={"sex": groups})
    return ledger, 5, list(model.module_.parameters())


def test_a_fit_looks_the_same_with_and_without_the_row():
    without = observed(lambda: fitted(None))
    values = [1e20, -1e20, 1e30, 3e38, float("inf"), float("nan")]
    assert [value for value in values if observed(lambda v=value: fitted(v)) != without] == []
    assert without[0] is None


MODULES = {
    "mlp": (lambda: MLP(6, 2, (8,)), (6,)),
    "pictures": (lambda: SmallCNN(2), (3, 8, 8)),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Flatten(), nn.Linear(24, 2)), (4, 6)),
    "groups": (
        lambda: nn.Sequential(nn.Conv1d(4, 64, 3), nn.GroupNorm(4, 64), nn.Flatten(), nn.Linear(256, 2)),
        (4, 6),
    ),
    "late": (lambda: nn.Sequential(nn.Conv1d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)), (32, 4)),
    "words": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Flatten(), nn.Linear(256, 2)), (4, 64)),
    "own": (lambda: nn.Sequential(nn.PReLU(4), nn.Flatten(), nn.Linear(24, 2)), (4, 6)),
}


def engine_of(name, x, labels, dtype=torch.float32, loss=None, cells=None, rates="hard", temperature=1.0):
    torch.manual_seed(0)
    objective = Objective(2, None if cells is None else 3, loss, temperature=temperature, hard=rates == "hard")
    return TorchEngine(MODULES[name][0]().to(dtype), TensorRows(x.to(dtype), labels, cells), objective)


def flat(sums):
    return torch.cat([part.flatten() for part in sums])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", ["default", "log loss", "roots"])
def test_the_row_adds_at_most_the_clip_and_leaves_others_alone(name, value, dtype, loss):
    """Against the same batch with a blank in place of the row, whose label is no class."""
    torch.manual_seed(0)
    x = torch.randn(9, *MODULES[name][1])
    x[4].flatten()[::2] = value
    labels = np.arange(9) % 2
    blank = labels.copy()
    blank[4] = -1
    everyone = np.arange(9)
    sums = [
        flat(engine_of(name, x, codes, dtype, LOSSES[loss]).sums(everyone, clip=0.1).gradient)
        for codes in (labels, blank)
    ]
    assert bool(torch.isfinite(sums[0]).all())
    assert float((sums[0] - sums[1]).norm()) <= 0.1 * (1 + clipping_slack(9))
    others = flat(engine_of(name, x, labels, dtype, LOSSES[loss]).sums(np.delete(everyone, 4), clip=0.1).gradient)
    torch.testing.assert_close(sums[1], others, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rates", ["hard", "soft"])
@pytest.mark.parametrize("value", VALUES)
def test_the_histogram_counts_every_row_once(rates, value):
    torch.manual_seed(0)
    x = torch.randn(9, 6)
    x[4, 2] = value
    cells = np.arange(9) % 3
    engine = engine_of("mlp", x, np.arange(9) % 2, cells=cells, rates=rates, temperature=1e6)
    tally = engine.sums(np.arange(9), None, np.ones((3, 2)), 1.0).histogram
    assert bool((tally >= 0).all())
    assert bool((tally.sum(axis=1) <= 3.0).all())  # probabilities are rounded down
    np.testing.assert_allclose(tally.sum(axis=1), 3.0, rtol=1e-6)


@pytest.mark.parametrize("rates", ["hard", "soft"])
def test_any_logits_are_counted_once(rates):
    objective = Objective(3, 2, temperature=1e9, hard=rates == "hard")
    wild = [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 0.0]
    logits = torch.tensor([[a, b, c] for a in wild for b in wild for c in wild])
    for row in logits.split(1):
        tally = objective.tally(row, torch.tensor([1])).double()
        assert 1.0 - 1e-6 <= float(tally.sum()) <= 1.0
        assert float(tally[1].min()) >= 0.0


@pytest.mark.parametrize("label", [-1, 2, 100, -(2**40)])
def test_a_row_of_no_class_adds_nothing(label):
    x, labels, _ = data()
    x = torch.cat([x, x[:, :2]], dim=1)
    cells = np.arange(N) % 3
    other = labels.copy()
    other[BAD] = label
    outside = cells.copy()
    outside[BAD] = -1
    rest = np.delete(np.arange(N), BAD)
    table = np.random.default_rng(0).normal(size=(3, 2))
    for rates in ("hard", "soft"):
        got = engine_of("mlp", x, other, cells=outside, rates=rates).sums(np.arange(N), None, table, 1.0)
        want = engine_of("mlp", x, labels, cells=cells, rates=rates).sums(rest, None, table, 1.0)
        torch.testing.assert_close(flat(got[0]), flat(want[0]), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


def test_ids_outside_the_table_are_no_error():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    ids = torch.randint(0, 5, (8, 3))
    ids[3] = torch.tensor([-7, 5, 2**40])
    engine = TorchEngine(module, TensorRows(ids, np.arange(8) % 2), Objective(2))
    sums = engine.sums(np.arange(8), clip=1.0).gradient
    rest = engine.sums(np.array([0, 1, 2, 4, 5, 6, 7]), clip=1.0).gradient
    assert float((flat(sums) - flat(rest)).norm()) <= 1 + clipping_slack(8)


@pytest.mark.parametrize("value", [None, 1e30, float("nan")])
def test_training_that_diverges_for_a_public_reason_ends(value):
    """Parameters are released: that they grew beyond measure is no secret, with or without the row."""
    found = observed(lambda: trained(*data(value), learning_rate=1e38, steps=30))
    assert found[0] is not None
    assert found[0][0] is InvalidInput
    assert "training diverged" in found[0][1]


class Looked(nn.Module):
    """A frozen table, which raises an error for an id that it does not have, beside a layer on positions."""

    def __init__(self):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(5, 33), nn.Linear(33, 41), nn.Linear(41, 2)
        self.table.requires_grad_(False)

    def forward(self, x):
        known = self.table(x[:, 0, 0].long())[:, None]
        return self.head(torch.tanh((self.body(x[..., 1:]) + 0 * self.body(known)).mean(1)))


@pytest.mark.parametrize("failing", [[0], [4], [12], [3, 4, 9], list(range(12))])
def test_a_row_on_which_the_module_fails_leaves_the_others_in_their_places(failing):
    """All other rows cancel, so that what is left of them is rounding, which may depend on places: bit by bit."""
    torch.manual_seed(0)
    signs = torch.tensor([1.0, -1.0, 0.7, -0.7, 0.3, -0.3, 1.1, -1.1])[:, None]
    x = 10.0 ** torch.arange(13)[:, None, None] * signs * torch.randn(13, 1, 34)
    x[:, 0, 0] = 1.0
    labels = np.arange(13) % 2
    module = Looked()
    blank, none = x.clone(), labels.copy()
    x[failing, 0, 0] = 1e6
    blank[failing], none[failing] = 0.0, -1
    found = [
        flat(TorchEngine(module, TensorRows(rows, codes), Objective(2, None)).sums(np.arange(13), clip=1.0)[0])
        for rows, codes in ((x, labels), (blank, none))
    ]
    assert float(found[0].norm()) > 0.0
    assert torch.equal(*found)


class Counting(Looked):
    """Counts its calls in a buffer and in attributes, and computes something else from the third one on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.passes, self.shapes = 0, []

    def forward(self, x):
        self.calls += 1
        self.passes += 1
        self.shapes.append(tuple(x.shape))
        return super().forward(x) * (1.0 if self.passes < 3 else 3.0)


def test_a_row_on_which_the_module_fails_does_not_change_what_the_module_remembers():
    """Rows that fail are searched for by further calls: their number must not be left in the module."""
    found = []
    for failing in (True, False):
        torch.manual_seed(0)
        x = torch.randn(13, 8, 34)
        x[:, 0, 0] = 1.0
        labels, cells = np.arange(13) % 2, np.zeros(13, np.int64)
        if failing:
            x[4, 0, 0] = 1e6
        else:
            x[4], labels[4], cells[4] = 0.0, -1, -1
        module = Counting()
        engine = TorchEngine(module, TensorRows(x, labels, cells), Objective(2, 1))
        sums = [flat(engine.sums(np.arange(13), clip=1.0).gradient) for _ in range(4)]
        counts = engine.counts()[0]
        found.append((torch.stack(sums), counts, float(module.calls), module.passes, module.shapes))
    (ours, counts, *state), (without, others, *expected) = found
    assert torch.equal(ours, without)
    assert np.array_equal(counts, others)
    assert state == expected
    assert state[1] == 4
    assert not torch.equal(ours[1], ours[2])  # so that the number of calls matters


def test_rows_are_predicted_in_their_places_beside_a_row_on_which_the_module_fails(monkeypatch):
    x = torch.randn(13, 8, 34)
    x[:, 0, 0] = 1.0
    x[4, 0, 0] = 1e6
    engine = TorchEngine(Looked(), TensorRows(x, np.zeros(13, np.int64), np.zeros(13, np.int64)), Objective(2, 1))
    lengths, finite = [], engine_module._finite
    monkeypatch.setattr(engine_module, "_finite", lambda logits: lengths.append(len(logits)) or finite(logits))
    counts, outcomes = engine.counts()
    assert lengths[-1] == 13
    assert counts.sum() == outcomes.sum() == 12
