"""Public grids: which cell of a column a value falls into.

A grid depends on declared or privately estimated facts only. Coding is a total function of one cell of the
table: missing values, entries of the wrong kind, infinities and values outside the bounds all have a code.

A continuous column has equal-width cells and, on large tables, also logarithmic cells of the distance from
the base value (0 if the bounds contain it, otherwise the lower bound), with a cell of its own for the base
value. A common refinement of both are the *bins*: a row is stored as one bin number per column.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from ratewise.data.cells import DEFAULT_FORMAT, MISSING, UNPARSABLE, CellFormat, code_cells, parse_number

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

EQUAL_CELLS: Final = 16
_DECADES: Final = 4
LOG_CELLS: Final = _DECADES * EQUAL_CELLS  # a decade is divided as the range is
REFINEMENT: Final = 8  # what is made finer is made eight times finer
_BINS: Final = REFINEMENT * EQUAL_CELLS  # equal-width bins at least, so that a number is known well enough from its bin
_LOOKUP_CELLS: Final = 4096  # speed only

CONTINUOUS: Final = "continuous"
CATEGORICAL: Final = "categorical"
UNUSED: Final = "unused"


@dataclass(frozen=True, eq=False)
class _Lookup:
    """The place of a number among edges, as `numpy.searchsorted` finds it, in a third of the time.

    The range is divided into equal cells; a number x is in cell ``floor((x - lower) * scale)``. Within most of them there
    is at most one `edge`, and `first` edges below it, so one comparison decides; the others, where `first` is -1, are
    searched. Cells are taken a billionth wider than they are, which covers rounding.
    """

    edges: Floats
    lower: float
    scale: float
    first: npt.NDArray[np.int32]
    edge: Floats

    @classmethod
    def of(cls, edges: Floats, lower: float, upper: float) -> _Lookup:
        """Return the lookup of sorted edges between two bounds."""
        width = upper - lower
        ends = lower + width * (np.arange(_LOOKUP_CELLS + 2) / _LOOKUP_CELLS)
        first = np.searchsorted(edges, ends[:-1] - 1e-9 * width, side="right")
        last = np.searchsorted(edges, ends[1:] + 1e-9 * width, side="right")
        scale = _LOOKUP_CELLS / width
        if not scale < math.inf:  # the range is too narrow to be divided
            return cls(edges, lower, 0.0, np.full(1, -1, np.int32), np.full(1, math.inf))
        several = last - first > 1
        edge = np.where(several, math.inf, np.append(edges, math.inf)[first])
        return cls(edges, lower, scale, np.where(several, -1, first).astype(np.int32), edge)

    def places(self, numbers: Floats) -> npt.NDArray[np.int32]:
        """Return the number of edges that are at most each number, which must lie within the bounds."""
        cells = ((numbers - self.lower) * self.scale).astype(np.intp)
        found = self.first.take(cells)
        searched = np.flatnonzero(found < 0)
        found += self.edge.take(cells) <= numbers
        found[searched] = np.searchsorted(self.edges, numbers[searched], side="right")
        return found


class Grid(ABC):
    """Bins of one column, named `name`; `families` are the cells, of each bin, in which rows are counted, and their number.

    The cell -1 is none: a row adds its weight to one count of each family at most.
    """

    kind: ClassVar[str]
    name: str
    n_bins: int
    missing_bin: int
    other_bin: int
    families: tuple[tuple[Ints, int], ...]

    @abstractmethod
    def code(self, column: Any) -> npt.NDArray[Any]:
        """Return the bin of every entry."""

    @property
    def norm_squared(self) -> int:
        """Squared L2 norm of what one row adds to the column's histograms."""
        return len(self.families)

    @property
    def n_counts(self) -> int:
        """Number of counts of the column in the histogram release."""
        return sum(count for _, count in self.families)

    def histogram(self, bin_weights: Floats) -> Floats:
        """Return the histograms, one after the other, from the total weight of the rows of each bin; **private**."""
        found = [np.zeros(0)]
        for cells, count in self.families:
            kept = cells >= 0
            found.append(np.bincount(cells[kept], bin_weights[kept], minlength=count).astype(np.float64))
        return np.concatenate(found)


