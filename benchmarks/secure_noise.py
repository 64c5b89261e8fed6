"""What secure randomness and noise on a grid cost, beside a whole training step on Adult.

    python benchmarks/secure_noise.py [--rounds 100] [--steps 80] [--batch 512] [--output file.json]

Four variants of `raco` of benchmarks/step.py (parity on sex, batch 512) run in turns in one process;
ratios are taken within rounds, in time of the one thread in use:

    seeded      NumPy's generator, noise in floating point
    secure      bytes of the operating system's generator, noise in floating point
    grid        NumPy's generator, exact noise on a grid
    both        secure and grid: the default of a fit without a seed

A second table has the time of single draws for small and large arrays, and of sources of random bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ratewise.discrete_noise import rounded_laplace, rounded_normal
from ratewise.families import demographic_parity
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers, affordable_interval
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams, SecureGenerator
from ratewise.training import History, Training
from step import STEPS, Data


def training(data: Data, batch: int, noise: str, seed: int | None) -> Iterator[None]:
    """Return an endless-enough training as an iterator over steps."""
    n_rows, n_features = data.features.shape
    compiled = compile_constraints([demographic_parity("sex", max_gap=0.05)], data.domain)
    plan = Plan(
        n_rows=n_rows,
        sampling_rate=batch / n_rows,
        steps=STEPS,
        clip=1.0,
        gradient_noise=2.0,
        histogram_noise=10.0,
        averaging="polynomial",
        dual=DualControl(interval=affordable_interval(compiled, batch, n_features, STEPS)),
        noise=noise,
    )
    cells = compiled.cells(data.labels, data.table)
    engine = LinearEngine(plan, data.features, data.labels, 2, cells=cells, n_cells=compiled.n_cells)
    run = Training(plan, engine, Multipliers(compiled, plan))
    history = History.of(run)
    for record in run.run(RandomStreams.from_seed(seed)):
        history.add(record)
        yield None


def in_turns(variants: dict[str, Iterator[None]], rounds: int, steps: int) -> dict[str, np.ndarray]:
    """Return microseconds per step, rounds by variant."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 3):
        for name, run in variants.items():
            start = time.thread_time()
            for _ in range(steps):
                next(run)
            if turn >= 3:
                taken[name].append((time.thread_time() - start) / steps * 1e6)
    return {name: np.array(times) for name, times in taken.items()}


def best(call: Callable[[], Any], repeat: int) -> float:
    """Return the best microseconds of a call."""
    found = []
    for _ in range(7):
        start = time.thread_time()
        for _ in range(repeat):
            call()
        found.append((time.thread_time() - start) / repeat * 1e6)
    return min(found)


def draws() -> list[dict[str, Any]]:
    rows = []
    secure, seeded = SecureGenerator(), np.random.default_rng(0)
    scale = 1.5 * 2**20
    for count in (104, 10_000, 1_000_000):
        repeat = max(1, 200_000 // count)
        makers: dict[str, Callable[[], Any]] = {
            "normal, numpy": lambda n=count: seeded.standard_normal(n),
            "normal, secure": lambda n=count: secure.standard_normal(n),
            "rounded normal, numpy": lambda n=count: rounded_normal(scale, n, seeded),
            "rounded normal, secure": lambda n=count: rounded_normal(scale, n, secure),
            "rounded laplace, secure": lambda n=count: rounded_laplace(scale, n, secure),
        }
        rows += [
            {"draw": name, "count": count, "ns_each": best(make, repeat) / count * 1e3}
            for name, make in makers.items()
        ]
    for name, source in (("os.urandom", os.urandom), ("ssl.RAND_bytes", ssl.RAND_bytes)):
        megabyte = best(lambda call=source: call(1 << 20), 5)
        rows.append({"draw": f"bytes, {name}", "count": 1 << 20, "ns_each": megabyte / (1 << 20) * 1e3})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    data = Data()
    kinds = {
        "seeded": ("continuous", 0),
        "secure": ("continuous", None),
        "grid": ("discrete", 0),
        "both": ("discrete", None),
    }
    with threadpool_limits(1):
        runs = {name: training(data, options.batch, *kind) for name, kind in kinds.items()}
        times = in_turns(runs, options.rounds, options.steps)
        made = draws()
    print(f"{data.source}: {len(data.features)} rows, batch {options.batch}")
    result: dict[str, Any] = {"data": data.source, "batch": options.batch, "steps": {}, "draws": made}
    for name, taken in times.items():
        ratio = taken / times["seeded"]
        low, middle, high = np.percentile(ratio, [25, 50, 75])
        result["steps"][name] = {"median_us": float(np.median(taken)), "ratio": float(middle)}
        print(
            f"{name:>8}  {np.median(taken):7.1f} us   ratio {middle:.3f}  (quartiles {low:.3f} to {high:.3f})"
        )
    for row in made:
        print(f"{row['draw']:>26}  {row['count']:>9,}  {row['ns_each']:8.2f} ns each")
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
