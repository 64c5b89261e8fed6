"""Who beats whom: every point of a peer against our front at its violation, with paired intervals.

Methods share their splits, so luck with a split is common to both and must not count as doubt. The interval
of a lead is a bootstrap over splits: whole splits are drawn, the same for both sides, our front is made anew
each time, and the lead is read off again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.suite.config import Experiment
from benchmarks.suite.methods import METHODS
from benchmarks.suite.summary import error_at, front, trivial_error

OWN = ("ours", "dp_sgd")  # training without limits is the last point of our front
FEWEST = 5  # splits for a comparison
_DRAWS = 1000

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Duel:
    """A point of a peer against our front at its violation; a negative `lead` is the peer's.

    `low` and `high` bound the lead at 95%, by splits. `reached` says whether we have a point with so small a
    violation at all; if not, the lead is against the line to the classifier that always says the same.
    """

    experiment: str
    dataset: str
    epsilon: float
    method: str
    knob: float | None
    error: float
    violation: float
    lead: float
    low: float
    high: float
    reached: bool

    @property
    def verdict(self) -> str:
        """Who is better, and whether beyond chance."""
        side = "peer" if self.lead < 0 else "ours"
        return f"{side}, beyond chance" if self.low > 0 or self.high < 0 else f"{side}, within chance"


def duels(each: Experiment, lines: Lines, protects: str) -> Iterator[Duel]:
    """Yield the points of the peers with that guarantee against ours, on the splits that both have."""
    plain = [line for line in lines if not line["variant"] and "error" in line]
    panels = {(line["dataset"], line["epsilon"]) for line in plain if line["method"] == "ours"}
    methods = [m for m in METHODS if METHODS[m].protects == protects and m not in OWN]
    for (dataset, epsilon), method in sorted(itertools.product(panels, methods), key=str):
        here = [line for line in plain if (line["dataset"], line["epsilon"]) == (dataset, epsilon)]
        own = _by_point([line for line in here if line["method"] in OWN])
        trivial = trivial_error(lines, dataset, each.constraint)
        for (_, knob, _), peer in _by_point([line for line in here if line["method"] == method]).items():
            splits = sorted(set(peer).intersection(*own.values()))
            if len(splits) >= FEWEST:
                errors, violations = _arrays([*own.values(), peer], splits)
                yield Duel(
                    each.name, dataset, epsilon, method, knob, float(errors[-1].mean()),
                    float(violations[-1].mean()), *_lead(errors, violations, trivial),
                )  # fmt: skip


def _by_point(lines: Lines) -> dict[tuple[Any, ...], dict[int, dict[str, Any]]]:
    """Return lines by point of a curve, then by split."""
    found: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for line in lines:
        name = (line["method"], line["knob"], repr(sorted(line["settings"].items())))
        found.setdefault(name, {})[line["split"]] = line
    return found


def _arrays(points: list[dict[int, dict[str, Any]]], splits: list[int]) -> tuple[np.ndarray, np.ndarray]:
    errors, violations = (
        np.array([[point[split][name] for split in splits] for point in points])
        for name in ("error", "violation")
    )
    return errors, violations


def _lead(errors: np.ndarray, violations: np.ndarray, trivial: float) -> tuple[float, float, float, bool]:
    """Return the lead of our points (all rows but the last) over the last, its interval, and `reached`."""

    def lead(error: np.ndarray, violation: np.ndarray) -> float:
        own = front(list(zip(violation[:-1].tolist(), error[:-1].tolist(), strict=True)))
        return float(error[-1] - error_at(own, float(violation[-1]), trivial))

    rng = np.random.default_rng(0)
    n = errors.shape[1]
    draws = rng.multinomial(n, np.full(n, 1 / n), size=_DRAWS) / n
    drawn = [lead(errors @ weights, violations @ weights) for weights in draws]
    low, high = np.quantile(drawn, (0.025, 0.975))
    means = errors.mean(axis=1), violations.mean(axis=1)
    return lead(*means), float(low), float(high), bool(means[1][:-1].min() <= means[1][-1])
