"""Noise for gradients, drawn where the gradients are.

PyTorch's generator on the CPU is a Mersenne twister, and ``manual_seed`` uses 32 bits of its argument: four
billion possible sequences of noise, which can be tried one by one. So its whole state is filled from a stream
of ours, which starts with at least 128 bits of entropy. Generators on other devices use 64 bits.

The draws have the type of the gradient (32 bits as a rule); like all noise of floating-point numbers it is
normal only up to rounding, see docs/sharp-edges.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ratewise.exceptions import UnsupportedCombination
from ratewise.mechanisms import GaussianMechanism, Mechanism, NoNoise

_STATE_BYTES = 5056  # of the twister, as `Generator.get_state` writes it
_FIRST, _WORDS = 24, 624  # seed, two counters and the position come before the words


class GradientNoise(Protocol):
    """Adds noise to sums of clipped gradients."""

    def add(self, sums: Iterable[Tensor], mechanism: Mechanism) -> None:
        """Release the sums in place: an independent draw on every entry of every tensor."""
        ...


class DeviceNoise:
    """Gaussian noise from a generator on the device of the gradients.

    Parameters
    ----------
    stream : numpy.random.Generator
        Where the generator's state comes from; never stored.
    device : torch.device
    """

    def __init__(self, stream: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self._generator = generator_from(stream, torch.device(device))

    def add(self, sums: Iterable[Tensor], mechanism: Mechanism) -> None:
        """Add an independent normal draw of the mechanism's standard deviation to every entry."""
        if isinstance(mechanism, NoNoise):
            return
        if not isinstance(mechanism, GaussianMechanism):
            raise UnsupportedCombination(
                f"gradients are released with Gaussian noise, got {type(mechanism).__name__}"
            )
        for total in sums:
            draw = torch.randn(total.shape, generator=self._generator, dtype=total.dtype, device=total.device)
            total.add_(draw, alpha=mechanism.standard_deviation)


class StreamNoise:
    """Noise by the mechanism itself from a stream of NumPy's kind: slower, in 64 bits, any mechanism."""

    def __init__(self, stream: np.random.Generator) -> None:
        self._stream = stream

    def add(self, sums: Iterable[Tensor], mechanism: Mechanism) -> None:
        """Release each tensor by the mechanism."""
        for total in sums:
            noisy = mechanism.release(total.detach().cpu().double().numpy(), self._stream)
            total.copy_(torch.from_numpy(noisy))


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
