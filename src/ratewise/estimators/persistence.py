"""Fitted classifiers in files that are safe to open, and additive models as SQL and ONNX.

A file holds arrays and plain data with checksums (`ratewise._files`). Reading it runs nothing that it
contains. Everything in it is released or public; the seed, the callback and the ledger of the parameters are
not written, because a seed is secret and a ledger goes on elsewhere. A restored `ledger_` can only be read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ratewise._files import KINDS, ModelFileError, Path, read_bytes, state_from_bytes, state_to_bytes, write_whole
from ratewise.accounting import Event, Ledger, PrivacyStatement, PrivacyUnit
from ratewise.accounting.events import event_from_dict
from ratewise.constraints.compiled import as_constraints, compile_constraints
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.families import Family
from ratewise.constraints.rates import Constraint, Constraints
from ratewise.constraints.text import format_constraint, parse_constraint
from ratewise.data.cells import CellFormat, text_of
from ratewise.data.schema import Schema
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.models.additive import Scorer
from ratewise.models.fitted import AdditiveModel, SparseModel
from ratewise.preprocessing.basis import bin_offsets
from ratewise.preprocessing.discovery import ColumnDeclaration
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, UnusedGrid
from ratewise.training.certificate import Certificate
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import Plan

if TYPE_CHECKING:
    from ratewise.estimators.classifier import RateConstrainedClassifier

__all__ = ["from_bytes", "load", "save", "to_bytes", "to_onnx", "to_sql"]

Floats = npt.NDArray[np.float64]

KIND = "classifier"
UNWRITTEN = ("ledger", "callback", "random_state")
_READ_ONLY = "this ledger was read from the file of a model and can only be read; go on with the original"
_FITTED: dict[str, Any] = {
    "classes_": np.ndarray,
    "n_iter_": int,
    "unused_features_": dict,
    "certificate_": Certificate | None,
    "privacy_": PrivacyStatement,
    "plan_": Plan,
    "_feature_names": tuple,
    "model_": AdditiveModel | SparseModel | None,
    "multipliers_": np.ndarray,
    "history_": dict,
}
"""Attributes of a fitted classifier that are written as they are, with their types."""


def save(classifier: RateConstrainedClassifier, path: Path) -> None:
    """Write a fitted classifier to a file that is safe to open; `ratewise.load` reads it.

    The file holds released and public values only. The parameters `ledger`, `callback` and `random_state` are not
    written. A file that exists is replaced in one step.
    """
    write_whole(path, to_bytes(classifier))


def load(path: Path) -> RateConstrainedClassifier:
    """Read a classifier that `RateConstrainedClassifier.save` wrote; its predictions are bit-identical.

    Parameters
    ----------
    path : str or path
        The file. Nothing in it is executed.

    Raises
    ------
    ModelFileError
        There is no such file, or it was not written by ratewise, or it is damaged or was edited.
    """
    return from_bytes(read_bytes(path), path)


def to_bytes(classifier: RateConstrainedClassifier) -> bytes:
    """Return the content of the file of a fitted classifier."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(classifier)
    compiled = classifier.constraints_
    if compiled is not None:
        again = compile_constraints(as_constraints(classifier.constraints), compiled.domain, allow_empty=True)
        if again.names != compiled.names:
            raise InvalidInput("the constraints were changed after fit; fit again, or set them back, before saving")
    fields: dict[str, Any] = {name: getattr(classifier, name) for name in _FITTED}
    parameters = classifier.get_params(deep=False)
    fields |= {
        "parameters": {name: parameters[name] for name in parameters if name not in UNWRITTEN},
        "named": hasattr(classifier, "feature_names_in_"),
        "domain": None if compiled is None else compiled.domain,
        "ledger": classifier.ledger_.to_json(),
    }
    return state_to_bytes(KIND, fields)


def from_bytes(content: bytes, path: Path = "model.ratewise") -> RateConstrainedClassifier:
    """Return the classifier that `to_bytes` wrote; `path` is named in messages."""
    from ratewise.estimators.classifier import RateConstrainedClassifier

    try:
        said = state_from_bytes(content, KIND, path)
        found = RateConstrainedClassifier(**said["parameters"])
        for name, kind in _FITTED.items():
            if not isinstance(said[name], kind):
                raise TypeError(f"its {name!r} is a {type(said[name]).__name__}")
            setattr(found, name, said[name])
        names, domain = found._feature_names, said["domain"]
        _check_model(found.model_, names, 1 if len(found.classes_) == 2 else len(found.classes_))
        found.n_features_in_ = len(names)
        if said["named"]:
            found.feature_names_in_ = np.array(names, dtype=object)
        found.constraints_ = None
        if domain is not None:
            found.constraints_ = compile_constraints(found.constraints, domain, allow_empty=True)
        found.ledger_ = Ledger.read_only(said["ledger"], _READ_ONLY)
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelFileError(f"{os.fspath(path)!r} holds no sound classifier: {problem}") from None
    return found


