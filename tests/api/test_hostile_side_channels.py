"""What must not tell: messages, warnings, histories, representations, pickles, logs; and no network."""

import io
import logging
import pickle
import socket
import struct
import sys
import warnings

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.accounting import Ledger
from ratewise.exceptions import CertificateWarning, RatewiseError, SeedWarning
from ratewise.training.plan import Plan

MARK = 7_654_321.125  # a value that occurs in one row and nowhere else
WORD = "unmistakable-person"
SEED = 918_273_645


def people(n=3000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    X[17, 2] = MARK
    y = (X[:, 0] > 0).astype(int)
    return X, y, {"sex": np.where(rng.random(n) < 0.5, "a", "b")}


def classifier(**changes):
    options = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "classes": [0, 1],
        "group_values": {"sex": ["a", "b"]},
        "config": TrainingConfig(steps=8),
        "random_state": SEED,
        **changes,
    }
    return RateConstrainedClassifier(demographic_parity("sex", max_gap=0.5), **options)


def with_entry(column, place, value):
    found = column.astype(object)
    found[place] = value
    return found


def with_feature(X, value):
    found = X.astype(object) if isinstance(value, str) else X.copy()
    found[5, 1] = value
    return found


# rows of which one is odd: (features, labels, groups) to the same; all of these are trained on
ODD = {
    "group that is not declared": lambda X, y, g: (X, y, with_entry(g, 3, WORD)),
    "label that is not declared": lambda X, y, g: (X, with_entry(y, 3, WORD), g),
    "missing feature": lambda X, y, g: (with_feature(X, np.nan), y, g),
    "infinite feature": lambda X, y, g: (with_feature(X, -np.inf), y, g),
    "text among features": lambda X, y, g: (with_feature(X, WORD), y, g),
    "missing group": lambda X, y, g: (X, y, with_entry(g, 3, None)),
    "missing label": lambda X, y, g: (X, with_entry(y, 3, None), g),
    "a list among groups": lambda X, y, g: (X, y, with_entry(g, 3, [WORD])),
    "a dict among labels": lambda X, y, g: (X, with_entry(y, 3, {WORD: 1}), g),
}
# tables of a wrong shape, which are refused
MISSHAPEN = {
    "one row too few": lambda X, y, g: (X, y, g[:-1]),
    "labels as a table": lambda X, y, g: (X, np.column_stack([y, X[:, 2]]), g),
    "features in one dimension": lambda X, y, g: (X[:, 2], y, g),
    "ragged features": lambda X, y, g: ([[MARK], *X[1:].tolist()], y, g),
}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("what", ODD)
def test_no_row_is_an_error_or_a_warning(what, declared):
    X, y, groups = people()
    X, y, column = ODD[what](X, y, groups["sex"])
    public = {} if declared else {"classes": None, "group_values": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SeedWarning)
        warnings.simplefilter("ignore", CertificateWarning)
        model = classifier(**public).fit(X, y, sensitive_features={"sex": column})
    assert WORD not in str(model.privacy_) + repr(vars(model))


@pytest.mark.parametrize("what", MISSHAPEN)
def test_messages_and_warnings_do_not_show_values_of_rows(what):
    X, y, groups = people()
    X, y, column = MISSHAPEN[what](X, y, groups["sex"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RatewiseError) as refused:
            classifier().fit(X, y, sensitive_features={"sex": column})
    said = [str(refused.value), *(str(warning.message) for warning in caught)]
    cause = refused.value.__cause__ or (None if refused.value.__suppress_context__ else refused.value.__context__)
    said += [str(cause)] if cause is not None else []
    for text in said:
        assert WORD not in text, text
        assert "7654321" not in text, text


@pytest.fixture(scope="module")
def fitted():
    X, y, groups = people()
    stream, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    root.addHandler(handler)
    level, shown = root.level, sys.stderr
    root.setLevel(logging.DEBUG)
    sys.stderr = stream
    try:
        model = classifier(verbose=1, ledger=Ledger()).fit(X, y, sensitive_features=groups)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        sys.stderr = shown
    return model, stream.getvalue() + log.getvalue()


def hidden_numbers(data):
    """Ways in which the marked feature, or the seed, could be written down."""
    return [
        struct.pack("<d", MARK),
        struct.pack("<f", MARK),
        b"7654321",
        str(SEED).encode(),
        struct.pack("<i", SEED),
        struct.pack("<q", SEED),
    ]


def test_pickle_repr_history_and_logs_hold_no_row_and_no_seed(fitted):
    model, shown = fitted
    model.set_params(random_state=None)
    places = {
        "pickle": pickle.dumps(model),
        "repr": repr(model).encode(),
        "state": repr(vars(model)).encode(),
        "history": pickle.dumps(model.history_),
        "ledger": model.ledger_.to_json().encode(),
        "statement": str(model.privacy_).encode(),
        "log": shown.encode(),
    }
    for place, content in places.items():
        for secret in hidden_numbers(content):
            assert secret not in content, place
    assert len(shown) > 0
    assert len(places["pickle"]) < 60_000  # three thousand rows would be ninety-six thousand bytes


def test_the_search_would_find_them():
    X, _, _ = people()
    assert any(secret in pickle.dumps({"X": X}) for secret in hidden_numbers(b""))
    assert any(secret in pickle.dumps({"seed": SEED}) for secret in hidden_numbers(b""))


def test_histories_hold_released_values_only(monkeypatch):
    """Every number of the history is a function of what mechanisms let out: watched, and recomputed."""
    released = []
    plan_type = Plan
    original = plan_type.histogram_mechanism

    class Watched:
        def __init__(self, mechanism):
            self._mechanism = mechanism
            self.standard_deviation = mechanism.standard_deviation

        def release(self, value, rng):
            found = self._mechanism.release(value, rng)
            released.append(found.copy())
            return found

    monkeypatch.setattr(plan_type, "histogram_mechanism", lambda self, step: Watched(original(self, step)))
    X, y, groups = people()
    model = classifier().fit(X, y, sensitive_features=groups)
    np.testing.assert_array_equal(model.history_["histogram"], np.stack(released))
    assert set(model.history_) == {"step", "gradient_norm", "histogram", "values", "multipliers"}
    assert not np.any(np.isin(model.history_["gradient_norm"], [0.0]))


def test_noise_and_streams_are_not_kept(fitted):
    model, _ = fitted
    kinds = set()

    def walk(value, depth=0):
        kinds.add(type(value).__name__)
        if depth > 6:
            return
        if isinstance(value, dict):
            for part in value.values():
                walk(part, depth + 1)
        elif isinstance(value, list | tuple | set):
            for part in value:
                walk(part, depth + 1)
        elif hasattr(value, "__dict__"):
            walk(vars(value), depth + 1)

    model.set_params(random_state=None)
    walk(vars(model))
    assert "AdditiveModel" in kinds  # it walks into objects
    assert not kinds & {
        "Generator",
        "RandomStreams",
        "SeedSequence",
        "SecureGenerator",
        "Prefetched",
        "Session",
        "Rows",
        "AdditiveEngine",
        "Loop",
    }


def test_no_network_at_run_time(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a network connection was attempted")

    for name in ("connect", "connect_ex", "bind", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    X, y, groups = people()
    model = classifier().fit(X, y, sensitive_features=groups)
    model.predict(X)
    str(model.privacy_)
    with pytest.raises(AssertionError, match="network"):
        socket.create_connection(("localhost", 9))
