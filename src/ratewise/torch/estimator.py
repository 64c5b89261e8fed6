"""The classifier for networks, with the interface of scikit-learn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn
from torch.utils.data import Dataset

from ratewise import _validate
from ratewise.accounting import Ledger
from ratewise.constraints.compiled import CompiledConstraints, compile_constraints, named_values
from ratewise.constraints.domain import Domain
from ratewise.data.table import code_ids, declared_domain, read_vector
from ratewise.estimators.classifier import RateConstrainedClassifier, delta_for, warn_of_ids
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.models.rows import Rows
from ratewise.torch.distributed import Processes
from ratewise.torch.engine import DatasetRows, Loss, Objective, RowSource, TensorRows, TorchEngine, refuse_loader
from ratewise.torch.isolation import check_module, untouched_state
from ratewise.torch.networks import Bounded
from ratewise.torch.trainer import NetworkSession, check_optimizer, network_config, refuse_removal
from ratewise.training.config import TrainingConfig
from ratewise.training.declarations import Declarations, check_compiles, read_groups
from ratewise.training.loop import StepRecord
from ratewise.training.session import Session

Floats = npt.NDArray[np.float64]

_AT_ONCE = 256


def _refused(reason: str) -> Any:
    """Return a method in the place of one that networks do not have."""

    def method(_self: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse: networks do not have this."""
        raise UnsupportedCombination(reason)

    return method


