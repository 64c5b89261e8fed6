"""The certificate of a trained model: post-processing of one release of counts of its predictions.

Released, for the returned model and over all units (packed by `pack_counts`):

- the Q x K histogram H of hard predictions by cell, and
- the K x 2 table M of rows by true label and by whether the prediction is wrong (column 0) or right (1).

One row adds 1 to one entry of H and 1 to one entry of M. The packed vector ``(2 H, M)`` contains whole
numbers and has L2 sensitivity ``sqrt(5)``. A Gaussian release with noise multiplier z leaves noise of standard
deviation ``z sqrt(5) / 2 = 1.118 z`` on H and ``z sqrt(5)`` on M (`count_stds`). Everything else in this module is
computed from these released values, so it costs no privacy.

Before it, the *correction* (`choose_shift`): counts of margins decide whether the score of one class is shifted. Both
releases are in the plan whether or not a shift follows. The certificate uses the last release only, whose noise
is independent of the choice, so its intervals have their level for the returned model.

The intervals are simultaneous: with probability `level` over the noise, all of them contain the values of the
returned model on the training rows (`ratewise.metrics.intervals`).

For a constraint ``value <= bound`` with the interval ``(low, high)`` of its value, the verdict is *held* if
``high <= bound + tolerance``, otherwise *missed* if ``low > bound``, otherwise (or if a group has too few rows beside
the noise) *cannot tell*. It is about the rows that were counted: training rows, a private hold-out or a public table,
whose counts are exact and whose interval is one number. The population interval says how far the people in general
may differ from these rows.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ratewise import _validate
from ratewise._files import revive
from ratewise.accounting import GaussianEvent
from ratewise.constraints.compiled import CompiledConstraints, Item
from ratewise.constraints.domain import show_number
from ratewise.exceptions import InvalidInput
from ratewise.metrics.intervals import NoisyIntervals, fieller, noisy_intervals
from ratewise.metrics.rates import RowSequence, html_table, plain_data
from ratewise.training.config import KNOWN_SHARE, SHIFTS_BETWEEN_EDGES
from ratewise.training.plan import CERTIFICATE, Plan

Floats = NDArray[np.float64]

COUNT_SENSITIVITY = math.sqrt(5.0)
"""L2 sensitivity of the packed vector (2 H, M) to one row."""

_ONE_CLASS = 0.25  # of the rows outside the largest class, the share that must be predicted another class than it
_SURE = 2.5  # standard deviations that a constraint must be missed by before a shift is tried
MARGIN_EDGES = np.array([-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
"""Edges of the intervals of margins."""
_AMOUNTS = np.unique(np.concatenate([np.linspace(*pair, SHIFTS_BETWEEN_EDGES + 1) for pair in pairwise(MARGIN_EDGES)]))
"""Shifts that are considered."""


# ------------------------------------------------------------------------------------------------ verdicts


HELD, MISSED, CANNOT_TELL = "held", "missed", "cannot tell"
ROUNDING = 1e-9
"""A rate computed as 0.05 + 1e-17 satisfies a bound of 0.05."""


def verdict_of(interval: tuple[float, float], bounds: tuple[float, float], tolerance: float) -> str:
    """Return "held", "missed" or "cannot tell" for a value known to lie in an interval.

    >>> verdict_of((0.03, 0.055), (-math.inf, 0.05), tolerance=0.01)
    'held'
    """
    low, high = interval
    if math.isnan(low) or math.isnan(high):
        return CANNOT_TELL
    room = tolerance + ROUNDING
    if high <= bounds[1] + room and low >= bounds[0] - room:
        return HELD
    return MISSED if low > bounds[1] + ROUNDING or high < bounds[0] - ROUNDING else CANNOT_TELL


@dataclass(frozen=True)
class Estimate:
    """A released number with its interval; NaN where the noise leaves it open."""

    name: str
    value: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return _with_ends(self.value, self.interval)


@dataclass(frozen=True)
class CertificateRow:
    """One requested constraint; a two-sided constraint is one row.

    `family` is the family that it was declared by. `kind` is "gap", "<=", ">=" or "within"; of a gap, `estimate` and
    `interval` are about the absolute value. `bounds` are the smallest and largest value requested, infinite where
    there is none. `estimate` is the private estimate on the rows, always inside `interval`; `interval` and
    `population_interval` are simultaneous intervals for the rows, and for the population that they were drawn
    from. `verdict` is "held", "missed" or "cannot tell"; `remedy` says what would help if it is not held. Unless
    `resolved`, there are too few rows to measure it, and estimate and intervals say nothing.
    """

    name: str
    family: str | None
    kind: str
    bounds: tuple[float, float]
    estimate: float
    interval: tuple[float, float]
    population_interval: tuple[float, float]
    verdict: str
    remedy: str = ""
    resolved: bool = True

    @property
    def bound(self) -> float:
        """The requested bound; of a pair of different bounds, the one that is nearer to the estimate."""
        low, high = self.bounds
        return low if math.isinf(high) or (low - self.estimate > self.estimate - high) else high

    def with_infinite_bounds(self) -> CertificateRow:
        """Return the row with bounds that are NaN, as plain data say, as infinite ones."""
        low, high = self.bounds
        return replace(self, bounds=(-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high))

    @property
    def excess(self) -> float:
        """By how much the estimate exceeds the bound; negative if it is satisfied."""
        return max(self.estimate - self.bounds[1], self.bounds[0] - self.estimate)

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.interval[1] - self.interval[0]) / 2.0

    @property
    def requested(self) -> str:
        """The bound as text."""
        low, high = (show_number(bound) for bound in self.bounds)
        return {"within": f"{low} to {high}", ">=": f">= {low}"}.get(self.kind, f"<= {high}")

    def __str__(self) -> str:
        if not self.resolved:
            return f"{self.verdict}: {self.name}: too few rows to measure it"
        reached = f"reached {_with_ends(self.estimate, self.interval)}"
        return f"{self.verdict}: {self.name}: {reached}; population {_ends(self.population_interval)}"


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(RowSequence[CertificateRow]):
    """What is certified about the predictions of one model on some rows; made by `certify`.

    A sequence of `CertificateRow`, one per requested constraint. ``str()`` starts with `summary`. A constraint counts
    as held if the upper end of its interval is at most the bound plus `tolerance`; `level` is the probability, over
    the noise, that all intervals contain the true values. `n_units` is the public number of units, `unit` what
    a unit is, in the plural, and `data` what was counted. `noise_std` is the standard deviation of the noise on
    each count, and `majority_accuracy` the accuracy of always predicting the most common class (NaN if unknown).
    """

    rows: tuple[CertificateRow, ...]
    tolerance: float
    level: float
    n_units: int
    noise_std: float
    unit: str = "rows"
    data: str = "training rows"
    accuracy: Estimate | None = None
    majority_accuracy: float = math.nan
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict of all constraints together: missed if one is, held if all are."""
        verdicts = {row.verdict for row in self.rows}
        return next((verdict for verdict in (MISSED, CANNOT_TELL) if verdict in verdicts), HELD)

    @property
    def worst(self) -> CertificateRow | None:
        """Of the rows with the worst verdict, the one whose estimate exceeds its bound most."""
        verdict = self.verdict
        candidates = [row for row in self.rows if row.verdict == verdict]
        return max(candidates, key=lambda row: (row.resolved, row.excess), default=None)

    @property
    def summary(self) -> str:
        """One line: the decisive constraint, what was requested, what was reached, and the verdict."""
        row = self.worst
        if row is None:
            return "No constraints were requested."
        gaps = row.kind == "gap"
        parts = re.split(r" [<>]= ", row.name)  # bounds may be on either side of the quantity
        subject = "Largest gap" if gaps else parts[len(parts) == 3]
        asked = short(row.bounds[1]) if gaps else row.requested
        exact = row.half_width <= ROUNDING
        interval = f"population {_ends(row.population_interval)}" if exact else _ends(row.interval)
        reached = f"requested {asked}, reached {short(row.estimate)} ({interval})"
        if not row.resolved:
            subject, reached = row.name, "too few rows to measure it"
        line = f"{subject}: {reached}: {row.verdict} (tolerance {short(self.tolerance)})"
        counts = ((sum(r.verdict == v for r in self.rows), v) for v in (HELD, MISSED, CANNOT_TELL))
        together = f"; of {len(self)} constraints " + ", ".join(f"{c} {v}" for c, v in counts if c)
        return line + together if len(self) > 1 else line

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        yield self.summary
        for row in self.rows:
            yield f"  {row}"
            if row.remedy:
                yield f"    {row.remedy}"
        if self.accuracy is not None:
            beside = "" if math.isnan(self.majority_accuracy) else (
                f"; always predicting the most common class: {short(self.majority_accuracy)}"
            )  # fmt: skip
            yield f"Accuracy: {self.accuracy}{beside}"
        for warning in self.warnings:
            yield f"Warning: {warning}"
        yield from self.notes
        yield (
            f"Intervals hold together with probability {show_number(self.level)} for the {self.n_units:,} "
            f"{self.unit} ({self.data}); population intervals also cover the sampling of these {self.unit}."
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Certificate: {self.summary}>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["constraint", "requested", "reached", "interval", "population interval", "verdict", "remedy"]
        body = []
        for row in self.rows:
            intervals = map(_ends, (row.interval, row.population_interval))
            body.append([row.name, row.requested, short(row.estimate), *intervals, row.verdict, row.remedy])
        return head, body

    def _repr_html_(self) -> str:
        rest = [line for line in self.lines() if line.startswith(("Accuracy", "Warning"))]
        table = html_table(*self._table(), self.summary)
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in rest)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON."""
        data = plain_data(self)
        rows = data.pop("rows")
        return {"summary": self.summary, "verdict": self.verdict, **data, "constraints": rows}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Certificate:
        """Return the certificate that `to_dict` described."""
        fields = dict(description) if isinstance(description, Mapping) else {}
        for name in ("summary", "verdict"):  # they follow from the others
            fields.pop(name, None)
        fields["rows"] = fields.pop("constraints", None)
        found: Certificate = revive(cls, fields, "certificate", "this is no description of a certificate", nan=True)
        return replace(found, rows=tuple(row.with_infinite_bounds() for row in found.rows))


def short(value: float) -> str:
    """Return a rate with three decimals and without a leading zero, as in ``.048``.

    >>> short(0.048), short(0.05), short(-0.2), short(1.0), short(0.0)
    ('.048', '.05', '-.2', '1', '0')
    """
    if math.isnan(value):
        return "unknown"
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    if text in ("-0", "0", ""):
        return "0"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _with_ends(value: float, interval: tuple[float, float]) -> str:
    """Return a value with its interval, or alone if it is exact."""
    exact = interval[1] - interval[0] <= 2.0 * ROUNDING
    return short(value) if exact else f"{short(value)} ({_ends(interval)})"


def _ends(interval: tuple[float, float]) -> str:
    return f"{short(interval[0])} to {short(interval[1])}"


# ------------------------------------------------------------------------------------------ the release


def pack_counts(
    compiled: CompiledConstraints,
    cells: NDArray[Any],
    labels: NDArray[Any],
    predictions: NDArray[Any],
    weights: Floats | None = None,
) -> Floats:
    """Return the vector (2 H, M) of exact counts. It reads rows: release it only with noise.

    Rows are given by the codes of cell, true label and predicted class; those with a code outside its range are not
    counted in the table concerned. The `weights` of the rows of a unit are at most 1 in total.
    """
    cells, labels, predictions = (np.asarray(codes, dtype=np.int64) for codes in (cells, labels, predictions))
    n_cells, n_classes = compiled.n_cells, compiled.n_classes
    predicted = (predictions >= 0) & (predictions < n_classes)
    inside = predicted & (cells >= 0) & (cells < n_cells)
    flat = np.where(inside, cells * n_classes + predictions, n_cells * n_classes)
    histogram = np.bincount(flat, weights, minlength=n_cells * n_classes + 1)[:-1]
    labelled = predicted & (labels >= 0) & (labels < n_classes)
    flat = np.where(labelled, 2 * labels + (labels == predictions), 2 * n_classes)
    outcomes = np.bincount(flat, weights, minlength=2 * n_classes + 1)[:-1]
    return packed_tables(histogram.astype(np.float64), outcomes.astype(np.float64))


def packed_tables(by_cell: Floats, by_label: Floats) -> Floats:
    """Return (2 H, M) of two tables, to each of which a unit adds L1 norm 1: L2 sensitivity `COUNT_SENSITIVITY`."""
    return np.concatenate([2.0 * by_cell.ravel(), by_label.ravel()])


def unpack_counts(packed: Floats, n_cells: int, n_classes: int) -> tuple[Floats, Floats]:
    """Return the histogram H (Q, K) and the outcomes M (K, 2) of a packed vector, exact or released."""
    vector: Floats = np.asarray(packed, dtype=np.float64)
    if vector.shape != (n_cells * n_classes + 2 * n_classes,):
        raise InvalidInput(
            f"a packed vector has {n_cells * n_classes + 2 * n_classes} entries, got shape {vector.shape}"
        )
    size = n_cells * n_classes
    return vector[:size].reshape(n_cells, n_classes) / 2.0, vector[size:].reshape(n_classes, 2).copy()


def count_stds(noise: float) -> tuple[float, float]:
    """Return the standard deviations of the noise on H and on M for a noise multiplier."""
    return noise * COUNT_SENSITIVITY / 2.0, noise * COUNT_SENSITIVITY


def certify(
    compiled: CompiledConstraints,
    histogram: Any,
    noise_std: float,
    *,
    n_units: int,
    outcomes: Any = None,
    outcomes_std: float = 0.0,
    cell_totals: Any = None,
    cell_totals_std: Any = 0.0,
    tolerance: float = 0.01,
    level: float = 0.95,
    unit: str = "rows",
    data: str = "training rows",
    notes: tuple[str, ...] = (),
) -> Certificate:
    """Return the certificate of a model from released counts of its predictions.

    `histogram` counts hard predictions by cell, with noise of standard deviation `noise_std`; 0 for exact counts (a
    public table, or training without privacy). `outcomes`, by true label and by whether the prediction is wrong or
    right, give the accuracy. `cell_totals` are estimates of the number of units in each cell whose errors are
    independent of the histogram's noise, for example averaged over training steps: they shorten the intervals. `unit`
    is a plural.

    If the best of m models is chosen by their certificates, all planned beforehand, take the `level`
    ``1 - (1 - level) / m`` for each: then the chosen certificate keeps the level.
    """
    table = np.asarray(histogram, dtype=np.float64)
    noise = _validate.non_negative(noise_std=noise_std)
    slack = _validate.non_negative(tolerance=tolerance)
    inside = _validate.inside(level=level)
    if table.shape != (compiled.n_cells, compiled.n_classes):
        raise InvalidInput(f"histogram must be {compiled.n_cells} x {compiled.n_classes}, got shape {table.shape}")
    found = noisy_intervals(
        compiled,
        table,
        noise,
        members=[item.members[0] for item in compiled.items],
        cell_totals=None if cell_totals is None else np.asarray(cell_totals, dtype=np.float64),
        cell_totals_std=cell_totals_std,
        level=inside,
    )
    rows = tuple(_row(item, compiled, found, place, slack) for place, item in enumerate(compiled.items))
    rows += tuple(_groupless(family.name) for family in compiled.groupless)
    accuracy, majority = None, math.nan
    if outcomes is not None:
        counts: Floats = np.asarray(outcomes, dtype=np.float64)
        accuracy, majority = _accuracy(counts, _validate.non_negative(outcomes_std=outcomes_std), inside)
    return Certificate(
        rows=rows,
        tolerance=slack,
        level=inside,
        n_units=int(n_units),
        noise_std=noise,
        unit=unit,
        data=data,
        accuracy=accuracy,
        majority_accuracy=majority,
        warnings=tuple(_warnings(rows, compiled, table, majority)),
        notes=notes,
    )


def judged(
    released: Floats, compiled: CompiledConstraints, plan: Plan, name: str = CERTIFICATE, **options: Any
) -> Certificate:
    """Return the certificate from the counts of predictions (`packed_tables`) that the release `name` of a plan gave.

    `options` are further arguments of `certify`.
    """
    histogram, outcomes = unpack_counts(released, compiled.n_cells, compiled.n_classes)
    noise, outcomes_noise = plan_stds(plan, name)
    known: dict[str, Any] = {"n_units": plan.n_units, "unit": plan.unit.noun}
    return certify(compiled, histogram, noise, outcomes=outcomes, outcomes_std=outcomes_noise, **known, **options)


def plan_stds(plan: Plan, name: str) -> tuple[float, float]:
    """Return `count_stds` of a release of the plan; 0 without noise."""
    event = plan.events.get(name)
    return count_stds(float(event.noise)) if isinstance(event, GaussianEvent) else (0.0, 0.0)


# ----------------------------------------------------------------------------------------- correction


@dataclass(frozen=True)
class Shift:
    """A correction: `amount` is added to the score of class number `towards`; no group is needed to predict.

    `excess` and `left` are estimates of the largest excess over a bound, before and after.
    """

    towards: int
    amount: float
    excess: float
    left: float

    def describe(self, compiled: CompiledConstraints) -> str:
        """Return a sentence for the certificate."""
        return (
            f"Corrected: the score of {compiled.domain.classes[self.towards]!r} was shifted by {self.amount:.3g}, because "
            f"the trained model exceeded a bound by about {short(self.excess)}."
        )


def margin_codes(scores: Floats, towards: int) -> NDArray[np.intp]:
    """Return a code of what a row is predicted if the score of class k = `towards` is shifted.

    The margin of a row is the largest score of the other classes minus that of k. With m the interval of the margin
    (`MARGIN_EDGES`) and j the place of the best other class among the others, the code is ``m * (K - 1) + j``. A
    shift by an edge gives class k to all rows with a margin below it.
    """
    if scores.shape[1] == 1:
        margins, others = (scores[:, 0] if towards == 0 else -scores[:, 0]), 0
        return np.searchsorted(MARGIN_EDGES, margins) + others
    rest = np.delete(scores, towards, axis=1)
    margins = rest.max(axis=1) - scores[:, towards]
    return np.asarray(np.searchsorted(MARGIN_EDGES, margins) * rest.shape[1] + rest.argmax(axis=1))


def margin_code_count(n_classes: int) -> int:
    """Return the number of codes of `margin_codes`."""
    return (len(MARGIN_EDGES) + 1) * (n_classes - 1)


def choose_shift(
    released: Floats,
    compiled: CompiledConstraints,
    stds: tuple[float, float],
    *,
    towards: int,
    cell_totals: Floats,
    tolerance: float,
) -> Shift | None:
    """Return the shift of a model that clearly misses a constraint; None if it does not, or if no shift helps.

    A constraint is clearly missed if its value exceeds the bound plus the tolerance by 2.5 standard deviations of
    the noise. Then the smallest shift of one class's score that satisfies all bounds is taken; if there is none, the one
    with the smallest violation, if that is less than half. Shifts that give nearly everyone the same class, or that
    raise the error by more than they lower the largest excess, are not considered.

    `released` are margins (`margin_codes`) by cell and by label, as `packed_tables`, with noise of standard deviations
    `stds`; `cell_totals` are released sizes of the cells.
    """
    n_cells, n_classes = compiled.n_cells, compiled.n_classes
    by_cell, by_label = np.split(released, [n_cells * margin_code_count(n_classes)])
    cells, labels = (part.reshape(-1, len(MARGIN_EDGES) + 1, n_classes - 1) for part in (by_cell / 2.0, by_label))
    sizes = np.maximum(cell_totals, 0.0)
    floor = max(1.0, KNOWN_SHARE * float(sizes.sum()))
    start = _Shifted.by(0.0, cells, labels, towards)
    value, std = compiled.value_and_std(start.histogram, stds[0] * start.entries, sizes, floor=floor)
    if not np.any(value - compiled.bounds > tolerance + _SURE * std + ROUNDING):
        return None
    total = max(float(labels.sum()), 1.0)
    usual = 1.0 - max(float(labels.sum(axis=(1, 2)).max()) / total, 1.0 / n_classes)
    excess = float(np.max(value - compiled.bounds))
    aim = compiled.bounds - np.minimum(std, np.abs(compiled.bounds) / 4.0)  # the noise should not undo the correction
    allowed: list[tuple[float, float, float]] = []
    for amount in _AMOUNTS:
        found = _Shifted.by(float(amount), cells, labels, towards)
        predicted = np.maximum(found.histogram.sum(axis=0), 0.0)
        others = 1.0 - float(predicted.max()) / max(float(predicted.sum()), 1.0)
        left = max(float(np.max(compiled.values(found.histogram, sizes, floor=floor) - aim)), 0.0)
        cost = (found.wrong - start.wrong) / total
        if others >= _ONE_CLASS * usual and cost <= excess - left:
            allowed.append((left, cost, float(amount)))
    # the smallest shift in either direction that satisfies all bounds; of the two, the one with the smaller error
    ends = [next((one for one in side if one[0] == 0.0), None) for side in _sides(allowed)]
    best = min((one for one in ends if one is not None), key=lambda one: one[1], default=None)
    if best is None:
        best = min(allowed, default=None)
    if best is None or best[0] > 0.5 * excess:
        return None
    return Shift(towards, best[2], excess, best[0])


def _sides(found: list[tuple[float, float, float]]) -> Iterator[list[tuple[float, float, float]]]:
    """Yield the shifts up and down, the smallest first."""
    for sign in (1.0, -1.0):
        yield sorted((one for one in found if sign * one[2] > 0), key=lambda one: abs(one[2]))


@dataclass(frozen=True, eq=False)
class _Shifted:
    """Counts of the predictions after a shift, from counts by margin; between edges margins are taken as uniform."""

    histogram: Floats
    wrong: float
    entries: Floats
    """Root of the number of noisy counts that are added up, for each class."""

    @classmethod
    def by(cls, amount: float, cells: Floats, labels: Floats, towards: int) -> _Shifted:
        place = int(np.searchsorted(MARGIN_EDGES, amount))
        taken = (np.arange(len(MARGIN_EDGES) + 1) < place).astype(np.float64)  # share of an interval below the shift
        if place and amount > MARGIN_EDGES[0]:
            low, high = MARGIN_EDGES[place - 1], MARGIN_EDGES[place]
            taken[place] = (amount - low) / (high - low)
        else:
            taken[place] = 1.0
        others = [k for k in range(len(labels)) if k != towards]

        def predictions(table: Floats) -> Floats:
            found = np.zeros((len(table), len(labels)))
            found[:, towards] = np.einsum("qmj,m->q", table, taken)
            found[:, others] = np.einsum("qmj,m->qj", table, 1.0 - taken)
            return found

        by_label = predictions(labels)
        entries = np.full(len(labels), np.sqrt(np.square(1.0 - taken).sum()))
        entries[towards] = np.sqrt(np.square(taken).sum() * len(others))
        return cls(predictions(cells), float(by_label.sum() - np.trace(by_label)), entries)


def expected_half_widths(compiled: CompiledConstraints, n_units: int, noise_std: float) -> Floats:
    """Return the expected half-width of each row's interval, from public facts; `noise_std` is that of each count.

    Cells have equal shares of the units; a quarter of each is taken to be predicted another class than the first.
    """
    split = np.full(compiled.n_classes, 0.25 / (compiled.n_classes - 1))
    split[0] = 0.75
    table = np.tile(split * float(n_units) * (1.0 / compiled.n_cells), (compiled.n_cells, 1))
    members = [item.members[0] for item in compiled.items]
    found = noisy_intervals(compiled, table, _validate.non_negative(noise_std=noise_std), members=members)
    half: Floats = (found.high - found.low) / 2.0
    return half


def certificate_half_widths(compiled: CompiledConstraints, plan: Plan) -> Floats:
    """Return the half-width to expect of each of the certificate's intervals, from public facts; 0 without noise."""
    return expected_half_widths(compiled, plan.n_units, plan_stds(plan, CERTIFICATE)[0])


