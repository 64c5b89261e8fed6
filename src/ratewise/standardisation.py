"""Private means and deviations of the features, so that training meets features of like size.

Gradient descent is at a loss when some features are a hundred times smaller than others, or all of one sign.
Standardising with raw means and deviations leaks; here both are released with noise, in four steps that the
ledger books before they happen:

1. *How long rows are.* A histogram of the rows' norms over fixed bins, a quarter of an octave each. One row
   adds 1 to one bin: sensitivity 1. Counts that could be noise, and those more than two octaves from the
   largest, are dropped; the bound R is the edge below which nine tenths of the others lie.
2. *Means.* The sum of the rows, each shrunk to norm at most R: sensitivity R.
3. *How long rows are from there.* The released means are taken off, and 1 is done again: sensitivity 1, and a
   bound R', which is smaller by what all rows have in common.
4. *Squares.* With every row, less the means, shrunk to norm at most R', the sum of ``x^2 / R'``. A vector of
   norm R' has squares of norm at most R'^2: sensitivity R'.

Everything after that is post-processing. Variances are drawn towards their mean as far as noise explains how
they differ, and are at least twice their noise or their mean, whichever is less. Noise is in proportion to
the length of whole rows: beside one feature a thousand times as large as the others, the others are lost, and
need declared bounds first. Sparse features are not shifted, so nothing is taken off them in 3.
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
_NEAR = 8
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
    norm, moment = _counting(preparation.norm_noise), preparation.moment_noise
    slack = summation_slack(features.n_rows, in_blocks_of=features.block_rows)

    def released_bound(centre: Floats | None, purpose: str) -> float:
        if preparation.norm_noise is not None:
            book(GaussianEvent(preparation.norm_noise), purpose)
        counts = norm.release(norm_counts(features, centre), rng)
        return bound_from(counts, norm.standard_deviation)

    bound = released_bound(None, "lengths of rows")
    if moment is not None:
        book(GaussianEvent(moment), "means of features")
    release = _summing(moment, bound, slack)
    mean = release.release(row_sums(features, bound), rng) / features.n_rows
    blur = release.standard_deviation / features.n_rows
    centre = None if features.sparse else mean
    bound = released_bound(centre, "lengths of rows less the means")
    if moment is not None:
        book(GaussianEvent(moment), "deviations of features")
    release = _summing(moment, bound, slack)
    squares = release.release(square_sums(features, bound, centre), rng) * (bound / features.n_rows)
    # what noise on a mean adds to the squares around it is known
    variance = squares - (np.square(mean) if features.sparse else blur * blur)
    deviation = deviations(variance, release.standard_deviation * bound / features.n_rows, bound)
    if scaling is not None and scaling.lower is not None and not features.sparse:
        deviation = _floor_rare(mean, deviation)
    return (scaling or Scaling(deviation=deviation)).standardised(centre, deviation)


def _floor_rare(mean: Floats, deviation: Floats) -> Floats:
    """Return deviations of features in [0, 1], those of rare categories no smaller than half of the usual.

    A rare category blown up to the size of the others lets one coefficient swing a small group's predictions
    from step to step. A feature of mean m that is 0 or 1 has variance m (1 - m), one in between has less.
    """
    variance = np.square(deviation)
    category = variance > 0.5 * mean * (1.0 - mean)
    least = _SMALLEST_SHARE * math.sqrt(float(np.mean(variance)))
    return np.where(category, np.maximum(deviation, least), deviation)


def norm_counts(features: Features, centre: Floats | None = None) -> Floats:
    """Return how many rows have a norm in each bin; **private**. One row changes one entry by 1."""
    counts = np.zeros(len(_EDGES) + 1)
    for norms, _ in _blocks(features, centre):
        counts += np.bincount(np.searchsorted(_EDGES, norms), minlength=len(counts))
    return counts


def bound_from(counts: Floats, noise: float) -> float:
    """Return the edge below which nine tenths of the rows lie, by counts that stand out of the noise.

    Only bins within two octaves of the fullest count: of so many bins, some always stand out by chance.
    """
    fullest = int(np.argmax(counts))
    near = np.abs(np.arange(len(counts)) - fullest) <= _NEAR
    sure = np.where(near & (counts > _NOISE_DEVIATIONS * noise), counts, 0.0)
    if not sure.any():
        sure[fullest] = 1.0
    below = np.cumsum(sure)
    place = int(np.searchsorted(below, _SHARE * below[-1]))
    return float(_EDGES[min(place, len(_EDGES) - 1)])


def row_sums(features: Features, bound: float) -> Floats:
    """Return the sum of the rows, each shrunk to norm `bound`; **private**.

    One row changes it by at most `bound` in L2 norm.
    """
    total = np.zeros(features.n_features)
    for norms, block in _blocks(features, None):
        total += np.asarray(_shrunk(block, norms, bound).sum(axis=0)).ravel()
    return total


def square_sums(features: Features, bound: float, centre: Floats | None) -> Floats:
    """Return the sum over rows less `centre`, each shrunk to norm `bound`, of ``x^2 / bound``; **private**.

    One row changes it by at most `bound` in L2 norm.
    """
    total = np.zeros(features.n_features)
    for norms, block in _blocks(features, centre):
        total += np.asarray(_squared(_shrunk(block, norms, bound)).sum(axis=0)).ravel() / bound
    return total


def deviations(variances: Floats, noise: float, bound: float) -> Floats:
    """Return deviations from noisy variances of rows of norm at most `bound`.

    What noise of this standard deviation explains of the differences between variances is taken out of them.
    """
    usual = max(float(np.mean(variances)), _FLOOR_DEVIATIONS * noise / math.sqrt(len(variances)))
    spread = max(0.0, float(np.var(variances)) - noise * noise)
    kept = 1.0 if noise == 0.0 else spread / (spread + noise * noise)
    floor = max(min(_FLOOR_DEVIATIONS * noise, usual), 1e-6 * bound * bound / len(variances))
    return np.sqrt(np.maximum(usual + kept * (variances - usual), floor))


def _blocks(features: Features, centre: Floats | None) -> Any:
    """Yield the norms of the rows less `centre`, and these rows, a block at a time."""
    for start in range(0, features.n_rows, features.block_rows):
        rows = np.arange(start, min(start + features.block_rows, features.n_rows))
        block = features.prepared(rows)
        with np.errstate(over="ignore"):
            if centre is not None:
                block -= centre
            squared = np.asarray(_squared(block).sum(axis=1)).ravel()
        yield np.sqrt(squared), block


def _shrunk(block: Any, norms: Floats, bound: float) -> Any:
    """Return rows of norm at most `bound`."""
    # a hair below the bound, lest rounding lead past it; a row of infinite length counts as zero
    return _times(block, np.minimum(1.0, bound * (1 - 1e-9) / np.maximum(norms, _SMALLEST)))


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
