"""Draws from the table have exactly the rounded normal law: by its proof's premises, and by chi-square."""

import decimal
import os
import threading
from decimal import Decimal

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from ratewise.mechanisms import discrete
from ratewise.mechanisms.discrete import NormalTable, rounded_normal
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import SecureGenerator

LEVEL = 1e-5
DRAWS = 1_000_000
SCALES = [2.0**16, 1.3e6, 2.9e7, 7.7e10]


def probability(s, n):
    """Return the law of a rounded normal draw in double precision."""
    return ndtr((0.5 - np.abs(n)) / s) - ndtr((-0.5 - np.abs(n)) / s)


def drawn(table, count, rng):
    found = np.empty(count)
    table.fill(found, rng)
    return found


def chi_square(observed, expected):
    keep = expected >= 5
    seen = np.append(observed[keep], observed[~keep].sum())
    meant = np.append(expected[keep], expected[~keep].sum())
    seen, meant = seen[meant > 0], meant[meant > 0]
    return stats.chi2.sf(np.sum((seen - meant) ** 2 / meant), len(seen) - 1)


def p_of_quantiles(draws, s, bins=300):
    """Chi-square over intervals of about equal probability, whose edges lie anywhere in the segments."""
    edges = np.rint(s * stats.norm.ppf(np.arange(1, bins) / bins))
    expected = np.diff(np.concatenate([[0.0], ndtr((edges - 0.5) / s), [1.0]])) * len(draws)
    observed = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=bins)
    return chi_square(observed, expected)


def p_of_integers(draws, s):
    """Chi-square over single integers."""
    reach = int(6 * s)
    expected = probability(s, np.arange(-reach, reach + 1)) * len(draws)
    observed = np.bincount(draws.astype(int) + reach, minlength=2 * reach + 1)
    return chi_square(observed, expected)


@pytest.mark.parametrize("s", SCALES)
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_quantiles(s, source):
    rng = np.random.default_rng(8) if source == "seeded" else SecureGenerator()
    level = LEVEL if source == "seeded" else 1e-9  # fresh entropy every time: alarm only when sure
    assert discrete._SMALLEST_SCALE <= s < discrete._LARGEST_SCALE
    draws = rounded_normal(s, DRAWS, rng)
    np.testing.assert_array_equal(draws, np.rint(draws))
    assert p_of_quantiles(draws, s) > level


def test_single_integers_of_a_small_table():
    """The same code at a scale that is small enough to count every integer, segments of 4."""
    table = NormalTable(300.0)
    assert table._mask == 3
    assert p_of_integers(drawn(table, 2 * DRAWS, np.random.default_rng(9)), 300.0) > LEVEL


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_power_a_scale_one_percent_off_is_rejected(factor):
    draws = drawn(NormalTable(1.3e6 * factor), DRAWS, np.random.default_rng(8))
    assert p_of_quantiles(draws, 1.3e6) < LEVEL
    draws = drawn(NormalTable(300.0 * factor), 4 * DRAWS, np.random.default_rng(9))
    assert p_of_integers(draws, 300.0) < LEVEL


