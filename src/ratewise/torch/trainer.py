"""The training loop for any module, with callbacks, any optimizer, and any number of processes.

::

    for stretch of steps:
        with ledger.phase(...)                           # process 0 books the stretch before anything is read
            checkpoint                                   # weights now, book with the stretch already in it
            for step in stretch:
                rows = sampler.rows(step)                # private: which rows take part
                sums, tally = engine.sums(rows, table)   # private: one pass over the batch
                noise.release(sums)                      # once in total; may be seen from here on
                optimizer.step()                         # post-processing
                histogram = release(tally), likewise     # may be seen from here on
                multipliers.update(histogram)            # post-processing
                yield StepRecord(...)                    # released values, nothing else

**What is released** in a step, of one Poisson sample: the sum of clipped row gradients (L2 sensitivity
``plan.clip``) with Gaussian noise, and the histogram of predictions (L1 and L2 sensitivity 1) with the plan's
noise; neighbours differ by adding or removing one row. The ledger books ``plan.step_event``, which is the
pair. Sums are divided by the constant ``plan.expected_rows``, never by the rows that came. An empty batch
releases its noise like any other.
"""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ratewise import _validate
from ratewise.accounting import Ledger, UnprotectedEvent
from ratewise.accounting.phase import Phase
from ratewise.compiled import CompiledConstraints
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, UnsupportedCombination
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.progress import Progress
from ratewise.randomness import RandomStreams
from ratewise.torch import checkpoint as checkpoints
from ratewise.torch.data import RowSource
from ratewise.torch.descent import Descent
from ratewise.torch.distributed import Led, Processes
from ratewise.torch.dual import HistogramRelease
from ratewise.torch.engine import Clipper, TorchEngine
from ratewise.torch.noise import DeviceNoise, GradientNoise, network_streams, note_seed
from ratewise.torch.objective import Loss, Objective
from ratewise.torch.sampling import BlockSampler, StepSampler, share_of
from ratewise.training import History, StepRecord

Callback = Callable[[StepRecord], object]

STRETCH = 64
"""Steps that are booked together where no checkpoint is written."""


