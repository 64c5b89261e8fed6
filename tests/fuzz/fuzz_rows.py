"""What reads rows: fits, tables, evaluation, selection, reports, data sets, audits."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from fuzz_inputs import both_classes, edges, mostly, names, odd, odd_size, probabilities, scratch, things, values
from fuzz_language import labels_and_groups
from hypothesis import strategies as st
from lower_bounds import check_not_below_the_truth

import ratewise as rw
from ratewise import accounting, audit, datasets
from ratewise.data.schema import Category, Date, Number, Schema, draft_schema
from ratewise.estimators.evaluation import evaluate
from ratewise.mechanisms.randomness import RandomStreams, SecureGenerator
from ratewise.report import Report

LIMITS = [None, rw.demographic_parity("g", max_gap=0.2), [rw.rate(1) <= 0.5], rw.equalized_odds("g", max_gap=0.3)]


def fuzz_randomness(draw):
    """Ranges of integers."""
    rng = SecureGenerator()
    low, high = sorted(draw(st.tuples(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))))
    found = int(rng.integers(low, high))
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
    bounds = st.sampled_from([None, (-3.0, 3.0), (0.0, 1.0)])
    options = {
        "epsilon": draw(mostly(st.sampled_from([None, 0.5, 8.0]))),
        "delta": draw(st.sampled_from([1e-6, 1e-3])),
        "random_state": draw(mostly(st.integers(0, 9))),
        "classes": draw(st.sampled_from([None, [0, 1]])),
        "feature_bounds": draw(bounds),
        "model": "linear" if sp.issparse(X) else draw(st.sampled_from(["additive", "linear"])),
        "config": rw.TrainingConfig(
            steps=draw(st.integers(1, 3)),
            histogram=draw(st.sampled_from(["gaussian", "laplace"])),
            rates=draw(st.sampled_from(["hard", "soft"])),
            l2=draw(mostly(st.sampled_from([None, 0.0, 1.0]))),
            clip=draw(mostly(st.sampled_from([None, 0.5]))),
        ),
    }
    model = rw.RateConstrainedClassifier(draw(st.sampled_from(LIMITS)), **options)
    model.fit(X, y, sensitive_features=groups_of(draw, n))
    assert np.all(np.isfinite(model.predict_proba(X)))
    check_spending(model)


def check_spending(model):
    """Assert that the statement of a fit is at least what its plan costs, and that it keeps to the budget."""
    if model.epsilon is None:
        return
    spent, events = model.privacy_, list(model.plan_.events.values())
    least = accounting.epsilon(events, spent.delta, model.neighbours)
    assert least * (1 - 1e-6) <= spent.epsilon <= model.epsilon * (1 + 1e-9)
    check_not_below_the_truth(spent.epsilon, events, spent.delta)


PARAMETERS = {
    "callback": st.just(lambda record: None),
    "class_weight": st.sampled_from([None, {0: 1.0, 1: 2.0}]),
    "classes": st.sampled_from([None, [0, 1], [1, 0]]),
    "config": st.builds(
        rw.TrainingConfig,
        steps=st.integers(1, 5),
        sampling_rate=st.floats(0.05, 1.0),
        clip=st.floats(0.01, 9),
        learning_rate=st.floats(0.01, 9),
        momentum=st.floats(0, 0.99),
        schedule=st.sampled_from(["constant", "linear"]),
        l2=st.floats(0, 9),
        histogram=st.sampled_from(["gaussian", "laplace"]),
        histogram_share=st.floats(0.05, 0.9),
        rates=st.sampled_from(["hard", "soft"]),
        temperature=st.floats(0.1, 9),
        dual_rate=st.floats(0.1, 5),
        margin=st.sampled_from([0.0, 0.01, "certified"]),
    ),
    "constraints": st.sampled_from(LIMITS),
    "data_name": st.text(min_size=1, max_size=3),
    "delta": st.floats(1e-9, 1e-3),
    "epsilon": st.one_of(st.none(), st.floats(0.5, 20)),
    "feature_bounds": st.just((-3.0, 3.0)),
    "group_values": st.sampled_from([None, {"g": ["a", "b"]}, {"g": ["b", "a", "c"]}]),
    "id_weighting": st.sampled_from(["id", "row"]),
    "ledger": st.builds(rw.Ledger, neighbours=st.just("zero_out")),
    "model": st.sampled_from(["additive", "linear"]),
    "neighbours": st.sampled_from(["add_or_remove", "replace_one", "zero_out"]),
    "random_state": st.integers(0, 9),
    "rows_per_id": st.none(),
    "schema": st.none(),
    "verbose": st.just(0),
}


def fuzz_parameters(draw):
    """A fit of sound rows with any one to three of its parameters, most of them sound."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    options = {
        "classes": [0, 1],
        "config": rw.TrainingConfig(steps=2),
        "epsilon": 8.0,
        "group_values": {"g": ["a", "b"]},
    }
    known = sorted(rw.RateConstrainedClassifier().get_params())
    for name in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)):
        anything = odd_size if name in ("verbose", "rows_per_id") else odd
        options[name] = draw(mostly(PARAMETERS[name], 16, anything))
    model = rw.RateConstrainedClassifier(**options)
    model.fit(X, y, sensitive_features={"g": np.where(y, "a", "b")})
    assert np.all(np.isfinite(model.predict_proba(X)))
    check_spending(model)


def column(draw):
    """Draw the description of a column."""
    if draw(st.integers(0, 7)) == 5:
        return Date(draw(mostly(st.just("2001-02-03"))), draw(mostly(st.just("2020-01-01"))))
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
        st.lists(sound, min_size=n, max_size=n), 4, st.lists(mostly(sound, 8, values), min_size=n, max_size=n)
    )


