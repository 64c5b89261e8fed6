"""Poisson sampling has the law it claims, by tests that would notice if it had not.

Each check is a function of a sampler. It must accept ours and reject samplers that are nearly right: a rate
that is off, a fixed batch size, rows that come in pairs, steps that repeat.
"""

import numpy as np
import pytest
from scipy import stats

from ratewise.mechanisms import sampling
from ratewise.mechanisms.sampling import poisson_rows

LEVEL = 1e-4  # of a false alarm, per check; seeds are fixed
N, STEPS = 60, 8000


def inclusion(batches, rate):
    """Table of steps x rows: was the row in the batch?"""
    table = np.zeros((len(batches), N), dtype=bool)
    for step, rows in enumerate(batches):
        table[step, rows] = True
    return table


def each_row_has_the_rate(table, rate):
    """Chi-square over rows: each row's number of appearances is binomial(steps, rate)."""
    z = (table.sum(axis=0) - len(table) * rate) / np.sqrt(len(table) * rate * (1 - rate))
    return stats.chi2.sf(np.sum(z**2), N)


def overall_rate_is_right(table, rate):
    z = (table.sum() - table.size * rate) / np.sqrt(table.size * rate * (1 - rate))
    return 2 * stats.norm.sf(abs(z))


def counts_are_binomial(table, rate):
    """Chi-square of batch sizes against binomial(n, rate), bins with at least five expected."""
    sizes = np.bincount(table.sum(axis=1), minlength=N + 1)
    expected = len(table) * stats.binom.pmf(np.arange(N + 1), N, rate)
    keep = expected >= 5
    observed = np.append(sizes[keep], sizes[~keep].sum())
    expected = np.append(expected[keep], expected[~keep].sum())
    keep = expected > 1e-9
    return stats.chi2.sf(np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep]), keep.sum() - 1)


def rows_are_independent(table, rate):
    """Sum of squared correlations over all pairs of rows; about chi-square under independence."""
    z = (table - rate) / np.sqrt(rate * (1 - rate))
    correlation = z.T @ z / np.sqrt(len(table))
    pairs = correlation[np.triu_indices(N, 1)]
    # the fourth moment of one product widens the statistic's variance a little; use its exact value
    kurtosis = (1 / (rate * (1 - rate)) - 3) ** 2
    variance = 2 + (kurtosis - 3) / len(table)
    return stats.norm.sf((np.sum(pairs**2) - pairs.size) / np.sqrt(pairs.size * variance))


def steps_are_independent(table, rate):
    """Correlation of each row with itself in later steps."""
    z = (table - rate) / np.sqrt(rate * (1 - rate))
    worst = 1.0
    for lag in (1, 2, 3):
        score = np.sum(z[:-lag] * z[lag:]) / np.sqrt(z[lag:].size)
        worst = min(worst, 3 * 2 * stats.norm.sf(abs(score)))
    return min(worst, 1.0)


CHECKS = [
    each_row_has_the_rate,
    overall_rate_is_right,
    counts_are_binomial,
    rows_are_independent,
    steps_are_independent,
]


def ours(rate, seed):
    rng = np.random.default_rng(seed)
    return inclusion([poisson_rows(N, rate, rng) for _ in range(STEPS)], rate)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.34, 0.36, 0.7])
@pytest.mark.parametrize("check", CHECKS)
def test_our_sampler_is_accepted(check, rate):
    assert check(ours(rate, seed=11), rate) > LEVEL


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("check", CHECKS)
def test_seams_between_draws_do_not_show(check, rate, monkeypatch):
    """Draws are made in pieces; with pieces of a few draws every other row lies at a seam."""
    monkeypatch.setattr(sampling, "_DRAWS_AT_ONCE", 4)
    assert check(ours(rate, seed=12), rate) > LEVEL


@pytest.mark.parametrize("rate", [1e-6, 2e-5, 1e-3, 0.0113, 0.34])
def test_gaps_are_geometric(rate):
    """Listed or not, a gap has the probability of the geometric law: exactly in the table, and in draws."""
    table, listed, others = sampling._gap_table(rate)
    length = len(others) - 1
    chances = np.bincount(table[:listed], minlength=length) / 2**16
    rest = np.diff(others, prepend=0.0) * (1 - listed / 2**16)
    np.testing.assert_allclose(
        chances + rest[:length], stats.geom.pmf(np.arange(1, length + 1), rate), rtol=0, atol=1e-15
    )
    assert rest[-1] == pytest.approx(stats.geom.sf(length, rate), abs=1e-15)
    kept = poisson_rows(round(40_000 / rate), rate, np.random.default_rng(13))
    edges = np.append(stats.geom.ppf(np.linspace(0, 0.999, 60), rate)[1:], np.inf)
    expected = np.diff(stats.geom.cdf(np.unique(edges), rate), prepend=0.0) * (len(kept) - 1)
    observed = np.histogram(np.diff(kept), bins=np.concatenate([[0.5], np.unique(edges) + 0.5]))[0]
    assert stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1) > LEVEL


def fixed_size(rate, rng):
    size = round(N * rate)
    return inclusion([rng.choice(N, size, replace=False) for _ in range(STEPS)], rate)


def rate_off(rate, rng):
    return rng.random((STEPS, N)) < rate * 1.05


def first_row_favoured(rate, rng):
    table = rng.random((STEPS, N)) < rate
    table[:, 0] = rng.random(STEPS) < rate * 1.4
    return table


def pairs_of_rows(rate, rng):
    return np.repeat(rng.random((STEPS, N // 2)) < rate, 2, axis=1)


def repeated_steps(rate, rng):
    return np.repeat(rng.random((STEPS // 2, N)) < rate, 2, axis=0)


def shuffled_epochs(rate, rng):
    """Each epoch cuts a permutation into batches: what most trainers do and books call Poisson."""
    size = round(N * rate)
    table = np.zeros((STEPS, N), dtype=bool)
    for step in range(0, STEPS, N // size):
        order = rng.permutation(N)
        for k in range(min(N // size, STEPS - step)):
            table[step + k, order[k * size : (k + 1) * size]] = True
    return table


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (fixed_size, counts_are_binomial),
        (fixed_size, rows_are_independent),
        (rate_off, overall_rate_is_right),
        (first_row_favoured, each_row_has_the_rate),
        (pairs_of_rows, rows_are_independent),
        (pairs_of_rows, counts_are_binomial),
        (repeated_steps, steps_are_independent),
        (shuffled_epochs, steps_are_independent),
        (shuffled_epochs, counts_are_binomial),
    ],
)
def test_wrong_samplers_are_rejected(wrong, check):
    assert check(wrong(0.1, np.random.default_rng(5)), 0.1) < LEVEL


def test_gaps_over_many_rows_are_geometric():
    """At a tiny rate the gap between kept rows runs over steps; its law must not notice the borders."""
    n_rows, rate, steps = 10_000, 1e-3, 3000
    rng = np.random.default_rng(2)
    kept = [poisson_rows(n_rows, rate, rng) + step * n_rows for step in range(steps)]
    gaps = np.diff(np.concatenate(kept))
    edges = np.append(stats.geom.ppf(np.linspace(0, 1, 41)[:-1], rate), np.inf)
    expected = len(gaps) * np.diff(stats.geom.cdf(edges, rate))
    observed, _ = np.histogram(gaps - 0.5, bins=edges)
    assert stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1) > LEVEL
    wrong = len(gaps) * np.diff(stats.geom.cdf(edges, rate * 1.06))
    assert stats.chi2.sf(np.sum((observed - wrong) ** 2 / wrong), len(wrong) - 1) < LEVEL
