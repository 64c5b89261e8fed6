"""Fitted classifiers survive files, pickles and exports with the same predictions."""

import json
import math
import pickle
import sqlite3
from dataclasses import replace

import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import scipy.sparse as sp
import skops.io
from sklearn.base import clone

import ratewise
from ratewise import (
    InvalidInput,
    Ledger,
    Numeric,
    RateConstrainedClassifier,
    TrainingConfig,
    UnsupportedCombination,
    between,
    demographic_parity,
    group,
    rate,
)
from ratewise._files import ModelFileError, state_from_bytes, state_to_bytes
from ratewise.data.cells import parse_text
from ratewise.exceptions import LedgerError

CONFIG = TrainingConfig(steps=20)


def people(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(17, 90, n).astype(float),
            "capital gain": np.where(rng.random(n) < 0.9, 0.0, rng.exponential(5000.0, n)),
            "owner's job": rng.choice(["clerk", "o'brien", 'say "x"', ""], n),
            "code": rng.integers(0, 5, n),
            "change": rng.normal(size=n),
        }
    )
    frame.loc[::50, "age"] = np.nan
    score = frame["age"].fillna(40.0) + frame["capital gain"] / 100.0 + 20.0 * rng.normal(size=n)
    return frame, score, pd.DataFrame({"sex": rng.choice(["F", "M"], n), "years": frame["age"].fillna(0.0)})


def labels(score, names):
    return np.array(names, dtype=object)[np.searchsorted(np.linspace(50, 75, len(names) - 1), score)]


def fitted(names=("no", "yes"), constraints=None, **settings):
    frame, score, groups = people()
    model = RateConstrainedClassifier(constraints, random_state=0, **{"config": CONFIG, "epsilon": 3.0, **settings})
    return model.fit(frame, labels(score, names), sensitive_features=groups), frame


def constrained():
    return fitted(constraints=[demographic_parity("sex", max_gap=0.1), rate("yes") >= 0.1])


def file_trip(model, tmp_path):
    model.save(tmp_path / "model.ratewise")
    return ratewise.load(tmp_path / "model.ratewise")


def pickle_trip(model, tmp_path):
    return pickle.loads(pickle.dumps(model))


def joblib_trip(model, tmp_path):
    joblib.dump(model, tmp_path / "model.joblib")
    return joblib.load(tmp_path / "model.joblib")


def skops_trip(model, tmp_path):
    content = skops.io.dumps(model)
    needed = skops.io.get_untrusted_types(data=content)
    assert needed == ["ratewise.estimators.classifier.RateConstrainedClassifier"]
    return skops.io.loads(content, trusted=needed)


TRIPS = [file_trip, pickle_trip, joblib_trip, skops_trip]


def same(first, second, X):
    for method in ("decision_function", "predict_proba", "predict"):
        assert np.array_equal(getattr(first, method)(X), getattr(second, method)(X))
    assert first.classes_.dtype == second.classes_.dtype
    assert str(first.certificate_) == str(second.certificate_)
    assert first.privacy_ == second.privacy_
    assert first.plan_ == second.plan_
    assert first.ledger_.to_json() == second.ledger_.to_json()
    assert first.history_.keys() == second.history_.keys()
    assert all(np.array_equal(first.history_[name], second.history_[name]) for name in first.history_)
    assert np.array_equal(first.multipliers_, second.multipliers_)
    assert first.unused_features_ == second.unused_features_
    assert first.n_iter_ == second.n_iter_
    names = (None if m.constraints_ is None else m.constraints_.names for m in (first, second))
    assert len(set(names)) == 1


@pytest.mark.parametrize("trip", TRIPS)
@pytest.mark.parametrize("names", [("no", "yes"), (0, 1), (False, True), ("a", "b", "c", "d", "e")])
def test_round_trips_are_identical(trip, names, tmp_path):
    model, X = fitted(names)
    same(model, trip(model, tmp_path), X)


