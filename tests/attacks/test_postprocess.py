"""Attacks on the post-processing of scores: sensitivity of both releases, and rows that try to show."""

import math
import warnings

import numpy as np
import pytest

import ratewise.estimators.postprocess as module
import ratewise.training.plan as plan_module
from ratewise import Budget, Ledger, demographic_parity, equalized_odds, postprocess

N = 300
RNG = np.random.default_rng(0)
G = RNG.integers(0, 3, N)
SCORES = RNG.random(N)
Y = (RNG.random(N) < SCORES).astype(int)
LIMITS = [demographic_parity("g", max_gap=0.1), equalized_odds("g", max_gap=0.2)]
KNOWN = {"classes": [0, 1], "group_values": {"g": [0, 1, 2]}}


class Hostile:
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __hash__(self):
        raise RuntimeError("hashed")

    def __float__(self):
        raise RuntimeError("converted")


SECRETS = [None, math.nan, math.inf, -math.inf, 1e300, -5.0, "0.5", "secret", Hostile(), [1, 2], b"x", 7, True]


def visible(scores, y, groups, *, declared=True, aware=False):
    """Return what is visible besides released values: domain, rows of the certificate, records, warnings."""
    ledger = Ledger(cap=Budget(3.0, 1e-5), adaptive=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = postprocess(
            scores,
            y,
            LIMITS,
            sensitive_features={"g": groups},
            epsilon=3.0,
            delta=1e-5,
            ledger=ledger,
            group_aware=aware,
            **(KNOWN if declared else {"classes": [0, 1]}),
        )
    plans = [(plan.names, plan.events, plan.released) for plan in ledger.admissions]
    return (
        list(found.classes_),
        [row.name for row in found.certificate_],
        found.probabilities_.shape,
        plans,
        [str(w.message) for w in caught],
        str(found.privacy_),
    )


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("place", ["scores", "y", "groups"])
def test_no_entry_of_a_row_shows(place, aware):
    given = {"scores": SCORES.tolist(), "y": Y.tolist(), "groups": G.tolist()}
    plain = visible(**given, aware=aware)
    for number, secret in enumerate(SECRETS):
        changed = list(given[place])
        changed[17 * (number % 2)] = secret
        assert visible(**{**given, place: changed}, aware=aware) == plain, number


@pytest.mark.parametrize("secret", [None, "nobody", Hostile(), math.nan])
def test_a_rare_value_is_not_found(secret):
    groups = (np.arange(3000) % 3).tolist()
    scores, y = [0.3, 0.8] * 1500, [0, 1] * 1500
    plain = visible(scores, y, groups, declared=False)
    groups[5] = secret
    assert visible(scores, y, groups, declared=False) == plain


class Spy:
    """Stands for the mechanism: keeps what it is given and the sensitivity that it is told."""

    seen: list

    def __init__(self, noise, sensitivity, whole, step):
        self.sensitivity = sensitivity
        assert whole

    def release(self, value, rng):
        assert np.array_equal(value, np.rint(value))
        Spy.seen.append((value.copy(), self.sensitivity))
        return value + 0.0


def released(monkeypatch, scores, y, groups, aware, rule=None):
    """Return the two exact vectors and their claimed sensitivities; with `rule`, for a fixed decision rule."""
    Spy.seen = []
    monkeypatch.setattr(plan_module, "RoundedGaussianMechanism", Spy)
    if rule is not None:
        monkeypatch.setattr(module, "_solve", lambda *_: rule)
    postprocess(
        scores,
        y,
        LIMITS,
        sensitive_features={"g": groups},
        epsilon=1.0,
        delta=1e-5,
        group_aware=aware,
        random_state=0,
        **KNOWN,
    )
    return Spy.seen


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize(
    ("score", "y", "g"), [(0.5, 1, 0), (math.nan, 0, 2), (2.0, 9, 1), (1e-30, 1, 99), (0.999, None, None)]
)
def test_one_row_moves_each_vector_by_its_sensitivity_at_most(monkeypatch, score, y, g, aware):
    # a fixed rule without mixtures: the second release then depends on the rows by its counts only
    shape = (module.ScoreGrid(2).n_bins, 2)
    fixed = np.zeros((4 if aware else 1, *shape))
    fixed[:, : shape[0] // 2, 0] = 1.0
    fixed[:, shape[0] // 2 :, 1] = 1.0
    rows = (SCORES.tolist(), Y.tolist(), G.tolist())
    first = released(monkeypatch, *rows, aware, fixed)
    more = ([*rows[0], score], [*rows[1], y], [*rows[2], g])
    second = released(monkeypatch, *more, aware, fixed)
    assert len(first) == len(second) == 2
    for (before, sensitivity), (after, same) in zip(first, second, strict=True):
        assert sensitivity == same
        assert np.linalg.norm(after - before) <= sensitivity + 1e-12


def test_the_bound_on_the_sensitivity_is_reached(monkeypatch):
    first = released(monkeypatch, SCORES.tolist(), Y.tolist(), G.tolist(), False)
    more = [*SCORES.tolist(), 0.4], [*Y.tolist(), 1], [*G.tolist(), 1]
    second = released(monkeypatch, *more, False)
    assert np.linalg.norm(second[0][0] - first[0][0]) == pytest.approx(first[0][1])


def test_the_rule_depends_on_rows_through_the_released_counts_only(monkeypatch):
    """With the releases held fixed, other rows give the same rule."""

    class Fixed:
        def __init__(self, noise, sensitivity, whole, step):
            pass

        def release(self, value, rng):
            return np.random.default_rng(value.size).integers(0, 50, value.shape).astype(float)

    monkeypatch.setattr(plan_module, "RoundedGaussianMechanism", Fixed)
    rules = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        rules.append(
            postprocess(
                rng.random(N),
                rng.integers(0, 2, N),
                LIMITS,
                sensitive_features={"g": rng.integers(0, 3, N)},
                epsilon=1.0,
                delta=1e-5,
                **KNOWN,
            )
        )
    assert np.array_equal(rules[0].probabilities_, rules[1].probabilities_)
    assert str(rules[0].certificate_) == str(rules[1].certificate_)
