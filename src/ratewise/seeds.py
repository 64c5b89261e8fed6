"""One seed for several uses, without giving them the same noise.

A person who writes ``random_state=0`` for a training and for its evaluation must not get two releases with
one noise: their difference would have none. Each use therefore makes streams of its own of a whole number.

>>> streams_for("evaluation", 7).histogram.random() == RandomStreams.from_seed(7).histogram.random()
False
>>> streams_for("evaluation", None).secure
True
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.randomness import RandomStreams


def streams_for(use: str, seed: Any) -> RandomStreams:
    """Return the streams of one use; generators and None mean what they mean to `RandomStreams.from_seed`."""
    if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
        number = _validate.count(at_least=0, random_state=int(seed))
        seed = np.random.SeedSequence(number, spawn_key=tuple(use.encode()))
    return RandomStreams.from_seed(seed)