@pytest.mark.parametrize("trip", TRIPS)
def test_round_trips_keep_certificate_constraints_and_explanations(trip, tmp_path):
    model, X = constrained()
    again = trip(model, tmp_path)
    same(model, again, X)
    assert again.explain(X[:3]) == model.explain(X[:3])
    assert again.explain() == model.explain()
    assert again.feature_importances() == model.feature_importances()
    again.set_params(random_state=0, config=CONFIG).fit(X, model.predict(X), sensitive_features=people()[2])


def test_parameters_return_with_their_types(tmp_path):
    model, _ = fitted(
        ("no", "yes"),
        constraints=rate("yes", where=group(years=between(20, 40))) <= 0.9,
        classes=("no", "yes"),
        group_values={"years": Numeric()},
        feature_bounds={"age": (0.0, 100.0), "code": [0, 1, 2, 3, 4]},
        config=TrainingConfig(steps=5, margin="certified"),
        data_name="people",
    )
    again = file_trip(model, tmp_path)
    kept = {n: v for n, v in model.get_params().items() if n not in ("ledger", "callback", "random_state")}
    assert kept == {n: again.get_params()[n] for n in kept}
    assert repr(clone(again).feature_bounds) == repr(model.feature_bounds)


def test_secrets_are_not_in_the_file(tmp_path):
    model, _ = fitted(config=TrainingConfig(steps=3))
    model.random_state = 987654321123
    model.save(tmp_path / "model")
    assert b"987654321123" not in (tmp_path / "model").read_bytes()
    assert ratewise.load(tmp_path / "model").random_state is None


def test_a_restored_ledger_can_only_be_read(tmp_path):
    again = file_trip(fitted()[0], tmp_path)
    assert again.ledger_.total() <= 3.0
    with pytest.raises(LedgerError, match="can only be read"):
        again.ledger_.admit(again.ledger_.events())


def test_a_pickle_keeps_the_ledger_parameter():
    model, _ = fitted(ledger=Ledger(cap=ratewise.Budget(4.0, 1e-5), neighbours="zero_out"))
    assert "read-only copy" in repr(pickle.loads(pickle.dumps(model)).ledger)


def test_sparse_models_and_constant_models(tmp_path):
    rng = np.random.default_rng(0)
    X = sp.random_array((500, 30), density=0.2, random_state=rng, format="csr")
    y = (np.asarray(X.sum(axis=1)).ravel() > 3).astype(int)
    model = RateConstrainedClassifier(model="linear", feature_bounds=(0, 1), config=CONFIG, random_state=0).fit(X, y)
    same(model, file_trip(model, tmp_path), X)
    with pytest.warns(ratewise.RatewiseWarning, match="fewer than two classes"):
        constant = RateConstrainedClassifier(random_state=0).fit(np.ones((50, 2)), np.ones(50))
    same(constant, file_trip(constant, tmp_path), np.ones((3, 2)))
    with pytest.raises(UnsupportedCombination, match="sparse"):
        model.to_sql()


