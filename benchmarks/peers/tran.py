"""Tran et al. 2021: mitigation for private training (NeurIPS), and the Lagrangian dual PF-LD (AAAI).

*Mitigation* wants groups to lie equally near the decision boundary: with ``u = 1 - sum_k F_k^2`` it adds
``weight * sum_a |mean of u in a - mean of u|``. Here the means come from a released histogram of (u, 1 - u)
by group, so it has the library's full guarantee. The published term on clipping needs unclipped means, which
nothing releases; it is left out.

*PF-LD* protects the **sensitive attribute only**: features, labels and the gradient of the loss are public.
The original reads signs and group sizes off raw groups; here both come from released counts, and a row adds
at most ``clip * max(lambda / share)`` to the sum that is released, whatever its group.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.peers.base import Model, RawScaler, hard
from benchmarks.peers.engine import train
from benchmarks.problem import Part
from ratewise.accounting import GaussianEvent, TrainingEvent, calibrate, calibrate_plan
from ratewise.mechanisms.sampling import poisson_rows

REPLACE = "replace_one"


def boundary(soft: np.ndarray) -> np.ndarray:
    """Return u for two classes, ``2 f (1 - f)``."""
    return 2.0 * soft * (1.0 - soft)


class Mitigation:
    """The penalty on unequal nearness to the boundary, driven by released means."""

    def __init__(self, weight: float, n_groups: int, memory: float = 0.9) -> None:
        self.weight, self.memory = weight, memory
        self.loss_weight = 1.0 / (1.0 + weight)
        self._sizes, self._near = np.zeros(n_groups), np.zeros(n_groups)
        self._slopes = np.zeros(n_groups)

    def residual(self, soft: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Return the derivative of ``weight * slope * u`` by the logit."""
        return self._slopes[cells] * boundary(soft) * (1.0 - 2.0 * soft)

    def counted(self, soft: np.ndarray) -> np.ndarray:
        """Return u, which lies in [0, 1/2]."""
        return boundary(soft)

    def update(self, released: np.ndarray) -> None:
        """Set signs and shares from the released counts."""
        self._sizes += released.sum(axis=1)
        self._near = self.memory * self._near + (1.0 - self.memory) * released[:, 1]
        shares = np.maximum(self._sizes / max(self._sizes.sum(), 1.0), 0.01)
        means = self._near / shares
        signs = np.sign(means - self._near.sum())
        self._slopes = self.weight * self.loss_weight * (signs / shares - signs.sum())


def mitigation(
    part: Part, knob: float | None, epsilon: float | None, delta: float, seed: int, **settings: Any
) -> Model:
    """Fit with mitigation and full privacy; `knob` is the weight."""
    penalty = Mitigation(float(knob or 0.0), part.n_groups, **settings)
    return train(part, part.groups, part.n_groups, penalty, float(epsilon or 1e6), delta, seed)


