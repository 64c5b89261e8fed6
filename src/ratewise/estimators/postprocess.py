"""Private, constrained decision rules on the scores of any classifier.

A rule predicts from the *bin* of a row's score, and on request from its group. Bins are fixed intervals of the margin
between the two largest class probabilities on the log scale, so they are public. Two releases are made:

1. The *score histogram*: rows by (cell, bin) and by (label, bin); with groups, by (label, group, bin).
2. The *certificate*: counts of the rule's predictions (`ratewise.training.certificate`).

Between them there is only post-processing. With p[v, k] the probability of predicting class k in bin v, every rate of the
constraints is linear in p, and so is the error. A linear programme over the released counts finds p:

    minimise    sum_v,k p[v, k] (N[v] - M[k, v]) / n  +  penalty * (largest violations)
    subject to  values of the constraints at p <= bounds,
                in each bin p is a mixture of the two classes with the largest probability,
                the probability of a class rises with the margin in its favour.

Rates whose denominator depends on the predictions, such as precision, are linearised at the previous solution and the
programme is solved again.

>>> import numpy as np
>>> from ratewise import demographic_parity
>>> rng = np.random.default_rng(0)
>>> sex = rng.integers(0, 2, 20_000)
>>> chance = 1 / (1 + np.exp(-rng.normal(sex - 0.5, 1.5)))
>>> y = (rng.random(20_000) < chance).astype(int)
>>> rule = postprocess(
...     chance, y, demographic_parity("sex", max_gap=0.05), sensitive_features={"sex": sex},
...     epsilon=1.0, delta=1e-5, classes=[0, 1], group_values={"sex": [0, 1]}, group_aware=True, random_state=0,
... )
>>> rule.certificate_.verdict, rule.predict([0.999, 0.001], {"sex": [0, 1]}).tolist()
('held', [1, 0])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from ratewise import _validate
from ratewise.accounting import (
    Ledger,
    PrivacyStatement,
)
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints
from ratewise.constraints.domain import Domain, Numeric
from ratewise.data.cells import parse_number
from ratewise.data.table import LabelledRows, declared_classes
from ratewise.estimators.evaluation import RowReleases, RowUnits
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.metrics.verdicts import Certificate
from ratewise.training.certificate import (
    COUNT_SENSITIVITY,
    count_stds,
    packed_tables,
)

__all__ = ["DecisionRule", "ScoreGrid", "postprocess"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FURTHEST = 8.0  # margins on the log scale beyond which bins are not told apart
_MARGINS = 32  # intervals of the margin in favour of one class, for two classes
_SCORES, _CERTIFICATE, _DATA = "score histogram", "certificate", "rows of the decision rule"
_CERTIFICATE_SHARE, _DISCOVERY_SHARE = 0.1, 0.05  # of the budget; the rest is for the score histogram
_PENALTY = 10.0  # errors (as a share of the rows) that one unit of violation is worth
_MOST_GROUPS = 5_000
_ROUNDS = 8  # of linearisation, for constraints with ratios
_TRUST = 0.25  # standard deviation of the error of the scores as probabilities


# ------------------------------------------------------------------------------------------- the bins


@dataclass(frozen=True)
class ScoreGrid:
    """Fixed bins of class probabilities: the two most probable classes, and the margin between them.

    Bin ``(top, second, m)`` contains the scores whose largest probability is that of `top`, whose next is that of
    `second`, and whose log ratio r lies in the m-th interval: ``m <= n_margins * sqrt(r / 8) < m + 1``. So bins are
    narrower where the classifier hesitates. The last bin is for scores that are not numbers.
    """

    n_classes: int

    @property
    def n_margins(self) -> int:
        """Number of intervals of the margin."""
        return _MARGINS if self.n_classes == 2 else max(4, _MARGINS // (self.n_classes - 1))

    @property
    def n_bins(self) -> int:
        """Number of bins; the last one is for scores that are not numbers."""
        return self.n_classes * (self.n_classes - 1) * self.n_margins + 1

    def read(self, scores: Any) -> Floats:
        """Return scores as an (n, K) array of probabilities, NaN where there is none; no entry raises an error.

        Parameters
        ----------
        scores : (n,) column or (n, K) array or frame
            For two classes, the probability of the second; otherwise one column per class.
        """
        shape = getattr(scores, "shape", None)
        if shape is None or len(shape) == 1:
            if self.n_classes != 2:
                raise InvalidInput(
                    f"scores must be an array or frame with {self.n_classes} columns, one per class"
                )
            second = _finite(scores)
            return np.stack([1.0 - second, second], axis=1)
        if len(shape) == 2 and shape[1] == 1 and self.n_classes == 2:
            return self.read(_columns(scores)[0])
        if len(shape) != 2 or shape[1] != self.n_classes:
            raise InvalidInput(
                f"scores must have one column per class ({self.n_classes}), or for two classes be the "
                f"probability of the second; got shape {tuple(shape)}"
            )
        return np.stack([_finite(column) for column in _columns(scores)], axis=1)

    def bins(self, probabilities: Floats) -> Ints:
        """Return the bin of each row of an (n, K) array."""
        known: NDArray[np.bool_] = np.asarray(np.isfinite(probabilities).all(axis=1))
        table = np.log(np.clip(np.where(known[:, None], probabilities, 0.5), 1e-12, 1.0))
        rows = np.arange(len(table))
        top = table.argmax(axis=1)
        best = table[rows, top].copy()
        table[rows, top] = -np.inf
        second = table.argmax(axis=1)
        margin = np.sqrt((best - table[rows, second]) / _FURTHEST) * self.n_margins
        place = np.minimum(margin.astype(np.int64), self.n_margins - 1)
        pair = top * (self.n_classes - 1) + second - (second > top)
        return np.where(known, pair * self.n_margins + place, self.n_bins - 1)

    @property
    def candidates(self) -> tuple[Ints, Ints]:
        """The most and the second most probable class of every bin but the last."""
        pairs = [(k, j) for k in range(self.n_classes) for j in range(self.n_classes) if j != k]
        top, second = np.repeat(np.array(pairs, dtype=np.int64), self.n_margins, axis=0).T
        return top, second

    @property
    def odds(self) -> Floats:
        """Probability of the top class against the second in the middle of every bin but the last."""
        middle = _FURTHEST * np.square((np.arange(self.n_margins) + 0.5) / self.n_margins)
        one: Floats = 1.0 / (1.0 + np.exp(-middle))
        return np.tile(one, self.n_classes * (self.n_classes - 1))

    def chains(self) -> list[list[int]]:
        """Return, for each pair of classes k < l, the bins from the largest margin for l to that for k."""
        width, found = self.n_margins, []
        for k, j in itertools.combinations(range(self.n_classes), 2):
            lower = (j * (self.n_classes - 1) + k) * width
            upper = (k * (self.n_classes - 1) + j - 1) * width
            found.append([*range(lower + width - 1, lower - 1, -1), *range(upper, upper + width)])
        return found


def _finite(column: Any) -> Floats:
    numbers = parse_number(column).values
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _columns(scores: Any) -> list[Any]:
    if hasattr(scores, "iloc"):
        return [scores.iloc[:, place] for place in range(scores.shape[1])]
    if hasattr(scores, "columns"):
        return [scores[name] for name in scores.columns]
    array = np.asarray(scores)
    return [array[:, place] for place in range(array.shape[1])]


# ------------------------------------------------------------------------------------------- the rule


class DecisionRule:
    """A decision rule on scores; made by `postprocess`.

    Attributes
    ----------
    classes_ : array
        Classes, in the order of the columns of scores.
    certificate_ : Certificate
        Whether the rule satisfies the constraints on the rows it was made from.
    privacy_ : PrivacyStatement
    ledger_ : Ledger
    probabilities_ : (groups, bins, K) array
        Probability of each prediction; there is one group unless the rule uses groups.
    grid_ : ScoreGrid
    """

    def __init__(
        self,
        grid: ScoreGrid,
        domain: Domain,
        constraints: Any,
        probabilities: Floats,
        groups: _Groups | None,
        certificate: Certificate,
        privacy: PrivacyStatement,
        ledger: Ledger,
    ) -> None:
        self.grid_ = grid
        self.classes_ = np.array(domain.classes)
        self.constraints = constraints
        self.probabilities_ = probabilities
        self.certificate_ = certificate
        self.privacy_ = privacy
        self.ledger_ = ledger
        self._domain = domain
        self._groups = groups

    @property
    def group_aware(self) -> bool:
        """Whether predictions need the sensitive features."""
        return self._groups is not None

    def predict_proba(self, scores: Any, sensitive_features: Any = None) -> Floats:
        """Return the probability of each prediction, (n, K). It is 0 or 1 except in a few bins.

        Parameters
        ----------
        scores : (n,) or (n, K)
            As in `postprocess`.
        sensitive_features : optional
            Needed if the rule uses groups, and ignored otherwise.
        """
        table = self.grid_.read(scores)
        place: Any = 0
        if self._groups is not None:
            place = self._groups.of(self._domain, sensitive_features, len(table))
        chances: Floats = self.probabilities_[place, self.grid_.bins(table)]
        return chances

    def predict(self, scores: Any, sensitive_features: Any = None, *, random_state: Any = None) -> Any:
        """Return the predicted classes. In bins with a mixture they are drawn, each row by itself.

        Parameters
        ----------
        scores, sensitive_features
            As in `predict_proba`.
        random_state : int, NumPy generator or None
            For the draws; None takes the secure source.
        """
        chances = self.predict_proba(scores, sensitive_features)
        return self.classes_[_drawn(chances, RandomStreams.from_seed(random_state).sampling)]

    def report(self, scores: Any, y: Any, *, sensitive_features: Any = None, **options: Any) -> Any:
        """Return a `ratewise.report.Report` of the rule on public rows.

        Parameters
        ----------
        scores, y, sensitive_features
            The rows.
        **options
            Further arguments of `Report.from_predictions`, such as ``baseline`` or ``confidence``.
        """
        from ratewise.report import Report

        given = {
            "classes": self._domain.classes,
            "statement": self.privacy_,
            "ledger": self.ledger_,
            **options,
        }
        predicted = self.predict(scores, sensitive_features)
        return Report.from_predictions(y, predicted, sensitive_features, self.constraints or None, **given)

    def __repr__(self) -> str:
        kind = "with groups" if self.group_aware else "without groups"
        mixed = int(((self.probabilities_ > 0) & (self.probabilities_ < 1)).any(axis=2).sum())
        return f"<DecisionRule {kind}, {mixed} bins with mixtures: {self.certificate_.summary}>"


def postprocess(
    scores: Any,
    y: Any,
    constraints: Any,
    *,
    sensitive_features: Any = None,
    epsilon: float | None,
    delta: float | None = None,
    group_aware: bool = False,
    classes: Iterable[Any] | None = None,
    group_values: Mapping[str, Any] | None = None,
    privacy_ids: Any = None,
    rows_per_id: int | None = None,
    id_weighting: str = "id",
    neighbours: str = "add_or_remove",
    ledger: Ledger | None = None,
    tolerance: float = 0.01,
    level: float = 0.95,
    random_state: Any = None,
) -> DecisionRule:
    """Return a decision rule on scores that satisfies rate constraints, (epsilon, delta)-privately.

    Parameters
    ----------
    scores : (n,) column, or (n, K) array or frame
        Scores of any classifier: for two classes the probability of the second class, otherwise one column per
        class in sorted order. They need not be calibrated. The classifier must not have been trained on these rows,
        unless its training is private and recorded in the same ledger.
    y : (n,) column
        Labels. Rows with an undeclared label are not counted.
    constraints : constraint, family, text, or any nesting of lists of them
    sensitive_features : data frame, mapping, vector
        The groups that the constraints read.
    epsilon, delta : float or None
        What the rule may cost. ``epsilon=None``: no privacy. ``delta=None``: the smaller of 1e-5 and 0.1 / n.
    group_aware : bool
        Whether predictions may use the groups; then `predict` needs them.
    classes, group_values : optional
        All classes, and all values of each column. What is not declared is found by a private release, for a
        twentieth of the budget.
    privacy_ids, rows_per_id, id_weighting
        As in `ratewise.estimators.evaluation.evaluate`.
    neighbours : str
    ledger : Ledger, optional
        Where the plan is admitted before any row is read; by default a new one with this budget as its cap.
    tolerance, level : float
        Of the certificate.
    random_state : int, NumPy generator or None
        None takes a secure source. A seed must stay secret.

    Returns
    -------
    DecisionRule

    Notes
    -----
    The relation between neighbours is about rows of this call. If the classifier was trained on private rows,
    its own guarantee comes on top.
    """
    _validate.non_negative(tolerance=tolerance)
    _validate.inside(level=level)
    rows = LabelledRows(constraints, y, sensitive_features, classes, group_values)
    if not rows.declarations:
        raise InvalidInput("constraints is empty; a rule without constraints is the classifier's own")
    shape = getattr(scores, "shape", None) or (len(scores),)
    if shape[0] != rows.n_rows:
        raise InvalidInput(f"scores must have one entry per row of y: {shape[0]} against {rows.n_rows}")
    units = RowUnits(
        y, None if classes is None else declared_classes(classes), privacy_ids, rows_per_id, id_weighting
    )
    small = min(1e-5, 0.1 / units.n_units) if delta is None else _validate.inside(delta=delta)
    releases = RowReleases(
        "post-processing",
        rows,
        {_SCORES: 1.0 - _CERTIFICATE_SHARE, _CERTIFICATE: _CERTIFICATE_SHARE},
        _DISCOVERY_SHARE,
        units=units,
        budget=(epsilon, small, neighbours),
        ledger=ledger,
        data_name=_DATA,
        random_state=random_state,
    )
    admission = releases.admit()
    domain = releases.domain()
    compiled = compile_constraints(rows.declarations, domain, allow_empty=True)
    grid = ScoreGrid(compiled.n_classes)
    groups = _Groups(rows.forget(), compiled) if group_aware else None
    labels = rows.labels(domain)
    cells = rows.cells(compiled, labels)
    bins = grid.bins(grid.read(scores))
    group = np.zeros(rows.n_rows, dtype=np.int64)
    if groups is not None:
        group = groups.of(domain, sensitive_features, rows.n_rows)
    counts = _ScoreCounts.release(compiled, grid, groups, (labels, cells, bins, group), releases)
    chances = _solve(compiled, grid, counts)
    predicted = _drawn(chances[group, bins], releases.streams.sampling)
    certificate = releases.certificate(
        _CERTIFICATE,
        compiled,
        (cells, labels, predicted),
        cell_totals=counts.cells.sum(axis=1),
        cell_totals_std=counts.cell_totals_std,
        tolerance=tolerance,
        level=level,
    )
    public = ["the scores' format", "the constraints and what is declared"]
    statement = admission.statement(small, n_units=units.n_units, public=public, found=releases.found)
    return DecisionRule(
        grid, domain, rows.declarations, chances, groups, certificate, statement, admission.ledger
    )


def _drawn(chances: Floats, rng: np.random.Generator) -> Ints:
    """Return one class per row, drawn by its probabilities."""
    uniform = np.asarray(rng.random(len(chances)))
    reached = (np.cumsum(chances, axis=1) <= uniform[:, None]).sum(axis=1)
    drawn: Ints = np.minimum(reached, chances.shape[1] - 1)
    return drawn


# ----------------------------------------------------------------------------------------- the groups


class _Groups:
    """The groups that a rule may tell apart: combinations of column values with different cells."""

    def __init__(self, rows: LabelledRows, compiled: CompiledConstraints) -> None:
        domain = compiled.domain
        self._rows = rows
        self._sizes: dict[str, int] = {}
        for name, values in domain.columns.items():
            if isinstance(values, Numeric):
                raise UnsupportedCombination(
                    f"group_aware=True needs listed values of every column, but {name!r} is numeric"
                )
            self._sizes[name] = len(values) + 1  # with OTHER
        combinations = math.prod(self._sizes.values())
        if combinations > _MOST_GROUPS:
            raise InvalidInput(
                f"group_aware=True is for at most {_MOST_GROUPS} combinations of group values, got {combinations}"
            )
        codes = np.array(list(itertools.product(*(range(size) for size in self._sizes.values()))))
        columns = {name: codes[:, place] for place, name in enumerate(self._sizes)}
        cells = [
            compiled.code_cells(np.full(combinations, k), columns, coded=True)
            for k in range(compiled.n_classes)
        ]
        self.cells, place = np.unique(np.stack(cells), axis=1, return_inverse=True)
        """The cell of each label and group, (K, G)."""
        self._place = place.reshape(-1)

    def __len__(self) -> int:
        return int(self.cells.shape[1])

    def of(self, domain: Domain, sensitive_features: Any, n_rows: int) -> Ints:
        """Return the group of each row; no entry raises an error."""
        codes = self._rows.group_codes(domain, sensitive_features, n_rows)
        flat = np.zeros(n_rows, dtype=np.int64)
        for name, size in self._sizes.items():
            flat = flat * size + codes[name]
        found: Ints = self._place[flat]
        return found


# --------------------------------------------------------------------------------- the score histogram


@dataclass(frozen=True, eq=False)
class _ScoreCounts:
    """Released counts of rows by cell and column v, and by label and column v; v is (group, bin), flattened."""

    cells: Floats
    labels: Floats
    cells_variance: Floats
    labels_std: float

    @property
    def cell_totals_std(self) -> Floats:
        """Standard deviation of the noise of each cell's total."""
        std: Floats = np.sqrt(self.cells_variance.sum(axis=1))
        return std

    @classmethod
    def release(
        cls,
        compiled: CompiledConstraints,
        grid: ScoreGrid,
        groups: _Groups | None,
        codes: tuple[NDArray[Any], NDArray[Any], Ints, Ints],
        releases: RowReleases,
    ) -> _ScoreCounts:
        """Count and release; codes are labels, cells, bins and groups of the rows.

        Without groups: counts C by cell and bin, and L by label and bin, as (2 C, L): L2 sensitivity sqrt(5). With
        groups: counts by label, group and bin, in one of which a row is: L2 sensitivity 1.
        """
        labels, cells, bins, group = (np.asarray(part, dtype=np.int64) for part in codes)
        width, weights, noise = grid.n_bins, releases.weights, releases.noise(_SCORES)
        if groups is None:
            by_cell = _table(cells, bins, (compiled.n_cells, width), weights)
            by_label = _table(labels, bins, (compiled.n_classes, width), weights)
            released = releases.release(_SCORES, COUNT_SENSITIVITY, packed_tables(by_cell, by_label))
            first, last = np.split(released, [by_cell.size])
            cells_std, labels_std = count_stds(noise)
            variance = np.full(by_cell.shape, cells_std**2)
            return cls(first.reshape(-1, width) / 2.0, last.reshape(-1, width), variance, labels_std)
        columns = group * width + bins
        exact = _table(labels, columns, (compiled.n_classes, len(groups) * width), weights)
        released = releases.release(_SCORES, 1.0, exact)
        parts = released.reshape(compiled.n_classes, len(groups), width)
        by_cell, variance = np.zeros((2, compiled.n_cells, len(groups), width))
        for k, g in itertools.product(range(compiled.n_classes), range(len(groups))):
            if groups.cells[k, g] >= 0:
                by_cell[groups.cells[k, g], g] += parts[k, g]
                variance[groups.cells[k, g], g] += noise**2
        flat = compiled.n_cells, -1
        return cls(by_cell.reshape(flat), released, variance.reshape(flat), noise)


