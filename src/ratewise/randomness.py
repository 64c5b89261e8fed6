"""Where random numbers come from.

Training reads four streams: one picks the rows, one makes the noise of the gradient, one the noise of the
histogram, one that of the preparation of features. They are independent of each other, so that leaving one
release out does not move the others, and every function that draws takes its stream as an argument: there is
no global state and no default seed.

Anything with the methods of `numpy.random.Generator` can serve as a stream.

>>> streams = RandomStreams.from_seed(7)
>>> RandomStreams.from_seed(7).sampling.random() == streams.sampling.random()
True
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass

import numpy as np

from ratewise.exceptions import InvalidType


@dataclass(frozen=True)
class RandomStreams:
    """Four independent streams of random numbers; `repr` shows nothing of their state."""

    sampling: np.random.Generator
    gradient: np.random.Generator
    histogram: np.random.Generator
    preparation: np.random.Generator

    @classmethod
    def from_seed(
        cls, seed: int | np.random.SeedSequence | np.random.Generator | np.random.RandomState | None = None
    ) -> RandomStreams:
        """Split a seed into the four streams; None takes fresh entropy from the operating system.

        A run that resumes must not be given the seed it started with: it would draw the same noise again.
        Continue with fresh entropy, or with the very generator object that was in use.
        """
        if isinstance(seed, np.random.Generator):
            return cls(*seed.spawn(4))
        if isinstance(seed, np.random.RandomState):
            seed = np.random.SeedSequence(seed.randint(0, 2**32, size=8, dtype=np.uint32).tolist())
        elif not isinstance(seed, np.random.SeedSequence):
            if isinstance(seed, bool) or not (seed is None or isinstance(seed, numbers.Integral)):
                raise InvalidType(f"seed must be a whole number, a NumPy generator or None, got {seed!r}")
            seed = np.random.SeedSequence(None if seed is None else int(seed))
        return cls(*(np.random.default_rng(child) for child in seed.spawn(4)))

    def __repr__(self) -> str:
        return "RandomStreams(...)"
