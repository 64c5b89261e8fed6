"""Without noise and clipping, the loop finds what independent solvers find on the same features.

Without constraints the problem is convex and the solution unique: scikit-learn's logistic regression. With
constraints on soft rates it is smooth but not convex, so SLSQP starts from several points; on these data its
answers agree. Training must reach that point and end at its multipliers.
"""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity, false_negative_rate
from ratewise.estimators.classifier import session_of

N, L2 = 240, 0.02


def rows_of_data(n_classes):
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 2, N)
    X = rng.normal(size=(N, 2)) + groups[:, None] * np.array([1.2, -0.5])
    scores = X @ rng.normal(size=(2, n_classes)) * 1.5 + rng.gumbel(size=(N, n_classes))
    return X, scores.argmax(axis=1), groups


def trained(n_classes, model, constraints=None, steps=2000, **settings):
    """Return a finished session without privacy."""
    X, labels, groups = rows_of_data(n_classes)
    config = TrainingConfig(
        steps=steps,
        sampling_rate=1.0,
        momentum=0.8,
        schedule="constant",
        clip=1e6,  # beyond every gradient
        group_penalty=0.0,  # the oracles have none
        rates="soft",
        **{"l2": L2, "learning_rate": 0.05, **settings},
    )
    classifier = RateConstrainedClassifier(
        constraints,
        epsilon=None,
        classes=tuple(range(n_classes)),
        group_values={"g": (0, 1)},
        feature_bounds=(-4, 5),
        model=model,
        config=config,
    )
    session = session_of(classifier, X, labels, sensitive_features={"g": groups})
    session.run()
    return session


def features_of(session):
    """Return the dense features of all rows: one row of the basis matrix per column, centred."""
    bins = session.engine.bins.take(np.arange(N)).T
    matrix = session.basis.matrix.toarray()
    return sum(matrix[column] for column in bins) - session.basis.centre


def logits(features, theta, n_classes):
    if n_classes == 2:
        return np.column_stack([np.zeros(N), features @ theta[:-1] + theta[-1]])
    table = theta.reshape(n_classes, -1)
    return features @ table[:, :-1].T + table[:, -1]


def loss(theta, features, labels, n_classes, l2=L2):
    weights = theta.reshape(-1, features.shape[1] + 1)[:, :-1]
    fit = -log_softmax(logits(features, theta, n_classes), axis=1)[np.arange(N), labels].mean()
    return fit + l2 / 2 * np.sum(weights**2)


@pytest.mark.parametrize("model", ["additive", "linear"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_constraints_it_is_logistic_regression(n_classes, model):
    _, labels, _ = rows_of_data(n_classes)
    session = trained(n_classes, model)
    features = features_of(session)
    oracle = LogisticRegression(C=1 / (N * L2), tol=1e-10, max_iter=10_000).fit(features, labels)
    found = softmax(logits(features, session.parameters, n_classes), axis=1)
    np.testing.assert_allclose(found, oracle.predict_proba(features), atol=1e-3)
    theta = np.column_stack([oracle.coef_, oracle.intercept_]).ravel()
    best = loss(theta, features, labels, n_classes)
    assert loss(session.parameters, features, labels, n_classes) == pytest.approx(best, abs=1e-4)
    used = np.count_nonzero(np.ptp(features, axis=0) > 0)
    assert used == 2 if model == "linear" else used > 10


def rates(theta, features, keep):
    return softmax(logits(features, theta, 2), axis=1)[keep].mean(axis=0)


CASES = {
    "parity": demographic_parity("g", max_gap=0.05),
    "loose parity": demographic_parity("g", max_gap=0.9),
    "false negatives": false_negative_rate(0.1),
}


def slacks_of(name, features):
    _, labels, groups = rows_of_data(2)
    if name == "false negatives":
        return lambda theta: np.array([0.1 - rates(theta, features, labels == 1)[0]])
    gap = 0.05 if name == "parity" else 0.9

    def slacks(theta):
        difference = rates(theta, features, groups == 0)[1] - rates(theta, features, groups == 1)[1]
        return np.array([gap - difference, gap + difference])

    return slacks


@pytest.mark.parametrize("name", CASES)
def test_with_constraints_it_is_the_constrained_optimum(name):
    """Without a penalty, whose weight relative to the loss grows with the multipliers."""
    _, labels, _ = rows_of_data(2)
    session = trained(2, "linear", CASES[name], steps=4000, dual_rate=10.0, learning_rate=0.2, l2=0.0)
    features = features_of(session)
    slacks = slacks_of(name, features)
    size = features.shape[1] + 1
    answers = [
        minimize(
            loss,
            start,
            args=(features, labels, 2, 0.0),
            method="SLSQP",
            constraints=[{"type": "ineq", "fun": slacks}],
            options={"ftol": 1e-12, "maxiter": 1000},
        )
        for start in (np.zeros(size), *np.random.default_rng(0).normal(size=(2, size)))
    ]
    assert np.ptp([answer.fun for answer in answers]) < 1e-6  # one answer from all starts
    best = answers[0]
    theta = session.parameters
    assert loss(theta, features, labels, 2, l2=0.0) == pytest.approx(best.fun, abs=1e-4)
    assert slacks(theta).min() > -1e-3
    binding = slacks(best.x) < 1e-6
    assert binding.any() == (name != "loose parity")
    np.testing.assert_allclose(
        softmax(logits(features, theta, 2), axis=1), softmax(logits(features, best.x, 2), axis=1), atol=5e-3
    )
    multipliers = session.loop.dual.multipliers
    assert (multipliers.max() > 1e-3) == bool(binding.any())
