"""Declared constraints in any form, compiled on a public domain: their values and weights from a histogram.

>>> from ratewise.constraints.families import demographic_parity
>>> domain = Domain(classes=(0, 1), columns={"race": ("A", "B", "C")})
>>> compiled = compile_constraints(demographic_parity("race", max_gap=0.05), domain)
>>> len(compiled), compiled.n_cells
(6, 3)
>>> compiled.values([[8, 2], [5, 5], [5, 5]]).round(3)
array([-0.3 ,  0.3 ,  0.15, -0.15,  0.15, -0.15])

A constraint is a sparse row of coefficients over *terms*; a term is a fraction whose numerator counts the
predictions of one class in one subset, and whose denominator counts the rows of a subset (a share) or the
rows of a subset predicted that class (a ratio). With H the Q x K histogram and lambda the multipliers::

    num_r = sum of H[i, k_r], i in I_r      den_r = sum of totals[o], o in O_r      (share)
    v_r = num_r / den_r                     den_r = sum of H[o, k_r], o in O_r      (ratio)
    value_j = sum_r A[j, r] v_r             c = A^T lambda
    W[q, k] = sum_r c_r / den_r * (1[q in I_r, k = k_r] - v_r * 1[r is a ratio, q in O_r, k = k_r])

Small problems use dense matrices, large ones sparse products. No row is read here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.domain import Domain, in_order, list_values, show_number
from ratewise.constraints.families import MAX_CONSTRAINTS, Family, NoGroups, amount_of, percent
from ratewise.constraints.feasibility import refuse_contradictions, smallest_values
from ratewise.constraints.partition import Partition, Subset, Terms, build_cells, of_class, refuse_too_dense
from ratewise.constraints.rates import Constraint, Constraints, Expression, Magnitude, Predicate, Rows, Term
from ratewise.constraints.text import parse_constraint
from ratewise.exceptions import InvalidInput, InvalidType

Declaration = Constraint | Constraints | Family
Floats = NDArray[np.float64]

# ----------------------------------------------------------------------------------- declarations in any form


def as_constraints(constraints: Any) -> list[Declaration]:
    """Return declarations as a flat list of constraints, pairs of constraints and families.

    `constraints` is text, a constraint, a family, None, or any nesting of lists, tuples and sets of them.

    >>> as_constraints(["fnr(sex=*) <= 0.2", [None, "rate(1) >= 0.1"]])
    [false_negative_rate(0.2, by='sex'), rate(1) >= 0.1]
    """
    if constraints is None:
        return []
    if isinstance(constraints, Constraint | Constraints | Family):
        return [constraints]
    if isinstance(constraints, str):
        return [parse_constraint(constraints)]
    if isinstance(constraints, list | tuple | set | frozenset):
        return [one for item in constraints for one in as_constraints(item)]
    hint = ""
    if isinstance(constraints, Iterator):
        hint = "; an iterator can be read only once"
    elif isinstance(constraints, bool):
        hint = "; == compares declarations: for an equality write rate.between(b, b)"
    elif isinstance(constraints, Expression | Magnitude | Rows | Predicate):
        hint = f" {constraints!r}; compare a rate with a number: rate(1) <= 0.2"
    raise InvalidType(
        "constraints must be rate constraints (bounds on rates), families, constraint text or lists of them, "
        f"got {type(constraints).__name__}{hint}"
    )


def expand(
    constraints: Any, domain: Domain, *, allow_empty: bool = False
) -> Iterator[tuple[Constraint, Family | None]]:
    """Yield the single constraints of declarations on a domain, each with the family that it comes from.

    With `allow_empty`, a family without groups on the domain gives no constraint instead of an error.
    """
    for item in as_constraints(constraints):
        try:
            found = item.expand(domain) if isinstance(item, Family) else _singles(item)
        except NoGroups:
            if not allow_empty:
                raise
            continue
        yield from ((one, item if isinstance(item, Family) else None) for one in found)


def _singles(item: Constraint | Constraints) -> Sequence[Constraint]:
    return (item,) if isinstance(item, Constraint) else item


class Named(NamedTuple):
    """The classes, columns and values that declarations name.

    `columns` holds every column that is read, with the values of it that are named; `numeric` those of which only
    intervals are named. `all_columns` says whether some family names no column and so reads all of them.
    """

    classes: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...]]
    numeric: frozenset[str]
    all_columns: bool

    @property
    def needed(self) -> frozenset[str] | None:
        """The columns that are read; None if these are all of a table."""
        return None if self.all_columns else frozenset(self.columns)


def named_values(constraints: Any) -> Named:
    """Return the classes, columns and values that declarations name; they count as declared."""
    found: dict[str | None, list[Any]] = {None: []}  # by column, None for the classes
    by_value: set[str | None] = set()
    all_columns = False
    for item in as_constraints(constraints):
        if isinstance(item, Family):
            found[None] += [] if item.positive is None else [item.positive]
            found.update((column, found.get(column, [])) for column in item.columns)
            by_value.update(item.columns)
            all_columns |= not item.columns and not item.by_keyword
            continue
        for term in (term for one in _singles(item) for term, _ in one.expression.terms):
            found[None].append(term.prediction)
            for leaf in (*term.where.leaves(), *term.of.leaves()):
                values = found.setdefault(leaf.column, [])
                if leaf.listed is not None:
                    values += in_order(leaf.listed)
                    by_value.add(leaf.column)
    classes = tuple(dict.fromkeys(found.pop(None)))
    columns = {str(column): tuple(dict.fromkeys(values)) for column, values in found.items()}
    return Named(classes, columns, frozenset(() if all_columns else columns.keys() - by_value), all_columns)


# ------------------------------------------------------------------------------------ bounded quantities


@dataclass(frozen=True)
class Item:
    """A bounded quantity, which counts once: a gap, or a rate with its lower and upper bound.

    `name` holds the bounds, as in ``abs(P(1 | sex=F) - P(1 | sex!=F)) <= 0.05``; `description` says the same in
    words. `members` are the positions of the one or two constraints on the quantity, `family` declares it.
    """

    name: str
    description: str
    members: tuple[int, ...]
    low: float | None
    high: float | None
    family: Family | None

    @property
    def is_gap(self) -> bool:
        """Whether the bounds are plus and minus the same number: the absolute value is bounded."""
        return self.low is not None and self.high is not None and self.low == -self.high

    @property
    def slack(self) -> float:
        """The requested bound: of a gap its largest size, else the upper bound, or the lower if it is alone."""
        return self.high if self.high is not None else float(self.low or 0.0)

    def gap(self, values: Floats) -> float:
        """Return the largest of the item's values in normal form; for a gap, its absolute size."""
        return float(max(values[j] for j in self.members))


