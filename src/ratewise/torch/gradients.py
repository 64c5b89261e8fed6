"""What one call of a layer adds to the per-row gradients of one parameter, in the cheapest form known.

Write G_i for the gradient of row i, a sum over positions of products ``left right'``. A `Share` answers, without
saying how it is stored:

- ``magnitudes``: an upper bound A_i of the sum over positions of ``|left| |right|``, hence of ``|G_i|``;
- ``norm_bounds``: an upper bound N_i of ``|G_i|``, which includes the rounding errors of computing it;
- ``weighted``: the sum over rows of ``weight * G_i``, in float64 if it has several parts.

**Rounding of sums.** Whatever the order of its operations, a sum of n terms that is computed with unit roundoff u
is off by at most ``n u`` (to first order) of the sum of the terms' sizes. Sums over rows are formed in blocks of
rows: a block in the type of the gradients, by one product, and the total over blocks in float64. If a row is
replaced by one of weight 0 at the same place, all other blocks stay as they are, bit by bit, and its own block
changes by ``weight * G_i`` and at most ``2 n u`` of the block's magnitudes. Blocks are so small that this is at most
`BLOCK_SLACK` of the clip if ``weight * A_i <= cancellation * clip`` for every row; where not even that is worth
its time, products are formed in float64. See docs/guarantees.md, "Sensitivity of the computed value".

Several shares of one parameter (a layer called twice, tied weights) are added before the norm is taken:
adding their squared norms instead would ignore the cross terms, and clip too little. Everything here is
private: a share is a function of raw rows and lives only until the clipped sum is formed.

A convolution is a linear layer on patches: with A the patches (positions x inputs of one channel group) and
B the output gradients (positions x outputs of the group), a row's weight gradient is ``B' A`` per group. Patches are cut with
the channels last, where they are whole runs of memory. A Gram matrix of patches needs no patches at all: it adds up
shifted copies of the Gram matrix of pixels, which is smaller by the kernel's size.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Entries that are handled at a time: 4 MB in float32.
CHUNK = 1 << 20

SINGLE = 2.0**-24
"""Unit roundoff of float32."""
BLOCK_ROWS = 128
"""Rows of a block whose gradients have one term: their magnitude is their norm."""
_CANCELLATIONS = (8.0, 32.0)  # least and largest `single_cancellation`
_BLOCK_TERMS = 32 * 1088  # of a block: cancellation times rows times the roundings of a term, at most
_MOST_ROWS = 32  # of a block whose gradients have several terms
_BLOCKS = 64  # that are added in float32, of 256 rows at most
BLOCK_SLACK = (
    2.0 * SINGLE * (BLOCK_ROWS * (BLOCK_ROWS + 8) + 3.5 * _BLOCK_TERMS + 1.02 * _BLOCKS * 2 * BLOCK_ROWS)
)
"""By how many clips rounding in float32 can move the sum of a block, over all parameters together.

The three terms are those of blocks with one term per row, of blocks with several, and of adding blocks. Blocks that
a row belongs to in different layers are nested, with 32, 16, 8, 4, 2 or 1 rows by the number of positions, so that
their errors add up to at most ``1 + 5/2`` of the largest."""

DOUBLE_CANCELLATION = 1024.0
"""Largest ``weight * A_i``, in clips, where products are formed in float64."""
TERMS = 1 << 13  # of one float64 product
LONGEST_SUM = 1 << 16
"""Most roundings of one term of a float64 sum: those of its product, and one for every product that is added,
up to 2**28 positions in a step."""

# Sums of squares are taken over pieces of this length, then in float64. With unit roundoff u, the norm of a
# piece has a relative error of at most about (_PIECE / 2 + 2) * u.
_PIECE = 128
# A kept per-row gradient may be this much larger than the input and output gradient that it replaces: it
# saves a second product.
_WORTH_KEEPING = 2.0


class Share(ABC):
    """One call's part of the per-row gradients of one parameter."""

    shape: torch.Size
    rows: int
    block = 0
    """Rows that are added in float32 by one product; 0: sums are formed in float64."""

    @abstractmethod
    def magnitudes(self) -> Tensor:
        """Return an upper bound of ``sum_t |left_t| |right_t|`` for each row, in float64."""

    @abstractmethod
    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows, shaped (rows, *parameter)."""

    @abstractmethod
    def weighted(self, weights: Tensor) -> Tensor:
        """Return the sum over rows of weight times gradient; rows of weight 0 are not read."""

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return an upper bound of each row's gradient norm, in float64."""
        return chunked_norm_bounds([self], magnitudes)

    @property
    def positions(self) -> int:
        """Number of terms that are added within a row."""
        return 1

    @property
    def cancellation(self) -> float:
        """How many times larger than the clip the weighted magnitude of a row may be."""
        if self.block == 0:
            return DOUBLE_CANCELLATION
        return 1.0 if self.positions == 1 else single_cancellation(self.positions)


