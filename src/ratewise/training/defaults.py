"""Rules of public numbers for the settings that are not given: every constant that was chosen by measurement is here.

`resolution` is the number of units per noise multiplier of a single release that spends the budget: n / sigma_1. It
says how fine a model the budget can resolve. Nothing here depends on rows.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from ratewise.preprocessing.grids import LOG_CELLS

STEPS = 200
LARGEST_SAMPLE = 65_536  # expected units of a step; small tables are sampled with probability 1/2
THRESHOLD_DELTA = 0.1  # of delta, for each of two releases with thresholds
LEAST_STEP_NOISE = 0.2  # with less, a small sampling rate hides nothing
ROWS_PER_ID_SHARE = CORRECTION_SHARE = 0.01  # of the budget, in units of 1 / sigma**2
LEAST_TRAINING_SHARE = 0.1
NO_NOISE_RESOLUTION = 1e6

_FEW, _MANY = 500.0, 5000.0  # resolution from which logarithmic cells are used, and finer ones
_MOST_LOG_CELLS = 2560  # of all columns of a table
# prior on shape functions: squared norm of all cell indicators of a row, per unit of resolution
_SPREAD = 0.025
_L2 = 0.001  # penalty on weights without constraints
_CONSTRAINED_L2 = (
    0.004,
    80.0,
)  # with constraints: the lesser of the first and of the second divided by the units
_GRADIENT_NOISE = 0.075  # noise of the mean gradient, in score units, that the clipping norm is chosen for
_CLIPS = (0.5, 5.0)
_LEARNING_RATE = 2.0


@lru_cache(maxsize=64)
def single_release_noise(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of one Gaussian release that spends (epsilon, delta)."""

    def excess(noise: float) -> float:
        a, b = 0.5 / noise - epsilon * noise, -0.5 / noise - epsilon * noise
        return float(ndtr(a) - math.exp(epsilon + float(log_ndtr(b)))) - delta

    low, high = 1e-3, 1.0
    while excess(high) > 0:
        low, high = high, 2.0 * high
    while excess(low) < 0:
        low, high = low / 2.0, low
    return float(brentq(excess, low, high))


def resolution(n_units: int, epsilon: float | None, delta: float) -> float:
    """Return the number of units per noise multiplier of a single release."""
    return NO_NOISE_RESOLUTION if epsilon is None else n_units / single_release_noise(epsilon, delta)


def logarithmic_cells(resolution: float, n_continuous: int) -> int:
    """Return the number of logarithmic cells per continuous column of an additive model.

    A large table shares a fixed number of cells among its columns, because every cell is a parameter.
    """
    if resolution < _FEW:
        return 0
    if resolution < _MANY:
        return LOG_CELLS
    return min(max(_MOST_LOG_CELLS // max(n_continuous, 1), LOG_CELLS), 8 * LOG_CELLS)


def spread(resolution: float, n_continuous: int) -> float:
    """Return the expected squared norm of the cell indicators of a continuous column; columns share one norm."""
    return _SPREAD * resolution / max(n_continuous, 1)


def l2(n_units: int, constrained: bool) -> float:
    """Return the penalty on the weights.

    With constraints it is larger on small tables: large scores saturate the soft predictions that constraints
    differentiate, and the multipliers cannot move them within the steps.
    """
    return min(_CONSTRAINED_L2[0], _CONSTRAINED_L2[1] / n_units) if constrained else _L2


def step_sizes(
    noise: float | None, length: float, expected_units: float, clip: float | None
) -> tuple[float, float]:
    """Return the clipping norm, unless it is given, and the learning rate.

    The noise of a mean gradient moves scores by ``noise * clip * length / (n q)`` with length = sqrt(E |x|**2). The
    clipping norm makes this 0.075, between 0.5 and the larger of 5 and `length`. Noise beyond twice that shortens the
    steps in proportion. Without noise nothing is clipped.
    """
    if noise is None:
        return clip or math.inf, _LEARNING_RATE
    unit = noise * length / expected_units
    clip = clip or min(max(_GRADIENT_NOISE / unit, _CLIPS[0]), max(_CLIPS[1], length))
    return clip, _LEARNING_RATE * min(1.0, 2.0 * _GRADIENT_NOISE / (unit * clip))


def histogram_share(single_release: float, n_units: int) -> float:
    """Return the share of a step that prediction counts get: a tenth, up to a quarter on small tables.

    With a tenth, the noise of a count followed over a quarter of the steps is about ``6 * single_release / n``
    of the rows. Where that passes 0.002, more goes to the counts.
    """
    return min(max(0.1, 300.0 * single_release / n_units), 0.25)
