"""Per-row weight gradients of convolutions in one, two or three dimensions.

A convolution is a linear layer on patches: with A the patches (positions x inputs of one channel group) and
B the output gradients (positions x outputs of the group), a row's weight gradient is ``B' A`` per group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ratewise.torch.shares import Dense, Share, chunked_squared_norms, widen, widest

# A kept per-row gradient may be this much larger than the input and output gradient that it replaces:
# it spares the layer a second weight gradient.
_WORTH_KEEPING = 1.25


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks over its input, which is zero-padded alike on both sides."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def _zeros(self) -> list[int]:
        return [0] * len(self.stride)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        return torch.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, False, self._zeros, self.groups
        )

    def input_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the input."""
        return self._backward(gradient, x, weight, [True, False, False])[0]

    def weight_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the weight, summed over rows."""
        return self._backward(gradient, x, weight, [False, True, False])[1]

    def _backward(self, gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, self.stride, self.padding, self.dilation, False,
            self._zeros, self.groups, mask,
        )  # fmt: skip
        return parts

    def patches(self, x: Tensor, kernel: torch.Size, positions: torch.Size) -> Tensor:
        """Return the patches, (rows, groups, inputs x kernel, positions); a copy unless the kernel is 1."""
        pads = [pad for pad in reversed(self.padding) for _ in range(2)]
        x = functional.pad(x, pads) if any(pads) else x.contiguous()
        steps = x.stride()[2:]
        view = x.as_strided(
            (x.shape[0], x.shape[1], *kernel, *positions),
            (
                *x.stride()[:2],
                *(step * hop for step, hop in zip(steps, self.dilation, strict=True)),
                *(step * hop for step, hop in zip(steps, self.stride, strict=True)),
            ),
        )
        inputs = x.shape[1] // self.groups * math.prod(kernel)
        return view.reshape(x.shape[0], self.groups, inputs, math.prod(positions))


class Convolved(Share):
    """One call of a convolution: its input and its output gradient."""

    def __init__(self, x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> None:
        self.x, self.gradient, self.weight, self.geometry = x, gradient, weight, geometry
        self.rows, self.shape = x.shape[0], weight.shape

    def per_row(self, rows: slice) -> Tensor:
        """Return one weight gradient per row."""
        x, gradient = widen(self.x[rows]), widen(self.gradient[rows])
        patches = self.geometry.patches(x, self.shape[2:], gradient.shape[2:])
        return (self._grouped(gradient) @ patches.transpose(2, 3)).reshape(-1, *self.shape)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one ordinary weight gradient, with the output gradients weighted row by row."""
        gradient = widen(self.gradient)
        weights = weights.to(gradient.dtype).reshape(-1, *[1] * (gradient.dim() - 1))
        return self.geometry.weight_gradient(gradient * weights, widen(self.x), self.weight)

    def squared_norms(self) -> Tensor:
        """Return norms by whichever way is cheaper."""
        positions = math.prod(self.gradient.shape[2:])
        outputs, inputs = self.shape[0] // self.geometry.groups, math.prod(self.shape[1:])
        if 2 * positions * (outputs + inputs) <= outputs * inputs:
            return self._ghost()
        return chunked_squared_norms([self])

    def _ghost(self) -> Tensor:
        gradient = self._grouped(widest(self.gradient))
        patches = self.geometry.patches(widest(self.x), self.shape[2:], self.gradient.shape[2:])
        return ((gradient.mT @ gradient) * (patches.mT @ patches)).sum((1, 2, 3))

    def _grouped(self, gradient: Tensor) -> Tensor:
        return gradient.reshape(
            gradient.shape[0], self.geometry.groups, self.shape[0] // self.geometry.groups, -1
        )


def convolved(x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> Share:
    """Return the share of one call: per-row gradients if they are no larger than what they replace."""
    share = Convolved(x, gradient, weight, geometry)
    if weight.numel() * x.shape[0] <= _WORTH_KEEPING * (x.numel() + gradient.numel()):
        return Dense(share.per_row(slice(None)))
    return share
