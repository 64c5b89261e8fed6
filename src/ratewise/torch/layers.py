"""Layers whose per-row gradients are known in closed form, run so that an ordinary backward reveals them.

Each layer here computes what it always computes, with its parameters detached: autograd then forms input
gradients only. When the backward reaches the layer, input and output gradient become shares on a tape.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ratewise.exceptions import UnsupportedCombination
from ratewise.torch.convolutions import Geometry, convolved
from ratewise.torch.shares import Dense, Outer, Share, outer, widen

Tensors = tuple[Tensor, ...]


class Tape(Protocol):
    """Where shares are written while the backward runs."""

    anchor: Tensor

    def arrive(self, layer: str, gradient: Tensor) -> bool:
        """Refuse a gradient whose first axis is not the rows; return whether shares are wanted."""
        ...

    def add(self, parameter: nn.Parameter | None, make: Callable[[], Share]) -> None:
        """Keep one share of a trainable parameter; those of frozen ones are never formed."""
        ...


class _Passage(torch.autograd.Function):
    """Runs a tapped layer forward, and lets it see its output gradient on the way back.

    The anchor requires a gradient, so that the backward comes by even where the input needs none.
    """

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, x: Tensor, layer: TappedLayer) -> Tensor:
        ctx.layer = layer
        out, kept = layer.run(x)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, kept, gradient = ctx.layer, ctx.saved_tensors, gradients[0]
        wanted = layer.tape.arrive(layer.name, gradient)
        return None, layer.back(gradient, kept, ctx.needs_input_grad[1], wanted), None


class TappedLayer(ABC):
    """One layer while it is recorded."""

    least_axes = 2

    def __init__(self, layer: Any, name: str, tape: Tape) -> None:
        self.layer, self.name, self.tape = layer, name, tape

    def __call__(self, input: Tensor) -> Tensor:
        """Compute what the layer computes; the argument has the name that PyTorch gives it."""
        if input.dim() < self.least_axes:
            raise UnsupportedCombination(
                f"layer {self.name!r} got an input of {input.dim()} axes, which has no axis for rows; "
                "give it whole batches, rows first"
            )
        out: Tensor = _Passage.apply(self.tape.anchor, self.cast(input), self)  # type: ignore[no-untyped-call]
        return out

    def cast(self, x: Tensor) -> Tensor:
        """Return the input in the precision that autocast asks for."""
        if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            return x.to(torch.get_autocast_dtype(x.device.type))
        return x

    def detached(self, name: str, like: Tensor) -> Tensor | None:
        """Return a parameter in the precision of the input, outside autograd's view."""
        parameter: Tensor | None = getattr(self.layer, name)
        if parameter is None:
            return None
        parameter = parameter.detach()
        return parameter.to(like.dtype) if torch.is_autocast_enabled(like.device.type) else parameter

    @abstractmethod
    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the output, and what the way back needs."""

    @abstractmethod
    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> Tensor | None:
        """Write down the shares if they are wanted, and return the input gradient."""


class TappedLinear(TappedLayer):
    """``nn.Linear`` on (rows, ..., inputs)."""

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the product."""
        weight = self.detached("weight", x)
        assert weight is not None  # noqa: S101 - a linear layer has one
        return functional.linear(x, weight, self.detached("bias", x)), (x, weight)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> Tensor | None:
        """Share: outer products over positions; the bias adds up the output gradients."""
        x, weight = kept
        if wanted:
            left = gradient.reshape(gradient.shape[0], -1, gradient.shape[-1])
            right = x.reshape(x.shape[0], -1, x.shape[-1])
            self.tape.add(self.layer.weight, lambda: outer(left, right, weight.shape))
            self.tape.add(self.layer.bias, lambda: Dense(widen(left).sum(1)))
        return gradient @ weight if needs_input else None


class TappedEmbedding(TappedLayer):
    """``nn.Embedding`` on (rows, ...) ids."""

    least_axes = 1

    def cast(self, x: Tensor) -> Tensor:
        """Return the ids as they are."""
        return x

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Look up the vectors."""
        return functional.embedding(x, self.layer.weight.detach()), (x,)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> None:  # noqa: ARG002
        """Share: one-hot outer products; the padding id learns nothing."""
        if wanted:
            ids = kept[0].reshape(kept[0].shape[0], -1).long()
            right = gradient.reshape(*ids.shape, gradient.shape[-1])
            if self.layer.padding_idx is not None:
                right = right.masked_fill((ids == self.layer.padding_idx)[:, :, None], 0.0)
            self.tape.add(self.layer.weight, lambda: Outer(ids, right, self.layer.weight.shape))


class TappedConvolution(TappedLayer):
    """``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d``, in every padding mode."""

    least_axes = 3

    def __init__(self, layer: Any, name: str, tape: Tape) -> None:
        super().__init__(layer, name, tape)
        self.least_axes = layer.weight.dim()
        around = tuple(layer._reversed_padding_repeated_twice)  # (last axis before, last axis after, ...)
        even = all(before == after for before, after in zip(around[::2], around[1::2], strict=True))
        self._pad_first = around if layer.padding_mode != "zeros" or not even else ()
        padding = (0,) * len(layer.stride) if self._pad_first else around[::-2]
        self._geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)

    def __call__(self, input: Tensor) -> Tensor:
        """Pad where the convolution itself cannot, then convolve."""
        if self._pad_first and input.dim() == self.least_axes:
            mode = self.layer.padding_mode
            input = functional.pad(input, self._pad_first, mode="constant" if mode == "zeros" else mode)
        return super().__call__(input)

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the convolution."""
        weight = self.detached("weight", x)
        assert weight is not None  # noqa: S101 - a convolution has one
        return self._geometry.forward(x, weight, self.detached("bias", x)), (x, weight)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> Tensor | None:
        """Share: a convolution's; the bias adds up the output gradients."""
        x, weight = kept
        if wanted:
            self.tape.add(self.layer.weight, lambda: convolved(x, gradient, widen(weight), self._geometry))
            self.tape.add(self.layer.bias, lambda: Dense(widen(gradient).flatten(2).sum(2)))
        return self._geometry.input_gradient(gradient, x, weight) if needs_input else None


