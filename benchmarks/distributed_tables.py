"""Tables larger than memory and on several processes: time, processor time and memory of one fit.

    python -m benchmarks distributed_tables --rows 2000000 --columns 50 --json out.jsonl

Writes a Parquet folder to a temporary place, then fits it in processes of their own: a memory map, an Arrow data
set, Dask with 1, 2 and 4 workers of one thread, and Spark MLlib's logistic regression without privacy (``--spark``).
Bounds and classes are declared. On a machine that does other things the clock says little; `critical` is the processor
time of the coordinator plus that of the busiest worker, which is the time on a machine with a core for each process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

STEPS = 100
ROW_GROUP = 100_000


def generate(folder: Path, rows: int, columns: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    matrix = np.memmap(folder / "x.f64", dtype=np.float64, mode="w+", shape=(rows, columns))
    labels = np.zeros(rows, dtype=np.int8)
    groups = np.zeros(rows, dtype=np.int8)
    (folder / "parquet").mkdir()
    for number, start in enumerate(range(0, rows, 5 * ROW_GROUP)):
        stop = min(start + 5 * ROW_GROUP, rows)
        x = rng.normal(size=(stop - start, columns))
        group = rng.integers(0, 2, stop - start)
        y = (x[:, :5].sum(axis=1) + group + rng.normal(size=stop - start) > 0.5).astype(np.int8)
        matrix[start:stop], labels[start:stop], groups[start:stop] = x, y, group
        table = pa.table({**{f"x{i}": x[:, i] for i in range(columns)}, "y": y, "sex": group.astype(np.int8)})
        pq.write_table(table, folder / "parquet" / f"part-{number:04}.parquet", row_group_size=ROW_GROUP)
    np.save(folder / "y.npy", labels)
    np.save(folder / "sex.npy", groups)


class Memory(threading.Thread):
    """Largest anonymous memory of this process, in megabytes; pages of files are not counted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0.0

    def run(self) -> None:
        """Look every 20 ms."""
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.most = max(self.most, float(line.split()[1]) / 1024)
            time.sleep(0.02)


def fit(table: object, y: object, sensitive: object, columns: int) -> dict[str, float]:
    from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity

    ticks: list[tuple[float, float]] = []
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=0.05),
        epsilon=1.0,
        classes=[0, 1],
        group_values={"sex": [0, 1]},
        feature_bounds={f"x{i}": (-4.0, 4.0) for i in range(columns)} | ({"sex": [0, 1]} if isinstance(y, str) else {}),
        config=TrainingConfig(steps=STEPS),
        callback=lambda _: ticks.append((time.perf_counter(), time.process_time())),
        random_state=0,
    )
    start = time.perf_counter(), time.process_time()
    model.fit(table, y, sensitive_features=sensitive)
    end = time.perf_counter(), time.process_time()
    steps = np.diff(np.array(ticks), axis=0)
    return {
        "prepare_s": ticks[0][0] - start[0],
        "step_ms": 1e3 * float(np.median(steps[:, 0])),
        "step_cpu_ms": 1e3 * float(np.mean(steps[:, 1])),
        "total_s": end[0] - start[0],
        "cpu_s": end[1] - start[1],
    }


def memory_map(folder: Path, rows: int, columns: int) -> dict[str, float]:
    matrix = np.memmap(folder / "x.f64", dtype=np.float64, mode="r", shape=(rows, columns))
    return fit(matrix, np.load(folder / "y.npy"), {"sex": np.load(folder / "sex.npy")}, columns)


def arrow(folder: Path, rows: int, columns: int) -> dict[str, float]:  # noqa: ARG001 - one signature
    from ratewise.distributed import open_parquet

    return fit(open_parquet(str(folder / "parquet")), "y", "sex", columns)


def on_dask(folder: Path, columns: int, workers: int) -> dict[str, float]:
    import dask.dataframe as dd

    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        for module in ("dask.dataframe", "ratewise.distributed.partitions"):  # as on a cluster that has been in use
            client.run(__import__, module)
        before = client.run(time.process_time)
        table = dd.read_parquet(str(folder / "parquet"), split_row_groups=True)
        found = fit(table, "y", "sex", columns)
        after = client.run(time.process_time)
        spent = [after[name] - before[name] for name in before]
        memory = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        found |= {
            "partitions": table.npartitions,
            "worker_cpu_s": max(spent),
            "all_workers_cpu_s": sum(spent),
            "critical_s": found["cpu_s"] + max(spent),
            "worker_memory_mb": max(memory.values()),
        }
    return found


def on_mllib(folder: Path, columns: int) -> dict[str, float]:
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    start = time.perf_counter()
    table = spark.read.parquet(str(folder / "parquet"))
    ready = VectorAssembler(inputCols=[f"x{i}" for i in range(columns)] + ["sex"], outputCol="f").transform(table)
    LogisticRegression(featuresCol="f", labelCol="y", maxIter=STEPS).fit(ready.select("f", "y").cache())
    total = time.perf_counter() - start
    java = resource.getrusage(resource.RUSAGE_CHILDREN)
    spark.stop()
    return {"total_s": total, "cpu_s": java.ru_utime + java.ru_stime}


def child(mode: str, folder: Path, rows: int, columns: int) -> None:
    warnings.simplefilter("ignore")
    memory = Memory()
    memory.start()
    if mode == "mllib":
        found = on_mllib(folder, columns)
    elif mode.startswith("dask"):
        found = on_dask(folder, columns, int(mode[4:]))
    else:
        found = {"memory map": memory_map, "arrow": arrow}[mode](folder, rows, columns)
    found["anonymous_memory_mb"] = memory.most
    load = os.getloadavg()[0]
    print(json.dumps({"mode": mode, "rows": rows, "columns": columns, "load": load, **found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--modes", default="memory map,arrow,dask1,dask2,dask4")
    parser.add_argument("--json", help="append results to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, Path(given.folder), given.rows, given.columns)
        return
    with tempfile.TemporaryDirectory() as place:
        generate(Path(place), given.rows, given.columns)
        for mode in given.modes.split(","):
            command = [sys.executable, "-m", "benchmarks.distributed_tables", "--child", mode, "--folder", place]
            command += ["--rows", str(given.rows), "--columns", str(given.columns)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            line = done.stdout.strip().splitlines()[-1]
            print(line, flush=True)
            if given.json:
                with Path(given.json).open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
