"""Private model selection: the best of a random number of private trials.

Each trial draws a setting, trains with noise and is scored by released counts, all within the trial's budget.
The number of trials is random and independent of the data. Only the winner is released; the cost of releasing the
best of many trials is bounded by `ratewise.accounting.accountant` and is far less than the sum of all trials.

The whole search is one plan on the ledger, admitted before any row is read: the selection, and a certificate of
the winner. The certificate is a release of its own, because the counts by which a model won are biased.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from ratewise import _validate
from ratewise.accounting import Admission, Budget, Event, Ledger, PrivacyUnit, epsilon
from ratewise.accounting.accountant import SelectionCurve, single_release_noise
from ratewise.accounting.events import GaussianEvent, OutsideEvent, SelectionEvent
from ratewise.constraints.domain import list_values
from ratewise.estimators.classifier import RateConstrainedClassifier, delta_for, forget_fit, keep_session, session_of
from ratewise.exceptions import InvalidInput, InvalidType, RatewiseError, RatewiseWarning
from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import USED_SEEDS, RandomStreams, warn_of_seed
from ratewise.training.certificate import COUNT_SENSITIVITY
from ratewise.training.config import TrainingConfig
from ratewise.training.declarations import check_ledger
from ratewise.training.plan import CERTIFICATE, Plan
from ratewise.training.session import Session

__all__ = ["PrivateSearch"]

_CONFIG = "config__"
_CONFIG_FIELDS = tuple(_CONFIG + entry.name for entry in fields(TrainingConfig))
_UNRELEASED = [
    "clip",
    "learning_rate",
    "momentum",
    "schedule",
    "l2",
    "rates",
    "temperature",
    "dual_rate",
    "dual_damping",
    "margin",
    "spread",
]
_FREE = {_CONFIG + name for name in _UNRELEASED}  # do not change what a trial releases; every other may
_OURS = ("epsilon", "delta", "neighbours", "ledger", "data_name", "callback", "verbose", "random_state")
_SELECTION = "selection"
_SHARE = 0.05  # of a budget, in units of 1 / sigma**2, for a score or the certificate of the winner
_TOO_NOISY = 0.02  # noise of a score from which on the winner is nearly random
_MOST_SETTINGS = 100_000
_MOST_CHECKED = 100  # settings that are checked before anything is spent
_PROBE = Budget(1.0, 1e-9)  # for sessions of which only the declarations are looked at


class PrivateSearch(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a random number of private trainings, within one total (`epsilon`, `delta`).

    What `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to one row, or all rows
    of one id if `privacy_ids` are given, in the estimator's neighbouring relation. It holds the winner alone:
    models, scores and warnings of other trials, and their number, are not covered by the guarantee and are
    discarded. **The duration of `fit` reveals the number of trials**: keep it secret.

    The winner is the most accurate among the trials that satisfy their constraints, by released counts of the
    training rows; if none does, the one that violates them least.

    Parameters
    ----------
    estimator : RateConstrainedClassifier
        What a trial trains. Budget, ledger, seed and callback are set by the search.
    grid : list of mappings, or mapping of parameter to list
        Settings: parameters of the estimator, and fields of `TrainingConfig` as ``config__<field>``. All settings
        (of a mapping: all combinations of its values) are equally likely.
    epsilon, delta : float
        The total. delta by default 1e-5, or half of 1 / n if that is smaller.
    mean_trials : float, optional
        Expected number of trials, above 1; by default the number of settings, at least 2.
    tolerance : float
        By how much a noisy rate may exceed its bound and still count as satisfied when trials are compared.
    ledger, data_name, random_state
        As in `RateConstrainedClassifier`.

    Attributes
    ----------
    best_estimator_ : RateConstrainedClassifier
        Fitted. Its `epsilon` is that of one trial; `privacy_`, `ledger_` and `certificate_` are those below.
    best_params_ : dict
    best_score_ : float
        Released accuracy of the winner on the training rows, biased upwards by the selection.
    certificate_ : Certificate or None
        Of the winner, from counts that were released after the selection; None without constraints.
    trial_epsilon_ : float
        Budget of one trial, at ``delta / mean_trials``.
    privacy_, ledger_, classes_
        Of the whole search.

    Examples
    --------
    >>> from ratewise import PrivateSearch, RateConstrainedClassifier, demographic_parity
    >>> from ratewise.datasets import census_like
    >>> people = census_like(3000, random_state=0)
    >>> search = PrivateSearch(
    ...     RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1)),
    ...     {"config__learning_rate": [1.0, 2.0], "config__steps": [20]},
    ...     epsilon=2.0, mean_trials=2, random_state=0,
    ... )
    >>> search = search.fit(people.X, people.y, sensitive_features=people.sensitive)
    >>> sorted(search.best_params_), 0.98 * 2.0 <= search.privacy_.epsilon <= 2.0
    (['config__learning_rate', 'config__steps'], True)
    """

    def __init__(
        self,
        estimator: Any,
        grid: Any,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        mean_trials: float | None = None,
        tolerance: float = 0.01,
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.grid = grid
        self.epsilon = epsilon
        self.delta = delta
        self.mean_trials = mean_trials
        self.tolerance = tolerance
        self.ledger = ledger
        self.data_name = data_name
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None, privacy_ids: Any = None) -> Self:
        """Search on rows as in `RateConstrainedClassifier.fit`; bad settings are rejected before privacy is spent."""
        settings = self._check()
        mean = self._mean_trials(len(settings))
        given = (X, y, {"sensitive_features": sensitive_features, "privacy_ids": privacy_ids})
        planned = self._plan_search(settings, mean, given)
        streams = RandomStreams.from_seed(self.random_state, "selection")
        warn_of_seed(self.random_state)
        forget_fit(self)
        ledger = self.ledger
        if ledger is None:
            cap = Budget(float(self.epsilon), planned.delta)
            ledger = Ledger(cap=cap, adaptive=False, neighbours=self.estimator.neighbours, unit=planned.unit)
        USED_SEEDS.add(ledger, streams)
        admission = ledger.admit(dict(planned.events), purpose="private search", data=self.data_name, unit=planned.unit)
        admission.release(_SELECTION)
        number = draw_number(mean, streams.preparation)
        self._keep(self._best(settings, number, planned, given, streams), planned, admission)
        return self

    # ----------------------------------------------------------------------------------- prediction

    def predict(self, X: Any, *, privacy_ids: Any = None) -> npt.NDArray[Any]:
        """Return the winner's predictions; ids are ignored."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict(X, privacy_ids=privacy_ids))

    def predict_proba(self, X: Any, *, privacy_ids: Any = None) -> npt.NDArray[np.float64]:
        """Return the winner's probabilities, in the order of `classes_`; ids are ignored."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict_proba(X, privacy_ids=privacy_ids))

    def decision_function(self, X: Any, *, privacy_ids: Any = None) -> npt.NDArray[np.float64]:
        """Return the winner's scores; ids are ignored."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.decision_function(X, privacy_ids=privacy_ids))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    # -------------------------------------------------------------- before any privacy is spent

    def _check(self) -> list[dict[str, Any]]:
        if not isinstance(self.estimator, RateConstrainedClassifier):
            raise InvalidType(
                f"estimator must be a RateConstrainedClassifier, got {type(self.estimator).__name__}: what a trial "
                "releases must be known before it runs"
            )
        _validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            _validate.inside(delta=self.delta)
        _validate.non_negative(tolerance=self.tolerance)
        _validate.text(required=True, data_name=self.data_name)
        check_ledger(self.ledger, self.estimator.neighbours)
        settings = read_settings(self.grid)
        known = [name for name in self.estimator.get_params(deep=False) if name not in _OURS]
        known += _CONFIG_FIELDS
        for name in sorted({*itertools.chain(*settings)}):
            if name in _OURS:
                raise InvalidInput(f"{name} cannot be searched: the search sets it for every trial")
            if name not in known:
                raise InvalidInput(f"{name!r} is no parameter of the estimator; they are {list_values(known, 40)}")
        return settings

    def _mean_trials(self, count: int) -> float:
        """Return the mean number of trials for a number of settings."""
        mean = _validate.positive(mean_trials=max(2, count) if self.mean_trials is None else self.mean_trials)
        if mean <= 1:
            raise InvalidInput(f"mean_trials must be above 1, got {mean:g}; a single training needs no search")
        return mean

    def _plan_search(self, settings: list[dict[str, Any]], mean: float, given: Any) -> _SearchPlan:
        """Return the budget of a trial and the plan of the whole search, from public facts only."""
        neighbours, total = self.estimator.neighbours, float(self.epsilon)
        n_units = 0
        for setting in distinct(settings) if len(settings) <= _MOST_CHECKED else distinct(settings, without=_FREE):
            n_units = self._session(setting, Budget(total, 1e-9), given).rows.count_units()
        delta = delta_for(self.delta, n_units)
        settings = distinct(settings, without=_FREE)
        constrained = any(self._classifier(setting, _PROBE).constraints is not None for setting in settings)
        final = {CERTIFICATE: _score_event(Budget(total, delta))} if constrained else {}

        def trials(trial: float) -> list[tuple[Plan, tuple[Event, ...]]]:
            sessions = [self._session(setting, Budget(trial, delta / mean), given) for setting in settings]
            return [(session.make_plan(n_units), session.other_events) for session in sessions]

        def events(trial: float) -> dict[str, Event]:
            candidates = [(*plan.events.values(), *score) for plan, score in trials(trial)]
            return {_SELECTION: selection_event(candidates, mean, delta, neighbours), **final}

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shown by the first round of checks above
            trial = affordable_trial(
                lambda trial: epsilon(tuple(events(trial).values()), delta, neighbours), total, total / 2
            )
            of_settings, admitted = trials(trial), events(trial)
        unit = of_settings[0][0].unit
        noise = math.sqrt(2.0) * max(_score_noise(*one) for one in of_settings) / n_units
        if noise > _TOO_NOISY:
            warnings.warn(
                f"with {n_units} {unit.noun} at this budget noise changes the accuracy of a trial by "
                f"{noise:.2g}: the winner is nearly random; raise epsilon, or use the defaults without a search",
                RatewiseWarning,
                stacklevel=3,
            )
        return _SearchPlan(Budget(trial, delta / mean), delta, admitted, [plan.events for plan, _ in of_settings], unit)

    # --------------------------------------------------------------------------------- one trial

    def _classifier(self, setting: dict[str, Any], budget: Budget) -> RateConstrainedClassifier:
        """Return an estimator for one trial, without a seed, ledger or callback."""
        changes = {name.removeprefix(_CONFIG): v for name, v in setting.items() if name.startswith(_CONFIG)}
        made: RateConstrainedClassifier = clone(self.estimator).set_params(
            **{name: value for name, value in setting.items() if not name.startswith(_CONFIG)},
            epsilon=budget.epsilon,
            delta=budget.delta,
            ledger=None,
            data_name=self.data_name,
            callback=None,
            verbose=0,
            random_state=None,
        )
        if changes:
            made.config = replace(made.config or TrainingConfig(), **changes)
        return made

    def _session(self, setting: dict[str, Any], budget: Budget, given: Any) -> Session:
        """Return the session of a trial; without constraints its score is a release besides those of the fit."""
        X, y, columns = given
        session = session_of(self._classifier(setting, budget), X, y, **columns)
        session.other_events = () if session.declarations.constraints else (_score_event(budget),)
        return session

    def _best(
        self, settings: list[dict[str, Any]], number: int, planned: _SearchPlan, given: Any, streams: RandomStreams
    ) -> _Trial:
        """Return the best of `number` trials, keeping no other."""
        best: _Trial | None = None
        for _ in range(number):
            setting = settings[int(streams.preparation.integers(len(settings)))]
            trial = self._run(setting, planned, given, streams)
            if trial is not None and (best is None or trial.rank > best.rank):
                best = trial
        if best is None:
            raise RatewiseError(
                "the search ended without a model: training diverged in each trial; its budget is spent. Use settings "
                "with smaller learning rates"
            )
        return best

    def _run(self, setting: dict[str, Any], planned: _SearchPlan, given: Any, streams: RandomStreams) -> _Trial | None:
        """Return one trial, trained and scored; None if its training diverged."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come from released counts, of which only the winner's count
            session = self._session(setting, planned.budget, given)
            if not streams.secure:
                session.streams = RandomStreams.from_seed(streams.preparation)
            session.plan_units()
            session.ledger = _TrialLedger(
                cap=planned.budget, adaptive=False, neighbours=session.neighbours, unit=session.plan.unit
            )
            session.admit()
            if session.plan.events not in planned.allowed:
                raise RatewiseError(f"the setting {setting!r} releases other events than were admitted")
            try:
                session.run()
            except InvalidInput:
                return None  # diverged: everything else was checked before rows were read
            accuracy = _released_accuracy(session)
        return _Trial(session, setting, accuracy, self._rank(session, accuracy))

    def _rank(self, session: Session, accuracy: float) -> tuple[int, float]:
        """Return trials that satisfy the constraints by accuracy, then others by their violation, then failures."""
        if math.isnan(accuracy):
            return (-1, 0.0)
        rows = session.certificate or ()
        violation = max((row.excess for row in rows if not math.isnan(row.estimate)), default=0.0)
        return (1, accuracy) if violation <= self.tolerance else (0, -violation)

    def _keep(self, best: _Trial, planned: _SearchPlan, admission: Admission) -> None:
        session, trial_plan = best.session, best.session.plan
        session.admission, session.ledger, session.delta = admission, admission.ledger, planned.delta
        if CERTIFICATE in planned.events:
            # counts that did not take part in the selection
            session.plan = replace(trial_plan, events=dict(planned.events))
            session.released.pop(CERTIFICATE, None)
            session.certify()
            session.plan = trial_plan
        session.found.append("the best setting of a random number of trials")
        winner = keep_session(self._classifier(best.setting, planned.budget), session)
        self.best_estimator_ = winner
        self.best_params_ = dict(best.setting)
        self.best_score_ = best.accuracy
        self.certificate_ = winner.certificate_
        self.trial_epsilon_ = planned.budget.epsilon
        self.classes_ = winner.classes_
        self.privacy_, self.ledger_ = winner.privacy_, admission.ledger


