"""Rates and intervals from a histogram that was released with noise: post-processing, it costs no privacy.

A released table is the true one plus independent Gaussian noise of one deviation s on every entry. The number
of rows n is public, so the noise of the total is taken off first: every entry moves by ``(n - sum) / (Q K)``.
For one constraint, a sum of fractions num/den:

- its value is read off that table, each fraction moved into [0, 1];
- the noise moves it by a deviation of s times the norm of its gradient ``(1[num] - v 1[den]) / den``, less
  the part along the total (first order);
- sampling moves it as `ratewise.intervals` says, at the table moved to the nearest one without negative
  entries;
- both are independent, so the limits lie at the root of the sum of squares of both distances.

First order holds while denominators are large beside their noise. A fraction whose denominator is less than
five deviations of its noise is not told at all: value and limits are NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from ratewise.compiled import CompiledConstraints
from ratewise.intervals import Moments, mix_intervals

Floats = NDArray[np.float64]

_LEAST_DEVIATIONS = 5.0


def noisy_intervals(
    compiled: CompiledConstraints, released: Floats, n_rows: int, noise: float, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return values, lower and upper limits of the normal forms; NaN where a rate rests on too few rows.

    Parameters
    ----------
    compiled : CompiledConstraints
    released : (Q, K) array
        The noisy histogram of hard predictions.
    n_rows : int
        Public number of rows.
    noise : float
        Standard deviation of the noise on each entry.
    confidence : float
        Of each interval, about the population that the rows were drawn from.
    """
    table = fixed_total(released, n_rows)
    values = compiled.values(table, floor=1e-9)
    steady = Moments(nearest_table(table, n_rows))
    middle, low, high = mix_intervals(compiled, steady, confidence)
    deviations = noise * gradient_norms(compiled, table)
    reach = float(norm.ppf((1 + confidence) / 2)) * deviations
    low, high = values - np.hypot(middle - low, reach), values + np.hypot(high - middle, reach)
    unclear = ~clear(compiled, table, noise)
    for ends in (values, low, high):
        ends[unclear] = np.nan
    return values, low, high


def fixed_total(released: Floats, n_rows: int) -> Floats:
    """Return the table with every entry moved alike, so that all sum to the public number of rows."""
    moved: Floats = released + (n_rows - released.sum()) / released.size
    return moved


def nearest_table(table: Floats, total: float) -> Floats:
    """Return the nearest table without negative entries that sums to `total`.

    >>> nearest_table(np.array([[5.0, -1.0], [4.0, 2.0]]), 10.0)
    array([[4.66666667, 0.        ],
           [3.66666667, 1.66666667]])
    """
    falling = np.sort(table, axis=None)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    kept = int(np.flatnonzero(falling > excess)[-1])
    nearest: Floats = np.maximum(table - excess[kept], 0.0)
    return nearest


def gradient_norms(compiled: CompiledConstraints, table: Floats) -> Floats:
    """Return, per constraint, the norm of its gradient in the entries, less the part along their total."""
    found = np.empty(len(compiled))
    below = compiled.denominators(table)
    for j, (numbers, coefficients) in enumerate(_rows(compiled)):
        gradient = np.zeros_like(table)
        for number, coefficient in zip(numbers, coefficients, strict=True):
            gradient += coefficient * _fraction_gradient(compiled, int(number), table, float(below[number]))
        found[j] = np.linalg.norm(gradient - gradient.mean())
    return found


def clear(compiled: CompiledConstraints, table: Floats, noise: float) -> NDArray[np.bool_]:
    """Return which constraints have all denominators well above their noise."""
    below = compiled.denominators(table)
    entries = np.array([_denominator(compiled, r, table.shape).sum() for r in range(len(below))])
    share = entries / table.size
    sure = below >= _LEAST_DEVIATIONS * noise * np.sqrt(entries * (1 - share)) + 1e-9
    return np.array([bool(sure[numbers].all()) for numbers, _ in _rows(compiled)])


def _rows(compiled: CompiledConstraints) -> list[tuple[NDArray[np.int64], Floats]]:
    table = compiled.coefficients
    parts = [slice(table.indptr[j], table.indptr[j + 1]) for j in range(len(compiled))]
    return [(table.indices[part], table.data[part]) for part in parts]


def _fraction_gradient(compiled: CompiledConstraints, number: int, table: Floats, below: float) -> Floats:
    terms = compiled.terms
    above = np.zeros(table.shape)
    above[_members(compiled, int(terms.numerator[number])), terms.klass[number]] = 1.0
    below = max(below, 1e-9)
    value = min(max(float((above * table).sum()) / below, 0.0), 1.0)
    gradient: Floats = (above - value * _denominator(compiled, number, table.shape)) / below
    return gradient


def _denominator(compiled: CompiledConstraints, number: int, shape: tuple[int, ...]) -> Floats:
    terms = compiled.terms
    mask = np.zeros(shape)
    chosen = terms.klass[number] if terms.ratio[number] else slice(None)
    mask[_members(compiled, int(terms.denominator[number])), chosen] = 1.0
    return mask


def _members(compiled: CompiledConstraints, subset: int) -> NDArray[np.int64]:
    return compiled.index_sets[subset].members(compiled.n_cells)
