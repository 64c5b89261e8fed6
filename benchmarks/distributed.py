"""What a step costs in one, two and three processes, and what that says of a thousand.

    python -m benchmarks distributed [--network resnet16|small|mlp] [--side 32] [--rows 32] [--steps 6]
                                     [--repeats 3] [--processes 1 2 3] [--json FILE]
    python -m benchmarks distributed --fit FILE [--batch 4096]

The first form forks processes that train together by gloo on loopback, one thread each, `--rows` rows per
process and step, and takes the time of the parts of a step: reading and clipped sums, release (noise and
exchange), update. Besides it times sums over processes of vectors of several lengths. Runs of different
numbers of processes are interleaved, and the smallest time of each part counts, for others use the machine;
the model takes compute, noise and update by processor time, and the exchange by the clock.

The second form fits the cost model of docs/scaling.md to such a file and prints its predictions: with the
measured exchange, and with an assumed network (`--gigabits`, `--latency`, which nobody measured here).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ratewise import Domain, demographic_parity
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table
from ratewise.torch import MLP, SmallCNN, TensorRows, Trainer, join, resnet16
from ratewise.training.plan import TRAINING, Plan

LENGTHS = (1_000, 100_000, 1_000_000, 6_500_000)
N_ROWS = 600


class Stopwatch:
    """Adds up the time of the parts of each step."""

    def __init__(self, trainer: Trainer) -> None:
        self.steps: list[dict[str, float]] = []
        self._wrap(trainer.engine, "sums", "compute")
        self._wrap(trainer.loop.gradient_mechanism, "release", "release")
        self._wrap(trainer.loop.optimizer, "step", "update")

    def _wrap(self, owner: Any, method: str, part: str) -> None:
        call = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            start, busy = time.perf_counter(), time.process_time()
            found = call(*arguments)
            if part == "compute":
                self.steps.append({})
            self.steps[-1][part] = time.perf_counter() - start
            self.steps[-1][f"{part} cpu"] = time.process_time() - busy
            return found

        setattr(owner, method, timed)


def network(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if options.network == "mlp":
        return MLP(100, 2), torch.rand(N_ROWS, 100)
    pictures = torch.rand(N_ROWS, 3, options.side, options.side)
    return (resnet16(2) if options.network == "resnet16" else SmallCNN(2)), pictures


def member(options: argparse.Namespace, rank: int, world: int, folder: str) -> None:
    """One process: train a few steps, and time bare sums over processes."""
    torch.set_num_threads(1)
    if world > 1:
        place = f"file://{folder}/store"
        wait = datetime.timedelta(seconds=300)
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=wait)
    module, x = network(options)
    labels, groups = np.arange(N_ROWS) % 2, np.arange(N_ROWS) // 2 % 2
    compiled = compile_constraints(demographic_parity("g", max_gap=0.05), Domain((0, 1), {"g": (0, 1)}))
    event = TrainingEvent(0.1, options.steps, 1.0, 1.0)
    plan = Plan(N_ROWS, 0.1, options.steps, {TRAINING: event}, PrivacyUnit(), "zero_out", math.inf, 1e-6)
    rows = TensorRows(x, labels, code_table(compiled, labels, {"g": groups})[1])
    processes = join()
    trainer = Trainer(module, rows, plan, compiled, processes=processes, physical_batch=32)
    trainer.start()
    # the same number of rows in each step and process: Poisson noise in the sizes would blur the times
    trainer._sampler = lambda _: np.arange(options.rows)
    watch = Stopwatch(trainer)
    whole, start = [], time.perf_counter()
    for _ in trainer.steps():
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
    for step, seconds in zip(watch.steps, whole, strict=True):
        step["step"] = seconds
    sums = {}
    for length in LENGTHS if world > 1 else ():
        vector = torch.zeros(length)
        times = []
        for _ in range(15):
            processes.collect([torch.zeros(1)])  # with the next line, a barrier
            processes.share([torch.zeros(1)])
            start = time.perf_counter()
            dist.all_reduce(vector)
            times.append(time.perf_counter() - start)
        sums[length] = min(times)
    if rank == 0:
        parts = {name: min(step[name] for step in watch.steps[1:]) for name in watch.steps[0]}
        found = {
            "processes": world,
            "network": options.network,
            "side": options.side,
            "rows": options.rows,
            "parameters": trainer.engine.n_parameters,
            "parts": parts,
            "sums": sums,
        }
        Path(folder, "found.json").write_text(json.dumps(found))


def measure(options: argparse.Namespace, world: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if not child:
                try:
                    member(options, rank, world, folder)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise SystemExit(f"a process ended with {codes}")
        return dict(json.loads(Path(folder, "found.json").read_text()))


def best(runs: list[dict[str, Any]], world: int) -> dict[str, Any]:
    """Return the smallest time of each part over the repeats."""
    chosen = [run for run in runs if run["processes"] == world]
    parts = {name: min(run["parts"][name] for run in chosen) for name in chosen[0]["parts"]}
    sums = {int(length): min(run["sums"][length] for run in chosen) for length in chosen[0]["sums"]}
    return {**chosen[0], "parts": parts, "sums": sums}


def model_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Fit the cost model: time per row, per parameter, per message and per byte."""
    worlds = sorted({run["processes"] for run in runs})
    found = {world: best(runs, world) for world in worlds}
    alone = found[1]
    parameters = alone["parameters"]
    design, times = [], []
    for world in worlds[1:]:
        for length, seconds in found[world]["sums"].items():
            row = np.array([2 * (world - 1), 2 * (world - 1) / world * 4 * length])
            design.append(row / seconds)  # relative errors: long sums must not drown the short ones
            times.append(1.0)
    (latency, per_byte), *_ = np.linalg.lstsq(np.array(design), np.array(times), rcond=None)
    return {
        "row": alone["parts"]["compute cpu"] / alone["rows"],
        "parameter": (alone["parts"]["release cpu"] + alone["parts"]["update cpu"]) / parameters,
        "latency": max(0.0, float(latency)),
        "byte": float(per_byte),
        "parameters": parameters,
    }


