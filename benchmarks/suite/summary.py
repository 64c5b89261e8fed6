"""From result lines to curves: means and intervals over splits, fronts, areas; and published points."""

from __future__ import annotations

import csv
import math
import os
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.suite.config import Experiment
from benchmarks.suite.problem import data_home
from benchmarks.suite.store import Store, results_path


@dataclass(frozen=True)
class Point:
    """Means over splits at one knob, with half-widths of 95% intervals of the means."""

    knob: float | None
    settings: dict[str, Any]
    error: float
    violation: float
    error_margin: float
    violation_margin: float
    splits: int
    seconds: float


@dataclass(frozen=True)
class Curve:
    """A method on a data set at a budget."""

    dataset: str
    epsilon: float | None
    method: str
    variant: str
    points: tuple[Point, ...]
    spent: float | None
    commits: tuple[str, ...] = ()

    @property
    def front(self) -> np.ndarray:
        """The points that no other point of the curve beats in both: rows (violation, error), rising."""
        return front([(point.violation, point.error) for point in self.points])


def records(experiment: Experiment, mode: str = "full") -> list[dict[str, Any]]:
    """Return the results of an experiment that its config still asks for."""
    store = Store(results_path(experiment.name, mode), experiment.name)
    return [store.records[key] for key in experiment.jobs(mode) if key in store]


def curves(lines: list[dict[str, Any]]) -> list[Curve]:
    """Return the curves that result lines make up."""
    grouped: dict[tuple, dict[tuple, list]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if "failed" in line or "error" not in line:
            continue
        curve = (line["dataset"], line["epsilon"], line["method"], line["variant"])
        knob = (line["knob"], repr(sorted(line["settings"].items())))
        grouped[curve][knob].append(line)
    return [
        Curve(*name, tuple(_point(same) for same in points.values()), _spent(points), _commits(points))
        for name, points in grouped.items()
    ]


def _point(lines: list[dict[str, Any]]) -> Point:
    errors = np.array([line["error"] for line in lines])
    violations = np.array([line["violation"] for line in lines])
    return Point(
        lines[0]["knob"],
        lines[0]["settings"],
        float(errors.mean()),
        float(violations.mean()),
        margin(errors),
        margin(violations),
        len(lines),
        float(np.median([line["seconds"] for line in lines])),
    )


def _spent(points: dict[tuple, list]) -> float | None:
    found = [line["spent"]["epsilon"] for lines in points.values() for line in lines]
    return None if None in found else max(found)


def _commits(points: dict[tuple, list]) -> tuple[str, ...]:
    lines = [line for same in points.values() for line in same]
    return tuple(sorted({line.get("versions", {}).get("commit", "") for line in lines} - {""}))


def margin(values: np.ndarray) -> float:
    """Return the half-width of the 95% interval of a mean; 0 for a single value."""
    n = len(values)
    if n < 2:
        return 0.0
    return float(student.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))


def front(points: list[tuple[float, float]]) -> np.ndarray:
    """Return the points (violation, error) that are not beaten in both, by rising violation.

    >>> front([(0.1, 0.2), (0.05, 0.3), (0.2, 0.25)]).tolist()
    [[0.05, 0.3], [0.1, 0.2]]
    """
    kept: list[tuple[float, float]] = []
    for violation, error in sorted(points):
        if not kept or error < kept[-1][1]:
            kept.append((violation, error))
    return np.array(kept).reshape(-1, 2)


def error_at(found: np.ndarray, violation: float, trivial: float) -> float:
    """Return the error of a front at a violation: straight between its points, level beyond the last.

    Below the first point it is straight from (0, trivial), the error of always saying the same.
    """
    xs, ys = np.concatenate([[0.0], found[:, 0]]), np.concatenate([[trivial], found[:, 1]])
    return float(np.interp(violation, xs, ys))


def area(found: np.ndarray, least: float, most: float, trivial: float, grid: int = 400) -> float:
    """Return the mean error of a front over violations from `least` to `most`: lower is better."""
    return float(np.mean([error_at(found, v, trivial) for v in np.linspace(least, most, grid)]))


def trivial_error(lines: list[dict[str, Any]], dataset: str, constraint: str) -> float:
    """Return the error of the constant classifier that violates nothing."""
    shares = [
        line["share_of_ones"] for line in lines if line["dataset"] == dataset and "share_of_ones" in line
    ]
    ones = float(np.mean(shares)) if shares else 0.5
    return 1.0 - ones if constraint == "false_negative_rate" else min(ones, 1.0 - ones)


def own_curves(every: list[Curve]) -> Iterator[Curve]:
    """Yield our curves; training without limits is their last point."""
    for curve in every:
        if curve.method == "ours":
            free = [
                p
                for c in every
                if c.method == "dp_sgd" and (c.dataset, c.epsilon) == (curve.dataset, curve.epsilon)
                for p in c.points
            ]
            yield Curve(curve.dataset, curve.epsilon, "ours", "", (*curve.points, *free), curve.spent)


def published(name: str, dataset: str, epsilon: float | None) -> dict[str, np.ndarray]:
    """Return published points (error, violation) by label, for one panel."""
    with (Path(__file__).parent / "published.toml").open("rb") as file:
        known = tomllib.load(file)["points"]
    found = {
        entry["label"]: np.array(entry["values"])
        for entry in known
        if (entry["experiment"], entry["dataset"], entry["epsilon"]) == (name, dataset, epsilon)
    }
    return {**found, **_fermi_points(name, dataset, epsilon)}


def _fermi_points(name: str, dataset: str, epsilon: float | None) -> dict[str, np.ndarray]:
    if name not in ("parity", "fermi-curves", "equalized-odds"):
        return {}
    kind = "equalized_odds" if name == "equalized-odds" else "demographic_parity"
    found = fermi_rows(dataset, kind, epsilon)
    if not found:
        return {}
    label = "DP-FERMI, published" + (" (doubled Adult)" if dataset == "adult" else "")
    return {label: np.array([(row["error"], row["violation"]) for row in found])}


def fermi_rows(dataset: str, kind: str, epsilon: float | None) -> list[dict[str, float]]:
    """Return DP-FERMI's published points: weight, error, violation and its band; none without the file."""
    folder = data_home() or Path(os.environ.get("RATEWISE_DATA", "."))
    path = folder / "baselines" / "fermi_repo_results.csv"
    if not path.is_file() or epsilon is None:
        return []
    with path.open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["method"], row["dataset"].replace("-", "_"), row["constraint"])
            == ("dp_fermi", dataset, kind)
            and float(row["epsilon"]) == epsilon
        ]
    return [
        {
            "weight": float(row["hyperparameter"].split("=")[1]),
            "error": float(row["test_error"]),
            "violation": float(row["violation"]),
            "low": float(row["violation_lower"]),
            "high": float(row["violation_upper"]),
        }
        for row in rows
    ]
