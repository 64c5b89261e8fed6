"""Training of a module: a session with a module as the model, checkpoints and any number of processes.

A step releases, of one Poisson sample of units, the clipped gradient sum (L2 sensitivity: the clip) and, with
constraints, the prediction counts (L1 and L2 sensitivity 1); at the end the counts of the returned model are released for
the certificate. The ledger admits the whole plan before the first row is read; each step is recorded before it reads rows.

**Checkpoints** (`ratewise._files`) are read without executing anything in them. One is written after the ledger has
recorded the next steps and before the first row of those steps is read: a process that is killed leaves a file whose
ledger counts all of them, and the run that resumes does not take them again. No state of any random generator is stored:
a resumed run draws fresh entropy, and no noise is used twice.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import math
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ratewise import _validate
from ratewise._files import read_bytes, sound, state_from_bytes, state_to_bytes, write_whole
from ratewise.accounting import Ledger, Phase, PrivacyUnit
from ratewise.constraints.compiled import CompiledConstraints
from ratewise.data.table import Units, row_units
from ratewise.exceptions import InvalidInput, InvalidType, LedgerError, UnsupportedCombination
from ratewise.mechanisms.noise import Mechanism
from ratewise.mechanisms.randomness import KEY_BYTES, USED_SEEDS, RandomStreams, warn_of_seed
from ratewise.mechanisms.sampling import KeyedSample, Rows
from ratewise.torch.distributed import Processes, TotalRelease, refuse_unjoined, share_of
from ratewise.torch.engine import Loss, Objective, RowSource, TorchEngine
from ratewise.torch.gradients import widen
from ratewise.training.config import TrainingConfig
from ratewise.training.declarations import Declarations, check_ledger
from ratewise.training.dual import DualUpdate
from ratewise.training.loop import LARGEST, History, StepRecord, schedule_value
from ratewise.training.plan import TRAINING, Plan, PublicFacts, plan_for
from ratewise.training.session import OnStep, Session

CHECKPOINT = "network checkpoint"
CLIP = 1.0
EPOCHS = 20.0
_BATCHES = (256, 4096)
_BATCH_SHARE = 1 / 25
_LARGEST_RATE = 0.5
_GAIN = 5.0  # of a gradient on the parameters in the long run: learning_rate / (1 - momentum)
NETWORK = TrainingConfig(momentum=0.9)


def network_config(config: TrainingConfig | None, n_units: int, epochs: float | None = None) -> TrainingConfig:
    """Return the configuration with the rules for networks in place of None.

    Each unit is read `epochs` times on average, 20 by default; give `epochs` or ``config.steps``. A step reads a 25th of
    the units, but 256 to 4,096 of them, and at most half. The clipping norm is 1, with and without privacy; the
    learning rate is ``5 * (1 - momentum)``, which is meant for that norm.
    """
    config = NETWORK if config is None else config
    units = _validate.count(n_units=n_units)
    if epochs is not None and config.steps is not None:
        raise UnsupportedCombination(f"epochs is {epochs} and steps {config.steps}; give one of them")
    batch = min(max(units * _BATCH_SHARE, _BATCHES[0]), _BATCHES[1])
    rate = config.sampling_rate or min(batch / units, _LARGEST_RATE)
    passes = EPOCHS if epochs is None else _validate.positive(epochs=epochs)
    return dataclasses.replace(
        config,
        sampling_rate=rate,
        steps=config.steps or max(1, math.ceil(passes / rate)),
        clip=config.clip or CLIP,
        learning_rate=config.learning_rate or _GAIN * (1.0 - config.momentum),
    )


def network_plan(
    n_units: int,
    config: TrainingConfig | None = None,
    *,
    epsilon: float | None,
    delta: float,
    constrained: bool = False,
    epochs: float | None = None,
    neighbours: str = "zero_out",
    unit: PrivacyUnit | None = None,
) -> Plan:
    """Return the plan of a network's training that spends (epsilon, delta); None trains without privacy.

    `n_units` are rows, or ids. With constraints (`constrained`), prediction counts and a certificate are released as
    well. The configuration and `epochs` have the defaults of docs/pytorch.md; `neighbours` ("zero_out" or
    "replace_one") and `unit` are those of `ratewise.training.plan.plan_for`.

    Examples
    --------
    >>> plan = network_plan(20_000, epsilon=8.0, delta=1e-6)
    >>> round(plan.expected_units), plan.steps
    (800, 500)
    """
    refuse_removal(neighbours)
    settings = network_config(config, n_units, epochs)
    if epsilon is not None:
        epsilon = _validate.positive(epsilon=epsilon, hint="None trains without privacy")
    facts = PublicFacts(n_units=n_units, constrained=constrained)
    budget = {"epsilon": epsilon, "delta": _validate.inside(delta=delta)}
    return plan_for(facts, settings, **budget, neighbours=neighbours, unit=unit or PrivacyUnit())  # type: ignore[arg-type]


def refuse_removal(neighbours: str) -> None:
    """Refuse the relation under which rows change places: matrix products round differently elsewhere in a batch."""
    if neighbours == "add_or_remove":
        raise UnsupportedCombination(
            "neighbours is 'add_or_remove', which networks do not offer: without a row the others move to other places of "
            "a batch, where products round differently; use 'zero_out', which has the same noise, or 'replace_one'"
        )


# -------------------------------------------------------------------------------------- optimizer


class TorchOptimizer:
    """Moves the parameters of a module by released gradients (`ratewise.training.loop.Optimizer`).

    The default optimizer is SGD with the momentum and penalty of the configuration; biases and norms have no penalty.
    A scheduler is stepped once after each step; the default is the schedule of the configuration.
    """

    def __init__(
        self, module: nn.Module, steps: int, config: TrainingConfig, optimizer: Any = None, scheduler: Any = None
    ) -> None:
        self._module, self.done = module, 0
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        check_optimizer(optimizer, scheduler, self.parameters)
        if optimizer is None:
            matrices: Any = [p for p in self.parameters if p.ndim > 1]
            others: Any = [p for p in self.parameters if p.ndim <= 1]
            groups = [{"params": matrices, "weight_decay": config.l2 or 0.0}, {"params": others}]
            rate = float(config.learning_rate or _GAIN)
            optimizer = torch.optim.SGD(groups, lr=rate, momentum=config.momentum)
        if scheduler is None and config.schedule != "constant":
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda done: schedule_value(config.schedule, done, steps)
            )
        self.optimizer: torch.optim.Optimizer = optimizer
        self.scheduler = scheduler
        self._first_rate = float(optimizer.param_groups[0]["lr"])

    @property
    def relative_rate(self) -> float:
        """Learning rate of the coming step relative to the first one."""
        now, first = float(self.optimizer.param_groups[0]["lr"]), self._first_rate
        return min(now / first, 1.0) if first > 0 else 1.0

    def skip_to(self, steps: int) -> None:
        """Count so many steps as taken: the schedule goes on as if they had been."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a scheduler moves before its optimizer, as meant here
            for _ in range(steps - self.done if self.scheduler is not None else 0):
                self.scheduler.step()
        self.done = steps

    def step(self, total: Sequence[Tensor], expected_units: float) -> float:
        """Move by a released sum (its tensors are used up) and return the norm of the released mean."""
        for parameter, part in zip(self.parameters, total, strict=True):
            parameter.grad = part.mul_(1.0 / expected_units).to(parameter)
        norm = _norm(total)
        if not math.isfinite(norm):
            raise InvalidInput("training diverged: the released gradient is not finite; lower learning_rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        if self.scheduler is not None:
            self.scheduler.step()
        if not _norm(self.parameters) < LARGEST:
            raise InvalidInput("training diverged: the parameters have grown beyond measure; lower learning_rate")
        return norm

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on later, with arrays in the place of tensors."""
        parts = {"module": self._module, "optimizer": self.optimizer, "scheduler": self.scheduler}
        states = {name: None if part is None else part.state_dict() for name, part in parts.items()}
        return {"done": self.done, **tree_map(_array, states)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        state = tree_map(lambda leaf: torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf, state)
        if (state["scheduler"] is None) != (self.scheduler is None):
            raise InvalidInput("checkpoint and training differ in having a scheduler; resume with the same")
        trained = [name for name, parameter in self._module.named_parameters() if parameter.requires_grad]
        if not all(bool(torch.isfinite(state["module"][name]).all()) for name in trained):
            raise InvalidInput("the checkpoint's parameters are not finite; take an older copy")
        try:
            self._module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, RuntimeError, KeyError) as problem:
            raise InvalidInput(f"the checkpoint belongs to another model or optimizer: {problem}") from None
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.done = int(state["done"])


def _array(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    whole = not leaf.dtype.is_floating_point and leaf.dtype != torch.bool
    return (leaf.long() if whole else widen(leaf)).detach().cpu().numpy().copy()


def check_optimizer(optimizer: Any, scheduler: Any, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse an optimizer over other parameters than those that are trained, or a scheduler of another one.

    Both must step by themselves: what a closure or a measure of the rows would show is not released.
    """
    if optimizer is None:
        if scheduler is not None:
            raise UnsupportedCombination("scheduler was given without its optimizer; pass both")
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidType(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise InvalidType(f"scheduler must have a step method, got {type(scheduler).__name__}")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {id(parameter) for parameter in parameters}
    if held != trained:
        raise InvalidInput(
            f"optimizer holds {len(held)} parameters of which {len(held & trained)} are among the module's "
            f"{len(trained)} trainable ones; make it over exactly those, and freeze others with requires_grad_(False)"
        )
    for part, what, instead in (
        (optimizer, "a closure, which would read the rows again", "SGD or Adam"),
        (scheduler, "a measure of the rows at every step, which would be one more release", "CosineAnnealingLR"),
    ):
        try:  # by its class: schedulers wrap an optimizer's own step
            inspect.signature(getattr(type(part), "step", lambda _: None)).bind(part)
        except TypeError:
            raise UnsupportedCombination(
                f"{type(part).__name__} wants {what}; use one whose step() needs nothing, such as {instead}"
            ) from None
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UnsupportedCombination("SparseAdam wants sparse gradients, and gradients with noise are dense; use Adam")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise InvalidInput("scheduler belongs to another optimizer; make it with the one that is given")


def _norm(tensors: Sequence[Tensor]) -> float:
    with torch.no_grad():
        return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors])))


