"""Linear classifiers without privacy: convex solves to convergence, and a search on hard rates.

A model is a weight per feature and an intercept, ``(d + 1,)``; it predicts 1 where its score is above 0. Two
groups, a gap: the rate of predicted ones in the first group less that in the second, hard predictions.

Two convex families lead from the most accurate model to ever smaller gaps, each with any convex loss:

- `covariance_path`: least loss among models whose mean scores differ by exactly c between the groups. The
  limit is linear, so it is removed by a change of coordinates and nothing is left to converge but the loss;
  its Lagrange multiplier is what a penalty on the difference of mean scores would have to be.
- `cost_path`: error plus t times the gap is an error with costs that depend on label and group; the loss is
  weighted by those costs (Agarwal et al. 2018).

Both are exact for their loss, and no loss is the error. `descend` works on error and gap as they are: along
any line through a model both are step functions, and `along` finds all their steps by sorting. `anneal` leads
there by a sigmoid that grows steep. A search like that ends in a local optimum: it shows what can be
reached, and that others searched for more in vain is evidence, not proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

Loss = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def logistic(margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log(1 + exp(-m)) and its derivative."""
    return np.logaddexp(0.0, -margin), -expit(-margin)


def squared_hinge(margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return max(0, 1 - m)^2 and its derivative."""
    short = np.maximum(0.0, 1.0 - margin)
    return short**2, -2.0 * short


LOSSES: dict[str, Loss] = {"logistic": logistic, "squared hinge": squared_hinge}


@dataclass(frozen=True, eq=False)
class Rows:
    """Features (n, d), dense or CSR, labels and membership of the first group, both boolean."""

    X: Any
    y: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def sign(self) -> np.ndarray:
        """Labels as -1 and 1."""
        return np.where(self.y, 1.0, -1.0)

    @cached_property
    def share(self) -> np.ndarray:
        """What predicting 1 for a row adds to the gap."""
        return np.where(self.first, 1.0 / self.first.sum(), -1.0 / (~self.first).sum())

    def scores(self, model: np.ndarray) -> np.ndarray:
        """Return the score of each row."""
        return np.asarray(self.X @ model[:-1] + model[-1])

    def measure(self, model: np.ndarray) -> tuple[float, float]:
        """Return error and gap of hard predictions."""
        positive = self.scores(model) > 0
        return float(np.mean(positive != self.y)), float(self.share[positive].sum())


@dataclass(frozen=True)
class Solution:
    """A model, the largest entry of the gradient where it was found, and the multiplier of its limit."""

    model: np.ndarray
    gradient: float
    multiplier: float = 0.0


def _minimise(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray
) -> tuple[np.ndarray, float]:
    """L-BFGS until neither value nor gradient change any more; returns the point and its largest slope."""
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x), float(np.abs(found.jac).max())


def solve(
    rows: Rows,
    loss: Loss,
    l2: float,
    *,
    weights: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> Solution:
    """Return the least mean of weighted losses plus ``l2 / 2 * |w|^2`` (the intercept is free).

    The squared hinge and the logistic loss are convex, so where the gradient vanishes is the minimum.
    """
    sign = rows.sign if labels is None else np.where(labels, 1.0, -1.0)
    pull = sign / len(rows) if weights is None else sign * weights / len(rows)
    size = 1.0 / len(rows) if weights is None else weights / len(rows)

    def objective(model: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(sign * rows.scores(model))
        slope = slope * pull
        gradient = np.append(slope @ rows.X + l2 * model[:-1], slope.sum())
        return float(np.sum(value * size) + l2 / 2 * model[:-1] @ model[:-1]), gradient

    model, gradient = _minimise(objective, np.zeros(rows.X.shape[1] + 1) if start is None else start)
    return Solution(model, gradient)


def _towards(direction: np.ndarray) -> np.ndarray:
    """Return an orthogonal matrix whose first column points along the direction (Householder)."""
    mirror = direction / np.linalg.norm(direction)
    side = 1.0 if mirror[0] <= 0 else -1.0
    mirror = mirror - side * np.eye(len(mirror))[0]
    return side * (np.eye(len(mirror)) - 2.0 * np.outer(mirror, mirror) / (mirror @ mirror))


def covariance_path(rows: Rows, loss: Loss, l2: float, fractions: np.ndarray) -> Iterator[Solution]:
    """Yield, for each fraction, the least loss among models whose mean scores differ by that fraction.

    A fraction of 1 is the difference that the unlimited solution has, 0 none, below 0 the other way round.
    """
    free = solve(rows, loss, l2)
    between = rows.share @ rows.X
    length = float(np.linalg.norm(between))
    turn = _towards(between)
    last = np.append(free.model[:-1] @ turn, free.model[-1])
    for fraction in fractions:
        last[0] = fraction * (between @ free.model[:-1]) / length
        last, gradient, slope = _with_first_fixed(rows, turn, loss, l2, last)
        yield Solution(np.append(turn @ last[:-1], last[-1]), gradient, -slope / length)


def _with_first_fixed(
    rows: Rows, turn: np.ndarray, loss: Loss, l2: float, start: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Solve in turned coordinates with the first weight as given; also returns the slope along it."""

    def everywhere(turned: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(rows.sign * (rows.X @ (turn @ turned[:-1]) + turned[-1]))
        slope = slope * rows.sign / len(rows)
        gradient = np.append((slope @ rows.X) @ turn + l2 * turned[:-1], slope.sum())
        return float(value.mean() + l2 / 2 * turned[:-1] @ turned[:-1]), gradient

    def objective(rest: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = everywhere(np.append(start[0], rest))
        return value, gradient[1:]

    rest, gradient = _minimise(objective, start[1:])
    found = np.append(start[0], rest)
    return found, gradient, float(everywhere(found)[1][0])


def cost_path(rows: Rows, loss: Loss, l2: float, prices: np.ndarray) -> Iterator[Solution]:
    """Yield, for each price t, the least loss weighted by the costs of error + t * gap."""
    last = None
    for price in prices:
        cost = price * rows.share * len(rows) - rows.sign  # of predicting 1 rather than 0
        found = solve(rows, loss, l2, weights=np.abs(cost), labels=cost < 0, start=last)
        last = found.model
        yield Solution(found.model, found.gradient, float(price))


# ------------------------------------------------------------------------- on error and gap as they are


def along(rows: Rows, scores: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return steps t with error and gap of predicting 1 where ``scores + t * direction > 0``: all there are.

    One t from every interval on which predictions do not change. Rows that cross at the same t cross at once.
    """
    moving = direction != 0.0
    if not moving.any():
        positive = scores > 0
        return np.zeros(1), np.array([np.mean(positive != rows.y)]), np.array([rows.share[positive].sum()])
    crossing = -scores[moving] / direction[moving]
    order = np.argsort(crossing)
    crossing = crossing[order]
    up = np.where(direction[moving] > 0, 1.0, -1.0)[order]
    before = np.where(moving, direction < 0, scores > 0)  # predictions at t = minus infinity
    error = np.mean(before != rows.y) + np.concatenate(
        [[0.0], np.cumsum(-up * rows.sign[moving][order])]
    ) / len(rows)
    gap = rows.share[before].sum() + np.concatenate([[0.0], np.cumsum(up * rows.share[moving][order])])
    ends = np.concatenate([[crossing[0] - 1.0], crossing, [crossing[-1] + 1.0]])
    step = (ends[:-1] + ends[1:]) / 2
    apart = (step > ends[:-1]) & (step < ends[1:])  # nothing fits between rows that cross together
    return step[apart], error[apart], gap[apart]


def thresholds(rows: Rows, model: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return every change of the intercept that matters, with error and gap."""
    return along(rows, rows.scores(model), np.ones(len(rows)))


def anneal(rows: Rows, model: np.ndarray, price: float, steepness: tuple[float, ...]) -> np.ndarray:
    """Lead a model to small error + price * gap, both with a sigmoid that grows steeper."""
    scale = np.std(rows.scores(model))
    model = model / scale if scale > 0 else model
    cost = (price * rows.share * len(rows) - rows.sign) / len(rows)

    for steep in steepness:

        def objective(model: np.ndarray, steep: float = steep) -> tuple[float, np.ndarray]:
            soft = expit(steep * rows.scores(model))
            slope = cost * soft * (1.0 - soft) * steep
            return float(cost @ soft), np.append(slope @ rows.X, slope.sum())

        options = {"maxiter": 60, "gtol": 1e-7}
        model = np.asarray(minimize(objective, model, jac=True, method="L-BFGS-B", options=options).x)
    return model


def descend(
    rows: Rows,
    model: np.ndarray,
    limit: float,
    *,
    passes: int,
    random: np.random.Generator,
    price: float = 1.0,
) -> np.ndarray:
    """Lower error + price * what the gap exceeds its limit by, hard, until a pass gains nothing.

    A pass takes the best point on the line along every feature, the intercept and some random directions.
    """
    columns = rows.X.shape[1]
    scores, best = rows.scores(model), np.inf
    for _ in range(passes):
        begin = best
        axes = np.eye(columns + 1)
        directions = np.concatenate([axes, random.normal(size=(20, columns + 1)) / np.sqrt(columns)])
        for direction in random.permutation(directions):
            change = rows.X @ direction[:-1] + direction[-1]
            step, error, gap = along(rows, scores, change)
            value = error + price * np.maximum(0.0, np.abs(gap) - limit)
            place = int(value.argmin())
            if value[place] < best - 1e-12:
                best = float(value[place])
                model = model + step[place] * direction
                scores = scores + step[place] * change
        if best >= begin - 1e-12:
            break
    return model
