"""Inputs cut off at public bounds and moved to [-1, 1]: a rule without data, kept inside the network."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ratewise.exceptions import InvalidInput


class Bounded(nn.Module):
    """Cut inputs off at public bounds and scale them to [-1, 1]; an input without room becomes 0.

    Parameters
    ----------
    bounds : pair (lower, upper)
        Each a number, or an array in the shape of one row (or one that broadcasts to it).
    shape : tuple
        Shape of one row.

    Examples
    --------
    >>> Bounded((0, 255), (3,))(torch.tensor([[0, 51, 300]]))
    tensor([[-1.0000, -0.6000,  1.0000]])
    """

    lower: Tensor
    upper: Tensor
    factor: Tensor

    def __init__(self, bounds: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        lower, upper = _read(bounds, shape)
        self.register_buffer("lower", lower, persistent=True)
        self.register_buffer("upper", upper, persistent=True)
        width = upper - lower
        self.register_buffer("factor", torch.where(width > 0, 2.0 / width, torch.zeros_like(width)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled inputs."""
        x = torch.minimum(torch.maximum(x.to(self.lower.dtype), self.lower), self.upper)
        return (x - self.lower) * self.factor - (self.factor > 0).to(x.dtype)


def _read(bounds: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    try:
        lower, upper = (np.asarray(bound, dtype=np.float32) for bound in bounds)
        np.broadcast_to(lower, shape)
        np.broadcast_to(upper, shape)
        fine = bool(np.isfinite(lower).all() and np.isfinite(upper).all() and np.all(lower <= upper))
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise InvalidInput(
            f"feature_bounds must be a pair (lower, upper), each a finite number or one per entry of a row "
            f"(shape {shape}), lower at most upper, got {reprlib.repr(bounds)}"
        )
    both = np.broadcast_arrays(lower, upper)
    return torch.tensor(both[0]), torch.tensor(both[1])