class Dense(Share):
    """Per-row gradients as they are: small ones, and those no larger than their factors.

    Norms and sums are taken of the very same numbers, whatever rounding was involved in forming them.
    """

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients.contiguous()
        self.rows, self.shape = gradients.shape[0], gradients.shape[1:]
        self.block = block_rows(1, self.gradients)

    def magnitudes(self) -> Tensor:
        """Return the norms themselves: there is one term."""
        return lengths(self.gradients)

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return the magnitudes, which are norms."""
        return magnitudes

    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows."""
        return self.gradients[rows]

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product per block of rows."""
        return self._summed(weights).reshape(self.shape)

    def _summed(self, weights: Tensor) -> Tensor:
        flat = self.gradients.reshape(self.rows, -1)
        flat.index_fill_(0, skipped(weights).to(flat.device), 0.0)
        if self.block:
            factors = factors_of(weights, flat)
            return added((factors[rows] @ flat[rows] for rows in slices(self.rows, self.block)), self.block)
        total = torch.zeros(flat.shape[1], dtype=torch.float64, device=weights.device)
        for rows in slices(self.rows, TERMS):
            for columns in slices(flat.shape[1], max(256, CHUNK // self.rows)):
                total[columns].addmv_(wide(flat[rows, columns]).mT, weights[rows])
        return total


class Outer(Share):
    """A matrix's gradient as a sum over positions of outer products: ``sum_t left[t] right[t]'``.

    ``left`` is (rows, positions, outputs) or, for an embedding, the whole numbers (rows, positions) that
    stand for one-hot vectors; ``right`` is (rows, positions, inputs).
    """

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.left, self.right, self.shape = left, right, shape
        self.rows = right.shape[0]
        self.block = 0 if self.one_hot else block_rows(self.positions, widen(right[:0]))

    @property
    def positions(self) -> int:
        """Number of outer products of a row."""
        return self.right.shape[1]

    @property
    def one_hot(self) -> bool:
        """Whether ``left`` holds ids instead of vectors."""
        return self.left.dim() == 2

    def magnitudes(self) -> Tensor:
        """Return ``|left| |right|`` over all positions, which is at least the sum of products of norms."""
        if self.one_hot:
            return lengths(self.right) * math.sqrt(self.positions)
        return lengths(self.left) * lengths(self.right)

    def per_row(self, rows: slice) -> Tensor:
        """Return one matrix per row."""
        left, right = self.left[rows], widen(self.right[rows])
        if not self.one_hot:
            return widen(left).transpose(1, 2) @ right
        out = right.new_zeros(right.shape[0], *self.shape)
        return out.scatter_add_(1, left.unsqueeze(-1).expand_as(right), right)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return a sum of matrix products, one per block of rows, or of rows of an embedding."""
        if self.one_hot:
            return self._by_ids(weights)
        if self.block == 0:
            return self._in_float64(weights)
        out, factors = skipped(weights).to(self.left.device), factors_of(weights, widen(self.left[:0]))
        left, right = widen(self.left), widen(self.right)
        if left.shape[-1] <= right.shape[-1]:
            left, right = (
                (left * factors[:, None, None]).index_fill_(0, out, 0.0),
                right.index_fill(0, out, 0.0),
            )
        else:
            left, right = (
                left.index_fill(0, out, 0.0),
                (right * factors[:, None, None]).index_fill_(0, out, 0.0),
            )
        blocks = slices(self.rows, self.block)
        parts = (left[rows].flatten(0, 1).mT @ right[rows].flatten(0, 1) for rows in blocks)
        return added(parts, self.block)

    def _in_float64(self, weights: Tensor) -> Tensor:
        out = skipped(weights)
        total = torch.zeros(self.shape, dtype=torch.float64, device=weights.device)
        for rows, positions in self._pieces():
            left, right = (
                filled(wide_copy(side[rows, positions]), rows, out) for side in (self.left, self.right)
            )
            (left if left.shape[-1] <= right.shape[-1] else right).mul_(weights[rows, None, None])
            total.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))
        return total

    def _by_ids(self, weights: Tensor) -> Tensor:
        out = skipped(weights)
        total = torch.zeros(self.shape, dtype=torch.float64, device=weights.device)
        several = self.rows * self.positions > 4 * TERMS
        for rows, positions in self._pieces():
            right = filled(wide_copy(self.right[rows, positions]), rows, out).mul_(weights[rows, None, None])
            ids = self.left[rows, positions].to(right.device).reshape(-1)
            part = torch.zeros_like(total) if several else total
            part.index_add_(0, ids, right.flatten(0, 1))
            if several:
                total += part
        return total

    def _pieces(self) -> Iterator[tuple[slice, slice]]:
        for rows in slices(self.rows, max(1, TERMS // max(1, self.positions))):
            for positions in slices(self.positions, TERMS):
                yield rows, positions

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return bounds by whichever way is cheaper; one position's magnitude is the norm."""
        if self.positions == 1:
            return magnitudes
        if self.one_hot:
            return self._by_distinct_ids(magnitudes)
        return outer_norm_bounds([self], magnitudes)

    def _by_distinct_ids(self, magnitudes: Tensor) -> Tensor:
        """Add what falls on the same id of the same row, then square."""
        keys = self.left + torch.arange(self.rows, device=self.left.device)[:, None] * self.shape[0]
        distinct, where = torch.unique(keys, return_inverse=True)
        right = widen(self.right)
        sums = right.new_zeros(distinct.numel(), right.shape[-1])
        sums.index_add_(0, where.reshape(-1), right.reshape(-1, right.shape[-1]))
        owner = torch.div(distinct, self.shape[0], rounding_mode="floor").to(magnitudes.device)
        squares = torch.zeros_like(magnitudes).index_add_(0, owner, lengths(sums).square())
        return formed_norm_bounds(squares.sqrt(), magnitudes, self.positions, right)


def outer(left: Tensor, right: Tensor, shape: torch.Size) -> Share:
    """Return the share of one call of a linear layer: gradients if no larger than what they replace."""
    share = Outer(left, right, shape)
    if share.positions > 1 and is_worth_keeping(shape.numel(), share.positions * (shape[0] + shape[1])):
        return Dense(share.per_row(slice(None)))
    return share


def combined(shares: Sequence[Share]) -> list[Share]:
    """Add up gradients and join outer products along their positions, so that one share is left if possible.

    Where several shares are left, their sums can cancel: they are formed in float64.
    """
    joint: list[Share] = []
    for share in shares:
        like = next((one for one in joint if type(one) is type(share) and isinstance(one, Dense)), None)
        if isinstance(share, Dense) and isinstance(like, Dense):
            like.gradients = like.gradients + share.gradients
        elif not isinstance(share, Outer):
            joint.append(share)
    for one_hot in (False, True):
        alike = [share for share in shares if isinstance(share, Outer) and share.one_hot == one_hot]
        if len(alike) == 1:
            joint += alike
        elif alike:
            left = torch.cat([share.left for share in alike], dim=1)
            right = torch.cat([share.right for share in alike], dim=1)
            joint.append(Outer(left, right, alike[0].shape))
    if len(joint) > 1:
        for share in joint:
            share.block = 0
    return joint


def norms_and_magnitudes(shares: Sequence[Share]) -> tuple[Tensor, Tensor]:
    """Return upper bounds of each row's norm, and of its magnitude in multiples of what is allowed.

    Both are in float64 and for the sum of a parameter's shares. With a weight that brings both to the clip at
    most, rounding in the weighted sums is bounded. A row of which an entry is not finite, or too large to be
    squared, has a magnitude that is not finite.
    """
    found = [share.magnitudes() for share in shares]
    magnitudes = torch.stack(found).sum(0)
    if len(shares) == 1:
        norms = shares[0].norm_bounds(magnitudes)
    else:
        outer = [share for share in shares if isinstance(share, Outer)]
        by_gram = len(outer) == len(shares)
        norms = outer_norm_bounds(outer, magnitudes) if by_gram else chunked_norm_bounds(shares, magnitudes)
    norms = torch.fmin(norms, magnitudes)
    if len(shares) == 1 and shares[0].positions == 1:
        return norms, torch.where(torch.isfinite(magnitudes), norms, magnitudes)  # one term: its norm
    allowed = [one / share.cancellation for one, share in zip(found, shares, strict=True)]
    return norms, torch.stack(allowed).sum(0)


def block_rows(positions: int, like: Tensor) -> int:
    """Return how many rows are added in float32 by one product, or 0 if float64 is to be used."""
    if like.dtype != torch.float32 or like.device.type != "cpu" or not _full_precision():
        return 0
    if positions == 1:
        return BLOCK_ROWS
    rows = _MOST_ROWS
    while rows and single_cancellation(positions) * rows * (rows * positions + 8) > _BLOCK_TERMS:
        rows //= 2
    return rows


def single_cancellation(positions: int) -> float:
    """Return the largest ``weight * A_i``, in clips, where terms of so many positions are added in float32.

    Terms of random signs are ``sqrt(positions)`` times larger than their sum; it is twice that, between 8 and 32.
    """
    least, most = _CANCELLATIONS
    return min(max(2.0 * math.sqrt(positions), least), most)


def factors_of(weights: Tensor, like: Tensor) -> Tensor:
    """Return weights in the type of the gradients, none of them above what it was."""
    if like.dtype == torch.float64:
        return weights.to(like.device)
    return (weights * (1.0 - 2.0 * SINGLE)).to(like)


def added(parts: Iterator[Tensor], block: int) -> Tensor:
    """Return the sum of blocks of so many rows; a few at a time are added as they are, and their sums in float64."""
    total: Tensor | None = None
    several = min(_BLOCKS, 2 * BLOCK_ROWS // block)
    for first in parts:
        for part in itertools.islice(parts, several - 1):
            first += part
        total = first if total is None else wide(total).add_(wide(first))
    assert total is not None  # noqa: S101 - there is a row
    return total


def slices(count: int, length: int) -> Iterator[slice]:
    """Yield slices of a length, the last of what is left."""
    for start in range(0, count, length):
        yield slice(start, min(count, start + length))


def skipped(weights: Tensor) -> Tensor:
    """Return the rows of weight 0: their numbers may not be finite, and 0 times infinity is not 0."""
    return (weights == 0).nonzero().squeeze(1)


def filled(part: Tensor, rows: slice, out: Tensor) -> Tensor:
    """Fill those of these rows that are left out with zeros, in place."""
    return part.index_fill_(0, out[(out >= rows.start) & (out < rows.stop)] - rows.start, 0.0)


def outer_norm_bounds(shares: Sequence[Outer], magnitudes: Tensor) -> Tensor:
    """Return bounds for sums of outer products, with all cross terms, by Gram matrices if that is cheaper."""
    outputs, inputs = shares[0].shape
    positions = sum(share.positions for share in shares)
    if ghost_cost(positions, outputs + inputs) > direct_cost(positions, outputs, inputs):
        return chunked_norm_bounds(shares, magnitudes)
    total = torch.zeros_like(magnitudes)
    for i, first in enumerate(shares):
        total += _inner(first, first)
        for second in shares[i + 1 :]:
            total += 2 * _inner(first, second)
    return gram_norm_bounds(total, magnitudes, outputs + inputs + positions**2)


def gram_norm_bounds(squares: Tensor, magnitudes: Tensor, terms: int) -> Tensor:
    """Return bounds from squared norms that were computed from float64 Gram matrices.

    Every inner product in them is at most the product of the norms, so that rounding is at most
    ``terms * 2**-53`` (to first order) of the squared magnitude.
    """
    return (squares.clamp(min=0) + (terms + 16) * 2.0**-52 * magnitudes.square()).sqrt()


def formed_norm_bounds(norms: Tensor, magnitudes: Tensor, positions: int, like: Tensor) -> Tensor:
    """Return bounds from the norms of gradients that were formed by adding up so many products.

    The gradients were formed with rounding errors of at most ``positions * u`` (to first order) of the
    magnitude, where u is the unit roundoff of the products.
    """
    return norms + (positions + 16) * 1.0625 * unit_roundoff(like) * magnitudes


def chunked_norm_bounds(shares: Sequence[Share], magnitudes: Tensor) -> Tensor:
    """Return bounds by forming the summed gradient of a few rows at a time."""
    pieces = []
    for part in row_chunks(shares[0].rows, math.prod(shares[0].shape)):
        gradient = shares[0].per_row(part)
        for share in shares[1:]:
            gradient = gradient + share.per_row(part)
        pieces.append(lengths(gradient))
    positions = sum(share.positions for share in shares)
    return formed_norm_bounds(torch.cat(pieces), magnitudes, positions, gradient)


def row_chunks(rows: int, size: int, most: int = CHUNK) -> Iterator[slice]:
    """Yield slices of so many rows that `size` entries per row are `most` together, if possible.

    Their length is a power of two: a last chunk of one row would be handled by other kernels than the rest,
    and a row's numbers would then depend on where in the batch it is.
    """
    yield from slices(rows, 1 << (max(1, most // max(1, size)).bit_length() - 1))


def ghost_cost(positions: int, width: int) -> float:
    """Return what a Gram matrix costs a row in float32 multiplications: small float64 ones run slowly."""
    return 5.0 * positions**2 * width


def direct_cost(positions: int, outputs: int, inputs: int) -> float:
    """Return what forming a row's gradient and walking over it costs, in float32 multiplications."""
    return (positions + 30.0) * outputs * inputs


def is_worth_keeping(gradients: int, factors: int) -> bool:
    """Return whether per-row gradients are about as small as what they would be formed from."""
    return gradients <= _WORTH_KEEPING * factors


def lengths(values: Tensor) -> Tensor:
    """Return an upper bound of the norm over all but the first axis, in float64, for many entries.

    Short sums of squares in the type of the values are added in float64. Squares that overflow give infinity;
    those that underflow are covered by a constant.
    """
    flat = widen(values).reshape(values.shape[0], -1)
    entries = flat.shape[1]
    whole = entries // _PIECE * _PIECE
    squares = wide(torch.linalg.vector_norm(flat[:, whole:], dim=1)).square()
    if whole:
        pieces = flat[:, :whole].reshape(flat.shape[0], -1, _PIECE)
        squares += wide(torch.linalg.vector_norm(pieces, dim=2)).square().sum(1)
    double = flat.dtype == torch.float64
    error = _PIECE * (2.0**-53 if double else 2.0**-24) + entries * 2.0**-53
    underflow = (2.0**-500 if double else 2.0**-60) * math.sqrt(entries)
    return squares.sqrt_().mul_(1.0 + error).add_(underflow)


def unit_roundoff(like: Tensor) -> float:
    """Return the unit roundoff of matrix products of this type, under PyTorch's current settings."""
    if like.dtype == torch.float64:
        return 2.0**-53
    return SINGLE if _full_precision() else 2.0**-8


def _full_precision() -> bool:
    """Return whether PyTorch forms products of float32 numbers in float32, and not in fewer bits."""
    backend: Any = torch.backends.mkldnn
    parts = (backend, getattr(backend, "conv", None), getattr(backend, "matmul", None))
    settings = {getattr(part, "fp32_precision", "none") for part in parts}
    return torch.get_float32_matmul_precision() == "highest" and settings <= {"none", "ieee"}


def widen(values: Tensor) -> Tensor:
    """Return half-precision values in float32: neither norms nor sums are taken in less."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def wide(values: Tensor) -> Tensor:
    """Return values in float64, on the processor if the device has no float64."""
    return values.to(wide_device(values), torch.float64)


def wide_copy(values: Tensor) -> Tensor:
    """Return a contiguous copy of values in float64, as `wide` does."""
    return values.to(wide_device(values), torch.float64, copy=True, memory_format=torch.contiguous_format)


def wide_device(like: Tensor) -> torch.device:
    """Return where float64 sums for tensors on a device are formed."""
    return torch.device("cpu") if like.device.type == "mps" else like.device


def _inner(first: Outer, second: Outer) -> Tensor:
    """Return each row's ``sum_{u,v} <left_u, left'_v> <right_u, right'_v>``."""
    right = wide(first.right) @ wide(second.right).transpose(1, 2)
    return (right * _left_gram(first, second)).sum((1, 2))


def _left_gram(first: Outer, second: Outer) -> Tensor:
    if first.one_hot and second.one_hot:
        return wide(first.left[:, :, None] == second.left[:, None, :])
    if second.one_hot:
        ids = second.left[:, None, :].expand(-1, first.positions, -1)
        return wide(first.left.gather(2, ids))
    if first.one_hot:
        return _left_gram(second, first).transpose(1, 2)
    return wide(first.left) @ wide(second.left).transpose(1, 2)


# Below this many positions the products of several rows are formed together.
_FEW_POSITIONS = 32
_FEW_TERMS = 512
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

    def overlap(self, kernel: torch.Size) -> int:
        """Return in how many patches a pixel can be, at most."""
        axes = zip(kernel, self.stride, self.dilation, strict=True)
        return math.prod(-(-size // hop) if apart == 1 else size for size, hop, apart in axes)

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
        self.block = block_rows(self.positions, weight)

    @property
    def positions(self) -> int:
        """Number of patches of a row."""
        return math.prod(self._positions)

    def magnitudes(self) -> Tensor:
        """Return ``|patches| |gradient|``: a pixel is in as many patches as the kernel allows, or as there are."""
        overlap = math.sqrt(min(self.geometry.overlap(self.shape[2:]), self.positions))
        return lengths(self.x) * lengths(self.gradient) * overlap

    def per_row(self, rows: slice) -> Tensor:
        """Return one weight gradient per row."""
        return _channels_first(self.channels_last(rows), self.shape)

    def channels_last(self, rows: slice) -> Tensor:
        """Return one weight gradient per row, (rows, groups, outputs of the group, kernel x channels)."""
        x, gradient = widen(self.x[rows]), self._grouped(widen(self.gradient[rows]))
        inputs = math.prod(self.shape[1:])
        out = gradient.new_empty(*gradient.shape[:3], inputs)
        for part in row_chunks(len(x), self.geometry.groups * self.positions * inputs):
            patches = self.geometry.patches(x[part], self.shape[2:], self._positions)
            torch.bmm(gradient[part].flatten(0, 1), patches.flatten(0, 1), out=out[part].flatten(0, 1))
        return out

    def weighted(self, weights: Tensor) -> Tensor:
        """Return a sum of weight gradients, one per block of rows."""
        if self.block == 0:
            return self._in_float64(weights)
        out, factors = skipped(weights), factors_of(weights, self.weight)
        x = widen(self.x).index_fill(0, out, 0.0)
        gradient = widen(self.gradient) * factors.reshape(-1, *[1] * (self.gradient.dim() - 1))
        gradient.index_fill_(0, out, 0.0)
        blocks = slices(self.rows, self.block)
        parts = (self.geometry.weight_gradient(gradient[rows], x[rows], self.weight) for rows in blocks)
        return added(parts, self.block)

    def _in_float64(self, weights: Tensor) -> Tensor:
        """Return the sum of products of patches and weighted output gradients, by group."""
        groups, out = self.geometry.groups, skipped(weights)
        outputs, inputs = self.shape[0] // groups, math.prod(self.shape[1:])
        sums = torch.zeros(groups, outputs, inputs, dtype=torch.float64, device=weights.device)
        down = max(CHUNK // (groups * self.positions * inputs), -(-_FEW_TERMS // self.positions))
        for rows in slices(self.rows, max(1, min(down, TERMS // self.positions))):
            gradient = self._grouped(filled(wide_copy(self.gradient[rows]), rows, out))
            gradient *= weights[rows, None, None, None]
            x = filled(wide_copy(self.x[rows]), rows, out)
            patches = self.geometry.patches(x, self.shape[2:], self._positions)
            for group in range(groups):
                self._add_products(sums[group], gradient[:, group], patches[:, group])
        return _channels_first(sums[None], self.shape)[0].contiguous()

    def _add_products(self, total: Tensor, gradient: Tensor, patches: Tensor) -> None:
        """Add ``sum over rows of gradient (outputs x positions) patches (positions x inputs)``."""
        if self.positions < _FEW_POSITIONS:
            total.addmm_(gradient.movedim(1, 0).flatten(1), patches.flatten(0, 1))
            return
        for row in range(len(gradient)):
            for part in slices(self.positions, TERMS):
                total.addmm_(gradient[row, :, part], patches[row, part])

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return bounds by the cheapest way: the gradient itself, Gram of patches or Gram of pixels."""
        groups, positions = self.geometry.groups, self.positions
        outputs, inputs = self.shape[0] // groups, math.prod(self.shape[1:])
        pixels = math.prod(self.x.shape[2:])
        ghost = ghost_cost(positions, outputs)
        costs: dict[Callable[[Tensor], Tensor], float] = {
            self._direct: direct_cost(positions, outputs, inputs),
            self._by_patches: ghost + ghost_cost(positions, inputs) + 50.0 * positions * inputs,
            self._by_pixels: ghost + ghost_cost(pixels, self.shape[1]) + 60.0 * pixels**2,
        }
        return min(costs, key=lambda way: costs[way])(magnitudes)

    def _direct(self, magnitudes: Tensor) -> Tensor:
        # in any order of the entries: the norm is the same
        norms = torch.cat(
            [lengths(self.channels_last(part)) for part in row_chunks(self.rows, self.shape.numel())]
        )
        return formed_norm_bounds(norms, magnitudes, self.positions, widen(self.x))

    def _by_patches(self, magnitudes: Tensor) -> Tensor:
        def gram(x: Tensor) -> Tensor:
            patches = self.geometry.patches(x, self.shape[2:], self._positions)
            return patches @ patches.mT

        size = self.x[0].numel() // self.geometry.groups * math.prod(self.shape[2:])
        return self._by_gram(magnitudes, gram, size)

    def _by_pixels(self, magnitudes: Tensor) -> Tensor:
        def gram(x: Tensor) -> Tensor:
            return self.geometry.patch_gram(x, self.shape[2:], self._positions)

        return self._by_gram(magnitudes, gram, math.prod(self.x.shape[2:]) ** 2)

    def _by_gram(self, magnitudes: Tensor, gram: Callable[[Tensor], Tensor], size: int) -> Tensor:
        groups, pieces = self.geometry.groups, []
        for part in row_chunks(self.rows, groups * size, _GRAM_CHUNK):
            back = self._grouped(wide(self.gradient[part]))
            pieces.append(((back.mT @ back) * gram(wide(self.x[part]))).sum((1, 2, 3)))
        terms = self.shape[0] // groups + math.prod(self.shape[1:]) + groups * self.positions**2
        return gram_norm_bounds(torch.cat(pieces), magnitudes, terms)

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
        """Return the sum in the weight's own order."""
        return _channels_first(self._summed(weights)[None], self.shape)[0].contiguous()


def convolved(x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> Share:
    """Return the share of one call: per-row gradients if they are no larger than what they replace."""
    share = Convolved(x, gradient, weight, geometry)
    if is_worth_keeping(weight.numel() * x.shape[0], x.numel() + gradient.numel()):
        return ConvolvedDense(share.channels_last(slice(None)), weight.shape)
    return share


def _channels_first(gradients: Tensor, shape: torch.Size) -> Tensor:
    """Return weight gradients in the order of the weight: (rows, outputs, channels, *kernel)."""
    return gradients.reshape(gradients.shape[0], shape[0], *shape[2:], shape[1]).movedim(-1, 2)
