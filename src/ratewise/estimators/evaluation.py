"""Evaluation of predictions on labelled rows: the certificate of a model on a hold-out, private or public.

For a private hold-out (`epsilon` given) one vector is released: the counts of predictions that the constraints and the
accuracy need, as for the certificate of a training (`ratewise.training.certificate`). One row changes it by at most
sqrt(5) in L2 norm when it is added or removed. It is admitted to a ledger before any row is read, as one
`GaussianEvent`. Classes and group values that are not declared, and the number of rows of an id, are found by further
releases of the same plan: by the stages of `ratewise.training.session` that come before training.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.accounting import Ledger, UnprotectedEvent
from ratewise.accounting.events import NEIGHBOURS
from ratewise.constraints.compiled import CompiledConstraints, as_constraints, compile_constraints, named_values
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.families import Family
from ratewise.data.table import FeatureTable, code_ids, code_labels, declared_domain, raw_columns, read_vector
from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.randomness import USED_SEEDS, RandomStreams, warn_of_seed
from ratewise.models.rows import Rows, usable_rows
from ratewise.preprocessing.discovery import rows_per_id_words
from ratewise.training.certificate import COUNT_SENSITIVITY, Certificate, count_stds, judged, pack_counts
from ratewise.training.config import ROWS_PER_ID_SHARE, TrainingConfig
from ratewise.training.declarations import Declarations, check_ledger
from ratewise.training.plan import DISCOVERY, ROWS_PER_ID, Plan, calibrated
from ratewise.training.session import LABEL, Session

__all__ = ["evaluate"]

Floats = NDArray[np.float64]

COUNTS = "prediction counts"  # name of the release
_CRITICAL = 1.96
_USELESS = 0.5  # half-width of the accuracy's interval, from noise alone, at which nothing is learned


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
    constraints : constraint, family, text, or any nesting of lists of them; None for the accuracy only
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
        The groups; only columns that constraints read are used.
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
        of the data that a model was trained on, it must be that model's ledger. Without `epsilon` the release counts as
        unprotected there, which no cap allows.
    data_name : str
        Name of these rows in the ledger.
    tolerance, level : float
        As in `ratewise.training.certificate.certify`.
    random_state : int, NumPy generator or None
        None takes a secure source. A seed must stay secret, and serves one evaluation per ledger.

    Raises
    ------
    BudgetExceeded
        The ledger's cap does not allow this release; nothing was released.
    InvalidInput
        The rows are too few for this budget to learn anything; nothing was released.
    """
    level, tolerance = _validate.inside(level=level), _validate.non_negative(tolerance=tolerance)
    predicted, known = _predicted(y_pred, X, classes)
    session = RowSession.open(
        constraints,
        y_true,
        sensitive_features,
        known,
        group_values,
        (epsilon, delta, neighbours),
        (privacy_ids, rows_per_id, id_weighting),
        random_state,
        purpose="evaluation",
        shares={COUNTS: 1.0},
        to_hold=False,
        ledger=ledger,
        data_name=data_name,
    )
    if len(predicted) != session.n_rows:
        raise InvalidInput(f"y_pred must have one entry per row of y_true: {len(predicted)} against {session.n_rows}")
    session.plan_units()
    notes = []
    if epsilon is not None:
        _refuse_useless(session, epsilon)
    if epsilon is not None or ledger is not None:
        session.admit()
    if epsilon is not None:
        notes.append(f"Released with noise for epsilon {epsilon:g} at delta {delta:g} ({neighbours}).")
    session.find_domain()
    if epsilon is not None and session.declarations.finds_rows_per_id:
        notes.append(rows_per_id_words(session.max_rows).capitalize() + ".")
    return session.certificate_of(
        COUNTS, code_labels(predicted, session.known[0]), tolerance=tolerance, level=level, notes=tuple(notes)
    )


# ------------------------------------------------------------------------- releases of labelled rows


