"""Rules of the defaults, judged on held-out training rows alone: counts, tight limits, bounds that are found.

    python benchmarks/held_out.py run [--workers 2]
    python benchmarks/held_out.py page        # docs/held-out.md from the recorded runs

Training parts of benchmarks/defaults.py, splits 700 and up, are split again: three quarters train (or as many
rows as said), others judge. No test row of a split is read in it. Runs are lines of
benchmarks/results/held-out.jsonl.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import ratewise.defaults
from defaults import ROOT, TASKS, gaps, recorded, run_missing, run_or_page, split, table, usual_plan
from defaults import defaults as fresh

RESULTS = ROOT / "benchmarks" / "results" / "held-out.jsonl"
FIRST = 700
DEFAULTS = "defaults"
NEVER = {"tight": lambda *_: False}

# task, slack, epsilon, form of the features, rows to train on (0: three quarters), splits
Place = tuple[str, float, float, str, int, int]
TIGHT: tuple[Place, ...] = (
    ("parkinsons-dp", 0.001, 1.33, "declared", 0, 20),
    ("parkinsons-dp", 0.005, 1.33, "declared", 0, 20),
    ("parkinsons-dp", 0.001, 1.0, "declared", 0, 20),
    ("parkinsons-dp", 0.005, 1.0, "declared", 0, 20),
    ("adult-dp", 0.002, 1.0, "declared", 10_000, 10),
    ("credit-dp", 0.002, 1.0, "declared", 10_000, 10),
    ("heart-dp", 0.001, 1.0, "declared", 10_000, 10),
)
TIGHT_SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "a quarter for histograms": {"histogram_share": 0.25},
    "multipliers slow down": {"dual": {"schedule": "linear"}},
    "numbers bend": {"dual": {"schedule": "constant"}, "rules": NEVER},
    "none of the three": {"histogram_share": 0.25, "rules": NEVER},
}
COUNTS: tuple[Place, ...] = (
    ("parkinsons-dp", 0.02, 0.5, "declared", 0, 40),
    ("parkinsons-dp", 0.02, 1.0, "declared", 0, 40),
    ("parkinsons-dp", 0.02, 3.0, "declared", 0, 40),
    ("adult-dp", 0.1, 0.1, "declared", 0, 20),
    ("adult-dp", 0.03, 0.3, "declared", 0, 20),
    ("adult-dp", 0.1, 1.0, "declared", 0, 10),
    ("credit-dp", 0.01, 1.0, "declared", 0, 20),
    ("credit-eo", 0.02, 1.0, "declared", 0, 20),
    ("credit-eo", 0.04, 1.0, "declared", 0, 20),
    ("credit-eo", 0.05, 1.0, "declared", 0, 20),
    ("credit-eo", 0.08, 0.5, "declared", 0, 20),
)
COUNTS_SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "counts as released": {"dual": {"known_totals": False}},
    "no evidence over time": {"dual": {"patience": 0}},
}
FORMS = ("as they come", "standardised", "between 0 and 1")
FOUND: tuple[Place, ...] = (
    *(("adult-dp", 0.1, 1.0, form, 0, 6) for form in FORMS),
    *(("credit-dp", 0.01, 1.0, form, 0, 6) for form in FORMS),
    *(("parkinsons-dp", 0.02, 1.0, form, 0, 12) for form in FORMS),
    *(("employment-dp", 0.1, 1.0, form, 0, 1) for form in FORMS[::2]),
    *(("heart-dp", 0.01, 1.0, form, 0, 1) for form in FORMS[::2]),
    ("adult-dp", 0.1, 0.5, "as they come", 0, 6),
    ("adult-dp", 0.1, 3.0, "as they come", 0, 6),
    ("credit-dp", 0.01, 0.3, "as they come", 0, 6),
    ("parkinsons-dp", 0.02, 3.0, "as they come", 0, 12),
)
FOUND_SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULTS: {"feature_bounds": None},
    "nothing is looked for": {"feature_bounds": None, "tails": None},
    "declared bounds": {},
}
STUDIED = ((COUNTS, COUNTS_SETTINGS), (TIGHT, TIGHT_SETTINGS), (FOUND, FOUND_SETTINGS))


def prepared(X: np.ndarray, form: str) -> np.ndarray:
    """Return features as a user may hand them over, by all rows: the question is what becomes of them."""
    if form == "standardised":
        return np.asarray((X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9))
    if form == "between 0 and 1":
        return np.asarray((X - X.min(axis=0)) / np.maximum(np.ptp(X, axis=0), 1e-9))
    return X


def measure(*job: Any) -> dict[str, Any]:
    """Train on some of the training rows and judge on others."""
    task, slack, epsilon, form, n_rows, seed, setting = job
    data, constraint = table(TASKS[task].table), TASKS[task].family(slack)
    rows = np.random.default_rng(2000 + seed).permutation(split(len(data.y), seed)[0])
    count = n_rows or len(rows) - len(rows) // 4
    training, judging = rows[:count], rows[count : count + 50_000]
    declared = TIGHT_SETTINGS | COUNTS_SETTINGS
    changes = dict((declared if form == "declared" else FOUND_SETTINGS)[setting])
    if "dual" in changes:
        changes["dual"] = replace(usual_plan(constraint, data, count).dual, **changes["dual"])
    rules = changes.pop("rules", {})
    X = data.X if setting == "declared bounds" else prepared(data.X, form)
    with warnings.catch_warnings(), patch.dict(vars(ratewise.defaults), rules):
        warnings.simplefilter("ignore")
        model = fresh(constraint, data, epsilon, seed).set_params(**changes)
        model.fit(X[training], data.y[training], sensitive_features=data.sensitive.iloc[training])
    found = dict(zip(("task", "slack", "epsilon", "form", "rows", "seed", "setting"), job, strict=True))
    doubted = set() if form == "declared" else {doubt.constraint for doubt in model.doubts_}
    found["error"] = float(np.mean(model.predict(X[judging]) != data.y[judging]))
    for name, part in (("train", training), ("held", judging)):
        measured = gaps(name, constraint, data, part, model.predict(X[part]), doubted, slack)
        found[f"{name}_gap"] = measured[f"{name}_gap"]
    return found


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    names = ("task", "slack", "epsilon", "form", "rows", "seed", "setting")
    return tuple(record[name] for name in names)


def run(workers: int) -> None:
    done = {key(record) for record in recorded(RESULTS)}
    every = [
        (*place, FIRST + number, name)
        for places, settings in STUDIED
        for *place, splits in places
        for number in range(splits)
        for name in settings
    ]
    run_missing(measure, [job for job in every if job not in done], RESULTS, workers)


Records = dict[tuple[Any, ...], dict[str, Any]]


def values(records: Records, place: Place, setting: str, name: str) -> np.ndarray:
    *where, splits = place
    return np.array([records[(*where, FIRST + k, setting)][name] for k in range(splits)])


def beside(one: np.ndarray, other: np.ndarray) -> str:
    """Return the mean of the differences, with its standard error if there is one."""
    apart = one - other
    error = f" ± {apart.std(ddof=1) / np.sqrt(len(apart)):.4f}" if len(apart) > 1 else ""
    return f"{apart.mean():+.4f}{error}"


def tables(records: Records, places: Any, settings: Any, gap: str) -> list[str]:
    """Return a row for each place and setting other than the defaults."""
    lines = []
    for place in places:
        task, slack, epsilon, form, n_rows, splits = place
        about = f"{n_rows:,} rows" if n_rows else "" if form == "declared" else form
        usual = {name: values(records, place, DEFAULTS, name) for name in ("error", gap)}
        for setting in settings:
            if setting == DEFAULTS:
                continue
            other = {name: values(records, place, setting, name) for name in usual}
            lines.append(
                f"| {task} {slack:g}, ε {epsilon:g} | {about} | {splits} | {setting} | "
                f"{usual['error'].mean():.4f} | {beside(other['error'], usual['error'])} | "
                f"{usual[gap].mean():.4f} | {beside(other[gap], usual[gap])} |"
            )
    return lines


def spreads(records: Records) -> list[str]:
    """Return the deviation of the gap over splits, with counts put right and as released."""
    lines = [
        "| task | splits | deviation of the train gap by default | with counts as released |",
        "|---|---|---|---|",
    ]
    for place in COUNTS:
        task, slack, epsilon, *_, splits = place
        put_right, released = (
            values(records, place, name, "train_gap").std(ddof=1) for name in (DEFAULTS, "counts as released")
        )
        lines.append(f"| {task} {slack:g}, ε {epsilon:g} | {splits} | {put_right:.4f} | {released:.4f} |")
    return lines


def page() -> None:
    records = {key(record): record for record in recorded(RESULTS)}
    rule = "|" + "---|" * 8
    lines = [
        _HEAD,
        _COUNTS,
        "| task | rows | splits | with | error by default | change | train gap by default | change |",
        rule,
        *tables(records, COUNTS, COUNTS_SETTINGS, "train_gap"),
        "",
        *spreads(records),
        "",
        _TIGHT,
        "| task | rows | splits | with | error by default | change | train gap by default | change |",
        rule,
        *tables(records, TIGHT, TIGHT_SETTINGS, "train_gap"),
        "",
        _FOUND,
        "| task | features | splits | with | error by default | change | gap by default | change |",
        rule,
        *tables(records, FOUND, FOUND_SETTINGS, "held_gap"),
    ]
    Path(ROOT / "docs" / "held-out.md").write_text("\n".join(lines) + "\n")


_HEAD = """# Rules, judged on held-out rows

