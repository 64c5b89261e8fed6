"""Where random numbers come from: secure without a seed, repeatable with one, never stored, never twice."""

import copy
import gc
import itertools
import os
import pickle
import ssl
import sys
import threading
import warnings

import numpy as np
import pytest
from scipy import stats

from ratewise import RateConstrainedClassifier
from ratewise.accounting import Budget, Ledger
from ratewise.exceptions import InvalidInput, InvalidType, SeedWarning
from ratewise.mechanisms import randomness
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import KeyedGenerator, RandomStreams, SecureGenerator, UsedSeeds, warn_of_seed

pytestmark = pytest.mark.real_noise

SURE = 1e-9  # fresh entropy every time: raise the alarm only when sure


def streams_of(streams):
    return [streams.sampling, streams.gradient, streams.histogram, streams.preparation]


class TestSecureGenerator:
    rng = SecureGenerator()

    @pytest.mark.parametrize(
        ("draw", "law"),
        [
            (lambda rng, n: rng.random(n), stats.uniform),
            (lambda rng, n: rng.standard_exponential(n), stats.expon),
            (lambda rng, n: rng.integers(0, 1 << 63, n) / 2.0**63, stats.uniform),
            (lambda rng, n: rng.integers(-(1 << 62), 1 << 62, n) / 2.0**63 + 0.5, stats.uniform),
        ],
    )
    def test_right_distribution_with_power(self, draw, law):
        found = draw(self.rng, 40_000)
        assert stats.kstest(found, law.cdf).pvalue > SURE
        assert stats.kstest(found * 1.1, law.cdf).pvalue < SURE

    def test_neighbouring_draws_are_independent(self):
        draws = self.rng.random((20_000, 4)) - 0.5
        table = np.hstack([draws[:-1], draws[1:], np.abs(draws[:-1])])
        correlation = np.corrcoef(table.T)[np.triu_indices(12, 1)] * np.sqrt(len(table))
        pairs = [
            c for c, (i, j) in zip(correlation, zip(*np.triu_indices(12, 1), strict=True), strict=True) if j - i != 8
        ]  # a draw and its own size are no pair
        assert 2 * stats.norm.sf(np.max(np.abs(pairs))) * len(pairs) > SURE

    def test_bits_are_balanced(self):
        bits = np.unpackbits(np.frombuffer(self.rng.bytes(40_000), dtype=np.uint8))
        assert 2 * stats.norm.sf(abs(bits.sum() - bits.size / 2) / np.sqrt(bits.size / 4)) > SURE

    @pytest.mark.parametrize(("low", "high"), [(0, 6), (-3, 4), (5, 6), (0, 1000)])
    def test_integers_are_uniform(self, low, high):
        found = self.rng.integers(low, high, 50_000)
        assert found.min() >= low
        assert found.max() < high
        counts = np.bincount(found - low, minlength=high - low)
        assert stats.chisquare(counts).pvalue > SURE if high - low > 1 else counts[0] == 50_000

    def test_integers_like_numpys(self):
        assert set(self.rng.integers(3, size=200).tolist()) == {0, 1, 2}
        assert isinstance(self.rng.integers(10).item(), int)
        for low, high in ((3, 3), (0, 1 << 64), (5, 5 + (1 << 63))):
            with pytest.raises(InvalidInput, match="range of integers"):
                self.rng.integers(low, high)

    def test_shapes_and_types(self):
        assert self.rng.random((2, 3)).shape == (2, 3)
        assert np.ndim(self.rng.random()) == 0
        assert np.ndim(self.rng.standard_exponential()) == 0
        assert np.all(self.rng.random(100_000) < 1)

    def test_large_requests_are_cut_up(self, monkeypatch):
        monkeypatch.setattr(randomness, "_AT_MOST", 100)
        assert len(self.rng.bytes(1050)) == 1050

    def test_no_state_to_store(self):
        assert not hasattr(self.rng, "__dict__")
        assert isinstance(pickle.loads(pickle.dumps(self.rng)), SecureGenerator)
        assert repr(self.rng) == "SecureGenerator()"


