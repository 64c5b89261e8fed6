"""From declarations and a public domain to `CompiledConstraints`; never looks at rows.

>>> from ratewise.families import demographic_parity
>>> domain = Domain(classes=(0, 1), columns={"race": ("A", "B", "C")})
>>> compiled = compile_constraints(demographic_parity("race", max_gap=0.05), domain)
>>> len(compiled), compiled.n_cells, compiled.cell_names
(6, 3, ('race=A', 'race=B', 'race=C'))
>>> compiled.values([[8, 2], [5, 5], [5, 5]]).round(3)
array([-0.3 ,  0.3 ,  0.15, -0.15,  0.15, -0.15])

Impossible demands end here, before any row is read: unknown columns, values or classes, subsets that no row
can be in, bounds that no classifier can meet, alone or together (`ratewise.contradictions`). Bounds that
always hold are allowed. Stated limits: 1,000,000 constraints, 100,000 cells, 2,000,000 combinations of
values, 20,000,000 non-zeros; past them there is an error, not a swamped machine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.cells import MAX_NONZEROS, Subset, build_cells, too_dense
from ratewise.compiled import CompiledConstraints
from ratewise.contradictions import refuse_contradictions
from ratewise.domain import Domain, Numeric
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.families import MAX_CONSTRAINTS, flatten
from ratewise.feasibility import smallest_values
from ratewise.kernels import Terms
from ratewise.predicates import Predicate
from ratewise.rates import Constraint
from ratewise.terms import Term

__all__ = ["CompiledConstraints", "Domain", "Numeric", "compile_constraints"]

_ROUNDING = 1e-9


def compile_constraints(constraints: Any, domain: Domain, *, to_hold: bool = True) -> CompiledConstraints:
    """Return the constraints on the smallest partition of the domain that they need.

    Parameters
    ----------
    constraints : constraint, family, or any nesting of lists of them
        None or an empty list: no constraint, one cell.
    domain : Domain
        The public classes and column values.
    to_hold : bool
        False: the constraints are only to be measured, so that some may contradict others.

    Notes
    -----
    Constraints with the same coefficients are kept once, with the tightest bound. Time and memory grow with
    the number of non-zeros: coefficients, and cells listed per subset and class.
    """
    if not isinstance(domain, Domain):
        raise InvalidType(f"domain must be a Domain(classes, columns), got {type(domain).__name__}")
    book = _Book(domain)
    for constraint in flatten(constraints, domain):
        book.add(constraint)
    cell_map, sets = build_cells(book.predicates(), domain)
    book.refuse_empty(sets, cell_map.n_cells)
    subsets, index_sets, subset_of = _distinct_subsets(list(book.subsets), sets)
    terms, term_of = book.distinct_terms(subset_of)
    _refuse_dense(index_sets, terms)
    rows = book.matrix(term_of, len(terms))
    limits = np.array(book.limits, dtype=np.float64)
    _refuse_impossible(rows, limits, terms, index_sets, cell_map.n_cells, domain, book.declared)
    keep = _tightest(rows, limits, book.declared, may_cross=not to_hold)
    compiled = CompiledConstraints(
        domain=domain,
        declared=tuple(book.declared[j] for j in keep),
        bounds=limits[keep],
        coefficients=rows[keep],
        terms=terms,
        subsets=tuple(subsets),
        index_sets=tuple(index_sets),
        cell_map=cell_map,
    )
    if to_hold:
        refuse_contradictions(compiled)
    return compiled


class _Book:
    """Collects constraints, giving each distinct term and subset a number."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.declared: list[Constraint] = []
        self.limits = array("d")
        self.terms: dict[Term, int] = {}
        self.subsets: dict[Predicate, int] = {}
        self._columns, self._data, self._ends = array("q"), array("d"), array("q", [0])
        self._keys = [array("q") for _ in range(4)]  # numerator, class, denominator, ratio
        self._first_use = array("q")  # the constraint that first reads each subset

    def add(self, constraint: Constraint) -> None:
        if len(self.declared) >= MAX_CONSTRAINTS:
            raise InvalidInput(
                f"there are more than {MAX_CONSTRAINTS:,} constraints; use fewer groups or columns"
            )
        self.declared.append(constraint)
        self.limits.append(constraint.limit)
        sign = constraint.sign
        for term, coefficient in constraint.expression.terms:
            number = self.terms.get(term)
            self._columns.append(self._new_term(term) if number is None else number)
            self._data.append(sign * coefficient)
        self._ends.append(len(self._columns))

    def _new_term(self, term: Term) -> int:
        try:
            klass = self.domain.code(None, term.prediction)
        except InvalidInput as error:
            raise InvalidInput(f"constraint {self.declared[-1].name!r}: {error}") from None
        key = (self._subset(term.where), klass, self._subset(term.of), int(term.predicted))
        for column, value in zip(self._keys, key, strict=True):
            column.append(value)
        return self.terms.setdefault(term, len(self.terms))

    def _subset(self, predicate: Predicate) -> int:
        number = self.subsets.get(predicate)
        if number is None:
            number = self.subsets[predicate] = len(self.subsets)
            self._first_use.append(len(self.declared) - 1)
        return number

    def predicates(self) -> list[Predicate]:
        """Return the subsets, checking that the domain knows every column and value they name."""
        known: set[Predicate] = set()
        for number, predicate in enumerate(self.subsets):
            for leaf in predicate.leaves():
                if leaf not in known:
                    self._check_leaf(leaf, number)
                    known.add(leaf)
        return list(self.subsets)

    def _check_leaf(self, leaf: Any, number: int) -> None:
        try:
            for value in getattr(leaf, "values", ()):
                self.domain.code(leaf.column, value)
            self.domain.values(leaf.column)
        except InvalidInput as error:
            raise InvalidInput(f"constraint {self._reader(number)!r}: {error}") from None

    def _reader(self, subset: int) -> str:
        return self.declared[self._first_use[subset]].name

    def refuse_empty(self, sets: list[Subset], cells: int) -> None:
        """Raise if no row of the domain can lie in some subset."""
        for number, (predicate, subset) in enumerate(zip(self.subsets, sets, strict=True)):
            if subset.size(cells) == 0:
                raise InvalidInput(
                    f"constraint {self._reader(number)!r} is about rows with {predicate.name}, but no row of "
                    "the declared domain can be such; check the condition or the declared values"
                )

    def distinct_terms(self, subset_of: NDArray[np.int64]) -> tuple[Terms, NDArray[np.int64]]:
        """Return the terms that differ on this domain, and the number of each declared term among them."""
        numerator, klass, denominator, ratio = (np.frombuffer(key, dtype=np.int64) for key in self._keys)
        if not len(klass):
            empty = np.empty(0, dtype=np.int64)
            return Terms(empty, empty, empty, empty.astype(bool)), empty
        keys = np.stack([ratio, subset_of[denominator], klass, subset_of[numerator]], axis=1)
        distinct, place = np.unique(keys, axis=0, return_inverse=True)
        terms = Terms(distinct[:, 3], distinct[:, 2], distinct[:, 1], distinct[:, 0].astype(bool))
        return terms, place.reshape(-1)

    def matrix(self, term_of: NDArray[np.int64], terms: int) -> Any:
        """Return the sparse J x R coefficients of the normal form."""
        columns = term_of[np.frombuffer(self._columns, dtype=np.int64)] if len(self._columns) else term_of
        data, ends = np.array(self._data, dtype=np.float64), np.array(self._ends, dtype=np.int64)
        shape = (len(self.declared), terms)
        rows = sp.csr_array((data, columns.astype(np.int32), ends.astype(np.int32)), shape=shape)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows


def _distinct_subsets(
    predicates: list[Predicate], sets: list[Subset]
) -> tuple[list[Predicate], list[Subset], NDArray[np.int64]]:
    """Merge predicates that name the same cells, whatever their wording."""
    seen: dict[tuple[bool, bytes], int] = {}
    kept: list[int] = []
    place = np.empty(len(sets), dtype=np.int64)
    for number, subset in enumerate(sets):
        key = (subset.others, subset.listed.tobytes())
        if key not in seen:
            seen[key] = len(kept)
            kept.append(number)
        place[number] = seen[key]
    return [predicates[i] for i in kept], [sets[i] for i in kept], place


def _refuse_dense(sets: list[Subset], terms: Terms) -> None:
    sizes = np.array([len(subset.listed) for subset in sets], dtype=np.int64)
    nonzeros = int(sizes[terms.numerator].sum()) if len(terms) else 0
    if nonzeros > MAX_NONZEROS:
        raise InvalidInput(too_dense(nonzeros))


def _refuse_impossible(
    rows: Any,
    limits: Any,
    terms: Terms,
    sets: list[Subset],
    cells: int,
    domain: Domain,
    declared: list[Constraint],
) -> None:
    smallest = smallest_values(rows, terms, sets, cells, len(domain.classes))
    beyond = np.flatnonzero(smallest > limits + _ROUNDING)
    if len(beyond):
        constraint = declared[beyond[0]]
        best = constraint.sign * float(smallest[beyond[0]]) + constraint.expression.constant
        side = "fall below" if constraint.sense == "<=" else "exceed"
        raise InvalidInput(
            f"no classifier can meet {constraint.name!r}: its left-hand side can never {side} {best:.6g}; "
            "relax the bound"
        )


def _tightest(
    rows: Any, limits: NDArray[np.float64], declared: list[Constraint], *, may_cross: bool
) -> list[int]:
    """Return the rows to keep, one per direction, and refuse a pair of bounds that cross."""
    kept: dict[bytes, int] = {}
    tight: dict[bytes, float] = {}
    for row, (key, mirror, scale) in enumerate(_directions(rows)):
        limit = float(limits[row]) / scale
        if key not in kept or limit < tight[key]:
            kept[key], tight[key] = row, limit
        if not may_cross and mirror in kept and tight[key] + tight[mirror] < -_ROUNDING:
            first, second = declared[kept[mirror]].name, declared[kept[key]].name
            raise InvalidInput(
                f"{first!r} and {second!r} contradict each other: the lower bound is above the upper"
            )
    return sorted(kept.values())


def _directions(rows: Any) -> Iterable[tuple[bytes, bytes, float]]:
    """Yield for each row a key of its direction, the key of the opposite direction, and its scale."""
    ends, columns = rows.indptr.tolist(), rows.indices
    lead = np.ones(rows.shape[0])
    filled = np.flatnonzero(np.diff(rows.indptr))
    if filled.size:  # the largest entry: by any other, a quotient could overflow
        lead[filled] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[filled])
    unit = rows.data / np.repeat(lead, np.diff(rows.indptr))
    mirrored = -unit
    for row, scale in enumerate(lead.tolist()):
        part = slice(ends[row], ends[row + 1])
        where = columns[part].tobytes()
        if not where:  # reads nothing after merging: each such row stands for itself
            where = b"row" + row.to_bytes(8, "little")
        yield where + unit[part].tobytes(), where + mirrored[part].tobytes(), scale