def test_labels_that_no_file_holds_are_pickled_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    days = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]").astype(object)
    X = rng.normal(size=(800, 2))
    model = RateConstrainedClassifier(classes=list(days), config=CONFIG, random_state=0)
    model.fit(X, days[(X[:, 0] > 0).astype(int)])
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    with pytest.raises(ratewise.InvalidType, match="joblib"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_changed_constraints_are_not_saved(tmp_path):
    model, _ = constrained()
    model.constraints = demographic_parity("sex", max_gap=0.3)
    with pytest.raises(InvalidInput, match="changed after fit"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("change", ["cut", "flip", "foreign", "pickle", "shapes", "grid", "missing"])
def test_damaged_foreign_and_inconsistent_files_are_rejected(change, tmp_path):
    model, _ = constrained()
    path = tmp_path / "model"
    model.save(path)
    content = path.read_bytes()
    if change == "cut":
        content = content[: len(content) // 2]
    elif change == "flip":
        place = content.index(b"no")
        content = content[:place] + b"on" + content[place + 2 :]
    elif change == "foreign":
        content = b"age,income\n31,1\n"
    elif change == "pickle":
        content = pickle.dumps(model)
    else:
        content = _rewritten(content, change)
    path.write_bytes(content)
    with pytest.raises(ModelFileError):
        ratewise.load(path)


def _rewritten(content, change):
    """Return the file with a wrong part and right checksums, as somebody could write it who knows the format."""
    state = state_from_bytes(content, "classifier", "model")
    model = state["model_"]
    if change == "shapes":
        state["model_"] = replace(model, scorer=replace(model.scorer, table=model.scorer.table[:-1]))
    elif change == "grid":
        grids = replace(model.grids[0], lower=1e9), *model.grids[1:]
        state["model_"] = replace(model, grids=grids)
    else:
        del state["privacy_"]
    return state_to_bytes("classifier", state)


def test_a_file_holds_arrays_and_plain_data_only(tmp_path):
    model, _ = constrained()
    model.save(tmp_path / "model")
    _, header, numbers = (tmp_path / "model").read_bytes().split(b"\n", 2)
    described = json.loads(header)["arrays"]
    assert sum(math.prod(shape) * np.dtype(name).itemsize for name, shape in described) == len(numbers)


# ----------------------------------------------------------------------------------------- exports


@pytest.mark.parametrize("names", [("no", "yes"), (0, 1), ("it's", "b", "c")])
def test_sql_gives_the_same_predictions(names):
    model, X = fitted(names, config=TrainingConfig(steps=60), epsilon=20.0)
    base = sqlite3.connect(":memory:")
    X.replace({"owner's job": {"": None}}).to_sql('the "people"', base, index=False)
    got = pd.read_sql(model.to_sql('the "people"'), base)
    expected = model.decision_function(X).reshape(len(X), -1)
    columns = ["score"] if len(names) == 2 else [f"score_{place}" for place in range(len(names))]
    np.testing.assert_allclose(got[columns].to_numpy(), expected, rtol=0, atol=1e-12)
    assert (got["prediction"].to_numpy() == model.predict(X)).all()
    assert got["age"].equals(X["age"])
    if len(names) == 2:
        alone = pd.read_sql(f'SELECT {model.to_sql()} AS s FROM "the ""people"""', base)
        np.testing.assert_allclose(alone["s"], expected[:, 0], rtol=0, atol=1e-12)


def test_sql_treats_values_beyond_the_training_rows_alike():
    model, X = fitted(config=TrainingConfig(steps=60), epsilon=20.0)
    odd = X.iloc[:6].copy()
    odd["age"] = [-1e9, 1e9, 0.0, 17.0, np.nan, 1e-300]
    odd["owner's job"] = ["nobody", None, "clerk", "Clerk", "o'brien", ""]
    odd["capital gain"] = [0.0, -5.0, 1e300, 1e-12, 99999.0, np.nan]
    base = sqlite3.connect(":memory:")
    odd.to_sql("people", base, index=False)
    got = pd.read_sql(model.to_sql("people"), base)
    np.testing.assert_allclose(got["score"], model.decision_function(odd), rtol=0, atol=1e-12)


@pytest.mark.parametrize("names", [("no", "yes"), (0, 1), ("a", "b", "c")])
def test_onnx_gives_bit_identical_scores(names):
    model, X = fitted(names, config=TrainingConfig(steps=60), epsilon=20.0)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    feed = {
        entry.name: X[[entry.name]].to_numpy(np.float64)
        if entry.type == "tensor(double)"
        else parse_text(X[entry.name]).astype(object)[:, None]
        for entry in session.get_inputs()
    }
    label, probabilities, scores = session.run(["label", "probabilities", "scores"], feed)
    assert np.array_equal(scores, model.decision_function(X).reshape(len(X), -1))
    assert (label == model.predict(X)).all()
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=0, atol=1e-12)
