# ruff: noqa: ARG001 - one signature for all methods
"""Jagielski et al. 2019: equalized odds, protecting the **sensitive attribute only**.

Features, labels and base predictions are public. *Post-processing* randomises a fixed classifier per
(prediction, group), by a linear program on noisy cell shares; it needs the group at prediction time.
*Reductions* play a private learner against a private auditor and output the uniform mixture of the learner's
answers. The original's noise has scale 1 whatever epsilon is, spends epsilon on each coordinate, and reads
the smallest cell and the best iterate off raw groups; here noise has the stated scale, group sizes are
released once, the number of rounds is fixed, and every release is accounted.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.optimize import linprog
from sklearn.linear_model import LogisticRegression

from benchmarks.peers.base import GaveUp, Model, RawScaler, hard
from benchmarks.problem import Part
from ratewise.accounting import LaplaceEvent
from ratewise.accounting import epsilon as epsilon_of

SWAP = "replace one sensitive value"


def solve(shares: np.ndarray, gamma: float, slack: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Return P(output 1 | prediction, group) of least error within gamma of equalized odds, and that error.

    Parameters
    ----------
    shares : (2, k, 2) array
        Share of each (prediction, group, label).
    gamma : float
        Largest difference of a group's rates to those of group 0.
    slack : (2, k) array, optional
        Added to gamma, for label and group.
    """
    k = shares.shape[1]
    slack = np.zeros((2, k)) if slack is None else slack
    sums = np.maximum(shares.sum(axis=0), 1e-12)  # by group and label
    rates = np.clip(shares[1] / sums, 0.0, 1.0)  # share of predictions 1, by group and label
    above, limits = [], []
    for label, group in itertools.product(range(2), range(1, k)):
        row = np.zeros((2, k))
        for sign, g in ((1.0, group), (-1.0, 0)):
            row[1, g] += sign * rates[g, label]
            row[0, g] += sign * (1.0 - rates[g, label])
        bound = gamma + slack[label, group]
        above += [row.ravel(), -row.ravel()]
        limits += [bound, bound]
    cost = (shares[:, :, 0] - shares[:, :, 1]).ravel()
    found = linprog(cost, A_ub=np.array(above), b_ub=np.array(limits), bounds=(0, 1), method="highs")
    chosen = found.x.reshape(2, k)
    return chosen, float(cost @ found.x + shares[:, :, 1].sum())


def postprocess(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, *, beta: float = 0.05
) -> Model:
    """Fit a public logistic regression and randomise its output; `knob` is gamma. Pure epsilon-DP.

    One swap of a group moves 1/m from one cell share to another: L1 sensitivity 2/m, Laplace noise.
    """
    base, rng, m, k = _Base(part), np.random.default_rng(seed), len(part), part.n_groups
    guess = base(part).astype(int)
    codes = (guess * k + part.groups) * 2 + part.y
    shares = np.bincount(codes, minlength=4 * k).reshape(2, k, 2) / m
    noisy = shares + rng.laplace(0.0, 2.0 / (m * float(epsilon)), shares.shape)
    if (noisy.sum(axis=0) <= 0).any():
        raise GaveUp("a group's noisy share is not above 0: too few rows for this budget")
    chosen, _ = solve(noisy, float(knob), _slack(noisy, m, float(epsilon), beta))

    def predict(other: Part) -> tuple[np.ndarray, None]:
        return chosen[base(other).astype(int), other.groups], None

    return Model(predict, float(epsilon), 0.0, SWAP)


def _slack(noisy: np.ndarray, m: int, epsilon: float, beta: float) -> np.ndarray:
    """Return what noise can do to the rates, with probability 1 - beta: the widening of the constraints."""
    k = noisy.shape[1]
    swing = 4.0 * math.log(4 * k / beta)
    sums = noisy.sum(axis=0)
    found = np.zeros((2, k))
    for label in range(2):
        for group in range(1, k):
            size = m * min(sums[0, label], sums[group, label])
            room = size * epsilon - swing
            found[label, group] = swing / room if room > 0 else 1.0
    return found


