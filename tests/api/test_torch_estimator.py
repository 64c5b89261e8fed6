"""The classifier for networks: manners, guarantee, and one clear exception for each bad input."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from ratewise import demographic_parity
from ratewise.accounting import Budget, Ledger
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, RatewiseError, UnsupportedCombination
from ratewise.torch import MLP, TorchRateConstrainedClassifier
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import CERTIFICATE, DISCOVERY, TRAINING

torch.set_num_threads(1)
rng = np.random.default_rng(3)
N, D = 1500, 5
SEX = rng.choice(["F", "M"], N)
X = rng.normal(size=(N, D)).astype(np.float32)
X[:, 1] += 2.0 * (SEX == "M")
Y = np.where(X[:, 0] + 2.0 * (SEX == "M") + 0.3 * rng.normal(size=N) > 1.0, "yes", "no")
LIMIT = demographic_parity("sex", max_gap=0.1)
FACTS = {"classes": ("no", "yes"), "group_values": {"sex": ("F", "M")}}


def network():
    return MLP(D, 2, (8,))


def classifier(module=network, constraints=LIMIT, **changes):
    settings = {"steps": 12, "sampling_rate": 0.1, **changes.pop("settings", {})}
    choices = {"epsilon": 4.0, "delta": 1e-5, "config": TrainingConfig(**settings), "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TorchRateConstrainedClassifier(module, constraints, **{**choices, **FACTS, **changes})


def fitted(*args, **changes):
    return quietly(classifier(*args, **changes), X, Y, sensitive_features={"sex": SEX})


def quietly(model, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few rows, few steps, a seed: all meant here
        return model.fit(*args, **kwargs)


class People(torch.utils.data.Dataset):
    def __init__(self, groups=True):
        self.groups = groups

    def __len__(self):
        return N

    def __getitem__(self, row):
        item = torch.from_numpy(X[row]), str(Y[row])
        return (*item, {"sex": str(SEX[row])}) if self.groups else item


class TestManners:
    def test_predictions_have_the_usual_shapes(self):
        model = fitted()
        assert model.predict(X).shape == (N,)
        assert set(model.predict(X)) <= {"no", "yes"}
        probability = model.predict_proba(X)
        assert probability.shape == (N, 2)
        np.testing.assert_allclose(probability.sum(axis=1), 1.0)
        np.testing.assert_array_equal(model.predict(X) == "yes", model.decision_function(X) > 0)
        assert 0 <= model.score(X, Y) <= 1

    def test_learns(self):
        model = fitted(epsilon=None, settings={"steps": 150}, constraints=None)
        assert model.score(X, Y) > 0.77  # logistic regression: 0.80
        assert model.privacy_.epsilon == np.inf

    def test_constraint_moves_the_gap(self):
        def gap(model):
            chosen = model.predict(X) == "yes"
            return abs(chosen[SEX == "F"].mean() - chosen[SEX == "M"].mean())

        free = fitted(epsilon=None, settings={"steps": 200}, constraints=None)
        held = fitted(epsilon=None, settings={"steps": 200}, constraints=demographic_parity("sex", max_gap=0.05))
        assert gap(free) > 0.25
        assert gap(held) < 0.12

    def test_spends_what_the_ledger_says_and_no_more_than_asked(self):
        model = fitted()
        event, _, certified = model.ledger_.events()
        assert event == model.plan_.training
        assert certified == model.plan_.events[CERTIFICATE]
        assert {row.verdict for row in model.certificate_.rows} <= {"held", "missed", "cannot tell"}
        assert 0.99 * 4.0 < model.privacy_.epsilon <= 4.0
        assert model.n_iter_ == 12
        assert model.history_["histogram"].shape == (12, 2, 2)
        assert "the network" in model.privacy_.public

    def test_repeatable_with_a_seed_and_not_without(self):
        first, second, other = fitted(), fitted(), fitted(random_state=None)
        np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))
        assert not np.array_equal(first.decision_function(X), other.decision_function(X))

    def test_given_module_is_copied(self):
        module = network()
        before = copy.deepcopy(module.state_dict())
        model = fitted(module)
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
        assert any(not torch.equal(before[n], v) for n, v in model.module_.state_dict().items())

    def test_clone_and_pickle(self):
        model = fitted(network())
        assert not hasattr(clone(model), "module_")
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))

    def test_dataset_is_the_same_as_arrays(self):
        ours = quietly(classifier(), People())
        np.testing.assert_allclose(ours.decision_function(X), fitted().decision_function(X), atol=1e-6)

    def test_any_optimizer_and_scheduler(self):
        model = fitted(
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
            scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
        )
        assert model.n_iter_ == 12

    def test_bounds_scale_inputs_inside_the_network(self):
        model = quietly(classifier(feature_bounds=(-3, 3)), 255 * X, Y, sensitive_features={"sex": SEX})
        cut = np.clip(255 * X, -3, 3)
        np.testing.assert_array_equal(model.predict(255 * X), model.predict(cut))

    def test_undeclared_facts_are_found_privately(self):
        model = fitted(classes=None, group_values=None)
        assert model.privacy_.found[0].startswith("the classes")
        assert list(model.classes_) == ["no", "yes"]
        assert DISCOVERY in model.plan_.events

    def test_ids_are_the_unit(self):
        model = quietly(classifier(rows_per_id=3), X, Y, sensitive_features={"sex": SEX}, privacy_ids=np.arange(N) // 5)
        assert model.plan_.n_units == N // 5
        assert model.privacy_.unit.kind == "id"
        assert model.privacy_.unit.max_rows == 3

    def test_one_row_per_id_costs_what_rows_cost(self):
        """Units are numbered by their ids: samples are others than those of rows, releases and noise are not."""
        model = quietly(classifier(rows_per_id=1), X, Y, sensitive_features={"sex": SEX}, privacy_ids=np.arange(N))
        assert model.plan_.events == fitted().plan_.events
        assert model.plan_.n_units == N
        np.testing.assert_array_equal(model.history_["step"], fitted().history_["step"])

    def test_callback_sees_each_step_and_can_stop_the_fit(self):
        def stop(record):
            if record.step == 3:
                raise RuntimeError("enough")

        model = classifier(callback=stop)
        with pytest.raises(RuntimeError, match="enough"):
            quietly(model, X, Y, sensitive_features={"sex": SEX})
        (plan,) = model.ledger_.admissions
        assert plan.released[TRAINING] == 3
        assert not hasattr(model, "module_")


def test_a_fit_that_was_stopped_continues_within_the_cap_of_its_ledger(tmp_path):
    def stop(record):
        if record.step == 3:
            raise RuntimeError("enough")

    book, choices = tmp_path / "book.json", {"checkpoint": tmp_path / "run", "checkpoint_every": 2}
    ledger = Ledger.create(book, cap=Budget(4.0, 1e-5))
    with pytest.raises(RuntimeError, match="enough"):
        fitted(**choices, ledger=ledger, callback=stop)
    assert 0 < Ledger.open(book).total(1e-5) <= 4.0
    model = fitted(**choices, ledger=Ledger.open(book))
    assert model.n_iter_ == 12
    assert model.ledger_.events()[0].steps == 12


@pytest.mark.parametrize("constraints", [None, demographic_parity("sex", max_gap=0.05)])
def test_planned_events_are_those_of_the_fit_and_explained(constraints):
    model = classifier(constraints=constraints)
    planned = model.planned_events(X, Y, sensitive_features={"sex": SEX})
    assert not hasattr(model, "ledger_")
    quietly(model, X, Y, sensitive_features={"sex": SEX})
    assert tuple(model.ledger_.events()) == planned
    assert f"{model.n_iter_} steps" in model.explain()
    assert ("certificate" in model.explain()) == (constraints is not None)
    again = classifier(constraints=constraints).planned_events(People())
    assert again == planned


class Mixing(nn.Module):
    """Takes the mean over the batch, in a way that no list of layers knows."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(D, 2)

    def forward(self, x):
        return self.last(x - x.mean(dim=0))


