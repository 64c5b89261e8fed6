"""The class and the cell of each row, as small whole numbers: held in memory, or worked out batch by batch.

Rows that live in memory are translated once. Rows of a memory-mapped table stay where they are: their labels
and groups are translated when a batch is read, so that nothing in memory grows with the number of rows.
Either way `take(rows)` gives the numbers of some rows; all rows are checked before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratewise.compiled import CompiledConstraints
from ratewise.domain import Codes, Domain
from ratewise.sampling import Rows

_CHUNK = 1 << 16


class RowCodes(Protocol):
    """A small whole number for each row; NumPy arrays are such things."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def take(self, rows: Rows) -> Codes:
        """Return the numbers of the given rows; **private**."""
        ...


class LabelCodes:
    """The class of each row, translated when it is asked for.

    Parameters
    ----------
    domain : Domain
    labels : vector
        Of any kind that has `take`: an array, a memory map, a pandas series.
    """

    def __init__(self, domain: Domain, labels: Any) -> None:
        self._domain = domain
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: Rows) -> Codes:
        """Return the classes of the given rows; **private**."""
        return self._domain.label_codes(self._labels.take(rows))


class CellCodes:
    """The cell of each row, translated when it is asked for.

    Parameters
    ----------
    constraints : CompiledConstraints
    labels : RowCodes
    columns : mapping of name to vector
    """

    def __init__(
        self, constraints: CompiledConstraints, labels: RowCodes, columns: Mapping[str, Any]
    ) -> None:
        self._cells = constraints.cells
        self._labels = labels
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: Rows) -> Codes:
        """Return the cells of the given rows; **private**."""
        columns = {name: column.take(rows) for name, column in self._columns.items()}
        return self._cells(self._labels.take(rows), columns)


def counts(codes: RowCodes, count: int) -> npt.NDArray[np.int64]:
    """Return how often each of 0..count-1 occurs, a chunk at a time; **private**."""
    found = np.zeros(count, dtype=np.int64)
    _each_chunk(codes, lambda _, part: found.__iadd__(np.bincount(part, minlength=count)))
    return found


def held(codes: RowCodes, count: int) -> Codes:
    """Return all codes (below `count`) as an array of the smallest type that holds them."""
    kept = np.empty(len(codes), dtype=np.min_scalar_type(-max(1, count)))
    _each_chunk(codes, kept.__setitem__)
    return kept


def _each_chunk(codes: RowCodes, use: Callable[[slice, Codes], object]) -> None:
    for start in range(0, len(codes), _CHUNK):
        piece = slice(start, min(start + _CHUNK, len(codes)))
        use(piece, codes.take(np.arange(piece.start, piece.stop, dtype=np.intp)))