def reductions(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    rounds: int = 40,
    smallest: float = 0.05,
) -> Model:
    """Fit a mixture of linear classifiers; `knob` is gamma.

    Released with Laplace noise, accounted for replacing one sensitive value: group sizes once (a swap moves
    1 from a cell to another: L1 sensitivity 2), and per round the learner's X'c (`reach`) and the auditor's
    counts of hits by cell (2). `smallest` is a public lower bound of a cell's share.
    """
    rng, m, k, gamma = np.random.default_rng(seed), len(part), part.n_groups, float(knob)
    bound = 1.0 / gamma
    noise = _laplace_noise(float(epsilon), delta, rounds)
    lower, upper = part.table.feature_bounds
    X = np.hstack([(part.X - lower) / np.where(upper > lower, upper - lower, 1.0), np.ones((m, 1))])
    width = len(part.table.schema.feature_bounds) + len(part.table.schema.categories) + 1
    inverse = np.linalg.pinv(X.T @ X / m + 1e-6 * np.eye(X.shape[1]))
    cells = part.groups * 2 + part.y
    sizes = release(np.bincount(cells, minlength=2 * k), 2.0, noise, rng)
    sizes = np.maximum(sizes, smallest * m).reshape(k, 2)
    theta, eta = np.zeros((2, k, 2)), math.sqrt(math.log(4 * k - 3) / rounds) / 2.0
    mixture = []
    for _ in range(rounds):
        pull = pulls(theta, sizes, bound)
        cost = (1.0 - 2.0 * part.y) / m + pull.reshape(-1)[cells]
        weights = inverse @ -release(X.T @ cost, reach(pull, width), noise, rng)
        mixture.append(weights)
        hits = release(np.bincount(cells, X @ weights > 0, 2 * k), 2.0, noise, rng)
        rates = np.clip(hits.reshape(k, 2) / sizes, 0.0, 1.0)
        gaps = rates - rates[0]
        theta += eta * np.stack([gaps - gamma, -gaps - gamma])

    def predict(other: Part) -> tuple[np.ndarray, None]:
        Z = (other.X - lower) / np.where(upper > lower, upper - lower, 1.0)
        Z = np.hstack([Z, np.ones((len(Z), 1))])
        return np.mean([(Z @ weights > 0).astype(float) for weights in mixture], axis=0), None

    spent = epsilon_of([LaplaceEvent(noise, 2 * rounds + 1)], delta)
    return Model(predict, spent, delta, SWAP, {"rounds": rounds})


def release(values: np.ndarray, sensitivity: float, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Return the values with Laplace noise of scale ``noise * sensitivity`` (in L1 norm)."""
    return values + rng.laplace(0.0, noise * sensitivity, values.shape)


def pulls(theta: np.ndarray, sizes: np.ndarray, bound: float) -> np.ndarray:
    """Return what predicting 1 for a row adds to the weighted gaps, by group and label.

    It is a function of released values: `theta` comes from earlier releases, `sizes` from the first.
    """
    lam = bound * np.exp(theta) / (1.0 + np.exp(theta[:, 1:]).sum())
    lam[:, 0] = 0.0
    pull = (lam[0] - lam[1]) / sizes
    pull[0] = -(lam[0] - lam[1])[1:].sum(axis=0) / sizes[0]
    return pull


def reach(pull: np.ndarray, width: float) -> float:
    """Return the L1 sensitivity of the learner's X'c to one person's sensitive value, `pull` being released.

    The cost of a row of group a and label y is ``(1 - 2 y) / m + pull[a, y]``. Swapping the group a of one
    row for b leaves features, labels and `pull` as they are, so X'c moves by ``x (pull[b, y] - pull[a, y])``
    for that row's x: by at most its L1 norm (`width`: each number within [0, 1], one 1 per category, the
    intercept) times the largest difference of pulls between two groups of one label.
    """
    return width * float(np.ptp(pull, axis=0).max())


def _laplace_noise(epsilon: float, delta: float, rounds: int) -> float:
    """Return the least scale (in units of the sensitivity) at which all releases fit, by bisection."""
    low, high = 1e-3, 1e5
    for _ in range(40):
        middle = math.sqrt(low * high)
        fits = epsilon_of([LaplaceEvent(middle, 2 * rounds + 1)], delta) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
    return high


class _Base:
    """A logistic regression on public features and labels."""

    def __init__(self, part: Part) -> None:
        self._scaler = RawScaler(part.X)
        self._model: Any = LogisticRegression(C=1.0, max_iter=500).fit(self._scaler(part.X), part.y)

    def __call__(self, part: Part) -> np.ndarray:
        return hard(self._model.predict_proba(self._scaler(part.X))[:, 1])
