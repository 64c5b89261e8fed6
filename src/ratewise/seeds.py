"""One seed for several uses, without giving them the same noise.

A person who writes ``random_state=0`` for a training and for its evaluation must not get two releases with
one noise: their difference would have none. Each use therefore makes streams of its own, of a whole number as
of a generator: two generators that start alike are one seed in other clothes.

>>> streams_for("evaluation", 7).histogram.random() == RandomStreams.from_seed(7).histogram.random()
False
>>> first, second = np.random.default_rng(7), np.random.default_rng(7)
>>> streams_for("evaluation", first).histogram.random() == RandomStreams.from_seed(second).histogram.random()
False
>>> streams_for("evaluation", None).secure
True
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.randomness import RandomStreams, UsedSeeds, source_of

USED_SEEDS = UsedSeeds()  # one register for the whole process


_USES = {"table": "fit of a table", "network": "training of a network", "selection": "search"}


def streams_for(use: str, seed: Any) -> RandomStreams:
    """Return the streams of one use; None means what it means to `RandomStreams.from_seed`.

    A generator or a seed sequence moves on by one child, so that the same object may serve again.
    """
    source = (_USES.get(use, use), source_of(seed))
    words = _words(seed)
    if words is None:
        return RandomStreams.from_seed(seed)
    own = np.random.SeedSequence(words, spawn_key=tuple(use.encode()))
    return RandomStreams(*(np.random.default_rng(child) for child in own.spawn(4)), source=source)


def _words(seed: Any) -> Any:
    """Return the entropy that a seed or generator hands out next; None if it hands out none of its own."""
    if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
        return _validate.count(at_least=0, random_state=int(seed))
    if isinstance(seed, np.random.SeedSequence):
        return seed.spawn(1)[0].generate_state(8).tolist()
    if isinstance(seed, np.random.RandomState):
        return seed.randint(0, 2**32, size=8, dtype=np.uint32).tolist()
    if isinstance(seed, np.random.Generator):
        return seed.spawn(1)[0].integers(0, 2**32, size=8, dtype=np.uint32).tolist()
    return None
