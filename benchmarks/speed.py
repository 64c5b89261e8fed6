"""Speed, each part in one run beside the peers: one step, one fit, calibration of noise, networks, many rows.

    python -m benchmarks speed [step] [fit] [accounting] [deep] [rows]

Every part runs ours and the peers in turns, in one process and on one thread, and takes ratios of processor times within
rounds, so that a busy machine slows all of them alike. Results replace the lines of that part in
benchmarks/results/speed.csv. ``python -m benchmarks deep`` has the memory and the parts of the steps of networks.

step        Adult, batch 512; our steps are whole: sampling, both releases, dual update, optimizer, records
    floor        gather the bins of the sample, look up and add scores, add residuals by bin, draw noise
    dp-sgd       our loop without constraints
    parity       our loop with demographic parity on sex: 2 inequalities
    many         our loop with pairwise parity over workclass x education: more than 10,000 inequalities
    sgd, sgda    `dp-sgd` and `parity` without noise
    opacus       Opacus DP-SGD of a logistic regression on the encoded features, on batches that are drawn already
fit         Adult, three quarters of the rows: ours with nothing declared, private, with a parity constraint
accounting  noise for epsilon 1, delta 1e-5. Peers calibrate one Gaussian; none accounts a histogram of the same sample
deep        networks, rows drawn already: plain SGD, ours without and with a constraint, Opacus with hooks and with ghost clipping
rows        a memory-mapped table of random numbers: time, and memory beyond the start (RssAnon; Linux only)
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.peers import METHODS
from benchmarks.problem import Task, load, split
from benchmarks.scoreboard import RESULTS, commit
from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.accounting import TrainingEvent, calibrate, epsilon
from ratewise.estimators.classifier import session_of
from ratewise.training.config import TrainingConfig

SPEED = RESULTS.parent / "speed.csv"
STEPS, BATCH = 20_000, 512  # more steps than are run
PARITY = demographic_parity("sex", max_gap=0.05)


class Time(NamedTuple):
    """A line of the file: median processor seconds, and the median within rounds of the ratio to `beside`."""

    part: str
    variant: str
    seconds: float
    ratio: float
    beside: str
    note: str
    commit: str


def read(path: Path = SPEED) -> list[Time]:
    """Return the results."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    if tuple(lines[0]) != Time._fields:
        raise SystemExit(f"{path} has other columns than {', '.join(Time._fields)}; move it away")
    return [Time(a, b, float(c), float(d), e, f, g) for a, b, c, d, e, f, g in lines[1:]]


def write(times: Sequence[Time], path: Path = SPEED) -> None:
    """Replace the lines of the parts that were measured."""
    parts = {each.part for each in times}
    kept = [each for each in read(path) if each.part not in parts] if path.exists() else []
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Time._fields)
        for each in sorted([*kept, *times], key=lambda line: PARTS_ORDER.index(line.part)):
            writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in each])


