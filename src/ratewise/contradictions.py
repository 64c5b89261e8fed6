"""Limits that no classifier can hold together, whatever the rows: found before any row is read.

A set of limits is refused only with a proof, and a proof must hold for **every** size that the cells might
have, since sizes are private. Two kinds of proof are looked for, each the solution y >= 0 of a small linear
programme, checked afterwards by plain arithmetic, so that nothing rests on the tolerance of a solver:

*subset by subset*  The predictions in a subset are shares of one whole. Added up with weights y, the limits
    ask for less than the cheapest shares of each subset cost: ``rate(0) <= .2`` with ``rate(1) <= .2``.
*row by row*  A limit on rates of one denominator is linear in the numbers of rows h[q, k] of cell q predicted
    k: ``rate(1, F) <= .2`` says h[F, 1] <= .2 (h[F, 0] + h[F, 1]). Added up with weights y, the limits leave
    no h >= 0 in which every subset has a row: ``rate(1, F) <= .2``, ``rate(1, M) <= .2``, ``rate(1) >= .5``.
    Ranges of rates that the first kind of reasoning finds enter here as further limits.

The support of y names the limits in question; at a vertex of the programme it is a smallest such set.

A set that is not refused may still be out of reach: for the sizes that the cells do have, for the features at
hand, or by reasoning that takes both kinds at once. Limits that mix denominators with a predicted class among
them (differences of precisions) are left out. So are sets of more than 50,000 entries (coefficients, cells of
numerators and denominators) that neither equal nor constant predictions satisfy, and the second kind of proof
where limits have more than 200,000 entries in h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.compiled import CompiledConstraints
from ratewise.domain import list_values
from ratewise.exceptions import InvalidInput
from ratewise.limit_systems import TOLERANCE, LimitSystem, solve, term_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_RATES = 250  # whose ranges are worked out for the second kind of proof
_MOST_CONSTANTS = 20  # predictions of one class throughout that are tried first
_MOST_NUMBERS = 200_000  # entries of limits written out in numbers of rows, past which that is not tried
_SMALL = 1e-9  # weights below it are rounding


def refuse_contradictions(compiled: CompiledConstraints) -> None:
    """Raise `InvalidInput` if limits provably exclude each other; the message names them."""
    found = contradiction(compiled)
    if found:
        named = list_values([compiled.names[j] for j in found], most=6)
        raise InvalidInput(
            f"these limits contradict each other: {named}. No classifier can hold them together, whatever "
            "the data; relax or drop one of them"
        )


def contradiction(compiled: CompiledConstraints) -> tuple[int, ...]:
    """Return the numbers of limits that exclude each other, empty if none are known to.

    >>> from ratewise.partition import Domain, compile_constraints
    >>> from ratewise.rates import rate
    >>> domain = Domain(classes=(0, 1, 2))
    >>> limits = [rate(0) <= 0.3, rate(1) <= 0.3, rate(0) >= 0.1, rate(2) <= 0.3]
    >>> contradiction(compile_constraints(limits, domain, to_hold=False))
    (0, 1, 3)
    >>> contradiction(compile_constraints(limits[:3], domain))
    ()
    """
    if len(compiled) < 2 or _plainly_met(compiled):
        return ()
    system = LimitSystem.of(compiled)
    if system is None or _met_by_equal_cells(system):
        return ()
    by_subset = _Subsets(system)
    found = by_subset.proof()
    if found is None:
        found = _RowByRow(system).proof()
    if found is None:
        found = _RowByRow(_with_ranges(system, by_subset)).proof()
    return () if found is None else tuple(found.tolist())


def _plainly_met(compiled: CompiledConstraints) -> bool:
    """Return whether some plain predictions, the same for everyone, hold all limits."""
    shape = compiled.n_cells, compiled.n_classes
    slack = compiled.bounds + TOLERANCE * np.minimum(compiled.leverage, 1.0)
    tried = np.full(shape, 1.0 / shape[1])
    for k in range(-1, min(shape[1], _MOST_CONSTANTS)):
        if k >= 0:
            tried[:] = 0.0
            tried[:, k] = 1.0
        if np.all(compiled.values(tried, floor=_SMALL) <= slack):
            return True
    return False


def _met_by_equal_cells(system: LimitSystem) -> bool:
    """Return whether predictions exist that hold all limits if every cell has as many rows as any other."""
    terms, ratio = system.terms, system.terms.ratio
    sizes = np.array([len(system.members[s]) for s in terms.denominator.tolist()], dtype=np.float64)
    share = sp.diags_array(np.where(ratio, 1.0, 1.0 / sizes)) @ system.counted(terms.numerator, terms.klass)
    over = system.counted(terms.denominator, terms.klass)
    # the value of each term is a variable of its own, so that few entries say it all
    count, width = len(terms), system.cells * system.classes
    wholes = sp.kron(sp.eye_array(system.cells), np.ones((1, system.classes)))
    equal = sp.block_array([[share, -sp.eye_array(count)], [wholes, None]])
    of_ratio = np.array([bool(ratio[part].any()) for part in term_rows(system.rates)])
    first = np.array([part[0] for part in term_rows(system.rates)], dtype=np.int64)
    moved = sp.diags_array(np.where(of_ratio, system.bounds, 0.0)) @ over[first]
    found = solve(
        np.zeros(width + count),
        A_ub=sp.block_array([[-moved, system.rates]]),
        b_ub=np.where(of_ratio, 0.0, system.bounds),
        A_eq=equal,
        b_eq=np.concatenate([np.zeros(count), np.ones(system.cells)]),
        bounds=np.array([(0.0, np.inf)] * width + [(-np.inf, np.inf)] * count),
    )
    return found is not None


class _Subsets:
    """Each denominator by itself: its terms are the coordinates of a point of a polytope.

    The corners ("faces" of a die, one per kind of row and class) put all rows of the subset into one cell
    and class. Relations between subsets are left out, which makes every conclusion valid for all sizes.
    """

    def __init__(self, system: LimitSystem) -> None:
        self._system = system
        self._rows = np.array(
            [j for j, part in enumerate(term_rows(system.rates)) if not system.terms.ratio[part].any()],
            dtype=np.int64,
        )
        self._bounds = system.bounds[self._rows]
        rates = system.rates[self._rows]
        read = np.unique(rates.indices)
        self._corners, self._owner = _corners(system, read)
        self._wholes = int(self._owner.max()) + 1 if len(self._owner) else 0
        self._at_corners = sp.csr_array(self._corners @ rates.T)

    def proof(self) -> Ints | None:
        """Return limits whose weighted sum is below the cheapest that the subsets can make of it."""
        count = len(self._rows)
        if not count:
            return None
        inside = sp.csr_array(
            (np.ones(len(self._owner)), (np.arange(len(self._owner)), self._owner)),
            shape=(len(self._owner), self._wholes),
        )
        once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(self._wholes)])[None])
        found = solve(
            np.concatenate([self._bounds, -np.ones(self._wholes)]),
            A_ub=sp.vstack([sp.hstack([-self._at_corners, inside]), once]),
            b_ub=np.append(np.zeros(len(self._owner)), 1.0),
            bounds=np.array([(0.0, np.inf)] * count + [(-np.inf, np.inf)] * self._wholes),
        )
        if found is None:
            return None
        weights = _without_rounding(found.x[:count])
        if self._bounds @ weights - self._least(self._at_corners @ weights) >= 0:
            return None
        return self._system.named(self._rows[weights > 0])

    def highest(self, term: int, sign: float) -> tuple[float, Ints]:
        """Return an upper bound on ``sign * v[term]``, and the declared limits that it follows from."""
        target = sign * self._corners[:, [term]].toarray().ravel()
        inside = sp.csr_array(
            (np.ones(len(self._owner)), (self._owner, np.arange(len(self._owner)))),
            shape=(self._wholes, len(self._owner)),
        )
        found = solve(
            -target,
            A_ub=self._at_corners.T,
            b_ub=self._bounds,
            A_eq=inside,
            b_eq=np.ones(self._wholes),
        )
        if found is None:
            return np.inf, np.empty(0, dtype=np.int64)
        weights = _without_rounding(-found.ineqlin.marginals)
        bound = self._bounds @ weights - self._least(self._at_corners @ weights - target)
        chosen = self._rows[weights > 0]
        return float(bound), self._system.named(chosen) if len(chosen) else chosen

    def _least(self, cost: Floats) -> float:
        least = np.full(self._wholes, np.inf)
        np.minimum.at(least, self._owner, cost)
        return float(least.sum())


def _corners(system: LimitSystem, read: NDArray[Any]) -> tuple[Any, Ints]:
    """Return the values of all terms at the corners, and the denominator that each corner is of."""
    terms = system.terms
    rows, columns, owner = [], [], []
    corner = 0
    denominators = np.unique(terms.denominator[read])
    for whole, subset in enumerate(denominators.tolist()):
        here = read[terms.denominator[read] == subset]
        classes = np.unique(terms.klass[here])
        for kind in _kinds(system, subset, terms.numerator[here]):
            for k in classes.tolist():
                counted = here[kind & (terms.klass[here] == k)]
                rows.append(np.full(len(counted), corner))
                columns.append(counted)
                owner.append(whole)
                corner += 1
        if len(classes) < system.classes:
            owner.append(whole)
            corner += 1
    shape = corner, len(terms)
    if not rows:
        return sp.csr_array(shape), np.array(owner, dtype=np.int64)
    where = np.concatenate(rows), np.concatenate(columns)
    return sp.csr_array((np.ones(len(where[0])), where), shape=shape), np.array(owner, dtype=np.int64)


def _kinds(system: LimitSystem, subset: int, numerators: Ints) -> NDArray[np.bool_]:
    """Return, for each kind of row of a subset, which of the numerators count it."""
    if np.all(numerators == subset):
        return np.ones((1, len(numerators)), dtype=bool)
    inside = system.members[subset]
    return np.unique(
        np.stack([np.isin(inside, system.members[s]) for s in numerators.tolist()], axis=1), axis=0
    )


def _with_ranges(system: LimitSystem, by_subset: _Subsets) -> LimitSystem:
    """Return the same limits, and as further ones the ranges of rates that follow from several of them."""
    read = _compared(system)
    if not 0 < len(read) <= _MOST_RATES:
        return system
    found = [(term, sign, *by_subset.highest(term, sign)) for term in read.tolist() for sign in (1.0, -1.0)]
    telling = [one for one in found if one[2] < max(one[1], 0.0) - TOLERANCE]
    if not telling:
        return system
    terms, signs, bounds, sources = zip(*telling, strict=True)
    return system.extended(np.array(terms), np.array(signs), np.array(bounds), list(sources))


def _compared(system: LimitSystem) -> NDArray[Any]:
    """Return the terms of limits on several denominators; if many, only of classes limited alone, too."""
    lone = system.of_one_denominator()
    read = np.unique(system.rates[np.flatnonzero(~lone)].indices)
    if len(read) <= _MOST_RATES:
        return read
    klass = system.terms.klass
    return read[np.isin(klass[read], klass[system.rates[np.flatnonzero(lone)].indices])]


class _RowByRow:
    """Limits of one denominator, as homogeneous inequalities ``table @ h <= 0`` in the numbers of rows."""

    def __init__(self, system: LimitSystem) -> None:
        self._system = system
        self._rows = np.flatnonzero(system.of_one_denominator())
        if _numbers(system, self._rows) > _MOST_NUMBERS:
            self._rows = self._rows[:0]
        terms, rates = system.terms, system.rates[self._rows]
        first = np.array([part[0] for part in term_rows(rates)], dtype=np.int64)
        ratio = terms.ratio[first] if len(first) else np.empty(0, dtype=bool)
        of_rows = system.counted(terms.denominator[first], None)
        of_predicted = system.counted(terms.denominator[first], terms.klass[first])
        self._over = sp.diags_array(1.0 - ratio) @ of_rows + sp.diags_array(1.0 * ratio) @ of_predicted
        self._counted = rates @ system.counted(terms.numerator, terms.klass)
        self._bounds = system.bounds[self._rows]

    def proof(self) -> Ints | None:
        """Return limits that leave some subset without a row."""
        count = len(self._rows)
        if not count:
            return None
        system = self._system
        peopled = system.counted(np.arange(len(system.sets)), None)
        # solved with bounds a little looser still than they are then checked with
        table = self._table(self._bounds + TOLERANCE)
        once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(len(system.sets))])[None])
        found = solve(
            np.concatenate([np.zeros(count), -np.ones(len(system.sets))]),
            A_ub=sp.vstack([sp.hstack([-table.T, peopled.T]), once]),
            b_ub=np.append(np.zeros(system.cells * system.classes), 1.0),
        )
        if found is None:
            return None
        weights, empty = _without_rounding(found.x[:count]), _without_rounding(found.x[count:])
        left = self._table(self._bounds).T @ weights - peopled.T @ empty
        if not empty.any() or left.min() < 0:
            return None
        return system.named(self._rows[weights > 0])

    def _table(self, bounds: Floats) -> Any:
        return sp.csr_array(self._counted - sp.diags_array(bounds) @ self._over)


def _numbers(system: LimitSystem, rows: NDArray[Any]) -> int:
    """Return how many entries limits of one denominator have, written out in numbers of rows."""
    read = [system.terms.denominator[part[0]] for part in term_rows(system.rates[rows])]
    return sum(len(system.members[subset]) for subset in read) * system.classes


def _without_rounding(weights: Floats) -> Floats:
    return np.where(weights > _SMALL, weights, 0.0)