class Trainer:
    """A training of a module that can be run, watched step by step, stopped, and taken up again.

    Everything that can be wrong is found before the first step is booked. The release of each step, its
    sensitivity and its booking are described at the top of this module.

    Parameters
    ----------
    module : nn.Module
        Takes inputs (rows first) and returns logits, one per class; trained in place.
    rows : RowSource
        Such as `TensorRows` or `DatasetRows`.
    plan : Plan
        Such as `network_plan` makes from public facts.
    constraints : CompiledConstraints, optional
    n_classes : int, optional
        Needed without constraints.
    optimizer, scheduler
        Any of PyTorch, over exactly the module's trainable parameters; see `Descent` for the defaults.
    loss : callable, optional
        ``loss(logits, labels)`` returns one number per row; cross-entropy unless told.
    ledger : Ledger, optional
        The book; a new one in memory unless told. Only process 0 writes it.
    data_name : str
        Name of the rows in the ledger.
    physical_batch : int, optional
        Rows handled at once: bounds memory, changes nothing else.
    device : device, optional
        That of the module's parameters unless told.
    autocast : bool
        Forward and backward in bfloat16; the guarantee is the same, see `TorchEngine`.
    callbacks : callables
        Called by `run` in every process after each step with a `StepRecord` of released values.
    progress : bool
        Show a line on standard error.
    checkpoint : path, optional
        File to write after every `checkpoint_every` steps, and to `resume` from.
    checkpoint_every : int
    processes : Processes, optional
        What ``join()`` returned; this process alone unless told.
    random_state : int, NumPy generator or None
        A seed makes a run repeatable and must stay secret. A resumed run takes fresh entropy instead.
    """

    def __init__(
        self,
        module: nn.Module,
        rows: RowSource,
        plan: Plan,
        constraints: CompiledConstraints | None = None,
        *,
        n_classes: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        loss: Loss | None = None,
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        physical_batch: int | None = None,
        device: torch.device | str | None = None,
        autocast: bool = False,
        callbacks: Iterable[Callback] = (),
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 50,
        processes: Processes | None = None,
        random_state: Any = None,
        clipper: Clipper | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise InvalidType(f"plan must be a ratewise.plan.Plan, got {type(plan).__name__}")
        if constraints is not None and not isinstance(constraints, CompiledConstraints):
            raise InvalidType(f"constraints must be compiled constraints, got {type(constraints).__name__}")
        self.plan = plan
        self.constraints = constraints
        self.multipliers = None if constraints is None else Multipliers(constraints, plan)
        objective = Objective(
            plan, _classes(n_classes, constraints), None if constraints is None else constraints.n_cells, loss
        )
        if device is None:
            device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self.engine = TorchEngine(
            plan,
            module,
            rows,
            objective,
            physical_batch=physical_batch,
            device=device,
            autocast=autocast,
            clipper=clipper,
        )
        self.descent = Descent(plan, self.engine.parameters, optimizer, scheduler)
        self.module = module
        self.processes = Processes() if processes is None else processes
        self.steps_done = 0
        self._gradient_mechanism = plan.gradient_mechanism
        if ledger is not None and not isinstance(ledger, Ledger):
            raise InvalidType(f"ledger must be a Ledger or None, got {type(ledger).__name__}")
        self.ledger = Ledger() if ledger is None else ledger
        self._given = ledger
        self._data_name = data_name
        self._callbacks = _functions(callbacks)
        self._progress = progress
        self._path = None if checkpoint is None else os.fspath(checkpoint)
        self._every = _validate.count(checkpoint_every=checkpoint_every)
        self._seed = random_state
        self._streams = network_streams(random_state)
        self._run: str | None = None
        self._whole = True
        self._sampler: StepSampler | None = None
        self._noise: GradientNoise | None = None
        self._release: HistogramRelease | None = None
        self.history = History(plan.steps, *_history_shape(self.multipliers))
        _check_noise(plan, self.multipliers)

    # ------------------------------------------------------------------------------------ running

    def run(self) -> History:
        """Take the steps that remain and return what they released."""
        with Progress(self.plan.steps, enabled=self._progress and self.processes.leads) as progress:
            for record in self.steps():
                progress.show(record)
                for callback in self._callbacks:
                    callback(record)
        self._share_book()
        return self.history

    def steps(self) -> Iterator[StepRecord]:
        """Take the steps that remain one by one, and yield what each of them released."""
        self._begin()
        length = self._every if self._path is not None else STRETCH
        try:
            while self.steps_done < self.plan.steps:
                yield from self._stretch(min(length, self.plan.steps - self.steps_done))
        finally:
            if self._whole:
                self._save()

    def averaged_module(self) -> nn.Module:
        """Return a copy of the module with the average of the iterates, or the last one if none was taken."""
        found = copy.deepcopy(self.module)
        mean = self.descent.averaging.mean
        if mean is not None:
            names = {id(parameter): name for name, parameter in self.module.named_parameters()}
            values = dict(found.named_parameters())
            with torch.no_grad():
                for parameter, value in zip(self.engine.parameters, mean, strict=True):
                    values[names[id(parameter)]].copy_(value)
        return found.eval()

    def resume(self) -> bool:
        """Go on from the checkpoint file; return False if there is none, so that the run starts afresh.

        Steps that the book counts but whose results were lost count as taken. A checkpoint of another plan,
        other constraints or another model is refused.
        """
        if self._path is None:
            raise InvalidInput("checkpoint is None; give the file to resume from")
        source = f"the checkpoint {self._path!r}"
        path = self._path
        data = self.processes.share_bytes(self.processes.led(lambda: checkpoints.read_file(path)))
        if data is None:
            return False
        state = checkpoints.decode(data, source)
        with checkpoints.sound(source):
            checkpoints.refuse_other_run(state["identity"], self._identity(), source)
            self._run, self.steps_done = checkpoints.progress(state, self.plan.steps, source)
            self.ledger = checkpoints.ledger_from(state["ledger"], self._given, source)
            checkpoints.load_module(self.module, state["module"])
            self.descent.restore(state["descent"])
            if self.multipliers is not None:
                checkpoints.restore_multipliers(self.multipliers, state["multipliers"])
        self._pass_over(self._lost())
        self._streams = RandomStreams.from_seed(None)  # noise must never be drawn twice
        return True

    # ------------------------------------------------------------------------------------ the steps

    def _stretch(self, length: int) -> Iterator[StepRecord]:
        with self._booked(length) as phase:
            self._save()
            for _ in range(length):
                if phase is not None:
                    phase.step()
                yield self._step()

    def _step(self) -> StepRecord:
        plan, dual = self.plan, self.multipliers
        assert self._sampler is not None  # noqa: S101 - `steps` has set both
        assert self._noise is not None  # noqa: S101
        table, weight = (None, 1.0) if dual is None else (dual.table, dual.loss_weight)
        rows = self._sampler.rows(self.steps_done)
        sums, tally = self.engine.sums(rows, table, weight)
        self._noise.release(sums, self._gradient_mechanism, self.processes)
        self._whole = False
        self.steps_done += 1  # whatever fails from here on, no later step may read this sample again
        norm = self.descent.step(sums, self.steps_done - 1)
        histograms = values = multipliers = None
        if dual is not None and self._release is not None and tally is not None:
            histograms = self._release.add(tally, self.steps_done == plan.steps)
            values, multipliers = dual.values, dual.multipliers
        self._whole = True
        record = StepRecord(self.steps_done, norm, histograms, values, multipliers)
        self.history.add(record)
        return record

    def _begin(self) -> None:
        """Find what is wrong, agree with the other processes, and draw the secrets of this run."""
        if self.steps_done >= self.plan.steps:
            return
        self.engine.try_out()
        self._agree()
        self.processes.led(self._check_cap)
        if self._run is None:
            self.processes.led(self._start)
            self._run = uuid.uuid4().hex[:12]
        self.processes.share([*self.module.parameters(), *self.module.buffers()])
        processes, plan = self.processes, self.plan
        if self._sampler is None:
            secret = torch.tensor(BlockSampler.draw_secret(self._streams.sampling))
            processes.share([secret])
            owned = share_of(plan.n_rows, processes.rank, processes.world)
            self._sampler = BlockSampler(plan.n_rows, plan.sampling_rate, secret.tolist(), owned)
        if self._noise is None:
            self._noise = DeviceNoise(self._streams.gradient, self.engine.device)
        if self.multipliers is not None:
            self._release = HistogramRelease(plan, self.multipliers, self._streams.histogram, processes)

    def _check_cap(self) -> None:
        """Refuse a run that the cap of its book would end halfway."""
        event, cap = self.plan.step_event, self.ledger.cap
        left = self.plan.steps - self.steps_done
        if event is not None and cap is not None and self.ledger.would_exceed((event.with_steps(left),)):
            raise BudgetExceeded(
                f"the {left} steps ahead would pass the ledger's cap {cap}, of which "
                f"{self.ledger.total_epsilon:.4g} is spent; plan fewer steps or more noise, or open a ledger "
                "with a larger cap"
            )

    def _start(self) -> None:
        if self._path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(self._path))):
            raise InvalidInput(f"checkpoint {self._path!r} is in a folder that does not exist; make it first")
        if self._path is not None and checkpoints.read_file(self._path) is not None:
            raise InvalidInput(
                f"the checkpoint {self._path!r} exists already; call resume() to go on with that run, or "
                "take another name"
            )
        if self.plan.private:
            note_seed(self.ledger, self._seed, self._streams)
        else:
            event = UnprotectedEvent("training without noise")
            self.ledger.book(event, purpose="train", data=self._data_name)

    def _agree(self) -> None:
        ours = repr(self._identity()).encode()
        if self.processes.share_bytes(ours) != ours:
            raise InvalidInput("the processes differ in plan, constraints or model; start all with the same")

    def _share_book(self) -> None:
        """Give every process a copy of the book that process 0 kept, so that all say the same epsilon."""
        document = self.processes.share_bytes(self.ledger.to_json().encode())
        if not self.processes.leads and document is not None:
            self.ledger = Ledger.from_json(document.decode())

    def _booked(self, steps: int) -> AbstractContextManager[Phase | None]:
        event = self.plan.step_event
        assert self._run is not None  # noqa: S101 - `_begin` has set it
        if event is None:
            return nullcontext()
        phase = self.ledger.phase(
            event,
            planned_steps=steps,
            purpose=checkpoints.purpose_of(self._run),
            data=self._data_name,
            stride=steps,
        )
        return Led(phase, self.processes)

    # ------------------------------------------------------------------------------ stop and go on

    def _identity(self) -> dict[str, Any]:
        shapes = {name: tuple(parameter.shape) for name, parameter in self.module.named_parameters()}
        return checkpoints.identity(self.plan, self.constraints, self.ledger.neighbours, shapes)

    def _save(self) -> None:
        if self._path is None or not self.processes.leads or self._run is None:
            return
        state = {
            "identity": self._identity(),
            "run": self._run,
            "steps_done": self.steps_done,
            "module": self.module.state_dict(),
            "descent": self.descent.state(),
            "multipliers": checkpoints.multipliers_state(self.multipliers),
            "ledger": self.ledger.to_json(),
        }
        checkpoints.write_file(self._path, checkpoints.encode(state))

    def _lost(self) -> int:
        if not self.plan.private or self._run is None:
            return 0
        return max(0, checkpoints.booked_steps(self.ledger, self._run) - self.steps_done)

    def _pass_over(self, steps: int) -> None:
        """Count steps whose results were lost as taken: they may have been seen."""
        steps = min(steps, self.plan.steps - self.steps_done)
        self.steps_done += steps
        self.descent.pass_over(steps)
        if self.multipliers is not None:
            self.multipliers.step += steps


def _classes(n_classes: int | None, constraints: CompiledConstraints | None) -> int:
    if constraints is None:
        if n_classes is None:
            raise InvalidInput("n_classes must be given without constraints, got None")
        return _validate.count(at_least=2, n_classes=n_classes)
    if n_classes not in (None, constraints.n_classes):
        raise InvalidInput(f"n_classes is {n_classes}, but the constraints have {constraints.n_classes}")
    return constraints.n_classes


def _functions(callbacks: Any) -> tuple[Callback, ...]:
    found = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    if not isinstance(callbacks, Iterable) or not all(callable(callback) for callback in found):
        raise InvalidType("callbacks must be a list of functions of a StepRecord, such as [print]")
    return found


def _history_shape(multipliers: Multipliers | None) -> tuple[Any, ...]:
    return () if multipliers is None else (multipliers.shape, len(multipliers))


def _check_noise(plan: Plan, multipliers: Multipliers | None) -> None:
    if plan.private and (plan.histogram_noise is None) != (multipliers is None):
        raise UnsupportedCombination(
            f"histogram_noise is {plan.histogram_noise}, but there are "
            f"{'no ' if multipliers is None else ''}constraints; "
            "a private plan has histogram_noise exactly if there are constraints"
        )
