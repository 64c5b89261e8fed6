"""Fitted classifiers in files that are safe to open, and additive models as SQL and ONNX.

A file holds arrays and plain data with checksums (`ratewise._files`). Reading it runs nothing that it
contains. Everything in it is released or public; the seed, the callback and the ledger of the parameters are
not written, because a seed is secret and a ledger goes on elsewhere. A restored `ledger_` can only be read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ratewise._files import (
    Arrays,
    ModelFileError,
    Path,
    arrays_from_bytes,
    arrays_to_bytes,
    read_bytes,
    write_whole,
)
from ratewise.accounting import Ledger, PrivacyStatement, PrivacyUnit
from ratewise.accounting.events import event_from_dict
from ratewise.constraints.compiled import as_constraints, compile_constraints
from ratewise.constraints.domain import Domain, Numeric
from ratewise.constraints.text import format_constraint, parse_constraint
from ratewise.data.cells import CellFormat, text_of
from ratewise.data.schema import Schema
from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.metrics.verdicts import Certificate
from ratewise.models.additive import Scorer
from ratewise.models.fitted import AdditiveModel, SparseModel
from ratewise.preprocessing.basis import bin_offsets
from ratewise.preprocessing.discovery import ColumnDeclaration
from ratewise.preprocessing.grids import CategoricalGrid, ContinuousGrid, Grid, UnusedGrid
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import Plan

if TYPE_CHECKING:
    from ratewise.estimators.classifier import RateConstrainedClassifier

Floats = npt.NDArray[np.float64]

KIND = "classifier"
_HISTORY = "history."
UNWRITTEN = ("ledger", "callback", "random_state")
_OBJECTS = ("config", "schema", "constraints")
_READ_ONLY = "this ledger was read from the file of a model and can only be read; go on with the original"


def save(classifier: RateConstrainedClassifier, path: Path) -> None:
    """Write a fitted classifier to a file, in one step; a file that exists is replaced."""
    write_whole(path, to_bytes(classifier))


def load(path: Path) -> RateConstrainedClassifier:
    """Read a classifier that `RateConstrainedClassifier.save` wrote; its predictions are bit-identical.

    Raises
    ------
    ModelFileError
        There is no such file, or it is foreign, damaged or edited. Nothing in it was run.
    """
    return from_bytes(read_bytes(path), path)


def to_bytes(classifier: RateConstrainedClassifier) -> bytes:
    """Return the content of the file of a fitted classifier."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(classifier)
    model, statement, arrays = classifier.model_, classifier.privacy_, {}
    described: dict[str, Any] = {"kind": "constant"}
    if isinstance(model, AdditiveModel):
        described = {"kind": "additive", "grids": [grid_to_dict(grid) for grid in model.grids]}
        arrays = {
            "table": model.scorer.table,
            "intercept": model.scorer.intercept,
            "bin_shares": model.bin_shares,
            "bin_noise": model.bin_noise,
        }
    elif isinstance(model, SparseModel):
        bounded = {n: _encode(c) for n, c in model.columns.items() if c.complete}
        described = {"kind": "sparse", "columns": bounded}
        arrays = {"weights": model.weights, "intercept": model.intercept}
    arrays |= {f"{_HISTORY}{name}": values for name, values in classifier.history_.items()}
    arrays["multipliers"] = classifier.multipliers_
    certificate = classifier.certificate_
    described |= {
        "parameters": _parameters(classifier),
        "classes": [_scalar(value) for value in classifier.classes_.tolist()],
        "features": list(classifier._feature_names),
        "named": hasattr(classifier, "feature_names_in_"),
        "steps": classifier.n_iter_,
        "unused": dict(classifier.unused_features_),
        "domain": _domain(classifier),
        "certificate": None if certificate is None else certificate.to_dict(),
        "statement": statement.to_dict(),
        "ledger": classifier.ledger_.to_json(),
        "plan": _plan(classifier.plan_),
    }
    return arrays_to_bytes(KIND, _finite(described), arrays)


