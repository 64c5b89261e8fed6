"""Compiled constraints: from a histogram of predictions to the constraints' values and the weights table.

A constraint is a sparse row of coefficients over *terms*; a term is a fraction whose numerator counts the
predictions of one class in one subset, and whose denominator counts the rows of a subset (a share) or the
rows of a subset predicted that class (a ratio). With H the Q x K histogram and lambda the multipliers::

    num_r = sum of H[i, k_r], i in I_r      den_r = sum of totals[o], o in O_r      (share)
    v_r = num_r / den_r                     den_r = sum of H[o, k_r], o in O_r      (ratio)
    value_j = sum_r A[j, r] v_r             c = A^T lambda
    W[q, k] = sum_r c_r / den_r * (1[q in I_r, k = k_r] - v_r * 1[r is a ratio, q in O_r, k = k_r])

Small problems use dense matrices, large ones sparse products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.domain import Codes, Domain, list_values, show_number
from ratewise.constraints.families import Family, amount_of, percent
from ratewise.constraints.partition import CellMap, Subset
from ratewise.constraints.predicates import Predicate
from ratewise.constraints.rates import Constraint
from ratewise.exceptions import InvalidInput, InvalidType

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

    def gap(self, values: NDArray[np.float64]) -> float:
        """Return the largest of the item's values in normal form; for a gap, its absolute size."""
        return float(max(values[j] for j in self.members))


def group_bounds(
    constraints: Sequence[Constraint], families: Sequence[Family | None] | None = None
) -> tuple[Item, ...]:
    """Return one item per bounded quantity, in the order of its first constraint.

    An upper and a lower bound on the same expression, from the same family (or both from none), are one item.
    """
    sources = [None] * len(constraints) if families is None else list(families)
    found: dict[Any, list[int]] = {}
    for j, constraint in enumerate(constraints):
        key: tuple[Any, ...] = (constraint.expression, id(sources[j]))
        while key in found and any(constraints[i].sense == constraint.sense for i in found[key]):
            key = (key, None)  # a second bound on the same side is an item of its own
        found.setdefault(key, []).append(j)
    items = []
    for members in found.values():
        first, sides = constraints[members[0]], {constraints[j].sense: constraints[j].bound for j in members}
        low, high = sides.get(">="), sides.get("<=")
        name = first.name if len(members) == 1 else _two_sided_name(first, low or 0.0, high or 0.0)
        items.append(Item(name, _sentence(first, low, high), tuple(members), low, high, sources[members[0]]))
    return tuple(items)


def _two_sided_name(first: Constraint, low: float, high: float) -> str:
    side = f" (at {'most' if first.sense == '<=' else 'least'})"
    if first.name.endswith(side):
        return first.name.removesuffix(side)
    quantity = first.name.removesuffix(f" {first.sense} {show_number(first.bound)}")
    if quantity == first.name:  # a name given by hand
        return first.name
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


# ------------------------------------------------------------------------------------- sums over subsets


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Terms:
    """The distinct terms, as positions: numerator subset, class, denominator subset, and whether a ratio."""

    numerator: Ints
    klass: Ints
    denominator: Ints
    ratio: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.klass)


class _Sums:
    """Sums of a (Q, K) table over subsets of cells, each for one class or (class -1) for all classes.

    The sum of row r is ``listed[r] @ table + per_class[r] @ column sums``: a subset "all but these cells" is all
    cells minus those that it lists. Small problems use one dense matrix instead.
    """

    def __init__(self, sets: Sequence[Subset], subsets: Ints, classes: Ints, shape: tuple[int, int]) -> None:
        every, cells = np.arange(shape[1]), [sets[s] for s in subsets.tolist()]
        chosen = [every if k < 0 else every[k : k + 1] for k in classes.tolist()]
        columns = [(c.listed[:, None] * shape[1] + ks).ravel() for c, ks in zip(cells, chosen, strict=True)]
        others = np.array([subset.others for subset in cells], dtype=bool)
        signs = np.repeat(1.0 - 2.0 * others, [len(column) for column in columns])
        self._shape = shape
        self.listed = rows_of(columns, shape[0] * shape[1], signs)
        self.per_class = rows_of([ks[: len(ks) * o] for ks, o in zip(chosen, others, strict=True)], shape[1])
        self._dense = None
        if self.listed.shape[0] * self.listed.shape[1] <= _DENSE:
            self._dense = self.listed.toarray() + np.tile(self.per_class.toarray(), shape[0])

    def of(self, table: Floats) -> Floats:
        """Return the sums, from the table as a vector."""
        sums: Floats = (self.listed if self._dense is None else self._dense) @ table
        if self._dense is None and self.per_class.nnz:
            sums += self.per_class @ table.reshape(self._shape).sum(axis=0)
        return sums

    def spread(self, amounts: Floats) -> Floats:
        """Return the table, as a vector, in which every entry of a sum has that sum's amount."""
        table: Floats = amounts @ self._dense if self._dense is not None else self.listed.T @ amounts
        if self._dense is None and self.per_class.nnz:
            table.reshape(self._shape)[...] += self.per_class.T @ amounts
        return table


