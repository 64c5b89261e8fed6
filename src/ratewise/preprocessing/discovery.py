"""Finding undeclared facts privately: classes, group values, column types, ranges and vocabularies.

Values that nobody declared are found by a stability-based histogram. Every unit adds weight at most 1 to the
values of each of m columns. Of the values that occur, the counts are released with Gaussian noise of standard
deviation ``s = z sqrt(m)`` (the L2 sensitivity of all counts together is ``sqrt(m)``), and a value is kept if its
noisy count reaches

    tau = 1 + s * Phi^-1((1 - delta)^(1/(m k))) + grid,

where k is the number of values per column that one unit can add, and the grid is that of the rounded noise. A value
that only one unit has is kept, in any of the columns, with probability at most delta. If none is, the release is the
Gaussian mechanism with multiplier z on the values that both neighbours have. It is accounted as
``ThresholdEvent(z, delta)``. What is not kept is "other", like what does not occur.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ratewise.data.cells import DEFAULT_FORMAT, MISSING_TEXT, UNPARSABLE, CellFormat, parse_number, parse_text, text_of
from ratewise.exceptions import RatewiseWarning
from ratewise.mechanisms.noise import Mechanism, NoNoise, RoundedGaussianMechanism
from ratewise.preprocessing.grids import (
    N_RANGES,
    TEXT_RANGE,
    CategoricalGrid,
    ContinuousGrid,
    Grid,
    UnusedGrid,
    code_ranges,
    range_of,
    round_out,
)

Floats = npt.NDArray[np.float64]

_FALSE_POSITIVES = 1e-3  # probability that any of the empty cells of a release is taken to be occupied


def discovery_threshold(noise: float, delta: float, columns: int, max_rows: int = 1) -> float:
    """Return the noisy count from which on a value is kept; `noise` is the multiplier z.

    >>> round(discovery_threshold(noise=10.0, delta=1e-6, columns=1), 2)
    48.53
    """
    tail = -math.expm1(math.log1p(-delta) / (columns * max_rows))  # 1 - (1 - delta)^(1/(m k))
    return 1.0 - noise * math.sqrt(columns) * float(ndtri(tail))


def visible_from(n_cells: int) -> float:
    """Return the number of standard deviations of the noise from which a count is taken to be above zero.

    One of `n_cells` empty cells exceeds it with a probability of at most a thousandth.
    """
    return -float(ndtri(_FALSE_POSITIVES / n_cells))


class ValueCounts(dict[str, float]):
    """Distinct texts of a column in order, without missing ones, and the weight of their rows; **private**."""

    def __add__(self, other: ValueCounts) -> ValueCounts:
        total = {text: self.get(text, 0.0) + other.get(text, 0.0) for text in self.keys() | other.keys()}
        return ValueCounts(sorted(total.items()))

    @classmethod
    def of(cls, texts: npt.NDArray[Any], weights: Floats | None) -> ValueCounts:
        """Return the texts of rows with weight."""
        cells = texts.tolist()
        distinct = sorted(set(cells))
        places = {text: place for place, text in enumerate(distinct)}
        codes = np.fromiter(map(places.__getitem__, cells), dtype=np.intp, count=len(cells))
        totals = np.bincount(codes, weights, minlength=len(distinct)).tolist()
        counts = zip(distinct, map(float, totals), strict=True)
        return cls((text, total) for text, total in counts if total > 0.0 and text != MISSING_TEXT)


def count_values(columns: Mapping[str, Any], weights: Floats | None) -> dict[str, ValueCounts]:
    """Return the distinct values of columns with the weight of their rows; **private**.

    There is one cell per row. Cells are compared by their canonical text (`ratewise.data.cells.parse_text`); missing
    ones are no values, and no cell raises an error. Weights add up to at most 1 for a unit, None stands for 1; the value
    of a row without weight does not occur.
    """
    return {name: ValueCounts.of(parse_text(column), weights) for name, column in columns.items()}


def release_values(
    counted: Mapping[str, ValueCounts],
    noise: float,
    delta: float,
    rng: np.random.Generator,
    *,
    named: Mapping[str, Iterable[Any]] | None = None,
    step: float = 1.0,
    max_rows: int = 1,
) -> dict[str, tuple[Any, ...]]:
    """Return the values of each column that are frequent enough, sorted; one ``ThresholdEvent(noise, delta)``.

    Values are whole numbers if all values of the column are, and otherwise texts. Truth values are 0 and 1: one missing
    cell can turn the storage of a column from truth values into numbers.

    Noise 0 keeps every value: for public rows only. Values that are `named`, such as those in constraints, are public and
    belong to the result whether or not they occur, in the form given. All weights are multiples of `step`, a power of
    two, and each of the `max_rows` rows of a unit may have another value.
    """
    parts = [np.array(list(part.values()), dtype=np.float64) for part in counted.values()]
    released, threshold = _release(parts, max(len(counted), 1), noise, delta, rng, step, max_rows)
    found = {}
    for (name, part), counts in zip(counted.items(), released, strict=True):
        kept = [text for text, count in zip(part, counts, strict=True) if count >= threshold]
        given = tuple((named or {}).get(name, ()))
        unseen = [value for value in given if text_of(value) not in kept]
        if kept and unseen:
            warnings.warn(
                f"a constraint names {unseen[0]!r}, which is not among the values of {name!r} that were found: "
                f"{', '.join(map(repr, kept[:8]))}. It is rare, or another spelling is meant (for a class: positive=...)",
                RatewiseWarning,
                stacklevel=2,
            )
        found[name] = _in_form(kept, given)
    return found


def _release(
    parts: list[Floats], many: int, noise: float, delta: float, rng: np.random.Generator, step: float, max_rows: int
) -> tuple[list[Floats], float]:
    """Release vectors as one, since rounding and noise belong to the joint vector; return the threshold, too."""
    mechanism: Mechanism = NoNoise()
    threshold = 1e-9
    if noise > 0:
        mechanism = gaussian = RoundedGaussianMechanism(noise, math.sqrt(many), whole=True, step=step)
        threshold = discovery_threshold(noise, delta, many, max_rows) + gaussian.grid
    released = mechanism.release(np.concatenate(parts), rng)
    return np.split(released, np.cumsum([len(part) for part in parts])[:-1]), threshold


def _in_form(kept: list[str], named: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return kept texts and named values together: as named, else as whole numbers if all of them are."""
    spelt = {text_of(value): value for value in named}
    texts = sorted({*kept, *spelt})
    whole = [_whole(text) for text in texts]
    if all(number is not None for number in whole):
        pairs = sorted(zip(whole, texts, strict=True))
        return tuple(spelt.get(text, number) for number, text in pairs)
    return tuple(spelt.get(text, text) for text in texts)


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) <= 15 else None


