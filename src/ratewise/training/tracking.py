"""Runs written to MLflow or TensorBoard: callbacks for training, and reports at its end.

Only released values are written: what a `StepRecord` holds, the privacy statement, and the numbers of a
report. A report is measured on rows without noise, so log it only where its numbers may be told.

::

    model = RateConstrainedClassifier(constraints, callback=TensorBoardCallback("runs/first"))

Neither library is needed to import this module; each is imported when its callback is made.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratewise import _validate
from ratewise.exceptions import InvalidType
from ratewise.training.loop import StepRecord

if TYPE_CHECKING:
    from ratewise.report import Report

__all__ = ["MLflowCallback", "TensorBoardCallback", "report_scalars", "scalars"]

MOST_CONSTRAINTS = 100


def scalars(record: StepRecord, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the numbers of a record by name; NaN and infinities, which trackers refuse, are left out.

    Parameters
    ----------
    record : StepRecord
    names : sequence of str, optional
        Names of the constraints, in order; without them only the largest value and multiplier are given.
    """
    found = {"gradient_norm": float(record.gradient_norm)}
    for kind, values in (("value", record.values), ("multiplier", record.multipliers)):
        if values is not None and len(values):
            found[f"largest_{kind}"] = float(values.max())
            found |= {f"{kind}/{name}": float(v) for name, v in zip(names or (), values, strict=False)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


class _Callback(ABC):
    """Writes the first record and every n-th."""

    def __init__(self, every: int, names: Sequence[str] | None) -> None:
        self._every = _validate.count(every=every)
        self._names = names

    def __call__(self, record: StepRecord) -> None:
        if record.step == 1 or record.step % self._every == 0:
            for name, value in scalars(record, self._names).items():
                self._write(name, value, record.step)

    @abstractmethod
    def _write(self, name: str, value: float, step: int) -> None: ...

    def log_report(self, report: Report) -> None:
        """Write the numbers of a report (see `report_scalars`)."""
        for name, value in report_scalars(report).items():
            self._write(name, value, 0)


class TensorBoardCallback(_Callback):
    """Writes released values to TensorBoard.

    Parameters
    ----------
    log : str or writer
        A folder, or anything with ``add_scalar(name, value, step)``, such as a ``SummaryWriter``.
    every : int
        Write every so many steps.
    names : sequence of str, optional
        Names of the constraints, to write each of them.
    """

    def __init__(self, log: Any, *, every: int = 10, names: Sequence[str] | None = None) -> None:
        super().__init__(every, names)
        if callable(getattr(log, "add_scalar", None)):
            self._writer = log
        elif isinstance(log, str) or hasattr(log, "__fspath__"):
            module = _load("torch.utils.tensorboard", "TensorBoard", "pip install torch tensorboard")
            self._writer = module.SummaryWriter(str(log))
        else:
            raise InvalidType(f"log must be a folder or a writer with add_scalar, got {type(log).__name__}")

    def _write(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is still waiting."""
        self._writer.close()


class MLflowCallback(_Callback):
    """Writes released values to the MLflow run that is active, or to the one named.

    Parameters
    ----------
    run_id : str, optional
        By default the active run.
    every, names
        As in `TensorBoardCallback`.
    client : optional
        Anything with MLflow's ``log_metric``; by default the module ``mlflow``.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        every: int = 10,
        names: Sequence[str] | None = None,
        client: Any = None,
    ) -> None:
        super().__init__(every, names)
        self._run = run_id
        self._client = _load("mlflow", "MLflow", "pip install mlflow") if client is None else client

    def _write(self, name: str, value: float, step: int) -> None:
        options = {} if self._run is None else {"run_id": self._run}
        self._client.log_metric(_plain(name), value, step=step, **options)


def report_scalars(report: Report) -> dict[str, float]:
    """Return the numbers of a report worth tracking: accuracy, worst gap, epsilon, states, rates reached."""
    content = report.content
    first = content.models[0]
    numbers = {
        "report/accuracy": first.accuracy.value,
        "report/worst_gap": first.worst,
        "report/epsilon": first.epsilon,
        **{f"report/{state.replace(' ', '_')}": float(count) for state, count in content.counts.items()},
        **{f"report/reached/{one.name}": one.reached for one in content.by_worst()[:MOST_CONSTRAINTS]},
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _plain(name: str) -> str:
    """Return a name that MLflow takes: letters, digits and a few signs, at most 250 of them."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)[:250]


def _load(module: str, what: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"logging to {what} needs it installed: {remedy}") from None