def _table(rows: Ints, columns: Ints, shape: tuple[int, int], weights: Floats | None) -> Floats:
    n_rows, n_columns = shape
    inside = (rows >= 0) & (rows < n_rows)
    flat = np.where(inside, rows * n_columns + columns, n_rows * n_columns)
    counts = np.bincount(flat, weights, minlength=n_rows * n_columns + 1)[:-1]
    return counts.reshape(n_rows, n_columns).astype(np.float64)


# ------------------------------------------------------------------------------ the linear programme


def _solve(compiled: CompiledConstraints, grid: ScoreGrid, counts: _ScoreCounts) -> Floats:
    """Return the rule, as probabilities of shape (groups, bins, K), from released counts only."""
    programme = _Programme(compiled, grid, counts)
    best = current = programme.table(programme.start())
    margins = np.zeros(len(compiled))
    rank = (math.inf, math.inf)
    for turn in range(_ROUNDS if compiled.terms.ratio.any() else 2):
        current = programme.table(programme.minimise(current, compiled.bounds - margins))
        values, deviations = programme.values(current)
        # aim below the bounds by what the noise of the histogram moves the values by
        margins = np.minimum(deviations, np.abs(compiled.bounds) / 2.0)
        if turn == 0:
            continue
        found = float(np.maximum(values - compiled.bounds + margins, 0.0).sum()), programme.error(current)
        if (round(found[0], 6), found[1]) < rank:
            best, rank = current, (round(found[0], 6), found[1])
    return best.reshape(-1, grid.n_bins, compiled.n_classes)