class _TrialLedger(Ledger):
    """The ledger of one trial. The search is counted as a whole: the number of trials is secret."""

    _counted = False


class _SearchPlan(NamedTuple):
    """The plan of a search, fixed before any row is read: the budget of a trial, and what the ledger admits."""

    budget: Budget
    delta: float
    events: dict[str, Event]
    allowed: list[dict[str, Event]]
    unit: PrivacyUnit


@dataclass(frozen=True, eq=False)
class _Trial:
    """A trial with its released score."""

    session: Session
    setting: dict[str, Any]
    accuracy: float
    rank: tuple[int, float]


def _score_event(budget: Budget) -> GaussianEvent:
    return GaussianEvent(single_release_noise(budget.epsilon, budget.delta) / math.sqrt(_SHARE))


def _score_noise(plan: Plan, score: tuple[Any, ...]) -> float:
    """Return the standard deviation of the noise of a count that a trial is scored by."""
    certificate: Any = plan.events.get(CERTIFICATE)
    return float(score[0].noise if certificate is None else certificate.noise * COUNT_SENSITIVITY)


def _released_accuracy(session: Session) -> float:
    """Return the accuracy of a trial from its certificate, or else from a release; NaN if it has no model."""
    if session.loop is None:
        return math.nan
    if session.declarations.constraints:
        certificate = session.certificate
        known = certificate is not None and certificate.accuracy is not None
        return certificate.accuracy.value if known else math.nan  # type: ignore[union-attr]
    noise = _score_noise(session.plan, session.other_events)
    mechanism = RoundedGaussianMechanism(noise, 1.0, whole=True, step=session.units.step)
    outcomes = session.engine.counts(session.parameters)[1]
    released = mechanism.release(outcomes.ravel(), session.streams.preparation).reshape(outcomes.shape)
    return float(np.clip(released[:, 1].sum() / session.plan.n_units, 0.0, 1.0))


