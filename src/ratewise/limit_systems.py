"""Limits as a linear system, for reasoning about them without any row.

A limit bounds a sum of terms: shares of the rows of a subset, or of those of them that are predicted a class.
Of numbers of rows h[q, k], of cell q predicted k, each numerator and each denominator is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from ratewise.cells import Subset
from ratewise.compiled import CompiledConstraints
from ratewise.kernels import Terms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ENTRIES = 50_000
TOLERANCE = 1e-7  # by which bounds are relaxed, in units of a limit's largest coefficient


@dataclass(frozen=True, eq=False)
class LimitSystem:
    """Limits ``rates @ v <= bounds`` on terms v, scaled to a largest coefficient of 1, bounds relaxed.

    `sources` are the declared limits that each row rests on.
    """

    rates: Any
    bounds: Floats
    sources: list[Ints]
    terms: Terms
    sets: tuple[Subset, ...]
    cells: int
    classes: int
    members: list[Ints] = field(repr=False)

    @classmethod
    def of(cls, compiled: CompiledConstraints) -> LimitSystem | None:
        """Return the limits that can be reasoned about; None if they are too few or too many."""
        table, terms = sp.csr_array(compiled.coefficients), compiled.terms
        if not len(terms):
            return None
        sizes = np.array([subset.size(compiled.n_cells) for subset in compiled.index_sets])
        entries = table.nnz + int(sizes[terms.numerator].sum() + sizes[terms.denominator].sum())
        if entries > MOST_ENTRIES:
            return None
        scale = abs(table).max(axis=1).toarray().ravel()
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            bounds = compiled.bounds / scale
        usable = np.flatnonzero(np.isfinite(bounds) & _linear(table, terms))
        if len(usable) < 2:
            return None
        table = table[usable]
        table.data = table.data / np.repeat(scale[usable], np.diff(table.indptr))
        return cls(
            rates=table,
            bounds=bounds[usable] + TOLERANCE,
            sources=[np.array([j]) for j in usable],
            terms=terms,
            sets=compiled.index_sets,
            cells=compiled.n_cells,
            classes=compiled.n_classes,
            members=[subset.members(compiled.n_cells) for subset in compiled.index_sets],
        )

    def counted(self, subsets: Ints, classes: Ints | None) -> Any:
        """Return zero-one rows over the Q * K numbers h[q, k]: of a subset and a class, or of all classes."""
        if classes is None:
            every = np.arange(self.classes)
            columns = [(self.members[s][:, None] * self.classes + every).ravel() for s in subsets.tolist()]
        else:
            columns = [
                self.members[s] * self.classes + k
                for s, k in zip(subsets.tolist(), classes.tolist(), strict=True)
            ]
        ends = np.cumsum([0, *map(len, columns)])
        where = np.concatenate([np.empty(0, dtype=np.int64), *columns])
        return sp.csr_array(
            (np.ones(len(where)), where, ends), shape=(len(columns), self.cells * self.classes)
        )

    def of_one_denominator(self) -> NDArray[np.bool_]:
        """Return which limits read rates of one denominator only."""
        key = _denominators(self.terms)
        return np.array([len(set(key[part].tolist())) == 1 for part in term_rows(self.rates)], dtype=bool)

    def extended(self, terms: Ints, signs: Floats, bounds: Floats, sources: list[Ints]) -> LimitSystem:
        """Return the same limits and further ones, ``sign * v[term] <= bound``."""
        more = sp.csr_array((signs, (np.arange(len(terms)), terms)), shape=(len(terms), len(self.terms)))
        return replace(
            self,
            rates=sp.csr_array(sp.vstack([self.rates, more])),
            bounds=np.concatenate([self.bounds, bounds]),
            sources=[*self.sources, *sources],
        )

    def named(self, rows: NDArray[Any]) -> Ints:
        """Return the declared limits behind some rows."""
        return np.unique(np.concatenate([self.sources[row] for row in rows.tolist()]))


def term_rows(table: Any) -> list[NDArray[Any]]:
    """Return the terms that each row of a CSR table reads."""
    return np.split(table.indices, table.indptr[1:-1]) if table.shape[0] else []


def _denominators(terms: Terms) -> Ints:
    """Return a number per term, equal for equal denominators."""
    span = int(terms.klass.max()) + 2
    return terms.denominator * span + np.where(terms.ratio, terms.klass + 1, 0)


def _linear(table: Any, terms: Terms) -> NDArray[np.bool_]:
    """Return which limits have rates over rows only, or over one and the same predicted rows."""
    key = _denominators(terms)
    return np.array(
        [
            len(part) > 0 and (not terms.ratio[part].any() or len(set(key[part].tolist())) == 1)
            for part in term_rows(table)
        ],
        dtype=bool,
    )


def solve(cost: Floats, **conditions: Any) -> Any:
    """Return the solution of a linear programme at a vertex; None if the solver gives up."""
    found = linprog(cost, method="highs-ds", **conditions)
    return found if found.status == 0 else None
