"""Public entry points and strategies that feed them; what may come out is a result or one of our errors.

`TARGETS` maps a name to a function of Hypothesis' ``draw``. A function that returns is an input that was
survived; any exception but a `RatewiseError` is a find. Each checks its result as far as that goes: models
are finite, books are not below the truth, what is written can be read.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

import ratewise as rw
from ratewise import accounting, audit
from ratewise.accounting import (
    Budget,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    TrainingEvent,
    event_from_dict,
)
from ratewise.exceptions import RatewiseError, RatewiseWarning
from ratewise.grammar import format_constraint, parse_constraint
from ratewise.metrics import rate_report
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams, SecureGenerator

# numbers at and beyond every border, and things that are no numbers at all
edges = st.sampled_from(
    [0, 1, -1, 2, 0.5, 1e-300, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan, 1e-5, 0.999999, 10**30]
)
odd = st.one_of(
    edges,
    st.none(),
    st.booleans(),
    st.text(max_size=4),
    st.floats(),
    st.integers(),
    st.binary(max_size=3),
    st.lists(st.integers(-2, 2), max_size=2),
    st.just(np.float64(0.1)),
    st.just(np.int64(3)),
    st.just(object()),
    st.complex_numbers(max_magnitude=2),
)
probabilities = st.floats(1e-3, 1.0)
noises = st.floats(0.3, 50.0)
values = st.sampled_from(["a", "b", "c", 1, 2, None, True, 1.5, "Ω", ""])


def mostly(sound, chance=7):
    """Draw something sound in `chance` of eight cases, else anything."""
    return st.integers(0, 7).flatmap(lambda number: sound if number < chance else odd)


def events():
    training = st.builds(
        TrainingEvent,
        sampling_rate=probabilities,
        steps=st.integers(1, 50),
        gradient_noise=noises,
        histogram_noise=noises,
        histogram=st.sampled_from(["gaussian", "laplace"]),
    )
    return st.one_of(
        training,
        st.builds(GaussianEvent, noise=noises, count=st.integers(1, 5)),
        st.builds(LaplaceEvent, noises),
    )


def fuzz_scalars(draw):
    """Constructors of events, budgets, plans and controls with any arguments."""
    build = draw(
        st.sampled_from(
            [
                lambda: TrainingEvent(*(draw(odd) for _ in range(5))),
                lambda: GaussianEvent(draw(odd), draw(odd)),
                lambda: LaplaceEvent(draw(odd)),
                lambda: Budget(draw(odd), draw(odd)),
                lambda: DualControl(rate=draw(odd), memory=draw(odd), cap=draw(odd), interval=draw(odd)),
                lambda: Plan(
                    n_rows=draw(mostly(st.integers(1, 9))),
                    sampling_rate=draw(mostly(probabilities)),
                    steps=draw(mostly(st.integers(1, 9))),
                    clip=draw(odd),
                    gradient_noise=draw(odd),
                    histogram_noise=draw(odd),
                    noise=draw(mostly(st.sampled_from(["discrete", "continuous"]))),
                ),
                lambda: RandomStreams.from_seed(draw(st.one_of(st.integers(0), st.text(), st.floats()))),
            ]
        )
    )
    build()


def fuzz_event_text(draw):
    """Descriptions of events as a file might hold them, damaged."""
    fields = draw(events()).to_dict()
    for name in draw(st.lists(st.sampled_from([*fields, "more"]), max_size=2)):
        fields[name] = draw(odd)
    event = event_from_dict(fields)
    assert event_from_dict(event.to_dict()) == event


def fuzz_accounting(draw):
    """Epsilon of some events, against the plain sum of their parts."""
    event, delta = draw(events()), draw(st.floats(1e-9, 0.1))
    relation = draw(st.sampled_from(["add_or_remove", "replace_one", "zero_out"]))
    total = accounting.epsilon([event], draw(mostly(st.just(delta))), neighbours=relation)
    assert total >= 0


def fuzz_ledger(draw):
    """Bookings in any order; the total never falls, and is never below its last entry alone."""
    cap = draw(st.sampled_from([None, Budget(2.0, 1e-5)]))
    ledger, before = Ledger(cap=cap), 0.0
    for event in draw(st.lists(events(), max_size=2)):
        try:
            ledger.book(event, purpose=draw(st.text(max_size=3)), data=draw(mostly(st.just("rows"))))
        except RatewiseError:
            continue
        total = ledger.total(1e-5)
        assert total >= before
        assert total >= accounting.epsilon([event], 1e-5) * (1 - 1e-6)
        before = total


def fuzz_ledger_file(draw):
    """A written book with some characters changed, cut or added is read as it was, or refused."""
    ledger = Ledger(cap=Budget(1.0, 1e-5))
    ledger.book(GaussianEvent(30.0), purpose="means", data="rows")
    text = ledger.to_json()
    place = draw(st.integers(0, len(text)))
    change = draw(st.sampled_from(["cut", "drop", "add", "swap", "none"]))
    damaged = {
        "cut": text[:place],
        "drop": text[:place] + text[place + 1 :],
        "add": text[:place] + draw(st.characters(min_codepoint=32, max_codepoint=126)) + text[place:],
        "swap": text[:place] + draw(st.characters(min_codepoint=32, max_codepoint=126)) + text[place + 1 :],
        "none": text,
    }[change]
    assert Ledger.from_json(damaged).total(1e-5) >= ledger.total(1e-5) * (1 - 1e-9)


WORDS = [
    *("rate", "fnr", "demographic_parity", "where", "group", "label", "everyone", "max_gap", "sex", "race"),
    *("(", ")", "=", "<=", ">=", "-", "+", ",", "&", "~", "|", "*", ".", "'F'", "1", "0", "0.1", " "),
    *("\\", '"', "\n", "__import__"),
]


def fuzz_constraint_text(draw):
    """Text that might be a constraint."""
    words = st.sampled_from(WORDS)
    sound = "fnr(label=1, race=*) <= 0.2"
    place = draw(st.integers(0, len(sound)))
    text = draw(
        st.one_of(
            st.text(max_size=40),
            st.lists(words, max_size=14).map("".join),
            words.map(lambda word: sound[:place] + word + sound[place:]),
            st.just(sound),
        )
    )
    constraint = parse_constraint(text)
    assert parse_constraint(format_constraint(constraint)) == constraint


def fuzz_rates(draw):
    """The language of constraints in Python."""
    where = draw(st.sampled_from([rw.everyone, rw.group(g="a"), ~rw.group(g="a"), rw.label(1)]))
    term = rw.rate(draw(mostly(st.integers(0, 1))), where=where)
    if draw(st.booleans()):
        term = draw(st.floats(-3, 3)) * term - rw.rate(0)
    constraint = term <= draw(mostly(st.floats(0, 1)))
    rate_report([constraint], [0, 1, 1], [1, 1, 0], sensitive_features={"g": ["a", "b", "a"]})


def fuzz_report(draw):
    """Reports on any labels and groups."""
    n = draw(st.integers(0, 6))
    labels = draw(st.lists(mostly(st.integers(0, 1)), min_size=n, max_size=n))
    predicted = draw(st.lists(mostly(st.integers(0, 1)), min_size=n, max_size=n))
    groups = {"g": draw(st.lists(values, min_size=n, max_size=n))}
    rate_report(rw.demographic_parity("g", max_gap=0.1), labels, predicted, sensitive_features=groups)


def fuzz_bounds(draw):
    """Lower bounds on epsilon."""
    numbers = [draw(mostly(st.integers(0, 30))) for _ in range(4)]
    found = audit.many_runs_bound(
        *numbers, delta=draw(mostly(st.floats(0, 0.5))), confidence=draw(probabilities)
    )
    assert 0 <= found < math.inf
    assert audit.one_run_bound(*numbers[:3], delta=0.01) >= 0


def fuzz_randomness(draw):
    """Ranges of integers."""
    rng = SecureGenerator()
    low, high = sorted(draw(st.tuples(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))))
    found = int(rng.integers(low, high, dtype=np.int64 if high < 2**63 else object))
    assert low <= found < high


def features(draw, n):
    d = draw(st.integers(1, 3))
    cell = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1e300, -1e300, 1e-300]))
    if draw(st.integers(0, 5)) == 0:
        cell = st.one_of(st.floats(), cell)
    X = np.array(draw(st.lists(cell, min_size=n * d, max_size=n * d)), dtype=np.float64).reshape(n, d)
    shape = draw(st.sampled_from(["array", "single", "sparse", "list", "order"]))
    with np.errstate(over="ignore"):
        return {
            "array": lambda: X,
            "single": lambda: X.astype(np.float32),
            "sparse": lambda: sp.csr_array(X),
            "list": X.tolist,
            "order": lambda: np.asfortranarray(X),
        }[shape]()


def fuzz_fit(draw):
    """Whole fits: any rows, labels, groups, limits and parameters."""
    n = draw(st.integers(1, 12))
    X = features(draw, n)
    y = draw(st.lists(mostly(st.sampled_from([0, 1]), 8), min_size=n, max_size=n))
    groups = {
        "g": draw(st.lists(values if draw(st.booleans()) else st.sampled_from("ab"), min_size=n, max_size=n))
    }
    limit = draw(
        st.sampled_from(
            [
                None,
                rw.demographic_parity("g", max_gap=0.2),
                [rw.rate(1) <= 0.5],
                rw.equalized_odds("g", max_gap=0.3),
            ]
        )
    )
    options = {
        "epsilon": draw(mostly(st.sampled_from([None, 0.5, 8.0]))),
        "delta": draw(st.sampled_from([1e-6, 1e-3])),
        "steps": draw(st.integers(1, 3)),
        "standardise": draw(mostly(st.booleans())),
        "noise": draw(st.sampled_from(["discrete", "continuous"])),
        "histogram": draw(st.sampled_from(["gaussian", "laplace"])),
        "rates": draw(st.sampled_from(["hard", "soft"])),
        "random_state": draw(mostly(st.integers(0, 9))),
        "l2": draw(mostly(st.sampled_from([0.0, 1.0]))),
        "clip": draw(mostly(st.sampled_from(["auto", 0.5]))),
        "classes": draw(st.sampled_from([None, [0, 1]])),
    }
    model = rw.RateConstrainedClassifier(limit, **options).fit(X, y, sensitive_features=groups)
    assert np.all(np.isfinite(model.coef_))
    assert np.all(np.isfinite(model.intercept_))
    assert np.all(np.isfinite(model.predict_proba(X)))
    if options["epsilon"] is not None:
        least = accounting.epsilon(model.plan_.events, options["delta"])
        assert least * (1 - 1e-6) <= model.privacy_.epsilon <= options["epsilon"]


# share of the inputs that each target gets: the cheap ones more
TARGETS = {
    "scalars": (fuzz_scalars, 25),
    "event_text": (fuzz_event_text, 16),
    "ledger_file": (fuzz_ledger_file, 5),
    "constraint_text": (fuzz_constraint_text, 22),
    "rates": (fuzz_rates, 6),
    "report": (fuzz_report, 6),
    "bounds": (fuzz_bounds, 6),
    "randomness": (fuzz_randomness, 8),
    "accounting": (fuzz_accounting, 2),
    "ledger": (fuzz_ledger, 1),
    "fit": (fuzz_fit, 3),
}


def survive(target, draw):
    """Run a target on one input; our own errors and warnings are answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RatewiseWarning)
        warnings.filterwarnings("ignore", module="sklearn")
        try:
            target(draw)
        except RatewiseError:
            return False
    return True
