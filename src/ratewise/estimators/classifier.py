"""The classifier for tables, with the interface of scikit-learn."""

from __future__ import annotations

import math
import numbers
import reprlib
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from ratewise import _validate
from ratewise.accounting import Event, Ledger
from ratewise.accounting.events import NEIGHBOURS
from ratewise.constraints.compiled import as_constraints, named_values
from ratewise.constraints.domain import Domain
from ratewise.data.cells import parse_number, text_of
from ratewise.data.schema import Schema
from ratewise.data.table import (
    FeatureTable,
    code_labels,
    declared_classes,
    declared_domain,
    declared_values,
    read_features,
    read_vector,
)
from ratewise.distributed import open_rows, table_kind
from ratewise.estimators import persistence
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseWarning, UnsupportedCombination
from ratewise.mechanisms.randomness import USED_SEEDS, RandomStreams, warn_of_seed
from ratewise.models.additive import probabilities
from ratewise.models.fitted import AdditiveModel, ShapeFunction, SparseModel
from ratewise.models.rows import Rows
from ratewise.training.callbacks import Progress, find_screen
from ratewise.training.config import TrainingConfig
from ratewise.training.declarations import Declarations, check_compiles, check_ledger, declared_columns, read_groups
from ratewise.training.loop import GradientDescent, StepRecord
from ratewise.training.plan import Plan, explain_plan
from ratewise.training.session import RowSource, Session

if TYPE_CHECKING:
    from ratewise.report import Report

Floats = npt.NDArray[np.float64]

_Classifier = TypeVar("_Classifier", bound="RateConstrainedClassifier")
MODELS = ("additive", "linear")
_CUSTOMARY_DELTA = 1e-5
_SMALLEST_DELTA = 1e-300  # nearer to zero, tails of normal distributions cannot be told apart


class RateConstrainedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier trained under differential privacy with constraints on its prediction rates.

    Everything that `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to one row of
    (X, y, sensitive_features), or to all rows of one id if `privacy_ids` are given. `privacy_` states the
    neighbouring relation, the public facts and the releases. Constraints are judged on the training rows by
    a private measurement of the returned model, `certificate_`. Classes, group values, column types, ranges and
    vocabularies that are not declared are found by private releases within the budget; declared facts cost nothing.

    Parameters
    ----------
    constraints : constraint, family, text, or list of them, optional
        Such as ``demographic_parity("sex", max_gap=0.05)`` or its text ``"demographic_parity(sex) <= 0.05"``.
    epsilon, delta : float or None
        Privacy budget. By default epsilon is 1.0, and delta is 1e-5 or half of 1 / n if that is smaller, where n is the
        number of units (rows or ids). ``epsilon=None`` trains without privacy.
    neighbours : "zero_out", "add_or_remove" or "replace_one", default "zero_out"
        Relation of neighbouring data sets. The number of units is public, so zero-out is exact.
    classes : list, optional
        The possible labels. Rows with another label add nothing.
    group_values : mapping of column to list of values or ``Numeric()``, optional
        The possible values of sensitive columns. Other values count as "other".
    feature_bounds : pair (lower, upper), or mapping of column to (lower, upper) or to a list of values, optional
        Public ranges of continuous features and values of categorical ones.
    class_weight : mapping of class to weight, optional
        Public weights of the loss by true class, relative to the largest. Gradients are clipped after weighting, so
        weights cost no privacy. Rates and constraints are not weighted.
    schema : Schema, optional
        Public description of the table, in place of `classes`, `group_values` and `feature_bounds`. Columns that it
        does not name are not used.
    model : "additive" or "linear", default "additive"
        One shape function per feature, or scores that are linear in continuous features. Sparse matrices need "linear".
    config : TrainingConfig, optional
        All other settings of training.
    rows_per_id : int, optional
        The largest number of rows of an id that are used; by default it is found privately. Needs `privacy_ids`.
    id_weighting : "id" or "row", default "id"
        Whether rates are averages over ids or over rows.
    ledger : Ledger, optional
        Records this fit, and refuses it if it exceeds the cap. By default each fit has a ledger of its own.
    data_name : str, default "training rows"
        Name of the training data in the ledger and in `process_total`.
    callback : callable, optional
        Called after each step with a `StepRecord` of released values.
    verbose : int, default 0
        1 shows progress on standard error.
    random_state : int, NumPy generator or None, default None
        None draws from a cryptographically secure source. A seed makes a fit repeatable, and must stay secret.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn.
    certificate_ : Certificate or None
        Estimate, intervals and verdict (held, missed, cannot tell) of every constraint; None without constraints.
    privacy_ : PrivacyStatement
        With `.epsilon` and `.delta`; epsilon is infinite for ``epsilon=None``.
    ledger_ : Ledger
    plan_ : Plan
    history_ : dict of arrays
        Released values by step.
    model_ : AdditiveModel or SparseModel
    multipliers_ : array
        Multiplier of each constraint at the end.
    unused_features_ : dict of str to str
        Features without weight, with the reason, judged from released values.

    Examples
    --------
    >>> from ratewise import RateConstrainedClassifier, demographic_parity
    >>> from ratewise.datasets import census_like
    >>> people = census_like(5000, random_state=0)
    >>> model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), epsilon=1.0, random_state=0)
    >>> model = model.fit(people.X, people.y, sensitive_features=people.sensitive)
    >>> model.privacy_.epsilon <= 1.0
    True
    """

    def __init__(
        self,
        constraints: Any = None,
        *,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        neighbours: str = "zero_out",
        classes: Any = None,
        group_values: Mapping[str, Any] | None = None,
        feature_bounds: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        schema: Any = None,
        model: str = "additive",
        config: TrainingConfig | None = None,
        rows_per_id: int | None = None,
        id_weighting: str = "id",
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        callback: Callable[[StepRecord], object] | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.constraints = constraints
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.classes = classes
        self.group_values = group_values
        self.feature_bounds = feature_bounds
        self.class_weight = class_weight
        self.schema = schema
        self.model = model
        self.config = config
        self.rows_per_id = rows_per_id
        self.id_weighting = id_weighting
        self.ledger = ledger
        self.data_name = data_name
        self.callback = callback
        self.verbose = verbose
        self.random_state = random_state

    # ------------------------------------------------------------------------------------- fitting

    def fit(
        self, X: Any, y: Any, *, sensitive_features: Any = None, privacy_ids: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train on rows; invalid declarations are rejected before any privacy is spent.

        Parameters
        ----------
        X : data frame, two-dimensional array, sparse matrix, or a table that is larger than memory
            Raw columns: numbers, text, categories, booleans, dates, missing values. A `pyarrow.dataset.Dataset`, a
            `dask.dataframe.DataFrame` or a `pyspark.sql.DataFrame` is read where it is; `y`, `sensitive_features` and
            `privacy_ids` are then names of its columns.
        y : vector of labels, or the name of a column of X
        sensitive_features : data frame, series, mapping of name to column, vector, or names of columns of X
            The columns that the constraints read. Needed to fit, never to predict.
        privacy_ids : vector, or the name of a column of X, optional
            All rows with one id form one unit of privacy.
        sample_weight : vector of numbers, optional
            Private weights of the loss of each row, divided by `TrainingConfig.max_sample_weight`, which is public,
            and clipped to 0 to 1; a missing weight is 0. Gradients are clipped after them, so that they cost no
            privacy. Rates, constraints and the certificate are not weighted.
        """
        session = self._session(X, y, sensitive_features, privacy_ids, sample_weight)
        session.declare_and_plan()  # a ledger that refuses the plan leaves an earlier model as it was
        forget_fit(self)
        self.ledger_ = session.admission.ledger  # what an interrupted fit spent stays on record
        shown = bool(self.verbose) and getattr(session, "leads", True)
        with Progress(session, find_screen() if shown else None) as progress:

            def on_step(record: StepRecord) -> None:
                progress.show(record)
                if self.callback is not None:
                    self.callback(record)

            session.run(on_step)
        return keep_session(self, session)

    def planned_events(
        self, X: Any, y: Any = None, *, sensitive_features: Any = None, privacy_ids: Any = None
    ) -> tuple[Event, ...]:
        """Return what `fit` would release; it depends on declarations, shapes and the number of units only."""
        session = self._session(X, y, sensitive_features, privacy_ids, planning=True)
        return tuple(session.make_plan(session.rows.count_units()).events.values())

    def _session(
        self, X: Any, y: Any, sensitive: Any, ids: Any, weight: Any = None, *, planning: bool = False
    ) -> Session:
        """Return a session after all checks of declarations and shapes; a plan takes nothing of the seed."""
        self._check_parameters()
        declared, rows = self._rows(X, y, sensitive, ids, weight)
        if declared.constraints:
            check_compiles(declared, rows.group_names)
        delta = delta_for(self.delta, rows.count_units(), private=self.epsilon is not None)
        streams = RandomStreams.from_seed() if planning else self._streams()
        if self.epsilon is not None and not planning:
            warn_of_seed(self.random_state)
            if self.ledger is not None:
                USED_SEEDS.add(self.ledger, streams)
        return Session(
            declared,
            rows,
            self._training_config(rows.count_units()),
            None if self.epsilon is None else float(self.epsilon),
            delta,
            self.neighbours,
            streams,
            ledger=self.ledger,
            data_name=self.data_name,
        )

    def _training_config(self, n_units: int) -> TrainingConfig:  # noqa: ARG002 - that of networks depends on it
        return self.config or TrainingConfig()

    def _rows(self, X: Any, y: Any, sensitive: Any, ids: Any, weight: Any) -> tuple[Declarations, RowSource]:
        """Return the declarations and the rows, of which only shapes, names and types are looked at."""
        if table_kind(X) is not None:
            if weight is not None or self.class_weight is not None:
                raise UnsupportedCombination(
                    "sample_weight and class_weight need rows in memory: pass a data frame or an array as X"
                )
            constraints = as_constraints(self.constraints)
            needed = named_values(constraints).needed if constraints else frozenset()
            left_out = self._left_out - {name for name in (y, ids) if isinstance(name, str)}
            rows = open_rows(X, y, sensitive_features=sensitive, privacy_ids=ids, needed=needed, leave_out=left_out)
            return self._declarations(rows.names, ids, ids is not None), rows
        X, y, sensitive, ids, id_column = columns_by_name(X, y, sensitive, ids)
        features = read_features(X).without(self._left_out)
        if features.sparse is not None and self.model != "linear":
            raise UnsupportedCombination(
                "Sparse data was passed for X, but model is 'additive'; use model='linear', or X.toarray()"
            )
        labels = read_vector(y, features.n_rows, "y")
        ids = None if ids is None else read_vector(ids, features.n_rows, "privacy_ids")
        declared = self._declarations(features.names, id_column if ids is not None else None, ids is not None)
        groups = read_groups(sensitive, features.n_rows, declared)
        for role, names in (("the label", [getattr(y, "name", None)]), ("a group", groups)):
            if id_column is not None and id_column in names:
                raise InvalidInput(f"column {id_column!r} is both {role} and the privacy id")
        if weight is not None:
            given = parse_number(read_vector(weight, features.n_rows, "sample_weight")).values
            scale = (self.config or TrainingConfig()).max_sample_weight
            weight = np.clip(np.nan_to_num(given, nan=0.0), 0.0, scale) / scale  # without overflow
        return declared, Rows(features, labels, groups, ids, weight, self.class_weight)

    def _declarations(self, names: tuple[str, ...], id_column: str | None, ids: bool) -> Declarations:
        classes = self._declared_classes()
        groups = declared_values(self.group_values) or getattr(self.schema, "group_values", None)
        return Declarations(
            constraints=list(as_constraints(self.constraints)),
            classes=None if classes is None else declared_domain(classes).classes,
            group_values=dict(declared_domain((0, 1), groups).columns),
            columns=self._declared_columns(names),
            model=self.model,
            unit="id" if ids else "row",
            id_column=id_column,
            rows_per_id=self.rows_per_id,
            weighting=self.id_weighting,
        )

    @property
    def _left_out(self) -> set[str]:
        """Columns that the schema says are no features."""
        schema = self.schema
        return set() if schema is None else {*schema.leave_out, *filter(None, [schema.privacy_id])}

    def _declared_classes(self) -> Any:
        return self.classes if self.classes is not None else getattr(self.schema, "classes", None) or None

    def _declared_columns(self, names: tuple[str, ...]) -> dict[str, Any]:
        return declared_columns(names, self.feature_bounds, self.schema)

    def _check_parameters(self) -> None:
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon, hint="None trains without privacy")
        if self.delta is not None and _validate.inside(delta=self.delta) < _SMALLEST_DELTA:
            raise InvalidInput(f"delta must be at least {_SMALLEST_DELTA:g}, got {self.delta!r}")
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        _validate.one_of(MODELS, model=self.model)
        _validate.one_of(("id", "row"), id_weighting=self.id_weighting)
        if self.rows_per_id is not None:
            _validate.count(rows_per_id=self.rows_per_id)
        if not isinstance(self.verbose, bool | np.bool_):
            _validate.count(at_least=0, verbose=self.verbose)
        _validate.text(required=True, data_name=self.data_name)
        for name, kind in (("config", TrainingConfig), ("schema", Schema)):
            if not isinstance(value := getattr(self, name), kind | None):
                raise InvalidType(f"{name} must be a {kind.__name__} or None, got {type(value).__name__}")
        if self.callback is not None and not callable(self.callback):
            raise InvalidType(f"callback must be a function or None, got {self.callback!r}")
        check_ledger(self.ledger, self.neighbours)
        if getattr(self, "class_weight", None) is not None:  # networks have none
            self._check_class_weight()

    def _check_class_weight(self) -> None:
        if not isinstance(self.class_weight, Mapping):
            raise InvalidType(
                "class_weight must map classes to public weights, as in {0: 1, 1: 5}, "
                f"got {reprlib.repr(self.class_weight)}; 'balanced' would read the private labels"
            )
        for weight in self.class_weight.values():
            _validate.non_negative(class_weight=weight)
        classes = self._declared_classes()
        known = set() if classes is None else {text_of(value) for value in declared_classes(classes)}
        unknown = [value for value in self.class_weight if known and text_of(value) not in known]
        if unknown:
            raise InvalidInput(
                f"class_weight names {unknown[0]!r}, which is no class; the classes are {reprlib.repr(classes)}"
            )

    def _streams(self) -> RandomStreams:
        try:
            return RandomStreams.from_seed(self.random_state)
        except (TypeError, ValueError):
            kind = InvalidInput if isinstance(self.random_state, numbers.Integral) else InvalidType
            raise kind(
                "random_state must be a whole number of at least 0, a NumPy generator or None, "
                f"got {reprlib.repr(self.random_state)}"
            ) from None

    def _keep_model(self, session: Session) -> None:
        names = session.rows.names
        self.n_features_in_ = len(names)
        if session.rows.named:
            self.feature_names_in_ = np.array(names, dtype=object)
        self._feature_names = names
        self.unused_features_ = session.unused
        self.model_ = _fitted_model(session)

    def _keep_results(self, session: Session, outside: tuple[str, ...] = ()) -> None:
        """Keep what tables and networks have in common, and warn if nothing was trained."""
        loop = session.loop
        dual = None if loop is None else loop.dual
        self.classes_ = class_array(session.classes or (0,))
        self.plan_: Plan = session.plan
        self.ledger_ = session.admission.ledger
        self.n_iter_ = 0 if loop is None else loop.optimizer.done
        self.history_ = {} if session.history is None else session.history.arrays()
        self.constraints_ = session.compiled
        self.certificate_ = session.certificate
        self.multipliers_ = np.zeros(0) if dual is None else dual.multipliers.copy()
        self.privacy_ = session.statement(self._public_facts(session), outside)
        if loop is None:
            shown = ", ".join(map(str, session.classes)) or "none"
            warnings.warn(
                f"the private release found fewer than two classes ({shown}); the model predicts a constant. "
                "Declare classes=..., or use more rows or a larger epsilon",
                RatewiseWarning,
                stacklevel=4,
            )

    def _public_facts(self, session: Session) -> tuple[str, ...]:
        declared = session.declarations
        facts = ["the names of the features"]
        facts += ["the classes"] if declared.classes is not None else []
        facts += [f"the values of {name!r}" for name in declared.group_values]
        complete = sum(column.complete for column in declared.columns.values())
        facts += [f"the ranges or values of {complete} features"] if complete else []
        if self.class_weight is not None:
            facts.append("the weights of the classes in the loss")
        if getattr(session.rows, "sample_weight", None) is not None:
            facts.append("the largest weight of a row in the loss; weights are clipped to it and stay private")
        return tuple(facts)

    # ----------------------------------------------------------------------------------- prediction

    def decision_function(self, X: Any, *, privacy_ids: Any = None) -> Floats:
        """Return scores: of the second class (n,) for two classes, of every class (n, K) for more; ids are ignored."""
        scores = self._scores(X, privacy_ids)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any, *, privacy_ids: Any = None) -> Floats:
        """Return the probability of each class, in the order of `classes_`; ids are ignored."""
        scores = self._scores(X, privacy_ids)
        return probabilities(scores) if len(self.classes_) > 1 else np.ones_like(scores)

    def predict(self, X: Any, *, privacy_ids: Any = None) -> npt.NDArray[Any]:
        """Return the most probable class of each row; sensitive features are not needed, and ids are ignored."""
        scores = self._scores(X, privacy_ids)
        codes = (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _scores(self, X: Any, privacy_ids: Any = None) -> Floats:
        """Return scores: (n, 1) of the second class for two classes, (n, K) for more; zeros of a constant model."""
        warn_of_ids(privacy_ids)
        check_is_fitted(self)
        features = self._read(X)
        return np.zeros((features.n_rows, 1)) if self.model_ is None else self.model_.scores(features)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, privacy_ids: Any = None) -> float:
        """Return the accuracy on rows with labels y; ids are ignored."""
        predicted = self.predict(X, privacy_ids=privacy_ids)
        labels = read_vector(y, len(predicted), "y")
        if len(self.classes_) > 1:
            domain = Domain(tuple(self.classes_.tolist()), {})
            labels, predicted = code_labels(labels, domain), code_labels(predicted, domain)
        return float(np.average(np.asarray(labels) == predicted, weights=sample_weight))

    def _read(self, X: Any) -> FeatureTable:
        """Return features in the order of `fit`; names are compared if both tables have some."""
        named, what = hasattr(self, "feature_names_in_"), None
        has_names = hasattr(X, "columns") or isinstance(X, Mapping) or hasattr(X, "column_names")
        if named and not has_names:
            what = "X does not have valid feature names, but RateConstrainedClassifier was fitted with feature names"
        elif not named and hasattr(X, "columns") and not hasattr(X, "column_names"):
            columns = list(X.columns)
            if len(columns) != len(self._feature_names):
                return read_features(np.asarray(X), expected=self._feature_names)
            if all(isinstance(name, str) for name in columns):
                what = "X has feature names, but RateConstrainedClassifier was fitted without feature names"
            by_place = [X.iloc[:, i] if hasattr(X, "iloc") else X[name] for i, name in enumerate(columns)]
            X = dict(zip(self._feature_names, by_place, strict=True))
        if what is not None:
            warnings.warn(what, UserWarning, stacklevel=4)
        return read_features(X, expected=self._feature_names)

    # ------------------------------------------------------------------------------ interpretation

    def shape_functions(self) -> list[ShapeFunction]:
        """Return the shape function of every feature, with intervals for the training noise; released values."""
        return self._additive("shape functions").shape_functions()

    def _additive(self, what: str) -> AdditiveModel:
        check_is_fitted(self)
        if not isinstance(self.model_, AdditiveModel):
            reason = "a constant" if self.model_ is None else "a model of a sparse matrix"
            raise UnsupportedCombination(
                f"{what} need a model of a dense table with two classes or more; this is {reason}"
            )
        return self.model_

    def feature_importances(self) -> dict[str, float]:
        """Return the mean absolute contribution of every feature to the scores, largest first."""
        totals: dict[str, float] = {}
        for shape in self.shape_functions():
            totals[shape.feature] = totals.get(shape.feature, 0.0) + shape.importance
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def plot_shape(self, feature: str, ax: Any = None, output: int = 0) -> Any:
        """Draw the shape function of a feature with an interval for the training noise; needs matplotlib."""
        from ratewise.report.views import draw_shape

        shapes = [s for s in self.shape_functions() if s.feature == feature and s.output == output]
        if not shapes:
            raise InvalidInput(f"feature must be one of {list(self._feature_names)}, got {feature!r}")
        return draw_shape(shapes[0], str(self.classes_[output if len(self.classes_) > 2 else -1]), ax)

    def explain(self, X: Any = None) -> Any:
        """Return what training did and why, in words; or, for rows, the contribution of every feature.

        Parameters
        ----------
        X : rows, optional
            Returns for each row a dict of feature to contribution to the score (of the second class, or of
            the predicted class).
        """
        check_is_fitted(self)
        if X is None:
            config = self._training_config(self.plan_.n_units)
            return explain_plan(self.plan_, config, constrained=self.constraints_ is not None)
        model, features = self._additive("contributions of features"), self._read(X)
        parts = model.contributions(features)
        output = model.scores(features).argmax(axis=1)  # of a single output, that one
        return [
            dict(zip(self._feature_names, part[:, k].tolist(), strict=True))
            for part, k in zip(parts, output, strict=True)
        ]

    # ------------------------------------------------------------------------------- report and notebook

    def report(self, X: Any, y: Any, *, sensitive_features: Any = None, **options: Any) -> Report:
        """Return what this model reaches of what was requested, on rows it has not seen.

        The rows are read without noise, and the privacy guarantee does not cover what is measured on them.

        Parameters
        ----------
        X, y, sensitive_features
            Rows to measure on, as in ``fit``.
        **options
            `baseline` (a classifier, or a mapping of names to classifiers, to compare with), `by`, `confidence`,
            `name`, `title` and `data`, as in `ratewise.report.Report.from_model`.

        Returns
        -------
        Report
            Shows itself in notebooks; ``.to_html(path)``, ``.to_json(path)``, ``.model_card(path)``,
            ``.figures()``.
        """
        from ratewise.report import Report

        return Report.from_model(self, X, y, sensitive_features, **options)

    # scikit-learn asks for either of these, by version and by who displays

    def _repr_html_inner(self) -> str:
        return self._html_repr()

    def _html_repr(self) -> str:
        from ratewise.report.views import summary

        return summary(self) + str(estimator_html_repr(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            shown["text/html"] = self._html_repr()
        return shown

    # -------------------------------------------------------------------------------- files and exports

    save = persistence.save
    to_sql = persistence.to_sql
    to_onnx = persistence.to_onnx

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of the model file and the parameters that it leaves out, for pickle and skops.

        The plain attributes, if the classifier is not fitted or holds values that a file cannot.
        """
        if type(self) is RateConstrainedClassifier and hasattr(self, "model_"):
            try:
                kept = {name: getattr(self, name) for name in persistence.UNWRITTEN}
                said = {name: value for name, value in kept.items() if value is not None}
                return {"model_file": persistence.to_bytes(self), **said}
            except (InvalidInput, InvalidType):  # such as labels that are dates
                pass
        state: dict[str, Any] = super().__getstate__()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_file" in state:
            kept = {name: value for name, value in state.items() if name != "model_file"}
            state = {**vars(persistence.from_bytes(state["model_file"])), **kept}
        super().__setstate__(state)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.model == "linear"
        for kind in ("allow_nan", "string", "categorical"):
            setattr(tags.input_tags, kind, True)
        # noise that hides one row among thousands dominates the few hundred rows of a unit test
        tags.classifier_tags.poor_score = self.epsilon is not None
        return tags


# --------------------------------------------------------------------- checks that estimators share


def delta_for(delta: float | None, n_units: int, *, private: bool = True) -> float:
    """Return delta, by default 1e-5 or half of 1 / n; one that permits publishing a whole row is refused."""
    if delta is None:
        return min(_CUSTOMARY_DELTA, 0.5 / n_units)
    if private and delta > 1 / n_units:
        advice = f"delta is {delta:g}, above 1/n = {1 / n_units:.3g} for {n_units} rows"
        if delta > _CUSTOMARY_DELTA:
            raise InvalidInput(f"{advice}, which permits publishing a whole row; use a delta well below 1/n")
        warnings.warn(f"{advice}; a delta below 1/n says more", RatewiseWarning, stacklevel=4)
    return delta


def forget_fit(estimator: Any) -> None:
    """Drop what an earlier fit left, so that an interrupted one leaves no mix of two models."""
    for name in [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]:
        delattr(estimator, name)


def warn_of_ids(ids: Any) -> None:
    """Say that ids are not needed, if they are given to a method that predicts."""
    if ids is not None:
        message = "predictions do not depend on ids: privacy_ids is ignored; leave it out"
        warnings.warn(message, RatewiseWarning, stacklevel=4)


# --------------------------------------------------------------------------------------- sessions


def session_of(
    classifier: RateConstrainedClassifier, X: Any, y: Any, *, sensitive_features: Any = None, privacy_ids: Any = None
) -> Session:
    """Return the session of a fit after all checks and before any release, for callers that run it in parts."""
    return classifier._session(X, y, sensitive_features, privacy_ids)


def keep_session(classifier: _Classifier, session: Session, outside: tuple[str, ...] = ()) -> _Classifier:
    """Return the classifier, fitted by a session that came to its end.

    `outside` is what was read off the data outside the guarantee, for the statement.
    """
    classifier._keep_model(session)
    classifier._keep_results(session, outside)
    return classifier


def _fitted_model(session: Session) -> AdditiveModel | SparseModel | None:
    """Return the released model of a session; None if fewer than two classes were found."""
    if session.loop is None:
        return None
    engine, parameters, plan, basis = session.engine, session.parameters, session.plan, session.basis
    if basis is None:
        theta = parameters.reshape(engine.n_outputs, -1)
        columns = dict(session.declarations.columns)
        return SparseModel(columns, session.rows.names, theta[:, :-1].copy(), theta[:, -1].copy())
    noise = 0.0
    if plan.training is not None and plan.training.gradient_noise is not None:
        # the last steps average the noise; to first order its size is that of one step by the root of the steps
        step = plan.training.gradient_noise * session.loop.clip / plan.expected_units
        optimizer = session.loop.optimizer
        assert isinstance(optimizer, GradientDescent)  # noqa: S101 - that of tables
        gain = optimizer.learning_rate / (1.0 - optimizer.momentum)
        noise = gain * step * math.sqrt(plan.steps / 3.0)
    table_noise = noise * np.sqrt(basis.squared_norms)
    return AdditiveModel(session.grids, engine.scorer(parameters), basis.shares, table_noise)


def columns_by_name(X: Any, y: Any, sensitive: Any, ids: Any = None) -> tuple[Any, Any, Any, Any, str | None]:
    """Take labels, sensitive columns and ids out of X where they are given as names of its columns.

    Whether a list holds names follows from lengths: a list with one entry per row, or with more entries than there are
    columns, holds values of rows.
    """
    names = []
    if hasattr(X, "shape") and hasattr(X, "columns"):  # Arrow's `columns` are not names
        names = list(getattr(X, "column_names", X.columns))

    def take(name: str, what: str) -> Any:
        if name not in names:
            raise InvalidInput(f"{what} is {name!r}, which is no column of X")
        return X[name]

    dropped = [name for name in (y, ids) if isinstance(name, str)]
    if isinstance(y, str):
        y = take(y, "y")
    listed = isinstance(sensitive, list | tuple) and 0 < len(sensitive) <= len(names) and len(sensitive) != len(X)
    if isinstance(sensitive, str):
        sensitive = {sensitive: take(sensitive, "sensitive_features")}
    elif listed and all(isinstance(name, str) for name in sensitive):
        sensitive = {name: take(name, "sensitive_features") for name in sensitive}
    column = ids if isinstance(ids, str) else getattr(ids, "name", None)
    column = column if isinstance(column, str) else None
    if isinstance(ids, str):
        ids = take(ids, "privacy_ids")
    elif column is not None and column in names:
        raise InvalidInput(
            f"column {column!r} is both a feature and the privacy id; drop it from X, or pass its name as privacy_ids"
        )
    if dropped:
        X = X.drop(columns=dropped) if hasattr(X, "iloc") else X.drop(dropped)
    return X, y, sensitive, ids, column


def class_array(classes: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Return the classes as an array of their natural type; a mix of types stays a mix."""
    kinds = {type(value) for value in classes}
    return np.asarray(classes) if len(kinds) == 1 else np.fromiter(classes, dtype=object)
