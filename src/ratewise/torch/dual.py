"""The release of histograms, and the dual side that follows them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratewise.mechanisms import GaussianMechanism, LaplaceMechanism, NoNoise
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.torch.distributed import Processes

Floats = npt.NDArray[np.float64]

_CONTINUOUS = (GaussianMechanism, LaplaceMechanism, NoNoise)


class HistogramRelease:
    """Releases the histograms of the steps since the multipliers last moved, and moves them.

    What waits is **private** and never stored: if the run stops, it is lost, though booked. The noise is the
    plan's, drawn by the core's mechanism in process 0 and added to its part before the parts are added up.
    """

    def __init__(
        self, plan: Plan, multipliers: Multipliers, stream: np.random.Generator, processes: Processes
    ) -> None:
        self._mechanism = plan.histogram_mechanism
        self._interval = plan.dual.interval
        self._multipliers = multipliers
        self._stream = stream
        self._processes = processes
        self._kept: list[Floats] = []

    def add(self, tally: Tensor, last: bool) -> Floats | None:
        """Keep a step's tally; when it is time, release all that is kept and move the multipliers."""
        self._kept.append(tally.numpy().astype(np.float64))
        if len(self._kept) < self._interval and not last:
            return None
        part = np.stack(self._kept)
        self._kept.clear()
        released = self._released(part)
        self._multipliers.update(released)
        return released

    def _released(self, part: Floats) -> Floats:
        """Return the total over processes with its noise; a mechanism on a grid must see the whole total."""
        leads, early = self._processes.leads, isinstance(self._mechanism, _CONTINUOUS)
        if leads and early:
            part = self._mechanism.release(part, self._stream)
        total = torch.from_numpy(part)
        self._processes.add_up([total])
        if not early:
            if leads:
                total = torch.from_numpy(self._mechanism.release(total.numpy(), self._stream))
            self._processes.share([total])
        released: Floats = total.numpy()
        return released
