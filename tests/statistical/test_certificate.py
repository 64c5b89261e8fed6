"""Simulated coverage of the certificate's intervals and error rates of its verdicts, with demonstrated power.

A fixed table of true counts is released many times with fresh noise (fixed seeds). All intervals must contain
the true values together in about 95% of the releases; intervals that are 20% too short must fail the same check.
"""

import numpy as np
import pytest
from scipy.stats import binom

from ratewise import demographic_parity, equalized_odds, error_rate_parity, everyone, label, precision, rate
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.domain import Domain
from ratewise.metrics import intervals
from ratewise.metrics.intervals import critical_value, noisy_intervals, sidak_value
from ratewise.training.certificate import certify


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(intervals, "_DRAWS", 4000)


def split(sizes, shares):
    return np.round(np.stack([sizes * (1 - shares), sizes * shares], axis=1))


def two_groups():
    compiled = compile_constraints(demographic_parity("g", max_gap=0.05), Domain((0, 1), {"g": ("a", "b")}))
    return compiled, np.array([[700.0, 300.0], [2200.0, 800.0]]), 18.0


def many_constraints():
    groups = {"g": tuple("abcdefgh"), "h": tuple("uvwxyz")}
    compiled = compile_constraints(equalized_odds("g", "h", max_gap=0.1), Domain((0, 1), groups))
    rng = np.random.default_rng(0)
    table = split(rng.integers(50, 400, compiled.n_cells), rng.uniform(0.02, 0.6, compiled.n_cells))
    return compiled, table, 8.0


def small_and_empty_groups():
    compiled = compile_constraints(equalized_odds("g", max_gap=0.1), Domain((0, 1), {"g": tuple("abcdefgh")}))
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 120, compiled.n_cells)
    sizes[:3] = 0
    return compiled, split(sizes, rng.uniform(0, 0.3, compiled.n_cells)), 12.0


def ratios():
    constraints = [
        precision(min_rate=0.5, by="g"),
        rate(1, where=label(1), out_of=everyone) - rate(1, where=label(1)) <= 0.3,
    ]
    compiled = compile_constraints(constraints, Domain((0, 1), {"g": tuple("abc")}))
    rng = np.random.default_rng(0)
    table = split(rng.integers(40, 400, compiled.n_cells), rng.uniform(0.1, 0.5, compiled.n_cells))
    return compiled, table, 12.0


def three_classes():
    constraints = [
        demographic_parity("g", max_gap=0.1),
        demographic_parity("g", max_gap=0.1, versus="everyone"),
        error_rate_parity("g", max_gap=0.1),
        rate(2) >= 0.1,
    ]
    compiled = compile_constraints(constraints, Domain((0, 1, 2), {"g": tuple("abc")}))
    table = np.random.default_rng(0).integers(20, 600, (compiled.n_cells, 3)).astype(float)
    return compiled, table, 12.0


def true_values(compiled, table, members):
    """Return the exact values, and whether all their denominators have rows."""
    below = compiled.denominators(table)
    rows = compiled.coefficients
    known = [bool((below[rows.indices[rows.indptr[j] : rows.indptr[j + 1]]] > 0).all()) for j in members]
    return compiled.values(table, floor=1e-9)[members], np.array(known)


def needed_widths(scenario, repeats, *, seed, totals_std=None, population=False):
    """Return for each release the factor by which its intervals just contain all true values together."""
    compiled, table, noise = scenario()
    members = [item.members[0] for item in compiled.items]
    truth, known = true_values(compiled, table, members)
    rng = np.random.default_rng(seed)
    needed = []
    for _ in range(repeats):
        counts = table
        if population:
            counts = rng.multinomial(int(table.sum()), (table / table.sum()).ravel()).reshape(table.shape)
        totals = None if totals_std is None else counts.sum(axis=1) + totals_std * rng.standard_normal(len(table))
        found = noisy_intervals(
            compiled,
            counts + noise * rng.standard_normal(table.shape),
            noise,
            members=members,
            cell_totals=totals,
            cell_totals_std=totals_std or 0.0,
        )
        low, high = (found.population_low, found.population_high) if population else (found.low, found.high)
        middle, half = (low + high) / 2, (high - low) / 2
        needed.append(np.max((np.abs(truth - middle) - 1e-9) / half, where=known, initial=0.0))
    return np.array(needed)


SCENARIOS = [
    (two_groups, 600),
    (many_constraints, 60),
    (small_and_empty_groups, 120),
    (ratios, 300),
    (three_classes, 150),
]


