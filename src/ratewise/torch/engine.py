"""Rows of a network, and the part of a step that reads them; implements `ratewise.training.loop.Engine`.

The objective of a row with logits h, label y and cell q is, with weights from *earlier* releases::

    loss(h, y) + sum_k weights[q, k] * softmax(temperature * h)_k

**Sensitivity.** A unit (a row, or all rows of an id) that is replaced by a blank, which adds nothing, moves the
computed gradient by at most ``clip * (1 + slack)`` in L2 norm over all parameters together, where
`TorchEngine.slack` covers rounding (docs/guarantees.md, section 14), and the histogram by at most 1 in L1 norm.

**Total functions.** No content of a row raises an error or changes what other units add. A row whose label is no class
(code -1), an item of a Dataset that fails or has another shape, and a row on which the module or the loss raises an
error add nothing. A row of which loss or gradient is not finite adds nothing to the gradient and one valid count to the
histogram. Every batch contains blanks, and an empty sample is a batch of blanks: what fails on blanks always fails, and
is raised, because its reason is public. Warnings are hidden. Rows leave no trace in the state of module and loss: each
batch begins with the state at the start of the step, and the state after it is that of one call with blanks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ratewise import _validate
from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain
from ratewise.data.table import Units, code_table, row_units
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError, UnsupportedCombination
from ratewise.mechanisms.randomness import KEY_BYTES, SecureGenerator
from ratewise.mechanisms.sampling import Rows
from ratewise.models.additive import SOFT_STEP
from ratewise.torch.clipping import PerRowClipper, clipping_slack
from ratewise.torch.gradients import BLOCK_SLACK, slices, wide
from ratewise.torch.isolation import (
    RowRandomness,
    State,
    check_module,
    draws_of_items,
    generator_in,
    map_rows,
    quietly,
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
ROWS_TOGETHER = 4
"""Batches are padded with blank rows to a multiple of this: libraries for matrix products handle one to three last rows
by other kernels, which round differently, and a row's numbers would depend on how many others there are."""
_LOOKED_AT = 5  # items of a Dataset whose shape and type are looked at
_EVALUATION = -1  # the step of random numbers outside of training
_LARGEST = 1e30  # logits beyond are cut off in the histogram, where differences of theirs are formed

# ------------------------------------------------------------------------------------------- rows


