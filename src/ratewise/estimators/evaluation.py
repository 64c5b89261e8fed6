"""Evaluation of predictions on labelled rows: the certificate of a model on a hold-out, private or public.

For a private hold-out (`epsilon` given) one vector is released: the counts of predictions that the constraints and the
accuracy need, as for the certificate of a training (`ratewise.training.certificate`). One row changes it by at most
sqrt(5) in L2 norm when it is added or removed. It is admitted to a ledger before any row is read, as one
`GaussianEvent`. Classes and group values that are not declared are found by a second release
(`ratewise.preprocessing.discovery`), which is part of the same plan.

For a public hold-out (``epsilon=None``) the counts are exact.

>>> from ratewise import demographic_parity
>>> from ratewise.datasets import census_like
>>> people = census_like(20_000, random_state=0)
>>> certificate = evaluate(
...     demographic_parity("sex", max_gap=0.3), people.y, people.y, sensitive_features=people.sensitive,
...     classes=people.classes, group_values=people.group_values, epsilon=0.5, random_state=0,
... )
>>> low, high = certificate.accuracy.interval
>>> low <= 1.0 <= high, [row.verdict for row in certificate]
(True, ['held'])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.accounting import (
    Admission,
    Budget,
    Event,
    GaussianEvent,
    Ledger,
    PrivacyUnit,
    ThresholdEvent,
    UnprotectedEvent,
    calibrate_plan,
)
from ratewise.accounting.events import NEIGHBOURS
from ratewise.constraints.compiled import CompiledConstraints, Item, compile_constraints, expand
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.predicates import group
from ratewise.constraints.rates import Expression, rate
from ratewise.data.table import (
    LabelledRows,
    code_ids,
    code_labels,
    declared_classes,
    id_units,
    read_vector,
    weight_step,
)
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.mechanisms.noise import Mechanism, NoNoise, RoundedGaussianMechanism
from ratewise.mechanisms.randomness import USED_SEEDS, streams_for, warn_of_seed
from ratewise.metrics.intervals import noisy_intervals
from ratewise.metrics.verdicts import Certificate, Estimate
from ratewise.models.rows import usable_rows
from ratewise.preprocessing.discovery import discover_values, rows_per_id_words, size_histogram
from ratewise.preprocessing.discovery import rows_per_id as count_rows_per_id
from ratewise.training.certificate import COUNT_SENSITIVITY, certify, count_stds, pack_counts, unpack_counts
from ratewise.training.defaults import ROWS_PER_ID_SHARE
from ratewise.training.plan import ROWS_PER_ID

__all__ = ["evaluate"]

Floats = NDArray[np.float64]

COUNTS, VALUES = "prediction counts", "values"  # names of releases
_UNBOUNDED = -1e6  # a bound that is never tight: what is measured and not bounded
_CRITICAL = 1.96
_USELESS = 0.5  # half-width of the accuracy's interval, from noise alone, at which nothing is learned
_DISCOVERY_SHARE = 0.1  # of the budget, for values that nobody declared


def evaluate(
    constraints: Any,
    y_true: Any,
    y_pred: Any,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    X: Any = None,
    sensitive_features: Any = None,
    classes: Iterable[Any] | None = None,
    group_values: Any = None,
    privacy_ids: Any = None,
    rows_per_id: int | None = None,
    id_weighting: str = "id",
    neighbours: str = "add_or_remove",
    ledger: Ledger | None = None,
    data_name: str = "hold-out rows",
    tolerance: float = 0.01,
    level: float = 0.95,
    random_state: Any = None,
) -> Certificate:
    """Return the certificate of predictions on a hold-out, (epsilon, delta)-privately if `epsilon` is given.

    Parameters
    ----------
    constraints : constraint, family, text, or any nesting of lists of them; None for accuracy and groups only
    y_true : (n,) array-like
        True labels of the hold-out. Rows with undeclared labels are not counted.
    y_pred : (n,) array-like, or a fitted model
        Predicted labels; or a model whose `predict` is called with `X`.
    epsilon : float or None
        What this evaluation may cost. None: the hold-out is public, and exact counts are used.
    delta : float
    X : table, optional
        Features of the hold-out, if `y_pred` is a model.
    sensitive_features : data frame, mapping, vector
        The groups; only columns that constraints read are used (all of them without constraints).
    classes, group_values : optional
        All classes, and all values of each column. What is not declared is found by a private release, for a
        tenth of the budget. The classes of a model need no declaration.
    privacy_ids : vector, optional
        All rows with one id form one unit of privacy; rates are those of ids or of rows (`id_weighting`).
    rows_per_id : int, optional
        Rows of an id that are used at most. By default found as in training, by a private release for a hundredth of
        the budget; all of them without `epsilon`.
    id_weighting : "id" or "row"
    neighbours : str
    ledger : Ledger, optional
        Where the release is recorded; by default a new one with this budget as its cap. If the hold-out is part
        of the data that a model was trained on, it must be that model's ledger.
    data_name : str
        Name of these rows in the ledger.
    tolerance, level : float
        As in `ratewise.training.certificate.certify`.
    random_state : int, NumPy generator or None
        None takes a secure source. A seed must stay secret, and serves one evaluation per ledger.

    Returns
    -------
    Certificate
        With the rates of every group in `groups`.

    Raises
    ------
    BudgetExceeded
        The ledger's cap does not allow this release; nothing was released.
    InvalidInput
        The rows are too few for this budget to learn anything; nothing was released.
    """
    level, tolerance = _validate.inside(level=level), _validate.non_negative(tolerance=tolerance)
    predicted, known = _predicted(y_pred, X, classes)
    rows = LabelledRows(constraints, y_true, sensitive_features, known, group_values)
    if len(predicted) != rows.n_rows:
        raise InvalidInput(
            f"y_pred must have one entry per row of y_true: {len(predicted)} against {rows.n_rows}"
        )
    units = RowUnits(y_true, known, privacy_ids, rows_per_id, id_weighting)
    releases = RowReleases(
        "evaluation",
        rows,
        {COUNTS: 1.0},
        _DISCOVERY_SHARE,
        units=units,
        budget=(epsilon, delta, neighbours),
        ledger=ledger,
        data_name=data_name,
        random_state=random_state,
    )
    if epsilon is not None:
        _refuse_useless(releases, 2 if known is None else len(known), epsilon)
        releases.admit()
    measured = _Measured(rows.declarations, releases.domain())
    compiled = measured.compiled
    labels = rows.labels(compiled.domain)
    codes = rows.cells(compiled, labels), labels, code_labels(predicted, compiled.domain)
    notes = []
    if epsilon is not None:
        notes.append(f"Released with noise for epsilon {epsilon:g} at delta {delta:g} ({neighbours}).")
        if units.finds_rows:
            notes.append(rows_per_id_words(units.max_rows).capitalize() + ".")
    return releases.certificate(
        COUNTS,
        compiled,
        codes,
        items=measured.items,
        groups=lambda histogram, std: tuple(measured.groups(histogram, std, level)),
        tolerance=tolerance,
        level=level,
        notes=tuple(notes),
    )


# ------------------------------------------------------------------------- releases of labelled rows


class RowUnits:
    """The units of privacy of labelled rows: each row, or the rows with one id.

    Parameters
    ----------
    y : column
        Labels: rows without one (or with none of `classes`) are not used.
    classes : sequence or None
    privacy_ids, rows_per_id, id_weighting
        As for `ratewise.RateConstrainedClassifier`.
    """

    def __init__(
        self,
        y: Any,
        classes: Any,
        privacy_ids: Any = None,
        rows_per_id: int | None = None,
        weighting: str = "id",
    ) -> None:
        self.n_units, self.max_rows, self.step, self.unit = len(y), 1, 1.0, PrivacyUnit()
        self._y, self._classes, self._weighting, self.finds_rows = y, classes, weighting, False
        self._codes: Any = None
        _validate.one_of(("id", "row"), id_weighting=weighting)
        if privacy_ids is None:
            return
        declared = None if rows_per_id is None else _validate.count(rows_per_id=rows_per_id)
        self.finds_rows = declared is None
        self._bound(declared or 1)
        column = getattr(privacy_ids, "name", None)
        self.unit = PrivacyUnit(
            "id",
            column=column if isinstance(column, str) else None,
            max_rows=declared,
            weighting=weighting,
        )
        self._codes, self.n_units = code_ids(read_vector(privacy_ids, len(y), "privacy_ids"))

    def _bound(self, max_rows: int) -> None:
        self.max_rows, self.step = max_rows, weight_step(max_rows)

    def find_rows(self, mechanism: Mechanism, rng: np.random.Generator) -> None:
        """Bound the rows of an id by a release of the number of ids by their rows; without noise, by the largest."""
        sizes = np.bincount(self._codes[usable_rows(self._y, self._classes)], minlength=self.n_units)
        if isinstance(mechanism, NoNoise):
            self._bound(max(int(sizes.max()), 1))
        else:
            self._bound(count_rows_per_id(size_histogram(sizes), mechanism, rng))

    def weights(self) -> Floats | None:
        """Return the weight of every row, at most 1 in total for an id; None if every row is a unit; **private**."""
        if self._codes is None:
            return None
        usable = usable_rows(self._y, self._classes)
        units = id_units(self._codes, self.n_units, self.max_rows, self._weighting, usable)
        return units.table_weights(usable)


class RowReleases:
    """The releases of one call that reads labelled rows: their plan, ledger, noise and units.

    Parameters
    ----------
    purpose : str
    rows : LabelledRows
    shares : mapping of str to float
        Gaussian releases in their order, with their shares of what the discovery of undeclared values leaves of the
        budget, in units of 1 / sigma**2.
    discovery : float
        Share of the budget for undeclared values, if there are any.
    units : RowUnits
        If the rows of an id are not bounded, a first release finds the bound.
    budget : (epsilon, delta, neighbours)
        Epsilon None adds no noise.
    ledger, data_name, random_state
        As in `evaluate`.
    """

    def __init__(
        self,
        purpose: str,
        rows: LabelledRows,
        shares: Mapping[str, float],
        discovery: float,
        *,
        units: RowUnits,
        budget: tuple[float | None, float, str],
        ledger: Ledger | None,
        data_name: str,
        random_state: Any,
    ) -> None:
        self._epsilon, self._delta, self._neighbours = budget
        _validate.one_of(NEIGHBOURS, neighbours=self._neighbours)
        _check_ledger(ledger, self._neighbours)
        self.unit, self.n_units = units.unit, units.n_units
        self.weights: Floats | None = None
        self._rows, self._units, self._purpose, self._data = rows, units, purpose, data_name
        self._unknown = rows.unknown
        self.found: list[str] = []
        looks = {ROWS_PER_ID: ROWS_PER_ID_SHARE} if units.finds_rows else {}
        self.events = self._plan({**looks, **({VALUES: discovery} if self._unknown else {})}, shares)
        self._seed, self.streams = random_state, streams_for(purpose, random_state)
        self.ledger = ledger

    def _plan(self, looks: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, Event]:
        if self._epsilon is None:
            return {}
        delta, left = _validate.inside(delta=self._delta), 1.0 - sum(looks.values())
        parts = {**looks, **{name: left * share for name, share in shares.items()}}

        def build(scale: float) -> list[Event]:
            noises = {name: scale / math.sqrt(share) for name, share in parts.items()}
            return [
                ThresholdEvent(noise, delta / 10) if name == VALUES else GaussianEvent(noise)
                for name, noise in noises.items()
            ]

        events = calibrate_plan(self._epsilon, delta, build, self._neighbours).events
        return dict(zip(parts, events, strict=True))

    def admit(self) -> Admission:
        """Record the whole plan before any row is read, or refuse it."""
        if self.ledger is None:
            cap = None if self._epsilon is None else Budget(self._epsilon, self._delta)
            self.ledger = Ledger(cap=cap, adaptive=False, neighbours=self._neighbours, unit=self.unit)
        events: Any = self.events or {self._purpose: UnprotectedEvent(f"{self._purpose} without privacy")}
        warn_of_seed(self._seed)
        self.ledger.check(list(events.values()))
        USED_SEEDS.add(self.ledger, self.streams)
        admission = self.ledger.admit(events, purpose=self._purpose, data=self._data, unit=self.unit)
        admission.release()
        return admission

    def domain(self) -> Domain:
        """Fix the weights of rows, find undeclared values, and return the domain."""
        if self._units.finds_rows:
            self._units.find_rows(self._mechanism(ROWS_PER_ID, 1.0), self.streams.preparation)
            if self.events:
                self.found.append(rows_per_id_words(self._units.max_rows))
        self.weights = self._units.weights()
        values: dict[str, tuple[Any, ...]] = {}
        if self._unknown:
            event = self.events.get(VALUES)
            noise, delta = (event.noise, event.delta) if isinstance(event, ThresholdEvent) else (0.0, 0.0)
            values = discover_values(
                self._unknown,
                noise=noise,
                delta=delta,
                rng=self.streams.preparation,
                named=self._rows.named,
                weights=self.weights,
                step=self._units.step,
                max_rows=self._units.max_rows,
            )
        self.found += sorted(values)
        return self._rows.domain(values)

    def noise(self, name: str) -> float:
        """Return the noise multiplier of a release; 0 without privacy."""
        event = self.events.get(name)
        return event.noise if isinstance(event, GaussianEvent) else 0.0

    def release(self, name: str, sensitivity: float, value: Floats) -> Floats:
        """Return a table of counts with noise; each name has a random stream of its own."""
        mechanism = self._mechanism(name, sensitivity, self._units.step)
        counted = [each for each in self.events if each not in (ROWS_PER_ID, VALUES)]
        rng = (self.streams.histogram, self.streams.gradient)[counted.index(name) if counted else 0]
        return mechanism.release(value, rng)

    def _mechanism(self, name: str, sensitivity: float, step: float = 1.0) -> Mechanism:
        noise = self.noise(name)
        return RoundedGaussianMechanism(noise, sensitivity, whole=True, step=step) if noise > 0 else NoNoise()

    def certificate(
        self,
        name: str,
        compiled: CompiledConstraints,
        codes: tuple[Any, Any, Any],
        *,
        groups: Callable[[Floats, float], tuple[Estimate, ...]] | None = None,
        **options: Any,
    ) -> Certificate:
        """Release the counts of predictions and return their certificate.

        Parameters
        ----------
        name : str
            Of the release.
        compiled : CompiledConstraints
        codes : cells, labels and predictions of the rows
        groups : callable, optional
            Further rates to show, from the released histogram and the standard deviation of its noise.
        **options
            Further arguments of `ratewise.training.certificate.certify`.
        """
        released = self.release(name, COUNT_SENSITIVITY, pack_counts(compiled, *codes, self.weights))
        histogram, outcomes = unpack_counts(released, compiled.n_cells, compiled.n_classes)
        histogram_std, outcomes_std = count_stds(self.noise(name))
        return certify(
            compiled,
            histogram,
            histogram_std,
            n_units=self.n_units,
            outcomes=outcomes,
            outcomes_std=outcomes_std,
            unit=self.unit.noun,
            data=self._data,
            groups=() if groups is None else groups(histogram, histogram_std),
            **options,
        )


# ------------------------------------------------------------------------- before any row is read


def _check_ledger(ledger: Any, neighbours: str) -> None:
    if ledger is None:
        return
    if not isinstance(ledger, Ledger):
        raise InvalidType(f"ledger must be a Ledger or None, got {type(ledger).__name__}")
    if ledger.neighbours != neighbours:
        raise InvalidInput(
            f"neighbours is {neighbours!r}, but the ledger accounts for {ledger.neighbours!r}; "
            "use one relation for both"
        )


def _predicted(y_pred: Any, X: Any, classes: Any) -> tuple[Any, Any]:
    """Return predicted labels and the classes that are known without looking at the hold-out."""
    known = None if classes is None else declared_classes(classes)
    if not hasattr(y_pred, "predict"):
        if X is not None:
            raise InvalidInput("X is given, but y_pred is no model; pass a fitted model, or leave X out")
        return y_pred, known
    if X is None:
        raise InvalidInput("y_pred is a model, so X must be given: the features of the hold-out")
    if known is None and getattr(y_pred, "classes_", None) is not None:
        known = declared_classes(list(y_pred.classes_))
    return y_pred.predict(X), known


def _refuse_useless(releases: RowReleases, n_classes: int, epsilon: float) -> None:
    """Raise if noise alone leaves the accuracy open; by public facts only."""
    n_units, noun = releases.n_units, releases.unit.noun
    _, std = count_stds(releases.noise(COUNTS))
    reach = _CRITICAL * std * math.sqrt(n_classes) / n_units
    if reach > _USELESS:
        raise InvalidInput(
            f"{n_units} {noun} are too few for epsilon {epsilon:g}: the accuracy would be known to +-{reach:.2g} "
            f"only; take an epsilon of about {epsilon * reach / 0.05:.2g} or more, or at least "
            f"{math.ceil(n_units * reach / 0.05)} {noun}"
        )


# ------------------------------------------------------------------------------- what is measured


class _Measured:
    """The constraints and the rates of every group on one partition, so that one histogram serves both."""

    def __init__(self, declarations: Sequence[Any], domain: Domain) -> None:
        declared = [constraint for constraint, _ in expand(list(declarations), domain, allow_empty=True)]
        rates = [each >= _UNBOUNDED for each in _group_rates(domain)]
        # one sum that reads everything makes both partitions the same; it has at least two terms, and its
        # coefficients are positive and all different, so that nothing cancels and no other sum equals it
        everyone = [rate(k) >= _UNBOUNDED for k in domain.classes[:2]]
        terms = dict.fromkeys(term for c in (*everyone, *declared, *rates) for term, _ in c.expression.terms)
        together = Expression(tuple((term, 1.0 + place) for place, term in enumerate(terms)))
        self._anchor = together >= _UNBOUNDED
        self.compiled = self._compile(list(declarations), domain)
        self._rates = self._compile(rates, domain)

    def _compile(self, constraints: list[Any], domain: Domain) -> CompiledConstraints:
        return compile_constraints([self._anchor, *constraints], domain, to_hold=False, allow_empty=True)

    @property
    def items(self) -> tuple[Item, ...]:
        """The requested bounds."""
        return tuple(i for i in self.compiled.items if not self._is_anchor(self.compiled, i))

    def _is_anchor(self, compiled: CompiledConstraints, item: Item) -> bool:
        return compiled.declared[item.members[0]] is self._anchor

    def groups(self, histogram: Floats, noise: float, level: float) -> Iterator[Estimate]:
        """Yield the rates of the groups, each with an interval of its own for the rows."""
        compiled = self._rates
        members = [item.members[0] for item in compiled.items if not self._is_anchor(compiled, item)]
        found = noisy_intervals(compiled, histogram, noise, members=members, level=level, simultaneous=False)
        for place, j in enumerate(members):
            name = compiled.declared[j].expression.name
            ends = sorted((-float(found.low[place]), -float(found.high[place])))
            value = -float(found.estimate[place]) if found.resolved[place] else math.nan
            yield Estimate(name, value, (ends[0], ends[1]))


def _group_rates(domain: Domain) -> Iterator[Expression]:
    for column, values in domain.columns.items():
        for value in () if isinstance(values, Numeric) else values:
            for k in domain.classes[1:] if len(domain.classes) == 2 else domain.classes:
                yield rate(k, where=group(**{column: value}))