def certificate_half_width(compiled: CompiledConstraints, plan: Plan) -> float:
    """Return the largest of `certificate_half_widths`; 0 without constraints."""
    return float(certificate_half_widths(compiled, plan).max(initial=0.0))


def undecidable(compiled: CompiledConstraints, plan: Plan, tolerance: float) -> str:
    """Return a sentence on the constraints that no model can be certified to satisfy; empty if there are none.

    An interval of half-width w around the best value that a quantity can have ends beyond its bound plus the
    tolerance if w exceeds their distance: a gap of 0, a rate of 0 under an upper bound, one of 1 over a lower one.
    """
    items, widths = compiled.items, certificate_half_widths(compiled, plan)
    lost = [(width, item) for width, item in zip(widths, items, strict=True) if width > _room(item) + tolerance]
    if not lost:
        return ""
    width, item = max(lost, key=lambda pair: pair[0])
    return (
        f"the certificate cannot say 'held' for {len(lost)} of {len(items)} constraints, whatever the model: with groups of "
        f"equal size the interval of {item.name!r} is about {short(width)} on either side of the estimate, and the bound plus "
        f"the tolerance of {tolerance:g} leaves {short(_room(item) + tolerance)}. "
        "Use a larger epsilon, more rows, fewer groups or a larger bound"
    )