class Batch(NamedTuple):
    """Some rows as tensors, **private**."""

    x: Tensor
    labels: Tensor
    cells: Tensor | None

    def each(self, change: Callable[[Tensor, int], Tensor]) -> Batch:
        """Return the batch with every part changed; the second argument is what a blank row has there."""
        parts = zip(self, (0, -1, -1), strict=True)
        return Batch(*(None if part is None else change(part, blank) for part, blank in parts))  # type: ignore[arg-type]

    def only(self, kept: Tensor) -> Batch:
        """Return the batch with blank rows, which add nothing, in the place of rows that are not kept."""
        out = (~kept).nonzero().squeeze(1)
        return self.each(lambda part, blank: part.index_fill(0, out.to(part.device), blank))

    def spread(self, places: Any, size: int) -> Batch:
        """Return so many rows with these at the places, and blank ones elsewhere."""

        def change(part: Tensor, blank: int) -> Tensor:
            whole = part.new_full((size, *part.shape[1:]), blank)
            whole[places] = part
            return whole

        return self.each(change)

    def padded(self) -> Batch:
        """Return the batch with blank rows at its end, one at least, up to a multiple of `ROWS_TOGETHER`."""
        rows = len(self.labels)
        return self.spread(slice(rows), (rows // ROWS_TOGETHER + 1) * ROWS_TOGETHER)


class RowSource(Protocol):
    """Rows by number; `n_rows`, of all processes together, is public."""

    n_rows: int

    def take(self, rows: Rows) -> Batch:
        """Return the rows of these numbers, **private**."""

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row: to try a module out without reading rows."""


class TensorRows:
    """Rows in memory, or mapped into it as in ``TensorRows(np.load("x.npy", mmap_mode="r"), ...)``.

    Parameters
    ----------
    x : tensor or array of shape (n, ...)
        Numbers of 64 bits are handed out with 32, unless the tensor itself has 64.
    labels, cells : arrays or tensors
        The class of each row and, if something is counted, its cell, as whole numbers from 0. A row whose label is
        no class adds nothing to any sum.
    """

    def __init__(self, x: Any, labels: Any, cells: Any = None) -> None:
        given = {"labels": labels} if cells is None else {"labels": labels, "cells": cells}
        for name, values in {"x": x, **given}.items():
            if not hasattr(values, "__len__") or getattr(values, "shape", None) == ():
                raise InvalidType(f"{name} must hold one entry per row, got {type(values).__name__}")
            if len(values) != len(x):
                raise InvalidInput(f"{name} must be one number per row: {len(values)} for {len(x)} rows")
        codes = {
            name: values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
            for name, values in given.items()
        }
        for name, array in codes.items():  # the content is not read
            if array.dtype.kind not in "biu":
                raise InvalidType(
                    f"{name} must be whole numbers from 0, got {array.dtype}; translate them, with "
                    "ratewise.data.table.code_table"
                )
        self._x, self._labels, self._cells = x, codes["labels"], codes.get("cells")
        self.n_rows = len(self._labels)

    def take(self, rows: Rows) -> Batch:
        """Return the rows of these numbers."""
        x = self._x[torch.from_numpy(rows)] if isinstance(self._x, Tensor) else _tensor(self._x[rows])
        cells = None if self._cells is None else _codes(self._cells.take(rows))
        return Batch(x, _codes(self._labels.take(rows)), cells)

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        x = self._x[:0] if isinstance(self._x, Tensor) else _tensor(self._x[:0])
        return made_up((count, *x.shape[1:]), x.dtype)


class DatasetRows:
    """Rows of a map-style ``torch.utils.data.Dataset`` whose items are ``(x, label, groups)``.

    `groups` is a mapping of column to value, or a bare value if there is one column; items may be ``(x, label)`` if
    no constraint reads a column. The domain has the declared classes and group values. The shape and the type of the
    inputs, those of most items, are public; an item of another shape is a row whose label is no class.
    """

    def __init__(self, dataset: Any, domain: Domain, constraints: CompiledConstraints | None = None) -> None:
        refuse_loader(dataset)
        wanted = (hasattr(dataset, "__len__"), hasattr(dataset, "__getitem__"))
        if not all(wanted) or isinstance(dataset, Mapping):
            raise InvalidType(
                f"data must be a Dataset with a length and items by number, got {type(dataset).__name__}; "
                "an iterable one cannot be sampled: each row must be drawn independently"
            )
        self._domain = _validate.instance(Domain, domain=domain)
        self._dataset, self._constraints = dataset, constraints
        self._columns, self.n_rows = tuple(domain.columns), len(dataset)
        if self.n_rows == 0:
            raise InvalidInput("data holds no rows")
        own = generator_in(dataset)
        if own:
            raise UnsupportedCombination(
                f"data has a random generator of its own ({own}), so that what is drawn for a row would depend "
                "on which rows were read before; draw from the global generators of Python, NumPy or PyTorch, "
                "which are set for each row"
            )
        self._shape, self._dtype = self._form()

    def _form(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the type that most of a few items have: public, and not what a single row decides."""
        found: Counter[tuple[tuple[int, ...], torch.dtype]] = Counter()
        problems: list[BaseException] = []
        looked_at = sorted(set(np.linspace(0, self.n_rows - 1, _LOOKED_AT).astype(int).tolist()))
        with quietly(), draws_of_items(looked_at) as rows:
            for row in rows:
                try:
                    x = _narrow(torch.as_tensor(self._parts(self._dataset[row])[0]))
                    found[tuple(x.shape), x.dtype] += 1
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as problem:  # as in `_item`
                    problems.append(problem)
        if not found:
            raise problems[0]
        return found.most_common(1)[0][0]

    def take(self, rows: Rows) -> Batch:
        """Return the rows of these numbers."""
        x = torch.zeros(len(rows), *self._shape, dtype=self._dtype)
        with draws_of_items(rows.tolist()) as each:
            items = [self._item(row, place) for row, place in zip(each, x, strict=True)]
        known = self._domain if self._constraints is None else self._constraints
        columns = {name: [groups[name] for _, groups in items] for name in self._columns if known is not self._domain}
        labels, cells = code_table(known, [label for label, _ in items], columns)
        return Batch(x, _codes(labels), None if cells is None else _codes(cells))

    def blank(self, count: int) -> Tensor:
        """Return made-up inputs in the shape and type of a row."""
        return made_up((count, *self._shape), self._dtype)

    def _item(self, row: int, place: Tensor) -> tuple[Any, Mapping[str, Any]]:
        """Return label and groups of a row, and write its inputs into their place.

        An item that fails, or that has another shape, is a row whose label is no class.
        """
        try:
            x, label, groups = self._parts(self._dataset[row])
            inputs = _narrow(torch.as_tensor(x))
            if tuple(inputs.shape) == self._shape and inputs.is_complex() <= self._dtype.is_complex:
                columns = {name: _plain(groups[name]) for name in self._columns}
                place.copy_(inputs.detach().as_subclass(Tensor).to_dense().to("cpu", self._dtype))
                return _plain(label), columns
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: S110 - whatever a data set does with a row, in its memory or in Rust
            pass
        return None, dict.fromkeys(self._columns)

    def _parts(self, item: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise InvalidType(
                f"items of data must be (x, label, groups), got {type(item).__name__}"
                + (f" of {len(item)}" if isinstance(item, tuple | list) else "")
            )
        columns = self._columns
        if not columns:
            return item[0], item[1], {}
        if len(item) == 2:
            raise InvalidInput(
                "data has no groups: its items are (x, label), but the constraints read "
                f"{', '.join(map(repr, columns))}; let items be (x, label, {{column: value}})"
            )
        groups = item[2] if isinstance(item[2], Mapping) or len(columns) > 1 else {columns[0]: item[2]}
        if not isinstance(groups, Mapping):
            raise InvalidType(
                "the groups of an item must map columns to values, for there are several columns, got "
                f"{type(groups).__name__}"
            )
        absent = [name for name in columns if name not in groups]
        if absent:
            raise InvalidInput(f"data has no group column {absent[0]!r}, which the constraints read")
        return item[0], item[1], groups


def refuse_loader(data: Any) -> None:
    """Refuse a loader where rows are wanted: its batches are no Poisson sample."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise InvalidType(
            "data is a DataLoader, which is batched already; privacy rests on each row being drawn "
            "independently: pass its dataset (loader.dataset) instead"
        )


def made_up(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """Return numbers of no meaning: spread over [0, 1) for floats, zeros for whole numbers."""
    if not dtype.is_floating_point:
        return torch.zeros(*shape, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*shape, generator=generator, dtype=torch.float32).to(dtype)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise InvalidType(f"X must hold numbers, got {array.dtype}")
    with np.errstate(all="ignore"):  # numbers beyond the range become infinite without a warning
        array = np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else None)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float64, torch.float16) else x


def _codes(codes: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


# -------------------------------------------------------------------------------------- objective


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
        self.n_classes, self.temperature, self.hard, self.loss = n_classes, temperature, hard, loss
        self.histogram_shape = None if n_cells is None else (n_cells, n_classes)
        self._batch_loss = partial(functional.cross_entropy, reduction="none") if loss is None else loss
        self._loss = self._batch_loss if loss is None else _by_row(loss)  # PyTorch's own keeps rows apart

    def losses(
        self, logits: Tensor, labels: Tensor, cells: Tensor | None = None, costs: Tensor | None = None
    ) -> Tensor:
        """Return the objective of each row, **private**: 0 if its label is no class; `costs` are by cell and class."""
        known, classes = _inside(labels, self.n_classes)
        losses = self._loss(logits, classes)
        if costs is not None and cells is not None:
            counted, places = _inside(cells, len(costs))
            soft = functional.softmax(self.temperature * logits, dim=1)
            push = (costs.to(soft.dtype)[places] * soft).sum(dim=1)
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
        """Refuse a loss in which made-up rows change each other's values, or that is not finite for some class."""
        labels = torch.arange(self.n_classes, device=like.device)
        logits = made_up((len(labels), len(labels)), like.dtype).to(like.device)
        if rows_mix(self._batch_loss, logits[:2], labels[:2]):
            raise UnsupportedCombination(
                "loss mixes rows: the loss of a row changes when another row of the batch changes, but training "
                "runs each row separately; weigh rows by public numbers, not by counts or means of the batch"
            )
        if not bool(torch.isfinite(self.losses(logits, labels)).all()):
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


# ----------------------------------------------------------------------------------------- engine


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
        device: torch.device | str | None = None,
        autocast: bool = False,
    ) -> None:
        if objective.histogram_shape is not None and rows.take(np.zeros(0, dtype=np.intp)).cells is None:
            raise InvalidInput(
                "rows have no groups: the constraints count predictions by cell, and the rows come without "
                "cells; give them, such as TensorRows(x, *ratewise.data.table.code_table(constraints, labels, columns))"
            )
        self.objective, self._rows, self._autocast = objective, rows, autocast
        self.units = row_units(rows.n_rows) if units is None else units
        self.owned = range(self.units.n_units)
        check_module(module)
        self.device = next(module.parameters()).device if device is None else torch.device(device)
        self.module = module.to(self.device)
        self.clipper = PerRowClipper(self.module)
        self.parameters = list(self.clipper.parameters)
        self.n_parameters = sum(parameter.numel() for parameter in self.parameters)
        piece = PHYSICAL_BATCH if physical_batch is None else physical_batch
        self._piece = _validate.count(physical_batch=piece)
        self.random_key = SecureGenerator().bytes(KEY_BYTES)
        self._calls, self._stateful = 0, True
        self._costs: Tensor | None = None  # of a step: what predicting class k costs a row of cell q

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
            with torch.random.fork_rng(devices=[]), self._untouched():
                state = State(self.module, self.objective.loss)
                self._block_sums(block, None)
                self._stateful = state.changed()
                refuse_uncontrolled(
                    self.module, lambda: torch.cat([p.ravel() for p in self._block_sums(block, 1.0)[0]])
                )
                refuse_mixing(self.module, batch.x)
                if self.objective.histogram_shape is not None:  # the certificate counts predictions
                    self.module.eval()
                    with torch.no_grad():
                        self._coded(block, lambda scores: scores.argmax(1))
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
        kind = torch.float64 if self.device.type == "cpu" else torch.float32
        self._costs = None if weights is None else torch.tensor(weights, dtype=kind, device=self.device)
        self.module.train()
        sums: list[Tensor] = []
        tally = self.objective.empty_tally()
        with quietly():
            for block in self._blocks(sample, step):
                more, counted = self._total_sums(block, bound, step)
                sums = [wide(total).add_(part) for total, part in zip(sums, more, strict=True)] if sums else more
                if tally is not None and counted is not None:
                    tally += counted
            if self._stateful:  # what the module counts are steps, not batches, whose number is private
                with RowRandomness(self.random_key, step, ()):
                    self._losses(self._synthetic(0).batch.padded())
        return NetworkSums(sums, None if tally is None else tally.numpy())

    def counts(self, parameters: Any = None) -> tuple[Floats, Floats]:
        """Return cells by predicted class (Q, K), and labels by whether predicted correctly (K, 2); **private**.

        The module is in evaluation mode and runs on each row separately. A unit adds a vector of L1 norm at
        most 1 to either table. An array of K numbers (`shifted`) is added to the logits.
        """
        offset = parameters if isinstance(parameters, np.ndarray) else 0.0
        n_classes = self.objective.n_classes
        return self._code_counts(lambda scores: (scores + offset).argmax(1), n_classes, hits=True)

    def margin_counts(self, parameters: Any, towards: int) -> tuple[Floats, Floats]:  # noqa: ARG002 - as in `counts`
        """Return cells and labels by the code of the margin over all units; **private**."""
        width = margin_code_count(self.objective.n_classes)
        return self._code_counts(lambda scores: margin_codes(scores, towards), width, hits=False)

    def shifted(self, parameters: Any, towards: int, amount: float) -> Floats:  # noqa: ARG002 - as in `counts`
        """Return what is added to the logits, for `counts`."""
        return np.where(np.arange(self.objective.n_classes) == towards, amount, 0.0)

    def _code_counts(self, codes: Callable[[Floats], Any], width: int, *, hits: bool) -> tuple[Floats, Floats]:
        n_classes, n_cells = self.objective.n_classes, (self.objective.histogram_shape or (1, 0))[0]
        by_cell, outcomes = np.zeros((n_cells, width)), np.zeros((n_classes, 2 if hits else width))
        self.module.eval()
        with torch.no_grad(), quietly():
            for block in self._blocks(np.asarray(self.owned, dtype=np.intp), _EVALUATION):
                code, labels = self._coded(block, codes), block.batch.labels.cpu().numpy()
                known = (code >= 0) & (labels >= 0) & (labels < n_classes)
                code, added = np.where(known, code, 0), known * block.weights.numpy()
                outcome = (code == labels).astype(int) if hits else code
                np.add.at(outcomes, (np.where(known, labels, 0), outcome), added)
                if block.batch.cells is not None:
                    inside, cells = _inside(block.batch.cells.cpu(), n_cells)
                    np.add.at(by_cell, (cells.numpy(), code), added * inside.numpy())
        return by_cell, outcomes

    def _coded(self, block: _Block, codes: Callable[[Floats], Any]) -> npt.NDArray[np.intp]:
        """Return the code of each row's logits; -1 where the module fails."""
        rows = len(block.numbers)

        def run(batch: Batch) -> npt.NDArray[np.intp]:
            padded = batch.padded()
            # a row that fails in some draws fails in all attempts
            draws = RowRandomness(self.random_key, _EVALUATION, block.numbers)
            with draws, self.clipper.recording() as module, self._precision():
                logits = module(padded.x)
            self.objective.check(logits, len(padded.labels))
            return np.asarray(codes(_finite(logits[:rows]).double().cpu().numpy()), dtype=np.intp)

        found, working = self._totally(run, block.batch)
        return np.full(rows, -1) if found is None else np.where(working.numpy(), found, -1)

    def _no_sums(self) -> list[Tensor]:
        """Return the sums of no rows, in float64."""
        return self.clipper.clipped_sum(torch.zeros(0, device=self.device), 1.0)

    def _blocks(self, sample: Rows, step: int) -> Iterator[_Block]:
        """Yield the rows of sampled units, as many as fit in memory; an empty sample is one block without rows.

        Every id takes as many places as it may have rows, and those it does not have are blank: what other ids
        add, rounding included, does not depend on how many rows an id has.
        """
        order, starts = self.units.order, self.units.starts
        places = np.arange(1 if order is None else self.units.n_rows // self.units.n_units)
        for part in slices(max(1, len(sample)), max(1, self._piece // len(places))):
            chosen = sample[part]
            if order is None or starts is None:
                once = torch.ones(len(chosen), dtype=torch.float64)
                yield _Block(chosen, self._take(chosen, step), once)
                continue
            present = (places < (starts[chosen + 1] - starts[chosen])[:, None]).ravel()
            numbers = np.zeros(len(present), dtype=np.intp)
            numbers[present] = order[(starts[chosen][:, None] + places).ravel()[present]]
            batch = self._take(numbers[present], step).spread(torch.from_numpy(present).to(self.device), len(present))
            row_weights = self.units.weights(numbers)
            weights = torch.from_numpy(present * (1.0 if row_weights is None else row_weights))
            yield _Block(numbers, batch, weights, torch.arange(len(chosen)).repeat_interleave(len(places)))

    def _take(self, numbers: Rows, step: int) -> Batch:
        with RowRandomness(self.random_key, step, numbers, use=1):
            return self._rows.take(numbers).each(lambda part, _: part.as_subclass(Tensor).to(self.device))

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def _total_sums(self, block: _Block, clip: float | None, step: int) -> tuple[list[Tensor], Tensor | None]:
        """Return the sums of a block; rows on which the module, the loss or a gradient fails add nothing."""

        def run(batch: Batch) -> tuple[list[Tensor], Tensor | None]:
            with RowRandomness(self.random_key, step, block.numbers):
                return self._block_sums(block._replace(batch=batch), clip)

        found, _ = self._totally(run, block.batch)
        return (self._no_sums(), self.objective.empty_tally()) if found is None else found

    def _totally(self, run: Callable[[Batch], _T], batch: Batch) -> tuple[_T | None, Tensor]:
        """Return what `run` returns for a batch without the rows on which it fails, and which rows do not fail.

        Blank rows take the places of rows that fail, so that all others keep theirs: what is computed for a
        row may depend on its place. If blanks fail, the reason is public and is raised.
        """
        rows = len(batch.labels)
        found, working = self._attempted(run, batch), torch.ones(rows, dtype=torch.bool)
        if found is None:
            with self._untouched():
                run(batch.only(~working))
            working = self._working(run, batch, range(rows))
            found = self._attempted(run, batch.only(working))
        return found, working

    def _attempted(self, run: Callable[[Batch], _T], batch: Batch) -> _T | None:
        """Return what a function returns for a batch, or None if some row makes it fail; leave no trace of it."""
        try:
            with self._untouched():
                return run(batch)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever a user's module does with a row
            return None

    def _working(self, run: Callable[[Batch], object], batch: Batch, rows: range) -> Tensor:
        """Return which of these rows do not fail, by halves, with blanks in the place of all others."""
        kept = torch.zeros(len(batch.labels), dtype=torch.bool)
        kept[rows.start : rows.stop] = True
        if self._attempted(run, batch.only(kept)) is not None:
            return kept
        middle = len(rows) // 2
        if middle == 0:
            return torch.zeros_like(kept)
        return self._working(run, batch, rows[:middle]) | self._working(run, batch, rows[middle:])

    def _untouched(self) -> AbstractContextManager[None]:
        return untouched_state(self.module, self.objective.loss)

    def _synthetic(self, count: int) -> _Block:
        """Return made-up rows, of all classes in turn."""
        labels = torch.arange(count) % self.objective.n_classes
        cells = None if self.objective.histogram_shape is None else torch.zeros_like(labels)
        batch = Batch(self._rows.blank(count), labels, cells).each(lambda part, _: part.to(self.device))
        return _Block(np.arange(count), batch, torch.ones(count, dtype=torch.float64))

    def _block_sums(self, block: _Block, clip: float | None) -> tuple[list[Tensor], Tensor | None]:
        rows = len(block.numbers)
        logits, losses = self._losses(block.batch.padded())
        tally = self.objective.tally(logits[:rows], block.batch.cells, block.weights)
        blanks = len(losses) - rows
        scales = functional.pad(block.weights, [0, blanks]).to(losses.device)
        # rows of weight 0 add nothing to any unit
        units = None if block.units is None else functional.pad(block.units, [0, blanks])
        return self.clipper.clipped_sum(losses, clip, scale_rows=scales, units=units, padding=blanks), tally

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with self.clipper.recording() as module, self._precision():
            logits = module(batch.x)
        self.objective.check(logits, len(batch.labels))
        logits = logits.to(self.parameters[0].dtype)
        return logits, self.objective.losses(logits, batch.labels, batch.cells, self._costs)
