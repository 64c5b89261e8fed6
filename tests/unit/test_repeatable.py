"""Footing of the tests: without a seed one draws the same in every run, unless it asks for real noise."""

import os
import warnings

import pytest

from ratewise.mechanisms import randomness
from ratewise.mechanisms.randomness import RandomStreams

repeatable = pytest.mark.skipif(os.environ.get("RATEWISE_EXAMPLES") == "fresh", reason="asked for fresh examples")


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


@repeatable
def test_torch_draws_the_same_whoever_set_something_up_meanwhile(request):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    request.getfixturevalue("tmp_path_factory")
    request.getfixturevalue("late")
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(1)).item()


@pytest.fixture(scope="module")
def late():
    return pytest.importorskip("torch").rand(1).item()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_draws_the_systems_bytes():
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test runner
        child = os.fork()
    if child == 0:
        try:
            os.write(write, randomness._secure_bytes.__module__.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() in {b"_ssl", b"posix"}
    os.waitpid(child, 0)
