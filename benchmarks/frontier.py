"""What can a linear classifier do at all? Error against the gap between groups, without privacy.

    python benchmarks/frontier.py run [--only adult-doubled parkinsons] [--splits authors fermi 0 1 2]
    python benchmarks/frontier.py ours [...]  # the defaults at epsilon 1 and without privacy, same splits
    python benchmarks/frontier.py page        # docs/frontier.md and its picture from the recorded runs

Every line of benchmarks/results/frontier.jsonl is one sweep or one fit; finished ones are not repeated. Data
come from $RATEWISE_DATA (default: ../shared/data beside the repository). Any table with two classes and a
sensitive column of two values can be added to SETS.

Splits are those of benchmarks/defaults.py by number, and two by name: `authors` is the one split of the
published RaCO-DP configurations (three quarters drawn by pandas with numpy's default generator, seed 0),
`fermi` that of the published DP-FERMI runs (seed 100). How models are found:
benchmarks/exact.py. For every limit on the gap three numbers are kept of each sweep:

- train: least error on training rows among models whose gap on training rows is within the limit;
- honest: error and gap on test rows of that very model;
- hindsight: least error on test rows among models whose gap on TEST rows is within the limit. Whoever picks
  without looking at test rows does worse: a bound that favours the reader.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import exact  # noqa: E402
from benchmarks.defaults import defaults, split, table  # noqa: E402
from ratewise import demographic_parity  # noqa: E402
from ratewise.features import Features  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "frontier.jsonl"
GRID = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.12, 0.15, 0.18, 0.20)
FRACTIONS = np.array([1.0, 0.75, 0.5, 0.25, 0.0, -0.25, -0.5])
PRICES = np.array([0.0, 0.03, 0.06, 0.09, 0.12, 0.15, 0.18, 0.21, 0.24, 0.27])
MORE = np.array([0.30, 0.33, 0.36, 0.40])  # on few rows, where test rows are far from training rows
STEEPNESS = (1.0, 3.0, 10.0, 30.0)
MANY = 20_000  # rows from which on a sweep is kept short
PENALTIES = (1e-5, 1e-3)
PUBLISHED_RUNS = 20


@dataclass(frozen=True)
class Set:
    """A table, its groups, the slacks to ask of the defaults, and published points (error, gap)."""

    table: str
    column: str
    slacks: tuple[float, ...]
    published: tuple[tuple[float, float], ...] = ()
    raw: tuple[str, ...] = ()  # columns that the published runs used and the schema leaves out

    @property
    def limits(self) -> list[float]:
        """Gaps to report: a grid, and the published ones."""
        return sorted({*GRID, *(gap for _, gap in self.published)})


def published(dataset: str) -> tuple[tuple[float, float], ...]:
    """Return the points of RaCO-DP at epsilon 1, as listed with the suite."""
    import tomllib

    listed = tomllib.loads((ROOT / "benchmarks" / "suite" / "published.toml").read_text())["points"]
    chosen = [each for each in listed if (each["experiment"], each["dataset"]) == ("parity", dataset)]
    return tuple((error, gap) for each in chosen for error, gap in each["values"])


SETS = {
    "adult-doubled": Set(
        "adult_doubled", "sex", (0.005, 0.01, 0.05, 0.10, 0.15, 0.20), published("adult"), ("fnlwgt",)
    ),
    "parkinsons": Set(
        "parkinsons", "sex", (0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06), published("parkinsons")
    ),
    "adult": Set("adult", "sex", (0.01, 0.05, 0.10, 0.15, 0.20), (), ("fnlwgt",)),
    "credit-card": Set("credit_card", "sex", (0.005, 0.01, 0.02)),
}  # fmt: skip


def rows_of(n: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test rows of a split by number or name."""
    if name not in ("authors", "fermi"):
        return split(n, int(name))
    import pandas as pd

    seed = np.random.default_rng(0) if name == "authors" else 100
    train = pd.RangeIndex(n).to_frame().sample(frac=0.75, random_state=seed).index.to_numpy()
    return train, np.setdiff1d(np.arange(n), train)


