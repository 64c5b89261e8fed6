"""docs/frontier.md and its picture, from the records of benchmarks/frontier.py; no number in it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Records = list[dict[str, Any]]
ALLOWED = 0.002  # what a published error may be missed by
NEAR = 0.005  # what a gap on test rows may exceed a published gap by, chosen on training rows
CONVEX = ("logistic", "squared hinge")
SEARCH = "0-1 search"


def pick(records: Records, **wanted: Any) -> Records:
    return [
        r
        for r in records
        if all(r.get(k) in v if isinstance(v, tuple) else r.get(k) == v for k, v in wanted.items())
    ]


def splits(records: Records, name: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return groups of splits that have sweeps: each named one, and all numbered ones together."""
    found = {r["split"] for r in pick(records, kind="sweep", data=name)}
    groups = [(each, (each,)) for each in ("authors", "fermi") if each in found]
    numbered = tuple(sorted(s for s in found if s.isdigit()))
    return groups + ([("numbered", numbered)] if numbered else [])


TITLES = {
    "authors": "the authors' split",
    "fermi": "DP-FERMI's split",
    "numbered": "our own random splits, mean",
}


def honest(records: Records, limit: float) -> tuple[float, float]:
    """Return mean error and gap on test rows of the model that is best on training rows, split by split."""
    points = []
    for which in sorted({r["split"] for r in records}):
        best = min(pick(records, split=which), key=lambda r: r["train"][r["limits"].index(limit)])
        points.append(best["honest"][best["limits"].index(limit)])
    error, gap = np.mean(points, axis=0)
    return float(error), float(gap)


def by_split(records: Records, limit: float, name: str) -> list[float]:
    """Return the least error over all sweeps of each split."""
    return [
        min(r[name][r["limits"].index(limit)] for r in pick(records, split=which))
        for which in sorted({r["split"] for r in records})
    ]


def bound(records: Records, limit: float, name: str) -> float:
    """Return the mean over splits of the least error over all sweeps."""
    return float(np.mean(by_split(records, limit, name)))


def hindsight_cell(records: Records, limit: float) -> str:
    """Write the mean over splits and, if there are several, the least and the largest."""
    found = by_split(records, limit, "hindsight")
    several = f" ({min(found):.4f} to {max(found):.4f})" if len(found) > 1 else ""
    return f"{np.mean(found):.4f}{several}"


def ours_points(records: Records, epsilon: float | None) -> list[tuple[float, float, float]]:
    """Return slack, mean gap and mean error on test rows; every split counts once."""
    found = []
    for slack in sorted({r["slack"] for r in records}):
        chosen = pick(records, slack=slack, epsilon=epsilon)
        means = [
            [np.mean([r[k] for r in pick(chosen, split=which)]) for k in ("test_gap", "test_error")]
            for which in sorted({r["split"] for r in chosen})
        ]
        if means:
            gap, error = np.mean(means, axis=0)
            found.append((slack, float(gap), float(error)))
    return found


def runs_within(fits: Records, limit: float) -> str:
    """Say how many runs at the slack of the smallest mean gap are within a limit that the mean is not."""
    points = ours_points(fits, 1.0)
    if not points or min(gap for _, gap, _ in points) <= limit:
        return ""
    slack = min(points, key=lambda point: point[1])[0]
    runs = pick(fits, slack=slack, epsilon=1.0)
    inside = [run["test_error"] for run in runs if run["test_gap"] <= limit]
    if len(runs) < 2 or not inside:
        return ""
    return f"; {len(inside)} of {len(runs)} runs within {limit:g}: {np.mean(inside):.4f}"


def ours_at(points: list[tuple[float, float, float]], limit: float) -> tuple[float | None, str]:
    """Return our error at a gap, along the line between the points on our front, and how to write it."""
    front: list[tuple[float, float]] = []
    for gap, error in sorted((gap, error) for _, gap, error in points):
        if not front or error < front[-1][1]:
            front.append((gap, error))
    if not front:
        return None, ""
    if limit < front[0][0]:
        return None, f"{front[0][1]:.4f} at {front[0][0]:.4f}, none nearer"
    error = float(np.interp(limit, [g for g, _ in front], [e for _, e in front]))
    return error, f"{error:.4f}"


