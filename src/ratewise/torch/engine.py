"""The part of a step that reads rows, for any module; implements `ratewise.training.loop.Engine`.

With logits h(x), label y and cell q of a row, the objective of the row is, as in the engines for tables::

    loss(h, y) + sum_k weights[q, k] * softmax(temperature * h)_k

The weights of a step come from *earlier* releases, so that one forward and one backward of each block of rows give
the clipped gradient and the prediction counts. Memory is bounded by the block.

**Sensitivity.** A row that is replaced by a blank, which adds nothing, moves the computed gradient by at most
``clip * (1 + slack)`` in L2 norm over all parameters together, where `TorchEngine.slack` covers rounding
(docs/guarantees.md, section 14), and the histogram by at most 1 in L1 and L2 norm. So do all rows of an id
together if units are ids. Both are private until a mechanism releases them.

**Total functions.** No content of a row raises an error or changes what other units add. A row of which loss or
gradient is not finite adds nothing to the gradient and one valid count to the histogram. A row on which the
module or the loss raises an error (an id beyond an embedding) adds nothing to either. What fails on synthetic
rows too is raised, because its reason is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ratewise import _validate
from ratewise.data.table import Units, row_units
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError, UnsupportedCombination
from ratewise.mechanisms.randomness import KEY_BYTES, SecureGenerator
from ratewise.mechanisms.sampling import Rows
from ratewise.models.additive import SOFT_STEP
from ratewise.torch.clipping import PerRowClipper, clipping_slack
from ratewise.torch.data import Batch, RowSource, check_rows, made_up
from ratewise.torch.gradients import BLOCK_SLACK, wide
from ratewise.torch.isolation import (
    ModuleState,
    RowRandomness,
    check_module,
    map_rows,
    refuse_mixing,
    refuse_uncontrolled,
    rows_mix,
    untouched_state,
)
from ratewise.training.certificate import margin_code_count, margin_codes

Floats = npt.NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]
_T = TypeVar("_T")

PHYSICAL_BATCH = 256
ROWS_TOGETHER = 8
"""Batches are padded with blank rows to a multiple of this: libraries for matrix products handle the last rows of an
odd number by other kernels, which round differently, and a row's numbers would depend on how many others there are."""
_LARGEST = 1e30  # logits beyond are cut off in the histogram, where differences of theirs are formed


class NetworkSums(NamedTuple):
    """Clipped gradients (one tensor per parameter) and prediction counts (Q, K) of a sample; **private**."""

    gradient: list[Tensor]
    histogram: Floats | None


class _Block(NamedTuple):
    """Rows of some units: their numbers, tensors, weights, and units (None: one row each)."""

    numbers: Rows
    batch: Batch
    weights: Tensor
    units: Tensor | None = None

    def only(self, kept: Tensor) -> _Block:
        """Return the block with blanks in the place of rows that are not kept."""
        return self._replace(batch=self.batch.select(kept).spread(kept.nonzero().squeeze(1), len(kept)))


