"""Footing of the tests: without a seed one draws the same in every run, unless it asks for real noise."""

import os

import pytest

from ratewise import randomness
from ratewise.randomness import RandomStreams

repeatable = pytest.mark.skipif(
    os.environ.get("RATEWISE_EXAMPLES") == "fresh", reason="asked for fresh examples"
)


def draw():
    return RandomStreams.from_seed().gradient.random()


@pytest.fixture(scope="module")
def shared():
    return draw()


@repeatable
def test_the_bytes_follow_from_the_name():
    assert draw() == 0.40685767931437833


@repeatable
def test_what_is_shared_does_not_depend_on_who_comes_first(shared):
    assert shared == 0.8633573633957361


@pytest.mark.real_noise
def test_real_noise_is_the_systems():
    assert randomness._secure_bytes.__module__ in {"_ssl", "posix"}
