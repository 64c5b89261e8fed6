"""Attacks on the guarantee: empirical lower bounds on epsilon with a confidence level.

A worst-case row is put in or left out by a coin, the library trains as it always does, and an adversary who
sees everything that is released guesses the coin. How often guesses are right bounds the true epsilon from below.

>>> from ratewise.accounting import TrainingEvent
>>> event = TrainingEvent(sampling_rate=1.0, steps=1, gradient_noise=1.0, histogram=None)
>>> found = audit_step(event, games=2000, delta=1e-5, random_state=0)
>>> found.lower_bound <= found.claimed, found.passed
(True, True)

A pass means that this adversary, with these worst-case rows and this many games, found no contradiction to the
claim. It is no proof, and says nothing of what happens outside the steps that were played; see docs/audit.md.
"""

from ratewise.audit.bounds import many_runs_bound, one_run_bound
from ratewise.audit.checks import Check, check_noise, check_replay, check_sampling
from ratewise.audit.games import (
    ATTACKS,
    RELEASES,
    AuditResult,
    Subject,
    TableSubject,
    WorstRows,
    audit_one_run,
    audit_step,
    audit_training,
)

__all__ = [
    "ATTACKS",
    "RELEASES",
    "AuditResult",
    "Check",
    "Subject",
    "TableSubject",
    "WorstRows",
    "audit_one_run",
    "audit_step",
    "audit_training",
    "check_noise",
    "check_replay",
    "check_sampling",
    "many_runs_bound",
    "one_run_bound",
]
