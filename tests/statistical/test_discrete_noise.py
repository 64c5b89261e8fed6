"""Noise on a grid has exactly the law it claims, settles doubtful draws exactly, and has no low bits."""

import decimal
import math
import pickle
from decimal import Decimal

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.mechanisms import discrete as discrete_noise
from ratewise.mechanisms.discrete import Prefetched, rounded_laplace, rounded_normal
from ratewise.mechanisms.noise import RoundedGaussianMechanism, RoundedLaplaceMechanism, summation_slack
from ratewise.mechanisms.randomness import SecureGenerator

LEVEL = 1e-4
DRAWS = 60_000
LAWS = {"normal": rounded_normal, "laplace": rounded_laplace}


def probability(kind, s, k):
    """Return the law P(N = k) in double precision."""
    k = np.abs(np.asarray(k, dtype=np.float64))
    low, high = (k - 0.5) / s, (k + 0.5) / s
    if kind == "normal":
        return ndtr(-low) - ndtr(-high)
    return np.where(k == 0, -np.expm1(-high), (np.exp(-np.abs(low)) - np.exp(-high)) / 2)


def p_value(draws, kind, s):
    """Chi-square against the exact probabilities, tails in one bin each."""
    reach = int(4 * s) + 2
    inner = np.arange(-reach, reach + 1)
    law = stats.norm if kind == "normal" else stats.laplace
    # an oracle of its own: differences of SciPy's distribution functions
    expected = law.cdf((inner + 0.5) / s) - law.cdf((inner - 0.5) / s)
    expected = np.concatenate([[law.cdf((-reach - 0.5) / s)], expected, [law.sf((reach + 0.5) / s)]])
    observed = np.bincount(np.clip(draws, -reach - 1, reach + 1).astype(int) + reach + 1, minlength=len(expected))
    expected *= len(draws)
    keep = expected >= 5
    seen = np.append(observed[keep], observed[~keep].sum())
    meant = np.append(expected[keep], expected[~keep].sum())
    seen, meant = seen[meant > 0], meant[meant > 0]
    return stats.chi2.sf(np.sum((seen - meant) ** 2 / meant), len(seen) - 1)


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("s", [0.3, 1.0, 3.0, 11.5])
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_exact_probabilities(kind, s, source):
    rng = np.random.default_rng(8) if source == "seeded" else SecureGenerator()
    level = LEVEL if source == "seeded" else 1e-9  # fresh entropy every time: alarm only when sure
    assert p_value(LAWS[kind](s, DRAWS, rng), kind, s) > level


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_power_a_scale_five_percent_off_is_rejected(kind, factor):
    draws = LAWS[kind](3.0 * factor, DRAWS, np.random.default_rng(8))
    assert p_value(draws, kind, 3.0) < LEVEL


@pytest.mark.parametrize("kind", LAWS)
def test_the_stated_law_adds_up_and_agrees_with_scipy(kind):
    k = np.arange(-400, 401)
    found = probability(kind, 5.0, k)
    law = stats.norm if kind == "normal" else stats.laplace
    np.testing.assert_allclose(found, law.cdf((k + 0.5) / 5) - law.cdf((k - 0.5) / 5), atol=1e-15)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("s", [0.7, 900.0, 6e4])
def test_exact_settling_agrees_with_the_fast_way(kind, s, monkeypatch):
    """Everything is declared doubtful, so that every draw goes the slow and exact way."""
    fast = LAWS[kind](s, 400, np.random.default_rng(4))
    for law in ("_NORMAL", "_LAPLACE"):
        monkeypatch.setattr(discrete_noise, law, getattr(discrete_noise, law)._replace(tiny=1.0))
    slow = LAWS[kind](s, 400, np.random.default_rng(4))
    np.testing.assert_array_equal(fast, slow)


def test_a_wrong_tail_would_show(monkeypatch):
    fast = rounded_normal(900.0, 50, np.random.default_rng(4))
    for law in ("_NORMAL", "_LAPLACE"):
        monkeypatch.setattr(discrete_noise, law, getattr(discrete_noise, law)._replace(tiny=1.0))
    wrong = discrete_noise._NORMAL._replace(tail=lambda x: discrete_noise._normal_tail(x) * Decimal("1.01"))
    monkeypatch.setattr(discrete_noise, "_NORMAL", wrong)
    assert not np.array_equal(fast, rounded_normal(900.0, 50, np.random.default_rng(4)))


