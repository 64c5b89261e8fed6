"""One training in several processes, started by ``torchrun``.

Each process owns some of the rows and Poisson-samples them with the common rate, which is exactly Poisson
sampling of all rows (`ratewise.torch.sampling`). A step exchanges two sums over processes: the clipped
gradients, and the histogram of cells by classes.

**Why noise is added once, and is enough.** The guarantee is about sums over *all* rows, whose sensitivity
does not depend on who computed them, so each needs one draw of noise in total. Process 0 adds that draw to
its own part *before* the exchange: what every process receives, and applies, has noise on it already. The
parts of the other processes travel without noise; so the processes, and the network between them, belong to
the same trusted keeper of the data. Seeds stay in memory: process 0 draws the secret of the samples and hands
it to the others; the noise is drawn from a state that only process 0 ever has.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ratewise.exceptions import InvalidInput, RatewiseError

PATIENCE = 300.0
"""Seconds after which a process that does not answer counts as lost, unless told otherwise."""

_T = TypeVar("_T")


class ProcessLost(RatewiseError, RuntimeError):  # noqa: N818 - reads as what happened
    """Another process of the run ended or does not answer."""


class Processes:
    """One process alone: nothing to exchange. `ProcessGroup` has the same methods for several.

    Attributes
    ----------
    rank, world : int
        Number of this process, and how many there are.
    """

    rank = 0
    world = 1

    @property
    def leads(self) -> bool:
        """Whether this process keeps the book, draws the noise and writes the checkpoint."""
        return self.rank == 0

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over processes."""

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0."""

    def share_bytes(self, data: bytes | None) -> bytes | None:
        """Return what process 0 gave."""
        return data

    def led(self, action: Callable[[], _T]) -> _T | None:
        """Do something in process 0 only; if it fails there, every process stops."""
        return action()


class ProcessGroup(Processes):
    """The processes of an initialised ``torch.distributed`` group, by gloo or nccl."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over processes, in one exchange per type."""
        for kind in _kinds(tensors):
            flat = _flat(kind, self._device)
            self._exchange(dist.all_reduce, flat)
            _unflat(flat, kind)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0."""
        for kind in _kinds(tensors):
            flat = _flat(kind, self._device)
            self._exchange(dist.broadcast, flat, 0)
            _unflat(flat, kind)

    def share_bytes(self, data: bytes | None) -> bytes | None:
        """Return what process 0 gave: some bytes, or None."""
        length = torch.tensor([-1 if data is None else len(data)])
        self.share([length])
        if int(length) < 0:
            return None
        content = torch.zeros(int(length), dtype=torch.uint8)
        if self.leads and data is not None:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.share([content])
        return content.numpy().tobytes()

    def led(self, action: Callable[[], _T]) -> _T | None:
        """Do something in process 0 only; if it fails there, every process stops."""
        done, failure = None, None
        if self.leads:
            try:
                done = action()
            except Exception as problem:  # passed on below, after the others were told
                failure = problem
        said = self.share_bytes(None if failure is None else str(failure).encode())
        if failure is not None:
            raise failure
        if said is not None:
            raise RatewiseError(f"process 0 stopped the run: {said.decode()}")
        return done

    def _exchange(self, work: Callable[..., Any], *arguments: Any) -> None:
        try:
            work(*arguments)
        except (RuntimeError, ValueError) as problem:
            reason = str(problem).splitlines()[0][:200]
            raise ProcessLost(
                f"process {self.rank} of {self.world} lost another process ({reason}); nothing more is "
                "released: start the processes again and resume from the last checkpoint"
            ) from problem


class Led(Generic[_T]):
    """A context that process 0 enters and leaves; the others wait until it has been entered.

    Parameters
    ----------
    context : context manager
    processes : Processes
    """

    def __init__(self, context: AbstractContextManager[_T], processes: Processes) -> None:
        self._context = context
        self._processes = processes

    def __enter__(self) -> _T | None:
        return self._processes.led(self._context.__enter__)

    def __exit__(self, *problem: Any) -> None:
        if self._processes.leads:
            self._context.__exit__(*problem)


def join(timeout: float = PATIENCE) -> Processes:
    """Return the processes of this run: those that ``torchrun`` started, or this one alone.

    Call it once, before anything else that is distributed. The group uses nccl where every process has a GPU,
    and gloo otherwise.

    Parameters
    ----------
    timeout : float
        Seconds after which a process that does not answer ends the run with `ProcessLost`.
    """
    if dist.is_available() and dist.is_initialized():
        return ProcessGroup() if dist.get_world_size() > 1 else Processes()
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdigit() or int(world) < 1:
        raise InvalidInput(f"WORLD_SIZE must be a number of processes, got {world!r}; start with torchrun")
    if int(world) == 1:
        return Processes()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.is_available() and torch.cuda.device_count() > local
    if gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if gpus else "gloo", timeout=datetime.timedelta(seconds=timeout))
    return ProcessGroup()


def _kinds(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    return list(kinds.values())


def _flat(tensors: list[Tensor], device: torch.device) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).to(device)


def _unflat(flat: Tensor, tensors: list[Tensor]) -> None:
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.detach().copy_(piece.view_as(tensor))