def _two_sided_name(first: Constraint, low: float, high: float) -> str:
    side = f" (at {'most' if first.sense == '<=' else 'least'})"
    quantity = first.name.removesuffix(f" {first.sense} {show_number(first.bound)}")
    if first.name.endswith(side) or quantity == first.name:  # a name given by hand
        return first.name.removesuffix(side)
    if low == -high:
        return f"abs({quantity}) <= {show_number(high)}"
    return f"{show_number(low)} <= {quantity} <= {show_number(high)}"


def _sentence(constraint: Constraint, low: float | None, high: float | None) -> str:
    """Return a bounded rate or difference of two rates in words; the formula if it is something else."""
    terms, constant = constraint.expression.terms, constraint.expression.constant
    weights, amount = (*(weight for _, weight in terms), constant), amount_of(low, high).lower()
    if all(term.where == term.of and not term.predicted for term, _ in terms):
        k, rows = terms[0][0].prediction, [term.of.name for term, _ in terms]
        if len(terms) == 2 and terms[1][0].of == ~terms[0][0].of:
            rows[1] = "everybody else"
        if weights == (1.0, -1.0, 0.0) and k == terms[1][0].prediction:
            if low is not None and high is not None and low == -high:
                gap = f"at rates that differ by at most {percent(high)} points"
                return f"{rows[0]} and {rows[1]} are predicted '{k}' {gap}."
            return f"The rate of '{k}' for {rows[0]} minus that for {rows[1]} is {amount}."
        if weights == (1.0, 0.0):
            return f"The rate of '{k}' for {rows[0]} is {amount}."
        if weights == (-1.0, 1.0):
            return f"The rate of predictions other than '{k}' for {rows[0]} is {amount}."
    return f"{constraint.name}."


# ----------------------------------------------------------------------------------- values and weights

_SMALLEST = 1e-12  # of a denominator, in rows
_DENSE = 40_000  # entries of a matrix up to which a dense product beats the overhead of a sparse one