@dataclass(frozen=True)
class ColumnDeclaration:
    """What is declared of a feature column: bounds, values, or nothing."""

    bounds: tuple[float, float] | None = None
    values: tuple[Any, ...] | None = None
    cell_format: CellFormat = DEFAULT_FORMAT

    @property
    def complete(self) -> bool:
        """Whether no release is needed to lay a grid."""
        return self.bounds is not None or self.values is not None

    def norm_squared(self, log_cells: int) -> int:
        """Return a public bound on the squared norm that a unit adds to the column's histograms."""
        return 1 if self.values is not None or not log_cells else 2

    def grid(self, name: str, log_cells: int) -> Grid:
        """Return the grid of a declared column."""
        if self.values is not None:
            return CategoricalGrid(name, self.values, self.cell_format)
        assert self.bounds is not None  # noqa: S101 - asked of complete declarations only
        return ContinuousGrid(name, *round_out(*self.bounds), cell_format=self.cell_format, log_cells=log_cells)


@dataclass(frozen=True, eq=False)
class RangeCounts:
    """Weight of the rows of each range cell of a column, and of its texts that are no numbers; **private**."""

    ranges: Floats
    values: ValueCounts

    def __add__(self, other: RangeCounts) -> RangeCounts:
        return RangeCounts(self.ranges + other.ranges, self.values + other.values)