def rounds(
    part: str, runs: dict[str, Callable[[], float]], beside: str, count: int, notes: dict[str, str] | None = None
) -> list[Time]:
    """Call every variant, which returns its seconds, in every round; return medians and ratios to `beside`."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            seconds[name].append(run())
    base, found = np.array(seconds[beside]), []
    for name, values in seconds.items():
        ratio = float(np.median(np.array(values) / base))
        note = (notes or {}).get(name, "")
        found.append(Time(part, name, statistics.median(values), ratio, beside, note, commit()))
    return found


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


# ------------------------------------------------------------------------------------------------ step


def training(table: Any, family: Any = None, private: bool = True) -> Iterator[Any]:
    """Yield after every step of a fit; first the session, before the first step."""
    schema = table.schema
    bounds = {
        **{name: tuple(pair) for name, pair in schema.feature_bounds.items()},
        **{name: list(values) for name, values in schema.categories.items()},
    }
    frame = table.frame[list(bounds)]
    groups = table.frame[["sex", "workclass", "education"]]
    classifier = RateConstrainedClassifier(
        family,
        epsilon=1.0 if private else None,
        classes=table.classes,
        group_values={"sex": schema.groups["sex"].values} | {n: bounds[n] for n in ("workclass", "education")},
        feature_bounds=bounds,
        config=TrainingConfig(steps=STEPS, sampling_rate=BATCH / len(table)),
        random_state=0,
    )
    session = session_of(classifier, frame, table.y, sensitive_features=groups)
    session.declare_and_plan()
    session.bound_units()
    session.discover()
    session.prepare()
    session.bind()
    yield session
    assert session.loop is not None
    for record in session.loop.run(session.samples(STEPS), session.streams):
        session.history.add(record)
        yield record


def floor(session: Any) -> Iterator[None]:
    """Gather, look up, add by bin, draw noise: what every private step of an additive model has to do."""
    engine = session.engine
    basis = engine.basis
    bins = engine.bins.codes
    rng = np.random.default_rng(2)
    values = rng.standard_normal(basis.n_bins)
    samples = [np.flatnonzero(rng.random(len(bins)) < BATCH / len(bins)) for _ in range(200)]
    while True:
        for sample in samples:
            block = bins.take(sample, axis=0).astype(np.intp)
            scores = values.take(block, mode="clip").sum(axis=1)
            sums = np.bincount(block.ravel(), np.repeat(scores, block.shape[1]), minlength=basis.n_bins)
            basis.matrix.T @ sums
            rng.standard_normal(basis.n_features + 1)
            yield None


def opacus_steps(table: Any) -> Iterator[None]:
    """Yield after every step of Opacus' DP-SGD (hooks) on a logistic regression."""
    import torch
    from opacus import PrivacyEngine

    torch.set_num_threads(1)
    features = torch.from_numpy(table.X).float()
    labels = torch.from_numpy(np.asarray(table.y)).float()
    model = torch.nn.Linear(features.shape[1], 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(features, labels), batch_size=BATCH, shuffle=True
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
    loss, rng = torch.nn.BCEWithLogitsLoss(), np.random.default_rng(1)
    while True:
        rows = torch.from_numpy(np.flatnonzero(rng.random(len(features)) < BATCH / len(features)))
        optimizer.zero_grad(set_to_none=True)
        loss(private(features[rows]).squeeze(1), labels[rows]).backward()
        optimizer.step()
        yield None


def advance(steps: Iterator[Any], count: int) -> float:
    """Return the processor seconds of one of `count` steps."""
    begin = time.thread_time()
    for _ in range(count):
        next(steps)
    return (time.thread_time() - begin) / count


def step() -> list[Time]:
    """Measure steps, in rounds of 20 (of 2 for Opacus)."""
    table = load("adult")
    many = demographic_parity("workclass", "education", max_gap=0.05, versus="pairwise")
    runs = {
        "dp-sgd": training(table),
        "parity": training(table, PARITY),
        "many": training(table, many),
        "sgd": training(table, private=False),
        "sgda": training(table, PARITY, private=False),
    }
    sessions = {name: next(run) for name, run in runs.items()}
    runs = {"floor": floor(sessions["dp-sgd"]), **runs, "opacus": opacus_steps(table)}
    for run in runs.values():
        advance(run, 10)

    def few(name: str) -> Callable[[], float]:
        return lambda: advance(runs[name], 2 if name == "opacus" else 20)

    return rounds("step", {name: few(name) for name in runs}, "dp-sgd", 50)


# ------------------------------------------------------------------------------------- fit, accounting


def fit() -> list[Time]:
    """Measure whole fits on Adult."""
    part, _ = split(Task("adult", "demographic_parity"), 0)
    names = ("ours_undeclared", "logistic", "xgboost", "fairlearn")

    def fit_of(name: str) -> Callable[[], float]:
        return lambda: seconds_of(lambda: METHODS[name].fit(part, 0.05, 1.0, 1e-5, 0))

    runs = {name: fit_of(name) for name in names}
    for run in runs.values():
        run()  # imports on first use do not count
    return rounds("fit", runs, "ours_undeclared", 3)


def accounting() -> list[Time]:
    """Measure calibrations; the note has the epsilon of the noise that was found, by our accountant."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from opacus.accountants.utils import get_noise_multiplier

    found = []
    for rate, steps in ((0.2, 200), (0.0016, 12_000)):

        def peer(noise: float, rate: float = rate, steps: int = steps) -> Any:
            sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(float(noise)))
            return dp_accounting.SelfComposedDpEvent(sampled, steps)

        def plain(noise: float, rate: float = rate, steps: int = steps) -> TrainingEvent:
            return TrainingEvent(rate, steps, noise)

        def opacus(kind: str, rate: float = rate, steps: int = steps) -> float:
            return get_noise_multiplier(
                target_epsilon=1.0, target_delta=1e-5, sample_rate=rate, steps=steps, accountant=kind
            )

        def ours(histogram: str | None, rate: float = rate, steps: int = steps) -> TrainingEvent:
            return calibrate(1.0, 1e-5, rate, steps, histogram=histogram).event

        def dp_accounting_own(tol: float | None = None) -> float:
            return dp_accounting.calibrate_dp_mechanism(PLDAccountant, peer, 1.0, 1e-5, tol=tol)

        methods: dict[str, Callable[[], TrainingEvent]] = {
            "ours, no histogram": lambda: ours(None),
            "ours, Gaussian histogram": lambda: ours("gaussian"),
            "ours, Laplace histogram": lambda: ours("laplace"),
            "dp-accounting": lambda: plain(dp_accounting_own()),
            "dp-accounting, noise to 1e-3": lambda: plain(dp_accounting_own(1e-3)),
            "Opacus PRV": lambda: plain(opacus("prv")),
            "Opacus RDP": lambda: plain(opacus("rdp")),
        }
        where = f"q {rate:g}, {steps} steps: "
        notes = {where + name: f"spends {epsilon(run(), 1e-5):.4f}" for name, run in methods.items()}
        runs = {where + name: (lambda run=run: seconds_of(run)) for name, run in methods.items()}
        found += rounds("accounting", runs, where + "ours, no histogram", 3, notes)
    return found


# ------------------------------------------------------------------------------------------------ rows


def status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: this part needs Linux")


class Watch:
    """Follow the anonymous memory of this process while a block runs; pages of a memory map do not count."""

    def __enter__(self) -> Watch:
        self.before = self.peak = status("RssAnon")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu = time.process_time() - self._cpu
        self._done.set()
        self._thread.join()
        self.growth = self.peak - self.before

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, status("RssAnon"))


def written(folder: Path, count: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Write features piece by piece; return them as a map to read from, with labels and groups."""
    rng, piece = np.random.default_rng(0), 200_000
    table = np.lib.format.open_memmap(folder / "X.npy", mode="w+", dtype=np.float32, shape=(count, features))
    labels, groups = np.zeros(count, np.int8), np.zeros(count, np.int8)
    for start in range(0, count, piece):
        rows = slice(start, min(start + piece, count))
        block = rng.random((rows.stop - start, features), dtype=np.float32)
        table[rows] = block
        labels[rows] = 6 * (block[:, :4].sum(axis=1) - 2) + rng.logistic(size=len(block)) > 1
        groups[rows] = block[:, 0] > rng.random(len(block))
    table.flush()
    return np.load(folder / "X.npy", mmap_mode="r"), labels, groups


def rows(count: int = 2_000_000, features: int = 50) -> list[Time]:
    """Fit ours, private with parity, and scikit-learn's logistic regression, on the same map."""
    from sklearn.linear_model import LogisticRegression

    with tempfile.TemporaryDirectory() as folder:
        X, labels, groups = written(Path(folder), count, features)

        def ours(size: int) -> object:
            model = RateConstrainedClassifier(
                demographic_parity("group", max_gap=0.05),
                epsilon=1.0,
                delta=1e-7,
                classes=[0, 1],
                group_values={"group": [0, 1]},
                feature_bounds=(0.0, 1.0),
                random_state=0,
            )
            return model.fit(X[:size], labels[:size], sensitive_features={"group": groups[:size]})

        ours(min(count, 100_000))  # imports and caches do not count
        watches = {}
        for name, run in (("ours", lambda: ours(count)), ("logistic", lambda: LogisticRegression().fit(X, labels))):
            with Watch() as watches[name]:
                run()
    base = watches["ours"].cpu
    size = f"{count:,} rows of {features} features, {count * features * 4 / 1e6:.0f} MB"
    return [
        Time("rows", name, watch.cpu, watch.cpu / base, "ours", f"{size}: {watch.growth / 1e6:.0f} MB more", commit())
        for name, watch in watches.items()
    ]


# ---------------------------------------------------------------------------------------------- networks


def deep() -> list[Time]:
    """Measure steps of networks on one thread, in rounds."""
    import torch

    from benchmarks import deep as networks

    torch.set_num_threads(1)
    found = []
    for network, (*_, batches) in networks.NETWORKS.items():
        for batch in batches:
            times = networks.measure(network, batch, networks.names([1], peers=True), 5, time.process_time)
            for name, seconds in times.items():
                label = f"{network}, batch {batch}: {name}"
                ratio = networks.ratio(times, name, "sgd")
                found.append(Time("deep", label, statistics.median(seconds), ratio, "sgd", "", commit()))
    return found


PARTS: dict[str, Callable[[], list[Time]]] = {
    "step": step, "fit": fit, "accounting": accounting, "deep": deep, "rows": rows,
}  # fmt: skip
PARTS_ORDER = list(PARTS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", default=[])
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1):
        for name in options.parts or PARTS:
            found = PARTS[name]()
            write(found)
            for line in found:
                print(
                    f"{line.part:10} {line.variant:45} {line.seconds:9.3g} s {line.ratio:7.2f} x {line.beside} {line.note}"
                )


if __name__ == "__main__":
    main()
