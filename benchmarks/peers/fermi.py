"""DP-FERMI (Lowy, Gupta, Razaviyayn 2023): a chi-square penalty on the dependence of prediction and group.

With soft predictions F(x) in R^K, groups r with shares pi_r and a k x K matrix W, a row's penalty is::

    psi = -sum_j F_j |W[:, j]|^2 + 2 sum_j F_j W[s, j] / sqrt(pi_s) - 1

Its largest mean over W is ``sum_jr P(j, r)^2 / (P(j) pi_r) - 1`` (`ermi`). For fixed W it is a table of costs
by group and class, and the ascent in W needs the soft histogram only, so the right form runs with **full
privacy** on the engine of the library: both releases of a step protect whole rows.

`published` is the form behind the authors' curves: it protects the sensitive attribute only, looks at ONE
cell (class 1, the group met first), clips nothing, reads shares and scaler (of numbers only) off raw rows,
merges rare codes (`authors_columns`), and runs on shuffled batches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.peers.base import Model, RawScaler, hard
from benchmarks.peers.engine import train
from benchmarks.problem import Part
from ratewise.accounting import TrainingEvent
from ratewise.accounting import epsilon as epsilon_of


def ermi(joint: np.ndarray) -> float:
    """Return the measure of dependence of a joint distribution (groups x classes); 0 if independent."""
    shares, classes = joint.sum(axis=1), joint.sum(axis=0)
    return float(np.sum(joint**2 / np.outer(shares, classes)) - 1.0)


def best_response(joint: np.ndarray) -> np.ndarray:
    """Return the W at which the mean penalty is largest."""
    return joint / (np.sqrt(joint.sum(axis=1))[:, None] * joint.sum(axis=0)[None, :])


def costs(W: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the cost of each class for a row of each group: the penalty is ``F @ costs[s] - 1``."""
    return 2.0 * W / np.sqrt(shares)[:, None] - np.sum(W**2, axis=0)[None, :]