def from_bytes(content: bytes, path: Path = "model.ratewise") -> RateConstrainedClassifier:
    """Return the classifier that `to_bytes` wrote; `path` is named in messages."""
    said, arrays = arrays_from_bytes(content, KIND, path)
    try:
        return _restored(_infinite(said), arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelFileError(f"{os.fspath(path)!r} holds no sound classifier: {problem}") from None


def _restored(said: Mapping[str, Any], arrays: Arrays) -> RateConstrainedClassifier:
    from ratewise.estimators.classifier import RateConstrainedClassifier, class_array

    found = RateConstrainedClassifier(**_parameters_from(said["parameters"]))
    names = tuple(map(str, said["features"]))
    found._feature_names, found.n_features_in_ = names, len(names)
    if said["named"]:
        found.feature_names_in_ = np.array(names, dtype=object)
    found.classes_ = class_array(tuple(said["classes"]))
    found.model_ = _model(said, names, arrays)
    found.n_iter_ = int(said["steps"])
    found.unused_features_ = {str(name): str(reason) for name, reason in said["unused"].items()}
    found.multipliers_ = arrays["multipliers"]
    found.history_ = {n.removeprefix(_HISTORY): a for n, a in arrays.items() if n.startswith(_HISTORY)}
    found.constraints_ = None
    if said["domain"] is not None:
        columns = {n: Numeric() if v is None else tuple(v) for n, v in said["domain"]["columns"].items()}
        domain = Domain(tuple(said["domain"]["classes"]), columns, other=bool(said["domain"]["other"]))
        found.constraints_ = compile_constraints(found.constraints, domain, allow_empty=True)
    certificate = said["certificate"]
    found.certificate_ = None if certificate is None else Certificate.from_dict(certificate)
    found.privacy_ = PrivacyStatement.from_dict(said["statement"])
    found.ledger_ = Ledger.read_only(said["ledger"], _READ_ONLY)
    found.plan_ = _plan_from(said["plan"])
    return found


def _model(said: Mapping[str, Any], names: tuple[str, ...], arrays: Arrays) -> Any:
    outputs = 1 if len(said["classes"]) == 2 else len(said["classes"])
    if not all(np.all(np.isfinite(array)) for name, array in arrays.items() if "." not in name):
        raise ModelFileError("it holds numbers that are not finite")
    if said["kind"] == "constant":
        return None
    if said["kind"] == "sparse":
        columns = dict.fromkeys(names, ColumnDeclaration()) | {
            name: _decode(declared) for name, declared in said["columns"].items()
        }
        _shapes(arrays, weights=(outputs, len(names)), intercept=(outputs,))
        return SparseModel(columns, names, arrays["weights"], arrays["intercept"])
    if said["kind"] != "additive":
        raise ModelFileError(f"{said['kind']!r} is no kind of model")
    grids = tuple(grid_from_dict(grid) for grid in said["grids"])
    if tuple(grid.name for grid in grids) != names:
        raise ModelFileError("its grids do not fit its features")
    bins = sum(grid.n_bins for grid in grids)
    _shapes(arrays, table=(bins, outputs), intercept=(outputs,), bin_shares=(bins,), bin_noise=(bins,))
    scorer = Scorer(arrays["table"], arrays["intercept"])
    return AdditiveModel(grids, scorer, arrays["bin_shares"], arrays["bin_noise"])


def _shapes(arrays: Arrays, **expected: tuple[int, ...]) -> None:
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ModelFileError(f"{name!r} has shape {arrays[name].shape}, expected {shape}")


# ------------------------------------------------------------------------------------------- parts


_KINDS: dict[str, type[Any]] = {
    "continuous": ContinuousGrid,
    "categorical": CategoricalGrid,
    "unused": UnusedGrid,
    "declaration": ColumnDeclaration,
    "cell format": CellFormat,
    "numeric": Numeric,
}


def grid_to_dict(grid: Grid) -> dict[str, Any]:
    """Return a grid as plain data."""
    said: dict[str, Any] = _encode(grid)
    return said


def grid_from_dict(said: Mapping[str, Any]) -> Grid:
    """Return the grid that `grid_to_dict` described."""
    grid = _decode(said)
    if not isinstance(grid, Grid) or not isinstance(grid.name, str):
        raise InvalidInput(f"{said.get('kind')!r} is no kind of grid")
    return grid


def _parameters(classifier: RateConstrainedClassifier) -> dict[str, Any]:
    given = classifier.get_params(deep=False)
    said = {name: _encode(given[name]) for name in given if name not in (*UNWRITTEN, *_OBJECTS)}
    config, schema = given["config"], given["schema"]
    said["config"] = None if config is None else config.to_dict()
    said["schema"] = None if schema is None else schema.to_dict()
    listed = isinstance(given["constraints"], list | tuple)
    texts = [format_constraint(one) for one in as_constraints(given["constraints"])]
    said["constraints"] = texts if listed else texts[0] if texts else None
    return said


def _parameters_from(said: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: _decode(value) for name, value in said.items() if name not in _OBJECTS}
    config, schema, texts = (said[name] for name in _OBJECTS)
    given["config"] = None if config is None else TrainingConfig(**config)
    given["schema"] = None if schema is None else Schema.from_dict(schema)
    if texts is not None:
        listed = isinstance(texts, list)
        given["constraints"] = [parse_constraint(t) for t in texts] if listed else parse_constraint(texts)
    return given


def _encode(value: Any) -> Any:
    """Return plain data: scalars and lists as they are, all else as a mapping with its kind."""
    if isinstance(value, np.ndarray):
        return {"array": _encode(value.tolist()), "dtype": value.dtype.str}
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry) for entry in value]}
    if isinstance(value, list):
        return [_encode(entry) for entry in value]
    if isinstance(value, Mapping):
        return {"mapping": [[_scalar(key), _encode(entry)] for key, entry in value.items()]}
    for kind, made in _KINDS.items():
        if isinstance(value, made):
            given = [entry.name for entry in fields(made) if entry.init]
            return {"kind": kind, **{name: _encode(getattr(value, name)) for name in given}}
    return _scalar(value)


