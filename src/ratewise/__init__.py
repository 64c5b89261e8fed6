"""Classifiers trained under differential privacy with constraints on prediction rates across groups.

A fit in the order of its stages: `data` reads tables, `constraints` declares and compiles rate constraints,
`accounting` plans and records the privacy budget, `preprocessing` releases column statistics and builds the
features, `models` holds the engines that read rows, `training` has the session, the loop, the dual update and
the certificate, `mechanisms` adds the noise, and `estimators` has the scikit-learn interface. `metrics`,
`report`, `runs`, `cli`, `audit`, `distributed`, `torch` and `datasets` build on these.

What loads scikit-learn or SciPy is imported on first use, so that `import ratewise` is quick.
"""

import importlib as _importlib
import typing as _typing

from ratewise import cli as cli  # first: Ctrl-C may come while the rest is read
from ratewise.constraints.domain import Domain, Numeric, at_least, below, between
from ratewise.constraints.families import (
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    error_rate_parity,
    false_discovery_rate,
    false_negative_rate,
    false_positive_rate,
    paper_false_negative_rate,
    positive_rate,
    precision,
    predictive_equality,
    true_negative_rate,
    true_positive_rate,
)
from ratewise.constraints.rates import everyone, group, label, nobody, rate, rows
from ratewise.exceptions import (
    BudgetExceeded,
    CertificateWarning,
    InvalidInput,
    InvalidType,
    RatewiseError,
    RatewiseWarning,
    SeedWarning,
    UnsupportedCombination,
)

if _typing.TYPE_CHECKING:
    from ratewise.accounting import Budget, Ledger
    from ratewise.estimators.classifier import RateConstrainedClassifier
    from ratewise.estimators.persistence import load
    from ratewise.estimators.postprocess import postprocess
    from ratewise.estimators.search import PrivateSearch
    from ratewise.training.config import TrainingConfig

_ON_FIRST_USE = {
    "Budget": "accounting",
    "Ledger": "accounting",
    "PrivateSearch": "estimators.search",
    "RateConstrainedClassifier": "estimators.classifier",
    "TrainingConfig": "training.config",
    "load": "estimators.persistence",
    "postprocess": "estimators.postprocess",
}

__all__ = [
    "Budget",
    "BudgetExceeded",
    "CertificateWarning",
    "Domain",
    "InvalidInput",
    "InvalidType",
    "Ledger",
    "Numeric",
    "PrivateSearch",
    "RateConstrainedClassifier",
    "RatewiseError",
    "RatewiseWarning",
    "SeedWarning",
    "TrainingConfig",
    "UnsupportedCombination",
    "at_least",
    "below",
    "between",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "error_rate_parity",
    "everyone",
    "false_discovery_rate",
    "false_negative_rate",
    "false_positive_rate",
    "group",
    "label",
    "load",
    "nobody",
    "paper_false_negative_rate",
    "positive_rate",
    "postprocess",
    "precision",
    "predictive_equality",
    "rate",
    "rows",
    "true_negative_rate",
    "true_positive_rate",
]


def __getattr__(name: str) -> _typing.Any:
    if name in _ON_FIRST_USE:
        found = getattr(_importlib.import_module(f"ratewise.{_ON_FIRST_USE[name]}"), name)
        globals()[name] = found
        return found
    if not name.startswith("_"):
        try:
            return _importlib.import_module(f"ratewise.{name}")
        except ModuleNotFoundError as problem:
            if problem.name != f"ratewise.{name}":
                raise
    raise AttributeError(f"module 'ratewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
