"""The classifier for networks, with scikit-learn's manners."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted
from torch import nn

from ratewise import _validate
from ratewise.accounting import Budget, Ledger, PrivacyStatement
from ratewise.accounting.book import text
from ratewise.defaults import AUTO
from ratewise.enforceability import doubts
from ratewise.estimators import CUSTOMARY_DELTA, RateConstrainedClassifier, _class_array, _warn_doubts
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.fitting import open_ledger
from ratewise.plan import Plan
from ratewise.torch.data import TensorRows
from ratewise.torch.defaults import network_plan
from ratewise.torch.distributed import Processes
from ratewise.torch.inputs import NetworkRows, read, read_inputs
from ratewise.torch.objective import Loss
from ratewise.torch.scaling import Bounded
from ratewise.torch.trainer import Trainer
from ratewise.training import StepRecord

Floats = npt.NDArray[np.float64]

_AT_ONCE = 256


class TorchRateConstrainedClassifier(RateConstrainedClassifier):
    """A network trained under differential privacy within limits on its prediction rates.

    What `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to adding or removing
    one row of the data, given the public facts that `privacy_` lists. Limits on rates are aimed at, not
    promised: they are measured on noisy counts of the training rows.

    Parameters
    ----------
    module : nn.Module, or callable that returns one
        Takes inputs (rows first) and returns logits, one per class. A module is copied, never changed.
        Rows must not mix: no batch norm.
    constraints : constraint, family, or list of them, optional
        What to hold, such as ``demographic_parity("sex", max_gap=0.05)``. None: no limits.
    epsilon, delta, neighbours, classes, group_values, histogram, histogram_share, temperature, rates
        As for `ratewise.RateConstrainedClassifier`.
    feature_bounds : pair (lower, upper), optional
        Public bounds, each a number or one per entry of a row: inputs are cut off there and scaled to
        [-1, 1], such as ``(0, 255)`` for pictures. Without bounds inputs are used as they are.
    epochs, steps, sampling_rate, clip, learning_rate, schedule, momentum, averaging, dual, l2
        Training choices; None (or "auto") leaves them to `ratewise.torch.network_plan`.
    optimizer : callable, optional
        Takes the parameters and returns a ``torch.optim`` optimizer, such as
        ``lambda parameters: torch.optim.Adam(parameters, lr=1e-3)``. SGD by the plan unless told.
    scheduler : callable, optional
        Takes the optimizer and returns a scheduler, stepped once per step.
    loss : callable, optional
        ``loss(logits, labels)`` returns one number per row; cross-entropy unless told.
    physical_batch : int, optional
        Rows handled at once: bounds memory, changes nothing else.
    device : device, optional
    ledger, data_name, unit, callback, verbose, random_state
        As for `ratewise.RateConstrainedClassifier`.
    checkpoint : path, optional
        File to write every `checkpoint_every` steps; if it exists, `fit` goes on from it.
    checkpoint_every : int
    processes : Processes, optional
        What ``ratewise.torch.join()`` returned, to train in several processes.

    Attributes
    ----------
    module_ : nn.Module
        The trained network: the average of the last iterates.
    classes_, privacy_, ledger_, history_, multipliers_, constraints_, doubts_, plan_, n_iter_
        As for `ratewise.RateConstrainedClassifier`.
    input_shape_ : tuple
        Shape of one row.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        constraints: Any = None,
        *,
        epsilon: float | None = 1.0,
        delta: float = CUSTOMARY_DELTA,
        neighbours: str = "add_or_remove",
        classes: Any = None,
        group_values: Mapping[str, Any] | None = None,
        feature_bounds: Any = None,
        epochs: float | None = None,
        steps: int | None = None,
        sampling_rate: float | None = None,
        clip: float | str | None = AUTO,
        learning_rate: float | None = None,
        schedule: str | None = None,
        momentum: float | None = None,
        averaging: str | None = None,
        dual: Any = None,
        histogram: str = "gaussian",
        histogram_share: float | None = None,
        temperature: float = 1.0,
        rates: str = "hard",
        l2: float = 0.0,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        loss: Loss | None = None,
        physical_batch: int | None = None,
        device: Any = None,
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        unit: str = "one row",
        callback: Callable[[StepRecord], object] | None = None,
        verbose: int = 0,
        checkpoint: Any = None,
        checkpoint_every: int = 50,
        processes: Processes | None = None,
        random_state: Any = None,
    ) -> None:
        self.module = module
        self.constraints = constraints
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.classes = classes
        self.group_values = group_values
        self.feature_bounds = feature_bounds
        self.epochs = epochs
        self.steps = steps
        self.sampling_rate = sampling_rate
        self.clip = clip
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.averaging = averaging
        self.dual = dual
        self.histogram = histogram
        self.histogram_share = histogram_share
        self.temperature = temperature
        self.rates = rates
        self.l2 = l2
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.loss = loss
        self.physical_batch = physical_batch
        self.device = device
        self.ledger = ledger
        self.data_name = data_name
        self.unit = unit
        self.callback = callback
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.processes = processes
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, sensitive_features: Any = None) -> Self:
        """Train on rows, or on a Dataset whose items are ``(x, label, groups)``.

        Everything that can be wrong with the input is found before any privacy is spent.

        Parameters
        ----------
        X : tensor, array, memory map or data frame with rows first; or a map-style Dataset
            For a Dataset `classes` and `group_values` must be declared.
        y : array of labels
        sensitive_features : data frame, series, mapping of name to column, or vector
            The columns that the constraints name. Needed to fit, never to predict.
        """
        self._check_choices()
        rows = read(
            X,
            y,
            sensitive_features,
            constraints=self.constraints,
            classes=self.classes,
            group_values=self.group_values,
        )
        self._check_delta(rows.source.n_rows)
        streams = self._streams()
        module = self._new_module(int(streams.preparation.integers(0, 2**62)))
        if self.feature_bounds is not None:
            module = nn.Sequential(Bounded(self.feature_bounds, rows.input_shape), module)
        plan = self._network_plan(rows, module)
        self._warn_leaks(rows.leaks)
        cap = None if self.epsilon is None else Budget(float(self.epsilon), float(self.delta))
        trainer = self._trainer(module, rows, plan, self._book(plan, cap))
        trainer.engine.try_out()
        if self.checkpoint is not None:
            trainer.resume()
        self._forget()  # only now: a fit that was refused leaves an earlier model whole
        self.ledger_ = trainer.ledger
        trainer.run()
        self.ledger_ = trainer.ledger
        self._keep_network(trainer, rows)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return scores: the margin of the second class (n,) for two classes, logits (n, K) for more."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, in the order of `classes_`."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row; group values are not needed."""
        return np.asarray(self.classes_[self._logits(X).argmax(axis=1)])

    def __sklearn_is_fitted__(self) -> bool:
        # a fit that was stopped leaves its ledger, which is no model
        return hasattr(self, "module_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    # ------------------------------------------------------------------ before any privacy is spent

    def _check_choices(self) -> None:
        self._check_budget()
        _validate.one_of(("gaussian", "laplace"), histogram=self.histogram)
        text(required=True, data_name=self.data_name)
        text(required=True, unit=self.unit)
        for name in ("callback", "optimizer", "scheduler", "loss"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidType(f"{name} must be a function or None, got {type(value).__name__}")

    def _new_module(self, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if not callable(self.module):
            raise InvalidType(
                "module must be a torch.nn.Module or a function that returns one, got "
                f"{type(self.module).__name__}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.module()
        if not isinstance(module, nn.Module):
            raise InvalidType(f"module() must return a torch.nn.Module, got {type(module).__name__}")
        return module

    def _book(self, plan: Plan, cap: Budget | None) -> Ledger:
        goes_on = self.checkpoint is not None and os.path.exists(self.checkpoint)
        if goes_on and self.ledger is not None:
            return self.ledger  # it has booked a part already: the trainer asks whether the rest fits
        return open_ledger(plan, self.ledger, cap, self.neighbours)

    def _network_plan(self, rows: NetworkRows, module: nn.Module) -> Plan:
        return network_plan(
            rows.source.n_rows,
            sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad),
            rows.constraints,
            n_classes=len(rows.domain.classes),
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            histogram=self.histogram,
            histogram_share=self.histogram_share,
            sampling_rate=self.sampling_rate,
            epochs=self.epochs,
            steps=self.steps,
            clip=self.clip,
            dual=self.dual,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            momentum=self.momentum,
            averaging=self.averaging,
            temperature=self.temperature,
            rates=self.rates,
            l2=self.l2,
        )

    def _trainer(self, module: nn.Module, rows: NetworkRows, plan: Plan, ledger: Ledger) -> Trainer:
        device = self.device or next((p.device for p in module.parameters()), None)
        module = module.to(device)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = None if self.optimizer is None else self.optimizer(trained)
        if self.scheduler is not None and optimizer is None:
            raise InvalidInput("scheduler was given without an optimizer; give both")
        return Trainer(
            module,
            rows.source,
            plan,
            rows.constraints,
            n_classes=len(rows.domain.classes),
            optimizer=optimizer,
            scheduler=None if self.scheduler is None else self.scheduler(optimizer),
            loss=self.loss,
            ledger=ledger,
            data_name=self.data_name,
            physical_batch=self.physical_batch,
            device=device,
            callbacks=() if self.callback is None else (self.callback,),
            progress=bool(self.verbose),
            checkpoint=self.checkpoint,
            checkpoint_every=self.checkpoint_every,
            processes=self.processes,
            random_state=self.random_state,
        )

    # ---------------------------------------------------------------------------- after the run

    def _keep_network(self, trainer: Trainer, rows: NetworkRows) -> None:
        self.classes_ = _class_array(rows.domain)
        self.input_shape_ = rows.input_shape
        if len(self.input_shape_) == 1:
            self.n_features_in_ = self.input_shape_[0]
        self.plan_ = trainer.plan
        self.constraints_ = rows.constraints
        self.n_iter_ = trainer.steps_done
        self.history_ = trainer.history.arrays()
        self.privacy_ = self._statement_of(rows)
        dual = trainer.multipliers
        self.multipliers_ = np.zeros(0) if dual is None else dual.average
        self.doubts_ = ()
        self.module_ = trainer.averaged_module()
        if dual is not None and rows.constraints is not None:
            self.doubts_ = doubts(rows.constraints, dual, trainer.plan)
            _warn_doubts(self.doubts_)

    def _statement_of(self, rows: NetworkRows) -> PrivacyStatement:
        public = [f"the number of rows, {rows.source.n_rows}", "the shape of the inputs", "the network"]
        if self.classes is not None:
            public.append("the classes")
        public += [f"the values of column {name!r}" for name in (self.group_values or ())]
        if self.feature_bounds is not None:
            public.append("the bounds of the features")
        leaks = rows.leaks if self.epsilon is not None else ()
        return self.ledger_.statement(delta=self.delta, unit=self.unit, public=public, leaks=leaks)

    @torch.no_grad()
    def _logits(self, X: Any) -> Floats:
        check_is_fitted(self)
        x = read_inputs(X, self.input_shape_)
        source = TensorRows(x, np.zeros(len(x), dtype=np.int8))
        device = next(self.module_.parameters()).device
        found = []
        for start in range(0, len(x), _AT_ONCE):
            piece = source.take(np.arange(start, min(start + _AT_ONCE, len(x)))).x
            found.append(self.module_(piece.to(device)).double().cpu().numpy())
        return np.concatenate(found)
