"""Where random numbers come from.

Training reads four independent streams: one picks the rows, the others make the noise of the gradient, of the
histogram and of the preparation of features. Every function that draws takes its stream as an argument: there
is no global state and no default seed. Without a seed all four are `SecureGenerator`. With a seed they are
NumPy's: repeatable, for synthetic data and tests, because whoever knows the seed can remove the noise.

>>> streams = RandomStreams.from_seed(7)
>>> RandomStreams.from_seed(7).sampling.random() == streams.sampling.random()
True
>>> RandomStreams.from_seed().secure
True
"""

from __future__ import annotations

import hashlib
import math
import numbers
import os
import struct
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.exceptions import InvalidInput, InvalidType, SeedWarning

try:  # the generator of OpenSSL: reseeds itself, knows forks and threads, gigabytes per second
    from ssl import RAND_bytes as _secure_bytes
except ImportError:  # a Python built without OpenSSL: the kernel itself, ten times slower
    _secure_bytes = os.urandom

Size = int | tuple[int, ...] | None

KEY_BYTES = 32
_AT_MOST = 1 << 27  # bytes asked of OpenSSL at once


class ByteGenerator:
    """Random numbers made of random bytes, with the methods of `numpy.random.Generator` that we use."""

    __slots__ = ()

    def bytes(self, length: int) -> bytes:
        """Return random bytes."""
        raise NotImplementedError

    def words(self, size: Size) -> npt.NDArray[np.uint64]:
        """Return uniform 64-bit words."""
        shape = () if size is None else size
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64).reshape(shape)

    def random(self, size: Size = None) -> Any:
        """Return uniform numbers in [0, 1), multiples of 2**-53."""
        return ((self.words(size) >> np.uint64(11)) * 2.0**-53)[()]

    def standard_exponential(self, size: Size = None) -> Any:
        """Return exponential numbers of mean 1: uniform numbers are never zero, and most precise next to it."""
        found = np.array(self.words(size), dtype=np.float64)
        found += 0.5
        found *= 2.0**-64
        np.log(found, out=found)
        return np.negative(found, out=found)[()]

    def integers(self, low: int, high: int | None = None, size: Size = None) -> Any:
        """Return whole numbers from `low` up to, and without, `high` (from 0 if only one is given).

        Ranges that are no power of two are drawn with rejection: no value is favoured.
        """
        low, high = (0, low) if high is None else (low, high)
        span = high - low
        if not (1 <= span <= 1 << 63 and low >= -(1 << 63) and high <= 1 << 63):
            raise InvalidInput(f"the range of integers must hold 1 to 2**63 numbers, got {low} to {high}")
        words = np.array(self.words(size), ndmin=1)
        most = np.uint64((1 << 64) - (1 << 64) % span - 1)
        while (again := np.flatnonzero(words.reshape(-1) > most)).size:
            words.reshape(-1)[again] = self.words(again.size)
        found = (words % np.uint64(span)).astype(np.int64) + low
        return found.reshape(() if size is None else size)[()]


class SecureGenerator(ByteGenerator):
    """Random numbers from the operating system, as stretched by OpenSSL.

    Every call takes fresh bytes; nothing is kept between calls. So there is no state to seed, to store, to
    share between threads or to inherit by a fork.
    """

    __slots__ = ()

    def bytes(self, length: int) -> bytes:
        """Return random bytes."""
        if length <= _AT_MOST:
            return _secure_bytes(length)
        return b"".join(_secure_bytes(min(_AT_MOST, length - at)) for at in range(0, length, _AT_MOST))

    def __repr__(self) -> str:
        return "SecureGenerator()"


class KeyedGenerator(ByteGenerator):
    """Random numbers that are a function of a secret key, a context and the number of earlier calls.

    Bytes are the output of SHAKE-128 on key (32 secret bytes), context (integers, such as a step and a row)
    and call number, each of fixed length, so that two streams of one key overlap only if their contexts are
    equal. To whoever does not know the key the streams of all contexts are independent and uniform; to
    whoever does, they are repeatable. It serves draws that belong to a row or a block of rows and must not
    depend on which other rows are present.
    """

    __slots__ = ("_calls", "_prefix")

    def __init__(self, key: bytes, *context: int) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidInput(f"key must have {KEY_BYTES} bytes, got {len(key)}")
        self._prefix = hashlib.shake_128(key + struct.pack(f"<{len(context) + 1}q", len(context), *context))
        self._calls = 0

    def bytes(self, length: int) -> bytes:
        """Return the next bytes of this context."""
        stream = self._prefix.copy()
        stream.update(self._calls.to_bytes(8, "little"))
        self._calls += 1
        return stream.digest(length)

    def __repr__(self) -> str:
        return "KeyedGenerator(...)"


