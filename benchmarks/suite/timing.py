"""Time of one step: the library's loop with and without constraints and noise, and DP-FERMI's right form.

DP-FERMI's step runs on the same engine, with as many steps between its updates: what is compared is the work
that its penalty asks for, not the speed of anybody's code.
All take turns in one thread, a few steps at a time, and what counts is the processor time of that thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import step
from benchmarks.suite.methods.fermi import Ermi
from benchmarks.suite.problem import Part, Task, load
from ratewise import demographic_parity
from ratewise.domain import Domain
from ratewise.linear import LinearEngine
from ratewise.multipliers import affordable_interval
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.training import History, Training

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
        "fermi": fermi_steps(data, groups_of(table), len(table.group_values["sex"]), batch),
    }
    with threadpool_limits(limits=1):
        for run in runs.values():
            step.advance(run, 20)
        rounds = [{name: step.advance(run, count) for name, run in runs.items()} for _ in range(ROUNDS)]
    return {"step_seconds": {name: float(np.median([r[name] for r in rounds])) for name in runs}}


class Chi2Dual:
    """DP-FERMI's W in the place of the library's multipliers: its penalty is a table of costs by group."""

    def __init__(self, penalty: Ermi) -> None:
        self._penalty = penalty
        self.loss_weight = penalty.loss_weight
        self.shape = (len(penalty.slopes), 2)
        self.table = np.zeros(self.shape)
        self.values = self.multipliers = penalty.slopes

    def __len__(self) -> int:
        return len(self._penalty.slopes)

    def update(self, released: np.ndarray) -> None:
        """Take in the released histograms (m, Q, 2) of the last steps: one ascent step of their mean."""
        self._penalty.update(released.mean(axis=0))
        self.table = np.column_stack([np.zeros(len(self)), self._penalty.slopes])
        self.values = self.multipliers = self._penalty.slopes


def fermi_steps(data: Any, groups: np.ndarray, n_groups: int, batch: int) -> Iterator[Any]:
    """Return an endless-enough training with DP-FERMI's penalty as an iterator over steps."""
    n_rows, n_features = data.features.shape
    parity = compile_constraints([demographic_parity("sex", max_gap=0.05)], data.domain)
    plan = Plan(
        n_rows=n_rows,
        sampling_rate=batch / n_rows,
        steps=STEPS,
        clip=1.0,
        gradient_noise=2.0,
        histogram_noise=10.0,
        noise="discrete",
        averaging="polynomial",
        rates="soft",
        dual=DualControl(interval=affordable_interval(parity, batch, n_features, STEPS)),
    )
    engine = LinearEngine(plan, data.features, data.labels, 2, cells=groups, n_cells=n_groups)
    dual: Any = Chi2Dual(Ermi(1.0, n_groups))
    run = Training(plan, engine, dual)
    history = History.of(run)
    for record in run.run(RandomStreams.from_seed(0)):
        history.add(record)
        yield None


def groups_of(table: Any) -> np.ndarray:
    """Return the group numbers of the rows by sex."""
    return Part(Task("adult", "demographic_parity"), table, np.arange(len(table))).groups
