"""Poisson samples that do not depend on how the rows are spread over processes.

All rows, numbered through, are cut into blocks of 2**20. Whether a row takes part in a step is decided by a
generator of its block, made from a secret seed, the step and the block's number. So each row is kept
independently with the same probability, whoever asks: a process that owns some of the rows draws the sample
of their blocks and keeps its own, and all processes together hold exactly one Poisson sample of all rows.
The cost is in proportion to the rows kept and the blocks touched.

>>> whole = BlockSampler(5000, 0.01, secret=(1, 2, 3))
>>> shares = range(0, 1700), range(1700, 5000)
>>> parts = [BlockSampler(5000, 0.01, secret=(1, 2, 3), owned=share) for share in shares]
>>> bool(np.array_equal(np.concatenate([part.rows(7) for part in parts]), whole.rows(7)))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ratewise import _validate
from ratewise.exceptions import InvalidInput
from ratewise.sampling import PoissonSampler, Rows

BLOCK = 1 << 20
SECRET_WORDS = 8


class StepSampler(Protocol):
    """Says which rows take part in a step."""

    def rows(self, step: int) -> Rows:
        """Return the numbers of the rows of this process that take part in a step, **private**."""
        ...


class BlockSampler:
    """A Poisson sample of the owned rows for each step.

    Parameters
    ----------
    n_rows : int
        Rows of all processes together.
    rate : float
    secret : sequence of whole numbers below 2**32
        Whoever knows it knows the samples: it is kept in memory only, and each run, and each resumed run,
        draws its own.
    owned : range, optional
        The rows of this process; all unless told.
    """

    def __init__(
        self, n_rows: int, rate: float, secret: Sequence[int], owned: range | None = None, block: int = BLOCK
    ) -> None:
        self._sampler = PoissonSampler(n_rows, rate)
        self._secret = [int(word) for word in secret]
        self._owned = range(n_rows) if owned is None else owned
        self._block = block

    @staticmethod
    def draw_secret(stream: np.random.Generator) -> list[int]:
        """Return a fresh secret of 256 bits."""
        return [int(word) for word in stream.integers(0, 2**32, SECRET_WORDS, dtype=np.uint64)]

    def rows(self, step: int) -> Rows:
        """Return the numbers of the owned rows that take part in a step, in rising order."""
        owned, block = self._owned, self._block
        if len(owned) == 0:
            return np.zeros(0, dtype=np.intp)
        found = [
            self._of_block(step, number) for number in range(owned.start // block, -(-owned.stop // block))
        ]
        rows = np.concatenate(found)
        first, last = np.searchsorted(rows, (owned.start, owned.stop))
        return rows[first:last]

    def _of_block(self, step: int, number: int) -> Rows:
        start = number * self._block
        length = min(self._block, self._sampler.n_rows - start)
        stream = np.random.default_rng(np.random.SeedSequence([*self._secret, step, number]))
        (rows,) = PoissonSampler(length, self._sampler.rate).batches(1, stream)
        return rows + start


def share_of(n_rows: int, rank: int, world: int) -> range:
    """Return the rows of one of `world` processes: neighbouring rows, shares equal up to one row.

    >>> [len(share_of(10, rank, 3)) for rank in range(3)]
    [3, 3, 4]
    """
    n_rows, world = _validate.count(at_least=0, n_rows=n_rows), _validate.count(world=world)
    rank = _validate.count(at_least=0, rank=rank)
    if rank >= world:
        raise InvalidInput(f"rank must be below world ({world}), got {rank}")
    return range(n_rows * rank // world, n_rows * (rank + 1) // world)