# ------------------------------------------------------------------------------ trials and settings

_TIGHT = 0.992
_ROUNDS = 40
_OUTSIDE_DELTA = 0.99


def draw_number(mean: float, rng: np.random.Generator) -> int:
    """Draw the number of trials: geometric, at least 1.

    >>> rng = np.random.default_rng(0)
    >>> [draw_number(10.0, rng) for _ in range(8)]
    [10, 3, 1, 1, 16, 24, 9, 13]
    """
    return 1 + math.floor(math.log1p(-float(rng.random())) / math.log1p(-1.0 / mean))


def selection_event(
    candidates: Sequence[tuple[Event, ...]], mean_trials: float, delta: float, neighbours: str
) -> Event:
    """Return the event of a whole selection, for a ledger; `delta` is what it is used at.

    `candidates` are the events of a trial, its score included, for every setting that it may draw. A trial draws
    its setting independently of the data and releases which it was: its curve is the mean of the settings' curves,
    hence at most their largest. If all have the same events, the result is a `SelectionEvent`; otherwise the bound
    for the largest curve is recorded as an `OutsideEvent`.
    """
    distinct = tuple(dict.fromkeys(candidates))
    if len(distinct) == 1:
        return SelectionEvent(distinct[0], mean_trials)
    stated = _OUTSIDE_DELTA * delta  # other releases of the plan need some of delta, too
    whole = SelectionCurve(distinct, neighbours, mean_trials)
    words = f"the best of a random number of trials, {mean_trials:g} on average, of different plans"
    return OutsideEvent(whole.epsilon(stated), stated, neighbours, words)


