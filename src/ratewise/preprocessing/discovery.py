"""Finding undeclared facts privately: classes, group values, column types, ranges and vocabularies.

Values that nobody declared are found by a stability-based histogram. Every unit adds weight at most 1 to the
values of each of m columns. Of the values that occur, the counts are released with Gaussian noise of standard
deviation ``s = z sqrt(m)`` (the L2 sensitivity of all counts together is ``sqrt(m)``), and a value is kept if its
noisy count reaches

    tau = 1 + s * Phi^-1((1 - delta)^(1/(m k))) + grid,

where k is the number of values per column that one unit can add, and the grid is that of the rounded noise. A value that only one unit has is kept, in any of
the columns, with probability at most delta. If none is, the release is the Gaussian mechanism with multiplier z on
the values that both neighbours have. It is accounted as ``ThresholdEvent(z, delta)``. What is not kept is "other",
like what does not occur.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ratewise.data.cells import DEFAULT_FORMAT, MISSING_TEXT, UNPARSABLE, CellFormat, parse_number, parse_text, text_of
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

_DOUBT = 1e-3  # probability that any of the empty cells of a release is taken to be occupied


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
    return -float(ndtri(_DOUBT / n_cells))


def discover_values(
    columns: Mapping[str, Any],
    *,
    noise: float,
    delta: float,
    rng: np.random.Generator,
    named: Mapping[str, Iterable[Any]] | None = None,
    weights: Floats | None = None,
    step: float = 1.0,
    max_rows: int = 1,
) -> dict[str, tuple[Any, ...]]:
    """Return the values of each column that are frequent enough, sorted; one ``ThresholdEvent(noise, delta)``.

    Parameters
    ----------
    columns : mapping of name to column
        One entry per row. Entries are compared by their canonical text (`ratewise.data.cells.parse_text`);
        missing entries are no values. No entry raises an error.
    noise, delta : float
        Those of the event. Noise 0 keeps every value: for public rows only.
    rng : generator
        The secure source.
    named : mapping, optional
        Public values, such as those that constraints name. They belong to the result whether or not they occur,
        and in the form given here.
    weights : array, optional
        Weight of each row, at most 1 in total for a unit; 1 without it. The value of a row without weight does
        not occur.
    step : float
        Power of two that all weights are multiples of.
    max_rows : int
        Rows of a unit, each of which may have another value.

    Notes
    -----
    Values are returned as whole numbers if all values of the column are, and otherwise as text. Truth values are 0 and 1:
    one missing cell can turn the storage of a column from truth values into numbers.
    """
    counted = count_values(columns, weights)
    return release_values(counted, noise, delta, rng, named=named, step=step, max_rows=max_rows)


class ValueCounts(NamedTuple):
    """Distinct texts of a column, sorted, without missing ones, and the weight of their rows; **private**."""

    texts: list[str]
    weights: Floats


def count_values(columns: Mapping[str, Any], weights: Floats | None) -> dict[str, ValueCounts]:
    """Return the distinct values of columns with the weight of their rows; **private**."""
    return {name: _count_texts(parse_text(column), weights) for name, column in columns.items()}


def add_values(parts: Sequence[ValueCounts]) -> ValueCounts:
    """Return the counts of all parts of a column together."""
    total: dict[str, float] = {}
    for part in parts:
        for text, weight in zip(part.texts, part.weights.tolist(), strict=True):
            total[text] = total.get(text, 0.0) + weight
    return _sorted_counts(total)


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
    """Return the values that are frequent enough: `discover_values`, given the counts of its columns."""
    parts = [part.weights for part in counted.values()]
    released, threshold = _release(parts, max(len(counted), 1), noise, delta, rng, step, max_rows)
    found = {}
    for (name, part), counts in zip(counted.items(), released, strict=True):
        kept = [text for text, count in zip(part.texts, counts, strict=True) if count >= threshold]
        found[name] = _in_form(kept, tuple((named or {}).get(name, ())))
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


def _count_texts(texts: npt.NDArray[Any], weights: Floats | None) -> ValueCounts:
    """Return the distinct texts of rows with weight, sorted, and the weight of each; **private**."""
    cells = texts.tolist()
    distinct = sorted(set(cells))
    places = {text: place for place, text in enumerate(distinct)}
    codes = np.fromiter(map(places.__getitem__, cells), dtype=np.intp, count=len(cells))
    totals = np.bincount(codes, weights, minlength=len(distinct)).astype(np.float64)
    if MISSING_TEXT in places:
        totals[places[MISSING_TEXT]] = 0.0
    kept = np.flatnonzero(totals > 0.0)
    return ValueCounts([distinct[place] for place in kept.tolist()], totals[kept])


def _sorted_counts(totals: Mapping[str, float]) -> ValueCounts:
    texts = sorted(totals)
    return ValueCounts(texts, np.array([totals[text] for text in texts], dtype=np.float64))


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


class RangeCounts(NamedTuple):
    """Weight of the rows of each range cell of a column, and of its texts that are no numbers; **private**."""

    ranges: Floats
    values: ValueCounts


def count_ranges(
    columns: Mapping[str, Any], formats: Mapping[str, CellFormat], weights: Floats | None
) -> dict[str, RangeCounts]:
    """Return the range cells and text values of columns, with the weight of their rows; **private**."""
    counted = {}
    for name, column in columns.items():
        parsed = parse_number(column, formats[name])
        cells = code_ranges(parsed.values, parsed.codes)
        ranges = np.bincount(cells, weights, minlength=N_RANGES).astype(np.float64)
        values = ValueCounts([], np.zeros(0))
        if np.any(parsed.codes == UNPARSABLE):  # saves time only: without such cells there are no texts
            texts = np.where(parsed.codes == UNPARSABLE, parse_text(column, formats[name]), "")
            values = _count_texts(texts, weights)
        counted[name] = RangeCounts(ranges, values)
    return counted


def add_ranges(parts: Sequence[RangeCounts]) -> RangeCounts:
    """Return the counts of all parts of a column together."""
    ranges = np.sum([part.ranges for part in parts], axis=0)
    return RangeCounts(ranges, add_values([part.values for part in parts]))


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
    as for `discover_values`.
    """
    many = 2 * len(counted)
    parts = [np.concatenate([part.ranges, part.values.weights]) for part in counted.values()]
    released, least = _release(parts, many, noise, delta, rng, step, max_rows)
    visible = visible_from(len(counted) * N_RANGES) * noise * math.sqrt(many)
    grids: dict[str, Grid] = {}
    for (name, part), counts in zip(counted.items(), released, strict=True):
        texts = part.values.texts
        kept = [text for text, count in zip(texts, counts[N_RANGES:], strict=True) if count >= least]
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
                "no value is frequent enough to be found at this budget, as in identifiers and free text; declare values",
            )
        return CategoricalGrid(name, tuple(values), cell_format)
    if not len(numbers):
        return UnusedGrid(name, "too few rows to find a range at this budget; declare bounds or values")
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
    """Return a power of two that is at least the number of rows of most ids; 1 if noise hides all counts.

    Counts that one of the empty cells could have are not used (`visible_from`).

    Parameters
    ----------
    histogram : array
        As `size_histogram` returns it; **private**.
    """
    released = mechanism.release(histogram, rng)
    least = visible_from(len(released)) * mechanism.standard_deviation
    released = np.where(released > least, released, 0.0)
    reached = np.cumsum(released)
    return int(2 ** int(np.searchsorted(reached, share * reached[-1])))
