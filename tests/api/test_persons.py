"""Persons with several rows: `privacy_ids` through the whole interface."""

import datetime
import time
import uuid
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import ratewise.training.plan as plan_module
from ratewise import (
    Budget,
    InvalidInput,
    Ledger,
    PrivateSearch,
    RateConstrainedClassifier,
    RatewiseWarning,
    TrainingConfig,
    demographic_parity,
    postprocess,
)
from ratewise.accounting import group_budget
from ratewise.data.table import code_ids, digest_ids
from ratewise.datasets import census_like
from ratewise.estimators.evaluation import evaluate
from ratewise.training.certificate import COUNT_SENSITIVITY

N, PERSONS = 1200, 400
PEOPLE = census_like(N, random_state=0)
SEX = np.asarray(PEOPLE.sensitive["sex"])
IDS = np.random.default_rng(0).integers(0, PERSONS, N)
FACTS = {"classes": [0, 1], "group_values": {"sex": ["Female", "Male"]}}
PARITY = demographic_parity("sex", max_gap=0.1)
GUESS = (PEOPLE.X[:, 1] > 11).astype(int)


def classifier(**options):
    config = TrainingConfig(steps=5)
    return RateConstrainedClassifier(PARITY, epsilon=4.0, config=config, random_state=7, **FACTS, **options)


def fitted(ids=None, **options):
    given = {} if ids is None else {"privacy_ids": ids}
    return classifier(**options).fit(PEOPLE.X, PEOPLE.y, sensitive_features={"sex": SEX}, **given)


@pytest.mark.parametrize("ids", [np.arange(N), np.array([f"p{k}" for k in range(N)])], ids=["numbers", "texts"])
def test_one_row_per_id_is_the_same_as_no_ids(ids):
    rows, persons = fitted(), fitted(ids, rows_per_id=1)
    assert rows.plan_.events == persons.plan_.events
    assert np.array_equal(rows.decision_function(PEOPLE.X), persons.decision_function(PEOPLE.X))
    assert [row.interval for row in rows.certificate_] == [row.interval for row in persons.certificate_]
    assert persons.privacy_.unit != rows.privacy_.unit


def test_a_million_ids_are_read_in_seconds():
    numbers = np.random.default_rng(0).integers(0, 400_000, 1_000_000)
    for ids in (numbers, pd.Series([f"person-{k}" for k in numbers.tolist()])):
        begin = time.process_time()
        codes, count = code_ids(ids)
        assert time.process_time() - begin < 20  # a few seconds on an idle processor
        assert count == len(np.unique(numbers)) == codes.max() + 1


@pytest.mark.parametrize("kind", ["table", "network", "search"])
def test_ids_are_ignored_with_a_warning_by_whatever_predicts(kind):
    if kind == "table":
        model = fitted(IDS)
    elif kind == "network":
        from ratewise.torch import MLP, TorchRateConstrainedClassifier

        options = {"config": TrainingConfig(steps=2), "rows_per_id": 2, **FACTS}
        model = TorchRateConstrainedClassifier(lambda: MLP(PEOPLE.X.shape[1], 2, (2,)), PARITY, **options)
        model.fit(PEOPLE.X, PEOPLE.y, sensitive_features={"sex": SEX}, privacy_ids=IDS)
    else:
        model = PrivateSearch(classifier().set_params(random_state=None), {"config__l2": [0.0, 0.1]}, epsilon=8.0)
        with pytest.warns(RatewiseWarning, match="nearly random"):
            model.fit(PEOPLE.X, PEOPLE.y, sensitive_features={"sex": SEX}, privacy_ids=IDS)
    methods = ["predict", "predict_proba", "decision_function", *(["score"] if kind != "search" else [])]
    for name in methods:
        given = (PEOPLE.X, PEOPLE.y) if name == "score" else (PEOPLE.X,)
        with pytest.warns(RatewiseWarning, match="privacy_ids is ignored") as caught:
            found = getattr(model, name)(*given, privacy_ids=IDS)
        assert len(caught) == 1
        assert np.array_equal(found, getattr(model, name)(*given))