def met(points: list[tuple[float, float, float]], error: float, gap: float) -> str:
    """Say whether our defaults meet a published point; if not, whether they do at a slightly larger gap.

    The second is what linear models that are chosen on training rows are held to as well.
    """
    ours, near = ours_at(points, gap)[0], ours_at(points, gap + NEAR)[0]
    if ours is not None and ours <= error + ALLOWED:
        return "yes"
    return f"at a gap within {NEAR:g}" if near is not None and near <= error + ALLOWED else "no"


def verdict(error: float, gap: float, found: tuple[float, float], hindsight: float) -> str:
    """Say whether a linear model reaches a published point, and by how much."""
    if found[0] <= error + ALLOWED and found[1] <= gap + NEAR:
        return f"reached, chosen on training rows ({found[0] - error:+.4f})"
    if hindsight <= error + ALLOWED:
        return f"within reach, chosen with hindsight ({hindsight - error:+.4f})"
    return f"beyond all models found, by {hindsight - error:+.4f}"


def table_verdict(sweeps: Records, error: float, gap: float) -> str:
    """Return the verdict on a published point, by the model of all that is best on training rows."""
    return verdict(error, gap, honest(sweeps, gap), bound(sweeps, gap, "hindsight"))


def table_of(records: Records, name: str, which: tuple[str, ...], points: Any) -> list[str]:
    """Return the table of published points on a group of splits."""
    sweeps = pick(records, kind="sweep", data=name, split=which)
    runs = pick(records, kind="ours", data=name, split=which)
    fits = ours_points(runs, 1.0)
    lines = [
        "| published error / gap | logistic | squared hinge | 0-1 search | hindsight, convex "
        "| hindsight, all | a linear model | our defaults, ε 1 | met? |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for error, gap in sorted(points, key=lambda point: point[1]):
        candidates = [honest(pick(sweeps, method=method), gap) for method in (*CONVEX, SEARCH)]
        cells = [f"{found:.4f} / {reached:.4f}" for found, reached in candidates]
        cells += [hindsight_cell(pick(sweeps, method=CONVEX), gap), hindsight_cell(sweeps, gap)]
        _, text = ours_at(fits, gap)
        text += runs_within(runs, gap)
        cells += [table_verdict(sweeps, error, gap), text, met(fits, error, gap) if fits else ""]
        lines.append(f"| {error:.4f} / {gap:.4f} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def ours_table(records: Records, name: str, groups: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return what the defaults reach on each group of splits, with and without privacy."""
    lines = ["| slack | " + " | ".join(f"{TITLES[g]}: ε 1 | no privacy" for g, _ in groups) + " |"]
    lines.append("|" + "---|" * (1 + 2 * len(groups)))
    found = [pick(records, kind="ours", data=name, split=which) for _, which in groups]
    columns = [
        {slack: f"{error:.4f} / {gap:.4f}" for slack, gap, error in ours_points(fits, epsilon)}
        for fits in found
        for epsilon in (1.0, None)
    ]
    slacks = sorted({slack for column in columns for slack in column})
    rows = [
        f"| {slack:g} | " + " | ".join(each.get(slack, "") for each in columns) + " |" for slack in slacks
    ]
    return [*lines, *rows, ""]


def draw(records: Records, sets: dict[str, Any], names: list[str], path: Path) -> None:
    """Draw published points, ours and the frontiers: a row for each data set, a column for each split."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(names), 2, figsize=(11, 4.3 * len(names)), squeeze=False)
    for row, name in zip(axes, names, strict=True):
        groups = dict(splits(records, name))
        for axis, group in zip(row, ("authors", "numbered"), strict=True):
            axis.set_visible(group in groups)
            if group in groups:
                panel(axis, records, sets, name, groups[group])
                axis.set_title(f"{name}: {TITLES[group]} ({len(groups[group])})", fontsize=10)
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries
    figure.legend(entries.values(), entries.keys(), loc="lower center", ncols=3, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.18 / len(names), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def panel(axis: Any, records: Records, sets: dict[str, Any], name: str, which: tuple[str, ...]) -> None:
    sweeps = pick(records, kind="sweep", data=name, split=which)
    largest = 1.25 * max((gap for _, gap in sets[name].published), default=0.2)
    limits = [limit for limit in sets[name].limits if limit <= largest]
    convex = pick(sweeps, method=CONVEX)
    lines = {
        "convex losses, chosen on training rows": ([honest(convex, x) for x in limits], "C0", "-", "."),
        "0-1 search, chosen on training rows": (
            [honest(pick(sweeps, method=SEARCH), x) for x in limits], "C2", "-", "."
        ),
        "convex losses, chosen on test rows": (
            [(bound(convex, x, "hindsight"), x) for x in limits], "C0", ":", ""
        ),
        "anything found, chosen on test rows": (
            [(bound(sweeps, x, "hindsight"), x) for x in limits], "C2", ":", ""
        ),
    }  # fmt: skip
    for label, (points, colour, style, marker) in lines.items():
        error, gap = np.array(sorted(points, key=lambda point: point[1])).T
        axis.plot(gap, error, style, color=colour, marker=marker, label=label, lw=1.3)
    if sets[name].published:
        error, gap = np.array(sets[name].published).T
        axis.plot(gap, error, "k*", ms=9, label="RaCO-DP, published, ε 1")
    fits = pick(records, kind="ours", data=name, split=which)
    for epsilon, marker, label in ((1.0, "D", "ratewise defaults, ε 1"), (None, "o", "the same, no privacy")):
        found = ours_points(fits, epsilon)
        if found:
            _, gap, error = np.array(found).T
            face = "C3" if epsilon else "none"
            axis.plot(gap, error, marker, color="C3", markerfacecolor=face, ms=6, label=label)
    shown = [error for error, _ in sets[name].published] or [0.0, 1.0]
    axis.set_xlim(0, largest)
    axis.set_ylim(min(shown) - 0.012, max(shown) + 0.012)
    axis.set_xlabel("gap between groups on test rows")
    axis.set_ylabel("test error")
    axis.grid(alpha=0.3)


def counts(records: Records, sets: dict[str, Any], name: str, which: tuple[str, ...]) -> list[str]:
    """Return how many published points are reached, and by whom, and how easy the test rows are."""
    sweeps = pick(records, kind="sweep", data=name, split=which)
    fits = ours_points(pick(records, kind="ours", data=name, split=which), 1.0)
    points = sets[name].published
    convex = sum(bound(pick(sweeps, method=CONVEX), g, "hindsight") <= e + ALLOWED for e, g in points)
    every = sum(bound(sweeps, g, "hindsight") <= e + ALLOWED for e, g in points)
    ours = [met(fits, e, g) for e, g in points]
    strictly, missed = ours.count("yes"), ours.count("no")
    within = f"{strictly}, and {len(ours) - strictly - missed} at a gap within {NEAR:g}"
    plain = honest(pick(sweeps, method="logistic"), max(sets[name].limits))
    chosen = sum(table_verdict(sweeps, e, g).startswith("reached") for e, g in points)
    numbers = [f"{len(points)}", f"{chosen}", f"{convex}", f"{every}", within if fits else ""]
    return [f"{plain[0]:.4f} / {plain[1]:.4f}", *numbers]


def summary(records: Records, sets: dict[str, Any], names: list[str]) -> list[str]:
    """Return the table of counts."""
    lines = [
        "| data | rows | logistic regression, hardly limited | published points "
        "| reached, chosen on training rows | convex, hindsight | all, hindsight | our defaults, ε 1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        for group, which in splits(records, name) if sets[name].published else []:
            cells = [name, TITLES[group] + (f" of {len(which)}" if len(which) > 1 else "")]
            lines.append("| " + " | ".join(cells + counts(records, sets, name, which)) + " |")
    return [*lines, ""]


def luck(records: Records, name: str, which: tuple[str, ...]) -> str:
    """Say how large the gap on test rows is if there is none on training rows: chance, for the most part."""
    sweeps = pick(records, kind="sweep", data=name, split=which)
    limit = min(sweeps[0]["limits"])
    _, gap = honest(sweeps, limit)
    return (
        f"The model that is best on training rows with a gap of at most {limit:g} there has a gap of "
        f"{gap:.4f} on test rows, in the mean over these splits: smaller gaps are luck with a test set, "
        "and no method that does not see the test rows can count on them."
    )


def write(records: Records, sets: dict[str, Any], docs: Path) -> None:
    """Write the page and the picture."""
    names = [name for name in sets if pick(records, kind="sweep", data=name)]
    slope = max(r["slope"] for r in records if r.get("slope"))
    parts = [_HEAD.format(slope=slope, allowed=ALLOWED, near=NEAR), *summary(records, sets, names)]
    for name in names:
        parts.append(f"## {name}\n")
        groups = splits(records, name)
        for group, which in groups if sets[name].published else []:
            parts.append(f"### Published points on {TITLES[group]} ({', '.join(which)})\n")
            if group == "numbered":
                parts.append(luck(records, name, which) + "\n")
            parts += table_of(records, name, which, sets[name].published)
        parts.append("### Our defaults on the same splits: test error / gap\n")
        parts += ours_table(records, name, groups)
    (docs / "frontier.md").write_text("\n".join(parts).rstrip() + "\n")
    draw(records, sets, names, docs / "figures" / "frontier.png")


_HEAD = """# What a linear classifier can do

Written by `python benchmarks/frontier.py page` from `benchmarks/results/frontier.jsonl`; `run` and `ours` add
what is missing. No privacy here, except in the columns of our defaults. The question: which published points
of RaCO-DP at ε 1 (error and demographic-parity gap by sex, hard predictions on test rows) can a linear
classifier reach at all, and what do our private defaults leave on the table? Scores of our defaults bend in
numbers (a little only on Parkinsons at ε 1), and the tails of numbers are cut off
([what that buys](defaults.md#what-curves-and-cut-tails-buy)): they may pass what is linear.

![Test error against gap: published points, our defaults, linear models](figures/frontier.png)

**Rows.** The published runs all share one test set: their loader draws three quarters of the rows with
numpy's default generator, and the published configurations give it seed 0. That is *the authors' split*
here; that the published curves were drawn with these very configurations is likely and cannot be checked.
*DP-FERMI's split* (seed 100) is the one of the baselines they are drawn beside. Our own splits are those of
`benchmarks/defaults.py`. One test set has luck, the same for every run on it: errors on different splits do
not compare. Sex is no feature, here or there; on Adult "husband" and "wife" are, which all but say it. In
doubled Adult three of four test rows stand in the training rows too, so what a search gains there is partly
memory.

**Models.** Two convex losses (logistic and squared hinge), each solved by L-BFGS until no entry of the
gradient exceeded {slope:.0e}, each along two paths to smaller gaps: a limit on the difference of the groups'
mean scores, and error priced by group. All with two penalties, every threshold, and features both as
published (raw numbers, standardised) and, where listed, as our defaults prepare them. Then a search on hard
error and hard gap themselves: a sigmoid grown steep from the logistic solutions, and after that the best
point on one line after another, each line searched exactly. A convex solve is exact for its loss, and no loss
is the error; the search finds local optima. So "reached" is a fact, and "beyond all models found" is strong
evidence but no proof.

**Columns.** *logistic*, *squared hinge*, *0-1 search*: test error / test gap of the model that is best on
training rows among those whose gap on training rows is at most the published one. *hindsight*: least test
error of any model in the sweep whose gap on TEST rows is at most the published one, the best that someone who
picks on test rows could report (mean, least and largest over splits). *A linear model*: the verdict, with the
difference to the published error. A point counts as reached if the error is at most the published one +
{allowed:g} and, for the model that is best on training rows of all, the test gap is at most the published
one + {near:g}. *Our defaults*: error at the published gap, on the line between the slacks below that border
it; *met* if it is at most the published one + {allowed:g}, or said so if that takes a gap larger by up to
{near:g}, which linear models chosen on training rows are allowed too. Published numbers are means over 20
runs on one split, and so are ours on a split that has a name. Such a gap is a mean of magnitudes: noise from
run to run keeps it off zero, however near to zero the runs lie on both sides. Where our smallest mean is
above a published gap, the column also says how many runs of that slack have a gap of at most the published
one, and the mean error of these.
"""
