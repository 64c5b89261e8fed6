"""Files of arrays and plain fields: what is written is read back, and nothing else is accepted or run."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from ratewise._files import (
    ModelFileError,
    _compact,
    _digest,
    arrays_from_bytes,
    arrays_to_bytes,
    read_bytes,
    write_whole,
)
from ratewise.exceptions import InvalidInput, InvalidType

FIELDS = {"classes": ["no", "yes"], "b": 1, "a": [1.5, None, True]}
ARRAYS = {"theta": np.linspace(-1, 2, 7), "places": np.array([[3, -1], [0, 2]]), "used": np.array([True, False])}


@pytest.fixture
def path(tmp_path):
    write_arrays(tmp_path / "model.npz", "model", FIELDS, ARRAYS)
    return tmp_path / "model.npz"


def write_arrays(path, kind, fields, arrays):
    write_whole(path, arrays_to_bytes(kind, fields, arrays))


def read_arrays(path, kind):
    return arrays_from_bytes(read_bytes(path), kind, path)


def same(found):
    fields, arrays = found
    return (
        fields == FIELDS
        and list(fields) == list(FIELDS)
        and arrays.keys() == ARRAYS.keys()
        and all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    )


def test_fields_and_arrays_read_back_as_they_were(path):
    assert same(read_arrays(path, "model"))
    write_arrays(path.with_name("again.npz"), "model", FIELDS, ARRAYS)
    assert path.with_name("again.npz").read_bytes() == path.read_bytes()
    assert not list(path.parent.glob(".*"))


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rebuilt(path, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_every_changed_byte_of_the_content_is_noticed(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    changed = 0
    for place in sorted(rng.choice(len(whole), 60, replace=False)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            found = read_arrays(path, "model")
        except ModelFileError:
            changed += 1
        else:  # dates and the like in the archive's own directory say nothing
            assert same(found)
    assert changed > 40
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read_arrays(path, "model")


class Bomb:
    def __reduce__(self):
        import os

        return os.mkdir, ("ran",)


def test_foreign_files_are_refused_and_nothing_in_them_runs(path, monkeypatch):
    folder = path.parent
    monkeypatch.chdir(folder)
    (folder / "pickle.npz").write_bytes(pickle.dumps(Bomb()))
    np.savez(folder / "objects.npz", theta=np.array([Bomb()], dtype=object))
    np.savez(folder / "plain.npz", theta=np.zeros(3))
    (folder / "text.npz").write_text("model")
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    rebuilt(folder / "swapped.npz", {**members(path), "theta.npy": buffer.getvalue()})
    for name in ("pickle", "objects", "plain", "text", "swapped"):
        with pytest.raises(ModelFileError, match=f"{name}.npz"):
            read_arrays(folder / f"{name}.npz", "model")
    assert not (folder / "ran").exists()


def edited(path, **changes):
    """Rewrite the header with a fitting checksum, as somebody might who has read the source."""
    parts = members(path)
    header = {**json.loads(parts["header.json"]), **changes}
    header.pop("sha256")
    header["sha256"] = _digest(_compact(header))
    parts["header.json"] = _compact(header).encode()
    rebuilt(path, parts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "no file that ratewise wrote"),
        ({"kind": "history"}, "'history', expected 'model'"),
        ({"extra": 1}, "checksum does not fit"),
        ({"fields": []}, "wrong shape"),
        ({"arrays": {}}, "does not name"),
        ({"arrays": {"theta": {"dtype": "object", "shape": [4], "sha256": ""}}}, "does not name"),
    ],
)
def test_fields_are_checked_even_where_the_checksum_fits(path, changes, words):
    edited(path, **changes)
    with pytest.raises(ModelFileError, match=words):
        read_arrays(path, "model")


def test_sizes_are_checked_before_memory_is_taken(path):
    write_arrays(path, "model", {}, {"theta": np.zeros(3)})
    parts = members(path)
    huge = json.loads(parts["header.json"])["arrays"]["theta"]
    for described, words in (
        ({**huge, "shape": [1 << 39]}, "another size"),
        ({**huge, "shape": [-1]}, "unknown way"),
        ({**huge, "dtype": "object"}, "unknown way"),
        ({**huge, "sha256": "0"}, "checksum"),
        ({**huge, "dtype": "int64"}, "another type"),
    ):
        write_arrays(path, "model", {}, {"theta": np.zeros(3)})
        edited(path, arrays={"theta": described})
        with pytest.raises(ModelFileError, match=words):
            read_arrays(path, "model")
    rebuilt(path, parts, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFileError, match="compressed"):
        read_arrays(path, "model")


def test_missing_files_and_foreign_arrays():
    with pytest.raises(ModelFileError, match="cannot read"):
        read_arrays("nowhere.npz", "model")
    with pytest.raises(InvalidType, match="float64"):
        write_arrays("nowhere.npz", "model", {}, {"a": np.array(["x"])})
    assert issubclass(ModelFileError, InvalidInput)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
