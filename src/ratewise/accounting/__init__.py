"""Differential privacy accounting: what was released, what it costs, and noise from a target budget."""

from ratewise.accounting.accountant import PrivacyCurve, curve, delta, epsilon
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

__all__ = [
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "OutsideEvent",
    "PrivacyCurve",
    "SelectionEvent",
    "TrainingEvent",
    "UnprotectedEvent",
    "curve",
    "delta",
    "epsilon",
    "event_from_dict",
]
