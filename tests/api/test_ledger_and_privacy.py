"""What a fit spends, states and leaves behind."""

import math
import pickle
import struct
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from ratewise import (
    Budget,
    BudgetExceeded,
    CertificateWarning,
    Ledger,
    Numeric,
    RateConstrainedClassifier,
    RatewiseWarning,
    SeedWarning,
    TrainingConfig,
    below,
    demographic_parity,
    equalized_odds,
    group,
    rate,
)
from ratewise.accounting import TrainingEvent, UnprotectedEvent, epsilon
from ratewise.exceptions import LedgerError
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.models.additive import AdditiveEngine
from ratewise.models.linear import SparseEngine
from ratewise.training.dual import DualUpdate

N = 613  # a prime that is no number of steps, cells or parameters
RNG = np.random.default_rng(2)
SEX = RNG.choice(["F", "M"], N)
X = RNG.normal(size=(N, 3)) + (SEX == "M")[:, None]
Y = (X[:, 0] + RNG.normal(size=N) > 0.5).astype(int)
GROUPS = {"sex": SEX}
PARITY = demographic_parity("sex", max_gap=0.1)
DELTA = 1e-5
PUBLIC = {"classes": (0, 1), "group_values": {"sex": ("F", "M")}, "feature_bounds": (-4, 5)}


def classifier(constraints=PARITY, steps=30, settings=None, **changes):
    config = TrainingConfig(steps=steps, **(settings or {}))
    return RateConstrainedClassifier(constraints, **{**PUBLIC, "random_state": 0, "config": config, **changes})


def fit(constraints=PARITY, **changes):
    return classifier(constraints, **changes).fit(X, Y, sensitive_features=GROUPS)


def weights(model):
    return np.append(model.model_.scorer.table, model.model_.scorer.intercept)


def steps_in(ledger):
    return sum(event.steps for event in ledger.events() if isinstance(event, TrainingEvent))


def ran_in(ledger):
    """Return the training steps that happened, or may have happened."""
    return sum(
        count
        for plan in ledger.admissions
        for event, count in zip(plan.events, plan.released.values(), strict=True)
        if isinstance(event, TrainingEvent)
    )