def test_power_a_table_without_its_remainder_or_with_a_wrong_one_is_rejected(monkeypatch):
    s = 1.3e6
    for wrong in (
        lambda self, count, rng: np.zeros(count, dtype=np.int64),
        lambda self, count, rng: np.rint(self.s * rng.standard_normal(count)).astype(np.int64),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(NormalTable, "_remainder", wrong)
            assert p_of_quantiles(drawn(NormalTable(s), 8 * DRAWS, np.random.default_rng(8)), s, 200) < LEVEL


def test_the_remainder_has_its_own_law():
    """A hundredth of all draws: looked at alone, over segments and positions in them."""
    table = NormalTable(300.0)
    draws = table._remainder(400_000, np.random.default_rng(3))
    n = np.arange(-table._end, table._end)
    listed = np.bincount(np.searchsorted(n, table._table[: table._listed]), minlength=len(n))
    width = table._mask + 1
    listed = np.repeat(listed[::width], width) / (2.0**16 * width)
    left = probability(300.0, n) - listed
    assert left.min() >= 0
    assert left.sum() == pytest.approx(1 - table._listed / 2**16, abs=1e-9)
    observed = np.bincount(draws + table._end, minlength=len(n))
    assert chi_square(observed, left / left.sum() * len(draws)) > LEVEL


@pytest.mark.parametrize("s", SCALES)
def test_premises_of_the_proof_hold_in_exact_arithmetic(s):
    """Listed masses stay below the law, proposals above what is left, and all weights are exact."""
    table, rng = NormalTable(s), np.random.default_rng(0)
    width, scale = table._mask + 1, 2.0**16
    counts = np.rint(table._floors[:-2] * scale).astype(int)
    assert np.array_equal(counts / scale, table._floors[:-2])
    assert counts.sum() == table._listed
    times = np.bincount(table._proposed, minlength=len(counts) + 2)
    assert times.sum() == 2**14
    assert times[-2] == 1  # the tail
    middle = len(counts) // 2
    places = [0, 1, middle - 1, middle, len(counts) - 1, *rng.integers(0, len(counts), 25).tolist()]
    with decimal.localcontext(discrete._CONTEXT):
        for place in range(len(counts) + 1):
            assert Decimal(float(table._heights[place])) == int(times[place]) * Decimal(table._unit)
        for place in places:
            start = int(table._starts[place])
            inside = [start, start + width - 1, start + int(rng.integers(width))]
            for n in inside:
                mass = width * (table._upper_tail(abs(n) - 1) - table._upper_tail(abs(n)))
                floor = Decimal(float(table._floors[place]))
                assert floor <= mass <= floor + Decimal(float(table._heights[place]))
                computed = Decimal(float(table._mass(np.array([n]))[0]))
                assert abs(computed / mass - 1) < Decimal(2) ** -44
        tail = table._upper_tail(table._end - 1) + table._upper_tail(table._end)
        assert tail < Decimal(table._unit)
        assert float(tail) == pytest.approx(table._tail, rel=1e-3)


def test_decimal_arithmetic_agrees_with_double_precision(monkeypatch):
    """With everything declared doubtful, the same random bits give the same draws."""
    table = NormalTable(1.3e6)
    fast = table._remainder(30, np.random.default_rng(4))
    settled = []
    whole = NormalTable._settle
    monkeypatch.setattr(NormalTable, "_settle", lambda *a: settled.append(whole(*a)) or settled[-1])
    monkeypatch.setattr(discrete, "_UNDECIDED", 10.0)
    slow = table._remainder(30, np.random.default_rng(4))
    np.testing.assert_array_equal(fast, slow)
    assert len(settled) > 30


def test_the_tail_is_inverted_exactly():
    table = NormalTable(2.0**16)
    end = table._end
    with decimal.localcontext(discrete._CONTEXT):
        right, left = table._upper_tail(end - 1), table._upper_tail(end)
        assert table._from_tail(right * Decimal("0.999999999999")) == end
        assert table._from_tail(right + left * Decimal("0.999999999999")) == -end - 1
        assert table._from_tail(right + left) is None
        for far in (end + 5, end + 10_000):
            edge = table._upper_tail(far)
            assert table._from_tail(edge * Decimal("1.000001")) == far
            assert table._from_tail(edge * Decimal("0.999999")) == far + 1
            assert table._from_tail(right + edge * Decimal("1.000001")) == -far


def test_a_draw_from_the_tail_comes_through(monkeypatch):
    """The proposal of the tail, with the smallest V, is accepted and lies beyond the segments."""
    table = NormalTable(1.3e6)
    tail = int(np.flatnonzero(table._proposed == table._tail_at)[0])

    def words(rng, size):
        first = np.full(size // 2, tail, dtype=np.int64)
        return np.concatenate([first, np.zeros(size // 2, dtype=np.int64)])

    monkeypatch.setattr(discrete, "_words", words)
    found = table._remainder(1, np.random.default_rng(0))
    assert found[0] >= table._end


def test_seeds_repeat_and_parts_do_not_matter():
    """One value in several arrays, in either precision, is released as it is in one array."""
    value = np.random.default_rng(1).normal(size=200_000)
    mechanism = RoundedGaussianMechanism(2.0, 0.5, slack=0.01)
    whole = mechanism.release(value, np.random.default_rng(5))
    np.testing.assert_array_equal(whole, mechanism.release(value, np.random.default_rng(5)))
    parts = [part.copy() for part in np.split(value, [3, 70_000, 70_000, 131_072 + 70_000])]
    mechanism.release_parts(parts, np.random.default_rng(5))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    grid = value.reshape(2, 100_000).T.copy().T  # not contiguous
    mechanism.release_parts([grid], np.random.default_rng(5))
    np.testing.assert_array_equal(grid, whole.reshape(2, -1))
    single = value.astype(np.float32)
    mechanism.release_parts([single], np.random.default_rng(5))
    np.testing.assert_allclose(single, whole, atol=1e-5)
    steps = single.astype(np.float64) / mechanism.grid
    np.testing.assert_array_equal(steps, np.rint(steps))


def test_threads_and_forks_never_repeat_draws():
    mechanism, rng = RoundedGaussianMechanism(1.0), SecureGenerator()
    found, lock = [], threading.Lock()

    def release():
        for size in (20, 5000):
            released = mechanism.release(np.zeros(size), rng)
            with lock:
                found.append(released)

    release()  # leaves draws waiting
    threads = [threading.Thread(target=release) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, mechanism.release(np.zeros(20), rng).tobytes())
        os._exit(0)
    os.wait()
    found.append(np.frombuffer(os.read(reading, 160)))
    found.append(mechanism.release(np.zeros(20), rng))
    runs = [tuple(released[i : i + 4]) for released in found for i in range(0, len(released) - 3, 4)]
    assert len(set(runs)) == len(runs)


def test_every_entry_gets_one_draw_of_the_stated_scale():
    mechanism = RoundedGaussianMechanism(3.0, slack=0.01)
    parts = [np.full(300_000, 100.0), np.zeros((500, 900))]
    out = [np.empty(300_000, dtype=np.float32), np.empty((500, 900), dtype=np.float32)]
    mechanism.release_parts(parts, SecureGenerator(), out)
    assert np.all(parts[0] == 100.0)
    noise = np.concatenate([out[0] - 100.0, out[1].ravel()]).astype(np.float64)
    scale = mechanism._scale(noise.size) * mechanism.grid
    assert stats.kstest(noise / scale, stats.norm.cdf).pvalue > 1e-9
    # pieces of the noise do not repeat each other
    pieces = noise[: 11 * 2**16].reshape(11, -1)
    correlation = np.corrcoef(pieces) - np.eye(11)
    assert np.abs(correlation).max() < 7 / np.sqrt(2**16)
