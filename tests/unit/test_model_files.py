import io
import json
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.linear import LinearModel
from ratewise.model_files import ModelFileError, TableModel, read_arrays, scaling_arrays, write_arrays
from ratewise.scaling import Scaling
from ratewise.schema import Category, Number, Schema
from ratewise.whole_files import write_whole

SCHEMA = Schema(
    {"job": Category(["sales", "clerk"]), "age": Number(17, 90)},  # neither sorted
    label="repaid",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)
FRAME = {"age": [20, 50, 80.5], "job": ["sales", "clerk", "sales"]}


def a_model(classes=2):
    schema = SCHEMA if classes == 2 else SCHEMA._with(classes=[0, 1, 2])
    scaling = Scaling(mean=np.array([0.5, 0.25, 0.1]), deviation=np.array([0.2, 0.5, 0.3]))
    model = LinearModel(3, classes, True, row_norm=5.0, scaling=scaling)
    theta = np.linspace(-1, 2, model.n_parameters)
    return TableModel(schema, model, theta)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_reads_back_as_it_was(tmp_path, classes):
    model = a_model(classes)
    model.save(tmp_path / "model.npz")
    again = TableModel.load(tmp_path / "model.npz")
    assert again.schema == model.schema
    np.testing.assert_array_equal(again.predict_proba(FRAME), model.predict_proba(FRAME))
    assert again.predict(FRAME).tolist() == model.predict(FRAME).tolist()
    again.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "model.npz").read_bytes()
    assert not list(tmp_path.glob(".*"))


def a_curved_model(**changes):
    given = {"lower": np.zeros(3), "upper": np.ones(3), "curved": np.array([0])}
    scaling = Scaling(**{**given, "mean": np.full(4, 0.3), "deviation": np.full(4, 0.5), **changes})
    model = LinearModel(scaling.n_prepared, 2, True, scaling=scaling)
    return TableModel(SCHEMA, model, np.linspace(-1, 2, model.n_parameters))


def test_curves_are_kept(tmp_path):
    model = a_curved_model()
    model.save(tmp_path / "model.npz")
    again = TableModel.load(tmp_path / "model.npz")
    assert again.model.scaling.curved.tolist() == [0]
    np.testing.assert_array_equal(again.predict_proba(FRAME), model.predict_proba(FRAME))
    straight = a_curved_model(curved=None, mean=np.full(3, 0.3), deviation=np.full(3, 0.5))
    assert straight.model.n_parameters == model.model.n_parameters - 1
    assert "curved" not in json.loads(_members_of(straight)["header.json"])["arrays"]


def _members_of(model):
    with zipfile.ZipFile(io.BytesIO(model.to_bytes())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("curved", "words"),
    [
        (np.array([3]), "places 0 to 2"),
        (np.array([-1]), "places 0 to 2"),
        (np.array([0, 1]), "one number per feature"),
        (np.array([0.0]), "places of features int64"),
        (np.array([[0]]), "places 0 to 2|one number"),
    ],
)
def test_curves_that_do_not_fit_are_refused(tmp_path, curved, words):
    model = a_curved_model()
    fields = json.loads(_members_of(model)["header.json"])["fields"]
    arrays = {**scaling_arrays(model.model.scaling), "theta": model.theta, "curved": curved}
    write_arrays(tmp_path / "model.npz", "model", fields, arrays)
    with pytest.raises(ModelFileError, match=words):
        TableModel.load(tmp_path / "model.npz")


def test_another_process_predicts_the_same(tmp_path):
    a_model().save(tmp_path / "model.npz")
    script = (
        "import sys\nfrom ratewise.model_files import TableModel\n"
        f"print(TableModel.load(sys.argv[1]).predict_proba({FRAME!r}).tolist())"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.npz")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(out.stdout) == a_model().predict_proba(FRAME).tolist()


def test_a_classifier_trained_in_python_is_kept_without_pickle(tmp_path):
    from ratewise.table_model import TableClassifier

    rng = np.random.default_rng(0)
    frame = {"job": rng.choice(["sales", "clerk"], 3000), "age": rng.uniform(17, 90, 3000)}
    label = np.where(frame["age"] + 20 * (frame["job"] == "sales") > 60, "yes", "no")
    clf = TableClassifier(SCHEMA, epsilon=2.0, steps=20, random_state=0).fit({**frame, "repaid": label})
    TableModel.of(clf).save(tmp_path / "model.npz")
    again = TableModel.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(frame), clf.predict_proba(frame))
    assert again.predict(frame).tolist() == clf.predict(frame).tolist()


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rebuilt(path, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_every_changed_byte_of_the_content_is_noticed(tmp_path):
    path = tmp_path / "model.npz"
    a_model().save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    changed = 0
    for place in sorted(rng.choice(len(whole), 60, replace=False)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            found = TableModel.load(path)
        except ModelFileError:
            changed += 1
        else:  # dates and the like in the archive's own directory say nothing
            np.testing.assert_array_equal(found.theta, a_model().theta)
            assert found.schema == SCHEMA
    assert changed > 40
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            TableModel.load(path)


class Bomb:
    def __reduce__(self):
        import os

        return os.mkdir, ("ran",)


def test_foreign_files_are_refused_and_nothing_in_them_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Bomb()))
    np.savez(tmp_path / "objects.npz", theta=np.array([Bomb()], dtype=object))
    np.savez(tmp_path / "plain.npz", theta=np.zeros(3))
    (tmp_path / "text.npz").write_text("model")
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    path = tmp_path / "ours.npz"
    a_model().save(path)
    rebuilt(tmp_path / "swapped.npz", {**members(path), "theta.npy": buffer.getvalue()})
    for name in ("pickle", "objects", "plain", "text", "swapped"):
        with pytest.raises(ModelFileError, match=f"{name}.npz"):
            TableModel.load(tmp_path / f"{name}.npz")
    assert not (tmp_path / "ran").exists()


def edited(path, **changes):
    """Rewrite the header with a fitting checksum, as somebody might who has read the source."""
    from ratewise.model_files import _canonical, _digest

    parts = members(path)
    header = json.loads(parts["header.json"])
    header.pop("sha256")
    for name, value in changes.items():
        place = header if name in header else header["fields"]
        place[name] = value
    header["sha256"] = _digest(_canonical(header))
    parts["header.json"] = _canonical(header).encode()
    rebuilt(path, parts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "no file that ratewise wrote"),
        ({"kind": "history"}, "'history', expected 'model'"),
        ({"intercept": 1}, "intercept"),
        ({"row_norm": "5"}, "row_norm"),
        ({"row_norm": -1}, "row_norm"),
        ({"origin": None}, "origin"),
        ({"origin": "elsewhere"}, "origin"),
        ({"extra": 1}, "missing or unknown"),
        ({"schema": {}}, "lacks the field"),
        ({"schema": SCHEMA._with(classes=[0, 1, 2]).to_dict()}, "finite numbers"),
        ({"schema": Schema({"age": Number(0, 1)}, label="y", classes=[0, 1]).to_dict()}, "scaling"),
        ({"fields": []}, "wrong shape"),
        ({"arrays": {}}, "does not name"),
        ({"arrays": {"theta": {"dtype": "object", "shape": [4], "sha256": ""}}}, "does not name"),
    ],
)
def test_fields_are_checked_even_where_the_checksum_fits(tmp_path, changes, words):
    path = tmp_path / "model.npz"
    a_model().save(path)
    edited(path, **changes)
    with pytest.raises(ModelFileError, match=words):
        TableModel.load(path)


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    path = tmp_path / "model.npz"
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
        TableModel.load("nowhere.npz")
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
