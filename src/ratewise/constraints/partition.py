"""The smallest partition of the rows into cells that the constraints need.

Every subset that some constraint reads is evaluated on the *public* domain, never on rows. First each
column's values are merged into blocks that no condition separates; then only the columns that are read are
crossed; then combinations that lie in exactly the same subsets become one cell. Two rows are in the same cell
if and only if they are in the same subsets.

Index sets are kept as sorted arrays with a flag "all but these", so that a thousand subsets of the kind
"everyone but group z" cost a thousand numbers and not a million.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ratewise.constraints.domain import Domain, Numeric, list_values
from ratewise.constraints.rates import Both, Either, Member, Predicate
from ratewise.exceptions import InvalidInput, InvalidType

MAX_COMBINATIONS = 2_000_000
MAX_CELLS = 100_000
MAX_NONZEROS = 20_000_000

Indices = NDArray[np.int64]
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Subset:
    """A set of positions in 0..n-1: the listed ones, or with `others` all but the listed ones."""

    listed: Indices
    others: bool

    def __invert__(self) -> Subset:
        return Subset(self.listed, not self.others)

    def __and__(self, other: Subset) -> Subset:
        if self.others and other.others:
            return Subset(np.union1d(self.listed, other.listed), True)
        if self.others:
            return other & self
        combine = np.setdiff1d if other.others else np.intersect1d
        return Subset(combine(self.listed, other.listed, assume_unique=True), False)

    def size(self, universe: int) -> int:
        """Return the number of positions in the set."""
        return universe - len(self.listed) if self.others else len(self.listed)

    def members(self, universe: int) -> Indices:
        """Return all positions in the set, in order."""
        return np.flatnonzero(self.mask(universe)) if self.others else self.listed

    def mask(self, universe: int) -> NDArray[np.bool_]:
        """Return which positions are in the set."""
        mask = np.full(universe, self.others)
        mask[self.listed] ^= True
        return mask

    def compact(self, universe: int) -> Subset:
        """Return the same set, listed by whichever side is smaller; equal sets come out equal."""
        if 2 * len(self.listed) < universe or (2 * len(self.listed) == universe and not self.others):
            return self
        return Subset(Subset(self.listed, True).members(universe), not self.others)


@dataclass(frozen=True, eq=False)
class Terms:
    """The distinct terms, as positions: numerator subset, class, denominator subset, and whether a ratio."""

    numerator: NDArray[np.int64]
    klass: NDArray[np.int64]
    denominator: NDArray[np.int64]
    ratio: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.klass)


def of_class(subsets: Any, klass: NDArray[np.int64], classes: int) -> Any:
    """Return rows over cells as rows over cells by classes, each about one class."""
    columns = subsets.indices * np.int64(classes) + np.repeat(klass, np.diff(subsets.indptr))
    shape = subsets.shape[0], subsets.shape[1] * classes
    return sp.csr_array((subsets.data, columns, subsets.indptr), shape=shape)


def group_equal(count: int, sets: Iterable[Indices]) -> tuple[NDArray[np.int32], int]:
    """Return a number for each of 0..count-1, equal exactly for positions that lie in the same sets."""
    sets = list(sets)
    members = np.concatenate([_NONE, *sets])
    owners = np.repeat(np.arange(len(sets), dtype=np.int32), [len(one) for one in sets])
    owners = owners[np.argsort(members, kind="stable")]  # a position lists its sets in increasing order
    ends = np.cumsum(np.bincount(members, minlength=count)).tolist()
    seen: dict[bytes, int] = {}
    parts = zip([0, *ends], ends, strict=False)
    numbers = [seen.setdefault(owners[start:end].tobytes(), len(seen)) for start, end in parts]
    return np.array(numbers, dtype=np.int32), len(seen)


@dataclass(frozen=True, eq=False)
class Axis:
    """One column that the constraints read (column None: the true label), cut into blocks.

    `block_of` gives the block of each value, or of each piece of the line between thresholds; with `other`
    its last entry is the block of undeclared and missing values. `values` is None for a numeric column.
    """

    column: str | None
    values: tuple[Any, ...] | None
    thresholds: NDArray[np.float64]
    block_of: NDArray[np.int32]
    blocks: int
    leaf_blocks: Mapping[Predicate, Subset]
    other: bool

    @classmethod
    def build(cls, column: str | None, leaves: Sequence[Member], domain: Domain) -> Axis:
        """Merge the values of a column that none of the conditions separates."""
        declared = domain.values(column)
        values = None if isinstance(declared, Numeric) else declared
        spans = [span for leaf in leaves if isinstance(leaf.values, tuple) for span in leaf.values]
        ends = {end for span in spans for end in (span.low, span.high) if math.isfinite(end)}
        thresholds = np.array(sorted(ends) if values is None else [], dtype=np.float64)
        places = (-math.inf, *thresholds.tolist()) if values is None else values
        other = domain.other and column is not None
        codes = [_leaf_codes(leaf, domain, values, places) for leaf in leaves]
        block_of, blocks = group_equal(len(places) + other, codes)
        merged: dict[Predicate, Subset] = {}
        for leaf, inside in zip(leaves, codes, strict=True):
            merged[leaf] = Subset(np.unique(block_of[inside]).astype(np.int64), leaf.negated).compact(blocks)
        return cls(column, values, thresholds, block_of, blocks, merged, other)

    def codes(self, coded: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the block of each row from its code or number (`Partition.code_cells`), and which rows are in none."""
        if self.values is None:
            unknown = np.isnan(coded)
            places = np.searchsorted(self.thresholds, np.where(unknown, 0.0, coded), side="right")
        else:
            unknown = (coded < 0) | (coded >= len(self.values))
            places = np.where(unknown, 0, coded)
        if not self.other:
            return self.block_of[places], unknown
        return self.block_of[np.where(unknown, len(self.block_of) - 1, places)], np.zeros(len(coded), dtype=bool)