def as_published(spec: Set, data: Any, train: np.ndarray) -> Any:
    """Return raw numbers, not cut off, standardised by raw means and deviations; categories 0 and 1."""
    numbers = [*data.schema.numbers, *spec.raw]
    found = data.frame[numbers].to_numpy(dtype=np.float64)
    mean, deviation = found[train].mean(axis=0), found[train].std(axis=0)
    found = (found - mean) / np.where(deviation > 0, deviation, 1.0)
    hot = data.X[:, len(data.schema.numbers) :].astype(np.float64)
    return scipy.sparse.csr_array(np.hstack([found, hot])) if hot.shape[1] else found


def as_ours(spec: Set, data: Any, train: np.ndarray) -> np.ndarray:
    """Return features as the defaults prepare them, without noise: cut off, standardised, rows shrunk."""
    shape = {"steps": 1, "curves": False, "tails": None}
    model = defaults(demographic_parity(spec.column, max_gap=0.1), data, None, 0, **shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X[train], data.y[train], sensitive_features=data.sensitive.iloc[train])
    features = Features(data.X, row_norm=model._model.row_norm, scaling=model._model.scaling)
    found = np.empty(data.X.shape)
    for piece in features.blocks(np.arange(len(data.y))):
        block, factor, _ = features.gather(piece)
        found[piece] = block if factor is None else block * factor[:, None]
    return found


FEATURES = {"published": as_published, "ours": as_ours}


def sides(name: str, features: str, which: str) -> tuple[exact.Rows, exact.Rows]:
    """Return training and test rows of a split."""
    spec = SETS[name]
    data = table(spec.table)
    train, test = rows_of(len(data.y), which)
    X = FEATURES[features](spec, data, train)
    y = np.asarray(data.y) == data.classes[1]
    first = data.sensitive[spec.column].to_numpy() == data.group_values[spec.column][0]
    return exact.Rows(X[train], y[train], first[train]), exact.Rows(X[test], y[test], first[test])


# ------------------------------------------------------------------------------------------- the sweeps


def prices(train: exact.Rows) -> np.ndarray:
    """Return the prices of a gap to sweep."""
    return PRICES if len(train) >= MANY else np.concatenate([PRICES, MORE])


def convex(train: exact.Rows, loss: str) -> tuple[list[np.ndarray], float]:
    """Return the models of both convex families, and the largest slope at which any of them stopped."""
    found: list[exact.Solution] = []
    for l2 in PENALTIES:
        free = exact.solve(train, exact.LOSSES[loss], l2)
        side = np.sign(train.measure(free.model)[1]) or 1.0
        found += exact.covariance_path(train, exact.LOSSES[loss], l2, FRACTIONS)
        found += exact.cost_path(train, exact.LOSSES[loss], l2, side * prices(train))
    return [each.model for each in found], max(each.gradient for each in found)


def searched(
    train: exact.Rows, starts: list[np.ndarray], limits: list[float], aims: list[float]
) -> list[np.ndarray]:
    """Return models found on error and gap themselves, from the logistic cost path on.

    The last descent takes a while: on many rows it is made for the limits aimed at only.
    """
    random = np.random.default_rng(0)
    side = np.sign(train.measure(starts[0])[1]) or 1.0
    found = [
        exact.anneal(train, start, side * price, STEEPNESS)
        for start, price in zip(starts, prices(train), strict=True)
    ]
    within = least(train, found, limits)
    passes = 3 if len(train) < MANY else 1
    for limit in aims if len(train) >= MANY and aims else limits:
        start = within[limits.index(limit)][1]
        if start is not None:
            found.append(exact.descend(train, start, limit, passes=passes, random=random))
    return found


def least(rows: exact.Rows, models: list[np.ndarray], limits: list[float]) -> list[tuple[float, Any]]:
    """Return, for each limit, the least error over all models and intercepts within it, and the model."""
    best: list[tuple[float, Any]] = [(np.inf, None)] * len(limits)
    for model in models:
        shift, error, gap = exact.thresholds(rows, model)
        for place, limit in enumerate(limits):
            inside = np.where(np.abs(gap) <= limit, error, np.inf)
            at = int(inside.argmin())
            if inside[at] < best[place][0]:
                best[place] = float(inside[at]), np.append(model[:-1], model[-1] + shift[at])
    return best


