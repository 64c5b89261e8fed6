"""Time of one training step, against a bare floor and against Opacus.

    python benchmarks/step.py [--rounds 150] [--steps 80] [--batch 512] [--dtype float64] [--profile]

All variants run in one process on the same rows, in turns: every round runs each variant for a few steps
(a few milliseconds), and ratios are taken within rounds, so that a busy machine slows all of them alike.
Times are those of the one thread in use, so that waiting for a core does not count. Our steps are whole:
Poisson sampling, both releases, multipliers, descent, iterate averaging, history.

    floor      gather the rows, two matrix products, the noise draws of both releases; nothing else
    dp-sgd     our loop without constraints
    raco       our loop with demographic parity on sex: 2 constraints
    raco-many  our loop with pairwise parity over workclass x education: over 10,000 constraints
    sgd, sgda  the same two without noise
    opacus     Opacus DP-SGD on batches that are already drawn (its Poisson loader would add to it)

Features are float64, as data frames give them; `--dtype float32` stores them in single precision. Our step
adds up in double precision all the same (what it needs to keep its promise), the floor in single.

Adult is read from $RATEWISE_DATA (default ../shared/data beside the repository); without it a table of the
same shape is made up.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from ratewise.domain import Domain
from ratewise.families import demographic_parity
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers, affordable_interval
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.training import History, Training

STEPS = 200_000  # more than are run
NUMERIC = {"age": 90, "education-num": 16, "capital-gain": 1e5, "capital-loss": 5e3, "hours-per-week": 99}
COLUMNS = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"]
COLUMNS += ["relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"]
COLUMNS += ["label"]


def adult() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]] | None:
    """Return one-hot features, labels and the text columns; each person once."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RATEWISE_DATA", default)) / "adult"
    if not folder.exists():
        return None
    rows = []
    for name in ("adult.data", "adult.test"):
        with (folder / name).open(newline="") as file:
            found = csv.reader(file, skipinitialspace=True)
            rows += [row for row in found if len(row) == len(COLUMNS) and "?" not in row]
    table = {name: np.array(values) for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)}
    labels = (np.char.rstrip(table.pop("label"), ".") == ">50K").astype(np.int64)
    del table["fnlwgt"]
    parts = [table.pop(name).astype(np.float64)[:, None] / top for name, top in NUMERIC.items()]
    parts += [values[:, None] == np.unique(values) for values in table.values()]
    return np.hstack(parts).astype(np.float64), labels, table


def made_up() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return a table of Adult's shape."""
    rng = np.random.default_rng(0)
    levels = {"workclass": 7, "education": 16, "sex": 2, "other": 74}
    table = {name: rng.integers(0, count, 45_222).astype(str) for name, count in levels.items()}
    parts = [rng.random((45_222, 5))] + [v[:, None] == np.unique(v) for v in table.values()]
    features = np.hstack(parts).astype(np.float64)
    return features, (features @ rng.standard_normal(features.shape[1]) > 0).astype(np.int64), table


class Data:
    """The rows and their public facts."""

    def __init__(self, dtype: str) -> None:
        found = adult()
        self.source = "adult" if found else "made up"
        features, self.labels, self.table = found or made_up()
        self.features = features.astype(dtype)
        self.domain = Domain(
            classes=(0, 1), columns={k: np.unique(v).tolist() for k, v in self.table.items()}
        )


def training(data: Data, batch: int, family: Any = None, private: bool = True) -> Iterator[object]:
    """Return an endless-enough training as an iterator over steps."""
    n_rows, n_features = data.features.shape
    compiled = None if family is None else compile_constraints([family], data.domain)
    interval = 1 if compiled is None else affordable_interval(compiled, batch, n_features, STEPS)
    plan = Plan(
        n_rows=n_rows,
        sampling_rate=batch / n_rows,
        steps=STEPS,
        clip=1.0,
        gradient_noise=2.0 if private else None,
        histogram_noise=10.0 if private and compiled is not None else None,
        private=private,
        noise="discrete",  # on a grid, as the classifier has it
        averaging="polynomial",
        dual=DualControl(interval=interval),
    )
    counted: dict[str, Any] = {}
    if compiled is not None:
        counted = {"cells": compiled.cells(data.labels, data.table), "n_cells": compiled.n_cells}
    engine = LinearEngine(plan, data.features, data.labels, 2, **counted)
    run = Training(plan, engine, None if compiled is None else Multipliers(compiled, plan))
    history = History.of(run)
    for record in run.run(RandomStreams.from_seed(0)):
        history.add(record)
        yield compiled if record.step == 1 else None


def drawn_batches(data: Data, batch: int, count: int = 500) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    n_rows = len(data.features)
    return [np.flatnonzero(rng.random(n_rows) < batch / n_rows) for _ in range(count)]


