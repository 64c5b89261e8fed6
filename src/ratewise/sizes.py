"""Sizes of single features that nobody declared, found privately.

One feature a thousand times as large as the others sets the length of rows, and noise in proportion to that
length hides the others. So where no bounds are declared, the size of each feature is released before anything
else: a table of d features by sign and magnitude, in bins of two octaves, in which a row with m entries that
are not zero adds ``1/sqrt(m)`` to m places, one for each of them. As a vector that has norm 1, whatever the
row: **sensitivity 1** for adding or removing a row. Zeros count nowhere, so that in a row of many categories,
of which few are one, the few count more.

Everything after that is post-processing. The size of a feature is the root mean square of the ends of its
bins, by the counts that stand out of the noise; features of which nothing stands out, such as rare
categories, have the size that all of them together have. Features more than 8 times as large as usual (the
size that three quarters of them do not exceed) are divided by their own size. Smaller ones keep their
proportion to the usual, since noise may hide rare large entries of theirs: a rare category, standardised, is
far from zero in few rows. Only what is 64 times too small is brought up, to a sixteenth of the usual.

What is exactly 1 or -1 has a place of its own in the table. So the same release tells flags from numbers: a
feature is a number if a count of other magnitudes stands out of the noise. It also tells whether any of its
entries are seen below zero, and how large they are. What noise hides may be larger, the more so the fewer are
seen at all: the largest magnitude seen is raised by as many times as noise could hide fiftieths of the rest.

>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(5_000, 4)) * [1.0, 1_000.0, 1e-3, 1.0]
>>> X[:, 3] = X[:, 3] > 0.5
>>> find_sizes(Features(X, intercept=False), 20.0, rng, lambda event, purpose: print(event, purpose))
GaussianEvent(noise=20.0, count=1) sizes of features
Sizes(of=array([...]), numbers=array([0, 1, 2]), most=array([...]), below_zero=array([ True,  True,  True]),
    flags=array([False, False, False,  True]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratewise.accounting.events import GaussianEvent
from ratewise.features import Features
from ratewise.mechanisms import Mechanism, NoNoise, RoundedGaussianMechanism, summation_slack

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

_LOWEST, _BINS, _WIDTH = -40, 50, 2  # of powers of two: from a million millionth to a million million million
PLACES = 2 * _BINS + 1  # of a feature: above zero, below, and the last for what is exactly 1 or -1
_ONE, _EXACT_ROWS = 2.0**24, 2**29  # weights are whole multiples of 1/_ONE: sums of so many are exact
_BIAS = 1022  # in the exponent bits of a double, so that those of 0.5 to 1 are 0
_ENDS = np.append(np.exp2(_LOWEST - 1.0 + _WIDTH * np.arange(1, _BINS + 1)), 1.0)
_STANDS_OUT = 5.0  # deviations of the noise: chance alone makes such a count once in 20,000 features
_HIDDEN = 0.02  # share of what is seen that noise may hide without a word
_USUAL = 0.75
_LARGE, _SMALL, _BROUGHT_UP = 8.0, 64.0, 16.0


class Sizes(NamedTuple):
    """What was found of features; all of it is computed from one release.

    Attributes
    ----------
    of : array
        What to divide each feature by.
    numbers : array of places
        Which features are numbers.
    most : array
        How large entries may be: the largest magnitude that stands out, or more, one for each number.
    below_zero : array of bool
        Whether entries below zero stand out, or those above do not outnumber them for sure; one for each
        number.
    flags : array of bool
        Whether entries that are 1 or -1 stand out, one for each feature.
    """

    of: Floats
    numbers: Places
    most: Floats
    below_zero: npt.NDArray[np.bool_]
    flags: npt.NDArray[np.bool_]

    def among(self, places: Places) -> Sizes:
        """Return the same with no other numbers than these."""
        kept = np.isin(self.numbers, places)
        return self._replace(
            numbers=self.numbers[kept], most=self.most[kept], below_zero=self.below_zero[kept]
        )

    def kinds(self) -> Places:
        """Return 1 for what is no number and 0 for numbers; 0 for all if there are no flags for sure.

        What is not seen may be anything: by itself it would be measured by nothing but noise.
        """
        others = np.ones(len(self.of), dtype=np.intp)
        others[self.numbers] = 0
        return others if np.any(self.flags[others == 1]) else np.zeros_like(others)


def find_sizes(
    features: Features,
    noise: float | None,
    rng: np.random.Generator,
    book: Callable[[GaussianEvent, str], object],
) -> Sizes:
    """Return what to divide each feature by, and which are numbers, from one release.

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
    counts, deviation = mechanism.release(size_counts(features), rng), mechanism.standard_deviation
    flags = counts[:, -1] > _STANDS_OUT * deviation
    return Sizes(sizes_from(counts, deviation), *numbers_from(counts, deviation), flags)


def _slack(n_rows: int) -> float:
    """Return room for the rounding of roots, and of sums where rows are so many that those are not exact."""
    return 1e-12 if n_rows <= _EXACT_ROWS else summation_slack(n_rows)


