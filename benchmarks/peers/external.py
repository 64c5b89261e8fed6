# ruff: noqa: ARG001 - one signature for all methods
"""Systems in environments of their own, reached through processes (see `processes/serve.py`).

Each script in `processes` has a file of pinned requirements beside it. Environments and synthetic tables are kept in the
folder $RATEWISE_PEERS (by default ``~/.cache/ratewise-peers``); ``python -m benchmarks environments`` makes them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import venv
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.peers import others
from benchmarks.peers.base import GaveUp, Model, OutOfTime, hardened
from benchmarks.problem import Part
from ratewise import postprocess
from ratewise.datasets.tables import table as checked_table

PROCESSES = Path(__file__).parent / "processes"
ENVIRONMENTS = ("ebm", "diffprivlib_models", "synthesis")
MINUTES = 20.0  # processor time that a synthesis may use
# groups that a feature determines, so that a synthetic table need not hold them twice
_GROUP_FEATURES = {"acs_employment": "SEX", "heart": "Sex"}


class Missing(Exception):  # noqa: N818 - reads as what happened
    """A system cannot be installed here: its row says so."""


def cache() -> Path:
    """Return the folder of environments and synthetic tables."""
    return Path(os.environ.get("RATEWISE_PEERS", Path.home() / ".cache" / "ratewise-peers"))


@functools.cache
def python_of(name: str) -> Path:
    """Return the interpreter of an environment, which is made if it is not there or has other requirements."""
    folder, requirements = cache() / name, PROCESSES / f"{name}.txt"
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    command = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
    try:
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        reason = str(getattr(problem, "stderr", None) or problem).strip().splitlines()[-1]
        raise Missing(f"{name} cannot be installed: {reason}") from None
    stamp.write_text(requirements.read_text())
    return python


class Process:
    """A running script, which keeps the model of the last fit; its tables live in a temporary folder."""

    def __init__(self, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [python_of(name), PROCESSES / f"{name}.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "RATEWISE_VERBOSE" not in os.environ else None,
            text=True,
        )
        self._end = weakref.finalize(self, _stop, self._process)

    def fit(self, part: Part, **request: Any) -> dict[str, Any]:
        """Send training rows; return what the script says."""
        schema = part.table.schema
        facts = {
            "numbers": {name: list(pair) for name, pair in schema.feature_bounds.items()},
            "categories": {name: list(values) for name, values in schema.categories.items()},
            "classes": len(part.table.classes),
        }
        return self._ask({"do": "fit", **facts, **request}, part)

    def predict(self, part: Part) -> np.ndarray:
        """Return the array that the script makes of these rows."""
        out = Path(self._folder.name) / "out.npy"
        self._ask({"do": "predict", "out": str(out)}, part)
        found: np.ndarray = np.load(out)
        return found

    def _ask(self, request: dict[str, Any], part: Part) -> dict[str, Any]:
        path = Path(self._folder.name) / "rows.parquet"
        part.frame.assign(y=part.y, group=part.groups).to_parquet(path)
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(json.dumps({**request, "rows": str(path)}) + "\n")
        pipe_in.flush()
        line = pipe_out.readline()
        if not line:
            running.cache_clear()
            code = self._process.wait()
            if code == -signal.SIGXCPU:
                raise OutOfTime(request["minutes"])
            raise RuntimeError(f"the process ended with {code}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply


@functools.cache
def running(name: str) -> Process:
    """Return the process of a script, which is started once; it holds the model of the last fit."""
    return Process(name)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _fitted(
    name: str, part: Part, epsilon: float | None, delta: float, seed: int, settings: Any
) -> tuple[Process, Model]:
    process = running(name)
    found = process.fit(part, epsilon=epsilon, delta=delta, seed=seed, settings=settings)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = process.predict(other)
        return hardened(soft), soft

    spent = math.inf if found["epsilon"] is None else float(found["epsilon"])
    return process, Model(predict, spent, delta, details={"seconds": found["seconds"]})


def ebm(part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any) -> Model:
    """Fit an explainable boosting machine, DP-EBM with a budget; it has no constraints."""
    return _fitted("ebm", part, epsilon, delta, seed, settings)[1]


def diffprivlib(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit a model of diffprivlib; it has no constraints, and its guarantee has no delta."""
    return _fitted("diffprivlib_models", part, epsilon, delta, seed, settings)[1]


