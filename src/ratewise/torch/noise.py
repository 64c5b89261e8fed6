"""Noise for gradients, drawn where the gradients are.

PyTorch's generator on the CPU is a Mersenne twister, and ``manual_seed`` uses 32 bits of its argument: four
billion possible sequences of noise, which can be tried one by one. So its whole state is filled from a stream
of ours, which starts with at least 128 bits of entropy. Generators on other devices use 64 bits.

The draws have the type of the gradient (32 bits as a rule); like all noise of floating-point numbers it is
normal only up to rounding, see docs/sharp-edges.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ratewise.accounting import Ledger
from ratewise.exceptions import UnsupportedCombination
from ratewise.mechanisms import GaussianMechanism, Mechanism, NoNoise
from ratewise.randomness import RandomStreams, warn_of_seed
from ratewise.seeds import USED_SEEDS, streams_for
from ratewise.torch.distributed import Processes

_STATE_BYTES = 5056  # of the twister, as `Generator.get_state` writes it
_FIRST, _WORDS = 24, 624  # seed, two counters and the position come before the words


def network_streams(seed: Any) -> RandomStreams:
    """Return the streams of a network's training: others than those of a linear fit with the same seed."""
    return streams_for("network", seed)


def note_seed(ledger: Ledger, seed: Any, streams: RandomStreams) -> None:
    """Warn that a seed must stay secret, and refuse one that this book has seen: noise must not repeat."""
    warn_of_seed(seed)
    USED_SEEDS.add(ledger, streams)


class GradientNoise(Protocol):
    """Releases sums of clipped gradients."""

    def release(self, sums: Sequence[Tensor], mechanism: Mechanism, processes: Processes) -> None:
        """Turn the parts of all processes, in place, into their total with one draw of noise per entry."""
        ...


class DeviceNoise:
    """Gaussian noise from a generator on the device of the gradients.

    Process 0 adds the noise to its own part before the parts are added up: no process ever holds the total
    without noise. Noise of other kinds, such as that on a grid, comes from `StreamNoise`.

    Parameters
    ----------
    stream : numpy.random.Generator
        Where the generator's state comes from; never stored.
    device : torch.device
    """

    def __init__(self, stream: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self._generator = generator_from(stream, torch.device(device))
        self._otherwise = StreamNoise(stream)

    def release(self, sums: Sequence[Tensor], mechanism: Mechanism, processes: Processes) -> None:
        """Add an independent normal draw of the mechanism's standard deviation to every entry, and add up."""
        if not isinstance(mechanism, GaussianMechanism | NoNoise):
            self._otherwise.release(sums, mechanism, processes)
            return
        if processes.leads and isinstance(mechanism, GaussianMechanism):
            for part in sums:
                draw = torch.randn(
                    part.shape, generator=self._generator, dtype=part.dtype, device=part.device
                )
                part.add_(draw, alpha=mechanism.standard_deviation)
        processes.add_up(sums)


class StreamNoise:
    """Noise by the mechanism itself, on the whole vector in 64 bits: slower, and any mechanism.

    Process 0 releases the total; a mechanism that rounds to a grid must see the total, not a part.
    """

    def __init__(self, stream: np.random.Generator) -> None:
        self._stream = stream

    def release(self, sums: Sequence[Tensor], mechanism: Mechanism, processes: Processes) -> None:
        """Add up, release the total in process 0, and hand the released one out."""
        processes.add_up(sums)
        if processes.leads:
            flat = torch.cat([part.detach().reshape(-1) for part in sums]).cpu().double().numpy()
            noisy = torch.from_numpy(mechanism.release(flat, self._stream))
            for part, piece in zip(sums, torch.split(noisy, [part.numel() for part in sums]), strict=True):
                part.copy_(piece.view_as(part))
        processes.share(sums)


def generator_from(stream: np.random.Generator, device: torch.device) -> torch.Generator:
    """Return a generator whose whole state comes from the stream."""
    generator = torch.Generator(device=device)
    if device.type != "cpu":
        return generator.manual_seed(int(stream.integers(0, 2**63)))
    generator.manual_seed(0)
    state = generator.get_state()
    if len(state) != _STATE_BYTES:
        raise UnsupportedCombination(
            f"this PyTorch ({torch.__version__}) keeps the state of its generator in {len(state)} bytes, not "
            f"{_STATE_BYTES}; use StreamNoise"
        )
    words = stream.integers(0, 2**32, _WORDS, dtype=np.uint64)
    state[_FIRST : _FIRST + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
    generator.set_state(state)
    return generator
