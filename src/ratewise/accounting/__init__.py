"""Differential privacy accounting: what is released, what it costs, and noise from a target budget.

Read `events` (what happens), `losses` (the mathematics), `accountant` (epsilon and delta, and noise from a
target, and a filter for adaptive choices), `ledger` and `storage` (admission) and `statement` (the guarantee in
words). `theory` has the closed-form bounds of the paper.
"""

from ratewise.accounting.accountant import (
    Calibration,
    PlanCalibration,
    PrivacyCurve,
    PrivacyFilter,
    calibrate,
    calibrate_plan,
    curve,
    delta,
    epsilon,
    group_budget,
    rdp_epsilon,
)
from ratewise.accounting.events import (
    Budget,
    Event,
    GaussianEvent,
    LaplaceEvent,
    OutsideEvent,
    PrivacyUnit,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
    event_from_dict,
    to_dp_event,
)
from ratewise.accounting.ledger import Admission, Ledger, Phase, ProcessTotal, process_total
from ratewise.accounting.statement import PrivacyStatement, state

__all__ = [
    "Admission",
    "Budget",
    "Calibration",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "Ledger",
    "OutsideEvent",
    "Phase",
    "PlanCalibration",
    "PrivacyCurve",
    "PrivacyFilter",
    "PrivacyStatement",
    "PrivacyUnit",
    "ProcessTotal",
    "SelectionEvent",
    "ThresholdEvent",
    "TrainingEvent",
    "UnprotectedEvent",
    "calibrate",
    "calibrate_plan",
    "curve",
    "delta",
    "epsilon",
    "event_from_dict",
    "group_budget",
    "process_total",
    "rdp_epsilon",
    "state",
    "to_dp_event",
]
