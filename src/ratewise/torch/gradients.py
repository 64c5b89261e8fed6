"""Per-row gradients of one parameter in the cheapest form known: bounds of their norms, and weighted sums.

The gradient G_i of row i is a sum over positions of products ``left right'``. A `Share`, which is private and lives
only until the clipped sum is formed, answers:

- ``magnitudes``: an upper bound A_i of the sum over positions of ``|left| |right|``, hence of ``|G_i|``;
- ``norm_bounds``: an upper bound of ``|G_i|``, which includes the rounding errors of computing it;
- ``weighted``: the sum of ``weight * G_i`` over as many rows, from the first, as there are weights, in float64 if it
  has several parts.

Sums are formed in blocks of rows: a block in the type of the gradients, by one product, and the total over blocks in
float64. If a row is replaced by one of weight 0, all other blocks stay as they are, bit by bit. Blocks are so small
that rounding moves the row's own by at most `BLOCK_SLACK` of the clip if ``weight * A_i <= cancellation * clip`` for
every row; products of more terms are formed in float64. Proof: docs/guarantees.md, "Sensitivity of the computed value".
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 1 << 20  # entries that are handled at a time: 4 MB in float32
SINGLE = 2.0**-24  # unit roundoff of float32
BLOCK_ROWS = 128  # rows of a block whose gradients have one term: their magnitude is their norm
_CANCELLATIONS = (8.0, 32.0)  # least and largest `single_cancellation`
_BLOCK_TERMS = 32 * 1088  # of a block: cancellation times rows times the roundings of a term, at most
_MOST_ROWS = 32  # of a block whose gradients have several terms
_BLOCKS = 64  # that are added in float32, of 256 rows at most
BLOCK_SLACK = 2.0 * SINGLE * (BLOCK_ROWS * (BLOCK_ROWS + 8) + 3.5 * _BLOCK_TERMS + 1.02 * _BLOCKS * 2 * BLOCK_ROWS)
"""By how many clips rounding in float32 can move the sum of a block, over all parameters together.

The three terms are those of blocks with one term per row, of blocks with several, and of adding blocks. Blocks that
a row belongs to in different layers are nested, with 32, 16, 8, 4, 2 or 1 rows by the number of positions, so that
their errors add up to at most ``1 + 5/2`` of the largest."""

DOUBLE_CANCELLATION = 1024.0  # largest ``weight * A_i``, in clips, where products are formed in float64
TERMS = 1 << 13  # of one float64 product
LONGEST_SUM = 1 << 16
"""Most roundings of one term of a float64 sum: those of its product, and one for every product that is added,
up to 2**28 positions in a step."""

# Sums of squares are taken over pieces of this length, then in float64. With unit roundoff u, the norm of a
# piece has a relative error of at most about (_PIECE / 2 + 2) * u.
_PIECE = 128
_WORTH_KEEPING = 2.0  # how much larger than its factors a per-row gradient may be that is formed and kept
_GRAM_CHUNK = 1 << 17  # Gram matrices are walked over often: 1 MB of them at a time, in float64
_GRAM_COST = 5.0  # of a float64 multiplication in a small Gram matrix, in float32 multiplications


class Share:
    """The per-row gradients of one parameter.

    `per_row` returns the gradients, shaped (rows, *parameter); bounds are in float64; `weighted` does not read rows of
    weight 0, whose numbers may not be finite.
    """

    shape: torch.Size
    rows: int
    positions = 1  # terms that are added within a row
    block = 0  # rows that are added in float32 by one product; 0: sums are formed in float64
    magnitudes: Callable[[], Tensor]
    per_row: Callable[[], Tensor]
    weighted: Callable[[Tensor], Tensor]

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return the magnitudes: with one position they are norms."""
        return magnitudes

    @property
    def cancellation(self) -> float:
        """How many times larger than the clip the weighted magnitude of several positions may be."""
        return single_cancellation(self.positions) if self.block else DOUBLE_CANCELLATION


