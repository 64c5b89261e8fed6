import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import ratewise.bounds as bounds_room
from ratewise import (
    Budget,
    BudgetExceeded,
    InvalidInput,
    InvalidType,
    Ledger,
    PrivacyLeakWarning,
    RatewiseWarning,
    UnsupportedCombination,
    demographic_parity,
    group,
    rate,
)
from ratewise.accounting import epsilon as epsilon_of
from ratewise.datasets import census_like
from ratewise.datasets.people import HOUSEHOLDS, OCCUPATIONS
from ratewise.schema import Category, Number, Schema
from ratewise.table_model import TableClassifier

PEOPLE = census_like(6000, random_state=1)
PARITY = demographic_parity("sex", max_gap=0.1)


def table(people=PEOPLE):
    first = 5
    return {
        "age": people.X[:, 0].astype(float),
        "years": people.X[:, 1].astype(float),
        "hours": people.X[:, 2].astype(float),
        "job": np.array(OCCUPATIONS)[people.X[:, first : first + 8].argmax(axis=1)],
        "home": np.array(HOUSEHOLDS)[people.X[:, first + 8 :].argmax(axis=1)],
        **people.sensitive,
        "income": people.y,
    }


def schema(**changes):
    columns = {
        "age": Number(17, 90),
        "years": Number(),
        "hours": Number(lower=0),
        "job": Category(OCCUPATIONS),
        "home": Category(HOUSEHOLDS),
        **changes,
    }
    return Schema(
        {name: column for name, column in columns.items() if column is not None},
        label="income",
        classes=PEOPLE.classes,
        groups={name: Category(values) for name, values in PEOPLE.group_values.items()},
    )


DECLARED = {"years": Number(1, 20), "hours": Number(1, 99)}
TABLE = table()


def fitted(**options):
    made = {"schema": schema(), "constraints": PARITY, "random_state": 0, "steps": 60, **options}
    return TableClassifier(**made).fit(TABLE)


def test_one_epsilon_covers_everything_and_is_spent():
    model = fitted(epsilon=1.0, count_outside=True)
    assert 0.99 <= model.privacy_.epsilon <= 1.0
    # the accountant asked afresh about what the book holds
    assert 0.99 <= epsilon_of(model.ledger_.events(), 1e-5) <= 1.0
    assert model.ledger_.cap == Budget(1.0, 1e-5)
    purposes = [record.purpose for record in model.ledger_.records if getattr(record, "purpose", "")]
    assert purposes == [
        "orders of magnitude of numbers",
        "bounds of numbers",
        "entries beyond declared bounds",
        "lengths of rows, a first look at numbers",
        "means of features, a first look at numbers",
        "lengths of rows less the means, a first look at numbers",
        "deviations of features, a first look at numbers",
        "lengths of rows",
        "means of features",
        "lengths of rows less the means",
        "deviations of features",
        "train",
    ]


@pytest.mark.parametrize(
    ("asked", "relation"),
    [(0.3, "add_or_remove"), (8.0, "add_or_remove"), (3.0, "replace_one"), (3.0, "zero_out")],
)
def test_the_total_is_tight_for_every_budget_and_relation(asked, relation):
    model = fitted(epsilon=asked, neighbours=relation)
    assert 0.99 * asked <= model.privacy_.epsilon <= asked


def test_declared_bounds_cost_nothing():
    model = fitted(schema=schema(**DECLARED))
    assert model.bounds_ == {}
    assert 0.99 <= model.privacy_.epsilon <= 1.0
    assert not any("bounds" in getattr(record, "purpose", "") for record in model.ledger_.records)
    # what is not spent on bounds makes training less noisy
    assert model.plan_.gradient_noise < fitted().plan_.gradient_noise


def test_bounds_are_booked_before_they_are_released(monkeypatch):
    order = []
    book, release = Ledger.book, bounds_room.RoundedGaussianMechanism.release
    monkeypatch.setattr(
        Ledger, "book", lambda self, e, **k: (order.append(k["purpose"]), book(self, e, **k))[1]
    )
    monkeypatch.setattr(
        bounds_room.RoundedGaussianMechanism,
        "release",
        lambda self, value, rng: (order.append(value.shape), release(self, value, rng))[1],
    )
    fitted()
    assert order[:4] == ["orders of magnitude of numbers", (2, 123), "bounds of numbers", (2, 34)]


def test_released_bounds_are_sensible_and_keep_the_declared_side():
    model = fitted(epsilon=2.0)
    assert set(model.bounds_) == {"years", "hours"}
    low, high = model.bounds_["years"]
    inside = (TABLE["years"] >= low) & (TABLE["years"] <= high)
    assert inside.mean() > 0.9
    assert model.bounds_["hours"][0] == 0.0
    assert model.schema_.unbounded == ()
    assert model.schema_.columns["age"] == Number(17, 90)


