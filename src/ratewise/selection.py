"""Choosing among configurations privately: the best of a random number of private trials.

Each trial draws a configuration, trains with noise and is scored with noise, all within the trial's budget.
The number of trials is random and drawn without a look at the data. Only the winner is released; what it
costs to release the best of many is bounded by `ratewise.accounting.selection` (Papernot and Steinke 2022,
and a tighter bound from the whole privacy curve) and is far less than the sum of all trials.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from ratewise import _validate
from ratewise.accounting import Budget, Event, Ledger, calibrate
from ratewise.accounting.book import repeated, summed, text, unit
from ratewise.accounting.events import GaussianEvent
from ratewise.domain import list_values
from ratewise.estimators import CUSTOMARY_DELTA, RateConstrainedClassifier
from ratewise.exceptions import InvalidInput, InvalidType, LedgerError, RatewiseError, RatewiseWarning
from ratewise.mechanisms import RoundedGaussianMechanism
from ratewise.randomness import warn_of_seed
from ratewise.scoring import ScoredRows, Trial, TrialBudget
from ratewise.seeds import USED_SEEDS, streams_for
from ratewise.selection_cost import affordable_trial, selection_cost
from ratewise.table_model import TableClassifier
from ratewise.trials import Configurations, draw_number, shape_of

__all__ = ["PrivateSearch"]

# what decides the releases of a trial, and what a trial must not choose
_COSTS = (
    "steps",
    "sampling_rate",
    "histogram",
    "histogram_share",
    "standardise",
    "tails",
    "curves",
    "feature_bounds",
    "feature_kinds",
    "constraints",
    "count_outside",
)
_OURS = (
    "epsilon",
    "delta",
    "neighbours",
    "ledger",
    "besides",
    "callback",
    "verbose",
    "random_state",
    "schema",
)

_SCORE_SHARE = 0.05  # of a trial's budget
_MEAN_TRIALS = 10.0
_BLIND = 0.02  # deviation of a score at which a search cannot see
_MOST_CHECKED = 100  # settings that are tried out, without a row, before anything is spent


class PrivateSearch(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a random number of private trainings, within one total (`epsilon`, `delta`).

    What `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to adding or removing
    one row. It holds the winner alone: models, scores and warnings of the other trials, and how many there
    were, are not covered by the guarantee and are dropped. **The time that `fit` takes tells the number of
    trials**: keep it to yourself.

    The best is the most accurate among the trials that hold the constraints, by noisy counts of the training
    rows; if none holds them, the one that breaks them least.

    Parameters
    ----------
    estimator : RateConstrainedClassifier or TableClassifier
        What a trial trains; its budget, ledger, seed and callback are set here. Classes and group values must
        be declared.
    configurations : list of mappings, or mapping of parameter to list or law
        What a trial draws its parameters from; see `ratewise.trials.Configurations`.
    epsilon, delta : float
        The total, scores included.
    mean_trials : float, optional
        Expected number of trials; by default the number of configurations, at least 2, or 10 if there is no
        end of them.
    trials : "geometric", "logarithmic", "poisson" or a number
        Law of the number of trials, or the shape of a negative binomial law. Logarithmic costs less and often
        makes a single trial; Poisson costs more, and with a small mean may make none.
    constraints : optional
        What a trial is judged by; by default the estimator's. A search may then vary what is asked in
        training.
    tolerance : float
        By how much a noisy rate may exceed its bound and still count as held.
    ledger : Ledger, optional
        A book with its own cap; by default each fit keeps one. The selection is one entry in it.
    data_name : str
        Name of the rows in the ledger.
    random_state : int, NumPy generator or None
        A seed makes a search repeatable and must stay secret.

    Attributes
    ----------
    best_estimator_ : fitted estimator
        Its `epsilon` is that of one trial; its `privacy_` and `ledger_` are about the whole search.
    best_params_ : dict
    best_score_ : float
        Noisy accuracy of the winner on the training rows: too high on average, as of any winner.
    best_holds_ : bool
        Whether the winner holds the constraints, by its noisy rates.
    best_rates_ : tuple of RateRow
        The winner's noisy rates. Their intervals do not account for having been chosen.
    trial_epsilon_ : float
        Budget of one trial at ``delta / mean_trials``.
    privacy_, ledger_, classes_
        About the whole search.

    Examples
    --------
    >>> from ratewise import RateConstrainedClassifier, demographic_parity
    >>> from ratewise.datasets import census_like
    >>> people = census_like(5000, random_state=0)
    >>> base = RateConstrainedClassifier(
    ...     demographic_parity("sex", max_gap=0.1), classes=people.classes, group_values=people.group_values
    ... )
    >>> search = PrivateSearch(
    ...     base, {"learning_rate": [3.0, 10.0], "momentum": [0.5, 0.9]}, epsilon=2.0, mean_trials=3,
    ...     random_state=0,
    ... )
    >>> search = search.fit(people.X, people.y, sensitive_features=people.sensitive)
    >>> sorted(search.best_params_), 0.99 * 2.0 <= search.privacy_.epsilon <= 2.0
    (['learning_rate', 'momentum'], True)
    """

    def __init__(
        self,
        estimator: Any,
        configurations: Any,
        *,
        epsilon: float = 1.0,
        delta: float = CUSTOMARY_DELTA,
        mean_trials: float | None = None,
        trials: Any = "geometric",
        constraints: Any = None,
        tolerance: float = 0.01,
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.configurations = configurations
        self.epsilon = epsilon
        self.delta = delta
        self.mean_trials = mean_trials
        self.trials = trials
        self.constraints = constraints
        self.tolerance = tolerance
        self.ledger = ledger
        self.data_name = data_name
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sensitive_features: Any = None) -> Self:
        """Search on the rows; everything that can be wrong is found before any privacy is spent.

        Parameters
        ----------
        X, y, sensitive_features
            As the estimator's `fit` takes them.
        """
        space = self._check()
        rows = ScoredRows.read(self.estimator, self._judged_by(), X, y, sensitive_features)
        mean, shape = self._law(space)
        streams = streams_for("selection", self.random_state)
        rng = streams.preparation
        every = space.names if space.finite and len(space) <= _MOST_CHECKED else _COSTS
        first = self._budget(self.epsilon, mean)
        for setting in space.variants(of=every):
            self._planned(setting, first, rows)
        settings = list(space.variants(of=_COSTS))

        def cost(trial: float) -> tuple[Event, float]:
            budget = self._budget(trial, mean)
            candidates = [(budget.score, *self._planned(s, budget, rows)) for s in settings]
            return selection_cost(candidates, mean, shape, self.delta, self.estimator.neighbours)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once above
            trial, event = affordable_trial(cost, self.epsilon, self.epsilon / 2)
        budget = self._budget(trial, mean)
        allowed = {_merged(self._planned(setting, budget, rows)) for setting in settings}
        deviation = rows.score_deviation(budget.score.noise)
        if deviation > _BLIND:
            warnings.warn(
                f"with {len(rows.cells)} rows at this budget noise moves the accuracy of a trial by "
                f"{deviation:.2g}: the winner is chosen nearly at random; raise epsilon, or use the defaults "
                "without a search",
                RatewiseWarning,
                stacklevel=2,
            )
        self._forget()
        self.ledger_ = self._ledger()
        warn_of_seed(self.random_state)
        USED_SEEDS.add(self.ledger_, streams)
        self.ledger_.book(event, purpose="selection", data=self.data_name)
        best = self._best(space, draw_number(mean, shape, rng), budget, rows, allowed, rng)
        self._keep(best, trial)
        return self

    # ----------------------------------------------------------------------------------- prediction

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the winner's predictions."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict(X))

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the winner's probabilities, in the order of `classes_`."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict_proba(X))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the winner's scores."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.decision_function(X))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    # -------------------------------------------------------------- before any privacy is spent

    def _check(self) -> Configurations:
        if not isinstance(self.estimator, RateConstrainedClassifier | TableClassifier):
            raise InvalidType(
                "estimator must be a RateConstrainedClassifier or a TableClassifier, "
                f"got {type(self.estimator).__name__}: what a trial releases must be known before it runs"
            )
        _validate.positive(epsilon=self.epsilon)
        _validate.inside(delta=self.delta)
        _validate.non_negative(tolerance=self.tolerance)
        text(required=True, data_name=self.data_name)
        if self.ledger is not None and not isinstance(self.ledger, Ledger):
            raise InvalidType(f"ledger must be a Ledger or None, got {type(self.ledger).__name__}")
        if self.ledger is not None and self.ledger.neighbours != self.estimator.neighbours:
            raise InvalidInput(
                f"the estimator's neighbours is {self.estimator.neighbours!r}, but the ledger keeps its book "
                f"for {self.ledger.neighbours!r}; use one relation for both"
            )
        space = Configurations(self.configurations)
        known = self.estimator.get_params() if isinstance(self.estimator, RateConstrainedClassifier) else None
        for name in sorted(space.names):
            if name in _OURS:
                raise InvalidInput(f"{name} cannot be searched: the search itself sets it for every trial")
            if known is not None and name not in known:
                raise InvalidInput(
                    f"{name!r} is no parameter of the estimator; they are {list_values(known, 40)}"
                )
        return space

    def _judged_by(self) -> Any:
        return self.estimator.constraints if self.constraints is None else self.constraints

    def _law(self, space: Configurations) -> tuple[float, float]:
        usual = max(2.0, float(len(space))) if space.finite else _MEAN_TRIALS
        mean = usual if self.mean_trials is None else self.mean_trials
        mean, shape = _validate.positive(mean_trials=mean), shape_of(self.trials)
        if mean <= 1:
            raise InvalidInput(
                f"mean_trials must be above 1, got {mean:g}; a single training needs no search"
            )
        return mean, shape

    def _ledger(self) -> Ledger:
        if self.ledger is not None:
            return self.ledger
        return Ledger(
            cap=Budget(float(self.epsilon), float(self.delta)), neighbours=self.estimator.neighbours
        )

    # --------------------------------------------------------------------------------- one trial

    def _budget(self, trial: float, mean: float) -> TrialBudget:
        delta, neighbours = self.delta / mean, self.estimator.neighbours
        whole = calibrate(trial, delta, 1.0, 1, histogram=None, neighbours=neighbours).gradient_noise
        return TrialBudget(trial, delta, GaussianEvent(whole / math.sqrt(_SCORE_SHARE)))

    def _planned(self, setting: dict[str, Any], budget: TrialBudget, rows: ScoredRows) -> tuple[Event, ...]:
        trial = self._trial(setting, budget, None)
        events: tuple[Event, ...] = trial.planned_events(*rows.given, sensitive_features=rows.sensitive)
        return events

    def _trial(self, setting: dict[str, Any], budget: TrialBudget, rng: np.random.Generator | None) -> Any:
        """Return an estimator for one trial, with a fresh book of its own that nobody reads."""
        return clone(self.estimator).set_params(
            **setting,
            verbose=0,
            callback=None,
            epsilon=budget.epsilon,
            delta=budget.delta,
            besides=(budget.score,),
            ledger=None,
            random_state=None if rng is None else rng.spawn(1)[0],
        )

    def _best(
        self,
        space: Configurations,
        number: int,
        budget: TrialBudget,
        rows: ScoredRows,
        allowed: set[tuple[Event, ...]],
        rng: np.random.Generator,
    ) -> Trial:
        """Return the best of `number` runs, keeping no other."""
        best: Trial | None = None
        for _ in range(number):
            run = self._run(space.draw(rng), budget, rows, allowed, rng)
            if run is not None and (best is None or run.rank > best.rank):
                best = run
        if best is None:
            raise RatewiseError(
                "the search ended without a model: it made no trial, or training diverged in each; its "
                "budget is spent. Use trials='geometric', or configurations with smaller learning rates"
            )
        return best

    def _run(
        self,
        setting: dict[str, Any],
        budget: TrialBudget,
        rows: ScoredRows,
        allowed: set[tuple[Event, ...]],
        rng: np.random.Generator,
    ) -> Trial | None:
        """Return one trial, trained and scored; None if its training diverged."""
        estimator = self._trial(setting, budget, rng)
        with warnings.catch_warnings():
            # what a trial warns of comes from its released counts, and only the winner's may be told
            warnings.simplefilter("ignore")
            try:
                estimator.fit(*rows.given, sensitive_features=rows.sensitive)
            except InvalidInput:
                return None  # diverged: everything else was found before
        if estimator.ledger_.events() not in allowed:
            raise LedgerError("a trial released other things than were planned; nothing of it is released")
        predicted = rows.domain.label_codes(estimator.predict(rows.given[0]))
        counts = rows.measured.partition.histogram(rows.cells, predicted)
        mechanism = RoundedGaussianMechanism(budget.score.noise, 1.0, whole=True)
        released = mechanism.release(counts, rng)
        told = rows.measured.estimates(released, len(rows.cells), mechanism.standard_deviation, 0.95)
        return Trial(estimator, setting, told[0], tuple(rows.measured.limits(told)), self.tolerance)

    # -------------------------------------------------------------------------------- afterwards

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            del self.__dict__[name]

    def _keep(self, best: Trial, trial: float) -> None:
        winner = best.estimator
        winner.random_state = None  # the seed of the noise must not travel with the model
        self.best_params_ = best.setting
        self.best_score_ = best.accuracy.value
        self.best_holds_ = best.rank[0] == 1
        self.best_rates_ = best.rates
        self.trial_epsilon_ = trial
        self.classes_ = winner.classes_
        self.privacy_ = self.ledger_.statement(
            delta=self.delta,
            unit=winner.unit,
            public=[*winner.privacy_.public, "the configurations and the law of the number of trials"],
            leaks=winner.privacy_.leaks,
        )
        # what a single trial cost says nothing about the winner of many
        for part in (winner, getattr(winner, "classifier_", winner)):
            part.privacy_, part.ledger_ = self.privacy_, self.ledger_
        self.best_estimator_ = winner


def _merged(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events as a ledger sums them up."""
    return repeated(summed(unit(event) for event in events))
