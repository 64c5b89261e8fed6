"""The part of a step that reads rows, for any module.

::

    for piece in pieces(rows):                           # as many rows as fit in memory
        logits = module(x)                               # one forward: objective and histogram
        tally += histogram of the predictions
        sums += sum of the rows' clipped gradients       # one backward

The table of costs of a step comes from *earlier* releases, so one pass over each piece suffices, and the
result is that of the whole batch at once, up to the order of additions. Memory is bounded by the piece.

**Sensitivity.** One row, added or removed, moves the sums by at most ``plan.clip`` in L2 norm over all
parameters together, and the tally by at most 1 in L1 and L2 norm. Both are private until they are released;
`ratewise.torch.trainer` and `ratewise.torch.private` book the step before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError, UnsupportedCombination
from ratewise.plan import Plan
from ratewise.sampling import Rows
from ratewise.torch.data import Batch, RowSource, check_codes, made_up
from ratewise.torch.objective import Objective

Floats = npt.NDArray[np.float64]

PHYSICAL_BATCH = 256


class Clipper(Protocol):
    """Sums of clipped per-row gradients; `ratewise.torch.clipping.PerRowClipper` is one."""

    parameters: list[nn.Parameter]

    def recording(self) -> AbstractContextManager[object]:
        """Return a context in which a forward pass of the module is recorded."""
        ...

    def clipped_sum(self, losses: Tensor, clip: float | None) -> list[Tensor]:
        """Return the sum over rows of gradients clipped to norm `clip`, one tensor per parameter."""
        ...


class TorchEngine:
    """Sums of clipped row gradients and histograms of predictions of a module.

    Parameters
    ----------
    plan : Plan
    module : nn.Module
        Takes a batch of inputs and returns logits, one per class. Rows must not mix.
    rows : RowSource
    objective : Objective
    physical_batch : int
        Rows handled at once. It does not change what is computed.
    device : device
    autocast : bool
        Forward and backward in bfloat16 where PyTorch holds it safe. Norms and sums are taken in 32 bits of
        the very gradients that are added up, so the clip bounds what a row adds all the same.
    clipper : Clipper, optional
    """

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        rows: RowSource,
        objective: Objective,
        *,
        physical_batch: int | None = None,
        device: torch.device | str = "cpu",
        autocast: bool = False,
        clipper: Clipper | None = None,
    ) -> None:
        if rows.n_rows != plan.n_rows:
            raise InvalidInput(f"data has {rows.n_rows} rows, the plan was made for {plan.n_rows}")
        shape = objective.histogram_shape
        check_codes(rows, objective.n_classes, None if shape is None else shape[0])
        self.objective = objective
        self.device = torch.device(device)
        self.module = module.to(self.device)
        self.clipper = clipper_for(self.module) if clipper is None else clipper
        self.parameters = list(self.clipper.parameters)
        self._autocast = autocast
        if plan.noise == "discrete" and any(p.dtype != torch.float64 for p in self.parameters):
            raise UnsupportedCombination(
                "noise='discrete' rests on sums in double precision, but the module has parameters of less; "
                "use module.double(), or noise='continuous'"
            )
        self._rows = rows
        self._clip = plan.clip
        self._piece = _validate.count(
            physical_batch=PHYSICAL_BATCH if physical_batch is None else physical_batch
        )
        self._shape = (sum(parameter.numel() for parameter in self.parameters),)

    @property
    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return self._shape[0]

    @property
    def histogram_shape(self) -> tuple[int, int] | None:
        """Cells and classes of the histogram, None if nothing is counted."""
        return self.objective.histogram_shape

    def try_out(self) -> None:
        """Run made-up rows through module and loss: what cannot work ends here, before any release."""
        self.module.train()
        labels = torch.arange(2, device=self.device) % self.objective.n_classes
        cells = None if self.histogram_shape is None else torch.zeros_like(labels)
        batch = Batch(self._rows.blank(2).to(self.device), labels, cells)
        try:
            with torch.random.fork_rng(devices=[]), untouched_buffers(self.module):
                sums, _ = self._piece_sums(batch)
                refuse_mixing(self.module, batch.x)
                refuse_mixing_losses(self.objective, labels, sums[0].dtype)
                refuse_endless_losses(self.objective, sums[0])
        except RatewiseError:
            raise
        except Exception as problem:  # whatever a user's module does with inputs that are not for it
            shape, kind = tuple(batch.x.shape), batch.x.dtype
            raise InvalidInput(
                f"module or loss fails on made-up inputs of shape {shape} and type {kind}, as the data has: "
                f"{str(problem).splitlines()[0] if str(problem) else type(problem).__name__}"
            ) from problem
        if not all(bool(torch.isfinite(total).all()) for total in sums):
            raise InvalidInput("the gradient of made-up rows is not finite; check the module and the loss")

    def sums(
        self, rows: Rows, table: Floats | None, loss_weight: float = 1.0
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the sum of clipped row gradients, by parameter, and the tally: both **private**."""
        self.objective.load(table, loss_weight, self.device)
        self.module.train()
        sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        tally = self.objective.empty_tally()
        for start in range(0, len(rows), self._piece):
            batch = self._rows.take(rows[start : start + self._piece]).to(self.device)
            more, counted = self._piece_sums(batch)
            for total, part in zip(sums, more, strict=True):
                total += part
            if tally is not None and counted is not None:
                tally += counted.cpu()
        return sums, tally

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def _piece_sums(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        with self.clipper.recording(), self._precision():
            logits = self.module(batch.x)
        self.objective.check(logits, len(batch.labels))
        logits = logits.to(self.parameters[0].dtype)
        losses = self.objective.losses(logits, batch.labels, batch.cells)
        tally = self.objective.tally(logits, batch.cells)
        return self.clipper.clipped_sum(losses, self._clip), tally


@torch.no_grad()
def refuse_mixing(module: nn.Module, x: Tensor) -> None:
    """Refuse a module in which made-up rows change each other's logits, or leave a trace in a buffer.

    Clipping bounds what a row's own gradient adds, not what the row does to the gradients of others; and
    buffers are part of the model, where running statistics of rows would be released without noise.
    """
    other = x.clone()
    other[1:] = 1 - x[1:] if x.dtype != torch.bool else ~x[1:]
    found, kept = [], []
    for inputs in (x, other):
        torch.manual_seed(0)  # the same dropout for both; the caller puts the generator back
        with untouched_buffers(module):
            found.append(module(inputs)[0])
            kept.append({name: buffer.clone() for name, buffer in module.named_buffers()})
    for name, buffer in kept[0].items():
        if name not in kept[1] or not torch.equal(buffer, kept[1][name]):
            raise UnsupportedCombination(
                f"module keeps something of its rows in the buffer {name!r}, which would be released without "
                "noise; normalise each row by itself, or set the buffer from public numbers beforehand"
            )
    if not torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6):
        raise UnsupportedCombination(
            "module mixes rows: the logits of a row change when another row of the batch changes, so no clip "
            "bounds what one row does; keep rows apart (no statistics over the first axis), and replace "
            "batch norm, for example with opacus.validators.ModuleValidator.fix(module)"
        )


