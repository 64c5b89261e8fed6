"""How small or large a constraint's left-hand side can get, whatever the classifier and whatever the rows.

Used to refuse impossible demands before anything is spent, and to notice idle ones. The bound is sound: each
rate lies in [0, 1]; rates of different classes over the same rows are shares of one whole; so are counts over
one denominator, where the best case puts all rows into the cheapest cell and class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.cells import Subset
from ratewise.kernels import Terms, sum_by

Floats = NDArray[np.float64]

_MOST_ENTRIES = 5_000_000  # past that the cruder bound, each rate in [0, 1], has to do


def smallest_values(rows: Any, terms: Terms, sets: list[Subset], cells: int, classes: int) -> Floats:
    """Return a lower bound on every constraint's value.

    Parameters
    ----------
    rows : (J, R) sparse array
        Coefficients of the terms.
    terms, sets
        The terms, and the subsets they point to.
    """
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    term, amount = rows.indices, rows.data
    total = np.zeros(rows.shape[0])
    if not len(term):
        return total
    ratio = terms.ratio[term]
    _add(total, owner[ratio], np.minimum(amount[ratio], 0.0))
    # shares of the rows of one denominator, together: one number per (constraint, denominator)
    share = np.flatnonzero(~ratio)
    keys = owner[share] * np.int64(len(sets)) + terms.denominator[term[share]]
    wholes, member = np.unique(keys, return_inverse=True)
    whole_owner = wholes // len(sets)
    plain = terms.numerator[term[share]] == terms.denominator[term[share]]
    mixed = np.bincount(member, ~plain, len(wholes)) > 0
    of_mixed = mixed[member]
    floor = _simplex(member[~of_mixed], amount[share[~of_mixed]], len(wholes), classes)
    _add(total, whole_owner[~mixed], floor[~mixed])
    if mixed.any():
        floor = _cheapest(
            member[of_mixed],
            term[share[of_mixed]],
            amount[share[of_mixed]],
            terms,
            sets,
            cells,
            classes,
            len(wholes),
        )
        _add(total, whole_owner[mixed], floor[mixed])
    return total


def _add(total: Floats, place: NDArray[Any], amount: Floats) -> None:
    total += sum_by(place, amount, len(total))


def _simplex(whole: NDArray[Any], amount: Floats, wholes: int, classes: int) -> Floats:
    """Return the smallest value of each weighted sum of class shares, which add up to one."""
    missing = np.bincount(whole, minlength=wholes) < classes
    smallest = np.where(missing, 0.0, np.inf)
    np.minimum.at(smallest, whole, amount)
    return smallest


def _cheapest(
    whole: NDArray[Any],
    term: NDArray[Any],
    amount: Floats,
    terms: Terms,
    sets: list[Subset],
    cells: int,
    classes: int,
    wholes: int,
) -> Floats:
    """Return the smallest cost of one row, over the cells of the denominator and the classes."""
    if sum(sets[s].size(cells) for s in terms.numerator[term].tolist()) > _MOST_ENTRIES:
        return sum_by(whole, np.minimum(amount, 0.0), wholes)
    listed = [sets[s].members(cells) for s in terms.numerator[term].tolist()]
    sizes = np.array([len(cell) for cell in listed])
    columns = np.concatenate(listed) * classes + np.repeat(terms.klass[term], sizes)
    cost = sp.coo_array(
        (np.repeat(amount, sizes), (np.repeat(whole, sizes), columns)), shape=(wholes, cells * classes)
    ).tocsr()
    cost.sum_duplicates()
    rows = np.diff(cost.indptr)
    of = np.zeros(wholes, dtype=np.int64)
    of[whole] = [sets[s].size(cells) for s in terms.denominator[term].tolist()]
    smallest = np.where(rows < of * classes, 0.0, np.inf)
    np.minimum.at(smallest, np.repeat(np.arange(wholes), rows), cost.data)
    return smallest