Written by `python benchmarks/held_out.py page` from `benchmarks/results/held-out.jsonl`. Training parts of
the [benchmark of the defaults](defaults.md), splits 700 and up, are split again: three quarters train, or as
many rows as said, and others judge. The test rows of a split are not read in it. Each row changes something
against the defaults; a positive change of error means that the defaults are better, with the standard error
over splits.
"""
_COUNTS = """## Counts beside totals, and belief

Every row is predicted one class, and how many rows a cell has is soon known well, so each released histogram
is put right by that (`ratewise.counts`). "Counts as released" leaves it out. Errors of noisy limits come to
be believed on the evidence of many steps, unless the limit looks kept (`ratewise.evidence`); "no evidence
over time" leaves that out. Counts beside totals were tried on splits 900 and up, as they are; so was how far
below its bound a limit looks kept (0, 0.5, 1, 1.4 and 2 deviations, and belief that grows only above the
bound), together with made-up people of three groups and three classes, whose odds are held less the more
limits are left alone: beyond 0.1 by 0.004 at 2 deviations (accuracy 0.531), 0.011 at 1.4 (0.533), 0.016 if
belief grows only above (0.535). The gap is that on the rows that were trained on, and below is how far it
spreads from fit to fit.
"""
_TIGHT = """## Limits tighter than noise

