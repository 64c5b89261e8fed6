"""One training in several processes, started by ``torchrun``: one sample and one noise draw per release.

Each process owns some of the units and draws those that take part in a step, which together is exactly one Poisson
sample of all units (`ratewise.mechanisms.sampling.KeyedSample`). A step exchanges two sums over processes: the clipped gradients and
the prediction counts (`TotalRelease`).

**Why noise is added once.** The guarantee is about sums over *all* units, whose sensitivity does not depend on
which process computed them. Process 0 receives the total, releases it, and sends the released value to the others.
Parts are sent without noise, so the processes and the network between them must be trusted.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ratewise import _validate
from ratewise.exceptions import InvalidInput, RatewiseError, UnsupportedCombination
from ratewise.mechanisms.noise import Mechanism

PATIENCE = 300.0
"""Seconds after which a process that does not answer counts as lost, unless told otherwise."""

_T = TypeVar("_T")


class ProcessLost(RatewiseError, RuntimeError):  # noqa: N818 - reads as what happened
    """Another process of the run ended or does not answer."""


class Processes:
    """The process alone, or all of an initialised ``torch.distributed`` group (`join` tells which).

    `rank` is the number of this process, of `world` processes. Process 0 leads: it keeps the ledger, draws the noise
    and writes the checkpoint.
    """

    def __init__(self, *, grouped: bool = False) -> None:
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        self.leads = self.rank == 0

    def collect(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor of process 0 by its sum over processes, in one exchange per type.

        The others are set to zero: none but process 0 keeps a total without noise.
        """
        self._exchange(dist.reduce, tensors)
        for tensor in () if self.leads else tensors:
            tensor.detach().zero_()

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0."""
        self._exchange(dist.broadcast, tensors)

    def share_bytes(self, data: bytes | None) -> bytes | None:
        """Return what process 0 gave: some bytes, or None."""
        if self.world == 1:
            return data
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
        if self.world == 1:
            return action()
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

    def _exchange(self, work: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
        """Do one exchange with process 0 for all tensors of a type together."""
        if self.world == 1:
            return
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor.detach() for tensor in tensors if tensor.dtype == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in same]).to(device)
            try:
                work(flat, 0)
            except (RuntimeError, ValueError) as problem:
                reason = str(problem).splitlines()[0][:200]
                raise ProcessLost(
                    f"process {self.rank} of {self.world} lost another process ({reason}); nothing more is "
                    "released: start the processes again and resume from the last checkpoint"
                ) from problem
            for tensor, piece in zip(same, torch.split(flat, [one.numel() for one in same]), strict=True):
                tensor.copy_(piece.view_as(tensor))


class TotalRelease:
    """Releases the total over processes of tensors, or of an array, with one draw of noise per entry.

    Process 0 releases; the other processes receive the released values. Released tensors have the types and devices
    of `like`, by default those of the value.
    """

    def __init__(self, mechanism: Mechanism, processes: Processes, like: Sequence[Tensor] | None = None) -> None:
        self.mechanism, self.processes, self._like = mechanism, processes, like

    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """Return the total with noise; tensors given are used up, and are one value for the mechanism."""
        if isinstance(value, np.ndarray):
            return self.release([torch.from_numpy(np.array(value, dtype=np.float64))], rng)[0].numpy()
        parts: Sequence[Tensor] = value
        like = parts if self._like is None else self._like
        if self.processes.world > 1:
            parts = [part.double() for part in parts]  # totals over processes are not rounded further
        self.processes.collect(parts)
        parts = [part.detach().cpu() for part in parts]
        released = [part.to(given.dtype) for part, given in zip(parts, like, strict=True)]  # in place of equal types
        if self.processes.leads:
            private = [part.numpy() for part in parts]
            self.mechanism.release_parts(private, rng, [part.numpy() for part in released])
        self.processes.share(released)
        return [part.to(given.device) for part, given in zip(released, like, strict=True)]


def share_of(n_rows: int, rank: int, world: int) -> range:
    """Return the rows of one of `world` processes: neighbouring rows, shares equal up to one row.

    >>> [len(share_of(10, rank, 3)) for rank in range(3)]
    [3, 3, 4]
    """
    n_rows, world = _validate.count(at_least=0, n_rows=n_rows), _validate.count(world=world)
    rank = _validate.count(at_least=0, rank=rank)
    if rank >= world:
        raise InvalidInput(f"rank must be below world ({world}), got {rank}")
    return range(n_rows * rank // world, n_rows * (rank + 1) // world)


def join(timeout: float = PATIENCE) -> Processes:
    """Return the processes of this run: those that ``torchrun`` started, or this one alone.

    Call it once, before anything else that is distributed. The group uses nccl where every process has a GPU,
    and gloo otherwise.

    Parameters
    ----------
    timeout : float
        Seconds after which a process that does not answer ends the run with `ProcessLost`.
    """
    if _group_size() == 0:
        world = os.environ.get("WORLD_SIZE", "1")
        if not world.isdigit() or int(world) < 1:
            raise InvalidInput(f"WORLD_SIZE must be a number of processes, got {world!r}; start with torchrun")
        if int(world) > 1:
            local = int(os.environ.get("LOCAL_RANK", "0"))
            gpus = torch.cuda.is_available() and torch.cuda.device_count() > local
            if gpus:
                torch.cuda.set_device(local)
            wait = datetime.timedelta(seconds=timeout)
            dist.init_process_group("nccl" if gpus else "gloo", timeout=wait)
    return Processes(grouped=_group_size() > 1)


def _group_size() -> int:
    """Return the size of the initialised group, 0 if there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def refuse_unjoined(processes: Processes) -> None:
    """Refuse to train alone in one of several processes: each would claim the whole budget for its own model."""
    started = os.environ.get("WORLD_SIZE", "1")
    several = _group_size() > 1 or (started.isdigit() and int(started) > 1)
    if several and processes.world == 1:
        raise UnsupportedCombination(
            "this is one of several processes (torchrun or torch.distributed), and each would train a model "
            "of its own with the whole budget; pass processes=ratewise.torch.join() to Trainer or "
            "TorchRateConstrainedClassifier (make_private runs in one process only)"
        )