def test_it_learns_and_predicts_in_any_form():
    model = fitted(epsilon=2.0, schema=schema(**DECLARED), steps=None)
    fresh = table(census_like(4000, random_state=9))
    assert model.score(fresh) > 0.78
    features = {name: column for name, column in fresh.items() if name in model.schema.columns}
    expected = model.predict(fresh)
    for form in (dict, pd.DataFrame, pl.DataFrame):
        assert np.array_equal(model.predict(form(features)), expected)
    assert model.predict_proba(pd.DataFrame(fresh)).shape == (4000, 2)
    assert model.decision_function(fresh).shape == (4000,)
    assert model.score(features, fresh["income"]) == model.score(fresh)


def test_numbers_bend_and_categories_do_not():
    assert fitted().classifier_.curves_.tolist() == [0, 1, 2]
    assert fitted(curves=True, standardise=False).classifier_.curves_.tolist() == [0, 1, 2]
    for straight in ({"curves": False}, {"standardise": False}):
        assert fitted(**straight).classifier_.curves_.tolist() == []
    assert fitted(curves=[1]).classifier_.curves_.tolist() == [1]
    assert TableClassifier(schema(), curves=False).get_params()["curves"] is False


@pytest.mark.filterwarnings("ignore:not to be relied on")
def test_a_table_so_wide_that_it_is_sparse_stays_straight():
    wide = schema(job=Category([*OCCUPATIONS, *(f"job {k}" for k in range(400))]))
    assert fitted(schema=wide).classifier_.curves_.tolist() == []
    with pytest.raises(UnsupportedCombination, match="curves would fill it"):
        fitted(schema=wide, curves=True)


def test_label_and_groups_may_come_apart():
    inside = fitted()
    features = {name: TABLE[name] for name in inside.schema.columns}
    apart = TableClassifier(schema(), PARITY, random_state=0, steps=60).fit(
        features, TABLE["income"], sensitive_features={"sex": TABLE["sex"]}
    )
    assert np.array_equal(apart.predict(TABLE), inside.predict(TABLE))


def test_scikit_learn_manners_and_no_seed_in_the_model():
    model = fitted(learning_rate=5.0)
    assert model.get_params()["learning_rate"] == 5.0
    twin = clone(model).set_params(steps=70, epsilon=2.0)
    assert (twin.get_params()["steps"], twin.get_params()["epsilon"]) == (70, 2.0)
    assert model.get_params()["steps"] == 60
    assert model.classifier_.random_state is None
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(TABLE), model.predict(TABLE))
    assert "learning_rate=5.0" in repr(model)
    unseeded = fitted(random_state=None)
    kept = {
        name: value
        for name, value in vars(unseeded.classifier_).items()
        if "Generator" in type(value).__name__
    }
    assert kept == {}


def test_before_fit_it_says_so():
    for call in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(TableClassifier(schema()), call)(TABLE)


def test_planned_events_are_what_fit_books():
    model = TableClassifier(schema(), PARITY, random_state=0, steps=60)
    planned = model.planned_events(TABLE)
    model.fit(TABLE)
    assert epsilon_of(planned, 1e-5) == pytest.approx(model.privacy_.epsilon, rel=1e-6)
    assert not hasattr(TableClassifier(schema()), "ledger_")


def test_a_draft_counts_as_a_leak_until_it_is_signed():
    frame = pd.DataFrame(TABLE)
    with pytest.warns(PrivacyLeakWarning, match="read off the data"):
        draft = Schema.draft(frame, label="income", groups=["sex", "region"])
    with pytest.warns(PrivacyLeakWarning, match="not signed"):
        model = TableClassifier(draft, PARITY, random_state=0, steps=60).fit(frame)
    assert "the bounds of column 'age'" in model.privacy_.leaks
    assert not model.privacy_.private
    signed = TableClassifier(draft.sign(), PARITY, random_state=0, steps=60).fit(frame)
    assert signed.privacy_.private
    assert any("bounds of column 'age'" in fact for fact in signed.privacy_.public)


def test_bounds_that_the_data_exceed_are_counted_and_said_if_asked():
    narrow = schema(age=Number(30, 35), **DECLARED)
    with pytest.warns(RatewiseWarning, match="beyond the declared bounds and are cut off there: 'age'"):
        model = fitted(schema=narrow, count_outside=True)
    true = np.count_nonzero(TABLE["age"] > 35)
    assert model.outside_["age"].above == pytest.approx(true, abs=5 * model.outside_["age"].deviation)
    assert 0.99 <= model.privacy_.epsilon <= 1.0
    assert fitted(schema=narrow).outside_ == {}


