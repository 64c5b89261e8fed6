"""What a row adds to a step: its objective, and its entry in the histogram of predictions.

With logits h(x), the label y and the cell q of a row, the objective of the row is::

    loss_weight * loss(h, y) + sum_k table[q, k] * softmax(temperature * h)_k

the same as in the linear engine, so one table of cells by classes stands for all constraints and one forward
pass serves loss and histogram. A row adds a non-negative vector that sums to 1 to one row of the histogram:
its L1 and L2 sensitivity are 1 when a row is added or removed. Both results are **private**.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.plan import Plan

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return functional.cross_entropy(logits, labels, reduction="none")


class Objective:
    """Objectives and histograms of batches.

    Parameters
    ----------
    plan : Plan
        Its `temperature` and `rates` are used.
    n_classes : int
    n_cells : int or None
        None: nothing is counted.
    loss : callable, optional
        ``loss(logits, labels)`` returns one number per row; cross-entropy unless told.
    """

    def __init__(self, plan: Plan, n_classes: int, n_cells: int | None, loss: Loss | None = None) -> None:
        self.n_classes = n_classes
        self.histogram_shape = None if n_cells is None else (n_cells, n_classes)
        self._loss = cross_entropy if loss is None else loss
        self._temperature = plan.temperature
        self._hard = plan.rates == "hard"
        self._source: npt.NDArray[np.float64] | None = None
        self._costs: Tensor | None = None
        self._loss_weight = 1.0

    def load(
        self, table: npt.NDArray[np.float64] | None, loss_weight: float, device: torch.device | str = "cpu"
    ) -> None:
        """Take the costs of a step: what predicting class k costs a row of cell q."""
        self._loss_weight = loss_weight
        if table is self._source:
            return
        self._source, self._costs = table, None
        if table is not None:
            wide = torch.device(device).type == "cpu"
            self._costs = torch.tensor(table, dtype=torch.float64 if wide else torch.float32, device=device)

    def losses(self, logits: Tensor, labels: Tensor, cells: Tensor | None) -> Tensor:
        """Return the objective of each row, **private**."""
        losses = self._row_losses(logits, labels)
        if self._costs is None or cells is None:
            return losses
        soft = functional.softmax(self._temperature * logits, dim=1)
        push = (self._costs.to(soft.dtype)[cells] * soft).sum(dim=1)
        return self._loss_weight * losses + push

    def tally(self, logits: Tensor, cells: Tensor | None) -> Tensor | None:
        """Return the histogram of predictions over cells and classes, **private**."""
        if self.histogram_shape is None or cells is None:
            return None
        n_cells, n_classes = self.histogram_shape
        logits = logits.detach()
        if self._hard:
            places = cells * n_classes + logits.argmax(dim=1)
            return torch.bincount(places, minlength=n_cells * n_classes).reshape(n_cells, n_classes)
        soft = functional.softmax(self._temperature * logits.cpu().double(), dim=1)
        return torch.zeros(n_cells, n_classes, dtype=torch.float64).index_add_(0, cells.cpu(), soft)

    def empty_tally(self) -> Tensor | None:
        """Return the histogram of no rows."""
        if self.histogram_shape is None:
            return None
        return torch.zeros(self.histogram_shape, dtype=torch.int64 if self._hard else torch.float64)

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

    def _row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = self._loss(logits, labels)
        if not isinstance(losses, Tensor) or losses.shape != labels.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidInput(
                f"loss must return one number per row, shape {tuple(labels.shape)}, got {shape}; "
                "write it without averaging, such as with reduction='none'"
            )
        return losses