def ebm_then_rule(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    share: float = 0.2,
    group_aware: bool = True,
    learning_rate: float = 0.2,
) -> Model:
    """Fit DP-EBM with 1 - `share` of epsilon and half of delta, then ``ratewise.postprocess`` with the rest on the same rows."""
    whole = float(epsilon or 0.0)
    settings = {"learning_rate": learning_rate}
    process, model = _fitted("ebm", part, (1.0 - share) * whole, delta / 2, seed, settings)
    scores = process.predict(part)
    rule = postprocess(
        scores[:, 1],
        part.labels,
        part.task.family(float(knob or 0.0)),
        sensitive_features=part.sensitive,
        epsilon=share * whole,
        delta=delta / 2,
        group_aware=group_aware,
        classes=part.table.classes,
        group_values=part.table.group_values,
        random_state=seed,
    )

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = process.predict(other)
        return rule.predict_proba(soft[:, 1], other.sensitive if group_aware else None), soft

    details = {"verdict": rule.certificate_.verdict, "seconds_before": model.details["seconds"]}
    return Model(predict, whole, delta, details=details)


def synthetic(part: Part, epsilon: float, delta: float, seed: int, **settings: Any) -> tuple[Part, float]:
    """Return a synthetic training part and the seconds it took; kept in the cache, as it takes minutes."""
    task, table = part.task, part.table
    feature = _GROUP_FEATURES.get(task.dataset)
    sources = [(PROCESSES / name).read_text() for name in ("synthesis.py", "graphical.py")]
    key = json.dumps([task.dataset, part.digest, epsilon, delta, seed, settings, task.column, sources])
    path = cache() / "tables" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    stopped = path.with_suffix(".stopped")
    if stopped.exists() and float(stopped.read_text()) >= MINUTES:
        raise OutOfTime(MINUTES)
    if not path.exists():
        process = running("synthesis")
        request = {"epsilon": epsilon, "delta": delta, "seed": seed, "settings": settings, "minutes": MINUTES}
        try:
            found = process.fit(part, **request, groups=0 if feature else part.n_groups)
        except OutOfTime:
            stopped.write_text(f"{MINUTES}")
            raise
        np.savez_compressed(path, rows=process.predict(part).astype(np.float32), seconds=found["seconds"])
    with np.load(path) as stored:
        rows, seconds = stored["rows"].astype(float), float(stored["seconds"])
    schema = table.schema
    names = [*schema.feature_bounds, *schema.categories]
    columns = {}
    for place, name in enumerate(names):
        values = schema.categories.get(name)
        columns[name] = rows[:, place] if values is None else np.asarray(values)[_codes(rows[:, place], len(values))]
    frame = pd.DataFrame(columns)
    labels = np.asarray(table.classes)[_codes(rows[:, len(names)], len(table.classes))]
    values = table.group_values[task.column]
    if feature is None:
        group = np.asarray(values)[_codes(rows[:, len(names) + 1], len(values))]
    else:
        known = dict(zip(table.frame[feature], table.sensitive[task.column], strict=True))
        near = np.rint(np.asarray(frame[feature], dtype=float)).astype(int)
        group = np.array([known[value] for value in near])
    sensitive = {
        name: group if name == task.column else np.full(len(rows), table.group_values[name][0])
        for name in table.group_values
    }
    frame[schema.label] = labels
    made = checked_table(frame, labels, sensitive, schema)
    return Part(task, made, np.arange(len(rows))), seconds


def _codes(values: np.ndarray, size: int) -> np.ndarray:
    """Return codes as whole numbers."""
    return np.clip(values.astype(int), 0, size - 1)


def synthetic_then(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Train on a synthetic table: XGBoost without a constraint, Fairlearn's reduction of XGBoost with one.

    `max_depth` is a setting of XGBoost, all others are settings of the synthesis.
    """
    trees = {name: settings.pop(name) for name in ("max_depth",) if name in settings}
    made, seconds = synthetic(part, float(epsilon or 0.0), delta, seed, **settings)
    if len(np.unique(made.y)) < 2:
        raise GaveUp("the synthetic table has one class only")
    if knob is None:
        model = others.boosted_trees(made, None, None, delta, seed, **trees)
    else:
        model = others.exponentiated_gradient(made, knob, None, delta, seed, base="xgboost", **trees)
    return Model(model.predict, float(epsilon or 0.0), delta, details={"seconds_before": seconds})


def main() -> None:
    """Make all environments and say which cannot be made."""
    for name in ENVIRONMENTS:
        try:
            print(name, python_of(name))
        except Missing as problem:
            print(problem, file=sys.stderr)


if __name__ == "__main__":
    main()