class TestStreams:
    def test_bytes_are_those_of_openssl(self):
        assert randomness._secure_bytes is ssl.RAND_bytes

    def test_secure_without_a_seed_and_only_then(self):
        assert RandomStreams.from_seed().secure
        assert RandomStreams.from_seed(SecureGenerator()).secure
        for seed in (0, np.random.default_rng(0), np.random.SeedSequence(1), np.random.RandomState(0)):
            assert not RandomStreams.from_seed(seed).secure

    def test_a_seed_repeats_and_its_streams_differ(self):
        one, two = RandomStreams.from_seed(5), RandomStreams.from_seed(5)
        drawn = [stream.random() for stream in streams_of(one)]
        assert drawn == [stream.random() for stream in streams_of(two)]
        assert len(set(drawn)) == 4

    def test_no_seed_never_repeats(self):
        drawn = {stream.random() for _ in range(50) for stream in streams_of(RandomStreams.from_seed())}
        assert len(drawn) == 200

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies_and_pickles_carry_nothing(self, again):
        streams = RandomStreams.from_seed(5)
        other = again(streams)
        assert other.secure
        assert other.gradient.random() != RandomStreams.from_seed(5).gradient.random()
        assert b"PCG64" not in pickle.dumps(streams)

    @pytest.mark.parametrize("seed", [True, "7", 1.5, [1]])
    def test_what_is_no_seed(self, seed):
        with pytest.raises(InvalidType, match="seed must be"):
            RandomStreams.from_seed(seed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestFork:
    """A forked child never repeats its parent's noise: not fresh draws, not waiting ones, not seeded ones."""

    def in_child(self, draw):
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of the test runner
            child = os.fork()
        if child == 0:
            try:
                os.write(write, np.asarray(draw(), dtype=np.float64).tobytes())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            found = np.frombuffer(pipe.read(), dtype=np.float64)
        os.waitpid(child, 0)
        return found

    @pytest.mark.parametrize("seed", [None, 11])
    def test_streams(self, seed):
        streams = RandomStreams.from_seed(seed)
        streams.gradient.random(3)
        child = self.in_child(lambda: streams.gradient.random(8))
        parent = streams.gradient.random(8)
        assert child.shape == parent.shape
        assert not np.intersect1d(child, parent).size

    def test_two_children_differ(self):
        streams = RandomStreams.from_seed(11)
        one, two = (self.in_child(lambda: streams.gradient.random(8)) for _ in range(2))
        assert len(one) == 8
        assert not np.intersect1d(one, two).size

    def test_the_parent_goes_on_as_if_nothing_happened(self):
        streams, quiet = RandomStreams.from_seed(11), RandomStreams.from_seed(11)
        self.in_child(lambda: streams.gradient.random(8))
        assert streams.gradient.random() == quiet.gradient.random()

    @pytest.mark.parametrize("seed", [None, 11])
    def test_noise_that_waits(self, seed):
        streams, mechanism = RandomStreams.from_seed(seed), RoundedGaussianMechanism(1.0)
        mechanism.release(np.zeros(8), streams.gradient)  # fills the stock
        child = self.in_child(lambda: mechanism.release(np.zeros(8), streams.gradient))
        parent = mechanism.release(np.zeros(8), streams.gradient)
        assert child.shape == parent.shape
        # on a grid of a millionth two single draws may agree by chance, three do not
        assert np.intersect1d(child, parent).size < 3


def test_threads_share_a_mechanism_and_no_draw():
    streams, mechanism = RandomStreams.from_seed(), RoundedGaussianMechanism(1.0)
    found = []

    def work():
        found.append([mechanism.release(np.zeros(5), streams.gradient) for _ in range(300)])

    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(often)
    draws = np.array(found)
    assert draws.shape == (8, 300, 5)
    # five draws at once: on a grid of a millionth two single draws may agree by chance, five do not
    assert len({row.tobytes() for row in draws.reshape(-1, 5)}) == 2400


class TestSeeds:
    def test_the_warning_is_given_once(self, monkeypatch):
        monkeypatch.setattr(randomness._Said, "seed", False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for seed in (None, SecureGenerator(), 7, 7, 8):
                warn_of_seed(seed)
        assert [found.category for found in caught] == [SeedWarning]
        assert "7" not in str(caught[0].message)

    def test_one_seed_twice_on_a_ledger_is_refused_without_showing_it(self):
        used, one, other = UsedSeeds(), Ledger(), Ledger()
        used.add(one, RandomStreams.from_seed(987_654_321))
        used.add(other, RandomStreams.from_seed(987_654_321))
        used.add(one, RandomStreams.from_seed(5))
        with pytest.raises(InvalidInput, match="random_state was used for an earlier fit") as refused:
            used.add(one, RandomStreams.from_seed(np.int64(987_654_321)))
        assert "987" not in str(refused.value)

    def test_one_file_is_one_ledger(self, tmp_path):
        used, path = UsedSeeds(), tmp_path / "privacy.json"
        used.add(Ledger.create(path), RandomStreams.from_seed(3))
        with pytest.raises(InvalidInput, match="random_state was used"):
            used.add(Ledger.open(path), RandomStreams.from_seed(3))

    def test_deleted_ledgers_are_forgotten(self):
        used = UsedSeeds()
        for _ in range(3):
            used.add(Ledger(), RandomStreams.from_seed(3))
        gc.collect()
        assert len(used._in_memory) == 0

    def test_two_fits_on_one_ledger(self):
        X = np.random.default_rng(0).normal(size=(2000, 2))
        y = (X[:, 0] > 0).astype(int)
        ledger = Ledger(cap=Budget(10.0, 1e-5), adaptive=True)
        model = RateConstrainedClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1], ledger=ledger, random_state=4).fit(
            X, y
        )
        spent = ledger.total(1e-6)
        with pytest.raises(InvalidInput, match="random_state was used"):
            model.fit(X, y)
        assert ledger.total(1e-6) == spent
        model.set_params(random_state=None).fit(X, y).fit(X, y)
        model.set_params(random_state=4, ledger=None).fit(X, y).fit(X, y)  # each has a book of its own

    def test_what_cannot_repeat_is_not_noted(self):
        used, rng, book = UsedSeeds(), np.random.default_rng(0), Ledger()
        for seed in (None, None, rng, np.random.SeedSequence(1), rng, SecureGenerator(), rng):
            used.add(book, RandomStreams.from_seed(seed))


