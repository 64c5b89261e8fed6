"""A run that was stopped, whole in one file: weights, optimizer, multipliers, book, position.

The file is written beside its name, flushed to the disk and renamed, so whenever the process is killed there
is the old file or the new one. It starts with a checksum and is read without executing anything in it
(``torch.load(..., weights_only=True)``).

**Never below the truth.** A checkpoint is written after the ledger has booked the *next* stretch of steps and
before the first row of that stretch is read. A process that is killed within the stretch leaves a file whose
book counts all of it. The run that resumes goes on behind those steps, as if they had been taken: so the plan
is never exceeded, and at most one stretch of training is lost. No state of any random generator is stored:
a resumed run draws fresh entropy, and no noise is used twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ratewise.accounting import Ledger
from ratewise.accounting.book import PhaseBegun, PhaseSettled, StepsReserved
from ratewise.compiled import CompiledConstraints
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan

_MAGIC = b"ratewise checkpoint 1\n"
_PRIVACY = (
    "n_rows",
    "sampling_rate",
    "steps",
    "clip",
    "gradient_noise",
    "histogram",
    "histogram_noise",
    "private",
    "rates",
    "temperature",
    "noise",
)


def encode(state: Mapping[str, Any]) -> bytes:
    """Return a state of tensors, numbers, text and containers as bytes with a checksum."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    return _MAGIC + hashlib.sha256(content).digest() + content


def decode(data: bytes, source: str) -> dict[str, Any]:
    """Return the state in bytes of `encode`; nothing in them is executed."""
    start = len(_MAGIC) + 32
    if not data.startswith(_MAGIC):
        raise InvalidInput(f"{source} is no checkpoint of this version of ratewise")
    if hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:
        raise InvalidInput(f"{source} is damaged: its checksum is wrong; take an older copy")
    with sound(source), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's doubts about a damaged file; the error is enough
        state: dict[str, Any] = torch.load(io.BytesIO(data[start:]), weights_only=True, map_location="cpu")
    if not isinstance(state, dict):
        raise InvalidInput(f"{source} is no sound checkpoint; take an older copy")
    return state


@contextlib.contextmanager
def sound(source: str) -> Iterator[None]:
    """Whatever goes wrong with the parts of a checkpoint is one message; a checksum can be made anew."""
    try:
        yield
    except RatewiseError:
        raise
    except Exception as problem:
        raise InvalidInput(
            f"{source} is no sound checkpoint ({type(problem).__name__} in its parts), and nothing in it was "
            "run; take an older copy"
        ) from problem


def write_file(path: str, data: bytes) -> None:
    """Replace a file as a whole, or leave the old one."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(path: str) -> bytes | None:
    """Return the content of a checkpoint file, None if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def identity(
    plan: Plan,
    constraints: CompiledConstraints | None,
    neighbours: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Return what must not change when a run resumes: the privacy parameters, constraints and model."""
    found: dict[str, Any] = {name: getattr(plan, name) for name in _PRIVACY}
    found["neighbours"] = neighbours
    found["constraints"] = [] if constraints is None else list(constraints.names)
    found["bounds"] = [] if constraints is None else constraints.bounds.tolist()
    found["cells"] = [] if constraints is None else list(constraints.cell_names)
    found["parameters"] = {name: list(shape) for name, shape in shapes.items()}
    return found


def refuse_other_run(stored: Mapping[str, Any], ours: Mapping[str, Any], source: str) -> None:
    """Refuse to go on with another plan: its book would not say what ran."""
    for name, value in ours.items():
        if stored.get(name) != value:
            shown = "" if name == "parameters" else f": {stored.get(name)!r} there, {value!r} here"
            raise InvalidInput(
                f"{source} belongs to another run: {name} differs{shown}; resume with the privacy "
                "parameters, constraints and model that the run was started with"
            )


def progress(state: Mapping[str, Any], steps: int, source: str) -> tuple[str, int]:
    """Return the name of the run and its steps, checked."""
    run, done = state["run"], state["steps_done"]
    if not isinstance(run, str) or type(done) is not int or not 0 <= done <= steps:
        raise InvalidInput(
            f"{source} is no sound checkpoint: its run or its steps are not; take an older copy"
        )
    return run, done


def load_module(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Put stored parameters into a module; numbers that are not finite are refused."""
    for name, value in state.items():
        if torch.is_tensor(value) and value.is_floating_point() and not torch.isfinite(value).all():
            raise InvalidInput(f"the checkpoint's {name!r} is not finite; take an older copy")
    module.load_state_dict(state)


def booked_steps(ledger: Ledger, run: str) -> int:
    """Return how many steps the ledger counts for a run."""
    counted: dict[str, int] = {}
    for record in ledger.records:
        if isinstance(record, PhaseBegun) and record.purpose == purpose_of(run):
            counted[record.phase] = record.steps
        elif isinstance(record, StepsReserved) and record.phase in counted:
            counted[record.phase] += record.steps
        elif isinstance(record, PhaseSettled) and record.phase in counted:
            counted[record.phase] = record.steps
    return sum(counted.values())


def purpose_of(run: str) -> str:
    """Return the purpose under which the steps of a run are booked."""
    return f"train, run {run}"


def ledger_from(document: str, given: Ledger | None, source: str) -> Ledger:
    """Return the book to go on with: the file that the user keeps, or the one in the checkpoint."""
    stored = Ledger.from_json(document)
    if given is None or given.path is None:
        if given is not None and given.records:
            raise InvalidInput(
                f"ledger is kept in memory and has records that {source} does not know; leave ledger out to "
                "go on with the book in the checkpoint, or keep it in a file with Ledger.create(path)"
            )
        return stored
    if given.records[: len(stored.records)] != stored.records:
        raise InvalidInput(
            f"the ledger {given.path!r} is not the one that {source} was written with; open the right file"
        )
    return given


def multipliers_state(multipliers: Multipliers | None) -> dict[str, Any] | None:
    """Return the state of the dual side as tensors and numbers."""
    if multipliers is None:
        return None
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in multipliers.state().items()
    }


def restore_multipliers(multipliers: Multipliers, state: Mapping[str, Any]) -> None:
    """Go on from what `multipliers_state` returned."""
    multipliers.restore(
        {
            name: value.numpy().copy() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
        }
    )