def test_ids_of_any_type_are_told_apart():
    """By value, whatever the storage; whole numbers as doubles tell them apart."""
    numbers = np.random.default_rng(3).integers(0, 90, 300)
    large = numbers.astype(np.int64) * 1024 + 2**60
    same = {
        "numbers": [numbers, numbers.astype(float), numbers.astype(str), numbers.astype(object), pd.Series(numbers, dtype="Int64")],
        "large": [large, large.astype(str), large.astype(object), large.tolist(), large.astype(np.uint64),
                  pd.Series(large).astype("category"), pd.Series(large, dtype="Int64"), [f" +{k}" for k in large.tolist()]],
        "tuples": [[(int(k) // 9, f"n{k % 9}") for k in numbers], pd.Series([(f"{k // 9}.0", f"n{k % 9}") for k in numbers])],
        "uuids": [[uuid.UUID(int=int(k)) for k in numbers], [str(uuid.UUID(int=int(k))) for k in numbers]],
        "dates": [np.datetime64("1999-12-31") + numbers, [datetime.date(1999, 12, 31) + datetime.timedelta(int(k)) for k in numbers]],
    }  # fmt: skip
    expected = np.unique(numbers, return_inverse=True)[1]
    for name, columns in same.items():
        digests = [digest_ids(column) for column in columns]
        assert all(np.array_equal(digests[0], other) for other in digests), name
        first = np.unique(digests[0], return_inverse=True)[1]
        assert len(set(zip(first.tolist(), expected.tolist(), strict=True))) == expected.max() + 1, name
    for odd in (np.array([1e300, np.inf, -np.inf, np.nan]), [10**5000, "9" * 5000, (), ((1,), 2), ("a", object())]):
        digest_ids(odd)


def test_a_column_is_no_feature_and_id_at_once():
    frame = pd.DataFrame(PEOPLE.X[:, :3], columns=["a", "b", "c"]).assign(person=IDS)
    with pytest.raises(InvalidInput, match="both a feature and the privacy id"):
        classifier().fit(frame, PEOPLE.y, sensitive_features={"sex": SEX}, privacy_ids=frame["person"])
    model = classifier().fit(frame, PEOPLE.y, sensitive_features={"sex": SEX}, privacy_ids="person")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(InvalidInput, match="both the label and the privacy id"):
        RateConstrainedClassifier().fit(frame, "person", privacy_ids="person")
    grouped = RateConstrainedClassifier(demographic_parity("person", max_gap=0.1))
    with pytest.raises(InvalidInput, match="both a group and the privacy id"):
        grouped.fit(frame, PEOPLE.y, sensitive_features="person", privacy_ids="person")


def test_a_ledger_holds_one_unit_only():
    ledger = Ledger(cap=Budget(20.0, 1e-4), neighbours="zero_out")
    fitted(IDS, ledger=ledger)
    with pytest.raises(InvalidInput, match="one row"):
        evaluate(
            PARITY, PEOPLE.y, GUESS, sensitive_features={"sex": SEX}, epsilon=1.0, ledger=ledger, neighbours="zero_out", **FACTS
        )  # fmt: skip


def test_ids_are_routed_as_metadata():
    sensitive = pd.DataFrame({"sex": SEX})
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = classifier().set_fit_request(privacy_ids=True, sensitive_features=True)
        pipeline = make_pipeline(FunctionTransformer(), model)
        found = cross_validate(
            pipeline, PEOPLE.X, PEOPLE.y, cv=2, params={"privacy_ids": IDS, "sensitive_features": sensitive},
            return_estimator=True,
        )  # fmt: skip
    assert all(each[-1].plan_.unit.kind == "id" for each in found["estimator"])


def test_a_few_ids_with_most_rows_are_bounded_and_the_statement_says_so():
    ids = np.where(np.arange(N) < 1000, "one", np.arange(N).astype(str))
    model = fitted(ids)
    assert "at most 1 rows of an id are used: by released counts" in str(model.privacy_)
    assert model.certificate_.n_units == 201


def test_rates_without_noise_are_those_of_persons_or_of_rows():
    options = {"sensitive_features": {"sex": SEX}, "privacy_ids": IDS, "rows_per_id": 50, **FACTS}
    by_row = evaluate(PARITY, PEOPLE.y, GUESS, id_weighting="row", **options)
    plain = evaluate(PARITY, PEOPLE.y, GUESS, sensitive_features={"sex": SEX}, **FACTS)
    assert by_row[0].estimate == pytest.approx(plain[0].estimate, abs=1e-3)
    weights = 1 / np.bincount(IDS)[IDS]
    rates = [np.average(GUESS[sex == SEX], weights=weights[sex == SEX]) for sex in ("Female", "Male")]
    by_id = evaluate(PARITY, PEOPLE.y, GUESS, **options)
    assert by_id[0].estimate == pytest.approx(abs(rates[0] - rates[1]), abs=1e-3)
    assert by_id.unit == "ids"
    assert by_id.n_units == len(np.unique(IDS))


class Spy:
    """Stands for the mechanism: keeps what it is given, and releases what it released in the first run."""

    seen: list
    released: list

    def __init__(self, noise, sensitivity, whole, step):
        self.sensitivity, self.step, self.standard_deviation = sensitivity, step, 0.0

    def release(self, value, rng):
        assert np.array_equal(value / self.step, np.rint(value / self.step))  # sums are exact
        Spy.seen.append((value.copy(), self.sensitivity))
        if len(Spy.released) < len(Spy.seen):
            Spy.released.append(value + 0.0)
        return Spy.released[len(Spy.seen) - 1]


@pytest.mark.parametrize("weighting", ["id", "row"])
@pytest.mark.parametrize("most", [1, 3, None])
@pytest.mark.parametrize("call", ["evaluate", "postprocess", "postprocess with groups"])
def test_an_adversarial_person_moves_every_release_by_at_most_its_bound(call, most, weighting, monkeypatch):
    monkeypatch.setattr(plan_module, "RoundedGaussianMechanism", Spy)
    monkeypatch.setattr("ratewise.estimators.postprocess._solve", lambda compiled, grid, counts: np.tile(
        np.array([1.0, 0.0]), (counts.cells.shape[1] // grid.n_bins, grid.n_bins, 1)))  # fmt: skip
    victim = np.flatnonzero(np.bincount(IDS).argmax() == IDS)
    assert len(victim) > 3

    def run(y, guess, scores):
        Spy.seen = []
        options = {
            "sensitive_features": {"sex": SEX}, "privacy_ids": IDS, "rows_per_id": most, "id_weighting": weighting,
            "epsilon": 4.0, "delta": 1e-5, "random_state": 0, **FACTS,
        }  # fmt: skip
        if call == "evaluate":
            evaluate(PARITY, y, guess, **options)
        else:
            postprocess(scores, y, PARITY, group_aware=call.endswith("groups"), **options)
        return Spy.seen

    Spy.released = []
    scores = np.random.default_rng(1).random(N)
    first = run(PEOPLE.y, GUESS, scores)
    for y in (7, 0, 1):  # a label that is no class blanks the row: the neighbouring table
        other_y, other_guess, other_scores = PEOPLE.y.copy(), GUESS.copy(), scores.copy()
        other_y[victim], other_guess[victim], other_scores[victim] = y, 1, 0.999
        factor = 1.0 if y == 7 else 2.0
        for (value, bound), (other, _) in zip(first, run(other_y, other_guess, other_scores), strict=True):
            assert bound in (1.0, COUNT_SENSITIVITY)
            assert np.linalg.norm(value - other) <= factor * bound + 1e-9


@pytest.mark.parametrize("call", ["evaluate", "postprocess"])
def test_rows_per_id_are_found_privately_if_nobody_declares_them(call):
    ledger = Ledger(cap=Budget(4.0, 1e-5), adaptive=False)
    options = {"sensitive_features": {"sex": SEX}, "privacy_ids": IDS, "ledger": ledger, "epsilon": 4.0, "delta": 1e-5}
    if call == "evaluate":
        said = str(evaluate(PARITY, PEOPLE.y, GUESS, **options, **FACTS))
    else:
        said = str(postprocess(GUESS * 0.9, PEOPLE.y, PARITY, **options, **FACTS).privacy_)
    (plan,) = ledger.admissions
    assert plan.names[0] == "rows per id"
    assert ledger.total(1e-5) <= 4.0
    shares = np.array([event.noise**-2.0 for event in plan.events])
    assert shares[0] / shares.sum() == pytest.approx(0.01)  # of the budget, as in training
    wanted = 2 ** np.ceil(np.log2(np.quantile(np.bincount(IDS), 0.9, method="higher")))
    assert f"t most {wanted:.0f} rows of an id are used: by released counts" in said


def test_without_privacy_all_rows_of_an_id_are_used():
    options = {"sensitive_features": {"sex": SEX}, "privacy_ids": IDS, **FACTS}
    every = evaluate(PARITY, PEOPLE.y, GUESS, rows_per_id=int(np.bincount(IDS).max()), **options)
    assert evaluate(PARITY, PEOPLE.y, GUESS, **options).to_dict() == every.to_dict()


def test_group_privacy_composes_to_the_budget():
    epsilon, delta = group_budget(1.0, 1e-5, 5)
    total = sum(np.exp(k * epsilon) * delta for k in range(5))
    assert 5 * epsilon == pytest.approx(1.0)
    assert total == pytest.approx(1e-5)