@torch.no_grad()
def refuse_mixing_losses(objective: Objective, labels: Tensor, dtype: torch.dtype) -> None:
    """Refuse a loss in which made-up rows change each other's numbers, by logits or by labels.

    Weights from counts of the batch leave no trace in gradients, and yet let a row move those of all others.
    """
    logits = made_up((len(labels), objective.n_classes), dtype).to(labels.device)
    others = logits.clone(), labels.clone()
    others[0][1:], others[1][1:] = 1 - 2 * logits[1:], labels[0]
    found = []
    for pair in ((logits, labels), others):
        torch.manual_seed(0)
        found.append(objective.losses(*pair, None)[0])
    if not torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6):
        raise UnsupportedCombination(
            "loss mixes rows: the loss of a row changes when another row of the batch changes, so no clip "
            "bounds what one row does; weigh rows by public numbers, not by counts or means of the batch"
        )


@torch.no_grad()
def refuse_endless_losses(objective: Objective, like: Tensor) -> None:
    """Refuse a loss that is not finite for a row of some class."""
    count = objective.n_classes
    logits = made_up((count, count), like.dtype).to(like.device)
    losses = objective.losses(logits, torch.arange(count, device=like.device), None)
    if not bool(torch.isfinite(losses).all()):
        raise InvalidInput(
            "loss is not finite for made-up logits of some classes; check its weights and logarithms"
        )


@contextmanager
def untouched_buffers(module: nn.Module) -> Iterator[None]:
    """Put the module's buffers back as they were."""
    before = [
        (owner._buffers, name, buffer, buffer.clone())
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for buffers, name, buffer, content in before:
            buffers[name] = buffer.copy_(content)


def clipper_for(module: nn.Module) -> Clipper:
    """Return the clipper of a module; one that mixes rows is refused there."""
    from ratewise.torch.clipping import PerRowClipper

    if not isinstance(module, nn.Module):
        raise InvalidType(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("module has no parameter to train; set requires_grad_(True) on some")
    return PerRowClipper(module)