class TestSpent:
    @pytest.mark.parametrize("asked", [0.05, 1.0, 8.0])
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"constraints": None},
            {"neighbours": "add_or_remove", "settings": {"histogram": "laplace"}},
            {"neighbours": "replace_one"},
            {"neighbours": "zero_out", "settings": {"sampling_rate": 0.1}},
            {"constraints": equalized_odds("sex", max_gap=0.1), "settings": {"histogram_share": 0.4}, "steps": 1},
            {"settings": {"sampling_rate": 1.0, "rates": "soft"}},
            {"classes": None, "group_values": None, "feature_bounds": None},
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore:.*fewer than two classes:ratewise.RatewiseWarning")
    def test_all_of_the_budget_and_no_more(self, asked, changes):
        model = fit(**{"epsilon": asked, **changes})
        assert 0.99 * asked <= model.privacy_.epsilon <= asked
        assert model.privacy_.delta == DELTA
        assert model.privacy_.neighbours == model.neighbours
        assert model.ledger_.cap == Budget(asked, DELTA)

    def test_stated_is_the_composition_of_the_plan(self):
        model = fit()
        planned = list(model.plan_.events.values())
        assert list(model.privacy_.events) == planned
        assert [type(event).__name__ for event in planned] == [
            "GaussianEvent",
            "TrainingEvent",
            "GaussianEvent",
            "GaussianEvent",
        ]
        assert model.privacy_.epsilon == pytest.approx(epsilon(planned, DELTA, "zero_out"), rel=1e-9)
        assert model.n_iter_ == 30

    def test_what_is_planned_is_what_is_released(self):
        model = classifier()
        planned = model.planned_events(X, Y, sensitive_features=GROUPS)
        assert planned == tuple(fit().plan_.events.values())
        assert not hasattr(model, "ledger_")

    def test_without_privacy_epsilon_is_infinite(self):
        model = fit(epsilon=None)
        assert model.privacy_.epsilon == math.inf
        assert not model.privacy_.private
        assert isinstance(model.privacy_.events[0], UnprotectedEvent)
        assert "NO PRIVACY GUARANTEE" in str(model.privacy_)
        assert model.ledger_.total(DELTA) == math.inf

    def test_statement_names_unit_and_public_facts(self):
        model = fit(data_name="survey 7")
        words = " ".join(str(model.privacy_).split())
        for part in ("one row", "613", "the classes", "'sex'", "the ranges or values of 3 features"):
            assert part in words
        assert [plan.data for plan in model.ledger_.admissions] == ["survey 7"]

    def test_delta_between_one_row_and_the_customary_one_is_warned_of(self):
        n = 110_000
        x, y = np.tile(X[:, :1], (n // N + 1, 1))[:n], np.resize(Y, n)
        model = RateConstrainedClassifier(
            classes=(0, 1), feature_bounds=(-4, 5), delta=1e-5, config=TrainingConfig(steps=2)
        )
        with pytest.warns(RatewiseWarning, match="delta is 1e-05, above 1/n = 9.09e-06") as caught:
            model.fit(x, y)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        model.set_params(delta=9e-6).fit(x, y)  # says nothing
        model.set_params(delta=None).fit(x, y)
        assert model.privacy_.delta < 1 / n


class TestUndeclaredFacts:
    """What is not declared is found by releases within the budget: nothing is read outside the guarantee."""

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({}, []),
            ({"classes": None}, ["the classes"]),
            ({"group_values": None}, ["the values of 'sex'"]),
            ({"classes": None, "group_values": None}, ["the classes", "the values of 'sex'"]),
            ({"constraints": None, "group_values": None}, []),
            ({"constraints": rate(1) <= 0.4, "group_values": None}, []),
            ({"feature_bounds": None}, ["types, ranges and values of"]),
        ],
        ids=str,
    )
    def test_found_by_releases_and_stated(self, changes, found):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("ignore", SeedWarning)
            warnings.simplefilter("ignore", CertificateWarning)
            model = fit(**{"epsilon": 8.0, **changes})
        assert model.privacy_.private
        assert model.privacy_.outside == ()
        assert len(model.privacy_.found) == len(found)
        for stated, expected in zip(model.privacy_.found, found, strict=True):
            assert stated.startswith(expected)
            assert stated in " ".join(str(model.privacy_).split())
        assert model.privacy_.epsilon <= 8.0

    def test_numeric_columns_need_no_release(self):
        ages = {"age": X[:, 1] * 10 + 40}
        limit = rate(1, where=group(age=below(40))) <= 0.9
        for declared in (None, {"age": Numeric()}):
            model = classifier(limit, group_values=declared).fit(X, Y, sensitive_features=ages)
            assert model.privacy_.found == ()


class TestOneLoop:
    """With and without constraints, with and without privacy: the same loop."""

    def test_private_and_constrained(self):
        model = fit()
        event = model.plan_.training
        assert event in model.privacy_.events
        assert event.histogram == "gaussian"
        assert set(model.history_) == {"step", "gradient_norm", "histogram", "values", "multipliers"}
        assert model.history_["histogram"].shape == (30, 2, 2)
        assert model.history_["values"].shape == model.history_["multipliers"].shape == (30, 2)
        assert model.multipliers_.shape == (2,)
        assert model.certificate_ is not None

    @pytest.mark.parametrize("empty", [None, [], ()])
    def test_without_constraints_it_is_dp_sgd(self, empty):
        model = fit(empty)
        event = model.plan_.training
        assert event in model.privacy_.events
        assert (event.histogram, event.histogram_noise) == (None, None)
        assert set(model.history_) == {"step", "gradient_norm"}
        assert model.constraints_ is None
        assert model.multipliers_.shape == (0,)
        assert model.certificate_ is None

    def test_prediction_counts_and_certificate_cost_a_part_of_the_budget(self):
        assert fit().plan_.training.gradient_noise > fit(None).plan_.training.gradient_noise

    def test_without_privacy_it_is_descent_and_ascent_on_exact_values(self):
        model = fit(epsilon=None, settings={"sampling_rate": 1.0})
        totals = model.history_["histogram"].sum(axis=2)
        np.testing.assert_array_equal(totals, np.tile([(SEX == "F").sum(), (SEX == "M").sum()], (30, 1)))
        np.testing.assert_array_equal(model.history_["histogram"] % 1, 0)

    def test_much_budget_comes_near_no_privacy(self):
        """Noise is all that privacy adds, once rows are clipped alike and all of them are read."""
        common = {"constraints": None, "settings": {"sampling_rate": 1.0, "clip": 1.0, "learning_rate": 1.0}}
        exact = fit(epsilon=None, **common)
        near, far = fit(epsilon=1e5, **common), fit(epsilon=0.1, **common)
        scores = exact.decision_function(X)
        assert np.abs(near.decision_function(X) - scores).mean() < 0.06
        assert np.abs(far.decision_function(X) - scores).mean() > 0.3


