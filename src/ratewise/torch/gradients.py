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
_WORTH_KEEPING = 2.0  # how much larger than its factors a per-row gradient may be that is formed and kept
_GRAM_CHUNK = 1 << 17  # Gram matrices are walked over often: 1 MB of them at a time, in float64


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

    @abstractmethod
    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return an upper bound of each row's gradient norm, in float64."""

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

    Norms and sums are taken of the very same numbers, whatever rounding was involved in forming them. Entries of a
    row may be in any order: `arrange` brings them into that of the parameter.
    """

    def __init__(self, gradients: Tensor, arrange: Callable[[Tensor], Tensor] | None = None) -> None:
        self.gradients, self.arrange = gradients.contiguous(), arrange
        self.rows, self.shape = gradients.shape[0], self.per_row(slice(0, 0)).shape[1:]
        self.block = block_rows(1, self.gradients)

    def magnitudes(self) -> Tensor:
        """Return the norms themselves: there is one term."""
        return lengths(self.gradients)

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return the magnitudes, which are norms."""
        return magnitudes

    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows."""
        found = self.gradients[rows]
        return found if self.arrange is None else self.arrange(found)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product per block of rows."""
        total = self._summed(weights).reshape(1, *self.gradients.shape[1:])
        return (total if self.arrange is None else self.arrange(total))[0].contiguous()

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


