"""Which features are alike: the pieces that rows are cut in when features are measured.

Kinds are public, or told by what was released before (`ratewise.sizes`). The norm of a piece is that of its
row to the last bit, whatever rows stand beside it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Set
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ratewise.curves import Places
from ratewise.exceptions import InvalidInput
from ratewise.scaling import Scaling

Floats = npt.NDArray[np.float64]

_SMALLEST = 1e-12


def kinds_by_bounds(scaling: Scaling | None, n_features: int) -> npt.NDArray[np.intp]:
    """Return 1 for each feature that is declared to lie between 0 and 1, as categories do, else 0; public."""
    if scaling is None or scaling.lower is None or scaling.upper is None:
        return np.zeros(n_features, dtype=np.intp)
    return np.asarray((scaling.lower == 0.0) & (scaling.upper == 1.0), dtype=np.intp)


def kinds_by_name(given: Any, n_features: int) -> npt.NDArray[np.intp]:
    """Return a number per feature, the same for kinds given by the same name or number; public.

    >>> kinds_by_name(["number", "category", "category"], 3)
    array([1, 0, 0])
    """
    named = _listed(given)
    if len(named) != n_features or not all(_is_name(kind) for kind in named):
        raise InvalidInput(
            f"feature_kinds must list the kind of each of {n_features} features, a name or a number, got "
            f"{reprlib.repr(named or given)}; leave it out to tell kinds by feature_bounds"
        )
    order = {kind: place for place, kind in enumerate(sorted(dict.fromkeys(named), key=str))}
    return np.array([order[kind] for kind in named], dtype=np.intp)


def _listed(given: Any) -> list[Any]:
    """Return the entries of what has an order and can be read twice; of anything else none."""
    try:
        len(given)
        return [] if isinstance(given, str | bytes | bytearray | Mapping | Set) else list(given)
    except TypeError:
        return []


def _is_name(kind: Any) -> bool:
    missing = isinstance(kind, float | np.floating) and math.isnan(kind)
    return isinstance(kind, str | Real | np.bool_) and not missing


class Kinds:
    """Which features are of one kind: public, or told by what was released before.

    Parameters
    ----------
    of : array of whole numbers
        A number per feature, the same for features of one kind.
    """

    def __init__(self, of: npt.NDArray[np.intp]) -> None:
        names, self._of = np.unique(of, return_inverse=True)
        self.members = [np.flatnonzero(self._of == number) for number in range(len(names))]
        self._slices = [_run(members) for members in self.members]

    def __len__(self) -> int:
        return len(self.members)

    def spread(self, values: Floats) -> Floats:
        """Return, for each feature, the value of its kind; the last axis of `values` counts kinds."""
        return np.asarray(values[..., self._of], dtype=np.float64)

    def norms(self, block: Any) -> Floats:
        """Return the norms of the pieces of each row, (m, B).

        They are those of the row to the last bit, whatever stands beside it: else a row that comes or goes
        could move another one, at the edge of a bin, to the next.
        """
        with np.errstate(over="ignore"):
            whole = squared(block)
            pieces = [whole] if len(self) == 1 else [_columns(whole, places) for places in self._slices]
            sums = [np.asarray(piece.sum(axis=1), dtype=np.float64).ravel() for piece in pieces]
            return np.asarray(np.sqrt(np.column_stack(sums)))

    def shrunk(self, block: Any, bounds: Floats) -> Any:
        """Return rows with each piece shrunk to norm at most its bound, then divided by the bound."""
        # a hair below the bound, lest rounding lead past it; a piece of infinite length counts as zero
        factors = np.minimum(1.0 / bounds, (1.0 - 1e-9) / np.maximum(self.norms(block), _SMALLEST))
        if isinstance(block, np.ndarray):
            shrunk = np.empty(block.shape)
            for members, factor in zip(self._slices, factors.T, strict=True):
                shrunk[:, members] = block[:, members] * factor[:, None]
            return shrunk
        rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        entries = block.data * factors[rows, self._of[block.indices]]
        return sp.csr_array((entries, block.indices, block.indptr), shape=block.shape)


def _run(members: npt.NDArray[np.intp]) -> Places | slice:
    """Return places that follow one another, as those of categories mostly do, as a slice; others as given.

    >>> _run(np.array([3, 4, 5])), _run(np.array([0, 2]))
    (slice(3, 6, None), array([0, 2]))
    """
    first, last = int(members[0]), int(members[-1])
    return slice(first, last + 1) if last - first + 1 == len(members) else members


def _columns(block: Any, places: Places | slice) -> Any:
    """Return some columns; of an array row by row, so that rows are summed alike however many there are."""
    if isinstance(places, slice) or not isinstance(block, np.ndarray):
        return block[:, places]
    return block.take(places, axis=1)


def squared(block: Any) -> Any:
    """Return a block with every entry squared."""
    return np.square(block) if isinstance(block, np.ndarray) else block.power(2)
