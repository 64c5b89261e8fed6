"""Persons with several rows: sampling of ids beside group privacy and row-level privacy, and the cost of a step.

    python -m benchmarks persons [--persons 5000] [--seeds 3] [--results benchmarks/results/persons.csv]

A synthetic population: every person has 1 to 20 rows (uniform) with the person's label and sex and noisy features.
Half of the persons train, the others judge. For each bound m on the rows of a person, at epsilon 1: ids
(`privacy_ids`), group privacy (the first m rows of a person, each row a unit, at `group_budget`), and row-level
privacy, which protects one row only. The clipping norm is the same for all. Error and gap (demographic parity .05) are averages over persons.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.accounting import group_budget
from ratewise.datasets import census_like
from ratewise.estimators.classifier import session_of

RESULTS = Path(__file__).resolve().parent / "results" / "persons.csv"
BOUNDS = (1, 2, 5, 10, 20)
METHODS = ("ids", "group", "row")
MOST = 20
SLACK, EPSILON, DELTA, CLIP = 0.05, 1.0, 1e-5, 3.0


def population(persons: int, seed: int) -> dict[str, Any]:
    """Return features, labels, sex and person of all rows; the rows of a person are together."""
    rng = np.random.default_rng(seed)
    people = census_like(persons, random_state=seed)
    person = np.repeat(np.arange(persons), rng.integers(1, MOST + 1, persons))
    low, high = people.feature_bounds
    noise = np.where(np.arange(len(low)) < 5, 0.1, 0.0) * (high - low)
    X = np.clip(people.X[person] + noise * rng.standard_normal((len(person), len(low))), low, high)
    facts = {"classes": [0, 1], "group_values": {"sex": people.group_values["sex"]}}
    facts["feature_bounds"] = (low, high)
    return {
        "X": X,
        "y": people.y[person],
        "sex": people.sensitive["sex"][person],
        "person": person,
        "facts": facts,
    }


def first_rows(person: Any, most: int) -> Any:
    """Return which rows are among the first `most` of their person."""
    starts = np.searchsorted(person, person)
    return np.arange(len(person)) - starts < most


def fit(data: dict[str, Any], method: str, most: int, rows: Any) -> RateConstrainedClassifier:
    """Train on the given rows."""
    epsilon, delta = (EPSILON, DELTA) if method != "group" else group_budget(EPSILON, DELTA, most)
    rows = rows & first_rows(data["person"], most) if method != "ids" else rows
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=SLACK),
        epsilon=epsilon,
        delta=delta,
        config=TrainingConfig(clip=CLIP),
        rows_per_id=most if method == "ids" else None,
        **data["facts"],
    )
    ids = {"privacy_ids": data["person"][rows]} if method == "ids" else {}
    return model.fit(data["X"][rows], data["y"][rows], sensitive_features={"sex": data["sex"][rows]}, **ids)


def judged(data: dict[str, Any], predicted: Any, rows: Any) -> tuple[float, float]:
    """Return error and gap, every person with weight 1."""
    person = data["person"][rows]
    weights = 1.0 / np.bincount(person)[person]
    female = data["sex"][rows] == "Female"
    error = float(np.average(predicted != data["y"][rows], weights=weights))
    rates = [float(np.average(predicted[part], weights=weights[part])) for part in (female, ~female)]
    return error, abs(rates[0] - rates[1])


def step_seconds(data: dict[str, Any], ids: bool, repeats: int = 40) -> float:
    """Return the median processor time of the sums of a step, with ten rows per person and half of all units."""
    rows = first_rows(data["person"], 10)
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=SLACK),
        epsilon=EPSILON,
        delta=DELTA,
        rows_per_id=10,
        **data["facts"],
    )
    given = {"privacy_ids": data["person"][rows]} if ids else {}
    session = session_of(
        model, data["X"][rows], data["y"][rows], sensitive_features={"sex": data["sex"][rows]}, **given
    )
    session.declare_and_plan()
    session.bound_units()
    session.discover()
    session.prepare()
    session.bind()
    assert session.loop is not None
    parameters, clip = session.loop.optimizer.parameters, session.loop.clip
    times = []
    for sample in session.samples(repeats):
        begin = time.process_time()
        session.engine.sums(sample, parameters, None, clip)
        times.append(time.process_time() - begin)
    return float(np.median(times))


def main() -> None:
    """Write the table and print means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--persons", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines: list[tuple[Any, ...]] = []
    for seed in range(options.seeds):
        data = population(2 * options.persons, seed)
        train = data["person"] < options.persons
        for most in BOUNDS:
            for method in METHODS:
                model = fit(data, method, most, train)
                error, gap = judged(data, model.predict(data["X"][~train]), ~train)
                lines.append((options.persons, seed, most, method, round(error, 5), round(gap, 5)))
    with options.results.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("persons", "seed", "m", "method", "error", "gap"), *lines])
    print("| m | " + " | ".join(f"{method}: error / gap" for method in METHODS) + " |")
    for most in BOUNDS:
        cells = []
        for method in METHODS:
            part = np.array([line[4:] for line in lines if line[2:4] == (most, method)], dtype=float)
            cells.append("{:.4f} / {:.3f}".format(*part.mean(axis=0)))
        print(f"| {most} | " + " | ".join(cells) + " |")
    data = population(options.persons, 0)
    rows, persons = step_seconds(data, ids=False), step_seconds(data, ids=True)
    print(
        f"step with the same expected rows: rows {rows:.4f} s, ids {persons:.4f} s, ratio {persons / rows:.2f}"
    )


if __name__ == "__main__":
    main()