@dataclass(eq=False)
class RowSession(Session):
    """The releases of a call that reads labelled rows and trains nothing: the first stages of a fit, then counts.

    `shares` are Gaussian releases in their order, with their shares of what the first stages leave of the budget, in
    units of 1 / sigma**2; `discovery_share` is the share of the budget for undeclared values, if there are any. `seed`
    is the user's `random_state`.
    """

    rows: Rows
    shares: Mapping[str, float] = field(default_factory=dict)
    discovery_share: float = 0.1
    to_hold: bool = True  # whether the constraints are to be satisfied, not only measured
    seed: Any = None

    @classmethod
    def open(
        cls,
        constraints: Any,
        y: Any,
        sensitive_features: Any,
        classes: Iterable[Any] | None,
        group_values: Any,
        budget: tuple[float | None, float, str],
        ids: tuple[Any, int | None, str],
        seed: Any,
        *,
        purpose: str,
        ledger: Ledger | None,
        **options: Any,
    ) -> Self:
        """Return a session after all checks; no cell is read, and values that constraints name count as declared.

        `budget` is (epsilon, delta, neighbours), `ids` is (privacy_ids, rows_per_id, id_weighting), other arguments are
        those of `evaluate` and fields.
        """
        (epsilon, delta, neighbours), (privacy_ids, rows_per_id, weighting) = budget, ids
        declared, named = list(as_constraints(constraints)), named_values(constraints)
        if y is None or not len(y):
            raise InvalidInput(f"y is {'missing' if y is None else 'empty'}; pass one label per row")
        check_ledger(ledger, _validate.one_of(NEIGHBOURS, neighbours=neighbours))
        _validate.one_of(("id", "row"), id_weighting=weighting)
        if epsilon is not None:
            _validate.inside(delta=delta)
        columns = raw_columns(sensitive_features, len(y), named.needed)
        known = None if classes is None else declared_domain(classes).classes
        in_families = {name for item in declared if isinstance(item, Family) for name in item.columns}
        values: dict[str, Any] = dict.fromkeys(named.numeric, Numeric())
        if not named.all_columns:
            values |= {name: v for name, v in named.columns.items() if v and name not in in_families}
        values |= declared_domain((0, 1), group_values, other=True).columns
        labels = read_vector(y, len(y), "y")
        rows = Rows(FeatureTable((), False, len(y)), labels, columns)
        column = None
        if privacy_ids is not None:
            rows.ids, name = (read_vector(privacy_ids, len(y), "privacy_ids"), getattr(privacy_ids, "name", None))
            column = name if isinstance(name, str) else None
            if rows_per_id is not None:
                rows_per_id = _validate.count(rows_per_id=rows_per_id)
            elif epsilon is None:  # all rows of an id
                sizes = np.bincount(code_ids(rows.ids)[0][usable_rows(labels, known)])
                rows_per_id = int(max(sizes, default=1))
        declarations = Declarations(
            constraints=declared,
            classes=known,
            group_values={name: values[name] for name in columns if name in values},
            columns={},
            unit="row" if privacy_ids is None else "id",
            id_column=column,
            rows_per_id=None if privacy_ids is None else rows_per_id,
            weighting=weighting,
        )
        declarations.domain(known or (0, 1), tuple(columns), {})  # validates what is declared
        streams = RandomStreams.from_seed(seed, purpose)
        return cls(
            declarations, rows, TrainingConfig(), epsilon, delta, neighbours, streams,
            ledger=ledger, purpose=purpose, seed=seed, **options,
        )  # fmt: skip

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.features.n_rows

    def undeclared(self) -> tuple[str, ...]:
        """Return the label and the sensitive columns whose values must be found."""
        label = (LABEL,) if self.declarations.classes is None else ()
        return (*label, *(name for name in self.rows.groups if name not in self.declarations.group_values))

    def make_plan(self, n_units: int) -> Plan:
        """Return the plan: the first stages, then the releases of `shares`."""
        declared = self.declarations
        shares = {ROWS_PER_ID: ROWS_PER_ID_SHARE} if declared.finds_rows_per_id else {}
        shares |= {DISCOVERY: self.discovery_share} if self.undeclared() else {}
        left = 1.0 - sum(shares.values())
        shares |= {name: left * share for name, share in self.shares.items()}
        plan = Plan(n_units, 1.0, 0, {}, declared.privacy_unit, self.neighbours, math.inf, self.delta)
        return calibrated(plan, shares, self.epsilon, self.delta)

    def admit(self) -> None:
        """Record the whole plan before any row is read, or refuse it."""
        events = self.plan.events or {self.purpose: UnprotectedEvent(f"{self.purpose} without privacy")}
        warn_of_seed(self.seed)
        ledger = self.open_ledger()
        ledger.check(list(events.values()))
        USED_SEEDS.add(ledger, self.streams)
        self.admission = ledger.admit(events, purpose=self.purpose, data=self.data_name, unit=self.plan.unit)

    def find_domain(self) -> None:
        """Fix the weights of rows, find undeclared values and compile the constraints."""
        self.bound_units()
        self.discover()
        if self.domain is None:
            raise InvalidInput(
                f"only {len(self.classes)} class is frequent enough to be found within this budget; declare classes=..."
            )

    def _compile(self, domain: Domain, *, allow_empty: bool = True) -> CompiledConstraints:  # noqa: ARG002
        return compile_constraints(self.declarations.constraints, domain, to_hold=self.to_hold, allow_empty=True)

    @property
    def known(self) -> tuple[Domain, CompiledConstraints]:
        """The domain and the constraints, once they are found."""
        assert self.domain is not None  # noqa: S101
        assert self.compiled is not None  # noqa: S101
        return self.domain, self.compiled

    @property
    def weights(self) -> Floats | None:
        """Weight of every row, at most 1 in total for an id; None if every row is a unit; **private**."""
        return None if self.rows.ids is None else self.units.table_weights(self.rows.problem.labels >= 0)

    def noise(self, name: str) -> float:
        """Return the noise multiplier of a Gaussian release; 0 without privacy."""
        event: Any = self.plan.events.get(name)
        return 0.0 if event is None else float(event.noise)

    def release(self, name: str, sensitivity: float, value: Floats) -> Floats:
        """Return a vector of counts with noise."""
        mechanism = self.plan.gaussian(name, sensitivity, self.units.step)
        released: Floats = self._once(name, lambda: mechanism.release(value, self.streams.histogram))
        return released

    def certificate_of(self, name: str, predicted: Any, **options: Any) -> Certificate:
        """Release the counts of predictions (codes of classes) under a name and return their certificate.

        `options` are those of `ratewise.training.certificate.certify`.
        """
        _, compiled = self.known
        cells: Any = self.rows.problem.cells
        counts = pack_counts(compiled, cells, self.rows.problem.labels, predicted, self.weights)
        released = self.release(name, COUNT_SENSITIVITY, counts)
        return judged(released, compiled, self.plan, name, data=self.data_name, **options)


