"""Public grids: which cell of a column a value falls into.

A grid depends on declared or privately estimated facts only. Coding is a total function of one cell of the
table: missing values, entries of the wrong kind, infinities and values outside the bounds all have a code.

A continuous column has equal-width cells and, on large tables, also logarithmic cells of the distance from
the base value (0 if the bounds contain it, otherwise the lower bound), with a cell of its own for the base
value. A common refinement of both are the *bins*: a row is stored as one bin number per column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ratewise.data.cells import DEFAULT_FORMAT, MISSING, UNPARSABLE, CellFormat, code_cells, parse_number

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

EQUAL_CELLS: Final = 16
LOG_CELLS: Final = 64
_BINS: Final = 128  # equal-width bins at least, so that a number is known well enough from its bin
_DECADES: Final = 4.0
_LOOKUP_CELLS: Final = 4096  # speed only

CONTINUOUS: Final = "continuous"
CATEGORICAL: Final = "categorical"
UNUSED: Final = "unused"


@dataclass(frozen=True, eq=False)
class _Lookup:
    """The place of a number among edges, as `numpy.searchsorted` finds it, in a third of the time.

    The range is divided into equal cells. Within most of them there is at most one edge, so one comparison decides; the others
    are searched. Cells are taken a billionth wider than they are, which covers rounding.

    Attributes
    ----------
    edges : array
    lower, scale : float
        A number x is in cell ``floor((x - lower) * scale)``.
    first : array
        Number of edges below each cell; -1 if the cell has more than one edge.
    edge : array
        The edge that decides.
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


