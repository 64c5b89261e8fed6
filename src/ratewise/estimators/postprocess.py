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
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from ratewise import _validate
from ratewise.accounting import Ledger, PrivacyStatement
from ratewise.constraints.compiled import CompiledConstraints, as_constraints
from ratewise.constraints.domain import Domain, Numeric
from ratewise.data.cells import parse_number
from ratewise.data.table import code_groups, raw_columns
from ratewise.estimators.evaluation import RowSession
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.training.certificate import COUNT_SENSITIVITY, Certificate, count_stds, packed_tables
from ratewise.training.plan import CERTIFICATE

__all__ = ["DecisionRule", "ScoreGrid", "postprocess"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FURTHEST = 8.0  # margins on the log scale beyond which bins are not told apart
_MARGINS = 32  # intervals of the margin in favour of one class, for two classes
_SCORES = "score histogram"
_SHARES = {_SCORES: 0.9, CERTIFICATE: 0.1}  # of the budget that discovery leaves
_DISCOVERY_SHARE = 0.05
_PENALTY = 10.0  # errors (as a share of the rows) that one unit of violation is worth
_MOST_GROUPS = 5_000
_ROUNDS = 8  # of linearisation, for constraints with ratios
_SCORE_ERROR = 0.25  # standard deviation of the error of the scores as probabilities


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

        Scores are one column per class, or for two classes the probability of the second.
        """
        shape = getattr(scores, "shape", None)
        if shape is None or len(shape) == 1:
            if self.n_classes != 2:
                raise InvalidInput(f"scores must be an array or frame with {self.n_classes} columns, one per class")
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
    array = np.asanyarray(scores)  # masked cells are missing
    return [array[:, place] for place in range(array.shape[1])]


# ------------------------------------------------------------------------------------------- the rule


@dataclass(frozen=True, eq=False, repr=False)
class DecisionRule:
    """A decision rule on scores; made by `postprocess`.

    `classes_` are in the order of the columns of scores, and `constraints` is what was requested. `certificate_` says
    whether the rule satisfies them on the rows that it was made from. `probabilities_` (groups, bins, K) has the
    probability of each prediction; there is one group unless the rule uses groups.
    """

    classes_: NDArray[Any]
    constraints: list[Any]
    certificate_: Certificate
    privacy_: PrivacyStatement
    ledger_: Ledger
    probabilities_: Floats
    grid_: ScoreGrid
    _groups: _Groups | None

    @property
    def group_aware(self) -> bool:
        """Whether predictions need the sensitive features."""
        return self._groups is not None

    def predict_proba(self, scores: Any, sensitive_features: Any = None) -> Floats:
        """Return the probability of each prediction, (n, K). It is 0 or 1 except in a few bins.

        `scores` are as in `postprocess`; `sensitive_features` are needed if the rule uses groups, and ignored otherwise.
        """
        table = self.grid_.read(scores)
        place: Any = 0 if self._groups is None else self._groups.of(sensitive_features, len(table))
        chances: Floats = self.probabilities_[place, self.grid_.bins(table)]
        return chances

    def predict(self, scores: Any, sensitive_features: Any = None, *, random_state: Any = None) -> Any:
        """Return the predicted classes. In bins with a mixture they are drawn, each row by itself.

        Arguments are as in `predict_proba`; `random_state` is for the draws, and None takes the secure source.
        """
        chances = self.predict_proba(scores, sensitive_features)
        return self.classes_[_drawn(chances, RandomStreams.from_seed(random_state).sampling)]

    def report(self, scores: Any, y: Any, *, sensitive_features: Any = None, **options: Any) -> Any:
        """Return a `ratewise.report.Report` of the rule on public rows; `options` are those of `Report.from_predictions`."""
        from ratewise.report import Report

        known = {"classes": self.classes_.tolist(), "statement": self.privacy_, "ledger": self.ledger_}
        predicted = self.predict(scores, sensitive_features)
        return Report.from_predictions(y, predicted, sensitive_features, self.constraints, **known | options)

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
    constraints, sensitive_features
        What is requested, and the groups that it is about.
    epsilon, delta : float or None
        What the rule may cost. ``epsilon=None``: no privacy. ``delta=None``: the smaller of 1e-5 and 0.1 / n.
    group_aware : bool
        Whether predictions may use the groups; then `predict` needs them.
    classes, group_values : optional
        All classes, and all values of each column. What is not declared is found by a private release, for a
        twentieth of the budget.
    privacy_ids, rows_per_id, id_weighting, neighbours, ledger, tolerance, level, random_state
        As in `ratewise.estimators.evaluation.evaluate`.

    Notes
    -----
    The relation between neighbours is about rows of this call. If the classifier was trained on private rows,
    its own guarantee comes on top.
    """
    _validate.non_negative(tolerance=tolerance)
    _validate.inside(level=level)
    if not as_constraints(constraints):
        raise InvalidInput("constraints is empty; a rule without constraints is the classifier's own")
    if delta is not None:
        _validate.inside(delta=delta)
    session = RowSession.open(
        constraints,
        y,
        sensitive_features,
        classes,
        group_values,
        (epsilon, 1e-5 if delta is None else delta, neighbours),
        (privacy_ids, rows_per_id, id_weighting),
        random_state,
        purpose="post-processing",
        shares=_SHARES,
        discovery_share=_DISCOVERY_SHARE,
        ledger=ledger,
        data_name="rows of the decision rule",
    )
    n_rows, n_units = session.n_rows, session.rows.count_units()
    shape = getattr(scores, "shape", None) or (len(scores),)
    if shape[0] != n_rows:
        raise InvalidInput(f"scores must have one entry per row of y: {shape[0]} against {n_rows}")
    if delta is None:
        session.delta = min(1e-5, 0.1 / n_units)
    session.declare_and_plan()
    session.find_domain()
    domain, compiled = session.known
    grid = ScoreGrid(compiled.n_classes)
    groups = _Groups(compiled, tuple(session.rows.groups)) if group_aware else None
    bins = grid.bins(grid.read(scores))
    group = np.zeros(n_rows, dtype=np.int64) if groups is None else groups.codes(session.rows.groups, n_rows)
    counts = _score_counts(session, grid, groups, group, bins)
    chances = _solve(compiled, grid, counts)
    certificate = session.certificate_of(
        CERTIFICATE,
        _drawn(chances[group, bins], session.streams.sampling),
        cell_totals=counts.cells.sum(axis=1),
        cell_totals_std=np.sqrt(counts.cells_variance.sum(axis=1)),
        tolerance=tolerance,
        level=level,
    )
    statement = session.statement(("the scores' format", "the constraints and what is declared"))
    return DecisionRule(
        classes_=np.array(domain.classes),
        constraints=session.declarations.constraints,
        certificate_=certificate,
        privacy_=statement,
        ledger_=session.admission.ledger,
        probabilities_=chances,
        grid_=grid,
        _groups=groups,
    )


def _drawn(chances: Floats, rng: np.random.Generator) -> Ints:
    """Return one class per row, drawn by its probabilities."""
    uniform = np.asarray(rng.random(len(chances)))
    reached = (np.cumsum(chances, axis=1) <= uniform[:, None]).sum(axis=1)
    drawn: Ints = np.minimum(reached, chances.shape[1] - 1)
    return drawn


class _Groups:
    """The groups that a rule may tell apart: combinations of column values with different cells.

    `cells` has the cell of each label and group, (K, G).
    """

    def __init__(self, compiled: CompiledConstraints, names: tuple[str, ...]) -> None:
        self._domain: Domain = compiled.domain
        self._names = names
        for name, values in self._domain.columns.items():
            if isinstance(values, Numeric):
                raise UnsupportedCombination(
                    f"group_aware=True needs listed values of every column, but {name!r} is numeric"
                )
        columns: dict[str, Any] = self._domain.columns
        self._shape = tuple(len(values) + 1 for values in columns.values())  # with OTHER
        combinations = math.prod(self._shape)
        if combinations > _MOST_GROUPS:
            raise InvalidInput(
                f"group_aware=True is for at most {_MOST_GROUPS} combinations of group values, got {combinations}"
            )
        codes = dict(zip(columns, np.indices(self._shape).reshape(-1, combinations), strict=True))
        cells = [compiled.code_cells(np.full(combinations, k), codes) for k in range(compiled.n_classes)]
        self.cells, place = np.unique(np.stack(cells), axis=1, return_inverse=True)
        self._place = place.reshape(-1)

    def of(self, sensitive_features: Any, n_rows: int) -> Ints:
        """Return the group of each row; no entry raises an error."""
        return self.codes(raw_columns(sensitive_features, n_rows, self._names), n_rows)

    def codes(self, columns: Mapping[str, Any], n_rows: int) -> Ints:
        """Return the group of each row of raw columns."""
        flat = np.zeros(n_rows, dtype=np.int64)
        for size, codes in zip(self._shape, code_groups(columns, self._domain).values(), strict=True):
            flat = flat * size + codes
        found: Ints = self._place[flat]
        return found


# --------------------------------------------------------------------------------- the score histogram


class _ScoreCounts(NamedTuple):
    """Released counts of rows by cell and column v, and by label and column v; v is (group, bin), flattened."""

    cells: Floats
    labels: Floats
    cells_variance: Floats
    labels_std: float


def _score_counts(
    session: RowSession, grid: ScoreGrid, groups: _Groups | None, group: Ints, bins: Ints
) -> _ScoreCounts:
    """Count and release.

    Without groups: counts C by cell and bin, and L by label and bin, as (2 C, L): L2 sensitivity sqrt(5). With
    groups: counts by label, group and bin, in one of which a row is: L2 sensitivity 1.
    """
    compiled, problem, width = session.known[1], session.rows.problem, grid.n_bins
    noise, weights = session.noise(_SCORES), session.weights

    def table(rows: Any, columns: Ints, n_rows: int, n_columns: int) -> Floats:
        place = np.asarray(rows, dtype=np.int64)
        flat = np.where(place >= 0, place * n_columns + columns, n_rows * n_columns)
        counts = np.bincount(flat, weights, minlength=n_rows * n_columns + 1)[:-1]
        return counts.reshape(n_rows, n_columns).astype(np.float64)

    if groups is None:
        by_cell = table(problem.cells, bins, compiled.n_cells, width)
        by_label = table(problem.labels, bins, compiled.n_classes, width)
        released = session.release(_SCORES, COUNT_SENSITIVITY, packed_tables(by_cell, by_label))
        first, last = np.split(released, [by_cell.size])
        cells_std, labels_std = count_stds(noise)
        variance = np.full(by_cell.shape, cells_std**2)
        return _ScoreCounts(first.reshape(-1, width) / 2.0, last.reshape(-1, width), variance, labels_std)
    n_groups = groups.cells.shape[1]
    exact = table(problem.labels, group * width + bins, compiled.n_classes, n_groups * width)
    released = session.release(_SCORES, 1.0, exact)
    parts = released.reshape(compiled.n_classes, n_groups, width)
    sums, variance = np.zeros((2, compiled.n_cells, n_groups, width))
    for k, g in zip(*np.nonzero(groups.cells >= 0), strict=True):
        sums[groups.cells[k, g], g] += parts[k, g]
        variance[groups.cells[k, g], g] += noise**2
    flat = compiled.n_cells, -1
    return _ScoreCounts(sums.reshape(flat), released, variance.reshape(flat), noise)


# ------------------------------------------------------------------------------ the linear programme


def _solve(compiled: CompiledConstraints, grid: ScoreGrid, counts: _ScoreCounts) -> Floats:
    """Return the rule, as probabilities of shape (groups, bins, K), from released counts only."""
    programme = _Programme(compiled, grid, counts)
    best = current = programme.table(programme.start)
    margins = np.zeros(len(compiled))
    rank = (math.inf, math.inf)
    for turn in range(_ROUNDS if compiled.terms.ratio.any() else 2):
        current = programme.table(programme.minimise(current, compiled.bounds - margins))
        values, deviations = programme.values(current)
        # aim below the bounds by what the noise of the histogram moves the values by
        margins = np.minimum(deviations, np.abs(compiled.bounds) / 2.0)
        violation = float(np.maximum(values - compiled.bounds + margins, 0.0).sum())
        found = round(violation, 6), float((current * programme.costs).sum())
        if turn > 0 and found < rank:
            best, rank = current, found
    return best.reshape(-1, grid.n_bins, compiled.n_classes)


class _Programme:
    """The linear programme over x: for each bin the share of its top class, and K shares for the bin without scores.

    The probabilities are ``p = offset + expand @ x``, flattened over groups, bins and classes. `start` is the
    classifier's own rule, and `costs` has, per column and class, the share of the rows that predicting the class gets
    wrong.
    """

    def __init__(self, compiled: CompiledConstraints, grid: ScoreGrid, counts: _ScoreCounts) -> None:
        n_classes, regular = compiled.n_classes, grid.n_bins - 1
        self._compiled, self._counts, self._totals = compiled, counts, counts.cells.sum(axis=1)
        self._shape = -1, grid.n_bins, n_classes
        n_groups = counts.cells.shape[1] // grid.n_bins
        each, (top, second) = np.arange(regular), grid.candidates
        expand, offset = np.zeros((grid.n_bins * n_classes, regular + n_classes)), np.zeros(self._shape[1:])
        expand[each * n_classes + top, each] = 1.0
        expand[each * n_classes + second, each] = -1.0
        expand[-n_classes:, -n_classes:] = np.eye(n_classes)
        offset[each, second] = 1.0
        of_groups = sp.eye_array(n_groups)
        self._expand: Any = sp.kron(of_groups, sp.csr_array(expand)).tocsr()
        self._offset = np.tile(offset.ravel(), n_groups)
        self.start = np.tile(np.append(np.ones(regular + 1), np.zeros(n_classes - 1)), n_groups)
        last = np.append(np.zeros(regular), np.ones(n_classes))
        self._sums = sp.kron(of_groups, sp.csr_array(last[None, :]))
        rises, right = _monotone(grid, len(last))
        self._rises, self._right = sp.kron(of_groups, sp.csr_array(rises)), np.tile(right, n_groups)
        self.costs = self._errors(grid, n_groups)

    def _errors(self, grid: ScoreGrid, n_groups: int) -> Floats:
        """Return `costs`.

        Released counts of labels are averaged with those that the scores, read as probabilities, predict; the
        weights are inverse variances. So bins with few rows beside the noise follow the scores.
        """
        each, (top, second) = np.arange(grid.n_bins - 1), grid.candidates
        labels = self._counts.labels.reshape(-1, n_groups, grid.n_bins)
        rows = np.maximum(labels.sum(axis=0), 0.0)
        expected = np.tile(rows / len(labels), (len(labels), 1, 1))
        expected[:, :, :-1] = 0.0
        expected[top, :, each] = (grid.odds * rows[:, :-1]).T
        expected[second, :, each] = ((1.0 - grid.odds) * rows[:, :-1]).T
        score_variance = np.square(_SCORE_ERROR * rows)
        weight = score_variance / np.maximum(score_variance + self._counts.labels_std**2, 1e-12)
        counted = weight * labels + (1.0 - weight) * expected
        costs: Floats = (rows - counted).reshape(len(labels), -1).T / max(float(rows.sum()), 1.0)
        return costs

    def table(self, variables: Floats) -> Floats:
        """Return the probabilities (columns, K) of a solution."""
        near = np.rint(variables)
        shares = np.where(np.abs(variables - near) < 1e-7, near, variables).clip(0.0, 1.0)
        found: Floats = (self._offset + self._expand @ shares).reshape(self._shape)
        found[:, -1] /= np.maximum(found[:, -1].sum(axis=1, keepdims=True), 1e-12)
        return found.reshape(-1, self._compiled.n_classes)

    def values(self, table: Floats) -> tuple[Floats, Floats]:
        """Return the values of the constraints, and how far the noise of the histogram moves them."""
        noise = np.sqrt(self._counts.cells_variance @ np.square(table))
        return self._compiled.value_and_std(self._counts.cells @ table, noise, self._totals)

    def minimise(self, table: Floats, bounds: Floats) -> Floats:
        """Return the variables of the best rule, with constraints linearised at the rule `table`."""
        compiled, cells, count = self._compiled, self._counts.cells, len(self.start)
        histogram = cells @ table
        values = compiled.values(histogram, self._totals, clamp=False)
        rows, right = [], []
        for j in range(len(compiled)):
            weights = compiled.weights(np.eye(1, len(compiled), j)[0], histogram, self._totals, clamp=False)
            slopes = (cells.T @ weights).ravel()
            rows.append(self._expand.T @ slopes)
            constant = float(self._offset @ slopes)
            right.append(bounds[j] - values[j] + float((weights * histogram).sum()) - constant)
        limits = sp.hstack([sp.csr_array(np.array(rows)), -sp.eye_array(len(rows))])
        rises = sp.hstack([self._rises, sp.csr_array((self._rises.shape[0], len(rows)))])
        sums: Any = sp.hstack([self._sums, sp.csr_array((self._sums.shape[0], len(rows)))])
        below: Any = sp.vstack([limits, rises])
        solved = linprog(
            np.concatenate([self._expand.T @ self.costs.ravel(), np.full(len(rows), _PENALTY)]),
            A_ub=below.tocsr(),
            b_ub=np.concatenate([right, self._right]),
            A_eq=sums.tocsr(),
            b_eq=np.ones(self._sums.shape[0]),
            bounds=[(0.0, 1.0)] * count + [(0.0, None)] * len(rows),
            method="highs",
        )
        return self.start if solved.x is None else np.asarray(solved.x[:count], dtype=np.float64)


def _monotone(grid: ScoreGrid, width: int) -> tuple[Floats, Floats]:
    """Return A and b of A x <= b, for one group: along a chain, the probability of its class does not fall."""
    rows, right = [], []
    for chain in grid.chains():
        half, each = len(chain) // 2, np.arange(len(chain) - 1)
        # the probability of the chain's class is 1 - x in the first half and x in the second
        constant, slope = np.repeat([1.0, 0.0], half), np.repeat([-1.0, 1.0], half)
        part = np.zeros((len(each), width))
        part[each, chain[:-1]] = slope[:-1]
        part[each, chain[1:]] = -slope[1:]
        rows.append(part)
        right.append(np.diff(constant))
    return np.concatenate(rows), np.concatenate(right)