def rows_of(columns: list[Ints], width: int, entries: Floats | None = None) -> Any:
    """Return the sparse matrix whose row r has its entries (ones by default) in ``columns[r]``."""
    ends = np.cumsum([0, *map(len, columns)])
    places = np.concatenate([np.empty(0, dtype=np.int64), *columns])
    data = np.ones(len(places)) if entries is None else entries
    return sp.csr_array((data, places, ends), shape=(len(columns), width))


_SMALLEST = 1e-12  # of a denominator, in rows
_DENSE = 40_000  # entries of a matrix up to which a dense product beats the overhead of a sparse one


@dataclass(frozen=True, eq=False, repr=False)
class CompiledConstraints:
    """Constraints ready for training: cells, sparse coefficients, slacks. Made by `compile_constraints`.

    Constraint j of J is ``values(histogram)[j] <= bounds[j]``. Q is `n_cells`, K is `n_classes`; a histogram H is
    Q x K, and ``H[q, k]`` counts the rows of cell q that are predicted class k (softly or hard). Everything here
    depends on declarations only, not on rows. `declared` holds the constraints after expansion of `families` and
    removal of duplicates (the tightest bound stays), `subsets` the S distinct subsets that they read.
    `groupless` are declared families that gave no constraint, because the domain has no groups for them.
    """

    domain: Domain
    declared: tuple[Constraint, ...]
    families: tuple[Family | None, ...]
    bounds: Floats
    coefficients: Any
    terms: Terms
    subsets: tuple[Predicate, ...]
    index_sets: tuple[Subset, ...]
    cell_map: CellMap
    groupless: tuple[Family, ...] = ()

    def __len__(self) -> int:
        return len(self.bounds)

    def __repr__(self) -> str:
        size = f"{len(self)} constraints, {self.n_cells} cells, {self.n_classes} classes"
        return f"<{type(self).__name__}: {size}: {list_values(self.names, most=3)}>"

    @property
    def n_cells(self) -> int:
        """Number of cells, Q."""
        return self.cell_map.n_cells

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
        """The bounded quantities: a constraint and its counterpart on the other side are one item."""
        return group_bounds(self.declared, self.families)

    @property
    def cell_names(self) -> tuple[str, ...]:
        """What the rows of each cell have in common."""
        return self.cell_map.names

    @cached_property
    def signs(self) -> Floats:
        """1 for an upper bound, -1 for a lower bound, as declared."""
        return np.array([constraint.sign for constraint in self.declared])

    @cached_property
    def _constants(self) -> Floats:
        return np.array([constraint.expression.constant for constraint in self.declared])

    def reached(self, values: Floats) -> Floats:
        """Return the declared left-hand sides for values of the normal form.

        ``rate(1) >= 0.2`` is kept as ``-rate(1) <= -0.2``; a report shows the rate and 0.2.
        """
        return self._constants + self.signs * values

    def code_cells(self, label_codes: Any, columns: Mapping[str, Any], *, coded: bool = False) -> Codes:
        """Return the cell of each row, -1 for rows in no cell, in the smallest integer type.

        A row is in no cell if its label is not among the classes, or if the domain is not open (`other`) and the
        row's value of a column that constraints read is undeclared. The cell of a row depends on that row
        only, and no value of a row raises an error.

        Parameters
        ----------
        label_codes : (n,) integers
            Positions of the true labels in ``domain.classes``, -1 for other labels; see `Domain.code_labels`.
        columns : mapping of name to (n,) array-like
            The rows' values, or with `coded` results of `Domain.code_column`; columns that no constraint reads
            may be missing and are never read.
        """
        return self.cell_map.code_cells(label_codes, columns, coded=coded)

    def cells(self, label_codes: Any, columns: Mapping[str, Any]) -> Codes:
        """Return `code_cells`, and raise if a row is in no cell. Not for private rows."""
        return self.cell_map.cells(label_codes, columns)

    def histogram(self, cells: Any, predictions: Any) -> Floats:
        """Return the exact Q x K histogram of predictions. It is private: release it only with noise.

        `predictions` are (n,) codes of classes or (n, K) soft predictions. A row adds nothing if its cell or code
        is out of range, or if a soft prediction is not finite.
        """
        cells, predictions = np.asarray(cells), np.asarray(predictions)
        if cells.ndim != 1 or len(cells) != len(predictions):
            raise InvalidInput(
                f"predictions must have one row per cell entry: {len(predictions)} against {cells.size}"
            )
        shape = self.n_cells, self.n_classes
        hard = predictions.ndim == 1 and predictions.dtype.kind in "iu"
        if not hard and (predictions.ndim != 2 or predictions.shape[1] != shape[1]):
            raise InvalidType(f"predictions must be class codes or a table with {shape[1]} columns")
        inside = (cells >= 0) & (cells < shape[0])
        if hard:
            inside &= (predictions >= 0) & (predictions < shape[1])
        else:
            inside &= np.isfinite(predictions).all(axis=1)
        if not inside.all():
            cells, predictions = cells[inside], predictions[inside]
        if hard:
            flat = np.bincount(cells.astype(np.int64) * shape[1] + predictions, minlength=shape[0] * shape[1])
            return flat.reshape(shape).astype(np.float64)
        columns = [np.bincount(cells, predictions[:, k], minlength=shape[0]) for k in range(shape[1])]
        return np.stack(columns, axis=1).astype(np.float64)

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

    def value_noise(
        self, histogram: Any, cell_totals: Floats | None, noise: float, *, floor: float = 1.0
    ) -> Floats:
        """Return the (J,) standard deviations of `values` if each count has noise and denominators are exact."""
        below = np.maximum(self.denominators(histogram, cell_totals), floor)
        cells = np.array([subset.size(self.n_cells) for subset in self.index_sets], dtype=np.float64)
        variances: Floats = self._squares @ (np.square(noise / below) * cells[self.terms.numerator])
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
        """Return the (J,) left-hand sides from a (noisy) histogram.

        Parameters
        ----------
        histogram : (Q, K) array
        cell_totals : (Q,) array, optional
            Better estimates of the number of rows per cell than the histogram's row sums.
        floor : float
            Smallest denominator, in rows; for exact counts a tiny one gives exact rates.
        clamp : bool
            Clip each rate to [0, 1] first.
        shrink : bool
            Fill denominators up to the floor with rows that are predicted as all rows are, so that subsets below
            the floor show no gap. Otherwise they show a rate near 0.
        """
        if not len(self.terms):
            return np.zeros(len(self))
        rates, below = self._rates(histogram, cell_totals, floor, clamp=False)
        if shrink:
            missing = 1.0 - np.maximum(self.denominators(histogram, cell_totals), 0.0) / below
            rates = rates + missing * self._overall_rates(histogram, cell_totals)
        return self._a @ (np.clip(rates, 0.0, 1.0) if clamp else rates)  # type: ignore[no-any-return]

    def _overall_rates(self, histogram: Any, cell_totals: Floats | None) -> Floats:
        """Return the rate of each term if all rows were predicted alike: its class's share, or a share of rows."""
        table = self._flat(histogram).reshape(self.n_cells, -1)
        totals = table.sum(axis=1) if cell_totals is None else cell_totals
        classes = np.clip(table.sum(axis=0) / max(float(totals.sum()), _SMALLEST), 0.0, 1.0)
        sizes = np.maximum(self._sizes.of(totals), _SMALLEST)
        rows = np.clip(sizes[self.terms.numerator] / sizes[self.terms.denominator], 0.0, 1.0)
        return np.where(self.terms.ratio, rows, rows * classes[self.terms.klass])

    def _rates(
        self, histogram: Any, cell_totals: Floats | None, floor: float, clamp: bool
    ) -> tuple[Floats, Floats]:
        """Return the rates of the terms and their denominators."""
        below = np.maximum(self.denominators(histogram, cell_totals), max(floor, _SMALLEST))
        with np.errstate(over="ignore"):  # of a count beyond 1e296 rows, clamped below
            rates = self._numerators.of(self._flat(histogram)) / below
        return (np.clip(rates, 0.0, 1.0) if clamp else rates), below

    def value_and_std(
        self,
        histogram: Any,
        noise_std: float | Floats,
        cell_totals: Floats | None = None,
        *,
        floor: float = 1.0,
    ) -> tuple[Floats, Floats]:
        """Return the (J,) values and their standard deviations under independent noise on the histogram.

        They follow from the gradient of each value in the histogram's entries (delta method), and are accurate
        while the noise of each denominator is small against it. `noise_std` is that of each entry: with
        ``sqrt(max(H, 0) + sigma**2)``, which includes the sampling of the rows, the values estimate those of the
        population. Given `cell_totals` are taken as exact.
        """
        if not len(self.terms):
            return np.zeros(len(self)), np.zeros(len(self))
        shape = self.n_cells, self.n_classes
        variance = np.square(np.broadcast_to(np.asarray(noise_std, dtype=np.float64), shape))
        rates, denominator = self._rates(histogram, cell_totals, floor, clamp=True)
        above, below = self._numerators, self._all_denominators
        moving = rates if cell_totals is None else rates * self.terms.ratio  # denominators that vary
        table = sp.csr_array(self.coefficients) @ sp.diags_array(1.0 / denominator)
        # an entry of the gradient is a listed part plus, for subsets given as "all but", a part per class
        moved = sp.csr_array(table @ (above.listed - sp.diags_array(moving) @ below.listed))
        everywhere = (table @ (above.per_class - sp.diags_array(moving) @ below.per_class)).toarray()
        by_class = np.zeros((*shape, shape[1]))
        by_class[:, np.arange(shape[1]), np.arange(shape[1])] = variance
        total = moved.power(2) @ variance.reshape(-1)
        total += 2.0 * np.sum(everywhere * (moved @ by_class.reshape(-1, shape[1])), axis=1)
        total += np.square(everywhere) @ variance.sum(axis=0)
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
        if not len(self.terms):
            return np.zeros(shape)
        amount = self._a_t @ multipliers
        if not self._has_ratio:
            below = np.maximum(self.denominators(histogram, cell_totals), max(floor, _SMALLEST))
            return self._numerators.spread(amount / below).reshape(shape)
        rates, below = self._rates(histogram, cell_totals, floor, clamp)
        amount = amount / np.where(self.terms.ratio, np.maximum(below, ratio_floor), below)
        fixed = self._numerators.spread(amount)
        return (fixed - self._ratio_denominators.spread((amount * rates)[self.terms.ratio])).reshape(shape)

    def _flat(self, histogram: Any) -> Floats:
        table: Floats = np.asarray(histogram, dtype=np.float64)
        if table.shape != (self.n_cells, self.n_classes):
            raise InvalidInput(
                f"histogram must be {self.n_cells} x {self.n_classes}, got shape {table.shape}"
            )
        return table.reshape(-1)

    @cached_property
    def ratios(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the J constraints have a ratio, whose denominator depends on the model."""
        return np.asarray(self._squares @ self.terms.ratio.astype(np.float64) > 0)

    @cached_property
    def _has_ratio(self) -> bool:
        return bool(self.terms.ratio.any())

    @cached_property
    def _sizes(self) -> _Sums:
        every = np.arange(len(self.index_sets))
        return _Sums(self.index_sets, every, np.full(len(every), -1), (self.n_cells, 1))

    @cached_property
    def _numerators(self) -> _Sums:
        return self._sums(self.terms.numerator, self.terms.klass)

    @cached_property
    def _ratio_denominators(self) -> _Sums:
        ratio = self.terms.ratio
        return self._sums(self.terms.denominator[ratio], self.terms.klass[ratio])

    @cached_property
    def _all_denominators(self) -> _Sums:
        return self._sums(self.terms.denominator, np.where(self.terms.ratio, self.terms.klass, -1))

    def _sums(self, subsets: Ints, classes: Ints) -> _Sums:
        return _Sums(self.index_sets, subsets, classes, (self.n_cells, self.n_classes))

    @cached_property
    def _a(self) -> Any:
        small = self.coefficients.shape[0] * self.coefficients.shape[1] <= _DENSE
        return self.coefficients.toarray() if small else self.coefficients

    @cached_property
    def _a_t(self) -> Any:
        # its own copy by rows of the transpose: the product runs in every step
        return np.ascontiguousarray(self._a.T) if isinstance(self._a, np.ndarray) else sp.csr_array(self._a.T)

    @cached_property
    def leverage(self) -> Floats:
        """The largest change of each value: the sum of the absolute coefficients."""
        total: Floats = abs(sp.csr_array(self.coefficients)) @ np.ones(len(self.terms))
        return total

    @cached_property
    def _squares(self) -> Any:
        return sp.csr_array(self.coefficients).power(2)
