"""What a noisy histogram says of counts, once it is known how many rows each cell has.

Every row is predicted one class, so the counts of a cell add up to its rows. How many these are does not
change while training, and is soon known far better than any single histogram tells. What the counts of one
histogram add up to beside that is noise and the luck of the draw, and can be taken out again: of two classes,
the count of one is told twice, by itself and by what the other leaves. Means over many histograms gain less:
what is wrong with the totals stays in all of them.

Released values in, post-processing throughout: no privacy is spent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ratewise.plan import Plan

Floats = npt.NDArray[np.float64]


def noise_as_read(plan: Plan, n_classes: int) -> float:
    """Return the standard deviation that noise leaves on one count of a batch as the dual side reads it.

    That is for totals that are known and draws that matter little beside the noise. It is for one class: what
    counts of several classes of a cell differ by is as noisy as ever, and what they add up to hardly at all.

    >>> from ratewise.plan import DualControl, Plan
    >>> public = {"n_rows": 1_000, "sampling_rate": 0.5, "steps": 100, "clip": 1.0}
    >>> noise = {"gradient_noise": 20.0, "histogram_noise": 10.0}
    >>> plan = Plan(**public, **noise, dual=DualControl(known_totals=True))
    >>> round(noise_as_read(plan, n_classes=2), 2)
    7.07
    """
    noise = plan.histogram_mechanism.standard_deviation
    return noise * math.sqrt(1.0 - 1.0 / n_classes) if plan.dual.known_totals else noise


def beside_totals(histogram: Floats, totals: Floats, noise: float, rate: float) -> Floats:
    """Return the counts that are nearest to a histogram, by its variances, and add up to known totals.

    Noise of variance ``noise ** 2`` is on every count, and each of its rows was in the batch with probability
    `rate`, apart from all others. So a count varies by about ``v = noise ** 2 + (1 - rate) * count``, and
    what a cell has too much is shared among its counts in proportion to that: for variances that are known,
    the unbiased estimate of least variance (Gauss and Markov; soft predictions of a row do not vary apart,
    but ask for the same shares). Where noise is most of it, the variance of a count falls to ``1 - 1 / K`` of
    itself, with K classes; where there is none, rates become those within the batch.

    Parameters
    ----------
    histogram : (Q, K) array
        Released counts of one batch, or a mean of several.
    totals : (Q,) array
        Rows that a batch has of each cell, expected.
    noise : float
        Standard deviation of the noise on a count of a single batch.
    rate : float
        Sampling rate.

    >>> told = np.array([[30.0, 80.0]])
    >>> beside_totals(told, np.array([100.0]), 10.0, 1.0)
    array([[25., 75.]])
    >>> beside_totals(told, np.array([110.0]), 10.0, 1.0)
    array([[30., 80.]])
    """
    variances = np.maximum(histogram, 0.0)
    variances *= 1.0 - rate
    variances += noise * noise
    share = variances.sum(axis=1)
    np.divide(histogram.sum(axis=1) - totals, share, out=share, where=share > 0)
    variances *= share[:, None]
    return np.subtract(histogram, variances, out=variances)
