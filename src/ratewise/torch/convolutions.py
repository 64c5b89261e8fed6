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

from ratewise.torch.shares import (
    CHUNK,
    Dense,
    Share,
    direct_cost,
    ghost_cost,
    is_worth_keeping,
    sums_of_squares,
    widen,
    widest,
)

# Below this many positions a weight gradient is quicker as one plain matrix product.
_FEW_POSITIONS = 16
# Gram matrices are walked over often: 1 MB of them at a time, in float64.
_GRAM_CHUNK = 1 << 17


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
        pixels = x.reshape(x.shape[0] * self.groups, -1, math.prod(x.shape[2:]))
        gram = (pixels.mT @ pixels).reshape(-1, *x.shape[2:], *x.shape[2:])
        for axis in range(len(kernel)):
            gram = self._along(axis, gram, kernel[axis], positions[axis])
        count = math.prod(positions)
        return gram.reshape(x.shape[0], self.groups, count, count)

    def _along(self, axis: int, gram: Tensor, kernel: int, positions: int) -> Tensor:
        """Add up what the kernel's offsets along one axis see, from pixels to positions of that axis."""
        pair = (1 + axis, 1 + len(self.stride) + axis)
        sizes = list(gram.shape)
        sizes[pair[0]] = sizes[pair[1]] = positions
        total = gram.new_zeros(sizes)
        for offset in range(kernel):
            seeing, seen = self._overlap(axis, offset, positions, gram.shape[pair[0]])
            to, of = [slice(None)] * gram.dim(), [slice(None)] * gram.dim()
            to[pair[0]] = to[pair[1]] = seeing
            of[pair[0]] = of[pair[1]] = seen
            total[tuple(to)] += gram[tuple(of)]
        return total

    def _overlap(self, axis: int, offset: int, positions: int, pixels: int) -> tuple[slice, slice]:
        """Return the positions whose patch has a pixel at this offset of the kernel, and those pixels."""
        stride, shift = self.stride[axis], offset * self.dilation[axis] - self.padding[axis]
        first = max(0, -(shift // stride))
        last = min(positions - 1, (pixels - 1 - shift) // stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = first * stride + shift
        return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


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
        x, gradient = widen(self.x[rows]), self._grouped(widen(self.gradient[rows]))
        inputs = math.prod(self.shape[1:])
        out = gradient.new_empty(*gradient.shape[:3], inputs)
        step = max(1, CHUNK // (self.geometry.groups * gradient.shape[3] * inputs))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            patches = self.geometry.patches(x[part], self.shape[2:], self._positions)
            torch.bmm(gradient[part].flatten(0, 1), patches.flatten(0, 1), out=out[part].flatten(0, 1))
        return out

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
        ghost = ghost_cost(positions, outputs, self.x)
        costs: dict[Callable[[], Tensor], float] = {
            self._direct: direct_cost(positions, outputs, inputs),
            self._by_patches: ghost + ghost_cost(positions, inputs, self.x) + 50.0 * positions * inputs,
            self._by_pixels: ghost + ghost_cost(pixels, self.shape[1], self.x) + 60.0 * pixels**2,
        }
        return min(costs, key=lambda way: costs[way])()

    def _direct(self) -> Tensor:
        step = max(1, CHUNK // self.shape.numel())
        starts = range(0, self.rows, step)
        # in any order of the entries: a norm does not care
        return torch.cat([sums_of_squares(self.channels_last(slice(i, i + step))) for i in starts])

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
        step = max(1, _GRAM_CHUNK // (self.geometry.groups * size))
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
