"""Time of one step: the library's loop with and without constraints and noise, and DP-FERMI's right form.

All take turns in one thread, a few steps at a time, and what counts is the processor time of that thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import step
from benchmarks.suite.methods.engine import iterates
from benchmarks.suite.methods.fermi import Ermi
from benchmarks.suite.problem import Part, Task, load
from ratewise import demographic_parity
from ratewise.domain import Domain
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams

ROUNDS = 30
STEPS = 100_000  # more than are run


def time_step(job: dict[str, Any]) -> dict[str, Any]:
    """Return the median seconds of a step of each variant, over rounds in turns."""
    batch, count = job["settings"]["batch"], job["settings"]["steps"]
    table = load(job["dataset"])
    data: Any = step.Data.__new__(step.Data)
    data.features, data.labels = table.X, np.asarray(table.y, dtype=np.int64)
    data.table = {name: table.sensitive[name].to_numpy().astype(str) for name in table.group_values}
    data.domain = Domain(classes=table.classes, columns=table.group_values)
    parity = demographic_parity("sex", max_gap=0.05)
    runs: dict[str, Iterator[Any]] = {
        "sgd": step.training(data, batch, private=False),
        "dp_sgd": step.training(data, batch),
        "sgda": step.training(data, batch, parity, private=False),
        "ours": step.training(data, batch, parity),
        "fermi": _fermi(
            Part(Task(job["dataset"], "demographic_parity"), table, np.arange(len(table))), batch
        ),
    }
    with threadpool_limits(limits=1):
        for run in runs.values():
            step.advance(run, 20)
        rounds = [{name: step.advance(run, count) for name, run in runs.items()} for _ in range(ROUNDS)]
    return {"step_seconds": {name: float(np.median([r[name] for r in rounds])) for name in runs}}


def _fermi(part: Part, batch: int) -> Iterator[Any]:
    plan = Plan(
        n_rows=len(part),
        sampling_rate=batch / len(part),
        steps=STEPS,
        clip=1.0,
        gradient_noise=2.0,
        histogram_noise=10.0,
        rates="soft",
    )
    Z = np.hstack([part.X, np.ones((len(part), 1), dtype=part.X.dtype)])
    return iterates(
        Z, part.y, part.groups, part.n_groups, Ermi(1.0, part.n_groups), plan, RandomStreams.from_seed(0)
    )
