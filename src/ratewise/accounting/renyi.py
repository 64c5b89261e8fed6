"""A second accountant, by Rényi differential privacy, for cross-checks.

It shares no code with the first one: dp-accounting's RDP accountant does the work. Its epsilon is an upper
bound as well, looser by a few percent to a factor of two, so the first accountant must never exceed it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from ratewise import _validate
from ratewise.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    SelectionEvent,
    TrainingEvent,
    as_events,
)
from ratewise.exceptions import UnsupportedCombination


def rdp_epsilon(events: Event | Iterable[Event], delta: float) -> float:
    """Return epsilon by Rényi accounting, for neighbours that differ by adding or removing one row.

    Raises
    ------
    UnsupportedCombination
        An event has no Rényi bound here: a Poisson-sampled Laplace histogram, or a guarantee from outside.
    """
    delta = _validate.inside(delta=delta)
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event in as_events(events):
        _check(event)
        accountant.compose(event.to_dp_event())
    return float(accountant.get_epsilon(delta))


def _check(event: Event) -> None:
    if isinstance(event, SelectionEvent):
        for inner in event.candidate:
            _check(inner)
    elif isinstance(event, TrainingEvent):
        if event.laplace_scale is not None and event.sampling_rate < 1:
            raise UnsupportedCombination(
                "events hold a Poisson-sampled Laplace histogram, which the Rényi accountant does not know; "
                "use ratewise.accounting.epsilon"
            )
    elif not isinstance(event, (GaussianEvent, LaplaceEvent)):
        raise UnsupportedCombination(
            f"events hold {event!r}, unknown to the Rényi accountant; use ratewise.accounting.epsilon"
        )
