"""Constraints that no classifier can meet, whatever the rows; found before any row is read.

*One constraint.* `smallest_values` bounds each left-hand side from below: every rate lies in [0, 1]; rates of
different classes over the same rows are shares of one whole; so are counts over one denominator, where the
smallest value puts all rows into the cheapest cell and class.

*Several constraints.* `contradiction` rejects a set of constraints only with a proof, and the proof holds for
**every** number of rows per cell, since these are private. Two kinds of proof are searched for, each the
solution y >= 0 of a small linear programme, which is then checked by plain arithmetic, so that nothing depends
on the tolerance of a solver:

by subset
    The predictions in a subset are shares of one whole. The constraints, added with weights y, require less
    than the smallest value of the same sum over each subset: ``rate(0) <= .2`` with ``rate(1) <= .2``.
by counts
    A constraint on rates of one denominator is linear in the counts h[q, k] of rows of cell q predicted k:
    ``rate(1, F) <= .2`` is h[F, 1] <= .2 (h[F, 0] + h[F, 1]). The constraints, added with weights y, have no
    solution h >= 0 in which every subset has a row: ``rate(1, F) <= .2``, ``rate(1, M) <= .2``,
    ``rate(1) >= .5``. Ranges of rates that follow by the first kind of proof enter as further constraints.

The support of y names the constraints; at a vertex of the programme it is a smallest such set.

A set that is not rejected may still be infeasible: for the actual cell sizes, for the features at hand, or by
a proof that needs both kinds at once. Constraints that mix denominators with a predicted class among them
(differences of precisions) are left out. So are sets of more than 50,000 entries (coefficients, cells of
numerators and denominators) that neither equal nor constant predictions satisfy, and the second kind of proof
where constraints have more than 200,000 entries in h.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from ratewise.constraints.compiled import CompiledConstraints, Terms, rows_of
from ratewise.constraints.domain import list_values
from ratewise.constraints.partition import Subset
from ratewise.exceptions import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ENTRIES = 50_000  # of a set of constraints that is searched for contradictions
_MOST_COSTS = 5_000_000  # entries of `smallest_values`, beyond which each rate is only known to be in [0, 1]
_MOST_RATES = 250  # whose ranges enter the second kind of proof
_MOST_CONSTANTS = 20  # constant predictions that are tried first
_MOST_COUNTS = 200_000  # entries of constraints in counts, beyond which the second kind of proof is not tried
_TOLERANCE = 1e-7  # by which bounds are relaxed, in units of a constraint's largest coefficient
_SMALL = 1e-9  # weights below it are rounding errors


# ----------------------------------------------------------------------------------- one constraint


def largest_values(compiled: CompiledConstraints) -> Floats:
    """Return an upper bound on each value, whatever the predictions and whatever the rows."""
    table = sp.csr_array(compiled.coefficients)
    sets = list(compiled.index_sets)
    return -smallest_values(-table, compiled.terms, sets, compiled.n_cells, compiled.n_classes)


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
    np.add.at(total, place, amount)


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
    if sum(sets[s].size(cells) for s in terms.numerator[term].tolist()) > _MOST_COSTS:
        total = np.zeros(wholes)
        _add(total, whole, np.minimum(amount, 0.0))
        return total
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


# ------------------------------------------------------------------------------ several constraints


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

    >>> from ratewise.constraints.compiler import compile_constraints
    >>> from ratewise.constraints.domain import Domain
    >>> from ratewise.constraints.rates import rate
    >>> domain = Domain(classes=(0, 1, 2))
    >>> declared = [rate(0) <= 0.3, rate(1) <= 0.3, rate(0) >= 0.1, rate(2) <= 0.3]
    >>> contradiction(compile_constraints(declared, domain, to_hold=False))
    (0, 1, 3)
    >>> contradiction(compile_constraints(declared[:3], domain))
    ()
    """
    if len(compiled) < 2 or _met_by_constants(compiled):
        return ()
    system = _System.of(compiled)
    if system is None or _feasible_for_equal_cells(system):
        return ()
    by_subset = _BySubset(system)
    found = by_subset.proof()
    if found is None:
        found = _ByCounts(system).proof()
    if found is None:
        found = _ByCounts(_with_ranges(system, by_subset)).proof()
    return () if found is None else tuple(found.tolist())