class _TappedNorm(TappedLayer):
    """Normalisation of each row by itself; autocast leaves it in float32."""

    def cast(self, x: Tensor) -> Tensor:
        """Return at least float32."""
        return widen(x)


class TappedGroupNorm(_TappedNorm):
    """``nn.GroupNorm``, and ``nn.InstanceNorm1d`` to ``3d`` as one group per channel.

    Rows are normalised by themselves, so a batch of N rows with C channels is one row of N * C channels to
    the backward kernel. Its weight gradient then IS the N per-row gradients, at no cost.
    """

    def __init__(self, layer: Any, name: str, tape: Tape) -> None:
        super().__init__(layer, name, tape)
        for axes, kind in enumerate((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), start=3):
            if isinstance(layer, kind):
                self.least_axes = axes

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        groups = getattr(self.layer, "num_groups", x.shape[1])
        return x.shape[0], x.shape[1], math.prod(x.shape[2:]), groups

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the normalised input."""
        rows, channels, positions, groups = self._sizes(x)
        weight, bias = self.layer.weight.detach(), self.layer.bias.detach()
        if x.numel() == 0:
            return torch.empty_like(x), ()
        x = x.contiguous()
        out, mean, scale = torch.native_group_norm(
            x, weight, bias, rows, channels, positions, groups, self.layer.eps
        )
        return out, (x, mean, scale)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> Tensor | None:
        """Share: the per-row gradients themselves, one number per channel."""
        x, mean, scale = kept
        rows, channels, positions, groups = self._sizes(x)
        dx, weight, bias = torch.ops.aten.native_group_norm_backward(
            gradient.reshape(1, rows * channels, positions),
            x.reshape(1, rows * channels, positions),
            mean.reshape(1, -1),
            scale.reshape(1, -1),
            self.layer.weight.detach().repeat(rows),
            1, rows * channels, positions, rows * groups, [needs_input, wanted, wanted],
        )  # fmt: skip
        if wanted:
            self.tape.add(self.layer.weight, lambda: Dense(weight.reshape(rows, channels)))
            self.tape.add(self.layer.bias, lambda: Dense(bias.reshape(rows, channels)))
        return dx.reshape(x.shape) if needs_input else None


class TappedLayerNorm(_TappedNorm):
    """``nn.LayerNorm`` on (rows, ..., *normalised)."""

    def __init__(self, layer: Any, name: str, tape: Tape) -> None:
        super().__init__(layer, name, tape)
        self.least_axes = len(layer.normalized_shape) + 1

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the normalised input."""
        shape = list(self.layer.normalized_shape)
        bias = None if self.layer.bias is None else self.layer.bias.detach()
        out, mean, scale = torch.native_layer_norm(x, shape, self.layer.weight.detach(), bias, self.layer.eps)
        return out, (x, mean, scale)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool, wanted: bool) -> Tensor | None:
        """Share: normalised input times output gradient, added over positions."""
        x, mean, scale = kept
        shape = self.layer.normalized_shape
        if wanted:
            whole = (x.shape[0], -1, *shape)
            normal = (x - mean) * scale
            self.tape.add(self.layer.weight, lambda: Dense((normal * gradient).reshape(whole).sum(1)))
            self.tape.add(self.layer.bias, lambda: Dense(gradient.reshape(whole).sum(1)))
        if not needs_input:
            return None
        dx: Tensor = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(),
            x,
            list(shape),
            mean,
            scale,
            self.layer.weight.detach(),
            None,
            [True, False, False],
        )[0]
        return dx


_KNOWN: dict[type[nn.Module], type[TappedLayer]] = {
    nn.Linear: TappedLinear,
    nn.Embedding: TappedEmbedding,
    nn.Conv1d: TappedConvolution,
    nn.Conv2d: TappedConvolution,
    nn.Conv3d: TappedConvolution,
    nn.GroupNorm: TappedGroupNorm,
    nn.InstanceNorm1d: TappedGroupNorm,
    nn.InstanceNorm2d: TappedGroupNorm,
    nn.InstanceNorm3d: TappedGroupNorm,
    nn.LayerNorm: TappedLayerNorm,
}


def closed_form(layer: nn.Module) -> type[TappedLayer] | None:
    """Return how to tap a layer, or None if no closed form is known for what it computes.

    A subclass counts if it computes its forward in no way of its own; a weight that is itself computed
    (weight norm, parametrisations) does not.
    """
    if "forward" in layer.__dict__:
        return None
    for known, tapped in _KNOWN.items():
        if isinstance(layer, known) and type(layer).forward is known.forward:
            owned = isinstance(layer._parameters.get("weight"), nn.Parameter) and not layer._modules
            return tapped if owned else None
    return None