class _Sums:
    """Sums of the entries of a table of cells by `width` columns, one sum per row of a sparse matrix.

    The matrix reads the table row by row, followed by its column sums: a subset "all but these cells" is the
    column sum minus the cells that it lists.
    """

    def __init__(self, matrix: Any, width: int) -> None:
        self.matrix, self._width = matrix, width
        self._dense: Floats | None = None
        if matrix.shape[0] * matrix.shape[1] <= _DENSE:
            listed, everywhere = np.split(matrix.toarray(), [-width], axis=1)
            self._dense = listed + np.tile(everywhere, listed.shape[1] // width)

    def of(self, table: Floats) -> Floats:
        """Return the sums, from the table as a vector."""
        if self._dense is not None:
            return self._dense @ table
        return np.asarray(self.matrix @ np.append(table, table.reshape(-1, self._width).sum(axis=0)))

    def spread(self, amounts: Floats) -> Floats:
        """Return the table, as a vector, in which every entry of a sum has that sum's amount."""
        if self._dense is not None:
            return amounts @ self._dense
        found: Floats = (self.matrix.T @ amounts).reshape(-1, self._width)
        return np.ravel(found[:-1] + found[-1])


@dataclass(frozen=True, eq=False, repr=False)
class CompiledConstraints(Partition):
    """Constraints ready for training: cells, sparse coefficients, slacks. Made by `compile_constraints`.

    Constraint j of J is ``values(histogram)[j] <= bounds[j]``. Q is `n_cells`, K is `n_classes`; a histogram H is
    Q x K, and ``H[q, k]`` counts the rows of cell q that are predicted class k (softly or hard). Everything here
    depends on declarations only, not on rows. `declared` holds the constraints after expansion of `families` and
    removal of duplicates (the tightest bound stays), `subsets` the S distinct subsets that they read.
    `groupless` are declared families that gave no constraint, because the domain has no groups for them.
    """

    declared: tuple[Constraint, ...]
    families: tuple[Family | None, ...]
    bounds: Floats
    coefficients: Any
    terms: Terms
    subsets: tuple[Predicate, ...]
    index_sets: tuple[Subset, ...]
    groupless: tuple[Family, ...] = ()

    def __len__(self) -> int:
        return len(self.bounds)

    def __repr__(self) -> str:
        size = f"{len(self)} constraints, {self.n_cells} cells, {self.n_classes} classes"
        return f"<{type(self).__name__}: {size}: {list_values(self.names, most=3)}>"

    @cached_property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.domain.classes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the constraints, for reports."""
        return tuple(constraint.name for constraint in self.declared)

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The bounded quantities, in the order of their first constraint.

        An upper and a lower bound on the same expression, from the same family (or both from none), are one item.
        """
        found: dict[Any, list[int]] = {}
        for j, constraint in enumerate(self.declared):
            key: tuple[Any, ...] = (constraint.expression, id(self.families[j]))
            while key in found and any(self.declared[i].sense == constraint.sense for i in found[key]):
                key = (key, None)  # a second bound on the same side is an item of its own
            found.setdefault(key, []).append(j)
        items = []
        for members in found.values():
            first = self.declared[members[0]]
            sides = {self.declared[j].sense: self.declared[j].bound for j in members}
            low, high = sides.get(">="), sides.get("<=")
            name = first.name if len(members) == 1 else _two_sided_name(first, low or 0.0, high or 0.0)
            family = self.families[members[0]]
            items.append(Item(name, _sentence(first, low, high), tuple(members), low, high, family))
        return tuple(items)

    def reached(self, values: Floats) -> Floats:
        """Return the declared left-hand sides for values of the normal form.

        ``rate(1) >= 0.2`` is kept as ``-rate(1) <= -0.2``; a report shows the rate and 0.2.
        """
        constants = np.array([constraint.expression.constant for constraint in self.declared])
        return constants + np.array([constraint.sign for constraint in self.declared]) * values

    def histogram(self, cells: Any, predictions: Any) -> Floats:
        """Return the exact Q x K histogram of predictions. It is private: release it only with noise.

        `predictions` are (n,) codes of classes or (n, K) soft predictions. A row adds nothing if its cell or code
        is out of range, or if a soft prediction is not finite.
        """
        cells, predictions = np.asarray(cells), np.asarray(predictions)
        if cells.ndim != 1 or len(cells) != len(predictions):
            raise InvalidInput(f"predictions must have one row per cell entry: {len(predictions)} against {cells.size}")
        shape = self.n_cells, self.n_classes
        hard = predictions.ndim == 1 and predictions.dtype.kind in "iu"
        if not hard and (predictions.ndim != 2 or predictions.shape[1] != shape[1]):
            raise InvalidType(f"predictions must be class codes or a table with {shape[1]} columns")
        known = np.isfinite(predictions) if not hard else (predictions >= 0) & (predictions < shape[1])
        inside = (cells >= 0) & (cells < shape[0]) & (known if hard else known.all(axis=1))
        if not inside.all():
            cells, predictions = cells[inside], predictions[inside]
        places = cells.astype(np.int64)[:, None] * shape[1] + (predictions[:, None] if hard else np.arange(shape[1]))
        weights = None if hard else predictions.ravel()
        counts = np.bincount(places.ravel(), weights, minlength=shape[0] * shape[1])
        return counts.reshape(shape).astype(np.float64)

    def sizes(self, histogram: Any) -> Floats:
        """Return the number of rows of each subset, from a Q x K histogram or from Q cell totals."""
        totals = np.asarray(histogram, dtype=np.float64)
        totals = totals.sum(axis=1) if totals.ndim == 2 else totals
        if totals.shape != (self.n_cells,):
            raise InvalidInput(f"expected {self.n_cells} cells, got an array of shape {np.shape(histogram)}")
        return self._sizes.of(totals)

    def denominators(self, histogram: Any, cell_totals: Floats | None = None) -> Floats:
        """Return the (R,) denominators of the terms, without a floor."""
        table = self._flat(histogram)
        totals = table.reshape(self.n_cells, -1).sum(axis=1) if cell_totals is None else cell_totals
        below = self._sizes.of(totals)[self.terms.denominator]
        if self._has_ratio:
            below[self.terms.ratio] = self._ratio_denominators.of(table)
        return below

    def value_noise(self, histogram: Any, cell_totals: Floats | None, noise: float, *, floor: float = 1.0) -> Floats:
        """Return the (J,) standard deviations of `values` if each count has noise and denominators are exact."""
        below = np.maximum(self.denominators(histogram, cell_totals), floor)
        variances: Floats = self._squares @ np.square(noise / below)
        return np.sqrt(variances)

    def values(
        self,
        histogram: Any,
        cell_totals: Floats | None = None,
        *,
        floor: float = 1.0,
        clamp: bool = True,
        shrink: bool = False,
    ) -> Floats:
        """Return the (J,) left-hand sides from a (noisy) (Q, K) histogram.

        `cell_totals` are better estimates of the (Q,) numbers of rows per cell than the histogram's row sums. `floor`
        is the smallest denominator, in rows; for exact counts a tiny one gives exact rates. With `clamp`, each rate
        is clipped to [0, 1]. With `shrink`, denominators are filled up to the floor with rows that are predicted as
        all rows are, so that subsets below the floor show no gap; otherwise they show a rate near 0.
        """
        rates, below, found = self._rates(histogram, cell_totals, floor)
        if shrink and (found < below).any():
            missing = 1.0 - np.maximum(found, 0.0) / below
            rates = rates + missing * self._overall_rates(histogram, cell_totals)
        return np.asarray(self._a @ (np.clip(rates, 0.0, 1.0) if clamp else rates))

    def _overall_rates(self, histogram: Any, cell_totals: Floats | None) -> Floats:
        """Return the rate of each term if all rows were predicted alike: its class's share, or a share of rows."""
        table = self._flat(histogram).reshape(self.n_cells, -1)
        totals = table.sum(axis=1) if cell_totals is None else cell_totals
        classes = np.clip(table.sum(axis=0) / max(float(totals.sum()), _SMALLEST), 0.0, 1.0)
        sizes = np.maximum(self._sizes.of(totals), _SMALLEST)
        rows = np.clip(sizes[self.terms.numerator] / sizes[self.terms.denominator], 0.0, 1.0)
        return np.where(self.terms.ratio, rows, rows * classes[self.terms.klass])

    def _rates(self, histogram: Any, cell_totals: Floats | None, floor: float) -> tuple[Floats, Floats, Floats]:
        """Return the rates of the terms, their denominators, and these without the floor."""
        found = self.denominators(histogram, cell_totals)
        below = np.maximum(found, max(floor, _SMALLEST))
        with np.errstate(over="ignore"):  # of a count beyond 1e296 rows
            return self._numerators.of(self._flat(histogram)) / below, below, found

    def value_and_std(
        self, histogram: Any, noise_std: float | Floats, cell_totals: Floats | None = None, *, floor: float = 1.0
    ) -> tuple[Floats, Floats]:
        """Return the (J,) values and their standard deviations under independent noise on the histogram.

        They follow from the gradient of each value in the histogram's entries (delta method), and are accurate
        while the noise of each denominator is small against it. `noise_std` is that of each entry: with
        ``sqrt(max(H, 0) + sigma**2)``, which includes the sampling of the rows, the values estimate those of the
        population. Given `cell_totals` are taken as exact.
        """
        cells, classes, terms = self.n_cells, self.n_classes, self.terms
        std = np.broadcast_to(np.asarray(noise_std, dtype=np.float64), (cells, classes))
        variance = np.square(std).reshape(-1)
        rates, denominator, _ = self._rates(histogram, cell_totals, floor)
        rates = np.clip(rates, 0.0, 1.0)
        moving = rates if cell_totals is None else rates * terms.ratio  # denominators that vary
        slopes, below = self._numerators.matrix, self._incidence[terms.denominator]
        if self._has_ratio:
            slopes = slopes - sp.diags_array(moving * terms.ratio) @ of_class(below, terms.klass, classes)
        if cell_totals is None:
            slopes = slopes - sp.diags_array(moving * ~terms.ratio) @ sp.kron(below, np.ones((1, classes)))
        gradient = sp.csr_array(self.coefficients @ (sp.diags_array(1.0 / denominator) @ slopes))
        # an entry of the gradient is a listed part plus, for subsets given as "all but", a part per class
        listed, everywhere = gradient[:, :-classes], gradient[:, -classes:].toarray()
        by_class = variance[:, None] * np.tile(np.eye(classes), (cells, 1))
        total = listed.power(2) @ variance + np.square(everywhere) @ by_class.sum(axis=0)
        total += 2.0 * np.sum(everywhere * (listed @ by_class), axis=1)
        return self._a @ rates, np.sqrt(np.maximum(total, 0.0))

    def weights(
        self,
        multipliers: Floats,
        histogram: Any,
        cell_totals: Floats | None = None,
        *,
        floor: float = 1.0,
        clamp: bool = True,
        ratio_floor: float = 0.0,
    ) -> Floats:
        """Return the (Q, K) table W: the gradient of ``multipliers @ values`` in the histogram's entries.

        Adding ``sum_k W[cell, k] * soft_k`` over the rows of the histogram to the loss gives theta the gradient of
        the Lagrangian. Shares are differentiated with fixed denominators, which a row's prediction cannot change;
        ratios with both, their denominators at least `ratio_floor`. Other arguments as in `values`.
        """
        shape = self.n_cells, self.n_classes
        amount = self._a_t @ multipliers
        if not self._has_ratio:
            below = np.maximum(self.denominators(histogram, cell_totals), max(floor, _SMALLEST))
            return self._numerators.spread(amount / below).reshape(shape)
        rates, below, _ = self._rates(histogram, cell_totals, floor)
        rates = np.clip(rates, 0.0, 1.0) if clamp else rates
        amount = amount / np.where(self.terms.ratio, np.maximum(below, ratio_floor), below)
        fixed = self._numerators.spread(amount)
        return (fixed - self._ratio_denominators.spread((amount * rates)[self.terms.ratio])).reshape(shape)

    def _flat(self, histogram: Any) -> Floats:
        table: Floats = np.asarray(histogram, dtype=np.float64)
        if table.shape != (self.n_cells, self.n_classes):
            raise InvalidInput(f"histogram must be {self.n_cells} x {self.n_classes}, got shape {table.shape}")
        return table.reshape(-1)

    @cached_property
    def _has_ratio(self) -> bool:
        return bool(self.terms.ratio.any())

    @cached_property
    def _incidence(self) -> Any:
        """The subsets as rows over the cells and, last, all cells together."""
        others = np.array([subset.others for subset in self.index_sets], dtype=bool)
        owner = np.repeat(np.arange(len(others)), [len(subset.listed) for subset in self.index_sets])
        cells = np.concatenate([np.empty(0, dtype=np.int64), *(one.listed for one in self.index_sets)])
        signs, shape = np.where(others[owner], -1.0, 1.0), (len(others), self.n_cells)
        listed = sp.csr_array((signs, (owner, cells)), shape=shape)
        return sp.csr_array(sp.hstack([listed, sp.csr_array(others[:, None] * 1.0)]))

    @cached_property
    def _sizes(self) -> _Sums:
        return _Sums(self._incidence, 1)

    @cached_property
    def _numerators(self) -> _Sums:
        classes, chosen = self.n_classes, self._incidence[self.terms.numerator]
        return _Sums(of_class(chosen, self.terms.klass, classes), classes)

    @cached_property
    def _ratio_denominators(self) -> _Sums:
        classes, ratio = self.n_classes, self.terms.ratio
        chosen = self._incidence[self.terms.denominator[ratio]]
        return _Sums(of_class(chosen, self.terms.klass[ratio], classes), classes)

    @cached_property
    def _a(self) -> Any:
        small = self.coefficients.shape[0] * self.coefficients.shape[1] <= _DENSE
        return self.coefficients.toarray() if small else self.coefficients

    @cached_property
    def _a_t(self) -> Any:
        # its own copy by rows of the transpose: the product runs in every step
        return np.ascontiguousarray(self._a.T) if isinstance(self._a, np.ndarray) else sp.csr_array(self._a.T)

    @cached_property
    def _squares(self) -> Any:
        """Squared coefficients, times the number of counts in each numerator."""
        cells = self._sizes.of(np.ones(self.n_cells))[self.terms.numerator]
        squares = self.coefficients.power(2)
        squares.data *= cells[squares.indices]
        return squares


# -------------------------------------------------------------------------------------------- compilation

_ROUNDING = 1e-9


def compile_constraints(
    constraints: Any, domain: Domain, *, to_hold: bool = True, allow_empty: bool = False
) -> CompiledConstraints:
    """Return the constraints on the smallest partition of the domain that they need.

    Constraints with the same coefficients are kept once, with the tightest bound. Time and memory grow with the
    number of non-zeros: coefficients, and cells listed per subset and class. Rejected are unknown columns, values
    and classes, subsets that no row can be in, and bounds that no classifier can meet, alone or together
    (`ratewise.constraints.feasibility`). Bounds that always hold are allowed.

    Without `to_hold` the constraints are only to be measured, so that some may contradict others. With `allow_empty`
    a family without groups gives no constraint, and a rate over a subset that no row of the domain can be in is 0:
    for domains found by a release, where an error would come too late.
    """
    if not isinstance(domain, Domain):
        raise InvalidType(f"domain must be a Domain(classes, columns), got {type(domain).__name__}")
    declarations = as_constraints(constraints)
    expanded = expand(declarations, domain, allow_empty=allow_empty)
    found = list(itertools.islice(expanded, MAX_CONSTRAINTS + 1))
    if len(found) > MAX_CONSTRAINTS:
        raise InvalidInput(f"there are more than {MAX_CONSTRAINTS:,} constraints; use fewer groups or columns")
    declared, families = [one for one, _ in found], [family for _, family in found]
    class_of, subsets = _read(declared, domain)
    partition, sets = build_cells(list(subsets), domain)
    for (subset, reader), cells in zip(subsets.items(), sets, strict=True):
        if not allow_empty and cells.size(partition.n_cells) == 0:
            raise InvalidInput(
                f"constraint {reader.name!r} is about rows with {subset.name}, but no row of "
                "the declared domain can be such; check the condition or the declared values"
            )
    # predicates that name the same cells are one subset, whatever their wording
    seen: dict[tuple[bool, bytes], int] = {}
    places = [seen.setdefault((one.others, one.listed.tobytes()), len(seen)) for one in sets]
    kept, place = np.unique(places, return_index=True)[1], dict(zip(subsets, places, strict=True))
    keys = [(t.predicted, place[t.of], k, place[t.where]) for t, k in class_of.items()]
    distinct, term_of = np.unique(np.array(keys, dtype=np.int64).reshape(-1, 4), axis=0, return_inverse=True)
    ratio, denominator, klass, numerator = distinct.T
    terms = Terms(numerator, klass, denominator, ratio.astype(bool))
    refuse_too_dense(sum(len(sets[kept[s]].listed) for s in numerator.tolist()))
    number = dict(zip(class_of, term_of.reshape(-1).tolist(), strict=True))
    entries = [(c.sign * a, j, number[t]) for j, c in enumerate(declared) for t, a in c.expression.terms]
    data, rows, columns = np.array(entries, dtype=np.float64).reshape(-1, 3).T
    table = sp.coo_array((data, (rows.astype(int), columns.astype(int))), shape=(len(declared), len(terms)))
    coefficients = table.tocsr()  # adds up what is the same term on this domain
    coefficients.eliminate_zeros()
    used, predicates = set(map(id, families)), list(subsets)
    compiled = CompiledConstraints(
        *(domain, partition.axes, partition.cell_of, partition.n_cells),
        declared=tuple(declared),
        families=tuple(families),
        bounds=np.array([constraint.normal_bound for constraint in declared], dtype=np.float64),
        coefficients=coefficients,
        terms=terms,
        subsets=tuple(predicates[i] for i in kept),
        index_sets=tuple(sets[i] for i in kept),
        groupless=tuple(one for one in dict.fromkeys(declarations) if isinstance(one, Family) and id(one) not in used),
    )
    smallest = smallest_values(compiled)
    for j in np.flatnonzero(smallest > compiled.bounds + _ROUNDING):
        best = declared[j].sign * float(smallest[j]) + declared[j].expression.constant
        side = "fall below" if declared[j].sense == "<=" else "exceed"
        raise InvalidInput(
            f"no classifier can meet {declared[j].name!r}: its left-hand side can never {side} {best:.6g}; "
            "relax the bound"
        )
    keep = _tightest(compiled, may_cross=not to_hold)
    compiled = replace(
        compiled,
        declared=tuple(declared[j] for j in keep),
        families=tuple(families[j] for j in keep),
        bounds=compiled.bounds[keep],
        coefficients=coefficients[keep],
    )
    if to_hold:
        refuse_contradictions(compiled)
    return compiled


def _read(declared: list[Constraint], domain: Domain) -> tuple[dict[Term, int], dict[Predicate, Constraint]]:
    """Return the distinct terms with their class codes, and the subsets with the first constraint on each."""
    class_of: dict[Term, int] = {}
    subsets: dict[Predicate, Constraint] = {}
    for constraint in declared:
        for term, _ in constraint.expression.terms:
            if term not in class_of:
                (class_of[term],) = _codes(domain, None, (term.prediction,), constraint)
                subsets.setdefault(term.where, constraint)
                subsets.setdefault(term.of, constraint)
    for subset, constraint in subsets.items():
        for leaf in subset.leaves():
            _codes(domain, leaf.column, leaf.listed or (), constraint)
    return class_of, subsets


def _codes(domain: Domain, column: str | None, values: Any, reader: Constraint) -> list[int]:
    """Return the codes of values of a column that the domain must know; the error names the constraint."""
    try:
        domain.values(column)
        return [domain.code(column, value) for value in values]
    except InvalidInput as error:
        raise InvalidInput(f"constraint {reader.name!r}: {error}") from None


def _tightest(compiled: CompiledConstraints, *, may_cross: bool) -> list[int]:
    """Return the constraints to keep, one per direction; raise if a lower bound exceeds its upper bound."""
    rows, declared = compiled.coefficients, compiled.declared
    owner, ends = np.repeat(np.arange(len(compiled)), np.diff(rows.indptr)), rows.indptr.tolist()
    scale = np.zeros(len(compiled))  # the largest entry: by any other, a quotient could overflow
    np.maximum.at(scale, owner, np.abs(rows.data))
    with np.errstate(over="ignore"):
        bounds = (compiled.bounds / np.where(scale > 0, scale, 1.0)).tolist()
    unit = rows.data / scale[owner]
    kept: dict[bytes, tuple[float, int]] = {}
    for j, bound in enumerate(bounds):
        part = slice(ends[j], ends[j + 1])
        # a row that reads nothing after merging stands for itself
        where = rows.indices[part].tobytes() or b"row" + j.to_bytes(8, "little")
        key, mirror = where + unit[part].tobytes(), where + (-unit[part]).tobytes()
        kept[key] = min(kept.get(key, (bound, j)), (bound, j))
        if not may_cross and mirror in kept and kept[key][0] + kept[mirror][0] < -_ROUNDING:
            first, second = (declared[kept[side][1]].name for side in (mirror, key))
            raise InvalidInput(f"{first!r} and {second!r} contradict each other: the lower bound is above the upper")
    return sorted(j for _, j in kept.values())
