"""Two steps written out by hand, row by row and constraint by constraint, against the engine.

The oracle below shares nothing with the library but the draws: it reads the same streams of random numbers,
in the order the documentation gives. Plain loops, no table of weights, no closed form of the norm.
"""

import math

import numpy as np
import pytest
import scipy.sparse

from ratewise.domain import Domain
from ratewise.families import demographic_parity
from ratewise.linear import LinearEngine
from ratewise.multipliers import Multipliers
from ratewise.partition import compile_constraints
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams
from ratewise.sampling import PoissonSampler
from ratewise.scaling import Scaling
from ratewise.training import Training

N, D, RATE, GAP, SEED = 30, 3, 0.4, 0.02, 4
CLIP, SIGMA, HISTOGRAM_NOISE = 0.7, 0.5, 1.5
LEARNING_RATE, MOMENTUM, L1, L2 = 0.8, 0.5, 0.02, 0.1
DUAL_RATE, TEMPERATURE, ROW_NORM = 3.0, 2.0, 1.5


def rows_of_data(n_classes):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, D)) * 2
    X[3] = 0.0
    X[4] *= 100
    groups = rng.integers(0, 2, N)
    labels = rng.integers(0, n_classes, N)
    return X, labels, groups


def softmax(logits):
    top = max(logits)
    parts = [math.exp(value - top) for value in logits]
    return [part / sum(parts) for part in parts]


def logits_of(x, theta, n_classes):
    """Two classes have the logits (0, z); more have one row of weights each, intercept last."""
    if n_classes == 2:
        return [0.0, sum(x[j] * theta[j] for j in range(D)) + theta[D]]
    blocks = [theta[k * (D + 1) : (k + 1) * (D + 1)] for k in range(n_classes)]
    return [sum(x[j] * block[j] for j in range(D)) + block[D] for block in blocks]


def objective(x, label, group, theta, n_classes, multipliers, sizes, batch):
    """One row's share of the Lagrangian, times the expected batch: loss plus every constraint by itself."""
    logits = logits_of(x, theta, n_classes)
    value = -math.log(softmax(logits)[label])
    soft = softmax([TEMPERATURE * logit for logit in logits])
    for (klass, high, low), multiplier in multipliers.items():
        if group == high:
            value += batch * multiplier * soft[klass] / sizes[high]
        if group == low:
            value -= batch * multiplier * soft[klass] / sizes[low]
    return value


def numerical_gradient(function, theta, step=1e-6):
    gradient = []
    for j in range(len(theta)):
        up, down = list(theta), list(theta)
        up[j] += step
        down[j] -= step
        gradient.append((function(up) - function(down)) / (2 * step))
    return gradient


def by_hand(n_classes, rates, steps=2):
    """Return theta, average and multipliers after the steps, and the released histograms (group x class)."""
    X, labels, groups = rows_of_data(n_classes)
    streams = RandomStreams.from_seed(SEED)
    batch = N * RATE
    size = (D + 1) * (1 if n_classes == 2 else n_classes)
    theta, velocity, iterates = [0.0] * size, [0.0] * size, []
    telling = [1] if n_classes == 2 else list(range(n_classes))
    multipliers = {(k, high, 1 - high): 0.0 for k in telling for high in (0, 1)}
    sizes, released = {0: 1.0, 1: 1.0}, []
    for step, picked in enumerate(PoissonSampler(N, RATE).batches(steps, streams.sampling)):
        pace = LEARNING_RATE * (1 - step / steps)
        counts = np.zeros((2, n_classes))
        total = np.zeros(size)
        for row in picked:
            norm = math.sqrt(sum(value**2 for value in X[row]))
            x = [value * min(1.0, ROW_NORM / norm) if norm > 0 else 0.0 for value in X[row]]
            logits = logits_of(x, theta, n_classes)
            if rates == "soft":
                counts[groups[row]] += softmax([TEMPERATURE * logit for logit in logits])
            else:
                counts[groups[row], logits.index(max(logits))] += 1
            gradient = numerical_gradient(
                lambda at, x=x, row=row, sizes=sizes: objective(
                    x, labels[row], groups[row], at, n_classes, multipliers, sizes, batch
                ),
                theta,
            )
            length = math.sqrt(sum(value**2 for value in gradient))
            total += np.array(gradient) * min(1.0, CLIP / length)
        total += SIGMA * CLIP * streams.gradient.standard_normal(size)
        counts += HISTOGRAM_NOISE * streams.histogram.standard_normal((2, n_classes))
        released.append(counts)
        mean_sizes = np.mean([table.sum(axis=1) for table in released], axis=0)
        floor = max(1.0, 2.0 * HISTOGRAM_NOISE * math.sqrt(n_classes / len(released)))
        sizes = {group: max(mean_sizes[group], floor) for group in (0, 1)}
        for key in multipliers:
            klass, high, low = key
            shares = [min(1.0, max(0.0, counts[g, klass] / sizes[g])) for g in (high, low)]
            multipliers[key] = max(0.0, multipliers[key] + DUAL_RATE * (shares[0] - shares[1] - GAP))
        for j in range(size):
            penalty = 0.0 if j % (D + 1) == D else L2 * theta[j]
            velocity[j] = MOMENTUM * velocity[j] + total[j] / batch + penalty
        theta = [theta[j] - pace * velocity[j] for j in range(size)]
        for j in range(size):
            if j % (D + 1) != D:
                length = max(0.0, abs(theta[j]) - pace * L1 / (1 - MOMENTUM))
                theta[j] = math.copysign(length, theta[j])
        iterates.append(theta)
    return np.array(theta), np.mean(iterates, axis=0), multipliers, released