def _met_by_constants(compiled: CompiledConstraints) -> bool:
    """Return whether equal or constant predictions meet all constraints."""
    shape = compiled.n_cells, compiled.n_classes
    slack = compiled.bounds + _TOLERANCE * np.minimum(compiled.leverage, 1.0)
    tried = np.full(shape, 1.0 / shape[1])
    for k in range(-1, min(shape[1], _MOST_CONSTANTS)):
        if k >= 0:
            tried[:] = 0.0
            tried[:, k] = 1.0
        if np.all(compiled.values(tried, floor=_SMALL) <= slack):
            return True
    return False


def _feasible_for_equal_cells(system: _System) -> bool:
    """Return whether predictions exist that meet all constraints if all cells have equally many rows."""
    terms, ratio = system.terms, system.terms.ratio
    sizes = np.array([len(system.members[s]) for s in terms.denominator.tolist()], dtype=np.float64)
    share = sp.diags_array(np.where(ratio, 1.0, 1.0 / sizes)) @ system.counted(terms.numerator, terms.klass)
    over = system.counted(terms.denominator, terms.klass)
    # the value of each term is a variable of its own, which keeps the system sparse
    count, width = len(terms), system.cells * system.classes
    wholes = sp.kron(sp.eye_array(system.cells), np.ones((1, system.classes)))
    equal = sp.block_array([[share, -sp.eye_array(count)], [wholes, None]])
    of_ratio = np.array([bool(ratio[part].any()) for part in _term_rows(system.rates)])
    first = np.array([part[0] for part in _term_rows(system.rates)], dtype=np.int64)
    moved = sp.diags_array(np.where(of_ratio, system.bounds, 0.0)) @ over[first]
    found = _solve(
        np.zeros(width + count),
        A_ub=sp.block_array([[-moved, system.rates]]),
        b_ub=np.where(of_ratio, 0.0, system.bounds),
        A_eq=equal,
        b_eq=np.concatenate([np.zeros(count), np.ones(system.cells)]),
        bounds=np.array([(0.0, np.inf)] * width + [(-np.inf, np.inf)] * count),
    )
    return found is not None


