"""What one call of a layer adds to the per-row gradients of one parameter, in the cheapest form known.

A `Share` answers three questions without saying how it is stored: the squared norm of each row's gradient,
the gradients of a few rows, and the weighted sum over all rows. Private throughout: a share is a function of
raw rows and lives only until the clipped sum is formed.

Several shares of one parameter (a layer called twice, tied weights) are ADDED before the norm is taken:
adding their squared norms instead would forget the cross terms, and clip too little.

Norms taken from Gram matrices square the conditioning of the gradient, so they are computed in float64:
in float32 a gradient that is a small difference of large terms would seem shorter than it is. A device
without float64 forms the gradients themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

# Work on a few rows at a time: 4 MB in float32, which stays near the processor and off the page tables.
CHUNK = 1 << 20
# A long float32 sum of squares loses digits: norms are taken over pieces of this length, then in float64.
_PIECE = 512
# Below this, float32 may have lost squares: they end at 1e-38.
_FAINT = 1e-24
# A kept per-row gradient may be this much larger than the input and output gradient that it replaces:
# it spares the layer a second product.
_WORTH_KEEPING = 1.25


class Share(ABC):
    """One call's part of the per-row gradients of one parameter."""

    shape: torch.Size
    rows: int

    @abstractmethod
    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows, shaped (rows, *parameter)."""

    @abstractmethod
    def weighted(self, weights: Tensor) -> Tensor:
        """Return the sum over rows of weight times gradient, shaped like the parameter."""

    def squared_norms(self) -> Tensor:
        """Return each row's squared gradient norm, in float64."""
        return chunked_squared_norms([self])


class Dense(Share):
    """Per-row gradients as they are: small ones, and those no larger than their factors."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.rows, self.shape = gradients.shape[0], gradients.shape[1:]

    def per_row(self, rows: slice) -> Tensor:
        """Return the gradients of these rows."""
        return self.gradients[rows]

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product."""
        flat = self.gradients.reshape(self.rows, -1)
        return (weights.to(flat.dtype) @ flat).reshape(self.shape)

    def squared_norms(self) -> Tensor:
        """Return sums of squares."""
        return sums_of_squares(self.gradients)


class Outer(Share):
    """A matrix's gradient as a sum over positions of outer products: ``sum_t left[t] right[t]'``.

    ``left`` is (rows, positions, outputs) or, for an embedding, the whole numbers (rows, positions) that
    stand for one-hot vectors; ``right`` is (rows, positions, inputs).
    """

    def __init__(self, left: Tensor, right: Tensor, shape: torch.Size) -> None:
        self.left, self.right, self.shape = left, right, shape
        self.rows, self.positions = right.shape[0], right.shape[1]

    @property
    def one_hot(self) -> bool:
        """Whether ``left`` holds ids instead of vectors."""
        return self.left.dim() == 2

    def per_row(self, rows: slice) -> Tensor:
        """Return one matrix per row."""
        left, right = self.left[rows], widen(self.right[rows])
        if not self.one_hot:
            return widen(left).transpose(1, 2) @ right
        out = right.new_zeros(right.shape[0], *self.shape)
        return out.scatter_add_(1, left.unsqueeze(-1).expand_as(right), right)

    def weighted(self, weights: Tensor) -> Tensor:
        """Return one matrix product, or one index-add for ids."""
        right = widen(self.right)
        weights = weights.to(right.dtype)[:, None, None]
        if self.one_hot:
            out = right.new_zeros(self.shape)
            return out.index_add_(0, self.left.reshape(-1), (right * weights).reshape(-1, right.shape[-1]))
        left = widen(self.left)
        if left.shape[-1] <= right.shape[-1]:
            left = left * weights
        else:
            right = right * weights
        return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])

    def squared_norms(self) -> Tensor:
        """Return norms by whichever way is cheaper."""
        if self.one_hot:
            return self._by_distinct_ids()
        if self.positions == 1:
            return self._by_factors()
        return outer_squared_norms([self])

    def _by_factors(self) -> Tensor:
        """Multiply the norms of one position's factors; a faint one may meet a large one."""
        left, right = sums_of_squares(self.left), sums_of_squares(self.right)
        faint = (left < _FAINT) | (right < _FAINT)
        if bool(faint.any()):
            left[faint] = sums_of_squares(widest(self.left[faint]))
            right[faint] = sums_of_squares(widest(self.right[faint]))
        return left * right

    def _by_distinct_ids(self) -> Tensor:
        """Add what falls on the same id of the same row, then square."""
        keys = self.left + torch.arange(self.rows, device=self.left.device)[:, None] * self.shape[0]
        distinct, where = torch.unique(keys, return_inverse=True)
        right = widen(self.right)
        sums = right.new_zeros(distinct.numel(), right.shape[-1])
        sums.index_add_(0, where.reshape(-1), right.reshape(-1, right.shape[-1]))
        norms = wide_zeros(self.rows, right)
        owner = torch.div(distinct, self.shape[0], rounding_mode="floor")
        return norms.index_add_(0, owner, sums_of_squares(sums))


