"""A plan in words: what a fit releases, in which order, with which noise."""

from __future__ import annotations

from ratewise.accounting.statement import in_words
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import (
    CERTIFICATE,
    CORRECTION,
    DISCOVERY,
    RANGES,
    ROWS_PER_ID,
    STATISTICS,
    TRAINING,
    Plan,
)

_PURPOSE = {
    ROWS_PER_ID: "bounds the number of rows of an id",
    DISCOVERY: "finds classes and group values that were not declared",
    RANGES: "finds types, ranges and vocabularies of columns that were not declared",
    STATISTICS: "scales the features: means, deviations and frequencies come from it",
    TRAINING: "one clipped gradient sum per step, and prediction counts if there are constraints",
    CORRECTION: "measures the trained model, whose decision threshold is moved if it clearly misses a constraint",
    CERTIFICATE: "measures the constraints on the returned model",
}


def explain_plan(plan: Plan, config: TrainingConfig, *, constrained: bool) -> str:
    """Return the releases of a plan and the settings that follow from public facts."""
    unit = "rows" if plan.unit.kind == "row" else "ids"
    lines = [
        f"{plan.n_units} {unit}; {plan.steps} steps; each step reads every one of them with probability {plan.sampling_rate:.4g}.",
    ]
    if not plan.private:
        lines.append("No noise is added: there is no privacy guarantee.")
    for name, event in plan.events.items():
        if name == CERTIFICATE and not constrained:
            continue
        lines.append(f"- {name}: {in_words(event)}; {_PURPOSE.get(name, '')}.")
    changed = {k: v for k, v in config.to_dict().items() if v != TrainingConfig().to_dict()[k]}
    if changed:
        lines.append(
            "Settings that were changed: " + ", ".join(f"{k}={v!r}" for k, v in changed.items()) + "."
        )
    return "\n".join(lines)
