"""`make_private`: a private training loop of one's own, close to what users of Opacus know.

::

    model, optimizer, loader, criterion = make_private(
        model, optimizer, loader, constraints, epsilon=3.0, delta=1e-6, epochs=10,
        classes=(0, 1), group_values={"sex": ("Female", "Male")},
    )
    for epoch in range(10):
        for x, labels, cells in loader:                      # one Poisson sample
            loss = criterion(model(x), labels, cells)        # loss and constraints
            loss.backward()                                  # asks for the gradient of the sample
            optimizer.step()                                 # records, reads rows, adds noise, updates
            scheduler.step()                                 # any scheduler: one item is one step
    certificate = optimizer.finish()                         # releases the counts of the trained model

One item of the loader is one step: ``backward`` and ``step`` must be called once for every item, in this order, before
the next is taken; anything else is an error that does not depend on the rows. Rows stay in the engine: loader, model
and criterion exchange placeholders without values, so a loop can neither mix rows nor depend on them.
`ratewise.torch.Trainer` takes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import data
from torch.utils._pytree import tree_leaves

from ratewise import _validate
from ratewise.accounting import Budget, Ledger, PrivacyUnit
from ratewise.data.table import code_ids, id_units, read_vector, row_units
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.torch.distributed import Processes, refuse_unjoined
from ratewise.torch.engine import PHYSICAL_BATCH, DatasetRows, Loss
from ratewise.torch.estimator import declared
from ratewise.torch.trainer import NETWORK, Trainer, network_plan, refuse_removal
from ratewise.training.certificate import Certificate
from ratewise.training.config import TrainingConfig
from ratewise.training.loop import StepRecord

_ELSEWHERE = "put changes of inputs into the data set or the module, and of the loss into make_private(loss=...)"

_NAMES_IN_OPACUS = {
    "max_grad_norm": "the largest norm of a unit's gradient is config=TrainingConfig(clip=...)",
    "noise_multiplier": "the noise is found from epsilon, delta and epochs (or steps)",
    "target_epsilon": "the budget is called epsilon",
    "target_delta": "the budget is called delta",
    "poisson_sampling": "samples are always Poisson samples, which the accounting rests on",
    "grad_sample_mode": "the cheapest way to each layer's norms is found by itself",
}


class PrivateParts(NamedTuple):
    """What `make_private` returns, in the order in which a loop uses it."""

    model: PrivateModel
    optimizer: PrivateOptimizer
    loader: PoissonLoader
    criterion: RateCriterion


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: data.DataLoader[Any] | data.Dataset[Any],
    constraints: Any = None,
    *,
    epsilon: float | None,
    delta: float,
    epochs: float | None = None,
    steps: int | None = None,
    classes: Any = None,
    group_values: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    physical_batch: int = PHYSICAL_BATCH,
    ledger: Ledger | None = None,
    data_name: str = "training rows",
    neighbours: str = "zero_out",
    privacy_ids: Any = None,
    rows_per_id: int | None = None,
    id_weighting: str = "id",
    config: TrainingConfig | None = None,
    random_state: Any = None,
    **unknown: Any,
) -> PrivateParts:
    """Return model, optimizer, loader and criterion for a private loop under constraints on prediction rates.

    The loop runs in one process. Under ``torchrun`` or with a distributed module it is refused; use
    `ratewise.torch.Trainer` or `ratewise.torch.TorchRateConstrainedClassifier` with ``processes=join()``.

    Parameters
    ----------
    model : nn.Module
        Returns logits, one per class. It is run on each row separately.
    optimizer : torch.optim.Optimizer
        Over exactly the model's trainable parameters.
    loader : DataLoader or Dataset
        Items are ``(x, label, groups)``. Of a loader the data set and the batch size are used: batches become
        Poisson samples of that expected size.
    epsilon, delta : float
        The budget of the whole loop; ``epsilon=None`` trains without privacy.
    epochs, steps
        Length of the loop, which the noise is calibrated for.
    classes, group_values
        The public facts, declared.
    constraints, loss, physical_batch, ledger, data_name, neighbours, privacy_ids, id_weighting, random_state
        As for `ratewise.torch.TorchRateConstrainedClassifier`.
    rows_per_id : int, optional
        Needed with `privacy_ids`.
    config : TrainingConfig, optional
        Other settings, such as the clip. The schedule is that of the optimizer.
    """
    for name in unknown:
        setting = name in {entry.name for entry in fields(TrainingConfig)}
        meant = _NAMES_IN_OPACUS.get(name) or (f"pass config=TrainingConfig({name}=...)" if setting else "")
        raise InvalidType(f"make_private has no argument {name!r}" + (f"; {meant}" if meant else ""))
    refuse_removal(neighbours)
    refuse_unjoined(Processes())
    dataset, batch = _data_of(loader)
    domain, compiled = declared(constraints, classes, group_values)
    rows = DatasetRows(dataset, domain, compiled)
    _validate.instance(nn.Module, model=model)
    units, unit = row_units(rows.n_rows), PrivacyUnit()
    if privacy_ids is not None:
        if rows_per_id is None:
            raise InvalidInput("rows_per_id is missing: with privacy_ids, give the rows of an id to use at most")
        most = _validate.count(rows_per_id=rows_per_id)
        codes, n_units = code_ids(read_vector(privacy_ids, rows.n_rows, "privacy_ids"), like_rows=False)
        units = id_units(codes, n_units, most, _validate.one_of(("id", "row"), id_weighting=id_weighting))
        unit = PrivacyUnit("id", max_rows=most, weighting=id_weighting)
    config = config or NETWORK
    rate = config.sampling_rate or (None if batch is None else min(1.0, batch / rows.n_rows))
    steps = config.steps if steps is None else steps
    settings = replace(config, schedule="constant", steps=steps, sampling_rate=rate)
    plan = network_plan(
        units.n_units, settings, epsilon=epsilon, delta=delta, constrained=compiled is not None, epochs=epochs,
        neighbours=neighbours, unit=unit,
    )  # fmt: skip
    cap = None if epsilon is None else Budget(float(epsilon), float(delta))
    own = Ledger(cap=cap, adaptive=False, neighbours=neighbours, unit=unit) if ledger is None else ledger
    settings = replace(settings, steps=plan.steps, sampling_rate=plan.sampling_rate)
    trainer = Trainer(
        model, rows, plan, compiled, config=settings, n_classes=len(domain.classes), units=units,
        optimizer=optimizer, loss=loss, ledger=own, data_name=data_name, physical_batch=physical_batch,
        random_state=random_state,
    )  # fmt: skip
    trainer.start()
    trainer.note_seed()
    private = PrivateOptimizer(optimizer, trainer)
    return PrivateParts(PrivateModel(model), private, PoissonLoader(private), RateCriterion(private))


def _data_of(loader: Any) -> tuple[Any, int | None]:
    """Return the data set of a loader and its batch size; a bare data set has none."""
    if not isinstance(loader, data.DataLoader):
        return loader, None
    if isinstance(loader.dataset, data.IterableDataset):
        return loader.dataset, None  # refused where rows are read, with the reason
    problem = ""
    if loader.batch_size is None or type(loader.batch_sampler) is not data.BatchSampler:
        problem = "is batched already; pass DataLoader(dataset, batch_size=...) whose items are single rows"
    elif type(loader.sampler) not in (data.SequentialSampler, data.RandomSampler):
        problem = (
            f"has a sampler of its own ({type(loader.sampler).__name__}); to train on some of the rows only, pass a "
            "loader over torch.utils.data.Subset(dataset, rows)"
        )
    elif loader.collate_fn is not data.default_collate:
        problem = "has a collate_fn of its own, which may mix rows; let items of the data set have one shape"
    if problem:
        raise InvalidInput(f"loader {problem}. Privacy rests on each row being drawn independently")
    return loader.dataset, loader.batch_size


class Placeholder:
    """Inputs, labels, cells, logits or the loss of one sample in a loop: they are passed on, not read.

    ``to``, ``cpu`` and ``cuda`` return the placeholder itself, because the engine moves rows to the device.
    """

    def __init__(self, name: str, sample: object) -> None:
        self.name, self.sample = name, sample

    def to(self, *_args: Any, **_kwargs: Any) -> Placeholder:
        """Return the placeholder."""
        return self

    cpu = cuda = to

    def __repr__(self) -> str:
        return f"<{self.name} of a private sample>"

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise UnsupportedCombination(self._reason())

    def _reason(self) -> str:
        return (
            f"the {self.name} of a sample are private and have no values here: pass them on as in "
            "criterion(model(x), labels, cells), with the criterion that make_private returned; " + _ELSEWHERE
        )

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = [value for value in tree_leaves((args, kwargs)) if isinstance(value, cls)]
        found[0]._refuse()

    __hash__ = object.__hash__
    __eq__ = __ne__ = _refuse
    __len__ = __iter__ = __getitem__ = __setitem__ = __bool__ = __float__ = __int__ = __array__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __neg__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class PrivateModel(nn.Module):
    """The model as the loop calls it; ``.module`` is the model itself.

    With ``model.eval()`` or under ``torch.no_grad()`` it takes tensors and returns ordinary logits.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Placeholder | Tensor) -> Any:
        """Return the logits: a placeholder in a step, a tensor outside."""
        if isinstance(x, Placeholder):
            if not self.training:
                raise InvalidInput("model is in evaluation mode; call model.train() before the loop")
            if x.name != "inputs":
                raise InvalidInput(f"inputs of the private loader are needed here, got its {x.name}")
            return Placeholder("logits", x.sample)
        if self.training and torch.is_grad_enabled():
            raise InvalidInput(
                "model got a tensor while it trains; pass on the inputs of the private loader as they are, "
                "and call model.eval() or torch.no_grad() for rows from elsewhere"
            )
        return self.module(x)


