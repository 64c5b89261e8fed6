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
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise.constraints.domain import Codes, Domain, Interval, Numeric, by_chunks, list_values, show_value
from ratewise.constraints.predicates import Either, Member, Not, Predicate, Truth, Within
from ratewise.exceptions import InvalidInput, InvalidType

MAX_COMBINATIONS = 2_000_000
MAX_CELLS = 100_000
MAX_NONZEROS = 20_000_000

Indices = NDArray[np.int64]


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
        if other.others:
            return Subset(np.setdiff1d(self.listed, other.listed, assume_unique=True), False)
        return Subset(np.intersect1d(self.listed, other.listed, assume_unique=True), False)

    def size(self, universe: int) -> int:
        """Return the number of positions in the set."""
        return universe - len(self.listed) if self.others else len(self.listed)

    def members(self, universe: int) -> Indices:
        """Return all positions in the set, in order."""
        if not self.others:
            return self.listed
        return np.setdiff1d(np.arange(universe, dtype=np.int64), self.listed, assume_unique=True)

    def compact(self, universe: int) -> Subset:
        """Return the same set, listed by whichever side is smaller; equal sets come out equal."""
        if 2 * len(self.listed) < universe or (2 * len(self.listed) == universe and not self.others):
            return self
        unlisted = Subset(self.listed, True).members(universe)
        return Subset(unlisted, not self.others)


def group_equal(count: int, sets: Iterable[Indices]) -> tuple[NDArray[np.int32], int]:
    """Return a number for each of 0..count-1, equal exactly for positions that lie in the same sets."""
    sets = list(sets)
    sizes = np.fromiter(map(len, sets), dtype=np.int64, count=len(sets))
    members = np.concatenate(sets) if sets else np.empty(0, dtype=np.int64)
    owners = np.repeat(np.arange(len(sets), dtype=np.int32), sizes)
    order = np.argsort(members, kind="stable")  # stable: each position lists its sets in increasing order
    owners = owners[order]
    ends = np.cumsum(np.bincount(members, minlength=count)).tolist()
    seen: dict[bytes, int] = {}
    numbers = np.empty(count, dtype=np.int32)
    start = 0
    for position, end in enumerate(ends):
        numbers[position] = seen.setdefault(owners[start:end].tobytes(), len(seen))
        start = end
    return numbers, len(seen)


