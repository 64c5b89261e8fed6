"""Private means and deviations of the features, so that training meets features of like size.

Gradient descent is at a loss when some features are a hundred times smaller than others, or all of one sign.
Standardising with raw means and deviations leaks; here both are released with noise, in two steps that the
ledger books before they happen:

1. *How long rows are.* A histogram of the rows' norms over fixed bins, a quarter of an octave each. One row
   adds 1 to one bin: sensitivity 1. Counts that could be noise are dropped; the bound R is the edge below
   which nine tenths of the others lie.
2. *Means and squares.* With every row shrunk to norm at most R, the sum over rows of ``(x, x^2 / R)``. One
   row adds a vector of norm at most ``sqrt(R^2 + (R^2 / R)^2) = sqrt(2) R``: that is the sensitivity.

Everything after that is post-processing. Variances are floored at twice their noise. That noise is in
proportion to the length of whole rows: beside one feature a thousand times as large as the others, the others
are lost, and need declared bounds first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ratewise.accounting.events import GaussianEvent
from ratewise.features import Features, Scaling
from ratewise.mechanisms import Mechanism, NoNoise, RoundedGaussianMechanism, summation_slack
from ratewise.plan import Preparation

Floats = npt.NDArray[np.float64]

_EDGES = np.exp2(np.arange(-40, 120) / 4)  # norms from a thousandth to a billion
_SHARE = 0.9
_NOISE_DEVIATIONS = 3.0
_FLOOR_DEVIATIONS = 2.0
_SMALLEST_SHARE = 0.5
_SMALLEST = 1e-12


def standardise(
    X: Any,
    scaling: Scaling | None,
    preparation: Preparation,
    rng: np.random.Generator,
    book: Callable[[GaussianEvent, str], object],
) -> Scaling:
    """Return `scaling` with released means and deviations on top (sparse features are not shifted).

    Parameters
    ----------
    X : array, memory map or CSR matrix
    scaling : Scaling or None
        What is done to the features before; public.
    preparation : Preparation
        Noise of the two releases; None in both for a training without privacy.
    rng : numpy.random.Generator
    book : callable
        Called with each event and its purpose **before** the release.
    """
    features = Features(X, scaling=scaling, intercept=False)
    if preparation.norm_noise is not None:
        book(GaussianEvent(preparation.norm_noise), "lengths of rows")
    release = _counting(preparation.norm_noise)
    bound = bound_from(release.release(norm_counts(features), rng), release.standard_deviation)
    if preparation.moment_noise is not None:
        book(GaussianEvent(preparation.moment_noise), "means and deviations of features")
    slack = summation_slack(features.n_rows, in_blocks_of=features.block_rows)
    release = _summing(preparation.moment_noise, math.sqrt(2.0) * bound, slack)
    sums = release.release(moment_sums(features, bound), rng)
    mean, deviation = mean_and_deviation(sums, bound, features.n_rows, release.standard_deviation)
    if scaling is not None and scaling.lower is not None and not features.sparse:
        deviation = _floor_rare(mean, deviation)
    return (scaling or Scaling(deviation=deviation)).standardised(
        None if features.sparse else mean, deviation
    )


def _floor_rare(mean: Floats, deviation: Floats) -> Floats:
    """Return deviations of features in [0, 1], those of rare categories no smaller than half of the usual.

    A rare category blown up to the size of the others lets one coefficient swing a small group's predictions
    from step to step. A feature of mean m that is 0 or 1 has variance m (1 - m), one in between has less.
    """
    variance = np.square(deviation)
    category = variance > 0.5 * mean * (1.0 - mean)
    least = _SMALLEST_SHARE * math.sqrt(float(np.mean(variance)))
    return np.where(category, np.maximum(deviation, least), deviation)


def norm_counts(features: Features) -> Floats:
    """Return how many rows have a norm in each bin; **private**. One row changes one entry by 1."""
    counts = np.zeros(len(_EDGES) + 1)
    for norms, _ in _blocks(features):
        counts += np.bincount(np.searchsorted(_EDGES, norms), minlength=len(counts))
    return counts


def bound_from(counts: Floats, noise: float) -> float:
    """Return the edge below which nine tenths of the rows lie, by counts that stand out of the noise."""
    sure = np.where(counts > _NOISE_DEVIATIONS * noise, counts, 0.0)
    if not sure.any():
        sure[np.argmax(counts)] = 1.0
    below = np.cumsum(sure)
    place = int(np.searchsorted(below, _SHARE * below[-1]))
    return float(_EDGES[min(place, len(_EDGES) - 1)])


def moment_sums(features: Features, bound: float) -> Floats:
    """Return the sum over rows, each shrunk to norm `bound`, of ``(x, x^2 / bound)``; **private**.

    One row changes it by at most ``sqrt(2) * bound`` in L2 norm.
    """
    total = np.zeros(2 * features.n_features)
    for norms, block in _blocks(features):
        # a hair below the bound, lest rounding lead past it; a row of infinite length counts as zero
        shrunk = _times(block, np.minimum(1.0, bound * (1 - 1e-9) / np.maximum(norms, _SMALLEST)))
        total[: features.n_features] += np.asarray(shrunk.sum(axis=0)).ravel()
        total[features.n_features :] += np.asarray(_squared(shrunk).sum(axis=0)).ravel() / bound
    return total


def mean_and_deviation(sums: Floats, bound: float, n_rows: int, noise: float) -> tuple[Floats, Floats]:
    """Return the means and the deviations that released sums stand for."""
    mean, squares = (sums / n_rows).reshape(2, -1)
    floor = max(_FLOOR_DEVIATIONS * noise * bound / n_rows, 1e-6 * bound * bound / len(mean))
    return mean, np.sqrt(np.maximum(squares * bound - np.square(mean), floor))


def _blocks(features: Features) -> Any:
    """Yield the norms of the rows, in double precision, and the rows, a block at a time."""
    for start in range(0, features.n_rows, features.block_rows):
        rows = np.arange(start, min(start + features.block_rows, features.n_rows))
        block = features.prepared(rows).astype(np.float64)
        with np.errstate(over="ignore"):
            squared = np.asarray(_squared(block).sum(axis=1)).ravel()
        yield np.sqrt(squared), block


def _times(block: Any, factor: Floats) -> Any:
    if not isinstance(block, np.ndarray):
        return sp.csr_array(sp.diags_array(factor) @ block)
    return block * factor[:, None]


def _squared(block: Any) -> Any:
    return np.square(block) if isinstance(block, np.ndarray) else block.power(2)


def _counting(noise: float | None) -> Mechanism:
    return NoNoise() if noise is None else RoundedGaussianMechanism(noise, 1.0, whole=True)


def _summing(noise: float | None, sensitivity: float, slack: float) -> Mechanism:
    return NoNoise() if noise is None else RoundedGaussianMechanism(noise, sensitivity, slack=slack)
