"""Private decision rules on the scores of existing models, beside Fairlearn's ThresholdOptimizer and private training.

    python -m benchmarks postprocess [--tables adult acs_employment] [--splits 3]

Half of the rows train the model that gives scores: XGBoost without privacy, or DP-EBM with epsilon 1 (learning rate .2). A
quarter is used by the decision rule, with epsilon 1 where it is private, and a quarter judges. Private training
(`RateConstrainedClassifier`, epsilon 1, schema declared) uses the first three quarters. The columns that constraints read
are features of all models. Lines of other tables in benchmarks/results/postprocess.csv are kept.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from benchmarks.problem import Part, Task, split
from ratewise import RateConstrainedClassifier, demographic_parity, postprocess

RESULTS = Path(__file__).resolve().parent / "results" / "postprocess.csv"
HEAD = ("table", "scores", "method", "slack", "split", "error", "gap", "verdict")
TABLES = {"adult": "Adult", "acs_employment": "ACSEmployment"}
SCORES = {"xgboost": "XGBoost, not private", "dp_ebm": "DP-EBM, epsilon 1"}
SLACKS = (0.1, 0.05, 0.02)
EPSILON, DELTA = 1.0, 1e-5
ALONE, PEER = "scores alone", "Fairlearn ThresholdOptimizer, not private, uses the group"
AWARE, BLIND = "ratewise.postprocess, uses the group", "ratewise.postprocess, without the group"
TRAINING = "private training with constraints, without the group"


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Hands scores through: the features are the scores."""

    def fit(self, X: Any = None, y: Any = None) -> Scores:  # noqa: ARG002 - scikit-learn's signature
        """Learn nothing."""
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the scores."""
        second = np.asarray(X, dtype=np.float64)[:, 0]
        return np.stack([1.0 - second, second], axis=1)


def scores_of(name: str, train: Part, parts: tuple[Part, ...], seed: int) -> list[np.ndarray]:
    """Train a model and return its scores of the second class for each part."""
    from benchmarks.peers import external, others

    if name == "xgboost":
        model = others.boosted_trees(train, None, None, DELTA, seed)
    else:
        model = external.ebm(train, None, EPSILON, DELTA, seed, learning_rate=0.2)
    return [np.asarray(model.predict(part)[1], dtype=np.float64)[:, 1] for part in parts]


def rules(part: Part, scores: np.ndarray, judged: np.ndarray, judge: Part, slack: float, seed: int) -> Any:
    """Yield method, predictions and verdict of every decision rule."""
    from fairlearn.postprocessing import ThresholdOptimizer

    column = part.task.column
    peer = ThresholdOptimizer(estimator=Scores().fit(), prefit=True, predict_method="predict_proba", tol=slack).fit(
        scores[:, None], part.y, sensitive_features=part.sensitive[column]
    )
    groups = judge.sensitive[column]
    yield PEER, peer.predict(judged[:, None], sensitive_features=groups, random_state=seed), ""
    for method, aware in ((AWARE, True), (BLIND, False)):
        rule = postprocess(
            scores,
            part.y,
            demographic_parity(column, max_gap=slack),
            sensitive_features=part.sensitive[[column]],
            epsilon=EPSILON,
            delta=DELTA,
            group_aware=aware,
            classes=[0, 1],
            group_values={column: part.table.group_values[column]},
            random_state=seed,
        )
        yield method, rule.predict(judged, judge.sensitive[[column]]), rule.certificate_.verdict


def trained(part: Part, judge: Part, slack: float, seed: int) -> tuple[Any, str]:
    """Return predictions and verdict of a classifier that is trained under the constraint."""
    schema, column = part.table.schema, part.task.column
    model = RateConstrainedClassifier(
        demographic_parity(column, max_gap=slack),
        epsilon=EPSILON,
        delta=DELTA,
        classes=[0, 1],
        group_values={column: part.table.group_values[column]},
        feature_bounds={**schema.feature_bounds, **{k: list(v) for k, v in schema.categories.items()}},
        random_state=seed,
    ).fit(part.frame, part.y, sensitive_features=part.sensitive[[column]])
    return model.predict(judge.frame), model.certificate_.verdict


def one_split(table: str, seed: int) -> list[dict[str, Any]]:
    """Return the results of every method on one split of a table."""
    task = Task(table, "demographic_parity")
    fit, judge = split(task, seed)
    cut = 2 * len(fit.rows) // 3
    train, post = Part(task, fit.table, fit.rows[:cut]), Part(task, fit.table, fit.rows[cut:])
    found: list[dict[str, Any]] = []

    def note(scores: str, method: str, slack: float | str, predicted: Any, verdict: str = "") -> None:
        predicted, first = np.asarray(predicted), judge.groups == 0
        gap = abs(float(predicted[first].mean() - predicted[~first].mean()))
        error = float((predicted != judge.y).mean())
        values = (table, scores, method, slack, seed, f"{error:.5f}", f"{gap:.5f}", verdict)
        found.append(dict(zip(HEAD, values, strict=True)))

    for name in SCORES:
        scores, judged = scores_of(name, train, (post, judge), seed)
        note(name, ALONE, "", (judged > 0.5).astype(int))
        for slack in SLACKS:
            for method, predicted, verdict in rules(post, scores, judged, judge, slack, seed):
                note(name, method, slack, predicted, verdict)
    for slack in SLACKS:
        note("", TRAINING, slack, *trained(fit, judge, slack, seed))
    return found


def read() -> list[dict[str, str]]:
    """Return the lines of the results."""
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def markdown(table: str) -> str:
    """Return the table of the page: error / gap, means over splits."""
    runs = [run for run in read() if run["table"] == table]

    def cell(scores: str, method: str, slack: float | str) -> str:
        own = [r for r in runs if (r["scores"], r["method"], r["slack"]) == (scores, method, str(slack))]
        error, gap = (statistics.fmean(float(run[name]) for run in own) for name in ("error", "gap"))
        return f"{error:.4f} / {gap:.3f}".replace("0.", ".")

    head = f"| {TABLES[table]}: error / gap | no bound | " + " | ".join(f"slack {s:g}" for s in SLACKS)
    lines = [head.replace("0.", ".") + " |", "|---|---|---|---|---|"]
    for scores, words in SCORES.items():
        lines.append(f"| scores of {words} | {cell(scores, ALONE, '')} | | | |")
        for method in (PEER, AWARE, BLIND):
            cells = " | ".join(cell(scores, method, slack) for slack in SLACKS)
            lines.append(f"| {method} | | {cells} |")
    lines.append(f"| {TRAINING} | | " + " | ".join(cell("", TRAINING, slack) for slack in SLACKS) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run splits, write the results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--splits", type=int, default=3)
    given = parser.parse_args()
    kept = [run for run in read() if run["table"] not in given.tables] if RESULTS.exists() else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for table in given.tables:
            for seed in range(given.splits):
                kept += one_split(table, seed)
                print(table, seed, flush=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    for table in given.tables:
        print(markdown(table))


if __name__ == "__main__":
    main()