def floor(data: Data, batch: int) -> Iterator[None]:
    """Gather, two products, the noise draws."""
    features, batches = data.features, drawn_batches(data, batch)
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(features.shape[1]).astype(features.dtype)
    buffer = np.empty((2 * batch + 100, features.shape[1]), dtype=features.dtype)
    while True:
        for rows in batches:
            block = buffer[: len(rows)]
            features.take(rows, 0, block, "clip")
            block.T.dot(block.dot(weights))
            rng.standard_normal(features.shape[1] + 1)
            rng.standard_normal((2, 2))
            yield None


def opacus(data: Data, batch: int) -> Iterator[None]:
    """Opacus' DP-SGD step (hooks) on a logistic regression, rows gathered by torch."""
    import torch
    from opacus import PrivacyEngine

    torch.set_num_threads(1)
    features, labels = torch.from_numpy(data.features).float(), torch.from_numpy(data.labels).float()
    model = torch.nn.Linear(features.shape[1], 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(features, labels), batch_size=batch, shuffle=True
    )
    private: Any
    private, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    loss = torch.nn.BCEWithLogitsLoss()
    batches = [torch.from_numpy(rows) for rows in drawn_batches(data, batch)]
    while True:
        for rows in batches:
            optimizer.zero_grad(set_to_none=True)
            loss(private(features[rows]).squeeze(1), labels[rows]).backward()
            optimizer.step()
            yield None


def variants(data: Data, batch: int) -> dict[str, Iterator[Any]]:
    parity = demographic_parity("sex", max_gap=0.05)
    many = demographic_parity("workclass", "education", max_gap=0.05, versus="pairwise")
    found = {
        "floor": floor(data, batch),
        "dp-sgd": training(data, batch),
        "raco": training(data, batch, parity),
        "raco-many": training(data, batch, many),
        "sgd": training(data, batch, private=False),
        "sgda": training(data, batch, parity, private=False),
    }
    try:
        import opacus as _  # noqa: F401
    except ImportError:
        return found
    return {**found, "opacus": opacus(data, batch)}


def advance(steps: Iterator[Any], count: int) -> float:
    """Return the processor seconds of one of `count` steps (all variants use one thread)."""
    begin = time.thread_time()
    for _ in range(count):
        next(steps)
    return (time.thread_time() - begin) / count


def ratio(times: dict[str, np.ndarray], above: str, below: str) -> str:
    per_round = times[above] / times[below]
    low, middle, high = np.percentile(per_round, [25, 50, 75])
    return f"{above:>9} / {below:<7} {middle:7.2f}   (quartiles {low:.2f} to {high:.2f})"


def profile(data: Data, batch: int, steps: int) -> None:
    import cProfile
    import pstats

    for name in ("dp-sgd", "raco"):
        run = variants(data, batch)[name]
        advance(run, 100)
        meter = cProfile.Profile()
        meter.runcall(advance, run, steps * 500)
        print(f"\n== {name}: cProfile of {steps * 500} steps (the profiler itself adds to short calls)")
        pstats.Stats(meter).sort_stats("tottime").print_stats(22)


def main(report: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1):
        measure(options, Data(options.dtype), report)


def measure(options: argparse.Namespace, data: Data, report: Callable[[str], None]) -> None:
    if options.profile:
        profile(data, options.batch, options.steps)
        return
    runs = variants(data, options.batch)
    shape = " x ".join(map(str, data.features.shape))
    report(f"{data.source}: {shape}, {options.dtype}, batch {options.batch}")
    for name in ("raco", "raco-many"):
        compiled = next(runs[name])
        interval = affordable_interval(compiled, options.batch, data.features.shape[1], STEPS)
        shape = f"{len(compiled)} constraints, {compiled.n_cells} cells"
        report(f"{name}: {shape}, multipliers move every {interval} steps")
    for run in runs.values():
        advance(run, 50)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            count = options.steps if name != "opacus" else max(1, options.steps // 20)
            seconds[name].append(advance(run, count))
    times = {name: np.array(values) for name, values in seconds.items()}
    for name, values in times.items():
        report(f"{name:>9}  {np.median(values) * 1e6:9.1f} us   best {values.min() * 1e6:9.1f} us")
    report(ratio(times, "raco", "dp-sgd") + "   goal: at most 1.2")
    report(ratio(times, "raco", "floor") + "   goal: at most 3")
    report(ratio(times, "raco-many", "raco") + "   goal: at most 1.3")
    if "opacus" in times:
        report(ratio(times, "opacus", "raco") + "   goal: at least 10")
    if options.json:
        options.json.write_text(json.dumps({name: values.tolist() for name, values in times.items()}))


if __name__ == "__main__":
    main()
