"""The classifier, with scikit-learn's manners.

`fit` goes through the rooms of the library in order: declarations are compiled against public facts, a plan
is made from public facts and the budget, the ledger is asked, the engine trains, and what is left behind is
the model, the book, the statement and released values only.
"""

from __future__ import annotations

import numbers
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ratewise import _validate
from ratewise.accounting import Budget, Event, Ledger, PrivacyStatement
from ratewise.accounting.book import text
from ratewise.accounting.events import NEIGHBOURS
from ratewise.curves import chosen_curves
from ratewise.defaults import AUTO, PublicFacts, curves_pay, plan_for
from ratewise.domain import Domain
from ratewise.drowning import warn_if_drowned, warn_if_unmeasured
from ratewise.enforceability import Doubt, doubts
from ratewise.exceptions import (
    InvalidInput,
    InvalidType,
    PrivacyLeakWarning,
    RatewiseWarning,
    SmallGroupWarning,
    UnsupportedCombination,
)
from ratewise.explanation import explain
from ratewise.fitting import Fitting, open_ledger
from ratewise.incoming import learn_features, read_features, read_labels
from ratewise.kinds import kinds_by_bounds, kinds_by_name
from ratewise.notebook import Reported
from ratewise.plan import NOISES, Plan, checked_steps
from ratewise.progress import Progress, epsilon_so_far
from ratewise.randomness import RandomStreams, warn_of_seed
from ratewise.reading import PrivateRows, read_rows
from ratewise.scaling import Scaling, scaling_tables
from ratewise.seeds import USED_SEEDS
from ratewise.tails import declared_numbers, named_numbers
from ratewise.training import StepRecord

Floats = npt.NDArray[np.float64]

CUSTOMARY_DELTA = 1e-5
_SMALLEST_DELTA = 1e-300  # nearer to zero, tails of normal distributions cannot be told apart