def _room(item: Item) -> float:
    """Return the distance of the best value of a quantity from its bounds."""
    if item.low is None or item.high is None:
        return abs(float(item.high) if item.high is not None else 1.0 - float(item.low or 0.0))
    return (float(item.high) - float(item.low)) / 2.0


# ----------------------------------------------------------------------------------------------- rows


def _row(
    item: Item, compiled: CompiledConstraints, found: NoisyIntervals, place: int, tolerance: float
) -> CertificateRow:
    declared = compiled.declared[item.members[0]]  # its normal form was measured
    constant, sign = declared.expression.constant, declared.sign

    def reached(*values: Floats) -> tuple[float, ...]:
        return tuple(sorted(constant + sign * float(value[place]) for value in values))

    (estimate,) = reached(found.estimate)
    intervals = reached(found.low, found.high), reached(found.population_low, found.population_high)
    low = -math.inf if item.low is None else item.low
    high = math.inf if item.high is None else item.high
    kind = ">=" if math.isinf(high) else "<=" if math.isinf(low) else "within"
    if kind == "within" and abs(low + high) <= ROUNDING:
        kind, low, estimate = "gap", -math.inf, abs(estimate)
        intervals = _absolute(intervals[0]), _absolute(intervals[1])
    (lower, upper), population = intervals
    resolved = bool(found.resolved[place])
    row = CertificateRow(
        name=item.name,
        family=None if item.family is None else item.family.name,
        kind=kind,
        bounds=(low, high),
        estimate=estimate,
        interval=(lower, upper),
        population_interval=(population[0], population[1]),
        verdict=verdict_of((lower, upper), (low, high), tolerance) if resolved else CANNOT_TELL,
        resolved=resolved,
    )
    return replace(row, remedy=_remedy(row, tolerance, float(found.rows_needed[place])))


