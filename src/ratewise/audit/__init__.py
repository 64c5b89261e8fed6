"""Attacks on the guarantee, as calls: empirical lower bounds on epsilon with a confidence level.

An audit plays a game. A worst-case row is put in or left out by a coin, the library trains as it always
does, and an adversary who sees everything that is released guesses the coin. If guesses are right too often
for the claimed (epsilon, delta), the claim is false; how often they are right bounds the true epsilon from
below.

>>> from ratewise.accounting import TrainingEvent
>>> event = TrainingEvent(sampling_rate=1.0, steps=1, gradient_noise=1.0, histogram=None)
>>> found = audit_step(event, games=2000, delta=1e-5, random_state=0)
>>> found.lower_bound <= found.claimed, found.passed
(True, True)

**What a pass means.** This adversary, with these worst-case rows and this many games, found no contradiction
to the claim. Bugs that lose much of the noise, share it between cells, forget the clip or let one row change
what others add are found with near certainty; `docs/threat-model.md` lists which, and tests hold the audit to
that list.

**What a pass does not mean.** It is no proof: the proof is in `docs/guarantees.md`. A bound of half the claim
does not say that the true epsilon is that small. Nothing is said about what happens outside the steps that
were played: reading of data, files, logs, clocks, seeds, other fits on the same rows.
"""

from ratewise.audit.bounds import gaussian_bound, many_runs_bound, one_run_bound
from ratewise.audit.checks import Check, check_ledger, check_noise, check_replay, check_sampling
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
    "check_ledger",
    "check_noise",
    "check_replay",
    "check_sampling",
    "gaussian_bound",
    "many_runs_bound",
    "one_run_bound",
]
