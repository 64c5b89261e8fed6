"""Sentences for people who do not read formulas: families, verdicts, privacy."""

from __future__ import annotations

import math
from typing import Any

from ratewise.accounting import PrivacyStatement
from ratewise.enforceability import Doubt
from ratewise.families import Family, Limit, Parity
from ratewise.report.content import HELD, MISSED, UNCLEAR
from ratewise.values import show_number

_PARITY = {
    "demographic_parity": "Each class is predicted about equally often in every group",
    "equalized_odds": "Among people of the same true class, each class is predicted about equally often in "
    "every group",
    "equal_opportunity": "Those who truly are {positive} are found about equally often in every group",
    "predictive_equality": "Those who truly are not {positive} are wrongly taken for it about equally often "
    "in every group",
    "error_rate_parity": "Predictions are wrong about equally often in every group",
}
_VERSUS = {
    "rest": "compared with everybody else",
    "everyone": "compared with everyone",
    "pairwise": "compared pair by pair",
}
_LIMIT = {
    "false_negative_rate": "Of those who truly are {positive}, the share that is missed",
    "false_positive_rate": "Of those who truly are not {positive}, the share that is wrongly taken for it",
    "true_positive_rate": "Of those who truly are {positive}, the share that is found",
    "true_negative_rate": "Of those who truly are not {positive}, the share that is left alone",
    "precision": "Of those predicted to be {positive}, the share that truly is",
    "false_discovery_rate": "Of those predicted to be {positive}, the share that is not",
    "positive_rate": "The share that is predicted {positive}",
    "paper_false_negative_rate": "For each class, the share of those of other classes who are predicted it",
}
_OTHERWISE = {
    "add_or_remove": "not taken part",
    "replace_one": "been another",
    "zero_out": "been blanked out",
}


def doubt_in_words(doubt: Doubt) -> str:
    """Return why a limit is not to be relied on, to stand beside its name.

    >>> doubt_in_words(Doubt("P(1 | sex=F) <= 0.1", rows=56.3, uncertainty=0.4))
    'doubtful: about 56 rows, known to ±0.8'
    >>> doubt_in_words(Doubt("P(1 | sex=F) <= 0.1", rows=5600, uncertainty=0.01, excess=0.034))
    'doubtful: exceeded by about 0.034 at the end of training'
    """
    reason = str(doubt).removeprefix(doubt.constraint).strip(" ()")
    return f"doubtful: {reason.replace('+-', '±')}"


def family_in_words(family: Family) -> str:
    """Return what a family asks for, as a sentence; its own text if it is of an unknown kind.

    >>> from ratewise.families import demographic_parity
    >>> family_in_words(demographic_parity("sex", max_gap=0.05))
    'Each class is predicted about equally often in every group by sex, compared with everybody else: rates
    differ by at most 0.05.'
    """
    if isinstance(family, Parity) and family.kind in _PARITY:
        subject = _PARITY[family.kind].format(positive=_positive(family.positive))
        columns = f" by {' and '.join(family.columns)}" if family.columns else ""
        return (
            f"{subject}{columns}, {_VERSUS[family.versus]}: rates differ by at most "
            f"{show_number(family.max_gap)}."
        )
    if isinstance(family, Limit) and family.kind in _LIMIT:
        subject = _LIMIT[family.kind].format(positive=_positive(family.positive))
        where = f" in every group by {' and '.join(family.by)}" if family.by else ""
        return f"{subject} is {_bounds(family.min_rate, family.max_rate)}{where}."
    return f"{family.name}."


def verdict(counts: dict[str, int]) -> tuple[str, str]:
    """Return the state of a whole report, and a headline that says it."""
    held, missed, unclear = counts[HELD], counts[MISSED], counts[UNCLEAR]
    total = held + missed + unclear
    if not total:
        return "none", "No limits were asked for"
    if missed:
        return MISSED, "The limit is missed" if total == 1 else f"{missed:,} of {total:,} limits missed"
    if unclear and total == 1:
        return UNCLEAR, "These rows cannot tell whether the limit is held"
    if unclear:
        return UNCLEAR, f"{held:,} of {total:,} limits held, none missed, {unclear:,} cannot be told"
    return HELD, "The limit is held" if total == 1 else f"All {total:,} limits are held"


def verdict_detail(counts: dict[str, int], rows: int, confidence: float) -> str:
    """Return the sentence below the headline."""
    total = sum(counts.values())
    level = f"{show_number(100 * confidence)}%"
    if not total:
        return f"Rates below were measured on {rows:,} rows."
    return (
        f"Measured on {rows:,} rows: {counts['held']:,} held, {counts['missed']:,} missed, "
        f"{counts['unclear']:,} that cannot be told. A limit counts as held or missed only if its whole "
        f"{level} interval lies on one side."
    )


def privacy_in_words(statement: PrivacyStatement) -> list[str]:
    """Return what the guarantee means, without formulas, and never more than it says."""
    if not statement.events:
        return ["Nothing was released from private data, so nothing is risked by it."]
    if math.isinf(statement.epsilon):
        return [
            "This model was trained without a privacy guarantee: it may reveal anything about the rows it "
            "was trained on."
        ]
    times, delta = _upwards(math.exp(statement.epsilon)), f"{statement.delta:g}"
    said = [
        f"The model, and everything recorded while it was trained, protects {statement.unit} of the training "
        f"data by differential privacy with epsilon {epsilon_text(statement.epsilon)} and delta {delta}.",
        "That means: whatever might happen because this model was trained and shown around is at most "
        f"{times} times as likely as it would be had {statement.unit} {_OTHERWISE[statement.neighbours]}, "
        f"plus {delta}. This holds whatever else anybody knows.",
    ]
    if statement.leaks:
        said.append(
            "Not covered by this: " + "; ".join(statement.leaks) + ". These were read off the private data."
        )
    return said


def epsilon_text(epsilon: float | None) -> str:
    """Return epsilon with four digits, rounded upwards: a page never claims more privacy than there is.

    >>> epsilon_text(0.99951), epsilon_text(None)
    ('0.9996', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    return _upwards(epsilon)


def _upwards(number: float) -> str:
    if number <= 0:
        return "0"
    shown = f"{number:.4g}"
    if float(shown) < number:
        shown = f"{float(shown) + 10.0 ** (math.floor(math.log10(number)) - 3):.4g}"
    return shown


def _positive(positive: Any) -> str:
    return "1" if positive is None else str(positive)


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"between {show_number(low)} and {show_number(high)}"
    return f"at least {show_number(low)}" if low is not None else f"at most {show_number(high or 0.0)}"
