"""Rows in memory: the sums over units that a session asks for before training, and the engine of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise.constraints.compiled import CompiledConstraints
from ratewise.constraints.domain import Domain
from ratewise.data.cells import CellFormat, code_cells, text_of
from ratewise.data.table import (
    FeatureTable,
    Units,
    code_groups,
    code_ids,
    code_labels,
    code_table,
    id_units,
    in_parts,
    row_units,
)
from ratewise.mechanisms.sampling import KeyedSample
from ratewise.models.additive import AdditiveEngine, Bins, Problem, available_threads
from ratewise.models.linear import SparseEngine, prepare_sparse
from ratewise.preprocessing.basis import Basis, LazyBins, RowCodes, bin_weights, code_rows
from ratewise.preprocessing.discovery import (
    ColumnDeclaration,
    RangeCounts,
    ValueCounts,
    count_ranges,
    count_values,
    size_histogram,
)
from ratewise.preprocessing.grids import Grid
from ratewise.training.config import TrainingConfig
from ratewise.training.session import LABEL

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class Rows:
    """Rows in the memory of this process, or in a memory map: features, labels, sensitive columns, ids.

    `sample_weight` (0 to 1) and the public `class_weight` multiply the loss of a row.
    """

    features: FeatureTable
    labels: Any
    groups: Mapping[str, Any]
    ids: Any = None
    sample_weight: Floats | None = None
    class_weight: Mapping[Any, float] | None = None
    units: Units = field(init=False)
    problem: Problem = field(init=False)
    _ids: tuple[npt.NDArray[np.intp], int] | None = field(init=False, default=None)
    _bins: Bins | None = field(init=False, default=None)
    _classes: tuple[Any, ...] | None = field(init=False, default=None)
    _labels_coded: bool = field(init=False, default=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.features.names

    @property
    def named(self) -> bool:
        """Whether the names are the user's."""
        return self.features.named

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the sensitive columns."""
        return tuple(self.groups)

    @property
    def sparse(self) -> bool:
        """Whether the features are a sparse matrix."""
        return self.features.sparse is not None

    def count_units(self) -> int:
        """Return the number of units: rows, or distinct ids."""
        if self.ids is None:
            return self.features.n_rows
        if self._ids is None:
            self._ids = code_ids(self.ids)
        return self._ids[1]

    def use_ids(self, codes: npt.NDArray[np.intp], n_units: int) -> None:
        """Take the unit of each row from codes, in place of ids."""
        self._ids = codes, n_units

    def count_sizes(self, classes: tuple[Any, ...] | None) -> Floats:
        """Return the number of ids by the logarithm of their number of usable rows; **private**."""
        assert self._ids is not None  # noqa: S101 - counted before
        codes, n_units = self._ids
        return size_histogram(np.bincount(codes[usable_rows(self.labels, classes)], minlength=n_units))

    def bound(self, max_rows: int, weighting: str, classes: tuple[Any, ...] | None) -> Units:
        """Fix which usable rows each unit contributes."""
        self._classes = classes
        if self._ids is None:
            self.units = row_units(self.features.n_rows)
        else:
            self.units = id_units(*self._ids, max_rows, weighting, usable_rows(self.labels, classes))
        return self.units

    @property
    def _weights(self) -> npt.NDArray[Any]:
        """Weight of every row of the table; **private**."""
        coded = self._labels_coded and isinstance(self.problem.labels, np.ndarray)
        known = self.problem.labels >= 0 if coded else usable_rows(self.labels, self._classes)
        return self.units.table_weights(known)

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Code labels and groups; rows whose label is no class have no weight in all later sums."""
        columns = [self.labels, *self.groups.values()]
        lazy = self.features.mapped and self.ids is None and self.class_weight is None
        code = lazy_problem if lazy and all(isinstance(c, np.ndarray) for c in columns) else code_problem
        problem = code(self.labels, self.groups, domain, compiled)
        weights = self.sample_weight
        if self.class_weight is not None:
            given = {text_of(k): float(weight) for k, weight in self.class_weight.items()}
            by_class = np.array([given.get(text_of(k), 1.0) for k in domain.classes])
            of_rows = (by_class / max(by_class.max(), 1e-100)).take(problem.labels, mode="clip")
            weights = of_rows if weights is None else of_rows * weights
        self.problem, self._labels_coded = replace(problem, loss_weights=weights), True
        self._classes = domain.classes

    def count_values(self, names: tuple[str, ...]) -> dict[str, ValueCounts]:
        """Return the distinct values of columns with their weights; **private**."""
        columns = {name: self.labels if name == LABEL else self.groups[name] for name in names}
        return count_values(columns, self._weights)

    def count_ranges(self, formats: Mapping[str, CellFormat]) -> dict[str, RangeCounts]:
        """Return the range cells and text values of features; **private**."""
        columns = {name: self.features.column(name) for name in formats}
        return count_ranges(columns, formats, self._weights)

    def bin_weights(self, grids: tuple[Grid, ...]) -> list[Floats]:
        """Code the features and return the weight of the rows of each bin, by column; **private**."""
        if not self.features.mapped:
            codes, totals = code_rows(self.features, grids, self._weights)
            self._bins = RowCodes(codes)
            return totals
        self._bins = LazyBins(self.features, grids)
        if self.units.order is None and self._labels_coded:  # weights of many rows are not stored
            labels, units = self.problem.labels, self.units
            return bin_weights(self._bins, grids, lambda rows: units.table_weights(labels[rows] >= 0), len(labels))
        weights = self._weights
        return bin_weights(self._bins, grids, weights.__getitem__, len(weights))

    def engine(
        self, basis: Basis | None, columns: Mapping[str, ColumnDeclaration], config: TrainingConfig
    ) -> AdditiveEngine | SparseEngine:
        """Return the engine of the training steps."""
        hard = config.rates == "hard"
        if basis is None:
            matrix = prepare_sparse(self.features.sparse, columns, self.features.names)
            return SparseEngine(matrix, self.problem, self.units, config.temperature, hard)
        if self._bins is None:
            self.bin_weights(basis.grids)
        assert self._bins is not None  # noqa: S101 - coded now
        coded, problem, units = self._bins, self.problem, self.units
        if isinstance(coded, RowCodes) and units.order is not None:
            # rows of a unit side by side are read faster; sums are exact, so their order changes nothing
            coded, problem = RowCodes(coded.codes[units.order]), problem.take(units.order)
            units = units.side_by_side()
        return AdditiveEngine(coded, basis, problem, units, config.temperature, hard, threads=available_threads())

    def select(self, sample: KeyedSample) -> npt.NDArray[np.intp]:
        """Return the numbers of the sampled units; **private**."""
        return sample.units(0, sample.n_units)