def _leaf_codes(leaf: Member, domain: Domain, values: tuple[Any, ...] | None, places: tuple[Any, ...]) -> Indices:
    """Return the values (or pieces of the line) that a condition names; of a negated one, those it denies."""
    if not isinstance(leaf.values, tuple):
        return np.array(sorted(domain.code(leaf.column, value) for value in leaf.values), dtype=np.int64)
    if values is not None and not all(isinstance(value, int | float) for value in values):
        listed = list_values(values)
        raise InvalidInput(f"column {leaf.column!r} is not numeric, so {leaf!r} has no meaning; its values: {listed}")
    return np.flatnonzero([any(span.low <= place < span.high for span in leaf.values) for place in places])


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows to cells: the axes, and the cell of each combination of their blocks."""

    domain: Domain
    axes: tuple[Axis, ...]
    cell_of: NDArray[np.int32]
    n_cells: int

    def code_cells(self, label_codes: Any, columns: Mapping[str, Any]) -> NDArray[Any]:
        """Return the cell of each row, -1 for rows in no cell, in the smallest integer type.

        A row is in no cell if its label is not among the classes, or if the domain is not open (`other`) and the
        row's value of a column that constraints read is undeclared. The cell of a row depends on that row
        only, and no value of a row raises an error. `label_codes` are positions of the true labels in
        ``domain.classes``, and `columns` hold positions of the values of each column among the declared ones, others
        for undeclared values, or numbers of a numeric column, NaN for none (`ratewise.data.table.code_table`). Columns
        that no constraint reads may be missing.
        """
        labels = np.asarray(label_codes)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise InvalidType("label_codes must be a vector of integers; ratewise.data.table.code_table makes them")
        outside = (labels < 0) | (labels >= len(self.domain.classes))
        combination = np.zeros(len(labels), dtype=np.intp)
        for axis in self.axes:
            if axis.column is not None and axis.column not in columns:
                raise InvalidInput(f"column {axis.column!r} is read by a constraint but was not given")
            column = np.where(outside, 0, labels) if axis.column is None else np.asarray(columns[axis.column])
            if len(column) != len(labels):
                raise InvalidInput(f"column {axis.column!r} has {len(column)} rows, but there are {len(labels)} labels")
            blocks, undeclared = axis.codes(column)
            outside |= undeclared
            combination = combination * axis.blocks + blocks
        return np.where(outside, -1, self.cell_of[combination]).astype(np.min_scalar_type(-self.n_cells - 1))


def build_cells(predicates: Sequence[Predicate], domain: Domain) -> tuple[Partition, list[Subset]]:
    """Return the smallest partition that holds every predicate, and each predicate as a set of cells."""
    leaves: dict[str | None, dict[Member, None]] = {}
    for leaf in (leaf for predicate in predicates for leaf in predicate.leaves()):
        leaves.setdefault(leaf.column, {})[leaf] = None
    order = [*domain.columns, None]  # declared order, the label last: cells of one group lie together
    axes = tuple(Axis.build(column, list(leaves[column]), domain) for column in order if column in leaves)
    universe = math.prod(axis.blocks for axis in axes)
    if universe > MAX_COMBINATIONS:
        raise InvalidInput(_too_many("combinations of values", universe, MAX_COMBINATIONS, axes))
    sets: list[Subset] = []
    listed = 0
    for predicate in predicates:
        sets.append(_evaluate(predicate, axes).compact(universe))
        listed += len(sets[-1].listed)
        refuse_too_dense(listed)
    cell_of, n_cells = group_equal(universe, (subset.listed for subset in sets))
    if n_cells > MAX_CELLS:
        raise InvalidInput(_too_many("cells", n_cells, MAX_CELLS, axes))
    if n_cells < universe:
        sets = [Subset(np.unique(cell_of[subset.listed]).astype(np.int64), subset.others) for subset in sets]
    return Partition(domain, axes, cell_of, n_cells), [subset.compact(n_cells) for subset in sets]


def _evaluate(predicate: Predicate, axes: tuple[Axis, ...]) -> Subset:
    """Return the combinations of blocks in which a predicate holds."""
    match predicate:
        case Member():
            blocks = _blocks(predicate, axes)
            return Subset(_box({predicate.column: blocks.listed}, axes), blocks.others)
        case Both():
            return _intersect(predicate.parts, axes)
        case Either():
            return ~_intersect([~part for part in predicate.parts], axes)
    return ~_evaluate(predicate.parts[0], axes)


def _intersect(parts: Sequence[Predicate], axes: tuple[Axis, ...]) -> Subset:
    """Return where all parts hold; conditions on single columns first and together, as one box of blocks."""
    universe = {axis.column: axis.blocks for axis in axes}
    box: dict[str | None, Indices] = {}
    result = Subset(_NONE, True)
    for part in parts:
        if isinstance(part, Member):
            inside = _blocks(part, axes).members(universe[part.column])
            box[part.column] = np.intersect1d(box.get(part.column, inside), inside, assume_unique=True)
        else:
            result = result & _evaluate(part, axes)
    return Subset(_box(box, axes), False) & result if box else result


def _blocks(leaf: Member, axes: tuple[Axis, ...]) -> Subset:
    known = next(axis for axis in axes if axis.column == leaf.column).leaf_blocks
    # the denial of a condition is met where an "or" is read as a denied "and"
    return known[leaf] if leaf in known else ~known[~leaf]


def _box(chosen: Mapping[str | None, Indices], axes: tuple[Axis, ...]) -> Indices:
    """Return the combinations whose blocks are the chosen ones, any block for axes that are not mentioned."""
    indices = np.zeros(1, dtype=np.int64)
    for axis in axes:
        inside = chosen[axis.column] if axis.column in chosen else np.arange(axis.blocks)
        indices = (indices[:, None] * axis.blocks + inside).ravel()
    return indices


def refuse_too_dense(nonzeros: int) -> None:
    """Raise if constraints list more cells than can be handled."""
    if nonzeros > MAX_NONZEROS:
        raise InvalidInput(
            f"the constraints list at least {nonzeros:,} cells in their subsets, more than {MAX_NONZEROS:,}; "
            "compare with versus='everyone', merge small groups, or constrain fewer classes"
        )


def _too_many(what: str, count: int, most: int, axes: Iterable[Axis]) -> str:
    sizes = ", ".join(f"{'the label' if axis.column is None else axis.column} ({axis.blocks})" for axis in axes)
    return (
        f"the constraints cut the domain into {count:,} {what}, more than {most:,}, by crossing {sizes}; "
        "constrain fewer columns at once, merge values into larger groups, or train with fewer families"
    )