# ---------------------------------------------------------------------------------------- session


@dataclass(eq=False)
class NetworkSession(Session):
    """A fit of a network: the stages of `ratewise.training.session.Session` with a module as the model.

    Process 0 alone keeps the given ledger, releases and writes checkpoints; the others record the same plan on a ledger
    in memory. Parameters are those of `Trainer`; `seed` is what `streams` were made of, for the warning that it must
    stay secret.
    """

    module: nn.Module = field(default_factory=nn.Identity)
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    physical_batch: int | None = None
    device: torch.device | str | None = None
    autocast: bool = False
    processes: Processes = field(default_factory=Processes)
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 50
    seed: Any = None
    engine: TorchEngine = field(init=False)
    loop: Any = field(init=False, default=None)
    history: History = field(init=False)
    steps_done: int = field(init=False, default=0)
    _seed_noted: bool = field(init=False, default=False)
    _sampler: Callable[[int], Rows] | None = field(init=False, default=None)  # the owned units of a step
    _process: int = field(init=False, default_factory=os.getpid)
    _consistent: bool = field(init=False, default=True)
    _file: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        _validate.count(checkpoint_every=self.checkpoint_every)
        refuse_removal(self.neighbours)
        refuse_unjoined(self.processes)
        self.on_release = self.save
        self.ledger = self.ledger if self.processes.leads else None

    def admit(self) -> None:
        """Have the whole plan admitted, unless it was: in process 0, before any row is read."""
        if hasattr(self, "admission"):
            return
        self.processes.led(self._admit)
        if not self.processes.leads:
            self.ledger = Ledger(neighbours=self.neighbours, unit=self.plan.unit)
            super().admit()

    def _admit(self) -> None:
        path = self.checkpoint
        if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise InvalidInput(f"checkpoint {os.fspath(path)!r} is in a folder that does not exist; make it first")
        if path is not None and os.path.exists(path):
            raise InvalidInput(f"{self._source} exists already; resume() goes on with that run, or take another name")
        self.note_seed()
        super().admit()

    def note_seed(self) -> None:
        """Warn that a seed must stay secret, and refuse one that this ledger has seen: noise must not repeat."""
        if self.plan.private and not self._seed_noted:
            self.open_ledger().check(list(self.plan.events.values()))
            warn_of_seed(self.seed)
            USED_SEEDS.add(self.open_ledger(), self.streams)
            self._seed_noted = True

    def _left(self, name: str) -> int:
        left = self.admission.left(name) if self.processes.leads and name in self.plan.events else 0
        return int(self.processes.share_bytes(str(left).encode()) or 0)

    def _total(self, mechanism: Mechanism, like: Any = None) -> TotalRelease:
        return TotalRelease(mechanism, self.processes, like)

    def _threads(self) -> AbstractContextManager[object]:
        return nullcontext()

    def prepare(self) -> None:
        """Do nothing: inputs are used as they are, or scaled by declared bounds inside the module."""

    def _make_engine(self) -> tuple[TorchOptimizer, float]:
        config, compiled = self.config, self.compiled
        rows: Any = self.rows
        objective = Objective(
            len(self.classes), None if compiled is None else compiled.n_cells, self.loss,
            temperature=config.temperature, hard=config.rates == "hard",
        )  # fmt: skip
        self.engine = TorchEngine(
            self.module, rows.source(self.domain, compiled) if hasattr(rows, "source") else rows, objective,
            units=self.units, physical_batch=self.physical_batch, device=self.device, autocast=self.autocast,
        )  # fmt: skip
        optimizer = TorchOptimizer(self.module, self.plan.steps, config, self.optimizer, self.scheduler)
        return optimizer, float(config.clip or CLIP)

    def start(self) -> None:
        """Find what is wrong, agree with the other processes, and draw the key of the samples."""
        if self._sampler is not None or self.steps_done >= self.plan.steps:
            return
        self.engine.try_out()
        ours = repr(self._identity()).encode()
        if self.processes.share_bytes(ours) != ours:
            raise InvalidInput("the processes differ in plan, constraints or model; start all with the same")
        self.processes.share([*self.module.parameters(), *self.module.buffers()])
        # secret, the same in all processes, and in memory only: each run, and each resumed run, draws its own
        key = self.processes.share_bytes(self.streams.sampling.bytes(KEY_BYTES)) or b""
        self.engine.random_key = hashlib.sha256(key + b"random layers").digest()
        n_units, rate = self.plan.n_units, self.plan.sampling_rate
        self.engine.owned = owned = share_of(n_units, self.processes.rank, self.processes.world)
        self._sampler = lambda step: KeyedSample(n_units, rate, key, step).units(owned.start, owned.stop)

    def steps(self) -> Generator[StepRecord, None, None]:
        """Take the steps that remain one by one, and yield what each of them released."""
        self.start()
        self.admit()
        every = self.plan.steps if self.checkpoint is None else self.checkpoint_every
        try:
            while self.steps_done < self.plan.steps:
                count = min(every, self.plan.steps - self.steps_done)
                stride = {} if self.checkpoint is None else {"stride": count}
                phase = self.admission.phase(TRAINING, **stride) if self.plan.private else nullcontext()
                with phase as recorded:
                    self.save()
                    for _ in range(count):
                        yield self._step(recorded)
        finally:
            if self._consistent:
                self.save()

    def _step(self, phase: Phase | None) -> StepRecord:
        """Record a step, draw its sample, release the sums, and update."""
        assert self._sampler is not None  # noqa: S101 - started before
        if self._process != os.getpid():
            raise UnsupportedCombination(
                "this training was started in another process, which draws the same samples; start one in each process"
            )
        refuse_unjoined(self.processes)
        if phase is not None:
            phase.step()
        elif self.plan.private:
            raise LedgerError("a step of a private plan needs a phase of its ledger: use train() or steps()")
        sample = self._sampler(self.steps_done)
        self.steps_done += 1  # whatever fails from here on, no later step may take its place or its sample
        self._consistent = False
        record: StepRecord = self.loop.step(sample, self.streams)
        self._consistent = True
        self.history.add(record)
        return record

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.processes.leads

    @property
    def dual(self) -> DualUpdate | None:
        """The multipliers; None without constraints."""
        return None if self.loop is None else self.loop.dual

    def __reduce__(self) -> NoReturn:
        raise InvalidType(
            "a training cannot be copied or pickled: the copy would draw the same samples again; copy fitted_module(), "
            "or stop and go on with checkpoint=..."
        )

    def fitted_module(self) -> nn.Module:
        """Return a copy of the module in evaluation mode."""
        return copy.deepcopy(self.module).eval()

    # ------------------------------------------------------------------------------ stop and go on

    @property
    def _source(self) -> str:
        return f"the checkpoint {os.fspath(self.checkpoint or '')!r}"

    def resume(self) -> bool:
        """Go on from the checkpoint file of the same plan, constraints and model; return False if there is none.

        Steps that the ledger counts but whose results were lost are not taken again.
        """
        if self.checkpoint is None:
            raise InvalidInput("checkpoint is None; give the file to resume from")
        path = os.fspath(self.checkpoint)
        self._file = _signature(path)
        data = self.processes.share_bytes(
            self.processes.led(lambda: read_bytes(path) if os.path.exists(path) else None)
        )
        if data is None:
            return False
        state = state_from_bytes(data, CHECKPOINT, path)
        with sound(path):
            ledger, given = Ledger.from_json(state["ledger"]), self.ledger
            if given is not None and given.path is not None:
                if given.records[: len(ledger.records)] != ledger.records:
                    raise InvalidInput(
                        f"the ledger {given.path!r} is not the one of {self._source}; open the right file"
                    )
                ledger = given
            elif given is not None and given.records:
                raise InvalidInput(
                    f"ledger is kept in memory and has records that {self._source} does not know; leave it out to go on "
                    "with the ledger in the checkpoint, or keep it in a file with Ledger.create(path)"
                )
            self.restore({**state, "loop": dict(state["loop"])}, ledger.admission(state["admission"]), self._source)
        self._seed_noted = True
        if self.loop is not None:
            self._go_on(state)
        return True

    def _go_on(self, state: Any) -> None:
        with sound(os.fspath(self.checkpoint or "")):
            for name, value in self._identity().items():  # else the ledger would not state what ran
                if state["identity"].get(name) != value:
                    raise InvalidInput(f"{self._source} belongs to another run: {name} differs; {_SAME_RUN}")
            done = state["loop"]["done"]
            self.loop.restore(state["loop"])
            self.history.restore(state["history"])
        taken = self.plan.steps - self.admission.left(TRAINING) if self.plan.private else done
        agreed = self.processes.share_bytes(str(max(done, taken)).encode())
        self.steps_done = int(agreed or done)
        self.loop.optimizer.skip_to(self.steps_done)  # steps that may have been released are not taken again
        self.streams = RandomStreams.from_seed(None)  # noise must never be drawn twice

    def save(self) -> None:
        """Write the checkpoint file, in process 0."""
        if self.checkpoint is None or not self.processes.leads or self.loop is None or not hasattr(self, "admission"):
            return
        if _signature(self.checkpoint) != self._file:
            raise LedgerError(
                f"{self._source} was written or removed by somebody else since this run has read it; one run alone "
                "can go on from a checkpoint, because others do not count what it releases: resume again, or give "
                "all of them one ledger in a file"
            )
        facts = {"identity": self._identity(), "admission": self.admission.id, "ledger": self.open_ledger().to_json()}
        write_whole(self.checkpoint, state_to_bytes(CHECKPOINT, {**self.state(), **facts}))
        self._file = _signature(self.checkpoint)

    def _identity(self) -> dict[str, Any]:
        """Return what must not change when a run resumes: plan, constraints and model."""
        compiled, config = self.compiled, self.config
        return {
            "plan": repr(self.plan),
            **{name: getattr(config, name) for name in ("clip", "rates", "temperature")},
            "constraints": None
            if compiled is None
            else repr((compiled.names, compiled.bounds.tolist(), compiled.domain)),
            "parameters": {name: list(parameter.shape) for name, parameter in self.module.named_parameters()},
        }