class TorchEngine:
    """Clipped gradient sums and prediction counts of a module, which runs on each row separately.

    Parameters
    ----------
    units : Units, optional
        Which rows form a unit of privacy; by default each row is one.
    physical_batch : int
        Rows handled at once. It does not change what is computed.
    autocast : bool
        Forward and backward in bfloat16 where PyTorch holds it safe; the clip holds all the same.

    Attributes
    ----------
    random_key : bytes
        Secret of the random layers (`ratewise.torch.isolation`), from the secure source unless replaced.
    owned : range
        Units that this process counts for the certificate.
    """

    def __init__(
        self,
        module: nn.Module,
        rows: RowSource,
        objective: Objective,
        *,
        units: Units | None = None,
        physical_batch: int | None = None,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self.objective = objective
        self.histogram_shape = objective.histogram_shape
        check_rows(rows, counted=self.histogram_shape is not None)
        self.units = row_units(rows.n_rows) if units is None else units
        self.owned = range(self.units.n_units)
        self.device = torch.device(device)
        check_module(module)
        self.module = module.to(self.device)
        self.clipper = PerRowClipper(self.module)
        self.parameters = list(self.clipper.parameters)
        self.n_parameters = sum(parameter.numel() for parameter in self.parameters)
        self._autocast, self._rows = autocast, rows
        piece = PHYSICAL_BATCH if physical_batch is None else physical_batch
        self._piece = _validate.count(physical_batch=piece)
        self.random_key = SecureGenerator().bytes(KEY_BYTES)
        self._calls = 0

    @property
    def count_step(self) -> float:
        """Power of two that all prediction counts are multiples of."""
        return self.units.step if self.objective.hard else SOFT_STEP

    def slack(self, rows: float) -> float:
        """Return what rounding can add to the sensitivity of a sum over so many rows, relative to the clip.

        The rows of an id are side by side. Only the first and the last of the blocks that are added in single
        precision contain rows of other ids too, so rounding is at most twice that of one row.
        """
        several = self.units.n_rows > self.units.n_units
        return clipping_slack(rows) + (BLOCK_SLACK if several else 0.0)

    def try_out(self) -> None:
        """Run made-up rows through module and loss: what cannot work ends here, before any release."""
        self.module.train()
        block = self._synthetic(2)
        batch = block.batch
        try:
            with torch.random.fork_rng(devices=[]), untouched_state(self.module):
                self._block_sums(block, None)
                refuse_uncontrolled(self.module, lambda: self._losses(batch)[1])
                refuse_mixing(self.module, batch.x)
                self.objective.try_out(self.parameters[0])
        except RatewiseError:
            raise
        except Exception as problem:  # whatever a user's module does with inputs that are not for it
            shape, kind = tuple(batch.x.shape), batch.x.dtype
            raise InvalidInput(
                f"module or loss fails on made-up inputs of shape {shape} and type {kind}, as the data has: "
                f"{str(problem).splitlines()[0] if str(problem) else type(problem).__name__}"
            ) from problem

    def sums(
        self,
        sample: Rows,
        parameters: Any = None,  # noqa: ARG002 - they are in the module
        weights: Floats | None = None,
        clip: float | None = None,
        step: int | None = None,
    ) -> NetworkSums:
        """Return the clipped gradient sum and the prediction counts of a sample of unit numbers; **private**.

        `weights` (Q, K) are the cost of predicting class k for a row of cell q, relative to a loss of weight 1. A
        clip of None or infinity does not clip. Random layers draw from `random_key`, the step (by default the number
        of earlier calls) and the number of each row.
        """
        step, self._calls = (self._calls if step is None else step), self._calls + 1
        bound = None if clip is None or np.isinf(clip) else clip
        self.objective.load(weights, self.device)
        self.module.train()
        sums: list[Tensor] = []
        tally = self.objective.empty_tally()
        for block in self._blocks(sample):
            more, counted = self._total_sums(block, bound, step)
            sums = [wide(total).add_(part) for total, part in zip(sums, more, strict=True)] if sums else more
            if tally is not None and counted is not None:
                tally += counted
        return NetworkSums(sums or self._no_sums(), None if tally is None else tally.numpy())

    def counts(self, parameters: Any = None) -> tuple[Floats, Floats]:
        """Return cells by predicted class (Q, K), and labels by whether predicted correctly (K, 2); **private**.

        The module is in evaluation mode and runs on each row separately. A unit adds a vector of L1 norm at
        most 1 to either table. An array of K numbers (`shifted`) is added to the logits.
        """
        offset = parameters if isinstance(parameters, np.ndarray) else 0.0
        return self._code_counts(
            lambda scores: (scores + offset).argmax(1), self.objective.n_classes, hits=True
        )

    def margin_counts(self, parameters: Any, towards: int) -> tuple[Floats, Floats]:  # noqa: ARG002 - as in `counts`
        """Return cells and labels by the code of the margin over all units; **private**."""
        width = margin_code_count(self.objective.n_classes)
        return self._code_counts(lambda scores: margin_codes(scores, towards), width, hits=False)

    def shifted(self, parameters: Any, towards: int, amount: float) -> Floats:  # noqa: ARG002 - as in `counts`
        """Return what is added to the logits, for `counts`."""
        return np.where(np.arange(self.objective.n_classes) == towards, amount, 0.0)

    def _code_counts(
        self, codes: Callable[[Floats], Any], width: int, *, hits: bool
    ) -> tuple[Floats, Floats]:
        n_classes, n_cells = self.objective.n_classes, (self.histogram_shape or (1, 0))[0]
        by_cell, outcomes = np.zeros((n_cells, width)), np.zeros((n_classes, 2 if hits else width))
        self.module.eval()
        with torch.no_grad(), untouched_state(self.module):
            for block in self._blocks(np.asarray(self.owned, dtype=np.intp)):
                predicted, labels = self._coded(block, codes), block.batch.labels.cpu().numpy()
                known = (predicted >= 0) & (labels >= 0) & (labels < n_classes)
                added = known * block.weights.numpy()
                outcome = (predicted == labels).astype(int) if hits else np.where(known, predicted, 0)
                np.add.at(outcomes, (np.where(known, labels, 0), outcome), added)
                if block.batch.cells is not None:
                    cells = block.batch.cells.cpu().numpy()
                    inside = known & (cells >= 0) & (cells < n_cells)
                    places = np.where(inside, cells, 0), np.where(known, predicted, 0)
                    np.add.at(by_cell, places, added * inside)
        return by_cell, outcomes

    def _coded(self, block: _Block, codes: Callable[[Floats], Any]) -> npt.NDArray[np.intp]:
        """Return the code of each row's logits; -1 where the module fails."""
        rows = len(block.numbers)

        def run(block: _Block) -> npt.NDArray[np.intp]:
            with self.clipper.recording(), self._precision():
                logits = self.module(_padded(block.batch).x)[:rows]
            return np.asarray(codes(_finite(logits).double().cpu().numpy()), dtype=np.intp)

        nowhere = torch.zeros(rows, dtype=torch.bool)
        found, working = self._totally(run, block, lambda: block.only(nowhere))
        return np.full(rows, -1) if found is None else np.where(working.numpy(), found, -1)

    def _no_sums(self) -> list[Tensor]:
        """Return the sums of no rows, in float64."""
        return self.clipper.clipped_sum(torch.zeros(0, device=self.device), 1.0)

    def _blocks(self, sample: Rows) -> Iterator[_Block]:
        """Yield the rows of sampled units, as many as fit in memory.

        Every id takes as many places as it may have rows, and those it does not have are blank: what other ids
        add, rounding included, does not depend on how many rows an id has.
        """
        order, starts = self.units.order, self.units.starts
        if order is None or starts is None:
            for start in range(0, len(sample), self._piece):
                numbers = sample[start : start + self._piece]
                once = torch.ones(len(numbers), dtype=torch.float64)
                yield _Block(numbers, self._rows.take(numbers).to(self.device), once)
            return
        places = np.arange(self.units.n_rows // self.units.n_units)
        at_once = max(1, self._piece // len(places))
        for start in range(0, len(sample), at_once):
            chosen = sample[start : start + at_once]
            present = (places < (starts[chosen + 1] - starts[chosen])[:, None]).ravel()
            numbers = np.zeros(len(present), dtype=np.intp)
            numbers[present] = order[(starts[chosen][:, None] + places).ravel()[present]]
            batch = self._rows.take(numbers[present])
            batch = batch.spread(torch.from_numpy(np.flatnonzero(present)), len(present))
            weights = self.units.weights(numbers)
            yield _Block(
                numbers,
                batch.to(self.device),
                torch.from_numpy(present * (1.0 if weights is None else weights)),
                torch.from_numpy(np.repeat(np.arange(len(chosen)), len(places))),
            )

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def _total_sums(self, block: _Block, clip: float | None, step: int) -> tuple[list[Tensor], Tensor | None]:
        """Return the sums of a block; rows on which the module, the loss or a gradient fails add nothing."""

        def run(block: _Block) -> tuple[list[Tensor], Tensor | None]:
            with RowRandomness(self.random_key, step, block.numbers):
                return self._block_sums(block, clip)

        found, _ = self._totally(run, block, lambda: self._synthetic(len(block.numbers)))
        return (self._no_sums(), self.objective.empty_tally()) if found is None else found

    def _totally(
        self, run: Callable[[_Block], _T], block: _Block, synthetic: Callable[[], _Block]
    ) -> tuple[_T | None, Tensor]:
        """Return what `run` returns for a block without the rows on which it fails, and which rows do not fail.

        Blank rows take the places of rows that fail, so that all others keep theirs: what is computed for a
        row may depend on its place. The module then is as if it had been called once. If synthetic rows fail as
        well, the reason is public and is raised.
        """
        before = ModuleState(self.module)
        found, working = _attempted(run, block), torch.ones(len(block.numbers), dtype=torch.bool)
        if found is None:
            run(synthetic())
            working = _working(run, block)
            before.restore()
            found = _attempted(run, block.only(working))
        return found, working

    def _synthetic(self, count: int) -> _Block:
        """Return made-up rows, of all classes in turn."""
        labels = torch.arange(count) % self.objective.n_classes
        cells = None if self.histogram_shape is None else torch.zeros_like(labels)
        batch = Batch(self._rows.blank(count), labels, cells).to(self.device)
        return _Block(np.arange(count), batch, torch.ones(count, dtype=torch.float64))

    def _block_sums(self, block: _Block, clip: float | None) -> tuple[list[Tensor], Tensor | None]:
        rows = len(block.numbers)
        logits, losses = self._losses(_padded(block.batch))
        tally = self.objective.tally(logits[:rows], block.batch.cells, block.weights)
        missing = [0, len(losses) - rows]
        scales = functional.pad(block.weights, missing).to(losses.device)
        # rows of weight 0 add nothing to any unit
        units = None if block.units is None else functional.pad(block.units, missing)
        return self.clipper.clipped_sum(losses, clip, scale_rows=scales, units=units), tally

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with self.clipper.recording(), self._precision():
            logits = self.module(batch.x)
        self.objective.check(logits, len(batch.labels))
        logits = logits.to(self.parameters[0].dtype)
        return logits, self.objective.losses(logits, batch.labels, batch.cells)


def _attempted(run: Callable[[_Block], _T], block: _Block) -> _T | None:
    """Return what a function returns for a block, or None if some row makes it fail."""
    try:
        return run(block)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a user's module does with a row
        return None


def _working(run: Callable[[_Block], object], block: _Block) -> Tensor:
    """Return which rows of a block that fails as a whole do not fail, by halves; blanks stand for the others."""
    count = len(block.numbers)
    working, failing = torch.zeros(count, dtype=torch.bool), [range(count)]
    while failing:
        part = failing.pop()
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]) if middle else ():
            kept = torch.zeros(count, dtype=torch.bool)
            kept[half.start : half.stop] = True
            if _attempted(run, block.only(kept)) is None:
                failing.append(half)
            else:
                working |= kept
    return working


def _padded(batch: Batch) -> Batch:
    """Return the batch with blank rows at its end, up to a multiple of `ROWS_TOGETHER`."""
    rows = len(batch.labels)
    return batch.spread(slice(rows), -(-rows // ROWS_TOGETHER) * ROWS_TOGETHER)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return functional.cross_entropy(logits, labels, reduction="none")


class Objective:
    """Objectives and histograms of batches.

    Without cells nothing is counted. ``loss(logits, labels)`` returns one number per row and is called on each row
    separately. `temperature` is that of the soft predictions that constraints differentiate; `hard` tells whether
    histograms count predicted classes or predicted probabilities.
    """

    def __init__(
        self,
        n_classes: int,
        n_cells: int | None = None,
        loss: Loss | None = None,
        *,
        temperature: float = 1.0,
        hard: bool = True,
    ) -> None:
        self.n_classes, self.temperature, self.hard = n_classes, temperature, hard
        self.histogram_shape = None if n_cells is None else (n_cells, n_classes)
        self._batch_loss = cross_entropy if loss is None else loss
        self._loss = cross_entropy if loss is None else _by_row(loss)
        self._source: Floats | None = None
        self._costs: Tensor | None = None

    def load(self, table: Floats | None, device: torch.device | str = "cpu") -> None:
        """Take the weights of a step: what predicting class k costs a row of cell q."""
        if table is not self._source:
            kind = torch.float64 if torch.device(device).type == "cpu" else torch.float32
            self._source = table
            self._costs = None if table is None else torch.tensor(table, dtype=kind, device=device)

    def losses(self, logits: Tensor, labels: Tensor, cells: Tensor | None) -> Tensor:
        """Return the objective of each row, **private**.

        A row whose label is no class has the objective 0, and one in no cell has no cost of its predictions.
        """
        known, classes = _inside(labels, self.n_classes)
        losses = self._loss(logits, classes)
        if self._costs is not None and cells is not None:
            counted, places = _inside(cells, len(self._costs))
            soft = functional.softmax(self.temperature * logits, dim=1)
            push = (self._costs.to(soft.dtype)[places] * soft).sum(dim=1)
            losses = losses + torch.where(counted, push, 0.0)
        return torch.where(known, losses, 0.0)

    def tally(self, logits: Tensor, cells: Tensor | None, weights: Tensor | None = None) -> Tensor | None:
        """Return the histogram of predictions over cells and classes in float64, **private**.

        A row adds its weight (1 by default) to one row of the histogram. Probabilities are rounded down to
        multiples of `SOFT_STEP`, so that sums are exact and a row adds at most its weight.
        """
        tally = self.empty_tally()
        if tally is None or cells is None:
            return None
        counted, places = _inside(cells.cpu(), len(tally))
        weights = counted.double() if weights is None else counted * weights
        logits = _finite(logits.detach()).cpu().double()
        if self.hard:
            return tally.index_put_((places, logits.argmax(dim=1)), weights, accumulate=True)
        soft = functional.softmax(self.temperature * logits, dim=1)
        return tally.index_add_(0, places, torch.floor(soft * weights[:, None] / SOFT_STEP) * SOFT_STEP)

    def empty_tally(self) -> Tensor | None:
        """Return the histogram of no rows."""
        shape = self.histogram_shape
        return None if shape is None else torch.zeros(shape, dtype=torch.float64)

    def check(self, logits: Tensor, n_rows: int) -> None:
        """Refuse outputs that are no logits of the declared classes."""
        if not isinstance(logits, Tensor):
            raise InvalidType(f"the module must return a tensor of logits, got {type(logits).__name__}")
        if logits.shape != (n_rows, self.n_classes):
            raise InvalidInput(
                f"the module returns logits of shape {tuple(logits.shape)} for {n_rows} rows, but there are "
                f"{self.n_classes} classes; let its last layer return one logit per class, shape "
                f"{(n_rows, self.n_classes)}"
            )

    @torch.no_grad()
    def try_out(self, like: Tensor) -> None:
        """Refuse a loss in which made-up rows change each other's values, or that is not finite for some class.

        Row by row, the former is another loss.
        """
        labels = torch.arange(self.n_classes, device=like.device)
        logits = made_up((len(labels), len(labels)), like.dtype).to(like.device)
        if rows_mix(self._batch_loss, logits[:2], labels[:2]):
            raise UnsupportedCombination(
                "loss mixes rows: the loss of a row changes when another row of the batch changes, but training "
                "runs each row separately; weigh rows by public numbers, not by counts or means of the batch"
            )
        if not bool(torch.isfinite(self.losses(logits, labels, None)).all()):
            raise InvalidInput(
                "loss is not finite for made-up logits of some classes; check its weights and logarithms"
            )


def _by_row(loss: Loss) -> Loss:
    """Return the loss of each row by itself."""

    def one(logits: Tensor, labels: Tensor) -> Tensor:
        found = loss(logits, labels)
        if not isinstance(found, Tensor) or found.shape != labels.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(
                f"loss must return one number per row, shape {tuple(labels.shape)} for one row, got {shape}; "
                "write it without averaging, such as with reduction='none'"
            )
        return found

    return lambda logits, labels: map_rows(one, logits, labels, what="loss")


def _inside(codes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which codes are in 0..count-1, and the codes with the nearest of these in place of others."""
    return (codes >= 0) & (codes < count), codes.clamp(0, count - 1)


def _finite(logits: Tensor) -> Tensor:
    """Return logits with 0 for what is not a number, and the largest values in place of infinities."""
    return logits.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST).clamp(-_LARGEST, _LARGEST)
