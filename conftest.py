"""What makes every run of the tests like the last one.

Some 200 tests draw without a seed, as users should; now and then one of them would fail because of its noise
and for no other reason. Here the operating system's bytes are replaced by bytes that follow from the name of
the test (or of the fixture that several tests share); all that turns bytes into noise is the shipped code.
Tests marked ``real_noise`` (threads, forks or copies that must never draw the same) keep the system's, and so
do processes that a test starts or forks. Torch's own generator is set in the same way.

Hypothesis looks at the same examples each time. ``RATEWISE_EXAMPLES=fresh`` is for a search: new examples,
and the system's bytes everywhere.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import settings

from ratewise.mechanisms import randomness

collect_ignore = ["tests/reference/graphical_model_process.py"]  # runs in the environment of a peer, by `test_peers.py`

_SYSTEMS = randomness._secure_bytes
_FRESH = os.environ.get("RATEWISE_EXAMPLES") == "fresh"

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("fresh", derandomize=False)
os.register_at_fork(after_in_child=lambda: setattr(randomness, "_secure_bytes", _SYSTEMS))
settings.load_profile("fresh" if _FRESH else "repeatable")


@contextmanager
def _bytes_of(name: str) -> Iterator[None]:
    seed = hashlib.sha256(name.encode()).digest()
    torch = sys.modules.get("torch")
    state = torch and torch.get_rng_state()
    if torch:
        torch.manual_seed(int.from_bytes(seed[:7]))
    kept, randomness._secure_bytes = randomness._secure_bytes, np.random.default_rng(list(seed)).bytes
    try:
        yield
    finally:
        randomness._secure_bytes = kept
        if torch:
            torch.set_rng_state(state)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with bytes of its own."""
    if _FRESH or item.get_closest_marker("real_noise"):
        return (yield)
    with _bytes_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Set up what several tests share with bytes of its own, whichever of them comes first."""
    if _FRESH or fixturedef.scope == "function":
        return (yield)
    with _bytes_of(f"{fixturedef.baseid}::{fixturedef.argname}"):
        return (yield)
