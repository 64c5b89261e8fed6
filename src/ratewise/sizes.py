"""Sizes of single features that nobody declared, found privately.

One feature a thousand times as large as the others sets the length of rows, and noise in proportion to that
length hides the others. So where no bounds are declared, the size of each feature is released before anything
else: a table of d features by bins of magnitude, two octaves each, in which a row with m entries that are not
zero adds ``1/sqrt(m)`` to m places, one for each of them. As a vector that has norm 1, whatever the row:
**sensitivity 1** for adding or removing a row. Zeros count nowhere, so that in a row of many categories, of
which few are one, the few count more.

Everything after that is post-processing. The size of a feature is the root mean square of the ends of its
bins, by the counts that stand out of the noise; features of which nothing stands out, such as rare
categories, have the size that all of them together have. Features more than 8 times as large as usual (the
size that three quarters of them do not exceed) are divided by their own size. Smaller ones keep their
proportion to the usual, since noise may hide rare large entries of theirs: a rare category, standardised, is
far from zero in few rows. Only what is 64 times too small is brought up, to a sixteenth of the usual.

>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(5_000, 3)) * [1.0, 1_000.0, 1e-3]
>>> find_sizes(Features(X, intercept=False), 20.0, rng, lambda event, purpose: print(event, purpose))
GaussianEvent(noise=20.0, count=1) sizes of features
array([2.38113411e+00, 1.63335508e+03, 3.51318466e-02])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.accounting.events import GaussianEvent
from ratewise.features import Features
from ratewise.mechanisms import Mechanism, NoNoise, RoundedGaussianMechanism, summation_slack

Floats = npt.NDArray[np.float64]

_LOWEST, _BINS, _WIDTH = -40, 50, 2  # of powers of two: from a million millionth to a million million million
_ONE, _EXACT_ROWS = 2.0**24, 2**29  # weights are whole multiples of 1/_ONE: sums of so many are exact
_BIAS = 1022  # in the exponent bits of a double, so that those of 0.5 to 1 are 0
_ENDS = np.exp2(_LOWEST - 1.0 + _WIDTH * np.arange(1, _BINS + 1))
_STANDS_OUT = 5.0  # deviations of the noise: chance alone makes such a count once in 70,000 features
_USUAL = 0.75
_LARGE, _SMALL, _BROUGHT_UP = 8.0, 64.0, 16.0


def find_sizes(
    features: Features,
    noise: float | None,
    rng: np.random.Generator,
    book: Callable[[GaussianEvent, str], object],
) -> Floats:
    """Return what to divide each feature by, from one release.

    Parameters
    ----------
    features : Features
        **Private** rows.
    noise : float or None
        Standard deviation of the noise, in units of the sensitivity; None releases without noise.
    rng : numpy.random.Generator
    book : callable
        Called with the event and its purpose **before** the release.
    """
    mechanism: Mechanism = NoNoise()
    if noise is not None:
        book(GaussianEvent(noise), "sizes of features")
        mechanism = RoundedGaussianMechanism(noise, slack=_slack(features.n_rows))
    return sizes_from(mechanism.release(size_counts(features), rng), mechanism.standard_deviation)


def _slack(n_rows: int) -> float:
    """Return room for the rounding of roots, and of sums where rows are so many that those are not exact."""
    return 1e-12 if n_rows <= _EXACT_ROWS else summation_slack(n_rows)


def size_counts(features: Features) -> Floats:
    """Return the weighted counts of entries by feature and magnitude, (d, bins); **private**.

    A row adds a vector of norm at most 1: its weights are rounded down to whole multiples of a power of two,
    so that sums are exact in whatever order, and it adds the same whatever rows stand beside it.
    """
    places = features.n_features * _BINS
    total = np.zeros(places)
    for start in range(0, features.n_rows, features.block_rows):
        block = features.prepared(np.arange(start, min(start + features.block_rows, features.n_rows)))
        if features.sparse:
            bins, seen = _bins(block.data)
            rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
            weights = _weights(np.bincount(rows, seen, block.shape[0]))[rows]
            columns = block.indices.astype(np.int64)
        else:
            bins, seen = _bins(block)
            weights = _weights(np.count_nonzero(seen, axis=1))[:, None]
            columns = np.arange(features.n_features)
        total += np.bincount((bins + columns * _BINS).ravel(), (weights * seen).ravel(), places)
    return (total / _ONE).reshape(features.n_features, _BINS)


def _bins(entries: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the bin of each entry's magnitude, and which entries are far enough from zero to have one."""
    exponents = entries.view(np.int64) >> 52
    exponents &= 0x7FF
    seen = exponents > 0
    exponents -= _BIAS + _LOWEST
    exponents //= _WIDTH
    return np.clip(exponents, 0, _BINS - 1, out=exponents), seen


def _weights(entries_seen: npt.NDArray[Any]) -> Floats:
    """Return what each entry of a row counts, for a row of so many: a hair less than would make norm 1."""
    return np.asarray(np.floor(_ONE / np.sqrt(np.maximum(entries_seen, 1))))


def sizes_from(counts: Floats, noise: float) -> Floats:
    """Return what to divide each feature by, from released counts (d, bins) with noise of this deviation.

    >>> counts = np.zeros((4, 50))
    >>> counts[[0, 1, 2, 3], [20, 20, 25, 10]] = 90.0
    >>> sizes_from(counts, 1.0).tolist()
    [2.0, 2.0, 2048.0, 3.0517578125e-05]
    """
    found = np.array([_size(each, noise) for each in counts])
    faint = np.isnan(found)
    if faint.any():
        together = _size(counts[faint].sum(axis=0), noise * math.sqrt(np.count_nonzero(faint)))
        seen = 1.0 if faint.all() else float(np.median(found[~faint]))
        found[faint] = seen if math.isnan(together) else together
    usual = float(np.quantile(found, _USUAL, method="lower"))
    sizes = np.where(found > _LARGE * usual, found, usual)
    return np.where(found * _SMALL < usual, found * _BROUGHT_UP, sizes)


def _size(counts: Floats, noise: float) -> float:
    """Return the root mean square of the bins' ends by counts that stand out; NaN if none does."""
    sure = np.where(counts > _STANDS_OUT * noise, counts, 0.0)
    if not sure.any():
        return math.nan
    return math.sqrt(float(sure @ np.square(_ENDS)) / float(sure.sum()))
