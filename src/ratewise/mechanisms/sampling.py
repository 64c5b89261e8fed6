"""Which rows or units take part in a step.

Poisson sampling keeps every row independently with the same probability, at a cost in proportion to the rows
that are kept: the gaps between kept rows follow a geometric law. A `KeyedSample` is a Poisson sample in which
membership of a unit is a function of a secret key and of the unit's number, so that processes which hold
parts of the units draw their parts of one sample without talking to each other.

>>> sample = KeyedSample(n_units=5000, rate=0.01, key=bytes(32))
>>> parts = sample.units(0, 1700), sample.units(1700, 5000)
>>> bool(np.array_equal(np.concatenate(parts), sample.units(0, 5000)))
True
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ratewise.mechanisms.randomness import KEY_BYTES, KeyedGenerator

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]

_DENSE_RATE = 0.35  # above it a byte per row is cheaper than a gap per kept row
_DRAWS_AT_ONCE = 1 << 15  # few enough to stay in cache; small samples of several steps are drawn together
BLOCK = 1 << 20  # units of a keyed sample that are drawn together


def poisson_rows(n_rows: int, rate: float, rng: np.random.Generator) -> Rows:
    """Keep each of `n_rows` rows with probability `rate`, independently; return their numbers in rising order.

    A sample may be empty, and its size is **private**: it must not leave the step that reads it.
    """
    if rate >= 1.0:
        return np.arange(n_rows, dtype=np.intp)
    return _by_mask(n_rows, rate, rng) if rate > _DENSE_RATE else _by_gaps(n_rows, rate, rng)


def _by_mask(n_rows: int, rate: float, rng: np.random.Generator) -> Rows:
    # one byte decides for most rows; where it ties with the first byte of the rate, a further draw does
    whole = math.floor(256.0 * rate)
    first = np.frombuffer(rng.bytes(n_rows), np.uint8)
    kept = first < whole
    if whole < 256.0 * rate:
        ties = np.flatnonzero(first == whole)
        kept[ties] = rng.random(ties.size) < 256.0 * rate - whole
    return np.flatnonzero(kept)


def _by_gaps(n_rows: int, rate: float, rng: np.random.Generator) -> Rows:
    table, listed, others = _gap_table(rate)
    pieces, last = [], -1
    while last < n_rows:
        expected = (n_rows - last) * rate
        size = min(int(expected + 4.0 * math.sqrt(expected)) + 8, 2 * _DRAWS_AT_ONCE)
        index = np.frombuffer(rng.bytes(2 * size), "<u2")
        piece: Rows = table.take(index).astype(np.intp)
        rest = np.flatnonzero(index >= listed)
        gaps = others.searchsorted(rng.random(rest.size), "right")
        # a longer gap goes on like any other: the floor of an exponential variable of rate -log(1 - rate)
        longer = np.flatnonzero(gaps == len(others) - 1)
        more = rng.standard_exponential(longer.size) / -math.log1p(-rate)
        gaps[longer] += np.minimum(more, float(n_rows)).astype(np.intp)  # cut off past the last row
        piece[rest] = gaps
        piece += 1
        piece[0] += last
        np.cumsum(piece, out=piece)
        last = int(piece[-1])
        pieces.append(piece)
    kept = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return kept[: kept.searchsorted(n_rows)]


@functools.lru_cache(maxsize=16)
def _gap_table(rate: float) -> tuple[npt.NDArray[np.uint16], int, Floats]:
    """Return the gap of each 16-bit index, how many indices have one, and the distribution of gaps for the others.

    A gap k has probability ``p = rate * (1 - rate)**k``, and ``floor(2**16 * p)`` indices; the others give it what is
    left of p. The last entry of their distribution function is for all gaps that are too rare to have an index.
    """
    length = max(0, math.ceil(math.log(2.0**-16 / rate) / math.log1p(-rate)))  # less than 2**15, whatever the rate
    chances = np.exp(np.arange(length + 1) * math.log1p(-rate))  # the last one is that of a longer gap
    chances[:-1] *= rate
    counts = np.floor(chances[:-1] * 2.0**16)
    gaps = np.repeat(np.arange(length, dtype=np.uint16), counts.astype(np.intp))
    chances[:-1] -= counts * 2.0**-16
    others = np.cumsum(chances)
    return np.append(gaps, np.zeros((1 << 16) - len(gaps), dtype=np.uint16)), len(gaps), others / others[-1]


@dataclass(frozen=True)
class KeyedSample:
    """A Poisson sample of numbered units that does not depend on how the units are spread over processes.

    Units are cut into blocks. Which units of a block take part is a cryptographic function of the key (32
    secret bytes), the step and the block: to whoever does not know the key, every unit is kept independently
    with probability `rate`. `n_units` counts the units of all processes together; `block` is the number of
    units drawn together and must be the same in all processes. Small samples of `together` steps that share a
    key are drawn as one sequence of independent trials and kept in `drawn`, which is never pickled.
    """

    n_units: int
    rate: float
    key: bytes = field(repr=False)
    step: int = 0
    block: int = BLOCK
    together: int = 1
    drawn: dict[int, tuple[Rows, list[int]]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedSample, (self.n_units, self.rate, self.key, self.step, self.block, self.together)

    def units(self, start: int, stop: int) -> Rows:
        """Return the numbers in [`start`, `stop`) that take part, in rising order; **private**."""
        stop = min(stop, self.n_units)
        if start >= stop:
            return np.zeros(0, dtype=np.intp)
        found = [self._of_block(number) for number in range(start // self.block, -(-stop // self.block))]
        if (start, stop) == (0, self.n_units) and len(found) == 1:
            return found[0]
        units = found[0] if len(found) == 1 else np.concatenate(found)
        first, last = np.searchsorted(units, (start, stop))
        return units[first:last]

    def _of_block(self, number: int) -> Rows:
        start = number * self.block
        size, place = min(self.block, self.n_units - start), self.step % self.together
        if number not in self.drawn:
            rng = cast(np.random.Generator, KeyedGenerator(self.key, self.step - place, number))
            kept = poisson_rows(size * self.together, self.rate, rng)
            if self.together == 1:
                return kept + start if start else kept
            self.drawn[number] = kept, kept.searchsorted(np.arange(self.together + 1) * size).tolist()
        kept, edges = self.drawn[number]
        return kept[edges[place] : edges[place + 1]] + (start - place * size)


def keyed_samples(n_units: int, rate: float, steps: int, rng: np.random.Generator) -> Iterator[KeyedSample]:
    """Yield `steps` samples, with fresh keys from the generator."""
    together = max(1, min(steps, math.floor(_DRAWS_AT_ONCE / (n_units * rate))))
    for first in range(0, steps, together):
        key, drawn = rng.bytes(KEY_BYTES), dict[int, tuple[Rows, list[int]]]()
        for step in range(first, min(first + together, steps)):
            yield KeyedSample(n_units, rate, key, step, BLOCK, together, drawn)