def count_ranges(
    columns: Mapping[str, Any], formats: Mapping[str, CellFormat], weights: Floats | None
) -> dict[str, RangeCounts]:
    """Return the range cells and text values of columns, with the weight of their rows; **private**."""
    counted = {}
    for name, column in columns.items():
        parsed = parse_number(column, formats[name])
        cells = code_ranges(parsed.values, parsed.codes)
        ranges = np.bincount(cells, weights, minlength=N_RANGES).astype(np.float64)
        values = ValueCounts()
        if np.any(parsed.codes == UNPARSABLE):  # saves time only: without such cells there are no texts
            texts = np.where(parsed.codes == UNPARSABLE, parse_text(column, formats[name]), MISSING_TEXT)
            values = ValueCounts.of(texts, weights)
        counted[name] = RangeCounts(ranges, values)
    return counted


def release_grids(
    counted: Mapping[str, RangeCounts],
    formats: Mapping[str, CellFormat],
    noise: float,
    delta: float,
    rng: np.random.Generator,
    log_cells: int,
    *,
    step: float = 1.0,
    max_rows: int = 1,
) -> dict[str, Grid]:
    """Return grids for columns of unknown type, range and values.

    Every unit adds weight at most 1 to the range cells of a column (number cells, text, missing), and at most
    1 to the values of text cells: the sensitivity is ``sqrt(2 * len(counted))``. One ``ThresholdEvent``; arguments
    as for `release_values`.
    """
    many = 2 * len(counted)
    parts = [np.append(part.ranges, list(part.values.values())) for part in counted.values()]
    released, least = _release(parts, many, noise, delta, rng, step, max_rows)
    visible = visible_from(len(counted) * N_RANGES) * noise * math.sqrt(many)
    grids: dict[str, Grid] = {}
    for (name, part), counts in zip(counted.items(), released, strict=True):
        kept = [text for text, count in zip(part.values, counts[N_RANGES:], strict=True) if count >= least]
        grids[name] = _grid_from(name, counts[:N_RANGES], sorted(kept), visible, formats[name], log_cells)
    return grids


def _grid_from(
    name: str, ranges: Floats, values: list[str], least: float, cell_format: CellFormat, log_cells: int
) -> Grid:
    visible = ranges > max(least, 0.5)
    numbers = np.flatnonzero(visible[:TEXT_RANGE])
    number_count = float(ranges[numbers].sum())
    text_count = float(ranges[TEXT_RANGE])
    if text_count > number_count and visible[TEXT_RANGE]:
        if not values:
            return UnusedGrid(
                name,
                "no value is frequent enough to be found at this epsilon, as is usual for identifiers and free text; to use "
                "such a column, declare its values",
            )
        return CategoricalGrid(name, tuple(values), cell_format)
    if not len(numbers):
        return UnusedGrid(name, "too few entries to find a range at this epsilon; declare bounds or values")
    lower, upper = range_of(int(numbers[0]))[0], range_of(int(numbers[-1]))[1]
    return ContinuousGrid(name, *round_out(lower, upper), cell_format=cell_format, log_cells=log_cells)


def size_histogram(sizes: npt.NDArray[Any]) -> Floats:
    """Return the number of ids by ``ceil(log2(usable rows))``, at most 20; **private**.

    An id with rows adds one to one cell, others add nothing: sensitivity 1.
    """
    cells = np.minimum(np.ceil(np.log2(sizes[sizes > 0])), 20).astype(np.intp)
    return np.bincount(cells, minlength=21).astype(np.float64)


def rows_per_id_words(most: int) -> str:
    """Return the sentence about a released bound."""
    return f"at most {most} rows of an id are used: by released counts, all rows of nine tenths of the ids"


def rows_per_id(histogram: Floats, mechanism: Mechanism, rng: np.random.Generator, share: float = 0.9) -> int:
    """Return a power of two that is at least the number of rows of most ids, from `size_histogram` (**private**).

    It is 1 if noise hides all counts. Counts that one of the empty cells could have are not used (`visible_from`).
    """
    released = mechanism.release(histogram, rng)
    least = visible_from(len(released)) * mechanism.standard_deviation
    released = np.where(released > least, released, 0.0)
    reached = np.cumsum(released)
    return int(2 ** int(np.searchsorted(reached, share * reached[-1])))