def test_quantiles_in_double_precision_are_far_inside_the_doubtful_band():
    """The band is 2**-42; SciPy's quantile and the digits that a word lacks must stay well below it."""
    rng = np.random.default_rng(0)
    u = np.concatenate([rng.random(60) / 2, 0.5 * 2.0 ** -rng.uniform(1, 19, 60)])
    worst = 0.0
    with decimal.localcontext(discrete_noise._CONTEXT):
        for value in u.tolist():
            z = Decimal(-float(ndtri(value)))
            density = Decimal(float(stats.norm.pdf(float(z))))
            worst = max(worst, abs(float((discrete_noise._normal_tail(z) - Decimal(value)) / density)))
    assert worst < 2.0**-46


def test_tails_against_tables():
    """Upper tails of the normal law at 1, 5 and 15, to the digits of a published table."""
    with decimal.localcontext(discrete_noise._CONTEXT):
        for x, tail in ((1, "0.158655253931457051"), (5, "2.86651571879193911e-7"), (15, "3.67096619931275e-51")):
            found = discrete_noise._normal_tail(Decimal(x))
            assert abs(found / Decimal(tail) - 1) < Decimal("1e-14")
        assert str(discrete_noise._PI).startswith("3.14159265358979323846264338327950288419716939937510")


def test_entries_and_calls_are_independent():
    rng = np.random.default_rng(3)
    mechanism = RoundedGaussianMechanism(2.0)
    noise = np.array([mechanism.release(np.zeros(6), rng) for _ in range(6000)]) / 2.0
    assert stats.kstest(noise.ravel(), stats.norm.cdf).pvalue > LEVEL
    table = np.hstack([noise[:-1], noise[1:]])
    correlation = np.corrcoef(table.T)[np.triu_indices(12, 1)] * np.sqrt(len(table))
    assert 2 * stats.norm.sf(np.abs(correlation)).min() * len(correlation) > LEVEL
    shared = noise.copy()
    shared[:, 3] = shared[:, 2]
    assert abs(np.corrcoef(shared.T)[2, 3]) > 0.9


@pytest.mark.parametrize("law", [RoundedGaussianMechanism, RoundedLaplaceMechanism])
@pytest.mark.parametrize(("noise", "sensitivity"), [(2.0, 1.0), (0.3, 0.001), (50.0, 7.0), (1e4, 1.0)])
def test_what_comes_out_lies_on_the_grid(law, noise, sensitivity):
    mechanism = law(noise, sensitivity)
    value = np.random.default_rng(0).normal(size=500) * sensitivity * 100
    released = mechanism.release(value, np.random.default_rng(1))
    steps = released / mechanism.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert mechanism.grid <= mechanism.standard_deviation * 2.0**-20
    assert mechanism.grid == 2.0 ** np.rint(np.log2(mechanism.grid))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("law", [RoundedGaussianMechanism, RoundedLaplaceMechanism])
def test_noise_covers_what_rounding_adds_to_the_sensitivity(law, whole, monkeypatch):
    """Two neighbours that rounding moves apart as far as it can, against the noise that is drawn."""
    scales = []

    def draw(s, count, rng):
        scales.append(s)
        return np.zeros(count)

    mechanism = law(3.0, 2.0, whole=whole, slack=0.001)
    object.__setattr__(mechanism, "_noise", Prefetched(draw))
    d, grid = 5000, mechanism.grid
    step = 1.0 if whole else grid * 0.75
    low = np.zeros(d) if whole else np.full(d, 0.4 * grid)
    high = low + step * (np.arange(d) % 2 == 0)
    rng = np.random.default_rng(0)
    apart = mechanism.release(high, rng) - mechanism.release(low, rng)
    norm = 1 if law is RoundedLaplaceMechanism else 2
    moved, meant = np.linalg.norm(apart, norm), np.linalg.norm(high - low, norm)
    room = scales[0] * grid / 3.0 - 2.0 * 1.001  # what the noise allows for beyond the sensitivity
    if whole:
        assert moved == meant
        assert room == pytest.approx(0.0, abs=1e-12)
    else:
        assert moved > meant * 1.2  # rounding does add
        assert moved - meant <= room * (1 + 1e-9)


