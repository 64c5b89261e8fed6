"""From a released gradient to the next weights: optimizer, learning rates, average. All post-processing."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.plan import Plan, schedule_values
from ratewise.torch.averaging import Averaging


class Descent:
    """Moves the parameters by released gradients.

    Parameters
    ----------
    plan : Plan
    parameters : list of Parameter
        Exactly those that are trained.
    optimizer : torch.optim.Optimizer, optional
        Any one, over exactly these parameters; SGD with the plan's learning rate, momentum and penalty
        (which spares biases and norms) unless told.
    scheduler : LRScheduler, optional
        Stepped once after each step; the plan's schedule if neither it nor an optimizer is given.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Sequence[nn.Parameter],
        optimizer: Any = None,
        scheduler: Any = None,
    ) -> None:
        if plan.l1 > 0:
            raise UnsupportedCombination(
                f"the plan has an l1 of {plan.l1:g}, which only linear models know; set it to 0 and use l2"
            )
        self.parameters = list(parameters)
        self._scale = 1.0 / plan.expected_rows
        if optimizer is None:
            if scheduler is not None:
                raise UnsupportedCombination("scheduler was given without its optimizer; pass both")
            optimizer, scheduler = _planned(plan, self.parameters)
        check_optimizer(optimizer, self.parameters)
        if scheduler is not None:
            check_scheduler(scheduler, optimizer)
        self.optimizer: torch.optim.Optimizer = optimizer
        self.scheduler: LRScheduler | None = scheduler
        self.averaging = Averaging(plan)

    def step(self, released: Sequence[Tensor], number: int) -> float:
        """Move by a released sum (its tensors are used up) and return the norm of the released mean."""
        for parameter, total in zip(self.parameters, released, strict=True):
            parameter.grad = total.mul_(self._scale)
        norm = _norm(released)
        if not math.isfinite(norm):
            raise InvalidInput("training diverged: the released gradient is not finite; lower learning_rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if not _norm(self.parameters) < 1e30:
            raise InvalidInput(
                "training diverged: the parameters have grown beyond measure; lower learning_rate"
            )
        self.averaging.take_in(self.parameters, number)
        return norm

    def pass_over(self, steps: int) -> None:
        """Let the learning rate go on as if so many steps had been taken."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a scheduler that moves before its optimizer: meant here
            for _ in range(steps if self.scheduler is not None else 0):
                self.scheduler.step()  # type: ignore[union-attr]

    def state(self) -> dict[str, Any]:
        """Return optimizer, schedule and average."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "mean": self.averaging.mean,
            "averaged": self.averaging.count,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        if (state["scheduler"] is None) != (self.scheduler is None):
            raise InvalidInput("checkpoint and training differ in having a scheduler; resume with the same")
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, KeyError) as problem:
            raise InvalidInput(f"the checkpoint's optimizer does not fit this one: {problem}") from None
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.averaging.count = int(state["averaged"])
        mean = state["mean"]
        if mean is not None:
            pairs = zip(mean, self.parameters, strict=True)
            self.averaging.mean = [value.to(parameter.device) for value, parameter in pairs]


def check_optimizer(optimizer: Any, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse an optimizer over other parameters than those that are trained."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidType(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {id(parameter) for parameter in parameters}
    if held != trained:
        raise InvalidInput(
            f"optimizer holds {len(held)} parameters of which {len(held & trained)} are among the module's "
            f"{len(trained)} trainable ones; make it over exactly those, and freeze others with "
            "requires_grad_(False) first"
        )
    if not _steps_alone(optimizer):
        raise UnsupportedCombination(
            f"optimizer {type(optimizer).__name__} wants a closure, which would read the rows again and "
            "again; use one whose step() needs nothing, such as SGD or Adam"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UnsupportedCombination(
            "optimizer SparseAdam wants sparse gradients, and gradients with noise are dense; use Adam"
        )


def check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a scheduler that cannot be stepped by itself, or that moves another optimizer."""
    if not callable(getattr(scheduler, "step", None)):
        raise InvalidType(f"scheduler must have a step method, got {type(scheduler).__name__}")
    if not _steps_alone(scheduler):
        raise UnsupportedCombination(
            f"scheduler {type(scheduler).__name__} wants a measure of the rows at every step, which would be "
            "one more release; use one that counts steps, such as CosineAnnealingLR"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise InvalidInput("scheduler belongs to another optimizer; make it with the one that is given")


def _steps_alone(part: Any) -> bool:
    """Return whether ``part.step()`` needs no argument, by its class: schedulers wrap an optimizer's own."""
    step = getattr(type(part), "step", None)
    if step is None:
        return True
    try:
        inspect.signature(step).bind(part)
    except TypeError:
        return False
    return True


def _planned(plan: Plan, parameters: list[nn.Parameter]) -> tuple[torch.optim.Optimizer, LRScheduler]:
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": plan.l2},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(
        [group for group in groups if group["params"]], lr=plan.learning_rate, momentum=plan.momentum
    )
    factors = [*schedule_values(plan.schedule, plan.steps, plan.warmup).tolist(), 0.0]
    return optimizer, LambdaLR(optimizer, lambda step: factors[min(step, plan.steps)])


def _norm(tensors: Sequence[Tensor]) -> float:
    with torch.no_grad():
        return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors])))