class TestHistory:
    def test_histograms_are_noisy_by_what_the_plan_says(self):
        """Every row is in every sample, so cell sizes are exact but for the noise."""
        model = fit(settings={"sampling_rate": 1.0}, steps=1500, epsilon=20.0)
        sizes = np.array([(SEX == "F").sum(), (SEX == "M").sum()])
        noise = model.history_["histogram"].sum(axis=2) - sizes  # of two counts each
        noise /= model.plan_.training.histogram_noise * math.sqrt(2)
        assert abs(noise.mean()) < 4 / math.sqrt(noise.size)
        assert 0.94 < noise.std() < 1.06  # 4.6 standard errors
        assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
        assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.1

    def test_all_else_follows_from_released_histograms(self, monkeypatch):
        """A dual update that sees only what was released comes to the same weights and multipliers."""
        tables, sums, made = [], AdditiveEngine.sums, []
        init = DualUpdate.__init__

        def watched(self, sample, parameters, weights, clip):
            tables.append(None if weights is None else np.array(weights))
            return sums(self, sample, parameters, weights, clip)

        def noted(self, *arguments, **options):
            made.append((arguments, options))
            init(self, *arguments, **options)

        monkeypatch.setattr(AdditiveEngine, "sums", watched)
        monkeypatch.setattr(DualUpdate, "__init__", noted)
        model = fit(steps=60)
        monkeypatch.undo()
        ((arguments, options),) = made
        replay = DualUpdate(*arguments, **options)
        for place, released in enumerate(model.history_["histogram"]):
            expected = replay.table
            if tables[place] is None:
                assert expected is None
            else:
                np.testing.assert_allclose(tables[place], expected, atol=1e-12)
            replay.update(released, 1.0 - place / 60)
            np.testing.assert_allclose(model.history_["values"][place], replay.estimate, atol=1e-12)
            np.testing.assert_allclose(model.history_["multipliers"][place], replay.multipliers, atol=1e-12)
        np.testing.assert_allclose(model.multipliers_, replay.multipliers)

    def test_callbacks_see_what_history_keeps(self):
        records = []
        model = fit(callback=records.append)
        assert [record.step for record in records] == list(range(1, 31)) == model.history_["step"].tolist()
        norms = [record.gradient_norm for record in records]
        np.testing.assert_array_equal(norms, model.history_["gradient_norm"])
        shown = [record.histogram for record in records]
        np.testing.assert_array_equal(np.stack(shown), model.history_["histogram"])

    def test_long_runs_keep_every_so_many_steps(self, monkeypatch):
        monkeypatch.setattr("ratewise.training.loop._MOST_VALUES", 2000)
        model = fit(steps=400)
        stored = sum(array.size for array in model.history_.values())
        assert stored < 2400
        assert len(model.history_["step"]) < 400
        assert model.n_iter_ == steps_in(model.ledger_) == 400


