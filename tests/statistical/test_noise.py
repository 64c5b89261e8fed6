"""What a step releases carries the noise that the plan promises: right scale, one fresh draw per entry.

The loop itself is run on an engine whose sums are all zero, so that what comes out is noise and nothing else:
the cells of the histogram and the coordinates of the gradient, step after step. The same checks must then
reject noise that is ten percent off, a draw shared by two cells, and draws that come back in a later step.
"""

import numpy as np
import pytest
from scipy import stats

from ratewise.accounting import PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.families import demographic_parity
from ratewise.mechanisms.noise import RoundedGaussianMechanism, RoundedLaplaceMechanism
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.mechanisms.sampling import keyed_samples
from ratewise.models.additive import Sums
from ratewise.training.dual import DualUpdate
from ratewise.training.loop import GradientDescent, Loop
from ratewise.training.plan import TRAINING, Plan

LEVEL = 1e-4  # of a false alarm, per check; seeds are fixed
STEPS = 12_000
CLIP, SIGMA, SCALE = 0.5, 3.0, 7.0
N_PARAMETERS = 6

CONSTRAINTS = compile_constraints(
    [demographic_parity("g", max_gap=0.1)], Domain(classes=("a", "b", "c"), columns={"g": (1, 2, 3)})
)
SHAPE = (CONSTRAINTS.n_cells, CONSTRAINTS.n_classes)


class Silent:
    """An engine whose private sums are zero; it keeps the samples."""

    n_parameters = N_PARAMETERS
    count_step = 1.0

    def __init__(self, counted=True):
        self.counted = counted
        self.samples = []

    def slack(self, rows):
        return 0.0

    def sums(self, sample, parameters, weights, clip):
        self.samples.append(sample)
        return Sums(np.zeros(N_PARAMETERS), np.zeros(SHAPE) if self.counted else None)


def trained(event, n_rows, seed, clip=CLIP):
    """Yield the loop and the record after every step of a training on an engine without rows."""
    engine = Silent(event.histogram_noise is not None)
    plan = Plan(n_rows, event.sampling_rate, event.steps, {TRAINING: event}, PrivacyUnit(), "zero_out", 1.0, 1e-5)
    streams = RandomStreams.from_seed(seed)
    dual = None
    if engine.counted:
        dual = DualUpdate(
            CONSTRAINTS, total=n_rows, sampling_rate=event.sampling_rate, noise=SCALE, rate=0.0, damping=0.0
        )
    optimizer = GradientDescent(np.zeros(N_PARAMETERS), 1.0, event.steps, momentum=0.0, schedule="constant")
    loop = Loop(
        engine,
        optimizer,
        dual,
        plan.gradient_mechanism(clip, engine.slack(n_rows)),
        plan.histogram_mechanism(engine.count_step),
        clip,
        plan.expected_units,
    )
    samples = keyed_samples(n_rows, event.sampling_rate, event.steps, streams.sampling)
    for record in loop.run((sample.units(0, n_rows) for sample in samples), streams):
        yield loop, record


def released(law, seed=0):
    """Tables of steps x entries, in units of the promised noise: histogram cells, gradient coordinates."""
    event = TrainingEvent(0.25, STEPS, SIGMA, SCALE, law)
    cells, gradients, before = [], [], np.zeros(N_PARAMETERS)
    for loop, record in trained(event, 40, seed):
        cells.append(record.histogram.ravel() / SCALE)
        after = loop.optimizer.parameters.copy()
        gradients.append((before - after) * loop.expected_units / (SIGMA * CLIP))
        before = after
    assert len(cells) == len(gradients) == STEPS
    return np.array(cells), np.array(gradients)


def scale_is_right(noise, law):
    """Smallest p-value over entries (Bonferroni) of Kolmogorov-Smirnov and of the second moment."""
    reference = stats.norm if law == "gaussian" else stats.laplace
    p_values = []
    for column in noise.T:
        p_values.append(stats.kstest(column, reference.cdf).pvalue)
        variance, fourth = reference.stats(moments="v"), reference.moment(4)
        z = (np.mean(column**2) - variance) / np.sqrt((fourth - variance**2) / len(column))
        p_values.append(2 * stats.norm.sf(abs(z)))
    return min(p_values) * len(p_values)