def fuzz_table(draw):
    """A schema of any columns, a table of any cells: fitted, predicted."""
    named = st.sampled_from(["age", "job", "label", "Ω"])
    columns = {draw(mostly(named, 4, st.one_of(names, edges))): column(draw) for _ in range(draw(st.integers(1, 2)))}
    schema = Schema(
        draw(mostly(st.just(columns))),
        label="y",
        classes=draw(mostly(st.just([0, 1]))),
        groups=draw(mostly(st.just({"g": Category(["a", "b"])}), 4, st.one_of(st.just(()), odd))),
        signed=draw(st.booleans()),
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    n = draw(mostly(st.integers(4, 6), 4, st.integers(1, 3)))
    frame = {
        name: draw(cells_of(schema.columns.get(name), n)) for name in (*schema.columns, *schema.groups, schema.label)
    }
    limit = draw(st.sampled_from([None, rw.demographic_parity("g", max_gap=0.2)]))
    model = rw.RateConstrainedClassifier(
        limit,
        epsilon=draw(mostly(st.sampled_from([None, 8.0]))),
        schema=schema,
        config=rw.TrainingConfig(steps=draw(st.integers(1, 2))),
    )
    model.fit(draw(mostly(st.just(frame), 2, things)), both_classes(draw, n), sensitive_features=groups_of(draw, n))
    assert np.all(np.isfinite(model.predict_proba(frame)))


def fuzz_draft(draw):
    """A schema drafted from any table."""
    n = draw(st.integers(0, 5))
    kinds = st.sampled_from([values, st.floats(), things, st.sampled_from("ab"), st.integers(0, 3)])
    frame = {draw(names): draw(st.lists(draw(kinds), min_size=n, max_size=n)) for _ in range(3)}
    label = draw(mostly(st.sampled_from(sorted(frame))))
    schema = draft_schema(draw(mostly(st.just(frame), 2, things)), label=label).schema
    assert not schema.signed


def fuzz_evaluation(draw):
    """One private release on a hold-out, with any labels and options."""
    labels, predicted, groups = labels_and_groups(draw)
    ledger = rw.Ledger()
    found = evaluate(
        draw(st.sampled_from(LIMITS)),
        labels,
        predicted,
        sensitive_features=groups,
        epsilon=draw(mostly(st.floats(0.1, 20.0))),
        delta=draw(mostly(st.floats(1e-9, 0.01))),
        classes=draw(mostly(st.just([0, 1]))),
        group_values=draw(mostly(st.just({"g": ["a", "b", "c", 1, 2]}))),
        level=draw(mostly(st.floats(0.5, 0.99))),
        ledger=ledger,
    )
    assert ledger.records
    assert str(found)


def fuzz_postprocess(draw):
    """A private decision rule on any scores."""
    labels, predicted, groups = labels_and_groups(draw)
    scores = draw(mostly(st.just([0.25] * len(labels)), 2, st.just(predicted)))
    found = rw.postprocess(
        scores,
        labels,
        draw(st.sampled_from(LIMITS)),
        sensitive_features=groups,
        epsilon=draw(mostly(st.floats(0.1, 20.0))),
        delta=draw(mostly(st.floats(1e-9, 0.01))),
        classes=draw(mostly(st.just([0, 1]))),
        group_values=draw(mostly(st.just({"g": ["a", "b", "c", 1, 2]}))),
        group_aware=draw(st.booleans()),
    )
    assert str(found.certificate_)
    assert len(found.predict(scores, groups)) == len(labels)


def fuzz_selection(draw):
    """A private search over any configurations."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), np.arange(200) % 2
    spaces = [{"config__l2": [0.0, 1.0]}, [{"config__l2": 0.1}, {"config__learning_rate": 1.0}]]
    space = draw(mostly(st.sampled_from(spaces), 4, st.one_of(st.just({}), odd)))
    model = rw.RateConstrainedClassifier(classes=[0, 1], config=rw.TrainingConfig(steps=2))
    search = rw.PrivateSearch(
        draw(mostly(st.just(model))),
        space,
        epsilon=draw(mostly(st.floats(1.0, 20.0))),
        delta=draw(mostly(st.floats(1e-6, 1e-3))),
        mean_trials=draw(mostly(st.floats(1.1, 2.0), 2, odd_size)),
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


def training_events(draw):
    """Draw an event to be attacked."""
    noise, law = draw(st.sampled_from([(None, None), (2.0, "gaussian"), (2.0, "laplace")]))
    return accounting.TrainingEvent(
        sampling_rate=draw(st.sampled_from([1.0, 0.3])),
        steps=draw(st.integers(1, 3)),
        gradient_noise=draw(st.floats(0.3, 9.0)),
        histogram_noise=noise,
        histogram=law,
    )


def fuzz_audits(draw):
    """Audits and checks of any event with any options."""
    event = draw(mostly(st.just(training_events(draw))))
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
                lambda: audit.audit_step(event, games=games, **options),
                lambda: audit.audit_training(event, games=games, **options),
                lambda: audit.audit_one_run(event, canaries=games, guesses=rows, **options),
                lambda: audit.audit_step(event, games=20, subject=audit.TableSubject(event, rows)),
                lambda: audit.check_noise(event, steps=games, streams=streams),
                lambda: audit.check_replay(event, steps=games, streams=streams),
                lambda: audit.check_sampling(draw(mostly(probabilities)), n_rows=rows, steps=games, streams=streams),
                lambda: audit.WorstRows(rows, draw(mostly(st.integers(0, 3), 2, odd_size)), counted=True),
            ]
        )
    )()
    if isinstance(found, audit.AuditResult):
        assert 0 <= found.lower_bound < math.inf
        assert str(found)
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
