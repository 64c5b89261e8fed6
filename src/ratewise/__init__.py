"""Classifiers under differential privacy that hold limits on prediction rates across groups.

In the order in which one batch walks through the house: `predicates`, `rates`, `families` (what is
declared), `partition` (declarations to cells), `plan` and `defaults` (what will run), `sampling` and
`mechanisms` (what touches rows), `features`, `linear` and `training` (the step), `multipliers` (the dual
side), `accounting` (what it costs), `reading` and `fitting` (a fit), `estimators` (the classifier), `metrics`
(what was reached). Beside it: `schema` and `table_model` (raw columns), `selection`, `evaluation`, `report`,
`runs` and `cli`, `torch`, `audit`, `datasets`.
"""

from ratewise import _startup as _startup  # first: Ctrl-C may come while the rest is read
from ratewise.accounting import Budget, Ledger
from ratewise.domain import Domain, Numeric
from ratewise.estimators import RateConstrainedClassifier
from ratewise.exceptions import (
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    PrivacyLeakWarning,
    RatewiseError,
    RatewiseWarning,
    SeedWarning,
    SmallGroupWarning,
    UnsupportedCombination,
)
from ratewise.families import (
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
from ratewise.plan import DualControl
from ratewise.predicates import at_least, below, between, everyone, group, label, nobody
from ratewise.rates import rate, rows

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Domain",
    "DualControl",
    "InvalidInput",
    "InvalidType",
    "Ledger",
    "Numeric",
    "PrivacyLeakWarning",
    "RateConstrainedClassifier",
    "RatewiseError",
    "RatewiseWarning",
    "SeedWarning",
    "SmallGroupWarning",
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
    "nobody",
    "paper_false_negative_rate",
    "positive_rate",
    "precision",
    "predictive_equality",
    "rate",
    "rows",
    "true_negative_rate",
    "true_positive_rate",
]