def usable_rows(labels: Any, classes: tuple[Any, ...] | None) -> npt.NDArray[np.bool_]:
    """Return which rows have a label, or that of a class if classes are given; **private**."""
    found = np.empty(len(labels), dtype=np.bool_)
    for rows, (part,) in in_parts(labels):
        codes = code_cells(part, classes or ())
        found[rows] = codes != -2 if classes is None else codes >= 0
    return found


def code_problem(
    labels: Any, groups: Mapping[str, Any], domain: Domain, compiled: CompiledConstraints | None
) -> Problem:
    """Return the class and the cell of every row, -1 for none; **private**."""
    codes, cells = code_table(domain if compiled is None else compiled, labels, groups)
    return Problem(codes, cells, len(domain.classes), 0 if compiled is None else compiled.n_cells)


@dataclass(frozen=True, eq=False)
class _LazyCodes:
    """Codes of rows, computed when asked: of a table on disk, nothing but a batch is held in memory."""

    take: Callable[[Any], npt.NDArray[Any]]
    n_rows: int

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        return self.take(rows)

    def __len__(self) -> int:
        return self.n_rows


def lazy_problem(
    labels: Any, groups: Mapping[str, Any], domain: Domain, compiled: CompiledConstraints | None
) -> Problem:
    """Return what `code_problem` returns, with codes that are computed for the rows that are asked for."""

    def labels_of(rows: Any) -> npt.NDArray[Any]:
        return code_labels(labels[rows], domain)

    def cells_of(rows: Any) -> npt.NDArray[Any]:
        assert compiled is not None  # noqa: S101 - asked for only then
        part = {name: column[rows] for name, column in groups.items()}
        return compiled.code_cells(labels_of(rows), code_groups(part, domain))

    codes: Any = _LazyCodes(labels_of, len(labels))
    cells: Any = None if compiled is None else _LazyCodes(cells_of, len(labels))
    return Problem(codes, cells, len(domain.classes), 0 if compiled is None else compiled.n_cells)
