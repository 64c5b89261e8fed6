"""A plan from public facts: what to run when nothing but a budget and constraints is given.

Every choice depends on numbers that are public anyway (rows, features, classes, cells, constraints, budget),
so choosing costs no privacy, and every choice can be overridden. What the rows look like never enters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratewise import _validate
from ratewise.accounting import calibrate
from ratewise.multipliers import Constraints, affordable_interval
from ratewise.plan import DualControl, Plan

AUTO = "auto"

_LARGEST_BATCH = 65_536
_LARGEST_RATE = 0.5

# One configuration for all data, found on unlike data sets (benchmarks/ and docs/ say how it fares).
STEPS = 200
CLIP = 1.0
ROW_NORM = 3.0
HISTOGRAM_SHARE = 0.1
_OPTIMISATION: dict[str, Any] = {"learning_rate": 6.0, "momentum": 0.9, "averaging": "tail"}


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What is known of the data without reading a row.

    Parameters
    ----------
    n_rows, n_features, n_classes : int
    constraints : CompiledConstraints or None
        Compiled against public values; None trains without constraints.
    """

    n_rows: int
    n_features: int
    n_classes: int
    constraints: Constraints | None = None


def sampling_rate_for(n_rows: int) -> float:
    """Return the share of the rows that a step reads: half of them, but no more than 65,536.

    At a given budget the noise on a mean falls as batches grow, until batches hold a large part of the rows;
    past some ten thousand rows a batch, noise no longer limits a linear model and only time is won.

    >>> sampling_rate_for(20_000), sampling_rate_for(10_000_000)
    (0.5, 0.0065536)
    """
    return min(_LARGEST_RATE, _LARGEST_BATCH / n_rows)


def plan_for(
    facts: PublicFacts,
    *,
    epsilon: float | None,
    delta: float,
    neighbours: str = "add_or_remove",
    histogram: str = "gaussian",
    histogram_share: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    clip: Any = AUTO,
    row_norm: Any = AUTO,
    dual: DualControl | None = None,
    **choices: Any,
) -> Plan:
    """Return a plan that spends at most (epsilon, delta), with every open choice made from public facts.

    Parameters
    ----------
    facts : PublicFacts
    epsilon : float or None
        None plans a training without privacy.
    delta : float
    neighbours : str
    histogram, histogram_share, sampling_rate, steps, clip, row_norm, dual
        None (or "auto" where None has a meaning) leaves the choice to the rules of this module.
    **choices
        Any other field of `Plan`.
    """
    rate = (
        sampling_rate_for(facts.n_rows)
        if sampling_rate is None
        else _validate.fraction(sampling_rate=sampling_rate)
    )
    count = STEPS if steps is None else _validate.count(steps=steps)
    fields = {**_OPTIMISATION, **{name: value for name, value in choices.items() if value is not None}}
    fields["row_norm"] = ROW_NORM if isinstance(row_norm, str) and row_norm == AUTO else row_norm
    fields["dual"] = _dual_for(facts, rate, count) if dual is None else dual
    if epsilon is None:
        return Plan(
            n_rows=facts.n_rows,
            sampling_rate=rate,
            steps=count,
            clip=None if isinstance(clip, str) and clip == AUTO else clip,
            gradient_noise=None,
            private=False,
            **fields,
        )
    found = calibrate(
        epsilon,
        delta,
        rate,
        count,
        histogram=None if facts.constraints is None else histogram,
        histogram_share=HISTOGRAM_SHARE if histogram_share is None else histogram_share,
        neighbours=neighbours,
    )
    return Plan(
        n_rows=facts.n_rows,
        sampling_rate=rate,
        steps=count,
        clip=CLIP if isinstance(clip, str) and clip == AUTO else clip,
        gradient_noise=found.gradient_noise,
        histogram_noise=found.histogram_noise,
        histogram=histogram,
        **fields,
    )


def _dual_for(facts: PublicFacts, rate: float, steps: int) -> DualControl:
    if facts.constraints is None:
        return DualControl()
    interval = affordable_interval(facts.constraints, facts.n_rows * rate, facts.n_features, steps)
    return DualControl(rate=0.5, interval=interval, normalise=True, noise_tolerance=0.05)