@dataclass(frozen=True, eq=False)
class Axis:
    """One column that the constraints read (column None: the true label), cut into blocks.

    `block_of` gives the block of each value, or of each piece of the line between thresholds; with `other`
    its last entry is the block of undeclared and missing values.
    """

    column: str | None
    values: tuple[Any, ...] | None
    thresholds: NDArray[np.float64]
    block_of: NDArray[np.int32]
    blocks: int
    leaf_blocks: Mapping[Predicate, Subset]
    other: bool

    @classmethod
    def build(cls, column: str | None, leaves: Sequence[Member | Within], domain: Domain) -> Axis:
        """Merge the values of a column that none of the conditions separates."""
        declared = domain.values(column)
        values = None if isinstance(declared, Numeric) else declared
        spans = [span for leaf in leaves if isinstance(leaf, Within) for span in leaf.intervals]
        ends = {end for span in spans for end in (span.low, span.high) if math.isfinite(end)}
        thresholds = np.array(sorted(ends) if values is None else [], dtype=np.float64)
        other = domain.other and column is not None
        pieces = (len(thresholds) + 1 if values is None else len(values)) + other
        codes = [_leaf_codes(leaf, domain, values, thresholds) for leaf in leaves]
        block_of, blocks = group_equal(pieces, codes)
        merged: dict[Predicate, Subset] = {}
        for leaf, inside in zip(leaves, codes, strict=True):
            chosen = np.zeros(blocks, dtype=bool)
            chosen[block_of[inside]] = True
            negated = isinstance(leaf, Member) and leaf.negated
            merged[leaf] = Subset(np.flatnonzero(chosen), negated).compact(blocks)
        return cls(column, values, thresholds, block_of, blocks, merged, other)

    def codes(self, coded: Codes) -> tuple[Codes, NDArray[np.bool_] | None]:
        """Return the block of each row from its code, and which rows are in no block (None: none).

        `coded` is what `Domain.code_column` returns, or for the label axis codes in 0..K-1.
        """
        if self.values is None:
            blocks = by_chunks(coded, self.blocks, self._blocks_of_numbers)
            return blocks, None if self.other else np.isnan(coded)
        # the code after the last is that of undeclared values, which have a block only with `other`
        blocks = by_chunks(coded, self.blocks, np.append(self.block_of, 0).__getitem__)
        return blocks, None if self.column is None or self.other else coded == len(self.block_of)

    def _blocks_of_numbers(self, numbers: NDArray[np.float64]) -> NDArray[np.int32]:
        missing = np.isnan(numbers)
        pieces = np.searchsorted(self.thresholds, np.where(missing, 0.0, numbers), side="right")
        if self.other:
            pieces[missing] = len(self.block_of) - 1
        return self.block_of[pieces]

    def describe(self, blocks: set[int]) -> str:
        """Return the condition that a row's block is one of `blocks`; empty if all blocks are."""
        if len(blocks) == self.blocks:
            return ""
        inside = np.flatnonzero(np.isin(self.block_of, list(blocks)))
        unknown = self.other and len(inside) > 0 and inside[-1] == len(self.block_of) - 1
        column = "label" if self.column is None else self.column
        if self.values is None:
            spans = [span.describe(column) for span in self._spans(inside[:-1] if unknown else inside)]
            return " | ".join([*spans, f"{column} unknown"] if unknown else spans)
        if unknown:  # the values that are not inside: other values than the declared ones have no list
            inside = np.flatnonzero(~np.isin(self.block_of, list(blocks)))
        names = [show_value(self.values[code]) for code in inside[:6]]
        if len(inside) == 1:
            return f"{column}{'!=' if unknown else '='}{names[0]}"
        listed = f"{{{', '.join(names)}{', ...' if len(inside) > 6 else ''}}}"
        return f"{column} {'not in' if unknown else 'in'} {listed}"

    def _spans(self, pieces: NDArray[np.int64]) -> list[Interval]:
        ends = [-math.inf, *self.thresholds.tolist(), math.inf]
        runs = np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1) if len(pieces) else []
        return [Interval(ends[run[0]], ends[run[-1] + 1]) for run in runs]


