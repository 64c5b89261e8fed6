"""A training on made-up rows of the same size: what accuracy a plan costs, before any real row is touched."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from ratewise.defaults import AUTO, PublicFacts
from ratewise.domain import Domain, Numeric
from ratewise.estimators import RateConstrainedClassifier
from ratewise.exceptions import RatewiseWarning
from ratewise.runs.settings import Settings

MOST_ROWS = 50_000
_TEST_ROWS = 10_000
_INFORMATIVE = 8
_BOUNDS = (-5.0, 5.0)
_DENSITY = 0.1
_PASSED_ON = (
    *("delta", "neighbours", "steps", "sampling_rate", "learning_rate", "schedule", "momentum", "averaging"),
    *("histogram", "histogram_share", "noise", "temperature", "rates", "l1", "l2", "fit_intercept"),
)


def rehearse(facts: PublicFacts, settings: Settings, domain: Domain, seed: int = 0) -> dict[str, Any]:
    """Return accuracy with and without the plan on made-up rows; every number here is made up or public.

    Features are independent normal numbers, of which up to eight tell about the label; groups are drawn at
    random. Rows are as many as planned, but at most 50,000: with more the loss is smaller. Where features are
    planned with declared bounds, of several kinds or as a sparse matrix, so are the made-up ones, and the
    same plan runs, but for bends, which normal numbers with a straight truth do not need; of sparse ones, one
    in ten is not zero.
    """
    rng = np.random.default_rng(seed)
    rows = min(facts.n_rows, MOST_ROWS)
    weights = np.zeros((facts.n_features, facts.n_classes))
    weights[:_INFORMATIVE] = rng.standard_normal((min(_INFORMATIVE, facts.n_features), facts.n_classes))
    train, test = (_people(rng, n, weights, domain, facts.sparse) for n in (rows, _TEST_ROWS))
    plain = dataclasses.replace(settings, epsilon=None, constraints=())
    public = {
        "feature_bounds": _BOUNDS if facts.bounded else None,
        "feature_kinds": [place % facts.n_kinds for place in range(facts.n_features)],
        "tails": settings.tails if facts.most_numbers else None,
        # with bounds, second columns are among the planned features already
        "curves": False if facts.bounded else AUTO,
    }
    with_plan, without = (_accuracy(asked, domain, public, train, test) for asked in (settings, plain))
    return {
        "rows": rows,
        "accuracy": with_plan,
        "accuracy_without": without,
        "loss": max(0.0, without - with_plan),
    }


def _people(
    rng: np.random.Generator, rows: int, weights: npt.NDArray[np.float64], domain: Domain, sparse: bool
) -> tuple[Any, Any, dict[str, Any]]:
    X: Any = rng.standard_normal((rows, len(weights)), dtype=np.float32)
    if sparse:
        X[rng.random(X.shape, dtype=np.float32) > _DENSITY] = 0.0
        X = scipy.sparse.csr_array(X)
    scores = X @ weights + rng.gumbel(size=(rows, weights.shape[1]))  # draws from the softmax
    classes = np.array(domain.classes, dtype=object)
    groups = {}
    for name, values in domain.columns.items():
        if isinstance(values, Numeric):
            groups[name] = rng.uniform(0.0, 100.0, rows)
        else:
            groups[name] = np.array(values, dtype=object)[rng.integers(0, len(values), rows)]
    return X, classes[scores.argmax(axis=1)], groups


def _accuracy(settings: Settings, domain: Domain, public: dict[str, Any], train: Any, test: Any) -> float:
    chosen = {name: getattr(settings, name) for name in _PASSED_ON}
    for name in ("clip", "row_norm", "standardise"):
        if getattr(settings, name) is not None:
            chosen[name] = getattr(settings, name)
    chosen["delta"] = min(settings.delta, 1.0 / len(train[1]))
    model = RateConstrainedClassifier(
        settings.declared,
        epsilon=settings.epsilon,
        classes=domain.classes,
        group_values=domain.columns,
        random_state=0,  # repeatable, and nobody's rows are hidden by it
        **public,
        **chosen,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        model.fit(train[0], train[1], sensitive_features=train[2] or None)
    return float(np.mean(model.predict(test[0]) == test[1]))