class _Programme:
    """The linear programme: one variable per bin (the share of its top class), K for a bin without scores."""

    def __init__(self, compiled: CompiledConstraints, grid: ScoreGrid, counts: _ScoreCounts) -> None:
        self._compiled, self._grid, self._counts = compiled, grid, counts
        self._n_groups = counts.cells.shape[1] // grid.n_bins
        self._regular = grid.n_bins - 1
        self._top, self._second = grid.candidates
        self._totals = counts.cells.sum(axis=1)
        self._costs = self._errors()
        self._rises = self._monotone()

    def _errors(self) -> Floats:
        """Return, per column and class, the share of the rows that predicting the class gets wrong.

        The released counts of labels are averaged with those that the scores, read as probabilities, predict; the
        weights are inverse variances. So bins with few rows beside the noise follow the scores.
        """
        grid, labels = self._grid, self._counts.labels
        rows = np.maximum(labels.sum(axis=0), 0.0)
        expected = np.full(labels.shape, 1.0 / len(labels)) * rows
        width, each = grid.n_bins, np.arange(self._regular)
        for g in range(self._n_groups):
            part = expected[:, g * width : (g + 1) * width - 1]
            here = rows[g * width : (g + 1) * width - 1]
            part[:] = 0.0
            part[self._top, each] = grid.odds * here
            part[self._second, each] = (1.0 - grid.odds) * here
        doubt = np.square(_TRUST * rows)
        weight = doubt / np.maximum(doubt + self._counts.labels_std**2, 1e-12)
        counted = weight * labels + (1.0 - weight) * expected
        costs: Floats = (rows - counted).T / max(float(rows.sum()), 1.0)
        return costs

    def start(self) -> Floats:
        """Return the classifier's own rule as variables."""
        one = np.concatenate([np.ones(self._regular), np.full(self._compiled.n_classes, 0.0)])
        one[self._regular] = 1.0
        return np.tile(one, self._n_groups)

    def table(self, variables: Floats) -> Floats:
        """Return the probabilities (columns, K) of a solution."""
        n_classes, width = self._compiled.n_classes, self._grid.n_bins
        found = np.zeros((self._n_groups, width, n_classes))
        each = np.arange(self._regular)
        for g, part in enumerate(variables.reshape(self._n_groups, -1)):
            share = np.where(np.abs(part - np.rint(part)) < 1e-7, np.abs(np.rint(part)), part).clip(0.0, 1.0)
            found[g, each, self._top] = share[: self._regular]
            found[g, each, self._second] = 1.0 - share[: self._regular]
            last = share[self._regular :]
            found[g, -1] = last / max(float(last.sum()), 1e-12)
        return found.reshape(-1, n_classes)

    def error(self, table: Floats) -> float:
        """Return the estimated error of a rule."""
        return float((table * self._costs).sum())

    def values(self, table: Floats) -> tuple[Floats, Floats]:
        """Return the values of the constraints, and how far the noise of the histogram moves them."""
        histogram = self._counts.cells @ table
        noise = np.sqrt(self._counts.cells_variance @ np.square(table))
        return self._compiled.value_and_std(histogram, noise, self._totals)

    def minimise(self, table: Floats, bounds: Floats) -> Floats:
        """Return the variables of the best rule, with constraints linearised at the rule `table`."""
        compiled, counts = self._compiled, self._counts
        histogram = counts.cells @ table
        values = compiled.values(histogram, self._totals, clamp=False)
        rows, right = [], []
        for j in range(len(compiled)):
            weights = compiled.weights(np.eye(1, len(compiled), j)[0], histogram, self._totals, clamp=False)
            row, constant = self._in_variables(counts.cells.T @ weights)
            rows.append(row)
            right.append(bounds[j] - values[j] + float((weights * histogram).sum()) - constant)
        cost, _ = self._in_variables(self._costs)
        count = len(cost)
        limits = sp.hstack([sp.csr_array(np.array(rows)), -sp.eye_array(len(rows))])
        rises = sp.hstack([self._rises[0], sp.csr_array((self._rises[0].shape[0], len(rows)))])
        sums = sp.hstack([self._sums(), sp.csr_array((self._n_groups, len(rows)))])
        solved = linprog(
            np.concatenate([cost, np.full(len(rows), _PENALTY)]),
            A_ub=sp.vstack([limits, rises]).tocsr(),
            b_ub=np.concatenate([right, self._rises[1]]),
            A_eq=sums.tocsr(),
            b_eq=np.ones(self._n_groups),
            bounds=[(0.0, 1.0)] * count + [(0.0, None)] * len(rows),
            method="highs",
        )
        return self.start() if solved.x is None else np.asarray(solved.x[:count], dtype=np.float64)

    def _in_variables(self, weights: Floats) -> tuple[Floats, float]:
        """Return sum_v,k weights[v, k] p[v, k] as coefficients of the variables and a constant."""
        each, parts, constant = np.arange(self._regular), [], 0.0
        for part in weights.reshape(self._n_groups, self._grid.n_bins, -1):
            regular = part[:-1]
            parts += [regular[each, self._top] - regular[each, self._second], part[-1]]
            constant += float(regular[each, self._second].sum())
        return np.concatenate(parts), constant

    def _sums(self) -> Any:
        """Return the matrix that adds up the K variables of each bin without scores."""
        ones = np.concatenate([np.zeros(self._regular), np.ones(self._compiled.n_classes)])
        return sp.kron(sp.eye_array(self._n_groups), sp.csr_array(ones[None, :]))

    def _monotone(self) -> tuple[Any, Floats]:
        """Return A and b of A x <= b: along a chain, the probability of its class does not fall."""
        rows, right = [], []
        for chain in self._grid.chains():
            half = len(chain) // 2
            for place, (v, w) in enumerate(itertools.pairwise(chain)):
                row = np.zeros(self._regular + self._compiled.n_classes)
                # the probability of the chain's class is 1 - x in the first half and x in the second
                row[v] += -1.0 if place < half else 1.0
                row[w] -= -1.0 if place + 1 < half else 1.0
                rows.append(row)
                right.append(-float(place < half) + float(place + 1 < half))
        one = sp.csr_array(np.array(rows))
        return sp.kron(sp.eye_array(self._n_groups), one), np.tile(np.array(right), self._n_groups)