def _groupless(name: str) -> CertificateRow:
    """Return the row of a family without groups: nothing is known about it."""
    remedy = "No value is frequent enough to be found as a group: declare the values, merge them, or use more rows."
    known, bounds = (0.0, 1.0), (-math.inf, math.inf)
    return CertificateRow(name, name, "<=", bounds, 0.5, known, known, CANNOT_TELL, remedy, resolved=False)


def _absolute(interval: tuple[float, ...]) -> tuple[float, float]:
    low, high = interval
    return max(low, -high, 0.0), max(abs(low), abs(high))


def _remedy(row: CertificateRow, tolerance: float, needed: float) -> str:
    """Return what would help. The noise of a rate falls in proportion to 1 / epsilon and to 1 / rows."""
    if row.verdict == HELD:
        return ""
    if not row.resolved:
        return (
            "A group has no rows, or too few beside the noise"
            + (f" (about {math.ceil(needed):,} are needed)" if needed > 0 else "")
            + ": merge groups, use more rows, or a larger epsilon."
        )
    slack = max(row.interval[1] - row.bounds[1], row.bounds[0] - row.interval[0]) - tolerance
    relaxed = f"a bound that is {short(max(slack, 0.0))} wider"
    if row.verdict == MISSED:
        return f"Try {relaxed}, a larger epsilon or more rows for training, or merged groups."
    room = tolerance - row.excess
    if room > ROUNDING:
        factor = max(1.1, row.half_width / room)
        more = f"{math.ceil(10 * factor) / 10:g} times as large"
        return f"The interval would be short enough with epsilon or the rows {more}, or with {relaxed}."
    return f"The estimate is beyond the bound plus the tolerance: try {relaxed}, a larger epsilon, or more rows."


