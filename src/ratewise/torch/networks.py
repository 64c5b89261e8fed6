"""Networks whose rows do not mix: ready for per-row clipping.

Group norm stands where batch norm usually stands, because batch norm lets rows see each other.
"""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType

_LARGEST = 1 << 24  # a layer of more is a slip of the pen


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with group norm.

    `blocks` and `widths` are the blocks and channels of each stage; every stage after the first halves height and
    width. `groups` are those of every group norm.
    """

    def __init__(
        self,
        num_classes: int,
        blocks: Sequence[int] = (2, 2, 2, 1),
        widths: Sequence[int] = (64, 128, 256, 512),
        *,
        groups: int = 16,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        _sizes(num_classes=num_classes, groups=groups, in_channels=in_channels, blocks=blocks, widths=widths)
        if not widths or len(blocks) != len(widths):
            raise InvalidInput(
                f"blocks and widths must name the same stages, at least one; got {len(blocks)} and {len(widths)}"
            )
        if any(width % groups for width in widths):
            raise InvalidInput(f"widths must be multiples of groups ({groups}), got {list(widths)}")
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, widths[0], 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(groups, widths[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, inputs = [], widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for number in range(count):
                stages.append(_Block(inputs, width, 2 if stage and not number else 1, groups))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of images (rows, channels, height, width)."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def resnet16(num_classes: int = 2, *, in_channels: int = 3) -> ResNet:
    """Return the residual network of 16 layers: blocks 2, 2, 2, 1, widths 64 to 512, group norm of 16 groups.

    It has 6.46 million parameters and takes images of 32 x 32 and more; 64 x 64 is what it is meant for.

    >>> sum(parameter.numel() for parameter in resnet16(2).parameters())
    6456898
    """
    return ResNet(num_classes, in_channels=in_channels)


class SmallCNN(nn.Module):
    """Three convolutions with group norm and a linear layer, for images of any size from 8 x 8."""

    def __init__(self, num_classes: int, *, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        _sizes(num_classes=num_classes, in_channels=in_channels, width=width)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((in_channels, width, 2 * width, 4 * width)):
            norm = nn.GroupNorm(math.gcd(8, outputs), outputs)
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), norm, nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of images (rows, channels, height, width)."""
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


class MLP(nn.Sequential):
    """Linear layers with ReLU between them; inputs are flattened."""

    def __init__(self, inputs: int, num_classes: int, hidden: Sequence[int] = (128, 128)) -> None:
        if not isinstance(hidden, Sequence) or isinstance(hidden, str | bytes):
            raise InvalidType(f"hidden must be a sequence of sizes, got {type(hidden).__name__}")
        _sizes(inputs=inputs, num_classes=num_classes, hidden=hidden)
        sizes = [inputs, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-1], num_classes))


def _sizes(**arguments: Any) -> None:
    """Refuse what is no size of a layer, or of several layers."""
    for name, value in arguments.items():
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        for size in value if several else (value,):
            if not isinstance(size, numbers.Integral):
                raise InvalidType(f"{name} must be a whole number, got {type(size).__name__}")
            if _validate.count(**{name: size}) > _LARGEST:  # type: ignore[arg-type]
                raise InvalidInput(f"{name} must be at most {_LARGEST}, got {size}")


class Bounded(nn.Module):
    """Cut inputs off at public bounds and scale them to [-1, 1]; an input without room becomes 0.

    Bounds are a pair (lower, upper), each a number or an array that broadcasts to the shape of one row.

    >>> Bounded((0, 255), (3,))(torch.tensor([[0, 51, 300]]))
    tensor([[-1.0000, -0.6000,  1.0000]])
    """

    lower: Tensor
    upper: Tensor
    factor: Tensor

    def __init__(self, bounds: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        try:
            pair = [np.asarray(bound, dtype=np.float32) for bound in bounds]
            for bound in pair:
                np.broadcast_to(bound, shape)
            lower, upper = map(torch.tensor, np.broadcast_arrays(*pair))
            fine = all(bool(np.isfinite(bound).all()) for bound in pair) and bool((lower <= upper).all())
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise InvalidInput(
                f"feature_bounds must be a pair (lower, upper), each a finite number or one per entry of a row "
                f"(shape {shape}), lower at most upper, got {reprlib.repr(bounds)}"
            )
        width = upper - lower
        self.register_buffer("lower", lower)
        self.register_buffer("upper", upper)
        self.register_buffer("factor", torch.where(width > 0, 2.0 / width, torch.zeros_like(width)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled inputs."""
        x = torch.minimum(torch.maximum(x.to(self.lower.dtype), self.lower), self.upper)
        return (x - self.lower) * self.factor - (self.factor > 0).to(x.dtype)
