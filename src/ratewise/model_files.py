"""Arrays and plain fields in one file that is safe to open, and models kept in such files.

The file is an uncompressed ``.npz`` archive: ``header.json`` first, then one ``.npy`` per array, which
``numpy.load`` reads too. Opening it runs nothing that is in it: there is no pickle, every name, type and
shape is compared with the header before an array is read, and sizes are checked before memory is taken. The
header carries a checksum of each array and of itself, so a damaged or edited file is refused. A checksum is
no signature: it shows accidents and careless edits, not who wrote the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from ratewise.accounting.book import strict_json
from ratewise.encoding import TableEncoder
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.linear import LinearModel
from ratewise.scaling import Scaling
from ratewise.schema import Schema
from ratewise.whole_files import Path, write_whole

Arrays = dict[str, npt.NDArray[Any]]

FORMAT = "ratewise-arrays"
VERSION = 1

_HEADER = "header.json"
_LARGEST_HEADER = 1 << 26
_NPY_HEADER = 1 << 12  # what precedes the numbers of an array, at most
_KINDS = {"float64": "<f8", "int64": "<i8", "bool": "|b1"}


class ModelFileError(InvalidInput):
    """A file is no file of ours, is damaged, was edited, or is of another kind or version."""


# ------------------------------------------------------------------------------ arrays in a file


def write_arrays(path: Path, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write fields and arrays to a file, whole or not at all; a file that exists is replaced in one step."""
    write_whole(path, arrays_to_bytes(kind, fields, arrays))