# -------------------------------------------------------------------------------- accuracy and warnings


def _accuracy(outcomes: Floats, std: float, level: float) -> tuple[Estimate, float]:
    """Return the share of right predictions and the share of the most common class."""
    right, total = float(outcomes[:, 1].sum()), float(outcomes.sum())
    classes = len(outcomes)
    critical = float(-ndtri((1.0 - level) / 2.0))
    variance = std * std * classes
    limits = fieller(right, total, variance, variance, 2.0 * variance, critical)
    if limits is None:
        return Estimate("accuracy", math.nan, (0.0, 1.0)), math.nan
    low, high = (min(max(end, 0.0), 1.0) for end in limits)
    majority = min(max(float(outcomes.sum(axis=1).max()) / total, 1.0 / classes), 1.0)
    return Estimate("accuracy", min(max(right / total, low), high), (low, high)), majority


def _warnings(
    rows: tuple[CertificateRow, ...], compiled: CompiledConstraints, table: Floats, majority: float
) -> Iterator[str]:
    predicted = np.maximum(table.sum(axis=0), 0.0)
    total = float(predicted.sum())
    if not rows or total <= 0 or all(row.verdict == MISSED for row in rows):
        return
    top = int(predicted.argmax())
    others = 1.0 - float(predicted[top]) / total
    usual = 1.0 / compiled.n_classes if math.isnan(majority) else 1.0 - majority
    if others < _ONE_CLASS * usual:
        yield (
            f"{1.0 - others:.1%} of all predictions are {compiled.domain.classes[top]!r}: constraints that hold only "
            "because nearly everyone gets the same prediction say little about the model."
        )
