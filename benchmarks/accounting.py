"""Calibrating noise to a budget: ours, dp-accounting's own, and Opacus', in one run.

    python benchmarks/accounting.py [--repeat 5] [--json times.json]

Two settings at epsilon 1, delta 1e-5: sampling rate 0.2 for 200 steps, and 0.0016 for 12,000 steps. Every
round runs all methods in turn, in one process and on one thread; speed-ups are taken within rounds, on
processor time, so that a busy machine slows all of them alike. All peers calibrate DP-SGD (one Gaussian);
none of them accounts a histogram drawn from the same sample.

    ours                 calibrate(), without a histogram, with a Gaussian and with a Laplace one
    dp-accounting        calibrate_dp_mechanism with PLDAccountant, as it comes (noise to within 1e-6)
    dp-accounting 1e-3   the same, asked for noise to within 1e-3 only: about the accuracy of our search
    Opacus PRV, RDP      get_noise_multiplier as it comes (epsilon to within 0.01)

The noise found by each is judged twice: by our accountant and by dp-accounting's privacy loss distributions
(for the Laplace pair: built here from its curve, on a grid of the same width). "Loose" is how much of the
target the noise leaves unspent, by the second. No step of the comparison is timed but the calibrations.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
from scipy.special import log_ndtr, ndtr
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from ratewise.accounting import TrainingEvent, calibrate, delta, epsilon
from ratewise.accounting.accountant import forget_last_answer

TARGET, DELTA = 1.0, 1e-5
SETTINGS = ((0.2, 200), (0.0016, 12_000))
GRID = 1e-4  # dp-accounting's own default


@dataclass(frozen=True)
class Method:
    """A way to find noise for the target, given sampling rate and steps."""

    name: str
    run: Callable[[float, int], TrainingEvent]


def ours(histogram: str | None) -> Callable[[float, int], TrainingEvent]:
    return lambda rate, steps: calibrate(TARGET, DELTA, rate, steps, histogram=histogram).event


def dp_accounting_own(tol: float | None) -> Callable[[float, int], TrainingEvent]:
    def run(rate: float, steps: int) -> TrainingEvent:
        noise = dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, lambda z: sampled_gaussian(z, rate, steps), TARGET, DELTA, tol=tol
        )
        return TrainingEvent(rate, steps, noise)

    return run


def opacus(accountant: str) -> Callable[[float, int], TrainingEvent]:
    def run(rate: float, steps: int) -> TrainingEvent:
        from opacus.accountants.utils import get_noise_multiplier

        noise = get_noise_multiplier(
            target_epsilon=TARGET, target_delta=DELTA, sample_rate=rate, steps=steps, accountant=accountant
        )
        return TrainingEvent(rate, steps, noise)

    return run


def methods() -> list[Method]:
    found = [
        Method("ours, no histogram", ours(None)),
        Method("ours, Gaussian pair", ours("gaussian")),
        Method("ours, Laplace pair", ours("laplace")),
        Method("dp-accounting", dp_accounting_own(None)),
        Method("dp-accounting 1e-3", dp_accounting_own(1e-3)),
    ]
    try:
        import opacus.accountants as _  # noqa: F401
    except ImportError:
        return found
    return [*found, Method("Opacus PRV", opacus("prv")), Method("Opacus RDP", opacus("rdp"))]


# ------------------------------------------------------------------------------------- the referee


def sampled_gaussian(noise: float, rate: float, steps: int) -> dp_accounting.DpEvent:
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(float(noise)))
    return dp_accounting.SelfComposedDpEvent(step, steps)


def referee(event: TrainingEvent) -> float:
    """Return epsilon by dp-accounting's privacy loss distributions."""
    if event.histogram == "laplace" and event.histogram_noise is not None:
        return float(laplace_pair(event).get_epsilon_for_delta(DELTA))
    noise = event.gradient_noise
    if event.histogram_noise is not None:
        noise = (event.gradient_noise**-2 + event.histogram_noise**-2) ** -0.5
    accountant = PLDAccountant(value_discretization_interval=GRID)
    return float(
        accountant.compose(sampled_gaussian(noise, event.sampling_rate, event.steps)).get_epsilon(DELTA)
    )


def laplace_pair(event: TrainingEvent) -> Any:
    """Return the composed privacy loss distribution of a Gaussian and a Laplace release of one sample."""
    rate, shift, loss = event.sampling_rate, 1 / event.gradient_noise, 1 / event.histogram_noise
    nodes, weights = np.polynomial.legendre.leggauss(40)
    place = (nodes + 1) / 2  # between the two centres of the Laplace law
    losses = np.concatenate([[loss, -loss], loss * (1 - 2 * place)])
    masses = np.concatenate([[0.5, math.exp(-loss) / 2], weights / 2 * loss / 2 * np.exp(-loss * place)])

    def unsampled(e: np.ndarray) -> np.ndarray:
        left = e[:, None] - losses
        gauss = ndtr(shift / 2 - left / shift) - np.exp(left + log_ndtr(-shift / 2 - left / shift))
        return gauss @ masses

    def remove(e: np.ndarray) -> np.ndarray:
        inside = e > math.log1p(-rate)
        found = -np.expm1(e)
        found[inside] = rate * unsampled(np.log1p(np.expm1(e[inside]) / rate))
        return found

    reach = math.log1p(rate * math.expm1(shift * (shift / 2 + 9) + loss))
    count = math.ceil(max(reach, -math.log1p(-rate)) / GRID) + 2
    points = np.arange(-count, count + 1)
    e = points * GRID
    curves = remove(e), -np.expm1(e) + np.exp(e) * remove(-e)
    pmfs = [pld_pmf.create_pmf_pessimistic_connect_dots(GRID, points, np.clip(c, 0, 1)) for c in curves]
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs).self_compose(event.steps)