class RateConstrainedClassifier(Reported, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier trained under differential privacy within limits on its prediction rates.

    Scores are linear in the features, and by default they may also bend in each number (`curves`).

    What `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to adding or removing
    one row of (X, y, sensitive_features), given the public facts that `privacy_` lists. Limits on rates are
    aimed at, not promised: they are measured on noisy counts of the training rows.

    Parameters
    ----------
    constraints : constraint, family, or list of them, optional
        What to hold, such as ``demographic_parity("sex", max_gap=0.05)``. None: no limits.
    epsilon : float or None, default 1.0
        Privacy budget. None trains without privacy.
    delta : float, default 1e-5
        At most 1/n. The customary 1e-5 is let pass for larger data too, with a warning.
    neighbours : "add_or_remove", "replace_one" or "zero_out"
        What a neighbouring data set is.
    classes : list, optional
        The possible labels. Declare them: otherwise they are read off `y`, with a `PrivacyLeakWarning`.
    group_values : mapping of column to list of values (or ``Numeric()``), optional
        The possible values of each sensitive column; otherwise read off the data, with the same warning.
    feature_bounds : pair (lower, upper), optional
        Public bounds, each a number or one per feature: features are cut off there and scaled to [0, 1]
        (sparse ones by their largest magnitude). Without bounds the sizes of features, which of them are
        numbers, and where those lie, are found privately, where features are standardised; else features are
        used as they are.
    feature_kinds : list, optional
        Public: a name or number per feature, the same for features of one nature. Standardising measures each
        kind by itself, so that few numbers are not lost beside many categories. Without it, features bounded
        by 0 and 1 are one kind and all others another. Features of a kind called "number" are numbers to
        `tails` and `curves`; if none is called so, those with other bounds than 0 and 1 are, and without
        bounds those that are seen to have other values.
    steps, sampling_rate, clip, row_norm, learning_rate, schedule, momentum, averaging, dual, histogram_share
        Training choices; see `ratewise.plan.Plan`. None ("auto" for `clip` and `row_norm`, where None means
        "no bound") leaves them to `ratewise.defaults.plan_for`, which looks at public facts only.
    standardise : bool or "auto"
        Whether features are centred and scaled by privately released means and deviations, paid for from
        the same budget. "auto": dense features with `feature_bounds` always, others if there are rows enough.
    tails : "auto", float or None
        Numbers are cut off so many deviations from their mean, in training and in prediction; a first look at
        numbers finds both, within what standardising costs, and noise on the mean is added to the reach
        (`ratewise.tails`). "auto": two, with privacy or without, for dense numbers, if features are
        standardised and noise lets see where tails begin (`ratewise.defaults.preparation_for`). None: numbers
        are cut off at declared bounds only, and have none if none are declared.
    curves : "auto", bool or list of features
        Features that enter a second time, by how near they are to the middle of their bounds (of what `tails`
        leaves of them), so that scores may bend in them; this looks at one row at a time and costs no
        privacy. "auto": numbers (as for `tails`), if dense features are left to be standardised and rows are
        enough (`ratewise.defaults.curves_pay`). If rows are not, numbers bend a little, around their means
        (`ratewise.bends`). False: scores are linear. True, or a list of places: those features.
    histogram : "gaussian" or "laplace"
        Law of the noise on the counts of predictions.
    noise : "discrete" or "continuous"
        Noise that is drawn exactly and added on a grid, or in floating point, whose low bits may tell more
        than epsilon allows.
    temperature : float
        Of the soft predictions that the gradient follows.
    rates : "hard" or "soft"
        Whether limits are meant for predicted classes (default) or for predicted probabilities.
    l1, l2 : float
        Penalties on the sizes of weights and on their squares, intercepts spared; they read no rows. None for
        `l1` leaves it to `ratewise.defaults.l1_for`: nothing, but where noise is large what noise explains.
    fit_intercept : bool
    ledger : Ledger, optional
        A book to write this training into, with its own cap; by default each fit keeps a book of its own,
        capped at (`epsilon`, `delta`).
    besides : sequence of Event
        Other releases of the same rows that `epsilon` has to cover: training takes the rest. They are not
        booked here; whoever makes them books them, in `ledger`.
    data_name : str
        Name of the training data in the ledger.
    unit : str
        What a row stands for, in words, for the statement.
    callback : callable, optional
        Called after each step with a `StepRecord` of released values. An exception from it stops the fit; the
        ledger then counts the steps that ran.
    verbose : int
        1 shows progress on standard error.
    random_state : int, NumPy generator or None
        None takes a cryptographically secure source. A seed makes a fit repeatable and must stay secret:
        whoever knows it can take the noise off. A second fit on one ledger with one seed is refused.

    Attributes
    ----------
    classes_ : array
    coef_, intercept_ : arrays
        On features as prepared (scaled to bounds, standardised, rows shrunk to `row_norm`); then come those
        that enter a second time.
    curves_ : array
        Places of the features that enter a second time, as curves or, where rows are few, as bends.
    privacy_ : PrivacyStatement
        What was spent, with `.epsilon` and `.delta`; epsilon is infinite for ``epsilon=None``.
    ledger_ : Ledger
    history_ : dict of arrays
        Released values by step: noisy histograms, constraint values, multipliers, norms of noisy gradients.
    multipliers_ : array
        Mean multiplier of each constraint over the run.
    constraints_ : CompiledConstraints or None
    doubts_ : tuple of Doubt
        Constraints not to be relied on, judged from released counts: they rest on too few rows for this
        budget, were missed at the end of training, or never came to rest.
    plan_ : Plan
    n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn.

    Examples
    --------
    >>> from ratewise import RateConstrainedClassifier, demographic_parity
    >>> from ratewise.datasets import census_like
    >>> people = census_like(5000, random_state=0)
    >>> model = RateConstrainedClassifier(
    ...     demographic_parity("sex", max_gap=0.1), epsilon=1.0,
    ...     classes=people.classes, group_values=people.group_values, random_state=0,
    ... )
    >>> model = model.fit(people.X, people.y, sensitive_features=people.sensitive)
    >>> model.privacy_.epsilon <= 1.0
    True
    """

    def __init__(
        self,
        constraints: Any = None,
        *,
        epsilon: float | None = 1.0,
        delta: float = CUSTOMARY_DELTA,
        neighbours: str = "add_or_remove",
        classes: Any = None,
        group_values: Mapping[str, Any] | None = None,
        feature_bounds: Any = None,
        feature_kinds: Any = None,
        steps: int | None = None,
        sampling_rate: float | None = None,
        clip: float | str | None = AUTO,
        row_norm: float | str | None = AUTO,
        standardise: bool | str = AUTO,
        tails: float | str | None = AUTO,
        curves: Any = AUTO,
        learning_rate: float | None = None,
        schedule: str | None = None,
        momentum: float | None = None,
        averaging: str | None = None,
        dual: Any = None,
        histogram: str = "gaussian",
        histogram_share: float | None = None,
        noise: str = "discrete",
        temperature: float = 1.0,
        rates: str = "hard",
        l1: float | None = None,
        l2: float = 0.0,
        fit_intercept: bool = True,
        ledger: Ledger | None = None,
        besides: Sequence[Event] = (),
        data_name: str = "training rows",
        unit: str = "one row",
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
        self.feature_kinds = feature_kinds
        self.steps = steps
        self.sampling_rate = sampling_rate
        self.clip = clip
        self.row_norm = row_norm
        self.standardise = standardise
        self.tails = tails
        self.curves = curves
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.averaging = averaging
        self.dual = dual
        self.histogram = histogram
        self.histogram_share = histogram_share
        self.noise = noise
        self.temperature = temperature
        self.rates = rates
        self.l1 = l1
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.ledger = ledger
        self.besides = besides
        self.data_name = data_name
        self.unit = unit
        self.callback = callback
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None) -> Self:
        """Train on the rows of X, y and sensitive_features.

        Everything that can be wrong with the input is found before any privacy is spent.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n, d)
        y : array of n labels
        sensitive_features : data frame, series, mapping of name to column, or vector
            The columns that the constraints name. Needed to fit, never to predict.
        """
        rows, plan = self._ready(X, y, sensitive_features)
        scaling, kinds = self._scaling(rows), self._kinds(rows.X.shape[1])
        streams = self._streams()
        self._warn_leaks(rows.leaks)
        warn_if_drowned(plan, self._n_parameters(rows, scaling), self.epsilon)
        if self.standardise == AUTO and self.feature_bounds is None:
            warn_if_unmeasured(plan, self.epsilon)
        cap = None if self.epsilon is None else Budget(float(self.epsilon), float(self.delta))
        ledger = open_ledger(plan, self.ledger, cap, self.neighbours)
        if plan.private:
            warn_of_seed(self.random_state)
            USED_SEEDS.add(ledger, streams)
        self._forget()  # only now: a fit that was refused leaves an earlier model whole
        learn_features(self, X)
        self.ledger_ = ledger
        fitting = Fitting(
            rows,
            plan,
            self.ledger_,
            streams,
            scaling=scaling,
            kinds=kinds,
            numbers=self._numbers(scaling),
            intercept=bool(self.fit_intercept),
            data_name=self.data_name,
        )
        self._run(fitting)
        self._keep(fitting)
        return self

    def planned_events(self, X: Any, y: Any, *, sensitive_features: Any = None) -> tuple[Event, ...]:
        """Return what `fit` would release on these rows, after all its checks; nothing is released here.

        It depends on public facts only: the number of rows and features, the classes, the constraints.
        """
        return self._ready(X, y, sensitive_features)[1].events

    def decision_function(self, X: Any) -> Floats:
        """Return scores: the margin of the second class (n,) for two classes, logits (n, K) for more."""
        check_is_fitted(self)
        return self._model.scores(read_features(self, X, reset=False), self._theta)

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, in the order of `classes_`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(softmax(scores, axis=1))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row; group values are not needed."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on rows with labels y, of any form that `fit` takes."""
        labels = read_labels(y, np.shape(X)[0])
        return float(super().score(X, labels, sample_weight))

    def explain(self) -> str:
        """Return the choices that training made, from public facts, and the reasons, in words."""
        check_is_fitted(self)
        scaling, limited = self._model.scaling, self.constraints_ is not None
        found = scaling is not None and scaling.lower is not None
        return explain(self.plan_, limited=limited, curved=len(self.curves_), found=found)

    def __sklearn_is_fitted__(self) -> bool:
        # a fit that was stopped leaves its ledger, which is no model
        return hasattr(self, "_model")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # noise that hides one row among thousands drowns the few hundred rows of a unit test
        tags.classifier_tags.poor_score = self.epsilon is not None
        return tags

    # ------------------------------------------------------------------ before any privacy is spent

    def _ready(self, X: Any, y: Any, sensitive_features: Any) -> tuple[PrivateRows, Plan]:
        """Return the rows, checked, and the plan for them."""
        self._check_parameters()
        X = read_features(self, X, reset=True)
        y = read_labels(y, X.shape[0])
        self._check_delta(len(y))
        rows = read_rows(
            X,
            y,
            sensitive_features,
            constraints=self.constraints,
            classes=self.classes,
            group_values=self.group_values,
        )
        kinds = self._kinds(X.shape[1])  # first: it refuses what the scaling could not read
        scaling = self._scaling(rows)
        kinds = kinds_by_bounds(scaling, X.shape[1]) if kinds is None else kinds
        facts = PublicFacts(
            n_rows=rows.n_rows,
            n_features=X.shape[1] if scaling is None else scaling.n_prepared,
            n_classes=len(rows.domain.classes),
            constraints=rows.constraints,
            n_kinds=len(set(kinds.tolist())),
            bounded=scaling is not None,
            sparse=not isinstance(rows.X, np.ndarray),
            n_numbers=len(self._numbers(scaling)),
            n_curves=0 if scaling is None else scaling.n_prepared - X.shape[1],
        )
        return rows, self._plan(facts)

    def _check_parameters(self) -> None:
        """Check what neither the plan nor the compiler of constraints looks at."""
        self._check_budget()
        if self.steps is not None:
            checked_steps(self.steps)
        _validate.one_of(("gaussian", "laplace"), histogram=self.histogram)
        _validate.one_of((True, False, AUTO), standardise=self.standardise)
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise InvalidType(f"fit_intercept must be True or False, got {self.fit_intercept!r}")
        if not isinstance(self.verbose, bool | np.bool_):
            _validate.count(at_least=0, verbose=self.verbose)
        text(required=True, data_name=self.data_name)
        text(required=True, unit=self.unit)
        if not isinstance(self.besides, list | tuple):
            raise InvalidType(f"besides must be a list of events, got {self.besides!r}")
        if self.callback is not None and not callable(self.callback):
            raise InvalidType(f"callback must be a function or None, got {self.callback!r}")

    def _check_budget(self) -> None:
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon, hint="None trains without privacy")
            if self.clip is None:
                raise UnsupportedCombination(
                    f"clip is None, but epsilon is {self.epsilon}: privacy needs a bound on each row's "
                    "gradient; give clip a number, or 'auto'"
                )
        if _validate.inside(delta=self.delta) < _SMALLEST_DELTA:
            raise InvalidInput(f"delta must be at least {_SMALLEST_DELTA:g}, got {self.delta!r}")
        _validate.one_of(NEIGHBOURS, neighbours=self.neighbours)
        if self.ledger is not None and not isinstance(self.ledger, Ledger):
            raise InvalidType(f"ledger must be a Ledger or None, got {type(self.ledger).__name__}")
        if self.ledger is not None and self.ledger.neighbours != self.neighbours:
            raise InvalidInput(
                f"neighbours is {self.neighbours!r}, but the ledger keeps its book for "
                f"{self.ledger.neighbours!r}; use one relation for both"
            )

    def _check_delta(self, n_rows: int) -> None:
        if self.epsilon is None or self.delta <= 1 / n_rows:
            return
        advice = f"delta is {self.delta:g}, above 1/n = {1 / n_rows:.3g} for {n_rows} rows"
        if self.delta > CUSTOMARY_DELTA:
            raise InvalidInput(f"{advice}, which permits publishing a whole row; use a delta well below 1/n")
        warnings.warn(f"{advice}; a delta below 1/n says more", RatewiseWarning, stacklevel=4)

    def _plan(self, facts: PublicFacts) -> Plan:
        return plan_for(
            facts,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            histogram=self.histogram,
            histogram_share=self.histogram_share,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            clip=self.clip,
            row_norm=self.row_norm,
            standardise=self.standardise,
            tails=self.tails,
            curves=self.curves,
            dual=self.dual,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            momentum=self.momentum,
            averaging=self.averaging,
            temperature=self.temperature,
            rates=self.rates,
            l1=self.l1,
            l2=self.l2,
            besides=self.besides,
            noise=_validate.one_of(NOISES, noise=self.noise),
        )

    def _scaling(self, rows: PrivateRows) -> Scaling | None:
        X = rows.X
        if self.feature_bounds is None:
            chosen_curves(self.curves, None)
            return None
        try:
            lower, upper = self.feature_bounds
            bounds = [np.broadcast_to(np.asarray(b, dtype=np.float64), X.shape[1]) for b in (lower, upper)]
            if not np.all(np.isfinite(bounds)):
                raise ValueError
            scaling = Scaling(bounds[0], bounds[1], origin="lower" if isinstance(X, np.ndarray) else "zero")
        except (TypeError, ValueError):
            raise InvalidInput(
                f"feature_bounds must be a pair (lower, upper), each a finite number or {X.shape[1]}, "
                f"lower at most upper, got {reprlib.repr(self.feature_bounds)}"
            ) from None
        with np.errstate(over="ignore"):
            apart = bounds[1] - bounds[0]
        if not np.all(np.isfinite(apart)):
            raise InvalidInput(
                "feature_bounds are too far apart for double precision, got "
                f"{reprlib.repr(self.feature_bounds)}; give narrower bounds"
            )
        if np.all(bounds[0] == bounds[1]):
            raise InvalidInput(
                "feature_bounds has equal lower and upper bounds for every feature, got "
                f"{reprlib.repr(self.feature_bounds)}; nothing would be left of X"
            )
        scaling_tables(scaling, X.shape[1], not isinstance(X, np.ndarray))
        standardised = self.standardise is not False
        curved = chosen_curves(
            self.curves,
            (bounds[0], bounds[1]),
            isinstance(X, np.ndarray),
            standardised,
            self._numbers(scaling),
        )
        if len(curved) and isinstance(self.curves, str):
            classes = len(rows.domain.classes)
            budget = self.epsilon, self.delta, self.neighbours
            if not curves_pay(rows.n_rows, X.shape[1] + len(curved), classes, *budget):
                return scaling
        return replace(scaling, curved=curved) if len(curved) else scaling

    def _n_parameters(self, rows: PrivateRows, scaling: Scaling | None) -> int:
        classes = len(rows.domain.classes)
        width = rows.X.shape[1] if scaling is None else scaling.n_prepared
        return int(width + bool(self.fit_intercept)) * (1 if classes == 2 else classes)

    def _kinds(self, n_features: int) -> npt.NDArray[np.intp] | None:
        return None if self.feature_kinds is None else kinds_by_name(self.feature_kinds, n_features)

    def _numbers(self, scaling: Scaling | None) -> npt.NDArray[np.intp]:
        """Return the places of the features that are declared to be numbers."""
        if scaling is None or scaling.lower is None or scaling.upper is None:
            return named_numbers(self.feature_kinds)
        return declared_numbers(self.feature_kinds, scaling.lower, scaling.upper)

    def _streams(self) -> RandomStreams:
        try:
            return RandomStreams.from_seed(self.random_state)
        except (TypeError, ValueError):
            kind = InvalidInput if isinstance(self.random_state, numbers.Integral) else InvalidType
            raise kind(
                "random_state must be a whole number of at least 0, a NumPy generator or None, "
                f"got {reprlib.repr(self.random_state)}"
            ) from None

    def _warn_leaks(self, leaks: tuple[str, ...]) -> None:
        if leaks and self.epsilon is not None:
            warnings.warn(
                f"read off the data, and not covered by epsilon: {'; '.join(leaks)}. Declare them as "
                "public facts with classes=... and group_values=...",
                PrivacyLeakWarning,
                stacklevel=3,
            )

    # ---------------------------------------------------------------------------------- the run

    def _forget(self) -> None:
        """Drop what an earlier fit left, so that an interrupted one leaves no mix of two models."""
        learned = [name for name in vars(self) if name.endswith("_")]
        for name in (*learned, "_model", "_theta"):
            self.__dict__.pop(name, None)

    def _run(self, fitting: Fitting) -> None:
        spent = epsilon_so_far(fitting.plan, fitting.ledger, self.delta)
        with Progress(fitting.plan.steps, enabled=bool(self.verbose), epsilon=spent) as progress:

            def on_step(record: StepRecord) -> None:
                progress.show(record)
                if self.callback is not None:
                    self.callback(record)

            fitting.run(on_step)

    def _keep(self, fitting: Fitting) -> None:
        training, rows = fitting.training, fitting.rows
        self.classes_ = _class_array(rows.domain)
        self._model = fitting.model
        self._theta = fitting.theta
        self.coef_, self.intercept_ = self._model.coefficients(self._theta)
        self.curves_ = fitting.curved
        self.plan_ = fitting.plan
        self.constraints_ = rows.constraints
        self.n_iter_ = training.steps_done
        self.history_ = fitting.history.arrays()
        self.privacy_ = self._statement(rows)
        self.multipliers_ = np.zeros(0) if training.multipliers is None else training.multipliers.average
        self.doubts_: tuple[Doubt, ...] = ()
        if training.multipliers is not None and rows.constraints is not None:
            self.doubts_ = doubts(rows.constraints, training.multipliers, training.plan)
            _warn_doubts(self.doubts_)

    def _statement(self, rows: PrivateRows) -> PrivacyStatement:
        public = [f"the number of rows, {rows.n_rows}", "the number and meaning of the features"]
        if self.classes is not None:
            public.append("the classes")
        public += [f"the values of column {name!r}" for name in (self.group_values or ())]
        if self.feature_bounds is not None:
            public.append("the bounds of the features")
        if self.feature_kinds is not None:
            public.append("the kinds of the features")
        leaks = rows.leaks if self.epsilon is not None else ()
        return self.ledger_.statement(delta=self.delta, unit=self.unit, public=public, leaks=leaks)


def _warn_doubts(found: tuple[Doubt, ...]) -> None:
    if found:
        shown = "; ".join(str(doubt) for doubt in found[:5])
        more = f"; and {len(found) - 5} more (see doubts_)" if len(found) > 5 else ""
        warnings.warn(f"not to be relied on at this budget: {shown}{more}", SmallGroupWarning, stacklevel=4)


def _class_array(domain: Domain) -> npt.NDArray[Any]:
    """Return the classes as an array of their natural type; a mix of types stays a mix."""
    kinds = {type(value) for value in domain.classes}
    if len(kinds) == 1:
        return np.asarray(domain.classes)
    found = np.empty(len(domain.classes), dtype=object)
    found[:] = domain.classes
    return found
