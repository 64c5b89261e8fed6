"""One sample at a time, from the private loader to the step: what the parts of a private loop share."""

from __future__ import annotations

import torch
from torch import Tensor

from ratewise.accounting import Ledger, UnprotectedEvent
from ratewise.accounting.phase import Phase
from ratewise.exceptions import InvalidInput
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.torch.descent import Descent
from ratewise.torch.distributed import Processes
from ratewise.torch.dual import HistogramRelease
from ratewise.torch.engine import TorchEngine
from ratewise.torch.noise import DeviceNoise
from ratewise.torch.sampling import BlockSampler
from ratewise.training import History, StepRecord


class Session:
    """What the four parts share: the sample at hand, its sums so far, and the book."""

    def __init__(
        self,
        plan: Plan,
        engine: TorchEngine,
        descent: Descent,
        multipliers: Multipliers | None,
        ledger: Ledger,
        data_name: str,
        streams: RandomStreams,
    ) -> None:
        self.plan, self.engine, self.descent = plan, engine, descent
        self.multipliers, self.ledger = multipliers, ledger
        self.steps_done = 0
        self.sampler = BlockSampler(
            plan.n_rows, plan.sampling_rate, BlockSampler.draw_secret(streams.sampling)
        )
        shape = () if multipliers is None else (multipliers.shape, len(multipliers))
        self.history = History(plan.steps, *shape)
        self._noise = DeviceNoise(streams.gradient, engine.device)
        self._alone = Processes()
        self._release = None
        if multipliers is not None:
            self._release = HistogramRelease(plan, multipliers, streams.histogram, self._alone)
        self._data_name = data_name
        self._phase: Phase | None = None
        self._over = False
        self._sums: list[Tensor] = []
        self._tally: Tensor | None = None
        self.end_sample()

    def begin_sample(self, n_rows: int) -> None:
        """Take up a fresh sample of so many rows, which is private."""
        self.end_sample()
        self._expected, self._open = n_rows, True
        self._sums = [torch.zeros_like(parameter) for parameter in self.engine.parameters]
        self._tally = self.engine.objective.empty_tally()
        dual = self.multipliers
        table, weight = (None, 1.0) if dual is None else (dual.table, dual.loss_weight)
        self.engine.objective.load(table, weight, self.engine.device)

    def end_sample(self) -> None:
        """Let go of the sample and its sums."""
        self._expected = self._seen = 0
        self._open = self.complete = False
        self._sums, self._tally = [], None

    def take_in(self, losses: Tensor, tally: Tensor | None) -> None:
        """Add the clipped gradients of some rows to the sample's sums; **private**."""
        if not self._open:
            raise InvalidInput("backward() without a sample: rows must come from the private loader")
        sums = self.engine.clipper.clipped_sum(losses, self.plan.clip)
        for total, part in zip(self._sums, sums, strict=True):
            total += part
        if self._tally is not None and tally is not None:
            self._tally += tally.cpu()
        self._seen += len(losses)

    def step(self) -> None:
        """Book a step, release both sums, and move."""
        if not self._open:
            raise InvalidInput(
                "optimizer.step() without a fresh sample: take one batch from the private loader per step"
            )
        if not self.complete:
            return
        if self._seen != self._expected:
            raise InvalidInput(
                "the step did not use each row of its sample once; call criterion(...).backward() once for "
                "every batch of the loader, before optimizer.step()"
            )
        self._book()
        self._noise.release(self._sums, self.plan.gradient_mechanism, self._alone)
        released, tally = self._sums, self._tally
        # whatever fails from here on, no later step may read this sample again
        self.steps_done += 1
        self.end_sample()
        norm = self.descent.step(released, min(self.steps_done, self.plan.steps) - 1)
        self._follow(norm, tally)
        if self.steps_done == self.plan.steps:
            self.finish()

    def _follow(self, norm: float, tally: Tensor | None) -> None:
        dual, histograms = self.multipliers, None
        if self._release is not None and tally is not None:
            histograms = self._release.add(tally, self.steps_done >= self.plan.steps)
        if self.steps_done <= self.plan.steps:
            values, multipliers = (None, None) if dual is None else (dual.values, dual.multipliers)
            self.history.add(StepRecord(self.steps_done, norm, histograms, values, multipliers))

    def _book(self) -> None:
        if self._over:
            raise InvalidInput("the loop is finished: its budget was planned for the steps that ran")
        event = self.plan.step_event
        if event is None:
            if self.steps_done == 0:
                unprotected = UnprotectedEvent("training without noise")
                self.ledger.book(unprotected, purpose="train", data=self._data_name)
            return
        if self._phase is None:
            self._phase = self.ledger.phase(
                event, planned_steps=self.plan.steps, purpose="train", data=self._data_name
            ).__enter__()
        self._phase.step()

    def finish(self) -> None:
        """Settle the book to the steps that ran."""
        self._over = True
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
