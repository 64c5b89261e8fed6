"""Attacks on the private evaluation: a row must not show in errors, warnings, records or the domain."""

import warnings

import numpy as np
import pytest

from ratewise import Budget, Ledger, RatewiseWarning, demographic_parity, group, rate
from ratewise.estimators.evaluation import evaluate
from ratewise.preprocessing.discovery import count_values, discovery_threshold, release_values

N = 400
Y = np.arange(N) % 2
G = np.array(["a", "b"])[np.arange(N) // 2 % 2]


class Hostile:
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __hash__(self):
        raise RuntimeError("hashed")

    def __str__(self):
        raise RuntimeError("shown")


SECRETS = [None, np.nan, "nobody knows", 2, -1, 1e300, Hostile(), [1, 2], b"1", np.inf, ("a",), object()]


def run(labels, guesses, groups, *, declared, constraint, ids=None):
    """Return what is visible of an evaluation besides its released values."""
    ledger = Ledger(cap=Budget(2.0, 1e-5), adaptive=False)
    known = {"classes": [0, 1], "group_values": {"g": ["a", "b"]}} if declared else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = evaluate(
            constraint,
            labels,
            guesses,
            sensitive_features={"g": groups},
            privacy_ids=ids,
            epsilon=2.0,
            ledger=ledger,
            **known,
        )
    events = [(name, event) for a in ledger.admissions for name, event in zip(a.names, a.events, strict=True)]
    return ([row.name for row in found], [e.name for e in found.groups], events, [str(w.message) for w in caught])


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("place", ["labels", "guesses", "groups"])
def test_no_entry_of_a_row_shows(place, declared):
    vectors = {"labels": Y.tolist(), "guesses": Y.tolist(), "groups": G.tolist()}
    limit = demographic_parity("g", max_gap=0.1)
    plain = run(**vectors, declared=declared, constraint=limit)
    for number, secret in enumerate(SECRETS):
        changed = list(vectors[place])
        changed[7] = secret
        assert run(**{**vectors, place: changed}, declared=declared, constraint=limit) == plain, number


@pytest.mark.parametrize("declared", [True, False])
def test_no_entry_of_a_person_shows(declared):
    """All rows of one id are replaced, or all but one are gone; the bound on its rows is found by a release."""
    ids, limit = np.arange(N) // 2, demographic_parity("g", max_gap=0.1)
    vectors = {"labels": Y.tolist(), "guesses": Y.tolist(), "groups": G.tolist()}
    plain = run(**vectors, ids=ids, declared=declared, constraint=limit)
    assert plain[2][0][0] == "rows per id"
    for number, secret in enumerate(SECRETS):
        changed = {name: [secret, secret, *vector[2:]] for name, vector in vectors.items()}
        assert run(**changed, ids=ids, declared=declared, constraint=limit) == plain, number
    shorter = {name: vector[1:] for name, vector in vectors.items()}
    assert run(**shorter, ids=ids[1:], declared=declared, constraint=limit) == plain


def test_values_that_constraints_name_need_no_look():
    groups = [*G[:-1].tolist(), "somebody else"]
    shown = run(Y, Y, groups, declared=False, constraint=rate(1, where=group(g="a")) <= 0.7)
    assert shown[1] == ["P(1 | g=a)"]


def test_a_value_of_one_row_is_found_with_probability_delta_at_most():
    delta, noise, repeats = 0.05, 3.0, 4000
    rng = np.random.default_rng(0)
    columns = {"x": ["only me"], "y": ["nor me"]}
    counted = count_values(columns, None)
    kept = sum(any(release_values(counted, noise, delta, rng).values()) for _ in range(repeats))
    # three standard deviations above delta; at half the threshold the value would be found four times as often
    assert kept / repeats <= delta + 3 * np.sqrt(delta / repeats)
    assert kept > 0
    low = discovery_threshold(noise, delta, 2) / 2
    rows = 1 + noise * np.sqrt(2) * rng.standard_normal((repeats, 2))
    assert (rows >= low).any(axis=1).mean() > 2 * delta


def test_frequent_values_are_found_in_their_form():
    rng = np.random.default_rng(0)
    columns = {"i": np.arange(4000) % 4, "t": ["x", " x ", "y", None] * 1000, "f": np.arange(4000) % 2 == 0}
    named = {"f": (False, True), "t": ("w",)}
    with pytest.warns(RatewiseWarning, match="names 'w', which is not among the values of 't'"):
        found = release_values(count_values(columns, None), 5.0, 1e-6, rng, named=named)
    assert found == {"i": (0, 1, 2, 3), "t": ("w", "x", "y"), "f": (False, True)}
    assert found["f"][0] is False
