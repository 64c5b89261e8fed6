"""A classifier from raw mixed columns to predictions, within ONE total epsilon.

>>> from ratewise import demographic_parity
>>> from ratewise.datasets import census_like
>>> from ratewise.schema import Category, Number, Schema
>>> people = census_like(5000, random_state=0)
>>> table = {"age": people.X[:, 0], "years": people.X[:, 1], "income": people.y, **people.sensitive}
>>> schema = Schema(
...     {"age": Number(17, 90), "years": Number()},  # bounds of years are found privately
...     label="income", classes=people.classes,
...     groups={"sex": Category(people.group_values["sex"])},
... )
>>> model = TableClassifier(schema, demographic_parity("sex", max_gap=0.1), epsilon=1.0, random_state=0)
>>> model = model.fit(table)
>>> 0.99 <= model.privacy_.epsilon <= 1.0
True
>>> model.predict({"age": [50], "years": [14]}).shape
(1,)
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ratewise.accounting import Budget, Event, Ledger
from ratewise.bounds import BoundsPlan, bounds_plan
from ratewise.defaults import AUTO
from ratewise.domain import list_values
from ratewise.encoding import TableEncoder, curved_features, feature_kinds
from ratewise.estimators import CUSTOMARY_DELTA, RateConstrainedClassifier
from ratewise.evaluation import PrivateReport, private_evaluation
from ratewise.exceptions import BudgetExceeded, InvalidInput, InvalidType, PrivacyLeakWarning
from ratewise.frames import chosen_columns, named_columns
from ratewise.randomness import warn_of_seed
from ratewise.schema import Schema
from ratewise.seeds import USED_SEEDS, streams_for
from ratewise.table_preparation import declared_bounds, group_column, prepare, provisional
from ratewise.tables import needed_columns

__all__ = ["TableClassifier"]

Floats = npt.NDArray[np.float64]


_SAID_BY_SCHEMA = ("classes", "group_values", "feature_bounds", "feature_kinds")
_KEPT = ("plan_", "history_", "constraints_", "doubts_", "multipliers_", "n_iter_", "classes_")


class TableClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier on raw columns, whose one budget covers preparing them and training.

    What `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to adding or removing
    one row of the table, given the schema. Released, in this order and each booked before it happens: bounds
    of numbers that the schema leaves open (two histograms, 2% of the budget each), counts of entries beyond
    declared bounds if asked for (1%), lengths and moments of rows (6% to 12%; of tables so wide that they are
    sparse only if there are rows enough), and the steps of training, calibrated so that **all of it
    together** spends `epsilon`.

    Parameters
    ----------
    schema : Schema
        What is public about the table. One that is not signed counts as leaked, with a warning.
    constraints : constraint, family, or list of them, optional
        About columns that the schema lists as groups.
    epsilon : float or None, default 1.0
        The total budget. None fits without privacy.
    delta : float, default 1e-5
    neighbours : "add_or_remove", "replace_one" or "zero_out"
    unknown : "error" or "zeros"
        What prediction makes of a category that is not declared; `fit` always refuses it.
    count_outside : bool
        Release how many entries lie beyond declared bounds (`outside_`), and warn where they are many.
    ledger : Ledger, optional
        A book with its own cap; by default each fit keeps one, capped at (`epsilon`, `delta`).
    besides : sequence of Event
        Other releases of the same rows that `epsilon` has to cover, as in `RateConstrainedClassifier`.
    data_name, unit : str
        Name of the rows in the ledger, and what a row stands for.
    random_state : int, NumPy generator or None
        A seed makes a fit repeatable and must stay secret.
    **options
        Any other argument of `RateConstrainedClassifier`, such as ``steps`` or ``callback``. By default the
        tails of numbers are cut off (``tails``) and numbers bend (``curves``), if features are standardised
        and, for curves, rows are enough; a list of curves means places of encoded features.

    Attributes
    ----------
    schema_ : Schema
        The schema with released bounds where it had none.
    encoder_ : TableEncoder
    classifier_ : RateConstrainedClassifier
        The model on encoded features.
    bounds_ : dict of (lower, upper)
        What was released for columns without declared bounds.
    outside_ : dict of OutsideCount
        Noisy counts of the entries that were cut off; empty unless asked for.
    privacy_, ledger_, classes_, plan_, history_, constraints_, doubts_, multipliers_, n_iter_
        As in `RateConstrainedClassifier`; `privacy_` is about everything.
    """

    def __init__(
        self,
        schema: Schema,
        constraints: Any = None,
        *,
        epsilon: float | None = 1.0,
        delta: float = CUSTOMARY_DELTA,
        neighbours: str = "add_or_remove",
        unknown: str = "error",
        count_outside: bool = False,
        ledger: Ledger | None = None,
        besides: Any = (),
        data_name: str = "training rows",
        unit: str = "one row",
        random_state: Any = None,
        **options: Any,
    ) -> None:
        self.schema = schema
        self.constraints = constraints
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.unknown = unknown
        self.count_outside = count_outside
        self.ledger = ledger
        self.besides = besides
        self.data_name = data_name
        self.unit = unit
        self.random_state = random_state
        self._options = _known_options(options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters, the options for the inner classifier included."""
        return {**super().get_params(deep=deep), **self._options}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, the options for the inner classifier included."""
        own = super().get_params(deep=False)
        self._options.update(_known_options({k: v for k, v in params.items() if k not in own}))
        super().set_params(**{k: v for k, v in params.items() if k in own})
        return self

    # ------------------------------------------------------------------------------------- learning

    def fit(self, frame: Any, y: Any = None, *, sensitive_features: Any = None) -> Self:
        """Train on the rows of a table.

        Everything that can be wrong with the input is found before any privacy is spent.

        Parameters
        ----------
        frame : data frame, Arrow table, mapping of columns
            Holds the features, and the label and the groups unless they are given apart.
        y : array of labels, optional
        sensitive_features : table, optional
        """
        schema = self._check()
        labels, groups = self.labels_and_groups(frame, y, sensitive_features)
        own = self._own_plan(schema, len(labels))
        book = self._ledger()
        rehearsed = self._encoder(provisional(schema))
        classifier = self._classifier(own, book)
        X = rehearsed.fit_transform(frame)
        planned = classifier.planned_events(X, labels, sensitive_features=groups)
        self._refuse_over_cap(book, (*own.events, *planned))
        streams = streams_for("table", self.random_state)  # one for the releases here, one to train by
        classifier.random_state = streams.sampling
        if self.epsilon is not None:
            self._warn(schema)
            USED_SEEDS.add(book, streams)
        self._forget()
        self.ledger_ = book
        self._prepare(frame, own, streams.preparation)
        self.encoder_ = rehearsed
        if schema.unbounded:
            self.encoder_ = self._encoder(self.schema_)
            X = self.encoder_.fit_transform(frame)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="delta is")  # said in the rehearsal
            self.classifier_ = classifier.fit(X, labels, sensitive_features=groups)
        # the seed of the noise must not travel with the model
        classifier.random_state = None
        self._keep(schema, len(labels))
        return self

    def planned_events(
        self, frame: Any, y: Any = None, *, sensitive_features: Any = None
    ) -> tuple[Event, ...]:
        """Return what `fit` would release on these rows, after all its checks; nothing is released here."""
        schema = self._check()
        labels, groups = self.labels_and_groups(frame, y, sensitive_features)
        own = self._own_plan(schema, len(labels))
        X = self._encoder(provisional(schema)).fit_transform(frame)
        planned = self._classifier(own, None).planned_events(X, labels, sensitive_features=groups)
        return (*own.events, *planned)

    def labels_and_groups(
        self, frame: Any, y: Any = None, sensitive_features: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the labels, and the sensitive columns that the constraints read, off the table."""
        table = named_columns(frame, "frame", positions=tuple(self.schema.columns))
        if y is None:
            y = _column(table, self.schema.label, "the label")
        given = (
            table if sensitive_features is None else named_columns(sensitive_features, "sensitive_features")
        )
        return y, {name: _group(self.schema, name, given) for name in self._needed()}

    # ----------------------------------------------------------------------------------- prediction

    def predict(self, frame: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row; neither label nor groups are needed."""
        X = self._encoded(frame)
        return self.classifier_.predict(X)

    def predict_proba(self, frame: Any) -> Floats:
        """Return the probability of each class, in the order of `classes_`."""
        X = self._encoded(frame)
        return self.classifier_.predict_proba(X)

    def decision_function(self, frame: Any) -> Floats:
        """Return scores, as `RateConstrainedClassifier` does."""
        X = self._encoded(frame)
        return self.classifier_.decision_function(X)

    def score(self, frame: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on rows that may be told about; `evaluate` is for private ones."""
        if y is None:
            y = _column(named_columns(frame, "frame"), self.schema.label, "the label")
        return float(super().score(frame, np.asarray(y), sample_weight))

    def evaluate(
        self, frame: Any, y: Any = None, *, epsilon: float, sensitive_features: Any = None, **options: Any
    ) -> PrivateReport:
        """Release accuracy and rates of a private hold-out; see `ratewise.evaluation.private_evaluation`.

        Parameters
        ----------
        frame, y, sensitive_features
            The hold-out, as in `fit`.
        epsilon : float
            What this release may cost.
        **options
            ``delta``, ``ledger``, ``data_name``, ``confidence``, ``random_state``.
        """
        check_is_fitted(self)
        labels, groups = self.labels_and_groups(frame, y, sensitive_features)
        return private_evaluation(
            self.constraints,
            labels,
            self.predict(frame),
            epsilon=epsilon,
            sensitive_features=groups or None,
            classes=self.schema.classes,
            group_values={name: self.schema.group_values[name] for name in groups},
            **{"delta": self.delta, "neighbours": self.neighbours, **options},
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "privacy_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.classifier_tags.poor_score = self.epsilon is not None
        return tags

    # -------------------------------------------------------------- before any privacy is spent

    def _check(self) -> Schema:
        if not isinstance(self.schema, Schema):
            raise InvalidType(
                f"schema must be a Schema, got {type(self.schema).__name__}; write one, or draft it "
                "from data with Schema.draft"
            )
        if not isinstance(self.count_outside, bool):
            raise InvalidType(f"count_outside must be True or False, got {self.count_outside!r}")
        if self.ledger is not None and not isinstance(self.ledger, Ledger):
            raise InvalidType(f"ledger must be a Ledger or None, got {type(self.ledger).__name__}")
        # what is wrong with the budget is said before it is divided
        RateConstrainedClassifier(
            epsilon=self.epsilon, delta=self.delta, neighbours=self.neighbours, ledger=self.ledger
        )._check_parameters()
        return self.schema

    def _needed(self) -> list[str]:
        needed = needed_columns(self.constraints) if self.constraints is not None else set()
        listed = self.schema.groups
        if needed is None:
            return list(listed)
        unknown = sorted(needed - listed.keys())
        if unknown:
            raise InvalidInput(
                f"the constraints read {list_values(unknown)}, which the schema does not list among its "
                f"groups ({list_values(listed)}); add it with groups={{{unknown[0]!r}: Category([...])}}"
            )
        return [name for name in listed if name in needed]

    def _own_plan(self, schema: Schema, n_rows: int) -> BoundsPlan:
        return bounds_plan(
            self.epsilon,
            self.delta,
            self.neighbours,
            n_rows=n_rows,
            n_columns=len(schema.unbounded),
            outside=self.count_outside and bool(declared_bounds(schema)),
        )

    def _ledger(self) -> Ledger:
        if self.ledger is not None:
            return self.ledger
        cap = None if self.epsilon is None else Budget(float(self.epsilon), float(self.delta))
        return Ledger(cap=cap, neighbours=self.neighbours)

    def _encoder(self, schema: Schema) -> TableEncoder:
        # it is this class that warns of an unsigned schema, once
        return TableEncoder(schema.sign(), unknown=self.unknown)

    def _classifier(self, own: BoundsPlan, book: Ledger | None) -> RateConstrainedClassifier:
        return RateConstrainedClassifier(
            self.constraints,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            classes=self.schema.classes,
            group_values={name: self.schema.group_values[name] for name in self._needed()},
            feature_bounds=(0, 1),
            feature_kinds=feature_kinds(self.schema),
            curves=self._curves(),
            ledger=book,
            besides=(*own.events, *self.besides),
            data_name=self.data_name,
            unit=self.unit,
            **{name: value for name, value in self._options.items() if name != "curves"},
        )

    def _curves(self) -> Any:
        """Return which encoded features bend; True means numbers, though all have the same bounds by now."""
        asked = self._options.get("curves", AUTO)
        return curved_features(self.schema, True) if isinstance(asked, bool | np.bool_) and asked else asked

    def _refuse_over_cap(self, book: Ledger, events: tuple[Event, ...]) -> None:
        if self.epsilon is not None and events and book.would_exceed(events):
            raise BudgetExceeded(
                f"this fit at epsilon={self.epsilon} would pass the ledger's cap {book.cap}, of which "
                f"{book.total_epsilon:.4g} is spent; lower epsilon, or open a ledger with a larger cap"
            )

    def _warn(self, schema: Schema) -> None:
        warn_of_seed(self.random_state)
        if schema.leaks:
            warnings.warn(
                "the schema is not signed: its bounds and values were read off data and are not covered by "
                "epsilon; check them, call schema.sign() and fit again",
                PrivacyLeakWarning,
                stacklevel=3,
            )

    # --------------------------------------------------------------------------------- releases

    def _prepare(self, frame: Any, own: BoundsPlan, rng: np.random.Generator) -> None:
        def book(event: Event, purpose: str) -> None:
            self.ledger_.book(event, purpose=purpose, data=self.data_name)

        prepared = prepare(frame, self.schema, own, rng, book, outside=self.count_outside)
        self.schema_, self.bounds_, self.outside_ = prepared.schema, prepared.bounds, prepared.outside

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            del self.__dict__[name]

    def _keep(self, schema: Schema, n_rows: int) -> None:
        for name in _KEPT:
            setattr(self, name, getattr(self.classifier_, name))
        self.n_features_in_ = len(schema.columns)
        self.feature_names_in_ = np.array(list(schema.columns), dtype=object)
        leaks = schema.leaks if self.epsilon is not None else ()
        self.privacy_ = self.classifier_.privacy_ = self.ledger_.statement(
            delta=self.delta,
            unit=self.unit,
            public=[f"the number of rows, {n_rows}", "the columns and what they mean", *schema.public],
            leaks=leaks,
        )

    def _encoded(self, frame: Any) -> Any:
        check_is_fitted(self)
        return self.encoder_.transform(frame)


_OPTIONS = tuple(
    name
    for name in inspect.signature(RateConstrainedClassifier).parameters
    if name not in inspect.signature(TableClassifier).parameters and name not in _SAID_BY_SCHEMA
)


def _known_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name in _SAID_BY_SCHEMA:
            raise InvalidType(f"{name} is said by the schema; leave it out")
        if name not in _OPTIONS:
            raise InvalidType(f"{name!r} is no parameter; the options are {list_values(_OPTIONS, most=40)}")
    return dict(options)


def _column(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise InvalidInput(
            f"frame has no column {name!r}, {what} by the schema; its columns are {list_values(table)}"
        )
    return table[name]


def _group(schema: Schema, name: str, table: dict[str, Any]) -> Any:
    """Return a sensitive column with its gaps filled as declared."""
    data = chosen_columns({name: _column(table, name, "a sensitive column")}, (name,), "frame")[name]
    return group_column(schema, name, data)
