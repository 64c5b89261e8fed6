"""Rows of features, prepared and handed out in blocks: scaling, bounds on row norms, the clip of each row.

Nothing here keeps more of a matrix than a number per row, unless it is small and read many times: then its
rows are prepared once and kept, without what is zero if that is most of them. Blocks are in double precision
whatever the matrix is stored in: sums over thousands of rows in single precision would be off by more than
the noise makes up for, and one row could then move them by more than the clipping norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from ratewise.centred import CentredRows, Centring, centring_for
from ratewise.curves import Places
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.sampling import Rows
from ratewise.scaling import Scaling, scaling_tables

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

# Bytes of gathered rows handled at once: about what stays in the second-level cache (measured).
_BLOCK_BYTES = 1 << 21
BLOCK_ROWS = 16, 1 << 16  # rows of a block, at least and at most
# Rows read at least so often are prepared once, if that takes at most so many bytes.
_MANY_READS, _KEPT_BYTES = 4.0, 1 << 28
_LARGEST = float(np.finfo(np.float64).max)


class Features:
    """Rows of features, handed out in blocks that are ready for use.

    A block comes with a factor per row (from the bound on row norms) and with the longest residual that a row
    may have: ``clip / sqrt(|x|^2 + 1)``. One pass at the start refuses NaN and infinity.

    Parameters
    ----------
    X : C-ordered float32 or float64 array (or memory map), or SciPy CSR matrix
    clip, row_norm : float or None
    scaling : Scaling or None
    intercept : bool
    n_classes : int
        Only sets how much room rounding needs.
    reads : float
        How often a row will be read on average, a public number. From 4 on, dense features that have to be
        prepared are kept as prepared, up to 256 MB of them.
    most_rows : float
        How many rows a step reads at most, a public number. If many, and released means say that most entries
        are zero (or as near to it as bounds let them be), only the others are kept (`ratewise.centred`): the
        same rows up to rounding.
    columns : array of whole numbers, or None
        Which columns of a dense X to read, in order; None: all. `scaling` is of these.
    """

    def __init__(
        self,
        X: Any,
        *,
        clip: float | None = None,
        row_norm: float | None = None,
        scaling: Scaling | None = None,
        intercept: bool = True,
        n_classes: int = 2,
        reads: float = 1.0,
        most_rows: float = 0.0,
        block_rows: int | None = None,
        columns: Places | None = None,
    ) -> None:
        self.matrix = _usable(X)
        self.sparse = _is_sparse(self.matrix)
        self.n_rows, width = self.matrix.shape
        self._stored: Array = np.empty((0, width), dtype=self.matrix.dtype)
        self._columns = columns
        width = width if columns is None else len(columns)
        self.block_rows = block_rows or _block_rows(self.matrix)
        self.scaling = scaling_tables(scaling, width, self.sparse)
        self._bending = scaling if scaling is not None and scaling.n_prepared > width else None
        self.n_features = width if scaling is None else scaling.n_prepared
        self._row_norm = row_norm
        self._extra = 1.0 if intercept else 0.0
        # What rounding can add to a row's norm is taken off the clip.
        room = (min(self.n_features, 1024) + n_classes + 16) * float(np.finfo(np.float64).eps)
        self._clip = None if clip is None else clip * (1.0 - room)
        # A norm whose squares underflow is this much longer than computed, at most.
        self._lost = float(np.sqrt(self.n_features * float(np.finfo(np.float64).tiny)))
        self._buffer: Floats = np.empty((0, self.n_features))
        self._factors: Floats | None = None
        self._limits: Floats | None = None
        self._guarded = False
        self.mapped = not self.sparse and memory_mapped(X)
        self._centred: CentredRows | None = None
        released = scaling is not None and scaling.mean is not None
        self._single = n_classes == 2  # products are with one number per row, or with several
        self._keep(reads, self._centring(most_rows, reads) if released else None, block_rows)

    def _keep(self, reads: float, centring: Centring | None, block_rows: int | None) -> None:
        """Look at all rows once, and keep of them what pays."""
        often = not self.sparse and not self.mapped and reads >= _MANY_READS
        if often and centring is not None:
            self._first_pass(keep=True, centring=centring)
            if self._centred is not None:
                self.block_rows = min(block_rows or centring.block_rows, centring.block_rows)
                return
        self._first_pass(keep=not self.mapped, ready=self._room_for_ready() if often else None)

    def _room_for_ready(self) -> Floats | None:
        """Return where prepared rows are to be kept, if they are."""
        stored_ready = self.scaling is None and self.matrix.dtype == np.float64
        if stored_ready or self.n_rows * self.n_features * 8 > _KEPT_BYTES:
            return None
        return np.empty((self.n_rows, self.n_features))

    def _centring(self, most_rows: float, reads: float) -> Centring | None:
        """Return how to keep rows without what is zero, if so."""
        tables = self.scaling
        if tables is None or not self._extra:
            return None  # without an intercept, residuals of short rows know no bound
        return centring_for(
            tables.bounds,
            tables.shift,
            tables.factor,
            n_rows=self.n_rows,
            most_rows=most_rows,
            most_bytes=_KEPT_BYTES,
            reads=reads,
            flags=self._flags(*tables.bounds) if self._single and tables.bounds is not None else None,
        )

    def _flags(self, lower: Array, upper: Array) -> npt.NDArray[np.bool_]:
        """Return which features are declared to lie between 0 and 1; second columns are not declared."""
        flags = (lower == 0.0) & (upper == 1.0)
        if self._bending is not None:
            flags[self._bending.n_features :] = False
        return np.asarray(flags)

    def _first_pass(
        self, *, keep: bool, ready: Floats | None = None, centring: Centring | None = None
    ) -> None:
        """Refuse values that are not finite; keep what each row needs in every step, if there is room.

        Prepared rows are written to `ready`, if given, and take the place of the matrix. With `centring` they
        are kept without what is zero, unless one of them needs arithmetic that this has not.

        Rows so long that their products could overflow switch the whole matrix to slower, careful arithmetic.
        """
        largest, factors, limits, others = 0.0, [], [], []
        for piece in self._pieces():
            block = self._stored_block(piece)
            self._guard(block)
            if centring is not None:
                others.append(centring.differences(self._cut(block)))
            self._scale(block, already_cut=centring is not None)
            norms = _norms(block)
            if not np.all(np.isfinite(norms)) and not _all_finite(block):
                raise InvalidInput("X holds numbers too large to be scaled; give narrower bounds of features")
            largest = max(largest, float(norms.max(initial=0.0)))
            if ready is not None:
                ready[piece] = block
            if keep:
                factor, limit = self._factor_and_limit(norms)
                factors.append(factor)
                limits.append(limit)
        self.careful = largest > _LARGEST**0.25
        if keep and not self.careful:
            self._factors = _joined(factors) if self._row_norm is not None else None
            self._limits = _joined(limits) if self._clip is not None else None
        self._kept = keep and not self.careful
        if ready is not None:
            self.matrix, self.scaling, self._bending, self._columns = ready, None, None, None
            self._buffer = self._stored = np.empty((0, self.n_features))
        if centring is not None and others and not self.careful:
            self._centred = centring.rows(others, self._cut_blocks)

    def _scale(self, block: Any, already_cut: bool) -> None:
        """Prepare a block in place."""
        if self.scaling is not None and already_cut:
            self.scaling.stretch(block)
        elif self.scaling is not None:
            self.scaling.apply(block)

    def _cut_blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield blocks of rows, cut off at the bounds of features."""
        for piece in self.blocks(rows):
            yield self._cut(self._stored_block(piece))

    def _cut(self, block: Floats) -> Floats:
        """Cut values off at the bounds of features, in place."""
        if self.scaling is not None:
            self.scaling.cut(block)
        return block

    def _guard(self, block: Any) -> None:
        """Refuse what is not finite; from the first entry on that scaling could overflow, cut such off.

        The cuts leave all other entries as they are, so no row changes what is done to another.
        """
        entries = block.data if self.sparse else block
        largest = max(float(entries.max(initial=0.0)), -float(entries.min(initial=0.0)))
        if not np.isfinite(largest):
            raise InvalidInput("X must be finite, but it holds NaN or infinity; impute or drop such rows")
        if self.scaling is None or self._guarded or self.scaling.safe:
            return
        if largest > self.scaling.reach.min():
            self.scaling, self._guarded = self.scaling.guarded(), True

    def blocks(self, rows: Rows) -> list[Rows]:
        """Cut row numbers into pieces of at most `block_rows`."""
        if len(rows) <= self.block_rows:
            return [rows] if len(rows) else []
        return [rows[start : start + self.block_rows] for start in range(0, len(rows), self.block_rows)]

    def gather(self, rows: Rows) -> tuple[Any, Floats | None, Floats | None]:
        """Return the block of rows, the factor of each row, and the longest residual of each row.

        The rows meant are ``factor[:, None] * block``. The block (an array, a sparse one or `CentredRows`) is
        there for the products ``block.dot`` and ``block.T.dot``, and overwritten by the next call.
        """
        if self.careful:
            return self._gather_carefully(rows)
        block = self._raw_block(rows) if self._centred is None else self._centred.take(rows)
        if self._kept:
            factor = None if self._factors is None else self._factors.take(rows)
            limit = None if self._limits is None else self._limits.take(rows)
            return block, factor, limit
        if self._row_norm is None and self._clip is None:
            return block, None, None
        factor, limit = self._factor_and_limit(_norms(block))
        return block, (None if self._row_norm is None else factor), (None if self._clip is None else limit)

    def prepared(self, rows: Rows) -> Any:
        """Return the rows after scaling, before any bound on their norms; overwritten by the next call."""
        return self._raw_block(rows)

    def in_order(self) -> Iterator[Any]:
        """Yield blocks of all rows, as `prepared` returns them."""
        for piece in self._pieces():
            yield self._raw_block(piece)

    def _pieces(self) -> Iterator[slice]:
        for start in range(0, self.n_rows, self.block_rows):
            yield slice(start, min(start + self.block_rows, self.n_rows))

    def _raw_block(self, rows: Rows | slice) -> Any:
        block = self._stored_block(rows)
        if self.scaling is not None:
            self.scaling.apply(block)
        return block

    def _stored_block(self, rows: Rows | slice) -> Any:
        return self._sparse_block(rows) if self.sparse else self._dense_block(rows)

    def _sparse_block(self, rows: Rows | slice) -> Any:
        return self.matrix[rows].astype(np.float64, copy=False)

    def _dense_block(self, rows: Rows | slice) -> Floats:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        width = self.matrix.shape[1]
        if len(self._buffer) < count:
            rooms = min(count + count // 8, self.block_rows)
            self._buffer = np.empty((rooms, self.n_features))
            other = self._columns is not None or self._bending is not None
            as_stored = self.matrix.dtype == np.float64 and not other
            self._stored = self._buffer if as_stored else np.empty((rooms, width), self.matrix.dtype)
        block, stored = self._buffer[:count], self._stored[:count]
        if isinstance(rows, slice):
            stored = self.matrix[rows]
        else:
            self.matrix.take(rows, 0, stored, "clip")  # row numbers are in range; "clip" skips a copy
        if self._columns is not None:
            stored = stored[:, self._columns]
        if isinstance(rows, slice) or self._stored is not self._buffer:
            block[:, : stored.shape[1]] = stored
        if self._bending is not None:
            self._bending.bend(stored, block[:, stored.shape[1] :])
        return block

    def _factor_and_limit(self, norms: Floats) -> tuple[Floats, Floats]:
        """Return min(1, row_norm / norm) and clip / sqrt((factor * norm)^2 + 1)."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            factor = np.ones(len(norms))
            if self._row_norm is not None:
                factor = np.minimum(1.0, self._row_norm / norms)
            length = np.hypot(factor * norms, self._extra) + self._lost
            limit = (self._clip or np.inf) / length
            return factor, np.minimum(limit, _LARGEST)

    def _gather_carefully(self, rows: Rows) -> tuple[Any, Floats | None, Floats | None]:
        """Gather with every row divided by its largest entry: no product overflows."""
        block = self._raw_block(rows)
        entries = abs(block)
        largest = entries.max(axis=1)
        largest = np.asarray(largest.todense()).ravel() if _is_sparse(largest) else largest
        largest = np.maximum(largest, 1.0)
        if self.sparse:
            block = scipy.sparse.csr_array(scipy.sparse.diags_array(1.0 / largest) @ block)
        else:
            block /= largest[:, None]
        norms = _norms(block)
        with np.errstate(over="ignore", divide="ignore"):
            shrink = np.ones(len(norms))
            if self._row_norm is not None:
                shrink = np.minimum(1.0, self._row_norm / norms / largest)
            factor = largest * shrink
            limit = None
            if self._clip is not None:
                limit = np.minimum(self._clip / np.hypot(factor * norms, self._extra), 1e290)
                limit[limit < 1e-290] = 0.0  # nearer to zero, numbers are too coarse to keep the promise
        return block, factor, limit


def _is_sparse(matrix: Any) -> bool:
    return bool(scipy.sparse.issparse(matrix))


def _usable(X: Any) -> Any:
    """Return X as a plain C-ordered array (a view where possible) or a canonical CSR array."""
    if _is_sparse(X):
        csr = scipy.sparse.csr_array(X)
        # a fresh object: the flag of the old one may be stale, and a repeated entry would hide from the norm
        csr = scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        X = csr
    else:
        X = np.asarray(X)
        if X.ndim == 2 and not X.flags.c_contiguous:
            X = np.ascontiguousarray(X)
    if X.ndim != 2:
        raise InvalidInput(f"X must have two dimensions, got {X.ndim}")
    if X.dtype not in (np.float32, np.float64):
        raise InvalidType(f"X must hold float32 or float64, got {X.dtype}; convert it")
    return X


def memory_mapped(X: Any) -> bool:
    """Return whether an array is a view of a memory map, which stays on disk."""
    while X is not None:
        if isinstance(X, np.memmap):
            return True
        X = getattr(X, "base", None)
    return False


def _block_rows(matrix: Any) -> int:
    width = matrix.shape[1]
    if _is_sparse(matrix):
        width = 2 * max(1, matrix.nnz // max(1, matrix.shape[0]))
    fewest, most = BLOCK_ROWS
    return int(min(most, max(fewest, _BLOCK_BYTES // (max(1, width) * 8))))


def _norms(block: Any) -> Floats:
    """Return the L2 norm of each row."""
    with np.errstate(over="ignore"):
        if _is_sparse(block):
            squares = scipy.sparse.csr_array((block.data**2, block.indices, block.indptr), block.shape)
            return np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
        squared: Floats = np.einsum("ij,ij->i", block, block)
        return np.sqrt(squared, out=squared)


def _joined(pieces: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *pieces])


def _all_finite(block: Any) -> bool:
    return bool(np.all(np.isfinite(block.data if _is_sparse(block) else block)))