def arrays_to_bytes(kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Return fields and arrays of float64, int64 or bool as the content of a file.

    Parameters
    ----------
    kind : str
        What the file is; `read_arrays` must be told the same.
    fields : mapping
        Plain data that JSON can hold.
    arrays : mapping of name to array
    """
    members = {name: _npy(array) for name, array in arrays.items()}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "fields": dict(fields),
        "arrays": {name: _described(array, members[name]) for name, array in arrays.items()},
    }
    header["sha256"] = _digest(_canonical(header))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_stamped(_HEADER), _canonical(header))
        for name, content in members.items():
            archive.writestr(_stamped(f"{name}.npy"), content)
    return buffer.getvalue()


def read_arrays(path: Path, kind: str) -> tuple[dict[str, Any], Arrays]:
    """Return fields and arrays of a file that `write_arrays` wrote as this kind.

    Raises
    ------
    ModelFileError
        There is no such file, or it is not what it should be. Nothing in it was run.
    """
    return arrays_from_bytes(_read(path), kind, path)


def arrays_from_bytes(content: bytes, kind: str, path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return what `read_arrays` does, from bytes that were read already; `path` is named in messages."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            header = _header(archive, kind)
            return header["fields"], {
                name: _array(archive, name, described) for name, described in header["arrays"].items()
            }
    except ModelFileError as problem:
        raise ModelFileError(f"{os.fspath(path)!r} {problem}") from None
    except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError):
        raise ModelFileError(
            f"{os.fspath(path)!r} is no file that ratewise wrote, or it is damaged; nothing in it was run"
        ) from None


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise ModelFileError(f"cannot read {os.fspath(path)!r}: {reason}") from None


def _canonical(header: Any) -> str:
    # keys in their order: that of a schema's columns is that of the model's features
    return json.dumps(header, allow_nan=False, separators=(",", ":"))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def _stamped(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # the same bytes for the same content


def _npy(array: Any) -> bytes:
    found = np.asarray(array)
    if found.dtype.name not in _KINDS:
        raise InvalidType(f"arrays in a file must be {', '.join(_KINDS)}, got {found.dtype}")
    buffer = io.BytesIO()
    np.lib.format.write_array(
        buffer,
        np.ascontiguousarray(found, dtype=_KINDS[found.dtype.name]),
        version=(1, 0),
        allow_pickle=False,
    )
    return buffer.getvalue()


def _described(array: Any, content: bytes) -> dict[str, Any]:
    found = np.asarray(array)
    return {"dtype": found.dtype.name, "shape": list(found.shape), "sha256": _digest(content)}


def _header(archive: zipfile.ZipFile, kind: str) -> dict[str, Any]:
    listed = archive.infolist()
    if not listed or listed[0].filename != _HEADER:
        raise ModelFileError("is no file that ratewise wrote; nothing in it was run")
    if any(info.compress_type != zipfile.ZIP_STORED for info in listed):
        raise ModelFileError("holds compressed parts, which ratewise does not write; nothing in it was run")
    if listed[0].file_size > _LARGEST_HEADER:
        raise ModelFileError("has a header beyond all measure")
    header = strict_json(archive.read(_HEADER))
    expected = {"format", "version", "kind", "fields", "arrays", "sha256"}
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError("is no file that ratewise wrote; nothing in it was run")
    if header.get("version") != VERSION:
        raise ModelFileError(f"has version {header.get('version')!r}; this ratewise reads version {VERSION}")
    claimed = header.pop("sha256", None)
    if header.keys() != expected - {"sha256"} or _digest(_canonical(header)) != claimed:
        raise ModelFileError("was edited or is damaged: its checksum does not fit; take the original file")
    if header["kind"] != kind:
        raise ModelFileError(f"holds {str(header['kind'])[:40]!r}, expected {kind!r}")
    _check_members(listed, header)
    return header


def _check_members(listed: list[zipfile.ZipInfo], header: Mapping[str, Any]) -> None:
    arrays = header["arrays"]
    if not isinstance(arrays, dict) or not isinstance(header["fields"], dict):
        raise ModelFileError("has a header of the wrong shape")
    if sorted(info.filename for info in listed[1:]) != sorted(f"{name}.npy" for name in arrays):
        raise ModelFileError("holds parts that its header does not name; take the original file")
    sizes = {info.filename: info.file_size for info in listed}
    for name, described in arrays.items():
        said: dict[str, Any] = described if isinstance(described, dict) else {}
        shape: Any = said.get("shape")
        known = str(said.get("dtype")) in _KINDS and isinstance(shape, list)
        if not known or not all(type(side) is int and 0 <= side < 1 << 40 for side in shape):
            raise ModelFileError(f"describes the array {name!r} in an unknown way")
        expected = math.prod(shape) * np.dtype(described["dtype"]).itemsize
        if not expected <= sizes[f"{name}.npy"] <= expected + _NPY_HEADER:
            raise ModelFileError(f"holds an array {name!r} of another size than its header says")


def _array(archive: zipfile.ZipFile, name: str, described: Mapping[str, Any]) -> npt.NDArray[Any]:
    content = archive.read(f"{name}.npy")
    if _digest(content) != described["sha256"]:
        raise ModelFileError(f"was edited or is damaged: the checksum of {name!r} does not fit")
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.str != _KINDS[described["dtype"]] or list(array.shape) != described["shape"]:
        raise ModelFileError(f"holds an array {name!r} of another type or shape than its header says")
    return array


# ------------------------------------------------------------------------------------- a model

_MODEL_FIELDS = {"schema", "intercept", "row_norm", "origin"}
SCALING = ("lower", "upper", "mean", "deviation", "curved", "bend_lower", "bend_upper")


@dataclass(frozen=True, eq=False)
class TableModel:
    """A trained model of a table: the schema that encodes rows, and how their features are scored.

    Everything in it is released or public. It predicts, and can be written to a file and read back.

    Parameters
    ----------
    schema : Schema
        With bounds for every number.
    model : LinearModel
    theta : array
        The parameters.
    """

    schema: Schema
    model: LinearModel
    theta: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        scaling = self.model.scaling
        if scaling is not None and scaling.n_features != self.schema.n_features:
            raise ModelFileError("the scaling does not fit the schema")
        prepared = self.schema.n_features if scaling is None else scaling.n_prepared
        if self.model.n_features != prepared:
            raise ModelFileError(
                f"the model has {self.model.n_features} features, its schema and curves make {prepared}"
            )
        if self.model.n_classes != len(self.schema.classes):
            raise ModelFileError("the model and its schema differ in the number of classes")
        if self.theta.shape != (self.model.n_parameters,) or not np.all(np.isfinite(self.theta)):
            raise ModelFileError(f"theta must be {self.model.n_parameters} finite numbers")

    @classmethod
    def of(cls, classifier: Any) -> TableModel:
        """Return what a fitted `TableClassifier` predicts with, ready to be written to a file."""
        check_is_fitted(classifier)
        inner = classifier.classifier_
        return cls(classifier.schema_, inner._model, inner._theta)

    def predict(self, frame: Any, unknown: str = "error") -> npt.NDArray[Any]:
        """Return the most probable class of each row; label and group columns are not needed.

        `unknown` is what becomes of values that the schema does not list, "error" or "zeros".
        """
        codes = self.model.predictions(self._encoded(frame, unknown), self.theta)
        classes = np.empty(len(self.schema.classes), dtype=object)
        classes[:] = self.schema.classes
        return classes[codes]

    def predict_proba(self, frame: Any, unknown: str = "error") -> npt.NDArray[np.float64]:
        """Return the probability of each class, in the order of ``schema.classes``."""
        return self.model.probabilities(self._encoded(frame, unknown), self.theta)

    def _encoded(self, frame: Any, unknown: str) -> Any:
        return TableEncoder(self.schema)._encode(frame, unknown=unknown)

    def save(self, path: Path) -> None:
        """Write the model to a file, in one step."""
        write_whole(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of the model's file."""
        scaling = self.model.scaling
        fields = {
            "schema": self.schema.to_dict(),
            "intercept": self.model.intercept,
            "row_norm": self.model.row_norm,
            "origin": None if scaling is None else scaling.origin,
        }
        return arrays_to_bytes("model", fields, {"theta": self.theta, **scaling_arrays(scaling)})

    @classmethod
    def load(cls, path: Path) -> TableModel:
        """Read a model that `save` wrote; a foreign, damaged or edited file is refused."""
        return cls.from_bytes(_read(path), path)

    @classmethod
    def from_bytes(cls, content: bytes, path: Path = "model.npz") -> TableModel:
        """Read what `to_bytes` returned; `path` is named in messages."""
        fields, arrays = arrays_from_bytes(content, "model", path)
        try:
            return cls._of(fields, arrays)
        except (InvalidInput, InvalidType) as problem:
            raise ModelFileError(f"{os.fspath(path)!r} holds no sound model: {problem}") from None

    @classmethod
    def _of(cls, fields: dict[str, Any], arrays: Arrays) -> TableModel:
        if fields.keys() != _MODEL_FIELDS or not {"theta"} <= arrays.keys() <= {"theta", *SCALING}:
            raise ModelFileError("fields are missing or unknown")
        if not isinstance(fields["intercept"], bool):
            raise ModelFileError("intercept must be true or false")
        row_norm = fields["row_norm"]
        if row_norm is not None and not (type(row_norm) in (int, float) and row_norm > 0):
            raise ModelFileError("row_norm must be a number above 0, or nothing")
        if any(array.dtype != (np.int64 if n == "curved" else np.float64) for n, array in arrays.items()):
            raise ModelFileError("the arrays of a model must be float64, places of features int64")
        schema, scaling = Schema.from_dict(fields["schema"]), scaling_of(fields["origin"], arrays)
        model = LinearModel(
            schema.n_features if scaling is None else scaling.n_prepared,
            len(schema.classes),
            fields["intercept"],
            row_norm=row_norm,
            scaling=scaling,
        )
        return cls(schema, model, arrays["theta"])


def scaling_arrays(scaling: Scaling | None) -> Arrays:
    """Return the arrays of a preparation of features, by name."""
    found = {} if scaling is None else {name: getattr(scaling, name) for name in SCALING}
    return {
        name: value.astype(np.int64) if name == "curved" else value
        for name, value in found.items()
        if value is not None
    }


def scaling_of(origin: Any, arrays: Mapping[str, Any]) -> Scaling | None:
    """Return the preparation of features that a file describes; None if it describes none."""
    given = {name: arrays[name] for name in SCALING if name in arrays}
    if origin is None:
        if given:
            raise ModelFileError("a scaling without an origin")
        return None
    return Scaling(**given, origin=origin)
