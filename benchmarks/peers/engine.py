"""DP-SGD for logistic regression with a penalty, in NumPy: the engine of peers that add a term to the loss.

A peer says three things: what its rows add to the residual, what is counted of them, and what it makes of the
released counts. Features are moved into [0, 1] by public bounds, standardised by one release of their means and
squares, and divided by the square root of their number. Every step samples each row independently and releases the
sum of clipped gradients and the counts by cell from that sample; both are accounted jointly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from benchmarks.peers.base import Model, hard
from benchmarks.problem import Part
from ratewise.accounting import GaussianEvent, TrainingEvent, calibrate_plan
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import poisson_rows

_MOMENTS_SHARE, _COUNTS_SHARE = 0.05, 0.1  # of the budget, in units of 1 / sigma**2


class Penalty(Protocol):
    """What a method adds to the loss."""

    loss_weight: float

    def residual(self, soft: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Return the derivative of the rows' penalties by their logits."""
        ...

    def counted(self, soft: np.ndarray) -> np.ndarray:
        """Return what class 1's column of the histogram counts: numbers in [0, 1], so sensitivity is 1."""
        ...

    def update(self, released: np.ndarray) -> None:
        """Take in a released histogram (Q, 2)."""
        ...


@dataclass(frozen=True)
class Descent:
    """Settings of a run; noise 0 releases exact sums."""

    n_rows: int
    sampling_rate: float
    steps: int = 200
    clip: float = 1.0
    gradient_noise: float = 0.0
    histogram_noise: float = 0.0
    learning_rate: float = 2.0
    momentum: float = 0.9


def train(
    part: Part, cells: np.ndarray, n_cells: int, penalty: Penalty, epsilon: float, delta: float, seed: int
) -> Model:
    """Train with full privacy: one row changes both releases of a step by at most their sensitivity."""
    rate, steps = min(0.5, 65_536 / len(part)), 200

    def events(scale: float) -> tuple[GaussianEvent, TrainingEvent]:
        training = TrainingEvent(
            rate, steps, gradient_noise=scale, histogram_noise=scale * (1.0 / _COUNTS_SHARE - 1.0) ** 0.5
        )
        spread = rate * steps**0.5  # noise of one release of all rows that costs about as much as the steps
        return GaussianEvent(scale / spread / _MOMENTS_SHARE**0.5), training

    plan = calibrate_plan(epsilon, delta, events)
    moments, training = plan.events
    streams = RandomStreams.from_seed(seed)
    prepare = _preparation(part, moments.noise, streams)
    settings = Descent(
        len(part), rate, steps, gradient_noise=training.gradient_noise, histogram_noise=training.histogram_noise
    )
    theta = np.zeros(0)
    for found in iterates(prepare(part), part.y, cells, n_cells, penalty, settings, streams):
        theta = found

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = expit(prepare(other) @ theta)
        return hard(soft), soft

    return Model(predict, plan.epsilon, delta, details={"steps": steps, "clip": settings.clip})


def iterates(
    Z: np.ndarray,
    y: np.ndarray,
    cells: np.ndarray,
    n_cells: int,
    penalty: Penalty,
    settings: Descent,
    streams: RandomStreams,
) -> Iterator[np.ndarray]:
    """Yield the weights after each step, which releases a clipped sum of gradients and counts."""
    theta, velocity = np.zeros(Z.shape[1]), np.zeros(Z.shape[1])
    norms = np.sqrt(np.einsum("ij,ij->i", Z, Z))
    expected_rows = settings.n_rows * settings.sampling_rate
    for step in range(settings.steps):
        rows = poisson_rows(settings.n_rows, settings.sampling_rate, streams.sampling)
        x, own = Z[rows], cells[rows]
        soft = expit(x @ theta)
        residual = penalty.loss_weight * (soft - y[rows]) + penalty.residual(soft, own)
        residual *= np.minimum(1.0, settings.clip / np.maximum(np.abs(residual) * norms[rows], 1e-12))
        gradient = _release(x.T @ residual, settings.clip, settings.gradient_noise, streams.gradient)
        velocity = settings.momentum * velocity + gradient / expected_rows
        theta = theta - settings.learning_rate * (1.0 - step / settings.steps) * velocity
        ones = np.bincount(own, penalty.counted(soft), n_cells)
        counts = np.column_stack([np.bincount(own, minlength=n_cells) - ones, ones])
        penalty.update(_release(counts, 1.0, settings.histogram_noise, streams.histogram))
        yield theta


def _release(value: np.ndarray, sensitivity: float, noise: float, rng: np.random.Generator) -> np.ndarray:
    return RoundedGaussianMechanism(noise, sensitivity).release(value, rng) if noise else value


def _preparation(part: Part, noise: float, streams: RandomStreams) -> Callable[[Part], np.ndarray]:
    """Return how rows are prepared: public bounds, then released means and standard deviations."""
    lower, upper = part.table.feature_bounds
    width, count = np.where(upper > lower, upper - lower, 1.0), len(lower)

    def bounded(other: Part) -> np.ndarray:
        return (np.clip(other.X, lower, upper) - lower) / width

    Z = bounded(part)
    sums = np.concatenate([Z.sum(axis=0), np.square(Z).sum(axis=0)])
    released = _release(sums, (2.0 * count) ** 0.5, noise, streams.preparation) / len(part)
    mean, square = np.clip(released[:count], 0.0, 1.0), released[count:]
    least = 2.0 * noise * (2.0 * count) ** 0.5 / len(part)  # variances below the noise level are not told apart
    deviation = np.sqrt(np.maximum(square - mean**2, max(least, 1e-4)))

    def prepare(other: Part) -> np.ndarray:
        scaled = (bounded(other) - mean) / deviation / count**0.5
        return np.hstack([scaled, np.ones((len(scaled), 1))])

    return prepare