class TorchRateConstrainedClassifier(RateConstrainedClassifier):
    """A network trained under differential privacy with constraints on its prediction rates.

    Everything that `fit` leaves behind is (`epsilon`, `delta`)-differentially private with respect to one row, or to
    all rows of one id if `privacy_ids` are given; `privacy_` states it. Constraints are judged on the training rows by
    a private measurement of the returned network, `certificate_`.

    Parameters
    ----------
    module : nn.Module, or callable that returns one
        Takes inputs (rows first) and returns logits, one per class. A module is copied, never changed.
        It runs on each row separately: batch norm is refused.
    constraints, epsilon, delta, neighbours, classes, group_values
        As for `ratewise.RateConstrainedClassifier`, without "add_or_remove". For a Dataset, `classes` and `group_values` must be declared.
    feature_bounds : pair (lower, upper), optional
        Public bounds, each a number or one per entry of a row: inputs are clipped to them and scaled to
        [-1, 1], such as ``(0, 255)`` for pictures. Without bounds inputs are used as they are.
    config : TrainingConfig, optional
        All other settings of training; None leaves them to `ratewise.torch.network_plan`.
    epochs : float, optional
        How often each unit is read on average; 20 by default. Give `epochs` or ``config.steps``.
    optimizer : callable, optional
        Takes the parameters and returns a ``torch.optim`` optimizer, such as
        ``lambda parameters: torch.optim.Adam(parameters, lr=1e-3)``. SGD by default.
    scheduler : callable, optional
        Takes the optimizer and returns a scheduler, stepped once per step; by default the learning rate follows
        ``config.schedule``.
    loss : callable, optional
        ``loss(logits, labels)`` returns one number per row; cross-entropy by default.
    rows_per_id, id_weighting, ledger, data_name, callback, verbose, random_state
        As for `ratewise.RateConstrainedClassifier`.
    physical_batch : int, optional
        Rows handled at once: bounds memory, changes nothing else.
    device : device, optional
    checkpoint : path, optional
        File to write every `checkpoint_every` steps; if it exists, `fit` goes on from it.
    checkpoint_every : int
    processes : Processes, optional
        What ``ratewise.torch.join()`` returned, to train in several processes.

    Attributes
    ----------
    module_ : nn.Module
        The trained network, in evaluation mode.
    offset_ : array or None
        Correction that predictions add to the logits of `module_` (`ratewise.training.certificate.choose_shift`).
    classes_, certificate_, privacy_, ledger_, history_, multipliers_, constraints_, plan_, n_iter_
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
        delta: float | None = None,
        neighbours: str = "zero_out",
        classes: Any = None,
        group_values: Mapping[str, Any] | None = None,
        feature_bounds: Any = None,
        config: TrainingConfig | None = None,
        epochs: float | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        loss: Loss | None = None,
        rows_per_id: int | None = None,
        id_weighting: str = "id",
        physical_batch: int | None = None,
        device: Any = None,
        ledger: Ledger | None = None,
        data_name: str = "training rows",
        checkpoint: Any = None,
        checkpoint_every: int = 50,
        processes: Processes | None = None,
        callback: Callable[[StepRecord], object] | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            constraints, epsilon=epsilon, delta=delta, neighbours=neighbours, classes=classes,
            group_values=group_values, feature_bounds=feature_bounds, model="linear", config=config,
            rows_per_id=rows_per_id, id_weighting=id_weighting, ledger=ledger, data_name=data_name,
            callback=callback, verbose=verbose, random_state=random_state,
        )  # fmt: skip
        self.module = module
        self.epochs = epochs
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.loss = loss
        self.physical_batch = physical_batch
        self.device = device
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.processes = processes

    # ------------------------------------------------------------------------------------- fitting

    def fit(  # type: ignore[override]  # rows have no weights here
        self, X: Any, y: Any = None, *, sensitive_features: Any = None, privacy_ids: Any = None
    ) -> Self:
        """Train on rows (a tensor, array, memory map or data frame), or a Dataset of items ``(x, label, groups)``.

        Invalid declarations are rejected before any privacy is spent. Other parameters are those of
        `ratewise.RateConstrainedClassifier.fit`.
        """
        return super().fit(X, y, sensitive_features=sensitive_features, privacy_ids=privacy_ids)

    def _session(
        self, X: Any, y: Any, sensitive: Any, ids: Any, weight: Any = None, *, planning: bool = False
    ) -> NetworkSession:
        """Return a session after all checks of declarations and shapes."""
        self._check_parameters()
        refuse_removal(self.neighbours)
        for name in ("optimizer", "scheduler", "loss"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidType(f"{name} must be a function or None, got {type(value).__name__}")
        if self.scheduler is not None and self.optimizer is None:
            raise InvalidInput("scheduler was given without an optimizer; give both")
        facts, rows = self._rows(X, y, sensitive, ids, weight)
        processes = self.processes or Processes()
        if processes.world > 1 and (
            self.classes is None or facts.undeclared_groups(rows.group_names) or facts.finds_rows_per_id
        ):
            raise UnsupportedCombination(
                "in several processes nothing is found privately: declare classes, group_values and, with "
                "privacy_ids, rows_per_id"
            )
        if facts.constraints:
            check_compiles(facts, rows.group_names)
        n_units = rows.count_units()
        delta = delta_for(self.delta, n_units, private=self.epsilon is not None)
        streams = RandomStreams.from_seed(None) if planning else self._streams()
        module = self._new_module(0 if planning else int(streams.preparation.integers(0, 2**62)))
        if self.feature_bounds is not None:
            module = nn.Sequential(Bounded(self.feature_bounds, rows.row_shape), module)
        device = self.device or next((p.device for p in module.parameters()), torch.device("cpu"))
        module = module.to(device)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = None if self.optimizer is None else self.optimizer(trained)
        scheduler = None if self.scheduler is None else self.scheduler(optimizer)
        session = NetworkSession(
            facts, rows, self._training_config(n_units), None if self.epsilon is None else float(self.epsilon), delta,
            self.neighbours, streams, ledger=self.ledger, data_name=self.data_name, module=module,
            seed=self.random_state, processes=processes, loss=self.loss, physical_batch=self.physical_batch,
            device=device, checkpoint=self.checkpoint, checkpoint_every=self.checkpoint_every,
            optimizer=optimizer, scheduler=scheduler,
        )  # fmt: skip
        if not planning:
            self._try_out(session, rows.features.source)
            if self.checkpoint is not None:
                session.plan_units()
                session.resume()
        return session

    def _training_config(self, n_units: int) -> TrainingConfig:
        return network_config(self.config, n_units, self.epochs)

    def _rows(self, X: Any, y: Any, sensitive: Any, ids: Any, weight: Any) -> tuple[Declarations, NetworkRows]:  # noqa: ARG002
        refuse_loader(X)
        facts = self._declarations((), None, ids is not None)
        source: RowSource
        if isinstance(X, Dataset):
            if y is not None or sensitive is not None:
                raise InvalidInput("X is a Dataset, which brings its labels and groups; leave the others out")
            domain, compiled = declared(facts.constraints or None, self.classes, self.group_values)
            x, source = X, DatasetRows(X, domain, compiled)
            # the labels are read later: each row may be used
            labels, groups = np.full(source.n_rows, domain.classes[0]), dict.fromkeys(domain.columns)
        else:
            x = _read_inputs(X)
            source = TensorRows(x[:0], np.zeros(0, dtype=np.int8))
            labels, groups = read_vector(y, len(x), "y"), read_groups(sensitive, len(x), facts)
        ids = None if ids is None else read_vector(ids, len(labels), "privacy_ids")
        rows = NetworkRows(NetworkInputs(x, len(labels), source), labels, groups, ids)  # type: ignore[arg-type]
        if ids is not None:
            rows.use_ids(*code_ids(ids, like_rows=False))
        return facts, rows

    def _declared_columns(self, names: tuple[str, ...]) -> dict[str, Any]:  # noqa: ARG002 - none here
        return {}

    def _new_module(self, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if not callable(self.module):
            raise InvalidType(
                f"module must be a torch.nn.Module or a function that returns one, got {type(self.module).__name__}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _validate.instance(nn.Module, **{"module()": self.module()})

    def _try_out(self, session: NetworkSession, source: RowSource) -> None:
        """Run synthetic rows through module, loss and optimizer: what cannot work ends before any release.

        If the classes are not declared, any number of logits is accepted here.
        """
        module, classes = session.module, session.declarations.classes
        check_module(module)
        n_classes = 2 if classes is None else len(classes)
        if classes is None:
            with torch.no_grad(), untouched_state(module):
                logits = module(source.blank(2).to(session.device or "cpu"))
            if isinstance(logits, torch.Tensor) and logits.ndim == 2:
                n_classes = logits.shape[-1]
        objective = Objective(max(n_classes, 2), None, self.loss)
        engine = TorchEngine(module, source, objective, physical_batch=self.physical_batch, device=session.device)
        check_optimizer(session.optimizer, session.scheduler, engine.parameters)
        engine.try_out()

    def _keep_model(self, session: Any) -> None:
        self.input_shape_ = session.rows.row_shape
        if len(self.input_shape_) == 1:
            self.n_features_in_ = self.input_shape_[0]
        self.module_ = None if session.loop is None else session.fitted_module()
        self.model_ = self.module_
        self.offset_ = None if session.shift is None else session.parameters

    def _public_facts(self, session: Session) -> tuple[str, ...]:
        bounds = () if self.feature_bounds is None else ("the bounds of the features",)
        return ("the shape of the inputs", "the network", *super()._public_facts(session)[1:], *bounds)

    _additive = _refused("networks have no shape functions and no contributions; use RateConstrainedClassifier")
    save = _refused("the file of a network is PyTorch's: torch.save(classifier.module_.state_dict(), path)")
    to_sql = _refused("a network cannot be written as SQL; use RateConstrainedClassifier")
    to_onnx = _refused("a network is exported by PyTorch: torch.onnx.export(classifier.module_, ...)")

    # ----------------------------------------------------------------------------------- prediction

    @torch.no_grad()
    def _scores(self, X: Any, privacy_ids: Any = None) -> Floats:
        """Return scores: the margin of the second class (n, 1) for two classes, logits (n, K) for more."""
        warn_of_ids(privacy_ids)
        check_is_fitted(self)
        x = _read_inputs(X)
        if tuple(x.shape[1:]) != self.input_shape_:
            raise InvalidInput(
                f"X has rows of shape {tuple(x.shape[1:])}, the module was fitted on {self.input_shape_}"
            )
        source, found = TensorRows(x, np.zeros(len(x), dtype=np.int8)), []
        for rows in np.split(np.arange(len(x)), range(_AT_ONCE, len(x), _AT_ONCE)):
            inputs = source.take(rows).x
            if not bool(torch.isfinite(inputs).all()):
                raise InvalidInput("X contains NaN or infinity; impute, clip or drop such rows")
            if self.module_ is not None:
                device = next(self.module_.parameters()).device
                found.append(self.module_(inputs.to(device)).double().cpu().numpy())
        if self.module_ is None:
            return np.zeros((len(x), 1))
        logits = np.concatenate(found) + (0.0 if self.offset_ is None else self.offset_)
        return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        for kind in ("sparse", "allow_nan", "string", "categorical"):
            setattr(tags.input_tags, kind, False)
        return tags

    def _streams(self) -> RandomStreams:
        super()._streams()  # raises the errors of a bad seed
        return RandomStreams.from_seed(self.random_state, "network")


def declared(
    constraints: Any, classes: Any, group_values: Mapping[str, Any] | None
) -> tuple[Domain, CompiledConstraints | None]:
    """Compile constraints for the declared classes and group values of a Dataset."""
    if classes is None:
        raise InvalidInput("classes must be declared for a Dataset, got None; for example classes=(0, 1)")
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise InvalidType(f"classes must be a collection of values, got {type(classes).__name__}")
    if group_values is not None and not isinstance(group_values, Mapping):
        raise InvalidType(f"group_values must map columns to values, got {type(group_values).__name__}")
    needed, values = named_values(constraints).needed, dict(group_values or {})
    absent = sorted((needed or set()) - set(values))
    if absent or (needed is None and not values):
        shown = repr(absent[0]) if absent else "every column that is a group"
        raise InvalidInput(
            f"group_values must be declared for a Dataset: the values of {shown} are missing; "
            "for example group_values={'sex': ('Female', 'Male')}"
        )
    kept = {name: values[name] for name in values if needed is None or name in needed}
    domain = declared_domain(classes, kept, other=True)
    compiled = compile_constraints(constraints, domain)
    return domain, compiled if len(compiled) else None


# ---------------------------------------------------------------------------- reading of inputs


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """Inputs of a network, in the place of the feature table of a session: there are no columns to prepare."""

    x: Any  # tensor or array of inputs, or a Dataset
    n_rows: int
    source: RowSource  # in the shape and type of the inputs; of an array, it holds no rows
    names: tuple[str, ...] = ()
    named: bool = False
    sparse: None = None
    mapped: bool = False


class NetworkRows(Rows):
    """Rows of a session whose features are `NetworkInputs`; labels and groups of a Dataset are read row by row."""

    features: Any

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the inputs of one row."""
        return tuple(self.features.source.blank(0).shape[1:])

    def use_domain(self, domain: Domain, compiled: CompiledConstraints | None) -> None:
        """Code labels and groups; those of a Dataset are coded by `DatasetRows` when it reads them."""
        if not isinstance(self.features.x, Dataset):
            super().use_domain(domain, compiled)

    def source(self, domain: Domain, constraints: CompiledConstraints | None) -> RowSource:
        """Return the rows as the engine reads them."""
        if isinstance(self.features.x, Dataset):
            return DatasetRows(self.features.x, domain, constraints)
        return TensorRows(self.features.x, self.problem.labels, self.problem.cells)


def _read_inputs(X: Any) -> Any:
    """Return a tensor, array, memory map or data frame as numbers, rows first; the numbers are not looked at."""
    refuse_loader(X)
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise InvalidType("X is a lazy frame; call .collect() on it first")
    if hasattr(X, "tocsr"):
        raise InvalidType("X is a sparse matrix, which networks do not read; pass X.toarray()")
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidType("X is a masked array; fill in masked entries first, for example with X.filled(0)")
    x = X if isinstance(X, torch.Tensor) else np.asanyarray(X)
    if x.ndim < 2 or len(x) == 0:
        raise InvalidInput(f"X must have rows first and at least one of them, got shape {tuple(x.shape)}")
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biuf":
        raise InvalidType(f"X must hold numbers, got {x.dtype}; encode other columns as numbers first")
    return x
