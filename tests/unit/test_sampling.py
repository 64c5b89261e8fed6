"""Poisson batches: shape, order, corner cases. Their law is tested in tests/statistical."""

import numpy as np
import pytest

from ratewise.exceptions import InvalidType
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import poisson_rows


def batches(n_rows, rate, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [poisson_rows(n_rows, rate, rng) for _ in range(steps)]


@pytest.mark.parametrize("rate", [1e-9, 0.001, 0.2, 0.34, 0.36, 0.9, 1.0])
@pytest.mark.parametrize("n_rows", [1, 2, 1000])
def test_batches_are_rising_row_numbers(rate, n_rows):
    found = batches(n_rows, rate, steps=50)
    assert len(found) == 50
    for rows in found:
        assert rows.dtype == np.intp
        assert np.all(np.diff(rows) > 0)
        assert rows.size == 0 or (rows[0] >= 0 and rows[-1] < n_rows)


def test_rate_one_takes_every_row():
    assert all(np.array_equal(rows, np.arange(7)) for rows in batches(7, 1.0, 3))


def test_rate_next_to_zero_gives_empty_batches():
    assert all(rows.size == 0 for rows in batches(1000, 1e-300, 20))


def test_many_rows_at_a_small_rate_cost_no_memory():
    found = batches(10**15, 1e-14, 100)
    assert 500 < sum(rows.size for rows in found) < 1500
    assert max(int(rows.max(initial=0)) for rows in found) > 10**14


def test_long_batches_are_drawn_in_pieces():
    (rows,) = batches(1_000_000, 0.3, 1)
    assert abs(rows.size - 300_000) < 5 * np.sqrt(1_000_000 * 0.3 * 0.7)
    assert rows[-1] > 999_900


def test_steps_differ_and_seed_repeats():
    first, again, other = (batches(500, 0.1, 2, seed=1), batches(500, 0.1, 2, seed=1), batches(500, 0.1, 2, seed=2))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], other[0])


def test_streams_are_independent_and_repeatable():
    one, two = RandomStreams.from_seed(3), RandomStreams.from_seed(3)
    draws = [stream.random() for stream in (one.sampling, one.gradient, one.histogram)]
    assert len(set(draws)) == 3
    assert draws == [stream.random() for stream in (two.sampling, two.gradient, two.histogram)]
    assert RandomStreams.from_seed().gradient.random() != RandomStreams.from_seed().gradient.random()


def test_streams_from_generators():
    legacy = [RandomStreams.from_seed(np.random.RandomState(5)).sampling.random() for _ in range(2)]
    assert legacy[0] == legacy[1]
    generator = np.random.default_rng(5)
    assert RandomStreams.from_seed(generator).sampling.random() != RandomStreams.from_seed(generator).sampling.random()
    sequences = [RandomStreams.from_seed(np.random.SeedSequence(5)).sampling.random() for _ in range(2)]
    assert sequences[0] == sequences[1]
    assert sequences[0] != RandomStreams.from_seed(5).sampling.random()  # a book would not see them as one


@pytest.mark.parametrize("seed", ["1", 1.5, True])
def test_seed_of_a_wrong_kind_is_refused(seed):
    with pytest.raises(InvalidType, match="seed"):
        RandomStreams.from_seed(seed)


def test_streams_do_not_show_their_state():
    assert repr(RandomStreams.from_seed(12345)) == "RandomStreams(...)"