def test_counts_come_through_rounding_untouched():
    mechanism = RoundedGaussianMechanism(1e9, whole=True)
    assert mechanism.grid <= 1.0
    object.__setattr__(mechanism, "_noise", Prefetched(lambda s, count, rng: np.zeros(count)))
    counts = np.arange(12).reshape(3, 2, 2)
    np.testing.assert_array_equal(mechanism.release(counts, np.random.default_rng(0)), counts)


def test_enormous_values_are_cut_off_and_nothing_but_numbers_comes_out():
    mechanism = RoundedGaussianMechanism(1.0)
    released = mechanism.release(np.array([1e300, -1e300, np.nan]), np.random.default_rng(0))
    assert released[0] == pytest.approx(2.0**52 * mechanism.grid)
    assert released[1] == pytest.approx(-(2.0**52) * mechanism.grid)
    assert np.isfinite(released[2])


def test_draws_made_in_advance_are_handed_out_once():
    handed = []
    pool = Prefetched(lambda s, count, rng: s * rng.permutation(10**6)[:count].astype(float))
    rng = np.random.default_rng(0)
    handed = np.concatenate([pool.take(1.0, 100, rng).copy() for _ in range(40)])
    assert len(np.unique(handed)) == 4000
    first = pool.take(1.0, 100, rng).copy()
    other_scale = pool.take(2.0, 100, rng).copy()
    other_stream = pool.take(2.0, 100, np.random.default_rng(0)).copy()
    assert not np.array_equal(2 * first, other_scale)
    assert not np.array_equal(other_scale, other_stream)


def test_releases_do_not_show_noise_that_waits():
    """An array that is a view would lead, by its base, to the noise of later steps."""
    mechanism = RoundedGaussianMechanism(1.0)
    released = mechanism.release(np.zeros(4), np.random.default_rng(0))
    assert released.base is None


def test_pickles_of_mechanisms_hold_no_noise():
    mechanism = RoundedGaussianMechanism(1.0, 2.0, True, 0.5)
    before = pickle.dumps(mechanism)
    mechanism.release(np.zeros(4), np.random.default_rng(0))
    assert pickle.dumps(mechanism) == before
    assert pickle.loads(before) == mechanism


@pytest.mark.parametrize("law", [RoundedGaussianMechanism, RoundedLaplaceMechanism])
def test_bad_numbers_are_refused(law):
    for arguments in ((0.0, 1.0), (1.0, -1.0), (np.nan, 1.0), (1.0, 1.0, False, -0.1)):
        with pytest.raises(ValueError, match="must be"):
            law(*arguments)


def test_rounded_laplace_is_geometric_off_zero():
    """The law of the discrete Laplace mechanism: neighbouring probabilities fall by exp(-1/s)."""
    k = np.arange(1, 60)
    ratio = probability("laplace", 3.0, k[1:]) / probability("laplace", 3.0, k[:-1])
    np.testing.assert_allclose(ratio, np.exp(-1 / 3), rtol=1e-9)


def test_every_release_of_a_fit_lies_on_its_grid_and_reads_the_secure_source(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y, groups = (X[:, 0] > 0).astype(int), {"g": np.where(rng.random(3000) < 0.5, "a", "b")}
    seen = []

    def watched(law):
        release = law.release

        def noting(self, value, stream):
            released = release(self, value, stream)
            steps = released / self.grid
            seen.append(np.array_equal(steps, np.rint(steps)) and isinstance(stream, SecureGenerator))
            return released

        return noting

    for law in (RoundedGaussianMechanism, RoundedLaplaceMechanism):
        monkeypatch.setattr(law, "release", watched(law))
    model = RateConstrainedClassifier(
        demographic_parity("g", max_gap=0.9), epsilon=2.0, delta=1e-6, classes=[0, 1], group_values={"g": ["a", "b"]}
    )
    model.fit(X, y, sensitive_features=groups)
    assert len(seen) > 20
    assert all(seen)


def test_slack_covers_sums_in_double_precision():
    """Sums of the same rows in other orders and blocks differ by less than the room that is left for it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 3))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows[::2] *= -1.0
    exact = np.array([math.fsum(column) for column in rows.T])
    worst = 0.0
    for order in (np.arange(20_000), rng.permutation(20_000), np.argsort(rows[:, 0])):
        total = np.zeros(3)
        for row in rows[order]:
            total += row
        worst = max(worst, np.linalg.norm(total - exact))
    assert 0 < 2 * worst < summation_slack(20_000)
    assert summation_slack(10) < summation_slack(1000) < summation_slack(100_000)