def size_counts(features: Features) -> Floats:
    """Return the weighted counts of entries by feature, sign and magnitude, (d, places); **private**.

    A row adds a vector of norm at most 1: its weights are rounded down to whole multiples of a power of two,
    so that sums are exact in whatever order, and it adds the same whatever rows stand beside it.
    """
    places = features.n_features * PLACES
    total = np.zeros(places)
    for block in features.in_order():
        if features.sparse:
            bins, seen = _bins(block.data)
            rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
            weights = _weights(np.bincount(rows, seen, block.shape[0]))[rows]
            columns = block.indices.astype(np.int64)
        else:
            bins, seen = _bins(block)
            weights = _weights(np.count_nonzero(seen, axis=1))[:, None]
            columns = np.arange(features.n_features)
        total += np.bincount((bins + columns * PLACES).ravel(), (weights * seen).ravel(), places)
    return (total / _ONE).reshape(features.n_features, PLACES)


def _bins(entries: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the place of each entry, and which entries are far enough from zero to have one."""
    exponents = entries.view(np.int64) >> 52
    exponents &= 0x7FF
    seen = exponents > 0
    exponents -= _BIAS + _LOWEST
    exponents //= _WIDTH
    np.clip(exponents, 0, _BINS - 1, out=exponents)
    exponents[entries < 0.0] += _BINS
    exponents[np.abs(entries) == 1.0] = PLACES - 1
    return exponents, seen


def _weights(entries_seen: npt.NDArray[Any]) -> Floats:
    """Return what each entry of a row counts, for a row of so many: a hair less than would make norm 1."""
    return np.asarray(np.floor(_ONE / np.sqrt(np.maximum(entries_seen, 1))))


def sizes_from(counts: Floats, noise: float) -> Floats:
    """Return what to divide each feature by, from released counts (d, places) with noise of this deviation.

    >>> counts = np.zeros((4, PLACES))
    >>> counts[[0, 1, 2, 3], [20, 20, 25, 10]] = 90.0
    >>> sizes_from(counts, 1.0).tolist()
    [2.0, 2.0, 2048.0, 3.0517578125e-05]
    """
    found = _sizes(_sure(counts, noise))
    faint = np.isnan(found)
    if faint.any():
        pooled = counts[faint].sum(axis=0, keepdims=True)
        together = float(_sizes(_sure(pooled, noise * math.sqrt(np.count_nonzero(faint))))[0])
        seen = 1.0 if faint.all() else float(np.median(found[~faint]))
        found[faint] = seen if math.isnan(together) else together
    usual = float(np.quantile(found, _USUAL, method="lower"))
    sizes = np.where(found > _LARGE * usual, found, usual)
    return np.where(found * _SMALL < usual, found * _BROUGHT_UP, sizes)


def numbers_from(counts: Floats, noise: float) -> tuple[Places, Floats, npt.NDArray[np.bool_]]:
    """Return what `Sizes` says of numbers: features that surely have entries other than 0, 1 and -1.

    >>> counts = np.zeros((4, PLACES))
    >>> counts[[0, 1, 1, 2, 3], [-1, 20, -1, 25, 71]] = [900.0, 900.0, 600.0, 3.0, 900.0]
    >>> numbers_from(counts, 1.0)
    (array([1, 3]), array([2., 8.]), array([False,  True]))
    >>> numbers_from(counts, 9.0)[1]  # noise could hide 45, of 900 two and a half fiftieths
    array([ 3., 20.])
    """
    sure = _sure(counts, noise)
    numbers = np.flatnonzero(sure[:, :_BINS].any(axis=1))
    sure = sure[numbers]
    largest = np.where(sure > 0, _ENDS, 0.0).max(axis=1, initial=0.0)
    most = largest * np.maximum(1.0, _STANDS_OUT * noise / (_HIDDEN * sure.sum(axis=1)))
    above, below = counts[numbers, :_BINS], counts[numbers, _BINS : 2 * _BINS]
    seen = sure[:, :_BINS] > 0
    lead = np.where(seen, above - below, 0.0).sum(axis=1)
    even = lead <= _STANDS_OUT * noise * np.sqrt(2.0 * np.count_nonzero(seen, axis=1))
    return numbers, most, np.asarray((below > _STANDS_OUT * noise).any(axis=1) | even)


def _sure(counts: Floats, noise: float) -> Floats:
    """Return the counts by magnitude that stand out of the noise, on one side of zero or both together."""
    above, below, one = counts[:, :_BINS], counts[:, _BINS : 2 * _BINS], counts[:, 2 * _BINS :]
    least = _STANDS_OUT * noise
    apart = np.where(above > least, above, 0.0) + np.where(below > least, below, 0.0)
    both = above + below
    sure = np.where(both > math.sqrt(2.0) * least, both, apart)
    return np.hstack([sure, np.where(one > least, one, 0.0)])


def _sizes(sure: Floats) -> Floats:
    """Return the root mean square of the bins' ends by counts that stand out; NaN where none does."""
    total = sure.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(sure @ np.square(_ENDS) / np.where(total > 0, total, np.nan)))