def _decode(said: Any) -> Any:
    """Undo `_encode`."""
    if isinstance(said, list):
        return [_decode(entry) for entry in said]
    if not isinstance(said, dict):
        return said
    if "array" in said:
        kind = np.dtype(str(said["dtype"]))
        return np.array(_decode(said["array"]), dtype=kind)
    if "tuple" in said:
        return tuple(_decode(entry) for entry in said["tuple"])
    if "mapping" in said:
        return {key: _decode(entry) for key, entry in said["mapping"]}
    if said["kind"] == "continuous":
        _check_grid(said)
    return _KINDS[said["kind"]](**{name: _decode(entry) for name, entry in said.items() if name != "kind"})


def _check_grid(said: Mapping[str, Any]) -> None:
    """Raise for a grid that no fit makes, and that would take much memory."""
    lower, upper, equal, log = (said[name] for name in ("lower", "upper", "equal_cells", "log_cells"))
    whole = type(equal) is int and type(log) is int
    if not (whole and math.isfinite(lower) and lower < upper < math.inf and 1 <= equal <= 4096 >= log >= 0):
        raise InvalidInput(f"the grid of {said['name']!r} has impossible bounds or cells")


def _domain(classifier: RateConstrainedClassifier) -> dict[str, Any] | None:
    compiled = classifier.constraints_
    if compiled is None:
        return None
    domain = compiled.domain
    again = compile_constraints(as_constraints(classifier.constraints), domain, allow_empty=True)
    if again.names != compiled.names:
        raise InvalidInput(
            "the constraints were changed after fit; fit again, or set them back, before saving"
        )
    return {
        "classes": [_scalar(value) for value in domain.classes],
        "columns": {
            name: None if isinstance(values, Numeric) else [_scalar(value) for value in values]
            for name, values in domain.columns.items()
        },
        "other": domain.other,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    said = {entry.name: getattr(plan, entry.name) for entry in fields(plan)}
    events = {name: event.to_dict() for name, event in plan.events.items()}
    return said | {"events": events, "unit": plan.unit.to_dict()}


def _plan_from(said: Mapping[str, Any]) -> Plan:
    events = {str(name): event_from_dict(event) for name, event in said["events"].items()}
    return Plan(**{**said, "events": events, "unit": PrivacyUnit.from_dict(said["unit"])})


def _scalar(value: Any) -> Any:
    """Return a value that JSON holds without loss, or raise."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or type(plain) in (bool, int, float, str):
        return plain
    raise InvalidType(
        f"a value of type {type(value).__name__} cannot be written to a model file, which holds texts, numbers and "
        "truth values; keep the classifier with joblib or skops instead"
    )


def _finite(value: Any) -> Any:
    """Replace the numbers that JSON lacks by a mark."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def _infinite(value: Any) -> Any:
    """Undo `_finite`."""
    if isinstance(value, dict):
        if value.keys() == {"number"} and value["number"] in ("nan", "inf", "-inf"):
            return float(value["number"])
        return {key: _infinite(entry) for key, entry in value.items()}
    return [_infinite(entry) for entry in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------ SQL and ONNX
#
# A score is an intercept plus one table entry per column, so a model is a sum of CASE expressions. Columns must have their
# natural type where an export runs: numbers in continuous columns, text or whole numbers in categorical columns. NULL and,
# in categorical columns, the empty text are missing values. Other spellings of missing values and numbers written as
# text are read by `ratewise` only.

_OPSET = 18
_ML_OPSET = 2
_IR_VERSION = 9


def _additive(classifier: RateConstrainedClassifier) -> AdditiveModel:
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(classifier)
    if not isinstance(classifier.model_, AdditiveModel):
        raise UnsupportedCombination(
            "only models of dense tables with two classes or more can be exported; this one is "
            f"{'constant' if classifier.model_ is None else 'a model of a sparse matrix'}"
        )
    return classifier.model_


# --------------------------------------------------------------------------------------------- SQL


def to_sql(classifier: RateConstrainedClassifier, table: str | None = None) -> str:
    """Return a fitted model as standard SQL that needs nothing but the feature columns.

    Parameters
    ----------
    classifier : RateConstrainedClassifier
        With a model of a dense table.
    table : str, optional
        With a name: a query for all columns of that table with the scores (``score``, or ``score_0``, ``score_1``, ...
        for more than two classes) and ``prediction``. Without: the expression of the score, for two classes.

    Notes
    -----
    Only ``CASE``, comparisons and ``+`` are used, and names are quoted with double quotes, as in the standard.
    Numbers are written with all digits; scores agree with `decision_function` up to rounding.
    """
    model = _additive(classifier)
    scores = [_score(model, output) for output in range(model.scorer.table.shape[1])]
    if table is None:
        if len(scores) > 1:
            raise InvalidInput("a model of more than two classes has several scores; give table='...'")
        return scores[0]
    if not isinstance(table, str) or not table:
        raise InvalidType(f"table must be the name of a table, got {table!r}")
    classes = [_literal(value) for value in classifier.classes_.tolist()]
    names = ["score"] if len(scores) == 1 else [f"score_{place}" for place in range(len(scores))]
    if len(scores) == 1:
        prediction = f"CASE WHEN score > 0 THEN {classes[1]} ELSE {classes[0]} END"
    else:
        cases = []
        for place, name in enumerate(names[:-1]):
            least = [f"{name} >= {other}" for other in names[place + 1 :]]
            cases.append(f"WHEN {' AND '.join(least)} THEN {classes[place]}")
        prediction = f"CASE {' '.join(cases)} ELSE {classes[-1]} END"
    columns = ",\n    ".join(f"{score} AS {name}" for score, name in zip(scores, names, strict=True))
    return (  # a text for people to run; names in it are quoted
        f"SELECT scored.*, {prediction} AS prediction FROM (\n  SELECT rows_of.*,\n    {columns}\n"  # noqa: S608
        f"  FROM {_quoted(table)} AS rows_of\n) AS scored"
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
    pieces = _search(name, grid.edges[kept], intervals[np.append(kept, len(intervals) - 1)])
    missing, at_base = _number(values[grid.missing_bin]), _number(values[grid.base_bin])
    return (
        f"CASE WHEN {name} IS NULL THEN {missing} WHEN {name} {side} {base} THEN {at_base} ELSE {pieces} END"
    )


def _search(name: str, edges: Floats, values: Floats) -> str:
    """Return nested comparisons that find the interval by bisection."""
    if not len(edges):
        return _number(values[0])
    middle = len(edges) // 2
    below = _search(name, edges[:middle], values[: middle + 1])
    above = _search(name, edges[middle + 1 :], values[middle + 1 :])
    return f"CASE WHEN {name} < {_number(edges[middle])} THEN {below} ELSE {above} END"


def _categorical(grid: CategoricalGrid, values: Floats) -> str:
    name = _quoted(grid.name)
    cases = "".join(
        f" WHEN {name} = {_text(text_of(value))} THEN {_number(values[code])}"
        for code, value in enumerate(grid.values)
    )
    missing = f"WHEN {name} IS NULL OR {name} = '' THEN {_number(values[grid.missing_bin])}"
    return f"CASE {missing}{cases} ELSE {_number(values[grid.other_bin])} END"


def _number(value: Any) -> str:
    return repr(float(value))


def _text(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, int | float) else _text(str(value))


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


# -------------------------------------------------------------------------------------------- ONNX


def to_onnx(classifier: RateConstrainedClassifier) -> Any:
    """Return a fitted model of a dense table as an ONNX ``ModelProto``; needs the extra ``export``.

    Inputs are one (n, 1) tensor per used feature, by name: doubles for continuous columns (NaN is missing), strings for
    categorical columns (canonical text, see `ratewise.data.cells.parse_text`; "" is missing). Outputs: ``label``,
    ``probabilities`` and ``scores``. Scores are computed in double precision, in the order of `decision_function`.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise UnsupportedCombination(
            "to_onnx needs the package onnx; install it with: pip install 'ratewise[export]'"
        ) from None
    model, graph = _additive(classifier), _Graph(helper, numpy_helper)
    offsets = bin_offsets(model.grids)
    inputs = []
    score = graph.constant(model.scorer.intercept[None, :])
    for place, grid in enumerate(model.grids):
        part = model.scorer.table[offsets[place] : offsets[place + 1]]
        if isinstance(grid, ContinuousGrid):
            inputs.append(helper.make_tensor_value_info(grid.name, TensorProto.DOUBLE, [None, 1]))
            bins = _continuous_bins(graph, grid)
        elif isinstance(grid, CategoricalGrid):
            inputs.append(helper.make_tensor_value_info(grid.name, TensorProto.STRING, [None, 1]))
            bins = _categorical_bins(graph, grid)
        else:
            continue
        flat = graph.node("Reshape", bins, graph.constant(np.array([-1])))
        score = graph.node("Add", score, graph.node("Gather", graph.constant(part), flat))
    if not inputs:
        raise UnsupportedCombination("the model uses no feature, so there is nothing to export")
    outputs = _outputs(graph, score, classifier.classes_, TensorProto)
    built = helper.make_graph(graph.nodes, "ratewise", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    made = helper.make_model(built, opset_imports=opsets, producer_name="ratewise")
    made.ir_version = _IR_VERSION
    checker.check_model(made)
    return made


class _Graph:
    """Nodes and constants of an ONNX graph, with names of their own."""

    def __init__(self, helper: Any, arrays: Any) -> None:
        self._helper, self._arrays = helper, arrays
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"ratewise/constant_{len(self.constants)}"
        array = np.asarray(value)
        if array.dtype.kind in "OU":
            made = self._helper.make_tensor(
                name, self._helper.TensorProto.STRING, array.shape, [str(v).encode() for v in array.ravel()]
            )
        else:
            made = self._arrays.from_array(np.ascontiguousarray(array), name)
        self.constants.append(made)
        return name

    def node(
        self, kind: str, *inputs: str, output: str | None = None, domain: str = "", **options: Any
    ) -> str:
        name = output or f"ratewise/value_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, list(inputs), [name], domain=domain, **options))
        return name


def _continuous_bins(graph: _Graph, grid: ContinuousGrid) -> str:
    number = graph.constant
    clipped = graph.node("Max", grid.name, number(np.float64(grid.lower)))
    clipped = graph.node("Min", clipped, number(np.float64(grid.upper)))
    above = graph.node("GreaterOrEqual", clipped, number(grid.edges[None, :]))
    above = graph.node("Cast", above, to=7)  # int64
    bins = graph.node("ReduceSum", above, number(np.array([1])), keepdims=1)
    at_base = graph.node("Equal", clipped, number(np.float64(grid.base)))
    bins = graph.node("Where", at_base, number(np.int64(grid.base_bin)), bins)
    return graph.node("Where", graph.node("IsNaN", grid.name), number(np.int64(grid.missing_bin)), bins)


def _categorical_bins(graph: _Graph, grid: CategoricalGrid) -> str:
    keys = {text_of(value): code for code, value in enumerate(grid.values)} | {"": grid.missing_bin}
    return graph.node(
        "LabelEncoder",
        grid.name,
        domain="ai.onnx.ml",
        keys_strings=list(keys),
        values_int64s=list(keys.values()),
        default_int64=grid.other_bin,
    )


def _outputs(graph: _Graph, score: str, classes: Any, types: Any) -> list[Any]:
    helper = graph._helper
    graph.node("Identity", score, output="scores")
    n_outputs = 1 if len(classes) == 2 else len(classes)
    if n_outputs == 1:
        second = graph.node("Sigmoid", score)
        first = graph.node("Sigmoid", graph.node("Neg", score))
        graph.node("Concat", first, second, output="probabilities", axis=1)
        positive = graph.node("Greater", score, graph.constant(np.float64(0.0)))
        code = graph.node("Reshape", graph.node("Cast", positive, to=7), graph.constant(np.array([-1])))
    else:
        graph.node("Softmax", score, output="probabilities", axis=1)
        code = graph.node("ArgMax", score, axis=1, keepdims=0)
    whole = classes.dtype.kind in "iub"
    names = classes.astype(np.int64) if whole else np.array([text_of(value) for value in classes.tolist()])
    graph.node("Gather", graph.constant(names), code, output="label")
    return [
        helper.make_tensor_value_info("label", types.INT64 if whole else types.STRING, [None]),
        helper.make_tensor_value_info("probabilities", types.DOUBLE, [None, len(classes)]),
        helper.make_tensor_value_info("scores", types.DOUBLE, [None, n_outputs]),
    ]