def test_a_budget_already_spent_is_refused_before_anything_is_booked():
    ledger = Ledger(cap=Budget(1.2, 1e-5))
    fitted(epsilon=1.0, ledger=ledger)
    before = len(ledger.records)
    with pytest.raises(BudgetExceeded, match=r"of which .* is spent; lower epsilon"):
        fitted(epsilon=1.0, ledger=ledger)
    assert len(ledger.records) == before


def test_the_same_noise_twice_in_one_book_is_refused():
    ledger = Ledger(cap=Budget(10.0, 1e-5))
    fitted(ledger=ledger)
    before = len(ledger.records)
    with pytest.raises(InvalidInput, match="random_state was used"):
        fitted(ledger=ledger)
    assert len(ledger.records) == before


def test_too_few_rows_for_private_bounds_say_what_would_work():
    small = {name: column[:200] for name, column in TABLE.items()}
    with pytest.raises(InvalidInput, match=r"200 rows are too few .* declare the bounds"):
        TableClassifier(schema(), PARITY).fit(small)


def test_without_privacy_it_is_said():
    model = fitted(epsilon=None, count_outside=True)
    assert model.privacy_.epsilon == np.inf
    assert model.outside_["age"].deviation == 0.0


@pytest.mark.parametrize(
    ("options", "frame", "said"),
    [
        ({}, {"income": None}, "no column 'income', the label by the schema"),
        ({}, {"age": None}, "lacks the column 'age'"),
        ({}, {"sex": None}, "no column 'sex', a sensitive column"),
        ({}, {"job": np.repeat("pirate", 6000)}, "column 'job'"),
        ({}, {"sex": np.repeat("Neither", 6000)}, "'sex'"),
        ({}, {"age": np.full(6000, np.nan)}, "column 'age' holds missing values"),
        ({"constraints": rate(1, where=group(race="x")) <= 0.5}, {}, "read 'race', which the schema"),
        ({"constraints": rate(2) <= 0.5}, {}, "not among the classes"),
        ({"epsilon": -1}, {}, "epsilon must be above 0"),
        ({"schema": {"age": (1, 2)}}, {}, "schema must be a Schema"),
        ({"count_outside": 1}, {}, "count_outside must be"),
        ({"ledger": "book"}, {}, "ledger must be a Ledger"),
        ({"unknown": "drop"}, {}, "unknown must be one of"),
        ({"learning_rate": -1.0}, {}, "learning_rate must be above 0"),
    ],
)
def test_slips_are_found_before_anything_is_spent(monkeypatch, options, frame, said):
    def never(*_, **__):
        raise AssertionError("something was booked")

    monkeypatch.setattr(Ledger, "book", never)
    changed = {name: column for name, column in {**TABLE, **frame}.items() if column is not None}
    with pytest.raises((InvalidInput, InvalidType), match=said) as told:
        TableClassifier(**{"schema": schema(), "constraints": PARITY, **options}).fit(changed)
    assert "pirate" not in str(told.value)


def test_options_that_are_none_are_refused_at_once():
    with pytest.raises(InvalidType, match="'stepz' is no parameter"):
        TableClassifier(schema(), stepz=3)
    with pytest.raises(InvalidType, match="classes is said by the schema"):
        TableClassifier(schema(), classes=(0, 1))


def test_unknown_values_at_prediction_follow_the_policy():
    strange = {**TABLE, "job": np.repeat("pirate", 6000)}
    with pytest.raises(InvalidInput, match="column 'job'") as told:
        fitted().predict(strange)
    assert "pirate" not in str(told.value)
    assert len(fitted(unknown="zeros").predict(strange)) == 6000


def test_groups_with_gaps_are_filled_as_declared():
    gaps = np.array(TABLE["sex"], dtype=object)
    gaps[:500] = None
    said = Schema(
        schema(**DECLARED).columns,
        label="income",
        classes=PEOPLE.classes,
        groups={"sex": Category(["Female", "Male", "not said"], missing="not said")},
    )
    model = fitted(schema=said, constraints=None).set_params(constraints=PARITY)
    labels, groups = model.labels_and_groups({**TABLE, "sex": gaps})
    assert (groups["sex"][:500] == "not said").all()
    assert (groups["sex"][500:] == TABLE["sex"][500:]).all()
    assert len(labels) == 6000


def test_a_private_hold_out_is_evaluated_by_the_schema():
    model = fitted(schema=schema(**DECLARED))
    report = model.evaluate(table(census_like(5000, random_state=4)), epsilon=0.5, random_state=0)
    assert len(report) == 2
    assert report.ledger.total_epsilon <= 0.5
    assert any(e.name == "P(1 | sex=Female)" for e in report.groups)
