"""Parts for a loop of one's own: the usual lines, the same guarantee."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler

from ratewise import demographic_parity
from ratewise.accounting import Budget, Ledger
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, UnsupportedCombination
from ratewise.torch import MLP, DatasetRows, Trainer, make_private
from ratewise.torch.estimator import declared
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import TRAINING

torch.set_num_threads(1)
rng = np.random.default_rng(4)
N, D = 400, 4
SEX = rng.choice(["F", "M"], N)
X = rng.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] + (SEX == "M") > 0.5).astype(int)
LIMIT = demographic_parity("sex", max_gap=0.05)
FACTS = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}}


class People(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, row):
        return X[row], int(Y[row]), str(SEX[row])


def parts(module=None, optimizer=None, loader=None, constraints=LIMIT, **changes):
    torch.manual_seed(0)
    module = MLP(D, 2, (6,)) if module is None else module
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    loader = DataLoader(People(), batch_size=40) if loader is None else loader
    choices = {"epsilon": 5.0, "delta": 1e-5, "epochs": 2, "random_state": 6, **FACTS, **changes}
    return make_private(module, optimizer, loader, constraints, **choices)


def train(model, optimizer, loader, criterion, epochs=2):
    model.train()
    for _ in range(epochs):
        for x, labels, cells in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), labels, cells)
            loss.backward()
            optimizer.step()


def weights(module):
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def test_usual_loop_spends_what_was_asked_and_no_more():
    model, optimizer, loader, criterion = parts()
    assert len(loader) == 10
    assert optimizer.plan.sampling_rate == 0.1
    train(model, optimizer, loader, criterion)
    event, certified = optimizer.ledger.events()
    assert (event, certified) == tuple(optimizer.plan.events.values())
    assert event.steps == 20
    assert optimizer.certificate.rows
    assert 4.9 < optimizer.ledger.total() <= 5.0
    assert optimizer.history.arrays()["histogram"].shape == (20, 2, 2)
    assert list(loader) == [], "the budget was planned for two passes"


def test_same_as_the_trainer():
    torch.manual_seed(0)
    module = MLP(D, 2, (6,))
    domain, compiled = declared(LIMIT, **FACTS)
    ours = parts()
    trainer = Trainer(
        module,
        DatasetRows(People(), domain, compiled),
        ours.optimizer.plan,
        compiled,
        config=TrainingConfig(schedule="constant", momentum=0.9),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9),
        random_state=6,
    )
    trainer.run()
    train(*ours)
    torch.testing.assert_close(weights(ours.model.module), weights(module))
    np.testing.assert_equal(ours.optimizer.dual.state(), trainer.dual.state())
    assert ours.optimizer.certificate.rows == trainer.certificate.rows


def test_pieces_change_nothing():
    whole, cut = parts(), parts(physical_batch=7)
    train(*whole)
    train(*cut)
    torch.testing.assert_close(weights(cut.model), weights(whole.model), rtol=1e-4, atol=1e-5)
    assert cut.optimizer.ledger.events() == whole.optimizer.ledger.events()


def test_scheduler_on_either_optimizer():
    model, optimizer, loader, criterion = parts()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for x, labels, cells in loader:
        criterion(model(x), labels, cells).backward()
        optimizer.step()
        break
    scheduler.step()
    assert optimizer.original.param_groups[0]["lr"] == 0.25
    optimizer.finish()
    assert optimizer.ledger.admissions[0].released[TRAINING] == 1


def test_scheduler_moves_both_after_a_state_was_loaded():
    model, optimizer, loader, criterion = parts()
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    x, labels, cells = next(iter(loader))
    criterion(model(x), labels, cells).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.original.param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.state is optimizer.original.state


def test_sample_of_a_step_that_failed_is_never_read_again():
    """Two releases of one sample would be less private than the two samples that the book counts."""

    class FailsOnce(torch.optim.SGD):
        taken = 0

        def step(self, closure=None):
            self.taken += 1
            if self.taken == 3:
                raise RuntimeError("out of memory")
            return super().step(closure)

    module = MLP(D, 2, (6,))
    private = parts(module, FailsOnce(module.parameters(), lr=0.1))
    trainer, seen = private.optimizer.trainer, []
    draw = trainer._sampler
    trainer._sampler = lambda step: (seen.append(step), draw(step))[1]
    with pytest.raises(RuntimeError, match="out of memory"):
        train(*private)
    train(*private)
    assert seen == list(range(20))
    assert private.optimizer.ledger.events()[0].steps == 20


def test_loss_cannot_be_read():
    model, _, loader, criterion = parts()
    x, labels, cells = next(iter(loader))
    loss = criterion(model(x), labels, cells)
    with pytest.raises(UnsupportedCombination, match="private"):
        loss.item()
    with pytest.raises(UnsupportedCombination, match="private"):
        float(loss)


class TestRowsCountOnce:
    def test_backward_twice(self):
        model, _, loader, criterion = parts()
        x, labels, cells = next(iter(loader))
        loss = criterion(model(x), labels, cells)
        loss.backward()
        with pytest.raises(InvalidInput, match="twice"):
            loss.backward()

    def test_batch_used_twice(self):
        model, optimizer, loader, criterion = parts()
        x, labels, cells = next(iter(loader))
        criterion(model(x), labels, cells).backward()
        with pytest.raises(InvalidInput, match="twice"):
            criterion(model(x), labels, cells).backward()
        assert optimizer.ledger.records == ()

    def test_step_twice(self):
        model, optimizer, loader, criterion = parts()
        x, labels, cells = next(iter(loader))
        criterion(model(x), labels, cells).backward()
        optimizer.step()
        with pytest.raises(InvalidInput, match="without a fresh sample"):
            optimizer.step()

    def test_rows_from_elsewhere(self):
        model, _, loader, criterion = parts()
        some = torch.from_numpy(X[:5])
        with pytest.raises(InvalidInput, match="private loader"):
            model(some)
        _, labels, cells = next(iter(loader))
        model.eval()
        with pytest.raises(InvalidInput, match="logits must be what the private loader and the model returned"):
            criterion(model(some), labels, cells)

    def test_empty_sample_is_a_step(self):
        model, optimizer, loader, criterion = parts(config=TrainingConfig(sampling_rate=1e-6), epochs=None, steps=3)
        before = weights(model)
        for count, (x, labels, cells) in enumerate(loader):
            criterion(model(x), labels, cells).backward()
            optimizer.step()
            if count == 1:
                break
        assert not torch.equal(before, weights(model))
        optimizer.finish()
        assert optimizer.ledger.admissions[0].released[TRAINING] == 2


def test_the_model_evaluates_other_rows():
    model, *_ = parts()
    some = torch.from_numpy(X[:5])
    with torch.no_grad():
        assert model(some).shape == (5, 2)
    assert model.eval()(some).requires_grad


BATCHED = [DataLoader(People(), batch_size=None), DataLoader(People(), batch_sampler=[[0, 1], [2]])]


class TestBadInput:
    @pytest.mark.parametrize("loader", BATCHED, ids=["no batch size", "a batch sampler"])
    def test_loader_that_is_batched_already(self, loader):
        with pytest.raises(InvalidInput, match="batched already"):
            parts(loader=loader)

    def test_sampler_of_its_own(self):
        """Rows that the sampler leaves out, such as those kept for a test, must not be trained on."""
        some = SubsetRandomSampler(range(100))
        with pytest.raises(InvalidInput, match=r"SubsetRandomSampler.*Subset\(dataset, rows\)"):
            parts(loader=DataLoader(People(), batch_size=4, sampler=some))
        kept = DataLoader(Subset(People(), range(100)), batch_size=4, shuffle=True)
        assert parts(loader=kept).optimizer.plan.n_units == 100

    def test_data_that_can_only_be_walked_over(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter([])

        with pytest.raises(InvalidType, match="cannot be sampled"):
            parts(loader=DataLoader(Stream(), batch_size=4))

    @pytest.mark.parametrize(
        ("name", "meant"), [("max_grad_norm", "clip"), ("noise_multiplier", "epsilon"), ("target_delta", "delta")]
    )
    def test_arguments_of_opacus_are_translated(self, name, meant):
        with pytest.raises(InvalidType, match=f"{name}.*{meant}"):
            parts(**{name: 1.0})

    def test_criterion_of_its_own(self):
        model, optimizer, loader, _ = parts()
        x, labels, _ = next(iter(loader))
        with pytest.raises(UnsupportedCombination, match="criterion that make_private returned"):
            nn.functional.cross_entropy(model(x), labels).backward()
        assert optimizer.ledger.records == ()

    def test_collate_of_its_own(self):
        with pytest.raises(InvalidInput, match="collate_fn"):
            parts(loader=DataLoader(People(), batch_size=4, collate_fn=list))

    def test_optimizer_over_other_parameters(self):
        with pytest.raises(InvalidInput, match="optimizer holds 2 parameters of which 0"):
            parts(optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))

    def test_module_that_mixes_rows(self):
        with pytest.raises(UnsupportedCombination, match="mixes"):
            parts(nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))

    def test_wrong_number_of_classes(self):
        with pytest.raises(InvalidInput, match="2 classes"):
            parts(MLP(D, 5))

    def test_loss_that_is_not_a_number(self):
        with pytest.raises(InvalidInput, match="finite"):
            parts(loss=lambda logits, labels: logits[:, 0] * float("inf") * 0)

    def test_data_without_groups(self):
        class Bare(People):
            def __getitem__(self, row):
                return X[row], int(Y[row])

        with pytest.raises(InvalidInput, match="no groups"):
            parts(loader=DataLoader(Bare(), batch_size=4))

    def test_no_model(self):
        with pytest.raises(InvalidType):
            parts(module=3, optimizer=object())

    def test_cells_left_out(self):
        model, _, loader, criterion = parts()
        x, labels, _ = next(iter(loader))
        with pytest.raises(InvalidInput, match="cells is missing"):
            criterion(model(x), labels)

    def test_closure(self):
        with pytest.raises(UnsupportedCombination, match="closure"):
            parts().optimizer.step(lambda: 0.0)

    def test_budget_that_is_too_small(self):
        ledger = Ledger(cap=Budget(1.0, 1e-5))
        with pytest.raises(BudgetExceeded):
            parts(ledger=ledger)
        assert ledger.records == ()


def test_generators_that_start_alike_are_refused_on_one_ledger_and_one_generator_serves_twice():
    ledger, rng = Ledger(), np.random.default_rng(6)
    for _ in range(2):
        parts(ledger=ledger, random_state=rng)
    with pytest.raises(InvalidInput, match="random_state was used for an earlier training of a network"):
        parts(ledger=ledger, random_state=np.random.default_rng(6))


def test_ids_are_sampled_as_a_whole_with_at_most_the_declared_rows():
    read = []

    class Watched(People):
        def __getitem__(self, row):
            read.append(int(row))
            return super().__getitem__(row)

    ids = np.arange(N) % (N // 4)  # four rows each, far apart
    given = {"loader": DataLoader(Watched(), batch_size=40), "privacy_ids": ids}
    model, optimizer, loader, criterion = parts(**given, rows_per_id=3)
    assert optimizer.plan.n_units == N // 4
    assert (optimizer.plan.unit.kind, optimizer.plan.unit.max_rows) == ("id", 3)
    seen = set()
    for x, labels, cells in loader:
        optimizer.zero_grad()
        criterion(model(x), labels, cells).backward()
        read.clear()
        optimizer.step()
        sampled = set(ids[read].tolist())
        assert set(read) == {row for row in range(3 * (N // 4)) if ids[row] in sampled}
        seen |= sampled
    assert len(seen) > N // 20
    with pytest.raises(InvalidInput, match="rows_per_id"):
        parts(**given)