@dataclass(frozen=True)
class RandomStreams:
    """Four independent streams of random numbers; `repr` shows nothing of their state.

    A pickle or a copy of streams carries nothing of them: what comes back are fresh secure streams, because
    noise that is stored or drawn twice hides nobody. For the same reason seeded streams take fresh entropy in
    a forked process: a child never repeats its parent's noise.

    `source` is the use and the seed that seeded streams follow from, the same for equal streams only; it is
    as secret as they are, and None where nothing can repeat.
    """

    sampling: np.random.Generator
    gradient: np.random.Generator
    histogram: np.random.Generator
    preparation: np.random.Generator
    source: Any = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.secure:
            _seeded.append(weakref.ref(self, _seeded.remove))

    @classmethod
    def from_seed(cls, seed: Any = None, use: str = "") -> RandomStreams:
        """Split a whole number or a NumPy generator into the four streams; None takes the secure source.

        A run that resumes must not be given the seed it started with: it would draw the same noise again.
        Continue with fresh entropy, or with the very generator object that was in use. Each `use` has streams
        of its own: a person who writes ``random_state=0`` for a training and for its evaluation must not get
        two releases with one noise, whose difference would have none.
        """
        if seed is None or isinstance(seed, SecureGenerator):
            # it has the methods that streams are read by, and no numpy.random.Generator can have its source
            return cls(*(cast(np.random.Generator, SecureGenerator()) for _ in range(4)))
        sequence, source = _sequence(seed)
        if use:
            own = sequence.generate_state(8).tolist() if sequence.spawn_key else sequence.entropy
            sequence = np.random.SeedSequence(own, spawn_key=tuple(use.encode()))
        streams = (np.random.default_rng(child) for child in sequence.spawn(4))
        return cls(*streams, source=(_USES.get(use, use), source))

    @property
    def secure(self) -> bool:
        """Whether all four streams are cryptographically secure."""
        return all(isinstance(stream, SecureGenerator) for stream in self._all())

    def _all(self) -> tuple[Any, ...]:
        return self.sampling, self.gradient, self.histogram, self.preparation

    def __repr__(self) -> str:
        return "RandomStreams(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomStreams.from_seed, ()


_USES = {"": "fit", "network": "training of a network", "selection": "search"}


def _sequence(seed: Any) -> tuple[np.random.SeedSequence, Any]:
    """Return the entropy that a seed hands out next, and what distinguishes it from that of other seeds.

    A generator or sequence moves on by one child: no two uses of objects that start alike overlap in part.
    """
    if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
        number = _validate.count(at_least=0, random_state=int(seed))
        return np.random.SeedSequence(number), number
    if isinstance(seed, np.random.RandomState):
        state = seed.get_state(legacy=False)["state"]
        source = state["key"].tobytes(), state["pos"]
        return np.random.SeedSequence(seed.randint(0, 2**32, size=8, dtype=np.uint32).tolist()), source
    sequence = seed.bit_generator.seed_seq if isinstance(seed, np.random.Generator) else seed
    if not isinstance(sequence, np.random.SeedSequence):
        raise InvalidType(f"seed must be a whole number, a NumPy generator or None, got {seed!r}")
    identity = str(sequence.entropy), tuple(sequence.spawn_key), sequence.n_children_spawned
    return sequence.spawn(1)[0], identity


class UsedSeeds:
    """The seeds that were used with each ledger, in the memory of this process and nowhere else.

    Two fits with one seed share their noise: the difference of what they release has none, and the sum of
    their epsilons says nothing. A hash of a seed in the ledger's file would give small seeds away, so this
    finds a repetition only within a process. Generators are known by their seed and what they gave before:
    clones of an estimator hold copies of one, which would repeat.
    """

    def __init__(self) -> None:
        self._in_files: dict[str, set[Any]] = {}
        self._in_memory: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()

    def add(self, ledger: Any, streams: RandomStreams) -> None:
        """Record the streams of a fit on a ledger (by its file, if any); refuse those that were used."""
        if streams.source is None:
            return
        if ledger.path is None:
            used = self._in_memory.setdefault(ledger, set())
        else:
            used = self._in_files.setdefault(os.path.realpath(ledger.path), set())
        if streams.source in used:
            raise InvalidInput(
                f"random_state was used for an earlier {streams.source[0]} on this ledger: both would have the "
                "same noise, and what they release together is protected by neither; use None, or another seed"
            )
        used.add(streams.source)


USED_SEEDS = UsedSeeds()  # one register for the whole process


class _Said:
    """Whether something was said already."""

    seed = False


def warn_of_seed(seed: Any) -> None:
    """Say, once in the life of a process, that a seed given to a private training must stay secret."""
    if seed is None or isinstance(seed, SecureGenerator) or _Said.seed:
        return
    _Said.seed = True
    warnings.warn(
        "random_state makes the noise repeatable: whoever learns it can take the noise off, so keep it as "
        "secret as the rows; random_state=None is safe (said once)",
        SeedWarning,
        stacklevel=3,
    )


_seeded: list[weakref.ref[RandomStreams]] = []


def _after_fork() -> None:
    """Give the streams that a child inherited fresh entropy."""
    for reference in _seeded:
        streams = reference()
        for stream in () if streams is None else streams._all():
            bits = getattr(stream, "bit_generator", None)
            if bits is not None:
                bits.state = type(bits)().state


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