Where a limit on two groups is tighter than the noise on its rates, and gradients leave room for it
(`ratewise.defaults.tight`), three things are done: histograms get up to half of the budget, multipliers keep
their pace to the end, and numbers do not bend. Here each is taken back, then all. The gap is the largest over
the limits on the rows that were trained on, which is what can be held. Tables other than Parkinsons are cut
to so few rows that the rule acts; epsilon 1.33 on three quarters of the rows is about what 1 is on all.

Pace and bends were found on rows held out of the training rows of the authors' split of Parkinsons alone
(48 fits each): there they bring the deviation of the gap from run to run from 0.0106 to 0.0035, at 0.0018
less error, before counts were put right by totals. On the splits here, with them, the share is what helps for
sure, at epsilon 1.33; the three together bring the gap from 0.0083 to 0.0050 at a slack of 0.001 there, and
change next to nothing at 0.005, at epsilon 1 and on other tables. For odds
(Credit-Card, four cells, 10,000 rows, slack 0.002) half for histograms cost 0.0069 of error (standard error
0.0021) and held nothing better: since then the rule is for two cells only.
"""
_FOUND = """## Without declared bounds

Features as they come, standardised, or put between 0 and 1 by their raw range, and no bounds declared: the
defaults find out which are numbers, cut them off and bend them. "Nothing is looked for": `tails=None`, as it
was before. "Declared bounds": features as they come with the bounds of their code books, which is what one
would hope to come near to. Standardised flags pass for numbers, and bend for nothing. The gap is that on
held-out rows.
"""


if __name__ == "__main__":
    run_or_page(__doc__, run, page)
