"""A loop whose steps are booked before they happen, without a write per step."""

from __future__ import annotations

import dataclasses
import operator
import threading
import uuid
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ratewise.accounting.book import PhaseBegun, now
from ratewise.exceptions import InvalidType, LedgerError, RatewiseWarning

if TYPE_CHECKING:
    from ratewise.accounting.ledger import Ledger

STRIDE = 64
"""Steps that a phase reserves at a time while it is young."""

GROWTH = 4
"""An old phase reserves a `GROWTH`-th of the steps it has already run."""


class Phase:
    """A loop of releases, each of which is booked before it happens.

    Call `step` before every release. Steps are reserved in the book in strides, so `step` is an integer
    increment and a comparison nearly every time. Leaving the ``with`` block, in whatever way, settles
    the phase to the number of steps that were taken. A process that is killed inside leaves the reservation:
    at most ``max(stride, ran // 4)`` steps that did not run, and never fewer than ran.

    With a cap, the whole plan must fit when the phase begins, or `BudgetExceeded` is raised; steps beyond the
    plan, and steps that no longer fit because another process has spent the budget meanwhile, raise it too.

    One phase may be stepped by several threads, but only in the process that began it.
    """

    def __init__(self, ledger: Ledger, begun: PhaseBegun, stride: int) -> None:
        self._ledger = ledger
        self._begun = begun
        self._stride = stride
        self._lock = threading.Lock()
        self._reserved = 0
        # One item per step that is reserved and not yet taken. Taking an item is atomic and costs less than
        # a lock; how many are left can be asked at any time.
        self._slots = iter(range(0))
        self._state = "new"
        # For the cap: records of this phase, and records of others when its plan was last found to fit.
        self._written = self._checked = 0

    @property
    def ran(self) -> int:
        """Number of steps that were allowed so far."""
        return self._reserved - operator.length_hint(self._slots)

    @property
    def planned(self) -> int:
        """Number of steps that were planned."""
        return self._begun.planned

    def step(self) -> None:
        """Book one step that is about to happen; if this raises, it must not happen.

        Raises
        ------
        BudgetExceeded
            The step is beyond the plan, or the budget was spent by others, and it does not fit under the cap.
        LedgerError
            The book cannot be written, or the phase is not open in this process.
        """
        if next(self._slots, None) is None:
            self._step_slowly()

    def __enter__(self) -> Self:
        with self._lock:
            if self._state != "new":
                raise LedgerError(f"this phase is {self._state} already; ledger.phase(...) makes another one")
            first = min(self._stride, self._begun.planned)
            name = uuid.uuid4().hex[:16]
            self._begun = dataclasses.replace(self._begun, phase=name, steps=first, time=now())
            self._ledger._begin(self, self._begun)
            self._reserved, self._slots = first, iter(range(first))
            self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._state != "open":
                return
            self._state = "settled"
            # Taken one by one, so that a thread that still steps either had its step or is refused.
            self._reserved -= sum(1 for _ in self._slots)
            try:
                self._ledger._settle(self._begun, self._reserved)
            except LedgerError as problem:
                # What ran is booked already; a result must not be lost because the book stays too high.
                warnings.warn(
                    f"{self.ran} steps ran, but this could not be written, so the steps that were reserved "
                    f"stay counted: {problem}",
                    RatewiseWarning,
                    stacklevel=2,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidType("a phase cannot be pickled or copied: it is a loop that runs here and now")

    def __repr__(self) -> str:
        return f"Phase({self._begun.event!r}, {self._state}, {self.ran} of {self._begun.planned} steps)"

    def _step_slowly(self) -> None:
        with self._lock:
            while next(self._slots, None) is None:
                self._reserve()

    def _reserve(self) -> None:
        if self._state != "open":
            raise LedgerError(
                f"this phase is {self._state}, so it takes no step; use `with ledger.phase(...) as phase:` "
                "in the process that releases"
            )
        wanted = max(self._stride, self._reserved // GROWTH)
        if self._reserved < self._begun.planned:
            wanted = min(wanted, self._begun.planned - self._reserved)
        granted = self._ledger._reserve(self, self._begun, wanted)
        # In this order: an interrupt in between makes the number of steps that ran too high, not too low.
        self._reserved, self._slots = self._reserved + granted, iter(range(granted))

    def _forked(self) -> None:
        """In a forked child: the steps of this phase are counted, and settled, by the parent."""
        self._lock = threading.Lock()
        if self._state == "open":
            self._state = "open in another process"
            self._reserved, self._slots = self.ran, iter(range(0))