@dataclass(frozen=True)
class ContinuousGrid(Grid):
    """Bins of a continuous column between public bounds.

    Values outside the finite bounds `lower` and `upper` are moved to the nearer one, and text cells are read by
    `cell_format`. There are `equal_cells` equal-width cells, and `log_cells` logarithmic cells on either side of the
    `base`; 0 for none. The first family has two more cells, for missing values and for entries that are not numbers;
    the second has a cell 0 for the base value. `edges` are the inner edges of the bins, which are numbered from left to
    right; after these `n_intervals` bins come those of the base value, of missing values and of entries that are not
    numbers. `representatives` are midpoints of bins, the base value, and NaN for the last two.
    """

    kind = CONTINUOUS
    name: str
    lower: float
    upper: float
    cell_format: CellFormat = DEFAULT_FORMAT
    equal_cells: int = EQUAL_CELLS
    log_cells: int = LOG_CELLS
    edges: Floats = field(init=False, repr=False, compare=False)
    points: Floats = field(init=False, repr=False, compare=False)  # the edges, with the bounds
    representatives: Floats = field(init=False, repr=False, compare=False)
    lookup: _Lookup = field(init=False, repr=False, compare=False)
    n_intervals: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[str, Any] = {"edges": self._edges()}
        found["lookup"] = _Lookup.of(found["edges"], self.lower, self.upper)
        count = found["n_intervals"] = len(found["edges"]) + 1
        found |= {"n_bins": count + 3, "missing_bin": count + 1, "other_bin": count + 2}
        points = found["points"] = np.concatenate([[self.lower], found["edges"], [self.upper]])
        middles = (points[:-1] + points[1:]) / 2.0
        found["representatives"] = np.concatenate([middles, [self.base, np.nan, np.nan]])
        places = (found["representatives"][:-2] - self.lower) / (self.upper - self.lower)
        cells = np.floor(places * self.equal_cells).astype(np.intp)
        cells = np.clip(cells, 0, self.equal_cells - 1)
        families = [(np.append(cells, [self.equal_cells, self.equal_cells + 1]), self.equal_cells + 2)]
        if self.log_cells:
            families.append((self._log_cells(middles - self.base), 2 * self.log_cells + 1))
        vars(self).update(found, families=tuple(families))  # the class is frozen

    @property
    def base(self) -> float:
        """The value that logarithmic cells are centred on."""
        return 0.0 if self.lower <= 0.0 <= self.upper else self.lower

    @property
    def _reach(self) -> float:
        return max(self.upper - self.base, self.base - self.lower)

    def _edges(self) -> Floats:
        width = self.upper - self.lower
        equal = self.lower + width * (np.arange(1, self.equal_cells) / self.equal_cells)
        fine = self.lower + width * (np.arange(1, _BINS) / _BINS)
        steps = self._reach * 10.0 ** (-_DECADES * (1.0 - np.arange(self.log_cells) / max(self.log_cells, 1)))
        edges = np.unique(np.concatenate([equal, fine, [self.base], self.base + steps, self.base - steps]))
        return np.asarray(edges[(edges > self.lower) & (edges < self.upper)])

    def _log_cells(self, distance: Floats) -> Ints:
        """Return the logarithmic cells of bins, given the distance of their middles from the base value."""
        with np.errstate(divide="ignore"):
            position = 1.0 + np.log10(np.abs(distance) / self._reach) / _DECADES
        cells = np.clip(np.floor(position * self.log_cells), 0, self.log_cells - 1).astype(np.intp) + 1
        cells[distance < 0] += self.log_cells
        return np.append(cells, [0, -1, -1])

    def code(self, column: Any) -> npt.NDArray[np.int32]:
        """Return the bin of every entry."""
        plain = type(column) is np.ndarray and column.dtype in (np.float32, np.float64)  # others may have a mask
        if plain and not self.cell_format.missing:
            return self.code_numbers(column)  # the same bins, in less time
        parsed = parse_number(column, self.cell_format)
        bins = self.code_numbers(parsed.values)
        bins[parsed.codes == MISSING] = self.missing_bin
        bins[parsed.codes == UNPARSABLE] = self.other_bin
        return bins

    def code_numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the bin of every number; NaN is missing."""
        numbers = np.array(values, dtype=np.float64)
        missing = np.isnan(numbers)
        numbers[missing] = self.lower
        np.clip(numbers, self.lower, self.upper, out=numbers)
        bins = self.lookup.places(numbers)
        bins[numbers == self.base] = self.n_intervals
        bins[missing] = self.missing_bin
        return bins


@dataclass(frozen=True)
class CategoricalGrid(Grid):
    """Codes of a categorical column with public values; after them come other and missing values."""

    kind = CATEGORICAL
    name: str
    values: tuple[Any, ...]
    cell_format: CellFormat = DEFAULT_FORMAT

    def __post_init__(self) -> None:
        count = len(self.values)
        families = ((np.arange(count + 2), count + 2),)
        vars(self).update(n_bins=count + 2, other_bin=count, missing_bin=count + 1, families=families)

    def code(self, column: Any) -> Ints:
        """Return the code of every entry."""
        codes = code_cells(column, self.values, self.cell_format)
        codes[codes == -1] = self.other_bin
        codes[codes == -2] = self.missing_bin
        return codes


@dataclass(frozen=True)
class UnusedGrid(Grid):
    """A column that gets no weight, such as free text or an identifier; every row has bin 0."""

    kind = UNUSED
    n_bins, families = 1, ()
    name: str
    reason: str

    def code(self, column: Any) -> npt.NDArray[np.uint16]:
        """Return zeros."""
        return np.zeros(len(column), dtype=np.uint16)


# Cells of the size of numbers, for columns without declared bounds: halves of a decade from 1e-6 to 1e12 for either
# sign, between them a cell of 0, and after the numbers the cells of text and of missing values. Amounts and times reach
# twice as many decades above 1 as measurements reach below it.
_STEPS: Final = 2  # cells of a decade
_REACH: Final = 6  # decades below 1
_SIDE: Final = 3 * _REACH * _STEPS  # cells of one sign
TEXT_RANGE: Final = 2 * _SIDE + 1
N_RANGES: Final = 2 * _SIDE + 3


def code_ranges(values: Floats, codes: npt.NDArray[np.uint8]) -> Ints:
    """Return the range cell of parsed entries, ascending with their value."""
    size = np.abs(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.floor((np.log10(size) + _REACH) * _STEPS)
    steps = np.where(size > 0, np.clip(np.nan_to_num(steps, posinf=1e9, neginf=-1e9), 0, _SIDE - 1), 0)
    cells = np.where(values > 0, _SIDE + 1 + steps, _SIDE - 1 - steps)
    cells[size == 0] = _SIDE
    cells[codes == UNPARSABLE] = TEXT_RANGE
    cells[codes == MISSING] = TEXT_RANGE + 1
    return cells.astype(np.intp)


def range_of(cell: int) -> tuple[float, float]:
    """Return the lowest and highest number of a range cell of numbers."""
    if cell == _SIDE:
        return 0.0, 0.0
    step = abs(cell - _SIDE) - 1
    low, high = (10.0 ** ((step + shift) / _STEPS - _REACH) for shift in (0, 1))
    return (low, high) if cell > _SIDE else (-high, -low)


def round_out(lower: float, upper: float) -> tuple[float, float]:
    """Return bounds that differ: equal ones are moved apart by half a unit, as far as numbers go."""
    if lower < upper:
        return lower, upper
    half, most = 0.5 * max(1.0, math.fabs(lower)), sys.float_info.max
    return max(lower - half, -most), min(upper + half, most)
