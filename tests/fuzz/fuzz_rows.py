"""What reads rows: fits, tables, evaluation, selection, reports, data sets, audits."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from fuzz_inputs import (
    both_classes,
    edges,
    mostly,
    names,
    odd,
    odd_size,
    probabilities,
    scratch,
    things,
    values,
)
from fuzz_language import labels_and_groups
from fuzz_truth import check_not_below_the_truth
from hypothesis import strategies as st

import ratewise as rw
from ratewise import accounting, audit, datasets
from ratewise.evaluation import private_evaluation
from ratewise.plan import DualControl, Plan
from ratewise.randomness import RandomStreams, SecureGenerator
from ratewise.report import Report
from ratewise.schema import Category, Number, Schema
from ratewise.selection import PrivateSearch
from ratewise.table_model import TableClassifier

LIMITS = [
    None,
    rw.demographic_parity("g", max_gap=0.2),
    [rw.rate(1) <= 0.5],
    rw.equalized_odds("g", max_gap=0.3),
]


def fuzz_randomness(draw):
    """Ranges of integers."""
    rng = SecureGenerator()
    low, high = sorted(draw(st.tuples(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))))
    found = int(rng.integers(low, high, dtype=np.int64 if high < 2**63 else object))
    assert low <= found < high


def features(draw, n):
    """Draw features of n rows in one of many shapes."""
    d = draw(st.integers(1, 3))
    cell = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1e300, -1e300, 1e-300]))
    if draw(st.integers(0, 15)) == 7:
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


def groups_of(draw, n):
    """Draw a group for each row."""
    kind = values if draw(st.integers(0, 7)) == 3 else st.sampled_from("ab")
    found = draw(st.lists(kind, min_size=n, max_size=n))
    if n >= 4 and draw(st.integers(0, 7)) != 3:
        found[:4] = "aabb"  # with labels 0, 1, 0, 1 nobody's rate is without rows
    return {"g": found}


def fuzz_fit(draw):
    """Whole fits: any rows, labels, groups, limits and parameters."""
    n = draw(mostly(st.integers(4, 12), 4, st.integers(1, 3)))
    X = features(draw, n)
    y = both_classes(draw, n)
    y[2:4] = y[:2] if n >= 4 and draw(st.integers(0, 7)) != 3 else y[2:4]
    options = {
        "epsilon": draw(mostly(st.sampled_from([None, 0.5, 8.0]))),
        "delta": draw(st.sampled_from([1e-6, 1e-3])),
        "steps": draw(st.integers(1, 3)),
        "standardise": draw(mostly(st.booleans())),
        "noise": draw(st.sampled_from(["discrete", "continuous"])),
        "histogram": draw(st.sampled_from(["gaussian", "laplace"])),
        "rates": draw(st.sampled_from(["hard", "soft"])),
        "random_state": draw(mostly(st.integers(0, 9))),
        "l1": draw(mostly(st.sampled_from([None, 0.0, 1.0]))),
        "l2": draw(mostly(st.sampled_from([0.0, 1.0]))),
        "clip": draw(mostly(st.sampled_from(["auto", 0.5]))),
        "classes": draw(st.sampled_from([None, [0, 1]])),
        "feature_bounds": draw(st.sampled_from([None, (-3.0, 3.0), (0.0, 1.0)])),
    }
    model = rw.RateConstrainedClassifier(draw(st.sampled_from(LIMITS)), **options)
    model.fit(X, y, sensitive_features=groups_of(draw, n))
    assert np.all(np.isfinite(model.coef_))
    assert np.all(np.isfinite(model.intercept_))
    assert np.all(np.isfinite(model.predict_proba(X)))
    if options["epsilon"] is not None:
        least = accounting.epsilon(model.plan_.events, options["delta"])
        assert least * (1 - 1e-6) <= model.privacy_.epsilon <= options["epsilon"]
        check_not_below_the_truth(model.privacy_.epsilon, model.plan_.events, options["delta"])


PARAMETERS = {
    "averaging": st.sampled_from(["tail", "polynomial", "none"]),
    "besides": st.just((accounting.GaussianEvent(40.0),)),
    "callback": st.just(lambda record: None),
    "classes": st.sampled_from([None, [0, 1], [1, 0]]),
    "clip": st.one_of(st.just("auto"), st.floats(0.01, 9)),
    "constraints": st.sampled_from(LIMITS),
    "curves": st.sampled_from(["auto", True, False, [0], [1, 0], []]),
    "data_name": st.text(min_size=1, max_size=3),
    "delta": st.floats(1e-9, 1e-3),
    "dual": st.builds(DualControl, rate=st.floats(0.1, 5)),
    "epsilon": st.one_of(st.none(), st.floats(0.5, 20)),
    "feature_bounds": st.just((-3.0, 3.0)),
    "feature_kinds": st.sampled_from([None, ["a", "a"], [0, 1]]),
    "fit_intercept": st.booleans(),
    "group_values": st.sampled_from([None, {"g": ["a", "b"]}, {"g": ["b", "a", "c"]}]),
    "histogram": st.sampled_from(["gaussian", "laplace"]),
    "histogram_share": st.floats(0.05, 0.9),
    "l1": st.one_of(st.none(), st.floats(0, 9)),
    "l2": st.floats(0, 9),
    "learning_rate": st.floats(0.01, 9),
    "ledger": st.builds(rw.Ledger),
    "momentum": st.floats(0, 0.99),
    "neighbours": st.sampled_from(["add_or_remove", "replace_one", "zero_out"]),
    "noise": st.sampled_from(["discrete", "continuous"]),
    "random_state": st.integers(0, 9),
    "rates": st.sampled_from(["hard", "soft"]),
    "row_norm": st.floats(0.1, 9),
    "sampling_rate": st.floats(0.05, 1.0),
    "schedule": st.sampled_from(["constant", "cosine", "linear"]),
    "standardise": st.booleans(),
    "steps": st.integers(1, 5),
    "tails": st.sampled_from(["auto", None, 0.5, 2.0, 1e6]),
    "temperature": st.floats(0.1, 9),
    "unit": st.text(min_size=1, max_size=3),
    "verbose": st.just(0),
}


def fuzz_parameters(draw):
    """A fit of sound rows with any one to three of its parameters, most of them sound."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    options = {"classes": [0, 1], "steps": 2, "epsilon": 8.0, "group_values": {"g": ["a", "b"]}}
    known = sorted(rw.RateConstrainedClassifier().get_params())
    for name in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)):
        anything = odd_size if name in ("steps", "verbose") else odd
        options[name] = draw(mostly(PARAMETERS[name], 16, anything))
    model = rw.RateConstrainedClassifier(**options)
    model.fit(X, y, sensitive_features={"g": np.where(y, "a", "b")})
    assert np.all(np.isfinite(model.coef_))
    if model.epsilon is not None:
        relation = model.neighbours
        least = accounting.epsilon(model.plan_.events, model.delta, relation)
        assert least * (1 - 1e-6) <= model.privacy_.epsilon
        check_not_below_the_truth(model.privacy_.epsilon, model.plan_.events, model.delta)