class _BySubset:
    """Each denominator by itself: its terms are the coordinates of a point of a polytope.

    The corners, one per kind of row and class, put all rows of the subset into one cell and class. Relations
    between subsets are left out, so every conclusion is valid for all sizes.
    """

    def __init__(self, system: _System) -> None:
        self._system = system
        self._rows = np.array(
            [j for j, part in enumerate(_term_rows(system.rates)) if not system.terms.ratio[part].any()],
            dtype=np.int64,
        )
        self._bounds = system.bounds[self._rows]
        rates = system.rates[self._rows]
        read = np.unique(rates.indices)
        self._corners, self._owner = _corners(system, read)
        self._wholes = int(self._owner.max()) + 1 if len(self._owner) else 0
        self._at_corners = sp.csr_array(self._corners @ rates.T)

    def proof(self) -> Ints | None:
        """Return constraints whose weighted sum is below its smallest value over the subsets."""
        count = len(self._rows)
        if not count:
            return None
        inside = sp.csr_array(
            (np.ones(len(self._owner)), (np.arange(len(self._owner)), self._owner)),
            shape=(len(self._owner), self._wholes),
        )
        once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(self._wholes)])[None])
        found = _solve(
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
        """Return an upper bound on ``sign * v[term]``, and the declared constraints that it follows from."""
        target = sign * self._corners[:, [term]].toarray().ravel()
        inside = sp.csr_array(
            (np.ones(len(self._owner)), (self._owner, np.arange(len(self._owner)))),
            shape=(self._wholes, len(self._owner)),
        )
        found = _solve(
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


def _corners(system: _System, read: NDArray[Any]) -> tuple[Any, Ints]:
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


def _kinds(system: _System, subset: int, numerators: Ints) -> NDArray[np.bool_]:
    """Return, for each kind of row of a subset, which of the numerators count it."""
    if np.all(numerators == subset):
        return np.ones((1, len(numerators)), dtype=bool)
    inside = system.members[subset]
    return np.unique(
        np.stack([np.isin(inside, system.members[s]) for s in numerators.tolist()], axis=1), axis=0
    )


def _with_ranges(system: _System, by_subset: _BySubset) -> _System:
    """Return the same constraints, and as further ones the ranges of rates that follow from several of them."""
    read = _compared(system)
    if not 0 < len(read) <= _MOST_RATES:
        return system
    found = [(term, sign, *by_subset.highest(term, sign)) for term in read.tolist() for sign in (1.0, -1.0)]
    useful = [one for one in found if one[2] < max(one[1], 0.0) - _TOLERANCE]
    if not useful:
        return system
    terms, signs, bounds, sources = zip(*useful, strict=True)
    return system.extended(np.array(terms), np.array(signs), np.array(bounds), list(sources))


def _compared(system: _System) -> NDArray[Any]:
    """Return the terms of constraints on several denominators; if many, only of classes that are also bounded alone."""
    lone = system.of_one_denominator()
    read = np.unique(system.rates[np.flatnonzero(~lone)].indices)
    if len(read) <= _MOST_RATES:
        return read
    klass = system.terms.klass
    return read[np.isin(klass[read], klass[system.rates[np.flatnonzero(lone)].indices])]


class _ByCounts:
    """Constraints of one denominator, as homogeneous inequalities ``table @ h <= 0`` in the counts."""

    def __init__(self, system: _System) -> None:
        self._system = system
        self._rows = np.flatnonzero(system.of_one_denominator())
        if _count_entries(system, self._rows) > _MOST_COUNTS:
            self._rows = self._rows[:0]
        terms, rates = system.terms, system.rates[self._rows]
        first = np.array([part[0] for part in _term_rows(rates)], dtype=np.int64)
        ratio = terms.ratio[first] if len(first) else np.empty(0, dtype=bool)
        of_rows = system.counted(terms.denominator[first], None)
        of_predicted = system.counted(terms.denominator[first], terms.klass[first])
        self._over = sp.diags_array(1.0 - ratio) @ of_rows + sp.diags_array(1.0 * ratio) @ of_predicted
        self._counted = rates @ system.counted(terms.numerator, terms.klass)
        self._bounds = system.bounds[self._rows]

    def proof(self) -> Ints | None:
        """Return constraints that leave some subset without a row."""
        count = len(self._rows)
        if not count:
            return None
        system = self._system
        members = system.counted(np.arange(len(system.sets)), None)
        # solved with bounds a little looser still than they are then checked with
        table = self._table(self._bounds + _TOLERANCE)
        once = sp.csr_array(np.concatenate([np.ones(count), np.zeros(len(system.sets))])[None])
        found = _solve(
            np.concatenate([np.zeros(count), -np.ones(len(system.sets))]),
            A_ub=sp.vstack([sp.hstack([-table.T, members.T]), once]),
            b_ub=np.append(np.zeros(system.cells * system.classes), 1.0),
        )
        if found is None:
            return None
        weights, empty = _without_rounding(found.x[:count]), _without_rounding(found.x[count:])
        left = self._table(self._bounds).T @ weights - members.T @ empty
        if not empty.any() or left.min() < 0:
            return None
        return system.named(self._rows[weights > 0])

    def _table(self, bounds: Floats) -> Any:
        return sp.csr_array(self._counted - sp.diags_array(bounds) @ self._over)


def _count_entries(system: _System, rows: NDArray[Any]) -> int:
    """Return how many entries constraints of one denominator have in counts."""
    read = [system.terms.denominator[part[0]] for part in _term_rows(system.rates[rows])]
    return sum(len(system.members[subset]) for subset in read) * system.classes


def _without_rounding(weights: Floats) -> Floats:
    return np.where(weights > _SMALL, weights, 0.0)


# ------------------------------------------------------------------------- constraints as a linear system


@dataclass(frozen=True, eq=False)
class _System:
    """Constraints ``rates @ v <= bounds`` on terms v, with largest coefficient 1 and relaxed bounds.

    `sources` are the declared constraints that each row follows from.
    """

    rates: Any
    bounds: Floats
    sources: list[Ints]
    terms: Terms
    sets: tuple[Subset, ...]
    cells: int
    classes: int
    members: list[Ints] = field(repr=False)

    @classmethod
    def of(cls, compiled: CompiledConstraints) -> _System | None:
        """Return the constraints that proofs can use; None if they are too few or too many."""
        table, terms = sp.csr_array(compiled.coefficients), compiled.terms
        if not len(terms):
            return None
        sizes = np.array([subset.size(compiled.n_cells) for subset in compiled.index_sets])
        entries = table.nnz + int(sizes[terms.numerator].sum() + sizes[terms.denominator].sum())
        if entries > MOST_ENTRIES:
            return None
        scale = abs(table).max(axis=1).toarray().ravel()
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            bounds = compiled.bounds / scale
        usable = np.flatnonzero(np.isfinite(bounds) & _linear(table, terms))
        if len(usable) < 2:
            return None
        table = table[usable]
        table.data = table.data / np.repeat(scale[usable], np.diff(table.indptr))
        return cls(
            rates=table,
            bounds=bounds[usable] + _TOLERANCE,
            sources=[np.array([j]) for j in usable],
            terms=terms,
            sets=compiled.index_sets,
            cells=compiled.n_cells,
            classes=compiled.n_classes,
            members=[subset.members(compiled.n_cells) for subset in compiled.index_sets],
        )

    def counted(self, subsets: Ints, classes: Ints | None) -> Any:
        """Return zero-one rows over the Q * K counts h[q, k]: of a subset and a class, or of all classes."""
        if classes is None:
            every = np.arange(self.classes)
            columns = [(self.members[s][:, None] * self.classes + every).ravel() for s in subsets.tolist()]
        else:
            columns = [
                self.members[s] * self.classes + k
                for s, k in zip(subsets.tolist(), classes.tolist(), strict=True)
            ]
        return rows_of(columns, self.cells * self.classes)

    def of_one_denominator(self) -> NDArray[np.bool_]:
        """Return which constraints read rates of one denominator only."""
        key = _denominators(self.terms)
        return np.array([len(set(key[part].tolist())) == 1 for part in _term_rows(self.rates)], dtype=bool)

    def extended(self, terms: Ints, signs: Floats, bounds: Floats, sources: list[Ints]) -> _System:
        """Return the same constraints and further ones, ``sign * v[term] <= bound``."""
        more = sp.csr_array((signs, (np.arange(len(terms)), terms)), shape=(len(terms), len(self.terms)))
        return replace(
            self,
            rates=sp.csr_array(sp.vstack([self.rates, more])),
            bounds=np.concatenate([self.bounds, bounds]),
            sources=[*self.sources, *sources],
        )

    def named(self, rows: NDArray[Any]) -> Ints:
        """Return the declared constraints that some rows follow from."""
        return np.unique(np.concatenate([self.sources[row] for row in rows.tolist()]))


def _term_rows(table: Any) -> list[NDArray[Any]]:
    """Return the terms that each row of a CSR table reads."""
    return np.split(table.indices, table.indptr[1:-1]) if table.shape[0] else []


def _denominators(terms: Terms) -> Ints:
    """Return a number per term, equal for equal denominators."""
    span = int(terms.klass.max()) + 2
    return terms.denominator * span + np.where(terms.ratio, terms.klass + 1, 0)


def _linear(table: Any, terms: Terms) -> NDArray[np.bool_]:
    """Return which constraints have rates over rows only, or over the same predicted rows only."""
    key = _denominators(terms)
    return np.array(
        [
            len(part) > 0 and (not terms.ratio[part].any() or len(set(key[part].tolist())) == 1)
            for part in _term_rows(table)
        ],
        dtype=bool,
    )


def _solve(cost: Floats, **conditions: Any) -> Any:
    """Return the solution of a linear programme at a vertex; None if the solver finds none."""
    found = linprog(cost, method="highs-ds", **conditions)
    return found if found.status == 0 else None