# ------------------------------------------------------------------------------------ the comparison


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall seconds, processor seconds and the answer."""
    forget_last_answer()
    wall, cpu = time.perf_counter(), time.process_time()
    answer = call()
    return time.perf_counter() - wall, time.process_time() - cpu, answer


def calibrations(rate: float, steps: int, repeat: int) -> list[dict[str, Any]]:
    entered = methods()
    times: dict[str, list[tuple[float, float]]] = {method.name: [] for method in entered}
    events: dict[str, TrainingEvent] = {}
    for _ in range(repeat):
        for method in entered:
            wall, cpu, events[method.name] = timed(lambda method=method: method.run(rate, steps))
            times[method.name].append((wall, cpu))
    peer = np.array([cpu for _, cpu in times["dp-accounting"]])
    found = []
    for name, event in events.items():
        wall, cpu = np.array(times[name]).T
        judged = referee(event)
        found.append(
            {
                "rate": rate,
                "steps": steps,
                "method": name,
                "wall_seconds": wall.tolist(),
                "cpu_seconds": cpu.tolist(),
                "gradient_noise": event.gradient_noise,
                "histogram_noise": event.histogram_noise,
                "epsilon_ours": epsilon(event, DELTA),
                "epsilon_referee": judged,
                "loose_percent": 100 * (1 - judged / TARGET),
                "speed_up": float(np.median(peer / cpu)),
            }
        )
    return found


def single_calls(rate: float, steps: int, repeat: int) -> list[dict[str, Any]]:
    """Time one question each, at the noise that meets the target."""
    plain, gauss, laplace = (
        calibrate(TARGET, DELTA, rate, steps, histogram=kind).event for kind in (None, "gaussian", "laplace")
    )

    def peer() -> Any:
        return PLDAccountant().compose(sampled_gaussian(plain.gradient_noise, rate, steps))

    calls: dict[str, Callable[[], Any]] = {
        "ours, no histogram: epsilon()": lambda: epsilon(plain, DELTA),
        "ours, no histogram: delta()": lambda: delta(plain, TARGET),
        "ours, Gaussian pair: epsilon()": lambda: epsilon(gauss, DELTA),
        "ours, Laplace pair: epsilon()": lambda: epsilon(laplace, DELTA),
        "ours, Laplace pair: delta()": lambda: delta(laplace, TARGET),
        "dp-accounting: get_epsilon": lambda: peer().get_epsilon(DELTA),
        "dp-accounting: get_delta": lambda: peer().get_delta(TARGET),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            times[name].append(timed(call)[1])
    return [
        {"rate": rate, "steps": steps, "call": name, "cpu_seconds": values} for name, values in times.items()
    ]


def show(row: dict[str, Any]) -> str:
    noise = f"{row['gradient_noise']:.4f}"
    if row["histogram_noise"] is not None:
        noise += f" / {row['histogram_noise']:.3f}"
    cells = [
        row["method"],
        f"{np.median(row['wall_seconds']):.3f}",
        f"{np.median(row['cpu_seconds']):.3f}",
        f"{row['speed_up']:.1f}",
        noise,
        f"{row['epsilon_ours']:.5f}",
        f"{row['epsilon_referee']:.5f}",
        f"{row['loose_percent']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every time and answer here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    head = ["method", "wall s", "cpu s", "faster x", "noise: gradient / histogram"]
    head += ["epsilon, ours", "epsilon, dp-accounting", "loose %"]
    rows, calls = [], []
    with threadpool_limits(limits=1):
        for method in methods():  # imports and caches, and answers of no interest
            method.run(0.5, 3)
        for rate, steps in SETTINGS:
            print(f"\nsampling rate {rate:g}, {steps} steps, epsilon {TARGET:g}, delta {DELTA:g}\n")
            print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
            found = calibrations(rate, steps, options.repeat)
            print("\n".join(map(show, found)), "\n", flush=True)
            rows += found
            asked = single_calls(rate, steps, max(options.repeat, 5))
            for call in asked:
                print(f"{call['call']:<32} {1e3 * np.median(call['cpu_seconds']):8.1f} ms")
            calls += asked
    if options.json:
        options.json.write_text(json.dumps({"calibrations": rows, "calls": calls}, indent=1))


if __name__ == "__main__":
    main()