def nan_loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels, reduction="none") * float("nan")


def mean_loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels)


def balanced_loss(logits, labels):
    """Weighs rows by counts of the batch: no gradient shows it, and a row moves those of all others."""
    counts = torch.bincount(labels, minlength=2).clamp(min=1)
    return nn.functional.cross_entropy(logits, labels, reduction="none") / counts[labels]


def centred_loss(logits, labels):
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    return losses * torch.sigmoid(losses - losses.detach().mean())


class Remembering(nn.Module):
    """Keeps a running mean of its rows for prediction."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(D, 2)
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return self.last(x)
        return self.last(x - self.mean)


BAD = {
    "batch norm": ({"module": lambda: nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, 2))}, UnsupportedCombination),
    "mixes rows in its own way": ({"module": Mixing}, UnsupportedCombination),
    "loss is NaN": ({"loss": nan_loss}, InvalidInput),
    "loss weighs by counts of the batch": ({"loss": balanced_loss}, UnsupportedCombination),
    "loss weighs by a mean of the batch": ({"loss": centred_loss}, UnsupportedCombination),
    "keeps statistics of rows": ({"module": Remembering}, UnsupportedCombination),
    "optimizer wants a closure": ({"optimizer": torch.optim.LBFGS}, UnsupportedCombination),
    "optimizer wants sparse gradients": ({"optimizer": torch.optim.SparseAdam}, UnsupportedCombination),
    "scheduler wants a measure": (
        {"optimizer": torch.optim.Adam, "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
        UnsupportedCombination,
    ),
    "scheduler of another optimizer": (
        {
            "optimizer": torch.optim.Adam,
            "scheduler": lambda _: torch.optim.lr_scheduler.StepLR(torch.optim.Adam(nn.Linear(2, 2).parameters()), 1),
        },
        InvalidInput,
    ),
    "loss is averaged": ({"loss": mean_loss}, InvalidInput),
    "wrong number of classes": ({"module": lambda: MLP(D, 3, (4,))}, InvalidInput),
    "optimizer over other parameters": (
        {"optimizer": lambda _: torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)},
        InvalidInput,
    ),
    "optimizer over some parameters": (
        {"optimizer": lambda parameters: torch.optim.SGD(parameters[:1], lr=0.1)},
        InvalidInput,
    ),
    "inputs of another shape": ({"module": lambda: MLP(D + 1, 2, (4,))}, InvalidInput),
    "optimizer is none": ({"optimizer": lambda _: "sgd"}, InvalidType),
    "no module": ({"module": lambda: 3}, InvalidType),
    "nothing to train": ({"module": lambda: network().requires_grad_(False)}, InvalidInput),
    "bounds the wrong way round": ({"feature_bounds": (1, 0)}, InvalidInput),
    "epochs and steps": ({"epochs": 3}, UnsupportedCombination),
    "no config": ({"config": 3}, InvalidType),
    "epsilon": ({"epsilon": -1.0}, InvalidInput),
    "physical batch": ({"physical_batch": 0}, InvalidInput),
}


class TestBadInput:
    @pytest.mark.parametrize("case", BAD)
    def test_one_clear_exception_before_any_privacy_is_spent(self, case):
        changes, kind = BAD[case]
        ledger = Ledger(cap=Budget(4.0, 1e-5))
        with pytest.raises(kind) as caught:
            fitted(**{"ledger": ledger, **changes})
        assert isinstance(caught.value, RatewiseError)
        assert len(str(caught.value)) < 500
        assert ledger.records == ()

    def test_data_without_groups(self):
        with pytest.raises(InvalidInput, match="sensitive_features is missing"):
            classifier().fit(X, Y)
        with pytest.raises(InvalidInput, match="data has no groups"):
            classifier().fit(People(groups=False))

    def test_loader_is_batched_already(self):
        loader = torch.utils.data.DataLoader(People(), batch_size=32)
        with pytest.raises(InvalidType, match="batched already"):
            classifier().fit(loader)

    def test_dataset_needs_declared_facts(self):
        with pytest.raises(InvalidInput, match="classes must be declared"):
            classifier(classes=None).fit(People())
        with pytest.raises(InvalidInput, match="group_values must be declared"):
            classifier(group_values=None).fit(People())

    def test_iterable_dataset_cannot_be_sampled(self):
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from ()

        with pytest.raises(InvalidType, match="cannot be sampled"):
            classifier().fit(Stream())

    def test_values_that_are_not_finite_add_nothing(self):
        broken, odd = X.copy(), Y.astype(object)
        broken[7, 2], odd[9] = np.nan, None
        model = quietly(classifier(), broken, odd, sensitive_features={"sex": SEX})
        assert np.isfinite(model.decision_function(X)).all()
        with pytest.raises(InvalidInput, match="NaN"):
            model.predict(broken)

    def test_rows_of_another_shape_at_prediction(self):
        with pytest.raises(InvalidInput, match="shape"):
            fitted().predict(X[:, :2])

    def test_ledger_that_is_too_small(self):
        ledger = Ledger(cap=Budget(1.0, 1e-5))
        with pytest.raises(BudgetExceeded):
            fitted(ledger=ledger)
        assert ledger.records == ()

    def test_undeclared_value_is_no_error(self):
        strange = np.where(np.arange(N) == 5, "secret", SEX)
        model = quietly(classifier(), X, Y, sensitive_features={"sex": strange})
        assert "secret" not in str(model.privacy_)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda model: model.save("model.npz"), "torch.save"),
        (lambda model: model.to_sql(), "RateConstrainedClassifier"),
        (lambda model: model.to_onnx(), "torch.onnx.export"),
        (lambda model: model.shape_functions(), "RateConstrainedClassifier"),
        (lambda model: model.plot_shape("x0"), "RateConstrainedClassifier"),
        (lambda model: model.feature_importances(), "RateConstrainedClassifier"),
    ],
)
def test_methods_that_networks_do_not_have_name_the_remedy(call, remedy):
    """They are inherited, and failed with an AttributeError."""
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    model = TorchRateConstrainedClassifier(MLP(2, 2, (2,)), classes=(0, 1), epochs=1)
    model.fit(x, np.arange(60) % 2)
    with pytest.raises(UnsupportedCombination, match=remedy):
        call(model)