def sweep(name: str, features: str, which: str) -> Iterator[dict[str, Any]]:
    """Yield one record for each way of finding models."""
    train, test = sides(name, features, which)
    limits = SETS[name].limits
    by_method, slopes = {}, {}
    for loss in exact.LOSSES:
        by_method[loss], slopes[loss] = convex(train, loss)
    starts = by_method["logistic"][len(FRACTIONS) : len(FRACTIONS) + len(prices(train))]
    by_method["0-1 search"] = searched(train, starts, limits, [gap for _, gap in SETS[name].published])
    for method, models in by_method.items():
        chosen = least(train, models, limits)
        honest = [test.measure(model) if model is not None else (np.nan, np.nan) for _, model in chosen]
        yield {
            "kind": "sweep", "data": name, "split": which, "features": features, "method": method,
            "models": len(models), "slope": slopes.get(method), "limits": limits,
            "train": [round(error, 5) for error, _ in chosen],
            "honest": [[round(error, 5), round(abs(gap), 5)] for error, gap in honest],
            "hindsight": [round(error, 5) for error, _ in least(test, models, limits)],
        }  # fmt: skip


def fit_ours(name: str, which: str, slack: float, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Return what the defaults reach on a split, with the randomness of that seed."""
    spec = SETS[name]
    data = table(spec.table)
    train, test = rows_of(len(data.y), which)
    model = defaults(demographic_parity(spec.column, max_gap=slack), data, epsilon, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X[train], data.y[train], sensitive_features=data.sensitive.iloc[train])
    found: dict[str, Any] = {
        "kind": "ours", "data": name, "split": which, "slack": slack, "epsilon": epsilon,
        "seed": seed,
    }  # fmt: skip
    first = data.sensitive[spec.column].to_numpy() == data.group_values[spec.column][0]
    for side, rows in (("train", train), ("test", test)):
        predicted = model.predict(data.X[rows])
        found[f"{side}_error"] = round(float(np.mean(predicted != data.y[rows])), 5)
        ones, inside = predicted == data.classes[1], first[rows]
        found[f"{side}_gap"] = round(abs(float(ones[inside].mean() - ones[~inside].mean())), 5)
    return found


# ------------------------------------------------------------------------------------------- recording


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        record.get(name) for name in ("kind", "data", "split", "features", "slack", "epsilon", "seed")
    )


def fits(name: str, which: str) -> Iterator[tuple[float, float | None, int]]:
    """Yield slack, epsilon and seed: on a split that has a name as many private fits as the published."""
    for slack in SETS[name].slacks:
        for seed in (int(which),) if which.isdigit() else range(PUBLISHED_RUNS):
            yield slack, 1.0, seed
        yield slack, None, 0


def jobs(options: argparse.Namespace) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for name in options.only:
        for which in options.splits:
            if options.action == "run":
                for features in options.features:
                    yield ("sweep", name, which, features, None, None, None), (sweep, name, features, which)
            else:
                for setting in fits(name, which):
                    yield ("ours", name, which, None, *setting), (fit_ours, name, which, *setting)


def run(options: argparse.Namespace) -> None:
    done = {_key(record) for record in recorded(options.results)}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for key, (work, *arguments) in jobs(options):
        if key in done:
            continue
        begin = time.perf_counter()
        found = work(*arguments)
        records = [found] if isinstance(found, dict) else list(found)
        with options.results.open("a") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
        print(*key, f"{time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "ours", "page"))
    parser.add_argument("--only", nargs="*", choices=list(SETS), default=["parkinsons", "adult-doubled"])
    parser.add_argument("--splits", nargs="*", default=["authors", "fermi", "0", "1", "2"])
    parser.add_argument("--features", nargs="*", choices=list(FEATURES), default=list(FEATURES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.action == "page":
        from benchmarks.frontier_page import write

        write(recorded(options.results), SETS, ROOT / "docs")
    else:
        run(options)


if __name__ == "__main__":
    main()