def group_gaps(scores: np.ndarray, cells: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return |mean over a cell - mean over its reference| and the sign, per cell.

    Parameters
    ----------
    scores : (n,) array
    cells : (n,) cell numbers
    reference : (Q, Q) array of 0 and 1
        Row c marks the cells whose rows make up the reference of cell c.
    """
    n_cells = len(reference)
    sums, sizes = np.bincount(cells, scores, n_cells), np.bincount(cells, minlength=n_cells)
    return gaps_from(sums, sizes.astype(float), reference)


def gaps_from(sums: np.ndarray, sizes: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the same from sums and sizes by cell."""
    sizes = np.maximum(sizes, 1.0)
    gap = sums / sizes - (reference @ sums) / (reference @ sizes)
    return np.abs(gap), np.sign(gap)


def pulled_sum(x: np.ndarray, norms: np.ndarray, soft: np.ndarray, pull: np.ndarray, clip: float) -> np.ndarray:
    """Return the sum over rows of ``pull * clip(gradient of the score)``: the part that reads groups.

    A row adds at most ``clip * |pull|`` in L2 norm, whichever group it is in.
    """
    slope = soft * (1.0 - soft)
    slope *= np.minimum(1.0, clip / np.maximum(slope * norms, 1e-12))
    return x.T @ (pull * slope)


def reference_sum(
    x: np.ndarray, soft: np.ndarray, cells: np.ndarray, pushes: np.ndarray, label_shares: np.ndarray
) -> np.ndarray:
    """Return the sum over rows of the gradient of ``sum_c pushes_c * reference mean of c``, times the rows.

    Parameters
    ----------
    pushes : (Q,) array
        ``reference @ (lambda * sign)``: one number per label, so this sum does not read groups.
    """
    back = pushes / label_shares
    return x.T @ (back[cells] * soft * (1.0 - soft))


def pfld(
    part: Part,
    knob: float | None,
    epsilon: float | None,
    delta: float,
    seed: int,
    *,
    clip: float = 1.0,
    epochs: int = 20,
    batch: int = 512,
    rate: float = 0.01,
    dual_share: float = 0.1,
) -> Model:
    """Fit a logistic regression by PF-LD; `knob` is the dual step.

    Released per step: the sum over the batch of ``lambda sign / share * clip(grad score)``, Gaussian noise;
    per epoch: score sums and sizes by cell, sensitivity 1. Accounted for replacing one sensitive value.
    """
    labelled = part.task.constraint == "equalized_odds"
    cells = part.groups + part.n_groups * part.y if labelled else part.groups
    n_cells = part.n_groups * (2 if labelled else 1)
    reference = np.kron(np.eye(n_cells // part.n_groups), np.ones((part.n_groups, part.n_groups)))
    n, q = len(part), batch / len(part)
    steps = math.ceil(epochs / q)
    dual = GaussianEvent(_dual_noise(epsilon, delta, epochs, dual_share), epochs)
    found = calibrate_plan(epsilon, delta, lambda noise: (TrainingEvent(q, steps, noise), dual), REPLACE)
    rng, scaler = np.random.default_rng(seed), RawScaler(part.X)
    Z, y = scaler(part.X, intercept=True), part.y
    norms = np.sqrt(np.einsum("ij,ij->i", Z, Z))
    by_label = np.bincount(y, minlength=2) / n
    label_shares = np.repeat(by_label, part.n_groups) if labelled else np.ones(n_cells)  # labels are public
    adam = _Adam(Z.shape[1], rate)
    lam, sign, sizes, seen = np.zeros(n_cells), np.zeros(n_cells), np.zeros(n_cells), 0
    every = max(1, steps // epochs)
    for step in range(steps):
        rows = poisson_rows(n, q, rng)
        if step % every == 0 and seen < epochs:
            soft = expit(Z @ adam.theta)
            sums = np.bincount(cells, soft, n_cells)
            counts = np.column_stack([np.bincount(cells, minlength=n_cells) - sums, sums])
            counts = counts + dual.noise * rng.standard_normal(counts.shape)
            sizes, seen = sizes + counts.sum(axis=1), seen + 1
            gaps, sign = gaps_from(counts[:, 1], sizes / seen, reference)
            lam = lam + float(knob or 0.0) * gaps
        x, soft = Z[rows], expit(Z[rows] @ adam.theta)
        gradient = x.T @ (soft - y[rows]) / batch
        if lam.any():
            shares = np.maximum(sizes / max(sizes.sum(), 1.0), 0.01)
            pull = lam * sign / shares
            noise = found.scale * clip * np.abs(pull).max() * rng.standard_normal(Z.shape[1])
            gradient += (pulled_sum(x, norms[rows], soft, pull[cells[rows]], clip) + noise) / batch
            # the reference does not read the group: it is neither clipped nor noised
            pushes = reference @ (lam * sign)
            gradient -= reference_sum(x, soft, cells[rows], pushes, label_shares) / batch
        adam.step(gradient)

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = expit(scaler(other.X, intercept=True) @ adam.theta)
        return hard(soft), soft

    return Model(predict, found.epsilon, delta, "replace one sensitive value", {"steps": steps})


def _dual_noise(epsilon: float | None, delta: float, epochs: int, share: float) -> float:
    """Return the noise at which the dual releases take this share of the budget's variance."""
    whole = calibrate(float(epsilon or 1e6), delta, 1.0, epochs, histogram=None, neighbours=REPLACE)
    return whole.gradient_noise / math.sqrt(share)


class _Adam:
    """Adam, for a vector."""

    def __init__(self, size: int, rate: float) -> None:
        self.theta, self._first, self._second = (np.zeros(size) for _ in range(3))
        self._rate, self._steps = rate, 0

    def step(self, gradient: np.ndarray) -> None:
        """Move by one gradient."""
        self._steps += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        mean, square = self._first / (1 - 0.9**self._steps), self._second / (1 - 0.999**self._steps)
        self.theta -= self._rate * mean / (np.sqrt(square) + 1e-8)
