"""A model card in Markdown: what the page says, short enough to go beside a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratewise.accounting import PrivacyStatement
from ratewise.report.content import STATE_WORDS, Content, Grouping, Share
from ratewise.report.words import epsilon_text, verdict, verdict_detail
from ratewise.values import show_number

MOST_LIMITS = 30
MOST_GROUPS = 50
MOST_NOTES = 20

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+|!~$-])")


def render(content: Content) -> str:
    """Return the card."""
    parts = [
        f"# {safe(content.title)}",
        f"**{verdict(content.counts)[1]}.** "
        + verdict_detail(content.counts, content.rows, content.confidence),
        *_facts(content),
        *_limits(content),
        *_privacy(content),
        *_models(content),
        *_groups(content),
        *_calibration(content),
        *_notes(content),
        f"Written by ratewise {safe(content.version)} at {content.created}.",
    ]
    return "\n\n".join(parts) + "\n"


def safe(words: str) -> str:
    r"""Return text that Markdown shows as it is: no markup, no HTML, no new line.

    >>> print(safe("<b> a_b"))
    \<b\> a\_b
    """
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


def _facts(content: Content) -> list[str]:
    facts = [
        f"- Model: {safe(content.model)}",
        f"- Classes: {', '.join(map(safe, content.classes))}",
        f"- Accuracy: {_share(content.everyone.accuracy)}",
    ]
    return ["\n".join(facts)]


def _limits(content: Content) -> list[str]:
    if not content.limits:
        return []
    asked = "\n".join(
        f"- {safe(family.words)} **{STATE_WORDS[family.state].capitalize()}.**" for family in content.families
    )
    ordered = content.by_worst()
    rows = [
        (
            safe(limit.name),
            STATE_WORDS[limit.state],
            _number(limit.reached),
            f"{limit.sense} {show_number(limit.bound)}".replace("<", "\\<").replace(">", "\\>"),
            _span(limit.low, limit.high),
        )
        for limit in ordered[:MOST_LIMITS]
    ]
    level = f"{show_number(100 * content.confidence)}% interval"
    parts = ["## Asked and reached", *([asked] if asked else [])]
    parts.append(_table(("limit", "result", "reached", "asked", level), rows))
    if len(ordered) > MOST_LIMITS:
        parts.append(f"{len(ordered) - MOST_LIMITS:,} more limits, none of them worse than these.")
    return parts


def _privacy(content: Content) -> list[str]:
    if content.statement is None:
        return ["## Privacy", "Nothing is known about the privacy of the training data."]
    parts = ["## Privacy", *map(safe, content.words)]
    full = str(PrivacyStatement.from_dict(content.statement)).replace("```", "'''")
    parts.append(f"```text\n{full}\n```")
    if content.spending is not None:
        rows = [
            (
                safe(entry.purpose or "release"),
                safe(entry.data),
                epsilon_text(entry.alone),
                epsilon_text(entry.after),
            )
            for entry in content.spending.entries
        ]
        parts.append(_table(("entry of the ledger", "data", "epsilon alone", "epsilon so far"), rows))
    return parts


def _models(content: Content) -> list[str]:
    if len(content.models) < 2:
        return []
    rows = [
        (
            safe(model.name),
            _share(model.accuracy),
            "" if model.worst is None else f"{model.worst:+.4f}",
            epsilon_text(model.epsilon) if model.private else "none",
        )
        for model in content.models
    ]
    return [
        "## What the limits cost",
        _table(("model", "accuracy", "worst limit exceeded by", "epsilon"), rows),
    ]


def _groups(content: Content) -> list[str]:
    return [part for grouping in content.groupings for part in _grouping(content, grouping)]


def _grouping(content: Content, grouping: Grouping) -> list[str]:
    measures = ("selection_rate", "true_positive_rate", "false_positive_rate", "precision")
    names = ("predicted", "TPR", "FPR", "precision")
    head = ["group", "rows", "accuracy"]
    head += [f"{name} ({safe(k)})" for k in content.shown_classes for name in names]
    rows = []
    for group in (*grouping.groups[:MOST_GROUPS], content.everyone):
        numbers = [group.rates[k][measure].value for k in content.shown_classes for measure in measures]
        values = (_number(group.accuracy.value), *map(_number, numbers))
        rows.append((safe(group.name), f"{group.rows:,}", *values))
    return [f"## Rates by {safe(' and '.join(grouping.by))}", _table(head, rows)]


def _calibration(content: Content) -> list[str]:
    if not content.calibration:
        return []
    rows = [
        (safe(each.group), f"{each.rows:,}", _number(each.error), _number(each.brier))
        for each in content.calibration[:MOST_GROUPS]
    ]
    return ["## Calibration", _table(("group", "rows", "mean distance", "Brier score"), rows)]


def _notes(content: Content) -> list[str]:
    lines = [f"- {safe(note.text)}" for note in content.notes[:MOST_NOTES]]
    more = len(content.notes) - MOST_NOTES
    if more > 0:
        lines.append(f"- and {more:,} more, on the page")
    return ["## Limits and warnings", "\n".join(lines)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _span(low: float | None, high: float | None) -> str:
    return "no rows" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _share(share: Share) -> str:
    return f"{_number(share.value)} ({_span(share.low, share.high)})"
