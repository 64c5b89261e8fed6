"""Parts for a loop of one's own, close to what users of Opacus know.

::

    model, optimizer, loader, criterion = make_private(
        model, optimizer, loader, constraints, epsilon=3.0, delta=1e-6, epochs=10,
        classes=(0, 1), group_values={"sex": ("Female", "Male")},
    )
    for epoch in range(10):
        for x, labels, cells in loader:                      # a Poisson sample, cut into pieces
            loss = criterion(model(x), labels, cells)        # loss and limits, row by row
            loss.backward()                                  # clipped sums, kept until the step
            optimizer.step()                                 # books, adds noise, moves weights and limits
    optimizer.finish()                                       # the book says what ran

**What is released** is the same as in `ratewise.torch.trainer`: per step the clipped sum (sensitivity: the
clip) and the histogram of predictions (sensitivity 1), both of one Poisson sample, booked as one
``plan.step_event`` before the noise is drawn. A step must use each row of its sample once: fewer or more are
refused, for a row used twice counts double. The loss of a batch is private and cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from ratewise import _validate
from ratewise.accounting import Budget, Ledger
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.fitting import open_ledger
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.torch.data import Batch, DatasetRows, RowSource
from ratewise.torch.defaults import network_plan
from ratewise.torch.descent import Descent
from ratewise.torch.engine import PHYSICAL_BATCH, TorchEngine
from ratewise.torch.inputs import declared
from ratewise.torch.noise import network_streams, note_seed
from ratewise.torch.objective import Loss, Objective
from ratewise.torch.session import Session
from ratewise.training import History

_NAMES_IN_OPACUS = {
    "max_grad_norm": "the largest norm of a row's gradient is called clip",
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
    loader: DataLoader[Any] | Dataset[Any],
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
    neighbours: str = "add_or_remove",
    random_state: Any = None,
    **choices: Any,
) -> PrivateParts:
    """Return model, optimizer, loader and criterion for a private loop within limits on prediction rates.

    Parameters
    ----------
    model : nn.Module
        Returns logits, one per class; rows must not mix.
    optimizer : torch.optim.Optimizer
        Over exactly the model's trainable parameters.
    loader : DataLoader or Dataset
        Items are ``(x, label, groups)``. Of a loader the data set and the batch size are used: batches become
        Poisson samples of that expected size.
    constraints : constraint, family, or list of them, optional
    epsilon, delta : float
        The budget of the whole loop; ``epsilon=None`` trains without privacy.
    epochs, steps
        Length of the loop, which the noise is calibrated for.
    classes, group_values
        The public facts, declared.
    loss : callable, optional
        ``loss(logits, labels)`` returns one number per row; cross-entropy unless told.
    physical_batch : int
        Rows of a piece; ``optimizer.step()`` waits for the last piece of a sample.
    ledger, data_name, neighbours, random_state
        As for `ratewise.torch.TorchRateConstrainedClassifier`.
    **choices
        Anything else that `ratewise.torch.network_plan` takes, such as ``clip``.
    """
    _refuse_other_names(choices)
    dataset, batch = _data_of(loader)
    domain, compiled = declared(constraints, classes, group_values)
    rows = DatasetRows(dataset, domain, compiled)
    if batch is not None:
        choices.setdefault("sampling_rate", min(1.0, batch / rows.n_rows))
    if not isinstance(model, nn.Module):
        raise InvalidType(f"model must be a torch.nn.Module, got {type(model).__name__}")
    plan = network_plan(
        rows.n_rows,
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        compiled,
        epsilon=epsilon,
        delta=delta,
        n_classes=len(domain.classes),
        epochs=epochs,
        steps=steps,
        neighbours=neighbours,
        averaging="none",
        **choices,
    )
    objective = Objective(plan, len(domain.classes), None if compiled is None else compiled.n_cells, loss)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    engine = TorchEngine(plan, model, rows, objective, physical_batch=physical_batch, device=device)
    descent = Descent(plan, engine.parameters, optimizer)
    engine.try_out()
    cap = None if epsilon is None else Budget(float(epsilon), float(delta))
    book = open_ledger(plan, ledger, cap, neighbours)
    streams = network_streams(random_state)
    if plan.private:
        note_seed(book, random_state, streams)
    dual = None if compiled is None else Multipliers(compiled, plan)
    session = Session(plan, engine, descent, dual, book, data_name, streams)
    return PrivateParts(
        PrivateModel(session),
        PrivateOptimizer(session),
        PoissonLoader(session, rows, physical_batch),
        RateCriterion(session),
    )


class PrivateModel(nn.Module):
    """The model, with its forward passes recorded while it trains; ``.module`` is the model itself."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.module = session.engine.module
        self._clipper = session.engine.clipper
        self._n_classes = session.engine.objective.n_classes

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; of an empty batch without asking the model, which may not know one."""
        if len(x) == 0:
            return next(self.module.parameters()).new_zeros((0, self._n_classes))
        if not (self.training and torch.is_grad_enabled()):
            found: Tensor = self.module(x)
            return found
        with self._clipper.recording():
            recorded: Tensor = self.module(x)
        return recorded


class PrivateLoss:
    """The loss of a batch: it can be minimised, not read."""

    def __init__(self, session: Session, losses: Tensor, tally: Tensor | None) -> None:
        self._session: Session | None = session
        self._losses, self._tally = losses, tally

    def backward(self) -> None:
        """Add the rows' clipped gradients to those of the sample."""
        if self._session is None:
            raise InvalidInput("backward() was called already on this loss; a row must not count twice")
        session, self._session = self._session, None
        session.take_in(self._losses, self._tally)

    def item(self) -> NoReturn:
        """Refuse: the loss of a batch is private."""
        raise UnsupportedCombination(
            "the loss of a batch is private: it is computed from rows without noise; watch "
            "optimizer.history, or spend budget on an evaluation"
        )

    def __float__(self) -> float:
        self.item()


