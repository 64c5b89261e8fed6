"""Time and memory of one private training step of a network, against plain SGD and both modes of Opacus.

    python -m benchmarks deep [--networks resnet16 mlp transformer] [--batches 32 128] [--rounds 15]
                              [--threads 2] [--clock wall] [--no-memory] [--json FILE] [--profile]

All variants run in one process on the same rows, in turns: every round runs each variant once, and ratios
are taken within rounds, so that a busy machine slows all of them alike. Batches are drawn beforehand.

    sgd              mean loss, backward, torch.optim.SGD
    dp-sgd           per-row clipped sum, secure grid noise on every entry, the same optimizer
    constrained-J    the same with J rate constraints: histogram, its release, multipliers, their table
    opacus           Opacus' DP-SGD with hooks
    opacus-ghost     Opacus' DP-SGD with ghost clipping: two backwards

Memory is that of a process of its own per variant: the highest resident size while ten steps run, and the
same above what was resident before the first step (interpreter, libraries, weights and data). It is measured
twice: as it is, and with an allocator that gives freed memory back at once, which shows what a step needs
without the holes that the allocator keeps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.transformer import TransformerEncoder
from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.rates import group, rate
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.torch import MLP, PerRowClipper, TensorRows, Trainer, resnet16
from ratewise.torch.engine import Objective
from ratewise.training.config import TrainingConfig
from ratewise.training.dual import DualUpdate
from ratewise.training.plan import TRAINING, Plan

CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
PEERS = ("opacus", "opacus-ghost")
CONSTRAINED = "constrained-18"
GOALS = [  # set for resnet16; other networks are shown beside it
    ("dp-sgd", "sgd", 1.6),
    (CONSTRAINED, "sgd", 1.6),
    (CONSTRAINED, "dp-sgd", 1.05),
    ("constrained-1000", "constrained-1", 1.03),
]
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Step = Callable[[], object]


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 64, 64)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], list[int]]] = {
    "resnet16": (lambda: resnet16(2), images, [32, 128]),
    "mlp": (lambda: MLP(784, 2, hidden=(1024, 1024)), lambda batch: torch.randn(batch, 784), [256]),
    "transformer": (
        lambda: TransformerEncoder(10_000, 2, length=128, width=256, heads=4, layers=4),
        lambda batch: torch.randint(0, 10_000, (batch, 128)),
        [32],
    ),
}


def module_and_rows(network: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    make, rows, _ = NETWORKS[network]
    return make(), rows(batch), torch.arange(batch) % 2


def sgd(network: str, batch: int) -> Step:
    module, x, y = module_and_rows(network, batch)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def ours(network: str, batch: int, constraints: int = 0) -> Step:
    """Our step: that of the trainer, on a batch that is already drawn."""
    module, x, y = module_and_rows(network, batch)
    compiled, cells = None, None
    if constraints:
        groups = list(range(constraints))
        domain = Domain(classes=(0, 1), columns={"g": tuple(groups)})
        limits = [rate(1, where=group(g=value)) - rate(1) <= 0.05 for value in groups]
        compiled = compile_constraints(limits if constraints > 1 else [rate(1) <= 0.2], domain)
        cells = np.arange(batch) % compiled.n_cells
    event = TrainingEvent(1.0, 1_000_000, NOISE, 5.0 if constraints else None, "gaussian" if constraints else None)
    plan = Plan(batch, 1.0, event.steps, {TRAINING: event}, PrivacyUnit(), "zero_out", math.inf, 1e-6)
    trainer = Trainer(
        module,
        TensorRows(x, y.numpy(), cells),
        plan,
        compiled,
        config=TrainingConfig(clip=CLIP, schedule="constant"),
        n_classes=2,
        optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
        physical_batch=batch,
    )
    trainer.start()  # finds out, among other things, whether the module counts its calls
    sample = np.arange(batch)
    return lambda: trainer.loop.step(sample, trainer.streams)


def opacus(network: str, batch: int, mode: str) -> Step:
    warnings.simplefilter("ignore")
    from opacus import PrivacyEngine

    module, x, y = module_and_rows(network, batch)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(private(x), y).backward()
        optimizer.step()

    return step


def variant(name: str, network: str, batch: int) -> Step:
    if name == "sgd":
        return sgd(network, batch)
    if name in PEERS:
        return opacus(network, batch, "ghost" if name.endswith("ghost") else "hooks")
    return ours(network, batch, int(name.partition("-")[2]) if name.startswith("constrained") else 0)


def names(constraints: list[int], peers: bool) -> list[str]:
    return ["sgd", "dp-sgd", *(f"constrained-{j}" for j in constraints), *(PEERS if peers else ())]


def measure(
    network: str, batch: int, wanted: list[str], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of every step, variant by variant, round after round."""
    steps = {name: variant(name, network, batch) for name in wanted}
    for name in wanted:
        try:
            steps[name]()
            steps[name]()
        except RuntimeError as failure:  # a peer that cannot train this network is left out, and named
            if name not in PEERS:
                raise
            print(f"\n{name} cannot train {network}: {failure}")
            del steps[name]
    wanted = list(steps)
    times: dict[str, list[float]] = {name: [] for name in wanted}
    for number in range(rounds):
        order = wanted if number % 2 else wanted[::-1]
        for name in order:
            begin = clock()
            steps[name]()
            times[name].append(clock() - begin)
    return times


def ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    """Return the median over rounds of the ratio within the round."""
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def resident(field: str) -> float:
    """Return a resident size of this process in MB: VmRSS now, VmHWM at its highest."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def memory_here(name: str, network: str, batch: int) -> dict[str, float]:
    step = variant(name, network, batch)
    before = resident("VmRSS")
    for _ in range(10):
        step()
    return {"before": before, "peak": resident("VmHWM")}


def memory(name: str, network: str, batch: int, threads: int, **settings: str) -> dict[str, float]:
    """Return the memory of a variant, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", name, network, str(batch), "--threads", str(threads)]
    env = {**os.environ, **settings}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report_times(network: str, batch: int, times: dict[str, list[float]]) -> dict[str, Any]:
    print(f"\n### {network}, batch {batch}\n")
    print("| step | median ms | times SGD (quartiles) |\n|---|---|---|")
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, times["sgd"], strict=True)]
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        print(f"| {name} | {1e3 * statistics.median(seconds):.1f} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    print()
    checks: dict[str, Any] = {}
    for above, below, goal in GOALS:
        if above in times and below in times:
            checks[f"{above} / {below}"] = (ratio(times, above, below), goal)
    present = [name for name in PEERS if name in times]
    if present:
        better = min(present, key=lambda name: statistics.median(times[name]))
        checks[f"{CONSTRAINED} / {better}"] = (ratio(times, CONSTRAINED, better), 1 / 3)
    for what, (found, goal) in checks.items():
        verdict = f" (goal: at most {goal:.3f}; {'holds' if found <= goal else 'MISSED'})"
        print(f"- {what}: {found:.3f}{verdict if network == 'resnet16' else ''}")
    return {what: {"ratio": found, "goal": goal} for what, (found, goal) in checks.items()}


def report_memory(network: str, batch: int, wanted: list[str], threads: int) -> dict[str, Any]:
    found = {}
    for title, settings in (("as it is", {}), ("freed memory given back at once", {"MALLOC_MMAP_THRESHOLD_": "65536"})):
        sizes = {name: memory(name, network, batch, threads, **settings) for name in wanted}
        print(f"\n| step, {title} | peak MB | times SGD | above start MB | times SGD |\n|---|---|---|---|---|")
        whole, extra = sizes["sgd"]["peak"], sizes["sgd"]["peak"] - sizes["sgd"]["before"]
        for name, size in sizes.items():
            above = size["peak"] - size["before"]
            peak = f"{size['peak']:.0f} | {size['peak'] / whole:.2f}"
            print(f"| {name} | {peak} | {above:.0f} | {above / extra:.2f} |")
        found[title] = sizes
    return found


class Stopwatch:
    """Adds up what named parts of a step take, by wrapping functions while it runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, owner: Any, attribute: str, label: str) -> None:
        """Replace a function by one that is timed under this label."""
        inner = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - begin

        setattr(owner, attribute, timed)


def profile(network: str, batch: int, steps: int = 10) -> None:
    """Print what part of our constrained step each thing takes."""
    from ratewise.torch import clipping

    watch = Stopwatch()
    watch.wrap(PerRowClipper, "_keep", "forming what is kept of each layer")
    watch.wrap(PerRowClipper, "_backward", "backward (with what is kept)")
    watch.wrap(clipping, "_weights", "norms")
    watch.wrap(clipping, "_total", "weighted sums")
    watch.wrap(PerRowClipper, "clipped_sum", "clipped sum, all of it")
    watch.wrap(RoundedGaussianMechanism, "release_parts", "noise on the gradient")
    watch.wrap(DualUpdate, "update", "multipliers")
    watch.wrap(Objective, "losses", "objective")
    watch.wrap(Objective, "tally", "histogram")
    watch.wrap(torch.optim.SGD, "step", "optimizer")
    step = ours(network, batch, 18)
    step()
    watch.seconds.clear()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    whole = time.perf_counter() - begin
    print(f"\n### {network}, batch {batch}: parts of the constrained step, {1e3 * whole / steps:.1f} ms\n")
    print("| part | share |\n|---|---|")
    for label, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1]):
        print(f"| {label} | {seconds / whole:.1%} |")
    print("\nThe rest is the recorded forward. Parts contain each other as their names say.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batches", nargs="+", type=int, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: with one thread on a busy machine")
    parser.add_argument("--constraints", nargs="*", type=int, default=[1, 18, 1000])
    parser.add_argument("--no-peers", action="store_true", help="leave Opacus out")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path, help="keep the single measurements")
    parser.add_argument("--profile", action="store_true", help="print the parts of our step instead")
    parser.add_argument("--memory-of", nargs=3, metavar=("VARIANT", "NETWORK", "BATCH"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        name, network, batch = chosen.memory_of
        print(json.dumps(memory_here(name, network, int(batch))))
        return
    print(f"PyTorch {torch.__version__}, {chosen.threads} threads, {chosen.rounds} rounds")
    kept: list[dict[str, Any]] = []
    for network in chosen.networks:
        for batch in chosen.batches or NETWORKS[network][2]:
            if chosen.profile:
                profile(network, batch)
                continue
            wanted = names(chosen.constraints, not chosen.no_peers)
            times = measure(network, batch, wanted, chosen.rounds, CLOCKS[chosen.clock])
            entry = {"network": network, "batch": batch, "seconds": times}
            entry["goals"] = report_times(network, batch, times)
            if not chosen.no_memory:
                wanted = [name for name in ("sgd", "dp-sgd", CONSTRAINED, *PEERS) if name in times]
                entry["megabytes"] = report_memory(network, batch, wanted, chosen.threads)
            kept.append(entry)
    if chosen.json:
        chosen.json.write_text(json.dumps({"torch": torch.__version__, "threads": chosen.threads, "runs": kept}))


if __name__ == "__main__":
    main()
