"""A private linear engine for peers: the library's plan, sampler, releases and ledger around another penalty.

A peer says three things: what its rows add to the residual, what is counted of them, and what it makes of
the released counts. All else (private standardisation, clipping, noise, step sizes, penalty on
weights, averaging, budget) is what the library's own defaults would do, so that methods differ in their
penalty and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from scipy.special import expit

from benchmarks.suite.methods.base import Model, hard
from benchmarks.suite.problem import Part
from ratewise.accounting import Budget, Event, Ledger
from ratewise.defaults import PublicFacts, plan_for
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.scaling import Scaling
from ratewise.standardisation import standardise


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


def train(
    part: Part, cells: np.ndarray, n_cells: int, penalty: Penalty, epsilon: float, delta: float, seed: int
) -> Model:
    """Train with full privacy: one row changes both releases of a step by at most their sensitivity."""
    facts = PublicFacts(
        n_rows=len(part),
        n_features=part.X.shape[1],
        n_classes=2,
        constraints=part.compiled(0.5),
        bounded=True,
    )
    plan = plan_for(facts, epsilon=epsilon, delta=delta, rates="soft")
    ledger = Ledger(cap=Budget(epsilon, delta))
    streams = RandomStreams.from_seed(seed)
    prepare = _preparation(part, plan, streams, ledger)
    for average in iterates(prepare(part), part.y, cells, n_cells, penalty, plan, streams):
        theta = average
    ledger.book(plan.step_event.with_steps(plan.steps), purpose="train")

    def predict(other: Part) -> tuple[np.ndarray, np.ndarray]:
        soft = expit(prepare(other) @ theta)
        return hard(soft), soft

    return Model(predict, ledger.total_epsilon, delta, details={"steps": plan.steps, "clip": plan.clip})


def iterates(
    Z: np.ndarray,
    y: np.ndarray,
    cells: np.ndarray,
    n_cells: int,
    penalty: Penalty,
    plan: Plan,
    streams: RandomStreams,
) -> Iterator[np.ndarray]:
    """Yield the averaged iterate after each step, which releases a clipped sum of gradients and counts."""
    theta, velocity, average = (np.zeros(Z.shape[1]) for _ in range(3))
    norms = np.sqrt(np.einsum("ij,ij->i", Z, Z))
    rates, weights = plan.learning_rates(), plan.averaging_weights()
    reach = np.append(np.full(len(theta) - 1, plan.l1 / (1.0 - plan.momentum)), 0.0)  # intercepts are spared
    for step, rows in enumerate(plan.sampler.batches(plan.steps, streams.sampling)):
        x, own = Z[rows], cells[rows]
        soft = expit(x @ theta)
        residual = penalty.loss_weight * (soft - y[rows]) + penalty.residual(soft, own)
        if plan.clip is not None:
            residual *= np.minimum(1.0, plan.clip / np.maximum(np.abs(residual) * norms[rows], 1e-12))
        gradient = plan.gradient_mechanism.release(x.T @ residual, streams.gradient) / plan.expected_rows
        velocity = plan.momentum * velocity + gradient
        theta = theta - rates[step] * velocity
        theta = np.sign(theta) * np.maximum(np.abs(theta) - rates[step] * reach, 0.0)
        average = average + weights[step] * (theta - average)
        ones = np.bincount(own, penalty.counted(soft), n_cells)
        counts = np.column_stack([np.bincount(own, minlength=n_cells) - ones, ones])
        penalty.update(plan.histogram_mechanism.release(counts, streams.histogram))
        yield average


def _preparation(
    part: Part, plan: Plan, streams: RandomStreams, ledger: Ledger
) -> Callable[[Part], np.ndarray]:
    """Return how rows are prepared: public bounds, released means and deviations, a bound on their norm."""
    lower, upper = part.table.feature_bounds
    scaling = Scaling(lower, upper)
    if plan.preparation is not None:

        def book(event: Event, purpose: str) -> None:
            ledger.book(event, purpose=purpose)

        scaling = standardise(part.X, scaling, None, plan.preparation, streams.preparation, book)

    def prepare(other: Part) -> np.ndarray:
        Z = (np.clip(other.X, lower, upper) - lower) / np.where(upper > lower, upper - lower, 1.0)
        if scaling.mean is not None and scaling.deviation is not None:
            Z = (Z - scaling.mean) / scaling.deviation
        if plan.row_norm is not None:
            length = np.sqrt(np.einsum("ij,ij->i", Z, Z))
            Z *= np.minimum(1.0, plan.row_norm / np.maximum(length, 1e-12))[:, None]
        return np.hstack([Z, np.ones((len(Z), 1))])

    return prepare
