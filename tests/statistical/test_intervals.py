"""Coverage of the intervals, by drawing samples of known populations with fixed seeds; with power.

A nominal 95% interval must cover at least 93.5% of the time whatever the group sizes, rates and overlaps. The
same check must turn red for intervals that are a quarter too narrow, and for the textbook interval at small
rates, or it would show nothing.
"""

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.constraints.rates import everyone, group, label, rate, rows
from ratewise.data.table import code_table
from ratewise.metrics.intervals import Moments, mix_intervals, moments, share_interval

DOMAIN = Domain((0, 1), {"g": ("a", "b")})
A, B = group(g="a"), group(g="b")
MIXES = {
    "one share": rate(1, where=A),
    "difference of disjoint shares": rate(1, where=A) - rate(1, where=B),
    "group against everyone": rate(1, where=A) - rate(1),
    "rest against everyone": rate(1, where=B) - rate(1),
    "sum of overlapping shares": rate(1, where=A) + rate(1),
    "four fifths": 0.8 * rate(1, where=A) - rate(1, where=B),
    "precision": rate(1, where=label(1), out_of=A),
    "difference of precisions": rate(1, where=label(1), out_of=A) - rate(1, where=label(1), out_of=B),
    "precision minus recall": rate(1, where=label(1), out_of=everyone) - rate(1, where=label(1)),
    "precision plus recall": rate(1, where=label(1), out_of=everyone) + rate(1, where=label(1)),
    "precision against everyone's": rate(1, where=label(1), out_of=A) - rate(1, where=label(1), out_of=everyone),
    "equalized odds": rate(1, where=A & label(1)) - rate(1, where=B & label(1)),
    "error": 1 - rate(1, where=label(1), out_of=rows(A)) - rate(0, where=label(0), out_of=rows(A)),
    "unequal costs": 3 * rate(0, where=label(1), out_of=rows(A)) + rate(1, where=label(0), out_of=rows(A)),
    "overlapping misses": rate(0, where=label(1) & A) - rate(0, where=label(1)),
}
LEAST = 0.935
POPULATIONS = {  # rows, share of a, base rate, rates of prediction 1 given (group, label)
    "large": (3000, 0.6, 0.4, ((0.2, 0.7), (0.3, 0.8))),
    "even": (200, 0.5, 0.5, ((0.2, 0.7), (0.3, 0.8))),
    "small": (30, 0.5, 0.5, ((0.2, 0.7), (0.3, 0.6))),
    "minority": (120, 0.9, 0.4, ((0.1, 0.8), (0.4, 0.9))),
    "tiny minority": (150, 0.97, 0.5, ((0.3, 0.6), (0.05, 0.1))),
    "rare": (150, 0.6, 0.3, ((0.01, 0.03), (0.02, 0.02))),
    "nearly all": (80, 0.4, 0.6, ((0.97, 0.99), (0.9, 0.99))),
    "never wrongly": (40, 0.5, 0.5, ((0.0, 0.2), (0.0, 0.1))),
}


def law(share, base, rates):
    """Return the probability of each group, label and prediction."""
    table = np.empty((2, 2, 2))
    for g, part in enumerate((share, 1 - share)):
        for y, of in enumerate((1 - base, base)):
            table[g, y] = part * of * np.array([1 - rates[g][y], rates[g][y]])
    return table


def cells_of(compiled):
    """Return the cell of each (group, label), by asking with one row of each."""
    labels = np.array([0, 1, 0, 1])
    return code_table(compiled, labels, {"g": np.array(["a", "a", "b", "b"])})[1]