@dataclass(frozen=True)
class ContinuousGrid:
    """Bins of a continuous column between public bounds.

    Attributes
    ----------
    name : str
    lower, upper : float
        Finite bounds; values outside are moved to the nearer bound.
    cell_format : CellFormat
        How text cells are read as numbers.
    equal_cells, log_cells : int
        Number of equal-width cells, and of logarithmic cells on either side of the base value; 0 for none.
    edges : array
        Inner edges of the bins. Bins are numbered from left to right; after them come the base value, missing
        values and entries that are not numbers.
    """

    name: str
    lower: float
    upper: float
    cell_format: CellFormat = DEFAULT_FORMAT
    equal_cells: int = EQUAL_CELLS
    log_cells: int = LOG_CELLS
    edges: Floats = field(init=False, repr=False, compare=False)
    lookup: _Lookup = field(init=False, repr=False, compare=False)
    kind: str = field(default=CONTINUOUS, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", self._edges())
        object.__setattr__(self, "lookup", _Lookup.of(self.edges, self.lower, self.upper))

    @property
    def base(self) -> float:
        """The value that logarithmic cells are centred on."""
        return 0.0 if self.lower <= 0.0 <= self.upper else self.lower

    def _edges(self) -> Floats:
        width = self.upper - self.lower
        equal = self.lower + width * (np.arange(1, self.equal_cells) / self.equal_cells)
        fine = self.lower + width * (np.arange(1, _BINS) / _BINS)
        reach = max(self.upper - self.base, self.base - self.lower)
        steps = reach * 10.0 ** (-_DECADES * (1.0 - np.arange(self.log_cells) / max(self.log_cells, 1)))
        edges = np.unique(np.concatenate([equal, fine, [self.base], self.base + steps, self.base - steps]))
        return np.asarray(edges[(edges > self.lower) & (edges < self.upper)])

    @property
    def n_intervals(self) -> int:
        """Number of bins that are intervals."""
        return len(self.edges) + 1

    @property
    def n_bins(self) -> int:
        """Number of bins: intervals, base value, missing, not a number."""
        return self.n_intervals + 3

    @property
    def base_bin(self) -> int:
        """The bin of the base value."""
        return self.n_intervals

    @property
    def missing_bin(self) -> int:
        """The bin of missing values."""
        return self.n_intervals + 1

    @property
    def other_bin(self) -> int:
        """The bin of entries that are not numbers."""
        return self.n_intervals + 2

    def code(self, column: Any) -> npt.NDArray[np.int32]:
        """Return the bin of every entry."""
        stored = getattr(column, "dtype", None) if isinstance(column, np.ndarray) else None
        if stored in (np.float32, np.float64) and not self.cell_format.missing:
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
        bins[numbers == self.base] = self.base_bin
        bins[missing] = self.missing_bin
        return bins

    @property
    def representatives(self) -> Floats:
        """A value for every bin: midpoints, the base value, and NaN for the last two."""
        points = np.concatenate([[self.lower], self.edges, [self.upper]])
        return np.concatenate([(points[:-1] + points[1:]) / 2.0, [self.base, np.nan, np.nan]])

    @property
    def equal_cell_of_bin(self) -> Ints:
        """The equal-width cell of each bin; the last two cells are missing values and other entries."""
        width = (self.upper - self.lower) / self.equal_cells
        cells = np.floor((self.representatives[:-2] - self.lower) / width).astype(np.intp)
        cells = np.clip(cells, 0, self.equal_cells - 1)
        return np.concatenate([cells, [self.equal_cells, self.equal_cells + 1]])

    @property
    def n_equal_cells(self) -> int:
        """Number of equal-width cells, with those for missing values and other entries."""
        return self.equal_cells + 2

    @property
    def log_cell_of_bin(self) -> Ints:
        """The logarithmic cell of each bin, 0 for the base value, -1 for missing values and other entries."""
        reach = max(self.upper - self.base, self.base - self.lower)
        distance = self.representatives[: self.n_intervals] - self.base
        with np.errstate(divide="ignore"):
            position = 1.0 + np.log10(np.abs(distance) / reach) / _DECADES
        cells = np.clip(np.floor(position * self.log_cells), 0, self.log_cells - 1).astype(np.intp) + 1
        cells[distance < 0] += self.log_cells
        return np.concatenate([cells, [0, -1, -1]])

    @property
    def n_log_cells(self) -> int:
        """Number of logarithmic cells on both sides of the base value, and the base value."""
        return 2 * self.log_cells + 1

    @property
    def norm_squared(self) -> int:
        """Squared L2 norm of what one row adds to the column's histograms."""
        return 2 if self.log_cells else 1

    @property
    def n_counts(self) -> int:
        """Number of counts of the column in the histogram release."""
        return self.n_equal_cells + (self.n_log_cells if self.log_cells else 0)

    def histogram(self, bin_weights: Floats) -> Floats:
        """Return both histograms from the total weight of the rows of each bin; **private**."""
        equal = np.bincount(self.equal_cell_of_bin, bin_weights, minlength=self.n_equal_cells)
        if not self.log_cells:
            return np.asarray(equal, dtype=np.float64)
        cells = self.log_cell_of_bin
        kept = cells >= 0
        logarithmic = np.bincount(cells[kept], bin_weights[kept], minlength=self.n_log_cells)
        return np.concatenate([equal, logarithmic])


@dataclass(frozen=True)
class CategoricalGrid:
    """Codes of a categorical column with public values; after them come other and missing values."""

    name: str
    values: tuple[Any, ...]
    cell_format: CellFormat = DEFAULT_FORMAT
    kind: str = field(default=CATEGORICAL, init=False)

    @property
    def n_bins(self) -> int:
        """Number of values, with other and missing."""
        return len(self.values) + 2

    @property
    def other_bin(self) -> int:
        """The code of undeclared values."""
        return len(self.values)

    @property
    def missing_bin(self) -> int:
        """The code of missing values."""
        return len(self.values) + 1

    def code(self, column: Any) -> Ints:
        """Return the code of every entry."""
        codes = code_cells(column, self.values, self.cell_format)
        codes[codes == -1] = self.other_bin
        codes[codes == -2] = self.missing_bin
        return codes

    @property
    def norm_squared(self) -> int:
        """Squared L2 norm of what one row adds to the column's histogram."""
        return 1

    @property
    def n_counts(self) -> int:
        """Number of counts of the column in the histogram release."""
        return self.n_bins

    def histogram(self, bin_weights: Floats) -> Floats:
        """Return the histogram from the total weight of the rows of each bin; **private**."""
        return bin_weights


@dataclass(frozen=True)
class UnusedGrid:
    """A column that gets no weight, such as free text or an identifier; every row has bin 0."""

    name: str
    reason: str
    kind: str = field(default=UNUSED, init=False)
    n_bins: int = field(default=1, init=False)
    n_counts: int = field(default=0, init=False)
    norm_squared: int = field(default=0, init=False)

    def code(self, column: Any) -> npt.NDArray[np.uint16]:
        """Return zeros."""
        return np.zeros(len(column), dtype=np.uint16)

    def histogram(self, bin_weights: Floats) -> Floats:  # noqa: ARG002 - one signature
        """Return no counts."""
        return np.zeros(0)


Grid = ContinuousGrid | CategoricalGrid | UnusedGrid


@dataclass(frozen=True)
class MagnitudeGrid:
    """Signed logarithmic cells over all numbers, for columns without declared bounds.

    A cell is an eighth of a decade between 1e-12 and 1e15 for either sign; 0 has a cell of its own. After the
    number cells come text, and missing values.
    """

    per_decade: int = 8
    least: float = -12.0
    most: float = 15.0

    @property
    def n_side(self) -> int:
        """Cells of one sign."""
        return round((self.most - self.least) * self.per_decade)

    @property
    def n_cells(self) -> int:
        """Cells of both signs, zero, text, missing."""
        return 2 * self.n_side + 3

    @property
    def text_cell(self) -> int:
        """The cell of entries that are not numbers."""
        return 2 * self.n_side + 1

    @property
    def missing_cell(self) -> int:
        """The cell of missing entries."""
        return 2 * self.n_side + 2

    def code(self, values: Floats, codes: npt.NDArray[np.uint8]) -> Ints:
        """Return the cell of parsed entries, ascending with their value."""
        size = np.abs(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.floor((np.log10(size) - self.least) * self.per_decade)
        steps = np.where(size > 0, np.clip(np.nan_to_num(steps, posinf=1e9, neginf=-1e9), 0, self.n_side - 1), 0)
        cells = np.where(values > 0, self.n_side + 1 + steps, self.n_side - 1 - steps)
        cells[size == 0] = self.n_side
        cells[codes == UNPARSABLE] = self.text_cell
        cells[codes == MISSING] = self.missing_cell
        return cells.astype(np.intp)

    def range_of(self, cell: int) -> tuple[float, float]:
        """Return the lowest and highest number of a number cell."""
        if cell == self.n_side:
            return 0.0, 0.0
        step = cell - self.n_side - 1 if cell > self.n_side else self.n_side - 1 - cell
        low, high = (10.0 ** (self.least + (step + shift) / self.per_decade) for shift in (0, 1))
        return (low, high) if cell > self.n_side else (-high, -low)


def round_out(lower: float, upper: float) -> tuple[float, float]:
    """Return bounds that differ: equal ones are moved apart by half a unit."""
    if lower < upper:
        return lower, upper
    return lower - 0.5 * max(1.0, math.fabs(lower)), upper + 0.5 * max(1.0, math.fabs(upper))
