"""Constraints that no classifier can meet, whatever the rows; found before any row is read.

*One constraint.* `smallest_values` bounds each left-hand side from below: every rate lies in [0, 1], and rates over
the rows of one denominator are shares of one whole, smallest with all rows in the cheapest cell and class.

*Several constraints.* `contradiction` rejects a set of constraints only with a proof that holds for **every** number
of rows per cell, since these are private. A proof is the solution y >= 0 of a linear programme, which is then
checked by plain arithmetic, so that nothing depends on the tolerance of a solver. Its support names the constraints.

by subset
    The predictions in a subset are shares of one whole. The constraints, added with weights y, require less
    than the smallest value of the same sum over each subset: ``rate(0) <= .2`` with ``rate(1) <= .2``.
by counts
    A constraint on rates of one denominator is linear in the counts h[q, k] of rows of cell q predicted k. The
    constraints, added with weights y, have no solution h >= 0 in which every subset has a row:
    ``rate(1, F) <= .2``, ``rate(1, M) <= .2``, ``rate(1) >= .5``. Ranges of rates that follow by the first kind
    of proof enter as further constraints.

A set that is not rejected may still be infeasible: for the actual cell sizes, for the features at hand, or by a proof
that needs both kinds at once. Left out are constraints that mix denominators with a predicted class among them
(differences of precisions), and sets that exceed `MOST_ENTRIES` or, for the second kind, `_MOST_COUNTS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from ratewise.constraints.domain import list_values
from ratewise.constraints.partition import Terms, of_class
from ratewise.exceptions import InvalidInput

if TYPE_CHECKING:
    from ratewise.constraints.compiled import CompiledConstraints

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ENTRIES = 50_000  # coefficients and cells of a set of constraints that is searched for contradictions
_MOST_COSTS = 5_000_000  # entries of `smallest_values`, beyond which each rate is only known to be in [0, 1]
_MOST_RATES = 250  # whose ranges enter the second kind of proof
_MOST_CONSTANTS = 20  # constant predictions that are tried first
_MOST_COUNTS = 200_000  # entries of constraints in counts, beyond which the second kind of proof is not tried
_TOLERANCE = 1e-7  # by which bounds are relaxed, in units of a constraint's largest coefficient
_SMALL = 1e-9  # weights below it are rounding errors
_ONE_CELL = np.zeros(1, dtype=np.int64)


def smallest_values(compiled: CompiledConstraints, sign: float = 1.0) -> Floats:
    """Return a lower bound on `sign` times every value, whatever the predictions and whatever the rows."""
    rows, terms, sets = compiled.coefficients, compiled.terms, compiled.index_sets
    cells, classes, data = compiled.n_cells, compiled.n_classes, sign * rows.data
    total = np.zeros(len(compiled))
    owner = np.repeat(np.arange(len(compiled)), np.diff(rows.indptr))
    above, below = terms.numerator[rows.indices], terms.denominator[rows.indices]
    # shares of the rows of one denominator, together: one whole per (constraint, denominator)
    _, whole = np.unique(owner * np.int64(len(sets) + 1) + below, return_inverse=True)
    ratio = terms.ratio[rows.indices]
    mixed = (np.bincount(whole, (above != below) & ~ratio) > 0)[whole]
    alone = ratio.copy()
    if sum(sets[s].size(cells) for s in above[mixed & ~ratio].tolist()) > _MOST_COSTS:
        alone |= mixed
    np.add.at(total, owner[alone], np.minimum(data[alone], 0.0))
    kept = np.flatnonzero(~alone)
    if not len(kept):
        return total
    wholes, first, whole = np.unique(whole[kept], return_index=True, return_inverse=True)
    # where all terms are about all rows of the whole, one cell stands for all of them
    listed = [sets[above[i]].members(cells) if mixed[i] else _ONE_CELL for i in kept]
    widths = [sets[below[i]].size(cells) if mixed[i] else 1 for i in kept[first]]
    sizes = [len(part) for part in listed]
    columns = np.concatenate(listed) * classes + np.repeat(terms.klass[rows.indices[kept]], sizes)
    entries = np.repeat(data[kept], sizes), (np.repeat(whole, sizes), columns)
    cost = sp.coo_array(entries, shape=(len(wholes), cells * classes)).tocsr()
    filled = np.diff(cost.indptr)
    smallest = np.where(filled < np.array(widths) * classes, 0.0, np.inf)
    np.minimum.at(smallest, np.repeat(np.arange(len(wholes)), filled), cost.data)
    np.add.at(total, owner[kept[first]], smallest)
    return total


def refuse_contradictions(compiled: CompiledConstraints) -> None:
    """Raise `InvalidInput` if constraints provably contradict each other; the message names them."""
    found = contradiction(compiled)
    if found:
        named = list_values([compiled.names[j] for j in found], most=6)
        raise InvalidInput(
            f"these constraints contradict each other: {named}. No classifier can meet them together, whatever "
            "the data; relax or drop one of them"
        )


def contradiction(compiled: CompiledConstraints) -> tuple[int, ...]:
    """Return the positions of constraints that contradict each other, empty if no proof is found.

    >>> from ratewise.constraints.compiled import compile_constraints
    >>> from ratewise.constraints.domain import Domain
    >>> from ratewise.constraints.rates import rate
    >>> declared = [rate(0) <= 0.3, rate(1) <= 0.3, rate(0) >= 0.1, rate(2) <= 0.3]
    >>> contradiction(compile_constraints(declared, Domain(classes=(0, 1, 2)), to_hold=False))
    (0, 1, 3)
    """
    if len(compiled) < 2 or _met_by_constants(compiled):
        return ()
    system = _system(compiled)
    if system is None or _feasible_for_equal_cells(system):
        return ()
    by_subset = _BySubset(system)
    proofs = (
        by_subset.proof,
        lambda: _proof_by_counts(system),
        lambda: _proof_by_counts(_with_ranges(system, by_subset)),
    )
    found = next((named for named in (proof() for proof in proofs) if named is not None), _ONE_CELL[:0])
    return tuple(found.tolist())


def _met_by_constants(compiled: CompiledConstraints) -> bool:
    """Return whether equal or constant predictions meet all constraints."""
    classes = compiled.n_classes
    leverage = abs(compiled.coefficients) @ np.ones(len(compiled.terms))
    slack = compiled.bounds + _TOLERANCE * np.minimum(leverage, 1.0)
    tried = [np.full(classes, 1.0 / classes), *np.eye(min(classes, _MOST_CONSTANTS), classes)]
    tables = (np.tile(shares, (compiled.n_cells, 1)) for shares in tried)
    return any(np.all(compiled.values(table, floor=_SMALL) <= slack) for table in tables)


@dataclass(frozen=True, eq=False)
class _System:
    """Constraints ``rates @ v <= bounds`` on terms v, with largest coefficient 1 and relaxed bounds.

    `sources` are the declared constraints that each row follows from, and `members` is the zero-one matrix of
    subsets by cells.
    """

    rates: Any
    bounds: Floats
    sources: list[Ints]
    terms: Terms
    classes: int
    members: Any

    @cached_property
    def first(self) -> Ints:
        """The first term of each constraint."""
        found: Ints = self.rates.indices[self.rates.indptr[:-1]]
        return found

    @cached_property
    def of_ratio(self) -> NDArray[np.bool_]:
        """Which constraints read a rate among predicted rows."""
        return np.logical_or.reduceat(self.terms.ratio[self.rates.indices], self.rates.indptr[:-1])

    @cached_property
    def of_one_denominator(self) -> NDArray[np.bool_]:
        """Which constraints read rates of one denominator only."""
        terms = self.terms
        key = terms.denominator * (self.classes + 1) + np.where(terms.ratio, terms.klass + 1, 0)
        read, starts = key[self.rates.indices], self.rates.indptr[:-1]
        return np.asarray(np.minimum.reduceat(read, starts) == np.maximum.reduceat(read, starts))

    def counted(self, subsets: Ints, classes: Ints) -> Any:
        """Return zero-one rows over the Q * K counts h[q, k], each of a subset and a class."""
        return of_class(self.members[subsets], classes, self.classes)

    def rows(self, subsets: Ints) -> Any:
        """Return zero-one rows over the Q * K counts h[q, k], each of a subset and all classes."""
        return sp.csr_array(sp.kron(self.members[subsets], np.ones((1, self.classes))))

    def named(self, rows: NDArray[Any]) -> Ints:
        """Return the declared constraints that some rows follow from."""
        return np.unique(np.concatenate([_ONE_CELL[:0], *(self.sources[row] for row in rows.tolist())]))


def _system(compiled: CompiledConstraints) -> _System | None:
    """Return the constraints that proofs can use; None if they are too few or too many."""
    table, terms, cells = sp.csr_array(compiled.coefficients), compiled.terms, compiled.n_cells
    sizes = np.array([subset.size(cells) for subset in compiled.index_sets])
    if not len(terms):
        return None
    if table.nnz + int(sizes[terms.numerator].sum() + sizes[terms.denominator].sum()) > MOST_ENTRIES:
        return None
    listed = np.concatenate([subset.members(cells) for subset in compiled.index_sets])
    ends = np.append(0, np.cumsum(sizes))
    members = sp.csr_array((np.ones(len(listed)), listed, ends), shape=(len(sizes), cells))
    scale = abs(table).max(axis=1).toarray().ravel()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        bounds = compiled.bounds / scale
    filled = np.flatnonzero(np.isfinite(bounds) & (np.diff(table.indptr) > 0))
    whole = _System(table[filled], bounds, [], terms, compiled.n_classes, members)
    # rates over rows only, or over the same predicted rows only
    usable = filled[~whole.of_ratio | whole.of_one_denominator]
    if len(usable) < 2:
        return None
    rates = sp.csr_array(sp.diags_array(1.0 / scale[usable]) @ table[usable])
    sources = [np.array([j]) for j in usable]
    return replace(whole, rates=rates, bounds=bounds[usable] + _TOLERANCE, sources=sources)


def _feasible_for_equal_cells(system: _System) -> bool:
    """Return whether predictions exist that meet all constraints if all cells have equally many rows."""
    terms, ratio, cells = system.terms, system.terms.ratio, system.members.shape[1]
    sizes = np.diff(system.members.indptr)[terms.denominator]
    scale = np.where(ratio, 1.0, 1.0 / np.maximum(sizes, _SMALL))
    share = sp.diags_array(scale) @ system.counted(terms.numerator, terms.klass)
    over = system.counted(terms.denominator[system.first], terms.klass[system.first])
    moved = sp.diags_array(np.where(system.of_ratio, system.bounds, 0.0)) @ over
    found = _solve(
        np.zeros(share.shape[1]),
        A_ub=system.rates @ share - moved,
        b_ub=np.where(system.of_ratio, 0.0, system.bounds),
        A_eq=sp.kron(sp.eye_array(cells), np.ones((1, system.classes))),
        b_eq=np.ones(cells),
    )
    return found is not None


class _BySubset:
    """Each denominator by itself: its terms are the coordinates of a point of a polytope.

    The corners, one per kind of row and class, put all rows of the subset into one cell and class. Relations
    between subsets are left out, so every conclusion is valid for all sizes.
    """

    def __init__(self, system: _System) -> None:
        self._system = system
        self._rows = np.flatnonzero(~system.of_ratio)
        self._bounds = system.bounds[self._rows]
        rates = system.rates[self._rows]
        self._corners, owner = _corners(system, np.unique(rates.indices))
        self._wholes = int(owner.max()) + 1 if len(owner) else 0
        places = np.arange(len(owner))
        self._inside = sp.csr_array((np.ones(len(owner)), (owner, places)), shape=(self._wholes, len(owner)))
        self._owner = owner
        self._at_corners = sp.csr_array(self._corners @ rates.T)

    def proof(self) -> Ints | None:
        """Return constraints whose weighted sum is below its smallest value over the subsets."""
        count, wholes = len(self._rows), self._wholes
        if not count:
            return None
        once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(wholes)])[None])
        found = _solve(
            np.concatenate([self._bounds, -np.ones(wholes)]),
            A_ub=sp.vstack([sp.hstack([-self._at_corners, self._inside.T]), once]),
            b_ub=np.append(np.zeros(len(self._owner)), 1.0),
            bounds=np.array([(0.0, np.inf)] * count + [(-np.inf, np.inf)] * wholes),
        )
        if found is None:
            return None
        weights = _without_rounding(found.x[:count])
        if self._bounds @ weights - self._least(self._at_corners @ weights) >= 0:
            return None
        return self._system.named(self._rows[weights > 0])

    def highest(self, term: int, sign: float) -> tuple[float, Ints]:
        """Return an upper bound on ``sign * v[term]``, and the declared constraints that it follows from."""
        target = sign * self._corners[:, [term]].toarray().ravel()
        limits = {"A_ub": self._at_corners.T, "b_ub": self._bounds}
        found = _solve(-target, **limits, A_eq=self._inside, b_eq=np.ones(self._wholes))
        if found is None:
            return np.inf, np.empty(0, dtype=np.int64)
        weights = _without_rounding(-found.ineqlin.marginals)
        bound = self._bounds @ weights - self._least(self._at_corners @ weights - target)
        return float(bound), self._system.named(self._rows[weights > 0])

    def _least(self, cost: Floats) -> float:
        least = np.full(self._wholes, np.inf)
        np.minimum.at(least, self._owner, cost)
        return float(least.sum())


def _corners(system: _System, read: NDArray[Any]) -> tuple[Any, Ints]:
    """Return the values of all terms at the corners, and the denominator that each corner is of."""
    terms, columns, owner, members = system.terms, [], [], system.members
    for whole, subset in enumerate(np.unique(terms.denominator[read]).tolist()):
        here = read[terms.denominator[read] == subset]
        # which of the numerators count a row, for each kind of row of the subset, which may have no cell
        inside = members[[subset]].indices
        counts = members[terms.numerator[here]][:, inside].toarray().T > 0
        kinds, klass = np.unique(counts, axis=0), terms.klass[here]
        kinds = kinds if len(kinds) else np.ones((1, len(here)), dtype=bool)
        found = [here[kind & (klass == k)] for kind in kinds for k in np.unique(klass)]
        found += [here[:0]] * (len(np.unique(klass)) < system.classes)
        columns += found
        owner += [whole] * len(found)
    ends, places = np.cumsum([0, *map(len, columns)]), np.concatenate([_ONE_CELL[:0], *columns])
    values = sp.csr_array((np.ones(len(places)), places, ends), shape=(len(columns), len(terms)))
    return values, np.array(owner, dtype=np.int64)


def _with_ranges(system: _System, by_subset: _BySubset) -> _System:
    """Return the same constraints, and as further ones the ranges of rates that follow from several of them."""
    lone, klass = system.of_one_denominator, system.terms.klass
    read = np.unique(system.rates[np.flatnonzero(~lone)].indices)
    if len(read) > _MOST_RATES:  # only of classes that are also bounded alone
        read = read[np.isin(klass[read], klass[system.rates[np.flatnonzero(lone)].indices])]
    if not 0 < len(read) <= _MOST_RATES:
        return system
    found = [(term, sign, *by_subset.highest(term, sign)) for term in read.tolist() for sign in (1.0, -1.0)]
    useful = [one for one in found if one[2] < max(one[1], 0.0) - _TOLERANCE]
    if not useful:
        return system
    numbers, signs, bounds, sources = zip(*useful, strict=True)
    more = sp.csr_array((signs, (range(len(useful)), numbers)), shape=(len(useful), len(system.terms)))
    return replace(
        system,
        rates=sp.csr_array(sp.vstack([system.rates, more])),
        bounds=np.concatenate([system.bounds, bounds]),
        sources=[*system.sources, *sources],
    )


def _proof_by_counts(system: _System) -> Ints | None:
    """Return constraints of one denominator each, ``table @ h <= 0``, that leave some subset without a row."""
    rows, terms = np.flatnonzero(system.of_one_denominator), system.terms
    first, count = system.first[rows], len(rows)
    below = terms.denominator[first]
    entries = int(np.diff(system.members.indptr)[below].sum()) * system.classes
    if not count or entries > _MOST_COUNTS:
        return None
    predicted = sp.diags_array(1.0 * terms.ratio[first]) @ system.counted(below, terms.klass[first])
    over = sp.diags_array(1.0 - terms.ratio[first]) @ system.rows(below) + predicted
    above = system.rates[rows] @ system.counted(terms.numerator, terms.klass)
    members = system.rows(np.arange(system.members.shape[0]))
    # solved with bounds a little looser still than they are then checked with
    loose, table = (above - sp.diags_array(system.bounds[rows] + more) @ over for more in (_TOLERANCE, 0.0))
    once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(members.shape[0])])[None])
    found = _solve(
        np.concatenate([np.zeros(count), -np.ones(members.shape[0])]),
        A_ub=sp.vstack([sp.hstack([-loose.T, members.T]), once]),
        b_ub=np.append(np.zeros(members.shape[1]), 1.0),
    )
    if found is None:
        return None
    weights, empty = _without_rounding(found.x[:count]), _without_rounding(found.x[count:])
    if not empty.any() or (table.T @ weights - members.T @ empty).min() < 0:
        return None
    return system.named(rows[weights > 0])


def _without_rounding(weights: Floats) -> Floats:
    return np.where(weights > _SMALL, weights, 0.0)


def _solve(cost: Floats, **conditions: Any) -> Any:
    """Return the solution of a linear programme at a vertex; None if the solver finds none."""
    found = linprog(cost, method="highs-ds", **conditions)
    return found if found.status == 0 else None