def affordable_trial(cost: Callable[[float], float], target: float, guess: float) -> float:
    """Return the largest epsilon of one trial at which a search stays within `target`, to about 1%.

    `cost` returns the total epsilon for an epsilon of one trial, and grows with it.
    """
    low, high, trial = 0.0, math.inf, guess
    for _ in range(_ROUNDS):
        total = cost(trial)
        if _TIGHT * target <= total <= target:
            return trial
        low, high = (trial, high) if total <= target else (low, trial)
        step = trial * (0.5 * (1 + _TIGHT) * target / total if math.isfinite(total) else 0.25)
        trial = step if low < step < high else 0.5 * (low + min(high, 4 * low + guess))
        if high - low < 1e-3 * low:
            return low
    raise InvalidInput(
        f"epsilon is {target:g}, too small for a selection of this many trials; raise it, or lower mean_trials"
    )


def read_settings(grid: Any) -> list[dict[str, Any]]:
    """Return the settings of a list, or all combinations of a mapping of parameters to lists of values."""
    if not isinstance(grid, Mapping | Sequence) or isinstance(grid, str | bytes):
        raise InvalidType(f"grid must be a list of settings or a mapping, got {type(grid).__name__}")
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes) or not len(values):
                raise InvalidType(f"{name} must have a list of values, got {values!r}")
        if (count := math.prod(map(len, grid.values()))) > _MOST_SETTINGS:
            raise InvalidInput(
                f"grid must have at most {_MOST_SETTINGS:,} settings, got {count:,}; search fewer values"
            )
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())] if grid else []
    for setting in grid:
        if not isinstance(setting, Mapping) or not all(isinstance(name, str) for name in setting):
            raise InvalidType(f"a setting must map names of parameters to values, got {setting!r}")
    if not grid:
        raise InvalidInput("grid must hold at least one setting, got none")
    return list(map(dict, grid))


def distinct(settings: list[dict[str, Any]], without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return a setting for each combination of the values of all parameters but those left out."""
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key = sorted((name, repr(value)) for name, value in setting.items() if name not in without)
        found.setdefault(repr(key), setting)
    return list(found.values())