class RateCriterion:
    """The objective of a batch: the loss, and what the limits on rates add to it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, logits: Tensor, labels: Tensor, cells: Tensor | None = None) -> PrivateLoss:
        """Return the loss of a batch of the private loader; call its ``backward``."""
        objective = self._session.engine.objective
        objective.check(logits, len(labels))
        if objective.histogram_shape is not None and cells is None:
            raise InvalidInput(
                "cells is missing: the constraints need it; the loader gives (x, labels, cells)"
            )
        device = self._session.engine.device
        cells = None if cells is None else cells.to(device)
        losses = objective.losses(logits, labels.to(device), cells)
        return PrivateLoss(self._session, losses, objective.tally(logits, cells))


class PoissonLoader:
    """Poisson samples of the rows, cut into pieces; one pass is about one epoch.

    Yields ``(x, labels, cells)``: labels and cells as numbers, cells None without constraints. How many rows
    a sample has is private. A sample may be empty.
    """

    def __init__(self, session: Session, rows: RowSource, piece: int) -> None:
        self._session = session
        self._rows = rows
        self._piece = _validate.count(physical_batch=piece)
        self.steps = max(1, round(1.0 / session.plan.sampling_rate))

    def __len__(self) -> int:
        """Return the number of samples in one pass."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        session = self._session
        for _ in range(self.steps):
            number = session.steps_done
            if number >= session.plan.steps:
                return
            rows = session.sampler.rows(number)
            session.begin_sample(len(rows))
            starts = range(0, len(rows), self._piece) if len(rows) else range(1)
            for start in starts:
                session.complete = start + self._piece >= len(rows)
                yield self._rows.take(rows[start : start + self._piece]).to(session.engine.device)


class PrivateOptimizer(torch.optim.Optimizer):
    """The optimizer, whose step books, adds noise, and moves weights and multipliers.

    Attributes
    ----------
    plan, ledger, multipliers, history
        What was planned, what is booked, the dual side, and what was released.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.original = session.descent.optimizer
        # the very groups of the original, so that a scheduler on either moves both
        super().__init__(self.original.param_groups, self.original.defaults)
        self._join()

    def _join(self) -> None:
        self.param_groups, self.state = self.original.param_groups, self.original.state

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self._session.plan

    @property
    def ledger(self) -> Ledger:
        """The book."""
        return self._session.ledger

    @property
    def multipliers(self) -> Multipliers | None:
        """The dual side."""
        return self._session.multipliers

    @property
    def history(self) -> History:
        """What was released."""
        return self._session.history

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Release the sample's sums and move; before the sample's last piece, do nothing."""
        if closure is not None:
            raise UnsupportedCombination("a closure would read the rows again and again; call step()")
        self._session.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear ``grad`` fields; sums of the sample at hand stay until its step."""
        self.original.zero_grad(set_to_none=set_to_none)

    def finish(self) -> None:
        """Settle the book to the steps that ran; a loop that runs all planned steps does it by itself."""
        self._session.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the original optimizer."""
        return self.original.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the original optimizer."""
        self.original.load_state_dict(state_dict)
        self._join()  # loading makes new groups


def _refuse_other_names(choices: Mapping[str, Any]) -> None:
    """Name the argument that is meant by one of Opacus."""
    for name, meant in _NAMES_IN_OPACUS.items():
        if name in choices:
            raise InvalidType(f"make_private has no argument {name!r}; {meant}")


def _data_of(loader: Any) -> tuple[Any, int | None]:
    """Return the data set of a loader and its batch size; a bare data set has none."""
    if not isinstance(loader, DataLoader):
        return loader, None
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, None  # refused where rows are read, with the reason
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise InvalidInput(
            "loader is batched already, by its data set or by a batch sampler of its own; privacy rests on "
            "each row being drawn independently: pass DataLoader(dataset, batch_size=...) whose data set "
            "has single rows as items"
        )
    if type(loader.sampler) not in (SequentialSampler, RandomSampler):
        raise InvalidInput(
            f"loader has a sampler of its own ({type(loader.sampler).__name__}), which Poisson samples would "
            "take the place of; to train on some of the rows only, pass a loader over "
            "torch.utils.data.Subset(dataset, rows)"
        )
    if loader.collate_fn is not default_collate:
        raise InvalidInput(
            "loader has a collate_fn of its own, which may mix rows; let items of the data set have one shape"
        )
    return loader.dataset, loader.batch_size
