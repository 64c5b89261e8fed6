"""Files of models and checkpoints: what is written is read back, and nothing else is accepted or run."""

import hashlib
import json
import pickle

import numpy as np
import pytest

from ratewise._files import ModelFileError, read_bytes, state_from_bytes, state_to_bytes, write_whole
from ratewise.exceptions import InvalidInput, InvalidType

STATE = {
    "classes": ["no", "yes"],
    "b": 1,
    "a": [1.5, None, True, float("inf")],
    "theta": np.linspace(-1, 2, 7),
    "places": np.array([[3, -1], [0, 2]]),
    "used": np.array([True, False]),
    "none": np.zeros((0, 3), dtype=np.float32),
}


@pytest.fixture
def path(tmp_path):
    write_whole(tmp_path / "model", state_to_bytes("model", STATE))
    return tmp_path / "model"


def read(path, kind="model"):
    return state_from_bytes(read_bytes(path), kind, path)


def test_states_read_back_as_they_were(path):
    found = read(path)
    assert list(found) == list(STATE)
    for name, value in STATE.items():
        if isinstance(value, np.ndarray):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert np.array_equal(found[name], value)
        else:
            assert found[name] == value
    assert state_to_bytes("model", STATE) == path.read_bytes()
    assert not list(path.parent.glob(".*"))


def test_every_changed_byte_is_noticed(path):
    whole = path.read_bytes()
    for place in np.random.default_rng(0).choice(len(whole), 60, replace=False):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(ModelFileError):
            read(path)
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read(path)


class Bomb:
    def __reduce__(self):
        import os

        return os.mkdir, ("ran",)


def test_foreign_files_are_refused_and_nothing_in_them_runs(path, monkeypatch):
    folder = path.parent
    monkeypatch.chdir(folder)
    (folder / "pickle").write_bytes(pickle.dumps(Bomb()))
    np.savez(folder / "plain.npz", theta=np.zeros(3))
    (folder / "text").write_text("model")
    for name in ("pickle", "plain.npz", "text"):
        with pytest.raises(ModelFileError, match=f"{name}' is no file that ratewise wrote"):
            read(folder / name)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "no file that ratewise wrote"),
        ({"kind": "history"}, "'history', expected 'model'"),
        ({"extra": 1}, "checksum does not fit"),
        ({"state": 3}, "no sound model"),
        ({"state": {"shell": "rm"}}, "no sound model"),
        ({"arrays": {}}, "unknown way"),
        ({"arrays": []}, "another size"),
        ({"arrays": [["float64", [1 << 39]]]}, "another size"),
        ({"arrays": [["float64", [-1]]]}, "unknown way"),
        ({"arrays": [["object", [3]]]}, "unknown way"),
        ({"arrays": [3]}, "unknown way"),
        ({"arrays": [["float64"]]}, "unknown way"),
        ({"arrays": [[["f"], [2]]]}, "unknown way"),
    ],
)
def test_fields_are_checked_even_where_the_checksum_fits(path, changes, words):
    """The header was rewritten by somebody who has read the source."""
    _, header, numbers = path.read_bytes().split(b"\n", 2)
    rest = json.dumps({**json.loads(header), **changes}).encode() + b"\n" + numbers
    path.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
    with pytest.raises(ModelFileError, match=words):
        read(path)


def test_missing_files_and_foreign_values():
    with pytest.raises(ModelFileError, match="cannot read"):
        read("nowhere")
    with pytest.raises(InvalidType, match="a model cannot hold object"):
        state_to_bytes("model", {"a": object()})
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