SOURCES = [np.random.default_rng, np.random.RandomState, np.random.SeedSequence]


@pytest.mark.parametrize("make", SOURCES)
def test_copies_of_a_generator_are_refused_on_one_ledger(make):
    used, book, source = UsedSeeds(), Ledger(), make(3)
    used.add(book, RandomStreams.from_seed(copy.deepcopy(source)))
    with pytest.raises(InvalidInput, match="random_state was used for an earlier fit"):
        used.add(book, RandomStreams.from_seed(copy.deepcopy(source)))
    RandomStreams.from_seed(source)  # what it gave so far tells it from its copies
    used.add(book, RandomStreams.from_seed(source))


@pytest.mark.parametrize("make", SOURCES)
def test_generators_that_start_alike_never_share_noise_unseen(make):
    """Whatever uses two of them see in whatever order: streams that are equal are refused, others differ."""
    names, uses = ("sampling", "gradient", "histogram", "preparation"), ("evaluation", "network", None)
    for orders in itertools.product(itertools.product(uses, repeat=2), repeat=2):
        used, book, seen, refused = UsedSeeds(), Ledger(), set(), 0
        for order in orders:
            source = make(0)
            for use in order:
                streams = RandomStreams.from_seed(source, use or "")
                try:
                    used.add(book, streams)
                except InvalidInput:
                    refused += 1
                    continue
                drawn = {getattr(streams, name).random() for name in names}
                assert len(drawn) == 4
                assert not drawn & seen
                seen |= drawn
        assert refused == sum(one == other for one, other in zip(*orders, strict=True))


def test_a_user_who_takes_children_in_between_shares_no_noise():
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    other.spawn(1)
    first, second = RandomStreams.from_seed(one), RandomStreams.from_seed(other)
    for name, another in itertools.product(("sampling", "gradient", "histogram", "preparation"), repeat=2):
        assert getattr(first, name).bit_generator.state != getattr(second, another).bit_generator.state
    assert first.source != second.source


def test_streams_tell_nothing_of_their_source():
    assert "987" not in repr(RandomStreams.from_seed(987_654_321))
    assert b"987" not in pickle.dumps(RandomStreams.from_seed(987_654_321))
    assert copy.copy(RandomStreams.from_seed(5)).source is None


class TestKeyedGenerator:
    def test_bytes_are_a_function_of_key_context_and_call(self):
        key, other = bytes(32), bytes([1]) + bytes(31)
        contexts = [(key,), (key, 0), (key, 0, 0), (key, 1), (key, -1), (key, 0, 1), (key, 1, 0), (other, 0)]
        found = set()
        for context in contexts:
            generator, again = KeyedGenerator(*context), KeyedGenerator(*context)
            for _ in range(3):
                piece = generator.bytes(16)
                assert piece == again.bytes(16)
                found.add(piece)
        assert len(found) == 3 * len(contexts)

    def test_numbers_have_their_laws(self):
        rng = KeyedGenerator(bytes(32), 5)
        assert stats.kstest(rng.random(20_000), "uniform").pvalue > 1e-4
        assert stats.kstest(rng.standard_exponential(20_000), "expon").pvalue > 1e-4

    def test_neighbouring_contexts_are_unrelated(self):
        rows = np.array([KeyedGenerator(bytes(32), 0, row).random(500) for row in range(60)])
        correlation = np.corrcoef(rows)[np.triu_indices(60, 1)] * np.sqrt(500)
        assert 2 * stats.norm.sf(np.abs(correlation)).min() * len(correlation) > 1e-4

    def test_bad_keys_are_refused_and_nothing_is_shown(self):
        with pytest.raises(InvalidInput, match="32 bytes"):
            KeyedGenerator(b"short")
        assert repr(KeyedGenerator(bytes(32))) == "KeyedGenerator(...)"
        assert not isinstance(KeyedGenerator(bytes(32)), SecureGenerator)
