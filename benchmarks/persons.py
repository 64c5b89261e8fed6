"""Persons with several rows: sampling of ids beside group privacy and row-level privacy, and the cost of a step.

    python -m benchmarks persons [--tables synthetic adult households parkinsons] [--seeds 6] [--results FILE]

Lines of other tables in the file are kept. For each bound m on the rows of a person, at epsilon 1: ids (`privacy_ids`),
group privacy (the first m rows of a person, each row a unit, at `group_budget`), and row-level privacy, which protects one
row only. Error and gap (demographic parity .05) are averages over the persons that
 were not trained on; the method "constant" predicts the most common class. The tables:

synthetic
    5,000 persons to train and 5,000 to judge; each has 1 to 20 rows (uniform) with the person's label and sex and noisy
    features.
adult
    Adult with artificial ids: in the order of the file, the next 1, 2, ..., 20, 1, 2, ... rows are one id. Three quarters
    of the ids train.
households
    ACSEmployment with its real households of 1 to 15 persons. The file has no household number, but keeps the order of the
    survey: a household begins at its reference person (RELP 0), and every person in group quarters (RELP 16 and 17) is one
    by itself. 10,000 random households train, 10,000 others judge.
parkinsons
    The recordings of 42 subjects, 31 of whom train: too few for any useful model at epsilon 1.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier, RatewiseError, demographic_parity
from ratewise.accounting import group_budget
from ratewise.datasets import census_like, load_acs_employment, load_adult, load_parkinsons
from ratewise.estimators.classifier import session_of

RESULTS = Path(__file__).resolve().parent / "results" / "persons.csv"
HEAD = ("table", "persons", "seed", "m", "method", "error", "gap")
BOUNDS = {
    "synthetic": (1, 2, 5, 10, 20),
    "adult": (1, 2, 5, 10, 20),
    "households": (1, 2, 5, 15),
    "parkinsons": (1, 5, 20, 140),
}
METHODS = ("ids", "group", "row")
MOST = 20
SLACK, EPSILON, DELTA = 0.05, 1.0, 1e-5


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
        "train": person < persons // 2,
        "facts": facts,
    }


def artificial_ids(rows: int) -> Any:
    """Return the id of each row: 1, 2, ..., 20, 1, 2, ... rows each."""
    sizes = 1 + np.arange(rows) % MOST
    return np.repeat(np.arange(rows), sizes)[:rows]


def households(relation: Any) -> Any:
    """Return the household of each person of a survey, from the relation to the reference person, in file order."""
    return np.cumsum((relation == 0) | (relation >= 16)) - 1


def real_table(name: str, seed: int) -> dict[str, Any]:
    """Return a public table as `population` does, with random ids for training."""
    table = {"adult": load_adult, "households": load_acs_employment, "parkinsons": load_parkinsons}[name]()
    ids = {
        "adult": lambda: artificial_ids(len(table)),
        "households": lambda: households(table.frame["RELP"].to_numpy()),
        "parkinsons": lambda: np.unique(table.frame["subject#"], return_inverse=True)[1],
    }[name]()
    order = np.random.default_rng(seed).permutation(ids.max() + 1)
    chosen = order[:20_000] if name == "households" else order
    place = np.full(len(order), -1)
    place[chosen] = np.arange(len(chosen))
    person = place[ids]
    rows = np.flatnonzero(person >= 0)
    rows = rows[np.argsort(person[rows], kind="stable")]
    schema = table.schema
    return {
        "X": table.frame[list(schema.columns)].iloc[rows],
        "y": np.asarray(table.y)[rows],
        "sex": np.asarray(table.sensitive["sex"])[rows],
        "person": person[rows],
        "train": person[rows] < len(chosen) * (2 if name == "households" else 3) // 4,
        "facts": {
            "classes": table.classes,
            "group_values": {"sex": table.group_values["sex"]},
            "feature_bounds": {
                **{each: tuple(pair) for each, pair in schema.feature_bounds.items()},
                **{each: list(values) for each, values in schema.categories.items()},
            },
        },
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
        rows_per_id=most if method == "ids" else None,
        **data["facts"],
    )
    ids = {"privacy_ids": data["person"][rows]} if method == "ids" else {}
    return model.fit(data["X"][rows], data["y"][rows], sensitive_features={"sex": data["sex"][rows]}, **ids)


def measured(data: dict[str, Any], method: str, most: int) -> tuple[float, float]:
    """Return error and gap on the persons that were not trained on; NaN if the training is refused."""
    train = data["train"]
    if method == "constant":
        values, counts = np.unique(data["y"][train], return_counts=True)
        return judged(data, np.full(int((~train).sum()), values[counts.argmax()]), ~train)
    try:
        model = fit(data, method, most, train)
    except RatewiseError:
        return np.nan, np.nan
    return judged(data, model.predict(data["X"][~train]), ~train)


def judged(data: dict[str, Any], predicted: Any, rows: Any) -> tuple[float, float]:
    """Return error and gap, every person with weight 1."""
    person = data["person"][rows]
    weights = 1.0 / np.bincount(person)[person]
    female = np.char.lower(data["sex"][rows].astype(str)) == "female"
    error = float(np.average(predicted != data["y"][rows], weights=weights))
    rates = [float(np.average(predicted[part], weights=weights[part])) for part in (female, ~female)]
    return error, abs(rates[0] - rates[1])


def step_seconds(data: dict[str, Any], ids: bool, repeats: int = 40) -> float:
    """Return the median processor time of the sums of a step, with ten rows per person and half of all units."""
    rows = first_rows(data["person"], 10)
    model = RateConstrainedClassifier(
        demographic_parity("sex", max_gap=SLACK), epsilon=EPSILON, delta=DELTA, rows_per_id=10, **data["facts"]
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
    parser.add_argument("--tables", nargs="+", choices=list(BOUNDS), default=list(BOUNDS))
    parser.add_argument("--persons", type=int, default=5000, help="of the synthetic table")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for table in options.tables:
        lines: list[tuple[Any, ...]] = []
        for seed in range(options.seeds):
            data = population(2 * options.persons, seed) if table == "synthetic" else real_table(table, seed)
            persons = len(np.unique(data["person"][data["train"]]))
            for most, method in [(0, "constant"), *((m, name) for m in BOUNDS[table] for name in METHODS)]:
                error, gap = measured(data, method, most)
                lines.append((table, persons, seed, most, method, round(error, 5), round(gap, 5)))
        write(options.results, table, lines)
        print(markdown(options.results, table))
    if "synthetic" in options.tables:
        data = population(options.persons, 0)
        rows, ids = step_seconds(data, ids=False), step_seconds(data, ids=True)
        print(f"step with the same expected rows: rows {rows:.4f} s, ids {ids:.4f} s, ratio {ids / rows:.2f}")


def write(path: Path, table: str, lines: list[tuple[Any, ...]]) -> None:
    """Replace the lines of a table in the file of results."""
    kept = [] if not path.exists() else [tuple(one.values()) for one in read(path) if one["table"] != table]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *kept, *lines])


def read(path: Path = RESULTS) -> list[dict[str, str]]:
    """Return the lines of the file of results."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def markdown(path: Path, table: str, bounds: tuple[int, ...] = ()) -> str:
    """Return the means over seeds of a table, "error / gap" by bound and method."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in read(path):
        if one["table"] == table:
            found.setdefault((one["m"], one["method"]), []).append((float(one["error"]), float(one["gap"])))
    lines = []
    for most in bounds or BOUNDS[table]:
        means = [np.mean(found[str(most), method], axis=0) for method in METHODS]
        cells = [f"{error:.4f} / {gap:.3f}".replace("0.", ".") for error, gap in means]
        lines.append(f"| {table} | {most} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