def entries_are_independent(noise):
    """Correlations of all pairs of entries, of the values and of their sizes (Bonferroni)."""
    p_values = []
    for values in (noise, np.abs(noise)):
        scores = (values - values.mean(axis=0)) / values.std(axis=0)
        correlation = scores.T @ scores / np.sqrt(len(scores))
        p_values.append(2 * stats.norm.sf(np.abs(correlation[np.triu_indices(noise.shape[1], 1)])))
    p_values = np.concatenate(p_values)
    return float(p_values.min() * p_values.size)


def steps_are_independent(noise):
    """Correlation of every entry with every entry of the next steps (Bonferroni)."""
    scores = (noise - noise.mean(axis=0)) / noise.std(axis=0)
    p_values = []
    for lag in (1, 2, 3):
        correlation = scores[:-lag].T @ scores[lag:] / np.sqrt(len(scores) - lag)
        p_values.append(2 * stats.norm.sf(np.abs(correlation)).ravel())
    p_values = np.concatenate(p_values)
    return float(p_values.min() * p_values.size)


@pytest.fixture(scope="module", params=["gaussian", "laplace"])
def run(request):
    return request.param, *released(request.param)


class TestOurNoise:
    def test_scale_of_every_cell(self, run):
        law, cells, _ = run
        assert scale_is_right(cells, law) > LEVEL

    def test_scale_of_every_coordinate(self, run):
        _, _, gradients = run
        assert scale_is_right(gradients, "gaussian") > LEVEL

    def test_cells_and_coordinates_are_independent(self, run):
        _, cells, gradients = run
        assert entries_are_independent(np.hstack([cells, gradients])) > LEVEL

    def test_steps_are_independent(self, run):
        _, cells, gradients = run
        assert steps_are_independent(np.hstack([cells, gradients])) > LEVEL


class TestPower:
    """The same checks see what must never happen."""

    def noise(self, law="gaussian"):
        rng = np.random.default_rng(3)
        mechanism = RoundedGaussianMechanism(1.0) if law == "gaussian" else RoundedLaplaceMechanism(1.0)
        return np.array([mechanism.release(np.zeros(9), rng) for _ in range(STEPS)])

    @pytest.mark.parametrize("law", ["gaussian", "laplace"])
    @pytest.mark.parametrize("factor", [0.9, 1.1])
    def test_one_cell_off_by_ten_percent(self, law, factor):
        noise = self.noise(law)
        assert scale_is_right(noise, law) > LEVEL
        noise[:, 4] *= factor
        assert scale_is_right(noise, law) < LEVEL

    def test_the_other_law_of_the_same_variance(self):
        assert scale_is_right(self.noise("laplace") / np.sqrt(2), "gaussian") < LEVEL

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_a_draw_shared_by_two_cells(self, sign):
        noise = self.noise()
        assert entries_are_independent(noise) > LEVEL
        noise[:, 7] = sign * noise[:, 2]
        assert entries_are_independent(noise) < LEVEL

    def test_a_draw_shared_with_random_sign(self):
        noise = self.noise()
        noise[:, 7] = noise[:, 2] * np.random.default_rng(0).choice([-1, 1], STEPS)
        assert entries_are_independent(noise) < LEVEL

    def test_a_weak_common_part(self):
        noise = self.noise()
        noise[:, :2] += 0.3 * np.random.default_rng(0).normal(size=(STEPS, 1))
        assert entries_are_independent(noise) < LEVEL

    def test_noise_that_comes_back_in_the_next_step(self):
        noise = self.noise()
        assert steps_are_independent(noise) > LEVEL
        noise[1::2] = noise[::2]
        assert steps_are_independent(noise) < LEVEL


def test_leaving_out_the_histogram_moves_neither_sample_nor_gradient_noise():
    seen = {}
    for counted in (True, False):
        noise = (1.0, "gaussian") if counted else (None, None)
        *_, (loop, _) = trained(TrainingEvent(0.1, 20, 1.0, *noise), 200, seed=9, clip=1.0)
        seen[counted] = loop.engine.samples, loop.optimizer.parameters
    assert all(np.array_equal(a, b) for a, b in zip(seen[True][0], seen[False][0], strict=True))
    np.testing.assert_array_equal(seen[True][1], seen[False][1])
