"""Intervals of a private evaluation cover the population's values, noise and sampling together; with power.

Samples of a known population and fresh noise, fixed seeds. A nominal 95% interval must cover at least 93% of
the time on average over what is told, and no single one less than 90%. The same check must turn red if the
noise is taken for half of what it is.
"""

import numpy as np
import pytest

from ratewise import demographic_parity, equalized_odds, everyone, label, rate
from ratewise.domain import Domain
from ratewise.evaluation import Measured

GROUPS = ("a", "b", "c")
DOMAIN = Domain((0, 1), {"g": GROUPS})
CONSTRAINTS = [
    demographic_parity("g", max_gap=0.05),
    equalized_odds("g", max_gap=0.1),
    rate(1, where=label(1), out_of=everyone) >= 0.5,
    rate(1) <= 0.4,
]
SHARES, BASE = np.array([0.6, 0.3, 0.1]), np.array([0.4, 0.3, 0.2])
HIT, FALSE_ALARM = np.array([0.8, 0.7, 0.6]), np.array([0.1, 0.05, 0.02])
REPEATS = 200


def population_table(measured):
    """Return the exact probabilities of cell and prediction, from the law itself."""
    table = np.zeros((measured.partition.n_cells, 2))
    for g in range(3):
        for y in (0, 1):
            cell = measured.partition.cells(np.array([y]), {"g": np.array([GROUPS[g]])})[0]
            share = SHARES[g] * (BASE[g] if y else 1 - BASE[g])
            positive = HIT[g] if y else FALSE_ALARM[g]
            table[cell] += share * np.array([1 - positive, positive])
    return table


def coverage(n_rows, noise, believed, seed):
    measured = Measured(CONSTRAINTS, DOMAIN)
    law = population_table(measured)
    truth = np.array([e.value for e in measured.estimates(law * 1e9, 10**9, 1e-9, 0.95)])
    rng = np.random.default_rng(seed)
    covered, told = np.zeros(len(truth)), np.zeros(len(truth))
    for _ in range(REPEATS):
        counts = rng.multinomial(n_rows, law.ravel()).reshape(law.shape)
        released = counts + noise * rng.standard_normal(law.shape)
        found = measured.estimates(released, n_rows, believed, 0.95)
        low, high = np.array([e.interval for e in found]).T
        told += ~np.isnan(low)
        covered += (low <= truth) & (truth <= high)
    often = told > REPEATS / 2
    return covered[often] / told[often]


@pytest.mark.parametrize(("n_rows", "noise"), [(20_000, 37.0), (2_000, 5.0)])
def test_intervals_cover_noise_and_sampling(n_rows, noise):
    found = coverage(n_rows, noise, noise, seed=1)
    assert len(found) >= 10
    assert found.mean() >= 0.93
    assert found.min() >= 0.90
    # not by being needlessly wide
    assert found.mean() <= 0.985


def test_noise_taken_for_half_of_what_it_is_is_noticed():
    found = coverage(20_000, 37.0, 37.0 / 2, seed=1)
    assert found.mean() < 0.93
    assert found.min() < 0.90


def test_sampling_is_part_of_the_intervals():
    measured = Measured(CONSTRAINTS, DOMAIN)
    law = population_table(measured)
    # the noise alone makes intervals less than half as wide as both together
    both = measured.estimates(law * 20_000, 20_000, 7.5, 0.95)
    alone = measured.estimates(law * 2e9, 2 * 10**9, 7.5e5, 0.95)
    widths = [np.diff([e.interval for e in found]).ravel() for found in (both, alone)]
    assert np.nanmedian(widths[1] / widths[0]) < 0.6
