"""The PyTorch engine under audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ratewise.audit.games import _STILL, Bools, Floats, Sight, WorstRows, opponents, still
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import Rows
from ratewise.torch.data import TensorRows
from ratewise.torch.trainer import Trainer


class TorchSubject:
    """The shipped PyTorch trainer with a linear module and the worst-case rows of `WorstRows`.

    Parameters
    ----------
    plan : Plan
        As for `LinearSubject`.
    n_canaries : int
    n_opponents : int or None
    """

    def __init__(self, plan: Plan, n_canaries: int = 1, n_opponents: int | None = None) -> None:
        n_opponents = opponents(plan) if n_opponents is None else n_opponents
        self.n_canaries = n_canaries
        self.plan = still(plan, n_canaries + n_opponents)
        self._rows = WorstRows(n_canaries, n_opponents, counted=plan.histogram_noise is not None)

    def play(self, coins: Bools, steps: int, streams: RandomStreams) -> Iterator[Sight]:
        """Play the games one after another in one long run of the shipped trainer."""
        plan = dataclasses.replace(self.plan, steps=len(coins) * steps)
        trainer, present = self._trainer(plan, streams)
        # the gradient of a canary by its class 1 logit, after clipping: C / sqrt(2) for each of two logits
        along = (plan.clip or 1.0) / np.sqrt(2.0)
        present[: self.n_canaries] = coins[0]
        before, waiting = self._weights(trainer), []
        for number, record in enumerate(trainer.steps(), start=1):
            after = self._weights(trainer)
            released = (before - after) * (plan.expected_rows / _STILL)
            seen = (released[1] - released[0]) * along / (plan.clip or 1.0) ** 2
            waiting.append((seen, before[1] > before[0]))
            before = after
            if number % steps == 0 and number < plan.steps:
                present[: self.n_canaries] = coins[number // steps]
            if record.histograms is not None or self._rows.constraints is None:
                yield from self._sights(waiting, record.histograms)
                waiting.clear()

    def _sights(self, waiting: list[tuple[Floats, Bools]], histograms: Floats | None) -> Iterator[Sight]:
        for place, (seen, positive) in enumerate(waiting):
            yield self._rows.sight(seen, None if histograms is None else histograms[place], positive)

    def _trainer(self, plan: Plan, streams: RandomStreams) -> tuple[Trainer, Bools]:
        module = nn.Linear(self.n_canaries, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(module.weight)
        counted = self._rows.constraints
        rows = TensorRows(
            torch.from_numpy(self._rows.X), self._rows.labels, None if counted is None else self._rows.cells
        )
        trainer = Trainer(module, rows, plan, counted, n_classes=2)
        trainer._streams = streams
        present = np.ones(plan.n_rows, dtype=np.bool_)
        whole = trainer.engine.sums

        def sums(rows: Rows, table: Floats | None, loss_weight: float = 1.0) -> Any:
            return whole(rows[present[rows]], table, loss_weight)

        trainer.engine.sums = sums  # type: ignore[method-assign]
        return trainer, present

    @staticmethod
    def _weights(trainer: Trainer) -> Floats:
        (weight,) = trainer.engine.parameters
        return np.array(weight.detach().numpy(), dtype=np.float64)