@dataclass(frozen=True, eq=False)
class CellMap:
    """Rows to cells: the axes, and the cell of each combination of their blocks."""

    domain: Domain
    axes: tuple[Axis, ...]
    cell_of: NDArray[np.int32]
    n_cells: int

    def code_cells(self, label_codes: Any, columns: Mapping[str, Any], *, coded: bool = False) -> Codes:
        """Return the cell of each row, -1 for rows that are in no cell; see `CompiledConstraints`."""
        labels = _label_vector(label_codes)
        outside = (labels < 0) | (labels >= len(self.domain.classes))
        # one more than there are combinations: the number of blocks of a lone axis must fit as well
        combination = np.zeros(len(labels), dtype=np.min_scalar_type(-len(self.cell_of) - 1))
        for axis in self.axes:
            if axis.column is None:
                column = np.where(outside, 0, labels) if outside.any() else labels
            else:
                column = _column(columns, axis.column)
                column = np.asarray(column) if coded else self.domain.code_column(axis.column, column)
            if len(column) != len(labels):
                raise InvalidInput(
                    f"column {axis.column!r} has {len(column)} rows, but there are {len(labels)} labels"
                )
            blocks, undeclared = axis.codes(column)
            if undeclared is not None:
                outside |= undeclared
            combination *= combination.dtype.type(axis.blocks)
            combination += blocks
        cells = by_chunks(combination, self.n_cells, self.cell_of.__getitem__)
        cells[outside] = -1
        return cells

    def cells(self, label_codes: Any, columns: Mapping[str, Any]) -> Codes:
        """Return `code_cells`, and raise if a row is in no cell. Not for private rows."""
        labels = _label_vector(label_codes)
        classes = len(self.domain.classes)
        if labels.size and not (labels.min() >= 0 and labels.max() < classes):
            raise InvalidInput(f"label_codes must lie in 0..{classes - 1}, the positions of the classes")
        read: dict[str, Any] = {}
        for name in (axis.column for axis in self.axes if axis.column is not None):
            values = _column(columns, name)
            read[name] = self.domain.code_column(name, values)
            if self.domain.other:
                continue
            if not isinstance(self.domain.values(name), Numeric):
                read[name] = self.domain.column_codes(name, values)
            elif np.isnan(read[name]).any():
                raise InvalidInput(
                    f"column {name!r} is numeric, by its declaration or because constraints name intervals "
                    "of it, but holds missing values, infinity or entries that are not numbers; convert it "
                    "(dates into days), or drop those rows"
                )
        return self.code_cells(labels, read, coded=True)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the rows of each cell have in common."""
        order = np.argsort(self.cell_of, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(self.cell_of, minlength=self.n_cells))[:-1])
        return tuple(self._describe(part) for part in parts)

    def _describe(self, combinations: Indices) -> str:
        coordinates = np.unravel_index(combinations, tuple(axis.blocks for axis in self.axes) or (1,))
        blocks = [set(coordinate.tolist()) for coordinate in coordinates]
        if math.prod(map(len, blocks)) == len(combinations):
            conditions = [axis.describe(chosen) for axis, chosen in zip(self.axes, blocks, strict=False)]
            return " & ".join(text for text in conditions if text) or "everyone"
        return f"{self._describe(combinations[:1])} or {len(combinations) - 1} more combinations"


def build_cells(predicates: Sequence[Predicate], domain: Domain) -> tuple[CellMap, list[Subset]]:
    """Return the smallest partition that holds every predicate, and each predicate as a set of cells."""
    axes = _axes(predicates, domain)
    shape = tuple(axis.blocks for axis in axes)
    universe = math.prod(shape)
    if universe > MAX_COMBINATIONS:
        raise InvalidInput(_too_many("combinations of values", universe, MAX_COMBINATIONS, axes))
    place = _Evaluator(axes, shape)
    sets: list[Subset] = []
    listed = 0
    for predicate in predicates:
        sets.append(place.subset(predicate))
        listed += len(sets[-1].listed)
        if listed > MAX_NONZEROS:
            raise InvalidInput(too_dense(listed))
    cell_of, n_cells = group_equal(universe, (subset.listed for subset in sets))
    if n_cells > MAX_CELLS:
        raise InvalidInput(_too_many("cells", n_cells, MAX_CELLS, axes))
    if n_cells < universe:
        sets = [Subset(np.unique(cell_of[subset.listed]).astype(np.int64), subset.others) for subset in sets]
    return CellMap(domain, axes, cell_of, n_cells), [subset.compact(n_cells) for subset in sets]


class _Evaluator:
    """Evaluates predicates on the crossed blocks of the axes that are read."""

    def __init__(self, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> None:
        self._axes, self._shape = axes, shape
        self._position = {axis.column: number for number, axis in enumerate(axes)}

    def subset(self, predicate: Predicate) -> Subset:
        match predicate:
            case Truth():
                return Subset(np.empty(0, dtype=np.int64), predicate.value)
            case Member() | Within():
                chosen = self._blocks(predicate)
                return Subset(self._box({self._position[predicate.column]: chosen.listed}), chosen.others)
            case Not():
                return ~self.subset(predicate.parts[0])
            case Either():
                return ~self._all([~part for part in predicate.parts])
        return self._all(predicate.parts)

    def _blocks(self, leaf: Member | Within) -> Subset:
        known = self._axes[self._position[leaf.column]].leaf_blocks
        # the denial of a condition is met where an "or" is read as a denied "and"
        return known[leaf] if leaf in known else ~known[~leaf]

    def _all(self, parts: Iterable[Predicate]) -> Subset:
        """Intersect; conditions on single columns first and together, as one box of blocks."""
        box: dict[int, Indices] = {}
        others = []
        for part in parts:
            if not isinstance(part, Member | Within):
                others.append(part)
                continue
            number = self._position[part.column]
            inside = self._blocks(part).members(self._shape[number])
            box[number] = np.intersect1d(box.get(number, inside), inside, assume_unique=True)
        result = Subset(self._box(box) if box else np.empty(0, dtype=np.int64), not box)
        for part in others:
            result = result & self.subset(part)
        return result.compact(math.prod(self._shape))

    def _box(self, chosen: Mapping[int, Indices]) -> Indices:
        indices = np.zeros(1, dtype=np.int64)
        for number, blocks in enumerate(self._shape):
            inside = chosen[number] if number in chosen else np.arange(blocks)
            indices = (indices[:, None] * blocks + inside).ravel()
        return indices


def _axes(predicates: Iterable[Predicate], domain: Domain) -> tuple[Axis, ...]:
    leaves: dict[str | None, dict[Member | Within, None]] = {}
    for predicate in predicates:
        for leaf in predicate.leaves():
            leaves.setdefault(leaf.column, {})[leaf] = None
    order = [*domain.columns, None]  # declared order, the label last: cells of one group lie together
    unknown = next((column for column in leaves if column not in order), None)
    if unknown is not None:
        domain.values(unknown)  # raises, and lists the columns
    return tuple(Axis.build(column, list(leaves[column]), domain) for column in order if column in leaves)


def _leaf_codes(
    leaf: Member | Within, domain: Domain, values: tuple[Any, ...] | None, thresholds: NDArray[np.float64]
) -> Indices:
    """Return the values (or pieces of the line) that a condition names; of a negated one, those it denies."""
    if isinstance(leaf, Member):
        return np.array(sorted(domain.code(leaf.column, value) for value in leaf.values), dtype=np.int64)
    if values is not None and not all(isinstance(value, int | float) for value in values):
        listed = list_values(values)
        raise InvalidInput(
            f"column {leaf.column!r} is not numeric, so {leaf!r} has no meaning; its values: {listed}"
        )
    places = [-math.inf, *thresholds.tolist()] if values is None else values
    spans = leaf.intervals
    inside = [i for i, place in enumerate(places) if any(s.low <= place < s.high for s in spans)]
    return np.array(inside, dtype=np.int64)


def _label_vector(label_codes: Any) -> NDArray[Any]:
    codes = np.asarray(label_codes)
    if codes.ndim != 1 or codes.dtype.kind not in "iu":
        raise InvalidType(
            "label_codes must be a vector of integers; Domain.code_labels makes them from labels"
        )
    return codes


def _column(columns: Mapping[str, Any], name: str | None) -> Any:
    try:
        return columns[name]  # type: ignore[index]
    except (KeyError, TypeError):
        raise InvalidInput(f"column {name!r} is read by a constraint but was not given") from None


def too_dense(nonzeros: int) -> str:
    """Return the message for constraints that list more cells than can be handled."""
    return (
        f"the constraints list at least {nonzeros:,} cells in their subsets, more than {MAX_NONZEROS:,}; "
        "compare with versus='everyone', merge small groups, or constrain fewer classes"
    )


def _too_many(what: str, count: int, most: int, axes: Iterable[Axis]) -> str:
    sizes = ", ".join(
        f"{'the label' if axis.column is None else axis.column} ({axis.blocks})" for axis in axes
    )
    return (
        f"the constraints cut the domain into {count:,} {what}, more than {most:,}, by crossing {sizes}; "
        "constrain fewer columns at once, merge values into larger groups, or train with fewer families"
    )
