"""A private search of 20 configurations against the defaults, at one total budget.

    python benchmarks/selection.py run [--splits 10] [--methods defaults geometric ...]
    python benchmarks/selection.py page       # the table in docs/selection.md from the recorded runs

Adult (each person once, a quarter held out), demographic parity by sex within 0.05, total epsilon 1, delta
1e-5. Every run is one line of benchmarks/results/selection.jsonl; finished runs are not repeated. Data come
from $RATEWISE_DATA (default: ../shared/data beside the repository). Test rows are used for nothing but the
numbers shown. The methods:

    defaults      RateConstrainedClassifier at epsilon 1
    geometric     PrivateSearch, 20 trials on average, total epsilon 1
    logarithmic   the same with the law that costs less and more often makes few trials
    trial-alone   the defaults at the epsilon that one trial of `geometric` has: what searching takes away
    unpaid        the geometric search with trials at epsilon 1 each, as if searching were free; its true
                  total epsilon is shown
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ratewise import RateConstrainedClassifier, datasets, demographic_parity
from ratewise.accounting import SelectionEvent, calibrate, epsilon
from ratewise.accounting.events import GaussianEvent
from ratewise.selection import PrivateSearch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "selection.jsonl"
PAGE = ROOT / "docs" / "selection.md"
MARK = "<!-- table of benchmarks/selection.py -->"
SLACK, EPSILON, DELTA, TRIALS = 0.05, 1.0, 1e-5, 20
CONFIGURATIONS = {
    "learning_rate": [0.5, 1.0, 2.0, 4.0, 8.0],
    "row_norm": [5.0, None],
    "momentum": [0.5, 0.9],
}
METHODS = ("defaults", "geometric", "logarithmic", "trial-alone", "unpaid")


def split(seed: int) -> tuple[Any, Any, Any]:
    """Return the data, and which rows train and which test."""
    data = datasets.load_adult(os.environ.get("RATEWISE_DATA", ROOT.parent / "shared" / "data"))
    order = np.random.default_rng(1000 + seed).permutation(len(data))
    cut = len(data) // 4
    return data, order[cut:], order[:cut]


def base(data: Any, **options: Any) -> RateConstrainedClassifier:
    said = {"epsilon": EPSILON, "delta": DELTA, **options}
    return RateConstrainedClassifier(
        demographic_parity("sex", max_gap=SLACK),
        classes=data.schema.classes,
        group_values={"sex": data.schema.sensitive["sex"]},
        feature_bounds=data.schema.feature_bounds,
        **said,
    )


def search(data: Any, seed: int, total: float, law: str) -> PrivateSearch:
    return PrivateSearch(
        base(data),
        CONFIGURATIONS,
        epsilon=total,
        delta=DELTA,
        mean_trials=TRIALS,
        trials=law,
        random_state=seed,
    )


def total_if_trials_had(trial: float, data: Any, rows: Any) -> float:
    """Return the epsilon of a geometric search whose trials have the given epsilon each."""
    share, delta = 0.05, DELTA / TRIALS
    noise = calibrate(trial, delta, 1.0, 1, histogram=None).gradient_noise / share**0.5
    score = GaussianEvent(noise)
    model = base(data, epsilon=trial, delta=delta, besides=(score,))
    events = model.planned_events(data.X[rows], data.y[rows], sensitive_features=data.sensitive.iloc[rows])
    return epsilon(SelectionEvent((score, *events), TRIALS, 1.0), DELTA)


def trained(method: str, data: Any, rows: Any, seed: int, trial: float) -> Any:
    if method == "defaults":
        model: Any = base(data, random_state=seed)
    elif method == "trial-alone":
        model = base(data, epsilon=trial, delta=DELTA / TRIALS, random_state=seed)
    elif method == "unpaid":
        model = search(data, seed, total_if_trials_had(EPSILON, data, rows) * 1.002, "geometric")
    else:
        model = search(data, seed, EPSILON, method)
    return model.fit(data.X[rows], data.y[rows], sensitive_features=data.sensitive.iloc[rows])


def measured(method: str, seed: int, trial: float) -> dict[str, Any]:
    data, train, test = split(seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = trained(method, data, train, seed, trial)
    guess = model.predict(data.X[test])
    groups = np.asarray(data.sensitive["sex"])[test]
    women, men = (float(guess[groups == name].mean()) for name in ("Female", "Male"))
    return {
        "method": method,
        "seed": seed,
        "epsilon": model.privacy_.epsilon,
        "trial_epsilon": getattr(model, "trial_epsilon_", model.get_params()["epsilon"]),
        "error": float(np.mean(guess != data.y[test])),
        "gap": abs(women - men),
        "chosen": getattr(model, "best_params_", {}),
        "seconds": time.perf_counter() - start,
    }


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(splits: int, methods: list[str]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in range(splits):
        for method in methods:
            runs = recorded()
            if any((r["method"], r["seed"]) == (method, seed) for r in runs):
                continue
            trial = next((r["trial_epsilon"] for r in runs if r["method"] == "geometric"), EPSILON)
            found = measured(method, seed, trial)
            with RESULTS.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(found, flush=True)


def spread(values: Any) -> str:
    """Return the mean and its standard error, with the smallest and largest."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.4f} ± {error:.4f} ({values.min():.4f} to {values.max():.4f})"


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| method | splits | true total epsilon | epsilon of a trial | test error | error, less that of the "
        "defaults on the same splits | test gap |",
        "|---|---|---|---|---|---|---|",
    ]
    usual = {r["seed"]: r["error"] for r in runs if r["method"] == "defaults"}
    for method in METHODS:
        mine = [r for r in runs if r["method"] == method]
        if not mine:
            continue
        error, gap = (np.array([r[name] for r in mine]) for name in ("error", "gap"))
        apart = np.array([r["error"] - usual[r["seed"]] for r in mine if r["seed"] in usual])
        lines.append(
            f"| {method} | {len(mine)} | {np.mean([r['epsilon'] for r in mine]):.3f} | "
            f"{np.mean([r['trial_epsilon'] for r in mine]):.3f} | {spread(error)} | {spread(apart)} | "
            f"{spread(gap)} |"
        )
    return "\n".join(lines)


def page() -> None:
    before, _, rest = PAGE.read_text().partition(MARK)
    _, _, after = rest.partition(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table(recorded())}\n{MARK}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    asked = parser.parse_args()
    if asked.action == "run":
        run(asked.splits, asked.methods)
    else:
        page()


if __name__ == "__main__":
    main()
