"""Two steps written out by hand, row by row and constraint by constraint, against the engine and the loop.

The oracle shares the features of the basis (dense), the samples and the noise with the library, and nothing
else: plain loops, numerical gradients, no table of weights, no closed form of a norm.
"""

import math

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.estimators.classifier import session_of
from ratewise.mechanisms.randomness import RandomStreams

N, D, RATE, GAP = 40, 3, 0.4, 0.02
CLIP, LEARNING_RATE, MOMENTUM, L2, TEMPERATURE = 0.7, 0.8, 0.5, 0.1, 2.0
EXPECTED = N * RATE


def rows_of_data(n_classes):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, D)) * 2
    X[3] = np.nan
    X[4] *= 100
    return X, rng.integers(0, n_classes, N), rng.integers(0, 2, N)


class KnownNoise:
    """Adds a fixed vector, so that the oracle can add the same."""

    standard_deviation = 1.5

    def __init__(self, seed):
        self._rng, self.added = np.random.default_rng(seed), []

    def release(self, value, rng):
        self.added.append(self._rng.normal(size=np.shape(value)))
        return value + self.added[-1]


def softmax(values):
    top = max(values)
    parts = [math.exp(value - top) for value in values]
    return [part / sum(parts) for part in parts]


def logits_of(x, theta, n_classes):
    """Two classes have the logits (0, z); more have one row of weights each, intercept last."""
    blocks = np.reshape(theta, (1 if n_classes == 2 else n_classes, -1))
    scores = [sum(a * b for a, b in zip(x, block[:-1], strict=True)) + block[-1] for block in blocks]
    return [0.0, *scores] if n_classes == 2 else scores


def objective(x, label, group, theta, n_classes, multipliers, sizes):
    """One row's part of the Lagrangian, times the expected sample: loss plus every constraint by itself."""
    logits = logits_of(x, theta, n_classes)
    value = -math.log(softmax(logits)[label])
    soft = softmax([TEMPERATURE * logit for logit in logits])
    for (klass, high, low), multiplier in multipliers.items():
        if group == high:
            value += EXPECTED * multiplier * soft[klass] / sizes[high]
        if group == low:
            value -= EXPECTED * multiplier * soft[klass] / sizes[low]
    return value


def numerical_gradient(function, theta, step=1e-6):
    columns = np.eye(len(theta)) * step
    return np.array([(function(theta + e) - function(theta - e)) / (2 * step) for e in columns])


def prepared(n_classes, rates):
    """Return a session up to the first step, and the dense features of all rows."""
    X, labels, groups = rows_of_data(n_classes)
    classifier = RateConstrainedClassifier(
        demographic_parity("g", max_gap=GAP),
        epsilon=1.0,
        classes=tuple(range(n_classes)),
        group_values={"g": (0, 1)},
        feature_bounds=(-4, 4),
        model="linear",
        random_state=4,
        config=TrainingConfig(
            steps=2,
            sampling_rate=RATE,
            clip=CLIP,
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            l2=L2,
            rates=rates,
            temperature=TEMPERATURE,
        ),
    )
    session = session_of(classifier, X, labels, sensitive_features={"g": groups})
    session.declare_and_plan()
    session.bound_units()
    session.discover()
    session.prepare()
    session.bind()
    bins = session.engine.bins.take(np.arange(N)).T
    matrix = session.basis.matrix.toarray()
    return session, sum(matrix[column] for column in bins) - session.basis.centre


def keys_of(compiled, n_classes):
    """Return (class, higher group, lower group) of every constraint of parity between two groups."""
    found = []
    for constraint in compiled.declared:
        (first, weight), (_, _) = constraint.expression.terms
        sign = 1 if constraint.sense == "<=" else -1
        group = 0 if "g=0" in first.of.name else 1
        group = group if sign * weight > 0 else 1 - group
        found.append((first.prediction, group, 1 - group))
    return found


@pytest.mark.parametrize("rates", ["hard", "soft"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_two_steps(n_classes, rates):
    _, labels, groups = rows_of_data(n_classes)
    session, features = prepared(n_classes, rates)
    loop = session.loop
    loop.gradient_mechanism, loop.histogram_mechanism = KnownNoise(1), KnownNoise(2)
    loop.dual.noise = 0.1  # such as to let the few rows of this table count
    scale = 1.0
    samples = [np.flatnonzero(np.random.default_rng(seed).random(N) < RATE) for seed in (5, 6)]
    keys = keys_of(session.compiled, n_classes)
    size = (features.shape[1] + 1) * (1 if n_classes == 2 else n_classes)
    theta, velocity = np.zeros(size), np.zeros(size)
    multipliers, sizes = dict.fromkeys(keys, 0.0), {0: 1.0, 1: 1.0}
    steps = loop.run(iter(samples), RandomStreams.from_seed(0))
    for step, sample in enumerate(samples):
        record = next(steps)
        counts = np.zeros((session.compiled.n_cells, n_classes))
        total = np.zeros(size)
        for row in sample:
            x = features[row]
            logits = logits_of(x, theta, n_classes)
            if rates == "soft":
                counts[groups[row]] += softmax(logits)
            else:
                counts[groups[row], logits.index(max(logits))] += 1
            gradient = (
                numerical_gradient(
                    lambda at, row=row, x=x, given=(multipliers, sizes): objective(
                        x, labels[row], groups[row], at, n_classes, *given
                    ),
                    theta,
                )
                / scale
            )
            total += gradient * min(1.0, CLIP / math.sqrt(sum(value**2 for value in gradient)))
        np.testing.assert_allclose(record.histogram, counts + loop.histogram_mechanism.added[step], atol=1e-5)
        total += loop.gradient_mechanism.added[step]
        for place in range(size):
            intercept = (place + 1) % (features.shape[1] + 1) == 0
            penalty = 0.0 if intercept else L2 * theta[place]
            velocity[place] = MOMENTUM * velocity[place] + total[place] / EXPECTED + penalty
        theta = theta - LEARNING_RATE * (1 - step / 2) * velocity
        np.testing.assert_allclose(loop.optimizer.parameters, theta, atol=1e-5)
        # multipliers and cell sizes are functions of released counts (tests/unit/test_dual_update.py)
        multipliers = dict(zip(keys, record.multipliers, strict=True))
        sizes = {group: max(loop.dual.cell_totals[group], 1.0) for group in (0, 1)}
        scale = loop.dual.scale
        assert math.log2(scale).is_integer()
    assert sum(multipliers.values()) > 0