def largest_share(batch: float, world: int) -> float:
    """Return about how many rows the process with the most of them has: Poisson sizes differ."""
    mean = batch / world
    if world == 1:
        return mean
    far = math.sqrt(2 * math.log(world))
    return mean + far * math.sqrt(mean) + far * far / 6


def predicted(model: dict[str, float], world: int, batch: float) -> dict[str, float]:
    """Return the parts of a step in seconds."""
    payload = 4 * model["parameters"] + 8 * 16
    exchange = 0.0
    if world > 1:
        exchange = 2 * (world - 1) * model["latency"] + 2 * (world - 1) / world * payload * model["byte"]
    return {
        "compute": model["row"] * largest_share(batch, world),
        "noise and update": model["parameter"] * model["parameters"],
        "exchange": exchange,
        "bytes": 2 * (world - 1) / world * payload,
    }


def fit(options: argparse.Namespace) -> None:
    runs = [json.loads(line) for line in options.fit.read_text().splitlines()]
    measured = model_of(runs)
    assumed = {**measured, "latency": options.latency, "byte": 8e-9 / options.gigabits}
    print(
        f"row {1e3 * measured['row']:.3f} ms, parameter {1e9 * measured['parameter']:.2f} ns, message "
        f"{1e6 * measured['latency']:.0f} us, {1e-9 / measured['byte']:.2f} GB/s, "
        f"{measured['parameters']:,.0f} parameters"
    )
    print("\nprocesses  measured step, ms  model, ms  rows per second (against one)")
    base = None
    for world in sorted({run["processes"] for run in runs}):
        found = best(runs, world)
        parts = predicted(measured, world, found["rows"])  # each process has all of these rows
        parts["compute"] = measured["row"] * found["rows"]
        total = sum(value for name, value in parts.items() if name != "bytes")
        speed = world * found["rows"] / found["parts"]["step"]
        base = base or speed
        step = 1e3 * found["parts"]["step"]
        print(f"{world:9d}  {step:17.1f}  {1e3 * total:9.1f}  {speed:.1f} ({speed / base:.2f})")
    for name, model in (("exchange as measured", measured), ("assumed network", assumed)):
        print(f"\n{name}, batch of {options.batch:,} rows")
        print("processes  compute, ms  noise+update, ms  exchange, ms  MB sent  step, ms  speed-up  efficiency")
        one = None
        for world in (1, 2, 3, 10, 30, 100, 300, 1000):
            parts = predicted(model, world, options.batch)
            total = parts["compute"] + parts["noise and update"] + parts["exchange"]
            one = one or total
            print(
                f"{world:9d}  {1e3 * parts['compute']:11.1f}  {1e3 * parts['noise and update']:16.1f}  "
                f"{1e3 * parts['exchange']:12.1f}  {parts['bytes'] / 1e6:7.1f}  {1e3 * total:8.1f}  "
                f"{one / total:8.1f}  {one / total / world:10.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("resnet16", "small", "mlp"), default="resnet16")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--fit", type=Path, default=None)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--gigabits", type=float, default=10.0)
    parser.add_argument("--latency", type=float, default=50e-6)
    options = parser.parse_args()
    if options.fit is not None:
        fit(options)
        return
    runs = []
    for _ in range(options.repeats):
        for world in options.processes:
            runs.append(measure(options, world))
            print(json.dumps(runs[-1]), flush=True)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(run) + "\n" for run in runs))


if __name__ == "__main__":
    main()