def by_engine(n_classes, rates, store=np.asarray, dtype=np.float64, **changes):
    X, labels, groups = rows_of_data(n_classes)
    domain = Domain(classes=tuple(range(n_classes)), columns={"g": (0, 1)})
    constraints = compile_constraints([demographic_parity("g", max_gap=GAP)], domain)
    plan = Plan(
        **{
            "n_rows": N,
            "sampling_rate": RATE,
            "steps": 2,
            "clip": CLIP,
            "gradient_noise": SIGMA,
            "histogram_noise": HISTOGRAM_NOISE,
            "row_norm": ROW_NORM,
            "learning_rate": LEARNING_RATE,
            "schedule": "linear",
            "momentum": MOMENTUM,
            "l1": L1,
            "l2": L2,
            "averaging_fraction": 1.0,
            "temperature": TEMPERATURE,
            "rates": rates,
            "dual": DualControl(rate=DUAL_RATE),
            **changes,
        }
    )
    cells = constraints.cells(labels, {"g": groups})
    engine = LinearEngine(
        plan, store(X.astype(dtype)), labels, n_classes, cells=cells, n_cells=constraints.n_cells
    )
    training = Training(plan, engine, Multipliers(constraints, plan))
    records = list(training.run(RandomStreams.from_seed(SEED)))
    order = [cells[groups == group][0] for group in (0, 1)]
    return training, records, order


@pytest.mark.parametrize("rates", ["hard", "soft"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("block_rows", [None, 3])
def test_two_steps(n_classes, rates, block_rows):
    theta, average, multipliers, released = by_hand(n_classes, rates)
    training, records, order = by_engine(n_classes, rates, block_rows=block_rows)
    assert order == [0, 1]  # the noise of the oracle falls on the same cells as the engine's
    np.testing.assert_allclose(training.descent.theta, theta, atol=1e-7)
    np.testing.assert_allclose(training.theta, average, atol=1e-7)
    for record, table in zip(records, released, strict=True):
        np.testing.assert_allclose(record.histograms, [table], atol=1e-9)
    assert sum(multipliers.values()) > 0  # the second step felt the constraints
    np.testing.assert_allclose(sorted(records[-1].multipliers), sorted(multipliers.values()), atol=1e-7)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    ("store", "dtype", "tolerance"),
    [
        (scipy.sparse.csr_array, np.float64, 1e-7),
        (scipy.sparse.csc_matrix, np.float64, 1e-7),
        (np.asfortranarray, np.float64, 1e-7),
        (np.asarray, np.float32, 3e-5),
        (scipy.sparse.csr_matrix, np.float32, 3e-5),
        (lambda X: X.view(np.memmap), np.float32, 3e-5),
    ],
)
def test_every_way_of_storing_rows(n_classes, store, dtype, tolerance):
    theta, _, _, _ = by_hand(n_classes, "hard")
    training, *_ = by_engine(n_classes, "hard", store, dtype)
    np.testing.assert_allclose(training.descent.theta, theta, atol=tolerance)


def test_binary_equals_a_softmax_of_two_classes():
    """The margin form scores like a two-class softmax: same losses, same soft predictions."""
    rng = np.random.default_rng(0)
    margins = rng.normal(size=50) * 3
    for margin in margins:
        both = softmax([-TEMPERATURE * margin / 2, TEMPERATURE * margin / 2])
        assert both[1] == pytest.approx(1 / (1 + math.exp(-TEMPERATURE * margin)))


def test_scaling_by_public_bounds_is_folded_in():
    X, labels, _ = rows_of_data(2)
    lower, upper = np.array([-1.0, -2.0, 0.0]), np.array([1.0, 3.0, 0.0])
    scaled = np.clip((X - lower) / np.where(upper > lower, upper - lower, 1), 0, 1)
    scaled[:, 2] = 0.0
    plan = Plan(n_rows=N, sampling_rate=1.0, steps=1, clip=0.5, gradient_noise=1.0)
    theta = np.array([0.3, -0.2, 0.9, 0.1])
    raw = LinearEngine(plan, X, labels, 2, scaling=Scaling(lower, upper))
    ready = LinearEngine(plan, scaled, labels, 2)
    rows = np.arange(N)
    np.testing.assert_allclose(raw.sums(rows, theta, None)[0], ready.sums(rows, theta, None)[0])
    np.testing.assert_allclose(raw.model.scores(X, theta), ready.model.scores(scaled, theta))
