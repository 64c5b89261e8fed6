"""Per-row weight gradients of convolutions in one, two or three dimensions.

A convolution is a linear layer on patches: with A the patches (positions x inputs of one channel group) and
B the output gradients (positions x outputs of the group), a row's weight gradient is ``B' A`` per group.

Patches are cut with the channels last, where they are whole runs of memory. A Gram matrix of patches needs no
patches at all: it adds up shifted copies of the Gram matrix of pixels, which is smaller by the kernel's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ratewise.torch.shares import (
    CHUNK,
    Dense,
    Share,
    chunked_squared_norms,
    direct_cost,
    ghost_cost,
    is_worth_keeping,
    widen,
    widest,
)

# Below this many positions a weight gradient is quicker as one plain matrix product.
_FEW_POSITIONS = 16


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
        """Return patches of shape (rows, groups, positions, kernel x channels of the group)."""
        x = self._padded_channels_last(x)
        row, *steps, _ = x.stride()
        channels = x.shape[-1] // self.groups
        view = x.as_strided(
            (x.shape[0], self.groups, *positions, *kernel, channels),
            (
                row,
                channels,
                *(step * hop for step, hop in zip(steps, self.stride, strict=True)),
                *(step * hop for step, hop in zip(steps, self.dilation, strict=True)),
                1,
            ),
        )
        return view.reshape(x.shape[0], self.groups, math.prod(positions), -1)

    def _padded_channels_last(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        if not any(self.padding):
            return x.contiguous()
        sizes = [size + 2 * pad for size, pad in zip(x.shape[1:-1], self.padding, strict=True)]
        padded = x.new_zeros(x.shape[0], *sizes, x.shape[-1])
        inner = tuple(slice(pad, pad + size) for pad, size in zip(self.padding, x.shape[1:-1], strict=True))
        padded[(slice(None), *inner)] = x
        return padded

    def patch_gram(self, x: Tensor, kernel: torch.Size, positions: torch.Size) -> Tensor:
        """Return inner products of all pairs of patches, (rows, groups, positions, positions).

        With the pixels' products ``G[i, j]``, the products of the patches at u and v are the sum over the
        kernel's offsets k of ``G[u + k, v + k]``; offsets are added up one axis after the other.
        """
        axes = len(kernel)
        pixels = x.reshape(x.shape[0] * self.groups, -1, math.prod(x.shape[2:]))
        gram = (pixels.mT @ pixels).reshape(-1, *x.shape[2:], *x.shape[2:])
        pads = [pad for pad in reversed(self.padding) for _ in range(2)]
        gram = functional.pad(gram, pads + pads) if any(pads) else gram
        for axis in range(axes):
            total: Tensor | None = None
            for offset in range(kernel[axis]):
                at = [slice(None)] * gram.dim()
                at[1 + axis] = at[1 + axes + axis] = self._slice(axis, offset, positions[axis])
                shifted = gram[tuple(at)]
                total = shifted.clone() if total is None else total.add_(shifted)
            assert total is not None  # noqa: S101 - kernels are not empty
            gram = total
        count = math.prod(positions)
        return gram.reshape(x.shape[0], self.groups, count, count)

    def _slice(self, axis: int, offset: int, positions: int) -> slice:
        start = offset * self.dilation[axis]
        return slice(start, start + (positions - 1) * self.stride[axis] + 1, self.stride[axis])


class Convolved(Share):
    """One call of a convolution: its input and its output gradient."""

    def __init__(self, x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> None:
        self.x, self.gradient, self.weight, self.geometry = x, gradient, weight, geometry
        self.rows, self.shape = x.shape[0], weight.shape
        self._positions = gradient.shape[2:]

    def per_row(self, rows: slice) -> Tensor:
        """Return one weight gradient per row."""
        return _channels_first(self.channels_last(rows), self.shape)

    def channels_last(self, rows: slice) -> Tensor:
        """Return one weight gradient per row, (rows, groups, outputs of the group, kernel x channels)."""
        gradient = self._grouped(widen(self.gradient[rows]))
        return gradient @ self.geometry.patches(widen(self.x[rows]), self.shape[2:], self._positions)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one ordinary weight gradient, with the output gradients weighted row by row."""
        gradient, x = widen(self.gradient), widen(self.x)
        gradient = gradient * weights.to(gradient.dtype).reshape(-1, *[1] * (gradient.dim() - 1))
        if self.geometry.groups > 1 or math.prod(self._positions) >= _FEW_POSITIONS:
            return self.geometry.weight_gradient(gradient, x, self.weight)
        patches = self.geometry.patches(x, self.shape[2:], self._positions).flatten(0, 2)
        product = gradient.movedim(1, -1).reshape(-1, self.shape[0]).T @ patches
        return _channels_first(product[None], self.shape)[0].contiguous()

    def squared_norms(self) -> Tensor:
        """Return norms by the cheapest way: the gradient itself, Gram of patches or Gram of pixels."""
        groups, positions = self.geometry.groups, math.prod(self._positions)
        outputs, inputs = self.shape[0] // groups, math.prod(self.shape[1:])
        pixels = math.prod(self.x.shape[2:])
        ghost = ghost_cost(positions, outputs)
        costs: dict[Callable[[], Tensor], float] = {
            self._direct: direct_cost(positions, outputs, inputs),
            self._by_patches: ghost + ghost_cost(positions, inputs) + 50.0 * positions * inputs,
            self._by_pixels: ghost + ghost_cost(pixels, self.shape[1]) + 60.0 * pixels**2,
        }
        return min(costs, key=lambda way: costs[way])()

    def _direct(self) -> Tensor:
        return chunked_squared_norms([self])

    def _by_patches(self) -> Tensor:
        def gram(x: Tensor) -> Tensor:
            patches = self.geometry.patches(x, self.shape[2:], self._positions)
            return patches @ patches.mT

        return self._by_gram(gram, self.x[0].numel() // self.geometry.groups * math.prod(self.shape[2:]))

    def _by_pixels(self) -> Tensor:
        def gram(x: Tensor) -> Tensor:
            return self.geometry.patch_gram(x, self.shape[2:], self._positions)

        return self._by_gram(gram, math.prod(self.x.shape[2:]) ** 2)

    def _by_gram(self, gram: Callable[[Tensor], Tensor], size: int) -> Tensor:
        step = max(1, CHUNK // (self.geometry.groups * size))
        pieces = []
        for start in range(0, self.rows, step):
            back = self._grouped(widest(self.gradient[start : start + step]))
            pieces.append(((back.mT @ back) * gram(widest(self.x[start : start + step]))).sum((1, 2, 3)))
        return torch.cat(pieces)

    def _grouped(self, gradient: Tensor) -> Tensor:
        groups = self.geometry.groups
        return gradient.reshape(gradient.shape[0], groups, self.shape[0] // groups, -1)


class ConvolvedDense(Dense):
    """Per-row weight gradients as they were formed, with the channels last."""

    def __init__(self, gradients: Tensor, shape: torch.Size) -> None:
        super().__init__(gradients)
        self.shape = shape

    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows."""
        return _channels_first(self.gradients[rows], self.shape)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product, in the weight's own order."""
        flat = self.gradients.reshape(self.rows, -1)
        return _channels_first((weights.to(flat.dtype) @ flat)[None], self.shape)[0].contiguous()


def convolved(x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> Share:
    """Return the share of one call: per-row gradients if they are no larger than what they replace."""
    share = Convolved(x, gradient, weight, geometry)
    if is_worth_keeping(weight.numel() * x.shape[0], x.numel() + gradient.numel()):
        return ConvolvedDense(share.channels_last(slice(None)), weight.shape)
    return share


def _channels_first(gradients: Tensor, shape: torch.Size) -> Tensor:
    """Return weight gradients in the order of the weight: (rows, outputs, channels, *kernel)."""
    return gradients.reshape(gradients.shape[0], shape[0], *shape[2:], shape[1]).movedim(-1, 2)
