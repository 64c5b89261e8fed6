"""Differential privacy accounting: what was released, what it costs, and noise from a target budget.

Read `events` (what happened), `losses` and `composition` (the mathematics), `accountant` (the answer),
`calibration` (the inverse), `ledger` (the book), `statement` (the words).
"""

from ratewise.accounting.accountant import PrivacyCurve, curve, delta, epsilon
from ratewise.accounting.calibration import Calibration, calibrate, calibrate_sampling_rate, calibrate_steps
from ratewise.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    SelectionEvent,
    TrainingEvent,
    UnprotectedEvent,
    event_from_dict,
)
from ratewise.accounting.ledger import Budget, Ledger
from ratewise.accounting.renyi import rdp_epsilon
from ratewise.accounting.statement import PrivacyStatement, state

__all__ = [
    "Budget",
    "Calibration",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "Ledger",
    "OutsideEvent",
    "PrivacyCurve",
    "PrivacyStatement",
    "SelectionEvent",
    "TrainingEvent",
    "UnprotectedEvent",
    "calibrate",
    "calibrate_sampling_rate",
    "calibrate_steps",
    "curve",
    "delta",
    "epsilon",
    "event_from_dict",
    "rdp_epsilon",
    "state",
]