def outer(left: Tensor, right: Tensor, shape: torch.Size) -> Share:
    """Return the share of one call of a linear layer: gradients if no larger than what they replace."""
    share = Outer(left, right, shape)
    if share.positions > 1 and is_worth_keeping(shape.numel(), share.positions * (shape[0] + shape[1])):
        return Dense(share.per_row(slice(None)))
    return share


def combined(shares: Sequence[Share]) -> list[Share]:
    """Join outer products along their positions, so that a layer called often costs what one call costs."""
    joint: list[Share] = [share for share in shares if not isinstance(share, Outer)]
    for one_hot in (False, True):
        alike = [share for share in shares if isinstance(share, Outer) and share.one_hot == one_hot]
        if len(alike) == 1:
            joint += alike
        elif alike:
            left = torch.cat([share.left for share in alike], dim=1)
            right = torch.cat([share.right for share in alike], dim=1)
            joint.append(Outer(left, right, alike[0].shape))
    return joint


def squared_norms(shares: Sequence[Share]) -> Tensor:
    """Return each row's squared norm of the SUM of the combined shares of one parameter, in float64."""
    if len(shares) == 1:
        return shares[0].squared_norms()
    outer = [share for share in shares if isinstance(share, Outer)]
    if len(outer) == len(shares):
        return outer_squared_norms(outer)
    return chunked_squared_norms(shares)


def outer_squared_norms(shares: Sequence[Outer]) -> Tensor:
    """Return norms of sums of outer products, with all cross terms, from Gram matrices if that is cheaper."""
    outputs, inputs = shares[0].shape
    positions = sum(share.positions for share in shares)
    ghost = ghost_cost(positions, outputs + inputs, shares[0].right)
    if ghost > direct_cost(positions, outputs, inputs):
        return chunked_squared_norms(shares)
    total = wide_zeros(shares[0].rows, shares[0].right)
    for i, first in enumerate(shares):
        total += _inner(first, first)
        for second in shares[i + 1 :]:
            total += 2 * _inner(first, second)
    return total


def ghost_cost(positions: int, width: int, like: Tensor) -> float:
    """Return what a Gram matrix costs a row in float32 multiplications: small float64 ones run slowly."""
    return 5.0 * positions**2 * width if _wide(like) == torch.float64 else math.inf


def direct_cost(positions: int, outputs: int, inputs: int) -> float:
    """Return what forming a row's gradient and walking over it costs, in float32 multiplications."""
    return (positions + 30.0) * outputs * inputs


def is_worth_keeping(gradients: int, factors: int) -> bool:
    """Return whether per-row gradients are about as small as what they would be formed from."""
    return gradients <= _WORTH_KEEPING * factors


def chunked_squared_norms(shares: Sequence[Share]) -> Tensor:
    """Return norms by forming the summed gradient of a few rows at a time."""
    rows = shares[0].rows
    step = max(1, CHUNK // max(1, math.prod(shares[0].shape)))
    pieces = []
    for start in range(0, rows, step):
        part = slice(start, min(rows, start + step))
        gradient = shares[0].per_row(part)
        for share in shares[1:]:
            gradient = gradient + share.per_row(part)
        pieces.append(sums_of_squares(gradient))
    return torch.cat(pieces)


def sums_of_squares(values: Tensor) -> Tensor:
    """Return the sum of squares over all but the first axis: short float32 sums, added in float64."""
    flat = widen(values).reshape(values.shape[0], -1)
    whole = flat.shape[1] // _PIECE * _PIECE
    tail: Tensor = widest(torch.linalg.vector_norm(flat[:, whole:], dim=1)).square()
    if whole == 0:
        return tail
    pieces = flat[:, :whole].reshape(flat.shape[0], -1, _PIECE)
    return tail + widest(torch.linalg.vector_norm(pieces, dim=2)).square().sum(1)


def widen(values: Tensor) -> Tensor:
    """Return half-precision values in float32: neither norms nor sums are taken in less."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def wide_zeros(rows: int, like: Tensor) -> Tensor:
    """Return zeros of the type that norms are summed in."""
    return torch.zeros(rows, dtype=_wide(like), device=like.device)


def widest(values: Tensor) -> Tensor:
    """Return values in float64 where the device has it."""
    return values.to(_wide(values))


def _wide(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64


def _inner(first: Outer, second: Outer) -> Tensor:
    """Return each row's ``sum_{u,v} <left_u, left'_v> <right_u, right'_v>``."""
    right = widest(first.right) @ widest(second.right).transpose(1, 2)
    return (right * _left_gram(first, second)).sum((1, 2))


def _left_gram(first: Outer, second: Outer) -> Tensor:
    if first.one_hot and second.one_hot:
        return (first.left[:, :, None] == second.left[:, None, :]).to(_wide(first.right))
    if second.one_hot:
        ids = second.left[:, None, :].expand(-1, first.positions, -1)
        return widest(first.left).gather(2, ids)
    if first.one_hot:
        return _left_gram(second, first).transpose(1, 2)
    return widest(first.left) @ widest(second.left).transpose(1, 2)