class Dense(Share):
    """Per-row gradients as they are; `arrange` brings the entries of a row into the order of the parameter.

    Norms and sums are taken of the very same numbers, whatever rounding was involved in forming them.
    """

    def __init__(self, gradients: Tensor, arrange: Callable[[Tensor], Tensor] = lambda found: found) -> None:
        self.gradients, self.arrange = gradients.contiguous(), arrange
        self.rows, self.shape = gradients.shape[0], arrange(gradients[:0]).shape[1:]
        self.block = block_rows(1, gradients)

    def magnitudes(self) -> Tensor:
        """Return the norms themselves: there is one term."""
        return lengths(self.gradients)

    def per_row(self) -> Tensor:
        """Return the gradients."""
        return self.arrange(self.gradients)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product per block of rows."""
        flat = self.gradients.reshape(self.rows, -1)[: len(weights)]
        flat.index_fill_(0, (weights == 0).nonzero().squeeze(1).to(flat.device), 0.0)
        if self.block:
            factors = _rounded_down(weights, flat)
            blocks = (factors[rows] @ flat[rows] for rows in slices(len(weights), self.block))
            total = _added(blocks, self.block)
        else:
            total = torch.zeros(flat.shape[1], dtype=torch.float64, device=weights.device)
            for rows in slices(len(weights), TERMS):
                for columns in slices(flat.shape[1], max(256, CHUNK // self.rows)):
                    total[columns].addmv_(wide(flat[rows, columns]).mT, weights[rows])
        return self.arrange(total.reshape(1, *self.gradients.shape[1:]))[0].contiguous()


class Outer(Share):
    """Gradients of a matrix: for each group of outputs, a sum over positions of products ``left_t right_t'``.

    `left` are output gradients (rows, positions, outputs), `right` are inputs (rows, positions, inputs).
    """

    groups = 1

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size, positions: int | None = None) -> None:
        self.factors, self.shape, self.rows = (left, right), shape, right.shape[0]
        self.positions = right.shape[1] if positions is None else positions
        self.block = block_rows(self.positions, widen(right[:0]))
        self._outputs, self._inputs = shape[0] // self.groups, math.prod(shape[1:])  # of a group

    # what a convolution does in another way: factors are (rows, groups, positions, outputs or inputs of the group)

    def _left(self, rows: slice) -> Tensor:
        return self.factors[0][rows, None]

    def _right(self, rows: slice) -> Tensor:
        return self.factors[1][rows, None]

    def _right_gram(self, rows: slice) -> Tensor:
        """Return the inner products of inputs in float64, (rows, groups, positions, positions)."""
        right = wide(self._right(rows))
        return right @ right.mT

    def _gram_cost(self) -> float:
        """Return what norms by Gram matrices cost a row, in float32 multiplications."""
        return _GRAM_COST * self.positions**2 * (self._outputs + self._inputs)

    def _block_sum(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the gradient summed over the rows of these factors."""
        return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def arranged(self, gradients: Tensor) -> Tensor:
        """Return gradients (rows, groups, outputs, inputs) in the order of the parameter, (rows, *parameter)."""
        return gradients[:, 0]

    # what all of them do

    def magnitudes(self) -> Tensor:
        """Return ``|left| |right|`` over all positions, which is at least the sum of products of norms."""
        return lengths(self.factors[0]) * lengths(self.factors[1])

    def formed(self, places: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the gradients (rows, groups, outputs, inputs), a few rows at a time; `places` holds those of all rows."""
        entries = max(self.shape.numel(), self.groups * self.positions * self._inputs)
        for rows in _row_chunks(self.rows, entries, CHUNK):
            left, right = (widen(side(rows)).flatten(0, 1) for side in (self._left, self._right))
            out = None if places is None else places[rows].flatten(0, 1)
            found = torch.bmm(left.mT, right, out=out)
            yield found.reshape(-1, self.groups, *found.shape[1:])

    def all_formed(self) -> Tensor:
        """Return the gradients (rows, groups, outputs, inputs)."""
        like = widen(self.factors[1][:0])
        places = like.new_empty(self.rows, self.groups, self._outputs, self._inputs)
        deque(self.formed(places), maxlen=0)
        return places

    def per_row(self) -> Tensor:
        """Return one gradient per row."""
        return self.arranged(self.all_formed())

    def weighted(self, weights: Tensor) -> Tensor:
        """Return a sum of matrix products, one per block of rows."""
        if self.block == 0:
            return self._weighted_in_float64(weights)
        out = (weights == 0).to(self.factors[0].device)
        blocks = (self._weighted_block(rows, weights[rows], out[rows]) for rows in slices(len(weights), self.block))
        return _added(blocks, self.block)

    def _weighted_block(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        """Return the weighted sum over a block; rows that are `out` are replaced by zeros."""
        sides = [widen(factor[rows]) for factor in self.factors]
        one = 0 if sides[0].numel() <= sides[1].numel() else 1  # the smaller side
        shapes = [(-1, *[1] * (side.dim() - 1)) for side in sides]
        sides[one] = sides[one] * _rounded_down(weights, sides[one]).reshape(shapes[one])
        both = zip(sides, shapes, strict=True)
        return self._block_sum(*(side.masked_fill(out.reshape(shape), 0.0) for side, shape in both))

    def _weighted_in_float64(self, weights: Tensor) -> Tensor:
        sizes = self.groups, self._outputs, self._inputs
        total = torch.zeros(sizes, dtype=torch.float64, device=weights.device)
        terms = min(TERMS, max(512, CHUNK // (self.groups * self._inputs)))
        for rows in slices(len(weights), max(1, terms // self.positions)):
            factors = weights[rows, None, None, None]
            left, right = (torch.where(factors == 0, 0.0, wide(side(rows))) for side in (self._left, self._right))
            left *= factors
            for part in slices(self.positions, TERMS):
                total += torch.einsum("ngpo,ngpi->goi", left[:, :, part], right[:, :, part])
        return self.arranged(total[None])[0].contiguous()

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Return bounds by whichever way is cheaper; that of one position is the magnitude, unless it is of a patch."""
        if self.positions == 1 and type(self) is Outer:
            return magnitudes
        forming = (self.positions + 30.0) * self._outputs * self._inputs  # to form a gradient and walk over it
        return (self.by_gram if self._gram_cost() <= forming else self.by_forming)(magnitudes)

    def by_forming(self, magnitudes: Tensor) -> Tensor:
        """Return bounds from the gradients themselves."""
        norms = torch.cat([lengths(gradients) for gradients in self.formed()])
        return _formed_norm_bounds(norms, magnitudes, self.positions, self.factors[1])

    def by_gram(self, magnitudes: Tensor) -> Tensor:
        """Return bounds from ``|G|^2 = sum_{s,t} <left_s, left_t> <right_s, right_t>`` in float64.

        Every inner product is at most the product of the norms, so that rounding is at most ``terms * 2**-53``
        (to first order) of the squared magnitude.
        """
        pieces = []
        for rows in _row_chunks(self.rows, self.groups * self.positions**2, _GRAM_CHUNK):
            left = wide(self._left(rows))
            pieces.append(((left @ left.mT) * self._right_gram(rows)).sum((1, 2, 3)))
        terms = self._outputs + self._inputs + self.groups * self.positions**2 + 16
        return (torch.cat(pieces).clamp(min=0) + terms * 2.0**-52 * magnitudes.square()).sqrt()


class Geometry(NamedTuple):
    """How a convolution walks over its input, which is zero-padded alike on both sides."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        none = [0] * len(self.stride)
        return torch.convolution(x, weight, bias, *self[:3], False, none, self.groups)

    def backward(self, gradient: Tensor, x: Tensor, weight: Tensor, *, of_input: bool) -> Tensor:
        """Return the gradient of the input, or that of the weight summed over rows."""
        mask, none = [of_input, not of_input, False], [0] * len(self.stride)
        found: list[Tensor] = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, *self[:3], False, none, self.groups, mask
        )
        return found[0 if of_input else 1]


class Convolved(Outer):
    """Gradients of a convolution: a linear layer on patches of the input x."""

    def __init__(self, x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry) -> None:
        self.weight, self.geometry, self.groups = weight, geometry, geometry.groups
        super().__init__(gradient, x, weight.shape, math.prod(gradient.shape[2:]))

    def _left(self, rows: slice) -> Tensor:
        gradient = self.factors[0][rows]
        return gradient.reshape(gradient.shape[0], self.groups, self._outputs, self.positions).mT

    def _right(self, rows: slice) -> Tensor:
        """Return patches, cut with the channels last, where they are whole runs of memory."""
        geometry, positions = self.geometry, self.factors[0].shape[2:]
        around = [pad for padding in reversed(geometry.padding) for pad in (padding, padding)]
        x = functional.pad(self.factors[1][rows].movedim(1, -1), [0, 0, *around]).contiguous()
        row, *steps, _ = x.stride()
        channels = x.shape[-1] // self.groups
        hops = [step * hop for step, hop in zip(steps, geometry.stride, strict=True)]
        offsets = [step * apart for step, apart in zip(steps, geometry.dilation, strict=True)]
        sizes = (x.shape[0], self.groups, *positions, *self.shape[2:], channels)
        view = x.as_strided(sizes, (row, channels, *hops, *offsets, 1))
        return view.reshape(x.shape[0], self.groups, self.positions, -1)

    def _right_gram(self, rows: slice) -> Tensor:
        """Return inner products of all pairs of patches without patches.

        With the pixels' products ``G[i, j]``, which are fewer by the kernel's size, the products of the patches at u and
        v are the sum over the kernel's offsets k of ``G[u + k, v + k]``; offsets are added up one axis after the other.
        """
        x, kernel, positions = wide(self.factors[1][rows]), self.shape[2:], self.factors[0].shape[2:]
        pixels = x.reshape(x.shape[0] * self.groups, -1, math.prod(x.shape[2:]))
        gram = (pixels.mT @ pixels).reshape(-1, *x.shape[2:], *x.shape[2:])
        for axis, (hop, pad, apart) in enumerate(zip(*self.geometry[:3], strict=True)):
            pair = (1 + axis, 1 + len(kernel) + axis)
            padded = functional.pad(gram.movedim(pair, (-2, -1)), [pad] * 4)
            length = (positions[axis] - 1) * hop + 1
            seen = [slice(k * apart, k * apart + length, hop) for k in range(kernel[axis])]
            total = padded[..., seen[0], seen[0]].contiguous()
            for pixel in seen[1:]:
                total += padded[..., pixel, pixel]
            gram = total.movedim((-2, -1), pair)
        return gram.reshape(x.shape[0], self.groups, self.positions, -1)

    def _gram_cost(self) -> float:
        pixels = math.prod(self.factors[1].shape[2:])
        products = self.positions**2 * self._outputs + pixels**2 * self.shape[1]
        return _GRAM_COST * products + 60.0 * pixels**2  # sums over the Gram matrix of pixels

    def _block_sum(self, left: Tensor, right: Tensor) -> Tensor:
        return self.geometry.backward(left, right, self.weight, of_input=False)

    def arranged(self, gradients: Tensor) -> Tensor:
        """Return weight gradients in the order of the weight; patches have their channels last."""
        outputs, channels, *kernel = self.shape
        return gradients.reshape(gradients.shape[0], outputs, *kernel, channels).movedim(-1, 2)

    def magnitudes(self) -> Tensor:
        """Return ``|patches| |gradient|``: a pixel is in as many patches as the kernel allows, or as there are."""
        axes = zip(self.shape[2:], self.geometry.stride, self.geometry.dilation, strict=True)
        overlap = math.prod(-(-size // hop) if apart == 1 else size for size, hop, apart in axes)
        return super().magnitudes() * math.sqrt(min(overlap, self.positions))


class OneHot(Share):
    """The gradient of an embedding: output gradients (rows, positions, width), added by id (rows, positions)."""

    def __init__(self, ids: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.ids, self.right, self.shape = ids, right, shape
        self.rows, self.positions = ids.shape

    def magnitudes(self) -> Tensor:
        """Return a bound of the sum of the norms over positions."""
        return lengths(self.right) * math.sqrt(self.positions)

    def norm_bounds(self, magnitudes: Tensor) -> Tensor:
        """Add what falls on the same id of the same row, then square."""
        if self.positions == 1:
            return magnitudes
        keys = self.ids + torch.arange(self.rows, device=self.ids.device)[:, None] * self.shape[0]
        distinct, where = torch.unique(keys, return_inverse=True)
        right = widen(self.right).flatten(0, 1)
        sums = right.new_zeros(distinct.numel(), right.shape[-1]).index_add_(0, where.reshape(-1), right)
        owner = torch.div(distinct, self.shape[0], rounding_mode="floor").to(magnitudes.device)
        squares = torch.zeros_like(magnitudes).index_add_(0, owner, lengths(sums).square())
        return _formed_norm_bounds(squares.sqrt(), magnitudes, self.positions, right)

    def per_row(self) -> Tensor:
        """Return one matrix per row."""
        right = widen(self.right)
        out = right.new_zeros(self.rows, *self.shape)
        return out.scatter_add_(1, self.ids.unsqueeze(-1).expand_as(right), right)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the weighted sum by id, in float64."""
        total: Tensor | None = None
        for rows in slices(len(weights), max(1, 4 * TERMS // max(1, self.positions))):
            factors = weights[rows, None, None]
            right = torch.where(factors == 0, 0.0, wide(self.right[rows])) * factors
            for part in slices(self.positions, 4 * TERMS):
                ids = self.ids[rows, part].to(right.device).reshape(-1)
                piece = torch.zeros(self.shape, dtype=torch.float64, device=right.device)
                piece.index_add_(0, ids, right[:, part].flatten(0, 1))
                total = piece if total is None else total.add_(piece)
        return torch.zeros(self.shape, dtype=torch.float64, device=weights.device) if total is None else total


def small(share: Outer) -> Share:
    """Return the gradients themselves if they are little larger than their factors: that saves a second product."""
    factors = sum(factor[0].numel() for factor in share.factors)
    if share.positions == 1 or share.shape.numel() > _WORTH_KEEPING * factors:
        return share
    return Dense(share.all_formed(), share.arranged)


def combined(shares: Sequence[Share]) -> Share:
    """Return the share of a parameter that is used several times.

    Its norm is that of the sum: adding squared norms would ignore the cross terms, and clip too little.
    """
    if len(shares) == 1:
        return shares[0]
    if all(type(share) is Outer for share in shares):  # joined along positions
        factors = zip(*(share.factors for share in shares if isinstance(share, Outer)), strict=True)
        left, right = (torch.cat(side, dim=1) for side in factors)
        return Outer(left, right, shares[0].shape)
    total = shares[0].per_row()
    for share in shares[1:]:
        total = total + share.per_row()
    return Dense(total)


def bounds(share: Share) -> tuple[Tensor, Tensor]:
    """Return upper bounds of each row's norm, and of its magnitude in multiples of what is allowed, in float64.

    With a weight that brings both to the clip at most, rounding in the weighted sums is bounded. A row of which an
    entry is not finite, or too large to be squared, has a magnitude that is not finite.
    """
    magnitudes = share.magnitudes()
    norms = torch.fmin(share.norm_bounds(magnitudes), magnitudes)
    if share.positions == 1:  # the magnitude of one term is its norm
        return norms, torch.where(torch.isfinite(magnitudes), norms, magnitudes)
    return norms, magnitudes / share.cancellation


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


def _rounded_down(weights: Tensor, like: Tensor) -> Tensor:
    """Return weights in float32, none of them above what it was."""
    return (weights * (1.0 - 2.0 * SINGLE)).to(like)


def _added(parts: Iterator[Tensor], block: int) -> Tensor:
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


def _row_chunks(rows: int, size: int, most: int) -> Iterator[slice]:
    """Yield slices of so many rows that `size` entries per row are `most` together, if possible.

    Their length is a power of two: a last chunk of one row would be handled by other kernels than the rest,
    and a row's numbers would then depend on where in the batch it is.
    """
    return slices(rows, 1 << (max(1, most // max(1, size)).bit_length() - 1))


def _formed_norm_bounds(norms: Tensor, magnitudes: Tensor, positions: int, like: Tensor) -> Tensor:
    """Return bounds from the norms of gradients that were formed by adding up so many products.

    The gradients were formed with rounding errors of at most ``positions * u`` (to first order) of the
    magnitude, where u is the unit roundoff of products under PyTorch's current settings.
    """
    unit = 2.0**-53 if like.dtype == torch.float64 else SINGLE if _full_precision() else 2.0**-8
    return norms + (positions + 16) * 1.0625 * unit * magnitudes


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
    error = _PIECE * (2.0**-53 if double else SINGLE) + entries * 2.0**-53
    underflow = (2.0**-500 if double else 2.0**-60) * math.sqrt(entries)
    return squares.sqrt_().mul_(1.0 + error).add_(underflow)


def _full_precision() -> bool:
    """Return whether PyTorch forms products of float32 numbers in float32, and not in fewer bits."""
    backend: Any = torch.backends.mkldnn
    parts = (backend, getattr(backend, "conv", None), getattr(backend, "matmul", None))
    settings = {getattr(part, "fp32_precision", "none") for part in parts}
    return settings <= {"none", "ieee"} and torch.get_float32_matmul_precision() == "highest"


def widen(values: Tensor) -> Tensor:
    """Return half-precision values in float32: neither norms nor sums are taken in less."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def wide(values: Tensor) -> Tensor:
    """Return values in float64, on the processor if the device has no float64."""
    return values.to(wide_device(values), torch.float64)


def wide_device(like: Tensor) -> torch.device:
    """Return where float64 sums for tensors on a device are formed."""
    return torch.device("cpu") if like.device.type == "mps" else like.device