def enough(needed, factor=1.0):
    """Return whether intervals times `factor` cover compatibly with 95% (one-sided test at 1 in 200)."""
    return np.sum(needed <= factor) >= binom.ppf(0.005, len(needed), 0.95)


@pytest.mark.parametrize(
    ("scenario", "repeats", "totals_std"),
    [(*each, None) for each in SCENARIOS] + [(two_groups, 600, 3.0), (small_and_empty_groups, 120, 3.0)],
)
def test_all_intervals_cover_the_values_on_the_rows_together(scenario, repeats, totals_std):
    needed = needed_widths(scenario, repeats, seed=1, totals_std=totals_std)
    assert enough(needed)
    if totals_std is None:  # intervals that are a fifth too short fail the same check
        assert not enough(needed, 0.8)


@pytest.mark.parametrize("scenario", [two_groups, ratios, three_classes])
def test_population_intervals_cover_noise_and_sampling(scenario):
    assert enough(needed_widths(scenario, 120, seed=2, population=True))


def test_intervals_are_not_needlessly_long():
    """The coverage of well-resolved constraints is not above 95% either."""
    assert np.sum(needed_widths(two_groups, 600, seed=3) <= 1) <= binom.ppf(0.995, 600, 0.95)
    assert np.sum(needed_widths(three_classes, 150, seed=3) <= 1) <= binom.ppf(0.999, 150, 0.96)


def test_the_critical_value_is_that_of_the_largest_deviation(monkeypatch):
    assert critical_value(np.eye(1), 0.95) == pytest.approx(1.96, abs=0.08)
    assert critical_value(np.eye(30), 0.95) == pytest.approx(sidak_value(0.95, 30), abs=0.1)
    same = np.tile([[1.0, 0.0]], (30, 1))
    assert critical_value(same, 0.95) == pytest.approx(1.96, abs=0.1)
    compiled = compile_constraints(demographic_parity("g", max_gap=0.1), Domain((0, 1), {"g": ("a", "b")}))
    table = np.full((2, 2), 100.0)
    assert noisy_intervals(compiled, table, 1.0).critical < sidak_value(0.95, 2)
    monkeypatch.setattr("ratewise.metrics.intervals._LARGEST_PRODUCT", 0)  # too large to simulate
    assert noisy_intervals(compiled, table, 1.0).critical == sidak_value(0.95, 2)


def verdicts(gap, repeats, *, slack=0.05, tolerance=0.01, noise=18.0, rows=40_000, seed=4):
    """Return how often each verdict is given for a true gap; and the half-width."""
    compiled = compile_constraints(demographic_parity("g", max_gap=slack), Domain((0, 1), {"g": ("a", "b")}))
    table = split(np.array([rows / 4, 3 * rows / 4]), np.array([0.3, 0.3 + gap]))
    rng = np.random.default_rng(seed)
    found = [
        certify(compiled, table + noise * rng.standard_normal(table.shape), noise, n_units=rows, tolerance=tolerance)[0]
        for _ in range(repeats)
    ]
    half = float(np.mean([row.half_width for row in found]))
    return {v: np.mean([row.verdict == v for row in found]) for v in ("held", "missed", "cannot tell")}, half


@pytest.mark.parametrize(("rows", "noise"), [(1_000, 18.0), (4_000, 18.0), (40_000, 60.0), (250_000, 5.0)])
@pytest.mark.parametrize("gap", [0.0701, 0.09, 0.15])
def test_a_gap_clearly_beyond_the_bound_is_not_held(gap, rows, noise):
    shares, _ = verdicts(gap, 100, rows=rows, noise=noise)
    assert shares["held"] <= 0.05


@pytest.mark.parametrize("noise", [2.0, 18.0, 60.0])
def test_a_gap_two_half_widths_below_is_held(noise):
    _, half = verdicts(0.02, 20, noise=noise)
    gap = 0.06 - 2 * half
    assert gap > 0
    shares, _ = verdicts(gap, 150, noise=noise)
    assert shares["held"] >= 0.9


def test_a_gap_two_half_widths_above_the_bound_is_missed():
    _, half = verdicts(0.08, 20)
    shares, _ = verdicts(0.05 + 2 * half, 150, tolerance=0.0)
    assert shares["missed"] >= 0.9
    # at the bound itself "missed" is an error
    shares, _ = verdicts(0.05, 150, tolerance=0.0)
    assert shares["missed"] <= 0.06