# ------------------------------------------------------------------------- before any row is read


def _predicted(y_pred: Any, X: Any, classes: Any) -> tuple[Any, Any]:
    """Return predicted labels and the classes that are known without looking at the hold-out."""
    if not hasattr(y_pred, "predict"):
        if X is not None:
            raise InvalidInput("X is given, but y_pred is no model; pass a fitted model, or leave X out")
        return y_pred, classes
    if X is None:
        raise InvalidInput("y_pred is a model, so X must be given: the features of the hold-out")
    own = getattr(y_pred, "classes_", None)
    return y_pred.predict(X), list(own) if classes is None and own is not None else classes


def _refuse_useless(session: RowSession, epsilon: float) -> None:
    """Raise if noise alone leaves the accuracy open; by public facts only."""
    n_units, noun = session.plan.n_units, session.plan.unit.noun
    n_classes = len(session.declarations.classes or (0, 1))
    _, std = count_stds(session.noise(COUNTS))
    reach = _CRITICAL * std * math.sqrt(n_classes) / n_units
    if reach > _USELESS:
        raise InvalidInput(
            f"{n_units} {noun} are too few for epsilon {epsilon:g}: the accuracy would be known to +-{reach:.2g} "
            f"only; take an epsilon of about {epsilon * reach / 0.05:.2g} or more, or at least "
            f"{math.ceil(n_units * reach / 0.05)} {noun}"
        )
