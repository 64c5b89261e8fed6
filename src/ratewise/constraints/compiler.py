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

Impossible constraints are rejected here, before any row is read: unknown columns, values or classes, subsets
that no row can be in, bounds that no classifier can meet, alone or together
(`ratewise.constraints.feasibility`). Bounds that always hold are allowed. There may be 1,000,000 constraints,
100,000 cells, 2,000,000 combinations of values and 20,000,000 non-zeros; more raise an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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

# ------------------------------------------------------------------------------------------ declarations


Declaration = Constraint | Constraints | Family


def as_constraints(constraints: Any) -> list[Declaration]:
    """Return declarations in any form as a flat list of constraints, pairs of constraints and families.

    Parameters
    ----------
    constraints : str, constraint, family, None, or any nesting of lists, tuples and sets of them
        Text is parsed by `ratewise.constraints.text.parse_constraint`. None is no constraint.
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
        if isinstance(item, Constraint):
            yield item, None
        elif isinstance(item, Constraints):
            yield from ((one, None) for one in item)
        else:
            try:
                expanded = item.expand(domain)
            except NoGroups:
                if not allow_empty:
                    raise
                continue
            yield from ((one, item) for one in expanded)


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


# --------------------------------------------------------------------------------- what they name


@dataclass(frozen=True)
class Named:
    """The classes, columns and values that declarations name.

    Attributes
    ----------
    classes : tuple
        Classes that are predicted or conditioned on, and positive classes of families.
    columns : dict of str to tuple
        Every column that is read, with the values of it that are named; possibly none, since families read
        all groups of their columns.
    numeric : frozenset of str
        Columns of which only intervals are named.
    all_columns : bool
        Whether some family names no column and so reads all of them.
    """

    classes: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...]]
    numeric: frozenset[str]
    all_columns: bool


def named_values(constraints: Any) -> Named:
    """Return the classes, columns and values that declarations name; they count as declared."""
    classes: dict[Any, None] = {}
    values: dict[str, dict[Any, None]] = {}
    by_value: set[str] = set()
    all_columns = False
    for item in _declared(constraints):
        if isinstance(item, Family):
            if item.positive is not None:
                classes[item.positive] = None
            by_value.update(item.columns)
            all_columns |= not item.columns and not item.by_keyword
            values.update((column, values.get(column, {})) for column in item.columns)
            continue
        for constraint in (item,) if isinstance(item, Constraint) else item:
            for term, _ in constraint.expression.terms:
                classes[term.prediction] = None
                for leaf in (*term.where.leaves(), *term.of.leaves()):
                    named = leaf.values if isinstance(leaf, Member) else ()
                    if leaf.column is None:
                        classes.update(dict.fromkeys(in_order(named)))
                        continue
                    values.setdefault(leaf.column, {}).update(dict.fromkeys(in_order(named)))
                    if isinstance(leaf, Member):
                        by_value.add(leaf.column)
    return Named(
        classes=tuple(classes),
        columns={column: tuple(found) for column, found in values.items()},
        numeric=frozenset(() if all_columns else values.keys() - by_value),
        all_columns=all_columns,
    )


# ------------------------------------------------------------------------------------------- compilation


_ROUNDING = 1e-9


def compile_constraints(
    constraints: Any, domain: Domain, *, to_hold: bool = True, allow_empty: bool = False
) -> CompiledConstraints:
    """Return the constraints on the smallest partition of the domain that they need.

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

    Notes
    -----
    Constraints with the same coefficients are kept once, with the tightest bound. Time and memory grow with
    the number of non-zeros: coefficients, and cells listed per subset and class.
    """
    if not isinstance(domain, Domain):
        raise InvalidType(f"domain must be a Domain(classes, columns), got {type(domain).__name__}")
    collector = _Collector(domain)
    for constraint, family in expand(constraints, domain, allow_empty=allow_empty):
        collector.add(constraint, family)
    cell_map, sets = build_cells(collector.predicates(), domain)
    if not allow_empty:
        collector.refuse_empty(sets, cell_map.n_cells)
    subsets, index_sets, subset_of = _distinct_subsets(list(collector.subsets), sets)
    terms, term_of = collector.distinct_terms(subset_of)
    _refuse_dense(index_sets, terms)
    rows = collector.matrix(term_of, len(terms))
    bounds = np.array(collector.bounds, dtype=np.float64)
    _refuse_impossible(rows, bounds, terms, index_sets, cell_map.n_cells, domain, collector.declared)
    keep = _tightest(rows, bounds, collector.declared, may_cross=not to_hold)
    compiled = CompiledConstraints(
        domain=domain,
        declared=tuple(collector.declared[j] for j in keep),
        families=tuple(collector.families[j] for j in keep),
        bounds=bounds[keep],
        coefficients=rows[keep],
        terms=terms,
        subsets=tuple(subsets),
        index_sets=tuple(index_sets),
        cell_map=cell_map,
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
        self.terms: dict[Term, int] = {}
        self.subsets: dict[Predicate, int] = {}
        self._columns, self._data, self._ends = array("q"), array("d"), array("q", [0])
        self._keys = [array("q") for _ in range(4)]  # numerator, class, denominator, ratio
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
    bounds: Any,
    terms: Terms,
    sets: list[Subset],
    cells: int,
    domain: Domain,
    declared: list[Constraint],
) -> None:
    smallest = smallest_values(rows, terms, sets, cells, len(domain.classes))
    beyond = np.flatnonzero(smallest > bounds + _ROUNDING)
    if len(beyond):
        constraint = declared[beyond[0]]
        best = constraint.sign * float(smallest[beyond[0]]) + constraint.expression.constant
        side = "fall below" if constraint.sense == "<=" else "exceed"
        raise InvalidInput(
            f"no classifier can meet {constraint.name!r}: its left-hand side can never {side} {best:.6g}; "
            "relax the bound"
        )


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
