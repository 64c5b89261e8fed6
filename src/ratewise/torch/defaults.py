"""A plan for a network from public facts: rows, parameters, constraints, budget. No row is looked at.

Every choice can be overridden. The rules are few: large batches, because at a given budget the noise on a
mean falls as batches grow; a clip of 1, which sets the scale that the learning rate is meant for; learning
rate and multipliers that come to rest together at the end. Multipliers are controlled as those of the linear
engine are.
"""

from __future__ import annotations

import math
from typing import Any

from ratewise import _validate
from ratewise.compiled import CompiledConstraints
from ratewise.defaults import AUTO, PublicFacts, plan_for
from ratewise.exceptions import UnsupportedCombination
from ratewise.plan import DualControl, Plan

CLIP = 1.0
EPOCHS = 20.0
_BATCHES = (256, 4096)
_ROWS_SHARE = 1 / 25
_LARGEST_RATE = 0.5
# weights of a network on its way do not average well: of ResNet16 on faces, the last ones are best
_OPTIMISATION: dict[str, Any] = {
    "learning_rate": 0.5,
    "momentum": 0.9,
    "schedule": "linear",
    "averaging": "none",
    "l1": 0.0,
}


def network_plan(
    n_rows: int,
    n_parameters: int,
    constraints: CompiledConstraints | None = None,
    *,
    epsilon: float | None,
    delta: float,
    n_classes: int | None = None,
    sampling_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    clip: Any = AUTO,
    dual: DualControl | None = None,
    **choices: Any,
) -> Plan:
    """Return a plan that spends at most (epsilon, delta), with every open choice made from public facts.

    Parameters
    ----------
    n_rows, n_parameters : int
    constraints : CompiledConstraints, optional
    epsilon : float or None
        None plans a training without privacy.
    delta : float
    n_classes : int, optional
    sampling_rate : float, optional
        Share of the rows in a step: a 25th, but 256 to 4,096 rows, unless told.
    epochs : float, optional
        How often each row is read on average, 20 unless told; or say `steps`.
    steps : int, optional
    clip : float, "auto" or None
        1 unless told; None (no clipping) is for training without privacy.
    dual : DualControl, optional
    **choices
        Other arguments of `ratewise.defaults.plan_for` and fields of `ratewise.plan.Plan`.

    Examples
    --------
    >>> plan = network_plan(20_000, 6_500_000, epsilon=8.0, delta=1e-6)
    >>> round(plan.expected_rows), plan.steps, plan.clip
    (800, 500, 1.0)
    """
    rows, parameters = _validate.count(n_rows=n_rows), _validate.count(n_parameters=n_parameters)
    if epochs is not None and steps is not None:
        raise UnsupportedCombination(f"epochs is {epochs} and steps {steps}; give one of them")
    if sampling_rate is None:
        batch = min(max(rows * _ROWS_SHARE, _BATCHES[0]), _BATCHES[1])
        sampling_rate = min(batch / rows, _LARGEST_RATE)
    rate = _validate.fraction(sampling_rate=sampling_rate)
    if steps is None:
        passes = EPOCHS if epochs is None else _validate.positive(epochs=epochs)
        steps = max(1, math.ceil(passes / rate))
    if isinstance(clip, str) and clip == AUTO:
        clip = CLIP  # without privacy too: it keeps the same learning rate safe
    fields = {name: value for name, value in choices.items() if value is not None}
    facts = PublicFacts(n_rows=rows, n_features=parameters, n_classes=n_classes or 2, constraints=constraints)
    return plan_for(
        facts,
        epsilon=epsilon,
        delta=delta,
        sampling_rate=rate,
        steps=steps,
        clip=clip,
        row_norm=None,
        standardise=False,
        dual=dual,
        **{**_OPTIMISATION, **fields},
    )