class PrivateOptimizer(torch.optim.Optimizer):
    """The optimizer, whose step is recorded, adds noise, and updates weights and multipliers.

    It has the `plan`, the `ledger`, the multipliers (`dual`), what was released by step (`history`), and the
    `certificate` at the end. Errors depend on the order of calls only.
    """

    def __init__(self, original: torch.optim.Optimizer, trainer: Trainer) -> None:
        self.original, self.trainer = original, trainer
        self.plan, self.ledger = trainer.plan, trainer.open_ledger()
        self.dual, self.history = trainer.dual, trainer.history
        self.sample: object = None  # the item of the loader that has had no step yet; its rows are drawn in the step
        self.asked = False  # whether `backward` asked for its gradient
        self._steps: Generator[StepRecord, None, None] | None = None
        self._over = False
        # the very groups of the original, so that a scheduler on either moves both
        super().__init__(original.param_groups, original.defaults)
        self._join()

    def _join(self) -> None:
        self.param_groups, self.state = self.original.param_groups, self.original.state

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, once the loop is finished."""
        return self.trainer.certificate

    @property
    def steps_left(self) -> int:
        """Planned steps that were not taken."""
        return self.plan.steps - self.trainer.steps_done

    def require_step(self) -> None:
        """Refuse to go on if the current sample has had no step."""
        if self.sample is not None:
            raise InvalidInput(
                "the last item of the private loader has had no step; call "
                "criterion(model(x), labels, cells).backward() and optimizer.step() once for every item. For "
                "larger batches raise the batch size instead of accumulating gradients (physical_batch bounds "
                "the memory), and call loader.discard() to leave an item out"
            )

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Record the step, release the sums of a sample with noise, and update weights and multipliers."""
        if closure is not None:
            raise UnsupportedCombination("a closure would read the rows again and again; call step()")
        refuse_unjoined(Processes())
        if self.sample is None:
            raise InvalidInput("optimizer.step() without a fresh sample: take one item of the private loader per step")
        if not self.asked:
            raise InvalidInput(
                "optimizer.step() before backward(); call criterion(model(x), labels, cells).backward() first"
            )
        if self._over:
            raise InvalidInput("the loop is finished: its budget was planned for the steps that ran")
        self.sample = None  # whatever fails from here on, no later step belongs to this item
        steps, self._steps = self._steps or self.trainer.steps(), None
        next(steps)
        self._steps = steps  # a step that fails ends them; the next item begins anew
        if self.steps_left == 0:
            self.finish()

    def finish(self) -> Certificate | None:
        """End the loop and release the certificate; a loop that runs all planned steps does it by itself."""
        if not self._over:
            self._over = True
            if self._steps is not None:
                self._steps.close()
            if self.trainer.steps_done:
                self.trainer.certify()
        return self.certificate

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``grad`` fields; sums of the sample at hand stay until its step."""
        self.original.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the original optimizer."""
        return self.original.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the original optimizer."""
        self.original.load_state_dict(state_dict)
        self._join()  # loading makes new groups


class PoissonLoader:
    """Poisson samples of the rows, one per step, as placeholders ``(x, labels, cells)``; one pass is about one epoch.

    Cells is None without constraints.
    """

    def __init__(self, optimizer: PrivateOptimizer) -> None:
        self._optimizer = optimizer
        self.steps = max(1, round(1.0 / optimizer.plan.sampling_rate))

    def __len__(self) -> int:
        """Return the number of samples in one pass."""
        return self.steps

    def __iter__(self) -> Iterator[tuple[Placeholder, Placeholder, Placeholder | None]]:
        optimizer = self._optimizer
        for _ in range(min(self.steps, optimizer.steps_left)):
            optimizer.require_step()
            sample = optimizer.sample = object()
            optimizer.asked = False
            cells = None if optimizer.dual is None else Placeholder("cells", sample)
            yield Placeholder("inputs", sample), Placeholder("labels", sample), cells
            optimizer.require_step()

    def discard(self) -> None:
        """Give up the current item without a step; it is never drawn again and costs nothing."""
        self._optimizer.sample = None


class RateCriterion:
    """The objective of a sample: the loss, and what the constraints add to it."""

    def __init__(self, optimizer: PrivateOptimizer) -> None:
        self._optimizer = optimizer

    def __call__(self, logits: Any, labels: Any, cells: Any = None) -> PrivateLoss:
        """Return the loss of an item of the private loader; call its ``backward``."""
        given = {"logits": logits, "labels": labels}
        if self._optimizer.dual is not None:
            if cells is None:
                raise InvalidInput("cells is missing: the constraints need it; the loader gives (x, labels, cells)")
            given["cells"] = cells
        for name, value in given.items():
            if not isinstance(value, Placeholder) or value.name != name:
                raise InvalidInput(
                    f"{name} must be what the private loader and the model returned, unchanged, got "
                    f"{value if isinstance(value, Placeholder) else type(value).__name__}; {_ELSEWHERE}"
                )
        if len({id(value.sample) for value in given.values()}) > 1:
            raise InvalidInput("logits, labels and cells come from different items of the loader")
        return PrivateLoss(self._optimizer, logits.sample)


class PrivateLoss(Placeholder):
    """The loss of a sample: it can be minimised, not read."""

    def __init__(self, optimizer: PrivateOptimizer, sample: object) -> None:
        super().__init__("loss", sample)
        self._optimizer = optimizer

    def backward(self) -> None:
        """Ask for the sum of the clipped gradients of the sample: the step reads the rows."""
        if self.sample is not self._optimizer.sample:
            raise InvalidInput("backward() on an item of the loader that is not the current one; take one per step")
        if self._optimizer.asked:
            raise InvalidInput("backward() was called twice for one item of the loader; a row must not count twice")
        self._optimizer.asked = True

    def _reason(self) -> str:
        return (
            "the loss of a batch is private: it is computed from rows without noise; watch optimizer.history, or "
            "spend budget on an evaluation. The loss of an item is not scaled or added: one item is one step. For "
            "larger batches raise the batch size instead of accumulating gradients, and put weights into "
            "make_private(loss=...)"
        )