_SAME_RUN = "resume with the privacy parameters, constraints and model that the run was started with"


def _signature(path: Any) -> tuple[int, int, int] | None:
    """Return numbers that change whenever a file is written; None if there is none."""
    if not os.path.exists(path):
        return None
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


class Trainer(NetworkSession):
    """A training of a module that can be run, followed step by step, stopped, and resumed.

    Everything that can be wrong is found before the plan is admitted. Wherever it stops, what was released is
    covered by the plan on the ledger.

    Parameters
    ----------
    module : nn.Module
        Takes inputs (rows first) and returns logits, one per class; trained in place. The last iterate, with
        a learning rate that falls to zero, is the model.
    rows : RowSource
        Such as `TensorRows` or `DatasetRows`.
    plan : Plan
        Such as `network_plan` returns.
    constraints : CompiledConstraints, optional
    config : TrainingConfig, optional
        Settings that the plan does not contain: clip, learning rate, momentum, schedule, multipliers.
    n_classes : int, optional
        Needed without constraints.
    units : Units, optional
        Which rows form a unit of privacy; by default each row is one.
    ledger : Ledger, optional
        A new one in memory by default. Only process 0 writes it.
    random_state : int, NumPy generator or None
        A seed makes a run repeatable and must stay secret. A resumed run takes fresh entropy instead.
    streams : RandomStreams, optional
        In place of `random_state`.
    **options
        `loss`, `optimizer`, `scheduler` (the latter two as objects), `physical_batch`, `device`, `checkpoint`,
        `checkpoint_every`, `processes` and `data_name` as for `TorchRateConstrainedClassifier`; `autocast`, forward
        and backward in bfloat16.
    """

    def __init__(
        self,
        module: nn.Module,
        rows: RowSource,
        plan: Plan,
        constraints: CompiledConstraints | None = None,
        *,
        config: TrainingConfig | None = None,
        n_classes: int | None = None,
        units: Units | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        streams: RandomStreams | None = None,
        **options: Any,
    ) -> None:
        _validate.instance(Plan, plan=plan)
        for kind, given in ((CompiledConstraints, {"constraints": constraints}), (TrainingConfig, {"config": config})):
            if None not in given.values():
                _validate.instance(kind, **given)
        check_ledger(ledger, plan.neighbours)
        event = plan.training
        if plan.private and (event is None or event.gradient_noise is None):
            raise UnsupportedCombination("the plan has no training steps with gradient noise; see network_plan")
        if event is not None and (event.histogram_noise is None) != (constraints is None):
            raise UnsupportedCombination(
                f"histogram_noise is {event.histogram_noise}, and constraints are {constraints}; a private plan has "
                "histogram_noise exactly if there are constraints"
            )
        units = row_units(rows.n_rows) if units is None else units
        if units.n_units != plan.n_units:
            raise InvalidInput(f"data has {units.n_units} units (rows or ids), the plan was made for {plan.n_units}")
        if constraints is not None and n_classes not in (None, constraints.n_classes):
            raise InvalidInput(f"n_classes is {n_classes}, but the constraints have {constraints.n_classes}")
        if constraints is None and n_classes is None:
            raise InvalidInput("n_classes must be given without constraints, got None")
        super().__init__(
            Declarations([], None, {}, {}), rows,  # type: ignore[arg-type]
            network_config(config, plan.n_units), plan.epsilon if plan.private else None, plan.delta,
            plan.neighbours, RandomStreams.from_seed(random_state, "network") if streams is None else streams,
            ledger=Ledger(neighbours=plan.neighbours, unit=plan.unit) if ledger is None else ledger,
            module=module, seed=random_state,
            **{name: value for name, value in options.items() if value is not None},
        )  # fmt: skip
        self.plan, self.compiled, self.units = plan, constraints, units
        n_classes = constraints.n_classes if constraints is not None else n_classes
        self.classes = tuple(range(_validate.count(at_least=2, n_classes=n_classes)))
        self._seed_noted = streams is not None
        self.bind()

    def run(self, on_step: OnStep | None = None) -> History:  # type: ignore[override]
        """Take the steps that remain, release the certificate, and return what the steps released.

        `on_step` is called in every process after each step, with a `StepRecord` of released values.
        """
        self.train(on_step)
        self.certify()
        return self.history