def _check_model(model: AdditiveModel | SparseModel | None, names: tuple[str, ...], outputs: int) -> None:
    arrays: dict[str, tuple[Floats, tuple[int, ...]]] = {}
    if isinstance(model, SparseModel):
        arrays = {"weights": (model.weights, (outputs, len(names))), "intercept": (model.intercept, (outputs,))}
    elif model is not None:
        if tuple(grid.name for grid in model.grids) != names:
            raise ValueError("its grids do not fit its features")
        bins, scorer = sum(grid.n_bins for grid in model.grids), model.scorer
        arrays = {"table": (scorer.table, (bins, outputs)), "intercept": (scorer.intercept, (outputs,))}
        arrays |= {"bin_shares": (model.bin_shares, (bins,)), "bin_noise": (model.bin_noise, (bins,))}
    for name, (array, shape) in arrays.items():
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise ValueError(f"{name!r} has shape {array.shape} or is not finite, expected {shape}")


# ------------------------------------------------------------------------------------ values in files


def _fields(made: type[Any]) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the kind of a dataclass."""
    names = [entry.name for entry in fields(made) if entry.init]
    return made, lambda value: {name: getattr(value, name) for name in names}, lambda held: made(**held)


def _sparse(held: Any) -> SparseModel:
    bounded, names, weights, intercept = held
    return SparseModel(dict.fromkeys(names, ColumnDeclaration()) | bounded, names, weights, intercept)


KINDS |= {
    "continuous": (*_fields(ContinuousGrid)[:2], lambda held: ContinuousGrid(**_check_grid(held))),
    "categorical": _fields(CategoricalGrid),
    "unused": _fields(UnusedGrid),
    "declaration": _fields(ColumnDeclaration),
    "cell format": _fields(CellFormat),
    "numeric": _fields(Numeric),
    "config": _fields(TrainingConfig),
    "plan": _fields(Plan),
    "unit": _fields(PrivacyUnit),
    "scorer": _fields(Scorer),
    "additive": _fields(AdditiveModel),
    "sparse": (
        SparseModel,
        lambda value: [
            {name: column for name, column in value.columns.items() if column.complete},
            *(value.names, value.weights, value.intercept),
        ],
        _sparse,
    ),
    "constraint": (Constraint | Constraints | Family, format_constraint, parse_constraint),
    "domain": (
        Domain,
        lambda value: [value.classes, dict(value.columns), value.other],
        lambda held: Domain(held[0], held[1], other=bool(held[2])),
    ),
    "event": (Event, Event.to_dict, event_from_dict),
    "schema": (Schema, Schema.to_dict, Schema.from_dict),
    "certificate": (Certificate, Certificate.to_dict, Certificate.from_dict),
    "statement": (PrivacyStatement, PrivacyStatement.to_dict, PrivacyStatement.from_dict),
}


def _check_grid(said: dict[str, Any]) -> dict[str, Any]:
    """Raise for the fields of a grid that no fit makes, and that would take much memory."""
    lower, upper, equal, log = (said[name] for name in ("lower", "upper", "equal_cells", "log_cells"))
    whole = type(equal) is int and type(log) is int
    if not (whole and math.isfinite(lower) and lower < upper < math.inf and 1 <= equal <= 4096 >= log >= 0):
        raise InvalidInput(f"the grid of {said['name']!r} has impossible bounds or cells")
    return said


# --------------------------------------------------------------------------------------------- SQL
#
# A score is an intercept plus one table entry per column, so a model is a sum of CASE expressions. Columns must have their
# natural type where an export runs: numbers in continuous columns, text or whole numbers in categorical columns. NULL and,
# in categorical columns, the empty text are missing values. Other spellings of missing values and numbers written as
# text are read by `ratewise` only.


def to_sql(classifier: RateConstrainedClassifier, table: str | None = None) -> str:
    """Return a fitted model of a dense table as standard SQL that needs nothing but the feature columns.

    With the name of a `table`: a query for all its columns with the scores (``score``, or ``score_0``, ``score_1``, ...
    for more than two classes) and ``prediction``. Without: the expression of the score, for two classes.

    Only ``CASE``, comparisons and ``+`` are used, and names are quoted with double quotes, as in the standard.
    Numbers are written with all digits; scores agree with `decision_function` up to rounding.
    """
    model = classifier._additive("exports")
    scores = [_score(model, output) for output in range(model.scorer.table.shape[1])]
    if table is None:
        if len(scores) > 1:
            raise InvalidInput("a model of more than two classes has several scores; give table='...'")
        return scores[0]
    if not isinstance(table, str) or not table:
        raise InvalidType(f"table must be the name of a table, got {table!r}")
    classes = [_literal(value) for value in classifier.classes_.tolist()]
    names = ["score"] if len(scores) == 1 else [f"score_{place}" for place in range(len(scores))]
    cases = [f"WHEN score > 0 THEN {classes[1]}"]
    if len(scores) > 1:
        cases = []
        for place, name in enumerate(names[:-1]):
            least = [f"{name} >= {other}" for other in names[place + 1 :]]
            cases.append(f"WHEN {' AND '.join(least)} THEN {classes[place]}")
    rest = classes[0] if len(scores) == 1 else classes[-1]
    columns = ",\n    ".join(f"{score} AS {name}" for score, name in zip(scores, names, strict=True))
    return (  # a text for people to run; names in it are quoted
        f"SELECT scored.*, CASE {' '.join(cases)} ELSE {rest} END AS prediction FROM (\n"  # noqa: S608
        f"  SELECT rows_of.*,\n    {columns}\n  FROM {_quoted(table)} AS rows_of\n) AS scored"
    )


def _score(model: AdditiveModel, output: int) -> str:
    offsets = bin_offsets(model.grids)
    parts = [_number(model.scorer.intercept[output])]
    for place, grid in enumerate(model.grids):
        values = model.scorer.table[offsets[place] : offsets[place + 1], output]
        if isinstance(grid, ContinuousGrid):
            parts.append(_continuous(grid, values))
        elif isinstance(grid, CategoricalGrid):
            parts.append(_categorical(grid, values))
    return "\n    + ".join(parts)


def _continuous(grid: ContinuousGrid, values: Floats) -> str:
    name, base = _quoted(grid.name), _number(grid.base)
    side = "<=" if grid.base == grid.lower else ">=" if grid.base == grid.upper else "="
    intervals = values[: grid.n_intervals]
    kept = np.flatnonzero(np.diff(intervals) != 0.0)  # equal neighbours are one interval
    cases = [f"WHEN {name} < {_number(grid.edges[place])} THEN {_number(intervals[place])}" for place in kept]
    pieces = f"CASE {' '.join(cases)} ELSE {_number(intervals[-1])} END" if cases else _number(intervals[-1])
    missing, at_base = _number(values[grid.missing_bin]), _number(values[grid.n_intervals])
    return f"CASE WHEN {name} IS NULL THEN {missing} WHEN {name} {side} {base} THEN {at_base} ELSE {pieces} END"


def _categorical(grid: CategoricalGrid, values: Floats) -> str:
    name = _quoted(grid.name)
    cases = [f"WHEN {name} IS NULL OR {name} = '' THEN {_number(values[grid.missing_bin])}"]
    for value, score in zip(grid.values, values, strict=False):
        text = _quoted(text_of(value), "'")
        cases.append(f"WHEN {name} = {text} THEN {_number(score)}")
    return f"CASE {' '.join(cases)} ELSE {_number(values[grid.other_bin])} END"


def _number(value: Any) -> str:
    return repr(float(value))


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, int | float) else _quoted(str(value), "'")


def _quoted(words: str, mark: str = '"') -> str:
    return mark + words.replace(mark, 2 * mark) + mark


# -------------------------------------------------------------------------------------------- ONNX

_OPSETS = {"": 18, "ai.onnx.ml": 2}
_IR_VERSION = 9


def to_onnx(classifier: RateConstrainedClassifier) -> Any:
    """Return a fitted model of a dense table as an ONNX ``ModelProto``; needs the extra ``export``.

    Inputs are one (n, 1) tensor per used feature, by name: doubles for continuous columns (NaN is missing), strings for
    categorical columns (canonical text, see `ratewise.data.cells.parse_text`; "" is missing). Outputs: ``label``,
    ``probabilities`` and ``scores``. Scores are computed in double precision, in the order of `decision_function`.
    """
    try:
        from onnx import checker, helper
    except ImportError:
        raise UnsupportedCombination(
            "to_onnx needs the package onnx; install it with: pip install 'ratewise[export]'"
        ) from None
    model, graph = classifier._additive("exports"), _Graph()
    offsets = bin_offsets(model.grids)
    score = graph.constant(model.scorer.intercept[None, :])
    inputs = []
    for place, grid in enumerate(model.grids):
        if isinstance(grid, UnusedGrid):
            continue
        continuous = isinstance(grid, ContinuousGrid)
        inputs.append(graph.tensor(grid.name, "DOUBLE" if continuous else "STRING", 1))
        bins = _continuous_bins(graph, grid) if continuous else _categorical_bins(graph, grid)
        part = graph.constant(model.scorer.table[offsets[place] : offsets[place + 1]])
        score = graph.node("Add", score, graph.node("Gather", part, graph.flat(bins)))
    if not inputs:
        raise UnsupportedCombination("the model uses no feature, so there is nothing to export")
    outputs = _outputs(graph, score, classifier.classes_)
    built = helper.make_graph(graph.nodes, "ratewise", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    made = helper.make_model(built, opset_imports=opsets, producer_name="ratewise")
    made.ir_version = _IR_VERSION
    checker.check_model(made)
    return made


class _Graph:
    """Nodes and constants of an ONNX graph, with names of their own."""

    def __init__(self) -> None:
        import onnx

        self._onnx: Any = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name, array = f"ratewise/constant_{len(self.constants)}", np.asarray(value)
        if array.dtype.kind in "OU":
            texts = [str(entry).encode() for entry in array.ravel()]
            kind = self._onnx.TensorProto.STRING
            made = self._onnx.helper.make_tensor(name, kind, array.shape, texts)
        else:
            made = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(made)
        return name

    def node(self, kind: str, *inputs: str, output: str | None = None, domain: str = "", **options: Any) -> str:
        name = output or f"ratewise/value_{len(self.nodes)}"
        made = self._onnx.helper.make_node(kind, list(inputs), [name], domain=domain, **options)
        self.nodes.append(made)
        return name

    def whole(self, value: str) -> str:
        return self.node("Cast", value, to=self._onnx.TensorProto.INT64)

    def flat(self, value: str) -> str:
        return self.node("Reshape", value, self.constant(np.array([-1])))

    def tensor(self, name: str, kind: str, *width: int) -> Any:
        """Return the description of an input or output with one row per row."""
        number = getattr(self._onnx.TensorProto, kind)
        return self._onnx.helper.make_tensor_value_info(name, number, [None, *width])


def _continuous_bins(graph: _Graph, grid: Any) -> str:
    number = graph.constant
    clipped = graph.node("Max", grid.name, number(np.float64(grid.lower)))
    clipped = graph.node("Min", clipped, number(np.float64(grid.upper)))
    above = graph.whole(graph.node("GreaterOrEqual", clipped, number(grid.edges[None, :])))
    bins = graph.node("ReduceSum", above, number(np.array([1])), keepdims=1)
    at_base = graph.node("Equal", clipped, number(np.float64(grid.base)))
    bins = graph.node("Where", at_base, number(np.int64(grid.n_intervals)), bins)
    return graph.node("Where", graph.node("IsNaN", grid.name), number(np.int64(grid.missing_bin)), bins)


def _categorical_bins(graph: _Graph, grid: Any) -> str:
    keys = {text_of(value): code for code, value in enumerate(grid.values)} | {"": grid.missing_bin}
    return graph.node(
        "LabelEncoder",
        grid.name,
        domain="ai.onnx.ml",
        keys_strings=list(keys),
        values_int64s=list(keys.values()),
        default_int64=grid.other_bin,
    )


def _outputs(graph: _Graph, score: str, classes: Any) -> list[Any]:
    graph.node("Identity", score, output="scores")
    n_outputs = 1 if len(classes) == 2 else len(classes)
    if n_outputs == 1:
        both = [graph.node("Sigmoid", graph.node("Neg", score)), graph.node("Sigmoid", score)]
        graph.node("Concat", *both, output="probabilities", axis=1)
        positive = graph.node("Greater", score, graph.constant(np.float64(0.0)))
        code = graph.flat(graph.whole(positive))
    else:
        graph.node("Softmax", score, output="probabilities", axis=1)
        code = graph.node("ArgMax", score, axis=1, keepdims=0)
    whole = classes.dtype.kind in "iub"
    names = classes.astype(np.int64) if whole else np.array([text_of(value) for value in classes.tolist()])
    graph.node("Gather", graph.constant(names), code, output="label")
    return [
        graph.tensor("label", "INT64" if whole else "STRING"),
        graph.tensor("probabilities", "DOUBLE", len(classes)),
        graph.tensor("scores", "DOUBLE", n_outputs),
    ]
