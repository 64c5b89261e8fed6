"""The one-dimensional reduction for Laplace noise (docs/guarantees.md, section 5), by integration."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from ratewise.accounting import losses

SPLITS = [
    (1.0,),
    (0.5, 0.5),
    (0.2, 0.8),
    (0.01, 0.99),
    (1 / 3, 1 / 3, 1 / 3),
    (0.1, 0.2, 0.7),
    (0.25, 0.25, 0.25, 0.25),
    (0.05, 0.15, 0.3, 0.5),
]
INVERSE_SCALES = [0.1, 0.3, 1.0, 3.0, 8.0]


def single_shift(log_order, shift):
    """Hockey-stick curve of Lap(shift) against Lap(0) in units of the scale: statement 5.1."""
    rise = 1 - np.exp((log_order - shift) / 2)
    return np.maximum(np.maximum(-np.expm1(log_order), rise), 0.0)


def two_shifts(log_order, a, c):
    """The closed form after statement 5.2."""
    a, c = max(a, c), min(a, c)
    s = a + c
    if log_order >= s or log_order <= -s:
        return max(-np.expm1(log_order), 0.0)
    if log_order < 0:
        return -np.expm1(log_order) + np.exp(log_order) * two_shifts(-log_order, a, c)
    return 1 - np.exp((log_order - s) / 2) * (1 + min(c, (s - log_order) / 2) / 2)


def loss_nodes(shift, order=60):
    """Atoms and Gauss-Legendre nodes of the Laplace loss under Q: (loss, weight)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    u = shift * (nodes + 1) / 2
    losses_ = np.concatenate([[-shift], 2 * u - shift, [shift]])
    masses = np.concatenate([[0.5], 0.5 * np.exp(-u) * weights * shift / 2, [0.5 * np.exp(-shift)]])
    return losses_, masses


def split_curve(log_orders, shifts):
    """Curve of a product of Laplace shifts by quadrature: all but the last coordinate are summed over."""
    total, mass = np.zeros(1), np.ones(1)
    for shift in shifts[:-1]:
        more, weights = loss_nodes(shift, 60 if len(shifts) == 2 else 24)
        total = np.add.outer(total, more).ravel()
        mass = np.multiply.outer(mass, weights).ravel()
    tilted = mass * np.exp(total)
    return np.array([tilted @ single_shift(e - total, shifts[-1]) for e in log_orders])


@pytest.mark.parametrize("shift", [0.2, 1.0, 4.0])
def test_one_shift_matches_integration_over_the_line(shift):
    for e in np.linspace(-1.2 * shift, 1.2 * shift, 9):

        def gain(x, e=e):
            return max(stats.laplace.pdf(x - shift) - np.exp(e) * stats.laplace.pdf(x), 0.0)

        kinks = [0.0, shift, (e + shift) / 2]
        exact, _ = integrate.quad(gain, -40, 40 + shift, points=kinks, limit=400)
        assert single_shift(e, shift) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize(("share", "size"), list(itertools.product([0.05, 0.3, 0.5, 0.8], [0.1, 1.0, 6.0])))
def test_two_shifts_match_exact_integration(share, size):
    a, c = share * size, (1 - share) * size
    for e in np.linspace(-1.1 * size, 1.1 * size, 23):

        def gain(u, e=e):
            return 0.5 * np.exp(u - a) * single_shift(e - 2 * u + a, c)

        kinks = [k for k in ((e - c + a) / 2, (e + c + a) / 2) if 0 < k < a] or None
        inner, _ = integrate.quad(gain, 0, a, points=kinks, epsabs=1e-13)
        exact = inner + 0.5 * np.exp(-a) * single_shift(e + a, c) + 0.5 * single_shift(e - a, c)
        assert two_shifts(e, a, c) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("inverse_scale", INVERSE_SCALES)
@pytest.mark.parametrize("split", SPLITS)
def test_no_split_of_the_shift_is_worse_than_one_shift(split, inverse_scale):
    e = np.linspace(-1.1 * inverse_scale, 1.1 * inverse_scale, 45)
    excess = split_curve(e, [part * inverse_scale for part in split]) - single_shift(e, inverse_scale)
    assert excess.max() <= 2e-4  # error of the quadrature at kinks
    # and a real split is strictly better somewhere: the comparison is not one of a curve with itself
    assert len(split) == 1 or excess.min() < -1e-3 * min(inverse_scale, 1.0) * min(split)


@pytest.mark.parametrize("split", SPLITS[1:4])
def test_joint_with_a_gaussian(split):
    inverse_scale, shift = 1.0, 0.7
    x, weights = np.polynomial.hermite_e.hermegauss(80)
    gaussian, mass = shift * x - shift**2 / 2, weights / np.sqrt(2 * np.pi)
    for e in np.linspace(-1.5, 1.5, 13):
        joint = (mass * np.exp(gaussian)) @ np.array(
            [two_shifts(e - g, split[0] * inverse_scale, split[1] * inverse_scale) for g in gaussian]
        )
        line = (mass * np.exp(gaussian)) @ single_shift(e - gaussian, inverse_scale)
        assert joint < line + 1e-12
    # statement 5.5: the loss that the accountant uses is the one of that line
    law = losses.RowLoss(noise=1 / shift, scale=1 / inverse_scale)
    other, weight = loss_nodes(inverse_scale)
    for t in (-1.0, -0.2, 0.0, 0.9, 2.0):
        exact = (weight * np.exp(other)) @ stats.norm.cdf((t - other - shift**2 / 2) / shift)
        assert law.tails(np.array([t]))[0][0] == pytest.approx(exact, abs=1e-12)
