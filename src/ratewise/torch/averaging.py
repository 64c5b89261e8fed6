"""The mean of the iterates, as the plan asks for it; post-processing, so it is free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratewise.plan import Plan


class Averaging:
    """Running mean of parameters over the last steps (or weighted by their number).

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self._tail = plan.averaging != "polynomial"
        self._weights = plan.averaging_weights()
        self._wanted = plan.averaging != "none"
        self.count = 0
        self.mean: list[Tensor] | None = None

    @torch.no_grad()
    def take_in(self, parameters: Sequence[Tensor], step: int) -> None:
        """Take in the parameters after the step of this number, from 0."""
        weight = float(self._weights[step])
        if not self._wanted or weight == 0.0:
            return
        if self.mean is None:
            self.mean = [parameter.detach().clone() for parameter in parameters]
            self.count = 1
            return
        self.count += 1
        if self._tail:  # by its own count: a resumed run may have passed over some steps
            weight = 1.0 / self.count
        for mean, parameter in zip(self.mean, parameters, strict=True):
            mean.lerp_(parameter.detach(), weight)
