"""What a training released step by step, thinned for a picture: values of constraints, multipliers, norms.

Only `history_` is read, which holds released values; nothing here costs privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.report.content import Curve, Training, finite

POINTS = 120
MOST_CURVES = 40


def training_of(history: Mapping[str, Any], compiled: Any = None) -> Training | None:
    """Return the curves of a history; `compiled` names the constraints and holds their bounds.

    At most `MOST_CURVES` constraints are kept, those that took most pressure in the last quarter of the run
    (then those nearest to their bound), and at most `POINTS` steps, each the mean over the steps it stands
    for.
    """
    steps = np.asarray(history.get("step", ()))
    if not len(steps):
        return None
    edges = np.unique(np.linspace(0, len(steps), min(POINTS, len(steps)) + 1).astype(np.intp))
    norms = _thin(np.asarray(history["gradient_norm"], dtype=np.float64), edges)
    curves, left_out = _curves(history, compiled, edges)
    return Training(
        steps=tuple(int(step) for step in steps[edges[1:] - 1]),
        gradient_norm=_numbers(norms),
        curves=curves,
        left_out=left_out,
    )


def _curves(
    history: Mapping[str, Any], compiled: Any, edges: npt.NDArray[np.intp]
) -> tuple[tuple[Curve, ...], int]:
    if compiled is None or "values" not in history:
        return (), 0
    excess = np.asarray(history["values"], dtype=np.float64) - np.asarray(compiled.bounds)
    multipliers = np.asarray(history["multipliers"], dtype=np.float64)
    late = slice(3 * len(excess) // 4, None)
    order = np.lexsort((-_late_mean(excess[late]), -_late_mean(multipliers[late])))
    kept = [
        Curve(
            compiled.names[j], _numbers(_thin(excess[:, j], edges)), _numbers(_thin(multipliers[:, j], edges))
        )
        for j in order[:MOST_CURVES]
    ]
    return tuple(kept), max(0, len(order) - MOST_CURVES)


def _late_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of what is finite, by column; -inf if nothing is."""
    there = np.isfinite(values)
    sums, counts = np.where(there, values, 0.0).sum(axis=0), there.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)


def _thin(values: npt.NDArray[np.float64], edges: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return the mean over each stretch; NaN if there is nothing in it."""
    there = np.isfinite(values)
    sums = np.add.reduceat(np.where(there, values, 0.0), edges[:-1])
    counts = np.add.reduceat(there.astype(np.float64), edges[:-1])
    out = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=out, where=counts > 0)
    return out


def _numbers(values: npt.NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(finite(value) for value in values)
