"""One training, from checked rows to released values.

What leaves here, in order, each booked in the ledger before it is computed: sizes of features, if no bounds
are declared, lengths of rows and moments of features, if the plan standardises (`ratewise.standardisation`;
of numbers alone before, if it cuts off their tails); then, step by step, the histogram and the clipped sum
(`ratewise.training`). The rest is computed from those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ratewise.accounting import Budget, Event, Ledger, UnprotectedEvent
from ratewise.exceptions import BudgetExceeded, InvalidInput
from ratewise.linear import LinearEngine, LinearModel
from ratewise.multipliers import Multipliers
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.reading import PrivateRows
from ratewise.scaling import Scaling
from ratewise.standardisation import standardise
from ratewise.training import History, StepRecord, Training


def open_ledger(plan: Plan, ledger: Ledger | None, cap: Budget | None, neighbours: str) -> Ledger:
    """Return the book to write into, after asking it whether all that is planned fits: no half a fit.

    Parameters
    ----------
    plan : Plan
    ledger : Ledger or None
        The user's book; None opens one that is capped at `cap`.
    cap : Budget or None
    neighbours : str
    """
    book = ledger if ledger is not None else Ledger(cap=cap, neighbours=neighbours)
    if plan.private and book.cap is not None and book.would_exceed(plan.events):
        asked = "" if cap is None else f" at epsilon={cap.epsilon:g}"
        raise BudgetExceeded(
            f"this fit{asked} would pass the ledger's cap {book.cap}, of which {book.total_epsilon:.4g} is "
            "spent; lower epsilon, or open a ledger with a larger cap"
        )
    return book


class Fitting:
    """A training of a linear model that is watched step by step.

    Parameters
    ----------
    rows : PrivateRows
    plan : Plan
    ledger : Ledger
        As `open_ledger` returns it.
    streams : RandomStreams
    scaling : Scaling or None
        What is done to features by declared bounds; `run` adds released means and deviations.
    kinds : array or None
        Which features are alike; public (see `ratewise.standardisation`).
    numbers : array or None
        Places of the features whose tails may be cut off and which may bend; public (see `ratewise.tails` and
        `ratewise.bends`).
    intercept : bool
    data_name : str
        Name of the rows in the ledger.
    """

    def __init__(
        self,
        rows: PrivateRows,
        plan: Plan,
        ledger: Ledger,
        streams: RandomStreams,
        *,
        scaling: Scaling | None = None,
        kinds: npt.NDArray[np.intp] | None = None,
        numbers: npt.NDArray[np.intp] | None = None,
        intercept: bool = True,
        data_name: str = "training rows",
    ) -> None:
        self.rows = rows
        self.plan = plan
        self.ledger = ledger
        self._streams = streams
        self._scaling = scaling
        self._kinds = kinds
        self._numbers = numbers
        self._intercept = intercept
        self._data_name = data_name

    def run(self, on_step: Callable[[StepRecord], object]) -> None:
        """Prepare the features and train; `on_step` sees what each step released."""
        with threadpool_limits(1):  # small products gain nothing from threads, and sums stay repeatable
            if not self.plan.private:
                self._book(UnprotectedEvent("training without noise"), "train")
            self._build(self._prepared())
            self._train(on_step)
        if not np.all(np.isfinite(self.training.theta)):
            raise InvalidInput("training diverged: the model is not finite; lower learning_rate or l2")

    @property
    def model(self) -> LinearModel:
        """How the parameters score rows."""
        return self._engine.model

    @property
    def theta(self) -> npt.NDArray[np.float64]:
        """The parameters that were found."""
        return self.training.theta.copy()

    @property
    def curved(self) -> npt.NDArray[np.intp]:
        """Places of the features that enter a second time, bent."""
        scaling = self.model.scaling
        found = None if scaling is None else scaling.curved
        return np.zeros(0, dtype=np.intp) if found is None else found.copy()

    def _book(self, event: Event, purpose: str) -> None:
        self.ledger.book(event, purpose=purpose, data=self._data_name)

    def _prepared(self) -> Scaling | None:
        preparation = self.plan.preparation
        if preparation is None:
            return self._scaling
        return standardise(
            self.rows.X,
            self._scaling,
            self._kinds,
            preparation,
            self._streams.preparation,
            self._book,
            self._numbers,
        )

    def _build(self, scaling: Scaling | None) -> None:
        rows, constraints = self.rows, self.rows.constraints
        self._engine = LinearEngine(
            self.plan,
            rows.X,
            rows.labels,
            len(rows.domain.classes),
            cells=rows.cells,
            n_cells=None if constraints is None else constraints.n_cells,
            scaling=scaling,
            intercept=self._intercept,
        )
        multipliers = None if constraints is None else Multipliers(constraints, self.plan)
        self.training = Training(self.plan, self._engine, multipliers)
        self.history = History.of(self.training)

    def _train(self, on_step: Callable[[StepRecord], object]) -> None:
        event = self.plan.step_event
        if event is None:
            self._steps(on_step, None)
            return
        with self.ledger.phase(
            event, planned_steps=self.plan.steps, purpose="train", data=self._data_name
        ) as phase:
            self._steps(on_step, phase.step)

    def _steps(self, on_step: Callable[[StepRecord], object], book: Callable[[], Any] | None) -> None:
        for record in self.training.run(self._streams, book):
            self.history.add(record)
            on_step(record)