def coverage(mix, population, samples=300, shrink=1.0, confidence=0.95):
    size, share, base, rates = POPULATIONS[population]
    compiled = compile_constraints(mix <= 10, DOMAIN)
    places, probabilities = cells_of(compiled), law(share, base, rates)
    gather = np.zeros((compiled.n_cells, 4))
    gather[places, np.arange(4)] = 1.0
    truth = compiled.values(gather @ probabilities.reshape(4, 2), floor=1e-12)[0]
    rng = np.random.default_rng([5, *population.encode(), *repr(mix).encode()])
    drawn = rng.multinomial(size, probabilities.ravel(), size=samples).reshape(samples, 4, 2)
    distinct, counts = np.unique(drawn.reshape(samples, 8), axis=0, return_counts=True)
    covered = judged = 0
    for table, count in zip(distinct, counts, strict=True):
        value, low, high = (
            part[0] for part in mix_intervals(compiled, Moments(gather @ table.reshape(4, 2).astype(float)), confidence)
        )
        if not np.isnan(value):
            judged += count
            low, high = value + shrink * (low - value), value + shrink * (high - value)
            covered += count * (low - 1e-12 <= truth <= high + 1e-12)
    return covered / judged


@pytest.mark.parametrize("population", [name for name in POPULATIONS if name != "large"])
@pytest.mark.parametrize("mix", MIXES)
def test_intervals_cover(mix, population):
    assert coverage(MIXES[mix], population) >= LEAST


@pytest.mark.parametrize("mix", MIXES)
def test_intervals_that_are_a_quarter_too_narrow_fail_the_same_check(mix):
    assert coverage(MIXES[mix], "large") >= LEAST
    assert coverage(MIXES[mix], "large", shrink=0.75) < LEAST


@pytest.mark.parametrize("mix", MIXES)
def test_large_samples_are_not_given_needlessly_wide_intervals(mix):
    assert coverage(MIXES[mix], "large", confidence=0.5) <= 0.6


def test_other_levels_are_met():
    for confidence in (0.5, 0.8, 0.99):
        error = np.sqrt(confidence * (1 - confidence) / 300)
        for mix in ("difference of disjoint shares", "group against everyone", "precision minus recall"):
            assert coverage(MIXES[mix], "even", confidence=confidence) >= confidence - 3 * error


def exact_coverage(n, p, low, high):
    hits = np.arange(n + 1)
    return binom.pmf(hits, n, p)[(low <= p) & (p <= high)].sum()


@pytest.mark.parametrize("n", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_one_share_is_covered_at_every_rate(n, confidence):
    hits = np.arange(n + 1.0)
    low, high = share_interval(hits, np.full(n + 1, float(n)), confidence)
    for p in np.linspace(0, 1, 401):
        assert exact_coverage(n, p, low - 1e-12, high + 1e-12) >= confidence - 1e-9


def test_the_textbook_interval_fails_where_ours_holds():
    n, p, share = 20, 0.05, np.arange(21) / 20
    half = norm.isf(0.025) * np.sqrt(share * (1 - share) / n)
    assert exact_coverage(n, p, share - half, share + half) < LEAST


def test_limits_are_those_of_clopper_and_pearson():
    hits, n = np.arange(11.0), np.full(11, 10.0)
    low, high = share_interval(hits, n)
    for x in range(11):
        known = binomtest(x, 10).proportion_ci(0.95, method="exact")
        assert (low[x], high[x]) == pytest.approx((known.low, known.high), abs=1e-9)


@pytest.mark.parametrize("mix", ["one share", "difference of disjoint shares", "group against everyone", "precision"])
def test_soft_rates_are_covered(mix):
    compiled = compile_constraints(MIXES[mix] <= 10, DOMAIN)
    rng = np.random.default_rng(11)

    def draw(n):
        in_b, truth = rng.random(n) < 0.3, (rng.random(n) < 0.4).astype(int)
        soft = rng.beta(0.5 + truth, 1.5 - 0.5 * in_b)
        cells = code_table(compiled, truth, {"g": np.where(in_b, "b", "a")})[1]
        return moments(compiled, cells, np.column_stack([1 - soft, soft]))

    population = mix_intervals(compiled, draw(1_000_000))[0][0]
    shown = [mix_intervals(compiled, draw(80)) for _ in range(600)]
    covered = [low[0] <= population <= high[0] for _, low, high in shown]
    narrow = [v[0] - 0.7 * (v - lo)[0] <= population <= v[0] + 0.7 * (hi - v)[0] for v, lo, hi in shown]
    assert np.mean(covered) >= LEAST
    assert np.mean(narrow) < LEAST
