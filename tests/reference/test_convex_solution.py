"""Without noise and clipping, the loop finds what general solvers find.

Without constraints the problem is convex and the solution unique. With limits on soft rates it is smooth but
not convex in theta, so the independent solver starts from several points; on these data its answers agree.
The engine must reach that point, meet its Karush-Kuhn-Tucker conditions and end at its multipliers.
"""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from ratewise.domain import Domain
from ratewise.families import demographic_parity, false_negative_rate
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.training import Training

N, L2 = 240, 0.02


def rows_of_data(n_classes):
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 2, N)
    X = rng.normal(size=(N, 2)) + groups[:, None] * np.array([1.2, -0.5])
    scores = X @ rng.normal(size=(2, n_classes)) * 1.5 + rng.gumbel(size=(N, n_classes))
    return X, scores.argmax(axis=1), groups


def logits(X, theta, n_classes):
    if n_classes == 2:
        z = X @ theta[:2] + theta[2]
        return np.stack([np.zeros(N), z], axis=1)
    table = theta.reshape(n_classes, 3)
    return X @ table[:, :2].T + table[:, 2]


def loss(theta, X, labels, n_classes):
    weights = theta.reshape(-1, 3)[:, :2]
    fit = -log_softmax(logits(X, theta, n_classes), axis=1)[np.arange(N), labels].mean()
    return fit + L2 / 2 * np.sum(weights**2)


def rates(theta, X, keep, n_classes):
    return softmax(logits(X, theta, n_classes), axis=1)[keep].mean(axis=0)


def numerical(function, theta, step=1e-6):
    columns = [
        (np.asarray(function(theta + step * e)) - np.asarray(function(theta - step * e))) / (2 * step)
        for e in np.eye(len(theta))
    ]
    return np.stack(columns, axis=-1)


def engine_solution(family, n_classes, steps=5000, l1=0.0):
    X, labels, groups = rows_of_data(n_classes)
    constraints = None
    if family is not None:
        domain = Domain(classes=tuple(range(n_classes)), columns={"g": (0, 1)})
        constraints = compile_constraints([family], domain)
    plan = Plan(
        n_rows=N,
        sampling_rate=1.0,
        steps=steps,
        clip=None,
        gradient_noise=None,
        private=False,
        learning_rate=0.3,
        momentum=0.8,
        l1=l1,
        l2=L2,
        averaging="none",
        rates="soft",
        dual=DualControl(rate=0.1, proportional=2.0),
    )
    counted = {}
    if constraints is not None:
        counted = {"cells": constraints.cells(labels, {"g": groups}), "n_cells": constraints.n_cells}
    engine = LinearEngine(plan, X, labels, n_classes, **counted)
    training = Training(plan, engine, None if constraints is None else Multipliers(constraints, plan))
    for record in training.run(RandomStreams.from_seed(0)):
        last = record
    return training.theta, last


def solver_solution(slacks, n_classes):
    """SLSQP from several starts; `slacks(theta) >= 0` is the feasible set."""
    X, labels, _ = rows_of_data(n_classes)
    size = 3 if n_classes == 2 else 3 * n_classes
    rng = np.random.default_rng(0)
    found = []
    for start in [np.zeros(size), *rng.normal(size=(4, size))]:
        answer = minimize(
            loss,
            start,
            args=(X, labels, n_classes),
            method="SLSQP",
            constraints=[] if slacks is None else [{"type": "ineq", "fun": slacks}],
            options={"ftol": 1e-12, "maxiter": 1000},
        )
        assert answer.success
        found.append(answer)
    values = [answer.fun for answer in found]
    assert max(values) - min(values) < 1e-7  # one answer from all starts
    return found[0]


def parity_slacks(gap, n_classes):
    X, _, groups = rows_of_data(n_classes)

    def slacks(theta):
        difference = rates(theta, X, groups == 0, n_classes) - rates(theta, X, groups == 1, n_classes)
        difference = difference[1:] if n_classes == 2 else difference
        return np.concatenate([gap - difference, gap + difference])

    return slacks


def miss_slacks(limit):
    X, labels, _ = rows_of_data(2)
    return lambda theta: np.array([limit - rates(theta, X, labels == 1, 2)[0]])


CASES = {
    "parity": (demographic_parity("g", max_gap=0.05), parity_slacks(0.05, 2), 2),
    "loose parity": (demographic_parity("g", max_gap=0.9), parity_slacks(0.9, 2), 2),
    "false negatives": (false_negative_rate(0.1), miss_slacks(0.1), 2),
    "parity of three classes": (demographic_parity("g", max_gap=0.1), parity_slacks(0.1, 3), 3),
}


@pytest.mark.parametrize("l1", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_penalty_on_sizes(n_classes, l1):
    """Against a bounded solver on the positive and negative parts of theta, where it is smooth."""
    X, labels, _ = rows_of_data(n_classes)
    theta, _ = engine_solution(None, n_classes, steps=3000, l1=l1)
    size = len(theta)
    costs = l1 * np.tile(np.tile([1.0, 1.0, 0.0], size // 3), 2)
    answer = minimize(
        lambda parts: loss(parts[:size] - parts[size:], X, labels, n_classes) + costs @ parts,
        np.full(2 * size, 0.1),
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * size),
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000, "maxfun": 10**6},
    )
    reached = loss(theta, X, labels, n_classes) + costs[:size] @ np.abs(theta)
    assert reached == pytest.approx(answer.fun, abs=1e-7)
    weights = theta.reshape(-1, 3)[:, :2]
    if l1 == 0.5:
        assert not weights.any()
        assert theta.reshape(-1, 3)[:, 2].any()  # intercepts are spared
    else:
        assert weights.any()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_constraints(n_classes):
    X, labels, _ = rows_of_data(n_classes)
    theta, _ = engine_solution(None, n_classes, steps=3000)
    best = solver_solution(None, n_classes)
    assert loss(theta, X, labels, n_classes) == pytest.approx(best.fun, abs=1e-8)
    assert np.abs(numerical(lambda at: loss(at, X, labels, n_classes), theta)).max() < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_with_constraints(name):
    family, slacks, n_classes = CASES[name]
    X, labels, _ = rows_of_data(n_classes)
    theta, _ = engine_solution(family, n_classes)
    best = solver_solution(slacks, n_classes)
    assert loss(theta, X, labels, n_classes) == pytest.approx(best.fun, abs=1e-7)
    assert slacks(theta).min() > -1e-6
    binding = slacks(best.x) < 1e-6
    assert binding.any() == (name != "loose parity")
    np.testing.assert_allclose(slacks(theta)[binding], 0.0, atol=1e-6)
    np.testing.assert_allclose(
        softmax(logits(X, theta, n_classes), axis=1),
        softmax(logits(X, best.x, n_classes), axis=1),
        atol=1e-4,
    )


@pytest.mark.parametrize("name", ["parity", "false negatives"])
def test_multipliers_are_those_of_the_optimum(name):
    """At the optimum the loss' gradient is the multipliers times the gradients of the binding constraints."""
    family, slacks, n_classes = CASES[name]
    X, labels, _ = rows_of_data(n_classes)
    _, record = engine_solution(family, n_classes)
    best = solver_solution(slacks, n_classes).x
    of_loss = numerical(lambda at: loss(at, X, labels, n_classes), best)
    of_slacks = numerical(slacks, best)[slacks(best) < 1e-6]
    expected, residual, *_ = np.linalg.lstsq(of_slacks.T, of_loss, rcond=None)
    assert residual.sum() < 1e-8
    np.testing.assert_allclose(record.multipliers.max(), expected.max(), rtol=1e-3)
