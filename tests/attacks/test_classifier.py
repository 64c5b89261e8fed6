"""Attacks on the classifier: membership queries, accounting that depends on rows, interrupted fits.

The first tests need nothing but the public classes, and fail on the code before November 2026.
"""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from ratewise import Ledger, RateConstrainedClassifier, between, demographic_parity, group, rate
from ratewise.accounting import Budget
from ratewise.accounting.events import single

N = 400
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
LABELS = (X[:, 0] > 0).astype(int)
SALARY = RNG.integers(20_000, 60_000, N).astype(float)
VICTIM = 123
SALARY[VICTIM] = 91_234.0  # nobody else earns that much
SEX = np.where(RNG.random(N) < 0.5, "F", "M")


def outcome(run):
    """Return what an observer of a call sees, apart from the released numbers."""
    ledger = Ledger(cap=Budget(1e6, 1e-4), neighbours="zero_out")
    try:
        found = run(ledger)
    except Exception as error:
        return type(error).__name__, str(error), len(ledger.events())
    return type(found).__name__, len(ledger.events())


def model(constraints, ledger=None, **options):
    options = {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero_out", "random_state": None, **options}
    return RateConstrainedClassifier(constraints, ledger=ledger, **options)


def neighbours(column):
    """Return a column and the same without the victim."""
    without = np.array(column, dtype=object)
    without[VICTIM] = None
    return column, without


@pytest.mark.parametrize("call", ["fit", "planned_events"])
def test_a_constraint_over_a_subset_asks_nothing(call):
    """Finding 3: "does anybody earn between a and b?" was answered exactly, and nothing was recorded."""
    low, high = 20_000.0, 120_000.0
    for _ in range(12):
        middle = (low + high) / 2
        constraint = [rate(1, where=group(salary=between(middle, high))) <= 0.9]
        answers = [
            outcome(
                lambda ledger, column=column, constraint=constraint: getattr(
                    model(constraint, ledger, classes=[0, 1]), call
                )(X, LABELS, sensitive_features={"salary": column})
            )
            for column in neighbours(SALARY)
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] != "InvalidInput"
        low = middle if SALARY[VICTIM] >= middle else low
        high = high if SALARY[VICTIM] >= middle else middle


@pytest.mark.parametrize("call", ["fit", "planned_events"])
def test_declared_classes_and_values_without_rows_ask_nothing(call):
    """Finding 3: a class or a group value that nobody has was rejected, one that was left out as well."""
    constraint = demographic_parity("sex", max_gap=0.2)
    rare_label, rare_sex = LABELS.copy(), SEX.astype(object)
    rare_label[VICTIM], rare_sex[VICTIM] = 2, "X"
    declared = [(classes, ["F", "M", "X"]) for classes in ([0, 1, 2], [0, 1], [1, 2], [5, 6])]
    declared += [([0, 1], values) for values in (["F", "M"], ["F"], ["Q"])]
    for classes, values in declared:
        answers = {
            outcome(
                lambda ledger, y=y, sex=sex, classes=classes, values=values: getattr(
                    model(constraint, ledger, classes=classes, group_values={"sex": values}), call
                )(X, y, sensitive_features={"sex": sex})
            )
            for y in neighbours(rare_label)
            for sex in neighbours(rare_sex)
        }
        assert len(answers) == 1


@pytest.mark.parametrize("declared", [True, False])
def test_the_statement_depends_on_declarations_only(declared):
    """Finding 7: with 0/1 features a release was skipped, and the statement said less than was planned."""
    flags = (X > 0).astype(float)
    options = {"classes": [0, 1], "group_values": {"sex": ["F", "M"]}} if declared else {"classes": [0, 1]}
    tables = [X, flags, np.zeros_like(X), np.full_like(X, np.nan), 1e300 * X]
    fits = [
        model(demographic_parity("sex", max_gap=0.2), **options).fit(t, LABELS, sensitive_features={"sex": SEX})
        for t in tables
    ]
    assert fits[0].privacy_.epsilon == fits[1].privacy_.epsilon
    assert len({fit.privacy_.epsilon for fit in fits}) == 1
    assert 0.999 <= fits[0].privacy_.epsilon <= 1.0
    assert len({tuple(fit.ledger_.events()) for fit in fits}) == 1


def test_the_statement_names_the_relation_that_holds():
    """Finding 10: n is published, so zero-out is the relation, and records hold no clock times."""
    fitted = model(None, classes=[0, 1]).fit(X, LABELS)
    text = str(fitted.privacy_)
    assert "blank" in text
    assert f"{N:,}" in text or str(N) in text
    assert "time" not in fitted.ledger_.to_json()
    with pytest.raises(TypeError):
        RateConstrainedClassifier(None, unit="one patient")


def test_persons_are_the_unit_of_the_statement_if_they_are_that_of_the_accounting():
    persons = pd.Series(np.arange(N) // 4, name="patient")
    options = {"classes": [0, 1], "rows_per_id": 4, "feature_bounds": (-3, 3)}
    fitted = model(None, **options).fit(X, LABELS, privacy_ids=persons)
    assert "patient" in str(fitted.privacy_)
    assert fitted.privacy_.n_units == N // 4
    assert fitted.privacy_.unit.kind == "id"


def test_delta_does_not_depend_on_the_number_of_rows_of_persons():
    """With ids the number of rows is private; the default delta follows the number of ids."""
    many = 60_000
    persons = np.arange(many) % 30_000
    events = []
    for rows in (many, many - 25_000):
        x = np.zeros((rows, 1))
        y = np.arange(rows) % 2
        made = RateConstrainedClassifier(None, epsilon=1.0, classes=[0, 1], rows_per_id=2)
        events.append(made.planned_events(x, y, privacy_ids=persons[:rows]))
    assert events[0] == events[1]


@pytest.mark.parametrize("ledger", [None, "capped"])
def test_planning_takes_nothing_of_a_seed(ledger):
    book = None if ledger is None else Ledger(cap=Budget(5.0, 1e-4), neighbours="zero_out")
    planned = model(None, book, classes=[0, 1], random_state=7)
    first = planned.planned_events(X, LABELS)
    assert planned.planned_events(X, LABELS) == first
    planned.fit(X, LABELS)


# -------------------------------------------------------------------- one row and the arithmetic of others


HUGE = [1e78, 1e300, -1e300, 1e308, math.inf, -math.inf, math.nan, 5e-324, 2.0**53 + 1]


@pytest.mark.parametrize("value", HUGE)
def test_a_huge_value_changes_the_part_of_its_own_row_only(value):
    """Finding 8: a value beyond 1e77 switched every row to another code path."""
    from ratewise.data.table import read_features, row_units
    from ratewise.models.additive import AdditiveEngine, Problem
    from ratewise.preprocessing.basis import RowCodes, build_basis, code_rows
    from ratewise.preprocessing.grids import ContinuousGrid

    grids = tuple(ContinuousGrid(f"x{place}", -2.0, 2.0) for place in range(3))
    rng = np.random.default_rng(1)
    counts = [np.abs(rng.normal(size=grid.n_counts)) * 10 for grid in grids]
    basis = build_basis(grids, counts, 1.0, float(N), 4.0)
    other = X.copy()
    other[VICTIM] = value
    engines = []
    for table in (X, other):
        bins = RowCodes(code_rows(read_features(table), grids, np.ones(N))[0])
        engines.append(AdditiveEngine(bins, basis, Problem(LABELS, None, 2), row_units(N)))
    rest = np.delete(np.arange(N), VICTIM)
    parameters = rng.normal(size=engines[0].n_parameters)
    same = [engine.sums(rest, parameters, None, 1.0).gradient for engine in engines]
    assert np.array_equal(same[0], same[1])
    for engine in engines:
        moved = engine.sums(np.arange(N), parameters, None, 1.0).gradient - same[0]
        assert np.linalg.norm(moved) <= 1.0 + engine.slack(N)


def test_the_score_of_a_row_does_not_depend_on_the_rows_beside_it():
    """NumPy adds up a single row of many columns in another order than several rows, and few rows unlike many."""
    from ratewise.models.additive import Scorer
    from ratewise.preprocessing import basis

    rng = np.random.default_rng(2)
    table = rng.normal(size=(480, 3)) * 10.0 ** rng.integers(-6, 6, (480, 3))
    codes = rng.integers(0, 12, (1000, 40)) + np.arange(40) * 12
    assert codes.size > basis.BINS_AT_ONCE
    differ = 0
    for columns in (1, 3):
        intercept = rng.normal(size=columns)
        scorer, raw = (
            Scorer.rounded(np.vstack([table[:, :columns], intercept]), 40),
            Scorer(table[:, :columns], intercept),
        )
        together, raw_together = scorer.scores(codes), raw.scores(codes)
        np.testing.assert_allclose(together, raw_together, rtol=1e-9, atol=1e-7)
        for size in (1, 2, 3, 7, 31):
            for start in range(0, 64 - size, size):
                part = np.ascontiguousarray(codes[start : start + size])
                assert np.array_equal(scorer.scores(part), together[start : start + size])
                differ += not np.array_equal(raw.scores(part), raw_together[start : start + size])
        backwards = np.full((1000, columns), scorer.intercept)
        for column in rng.permutation(40):
            backwards += scorer.table[codes[:, column]]
        assert np.array_equal(backwards, together)
    assert differ  # without rounding the order of summation is seen


@pytest.mark.parametrize("other", [None, "abc", 0.5, b"x"])
def test_ids_are_grouped_alike_in_every_storage(other):
    """A missing id turns integers into floats; large ids must not fall together because of it."""
    from ratewise.data.table import code_ids

    ids = [2**53, 2**53 + 1, 7, 7, 2**60, 2**60 + 3, 8]
    whole = code_ids(np.array(ids, dtype=np.int64))[0]
    same = whole[:, None] == whole[None, :]
    stored = [[*ids, other], pd.Series([*ids, other]), pd.Series([*map(str, ids), other])]
    if other is None:  # as pandas reads a file with a missing id, in both kinds of integers
        stored += [pd.Series([*map(float, ids), np.nan]), pd.Series([*ids, None], dtype="Int64")]
    for column in stored:
        mixed = code_ids(column)[0][:-1]
        assert np.array_equal(same, mixed[:, None] == mixed[None, :])


@pytest.mark.parametrize("word", ["abc", None, 3.5, pd.Timestamp("2021-05-05")])
def test_categories_and_groups_are_coded_alike_in_every_storage(word):
    """One entry changes how a column is stored; the codes of the others must not change."""
    from ratewise.data.cells import code_cells

    columns = {
        "integers": ([3, 1, 2, 3], (1, 2, 3)),
        "text": (["1", "2", " 3 ", "007"], (1, 2, 3, 7)),
        "truth": ([True, False, True], (False, True)),
        "dates": (list(pd.date_range("2020-01-01", periods=4)), tuple(pd.date_range("2020-01-01", periods=3).date)),
        "large": ([2**53 + 1, 5, 2**53], (5, 2**53)),
    }
    for values, declared in columns.values():
        alone = code_cells(pd.Series(values), declared)
        beside = code_cells(pd.Series([*values, word]), declared)[:-1]
        assert np.array_equal(alone, beside)
        assert np.array_equal(alone, code_cells(values, declared))
        assert (alone >= 0).any()


def test_a_very_long_text_costs_the_memory_of_one_row():
    """Text of fixed width would reserve the longest text for every row."""
    import tracemalloc

    words = np.array(["a", "b"] * 2000, dtype=object)
    words[5] = "x" * 2_000_000
    frame = pd.DataFrame({"word": pd.Series(words, dtype=object), "x": np.zeros(4000)})
    tracemalloc.start()
    model(None, classes=[0, 1]).fit(frame, np.arange(4000) % 2, privacy_ids=words)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6


# ----------------------------------------------------------------------------------------- interrupted fits


def uncounted(ledger, happened):
    """Return the single releases that happened and that a ledger has not recorded."""
    recorded, seen = Counter(), Counter()
    for plan in ledger.admissions:
        for event, times in zip(plan.events, plan.released.values(), strict=True):
            recorded[single(event)[0]] += times
    for event, times in map(single, happened):
        seen[event] += times
    return seen - recorded


class Stop(BaseException):
    """Not an ordinary exception, like a keyboard interrupt."""


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("place", range(9))
def test_an_interrupted_fit_is_never_counted_too_low(kind, stored, place, tmp_path, monkeypatch):
    """Interrupt right after release number `place`: the ledger has recorded at least what was released."""
    from ratewise.accounting import GaussianEvent, TrainingEvent
    from ratewise.mechanisms.noise import RoundedGaussianMechanism
    from ratewise.training.config import TrainingConfig

    happened = []
    release = RoundedGaussianMechanism.release

    def watched(self, value, rng):
        found = release(self, value, rng)
        happened.append(self.noise)
        if len(happened) == place + 1:
            raise kind
        return found

    cap = {"cap": Budget(2.0, 1e-5), "neighbours": "zero_out"}
    ledger = Ledger.create(tmp_path / "ledger.json", **cap) if stored else Ledger(**cap)
    fitted = model(
        demographic_parity("sex", max_gap=0.2),
        ledger,
        classes=[0, 1],
        group_values={"sex": ["F", "M"]},
        feature_bounds=(-3, 3),
        config=TrainingConfig(steps=4),
    )
    planned = fitted.planned_events(X, LABELS, sensitive_features={"sex": SEX})
    monkeypatch.setattr(RoundedGaussianMechanism, "release", watched)
    with pytest.raises(kind):
        fitted.fit(X, LABELS, sensitive_features={"sex": SEX})
    assert not hasattr(fitted, "model_")
    held = Ledger.open(tmp_path / "ledger.json") if stored else ledger
    assert held.admissions[-1].events == planned
    training = next(event for event in planned if isinstance(event, TrainingEvent))
    steps = happened.count(training.gradient_noise)
    others = [GaussianEvent(n) for n in happened if n not in (training.gradient_noise, training.histogram_noise)]
    taken = [training.with_steps(steps)] if steps else []
    assert not uncounted(held, [*others, *taken])
    assert held.total() >= 0.999


def test_a_callback_that_raises():
    ledger = Ledger(neighbours="zero_out")

    def stop(record):
        if record.step == 3:
            raise RuntimeError("enough")

    fitted = model(None, ledger, classes=[0, 1], feature_bounds=(-3, 3), callback=stop)
    with pytest.raises(RuntimeError, match="enough"):
        fitted.fit(X, LABELS)
    released = ledger.admissions[-1].released
    assert released["training"] >= 3
    assert released["column histograms"] == 1
    assert ledger.total(1e-5) >= 0.999
