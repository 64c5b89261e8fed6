"""Declared constraints in any form, and their compilation on a public domain; no row is read.

>>> as_constraints(["fnr(sex=*) <= 0.2", [None, "rate(1) >= 0.1"]])
[false_negative_rate(0.2, by='sex'), rate(1) >= 0.1]

>>> from ratewise.constraints.families import demographic_parity
>>> domain = Domain(classes=(0, 1), columns={"race": ("A", "B", "C")})
>>> compiled = compile_constraints(demographic_parity("race", max_gap=0.05), domain)
>>> len(compiled), compiled.n_cells, compiled.cell_names
(6, 3, ('race=A', 'race=B', 'race=C'))
>>> compiled.values([[8, 2], [5, 5], [5, 5]]).round(3)
array([-0.3 ,  0.3 ,  0.15, -0.15,  0.15, -0.15])

Rejected are unknown columns, values and classes, subsets that no row can be in, and bounds that no classifier can
meet, alone or together (`ratewise.constraints.feasibility`). Bounds that always hold are allowed.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.compiled import CompiledConstraints, Terms
from ratewise.constraints.domain import Domain, in_order
from ratewise.constraints.families import MAX_CONSTRAINTS, Family, NoGroups
from ratewise.constraints.feasibility import refuse_contradictions, smallest_values
from ratewise.constraints.partition import MAX_NONZEROS, Subset, build_cells, too_dense
from ratewise.constraints.predicates import Member, Predicate
from ratewise.constraints.rates import Constraint, Constraints, Expression, Magnitude, Rows, Term
from ratewise.constraints.text import parse_constraint
from ratewise.exceptions import InvalidInput, InvalidType

Declaration = Constraint | Constraints | Family


def as_constraints(constraints: Any) -> list[Declaration]:
    """Return declarations as a flat list of constraints, pairs of constraints and families.

    `constraints` is text, a constraint, a family, None, or any nesting of lists, tuples and sets of them.
    """
    return list(_declared(constraints))


def _declared(constraints: Any) -> Iterator[Declaration]:
    if isinstance(constraints, Constraint | Constraints | Family):
        yield constraints
    elif isinstance(constraints, str):
        yield parse_constraint(constraints)
    elif isinstance(constraints, Iterator):
        raise InvalidType("constraints must be a list: an iterator can be read only once")
    elif isinstance(constraints, list | tuple | set | frozenset):
        for item in constraints:
            yield from _declared(item)
    elif constraints is not None:
        raise InvalidType(_not_a_constraint(constraints))


def expand(
    constraints: Any, domain: Domain, *, allow_empty: bool = False
) -> Iterator[tuple[Constraint, Family | None]]:
    """Yield the single constraints of declarations on a domain, each with the family that it comes from.

    With `allow_empty`, a family without groups on the domain gives no constraint instead of an error.
    """
    for item in _declared(constraints):
        if not isinstance(item, Family):
            yield from ((one, None) for one in ((item,) if isinstance(item, Constraint) else item))
            continue
        try:
            expanded = item.expand(domain)
        except NoGroups:
            if not allow_empty:
                raise
            continue
        yield from zip(expanded, itertools.repeat(item))


def _not_a_constraint(thing: Any) -> str:
    if isinstance(thing, bool):
        return (
            "constraints must be rate constraints, got a truth value: == compares declarations; "
            "for an equality write rate.between(b, b)"
        )
    if isinstance(thing, Expression | Magnitude | Rows | Predicate):
        return f"constraints must be bounds, got {thing!r}; compare a rate with a number: rate(1) <= 0.2"
    return (
        "constraints must be rate constraints, families, constraint text or lists of them, "
        f"got {type(thing).__name__}"
    )


class Named(NamedTuple):
    """The classes, columns and values that declarations name.

    `columns` holds every column that is read, with the values of it that are named; `numeric` those of which only
    intervals are named. `all_columns` says whether some family names no column and so reads all of them.
    """

    classes: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...]]
    numeric: frozenset[str]
    all_columns: bool


def named_values(constraints: Any) -> Named:
    """Return the classes, columns and values that declarations name; they count as declared."""
    found: dict[str | None, dict[Any, None]] = {None: {}}  # by column, None for the classes
    by_value: set[str | None] = set()
    all_columns = False
    for item in _declared(constraints):
        if isinstance(item, Family):
            if item.positive is not None:
                found[None][item.positive] = None
            by_value.update(item.columns)
            all_columns |= not item.columns and not item.by_keyword
            found.update((column, found.get(column, {})) for column in item.columns)
            continue
        for constraint in (item,) if isinstance(item, Constraint) else item:
            for term, _ in constraint.expression.terms:
                found[None][term.prediction] = None
                for leaf in (*term.where.leaves(), *term.of.leaves()):
                    named = leaf.values if isinstance(leaf, Member) else ()
                    found.setdefault(leaf.column, {}).update(dict.fromkeys(in_order(named)))
                    by_value.update([leaf.column] if isinstance(leaf, Member) else [])
    classes = tuple(found.pop(None))
    columns = {str(column): tuple(values) for column, values in found.items()}
    return Named(classes, columns, frozenset(() if all_columns else columns.keys() - by_value), all_columns)


_ROUNDING = 1e-9


def compile_constraints(
    constraints: Any, domain: Domain, *, to_hold: bool = True, allow_empty: bool = False
) -> CompiledConstraints:
    """Return the constraints on the smallest partition of the domain that they need.

    Constraints with the same coefficients are kept once, with the tightest bound. Time and memory grow with the
    number of non-zeros: coefficients, and cells listed per subset and class.

    Parameters
    ----------
    constraints : constraint, family, constraint text, or any nesting of lists of them
        None or an empty list: no constraint, one cell.
    domain : Domain
        The public classes and column values.
    to_hold : bool
        False: the constraints are only to be measured, so that some may contradict others.
    allow_empty : bool
        True: a family without groups gives no constraint, and a rate over a subset that no row of the domain
        can be in is 0. For domains that were found by a release, where an error would come too late. False:
        both raise.
    """
    if not isinstance(domain, Domain):
        raise InvalidType(f"domain must be a Domain(classes, columns), got {type(domain).__name__}")
    collector = _Collector(domain)
    for constraint, family in expand(constraints, domain, allow_empty=allow_empty):
        collector.add(constraint, family)
    cell_map, sets = build_cells(collector.checked_subsets(), domain)
    cells = cell_map.n_cells
    if not allow_empty:
        collector.refuse_empty(sets, cells)
    # predicates that name the same cells are one subset, whatever their wording
    seen: dict[tuple[bool, bytes], int] = {}
    subset_of = [seen.setdefault((one.others, one.listed.tobytes()), len(seen)) for one in sets]
    kept = np.unique(subset_of, return_index=True)[1]
    index_sets, predicates = [sets[i] for i in kept], list(collector.subsets)
    terms, term_of = collector.distinct_terms(np.array(subset_of, dtype=np.int64))
    nonzeros = sum(len(index_sets[s].listed) for s in terms.numerator.tolist())
    if nonzeros > MAX_NONZEROS:
        raise InvalidInput(too_dense(nonzeros))
    rows = collector.matrix(term_of, len(terms))
    bounds, declared = np.array(collector.bounds, dtype=np.float64), collector.declared
    smallest = smallest_values(rows, terms, index_sets, cells, len(domain.classes))
    for j in np.flatnonzero(smallest > bounds + _ROUNDING):
        best = declared[j].sign * float(smallest[j]) + declared[j].expression.constant
        side = "fall below" if declared[j].sense == "<=" else "exceed"
        raise InvalidInput(
            f"no classifier can meet {declared[j].name!r}: its left-hand side can never {side} {best:.6g}; "
            "relax the bound"
        )
    keep = _tightest(rows, bounds, declared, may_cross=not to_hold)
    compiled = CompiledConstraints(
        domain=domain,
        declared=tuple(declared[j] for j in keep),
        families=tuple(collector.families[j] for j in keep),
        bounds=bounds[keep],
        coefficients=rows[keep],
        terms=terms,
        subsets=tuple(predicates[i] for i in kept),
        index_sets=tuple(index_sets),
        cell_map=cell_map,
        groupless=tuple(
            one
            for one in dict.fromkeys(as_constraints(constraints))
            if isinstance(one, Family) and one not in collector.families
        ),
    )
    if to_hold:
        refuse_contradictions(compiled)
    return compiled


class _Collector:
    """Collects constraints, giving each distinct term and subset a number."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.declared: list[Constraint] = []
        self.families: list[Family | None] = []
        self.bounds = array("d")
        self.subsets: dict[Predicate, int] = {}
        self._terms: dict[Term, int] = {}
        self._columns, self._data, self._ends = array("q"), array("d"), array("q", [0])
        self._keys = array("q")  # of each term: ratio, denominator, class, numerator
        self._first_use = array("q")  # the constraint that first reads each subset

    def add(self, constraint: Constraint, family: Family | None) -> None:
        if len(self.declared) >= MAX_CONSTRAINTS:
            raise InvalidInput(
                f"there are more than {MAX_CONSTRAINTS:,} constraints; use fewer groups or columns"
            )
        self.declared.append(constraint)
        self.families.append(family)
        self.bounds.append(constraint.normal_bound)
        sign = constraint.sign
        for term, coefficient in constraint.expression.terms:
            number = self._terms.get(term)
            self._columns.append(self._new_term(term) if number is None else number)
            self._data.append(sign * coefficient)
        self._ends.append(len(self._columns))

    def _new_term(self, term: Term) -> int:
        klass = self._checked(len(self.declared) - 1, self.domain.code, None, term.prediction)
        where, of = self._subset(term.where), self._subset(term.of)
        self._keys.extend((int(term.predicted), of, klass, where))
        return self._terms.setdefault(term, len(self._terms))

    def _subset(self, predicate: Predicate) -> int:
        if predicate not in self.subsets:
            self._first_use.append(len(self.declared) - 1)
        return self.subsets.setdefault(predicate, len(self.subsets))

    def _checked(self, constraint: int, check: Callable[..., Any], *arguments: Any) -> Any:
        """Call a check of the domain; its error names the constraint."""
        try:
            return check(*arguments)
        except InvalidInput as error:
            raise InvalidInput(f"constraint {self.declared[constraint].name!r}: {error}") from None

    def checked_subsets(self) -> list[Predicate]:
        """Return the subsets, checking that the domain knows every column and value they name."""
        known: set[Predicate] = set()
        for predicate, reader in zip(self.subsets, self._first_use, strict=True):
            for leaf in predicate.leaves():
                for value in getattr(leaf, "values", ()) if leaf not in known else ():
                    self._checked(reader, self.domain.code, leaf.column, value)
                self._checked(reader, self.domain.values, leaf.column)
                known.add(leaf)
        return list(self.subsets)

    def refuse_empty(self, sets: list[Subset], cells: int) -> None:
        """Raise if no row of the domain can lie in some subset."""
        for predicate, subset, reader in zip(self.subsets, sets, self._first_use, strict=True):
            if subset.size(cells) == 0:
                raise InvalidInput(
                    f"constraint {self.declared[reader].name!r} is about rows with {predicate.name}, but no row of "
                    "the declared domain can be such; check the condition or the declared values"
                )

    def distinct_terms(self, subset_of: NDArray[np.int64]) -> tuple[Terms, NDArray[np.int64]]:
        """Return the terms that differ on this domain, and the number of each declared term among them."""
        keys = np.array(self._keys, dtype=np.int64).reshape(-1, 4)
        if len(keys):
            keys[:, 1], keys[:, 3] = subset_of[keys[:, 1]], subset_of[keys[:, 3]]
        distinct, place = np.unique(keys, axis=0, return_inverse=True)
        ratio, denominator, klass, numerator = distinct.T
        return Terms(numerator, klass, denominator, ratio.astype(bool)), place.reshape(-1)

    def matrix(self, term_of: NDArray[np.int64], terms: int) -> Any:
        """Return the sparse J x R coefficients of the normal form."""
        columns = term_of[np.array(self._columns, dtype=np.int64)].astype(np.int32)
        data, ends = np.array(self._data, dtype=np.float64), np.array(self._ends, dtype=np.int32)
        rows = sp.csr_array((data, columns, ends), shape=(len(self.declared), terms))
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows


def _tightest(
    rows: Any, bounds: NDArray[np.float64], declared: list[Constraint], *, may_cross: bool
) -> list[int]:
    """Return the rows to keep, one per direction; raise if a lower bound exceeds its upper bound."""
    kept: dict[bytes, int] = {}
    tight: dict[bytes, float] = {}
    for row, (key, mirror, scale) in enumerate(_directions(rows)):
        bound = float(bounds[row]) / scale
        if key not in kept or bound < tight[key]:
            kept[key], tight[key] = row, bound
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
