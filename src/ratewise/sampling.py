"""Which rows take part in a step.

Poisson sampling keeps every row independently with the same probability. The cost is in proportion to the
rows that are kept, not to the rows there are: the gaps between kept rows follow a geometric law, and all
steps of a run are one long sequence of such gaps.

>>> sampler = PoissonSampler(n_rows=1000, rate=0.01)
>>> batches = list(sampler.batches(5, np.random.default_rng(0)))
>>> len(batches), all(np.all(np.diff(rows) > 0) for rows in batches)
(5, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratewise import _validate

Rows = npt.NDArray[np.intp]

# Above this rate one uniform draw per row is cheaper than one exponential draw per kept row (measured).
_DENSE_RATE = 0.35
# Draws made at once: enough to drown the cost of a call, few enough to stay in cache.
_DRAWS_AT_ONCE = 1 << 15
# Positions of one chunk stay far below 2**53, where floating-point numbers still count exactly.
_POSITIONS_AT_ONCE = 1 << 44


@dataclass(frozen=True)
class PoissonSampler:
    """Keep each of `n_rows` rows with probability `rate`, independently of all other rows and steps.

    A batch may be empty, and its size is private: it must not leave the step that reads it.

    Parameters
    ----------
    n_rows : int
        Number of rows, a public number.
    rate : float in (0, 1]
    """

    n_rows: int
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_rows", _validate.count(n_rows=self.n_rows))
        object.__setattr__(self, "rate", _validate.fraction(rate=self.rate))

    @property
    def expected_rows(self) -> float:
        """Expected size of a batch: the constant that sums are divided by."""
        return self.n_rows * self.rate

    def batches(self, steps: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Yield `steps` independent batches, each as row numbers in rising order."""
        if self.rate >= 1.0:
            return self._everything(steps)
        return self._by_mask(steps, rng) if self.rate > _DENSE_RATE else self._by_gaps(steps, rng)

    def _everything(self, steps: int) -> Iterator[Rows]:
        rows = np.arange(self.n_rows, dtype=np.intp)
        for _ in range(steps):
            yield rows

    def _by_mask(self, steps: int, rng: np.random.Generator) -> Iterator[Rows]:
        for _ in range(steps):
            yield np.flatnonzero(rng.random(self.n_rows) < self.rate)

    def _by_gaps(self, steps: int, rng: np.random.Generator) -> Iterator[Rows]:
        at_once = int(min(_DRAWS_AT_ONCE / self.expected_rows, _POSITIONS_AT_ONCE / self.n_rows))
        at_once = max(1, min(at_once, steps))
        while steps > 0:
            chunk = min(at_once, steps)
            kept = self._kept_positions(chunk * self.n_rows, rng)
            edges = np.searchsorted(kept, np.arange(chunk + 1) * self.n_rows).tolist()
            for step in range(chunk):
                yield kept[edges[step] : edges[step + 1]] - step * self.n_rows
            steps -= chunk

    def _kept_positions(self, length: int, rng: np.random.Generator) -> Rows:
        """Return where a sequence of `length` independent trials succeeds."""
        pieces, last = [], -1
        while last < length:
            piece = self._gaps(length - last, rng)
            np.cumsum(piece, out=piece)
            piece += last
            last = int(piece[-1])
            pieces.append(piece)
        kept = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return kept[: np.searchsorted(kept, length)]

    def _gaps(self, length: int, rng: np.random.Generator) -> Rows:
        """Draw distances from one success to the next: P(gap > k) = (1 - rate)**k, cut off past `length`.

        The floor of an exponential variable with rate -log(1 - q) is geometric with parameter q.
        """
        expected = length * self.rate
        size = min(int(expected + 4.0 * math.sqrt(expected)) + 8, 2 * _DRAWS_AT_ONCE)
        draws = rng.standard_exponential(size)
        draws /= -math.log1p(-self.rate)
        np.minimum(draws, float(length), out=draws)
        gaps: Rows = draws.astype(np.intp)
        gaps += 1
        return gaps