class Factored(Share):
    """A gradient that is, for each group of outputs, a sum over positions of outer products ``left_t right_t'``."""

    groups = 1

    @abstractmethod
    def left(self, rows: slice) -> Tensor:
        """Return output gradients, (rows, groups, positions, outputs of the group)."""

    @abstractmethod
    def right(self, rows: slice) -> Tensor:
        """Return inputs, (rows, groups, positions, inputs of the group)."""

    @abstractmethod
    def arranged(self, gradients: Tensor) -> Tensor:
        """Return gradients (rows, groups, outputs, inputs) in the order of the parameter, (rows, *parameter)."""

    @abstractmethod
    def block_sums(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the gradient summed over rows, from what `block_factors` returned for these rows."""

    @abstractmethod
    def block_factors(self) -> tuple[Tensor, Tensor]:
        """Return what `block_sums` takes, of all rows."""

    @abstractmethod
    def right_gram(self, rows: slice) -> Tensor:
        """Return the inner products of inputs in float64, (rows, groups, positions, positions)."""

    @property
    @abstractmethod
    def gram_cost(self) -> float:
        """What norms by Gram matrices cost a row, in float32 multiplications."""

    @property
    def _sizes(self) -> tuple[int, int]:
        """Outputs and inputs of a group."""
        return self.shape[0] // self.groups, math.prod(self.shape[1:])

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of these rows, (rows, groups, outputs, inputs), a few at a time."""
        entries = max(self.shape.numel(), self.groups * self.positions * self._sizes[1])
        first, last, _ = rows.indices(self.rows)
        parts = [
            widen(self.left(part)).mT @ widen(self.right(part))
            for part in (
                slice(first + some.start, first + some.stop) for some in row_chunks(last - first, entries)
            )
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def per_row(self, rows: slice) -> Tensor:
        """Return one gradient per row."""
        return self.arranged(self.formed(rows))

    def weighted(self, weights: Tensor) -> Tensor:
        """Return a sum of matrix products, one per block of rows."""
        if self.block == 0:
            return self._in_float64(weights)
        left, right = (widen(factor) for factor in self.block_factors())
        out, factors = skipped(weights).to(left.device), factors_of(weights, left)
        scaled, other = (left, right) if left.numel() <= right.numel() else (right, left)
        scaled = (scaled * factors.reshape(-1, *[1] * (scaled.dim() - 1))).index_fill_(0, out, 0.0)
        other = other.index_fill(0, out, 0.0)
        left, right = (scaled, other) if left.numel() <= right.numel() else (other, scaled)
        blocks = slices(self.rows, self.block)
        return added((self.block_sums(left[rows], right[rows]) for rows in blocks), self.block)

    def _in_float64(self, weights: Tensor) -> Tensor:
        out = skipped(weights)
        outputs, inputs = self._sizes
        total = torch.zeros(self.groups, outputs, inputs, dtype=torch.float64, device=weights.device)
        terms = min(TERMS, max(512, CHUNK // (self.groups * inputs)))
        for rows in slices(self.rows, max(1, terms // self.positions)):
            left, right = (filled(wide_copy(side(rows)), rows, out) for side in (self.left, self.right))
            left *= weights[rows, None, None, None]
            for part in slices(self.positions, TERMS):
                total += torch.einsum("ngpo,ngpi->goi", left[:, :, part], right[:, :, part])
        return self.arranged(total[None])[0].contiguous()

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return bounds by whichever way is cheaper."""
        outputs, inputs = self._sizes
        formed = (self.positions + 30.0) * outputs * inputs  # to form a gradient and walk over it
        return (self.by_gram if self.gram_cost <= formed else self.by_forming)(magnitudes)

    def by_forming(self, magnitudes: Tensor) -> Tensor:
        """Return bounds from the gradients themselves."""
        pieces = []
        for part in row_chunks(self.rows, self.shape.numel()):
            gradients = self.formed(part)
            pieces.append(lengths(gradients))
        return formed_norm_bounds(torch.cat(pieces), magnitudes, self.positions, gradients)

    def by_gram(self, magnitudes: Tensor) -> Tensor:
        """Return bounds from ``|G|^2 = sum_{s,t} <left_s, left_t> <right_s, right_t>`` in float64.

        Every inner product is at most the product of the norms, so that rounding is at most ``terms * 2**-53``
        (to first order) of the squared magnitude.
        """
        pieces = []
        for part in row_chunks(self.rows, self.groups * self.positions**2, _GRAM_CHUNK):
            left = wide(self.left(part))
            pieces.append(((left @ left.mT) * self.right_gram(part)).sum((1, 2, 3)))
        terms = sum(self._sizes) + self.groups * self.positions**2 + 16
        return (torch.cat(pieces).clamp(min=0) + terms * 2.0**-52 * magnitudes.square()).sqrt()


class Outer(Factored):
    """The gradient of a matrix, from output gradients (rows, positions, outputs) and inputs (rows, positions, inputs)."""

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.factors, self.shape = (left, right), shape
        self.rows = right.shape[0]
        self.block = block_rows(self.positions, widen(right[:0]))

    @property
    def positions(self) -> int:
        """Number of outer products of a row."""
        return self.factors[1].shape[1]

    def magnitudes(self) -> Tensor:
        """Return ``|left| |right|`` over all positions, which is at least the sum of products of norms."""
        return lengths(self.factors[0]) * lengths(self.factors[1])

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return bounds; one position's magnitude is the norm."""
        return magnitudes if self.positions == 1 else super().norm_bounds(magnitudes)

    def left(self, rows: slice) -> Tensor:
        """Return output gradients."""
        return self.factors[0][rows, None]

    def right(self, rows: slice) -> Tensor:
        """Return inputs."""
        return self.factors[1][rows, None]

    def arranged(self, gradients: Tensor) -> Tensor:
        """Return one matrix per row."""
        return gradients[:, 0]

    def block_factors(self) -> tuple[Tensor, Tensor]:
        """Return output gradients and inputs."""
        return self.factors

    def block_sums(self, left: Tensor, right: Tensor) -> Tensor:
        """Return one product over rows and positions."""
        return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def right_gram(self, rows: slice) -> Tensor:
        """Return the inner products of inputs."""
        right = wide(self.right(rows))
        return right @ right.mT

    @property
    def gram_cost(self) -> float:
        """Two Gram matrices."""
        return ghost_cost(self.positions, sum(self._sizes))


class OneHot(Share):
    """The gradient of an embedding: output gradients (rows, positions, width), added by id (rows, positions)."""

    def __init__(self, ids: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.ids, self.right, self.shape = ids, right, shape
        self.rows = right.shape[0]

    @property
    def positions(self) -> int:
        """Number of ids of a row."""
        return self.right.shape[1]

    def magnitudes(self) -> Tensor:
        """Return a bound of the sum of the norms over positions."""
        return lengths(self.right) * math.sqrt(self.positions)

    def per_row(self, rows: slice) -> Tensor:
        """Return one matrix per row."""
        right = widen(self.right[rows])
        out = right.new_zeros(right.shape[0], *self.shape)
        return out.scatter_add_(1, self.ids[rows].unsqueeze(-1).expand_as(right), right)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum by id, in float64."""
        out = skipped(weights)
        total = torch.zeros(self.shape, dtype=torch.float64, device=weights.device)
        several = self.rows * self.positions > 4 * TERMS
        for rows in slices(self.rows, max(1, TERMS // max(1, self.positions))):
            right = filled(wide_copy(self.right[rows]), rows, out).mul_(weights[rows, None, None])
            for part in slices(self.positions, TERMS):
                ids = self.ids[rows, part].to(right.device).reshape(-1)
                piece = torch.zeros_like(total) if several else total
                piece.index_add_(0, ids, right[:, part].flatten(0, 1))
                if several:
                    total += piece
        return total

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Add what falls on the same id of the same row, then square."""
        if self.positions == 1:
            return magnitudes
        keys = self.ids + torch.arange(self.rows, device=self.ids.device)[:, None] * self.shape[0]
        distinct, where = torch.unique(keys, return_inverse=True)
        right = widen(self.right)
        sums = right.new_zeros(distinct.numel(), right.shape[-1])
        sums.index_add_(0, where.reshape(-1), right.reshape(-1, right.shape[-1]))
        owner = torch.div(distinct, self.shape[0], rounding_mode="floor").to(magnitudes.device)
        squares = torch.zeros_like(magnitudes).index_add_(0, owner, lengths(sums).square())
        return formed_norm_bounds(squares.sqrt(), magnitudes, self.positions, right)


def small(share: Factored) -> Share:
    """Return the gradients themselves if they are little larger than their factors: that saves a second product."""
    factors = sum(factor[0].numel() for factor in share.block_factors())
    if share.positions == 1 or share.shape.numel() > _WORTH_KEEPING * factors:
        return share
    return Dense(share.formed(slice(None)), share.arranged)


def combined(shares: Sequence[Share]) -> list[Share]:
    """Add up gradients and join products along their positions, so that one share is left if possible.

    Where several shares are left, their sums can cancel: they are formed in float64.
    """
    joint = [share for share in shares if not isinstance(share, Dense | Outer | OneHot)]
    dense = [share for share in shares if isinstance(share, Dense)]
    outer = [share for share in shares if isinstance(share, Outer)]
    one_hot = [share for share in shares if isinstance(share, OneHot)]
    if len(dense) > 1:
        dense = [Dense(torch.stack([share.per_row(slice(None)) for share in dense]).sum(0))]
    if len(outer) > 1:
        left, right = (torch.cat(side, dim=1) for side in zip(*(s.factors for s in outer), strict=True))
        outer = [Outer(left, right, outer[0].shape)]
    if len(one_hot) > 1:
        ids = torch.cat([share.ids for share in one_hot], dim=1)
        one_hot = [OneHot(ids, torch.cat([share.right for share in one_hot], dim=1), one_hot[0].shape)]
    joint += [*dense, *outer, *one_hot]
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
    several = len(shares) > 1
    norms = chunked_norm_bounds(shares, magnitudes) if several else shares[0].norm_bounds(magnitudes)
    norms = torch.fmin(norms, magnitudes)
    if not several and shares[0].positions == 1:
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


class Convolved(Factored):
    """One call of a convolution: its input and its output gradient."""

    def __init__(self, x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> None:
        self.x, self.gradient, self.weight, self.geometry = x, gradient, weight, geometry
        self.rows, self.shape, self.groups = x.shape[0], weight.shape, geometry.groups
        self.block = block_rows(self.positions, weight)

    @property
    def positions(self) -> int:
        """Number of patches of a row."""
        return math.prod(self.gradient.shape[2:])

    def magnitudes(self) -> Tensor:
        """Return ``|patches| |gradient|``: a pixel is in as many patches as the kernel allows, or as there are."""
        overlap = math.sqrt(min(self.geometry.overlap(self.shape[2:]), self.positions))
        return lengths(self.x) * lengths(self.gradient) * overlap

    def left(self, rows: slice) -> Tensor:
        """Return output gradients by group."""
        gradient = self.gradient[rows]
        return gradient.reshape(gradient.shape[0], self.groups, self._sizes[0], self.positions).mT

    def right(self, rows: slice) -> Tensor:
        """Return patches."""
        return self.geometry.patches(self.x[rows], self.shape[2:], self.gradient.shape[2:])

    def arranged(self, gradients: Tensor) -> Tensor:
        """Return weight gradients in the order of the weight; patches have their channels last."""
        outputs, channels, *kernel = self.shape
        return gradients.reshape(gradients.shape[0], outputs, *kernel, channels).movedim(-1, 2)

    def block_factors(self) -> tuple[Tensor, Tensor]:
        """Return output gradients and inputs."""
        return self.gradient, self.x

    def block_sums(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the ordinary weight gradient."""
        return self.geometry.weight_gradient(left, right, self.weight)

    def right_gram(self, rows: slice) -> Tensor:
        """Return the inner products of patches, from those of pixels."""
        return self.geometry.patch_gram(wide(self.x[rows]), self.shape[2:], self.gradient.shape[2:])

    @property
    def gram_cost(self) -> float:
        """A Gram matrix of output gradients, one of pixels, and sums over the latter."""
        pixels = math.prod(self.x.shape[2:])
        ghost = ghost_cost(self.positions, self._sizes[0]) + ghost_cost(pixels, self.shape[1])
        return ghost + 60.0 * pixels**2
