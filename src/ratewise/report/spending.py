"""Where the privacy budget went: a ledger's entries in order of booking, with epsilon before and after each.

Epsilons do not add up, so an entry has no share of its own. What can be said exactly is by how much the total
rose when the entry was booked, after all that came before it. Everything here is computed from the book,
which holds no private value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ratewise.accounting import Event, Ledger, TrainingEvent, accountant
from ratewise.accounting.book import PhaseBegun, PhaseSettled, Release, StepsReserved, repeated, summed, unit
from ratewise.accounting.events import UnprotectedEvent
from ratewise.accounting.statement import in_words
from ratewise.report.content import Booking, Spending, finite

POINTS = 40
MOST_ENTRIES = 40

Entry = tuple[str, str, Event, int]
"""Purpose, data, a single release, and how often it counts."""


def spending_of(ledger: Ledger, delta: float) -> Spending:
    """Return the picture of a ledger at a delta."""
    entries = _merged(_entries(ledger))
    neighbours = ledger.neighbours
    before, counted, listed = 0.0, [], []
    for purpose, data, event, times in entries:
        counted.append((event, times))
        after = _epsilon(counted, delta, neighbours)
        alone = _epsilon([(event, times)], delta, neighbours)
        words = in_words(repeated({event: times})[0])
        listed.append(Booking(purpose, data, words, finite(alone), finite(before), finite(after)))
        before = after
    steps, epsilons = _curve(entries, delta, neighbours)
    return Spending(
        delta=delta,
        cap=None if ledger.cap is None else ledger.cap.epsilon,
        total=finite(before),
        entries=_shortened(listed),
        steps=steps,
        epsilons=epsilons,
        gradient_share=_gradient_share(entries),
    )


def _entries(ledger: Ledger) -> list[Entry]:
    """Return what counts, in order of booking; a phase counts what it reserved until it is settled."""
    found: list[list[object]] = []
    phases: dict[str, list[object]] = {}
    for record in ledger.records:
        if isinstance(record, Release):
            found.append([record.purpose, record.data, *unit(record.event)])
        elif isinstance(record, PhaseBegun):
            phases[record.phase] = [record.purpose, record.data, record.event, record.steps]
            found.append(phases[record.phase])
        elif isinstance(record, StepsReserved):
            phases[record.phase][3] += record.steps  # type: ignore[operator]
        elif isinstance(record, PhaseSettled):
            phases[record.phase][3] = record.steps
    return [tuple(entry) for entry in found if entry[3]]  # type: ignore[misc]


def _merged(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries, with equal ones that follow each other as one."""
    merged: list[Entry] = []
    for purpose, data, event, times in entries:
        if merged and merged[-1][:3] == (purpose, data, event) and not isinstance(event, UnprotectedEvent):
            merged[-1] = (purpose, data, event, merged[-1][3] + times)
        else:
            merged.append((purpose, data, event, times))
    return merged


def _shortened(entries: list[Booking]) -> tuple[Booking, ...]:
    """Return at most `MOST_ENTRIES`; the earliest beyond that become one, which keeps the sums right."""
    extra = len(entries) - MOST_ENTRIES
    if extra <= 0:
        return tuple(entries)
    first, last = entries[0], entries[extra]
    joined = Booking(
        f"the first {extra + 1} entries", "", "see the ledger itself", last.after, first.before, last.after
    )
    return (joined, *entries[extra + 1 :])


def _epsilon(counted: list[tuple[Event, int]], delta: float, neighbours: str) -> float:
    return accountant.epsilon(repeated(summed(counted)), delta, neighbours=neighbours)


def _curve(entries: list[Entry], delta: float, neighbours: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return epsilon of the whole book after so many steps of its last training."""
    place = max((i for i, entry in enumerate(entries) if isinstance(entry[2], TrainingEvent)), default=-1)
    if place < 0:
        return (), ()
    *earlier, (_, _, event, times) = entries[: place + 1]
    base = [(kind, count) for _, _, kind, count in earlier]
    chosen = sorted({round(times * i / POINTS) for i in range(POINTS + 1)})
    values = [_epsilon([*base, (event, done)], delta, neighbours) if base or done else 0.0 for done in chosen]
    if not all(map(math.isfinite, values)):
        return (), ()
    return tuple(chosen), tuple(values)


def _gradient_share(entries: list[Entry]) -> float | None:
    """Return the part of the last training's budget, by inverse squared noise, that bought gradients."""
    events = [event for _, _, event, _ in entries if isinstance(event, TrainingEvent)]
    if not events or events[-1].gradient_noise is None or events[-1].histogram_noise is None:
        return None
    step = events[-1]
    gradient, counts = events[-1].gradient_noise or 1.0, events[-1].histogram_noise or 1.0
    if step.histogram == "laplace":
        counts *= math.sqrt(2.0)
    return gradient**-2 / (gradient**-2 + counts**-2)
