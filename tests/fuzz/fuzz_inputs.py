"""Strategies that feed the entry points: sound ones, those at every border, and those of no use at all."""

from __future__ import annotations

import json
import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ratewise.accounting import GaussianEvent, LaplaceEvent, OutsideEvent, SelectionEvent, TrainingEvent

# numbers at and beyond every border, and things that are no numbers at all
edges = st.sampled_from(
    [0, 1, -1, 2, 0.5, 1e-300, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan, 1e-5, 0.999999, 10**30]
)
things = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.lists(st.integers(-2, 2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(-2, 2), max_size=2),
    st.just(object()),
    st.complex_numbers(max_magnitude=2),
)
odd = st.one_of(edges, things, st.floats(), st.integers(), st.just(np.float64(0.1)), st.just(np.int64(3)))
# where a number asks for memory or time in proportion: not more of it than a test has
odd_size = st.one_of(things, st.integers(-3, 9), st.sampled_from([0.5, math.nan, math.inf, -1e308, 10**30]))
probabilities = st.floats(1e-3, 1.0)
noises = st.floats(0.3, 50.0)
values = st.sampled_from(["a", "b", "c", 1, 2, None, True, 1.5, "Ω", ""])
names = st.sampled_from(["g", "h", "age", "", "no such", "label", "Ω"])


def mostly(sound, doubt=2, else_=odd):
    """Draw something sound, but in about `doubt` of 64 cases anything.

    The numbers for anything lie inside the range: Hypothesis likes to try ends.
    """
    return st.integers(0, 63).flatmap(lambda number: else_ if 40 <= number < 40 + doubt else sound)


def both_classes(draw, n):
    """Draw labels 0 and 1 of n rows, nearly always both of them."""
    found = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    if n > 1 and draw(mostly(st.just(True), 2, st.just(False))):
        found[:2] = [0, 1]
    return found


def events():
    """Draw a description of a release."""
    training = st.builds(
        TrainingEvent,
        sampling_rate=probabilities,
        steps=st.integers(1, 50),
        gradient_noise=noises,
        histogram_noise=noises,
        histogram=st.sampled_from(["gaussian", "laplace"]),
    )
    simple = st.one_of(
        training,
        st.builds(GaussianEvent, noise=noises, count=st.integers(1, 5)),
        st.builds(LaplaceEvent, noises),
        st.builds(OutsideEvent, st.floats(0.01, 2.0), st.sampled_from([0.0, 1e-6])),
    )
    chosen = st.builds(
        SelectionEvent,
        st.builds(GaussianEvent, noise=st.floats(5.0, 50.0)).map(lambda event: (event,)),
        st.floats(1.5, 20.0),
    )
    return st.integers(0, 7).flatmap(lambda number: chosen if number == 0 else simple)


def damaged_text(draw, text):
    """Return a text with some characters cut, dropped, added or changed, or as it was."""
    place = draw(st.integers(0, len(text)))
    change = draw(st.sampled_from(["cut", "drop", "add", "swap", "none", "span"]))
    sign = draw(st.characters(min_codepoint=32, max_codepoint=126))
    return {
        "cut": text[:place],
        "drop": text[:place] + text[place + 1 :],
        "add": text[:place] + sign + text[place:],
        "swap": text[:place] + sign + text[place + 1 :],
        "none": text,
        "span": text[:place] + text[place + draw(st.integers(0, 40)) :],
    }[change]


def damaged_bytes(draw, content):
    """Return bytes with some of them cut, dropped, added or changed, or as they were."""
    place = draw(st.integers(0, len(content)))
    change = draw(st.sampled_from(["cut", "drop", "add", "swap", "none"]))
    byte = bytes([draw(st.integers(0, 255))])
    return {
        "cut": content[:place],
        "drop": content[:place] + content[place + 1 :],
        "add": content[:place] + byte + content[place:],
        "swap": content[:place] + byte + content[place + 1 :],
        "none": content,
    }[change]


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=3,
)


def altered(draw, content):
    """Return plain data in which one thing, somewhere, is another, is gone, or is new."""
    content = json.loads(json.dumps(content))
    place, here = content, content
    for _ in range(draw(st.integers(1, 4))):
        if not isinstance(here, dict | list) or not here:
            break
        place = here
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        here = here[key]
    if not isinstance(place, dict | list) or not place:
        return draw(plain)
    change = draw(st.sampled_from(["other", "gone", "more", "none"]))
    if change == "other":
        place[key] = draw(plain)
    elif change == "gone":
        del place[key]
    elif change == "more" and isinstance(place, dict):
        place[draw(st.text(max_size=3))] = draw(plain)
    elif change == "more":
        place.append(draw(plain))
    return content


@cache
def scratch():
    """Return a folder for the files of this process."""
    return Path(tempfile.mkdtemp(prefix="ratewise-fuzz-"))