def column(draw):
    """Draw the description of a column."""
    if draw(st.booleans()):
        low = draw(mostly(st.floats(-5, 5)))
        return Number(low, draw(mostly(st.floats(5.5, 9))), draw(mostly(st.none())))
    kind = values if draw(st.integers(0, 15)) == 7 else st.sampled_from(["a", "b", "c", "Ω"])
    listed = st.lists(kind, min_size=1, max_size=3, unique_by=repr)
    return Category(draw(mostly(listed)), draw(mostly(st.none())))


def cells_of(described, n):
    """Return cells that mostly fit the description of a column."""
    sound = st.floats(-9, 9)
    if not isinstance(described, Number):
        sound = st.sampled_from("ab" if described is None else described.values)
    return mostly(
        st.lists(sound, min_size=n, max_size=n),
        4,
        st.lists(mostly(sound, 8, values), min_size=n, max_size=n),
    )


def fuzz_table(draw):
    """A schema of any columns, a table of any cells: encoded, fitted, predicted."""
    named = st.sampled_from(["age", "job", "label", "Ω"])
    columns = {
        draw(mostly(named, 4, st.one_of(names, edges))): column(draw) for _ in range(draw(st.integers(1, 2)))
    }
    schema = Schema(
        draw(mostly(st.just(columns))),
        label="y",
        classes=draw(mostly(st.just([0, 1]))),
        groups=draw(mostly(st.just({"g": Category(["a", "b"])}), 4, st.one_of(st.just(()), odd))),
        signed=draw(st.booleans()),
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    n = draw(mostly(st.integers(4, 6), 4, st.integers(1, 3)))
    frame = {name: draw(cells_of(schema.columns.get(name), n)) for name in [*schema.names, "g"]}
    frame["g"] = groups_of(draw, n)["g"]
    frame["y"] = both_classes(draw, n)
    options = {"epsilon": draw(mostly(st.sampled_from([None, 8.0]))), "steps": draw(st.integers(1, 2))}
    limit = draw(st.sampled_from([None, rw.demographic_parity("g", max_gap=0.2)]))
    model = TableClassifier(schema, limit, unknown=draw(st.sampled_from(["error", "zeros"])), **options)
    model.fit(draw(mostly(st.just(frame), 2, things)))
    assert np.all(np.isfinite(model.predict_proba(frame)))


def fuzz_draft(draw):
    """A schema drafted from any table."""
    n = draw(st.integers(0, 5))
    kinds = st.sampled_from([values, st.floats(), things, st.sampled_from("ab"), st.integers(0, 3)])
    frame = {draw(names): draw(st.lists(draw(kinds), min_size=n, max_size=n)) for _ in range(3)}
    label = draw(mostly(st.sampled_from(sorted(frame))))
    schema = Schema.draft(draw(mostly(st.just(frame), 2, things)), label=label)
    assert not schema.signed


def fuzz_evaluation(draw):
    """One private release on a hold-out, with any labels and options."""
    labels, predicted, groups = labels_and_groups(draw)
    ledger = rw.Ledger()
    found = private_evaluation(
        draw(st.sampled_from(LIMITS)),
        labels,
        predicted,
        sensitive_features=groups,
        epsilon=draw(mostly(st.floats(0.1, 20.0))),
        delta=draw(mostly(st.floats(1e-9, 0.01))),
        classes=draw(mostly(st.just([0, 1]))),
        group_values=draw(mostly(st.just({"g": ["a", "b", "c", 1, 2]}))),
        confidence=draw(mostly(st.floats(0.5, 0.99))),
        ledger=ledger,
    )
    assert ledger.records
    assert str(found)
    assert accounting.epsilon([found.event], 1e-5) <= ledger.total(1e-5) * (1 + 1e-9)


def fuzz_selection(draw):
    """A private search over any configurations."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), np.arange(200) % 2
    spaces = [{"l2": [0.0, 1.0]}, [{"l2": 0.1}, {"learning_rate": 1.0}]]
    space = draw(mostly(st.sampled_from(spaces), 4, st.one_of(st.just({}), odd)))
    model = rw.RateConstrainedClassifier(classes=[0, 1], steps=2)
    search = PrivateSearch(
        draw(mostly(st.just(model))),
        space,
        epsilon=draw(mostly(st.floats(1.0, 20.0))),
        delta=draw(mostly(st.floats(1e-6, 1e-3))),
        mean_trials=draw(mostly(st.floats(1.1, 2.0), 2, odd_size)),
        trials=draw(mostly(st.just("geometric"), 2, things)),
        tolerance=draw(mostly(st.floats(0, 0.1))),
    ).fit(X, y)
    assert np.all(np.isfinite(search.predict_proba(X)))


def fuzz_page(draw):
    """A whole report on any predictions: page, card and record."""
    labels, predicted, groups = labels_and_groups(draw)
    report = Report.from_predictions(
        labels,
        predicted,
        groups,
        draw(st.sampled_from(LIMITS)),
        scores=draw(mostly(st.none())),
        by=draw(mostly(st.none())),
        confidence=draw(mostly(st.floats(0.5, 0.99))),
        title=draw(mostly(st.text(min_size=1, max_size=5))),
        notes=draw(mostly(st.lists(st.text(min_size=1, max_size=5), max_size=1))),
    )
    page = report.to_html()
    assert page.count("<script") == Report.from_json(report.to_json()).to_html().count("<script")
    assert report.model_card()


def fuzz_datasets(draw):
    """Made-up people, and loaders that are pointed at folders without the data."""
    people = datasets.census_like(
        draw(mostly(st.integers(1, 50), 2, odd_size)), random_state=draw(mostly(st.integers(0, 9)))
    )
    assert isinstance(people, datasets.People)
    assert len(people.frame()) == len(people)
    if draw(st.booleans()):
        return
    name = draw(st.sampled_from(sorted(datasets.LOADERS)))
    home = scratch() / "empty"
    home.mkdir(exist_ok=True)
    options = {"label": draw(mostly(names))} if name in ("celeba", "utkface", "heart") else {}
    datasets.LOADERS[name](draw(mostly(st.just(home))), **options)


def plans(draw):
    """Draw a plan to be attacked."""
    return Plan(
        n_rows=draw(st.integers(1, 20)),
        sampling_rate=draw(st.sampled_from([1.0, 0.3])),
        steps=draw(st.integers(1, 3)),
        clip=1.0,
        gradient_noise=draw(st.floats(0.3, 9.0)),
        histogram_noise=draw(st.sampled_from([None, 2.0])),
        histogram=draw(st.sampled_from(["gaussian", "laplace"])),
        noise=draw(st.sampled_from(["discrete", "continuous"])),
    )


def fuzz_audits(draw):
    """Audits and checks of any plan with any options."""
    plan = draw(mostly(st.just(plans(draw))))
    options = {
        "releases": draw(mostly(st.sampled_from(audit.RELEASES))),
        "attack": draw(mostly(st.sampled_from(audit.ATTACKS))),
        "delta": draw(mostly(st.floats(0, 0.5))),
        "confidence": draw(mostly(st.floats(0.5, 0.99))),
        "random_state": draw(mostly(st.integers(0, 9))),
    }
    games = draw(mostly(st.integers(20, 60), 2, odd_size))
    rows = draw(mostly(st.integers(1, 5), 2, odd_size))
    streams = RandomStreams.from_seed(1)
    found = draw(
        st.sampled_from(
            [
                lambda: audit.audit_step(plan, games=games, **options),
                lambda: audit.audit_training(plan, games=games, **options),
                lambda: audit.audit_one_run(plan, canaries=games, guesses=rows, **options),
                lambda: audit.audit_step(plan, games=20, subject=audit.LinearSubject(plan, rows)),
                lambda: audit.check_noise(plan, steps=games, streams=streams),
                lambda: audit.check_replay(plan, steps=games, streams=streams),
                lambda: audit.check_sampling(
                    draw(mostly(probabilities)), n_rows=rows, steps=games, streams=streams
                ),
                lambda: audit.check_book(rw.Ledger(), [], draw(mostly(st.floats(1e-9, 0.5)))),
                lambda: audit.WorstRows(rows, draw(mostly(st.integers(0, 3), 2, odd_size)), counted=True),
            ]
        )
    )()
    if isinstance(found, audit.AuditResult):
        assert 0 <= found.lower_bound < math.inf
        assert found.to_json()
    elif isinstance(found, audit.Check):
        assert str(found)


def fuzz_bounds(draw):
    """Lower bounds on epsilon."""
    pairs = [sorted(draw(st.tuples(st.integers(0, 30), st.integers(1, 30)))) for _ in range(2)]
    numbers = [draw(mostly(st.just(number), 1)) for pair in pairs for number in pair]
    confidence, delta = draw(mostly(st.floats(0.01, 0.999))), draw(mostly(st.floats(0, 0.5)))
    found = audit.many_runs_bound(*numbers, delta=delta, confidence=confidence)
    assert 0 <= found < math.inf
    assert audit.one_run_bound(60, *numbers[1::-1], delta=0.01) >= 0
    assert audit.gaussian_bound(*numbers, delta=delta, confidence=confidence) >= 0
