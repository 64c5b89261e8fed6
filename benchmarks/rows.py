"""Fit on a memory-mapped table that is larger than anyone would copy: how long, and how much memory.

    python benchmarks/rows.py [--rows 10000000] [--features 50] [--folder /tmp] [--trace] [--json out.json]

Writes a float32 file of the given shape in pieces (2 GB by default), then fits a classifier with demographic
parity 0.05 between two groups at epsilon 1, delta 1e-7 on the map. Labels and groups are maps too.
The baseline is a fit of the same kind on the first rows of the map, so that imports and caches do not count.

Memory is the anonymous memory of the process (RssAnon in /proc/self/status, sampled 200 times a second):
pages of the map itself belong to the system's cache, are given back on demand, and do not count. VmHWM, which
counts them, is shown beside it. `--trace` repeats the fit under tracemalloc, for what Python and NumPy ask
for at the peak (slower). Linux only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.metrics import rate_report

PIECE = 200_000
GAP = 0.05
BASELINE_ROWS = 140_000  # enough for the largest batch at the largest sampling rate


def status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: this benchmark needs Linux")


class Watch:
    """Follow the anonymous memory of this process while a block runs."""

    def __enter__(self) -> Watch:
        self.before = self.peak = status("RssAnon")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, status("RssAnon"))

    @property
    def growth(self) -> int:
        """Bytes above the start, at the peak."""
        return self.peak - self.before


def write(folder: Path, rows: int, features: int) -> list[np.ndarray]:
    """Write features, labels and groups piece by piece; return them as maps to read from."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "features": (np.float32, (rows, features)),
        "labels": (np.int8, (rows,)),
        "groups": (np.int8, (rows,)),
    }
    table, labels, groups = (
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        for name, (dtype, shape) in shapes.items()
    )
    for start in range(0, rows, PIECE):
        block = rng.random((min(PIECE, rows - start), features), dtype=np.float32)
        score = 6 * (block[:, :4].sum(axis=1) - 2) + rng.logistic(size=len(block)) - 1
        table[start : start + len(block)] = block
        labels[start : start + len(block)] = score > 0
        groups[start : start + len(block)] = block[:, 0] > rng.random(len(block))
    for written in (table, labels, groups):
        written.flush()
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in shapes]


def fit(X: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> RateConstrainedClassifier:
    model = RateConstrainedClassifier(
        demographic_parity("group", max_gap=GAP),
        epsilon=1.0,
        delta=1e-7,
        classes=[0, 1],
        group_values={"group": [0, 1]},
        feature_bounds=(0.0, 1.0),
        random_state=0,
    )
    return model.fit(X, labels, sensitive_features={"group": groups})


def traced_peak(X: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> int:
    tracemalloc.start()
    fit(X, labels, groups)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(folder: Path, rows: int, features: int, trace: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    X, labels, groups = write(folder, rows, features)
    print(f"{rows} rows x {features}: {X.nbytes / 1e9:.2f} GB written in "
          f"{time.perf_counter() - begin:.0f} s", flush=True)  # fmt: skip
    small = min(rows, BASELINE_ROWS)
    with Watch() as baseline:
        fit(X[:small], labels[:small], groups[:small])
    with Watch() as whole:
        model = fit(X, labels, groups)
    batch = model.plan_.sampling_rate * rows
    looked_at = slice(0, min(rows, 500_000))
    predicted = model.predict(X[looked_at])
    report = rate_report(
        demographic_parity("group", max_gap=GAP),
        labels[looked_at],
        predicted,
        sensitive_features={"group": groups[looked_at]},
    )
    found = {
        "rows": rows,
        "features": features,
        "batch": batch,
        "steps": model.plan_.steps,
        "wall_seconds": whole.wall,
        "cpu_seconds": whole.cpu,
        "anonymous_growth_bytes": whole.growth,
        "baseline_rows": small,
        "baseline_growth_bytes": baseline.growth,
        "bytes_per_batch_row": whole.growth / batch,
        "bytes_per_row": whole.growth / rows,
        "table_bytes": X.nbytes,
        "high_water_bytes": status("VmHWM"),
        "accuracy": float(np.mean(predicted == labels[looked_at])),
        "gap": max(abs(row.reached) for row in report),
        "epsilon": model.privacy_.epsilon,
    }
    return found | ({"traced_peak_bytes": traced_peak(X, labels, groups)} if trace else {})


def show(found: dict[str, Any]) -> None:
    mega = 1e6
    print(f"fit: {found['wall_seconds']:.1f} s wall, {found['cpu_seconds']:.1f} s processor; "
          f"{found['steps']} steps of {found['batch']:.0f} rows")  # fmt: skip
    print(f"memory: {found['anonymous_growth_bytes'] / mega:.0f} MB above the start, the table has "
          f"{found['table_bytes'] / mega:.0f} MB; {found['bytes_per_batch_row']:.0f} bytes per row of a "
          f"batch, {found['bytes_per_row']:.1f} per row of the table")  # fmt: skip
    print(f"baseline: {found['baseline_growth_bytes'] / mega:.0f} MB for {found['baseline_rows']} rows; "
          f"high water with pages of the map: {found['high_water_bytes'] / mega:.0f} MB")  # fmt: skip
    if "traced_peak_bytes" in found:
        print(f"tracemalloc peak: {found['traced_peak_bytes'] / mega:.0f} MB")
    print(f"on training rows: accuracy {found['accuracy']:.4f}, gap {found['gap']:.4f} (asked: {GAP}), "
          f"epsilon {found['epsilon']:.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where the temporary file goes; it is deleted at the end")
    parser.add_argument("--trace", action="store_true", help="a second fit, under tracemalloc")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.rows, options.features, options.trace)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