def parts(thing, seen=None):
    """Yield everything that can be reached from an object."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | type(None)):
        return
    seen.add(id(thing))
    yield thing
    inner = []
    if isinstance(thing, dict):
        inner += [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner += thing
    elif isinstance(thing, np.ndarray) and thing.dtype == object:
        inner += thing.tolist()
    inner += list(getattr(thing, "__dict__", {}).values())
    for kind in type(thing).__mro__:
        names = getattr(kind, "__slots__", ())
        inner += [getattr(thing, name, None) for name in ([names] if isinstance(names, str) else names)]
    closure = getattr(thing, "__closure__", None) or ()
    inner += [cell.cell_contents for cell in closure]
    for part in inner:
        yield from parts(part, seen)


RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, RandomStreams)


def secrets_in(model):
    """Return what of the training rows, their cells or the noise can be found in a model."""
    kinds = {_secret(part) for part in parts(model)} - {None}
    arrays = [part for part in parts(model) if isinstance(part, np.ndarray) and part.dtype != object]
    pickled = pickle.dumps(model) + b"".join(array.tobytes() for array in arrays)  # files are compressed
    for kind in (np.float64, np.float32):
        if any(value.tobytes() in pickled for value in X.astype(kind).ravel()[:200]):
            kinds.add("values of rows")
    codes = (Y, (SEX == "M").astype(int), 2 * (SEX == "M") + Y)
    for kind in (np.int8, np.int32, np.int64, np.float32, np.float64, bool):
        if any(code[40:80].astype(kind).tobytes() in pickled for code in codes):
            kinds.add("labels, groups or cells")
    return sorted(kinds)


def _secret(part):
    if isinstance(part, np.ndarray | scipy.sparse.sparray) and N in part.shape:
        return "an array with an entry per row"
    if isinstance(part, list | tuple | dict | set) and len(part) == N:
        return "a collection with an entry per row"
    if isinstance(part, RANDOM):
        return "a source of randomness"
    return "an engine" if isinstance(part, AdditiveEngine | SparseEngine) else None


class TestLeftBehind:
    SEED = 987_654_321

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"epsilon": None},
            {"constraints": None},
            {"constraints": equalized_odds("sex", max_gap=0.1), "feature_bounds": (-3, 3)},
            {"feature_bounds": None, "classes": None},
            {"verbose": 1},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("sparse", [False, True])
    def test_no_rows_labels_cells_or_seeds(self, changes, sparse):
        kind = "linear" if sparse else "additive"
        model = classifier(**{"random_state": self.SEED, "model": kind, **changes})
        model.fit(scipy.sparse.csr_array(X) if sparse else X, Y, sensitive_features=GROUPS)
        assert secrets_in(model) == []
        model.set_params(random_state=None)
        assert struct.pack("<i", self.SEED) not in pickle.dumps(model)
        assert str(self.SEED) not in repr(list(vars(model).items())) + model.ledger_.to_json()

    @pytest.mark.parametrize(
        ("hidden", "kind"),
        [
            (lambda: {"a": [(X,)]}, "an array"),
            (lambda: X[3:5], "values of rows"),
            (Y.tolist, "a collection"),
            (lambda: Y[30:90].astype(np.int8), "labels"),
            (lambda: np.random.default_rng(0).bit_generator.seed_seq, "a source"),
            (lambda: RandomStreams.from_seed(0), "a source"),
        ],
    )
    def test_the_search_finds_what_is_hidden(self, hidden, kind):
        model = fit()
        model.history_["more"] = hidden()
        assert any(found.startswith(kind) for found in secrets_in(model))


class TestLedger:
    def test_two_fits_add_up_on_one_ledger(self):
        ledger = Ledger(cap=Budget(4.0, DELTA))
        first = fit(ledger=ledger, data_name="train")
        second = fit(ledger=ledger, data_name="train", steps=50, random_state=1)
        assert first.ledger_ is second.ledger_ is ledger
        events = [*first.privacy_.events, *second.privacy_.events]
        assert steps_in(ledger) == 80
        assert ledger.total(DELTA) == pytest.approx(epsilon(events, DELTA, "zero_out"), rel=1e-9)
        assert first.privacy_.epsilon <= 1.0 < ledger.total() < 2
        assert ledger.statement().epsilon == 4.0  # the filter's cap
        assert 0 < ledger.spent < 1

    def test_a_second_fit_on_a_fixed_plan_is_refused(self):
        ledger = Ledger()
        fit(ledger=ledger)
        with pytest.raises(LedgerError, match="opened for a fixed plan"):
            fit(ledger=ledger, random_state=1)

    def test_a_full_ledger_refuses_before_anything_is_released(self, monkeypatch):
        ledger = Ledger(cap=Budget(1.2, DELTA))
        fit(ledger=ledger)
        records, spent, called = ledger.records, ledger.total(), []
        monkeypatch.setattr(AdditiveEngine, "sums", lambda *arguments: called.append(arguments))
        model = classifier(ledger=ledger, random_state=1)
        with pytest.raises(BudgetExceeded, match=r"cap Budget\(epsilon=1\.2.*nothing was admitted"):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert not called
        assert (ledger.records, ledger.total()) == (records, spent)
        with pytest.raises(NotFittedError):
            model.predict(X)

    def test_no_capped_ledger_takes_a_training_without_privacy(self):
        ledger = Ledger(cap=Budget(100.0, DELTA))
        with pytest.raises(BudgetExceeded):
            fit(ledger=ledger, epsilon=None)
        assert ledger.records == ()

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
    @pytest.mark.parametrize("at", [1, 17, 30])
    def test_a_stopped_fit_counts_the_steps_that_ran(self, error, at):
        def stop(record):
            if record.step == at:
                raise error("stop")

        ledger = Ledger()
        model = classifier(ledger=ledger, callback=stop)
        with pytest.raises(error, match="stop"):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert model.ledger_ is ledger
        assert ran_in(ledger) == at
        assert steps_in(ledger) == 30  # a plan counts as a whole
        assert 0.99 <= ledger.total(DELTA) <= 1.0
        for use in (model.predict, model.predict_proba, model.decision_function):
            with pytest.raises(NotFittedError):
                use(X)

    def test_a_stopped_fit_leaves_its_own_ledger_too(self):
        def stop(record):
            raise KeyboardInterrupt

        model = classifier(callback=stop)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert ran_in(model.ledger_) == 1
        assert 0.99 <= model.ledger_.total() <= 1

    def test_a_step_that_was_begun_counts(self, monkeypatch):
        """It may have read rows: whether it released is not known, so it counts as released."""
        original, calls = AdditiveEngine.sums, []

        def sums(*arguments):
            calls.append(1)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return original(*arguments)

        monkeypatch.setattr(AdditiveEngine, "sums", sums)
        model = classifier()
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        assert ran_in(model.ledger_) == 5

    def test_a_stopped_fit_can_be_done_again_within_the_rest(self):
        ledger = Ledger(cap=Budget(1.6, DELTA))

        def stop(record):
            if record.step == 10:
                raise KeyboardInterrupt

        model = classifier(ledger=ledger, callback=stop)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, sensitive_features=GROUPS)
        with pytest.raises(BudgetExceeded):
            model.set_params(callback=None, random_state=1).fit(X, Y, sensitive_features=GROUPS)
        model.set_params(epsilon=0.5, random_state=2).fit(X, Y, sensitive_features=GROUPS)
        assert 1.0 < ledger.total() <= 1.6

    def test_a_ledger_on_disk_outlives_the_fit(self, tmp_path):
        path = tmp_path / "book.json"
        fit(ledger=Ledger.create(path, cap=Budget(3.0, DELTA)), data_name="survey")
        again = Ledger.open(path)
        assert steps_in(again) == 30
        assert {plan.data for plan in again.admissions} == {"survey"}
        model = fit(ledger=again, random_state=1)
        found = Ledger.open(path)
        assert steps_in(found) == 60
        assert found.total() > model.privacy_.epsilon

    def test_a_ledger_on_disk_outlives_an_interrupt(self, tmp_path):
        path = tmp_path / "book.json"

        def stop(record):
            if record.step == 9:
                assert ran_in(Ledger.open(path)) >= 9  # whatever happens now, it is written
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(ledger=Ledger.create(path), callback=stop)
        assert ran_in(Ledger.open(path)) == 9

    def test_an_unpickled_ledger_is_not_written(self):
        model = pickle.loads(pickle.dumps(classifier(ledger=Ledger())))
        with pytest.raises(Exception, match="can only be read"):
            model.fit(X, Y, sensitive_features=GROUPS)

    def test_divergence_is_an_error_that_the_ledger_survives(self):
        model = classifier(None, settings={"learning_rate": 1e99, "momentum": 0.9})
        with pytest.raises(ValueError, match="diverged"):
            model.fit(X, Y)
        assert ran_in(model.ledger_) >= 1

    def test_progress_shows_released_values_and_ends_its_line(self, capsys):
        fit(verbose=1)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "step 30/30, 0 s left, largest gap" in shown.err
        assert shown.err.endswith("\n")

        def stop(record):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(verbose=1, callback=stop)
        assert capsys.readouterr().err.endswith("\n")
        fit()
        assert capsys.readouterr().err == ""


def test_an_interrupted_refit_leaves_no_mix_of_two_models():
    def stop(record):
        if record.step == 3:
            raise RuntimeError("stop")

    model = fit()
    model.set_params(callback=stop)
    with pytest.raises(RuntimeError):
        model.fit(X, Y, sensitive_features=GROUPS)
    assert not hasattr(model, "privacy_")
    assert 0.99 <= model.ledger_.total(DELTA) <= 1
    with pytest.raises(NotFittedError):
        model.predict(X)
