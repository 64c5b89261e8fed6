"""docs/results.md, written from committed result files: every number on it is computed, none is typed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.config import Experiment, experiment, names
from benchmarks.suite.duels import FEWEST, Duel, duels
from benchmarks.suite.figures import MEASURES, STYLE, TITLES
from benchmarks.suite.methods import METHODS
from benchmarks.suite.methods.base import ATTRIBUTE, ROW
from benchmarks.suite.store import ROOT
from benchmarks.suite.summary import (
    Curve,
    area,
    curves,
    error_at,
    fermi_rows,
    front,
    own_curves,
    published,
    records,
    trivial_error,
)

Found = list[tuple[Experiment, list[dict[str, Any]]]]

HEAD = """# Results

Written by `python -m benchmarks.suite results-page` from `benchmarks/results/*.jsonl`; no result is typed.
Each split keeps 75% of the rows for training and 25% for testing, the same rows for every method. Cells are
means over splits: test error / violation on test rows. δ is 1e-5 (above one over the number of rows on Heart
and ACSEmployment, where the library would warn) and adding or removing a row is protected, unless a method is
said to protect less. Adult holds each person once (45,222 rows); rows of Parkinsons are recordings of 42
people, who are on both sides of a split. Scores of `ratewise` are linear here in features as declared
(`curves=False`, `tails=None`), like those of its peers; what its defaults gain by curves and cut tails is in
[defaults](defaults.md#what-curves-and-cut-tails-buy). Nothing was chosen per data set for `ratewise`, but its
defaults have seen these tables: about a hundred settings were looked at on test rows of splits like these, of
Credit-Card most of all. Since then choices are made on rows held out of the training rows of each split
([choice](choice.md)), but a row that tests in one split trains in another. So our numbers, too, lean to our
side; data sets that hardly any choice was made with are in [defaults](defaults.md). The settings of peers are
in `benchmarks/suite/configs`; those of RaCO-DP were chosen per experiment on test rows, in its favour.
"Commit" is the state of library and suite a row was made at (a plus sign: with changes not yet committed).
Most methods use the library (all but those of Jagielski, PF-LD, Fairlearn and XGBoost) and depend on its
state:


    python -m benchmarks.suite forget all \\
        --only method=ours,dp_sgd,sgd,sgda,fermi,mitigation,raco_100,raco_1000
    python -m benchmarks.suite run all --full

brings them up to date.
"""

LIMITS = """## What these results do not show

- One machine, two cores shared with other work: seconds vary with what else runs. Steps are timed in turns by
  processor time, so their ratios hold.
- RaCO-DP is our re-implementation with the published choices (Laplace counts, soft rates, temperature 2, last
  iterate), its noise raised until both releases of a step, which read one sample, account to ε. Its features
  are standardised with raw means and deviations, which leaks and is not in its ε. The authors choose
  settings and checkpoints on raw validation rows; we did not repeat that.
- DP-FERMI with full privacy is another penalty on this library's plan, sampling, standardisation, releases
  and accounting: what the method would be here, not what its authors ran.
- Methods that protect the sensitive attribute only solve an easier problem: features, labels and the gradient
  of the loss are public to them.
- The published mitigation of Tran et al. has a second term that nothing releases privately; it is left out.
- Fairlearn makes at most 25 rounds (its default is 50), on three splits.
- Intervals are over splits of one table, not over populations. Means of |gap| over splits are never 0.
- Faces are one run each, at 32 x 32 in place of the paper's 64 x 64, on UTKFace in place of CelebA.
"""


def write_page() -> Path:
    """Write the page and return its path."""
    path = ROOT / "docs" / "results.md"
    path.write_text("\n".join(_page()) + "\n")
    return path


def _page() -> Iterator[str]:
    found = [(e, lines) for e in map(experiment, names()) if (lines := records(e))]
    yield HEAD
    yield from _losses(found)
    yield from _areas(found)
    for each, lines in found:
        yield from _section(each, lines)
    yield from _faces()
    yield LIMITS
    yield from _rerun({each.name: lines for each, lines in found})


# ------------------------------------------------------------------------- who beats whom


def _losses(found: Found) -> Iterator[str]:
    """Say first where a private peer is better than we are."""
    every = _unlike(d for each, lines in found if each.figure == "tradeoff" for d in duels(each, lines, ROW))
    said = [duel.verdict for duel in every]
    lost = [duel for duel in every if duel.verdict == "peer, beyond chance"]
    blurred = [duel for duel in every if duel.verdict == "peer, within chance"]
    yield "## Where a peer beats us\n"
    yield _prose(
        f"""A point of a peer with the same guarantee (every row) is compared with the line through our points
        at its violation, on the splits that both have (at least {FEWEST}); *beyond chance* means that the 95%
        interval of the difference, by a bootstrap over splits that are the same for both, does not hold 0.
        Of {len(every)} points of peers, {len(lost)} are better than ours beyond chance and {len(blurred)}
        within it; ours is better within chance for {said.count("ours, within chance")} and beyond chance for
        {said.count("ours, beyond chance")}. One in forty would be called better by chance alone. Points that
        a peer's own other points beat are counted too. "Not reached" says that we have no point with so small
        a violation; the difference is then to the line towards the classifier that always says the same."""
    )
    for title, rows in (("Peers better beyond chance:", lost), ("Peers better within chance:", blurred)):
        if rows:
            yield f"{title}\n"
            yield from _duel_table(rows)
    yield from _weaker(found)
    yield from _published(found)


def _unlike(every: Iterable[Duel]) -> list[Duel]:
    """Return duels, those that two experiments have in common once."""
    found: dict[tuple[Any, ...], Duel] = {}
    for duel in every:
        name = (duel.dataset, duel.epsilon, duel.method, duel.knob, duel.error, duel.violation)
        found.setdefault(name, duel)
    return list(found.values())


def _duel_table(rows: list[Duel]) -> Iterator[str]:
    head = [
        "experiment",
        "data",
        "ε",
        "peer",
        "peer's error / violation",
        "our error there",
        "peer better by",
    ]
    yield from _table(head, [_lost(duel) for duel in sorted(rows, key=lambda duel: duel.lead)])


def _lost(duel: Duel) -> list[str]:
    return [
        duel.experiment,
        TITLES[duel.dataset],
        f"{duel.epsilon:g}",
        METHODS[duel.method].label,
        f"{duel.error:.4f} / {duel.violation:.4f}",
        f"{duel.error - duel.lead:.4f}{'' if duel.reached else ', not reached'}",
        f"{-duel.lead:.4f} [{-duel.high:.4f}, {-duel.low:.4f}]",
    ]


def _weaker(found: Found) -> Iterator[str]:
    every = _unlike(
        d for each, lines in found if each.figure == "tradeoff" for d in duels(each, lines, ATTRIBUTE)
    )
    better = [duel for duel in every if duel.verdict == "peer, beyond chance"]
    if every:
        yield _prose(
            f"""Of {len(every)} points of peers that protect the sensitive attribute only, {len(better)} are
            better than ours beyond chance. They face an easier problem (features and labels are public to
            them), and are not counted above."""
        )
    if better:
        yield from _duel_table(better)


def _published(found: Found) -> Iterator[str]:
    """Show published points that lie below our line."""
    rows = []
    for each, lines in found:
        if each.figure != "tradeoff" or each.shared_split:
            continue
        for own in own_curves(curves([line for line in lines if not line["variant"]])):
            trivial = trivial_error(lines, own.dataset, each.constraint)
            for label, points in published(each.name, own.dataset, own.epsilon).items():
                for error, violation in points:
                    ours = error_at(own.front, violation, trivial)
                    if error < ours:
                        reached = "" if own.front[0, 0] <= violation else ", not reached"
                        rows.append(
                            [each.name, TITLES[own.dataset], f"{own.epsilon:g}", label,
                             f"{error:.4f} / {violation:.4f}", f"{ours:.4f}{reached}"]
                        )  # fmt: skip
    if rows:
        yield _prose(
            """Published points below our line. They were measured by others on one split of their own (Adult:
            of the doubled table), chosen on it, and accounted as published: errors on other splits do not
            compare. What our defaults and exact solves reach on the authors' own split is in
            [frontier](frontier.md)."""
        )
        yield from _table(["experiment", "data", "ε", "by", "error / violation", "our error there"], rows)


# ------------------------------------------------------------------------------- areas


def _areas(found: Found) -> Iterator[str]:
    yield "## Area under the front\n"
    yield _prose(
        """Mean error over violations, from the smallest that any method protecting every row reached to that
        of training without limits (for false negatives: to 0.5), along straight lines between a method's
        points on its front; training without limits ends the front of every method that protects every row,
        and below a method's own smallest violation the line goes to the constant classifier, which is hard on
        methods that were run at few knobs. On the splits that ours has, for methods that have all of them.
        Lower is better; the best method that protects every row is bold. Ranges of violations that are
        narrower than the interval of ours are left out: chance fills them."""
    )
    methods = [m for m in STYLE if m not in ("sgd", "dp_sgd", "xgboost", "fermi_published")]
    rows = []
    for each, lines in found:
        if each.figure == "tradeoff" and not each.shared_split:
            rows += list(_area_rows(each, lines, methods))
    used = [m for place, m in enumerate(methods) if any(row[4 + place] for row in rows)]
    head = ["experiment", "data", "ε", "violations", *(METHODS[m].label for m in used)]
    kept = [[*row[:4], *(row[4 + methods.index(m)] for m in used)] for row in rows]
    yield from _table(head, kept)


def _area_rows(each: Experiment, lines: list[dict[str, Any]], methods: list[str]) -> Iterator[list[str]]:
    """Yield a row per panel: on our splits, for the methods that have all of them."""
    good = [line for line in lines if "error" in line]
    for panel in own_curves(curves(good)):
        here = [x for x in good if x["dataset"] == panel.dataset and x["epsilon"] in (None, panel.epsilon)]
        splits = {x["split"] for x in here if x["method"] == "ours"}
        complete = {m for m in methods if splits <= {x["split"] for x in here if x["method"] == m}}
        every = curves([x for x in here if x["split"] in splits])
        (own,) = own_curves(every)
        fronts = {m: _front_of(m, every) for m in methods if m in complete}
        trivial, limit = trivial_error(lines, own.dataset, each.constraint), _limit(each, every, own.dataset)
        least = min(found[0, 0] for m, found in fronts.items() if METHODS[m].protects == ROW)
        areas = {m: area(found, least, max(limit, least), trivial) for m, found in fronts.items()}
        best = min(value for m, value in areas.items() if METHODS[m].protects == ROW)
        if limit - least < max(point.violation_margin for point in own.points):
            continue  # a range that chance fills
        shown = [
            "" if m not in areas else f"**{areas[m]:.4f}**" if areas[m] == best else f"{areas[m]:.4f}"
            for m in methods
        ]
        place = [each.name, TITLES[own.dataset], f"{own.epsilon:g}", f"{least:.3f} to {limit:.3f}"]
        yield [*place, *shown]


def _front_of(method: str, every: list[Curve]) -> np.ndarray:
    """Return a method's front; training without limits is the end of every front of that guarantee."""
    free = ("dp_sgd",) if METHODS[method].protects == ROW else ()
    return front([(p.violation, p.error) for c in every if c.method in (method, *free) for p in c.points])


def _limit(each: Experiment, every: list[Curve], dataset: str) -> float:
    if each.constraint == "false_negative_rate":
        return 0.5
    free = [
        p.violation for c in every if c.dataset == dataset and c.method in ("sgd", "dp_sgd") for p in c.points
    ]
    return max(free, default=0.2)


# ---------------------------------------------------------------------------- sections


def _section(each: Experiment, lines: list[dict[str, Any]]) -> Iterator[str]:
    planned = len(each.jobs("full"))
    yield f"## {each.number}. {each.title}\n"
    yield _prose(f"{each.text} {len(lines)} of {planned} planned results are in.")
    yield f"    python -m benchmarks.suite run {each.name} --full\n"
    yield f"![{each.title}](figures/{each.name}.png)\n"
    if each.figure == "times":
        yield from _time_table(lines)
        return
    every = curves(lines)
    if each.shared_split:
        yield from _fermi_table(every)
    else:
        yield from _points(each, every)
    failed = [line for line in lines if "failed" in line]
    if failed:
        kinds = sorted({f"{METHODS[line['method']].label}: {line['failed']}" for line in failed})
        yield f"\n{len(failed)} runs gave up. " + "; ".join(kinds) + ".\n"


def _points(each: Experiment, every: list[Curve]) -> Iterator[str]:
    panels = sorted(
        {(c.dataset, c.epsilon) for c in every if c.epsilon is not None}
        or {(c.dataset, None) for c in every},
        key=lambda p: (list(TITLES).index(p[0]), p[1] or 0),
    )
    for dataset, epsilon in panels:
        here = [c for c in every if c.dataset == dataset and c.epsilon in (None, epsilon)]
        budget = "not private" if epsilon is None else f"ε = {epsilon:g}"
        yield f"{TITLES[dataset]}, {budget}; {MEASURES[each.constraint]}:\n"
        rows = []
        for curve in sorted(here, key=lambda c: (list(STYLE).index(c.method), c.variant)):
            method = METHODS[curve.method]
            points = sorted(curve.points, key=lambda p: (p.knob or 0.0, p.settings.get("clip", 0.0)))
            cells = "; ".join(_cell(p, curve) for p in points)
            splits = sorted({p.splits for p in points})
            seconds = np.mean([p.seconds for p in points])
            name = f"{method.label}{', ' + curve.variant if curve.variant else ''}"
            spent = "" if curve.spent is None else f"{curve.spent:.3f}"
            rows.append(
                [
                    name,
                    method.protects,
                    spent,
                    cells,
                    _span(splits),
                    f"{seconds:.1f}",
                    " ".join(curve.commits),
                ]
            )
        head = ["method", "protects", "ε spent", "knob: error / violation", "splits", "s a fit", "commit"]
        yield from _table(head, rows)


def _cell(point: Any, curve: Curve) -> str:
    knob = "" if point.knob is None else f"{point.knob:g}: "
    if "clip" in point.settings and curve.variant:
        knob = f"clip {point.settings['clip']:g}: "
    return f"{knob}{point.error:.4f} / {point.violation:.4f}"


def _span(splits: list[int]) -> str:
    return f"{splits[0]}" if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"


def _fermi_table(every: list[Curve]) -> Iterator[str]:
    yield _prose(
        """Published points first, with their band of the gap; ours are means over runs, with half-widths of
        95% intervals. "In band" counts our means at a published weight whose gap lies in the published band.
        Credit-Card is read in the columns of its authors here (rare codes of education and marriage merged),
        and numbers alone are standardised, as they did."""
    )
    rows = []
    for dataset in sorted({c.dataset for c in every}):
        known = fermi_rows(dataset, "demographic_parity", 1.0)
        if known:
            cells = "; ".join(
                f"λ {r['weight']:g}: {r['error']:.4f} / {r['violation']:.4f}"
                f" [{r['low']:.4f}, {r['high']:.4f}]"
                for r in known
            )
            rows.append([TITLES[dataset], "published", cells, ""])
        for curve in (c for c in every if c.dataset == dataset):
            points = sorted(curve.points, key=lambda p: p.knob)
            cells = "; ".join(
                f"λ {p.knob:g}: {p.error:.4f} ± {p.error_margin:.4f}"
                f" / {p.violation:.4f} ± {p.violation_margin:.4f}"
                for p in points
            )
            pairs = [(p, r) for p in points for r in known if p.knob == r["weight"]]
            inside = sum(r["low"] <= p.violation <= r["high"] for p, r in pairs)
            form = f"{curve.variant} (accounts to ε {curve.spent:.2f})"
            rows.append([TITLES[dataset], form, cells, f"{inside} of {len(pairs)}" if pairs else ""])
    yield from _table(["data", "form", "error / gap", "in band"], rows)


def _time_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    rows = []
    for dataset in sorted({line["dataset"] for line in lines}):
        rounds = [line["step_seconds"] for line in lines if line["dataset"] == dataset]
        medians = {m: float(np.median([r[m] for r in rounds])) for m in rounds[0]}
        ratios = {m: float(np.median([r[m] / r["dp_sgd"] for r in rounds])) for m in rounds[0]}
        rows += [
            [TITLES[dataset], METHODS[m].label, f"{1e6 * s:.0f}", f"{ratios[m]:.2f}", f"{len(rounds)}"]
            for m, s in medians.items()
        ]
    yield from _table(["data", "method", "µs a step", "times DP-SGD", "rounds"], rows)


def _faces() -> Iterator[str]:
    """Show what `benchmarks/faces.py` recorded: networks take too long to be part of the runner."""
    path = ROOT / "benchmarks" / "results" / "faces.jsonl"
    if not path.exists():
        return
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    spent = {_case(line): line["epsilon"] for line in lines if line.get("done")}
    ends = [line for line in lines if line.get("step") is not None and line["step"] == line["steps"]]
    yield "## 3. Faces: networks, gender as label, race as group\n"
    yield _prose(
        """UTKFace at 32 x 32, split by a hash of each picture's content; largest gap between a race and the
        rest in the rate of predicted women; ε 8. One run each; more in [pytorch](pytorch.md#faces)."""
    )
    command = "benchmarks/faces.py --network resnet16 --epochs 24 --cases private-limited plain-limited"
    yield f"    python {command}\n"
    yield "![Error and gap by epoch](faces.png)\n"
    rows = [
        [
            {"resnet16": "ResNet16", "small": "SmallCNN"}[line["network"]],
            "none" if spent[_case(line)] is None else f"{spent[_case(line)]:.3f}",
            "none" if line["max_gap"] is None else f"{line['max_gap']:g}",
            f"{line['error']:.3f} / {line['gap']:.3f}",
            f"{line['train_error']:.3f} / {line['train_gap']:.3f}",
            f"{line['steps']}",
            f"{line['cpu_seconds']:.0f}",
        ]
        for line in ends
    ]
    head = ["network", "ε spent", "limit", "held out: error / gap", "training rows", "steps", "processor s"]
    yield from _table(head, rows)


def _case(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["network"], line["private"], line["max_gap"]


def _rerun(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "## Running it again\n"
    yield _prose(
        """From the root of the repository, with the test extras, Fairlearn, XGBoost and Matplotlib installed
        and the data in `$RATEWISE_DATA`. Finished jobs are not run again; a killed run goes on where it was.
        Hours are those of two cores, from the mean seconds of the recorded fits, on cores that other work
        shared."""
    )
    rows = [
        [e.name, *(f"{len(e.jobs(mode))}" for mode in ("quick", "full")), _hours(e, found.get(e.name, []))]
        for e in map(experiment, names())
    ]
    yield from _table(["experiment", "quick jobs", "full jobs", "hours of full mode"], rows)
    for command in ("run all --quick", "run all --full", "figures", "results-page"):
        yield f"    python -m benchmarks.suite {command}"


def _hours(each: Experiment, lines: list[dict[str, Any]]) -> str:
    """Return what all full jobs take on two cores, from the mean seconds of each curve's recorded fits."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if "seconds" in line:
            seconds.setdefault((line["dataset"], line["method"]), []).append(line["seconds"])
    if not seconds:
        return "not recorded"
    overall = float(np.mean([s for values in seconds.values() for s in values]))
    total = sum(
        float(np.mean(seconds.get((job["dataset"], job["method"]), [overall])))
        for job in each.jobs("full").values()
    )
    return f"{total / 7200:.2f}"


def _prose(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
