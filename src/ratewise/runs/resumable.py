"""A fitting that writes down released state as it goes, and goes on from there.

A checkpoint holds what was released and what was computed from that: never a row, never random state. A run
that goes on draws fresh noise. Steps between the last checkpoint and a crash were released and stay booked,
so they are not run again: the run ends that many steps earlier instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ratewise.accounting import Event, Ledger
from ratewise.accounting.book import PhaseBegun, PhaseSettled, StepsReserved
from ratewise.exceptions import BudgetExceeded, InvalidInput
from ratewise.fitting import Fitting
from ratewise.model_files import SCALING, read_arrays, scaling_arrays, scaling_of, write_arrays
from ratewise.scaling import Scaling
from ratewise.schema import Schema
from ratewise.training import History, StepRecord
from ratewise.whole_files import Path

KIND = "checkpoint"


def booked_steps(ledger: Ledger, purpose: str) -> int:
    """Return how many training steps the book counts for a purpose: reserved ones, if nobody settled them."""
    counted: dict[str, int] = {}
    for record in ledger.records:
        if isinstance(record, PhaseBegun) and record.purpose == purpose:
            counted[record.phase] = record.steps
        elif isinstance(record, StepsReserved) and record.phase in counted:
            counted[record.phase] += record.steps
        elif isinstance(record, PhaseSettled) and record.phase in counted:
            counted[record.phase] = record.steps
    return sum(counted.values())


class ResumableFitting(Fitting):
    """A `Fitting` that can start from a checkpoint and never runs more steps than were planned and booked.

    Parameters
    ----------
    booked_as : callable
        What the ledger calls a release of this run; it tells them from those of other runs in one book.
    """

    booked_as: Callable[[str], str] = staticmethod(str)
    _saved: Mapping[str, Any] | None = None
    _on_start: Callable[[], object] | None = None

    @property
    def purpose(self) -> str:
        """What the ledger calls this run's steps."""
        return self.booked_as("train")

    def _book(self, event: Event, purpose: str) -> None:
        super()._book(event, self.booked_as(purpose))

    def start_from(self, saved: Mapping[str, Any] | None) -> None:
        """Go on from what `read_checkpoint` returned, rather than from nothing."""
        self._saved = saved

    def checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return released state as plain fields and arrays."""
        scaling = self.model.scaling
        fields: dict[str, Any] = {"origin": None if scaling is None else scaling.origin}
        arrays: dict[str, Any] = {}
        if scaling is not None:
            arrays = {f"scaling.{name}": value for name, value in scaling_arrays(scaling).items()}
        state = self.training.state()
        dual = state.pop("multipliers")
        fields["multipliers"] = dual is not None
        named = {**state, **{f"dual.{name}": value for name, value in (dual or {}).items()}}
        for name, value in named.items():
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                fields[name] = value
        arrays.update({f"history.{name}": value for name, value in self.history.arrays().items()})
        return fields, arrays

    def _prepared(self) -> Scaling | None:
        if self._saved is None:
            return super()._prepared()
        arrays = self._saved["arrays"]
        given = {name: arrays[f"scaling.{name}"] for name in SCALING if f"scaling.{name}" in arrays}
        return scaling_of(self._saved["fields"]["origin"], given)

    def _build(self, scaling: Scaling | None) -> None:
        super()._build(scaling)
        if self._saved is not None:
            state = _state(self._saved)
            _refuse_other_kinds(state, self.training.state())
            self.training.restore(state)
            self.history = EarlierHistory(self.training, self._saved["arrays"])
        if self._on_start is not None:
            self._on_start()

    def run(
        self, on_step: Callable[[StepRecord], object], on_start: Callable[[], object] | None = None
    ) -> None:
        """Train; `on_start` is called when the features are prepared, before the first step."""
        self._on_start = on_start
        super().run(on_step)

    def _train(self, on_step: Callable[[StepRecord], object]) -> None:
        event, left = self.plan.step_event, self.plan.steps - self.training.steps_done
        if event is None:
            self._steps(on_step, None)
            return
        left = min(left, self.plan.steps - booked_steps(self.ledger, self.purpose))
        if left > 0:
            left = self.ledger.remaining_steps(event, at_most=left)
        if left <= 0:
            if self.training.steps_done == 0:
                raise BudgetExceeded(
                    "nothing is left of this run's budget: what was released before it was stopped is spent; "
                    "train anew with a budget of its own"
                )
            return
        with self.ledger.phase(
            event, planned_steps=left, purpose=self.purpose, data=self._data_name
        ) as phase:
            for record in itertools.islice(self.training.run(self._streams, phase.step), left):
                self.history.add(record)
                on_step(record)


class EarlierHistory(History):
    """A history that begins with the stored values of the run's first part."""

    def __init__(self, training: Any, arrays: Mapping[str, Any]) -> None:
        dual = training.multipliers
        shape = None if dual is None else dual.shape
        super().__init__(training.plan.steps, shape, 0 if dual is None else len(dual))
        self._earlier = {
            name.removeprefix("history."): array
            for name, array in arrays.items()
            if name.startswith("history.")
        }

    def arrays(self) -> dict[str, Any]:
        """Return the stored values of both parts, one row per kept step."""
        later = super().arrays()
        if self._first is None:
            return dict(self._earlier)
        return {name: np.concatenate([self._earlier[name], value]) for name, value in later.items()}


def _state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Training.restore` takes, from the fields and arrays of a checkpoint."""
    named = {**saved["fields"], **saved["arrays"]}
    state = {name: named[name] for name in ("steps_done", "theta", "velocity", "average", "averaged")}
    dual = {name.removeprefix("dual."): value for name, value in named.items() if name.startswith("dual.")}
    return {**state, "multipliers": dual if saved["fields"]["multipliers"] else None}


def _refuse_other_kinds(saved: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Refuse parts of a checkpoint of another kind than a fresh run has: its checksum may be made anew."""
    for name, value in fresh.items():
        found = saved.get(name)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            _refuse_other_kinds(found, value)
        elif value is not None and _kind(found) != _kind(value):
            raise InvalidInput(f"the checkpoint is not sound: {name} is of another kind; train anew")


def _kind(value: Any) -> str:
    if isinstance(value, bool | int | float | np.number):
        return "number"
    return f"array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def write_checkpoint(path: Path, fitting: ResumableFitting, schema: Schema, run: str) -> None:
    """Write released state of the run with this id to a file, in one step."""
    fields, arrays = fitting.checkpoint()
    write_arrays(path, KIND, {**fields, "run": run, "schema": schema.to_dict()}, arrays)


def read_checkpoint(path: Path, run: str | None = None) -> dict[str, Any]:
    """Return fields, arrays and the schema (with the bounds that were found) of a checkpoint.

    `run` is the id of the run that it must belong to; None takes any.
    """
    fields, arrays = read_arrays(path, KIND)
    if not {"schema", "run", "steps_done"} <= fields.keys() or "theta" not in arrays:
        raise InvalidInput(f"{str(path)!r} is no sound checkpoint: parts are missing")
    if run is not None and fields["run"] != run:
        raise InvalidInput(
            f"{str(path)!r} is the checkpoint of another run; put this run's own back, or train anew"
        )
    return {"fields": fields, "arrays": arrays, "schema": Schema.from_dict(fields.pop("schema"))}
