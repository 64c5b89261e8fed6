"""Constraint text against what is known of the table: errors show the text and point into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratewise.domain import Domain
from ratewise.exceptions import InvalidInput
from ratewise.grammar import GrammarError, parse_constraint
from ratewise.grammar.mentions import check_columns, place_of
from ratewise.grammar.parser import read_constraint
from ratewise.partition import compile_constraints


def refuse_unknown_columns(texts: Sequence[str], columns: Iterable[str]) -> None:
    """Refuse texts that name a column which the table does not have."""
    known = list(columns)
    for text in texts:
        check_columns(read_constraint(text).mentions, known, text, "the columns of the table")


def refuse_label(texts: Sequence[str], label: str) -> None:
    """Refuse texts that take the column to predict for a group."""
    for text in texts:
        for mention in read_constraint(text).mentions:
            if mention.column == label:
                raise GrammarError(
                    f"{label!r} is the label, not a group; a true class is label(...), as in "
                    "rate(1, where=label(1))",
                    text,
                    place_of(mention, text),
                )


def refuse_unheld(texts: Sequence[str], domain: Domain) -> None:
    """Refuse texts about unknown columns, values or classes, and limits that no classifier can hold.

    What is wrong with one text is shown in it. What is wrong with several together is said without a place.
    """
    declared = [parse_constraint(text, domain) for text in texts]
    try:
        compile_constraints(declared, domain)
    except InvalidInput:
        for text in texts:
            _refuse_alone(text, domain)
        raise


def _refuse_alone(text: str, domain: Domain) -> None:
    found = read_constraint(text)
    try:
        compile_constraints(found.meant, domain)
    except InvalidInput as problem:
        raise GrammarError(str(problem), text, found.bound_at) from None