def ascent(W: np.ndarray, joint: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean penalty in W."""
    return -2.0 * W * joint.sum(axis=0)[None, :] + 2.0 * joint / np.sqrt(shares)[:, None]


class Ermi:
    """The penalty, driven by released soft histograms; for equalized odds one W per label.

    Parameters
    ----------
    weight : float
        lambda.
    n_groups, n_labels : int
        Cells are numbered ``label * n_groups + group``; demographic parity has one "label".
    rate : float
        Step of the ascent.
    radius : float
        Largest Frobenius norm of W.

    Attributes
    ----------
    slopes : (cells,) array
        What predicting class 1 rather than 0 costs a row of each cell, on the scale of `loss_weight`.
    """

    def __init__(self, weight: float, n_groups: int, n_labels: int = 1, rate: float = 0.5, radius: float = 5.0) -> None:
        self.weight, self.rate, self.radius = weight, rate, radius
        self.loss_weight = 1.0 / (1.0 + weight)
        self.shape = (n_labels, n_groups)
        self._sizes = np.zeros(self.shape)
        self.slopes = np.zeros(n_labels * n_groups)
        self.W = np.full((n_labels, n_groups, 2), 1.0 / math.sqrt(n_groups))

    def residual(self, soft: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Return the derivative of ``lambda * psi`` by the logit, on the scale of `loss_weight`."""
        return self.slopes[cells] * soft * (1.0 - soft)

    def counted(self, soft: np.ndarray) -> np.ndarray:
        """Return the soft predictions."""
        return soft

    def update(self, released: np.ndarray) -> None:
        """Take an ascent step in W; shares come from the running sum of released counts."""
        histogram = released.reshape(*self.shape, 2)
        self._sizes += histogram.sum(axis=2)
        shares = np.maximum(self._sizes, 0.0) + 1e-9
        shares = np.maximum(shares / shares.sum(axis=1, keepdims=True), 0.01)
        total = max(float(histogram.sum()), 1.0)
        for label in range(self.shape[0]):
            mine = max(float(histogram[label].sum()), 0.05 * total)
            moved = self.W[label] + self.rate * ascent(self.W[label], histogram[label] / mine, shares[label])
            self.W[label] = moved * min(1.0, self.radius / max(float(np.linalg.norm(moved)), 1e-12))
        table = np.stack([costs(self.W[label], shares[label]) for label in range(self.shape[0])])
        self.slopes = (self.weight * self.loss_weight * (table[..., 1] - table[..., 0])).reshape(-1)


def full(part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any) -> Model:
    """Fit the right form with full privacy; `knob` is the weight of the penalty."""
    labelled = part.task.constraint == "equalized_odds"
    cells = part.groups + part.n_groups * part.y if labelled else part.groups
    n_labels = 2 if labelled else 1
    penalty = Ermi(float(knob or 0.0), part.n_groups, n_labels, **settings)
    return train(part, cells, part.n_groups * n_labels, penalty, _given(epsilon), delta, seed)


def published(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    clip: float = 5.0,
    first: str = "male",
    epochs: int = 200,
    batch: int = 1024,
    rates: tuple[float, float] = (0.005, 0.01),
) -> Model:
    """Fit the form of the published curves; `knob` is lambda, `delta` is replaced by 1/n^2.

    Parameters
    ----------
    clip : float
        L and D of the noise formula; 5 as shipped.
    first : str
        The group whose cell is penalised.
    """
    n, target, weight = len(part), _given(epsilon), float(knob or 0.0)
    delta, rng = 1.0 / n**2, np.random.default_rng(seed)
    columns, numbers = authors_columns(part.table), len(part.table.schema.feature_bounds)
    scaler = RawScaler(part.X @ columns, numbers)
    Z, y = scaler(part.X @ columns, intercept=True), part.y
    values = [str(value).lower() for value in part.table.group_values[part.task.column]]
    inside = (part.groups == values.index(first)).astype(float)
    smallest = np.bincount(part.groups).min() / n
    share, updates = inside.mean(), epochs * (n // batch)
    noise_w = math.sqrt(16.0 * epochs * math.ceil(n / batch) * math.log(1 / delta) / smallest) / (target * n)
    theta, w = np.zeros(Z.shape[1]), float(rng.standard_normal())
    for _ in range(epochs):
        order = rng.permutation(n)
        for start in range(0, batch * (n // batch), batch):
            rows = order[start : start + batch]
            x, mine = Z[rows], inside[rows]
            soft = expit(x @ theta)
            slope = weight * (2.0 * w * mine / math.sqrt(share) - w * w) * soft * (1.0 - soft)
            gradient = x.T @ (soft - y[rows] + slope) / batch
            up = weight * float(np.mean(soft * (2.0 * mine / math.sqrt(share) - 2.0 * w)))
            theta -= rates[0] * (gradient + clip * clip * noise_w * rng.standard_normal(len(theta)))
            w += rates[1] * (up + noise_w * float(rng.standard_normal()))
            w = min(max(w, -clip), clip)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = expit(scaler(other.X @ columns, intercept=True) @ theta)
        return hard(soft), soft

    return Model(
        predict,
        accounted_epsilon(batch, n, updates, noise_w, smallest, delta),
        delta,
        "replace one sensitive value",
        {
            "updates": updates,
            "columns": Z.shape[1] - 1,
            "w": w,
            "noise_w": noise_w,
            "noise_theta": clip * clip * noise_w,
        },
    )


def accounted_epsilon(batch: int, n: int, updates: int, noise: float, smallest: float, delta: float) -> float:
    """Return what the published noise accounts to, taking its sensitivities and Poisson batches for granted.

    `noise` is the deviation that was drawn for W, a mean over the batch; a swap of one sensitive value moves
    that mean by at most ``sqrt(8 / smallest) / batch``, `smallest` being the smallest share of a group. The
    noise of theta has the same ratio to its sensitivity, and both releases read one batch.
    """
    ratio = noise * batch / math.sqrt(8.0 / smallest)
    return epsilon_of([TrainingEvent(batch / n, updates, ratio, ratio)], delta)


# Codes without a meaning are counted with "other", as in the authors' 85 columns of Credit-Card.
_MERGED = {**{f"EDUCATION={code}": "EDUCATION=4" for code in (0, 5, 6)}, "MARRIAGE=0": "MARRIAGE=3"}


def authors_columns(table: Any) -> np.ndarray:
    """Return the 0/1 matrix (d, d') that takes encoded features to the authors' columns, numbers first.

    Undocumented codes of Credit-Card are merged, and categories that no row has are dropped: the authors
    encode what they find, **reading raw rows**. Tables without such columns stay as they are.
    """
    names, numbers = table.feature_names, len(table.schema.feature_bounds)
    seen = [place < numbers or bool(table.X[:, place].any()) for place in range(len(names))]
    targets = [_MERGED.get(name, name) for name in names]
    kept = list(dict.fromkeys(target for target, any_row in zip(targets, seen, strict=True) if any_row))
    place_of = {name: place for place, name in enumerate(kept)}
    columns = np.zeros((len(names), len(kept)), dtype=table.X.dtype)
    for place, target in enumerate(targets):
        if target in place_of:
            columns[place, place_of[target]] = 1.0
    return columns


def _given(epsilon: float | None) -> float:
    return 1e6 if epsilon is None else float(epsilon)
